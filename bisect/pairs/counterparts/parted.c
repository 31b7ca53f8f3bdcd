/* Quantities in parts: see parted.h. */
#include "counterparts/parted.h"

#include "exact/token_rows.h"
#include "counterparts/rank_parts.h"
#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An op of one rank, by its place. */
typedef struct placed {
    uint64_t place;
    uint32_t part, op, nth, value;
} placed;

/* Rows [first, first + n) of `ops`: one of each rank. */
typedef struct whole {
    uint32_t first, n;
    lb_quantity quantity;
    double scale; /* the other side's numbers are that many times as large */
} whole;

typedef struct parts {
    const lb_exact_side *side;
    placed *ops;
    whole *list;
    uint32_t n_ops, n;
} parts;

static uint64_t mix(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15) ^ (hash >> 29);
}

static int by_rank(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->place != b->place) return a->place < b->place ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return (a->op > b->op) - (a->op < b->op);
}

static int by_turn(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->place != b->place) return a->place < b->place ? -1 : 1;
    if (a->nth != b->nth) return a->nth < b->nth ? -1 : 1;
    return (a->part > b->part) - (a->part < b->part);
}

/* Parts are calls: what one of them alone has may lack tokens, too. */
static bool is_by_calls(const lb_exact_side *s)
{
    return s->tokens && s->view->by_calls;
}

/* Which call of its module an op is in says nothing where each call of the model is a part. There ops are counted
 * whether they have met or not: the one row of a decoding step may by chance. */
static bool list_ops(parts *x, const uint32_t *met)
{
    const lb_exact_side *s = x->side;
    const lb_program *p = s->program;
    const bool by_calls = is_by_calls(s);
    x->ops = malloc(((size_t)p->n_ops + 1) * sizeof *x->ops);
    for (uint32_t i = 0; x->ops && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(p, op, 0) : LB_NONE;
        if (v == LB_NONE || (met[v] != LB_NONE && !by_calls) || !s->kept[v] || !s->quantities[v].tells ||
            !lb_value_graph_computes(p, op))
            continue;
        const uint64_t place = mix(mix(mix(mix(1, op->name), op->scope), by_calls ? 0 : op->call), op->phase);
        x->ops[x->n_ops++] = (placed){place, lb_program_view_part_of(s->view, i), i, 0, v};
    }
    if (!x->ops) return false;
    if (x->n_ops) qsort(x->ops, x->n_ops, sizeof *x->ops, by_rank);
    for (uint32_t i = 1; i < x->n_ops; i++)
        if (x->ops[i].place == x->ops[i - 1].place && x->ops[i].part == x->ops[i - 1].part)
            x->ops[i].nth = x->ops[i - 1].nth + 1;
    if (x->n_ops) qsort(x->ops, x->n_ops, sizeof *x->ops, by_turn);
    return true;
}

/* The numbers of all parts as one value, in any order; of tokens that both sides have. */
static bool quantity_of(const parts *x, whole *w)
{
    const lb_exact_side *s = x->side;
    int64_t all = 0, at = 0;
    for (uint32_t i = 0; i < w->n; i++) all += lb_layout_numel(&s->program->values[x->ops[w->first + i].value].layout);
    double *numbers = malloc((size_t)(all + 1) * sizeof *numbers), noise[LB_QUANTITY_MEANS] = {0};
    if (!numbers) return false;
    for (uint32_t i = 0; i < w->n; i++) {
        const uint32_t v = x->ops[w->first + i].value;
        int64_t n = lb_layout_numel(&s->program->values[v].layout);
        double *paired = is_by_calls(s) ? lb_token_rows_paired(s, v, &n) : NULL;
        if (is_by_calls(s) && !paired) return free(numbers), false;
        memcpy(numbers + at, paired ? paired : s->kept[v], (size_t)n * sizeof *numbers), at += n;
        free(paired);
        for (int k = 0; k < LB_QUANTITY_MEANS; k++) noise[k] = fmax(noise[k], s->quantities[v].noise[k]);
    }
    const lb_tensor together = {numbers, LB_F64, lb_layout_contiguous(1, &at)};
    w->quantity = lb_quantity_of(&together);
    memcpy(w->quantity.noise, noise, sizeof noise);
    free(numbers);
    return true;
}

static bool add_whole(parts *x, uint32_t first, uint32_t n)
{
    const lb_program *p = x->side->program;
    whole *w = &x->list[x->n];
    *w = (whole){.first = first, .n = n, .scale = 1};
    if (n < 2 && !is_by_calls(x->side)) return true;
    if (!quantity_of(x, w)) return false;
    if (!w->quantity.tells) return true;
    x->n++;
    if (n < 2 || p->ops[x->ops[first].op].phase != LB_PHASE_BACKWARD) return true;
    whole *scaled = &x->list[x->n++];
    *scaled = *w, scaled->scale = 1.0 / n;
    scaled->quantity.mean[2] /= n, scaled->quantity.scale[2] /= n, scaled->quantity.noise[2] /= n;
    return true;
}

static bool list_wholes(parts *x)
{
    bool room = true;
    x->list = malloc(((size_t)x->n_ops + 2) * sizeof *x->list); /* two of each two ops at most */
    if (!x->list) return false;
    for (uint32_t i = 0, first = 0; i < x->n_ops && room; i++) {
        if (x->ops[i].place != x->ops[first].place || x->ops[i].nth != x->ops[first].nth) first = i;
        const bool last =
            i + 1 == x->n_ops || x->ops[i + 1].place != x->ops[first].place || x->ops[i + 1].nth != x->ops[first].nth;
        if (last) room = add_whole(x, first, i + 1 - first);
    }
    return room;
}

/* ---- beside the other side ---- */

typedef struct candidate {
    double key;
    const lb_quantity *quantity;
    uint32_t value; /* of parts the first's */
    const whole *whole;
} candidate;

static int by_key(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    return (a->key > b->key) - (a->key < b->key);
}

/* What the other side has: values that an op gives, and wholes. */
static candidate *list_candidates(const parts *x, uint32_t *n)
{
    const lb_exact_side *s = x->side;
    candidate *list = malloc(((size_t)s->program->n_values + x->n + 1) * sizeof *list);
    *n = 0;
    for (uint32_t v = 0; list && v < s->program->n_values; v++)
        if (s->quantities[v].tells && s->quantities[v].elements > 1 && s->graph.given[v])
            list[(*n)++] = (candidate){lb_quantity_key(&s->quantities[v]), &s->quantities[v], v, NULL};
    for (uint32_t i = 0; list && i < x->n; i++)
        list[(*n)++] = (candidate){lb_quantity_key(&x->list[i].quantity), &x->list[i].quantity,
                                   x->ops[x->list[i].first].value, &x->list[i]};
    if (list && *n) qsort(list, *n, sizeof *list, by_key);
    return list;
}

static void values_of(const parts *x, const whole *w, uint32_t *values)
{
    for (uint32_t i = 0; i < w->n; i++) values[i] = x->ops[w->first + i].value;
}

/* The numbers are there, on other ranks. */
static bool are_exchanged(const parts *mine, const parts *other, const whole *w, const candidate *c)
{
    const uint32_t n = c->whole ? c->whole->n : 1;
    uint32_t *values = malloc(((size_t)w->n + n) * sizeof *values);
    if (!values) return true;
    values_of(mine, w, values);
    if (c->whole)
        values_of(other, c->whole, values + w->n);
    else
        values[w->n] = c->value;
    const bool exchanged = lb_rank_parts_are_out_of_order(mine->side, values, w->n, other->side, values + w->n, n,
                                                          w->scale / (c->whole ? c->whole->scale : 1));
    free(values);
    return exchanged;
}

/* In forward numbers are the same; in backward both may be scaled, by as many as their ranks. */
static const candidate *find_candidate(const parts *mine, const parts *other, const candidate *list, uint32_t n,
                                       const whole *w)
{
    const double key = lb_quantity_key(&w->quantity), reach = 4 * lb_quantity_reach(&w->quantity);
    const double least = key - reach;
    for (uint32_t low = (uint32_t)lb_array_first(list, n, sizeof *list, &least, lb_by_f64);
         low < n && list[low].key <= key + reach; low++)
        if (list[low].quantity->elements == w->quantity.elements &&
            lb_quantities_agree(list[low].quantity, &w->quantity) && !are_exchanged(mine, other, w, &list[low]))
            return &list[low];
    return NULL;
}

static void note(const parts *mine, const parts *other, whole *w, const candidate *c, uint32_t *met_mine,
                 uint32_t *met_other)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const uint32_t v = mine->ops[w->first + i].value;
        if (met_mine[v] == LB_NONE) met_mine[v] = c->value;
    }
    const uint32_t first = mine->ops[w->first].value;
    for (uint32_t i = 0; i < (c->whole ? c->whole->n : 1); i++) {
        const uint32_t v = c->whole ? other->ops[c->whole->first + i].value : c->value;
        if (met_other[v] == LB_NONE) met_other[v] = first;
    }
}

static bool meet_side(const parts *mine, const parts *other, uint32_t *met_mine, uint32_t *met_other)
{
    uint32_t n;
    candidate *list = list_candidates(other, &n);
    for (uint32_t i = 0; list && i < mine->n; i++) {
        const candidate *c = find_candidate(mine, other, list, n, &mine->list[i]);
        if (c) note(mine, other, &mine->list[i], c, met_mine, met_other);
    }
    free(list);
    return list != NULL;
}

bool lb_parted_meet(const lb_exact_side *const sides[2], uint32_t *const met[2])
{
    parts of[2] = {{.side = sides[0]}, {.side = sides[1]}};
    bool room = true;
    const bool by_calls = is_by_calls(sides[0]);
    if (sides[0]->view->n_parts < 2 && sides[1]->view->n_parts < 2 && !by_calls) return true;
    for (int k = 0; k < 2 && room; k++)
        if (sides[k]->view->n_parts > 1 || by_calls) room = list_ops(&of[k], met[k]) && list_wholes(&of[k]);
    for (int k = 0; k < 2 && room; k++) room = meet_side(&of[k], &of[!k], met[k], met[!k]);
    for (int k = 0; k < 2; k++) free(of[k].ops), free(of[k].list);
    return room;
}
