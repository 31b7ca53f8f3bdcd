/* The walk of a diff: see diff_walk.h.
 *
 * Storages carry taints (taint.h) from op to op. An op whose shadows disagree although none of its inputs was apart made
 * the difference itself; everything behind it inherits.
 */
#include "diff_walk.h"

#include "diff_flow.h"
#include "diff_judge.h"
#include "diff_order.h"
#include "diff_values.h"
#include "narrowing.h"
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whatever made it, such a difference is no finding; but for bits that no run of this op can give. */
static void call_noise(const lb_walk *w, lb_diff_row *row, bool bad_bits)
{
    if (row->local == LB_VERDICT_IDENTICAL || bad_bits) return;
    row->local = LB_VERDICT_NOISE;
    row->why = w->noise.runs == 1 ? "no more than another run of the first side differs by"
                                  : "no more than other runs of the first side differ by";
}

static lb_diff_row row_of(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    lb_diff_row row = {.step = w->pa->step,
                       .rank = w->pa->rank,
                       .phase = (lb_phase)op->phase,
                       .index = ia,
                       .other = w->alignment.b_of_a[ia] != LB_NONE ? w->alignment.b_of_a[ia]
                                                                   : w->alignment.source_b_of_a[ia],
                       .bound_ratio = NAN,
                       .why = "",
                       .difference = {.cosine = 1, .first = -1}};
    uint32_t join = w->alignment.join_of_a[ia];
    if (join != LB_NONE) row.other = w->alignment.joins.part_ops[w->alignment.joins.list[join].first];
    row.layer = lb_report_keep(w->report, lb_op_layer(w->pa, op));
    row.op = lb_report_keep(w->report, lb_op_name(w->pa, op));
    return row;
}

/* Of the first side, by its place in one program. */
static lb_diff_row turned_row(const lb_walk *w, const lb_diff_row *row)
{
    lb_diff_row turned = *row;
    uint32_t ops[] = {row->index, row->other};
    int32_t ranks[2];
    const lb_side *sides[] = {w->a, w->b};
    const uint32_t part_a = lb_side_part_of(w->a, row->index);
    for (int k = 0; k < 2; k++) {
        /* Who has no such op speaks for the parts that stand for the other's. */
        const uint32_t part = k == 0              ? part_a
                              : ops[k] == LB_NONE ? part_a * (w->b->n_parts / w->a->n_parts)
                                                  : lb_side_part_of(w->b, ops[k]);
        const lb_side_part *of = &sides[k]->parts[part];
        if (ops[k] != LB_NONE) ops[k] -= of->first_op;
        ranks[k] = of->program->rank;
    }
    turned.index = ops[w->swapped], turned.rank = ranks[w->swapped];
    turned.other = ops[!w->swapped], turned.other_rank = ranks[!w->swapped];
    return turned;
}

void lb_walk_report(const lb_walk *w, const lb_diff_row *row)
{
    const lb_diff_row turned = turned_row(w, row);
    lb_report_row(w->report, &turned);
}

static void report_layer(const lb_walk *w, const lb_diff_row *row)
{
    const lb_diff_row turned = turned_row(w, row);
    lb_report_layer(w->report, &turned);
}

/* ---- collectives ---- */

static const lb_op *partner_of(const lb_walk *w, uint32_t ia)
{
    return w->alignment.b_of_a[ia] == LB_NONE ? NULL : &w->pb->ops[w->alignment.b_of_a[ia]];
}

/* What a collective gives to one member, all of them have brought. */
static void meet(lb_walk *w, const lb_meeting *meeting)
{
    w->brought = (lb_inflow){LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, false, false, false, LB_NONE};
    for (uint32_t k = 0; k < meeting->n; k++) {
        const uint32_t member = w->meetings.ops[meeting->first + k];
        const lb_inflow in = lb_flow_in(w, &w->pa->ops[member], partner_of(w, member));
        lb_inflow_add(&w->brought, &in);
    }
}

static lb_inflow inflow_of(lb_walk *w, uint32_t ia, const lb_op *b)
{
    if (w->meetings.of_op && w->meetings.of_op[ia] != LB_NONE) return w->brought;
    return lb_flow_in(w, &w->pa->ops[ia], b);
}

/* ---- sources ---- */

static void walk_source(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    uint32_t va = lb_op_results(w->pa, op)[0];
    const lb_value *value = &w->pa->values[va];
    lb_taint *t = lb_taint_of(w->storages, value->storage);
    bool paired = w->alignment.source_b_of_a[ia] != LB_NONE || w->alignment.join_of_a[ia] != LB_NONE;
    w->report->sources += paired;
    if (!lb_walk_source_differs(w, ia)) {
        w->report->sources_identical += paired;
        /* Sources of the other side that have no partner are structure; equal ones clear what the storage held. */
        *t = LB_TAINT_CLEAN(t->storage);
        return;
    }
    uint32_t ib = w->alignment.source_b_of_a[ia], join = w->alignment.join_of_a[ia];
    lb_verdict before = lb_report_worse(t->verdict, t->carried);
    bool carried = value->source == LB_SOURCE_CARRIED && before != LB_VERDICT_IDENTICAL;
    bool made = value->source == LB_SOURCE_OTHER && w->decided != LB_VERDICT_IDENTICAL;
    bool precision = ib != LB_NONE && lb_walk_same_rounded(w, va, lb_op_results(w->pb, &w->pb->ops[ib])[0]);
    lb_diff_row row = row_of(w, ia);
    const char *name = lb_program_text(w->pa, value->name);
    if (*name) row.layer = lb_report_keep(w->report, name), row.value = true;
    row.local = carried || made ? LB_VERDICT_IDENTICAL : precision ? LB_VERDICT_ROUNDING : LB_VERDICT_DIVERGED;
    row.inherited = carried ? before : made ? w->decided : LB_VERDICT_IDENTICAL;
    row.verdict = lb_report_worse(row.local, row.inherited);
    const char *format = carried     ? "%s%s came out of the step before differently"
                         : made      ? "%s%s was made in Python after numbers that differ had been read"
                         : precision ? "%s%s is the other side's value rounded to a narrower dtype"
                                     : "%s%s is not the same on both sides";
    if (value->source == LB_SOURCE_CARRIED && !carried)
        format = "%s%s: the step before left it the same on both sides, and something wrote it since";
    char why[200];
    snprintf(why, sizeof why, format, lb_source_kind_name((lb_source_kind)value->source),
             *name ? "" : " input");
    row.why = lb_report_keep(w->report, why);
    bool inside_noise = join != LB_NONE ? lb_walk_measure_join(w, &w->alignment.joins.list[join], &row)
                                        : lb_walk_measure_pair(w, ia, ib, &row);
    if (inside_noise) call_noise(w, &row, false);
    row.verdict = lb_report_worse(row.local, row.inherited);
    lb_walk_report(w, &row);
    *t = LB_TAINT_CLEAN(t->storage);             /* the shadows start from one side's numbers … */
    t->carried = row.verdict;                    /* … and so can't say what follows from this */
    t->apart = !lb_dtype_is_float(value->dtype); /* but whole numbers each side keeps */
}

/* ---- pairs ---- */

/* Is an outcome that differs an integer or a bool? */
static bool decides(const lb_walk *w, const lb_op *a, const lb_op *b, bool joined)
{
    for (uint32_t i = 0; i < lb_outcomes(a) && joined; i++) {
        uint32_t v = lb_outcome(w->pa, a, i);
        if (v != LB_NONE && lb_dtype_is_integer(lb_dtype_part(w->pa->values[v].dtype))) return true;
    }
    if (joined) return false;
    if (lb_outcomes(a) != lb_outcomes(b)) return false;
    for (uint32_t i = 0; i < lb_outcomes(a); i++) {
        uint32_t va = lb_outcome(w->pa, a, i), vb = lb_outcome(w->pb, b, i);
        if (va != LB_NONE && lb_walk_value_differs(w, va, vb) &&
            lb_dtype_is_integer(lb_dtype_part(w->pa->values[va].dtype)))
            return true;
    }
    return false;
}

static lb_evidence evidence_of(const lb_walk *w, uint32_t ia, uint32_t ib, const lb_inflow *in)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    lb_evidence e = {.inputs_differ = in->differ, .inputs_apart = in->apart, .replayed = w->have_shadows};
    const uint32_t join = w->alignment.join_of_a[ia];
    e.same_args =
        lb_op_same_args(w->pa, a, w->pb, b, join == LB_NONE ? 0 : w->alignment.joins.list[join].parts);
    e.swapped = w->swapped;
    e.args_follow = w->decided != LB_VERDICT_IDENTICAL;
    e.random = a->flags & LB_OP_RANDOM;
    e.decides = decides(w, a, b, w->alignment.join_of_a[ia] != LB_NONE);
    if (!w->have_shadows) return e;
    e.agreement = w->shadows.rows[ia].agreement;
    e.own[0] = w->shadows.rows[ia].own[0], e.own[1] = w->shadows.rows[ia].own[1];
    return e;
}

/* A layer may put its tokens into another order and back: what differs is judged where something leaves it. */
static bool is_inside(const lb_program *p, uint32_t op, uint32_t suspect)
{
    const char *path = lb_op_layer(p, &p->ops[op]), *outer = lb_op_layer(p, &p->ops[suspect]);
    size_t n = strlen(outer);
    return strncmp(path, outer, n) == 0 && (path[n] == '\0' || (n && path[n] == '.'));
}

/* A layer that the sides compute in other ops is judged by what leaves it: the row goes to its first op. */
static void judge_suspect(lb_walk *w, uint32_t suspect, lb_verdict local)
{
    if (w->settled[suspect] == LB_SETTLED && local != LB_VERDICT_DIVERGED) return;
    w->settled[suspect] = LB_SETTLED;
    lb_diff_row row = row_of(w, suspect);
    row.local = row.verdict = local;
    char why[240], narrowing[80] = "";
    if (local == LB_VERDICT_ROUNDING) lb_narrowing_text(w, suspect, narrowing, sizeof narrowing);
    snprintf(why, sizeof why, "this layer is computed in other ops on the two sides, and what leaves it %s%s",
             local == LB_VERDICT_DIVERGED  ? "differs in exact arithmetic too"
             : local == LB_VERDICT_MISSING ? "differs, and could not be run exactly: whether that is rounding cannot be told"
                                           : "is the same in exact arithmetic",
             narrowing);
    row.why = lb_report_keep(w->report, why);
    uint32_t partner = w->alignment.b_of_a[suspect];
    if (partner != LB_NONE)
        lb_walk_measure_pair(w, suspect, partner, &row);
    else if (w->alignment.join_of_a[suspect] != LB_NONE)
        lb_walk_measure_join(w, &w->alignment.joins.list[w->alignment.join_of_a[suspect]], &row);
    lb_walk_report(w, &row);
}

/* Exact values disagree and no input of the pair was seen to: where did that begin? */
static void explain_disagreement(lb_walk *w, const lb_evidence *e, lb_inflow *in)
{
    if (e->agreement != LB_SHADOW_DISAGREES || in->apart) return;
    if (in->flipped) { /* a decision that rounding changed: the sides went on with other experts, other tokens */
        in->apart = true, in->verdict = lb_report_worse(in->verdict, LB_VERDICT_ROUNDING);
    } else if (!e->same_args && w->decided != LB_VERDICT_IDENTICAL) {
        in->apart = true, in->verdict = lb_report_worse(in->verdict, w->decided);
    } else if (in->suspect != LB_NONE) {
        judge_suspect(w, in->suspect, LB_VERDICT_DIVERGED);
        in->apart = true, in->verdict = LB_VERDICT_DIVERGED;
    }
}

static int64_t outcome_elements(const lb_walk *w, const lb_op *op)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < lb_outcomes(op); i++)
        if (lb_outcome(w->pa, op, i) != LB_NONE)
            n += lb_layout_numel(&w->pa->values[lb_outcome(w->pa, op, i)].layout);
    return n;
}

/* Both sides' bits come from the same inputs in an order that has a name. How many elements bear it out is said, for a
 * single one may do so by chance. */
static void note_order(lb_walk *w, uint32_t ia, lb_diff_row *row)
{
    const lb_reordering *r = w->reorderings ? &w->reorderings[ia] : NULL;
    if (!r || !r->order[0][0] || !r->order[1][0]) return;
    char why[240];
    int64_t n = outcome_elements(w, &w->pa->ops[ia]);
    snprintf(why, sizeof why,
             "the same terms in another order: the first side's bits are those of %s, the second's of %s (%lld "
             "element%s)",
             r->order[0], r->order[1], (long long)n, n == 1 ? "" : "s");
    row->why = lb_report_keep(w->report, why);
    row->local = LB_VERDICT_REORDERED;
}

/* Inside a layer that is computed in other ops: only an A/A failure is blamed on the op itself. */
static void walk_inside(lb_walk *w, uint32_t ia, const lb_evidence *e, lb_diff_row *row, const lb_inflow *in)
{
    uint32_t suspect = in->suspect;
    bool disagrees = e->agreement == LB_SHADOW_DISAGREES && !in->apart;
    bool flip = e->decides && in->differ && e->own[0] < LB_VERDICT_DIVERGED && e->own[1] < LB_VERDICT_DIVERGED;
    bool excused = disagrees && (flip || in->flipped);
    row->local = LB_VERDICT_ROUNDING;
    row->why = "inside a layer that the two sides compute in other ops";
    if (e->replayed && (e->own[0] == LB_VERDICT_DIVERGED || e->own[1] == LB_VERDICT_DIVERGED)) {
        row->local = LB_VERDICT_DIVERGED;
        row->why = "recorded bits lie outside this op's error bound from its own inputs";
    }
    /* The earliest op that disagrees is the best guess, should what leaves the layer disagree. */
    bool better =
        suspect == LB_NONE || (e->replayed && w->shadows.rows[suspect].agreement != LB_SHADOW_DISAGREES);
    if (disagrees && !excused && better) suspect = ia;
    row->inherited = lb_report_worse(in->verdict, in->carried);
    row->verdict = lb_report_worse(row->local, row->inherited);
    if (row->local == LB_VERDICT_DIVERGED) lb_walk_report(w, row);
    lb_taint left = {.verdict = lb_report_worse(row->local, in->verdict), .carried = in->carried};
    left.apart = in->apart || (excused && !flip), left.flipped = in->flipped || flip;
    left.suspect = suspect == LB_NONE ? ia : suspect;
    lb_flow_out(w, &w->pa->ops[ia], &left);
}

/* item() has no tensor result: what it read says whether Python saw other numbers. */
static void note_decision(lb_walk *w, const lb_inflow *in)
{
    w->decided = lb_report_worse(w->decided, lb_report_worse(in->verdict, in->carried));
}

/* Worth knowing: with other inputs these bits may part. */
static void note_other_args(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    char text[400];
    snprintf(text, sizeof text, "step %lld, %s, %s (op %u): other arguments, the same bits",
             (long long)w->pa->step, lb_op_layer(w->pa, op), lb_op_name(w->pa, op), ia);
    lb_report_finding(w->report, text);
}

/* Of a difference that is one of precision, which. */
static void name_types(lb_walk *w, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    char types[80], why[240];
    lb_narrowing_pair(w, ia, ib, types, sizeof types);
    if (!*types) return;
    snprintf(why, sizeof why, "%s%s", row->why, types);
    row->why = lb_report_keep(w->report, why);
}

/* An input has other bits, and nothing that was judged made them: ops that the other side has not, and that nobody can run. */
static bool is_unaccounted(const lb_evidence *e, const lb_inflow *in)
{
    return e->agreement == LB_SHADOW_UNKNOWN && e->replayed && in->differ && in->verdict == LB_VERDICT_IDENTICAL &&
           in->carried == LB_VERDICT_IDENTICAL && in->suspect == LB_NONE && !in->apart && !in->flipped && !e->decides;
}

static void walk_pair(lb_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    lb_diff_row row = row_of(w, ia);
    lb_inflow in = inflow_of(w, ia, b);
    w->report->ops++;
    if (a->flags & LB_OP_DECISION) note_decision(w, &in);
    if (!w->differs[ia]) {
        w->report->identical++;
        if (!w->alignment.irregular[ia] && !lb_op_same_args(w->pa, a, w->pb, b, 0)) note_other_args(w, ia);
        lb_flow_out(w, a, &LB_TAINT_CLEAN(0));
        report_layer(w, &row);
        return;
    }
    lb_evidence e = evidence_of(w, ia, ib, &in);
    const bool moved = e.agreement == LB_SHADOW_DISAGREES && !in.apart && in.suspect != LB_NONE &&
                       is_inside(w->pa, ia, in.suspect);
    if (w->alignment.irregular[ia] || moved) {
        walk_inside(w, ia, &e, &row, &in);
        return;
    }
    if (e.agreement == LB_SHADOW_UNKNOWN && in.suspect != LB_NONE && !w->settled[in.suspect])
        w->settled[in.suspect] = LB_AWAITED;
    explain_disagreement(w, &e, &in);
    e.inputs_apart = in.apart;
    if (e.agreement == LB_SHADOW_AGREES && in.suspect != LB_NONE)
        judge_suspect(w, in.suspect, LB_VERDICT_ROUNDING);
    row.local = lb_judge_pair(&e, &row.why);
    if (is_unaccounted(&e, &in) && row.local != LB_VERDICT_DIVERGED)
        row.local = LB_VERDICT_MISSING,
        row.why = "an input differs, made by ops that could not be run exactly: whether that is rounding cannot be told";
    if (row.local == LB_VERDICT_ROUNDING) name_types(w, ia, ib, &row);
    if (row.local == LB_VERDICT_ROUNDING && !in.differ) note_order(w, ia, &row);
    bool agrees = e.agreement == LB_SHADOW_AGREES,
         flip = e.decides && in.differ && row.local != LB_VERDICT_DIVERGED;
    /* Where exact values meet again, nothing worse than rounding is handed on of what this program made. */
    if (agrees && lb_report_badness(in.verdict) > lb_report_badness(LB_VERDICT_ROUNDING))
        in.verdict = LB_VERDICT_ROUNDING;
    row.inherited = lb_report_worse(in.verdict, in.carried);
    if (w->have_shadows)
        row.bound_ratio = fmax(w->shadows.rows[ia].bound_ratio[0], w->shadows.rows[ia].bound_ratio[1]);
    bool bad_bits = e.replayed && (e.own[0] == LB_VERDICT_DIVERGED || e.own[1] == LB_VERDICT_DIVERGED);
    if (lb_walk_measure_pair(w, ia, ib, &row)) call_noise(w, &row, bad_bits);
    row.verdict = lb_report_worse(row.local, row.inherited);
    lb_walk_report(w, &row);
    lb_taint left = {.verdict = lb_report_worse(row.local, in.verdict), .carried = in.carried};
    left.apart =
        (e.agreement == LB_SHADOW_DISAGREES && !flip) || (e.agreement == LB_SHADOW_UNKNOWN && in.apart);
    left.flipped = flip || (in.flipped && (!agrees || e.decides));
    left.suspect = e.agreement == LB_SHADOW_UNKNOWN ? in.suspect : LB_NONE;
    lb_flow_out(w, a, &left);
}

/* ---- joins ---- */

typedef struct count {
    uint32_t n;
} count;
static void count_input(void *context, uint32_t value)
{
    ((count *)context)->n += value != LB_NONE;
}

static lb_verdict judge_joined(const lb_walk *w, const lb_evidence *e, const lb_inflow *in, const lb_join *join,
                               const char **why)
{
    char text[160];
    bool wrong = e->own[0] == LB_VERDICT_DIVERGED || e->own[1] == LB_VERDICT_DIVERGED;
    bool exact = e->own[0] == LB_VERDICT_IDENTICAL && e->own[1] == LB_VERDICT_IDENTICAL && in->differ;
    *why = "recorded bits lie outside this op's error bound from its own inputs";
    if (wrong && e->replayed) return LB_VERDICT_DIVERGED;
    *why = "the random draws differ";
    if (e->random && !in->differ) return LB_VERDICT_DIVERGED;
    *why = "called with other arguments";
    if (!e->same_args && !e->args_follow && e->agreement != LB_SHADOW_AGREES) return LB_VERDICT_DIVERGED;
    const char *known =
        e->agreement == LB_SHADOW_AGREES ? ": in exact arithmetic both sides give the same" : "";
    snprintf(text, sizeof text, "one against %u of the other side put together%s", join->parts, known);
    *why = lb_report_keep(w->report, text);
    return exact || (e->decides && in->differ) ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
}

static void settle_joined(lb_walk *w, uint32_t ia, const lb_evidence *e, lb_inflow *in)
{
    if (e->agreement == LB_SHADOW_AGREES) {
        if (in->suspect != LB_NONE && !is_inside(w->pa, ia, in->suspect))
            judge_suspect(w, in->suspect, LB_VERDICT_ROUNDING);
        if (lb_report_badness(in->verdict) > lb_report_badness(LB_VERDICT_ROUNDING))
            in->verdict = LB_VERDICT_ROUNDING;
        in->suspect = LB_NONE, in->apart = false, in->flipped &= e->decides;
    }
    if (e->agreement != LB_SHADOW_DISAGREES || in->apart) return;
    if (in->suspect == LB_NONE && !in->flipped)
        in->suspect = ia;
    else if (in->flipped || !is_inside(w->pa, ia, in->suspect))
        explain_disagreement(w, e, in);
}

/* Whole numbers made of nothing (positions in a batch) count anew in each part. */
static bool counts_anew(const lb_walk *w, const lb_op *op)
{
    count inputs = {0};
    lb_op_each_input(w->pa, op, count_input, &inputs);
    for (uint32_t i = 0; i < lb_outcomes(op); i++) {
        uint32_t v = lb_outcome(w->pa, op, i);
        if (v != LB_NONE && lb_dtype_is_float(w->pa->values[v].dtype)) return false;
    }
    return inputs.n == 0 && !(op->flags & LB_OP_RANDOM);
}

static void walk_join(lb_walk *w, uint32_t ia, const lb_join *join)
{
    const lb_op *a = &w->pa->ops[ia];
    lb_diff_row row = row_of(w, ia);
    lb_inflow in = inflow_of(w, ia, NULL);
    w->report->ops++;
    if (a->flags & LB_OP_DECISION) note_decision(w, &in);
    if (!w->differs[ia] || counts_anew(w, a)) {
        w->report->identical++;
        lb_flow_out(w, a, &LB_TAINT_CLEAN(0));
        report_layer(w, &row);
        return;
    }
    lb_evidence e = evidence_of(w, ia, w->alignment.joins.part_ops[join->first], &in);
    bool flip = e.decides && in.differ;
    settle_joined(w, ia, &e, &in);
    row.local = judge_joined(w, &e, &in, join, &row.why);
    row.inherited = lb_report_worse(in.verdict, in.carried);
    if (lb_walk_measure_join(w, join, &row)) call_noise(w, &row, row.local == LB_VERDICT_DIVERGED);
    if (e.agreement == LB_SHADOW_DISAGREES && row.local != LB_VERDICT_DIVERGED && !in.apart)
        row.measured =
            false; /* the parts hold their tokens in another order: what that differs by says nothing */
    row.verdict = lb_report_worse(row.local, row.inherited);
    lb_walk_report(w, &row);
    lb_taint left = {
        .verdict = lb_report_worse(row.local, in.verdict), .carried = in.carried, .apart = in.apart};
    left.flipped = flip || in.flipped, left.suspect = in.suspect;
    lb_flow_out(w, a, &left);
}

/* ---- all of it ---- */

/* A write that the other side lacks explains the difference by itself. */
static const char *why_final(const lb_walk *w, const lb_shadow_final *final)
{
    const lb_alignment *al = &w->alignment;
    uint32_t a = final->whole.op;
    bool alone_a =
        lb_op_computes(w->pa, &w->pa->ops[a]) && al->b_of_a[a] == LB_NONE && al->join_of_a[a] == LB_NONE;
    const lb_op *alone_b = NULL;
    for (uint32_t k = 0; k < final->parts && !alone_b; k++) {
        uint32_t b = w->shadows.final_parts[final->first + k].op;
        if (lb_op_computes(w->pb, &w->pb->ops[b]) && al->a_of_b[b] == LB_NONE && al->join_of_b[b] == LB_NONE)
            alone_b = &w->pb->ops[b];
    }
    if (alone_a == (alone_b != NULL)) return "the optimizer updates it differently in exact arithmetic";
    const char *name = alone_a ? lb_op_name(w->pa, &w->pa->ops[a]) : lb_op_name(w->pb, alone_b);
    char text[160];
    snprintf(text, sizeof text, "%s writes it last, on the %s side only; exact values differ", name,
             alone_a == w->swapped ? "second" : "first");
    return lb_report_keep(w->report, text);
}

/* Parameters at the end of the step, whatever ops wrote them. */
static void judge_final(lb_walk *w, const lb_shadow_final *final, const lb_taint *t, lb_diff_row *row)
{
    lb_verdict before = lb_report_worse(t->verdict, t->carried);
    if (final->agreement == LB_SHADOW_AGREES) {
        row->local = LB_VERDICT_ROUNDING, row->inherited = t->carried;
        row->why = "in exact arithmetic both sides update it alike";
    } else if (final->agreement == LB_SHADOW_DISAGREES && (t->apart || t->flipped)) {
        row->local = LB_VERDICT_ROUNDING, row->inherited = before;
        row->why = t->apart ? "its gradient already differs in exact arithmetic"
                            : "a decision upstream was changed by rounding";
    } else if (final->agreement == LB_SHADOW_DISAGREES) {
        row->local = LB_VERDICT_DIVERGED, row->inherited = t->carried;
        row->why = why_final(w, final);
        if (t->suspect != LB_NONE)
            row->op = lb_report_keep(w->report, lb_op_name(w->pa, &w->pa->ops[t->suspect]));
    } else {
        row->inherited = before == LB_VERDICT_IDENTICAL ? LB_VERDICT_MISSING : before;
        row->why = "its update could not be replayed exactly";
    }
    row->verdict = lb_report_worse(row->local, row->inherited);
}

static void walk_finals(lb_walk *w)
{
    for (uint32_t f = 0; f < w->shadows.n_finals; f++) {
        const lb_shadow_final *final = &w->shadows.finals[f];
        const lb_value *v = &w->pa->values[final->whole.value];
        lb_taint *t = lb_taint_of(w->storages, v->storage);
        lb_diff_row row = row_of(w, final->whole.op);
        const char *name = lb_program_text(w->pa, v->name);
        if (*name) row.layer = lb_report_keep(w->report, name), row.value = true;
        judge_final(w, final, t, &row);
        if (lb_walk_measure_final(w, final, &row)) call_noise(w, &row, false);
        if (row.measured && row.difference.differing == 0) continue; /* put together, they are the same bits */
        row.verdict = lb_report_worse(row.local, row.inherited);
        lb_walk_report(w, &row);
        lb_verdict carried = t->carried;
        *t = LB_TAINT_CLEAN(t->storage);
        t->verdict = row.verdict, t->carried = carried, t->apart = final->agreement == LB_SHADOW_DISAGREES;
    }
}

/* Copies and constants are no suspects: the op that follows says more. */
static bool may_be_wrong(const lb_program *p, const lb_op *op)
{
    count inputs = {0};
    lb_op_each_input(p, op, count_input, &inputs);
    const char *name = lb_op_known_as(lb_op_name(p, op));
    return inputs.n && strcmp(name, "aten::clone") != 0 && strcmp(name, "aten::contiguous") != 0;
}

static void walk_alone(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    lb_inflow in = inflow_of(w, ia, NULL);
    if (op->flags & LB_OP_DECISION) note_decision(w, &in);
    lb_taint left = {.verdict = in.verdict, .carried = in.carried, .apart = in.apart, .flipped = in.flipped};
    left.suspect = in.suspect == LB_NONE && may_be_wrong(w->pa, op) ? ia : in.suspect;
    lb_flow_out(w, op, &left);
}

static void walk_op(lb_walk *w, uint32_t i)
{
    const lb_op *op = &w->pa->ops[i];
    if (op->flags & LB_OP_VIEW) return;
    if (w->alignment.b_of_a[i] != LB_NONE)
        walk_pair(w, i, w->alignment.b_of_a[i]);
    else if (strcmp(lb_op_name(w->pa, op), "lb::source") == 0 && op->results)
        walk_source(w, i);
    else if (w->alignment.join_of_a[i] != LB_NONE)
        walk_join(w, i, &w->alignment.joins.list[w->alignment.join_of_a[i]]);
    else
        walk_alone(w, i);
}

static lb_status walk_ranks(lb_walk *w, lb_err *err)
{
    LB_TRY(lb_meetings_find(w->a, &w->meetings, err));
    uint32_t *order = lb_diff_order(w->a, &w->meetings);
    if (!order) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w->pa->n_ops);
    for (uint32_t k = 0; k < w->pa->n_ops; k++) {
        const uint32_t number = w->meetings.of_op[order[k]];
        if (number != LB_NONE && w->meetings.ops[w->meetings.list[number].first] == order[k])
            meet(w, &w->meetings.list[number]);
        walk_op(w, order[k]);
    }
    free(order);
    return LB_OK;
}

lb_status lb_walk_program(lb_walk *w, lb_err *err)
{
    if (w->a->n_parts > 1)
        LB_TRY(walk_ranks(w, err));
    else
        for (uint32_t i = 0; i < w->pa->n_ops; i++) walk_op(w, i);
    for (uint32_t i = 0; i < w->pa->n_ops; i++)
        if (w->settled[i] == LB_AWAITED) judge_suspect(w, i, LB_VERDICT_MISSING);
    walk_finals(w);
    return LB_OK;
}
