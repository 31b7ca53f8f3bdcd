/* Dimensions that ranks do not share out as one block each: the zigzag of context parallelism, strided parts.
 *
 *      whole    0 1 2 3 4 5 6 7         rank 0 has 0 1 6 7, rank 1 has 2 3 4 5
 *
 * The values that say so (lastbit/shard.h) are few: a batch, a parameter. What follows from them has the same
 * dimension, maybe flattened with those beside it, so that a dimension is known by its sizes on both sides. */
#ifndef LB_SHARD_AXES_H
#define LB_SHARD_AXES_H

#include <lastbit/program.h>

/* Part `part` has at `at` of the dimension what stands from `from` on in the whole. */
typedef struct lb_shard_range {
    uint32_t part;
    int64_t at, from, size;
} lb_shard_range;

typedef struct lb_shard_axis {
    int64_t whole;
    int64_t outer, inner; /* elements before and behind it, where it was told of */
    int64_t *sizes;       /* per part */
    lb_shard_range *ranges;
    uint32_t n;
} lb_shard_axis;

typedef struct lb_shard_axes {
    lb_shard_axis *list;
    uint32_t n, parts;
} lb_shard_axes;

/* `part_of(context, value)`: of `parts`. Parts that lie one after the other are no axis. LB_ERR_NOMEM is the only
 * failure. */
lb_status lb_shard_axes_find(const lb_program *program, uint32_t parts,
                             uint32_t (*part_of)(const void *context, uint32_t value), const void *context,
                             lb_shard_axes *axes, lb_err *err);
void lb_shard_axes_release(lb_shard_axes *axes);
/* The axis that a dimension of `whole` is, of which part k has sizes[k], and how many of its elements are one of that
 * dimension (`*inner`; as many as whole / (axis->whole * inner) times it repeats); NULL. */
const lb_shard_axis *lb_shard_axes_match(const lb_shard_axes *axes, int64_t whole, const int64_t *sizes,
                                         int64_t *inner);

#endif
