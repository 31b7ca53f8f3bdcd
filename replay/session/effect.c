/* Measuring what swaps move: see lastbit/effect.h. A replayed value is measured when the last op that can change it
 * has run, against a reference that is in the capture or was taken from the run without swaps: only that copy takes
 * memory. */
#include "base/array.h"
#include <lastbit/effect.h>

#include "session/step_end.h"
#include "composites/expert_flip.h"
#include "session/output_distance.h"
#include "session/snapshot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum part { OUTPUT, LOSS, PARAMETER, PARTS } part;

/* A value that leaves a step. */
typedef struct leaver {
    const lb_program *program;
    uint32_t value, row; /* row of `now`; LB_NONE: parameters, which are measured as they come */
    uint32_t reference;  /* row of `plain`; LB_NONE: recorded */
    uint32_t step;       /* row of effects */
    uint32_t last_op;    /* that writes it */
    part part;
    bool done; /* a parameter that was measured */
} leaver;

/* Sums over the tensors of a part. */
typedef struct tally {
    double gap, norm;
} tally;

struct lb_effects {
    lb_capture *capture;
    lb_snapshots now, plain;
    leaver *leavers;
    uint32_t n_leavers;
    lb_effect *rows;
    tally (*tallies)[PARTS];
    struct {
        const lb_program *program;
        uint32_t first, end; /* leavers that are its parameters */
    } *programs;             /* per row */
    uint32_t n_rows;
    bool measured;
};

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the effect of swaps");
}

/* ---- what leaves a step ------------------------------------------------------------------------------------------ */

static bool is_recorded(lb_effects *effects, const lb_program *program, uint32_t value, lb_tensor *tensor)
{
    lb_err quiet = LB_ERR_INIT;
    return lb_capture_value(effects->capture, program, value, tensor, &quiet) == LB_OK;
}

static lb_status add_leaver(lb_effects *effects, const lb_program *program, part part, lb_step_end end,
                            uint32_t last_op, lb_err *err)
{
    lb_tensor unused;
    if (end.value == LB_NONE) return LB_OK;
    leaver *grown = lb_array_grow(effects->leavers, effects->n_leavers, sizeof *grown);
    if (!grown) return no_memory(err);
    effects->leavers = grown;
    leaver l = {program, end.value, LB_NONE, LB_NONE, effects->n_rows - 1, last_op, part, false};
    if (part != PARAMETER) l.row = lb_snapshots_want(&effects->now, program, end.value, end.before);
    if (!is_recorded(effects, program, end.value, &unused))
        l.reference = lb_snapshots_want(&effects->plain, program, end.value, end.before);
    effects->leavers[effects->n_leavers++] = l;
    return LB_OK;
}

typedef struct written {
    int64_t storage, offset;
    uint32_t value, op;
} written;

static int by_place(const void *a, const void *b)
{
    const written *x = a, *y = b;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static int by_op(const void *a, const void *b)
{
    const written *x = a, *y = b;
    return x->op != y->op ? (x->op < y->op ? -1 : 1) : (x->value > y->value) - (x->value < y->value);
}

/* Parameters as the step leaves them: the last write of each. */
static lb_status add_parameters(lb_effects *effects, const lb_program *program, lb_err *err)
{
    written *list = malloc((program->n_refs + 1) * sizeof *list);
    uint32_t n = 0, kept = 0;
    if (!list) return no_memory(err);
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t w = 0; w < program->ops[i].written && n < program->n_refs; w++) {
            const uint32_t v = lb_op_written(program, &program->ops[i])[w];
            const lb_value *value = v == LB_NONE ? NULL : &program->values[v];
            if (value && value->flags & LB_VALUE_PARAMETER && lb_dtype_is_float(value->dtype))
                list[n++] = (written){value->storage, value->layout.offset, v, i};
        }
    qsort(list, n, sizeof *list, by_place);
    for (uint32_t i = 0; i < n; i++)
        if (i + 1 == n || list[i].storage != list[i + 1].storage || list[i].offset != list[i + 1].offset)
            list[kept++] = list[i];
    qsort(list, kept, sizeof *list, by_op);
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < kept && status == LB_OK; i++)
        status = add_leaver(effects, program, PARAMETER, (lb_step_end){list[i].value, program->n_ops}, list[i].op, err);
    free(list);
    return status;
}

static lb_status add_program(void *context, const lb_program *program, lb_err *err)
{
    lb_effects *effects = context;
    lb_effect *rows = lb_array_grow(effects->rows, effects->n_rows, sizeof *rows);
    if (!rows) return no_memory(err);
    effects->rows = rows;
    uint32_t scope = 0;
    const lb_step_end output = lb_step_end_output(program, &scope), loss = lb_step_end_loss(program);
    const lb_effect_size none = {0, 0, 0, NAN, NAN};
    rows[effects->n_rows++] =
        (lb_effect){.step = program->step,
                    .rank = program->rank,
                    .layer = output.value == LB_NONE ? "" : lb_program_text(program, program->scopes[scope].path),
                    .output = none,
                    .loss = none,
                    .parameters = none,
                    .loss_reference = NAN,
                    .loss_swapped = NAN};
    LB_TRY(add_leaver(effects, program, OUTPUT, output, LB_NONE, err));
    LB_TRY(add_leaver(effects, program, LOSS, loss, LB_NONE, err));
    void *programs = lb_array_grow(effects->programs, effects->n_rows - 1, sizeof *effects->programs);
    if (!programs) return no_memory(err);
    effects->programs = programs;
    effects->programs[effects->n_rows - 1].program = program;
    effects->programs[effects->n_rows - 1].first = effects->n_leavers;
    const lb_status status = add_parameters(effects, program, err);
    effects->programs[effects->n_rows - 1].end = effects->n_leavers;
    return status;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static bool reference_of(lb_effects *effects, const leaver *leaver, lb_tensor *tensor)
{
    if (leaver->reference == LB_NONE) return is_recorded(effects, leaver->program, leaver->value, tensor);
    const lb_tensor *seen = lb_snapshots_of(&effects->plain, leaver->reference);
    if (seen) *tensor = *seen;
    return seen != NULL;
}

static lb_effect_size *size_of(lb_effect *row, part part)
{
    return part == OUTPUT ? &row->output : part == LOSS ? &row->loss : &row->parameters;
}

static void compare(lb_effects *effects, const leaver *leaver, const lb_tensor *now)
{
    lb_tensor then;
    lb_effect_size *size = size_of(&effects->rows[leaver->step], leaver->part);
    tally *sum = &effects->tallies[leaver->step][leaver->part];
    const int64_t n = lb_layout_numel(&now->layout);
    double *a = NULL, *b = NULL;
    if (reference_of(effects, leaver, &then) && lb_layout_numel(&then.layout) == n)
        a = lb_expert_flip_scores(now), b = lb_expert_flip_scores(&then);
    if (!a || !b) {
        size->unknown++;
        free(a), free(b);
        return;
    }
    double max_abs = 0;
    bool moved = false;
    for (int64_t i = 0; i < n; i++) {
        const bool same = a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
        const double d = same ? 0 : fabs(a[i] - b[i]);
        moved |= !same;
        if (!(d <= max_abs)) max_abs = isnan(d) ? INFINITY : d;
        sum->gap += isnan(d) ? INFINITY : d * d;
        sum->norm += isfinite(b[i]) ? b[i] * b[i] : 0;
    }
    if (!size->tensors++) size->max_abs = 0;
    size->moved += moved;
    if (max_abs > size->max_abs) size->max_abs = max_abs;
    size->rel_l2 = sum->gap == 0 ? 0 : sum->norm > 0 ? sqrt(sum->gap / sum->norm) : INFINITY;
    if (leaver->part == LOSS && n)
        effects->rows[leaver->step].loss_swapped = a[0], effects->rows[leaver->step].loss_reference = b[0];
    free(a), free(b);
}

/* Parameters of a program stand together, in the order of their last writes. */
static void measure_parameters(lb_effects *effects, const lb_event *event)
{
    uint32_t low = 0, high = 0;
    for (uint32_t k = 0; k < effects->n_rows && !high; k++)
        if (effects->programs[k].program == event->program)
            low = effects->programs[k].first, high = effects->programs[k].end;
    const uint32_t end = high;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (effects->leavers[middle].last_op < event->op)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < end && effects->leavers[low].last_op == event->op; low++)
        for (uint32_t r = 0; r < event->n_results; r++)
            if (event->values[r] == effects->leavers[low].value && event->computed[r].data &&
                !effects->leavers[low].done) {
                compare(effects, &effects->leavers[low], &event->computed[r]);
                effects->leavers[low].done = true;
            }
}

static bool writes_parameters(const lb_event *event)
{
    for (uint32_t r = 0; r < event->n_results; r++)
        if (event->values[r] != LB_NONE && event->program->values[event->values[r]].flags & LB_VALUE_PARAMETER)
            return true;
    return false;
}

void lb_effects_op(lb_effects *effects, const lb_event *event)
{
    lb_snapshots_event(&effects->now, event);
    if (writes_parameters(event)) measure_parameters(effects, event);
}

/* The swaps took away what writes it (a module that is left out is not trained): it is what it was when the window
 * began. */
static void measure_frozen(lb_effects *effects, const leaver *leaving)
{
    const lb_value *wanted = &leaving->program->values[leaving->value];
    lb_tensor source;
    for (uint32_t i = 0; i < effects->n_leavers; i++) {
        const leaver *other = &effects->leavers[i];
        const lb_value *value = &other->program->values[other->value];
        if (other->part != PARAMETER || other->program->rank != leaving->program->rank ||
            value->storage != wanted->storage)
            continue;
        if (other->done && other->program->step < leaving->program->step) break; /* it was trained in an earlier step */
        if (other->program->step > leaving->program->step) continue;
        for (uint32_t s = 0; s < other->program->n_values; s++) {
            const lb_value *from = &other->program->values[s];
            if (!(from->flags & LB_VALUE_SOURCE) || from->storage != wanted->storage || from->dtype != wanted->dtype ||
                from->layout.offset != wanted->layout.offset ||
                lb_layout_numel(&from->layout) != lb_layout_numel(&wanted->layout) ||
                !is_recorded(effects, other->program, s, &source))
                continue;
            compare(effects, leaving, &source);
            return;
        }
        break;
    }
    size_of(&effects->rows[leaving->step], PARAMETER)->unknown++;
}

uint32_t lb_effects_rows(lb_effects *effects, const lb_effect **rows)
{
    for (uint32_t i = 0; i < effects->n_leavers && !effects->measured; i++) {
        const leaver *leaver = &effects->leavers[i];
        const lb_tensor *now = lb_snapshots_of(&effects->now, leaver->row);
        if (leaver->part == PARAMETER && !leaver->done) measure_frozen(effects, leaver);
        if (leaver->part != PARAMETER && now) compare(effects, leaver, now);
    }
    effects->measured = true;
    *rows = effects->rows;
    return effects->n_rows;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

/* The reference for what was not kept. */
static lb_status run_plain(lb_effects *effects, lb_replay *replay, const lb_plan *plan, lb_err *err)
{
    lb_plan plain = *plan;
    if (!effects->plain.n) return LB_OK;
    plain.swaps = NULL;
    plain.n_swaps = 0;
    plain.touched = NULL;
    plain.keep = plain.from = NULL;
    plain.compare = plain.shadow = false;
    const lb_observer observer = {.context = &effects->plain, .op = lb_snapshots_watch};
    LB_TRY(lb_replay_run(replay, &plain, &observer, NULL, err));
    return effects->plain.failed ? no_memory(err) : LB_OK;
}

lb_status lb_effects_new(lb_capture *capture, lb_replay *replay, const lb_plan *plan, lb_effects **out, lb_err *err)
{
    lb_effects *effects = *out = calloc(1, sizeof *effects);
    if (!effects) return no_memory(err);
    effects->capture = capture;
    lb_status status = lb_output_distance_each_window(capture, plan, add_program, effects, err);
    if (status == LB_OK) {
        effects->tallies = calloc(effects->n_rows + 1, sizeof *effects->tallies);
        status = effects->tallies ? run_plain(effects, replay, plan, err) : no_memory(err);
    }
    if (status != LB_OK) {
        lb_effects_free(effects);
        *out = NULL;
    }
    return status;
}

void lb_effects_free(lb_effects *effects)
{
    if (!effects) return;
    lb_snapshots_release(&effects->now);
    lb_snapshots_release(&effects->plain);
    free(effects->leavers);
    free(effects->rows);
    free(effects->tallies);
    free(effects->programs);
    free(effects);
}
