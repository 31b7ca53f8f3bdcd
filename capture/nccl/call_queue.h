/* Calls on their way from the thread that makes them to the recorder.
 *
 *     lb_nccl_call_begin ─▶ the real call ─▶ lb_nccl_call_end ─▶ (the outermost GroupEnd) ─▶ queue ─▶ writer thread: call_writer.h
 *
 * The caller's thread copies what is sent before the call (in a stream's order) and what was received after it, and puts the
 * call into a queue; the writer takes calls in order as their copies arrive, so that nobody waits for a device or a disk. The
 * queue has limits: where the writer is behind and goes on, the caller waits for it; where the writer itself waits for a
 * stream, bytes are skipped and counted. A call that is captured into a CUDA graph does not go this way: each of its runs does. */
#ifndef LB_CAPTURE_CALL_QUEUE_H
#define LB_CAPTURE_CALL_QUEUE_H

#include "communicator.h"
#include "graph_copy.h"
#include "stream_copy.h"

typedef enum lb_nccl_call_kind {
    LB_CALL_ALL_REDUCE,
    LB_CALL_REDUCE,
    LB_CALL_BROADCAST,
    LB_CALL_ALL_GATHER,
    LB_CALL_REDUCE_SCATTER,
    LB_CALL_ALL_TO_ALL,
    LB_CALL_GATHER,
    LB_CALL_SCATTER,
    LB_CALL_SEND,
    LB_CALL_RECEIVE,
    LB_CALL_KINDS
} lb_nccl_call_kind;

/* What a program gives NCCL. */
typedef struct lb_nccl_call_given {
    lb_nccl_call_kind kind;
    const void *send; /* NULL: this call has none */
    void *recv;
    size_t count;
    lb_nccl_dtype dtype;
    lb_nccl_op op; /* -1: reduces nothing */
    int root;      /* or peer; -1: has none */
    lb_nccl_comm comm;
    void *stream;
} lb_nccl_call_given;

typedef struct lb_nccl_call {
    struct lb_nccl_call *next, *before,
        *after; /* in a group or the queue; among those that NCCL may still say something about */
    lb_nccl_call_given given;
    lb_communicator *comm;
    size_t send_bytes, recv_bytes; /* 0 where this rank's buffer means nothing */
    int64_t step;
    uint64_t sequence;
    uint64_t group; /* number of the group, 0: none */
    bool failed, captured, skipped, listed, joined;
    lb_nccl_dtype scalar_dtype; /* -1: no scalar */
    unsigned char scalar[8];
    const void *scalar_on_device;
    lb_stream_copy *scalar_copy, *sent, *received;
    uint64_t clock; /* calls of its place's clock until now */
    bool marked;    /* the program says where steps begin */
    /* Of one in a graph (graph_runs.h), or of each of its runs: */
    lb_graph_copy *graph_copy;
    uint64_t graph; /* its number in this process */
    bool ticks, overwritten,
        roomless; /* one of the clock's; the run's bytes came too late, or the call has no room for any */
    uint32_t runs_waiting;
    /* Of one that is not, once others are: */
    lb_stream_copy *position;
    const lb_graph_device *graph_device;
    uint64_t known_pass; /* in which its stream had come to it */
    char algorithm[48];  /* "RING/SIMPLE, 4 channels", as the profiler interface says; "" */
    char order[24];      /* "ring:4": what lastbit's --order calls it; "" */
} lb_nccl_call;

/* NULL: nothing is to be recorded of it. The books are not locked. */
lb_nccl_call *lb_nccl_call_begin(const lb_nccl_call_given *given);
void lb_nccl_call_end(lb_nccl_call *call, lb_nccl_result result);
void lb_group_begin(void);
bool lb_group_is_open(void);
/* After NCCL's own; `simulated`: nothing was launched. */
void lb_group_end(lb_nccl_result result, bool simulated);
/* A non-blocking communicator says how it stands. */
void lb_nccl_call_progress(lb_nccl_comm comm, lb_nccl_result state);
/* NCCL's profiler interface: the next call that fits was carried out so. */
typedef struct lb_nccl_call_carried {
    int rank, ranks;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    const char *algorithm, *order;
} lb_nccl_call_carried;
void lb_nccl_call_carried_out(const lb_nccl_call_carried *carried);
/* In PyTorch's process: the order of the last call that this thread made, "" when not known; it is forgotten then. */
const char *lb_nccl_call_last_order(void);

/* The program says that step `step` begins. */
void lb_nccl_call_step(int64_t step);
bool lb_nccl_call_is_message(lb_nccl_call_kind kind);
/* Of one element; 0: no such type. */
size_t lb_nccl_call_dtype_bytes(lb_nccl_dtype dtype);

#endif
