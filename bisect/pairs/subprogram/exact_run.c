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

static const lb_value *value_of_leaf(const lb_subprogram *s, uint32_t leaf)
{
    return &s->rank_programs[0].program->values[s->leaves[leaf].row];
}

static uint32_t leaf_of(const lb_subprogram *s, uint32_t value)
{
    for (uint32_t i = 0; i < s->n_leaves; i++)
        if (s->leaves[i].row == value) return i;
    return LB_NONE;
}

static lb_status given_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    const run *r = context;
    const uint32_t leaf = leaf_of(r->subprogram, value);
    (void)program;
    if (leaf == LB_NONE) return lb_fail(err, LB_ERR_NOT_CAPTURED, "not given");
    *tensor = r->narrow[leaf];
    return LB_OK;
}

static bool wide_value(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    const run *r = context;
    const uint32_t leaf = leaf_of(r->subprogram, value);
    (void)rank, (void)step;
    if (leaf == LB_NONE || !lb_dtype_is_float(value_of_leaf(r->subprogram, leaf)->dtype)) return false;
    *tensor = r->wide[leaf];
    return true;
}

static bool note_output(void *context, const lb_event *event)
{
    run *r = context;
    for (uint32_t i = 0; event->shadow && i < event->n_results && !r->out; i++)
        if (event->values[i] == r->subprogram->outputs[0].row && event->shadow[i].data)
            r->out = lb_shadow_numbers_copy(&event->shadow[i]);
    return true;
}

static bool make_leaves(run *r, const double *const *leaves)
{
    bool room = true;
    for (uint32_t i = 0; i < r->subprogram->n_leaves && room; i++) {
        const lb_value *v = value_of_leaf(r->subprogram, i);
        const size_t n = (size_t)lb_layout_numel(&v->layout);
        const lb_layout dense = lb_layout_contiguous(v->layout.ndim, v->layout.shape);
        double *numbers = malloc((n + 1) * sizeof *numbers);
        r->wide[i] = (lb_tensor){numbers, LB_F64, dense};
        r->narrow[i] = (lb_tensor){calloc(lb_dtype_bytes(v->dtype, n) + 1, 1), v->dtype, dense};
        room = numbers && r->narrow[i].data;
        if (!room) continue;
        memcpy(numbers, leaves[i], n * sizeof *numbers);
        lb_shadow_put(&r->narrow[i], numbers);
    }
    return room;
}

lb_status lb_subprogram_run_exact(const lb_subprogram *s, const double *const *leaves, double **out, lb_err *err)
{
    run r = {.subprogram = s,
             .wide = calloc(s->n_leaves + 1, sizeof *r.wide),
             .narrow = calloc(s->n_leaves + 1, sizeof *r.narrow)};
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = plan.shadow_only = true;
    const lb_observer observer = {.context = &r, .op = note_output, .source = wide_value};
    const lb_prepared *const programs[] = {s->rank_programs[0].prepared};
    lb_rank_run ranks = {.programs = programs,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = &r,
                         .value = given_value};
    *out = NULL;
    lb_status status = r.wide && r.narrow && make_leaves(&r, leaves) ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK)
        status = lb_rank_run_all(&ranks, err);
    else
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for the leaves of a subprogram");
    for (uint32_t i = 0; i < s->n_leaves; i++) {
        if (r.wide) free(r.wide[i].data);
        if (r.narrow) free(r.narrow[i].data);
    }
    free(r.wide), free(r.narrow);
    *out = r.out;
    return status;
}
