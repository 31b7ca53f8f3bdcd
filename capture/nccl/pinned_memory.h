/* Pinned memory that copies of bytes go to, taken once.
 *
 * The driver waits for all streams of the device when it makes pinned memory or gives it back, and a kernel of NCCL may
 * spin there until this process makes its next call: so neither is done inside a call, nor by the writer. One block is
 * taken when the first communicator is made, when nothing can spin yet, and is divided by first fit. */
#ifndef LB_CAPTURE_PINNED_MEMORY_H
#define LB_CAPTURE_PINNED_MEMORY_H

#include "stream_driver.h"

#include <stddef.h>

#define LB_PINNED_BYTES (288u << 20) /* what may wait for the writer, and room between */

/* The first time: with a context of the device current, where the driver may wait. Any thread. */
void lb_pinned_memory_prepare(const lb_stream_driver *cuda);
/* NULL: there is no room. Where no communicator was seen to be made it is prepared here. */
void *lb_pinned_memory_take(const lb_stream_driver *cuda, size_t bytes);
void lb_pinned_memory_give(void *data);
/* In a child of the process, which has no driver. */
void lb_pinned_memory_drop(void);

#endif
