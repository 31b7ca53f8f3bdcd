/* The trees along which MPI libraries reduce to one rank: who receives from whom, in which order.
 *
 *      0 ─┬─ 1 ── 3        a rank takes in its children's sums, first child first, and hands its own on;
 *         └─ 2             ranks are counted from the root: rank v of the tree is rank (root + v) mod n
 *
 * Each rank but the root is the child of exactly one rank. */
#ifndef LB_REPLAY_RANK_TREE_H
#define LB_REPLAY_RANK_TREE_H

#include "orders/collective_order.h"

typedef struct lb_rank_tree {
    lb_collective_order_kind kind;
    uint32_t n;
    int64_t fanout; /* chain, kary */
    uint32_t root;
} lb_rank_tree;

/* Whether an order of this kind is such a tree. */
bool lb_rank_tree_has(lb_collective_order_kind kind);
/* The tree of that order, whose kind is one. */
lb_rank_tree lb_rank_tree_of(const lb_collective_order *order, uint32_t n);
/* Which rank of the tree is its root: 0, but for in_order_binary. */
uint32_t lb_rank_tree_top(const lb_rank_tree *tree);
/* Child number k of v; -1: it has no more than k. */
int64_t lb_rank_tree_child(const lb_rank_tree *tree, uint32_t v, uint32_t k);
/* The rank that is v. */
uint16_t lb_rank_tree_rank(const lb_rank_tree *tree, uint32_t v);

#endif
