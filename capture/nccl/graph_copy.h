/* Bytes that the runs of a CUDA graph leave: two nodes around a call that is captured.
 *
 *     node ─▶ the captured call ─▶ node
 *     │  ticket; what is sent        │  what was received; the run has ended
 *     ▼                              ▼
 *     pinned memory of the call:  ended │ tickets │ slot 0: sent, received │ slot 1 │ …
 *
 * NCCL is not told when a graph is launched, and a copy in a graph always goes to the same place. So the nodes are
 * kernels of ours, which choose a slot by the number of runs that have ended, and neither they nor the host wait:
 * what is not fetched in time is overwritten by a later run, and known to be lost. Tickets number the nodes of all
 * graphs of a device in the order in which they ran. A graph and all that was made of it hold the memory by a user
 * object of CUDA, and give it back when the last of them is gone.
 *
 * One executable graph runs one launch after the other; two that were made of one captured graph must not run at the
 * same time. */
#ifndef LB_CAPTURE_GRAPH_COPY_H
#define LB_CAPTURE_GRAPH_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lb_stream_copy lb_stream_copy;
typedef struct lb_graph_device lb_graph_device;
typedef struct lb_graph_copy lb_graph_copy;

/* Gets the current context's device ready, outside of any capture; later calls of a context do nothing. */
void lb_graph_prepare(void);

/* A call that is about to be captured: its first node. `send_bytes`, `recv_bytes`: 0: not wanted. NULL where it cannot
 * be seen: no context that was prepared, or an old driver. */
lb_graph_copy *lb_graph_copy_begin(const void *send, size_t send_bytes, size_t recv_bytes, void *stream);
/* Its second, after the call; from then on runs are collected for `owner`, which is not NULL. False: it was not to be
 * had, or the capture was another by now: then nothing is collected, and what it has goes with its graph. */
bool lb_graph_copy_end(lb_graph_copy *copy, const void *recv, void *owner);
/* Its graph's number in this process, from 1 on; whether bytes are copied. Until it is collected as gone. */
uint64_t lb_graph_copy_graph(const lb_graph_copy *copy);
bool lb_graph_copy_has_bytes(const lb_graph_copy *copy);
const lb_graph_device *lb_graph_copy_device(const lb_graph_copy *copy);

/* Whether any call was captured. */
bool lb_graph_copies_any(void);
/* How many tickets were drawn when the stream comes here, a number of 64 bits, and of which device. NULL: none to be
 * had. */
lb_stream_copy *lb_graph_position(void *stream, const lb_graph_device **device);

typedef struct lb_nccl_graph_run {
    void *owner;
    uint64_t number, ticket; /* of its call's runs; 0 where even that was overwritten */
    bool lost;               /* overwritten before it was read */
    void *sent, *received;   /* malloc'ed, the taker's; NULL: none, or lost */
} lb_nccl_graph_run;
/* One thread. Gives each run that has ended since it was last called; `bytes`: with bytes. `gone`: no further run of
 * this owner comes. It calls `take` with a lock held that lb_graph_copy_* take. */
void lb_graph_copies_collect(bool bytes, void (*take)(const lb_nccl_graph_run *run), void (*gone)(void *owner));

void lb_graph_copies_lock(void); /* around a fork */
void lb_graph_copies_unlock(void);
void lb_graph_copies_drop(void); /* in the child */

#endif
