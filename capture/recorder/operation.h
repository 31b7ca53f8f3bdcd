/* The record of an op that has begun and not yet ended (lb_pending). The calls that begin and end an op are declared in
 * lastbit/capture.h. */
#ifndef LB_OPERATION_H
#define LB_OPERATION_H

#include "recorder/tracked_storage.h"

void lb_operation_pending_free(lb_pending *pending);
/* A tensor of a device from which the op copies to the host, perhaps later; NULL: it does not. */
const lb_host_tensor *lb_operation_late_from(const lb_pending *pending);

#endif
