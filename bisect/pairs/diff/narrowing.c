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
static lb_dtype cast_to(const lb_program *p, const lb_op *op)
{
    input in = {p, LB_NO_DTYPE};
    const uint32_t v = op->results ? lb_op_results(p, op)[0] : LB_NONE;
    if (v == LB_NONE || !lb_op_is_cast(p, op)) return LB_NO_DTYPE;
    lb_op_each_input(p, op, note_input, &in);
    const lb_dtype to = p->values[v].dtype;
    if (!lb_dtype_is_float(to) || !lb_dtype_is_float(in.dtype)) return LB_NO_DTYPE;
    return lb_dtype_precision(to) < lb_dtype_precision(in.dtype) ? to : LB_NO_DTYPE;
}

/* The narrowest type that ops without a partner cast to in that layer and phase. */
static lb_dtype narrowest(const lb_program *p, const uint32_t *partner, const uint32_t *join, const char *layer,
                          uint8_t phase)
{
    lb_dtype found = LB_NO_DTYPE;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->phase != phase || partner[i] != LB_NONE || join[i] != LB_NONE) continue;
        const lb_dtype to = strcmp(lb_op_layer(p, op), layer) ? LB_NO_DTYPE : cast_to(p, op);
        if (to != LB_NO_DTYPE && (found == LB_NO_DTYPE || lb_dtype_precision(to) < lb_dtype_precision(found)))
            found = to;
    }
    return found;
}

void lb_narrowing_text(const lb_diff_walk *w, const char *layer, uint8_t phase, char *text, size_t size)
{
    const lb_alignment *al = &w->alignment;
    const lb_dtype a = narrowest(w->pa, al->b_of_a, al->join_of_a, layer, phase),
                   b = narrowest(w->pb, al->a_of_b, al->join_of_b, layer, phase);
    const lb_dtype first = w->swapped ? b : a, second = w->swapped ? a : b;
    *text = '\0';
    if (first == second) return;
    if (first == LB_NO_DTYPE || second == LB_NO_DTYPE)
        snprintf(text, size, ": the %s side rounds to %s on the way", first == LB_NO_DTYPE ? "second" : "first",
                 lb_dtype_name(first == LB_NO_DTYPE ? second : first));
    else
        snprintf(text, size, ": the first side rounds to %s on the way, the second to %s", lb_dtype_name(first),
                 lb_dtype_name(second));
}

static lb_dtype type_of(const lb_program *p, uint32_t op)
{
    const uint32_t v = p->ops[op].results ? lb_op_results(p, &p->ops[op])[0] : LB_NONE;
    return v != LB_NONE && lb_dtype_is_float(p->values[v].dtype) ? p->values[v].dtype : LB_NO_DTYPE;
}

void lb_narrowing_pair(const lb_diff_walk *w, uint32_t op_a, uint32_t op_b, char *text, size_t size)
{
    const lb_dtype a = type_of(w->pa, op_a), b = type_of(w->pb, op_b);
    *text = '\0';
    if (a == b || a == LB_NO_DTYPE || b == LB_NO_DTYPE) return;
    snprintf(text, size, ": %s on the first side, %s on the second", lb_dtype_name(w->swapped ? b : a),
             lb_dtype_name(w->swapped ? a : b));
}
