/* A call of one row on behalf of another: what composite and custom ops are made of. */
#ifndef LB_REPLAY_ROW_CALL_H
#define LB_REPLAY_ROW_CALL_H

#include "kernel/ops.h"

#define LB_ROW_CALL_ARGS 16

/* Results that are not wanted stay empty. */
typedef struct lb_row_call {
    const char *row;
    lb_operand args[LB_ROW_CALL_ARGS];
    uint32_t n_args;
    lb_tensor results[4];
    uint32_t n_results;
} lb_row_call;

/* With the method of `call`. A twin of a row without one is the magnitude of its result. */
lb_status lb_row_call_run(lb_call *call, lb_row_call *piece, bool twin);

static inline lb_operand lb_operand_none(void)
{
    return (lb_operand){.tag = LB_OPERAND_NONE};
}
static inline lb_operand lb_operand_int(int64_t i)
{
    return (lb_operand){.tag = LB_OPERAND_INT, .i = i, .f = (double)i};
}
static inline lb_operand lb_operand_real(double f)
{
    return (lb_operand){.tag = LB_OPERAND_FLOAT, .f = f, .i = (int64_t)f};
}
static inline lb_operand lb_operand_flag(bool b)
{
    return (lb_operand){.tag = LB_OPERAND_BOOL, .i = b, .f = b};
}
static inline lb_operand lb_operand_tensor(const lb_tensor *tensor)
{
    return (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = *tensor};
}
static inline lb_operand lb_operand_numbers(const int64_t *ints, const double *floats, uint32_t count)
{
    return (lb_operand){.tag = LB_OPERAND_NUMBERS, .count = count, .ints = ints, .floats = floats};
}
static inline lb_operand lb_operand_arg(const lb_call *call, uint32_t i)
{
    return i < call->n_args ? call->args[i] : lb_operand_none();
}

#endif
