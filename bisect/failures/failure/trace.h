/* A trace of one replay: for every op whether its results are finite and how large they are; and who broke what.
 *
 * "Broke" is an op whose inputs are finite and whose result is not. -inf alone from an op that fills or masks is a mask
 * and not broken; what it flows into is judged by NaN and +inf.
 */
#ifndef LB_BISECT_TRACE_H
#define LB_BISECT_TRACE_H

#include <lastbit/bisect.h>

enum lb_trace_bits {
    LB_TRACE_RAN = 1,
    LB_TRACE_BAD = 2,    /* NaN, +inf, or a -inf that is no mask */
    LB_TRACE_MASKED = 4, /* has -inf */
    LB_TRACE_ZERO = 8    /* every element 0 */
};

/* Of all float results of an op together. */
typedef struct lb_trace_sum {
    int64_t elements, nan, inf, masked, zero; /* inf: of both signs; masked: -inf */
    double least, largest;                    /* of the finite ones: smallest, largest magnitude */
} lb_trace_sum;

typedef struct lb_trace_row {
    const lb_program *program;
    uint8_t *bits;      /* per op */
    lb_trace_sum *sums; /* per op */
    uint8_t *optimizer; /* per op: an optimizer's (optimizer_ops.h) */
    struct lb_slice_flow *flow;
} lb_trace_row;

typedef struct lb_trace {
    lb_trace_row *rows;
    uint32_t n_rows;
} lb_trace;

/* Room for every program of the capture from first_step to last_step. */
lb_status lb_trace_new(lb_capture *capture, int64_t first_step, int64_t last_step, lb_trace **trace, lb_err *err);
void lb_trace_free(lb_trace *trace);
/* Forgets what it saw. */
void lb_trace_clear(lb_trace *trace);
void lb_trace_op(lb_trace *trace, const lb_event *event);
const lb_trace_row *lb_trace_find(const lb_trace *trace, int32_t rank, int64_t step);

/* Adds `more` to `sum`; what that op gave, in the replay that was traced; or all floats that it read. */
void lb_trace_add(lb_trace_sum *sum, const lb_statistics *more);
void lb_trace_add_op(lb_trace_sum *sum, const lb_trace_row *row, uint32_t op);
void lb_trace_add_inputs(lb_trace_sum *sum, const lb_trace_row *row, uint32_t op);

/* How large its results are: their largest magnitude, INFINITY where they overflowed. NAN where they have no size: the
 * op did not run, gave NaN, or hands on what was not finite before it. Every comparison with NAN is false: ask for
 * growth, never for its absence. */
double lb_trace_size(const lb_trace_row *row, uint32_t op);

bool lb_trace_bad(const lb_trace_row *row, uint32_t op);
/* Bad, or with a -inf that may be a mask. */
bool lb_trace_nonfinite(const lb_trace_row *row, uint32_t op);
/* The op broke its result: it is bad and nothing that it read is. */
bool lb_trace_broke(const lb_trace_row *row, uint32_t op);

#endif
