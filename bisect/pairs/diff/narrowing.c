/* Looking for casts: see narrowing.h. */
#include "diff/narrowing.h"

#include <stdio.h>
#include <string.h>

typedef struct input {
    const lb_program *program;
    lb_dtype dtype; /* of the first tensor */
} input;

static void note_input(void *context, uint32_t value)
{
    input *in = context;
    if (value != LB_NONE && in->dtype == LB_NO_DTYPE) in->dtype = in->program->values[value].dtype;
}

/* What the op casts reals to; LB_NO_DTYPE when it doesn't make them narrower. */
static lb_dtype cast_to(const lb_program *program, const lb_op *op)
{
    input in = {program, LB_NO_DTYPE};
    const uint32_t v = op->results ? lb_op_results(program, op)[0] : LB_NONE;
    if (v == LB_NONE || !lb_op_is_cast(program, op)) return LB_NO_DTYPE;
    lb_op_each_input(program, op, note_input, &in);
    const lb_dtype to = program->values[v].dtype;
    if (!lb_dtype_is_float(to) || !lb_dtype_is_float(in.dtype)) return LB_NO_DTYPE;
    return lb_dtype_precision(to) < lb_dtype_precision(in.dtype) ? to : LB_NO_DTYPE;
}

/* The narrowest type that ops without a partner cast to in that layer and phase. */
static lb_dtype narrowest(const lb_program *program, const uint32_t *partner, const uint32_t *join, const char *layer,
                          uint8_t phase)
{
    lb_dtype found = LB_NO_DTYPE;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != phase || partner[i] != LB_NONE || join[i] != LB_NONE) continue;
        const lb_dtype to = strcmp(lb_op_layer(program, op), layer) ? LB_NO_DTYPE : cast_to(program, op);
        if (to != LB_NO_DTYPE && (found == LB_NO_DTYPE || lb_dtype_precision(to) < lb_dtype_precision(found)))
            found = to;
    }
    return found;
}

void lb_narrowing_text(const lb_diff_walk *walk, const char *layer, uint8_t phase, char *text, size_t size)
{
    const lb_alignment *al = &walk->alignment;
    const lb_dtype a = narrowest(walk->pa, al->b_of_a, al->join_of_a, layer, phase),
                   b = narrowest(walk->pb, al->a_of_b, al->join_of_b, layer, phase);
    const lb_dtype first = walk->swapped ? b : a, second = walk->swapped ? a : b;
    *text = '\0';
    if (first == second) return;
    if (first == LB_NO_DTYPE || second == LB_NO_DTYPE)
        snprintf(text, size, ": the %s side rounds to %s on the way", first == LB_NO_DTYPE ? "second" : "first",
                 lb_dtype_name(first == LB_NO_DTYPE ? second : first));
    else
        snprintf(text, size, ": the first side rounds to %s on the way, the second to %s", lb_dtype_name(first),
                 lb_dtype_name(second));
}

static lb_dtype type_of(const lb_program *program, uint32_t op)
{
    const uint32_t v = program->ops[op].results ? lb_op_results(program, &program->ops[op])[0] : LB_NONE;
    return v != LB_NONE && lb_dtype_is_float(program->values[v].dtype) ? program->values[v].dtype : LB_NO_DTYPE;
}

void lb_narrowing_pair(const lb_diff_walk *walk, uint32_t op_a, uint32_t op_b, char *text, size_t size)
{
    const lb_dtype a = type_of(walk->pa, op_a), b = type_of(walk->pb, op_b);
    *text = '\0';
    if (a == b || a == LB_NO_DTYPE || b == LB_NO_DTYPE) return;
    snprintf(text, size, ": %s on the first side, %s on the second", lb_dtype_name(walk->swapped ? b : a),
             lb_dtype_name(walk->swapped ? a : b));
}
