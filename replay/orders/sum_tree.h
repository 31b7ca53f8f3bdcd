/* Trees of additions as data: made, compared, cut down and run. lastbit/order.h has the form; here is what the library
 * does with it. Nothing recurses, since a tree may be as deep as it has terms. */
#ifndef LB_REPLAY_SUM_TREE_H
#define LB_REPLAY_SUM_TREE_H

#include <lastbit/order.h>

struct lb_tensor_core;

/* ---- making ------------------------------------------------------------------------------------------------------ */

#define LB_TREE_NOTHING UINT32_MAX /* an accumulator that holds no term yet: adding it changes nothing */

typedef struct lb_tree_builder {
    lb_sum_tree *tree;
    uint32_t room_nodes, room_operands;
    bool failed; /* out of memory; every call after it does nothing */
} lb_tree_builder;

lb_tree_builder lb_tree_begin(uint32_t leaves);
/* One addition of `count` operands; those that are NOTHING are left out. Returns the operand that stands for the
 * sum. */
uint32_t lb_tree_fuse(lb_tree_builder *builder, const uint32_t *operands, uint32_t count);
static inline uint32_t lb_tree_add(lb_tree_builder *builder, uint32_t a, uint32_t b)
{
    const uint32_t pair[2] = {a, b};
    return lb_tree_fuse(builder, pair, 2);
}
/* Takes the tree, after checking its rules; fails with LB_ERR_INVALID or LB_ERR_NOMEM. The builder is empty then. */
lb_status lb_tree_end(lb_tree_builder *builder, lb_sum_tree **tree, lb_err *err);

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* The same tree in its one normal form: operands by their least term, nodes in the order in which a walk over the
 * operands leaves them. NULL when out of memory. */
lb_sum_tree *lb_sum_tree_canonical(const lb_sum_tree *tree);
/* Terms below each node. */
uint32_t *lb_sum_tree_sizes(const lb_sum_tree *tree);
/* The parent node of every term and then of every node; the root's is UINT32_MAX. */
uint32_t *lb_sum_tree_parents(const lb_sum_tree *tree);

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The arithmetic of the additions. Zero: every one is rounded to the type of the terms, fused ones once from the real
 * sum. */
typedef struct lb_tree_rule {
    lb_dtype accumulate;                /* every addition is rounded to this dtype besides */
    const struct lb_tensor_core *fused; /* f32: fused additions as this unit does them; NULL: exact, rounded once */
    /* of products: a term that is added to a sum goes in by fma, unrounded; otherwise all are rounded first */
    bool chained;
} lb_tree_rule;

/* out[j] = the sum of x[i * stride + j] over the terms i, for j < width. LB_ERR_NOMEM is the only failure. */
lb_status lb_sum_tree_run_f32(const lb_sum_tree *tree, const lb_tree_rule *rule, const float *x, int64_t stride,
                              int64_t width, float *out);
lb_status lb_sum_tree_run_f64(const lb_sum_tree *tree, const lb_tree_rule *rule, const double *x, int64_t stride,
                              int64_t width, double *out);
/* The sum of the products x[i] y[i * stride + j]. */
lb_status lb_sum_tree_products_f32(const lb_sum_tree *tree, const lb_tree_rule *rule, const float *x, const float *y,
                                   int64_t stride, int64_t width, float *out);
lb_status lb_sum_tree_products_f64(const lb_sum_tree *tree, const lb_tree_rule *rule, const double *x, const double *y,
                                   int64_t stride, int64_t width, double *out);

#endif
