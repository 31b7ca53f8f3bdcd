/* Recording from inside a running program: the C interface that the PyTorch recorder uses too.
 *
 * Simplest use:
 *
 *     lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
 *     lb_recorder *recorder;
 *     LB_TRY(lb_recorder_open("run.lb", &options, &recorder, err));
 *     lb_recorder_step_begin(recorder, 0, NULL, NULL);
 *     lb_recorder_scalar(recorder, "loss", 0.5, NULL);    // and lb_recorder_op_begin, lb_recorder_op_end for each op
 *     lb_recorder_step_end(recorder, true, NULL);
 *     return lb_recorder_close(recorder, err);            // the first failure since is told here
 *
 *     lb_recorder_open ─▶ ( lb_recorder_step_begin ─▶ ops, scopes, collectives, scalars … ─▶ lb_recorder_step_end )* ─▶ lb_recorder_close
 *
 * One recorder writes the archive of one process; each step becomes one lb_program (see lastbit/program.h) and is
 * permanent once its step_end has returned (under lb_recorder_async: the next one's). The recorder finds out by itself
 * what an op read and wrote: a tensor is named by its storage, a write makes a new version of the storage, bytes that
 * no recorded op produced become `lb::source` ops.
 *
 * The host is never harmed: nothing here prints, exits or aborts on input. After the first failure the recorder is
 * dead: every further call returns LB_ERR_STATE at once, what was committed stays readable, and the archive says why it
 * ended. A budget leaves out bytes first, and the coverage table says so; when not even the program of a step fits,
 * step_end gives LB_ERR_LIMIT and recording ends.
 *
 * Threads: every function may be called from any thread (one mutex); the bytes of a tensor are read inside the call
 * that passes it and never afterwards, unless that function says so.
 */
#ifndef LASTBIT_CAPTURE_H
#define LASTBIT_CAPTURE_H

#include <lastbit/output.h>
#include <lastbit/program.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What bytes are kept; each level contains the one before. Digests and statistics of results are kept at every
 * level. */
typedef enum lb_level {
    LB_LEVEL_STATS = 0,   /* no bytes */
    LB_LEVEL_SOURCES = 1, /* bytes of every source, and what goes into and comes out of collectives */
    LB_LEVEL_LAYERS = 2,  /* and of layer inputs and outputs */
    LB_LEVEL_OPS = 3,     /* and of every op's results */
    /* step by step the highest that fits whole into LB_AUTO_STEP_BYTES, its sources included, and with all before it
     * into LB_AUTO_TOTAL_BYTES: ops, else layers, else sources. Until a step ends, what is above its sources is held in
     * memory. When the total is used up, what the step before left (parameters, optimizer state) is not kept again: a
     * chained replay carries it over, and the level is stats */
    LB_LEVEL_AUTO = 4
} lb_level;
#define LB_AUTO_STEP_BYTES (256ull << 20)
#define LB_AUTO_TOTAL_BYTES (2048ull << 20)
LB_API const char *lb_keep_level_name(lb_level level); /* "stats", …; "" when unknown */
LB_API bool lb_keep_level_parse(const char *text, lb_level *level);

typedef struct lb_recorder lb_recorder;

typedef struct lb_recorder_options {
    size_t size; /* sizeof(lb_recorder_options) */
    lb_level level;
    int32_t rank, world;
    const char *keep;      /* PCRE2 on "layer/op": those results are kept whatever the level; NULL: none */
    const char *layers;    /* PCRE2 on the layer path: levels layers and ops keep only there; NULL: everywhere */
    uint64_t budget_bytes; /* of this archive; 0: none */
    /* flight recorder: nothing is written before a trigger, the last ring…2*ring steps then; 0: off. AUTO means SOURCES
     * then */
    uint32_t ring;
    uint64_t ring_bytes; /* memory the ring may take; above it ring recording stops. 0: a quarter of physical memory */
    bool overwrite;      /* replace the archive of an earlier run */
    uint64_t auto_step_bytes, auto_total_bytes; /* of level AUTO; 0: LB_AUTO_STEP_BYTES, LB_AUTO_TOTAL_BYTES */
    /* 1: the ring's window is kept in files of the folder too, where it survives a SIGKILL (lastbit/maintenance.h), and
     * they are removed when the recorder closes; 2: they stay, for the process that sees how this one ended */
    uint8_t ring_files;
    /* a capture whose levels, and whose choice of ops and layers, are taken step by step in place of level, keep and
     * layers; NULL: none */
    const char *like;
    /* lb_output_sync (lastbit/output.h): at which moments the archive is on the disk, so that a power cut takes no more
     * than what came after; a kill takes nothing that was committed */
    uint8_t sync;
    /* after so many steps the archive is closed, and another one begun (lb_capture_part_path), each of them whole and
     * never changed again: for file systems in front of an object store. 0: one archive. Not with a ring */
    uint32_t close_each;
} lb_recorder_options;
#define LB_RECORDER_OPTIONS_INIT                                                                                       \
    {.size = sizeof(lb_recorder_options), .level = LB_LEVEL_AUTO, .world = 1, .sync = LB_OUTPUT_SYNC_CLOSE}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

/* Creates `folder` (mode 0700) unless it is there, and the archive of `rank` in it. LB_ERR_EXISTS when that is
 * there. */
LB_API lb_status lb_recorder_open(const char *folder, const lb_recorder_options *options, lb_recorder **recorder,
                                  lb_err *err);
/* Ends an open step as incomplete, writes the closing record, has it written to the disk as `sync` says, frees the
 * recorder whatever the status. A recorder that failed earlier, in whatever call and in its own threads too, says
 * here why; the steps before that are in the archive, which says so, too. After lb_recorder_stop it is LB_OK. NULL
 * is fine. */
LB_API lb_status lb_recorder_close(lb_recorder *recorder, lb_err *err);
/* In a forked child: frees the memory, writes nothing. */
LB_API void lb_recorder_abandon(lb_recorder *recorder);
/* Stops recording for good, as after a failure: `why` goes to the archive. */
LB_API void lb_recorder_stop(lb_recorder *recorder, const char *why);
/* Steps that are still on their way to disk are there when it returns. Another thread may be inside one of these
 * functions, and never leave it: this is for a process that is about to end. */
LB_API void lb_recorder_flush(lb_recorder *recorder);
/* Archive path; at most the bytes it has if it is closed now. */
LB_API const char *lb_recorder_path(const lb_recorder *recorder);
LB_API uint64_t lb_recorder_bytes(const lb_recorder *recorder);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* `shard`: name of the data shard, or NULL. LB_ERR_STATE when a step is open. */
LB_API lb_status lb_recorder_step_begin(lb_recorder *recorder, int64_t step, const char *shard, lb_err *err);
/* Writes the program and commits. `complete`: the step was closed in order. */
LB_API lb_status lb_recorder_step_end(lb_recorder *recorder, bool complete, lb_err *err);
/* Ops went by that were not recorded: what is known about the contents of storages is forgotten. */
LB_API void lb_recorder_step_skip(lb_recorder *recorder);
LB_API bool lb_recorder_in_step(const lb_recorder *recorder);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* A tensor as the host holds it. `storage` names the allocation and is the same for every alias of it; it must not be
 * used again for another allocation before lb_recorder_forget. */
typedef struct lb_host_tensor {
    int64_t storage;
    const void *data;       /* element 0 of the view */
    uint64_t storage_bytes; /* of the whole storage */
    lb_layout layout;       /* offset counts from the start of the storage */
    lb_dtype dtype;
    /* 0: memory that the host reads; 1 cuda, 2 other: bytes are had by lb_recorder_device. Without that the value has
     * neither digest nor statistics */
    uint8_t device;
    uint8_t unit;  /* which of the devices of that kind */
    uint32_t lazy; /* LB_VALUE_CONJUGATED, LB_VALUE_NEGATED: what has to be done to an element when it is read */
    void *stream;  /* of a device: where what wrote these bytes was queued; NULL: the device's default */
} lb_host_tensor;

/* A row-major tensor that is a whole allocation of its own; `storage` is its address. */
LB_API lb_host_tensor lb_host_tensor_of(const void *data, lb_dtype dtype, int ndim, const int64_t *shape);
/* A DLPack `DLTensor` (any 0.x or 1.x; its C layout never changed). `data` counts as the start of the storage.
 * LB_ERR_UNSUPPORTED for element types that are not in lastbit/dtype.h and for vector lanes. */
LB_API lb_status lb_host_tensor_of_dlpack(const void *dl_tensor, lb_host_tensor *seen, lb_err *err);
/* How a host program hands over bytes that lie on a device. It is called inside a function of the recorder, by the
 * thread that called that, and calls no function of the recorder itself. It copies bytes [first, last) of the storage
 * to `to`, as they are when all that was queued for it before has run, and returns when they are there. 0: they are; 1:
 * not now (a graph is being captured); -1: the device failed, and is not asked again. `data`: where the storage begins,
 * as lb_host_tensor had it. */
typedef struct lb_device_access {
    size_t size; /* sizeof(lb_device_access) */
    int (*copy)(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last, void *to);
    void *context;
    /* Graphs; all NULL where values inside them are not read. `hold`: the graph that is being captured gets a node that
     * copies those bytes aside, into memory of the device that the host program holds under the number that it gives;
     * 0: not now. `copy_held`: what the last run left there, to `to`; answers like `copy`. `let_go`: the graph is gone
     * (of one that outlives the recorder nothing is said). */
    uint64_t (*hold)(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last);
    int (*copy_held)(void *context, uint64_t held, uint64_t bytes, void *to);
    void (*let_go)(void *context, uint64_t held);
    uint64_t device_bytes; /* at most so many are held; 0: LB_CUDA_DEVICE_BYTES */
} lb_device_access;
#define LB_EVERY_UNIT 255
/* From now on tensors of these devices are recorded as the host's are. `device`, `unit`: as in lb_host_tensor;
 * LB_EVERY_UNIT: all of the kind. */
LB_API lb_status lb_recorder_device(lb_recorder *recorder, uint8_t device, uint8_t unit, const lb_device_access *access,
                                    lb_err *err);
/* From now on values of CUDA's devices (device 1, `unit` as the driver numbers them) are measured where they lie, on
 * their stream, which lb_host_tensor.stream must say; the host waits for sources alone. At most `device_bytes` of each
 * device's memory are taken; 0: LB_CUDA_DEVICE_BYTES. A device without a driver that can do it is read by the function
 * of lb_recorder_device. */
#define LB_CUDA_DEVICE_BYTES (256ull << 20)
LB_API lb_status lb_recorder_cuda(lb_recorder *recorder, uint64_t device_bytes, lb_err *err);
/* Bytes a second that are measured so, of a large value on the device of the context that is current in this thread,
 * where the kernels were checked first. LB_ERR_STATE: this thread has no context. The host waits. */
LB_API lb_status lb_measuring_rate(double *rate, lb_err *err);
/* With what that is done, in words of at most `size` bytes: for which devices the kernels are compiled in this library,
 * the NVRTC that would compile them for others, and the driver. False: there is neither. */
LB_API bool lb_measuring_kernels(char *words, size_t size);
/* The allocation is gone; its key may come again. */
LB_API void lb_recorder_forget(lb_recorder *recorder, int64_t storage);
/* The allocation was resized in place, with these bytes now. Of one that was empty nothing has been written yet. */
LB_API void lb_recorder_resized(lb_recorder *recorder, int64_t storage, const void *data, uint64_t bytes);
/* Storages that the open step wrote in parts (a cache, slice by slice), at most `room`. The host that knows one of them
 * to be alive says so just before step_end: what is left there is remembered, and the next step does not take it for
 * news. */
LB_API uint32_t lb_recorder_partial(lb_recorder *recorder, int64_t *storages, uint32_t room);
LB_API void lb_recorder_remember(lb_recorder *recorder, int64_t storage);
/* From now on large results may be measured by another thread while the host goes on. It promises that what they lie in
 * stays where it is: after each call it asks which storages those are and holds them until as much has been fulfilled
 * as was promised then. Ops that write are no danger, they wait in op_begin; before bytes change, move or go in any
 * other way the host calls lb_recorder_settle. What is recorded is the same. Where no thread can
 * be started nothing changes. Returns true when steps may get to disk that much later, too: a step is permanent before
 * the next one ends. A process that a signal ends in between loses it, unless it calls lb_recorder_flush. */
LB_API bool lb_recorder_async(lb_recorder *recorder, bool beside);
/* Storages that are to be held since the last call, at most `room` at a time; sets *promised and *fulfilled, two
 * counts. */
LB_API uint32_t lb_recorder_unheld(lb_recorder *recorder, int64_t *storages, uint32_t room, uint64_t *promised,
                                   uint64_t *fulfilled);
/* Returns when the storage, or any (0), is not being read. */
LB_API void lb_recorder_settle(lb_recorder *recorder, int64_t storage);
/* What a tensor is: kind and name of the sources read from there. Kinds: PARAMETER, STATE, BATCH, OTHER. Values that
 * the open step already knows get flags and name too. `flags`: lb_value_flags, e.g. LB_VALUE_GRADIENT. Several tensors
 * of one storage (a flat parameter) are told apart by where they begin. */
LB_API lb_status lb_recorder_role(lb_recorder *recorder, const lb_host_tensor *tensor, lb_source_kind kind,
                                  uint32_t flags, const char *name, lb_err *err);
/* How ranks share out a tensor, see lastbit/shard.h. Everything is copied. */
typedef struct lb_sharding_axis {
    const char *name; /* of the axis of the mesh; NULL: it has none */
    uint32_t size;
    uint8_t kind; /* lb_placement_kind along it */
    int32_t dim;
    const char *reduce; /* of PARTIAL: "sum", … */
} lb_sharding_axis;
typedef struct lb_sharding {
    size_t size;      /* sizeof(lb_sharding) */
    const char *name; /* of the whole, where it has another than the value; NULL */
    int64_t at;       /* of the tensor's elements in row-major order: where the part begins */
    const lb_extent *extents;
    uint32_t n_extents;
    const lb_sharding_axis *axes; /* of the mesh; none: not told */
    uint32_t n_axes;
    const int32_t *ranks; /* as many as the sizes of the axes multiply to */
    uint32_t n_ranks;
} lb_sharding;
#define LB_SHARDING_INIT {.size = sizeof(lb_sharding)}
/* The tensor is part of a larger one: so are all values of the open step and of later ones that begin where it does and
 * have the shape of the part, or lie flat. A flat parameter is told of once for each tensor in it. LB_ERR_INVALID, and
 * nothing else happens, where the extents are none or reach beyond the tensor. */
LB_API lb_status lb_recorder_shard(lb_recorder *recorder, const lb_host_tensor *tensor, const lb_sharding *sharding,
                                   lb_err *err);
/* The storage is shared with something whose writes are not seen (NumPy, DLPack): it is verified whenever it is
 * read. */
LB_API void lb_recorder_escaped(lb_recorder *recorder, int64_t storage);
/* Where nothing was seen to write there since it was allocated, unseen code has: its bytes are a source when they are
 * read. */
LB_API void lb_recorder_vouch(lb_recorder *recorder, int64_t storage);

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/* A module path ("" is 0: outside every module). The same number for the same path as long as the recorder lives. */
LB_API uint32_t lb_recorder_scope(lb_recorder *recorder, const char *path, const char *class_name, uint32_t parent);

typedef struct lb_place {
    uint32_t scope; /* from lb_recorder_scope */
    uint32_t call;  /* from lb_recorder_enter */
} lb_place;

/* Where a wrapper stands that is entered around a module of the same path: at the call that comes, which the module
 * itself is counted as. */
LB_API lb_status lb_recorder_wrap(lb_recorder *recorder, uint32_t scope, lb_place *place, lb_err *err);
/* A module is entered: `inputs` are the tensors among its arguments. Sets *place; there is no hidden stack. */
LB_API lb_status lb_recorder_enter(lb_recorder *recorder, uint32_t scope, const lb_host_tensor *inputs, uint32_t n,
                                   bool recompute, lb_place *place, lb_err *err);
LB_API lb_status lb_recorder_leave(lb_recorder *recorder, lb_place place, const lb_host_tensor *outputs, uint32_t n,
                                   bool recompute, lb_err *err);

/* ---- ops --------------------------------------------------------------------------------------------------------- */

enum lb_operand_flags {
    LB_OPERAND_WRITTEN = 1 << 0,     /* the op writes this tensor (or the tensors of this list) */
    LB_OPERAND_OVERWRITTEN = 1 << 1, /* and does not read it: its bytes before the op mean nothing */
    /* what it writes is made of what was there, element by element: of nothing comes nothing */
    LB_OPERAND_CHANGED = 1 << 2
};

typedef struct lb_recorded_operand {
    uint8_t tag;    /* lb_arg_tag */
    uint8_t flags;  /* lb_operand_flags */
    uint32_t count; /* LIST: items. COMPLEX: 2 FLOAT items */
    union {
        int64_t i; /* INT, BOOL, DTYPE */
        double f;
        const char *text;                        /* STRING */
        const lb_host_tensor *tensor;            /* VALUE */
        const struct lb_recorded_operand *items; /* LIST, COMPLEX */
    } u;
} lb_recorded_operand;

/* A line of the program's code, see lb_line in lastbit/program.h; `function`, `text`: "" when not known. Its number for
 * lb_recorded_call.line, as long as the recorder lives; each call gives a new one. 0: out of memory. */
LB_API uint32_t lb_recorder_line(lb_recorder *recorder, const char *file, uint32_t number, const char *function,
                                 const char *text);

typedef struct lb_recorded_call {
    size_t size;      /* sizeof(lb_recorded_call) */
    const char *name; /* "aten::add.Tensor" */
    lb_place place;
    /* lb_op_flags that the caller knows: MUTABLE, RANDOM, DECISION, UNDEFINED, RECOMPUTE, COLLECTIVE, COMPOSITE; VIEW
     * is found out */
    uint32_t flags;
    uint8_t phase;                   /* lb_phase */
    uint8_t thread;                  /* 0: main thread */
    int64_t node;                    /* see lb_op.node; -1: none */
    const char *node_name;           /* NULL: none */
    const lb_recorded_operand *args; /* in schema order, defaults filled in */
    uint32_t n_args;
    bool followed; /* autograd made a node for it */
    /* a backward ended, and no forward that computes gradients has begun since: outside every scope the recorder then
     * takes the phase from what the op touches (see capture/recorder/phase.c) */
    bool after_backward;
    uint32_t line; /* from lb_recorder_line; 0: not known */
    /* what it copies from a device to the host may arrive after the op has ended; it arrives in the order of the stream
     * that the device's tensors have */
    bool non_blocking;
} lb_recorded_call;
#define LB_CALL_INIT {.size = sizeof(lb_recorded_call), .node = -1}

typedef struct lb_pending lb_pending;

/* Before the op runs, or right after it if it writes no argument: reads the arguments' bytes where they are needed. */
LB_API lb_status lb_recorder_op_begin(lb_recorder *recorder, const lb_recorded_call *call, lb_pending **pending,
                                      lb_err *err);
/* After it ran. `results`: VALUE or NONE (a result that is not there); other tags are skipped. Written arguments get
 * their new version here. *op is the row of the op (may be NULL). `pending` is gone whatever the status. */
LB_API lb_status lb_recorder_op_end(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results,
                                    uint32_t n, uint32_t *op, lb_err *err);
/* As op_end for an op that completes later (an asynchronous collective): the bytes of what it wrote are read when the
 * storage is next passed to the recorder, or at step_end. The host keeps them alive until then. */
LB_API lb_status lb_recorder_op_defer(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results,
                                      uint32_t n, uint32_t *op, lb_err *err);
/* What the host waits for before a call that reads values of a device, and holds no lock meanwhile. Then that call does
 * not wait, but for the reading itself. */
typedef struct lb_device_wait {
    bool copies;     /* the device is read by the host program's copy: so is it waited for, by copying a byte of */
    int64_t storage; /* this storage on the caller's stream */
    void *context, *stream; /* else: of CUDA */
} lb_device_wait;
/* Before lb_recorder_op_begin or a module's calls, of the tensors on devices that they are given; or, with `pending`,
 * before lb_recorder_op_end, of those that the op gave. `compared`: an optimizer runs, whose arguments are compared
 * with what is known of them. False: nothing is to be waited for, as far as that can be said before. */
LB_API bool lb_recorder_waits(lb_recorder *recorder, const lb_host_tensor *const *tensors, uint32_t n,
                              const lb_pending *pending, bool compared, lb_device_wait *wait);
/* Before lb_recorder_step_end and lb_recorder_close, which wait for all that is on its way: how many are in `list`. */
LB_API uint32_t lb_recorder_waits_at_end(lb_recorder *recorder, lb_device_wait *list, uint32_t room);
/* Of one that does not copy. Knows no recorder, and may be called whatever became of it. */
LB_API void lb_device_wait_for(const lb_device_wait *wait);
/* It raised: recorded with LB_OP_FAILED. */
LB_API void lb_recorder_op_failed(lb_recorder *recorder, lb_pending *pending);

/* Says what collective the op `op` was. `reduce`, `algorithm` may be NULL. */
LB_API lb_status lb_recorder_collective(lb_recorder *recorder, uint32_t op, const char *group, const char *reduce,
                                        const char *algorithm, uint64_t sequence, const int32_t *ranks,
                                        uint32_t n_ranks, lb_err *err);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* A graph of a device is captured (cudaStreamBeginCapture … EndCapture), and launched once or many times. Between the
 * first two calls ops, modules and collectives of that device are taken for its contents, not for those of the open
 * step; no step need be open. `graph`: the host's name for it. `whole`: the capture succeeded; else it never runs.
 * LB_ERR_STATE where another is being captured. */
LB_API lb_status lb_recorder_graph_begin(lb_recorder *recorder, int64_t graph, lb_err *err);
LB_API lb_status lb_recorder_graph_end(lb_recorder *recorder, bool whole, lb_err *err);
/* Just before and just after each launch, on that stream, whether it succeeded (`launched`) or not, in and out of
 * steps: what the graph does becomes part of the open step, in the order of the capture. What it reads is read before,
 * bytes included; what it computes is measured by nodes of the graph, and those bytes of it that the level at its
 * capture kept come too, both as far as the device had room for them; of the rest there is what is left when it has
 * run. The two belong together, and nothing else of this thread comes between. Nothing happens to the step where none
 * is open, or the graph is not known. LB_ERR_STATE where another is between the two. */
LB_API lb_status lb_recorder_graph_run(lb_recorder *recorder, int64_t graph, void *stream, lb_err *err);
LB_API lb_status lb_recorder_graph_ran(lb_recorder *recorder, int64_t graph, bool launched, void *stream, lb_err *err);
/* The graph is gone. */
LB_API void lb_recorder_graph_drop(lb_recorder *recorder, int64_t graph);

/* ---- beside ops -------------------------------------------------------------------------------------------------- */

LB_API lb_status lb_recorder_scalar(lb_recorder *recorder, const char *name, double number, lb_err *err);
/* Any tensor may be NULL: the module does not show it. */
LB_API lb_status lb_recorder_routing(lb_recorder *recorder, lb_place place, const lb_host_tensor *logits,
                                     const lb_host_tensor *ids, const lb_host_tensor *weights,
                                     const lb_host_tensor *slots, const lb_host_tensor *dropped, lb_err *err);

typedef struct lb_member { /* one parameter of a group */
    const char *name;
    int64_t storage, gradient; /* -1: no gradient */
} lb_member;
typedef struct lb_option { /* "lr", 3e-4 */
    const char *name;
    double number;
} lb_option;
/* One parameter group of an optimizer step whose ops began at op `first_op` (lb_recorder_next_op when it started). */
LB_API lb_status lb_recorder_group(lb_recorder *recorder, const char *optimizer, uint32_t index, uint32_t first_op,
                                   const lb_member *members, uint32_t n_members, const lb_option *options,
                                   uint32_t n_options, lb_err *err);
LB_API uint32_t lb_recorder_next_op(const lb_recorder *recorder);
/* Something worth knowing about this step, e.g. kind "thread", "degraded". */
LB_API lb_status lb_recorder_notice(lb_recorder *recorder, const char *kind, const char *message, lb_err *err);
/* See lb_writer_table. */
LB_API lb_status lb_recorder_table(lb_recorder *recorder, const char *name, const char *json, lb_err *err);

/* ---- flight recorder --------------------------------------------------------------------------------------------- */

/* Writes what the ring holds and ends ring recording; a step that is open is written too, when it ends. Without a ring:
 * notes the reason. */
LB_API lb_status lb_recorder_trigger(lb_recorder *recorder, const char *why, lb_err *err);
/* Values with a non-finite element that the open step saw so far where none belongs: gradients, parameters, states. */
LB_API uint64_t lb_recorder_nonfinite(lb_recorder *recorder);

#ifdef __cplusplus
}
#endif
#endif
