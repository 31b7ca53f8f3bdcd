/* Failures: see failure.h. */
#include "failure/failure.h"

#include "failure/failure_predicate.h"
#include "failure/skipped_steps.h"
#include "failure/watched.h"

#include "base/array.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The past of one quantity. */
typedef struct history {
    int32_t rank;
    int64_t key; /* storage of a parameter; -1 loss, -2 gradient norm */
    uint32_t n;
    double largest, mean, ema;
    double pending; /* of the step that runs */
    bool seen;
    uint32_t op;
} history;

/* What is known between two steps, none of which failed. */
typedef struct memory_of_steps {
    uint32_t number;
    history *past;
    uint32_t n_past;
    uint64_t *blind; /* per row */
    lb_skipped_steps skipped;
} memory_of_steps;

struct lb_failure_monitor {
    const int32_t *ranks;
    uint32_t n_ranks;
    lb_watched *rows;
    uint32_t n_rows;
    lb_failure_predicate predicate;
    lb_failure_monitor_mode mode;
    bool collect;
    bool *excluded; /* per rank row */
    uint32_t *done; /* per rank row: bit 0: past the failing step */
    lb_failure failure;
    history *past;
    uint32_t n_past;
    struct { /* what the recording's gross failure was compared with: a change may take away the past that shows it */
        int32_t rank;
        int64_t key, step;
        double reference;
    } recorded;
    bool recording;
    bool all_skipped; /* the loss scaler skips every step: then what it met is a failure */
    lb_skipped_steps skipped;
    char warning[240]; /* of these, in words */
    memory_of_steps *kept;
    uint32_t n_kept;
};

const char *lb_failure_kind_name(lb_failure_kind kind)
{
    static const char *const names[] = {"none",   "gradient", "loss",      "parameter",  "state",
                                        "output", "gross",    "predicate", "difference", "ranks"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

/* ---- life-cycle ------------------------------------------------------------------------------------------------- */

static lb_status collect_programs(lb_failure_monitor *monitor, lb_capture *capture, int64_t first, int64_t last,
                                  lb_err *err)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(capture, &steps);
    monitor->rows = calloc((size_t)n_steps * monitor->n_ranks + 1, sizeof *monitor->rows);
    if (!monitor->rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < n_steps; s++)
        for (uint32_t r = 0; r < monitor->n_ranks; r++) {
            if (steps[s] < first || steps[s] > last) continue;
            lb_err why = LB_ERR_INIT;
            const lb_program *program;
            lb_status status = lb_capture_program(capture, monitor->ranks[r], steps[s], &program, &why);
            if (status == LB_ERR_NOT_FOUND) continue;
            if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
            monitor->rows[monitor->n_rows++] = (lb_watched){.program = program, .rank_row = r};
        }
    return LB_OK;
}

lb_status lb_failure_monitor_new(lb_capture *capture, int64_t first_step, int64_t last_step, const char *predicate,
                                 lb_failure_monitor **monitor, lb_err *err)
{
    lb_selector *selector = NULL;
    lb_failure_monitor *made = calloc(1, sizeof *made);
    *monitor = NULL;
    if (!made) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    made->n_ranks = lb_capture_ranks(capture, &made->ranks);
    made->excluded = calloc(made->n_ranks + 1, sizeof *made->excluded);
    made->done = calloc(made->n_ranks + 1, sizeof *made->done);
    lb_status status = made->excluded && made->done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && predicate) status = lb_failure_predicate_parse(predicate, &made->predicate, &selector, err);
    if (status == LB_OK) status = collect_programs(made, capture, first_step, last_step, err);
    for (uint32_t i = 0; i < made->n_rows && status == LB_OK; i++)
        status = lb_watch_program(&made->rows[i], selector, err);
    lb_selector_free(selector);
    if (status == LB_OK)
        *monitor = made;
    else
        lb_failure_monitor_free(made);
    return status;
}

void lb_failure_monitor_free(lb_failure_monitor *monitor)
{
    if (!monitor) return;
    for (uint32_t i = 0; i < monitor->n_rows; i++) free(monitor->rows[i].marks);
    lb_failure_monitor_forget(monitor);
    free(monitor->rows);
    free(monitor->excluded);
    free(monitor->done);
    free(monitor->past);
    free(monitor);
}

/* Each of its gradients says so, on each rank. */
static void note_skipped(lb_failure_monitor *monitor, int64_t step)
{
    if (!lb_skipped_steps_note(&monitor->skipped, step)) return;
    lb_skipped_steps_text(&monitor->skipped, monitor->warning, sizeof monitor->warning);
}

void lb_failure_monitor_reset(lb_failure_monitor *monitor, lb_failure_monitor_mode mode, const bool *excluded)
{
    monitor->mode = mode;
    monitor->collect = false;
    monitor->failure = (lb_failure){.op = LB_NONE, .rank = -1};
    monitor->n_past = 0;
    monitor->skipped.n = 0;
    lb_skipped_steps_text(&monitor->skipped, monitor->warning, sizeof monitor->warning);
    for (uint32_t i = 0; i < monitor->n_rows; i++) monitor->rows[i].blind = monitor->rows[i].judged = 0;
    for (uint32_t i = 0; i < monitor->n_ranks; i++) {
        monitor->excluded[i] = excluded && excluded[i];
        monitor->done[i] = 0;
    }
}

void lb_failure_monitor_forget(lb_failure_monitor *monitor)
{
    for (uint32_t i = 0; i < monitor->n_kept; i++) {
        free(monitor->kept[i].past);
        free(monitor->kept[i].blind);
    }
    free(monitor->kept);
    monitor->kept = NULL, monitor->n_kept = 0;
}

lb_status lb_failure_monitor_keep(lb_failure_monitor *monitor, uint32_t number, lb_err *err)
{
    memory_of_steps *more = lb_array_grow(monitor->kept, monitor->n_kept, sizeof *more),
                    row = {.number = number, .n_past = monitor->n_past};
    if (more) monitor->kept = more;
    row.past = malloc((monitor->n_past + 1) * sizeof *row.past);
    row.blind = malloc((monitor->n_rows + 1) * sizeof *row.blind);
    if (!more || !row.past || !row.blind) {
        free(row.past);
        free(row.blind);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    if (monitor->n_past) memcpy(row.past, monitor->past, monitor->n_past * sizeof *row.past);
    for (uint32_t i = 0; i < monitor->n_rows; i++) row.blind[i] = monitor->rows[i].blind;
    row.skipped = monitor->skipped;
    monitor->kept[monitor->n_kept++] = row;
    return LB_OK;
}

lb_status lb_failure_monitor_resume(lb_failure_monitor *monitor, uint32_t number, lb_err *err)
{
    for (uint32_t i = 0; i < monitor->n_kept; i++) {
        const memory_of_steps *row = &monitor->kept[i];
        if (row->number != number) continue;
        if (row->n_past > monitor->n_past) {
            history *more =
                lb_array_reserve(monitor->past, monitor->n_past, row->n_past - monitor->n_past, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            monitor->past = more;
        }
        if (row->n_past) memcpy(monitor->past, row->past, row->n_past * sizeof *row->past);
        monitor->n_past = row->n_past;
        for (uint32_t k = 0; k < monitor->n_rows; k++) monitor->rows[k].blind = row->blind[k];
        monitor->skipped = row->skipped;
        lb_skipped_steps_text(&monitor->skipped, monitor->warning, sizeof monitor->warning);
        return LB_OK;
    }
    return lb_fail(err, LB_ERR_NOT_FOUND, "nothing is kept under %u", number);
}

uint64_t lb_failure_monitor_blind(const lb_failure_monitor *monitor, int64_t last_step)
{
    uint64_t blind = 0;
    for (uint32_t i = 0; i < monitor->n_rows; i++)
        if (monitor->rows[i].program->step <= last_step) blind += monitor->rows[i].blind;
    return blind;
}

uint64_t lb_failure_monitor_judged(const lb_failure_monitor *monitor)
{
    uint64_t judged = 0;
    for (uint32_t i = 0; i < monitor->n_rows; i++) judged += monitor->rows[i].judged;
    return judged;
}

void lb_failure_monitor_collect(lb_failure_monitor *monitor, bool all)
{
    monitor->collect = all;
}

const lb_failure *lb_failure_monitor_failure(const lb_failure_monitor *monitor)
{
    return &monitor->failure;
}

const char *lb_failure_monitor_warning(const lb_failure_monitor *monitor)
{
    return monitor->warning;
}

static lb_watched *find_row(const lb_failure_monitor *monitor, int32_t rank, int64_t step)
{
    for (uint32_t i = 0; i < monitor->n_rows; i++)
        if (monitor->rows[i].program->rank == rank && monitor->rows[i].program->step == step) return &monitor->rows[i];
    return NULL;
}

const uint8_t *lb_failure_monitor_marks(const lb_failure_monitor *monitor, int32_t rank, int64_t step)
{
    const lb_watched *watched = find_row(monitor, rank, step);
    return watched ? watched->marks : NULL;
}

/* ---- judging ---------------------------------------------------------------------------------------------------- */

static void report(lb_failure_monitor *monitor, const lb_watched *watched, uint32_t op, lb_failure_kind kind,
                   const char *what)
{
    const lb_program *program = watched->program;
    bool earlier = monitor->failure.kind == LB_FAILURE_NONE || program->step < monitor->failure.step;
    /* Within a step what is nearer to the cause comes first: gradients and loss before what they are written into. */
    if (!earlier && (program->step > monitor->failure.step || kind >= monitor->failure.kind)) return;
    monitor->failure = (lb_failure){.kind = kind, .step = program->step, .rank = program->rank, .op = op};
    if (op != LB_NONE) {
        snprintf(monitor->failure.layer, sizeof monitor->failure.layer, "%s", lb_op_layer(program, &program->ops[op]));
        snprintf(monitor->failure.name, sizeof monitor->failure.name, "%s", lb_op_name(program, &program->ops[op]));
    }
    snprintf(monitor->failure.what, sizeof monitor->failure.what, "%s", what);
}

static lb_failure_kind kind_of_bits(uint8_t bits)
{
    if (bits & LB_WATCH_GRADIENT) return LB_FAILURE_GRADIENT;
    if (bits & LB_WATCH_LOSS) return LB_FAILURE_LOSS;
    if (bits & LB_WATCH_PARAMETER) return LB_FAILURE_PARAMETER;
    if (bits & LB_WATCH_STATE) return LB_FAILURE_STATE;
    return LB_FAILURE_OUTPUT;
}

/* What the program calls a parameter, or a tensor of optimizer state; "" when it has no name. */
static const char *storage_name(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_group_params; i++)
        if (program->group_params[i].storage == storage) return lb_program_text(program, program->group_params[i].name);
    return "";
}

static const char *thing(lb_failure_kind kind)
{
    switch (kind) {
    case LB_FAILURE_GRADIENT: return "a local gradient";
    case LB_FAILURE_LOSS: return "the loss";
    case LB_FAILURE_PARAMETER: return "a parameter";
    case LB_FAILURE_STATE: return "optimizer state";
    default: return "the output";
    }
}

static void judge_nonfinite(lb_failure_monitor *monitor, const lb_watched *watched, uint32_t op, uint8_t bits,
                            const lb_value *value, const lb_statistics *statistics)
{
    int64_t bad = lb_statistics_nonfinite(statistics);
    if (bits == LB_WATCH_OUTPUT) bad -= statistics->neg_inf; /* a mask */
    if (bad <= 0) return;
    lb_failure_kind kind = kind_of_bits(bits);
    if (kind == LB_FAILURE_GRADIENT && watched->scaler && !monitor->all_skipped) {
        note_skipped(monitor, watched->program->step);
        return;
    }
    char what[200];
    const char *name = kind == LB_FAILURE_PARAMETER ? storage_name(watched->program, value->storage) : "";
    if (statistics->elements == 1)
        snprintf(what, sizeof what, "%s%s%.80s is %s", thing(kind), *name ? " " : "", name,
                 statistics->nan ? "NaN" : "infinite");
    else
        snprintf(what, sizeof what, "%" PRId64 " of %" PRId64 " elements of %s%s%.80s are %s", bad,
                 statistics->elements, thing(kind), *name ? " " : "", name,
                 statistics->nan && bad > statistics->nan ? "NaN or infinite"
                 : statistics->nan                        ? "NaN"
                                                          : "infinite");
    report(monitor, watched, op, kind, what);
}

static history *find_past(lb_failure_monitor *monitor, int32_t rank, int64_t key)
{
    for (uint32_t i = 0; i < monitor->n_past; i++)
        if (monitor->past[i].rank == rank && monitor->past[i].key == key) return &monitor->past[i];
    history *more = lb_array_grow(monitor->past, monitor->n_past, sizeof *more);
    if (!more) return NULL;
    monitor->past = more;
    monitor->past[monitor->n_past] = (history){.rank = rank, .key = key, .op = LB_NONE};
    return &monitor->past[monitor->n_past++];
}

static double largest_magnitude(const lb_statistics *statistics)
{
    if (lb_statistics_nonfinite(statistics)) return INFINITY;
    return statistics->elements ? fmax(fabs(statistics->min), fabs(statistics->max)) : 0;
}

/* What the window's first source of that storage held: the past of a parameter begins there, not with its first
 * update. */
static double source_magnitude(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        if (value->storage != storage) continue;
        const lb_statistics *statistics = value->statistics == LB_NONE ? NULL : &program->statistics[value->statistics];
        return statistics && !lb_statistics_nonfinite(statistics) ? largest_magnitude(statistics) : 0;
    }
    return 0;
}

/* Values are gathered while a step runs and judged at its end. */
static void gather(lb_failure_monitor *monitor, const lb_watched *watched, uint32_t op, uint8_t bits,
                   const lb_value *value, const lb_statistics *statistics)
{
    int64_t key = bits & LB_WATCH_PARAMETER  ? value->storage
                  : bits & LB_WATCH_LOSS     ? -1
                  : bits & LB_WATCH_GRADIENT ? -2
                                             : -3;
    if (key == -3) return;
    history *history = find_past(monitor, watched->program->rank, key);
    if (!history) return;
    if (key >= 0 && !history->n && !history->seen && watched->program->step == monitor->rows[0].program->step) {
        history->largest = source_magnitude(watched->program, key);
        history->n = history->largest > 0;
    }
    if (key == -2 && lb_statistics_nonfinite(statistics)) /* its sum of squares is that of the finite elements alone */
        history->pending = watched->scaler ? NAN : INFINITY; /* a scaler skips the step: that has no norm */
    else if (key == -2)
        history->pending += statistics->sum_squares;
    else
        history->pending = largest_magnitude(statistics);
    history->seen = true;
    if (history->op == LB_NONE || key != -2) history->op = op;
}

static bool is_gross(lb_failure_monitor *monitor, const history *history, const lb_program *program, double now,
                     char *what, size_t size)
{
    bool many = history->n >= 20;
    const bool known = !monitor->recording && monitor->recorded.reference > 0 &&
                       monitor->recorded.rank == history->rank && monitor->recorded.key == history->key &&
                       program->step >= monitor->recorded.step;
    const uint32_t least = known ? 0 : history->key < 0 ? 2 : 1;
    double limit, reference;
    const char *name, *against, *which = "";
    if (history->key == -1) {
        name = "the loss", reference = many ? history->mean : history->largest, limit = many ? 2 : 10;
        against = many ? "its mean" : "its largest";
    } else if (history->key == -2) {
        name = "the gradient norm", reference = many ? history->ema : history->largest, limit = many ? 100 : 1000;
        against = many ? "its EMA" : "its largest";
    } else {
        name = "parameter ", which = storage_name(program, history->key), reference = history->largest, limit = 1e4,
        against = "its largest";
    }
    if (known) reference = fmax(reference, monitor->recorded.reference);
    const bool finite = isfinite(now); /* what is not is no matter of how large it was before */
    if (finite && (history->n < least || !(reference > 0) || now <= limit * reference)) return false;
    if (finite && monitor->recording && monitor->failure.kind == LB_FAILURE_NONE) {
        monitor->recorded.rank = history->rank, monitor->recorded.key = history->key,
        monitor->recorded.step = program->step;
        monitor->recorded.reference = reference;
    }
    if (finite)
        snprintf(what, size, "%s%.80s is %.4g, %.3g times %s before (%.4g)", name, which, now, now / reference, against,
                 reference);
    else
        snprintf(what, size, "%s%.80s is not finite", name, which);
    return true;
}

static void take_into_past(history *history, double now)
{
    history->largest = fmax(history->largest, now);
    history->mean += (now - history->mean) / (history->n + 1);
    history->ema = history->n ? 0.99 * history->ema + 0.01 * now : now;
    history->n++;
}

void lb_failure_monitor_step_end(lb_failure_monitor *monitor, int32_t rank, int64_t step)
{
    const lb_watched *watched = find_row(monitor, rank, step);
    for (uint32_t i = 0; i < monitor->n_past && watched; i++) {
        history *history = &monitor->past[i];
        char what[200];
        if (history->rank != rank || !history->seen) continue;
        double now = history->key == -2 ? sqrt(history->pending) : history->pending;
        if (watched->scaler && history->key == -2 && isnan(now)) {
            history->pending = 0, history->seen = false, history->op = LB_NONE;
            continue;
        }
        if (monitor->mode == LB_MONITOR_GROSS && history->key < 0 && watched->scale > 0) now /= watched->scale;
        if (monitor->mode == LB_MONITOR_GROSS && is_gross(monitor, history, watched->program, now, what, sizeof what))
            report(monitor, watched, history->op, LB_FAILURE_GROSS, what);
        if (monitor->predicate.kind == LB_PREDICATE_NORM && history->key == -2 &&
            (!isfinite(now) || now > monitor->predicate.limit)) {
            if (isfinite(now))
                snprintf(what, sizeof what, "the local gradient norm is %.6g, above %g", now, monitor->predicate.limit);
            else
                snprintf(what, sizeof what, "the local gradient is not finite, its norm above any limit");
            report(monitor, watched, history->op, LB_FAILURE_PREDICATE, what);
        }
        if (isfinite(now)) take_into_past(history, now);
        history->pending = 0, history->seen = false, history->op = LB_NONE;
    }
    if (watched)
        monitor->done[watched->rank_row] = monitor->failure.kind != LB_FAILURE_NONE && step >= monitor->failure.step;
}

static void judge_predicate(lb_failure_monitor *monitor, const lb_watched *watched, uint32_t op, uint8_t bits,
                            const lb_statistics *statistics)
{
    char what[200];
    double most = largest_magnitude(statistics);
    if (!(bits & LB_WATCH_PREDICATE)) return;
    if (!lb_failure_predicate_holds(&monitor->predicate, most, bits & LB_WATCH_LOSS)) return;
    snprintf(what, sizeof what,
             "the predicate holds: largest magnitude %.6g, %" PRId64 " of %" PRId64 " elements not finite", most,
             lb_statistics_nonfinite(statistics), statistics->elements);
    report(monitor, watched, op, LB_FAILURE_PREDICATE, what);
}

/* What an op gives beside the loss: the number of targets, of nll_loss_forward. */
static bool is_beside_loss(const lb_program *program, uint32_t op, const lb_value *value)
{
    const lb_op *row = &program->ops[op];
    const uint32_t first = row->results ? lb_op_results(program, row)[0] : LB_NONE;
    return first != LB_NONE && value != &program->values[first] && value->storage != program->values[first].storage;
}

static void judge(lb_failure_monitor *monitor, lb_watched *watched, uint32_t op, const lb_value *value,
                  const lb_statistics *statistics)
{
    uint8_t bits = watched->marks[op] & (uint8_t)~LB_WATCH_EVIDENCE;
    if (bits & LB_WATCH_LOSS && is_beside_loss(watched->program, op, value)) bits &= (uint8_t)~LB_WATCH_LOSS;
    if (!bits || !lb_dtype_is_float(value->dtype) || monitor->excluded[watched->rank_row] || !statistics->elements)
        return;
    watched->judged += monitor->mode != LB_MONITOR_PREDICATE || bits & LB_WATCH_PREDICATE;
    if (monitor->mode == LB_MONITOR_NONFINITE) {
        if (bits & (uint8_t)~LB_WATCH_PREDICATE)
            judge_nonfinite(monitor, watched, op, bits & (uint8_t)~LB_WATCH_PREDICATE, value, statistics);
    } else {
        if (monitor->mode == LB_MONITOR_PREDICATE) judge_predicate(monitor, watched, op, bits, statistics);
        gather(monitor, watched, op, bits, value, statistics);
    }
}

bool lb_failure_monitor_op(lb_failure_monitor *monitor, const lb_event *event)
{
    lb_watched *watched = find_row(monitor, event->rank, event->step);
    if (!watched) return true;
    /* In a step after the failing one this rank has nothing to add. */
    bool past = monitor->failure.kind != LB_FAILURE_NONE && event->step > monitor->failure.step;
    if (!past && event->op < watched->program->n_ops && watched->marks[event->op] & (uint8_t)~LB_WATCH_EVIDENCE)
        for (uint32_t i = 0; i < event->n_results; i++) {
            if (event->values[i] == LB_NONE || event->values[i] >= watched->program->n_values) continue;
            const lb_value *value = &watched->program->values[event->values[i]];
            if (!event->computed || !event->computed[i].data) {
                watched->blind += lb_dtype_is_float(value->dtype) && lb_layout_numel(&value->layout) > 0;
                continue;
            }
            lb_statistics statistics = lb_statistics_of(&event->computed[i]);
            judge(monitor, watched, event->op, value, &statistics);
        }
    if (past) monitor->done[watched->rank_row] = 1;
    if (monitor->failure.kind == LB_FAILURE_NONE) return true;
    if (!monitor->collect) return false;
    for (uint32_t i = 0; i < monitor->n_ranks; i++)
        if (!monitor->done[i]) return true;
    return false;
}

/* ---- in the recording ------------------------------------------------------------------------------------------- */

static void judge_recorded_op(lb_failure_monitor *monitor, lb_watched *watched, uint32_t i)
{
    const lb_program *program = watched->program;
    const lb_op *op = &program->ops[i];
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        uint32_t value = lb_op_outcome(program, op, r);
        if (value == LB_NONE) continue;
        if (program->values[value].statistics == LB_NONE) {
            watched->blind += lb_dtype_is_float(program->values[value].dtype) &&
                              lb_layout_numel(&program->values[value].layout) > 0 && !(op->flags & LB_OP_VIEW);
            continue;
        }
        judge(monitor, watched, i, &program->values[value], &program->statistics[program->values[value].statistics]);
    }
}

/* How often a loss scaler of that program met gradients that are not finite. */
static uint32_t count_skipped(const lb_watched *watched)
{
    const lb_program *program = watched->program;
    uint32_t n = 0;
    for (uint32_t i = 0; watched->scaler && i < program->n_ops; i++) {
        bool bad = false;
        for (uint32_t r = 0; lb_op_is_unscaling(program, &program->ops[i]) && r < program->ops[i].written && !bad;
             r++) {
            const uint32_t v = lb_op_written(program, &program->ops[i])[r];
            bad = v != LB_NONE && program->values[v].statistics != LB_NONE &&
                  lb_statistics_nonfinite(&program->statistics[program->values[v].statistics]);
        }
        n += bad;
    }
    return n;
}

/* One skipped step is how a scaler finds its scale. A window of several in which no parameter is ever updated does not
 * train. */
static bool skips_all(const lb_failure_monitor *monitor)
{
    uint32_t skipped = 0;
    for (uint32_t i = 0; i < monitor->n_rows; i++) {
        if (monitor->rows[i].updates) return false;
        skipped = monitor->rows[i].rank_row == monitor->rows[0].rank_row ? skipped + count_skipped(&monitor->rows[i])
                                                                         : skipped;
    }
    return skipped > 1;
}

lb_status lb_failure_monitor_recording(lb_failure_monitor *monitor, lb_failure_monitor_mode mode, lb_err *err)
{
    (void)err;
    monitor->all_skipped = mode == LB_MONITOR_NONFINITE && skips_all(monitor);
    lb_failure_monitor_reset(monitor, mode, NULL);
    if (monitor->all_skipped)
        snprintf(monitor->warning, sizeof monitor->warning,
                 "the loss scaler skips every step of this window: no parameter is ever updated");
    monitor->recording = true;
    monitor->recorded.reference = 0;
    for (uint32_t i = 0; i < monitor->n_rows; i++) {
        lb_watched *watched = &monitor->rows[i];
        if (monitor->failure.kind != LB_FAILURE_NONE && watched->program->step > monitor->failure.step) break;
        for (uint32_t k = 0; k < watched->program->n_ops; k++)
            if (watched->marks[k]) judge_recorded_op(monitor, watched, k);
        lb_failure_monitor_step_end(monitor, watched->program->rank, watched->program->step);
    }
    monitor->recording = false;
    return LB_OK;
}
