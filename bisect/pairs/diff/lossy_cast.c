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

static bool agrees(const lb_diff_walk *walk, uint32_t ia)
{
    return !walk->differs[ia] || walk->shadows.rows[ia].agreement == LB_SHADOW_AGREES;
}

static uint32_t partner_of(const lb_diff_walk *walk, int side, uint32_t op)
{
    return side ? walk->alignment.a_of_b[op] : walk->alignment.b_of_a[op];
}

/* From one float type to another, by an op without a partner. */
static bool is_lone_cast(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    const lb_op *cast = &program->ops[op];
    if (partner_of(walk, side, op) != LB_NONE || !lb_op_is_cast(program, cast)) return false;
    if (!cast->args || !cast->results || lb_op_args(program, cast)[0].tag != LB_ARG_VALUE) return false;
    const uint32_t in = lb_op_args(program, cast)[0].u.value, out = lb_op_results(program, cast)[0];
    if (in == LB_NONE || out == LB_NONE) return false;
    const lb_dtype from = program->values[in].dtype, to = program->values[out].dtype;
    return from != to && lb_dtype_is_float(from) && lb_dtype_is_float(to);
}

/* The op of the other side that gives the same in exact arithmetic; LB_NONE: none is known. In it a cast is the
 * identity: what it is given and what it gives are one quantity there, of which only the latter has lost something. */
static uint32_t counterpart(const lb_diff_walk *walk, int side, uint32_t op)
{
    const uint32_t meets = walk->shadows.meets[side] ? walk->shadows.meets[side][op] : LB_NONE;
    const uint32_t partner = partner_of(walk, side, op);
    if (meets != LB_NONE) return is_lone_cast(walk, side, op) || is_lone_cast(walk, !side, meets) ? LB_NONE : meets;
    if (partner == LB_NONE) return LB_NONE;
    return agrees(walk, side ? partner : op) ? partner : LB_NONE;
}

static uint32_t join_of(const lb_diff_walk *walk, int side, uint32_t op)
{
    return side ? walk->alignment.join_of_b[op] : walk->alignment.join_of_a[op];
}

static bool is_border(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    return lb_op_is_source(program, &program->ops[op]) || join_of(walk, side, op) != LB_NONE ||
           counterpart(walk, side, op) != LB_NONE;
}

static void enter(region *region, int side, uint32_t op)
{
    if (region->seen[side][op]) return;
    region->seen[side][op] = 1;
    region->visits[region->n++] = (visit){op, (uint8_t)side, is_border(region->w, side, op)};
}

static void enter_inputs(region *region, int side, uint32_t op)
{
    const lb_merged_steps *steps = &region->w->merged;
    for (uint32_t k = steps->first_pred[side][op]; k < steps->first_pred[side][op + 1]; k++)
        enter(region, side, steps->preds[side][k]);
}

static void fill(region *region)
{
    for (uint32_t i = 0; i < region->n; i++)
        if (!region->visits[i].border) enter_inputs(region, region->visits[i].side, region->visits[i].op);
}

static bool open_region(region *r, lb_diff_walk *walk)
{
    *r = (region){.w = walk};
    r->visits = malloc(((size_t)walk->pa->n_ops + walk->pb->n_ops + 1) * sizeof *r->visits);
    r->seen[0] = calloc(walk->pa->n_ops + 1, 1), r->seen[1] = calloc(walk->pb->n_ops + 1, 1);
    return r->visits && r->seen[0] && r->seen[1];
}

static void release_region(region *region)
{
    free(region->visits), free(region->seen[0]), free(region->seen[1]);
}

/* ---- measures ---- */

/* By how much two values differ, relative to A's; infinity where their bytes are not known. A stands first whichever
 * side is named first. */
static double values_apart(const lb_diff_walk *walk, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    lb_difference difference;
    if (!lb_diff_walk_value_differs(walk, va, vb)) return 0;
    if (va == LB_NONE || vb == LB_NONE || lb_program_view_value(walk->a, va, &a, NULL) != LB_OK ||
        lb_program_view_value(walk->b, vb, &b, NULL) != LB_OK || lb_compare_numbers(&a, &b, &difference, NULL) != LB_OK)
        return INFINITY;
    return difference.rel_l2;
}

static double results_apart(const lb_diff_walk *walk, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &walk->pa->ops[ia], *b = &walk->pb->ops[ib];
    double apart = lb_op_outcomes(a) == lb_op_outcomes(b) ? 0 : INFINITY;
    for (uint32_t i = 0; i < lb_op_outcomes(a) && i < lb_op_outcomes(b); i++)
        apart = fmax(apart, values_apart(walk, lb_op_outcome(walk->pa, a, i), lb_op_outcome(walk->pb, b, i)));
    return apart;
}

/* A source of B is that of A, which is met on the other side. */
static double entered_at(const lb_diff_walk *walk, const visit *visit)
{
    const lb_program *program = lb_diff_walk_side(walk, visit->side);
    const uint32_t join = join_of(walk, visit->side, visit->op), other = counterpart(walk, visit->side, visit->op);
    if (join != LB_NONE) return walk->differs[walk->alignment.joins.list[join].whole] ? INFINITY : 0;
    if (!lb_op_is_source(program, &program->ops[visit->op]))
        return results_apart(walk, visit->side ? other : visit->op, visit->side ? visit->op : other);
    const uint32_t source = visit->side ? LB_NONE : walk->alignment.source_b_of_a[visit->op];
    if (source == LB_NONE) return 0;
    return values_apart(walk, walk->alignment.shown[0][visit->op], walk->alignment.shown[1][source]);
}

static double entered(const region *region)
{
    double most = 0;
    for (uint32_t i = 0; i < region->n && isfinite(most); i++)
        if (region->visits[i].border) most = fmax(most, entered_at(region->w, &region->visits[i]));
    return most;
}

/* What a cast loses of what it is given; 0 where that is not known. A number that becomes infinite does not count:
 * diff_nonfinite.h speaks of these. */
static double loss_of(const lb_diff_walk *walk, int side, uint32_t cast)
{
    const lb_program_view *view = side ? walk->b : walk->a;
    const lb_op *op = &view->program->ops[cast];
    lb_tensor from, to;
    lb_difference difference;
    if (lb_program_view_value(view, lb_op_args(view->program, op)[0].u.value, &from, NULL) != LB_OK ||
        lb_program_view_value(view, lb_op_results(view->program, op)[0], &to, NULL) != LB_OK ||
        lb_compare_numbers(&from, &to, &difference, NULL) != LB_OK)
        return 0;
    return difference.rel_l2;
}

static bool is_lossy(const lb_diff_walk *walk, const visit *visit, double *loss)
{
    const lb_program *program = lb_diff_walk_side(walk, visit->side);
    if (visit->border || !is_lone_cast(walk, visit->side, visit->op)) return false;
    *loss = loss_of(walk, visit->side, visit->op);
    return *loss > lb_dtype_unit_roundoff(program->values[lb_op_results(program, &program->ops[visit->op])[0]].dtype);
}

/* ---- rows ---- */

/* What a region loses, all of it relative. */
typedef struct losing {
    double cast, entered, left;
} losing;

static void name_cast(lb_diff_walk *walk, int side, uint32_t op, const losing *by)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    const uint32_t in = lb_op_args(program, &program->ops[op])[0].u.value,
                   out = lb_op_results(program, &program->ops[op])[0];
    uint8_t *named = &walk->settled[side ? walk->pa->n_ops + op : op];
    char why[320];
    if (*named & LB_SETTLED_CAST || !(by->cast > by->entered) || !(by->left > by->entered)) return;
    *named |= LB_SETTLED_CAST;
    lb_diff_row row = lb_diff_walk_row(walk, side ? LB_NONE : op, side ? op : LB_NONE);
    lb_place_order(walk, &row);
    row.local = row.verdict = LB_VERDICT_ROUNDING, row.lossy = true;
    snprintf(why, sizeof why,
             "the %s side alone casts %s to %s, which cannot hold it: %.3g %% of it is lost, "
             "where what came in differs by %.3g %% and what leaves by %.3g %% (relative L2)",
             (side == 1) != walk->swapped ? "second" : "first", lb_dtype_name(program->values[in].dtype),
             lb_dtype_name(program->values[out].dtype), 100 * by->cast, 100 * by->entered, 100 * by->left);
    row.why = lb_report_keep(walk->report, why);
    lb_diff_rows_report(walk, &row);
}

/* Measures are taken where some cast is lossy, which is rare. */
static bool has_lossy(const region *region)
{
    double loss;
    for (uint32_t i = 0; i < region->n; i++)
        if (is_lossy(region->w, &region->visits[i], &loss)) return true;
    return false;
}

static void name_casts(const region *region, double left)
{
    losing by = {.entered = entered(region), .left = left};
    for (uint32_t i = 0; i < region->n; i++)
        if (is_lossy(region->w, &region->visits[i], &by.cast))
            name_cast(region->w, region->visits[i].side, region->visits[i].op, &by);
}

void lb_lossy_casts_before(lb_diff_walk *walk, uint32_t op_a)
{
    const uint32_t ib = walk->have_shadows ? counterpart(walk, 0, op_a) : LB_NONE;
    region region;
    if (ib == LB_NONE) return;
    const bool met = walk->shadows.meets[0] && walk->shadows.meets[0][op_a] != LB_NONE;
    if (!met && !walk->shadows.rows[op_a].told) return;
    if (open_region(&region, walk)) {
        enter_inputs(&region, 0, op_a), enter_inputs(&region, 1, ib), fill(&region);
        if (has_lossy(&region)) name_casts(&region, results_apart(walk, op_a, ib));
    }
    release_region(&region);
}

void lb_lossy_casts_of(lb_diff_walk *walk, const uint32_t ops[2], const uint32_t values[2])
{
    region region;
    if (!walk->have_shadows) return;
    if (open_region(&region, walk)) {
        enter(&region, 0, ops[0]), enter(&region, 1, ops[1]), fill(&region);
        if (has_lossy(&region)) name_casts(&region, values_apart(walk, values[0], values[1]));
    }
    release_region(&region);
}
