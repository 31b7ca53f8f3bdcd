/* The walk of a diff: see diff_walk.h.
 *
 * Storages carry taints (taint.h) from op to op. An op whose shadows disagree although none of its inputs was apart made
 * the difference itself; everything behind it inherits.
 */
#include "diff_walk.h"

#include "diff_judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool value_pair_differs(const lb_walk *w, uint32_t va, uint32_t vb)
{
    if (va == LB_NONE || vb == LB_NONE) return (va == LB_NONE) != (vb == LB_NONE);
    const lb_value *a = &w->pa->values[va], *b = &w->pb->values[vb];
    if (lb_digest_is_none(a->logical) || lb_digest_is_none(b->logical))
        return false; /* undefined bytes: no finding */
    return !lb_digest_equal(a->logical, b->logical);
}

/* Results and written values of an op, as one list. */
static uint32_t outcome_count(const lb_op *op)
{
    return op->results + op->written;
}
static uint32_t outcome(const lb_program *p, const lb_op *op, uint32_t i)
{
    return i < op->results ? lb_op_results(p, op)[i] : lb_op_written(p, op)[i - op->results];
}

bool lb_walk_pair_differs(const lb_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    if (outcome_count(a) != outcome_count(b)) return true;
    for (uint32_t i = 0; i < outcome_count(a); i++)
        if (value_pair_differs(w, outcome(w->pa, a, i), outcome(w->pb, b, i))) return true;
    return false;
}

bool lb_walk_source_differs(const lb_walk *w, uint32_t ia)
{
    uint32_t ib = w->alignment.source_b_of_a[ia];
    if (ib == LB_NONE) return false;
    return value_pair_differs(w, lb_op_results(w->pa, &w->pa->ops[ia])[0],
                              lb_op_results(w->pb, &w->pb->ops[ib])[0]);
}

/* Do the two values hold the same numbers after rounding to the narrower dtype? Then the difference is one of precision. */
static bool same_after_rounding(const lb_walk *w, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    if (w->pa->values[va].dtype == w->pb->values[vb].dtype) return false;
    if (lb_capture_value(w->a, w->pa, va, &a, NULL) != LB_OK ||
        lb_capture_value(w->b, w->pb, vb, &b, NULL) != LB_OK)
        return false;
    bool b_narrower = lb_dtype_precision(b.dtype) < lb_dtype_precision(a.dtype);
    const lb_tensor *wide = b_narrower ? &a : &b, *narrow = b_narrower ? &b : &a;
    int64_t n = lb_layout_numel(&wide->layout);
    if (!lb_dtype_is_float(wide->dtype) || !lb_layout_is_contiguous(&a.layout) ||
        !lb_layout_is_contiguous(&b.layout))
        return false;
    void *rounded = malloc(lb_dtype_bytes(narrow->dtype, (size_t)n) + 1);
    if (!rounded) return false;
    lb_convert(narrow->dtype, rounded, wide->dtype, wide->data, (size_t)n, NULL);
    bool same = memcmp(rounded, narrow->data, lb_dtype_bytes(narrow->dtype, (size_t)n)) == 0;
    free(rounded);
    return same;
}

/* ---- rows ---- */

/* What is compared of a row so far. */
typedef struct measurement {
    lb_walk *w;
    lb_diff_row *row;
    bool inside_noise; /* all that differs was measured and lies inside the noise */
} measurement;

static void measure_value(measurement *m, uint32_t va, uint32_t vb)
{
    const lb_walk *w = m->w;
    lb_tensor a, b;
    lb_difference d;
    if (va == LB_NONE || vb == LB_NONE || !value_pair_differs(w, va, vb)) return;
    if (lb_capture_value(w->a, w->pa, va, &a, NULL) != LB_OK ||
        lb_capture_value(w->b, w->pb, vb, &b, NULL) != LB_OK || lb_compare(&a, &b, &d, NULL) != LB_OK) {
        m->inside_noise = false;
        return;
    }
    m->inside_noise &= lb_noise_covers(&w->noise, va, &d);
    if (!m->row->measured || d.rel_l2 > m->row->difference.rel_l2) m->row->difference = d;
    m->row->measured = true;
}

/* True when the whole difference lies inside the noise. */
static bool measure(lb_walk *w, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    measurement m = {w, row, true};
    uint32_t n = outcome_count(a) < outcome_count(b) ? outcome_count(a) : outcome_count(b);
    for (uint32_t i = 0; i < n; i++) measure_value(&m, outcome(w->pa, a, i), outcome(w->pb, b, i));
    return row->measured && m.inside_noise;
}

/* Whatever made it, such a difference is no finding; but for bits that no run of this op can give. */
static void call_noise(const lb_walk *w, lb_diff_row *row, bool bad_bits)
{
    if (row->local == LB_VERDICT_IDENTICAL || bad_bits) return;
    row->local = LB_VERDICT_NOISE;
    row->why = w->noise.runs == 1 ? "no more than another run of the first side differs by"
                                  : "no more than other runs of the first side differ by";
}

/* ---- the walk ---- */

/* What the inputs of an op bring along. */
typedef struct inputs {
    lb_walk *w;
    lb_verdict verdict, carried;
    bool differ, apart, flipped;
    uint32_t suspect;
} inputs;
#define INPUTS_OF(walk)                                                                                        \
    ((inputs){(walk), LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, false, false, false, LB_NONE})

/* Equal bits bring nothing, whatever wrote the rest of their storage. */
static void note_input(inputs *in, uint32_t va, uint32_t vb)
{
    const lb_walk *w = in->w;
    if (va == LB_NONE) return;
    /* Views have no digest: what is known of their storage counts. */
    bool unknown = lb_digest_is_none(w->pa->values[va].logical) ||
                   (vb != LB_NONE && lb_digest_is_none(w->pb->values[vb].logical));
    if (vb != LB_NONE && !unknown && !value_pair_differs(w, va, vb)) return;
    const lb_taint *t = lb_taint_of(w->storages, w->pa->values[va].storage);
    in->differ |=
        (vb != LB_NONE && !unknown) || t->verdict != LB_VERDICT_IDENTICAL || t->carried != LB_VERDICT_IDENTICAL;
    in->verdict = lb_report_worse(in->verdict, t->verdict);
    in->carried = lb_report_worse(in->carried, t->carried);
    in->apart |= t->apart, in->flipped |= t->flipped;
    if (in->suspect == LB_NONE || (t->suspect != LB_NONE && t->suspect < in->suspect)) in->suspect = t->suspect;
}

static void note_args(inputs *in, const lb_arg *a, uint32_t na, const lb_arg *b, uint32_t nb)
{
    for (uint32_t i = 0; i < na; i++) {
        const lb_arg *other = b && i < nb && b[i].tag == a[i].tag ? &b[i] : NULL;
        if (a[i].tag == LB_ARG_VALUE) note_input(in, a[i].u.value, other ? other->u.value : LB_NONE);
        if (a[i].tag == LB_ARG_LIST)
            note_args(in, in->w->pa->args + a[i].u.first, a[i].count,
                      other ? in->w->pb->args + other->u.first : NULL, other ? other->count : 0);
    }
}

static void spread(lb_walk *w, const lb_op *op, const lb_taint *from)
{
    for (uint32_t i = 0; i < outcome_count(op); i++) {
        uint32_t v = outcome(w->pa, op, i);
        if (v == LB_NONE) continue;
        lb_taint *t = lb_taint_of(w->storages, w->pa->values[v].storage);
        bool whole = w->pa->values[v].layout.offset == 0 && i < op->results && !(op->flags & LB_OP_MUTABLE);
        if (whole) *t = LB_TAINT_CLEAN(t->storage);
        t->verdict = lb_report_worse(t->verdict, from->verdict);
        t->carried = lb_report_worse(t->carried, from->carried);
        t->apart |= from->apart, t->flipped |= from->flipped;
        if (t->suspect == LB_NONE) t->suspect = from->suspect;
    }
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
    row.layer = lb_report_keep(w->report, lb_op_layer(w->pa, op));
    row.op = lb_report_keep(w->report, lb_op_name(w->pa, op));
    return row;
}

/* ---- sources ---- */

static void walk_source(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    uint32_t va = lb_op_results(w->pa, op)[0];
    const lb_value *value = &w->pa->values[va];
    lb_taint *t = lb_taint_of(w->storages, value->storage);
    if (!lb_walk_source_differs(w, ia)) {
        /* Sources of the other side that have no partner are structure; equal ones clear what the storage held. */
        *t = LB_TAINT_CLEAN(t->storage);
        return;
    }
    uint32_t ib = w->alignment.source_b_of_a[ia], vb = lb_op_results(w->pb, &w->pb->ops[ib])[0];
    lb_verdict before = lb_report_worse(t->verdict, t->carried);
    bool carried = value->source == LB_SOURCE_CARRIED && before != LB_VERDICT_IDENTICAL;
    bool made = value->source == LB_SOURCE_OTHER && w->decided != LB_VERDICT_IDENTICAL;
    bool precision = same_after_rounding(w, va, vb);
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
    char why[200];
    snprintf(why, sizeof why, format, lb_source_kind_name((lb_source_kind)value->source),
             *name ? "" : " input");
    row.why = lb_report_keep(w->report, why);
    if (measure(w, ia, ib, &row)) call_noise(w, &row, false);
    row.verdict = lb_report_worse(row.local, row.inherited);
    lb_report_row(w->report, &row);
    *t = LB_TAINT_CLEAN(t->storage); /* the shadows start from one side's numbers … */
    t->carried = row.verdict;        /* … and so can't say what follows from this */
}

/* ---- pairs ---- */

/* Is an outcome that differs an integer or a bool? */
static bool decides(const lb_walk *w, const lb_op *a, const lb_op *b)
{
    if (outcome_count(a) != outcome_count(b)) return false;
    for (uint32_t i = 0; i < outcome_count(a); i++) {
        uint32_t va = outcome(w->pa, a, i), vb = outcome(w->pb, b, i);
        if (va != LB_NONE && value_pair_differs(w, va, vb) && !lb_dtype_is_float(w->pa->values[va].dtype))
            return true;
    }
    return false;
}

static lb_evidence evidence_of(const lb_walk *w, uint32_t ia, uint32_t ib, const inputs *in)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    lb_evidence e = {.inputs_differ = in->differ, .inputs_apart = in->apart, .replayed = w->have_shadows};
    e.same_args = lb_op_same_args(w->pa, a, w->pb, b);
    e.args_follow = w->decided != LB_VERDICT_IDENTICAL;
    e.random = a->flags & LB_OP_RANDOM;
    e.decides = decides(w, a, b);
    if (!w->have_shadows) return e;
    e.agreement = w->shadows.rows[ia].agreement;
    e.own[0] = w->shadows.rows[ia].own[0], e.own[1] = w->shadows.rows[ia].own[1];
    return e;
}

/* A layer that the sides compute in other ops is judged by what leaves it: the row goes to its first op. */
static void judge_suspect(lb_walk *w, uint32_t suspect, lb_verdict local)
{
    if (w->settled[suspect] && local != LB_VERDICT_DIVERGED) return;
    w->settled[suspect] = 1;
    lb_diff_row row = row_of(w, suspect);
    row.local = row.verdict = local;
    row.why = local == LB_VERDICT_DIVERGED ? "this layer is computed in other ops on the two sides, and what "
                                             "leaves it differs in exact arithmetic too"
                                           : "this layer is computed in other ops on the two sides, and what "
                                             "leaves it is the same in exact arithmetic";
    uint32_t partner = w->alignment.b_of_a[suspect];
    if (partner != LB_NONE) measure(w, suspect, partner, &row);
    lb_report_row(w->report, &row);
}

/* Exact values disagree and no input of the pair was seen to: where did that begin? */
static void explain_disagreement(lb_walk *w, const lb_evidence *e, inputs *in)
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
    for (uint32_t i = 0; i < outcome_count(op); i++)
        if (outcome(w->pa, op, i) != LB_NONE)
            n += lb_layout_numel(&w->pa->values[outcome(w->pa, op, i)].layout);
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
static void walk_inside(lb_walk *w, uint32_t ia, const lb_evidence *e, lb_diff_row *row, const inputs *in)
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
    if (row->local == LB_VERDICT_DIVERGED) lb_report_row(w->report, row);
    lb_taint left = {.verdict = lb_report_worse(row->local, in->verdict), .carried = in->carried};
    left.apart = in->apart || (excused && !flip), left.flipped = in->flipped || flip;
    left.suspect = suspect == LB_NONE ? ia : suspect;
    spread(w, &w->pa->ops[ia], &left);
}

/* item() has no tensor result: what it read says whether Python saw other numbers. */
static void note_decision(lb_walk *w, const inputs *in)
{
    w->decided = lb_report_worse(w->decided, lb_report_worse(in->verdict, in->carried));
}

static void walk_pair(lb_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    lb_diff_row row = row_of(w, ia);
    inputs in = INPUTS_OF(w);
    w->report->ops++;
    note_args(&in, lb_op_args(w->pa, a), a->args, lb_op_args(w->pb, b), b->args);
    if (a->flags & LB_OP_DECISION) note_decision(w, &in);
    if (!w->differs[ia]) {
        w->report->identical++;
        spread(w, a, &LB_TAINT_CLEAN(0));
        lb_report_layer(w->report, &row);
        return;
    }
    lb_evidence e = evidence_of(w, ia, ib, &in);
    if (w->alignment.irregular[ia]) {
        walk_inside(w, ia, &e, &row, &in);
        return;
    }
    explain_disagreement(w, &e, &in);
    e.inputs_apart = in.apart;
    if (e.agreement == LB_SHADOW_AGREES && in.suspect != LB_NONE)
        judge_suspect(w, in.suspect, LB_VERDICT_ROUNDING);
    row.local = lb_judge_pair(&e, &row.why);
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
    if (measure(w, ia, ib, &row)) call_noise(w, &row, bad_bits);
    row.verdict = lb_report_worse(row.local, row.inherited);
    lb_report_row(w->report, &row);
    lb_taint left = {.verdict = lb_report_worse(row.local, in.verdict), .carried = in.carried};
    left.apart =
        (e.agreement == LB_SHADOW_DISAGREES && !flip) || (e.agreement == LB_SHADOW_UNKNOWN && in.apart);
    left.flipped = flip || (in.flipped && (!agrees || e.decides));
    left.suspect = e.agreement == LB_SHADOW_UNKNOWN ? in.suspect : LB_NONE;
    spread(w, a, &left);
}

/* ---- all of it ---- */

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
        row->why = "the optimizer updates it differently in exact arithmetic";
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
    for (uint32_t f = 0; w->have_shadows && f < w->shadows.n_finals; f++) {
        const lb_shadow_final *final = &w->shadows.finals[f];
        const lb_value *v = &w->pa->values[final->value[0]];
        lb_taint *t = lb_taint_of(w->storages, v->storage);
        lb_diff_row row = row_of(w, final->op[0]);
        const char *name = lb_program_text(w->pa, v->name);
        if (*name) row.layer = lb_report_keep(w->report, name), row.value = true;
        judge_final(w, final, t, &row);
        measurement m = {w, &row, true};
        measure_value(&m, final->value[0], final->value[1]);
        if (row.measured && m.inside_noise) call_noise(w, &row, false);
        row.verdict = lb_report_worse(row.local, row.inherited);
        lb_report_row(w->report, &row);
        lb_verdict carried = t->carried;
        *t = LB_TAINT_CLEAN(t->storage);
        t->verdict = row.verdict, t->carried = carried, t->apart = final->agreement == LB_SHADOW_DISAGREES;
    }
}

typedef struct count {
    uint32_t n;
} count;
static void count_input(void *context, uint32_t value)
{
    ((count *)context)->n += value != LB_NONE;
}

/* Copies and constants are no suspects: the op that follows says more. */
static bool may_be_wrong(const lb_program *p, const lb_op *op)
{
    count inputs = {0};
    lb_op_each_input(p, op, count_input, &inputs);
    const char *name = lb_op_name(p, op);
    return inputs.n && strcmp(name, "aten::clone") != 0 && strcmp(name, "aten::contiguous") != 0;
}

static void walk_alone(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    inputs in = INPUTS_OF(w);
    note_args(&in, lb_op_args(w->pa, op), op->args, NULL, 0);
    if (op->flags & LB_OP_DECISION) note_decision(w, &in);
    lb_taint left = {.verdict = in.verdict, .carried = in.carried, .apart = in.apart, .flipped = in.flipped};
    left.suspect = in.suspect == LB_NONE && may_be_wrong(w->pa, op) ? ia : in.suspect;
    spread(w, op, &left);
}

void lb_walk_program(lb_walk *w)
{
    for (uint32_t i = 0; i < w->pa->n_ops; i++) {
        const lb_op *op = &w->pa->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        if (w->alignment.b_of_a[i] != LB_NONE)
            walk_pair(w, i, w->alignment.b_of_a[i]);
        else if (strcmp(lb_op_name(w->pa, op), "lb::source") == 0 && op->results)
            walk_source(w, i);
        else
            walk_alone(w, i);
    }
    walk_finals(w);
}
