/* Results on devices that are under way to the host until the step ends. */
#ifndef LB_DEVICE_IN_FLIGHT_H
#define LB_DEVICE_IN_FLIGHT_H

#include "device/device.h"
#include "recorder/value_bytes.h"

typedef struct lb_in_flight_list {
    lb_in_flight *first, **end; /* oldest first */
    uint64_t bytes;             /* of host memory that wait to be filled */
    uint64_t n_late, n_arrived; /* copies to the host that may arrive later; the first so many have arrived */
} lb_in_flight_list;

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
void lb_in_flight_wait(lb_in_flight_list *list);
void lb_in_flight_drop(lb_in_flight_list *list, bool forked);
bool lb_in_flight_has_bytes(const lb_in_flight *coming);
/* Its bytes are kept for that purpose, too. */
void lb_in_flight_lower(lb_in_flight *coming, lb_keep_purpose purpose);
/* Whether what comes to the window brings a digest of what is seen there. */
bool lb_in_flight_brings(const lb_tracked_window *window, const lb_host_tensor *seen);
/* Its bytes are wanted. *coming: they are on their way, for that purpose too; else nothing comes any more. */
lb_status lb_in_flight_keep(lb_recorder *recorder, lb_tracked_window *window, lb_keep_purpose purpose, bool *coming,
                            lb_err *err);

#endif
