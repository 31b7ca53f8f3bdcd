/* See kernel_item.h. */
#include "device/kernel_item.h"

#include <stddef.h>
#include <string.h>

_Static_assert(LB_KERNEL_DIMS == LB_MAX_DIMS, "dimensions");
_Static_assert(LB_KERNEL_BLOCK == LB_STATISTICS_BLOCK && LB_KERNEL_LEAF == LB_DIGEST_LEAF,
               "the definitions' own numbers");
_Static_assert((int)LB_KERNEL_STATISTICS == (int)LB_MEASURE_STATISTICS && (int)LB_KERNEL_BLOB == (int)LB_MEASURE_BLOB,
               "what is wanted");
_Static_assert(offsetof(lb_kernel_item, shape) == LB_KERNEL_FIXED_WORDS * 8, "words of an item");
_Static_assert(sizeof(lb_kernel_launch) == 4096, "parameters of a kernel");

/* lb_dtype_valid has been asked. */
static void set_element(lb_kernel_item *item, lb_dtype part)
{
    static const struct {
        lb_dtype dtype;
        lb_kernel_small small;
    } smalls[] = {
        {LB_E4M3FN, {3, 7, 7, 0x7e, LB_KERNEL_NO_CODE, LB_KERNEL_NO_CODE}},
        {LB_E5M2, {2, 15, 7, 0x7b, 0x7c, LB_KERNEL_NO_CODE}},
        {LB_E4M3FNUZ, {3, 8, 7, 0x7f, LB_KERNEL_NO_CODE, 0x80}},
        {LB_E5M2FNUZ, {2, 16, 7, 0x7f, LB_KERNEL_NO_CODE, 0x80}},
        {LB_E2M1, {1, 1, 3, 7, LB_KERNEL_NO_CODE, LB_KERNEL_NO_CODE}},
    };
    for (size_t i = 0; i < sizeof smalls / sizeof *smalls; i++)
        if (smalls[i].dtype == part) item->small = smalls[i].small;
    item->part_bits = (uint32_t)lb_dtype_bits(part);
    switch (part) {
    case LB_F64: item->element = LB_KERNEL_F64; return;
    case LB_F32: item->element = LB_KERNEL_F32; return;
    case LB_BF16: item->element = LB_KERNEL_BF16; return;
    case LB_F16: item->element = LB_KERNEL_F16; return;
    case LB_E8M0: item->element = LB_KERNEL_SCALE; return;
    case LB_BOOL: item->element = LB_KERNEL_BOOL; return;
    default: break;
    }
    const lb_kind kind = lb_dtype_kind(part);
    item->element = kind == LB_KIND_INT    ? LB_KERNEL_SIGNED
                    : kind == LB_KIND_UINT ? LB_KERNEL_UNSIGNED
                                           : LB_KERNEL_SMALL;
}

/* The largest power of two, at most `most`, that divides all addresses of a step of `most` bytes from `address` on. */
static uint32_t granule_of(uint64_t address, uint32_t most)
{
    const uint64_t ones = address | most;
    return (uint32_t)(ones & -ones);
}

static void set_layout(lb_kernel_item *item, const lb_layout *layout)
{
    item->ndim = (uint32_t)layout->ndim;
    for (int d = 0; d < layout->ndim; d++) item->shape[d] = (uint64_t)layout->shape[d];
    const lb_rows rows = lb_rows_of(layout);
    const int64_t width = item->width;
    if (rows.empty || width == 0 || item->contiguous) return;
    for (int d = 0; d < rows.ndim; d++) {
        item->sizes[d] = (uint64_t)rows.shape[d];
        item->strides[d] = rows.outer_stride[d] * width;
    }
    item->sizes[rows.ndim] = (uint64_t)rows.count;
    item->strides[rows.ndim] = rows.stride * width;
    item->n_sizes = (uint32_t)rows.ndim + 1;
}

/* Elements that lie together in every row are fetched as one, as an attention's results are, whose heads lie beside
 * each other: the view becomes one of chunks. */
static void set_chunk(lb_kernel_item *item)
{
    item->chunk = item->width;
    if (item->contiguous || item->n_sizes == 0) return;
    const uint32_t inner = item->n_sizes - 1;
    if (item->strides[inner] == (int64_t)item->width) {
        const uint64_t row = item->sizes[inner] * item->width;
        uint64_t steps = row;
        for (uint32_t d = 0; d < inner; d++) steps |= (uint64_t)item->strides[d];
        item->chunk = granule_of(item->data | steps, 16);
        if (item->chunk < item->width) item->chunk = item->width;
        item->sizes[inner] = row / item->chunk;
        item->strides[inner] = item->chunk;
    }
    item->granule = granule_of(item->data, item->chunk);
}

static uint64_t leaves_of(uint64_t bytes)
{
    return bytes / LB_KERNEL_LEAF + (bytes % LB_KERNEL_LEAF != 0);
}

/* Where there are enough units to keep a device busy they are longer: reading a leaf and ending the one before it go on
 * side by side, and fewer records are left to the end. */
static uint32_t span_of(uint64_t leaves)
{
    uint32_t span = 1;
    while (span < LB_KERNEL_MOST_SPAN && leaves / (2 * span) >= LB_KERNEL_ENOUGH) span *= 2;
    return span;
}

static uint32_t units_of(uint64_t leaves, uint32_t span)
{
    const uint64_t units = (leaves + span - 1) / span;
    return units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

static void set_units(lb_kernel_item *item)
{
    const uint64_t leaves = leaves_of(item->bytes),
                   blob = item->what & LB_KERNEL_BLOB ? leaves_of(item->dense_bytes) : 0;
    item->main_span = span_of(leaves);
    item->blob_span = span_of(blob);
    item->main = units_of(leaves, item->main_span);
    item->blob = units_of(blob, item->blob_span);
    if (item->main + item->blob == 0) item->main = 1; /* without elements; it has digests all the same */
}

lb_status lb_kernel_item_of(lb_kernel_item *item, const lb_measuring *measuring, lb_err *err)
{
    const lb_tensor *tensor = &measuring->tensor;
    const int64_t n = lb_layout_numel(&tensor->layout);
    const size_t bytes = n < 0 ? SIZE_MAX : lb_dtype_bytes(tensor->dtype, (size_t)n);
    memset(item, 0, sizeof *item);
    if (!lb_dtype_valid(tensor->dtype) || n < 0 || bytes == SIZE_MAX)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "a value of type %s whose sizes are no sizes has no digest",
                       lb_dtype_name(tensor->dtype));
    const lb_dtype part = lb_dtype_part(tensor->dtype);
    item->dtype = tensor->dtype;
    item->width = (uint32_t)(lb_dtype_bits(tensor->dtype) / 8);
    item->contiguous = lb_layout_is_contiguous(&tensor->layout);
    if (!item->contiguous && item->width == 0)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "a strided view of %s: elements smaller than a byte must be dense",
                       lb_dtype_name(tensor->dtype));
    set_element(item, part);
    item->data = (uint64_t)(uintptr_t)tensor->data;
    item->dense = (uint64_t)(uintptr_t)measuring->dense;
    item->dense_bytes = measuring->dense_bytes;
    item->bytes = bytes;
    item->numbers = (uint64_t)n * (part == tensor->dtype ? 1 : 2);
    item->what = measuring->what & (LB_KERNEL_STATISTICS | LB_KERNEL_BLOB);
    if (item->contiguous) item->what &= ~(unsigned)LB_KERNEL_BLOB;
    item->granule = granule_of(item->data, item->contiguous ? 16 : item->width);
    item->dense_granule = granule_of(item->dense, 16);
    set_layout(item, &tensor->layout);
    set_chunk(item);
    set_units(item);
    return LB_OK;
}

uint64_t lb_kernel_scratch_bytes(const lb_kernel_item *item)
{
    const uint64_t leaves = leaves_of(item->bytes),
                   blob = item->what & LB_KERNEL_BLOB ? leaves_of(item->dense_bytes) : 0;
    uint64_t records = 0;
    if (item->what & LB_KERNEL_STATISTICS && leaves) {
        records = (uint64_t)item->main * LB_KERNEL_RECORD_WORDS;
        uint64_t n = item->main;
        do {
            n = (n + LB_KERNEL_TOGETHER - 1) / LB_KERNEL_TOGETHER;
            records += n * LB_KERNEL_FIELD_WORDS;
        } while (n > 1);
    }
    return (leaves + blob + records) * 8;
}

uint32_t lb_kernel_words(const lb_kernel_item *item)
{
    return 1 + LB_KERNEL_FIXED_WORDS + item->ndim + 2 * item->n_sizes;
}

uint64_t lb_kernel_units(const lb_kernel_item *item)
{
    return (uint64_t)item->main + item->blob;
}

static uint64_t *put(uint64_t *to, const void *words, size_t n)
{
    memcpy(to, words, n * sizeof *to);
    return to + n;
}

bool lb_kernel_pack(lb_kernel_launch *launch, lb_kernel_item *items, size_t n)
{
    uint64_t units = 0, words = 0;
    for (size_t i = 0; i < n; i++) units += lb_kernel_units(&items[i]), words += lb_kernel_words(&items[i]);
    if (units > INT32_MAX || words > LB_KERNEL_WORDS) return false;
    uint64_t *to = launch->words + n;
    launch->n_items = (uint32_t)n;
    launch->n_units = 0;
    for (size_t i = 0; i < n; i++) {
        lb_kernel_item *item = &items[i];
        item->first_unit = launch->n_units;
        launch->words[i] = item->first_unit | (uint64_t)(to - launch->words) << 32;
        launch->n_units += (uint32_t)lb_kernel_units(item);
        to = put(to, item, LB_KERNEL_FIXED_WORDS);
        to = put(to, item->shape, item->ndim);
        to = put(to, item->sizes, item->n_sizes);
        to = put(to, item->strides, item->n_sizes);
    }
    return true;
}

lb_measured lb_kernel_measured(const lb_kernel_result *result)
{
    return (lb_measured){.logical = {result->logical_hi, result->logical_lo},
                         .blob = {result->blob_hi, result->blob_lo},
                         .statistics = {result->elements, result->nan, result->pos_inf, result->neg_inf, result->zero,
                                        result->min, result->max, result->sum, result->sum_squares}};
}
