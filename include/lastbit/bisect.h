/* Bisect: why a recorded window fails, by replaying it with one thing changed at a time.
 *
 * Simplest use:
 *
 *     lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
 *     lb_bisection *found;
 *     LB_TRY(lb_bisect(capture, &options, &found, err));
 *     if (found->n_culprits) printf("%s %s\n", found->culprits[0].layer, found->culprits[0].op);
 *     lb_bisection_free(found);
 *
 *      failure ──▶ sanity ──▶ muon ──▶ precision ──▶ rank ──▶ block ──▶ culprit, cure, reproducer
 *
 * A stage changes one thing everywhere (Muon to f32, every float below f32 to f32, leave ranks out, skip a class of
 * blocks) and replays the window to its end. The first stage whose change cures is the axis; inside it the search
 * narrows to the smallest set of sites whose change still cures, and then to layer and op. What is named is what the
 * cure needs, not what went non-finite first.
 */
#ifndef LASTBIT_BISECT_H
#define LASTBIT_BISECT_H

#include <lastbit/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lb_failure_kind {
    LB_FAILURE_NONE,
    LB_FAILURE_GRADIENT, /* a local gradient is not finite, before any collective or sanitiser */
    LB_FAILURE_LOSS,
    LB_FAILURE_PARAMETER,
    LB_FAILURE_STATE,      /* optimizer state */
    LB_FAILURE_OUTPUT,     /* result of the outermost forward; -inf alone is a mask */
    LB_FAILURE_GROSS,      /* loss, gradient norm or a parameter far outside its own history */
    LB_FAILURE_PREDICATE,  /* what --predicate says */
    LB_FAILURE_DIFFERENCE, /* --against: departs from the reference */
    LB_FAILURE_RANKS       /* every number is fine, and ranks disagree: see ranks.h */
} lb_failure_kind;
LB_API const char *lb_failure_kind_name(lb_failure_kind kind); /* "gradient", "loss", … */

typedef struct lb_failure {
    lb_failure_kind kind;
    int64_t step;
    int32_t rank;
    uint32_t op; /* row in the recorded program of that rank and step, or LB_NONE */
    char layer[160];
    char name[80];     /* of the op */
    char what[200];    /* "3 of 64 elements of the loss are NaN" */
    lb_code_line line; /* in a bisection, its own: the code that called that op; number 0: not known */
} lb_failure;

/* Where the numbers that fail first went bad: an observation beside the verdict. */
typedef struct lb_origin {
    int64_t step;
    int32_t rank;
    lb_phase phase;
    uint32_t op;     /* row in the recorded program, LB_NONE: nothing non-finite leads to the failure */
    double growth;   /* of a parameter, by that op: how many times as large it became; 0: it is about something else */
    bool written;    /* that op wrote over what outlives a step: a parameter, a buffer, optimizer state */
    int64_t storage; /* which */
    bool updates;    /* that op is an optimizer's: it does what a gradient, a rate and a state ask for */
    bool by_zero;    /* it divides by 0, or takes the logarithm of it */
    /* row of the op of that step that made the first number that is not finite; LB_NONE: there is none */
    uint32_t broken;
    lb_code_line line; /* its own: the code that called it; number 0: not known */
    char layer[160];
    char name[80]; /* of the op; "lb::source": the data held it already */
    /* "its inputs are finite, the largest 96.4; of its result 12 of 4096 elements (f32) are infinite: …" */
    char text[320];
} lb_origin;

typedef enum lb_bisect_axis {
    LB_AXIS_NONE,
    LB_AXIS_MUON,
    LB_AXIS_PRECISION,
    LB_AXIS_RANK,
    LB_AXIS_BLOCK,
    LB_AXIS_SOURCE, /* what comes from outside: bytes that no recorded op changed, data, a mask, a learning rate */
    LB_AXIS_KERNEL, /* an op's recorded result is not what its inputs give */
    LB_AXIS_ORDER
} lb_bisect_axis;
LB_API const char *lb_bisect_axis_name(lb_bisect_axis axis);

typedef struct lb_culprit {
    lb_bisect_axis axis;
    int32_t *ranks;
    uint32_t n_ranks;
    char block;          /* 'A' 'D' 'E' 'M' 'R', 0: in no block */
    char layer[160];     /* of an op outside every module the owner of the parameter that it serves; "" when unknown */
    char parameter[160]; /* which parameter, buffer or state of one it writes or brings; "" when it is about none */
    char op[80];         /* "aten::mm" */
    uint32_t row;        /* of that op in the recorded program, LB_NONE when unknown */
    lb_phase phase;
    int64_t step; /* that recorded it; the failure may show later */
    bool between; /* it stands behind that step's optimizer, */
    int64_t acts; /* and so acts in this one */
    /* its own: the code that called the op, and of a reference the op that stands for it; number 0: not known */
    lb_code_line lines[2];
    char why[480]; /* one sentence */
    /* --against: relative L2 of what leaves the step when it alone is exchanged; 0: not measured */
    double effect;
} lb_culprit;

typedef struct lb_trial {
    uint32_t stage;        /* row of stages */
    char *change;          /* command-line text of the swaps: "--skip 'block=E'" */
    char description[100]; /* in words: "3 of 38 layers of step 2 in f32" */
    char outcome[16];      /* "cured", "fails-same", "fails-other", "invalid", "noise" */
    char purpose[12];      /* "whole", "narrow", … */
    char what[200];        /* the failure that remained, or why it is invalid */
    double seconds;
} lb_trial;

typedef struct lb_bisect_stage {
    const char *name; /* "sanity", "muon", … */
    /* "clean", "cleared", "cured", "found", "undecided", "none" (nothing of the kind here), "skipped" */
    char outcome[16];
    char note[240];
    uint32_t trials;
} lb_bisect_stage;

/* When is a window clean? Nothing that is watched fails in the recording, whose statistics cover every result, nor in
 * the replay; and no op that could be judged gave anything but what its inputs give. Ops that could not be judged by
 * themselves (their bytes were not kept, or replay does not know them) are counted, and the verdict begins with the
 * count: they may hide a wrong kernel, but no failure, for the recording's statistics show that. They hide what was
 * asked, and the window is undecided,
 *   - where a watched result has neither statistics nor bytes;
 *   - where the window is looked at under changes (`check`) and an opaque op reads what they make different: its
 *   recorded result
 *     stands in, so that what follows is not what the changed program gives. */
typedef enum lb_bisect_outcome {
    LB_BISECT_FOUND,
    LB_BISECT_CLEAN,
    LB_BISECT_NOT_REPRODUCED,
    LB_BISECT_UNDECIDED
} lb_bisect_outcome;
/* "found", "clean", "not-reproduced", "undecided" */
LB_API const char *lb_bisect_outcome_name(lb_bisect_outcome outcome);

/* --against: is what the culprits change, exchanged together, all that parts the two sides, and is each needed? */
typedef enum lb_bisect_set_outcome {
    LB_BISECT_SET_NONE,     /* not asked, or nothing that is not rounding parts the sides */
    LB_BISECT_SET_SMALLEST, /* with all of them exchanged nothing parts the sides, and every smaller set leaves a gap */
    LB_BISECT_SET_NEEDED,   /* the same, and without any one of them there is a gap; smaller sets were not all tried */
    LB_BISECT_SET_UNDECIDED
} lb_bisect_set_outcome;
LB_API const char *lb_bisect_set_outcome_name(lb_bisect_set_outcome outcome); /* "smallest", "needed", "undecided" */

typedef struct lb_bisect_set {
    lb_bisect_set_outcome outcome;
    char *why;      /* of what is not proven; NULL: all is */
    char *cancels;  /* places that differ, and take back together what they do: they are no culprits; NULL: none */
    uint64_t runs;  /* of one side, in whole or in part, that the proof took */
    double replays; /* their ops, in chained replays of both sides */
} lb_bisect_set;

typedef struct lb_bisection {
    lb_bisect_outcome outcome;
    lb_failure failure;
    lb_origin origin;
    lb_culprit *culprits; /* independent ones; the first by stage and step first */
    uint32_t n_culprits;
    lb_bisect_stage *stages;
    uint32_t n_stages;
    lb_trial *trials;
    uint32_t n_trials;
    char *cure;                                /* command-line text of the one change that cures, or NULL */
    char *reproducer;                          /* path, or NULL */
    uint64_t reproducer_ops, reproducer_bytes; /* how small it is */
    uint64_t window_ops;                       /* and what it was made from */
    char *asked;     /* options that set what a failure is: "--predicate 'max>1' --steps 2-3"; or NULL */
    char *command;   /* --run: the live job as it was run, or NULL */
    bool checked;    /* nothing was searched: the window was replayed once, under the changes given */
    char *reference; /* path of what it was compared with, or NULL */
    lb_bisect_set set;
    char *again;  /* command that records what the window lacks, or NULL */
    char *note;   /* what the reader should know besides: warnings, limits; or NULL */
    char *reason; /* undecided: why nothing can be said, a sentence without its stop; or NULL */
    /* clean: ops compared with their recorded results; of them not judged, for bytes were not kept; ops beside them
     * that replay does not know */
    uint64_t compared, unjudged, opaque;
    double seconds;
} lb_bisection;

typedef struct lb_bisect_options {
    size_t size;                   /* sizeof(lb_bisect_options) */
    int64_t first_step, last_step; /* the window; INT64_MIN / INT64_MAX: all recorded */
    const char *predicate;  /* NULL: the failures above; see bisect/failures/failure/failure.h for the language */
    lb_capture *against;    /* NULL, or the reference of a difference */
    const char *table;      /* with it: a file that says which tensor is which (lastbit/tensor_map.h); NULL */
    const char *journal;    /* path, NULL: none is written */
    bool resume;            /* take the answers that the journal has */
    const char *reproducer; /* folder to write, NULL: none */
    bool overwrite;         /* the reproducer may replace one */
    const lb_swap *changes; /* with `check`: made before it is judged */
    uint32_t n_changes;
    bool check;                                   /* replay once and say whether it fails; nothing is searched */
    int threads;                                  /* 0: as many as OpenMP gives */
    uint64_t memory_bytes;                        /* 0: no limit */
    uint32_t max_trials;                          /* per stage; 0: no limit */
    void *context;                                /* for say */
    void (*say)(void *context, const char *line); /* one line per trial and stage while it runs; may be NULL */
    bool from_start; /* every trial replays the window from its first step: slower, the same verdict */
} lb_bisect_options;
#define LB_BISECT_OPTIONS_INIT {.size = sizeof(lb_bisect_options), .first_step = INT64_MIN, .last_step = INT64_MAX}

/* Fails for trouble with the capture or the environment; that nothing was found, or that the failure does not
 * reproduce, is an outcome. */
LB_API lb_status lb_bisect(lb_capture *capture, const lb_bisect_options *options, lb_bisection **bisection,
                           lb_err *err);
LB_API void lb_bisection_free(lb_bisection *bisection);

/* The same on a live job that no replay can stand for: short runs of a command, with what is suspected taken out by
 * flags of its own. */
typedef struct lb_live_options {
    size_t size;         /* sizeof(lb_live_options) */
    const char *command; /* run by /bin/sh; "{}" is where flags go, otherwise they are appended */
    const char *const
        *flags; /* "STAGE[:LABEL]=FLAGS", e.g. "muon=--optimizer adamw", "block:E=--no-experts", "rank:2=…" */
    uint32_t n_flags;
    /* PCRE2: a run fails when a line that it prints matches. NULL: exit code 0 good, 125 cannot be tested, others below
     * 126 bad; from 126 on the search stops */
    const char *log;
    double miss, alarm;     /* probability that a failing run looks good, that a good one looks failing */
    double risk;            /* accepted probability of a wrong verdict; 0: 0.01 */
    double timeout_seconds; /* of one run, which then cannot be tested; 0: none */
    const char *journal;
    bool resume;
    uint32_t max_trials; /* per stage; 0: no limit */
    void *context;       /* for say */
    void (*say)(void *context, const char *line);
} lb_live_options;
#define LB_LIVE_OPTIONS_INIT {.size = sizeof(lb_live_options)}
LB_API lb_status lb_bisect_live(const lb_live_options *options, lb_bisection **bisection, lb_err *err);

/* Commands to be pasted into a shell: one that shows the failure (of a run without one: that asks what it proves by
 * itself), one that shows its cure; malloc'ed, NULL when there is none. `capture_path`: as to be typed again. */
LB_API char *lb_bisect_show_text(const lb_bisection *bisection, const char *capture_path);
LB_API char *lb_bisect_cure_text(const lb_bisection *bisection, const char *capture_path);

/* The verdict for a person, several lines; malloc'ed. `capture_path`: as to be typed again. */
LB_API char *lb_bisection_text(const lb_bisection *bisection, const char *capture_path);

/* The program that `rank` recorded, as one would type it: "torchrun --nproc-per-node 4 train.py --lr 1", as far as its
 * receipt tells; malloc'ed. */
LB_API char *lb_recorded_program(lb_capture *capture, int32_t rank, uint32_t world);

#ifdef __cplusplus
}
#endif
#endif
