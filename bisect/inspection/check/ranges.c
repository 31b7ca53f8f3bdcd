/* Numbers that left the range of their dtype: see digits.h. */
#include "check/digits.h"

#include "pair/op_kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Findings: a line of which more than a hundredth of the numbers saturate; where a tenth become zero in 8 bits, in a
 * state, or in all gradients of f16 together. */
static const double SATURATED = 0.01, VANISHED = 0.1;
/* A scaler begins with a scale that is too large and halves it: so many halvings, each of them a lost step, are no
 * beginning. */
static const double HALVINGS = 3;
static const int64_t FEW = 64;

typedef struct range {
    int64_t numbers, nonzero, vanished, subnormal, saturated;
    double reach;
} range;

static void add_size(range *range, const lb_rounding_size *size)
{
    range->numbers += size->numbers, range->nonzero += size->counts.nonzero, range->vanished += size->counts.vanished;
    range->subnormal += size->counts.subnormal, range->saturated += size->counts.saturated;
    range->reach = fmax(range->reach, size->apart.reach);
}

static double share_of(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static bool is_eight(lb_dtype dtype)
{
    return lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) <= 8;
}

/* ---- clamps before casts ---- */

static bool is_clamp(const char *name)
{
    return strncmp(name, "aten::clamp", 11) == 0 || strncmp(name, "aten::clip", 10) == 0;
}

/* The clamp whose result the op casts; LB_NONE. */
static uint32_t clamp_before(const lb_digits *digits, uint32_t op)
{
    const lb_program *program = digits->run.program;
    const lb_op *o = &program->ops[op];
    if (!o->args || lb_op_args(program, o)[0].tag != LB_ARG_VALUE) return LB_NONE;
    const uint32_t giver =
        digits->run.graph.giver[lb_value_graph_whole(&digits->run.graph, lb_op_args(program, o)[0].u.value)];
    if (giver == LB_NONE || !is_clamp(lb_op_name(program, &program->ops[giver])) ||
        lb_op_outcomes(&program->ops[giver]) < 1)
        return LB_NONE;
    return lb_op_args(program, &program->ops[giver])[0].tag == LB_ARG_VALUE ? giver : LB_NONE;
}

/* Elements that it moved: they saturate there. `*reach`: the largest one. */
static int64_t clamped_before(const lb_digits *digits, uint32_t op, double *reach)
{
    const lb_program *program = digits->run.program;
    const uint32_t clamp = clamp_before(digits, op);
    if (clamp == LB_NONE) return 0;
    int64_t n, m, moved = 0;
    double *x = lb_rounding_log_numbers(&digits->log, lb_op_args(program, &program->ops[clamp])[0].u.value, &n);
    double *y = lb_rounding_log_numbers(&digits->log, lb_op_outcome(program, &program->ops[clamp], 0), &m);
    for (int64_t i = 0; x && y && n == m && i < n; i++)
        if (x[i] != y[i] && isfinite(x[i])) moved++, *reach = fmax(*reach, fabs(x[i]));
    free(x), free(y);
    return moved;
}

/* ---- results of 8 and 16 bits, a row for each line ---- */

static bool find_range(const lb_digits *digits, const lb_check_digit *row, const range *range, lb_check_kind kind,
                       double share)
{
    lb_check_finding *finding = lb_proof_list_add(digits->report, kind, digits->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, digits->run.program, row->index, LB_NONE, digits->path);
    finding->effect = share;
    if (kind == LB_CHECK_SATURATED)
        snprintf(finding->message, sizeof finding->message,
                 "%.1f %% of the numbers that this line casts to %s lie beyond its largest, %.5g: they go up to %.4g",
                 100 * share, lb_dtype_name(row->dtype), lb_dtype_max_finite(row->dtype), range->reach);
    else
        snprintf(finding->message, sizeof finding->message,
                 "%.1f %% of the numbers that are not zero become zero in %s here (%s): the largest is %.4g, "
                 "the smallest that %s has %.4g",
                 100 * share, lb_dtype_name(row->dtype), *row->layer ? row->layer : "outside of all layers",
                 range->reach, lb_dtype_name(row->dtype), lb_dtype_min_subnormal(row->dtype));
    return true;
}

static bool add_range(const lb_digits *digits, uint32_t op, lb_dtype dtype, uint32_t ops, const range *range)
{
    const double saturated = share_of(range->saturated, range->numbers),
                 vanished = share_of(range->vanished, range->nonzero);
    if (saturated == 0 && vanished == 0 && !is_eight(dtype)) return true;
    lb_check_digit *row = lb_digit_list_add(digits->report, LB_CHECK_DIGIT_RANGE, digits->run.program);
    if (!row) return false;
    lb_digit_list_place(row, digits->run.program, op);
    row->dtype = dtype, row->ops = ops, row->numbers = range->numbers, row->share = fmax(saturated, vanished);
    snprintf(
        row->message, sizeof row->message,
        "%.3g %% lie beyond %.5g, %.3g %% of those not zero became zero, %.3g %% are subnormal; the largest is %.4g",
        100 * saturated, lb_dtype_max_finite(dtype), 100 * vanished, 100 * share_of(range->subnormal, range->numbers),
        range->reach);
    const lb_check_digit copy = *row;
    if (range->numbers < FEW) return true;
    const bool gradient = !is_eight(dtype) && digits->run.program->ops[op].phase != LB_PHASE_FORWARD;
    if (saturated > SATURATED && !gradient && !find_range(digits, &copy, range, LB_CHECK_SATURATED, saturated))
        return false;
    return !(vanished > VANISHED) || !is_eight(dtype) || find_range(digits, &copy, range, LB_CHECK_UNDERFLOW, vanished);
}

/* The narrow result of an op that ranges are told of; LB_NONE. */
static uint32_t narrow_result(const lb_digits *digits, uint32_t op)
{
    const lb_program *program = digits->run.program;
    for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[op]); k++) {
        const uint32_t v = lb_op_outcome(program, &program->ops[op], k);
        if (v == LB_NONE || digits->run.graph.giver[v] != op || !digits->log.sizes[v].numbers) continue;
        if (is_eight(program->values[v].dtype) || program->values[v].dtype == LB_F16) return v;
    }
    return LB_NONE;
}

static bool same_line(const lb_program *program, uint32_t a, uint32_t b)
{
    return program->ops[a].line == program->ops[b].line && program->ops[a].name == program->ops[b].name &&
           program->ops[a].phase == program->ops[b].phase;
}

static bool tell_results(const lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    uint8_t *done = calloc((size_t)program->n_ops + 1, 1);
    bool told = done != NULL;
    for (uint32_t i = 0; told && i < program->n_ops; i++) {
        const uint32_t v = done[i] ? LB_NONE : narrow_result(digits, i);
        range range = {0};
        uint32_t ops = 0;
        for (uint32_t k = i; v != LB_NONE && k < program->n_ops; k++) {
            const uint32_t w = same_line(program, i, k) ? narrow_result(digits, k) : LB_NONE;
            if (w == LB_NONE || program->values[w].dtype != program->values[v].dtype) continue;
            add_size(&range, &digits->log.sizes[w]), ops++, done[k] = 1;
            if (is_eight(program->values[w].dtype)) range.saturated += clamped_before(digits, k, &range.reach);
        }
        if (v != LB_NONE) told = add_range(digits, i, program->values[v].dtype, ops, &range);
    }
    free(done);
    return told;
}

/* ---- states ---- */

/* "optimizer.exp_avg_sq:blocks.0.up.weight": as many letters as name the state. */
static size_t state_name(const lb_program *program, uint32_t v)
{
    const char *name = program->values[v].name == LB_NONE ? "" : lb_program_text(program, program->values[v].name);
    return strcspn(name, ":");
}

static bool same_state(const lb_program *program, uint32_t v, uint32_t w)
{
    const size_t n = state_name(program, v);
    return program->values[v].dtype == program->values[w].dtype && n == state_name(program, w) &&
           (!n || memcmp(lb_program_text(program, program->values[v].name),
                         lb_program_text(program, program->values[w].name), n) == 0);
}

/* The row of a state of all tensors, from its first op on; what was counted is marked. */
static bool add_state(const lb_digits *digits, uint32_t op, uint32_t value, uint8_t *done)
{
    const lb_program *program = digits->run.program;
    range range = {0};
    for (uint32_t w = 0; w < program->n_values; w++) {
        if (!(program->values[w].flags & LB_VALUE_STATE) || !digits->log.sizes[w].numbers ||
            !same_state(program, value, w))
            continue;
        if (program->ops[digits->run.graph.giver[w]].phase != LB_PHASE_OPTIMIZER) continue;
        add_size(&range, &digits->log.sizes[w]), done[w] = 1;
    }
    if (!range.vanished && !range.subnormal) return true;
    lb_check_digit *row = lb_digit_list_add(digits->report, LB_CHECK_DIGIT_STATE, program);
    if (!row) return false;
    lb_digit_list_place(row, program, op);
    snprintf(row->layer, sizeof row->layer, "%.*s", (int)state_name(program, value),
             program->values[value].name == LB_NONE ? "" : lb_program_text(program, program->values[value].name));
    row->dtype = program->values[value].dtype, row->numbers = range.numbers,
    row->share = share_of(range.vanished, range.nonzero);
    snprintf(row->message, sizeof row->message, "%lld numbers became zero and %lld are subnormal, of %lld",
             (long long)range.vanished, (long long)range.subnormal, (long long)range.numbers);
    const lb_check_digit copy = *row;
    return !(copy.share > VANISHED) || range.nonzero < FEW ||
           find_range(digits, &copy, &range, LB_CHECK_UNDERFLOW, copy.share);
}

static bool tell_states(const lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    uint8_t *done = calloc((size_t)program->n_values + 1, 1);
    bool told = done != NULL;
    for (uint32_t v = 0; told && v < program->n_values; v++) {
        const uint32_t giver = digits->run.graph.giver[v];
        if (done[v] || !(program->values[v].flags & LB_VALUE_STATE) || !digits->log.sizes[v].numbers) continue;
        if (program->ops[giver].phase == LB_PHASE_OPTIMIZER) told = add_state(digits, giver, v, done);
    }
    free(done);
    return told;
}

/* ---- gradients of f16 ---- */

/* The value that gradients are unscaled by; LB_NONE. */
static uint32_t unscaled_by(const lb_program *program, uint32_t *at)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!lb_op_is_unscaling(program, op) || op->args < 3) continue;
        *at = i;
        return lb_op_args(program, op)[2].tag == LB_ARG_VALUE ? lb_op_args(program, op)[2].u.value : LB_NONE;
    }
    return LB_NONE;
}

/* What gradients were multiplied by; NaN: it is not known. */
static double loss_scale(const lb_digits *digits, uint32_t *at)
{
    const uint32_t by = unscaled_by(digits->run.program, at);
    int64_t n;
    double *x = by == LB_NONE ? NULL : lb_rounding_log_numbers(&digits->log, by, &n);
    const double scale = x && *x > 0 ? 1 / *x : NAN;
    free(x);
    return scale;
}

void lb_digits_want_ranges(lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    uint32_t at;
    const uint32_t by = unscaled_by(program, &at);
    if (by != LB_NONE) lb_rounding_log_want(&digits->log, by);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t v = lb_op_outcomes(&program->ops[i]) ? lb_op_outcome(program, &program->ops[i], 0) : LB_NONE;
        const uint32_t clamp = v != LB_NONE && is_eight(program->values[v].dtype) ? clamp_before(digits, i) : LB_NONE;
        if (clamp == LB_NONE) continue;
        lb_rounding_log_want(&digits->log, lb_op_args(program, &program->ops[clamp])[0].u.value);
        lb_rounding_log_want(&digits->log, lb_op_outcome(program, &program->ops[clamp], 0));
    }
}

static bool find_scale(const lb_digits *digits, uint32_t at, double scale, const range *range, lb_check_kind kind,
                       double share)
{
    lb_check_finding *finding = lb_proof_list_add(digits->report, kind, digits->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, digits->run.program, at, LB_NONE, digits->path);
    finding->effect = share;
    char scaled[80] = "without a loss scale";
    if (!isnan(scale)) snprintf(scaled, sizeof scaled, "at a loss scale of %g", scale);
    if (kind == LB_CHECK_SATURATED)
        snprintf(finding->message, sizeof finding->message,
                 "%lld numbers of gradients in f16 lie beyond 65504 %s, first here, and the step is lost: "
                 "they go up to %.3g, so that the scale has to be 2^%.0f of that",
                 (long long)range->saturated, scaled, range->reach, floor(log2(65504 / range->reach)));
    else
        snprintf(finding->message, sizeof finding->message,
                 "%.1f %% of the numbers of gradients in f16 that are not zero became zero %s, most of them here: "
                 "the largest is %.3g, so that the scale may grow by 2^%.0f",
                 100 * share, scaled, range->reach, floor(log2(65504 / range->reach)));
    return true;
}

static bool tell_headroom(const lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    range range = {0};
    uint32_t last = LB_NONE, at = LB_NONE, beyond = LB_NONE, below = LB_NONE;
    int64_t most = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t v = program->ops[i].phase == LB_PHASE_BACKWARD ? narrow_result(digits, i) : LB_NONE;
        if (v == LB_NONE || program->values[v].dtype != LB_F16 || program->ops[i].flags & LB_OP_RECOMPUTE) continue;
        const lb_rounding_size *size = &digits->log.sizes[v];
        add_size(&range, size), last = i;
        if (size->counts.saturated && beyond == LB_NONE) beyond = i;
        if (size->counts.vanished > most) most = size->counts.vanished, below = i;
    }
    if (last == LB_NONE || !(range.reach > 0)) return true;
    const double scale = loss_scale(digits, &at), bits = log2(65504 / range.reach);
    const double vanished = share_of(range.vanished, range.nonzero);
    lb_check_digit *row = lb_digit_list_add(digits->report, LB_CHECK_DIGIT_HEADROOM, program);
    if (!row) return false;
    if (at == LB_NONE) at = last;
    lb_digit_list_place(row, program, at);
    row->dtype = LB_F16, row->bits = bits, row->share = vanished, row->numbers = range.numbers;
    char said[80] = "no loss scale was seen";
    if (!isnan(scale)) snprintf(said, sizeof said, "the loss scale is %g", scale);
    snprintf(row->message, sizeof row->message,
             "%s; the largest of the gradients in f16 is %.4g, so that it may grow by 2^%.1f; %lld lie beyond 65504, "
             "%.3g %% of those not zero became zero",
             said, range.reach, bits, (long long)range.saturated, 100 * vanished);
    if (beyond != LB_NONE && bits < -HALVINGS &&
        !find_scale(digits, beyond, scale, &range, LB_CHECK_SATURATED, share_of(range.saturated, range.numbers)))
        return false;
    return !(vanished > VANISHED) || range.numbers < FEW ||
           find_scale(digits, below, scale, &range, LB_CHECK_UNDERFLOW, vanished);
}

bool lb_digits_ranges(lb_digits *digits)
{
    return tell_results(digits) && tell_states(digits) && tell_headroom(digits);
}
