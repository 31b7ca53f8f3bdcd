/* What the files of the CUDA back end share; see cuda_device.h.
 *
 * A flight is one launch and what it was for: works whose parts lie in one piece of each ring. Flights are finished in
 * the order in which they began; a ring's mirror is pinned memory with the same offsets.
 *
 *     a stream of the program   ──op──▶ measured where it lies ──op──▶ copied aside ──op──▶ copied aside ──op──▶ …
 *     side                                                                  └── one launch for all of these ──┘
 *     own                       what flights have found comes to the host
 *
 * Either way a value has been read, and nothing of ours looks at the program's memory again, when its stream comes to
 * what is queued behind. */
#ifndef LB_CUDA_INSIDE_H
#define LB_CUDA_INSIDE_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_kernel.h"
#include "device/kernel_item.h"
#include "cuda/first_fit.h"
#include "cuda/ring_space.h"

#define LB_CUDA_BATCH 64               /* works of a flight */
#define LB_CUDA_TOGETHER 32            /* … of values that were copied aside */
#define LB_CUDA_FEW 4                  /* values of an op that are copied aside; of more, a launch of their own pays */
#define LB_CUDA_ASIDE_BYTES (4u << 20) /* of a value: a larger one is measured about as fast as it is copied */
#define LB_CUDA_READS 16               /* streams that values are read on at a time */
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
    lb_cuda_piece aside;           /* of STAGING, where the value was copied; not taken: it is measured where it lies */
} lb_cuda_job;

/* Works that are to be measured by one launch, and what they need. */
typedef struct lb_cuda_plan {
    lb_cuda_piece pieces[LB_CUDA_RINGS]; /* only their sizes */
    lb_kernel_item *items;
    size_t n_jobs, n_items;
    uint64_t words, units; /* of the launch */
    lb_cuda_job jobs[LB_CUDA_BATCH];
} lb_cuda_plan;

typedef enum lb_cuda_planned {
    LB_CUDA_TAKEN,
    LB_CUDA_FULL, /* it goes into a flight of its own */
    LB_CUDA_TOO_LARGE,
    LB_CUDA_UNSUPPORTED
} lb_cuda_planned;

/* A stream of the program on which values are read. */
typedef struct lb_cuda_read {
    CUstream stream;
    uint64_t stream_id;
    CUevent last;    /* what was read there by now has been */
    CUevent copied;  /* of this entry: the last copy aside has been made; NULL: none was made here */
    bool gathered;   /* `side` does not wait for that yet */
    uint64_t serial; /* of the flight with which `last` is done; LB_CUDA_GATHERED: of one that has not begun */
} lb_cuda_read;
#define LB_CUDA_GATHERED UINT64_MAX /* the slot of works, too, that were gathered and have no flight yet */

typedef struct lb_cuda_flight {
    struct lb_cuda_flight *next;
    uint64_t serial; /* = slot of its works */
    CUstream stream;
    uint64_t stream_id; /* lb_cuda_stream_id */
    CUevent read;       /* all of it on `stream`: what reads the program's memory is done */
    CUevent fetched;    /* set in the last flight that was fetched together */
    bool fetching;
    bool aside; /* of values that were copied aside: it reads nothing of the program's */
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

/* Our context is current, and a capture of the program does not mind what is called, until `leave`. */
typedef struct lb_cuda_visit {
    bool pushed;
} lb_cuda_visit;

typedef struct lb_cuda {
    lb_device base;
    const lb_cuda_driver *cuda;
    lb_cuda_options options;
    CUcontext context;
    bool retained; /* the context: released when the back end is closed */
    CUdevice device;
    lb_cuda_kernels kernels;
    CUstream own;  /* what is fetched */
    CUstream side; /* what was copied aside is measured */
    uint64_t side_id;
    CUstream trials; /* of values that a device is tried with */
    CUdeviceptr arena;
    char *pinned;
    uint64_t arena_bytes;
    bool ready; /* memory is there */
    lb_cuda_ring rings[LB_CUDA_RINGS];
    lb_cuda_flight *first, **last;
    uint64_t serial, slots, skipped, looks;
    lb_cuda_plan gathered; /* values that were copied aside, which the next launch on `side` measures */
    uint64_t gathered_bytes;
    lb_cuda_read reads[LB_CUDA_READS];
    unsigned n_reads;
    uint64_t unlisted;               /* the last flight that reads on a stream for which `reads` had no room; 0: none */
    unsigned visits;                 /* entered and not left */
    bool relaxed;                    /* the thread minds no capture, */
    CUstreamCaptureMode mode_before; /* which is restored when the last visit is left */
    CUevent *events;                 /* unused ones */
    size_t n_events, events_room;
    lb_cuda_captured *captured, **last_captured;
    lb_cuda_captured *sought; /* where the last work was expected: the next one is behind it */
    uint64_t n_expected, captured_values, turns_bytes, unheard;
    void *turns_before;             /* mirror of TURNS as it was before the results were fetched */
    uint64_t ours[LB_CUDA_STREAMS]; /* streams that are known to be of this context, by their ids; 0: none */
    unsigned n_ours;
    lb_err lost;
    lb_kernel_item items[LB_CUDA_BATCH]; /* of the flight that is made, */
    lb_kernel_item gathered_items[LB_CUDA_BATCH];
    lb_kernel_launch launch; /* and what the kernel is given of them */
} lb_cuda;

/* ---- entering ---------------------------------------------------------------------------------------------------- */

bool lb_cuda_enter(lb_cuda *device, lb_cuda_visit *visit); /* false: the device is lost; nothing is to be left */
/* With a call of the driver less: what a capture minds is not called before lb_cuda_relax. */
bool lb_cuda_enter_briefly(lb_cuda *device, lb_cuda_visit *visit);
bool lb_cuda_relax(lb_cuda *device); /* false: the device is lost */
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

/* Reads of `n` works are queued on `stream`; each has a state afterwards. `id`: lb_cuda_stream_id of it. */
void lb_cuda_fly(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream, uint64_t id, bool may_wait);
/* One more; `item`: the work's, or the same value elsewhere. `copied`: its bytes come, too. */
lb_cuda_planned lb_cuda_plan_work(lb_cuda *device, lb_cuda_plan *plan, lb_device_work *work, const lb_measuring *item,
                                  bool copied);
/* The flight of all that is planned: it has its pieces and is the last of the list, and the plan is empty. NULL: there
 * is no room, and nothing has happened; or no memory, and the works are skipped: the plan is empty. */
lb_cuda_flight *lb_cuda_take_off(lb_cuda *device, lb_cuda_plan *plan, CUstream stream, uint64_t id, bool may_wait);
/* Queues the launch, of items that the flight was planned with. */
bool lb_cuda_measure(lb_cuda *device, const lb_cuda_flight *flight, lb_kernel_item *items, size_t n_items);

/* ---- values copied aside ----------------------------------------------------------------------------------------- */

/* Copies the value aside, to be measured with others. False: nothing has happened, for it is too large or there is no
 * room. */
bool lb_cuda_gather(lb_cuda *device, lb_device_work *work, CUstream stream, uint64_t id, bool may_wait);
/* What was gathered becomes a flight. False: there is no room for it, and it stays gathered; or the device is lost. */
bool lb_cuda_flush(lb_cuda *device, bool may_wait);
/* The flight is the last that reads on its stream, */
void lb_cuda_note_read(lb_cuda *device, const lb_cuda_flight *flight);
/* and all up to that one are done. */
void lb_cuda_forget_reads(lb_cuda *device, uint64_t serial);
/* `stream` waits for what is read on other streams. */
void lb_cuda_wait_for_program(lb_cuda *device, CUstream stream, uint64_t id);
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
