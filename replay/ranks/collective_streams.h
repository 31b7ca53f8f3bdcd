/* One collective while it is run: its members, and what each brings as one dense stream, under the swaps of its rank.
 * collective_run.c moves and reduces the streams. */
#ifndef LB_REPLAY_COLLECTIVE_STREAMS_H
#define LB_REPLAY_COLLECTIVE_STREAMS_H

#include "machine/machine.h"
#include "orders/collective_sum.h"
#include "ranks/collective_names.h"

typedef struct lb_stream_values {
    uint32_t *values;
    uint32_t n;
} lb_stream_values;

typedef struct lb_stream_member {
    lb_machine *machine;
    const lb_program *program;
    const lb_op *op;
    const lb_choice *choice;
    lb_stream_values inputs, outputs;
    int64_t *starts; /* inputs.n + 1: where each input begins in the stream */
    char *stream;
} lb_stream_member;

typedef struct lb_collective_streams {
    const lb_collective_name *name;
    lb_stream_member *members;
    uint32_t n;
    lb_dtype dtype; /* of the streams */
    size_t size;
    lb_collective_reduction reduction;
    bool premultiplied;
    bool shows; /* nothing is moved: what it gives in f64 is shown, and the recorded outputs are taken */
    lb_collective_order order;
    uint32_t root;
    lb_inputs known;
    lb_sum_verdict sum; /* of a reduction that gave different bits than were recorded */
    lb_err *err;
} lb_collective_streams;

/* The member's inputs and outputs, and where each input begins in its stream. */
lb_status lb_collective_streams_collect(lb_collective_streams *streams, lb_stream_member *member);
void lb_collective_streams_release(lb_collective_streams *streams);

/* The dtype of the streams; a region holds the sums in its own. */
lb_dtype lb_collective_streams_dtype(const lb_collective_streams *streams);
/* Elements of the member's stream. */
int64_t lb_collective_streams_length(const lb_stream_member *member);
lb_status lb_collective_streams_fill(lb_collective_streams *streams, lb_stream_member *member);
/* Bytes that no recorded op wrote (DDP's bucket numbers, filled by C++ code) cannot be exchanged by replay. */
bool lb_collective_streams_is_undefined(const lb_collective_streams *streams, const lb_stream_member *member);
/* The tensor with the dimension along which it is cut or joined in front. */
lb_tensor lb_collective_streams_cut_in_front(const lb_collective_streams *streams, const lb_stream_member *member,
                                             lb_tensor tensor);

/* A swap leaves this member out. */
bool lb_collective_streams_excludes(const lb_stream_member *member);
/* Streams become zero, or the mean of the others, where a swap asks for it. */
lb_status lb_collective_streams_swap(lb_collective_streams *streams);
/* A PreMulSum: the member's stream times its scalar. */
lb_status lb_collective_streams_multiply(lb_collective_streams *streams, lb_stream_member *member);

#endif
