/* Products with weights that stand beside each other feature by feature, however either side lays its weights out.
 *
 *      A   x · c_attn (64, 192)                B   x · W_Q[h]ᵀ, x · W_K[h]ᵀ, …        a column of A's operand holds the
 *          numbers of one of B's:
 *                                                                                     their features of the results are one
 *
 * Columns are looked up by a digest of their numbers that does not know their order, as what is summed over may be put
 * together differently, too. It is the operand that is asked, as the op reads it: transposed, gathered by heads,
 * copied. A bias that is added by an op of its own belongs to the product. Rows of results (tokens) may stand in
 * another order, time before batch: that is told from the numbers of both free runs, and holds for all results of as
 * many rows. */
#ifndef LB_BISECT_PRODUCTS_H
#define LB_BISECT_PRODUCTS_H

#include "counterparts/counterparts.h"

typedef struct lb_products lb_products;

/* Behind free runs of both sides that kept their numbers; the sides have to stay. LB_ERR_NOMEM is the only failure. */
lb_status lb_products_new(const lb_exact_side *a, const lb_exact_side *b, lb_products **products, lb_err *err);
void lb_products_free(lb_products *products);
/* Adds an anchor for each product of B with a weight whose columns A has, in the place of those that read the same
 * value. */
lb_status lb_products_find(const lb_products *products, lb_counterparts *counterparts, lb_err *err);

/* Each bias of B beside those of A, where the features that it is added to are theirs: `runs` of rows that `row_of` of
 * either side's sources gives; called once for each. */
typedef struct lb_bias_sink {
    const uint32_t *row_of[2];
    lb_status (*bias)(void *context, uint32_t row, const lb_content_run *runs, uint32_t n, lb_err *err);
    void *context;
} lb_bias_sink;
lb_status lb_products_biases(const lb_products *products, const lb_bias_sink *sink, lb_err *err);

#endif
