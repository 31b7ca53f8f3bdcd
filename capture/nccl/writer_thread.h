/* The thread that writes calls, what waits for it, and its end: with the process, or in a forked child.
 * All functions are called with the books locked. */
#ifndef LB_CAPTURE_WRITER_THREAD_H
#define LB_CAPTURE_WRITER_THREAD_H

#include "nccl_call.h"

/* False: there is none, and will be none. */
bool lb_writer_start(void);
/* Room for a call's bytes; false where the writer waits for a stream, or for a group that is open, and so must not be
 * waited for. */
bool lb_writer_reserve(lb_nccl_call *call);
void lb_writer_unreserve(size_t bytes);
/* A call that is ready to be written once its copies are; it is the writer's from then on. */
void lb_writer_put(lb_nccl_call *call);
/* After one or more of them. */
void lb_writer_wake(void);

#endif
