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

static void add_size(range *r, const lb_rounding_size *s)
{
    r->numbers += s->numbers, r->nonzero += s->counts.nonzero, r->vanished += s->counts.vanished;
    r->subnormal += s->counts.subnormal, r->saturated += s->counts.saturated;
    r->reach = fmax(r->reach, s->apart.reach);
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
static uint32_t clamp_before(const lb_digits *d, uint32_t op)
{
    const lb_program *p = d->run.program;
    const lb_op *o = &p->ops[op];
    if (!o->args || lb_op_args(p, o)[0].tag != LB_ARG_VALUE) return LB_NONE;
    const uint32_t giver = d->run.graph.giver[lb_value_graph_whole(&d->run.graph, lb_op_args(p, o)[0].u.value)];
    if (giver == LB_NONE || !is_clamp(lb_op_name(p, &p->ops[giver])) || lb_op_outcomes(&p->ops[giver]) < 1)
        return LB_NONE;
    return lb_op_args(p, &p->ops[giver])[0].tag == LB_ARG_VALUE ? giver : LB_NONE;
}

/* Elements that it moved: they saturate there. `*reach`: the largest one. */
static int64_t clamped_before(const lb_digits *d, uint32_t op, double *reach)
{
    const lb_program *p = d->run.program;
    const uint32_t clamp = clamp_before(d, op);
    if (clamp == LB_NONE) return 0;
    int64_t n, m, moved = 0;
    double *x = lb_rounding_log_numbers(&d->log, lb_op_args(p, &p->ops[clamp])[0].u.value, &n);
    double *y = lb_rounding_log_numbers(&d->log, lb_op_outcome(p, &p->ops[clamp], 0), &m);
    for (int64_t i = 0; x && y && n == m && i < n; i++)
        if (x[i] != y[i] && isfinite(x[i])) moved++, *reach = fmax(*reach, fabs(x[i]));
    free(x), free(y);
    return moved;
}

/* ---- results of 8 and 16 bits, a row for each line ---- */

static bool find_range(const lb_digits *d, const lb_check_digit *row, const range *r, lb_check_kind kind, double share)
{
    lb_check_finding *f = lb_proof_list_add(d->report, kind, d->run.program);
    if (!f) return false;
    lb_proof_list_place(f, d->run.program, row->index, LB_NONE, d->path);
    f->effect = share;
    if (kind == LB_CHECK_SATURATED)
        snprintf(f->message, sizeof f->message,
                 "%.1f %% of the numbers that this line casts to %s lie beyond its largest, %.5g: they go up to %.4g",
                 100 * share, lb_dtype_name(row->dtype), lb_dtype_max_finite(row->dtype), r->reach);
    else
        snprintf(f->message, sizeof f->message,
                 "%.1f %% of the numbers that are not zero become zero in %s here (%s): the largest is %.4g, "
                 "the smallest that %s has %.4g",
                 100 * share, lb_dtype_name(row->dtype), *row->layer ? row->layer : "outside of all layers", r->reach,
                 lb_dtype_name(row->dtype), lb_dtype_min_subnormal(row->dtype));
    return true;
}

static bool add_range(const lb_digits *d, uint32_t op, lb_dtype dtype, uint32_t ops, const range *r)
{
    const double saturated = share_of(r->saturated, r->numbers), vanished = share_of(r->vanished, r->nonzero);
    if (saturated == 0 && vanished == 0 && !is_eight(dtype)) return true;
    lb_check_digit *row = lb_digit_list_add(d->report, LB_CHECK_DIGIT_RANGE, d->run.program);
    if (!row) return false;
    lb_digit_list_place(row, d->run.program, op);
    row->dtype = dtype, row->ops = ops, row->numbers = r->numbers, row->share = fmax(saturated, vanished);
    snprintf(
        row->message, sizeof row->message,
        "%.3g %% lie beyond %.5g, %.3g %% of those not zero became zero, %.3g %% are subnormal; the largest is %.4g",
        100 * saturated, lb_dtype_max_finite(dtype), 100 * vanished, 100 * share_of(r->subnormal, r->numbers),
        r->reach);
    const lb_check_digit copy = *row;
    if (r->numbers < FEW) return true;
    const bool gradient = !is_eight(dtype) && d->run.program->ops[op].phase != LB_PHASE_FORWARD;
    if (saturated > SATURATED && !gradient && !find_range(d, &copy, r, LB_CHECK_SATURATED, saturated)) return false;
    return !(vanished > VANISHED) || !is_eight(dtype) || find_range(d, &copy, r, LB_CHECK_UNDERFLOW, vanished);
}

/* The narrow result of an op that ranges are told of; LB_NONE. */
static uint32_t narrow_result(const lb_digits *d, uint32_t op)
{
    const lb_program *p = d->run.program;
    for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[op]); k++) {
        const uint32_t v = lb_op_outcome(p, &p->ops[op], k);
        if (v == LB_NONE || d->run.graph.giver[v] != op || !d->log.sizes[v].numbers) continue;
        if (is_eight(p->values[v].dtype) || p->values[v].dtype == LB_F16) return v;
    }
    return LB_NONE;
}

static bool same_line(const lb_program *p, uint32_t a, uint32_t b)
{
    return p->ops[a].line == p->ops[b].line && p->ops[a].name == p->ops[b].name && p->ops[a].phase == p->ops[b].phase;
}

static bool tell_results(const lb_digits *d)
{
    const lb_program *p = d->run.program;
    uint8_t *done = calloc((size_t)p->n_ops + 1, 1);
    bool told = done != NULL;
    for (uint32_t i = 0; told && i < p->n_ops; i++) {
        const uint32_t v = done[i] ? LB_NONE : narrow_result(d, i);
        range r = {0};
        uint32_t ops = 0;
        for (uint32_t k = i; v != LB_NONE && k < p->n_ops; k++) {
            const uint32_t w = same_line(p, i, k) ? narrow_result(d, k) : LB_NONE;
            if (w == LB_NONE || p->values[w].dtype != p->values[v].dtype) continue;
            add_size(&r, &d->log.sizes[w]), ops++, done[k] = 1;
            if (is_eight(p->values[w].dtype)) r.saturated += clamped_before(d, k, &r.reach);
        }
        if (v != LB_NONE) told = add_range(d, i, p->values[v].dtype, ops, &r);
    }
    free(done);
    return told;
}

/* ---- states ---- */

/* "optimizer.exp_avg_sq:blocks.0.up.weight": as many letters as name the state. */
static size_t state_name(const lb_program *p, uint32_t v)
{
    const char *name = p->values[v].name == LB_NONE ? "" : lb_program_text(p, p->values[v].name);
    return strcspn(name, ":");
}

static bool same_state(const lb_program *p, uint32_t v, uint32_t w)
{
    const size_t n = state_name(p, v);
    return p->values[v].dtype == p->values[w].dtype && n == state_name(p, w) &&
           (!n || memcmp(lb_program_text(p, p->values[v].name), lb_program_text(p, p->values[w].name), n) == 0);
}

/* The row of a state of all tensors, from its first op on; what was counted is marked. */
static bool add_state(const lb_digits *d, uint32_t op, uint32_t v, uint8_t *done)
{
    const lb_program *p = d->run.program;
    range r = {0};
    for (uint32_t w = 0; w < p->n_values; w++) {
        if (!(p->values[w].flags & LB_VALUE_STATE) || !d->log.sizes[w].numbers || !same_state(p, v, w)) continue;
        if (p->ops[d->run.graph.giver[w]].phase != LB_PHASE_OPTIMIZER) continue;
        add_size(&r, &d->log.sizes[w]), done[w] = 1;
    }
    if (!r.vanished && !r.subnormal) return true;
    lb_check_digit *row = lb_digit_list_add(d->report, LB_CHECK_DIGIT_STATE, p);
    if (!row) return false;
    lb_digit_list_place(row, p, op);
    snprintf(row->layer, sizeof row->layer, "%.*s", (int)state_name(p, v),
             p->values[v].name == LB_NONE ? "" : lb_program_text(p, p->values[v].name));
    row->dtype = p->values[v].dtype, row->numbers = r.numbers, row->share = share_of(r.vanished, r.nonzero);
    snprintf(row->message, sizeof row->message, "%lld numbers became zero and %lld are subnormal, of %lld",
             (long long)r.vanished, (long long)r.subnormal, (long long)r.numbers);
    const lb_check_digit copy = *row;
    return !(copy.share > VANISHED) || r.nonzero < FEW || find_range(d, &copy, &r, LB_CHECK_UNDERFLOW, copy.share);
}

static bool tell_states(const lb_digits *d)
{
    const lb_program *p = d->run.program;
    uint8_t *done = calloc((size_t)p->n_values + 1, 1);
    bool told = done != NULL;
    for (uint32_t v = 0; told && v < p->n_values; v++) {
        const uint32_t giver = d->run.graph.giver[v];
        if (done[v] || !(p->values[v].flags & LB_VALUE_STATE) || !d->log.sizes[v].numbers) continue;
        if (p->ops[giver].phase == LB_PHASE_OPTIMIZER) told = add_state(d, giver, v, done);
    }
    free(done);
    return told;
}

/* ---- gradients of f16 ---- */

/* The value that gradients are unscaled by; LB_NONE. */
static uint32_t unscaled_by(const lb_program *p, uint32_t *at)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *o = &p->ops[i];
        if (!lb_op_is_unscaling(p, o) || o->args < 3) continue;
        *at = i;
        return lb_op_args(p, o)[2].tag == LB_ARG_VALUE ? lb_op_args(p, o)[2].u.value : LB_NONE;
    }
    return LB_NONE;
}

/* What gradients were multiplied by; NaN: it is not known. */
static double loss_scale(const lb_digits *d, uint32_t *at)
{
    const uint32_t by = unscaled_by(d->run.program, at);
    int64_t n;
    double *x = by == LB_NONE ? NULL : lb_rounding_log_numbers(&d->log, by, &n);
    const double scale = x && *x > 0 ? 1 / *x : NAN;
    free(x);
    return scale;
}

void lb_digits_want_ranges(lb_digits *digits)
{
    const lb_program *p = digits->run.program;
    uint32_t at;
    const uint32_t by = unscaled_by(p, &at);
    if (by != LB_NONE) lb_rounding_log_want(&digits->log, by);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t v = lb_op_outcomes(&p->ops[i]) ? lb_op_outcome(p, &p->ops[i], 0) : LB_NONE;
        const uint32_t clamp = v != LB_NONE && is_eight(p->values[v].dtype) ? clamp_before(digits, i) : LB_NONE;
        if (clamp == LB_NONE) continue;
        lb_rounding_log_want(&digits->log, lb_op_args(p, &p->ops[clamp])[0].u.value);
        lb_rounding_log_want(&digits->log, lb_op_outcome(p, &p->ops[clamp], 0));
    }
}

static bool find_scale(const lb_digits *d, uint32_t at, double scale, const range *r, lb_check_kind kind, double share)
{
    lb_check_finding *f = lb_proof_list_add(d->report, kind, d->run.program);
    if (!f) return false;
    lb_proof_list_place(f, d->run.program, at, LB_NONE, d->path);
    f->effect = share;
    char scaled[80] = "without a loss scale";
    if (!isnan(scale)) snprintf(scaled, sizeof scaled, "at a loss scale of %g", scale);
    if (kind == LB_CHECK_SATURATED)
        snprintf(f->message, sizeof f->message,
                 "%lld numbers of gradients in f16 lie beyond 65504 %s, first here, and the step is lost: "
                 "they go up to %.3g, so that the scale has to be 2^%.0f of that",
                 (long long)r->saturated, scaled, r->reach, floor(log2(65504 / r->reach)));
    else
        snprintf(f->message, sizeof f->message,
                 "%.1f %% of the numbers of gradients in f16 that are not zero became zero %s, most of them here: "
                 "the largest is %.3g, so that the scale may grow by 2^%.0f",
                 100 * share, scaled, r->reach, floor(log2(65504 / r->reach)));
    return true;
}

static bool tell_headroom(const lb_digits *d)
{
    const lb_program *p = d->run.program;
    range r = {0};
    uint32_t last = LB_NONE, at = LB_NONE, beyond = LB_NONE, below = LB_NONE;
    int64_t most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t v = p->ops[i].phase == LB_PHASE_BACKWARD ? narrow_result(d, i) : LB_NONE;
        if (v == LB_NONE || p->values[v].dtype != LB_F16 || p->ops[i].flags & LB_OP_RECOMPUTE) continue;
        const lb_rounding_size *s = &d->log.sizes[v];
        add_size(&r, s), last = i;
        if (s->counts.saturated && beyond == LB_NONE) beyond = i;
        if (s->counts.vanished > most) most = s->counts.vanished, below = i;
    }
    if (last == LB_NONE || !(r.reach > 0)) return true;
    const double scale = loss_scale(d, &at), bits = log2(65504 / r.reach);
    const double vanished = share_of(r.vanished, r.nonzero);
    lb_check_digit *row = lb_digit_list_add(d->report, LB_CHECK_DIGIT_HEADROOM, p);
    if (!row) return false;
    if (at == LB_NONE) at = last;
    lb_digit_list_place(row, p, at);
    row->dtype = LB_F16, row->bits = bits, row->share = vanished, row->numbers = r.numbers;
    char said[80] = "no loss scale was seen";
    if (!isnan(scale)) snprintf(said, sizeof said, "the loss scale is %g", scale);
    snprintf(row->message, sizeof row->message,
             "%s; the largest of the gradients in f16 is %.4g, so that it may grow by 2^%.1f; %lld lie beyond 65504, "
             "%.3g %% of those not zero became zero",
             said, r.reach, bits, (long long)r.saturated, 100 * vanished);
    if (beyond != LB_NONE && bits < -HALVINGS &&
        !find_scale(d, beyond, scale, &r, LB_CHECK_SATURATED, share_of(r.saturated, r.numbers)))
        return false;
    return !(vanished > VANISHED) || r.numbers < FEW || find_scale(d, below, scale, &r, LB_CHECK_UNDERFLOW, vanished);
}

bool lb_digits_ranges(lb_digits *digits)
{
    return tell_results(digits) && tell_states(digits) && tell_headroom(digits);
}
