/* Dense products C = A B whose order is stated, at the speed of a library.
 *
 * Every element of C is the chain acc = fma(A[i, p], B[p, j], acc) for p = 0 … k-1, starting from +0 (or from the C
 * given). Packing, register tiles, cache blocks (the accumulator is put into C between them, which loses nothing),
 * threads over outputs and the width of vectors do not touch that order, so that none of them changes a bit. NaN
 * results are canonical (0x7FC00000; 0x7FF8000000000000), since which payload an fma hands on differs between
 * instructions.
 *
 * A and B are of any dtype and any strides: they are read once, while packing. Threads are OpenMP's; packing buffers
 * belong to their thread and stay until lb_matmul_release.
 */
#ifndef LB_REPLAY_MATMUL_H
#define LB_REPLAY_MATMUL_H

#include <lastbit/dtype.h>

/* Element (i, j) lies at data + i * row_stride + j * col_stride, in elements. Complex dtypes: real part. */
typedef struct lb_matrix {
    const void *data;
    lb_dtype dtype;
    ptrdiff_t row_stride, col_stride;
} lb_matrix;

typedef enum lb_tf32 { LB_TF32_NONE, LB_TF32_RZ, LB_TF32_RNA, LB_TF32_RNE } lb_tf32;

/* All zero: the plain chain. */
typedef struct lb_matmul_options {
    size_t size;         /* sizeof(lb_matmul_options) */
    size_t block;        /* K > 0: chains over K terms from +0 each, their sums added in order, from +0 (or C) */
    lb_dtype accumulate; /* round to this dtype after every fma, and after every addition of a block; 0: not */
    lb_dtype input;      /* round the elements of A and B to this dtype first; 0: not */
    lb_tf32 tf32;        /* … or to TF32, as tensor cores do */
    bool absolute;       /* |A| |B| */
    bool add;            /* start from the C given */
    int threads;         /* 0: as many as OpenMP gives */
} lb_matmul_options;
#define LB_MATMUL_OPTIONS_INIT {sizeof(lb_matmul_options)}

/* A is m * k, B k * n, C m * n with rows `ldc` elements apart, dense along a row. C overlaps neither. `options` may be
 * NULL. Fails with LB_ERR_NOMEM, or LB_ERR_UNSUPPORTED for types below 8 bits; C is then undefined. */
lb_status lb_matmul_f32(size_t m, size_t n, size_t k, const lb_matrix *a, const lb_matrix *b, float *c, ptrdiff_t ldc,
                        const lb_matmul_options *options);
lb_status lb_matmul_f64(size_t m, size_t n, size_t k, const lb_matrix *a, const lb_matrix *b, double *c, ptrdiff_t ldc,
                        const lb_matmul_options *options);

/* `batch` products whose operands lie a_step, b_step (may be 0) and c_step elements apart; threads share out the
 * products. */
typedef struct lb_matmul_batch {
    size_t batch;
    ptrdiff_t a_step, b_step, c_step;
} lb_matmul_batch;
lb_status lb_matmul_batched_f32(const lb_matmul_batch *batch, size_t m, size_t n, size_t k, const lb_matrix *a,
                                const lb_matrix *b, float *c, ptrdiff_t ldc, const lb_matmul_options *options);
lb_status lb_matmul_batched_f64(const lb_matmul_batch *batch, size_t m, size_t n, size_t k, const lb_matrix *a,
                                const lb_matrix *b, double *c, ptrdiff_t ldc, const lb_matmul_options *options);

/* Frees the packing buffers of all threads. Not while a product runs. */
void lb_matmul_release(void);

#endif
