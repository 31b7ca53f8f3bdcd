/* What rounding on one side alone does: see slack.h. */
#include "implementations/slack.h"

#include "implementations/differences.h"
#include "shadow/shadow_numbers.h"
#include "program/input_name.h"

#include "base/hash.h"
#include <lastbit/dtype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double SLACK_NEAR = 0x1p-16;

/* Is the second side's model given what the first one's is not? */
static bool are_given_different_inputs(const lb_implementations *x)
{
    for (uint32_t i = 0; i < x->sources[1].n; i++)
        if (lb_input_name_is(x->sources[1].list[i].name) && x->contents.list[i].relation == LB_CONTENT_NONE)
            return true;
    return false;
}

double lb_slack_room(const lb_implementations *x)
{
    return x->alone && !are_given_different_inputs(x)
               ? fmin(LB_COUNTERPARTS_SLACK_TIMES * x->counterparts.most_slack, SLACK_NEAR)
               : 0;
}

/* A's tables whose numbers B goes on from: their rounding is in both. */
static void leave_out_tables(const lb_implementations *x, uint8_t *alone)
{
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        for (uint32_t k = 0; k < c->n && c->kind == LB_COUNTERPART_TABLE && c->state == LB_COUNTERPART_SAME; k++) {
            const uint32_t v = x->counterparts.pieces[c->first + k].tensor,
                           source = lb_value_graph_source(&x->sides[0].graph, v),
                           row = source == LB_NONE ? LB_NONE : x->sources[0].row_of[source];
            if (row != LB_NONE) alone[row] = 0;
        }
    }
}

/* Per row of sources: a float that the step reads and the other side does not hold. malloc'ed; NULL: out of memory. */
static uint8_t *list_alone(const lb_implementations *x, int side)
{
    const lb_exact_side *s = &x->sides[side];
    const lb_step_sources *sources = &x->sources[side];
    uint8_t *held = lb_step_sources_held(&x->contents, side, sources->n, true), *alone = calloc(sources->n + 1, 1);
    for (uint32_t v = 0; held && alone && v < s->program->n_values; v++) {
        const uint32_t source = s->graph.read[v] ? lb_value_graph_source(&s->graph, v) : LB_NONE,
                       row = source == LB_NONE ? LB_NONE : sources->row_of[source];
        if (row == LB_NONE || held[row] || s->held[source]) continue;
        alone[row] = lb_dtype_is_float(s->program->values[source].dtype) &&
                     lb_layout_numel(&s->program->values[source].layout) > 1;
    }
    if (!held) free(alone), alone = NULL;
    if (alone && !side) leave_out_tables(x, alone);
    free(held);
    return alone;
}

/* Between -1 and 1, the same for the same element in every run. */
static double drawn(uint64_t serial)
{
    uint64_t z = (serial + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9), z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

/* Which row of a table an element is in: counted along the longest of its dimensions but the last. */
static int64_t row_of(const lb_layout *l, int64_t element)
{
    int64_t longest = 1, row = 0;
    element /= l->shape[l->ndim - 1] ? l->shape[l->ndim - 1] : 1;
    for (int d = l->ndim - 1; d-- > 0;) {
        if (l->shape[d] > longest) longest = l->shape[d], row = element % l->shape[d];
        element /= l->shape[d] ? l->shape[d] : 1;
    }
    return row;
}

/* Of few numbers the one that tells may hardly move by chance: each is moved by all of its roundoff. */
enum { MANY = 64 };

static double *disturbed(const lb_implementations *x, int side, uint32_t row)
{
    const lb_exact_side *s = &x->sides[side];
    const uint32_t v = x->sources[side].list[row].value;
    const lb_value *value = &s->program->values[v];
    const lb_tensor *t = &x->sources[side].tensors[row].tensor;
    const int64_t n = lb_layout_numel(&value->layout);
    double *numbers = t->data ? lb_shadow_numbers_copy(t) : NULL, most = 0;
    for (int64_t i = 0; numbers && i < n; i++)
        if (fabs(numbers[i]) < 0x1p96) most = fmax(most, fabs(numbers[i]));
    /* A buffer may be a table of angles: its error is of the largest element, and grows from row to row. */
    const bool table = !(value->flags & LB_VALUE_PARAMETER);
    const double u = lb_dtype_unit_roundoff(value->dtype);
    for (int64_t i = 0; numbers && i < n; i++) {
        const double rows = table && value->layout.ndim > 1 ? (double)(row_of(&value->layout, i) + 1) : 1;
        const double by = drawn((uint64_t)i ^ (uint64_t)row << 40);
        numbers[i] += rows * u * (table ? most : fabs(numbers[i])) * (n < MANY ? copysign(1, by) : by);
    }
    return numbers;
}

/* The numbers that a counterpart stands for on a side; malloc'ed. */
static double *numbers_of(const lb_implementations *x, int side, const lb_counterpart *c, int64_t n)
{
    const lb_exact_side *b = &x->sides[1];
    uint8_t *known = NULL;
    double noise, *copy = NULL;
    if (!side) {
        copy = lb_counterpart_expected(&x->counterparts, c, &x->sides[0], n, &known, &noise);
        free(known);
    } else if (b->kept[c->b] && (copy = malloc((size_t)n * sizeof *copy))) {
        memcpy(copy, b->kept[c->b], (size_t)n * sizeof *copy);
    }
    return copy;
}

/* Did the run give what an earlier one gave, wherever the counterpart stands for it? */
static bool is_unmoved(const lb_implementations *x, int side, const lb_counterpart *c, double *const *moved)
{
    double *const *kept = x->sides[side].kept;
    bool same = true;
    if (side) return moved[c->b] == kept[c->b];
    for (uint32_t k = 0; k < c->n && same; k++) {
        const uint32_t v = x->counterparts.pieces[c->first + k].tensor;
        same = moved[v] == kept[v];
    }
    return same;
}

/* `slack`: per counterpart. */
static lb_status run_disturbed(lb_implementations *x, int side, double *slack, lb_err *err)
{
    lb_exact_side *s = &x->sides[side];
    double **kept = s->kept, **moved = NULL;
    const lb_status status = lb_exact_side_run_aside(s, &moved, err);
    for (uint32_t i = 0; i < x->counterparts.n && status == LB_OK; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        const int64_t elements = lb_layout_numel(&x->sides[1].program->values[c->b].layout);
        if (c->kind >= LB_COUNTERPART_TURNED || is_unmoved(x, side, c, moved)) continue;
        double *still = numbers_of(x, side, c, elements);
        s->kept = moved;
        double *now = numbers_of(x, side, c, elements);
        s->kept = kept;
        if (now && still) slack[i] = lb_counterparts_distance(still, now, elements);
        free(now), free(still);
    }
    lb_exact_side_free_kept(s, moved);
    return status;
}

/* Per value of A: it, or what shows it in another shape, leaves the step, so that nothing follows from it. malloc'ed;
 * NULL: out of memory. */
static uint8_t *list_leaving(const lb_implementations *x)
{
    const lb_program *p = x->sides[0].program;
    uint8_t *leaves = calloc((size_t)p->n_values + 1, 1);
    lb_hash storages = {0};
    bool room = leaves != NULL;
    for (uint32_t i = 0; i < x->counterparts.n && room; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        for (uint32_t k = 0; k < c->n && room && lb_differences_leave(c); k++) {
            const uint32_t v = x->counterparts.pieces[c->first + k].tensor;
            if (!leaves[v]) room = lb_hash_add(&storages, (uint64_t)p->values[v].storage, v);
            leaves[v] = 1;
        }
    }
    for (uint32_t v = 0; v < p->n_values && room; v++) {
        const int64_t storage = p->values[v].storage;
        LB_HASH_EACH(other, &storages, (uint64_t)storage)
        {
            leaves[v] |= p->values[other].storage == storage;
        }
    }
    lb_hash_release(&storages);
    if (!room) free(leaves), leaves = NULL;
    return leaves;
}

/* A goes on from its own numbers wherever B would from them: what was disturbed before does not reach further. False
 * when out of memory. */
static bool hold_first(lb_implementations *x, uint8_t **own)
{
    lb_exact_side *a = &x->sides[0];
    uint8_t *leaves = list_leaving(x);
    *own = leaves ? calloc(a->program->n_values + 1, 1) : NULL;
    for (uint32_t i = 0; *own && i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (!lb_counterpart_can_be_put(&x->counterparts, c, a, &x->sides[1])) continue;
        for (uint32_t k = 0; k < c->n; k++) {
            const uint32_t v = x->counterparts.pieces[c->first + k].tensor;
            if (a->graph.given[v] && a->kept[v] && !a->forced[v] && !leaves[v])
                a->forced[v] = a->kept[v], (*own)[v] = 1;
        }
    }
    free(leaves);
    return *own != NULL;
}

static lb_status run_from_place_to_place(lb_implementations *x, int side, double *slack, lb_err *err)
{
    if (side) {
        lb_differences_force(x);
        const lb_status status = run_disturbed(x, side, slack, err);
        lb_differences_unforce(x);
        return status;
    }
    uint8_t *own;
    if (!hold_first(x, &own)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for values");
    const lb_status status = run_disturbed(x, side, slack, err);
    for (uint32_t v = 0; v < x->sides[0].program->n_values; v++)
        if (own[v]) x->sides[0].forced[v] = NULL;
    free(own);
    return status;
}

/* The side once more, with the tensors that it alone holds disturbed. */
static lb_status measure_side(lb_implementations *x, int side, bool from_place_to_place, double *slack,
                              uint32_t *tensors, lb_err *err)
{
    const lb_step_sources *sources = &x->sources[side];
    double **forced = x->sides[side].forced;
    uint8_t *alone = list_alone(x, side);
    uint32_t n = 0;
    lb_status status = alone ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u sources", sources->n);
    for (uint32_t i = 0; i < sources->n && status == LB_OK; i++)
        n += alone[i] && (forced[sources->list[i].value] = disturbed(x, side, i));
    if (n && status == LB_OK)
        status =
            from_place_to_place ? run_from_place_to_place(x, side, slack, err) : run_disturbed(x, side, slack, err);
    for (uint32_t i = 0; i < sources->n && alone; i++)
        if (alone[i]) free(forced[sources->list[i].value]), forced[sources->list[i].value] = NULL;
    free(alone);
    *tensors += n;
    return status;
}

static bool is_measured(const lb_implementations *x, const lb_counterpart *c)
{
    return c->kind < LB_COUNTERPART_TURNED && x->sides[1].kept[c->b];
}

/* Is it the other side that rounded: does what rounding its tensors may do explain some counterpart, which rounding
 * this side's would move much further? Codes of 4 or 8 bits and their scales are exact beside weights that were made of
 * them. */
static bool is_exact(const lb_implementations *x, const double *mine, const double *other)
{
    const double much = 64, least = 0x1p-20;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (is_measured(x, c) && mine[i] > least && much * c->distance <= mine[i] &&
            c->distance <= LB_COUNTERPARTS_SLACK_TIMES * other[i])
            return true;
    }
    return false;
}

/* How many counterparts may be as far apart as they are by these roundings. */
static uint32_t count_explained(const lb_implementations *x, const double *slack)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        n += is_measured(x, c) && c->distance <= LB_COUNTERPARTS_SLACK_TIMES * slack[i];
    }
    return n;
}

/* The side that rounded, where it is one alone; -1: either may have. */
static int side_that_rounded(const lb_implementations *x, double *const slack[2])
{
    const bool exact[] = {is_exact(x, slack[0], slack[1]), is_exact(x, slack[1], slack[0])};
    if (exact[0] && exact[1]) return count_explained(x, slack[1]) > count_explained(x, slack[0]);
    return exact[0] ? 1 : exact[1] ? 0 : -1;
}

lb_status lb_slack_measure(lb_implementations *x, bool from_place_to_place, uint32_t *tensors, lb_err *err)
{
    lb_counterparts *all = &x->counterparts;
    double *slack[2] = {calloc((size_t)all->n + 1, sizeof **slack), calloc((size_t)all->n + 1, sizeof **slack)};
    lb_status status =
        slack[0] && slack[1] ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u counterparts", all->n);
    *tensors = 0;
    for (int side = 0; side < 2 && status == LB_OK; side++)
        status = measure_side(x, side, from_place_to_place, slack[side], tensors, err);
    const int rounded = status == LB_OK ? side_that_rounded(x, slack) : -1;
    all->most_slack = 0, all->from_place_to_place = from_place_to_place;
    for (uint32_t i = 0; i < all->n && status == LB_OK; i++) {
        all->list[i].slack = rounded < 0 ? fmax(slack[0][i], slack[1][i]) : slack[rounded][i];
        all->most_slack = fmax(all->most_slack, all->list[i].slack);
    }
    free(slack[0]), free(slack[1]);
    return status;
}

/* ---- coarser dtypes ---- */

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

static lb_status measure_casts(lb_implementations *x, int side, const uint8_t *casts, lb_coarse *found, lb_err *err)
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
    lb_coarse found = {.value = LB_NONE};
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

lb_status lb_slack_find_coarse(lb_implementations *x, lb_err *err)
{
    lb_status status = find_tables(x, err);
    for (int side = 0; side < 2 && status == LB_OK; side++) {
        const lb_exact_side *s = &x->sides[side];
        lb_coarse found = {.side = side, .value = LB_NONE};
        uint8_t *casts = calloc(s->program->n_values + 1, 1);
        if (!casts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for casts");
        for (uint32_t v = 0; v < s->program->n_values; v++) {
            if (!s->kept[v] || s->forced[v] || !narrows(s, v) || is_on_both(s, v, &x->sides[!side])) continue;
            casts[v] = 1;
            if (!found.times++) found.value = v;
        }
        if (found.times) status = measure_casts(x, side, casts, &found, err);
        free(casts);
        if (found.times && found.effect > LARGE * found.usual && found.effect > x->coarse.effect) x->coarse = found;
    }
    return status;
}
