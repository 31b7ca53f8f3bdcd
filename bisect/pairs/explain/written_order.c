/* Orders of written sums: see written_order.h. */
#include "explain/written_order.h"

#include "subprogram/addition_trees.h"
#include "shadow/cross_feed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sides {
    const lb_match_site *site;
    lb_written_sum sums[2];
    bool read[2];
    lb_addition_trees trees[2];
    bool ranks; /* each term is what one rank brought */
} sides;

/* ---- the same terms ---- */

static int32_t rank_of(const lb_match_site *site, int side, uint32_t leaf)
{
    const lb_program_view *view = side ? site->source->b : site->source->a;
    uint32_t row;
    return lb_program_view_recorded(view, site->region->sides[side].leaves[leaf], &row)->rank;
}

static bool is_before(const sides *sides, const lb_written_term *x, const lb_written_term *y)
{
    const uint32_t *leaves = sides->site->region->sides[0].leaves;
    const int32_t ranks[] = {sides->ranks ? rank_of(sides->site, 0, x->leaf) : 0,
                             sides->ranks ? rank_of(sides->site, 0, y->leaf) : 0};
    if (ranks[0] != ranks[1]) return ranks[0] < ranks[1];
    return leaves[x->leaf] != leaves[y->leaf] ? leaves[x->leaf] < leaves[y->leaf] : x->place < y->place;
}

/* A's terms by rank, and as they came. */
static void sort_terms(const sides *sides, lb_written_sum *sum)
{
    for (uint32_t i = 1; i < sum->n_terms; i++) {
        const lb_written_term term = sum->terms[i];
        uint32_t at = i;
        for (; at && is_before(sides, &term, &sum->terms[at - 1]); at--) sum->terms[at] = sum->terms[at - 1];
        sum->terms[at] = term;
    }
}

/* The op that gives a value. */
static uint32_t giver_of(const lb_program *program, uint32_t value)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]) && !(program->ops[i].flags & LB_OP_VIEW); k++)
            if (lb_op_outcome(program, &program->ops[i], k) == value) return i;
    return LB_NONE;
}

/* The value whose numbers an op hands on, all of them in the same places: a copy in the same type, a message; LB_NONE:
 * it makes its own. */
static uint32_t handed_on(const lb_match_site *site, int side, uint32_t at)
{
    const lb_program *program = lb_matched_region_program(site->source, side);
    const lb_op *op = &program->ops[at];
    const lb_collective_matches *matches = site->source->collective_matches[side];
    if (matches && matches->of_op[at] != LB_NONE && matches->list[matches->of_op[at]].message)
        op = &program->ops[matches->ops[matches->list[matches->of_op[at]].first]];
    if ((op == &program->ops[at] && !lb_cross_feed_op_hands_on(program, op)) || !op->args) return LB_NONE;
    const lb_arg *from = lb_op_args(program, op);
    if (from->tag == LB_ARG_LIST && from->count == 1) from = &program->args[from->u.first];
    return from->tag == LB_ARG_VALUE ? from->u.value : LB_NONE;
}

/* Where its numbers were made. */
static uint32_t origin_of(const lb_match_site *site, int side, uint32_t value)
{
    const lb_program *program = lb_matched_region_program(site->source, side);
    for (uint32_t hops = 0, op = giver_of(program, value); hops < 64 && op != LB_NONE;
         hops++, op = giver_of(program, value)) {
        const uint32_t from = handed_on(site, side, op);
        if (from == LB_NONE || program->values[from].dtype != program->values[value].dtype ||
            lb_layout_numel(&program->values[from].layout) != lb_layout_numel(&program->values[value].layout))
            break;
        value = from;
    }
    return value;
}

/* One quantity on both sides, where each may have copied it before. */
static bool is_partner(const sides *sides, uint32_t leaf_a, uint32_t leaf_b)
{
    const lb_matched_region_side *x = &sides->site->region->sides[0], *y = &sides->site->region->sides[1];
    const lb_program *program = lb_matched_region_program(sides->site->source, 0),
                     *b = lb_matched_region_program(sides->site->source, 1);
    const uint32_t va = x->leaves[leaf_a], vb = y->leaves[leaf_b];
    if (x->partners[leaf_a] == vb || y->partners[leaf_b] == va) return true;
    if (va >= program->n_values || vb >= b->n_values) return false;
    const uint32_t from_a = origin_of(sides->site, 0, va), from_b = origin_of(sides->site, 1, vb);
    const uint32_t op_a = giver_of(program, from_a), op_b = giver_of(b, from_b);
    const lb_alignment *al = sides->site->source->alignment;
    if (op_a == LB_NONE || op_b == LB_NONE || (al->b_of_a[op_a] != op_b && al->source_b_of_a[op_a] != op_b))
        return false;
    for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[op_a]) && k < lb_op_outcomes(&b->ops[op_b]); k++)
        if (lb_op_outcome(program, &program->ops[op_a], k) == from_a && lb_op_outcome(b, &b->ops[op_b], k) == from_b)
            return true;
    return false;
}

/* Is it the very same element of the same quantity, for each element of the output? */
static bool is_same_term(const sides *sides, const lb_written_term *a, const lb_written_term *b)
{
    const lb_written_leaf *la = &sides->sums[0].leaves[a->leaf], *lb = &sides->sums[1].leaves[b->leaf];
    if (!is_partner(sides, a->leaf, b->leaf)) return false;
    if (lb_layout_numel(&la->tensor.layout) != lb_layout_numel(&lb->tensor.layout)) return false;
    for (int64_t e = 0; e < sides->sums[0].elements; e++)
        if (la->first[e] + a->place * la->stride != lb->first[e] + b->place * lb->stride) return false;
    return true;
}

/* B's terms in the order of A's. */
static bool pair_terms(sides *sides)
{
    lb_written_sum *a = &sides->sums[0], *b = &sides->sums[1];
    if (a->n_terms != b->n_terms || a->elements != b->elements || a->dtype != b->dtype) return false;
    if (fabs(a->factor - b->factor) > 0x1p-30 * fabs(a->factor)) return false;
    for (uint32_t i = 0; i < a->n_terms; i++) {
        uint32_t k = i;
        while (k < b->n_terms && !is_same_term(sides, &a->terms[i], &b->terms[k])) k++;
        if (k == b->n_terms) return false;
        const lb_written_term term = b->terms[k];
        b->terms[k] = b->terms[i], b->terms[i] = term;
    }
    return true;
}

static bool are_ranks(const lb_match_site *site, int side, const lb_written_sum *sum)
{
    bool ranks = site->source->collective_matches[0] != NULL;
    for (uint32_t i = 1; i < sum->n_terms && ranks; i++)
        for (uint32_t k = 0; k < i; k++)
            ranks &= rank_of(site, side, sum->terms[i].leaf) != rank_of(site, side, sum->terms[k].leaf);
    return ranks;
}

/* ---- names ---- */

static void name_tree(const sides *sides, int side, const lb_sum_tree *tree, char *text, size_t room)
{
    char names[256];
    if (!sides->ranks && lb_sum_tree_name(tree, LB_SUM_ROW, sides->sums[side].dtype, names, sizeof names)) {
        names[strcspn(names, " ")] = 0;
        snprintf(text, room, "%.120s", names);
        return;
    }
    char *printed = lb_sum_tree_print(tree);
    snprintf(text, room, "%.80s%s", printed ? printed : "?", printed && strlen(printed) > 80 ? "…" : "");
    free(printed);
}

static void name_order(const sides *sides, int side, char *text, size_t room)
{
    enum { SHOWN = 4 };
    const lb_addition_trees *trees = &sides->trees[side];
    size_t used = 0;
    if (*trees->name) {
        snprintf(text, room, "%s", trees->name);
        return;
    }
    for (uint32_t g = 0; g < trees->n && g < SHOWN; g++) {
        char one[128];
        name_tree(sides, side, trees->list[g].tree, one, sizeof one);
        if (used + strlen(one) + 8 > room) break;
        used += (size_t)snprintf(text + used, room - used, "%s%s", g ? " | " : "", one);
    }
    if (trees->n > SHOWN && used + 8 < room) used += (size_t)snprintf(text + used, room - used, " | …");
    if (sides->ranks && used + 10 < room) used += (size_t)snprintf(text + used, room - used, " of ranks");
    if (trees->rule.accumulate != sides->sums[side].dtype && used + 8 < room)
        snprintf(text + used, room - used, " in %s", lb_dtype_name(trees->rule.accumulate));
}

/* ---- all of it ---- */

/* Elements of which one tree is not the other's, or all where roundings differ. */
static bool differ(const sides *sides)
{
    const lb_addition_trees *a = &sides->trees[0], *b = &sides->trees[1];
    if (a->rule.accumulate != b->rule.accumulate) return a->rule.scaling == b->rule.scaling;
    if (a->rule.scaling != b->rule.scaling) return false; /* a factor at another place is no order */
    for (int64_t e = 0; e < sides->sums[0].elements; e++)
        if (!lb_sum_tree_equal(a->list[a->of[e]].tree, b->list[b->of[e]].tree)) return true;
    return false;
}

static lb_status read_both(sides *sides, uint64_t most, bool *found, lb_err *err)
{
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *ops = &sides->site->region->sides[side];
        *found = sides->site->region->n_outputs == 1 && !sides->site->region->parts &&
                 lb_match_site_can(sides->site, side, side);
        if (!*found) return LB_OK;
        const lb_written_ops written = {sides->site->subprograms[side], sides->site->inputs[side][side], ops->n_leaves,
                                        ops->n_ops, &sides->site->targets[side][0]};
        sides->read[side] = true;
        LB_TRY(lb_written_sum_read(&written, &sides->sums[side], found, err));
        if (!*found) return LB_OK;
    }
    sides->ranks = are_ranks(sides->site, 0, &sides->sums[0]) && are_ranks(sides->site, 1, &sides->sums[1]);
    sort_terms(sides, &sides->sums[0]);
    *found = pair_terms(sides);
    for (int side = 0; side < 2 && *found; side++) {
        LB_TRY(lb_addition_trees_find(&sides->sums[side], sides->ranks, most, &sides->trees[side], found, err));
    }
    return LB_OK;
}

lb_status lb_written_order_find(const lb_match_site *site, uint64_t most_runs, lb_written_order *order, lb_err *err)
{
    sides sides = {.site = site};
    bool found = false;
    *order = (lb_written_order){0};
    lb_status status = read_both(&sides, most_runs, &found, err);
    order->terms = sides.sums[0].n_terms;
    order->found = status == LB_OK && found && differ(&sides);
    order->tried = sides.trees[1].tried, order->excluded = sides.trees[1].excluded;
    for (int side = 0; side < 2 && order->found; side++)
        name_order(&sides, side, order->name[side], sizeof order->name[side]);
    for (int side = 0; side < 2; side++) {
        order->cost.runs += sides.sums[side].cost.runs, order->cost.ops += sides.sums[side].cost.ops;
        if (!sides.read[side]) continue;
        lb_addition_trees_release(&sides.trees[side]);
        lb_written_sum_release(&sides.sums[side]);
    }
    return status;
}
