/* Trees of additions: making, checking, comparing, cutting down. See sum_tree.h. */
#include "orders/sum_tree.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

void lb_sum_tree_free(lb_sum_tree *tree)
{
    if (!tree) return;
    free(tree->first);
    free(tree->operand);
    free(tree);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

lb_tree_builder lb_tree_begin(uint32_t leaves)
{
    lb_tree_builder builder = {.tree = calloc(1, sizeof(lb_sum_tree)), .room_nodes = 16, .room_operands = 32};
    if (builder.tree) {
        builder.tree->leaves = leaves;
        builder.tree->first = calloc(builder.room_nodes, sizeof *builder.tree->first);
        builder.tree->operand = malloc(builder.room_operands * sizeof *builder.tree->operand);
    }
    builder.failed = !builder.tree || !builder.tree->first || !builder.tree->operand;
    return builder;
}

static bool grow(uint32_t **array, uint32_t *room, size_t wanted)
{
    uint32_t *grown = lb_array_fit(*array, room, wanted, sizeof *grown);
    if (grown) *array = grown;
    return grown;
}

uint32_t lb_tree_fuse(lb_tree_builder *builder, const uint32_t *operands, uint32_t count)
{
    uint32_t real = 0, last = LB_TREE_NOTHING;
    for (uint32_t i = 0; i < count; i++)
        if (operands[i] != LB_TREE_NOTHING) real++, last = operands[i];
    if (builder->failed || real < 2) return last;
    lb_sum_tree *tree = builder->tree;
    const uint32_t start = tree->first[tree->nodes];
    builder->failed = !grow(&tree->first, &builder->room_nodes, (size_t)tree->nodes + 2) ||
                      !grow(&tree->operand, &builder->room_operands, (size_t)start + real);
    if (builder->failed) return LB_TREE_NOTHING;
    uint32_t at = start;
    for (uint32_t i = 0; i < count; i++)
        if (operands[i] != LB_TREE_NOTHING) tree->operand[at++] = operands[i];
    tree->first[++tree->nodes] = at;
    return tree->leaves + tree->nodes - 1;
}

/* Every term and every node but the last is an operand once, of a later node. */
static lb_status check(const lb_sum_tree *tree, lb_err *err)
{
    if (!tree->leaves || tree->leaves > LB_TREE_MAX_LEAVES)
        return lb_fail(err, LB_ERR_INVALID, "a tree has 1 to %u terms, not %u", LB_TREE_MAX_LEAVES, tree->leaves);
    const uint32_t all = tree->leaves + tree->nodes;
    uint8_t *used = calloc(all, 1);
    if (!used) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < tree->nodes && status == LB_OK; i++)
        for (uint32_t k = tree->first[i]; k < tree->first[i + 1] && status == LB_OK; k++) {
            const uint32_t x = tree->operand[k];
            if (x >= tree->leaves + i)
                status = lb_fail(err, LB_ERR_INVALID, "node %u adds what no node before it gives", i);
            else if (used[x]++) {
                const bool term = x < tree->leaves;
                status = lb_fail(err, LB_ERR_INVALID, "%s %u is added twice", term ? "term" : "node",
                                 term ? x : x - tree->leaves);
            }
        }
    for (uint32_t x = 0; x + 1 < all && status == LB_OK; x++)
        if (!used[x]) {
            const bool term = x < tree->leaves;
            status = lb_fail(err, LB_ERR_INVALID, "%s %u is never added", term ? "term" : "node",
                             term ? x : x - tree->leaves);
        }
    free(used);
    return status;
}

lb_status lb_tree_end(lb_tree_builder *builder, lb_sum_tree **tree, lb_err *err)
{
    *tree = NULL;
    lb_status status = builder->failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : check(builder->tree, err);
    if (status == LB_OK)
        *tree = builder->tree;
    else
        lb_sum_tree_free(builder->tree);
    *builder = (lb_tree_builder){.failed = true};
    return status;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static uint32_t *least_terms(const lb_sum_tree *tree)
{
    uint32_t *least = malloc((tree->nodes + 1) * sizeof *least);
    for (uint32_t i = 0; least && i < tree->nodes; i++) {
        least[i] = UINT32_MAX;
        for (uint32_t k = tree->first[i]; k < tree->first[i + 1]; k++) {
            const uint32_t x = tree->operand[k], low = x < tree->leaves ? x : least[x - tree->leaves];
            if (low < least[i]) least[i] = low;
        }
    }
    return least;
}

uint32_t *lb_sum_tree_sizes(const lb_sum_tree *tree)
{
    uint32_t *size = calloc(tree->nodes + 1, sizeof *size);
    for (uint32_t i = 0; size && i < tree->nodes; i++)
        for (uint32_t k = tree->first[i]; k < tree->first[i + 1]; k++)
            size[i] += tree->operand[k] < tree->leaves ? 1 : size[tree->operand[k] - tree->leaves];
    return size;
}

uint32_t *lb_sum_tree_parents(const lb_sum_tree *tree)
{
    uint32_t *parent = malloc((tree->leaves + tree->nodes) * sizeof *parent);
    if (!parent) return NULL;
    parent[tree->leaves + tree->nodes - 1] = UINT32_MAX;
    for (uint32_t i = 0; i < tree->nodes; i++)
        for (uint32_t k = tree->first[i]; k < tree->first[i + 1]; k++) parent[tree->operand[k]] = i;
    return parent;
}

typedef struct sorting {
    uint32_t least, operand;
} sorting;

static int by_least(const void *a, const void *b)
{
    const uint32_t x = ((const sorting *)a)->least, y = ((const sorting *)b)->least;
    return (x > y) - (x < y);
}

/* `operands` of each node sorted by their least term. */
static bool sort_operands(lb_sum_tree *tree)
{
    uint32_t *least = least_terms(tree), most = 2;
    for (uint32_t i = 0; i < tree->nodes; i++)
        if (tree->first[i + 1] - tree->first[i] > most) most = tree->first[i + 1] - tree->first[i];
    sorting *sorted = malloc(most * sizeof *sorted);
    for (uint32_t i = 0; least && sorted && i < tree->nodes; i++) {
        const uint32_t n = tree->first[i + 1] - tree->first[i];
        uint32_t *operand = tree->operand + tree->first[i];
        for (uint32_t k = 0; k < n; k++)
            sorted[k] =
                (sorting){operand[k] < tree->leaves ? operand[k] : least[operand[k] - tree->leaves], operand[k]};
        qsort(sorted, n, sizeof *sorted, by_least);
        for (uint32_t k = 0; k < n; k++) operand[k] = sorted[k].operand;
    }
    const bool done = least && sorted;
    free(least);
    free(sorted);
    return done;
}

static lb_sum_tree *blank_like(const lb_sum_tree *tree)
{
    lb_sum_tree *copy = calloc(1, sizeof *copy);
    if (!copy) return NULL;
    *copy = (lb_sum_tree){tree->leaves, tree->nodes, calloc(tree->nodes + 1, sizeof(uint32_t)),
                          malloc((tree->first[tree->nodes] + 1) * sizeof(uint32_t)), tree->rounded};
    if (copy->first && copy->operand) return copy;
    lb_sum_tree_free(copy);
    return NULL;
}

/* Nodes renumbered in the order in which a walk over the operands leaves them. */
static bool renumber(const lb_sum_tree *from, lb_sum_tree *to)
{
    typedef struct place {
        uint32_t node, next;
    } place;
    place *stack = malloc((from->nodes + 1) * sizeof *stack);
    uint32_t *number = malloc((from->nodes + 1) * sizeof *number), depth = 0, done = 0, at = 0;
    const bool fine = stack && number;
    if (fine && from->nodes) stack[depth++] = (place){from->nodes - 1, from->first[from->nodes - 1]};
    while (fine && depth) {
        place *top = &stack[depth - 1];
        while (top->next < from->first[top->node + 1] && from->operand[top->next] < from->leaves) top->next++;
        if (top->next < from->first[top->node + 1]) {
            const uint32_t child = from->operand[top->next++] - from->leaves;
            stack[depth++] = (place){child, from->first[child]};
            continue;
        }
        for (uint32_t k = from->first[top->node]; k < from->first[top->node + 1]; k++) {
            const uint32_t x = from->operand[k];
            to->operand[at++] = x < from->leaves ? x : from->leaves + number[x - from->leaves];
        }
        number[top->node] = done++;
        to->first[done] = at;
        depth--;
    }
    free(stack);
    free(number);
    return fine;
}

lb_sum_tree *lb_sum_tree_canonical(const lb_sum_tree *tree)
{
    lb_sum_tree *sorted = blank_like(tree), *out = blank_like(tree);
    bool done = sorted && out;
    if (done) {
        memcpy(sorted->first, tree->first, (tree->nodes + 1) * sizeof(uint32_t));
        memcpy(sorted->operand, tree->operand, tree->first[tree->nodes] * sizeof(uint32_t));
        done = sort_operands(sorted) && renumber(sorted, out);
    }
    lb_sum_tree_free(sorted);
    if (done) return out;
    lb_sum_tree_free(out);
    return NULL;
}

static bool same(const lb_sum_tree *a, const lb_sum_tree *b)
{
    return a->leaves == b->leaves && a->nodes == b->nodes &&
           !memcmp(a->first, b->first, (a->nodes + 1) * sizeof(uint32_t)) &&
           !memcmp(a->operand, b->operand, a->first[a->nodes] * sizeof(uint32_t));
}

bool lb_sum_tree_equal(const lb_sum_tree *a, const lb_sum_tree *b)
{
    if (a->leaves != b->leaves || a->nodes != b->nodes) return false;
    lb_sum_tree *x = lb_sum_tree_canonical(a), *y = lb_sum_tree_canonical(b);
    const bool equal = x && y && same(x, y);
    lb_sum_tree_free(x);
    lb_sum_tree_free(y);
    return equal;
}

lb_sum_tree *lb_sum_tree_sampled(const lb_sum_tree *tree, const uint32_t *positions, uint32_t count)
{
    const uint32_t all = tree->leaves + tree->nodes;
    uint32_t *now = malloc(all * sizeof *now), most = 2;
    lb_tree_builder builder = lb_tree_begin(count);
    for (uint32_t i = 0; i < tree->nodes; i++)
        if (tree->first[i + 1] - tree->first[i] > most) most = tree->first[i + 1] - tree->first[i];
    uint32_t *operands = malloc(most * sizeof *operands);
    for (uint32_t x = 0; now && x < all; x++) now[x] = LB_TREE_NOTHING;
    for (uint32_t i = 0; now && i < count; i++) now[positions[i]] = i;
    for (uint32_t i = 0; now && operands && i < tree->nodes; i++) {
        uint32_t n = 0;
        for (uint32_t k = tree->first[i]; k < tree->first[i + 1]; k++) operands[n++] = now[tree->operand[k]];
        now[tree->leaves + i] = lb_tree_fuse(&builder, operands, n);
    }
    builder.failed |= !now || !operands;
    lb_sum_tree *out;
    lb_tree_end(&builder, &out, NULL);
    free(now);
    free(operands);
    return out;
}
