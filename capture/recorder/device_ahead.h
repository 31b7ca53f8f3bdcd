/* Measures in one batch the values that an op is about to read from a device, so that the host waits for the device
 * only once. */
#ifndef LB_DEVICE_AHEAD_H
#define LB_DEVICE_AHEAD_H

#include "measure/measure.h"
#include "recorder/op_site.h"

typedef struct lb_ahead lb_ahead; /* device_ahead.c */

typedef struct lb_ahead_list {
    lb_ahead *list;
    uint32_t n, cap;
} lb_ahead_list;

/* An op begins: where more than one value that it reads must be known at once, they are measured together. */
void lb_ahead_measure(lb_recorder *recorder, const lb_op_site *at, const lb_recorded_call *call);
/* Fills item->out where the value was measured; false: it was not. */
bool lb_ahead_take(lb_ahead_list *ahead, lb_measuring *item);
/* The op has begun: drops what was not taken. */
void lb_ahead_end(lb_ahead_list *ahead);

#endif
