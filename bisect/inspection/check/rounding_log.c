/* Each op by itself, beside its exact numbers: see rounding_log.h. */
#include "check/rounding_log.h"

#include "shadow/number_blocks.h"
#include "pair/op_kind.h"

#include <lastbit/replay.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double MASK = 0x1p96; /* such numbers hide what they are added to */
/* So far beyond the range of their dtype lie the masks of programs that write -1e9 for them. */
static const double MASKED = 0x1p13;
/* Bytes of the recording that are read before they are given back. */
static const uint64_t ENOUGH = (uint64_t)1 << 27;

bool lb_rounding_log_is_first(const lb_program *program, uint32_t op, uint32_t k)
{
    const lb_op *o = &program->ops[op];
    const lb_value *value = &program->values[lb_op_outcome(program, o, k)];
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t before = lb_op_outcome(program, o, i);
        if (before == LB_NONE) continue;
        const lb_value *w = &program->values[before];
        if (w->storage == value->storage && w->version == value->version && w->layout.offset == value->layout.offset)
            return false;
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

/* Numbers of forward from `beyond` on are meant to be infinite. */
static lb_rounding_limits limits_of(const lb_rounding_log *log, uint32_t op, lb_dtype dtype)
{
    const bool forward = log->run->program->ops[op].phase == LB_PHASE_FORWARD;
    return (lb_rounding_limits){.range = range_of(dtype),
                                .most = lb_dtype_max_finite(dtype),
                                .normal = lb_dtype_min_normal(dtype),
                                .beyond = forward ? fmin(MASK, MASKED * lb_dtype_max_finite(dtype)) : MASK};
}

static double *room_to_keep(lb_rounding_log *log, uint32_t v, int64_t n)
{
    free(log->kept[v]);
    log->kept[v] = log->wanted[v] ? malloc((size_t)(n > 0 ? n : 1) * sizeof **log->kept) : NULL;
    log->failed |= log->wanted[v] && !log->kept[v];
    return log->kept[v];
}

static void measure(lb_rounding_log *log, uint32_t op, uint32_t value, const lb_number_blocks *recorded,
                    const lb_number_blocks *exact, float *rounded)
{
    lb_rounding_size *size = &log->sizes[value];
    const lb_rounding_limits limits = limits_of(log, op, log->run->program->values[value].dtype);
    double *kept = room_to_keep(log, value, exact->n), rooms[2][LB_NUMBER_BLOCK];
    *size = (lb_rounding_size){.numbers = exact->n};
    for (int64_t i = 0, n; i < exact->n && !log->failed; i += n) {
        n = lb_number_blocks_count(exact, i);
        const double *y = lb_number_blocks_at(recorded, i, n, rooms[0]),
                     *x = lb_number_blocks_at(exact, i, n, rooms[1]);
        lb_rounding_apart_add(&size->apart, y, x, n);
        lb_rounding_counts_add(&size->counts, &limits, y, x, n);
        if (rounded) lb_rounding_sums_keep(rounded + i, y, x, n);
        if (kept) memcpy(kept + i, y, (size_t)n * sizeof *kept);
        if (log->note) log->note(log->context, op, value, y, x, i, n);
    }
}

/* What was rounded is kept where it is anything. */
static void look_at(lb_rounding_log *log, uint32_t op, uint32_t value, const lb_tensor *recorded,
                    const lb_tensor *exact)
{
    lb_number_blocks blocks = {0}, y = {0};
    const int64_t n = lb_layout_numel(&exact->layout);
    float *rounded = op < log->last ? malloc((size_t)(n > 0 ? n : 1) * sizeof *rounded) : NULL;
    log->failed |= !lb_number_blocks_open(exact, &blocks) || !lb_number_blocks_open(recorded, &y);
    log->failed |= op < log->last && !rounded;
    if (!log->failed) measure(log, op, value, &y, &blocks, rounded);
    lb_number_blocks_close(&blocks), lb_number_blocks_close(&y);
    free(log->rounded[value]);
    log->rounded[value] = log->sizes[value].apart.squares > 0 ? rounded : NULL;
    if (!log->rounded[value]) free(rounded);
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
    if (o->flags & LB_OP_COLLECTIVE) return false;
    if (!lb_op_computes(log->run->program, o) || o->flags & LB_OP_UNDEFINED) return true;
    if (random && !(row && row->kernel)) return true;
    return row && row->flags & (LB_ROW_DISCONTINUOUS | LB_ROW_ZERO | LB_ROW_HOST);
}

/* Each result is read once, or twice where another op reads it: no more of the recording stays in memory than that. */
static void unload(lb_rounding_log *log, const lb_tensor *recorded)
{
    log->read += lb_dtype_bytes(recorded->dtype, (size_t)lb_layout_numel(&recorded->layout));
    if (log->read < ENOUGH) return;
    lb_capture_unload(log->run->view->capture);
    log->read = 0;
}

/* Those that are made together. */
typedef struct log_set {
    lb_rounding_log *const *list;
    uint32_t n;
} log_set;

static lb_rounding_log *log_of(const log_set *logs, int32_t rank)
{
    for (uint32_t k = 0; k < logs->n; k++)
        if (logs->list[k]->run->program->rank == rank) return logs->list[k];
    return logs->list[0];
}

static void note_result(void *context, const lb_program *program, uint32_t op, uint32_t value,
                        const lb_tensor *recorded, const lb_tensor *exact)
{
    lb_rounding_log *log = log_of(context, program->rank);
    const lb_program *p = log->run->program;
    if (is_held(log, op) || value >= p->n_values || !lb_dtype_is_float(p->values[value].dtype)) return;
    if (p->values[value].flags & LB_VALUE_UNDEFINED || !recorded->data || !lb_dtype_is_float(exact->dtype)) return;
    if (!lb_layout_same_shape(&exact->layout, &recorded->layout)) return;
    for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[op]); k++) {
        if (lb_op_outcome(p, &p->ops[op], k) != value || !lb_rounding_log_is_first(p, op, k)) continue;
        look_at(log, op, value, recorded, exact);
        log->shown[value] = 1;
        unload(log, recorded);
        return;
    }
}

/* Results whose exact numbers did not come by. A collective some of whose members are not here is held. */
static bool note_op(void *context, const lb_event *event)
{
    lb_rounding_log *log = log_of(context, event->rank);
    const lb_program *program = log->run->program;
    bool unknown = false;
    if (is_held(log, event->op) || program->ops[event->op].flags & LB_OP_COLLECTIVE) return !log->failed;
    for (uint32_t k = 0; k < event->n_results; k++) {
        const uint32_t v = event->values[k];
        if (v == LB_NONE || v >= program->n_values || !lb_dtype_is_float(program->values[v].dtype)) continue;
        if (is_draw(log, event->op, k)) continue;
        if (program->values[v].flags & LB_VALUE_UNDEFINED || !lb_rounding_log_is_first(program, event->op, k)) continue;
        unknown |= !log->shown[v];
    }
    if (unknown && !log->unknown++) log->first_unknown = event->op;
    return !log->failed;
}

lb_status lb_rounding_log_open(const lb_moved_run *run, lb_rounding_log *log, lb_err *err)
{
    const size_t n = (size_t)run->program->n_values + 1;
    *log = (lb_rounding_log){.run = run, .first_unknown = LB_NONE};
    log->sizes = calloc(n, sizeof *log->sizes), log->rounded = calloc(n, sizeof *log->rounded);
    log->wanted = calloc(n, 1), log->kept = calloc(n, sizeof *log->kept), log->shown = calloc(n, 1);
    if (log->sizes && log->rounded && log->wanted && log->kept && log->shown) return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
}

void lb_rounding_log_want(lb_rounding_log *log, uint32_t value)
{
    log->wanted[lb_value_graph_whole(&log->run->graph, value)] = 1;
}

double *lb_rounding_log_numbers(const lb_rounding_log *log, uint32_t value, int64_t *n)
{
    lb_tensor tensor;
    double *x = lb_moved_run_recorded(log->run, value, &tensor);
    *n = lb_layout_numel(&log->run->program->values[value].layout);
    const double *kept = log->kept[lb_value_graph_whole(&log->run->graph, value)];
    if (x || !kept) return x;
    x = malloc((size_t)(*n > 0 ? *n : 1) * sizeof *x);
    if (x) memcpy(x, kept, (size_t)*n * sizeof *x);
    return x;
}

lb_status lb_rounding_log_make(lb_capture *capture, lb_rounding_log *const *logs, uint32_t n, lb_err *err)
{
    lb_replay *replay;
    lb_replay_summary summary;
    lb_plan plan = LB_PLAN_INIT;
    int32_t *ranks = malloc(((size_t)n + 1) * sizeof *ranks);
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t k = 0; k < n; k++) ranks[k] = logs[k]->run->program->rank;
    plan.mode = LB_REPLAY_ISOLATED, plan.shadow = plan.shadow_only = true;
    plan.first_step = plan.last_step = logs[0]->run->program->step, plan.ranks = ranks, plan.n_ranks = n;
    log_set set = {logs, n};
    const lb_observer observer = {.context = &set, .op = note_op, .beside = note_result};
    lb_status status = lb_replay_open(capture, &replay, err);
    if (status == LB_OK) {
        status = lb_replay_run(replay, &plan, &observer, &summary, err);
        lb_replay_close(replay);
    }
    free(ranks);
    lb_capture_unload(capture);
    for (uint32_t k = 0; k < n && status == LB_OK; k++)
        if (logs[k]->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for what ops rounded");
    return status;
}

void lb_rounding_log_release(lb_rounding_log *log)
{
    const uint32_t n = log->run ? log->run->program->n_values : 0;
    for (uint32_t v = 0; log->rounded && v < n; v++) free(log->rounded[v]);
    for (uint32_t v = 0; log->kept && v < n; v++) free(log->kept[v]);
    free(log->rounded), free(log->sizes), free(log->wanted), free(log->kept);
    free(log->shown);
    *log = (lb_rounding_log){0};
}
