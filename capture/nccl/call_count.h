/* Numbers of calls: each has to meet those of the same number at its communicator's other members. With the books
 * locked. */
#ifndef LB_CAPTURE_CALL_COUNT_H
#define LB_CAPTURE_CALL_COUNT_H

#include "nccl_call.h"

/* Its number among those that it has to meet, and the step that it is in. */
lb_counted lb_call_count(lb_communicator *comm, const lb_nccl_call_given *given);
/* Of one that does not count by itself: what has been counted until now. */
lb_counted lb_call_uncounted(const lb_communicator *comm, const lb_nccl_call_given *given);
/* NCCL did not take it: the next one has its number. No other call of its communicator was counted since that NCCL
 * takes. */
void lb_call_uncount(lb_communicator *comm, const lb_nccl_call_given *given, lb_counted *counted);

#endif
