/* Ranks of the job as this process knows them: a *place* is one of them, with an archive of its own.
 *
 * A process is one rank, or several: threads, or one thread that drives several devices. NCCL names a rank by its
 * number in one communicator alone, and nothing else that a program does names it. What holds in any case is that
 * members of one communicator are different ranks. Which rank a member is, the first of these says that knows of one
 * that has not joined that communicator:
 *
 *     the process         where it is one rank
 *     the device          where one rank alone has joined with it
 *     the thread          where it has joined as one rank alone, and does not join for all of them now
 *     the member's number where the communicator is as large as the job
 *
 * All functions are called with the books locked (communicator.h). */
#ifndef LB_CAPTURE_NCCL_PLACE_H
#define LB_CAPTURE_NCCL_PLACE_H

#include "calls/call_archive.h"
#include "calls/member_names.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct lb_nccl_place {
    struct lb_nccl_place *next;
    int32_t rank, world;
    int device; /* -1: not known */
    bool wanted;
    /* the first of its communicators that still is; weak: compared only. NULL: an earlier one is being made */
    struct lb_communicator *clock;
    uint64_t joined;            /* communicators */
    struct lb_joining *pending; /* those that are being made */
    uint64_t clock_calls;
    int64_t step;
    bool marked; /* the program says itself where steps begin */
    bool dead;   /* nothing more is recorded of it */
    bool graphs; /* calls of its are captured: what is in the window is known when they are written */
    uint64_t captured;
    /* of the writer alone */
    lb_call_archive archive;
    bool degraded, of_others;           /* that was said */
    bool marked_written;                /* by a call that was written */
    uint64_t clock_written, clock_runs; /* calls of the clock until then, and runs of graphs among them */
    int64_t step_written;
    uint64_t runs, runs_without_bytes; /* of captured calls */
    void *streams[64];
    uint32_t n_streams;
    lb_member_names names;
    struct lb_communicator *unnamed; /* in the order in which it joined them, which is the same on all members */
} lb_nccl_place;

/* One that joins a communicator without a parent. */
typedef struct lb_nccl_member {
    uint64_t id; /* of the communicator */
    int ranks, rank;
    int device;    /* -1: not known */
    bool of_a_set; /* its thread joins as all members at once (CommInitAll) */
} lb_nccl_member;

/* The rank that it is, which this thread is from now on; NULL: no memory. */
lb_nccl_place *lb_nccl_place_join(const lb_nccl_member *member);
/* The newest of a list. */
lb_nccl_place *lb_nccl_place_first(void);
/* This thread's place: where it last called or joined; the only one; NULL. */
lb_nccl_place *lb_nccl_place_here(void);
void lb_nccl_place_enter(lb_nccl_place *place);
/* In a forked child: nothing is known. */
void lb_nccl_place_drop_all(void);

#endif
