/* Inside of the recorder: what recorder.c (life, steps), op_context.c (scopes), value_intake.c (identity of what an op
 * reads and writes) and operation.c (ops) share. Every function here expects the lock to be held. */
#ifndef LB_RECORDER_H
#define LB_RECORDER_H

#include "device/device.h"
#include "recorder/graph_tape.h"
#include "device/kernel_image.h"
#include "measure/measure_queue.h"
#include "recorder/tracked_storage.h"
#include "recorder/keep.h"
#include "recorder/like.h"
#include "flight/flight_ring.h"
#include "recorder/sharding.h"
#include "flight/write_queue.h"
#include "flight/flight_stage.h"

#include <lastbit/json_text.h>
#include <pthread.h>

typedef struct lb_scope_entry {
    char *path, *class_name;
    uint32_t parent;
    uint64_t program; /* serial of the program that row and calls belong to */
    uint32_t row, calls;
} lb_scope_entry;

typedef struct lb_line_entry {
    char *file, *function, *text;
    uint32_t number;
    uint64_t program; /* serial of the program that `line` belongs to */
    uint32_t line;    /* as lb_op has it */
} lb_line_entry;

/* A result of the op at hand that is still to be measured; its window stays until then. */
typedef struct lb_ahead lb_ahead; /* device_ahead.c */

typedef struct lb_unmeasured {
    lb_tracked *storage;
    uint64_t hash;       /* of the window */
    uint32_t statistics; /* row */
    lb_host_tensor seen;
    uint8_t purpose; /* lb_keep_purpose */
    bool wanted;     /* its bytes are kept */
    bool verified;
    bool filled;           /* see lb_op_site */
    lb_tracked *late_from; /* of a device: a copy brings the value from there and may arrive later; NULL: none does */
    lb_host_tensor twin;   /* the same elements there, in the same places; its dtype is 0: there are none */
} lb_unmeasured;

typedef struct lb_row_range {
    uint32_t first, last;
} lb_row_range;

typedef struct lb_device_entry lb_device_entry; /* device_bytes.c */

typedef struct lb_graph_run { /* between the record of a graph's run and its launch: graph_run.c */
    lb_tape *tape;            /* NULL: none */
    pthread_t thread;         /* that passes it */
    lb_hash by_key;           /* rows of the tape's storages, by their keys in this run */
    bool makes, reads_older;  /* in the second half of an op; what is read is what lies there before the run */
} lb_graph_run;

typedef struct lb_device_fetched { /* bytes [first, last) of a storage of a device */
    int64_t id;
    uint32_t version;
    uint64_t first, last, capacity;
    uint8_t *bytes;
} lb_device_fetched;

struct lb_recorder {
    pthread_mutex_t lock;
    bool dead;
    lb_err why;   /* of death */
    bool stopped; /* by its host, which knows why */
    int32_t rank, world;
    char *path;
    char *folder;           /* of several archives: NULL where there is one */
    uint32_t close_each;    /* steps of each */
    uint32_t part, in_part; /* of the one at hand: its number, the steps that it has */
    lb_writer *writer;
    lb_write_queue *write_queue; /* NULL: blobs go to the writer at once */
    lb_flight_stage *stage;      /* level AUTO, while a step is open: what it keeps above its sources */
    uint64_t budget_bytes;
    lb_flight_ring *ring; /* NULL: off, or triggered */
    bool ring_base;       /* the open step carries all sources */
    uint8_t ring_files;
    uint32_t ring_steps;  /* K */
    bool ring_cut;        /* the open step lacks its beginning */
    uint8_t ring_phase;   /* of the last op of the open step */
    uint32_t ring_cycles; /* iterations that the open step holds: times that an optimizer was followed by a forward */
    bool ring_over;       /* a trigger came while a step was open: flush when it ends */
    lb_program *program;  /* NULL between steps */
    uint64_t serial;
    lb_tracked_set storages;
    lb_sharding_notes shardings;
    lb_scope_entry *scopes;
    uint32_t n_scopes;
    lb_line_entry *lines;
    uint32_t n_lines;
    lb_keep keep;
    lb_like *like; /* NULL: levels and patterns say what is kept */
    lb_pending *spare;
    lb_unmeasured *unmeasured;
    uint32_t n_unmeasured, cap_unmeasured;
    /* ops of the open step whose phase is not certain yet, with the sources before them: phase.c */
    lb_row_range *unclassified;
    uint32_t n_unclassified, cap_unclassified;
    bool async; /* the host holds what is measured late: see lb_recorder_async */
    lb_measure_queue *measure_queue;
    int64_t *unheld; /* storages with work that the host was not told of */
    uint32_t n_unheld, cap_unheld;
    uint64_t n_promised, n_fulfilled;
    lb_device_entry *devices;
    uint32_t n_devices;
    lb_device_fetched fetched;
    uint64_t cuda_bytes, cuda_tried;  /* 0: CUDA is not measured where it lies; units that have, or get, no back end */
    const lb_kernel_image *cuda_code; /* NULL: the kernels that lie in this library */
    lb_tape *tape, *tapes;            /* of the graph that is being captured, and of those that were */
    uint64_t n_tapes, n_gone;         /* storages that were freed */
    lb_graph_run run;
    uint64_t n_unreported_runs; /* runs of graphs that came without word of them */
    lb_in_flight *in_flight, **in_flight_end;
    lb_ahead *ahead; /* what the op that begins is about to read: device_ahead.c */
    uint32_t n_ahead, cap_ahead;
    uint64_t in_flight_bytes;
    uint64_t n_late, n_late_arrived; /* copies to the host that may arrive later; the first so many have arrived */
    json_t *notes;                   /* coverage: {kind: {message: times}} */
    bool coverage_changed;
    uint64_t n_steps, n_ops, n_values, n_unseen, n_nonfinite;
    json_t *levels; /* coverage: [{from, level}], the level that steps reached from that one on */
};

/* Where an op stands: what its sources and values inherit. */
typedef struct lb_op_site {
    const char *name; /* of the op */
    const char *layer;
    uint32_t scope, call; /* scope: row of the program */
    uint8_t phase, thread;
    bool verify;              /* inputs of this op are compared with what is known of them */
    bool keep;                /* its results are kept */
    bool keep_inputs;         /* and so that they can be judged, what it reads */
    lb_keep_purpose keep_for; /* and for which level that is */
    bool filled;              /* its results are made of nothing: what fills a buffer next may be unseen code */
    bool reads_floats;        /* what it makes of them that is no float is a choice: an index, a comparison */
    /* of a device: what is written to the host comes from there, and may arrive later; NULL: nothing does */
    const lb_host_tensor *late_from;
    bool late_copy; /* and it is a copy of this tensor's numbers */
} lb_op_site;

/* ---- recorder.c */
lb_status lb_recorder_no_memory(lb_err *err);
/* The one function here that is called without the lock: it has the lock when it returns, whatever the status.
 * LB_ERR_STATE of a dead recorder, or where no step is open that should be. */
lb_status lb_recorder_lock(lb_recorder *recorder, bool in_step, lb_err *err);
/* No step is open: noted. Of several threads each may be told so in the middle of what it does. */
bool lb_recorder_between_steps(lb_recorder *recorder);
/* Gives the status back. */
lb_status lb_recorder_unlock(lb_recorder *recorder, lb_status status);
/* The same for calls whose failure means that the recorder cannot go on: it dies of `cause`. */
lb_status lb_recorder_settled(lb_recorder *recorder, lb_status status, const lb_err *cause, lb_err *err);
/* Before an op of that phase: iterations that the program runs in one step must not fill the ring. */
lb_status lb_recorder_bound_ring(lb_recorder *recorder, uint8_t phase, lb_err *err);
/* The recorder dies with this report. */
lb_status lb_recorder_die(lb_recorder *recorder, const lb_err *err);
void lb_recorder_note(lb_recorder *recorder, const char *kind, const char *message);

/* ---- op_context.c */
uint32_t lb_recorder_scope_row(lb_recorder *recorder, uint32_t scope);
/* What lb_op.line is for a number of lb_recorder_line; 0 for 0, and when out of memory: an op without its line is an
 * op. */
uint32_t lb_recorder_line_row(lb_recorder *recorder, uint32_t line);
const char *lb_recorder_scope_path(const lb_recorder *recorder, uint32_t scope);
/* Of the innermost module that was met and owns what is called so ("layers.0.up.weight",
 * "optimizer.exp_avg:layers.0.up.weight"); `otherwise` where none is. */
uint32_t lb_recorder_owner_row(lb_recorder *recorder, const char *name, uint32_t otherwise);

/* ---- phase.c */
typedef enum lb_unclassified {
    LB_UNCLASSIFIED_NOT,
    LB_UNCLASSIFIED_OPEN,     /* what reads its results will tell */
    LB_UNCLASSIFIED_GRADIENT, /* it works on gradients, */
    LB_UNCLASSIFIED_PARAMETER /* or on parameters after a backward: so does what takes what it made */
} lb_unclassified;
/* The phase of an op that is about to be recorded, and why it is so. */
lb_unclassified lb_phase_of(const lb_recorder *recorder, const lb_recorded_call *call, uint8_t *phase);
/* It made or wrote this storage. */
void lb_phase_made(lb_recorder *recorder, lb_unclassified loose, int64_t key);
/* Rows of an LB_UNCLASSIFIED_OPEN one. */
lb_status lb_phase_remember(lb_recorder *recorder, uint32_t first, uint32_t last, lb_err *err);
/* The step ends: phases of those rows. */
lb_status lb_phase_settle(lb_recorder *recorder, lb_err *err);

/* ---- operation.c */
void lb_operation_pending_free(lb_pending *pending);
/* A tensor of a device from which the op copies to the host, perhaps later; NULL: it does not. */
const lb_host_tensor *lb_operation_late_from(const lb_pending *pending);

/* ---- device_bytes.c */
/* NULL: memory of the host, or of a device that was not registered. */
lb_device *lb_device_of(lb_recorder *recorder, const lb_host_tensor *seen);
void lb_devices_close(lb_recorder *recorder, bool forked);
/* For coverage: what each back end took and could not read; NULL where none was used. */
json_t *lb_devices_account(const lb_recorder *recorder);
bool lb_device_bytes_readable(const lb_tracked *storage, const lb_host_tensor *seen);
/* Bytes [first, last) where the host can read them, until the next such call; NULL when a device did not give them.
 * Those that were fetched last are not fetched again while no write there is known. */
const uint8_t *lb_device_bytes_of(lb_recorder *recorder, const lb_tracked *storage, uint64_t first, uint64_t last);
/* The same as they are now. */
const uint8_t *lb_device_bytes_fresh(lb_recorder *recorder, const lb_tracked *storage, uint64_t first, uint64_t last);
/* lb_measure of one value. LB_OK and not *there: its device did not give it, which is noted. `bytes`: it is about to be
 * kept, and what comes from a device brings its bytes along. */
lb_status lb_device_bytes_take(lb_recorder *recorder, const lb_tracked *storage, lb_measuring *item, bool bytes,
                               bool *there, lb_err *err);
/* Memory of the host: what copies from a device brought is there when it returns. */
void lb_device_bytes_arrive(lb_recorder *recorder, const lb_tracked *storage);
/* What was queued on the storage's stream by now has been done when it returns; false when the device does not say. */
bool lb_device_bytes_wait(lb_recorder *recorder, lb_tracked *storage);
/* A device did not give a value: noted. */
void lb_device_bytes_missing(lb_recorder *recorder, const lb_device *device, lb_work_state state);
/* `back_end` is the recorder's from here on, whatever the status. */
lb_status lb_devices_add(lb_recorder *recorder, uint8_t device, uint8_t unit, lb_device *back_end, lb_err *err);
/* The op has ended: large buffers go. */
void lb_device_bytes_trim(lb_recorder *recorder);

/* ---- device_ahead.c */
/* The op that begins: what it reads and must be known at once, where that is more than one value, is measured
 * together; */
void lb_ahead_measure(lb_recorder *recorder, const lb_op_site *at, const lb_recorded_call *call);
/* item->out, where it was; */
bool lb_ahead_take(lb_recorder *recorder, lb_measuring *item);
/* the op has begun. */
void lb_ahead_end(lb_recorder *recorder);

/* ---- device_cuda.c */
/* The back end of the tensor's device, opened now; NULL: there is none, or not yet. */
lb_device *lb_device_cuda(lb_recorder *recorder, const lb_host_tensor *seen);

/* A run of the graph is about to be queued, and was on that stream, or was not. */
void lb_devices_run(const lb_tape *tape);
void lb_devices_ran(const lb_tape *tape, bool launched, void *stream);
/* Runs that came without word of them are noted. */
void lb_devices_hear(lb_recorder *recorder);

/* ---- graph_capture.c: what is passed while recorder->tape is there */
/* A graph is being captured, and this thread passes none of a run. */
bool lb_graph_is_captured(const lb_recorder *recorder);
/* Whether it is part of what is captured, and not of the open step. */
bool lb_graph_takes_op(lb_recorder *recorder, const lb_recorded_call *call);
bool lb_graph_takes(lb_recorder *recorder, const lb_host_tensor *tensors, uint32_t n);
/* The entry of the tape; LB_NONE: out of memory. */
uint32_t lb_graph_op_begin(lb_recorder *recorder, const lb_recorded_call *call);
void lb_graph_op_end(lb_recorder *recorder, uint32_t begun, const lb_recorded_operand *results, uint32_t n,
                     bool deferred, uint32_t *op);
void lb_graph_op_failed(lb_recorder *recorder, uint32_t begun);
void lb_graph_enter(lb_recorder *recorder, uint32_t scope, const lb_host_tensor *inputs, uint32_t n, bool recompute,
                    lb_place *place);
void lb_graph_leave(lb_recorder *recorder, lb_place place, const lb_host_tensor *outputs, uint32_t n, bool recompute);
void lb_graph_routing(lb_recorder *recorder, lb_place place, const lb_host_tensor *const tensors[5]);
void lb_graph_collective(lb_recorder *recorder, uint32_t op, const lb_taped_collective *told);
void lb_graph_group(lb_recorder *recorder, uint32_t first_op, const lb_taped_group *told);
/* ... and of every tape. */
void lb_graph_forget(lb_recorder *recorder, int64_t key);
void lb_graphs_release(lb_recorder *recorder);
/* Where the tape of that graph stands in recorder->tapes; *NULL: there is none. */
lb_tape **lb_graph_find(lb_recorder *recorder, int64_t graph);

/* ---- graph_run.c */
/* A run is being recorded by this thread. */
bool lb_graph_is_running(const lb_recorder *recorder);
/* What is recorded of the storage is newer than its bytes, which the run has yet to write. */
bool lb_graph_is_ahead(const lb_recorder *recorder, const lb_tracked *storage);
/* What measures it in the run; NULL: nothing does. */
const lb_taped_slot *lb_graph_slot(const lb_recorder *recorder, const lb_tracked *storage, uint64_t hash);
/* Bytes of a value that the run has yet to write are kept for that purpose, too, if they come; */
lb_status lb_graph_keep(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                        lb_keep_purpose purpose, lb_err *err);
/* they do not: noted, and the step is not of that level. */
void lb_graph_left(lb_recorder *recorder, lb_keep_purpose purpose);

/* ---- device_in_flight.c */
bool lb_in_flight_is_possible(const lb_recorder *recorder, const lb_unmeasured *late);
/* Results of one op set out together. */
lb_status lb_in_flight_submit(lb_recorder *recorder, const lb_unmeasured *late, uint32_t n, lb_err *err);
/* Those that are there get to their rows, windows and the archive; `wait`: all. */
lb_status lb_in_flight_advance(lb_recorder *recorder, bool wait, lb_err *err);
/* The storage's bytes are about to change or go: what comes goes to the rows alone. */
void lb_in_flight_detach(lb_tracked *storage);
/* The first that is under way, `from` or a later one, and where it is read; NULL: there is none. */
const lb_in_flight *lb_in_flight_next(const lb_in_flight *from, const lb_device **device, void **stream);
const lb_in_flight *lb_in_flight_after(const lb_in_flight *one);
/* All that is under way is there, and copies to the host behind which it was queued have arrived. */
void lb_in_flight_wait(lb_recorder *recorder);
void lb_in_flight_drop(lb_recorder *recorder, bool forked);
bool lb_in_flight_has_bytes(const lb_in_flight *coming);
/* Its bytes are kept for that purpose, too. */
void lb_in_flight_lower(lb_in_flight *coming, lb_keep_purpose purpose);
/* Whether what comes to the window brings a digest of what is seen there. */
bool lb_in_flight_brings(const lb_tracked_window *window, const lb_host_tensor *seen);
/* Its bytes are wanted. *coming: they are on their way, for that purpose too; else nothing comes any more. */
lb_status lb_in_flight_keep(lb_recorder *recorder, lb_tracked_window *window, lb_keep_purpose purpose, bool *coming,
                            lb_err *err);

/* ---- value_bytes.c */
lb_measuring lb_value_bytes_measuring(const lb_tracked *storage, const lb_host_tensor *seen, int64_t first,
                                      int64_t last, unsigned what);
lb_status lb_value_bytes_measure(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window,
                                 const lb_host_tensor *seen, bool blob, lb_err *err);
/* Puts what was measured into the window and its row; the leaves are the window's from here on. */
lb_status lb_value_bytes_note(lb_recorder *recorder, lb_tracked_window *window, lb_measured *measured, lb_err *err);
/* What another window of the same bytes tells of this one; true when that is all there is to know. */
bool lb_value_bytes_derive(lb_recorder *recorder, lb_tracked_window *view, const lb_tracked_window *measured);
/* Keeps the bytes, if the budget has room. */
lb_status lb_value_bytes_keep(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window,
                              lb_keep_purpose purpose, lb_err *err);
/* The same of bytes that are in the host's memory. */
lb_status lb_value_bytes_keep_bytes(lb_recorder *recorder, lb_tracked_window *window, const uint8_t *bytes,
                                    lb_keep_purpose purpose, lb_err *err);
/* What was measured gets to the window and its row; the leaves are the window's. */
void lb_value_bytes_arrived(lb_recorder *recorder, lb_tracked_window *window, uint32_t statistics,
                            lb_measured *measured);
/* True when kept bytes of this very version contain the window; they stay for that purpose, too. */
bool lb_value_bytes_covered(lb_recorder *recorder, const lb_tracked *storage, const lb_tracked_window *window,
                            lb_keep_purpose purpose);
/* True when bytes of this version that contain the window were kept, or left out as a layer's, before. */
bool lb_value_bytes_left(const lb_tracked *storage, const lb_tracked_window *window);
/* Level AUTO, at a step's end: what it kept above its sources goes to the archive. */
lb_status lb_value_bytes_unstage(lb_recorder *recorder, lb_err *err);
/* Results are measured when the op has all of them: */
lb_status lb_value_bytes_later(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                               const lb_tracked_window *window, const lb_host_tensor *seen, lb_err *err);
/* by now; large ones are promised where the host holds them. */
lb_status lb_value_bytes_measure_late(lb_recorder *recorder, lb_err *err);
/* Whether the window's promise comes with a digest of what is seen there. */
bool lb_value_bytes_promised(const lb_tracked_window *window, const lb_host_tensor *seen);
/* The storage's bytes may change or go when it returns, and no window of it has a promise. */
void lb_value_bytes_settle(lb_recorder *recorder, lb_tracked *storage);
/* The same of all, and all that was promised is there but for what comes from devices. */
void lb_value_bytes_settle_all(lb_recorder *recorder);
/* The value is not to be measured. */
void lb_value_bytes_drop(lb_recorder *recorder);

/* ---- leftover_digest.c */
/* Now, when the storage is alive and the program that wrote it in parts is about to end. */
void lb_leftover_remember(lb_recorder *recorder, lb_tracked *storage);
/* The open program is about to touch it. */
bool lb_leftover_unchanged(lb_recorder *recorder, const lb_tracked *storage);
/* An allocation whose bytes mean nothing yet, and whether something wrote there since that no op of ours was. Large
 * ones are not looked at: their pages may not even be there. */
void lb_leftover_note_fresh(lb_recorder *recorder, lb_tracked *storage);
bool lb_leftover_was_filled(lb_recorder *recorder, const lb_tracked *storage);
/* Bytes [first, last) are about to be written. */
void lb_leftover_before_part(lb_recorder *recorder, lb_tracked *storage, uint64_t first, uint64_t last);

/* ---- value_intake.c */
enum lb_value_intake_how {
    LB_READ_LAYOUT = 1,     /* a view is taken: bytes are not needed */
    LB_READ_OVERWRITTEN = 2 /* bytes will be overwritten unread */
};
/* The value that a tensor is now, with a source before it where no recorded op made its bytes. */
/* Whether lb_value_intake_value is about to measure a device's value whose bytes are not kept, and what of it
 * (lb_measure_what). */
bool lb_value_intake_measures(const lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                              const lb_host_tensor *seen, unsigned how, unsigned *what);
lb_status lb_value_intake_value(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, unsigned how,
                                uint32_t *row, lb_err *err);
/* What a result is recorded as: the value's flags and source; `deferred`: its bytes are still being written. */
typedef struct lb_result_kind {
    uint32_t flags;
    uint8_t source;
    bool deferred;
} lb_result_kind;
/* A result, or a written argument after its storage got its new version. */
lb_status lb_value_intake_result(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                                 lb_result_kind kind, uint32_t *row, lb_err *err);
/* A view of what is known already. */
lb_status lb_value_intake_alias(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, uint32_t *row,
                                lb_err *err);
/* Digest, statistics and, where the level says so, bytes of a layer's input or output. */
lb_status lb_value_intake_boundary(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                                   uint32_t *row, lb_err *err);
/* What ops left to be measured later. */
lb_status lb_value_intake_settle(lb_recorder *recorder, lb_tracked *storage, lb_err *err);
/* Finds or makes the storage and brings it up to date with what is seen of it. */
lb_status lb_value_intake_storage(lb_recorder *recorder, const lb_host_tensor *seen, lb_tracked **storage, lb_err *err);

#endif
