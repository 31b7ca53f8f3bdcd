/* What norms are written with: means over a row, the root of a spread with its eps, weights per element. The
 * recognisers of RMSNorm and layer norm are put together from these.
 *
 *      1 / sqrt(v + eps)      rsqrt, pow -0.5, reciprocal of a root, or a root that something is divided by
 *      1 / (sqrt(v) + eps)    the same with eps behind the root
 *      1 / max(sqrt(v), eps)  F.normalize
 *
 * Instead of sqrt(v) a spread by itself may stand there: a standard deviation, a 2-norm. */
#ifndef LB_REPLAY_NORM_PARTS_H
#define LB_REPLAY_NORM_PARTS_H

#include "composites/recogniser.h"

enum { LB_NORM_MOST_OPS = 32 };

/* A norm while it is being read. */
typedef struct lb_norm_parts {
    lb_composite composite;
    uint32_t ops[LB_NORM_MOST_OPS], n_ops;
} lb_norm_parts;

void lb_norm_take(lb_norm_parts *parts, uint32_t op);

typedef struct lb_norm_root {
    bool divides;        /* x is divided by it; otherwise x is multiplied with one over it */
    lb_reading variance; /* what stands under the root; op LB_NONE: there is `spread` instead */
    uint32_t spread;     /* the op in the place of a root, which the caller has to know */
    lb_eps_place place;
    double eps;
} lb_norm_root;

/* Whether `op` is the last one of such a root; its ops are taken, but for `op` and `spread`. */
bool lb_norm_read_root(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts, lb_norm_root *root);

/* x of x², x·x, pow(x, 2). */
lb_reading lb_norm_squared(const lb_recogniser *recogniser, uint32_t op);
/* What `op` takes the mean of over the last dimension: `mean`, or a sum divided by the number of its terms. */
lb_reading lb_norm_averaged(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts);
/* x of x - mean(x), with the mean over the last dimension. */
lb_reading lb_norm_centred(const lb_recogniser *recogniser, lb_reading reading, lb_norm_parts *parts);

/* One number per element of a row of `y`: (n), or dimensions of size 1 before it. */
bool lb_norm_is_row(const lb_value *w, const lb_value *y);
/* Takes the casts that gave `reading`; what lies behind them. */
lb_reading lb_norm_take_casts(const lb_recogniser *recogniser, lb_norm_parts *parts, lb_reading reading);
/* The same with casts of the call that `root` is made in. */
lb_reading lb_norm_take_own_casts(const lb_recogniser *recogniser, lb_norm_parts *parts, uint32_t root,
                                  lb_reading reading);

#endif
