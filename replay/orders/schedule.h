/* Orders of a sum as data. A schedule says in which order n terms are added up and thus which bits come out; one engine
 * runs all of them, over one row or over many independent columns at a time. Sums start from +0.
 *
 *   sequential        ((x0 + x1) + x2) + …
 *   pairwise          a balanced tree: split at the largest power of two below n, down to single terms
 *   cascade[:L]       torch on a CPU with L lanes (8: AVX2, torch's default for sums; 1: its scalar path)
 *   blocked:K         blocks of K consecutive terms, each sequential; block sums added in order
 *   splitk:N[@2,0,1]  N slices of ceil(n/N) terms, each sequential; added in order (a GEMM's split-K), or in the order
 *                     given for up to 16 slices (one whose second pass takes them as they come)
 *   lanes:L           term i goes to accumulator i mod L; accumulators added in order
 *   butterfly:T[xV]   T threads take V consecutive terms in turn; exchange by xor 16, 8, 4, 2, 1 in each warp of 32,
 *                     then again over the warps (padded with zeros to 32)
 *   numpy             NumPy's sum of contiguous elements: halves down to 128 terms, those in eight accumulators
 *   torch:N           what torch does on a CPU with N threads: a full sum of 32768 terms or more is cut into a piece
 *                     per thread; a product (MKL, AVX-512, small matrices) chains fma over blocks of k
 *   exact             the real sum, rounded once
 *   tensorcore:ARCH[:K]  of products alone: the matrix unit of v100 a100 ada h100 h100-fp8 b200 (tensor_core.h); K: a
 *                        new
 *                     chain every K terms, their sums added in order
 *   streamk:C[xT]     of products alone: the tiles of T x T results (128), 32 terms at a time, lie one after the other
 *                     and are cut in C equal shares; a tile's pieces are chains of their own, added in order (CUTLASS's
 *                     stream-K)
 *   dpbf16[:K]        of products alone: terms in pairs, the odd one first, a new chain every K terms (512); sums added
 *                     in order
 *   tdpbf16[:N]       of products alone: tiles of 32 terms, the even ones and the odd ones of each in a chain of their
 *                     own, which meet and are added to the sum; N sums (1), added in order
 *   torchdot          of products alone: what torch's own dot of bf16 and f16 does: whole 64s in 64 accumulators,
 *                     folded by half distances 32, 16, … 1; of what is left whole 16s in 8 of them, folded and added;
 *                     the rest in order
 *   halved:K          blocks of K consecutive terms, but more than K and up to 2K are cut in halves, rounded down;
 *                     added in order
 *   folded:L[,OPTION…]  of products alone: chains in L lanes (2, 4, 8 or 16), which are then folded onto each other;
 *                       see below
 *   eights            of products alone: eight terms at a time, of which some meet first; see below
 *   tree:TREE         any order of additions, written out or in a file (lastbit/order.h); for sums of another number of
 *                     terms it says nothing: they keep the order they have without a schedule
 *
 * cascade is read from torch's SumKernel.cpp (`multi_row_sum`, `row_sum`, `vectorized_{inner,outer}_sum`): four levels
 * of accumulators over blocks of 2^max(4, ceil(log2 n)/4) terms, four rows of lanes interleaved, the tail added first.
 * butterfly is that of FlashInfer's and TensorRT-LLM's norms (block reduction by shuffles). numpy is `pairwise_sum` of
 * NumPy's loops_utils.h.src. torch:N is `two_pass_reduction` of torch's TensorIteratorReduce.cpp with `parallel_for`'s
 * pieces; of MKL's products it is what they were seen to do (lb_schedule_block). dpbf16 is what VDPBF16PS of
 * AVX512-BF16 does (Intel's manual: an fma with the odd numbers of each pair, then one with the even ones), in chains
 * as oneDNN's products of bf16 were seen to have, whatever their shape (`lastbit order --python torch:matmul --as
 * matmul --dtype bf16`). tdpbf16 is what the matrix unit AMX does (Intel's manual, TDPBF16PS and TDPFP16PS: from 0 a
 * chain of fma over the even terms and one over the odd ones, then their sum, which is added to the tile of results).
 * oneDNN's tiles are shorter where k is a multiple of an even number of terms and as many tiles suffice
 * (lb_schedule_tile), and its threads and caches cut k in N shares of whole 32s; both were seen in its results, as was
 * N, which depends on all three sizes of a product. torchdot was seen the same way without oneDNN:
 * ReducedPrecisionFloatGemvFastPathKernel.cpp with eight AVX2 registers.
 *
 * halved, folded and eights are what MKL 2024.2 (torch 2.13) was seen to do in f32 with the instructions of
 * MKL_ENABLE_INSTRUCTIONS, on AMD's processors, and on those that mkl_serv_intel_cpu_true says are Intel's (`lastbit
 * order --python torch:mm --as matmul`):
 *
 *                           matrices            a row times B as it lies (k x n)   … times a transposed B (a weight)
 *   AMD; Intel: SSE4.2, AVX halved:192, lanes:1 lanes:1                            folded:4,aligned:0,tail:after,rounded
 *   Intel: AVX2             (blocks of 256)     sequential                         folded:8,pairs
 *   Intel: AVX-512          torch:N             eights                             folded:16,head:1,tail:again
 *   MKL_CBWR set                                lanes:1                            folded:4,head:1,tail:after,rounded
 *
 * halved:192 is of more than three rows and eight columns, whatever the number of threads; fewer are lanes:1, times a
 * transposed B and with k a multiple of four folded:4,tail:after,rounded (a row that begins elsewhere has another
 * head). lanes:1 are also batches of fewer than 400 multiplications each, which torch does by itself. Of one column, of
 * two or three of a transposed B, and of a batch whose results do not begin at multiples of 16 bytes, other orders were
 * seen.
 *
 * The options of folded say, in this order:
 *
 *   head:1      the first term goes to lane 0 before all others
 *   aligned:O   so do the first terms up to a boundary of L elements, O: where B begins beyond one. MKL looks at the
 *               address of the fourth column: (k - 1 - O) mod L + 1 terms
 *   tail:after  what does not fill the lanes is added to their sum one by one
 *   tail:again  it goes to the lanes once more, the sum in lane 0, and they are folded again
 *   pairs       neighbouring lanes are folded first; then, as without it, by half distances L/2, L/4, … 1
 *   rounded     products are rounded before they are added; otherwise they go in by fma
 *
 * With a tail of either kind columns of results are taken in fours, and the last n mod 4 have orders of their own:
 * first a pair, if there are two, then one. tail:after: the one and the first of a pair have 2L lanes, the second has
 * L, and all take 2L terms at a time; with aligned:O their heads are L - O terms. tail:again: all go to L lanes with
 * their tails, but of the one and the first of a pair what fills 2L lanes goes to as many, whose upper half is then
 * added to the lower one; the head, rounded, is added at the end.
 *
 * eights adds to a sum s of eight products p0 … p7: s + p6 and + p4 by fma, then fma(p5, p7 rounded), then p0 onto p2
 * rounded plus p1 onto p3 rounded. Terms that are left over go in one by one, as do all terms of the last n mod 16
 * columns. */
#ifndef LB_REPLAY_SCHEDULE_H
#define LB_REPLAY_SCHEDULE_H

#include <lastbit/dtype.h>

typedef enum lb_schedule_kind {
    LB_SCHEDULE_SEQUENTIAL,
    LB_SCHEDULE_PAIRWISE,
    LB_SCHEDULE_CASCADE,
    LB_SCHEDULE_BLOCKED,
    LB_SCHEDULE_SPLITK,
    LB_SCHEDULE_LANES,
    LB_SCHEDULE_BUTTERFLY,
    LB_SCHEDULE_EXACT,
    LB_SCHEDULE_NUMPY,
    LB_SCHEDULE_TORCH,
    LB_SCHEDULE_TENSOR_CORE,
    LB_SCHEDULE_TREE,
    LB_SCHEDULE_STREAMK,
    LB_SCHEDULE_DPBF16,
    LB_SCHEDULE_TORCHDOT,
    LB_SCHEDULE_HALVED,
    LB_SCHEDULE_FOLDED,
    LB_SCHEDULE_EIGHTS,
    LB_SCHEDULE_TDPBF16
} lb_schedule_kind;

/* The options of folded. */
enum {
    LB_FOLDED_HEAD = 1,
    LB_FOLDED_ALIGNED = 2, /* O is four bits from bit 8 on */
    LB_FOLDED_TAIL_AFTER = 4,
    LB_FOLDED_TAIL_AGAIN = 8,
    LB_FOLDED_PAIRS = 16,
    LB_FOLDED_ROUNDED = 32
};
#define LB_FOLDED_MAX_LANES 16
#define LB_FOLDED_OFFSET(options) ((options) >> 8 & 15)

struct lb_sum_tree;

typedef struct lb_schedule {
    lb_schedule_kind kind;
    int64_t size; /* lanes, K, N or threads, as above; tensorcore: the arch */
    /* butterfly: V; streamk: T; tensorcore: K; splitk: slices by their order, four bits each, the first one lowest;
     * folded: options; or 0 */
    int64_t vector;
    struct lb_sum_tree *tree; /* tree: owned */
} lb_schedule;

#define LB_SCHEDULE_MAX_SIZE 1024 /* of lanes and threads; blocks may be longer */

/* Accepts the texts above; fails with LB_ERR_INVALID naming the accepted ones. A tree has to be released. */
lb_status lb_schedule_parse(const char *text, lb_schedule *schedule, lb_err *err);
void lb_schedule_release(lb_schedule *schedule);
/* The text that parses to it; `text` holds at least 96 bytes. Of a tree just "tree". */
const char *lb_schedule_print(const lb_schedule *schedule, char *text);
/* Whether it says how `n` terms are added up: a tree does so for its own number alone. */
bool lb_schedule_applies(const lb_schedule *schedule, int64_t n);
/* Whether it says nothing of sums but those of products. */
bool lb_schedule_of_products(const lb_schedule *schedule);
/* Whether it adds up products that were rounded; otherwise chains take them by fma. */
bool lb_schedule_rounds_products(const lb_schedule *schedule);

/* A NULL schedule is what torch's CPU sum does: cascade, with 8 lanes of f32 or 4 of f64.
 *
 * The sum of a dense row. `accumulate`: every addition is rounded to that dtype; 0: none beyond f32 (f64). */
float lb_schedule_sum_f32(const lb_schedule *schedule, const float *x, int64_t n, lb_dtype accumulate);
double lb_schedule_sum_f64(const lb_schedule *schedule, const double *x, int64_t n, lb_dtype accumulate);
/* out[j] = sum over i < n of x[i * stride + j], for j < width: independent columns, all in the same order. (cascade is
 * torch's outer reduction: of the last width mod 4L columns four rows are interleaved.) */
void lb_schedule_sum_columns_f32(const lb_schedule *schedule, const float *x, int64_t stride, int64_t n, int64_t width,
                                 float *out, lb_dtype accumulate);
void lb_schedule_sum_columns_f64(const lb_schedule *schedule, const double *x, int64_t stride, int64_t n, int64_t width,
                                 double *out, lb_dtype accumulate);
/* The sum of squares of a dense row in torch's order of a 2-norm: eight lanes, each square rounded before it is added;
 * then what is left over, four of it in the same way and the rest by fma, as the loop that torch has for it is compiled
 * (2.13, for AVX2; seen in its results, `norm_two_reduce_step`'s caller in ReduceOpsKernel.cpp). */
float lb_schedule_sum_squares_f32(const float *x, int64_t n);
double lb_schedule_sum_squares_f64(const double *x, int64_t n);
/* The cascade of a row of `vectors` * lanes terms whose tail of fewer than a vector lies apart (bf16 rows, where two
 * loaded halves are added before they enter). */
float lb_schedule_cascade_f32(const float *x, int64_t vectors, int lanes, const float *tail, int64_t n_tail,
                              lb_dtype accumulate);

/* The terms of the next block when `left` terms of a product's chain are left, under torch:N: MKL's sgemm of AVX-512
 * takes 384 at a time and halves what lies between that and twice it. Seen with MKL 2024.2 for up to some 64 rows or
 * columns, where two threads cut k in half first if it is more than one block; larger products are tiled
 * differently. */
int64_t lb_schedule_block(int64_t left);
/* tdpbf16:N: the terms of a share of `terms`, and those of a tile of a share. */
int64_t lb_schedule_share(int64_t shares, int64_t terms);
int64_t lb_schedule_tile(int64_t terms);
/* The terms of a block of halved:K. */
int64_t lb_schedule_halved(int64_t most, int64_t terms);
/* The terms that folded adds up before all others. */
int64_t lb_schedule_head(const lb_schedule *folded, int64_t terms);

#endif
