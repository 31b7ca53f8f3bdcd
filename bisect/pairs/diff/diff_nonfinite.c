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
    const lb_program *p = side->program;
    lb_tensor t;
    if (value == LB_NONE || !lb_dtype_is_float(p->values[value].dtype)) return false;
    if (p->values[value].statistics != LB_NONE)
        return lb_statistics_nonfinite(&p->statistics[p->values[value].statistics]) > 0;
    if (lb_program_view_value(side, value, &t, NULL) != LB_OK) return false;
    const lb_statistics s = lb_statistics_of(&t);
    return lb_statistics_nonfinite(&s) > 0;
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
static uint32_t origin_of(const lb_diff_walk *w, int side, uint32_t op)
{
    const lb_program_view *s = side ? w->b : w->a;
    const lb_slice_flow *f = w->merged.flows[side];
    for (bool more = true; more;) {
        more = false;
        for (uint32_t k = f->first_def[op]; k < f->first_def[op + 1] && !more; k++) {
            if (f->defs[k] >= op || !gives_bad(s, f->defs[k])) continue;
            op = f->defs[k], more = true;
        }
    }
    return op;
}

static bool is_source(const lb_diff_walk *w, int side, uint32_t op)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    return lb_op_is_source(p, &p->ops[op]);
}

/* `op`: of the side that is not finite. What came in so is judged as a source. */
static void report(lb_diff_walk *w, int side, uint32_t op)
{
    const uint32_t origin = origin_of(w, side, op);
    const uint32_t partner = side ? w->alignment.a_of_b[origin] : w->alignment.b_of_a[origin];
    char why[160];
    if (is_source(w, side, origin)) return;
    lb_diff_row row = side ? lb_diff_walk_row(w, partner, origin) : lb_diff_walk_row(w, origin, partner);
    const lb_program *p = lb_diff_walk_side(w, side);
    row.layer = lb_report_keep(w->report, lb_op_layer(p, &p->ops[origin]));
    row.op = lb_report_keep(w->report, lb_op_name(p, &p->ops[origin]));
    lb_place_order(w, &row);
    row.local = row.verdict = LB_VERDICT_DIVERGED;
    snprintf(why, sizeof why, "gives numbers that are not finite on the %s side only, and they leave the step",
             (side == 0) != w->swapped ? "first" : "second");
    row.why = lb_report_keep(w->report, why);
    lb_diff_rows_report(w, &row);
}

static void compare(lb_diff_walk *w, uint32_t op_a, uint32_t value_a, uint32_t op_b, uint32_t value_b)
{
    const bool a = is_bad(w->a, value_a), b = is_bad(w->b, value_b);
    if (a == b) return;
    report(w, b, b ? op_b : op_a);
}

void lb_diff_nonfinite(lb_diff_walk *w)
{
    for (uint32_t e = 0; e < w->exits.n; e++) {
        const lb_step_output *exit = &w->exits.list[e];
        if (!exit->input) compare(w, exit->op[0], exit->value[0], exit->op[1], exit->value[1]);
    }
    for (uint32_t f = 0; f < w->shadows.n_finals; f++) {
        const lb_shadow_final *final = &w->shadows.finals[f];
        for (uint32_t k = 0; k < final->parts; k++) {
            const lb_shadow_part *part = &w->shadows.final_parts[final->first + k];
            compare(w, final->whole.op, final->whole.value, part->op, part->value);
        }
    }
}
