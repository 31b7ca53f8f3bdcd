/* The walk of a diff: see diff_walk.h.
 *
 * Storages carry taints (taint.h) from op to op, of both sides: A's ops are met in order, and before each aligned pair
 * what B alone runs before it. Where divergence.h says that a difference was made, the row goes to the op that makes
 * it, and everything behind it inherits.
 */
#include "diff/diff_walk.h"

#include "pair/collective_match.h"
#include "diff/diff_cuts.h"
#include "diff/diff_evidence.h"
#include "diff/diff_flow.h"
#include "diff/diff_leaving.h"
#include "diff/diff_nonfinite.h"
#include "diff/diff_order.h"
#include "diff/diff_place.h"
#include "diff/diff_reordered.h"
#include "diff/diff_rows.h"
#include "diff/diff_sources.h"
#include "diff/diff_values.h"
#include "diff/lossy_cast.h"
#include "diff/narrowing.h"
#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers that Python read ---- */

static bool read_number(const lb_program_view *side, uint32_t op, double *number, bool *integer)
{
    const lb_program *p = side->program;
    const lb_arg *args = lb_op_args(p, &p->ops[op]);
    lb_tensor t;
    if (!p->ops[op].args || args[0].tag != LB_ARG_VALUE) return false;
    if (lb_program_view_value(side, args[0].u.value, &t, NULL) != LB_OK || lb_layout_numel(&t.layout) != 1)
        return false;
    if (lb_dtype_is_complex(t.dtype)) return false;
    *integer = !lb_dtype_is_float(t.dtype);
    return lb_shadow_numbers(&t, number) == 1;
}

/* item() has no tensor result: what it read says whether Python saw other numbers, and how far apart they were. */
static void note_decision(lb_diff_walk *walk, uint32_t ia, const lb_diff_flow_source *in)
{
    lb_read_numbers *read = &walk->past->read;
    const uint32_t ib = walk->alignment.b_of_a[ia];
    double a, b;
    bool integer;
    if (!in->differ) return;
    read->verdict = lb_verdict_worse(read->verdict, lb_verdict_worse(in->verdict, in->carried));
    if (in->met > read->met) read->met = in->met;
    if (ib == LB_NONE || !read_number(walk->a, ia, &a, &integer) || !read_number(walk->b, ib, &b, &integer)) {
        read->integers = true, read->ratio = fmax(read->ratio, 1);
        return;
    }
    read->integers |= integer && a != b;
    if (!integer && isfinite(a) && isfinite(b) && a != b)
        read->ratio = fmax(read->ratio, fabs(a - b) / fmax(fabs(a), fabs(b)));
}

/* ---- layers in different ops ---- */

/* What leaves a layer that the sides compute in different ops is the same in exact arithmetic, or cannot be told: the
 * row goes to its first op. */
static void settle_lone(lb_diff_walk *walk, const lb_diff_flow_source *in, lb_verdict verdict)
{
    const uint32_t a = in->lone[0], b = in->lone[1];
    const uint32_t slot = a != LB_NONE ? a : walk->pa->n_ops + b;
    if (a == LB_NONE && b == LB_NONE) return;
    if (walk->settled[slot] & LB_SETTLED_REWRITE) return;
    walk->settled[slot] |= LB_SETTLED_REWRITE;
    lb_diff_row row = lb_diff_walk_row(walk, a, a == LB_NONE ? b : LB_NONE);
    char why[240], narrowing[80] = "";
    row.local = row.verdict = verdict;
    walk->report->rewritten += verdict == LB_VERDICT_ROUNDING;
    if (verdict == LB_VERDICT_ROUNDING)
        lb_narrowing_text(walk, row.layer, (uint8_t)row.phase, narrowing, sizeof narrowing);
    snprintf(why, sizeof why, "this layer is computed in other ops on the two sides, and what leaves it %s%s",
             verdict == LB_VERDICT_MISSING
                 ? "differs, and could not be run exactly: whether that is rounding cannot be told"
                 : "is the same in exact arithmetic",
             narrowing);
    row.why = lb_report_keep(walk->report, why);
    lb_diff_rows_report(walk, &row);
}

static bool has_lone(const lb_diff_flow_source *in)
{
    return in->lone[0] != LB_NONE || in->lone[1] != LB_NONE;
}

/* Where exact values meet again, nothing worse than rounding is handed on of what this program made; and what ops of
 * one side alone made is rounding. */
static void meet_again(lb_diff_flow_source *in)
{
    if (lb_verdict_severity(in->verdict) > lb_verdict_severity(LB_VERDICT_ROUNDING)) in->verdict = LB_VERDICT_ROUNDING;
    if (has_lone(in)) in->verdict = lb_verdict_worse(in->verdict, LB_VERDICT_ROUNDING);
}

/* ---- pairs ---- */

/* Worth knowing: with different inputs these bits may part. */
static void note_other_args(lb_diff_walk *walk, uint32_t ia)
{
    const lb_op *op = &walk->pa->ops[ia];
    char text[400];
    snprintf(text, sizeof text, "step %lld, %s, %s: other arguments, the same bits", (long long)walk->pa->step,
             lb_op_layer(walk->pa, op), lb_op_name(walk->pa, op));
    lb_report_finding(walk->report, text);
}

/* Of a difference that is one of precision, which. */
static void name_types(lb_diff_walk *walk, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    char types[80], why[240];
    lb_narrowing_pair(walk, ia, ib, types, sizeof types);
    if (!*types) return;
    snprintf(why, sizeof why, "%s%s", row->why, types);
    row->why = lb_report_keep(walk->report, why);
}

/* Did an op that computes something, and that the other side has not, lead here? */
static bool follows_lone(const lb_diff_walk *walk, const lb_diff_flow_source *in)
{
    for (int side = 0; side < 2; side++)
        if (in->lone[side] != LB_NONE && walk->merged.may_differ[side][in->lone[side]] == LB_BLAME_OP) return true;
    return false;
}

/* An input has different bits, and nothing that was judged made them, or not all of them: ops that the other side has
 * not, and that neither side can run. That something else before them was rounding says nothing of these. */
static bool is_unaccounted(const lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence,
                           const lb_diff_flow_source *in)
{
    if (evidence->agreement != LB_SHADOW_UNKNOWN || !evidence->replayed || !in->differ || evidence->decides)
        return false;
    if (in->verdict == LB_VERDICT_IDENTICAL && in->carried == LB_VERDICT_IDENTICAL) return true;
    return follows_lone(walk, in) && !walk->shadows.over_memory && !walk->shadows.rows[ia].other_counts &&
           evidence->own[0] != LB_VERDICT_OPAQUE && evidence->own[1] != LB_VERDICT_OPAQUE;
}

/* What a collective whose other members were not recorded gives follows from them, too. */
static bool waits_for_others(const lb_diff_walk *walk, uint32_t ia)
{
    return walk->pa->ops[ia].flags & LB_OP_COLLECTIVE &&
           (!walk->collective_matches[0].of_op || walk->collective_matches[0].of_op[ia] == LB_NONE);
}

/* Rows of tokens that a choice sent elsewhere: the shadows go on from one side's. */
static void note_flipped_rows(const lb_diff_walk *walk, uint32_t ia, lb_diff_row *row)
{
    const long long n = walk->have_shadows ? walk->shadows.rows[ia].flipped : 0;
    char why[240];
    if (!n || row->local == LB_VERDICT_DIVERGED) return;
    snprintf(why, sizeof why, "%s, but for %lld row%s that follow%s from a different choice", row->why, n,
             n == 1 ? "" : "s", n == 1 ? "s" : "");
    row->why = lb_report_keep(walk->report, why);
}

static void judge_local(lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence, const lb_diff_flow_source *in,
                        lb_diff_row *row)
{
    row->local = lb_diff_verdict_of_pair(evidence, &row->why);
    note_flipped_rows(walk, ia, row);
    if (is_unaccounted(walk, ia, evidence, in) && row->local != LB_VERDICT_DIVERGED)
        row->local = LB_VERDICT_MISSING,
        row->why =
            "an input differs, made by ops that could not be run exactly: whether that is rounding cannot be told";
    if (waits_for_others(walk, ia) && row->local != LB_VERDICT_DIVERGED && !in->differ)
        row->local = LB_VERDICT_MISSING, row->why = "what the other ranks brought to it was not recorded";
    if (row->local == LB_VERDICT_ROUNDING) name_types(walk, ia, lb_diff_rows_partner(walk, ia), row);
    if (row->local == LB_VERDICT_ROUNDING && !in->differ) lb_diff_reordered_found(walk, ia, row);
    if (row->local == LB_VERDICT_ROUNDING && !in->differ) lb_diff_reordered_told(walk, ia, evidence, row);
}

/* A number that both shadows take over ends what was made, and begins what came in. */
static bool is_taken_over(const lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence)
{
    const uint32_t ib = walk->alignment.b_of_a[ia];
    if (ib == LB_NONE || evidence->agreement == LB_SHADOW_DISAGREES) return false;
    if (walk->collective_matches[0].of_op && walk->collective_matches[0].of_op[ia] != LB_NONE) return false;
    return evidence->decides || evidence->random || waits_for_others(walk, ia) ||
           !lb_replay_knows(lb_op_name(walk->pa, &walk->pa->ops[ia]));
}

static lb_diff_flow_source left_by(const lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence,
                                   const lb_diff_flow_source *in, lb_verdict local)
{
    lb_diff_flow_source left = {lb_verdict_worse(local, in->verdict), in->carried, true, {LB_NONE, LB_NONE}, in->met};
    if (evidence->agreement == LB_SHADOW_UNKNOWN) left.lone[0] = in->lone[0], left.lone[1] = in->lone[1];
    if (!is_taken_over(walk, ia, evidence)) return left;
    left.carried = lb_verdict_worse(left.carried, left.verdict);
    /* A flip that rounding made is rounding, whatever it leads to. */
    if (evidence->decides && local != LB_VERDICT_NOISE)
        left.carried = lb_verdict_worse(left.carried, LB_VERDICT_ROUNDING);
    return left;
}

/* Of a foreach op each element follows from its own inputs alone. */
static void flow_out_elements(lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence, lb_verdict local)
{
    const lb_op *a = &walk->pa->ops[ia];
    const uint32_t ib = walk->alignment.b_of_a[ia], n = lb_op_outcomes(a);
    const lb_diff_flow_source clean = LB_INFLOW_NONE;
    const uint32_t lists = a->written ? a->written : a->results;
    for (uint32_t i = 0; i < n; i++) {
        /* Lists that are written come one behind the other: parameters, then moments. */
        uint32_t length = lb_op_args(walk->pa, a)[0].tag == LB_ARG_LIST ? lb_op_args(walk->pa, a)[0].count : lists;
        lb_diff_flow_source in = lb_flow_in_all(walk, ia, length ? (int)(i % length) : (int)i);
        if (evidence->agreement == LB_SHADOW_AGREES) meet_again(&in);
        const lb_diff_flow_source left = left_by(walk, ia, evidence, &in, local);
        const uint32_t va = lb_op_outcome(walk->pa, a, i), vb = i < lb_op_outcomes(&walk->pb->ops[ib])
                                                                    ? lb_op_outcome(walk->pb, &walk->pb->ops[ib], i)
                                                                    : LB_NONE;
        const bool same = va != LB_NONE && vb != LB_NONE && !lb_digest_is_none(walk->pa->values[va].logical) &&
                          !lb_diff_walk_value_differs(walk, va, vb);
        lb_flow_out(walk, 0, ia, i, same ? &clean : &left);
        if (vb != LB_NONE) lb_flow_out(walk, 1, ib, i, same ? &clean : &left);
    }
}

/* What an op computes from memory that nothing wrote has none, and counts; fresh memory and windows on it do not. */
static bool has_digests(const lb_program *p, uint32_t op)
{
    const bool computes = !(p->ops[op].flags & (LB_OP_UNDEFINED | LB_OP_VIEW));
    for (uint32_t i = 0; i < lb_op_outcomes(&p->ops[op]); i++) {
        const uint32_t v = lb_op_outcome(p, &p->ops[op], i);
        if (v == LB_NONE || !lb_layout_numel(&p->values[v].layout)) continue;
        if (p->values[v].flags & LB_VALUE_UNDEFINED && !computes) continue;
        if (lb_digest_is_none(p->values[v].logical)) return false;
    }
    return true;
}

/* Were bits compared? Of results without digests (nothing had room to measure them, say) nothing is known. */
static bool was_seen(const lb_diff_walk *walk, uint32_t ia)
{
    const uint32_t ib = walk->alignment.b_of_a[ia], j = walk->alignment.join_of_a[ia];
    if (!has_digests(walk->pa, ia) || (ib != LB_NONE && !has_digests(walk->pb, ib))) return false;
    const lb_reassembly *join = j == LB_NONE ? NULL : &walk->alignment.joins.list[j];
    for (uint32_t k = 0; join && k < join->parts; k++)
        if (!has_digests(walk->pb, walk->alignment.joins.part_ops[join->first + k])) return false;
    return true;
}

static void walk_clean(lb_diff_walk *walk, uint32_t ia)
{
    const lb_diff_flow_source clean = LB_INFLOW_NONE;
    const lb_diff_row row = lb_diff_walk_own_row(walk, ia);
    if (was_seen(walk, ia))
        walk->report->identical++;
    else
        walk->report->unseen++;
    lb_flow_out_pair(walk, ia, &clean);
    lb_diff_rows_report_layer(walk, &row);
}

/* A pair by its place alone, of different numbers in exact arithmetic, from which nothing follows that leaves the step:
 * partial sums of an order that the sides do not share. How far apart they are says nothing; its layer is one that the
 * sides compute in different ops. */
static void note_other_numbers(lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence, lb_diff_row *row)
{
    if (evidence->agreement != LB_SHADOW_DISAGREES || evidence->leads || evidence->inputs_apart || evidence->decides ||
        row->local != LB_VERDICT_ROUNDING)
        return;
    row->measured = false;
    const lb_rewritten_layer here = {walk->pa->ops[ia].scope, walk->pa->ops[ia].phase,
                                     lb_program_view_part_of(walk->a, ia), true};
    const lb_rewritten_layer *last = &walk->rewritten;
    if (last->any && last->scope == here.scope && last->phase == here.phase && last->part == here.part) return;
    walk->rewritten = here;
    walk->report->rewritten++;
}

/* A collective whose other members are judged elsewhere. What it gives came from them, too: how bad that is will be
 * known, and it is no less than rounding. */
static void walk_exchange(lb_diff_walk *walk, uint32_t ia, const lb_diff_flow_source *in)
{
    lb_diff_exchanges *all = walk->past->exchanges;
    const lb_program *second;
    lb_diff_row row = lb_diff_walk_own_row(walk, ia);
    lb_diff_rows_measure(walk, ia, &row, true);
    const lb_diff_exchange exchange = {.row = lb_diff_rows_turned(walk, &row, &second),
                                       .given = in->differ,
                                       .differs = walk->differs[ia],
                                       .brought = lb_verdict_worse(in->verdict, in->carried),
                                       .met = in->met};
    lb_diff_exchange *list = lb_array_grow(all->list, all->n, sizeof *list);
    walk->storages[0].failed |= !list;
    if (list) all->list = list, all->list[all->n++] = exchange;
    const lb_diff_flow_source left = {LB_VERDICT_IDENTICAL, LB_VERDICT_ROUNDING, true, {LB_NONE, LB_NONE}, all->n};
    lb_flow_out_pair(walk, ia, &left);
}

static void walk_pair(lb_diff_walk *walk, uint32_t ia)
{
    const lb_op *a = &walk->pa->ops[ia];
    const uint32_t ib = walk->alignment.b_of_a[ia];
    lb_diff_flow_source in = lb_flow_in_all(walk, ia, LB_ALL_ELEMENTS);
    walk->report->ops++;
    if (walk->past->exchanges && waits_for_others(walk, ia) && (walk->differs[ia] || in.differ)) {
        walk_exchange(walk, ia, &in);
        return;
    }
    if (a->flags & LB_OP_DECISION) note_decision(walk, ia, &in);
    if (!walk->differs[ia] && !lb_diff_evidence_reaches_output(walk, ia)) {
        if (!walk->alignment.irregular[ia] && !lb_op_same_args(walk->pa, a, walk->pb, &walk->pb->ops[ib], 0))
            note_other_args(walk, ia);
        walk_clean(walk, ia);
        return;
    }
    lb_diff_row row = lb_diff_walk_own_row(walk, ia);
    const lb_evidence evidence = lb_diff_walk_evidence(walk, ia, &in);
    const lb_divergence *divergence = lb_diff_evidence_of_divergence(walk, ia);
    const bool bad_bits =
        evidence.replayed && (evidence.own[0] == LB_VERDICT_DIVERGED || evidence.own[1] == LB_VERDICT_DIVERGED);
    if (evidence.agreement == LB_SHADOW_AGREES) {
        meet_again(&in);
        settle_lone(walk, &in, LB_VERDICT_ROUNDING);
        if (has_lone(&in)) lb_lossy_casts_before(walk, ia);
    }
    judge_local(walk, ia, &evidence, &in, &row);
    if (divergence) lb_place_divergence(walk, divergence, ia, &evidence, &row);
    lb_cuts_judge(walk, &evidence, &row);
    if (evidence.leads && !divergence) in.verdict = lb_verdict_worse(in.verdict, walk->led);
    if (divergence && row.local != LB_VERDICT_DIVERGED) in.verdict = lb_verdict_worse(in.verdict, row.inherited);
    if (evidence.agreement == LB_SHADOW_UNKNOWN && row.local == LB_VERDICT_MISSING &&
        (in.lone[0] & in.lone[1]) != LB_NONE) {
        settle_lone(walk, &in, LB_VERDICT_MISSING);
        in.verdict = lb_verdict_worse(in.verdict, LB_VERDICT_MISSING);
    }
    row.inherited = lb_verdict_worse(in.verdict, in.carried), row.met = in.met;
    if (walk->have_shadows)
        row.bound_ratio = fmax(walk->shadows.rows[ia].bound_ratio[0], walk->shadows.rows[ia].bound_ratio[1]);
    lb_diff_rows_measure(walk, ia, &row, bad_bits || (divergence && row.local == LB_VERDICT_DIVERGED));
    if (!divergence) note_other_numbers(walk, ia, &evidence, &row);
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    lb_diff_rows_report(walk, &row);
    if (lb_op_is_over_lists(walk->pa, a) && !divergence) {
        flow_out_elements(walk, ia, &evidence, row.local);
        return;
    }
    const lb_diff_flow_source left = left_by(walk, ia, &evidence, &in, row.local);
    lb_flow_out_pair(walk, ia, &left);
}

/* ---- joins ---- */

static lb_verdict judge_joined(const lb_diff_walk *walk, const lb_evidence *evidence, const lb_diff_flow_source *in,
                               const lb_reassembly *join, const char **why)
{
    char text[160];
    bool wrong = evidence->own[0] == LB_VERDICT_DIVERGED || evidence->own[1] == LB_VERDICT_DIVERGED;
    bool exact = evidence->own[0] == LB_VERDICT_IDENTICAL && evidence->own[1] == LB_VERDICT_IDENTICAL && in->differ;
    *why = "recorded bits lie outside this op's error bound from its own inputs";
    if (wrong && evidence->replayed) return LB_VERDICT_DIVERGED;
    *why = "the random draws differ";
    if (evidence->random && !in->differ) return LB_VERDICT_DIVERGED;
    *why = "called with other arguments";
    const bool told = evidence->agreement == LB_SHADOW_DISAGREES
                          ? evidence->leads && !evidence->inputs_apart
                          : evidence->agreement == LB_SHADOW_UNKNOWN && !evidence->irregular;
    if (!evidence->same_args && !evidence->args_follow && told) return LB_VERDICT_DIVERGED;
    const char *known = evidence->agreement == LB_SHADOW_AGREES ? ": in exact arithmetic both sides give the same" : "";
    snprintf(text, sizeof text, "one against %u of the other side put together%s", join->parts, known);
    *why = lb_report_keep(walk->report, text);
    return exact || (evidence->decides && in->differ) ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
}

static void walk_join(lb_diff_walk *walk, uint32_t ia, const lb_reassembly *join)
{
    const lb_op *a = &walk->pa->ops[ia];
    lb_diff_flow_source in = lb_flow_in_all(walk, ia, LB_ALL_ELEMENTS);
    walk->report->ops++;
    if (a->flags & LB_OP_DECISION) note_decision(walk, ia, &in);
    if (!walk->differs[ia] || lb_op_counts_anew(walk->pa, a)) {
        walk_clean(walk, ia);
        return;
    }
    lb_diff_row row = lb_diff_walk_own_row(walk, ia);
    const lb_evidence evidence = lb_diff_walk_evidence(walk, ia, &in);
    const lb_divergence *divergence = lb_diff_evidence_of_divergence(walk, ia);
    if (evidence.agreement == LB_SHADOW_AGREES) {
        meet_again(&in);
        settle_lone(walk, &in, LB_VERDICT_ROUNDING);
    }
    row.local = judge_joined(walk, &evidence, &in, join, &row.why);
    if (divergence) lb_place_divergence(walk, divergence, ia, &evidence, &row);
    lb_cuts_judge(walk, &evidence, &row);
    if (evidence.leads && !divergence) in.verdict = lb_verdict_worse(in.verdict, walk->led);
    row.inherited = lb_verdict_worse(in.verdict, in.carried);
    lb_diff_rows_measure(walk, ia, &row, row.local == LB_VERDICT_DIVERGED);
    if (evidence.agreement == LB_SHADOW_DISAGREES && row.local != LB_VERDICT_DIVERGED && !evidence.leads)
        row.measured = false; /* the parts hold their tokens in another order: what that differs by says nothing */
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    lb_diff_rows_report(walk, &row);
    const lb_diff_flow_source left = left_by(walk, ia, &evidence, &in, row.local);
    lb_flow_out_pair(walk, ia, &left);
}

/* ---- ops of one side alone ---- */

static void walk_lone(lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program *p = lb_diff_walk_side(walk, side);
    lb_diff_flow_source in = LB_INFLOW_NONE;
    lb_flow_in(walk, side, op, LB_NONE, LB_ALL_ELEMENTS, &in);
    if (in.lone[side] == LB_NONE) in.lone[side] = op; /* casts as well: they round */
    in.differ = true;
    if (p->ops[op].flags & LB_OP_DECISION && side == 0) note_decision(walk, op, &in);
    lb_flow_out_all(walk, side, op, &in);
}

/* What B alone runs before `end`, in the part of that op. */
static void walk_before(lb_diff_walk *walk, uint32_t *at, uint32_t end)
{
    const lb_alignment *al = &walk->alignment;
    const uint32_t part = lb_program_view_part_of(walk->b, end);
    for (; at[part] < end; at[part]++) {
        const uint32_t op = at[part];
        const bool paired = al->a_of_b[op] != LB_NONE || al->join_of_b[op] != LB_NONE;
        if (!paired && lb_op_computes(walk->pb, &walk->pb->ops[op])) walk_lone(walk, 1, op);
    }
}

static void walk_before_partners(lb_diff_walk *walk, uint32_t *at, uint32_t ia)
{
    const lb_alignment *al = &walk->alignment;
    if (al->b_of_a[ia] != LB_NONE) walk_before(walk, at, al->b_of_a[ia]);
    if (al->join_of_a[ia] == LB_NONE) return;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
    for (uint32_t k = 0; k < join->parts; k++) walk_before(walk, at, al->joins.part_ops[join->first + k]);
}

/* Is it the same quantity as an op of B that is not its partner? Ops of one side alone may lead to either. */
static bool meets_another(const lb_diff_walk *walk, uint32_t ia)
{
    return walk->shadows.meets[0] && walk->shadows.meets[0][ia] != LB_NONE;
}

static void walk_op(lb_diff_walk *walk, uint32_t *at, uint32_t i)
{
    const lb_op *op = &walk->pa->ops[i];
    const lb_alignment *al = &walk->alignment;
    if (op->flags & LB_OP_VIEW) return;
    walk_before_partners(walk, at, i);
    if (al->b_of_a[i] != LB_NONE)
        walk_pair(walk, i);
    else if (lb_op_is_source(walk->pa, op))
        lb_diff_walk_source(walk, i);
    else if (al->join_of_a[i] != LB_NONE)
        walk_join(walk, i, &al->joins.list[al->join_of_a[i]]);
    else if (lb_op_computes(walk->pa, op))
        walk_lone(walk, 0, i);
    if (meets_another(walk, i)) lb_lossy_casts_before(walk, i);
}

static void walk_rest(lb_diff_walk *walk, uint32_t *at)
{
    for (uint32_t part = 0; part < walk->b->n_parts; part++) {
        const uint32_t end = part + 1 < walk->b->n_parts ? walk->b->parts[part + 1].first_op : walk->pb->n_ops;
        if (end) walk_before(walk, at, end - 1);
        if (end && at[part] == end - 1 && walk->alignment.a_of_b[end - 1] == LB_NONE &&
            walk->alignment.join_of_b[end - 1] == LB_NONE && lb_op_computes(walk->pb, &walk->pb->ops[end - 1]))
            walk_lone(walk, 1, end - 1);
    }
}

/* ---- all of it ---- */

static bool measure_extents(lb_diff_walk *walk, int side)
{
    const lb_program *p = lb_diff_walk_side(walk, side);
    const lb_slice_flow *f = walk->merged.flows[side];
    walk->extents[side] = calloc(f->n_storages + 1, sizeof(int64_t));
    for (uint32_t v = 0; walk->extents[side] && v < p->n_values; v++) {
        int64_t first, last;
        if (lb_layout_dense_range(&p->values[v].layout, &first, &last, NULL) != LB_OK) continue;
        if (last > walk->extents[side][f->storage_of[v]]) walk->extents[side][f->storage_of[v]] = last;
    }
    return walk->extents[side] != NULL;
}

static void forget_lone(lb_taints *t)
{
    for (uint32_t i = 0; i < t->by_storage.n; i++) t->rows[i].lone[0] = t->rows[i].lone[1] = LB_NONE;
}

static lb_status open_walk(lb_diff_walk *walk, uint32_t **at, lb_err *err)
{
    const lb_aligned_views views = lb_diff_walk_views(walk);
    LB_TRY(lb_merged_steps_make(&views, walk->differs, &walk->shadows, &walk->exits, &walk->merged, err));
    LB_TRY(lb_divergences_find(&walk->merged.merged, &walk->divergences, err));
    walk->divergence_of = malloc((walk->merged.merged.n_nodes + 1) * sizeof *walk->divergence_of);
    *at = malloc((walk->b->n_parts + 1) * sizeof **at);
    if (!walk->divergence_of || !*at || !measure_extents(walk, 0) || !measure_extents(walk, 1))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", walk->pa->n_ops);
    memset(walk->divergence_of, 0xFF, (walk->merged.merged.n_nodes + 1) * sizeof *walk->divergence_of);
    walk->led = LB_VERDICT_MISSING;
    for (uint32_t i = 0; i < walk->divergences.n; i++)
        if (!lb_place_is_unknown(walk, &walk->divergences.list[i], NULL)) walk->led = LB_VERDICT_DIVERGED;
    for (uint32_t i = 0; i < walk->divergences.n; i++)
        if (walk->divergences.list[i].node != LB_NONE) walk->divergence_of[walk->divergences.list[i].node] = i;
    for (uint32_t p = 0; p < walk->b->n_parts; p++) (*at)[p] = walk->b->parts[p].first_op;
    forget_lone(&walk->storages[0]), forget_lone(&walk->storages[1]);
    return LB_OK;
}

/* Storages without a name that ops of one side alone wrote last (moments of an optimizer written by hand): nothing
 * judged them. Where all that is known to leave the step is the same in exact arithmetic, they bring rounding into the
 * next. */
static void settle_rest(lb_diff_walk *walk)
{
    const lb_verdict left = walk->divergences.n ? walk->led : LB_VERDICT_ROUNDING;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < walk->storages[side].by_storage.n; i++) {
            lb_taint *t = &walk->storages[side].rows[i];
            if ((t->lone[0] & t->lone[1]) != LB_NONE && t->verdict == LB_VERDICT_IDENTICAL)
                t->verdict = left, t->differs = true;
        }
}

static lb_status walk_all(lb_diff_walk *walk, uint32_t *at, lb_err *err)
{
    uint32_t *order = walk->a->n_parts > 1 ? lb_diff_order(walk->a, &walk->collective_matches[0]) : NULL;
    if (walk->a->n_parts > 1 && !order) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", walk->pa->n_ops);
    for (uint32_t k = 0; k < walk->pa->n_ops; k++) {
        const uint32_t op = order ? order[k] : k,
                       number = walk->collective_matches[0].of_op ? walk->collective_matches[0].of_op[op] : LB_NONE;
        if (number != LB_NONE && walk->collective_matches[0].ops[walk->collective_matches[0].list[number].first] == op)
            lb_flow_meet(walk, &walk->collective_matches[0].list[number]);
        walk_op(walk, at, op);
    }
    free(order);
    walk_rest(walk, at);
    lb_diff_walk_leaving(walk);
    lb_diff_nonfinite(walk);
    settle_rest(walk);
    return walk->storages[0].failed || walk->storages[1].failed
               ? lb_fail(err, LB_ERR_NOMEM, "out of memory for storages")
               : LB_OK;
}

lb_status lb_diff_walk_program(lb_diff_walk *walk, lb_err *err)
{
    uint32_t *at = NULL;
    lb_status status = open_walk(walk, &at, err);
    if (status == LB_OK) status = walk_all(walk, at, err);
    if (status == LB_OK)
        status =
            lb_met_storages_note(&walk->past->met, walk->a, walk->b, &walk->merged, &walk->exits, walk->swapped, err);
    free(at);
    return status;
}
