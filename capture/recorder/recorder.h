/* Inside of the recorder. `lb_recorder` holds what each file of this room owns, by the struct of that file's header; a
 * function that needs one of them takes that one alone. Functions that take the whole expect the lock to be held. */
#ifndef LB_RECORDER_H
#define LB_RECORDER_H

#include "flight/flight_ring.h"
#include "flight/flight_stage.h"
#include "flight/write_queue.h"
#include "recorder/device_ahead.h"
#include "recorder/device_bytes.h"
#include "recorder/device_cuda.h"
#include "recorder/device_in_flight.h"
#include "recorder/graph_capture.h"
#include "recorder/graph_run.h"
#include "recorder/keep.h"
#include "recorder/like.h"
#include "recorder/op_context.h"
#include "recorder/phase.h"
#include "recorder/sharding.h"
#include "recorder/tracked_storage.h"
#include "recorder/value_bytes.h"

#include <pthread.h>

/* Where committed steps go: one archive, or a folder of several. */
typedef struct lb_recorder_archive {
    char *path;             /* of the one that is being written */
    char *folder;           /* of several; NULL where there is one */
    uint32_t close_each;    /* steps of each */
    uint32_t part, in_part; /* of the one that is being written: its number, the steps that it has */
    uint64_t budget_bytes;
    lb_writer *writer;
    lb_write_queue *queue; /* NULL: blobs go to the writer at once */
} lb_recorder_archive;

/* The last steps, held until something goes wrong. */
typedef struct lb_recorder_ring {
    lb_flight_ring *flight; /* NULL: off, or triggered */
    bool base;              /* the open step carries all sources */
    uint8_t files;          /* its memory lies in files: 1: removed at the end; see lb_recorder_options */
    uint32_t steps;         /* that it holds */
    bool cut;               /* the open step lacks its beginning */
    uint8_t phase;          /* of the last op of the open step */
    uint32_t cycles;        /* iterations in the open step: how often a forward followed an optimizer */
    bool over;              /* a trigger came while a step was open: it is flushed when that ends */
} lb_recorder_ring;

/* What the table `coverage` says. */
typedef struct lb_recorder_coverage {
    json_t *notes;  /* {kind: {message: times}} */
    json_t *levels; /* [{from, level}]: the level that steps reached, from that one on */
    bool changed;   /* since it was written last */
    uint64_t n_steps, n_ops, n_values, n_unseen;
} lb_recorder_coverage;

struct lb_recorder {
    pthread_mutex_t lock;
    bool dead;
    bool stopped; /* by its host, which knows why */
    lb_err why;   /* of death */
    int32_t rank, world;
    lb_recorder_archive archive;
    lb_recorder_ring ring;
    lb_recorder_coverage coverage;

    lb_program *program;  /* of the open step; NULL between steps */
    uint64_t serial;      /* of programs, from 1 */
    uint64_t n_nonfinite; /* of the open step */
    lb_pending *spare;    /* operation.c */
    lb_op_context context;
    lb_phase_rows unclassified;

    lb_tracked_set storages;
    lb_sharding_notes shardings;
    lb_keep keep;
    lb_like *like;          /* NULL: levels and patterns say what is kept */
    lb_flight_stage *stage; /* level AUTO, while a step is open: what it keeps above its sources */
    lb_unmeasured_list unmeasured;
    lb_promises promises;

    lb_devices devices;
    lb_device_cuda_units cuda;
    lb_ahead_list ahead; /* what the op that begins is about to read */
    lb_in_flight_list in_flight;
    lb_graphs graphs;
    lb_graph_run run;
};

lb_status lb_recorder_no_memory(lb_err *err);
/* The one function here that is called without the lock: it has the lock when it returns, whatever the status.
 * LB_ERR_STATE of a dead recorder, or where no step is open that should be. */
lb_status lb_recorder_lock(lb_recorder *recorder, bool in_step, lb_err *err);
/* Notes that a call came while no step is open. With several threads that may be true in the middle of another thread's
 * call. */
bool lb_recorder_between_steps(lb_recorder *recorder);
/* Unlocks, and returns `status`. */
lb_status lb_recorder_unlock(lb_recorder *recorder, lb_status status);
/* The same for calls whose failure means that the recorder cannot go on: it dies of `cause`. */
lb_status lb_recorder_settled(lb_recorder *recorder, lb_status status, const lb_err *cause, lb_err *err);
/* Before an op of that phase: iterations that the program runs in one step must not fill the ring. */
lb_status lb_recorder_bound_ring(lb_recorder *recorder, uint8_t phase, lb_err *err);
/* The recorder dies with this report. */
lb_status lb_recorder_die(lb_recorder *recorder, const lb_err *err);
void lb_recorder_note(lb_recorder *recorder, const char *kind, const char *message);

#endif
