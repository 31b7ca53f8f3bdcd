/* The arithmetic of collectives: reductions over ranks in a stated order.
 *
 * A reduction over n ranks is data: the elements are cut into pieces, and each piece has a list of folds over n
 * registers that start as the ranks' contributions,
 *
 *      fold (dst, src):  reg[dst] = round_T(reg[dst] + reg[src])        … the result is reg[root]
 *
 * so that one interpreter runs rings, trees and recursive doubling, and a search can list them. T is the payload type:
 * every fold rounds to it, except under a wide accumulator, which rounds once.
 *
 *   gloo            ring of torch's gloo: chunk c starts at rank c-1 and walks down: ((x[c-1] + x[c-2]) + …) + x[c]
 *   ring[:C[:N]]    NCCL: chunk c of N elements starts at c+1 and walks up, ends at c; C channels split the elements.
 *                   What one rank alone receives (reduce, its block of a reduce-scatter) ends there, whatever the
 *                   chunks
 *   mpi_ring        Open MPI: block b starts at b and walks up
 *   tree[:G]        NCCL's double binary tree over nodes of G ranks: first half of the elements tree 0, second half
 *                   tree 1
 *   rank            rank order, rounded at every add (TensorRT-LLM, FlashInfer)
 *   wide            rank order, f32 accumulator (f64 for f32), one rounding (vLLM one-stage, NCCL symmetric LL)
 *   rotated         element range r of n starts at rank r and wraps, wide accumulator (two-stage)
 *   doubling        recursive doubling: a balanced tree, surplus ranks folded first (into the odd one)
 *   rabenseifner    the same tree, surplus ranks folded into the even one
 *
 * Sources: gloo/allreduce.cc, gloo/types.h; NCCL src/device/{all_reduce,reduce,reduce_scatter}.h, src/graph/trees.cc;
 * Open MPI coll_base_allreduce.c; vLLM csrc/custom_all_reduce.cuh.
 */
#ifndef LB_REPLAY_COLLECTIVE_SUM_H
#define LB_REPLAY_COLLECTIVE_SUM_H

#include <lastbit/dtype.h>

typedef enum lb_collective_reduction {
    LB_REDUCE_SUM,
    /* each contribution is multiplied by 1/n rounded to T (NCCL); wide and rotated: the sum is; gloo: the sum is
     * divided by n */
    LB_REDUCE_AVG,
    LB_REDUCE_PRODUCT,
    LB_REDUCE_MIN,
    LB_REDUCE_MAX,
    LB_REDUCE_BAND,
    LB_REDUCE_BOR,
    LB_REDUCE_BXOR
} lb_collective_reduction;
/* "sum", "avg", "mean", "max", …; false when unknown. */
bool lb_collective_reduction_parse(const char *text, lb_collective_reduction *reduction);

typedef enum lb_collective_order_kind {
    LB_ORDER_GLOO,
    LB_ORDER_RING,
    LB_ORDER_MPI_RING,
    LB_ORDER_TREE,
    LB_ORDER_RANK,
    LB_ORDER_WIDE,
    LB_ORDER_ROTATED,
    LB_ORDER_DOUBLING,
    LB_ORDER_RABENSEIFNER
} lb_collective_order_kind;

typedef struct lb_collective_order {
    lb_collective_order_kind kind;
    int64_t channels; /* ring: channels; tree: ranks per node */
    int64_t chunk;    /* ring: elements per chunk, 0: NCCL's default for its size */
    uint32_t home;    /* ring: 1 + the rank that alone receives the result; 0: all do */
} lb_collective_order;
#define LB_ORDER_INIT {LB_ORDER_GLOO, 1, 0, 0}
/* LB_ERR_INVALID names the accepted texts. */
lb_status lb_collective_order_parse(const char *text, lb_collective_order *order, lb_err *err);

typedef struct lb_collective_fold {
    uint16_t dst, src;
} lb_collective_fold;
typedef struct lb_collective_slice {
    int64_t first, last; /* elements */
    uint16_t root;
    const lb_collective_fold *folds; /* n - 1 */
} lb_collective_slice;
typedef struct lb_collective_pieces {
    lb_collective_slice *pieces;
    uint32_t n;
    lb_collective_fold *folds;
} lb_collective_pieces;

#define LB_COLLECTIVE_MAX_RANKS 4096

/* The pieces of `count` elements of `element_bytes` each over n ranks, ascending, without gaps. */
lb_status lb_collective_order_pieces(const lb_collective_order *order, uint32_t n, int64_t count, size_t element_bytes,
                                     lb_collective_pieces *pieces, lb_err *err);
void lb_collective_pieces_release(lb_collective_pieces *pieces);

/* What n ranks bring: dense arrays of `count` elements of `dtype`. */
typedef struct lb_rank_terms {
    const void *const *inputs;
    uint32_t n;
    lb_dtype dtype;
    int64_t count;
} lb_rank_terms;

/* out[i] = the reduction of inputs[0][i] … inputs[n-1][i]. `out` may be one of the inputs. Integers wrap; NaNs win in
 * min and max. LB_ERR_UNSUPPORTED for a reduction that the dtype doesn't have. */
lb_status lb_collective_reduce(const lb_collective_order *order, lb_collective_reduction reduction,
                               const lb_rank_terms *terms, void *out, lb_err *err);

#endif
