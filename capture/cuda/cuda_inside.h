/* What the files of the CUDA back end share; see cuda_device.h.
 *
 * A flight is one launch and what it was for: works whose parts lie in one piece of each ring. Flights are finished in
 * the order in which they began; a ring's mirror is pinned memory with the same offsets. */
#ifndef LB_CUDA_INSIDE_H
#define LB_CUDA_INSIDE_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_kernel.h"
#include "device/kernel_item.h"
#include "cuda/first_fit.h"
#include "cuda/ring_space.h"

#define LB_CUDA_BATCH 64 /* works of a flight */
#define LB_CUDA_STREAMS 8

typedef enum lb_cuda_ring_name {
    /* Device memory that begins as zeros, and is mirrored: */
    LB_CUDA_TURNS,   /* of graphs: a count of runs for each launch */
    LB_CUDA_REPLAYS, /* results of graphs: sets one behind the other, of which the ring is one */
    LB_CUDA_RESULTS,
    /* Device memory: */
    LB_CUDA_SCRATCH, /* mirrored, for the leaves */
    LB_CUDA_GRAPHS,  /* scratch of graphs */
    LB_CUDA_ASIDE,   /* bytes that graphs copied aside */
    LB_CUDA_STAGING, /* bytes copied aside */
    /* Pinned memory: */
    LB_CUDA_PINNED, /* bytes on their way */
    LB_CUDA_RINGS
} lb_cuda_ring_name;
#define LB_CUDA_ZEROED 3    /* rings */
#define LB_CUDA_MIRRORED 4  /* … */
#define LB_CUDA_OF_DEVICE 7 /* … */

typedef struct lb_cuda_ring {
    lb_ring_space space;
    lb_first_fit room; /* in place of it, where what is taken stays as long as a graph */
    CUdeviceptr device;
    char *host;
} lb_cuda_ring;

typedef struct lb_cuda_piece {
    uint64_t bytes, at, name;
    bool taken;
} lb_cuda_piece;

typedef struct lb_cuda_job {
    lb_device_work *work;
    int64_t result;                /* index in the flight's results; -1: bytes alone */
    uint64_t scratch_at, bytes_at; /* in the flight's pieces */
    bool copied;                   /* its bytes come with the flight */
} lb_cuda_job;

typedef struct lb_cuda_flight {
    struct lb_cuda_flight *next;
    uint64_t serial; /* = slot of its works */
    CUstream stream;
    uint64_t stream_id; /* lb_cuda_stream_id */
    CUevent read;       /* everything on `stream` that reads the program's memory */
    CUevent fetched;    /* set in the last flight that was fetched together */
    bool fetching;
    lb_cuda_piece pieces[LB_CUDA_RINGS];
    uint64_t first_slot;
    size_t n;
    lb_cuda_job jobs[];
} lb_cuda_flight;

/* A work that waits for a run of a graph. */
typedef struct lb_cuda_expected {
    struct lb_cuda_expected *next;
    lb_device_work *work, copy; /* copy: of the bytes that the run has set aside */
    uint64_t value, run;
    bool there, may_wait;
    bool unsure; /* whether that run is the one that it was expected of */
} lb_cuda_expected;

/* A launch that is a node of a graph. */
typedef struct lb_cuda_captured {
    struct lb_cuda_captured *next;
    lb_cuda_expected *expected; /* in no order */
    uint64_t before;            /* runs by the turn that it began with: of graphs that were here and are gone */
    uint64_t begun;             /* runs that the host program was heard to queue */
    lb_cuda_piece pieces[LB_CUDA_RINGS]; /* a turn, results in each set of REPLAYS, scratch */
    uint64_t seen;                       /* runs that were given away, or lost */
    uint64_t first_value;
    bool launching; /* a run is about to be queued, or was, without our having been told that it was */
    bool forgotten; /* its graph is gone */
    uint32_t n;
    lb_cuda_piece aside[]; /* of each value: its bytes */
} lb_cuda_captured;

typedef struct lb_cuda {
    lb_device base;
    const lb_cuda_driver *cuda;
    lb_cuda_options options;
    CUcontext context;
    bool retained; /* the context: released when the back end is closed */
    CUdevice device;
    lb_cuda_kernels kernels;
    CUstream own;    /* what is fetched */
    CUstream trials; /* of values that a device is tried with */
    CUdeviceptr arena;
    char *pinned;
    uint64_t arena_bytes;
    bool ready; /* memory is there */
    lb_cuda_ring rings[LB_CUDA_RINGS];
    lb_cuda_flight *first, **last;
    uint64_t serial, slots, skipped;
    CUevent *events; /* unused ones */
    size_t n_events, events_room;
    lb_cuda_captured *captured, **last_captured;
    lb_cuda_captured *sought; /* where the last work was expected: the next one is behind it */
    uint64_t n_expected, captured_values, turns_bytes, unheard;
    void *turns_before;             /* mirror of TURNS as it was before the results were fetched */
    uint64_t ours[LB_CUDA_STREAMS]; /* streams that are known to be of this context, by their ids; 0: none */
    unsigned n_ours;
    lb_err lost;
    lb_kernel_item items[LB_CUDA_BATCH]; /* of the flight that is made, */
    lb_kernel_launch launch;             /* and what the kernel is given of them */
} lb_cuda;

/* ---- entering ---------------------------------------------------------------------------------------------------- */

/* Our context is current, and a capture of the program does not mind what is called, until `leave`. */
typedef struct lb_cuda_visit {
    bool pushed, relaxed;
    CUstreamCaptureMode mode;
} lb_cuda_visit;
bool lb_cuda_enter(lb_cuda *device, lb_cuda_visit *visit); /* false: the device is lost; nothing is to be left */
/* When the device was lost meanwhile, works that are under way learn it. */
void lb_cuda_leave(lb_cuda *device, const lb_cuda_visit *visit);

/* True for success. Any other result ends measuring on the device, with the call as the reason. */
bool lb_cuda_ok(lb_cuda *device, const char *call, CUresult result);
static inline bool lb_cuda_is_lost(const lb_cuda *device)
{
    return device->lost.status != LB_OK;
}
/* The program's capture broke, by whatever it did: that says nothing about the device. */
static inline bool lb_cuda_is_about_capture(CUresult result)
{
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT;
}
#define LB_CUDA_CALL(device, NAME, ...) lb_cuda_ok(device, "cu" #NAME, (device)->cuda->NAME(__VA_ARGS__))

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool lb_cuda_allocate(lb_cuda *device);
void lb_cuda_free_memory(lb_cuda *device);
CUevent lb_cuda_take_event(lb_cuda *device); /* NULL: the device is lost */
void lb_cuda_give_event(lb_cuda *device, CUevent event);
/* Takes a piece of `bytes` bytes from each ring where that is not 0; false, and nothing is taken, when one has no
 * room. */
bool lb_cuda_take_piece(lb_cuda *device, lb_cuda_ring_name ring, lb_cuda_piece *piece); /* of its bytes */
void lb_cuda_give_piece(lb_cuda *device, lb_cuda_ring_name ring, lb_cuda_piece *piece);
bool lb_cuda_take(lb_cuda *device, lb_cuda_piece pieces[LB_CUDA_RINGS]);
void lb_cuda_give(lb_cuda *device, lb_cuda_piece pieces[LB_CUDA_RINGS]);

/* ---- flights ----------------------------------------------------------------------------------------------------- */

/* Reads of `n` works are queued on `stream`; each has a state afterwards. */
void lb_cuda_fly(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream, bool may_wait);
/* Tells a stream from every other one of the process, those that had its handle before it among them. Where the driver
 * (before CUDA 12) has no such number it is the handle. Never 0. */
uint64_t lb_cuda_stream_id(const lb_cuda *device, CUstream stream);
/* `stream` waits for the reads of all flights from `from` on, up to `serial`. */
bool lb_cuda_wait_for_reads(lb_cuda *device, CUstream stream, const lb_cuda_flight *from, uint64_t serial);
/* Finishes what is done; with `wait` everything up to `serial`. */
void lb_cuda_drain(lb_cuda *device, uint64_t serial, bool wait);
void lb_cuda_skip(lb_cuda *device, lb_device_work *work);

/* `bytes` bytes at `from` through the whole of the pinned ring, which nothing else uses; the host waits. */
bool lb_cuda_copy_in_turns(lb_cuda *device, void *to, CUdeviceptr from, uint64_t bytes, CUstream stream);

/* Measuring becomes nodes of the graph that `stream` is captured into. */
void lb_cuda_capture(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream);

/* Works that expect what runs of graphs measure get what has ended; those whose run was overwritten are skipped. */
void lb_cuda_give_expected(lb_cuda *device);
/* They learn that nothing comes. With `silent` not even that: they no longer ask. */
void lb_cuda_forget_expected(lb_cuda *device, bool silent);
void lb_cuda_expect(lb_device *base, lb_device_work *const *works, size_t n, bool may_wait);
void lb_cuda_runs(lb_device *base, uint64_t first, uint64_t last);
void lb_cuda_ran(lb_device *base, uint64_t first, uint64_t last, void *stream);
void lb_cuda_run_failed(lb_device *base, uint64_t first, uint64_t last);
void lb_cuda_forget(lb_device *base, uint64_t first, uint64_t last);
uint64_t lb_cuda_unheard(lb_device *base);

/* Launches the measuring kernel. */
CUresult lb_cuda_launch(lb_cuda *device, lb_kernel_launch *launch, CUstream stream);

#endif
