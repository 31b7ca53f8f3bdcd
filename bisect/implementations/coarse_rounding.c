/* Roundings to a coarser dtype that one side alone makes: see coarse_rounding.h. */
#include "coarse_rounding.h"

#include "shadow_numbers.h"

#include <lastbit/dtype.h>
#include <math.h>
#include <stdlib.h>

static const double LARGE = 16; /* times what the other side's rounding does */

static double roundoff(const lb_program *p, uint32_t v)
{
    return lb_dtype_unit_roundoff(p->values[v].dtype);
}

/* A cast of reals to a coarser dtype. */
static bool narrows(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    const lb_program *p = s->program;
    const uint32_t op = g->giver[v], first = g->first_pred[v];
    if (op == LB_NONE || !g->given[v] || !lb_dtype_is_float(p->values[v].dtype) || lb_op_is_source(p, &p->ops[op]) ||
        lb_value_graph_computes(p, &p->ops[op]) || g->first_pred[v + 1] - first != 1)
        return false;
    const uint32_t from = g->preds[first];
    return lb_dtype_is_float(p->values[from].dtype) && roundoff(p, v) > roundoff(p, from);
}

/* Does the other side hold these numbers in a dtype as coarse? */
static bool is_on_both(const lb_exact_side *s, uint32_t v, const lb_exact_side *other)
{
    for (uint32_t w = 0; w < other->program->n_values; w++)
        if (lb_dtype_is_float(other->program->values[w].dtype) &&
            roundoff(other->program, w) >= roundoff(s->program, v) &&
            lb_quantities_agree(&s->quantities[v], &other->quantities[w]))
            return true;
    return false;
}

/* The value's exact numbers in its dtype. malloc'ed; NULL: out of memory. */
static double *rounded(const lb_exact_side *s, uint32_t v)
{
    const lb_value *value = &s->program->values[v];
    const int64_t n = lb_layout_numel(&value->layout);
    const lb_cast nearest = LB_CAST_INIT;
    void *bytes = malloc((size_t)n * (lb_dtype_bits(value->dtype) / 8) + 1);
    const lb_tensor t = {bytes, value->dtype, lb_layout_contiguous(value->layout.ndim, value->layout.shape)};
    if (bytes) lb_store_f64_strided(value->dtype, bytes, 1, s->kept[v], (size_t)n, &nearest);
    double *numbers = bytes ? lb_shadow_numbers_copy(&t) : NULL;
    free(bytes);
    return numbers;
}

/* The value of a side that leaves the step there; LB_NONE: it is made of several. */
static uint32_t exit_of(const lb_implementations *x, const lb_counterpart *c, int side)
{
    if (c->kind != LB_COUNTERPART_EXIT || c->n != 1) return LB_NONE;
    return side ? c->b : x->counterparts.pieces[c->first].tensor;
}

/* How far results of a side are from others of it, at most. `others` NULL: from those that were recorded. */
static double distance_of_exits(const lb_implementations *x, int side, double *const *exact, double *const *others)
{
    const lb_exact_side *s = &x->sides[side];
    double most = 0;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const uint32_t v = exit_of(x, &x->counterparts.list[i], side);
        if (v == LB_NONE || !exact[v]) continue;
        double *recorded = others ? NULL : lb_exact_side_recorded(s, v);
        const double *numbers = others ? others[v] : recorded;
        if (numbers)
            most =
                fmax(most, lb_counterparts_distance(exact[v], numbers, lb_layout_numel(&s->program->values[v].layout)));
        free(recorded);
    }
    return most;
}

static lb_status measure(lb_implementations *x, int side, const uint8_t *casts, lb_coarse_rounding *found, lb_err *err)
{
    lb_exact_side *s = &x->sides[side];
    double **moved = NULL;
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if (casts[v]) s->forced[v] = rounded(s, v);
    const lb_status status = lb_exact_side_run_aside(s, &moved, err);
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if (casts[v]) free(s->forced[v]), s->forced[v] = NULL;
    if (status == LB_OK)
        found->effect = distance_of_exits(x, side, s->kept, moved),
        found->usual = distance_of_exits(x, !side, x->sides[!side].kept, NULL);
    lb_exact_side_free_kept(s, moved);
    return status;
}

/* The source in a coarser dtype than the other side's that a table counterpart shows on a side; LB_NONE. */
static uint32_t coarse_table(const lb_implementations *x, const lb_counterpart *c, int *side)
{
    const uint32_t values[2] = {x->counterparts.pieces[c->first].tensor, c->b};
    uint32_t tables[2];
    double held[2];
    for (int k = 0; k < 2; k++) {
        tables[k] = lb_value_graph_source(&x->sides[k].graph, values[k]);
        held[k] = roundoff(x->sides[k].program, tables[k] == LB_NONE ? values[k] : tables[k]);
    }
    *side = held[1] > held[0];
    return held[0] == held[1] ? LB_NONE : tables[*side];
}

/* Tables that one side holds in a coarser dtype, and B goes on from A's numbers for: once more from B's own. */
static lb_status find_tables(lb_implementations *x, lb_err *err)
{
    lb_exact_side *b = &x->sides[1];
    lb_coarse_rounding found = {.value = LB_NONE};
    double **held = calloc(b->program->n_values + 1, sizeof *held), **moved = NULL;
    if (!held) return lb_fail(err, LB_ERR_NOMEM, "out of memory for tables");
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        int side;
        const uint32_t table = c->kind == LB_COUNTERPART_TABLE && b->held[c->b] ? coarse_table(x, c, &side) : LB_NONE;
        if (table == LB_NONE) continue;
        held[c->b] = b->held[c->b], b->held[c->b] = NULL;
        if (!found.times++) found.side = side, found.value = table;
    }
    const lb_status status = found.times ? lb_exact_side_run_aside(b, &moved, err) : LB_OK;
    for (uint32_t v = 0; v < b->program->n_values; v++)
        if (held[v]) b->held[v] = held[v];
    if (moved && status == LB_OK)
        found.effect = distance_of_exits(x, 1, b->kept, moved),
        found.usual = distance_of_exits(x, !found.side, found.side ? x->sides[0].kept : moved, NULL);
    if (found.effect > LARGE * found.usual) x->coarse = found;
    lb_exact_side_free_kept(b, moved);
    free(held);
    return status;
}

lb_status lb_coarse_rounding_find(lb_implementations *x, lb_err *err)
{
    lb_status status = find_tables(x, err);
    for (int side = 0; side < 2 && status == LB_OK; side++) {
        const lb_exact_side *s = &x->sides[side];
        lb_coarse_rounding found = {.side = side, .value = LB_NONE};
        uint8_t *casts = calloc(s->program->n_values + 1, 1);
        if (!casts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for casts");
        for (uint32_t v = 0; v < s->program->n_values; v++) {
            if (!s->kept[v] || s->forced[v] || !narrows(s, v) || is_on_both(s, v, &x->sides[!side])) continue;
            casts[v] = 1;
            if (!found.times++) found.value = v;
        }
        if (found.times) status = measure(x, side, casts, &found, err);
        free(casts);
        if (found.times && found.effect > LARGE * found.usual && found.effect > x->coarse.effect) x->coarse = found;
    }
    return status;
}
