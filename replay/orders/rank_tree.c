/* Trees of ranks: see rank_tree.h. */
#include "orders/rank_tree.h"

bool lb_rank_tree_has(lb_collective_order_kind kind)
{
    switch (kind) {
    case LB_ORDER_BINOMIAL:
    case LB_ORDER_BINARY:
    case LB_ORDER_KARY:
    case LB_ORDER_CHAIN:
    case LB_ORDER_IN_ORDER_BINARY:
    case LB_ORDER_NBC_BINOMIAL:
    case LB_ORDER_NBC_CHAIN: return true;
    default: return false;
    }
}

lb_rank_tree lb_rank_tree_of(const lb_collective_order *order, uint32_t n)
{
    const uint32_t root = order->home && !order->at_zero ? (order->home - 1) % n : 0;
    return (lb_rank_tree){order->kind, n, order->kind == LB_ORDER_NBC_CHAIN ? 1 : order->channels, root};
}

uint32_t lb_rank_tree_top(const lb_rank_tree *tree)
{
    return tree->kind == LB_ORDER_IN_ORDER_BINARY ? tree->n - 1 : 0;
}

/* libnbc lets the root and rank 0 change places; the in-order tree hands its sum to the root when all is added up. */
uint16_t lb_rank_tree_rank(const lb_rank_tree *tree, uint32_t v)
{
    if (tree->kind == LB_ORDER_IN_ORDER_BINARY) return (uint16_t)v;
    if (tree->kind == LB_ORDER_NBC_BINOMIAL || tree->kind == LB_ORDER_NBC_CHAIN)
        return (uint16_t)(v == 0 ? tree->root : v == tree->root ? 0 : v);
    return (uint16_t)((tree->root + v) % tree->n);
}

static int64_t if_there(const lb_rank_tree *tree, int64_t child)
{
    return child < (int64_t)tree->n ? child : -1;
}

static int64_t binomial_child(const lb_rank_tree *tree, uint32_t v, uint32_t k)
{
    const int64_t step = k < 31 ? (int64_t)1 << k : INT32_MAX;
    return v & (2 * step - 1) ? -1 : if_there(tree, v + step);
}

/* Levels are filled one after the other; a rank's children are as far apart as its level has ranks. */
static int64_t binary_child(const lb_rank_tree *tree, uint32_t v, uint32_t k)
{
    int64_t width = 1;
    while (2 * width - 1 <= (int64_t)v) width *= 2;
    return k < 2 ? if_there(tree, v + width * (k + 1)) : -1;
}

/* The chains' lengths differ by one at most, the longer ones come first. */
static int64_t chain_head(const lb_rank_tree *tree, int64_t chain)
{
    const int64_t others = tree->n - 1, each = others / tree->fanout, longer = others % tree->fanout;
    return 1 + chain * each + (chain < longer ? chain : longer);
}

static int64_t chain_child(const lb_rank_tree *tree, uint32_t v, uint32_t k)
{
    if (v == 0) return (int64_t)k < tree->fanout ? if_there(tree, chain_head(tree, k)) : -1;
    if (k > 0) return -1;
    for (int64_t chain = 0; chain < tree->fanout && chain_head(tree, chain) <= (int64_t)v + 1; chain++)
        if (chain_head(tree, chain) == (int64_t)v + 1) return -1;
    return if_there(tree, (int64_t)v + 1);
}

/* The last rank of a range is its root; of those before it the first half, rounded down from the whole range, is the
 * left subtree and the rest the right one, which is taken in first. */
static int64_t in_order_child(const lb_rank_tree *tree, uint32_t rank, uint32_t k)
{
    uint32_t first = 0, size = tree->n;
    while (first + size - 1 != rank) {
        const uint32_t left = size / 2;
        if (rank < first + left)
            size = left;
        else
            first += left, size -= left + 1;
    }
    const uint32_t left = size / 2, right = size - 1 - left;
    const uint32_t found = k + (right == 0);
    return found == 0 ? (int64_t)rank - 1 : found == 1 && left ? (int64_t)first + left - 1 : -1;
}

int64_t lb_rank_tree_child(const lb_rank_tree *tree, uint32_t v, uint32_t k)
{
    switch (tree->kind) {
    case LB_ORDER_BINARY: return binary_child(tree, v, k);
    case LB_ORDER_KARY: return k < tree->fanout ? if_there(tree, (int64_t)v * tree->fanout + 1 + k) : -1;
    case LB_ORDER_CHAIN:
    case LB_ORDER_NBC_CHAIN: return chain_child(tree, v, k);
    case LB_ORDER_IN_ORDER_BINARY: return in_order_child(tree, v, k);
    default: return binomial_child(tree, v, k);
    }
}
