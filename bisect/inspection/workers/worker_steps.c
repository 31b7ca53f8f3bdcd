/* Workers of a capture: see worker_steps.h. */
#include "workers/worker_steps.h"

#include "exchanges/rank_steps.h"
#include "failure/model_ranks.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

static double elements_of(const lb_worker *w, uint32_t gradient)
{
    return (double)lb_layout_numel(&w->program->values[w->own.values[w->own.list[gradient].first]].layout);
}

/* Do the ranks of this group hand each other activations that are added up or gathered, as in tensor parallelism? */
static bool computes_together(const lb_program *p, const lb_collective *group)
{
    for (uint32_t i = 0; i < p->n_collectives; i++) {
        const lb_collective *c = &p->collectives[i];
        if (lb_model_ranks_meet(p, c) &&
            lb_collective_run_kind(lb_op_name(p, &p->ops[c->op])) != LB_EXCHANGE_ALL_TO_ALL &&
            lb_own_gradient_same_group(p, c, p, group))
            return true;
    }
    return false;
}

/* `writes`: to whom it hands activations, by rows. */
static void pair_group(lb_worker_steps *s, const lb_worker *w, const lb_collective *group, const bool *writes)
{
    const lb_program *p = w->program;
    const uint32_t a = lb_rank_steps_row(s->ranks, s->n_ranks, w->rank);
    for (uint32_t k = 0; k < group->ranks; k++) {
        const uint32_t b = lb_rank_steps_row(s->ranks, s->n_ranks, (int32_t)p->refs[group->first_rank + k]);
        if (a == LB_NONE || b == LB_NONE || a == b || writes[b]) continue;
        s->pairs[(size_t)a * s->n_ranks + b] = s->pairs[(size_t)b * s->n_ranks + a] = true;
    }
}

/* What is reduced over one group. */
typedef struct share {
    uint32_t row; /* the first collective over it */
    double elements;
} share;

static uint32_t list_shares(const lb_worker *w, share *shares)
{
    const lb_program *p = w->program;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->own.n; i++) {
        const uint32_t row = w->own.list[i].collective;
        uint32_t at = 0;
        if (row == LB_NONE) continue;
        while (at < n && !lb_own_gradient_same_group(p, &p->collectives[row], p, &p->collectives[shares[at].row])) at++;
        if (at == n) shares[n++] = (share){.row = row};
        shares[at].elements += elements_of(w, i);
    }
    return n;
}

/* Members of the groups over which at least half of what a worker reduces goes: a group of tensor parallelism that
 * reduces the norms' gradients alone makes no workers, and one that is the only group does neither: most of its
 * gradients are shards, which it does not reduce. Nor do stages of a pipeline that reduce the gradient of what they
 * tie. */
static lb_status pair_members(lb_worker_steps *s, const lb_worker *w, lb_err *err)
{
    const lb_program *p = w->program;
    double reduced = 0, all = 0;
    share *shares = malloc((w->own.n + 1) * sizeof *shares);
    bool *writes = calloc(s->n_ranks + 1, sizeof *writes);
    lb_status status = shares && writes ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", s->n_ranks);
    for (uint32_t i = 0; i < w->own.n; i++) {
        all += elements_of(w, i);
        if (w->own.list[i].collective != LB_NONE) reduced += elements_of(w, i);
    }
    if (status == LB_OK) lb_model_ranks_mark_written(p, s->ranks, s->n_ranks, writes);
    const uint32_t n = status == LB_OK ? list_shares(w, shares) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const lb_collective *group = &p->collectives[shares[i].row];
        if (2 * shares[i].elements < reduced || (2 * shares[i].elements < all && computes_together(p, group))) continue;
        pair_group(s, w, group, writes);
    }
    free(shares), free(writes);
    return status;
}

static lb_status add_reduced(lb_worker_steps *s, const lb_worker *w, lb_err *err)
{
    char **grown = realloc(s->reduced, (s->n_reduced + w->own.n + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    s->reduced = grown;
    for (uint32_t i = 0; i < w->own.n; i++)
        if (w->own.list[i].collective != LB_NONE) s->reduced[s->n_reduced++] = w->own.list[i].key;
    if (s->n_reduced) qsort(s->reduced, s->n_reduced, sizeof *s->reduced, by_text);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_reduced; i++)
        if (!n || strcmp(s->reduced[n - 1], s->reduced[i])) s->reduced[n++] = s->reduced[i];
    s->n_reduced = n;
    return LB_OK;
}

static lb_status take_step(lb_worker_steps *s, int64_t step, lb_err *err)
{
    lb_worker_step *row = &s->steps[s->n_steps];
    *row = (lb_worker_step){step, calloc(s->n_ranks, sizeof *row->workers)};
    if (!row->workers) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", s->n_ranks);
    s->n_steps++;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        lb_worker *w = &row->workers[r];
        w->rank = s->ranks[r];
        if (lb_capture_program(s->capture, w->rank, step, &w->program, NULL) != LB_OK) {
            w->program = NULL;
            continue;
        }
        lb_slice_flow *flow;
        LB_TRY(lb_slice_flow_new(w->program, &flow, err));
        const lb_status status = lb_own_gradients_find(w->program, flow, &w->own, err);
        lb_slice_flow_free(flow);
        if (status != LB_OK) return status;
        LB_TRY(pair_members(s, w, err));
        LB_TRY(add_reduced(s, w, err));
    }
    return LB_OK;
}

lb_status lb_worker_steps_init(lb_capture *capture, int64_t first, int64_t last, lb_worker_steps *s, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(capture, &steps);
    *s = (lb_worker_steps){.capture = capture};
    s->n_ranks = lb_capture_ranks(capture, &s->ranks);
    s->pairs = calloc((size_t)s->n_ranks * s->n_ranks + 1, sizeof *s->pairs);
    s->steps = calloc(n + 1, sizeof *s->steps);
    lb_status status = s->pairs && s->steps ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u steps", n);
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        if (steps[i] >= first && steps[i] <= last) status = take_step(s, steps[i], err);
    if (status == LB_OK && !s->n_steps) status = lb_capture_lacks(capture, first, last, err);
    if (status != LB_OK) lb_worker_steps_release(s);
    return status;
}

void lb_worker_steps_release(lb_worker_steps *s)
{
    for (uint32_t i = 0; i < s->n_steps; i++) {
        for (uint32_t r = 0; r < s->n_ranks; r++) lb_own_gradients_release(&s->steps[i].workers[r].own);
        free(s->steps[i].workers);
    }
    free(s->steps), free(s->pairs), free(s->reduced);
    *s = (lb_worker_steps){0};
}

bool lb_worker_key_reduced(const lb_worker_steps *s, const char *key)
{
    return s->n_reduced && bsearch(&key, s->reduced, s->n_reduced, sizeof *s->reduced, by_text);
}

bool lb_worker_steps_has(const lb_worker_steps *s, uint32_t rank_row)
{
    for (uint32_t r = 0; r < s->n_ranks; r++)
        if (lb_workers_pair(s, rank_row, r)) return true;
    return false;
}
