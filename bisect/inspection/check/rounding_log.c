/* Each op by itself, beside its exact numbers: see rounding_log.h. */
#include "check/rounding_log.h"

#include "pair/op_kind.h"
#include "shadow/shadow_numbers.h"

#include <lastbit/replay.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double MASK = 0x1p96; /* such numbers hide what they are added to */
/* So far beyond the range of their dtype lie the masks of programs that write -1e9 for them. */
static const double MASKED = 0x1p13;

bool lb_rounding_log_is_first(const lb_program *p, uint32_t op, uint32_t k)
{
    const lb_op *o = &p->ops[op];
    const lb_value *v = &p->values[lb_op_outcome(p, o, k)];
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t before = lb_op_outcome(p, o, i);
        if (before == LB_NONE) continue;
        const lb_value *w = &p->values[before];
        if (w->storage == v->storage && w->version == v->version && w->layout.offset == v->layout.offset) return false;
    }
    return true;
}

/* Numbers beyond it are rounded to no finite number. */
static double range_of(lb_dtype dtype)
{
    const double most = lb_dtype_max_finite(dtype);
    int exponent;
    frexp(most, &exponent);
    return most + ldexp(1, exponent - 1 - lb_dtype_precision(dtype));
}

/* `beyond`: numbers from there on are meant to be infinite. */
static void measure(lb_rounding_size *s, lb_dtype dtype, double beyond, const double *recorded, const double *exact,
                    int64_t n)
{
    const double range = range_of(dtype), most = lb_dtype_max_finite(dtype), normal = lb_dtype_min_normal(dtype);
    *s = (lb_rounding_size){.numbers = n};
    for (int64_t i = 0; i < n; i++) {
        const double x = exact[i], y = recorded[i], d = y - x;
        s->nonzero += x != 0, s->vanished += x != 0 && y == 0;
        s->subnormal += y != 0 && fabs(y) < normal;
        s->saturated += isfinite(x) && fabs(x) > range && fabs(x) < beyond && !(fabs(y) < most);
        if (!isfinite(x) || fabs(x) >= MASK) continue;
        s->reach = fmax(s->reach, fabs(x));
        s->whole += x * x;
        if (isfinite(d)) s->squares += d * d, s->largest = fmax(s->largest, fabs(d));
    }
}

static bool keep(lb_rounding_log *log, uint32_t v, const double *recorded, const double *exact, int64_t n)
{
    float *rounded = malloc((size_t)(n > 0 ? n : 1) * sizeof *rounded);
    if (!rounded) return false;
    for (int64_t i = 0; i < n; i++) {
        const double d = recorded[i] - exact[i];
        rounded[i] = isfinite(d) && fabs(exact[i]) < MASK ? (float)d : 0;
    }
    free(log->rounded[v]);
    log->rounded[v] = rounded;
    return true;
}

static void keep_recorded(lb_rounding_log *log, uint32_t v, const double *recorded, int64_t n)
{
    double *kept = malloc((size_t)(n > 0 ? n : 1) * sizeof *kept);
    log->failed |= !kept;
    if (kept) memcpy(kept, recorded, (size_t)n * sizeof *kept);
    free(log->kept[v]);
    log->kept[v] = kept;
}

static void look_at(lb_rounding_log *log, uint32_t op, uint32_t v, const lb_tensor *recorded, const lb_tensor *exact)
{
    const lb_dtype dtype = log->run->program->values[v].dtype;
    const int64_t n = lb_layout_numel(&exact->layout);
    double *x = lb_shadow_numbers_copy(exact), *y = lb_shadow_numbers_copy(recorded);
    if (x && y) {
        const bool forward = log->run->program->ops[op].phase == LB_PHASE_FORWARD;
        measure(&log->sizes[v], dtype, forward ? fmin(MASK, MASKED * lb_dtype_max_finite(dtype)) : MASK, y, x, n);
        if (log->wanted[v]) keep_recorded(log, v, y, n);
        if (log->note) log->note(log->context, op, v, y, x, n);
        if (op < log->last && log->sizes[v].squares > 0 && !keep(log, v, y, x, n)) log->failed = true;
    } else {
        log->failed = true;
    }
    free(x), free(y);
}

/* Choices and draws are held in exact runs. What follows from a draw in the same op is not. */
static bool is_draw(const lb_rounding_log *log, uint32_t op, uint32_t k)
{
    const lb_op_row *row = log->run->prepared->ops[op].row;
    return row && row->flags & LB_ROW_RANDOM && (k > 0 || !row->kernel);
}

static bool is_held(const lb_rounding_log *log, uint32_t op)
{
    const lb_op_row *row = log->run->prepared->ops[op].row;
    const lb_op *o = &log->run->program->ops[op];
    const bool random = row ? row->flags & LB_ROW_RANDOM : o->flags & LB_OP_RANDOM;
    if (!lb_op_computes(log->run->program, o) || o->flags & (LB_OP_UNDEFINED | LB_OP_COLLECTIVE)) return true;
    if (random && !(row && row->kernel)) return true;
    return row && row->flags & (LB_ROW_DISCONTINUOUS | LB_ROW_ZERO | LB_ROW_HOST);
}

static bool note_op(void *context, const lb_event *event)
{
    lb_rounding_log *log = context;
    const lb_program *p = log->run->program;
    bool unknown = false;
    if (is_held(log, event->op)) return true;
    for (uint32_t k = 0; k < event->n_results; k++) {
        const uint32_t v = event->values[k];
        if (v == LB_NONE || v >= p->n_values || !lb_dtype_is_float(p->values[v].dtype)) continue;
        if (is_draw(log, event->op, k)) continue;
        if (p->values[v].flags & LB_VALUE_UNDEFINED || !lb_rounding_log_is_first(p, event->op, k)) continue;
        const lb_tensor *recorded = event->recorded[k].data ? &event->recorded[k] : &event->computed[k];
        const lb_tensor *exact = &event->shadow[k];
        const bool own = exact->data && exact->data != event->recorded[k].data && recorded->data;
        if (own && lb_dtype_is_float(exact->dtype) && lb_layout_same_shape(&exact->layout, &recorded->layout))
            look_at(log, event->op, v, recorded, exact);
        else
            unknown = true;
    }
    if (unknown && !log->unknown++) log->first_unknown = event->op;
    return !log->failed;
}

lb_status lb_rounding_log_open(const lb_moved_run *run, lb_rounding_log *log, lb_err *err)
{
    const size_t n = (size_t)run->program->n_values + 1;
    *log = (lb_rounding_log){.run = run, .first_unknown = LB_NONE};
    log->sizes = calloc(n, sizeof *log->sizes), log->rounded = calloc(n, sizeof *log->rounded);
    log->wanted = calloc(n, 1), log->kept = calloc(n, sizeof *log->kept);
    if (log->sizes && log->rounded && log->wanted && log->kept) return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
}

void lb_rounding_log_want(lb_rounding_log *log, uint32_t value)
{
    log->wanted[lb_value_graph_whole(&log->run->graph, value)] = 1;
}

double *lb_rounding_log_numbers(const lb_rounding_log *log, uint32_t value, int64_t *n)
{
    lb_tensor t;
    double *x = lb_moved_run_recorded(log->run, value, &t);
    *n = lb_layout_numel(&log->run->program->values[value].layout);
    const double *kept = log->kept[lb_value_graph_whole(&log->run->graph, value)];
    if (x || !kept) return x;
    x = malloc((size_t)(*n > 0 ? *n : 1) * sizeof *x);
    if (x) memcpy(x, kept, (size_t)*n * sizeof *x);
    return x;
}

lb_status lb_rounding_log_make(lb_capture *capture, lb_rounding_log *log, lb_err *err)
{
    const lb_program *p = log->run->program;
    lb_replay *replay;
    lb_replay_summary summary;
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_ISOLATED, plan.shadow = true, plan.first_step = plan.last_step = p->step;
    plan.ranks = &p->rank, plan.n_ranks = 1;
    const lb_observer observer = {.context = log, .op = note_op};
    LB_TRY(lb_replay_open(capture, &replay, err));
    lb_status status = lb_replay_run(replay, &plan, &observer, &summary, err);
    lb_replay_close(replay);
    if (status == LB_OK && log->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for what ops rounded");
    return status;
}

void lb_rounding_log_release(lb_rounding_log *log)
{
    const uint32_t n = log->run ? log->run->program->n_values : 0;
    for (uint32_t v = 0; log->rounded && v < n; v++) free(log->rounded[v]);
    for (uint32_t v = 0; log->kept && v < n; v++) free(log->kept[v]);
    free(log->rounded), free(log->sizes), free(log->wanted), free(log->kept);
    *log = (lb_rounding_log){0};
}
