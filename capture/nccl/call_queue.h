/* Calls on their way from the thread that makes them to the recorder.
 *
 *     lb_nccl_call_begin ─▶ the real call ─▶ lb_nccl_call_end ─▶ (the outermost GroupEnd) ─▶ queue ─▶ writer thread: call_writer.h
 *
 * The caller's thread copies what is sent before the call (in a stream's order) and what was received after it, and
 * puts the call into a queue; the writer takes calls in order as their copies arrive. So the program waits for no
 * device and no disk. The queue has limits: where the writer is behind and goes on, the caller waits for it; where the
 * writer itself waits for a stream, bytes are skipped and counted. A call that is captured into a CUDA graph does not
 * go this way: each of its runs does. */
#ifndef LB_CAPTURE_CALL_QUEUE_H
#define LB_CAPTURE_CALL_QUEUE_H

#include "nccl_call.h"

/* NULL: nothing is to be recorded of it. The books are not locked. */
lb_nccl_call *lb_nccl_call_begin(const lb_nccl_call_given *given);
void lb_nccl_call_end(lb_nccl_call *call, lb_nccl_result result);
/* This thread is between the two. */
bool lb_nccl_call_is_open(void);
void lb_nccl_call_group_begin(void);
bool lb_nccl_call_group_is_open(void);
/* After NCCL's own; `simulated`: nothing was launched. */
void lb_nccl_call_group_end(lb_nccl_result result, bool simulated);
/* A non-blocking communicator says how it stands. */
void lb_nccl_call_progress(lb_nccl_comm handle, lb_nccl_result state);
/* In PyTorch's process: the order of the last call that this thread made, "" when not known; it is forgotten then. */
const char *lb_nccl_call_last_order(void);

/* The program says that step `step` begins. */
void lb_nccl_call_step(int64_t step);
void lb_nccl_calls_drop(void); /* in a forked child */

#endif
