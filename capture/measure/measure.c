/* See measure.h. A recorded step is mostly this pass, so a contiguous value is read once: each leaf is hashed and
 * summarised while it is in the registers (leaf.h), and both digests come from the same leaves. Contiguous values are
 * cut where both a leaf and a piece of the statistics begin, and the portions measured by several threads. */
#include "measure/measure.h"
#include "measure/leaf.h"
#include "measure/pool.h"

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

/* A host may have told the processor to flush subnormals to zero, or to round otherwise. What is recorded must not
 * depend on that, nor the host on us. */
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

/* ---- one portion of a value -------------------------------------------------------------------------------------- */

/* What is measured without regard to the rest: a piece of the statistics of a contiguous value, which is whole leaves;
 * all of any other value. */
typedef struct lb_measure_part {
    lb_measuring *item;
    size_t first, elements; /* of a contiguous value */
    lb_statistics_state statistics;
} portion;

static void add_leaf(portion *portion, uint32_t leaf, const char *bytes, size_t size, size_t elements)
{
    const lb_measuring *item = portion->item;
    lb_statistics_state *statistics = item->what & LB_MEASURE_STATISTICS ? &portion->statistics : NULL;
    item->out.leaves[leaf] = lb_leaf_measure(bytes, size, leaf, item->tensor.dtype, elements, statistics);
}

static void add_contiguous(portion *portion)
{
    const lb_dtype dtype = portion->item->tensor.dtype;
    const size_t per_leaf = LB_DIGEST_LEAF * 8 / lb_dtype_bits(dtype);
    const char *bytes = (const char *)portion->item->tensor.data + lb_dtype_bytes(dtype, portion->first);
    uint32_t leaf = (uint32_t)(portion->first / per_leaf);
    for (size_t left = portion->elements; left > 0; leaf++) {
        const size_t take = left < per_leaf ? left : per_leaf, size = lb_dtype_bytes(dtype, take);
        add_leaf(portion, leaf, bytes, size, take);
        bytes += size;
        left -= take;
    }
}

/* As many whole rows of the innermost two dimensions as fit, so that a transposed matrix is read line by line of the
 * cache. */
static size_t gather(lb_rows *rows, int64_t *row_at, const lb_tensor *tensor, size_t width, char *to, int64_t room,
                     bool *more)
{
    lb_tensor some = {
        (char *)tensor->data + (rows->offset + *row_at * rows->stride) * (int64_t)width, tensor->dtype, {.ndim = 1}};
    int64_t take = rows->count - *row_at < room ? rows->count - *row_at : room, n = 1;
    if (*row_at == 0 && rows->ndim > 0 && take == rows->count) {
        const int last = rows->ndim - 1;
        n = rows->shape[last] - rows->index[last];
        if (n > room / rows->count) n = room / rows->count;
        some.layout =
            (lb_layout){.ndim = 2, .shape = {n, rows->count}, .stride = {rows->outer_stride[last], rows->stride}};
    } else {
        some.layout = (lb_layout){.ndim = 1, .shape = {take}, .stride = {rows->stride}};
    }
    lb_tensor_gather(&some, to, NULL);
    *row_at += take;
    if (*row_at == rows->count) {
        *row_at = 0;
        for (int64_t i = 0; i < n; i++) *more = lb_rows_next(rows);
    }
    return (size_t)(take * n);
}

/* Row-major order through one leaf at a time; element sizes divide the leaf. */
static void add_strided(portion *portion)
{
    const lb_tensor *tensor = &portion->item->tensor;
    const size_t width = lb_dtype_bits(tensor->dtype) / 8, capacity = LB_DIGEST_LEAF / width;
    char leaf[LB_DIGEST_LEAF];
    uint32_t n = 0;
    int64_t row_at = 0;
    size_t filled = 0;
    lb_rows rows = lb_rows_of(&tensor->layout);
    for (bool more = lb_rows_next(&rows); more;) {
        filled += gather(&rows, &row_at, tensor, width, leaf + filled * width, (int64_t)(capacity - filled), &more);
        if (filled < capacity && more) continue;
        add_leaf(portion, n++, leaf, filled * width, filled);
        filled = 0;
    }
}

static void measure_portion(void *context, size_t i)
{
    portion *p = (portion *)context + i;
    const unsigned hosts = enter_arithmetic();
    lb_statistics_begin(&p->statistics);
    if (lb_layout_is_contiguous(&p->item->tensor.layout))
        add_contiguous(p);
    else
        add_strided(p);
    leave_arithmetic(hosts);
}

/* ---- whole values ------------------------------------------------------------------------------------------------ */

/* Elements in a portion: whole leaves, and one piece of the statistics. 0: it is not cut. */
static size_t portion_elements(const lb_tensor *tensor)
{
    const size_t bits = lb_dtype_bits(tensor->dtype);
    if (!lb_layout_is_contiguous(&tensor->layout) || bits < 8) return 0;
    return LB_STATISTICS_PIECE / (lb_dtype_is_complex(tensor->dtype) ? 2 : 1);
}

static size_t portions_of(const lb_tensor *tensor)
{
    const size_t elements = (size_t)lb_layout_numel(&tensor->layout), each = portion_elements(tensor);
    return each && elements ? (elements + each - 1) / each : 1;
}

static size_t cut(lb_measuring *item, portion *portions)
{
    const size_t elements = (size_t)lb_layout_numel(&item->tensor.layout), each = portion_elements(&item->tensor);
    const size_t n = portions_of(&item->tensor);
    for (size_t i = 0; i < n; i++) {
        const size_t first = i * each;
        portions[i].item = item;
        portions[i].first = first;
        portions[i].elements = each && i + 1 < n ? each : elements - first;
    }
    return n;
}

static void finish(lb_measuring *item, const portion *portions, size_t n)
{
    lb_measured *out = &item->out;
    const lb_tensor *tensor = &item->tensor;
    const size_t bytes = lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout));
    lb_statistics_state all = portions[0].statistics;
    for (size_t i = 1; i < n; i++) lb_statistics_join(&all, &portions[i].statistics);
    out->statistics = lb_statistics_end(&all);
    out->logical = lb_measure_logical(out->leaves, out->n_leaves, bytes, tensor->dtype, &tensor->layout);
    if (lb_layout_is_contiguous(&tensor->layout)) {
        out->blob = hash_words(bytes, out->leaves, out->n_leaves, NULL, 0);
        return;
    }
    free(out->leaves);
    out->leaves = NULL;
    out->n_leaves = 0;
    if (item->what & LB_MEASURE_BLOB) out->blob = lb_digest_bytes(item->dense, item->dense_bytes);
}

static bool begin(lb_measuring *item)
{
    const size_t bytes = lb_dtype_bytes(item->tensor.dtype, (size_t)lb_layout_numel(&item->tensor.layout));
    memset(&item->out, 0, sizeof item->out);
    item->out.n_leaves = (uint32_t)((bytes + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF);
    item->out.leaves = malloc((item->out.n_leaves + 1) * sizeof item->out.leaves[0]);
    return item->out.leaves != NULL;
}

lb_measure_part *lb_measure_cut(lb_measuring *item, size_t *n)
{
    if (!begin(item)) return NULL;
    *n = portions_of(&item->tensor);
    portion *portions = malloc(*n * sizeof *portions);
    if (portions) {
        cut(item, portions);
        return portions;
    }
    free(item->out.leaves);
    item->out.leaves = NULL;
    return NULL;
}

void lb_measure_run(lb_measure_part *parts, size_t i)
{
    measure_portion(parts, i);
}

void lb_measure_join(lb_measuring *item, lb_measure_part *parts, size_t n)
{
    finish(item, parts, n);
    free(parts);
}

#define TOO_LITTLE (512u << 10) /* bytes that one thread has read before another has woken */

bool lb_measure(lb_measuring *items, size_t n)
{
    size_t n_portions = 0, begun = 0, bytes = 0;
    for (; begun < n && begin(&items[begun]); begun++) {
        n_portions += portions_of(&items[begun].tensor);
        bytes += lb_dtype_bytes(items[begun].tensor.dtype, (size_t)lb_layout_numel(&items[begun].tensor.layout));
    }
    portion few[4], *portions = n_portions <= 4 ? few : malloc(n_portions * sizeof *portions);
    if (begun < n || !portions) {
        for (size_t i = 0; i < begun; i++) free(items[i].out.leaves);
        if (portions != few) free(portions);
        return false;
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) at += cut(&items[i], portions + at);
    if (bytes > TOO_LITTLE)
        lb_pool_run(n_portions, measure_portion, portions);
    else
        for (size_t i = 0; i < n_portions; i++) measure_portion(portions, i);
    at = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t own = portions_of(&items[i].tensor);
        finish(&items[i], portions + at, own);
        at += own;
    }
    if (portions != few) free(portions);
    return true;
}
