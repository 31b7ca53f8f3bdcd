/* A subprogram run exactly: see exact_run.h. */
#include "subprogram/exact_run.h"

#include "ranks/rank_run.h"
#include "shadow/shadow_numbers.h"
#include "subprogram/rank_program.h"

#include <stdlib.h>
#include <string.h>

typedef struct run {
    const lb_subprogram *subprogram;
    lb_tensor *wide, *narrow; /* per leaf: its numbers as f64, and in the dtype that it was recorded in */
    double *out;
} run;

static const lb_value *value_of_leaf(const lb_subprogram *subprogram, uint32_t leaf)
{
    return &subprogram->rank_programs[0].program->values[subprogram->leaves[leaf].row];
}

static uint32_t leaf_of(const lb_subprogram *subprogram, uint32_t value)
{
    for (uint32_t i = 0; i < subprogram->n_leaves; i++)
        if (subprogram->leaves[i].row == value) return i;
    return LB_NONE;
}

static lb_status given_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    const run *run = context;
    const uint32_t leaf = leaf_of(run->subprogram, value);
    (void)program;
    if (leaf == LB_NONE) return lb_fail(err, LB_ERR_NOT_CAPTURED, "not given");
    *tensor = run->narrow[leaf];
    return LB_OK;
}

static bool wide_value(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    const run *run = context;
    const uint32_t leaf = leaf_of(run->subprogram, value);
    (void)rank, (void)step;
    if (leaf == LB_NONE || !lb_dtype_is_float(value_of_leaf(run->subprogram, leaf)->dtype)) return false;
    *tensor = run->wide[leaf];
    return true;
}

/* Of its leaves, which are exact: nothing is recorded that a choice could be taken from. */
static bool computes_all(void *context, int32_t rank, int64_t step, uint32_t op)
{
    (void)context, (void)rank, (void)step, (void)op;
    return true;
}

static bool note_output(void *context, const lb_event *event)
{
    run *run = context;
    for (uint32_t i = 0; event->shadow && i < event->n_results && !run->out; i++)
        if (event->values[i] == run->subprogram->outputs[0].row && event->shadow[i].data)
            run->out = lb_shadow_numbers_copy(&event->shadow[i]);
    return true;
}

static bool make_leaves(run *run, const double *const *leaves)
{
    bool room = true;
    for (uint32_t i = 0; i < run->subprogram->n_leaves && room; i++) {
        const lb_value *value = value_of_leaf(run->subprogram, i);
        const size_t n = (size_t)lb_layout_numel(&value->layout);
        const lb_layout dense = lb_layout_contiguous(value->layout.ndim, value->layout.shape);
        double *numbers = malloc((n + 1) * sizeof *numbers);
        run->wide[i] = (lb_tensor){numbers, LB_F64, dense};
        run->narrow[i] = (lb_tensor){calloc(lb_dtype_bytes(value->dtype, n) + 1, 1), value->dtype, dense};
        room = numbers && run->narrow[i].data;
        if (!room) continue;
        memcpy(numbers, leaves[i], n * sizeof *numbers);
        lb_shadow_put(&run->narrow[i], numbers);
    }
    return room;
}

lb_status lb_subprogram_run_exact(const lb_subprogram *subprogram, const double *const *leaves, double **out,
                                  lb_err *err)
{
    run run = {.subprogram = subprogram,
               .wide = calloc(subprogram->n_leaves + 1, sizeof *run.wide),
               .narrow = calloc(subprogram->n_leaves + 1, sizeof *run.narrow)};
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = plan.shadow_only = true;
    const lb_observer observer = {.context = &run, .op = note_output, .source = wide_value, .computes = computes_all};
    const lb_prepared *const programs[] = {subprogram->rank_programs[0].prepared};
    lb_rank_run ranks = {.programs = programs,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = &run,
                         .value = given_value};
    *out = NULL;
    lb_status status = run.wide && run.narrow && make_leaves(&run, leaves) ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK)
        status = lb_rank_run_all(&ranks, err);
    else
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for the leaves of a subprogram");
    for (uint32_t i = 0; i < subprogram->n_leaves; i++) {
        if (run.wide) free(run.wide[i].data);
        if (run.narrow) free(run.narrow[i].data);
    }
    free(run.wide), free(run.narrow);
    *out = run.out;
    return status;
}
