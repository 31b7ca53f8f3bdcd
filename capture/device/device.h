/* The seam between the recorder and memory that the host cannot read: one header, one file (or room) per kind of
 * device.
 *
 *     recorder                        back end                                      host program's device
 *     submit(works, stream) ────────▶ measures and copies, after what was queued ─▶ stream
 *     order_before(stream)  ────────▶ what is queued there from now on waits for what was submitted
 *     collect(wait)         ────────▶ works that are done get their results; with `wait` all of them
 *
 * A work is one value: a strided range of device memory whose digests and statistics are wanted (`what`), and perhaps
 * its bytes. What comes out is what lb_measure gives for the same bytes, bit by bit, leaves included.
 *
 * A work reads on the stream that it is submitted to, right behind what made the value. So the host program may free or
 * write the memory once submit has returned: on that stream what comes next is behind the read, and for others there is
 * order_before.
 *
 * Back ends: copies through the host program (device_copy.h), which are done when submit returns; CUDA (capture/cuda).
 * Host memory has none: the recorder reads it itself. Functions are called under the recorder's lock, by one thread at
 * a time. None of them ends the host program, and none may leave an error behind that the host program would meet. */
#ifndef LB_DEVICE_H
#define LB_DEVICE_H

#include "measure/measure.h"

typedef struct lb_device lb_device;

typedef enum lb_work_state {
    LB_WORK_NEW,
    LB_WORK_UNDER_WAY,
    LB_WORK_DONE,
    LB_WORK_SKIPPED, /* nothing came of it: no room and no leave to wait, or not now (a graph is being captured) */
    LB_WORK_LOST     /* nothing came of it, for the device failed; nothing will from now on */
} lb_work_state;

typedef struct lb_device_work {
    /* Addresses in it are of the device, `what` is of lb_measure_what. LB_WORK_DONE: `out` is as lb_measure leaves it,
     * its leaves malloc'ed. */
    lb_measuring item;
    bool measured; /* wanted: digests and statistics. False: bytes alone */
    bool awaited;  /* the caller waits for it next: it is not to wait for others */
    /* of a work that becomes part of a graph: bytes of each run are wanted; afterwards: they can be had */
    bool each_run;
    bool left_out;   /* LB_WORK_DONE: `bytes` did not come, no room was left on their way */
    void *bytes;     /* host memory for the dense range; NULL: its bytes are not wanted */
    int64_t storage; /* the host program's name of the allocation */
    uint64_t first;  /* byte of the allocation where the dense range begins */
    lb_work_state state;
    /* The back end's own: */
    struct lb_device_work *next;
    uint64_t slot;
} lb_device_work;

typedef struct lb_device_ops {
    const char *name;  /* "copies", "cuda" */
    bool asynchronous; /* works may be LB_WORK_UNDER_WAY when submit returns */
    /* Reads after everything that is queued on `stream` by now. Each work has a state when it returns. The works stay
     * where they are until they are done. `may_wait`: rather wait for room than skip. */
    void (*submit)(lb_device *device, lb_device_work *const *works, size_t n, void *stream, bool may_wait);
    /* What is queued on `stream` from now on begins after all works that are under way have read. The host does not
     * wait. */
    void (*order_before)(lb_device *device, void *stream);
    /* Between these two calls work on the stream is recorded into a graph, and runs later, or more than once. */
    bool (*is_capturing)(lb_device *device, void *stream);
    /* Graphs; all NULL where nothing is measured in them. A work that becomes part of the graph that its stream is
     * captured into is LB_WORK_SKIPPED, and its `slot` is the name of what every run of the graph measures then (0:
     * nothing does). */
    void (*capture)(lb_device *device, lb_device_work *const *works, size_t n, void *stream);
    /* Works with such names get what the next run measures, which has yet to be queued. `may_wait`: as above, where
     * results of earlier runs would be overwritten. */
    void (*expect)(lb_device *device, lb_device_work *const *works, size_t n, bool may_wait);
    /* A run of the graph that has the names from `first` to `last` is about to be queued, */
    void (*runs)(lb_device *device, uint64_t first, uint64_t last);
    /* and has been, on that stream; */
    void (*ran)(lb_device *device, uint64_t first, uint64_t last, void *stream);
    /* or was not, for the launch failed: works that expect it get nothing. */
    void (*failed)(lb_device *device, uint64_t first, uint64_t last);
    /* That graph is gone: its names mean nothing any more, and what it took is free again when its last run has
     * ended. */
    void (*forget)(lb_device *device, uint64_t first, uint64_t last);
    /* Runs so far that no `ran` told of; NULL where the device does not count them. */
    uint64_t (*unheard)(lb_device *device);
    /* Sets results and states of works that are done. `wait`: returns when `work`, or every one (NULL), is. */
    void (*collect)(lb_device *device, const lb_device_work *work, bool wait);
    /* Bytes of device memory taken so far, and works that were skipped: for coverage. */
    void (*account)(const lb_device *device, uint64_t *memory_bytes, uint64_t *skipped);
    /* Why the device was lost; "" while it is not. */
    const char *(*why_lost)(const lb_device *device);
    void (*close)(lb_device *device); /* waits for what is under way, and frees */
    /* In a forked child: frees the memory of the host, and touches nothing else. */
    void (*abandon)(lb_device *device);
} lb_device_ops;

/* Every back end's own struct begins with one. */
struct lb_device {
    const lb_device_ops *ops;
};

#endif
