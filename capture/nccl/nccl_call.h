/* One call of NCCL: what the program gave, what it moves, and what is known of it until it is written. */
#ifndef LB_CAPTURE_NCCL_CALL_H
#define LB_CAPTURE_NCCL_CALL_H

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

/* What a call is among others; see call_count.h. */
typedef struct lb_counted {
    bool is_counted, ticks; /* by itself, and by the clock of its place */
    uint64_t sequence;
    int64_t step;
} lb_counted;

typedef struct lb_nccl_call {
    struct lb_nccl_call *next; /* in a group or the queue */
    /* among those that NCCL may still say something about */
    struct lb_nccl_call *before, *after;
    lb_nccl_call_given given;
    lb_communicator *comm;
    /* as the program made it; its runs, and what a writer finds between, have different numbers below */
    lb_counted counted;
    size_t send_bytes, recv_bytes; /* 0 where this rank's buffer means nothing */
    int64_t step;
    uint64_t sequence;
    uint64_t group; /* number of the group, 0: none */
    bool failed, captured, skipped, listed, joined;
    bool unwanted;              /* not in the window: only its number matters */
    bool dropped;               /* NCCL was only asked what it would do */
    lb_nccl_dtype scalar_dtype; /* -1: no scalar */
    unsigned char scalar[8];
    const void *scalar_on_device;
    lb_stream_copy *scalar_copy, *sent, *received;
    uint64_t clock; /* calls of its place's clock until now */
    bool marked;    /* the program says where steps begin */
    /* Of one in a graph (graph_runs.h), or of each of its runs: */
    lb_graph_copy *graph_copy;
    uint64_t graph; /* its number in this process */
    /* `ticks`: one of the clock's; `overwritten`: the run's bytes came too late; `roomless`: it has no room for any */
    bool ticks, overwritten, roomless;
    uint32_t runs_waiting;
    /* Of one that is not, once others are: */
    lb_stream_copy *position;
    const lb_graph_device *graph_device;
    uint64_t known_pass; /* in which its stream had come to it */
    char algorithm[48];  /* "RING/SIMPLE, 4 channels", as the profiler interface says; "" */
    char order[24];      /* "ring:4": what lastbit's --order calls it; "" */
} lb_nccl_call;

/* A message has one peer; all others are collectives. */
bool lb_nccl_call_is_message(lb_nccl_call_kind kind);
/* Of one element; 0: no such type. */
size_t lb_nccl_call_dtype_bytes(lb_nccl_dtype dtype);

/* With the books locked, of a call whose communicator is known: what it sends and receives here (false: more than
 * memory has), and the scalar of its PreMulSum. */
bool lb_nccl_call_measure(lb_nccl_call *call);
void lb_nccl_call_take_scalar(lb_nccl_call *call);
/* Bytes of the copies that it holds. */
size_t lb_nccl_call_held_bytes(const lb_nccl_call *call);

/* Not with the books locked: CUDA may wait for the device, and that for a call of another thread. */
void lb_nccl_call_free_copies(lb_nccl_call *call);
/* With the books locked; its copies are free. */
void lb_nccl_call_free(lb_nccl_call *call);

#endif
