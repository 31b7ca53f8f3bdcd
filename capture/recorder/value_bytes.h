/* The contents of a value: its digests and statistics, measured at once or by another thread while the program goes on,
 * and its bytes. */
#ifndef LB_VALUE_BYTES_H
#define LB_VALUE_BYTES_H

#include "measure/measure_queue.h"
#include "recorder/op_site.h"

/* A result of the op at hand that is still to be measured; its window stays until then. */
typedef struct lb_unmeasured {
    lb_tracked *storage;
    uint64_t hash;       /* of the window */
    uint32_t statistics; /* row */
    lb_host_tensor seen;
    uint8_t purpose; /* lb_keep_purpose */
    bool wanted;     /* its bytes are kept */
    bool verified;
    bool filled; /* see lb_op_site */
    /* a tensor of a device from which a copy brings this value, perhaps later; NULL: none does */
    lb_tracked *late_from;
    lb_host_tensor twin; /* the same elements on that device, in the same places; dtype 0: there are none */
} lb_unmeasured;

typedef struct lb_unmeasured_list {
    lb_unmeasured *list;
    uint32_t n, cap;
} lb_unmeasured_list;

/* Values that another thread measures while the program goes on; meanwhile the host keeps their storages as they are
 * (lb_recorder_async). */
typedef struct lb_promises {
    bool async;              /* the host does */
    lb_measure_queue *queue; /* NULL: nothing was ever measured so */
    int64_t *unheld;         /* storages with work that the host was not told of */
    uint32_t n_unheld, cap_unheld;
    uint64_t n_made, n_fulfilled;
} lb_promises;

lb_measuring lb_value_bytes_measuring(const lb_tracked *storage, const lb_host_tensor *seen, int64_t first,
                                      int64_t last, unsigned what);
lb_status lb_value_bytes_measure(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window,
                                 const lb_host_tensor *seen, bool blob, lb_err *err);
/* Puts what was measured into the window and its row; the leaves are the window's from here on. */
lb_status lb_value_bytes_note(lb_recorder *recorder, lb_tracked_window *window, lb_measured *measured, lb_err *err);
/* Takes over what another window of the same bytes tells about this one; true when nothing is left to be measured. */
bool lb_value_bytes_derive(lb_recorder *recorder, lb_tracked_window *view, const lb_tracked_window *measured);
/* Keeps the bytes, if the budget has room. */
lb_status lb_value_bytes_keep(lb_recorder *recorder, const lb_tracked *storage, lb_tracked_window *window,
                              lb_keep_purpose purpose, lb_err *err);
/* The same of bytes that are in the host's memory. */
lb_status lb_value_bytes_keep_bytes(lb_recorder *recorder, lb_tracked_window *window, const uint8_t *bytes,
                                    lb_keep_purpose purpose, lb_err *err);
/* Puts what was measured into the window and its row of statistics; the leaves are the window's from here on. */
void lb_value_bytes_arrived(lb_recorder *recorder, lb_tracked_window *window, uint32_t statistics,
                            lb_measured *measured);
/* True when kept bytes of this very version contain the window; they stay for that purpose, too. */
bool lb_value_bytes_covered(lb_recorder *recorder, const lb_tracked *storage, const lb_tracked_window *window,
                            lb_keep_purpose purpose);
/* True when bytes of this version that contain the window were kept, or left out as a layer's, before. */
bool lb_value_bytes_left(const lb_tracked *storage, const lb_tracked_window *window);
/* Level AUTO, at a step's end: what it kept above its sources goes to the archive. */
lb_status lb_value_bytes_unstage(lb_recorder *recorder, lb_err *err);
/* Results are measured when the op has all of them. This one is noted, */
lb_status lb_value_bytes_later(lb_recorder *recorder, const lb_op_site *at, lb_tracked *storage,
                               const lb_tracked_window *window, const lb_host_tensor *seen, lb_err *err);
/* and here the noted ones are measured; large ones by another thread, where the host allows it. */
lb_status lb_value_bytes_measure_late(lb_recorder *recorder, lb_err *err);
/* Will the window's measurement under way bring a digest of `seen`? */
bool lb_value_bytes_promised(const lb_tracked_window *window, const lb_host_tensor *seen);
/* Waits for measurements of the storage: when it returns, its bytes may change or go, and no window of it has a
 * promise. */
void lb_value_bytes_settle(lb_recorder *recorder, lb_tracked *storage);
/* The same for all storages. What is on its way from devices is not waited for. */
void lb_value_bytes_settle_all(lb_recorder *recorder);
/* Gives up all measurements under way and ends measuring by another thread: for a recorder that is closed or abandoned.
 */
void lb_value_bytes_drop(lb_recorder *recorder);

#endif
