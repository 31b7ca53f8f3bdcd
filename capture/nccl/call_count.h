/* Numbers of calls: each has to meet those of the same number at its communicator's other members. With the books locked. */
#ifndef LB_CAPTURE_CALL_COUNT_H
#define LB_CAPTURE_CALL_COUNT_H

#include "nccl_call.h"

/* Gives it its number among those that it has to meet, and the step that it is in. */
void lb_call_count(lb_nccl_call *call);
/* NCCL did not take it: the next one has its number. No other call of its communicator was counted since that NCCL takes. */
void lb_call_uncount(lb_nccl_call *call);

#endif
