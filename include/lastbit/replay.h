/* Replay: re-executes recorded steps, as they were or under swaps, and compares with the recording.
 *
 * Simplest use:
 *
 *     lb_plan plan = LB_PLAN_INIT;
 *     lb_replay *replay;
 *     lb_replay_summary summary;
 *     LB_TRY(lb_replay_open(capture, &replay, err));
 *     lb_status status = lb_replay_run(replay, &plan, NULL, &summary, err);
 *     if (status == LB_OK) printf("%llu ops gave the recorded bits\n", (unsigned long long)summary.bitwise);
 *     lb_replay_close(replay);
 *
 *   isolated  each op from its recorded inputs: its local error. Where the bytes of an input were not kept, it is
 *             computed; orders of additions that libraries use are tried until the value has the recorded digest
 *   layer     each layer from its recorded inputs
 *   chained   from the sources of the first step on, through the window. Where code that was not recorded wrote to a
 *             storage, the recorded bytes are taken, and the chain goes on from these
 *
 * Several ranks run together: each to its next collective, which completes when all members have arrived. One rank
 * alone takes the recorded outputs of its collectives.
 */
#ifndef LASTBIT_REPLAY_H
#define LASTBIT_REPLAY_H

#include <lastbit/archive.h>
#include <lastbit/verdict.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lb_replay_mode { LB_REPLAY_ISOLATED, LB_REPLAY_LAYER, LB_REPLAY_CHAINED } lb_replay_mode;

typedef enum lb_swap_kind {
    /* argument "f64", "f32", "bf16", …: a region, values stay wide inside, rounded at its border; "tf32[:rz|rna|rne]":
     * what products read is rounded to TF32, and nothing else changes; compute, accumulate and storage types each by
     * itself, or a recipe: see replay/precision/recipe.h */
    LB_SWAP_PRECISION,
    /* a named kernel: "openblas"; "finite": the op's own, with 0 for NaN and infinities in its results; "torch":
     * plan.backend computes the op */
    LB_SWAP_KERNEL,
    LB_SWAP_ORDER, /* a schedule: "sequential", "pairwise", "blocked:64", "ring", … */
    /* "rne", "rz", "stochastic:SEED": of results narrower than f32; f32 results are evaluated in f64 */
    LB_SWAP_ROUNDING,
    LB_SWAP_SKIP, /* the module becomes the identity (own residual add) or gives 0 */
    LB_SWAP_MUON, /* "f32": Newton–Schulz in f32; "adamw": AdamW in its place */
    /* collective contributions of the ranks selected: "zero", "mean" (of the others), "exclude": the reduction runs
     * over the others, a sum of averages-to-be (DDP) rescaled by world / others */
    LB_SWAP_RANK,
    /* bytes of sources (parameters, batches) in chained replay: "own" (what this run itself left there: an unseen write
     * is undone), "finite" (0 for NaN and infinities), "step:N" (the same source's) */
    LB_SWAP_SOURCE,
    /* of mixtures of experts, chained: "recompute", or recorded "ids", "ids+weights", "ids+weights+slots" */
    LB_SWAP_ROUTING,
    LB_SWAP_ACCUMULATE, /* "bf16", …: every addition inside sums and products is rounded to it */
    /* "0.001", …: what optimizers do to parameters is made that many times as large; "0": nothing. With index=: what
     * single ops write in place */
    LB_SWAP_UPDATE,
    /* composites (see composite.h) computed by one kernel: selector "rms_norm", argument "butterfly" (also "on",
     * "off"), or any selector and "rms_norm[:butterfly]" */
    LB_SWAP_FUSE
} lb_swap_kind;

/* `selector`: terms joined by "&": a PCRE2 pattern on "layer/op", or phase=, rank=, block=, op=, layer=, step=, class=.
 * Patterns of layers are found anywhere in the path unless they are anchored. "" selects everything. */
typedef struct lb_swap {
    lb_swap_kind kind;
    const char *selector;
    const char *argument;
} lb_swap;
/* "SELECTOR=ARGUMENT" as on the command line (split at the last '='); strings are malloc'ed into `swap`. */
LB_API lb_status lb_swap_parse(lb_swap_kind kind, const char *text, lb_swap *swap, lb_err *err);
LB_API void lb_swap_release(lb_swap *swap);

typedef struct lb_backend lb_backend;

/* Where a chained replay stood at the beginnings of its steps, so that another run of the same window begins there and
 * not at its first step. It computes the same bits. */
typedef struct lb_checkpoints lb_checkpoints;
/* `limit_bytes`: of all tensors kept; the oldest checkpoints go first. Bytes in the capture don't count. One thread at
 * a time. */
LB_API lb_status lb_checkpoints_new(uint64_t limit_bytes, lb_checkpoints **checkpoints, lb_err *err);
LB_API void lb_checkpoints_clear(lb_checkpoints *checkpoints);
LB_API void lb_checkpoints_free(lb_checkpoints *checkpoints);
LB_API uint32_t lb_checkpoints_count(const lb_checkpoints *checkpoints);
LB_API uint64_t lb_checkpoints_bytes(const lb_checkpoints *checkpoints);
/* What a rank had there in the window of that value; false: nothing, or in another dtype. Good as long as the
 * checkpoint. */
LB_API bool lb_checkpoint_contents(const lb_checkpoints *checkpoints, uint32_t checkpoint, int32_t rank,
                                   const lb_value *value, lb_tensor *tensor);

typedef struct lb_plan {
    size_t size; /* sizeof(lb_plan) */
    lb_replay_mode mode;
    int64_t first_step, last_step; /* inclusive; INT64_MIN / INT64_MAX: all recorded */
    const int32_t *ranks;          /* NULL: all */
    uint32_t n_ranks;
    const lb_swap *swaps;
    uint32_t n_swaps;
    int threads;  /* 0: as many as OpenMP gives */
    bool compare; /* compare results with the recording, fill verdicts */
    /* besides, run the exact shadow: every float value f64 (complex: a pair of f64), casts the identity, discontinuous
     * ops, decisions and random draws take their recorded results. Isolated: re-anchored to the recorded inputs at each
     * op; chained: from the sources on. Events then carry both `computed` and `shadow`. */
    bool shadow;
    /* chained: the shadow is all that runs, and nothing is compared; events carry no `computed`. Isolated: what was
     * recorded is taken as it is, without being computed, and nothing is judged; observer.beside is told of results and
     * their shadows one after the other, and events carry none. */
    bool shadow_only;
    uint64_t memory_bytes; /* 0: no limit */
    /* a changed decision (item, nonzero, top-k) takes its recorded outcome and the chain goes on, conditional; still
     * undecided where the outcome was not kept */
    bool force_decisions;
    /* isolated, one step of one rank, no skip and no Muon swap: per op of the recorded program, whether it is run;
     * NULL: all are */
    const uint8_t *only;
    /* n_swaps counts, set by the run: the ops (--skip: modules, --muon: parameters) that each swap concerned, over all
     * steps and ranks; NULL: not wanted */
    uint64_t *touched;
    const char *select;   /* selector of the ops whose events are marked `selected`; NULL: all */
    lb_checkpoints *keep; /* chained: emptied, then the beginning of every step but the first is kept there */
    /* chained: of a run of the same window with the first `n_common` swaps of this one; this run begins where no
     * further swap has concerned anything yet, if such a place was kept */
    lb_checkpoints *from;
    uint32_t n_common;
    int64_t from_by;     /* and not after the beginning of this step */
    lb_backend *backend; /* runs ops that replay does not know; NULL: recorded results stand in. One thread uses it. */
    /* and those that it knows, but for swapped and random ops and decisions; what the backend refuses is computed
     * here */
    bool backend_all;
    bool backend_selected; /* it runs nothing but what LB_SWAP_KERNEL "torch" selects */
} lb_plan;
#define LB_PLAN_INIT                                                                                                   \
    {.size = sizeof(lb_plan), .first_step = INT64_MIN, .last_step = INT64_MAX, .compare = true, .from_by = INT64_MAX}

/* One op has run (or stood in). Tensors are valid during the call only. */
typedef struct lb_event {
    const lb_program *program; /* the recorded program */
    uint32_t op;
    int64_t step;
    int32_t rank;
    lb_verdict verdict;
    bool approximate;   /* inputs were not bit-equal to the recorded ones */
    bool swapped;       /* a swap applied */
    bool selected;      /* plan.select selects it */
    bool conditional;   /* a float decision changed upstream */
    double bound_ratio; /* worst |error| / bound; NaN when not computed */
    /* LB_VERDICT_OPAQUE: why nothing computed it. LB_VERDICT_REORDERED: the order that was found to give the recorded
     * bits, whose bytes were not kept. Else NULL */
    const char *why;
    uint32_t n_results;        /* results, then written values */
    const uint32_t *values;    /* their rows in program->values; LB_NONE: none */
    const lb_tensor *computed; /* data NULL when there is none */
    const lb_tensor *recorded; /* data NULL when bytes were not kept */
    /* plan.shadow: the exact shadow, f64 or c128 (integers as recorded); data NULL when there is none. In chained mode
     * an observer may write other numbers there: what follows reads those. */
    const lb_tensor *shadow;
    bool backend;                     /* plan.backend ran it */
    const struct lb_machine *machine; /* for lb_event_exact */
} lb_event;
/* What the exact shadow of a chain holds in the window of any value of the program right after this op. False when
 * there is none. */
LB_API bool lb_event_exact(const lb_event *event, uint32_t value, lb_tensor *tensor);

typedef struct lb_quantisation lb_quantisation; /* see precision.h */

typedef struct lb_observer {
    void *context;
    /* Return false to stop the replay early (the run ends with LB_OK). */
    bool (*op)(void *context, const lb_event *event);
    /* Isolated with plan.shadow_only, before the op's own event (may be NULL): a result or written value as it was
     * recorded (computed, where its bytes were not kept), and in f64 from the op's recorded inputs. Valid during the
     * call. A value that nothing is told of has no shadow. */
    void (*beside)(void *context, const lb_program *program, uint32_t op, uint32_t value, const lb_tensor *recorded,
                   const lb_tensor *exact);
    void (*step_end)(void *context, int32_t rank, int64_t step);
    /* Asked before a source is loaded (may be NULL): return true after pointing `tensor->data` at different contents of
     * the same dtype and layout (valid until the next call), e.g. another capture's parameter. */
    bool (*source)(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);
    /* Chained with plan.shadow_only and nothing swapped, before an op is run (either may be NULL): true where it gives
     * what it gave in an earlier run. It does not run then, and no event tells of it; `former` is asked for one of its
     * results where an op that runs touches the storage: return true after pointing `tensor` at it, f64, of the same
     * shape. A source that is reused is loaded then. */
    bool (*reuses)(void *context, int32_t rank, int64_t step, uint32_t op);
    bool (*former)(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);
    /* Asked before the exact shadow takes the recorded result of an op that it does not compute: a discontinuous one,
     * random draws, a collective whose members are not here (may be NULL). Return true after pointing `tensor` at what
     * it should take instead, of the same dtype and shape, e.g. another capture's decision. Asked of an opaque op, too,
     * whose result is rounded: there the shadow goes on from what was recorded only when the answer is true, and is
     * missing otherwise. */
    bool (*decided)(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);
    /* Asked before `decided` of a discontinuous op (may be NULL): true where the exact shadow computes the op from its
     * own inputs after all. `op`: by its number in the program. */
    bool (*computes)(void *context, int32_t rank, int64_t step, uint32_t op);
    /* Asked before --routing forces part of a choice of experts (may be NULL): return true after pointing `tensor` at
     * what it should take instead of what was recorded, of the same dtype and shape. */
    bool (*routed)(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);
    /* Under plan.force_decisions, where the recording kept no bytes of a bool, an index or a shape that steers the
     * program (either may be NULL). Told of one unless the recording has another digest of it; asked for the recorded
     * contents where it came out differently, or has no digest: return true after pointing `tensor` at them, of the
     * same dtype and shape. */
    void (*decision)(void *context, int32_t rank, int64_t step, uint32_t value, const lb_tensor *contents);
    bool (*recalled)(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);
    /* A checkpoint may be kept (return false: don't), or the run begins at one; both may be NULL. What the observer
     * knows by then goes with it. Ids ascend. */
    bool (*keep)(void *context, uint32_t checkpoint);
    void (*resumed)(void *context, uint32_t checkpoint);
    /* A precision swap rounded an operand (may be NULL: then nothing is measured). */
    void (*quantised)(void *context, const lb_quantisation *quantisation);
} lb_observer;

typedef struct lb_replay_summary {
    uint64_t backend;                             /* run by plan.backend: neither native nor opaque */
    uint64_t ops, native, opaque, views, bitwise; /* bitwise: computing ops bit-equal to the recording */
    uint64_t compared;
    /* of bitwise: in another order of additions than the op's own, for bytes were not kept to judge it by */
    uint64_t regenerated;
    /* The worst, in the order of lastbit/verdict.h. Under swaps: the worst of the parts before and beside them, and
     * `swapped` where some bits came out different. */
    lb_verdict verdict;
    bool undecided; /* a changed bool, index or shape decision ended a chain */
    char undecided_at[160];
    char note[160]; /* what a swap assumed: AdamW's learning rate in Muon's place; empty: nothing */
    bool resumed;   /* the run began at a checkpoint; the counts are those of a whole run */
    double seconds;
    uint64_t peak_bytes; /* most memory of any rank for tensors, bytes used in place in the capture included */
    uint64_t live_bytes; /* most that the values needed at one time take */
} lb_replay_summary;

/* What an answer took: programs run, in whole or in part, and the ops that they ran. */
typedef struct lb_run_cost {
    uint64_t runs, ops;
} lb_run_cost;

/* All kernels that the calling thread runs take so many threads from now on, 0: as many as OpenMP gives; a plan's own
 * number goes before it. Of either, no more than there are processors, or 64, and no more than can be started. Results
 * do not depend on them. */
LB_API void lb_replay_threads(int threads);

typedef struct lb_replay lb_replay;

/* Keeps the capture open; analyses (op rows, slices, block classes) are made once and shared by all runs. */
LB_API lb_status lb_replay_open(lb_capture *capture, lb_replay **replay, lb_err *err);
LB_API void lb_replay_close(lb_replay *replay);
LB_API lb_status lb_replay_run(lb_replay *replay, const lb_plan *plan, const lb_observer *observer,
                               lb_replay_summary *summary, lb_err *err);
/* PyTorch in a child process that runs single ops. `interpreter`: NULL is python3; `folder`: where the package lastbit
 * lies; `modules`: to be imported first, they define custom ops. */
LB_API lb_status lb_backend_open(const char *interpreter, const char *folder, const char *const *modules,
                                 uint32_t n_modules, lb_backend **backend, lb_err *err);
LB_API void lb_backend_close(lb_backend *backend);
/* True when a kernel for this op name exists (views and host marks count as native). */
LB_API bool lb_replay_knows(const char *op_name);
/* What --kernel and --order offer for an op, names separated by blanks, cut to the room given; false: nothing. */
LB_API bool lb_replay_kernels(const char *op_name, char *kernels, size_t kernels_room, char *orders,
                              size_t orders_room);

#ifdef __cplusplus
}
#endif
#endif
