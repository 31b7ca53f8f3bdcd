/* Numbers of calls: each has to meet those of the same number at its communicator's other members. With the books locked. */
#ifndef LB_CAPTURE_CALL_COUNT_H
#define LB_CAPTURE_CALL_COUNT_H

#include "nccl_call.h"

/* Its number among those that it has to meet, and the step that it is in. */
void lb_call_count(lb_communicator *comm, const lb_nccl_call_given *given, uint64_t *sequence, int64_t *step);
/* NCCL did not take it. */
void lb_call_uncount(const lb_nccl_call *call);

#endif
