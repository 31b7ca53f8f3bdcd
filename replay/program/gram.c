/* Products of a matrix with itself: see gram.h. */
#include "program/gram.h"

#include "kernel/ops.h"

#include <string.h>

const lb_factors *lb_gram_factors(const lb_program *program, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_known_as(lb_op_name(program, op)), &form);
    return lb_operand_is_product(row) && op->args > row->factors.b ? &row->factors : NULL;
}

/* How a factor lies in the memory that it came from: strides of the summed dimension, of the other one, and of the
 * batch. */
typedef struct lie {
    int64_t storage, summed, other, batch;
} lie;

/* The stride that the same dimension has in the tensor that `copy` was made of; false when that cannot be said. */
static bool stride_before(const lb_value *from, const lb_value *copy, int64_t stride, int64_t *before)
{
    if (from->layout.ndim != copy->layout.ndim || !lb_layout_same_shape(&from->layout, &copy->layout)) return false;
    for (int d = 0; d < copy->layout.ndim; d++)
        if (copy->layout.shape[d] > 1 && copy->layout.stride[d] == stride) {
            *before = from->layout.stride[d];
            return true;
        }
    return false;
}

/* Follows a factor back through copies and casts, which move elements and change none (but for their rounding). */
static lie lie_of(const lb_slice_flow *flow, uint32_t op, uint32_t value, uint8_t summed)
{
    const lb_program *program = flow->program;
    const lb_value *v = &program->values[value];
    const int n = v->layout.ndim;
    lie found = {.storage = -1};
    if (n < 2) return found;
    found = (lie){v->storage, v->layout.stride[n - summed], v->layout.stride[n - (summed == 1 ? 2 : 1)],
                  n > 2 && v->layout.shape[n - 3] > 1 ? v->layout.stride[n - 3] : 0};
    for (int hops = 0; hops < 8; hops++) {
        uint32_t def;
        if (lb_slice_flow_defs_of(flow, op, value, &def, 1) != 1) break;
        const lb_op *copy = &program->ops[def];
        const bool copies = lb_op_known_is(program, copy, "clone") || lb_op_known_is(program, copy, "_to_copy") ||
                            lb_op_known_is(program, copy, "contiguous");
        if (!copies || !copy->results || lb_op_args(program, copy)[0].tag != LB_ARG_VALUE) break;
        const uint32_t from = lb_op_args(program, copy)[0].u.value;
        const lb_value *made = &program->values[lb_op_results(program, copy)[0]];
        lie before = {.storage = program->values[from].storage};
        if (!stride_before(&program->values[from], made, found.summed, &before.summed) ||
            !stride_before(&program->values[from], made, found.other, &before.other) ||
            (found.batch && !stride_before(&program->values[from], made, found.batch, &before.batch)))
            break;
        found = before, op = def, value = from;
    }
    return found;
}

/* What is summed over lies alike in both factors, and so do rows. That holds for slices of the summed dimension
 * (tiles), and for blocks of rows with each other. */
bool lb_gram_is_product(const lb_slice_flow *flow, uint32_t op)
{
    const lb_program *program = flow->program;
    const lb_op *record = &program->ops[op];
    const lb_factors *factors = lb_gram_factors(program, record);
    const lb_arg *args = lb_op_args(program, record);
    if (!factors || args[factors->a].tag != LB_ARG_VALUE || args[factors->b].tag != LB_ARG_VALUE) return false;
    const lie lie = lie_of(flow, op, args[factors->a].u.value, factors->sum_a),
              b = lie_of(flow, op, args[factors->b].u.value, factors->sum_b);
    return lie.storage >= 0 && lie.storage == b.storage && lie.summed == b.summed && lie.other == b.other &&
           lie.batch == b.batch && lie.summed != lie.other;
}
