/* Sums of hashes over elements and their places: see lastbit/fingerprint.h, which has the formula. What a processor
 * adds is 4 or 8 elements at once: the same integers, in another order, which a sum modulo 2^64 does not see. */
#include "tensors/mixed_lanes.h"

#include <lastbit/digest.h>
#include <lastbit/fingerprint.h>

#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* ---- one element ------------------------------------------------------------------------------------------------- */

/* As lb_lane_kind says what `w` is made of. */
static uint64_t element_bits(lb_lane_kind kind, const char *element)
{
    uint64_t bits = 0;
    double x = 0;
    switch (kind) {
    case LB_LANE_RAW8: memcpy(&bits, element, 1); return bits;
    case LB_LANE_RAW16: memcpy(&bits, element, 2); return bits;
    case LB_LANE_RAW32: memcpy(&bits, element, 4); return bits;
    case LB_LANE_RAW64: memcpy(&bits, element, 8); return bits;
    case LB_LANE_BF16: x = lb_to_f64(LB_BF16, element); break;
    case LB_LANE_F16: x = lb_to_f64(LB_F16, element); break;
    case LB_LANE_F32: x = lb_to_f64(LB_F32, element); break;
    case LB_LANE_F64: memcpy(&x, element, 8); break;
    }
    if (x != x) return LB_LANE_NAN;
    if (x == 0) return 0;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t mix(uint64_t x, uint64_t p, uint64_t q)
{
    x ^= x >> 32, x *= p;
    x ^= x >> 29, x *= q;
    return x ^ x >> 32;
}

static void add_elements(lb_lane_kind kind, const char *elements, size_t n, uint64_t first, uint64_t tag,
                         lb_fingerprint *sum)
{
    const size_t width = lb_lane_width(kind);
    uint64_t a = first * LB_LANE_P1 + tag * LB_LANE_P2, b = first * LB_LANE_P2 + tag * LB_LANE_P3;
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = element_bits(kind, elements + i * width);
        a += LB_LANE_P1, b += LB_LANE_P2;
        sum->a += mix(bits ^ a, LB_LANE_MIX_A), sum->b += mix(bits ^ b, LB_LANE_MIX_B);
    }
}

/* ---- many -------------------------------------------------------------------------------------------------------- */

static void add_lanes(lb_lane_kind kind, const char *elements, size_t n, uint64_t first, uint64_t tag,
                      lb_fingerprint *sum)
{
    size_t done = 0;
#if LB_HAVE_X86
    switch (lb_processor_isa()) {
    case LB_ISA_AVX512: done = lb_lane_mix_avx512(kind, elements, n, first, tag, &sum->a, &sum->b); break;
    case LB_ISA_AVX2: done = lb_lane_mix_avx2(kind, elements, n, first, tag, &sum->a, &sum->b); break;
    case LB_ISA_SCALAR: break;
    }
#endif
    add_elements(kind, elements + done * lb_lane_width(kind), n - done, first + done, tag, sum);
}

enum { BUFFER = 512 };

/* Nibbles, the low one first. */
static void add_nibbles(const unsigned char *bytes, size_t n, uint64_t first, uint64_t tag, lb_fingerprint *sum)
{
    unsigned char nibbles[BUFFER];
    for (size_t at = 0; at < n;) {
        const size_t take = n - at < BUFFER ? n - at : BUFFER;
        for (size_t i = 0; i < take; i++) nibbles[i] = bytes[(at + i) / 2] >> 4 * ((at + i) % 2) & 15;
        add_lanes(LB_LANE_RAW8, (const char *)nibbles, take, first + at, tag, sum);
        at += take;
    }
}

static void add_raw(lb_dtype dtype, const char *elements, size_t n, uint64_t first, uint64_t tag, lb_fingerprint *sum)
{
    switch (lb_dtype_bits(dtype)) {
    case 4: add_nibbles((const unsigned char *)elements, n, first, tag, sum); break;
    case 8: add_lanes(LB_LANE_RAW8, elements, n, first, tag, sum); break;
    case 16: add_lanes(LB_LANE_RAW16, elements, n, first, tag, sum); break;
    case 32: add_lanes(LB_LANE_RAW32, elements, n, first, tag, sum); break;
    case 64: add_lanes(LB_LANE_RAW64, elements, n, first, tag, sum); break;
    default: break; /* no dtype */
    }
}

/* Floats whose numbers vector units give as f64 themselves. */
static bool has_lanes(lb_dtype dtype, lb_lane_kind *kind)
{
    *kind = dtype == LB_F32 ? LB_LANE_F32 : dtype == LB_F16 ? LB_LANE_F16 : LB_LANE_BF16;
    return dtype == LB_F32 || dtype == LB_F16 || dtype == LB_BF16;
}

static void add_numbers(lb_dtype dtype, const char *elements, size_t n, uint64_t first, lb_fingerprint *sum)
{
    double numbers[BUFFER]; /* a multiple of 2 elements: pieces of e2m1 begin at a low nibble */
    lb_lane_kind kind;
    if (dtype == LB_F64 || (has_lanes(dtype, &kind) && lb_processor_isa() != LB_ISA_SCALAR)) {
        add_lanes(dtype == LB_F64 ? LB_LANE_F64 : kind, elements, n, first, 0, sum);
        return;
    }
    for (size_t at = 0; at < n;) {
        const size_t take = n - at < BUFFER ? n - at : BUFFER;
        lb_load_f64(numbers, dtype, elements + at * lb_dtype_bits(dtype) / 8, take);
        add_lanes(LB_LANE_F64, (const char *)numbers, take, first + at, 0, sum);
        at += take;
    }
}

void lb_fingerprint_add_run(lb_fingerprint_form form, lb_dtype dtype, const void *elements, size_t n, uint64_t first,
                            lb_fingerprint *sum)
{
    const lb_dtype part = lb_dtype_part(dtype);
    const size_t parts = part != dtype ? 2 : 1;
    if (form == LB_FINGERPRINT_RAW)
        add_raw(part, (const char *)elements, n * parts, first * parts, dtype, sum);
    else
        add_numbers(part, (const char *)elements, n * parts, first * parts, sum);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* A block as runs along its last dimension; trailing dimensions that it has in full and dense are one with that. */
typedef struct block_runs {
    const lb_tensor *block;
    int ndim;                   /* outer dimensions */
    int64_t count, stride;      /* elements of a run */
    int64_t place[LB_MAX_DIMS]; /* strides of the whole */
} block_runs;

static lb_status runs_of(const lb_tensor *block, const int64_t *whole, const int64_t *start, block_runs *runs,
                         uint64_t *first, lb_err *err)
{
    const lb_layout *layout = &block->layout;
    const int n = layout->ndim;
    if (!lb_dtype_valid(block->dtype) || n < 0 || n > LB_MAX_DIMS || lb_layout_numel(layout) < 0)
        return lb_fail(err, LB_ERR_INVALID, "a block to fingerprint has no valid dtype or shape");
    const lb_layout rows = lb_layout_contiguous(n, whole);
    if (lb_layout_numel(&rows) < 0) return lb_fail(err, LB_ERR_INVALID, "the whole of a block has no valid shape");
    *runs = (block_runs){.block = block, .ndim = n, .count = 1, .stride = 1};
    *first = 0;
    for (int d = 0; d < n; d++) {
        if (start[d] < 0 || layout->shape[d] > whole[d] || start[d] > whole[d] - layout->shape[d])
            return lb_fail(err, LB_ERR_INVALID, "dimension %d: a block of %lld from %lld on leaves the whole of %lld",
                           d, (long long)layout->shape[d], (long long)start[d], (long long)whole[d]);
        runs->place[d] = rows.stride[d];
        *first += (uint64_t)start[d] * (uint64_t)rows.stride[d];
    }
    if (n == 0) return LB_OK;
    bool full = true;
    for (runs->ndim = n; runs->ndim > 0 && full; runs->ndim--) {
        const int d = runs->ndim - 1;
        if (d < n - 1 && layout->stride[d] != runs->count && layout->shape[d] != 1) break;
        if (d == n - 1) runs->stride = layout->stride[d];
        runs->count *= layout->shape[d];
        full = layout->shape[d] == whole[d] && (runs->stride == 1 || layout->shape[d] == 1);
    }
    return LB_OK;
}

static void add_strided(lb_fingerprint_form form, const block_runs *runs, const char *p, uint64_t first,
                        lb_fingerprint *sum)
{
    char dense[BUFFER * 16];
    const size_t width = lb_dtype_bits(runs->block->dtype) / 8;
    for (int64_t at = 0; at < runs->count;) {
        const size_t take = (size_t)(runs->count - at < BUFFER ? runs->count - at : BUFFER);
        for (size_t i = 0; i < take; i++)
            memcpy(dense + i * width, p + (at + (int64_t)i) * runs->stride * (int64_t)width, width);
        lb_fingerprint_add_run(form, runs->block->dtype, dense, take, first + (uint64_t)at, sum);
        at += (int64_t)take;
    }
}

lb_status lb_fingerprint_block(lb_fingerprint_form form, const lb_tensor *block, const int64_t *whole,
                               const int64_t *start, lb_fingerprint *sum, lb_err *err)
{
    block_runs runs;
    uint64_t first = 0;
    int64_t index[LB_MAX_DIMS] = {0};
    LB_TRY(runs_of(block, whole, start, &runs, &first, err));
    const lb_layout *layout = &block->layout;
    const int64_t bits = (int64_t)lb_dtype_bits(block->dtype);
    if (lb_layout_numel(layout) == 0) return LB_OK;
    if (bits < 8 && (!lb_layout_is_contiguous(layout) || (runs.ndim > 0 && runs.count % 2)))
        return lb_fail(err, LB_ERR_UNSUPPORTED, "a block of %s with rows that begin within a byte",
                       lb_dtype_name(block->dtype));
    for (;;) {
        int64_t offset = 0;
        uint64_t at = first;
        for (int d = 0; d < runs.ndim; d++)
            offset += index[d] * layout->stride[d], at += (uint64_t)index[d] * (uint64_t)runs.place[d];
        const char *p = (const char *)block->data + offset * bits / 8;
        if (runs.stride == 1 || runs.count == 1)
            lb_fingerprint_add_run(form, block->dtype, p, (size_t)runs.count, at, sum);
        else
            add_strided(form, &runs, p, at, sum);
        int d = runs.ndim - 1;
        while (d >= 0 && ++index[d] == layout->shape[d]) index[d--] = 0;
        if (d < 0) return LB_OK;
    }
}

lb_status lb_fingerprint_tensor(lb_fingerprint_form form, const lb_tensor *tensor, lb_fingerprint *fingerprint,
                                lb_err *err)
{
    static const int64_t start[LB_MAX_DIMS];
    *fingerprint = (lb_fingerprint)LB_FINGERPRINT_INIT;
    return lb_fingerprint_block(form, tensor, tensor->layout.shape, start, fingerprint, err);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

lb_fingerprint lb_fingerprint_named(lb_fingerprint fingerprint, const char *name)
{
    const uint64_t hash = XXH3_64bits(name, strlen(name));
    return (lb_fingerprint){mix(fingerprint.a ^ hash, LB_LANE_MIX_A), mix(fingerprint.b ^ hash, LB_LANE_MIX_B)};
}

void lb_fingerprint_format(lb_fingerprint fingerprint, char text[33])
{
    lb_digest_format((lb_digest){fingerprint.a, fingerprint.b}, text);
}

lb_status lb_fingerprint_parse(const char *text, lb_fingerprint *fingerprint, lb_err *err)
{
    lb_digest digest;
    if (lb_digest_parse(text, &digest, NULL) != LB_OK)
        return lb_fail(err, LB_ERR_INVALID, "'%.40s' is not a fingerprint: 32 hexadecimal digits are", text);
    *fingerprint = (lb_fingerprint){digest.hi, digest.lo};
    return LB_OK;
}
