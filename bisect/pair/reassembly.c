/* Putting parts together: see reassembly.h. */
#include "reassembly.h"

#include "batch_rows.h"
#include "regenerated.h"

#include <stdlib.h>
#include <string.h>

void lb_reassemblies_release(lb_reassemblies *joins)
{
    free(joins->list), free(joins->part_ops);
    memset(joins, 0, sizeof *joins);
}

bool lb_reassembly_values(const lb_reassemblies *joins, const lb_reassembly *join, const lb_program *pb,
                          uint32_t outcome, uint32_t *values)
{
    for (uint32_t k = 0; k < join->parts; k++) {
        const lb_op *op = &pb->ops[joins->part_ops[join->first + k]];
        if (outcome >= op->results + op->written) return false;
        values[k] = lb_op_outcome(pb, op, outcome);
        if (values[k] == LB_NONE) return false;
    }
    return true;
}

static bool same_but_for(const lb_layout *a, const lb_layout *b, int dim)
{
    for (int d = 0; d < a->ndim; d++)
        if (d != dim && a->shape[d] != b->shape[d]) return false;
    return true;
}

int lb_reassembly_dim(const lb_batch_rows *rows, const lb_program *pa, uint32_t whole, const lb_program *pb,
                      const uint32_t *values, uint32_t n)
{
    const lb_layout *w = &pa->values[whole].layout, *first = &pb->values[values[0]].layout;
    int dim = LB_REASSEMBLY_SAME;
    if (rows) return n == 1 ? lb_batch_rows_dim(rows, w, first) : LB_REASSEMBLY_NONE;
    if (first->ndim != w->ndim) return LB_REASSEMBLY_NONE;
    for (int d = 0; d < w->ndim && dim == LB_REASSEMBLY_SAME; d++)
        if (w->shape[d] != first->shape[d]) dim = d;
    int64_t size = 0;
    for (uint32_t k = 0; k < n; k++) {
        const lb_layout *part = &pb->values[values[k]].layout;
        if (part->ndim != w->ndim || !same_but_for(w, part, dim)) return LB_REASSEMBLY_NONE;
        size += dim >= 0 ? part->shape[dim] : 0;
    }
    return dim < 0 || size == w->shape[dim] ? dim : LB_REASSEMBLY_NONE;
}

lb_reassembly_piece *lb_reassembly_pieces(const lb_batch_rows *rows, const lb_layout *whole, int dim,
                                          const lb_program *pb, const uint32_t *values, uint32_t n, uint32_t *n_pieces)
{
    *n_pieces = rows ? (uint32_t)rows->few : n;
    lb_reassembly_piece *pieces = malloc((*n_pieces + 1) * sizeof *pieces);
    int64_t at = 0;
    for (uint32_t k = 0; pieces && k < *n_pieces; k++) {
        const int64_t size = rows ? whole->shape[dim] / rows->few : pb->values[values[k]].layout.shape[dim];
        pieces[k] = (lb_reassembly_piece){
            .part = rows ? 0 : k, .from = rows ? rows->places[k] * size : 0, .to = at, .size = size};
        at += size;
    }
    return pieces;
}

int lb_reassembly_outcome_dim(const lb_reassemblies *joins, const lb_reassembly *join, const lb_program *pa,
                              const lb_program *pb, uint32_t outcome, uint32_t place, int64_t *at)
{
    const lb_op *whole = &pa->ops[join->whole];
    uint32_t v = lb_op_outcome(pa, whole, outcome);
    uint32_t *values = malloc((join->parts + 1) * sizeof *values);
    int dim = LB_REASSEMBLY_NONE;
    if (values && v != LB_NONE && lb_reassembly_values(joins, join, pb, outcome, values))
        dim = lb_reassembly_dim(joins->rows, pa, v, pb, values, join->parts);
    *at = 0;
    for (uint32_t k = 0; k < place && dim >= 0; k++) *at += pb->values[values[k]].layout.shape[dim];
    free(values);
    return dim;
}

void lb_reassembly_place(const lb_layout *whole, int dim, const lb_reassembly_piece *piece, const lb_layout *part,
                         size_t element, const void *numbers, void *out)
{
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < dim; d++) outer *= whole->shape[d];
    for (int d = dim + 1; d < whole->ndim; d++) inner *= whole->shape[d];
    const size_t run = (size_t)(piece->size * inner) * element;
    for (int64_t o = 0; o < outer; o++)
        memcpy((char *)out + (size_t)((o * whole->shape[dim] + piece->to) * inner) * element,
               (const char *)numbers + (size_t)((o * part->shape[dim] + piece->from) * inner) * element, run);
}

static bool read_part(const lb_reassembling *how, uint32_t value, lb_tensor *part)
{
    bool exact;
    if (how->bytes) return lb_regenerated_value(how->bytes, value, part, &exact) && exact;
    /* Without a replay only kept bytes count, for whoever wants to compare what was recorded. */
    return lb_program_view_value(how->b, value, part, NULL) == LB_OK;
}

bool lb_reassembly_assemble(const lb_reassembling *how, const lb_layout *whole, int dim, const uint32_t *values,
                            uint32_t n, lb_tensor *tensor)
{
    lb_tensor part;
    uint32_t n_pieces;
    if (dim < 0 || !read_part(how, values[0], &part) || lb_dtype_bits(part.dtype) < 8) return false;
    size_t element = lb_dtype_bits(part.dtype) / 8;
    *tensor = (lb_tensor){NULL, part.dtype, lb_layout_contiguous(whole->ndim, whole->shape)};
    tensor->data = malloc((size_t)lb_layout_numel(whole) * element + 1);
    lb_reassembly_piece *pieces = lb_reassembly_pieces(how->rows, whole, dim, how->b->program, values, n, &n_pieces);
    bool done = tensor->data && pieces;
    for (uint32_t k = 0; k < n && done; k++) {
        done = read_part(how, values[k], &part) && part.dtype == tensor->dtype;
        void *dense = done ? malloc((size_t)lb_layout_numel(&part.layout) * element + 1) : NULL;
        done = dense && lb_tensor_gather(&part, dense, NULL) == LB_OK;
        for (uint32_t i = 0; i < n_pieces && done; i++)
            /* Parts outside and pieces inside: each part is read and made dense once, however many
             * rows are taken of it. */
            if (pieces[i].part == k)
                lb_reassembly_place(whole, dim, &pieces[i], &part.layout, element, dense, tensor->data);
        free(dense);
    }
    free(pieces);
    if (!done) free(tensor->data), tensor->data = NULL;
    return done;
}
