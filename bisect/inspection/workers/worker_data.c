/* Findings about what workers read and drew: see worker_findings.h.
 *
 * A worker's batch are the indices of its embeddings, else the integers that the model takes, else its floats; not
 * masks, constants and counted positions, which are the same everywhere.
 */
#define _GNU_SOURCE /* asprintf */
#include "workers/worker_findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digests of what one worker read, or drew, in one step. */
typedef struct digests {
    lb_digest *list;
    uint32_t n;
} digests;

/* What a value holds, by itself or by the whole that it is a window on. */
static const lb_value *whole_of(const lb_program *program, uint32_t value)
{
    const lb_value *v = &program->values[value];
    for (uint32_t i = 0; i < program->n_values && lb_digest_is_none(v->logical); i++) {
        const lb_value *w = &program->values[i];
        if (w->storage == v->storage && w->version == v->version && w->dtype == v->dtype) v = w;
    }
    return v;
}

/* n whole numbers along the last dimension, each one more than the one before, in every row: positions, which begin
 * behind those of the ranks before where ranks share out a sequence. */
static bool counts_up(const lb_statistics *statistics, int64_t n)
{
    const double rows = (double)statistics->elements / (double)n, last = (double)n - 1, first = statistics->min;
    const double sum = last * (double)n / 2, squares = last * (double)n * (2 * last + 1) / 6;
    return statistics->max == first + last && statistics->sum == rows * ((double)n * first + sum) &&
           statistics->sum_squares == rows * ((double)n * first * first + 2 * first * sum + squares);
}

static bool tells_apart(const lb_program *program, const lb_value *value)
{
    enum { FEWEST = 4 };
    if (lb_digest_is_none(value->logical) || value->flags & LB_VALUE_UNDEFINED || value->statistics == LB_NONE ||
        value->dtype == LB_BOOL || value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE))
        return false;
    const lb_statistics *statistics = &program->statistics[value->statistics];
    const int64_t last = value->layout.ndim ? value->layout.shape[value->layout.ndim - 1] : 1;
    if (statistics->elements < FEWEST || !(statistics->min < statistics->max) || last < 1) return false;
    return !lb_dtype_is_integer(value->dtype) ||
           !((statistics->min == 0 && statistics->max == 1) || counts_up(statistics, last));
}

static lb_status add_digest(digests *digests, lb_digest digest, lb_err *err)
{
    for (uint32_t i = 0; i < digests->n; i++)
        if (lb_digest_equal(digests->list[i], digest)) return LB_OK;
    lb_digest *grown = realloc(digests->list, (digests->n + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for batches");
    digests->list = grown;
    digests->list[digests->n++] = digest;
    return LB_OK;
}

static lb_status batch_of(const lb_program *program, digests *out, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const lb_arg *args = lb_op_args(program, op);
        if (strcmp(lb_op_name(program, op), "aten::embedding") != 0 || op->phase != LB_PHASE_FORWARD || op->args < 2 ||
            args[1].tag != LB_ARG_VALUE)
            continue;
        const lb_value *value = whole_of(program, args[1].u.value);
        if (tells_apart(program, value)) LB_TRY(add_digest(out, value->logical, err));
    }
    for (int floats = 0; floats < 2 && !out->n; floats++)
        for (uint32_t i = 0; i < program->n_values; i++) {
            const lb_value *value = program->values[i].flags & LB_VALUE_INPUT ? whole_of(program, i) : NULL;
            if (value && lb_dtype_is_integer(value->dtype) == !floats && tells_apart(program, value))
                LB_TRY(add_digest(out, value->logical, err));
        }
    return LB_OK;
}

/* Draws inside modules, as dropout's; those outside make data and shuffle it. A dropout's result holds its input, its
 * mask is the draw. */
static lb_status draws_of(const lb_program *program, digests *out, lb_err *err)
{
    enum { FEWEST = 16 };
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!(op->flags & LB_OP_RANDOM) || !op->scope || op->phase != LB_PHASE_FORWARD || !lb_op_outcomes(op)) continue;
        const bool dropout = strstr(lb_op_name(program, op), "dropout") != NULL;
        if (dropout && op->results < 2) continue;
        const uint32_t value = lb_op_outcome(program, op, dropout ? 1 : 0);
        if (value == LB_NONE) continue;
        const lb_value *v = &program->values[value];
        if (lb_digest_is_none(v->logical) || v->statistics == LB_NONE || v->flags & LB_VALUE_UNDEFINED) continue;
        const lb_statistics *statistics = &program->statistics[v->statistics];
        if (statistics->elements >= FEWEST && statistics->min < statistics->max)
            LB_TRY(add_digest(out, v->logical, err));
    }
    return LB_OK;
}

static uint32_t in_common(const digests *a, const digests *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t k = 0; k < b->n; k++) n += lb_digest_equal(a->list[i], b->list[k]);
    return n;
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

typedef struct data {
    const lb_worker_steps *steps;
    digests *batches, *draws; /* per step and rank */
    lb_worker_findings *findings;
    lb_err *err;
} data;

static const digests *at(const data *data, const digests *of, uint32_t step, uint32_t rank)
{
    return &of[(size_t)step * data->steps->n_ranks + rank];
}

/* Workers that this one shares gradients with, and itself. */
static uint32_t crew_of(const lb_worker_steps *steps, uint32_t rank)
{
    uint32_t n = 1;
    for (uint32_t q = 0; q < steps->n_ranks; q++) n += q != rank && lb_workers_pair(steps, rank, q);
    return n;
}

/* Workers that `same` puts together, each set once: told with this text, which takes their names; where it is all of
 * them, with `of_all` as a note (NULL: with the same text, and no note). */
static lb_status tell_sets(data *data, uint32_t step, lb_ranks_finding_kind kind,
                           bool (*same)(const struct data *data, uint32_t step, uint32_t a, uint32_t b),
                           const char *text, const char *of_all)
{
    const lb_worker_steps *steps = data->steps;
    int32_t *ranks = malloc((steps->n_ranks + 1) * sizeof *ranks);
    bool *done = calloc(steps->n_ranks + 1, sizeof *done);
    lb_status status = ranks && done ? LB_OK : lb_fail(data->err, LB_ERR_NOMEM, "out of memory for findings");
    for (uint32_t a = 0; a < steps->n_ranks && status == LB_OK; a++) {
        uint32_t n = 0;
        char words[96], *message = NULL;
        if (done[a]) continue;
        ranks[n++] = steps->ranks[a];
        for (uint32_t b = a + 1; b < steps->n_ranks; b++)
            if (!done[b] && lb_workers_pair(steps, a, b) && same(data, step, a, b))
                done[b] = true, ranks[n++] = steps->ranks[b];
        if (n < 2) continue;
        const bool all = of_all && n == crew_of(steps, a);
        const lb_ranks_finding finding = {
            .kind = kind, .note = all, .step = steps->steps[step].step, .ranks = ranks, .n_ranks = n};
        if (asprintf(&message, "%s %s", lb_worker_rank_words(ranks, n, words), all ? of_all : text) < 0) message = NULL;
        status = lb_worker_findings_add(data->findings, &finding, message, data->err);
    }
    free(ranks);
    free(done);
    return status;
}

static bool same_batch(const data *data, uint32_t step, uint32_t a, uint32_t b)
{
    return in_common(at(data, data->batches, step, a), at(data, data->batches, step, b)) > 0;
}

static bool same_draws(const data *data, uint32_t step, uint32_t a, uint32_t b)
{
    const digests *x = at(data, data->draws, step, a), *y = at(data, data->draws, step, b);
    return x->n && x->n == y->n && in_common(x, y) == x->n && at(data, data->batches, step, a)->n &&
           !same_batch(data, step, a, b);
}

/* The step before this one in which it had any of this batch; LB_NONE. */
static uint32_t earlier(const data *data, uint32_t step, uint32_t rank, uint32_t of_rank)
{
    for (uint32_t s = step; s-- > 0;)
        if (in_common(at(data, data->batches, step, rank), at(data, data->batches, s, of_rank))) return s;
    return LB_NONE;
}

/* A batch that comes again on some workers and not on all: where all repeat theirs, the data does. */
static lb_status tell_repeats(data *data, uint32_t step)
{
    const lb_worker_steps *steps = data->steps;
    for (uint32_t rank = 0; rank < steps->n_ranks; rank++) {
        uint32_t others = 0, repeat = 0;
        const uint32_t before = earlier(data, step, rank, rank);
        char *message = NULL;
        if (!lb_worker_steps_has(steps, rank)) continue;
        for (uint32_t q = 0; q < steps->n_ranks; q++) {
            if (!lb_workers_pair(steps, rank, q) || !at(data, data->batches, step, q)->n) continue;
            others++, repeat += before != LB_NONE &&
                                in_common(at(data, data->batches, step, q), at(data, data->batches, before, q)) > 0;
        }
        lb_ranks_finding finding = {.kind = LB_RANKS_BATCH,
                                    .step = steps->steps[step].step,
                                    .ranks = (int32_t *)&steps->ranks[rank],
                                    .n_ranks = 1};
        if (before != LB_NONE && others && repeat < others) {
            finding.note = before + 1 != step; /* another epoch may bring a batch again */
            if (asprintf(&message,
                         "rank %d reads in step %lld the batch that it read in step %lld, and %s: it repeated a batch",
                         steps->ranks[rank], (long long)finding.step, (long long)steps->steps[before].step,
                         repeat ? "not every other worker does" : "no other worker does") < 0)
                message = NULL;
            LB_TRY(lb_worker_findings_add(data->findings, &finding, message, data->err));
        }
        for (uint32_t q = 0; q < steps->n_ranks && before == LB_NONE; q++) {
            const uint32_t theirs = lb_workers_pair(steps, rank, q) ? earlier(data, step, rank, q) : LB_NONE;
            if (theirs == LB_NONE) continue;
            finding.note = true;
            if (asprintf(&message,
                         "rank %d reads in step %lld the batch that rank %d read in step %lld: "
                         "one of them skipped or repeated a batch, or this is another epoch",
                         steps->ranks[rank], (long long)finding.step, steps->ranks[q],
                         (long long)steps->steps[theirs].step) < 0)
                message = NULL;
            LB_TRY(lb_worker_findings_add(data->findings, &finding, message, data->err));
            break;
        }
    }
    return LB_OK;
}

static uint32_t backwards(const data *data, uint32_t step, uint32_t rank)
{
    return data->steps->steps[step].workers[rank].own.backwards;
}

/* Workers that ran backward more or less often than most of those they share gradients with. */
static lb_status tell_counts(data *data, uint32_t step)
{
    const lb_worker_steps *steps = data->steps;
    for (uint32_t rank = 0; rank < steps->n_ranks; rank++) {
        uint32_t others = 0, differ = 0, usual = 0;
        char *message = NULL;
        const lb_worker *worker = &steps->steps[step].workers[rank];
        if (!worker->program || !worker->program->complete) continue;
        for (uint32_t q = 0; q < steps->n_ranks; q++) {
            const lb_worker *x = &steps->steps[step].workers[q];
            if (!lb_workers_pair(steps, rank, q) || !x->program || !x->program->complete) continue;
            others++;
            if (backwards(data, step, q) != backwards(data, step, rank)) differ++, usual = backwards(data, step, q);
        }
        if (!differ || (2 * differ <= others && others > 1) || (others == 1 && backwards(data, step, rank) > usual))
            continue;
        const lb_ranks_finding finding = {.kind = LB_RANKS_BATCH,
                                          .step = steps->steps[step].step,
                                          .ranks = (int32_t *)&steps->ranks[rank],
                                          .n_ranks = 1};
        if (asprintf(&message, "rank %d ran %u micro-batches in step %lld, others %u", steps->ranks[rank],
                     backwards(data, step, rank), (long long)finding.step, usual) < 0)
            message = NULL;
        LB_TRY(lb_worker_findings_add(data->findings, &finding, message, data->err));
    }
    return LB_OK;
}

static lb_status tell_seeds(data *data, uint32_t step)
{
    return tell_sets(
        data, step, LB_RANKS_SEED, same_draws,
        "drew the same random numbers (dropout masks and their like) for other data, and other workers did not: "
        "these share a seed",
        "drew the same random numbers (dropout masks and their like) for other data: one seed for all workers, "
        "S1-1 in the paper on silent inconsistency, where workers stay closest together. "
        "Dropout then takes away the same units on every rank");
}

/* What the draws of all steps say together. */
static lb_ranks_seeds seeds_of(const data *data)
{
    uint64_t alike = 0, apart = 0;
    const lb_worker_steps *steps = data->steps;
    for (uint32_t i = 0; i < steps->n_steps; i++)
        for (uint32_t a = 0; a < steps->n_ranks; a++)
            for (uint32_t b = a + 1; b < steps->n_ranks; b++) {
                const bool pair = lb_workers_pair(steps, a, b) && at(data, data->draws, i, a)->n &&
                                  at(data, data->draws, i, b)->n && at(data, data->batches, i, a)->n &&
                                  !same_batch(data, i, a, b);
                if (pair && same_draws(data, i, a, b)) alike++;
                if (pair && !same_draws(data, i, a, b)) apart++;
            }
    return alike && apart ? LB_RANKS_SEEDS_SOME
           : alike        ? LB_RANKS_SEEDS_ONE
           : apart        ? LB_RANKS_SEEDS_EACH
                          : LB_RANKS_SEEDS_UNKNOWN;
}

lb_status lb_worker_findings_of_data(const lb_worker_steps *steps, lb_ranks_seeds *seeds, lb_worker_findings *findings,
                                     lb_err *err)
{
    const size_t n = (size_t)steps->n_steps * steps->n_ranks;
    data data = {steps, calloc(n + 1, sizeof *data.batches), calloc(n + 1, sizeof *data.draws), findings, err};
    lb_status status = data.batches && data.draws ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for batches");
    for (size_t i = 0; i < n && status == LB_OK; i++) {
        const lb_program *program = steps->steps[i / steps->n_ranks].workers[i % steps->n_ranks].program;
        if (!program) continue;
        status = batch_of(program, &data.batches[i], err);
        if (status == LB_OK) status = draws_of(program, &data.draws[i], err);
    }
    for (uint32_t i = 0; i < steps->n_steps && status == LB_OK; i++) {
        status = tell_sets(&data, i, LB_RANKS_TOKENS, same_batch,
                           "read the same batch: a sampler's seed must be of (seed, rank, epoch)", NULL);
        if (status == LB_OK) status = tell_seeds(&data, i);
        if (status == LB_OK) status = tell_repeats(&data, i);
        if (status == LB_OK) status = tell_counts(&data, i);
    }
    if (status == LB_OK) *seeds = seeds_of(&data);
    for (size_t i = 0; i < n; i++) {
        if (data.batches) free(data.batches[i].list);
        if (data.draws) free(data.draws[i].list);
    }
    free(data.batches), free(data.draws);
    return status;
}
