/* What leaves the step: see diff_leaving.h. */
#include "diff/diff_leaving.h"

#include "diff/diff_cuts.h"
#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"
#include "diff/lossy_cast.h"

#include <math.h>
#include <stdio.h>

/* A write that the other side lacks explains the difference by itself: that op is the place. */
static void describe_final(const lb_diff_walk *walk, const lb_shadow_final *final, lb_diff_row *row)
{
    const lb_alignment *al = &walk->alignment;
    const uint32_t a = final->whole.op;
    const bool alone_a =
        lb_op_computes(walk->pa, &walk->pa->ops[a]) && al->b_of_a[a] == LB_NONE && al->join_of_a[a] == LB_NONE;
    uint32_t alone_b = LB_NONE;
    for (uint32_t k = 0; k < final->parts && alone_b == LB_NONE; k++) {
        const uint32_t b = walk->shadows.final_parts[final->first + k].op;
        if (lb_op_computes(walk->pb, &walk->pb->ops[b]) && al->a_of_b[b] == LB_NONE && al->join_of_b[b] == LB_NONE)
            alone_b = b;
    }
    row->why = "it is updated differently in exact arithmetic";
    if (alone_a == (alone_b != LB_NONE)) return;
    const lb_program *p = alone_a ? walk->pa : walk->pb;
    const lb_op *op = &p->ops[alone_a ? a : alone_b];
    char text[160];
    row->op = lb_report_keep(walk->report, lb_op_name(p, op)), row->phase = (lb_phase)op->phase;
    if (!alone_a) row->other = alone_b;
    snprintf(text, sizeof text, "%s writes it last, on the %s side only; exact values differ", row->op,
             alone_a == walk->swapped ? "second" : "first");
    row->why = lb_report_keep(walk->report, text);
}

static const lb_divergence *divergence_of_sink(const lb_diff_walk *walk, const uint32_t *sink_rows, uint32_t row)
{
    for (uint32_t i = 0; i < walk->divergences.n; i++)
        if (walk->divergences.list[i].node == LB_NONE && sink_rows[walk->divergences.list[i].sink] == row)
            return &walk->divergences.list[i];
    return NULL;
}

/* Parameters at the end of the step, whatever ops wrote them. */
static void judge_final(lb_diff_walk *walk, uint32_t number, const lb_taint *taint, lb_diff_row *row)
{
    const lb_shadow_final *final = &walk->shadows.finals[number];
    const lb_verdict before = lb_verdict_worse(taint->verdict, taint->carried);
    const lb_divergence *divergence = divergence_of_sink(walk, walk->merged.sink_final, number);
    if (final->agreement == LB_SHADOW_AGREES) {
        row->local = LB_VERDICT_ROUNDING, row->inherited = taint->carried;
        row->why = "in exact arithmetic both sides update it alike";
    } else if (divergence && lb_place_is_unknown(walk, divergence, &row->why)) {
        row->local = LB_VERDICT_MISSING, row->inherited = taint->carried;
    } else if (divergence) {
        row->local = LB_VERDICT_DIVERGED, row->inherited = taint->carried;
        describe_final(walk, final, row);
        lb_place_final(walk, divergence, row);
    } else if (final->agreement == LB_SHADOW_DISAGREES) {
        row->local = LB_VERDICT_ROUNDING, row->inherited = walk->led;
        row->why = "what it is updated with already differs in exact arithmetic";
    } else {
        row->inherited = before == LB_VERDICT_IDENTICAL || final->cut != LB_NONE
                             ? lb_verdict_worse(before, LB_VERDICT_MISSING)
                             : before;
        row->why = "its update could not be replayed exactly";
    }
    row->verdict = lb_verdict_worse(row->local, row->inherited);
}

static void taint_final(lb_diff_walk *walk, const lb_shadow_final *final, lb_verdict verdict, lb_verdict carried,
                        uint32_t met)
{
    if (final->cut != LB_NONE) {
        lb_cuts_taint(walk, final, verdict, carried);
        return;
    }
    const int64_t a = walk->pa->values[final->whole.value].storage;
    for (uint32_t k = 0; k <= final->parts; k++) {
        const int64_t storage =
            k == 0 ? a : walk->pb->values[walk->shadows.final_parts[final->first + k - 1].value].storage;
        lb_taint *taint = lb_taint_of(&walk->storages[k > 0], storage);
        *taint = LB_TAINT_CLEAN(storage);
        taint->verdict = verdict, taint->carried = carried, taint->differs = verdict != LB_VERDICT_IDENTICAL,
        taint->met = met;
    }
}

static const char *name_of(const lb_diff_walk *walk, const lb_shadow_final *final)
{
    if (final->cut != LB_NONE) return walk->cuts.list[final->cut].name;
    return lb_program_text(walk->pa,
                           walk->pa->values[lb_op_results(walk->pa, &walk->pa->ops[final->sources[0]])[0]].name);
}

static void walk_finals(lb_diff_walk *walk)
{
    for (uint32_t number = 0; number < walk->shadows.n_finals; number++) {
        const lb_shadow_final *final = &walk->shadows.finals[number];
        const lb_value *v = &walk->pa->values[final->whole.value];
        const lb_taint taint = *lb_taint_of(&walk->storages[0], v->storage);
        if (final->cut != LB_NONE && final->agreement != LB_SHADOW_DISAGREES && !lb_cuts_leave_other_bits(walk, final))
            continue;
        lb_diff_row row = lb_diff_walk_own_row(walk, final->whole.op);
        row.order = walk->pa->n_ops; /* what is left at the end, where no op of the update is known to be the place */
        const char *name = name_of(walk, final);
        if (*name) row.layer = lb_report_keep(walk->report, name), row.value = true;
        judge_final(walk, number, &taint, &row);
        row.met = taint.met;
        if (final->cut == LB_NONE && lb_diff_values_measure_final(walk, final, &row))
            lb_diff_rows_call_noise(walk, &row, false);
        if (row.measured && row.difference.differing == 0) { /* put together, they are the same bits */
            taint_final(walk, final, LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, 0);
            continue;
        }
        row.verdict = lb_verdict_worse(row.local, row.inherited);
        lb_diff_rows_report(walk, &row);
        taint_final(walk, final, row.verdict, taint.carried, taint.met);
    }
}

static const char *why_exit(const lb_step_output *exit)
{
    if (exit->input) return "what is decided by it differs in exact arithmetic";
    if (exit->logged) return "a number that the program logs or reads differs in exact arithmetic";
    if (exit->loss) return "the number that forward ends with differs in exact arithmetic";
    if (exit->name) return "what the step leaves in it differs in exact arithmetic";
    return exit->other_shape ? "the result of the outermost call has another shape"
                             : "the result of the outermost call differs in exact arithmetic";
}

static void judge_exit(lb_diff_walk *walk, const lb_step_output *exit, const lb_divergence *divergence,
                       lb_diff_row *row)
{
    if (divergence && lb_place_is_unknown(walk, divergence, &row->why)) {
        row->local = LB_VERDICT_MISSING;
    } else if (exit->by_place && exit->agreement != LB_SHADOW_AGREES) {
        row->local = LB_VERDICT_MISSING;
        row->why =
            "the outermost modules are of different classes, or return different numbers of results: which result "
            "stands beside which is not known";
    } else if (divergence) {
        row->local = LB_VERDICT_DIVERGED, row->why = why_exit(exit);
        lb_place_final(walk, divergence, row);
    } else if (exit->agreement == LB_SHADOW_AGREES) {
        row->local = LB_VERDICT_ROUNDING;
        walk->report->rewritten += !exit->other_shape;
        row->why = exit->other_shape
                       ? "given more rows on one side; those that both have are the same in exact arithmetic"
                       : "made by other ops; in exact arithmetic the same";
        lb_lossy_casts_of(walk, exit->op, exit->value);
    } else if (exit->other_shape && walk->have_shadows && !walk->divergences.n) {
        row->local = LB_VERDICT_ROUNDING;
        row->why = "of another shape; what the step leaves is the same in exact arithmetic";
    } else if (exit->other_shape || exit->agreement == LB_SHADOW_DISAGREES) {
        row->inherited = walk->led, row->why = "what it follows from already differs in exact arithmetic";
    } else {
        row->local = LB_VERDICT_MISSING,
        row->why = "the result of the outermost call differs, and could not be run exactly";
    }
    row->verdict = lb_verdict_worse(row->local, row->inherited);
}

/* Results of outermost calls, and what decisions rest on. Those that an aligned pair gave have their row already,
 * unless they are different parts of what it gave. */
static void walk_exits(lb_diff_walk *walk)
{
    for (uint32_t e = 0; e < walk->exits.n; e++) {
        const lb_step_output *exit = &walk->exits.list[e];
        const lb_divergence *divergence = divergence_of_sink(walk, walk->merged.sink_exit, e);
        if ((!exit->differs && !exit->other_shape) || (exit->input && !divergence)) continue;
        if (exit->logged && !divergence && walk->shadows.first_flip != LB_NONE)
            continue; /* the finding says that it differs */
        if (walk->alignment.b_of_a[exit->op[0]] == exit->op[1] && !divergence && walk->differs[exit->op[0]]) continue;
        lb_diff_row row = lb_diff_walk_row(walk, exit->op[0], exit->op[1]);
        if (exit->name && *exit->name) row.layer = lb_report_keep(walk->report, exit->name), row.value = true;
        row.inherited = lb_taint_of(&walk->storages[0], walk->pa->values[exit->value[0]].storage)->carried;
        judge_exit(walk, exit, divergence, &row);
        lb_diff_walk_measure_values(walk, exit->value[0], exit->value[1], &row);
        lb_diff_rows_report(walk, &row);
    }
}

/* ---- numbers that the program logged or read ---- */

/* Once per name: a run of a thousand steps logs a thousand losses. */
static void say_scalar(lb_diff_walk *walk, const lb_logged_scalar *scalar)
{
    char begin[200], text[600];
    const bool read = !strcmp(scalar->name, "item");
    const double first = scalar->numbers[walk->swapped], second = scalar->numbers[!walk->swapped];
    if (read)
        snprintf(begin, sizeof begin, "a number that the program read (.item()) differs: ");
    else
        snprintf(begin, sizeof begin, "the logged number %.100s differs: ", scalar->name);
    for (uint32_t i = 0; i < walk->report->n_findings; i++)
        if (!strncmp(walk->report->findings[i], begin, strlen(begin))) return;
    const int digits = (float)first != (float)second ? 9 : 17;
    snprintf(text, sizeof text, "%s%.*g and %.*g in step %lld, by %.2g%s", begin, digits, first, digits, second,
             (long long)walk->pa->step, second - first,
             scalar->op[0] == LB_NONE || scalar->op[1] == LB_NONE
                 ? "; it was computed outside the recorded ops, and whether both sides compute the same was not judged"
                 : "");
    lb_report_finding(walk->report, text);
}

/* A loss of thousands of terms in f32 is nearer. */
static bool are_apart(const lb_logged_scalar *scalar)
{
    const double x = scalar->numbers[0], y = scalar->numbers[1];
    return fabs(x - y) > 0x1p-14 * fmax(fabs(x), fabs(y));
}

/* Where ops of both sides gave it, their pair or an exit has the verdict. Else Python computed it, and all that is
 * known is that the bits differ: at least rounding. */
static void walk_scalars(lb_diff_walk *walk)
{
    const lb_aligned_views views = lb_diff_walk_views(walk);
    if (*walk->scalars.counts) lb_report_finding(walk->report, walk->scalars.counts);
    for (uint32_t i = 0; i < walk->scalars.n; i++) {
        const lb_logged_scalar *scalar = &walk->scalars.list[i];
        say_scalar(walk, scalar);
        walk->report->logged_apart |= are_apart(scalar);
        if (lb_logged_scalar_is_judged(scalar, &views) || scalar->seen[0] >= walk->pa->n_ops ||
            scalar->seen[1] >= walk->pb->n_ops)
            continue;
        lb_diff_row row = lb_diff_walk_row(walk, scalar->seen[0], scalar->seen[1]);
        row.order = walk->pa->n_ops, row.local = row.verdict = LB_VERDICT_ROUNDING;
        row.layer = lb_report_keep(walk->report, scalar->name), row.value = true;
        row.why = "a number that the program logs differs; it was computed outside the recorded ops, or by different "
                  "ones, and not judged";
        lb_diff_rows_report(walk, &row);
    }
}

/* Results without a reader, each side's by ops of its own (merged_steps.c). */
static void walk_lone_results(lb_diff_walk *walk)
{
    for (uint32_t i = 0; i < walk->divergences.n; i++) {
        const lb_divergence *o = &walk->divergences.list[i];
        if (o->node != LB_NONE || walk->merged.sink_final[o->sink] != LB_NONE ||
            walk->merged.sink_exit[o->sink] != LB_NONE)
            continue;
        const lb_sink *sink = &walk->merged.sinks[o->sink];
        if (sink->op[0] == LB_NONE || lb_place_is_unknown(walk, o, NULL)) continue;
        lb_diff_row row = lb_diff_walk_row(walk, sink->op[0], sink->op[1]);
        row.local = LB_VERDICT_DIVERGED, row.why = "computed by other ops, and in exact arithmetic not the same";
        lb_place_final(walk, o, &row);
        row.verdict = row.local;
        lb_diff_rows_report(walk, &row);
    }
}

void lb_diff_walk_leaving(lb_diff_walk *walk)
{
    walk_finals(walk), walk_exits(walk), walk_scalars(walk), walk_lone_results(walk);
}
