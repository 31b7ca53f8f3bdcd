/* What the stages share: see stages.h. */
#include "stages.h"

#include "block.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t lb_rank_row(const lb_inquiry *q, int32_t rank)
{
    for (uint32_t i = 0; i < q->n_ranks; i++)
        if (q->ranks[i] == rank) return i;
    return LB_NONE;
}

uint32_t lb_steps_until_failure(const lb_inquiry *q)
{
    uint32_t n = 0;
    while (n < q->n_steps && q->steps[n] <= q->failure.step) n++;
    return n;
}

static char block_of(const lb_program *p, uint32_t scope, lb_err *err)
{
    lb_flow *flow;
    lb_blocks blocks;
    char letter = 0;
    if (lb_flow_new(p, &flow, err) != LB_OK) return 0;
    if (lb_blocks_find(p, flow, &blocks, err) == LB_OK) {
        letter = blocks.letters[scope];
        lb_blocks_release(&blocks);
    }
    lb_flow_free(flow);
    return letter;
}

lb_status lb_culprit_add(lb_inquiry *q, lb_axis axis, int32_t rank, int64_t step, uint32_t row,
                         lb_culprit **culprit, lb_err *err)
{
    lb_bisection *b = q->out;
    lb_culprit *more = realloc(b->culprits, (b->n_culprits + 1) * sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->culprits = more;
    lb_culprit *c = &b->culprits[b->n_culprits];
    *c = (lb_culprit){.axis = axis, .row = row, .step = step};
    c->ranks = malloc(sizeof *c->ranks);
    if (!c->ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    c->ranks[0] = rank, c->n_ranks = 1;
    b->n_culprits++;
    b->outcome = LB_BISECT_FOUND;
    const lb_program *p = lb_inquiry_program(q, rank, step);
    if (p && row != LB_NONE) {
        const lb_op *op = &p->ops[row];
        snprintf(c->layer, sizeof c->layer, "%s", lb_op_layer(p, op));
        snprintf(c->op, sizeof c->op, "%s", lb_op_name(p, op));
        c->phase = (lb_phase)op->phase;
        c->block = block_of(p, op->scope, err);
    }
    *culprit = c;
    return LB_OK;
}

lb_status lb_cure_set(lb_inquiry *q, const lb_sites *sites, const uint32_t *found, uint32_t n, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) set[found[i] / 64] |= (uint64_t)1 << (found[i] % 64);
    lb_sites_release(&q->cure);
    lb_status status = lb_sites_append(&q->cure, sites, found ? set : NULL, err);
    free(set);
    return status;
}

lb_status lb_sites_add_steps(const lb_inquiry *q, const lb_site_form *form, uint32_t n, lb_sites *sites,
                             lb_err *err)
{
    for (uint32_t s = 0; s < n; s++) {
        char body[32];
        snprintf(body, sizeof body, "%" PRId64, q->steps[s]);
        LB_TRY(lb_sites_add(sites, form, body, err));
    }
    return LB_OK;
}

void lb_step_list(const lb_inquiry *q, const uint32_t *rows, uint32_t n, char *list, size_t size)
{
    list[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        size_t used = strlen(list);
        snprintf(list + used, size - used, "%s%" PRId64, i ? "," : "", q->steps[rows[i]]);
    }
}

double lb_value_largest(const lb_inquiry *q, const lb_program *p, uint32_t value)
{
    lb_tensor tensor;
    lb_statistics s = {0};
    if (p->values[value].statistics != LB_NONE)
        s = p->statistics[p->values[value].statistics];
    else if (lb_capture_value(q->capture, p, value, &tensor, NULL) == LB_OK)
        s = lb_statistics_of(&tensor);
    return s.elements > lb_statistics_nonfinite(&s) ? fmax(fabs(s.min), fabs(s.max)) : 0;
}

lb_status lb_culprit_all_ranks(lb_inquiry *q, lb_culprit *c, lb_err *err)
{
    int32_t *more = realloc(c->ranks, q->n_ranks * sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    c->ranks = more;
    memcpy(c->ranks, q->ranks, q->n_ranks * sizeof *more);
    c->n_ranks = q->n_ranks;
    return LB_OK;
}
