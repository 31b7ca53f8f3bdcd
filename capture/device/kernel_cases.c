/* See kernel_cases.h. */
#include "device/kernel_cases.h"

#include <string.h>

/* Where parts of the bytes begin. */
enum { TAME = 0, WILD = 4 * 65536, ZEROS = 5 * 65536 };

/* Splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

void lb_kernel_case_fill(void *bytes)
{
    unsigned char *to = bytes;
    uint64_t state = 1;
    memset(bytes, 0, LB_KERNEL_CASE_BYTES);
    for (size_t i = 0; i < ZEROS; i += 8) {
        uint64_t word = draw(&state);
        /* No exponent of all ones: bit 14 of each 16, and bit 6 of each 8, are 0. */
        if (i < WILD) word &= 0xBFBFBFBFBFBFBFBFull;
        memcpy(to + i, &word, sizeof word);
    }
}

typedef struct view {
    lb_dtype dtype;
    size_t at; /* bytes */
    int ndim;
    int64_t shape[3], stride[3]; /* elements */
} view;

/* Each type that is read fast as whole blocks and a rest, over several leaves; the others; numbers that are none. */
static const lb_dtype types[] = {LB_F64, LB_F32, LB_BF16, LB_F16,  LB_E4M3FN, LB_E5M2, LB_E4M3FNUZ, LB_E5M2FNUZ,
                                 LB_U8,  LB_I8,  LB_BOOL, LB_E8M0, LB_E2M1,   LB_I16,  LB_I32,      LB_I64,
                                 LB_U16, LB_U32, LB_U64,  LB_C32,  LB_C64,    LB_C128};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* Bytes: where XXH3 changes its way, where a stripe, a block and a leaf end. */
static const int64_t sizes[] = {0,   1,   3,   4,   8,    9,    16,   17,   31,    32,    128,   129,   160,
                                240, 241, 255, 256, 1023, 1024, 1025, 1088, 65535, 65536, 65537, 200001};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* Elements that lie together but where 8, 4, 2 or 1 bytes are loaded at once; and those that do not: chunks of 16, 8,
 * 4, 2 and 1 bytes, transposed, expanded, overlapping, with gaps, rows that end in a chunk. */
static const view views[] = {
    {LB_F64, 8, 1, {9000}, {1}},
    {LB_F32, 4, 1, {17001}, {1}},
    {LB_BF16, 2, 1, {33000}, {1}},
    {LB_U8, 1, 1, {66000}, {1}},
    {LB_BF16, 0, 3, {4, 301, 64}, {64, 256, 1}},
    {LB_F16, 0, 3, {4, 301, 12}, {12, 60, 1}},
    {LB_BF16, 0, 3, {3, 999, 6}, {6, 18, 1}},
    {LB_I16, 0, 3, {3, 999, 6}, {6, 19, 1}},
    {LB_BOOL, 0, 3, {7, 501, 9}, {9, 70, 1}},
    {LB_BF16, 0, 2, {300, 257}, {1, 300}},
    {LB_F32, 0, 2, {181, 190}, {1, 181}},
    {LB_F64, 0, 2, {90, 95}, {1, 90}},
    {LB_C128, 0, 2, {90, 47}, {1, 90}},
    {LB_F16, 0, 3, {90, 3, 400}, {0, 400, 1}},
    {LB_F32, 0, 3, {41, 41, 41}, {20, 3, 5}},
    {LB_E5M2, 0, 2, {2, 40000}, {80001, 2}},
    {LB_F32, WILD + 4, 2, {100, 70}, {141, 2}},
    {LB_F64, 2, 2, {60, 70}, {1, 60}}, /* whose elements are not aligned */
    /* So many leaves that the sequence of them is long, has a second block, and is hashed for both digests. */
    {LB_U8, WILD, 2, {130, 65536}, {0, 1}},
    {LB_F32, WILD, 1, {27 * 16384 + 5}, {1}},
};
enum { N_VIEWS = sizeof views / sizeof views[0] };

static bool set(lb_measuring *measuring, char *bytes, const view *seen_as)
{
    int64_t first = 0, last = 0;
    lb_layout layout = {.ndim = seen_as->ndim};
    memcpy(layout.shape, seen_as->shape, (size_t)seen_as->ndim * sizeof seen_as->shape[0]);
    memcpy(layout.stride, seen_as->stride, (size_t)seen_as->ndim * sizeof seen_as->stride[0]);
    lb_layout_dense_range(&layout, &first, &last, NULL);
    const size_t before = lb_dtype_bytes(seen_as->dtype, (size_t)first);
    *measuring = (lb_measuring){.tensor = {bytes + seen_as->at, seen_as->dtype, layout},
                                .dense = bytes + seen_as->at + before,
                                .dense_bytes = lb_dtype_bytes(seen_as->dtype, (size_t)last) - before,
                                .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB};
    return true;
}

static int64_t numel(lb_dtype dtype, size_t bytes)
{
    return (int64_t)(bytes * 8 / lb_dtype_bits(dtype));
}

bool lb_kernel_case(size_t i, void *bytes, lb_measuring *measuring)
{
    if (i < N_TYPES) /* four leaves of numbers, and a rest of any bits, but for a byte */
        return set(measuring, bytes, &(view){types[i], TAME, 1, {numel(types[i], WILD + 9000) - 1}, {1}});
    i -= N_TYPES;
    if (i < N_TYPES) /* any bits, and zeros */
        return set(measuring, bytes,
                   &(view){types[i], WILD + 32768, 1, {numel(types[i], ZEROS + 2048 - WILD - 32768)}, {1}});
    i -= N_TYPES;
    if (i < N_SIZES) return set(measuring, bytes, &(view){LB_U8, TAME, 1, {sizes[i]}, {1}});
    i -= N_SIZES;
    if (i < N_VIEWS) return set(measuring, bytes, &views[i]);
    i -= N_VIEWS;
    if (i > 0) return false;
    set(measuring, bytes, &views[4]); /* nothing but the digest of the elements */
    measuring->what = 0;
    return true;
}
