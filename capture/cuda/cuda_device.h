/* The CUDA back end of the seam (see device.h): values are measured by kernels where they lie.
 *
 *     stream of the program   ──op──▶ copy aside or measure ──op──▶ …              the device orders; the host never waits
 *     streams of the back end            └──▶ measure ──▶ results, leaves, bytes ──▶ pinned memory ──▶ works   (collect)
 *
 * Reading runs on the program's own stream, right behind what made the value: no later work can overwrite the value,
 * and no allocator give its memory anew, before it was read. Of an op with few values each of up to 4 MiB is copied
 * aside, and up to 24 of them are measured by one launch beside the program; others are measured where they lie. Bytes
 * are copied aside, too, so that the way to the host runs beside the program.
 *
 * While a stream is being captured into a graph, measuring becomes part of the graph: such a work is LB_WORK_SKIPPED,
 * for nothing was computed yet, and its `slot` is the name under which lb_cuda_replays gives what every run of the
 * graph computes. */
#ifndef LB_CUDA_DEVICE_H
#define LB_CUDA_DEVICE_H

#include "device/device.h"
#include "device/kernel_image.h"

typedef struct lb_cuda_options {
    uint64_t device_bytes; /* at most so much memory of the device, taken before the first value is measured */
    uint64_t pinned_bytes; /* host memory that bytes come through; half of device_bytes may come besides, for results */
    unsigned replays;      /* runs of a graph that are kept until lb_cuda_replays asks */
    const lb_kernel_image *code; /* NULL: the kernels that lie in this library */
    int unit; /* which device, as the driver counts; -1: that of the context that is current in this thread */
} lb_cuda_options;
#define LB_CUDA_OPTIONS_INIT {.device_bytes = 256u << 20, .pinned_bytes = 64u << 20, .replays = 16, .unit = -1}

/* Works in the context that is current in this thread or, where that is another device's, in the primary one of device
 * `unit`, which is what the runtime and every framework use. NULL and no error where the process has no driver, or has
 * made neither. */
lb_status lb_cuda_open(lb_device **device, const lb_cuda_options *options, lb_err *err);
/* Measures values that the host knows, where they lie and copied aside, and fails where the device finds anything else
 * in them than lb_measure does. The host waits. */
lb_status lb_cuda_check(lb_device *base, lb_err *err);
/* Bytes a second that are measured there: of several values of `bytes` bytes, from their submission until all results
 * are here. The host waits. */
lb_status lb_cuda_rate(lb_device *base, uint64_t bytes, double *rate, lb_err *err);

/* The context of a device that this back end opened; NULL: it is another back end's. */
void *lb_cuda_context(const lb_device *device);
/* Returns when all is done that is queued on `stream` by now; at once where the stream is being captured. It touches
 * no back end: any thread may call it, beside any other call. */
void lb_cuda_wait(void *context, void *stream);

/* What is fetched from now on waits for what is queued on `stream` by now: for graphs, whose runs the back end does not
 * see. */
void lb_cuda_order_after(lb_device *base, void *stream);

typedef struct lb_cuda_replay {
    uint64_t value;  /* lb_device_work.slot, never 0 */
    uint64_t number; /* run of its graph, from 0 */
    lb_measured out; /* without leaves */
} lb_cuda_replay;
/* Gives what graphs have computed since the last call, and waits for it as lb_cuda_order_after said. Runs that were
 * overwritten before are missing among the numbers, and counted as skipped. */
void lb_cuda_replays(lb_device *base, void (*take)(void *context, const lb_cuda_replay *replay), void *context);

#endif
