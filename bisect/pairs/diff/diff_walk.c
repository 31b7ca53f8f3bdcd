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

/* ---- what flows in and out ---- */

static lb_diff_flow_source inflow_of(lb_diff_walk *w, uint32_t ia, int element)
{
    lb_diff_flow_source in = LB_INFLOW_NONE;
    const lb_alignment *al = &w->alignment;
    const uint32_t b = al->b_of_a[ia];
    if (w->collective_matches[0].of_op && w->collective_matches[0].of_op[ia] != LB_NONE) return w->brought;
    lb_flow_in(w, 0, ia, b, element, &in);
    if (b != LB_NONE) lb_flow_in(w, 1, b, ia, element, &in);
    if (al->join_of_a[ia] == LB_NONE) return in;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
    for (uint32_t k = 0; k < join->parts; k++)
        lb_flow_in(w, 1, al->joins.part_ops[join->first + k], LB_NONE, element, &in);
    return in;
}

/* What a collective gives to one member, all of them have brought. */
static void meet(lb_diff_walk *w, const lb_collective_match *exchange)
{
    w->brought = LB_INFLOW_NONE;
    for (uint32_t k = 0; k < exchange->n; k++) {
        const uint32_t member = w->collective_matches[0].ops[exchange->first + k], b = w->alignment.b_of_a[member];
        lb_flow_in(w, 0, member, b, LB_ALL_ELEMENTS, &w->brought);
        if (b != LB_NONE) lb_flow_in(w, 1, b, member, LB_ALL_ELEMENTS, &w->brought);
    }
}

static void flow_out_all(lb_diff_walk *w, int side, uint32_t op, const lb_diff_flow_source *left)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    for (uint32_t i = 0; i < lb_op_outcomes(&p->ops[op]); i++) lb_flow_out(w, side, op, i, left);
}

/* Into the outcomes of a pair (or join) that have different bits; the others are clean. */
static void flow_out_pair(lb_diff_walk *w, uint32_t ia, const lb_diff_flow_source *left)
{
    const lb_alignment *al = &w->alignment;
    const lb_op *a = &w->pa->ops[ia];
    const uint32_t ib = al->b_of_a[ia];
    const lb_diff_flow_source clean = LB_INFLOW_NONE;
    for (uint32_t i = 0; ib != LB_NONE && i < lb_op_outcomes(a); i++) {
        const uint32_t va = lb_op_outcome(w->pa, a, i),
                       vb = i < lb_op_outcomes(&w->pb->ops[ib]) ? lb_op_outcome(w->pb, &w->pb->ops[ib], i) : LB_NONE;
        const bool same = va != LB_NONE && vb != LB_NONE && !lb_digest_is_none(w->pa->values[va].logical) &&
                          !lb_diff_walk_value_differs(w, va, vb);
        lb_flow_out(w, 0, ia, i, same ? &clean : left);
        if (vb != LB_NONE) lb_flow_out(w, 1, ib, i, same ? &clean : left);
    }
    if (ib != LB_NONE) return;
    flow_out_all(w, 0, ia, left);
    if (al->join_of_a[ia] == LB_NONE) return;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
    for (uint32_t k = 0; k < join->parts; k++) flow_out_all(w, 1, al->joins.part_ops[join->first + k], left);
}

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
static void note_decision(lb_diff_walk *w, uint32_t ia, const lb_diff_flow_source *in)
{
    lb_read_numbers *read = &w->past->read;
    const uint32_t ib = w->alignment.b_of_a[ia];
    double a, b;
    bool integer;
    if (!in->differ) return;
    read->verdict = lb_verdict_worse(read->verdict, lb_verdict_worse(in->verdict, in->carried));
    if (in->met > read->met) read->met = in->met;
    if (ib == LB_NONE || !read_number(w->a, ia, &a, &integer) || !read_number(w->b, ib, &b, &integer)) {
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
static void settle_lone(lb_diff_walk *w, const lb_diff_flow_source *in, lb_verdict verdict)
{
    const uint32_t a = in->lone[0], b = in->lone[1];
    const uint32_t slot = a != LB_NONE ? a : w->pa->n_ops + b;
    if (a == LB_NONE && b == LB_NONE) return;
    if (w->settled[slot] & LB_SETTLED_REWRITE) return;
    w->settled[slot] |= LB_SETTLED_REWRITE;
    lb_diff_row row = lb_diff_walk_row(w, a, a == LB_NONE ? b : LB_NONE);
    char why[240], narrowing[80] = "";
    row.local = row.verdict = verdict;
    w->report->rewritten += verdict == LB_VERDICT_ROUNDING;
    if (verdict == LB_VERDICT_ROUNDING)
        lb_narrowing_text(w, row.layer, (uint8_t)row.phase, narrowing, sizeof narrowing);
    snprintf(why, sizeof why, "this layer is computed in other ops on the two sides, and what leaves it %s%s",
             verdict == LB_VERDICT_MISSING
                 ? "differs, and could not be run exactly: whether that is rounding cannot be told"
                 : "is the same in exact arithmetic",
             narrowing);
    row.why = lb_report_keep(w->report, why);
    lb_diff_rows_report(w, &row);
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

/* What is written in place is a result, too. */
static bool is_repeated(const lb_program *p, const lb_op *op, uint32_t outcome)
{
    for (uint32_t i = 0; i < outcome; i++)
        if (lb_op_outcome(p, op, i) == lb_op_outcome(p, op, outcome)) return true;
    return false;
}

static int64_t outcome_elements(const lb_diff_walk *w, const lb_op *op)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++)
        if (lb_op_outcome(w->pa, op, i) != LB_NONE && !is_repeated(w->pa, op, i))
            n += lb_layout_numel(&w->pa->values[lb_op_outcome(w->pa, op, i)].layout);
    return n;
}

/* Both sides' bits come from the same inputs in an order that has a name. How many elements bear it out is said, for a
 * single one may do so by chance. */
static void note_order(lb_diff_walk *w, uint32_t ia, lb_diff_row *row)
{
    const lb_reordering *r = w->reorderings ? &w->reorderings[ia] : NULL;
    if (!r || !r->order[0][0] || !r->order[1][0]) return;
    char why[240];
    int64_t n = outcome_elements(w, &w->pa->ops[ia]);
    snprintf(why, sizeof why,
             "the same terms in another order: the first side's bits are those of %s, the second's of %s (%lld "
             "element%s)",
             r->order[w->swapped], r->order[!w->swapped], (long long)n, n == 1 ? "" : "s");
    row->why = lb_report_keep(w->report, why);
    row->local = LB_VERDICT_REORDERED;
}

static const char *told_order(const lb_program_view *side, uint32_t op)
{
    const lb_program *recorded;
    if (op == LB_NONE || !(side->program->ops[op].flags & LB_OP_COLLECTIVE)) return "";
    const lb_collective *row = lb_collective_of_side(side, op, &recorded);
    return row && row->algorithm != LB_NONE ? lb_program_text(recorded, row->algorithm) : "";
}

/* The order that gives a side's bits again: as recorded, found by trial, or replay's own; "": it is not known. */
static const char *order_of(const lb_program_view *side, uint32_t op, lb_verdict own, const char *found)
{
    const char *told = told_order(side, op);
    if (own == LB_VERDICT_REORDERED && found && *found) return found;
    if (own != LB_VERDICT_IDENTICAL || op == LB_NONE || !(side->program->ops[op].flags & LB_OP_COLLECTIVE)) return "";
    const char *name = lb_op_name(side->program, &side->program->ops[op]);
    return *told ? told : !strncmp(name, "nccl::", 6) ? "ring" : strstr(name, "c10d") ? "gloo" : "";
}

/* Each side's recording says in which order its members' terms were added, or an order was found that gives its bits:
 * in that order they come out again. */
static void note_told_order(lb_diff_walk *w, uint32_t ia, const lb_evidence *e, lb_diff_row *row)
{
    const uint32_t ib = lb_diff_rows_partner(w, ia);
    const char *told[2] = {order_of(w->a, ia, e->own[0], e->order[0]), order_of(w->b, ib, e->own[1], e->order[1])};
    const bool recorded = *told_order(w->a, ia) && *told_order(w->b, ib) && e->own[0] == e->own[1];
    char why[240];
    if (!*told[0] || !*told[1] || !strcmp(told[0], told[1])) return;
    const int64_t n = outcome_elements(w, &w->pa->ops[ia]);
    snprintf(why, sizeof why,
             "the same terms in another order: the first side's bits are those of %s, the second's of %s%s "
             "(%lld element%s)",
             told[w->swapped], told[!w->swapped], recorded ? ", as recorded" : "", (long long)n, n == 1 ? "" : "s");
    row->why = lb_report_keep(w->report, why);
    row->local = LB_VERDICT_REORDERED;
}

/* Worth knowing: with different inputs these bits may part. */
static void note_other_args(lb_diff_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    char text[400];
    snprintf(text, sizeof text, "step %lld, %s, %s: other arguments, the same bits", (long long)w->pa->step,
             lb_op_layer(w->pa, op), lb_op_name(w->pa, op));
    lb_report_finding(w->report, text);
}

/* Of a difference that is one of precision, which. */
static void name_types(lb_diff_walk *w, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    char types[80], why[240];
    lb_narrowing_pair(w, ia, ib, types, sizeof types);
    if (!*types) return;
    snprintf(why, sizeof why, "%s%s", row->why, types);
    row->why = lb_report_keep(w->report, why);
}

/* Did an op that computes something, and that the other side has not, lead here? */
static bool follows_lone(const lb_diff_walk *w, const lb_diff_flow_source *in)
{
    for (int side = 0; side < 2; side++)
        if (in->lone[side] != LB_NONE && w->merged.may_differ[side][in->lone[side]] == LB_BLAME_OP) return true;
    return false;
}

/* An input has different bits, and nothing that was judged made them, or not all of them: ops that the other side has
 * not, and that neither side can run. That something else before them was rounding says nothing of these. */
static bool is_unaccounted(const lb_diff_walk *w, uint32_t ia, const lb_evidence *e, const lb_diff_flow_source *in)
{
    if (e->agreement != LB_SHADOW_UNKNOWN || !e->replayed || !in->differ || e->decides) return false;
    if (in->verdict == LB_VERDICT_IDENTICAL && in->carried == LB_VERDICT_IDENTICAL) return true;
    return follows_lone(w, in) && !w->shadows.over_memory && !w->shadows.rows[ia].other_counts &&
           e->own[0] != LB_VERDICT_OPAQUE && e->own[1] != LB_VERDICT_OPAQUE;
}

/* What a collective whose other members were not recorded gives follows from them, too. */
static bool waits_for_others(const lb_diff_walk *w, uint32_t ia)
{
    return w->pa->ops[ia].flags & LB_OP_COLLECTIVE &&
           (!w->collective_matches[0].of_op || w->collective_matches[0].of_op[ia] == LB_NONE);
}

/* Rows of tokens that a choice sent elsewhere: the shadows go on from one side's. */
static void note_flipped_rows(const lb_diff_walk *w, uint32_t ia, lb_diff_row *row)
{
    const long long n = w->have_shadows ? w->shadows.rows[ia].flipped : 0;
    char why[240];
    if (!n || row->local == LB_VERDICT_DIVERGED) return;
    snprintf(why, sizeof why, "%s, but for %lld row%s that follow%s from a different choice", row->why, n,
             n == 1 ? "" : "s", n == 1 ? "s" : "");
    row->why = lb_report_keep(w->report, why);
}

static void judge_local(lb_diff_walk *w, uint32_t ia, const lb_evidence *e, const lb_diff_flow_source *in,
                        lb_diff_row *row)
{
    row->local = lb_diff_verdict_of_pair(e, &row->why);
    note_flipped_rows(w, ia, row);
    if (is_unaccounted(w, ia, e, in) && row->local != LB_VERDICT_DIVERGED)
        row->local = LB_VERDICT_MISSING,
        row->why =
            "an input differs, made by ops that could not be run exactly: whether that is rounding cannot be told";
    if (waits_for_others(w, ia) && row->local != LB_VERDICT_DIVERGED && !in->differ)
        row->local = LB_VERDICT_MISSING, row->why = "what the other ranks brought to it was not recorded";
    if (row->local == LB_VERDICT_ROUNDING) name_types(w, ia, lb_diff_rows_partner(w, ia), row);
    if (row->local == LB_VERDICT_ROUNDING && !in->differ) note_order(w, ia, row);
    if (row->local == LB_VERDICT_ROUNDING && !in->differ) note_told_order(w, ia, e, row);
}

/* A number that both shadows take over ends what was made, and begins what came in. */
static bool is_taken_over(const lb_diff_walk *w, uint32_t ia, const lb_evidence *e)
{
    const uint32_t ib = w->alignment.b_of_a[ia];
    if (ib == LB_NONE || e->agreement == LB_SHADOW_DISAGREES) return false;
    if (w->collective_matches[0].of_op && w->collective_matches[0].of_op[ia] != LB_NONE) return false;
    return e->decides || e->random || waits_for_others(w, ia) || !lb_replay_knows(lb_op_name(w->pa, &w->pa->ops[ia]));
}

static lb_diff_flow_source left_by(const lb_diff_walk *w, uint32_t ia, const lb_evidence *e,
                                   const lb_diff_flow_source *in, lb_verdict local)
{
    lb_diff_flow_source left = {lb_verdict_worse(local, in->verdict), in->carried, true, {LB_NONE, LB_NONE}, in->met};
    if (e->agreement == LB_SHADOW_UNKNOWN) left.lone[0] = in->lone[0], left.lone[1] = in->lone[1];
    if (!is_taken_over(w, ia, e)) return left;
    left.carried = lb_verdict_worse(left.carried, left.verdict);
    /* A flip that rounding made is rounding, whatever it leads to. */
    if (e->decides && local != LB_VERDICT_NOISE) left.carried = lb_verdict_worse(left.carried, LB_VERDICT_ROUNDING);
    return left;
}

/* Of a foreach op each element follows from its own inputs alone. */
static void flow_out_elements(lb_diff_walk *w, uint32_t ia, const lb_evidence *e, lb_verdict local)
{
    const lb_op *a = &w->pa->ops[ia];
    const uint32_t ib = w->alignment.b_of_a[ia], n = lb_op_outcomes(a);
    const lb_diff_flow_source clean = LB_INFLOW_NONE;
    const uint32_t lists = a->written ? a->written : a->results;
    for (uint32_t i = 0; i < n; i++) {
        /* Lists that are written come one behind the other: parameters, then moments. */
        uint32_t length = lb_op_args(w->pa, a)[0].tag == LB_ARG_LIST ? lb_op_args(w->pa, a)[0].count : lists;
        lb_diff_flow_source in = inflow_of(w, ia, length ? (int)(i % length) : (int)i);
        if (e->agreement == LB_SHADOW_AGREES) meet_again(&in);
        const lb_diff_flow_source left = left_by(w, ia, e, &in, local);
        const uint32_t va = lb_op_outcome(w->pa, a, i),
                       vb = i < lb_op_outcomes(&w->pb->ops[ib]) ? lb_op_outcome(w->pb, &w->pb->ops[ib], i) : LB_NONE;
        const bool same = va != LB_NONE && vb != LB_NONE && !lb_digest_is_none(w->pa->values[va].logical) &&
                          !lb_diff_walk_value_differs(w, va, vb);
        lb_flow_out(w, 0, ia, i, same ? &clean : &left);
        if (vb != LB_NONE) lb_flow_out(w, 1, ib, i, same ? &clean : &left);
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
static bool was_seen(const lb_diff_walk *w, uint32_t ia)
{
    const uint32_t ib = w->alignment.b_of_a[ia], j = w->alignment.join_of_a[ia];
    if (!has_digests(w->pa, ia) || (ib != LB_NONE && !has_digests(w->pb, ib))) return false;
    const lb_reassembly *join = j == LB_NONE ? NULL : &w->alignment.joins.list[j];
    for (uint32_t k = 0; join && k < join->parts; k++)
        if (!has_digests(w->pb, w->alignment.joins.part_ops[join->first + k])) return false;
    return true;
}

static void walk_clean(lb_diff_walk *w, uint32_t ia)
{
    const lb_diff_flow_source clean = LB_INFLOW_NONE;
    const lb_diff_row row = lb_diff_walk_own_row(w, ia);
    if (was_seen(w, ia))
        w->report->identical++;
    else
        w->report->unseen++;
    flow_out_pair(w, ia, &clean);
    lb_diff_rows_report_layer(w, &row);
}

/* A pair by its place alone, of different numbers in exact arithmetic, from which nothing follows that leaves the step:
 * partial sums of an order that the sides do not share. How far apart they are says nothing; its layer is one that the
 * sides compute in different ops. */
static void note_other_numbers(lb_diff_walk *w, uint32_t ia, const lb_evidence *e, lb_diff_row *row)
{
    if (e->agreement != LB_SHADOW_DISAGREES || e->leads || e->inputs_apart || e->decides ||
        row->local != LB_VERDICT_ROUNDING)
        return;
    row->measured = false;
    const lb_rewritten_layer here = {w->pa->ops[ia].scope, w->pa->ops[ia].phase, lb_program_view_part_of(w->a, ia),
                                     true};
    const lb_rewritten_layer *last = &w->rewritten;
    if (last->any && last->scope == here.scope && last->phase == here.phase && last->part == here.part) return;
    w->rewritten = here;
    w->report->rewritten++;
}

/* A collective whose other members are judged elsewhere. What it gives came from them, too: how bad that is will be
 * known, and it is no less than rounding. */
static void walk_exchange(lb_diff_walk *w, uint32_t ia, const lb_diff_flow_source *in)
{
    lb_diff_exchanges *all = w->past->exchanges;
    const lb_program *second;
    lb_diff_row row = lb_diff_walk_own_row(w, ia);
    lb_diff_rows_measure(w, ia, &row, true);
    const lb_diff_exchange exchange = {.row = lb_diff_rows_turned(w, &row, &second),
                                       .given = in->differ,
                                       .differs = w->differs[ia],
                                       .brought = lb_verdict_worse(in->verdict, in->carried),
                                       .met = in->met};
    lb_diff_exchange *list = lb_array_grow(all->list, all->n, sizeof *list);
    w->storages[0].failed |= !list;
    if (list) all->list = list, all->list[all->n++] = exchange;
    const lb_diff_flow_source left = {LB_VERDICT_IDENTICAL, LB_VERDICT_ROUNDING, true, {LB_NONE, LB_NONE}, all->n};
    flow_out_pair(w, ia, &left);
}

static void walk_pair(lb_diff_walk *w, uint32_t ia)
{
    const lb_op *a = &w->pa->ops[ia];
    const uint32_t ib = w->alignment.b_of_a[ia];
    lb_diff_flow_source in = inflow_of(w, ia, LB_ALL_ELEMENTS);
    w->report->ops++;
    if (w->past->exchanges && waits_for_others(w, ia) && (w->differs[ia] || in.differ)) {
        walk_exchange(w, ia, &in);
        return;
    }
    if (a->flags & LB_OP_DECISION) note_decision(w, ia, &in);
    if (!w->differs[ia] && !lb_diff_evidence_reaches_output(w, ia)) {
        if (!w->alignment.irregular[ia] && !lb_op_same_args(w->pa, a, w->pb, &w->pb->ops[ib], 0))
            note_other_args(w, ia);
        walk_clean(w, ia);
        return;
    }
    lb_diff_row row = lb_diff_walk_own_row(w, ia);
    const lb_evidence e = lb_diff_walk_evidence(w, ia, &in);
    const lb_divergence *divergence = lb_diff_evidence_of_divergence(w, ia);
    const bool bad_bits = e.replayed && (e.own[0] == LB_VERDICT_DIVERGED || e.own[1] == LB_VERDICT_DIVERGED);
    if (e.agreement == LB_SHADOW_AGREES) {
        meet_again(&in);
        settle_lone(w, &in, LB_VERDICT_ROUNDING);
        if (has_lone(&in)) lb_lossy_casts_before(w, ia);
    }
    judge_local(w, ia, &e, &in, &row);
    if (divergence) lb_place_divergence(w, divergence, ia, &e, &row);
    lb_cuts_judge(w, &e, &row);
    if (e.leads && !divergence) in.verdict = lb_verdict_worse(in.verdict, w->led);
    if (divergence && row.local != LB_VERDICT_DIVERGED) in.verdict = lb_verdict_worse(in.verdict, row.inherited);
    if (e.agreement == LB_SHADOW_UNKNOWN && row.local == LB_VERDICT_MISSING && (in.lone[0] & in.lone[1]) != LB_NONE) {
        settle_lone(w, &in, LB_VERDICT_MISSING);
        in.verdict = lb_verdict_worse(in.verdict, LB_VERDICT_MISSING);
    }
    row.inherited = lb_verdict_worse(in.verdict, in.carried), row.met = in.met;
    if (w->have_shadows) row.bound_ratio = fmax(w->shadows.rows[ia].bound_ratio[0], w->shadows.rows[ia].bound_ratio[1]);
    lb_diff_rows_measure(w, ia, &row, bad_bits || (divergence && row.local == LB_VERDICT_DIVERGED));
    if (!divergence) note_other_numbers(w, ia, &e, &row);
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    lb_diff_rows_report(w, &row);
    if (lb_op_is_over_lists(w->pa, a) && !divergence) {
        flow_out_elements(w, ia, &e, row.local);
        return;
    }
    const lb_diff_flow_source left = left_by(w, ia, &e, &in, row.local);
    flow_out_pair(w, ia, &left);
}

/* ---- joins ---- */

static lb_verdict judge_joined(const lb_diff_walk *w, const lb_evidence *e, const lb_diff_flow_source *in,
                               const lb_reassembly *join, const char **why)
{
    char text[160];
    bool wrong = e->own[0] == LB_VERDICT_DIVERGED || e->own[1] == LB_VERDICT_DIVERGED;
    bool exact = e->own[0] == LB_VERDICT_IDENTICAL && e->own[1] == LB_VERDICT_IDENTICAL && in->differ;
    *why = "recorded bits lie outside this op's error bound from its own inputs";
    if (wrong && e->replayed) return LB_VERDICT_DIVERGED;
    *why = "the random draws differ";
    if (e->random && !in->differ) return LB_VERDICT_DIVERGED;
    *why = "called with other arguments";
    const bool told = e->agreement == LB_SHADOW_DISAGREES ? e->leads && !e->inputs_apart
                                                          : e->agreement == LB_SHADOW_UNKNOWN && !e->irregular;
    if (!e->same_args && !e->args_follow && told) return LB_VERDICT_DIVERGED;
    const char *known = e->agreement == LB_SHADOW_AGREES ? ": in exact arithmetic both sides give the same" : "";
    snprintf(text, sizeof text, "one against %u of the other side put together%s", join->parts, known);
    *why = lb_report_keep(w->report, text);
    return exact || (e->decides && in->differ) ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
}

static void walk_join(lb_diff_walk *w, uint32_t ia, const lb_reassembly *join)
{
    const lb_op *a = &w->pa->ops[ia];
    lb_diff_flow_source in = inflow_of(w, ia, LB_ALL_ELEMENTS);
    w->report->ops++;
    if (a->flags & LB_OP_DECISION) note_decision(w, ia, &in);
    if (!w->differs[ia] || lb_op_counts_anew(w->pa, a)) {
        walk_clean(w, ia);
        return;
    }
    lb_diff_row row = lb_diff_walk_own_row(w, ia);
    const lb_evidence e = lb_diff_walk_evidence(w, ia, &in);
    const lb_divergence *divergence = lb_diff_evidence_of_divergence(w, ia);
    if (e.agreement == LB_SHADOW_AGREES) {
        meet_again(&in);
        settle_lone(w, &in, LB_VERDICT_ROUNDING);
    }
    row.local = judge_joined(w, &e, &in, join, &row.why);
    if (divergence) lb_place_divergence(w, divergence, ia, &e, &row);
    lb_cuts_judge(w, &e, &row);
    if (e.leads && !divergence) in.verdict = lb_verdict_worse(in.verdict, w->led);
    row.inherited = lb_verdict_worse(in.verdict, in.carried);
    lb_diff_rows_measure(w, ia, &row, row.local == LB_VERDICT_DIVERGED);
    if (e.agreement == LB_SHADOW_DISAGREES && row.local != LB_VERDICT_DIVERGED && !e.leads)
        row.measured = false; /* the parts hold their tokens in another order: what that differs by says nothing */
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    lb_diff_rows_report(w, &row);
    const lb_diff_flow_source left = left_by(w, ia, &e, &in, row.local);
    flow_out_pair(w, ia, &left);
}

/* ---- ops of one side alone ---- */

static void walk_lone(lb_diff_walk *w, int side, uint32_t op)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    lb_diff_flow_source in = LB_INFLOW_NONE;
    lb_flow_in(w, side, op, LB_NONE, LB_ALL_ELEMENTS, &in);
    if (in.lone[side] == LB_NONE) in.lone[side] = op; /* casts as well: they round */
    in.differ = true;
    if (p->ops[op].flags & LB_OP_DECISION && side == 0) note_decision(w, op, &in);
    flow_out_all(w, side, op, &in);
}

/* What B alone runs before `end`, in the part of that op. */
static void walk_before(lb_diff_walk *w, uint32_t *at, uint32_t end)
{
    const lb_alignment *al = &w->alignment;
    const uint32_t part = lb_program_view_part_of(w->b, end);
    for (; at[part] < end; at[part]++) {
        const uint32_t op = at[part];
        const bool paired = al->a_of_b[op] != LB_NONE || al->join_of_b[op] != LB_NONE;
        if (!paired && lb_op_computes(w->pb, &w->pb->ops[op])) walk_lone(w, 1, op);
    }
}

static void walk_before_partners(lb_diff_walk *w, uint32_t *at, uint32_t ia)
{
    const lb_alignment *al = &w->alignment;
    if (al->b_of_a[ia] != LB_NONE) walk_before(w, at, al->b_of_a[ia]);
    if (al->join_of_a[ia] == LB_NONE) return;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
    for (uint32_t k = 0; k < join->parts; k++) walk_before(w, at, al->joins.part_ops[join->first + k]);
}

/* Is it the same quantity as an op of B that is not its partner? Ops of one side alone may lead to either. */
static bool meets_another(const lb_diff_walk *w, uint32_t ia)
{
    return w->shadows.meets[0] && w->shadows.meets[0][ia] != LB_NONE;
}

static void walk_op(lb_diff_walk *w, uint32_t *at, uint32_t i)
{
    const lb_op *op = &w->pa->ops[i];
    const lb_alignment *al = &w->alignment;
    if (op->flags & LB_OP_VIEW) return;
    walk_before_partners(w, at, i);
    if (al->b_of_a[i] != LB_NONE)
        walk_pair(w, i);
    else if (lb_op_is_source(w->pa, op))
        lb_diff_walk_source(w, i);
    else if (al->join_of_a[i] != LB_NONE)
        walk_join(w, i, &al->joins.list[al->join_of_a[i]]);
    else if (lb_op_computes(w->pa, op))
        walk_lone(w, 0, i);
    if (meets_another(w, i)) lb_lossy_casts_before(w, i);
}

static void walk_rest(lb_diff_walk *w, uint32_t *at)
{
    for (uint32_t part = 0; part < w->b->n_parts; part++) {
        const uint32_t end = part + 1 < w->b->n_parts ? w->b->parts[part + 1].first_op : w->pb->n_ops;
        if (end) walk_before(w, at, end - 1);
        if (end && at[part] == end - 1 && w->alignment.a_of_b[end - 1] == LB_NONE &&
            w->alignment.join_of_b[end - 1] == LB_NONE && lb_op_computes(w->pb, &w->pb->ops[end - 1]))
            walk_lone(w, 1, end - 1);
    }
}

/* ---- all of it ---- */

static bool measure_extents(lb_diff_walk *w, int side)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    const lb_slice_flow *f = w->merged.flows[side];
    w->extents[side] = calloc(f->n_storages + 1, sizeof(int64_t));
    for (uint32_t v = 0; w->extents[side] && v < p->n_values; v++) {
        int64_t first, last;
        if (lb_layout_dense_range(&p->values[v].layout, &first, &last, NULL) != LB_OK) continue;
        if (last > w->extents[side][f->storage_of[v]]) w->extents[side][f->storage_of[v]] = last;
    }
    return w->extents[side] != NULL;
}

static void forget_lone(lb_taints *t)
{
    for (uint32_t i = 0; i < t->by_storage.n; i++) t->rows[i].lone[0] = t->rows[i].lone[1] = LB_NONE;
}

static lb_status open_walk(lb_diff_walk *w, uint32_t **at, lb_err *err)
{
    const lb_aligned_views views = lb_diff_walk_views(w);
    LB_TRY(lb_merged_steps_make(&views, w->differs, &w->shadows, &w->exits, &w->merged, err));
    LB_TRY(lb_divergences_find(&w->merged.merged, &w->divergences, err));
    w->divergence_of = malloc((w->merged.merged.n_nodes + 1) * sizeof *w->divergence_of);
    *at = malloc((w->b->n_parts + 1) * sizeof **at);
    if (!w->divergence_of || !*at || !measure_extents(w, 0) || !measure_extents(w, 1))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w->pa->n_ops);
    memset(w->divergence_of, 0xFF, (w->merged.merged.n_nodes + 1) * sizeof *w->divergence_of);
    w->led = LB_VERDICT_MISSING;
    for (uint32_t i = 0; i < w->divergences.n; i++)
        if (!lb_place_is_unknown(w, &w->divergences.list[i], NULL)) w->led = LB_VERDICT_DIVERGED;
    for (uint32_t i = 0; i < w->divergences.n; i++)
        if (w->divergences.list[i].node != LB_NONE) w->divergence_of[w->divergences.list[i].node] = i;
    for (uint32_t p = 0; p < w->b->n_parts; p++) (*at)[p] = w->b->parts[p].first_op;
    forget_lone(&w->storages[0]), forget_lone(&w->storages[1]);
    return LB_OK;
}

/* Storages without a name that ops of one side alone wrote last (moments of an optimizer written by hand): nothing
 * judged them. Where all that is known to leave the step is the same in exact arithmetic, they bring rounding into the
 * next. */
static void settle_rest(lb_diff_walk *w)
{
    const lb_verdict left = w->divergences.n ? w->led : LB_VERDICT_ROUNDING;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < w->storages[side].by_storage.n; i++) {
            lb_taint *t = &w->storages[side].rows[i];
            if ((t->lone[0] & t->lone[1]) != LB_NONE && t->verdict == LB_VERDICT_IDENTICAL)
                t->verdict = left, t->differs = true;
        }
}

static lb_status walk_all(lb_diff_walk *w, uint32_t *at, lb_err *err)
{
    uint32_t *order = w->a->n_parts > 1 ? lb_diff_order(w->a, &w->collective_matches[0]) : NULL;
    if (w->a->n_parts > 1 && !order) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w->pa->n_ops);
    for (uint32_t k = 0; k < w->pa->n_ops; k++) {
        const uint32_t op = order ? order[k] : k,
                       number = w->collective_matches[0].of_op ? w->collective_matches[0].of_op[op] : LB_NONE;
        if (number != LB_NONE && w->collective_matches[0].ops[w->collective_matches[0].list[number].first] == op)
            meet(w, &w->collective_matches[0].list[number]);
        walk_op(w, at, op);
    }
    free(order);
    walk_rest(w, at);
    lb_diff_walk_leaving(w);
    lb_diff_nonfinite(w);
    settle_rest(w);
    return w->storages[0].failed || w->storages[1].failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for storages")
                                                          : LB_OK;
}

lb_status lb_diff_walk_program(lb_diff_walk *w, lb_err *err)
{
    uint32_t *at = NULL;
    lb_status status = open_walk(w, &at, err);
    if (status == LB_OK) status = walk_all(w, at, err);
    if (status == LB_OK)
        status = lb_met_storages_note(&w->past->met, w->a, w->b, &w->merged, &w->exits, w->swapped, err);
    free(at);
    return status;
}
