/* One pass over two values: see lastbit/compare.h.
 *
 * The hard part is speed with exact semantics. Elements go by in blocks that fit the first-level cache and are summed
 * in f64, in LANES independent accumulators: lane l adds up the elements of a chunk that lie l after a multiple of
 * LANES in their block, in order, and lanes and chunks are added up at the end. So the compiler can vectorise the loops
 * under strict floating point, and the outcome is the same for every vector width, and whether a block takes the way of
 * f32 (compare_floats.h), of equal bits or of any two numbers (compare_lanes.h).
 */
#include <lastbit/compare.h>
#include <lastbit/processor.h>

#include "kernel/complex_rows.h"
#include "compare/pattern.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if LB_HAVE_X86
#include <immintrin.h>
#endif

/* Sums of CHUNK elements are begun anew and added up in order, whichever thread computed them: the outcome does not
 * depend on threads. */
enum { BLOCK = 1024, CHUNK = 256 * BLOCK, LANES = 8, GROUP = 8 * LANES, BUCKETS = LB_ULP_BUCKETS };
/* Bits of a counter of up to CHUNK. */
enum { PLANES = 19 };
/* The largest distance of f32 at which a group of elements takes the short way. */
enum { NEAR = 1 << 23 };

/* LANES doubles as one vector. Every level of instructions computes the same lanes, wider or narrower at a time. */
typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t ivec __attribute__((vector_size(8 * LANES)));
typedef uint64_t uvec __attribute__((vector_size(8 * LANES)));
/* Twice as many elements of 32 bits, and what goes with them. */
typedef uint32_t word __attribute__((vector_size(8 * LANES)));
typedef float real __attribute__((vector_size(8 * LANES)));
typedef float half_real __attribute__((vector_size(4 * LANES)));
/* Halves of those. */
typedef uint32_t word8 __attribute__((vector_size(32), may_alias));
typedef int32_t int8 __attribute__((vector_size(32)));
typedef float real8 __attribute__((vector_size(32)));
typedef double vec4 __attribute__((vector_size(32), may_alias));
typedef int64_t int4 __attribute__((vector_size(32)));
typedef float float4 __attribute__((vector_size(16)));

/* The largest |d| / |a| of each lane so far, as a pair. */
typedef struct rates {
    vec d, a;
    float screen; /* of f32: what is below cannot be the largest of all */
} rates;

/* Sums of a block, apart from the rest: they stay in registers. */
typedef struct products {
    vec4 aa[2], bb[2], dd[2], ab[2];
} products;

static inline vec4 *halves(vec *vec)
{
    return (vec4 *)vec;
}

typedef struct sums {
    vec aa, bb, dd, ab, max_abs;
    rates largest;
    vec max_ulp, differing, nonfinite; /* counts are exact below 2^53 */
} sums;

/* The rank of x counts the values of its dtype between 0 and x; the distance of two values is that of their ranks.
 * Every format here embeds in f64 with the same layout of fields, so that above its smallest normal value the rank is
 * the f64's bits, shifted; below, it is x in units of the smallest subnormal. */
typedef struct grid {
    double normal, per_tiny; /* smallest normal; 1 / smallest subnormal */
    int64_t normal_bits, normal_rank;
    int shift;
    bool ranks; /* integers are their own ranks */
} grid;

/* Distances of f32 that no bucket has yet. Counters lie across planes: plane p holds bit p of 32 counters in each lane,
 * of which the i-th counts distances from 2^i to below 2^(i+1); -0 against +0 counts as 1. */
typedef struct distances {
    word planes[PLANES], most;
    real farthest; /* the largest difference found along with them */
} distances;

/* What a distance of none counts as where bits differ, and the bits that ranks leave out. */
typedef struct units {
    uint32_t zeros, low;
} units;

/* What became of a block. */
typedef struct outcome {
    bool finite;  /* else nothing was added */
    size_t first; /* where the first group begins that differs; the block's end: none */
} outcome;

typedef struct pass {
    sums sums;
    distances distances;
    int64_t buckets[BUCKETS]; /* [i]: ulp distance in [2^(i-1), 2^i), i > 0; what is equal is in none */
    int64_t first;
    grid grid;
    bool half; /* the distances are those of bf16, whose ranks are the high halves of f32's, of one side or both */
} pass;

const char *lb_compare_pattern_text(lb_pattern pattern)
{
    static const char *const texts[] = {
#define TEXT(name, text) text,
        LB_PATTERNS(TEXT)
#undef TEXT
    };
    return (size_t)pattern < sizeof texts / sizeof *texts ? texts[pattern] : "unknown";
}

/* ---- a block ---- */

static grid grid_of(lb_dtype dtype)
{
    grid g = {.ranks = lb_dtype_is_float(dtype)};
    if (!g.ranks || dtype == LB_F64) return g; /* f64: the bits themselves */
    g.normal = lb_dtype_min_normal(dtype), g.per_tiny = 1 / lb_dtype_min_subnormal(dtype);
    memcpy(&g.normal_bits, &g.normal, sizeof g.normal);
    g.normal_rank = (int64_t)1 << (lb_dtype_precision(dtype) - 1), g.shift = 53 - lb_dtype_precision(dtype);
    return g;
}

#define LEVEL(name) name##_scalar
#include "compare/compare_lanes.h"
#include "compare/compare_floats.h"
#undef LEVEL
#if LB_HAVE_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#define LEVEL(name) name##_avx2
#include "compare/compare_lanes.h"
#include "compare/compare_floats.h"
#undef LEVEL
#pragma GCC target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,prefer-vector-width=512")
#define LEVEL(name) name##_avx512
#include "compare/compare_lanes.h"
#include "compare/compare_floats.h"
#undef LEVEL
#pragma GCC pop_options
#define DISPATCH(name, args)                                                                                           \
    switch (lb_processor_isa()) {                                                                                      \
    case LB_ISA_AVX512: name##_avx512 args; break;                                                                     \
    case LB_ISA_AVX2: name##_avx2 args; break;                                                                         \
    case LB_ISA_SCALAR: name##_scalar args; break;                                                                     \
    }
#else
#define DISPATCH(name, args) name##_scalar args
#endif

/* Elements past n are 0 on both sides and add nothing. */
static size_t pad(double *x, size_t n)
{
    size_t padded = (n + LANES - 1) / LANES * LANES;
    for (size_t i = n; i < padded; i++) x[i] = 0;
    return padded;
}

static void count_distances(pass *pass, const double *ulp, size_t n, int64_t start)
{
    for (size_t i = 0; i < n && pass->first < 0; i++)
        if (ulp[i] >= 0) pass->first = start + (int64_t)i;
    for (size_t i = 0; i < n; i++) {
        int64_t bits;
        memcpy(&bits, &ulp[i], sizeof bits);
        int bucket = (int)(bits >> 52) - 1022; /* in [2^(bucket-1), 2^bucket) */
        bucket = bucket < 1 ? 1 : bucket > BUCKETS - 1 ? BUCKETS - 1 : bucket;
        pass->buckets[bits < 0 ? 0 : bucket]++;
    }
}

/* The least power of two that no more than a hundredth of the distances reach. */
static double percentile_ulp(const pass *pass, int64_t elements)
{
    int64_t above = 0;
    int i = BUCKETS - 1;
    while (i > 0 && above + pass->buckets[i] <= elements / 100) above += pass->buckets[i--];
    return i == 0 ? 0 : i == BUCKETS - 1 ? INFINITY : i == 1 ? 1 : ldexp(1.0, i);
}

/* Adds the distances that no bucket has yet to what a merge takes. */
static void settle(pass *pass)
{
    int64_t counts[BUCKETS] = {0};
    const int shift = pass->half ? 16 : 0;
    DISPATCH(count_planes, (pass->distances.planes, shift, counts));
    for (int i = 1; i < BUCKETS; i++) pass->buckets[i] += counts[i], pass->sums.differing[0] += (double)counts[i];
    for (int l = 0; l < 2 * LANES; l++)
        if (pass->distances.farthest[l] > pass->sums.max_abs[0]) pass->sums.max_abs[0] = pass->distances.farthest[l];
    for (int l = 0; l < 2 * LANES; l++)
        if (pass->distances.most[l] >> shift > pass->sums.max_ulp[0])
            pass->sums.max_ulp[0] = pass->distances.most[l] >> shift;
}

/* `from`: where the first group begins that differs. */
static void note_first(pass *pass, const float *a, const float *b, size_t from, size_t n, int64_t start)
{
    for (size_t i = from; i < n && pass->first < 0; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0) pass->first = start + (int64_t)i;
}

static size_t pad_f32(float *x, size_t n)
{
    size_t padded = (n + GROUP - 1) / GROUP * GROUP;
    for (size_t i = n; i < padded; i++) x[i] = 0;
    return padded;
}

/* Elements of a tensor one stride apart. */
typedef struct run {
    lb_dtype dtype;
    const char *at;
    ptrdiff_t stride;
} run;

/* Both of dtypes whose ranks are those of f32, but for a shift. False: not all are finite, nothing was added. */
static bool measure_floats(pass *pass, run ra, run rb, size_t n, int64_t start)
{
    float x[BLOCK], y[BLOCK];
    const float *a = (const float *)ra.at, *b = (const float *)rb.at;
    size_t padded = n;
    if (ra.dtype != LB_F32 || ra.stride != 1 || n % GROUP) {
        lb_load_f32_strided(x, ra.dtype, ra.at, ra.stride, n);
        a = x, padded = pad_f32(x, n);
    }
    if (rb.dtype != LB_F32 || rb.stride != 1 || n % GROUP) {
        lb_load_f32_strided(y, rb.dtype, rb.at, rb.stride, n);
        b = y, padded = pad_f32(y, n);
    }
    outcome block = {0};
    pass->half = ra.dtype == LB_BF16 || rb.dtype == LB_BF16;
    if (ra.dtype != rb.dtype) {
        DISPATCH(block = add_mixed, (&pass->sums, &pass->distances, a, b, padded));
    } else {
        DISPATCH(block = add_floats, (&pass->sums, &pass->distances, pass->half ? 1 << 16 : 1, a, b, padded));
    }
    if (block.finite) note_first(pass, a, b, block.first, n, start);
    return block.finite;
}

/* ---- the pass ---- */

static void add_block(pass *pass, run a, run b, size_t n, int64_t start)
{
    double x[BLOCK], y[BLOCK], ulp[BLOCK];
    bool same_dtype = a.dtype == b.dtype, dense = a.stride == 1 && b.stride == 1;
    bool floats = (a.dtype == LB_F32 || a.dtype == LB_BF16) && (b.dtype == LB_F32 || b.dtype == LB_BF16);
    if (floats && measure_floats(pass, a, b, n, start)) return;
    bool same = same_dtype && dense && memcmp(a.at, b.at, lb_dtype_bytes(a.dtype, n)) == 0;
    lb_load_f64_strided(x, a.dtype, a.at, a.stride, n);
    size_t padded = pad(x, n);
    if (same) {
        DISPATCH(add_equal, (&pass->sums, x, padded));
        return;
    }
    lb_load_f64_strided(y, b.dtype, b.at, b.stride, n);
    pad(y, n);
    /* f64 holds every format but 64-bit integers: where two of those round to the same, make the sides differ. */
    if (same_dtype && lb_dtype_bits(a.dtype) == 64 && lb_dtype_is_integer(a.dtype))
        for (size_t i = 0; i < n; i++)
            if (x[i] == y[i] && memcmp(a.at + (ptrdiff_t)i * a.stride * 8, b.at + (ptrdiff_t)i * b.stride * 8, 8) != 0)
                y[i] = nextafter(y[i], INFINITY);
    DISPATCH(add_differing, (&pass->sums, &pass->grid, x, y, ulp, padded));
    count_distances(pass, ulp, n, start);
}

static run run_at(const lb_tensor *t, int64_t offset, ptrdiff_t stride)
{
    return (run){t->dtype, (const char *)t->data + offset * (int64_t)(lb_dtype_bits(t->dtype) / 8), stride};
}

static pass new_pass(const grid *grid)
{
    pass p = {.first = -1, .grid = *grid};
    p.sums.largest.a = p.sums.largest.a + 1; /* 0 / 1: no error yet */
    return p;
}

static void merge(pass *merged, const pass *part)
{
    sums *s = &merged->sums;
    const sums *t = &part->sums;
    s->aa += t->aa, s->bb += t->bb, s->dd += t->dd, s->ab += t->ab;
    s->differing += t->differing, s->nonfinite += t->nonfinite;
    for (int l = 0; l < LANES; l++) {
        if (t->max_abs[l] > s->max_abs[l]) s->max_abs[l] = t->max_abs[l];
        if (t->max_ulp[l] > s->max_ulp[l]) s->max_ulp[l] = t->max_ulp[l];
        if (t->largest.d[l] * s->largest.a[l] > s->largest.d[l] * t->largest.a[l])
            s->largest.d[l] = t->largest.d[l], s->largest.a[l] = t->largest.a[l];
    }
    for (int i = 0; i < BUCKETS; i++) merged->buckets[i] += part->buckets[i];
    if (merged->first < 0) merged->first = part->first;
}

/* Copies of at most BLOCK elements at a time in row-major order: both sides' rows end at different places. */
static void run_pass(pass *shared, const lb_tensor *a, const lb_tensor *b, int64_t elements)
{
    lb_rows ra = lb_rows_of(&a->layout), rb = lb_rows_of(&b->layout);
    int64_t left_a = 0, left_b = 0, at_a = 0, at_b = 0, done = 0;
    pass part = new_pass(&shared->grid);
    while (done < elements) {
        if (left_a == 0) {
            LB_CHECK(lb_rows_next(&ra));
            left_a = ra.count, at_a = ra.offset;
        }
        if (left_b == 0) {
            LB_CHECK(lb_rows_next(&rb));
            left_b = rb.count, at_b = rb.offset;
        }
        int64_t n = left_a < left_b ? left_a : left_b;
        if (n > BLOCK) n = BLOCK;
        if (n > CHUNK - done % CHUNK) n = CHUNK - done % CHUNK;
        add_block(&part, run_at(a, at_a, ra.stride), run_at(b, at_b, rb.stride), (size_t)n, done);
        at_a += n * ra.stride, at_b += n * rb.stride;
        left_a -= n, left_b -= n, done += n;
        if (done % CHUNK == 0 || done == elements) {
            settle(&part);
            merge(shared, &part);
            part = new_pass(&shared->grid);
        }
    }
}

/* Not inlined: its buffers are 40 KiB of stack. */
static __attribute__((noinline)) void run_chunk(pass *part, const lb_tensor *a, const lb_tensor *b, int64_t from,
                                                int64_t elements)
{
    for (int64_t at = from; at < elements && at < from + CHUNK; at += BLOCK) {
        const int64_t n = elements - at < BLOCK ? elements - at : BLOCK;
        add_block(part, run_at(a, at, 1), run_at(b, at, 1), (size_t)n, at);
    }
    settle(part);
}

/* The same where both sides are dense: chunks by as many threads as there are. False: no memory for their sums. */
static bool run_chunks(pass *shared, const lb_tensor *a, const lb_tensor *b, int64_t elements)
{
    const int64_t chunks = (elements + CHUNK - 1) / CHUNK;
    pass *parts = aligned_alloc(sizeof(vec), (size_t)chunks * sizeof *parts);
    if (!parts) return false;
#pragma omp parallel for schedule(static) if (chunks > 1)
    for (int64_t c = 0; c < chunks; c++) {
        parts[c] = new_pass(&shared->grid);
        run_chunk(&parts[c], a, b, c * CHUNK, elements);
    }
    for (int64_t c = 0; c < chunks; c++) merge(shared, &parts[c]);
    free(parts);
    return true;
}

static double sum_lanes(vec vec)
{
    double s = 0;
    for (int l = 0; l < LANES; l++) s += vec[l];
    return s;
}

static double max_lanes(vec vec)
{
    double m = 0;
    for (int l = 0; l < LANES; l++) m = vec[l] > m ? vec[l] : m;
    return m;
}

static void finish(const pass *pass, int64_t elements, lb_difference *difference)
{
    const sums *sums = &pass->sums;
    difference->differing = (int64_t)sum_lanes(sums->differing),
    difference->nonfinite = (int64_t)sum_lanes(sums->nonfinite);
    difference->first = pass->first;
    difference->max_abs = max_lanes(sums->max_abs), difference->max_ulp = max_lanes(sums->max_ulp),
    difference->p99_ulp = percentile_ulp(pass, elements);
    difference->max_rel = max_lanes(sums->largest.d / sums->largest.a);
    const double aa = sum_lanes(sums->aa), bb = sum_lanes(sums->bb), dd = sum_lanes(sums->dd), ab = sum_lanes(sums->ab);
    difference->rel_l2 = dd == 0 ? 0 : aa == 0 ? INFINITY : sqrt(dd / aa);
    if (difference->differing == 0)
        difference->cosine = 1;
    else if (aa == 0 || bb == 0)
        difference->cosine = aa == bb ? 1 : 0;
    else
        difference->cosine = fmax(-1, fmin(1, ab / (sqrt(aa) * sqrt(bb))));
}

/* Whether f32 holds every number of a type. */
static bool fits_f32(lb_dtype dtype)
{
    return dtype == LB_F32 || (lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) <= 16);
}

/* One block of two types as the same f32s, bit for bit. */
static bool is_same_block(const lb_tensor *a, const lb_tensor *b, int64_t at, size_t n)
{
    float x[BLOCK], y[BLOCK];
    lb_load_f32(x, a->dtype, run_at(a, at, 1).at, n);
    lb_load_f32(y, b->dtype, run_at(b, at, 1).at, n);
    return memcmp(x, y, n * sizeof *x) == 0;
}

/* Whether two types hold the same numbers, as a conversion to a wider one leaves them. Dense. */
static bool is_converted(const lb_tensor *a, const lb_tensor *b, int64_t elements)
{
    const int64_t chunks = (elements + CHUNK - 1) / CHUNK;
    bool differ = false;
    if (!fits_f32(a->dtype) || !fits_f32(b->dtype)) return false;
#pragma omp parallel for schedule(static) if (chunks > 1)
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t at = c * CHUNK; at < elements && at < (c + 1) * CHUNK; at += BLOCK) {
            bool over;
#pragma omp atomic read
            over = differ;
            if (over) break;
            if (is_same_block(a, b, at, (size_t)(elements - at < BLOCK ? elements - at : BLOCK))) continue;
#pragma omp atomic write
            differ = true;
        }
    return !differ;
}

static void add_counts(const int64_t buckets[BUCKETS], int64_t elements, int64_t counts[BUCKETS])
{
    counts[0] += elements;
    for (int i = 1; i < BUCKETS; i++) counts[i] += buckets[i], counts[0] -= buckets[i];
}

lb_status lb_compare_counted(const lb_tensor *a, const lb_tensor *b, lb_difference *difference, int64_t counts[BUCKETS],
                             lb_err *err)
{
    lb_tensor x, y;
    if (lb_dtype_is_complex(a->dtype) && lb_dtype_is_complex(b->dtype) && lb_complex_tensor_parts(a, &x) &&
        lb_complex_tensor_parts(b, &y))
        return lb_compare_counted(&x, &y, difference, counts, err);
    memset(difference, 0, sizeof *difference);
    difference->first = -1, difference->cosine = 1;
    if (!lb_layout_same_shape(&a->layout, &b->layout))
        return lb_fail(err, LB_ERR_INVALID, "compare: the shapes of the two values differ");
    if (lb_dtype_bits(a->dtype) < 8 || lb_dtype_bits(b->dtype) < 8)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "compare: dtype %s has elements below one byte",
                       lb_dtype_name(lb_dtype_bits(a->dtype) < 8 ? a->dtype : b->dtype));
    difference->elements = lb_layout_numel(&a->layout);
    if (difference->elements < 0) return lb_fail(err, LB_ERR_INVALID, "compare: the shape overflows");

    bool narrower_b = lb_dtype_precision(b->dtype) < lb_dtype_precision(a->dtype);
    const grid grid = grid_of(lb_dtype_part(narrower_b ? b->dtype : a->dtype));
    pass pass = new_pass(&grid);
    bool dense = lb_layout_is_contiguous(&a->layout) && lb_layout_is_contiguous(&b->layout);
    const bool same =
        dense &&
        (a->dtype == b->dtype ? memcmp(a->data, b->data, lb_dtype_bytes(a->dtype, (size_t)difference->elements)) == 0
                              : is_converted(a, b, difference->elements));
    if (!same) {
        if (!dense || !run_chunks(&pass, a, b, difference->elements)) run_pass(&pass, a, b, difference->elements);
        finish(&pass, difference->elements, difference);
    }
    add_counts(pass.buckets, difference->elements, counts);
    return LB_OK;
}

lb_status lb_compare_numbers(const lb_tensor *a, const lb_tensor *b, lb_difference *difference, lb_err *err)
{
    int64_t counts[BUCKETS] = {0};
    return lb_compare_counted(a, b, difference, counts, err);
}

lb_status lb_compare(const lb_tensor *a, const lb_tensor *b, lb_difference *difference, lb_err *err)
{
    LB_TRY(lb_compare_numbers(a, b, difference, err));
    lb_pattern_find(a, b, difference);
    return LB_OK;
}
