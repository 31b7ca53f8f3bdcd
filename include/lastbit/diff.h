/* Diff: two captures of what should be the same computation, layer by layer, with verdicts that need no tolerance.
 *
 * Simplest use:
 *
 *     lb_diff_options options = LB_DIFF_OPTIONS_INIT;
 *     lb_diff_report *report;
 *     LB_TRY(lb_diff_run(a, b, &options, &report, err));
 *     printf("%s\n", lb_verdict_name(report->verdict));
 *     lb_diff_report_free(report);
 *
 * Digests decide first: values with equal digests are never read. Where some differ, both sides are made one program,
 * in which ops that compute the same quantity are one node. Three questions are then asked, each once, of the whole
 * program:
 *
 *   1. On each side, do the recorded bits lie inside the op's own error bound, from that side's recorded inputs?
 *   2. Do both sides compute the same real function of the same inputs? Both programs run in f64 with every float cast
 *      the identity (the exact shadow): B from A's sources, with A's random draws and A's decisions. They agree when
 *      they differ by no more than f64 rounding explains. That is measured: a third run disturbs every number by 2^-44
 *      (bisect/pairs/shadow/shadow_numbers.h).
 *   3. Does what leaves the step agree: parameters, states, results of outermost calls, what decisions and collectives
 *      read, results that no op reads? From what does not agree, the search goes back through both programs to where
 *      everything agrees. There the difference was made (bisect/pairs/merged/divergence.h): at ops that one side alone
 *      runs, or at an op that gives something different.
 *
 * Two implementations of one model have neither names nor ops in common, or spell a layer differently. They are matched
 * by numbers instead: tensors by the rows and columns that they hold, values by what exact arithmetic gives, in any
 * shape (bisect/pairs/implementations). `differences` lists every place that differs by itself, with its effect;
 * `map` says which tensor is which.
 *
 * An inherited difference carries the worst verdict among its origins. Where the exact values of both sides are equal
 * again, a difference that ops of the same step made counts as rounding from there on. A difference that came from
 * sources (another batch, a parameter that the step before left different), from random draws or from flipped decisions
 * keeps its verdict: both shadows take these from one side, and so say nothing about them.
 *
 * The verdict and the places do not depend on which side is named first.
 */
#ifndef LASTBIT_DIFF_H
#define LASTBIT_DIFF_H

#include <lastbit/compare.h>
#include <lastbit/parts.h>
#include <lastbit/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lb_diff_options {
    size_t size;             /* sizeof(lb_diff_options) */
    const char *const *maps; /* s/PATTERN/REPLACEMENT/ on A's layer paths */
    uint32_t n_maps;
    int64_t first_step, last_step;
    uint64_t memory_bytes;    /* for the shadows kept at a time; 0: 4 GiB */
    bool digests_only;        /* no replay: differences get metrics, but whether they are rounding cannot be told */
    lb_capture *const *noise; /* other runs of A: what they differ by is noise */
    uint32_t n_noise;
    /* Kinds of tokens: one number per token of a step, in the order of its rows of logits; NULL: the targets decide. */
    const int64_t *kinds;
    int64_t n_kinds;
    const char *const *kind_names; /* of kinds 0, 1, … */
    uint32_t n_kind_names;
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    const char *table; /* a file that says which tensor is which (lastbit/tensor_map.h); NULL: their numbers do */
    lb_parts *parts;   /* NULL: everything is done here (lastbit/parts.h) */
    /* Are the differences the smallest set whose exchange takes what leaves to the other side's (lb_diff_set)? */
    bool smallest;
} lb_diff_options;
#define LB_DIFF_OPTIONS_INIT {.size = sizeof(lb_diff_options), .first_step = INT64_MIN, .last_step = INT64_MAX}

/* An argument that an op was called with, or an option of the parameter group that it steps, on each side. */
typedef struct lb_diff_argument {
    const char *name;           /* "weight_decay", "eps", "approximate" */
    const char *first, *second; /* "0.1", "none" */
    const char *group;          /* of an option, where the optimizer has several: "fc"; "" */
} lb_diff_argument;
#define LB_DIFF_LINES 32
#define LB_DIFF_ARGUMENTS 4 /* at most so many are named */

/* One place where the sides differ. Strings belong to the report. */
typedef struct lb_diff_row {
    int64_t step;
    int32_t rank;
    lb_phase phase;
    const char *layer; /* module path in A, or the name of a parameter or state */
    bool value;        /* the row of a named value, not of a layer */
    /* in the optimizer: the one that the op serves, its layer is that one's module; NULL: not known */
    const char *parameter;
    /* modules before and after the op, where its code belongs to no module; NULL: none */
    const char *before, *after;
    const char *op; /* NULL in layer rows */
    uint32_t index; /* op in A's program; of an op that B alone runs, the next that both share; LB_NONE in layer rows */
    uint32_t other; /* its partner in B's program, of that rank, or in the same way the next; or LB_NONE */
    /* of `other`, where `implementations` is said: the sides may cut their input into different steps */
    int64_t other_step;
    int32_t other_rank;
    uint32_t order; /* where it stands in its step, whichever side is named first; LB_NONE: not known */
    uint32_t lone;  /* how many ops of one side alone it speaks for */
    lb_verdict verdict, local, inherited;
    bool lossy;      /* a cast of one side alone that loses more than all that differs before it */
    const char *why; /* one sentence, "" when identical */
    /* of a collective whose result no order of its inputs gives: ranks between which the bits changed; alike: not
     * known */
    int32_t hop_from, hop_to;
    bool measured; /* `difference` was computed from recorded bytes */
    lb_difference difference;
    double bound_ratio;                            /* worst |error|/bound of either side's A/A; NaN: not computed */
    lb_diff_argument arguments[LB_DIFF_ARGUMENTS]; /* that the sides gave differently; not in layer rows */
    uint32_t n_arguments;
    /* of a place that a tensor leads to whose numbers stand where another's do in its siblings: the second side's, and
     * what the first side calls its numbers; NULL: none does */
    const char *tensor, *tensor_of;
    const char *means; /* what ops of one side alone are for ("weight decay: …"); NULL: not known */
    /* of code that called `index` and `other`, in a layer's row its worst op; number 0: not known */
    lb_code_line lines[2];
    /* where ranks are judged one by one: how many of its collectives had brought differences of other ranks by then */
    uint32_t met;
} lb_diff_row;

/* Ops that exist on one side only, gathered per layer and phase. */
typedef struct lb_diff_structure {
    int64_t step;
    int32_t rank;
    lb_phase phase;
    const char *layer;
    const char *ops_a, *ops_b; /* comma-separated names with counts: "aten::bmm x2, aten::_softmax" */
} lb_diff_structure;

/* What both sides say of the tokens of one kind: definitions in bisect/pairs/diff/diff_tokens.h. */
typedef struct lb_diff_tokens {
    /* "text", "ignored" (the target is the loss's ignore_index), "greedy" (no targets), or a name given */
    const char *kind;
    int64_t count;
    bool has_targets; /* otherwise k3, max_abs and mean_abs mean nothing */
    double k3, kl, top1, max_abs, mean_abs;
} lb_diff_tokens;

/* Choices of experts that differ in one layer: definitions in bisect/pairs/diff/routing_diff.h. */
typedef struct lb_diff_routing {
    int64_t step;
    int32_t rank;
    const char *layer;
    int64_t tokens, choices, flips; /* choices: tokens times experts per token */
    double largest_margin;          /* of a flip, in A's router logits; NaN when these were not recorded */
    int64_t near_ties;              /* flips whose margin is a few roundings of the logits */
    int64_t explained;              /* flips whose margin is no more than what the logits themselves differ by */
} lb_diff_routing;

/* Lines of code, ascending, of the file that the place lies in. */
typedef struct lb_diff_lines {
    uint32_t list[LB_DIFF_LINES], n; /* of more the first ones */
} lb_diff_lines;

/* A place of two implementations that differs by itself, whatever differs before it. */
typedef struct lb_diff_difference {
    lb_diff_row row;
    const char *layer_b, *op_b; /* of the second side; NULL: it has no op there */
    /* All lines of either side that the difference may lie in: one, where the op named is it; several, where both
     * compute a part by ops of their own, and which of them is wrong cannot be told. */
    lb_diff_lines lines[2];
    /* Relative L2 of what leaves the first step that shows it, when this part alone is the second side's; NaN: not
     * measured. */
    double effect;
    uint32_t times;    /* places that it stands for: one rotary table that all layers read */
    uint32_t steps;    /* that show it */
    int64_t last_step; /* of these */
    /* of either side, a bit each, that run the op of the place (63: and those behind it); 0: the side has no op
     * there */
    uint64_t ranks[2];
    /* it is not in the smallest set (lb_diff_set); `cancels`: as others of `differences` that are not, too, take back
     * what it does */
    bool spared, cancels;
} lb_diff_difference;

/* Are the differences that are not spared, exchanged together, all that parts the sides; and is each needed? Asked by
 * lb_diff_options.smallest, step by step in exact arithmetic; proven where it is so in all steps. */
typedef struct lb_diff_set {
    bool asked;    /* differences were judged so; else nothing is proven */
    bool whole;    /* all exchanged: what leaves each step is the other side's, but for rounding */
    bool each;     /* without any one of them it is not */
    bool smallest; /* no smaller set does as well: all were tried */
    /* of one side, in whole or in part, that this took; and their ops that compute */
    uint64_t runs, ops;
    const char *why; /* of what is not proven; "" */
} lb_diff_set;

/* A tensor of the second side, and where the first has its numbers (bisect/pairs/contents/contents.h). */
typedef struct lb_diff_map {
    const char *first, *second; /* several names of the first side are joined by " + "; "": none has them */
    const char *relation; /* "renamed", "fused", …; "merged": a weight, and the weight and adapter that make it */
} lb_diff_map;

typedef struct lb_diff_report {
    lb_verdict verdict;
    bool has_first;
    lb_diff_row first; /* the first op whose verdict is the report's; of `rounding`, the first lossy one */
    bool has_earliest;
    lb_diff_row earliest; /* the first op that differs at all */
    bool has_undecided;
    int64_t undecided_step; /* the first with an undecided row; all before it are decided */
    lb_diff_row *layers;
    uint32_t n_layers; /* one per (rank, layer), in order of first execution */
    lb_diff_structure *structures;
    uint32_t n_structures;
    char **missing;
    uint32_t n_missing; /* one sentence each */
    char **findings;
    uint32_t n_findings; /* sentences that change no verdict */
    lb_diff_tokens *tokens;
    uint32_t n_tokens; /* one per kind */
    /* a side takes ids to vectors (an embedding): what is scored may be tokens, not only classes */
    bool tokens_looked_up;
    bool tokens_approximate; /* some log-probabilities were not kept, and replay could not give their very bits */
    lb_diff_routing *routings;
    uint32_t n_routings; /* one per (step, rank, layer) */
    uint32_t n_cuts;     /* sentences of missing[] that say that ranks of the two sides cut a batch otherwise */
    bool lone_writes[2]; /* an op that one side alone runs writes memory that later steps have; sides of the question */
    bool logged_apart;   /* a number that both sides logged is apart by more than rounding does to one */
    bool past_unknown;   /* weights or states differ as the first step begins, and earlier steps were not recorded */
    bool untold;         /* of several ranks it is not known which token of one side is which of the other */
    bool implementations; /* judged as two implementations of one model (bisect/pairs/implementations) */
    lb_diff_difference *differences;
    uint32_t n_differences;     /* largest effect first; of a pair that diverged there is one at least */
    lb_diff_difference *places; /* that ops which line up have shown: the differences where values alone name none */
    uint32_t n_places;
    lb_diff_set set;
    lb_diff_map *map;
    uint32_t n_map; /* of the first step that was compared; tensors of one name and shape are left out */
    /* Elements of values that were compared, whose digests differ, by their distance: see lb_compare_counted. */
    int64_t ulp_counts[LB_ULP_BUCKETS];
    uint64_t ops, identical; /* aligned computing ops; of them with equal digests */
    uint64_t unseen;         /* of them with a result that has no digest on a side, and nothing else that differs */
    /* layers that the sides compute in different ops, and that leave the same in exact arithmetic */
    uint64_t rewritten;
    lb_run_cost cost;      /* of replays and of the search for orders */
    uint64_t exact_runs;   /* among them: of one side, where two implementations are judged by values alone */
    uint64_t recorded_ops; /* computing ops of both sides' steps: one chained replay of each */
    uint64_t sources, sources_identical; /* parameters, states and inputs that both sides have */
    bool out_of_memory;                  /* rows or texts lack: there is no answer */
    struct lb_report_store *store;
} lb_diff_report;

/* LB_ERR_NOT_FOUND when the captures share no step or rank. */
LB_API lb_status lb_diff_run(lb_capture *a, lb_capture *b, const lb_diff_options *options, lb_diff_report **report,
                             lb_err *err);
LB_API void lb_diff_report_free(lb_diff_report *report);
/* The report for a person, with commands to type next; malloc'ed, NULL when out of memory. `path_a`, `path_b`: as they
 * are to be typed again. `all`: every layer and value, also identical ones. */
LB_API char *lb_diff_text(const lb_diff_report *report, const char *path_a, const char *path_b, bool all);

#ifdef __cplusplus
}
#endif
#endif
