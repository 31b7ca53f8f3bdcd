/* Casts of what came in: see input_casts.h. */
#include "shadow/input_casts.h"

#include <stdlib.h>
#include <string.h>

/* The source that gave the storage; LB_NONE: it was made here. */
static bool is_read_from_source(const lb_program *p, uint32_t end, int64_t storage)
{
    for (uint32_t i = 0; i < end; i++) {
        if (!lb_op_is_source(p, &p->ops[i])) continue;
        const uint32_t v = lb_op_results(p, &p->ops[i])[0];
        if (v != LB_NONE && p->values[v].storage == storage) return true;
    }
    return false;
}

/* A cast of a source to a narrower type; the value that it gives, LB_NONE: it is none. */
static uint32_t cast_of_input(const lb_program *p, uint32_t op)
{
    const lb_op *o = &p->ops[op];
    const lb_arg *args = lb_op_args(p, o);
    if (!lb_op_is_cast(p, o) || !o->results || !o->args) return LB_NONE;
    if (args[0].tag != LB_ARG_VALUE || args[0].u.value == LB_NONE) return LB_NONE;
    const uint32_t v = lb_op_results(p, o)[0];
    const lb_value *from = &p->values[args[0].u.value];
    if (v == LB_NONE || !lb_dtype_is_float(p->values[v].dtype) || !lb_dtype_is_float(from->dtype)) return LB_NONE;
    if (lb_dtype_precision(p->values[v].dtype) >= lb_dtype_precision(from->dtype)) return LB_NONE;
    return is_read_from_source(p, op, from->storage) ? v : LB_NONE;
}

/* Are the rows of one the rows of the other, or some that follow each other in it? */
static bool is_part(const lb_tensor *part, const lb_tensor *whole)
{
    const lb_layout *x = &part->layout, *y = &whole->layout;
    const int64_t n = lb_layout_numel(x), m = lb_layout_numel(y);
    if (part->dtype != whole->dtype || x->ndim != y->ndim || !x->ndim || n <= 0 || n > m) return false;
    if (!lb_layout_is_contiguous(x) || !lb_layout_is_contiguous(y)) return false;
    for (int d = 1; d < x->ndim; d++)
        if (x->shape[d] != y->shape[d]) return false;
    const size_t row = lb_dtype_bytes(part->dtype, (size_t)(n / x->shape[0])),
                 bytes = lb_dtype_bytes(part->dtype, (size_t)n);
    for (int64_t r = 0; r + x->shape[0] <= y->shape[0]; r++)
        if (!memcmp(part->data, (const char *)whole->data + (size_t)r * row, bytes)) return true;
    return false;
}

static bool begins_with(const lb_program_view *other, const lb_tensor *cast)
{
    const lb_program *p = other->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        lb_tensor source;
        if (!lb_op_is_source(p, &p->ops[i])) continue;
        const uint32_t v = lb_op_results(p, &p->ops[i])[0];
        if (v == LB_NONE || p->values[v].dtype != cast->dtype ||
            p->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE))
            continue;
        if (lb_program_view_value(other, v, &source, NULL) == LB_OK &&
            (is_part(cast, &source) || is_part(&source, cast)))
            return true;
    }
    return false;
}

uint8_t *lb_input_casts_find(const lb_program_view *side, const lb_program_view *other)
{
    const lb_program *p = side->program;
    uint8_t *ops = calloc(p->n_ops + 1, 1);
    for (uint32_t i = 0; ops && i < p->n_ops; i++) {
        lb_tensor cast;
        const uint32_t v = cast_of_input(p, i);
        if (v != LB_NONE && lb_program_view_value(side, v, &cast, NULL) == LB_OK) ops[i] = begins_with(other, &cast);
    }
    return ops;
}
