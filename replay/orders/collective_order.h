/* In which order ranks are added up, and which elements in which.
 *
 * A reduction over n ranks is data: the elements are cut into pieces, and each piece has a list of folds over n
 * registers that start as the ranks' contributions,
 *
 *      fold (dst, src):  reg[dst] = round_T(reg[dst] + reg[src])        … the result is reg[root]
 *
 * so that one interpreter runs rings, trees and recursive doubling, and a search can list them. T is the payload type:
 * every fold rounds to it, except under a wide accumulator, which rounds once. a + b and b + a are the same bits, so
 * that a fold says nothing of which operand comes first.
 *
 *   gloo            ring of torch's gloo: chunk c starts at rank c-1 and walks down: ((x[c-1] + x[c-2]) + …) + x[c]
 *   ring[:C[:N]]    NCCL: chunk c of N elements starts at c+1 and walks up, ends at c; C channels split the elements.
 *                   What one rank alone receives (reduce, its block of a reduce-scatter) ends there, whatever the
 *                   chunks
 *   mpi_ring        Open MPI: block b starts at b and walks up; the first count mod n blocks are one longer
 *   mpich_ring      MPICH: block b of ceil(count / n) elements starts at b+1 and walks up, ends at b
 *   nbc_ring        Open MPI, nonblocking: block b starts at b-1 and walks up; blocks as mpi_ring's
 *   pairwise        MPICH's reduce-scatter: the block of rank b starts at b and walks down: (x[b] + x[b-1]) + …
 *   tree[:G]        NCCL's double binary tree over nodes of G ranks: first half of the elements tree 0, second half
 *                   tree 1
 *   rank            rank order, rounded at every add (TensorRT-LLM, FlashInfer; MPI's linear scans)
 *   linear          Open MPI's: from the last rank down, x[0] + (x[1] + (… + x[n-1])), whichever rank is the root
 *   wide            rank order, f32 accumulator (f64 for f32), one rounding (vLLM one-stage, NCCL symmetric LL)
 *   rotated         element range r of n starts at rank r and wraps, wide accumulator (two-stage)
 *   doubling        recursive doubling: a balanced tree, surplus ranks folded first (into the odd one)
 *   rabenseifner    the same tree, surplus ranks folded into the even one
 *   halving         recursive halving, as reduce-scatters do it: the same survivors, but the largest distance first
 *   binomial        ranks v from the root on: v takes in v+1, v+2, v+4, … as far as v is a multiple of twice that
 *   binary          v takes in v+w and v+2w, w being the number of ranks on v's level: 0; 1 2; 3 … 6; …
 *   kary[:K]        v takes in Kv+1 … Kv+K (2)
 *   chain[:F]       F chains (4) of neighbouring ranks, which the root takes in one after the other, each summed from
 *                   its end; chain:1 is what MPI libraries call pipeline, or ring of a reduce
 *   in_order_binary Open MPI's: the last rank of a range takes in its right half, then its left half
 *   nbc_binomial    binomial and chain:1 of Open MPI's nonblocking reduce, which counts ranks differently: the root and
 *   nbc_chain       rank 0 change places
 *
 * In a tree every rank takes in its children's sums, first child first. Trees end at the rank that alone receives the
 * result, at rank 0 where all do; in_order_binary at the last one always, linear does not ask. With @0 behind it
 * (binomial@0) a tree ends at rank 0, which hands the result on to the ranks that receive it.
 *
 * Which library's algorithm is which order: README.md. Sources: gloo/allreduce.cc, gloo/types.h; NCCL
 * src/device/{all_reduce,reduce,reduce_scatter}.h, src/graph/trees.cc; vLLM csrc/custom_all_reduce.cuh. Those of MPI
 * were seen in the results of Open MPI 4.1.4 and MPICH 4.0.2, each with its algorithm forced (tests/replay/orders,
 * mpi_judge.c): a large number on one rank, its negative on another and ones on all others tell how many ranks were
 * added up when the two met, which makes the tree of every element. Their names are those of `ompi_info --param coll
 * tuned` and of MPICH's control variables; Thakur, Rabenseifner, Gropp, "Optimization of collective communication
 * operations in MPICH" (2005) describes doubling, halving, binomial and rabenseifner.
 */
#ifndef LB_REPLAY_COLLECTIVE_ORDER_H
#define LB_REPLAY_COLLECTIVE_ORDER_H

#include <lastbit/dtype.h>

typedef enum lb_collective_order_kind {
    LB_ORDER_GLOO,
    LB_ORDER_RING,
    LB_ORDER_MPI_RING,
    LB_ORDER_TREE,
    LB_ORDER_RANK,
    LB_ORDER_WIDE,
    LB_ORDER_ROTATED,
    LB_ORDER_DOUBLING,
    LB_ORDER_RABENSEIFNER,
    LB_ORDER_MPICH_RING,
    LB_ORDER_NBC_RING,
    LB_ORDER_PAIRWISE,
    LB_ORDER_LINEAR,
    LB_ORDER_HALVING,
    LB_ORDER_BINOMIAL,
    LB_ORDER_BINARY,
    LB_ORDER_KARY,
    LB_ORDER_CHAIN,
    LB_ORDER_IN_ORDER_BINARY,
    LB_ORDER_NBC_BINOMIAL,
    LB_ORDER_NBC_CHAIN
} lb_collective_order_kind;

typedef struct lb_collective_order {
    lb_collective_order_kind kind;
    int64_t channels; /* ring: channels; tree: ranks per node; kary: K; chain: F */
    int64_t chunk;    /* ring: elements per chunk, 0: NCCL's default for its size */
    bool at_zero;     /* trees: @0 */
    uint32_t home;    /* of gloo, rings, trees: 1 + the rank that alone receives the result; 0: all do */
} lb_collective_order;
#define LB_ORDER_INIT {.channels = 1}
/* Those that are tried where none is told, likely ones first: of orders that are the same for so many ranks the first
 * gives its name. FEW: where each costs much. */
#define LB_COLLECTIVE_ORDERS_FEW "gloo ring mpi_ring rank wide tree rotated doubling rabenseifner"
#define LB_COLLECTIVE_ORDERS                                                                                           \
    LB_COLLECTIVE_ORDERS_FEW " linear binomial halving binary chain:1 chain kary in_order_binary mpich_ring nbc_ring " \
                             "pairwise nbc_chain nbc_binomial binomial@0"
/* With a parameter. */
#define LB_COLLECTIVE_ORDERS_SPLIT "ring:2 tree:2 tree:4 tree:8 ring:4 ring:8 ring:16 ring:24 ring:32"
/* The names in such a text one after the other, in its order; *at begins at the text. False behind the last. */
enum { LB_COLLECTIVE_ORDER_NAME = 24 };
bool lb_collective_order_next(const char **at, char name[LB_COLLECTIVE_ORDER_NAME]);
/* LB_ERR_INVALID names the accepted texts. */
lb_status lb_collective_order_parse(const char *text, lb_collective_order *order, lb_err *err);
/* Whether each rank's block of a reduce-scatter is added up in an order of its own, which ends at that rank. */
bool lb_collective_order_ends_at_home(const lb_collective_order *order);

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

#endif
