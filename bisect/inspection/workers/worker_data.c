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
static const lb_value *whole_of(const lb_program *p, uint32_t value)
{
    const lb_value *v = &p->values[value];
    for (uint32_t i = 0; i < p->n_values && lb_digest_is_none(v->logical); i++) {
        const lb_value *w = &p->values[i];
        if (w->storage == v->storage && w->version == v->version && w->dtype == v->dtype) v = w;
    }
    return v;
}

/* n whole numbers along the last dimension, each one more than the one before, in every row: positions, which begin
 * behind those of the ranks before where ranks share out a sequence. */
static bool counts_up(const lb_statistics *s, int64_t n)
{
    const double rows = (double)s->elements / (double)n, last = (double)n - 1, first = s->min;
    const double sum = last * (double)n / 2, squares = last * (double)n * (2 * last + 1) / 6;
    return s->max == first + last && s->sum == rows * ((double)n * first + sum) &&
           s->sum_squares == rows * ((double)n * first * first + 2 * first * sum + squares);
}

static bool tells_apart(const lb_program *p, const lb_value *v)
{
    enum { FEWEST = 4 };
    if (lb_digest_is_none(v->logical) || v->flags & LB_VALUE_UNDEFINED || v->statistics == LB_NONE ||
        v->dtype == LB_BOOL || v->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE))
        return false;
    const lb_statistics *s = &p->statistics[v->statistics];
    const int64_t last = v->layout.ndim ? v->layout.shape[v->layout.ndim - 1] : 1;
    if (s->elements < FEWEST || !(s->min < s->max) || last < 1) return false;
    return !lb_dtype_is_integer(v->dtype) || !((s->min == 0 && s->max == 1) || counts_up(s, last));
}

static lb_status add_digest(digests *d, lb_digest digest, lb_err *err)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (lb_digest_equal(d->list[i], digest)) return LB_OK;
    lb_digest *grown = realloc(d->list, (d->n + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for batches");
    d->list = grown;
    d->list[d->n++] = digest;
    return LB_OK;
}

static lb_status batch_of(const lb_program *p, digests *out, lb_err *err)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        const lb_arg *args = lb_op_args(p, op);
        if (strcmp(lb_op_name(p, op), "aten::embedding") != 0 || op->phase != LB_PHASE_FORWARD || op->args < 2 ||
            args[1].tag != LB_ARG_VALUE)
            continue;
        const lb_value *v = whole_of(p, args[1].u.value);
        if (tells_apart(p, v)) LB_TRY(add_digest(out, v->logical, err));
    }
    for (int floats = 0; floats < 2 && !out->n; floats++)
        for (uint32_t i = 0; i < p->n_values; i++) {
            const lb_value *v = p->values[i].flags & LB_VALUE_INPUT ? whole_of(p, i) : NULL;
            if (v && lb_dtype_is_integer(v->dtype) == !floats && tells_apart(p, v))
                LB_TRY(add_digest(out, v->logical, err));
        }
    return LB_OK;
}

/* Draws inside modules, as dropout's; those outside make data and shuffle it. A dropout's result holds its input, its
 * mask is the draw. */
static lb_status draws_of(const lb_program *p, digests *out, lb_err *err)
{
    enum { FEWEST = 16 };
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!(op->flags & LB_OP_RANDOM) || !op->scope || op->phase != LB_PHASE_FORWARD || !lb_op_outcomes(op)) continue;
        const bool dropout = strstr(lb_op_name(p, op), "dropout") != NULL;
        if (dropout && op->results < 2) continue;
        const uint32_t value = lb_op_outcome(p, op, dropout ? 1 : 0);
        if (value == LB_NONE) continue;
        const lb_value *v = &p->values[value];
        if (lb_digest_is_none(v->logical) || v->statistics == LB_NONE || v->flags & LB_VALUE_UNDEFINED) continue;
        const lb_statistics *s = &p->statistics[v->statistics];
        if (s->elements >= FEWEST && s->min < s->max) LB_TRY(add_digest(out, v->logical, err));
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

static const digests *at(const data *d, const digests *of, uint32_t step, uint32_t rank)
{
    return &of[(size_t)step * d->steps->n_ranks + rank];
}

/* Workers that this one shares gradients with, and itself. */
static uint32_t crew_of(const lb_worker_steps *s, uint32_t rank)
{
    uint32_t n = 1;
    for (uint32_t q = 0; q < s->n_ranks; q++) n += q != rank && lb_workers_pair(s, rank, q);
    return n;
}

/* Workers that `same` puts together, each set once: told with this text, which takes their names; where it is all of
 * them, with `of_all` as a note (NULL: with the same text, and no note). */
static lb_status tell_sets(data *d, uint32_t step, lb_ranks_finding_kind kind,
                           bool (*same)(const data *d, uint32_t step, uint32_t a, uint32_t b), const char *text,
                           const char *of_all)
{
    const lb_worker_steps *s = d->steps;
    int32_t *ranks = malloc((s->n_ranks + 1) * sizeof *ranks);
    bool *done = calloc(s->n_ranks + 1, sizeof *done);
    lb_status status = ranks && done ? LB_OK : lb_fail(d->err, LB_ERR_NOMEM, "out of memory for findings");
    for (uint32_t a = 0; a < s->n_ranks && status == LB_OK; a++) {
        uint32_t n = 0;
        char words[96], *message = NULL;
        if (done[a]) continue;
        ranks[n++] = s->ranks[a];
        for (uint32_t b = a + 1; b < s->n_ranks; b++)
            if (!done[b] && lb_workers_pair(s, a, b) && same(d, step, a, b)) done[b] = true, ranks[n++] = s->ranks[b];
        if (n < 2) continue;
        const bool all = of_all && n == crew_of(s, a);
        const lb_ranks_finding f = {
            .kind = kind, .note = all, .step = s->steps[step].step, .ranks = ranks, .n_ranks = n};
        if (asprintf(&message, "%s %s", lb_worker_rank_words(ranks, n, words), all ? of_all : text) < 0) message = NULL;
        status = lb_worker_findings_add(d->findings, &f, message, d->err);
    }
    free(ranks);
    free(done);
    return status;
}

static bool same_batch(const data *d, uint32_t step, uint32_t a, uint32_t b)
{
    return in_common(at(d, d->batches, step, a), at(d, d->batches, step, b)) > 0;
}

static bool same_draws(const data *d, uint32_t step, uint32_t a, uint32_t b)
{
    const digests *x = at(d, d->draws, step, a), *y = at(d, d->draws, step, b);
    return x->n && x->n == y->n && in_common(x, y) == x->n && at(d, d->batches, step, a)->n &&
           !same_batch(d, step, a, b);
}

/* The step before this one in which it had any of this batch; LB_NONE. */
static uint32_t earlier(const data *d, uint32_t step, uint32_t rank, uint32_t of_rank)
{
    for (uint32_t s = step; s-- > 0;)
        if (in_common(at(d, d->batches, step, rank), at(d, d->batches, s, of_rank))) return s;
    return LB_NONE;
}

/* A batch that comes again on some workers and not on all: where all repeat theirs, the data does. */
static lb_status tell_repeats(data *d, uint32_t step)
{
    const lb_worker_steps *s = d->steps;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        uint32_t others = 0, repeat = 0;
        const uint32_t before = earlier(d, step, r, r);
        char *message = NULL;
        if (!lb_worker_steps_has(s, r)) continue;
        for (uint32_t q = 0; q < s->n_ranks; q++) {
            if (!lb_workers_pair(s, r, q) || !at(d, d->batches, step, q)->n) continue;
            others++,
                repeat += before != LB_NONE && in_common(at(d, d->batches, step, q), at(d, d->batches, before, q)) > 0;
        }
        lb_ranks_finding f = {
            .kind = LB_RANKS_BATCH, .step = s->steps[step].step, .ranks = (int32_t *)&s->ranks[r], .n_ranks = 1};
        if (before != LB_NONE && others && repeat < others) {
            f.note = before + 1 != step; /* another epoch may bring a batch again */
            if (asprintf(&message,
                         "rank %d reads in step %lld the batch that it read in step %lld, and %s: it repeated a batch",
                         s->ranks[r], (long long)f.step, (long long)s->steps[before].step,
                         repeat ? "not every other worker does" : "no other worker does") < 0)
                message = NULL;
            LB_TRY(lb_worker_findings_add(d->findings, &f, message, d->err));
        }
        for (uint32_t q = 0; q < s->n_ranks && before == LB_NONE; q++) {
            const uint32_t theirs = lb_workers_pair(s, r, q) ? earlier(d, step, r, q) : LB_NONE;
            if (theirs == LB_NONE) continue;
            f.note = true;
            if (asprintf(&message,
                         "rank %d reads in step %lld the batch that rank %d read in step %lld: one of them skipped or "
                         "repeated a batch, or this is another epoch",
                         s->ranks[r], (long long)f.step, s->ranks[q], (long long)s->steps[theirs].step) < 0)
                message = NULL;
            LB_TRY(lb_worker_findings_add(d->findings, &f, message, d->err));
            break;
        }
    }
    return LB_OK;
}

static uint32_t backwards(const data *d, uint32_t step, uint32_t rank)
{
    return d->steps->steps[step].workers[rank].own.backwards;
}

/* Workers that ran backward more or less often than most of those they share gradients with. */
static lb_status tell_counts(data *d, uint32_t step)
{
    const lb_worker_steps *s = d->steps;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        uint32_t others = 0, differ = 0, usual = 0;
        char *message = NULL;
        const lb_worker *w = &s->steps[step].workers[r];
        if (!w->program || !w->program->complete) continue;
        for (uint32_t q = 0; q < s->n_ranks; q++) {
            const lb_worker *x = &s->steps[step].workers[q];
            if (!lb_workers_pair(s, r, q) || !x->program || !x->program->complete) continue;
            others++;
            if (backwards(d, step, q) != backwards(d, step, r)) differ++, usual = backwards(d, step, q);
        }
        if (!differ || (2 * differ <= others && others > 1) || (others == 1 && backwards(d, step, r) > usual)) continue;
        const lb_ranks_finding f = {
            .kind = LB_RANKS_BATCH, .step = s->steps[step].step, .ranks = (int32_t *)&s->ranks[r], .n_ranks = 1};
        if (asprintf(&message, "rank %d ran %u micro-batches in step %lld, others %u", s->ranks[r],
                     backwards(d, step, r), (long long)f.step, usual) < 0)
            message = NULL;
        LB_TRY(lb_worker_findings_add(d->findings, &f, message, d->err));
    }
    return LB_OK;
}

static lb_status tell_seeds(data *d, uint32_t step)
{
    return tell_sets(
        d, step, LB_RANKS_SEED, same_draws,
        "drew the same random numbers (dropout masks and their like) for other data, and other workers did "
        "not: these share a seed",
        "drew the same random numbers (dropout masks and their like) for other data: one seed for all workers, "
        "S1-1 in the paper on silent inconsistency, where workers stay closest together. Dropout then takes "
        "away the same units on every rank");
}

/* What the draws of all steps say together. */
static lb_ranks_seeds seeds_of(const data *d)
{
    uint64_t alike = 0, apart = 0;
    const lb_worker_steps *s = d->steps;
    for (uint32_t i = 0; i < s->n_steps; i++)
        for (uint32_t a = 0; a < s->n_ranks; a++)
            for (uint32_t b = a + 1; b < s->n_ranks; b++) {
                const bool pair = lb_workers_pair(s, a, b) && at(d, d->draws, i, a)->n && at(d, d->draws, i, b)->n &&
                                  at(d, d->batches, i, a)->n && !same_batch(d, i, a, b);
                if (pair && same_draws(d, i, a, b)) alike++;
                if (pair && !same_draws(d, i, a, b)) apart++;
            }
    return alike && apart ? LB_RANKS_SEEDS_SOME
           : alike        ? LB_RANKS_SEEDS_ONE
           : apart        ? LB_RANKS_SEEDS_EACH
                          : LB_RANKS_SEEDS_UNKNOWN;
}

lb_status lb_worker_findings_of_data(const lb_worker_steps *s, lb_ranks_seeds *seeds, lb_worker_findings *findings,
                                     lb_err *err)
{
    const size_t n = (size_t)s->n_steps * s->n_ranks;
    data d = {s, calloc(n + 1, sizeof *d.batches), calloc(n + 1, sizeof *d.draws), findings, err};
    lb_status status = d.batches && d.draws ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for batches");
    for (size_t i = 0; i < n && status == LB_OK; i++) {
        const lb_program *p = s->steps[i / s->n_ranks].workers[i % s->n_ranks].program;
        if (!p) continue;
        status = batch_of(p, &d.batches[i], err);
        if (status == LB_OK) status = draws_of(p, &d.draws[i], err);
    }
    for (uint32_t i = 0; i < s->n_steps && status == LB_OK; i++) {
        status = tell_sets(&d, i, LB_RANKS_TOKENS, same_batch,
                           "read the same batch: a sampler's seed must be of (seed, rank, epoch)", NULL);
        if (status == LB_OK) status = tell_seeds(&d, i);
        if (status == LB_OK) status = tell_repeats(&d, i);
        if (status == LB_OK) status = tell_counts(&d, i);
    }
    if (status == LB_OK) *seeds = seeds_of(&d);
    for (size_t i = 0; i < n; i++) {
        if (d.batches) free(d.batches[i].list);
        if (d.draws) free(d.draws[i].list);
    }
    free(d.batches), free(d.draws);
    return status;
}
