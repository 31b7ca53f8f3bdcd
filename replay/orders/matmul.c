/* Dense products in a stated order: see matmul.h. Here: the instruction sets, transposition, buffers and thread counts;
 * matmul_kernel.h has the register tile, matmul_real.h everything between. */
#include "orders/matmul.h"
#include "orders/matmul_transpose.h"

#include <lastbit/processor.h>

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define DEPTH 256      /* terms per pass over packed panels: 32 columns of f32 are 32 KiB */
#define MOST_DEPTH 512 /* of a block that still goes through one pass */
#define MOST_ROWS 504  /* of A packed at a time: with 14 rows to a panel half a MiB */
#define MOST_COLUMNS 1024
#define MAX_ROWS 14
#define MAX_COLUMNS 32 /* of a tile */
#define SCRATCH 1024
#define NEAR_BYTES 32768       /* an operand that small is read in place again and again: it stays in the first cache */
#define WIDE_CHUNK 4096        /* elements of small products of a batch that are widened at a time */
#define WIDE_ELEMENTS 65536    /* operands up to this size are widened whole, not while they are packed */
#define ENOUGH_WORK (1u << 20) /* fma per thread below which starting it costs more */

/* Where a tile's accumulators come from and go to. */
typedef enum tile_mode {
    TILE_FIRST,    /* from +0, stored */
    TILE_CONTINUE, /* from C, stored */
    TILE_ADD       /* from +0, added to C */
} tile_mode;

/* How a tile reads A: packed, or where it lies, by columns (transposed) or by rows. */
typedef enum a_place { A_PACKED, A_COLUMNS, A_ROWS } a_place;

/* One pass: the part of the product that is read at a time. */
typedef struct blocks {
    size_t i, m, j, n, p, depth; /* rows, columns, terms: start and extent */
    size_t rows;                 /* per panel of A */
    a_place a;
    bool b_in_place; /* panels of B are read where they lie; without masks, whole ones */
} blocks;

#define KERNELS_OF(REAL, NAME)                                                                                         \
    typedef struct NAME {                                                                                              \
        int rows, a_stride, lanes;                                                                                     \
        bool masks; /* a tile may end inside its last vector */                                                        \
        /* `rows` sums of two vectors each, rounded to bf16 at every addition; NULL: the plain loop does it */         \
        void (*rounded)(REAL * sums, size_t rows, size_t depth, const REAL *a, const REAL *b);                         \
        /* [rows - 1][A lies as rows][vectors - 1] */                                                                  \
        void (*tile[MAX_ROWS][2][2])(size_t depth, const REAL *a, ptrdiff_t a_step, const REAL *b, ptrdiff_t ldb,      \
                                     REAL *c, ptrdiff_t ldc, int edge, tile_mode mode);                                \
    } NAME;
KERNELS_OF(float, kernels_f32)
KERNELS_OF(double, kernels_f64)
#undef KERNELS_OF

/* --- register tiles -------------------------------------------------------------------------------------------- */

#if LB_HAVE_X86
/* u + 0x7fff + (bit 16 of u), cut off: to nearest, ties to even; infinities and canonical NaNs stay. */
LB_TARGET_AVX2 LB_INLINE __m256 round_bf16_avx2(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32((int)0xffff0000)));
}

LB_TARGET_AVX512 LB_INLINE __m512 round_bf16_avx512(__m512 x)
{
    const __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32((int)0xffff0000)));
}
#endif

LB_INLINE float clean_f32(float x)
{
    return x == x ? x : NAN;
}
LB_INLINE double clean_f64(double x)
{
    return x == x ? x : (double)NAN;
}

#define REAL float
#define KERNEL_TYPE kernels_f32
#define KERNEL(x) x##_scalar_f32
#define TARGET
#define VECTOR float
#define LANES 1
#define ROWS 4
#define A_STRIDE 4
#define MASKS 0
#define ZERO() 0.0f
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define SPREAD(x) (x)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define ADD(a, b) ((a) + (b))
#define CLEAN(x) clean_f32(x)
#include "orders/matmul_kernel.h"
#if LB_HAVE_X86
#define KERNEL(x) x##_avx2_f32
#define TARGET LB_TARGET_AVX2
#define VECTOR __m256
#define LANES 8
#define ROUND_BF16(x) round_bf16_avx2(x)
#define ROWS 6
#define A_STRIDE 8
#define MASKS 0
#define ZERO() _mm256_setzero_ps()
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#define SPREAD(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ADD(a, b) _mm256_add_ps(a, b)
#define CLEAN(x) _mm256_blendv_ps(x, _mm256_set1_ps(NAN), _mm256_cmp_ps(x, x, _CMP_UNORD_Q))
#include "orders/matmul_kernel.h"
#define KERNEL(x) x##_avx512_f32
#define TARGET LB_TARGET_AVX512
#define VECTOR __m512
#define LANES 16
#define ROWS 14
#define A_STRIDE 16
#define MASKS 1
#define EDGE_MASK __mmask16
#define EDGE(n) ((__mmask16)(0xffffu >> (16 - (n))))
#define LOAD_EDGE(mask, p) _mm512_maskz_loadu_ps(mask, p)
#define STORE_EDGE(mask, p, x) _mm512_mask_storeu_ps(p, mask, x)
#define ROUND_BF16(x) round_bf16_avx512(x)
#define ZERO() _mm512_setzero_ps()
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#define SPREAD(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ADD(a, b) _mm512_add_ps(a, b)
#define CLEAN(x) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, _mm512_set1_ps(NAN))
#include "orders/matmul_kernel.h"
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
#define MASKS 0
#define ZERO() 0.0
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define SPREAD(x) (x)
#define FMA(a, b, c) __builtin_fma(a, b, c)
#define ADD(a, b) ((a) + (b))
#define CLEAN(x) clean_f64(x)
#include "orders/matmul_kernel.h"
#if LB_HAVE_X86
#define KERNEL(x) x##_avx2_f64
#define TARGET LB_TARGET_AVX2
#define VECTOR __m256d
#define LANES 4
#define ROWS 6
#define A_STRIDE 8
#define MASKS 0
#define ZERO() _mm256_setzero_pd()
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, x) _mm256_storeu_pd(p, x)
#define SPREAD(x) _mm256_set1_pd(x)
#define FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define ADD(a, b) _mm256_add_pd(a, b)
#define CLEAN(x) _mm256_blendv_pd(x, _mm256_set1_pd(NAN), _mm256_cmp_pd(x, x, _CMP_UNORD_Q))
#include "orders/matmul_kernel.h"
#define KERNEL(x) x##_avx512_f64
#define TARGET LB_TARGET_AVX512
#define VECTOR __m512d
#define LANES 8
#define ROWS 14
#define A_STRIDE 16
#define MASKS 1
#define EDGE_MASK __mmask8
#define EDGE(n) ((__mmask8)(0xffu >> (8 - (n))))
#define LOAD_EDGE(mask, p) _mm512_maskz_loadu_pd(mask, p)
#define STORE_EDGE(mask, p, x) _mm512_mask_storeu_pd(p, mask, x)
#define ZERO() _mm512_setzero_pd()
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, x) _mm512_storeu_pd(p, x)
#define SPREAD(x) _mm512_set1_pd(x)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define ADD(a, b) _mm512_add_pd(a, b)
#define CLEAN(x) _mm512_mask_blend_pd(_mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q), x, _mm512_set1_pd(NAN))
#include "orders/matmul_kernel.h"
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

/* --- buffers and threads --------------------------------------------------------------------------------------- */

enum { BUFFER_A, BUFFER_B, BUFFER_ROW, BUFFER_WIDE_A, BUFFER_WIDE_B, BUFFER_TURNED, BUFFERS };

/* Packing buffers of one thread. They are on a list so that one call can free those of every thread; the entries
 * stay. */
typedef struct buffers {
    struct buffers *next;
    void *data[BUFFERS];
    size_t size[BUFFERS];
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
    for (buffers *buffers = list; buffers; buffers = buffers->next)
        for (int i = 0; i < BUFFERS; i++) {
            free(buffers->data[i]);
            buffers->data[i] = NULL;
            buffers->size[i] = 0;
        }
    pthread_mutex_unlock(&list_lock);
}

static int thread_count(size_t batch, size_t m, size_t n, size_t k, const lb_matmul_options *options)
{
    const double work = (double)batch * (double)m * (double)n * (double)k / ENOUGH_WORK;
    if (work < 2 || omp_in_parallel()) return 1;
    const int most = options->threads > 0 ? options->threads : omp_get_max_threads();
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
#include "orders/matmul_real.h"
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
#include "orders/matmul_real.h"
