/* The back end for every device of which no more is known than how the host program copies from it: bytes are fetched,
 * and measured here. Slow (the host waits for the device at each value), and right wherever the copy is. */
#ifndef LB_DEVICE_COPY_H
#define LB_DEVICE_COPY_H

#include "device/device.h"

#include <lastbit/capture.h>

/* NULL when out of memory. */
lb_device *lb_device_copy_new(const lb_device_access *access);

#endif
