/* The walk of a diff: see diff_walk.h.
 *
 * A storage carries `taint`, the worst verdict of what was written into it, and `apart`, whether exact shadows already
 * disagree there. An op whose shadows disagree although none of its inputs was apart made the difference
 * itself.
 */
#include "diff_walk.h"

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

/* Do the two values hold the same numbers after rounding to the narrower dtype? Then the difference is one of
 * precision. */
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

/* Non-tensor arguments compared; devices and other texts may differ, they change no number. */
static bool args_equal(const lb_program *pa, const lb_arg *a, uint32_t na, const lb_program *pb,
                       const lb_arg *b, uint32_t nb)
{
    if (na != nb) return false;
    for (uint32_t i = 0; i < na; i++) {
        if (a[i].tag != b[i].tag) return false;
        switch ((lb_arg_tag)a[i].tag) {
        case LB_ARG_INT:
        case LB_ARG_BOOL:
            if (a[i].u.i != b[i].u.i) return false;
            break;
        case LB_ARG_FLOAT:
            if (memcmp(&a[i].u.f, &b[i].u.f, sizeof(double)) != 0) return false;
            break;
        case LB_ARG_LIST:
        case LB_ARG_COMPLEX:
            if (!args_equal(pa, pa->args + a[i].u.first, a[i].count, pb, pb->args + b[i].u.first, b[i].count))
                return false;
            break;
        default: break;
        }
    }
    return true;
}

static void measure(lb_walk *w, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    uint32_t n = outcome_count(a) < outcome_count(b) ? outcome_count(a) : outcome_count(b);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t va = outcome(w->pa, a, i), vb = outcome(w->pb, b, i);
        lb_tensor ta, tb;
        lb_difference d;
        if (va == LB_NONE || vb == LB_NONE || !value_pair_differs(w, va, vb)) continue;
        if (lb_capture_value(w->a, w->pa, va, &ta, NULL) != LB_OK ||
            lb_capture_value(w->b, w->pb, vb, &tb, NULL) != LB_OK)
            continue;
        if (lb_compare(&ta, &tb, &d, NULL) != LB_OK) continue;
        if (!row->measured || d.rel_l2 > row->difference.rel_l2) row->difference = d;
        row->measured = true;
    }
}

/* ---- the walk ---- */

typedef struct inputs {
    lb_walk *w;
    lb_verdict verdict;
    bool apart;
    uint32_t suspect;
    const lb_program *pa, *pb;
} inputs;

/* What an input brings along. Equal bits bring nothing, whatever wrote the rest of their storage. */
static void note_input(inputs *in, uint32_t va, uint32_t vb)
{
    if (va == LB_NONE) return;
    if (vb != LB_NONE && !lb_digest_is_none(in->pa->values[va].logical) && !value_pair_differs(in->w, va, vb))
        return;
    lb_taint *t = lb_taint_of(in->w->storages, in->pa->values[va].storage);
    in->verdict = lb_report_worse(in->verdict, t->verdict);
    in->apart |= t->apart;
    if (in->suspect == LB_NONE || (t->suspect != LB_NONE && t->suspect < in->suspect)) in->suspect = t->suspect;
}

static void note_args(inputs *in, const lb_arg *a, uint32_t na, const lb_arg *b, uint32_t nb)
{
    for (uint32_t i = 0; i < na; i++) {
        const lb_arg *other = b && i < nb && b[i].tag == a[i].tag ? &b[i] : NULL;
        if (a[i].tag == LB_ARG_VALUE) note_input(in, a[i].u.value, other ? other->u.value : LB_NONE);
        if (a[i].tag == LB_ARG_LIST)
            note_args(in, in->pa->args + a[i].u.first, a[i].count, other ? in->pb->args + other->u.first : NULL,
                      other ? other->count : 0);
    }
}

static void spread(lb_walk *w, const lb_op *op, lb_verdict verdict, bool apart, uint32_t suspect)
{
    for (uint32_t i = 0; i < outcome_count(op); i++) {
        uint32_t v = outcome(w->pa, op, i);
        if (v == LB_NONE) continue;
        lb_taint *t = lb_taint_of(w->storages, w->pa->values[v].storage);
        bool whole = w->pa->values[v].layout.offset == 0 && i < op->results && !(op->flags & LB_OP_MUTABLE);
        t->verdict = whole ? verdict : lb_report_worse(t->verdict, verdict);
        t->apart = whole ? apart : t->apart || apart;
        if (whole || t->suspect == LB_NONE) t->suspect = suspect;
    }
}

static void walk_source(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    uint32_t va = lb_op_results(w->pa, op)[0];
    lb_taint *t = lb_taint_of(w->storages, w->pa->values[va].storage);
    if (!lb_walk_source_differs(w, ia)) {
        /* Sources of the other side that have no partner are structure; equal ones clear what the storage held.
         */
        *t = (lb_taint){t->storage, LB_VERDICT_IDENTICAL, false, true, LB_NONE};
        return;
    }
    uint32_t ib = w->alignment.source_b_of_a[ia], vb = lb_op_results(w->pb, &w->pb->ops[ib])[0];
    bool carried = w->pa->values[va].source == LB_SOURCE_CARRIED && t->verdict != LB_VERDICT_IDENTICAL;
    bool made = w->pa->values[va].source == LB_SOURCE_OTHER && w->decided != LB_VERDICT_IDENTICAL;
    bool precision = same_after_rounding(w, va, vb);
    lb_verdict own = precision ? LB_VERDICT_ROUNDING : LB_VERDICT_DIVERGED;
    lb_diff_row row = {.step = w->pa->step,
                       .rank = w->pa->rank,
                       .phase = (lb_phase)op->phase,
                       .index = ia,
                       .bound_ratio = NAN};
    char why[200];
    const char *name = lb_program_text(w->pa, w->pa->values[va].name);
    row.layer = lb_report_keep(w->report, *name ? name : lb_op_layer(w->pa, op)), row.op = "lb::source";
    row.local = carried || made ? LB_VERDICT_IDENTICAL : own;
    row.inherited = carried ? t->verdict : made ? w->decided : LB_VERDICT_IDENTICAL;
    row.verdict = lb_report_worse(row.local, row.inherited);
    const char *format = carried     ? "%s%s came out of the step before differently"
                         : made      ? "%s%s was made in Python after numbers that differ had been read"
                         : precision ? "%s%s is the other side's value rounded to a narrower dtype"
                                     : "%s%s is not the same on both sides";
    snprintf(why, sizeof why, format, lb_source_kind_name((lb_source_kind)w->pa->values[va].source),
             *name ? "" : " input");
    row.why = lb_report_keep(w->report, why);
    measure(w, ia, ib, &row);
    lb_report_row(w->report, &row);
    t->verdict = row.verdict;
    t->apart = false; /* the shadows start from one side's numbers */
}

static const char *local_reason(const lb_walk *w, uint32_t ia, bool same_args, lb_verdict *local,
                                const inputs *in)
{
    const lb_op *op = &w->pa->ops[ia];
    if ((op->flags & LB_OP_RANDOM) && in->verdict == LB_VERDICT_IDENTICAL) {
        *local = LB_VERDICT_DIVERGED;
        return "the random draws differ";
    }
    if (!w->have_shadows) {
        *local = same_args ? LB_VERDICT_MISSING : LB_VERDICT_DIVERGED;
        return same_args ? "not replayed: whether this is rounding cannot be told from digests"
                         : "called with other arguments";
    }
    const lb_shadow_row *s = &w->shadows.rows[ia];
    for (int side = 0; side < 2; side++)
        if (s->own[side] == LB_VERDICT_DIVERGED) {
            *local = LB_VERDICT_DIVERGED;
            return side
                       ? "the second side's recorded bits lie outside this op's error bound from its own inputs"
                       : "the first side's recorded bits lie outside this op's error bound from its own inputs";
        }
    if (s->agreement == LB_SHADOW_DISAGREES && !in->apart) {
        *local = LB_VERDICT_DIVERGED;
        return same_args ? "the same inputs give other exact values"
                         : "called with other arguments, which give other exact values";
    }
    if (s->agreement == LB_SHADOW_AGREES) {
        bool exact = s->own[0] == LB_VERDICT_IDENTICAL && s->own[1] == LB_VERDICT_IDENTICAL &&
                     in->verdict != LB_VERDICT_IDENTICAL;
        *local = exact ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
        return "in exact arithmetic both sides give the same";
    }
    if (s->agreement == LB_SHADOW_DISAGREES) {
        *local = s->own[0] == LB_VERDICT_IDENTICAL && s->own[1] == LB_VERDICT_IDENTICAL ? LB_VERDICT_IDENTICAL
                                                                                        : LB_VERDICT_ROUNDING;
        return "its inputs already differ in exact arithmetic";
    }
    if (!same_args && in->verdict == LB_VERDICT_IDENTICAL) {
        *local = LB_VERDICT_DIVERGED;
        return "called with other arguments";
    }
    bool replayed = s->own[0] < LB_VERDICT_DIVERGED && s->own[1] < LB_VERDICT_DIVERGED;
    *local = replayed ? LB_VERDICT_ROUNDING : LB_VERDICT_MISSING;
    return replayed ? "each side's bits lie inside this op's error bound" : "this op could not be replayed";
}

/* Inside a layer that is computed in other ops: only an A/A failure is blamed on the op itself. */
static void walk_inside(lb_walk *w, uint32_t ia, lb_diff_row *row, const inputs *in)
{
    const lb_op *op = &w->pa->ops[ia];
    uint32_t suspect = in->suspect;
    row->local = LB_VERDICT_ROUNDING;
    row->why = "inside a layer that the two sides compute in other ops";
    if (w->have_shadows) {
        const lb_shadow_row *s = &w->shadows.rows[ia];
        if (s->own[0] == LB_VERDICT_DIVERGED || s->own[1] == LB_VERDICT_DIVERGED) {
            row->local = LB_VERDICT_DIVERGED;
            row->why = "recorded bits lie outside this op's error bound from its own inputs";
        }
        /* The earliest op that disagrees is the best guess, should what leaves the layer disagree. */
        bool disagrees = s->agreement == LB_SHADOW_DISAGREES && !in->apart;
        bool better = suspect == LB_NONE || w->shadows.rows[suspect].agreement != LB_SHADOW_DISAGREES;
        if (disagrees && better) suspect = ia;
    }
    row->inherited = in->verdict;
    row->verdict = lb_report_worse(row->local, row->inherited);
    if (row->local == LB_VERDICT_DIVERGED) lb_report_row(w->report, row);
    spread(w, op, row->verdict, in->apart, suspect == LB_NONE ? ia : suspect);
}

static lb_diff_row row_of(lb_walk *w, uint32_t ia)
{
    const lb_op *op = &w->pa->ops[ia];
    lb_diff_row row = {.step = w->pa->step,
                       .rank = w->pa->rank,
                       .phase = (lb_phase)op->phase,
                       .index = ia,
                       .bound_ratio = NAN,
                       .why = "",
                       .difference = {.cosine = 1, .first = -1}};
    row.layer = lb_report_keep(w->report, lb_op_layer(w->pa, op)),
    row.op = lb_report_keep(w->report, lb_op_name(w->pa, op));
    return row;
}

/* The op is no culprit: what it read had left another layer, and was wrong already. */
static void blame_suspect(lb_walk *w, uint32_t suspect)
{
    lb_diff_row row = row_of(w, suspect);
    row.local = row.verdict = LB_VERDICT_DIVERGED;
    row.why = "this layer is computed in other ops on the two sides, and what leaves it differs in exact "
              "arithmetic too";
    uint32_t partner = w->alignment.b_of_a[suspect];
    if (partner != LB_NONE) measure(w, suspect, partner, &row);
    lb_report_row(w->report, &row);
}

/* item() has no tensor result: what it read says whether Python saw other numbers. */
static void note_decision(lb_walk *w, const lb_op *a, const lb_op *b)
{
    inputs in = {w, LB_VERDICT_IDENTICAL, false, LB_NONE, w->pa, w->pb};
    note_args(&in, lb_op_args(w->pa, a), a->args, lb_op_args(w->pb, b), b->args);
    w->decided = lb_report_worse(w->decided, in.verdict);
}

static void walk_pair(lb_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    lb_diff_row row = row_of(w, ia);
    w->report->ops++;
    if (a->flags & LB_OP_DECISION) note_decision(w, a, b);
    if (!w->differs[ia]) {
        w->report->identical++;
        spread(w, a, LB_VERDICT_IDENTICAL, false, LB_NONE);
        lb_report_layer(w->report, &row);
        return;
    }
    inputs in = {w, LB_VERDICT_IDENTICAL, false, LB_NONE, w->pa, w->pb};
    note_args(&in, lb_op_args(w->pa, a), a->args, lb_op_args(w->pb, b), b->args);
    if (w->alignment.irregular[ia]) {
        walk_inside(w, ia, &row, &in);
        return;
    }
    lb_agreement agreement = w->have_shadows ? w->shadows.rows[ia].agreement : LB_SHADOW_UNKNOWN;
    bool same_args = args_equal(w->pa, lb_op_args(w->pa, a), a->args, w->pb, lb_op_args(w->pb, b), b->args);
    if (agreement == LB_SHADOW_DISAGREES && !same_args && w->decided != LB_VERDICT_IDENTICAL) {
        /* Python computed the arguments from numbers that differ: what follows inherits their verdict. */
        in.apart = true, in.verdict = lb_report_worse(in.verdict, w->decided);
    }
    if (agreement == LB_SHADOW_DISAGREES && !in.apart && in.suspect != LB_NONE) {
        blame_suspect(w, in.suspect);
        in.apart = true, in.verdict = LB_VERDICT_DIVERGED;
    }
    row.why = local_reason(w, ia, same_args, &row.local, &in);
    row.inherited = in.verdict;
    if (w->have_shadows)
        row.bound_ratio = fmax(w->shadows.rows[ia].bound_ratio[0], w->shadows.rows[ia].bound_ratio[1]);
    /* Where exact values meet again, nothing worse than rounding is handed on. */
    if (agreement == LB_SHADOW_AGREES &&
        lb_report_badness(row.inherited) > lb_report_badness(LB_VERDICT_ROUNDING))
        row.inherited = LB_VERDICT_ROUNDING;
    row.verdict = lb_report_worse(row.local, row.inherited);
    measure(w, ia, ib, &row);
    lb_report_row(w->report, &row);
    bool apart = agreement == LB_SHADOW_DISAGREES || (agreement == LB_SHADOW_UNKNOWN && in.apart);
    spread(w, a, row.verdict, apart, agreement == LB_SHADOW_UNKNOWN ? in.suspect : LB_NONE);
}

/* Parameters at the end of the step, whatever ops wrote them. */
static void walk_finals(lb_walk *w)
{
    for (uint32_t f = 0; w->have_shadows && f < w->shadows.n_finals; f++) {
        const lb_shadow_final *final = &w->shadows.finals[f];
        const lb_value *v = &w->pa->values[final->value[0]];
        lb_taint *t = lb_taint_of(w->storages, v->storage);
        lb_diff_row row = row_of(w, final->op[0]);
        const char *name = lb_program_text(w->pa, v->name);
        if (*name) row.layer = lb_report_keep(w->report, name);
        if (final->agreement == LB_SHADOW_AGREES) {
            row.local = LB_VERDICT_ROUNDING, row.why = "in exact arithmetic both sides update it alike";
        } else if (final->agreement == LB_SHADOW_DISAGREES) {
            row.inherited = t->apart ? LB_VERDICT_DIVERGED : LB_VERDICT_IDENTICAL;
            row.local = t->apart ? LB_VERDICT_ROUNDING : LB_VERDICT_DIVERGED;
            row.why = t->apart ? "its gradient already differs in exact arithmetic"
                               : "the optimizer updates it differently in exact arithmetic";
            if (!t->apart && t->suspect != LB_NONE)
                row.op = lb_report_keep(w->report, lb_op_name(w->pa, &w->pa->ops[t->suspect]));
        } else {
            row.inherited = t->verdict == LB_VERDICT_IDENTICAL ? LB_VERDICT_MISSING : t->verdict;
            row.why = "its update could not be replayed exactly";
        }
        row.verdict = lb_report_worse(row.local, row.inherited);
        lb_tensor a, b;
        if (lb_capture_value(w->a, w->pa, final->value[0], &a, NULL) == LB_OK &&
            lb_capture_value(w->b, w->pb, final->value[1], &b, NULL) == LB_OK)
            row.measured = lb_compare(&a, &b, &row.difference, NULL) == LB_OK;
        lb_report_row(w->report, &row);
        t->verdict = row.verdict, t->apart = final->agreement == LB_SHADOW_DISAGREES, t->suspect = LB_NONE;
    }
}

void lb_walk_program(lb_walk *w)
{
    for (uint32_t i = 0; i < w->pa->n_ops; i++) {
        const lb_op *op = &w->pa->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        if (w->alignment.b_of_a[i] != LB_NONE) {
            walk_pair(w, i, w->alignment.b_of_a[i]);
        } else if (strcmp(lb_op_name(w->pa, op), "lb::source") == 0 && op->results) {
            walk_source(w, i);
        } else {
            inputs in = {w, LB_VERDICT_IDENTICAL, false, LB_NONE, w->pa, w->pb};
            note_args(&in, lb_op_args(w->pa, op), op->args, NULL, 0);
            if (op->flags & LB_OP_DECISION) w->decided = lb_report_worse(w->decided, in.verdict);
            spread(w, op, in.verdict, in.apart, in.suspect == LB_NONE ? i : in.suspect);
        }
    }
    walk_finals(w);
}
