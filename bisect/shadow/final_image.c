/* Writes of parts, one over the other: see final_image.h. */
#include "final_image.h"

#include <stdlib.h>
#include <string.h>

static uint32_t value_of(const lb_program *p, uint32_t source)
{
    return lb_op_results(p, &p->ops[source])[0];
}

/* The last op before `end` that writes the source's storage; LB_NONE. */
static uint32_t write_before(const lb_program *p, uint32_t source, uint32_t end)
{
    const int64_t storage = p->values[value_of(p, source)].storage;
    while (end-- > 0)
        if (lb_op_writes(p, &p->ops[end], storage) != LB_NONE) return end;
    return LB_NONE;
}

static uint32_t written_by(const lb_program *p, uint32_t source, uint32_t op)
{
    return lb_op_writes(p, &p->ops[op], p->values[value_of(p, source)].storage);
}

static bool same_place(const lb_value *x, const lb_value *y)
{
    return x->dtype == y->dtype && x->layout.offset == y->layout.offset &&
           lb_layout_same_shape(&x->layout, &y->layout) &&
           !memcmp(x->layout.stride, y->layout.stride, (size_t)x->layout.ndim * sizeof *x->layout.stride);
}

bool lb_image_paint(void *image, const lb_layout *source, const lb_layout *value, size_t element, const void *numbers)
{
    const int64_t n = lb_layout_numel(source), begin = value->offset - source->offset;
    const char *from = numbers;
    for (lb_rows r = lb_rows_of(value); lb_rows_next(&r);)
        for (int64_t k = 0; k < r.count; k++, from += element) {
            const int64_t at = begin + r.offset + k * r.stride;
            if (at < 0 || at >= n) return false;
            memcpy((char *)image + (size_t)at * element, from, element);
        }
    return true;
}

static bool paint_bits(const lb_program_view *side, const lb_value *source, uint32_t value, void *image)
{
    const lb_value *v = &side->program->values[value];
    const size_t element = lb_dtype_bits(v->dtype) / 8;
    lb_tensor t;
    if (v->dtype != source->dtype || !element || lb_program_view_value(side, value, &t, NULL) != LB_OK) return false;
    void *dense = malloc((size_t)lb_layout_numel(&t.layout) * element + 1);
    const bool done = dense && lb_tensor_gather(&t, dense, NULL) == LB_OK &&
                      lb_image_paint(image, &source->layout, &v->layout, element, dense);
    free(dense);
    return done;
}

bool lb_image_bits(const lb_program_view *side, uint32_t source, lb_tensor *tensor)
{
    const lb_program *p = side->program;
    const lb_value *whole = &p->values[value_of(p, source)];
    uint32_t first = write_before(p, source, p->n_ops); /* the last that leaves nothing of what was before */
    while (first != LB_NONE && !same_place(whole, &p->values[written_by(p, source, first)]))
        first = write_before(p, source, first);
    *tensor = (lb_tensor){NULL, whole->dtype, lb_layout_contiguous(whole->layout.ndim, whole->layout.shape)};
    tensor->data = malloc(lb_dtype_bytes(whole->dtype, (size_t)lb_layout_numel(&whole->layout)) + 1);
    bool done = tensor->data != NULL;
    if (done && first == LB_NONE) done = paint_bits(side, whole, value_of(p, source), tensor->data);
    for (uint32_t i = first == LB_NONE ? 0 : first; done && i < p->n_ops; i++) {
        const uint32_t value = written_by(p, source, i);
        if (value != LB_NONE) done = paint_bits(side, whole, value, tensor->data);
    }
    if (!done) free(tensor->data), tensor->data = NULL;
    return done;
}

bool lb_image_may_differ(const lb_program *a, uint32_t source_a, const lb_program *b, uint32_t source_b)
{
    const lb_value *x = &a->values[value_of(a, source_a)], *y = &b->values[value_of(b, source_b)];
    for (uint32_t i = a->n_ops, j = b->n_ops;;) {
        i = write_before(a, source_a, i), j = write_before(b, source_b, j);
        if (i == LB_NONE && j == LB_NONE) return !lb_digest_equal(x->logical, y->logical);
        if (i == LB_NONE || j == LB_NONE) return true;
        const lb_value *u = &a->values[written_by(a, source_a, i)], *v = &b->values[written_by(b, source_b, j)];
        if (lb_digest_is_none(u->logical) || !lb_digest_equal(u->logical, v->logical) || !same_place(u, v)) return true;
        if (same_place(u, x) && same_place(v, y)) return false;
    }
}
