/* The op behind which numbers are not finite on one side only: see diff_nonfinite.h. */
#include "diff/diff_nonfinite.h"

#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"

#include <lastbit/statistics.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By the recorded statistics, or else by what was kept; what is not known is finite. */
static bool is_bad(const lb_program_view *side, uint32_t value)
{
    const lb_program *program = side->program;
    lb_tensor t;
    if (value == LB_NONE || !lb_dtype_is_float(program->values[value].dtype)) return false;
    if (program->values[value].statistics != LB_NONE)
        return lb_statistics_nonfinite(&program->statistics[program->values[value].statistics]) > 0;
    if (lb_program_view_value(side, value, &t, NULL) != LB_OK) return false;
    const lb_statistics statistics = lb_statistics_of(&t);
    return lb_statistics_nonfinite(&statistics) > 0;
}

static bool gives_bad(const lb_program_view *side, uint32_t op)
{
    const lb_op *o = &side->program->ops[op];
    for (uint32_t i = 0; i < lb_op_outcomes(o); i++)
        if (is_bad(side, lb_op_outcome(side->program, o, i))) return true;
    return false;
}

/* From an op that gives such numbers back to one that reads none. Masks hold infinities by intent: what reads nothing
 * else bad than what a fill made is itself asked whether it is bad. */
static uint32_t origin_of(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program_view *view = side ? walk->b : walk->a;
    const lb_slice_flow *flow = walk->merged.flows[side];
    for (bool more = true; more;) {
        more = false;
        for (uint32_t k = flow->first_def[op]; k < flow->first_def[op + 1] && !more; k++) {
            if (flow->defs[k] >= op || !gives_bad(view, flow->defs[k])) continue;
            op = flow->defs[k], more = true;
        }
    }
    return op;
}

static bool is_source(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    return lb_op_is_source(program, &program->ops[op]);
}

/* `op`: of the side that is not finite. What came in so is judged as a source. */
static void report(lb_diff_walk *walk, int side, uint32_t op)
{
    const uint32_t origin = origin_of(walk, side, op);
    const uint32_t partner = side ? walk->alignment.a_of_b[origin] : walk->alignment.b_of_a[origin];
    char why[160];
    if (is_source(walk, side, origin)) return;
    lb_diff_row row = side ? lb_diff_walk_row(walk, partner, origin) : lb_diff_walk_row(walk, origin, partner);
    const lb_program *program = lb_diff_walk_side(walk, side);
    row.layer = lb_report_keep(walk->report, lb_op_layer(program, &program->ops[origin]));
    row.op = lb_report_keep(walk->report, lb_op_name(program, &program->ops[origin]));
    lb_place_order(walk, &row);
    row.local = row.verdict = LB_VERDICT_DIVERGED;
    snprintf(why, sizeof why, "gives numbers that are not finite on the %s side only, and they leave the step",
             (side == 0) != walk->swapped ? "first" : "second");
    row.why = lb_report_keep(walk->report, why);
    lb_diff_rows_report(walk, &row);
}

static void compare(lb_diff_walk *walk, uint32_t op_a, uint32_t value_a, uint32_t op_b, uint32_t value_b)
{
    const bool a = is_bad(walk->a, value_a), b = is_bad(walk->b, value_b);
    if (a == b) return;
    report(walk, b, b ? op_b : op_a);
}

void lb_diff_nonfinite(lb_diff_walk *walk)
{
    for (uint32_t e = 0; e < walk->exits.n; e++) {
        const lb_step_output *exit = &walk->exits.list[e];
        if (!exit->input) compare(walk, exit->op[0], exit->value[0], exit->op[1], exit->value[1]);
    }
    for (uint32_t f = 0; f < walk->shadows.n_finals; f++) {
        const lb_shadow_final *final = &walk->shadows.finals[f];
        for (uint32_t k = 0; k < final->parts; k++) {
            const lb_shadow_part *part = &walk->shadows.final_parts[final->first + k];
            compare(walk, final->whole.op, final->whole.value, part->op, part->value);
        }
    }
}
