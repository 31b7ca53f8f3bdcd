/* Dense products in a stated order: see matmul.h. Here: the instruction sets, transposition, buffers and thread counts;
 * matmul_kernel.h has the register tile, matmul_real.h everything between. */
#include "matmul.h"

#include <lastbit/processor.h>

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define DEPTH 256        /* terms per pass over packed panels: 32 columns of f32 are 32 KiB */
#define MOST_DEPTH 512   /* of a block that still goes through one pass */
#define MOST_ROWS 504    /* of A packed at a time: with 14 rows to a panel half a MiB */
#define MOST_COLUMNS 1024
#define MAX_ROWS 14
#define MAX_COLUMNS 32   /* of a tile */
#define SCRATCH 1024
#define ENOUGH_WORK (1u << 20) /* fma per thread below which starting it costs more */

/* Where a tile's accumulators come from and go to. */
typedef enum tile_mode {
    TILE_FIRST,    /* from +0, stored */
    TILE_CONTINUE, /* from C, stored */
    TILE_ADD       /* from +0, added to C */
} tile_mode;

/* One pass: the part of the product that packed panels hold. */
typedef struct blocks {
    size_t i, m, j, n, p, depth; /* rows, columns, terms: start and extent */
    size_t rows;                 /* per panel of A */
    bool in_place;               /* whole panels of B are read where they lie */
} blocks_f32, blocks_f64;

typedef struct kernels_f32 {
    int rows, a_stride, lanes;
    void (*tile[MAX_ROWS][2])(size_t depth, const float *a, const float *b, ptrdiff_t ldb, float *c, ptrdiff_t ldc,
                              tile_mode mode);
} kernels_f32;

typedef struct kernels_f64 {
    int rows, a_stride, lanes;
    void (*tile[MAX_ROWS][2])(size_t depth, const double *a, const double *b, ptrdiff_t ldb, double *c, ptrdiff_t ldc,
                              tile_mode mode);
} kernels_f64;

/* --- register tiles -------------------------------------------------------------------------------------------- */

LB_INLINE float clean_f32(float x) { return x == x ? x : NAN; }
LB_INLINE double clean_f64(double x) { return x == x ? x : (double)NAN; }

#define REAL float
#define KERNEL_TYPE kernels_f32
#define KERNEL(x) x##_scalar_f32
#define TARGET
#define VECTOR float
#define LANES 1
#define ROWS 4
#define A_STRIDE 4
#define ZERO() 0.0f
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define SPREAD(x) (x)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define ADD(a, b) ((a) + (b))
#define CLEAN(x) clean_f32(x)
#include "matmul_kernel.h"
#if LB_HAVE_X86
#define KERNEL(x) x##_avx2_f32
#define TARGET LB_TARGET_AVX2
#define VECTOR __m256
#define LANES 8
#define ROWS 6
#define A_STRIDE 8
#define ZERO() _mm256_setzero_ps()
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#define SPREAD(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ADD(a, b) _mm256_add_ps(a, b)
#define CLEAN(x) _mm256_blendv_ps(x, _mm256_set1_ps(NAN), _mm256_cmp_ps(x, x, _CMP_UNORD_Q))
#include "matmul_kernel.h"
#define KERNEL(x) x##_avx512_f32
#define TARGET LB_TARGET_AVX512
#define VECTOR __m512
#define LANES 16
#define ROWS 14
#define A_STRIDE 16
#define ZERO() _mm512_setzero_ps()
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#define SPREAD(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ADD(a, b) _mm512_add_ps(a, b)
#define CLEAN(x) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, _mm512_set1_ps(NAN))
#include "matmul_kernel.h"
#endif
#undef REAL
#undef KERNEL_TYPE

#define REAL double
#define KERNEL_TYPE kernels_f64
#define KERNEL(x) x##_scalar_f64
#define TARGET
#define VECTOR double
#define LANES 1
#define ROWS 4
#define A_STRIDE 4
#define ZERO() 0.0
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define SPREAD(x) (x)
#define FMA(a, b, c) __builtin_fma(a, b, c)
#define ADD(a, b) ((a) + (b))
#define CLEAN(x) clean_f64(x)
#include "matmul_kernel.h"
#if LB_HAVE_X86
#define KERNEL(x) x##_avx2_f64
#define TARGET LB_TARGET_AVX2
#define VECTOR __m256d
#define LANES 4
#define ROWS 6
#define A_STRIDE 8
#define ZERO() _mm256_setzero_pd()
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, x) _mm256_storeu_pd(p, x)
#define SPREAD(x) _mm256_set1_pd(x)
#define FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define ADD(a, b) _mm256_add_pd(a, b)
#define CLEAN(x) _mm256_blendv_pd(x, _mm256_set1_pd(NAN), _mm256_cmp_pd(x, x, _CMP_UNORD_Q))
#include "matmul_kernel.h"
#define KERNEL(x) x##_avx512_f64
#define TARGET LB_TARGET_AVX512
#define VECTOR __m512d
#define LANES 8
#define ROWS 14
#define A_STRIDE 16
#define ZERO() _mm512_setzero_pd()
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, x) _mm512_storeu_pd(p, x)
#define SPREAD(x) _mm512_set1_pd(x)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define ADD(a, b) _mm512_add_pd(a, b)
#define CLEAN(x) _mm512_mask_blend_pd(_mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q), x, _mm512_set1_pd(NAN))
#include "matmul_kernel.h"
#endif
#undef REAL
#undef KERNEL_TYPE

static const kernels_f32 *kernels_for_f32(void)
{
#if LB_HAVE_X86
    const lb_isa isa = lb_processor_isa();
    if (isa == LB_ISA_AVX512) return &kernels_avx512_f32;
    if (isa == LB_ISA_AVX2) return &kernels_avx2_f32;
#endif
    return &kernels_scalar_f32;
}

static const kernels_f64 *kernels_for_f64(void)
{
#if LB_HAVE_X86
    const lb_isa isa = lb_processor_isa();
    if (isa == LB_ISA_AVX512) return &kernels_avx512_f64;
    if (isa == LB_ISA_AVX2) return &kernels_avx2_f64;
#endif
    return &kernels_scalar_f64;
}

/* --- transposition: dst[p * stride + i] = src[i * src_stride + p] ----------------------------------------------- */

#define TRANSPOSE_PLAIN(first_i, first_p)                                                                    \
    for (size_t q = (first_p); q < depth; q++)                                                               \
        for (size_t j = (first_i); j < width; j++) dst[q * stride + j] = src[(ptrdiff_t)j * src_stride + (ptrdiff_t)q];

#if LB_HAVE_X86
/* Eight rows of eight. */
LB_TARGET_AVX2 LB_INLINE void transpose_8x8(float *dst, size_t stride, const float *src, ptrdiff_t src_stride)
{
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(src + i * src_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + (size_t)i * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (size_t)(i + 4) * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

LB_TARGET_AVX2 static void transpose_f32_avx2(float *dst, size_t stride, const float *src, ptrdiff_t src_stride,
                                              size_t width, size_t depth)
{
    size_t i = 0;
    const size_t deep = depth / 8 * 8;
    for (; i + 8 <= width; i += 8)
        for (size_t p = 0; p < deep; p += 8)
            transpose_8x8(dst + p * stride + i, stride, src + (ptrdiff_t)i * src_stride + (ptrdiff_t)p, src_stride);
    TRANSPOSE_PLAIN(i, 0)
    for (size_t p = deep; p < depth; p++)
        for (size_t j = 0; j < i; j++) dst[p * stride + j] = src[(ptrdiff_t)j * src_stride + (ptrdiff_t)p];
}

LB_TARGET_AVX2 static void transpose_f64_avx2(double *dst, size_t stride, const double *src, ptrdiff_t src_stride,
                                              size_t width, size_t depth)
{
    size_t i = 0;
    const size_t deep = depth / 4 * 4;
    for (; i + 4 <= width; i += 4)
        for (size_t p = 0; p < deep; p += 4) {
            const double *s = src + (ptrdiff_t)i * src_stride + (ptrdiff_t)p;
            double *d = dst + p * stride + i;
            const __m256d a = _mm256_loadu_pd(s), b = _mm256_loadu_pd(s + src_stride),
                          c = _mm256_loadu_pd(s + 2 * src_stride), e = _mm256_loadu_pd(s + 3 * src_stride);
            const __m256d ab0 = _mm256_unpacklo_pd(a, b), ab1 = _mm256_unpackhi_pd(a, b),
                          ce0 = _mm256_unpacklo_pd(c, e), ce1 = _mm256_unpackhi_pd(c, e);
            _mm256_storeu_pd(d, _mm256_permute2f128_pd(ab0, ce0, 0x20));
            _mm256_storeu_pd(d + stride, _mm256_permute2f128_pd(ab1, ce1, 0x20));
            _mm256_storeu_pd(d + 2 * stride, _mm256_permute2f128_pd(ab0, ce0, 0x31));
            _mm256_storeu_pd(d + 3 * stride, _mm256_permute2f128_pd(ab1, ce1, 0x31));
        }
    TRANSPOSE_PLAIN(i, 0)
    for (size_t p = deep; p < depth; p++)
        for (size_t j = 0; j < i; j++) dst[p * stride + j] = src[(ptrdiff_t)j * src_stride + (ptrdiff_t)p];
}
#endif

static void transpose_f32(float *dst, size_t stride, const float *src, ptrdiff_t src_stride, size_t width, size_t depth)
{
#if LB_HAVE_X86
    if (lb_processor_isa() != LB_ISA_SCALAR) {
        transpose_f32_avx2(dst, stride, src, src_stride, width, depth);
        return;
    }
#endif
    TRANSPOSE_PLAIN(0, 0)
}

static void transpose_f64(double *dst, size_t stride, const double *src, ptrdiff_t src_stride, size_t width, size_t depth)
{
#if LB_HAVE_X86
    if (lb_processor_isa() != LB_ISA_SCALAR) {
        transpose_f64_avx2(dst, stride, src, src_stride, width, depth);
        return;
    }
#endif
    TRANSPOSE_PLAIN(0, 0)
}

/* --- buffers and threads --------------------------------------------------------------------------------------- */

/* Packing buffers of one thread. They are on a list so that one call can free those of every thread; the entries stay. */
typedef struct buffers {
    struct buffers *next;
    void *data[3];
    size_t size[3];
} buffers;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static buffers *list;
static _Thread_local buffers *mine;

/* This thread's buffer `which`, of at least `size` bytes, 64-byte aligned; NULL when there is no memory. */
static void *buffer_get(int which, size_t size)
{
    if (!mine) {
        buffers *fresh = calloc(1, sizeof *fresh);
        if (!fresh) return NULL;
        pthread_mutex_lock(&list_lock);
        fresh->next = list;
        list = mine = fresh;
        pthread_mutex_unlock(&list_lock);
    }
    if (mine->size[which] < size) {
        size = (size + 4096 + 63) / 64 * 64;
        free(mine->data[which]);
        mine->data[which] = aligned_alloc(64, size);
        mine->size[which] = mine->data[which] ? size : 0;
        if (mine->data[which]) memset(mine->data[which], 0, size); /* padding is read, though never used */
    }
    return mine->data[which];
}

void lb_matmul_release(void)
{
    pthread_mutex_lock(&list_lock);
    for (buffers *b = list; b; b = b->next)
        for (int i = 0; i < 3; i++) {
            free(b->data[i]);
            b->data[i] = NULL;
            b->size[i] = 0;
        }
    pthread_mutex_unlock(&list_lock);
}

static int thread_count(size_t batch, size_t m, size_t n, size_t k, const lb_matmul_options *options)
{
    if (omp_in_parallel()) return 1;
    const int most = options->threads > 0 ? options->threads : omp_get_max_threads();
    const double work = (double)batch * (double)m * (double)n * (double)k / ENOUGH_WORK;
    return work < 2 ? 1 : work < most ? (int)work : most;
}

/* down * across = threads, with shares as square as can be. */
static void thread_grid(size_t m, size_t n, int threads, int *down, int *across)
{
    double best = INFINITY;
    for (int d = 1; d <= threads; d++) {
        if (threads % d) continue;
        const double perimeter = (double)m / d + (double)n / (threads / d);
        if (perimeter < best) best = perimeter, *down = d, *across = threads / d;
    }
}

/* --- the two types --------------------------------------------------------------------------------------------- */

LB_INLINE void round_to_bf16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
        const uint32_t nan = 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
        u = (rounded & ~nan) | (0x7fc00000u & nan);
        memcpy(x + i, &u, sizeof u);
    }
}

#define real_dtype_f32 LB_F32
#define real_dtype_f64 LB_F64
#define NAME_OF(x, suffix) x##suffix
#define PER_ISA(...) LB_PER_ISA(__VA_ARGS__) /* expands its name first */

#define REAL float
#define NAME(x) NAME_OF(x, _f32)
#define KERNEL_TYPE kernels_f32
#define LOAD_STRIDED lb_load_f32_strided
#define ROUND lb_round_to_grid_f32
#define TRANSPOSE transpose_f32
#define FMA_SCALAR __builtin_fmaf
#include "matmul_real.h"
#undef REAL
#undef NAME
#undef KERNEL_TYPE
#undef LOAD_STRIDED
#undef ROUND
#undef TRANSPOSE
#undef FMA_SCALAR

#define REAL double
#define NAME(x) NAME_OF(x, _f64)
#define KERNEL_TYPE kernels_f64
#define LOAD_STRIDED lb_load_f64_strided
#define ROUND lb_round_to_grid_f64
#define TRANSPOSE transpose_f64
#define FMA_SCALAR __builtin_fma
#include "matmul_real.h"
