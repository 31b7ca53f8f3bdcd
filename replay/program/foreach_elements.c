/* Ops over lists of tensors: see foreach_elements.h. */
#include "program/foreach_elements.h"

#include <string.h>

/* A list of tensors: its length, 0 for any other arg. */
static uint32_t tensors_in(const lb_program *program, const lb_arg *arg)
{
    if (arg->tag != LB_ARG_LIST) return 0;
    for (uint32_t i = 0; i < arg->count; i++)
        if (program->args[arg->u.first + i].tag == LB_ARG_VALUE) return arg->count;
    return 0;
}

uint32_t lb_foreach_count(const lb_program *program, const lb_op *op)
{
    uint32_t most = 1;
    if (!lb_op_is_over_lists(program, op) && !lb_op_is_unscaling(program, op)) return 1;
    for (uint32_t a = 0; a < op->args; a++) {
        const uint32_t n = tensors_in(program, &lb_op_args(program, op)[a]);
        if (n > most) most = n;
    }
    return most;
}

static bool same_place(const lb_program *program, uint32_t a, uint32_t b)
{
    const lb_value *x = &program->values[a], *y = &program->values[b];
    return a == b || (x->storage == y->storage && x->layout.offset == y->layout.offset);
}

/* Has one of the lists this value, or another version of it, at that place? */
static bool listed_at(const lb_program *program, const lb_op *op, uint32_t value, uint32_t element, uint32_t n)
{
    for (uint32_t a = 0; a < op->args; a++) {
        const lb_arg *arg = &lb_op_args(program, op)[a];
        if (tensors_in(program, arg) != n || program->args[arg->u.first + element].tag != LB_ARG_VALUE) continue;
        if (same_place(program, program->args[arg->u.first + element].u.value, value)) return true;
    }
    return false;
}

uint32_t lb_foreach_find(const lb_program *program, const lb_op *op, uint32_t n, uint32_t value, uint32_t guess)
{
    if (n == 1) return 0;
    if (op->results == n && guess < n && same_place(program, lb_op_results(program, op)[guess], value)) return guess;
    for (uint32_t r = 0; op->results == n && r < n; r++)
        if (lb_op_results(program, op)[r] != LB_NONE && same_place(program, lb_op_results(program, op)[r], value))
            return r;
    if (listed_at(program, op, value, guess % n, n)) return guess % n;
    for (uint32_t e = 0; e < n; e++)
        if (listed_at(program, op, value, e, n)) return e;
    return LB_ELEMENT_ALL;
}

void lb_foreach_each_input(const lb_program *program, const lb_op *op, uint32_t n, uint32_t element,
                           void (*visit)(void *context, uint32_t value), void *context)
{
    if (n == 1) {
        lb_op_each_input(program, op, visit, context);
        return;
    }
    for (uint32_t a = 0; a < op->args; a++) {
        const lb_arg *arg = &lb_op_args(program, op)[a];
        const bool own = tensors_in(program, arg) == n;
        const uint32_t first = own ? element : 0, end = own ? element + 1 : tensors_in(program, arg);
        if (arg->tag == LB_ARG_VALUE) visit(context, arg->u.value);
        for (uint32_t k = first; k < end; k++)
            if (program->args[arg->u.first + k].tag == LB_ARG_VALUE)
                visit(context, program->args[arg->u.first + k].u.value);
    }
}
