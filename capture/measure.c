/* See measure.h. A recorded step is mostly this pass, so a contiguous value is read once: each leaf is hashed and
 * summarised while it is in the cache, and both digests come from the same leaves. */
#include "measure.h"
#include "leaf.h"

#include <lastbit/processor.h>

#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* for a state on the stack */
#include <xxhash.h>

static lb_digest digest_of(XXH128_hash_t hash)
{
    lb_digest digest = {hash.high64, hash.low64};
    if (lb_digest_is_none(digest)) digest.lo = 1; /* (0, 0) is taken */
    return digest;
}

/* The words after the leaves; `words` has room for 2 + LB_MAX_DIMS. */
static size_t shape_words(lb_dtype dtype, const lb_layout *layout, uint64_t *words)
{
    size_t n = 0;
    words[n++] = dtype;
    words[n++] = (uint64_t)layout->ndim;
    for (int d = 0; d < layout->ndim; d++) words[n++] = (uint64_t)layout->shape[d];
    return n;
}

static lb_digest hash_words(uint64_t bytes, const uint64_t *leaves, uint32_t n_leaves, const uint64_t *tail,
                            size_t n_tail)
{
    uint64_t words[64];
    if (1 + n_leaves + n_tail <= sizeof words / sizeof words[0]) {
        words[0] = bytes;
        if (n_leaves) memcpy(words + 1, leaves, n_leaves * sizeof words[0]);
        if (n_tail) memcpy(words + 1 + n_leaves, tail, n_tail * sizeof words[0]);
        return digest_of(XXH3_128bits(words, (1 + n_leaves + n_tail) * sizeof words[0]));
    }
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &bytes, sizeof bytes);
    XXH3_128bits_update(&state, leaves, n_leaves * sizeof leaves[0]);
    if (n_tail) XXH3_128bits_update(&state, tail, n_tail * sizeof tail[0]);
    return digest_of(XXH3_128bits_digest(&state));
}

lb_digest lb_measure_logical(const uint64_t *leaves, uint32_t n_leaves, uint64_t bytes, lb_dtype dtype,
                             const lb_layout *layout)
{
    uint64_t tail[2 + LB_MAX_DIMS];
    return hash_words(bytes, leaves, n_leaves, tail, shape_words(dtype, layout, tail));
}

/* Copies elements of one row into the leaf. */
static void copy_row(char *to, const char *from, int64_t count, int64_t stride, size_t width)
{
    if (stride == 1) {
        memcpy(to, from, (size_t)count * width);
        return;
    }
    switch (width) {
#define COPY(bytes)                                                                                            \
    case bytes:                                                                                                \
        for (int64_t i = 0; i < count; i++) memcpy(to + i * bytes, from + i * stride * bytes, bytes);          \
        return;
        COPY(1)
        COPY(2)
        COPY(4)
        COPY(8)
        COPY(16)
#undef COPY
    default:
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (size_t)i * width, from + i * stride * (int64_t)width, width);
    }
}

typedef struct leaves {
    uint64_t *hashes;
    uint32_t n;
    unsigned what;
    lb_dtype dtype;
    lb_statistics_state statistics;
} leaves;

static void add_leaf(leaves *l, const char *bytes, size_t size, size_t elements)
{
    l->hashes[l->n] = lb_leaf_measure(bytes, size, l->n, l->dtype, elements,
                                      l->what & LB_MEASURE_STATISTICS ? &l->statistics : NULL);
    l->n++;
}

static void add_contiguous(leaves *l, const char *bytes, size_t elements)
{
    const size_t per_leaf = LB_DIGEST_LEAF * 8 / lb_dtype_bits(l->dtype);
    while (elements > 0) {
        size_t take = elements < per_leaf ? elements : per_leaf, size = lb_dtype_bytes(l->dtype, take);
        add_leaf(l, bytes, size, take);
        bytes += size;
        elements -= take;
    }
}

/* Row-major order through one leaf at a time; element sizes divide the leaf. */
static void add_strided(leaves *l, const lb_tensor *tensor)
{
    const size_t width = lb_dtype_bits(l->dtype) / 8;
    const int64_t capacity = (int64_t)(LB_DIGEST_LEAF / width);
    char leaf[LB_DIGEST_LEAF];
    int64_t filled = 0;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r);) {
        const char *row = (const char *)tensor->data + r.offset * (int64_t)width;
        for (int64_t done = 0; done < r.count;) {
            int64_t take = r.count - done < capacity - filled ? r.count - done : capacity - filled;
            copy_row(leaf + (size_t)filled * width, row + done * r.stride * (int64_t)width, take, r.stride,
                     width);
            done += take;
            filled += take;
            if (filled < capacity) continue;
            add_leaf(l, leaf, LB_DIGEST_LEAF, (size_t)capacity);
            filled = 0;
        }
    }
    if (filled > 0) add_leaf(l, leaf, (size_t)filled * width, (size_t)filled);
}

/* A host may have told the processor to flush subnormals to zero, or to round otherwise. What is recorded must not depend
 * on that, nor the host on us. */
#if LB_HAVE_X86
#include <xmmintrin.h>
#define PLAIN_ARITHMETIC 0x1F80u
static unsigned enter_arithmetic(void)
{
    unsigned hosts = _mm_getcsr();
    if (hosts != PLAIN_ARITHMETIC) _mm_setcsr(PLAIN_ARITHMETIC);
    return hosts;
}
static void leave_arithmetic(unsigned hosts)
{
    if (_mm_getcsr() != hosts) _mm_setcsr(hosts);
}
#else
static unsigned enter_arithmetic(void)
{
    return 0;
}
static void leave_arithmetic(unsigned hosts)
{
    (void)hosts;
}
#endif

bool lb_measure(const lb_tensor *tensor, const void *dense, size_t dense_bytes, unsigned what, lb_measured *out)
{
    memset(out, 0, sizeof *out);
    const size_t elements = (size_t)lb_layout_numel(&tensor->layout),
                 bytes = lb_dtype_bytes(tensor->dtype, elements);
    const bool contiguous = lb_layout_is_contiguous(&tensor->layout);
    leaves l = {.hashes = malloc((bytes / LB_DIGEST_LEAF + 1) * sizeof l.hashes[0]),
                .what = what,
                .dtype = tensor->dtype};
    if (!l.hashes) return false;
    const unsigned hosts = enter_arithmetic();
    lb_statistics_begin(&l.statistics);
    if (contiguous)
        add_contiguous(&l, (const char *)tensor->data, elements);
    else
        add_strided(&l, tensor);
    out->logical = lb_measure_logical(l.hashes, l.n, bytes, tensor->dtype, &tensor->layout);
    out->statistics = lb_statistics_end(&l.statistics);
    leave_arithmetic(hosts);
    if (contiguous) {
        out->blob = hash_words(bytes, l.hashes, l.n, NULL, 0);
        out->leaves = l.hashes;
        out->n_leaves = l.n;
        return true;
    }
    free(l.hashes);
    if (what & LB_MEASURE_BLOB) out->blob = lb_digest_bytes(dense, dense_bytes);
    return true;
}
