/* Writes of parts, one over the other: see final_image.h. */
#include "shadow/final_image.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

static uint32_t value_of(const lb_program *program, uint32_t source)
{
    return lb_op_results(program, &program->ops[source])[0];
}

bool lb_image_overlaps(const lb_value *source, const lb_value *value)
{
    int64_t first, last, begin, end;
    if (source->storage != value->storage) return false;
    if (source->dtype != value->dtype || lb_layout_dense_range(&source->layout, &first, &last, NULL) != LB_OK ||
        lb_layout_dense_range(&value->layout, &begin, &end, NULL) != LB_OK)
        return true;
    return begin < last && end > first;
}

/* ---- the writes of a program, by what they write ---- */

typedef struct write {
    int64_t storage;
    uint32_t op, value;
} write;

struct lb_image_writes {
    const lb_program *program;
    write *rows; /* by storage; of one storage as they are executed */
    uint32_t n;
};

static int by_storage_and_op(const void *a, const void *b)
{
    const write *x = a, *y = b;
    const int order = lb_by_i64(&x->storage, &y->storage);
    return order ? order : lb_by_u32(&x->op, &y->op);
}

/* An op's own writes stay in their order: a foreach op may write many windows of one storage. */
static int by_storage_and_place(const void *a, const void *b)
{
    const int order = by_storage_and_op(a, b);
    return order ? order : lb_by_u32(&((const write *)a)->value, &((const write *)b)->value);
}

lb_image_writes *lb_image_writes_new(const lb_program *program)
{
    uint64_t n = 0;
    lb_image_writes *writes = calloc(1, sizeof *writes);
    for (uint32_t i = 0; i < program->n_ops; i++) n += program->ops[i].written;
    if (writes) writes->program = program, writes->rows = malloc((n + 1) * sizeof *writes->rows);
    if (!writes || !writes->rows) {
        free(writes);
        return NULL;
    }
    /* `value` is the place among the op's writes until all are sorted. */
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t k = 0; k < program->ops[i].written; k++) {
            const uint32_t value = lb_op_written(program, &program->ops[i])[k];
            if (value != LB_NONE) writes->rows[writes->n++] = (write){program->values[value].storage, i, k};
        }
    qsort(writes->rows, writes->n, sizeof *writes->rows, by_storage_and_place);
    for (uint32_t i = 0; i < writes->n; i++)
        writes->rows[i].value = lb_op_written(program, &program->ops[writes->rows[i].op])[writes->rows[i].value];
    return writes;
}

void lb_image_writes_free(lb_image_writes *writes)
{
    if (!writes) return;
    free(writes->rows);
    free(writes);
}

uint32_t lb_image_write_before(const lb_image_writes *writes, uint32_t source, uint32_t end, uint32_t *value)
{
    const lb_program *program = writes->program;
    const lb_value *whole = &program->values[value_of(program, source)];
    const write wanted = {whole->storage, end, 0};
    size_t at = lb_array_first(writes->rows, writes->n, sizeof *writes->rows, &wanted, by_storage_and_op);
    while (at-- > 0 && writes->rows[at].storage == whole->storage)
        if (lb_image_overlaps(whole, &program->values[writes->rows[at].value])) {
            *value = writes->rows[at].value;
            return writes->rows[at].op;
        }
    *value = LB_NONE;
    return LB_NONE;
}

static bool same_place(const lb_value *x, const lb_value *y)
{
    return x->dtype == y->dtype && x->layout.offset == y->layout.offset &&
           lb_layout_same_shape(&x->layout, &y->layout) &&
           !memcmp(x->layout.stride, y->layout.stride, (size_t)x->layout.ndim * sizeof *x->layout.stride);
}

/* Nothing of what was before is left in the source's window. */
static bool covers(const lb_value *source, const lb_value *value)
{
    int64_t first, last, begin, end;
    if (source->dtype != value->dtype || lb_layout_dense_range(&source->layout, &first, &last, NULL) != LB_OK ||
        lb_layout_dense_range(&value->layout, &begin, &end, NULL) != LB_OK)
        return false;
    return begin <= first && end >= last && end - begin == lb_layout_numel(&value->layout);
}

void lb_image_paint(void *image, const lb_layout *source, const lb_layout *value, size_t element, const void *numbers)
{
    const int64_t n = lb_layout_numel(source), begin = value->offset - source->offset;
    const char *from = numbers;
    for (lb_rows r = lb_rows_of(value); lb_rows_next(&r); from += (size_t)r.count * element) {
        const int64_t at = begin + r.offset;
        if (r.stride != 1) {
            for (int64_t k = 0; k < r.count; k++)
                if (at + k * r.stride >= 0 && at + k * r.stride < n)
                    memcpy((char *)image + (size_t)(at + k * r.stride) * element, from + (size_t)k * element, element);
            continue;
        }
        const int64_t skipped = at < 0 ? -at : 0, count = at + r.count > n ? n - at : r.count;
        if (count > skipped)
            memcpy((char *)image + (size_t)(at + skipped) * element, from + (size_t)skipped * element,
                   (size_t)(count - skipped) * element);
    }
}

static bool paint_bits(const lb_program_view *side, const lb_value *source, uint32_t value, void *image)
{
    const lb_value *v = &side->program->values[value];
    const size_t element = lb_dtype_bits(v->dtype) / 8;
    lb_tensor t;
    if (v->dtype != source->dtype || !element || lb_program_view_value(side, value, &t, NULL) != LB_OK) return false;
    void *dense = malloc((size_t)lb_layout_numel(&t.layout) * element + 1);
    const bool done = dense && lb_tensor_gather(&t, dense, NULL) == LB_OK;
    if (done) lb_image_paint(image, &source->layout, &v->layout, element, dense);
    free(dense);
    return done;
}

bool lb_image_bits(const lb_program_view *side, uint32_t source, lb_tensor *tensor)
{
    const lb_program *program = side->program;
    const lb_value *whole = &program->values[value_of(program, source)];
    lb_image_writes *writes = lb_image_writes_new(program);
    *tensor = (lb_tensor){0};
    if (!writes) return false;
    /* The last that covers all of it. */
    uint32_t value, first = lb_image_write_before(writes, source, program->n_ops, &value);
    while (first != LB_NONE && !covers(whole, &program->values[value]))
        first = lb_image_write_before(writes, source, first, &value);
    lb_image_writes_free(writes);
    *tensor = (lb_tensor){NULL, whole->dtype, lb_layout_contiguous(whole->layout.ndim, whole->layout.shape)};
    tensor->data = malloc(lb_dtype_bytes(whole->dtype, (size_t)lb_layout_numel(&whole->layout)) + 1);
    bool done = tensor->data != NULL;
    if (done && first == LB_NONE) done = paint_bits(side, whole, value_of(program, source), tensor->data);
    for (uint32_t i = first == LB_NONE ? 0 : first; done && i < program->n_ops; i++)
        for (uint32_t k = 0; done && k < program->ops[i].written; k++) {
            value = lb_op_written(program, &program->ops[i])[k];
            if (value != LB_NONE && lb_image_overlaps(whole, &program->values[value]))
                done = paint_bits(side, whole, value, tensor->data);
        }
    if (!done) free(tensor->data), tensor->data = NULL;
    return done;
}

bool lb_image_may_differ(const lb_image_writes *writes_a, uint32_t source_a, const lb_image_writes *writes_b,
                         uint32_t source_b)
{
    const lb_program *a = writes_a->program, *b = writes_b->program;
    const lb_value *x = &a->values[value_of(a, source_a)], *y = &b->values[value_of(b, source_b)];
    for (uint32_t i = a->n_ops, j = b->n_ops;;) {
        uint32_t va, vb;
        i = lb_image_write_before(writes_a, source_a, i, &va), j = lb_image_write_before(writes_b, source_b, j, &vb);
        if (i == LB_NONE && j == LB_NONE) return !lb_digest_equal(x->logical, y->logical);
        if (i == LB_NONE || j == LB_NONE) return true;
        const lb_value *u = &a->values[va], *v = &b->values[vb];
        if (lb_digest_is_none(u->logical) || !lb_digest_equal(u->logical, v->logical) || !same_place(u, v)) return true;
        if (same_place(u, x) && same_place(v, y)) return false;
    }
}
