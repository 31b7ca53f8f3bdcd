/* Values that several regions share: see region_shared.h. */
#include "implementations/region_shared.h"

#include "counterparts/counterpart_orders.h"
#include "counterparts/rank_parts.h"
#include "implementations/region_op.h"

enum { MOST_COPIES = 64 };

static bool lists(const lb_regions *all, const lb_region *r, int side, uint32_t op)
{
    for (uint32_t i = 0; i < r->n[side]; i++)
        if (all->ops[r->first[side] + i] == op) return true;
    return false;
}

/* Does A's value have as many elements as B's, or as all that B's parts have at that place? */
static bool fits(const lb_region_question *asked, uint32_t a, uint32_t b)
{
    const lb_exact_side *const *s = asked->sides;
    return lb_layout_numel(&s[0]->program->values[a].layout) == lb_layout_numel(&s[1]->program->values[b].layout) ||
           (lb_rank_parts_are_parted(s) && lb_rank_parts_may_be_one(s, a, b));
}

/* What a value that two regions share has to be like: of A one that fits B's, and given by an op of the same name. */
typedef struct sought {
    uint32_t before;          /* given by an op of the side before that one; LB_NONE: by any */
    uint32_t beside;          /* a value of B; LB_NONE: any */
    const lb_program *likely; /* NULL: whatever op gives it */
    uint32_t op;
} sought;

static bool is_sought(const lb_region_question *asked, int side, uint32_t op, uint32_t v, const sought *like)
{
    const lb_exact_side *s = asked->sides[side];
    if (v == LB_NONE || op >= like->before || !lb_dtype_is_float(s->program->values[v].dtype)) return false;
    if (like->beside != LB_NONE && !fits(asked, v, like->beside)) return false;
    return !like->likely ||
           lb_region_same_op(s->program, &s->program->ops[op], like->likely, &like->likely->ops[like->op]);
}

static uint32_t last_shared(const lb_region_question *asked, const lb_regions *all, const lb_region *x,
                            const lb_region *y, int side, const sought *like)
{
    const lb_exact_side *s = asked->sides[side];
    const uint32_t *a = all->ops + x->first[side], *b = all->ops + y->first[side];
    uint32_t i = x->n[side], j = y->n[side];
    while (i && j) {
        if (a[i - 1] != b[j - 1]) {
            if (a[i - 1] > b[j - 1])
                i--;
            else
                j--;
            continue;
        }
        const lb_op *op = &s->program->ops[a[i - 1]];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(s->program, op, 0) : LB_NONE;
        if (is_sought(asked, side, a[i - 1], v, like)) return v;
        i--, j--;
    }
    return LB_NONE;
}

/* Of A the last one that an op of the same name gives. */
static uint32_t last_shared_like(const lb_region_question *asked, const lb_regions *all, const lb_region *x,
                                 const lb_region *y, uint32_t of_b)
{
    const lb_exact_side *b = asked->sides[1];
    const sought like = {LB_NONE, of_b, b->program, b->graph.giver[of_b]};
    return last_shared(asked, all, x, y, 0, &like);
}

static uint32_t last_shared_of_any_op(const lb_region_question *asked, const lb_regions *all, const lb_region *x,
                                      const lb_region *y, uint32_t of_b)
{
    const sought like = {.before = LB_NONE, .beside = of_b};
    return last_shared(asked, all, x, y, 0, &like);
}

/* The result that a value is a window on, or a copy of; LB_NONE: it is none of one alone. */
static uint32_t result_behind(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    for (uint32_t depth = 0; depth < MOST_COPIES && g->giver[v] != LB_NONE; depth++) {
        const uint32_t first = g->first_pred[v];
        if (lb_value_graph_is_computed(g, v)) return v;
        if (g->first_pred[v + 1] - first != 1) return LB_NONE;
        v = g->preds[first];
    }
    return LB_NONE;
}

static bool begins_at(const lb_region_question *asked, const lb_regions *all, const lb_region *r, int side,
                      uint32_t value)
{
    const lb_exact_side *s = asked->sides[side];
    const lb_value_graph *g = &s->graph;
    for (uint32_t i = 0; i < r->n[side]; i++) {
        const lb_op *op = &s->program->ops[all->ops[r->first[side] + i]];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(s->program, op, 0) : LB_NONE;
        for (uint32_t k = v == LB_NONE ? 0 : g->first_pred[v]; v != LB_NONE && k < g->first_pred[v + 1]; k++)
            if (result_behind(s, g->preds[k]) == value) return true;
    }
    return false;
}

/* The one result of a side, of as many elements, that two regions begin at where the other side computes another one
 * for both: what it has in the place of that; LB_NONE. */
static uint32_t begin_shared(const lb_region_question *asked, const lb_regions *all, const lb_region *x,
                             const lb_region *y, int side, int64_t elements)
{
    const lb_exact_side *s = asked->sides[side];
    const lb_value_graph *g = &s->graph;
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < x->n[side]; i++) {
        const lb_op *op = &s->program->ops[all->ops[x->first[side] + i]];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(s->program, op, 0) : LB_NONE;
        for (uint32_t k = v == LB_NONE ? 0 : g->first_pred[v]; v != LB_NONE && k < g->first_pred[v + 1]; k++) {
            const uint32_t from = result_behind(s, g->preds[k]);
            if (from == LB_NONE || from == found || lb_layout_numel(&s->program->values[from].layout) != elements ||
                lists(all, x, side, g->giver[from]) || !lb_dtype_is_float(s->program->values[from].dtype) ||
                !begins_at(asked, all, y, side, from))
                continue;
            if (found != LB_NONE) return LB_NONE;
            found = from;
        }
    }
    return found;
}

/* In backward many values have as many elements: there the last ones that are shared need not be the same, and an order
 * that shapes alone tell is no hint. */
static bool may_be_shared(const lb_region_question *asked, uint32_t a, uint32_t b)
{
    const lb_exact_side *const *s = asked->sides;
    const lb_layout *x = &s[0]->program->values[a].layout, *y = &s[1]->program->values[b].layout;
    const uint32_t giver = s[1]->graph.giver[b];
    if (!s[1]->graph.given[b] || giver == LB_NONE) return false;
    if (lb_rank_parts_are_parted(s)) return lb_rank_parts_may_be_one(s, a, b);
    return lb_counterpart_orders_agree(x, y) ||
           (s[1]->program->ops[giver].phase == LB_PHASE_FORWARD && lb_counterpart_orders_turned(x, y));
}

static bool is_counterpart(const lb_region_question *asked, uint32_t b)
{
    const lb_counterparts *all = asked->counterparts;
    for (uint32_t k = 0; k < all->n; k++)
        if (all->list[k].b == b && all->list[k].kind != LB_COUNTERPART_DROPPED) return true;
    return false;
}

/* Was the pair one that put nothing right? */
static bool was_refused(const lb_region_question *asked, uint32_t a, uint32_t b)
{
    const lb_counterparts *all = asked->counterparts;
    for (uint32_t k = 0; k < all->n; k++)
        if (all->list[k].b == b && all->list[k].was_guessed && all->pieces[all->list[k].first].tensor == a) return true;
    return false;
}

/* What A has in the place of `found->b`; of the last value that both regions share any op may give it. */
static void find_beside(const lb_region_question *asked, const lb_regions *all, const lb_region *x, const lb_region *y,
                        bool last, lb_region_shared *found)
{
    const int64_t elements = lb_layout_numel(&asked->sides[1]->program->values[found->b].layout);
    found->a = last_shared_like(asked, all, x, y, found->b);
    found->is_guess = found->a == LB_NONE;
    if (found->is_guess && last) found->a = last_shared_of_any_op(asked, all, x, y, found->b);
    if (found->a == LB_NONE && last) found->a = begin_shared(asked, all, x, y, 0, elements);
}

/* Values that an op reads; pairs that are looked at before others (of many regions each has many). */
enum { MOST_READ = 64, MOST_SURE = 65536 };

typedef struct read_values {
    uint32_t list[MOST_READ], n;
} read_values;

static void note_read(void *context, uint32_t value)
{
    read_values *r = context;
    if (value != LB_NONE && r->n < MOST_READ) r->list[r->n++] = value;
}

static read_values list_reads(const lb_exact_side *s, uint32_t value)
{
    read_values r = {.n = 0};
    lb_op_each_input(s->program, &s->program->ops[s->graph.giver[value]], note_read, &r);
    return r;
}

/* Is each quantity of the other side that one op reads read by the other one, too, and is there any? */
static bool read_the_same(const lb_region_question *asked, uint32_t a, uint32_t b)
{
    const read_values of[] = {list_reads(asked->sides[0], a), list_reads(asked->sides[1], b)};
    uint32_t found = 0;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < of[k].n; i++) {
            const uint32_t v = of[k].list[i];
            if (asked->met[k][v] == LB_NONE) continue;
            bool there = false;
            for (uint32_t j = 0; j < of[!k].n && !there; j++)
                there =
                    lb_quantities_agree(&asked->sides[k]->quantities[v], &asked->sides[!k]->quantities[of[!k].list[j]]);
            if (!there) return false;
            found++;
        }
    return found > 0;
}

/* The last values of forward that both regions share which ops of one name give from the same quantities, and from
 * others that do not meet. */
static bool find_sure(const lb_region_question *asked, const lb_regions *all, const lb_region *x, const lb_region *y,
                      uint32_t *tries, lb_region_shared *found)
{
    const lb_exact_side *b = asked->sides[1];
    sought any = {.before = LB_NONE, .beside = LB_NONE};
    while ((found->b = last_shared(asked, all, x, y, 1, &any)) != LB_NONE) {
        any.before = b->graph.giver[found->b];
        sought like = {LB_NONE, found->b, b->program, any.before};
        if (any.before == LB_NONE || !*tries) return false;
        if (b->program->ops[any.before].phase != LB_PHASE_FORWARD || is_counterpart(asked, found->b)) continue;
        while (*tries && (found->a = last_shared(asked, all, x, y, 0, &like)) != LB_NONE) {
            --*tries;
            if (may_be_shared(asked, found->a, found->b) && !was_refused(asked, found->a, found->b) &&
                read_the_same(asked, found->a, found->b))
                return true;
            like.before = asked->sides[0]->graph.giver[found->a];
        }
    }
    return false;
}

/* The last value of B that both regions share, beside what A has in its place. Where that put nothing right, an earlier
 * one, beside what an op of the same name gives. */
static bool find_between(const lb_region_question *asked, const lb_regions *all, const lb_region *x, const lb_region *y,
                         lb_region_shared *found)
{
    sought any = {.before = LB_NONE, .beside = LB_NONE};
    for (bool last = true; (found->b = last_shared(asked, all, x, y, 1, &any)) != LB_NONE; last = false) {
        find_beside(asked, all, x, y, last, found);
        const bool refused = found->a == LB_NONE ? !last : was_refused(asked, found->a, found->b);
        if (!refused)
            return found->a != LB_NONE && may_be_shared(asked, found->a, found->b) && !is_counterpart(asked, found->b);
        any.before = asked->sides[1]->graph.giver[found->b];
        if (any.before == LB_NONE) return false;
    }
    return false;
}

/* Does an op of A read what B's value is, or is it the one that gives B's? */
static bool is_made_of(const lb_region_question *asked, uint32_t a, uint32_t b)
{
    const lb_exact_side *const *s = asked->sides;
    const read_values read = list_reads(s[0], a);
    bool found = lb_region_same_op(s[0]->program, &s[0]->program->ops[s[0]->graph.giver[a]], s[1]->program,
                                   &s[1]->program->ops[s[1]->graph.giver[b]]);
    for (uint32_t i = 0; i < read.n && !found; i++)
        found = lb_quantities_agree(&s[0]->quantities[read.list[i]], &s[1]->quantities[b]);
    return found;
}

static bool ends_in_forward(const lb_region_question *asked, const lb_region *r)
{
    return lb_regions_phase(asked->sides[1], asked->counterparts, r) == LB_PHASE_FORWARD;
}

/* The last value of forward that A alone computes for both regions of it, beside the result of B that both begin at:
 * what A makes it of, or what B has of the same op. */
static bool find_left_out(const lb_region_question *asked, const lb_regions *all, const lb_region *x,
                          const lb_region *y, lb_region_shared *found)
{
    const lb_exact_side *a = asked->sides[0];
    sought any = {.before = LB_NONE, .beside = LB_NONE};
    if (!ends_in_forward(asked, x) || !ends_in_forward(asked, y)) return false;
    while ((found->a = last_shared(asked, all, x, y, 0, &any)) != LB_NONE) {
        any.before = a->graph.giver[found->a];
        if (any.before == LB_NONE) return false;
        if (a->program->ops[any.before].phase != LB_PHASE_FORWARD) continue;
        found->b = begin_shared(asked, all, x, y, 1, lb_layout_numel(&a->program->values[found->a].layout));
        return found->b != LB_NONE && is_made_of(asked, found->a, found->b) &&
               may_be_shared(asked, found->a, found->b) && !is_counterpart(asked, found->b) &&
               !was_refused(asked, found->a, found->b);
    }
    return false;
}

/* ---- the same numbers in another order ---- */

typedef struct results_read {
    const lb_exact_side *side;
    uint32_t list[MOST_READ], n;
} results_read;

static void note_result(void *context, uint32_t value)
{
    results_read *r = context;
    const uint32_t v = value == LB_NONE ? LB_NONE : lb_region_shown_whole(r->side, value);
    if (v == LB_NONE || !r->side->graph.given[v] || !r->side->kept[v] || r->n == MOST_READ ||
        lb_region_is_source(r->side, v))
        return;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->list[i] == v) return;
    r->list[r->n++] = v;
}

/* The results that a side's part of a region reads, whole or in part. */
static void list_read(const lb_region_question *asked, const lb_regions *all, const lb_region *r, int side,
                      results_read *out)
{
    const lb_program *p = asked->sides[side]->program;
    *out = (results_read){.side = asked->sides[side]};
    for (uint32_t i = 0; i < r->n[side]; i++)
        lb_op_each_input(p, &p->ops[all->ops[r->first[side] + i]], note_result, out);
}

/* A region of forward whose two parts read the same numbers in another order (a shuffle of channels on one side alone)
 * may differ for that: B's, from which it is to go on in A's order. Orders of backward follow from forward's. */
static bool find_rearranged(const lb_region_question *asked, const lb_regions *all, const lb_region *r,
                            lb_region_shared *found)
{
    results_read a, b;
    const uint32_t giver = asked->sides[1]->graph.giver[asked->counterparts->list[r->counterpart].b];
    if (giver == LB_NONE || asked->sides[1]->program->ops[giver].phase != LB_PHASE_FORWARD ||
        r->reason == LB_REGION_ARGUMENTS)
        return false;
    list_read(asked, all, r, 0, &a), list_read(asked, all, r, 1, &b);
    for (uint32_t i = 0; i < a.n; i++)
        for (uint32_t j = 0; j < b.n; j++) {
            *found = (lb_region_shared){a.list[i], b.list[j], true};
            if (lb_region_is_in_another_order(asked, a.list[i], b.list[j]) && !is_counterpart(asked, b.list[j]) &&
                !was_refused(asked, a.list[i], b.list[j]))
                return true;
        }
    return false;
}

bool lb_region_shared_find(const lb_region_question *asked, const lb_regions *all, lb_region_shared *found)
{
    const bool parted = lb_rank_parts_are_parted(asked->sides);
    uint32_t tries = parted ? 0 : MOST_SURE;
    found->is_guess = found->is_sure = true;
    for (uint32_t i = 0; i < all->n && tries; i++)
        for (uint32_t j = i + 1; j < all->n && tries; j++)
            if (find_sure(asked, all, &all->list[i], &all->list[j], &tries, found)) return true;
    found->is_sure = false;
    for (uint32_t i = 0; i < all->n; i++)
        for (uint32_t j = i + 1; j < all->n; j++)
            if (find_between(asked, all, &all->list[i], &all->list[j], found)) return true;
    found->is_guess = true;
    for (uint32_t i = 0; i < all->n && !parted; i++)
        for (uint32_t j = i + 1; j < all->n; j++)
            if (find_left_out(asked, all, &all->list[i], &all->list[j], found)) return true;
    for (uint32_t i = 0; i < all->n && !parted; i++)
        if (find_rearranged(asked, all, &all->list[i], found)) return true;
    return false;
}
