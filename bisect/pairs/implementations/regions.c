/* Parts of two implementations that are not the same function: see regions.h. */
#include "counterparts/counterpart_orders.h"
#include "implementations/chosen_rows.h"
#include "implementations/flipped_choice.h"
#include "implementations/inherited.h"
#include "counterparts/rank_parts.h"
#include "implementations/region_op.h"
#include "implementations/region_table.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- equal quantities ---- */

typedef struct keyed {
    double key;
    uint32_t value;
} keyed;

static int by_key(const void *x, const void *y)
{
    const keyed *a = x, *b = y;
    return a->key != b->key ? (a->key > b->key) - (a->key < b->key) : (a->value > b->value) - (a->value < b->value);
}

static keyed *sorted(const lb_exact_side *s, uint32_t *n)
{
    keyed *list = malloc((s->program->n_values + 1) * sizeof *list);
    *n = 0;
    for (uint32_t v = 0; list && v < s->program->n_values; v++)
        if (s->quantities[v].tells) list[(*n)++] = (keyed){lb_quantity_key(&s->quantities[v]), v};
    if (list && *n) qsort(list, *n, sizeof *list, by_key);
    return list;
}

/* Of two values that are one quantity: the first that an op computes, not a copy of it. */
static uint32_t nearer(const lb_exact_side *s, uint32_t x, uint32_t y)
{
    const lb_value_graph *g = &s->graph;
    bool computed[2];
    if (x == LB_NONE) return y;
    for (int k = 0; k < 2; k++) {
        const uint32_t v = k ? y : x;
        computed[k] = lb_value_graph_is_computed(g, v);
    }
    if (computed[0] != computed[1]) return computed[0] ? x : y;
    return x < y ? x : y;
}

/* Whole numbers that were chosen (experts, masks made of these) are the other side's where they fall in the same
 * places. Positions may be laid out in any way. */
static bool fall_alike(const lb_exact_side *mine, uint32_t v, const lb_quantity *other)
{
    const lb_quantity *q = &mine->quantities[v];
    return !q->whole || !other->whole || q->digest == other->digest || lb_region_is_made_of_positions(mine, v);
}

/* Are they one but for `room`, element by element? */
static bool are_near(const lb_exact_side *mine, uint32_t v, const lb_exact_side *other, uint32_t w, double room)
{
    const lb_layout *x = &mine->program->values[v].layout, *y = &other->program->values[w].layout;
    return mine->kept[v] && other->kept[w] && !mine->quantities[v].whole && lb_layout_numel(x) == lb_layout_numel(y) &&
           lb_counterpart_orders_agree(x, y) &&
           lb_counterparts_distance(mine->kept[v], other->kept[w], lb_layout_numel(x)) <= room;
}

/* Of all whose key is within `reach` those that agree, else those that are near. */
static uint32_t meet_one(const lb_exact_side *mine, uint32_t v, const lb_exact_side *other, const keyed *list,
                         uint32_t many, double room)
{
    const lb_quantity *q = &mine->quantities[v];
    const double key = lb_quantity_key(q), reach = fmax(4 * lb_quantity_reach(q), room * key);
    const double least = key - reach;
    uint32_t agrees = LB_NONE, near = LB_NONE;
    for (uint32_t low = (uint32_t)lb_array_first(list, many, sizeof *list, &least, lb_by_f64);
         low < many && list[low].key <= key + reach; low++) {
        const uint32_t w = list[low].value;
        if (lb_quantities_agree(q, &other->quantities[w]) && fall_alike(mine, v, &other->quantities[w]))
            agrees = nearer(other, agrees, w);
        else if (room > 0 && agrees == LB_NONE && are_near(mine, v, other, w, room))
            near = nearer(other, near, w);
    }
    return agrees != LB_NONE ? agrees : near;
}

uint32_t *lb_regions_meet(const lb_exact_side *mine, const lb_exact_side *other, double room)
{
    const uint32_t n = mine->program->n_values;
    uint32_t *met = malloc((n + 1) * sizeof *met), many;
    keyed *list = sorted(other, &many);
    for (uint32_t v = 0; met && v < n; v++) {
        met[v] = LB_NONE;
        if (mine->quantities[v].tells && list) met[v] = meet_one(mine, v, other, list, many, room);
    }
    if (!list) free(met), met = NULL;
    free(list);
    return met;
}

/* ---- regions ---- */

enum { MOST_UNDONE = 64, LEAST_VAGUE = 64 };

typedef struct finder {
    const lb_region_question *asked;
    uint8_t *same[2];    /* per value: the search ends here */
    uint8_t *held[2];    /* per source row: the other side has it */
    uint8_t *cleared[2]; /* per op: see region_op.h */
    bool clears_sources;
    uint32_t *stamp[2], walk, *stack;
    lb_chosen_rows chosen;       /* what follows from these rows is no difference of its own */
    lb_region_detached detached; /* where a gradient stops on one side alone */
    lb_regions *out;
    bool failed;
} finder;

/* What shows some of a table is the same, too, and so are A's other tables with these numbers: each layer may have its
 * own. */
static void mark_table(finder *f, const lb_counterpart *c)
{
    const lb_value_graph *g = &f->asked->sides[1]->graph;
    const lb_exact_side *a = f->asked->sides[0];
    const uint32_t first = f->asked->counterparts->pieces[c->first].tensor;
    for (uint32_t v = 0; v < g->program->n_values; v++)
        if (lb_value_graph_source(g, v) == c->b) f->same[1][v] = 1;
    for (uint32_t v = 0; v < a->program->n_values; v++)
        if (a->quantities[v].tells && lb_quantities_agree(&a->quantities[first], &a->quantities[v])) f->same[0][v] = 1;
}

/* Equal numbers in another order, where the order tells, are not the other side's: neither a turned value, nor a window
 * on one, nor its copy. */
static void mark_turned(finder *f, int side)
{
    const lb_counterparts *all = f->asked->counterparts;
    const lb_value_graph *g = &f->asked->sides[side]->graph;
    const lb_program *p = g->program;
    uint8_t *turned = calloc(p->n_values + 1, 1);
    f->failed |= !turned;
    for (uint32_t i = 0; i < all->n && turned; i++)
        if (all->list[i].kind == LB_COUNTERPART_TURNED)
            turned[side ? all->list[i].b : all->pieces[all->list[i].first].tensor] = 1;
    for (uint32_t v = 0; v < p->n_values && turned; v++) {
        const uint32_t first = g->first_pred[v];
        const bool copied = g->first_pred[v + 1] - first == 1 && !lb_value_graph_is_computed(g, v);
        turned[v] |= copied && turned[g->preds[first]];
        if (turned[v]) f->same[side][v] = 0;
    }
    free(turned);
}

/* Does a value follow from another, within a few ops? */
static bool follows_from(const finder *f, int side, uint32_t value, uint32_t other)
{
    const lb_value_graph *g = &f->asked->sides[side]->graph;
    uint32_t list[MOST_UNDONE] = {value}, n = 1;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = g->first_pred[list[i]]; k < g->first_pred[list[i] + 1]; k++) {
            if (g->preds[k] == other) return true;
            if (n < MOST_UNDONE) list[n++] = g->preds[k];
        }
    return false;
}

/* Numbers that a side had before, had changed into others which the other side has, too, and has again (an embedding
 * scaled, and scaled back): they are met, but they stand for what they were before. */
static bool is_undone(const finder *f, int side, uint32_t v)
{
    const lb_exact_side *s = f->asked->sides[side];
    const lb_value_graph *g = &s->graph;
    const uint32_t other = f->asked->met[side][v], first = other == LB_NONE ? LB_NONE : f->asked->met[!side][other];
    bool changed = false;
    if (first == LB_NONE || first == v || !lb_value_graph_is_computed(g, v)) return false;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        const uint32_t from = g->preds[k];
        if (lb_quantities_agree(&s->quantities[from], &s->quantities[v])) return false;
        changed |= s->quantities[from].tells && f->asked->met[side][from] != LB_NONE && !lb_region_is_source(s, from);
    }
    return changed && follows_from(f, side, v, first);
}

static void mark_same(finder *f)
{
    const lb_region_question *q = f->asked;
    for (int k = 0; k < 2; k++)
        for (uint32_t v = 0; v < q->sides[k]->program->n_values; v++)
            f->same[k][v] = q->met[k][v] != LB_NONE && !is_undone(f, k, v);
    mark_turned(f, 0), mark_turned(f, 1);
    for (uint32_t i = 0; i < q->counterparts->n; i++) {
        const lb_counterpart *c = &q->counterparts->list[i];
        if (c->state == LB_COUNTERPART_UNKNOWN ||
            (c->state == LB_COUNTERPART_APART &&
             !lb_counterpart_can_be_put(q->counterparts, c, q->sides[0], q->sides[1])))
            continue;
        f->same[1][c->b] = 1;
        if (c->kind == LB_COUNTERPART_TABLE) mark_table(f, c);
        for (uint32_t k = 0; k < c->n; k++) f->same[0][q->counterparts->pieces[c->first + k].tensor] = 1;
    }
}

static lb_region_frontier frontier_of(const finder *f)
{
    return (lb_region_frontier){
        f->asked,    {f->same[0], f->same[1]}, {f->held[0], f->held[1]}, {f->cleared[0], f->cleared[1]}, f->out,
        &f->detached};
}

static void add_unheld(finder *f, int side, uint32_t source, lb_region *r)
{
    uint32_t *more = lb_array_grow(f->out->unheld, f->out->n_unheld, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    f->out->unheld = more;
    for (uint32_t i = 0; i < r->n_unheld[side]; i++)
        if (more[r->first_unheld[side] + i] == source) return;
    more[f->out->n_unheld++] = source, r->n_unheld[side]++;
}

static void add_op(finder *f, uint32_t op)
{
    uint32_t *more = lb_array_grow(f->out->ops, f->out->n_ops, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    f->out->ops = more;
    f->out->ops[f->out->n_ops++] = op;
}

/* Goes back from a value to where the sides meet, and visits each value on the way once in a walk. `r`: handed on. */
static void walk_back(finder *f, int side, uint32_t value, void (*visit)(finder *, int side, uint32_t v, lb_region *r),
                      lb_region *r)
{
    const lb_value_graph *g = &f->asked->sides[side]->graph;
    uint32_t n = 0;
    if (f->stamp[side][value] == f->walk) return;
    f->stamp[side][value] = f->walk, f->stack[n++] = value;
    while (n) {
        const uint32_t v = f->stack[--n];
        visit(f, side, v, r);
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
            const uint32_t from = g->preds[k];
            if (f->same[side][from] || f->stamp[side][from] == f->walk) continue;
            f->stamp[side][from] = f->walk, f->stack[n++] = from;
        }
    }
}

/* Zeros that states begin with: the other side may make them itself. */
static bool is_zero_state(const lb_exact_side *s, uint32_t v)
{
    const lb_value *value = &s->program->values[v];
    if (value->flags & LB_VALUE_PARAMETER || s->quantities[v].tells) return false;
    double *numbers = lb_exact_side_recorded(s, v);
    bool zero = numbers != NULL;
    for (int64_t i = 0; i < lb_layout_numel(&value->layout) && zero; i++) zero = numbers[i] == 0;
    free(numbers);
    return zero;
}

/* An op by a number that leaves its operand as it is (times 1), and so gives what meets: where a region begins at it,
 * its number may be the one that differs on the other side. B's are looked at: A's part is known by now. */
static void note_idle(finder *f, uint32_t v, const lb_region *r)
{
    static const char *const names[] = {"aten::mul", "aten::div"};
    const lb_exact_side *s = f->asked->sides[1];
    const uint32_t op = s->graph.given[v] ? s->graph.giver[v] : LB_NONE, first = s->graph.first_pred[v];
    if (op == LB_NONE || s->graph.first_pred[v + 1] - first != 1 || s->program->ops[op].phase != LB_PHASE_FORWARD ||
        lb_op_name_among(s->program, &s->program->ops[op], names, 2) < 0)
        return;
    const lb_program *a = f->asked->sides[0]->program;
    bool beside = false; /* A runs one like it */
    for (uint32_t i = 0; i < r->n[0] && !beside; i++)
        beside =
            !strcmp(lb_op_name(a, &a->ops[f->out->ops[r->first[0] + i]]), lb_op_name(s->program, &s->program->ops[op]));
    if (beside && lb_quantities_agree(&s->quantities[v], &s->quantities[s->graph.preds[first]])) add_op(f, op);
}

/* What gives the value is of the region; a source is one that the other side may not hold. One that leads to right
 * numbers elsewhere (a table that each layer reads) is not what differs here. */
static void note_in_region(finder *f, int side, uint32_t v, lb_region *r)
{
    const lb_exact_side *s = f->asked->sides[side];
    const lb_region_frontier frontier = frontier_of(f);
    const uint32_t op = s->graph.giver[v];
    const bool source = lb_region_is_source(s, v);
    if (!source && lb_value_graph_is_computed(&s->graph, v)) {
        add_op(f, op);
        for (uint32_t k = s->graph.first_pred[v]; k < s->graph.first_pred[v + 1]; k++)
            if (side && f->same[side][s->graph.preds[k]]) note_idle(f, s->graph.preds[k], r);
    }
    if (source && !lb_region_holds(&frontier, side, v) && !f->cleared[side][op] &&
        lb_layout_numel(&s->program->values[v].layout) > 1 && !is_zero_state(s, v))
        add_unheld(f, side, lb_op_results(s->program, &s->program->ops[op])[0], r);
}

/* What gives a value on the way to numbers that are right is right. By what else it gives an op is not judged: a mean,
 * sums of exponentials. */
static void clear_giver(finder *f, int side, uint32_t v, lb_region *r)
{
    const lb_exact_side *s = f->asked->sides[side];
    const uint32_t op = s->graph.given[v] ? s->graph.giver[v] : LB_NONE;
    (void)r;
    if (lb_region_is_source(s, v) && !f->clears_sources) return;
    if (op != LB_NONE && lb_op_outcome(s->program, &s->program->ops[op], 0) == v) f->cleared[side][op] = 1;
}

/* Of backward a result need not depend on all that its op reads (the gradient of a bias): that says nothing about
 * sources, and comes second. */
static void clear_back(finder *f, int side, uint32_t value)
{
    const lb_exact_side *s = f->asked->sides[side];
    const uint32_t giver = s->graph.giver[value];
    if (f->clears_sources == (giver != LB_NONE && s->program->ops[giver].phase == LB_PHASE_FORWARD))
        walk_back(f, side, value, clear_giver, NULL);
}

/* Do both sides name each other where they look for these numbers? Numbers that come back later in a side do not. */
static bool meet_each_other(const finder *f, int side, uint32_t v)
{
    const uint32_t other = f->asked->met[side][v];
    return other != LB_NONE && f->asked->met[!side][other] == v;
}

/* Per value of a side: B does not compute it as A does, although it goes on from A's numbers there, so that what B
 * makes of these is met. malloc'ed; NULL: out of memory. */
static uint8_t *list_apart(const finder *f, int side)
{
    const lb_counterparts *all = f->asked->counterparts;
    uint8_t *apart = calloc(f->asked->sides[side]->program->n_values + 1, 1);
    for (uint32_t i = 0; apart && i < all->n; i++) {
        const lb_counterpart *c = &all->list[i];
        if (c->state != LB_COUNTERPART_APART) continue;
        if (side) apart[c->b] = 1;
        for (uint32_t k = 0; !side && k < c->n; k++) apart[all->pieces[c->first + k].tensor] = 1;
    }
    return apart;
}

/* What leads to numbers that are right is right. */
static void clear_some(finder *f)
{
    const lb_counterparts *all = f->asked->counterparts;
    for (int side = 0; side < 2; side++) {
        uint8_t *apart = list_apart(f, side);
        f->failed |= !apart;
        for (uint32_t v = 0; apart && v < f->asked->sides[side]->program->n_values; v++)
            if (f->same[side][v] && meet_each_other(f, side, v) && !apart[v]) clear_back(f, side, v);
        free(apart);
    }
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_counterpart *c = &all->list[i];
        if (c->state != LB_COUNTERPART_SAME || c->kind == LB_COUNTERPART_TABLE) continue;
        clear_back(f, 1, c->b);
        for (uint32_t k = 0; k < c->n; k++) clear_back(f, 0, all->pieces[c->first + k].tensor);
    }
}

/* Tables of the same rows, of which one may have more (knots, a row for each input). */
static bool are_one_table(const lb_exact_side *s, uint32_t a, uint32_t b)
{
    const lb_layout *x = &s->program->values[a].layout, *y = &s->program->values[b].layout;
    bool rows = x->ndim == y->ndim;
    for (int d = 1; d < x->ndim && rows; d++) rows = x->shape[d] == y->shape[d];
    return rows && lb_quantities_repeat(&s->quantities[a], &s->quantities[b]);
}

/* A table that the other side does not hold and that leads to right numbers in one layer is no difference in another
 * one, which has a copy of it. */
static void clear_copies(finder *f)
{
    for (int side = 0; side < 2; side++) {
        const lb_exact_side *s = f->asked->sides[side];
        const lb_program *p = s->program;
        for (uint32_t x = 0; x < p->n_ops; x++) {
            if (!f->cleared[side][x] || !lb_op_is_source(p, &p->ops[x])) continue;
            for (uint32_t y = 0; y < p->n_ops; y++) {
                if (f->cleared[side][y] || !lb_op_is_source(p, &p->ops[y])) continue;
                const uint32_t a = lb_op_results(p, &p->ops[x])[0], b = lb_op_results(p, &p->ops[y])[0];
                f->cleared[side][y] = !(p->values[b].flags & LB_VALUE_PARAMETER) && are_one_table(s, a, b);
            }
        }
    }
}

static void clear_all(finder *f)
{
    f->walk++;
    f->clears_sources = true, clear_some(f);
    clear_copies(f);
    f->clears_sources = false, clear_some(f);
}

static void close_ops(finder *f, lb_region *r, int side)
{
    uint32_t *list = f->out->ops + r->first[side], n = f->out->n_ops - r->first[side], kept = 0;
    if (n > 1) qsort(list, n, sizeof *list, lb_by_u32);
    for (uint32_t k = 0; k < n; k++)
        if (!kept || list[kept - 1] != list[k]) list[kept++] = list[k];
    r->n[side] = kept, f->out->n_ops = r->first[side] + kept;
}

/* Does a value of A stand beside another value of B, too? What B makes of that is B's alone. */
static bool stands_elsewhere(const finder *f, const lb_counterpart *one, uint32_t va)
{
    const lb_counterparts *all = f->asked->counterparts;
    for (uint32_t i = 0; i < all->n && one->kind == LB_COUNTERPART_SHARED; i++) {
        const lb_counterpart *c = &all->list[i];
        if (c->kind != LB_COUNTERPART_ANCHOR || c->state == LB_COUNTERPART_UNKNOWN) continue;
        for (uint32_t k = 0; k < c->n; k++)
            if (all->pieces[c->first + k].tensor == va) return true;
    }
    return false;
}

/* Lists what either side computes behind the frontier up to `ends`: values of A, one of B. */
static void list_region(finder *f, lb_region *r, const uint32_t *ends_a, uint32_t n, uint32_t end_b)
{
    f->walk++;
    r->first[0] = f->out->n_ops, r->first_unheld[0] = f->out->n_unheld;
    for (uint32_t k = 0; k < n; k++) walk_back(f, 0, ends_a[k], note_in_region, r);
    close_ops(f, r, 0);
    r->first[1] = f->out->n_ops, r->first_unheld[1] = f->out->n_unheld;
    walk_back(f, 1, end_b, note_in_region, r);
    close_ops(f, r, 1);
}

/* Does it end behind the first token that the sides choose differently? */
static bool reaches_chosen_rows(const finder *f, const lb_region *r)
{
    for (int k = 0; k < 2; k++)
        if (f->chosen.index[k] == LB_NONE || !r->n[k] || f->out->ops[r->first[k] + r->n[k] - 1] < f->chosen.lookup[k])
            return false;
    return true;
}

static void find_region(finder *f, uint32_t row)
{
    const lb_counterparts *all = f->asked->counterparts;
    const lb_counterpart *c = &all->list[row];
    lb_region r = {
        .counterpart = row, .times = 1, .op = {LB_NONE, LB_NONE}, .source = {LB_NONE, LB_NONE}, .effect = NAN};
    const lb_region_frontier frontier = frontier_of(f);
    uint32_t *ends = malloc(((size_t)c->n + 1) * sizeof *ends), n = 0;
    f->failed |= !ends;
    if (!ends) return;
    for (uint32_t k = 0; k < c->n; k++)
        if (!stands_elsewhere(f, c, all->pieces[c->first + k].tensor)) ends[n++] = all->pieces[c->first + k].tensor;
    list_region(f, &r, ends, n, c->b);
    free(ends);
    const bool chooses = !f->failed && reaches_chosen_rows(f, &r);
    if (chooses) {
        f->out->n_ops = r.first[0], f->out->n_unheld = r.first_unheld[0];
        r.n[0] = r.n[1] = r.n_unheld[0] = r.n_unheld[1] = 0;
        list_region(f, &r, &f->chosen.index[0], 1, f->chosen.index[1]);
    }
    lb_region_op_choose(&frontier, &r);
    /* The token was chosen from the side's own numbers: where these differ, another choice follows. */
    r.inherited = chooses || lb_inherited_is_region(&frontier, &r);
    lb_region *more = lb_array_grow(f->out->list, f->out->n, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    f->out->list = more;
    f->out->list[f->out->n++] = r;
}

static uint32_t first_op(const lb_regions *all, const lb_region *r)
{
    return r->n[1] ? all->ops[r->first[1]] : r->n[0] ? all->ops[r->first[0]] : LB_NONE;
}

/* In B's order of execution; of regions that begin alike the one that ends first. */
static void sort_regions(finder *f)
{
    lb_regions *all = f->out;
    for (uint32_t i = 1; i < all->n; i++)
        for (uint32_t j = i; j > 0; j--) {
            lb_region *x = &all->list[j - 1], *y = &all->list[j];
            const uint32_t a = first_op(all, x), b = first_op(all, y);
            const uint32_t *giver = f->asked->sides[1]->graph.giver;
            const lb_counterpart *list = f->asked->counterparts->list;
            if (a < b || (a == b && giver[list[x->counterpart].b] <= giver[list[y->counterpart].b])) break;
            const lb_region swap = *x;
            *x = *y, *y = swap;
        }
}

/* One difference on several ranks: each runs its own copy of an op of one side, or of both. */
static bool are_one_on_ranks(const finder *f, const lb_region *x, const lb_region *y)
{
    bool other = false;
    for (int k = 0; k < 2; k++) {
        if (x->op[k] == y->op[k]) continue;
        if (!lb_rank_parts_same_op(f->asked->sides[k], x->op[k], y->op[k])) return false;
        other = true;
    }
    return other;
}

static void note_ranks(const finder *f, lb_region *r)
{
    for (int k = 0; k < 2; k++) {
        const uint64_t *of = f->asked->sides[k]->view->ranks_of;
        r->ranks[k] = r->op[k] == LB_NONE ? 0 : of ? of[r->op[k]] : 1;
    }
}

/* The row that is there says more where its op is called with different arguments. */
static void join_ranks(lb_region *kept, const lb_region *r)
{
    for (int k = 0; k < 2; k++) kept->ranks[k] |= r->ranks[k];
    if (kept->reason == LB_REGION_ARGUMENTS || r->reason != LB_REGION_ARGUMENTS) return;
    kept->reason = r->reason;
    for (int k = 0; k < 2; k++) kept->op[k] = r->op[k];
}

bool lb_regions_accumulates(const lb_exact_side *s, uint32_t at)
{
    const lb_op *op = at == LB_NONE ? NULL : &s->program->ops[at];
    return op && op->phase == LB_PHASE_BACKWARD && op->node < 0 && lb_value_graph_adds(s->program, at);
}

/* The side that alone adds gradients to those before them; -1: none. */
static int accumulating_side(const finder *f, const lb_region *r)
{
    const bool adds[] = {lb_regions_accumulates(f->asked->sides[0], r->op[0]),
                         lb_regions_accumulates(f->asked->sides[1], r->op[1])};
    return adds[0] == adds[1] ? -1 : adds[1];
}

/* One difference that shows in several regions: it lies in one op of both, in what both read, in what the optimizer
 * does with each parameter, or in adding up the gradients of all. */
static bool are_one(const finder *f, const lb_region *x, const lb_region *y)
{
    bool source = false, updates = true;
    if (accumulating_side(f, x) >= 0 && accumulating_side(f, x) == accumulating_side(f, y)) return true;
    if (x->reason != y->reason) return false;
    if (x->op[0] == y->op[0] && x->op[1] == y->op[1]) return true;
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        source |= x->source[k] != LB_NONE && x->source[k] == y->source[k];
        if ((x->op[k] == LB_NONE) != (y->op[k] == LB_NONE)) return false;
        if (x->op[k] == LB_NONE) continue;
        const lb_op *a = &p->ops[x->op[k]], *b = &p->ops[y->op[k]];
        updates &= a->phase == LB_PHASE_OPTIMIZER && b->phase == LB_PHASE_OPTIMIZER && a->name == b->name;
    }
    return updates || (source && x->reason == LB_REGION_SOURCE);
}

/* Behind a difference choices may fall differently, and what follows from them is no difference of its own. */
static lb_status drop_flipped(finder *f, lb_err *err)
{
    const lb_region_frontier frontier = frontier_of(f);
    lb_regions *all = f->out;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        LB_TRY(lb_flipped_choice_in(&frontier, &all->list[i], kept > 0, &all->list[i].chosen, err));
        if (!all->list[i].chosen || !kept) all->list[kept++] = all->list[i];
    }
    all->n = kept;
    return LB_OK;
}

/* Where some region differs by itself, those that do not are none. */
static void drop_inherited(finder *f)
{
    lb_regions *all = f->out;
    uint32_t kept = 0, own = 0;
    for (uint32_t i = 0; i < all->n; i++) own += !all->list[i].inherited;
    for (uint32_t i = 0; i < all->n; i++)
        if (!own || !all->list[i].inherited) all->list[kept++] = all->list[i];
    all->n = kept;
}

static bool append_rows(uint32_t **to, uint32_t *n, const uint32_t *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *more = lb_array_grow(*to, *n, sizeof *more);
        if (!more) return false;
        *to = more, more[(*n)++] = from[i];
    }
    return true;
}

bool lb_regions_append(lb_regions *to, const lb_regions *from, const lb_region *region)
{
    lb_region copy = *region, *more = lb_array_grow(to->list, to->n, sizeof *more);
    bool room = more != NULL;
    if (more) to->list = more;
    for (int k = 0; k < 2 && room; k++) {
        copy.first[k] = to->n_ops, copy.first_unheld[k] = to->n_unheld;
        room = append_rows(&to->ops, &to->n_ops, from->ops + region->first[k], region->n[k]) &&
               append_rows(&to->unheld, &to->n_unheld, from->unheld + region->first_unheld[k], region->n_unheld[k]);
    }
    if (room) to->list[to->n++] = copy;
    return room;
}

/* ---- what backward does of a part of forward ---- */

lb_phase lb_regions_phase(const lb_exact_side *b, const lb_counterparts *counterparts, const lb_region *r)
{
    const uint32_t giver = b->graph.giver[counterparts->list[r->counterpart].b];
    if (r->reason == LB_REGION_UPDATE) return LB_PHASE_OPTIMIZER;
    return giver == LB_NONE ? LB_PHASE_OTHER : (lb_phase)b->program->ops[giver].phase;
}

static lb_phase phase_of(const finder *f, const lb_region *r)
{
    return lb_regions_phase(f->asked->sides[1], f->asked->counterparts, r);
}

static bool lists(const lb_regions *all, const lb_region *r, int side, uint32_t op)
{
    for (uint32_t i = 0; i < r->n[side]; i++)
        if (all->ops[r->first[side] + i] == op) return true;
    return false;
}

/* One autograd node goes back through all that a fused op was spelled out as. */
static bool lists_node(const lb_regions *all, const lb_region *r, int side, const lb_program *p, int64_t node)
{
    for (uint32_t i = 0; i < r->n[side]; i++) {
        const lb_op *op = &p->ops[all->ops[r->first[side] + i]];
        if (op->phase == LB_PHASE_FORWARD && op->node == node) return true;
    }
    return false;
}

static bool is_backward_of(const finder *f, const lb_value_graph *g, uint32_t op, const lb_region *forward, int side)
{
    const uint32_t of = g->forward[op];
    if (lists(f->out, forward, side, op)) return true;
    if (of == LB_NONE) return false;
    const uint8_t *around = f->asked->around[side];
    return (around && around[of]) || lists_node(f->out, forward, side, g->program, g->program->ops[of].node);
}

/* Is a part of backward that of a part of forward which differs by itself? Its derivative differs with it, or gives the
 * same numbers in another order (gradients of shifted labels). */
static bool follows(const finder *f, const lb_region *backward, const lb_region *forward)
{
    for (int k = 0; k < 2; k++) {
        const lb_value_graph *g = &f->asked->sides[k]->graph;
        for (uint32_t i = 0; i < backward->n[k]; i++) {
            const uint32_t op = f->out->ops[backward->first[k] + i];
            if (is_backward_of(f, g, op, forward, k)) return true;
            if (backward->reason != LB_REGION_ORDER) continue;
            const uint32_t v =
                lb_op_outcomes(&g->program->ops[op]) ? lb_op_outcome(g->program, &g->program->ops[op], 0) : LB_NONE;
            for (uint32_t j = v == LB_NONE ? 0 : g->first_pred[v]; v != LB_NONE && j < g->first_pred[v + 1]; j++)
                if (g->giver[g->preds[j]] != LB_NONE && is_backward_of(f, g, g->giver[g->preds[j]], forward, k))
                    return true;
        }
    }
    return false;
}

/* A sum that autograd takes of the gradients that several readers of a value gave. */
static bool is_sum_of_gradients(const lb_value_graph *g, uint32_t op)
{
    const lb_program *p = g->program;
    const uint32_t of = g->forward[op];
    return p->ops[op].phase == LB_PHASE_BACKWARD && lb_value_graph_adds(p, op) &&
           (of == LB_NONE || !lb_value_graph_adds(p, of));
}

/* Readers are forward's: where they are the same, so are the sums. */
static bool sums_alone(const finder *f, const lb_region *r)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < r->n[k]; i++)
            if (!is_sum_of_gradients(&f->asked->sides[k]->graph, f->out->ops[r->first[k] + i])) return false;
    return true;
}

/* Is it an update by gradients of which not all meet, or by a norm of all gradients, which takes that of a parameter
 * that the other side does not use? Where forward differs both do. */
static bool updates_by_unmet(const finder *f, const lb_region *r)
{
    static const char *const norms[] = {"aten::linalg_vector_norm", "aten::_foreach_norm"};
    bool normed[2] = {false, false};
    if (phase_of(f, r) != LB_PHASE_OPTIMIZER || r->reason == LB_REGION_ARGUMENTS) return false;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < r->n[k]; i++) {
            const lb_program *p = f->asked->sides[k]->program;
            const lb_op *op = &p->ops[f->out->ops[r->first[k] + i]];
            if (op->phase == LB_PHASE_BACKWARD) return true;
            normed[k] |= lb_op_name_among(p, op, norms, 2) >= 0;
        }
    return normed[0] && normed[1];
}

/* Where a gradient stops on one side, is that why the side does not update a parameter, or updates by a norm of all
 * gradients that lacks some? */
static bool follows_from_stop(const finder *f, const lb_region *r, bool update)
{
    if (!f->detached.found || r->reason == LB_REGION_DETACHED) return false;
    if (r->reason != LB_REGION_UPDATE) return update;
    const lb_counterpart *c = &f->asked->counterparts->list[r->counterpart];
    const int passes = !f->detached.side;
    const uint32_t v = passes ? c->b : f->asked->counterparts->pieces[c->first].tensor;
    return r->op[!passes] == LB_NONE &&
           lb_region_detached_takes_from(f->asked, &f->detached, f->asked->sides[passes]->program->values[v].storage);
}

/* A weight that the other side does not hold is a difference of its own: forward does not explain it. */
static bool is_of_weight(const finder *f, const lb_region *r)
{
    bool is = false;
    for (int k = 0; k < 2; k++)
        is |= r->source[k] != LB_NONE && f->asked->sides[k]->program->values[r->source[k]].flags & LB_VALUE_PARAMETER;
    return is && r->reason == LB_REGION_SOURCE;
}

static void drop_followers(finder *f)
{
    lb_regions *all = f->out;
    uint32_t kept = 0;
    bool stops = false;
    for (uint32_t i = 0; i < all->n; i++) stops |= all->list[i].reason == LB_REGION_DETACHED;
    if (stops) f->detached = lb_region_detached_find(f->asked);
    for (uint32_t i = 0; i < all->n; i++) {
        const bool backward = phase_of(f, &all->list[i]) == LB_PHASE_BACKWARD,
                   sums = backward && sums_alone(f, &all->list[i]), update = updates_by_unmet(f, &all->list[i]);
        const bool may = (backward || update) && !is_of_weight(f, &all->list[i]);
        bool dropped = follows_from_stop(f, &all->list[i], update);
        for (uint32_t j = 0; j < all->n && may && !dropped; j++) {
            dropped = phase_of(f, &all->list[j]) == LB_PHASE_FORWARD &&
                      (sums || update || follows(f, &all->list[i], &all->list[j]));
            if (dropped) all->parts[all->list[i].part].into = all->list[j].part;
        }
        if (dropped) free(all->list[i].numbers), all->list[i].numbers = NULL;
        all->list[i].follows = dropped;
    }
    for (uint32_t i = 0; i < all->n; i++)
        if (!all->list[i].follows) all->list[kept++] = all->list[i];
    all->n = kept;
}

/* Is a number or a table that the program has in its text all that it reads and the other side does not hold? Weights
 * and states have names. */
static bool reads_constants_alone(const finder *f, const lb_region *r)
{
    bool constants = r->reason == LB_REGION_SOURCE;
    for (int k = 0; k < 2; k++)
        constants &= r->source[k] == LB_NONE || f->asked->sides[k]->program->values[r->source[k]].name == LB_NONE;
    return constants;
}

/* Does a part of forward hold most of what both sides compute there? An op that one of them lacks in so much says
 * little. */
static bool is_vague(const finder *f, const lb_region *r)
{
    if (r->reason != LB_REGION_OPS && r->reason != LB_REGION_MISSING && !reads_constants_alone(f, r)) return false;
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        uint32_t all = 0;
        for (uint32_t i = 0; i < p->n_ops; i++)
            all += p->ops[i].phase == LB_PHASE_FORWARD && !lb_op_is_source(p, &p->ops[i]) &&
                   lb_value_graph_computes(p, &p->ops[i]);
        if (r->n[k] < LEAST_VAGUE || r->n[k] < all / 2) return false;
    }
    return true;
}

/* Of gradients that one side alone adds up the region says most that holds most of the other side's ops. */
static void join_row(const finder *f, lb_region *kept, lb_region *r)
{
    const int side = accumulating_side(f, kept);
    const uint32_t part = kept->part;
    kept->times++;
    if (side >= 0 && r->n[!side] > kept->n[!side]) {
        const lb_region fewer = *kept;
        *kept = *r, *r = fewer;
        kept->times = r->times, kept->part = part;
    } else if (side < 0 && r->op[0] < kept->op[0]) {
        kept->op[0] = r->op[0];
    }
    free(r->numbers);
}

static bool list_parts(lb_regions *all)
{
    free(all->parts);
    all->parts = calloc((size_t)all->n + 1, sizeof *all->parts), all->n_parts = all->n;
    for (uint32_t i = 0; all->parts && i < all->n; i++) {
        all->list[i].part = i;
        all->parts[i] = (lb_region_part){all->list[i].counterpart, all->list[i].put, i};
    }
    return all->parts != NULL;
}

uint32_t lb_regions_row_of(const lb_regions *all, uint32_t part)
{
    while (all->parts[part].into != part) part = all->parts[part].into;
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].part == part) return i;
    return LB_NONE;
}

bool lb_regions_join_alike(const lb_region_question *asked, lb_regions *all)
{
    finder f = {.asked = asked, .out = all};
    uint32_t kept = 0;
    sort_regions(&f);
    if (!list_parts(all)) return false;
    drop_followers(&f);
    for (uint32_t i = 0; i < all->n; i++) {
        uint32_t j = 0, on = 0;
        note_ranks(&f, &all->list[i]);
        all->list[i].vague = is_vague(&f, &all->list[i]);
        while (j < kept && !are_one(&f, &all->list[j], &all->list[i])) j++;
        while (on < kept && !are_one_on_ranks(&f, &all->list[on], &all->list[i])) on++;
        if (on < kept || j < kept) all->parts[all->list[i].part].into = all->list[on < kept ? on : j].part;
        if (on < kept) {
            join_ranks(&all->list[on], &all->list[i]), free(all->list[i].numbers);
        } else if (j < kept) {
            join_ranks(&all->list[j], &all->list[i]);
            join_row(&f, &all->list[j], &all->list[i]);
        } else
            all->list[kept++] = all->list[i];
    }
    all->n = kept;
    return true;
}

/* Per row of a side's sources: the other side holds these numbers, or the run goes on from numbers that both agree on
 * (codes, and a weight that was made of the other side's). malloc'ed; NULL: out of memory. */
static uint8_t *list_held(const lb_region_question *asked, int side)
{
    const lb_step_sources *sources = asked->sources[side];
    uint8_t *held = lb_step_sources_held(asked->contents, side, sources->n, true);
    for (uint32_t i = 0; held && i < sources->n; i++)
        held[i] |= asked->sides[side]->held[sources->list[i].value] != NULL;
    return held;
}

lb_status lb_regions_find(const lb_region_question *asked, lb_regions *out, lb_err *err)
{
    finder f = {.asked = asked, .detached = lb_region_detached_find(asked), .out = out};
    uint32_t most = 0;
    bool room = true;
    *out = (lb_regions){0};
    for (int k = 0; k < 2; k++) {
        const uint32_t n = asked->sides[k]->program->n_values;
        f.same[k] = calloc(n + 1, 1), f.stamp[k] = calloc(n + 1, sizeof *f.stamp[k]);
        f.held[k] = list_held(asked, k);
        f.cleared[k] = calloc(asked->sides[k]->program->n_ops + 1, 1);
        room = room && f.same[k] && f.held[k] && f.stamp[k] && f.cleared[k];
        most = n > most ? n : most;
    }
    f.stack = malloc((most + 1) * sizeof *f.stack);
    room = room && f.stack;
    if (room) mark_same(&f), clear_all(&f);
    lb_status status = room ? lb_chosen_rows_find(asked, &f.chosen, err) : LB_OK;
    for (uint32_t i = 0; i < asked->counterparts->n && room && !f.failed && status == LB_OK; i++)
        if (asked->counterparts->list[i].state == LB_COUNTERPART_APART) find_region(&f, i);
    const lb_region_frontier frontier = frontier_of(&f);
    if (room && !f.failed && status == LB_OK) f.failed = !lb_region_table_name(&frontier, out);
    if (room && !f.failed && status == LB_OK) sort_regions(&f), drop_inherited(&f), status = drop_flipped(&f, err);
    for (int k = 0; k < 2; k++) free(f.same[k]), free(f.held[k]), free(f.stamp[k]), free(f.cleared[k]);
    free(f.stack);
    if (room && !f.failed && status == LB_OK) return LB_OK;
    lb_regions_release(out);
    if (status != LB_OK) return status;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for regions of %u values", most);
}

void lb_regions_release(lb_regions *r)
{
    for (uint32_t i = 0; i < r->n; i++) free(r->list[i].numbers);
    free(r->list), free(r->parts), free(r->ops), free(r->unheld);
    *r = (lb_regions){0};
}
