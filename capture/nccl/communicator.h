/* Communicators as this process knows them: who their members are, and how many calls each has seen.
 *
 * What a communicator itself says is a rank inside it and a size. Whom its other ranks are in the job the members tell
 * each other through a file in the capture's folder, written before they join and read when the first call is recorded,
 * by which time all have joined; no message of ours goes through NCCL.
 *
 *     folder/launch.nccl.at       a line per joining rank: ID RANK JOB-RANK COLOR KEY
 *
 * ID is a hash of what all members have in common: of the unique id, or of the parent's and how often that was split.
 * Names are made of the members ("0-3", "1,3", "0-1#2" for the second of those), so that they are the same on all ranks
 * and in every run. All functions but those that say so are called with the books locked. */
#ifndef LB_CAPTURE_COMMUNICATOR_H
#define LB_CAPTURE_COMMUNICATOR_H

#include "nccl_abi.h"
#include "nccl_place.h"

#include <pthread.h>
#include <stdbool.h>

/* One lock for the books and the queue of calls. */
void lb_communicator_registry_lock(void);
void lb_communicator_registry_unlock(void);
pthread_mutex_t *lb_communicator_registry_mutex(void);

typedef struct lb_communicator lb_communicator;

struct lb_communicator {
    lb_communicator *next, *next_unnamed;
    lb_nccl_comm handle;
    uint64_t id, joined_as; /* its own, and that of the lines in the file */
    int ranks, rank, color, refs;
    lb_nccl_place *place;
    uint64_t sequence, splits;
    uint64_t made;      /* how many its place had begun to join before */
    uint64_t *messages; /* per peer: sends to it; then receives from it */
    /* calls of a non-blocking communicator that are still being launched */
    struct lb_nccl_call *launching, **launching_end;
    struct lb_premul *premuls;
    /* of the writer alone */
    int32_t *members;                        /* ranks in the job; NULL: not told */
    char name[LB_MEMBER_NAME];               /* "": not asked yet */
    uint64_t sequence_written, runs_written; /* next number of a call, and runs of graphs that came between */
};

/* The scalar of an op made by ncclRedOpCreatePreMulSum. */
typedef struct lb_premul {
    struct lb_premul *next;
    lb_nccl_op op;
    lb_nccl_dtype dtype;
    const void *on_device; /* read when a call is made; NULL: `bytes` has it */
    unsigned char bytes[8];
} lb_premul;

/* For an id that this process alone has. */
uint64_t lb_communicator_serial(void);
/* Before the call that makes it: finds or makes the place of this rank, and tells the others about it. From now on the
 * place has it among those that are being made, until lb_communicator_add or lb_communicator_abandon: of two that one
 * rank joins in two threads, the one that was begun first is the first on all members. */
enum { LB_ID_UNTOLD = 0 };     /* of one that was made past us */
enum { LB_RANKS_UNTOLD = -1 }; /* of a split: NCCL is asked once it is made, or when its first call is */
typedef struct lb_joining {
    lb_nccl_comm *made; /* where NCCL puts the handle */
    uint64_t id;
    int ranks, rank, color, key;
    int device;    /* of this rank; -1: not known */
    bool of_a_set; /* its thread joins as all members at once */
    lb_nccl_place *place;
    uint64_t number; /* how many its place had begun to join before */
    struct lb_joining *next_pending;
} lb_joining;
bool lb_communicator_join(lb_joining *joining, const lb_communicator *parent);
/* After it: the handle is known from now on. */
void lb_communicator_add(lb_joining *joining, lb_nccl_comm handle);
/* In its place, where NCCL made none. */
void lb_communicator_abandon(lb_joining *joining);
lb_communicator *lb_communicator_find(lb_nccl_comm handle);
/* The same, once its size is known. */
lb_communicator *lb_communicator_whole(lb_nccl_comm handle);
/* The handle ends; calls under way keep what they need. */
void lb_communicator_remove(lb_nccl_comm handle);
void lb_communicator_release(lb_communicator *comm);
const lb_premul *lb_communicator_premul(const lb_communicator *comm, lb_nccl_op op);

/* Writer: fills members and name, once. The books are not locked. */
void lb_communicator_resolve(lb_communicator *comm);
/* In a forked child: nothing is known. */
void lb_communicators_drop(void);

#endif
