/* Subprograms run: see subprogram.h. The recording that is asked for bytes is the list of leaves. */
#include "subprogram/rank_program.h"

#include "ranks/rank_run.h"

#include <stdlib.h>
#include <string.h>

typedef struct run {
    const lb_subprogram *subprogram;
    const lb_tensor *inputs, *targets;
    lb_tensor *results;
    uint64_t touched[LB_RANK_RUN_SWAPS]; /* ops that each swap concerns */
    bool lost;                           /* something was not computed */
    bool out_of_reach, no_memory;
} run;

/* Whose program runs. A fusion rewrites the program of the only rank program, not its values. */
static const lb_rank_program *rank_program_of(const lb_subprogram *subprogram, const lb_program *program)
{
    uint32_t n;
    if (subprogram->n_rank_programs == 1) return &subprogram->rank_programs[0];
    const lb_keyed_row *row = lb_keyed_rows_of(&subprogram->by_address, (int64_t)(intptr_t)program, &n);
    return n ? &subprogram->rank_programs[row->row] : NULL;
}

static lb_status given_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    const run *run = context;
    const lb_subprogram *subprogram = run->subprogram;
    const lb_rank_program *of = rank_program_of(subprogram, program);
    for (uint32_t i = 0; of && i < of->n_leaves; i++)
        if (subprogram->leaves[of->leaves[i].row].row == value) {
            *tensor = run->inputs[of->leaves[i].row];
            return LB_OK;
        }
    for (uint32_t i = 0; of && run->targets && i < of->n_outputs; i++)
        if (subprogram->outputs[of->outputs[i].row].row == value && run->targets[of->outputs[i].row].data) {
            *tensor = run->targets[of->outputs[i].row];
            return LB_OK;
        }
    return lb_fail(err, LB_ERR_NOT_CAPTURED, "not given");
}

static void keep_result(run *run, uint32_t row, const lb_tensor *computed)
{
    lb_tensor *kept = &run->results[row];
    if (kept->data) return;
    size_t bytes = lb_dtype_bytes(computed->dtype, (size_t)lb_layout_numel(&computed->layout));
    *kept = (lb_tensor){malloc(bytes + 1), computed->dtype,
                        lb_layout_contiguous(computed->layout.ndim, computed->layout.shape)};
    run->no_memory |= !kept->data;
    if (kept->data && lb_tensor_gather(computed, kept->data, NULL) != LB_OK) free(kept->data), kept->data = NULL;
}

static bool note_event(void *context, const lb_event *event)
{
    run *run = context;
    /* What a reduction leaves at those who are not its root is no result; who reads it is told that it is missing. */
    const bool met = event->program->ops[event->op].flags & LB_OP_COLLECTIVE;
    run->lost |= event->verdict == LB_VERDICT_OPAQUE || (event->verdict == LB_VERDICT_MISSING && !run->targets && !met);
    run->out_of_reach |= event->verdict == LB_VERDICT_DIVERGED || event->verdict == LB_VERDICT_MISSING;
    const lb_rank_program *of = run->results ? rank_program_of(run->subprogram, event->program) : NULL;
    for (uint32_t i = 0; of && i < event->n_results; i++)
        for (uint32_t k = 0; k < of->n_outputs && event->computed[i].data; k++)
            if (run->subprogram->outputs[of->outputs[k].row].row == event->values[i])
                keep_result(run, of->outputs[k].row, &event->computed[i]);
    return !run->lost && !run->no_memory;
}

static lb_status perform(run *run, const lb_plan *plan, lb_err *err)
{
    const lb_subprogram *subprogram = run->subprogram;
    const lb_observer observer = {.context = run, .op = note_event};
    const lb_prepared **programs = calloc(subprogram->n_rank_programs + 1, sizeof *programs);
    lb_rank_run ranks = {.programs = programs,
                         .n_programs = subprogram->n_rank_programs,
                         .plan = plan,
                         .observer = &observer,
                         .context = run,
                         .value = given_value};
    if (!programs) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < subprogram->n_rank_programs; i++) programs[i] = subprogram->rank_programs[i].prepared;
    lb_status status = lb_rank_run_all(&ranks, err);
    memcpy(run->touched, ranks.touched, sizeof run->touched);
    free(programs);
    return status;
}

lb_status lb_subprogram_run(const lb_subprogram *subprogram, const lb_tensor *inputs, const lb_swap *swaps,
                            uint32_t n_swaps, lb_tensor *results, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    run run = {.subprogram = subprogram, .inputs = inputs, .results = results};
    memset(results, 0, subprogram->n_outputs * sizeof *results);
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false;
    plan.swaps = swaps, plan.n_swaps = n_swaps;
    lb_status status = perform(&run, &plan, err);
    if (status == LB_OK && run.no_memory) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    for (uint32_t i = 0; status == LB_OK && i < n_swaps && i < LB_RANK_RUN_SWAPS; i++)
        if (!run.touched[i])
            status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s means nothing to these ops", swaps[i].argument);
    if (status == LB_OK && run.lost) status = lb_fail(err, LB_ERR_UNSUPPORTED, "an op has no kernel here");
    for (uint32_t i = 0; status != LB_OK && i < subprogram->n_outputs; i++)
        free(results[i].data), results[i].data = NULL;
    return status;
}

lb_status lb_subprogram_reaches(const lb_subprogram *subprogram, const lb_tensor *inputs, const lb_tensor *targets,
                                bool *reaches, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    run run = {.subprogram = subprogram, .inputs = inputs, .targets = targets};
    plan.mode = LB_REPLAY_ISOLATED, plan.compare = true;
    *reaches = false;
    LB_TRY(perform(&run, &plan, err));
    *reaches = !run.lost && !run.out_of_reach;
    return LB_OK;
}
