/* The machine: interprets the programs of one rank, one op after another, on its own memory.
 *
 *   begin(program) ──▶ run ──▶ STEP_DONE ──▶ begin(next program) …
 *                       │ ▲
 *                       ▼ │ finish / stand_in
 *                   AT_COLLECTIVE      the session brings the members together (collective_sum.c)
 *
 * Programs of a run are declared first, so that storages know their extent and how long they live. In chained mode what
 * an op computed is what later ops read, over steps. In isolated mode every input that is not known to equal the
 * recording is set to its recorded bytes before it is read; where those were not kept the computed bytes stand if their
 * digest is the recorded one, and are `approximate` otherwise.
 *
 * A value is `exact` when it is known to equal the recording. Storages carry that flag for all their bytes; values
 * refine it (state[]). Missing bytes (not kept, not computable) make everything that depends on them missing.
 */
#ifndef LB_REPLAY_MACHINE_H
#define LB_REPLAY_MACHINE_H

#include "kernel/value_memory.h"
#include "machine/reuse.h"
#include "program/prepared.h"

/* Where recorded bytes come from; tests have their own. */
typedef struct lb_recording {
    void *context;
    /* As lb_capture_value: LB_ERR_NOT_CAPTURED when the bytes were not kept. */
    lb_status (*value)(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err);
    /* As lb_capture_program; may be NULL. */
    lb_status (*program)(void *context, int32_t rank, int64_t step, const lb_program **program, lb_err *err);
} lb_recording;

typedef enum lb_contribution {
    LB_CONTRIBUTE_OWN,
    LB_CONTRIBUTE_ZERO,
    LB_CONTRIBUTE_MEAN,
    LB_CONTRIBUTE_EXCLUDE
} lb_contribution;

/* Where a source takes its bytes from: see substitute.h. */
typedef enum lb_machine_contents {
    LB_CONTENTS_RECORDED,
    LB_CONTENTS_OWN,
    LB_CONTENTS_FINITE,
    LB_CONTENTS_STEP
} lb_machine_contents;

/* Parts of a routing decision; forcing one forces those before it. */
enum { LB_ROUTE_RECOMPUTE, LB_ROUTE_IDS, LB_ROUTE_WEIGHTS, LB_ROUTE_SLOTS };

/* What the swaps of a run ask of one op; choice 0 asks nothing. */
typedef struct lb_choice {
    lb_method method;
    lb_dtype region; /* precision region: float results are held in this dtype; 0: none */
    bool widen_only; /* f32 and f64 regions never narrow */
    bool swapped;
    bool reordered;       /* an order swap applies */
    bool rounds_wide;     /* f32 results are evaluated in f64 and then rounded by method.cast */
    uint8_t routing;      /* LB_ROUTE_…: which recorded parts of a routing decision are forced */
    const char *order;    /* as given; collectives parse it themselves */
    uint8_t contribution; /* lb_contribution of this rank to a collective */
    bool finite;          /* 0 for what results hold that is not finite */
    bool by_torch;        /* plan.backend computes it */
    uint8_t contents;     /* lb_machine_contents of a source */
    int64_t contents_step;
    bool wide_compute, wide_accumulate; /* either: the arithmetic is f64's, whatever the operands are */
    const struct lb_recipe *recipe;     /* how operands are rounded before the kernel sees them; NULL: they are not */
    const struct lb_recipe *storage;    /* the grid that results are rounded to after it; NULL: none but their dtype */
} lb_choice;

/* What the machines of one run share. */
typedef struct lb_run {
    const lb_plan *plan;
    const lb_observer *observer; /* may be NULL */
    lb_recording recording;
    lb_replay_summary *summary;
    struct lb_regeneration *regeneration; /* see regenerate.h; NULL: nothing is regenerated */
    bool stop;                            /* the observer wants no more, or a chain became undecided */
    lb_memory *spare;                     /* buffers of earlier runs; NULL */
} lb_run;

/* What is known about the inputs of an op together. */
typedef struct lb_inputs {
    bool exact;       /* all equal the recording */
    bool missing;     /* some could not be had */
    bool swapped;     /* a swap changed what a collective was given */
    lb_verdict taint; /* worst verdict that flowed in */
} lb_inputs;
#define LB_INPUTS_INIT {true, false, false, LB_VERDICT_IDENTICAL}

/* What is known of a reduction over ranks whose recorded bits are not those that were computed. */
typedef struct lb_sum_verdict {
    char order[24]; /* that gives them; "": none that has a name */
    bool inside;    /* none, but they lie within the rounding of any */
} lb_sum_verdict;

typedef enum lb_machine_state { LB_MACHINE_STEP_DONE, LB_MACHINE_AT_COLLECTIVE, LB_MACHINE_STOPPED } lb_machine_state;

enum { LB_STATE_UNKNOWN, LB_STATE_EXACT, LB_STATE_APPROXIMATE };

typedef struct lb_machine {
    lb_run *run;
    int32_t rank;
    lb_memory *memory;
    uint32_t declared, current; /* programs declared; the one that runs */

    const lb_prepared *prepared;
    const lb_choice *choices;
    const uint8_t *choice_of;         /* per op: row of choices; NULL: all 0 */
    const uint8_t *selected;          /* per op: plan.select selects it; NULL: all. Set after begin */
    lb_memory_storage **storages;     /* per row of prepared->storages */
    uint8_t *state;                   /* per value: LB_STATE_… */
    uint32_t next;                    /* op to run next */
    uint32_t *postponed, n_postponed; /* receives whose messages were not there when they were reached */
    uint32_t resume; /* the op that needs what the receive at hand brings; LB_NONE: it is in its turn */
    bool conditional;
    bool chooses_anew;                     /* in this step a recorded choice was not forced: see decision.c */
    bool refused;                          /* the backend refused the op that runs */
    const char *why;                       /* why the op that runs is opaque; NULL: no row has its name */
    uint64_t serial;                       /* ops begun so far, over all programs */
    bool tf32_products, tf32_convolutions; /* what ran on CUDA may have read factors of f32 as TF32 */
    bool e4m3_nan;                         /* lb_call.e4m3_nan */

    struct lb_operand_rounding *rounding; /* the session's, see operand_rounding.h; NULL: no swap rounds operands */

    /* The exact shadow of a chain: a machine of its own, all float values f64, one op ahead of this one. */
    struct lb_machine *shadow;
    bool is_shadow;
    bool alone;        /* a shadow that is all that runs (plan.shadow_only) */
    lb_reuse reuse;    /* of such a shadow: what earlier runs gave and this one has not put yet */
    lb_run shadow_run; /* what the shadow runs under: quiet, uncompared */
    lb_plan shadow_plan;
    lb_replay_summary shadow_summary;

    /* Of the op that runs: memory for operands, and buffers to give back afterwards. */
    struct lb_arena {
        char *block;
        size_t used, size;
        struct lb_arena *older;
    } *arena;
    void **scratch;
    uint32_t n_scratch, scratch_room;
    lb_err *err;
} lb_machine;

lb_status lb_machine_new(lb_run *run, int32_t rank, lb_machine **machine, lb_err *err);
void lb_machine_free(lb_machine *machine);
/* In the order in which they will run. */
lb_status lb_machine_declare(lb_machine *machine, const lb_prepared *prepared, lb_err *err);
lb_status lb_machine_begin(lb_machine *machine, const lb_prepared *prepared, const lb_choice *choices,
                           const uint8_t *choice_of, lb_err *err);
lb_status lb_machine_run(lb_machine *machine, lb_machine_state *state, lb_err *err);

/* ---- at a collective: op `machine->next` has not run yet --------------------------------------------------------- */

/* The recorded results of the collective stand in, for the shadow too, and the machine may go on. */
lb_status lb_machine_stand_in(lb_machine *machine, lb_err *err);
/* Collective code has filled the outputs: compare, tell the observer, go on. `inputs`: of all members together; `sum`:
 * of a reduction, or NULL. The shadows' collective, if there are shadows, is run before that of their machines. */
lb_status lb_machine_finish(lb_machine *machine, const lb_inputs *inputs, const lb_sum_verdict *sum, lb_err *err);
/* The op at hand only writes what it receives: the machine goes on, and stands at it again before the first op that
 * touches that storage, or at the end of the step. Not in layer mode, and not twice. */
bool lb_machine_can_postpone(const lb_machine *machine);
lb_status lb_machine_postpone(lb_machine *machine, lb_err *err);
/* The window an input of the current op is read from, in its recorded dtype unless the op lies in a region; what is
 * known about it is added to `inputs`. The tensor is good until finish or stand_in. */
lb_status lb_machine_input(lb_machine *machine, uint32_t value, lb_tensor *tensor, lb_inputs *inputs, lb_err *err);
/* The window a result of the current op is written to, its buffer made, in whatever dtype it is held. */
lb_status lb_machine_output(lb_machine *machine, uint32_t value, lb_tensor *tensor, lb_err *err);
const lb_choice *lb_machine_choice(const lb_machine *machine);

/* ---- for operands.c, rebase.c, reuse.c and machine.c ------------------------------------------------------------- */

/* Operand memory of the current op; NULL when out of memory (reported). */
void *lb_machine_take(lb_machine *machine, size_t bytes);
/* A tensor's worth of scratch that lives as long as the current op. */
void *lb_machine_scratch(lb_machine *machine, size_t bytes);
/* Loads what the source op brings. */
lb_status lb_machine_take_source(lb_machine *machine, const lb_op *op);

#endif
