/* Findings about gradients that ranks share, and their norm: see worker_findings.h.
 *
 *      gradients of this rank ─▶ norm of each ─▶ norm of these ─▶ [summed over ranks] ─▶ max / (norm + eps), clamped ─▶ gradients scaled
 *                                                                                   └─▶ a Python number, logged
 *
 * What is read back or scales gradients is followed backwards to the gradients whose norm it is. Their squares are
 * known from statistics, so that the norm over all ranks that share out the model can be computed again: every part
 * once, however many ranks hold it. */
#define _GNU_SOURCE /* asprintf */
#include "workers/worker_findings.h"

#include "base/array.h"
#include "base/hash.h"
#include "exchanges/rank_steps.h"
#include "failure/model_ranks.h"
#include "pair/op_kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- added behind the reduction ---------------------------------------------------------------------------------- */

static lb_status tell_late(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_findings *findings,
                           lb_err *err)
{
    int32_t *ranks = malloc((steps->n_ranks + 1) * sizeof *ranks);
    const lb_own_gradient *first = NULL;
    const lb_worker *by = NULL;
    uint32_t n = 0, gradients = 0;
    char *message = NULL, more[40] = "";
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    for (uint32_t r = 0; r < steps->n_ranks; r++) {
        bool late = false;
        for (uint32_t i = 0; i < step->workers[r].own.n; i++) {
            const lb_own_gradient *gradient = &step->workers[r].own.list[i];
            if (gradient->late == LB_NONE) continue;
            late = true, gradients += !n;
            if (!first) first = gradient, by = &step->workers[r];
        }
        if (late) ranks[n++] = steps->ranks[r];
    }
    lb_status status = LB_OK;
    if (first) {
        const lb_program *program = by->program;
        char words[96];
        if (gradients > 1) snprintf(more, sizeof more, " and %u more", gradients - 1);
        if (asprintf(&message,
                     "%s: the gradient of %s%s is reduced at op %u of rank %d, "
                     "and at op %u a micro-batch's own gradient is added to it, which the optimizer reads unreduced: "
                     "each rank steps by other numbers",
                     lb_worker_rank_words(ranks, n, words), first->key, more,
                     program->collectives[first->collective].op, by->rank, first->late) < 0)
            message = NULL;
        const lb_ranks_finding finding = {
            .kind = LB_RANKS_LATE, .step = step->step, .ranks = ranks, .n_ranks = n, .tensor = first->key};
        status = lb_worker_findings_add(findings, &finding, message, err);
    }
    free(ranks);
    return status;
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

enum { FOLLOWED = 512, MOST_SCALARS = 64 };

/* A gradient that is in a norm. */
typedef struct leaf {
    uint32_t value;
    double squares; /* NaN: not known */
    lb_digest digest;
} leaf;

/* What a number is made of. */
typedef struct norm {
    leaf *leaves;
    uint32_t n, value; /* `value`: the number itself */
    double scalars[MOST_SCALARS];
    uint32_t n_scalars;
    uint32_t op; /* that reads it back, or scales gradients by it */
    bool scales;
    int precision; /* bits of the coarsest number on the way */
} norm;

static bool holds_gradient(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_group_params; i++)
        if (program->group_params[i].gradient == storage) return true;
    return false;
}

static bool is_norm(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {"aten::linalg_vector_norm", "aten::_foreach_norm", "aten::norm"};
    if (lb_op_name_among(program, op, names, 3) < 0 || op->args < 2) return false;
    const lb_arg *order = &lb_op_args(program, op)[1];
    return (order->tag == LB_ARG_INT && order->u.i == 2) || (order->tag == LB_ARG_FLOAT && order->u.f == 2);
}

static const lb_statistics *statistics_of(const lb_program *program, uint32_t value)
{
    return program->values[value].statistics == LB_NONE ? NULL
                                                        : &program->statistics[program->values[value].statistics];
}

static void note_scalar(norm *norm, const lb_program *program, uint32_t value)
{
    if (value == LB_NONE || norm->n_scalars == MOST_SCALARS || !lb_dtype_is_float(program->values[value].dtype)) return;
    const lb_statistics *statistics = statistics_of(program, value);
    if (!statistics || lb_layout_numel(&program->values[value].layout) != 1 || lb_statistics_nonfinite(statistics))
        return;
    const int precision = lb_dtype_precision(program->values[value].dtype);
    if (precision < norm->precision) norm->precision = precision;
    norm->scalars[norm->n_scalars++] = statistics->sum;
}

typedef struct leaves {
    const lb_program *program;
    norm *x;
    bool gradients;
} leaves;

static void note_leaf(void *context, uint32_t value)
{
    leaves *leaves = context;
    if (value == LB_NONE || !holds_gradient(leaves->program, leaves->program->values[value].storage)) return;
    leaves->gradients = true;
    for (uint32_t i = 0; i < leaves->x->n; i++)
        if (leaves->x->leaves[i].value == value) return;
    leaves->x->leaves[leaves->x->n++].value = value;
}

/* From op `from`, which reads `value`, back to norms of gradients. */
static void follow(const lb_program *program, const lb_slice_flow *flow, uint32_t from, uint32_t value, norm *norm)
{
    uint32_t queue[FOLLOWED], n = 0, defs[8];
    note_scalar(norm, program, value);
    const uint32_t first = lb_slice_flow_defs_of(flow, from, value, defs, 8);
    for (uint32_t k = 0; k < first && k < 8; k++) queue[n++] = defs[k];
    for (uint32_t k = 0; k < n; k++) {
        const lb_op *op = &program->ops[queue[k]];
        leaves leaves = {program, norm, false};
        if (op->phase == LB_PHASE_BACKWARD || lb_op_is_source(program, op)) continue;
        for (uint32_t r = 0; r < lb_op_outcomes(op); r++) note_scalar(norm, program, lb_op_outcome(program, op, r));
        if (is_norm(program, op)) lb_op_each_input(program, op, note_leaf, &leaves);
        for (uint32_t d = flow->first_def[queue[k]]; !leaves.gradients && d < flow->first_def[queue[k] + 1]; d++) {
            bool known = n == FOLLOWED;
            for (uint32_t t = 0; t < n && !known; t++) known = queue[t] == flow->defs[d];
            if (!known) queue[n++] = flow->defs[d];
        }
    }
}

/* The scalar by which this op scales gradients, or that it reads back; LB_NONE. */
static uint32_t used_by(const lb_program *program, const lb_op *op, bool *scales)
{
    static const char *const read[] = {"aten::_local_scalar_dense"};
    static const char *const scaled[] = {"aten::_foreach_mul_", "aten::mul_", "aten::_foreach_div_", "aten::div_"};
    const lb_arg *args = lb_op_args(program, op);
    *scales = false;
    if (lb_op_name_among(program, op, read, 1) >= 0)
        return op->args && args[0].tag == LB_ARG_VALUE ? args[0].u.value : LB_NONE;
    if (lb_op_name_among(program, op, scaled, 4) < 0 || op->args < 2 || args[1].tag != LB_ARG_VALUE || !op->written)
        return LB_NONE;
    const uint32_t written = *lb_op_written(program, op);
    *scales = written != LB_NONE && holds_gradient(program, program->values[written].storage) &&
              lb_layout_numel(&program->values[args[1].u.value].layout) == 1;
    return *scales ? args[1].u.value : LB_NONE;
}

/* A gradient that is reduced behind the norm is this rank's own still: its norm is what it says. */
static bool is_reduced_later(const lb_worker *worker, const norm *norm)
{
    const lb_program *program = worker->program;
    for (uint32_t i = 0; i < worker->own.n; i++) {
        const lb_own_gradient *gradient = &worker->own.list[i];
        if (gradient->collective == LB_NONE || program->collectives[gradient->collective].op < norm->op) continue;
        for (uint32_t k = 0; k < norm->n; k++)
            if (program->values[norm->leaves[k].value].storage ==
                program->values[worker->own.values[gradient->first]].storage)
                return true;
    }
    return false;
}

/* ---- over all ranks ---------------------------------------------------------------------------------------------- */

/* Marks, by rows, who holds parts of one model with this worker: gradients scattered over both, activations exchanged,
 * messages. */
static void mark_sharing(const lb_worker_steps *steps, const lb_worker *worker, bool *shared)
{
    const lb_program *program = worker->program;
    const lb_collective *last = NULL;
    lb_model_ranks_mark_written(program, steps->ranks, steps->n_ranks, shared);
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        const lb_collective *collective = &program->collectives[i];
        const bool scatters =
            lb_collective_run_kind(lb_op_name(program, &program->ops[collective->op])) == LB_EXCHANGE_REDUCE_SCATTER;
        if ((!scatters && !lb_model_ranks_meet(program, collective)) ||
            (last && lb_own_gradient_same_group(program, last, program, collective)))
            continue;
        for (uint32_t k = 0; k < collective->ranks; k++) {
            const uint32_t row =
                lb_rank_steps_row(steps->ranks, steps->n_ranks, (int32_t)program->refs[collective->first_rank + k]);
            if (row != LB_NONE) shared[row] = true;
        }
        last = collective;
    }
}

/* Bits of gradients that norms hold, each as often as the one that holds it most often. */
typedef struct held {
    lb_digest digest;
    uint32_t most, turn; /* `turn`: in the norm at hand */
} held;
typedef struct held_set {
    held *list;
    uint32_t n;
    lb_hash by_digest;
} held_set;

static void release_held(held_set *set)
{
    free(set->list);
    lb_hash_release(&set->by_digest);
}

/* NULL: out of memory. */
static held *held_row(held_set *set, lb_digest digest)
{
    LB_HASH_EACH(row, &set->by_digest, digest.lo)
    if (lb_digest_equal(set->list[row].digest, digest)) return &set->list[row];
    held *grown = lb_array_grow(set->list, set->n, sizeof *grown);
    if (!grown) return NULL;
    set->list = grown;
    if (!lb_hash_add(&set->by_digest, digest.lo, set->n)) return NULL;
    grown[set->n] = (held){.digest = digest};
    return &grown[set->n++];
}

/* Adds the squares of a rank's gradients to *sum; those that another norm of the set has, too, bit for bit, are left
 * out, as often as they are there. Then this norm is in the set. False: out of memory. */
static bool add_squares(held_set *set, const norm *norm, double *sum)
{
    double squares = 0;
    for (uint32_t i = 0; i < norm->n; i++) {
        held *row = held_row(set, norm->leaves[i].digest);
        if (!row) return false;
        if (row->most <= row->turn) squares += norm->leaves[i].squares;
        row->turn++;
    }
    for (uint32_t i = 0; i < norm->n; i++) {
        held *row = held_row(set, norm->leaves[i].digest);
        if (row->turn > row->most) row->most = row->turn;
    }
    for (uint32_t i = 0; i < norm->n; i++) held_row(set, norm->leaves[i].digest)->turn = 0;
    *sum += squares;
    return true;
}

static double all_squares(const norm *norm)
{
    double sum = 0;
    for (uint32_t i = 0; i < norm->n; i++) sum += norm->leaves[i].squares;
    return sum;
}

static bool is_among(const norm *norm, double squares, double tolerance)
{
    for (uint32_t i = 0; i < norm->n_scalars; i++)
        if (fabs(norm->scalars[i] - sqrt(squares)) <= tolerance * sqrt(squares) ||
            fabs(norm->scalars[i] - squares) <= 2 * tolerance * squares)
            return true;
    return false;
}

typedef struct side {
    const lb_worker *worker;
    norm *list;
    uint32_t n;
} side;

static void release_sides(side *sides, uint32_t n)
{
    for (uint32_t r = 0; sides && r < n; r++) {
        for (uint32_t i = 0; i < sides[r].n; i++) free(sides[r].list[i].leaves);
        free(sides[r].list);
    }
    free(sides);
}

/* From statistics, or from the bytes of windows on what a collective gave. */
static void measure_leaves(lb_capture *capture, const lb_program *program, norm *norm)
{
    for (uint32_t i = 0; i < norm->n; i++) {
        leaf *leaf = &norm->leaves[i];
        const lb_value *value = &program->values[leaf->value];
        const lb_statistics *known = statistics_of(program, leaf->value);
        lb_statistics statistics;
        lb_tensor tensor;
        leaf->squares = NAN, leaf->digest = value->logical;
        if (known && !lb_digest_is_none(value->logical))
            statistics = *known;
        else if (lb_capture_value(capture, program, leaf->value, &tensor, NULL) == LB_OK)
            statistics = lb_statistics_of(&tensor), leaf->digest = lb_digest_tensor(&tensor);
        else
            continue;
        if (!lb_statistics_nonfinite(&statistics)) leaf->squares = statistics.sum_squares;
    }
}

static lb_status list_norms(lb_capture *capture, const lb_worker *worker, side *out, lb_err *err)
{
    const lb_program *program = worker->program;
    lb_slice_flow *flow;
    out->worker = worker;
    if (!program || !program->n_group_params) return LB_OK;
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        bool scales;
        const uint32_t value =
            program->ops[i].phase == LB_PHASE_BACKWARD ? LB_NONE : used_by(program, &program->ops[i], &scales);
        const norm *last = out->n ? &out->list[out->n - 1] : NULL;
        if (value == LB_NONE || (last && last->value == value && last->scales == scales)) continue;
        norm x = {.leaves = calloc(program->n_values + 1, sizeof *x.leaves),
                  .value = value,
                  .op = i,
                  .scales = scales,
                  .precision = 53};
        norm *grown = realloc(out->list, (out->n + 1) * sizeof *grown);
        if (grown) out->list = grown;
        if (!grown || !x.leaves) {
            free(x.leaves);
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for norms");
            break;
        }
        follow(program, flow, i, value, &x);
        measure_leaves(capture, program, &x);
        if (x.n && !is_reduced_later(worker, &x))
            out->list[out->n++] = x;
        else
            free(x.leaves);
    }
    lb_slice_flow_free(flow);
    return status;
}

/* The norms of all ranks, and which ranks share the model of `rank`. */
typedef struct sharing {
    const side *sides;
    const bool *shared;
    uint32_t rank;
} sharing;

/* The k-th norm of each rank that shares the model. */
static lb_status judge_norm(const lb_worker_steps *steps, const lb_worker_step *step, const sharing *sharing,
                            uint32_t k, lb_worker_findings *findings, lb_err *err)
{
    const side *sides = sharing->sides;
    const uint32_t rank = sharing->rank;
    const norm *x = &sides[rank].list[k];
    const lb_program *program = sides[rank].worker->program;
    held_set theirs = {0};
    uint32_t n = 0;
    bool known = true, room = true;
    const double own = all_squares(x);
    double all = own, counted = own, mine = 0;
    for (uint32_t q = 0; q < steps->n_ranks && known && room; q++) {
        if (q == rank || !sharing->shared[q]) continue;
        known &= sides[q].worker->program && k < sides[q].n && sides[q].list[k].scales == x->scales;
        if (!known) break;
        const norm *y = &sides[q].list[k];
        room = (n++ || add_squares(&theirs, x, &mine)) && add_squares(&theirs, y, &all);
        counted += all_squares(y);
    }
    lb_status status = room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for norms");
    const double tolerance = fmax(1e-4, ldexp(1, 3 - x->precision));
    const bool part = fabs(sqrt(own) - sqrt(all)) > 10 * tolerance * sqrt(all) && is_among(x, own, tolerance);
    const bool twice = fabs(sqrt(counted) - sqrt(all)) > 10 * tolerance * sqrt(all) && is_among(x, counted, tolerance);
    if (status == LB_OK && known && n && all > 0 && !is_among(x, all, tolerance) && (part || twice)) {
        char *message = NULL, where[LB_LINE_TEXT + 100] = "";
        const lb_code_line line = lb_op_line(program, &program->ops[x->op]);
        if (line.number) lb_code_line_text(&line, where, sizeof where);
        if (asprintf(
                &message, "%s rank %d is %s: %.6g, where all parts of the model together, each once, have %.6g%s%s",
                x->scales ? "the norm by which gradients are clipped on" : "the norm of the gradients that is read on",
                steps->ranks[rank],
                twice ? "a sum in which copies are counted once for every rank" : "that of its own part alone",
                sqrt(twice ? counted : own), sqrt(all), *where ? " — " : "", where) < 0)
            message = NULL;
        const lb_ranks_finding finding = {
            .kind = LB_RANKS_CLIP, .step = step->step, .ranks = (int32_t *)&steps->ranks[rank], .n_ranks = 1};
        status = lb_worker_findings_add(findings, &finding, message, err);
    }
    release_held(&theirs);
    return status;
}

static lb_status tell_norms(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_findings *findings,
                            lb_err *err)
{
    side *sides = calloc(steps->n_ranks + 1, sizeof *sides);
    bool *shared = malloc(steps->n_ranks + 1);
    lb_status status = sides && shared ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for norms");
    for (uint32_t r = 0; r < steps->n_ranks && status == LB_OK; r++)
        status = list_norms(steps->capture, &step->workers[r], &sides[r], err);
    for (uint32_t r = 0; r < steps->n_ranks && status == LB_OK; r++) {
        if (!sides[r].n) continue;
        memset(shared, 0, steps->n_ranks);
        mark_sharing(steps, sides[r].worker, shared);
        for (uint32_t k = 0; k < sides[r].n && status == LB_OK; k++)
            status = judge_norm(steps, step, &(sharing){sides, shared, r}, k, findings, err);
    }
    free(shared);
    release_sides(sides, steps->n_ranks);
    return status;
}

lb_status lb_worker_findings_of_gradients(const lb_worker_steps *steps, lb_worker_findings *findings, lb_err *err)
{
    for (uint32_t i = 0; i < steps->n_steps && steps->n_ranks > 1; i++) {
        LB_TRY(tell_late(steps, &steps->steps[i], findings, err));
        LB_TRY(tell_norms(steps, &steps->steps[i], findings, err));
    }
    return LB_OK;
}
