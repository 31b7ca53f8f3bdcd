/* How NCCL carries out calls, as its profiler interface says (profiler_interface.c), and the calls that this may be
 * said of: those that NCCL has not launched yet, and those that graphs run. */
#ifndef LB_CAPTURE_CALL_CARRIED_H
#define LB_CAPTURE_CALL_CARRIED_H

#include "nccl_call.h"

typedef struct lb_nccl_call_carried {
    int rank, ranks; /* of its communicator; ranks of 0: not told */
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    const char *algorithm, *order;
} lb_nccl_call_carried;
/* The next call that fits was carried out so. The books are not locked. */
void lb_nccl_call_carried_out(const lb_nccl_call_carried *carried);

/* With the books locked. */
void lb_call_carried_await(lb_nccl_call *call);
void lb_call_carried_await_runs(lb_nccl_call *call); /* of one in a graph */
void lb_call_carried_leave(lb_nccl_call *call);
void lb_call_carried_drop(void); /* in a forked child */

#endif
