/* One call of MPI: what the program gave, the bytes that it sends and receives, and what is known of it until it is
 * written.
 *
 *     lb_mpi_call_new ─▶ lb_mpi_call_measure ─▶ lb_mpi_call_copy_sent ─▶ … ─▶ lb_mpi_call_copy_received
 *
 * MPI is asked about communicators and datatypes without the lock. */
#ifndef LB_CAPTURE_MPI_CALL_H
#define LB_CAPTURE_MPI_CALL_H

#include "mpi/mpi_communicator.h"

typedef enum lb_mpi_call_kind {
    LB_MPI_ALL_REDUCE,
    LB_MPI_REDUCE,
    LB_MPI_SCAN,
    LB_MPI_EXSCAN,
    LB_MPI_REDUCE_SCATTER,
    LB_MPI_BROADCAST,
    LB_MPI_ALL_GATHER,
    LB_MPI_GATHER,
    LB_MPI_SCATTER,
    LB_MPI_ALL_TO_ALL,
    LB_MPI_SEND,
    LB_MPI_RECEIVE,
    LB_MPI_KINDS
} lb_mpi_call_kind;

/* Items in one buffer: `count` of them, or with `counts` as many for each member, at `at` (NULL: one behind the
 * other). */
typedef struct lb_mpi_buffer {
    const void *data;
    int count;
    const int *counts, *at;
    lb_mpi_handle datatype;
} lb_mpi_buffer;

/* What a program gives MPI. */
typedef struct lb_mpi_given {
    lb_mpi_call_kind kind;
    const char *name; /* "MPI_Allreduce" */
    bool each;        /* the count is that of each member */
    lb_mpi_buffer send, recv;
    lb_mpi_handle op; /* where it reduces */
    int root, tag;    /* or peer */
    lb_mpi_handle comm;
} lb_mpi_given;

/* Bytes that are sent from or received in one buffer, as one tensor or as one for each member. */
typedef struct lb_mpi_part {
    const char *from;
    int items;
    int64_t bytes; /* dense */
} lb_mpi_part;
typedef struct lb_mpi_side {
    bool exists; /* this rank's buffer means something */
    lb_mpi_element element;
    lb_mpi_handle datatype, held; /* `held`: a duplicate of it, which the program cannot free; NULL */
    lb_mpi_part one, *parts;      /* `parts`: &one, or of malloc */
    uint32_t n;
    int64_t bytes;
    char *copy; /* dense, part after part; NULL: not there */
} lb_mpi_side;

typedef struct lb_mpi_call {
    struct lb_mpi_call *next; /* in the queue */
    lb_mpi_call_kind kind;
    const char *name;
    lb_mpi_communicator *comm;
    lb_mpi_side send, recv;
    const char *reduction; /* NULL: reduces nothing */
    int root, tag;         /* or peer */
    int64_t step;
    uint64_t sequence;
    int64_t reserved; /* bytes of the queue */
    bool skipped;     /* there was no room for its bytes */
    bool unread;      /* its bytes are in memory that the host does not read */
    bool ready, failed, abandoned;
} lb_mpi_call;

bool lb_mpi_call_is_message(lb_mpi_call_kind kind);
/* NULL: there is no memory, or it is not recorded: of an intercommunicator, or a message to nowhere. Holds a reference
 * of its communicator. */
lb_mpi_call *lb_mpi_call_new(const lb_mpi_given *given);
/* What it sends and receives, and its operation. No bytes are copied yet. */
void lb_mpi_call_measure(lb_mpi_call *call, const lb_mpi_given *given);
/* Bytes that its copies take, at most. */
int64_t lb_mpi_call_bytes(const lb_mpi_call *call);
void lb_mpi_call_copy_sent(lb_mpi_call *call);
/* After it has done its work, or failed. `message`: of a receive; NULL. */
void lb_mpi_call_copy_received(lb_mpi_call *call, const lb_mpi_message *message);
/* Locked. */
void lb_mpi_call_free(lb_mpi_call *call);

/* Bytes of an element; 0: no such type. */
size_t lb_mpi_call_width(lb_dtype dtype);

#endif
