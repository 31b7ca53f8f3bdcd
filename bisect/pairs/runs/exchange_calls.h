/* The collectives that all ranks of one side call in one step, and which calls meet: an exchange. Of many ranks no
 * program is kept for it, only the calls, which go through a part's record. */
#ifndef LB_BISECT_EXCHANGE_CALLS_H
#define LB_BISECT_EXCHANGE_CALLS_H

#include "exchanges/collective_results.h"
#include "parts/parts_each.h"

/* An op of a collective, and its exchange. */
typedef struct lb_exchange_call {
    int32_t rank;
    uint32_t op, exchange;
} lb_exchange_call;

typedef struct lb_exchange_calls {
    lb_collective_extract *ranks;
    uint32_t n_ranks;
    bool met;
    lb_collective_meetings all;
    lb_exchange_call *ops; /* by rank and op, so that a step is looked through once */
    uint32_t n_ops;
} lb_exchange_calls;

/* Room for so many ranks, whose calls are read into `ranks`; then they meet. */
lb_status lb_exchange_calls_open(lb_exchange_calls *calls, uint32_t n_ranks, lb_err *err);
lb_status lb_exchange_calls_meet(lb_exchange_calls *calls, lb_err *err);
void lb_exchange_calls_release(lb_exchange_calls *calls);
/* The exchange in which this rank runs this op; LB_NONE. */
uint32_t lb_exchange_calls_find(const lb_exchange_calls *calls, int32_t rank, uint32_t op);

/* What a rank called in the step, into a record and out of one. The program is dropped again. */
lb_status lb_exchange_calls_write(lb_capture *capture, int32_t rank, int64_t step, lb_part_record *record, lb_err *err);
lb_status lb_exchange_calls_read(lb_part_record *record, int32_t rank, int64_t step, lb_collective_extract *calls,
                                 lb_err *err);

#endif
