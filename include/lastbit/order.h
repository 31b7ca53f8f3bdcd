/* The order in which a kernel adds up, as a tree: written down, named, and found in a live kernel from outside.
 *
 * A tree has n terms as its leaves; every node is one addition of two operands, or one fused addition of more (tensor
 * cores). Additions commute, so operands have no order. As text
 *
 *      (0 1)          one addition; (0 1 2): a fused one
 *      [0 1 2]        a chain, added one after the other: ((0 1) 2)
 *      [0..31]        terms in a row, also 0..28/4 for every fourth
 *
 * and as JSON {"leaves": 4, "nodes": [[0, 1], [2, 3], [4, 5]]}: node i is operand leaves + i of a later one; the last is the sum.
 *
 * Finding a tree needs nothing but calls (FPRev, Xie et al., arXiv 2411.00442): with a huge M at term i, -M at term j and a
 * unit everywhere else, just those units survive that are added after i and j have met, so the sum tells how many terms are
 * below the node where they meet. */
#ifndef LASTBIT_ORDER_H
#define LASTBIT_ORDER_H

#include <lastbit/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- trees ------------------------------------------------------------------------------------------------------- */

/* Node i has the operands operand[first[i]] … operand[first[i + 1] - 1]: below `leaves` a term, otherwise leaves + an
 * earlier node. Every term and every node but the last is used once. One leaf: no node. */
typedef struct lb_sum_tree {
    uint32_t leaves, nodes;
    uint32_t *first; /* nodes + 1 */
    uint32_t *operand;
} lb_sum_tree;
#define LB_TREE_MAX_LEAVES (1u << 24)

/* Trees are malloc'ed; free takes NULL. */
LB_API void lb_sum_tree_free(lb_sum_tree *tree);
/* From the text above. LB_ERR_INVALID says where it breaks a rule. */
LB_API lb_status lb_sum_tree_parse(const char *text, lb_sum_tree **tree, lb_err *err);
/* Its text, malloc'ed; NULL when out of memory. */
LB_API char *lb_sum_tree_print(const lb_sum_tree *tree);
/* As JSON text, malloc'ed, with "schema": "lastbit.tree/1" and the text above; `name` may be NULL. */
LB_API char *lb_sum_tree_to_json(const lb_sum_tree *tree, const char *name);
LB_API lb_status lb_sum_tree_from_json(const char *text, lb_sum_tree **tree, lb_err *err);
/* A file in either form. */
LB_API lb_status lb_sum_tree_read(const char *path, lb_sum_tree **tree, lb_err *err);
/* Whether two trees are the same sum: operands in any order. */
LB_API bool lb_sum_tree_equal(const lb_sum_tree *a, const lb_sum_tree *b);

/* What is added up: the orders that torch has for rows, columns and products differ under one name. */
typedef enum lb_sum_of { LB_SUM_ROW, LB_SUM_COLUMN, LB_SUM_PRODUCT } lb_sum_of;

/* The tree of a named order over n terms of `dtype`: the texts of `lastbit replay --order` (but exact, which is no tree);
 * "fused:W", a chain of fused sums of W terms; "reversed", the last term first; "ORDER of columns" whatever `of` says. */
LB_API lb_status lb_sum_tree_named(const char *name, uint32_t n, lb_sum_of of, lb_dtype dtype,
                                   lb_sum_tree **tree, lb_err *err);
/* The names of this order, most telling first, separated by " = " where several give the same tree; false: it has none.
 * `room` bytes in `names`, 256 are enough. */
LB_API bool lb_sum_tree_name(const lb_sum_tree *tree, lb_sum_of of, lb_dtype dtype, char *names, size_t room);

#ifdef __cplusplus
}
#endif
#endif
