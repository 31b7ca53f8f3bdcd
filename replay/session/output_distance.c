/* Measuring the ends of steps: see output_distance.h. */
#include "session/output_distance.h"

#include "composites/expert_flip.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>

uint32_t lb_output_distance_want(lb_output_distance *gaps, const lb_program *program, uint32_t value, uint32_t before)
{
    lb_snapshots_want(&gaps->reference, program, value, before);
    return lb_snapshots_want(&gaps->current, program, value, before);
}

lb_status lb_output_distance_add_end(lb_output_distance *gaps, const lb_program *program, lb_err *err)
{
    lb_output_distance_end *ends = lb_array_grow(gaps->ends, gaps->n_ends, sizeof *ends);
    if (!ends) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the ends of %u steps", gaps->n_ends + 1);
    gaps->ends = ends;
    uint32_t scope = 0;
    lb_output_distance_end end = {
        .program = program, .output = lb_step_end_output(program, &scope), .loss = lb_step_end_loss(program)};
    end.layer = end.output.value == LB_NONE ? "" : lb_program_text(program, program->scopes[scope].path);
    end.output_row = lb_output_distance_want(gaps, program, end.output.value, end.output.before);
    end.loss_row = lb_output_distance_want(gaps, program, end.loss.value, end.loss.before);
    ends[gaps->n_ends++] = end;
    return LB_OK;
}

bool lb_output_distance_recorded(const lb_output_distance *gaps, const lb_program *program, uint32_t value,
                                 uint32_t row, lb_tensor *tensor)
{
    lb_err quiet = LB_ERR_INIT;
    if (gaps->capture && value != LB_NONE && lb_capture_value(gaps->capture, program, value, tensor, &quiet) == LB_OK)
        return true;
    const lb_tensor *seen = lb_snapshots_of(&gaps->reference, row);
    if (seen) *tensor = *seen;
    return seen != NULL;
}

static double relative_distance(const lb_tensor *x, const lb_tensor *y)
{
    const int64_t n = lb_layout_numel(&x->layout);
    if (n != lb_layout_numel(&y->layout)) return NAN;
    double gap = 0, norm = 0, *a = lb_expert_flip_scores(x), *b = lb_expert_flip_scores(y);
    for (int64_t i = 0; a && b && i < n; i++) {
        if (a[i] == b[i] && isinf(b[i])) continue; /* masked on both sides */
        gap += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
    }
    const bool known = a && b && (norm > 0 || gap == 0);
    free(a), free(b);
    return !known ? NAN : gap > 0 || isnan(gap) ? sqrt(gap / norm) : 0;
}

static double measure(const lb_output_distance *gaps, const lb_program *program, lb_step_end end, uint32_t row)
{
    lb_tensor then;
    const lb_tensor *now = lb_snapshots_of(&gaps->current, row);
    const lb_routing_other *other = gaps->other;
    if (!now || end.value == LB_NONE) return NAN;
    const bool known = other ? other->value(other->context, program, end.value, &then)
                             : lb_output_distance_recorded(gaps, program, end.value, row, &then);
    return known ? relative_distance(now, &then) : NAN;
}

void lb_output_distance_measure(const lb_output_distance *gaps, uint32_t end, double *output, double *loss)
{
    const lb_output_distance_end *place = &gaps->ends[end];
    *output = measure(gaps, place->program, place->output, place->output_row);
    *loss = measure(gaps, place->program, place->loss, place->loss_row);
}

void lb_output_distance_release(lb_output_distance *gaps)
{
    lb_snapshots_release(&gaps->reference);
    lb_snapshots_release(&gaps->current);
    free(gaps->ends);
}

static bool has_rank(const lb_plan *plan, int32_t rank)
{
    for (uint32_t i = 0; i < plan->n_ranks; i++)
        if (plan->ranks[i] == rank) return true;
    return !plan->ranks;
}

lb_status lb_output_distance_each_window(lb_capture *capture, const lb_plan *plan,
                                         lb_status (*visit)(void *context, const lb_program *program, lb_err *err),
                                         void *context, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    for (uint32_t r = 0; r < n_ranks; r++)
        for (uint32_t s = 0; has_rank(plan, ranks[r]) && s < n_steps; s++) {
            const lb_program *program;
            if (steps[s] < plan->first_step || steps[s] > plan->last_step) continue;
            const lb_status status = lb_capture_program(capture, ranks[r], steps[s], &program, err);
            if (status == LB_ERR_NOT_FOUND)
                lb_err_clear(err);
            else if (status != LB_OK)
                return status;
            else
                LB_TRY(visit(context, program, err));
        }
    return LB_OK;
}
