/* Results on devices whose measurements are on their way to the host, until the step ends. */
#ifndef LB_DEVICE_IN_FLIGHT_H
#define LB_DEVICE_IN_FLIGHT_H

#include "device/device.h"
#include "recorder/value_bytes.h"

typedef struct lb_in_flight_list {
    lb_in_flight *first, **end; /* oldest first */
    uint64_t bytes;             /* of host memory that wait to be filled */
    /* copies to the host that may arrive later: so many were made, of which the first so many have arrived */
    uint64_t n_late, n_arrived;
} lb_in_flight_list;

bool lb_in_flight_is_possible(const lb_recorder *recorder, const lb_unmeasured *late);
/* Queues the measurement of an op's results, all together. */
lb_status lb_in_flight_submit(lb_recorder *recorder, const lb_unmeasured *late, uint32_t n, lb_err *err);
/* Puts what has arrived into its rows, windows and the archive; `wait`: waits for everything. */
lb_status lb_in_flight_advance(lb_recorder *recorder, bool wait, lb_err *err);
/* The storage's bytes are about to change or go: what is on its way for it will be put into rows alone, not into
 * windows. */
void lb_in_flight_detach(lb_tracked *storage);
/* The first measurement on its way, from `from` on, and the device and stream that it is read on; NULL: there is none.
 */
const lb_in_flight *lb_in_flight_next(const lb_in_flight *from, const lb_device **device, void **stream);
const lb_in_flight *lb_in_flight_after(const lb_in_flight *one);
/* Returns when everything on its way has arrived, and so have copies to the host that it was queued behind. */
void lb_in_flight_wait(lb_in_flight_list *list);
void lb_in_flight_drop(lb_in_flight_list *list, bool forked);
bool lb_in_flight_has_bytes(const lb_in_flight *coming);
/* Its bytes are kept for that purpose as well. */
void lb_in_flight_lower(lb_in_flight *coming, lb_keep_purpose purpose);
/* Will what is on its way to the window bring a digest of `seen`? */
bool lb_in_flight_brings(const lb_tracked_window *window, const lb_host_tensor *seen);
/* The window's bytes are wanted. *coming true: they are on their way, and are kept for that purpose as well. False:
 * they are not, and everything that was on its way has arrived. */
lb_status lb_in_flight_keep(lb_recorder *recorder, lb_tracked_window *window, lb_keep_purpose purpose, bool *coming,
                            lb_err *err);

#endif
