/* Bytes of a tensor as a stream leaves them. Those that runs of a graph leave: graph_copy.h.
 *
 * A copy is put on the stream by the thread that makes the call, and never waited for there: the host may have to do
 * something else before the stream can go on. With CUDA (found in the process, nothing is linked) it goes to pinned
 * memory, followed by an event; without it memory is the host's, a call has done its work when it returns, and the copy
 * is made at once. */
#ifndef LB_CAPTURE_STREAM_COPY_H
#define LB_CAPTURE_STREAM_COPY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct lb_stream_copy lb_stream_copy;

/* Takes what copies need, where a communicator was made: with the device's context current, and nothing that spins. */
void lb_stream_copies_prepare(void);

/* NULL when these bytes cannot be had: a stream that is being captured into a graph, memory that CUDA does not know, no
 * room in pinned_memory.h, no memory. */
lb_stream_copy *lb_stream_copy_new(const void *from, size_t bytes, void *stream);
/* Of bytes that the host has; it takes `data` of malloc. NULL: nothing was taken. */
lb_stream_copy *lb_stream_copy_of(void *data, size_t bytes);
/* True when the stream has passed it, or never will. Any thread. */
bool lb_stream_copy_ready(lb_stream_copy *copy);
/* NULL where they have not arrived, when the device failed or a kernel on its stream never ends. */
const void *lb_stream_copy_bytes(const lb_stream_copy *copy);
void lb_stream_copy_free(lb_stream_copy *copy);

/* The stream is being captured into a graph: what is called now runs later, and often. */
bool lb_stream_is_captured(void *stream);
/* The device that is current in this thread; -1 without CUDA. From the first call after CUDA was loaded, copies are
 * CUDA's. */
int lb_stream_device(void);

#endif
