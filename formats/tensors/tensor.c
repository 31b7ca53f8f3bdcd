/* Layouts and strided copies: see lastbit/tensor.h.
 *
 * Everything here trusts nothing about a layout: sizes come from files, so each product and sum is checked. */
#include <lastbit/tensor.h>

#include "base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int64_t lb_layout_numel(const lb_layout *layout)
{
    if (layout->ndim < 0 || layout->ndim > LB_MAX_DIMS) return -1;
    int64_t n = 1;
    bool empty = false, overflow = false;
    for (int d = 0; d < layout->ndim; d++) {
        if (layout->shape[d] < 0) return -1;
        if (layout->shape[d] == 0) empty = true;
        if (!overflow && !empty && __builtin_mul_overflow(n, layout->shape[d], &n)) overflow = true;
    }
    /* A size 0 anywhere makes the product 0, however large its neighbours are. */
    return empty ? 0 : overflow ? -1 : n;
}

lb_layout lb_layout_contiguous(int ndim, const int64_t *shape)
{
    lb_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.ndim = ndim;
    uint64_t stride = 1; /* wraps on nonsense sizes instead of being undefined; numel reports those */
    for (int d = ndim - 1; d >= 0; d--) {
        layout.shape[d] = shape[d];
        layout.stride[d] = (int64_t)stride;
        stride *= (uint64_t)(shape[d] > 1 ? shape[d] : 1);
    }
    return layout;
}

bool lb_layout_is_contiguous(const lb_layout *layout)
{
    int64_t expected = 1;
    for (int d = 0; d < layout->ndim; d++)
        if (layout->shape[d] == 0) return true;
    for (int d = layout->ndim - 1; d >= 0; d--) {
        if (layout->shape[d] == 1) continue;
        if (layout->stride[d] != expected) return false;
        if (__builtin_mul_overflow(expected, layout->shape[d], &expected)) return false;
    }
    return true;
}

bool lb_layout_same_shape(const lb_layout *a, const lb_layout *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

bool lb_layout_same_sizes(const lb_layout *a, const lb_layout *b)
{
    int64_t sizes[2][LB_MAX_DIMS];
    const size_t n = (size_t)a->ndim;
    if (a->ndim != b->ndim) return false;
    memcpy(sizes[0], a->shape, n * sizeof **sizes), memcpy(sizes[1], b->shape, n * sizeof **sizes);
    for (int k = 0; k < 2; k++) qsort(sizes[k], n, sizeof **sizes, lb_by_i64);
    return !memcmp(sizes[0], sizes[1], n * sizeof **sizes);
}

lb_status lb_layout_dense_range(const lb_layout *layout, int64_t *first, int64_t *last, lb_err *err)
{
    int64_t n = lb_layout_numel(layout);
    *first = *last = 0;
    if (n < 0) return lb_fail(err, LB_ERR_INVALID, "layout: sizes are negative or their product overflows");
    if (n == 0) return LB_OK;
    int64_t low = layout->offset, high = layout->offset;
    for (int d = 0; d < layout->ndim; d++) {
        int64_t span;
        int64_t *end = layout->stride[d] < 0 ? &low : &high;
        if (__builtin_mul_overflow(layout->shape[d] - 1, layout->stride[d], &span) ||
            __builtin_add_overflow(*end, span, end))
            return lb_fail(err, LB_ERR_INVALID, "layout: dimension %d: size %lld times stride %lld overflows", d,
                           (long long)layout->shape[d], (long long)layout->stride[d]);
    }
    if (low < 0)
        return lb_fail(err, LB_ERR_INVALID, "layout: element %lld lies before the start of its storage",
                       (long long)low);
    if (__builtin_add_overflow(high, 1, &high)) return lb_fail(err, LB_ERR_INVALID, "layout: offset overflows");
    *first = low;
    *last = high;
    return LB_OK;
}

/* ---- parts of a view --------------------------------------------------------------------------------------------- */

/* One item of a slice: an index, or a range whose missing parts are INT64_MIN. */
typedef struct slice_item {
    bool is_range, is_ellipsis;
    int64_t first, last, step;
} slice_item;

static bool take_number(const char **at, int64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoll(*at, &end, 10);
    if (end == *at) *number = INT64_MIN;
    *at = end;
    return errno == 0;
}

static bool take_item(const char **at, slice_item *item)
{
    while (**at == ' ') ++*at;
    *item = (slice_item){false, strncmp(*at, "...", 3) == 0, INT64_MIN, INT64_MIN, INT64_MIN};
    if (item->is_ellipsis) {
        *at += 3;
    } else if (!take_number(at, &item->first)) {
        return false;
    } else if (**at == ':') {
        item->is_range = true;
        ++*at;
        if (!take_number(at, &item->last)) return false;
        if (**at == ':' && (++*at, !take_number(at, &item->step))) return false;
    } else if (item->first == INT64_MIN) {
        return false;
    }
    while (**at == ' ') ++*at;
    return **at == ',' || **at == '\0' || **at == ']';
}

/* Python's rules: negative numbers count from the end, ranges are clamped. */
static int64_t clamp(int64_t number, int64_t size)
{
    if (number < 0) number += size;
    return number < 0 ? 0 : number > size ? size : number;
}

static lb_status apply_item(const lb_layout *layout, int dimension, const slice_item *item, lb_layout *part,
                            lb_err *err)
{
    int64_t size = layout->shape[dimension], stride = layout->stride[dimension];
    if (!item->is_range) {
        int64_t index = item->first < 0 ? item->first + size : item->first;
        if (index < 0 || index >= size)
            return lb_fail(err, LB_ERR_INVALID, "slice: index %lld is out of range for dimension %d of size %lld",
                           (long long)item->first, dimension, (long long)size);
        part->offset += index * stride;
        return LB_OK;
    }
    int64_t step = item->step == INT64_MIN ? 1 : item->step;
    if (step < 1) return lb_fail(err, LB_ERR_INVALID, "slice: dimension %d: a step must be positive", dimension);
    int64_t first = item->first == INT64_MIN ? 0 : clamp(item->first, size),
            last = item->last == INT64_MIN ? size : clamp(item->last, size);
    int64_t count = last > first ? (last - first - 1) / step + 1 : 0;
    if (count > 0) part->offset += first * stride;
    part->shape[part->ndim] = count;
    part->stride[part->ndim++] = count > 1 ? stride * step : stride;
    return LB_OK;
}

lb_status lb_layout_slice(const lb_layout *layout, const char *text, lb_layout *part, lb_err *err)
{
    slice_item items[LB_MAX_DIMS + 1];
    int n = 0, ellipsis = -1;
    const char *at = text + (*text == '[');
    for (bool more = *at != '\0' && *at != ']'; more;) {
        if (n > LB_MAX_DIMS || !take_item(&at, &items[n]) || (items[n].is_ellipsis && ellipsis >= 0))
            return lb_fail(err, LB_ERR_INVALID, "slice: '%.60s' is none; write it as in NumPy, e.g. 0,:,4:8", text);
        if (items[n].is_ellipsis) ellipsis = n;
        n++;
        more = *at == ',';
        at += more;
    }
    if (strcmp(at, *text == '[' ? "]" : "") != 0)
        return lb_fail(err, LB_ERR_INVALID, "slice: '%.60s' does not end where it should", text);
    if (n - (ellipsis >= 0) > layout->ndim)
        return lb_fail(err, LB_ERR_INVALID, "slice: '%.60s' has more items than the value's %d dimensions", text,
                       (int)layout->ndim);
    static const slice_item all = {true, false, INT64_MIN, INT64_MIN, INT64_MIN};
    int skipped = layout->ndim - (n - (ellipsis >= 0)); /* dimensions that the ellipsis, or the end, stands for */
    if (ellipsis < 0) ellipsis = n;
    memset(part, 0, sizeof *part);
    for (int d = 0; d < layout->ndim; d++) {
        bool is_skipped = d >= ellipsis && d < ellipsis + skipped;
        const slice_item *item = is_skipped ? &all : d < ellipsis ? &items[d] : &items[d - skipped + 1];
        LB_TRY(apply_item(layout, d, item, part, err));
    }
    return LB_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

lb_rows lb_rows_of(const lb_layout *layout)
{
    lb_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.count = rows.stride = 1;
    /* Merge from the innermost dimension outwards; dims[] holds them innermost first. */
    int64_t shape[LB_MAX_DIMS], stride[LB_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < layout->ndim; d++) rows.empty |= layout->shape[d] <= 0;
    if (rows.empty) return rows; /* beside a size 0 the others may be anything */
    for (int d = layout->ndim - 1; d >= 0; d--) {
        if (layout->shape[d] == 1) continue;
        int64_t inner_span;
        if (n > 0 && !__builtin_mul_overflow(shape[n - 1], stride[n - 1], &inner_span) &&
            inner_span == layout->stride[d]) {
            shape[n - 1] *= layout->shape[d];
            continue;
        }
        shape[n] = layout->shape[d];
        stride[n++] = layout->stride[d];
    }
    if (n == 0) return rows;
    rows.count = shape[0];
    rows.stride = stride[0];
    rows.ndim = n - 1;
    for (int i = 0; i < rows.ndim; i++) {
        rows.shape[i] = shape[n - 1 - i];
        rows.outer_stride[i] = stride[n - 1 - i];
    }
    return rows;
}

bool lb_rows_next(lb_rows *rows)
{
    if (rows->empty) return false;
    if (!rows->started) {
        rows->started = true;
        return true;
    }
    for (int d = rows->ndim - 1; d >= 0; d--) {
        rows->offset += rows->outer_stride[d];
        if (++rows->index[d] < rows->shape[d]) return true;
        rows->offset -= rows->shape[d] * rows->outer_stride[d];
        rows->index[d] = 0;
    }
    return false;
}

#define COPY_RUN(type)                                                                                                 \
    do {                                                                                                               \
        type *to = (type *)dst;                                                                                        \
        const type *from = (const type *)src;                                                                          \
        for (int64_t i = 0; i < n; i++) to[i * dst_stride] = from[i * src_stride];                                     \
    } while (0)

typedef struct pair128 {
    uint64_t a, b;
} __attribute__((packed)) pair128;
typedef uint16_t loose16 __attribute__((aligned(1), may_alias));
typedef uint32_t loose32 __attribute__((aligned(1), may_alias));
typedef uint64_t loose64 __attribute__((aligned(1), may_alias));

static void copy_run(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, int64_t n, size_t width)
{
    if (dst_stride == 1 && src_stride == 1) {
        memcpy(dst, src, (size_t)n * width);
        return;
    }
    switch (width) {
    case 1: COPY_RUN(char); break;
    case 2: COPY_RUN(loose16); break;
    case 4: COPY_RUN(loose32); break;
    case 8: COPY_RUN(loose64); break;
    case 16: COPY_RUN(pair128); break;
    }
}

/* A view whose columns lie closer than its rows' elements do (a transposed matrix), gathered in tiles: each line of the
 * cache is fetched once for TILE rows, and not once for every element. A tile is turned in a buffer of its own, for
 * rows that are a power of two apart would push each other out of the cache. */
#define TILE 16

#define GATHER_TILED(type)                                                                                             \
    for (int64_t r = 0; r < rows; r += TILE)                                                                           \
        for (int64_t c = 0; c < columns; c += TILE) {                                                                  \
            type turned[TILE][TILE];                                                                                   \
            int64_t m = rows - r < TILE ? rows - r : TILE, n = columns - c < TILE ? columns - c : TILE;                \
            for (int64_t j = 0; j < n; j++)                                                                            \
                for (int64_t i = 0; i < m; i++)                                                                        \
                    turned[i][j] = ((const type *)view)[(r + i) * row_stride + (c + j) * column_stride];               \
            for (int64_t i = 0; i < m; i++)                                                                            \
                memcpy(bytes + ((r + i) * columns + c) * (int64_t)sizeof(type), turned[i], (size_t)n * sizeof(type));  \
        }

static bool gather_tiled(const lb_layout *layout, const char *view, char *bytes, size_t width)
{
    if (layout->ndim != 2) return false;
    int64_t rows = layout->shape[0], columns = layout->shape[1], row_stride = layout->stride[0],
            column_stride = layout->stride[1];
    if (rows < 2 || row_stride < 0 || column_stride <= row_stride) return false;
    switch (width) {
    case 1: GATHER_TILED(char); return true;
    case 2: GATHER_TILED(loose16); return true;
    case 4: GATHER_TILED(loose32); return true;
    case 8: GATHER_TILED(loose64); return true;
    default: return false;
    }
}

/* Copies between a view and dense bytes; `out` gives the direction. */
static lb_status copy_rows(const lb_tensor *tensor, char *bytes, bool out, lb_err *err)
{
    size_t bits = lb_dtype_bits(tensor->dtype);
    int64_t n = lb_layout_numel(&tensor->layout);
    if (bits == 0 || n < 0) return lb_fail(err, LB_ERR_INVALID, "tensor: no dtype, or sizes whose product overflows");
    if (n == 0) return LB_OK;
    if (bits < 8) {
        if (!lb_layout_is_contiguous(&tensor->layout))
            return lb_fail(err, LB_ERR_UNSUPPORTED, "a strided view of %s: elements smaller than a byte must be dense",
                           lb_dtype_name(tensor->dtype));
        size_t size = lb_dtype_bytes(tensor->dtype, (size_t)n);
        memcpy(out ? bytes : tensor->data, out ? tensor->data : bytes, size);
        return LB_OK;
    }
    size_t width = bits / 8;
    if (out && gather_tiled(&tensor->layout, (const char *)tensor->data, bytes, width)) return LB_OK;
    for (lb_rows rows = lb_rows_of(&tensor->layout); lb_rows_next(&rows); bytes += (size_t)rows.count * width) {
        char *view = (char *)tensor->data + rows.offset * (int64_t)width;
        if (out)
            copy_run(bytes, 1, view, rows.stride, rows.count, width);
        else
            copy_run(view, rows.stride, bytes, 1, rows.count, width);
    }
    return LB_OK;
}

lb_status lb_tensor_gather(const lb_tensor *tensor, void *bytes, lb_err *err)
{
    return copy_rows(tensor, (char *)bytes, true, err);
}

lb_status lb_tensor_scatter(const lb_tensor *tensor, const void *bytes, lb_err *err)
{
    return copy_rows(tensor, (char *)(uintptr_t)bytes, false, err);
}
