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

static double elements_of(const lb_worker *worker, uint32_t gradient)
{
    return (double)lb_layout_numel(
        &worker->program->values[worker->own.values[worker->own.list[gradient].first]].layout);
}

/* Do the ranks of this group hand each other activations that are added up or gathered, as in tensor parallelism? */
static bool computes_together(const lb_program *program, const lb_collective *group)
{
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        const lb_collective *collective = &program->collectives[i];
        if (lb_model_ranks_meet(program, collective) &&
            lb_collective_run_kind(lb_op_name(program, &program->ops[collective->op])) != LB_EXCHANGE_ALL_TO_ALL &&
            lb_own_gradient_same_group(program, collective, program, group))
            return true;
    }
    return false;
}

/* `writes`: to whom it hands activations, by rows. */
static lb_status pair_group(lb_worker_steps *steps, const lb_worker *worker, const lb_collective *group,
                            const bool *writes, lb_err *err)
{
    const lb_program *program = worker->program;
    const uint32_t a = lb_rank_steps_row(steps->ranks, steps->n_ranks, worker->rank);
    uint32_t *rows = malloc((group->ranks + 1) * sizeof *rows), n = 0;
    if (!rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a group of %u ranks", group->ranks);
    for (uint32_t k = 0; k < group->ranks; k++) {
        const uint32_t b =
            lb_rank_steps_row(steps->ranks, steps->n_ranks, (int32_t)program->refs[group->first_rank + k]);
        if (b != LB_NONE) rows[n++] = b;
    }
    const lb_status status = a == LB_NONE ? LB_OK : lb_worker_pairs_add(&steps->pairs, a, rows, n, writes, err);
    free(rows);
    return status;
}

/* What is reduced over one group. */
typedef struct share {
    uint32_t row; /* the first collective over it */
    double elements;
} share;

static uint32_t list_shares(const lb_worker *worker, share *shares)
{
    const lb_program *program = worker->program;
    uint32_t n = 0;
    for (uint32_t i = 0; i < worker->own.n; i++) {
        const uint32_t row = worker->own.list[i].collective;
        uint32_t at = 0;
        if (row == LB_NONE) continue;
        while (at < n && !lb_own_gradient_same_group(program, &program->collectives[row], program,
                                                     &program->collectives[shares[at].row]))
            at++;
        if (at == n) shares[n++] = (share){.row = row};
        shares[at].elements += elements_of(worker, i);
    }
    return n;
}

/* Members of the groups over which at least half of what a worker reduces goes: a group of tensor parallelism that
 * reduces the norms' gradients alone makes no workers, and one that is the only group does neither: most of its
 * gradients are shards, which it does not reduce. Nor do stages of a pipeline that reduce the gradient of what they
 * tie. */
static lb_status pair_members(lb_worker_steps *steps, const lb_worker *worker, lb_err *err)
{
    const lb_program *program = worker->program;
    double reduced = 0, all = 0;
    share *shares = malloc((worker->own.n + 1) * sizeof *shares);
    bool *writes = calloc(steps->n_ranks + 1, sizeof *writes);
    lb_status status =
        shares && writes ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", steps->n_ranks);
    for (uint32_t i = 0; i < worker->own.n; i++) {
        all += elements_of(worker, i);
        if (worker->own.list[i].collective != LB_NONE) reduced += elements_of(worker, i);
    }
    if (status == LB_OK) lb_model_ranks_mark_written(program, steps->ranks, steps->n_ranks, writes);
    const uint32_t n = status == LB_OK ? list_shares(worker, shares) : 0;
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        const lb_collective *group = &program->collectives[shares[i].row];
        if (2 * shares[i].elements < reduced || (2 * shares[i].elements < all && computes_together(program, group)))
            continue;
        status = pair_group(steps, worker, group, writes, err);
    }
    free(shares), free(writes);
    return status;
}

static lb_status add_reduced(lb_worker_steps *steps, const lb_worker *worker, lb_err *err)
{
    char **grown = realloc(steps->reduced, (steps->n_reduced + worker->own.n + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    steps->reduced = grown;
    for (uint32_t i = 0; i < worker->own.n; i++)
        if (worker->own.list[i].collective != LB_NONE) steps->reduced[steps->n_reduced++] = worker->own.list[i].key;
    if (steps->n_reduced) qsort(steps->reduced, steps->n_reduced, sizeof *steps->reduced, by_text);
    uint32_t n = 0;
    for (uint32_t i = 0; i < steps->n_reduced; i++)
        if (!n || strcmp(steps->reduced[n - 1], steps->reduced[i])) steps->reduced[n++] = steps->reduced[i];
    steps->n_reduced = n;
    return LB_OK;
}

static lb_status take_step(lb_worker_steps *steps, int64_t step, lb_err *err)
{
    lb_worker_step *row = &steps->steps[steps->n_steps];
    *row = (lb_worker_step){step, calloc(steps->n_ranks, sizeof *row->workers)};
    if (!row->workers) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", steps->n_ranks);
    steps->n_steps++;
    for (uint32_t r = 0; r < steps->n_ranks; r++) {
        lb_worker *worker = &row->workers[r];
        worker->rank = steps->ranks[r];
        if (lb_capture_program(steps->capture, worker->rank, step, &worker->program, NULL) != LB_OK) {
            worker->program = NULL;
            continue;
        }
        lb_slice_flow *flow;
        LB_TRY(lb_slice_flow_new(worker->program, &flow, err));
        const lb_status status = lb_own_gradients_find(worker->program, flow, &worker->own, err);
        lb_slice_flow_free(flow);
        if (status != LB_OK) return status;
        LB_TRY(pair_members(steps, worker, err));
        LB_TRY(add_reduced(steps, worker, err));
    }
    return LB_OK;
}

lb_status lb_worker_steps_init(lb_capture *capture, int64_t first_step, int64_t last_step, lb_worker_steps *out,
                               lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(capture, &steps);
    *out = (lb_worker_steps){.capture = capture};
    out->n_ranks = lb_capture_ranks(capture, &out->ranks);
    out->steps = calloc(n + 1, sizeof *out->steps);
    lb_status status = out->steps ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u steps", n);
    if (status == LB_OK) status = lb_worker_pairs_init(out->n_ranks, &out->pairs, err);
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        if (steps[i] >= first_step && steps[i] <= last_step) status = take_step(out, steps[i], err);
    if (status == LB_OK && !out->n_steps) status = lb_capture_lacks(capture, first_step, last_step, err);
    if (status != LB_OK) lb_worker_steps_release(out);
    return status;
}

void lb_worker_steps_release(lb_worker_steps *steps)
{
    for (uint32_t i = 0; i < steps->n_steps; i++) {
        for (uint32_t r = 0; r < steps->n_ranks; r++) lb_own_gradients_release(&steps->steps[i].workers[r].own);
        free(steps->steps[i].workers);
    }
    free(steps->steps), free(steps->reduced);
    lb_worker_pairs_release(&steps->pairs);
    *steps = (lb_worker_steps){0};
}

bool lb_worker_key_reduced(const lb_worker_steps *steps, const char *key)
{
    return steps->n_reduced && bsearch(&key, steps->reduced, steps->n_reduced, sizeof *steps->reduced, by_text);
}
