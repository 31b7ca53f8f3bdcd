/* See dense_pieces.h. */
#include "tensors/dense_pieces.h"

#include <string.h>

void lb_dense_begin(lb_dense_pieces *pieces, const lb_tensor *tensor)
{
    size_t bits = lb_dtype_bits(tensor->dtype);
    pieces->tensor = *tensor;
    pieces->width = bits / 8;
    pieces->per_piece = (size_t)LB_DIGEST_LEAF * 8 / bits;
    pieces->contiguous = lb_layout_is_contiguous(&tensor->layout);
    pieces->done = 0;
    pieces->total = pieces->contiguous || pieces->width ? lb_layout_numel(&tensor->layout) : 0;
    pieces->rows = lb_rows_of(&tensor->layout);
    pieces->row_at = 0;
    pieces->has_row = !pieces->contiguous && lb_rows_next(&pieces->rows);
}

/* Copies elements of the current row, or as many whole rows as fit, behind the first `filled` of the buffer. */
static size_t gather_some(lb_dense_pieces *pieces, size_t filled)
{
    lb_rows *rows = &pieces->rows;
    int64_t room = (int64_t)(pieces->per_piece - filled), n = 1;
    lb_tensor piece = {(char *)pieces->tensor.data +
                           (rows->offset + pieces->row_at * rows->stride) * (int64_t)pieces->width,
                       pieces->tensor.dtype,
                       {.ndim = 1}};
    int64_t take = rows->count - pieces->row_at < room ? rows->count - pieces->row_at : room;
    if (pieces->row_at == 0 && rows->ndim > 0 && take == rows->count) {
        int last = rows->ndim - 1;
        n = rows->shape[last] - rows->index[last];
        if (n > room / rows->count) n = room / rows->count;
        piece.layout =
            (lb_layout){.ndim = 2, .shape = {n, rows->count}, .stride = {rows->outer_stride[last], rows->stride}};
    } else {
        piece.layout = (lb_layout){.ndim = 1, .shape = {take}, .stride = {rows->stride}};
    }
    lb_tensor_gather(&piece, pieces->buffer + filled * pieces->width, NULL);
    pieces->row_at += take;
    if (pieces->row_at == rows->count) {
        pieces->row_at = 0;
        for (int64_t i = 0; i < n; i++) pieces->has_row = lb_rows_next(rows);
    }
    return (size_t)(take * n);
}

bool lb_dense_next(lb_dense_pieces *pieces)
{
    if (pieces->done >= pieces->total) return false;
    int64_t left = pieces->total - pieces->done;
    pieces->elements = left < (int64_t)pieces->per_piece ? (size_t)left : pieces->per_piece;
    if (pieces->contiguous) {
        /* A piece is a whole number of bytes but for the last one. */
        pieces->bytes = (const char *)pieces->tensor.data + lb_dtype_bytes(pieces->tensor.dtype, (size_t)pieces->done);
    } else {
        size_t filled = 0;
        while (filled < pieces->elements && pieces->has_row) filled += gather_some(pieces, filled);
        pieces->bytes = pieces->buffer;
    }
    pieces->done += (int64_t)pieces->elements;
    return true;
}
