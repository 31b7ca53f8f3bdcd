/* Looking for casts that lose: see lossy_cast.h. */
#include "diff/lossy_cast.h"

#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct visit {
    uint32_t op;
    uint8_t side;
    bool border; /* what it gives is the same on both sides in exact arithmetic */
} visit;

/* What lies between a quantity that both sides have and those it follows from that both have. */
typedef struct region {
    lb_diff_walk *w;
    visit *visits;
    uint32_t n;
    uint8_t *seen[2]; /* per op of either side */
} region;

/* ---- the region ---- */

static bool agrees(const lb_diff_walk *w, uint32_t ia)
{
    return !w->differs[ia] || w->shadows.rows[ia].agreement == LB_SHADOW_AGREES;
}

static uint32_t partner_of(const lb_diff_walk *w, int side, uint32_t op)
{
    return side ? w->alignment.a_of_b[op] : w->alignment.b_of_a[op];
}

/* From one float type to another, by an op without a partner. */
static bool is_lone_cast(const lb_diff_walk *w, int side, uint32_t op)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    const lb_op *cast = &p->ops[op];
    if (partner_of(w, side, op) != LB_NONE || !lb_op_is_cast(p, cast)) return false;
    if (!cast->args || !cast->results || lb_op_args(p, cast)[0].tag != LB_ARG_VALUE) return false;
    const uint32_t in = lb_op_args(p, cast)[0].u.value, out = lb_op_results(p, cast)[0];
    if (in == LB_NONE || out == LB_NONE) return false;
    const lb_dtype from = p->values[in].dtype, to = p->values[out].dtype;
    return from != to && lb_dtype_is_float(from) && lb_dtype_is_float(to);
}

/* The op of the other side that gives the same in exact arithmetic; LB_NONE: none is known. In it a cast is the
 * identity: what it is given and what it gives are one quantity there, of which only the latter has lost something. */
static uint32_t counterpart(const lb_diff_walk *w, int side, uint32_t op)
{
    const uint32_t meets = w->shadows.meets[side] ? w->shadows.meets[side][op] : LB_NONE;
    const uint32_t partner = partner_of(w, side, op);
    if (meets != LB_NONE) return is_lone_cast(w, side, op) || is_lone_cast(w, !side, meets) ? LB_NONE : meets;
    if (partner == LB_NONE) return LB_NONE;
    return agrees(w, side ? partner : op) ? partner : LB_NONE;
}

static uint32_t join_of(const lb_diff_walk *w, int side, uint32_t op)
{
    return side ? w->alignment.join_of_b[op] : w->alignment.join_of_a[op];
}

static bool is_border(const lb_diff_walk *w, int side, uint32_t op)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    return lb_op_is_source(p, &p->ops[op]) || join_of(w, side, op) != LB_NONE || counterpart(w, side, op) != LB_NONE;
}

static void enter(region *r, int side, uint32_t op)
{
    if (r->seen[side][op]) return;
    r->seen[side][op] = 1;
    r->visits[r->n++] = (visit){op, (uint8_t)side, is_border(r->w, side, op)};
}

static void enter_inputs(region *r, int side, uint32_t op)
{
    const lb_merged_steps *m = &r->w->merged;
    for (uint32_t k = m->first_pred[side][op]; k < m->first_pred[side][op + 1]; k++) enter(r, side, m->preds[side][k]);
}

static void fill(region *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (!r->visits[i].border) enter_inputs(r, r->visits[i].side, r->visits[i].op);
}

static bool open_region(region *r, lb_diff_walk *w)
{
    *r = (region){.w = w};
    r->visits = malloc(((size_t)w->pa->n_ops + w->pb->n_ops + 1) * sizeof *r->visits);
    r->seen[0] = calloc(w->pa->n_ops + 1, 1), r->seen[1] = calloc(w->pb->n_ops + 1, 1);
    return r->visits && r->seen[0] && r->seen[1];
}

static void release_region(region *r)
{
    free(r->visits), free(r->seen[0]), free(r->seen[1]);
}

/* ---- measures ---- */

/* By how much two values differ, relative to A's; infinity where their bytes are not known. A stands first whichever
 * side is named first. */
static double values_apart(const lb_diff_walk *w, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    lb_difference d;
    if (!lb_diff_walk_value_differs(w, va, vb)) return 0;
    if (va == LB_NONE || vb == LB_NONE || lb_program_view_value(w->a, va, &a, NULL) != LB_OK ||
        lb_program_view_value(w->b, vb, &b, NULL) != LB_OK || lb_compare_numbers(&a, &b, &d, NULL) != LB_OK)
        return INFINITY;
    return d.rel_l2;
}

static double results_apart(const lb_diff_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    double apart = lb_op_outcomes(a) == lb_op_outcomes(b) ? 0 : INFINITY;
    for (uint32_t i = 0; i < lb_op_outcomes(a) && i < lb_op_outcomes(b); i++)
        apart = fmax(apart, values_apart(w, lb_op_outcome(w->pa, a, i), lb_op_outcome(w->pb, b, i)));
    return apart;
}

/* A source of B is that of A, which is met on the other side. */
static double entered_at(const lb_diff_walk *w, const visit *v)
{
    const lb_program *p = lb_diff_walk_side(w, v->side);
    const uint32_t join = join_of(w, v->side, v->op), other = counterpart(w, v->side, v->op);
    if (join != LB_NONE) return w->differs[w->alignment.joins.list[join].whole] ? INFINITY : 0;
    if (!lb_op_is_source(p, &p->ops[v->op])) return results_apart(w, v->side ? other : v->op, v->side ? v->op : other);
    const uint32_t source = v->side ? LB_NONE : w->alignment.source_b_of_a[v->op];
    if (source == LB_NONE) return 0;
    return values_apart(w, w->alignment.shown[0][v->op], w->alignment.shown[1][source]);
}

static double entered(const region *r)
{
    double most = 0;
    for (uint32_t i = 0; i < r->n && isfinite(most); i++)
        if (r->visits[i].border) most = fmax(most, entered_at(r->w, &r->visits[i]));
    return most;
}

/* What a cast loses of what it is given; 0 where that is not known. A number that becomes infinite does not count:
 * diff_nonfinite.h speaks of these. */
static double loss_of(const lb_diff_walk *w, int side, uint32_t cast)
{
    const lb_program_view *view = side ? w->b : w->a;
    const lb_op *op = &view->program->ops[cast];
    lb_tensor from, to;
    lb_difference d;
    if (lb_program_view_value(view, lb_op_args(view->program, op)[0].u.value, &from, NULL) != LB_OK ||
        lb_program_view_value(view, lb_op_results(view->program, op)[0], &to, NULL) != LB_OK ||
        lb_compare_numbers(&from, &to, &d, NULL) != LB_OK)
        return 0;
    return d.rel_l2;
}

static bool is_lossy(const lb_diff_walk *w, const visit *v, double *loss)
{
    const lb_program *p = lb_diff_walk_side(w, v->side);
    if (v->border || !is_lone_cast(w, v->side, v->op)) return false;
    *loss = loss_of(w, v->side, v->op);
    return *loss > lb_dtype_unit_roundoff(p->values[lb_op_results(p, &p->ops[v->op])[0]].dtype);
}

/* ---- rows ---- */

/* What a region loses, all of it relative. */
typedef struct losing {
    double cast, entered, left;
} losing;

static void name_cast(lb_diff_walk *w, int side, uint32_t op, const losing *by)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    const uint32_t in = lb_op_args(p, &p->ops[op])[0].u.value, out = lb_op_results(p, &p->ops[op])[0];
    uint8_t *named = &w->settled[side ? w->pa->n_ops + op : op];
    char why[320];
    if (*named & LB_SETTLED_CAST || !(by->cast > by->entered) || !(by->left > by->entered)) return;
    *named |= LB_SETTLED_CAST;
    lb_diff_row row = lb_diff_walk_row(w, side ? LB_NONE : op, side ? op : LB_NONE);
    lb_place_order(w, &row);
    row.local = row.verdict = LB_VERDICT_ROUNDING, row.lossy = true;
    snprintf(
        why, sizeof why,
        "the %s side alone casts %s to %s, which cannot hold it: %.3g %% of it is lost, where what came in differs "
        "by %.3g %% and what leaves by %.3g %% (relative L2)",
        (side == 1) != w->swapped ? "second" : "first", lb_dtype_name(p->values[in].dtype),
        lb_dtype_name(p->values[out].dtype), 100 * by->cast, 100 * by->entered, 100 * by->left);
    row.why = lb_report_keep(w->report, why);
    lb_diff_rows_report(w, &row);
}

/* Measures are taken where some cast is lossy, which is rare. */
static bool has_lossy(const region *r)
{
    double loss;
    for (uint32_t i = 0; i < r->n; i++)
        if (is_lossy(r->w, &r->visits[i], &loss)) return true;
    return false;
}

static void name_casts(const region *r, double left)
{
    losing by = {.entered = entered(r), .left = left};
    for (uint32_t i = 0; i < r->n; i++)
        if (is_lossy(r->w, &r->visits[i], &by.cast)) name_cast(r->w, r->visits[i].side, r->visits[i].op, &by);
}

void lb_lossy_casts_before(lb_diff_walk *w, uint32_t ia)
{
    const uint32_t ib = w->have_shadows ? counterpart(w, 0, ia) : LB_NONE;
    region r;
    if (ib == LB_NONE) return;
    const bool met = w->shadows.meets[0] && w->shadows.meets[0][ia] != LB_NONE;
    if (!met && !w->shadows.rows[ia].told) return;
    if (open_region(&r, w)) {
        enter_inputs(&r, 0, ia), enter_inputs(&r, 1, ib), fill(&r);
        if (has_lossy(&r)) name_casts(&r, results_apart(w, ia, ib));
    }
    release_region(&r);
}

void lb_lossy_casts_of(lb_diff_walk *w, const uint32_t ops[2], const uint32_t values[2])
{
    region r;
    if (!w->have_shadows) return;
    if (open_region(&r, w)) {
        enter(&r, 0, ops[0]), enter(&r, 1, ops[1]), fill(&r);
        if (has_lossy(&r)) name_casts(&r, values_apart(w, values[0], values[1]));
    }
    release_region(&r);
}
