/* See dense_pieces.h. */
#include "tensors/dense_pieces.h"

#include <string.h>

void lb_dense_begin(lb_dense_pieces *p, const lb_tensor *tensor)
{
    size_t bits = lb_dtype_bits(tensor->dtype);
    p->tensor = *tensor;
    p->width = bits / 8;
    p->per_piece = (size_t)LB_DIGEST_LEAF * 8 / bits;
    p->contiguous = lb_layout_is_contiguous(&tensor->layout);
    p->done = 0;
    p->total = p->contiguous || p->width ? lb_layout_numel(&tensor->layout) : 0;
    p->rows = lb_rows_of(&tensor->layout);
    p->row_at = 0;
    p->has_row = !p->contiguous && lb_rows_next(&p->rows);
}

/* Copies elements of the current row, or as many whole rows as fit, behind the first `filled` of the buffer. */
static size_t gather_some(lb_dense_pieces *p, size_t filled)
{
    lb_rows *r = &p->rows;
    int64_t room = (int64_t)(p->per_piece - filled), n = 1;
    lb_tensor piece = {
        (char *)p->tensor.data + (r->offset + p->row_at * r->stride) * (int64_t)p->width, p->tensor.dtype, {.ndim = 1}};
    int64_t take = r->count - p->row_at < room ? r->count - p->row_at : room;
    if (p->row_at == 0 && r->ndim > 0 && take == r->count) {
        int last = r->ndim - 1;
        n = r->shape[last] - r->index[last];
        if (n > room / r->count) n = room / r->count;
        piece.layout = (lb_layout){.ndim = 2, .shape = {n, r->count}, .stride = {r->outer_stride[last], r->stride}};
    } else {
        piece.layout = (lb_layout){.ndim = 1, .shape = {take}, .stride = {r->stride}};
    }
    lb_tensor_gather(&piece, p->buffer + filled * p->width, NULL);
    p->row_at += take;
    if (p->row_at == r->count) {
        p->row_at = 0;
        for (int64_t i = 0; i < n; i++) p->has_row = lb_rows_next(r);
    }
    return (size_t)(take * n);
}

bool lb_dense_next(lb_dense_pieces *p)
{
    if (p->done >= p->total) return false;
    int64_t left = p->total - p->done;
    p->elements = left < (int64_t)p->per_piece ? (size_t)left : p->per_piece;
    if (p->contiguous) {
        /* A piece is a whole number of bytes but for the last one. */
        p->bytes = (const char *)p->tensor.data + lb_dtype_bytes(p->tensor.dtype, (size_t)p->done);
    } else {
        size_t filled = 0;
        while (filled < p->elements && p->has_row) filled += gather_some(p, filled);
        p->bytes = p->buffer;
    }
    p->done += (int64_t)p->elements;
    return true;
}
