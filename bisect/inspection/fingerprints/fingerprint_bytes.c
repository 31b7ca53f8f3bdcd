/* See fingerprint_bytes.h. A piece is read once, in slabs that stay in the cache while all of its sums are taken. */
#include "fingerprints/fingerprint_bytes.h"

#include "audit/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLAB_BYTES = 512 << 10, LARGE_BYTES = 32 << 20 };

static const lb_dtype narrow_dtypes[LB_FINGERPRINT_NARROW] = {LB_BF16, LB_F16};

lb_dtype lb_fingerprint_table_narrow(int which)
{
    return narrow_dtypes[which];
}

bool lb_fingerprint_bytes_rounds(lb_dtype dtype, int narrow)
{
    return lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) >= 16 && dtype != narrow_dtypes[narrow] &&
           lb_dtype_bits(dtype) > 16;
}

/* ---- one slab ---------------------------------------------------------------------------------------------------- */

/* Dense elements, and what stands for the whole tensor's first: either a run from `flat` on or a block. */
typedef struct slab {
    lb_tensor dense;
    const lb_layout *whole;
    int64_t start[LB_MAX_DIMS], flat;
} slab;

static lb_status add_slab(const slab *slab, lb_fingerprint_form form, const lb_tensor *tensor, lb_fingerprint *sum,
                          lb_err *err)
{
    if (slab->flat < 0) return lb_fingerprint_block(form, tensor, slab->whole->shape, slab->start, sum, err);
    lb_fingerprint_add_run(form, tensor->dtype, tensor->data, (size_t)lb_layout_numel(&tensor->layout),
                           (uint64_t)slab->flat, sum);
    return LB_OK;
}

static lb_status measure_slab(const slab *slab, bool rounded, void *room, const char *first,
                              lb_fingerprint_measured *measured, lb_err *err)
{
    const size_t n = (size_t)lb_layout_numel(&slab->dense.layout), width = lb_dtype_bits(slab->dense.dtype) / 8;
    const char *p = (const char *)slab->dense.data;
    LB_TRY(add_slab(slab, LB_FINGERPRINT_RAW, &slab->dense, &measured->raw, err));
    LB_TRY(add_slab(slab, LB_FINGERPRINT_NUMBERS, &slab->dense, &measured->numbers, err));
    measured->constant =
        measured->constant && width && n && !memcmp(first, p, width) && !memcmp(p, p + width, (n - 1) * width);
    for (int k = 0; k < LB_FINGERPRINT_NARROW && rounded; k++) {
        if (!lb_fingerprint_bytes_rounds(slab->dense.dtype, k)) continue;
        lb_convert(narrow_dtypes[k], room, slab->dense.dtype, p, n, NULL);
        const lb_tensor cast = {room, narrow_dtypes[k], slab->dense.layout};
        LB_TRY(add_slab(slab, LB_FINGERPRINT_NUMBERS, &cast, &measured->rounded[k], err));
    }
    return LB_OK;
}

/* ---- one piece --------------------------------------------------------------------------------------------------- */

static lb_fingerprint_measured added(lb_fingerprint_measured a, const lb_fingerprint_measured *b)
{
    a.raw = lb_fingerprint_add(a.raw, b->raw), a.numbers = lb_fingerprint_add(a.numbers, b->numbers);
    for (int k = 0; k < LB_FINGERPRINT_NARROW; k++) a.rounded[k] = lb_fingerprint_add(a.rounded[k], b->rounded[k]);
    a.constant = a.constant && b->constant;
    return a;
}

/* A piece, which begins at `start` of a tensor of the shape `whole`. `rounded`: measure its rounded numbers, too. */
typedef struct placed_piece {
    const lb_fingerprint_piece *piece;
    const lb_layout *whole;
    const int64_t *start;
    bool rounded;
} placed_piece;

/* Rows [from, to) of its first dimension. */
static lb_status measure_rows(const placed_piece *placed, int64_t from, int64_t to, lb_fingerprint_measured *measured,
                              lb_err *err)
{
    const lb_tensor *tensor = &placed->piece->held.tensor;
    const bool rounded = placed->rounded;
    const size_t width = lb_dtype_bits(tensor->dtype) / 8;
    slab slab = {.dense = *tensor, .whole = placed->whole, .flat = placed->piece->flat};
    memcpy(slab.start, placed->start, sizeof slab.start);
    if (tensor->layout.ndim) {
        const int64_t inner =
            lb_layout_numel(&tensor->layout) / (tensor->layout.shape[0] ? tensor->layout.shape[0] : 1);
        slab.dense.layout.shape[0] = to - from, slab.start[0] += from;
        slab.dense.data = (char *)tensor->data + from * tensor->layout.stride[0] * (int64_t)width;
        if (slab.flat >= 0) slab.flat += from * inner;
    }
    const size_t n = (size_t)lb_layout_numel(&slab.dense.layout);
    const bool strided = !lb_layout_is_contiguous(&slab.dense.layout);
    void *dense = strided ? malloc(n * width + 1) : NULL, *room = rounded ? malloc(n * 2 + 1) : NULL;
    lb_status status = (strided && !dense) || (rounded && !room) ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : LB_OK;
    if (status == LB_OK && strided) status = lb_tensor_gather(&slab.dense, dense, err);
    if (status == LB_OK && strided) {
        slab.dense.data = dense;
        slab.dense.layout = lb_layout_contiguous(tensor->layout.ndim, slab.dense.layout.shape);
    }
    if (status == LB_OK) status = measure_slab(&slab, rounded, room, (const char *)tensor->data, measured, err);
    free(dense), free(room);
    return status;
}

/* Of a piece that begins at `start` in a tensor of the shape `whole`; large ones by several threads. Rounded copies are
 * made of floats that are wider than the narrow dtypes, where they are asked for. */
static lb_status measure_piece(const lb_fingerprint_piece *piece, const lb_layout *whole, const int64_t *start,
                               bool rounded, lb_fingerprint_measured *out, lb_err *err)
{
    const lb_tensor *tensor = &piece->held.tensor;
    const int64_t n = lb_layout_numel(&tensor->layout), rows = tensor->layout.ndim ? tensor->layout.shape[0] : 1;
    *out = (lb_fingerprint_measured){.constant = true};
    if (n <= 0) return LB_OK;
    const int64_t bytes = n * (int64_t)lb_dtype_bits(tensor->dtype) / 8, of_row = bytes / rows;
    int64_t step = of_row && of_row < SLAB_BYTES ? SLAB_BYTES / of_row : of_row ? 1 : rows;
    if (lb_dtype_bits(tensor->dtype) < 8) step = rows; /* a row may begin within a byte */
    const int64_t slabs = (rows + step - 1) / step;
    const placed_piece placed = {piece, whole, start, rounded};
    lb_fingerprint_measured sum = {.constant = true};
    lb_err why = LB_ERR_INIT;
#pragma omp parallel for schedule(dynamic, 1) if (bytes >= LARGE_BYTES)
    for (int64_t i = 0; i < slabs; i++) {
        lb_fingerprint_measured measured = {.constant = true};
        lb_err own = LB_ERR_INIT;
        measure_rows(&placed, i * step, (i + 1) * step < rows ? (i + 1) * step : rows, &measured, &own);
#pragma omp critical(lb_fingerprint_sum)
        {
            sum = added(sum, &measured);
            if (own.status != LB_OK && why.status == LB_OK) why = own;
        }
    }
    *out = sum;
    return why.status == LB_OK ? LB_OK : lb_fail(err, why.status, "tensor '%.100s': %s", piece->held.name, why.message);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static lb_status lack(lb_fingerprint_row *row, const char *why, lb_err *err)
{
    free(row->lacks);
    row->lacks = strdup(why);
    return row->lacks ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static void take(lb_fingerprint_row *row, const lb_layout *shape, const lb_fingerprint_measured *measured, bool rounded)
{
    row->shape = lb_layout_contiguous(shape->ndim, shape->shape);
    row->raw = measured->raw, row->numbers = measured->numbers, row->constant = measured->constant;
    for (int k = 0; k < LB_FINGERPRINT_NARROW; k++)
        row->rounded[k] = measured->rounded[k],
        row->has_rounded[k] = rounded && lb_fingerprint_bytes_rounds(row->dtype, k);
    free(row->lacks);
    row->lacks = NULL;
}

static bool same_place(const lb_fingerprint_piece *p, const lb_fingerprint_piece *q)
{
    bool same = p->flat == q->flat && lb_layout_same_shape(&p->held.tensor.layout, &q->held.tensor.layout);
    for (int d = 0; d < p->held.whole.ndim && same && p->flat < 0; d++) same = p->held.start[d] == q->held.start[d];
    return same;
}

/* Parts that say where they belong, copies of a part among them. */
static lb_status settle_placed(const lb_fingerprint_piece *piece, lb_fingerprint_row *row, bool rounded, lb_err *err)
{
    lb_fingerprint_measured *measured = malloc((row->pieces + 1u) * sizeof *measured), sum = {.constant = true};
    const lb_layout *whole = &piece->held.whole;
    int64_t held = 0;
    bool differ = false;
    const char *one = NULL;
    lb_status status = measured ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < row->pieces && status == LB_OK; i++) {
        uint32_t k = 0;
        if (piece[i].held.tensor.dtype != row->dtype || !lb_layout_same_shape(&piece[i].held.whole, whole)) {
            one = "its parts have several dtypes or wholes";
            break;
        }
        status = measure_piece(&piece[i], whole, piece[i].held.start, rounded, &measured[i], err);
        while (k < i && !same_place(&piece[k], &piece[i])) k++;
        if (k < i) {
            differ |= !lb_fingerprint_equal(measured[k].raw, measured[i].raw);
            continue;
        }
        held += lb_layout_numel(&piece[i].held.tensor.layout);
        if (status == LB_OK) sum = added(sum, &measured[i]);
    }
    for (uint32_t i = 1; i < row->pieces && sum.constant && status == LB_OK && !one; i++)
        sum.constant = !memcmp(piece[0].held.tensor.data, piece[i].held.tensor.data, lb_dtype_bits(row->dtype) / 8);
    free(measured);
    LB_TRY(status);
    take(row, whole, &sum, rounded);
    if (differ) one = "copies of one part differ between ranks";
    if (!one && held != lb_layout_numel(whole)) one = "its parts do not make up the whole";
    return one ? lack(row, one, err) : LB_OK;
}

/* Along which dimension shards make up a tensor of the shape `like`, or are cut as the tensor's name tells; -1: not
 * known. */
static int cut_dimension(const lb_fingerprint_piece *piece, const lb_fingerprint_row *row, const lb_layout *like)
{
    const lb_layout *layout = &piece->held.tensor.layout;
    if (!like) {
        const lb_inventory_cut cut = lb_inventory_cut_of(row->name);
        return cut == LB_CUT_COLUMN_PARALLEL && layout->ndim > 0 ? 0
               : cut == LB_CUT_ROW_PARALLEL && layout->ndim > 1  ? 1
                                                                 : -1;
    }
    for (int d = 0; d < layout->ndim && layout->ndim == like->ndim; d++) {
        int64_t along = 0;
        bool others = true;
        for (uint32_t i = 0; i < row->pieces; i++) along += piece[i].held.tensor.layout.shape[d];
        for (int k = 0; k < layout->ndim; k++) others &= k == d || layout->shape[k] == like->shape[k];
        if (others && along == like->shape[d]) return d;
    }
    return -1;
}

/* Files of ranks: copies, or shards side by side. */
static lb_status settle_ranks(const lb_fingerprint_piece *piece, lb_fingerprint_row *row, const lb_layout *like,
                              bool rounded, lb_err *err)
{
    static const int64_t nowhere[LB_MAX_DIMS];
    lb_fingerprint_measured first, measured;
    bool copies = true;
    LB_TRY(measure_piece(&piece[0], &piece[0].held.tensor.layout, nowhere, rounded, &first, err));
    for (uint32_t i = 1; i < row->pieces && copies; i++) {
        LB_TRY(measure_piece(&piece[i], &piece[i].held.tensor.layout, nowhere, rounded, &measured, err));
        copies = lb_fingerprint_equal(measured.raw, first.raw) &&
                 lb_layout_same_shape(&piece[i].held.tensor.layout, &piece[0].held.tensor.layout);
    }
    const lb_layout *own = &piece[0].held.tensor.layout;
    const int dimension = cut_dimension(piece, row, like);
    if (copies && (!like || dimension < 0 || lb_layout_same_shape(own, like)))
        return take(row, own, &first, rounded), LB_OK;
    row->shape = lb_layout_contiguous(own->ndim, own->shape);
    if (dimension < 0) return lack(row, "ranks hold different parts of it, and no file tells their places", err);
    lb_layout whole = *own;
    int64_t start[LB_MAX_DIMS] = {0};
    whole.shape[dimension] = 0;
    for (uint32_t i = 0; i < row->pieces; i++) whole.shape[dimension] += piece[i].held.tensor.layout.shape[dimension];
    whole = lb_layout_contiguous(whole.ndim, whole.shape);
    lb_fingerprint_measured sum = {.constant = false};
    for (uint32_t i = 0; i < row->pieces; i++) {
        bool fits = piece[i].held.tensor.dtype == row->dtype && piece[i].held.tensor.layout.ndim == whole.ndim;
        for (int k = 0; fits && k < whole.ndim; k++)
            fits = k == dimension || piece[i].held.tensor.layout.shape[k] == whole.shape[k];
        if (!fits) return lack(row, "its shards do not fit side by side", err);
        LB_TRY(measure_piece(&piece[i], &whole, start, rounded, &measured, err));
        sum = added(sum, &measured), start[dimension] += piece[i].held.tensor.layout.shape[dimension];
    }
    take(row, &whole, &sum, rounded);
    return LB_OK;
}

lb_status lb_fingerprint_bytes_settle(const lb_fingerprint_table *table, lb_fingerprint_row *row, const lb_layout *like,
                                      bool rounded, lb_err *err)
{
    const lb_fingerprint_piece *piece = &table->bytes->pieces[row->first];
    if (piece->held.placed || row->pieces == 1) return settle_placed(piece, row, rounded, err);
    return settle_ranks(piece, row, like, rounded, err);
}

lb_status lb_fingerprint_bytes_transposed(const lb_fingerprint_table *table, const lb_fingerprint_row *row, bool *made,
                                          lb_fingerprint *numbers, lb_err *err)
{
    *made = table->bytes && row->pieces == 1 && row->shape.ndim >= 2 && lb_dtype_bits(row->dtype) >= 8 && !row->lacks;
    if (!*made) return LB_OK;
    lb_tensor tensor = table->bytes->pieces[row->first].held.tensor;
    const lb_layout layout = tensor.layout;
    const int n = layout.ndim;
    tensor.layout.shape[n - 1] = layout.shape[n - 2], tensor.layout.stride[n - 1] = layout.stride[n - 2];
    tensor.layout.shape[n - 2] = layout.shape[n - 1], tensor.layout.stride[n - 2] = layout.stride[n - 1];
    return lb_fingerprint_tensor(LB_FINGERPRINT_NUMBERS, &tensor, numbers, err);
}

void lb_fingerprint_bytes_free(lb_fingerprint_bytes *bytes)
{
    if (!bytes) return;
    if (bytes->capture && bytes->checkpoint) { /* made here, of the capture's memory */
        for (uint32_t i = 0; i < bytes->checkpoint->n_files; i++) free(bytes->checkpoint->files[i].path);
        free(bytes->checkpoint->files), free(bytes->checkpoint->pieces), free(bytes->checkpoint->path),
            free(bytes->checkpoint);
    } else {
        lb_checkpoint_close(bytes->checkpoint);
    }
    lb_capture_close(bytes->capture);
    free(bytes->pieces), free(bytes);
}
