/* One op of a side against several of the other: micro-batches against a batch, decode steps against a full forward pass,
 * ranks against one process. A value of the whole is its parts put together along a dimension (tokens by position, shards
 * of columns), or has the shape of each part (then it is their sum, their mean, or the same in all).
 */
#ifndef LB_BISECT_JOIN_H
#define LB_BISECT_JOIN_H

#include "side.h"

typedef struct lb_join {
    uint32_t whole;        /* op of A */
    uint32_t first, parts; /* rows of part_ops: ops of B, in the order in which they are put together */
} lb_join;

typedef struct lb_joins {
    lb_join *list;
    uint32_t n;
    uint32_t *part_ops, n_part_ops;
} lb_joins;

enum { LB_JOIN_SAME = -1, LB_JOIN_NONE = -2 };

void lb_joins_release(lb_joins *joins);
/* The values that stand behind result (or then written value) `outcome` of each part; false when some part has none. */
bool lb_join_values(const lb_joins *joins, const lb_join *join, const lb_program *pb, uint32_t outcome,
                    uint32_t *values);
/* The dimension along which n values of B make `whole`; LB_JOIN_SAME when all have its shape; LB_JOIN_NONE. */
int lb_join_dim(const lb_program *pa, uint32_t whole, const lb_program *pb, const uint32_t *values, uint32_t n);
/* The same of result (or then written value) `outcome` of a join, and where along it the part at `place` begins. */
int lb_join_outcome_dim(const lb_joins *joins, const lb_join *join, const lb_program *pa, const lb_program *pb,
                        uint32_t outcome, uint32_t place, int64_t *at);
/* Copies `numbers` (row-major, of part `k`'s shape) into the whole's row-major `out`, `at` elements along `dim`. */
void lb_join_place(const lb_layout *whole, int dim, int64_t at, const lb_layout *part, size_t element,
                   const void *numbers, void *out);
/* Recorded bytes put together along `dim`: tensor->data is malloc'ed. False when bytes lack or dtypes differ. */
bool lb_join_assemble(const lb_side *b, const lb_layout *whole, int dim, const uint32_t *values, uint32_t n,
                      lb_tensor *tensor);

#endif
