/* Evaluations of one side alone: see additional_passes.h. */
#include "joined/additional_passes.h"

#include "pair/forwards.h"

#include <stdlib.h>
#include <string.h>

typedef struct needs {
    const lb_program *program;
    uint8_t *values; /* read by an op that stays */
} needs;

static void note(void *context, uint32_t value)
{
    needs *n = context;
    if (value != LB_NONE) n->values[value] = 1;
}

static bool is_of_source(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (lb_op_is_source(program, &program->ops[i]) &&
            program->values[lb_op_results(program, &program->ops[i])[0]].storage == storage)
            return true;
    return false;
}

/* Does it give what an op reads that stays, or write what the step begins with? */
static bool is_needed(const needs *n, const lb_op *op)
{
    bool needed = false;
    for (uint32_t k = 0; k < lb_op_outcomes(op) && !needed; k++) {
        const uint32_t v = lb_op_outcome(n->program, op, k);
        needed =
            v != LB_NONE && (n->values[v] || (op->written && is_of_source(n->program, n->program->values[v].storage)));
    }
    return needed;
}

/* Takes back what others need; is anything left out? False when out of memory, too (`*failed`). */
static bool keep_needed(const lb_program *program, uint8_t *left_out, bool *failed)
{
    needs n = {program, calloc((size_t)program->n_values + 1, 1)};
    bool any = false;
    *failed |= !n.values;
    for (uint32_t i = program->n_ops; i-- > 0 && n.values;) {
        const lb_op *op = &program->ops[i];
        if (left_out[i] && (lb_op_is_source(program, op) || is_needed(&n, op))) left_out[i] = 0;
        any |= left_out[i];
        if (!left_out[i]) lb_op_each_input(program, op, note, &n);
    }
    free(n.values);
    return any;
}

static bool learns(const lb_side_forwards *side)
{
    for (uint32_t i = 0; i < side->n; i++)
        if (side->list[i].learns) return true;
    return false;
}

static lb_status leave_out(const lb_program *program, const lb_forwards *passes, int side, uint8_t **out, lb_err *err)
{
    const lb_side_forwards *own = &passes->sides[side];
    bool failed = false;
    uint8_t *left_out = calloc((size_t)program->n_ops + 1, 1);
    if (!left_out) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the passes of a step");
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t pass = own->of_op[i];
        left_out[i] = pass != LB_NONE && !own->list[pass].learns && own->list[pass].like == LB_NONE;
    }
    if (keep_needed(program, left_out, &failed))
        *out = left_out;
    else
        free(left_out);
    return failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for the passes of a step") : LB_OK;
}

lb_status lb_additional_passes_find(const lb_program_view *a, const lb_program_view *b, lb_additional_passes *out,
                                    lb_err *err)
{
    const lb_program_view *views[] = {a, b};
    lb_forwards passes;
    *out = (lb_additional_passes){0};
    lb_status status = lb_forwards_find(a, b, &passes, err);
    if (status == LB_OK && passes.used && learns(&passes.sides[0]) && learns(&passes.sides[1])) {
        out->n_sentences = lb_forwards_tell(&passes, a->program, b->program, 0, out->sentences);
        for (int k = 0; k < 2 && status == LB_OK; k++)
            status = leave_out(views[k]->program, &passes, k, &out->left_out[k], err);
    }
    lb_forwards_release(&passes);
    return status;
}

void lb_additional_passes_release(lb_additional_passes *passes)
{
    free(passes->left_out[0]), free(passes->left_out[1]);
    passes->left_out[0] = passes->left_out[1] = NULL;
}
