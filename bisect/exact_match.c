/* Matching by projections: see exact_match.h. */
#include "exact_match.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMPARISONS = 1 << 24 };

lb_status lb_exact_match_init(const lb_side *a, const lb_side *b, const lb_alignment *alignment, lb_exact_match *match,
                              lb_err *err)
{
    *match = (lb_exact_match){.program = {a->program, b->program}, .alignment = alignment};
    for (int i = 0; i < 2; i++)
        match->results[i] = calloc(match->program[i]->n_ops + 1, sizeof *match->results[i]);
    if (match->results[0] && match->results[1]) return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", a->program->n_ops + b->program->n_ops);
}

void lb_exact_match_release(lb_exact_match *match)
{
    free(match->results[0]), free(match->results[1]);
    *match = (lb_exact_match){0};
}

/* Pairs of a regular group are partners by all that is known; only what stands beside them may be matched otherwise. */
static bool may_match(const lb_exact_match *m, int side, uint32_t op)
{
    const lb_alignment *al = m->alignment;
    const uint32_t partner = side ? al->a_of_b[op] : al->b_of_a[op];
    if (!lb_op_computes(m->program[side], &m->program[side]->ops[op])) return false;
    if ((side ? al->join_of_b[op] : al->join_of_a[op]) != LB_NONE) return false;
    return partner == LB_NONE || al->irregular[side ? partner : op];
}

/* The one result, which an op in place lists twice; NULL when there are several. */
static const lb_tensor *only_result(const lb_event *event)
{
    const lb_tensor *only = NULL;
    uint32_t value = LB_NONE;
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (event->values[i] == LB_NONE || event->values[i] == value) continue;
        if (only) return NULL;
        only = &event->shadow[i], value = event->values[i];
    }
    return only && only->data && only->dtype == LB_F64 ? only : NULL;
}

void lb_exact_match_note(lb_exact_match *m, int side, bool disturbed, uint32_t op, const lb_event *event)
{
    const lb_tensor *result = may_match(m, side, op) ? only_result(event) : NULL;
    lb_projection *p = &m->results[side][op];
    if (!result) return;
    const lb_projection now = lb_projection_of(result);
    if (!disturbed) {
        *p = now;
        return;
    }
    for (int k = 0; k < 4; k++) p->noise = fmax(p->noise, fabs(p->sums[k] - now.sums[k]));
}

static bool is_free(const lb_exact_match *m, const lb_shadow_pair *out, int side, uint32_t op)
{
    const lb_alignment *al = m->alignment;
    const lb_projection *p = &m->results[side][op];
    uint32_t row = side ? al->a_of_b[op] : op;
    if (!p->elements || p->norm == 0 || out->meets[side][op] != LB_NONE) return false;
    if ((side ? al->a_of_b[op] : al->b_of_a[op]) == LB_NONE) return true;
    return out->rows[row].agreement == LB_SHADOW_DISAGREES;
}

static uint32_t *list_free(const lb_exact_match *m, const lb_shadow_pair *out, int side, uint32_t *n)
{
    uint32_t *list = malloc((m->program[side]->n_ops + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < m->program[side]->n_ops; i++)
        if (is_free(m, out, side, i)) list[(*n)++] = i;
    return list;
}

/* First come, first served, in order of execution: of equal quantities (a value and its copy) the earlier meets the earlier. */
static void match_lists(const lb_exact_match *m, const uint32_t *a, uint32_t na, const uint32_t *b, uint32_t nb,
                        lb_shadow_pair *out)
{
    uint64_t comparisons = 0;
    for (uint32_t i = 0; i < na && comparisons < MOST_COMPARISONS; i++)
        for (uint32_t j = 0; j < nb; j++) {
            if (out->meets[1][b[j]] != LB_NONE) continue;
            if (m->program[0]->ops[a[i]].phase != m->program[1]->ops[b[j]].phase) continue;
            comparisons++;
            if (!lb_projections_agree(&m->results[0][a[i]], &m->results[1][b[j]])) continue;
            out->meets[0][a[i]] = b[j], out->meets[1][b[j]] = a[i];
            break;
        }
}

lb_status lb_exact_match_find(const lb_exact_match *m, lb_shadow_pair *out, lb_err *err)
{
    uint32_t n[2] = {0, 0}, *lists[2] = {NULL, NULL};
    bool room = true;
    for (int i = 0; i < 2; i++) {
        const size_t bytes = (m->program[i]->n_ops + 1) * sizeof(uint32_t);
        out->meets[i] = malloc(bytes);
        if (out->meets[i]) memset(out->meets[i], 0xFF, bytes);
        room = room && out->meets[i];
    }
    for (int i = 0; i < 2 && room; i++) room = (lists[i] = list_free(m, out, i, &n[i])) != NULL;
    if (room) match_lists(m, lists[0], n[0], lists[1], n[1], out);
    free(lists[0]), free(lists[1]);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", m->program[0]->n_ops);
}
