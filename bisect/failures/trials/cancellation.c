/* Differences of which rounding alone is left.
 *
 *      mean of x * x    16000004 │ f32 holds every fourth number there or so
 *      mean of x, ^2    16000008 │
 *      difference             -4   a variance of 1, and its root is NaN
 *
 * Every op in it is right to its last digit; what the difference leaves are digits that its operands never had. No
 * narrower type gives them: where bf16 happens to make both operands equal, 0 is left, and the failure does not show.
 */
#include "trials/cancellation.h"

#include "judgement/bound.h"
#include "program/slice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEAR = 24, ROUNDINGS = 16 }; /* ops that are looked at; steps of the type that many roundings may add up to */

static bool is_difference(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {"aten::sub.", "aten::sub_.", "aten::rsub.",
                                        "aten::add.", "aten::add_.", "aten::addcmul"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(lb_op_name(program, op), names[i], strlen(names[i]))) return true;
    return false;
}

/* The element that counts: a negative one where a root is drawn, a 0 where something is divided. */
static double residual(const lb_trace_sum *given)
{
    if (given->least < 0) return fmin(-given->least, given->largest);
    return given->zero ? 0 : given->largest;
}

static bool cancels(const lb_trace_row *row, uint32_t op, lb_cancellation *found)
{
    const lb_program *program = row->program;
    lb_trace_sum given = {0}, read = {0};
    if (!is_difference(program, &program->ops[op]) || !(row->bits[op] & LB_TRACE_RAN)) return false;
    const uint32_t value = program->ops[op].results ? lb_op_results(program, &program->ops[op])[0]
                                                    : lb_op_written(program, &program->ops[op])[0];
    if (value == LB_NONE || !lb_dtype_is_float(program->values[value].dtype)) return false;
    lb_trace_add_op(&given, row, op);
    lb_trace_add_inputs(&read, row, op);
    if (given.nan || given.inf || read.nan || read.inf || !(read.largest > 0)) return false;
    const double step = lb_bound_ulp(program->values[value].dtype, read.largest);
    *found = (lb_cancellation){op, program->values[value].dtype, read.largest, step, given.least, given.largest};
    return residual(&given) <= ROUNDINGS * step;
}

bool lb_cancellation_find(const lb_trace_row *row, uint32_t broken, lb_cancellation *found)
{
    const lb_slice_flow *flow = row->flow;
    uint32_t near[NEAR] = {broken}, n = 1;
    for (uint32_t k = 0; k < n; k++) {
        if (k && cancels(row, near[k], found)) return true;
        for (uint32_t e = flow->first_def[near[k]]; e < flow->first_def[near[k] + 1]; e++) {
            bool known = n == NEAR;
            for (uint32_t i = 0; i < n && !known; i++) known = near[i] == flow->defs[e];
            if (!known) near[n++] = flow->defs[e];
        }
    }
    return false;
}
