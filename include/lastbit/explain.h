/* Explain: two recordings differ; which kernel, precision or order turns one into the other?
 *
 * Simplest use:
 *
 *     lb_explain_options options = LB_EXPLAIN_OPTIONS_INIT;
 *     lb_explain_report *report;
 *     LB_TRY(lb_explain_run(a, b, &options, &report, err));
 *     for (uint32_t i = 0; i < report->n_findings; i++) puts(lb_explain_cause_name(report->findings[i].cause));
 *     lb_explain_report_free(report);
 *
 * Explanations are local. A place is a pair of aligned ops, or a matched region: ops that do not align one by one, but
 * begin and end at values that both sides have. At each place A's ops are run on B's recorded input bits, under one
 * candidate after the other. A candidate explains the place when it gives B's recorded output bits, all of them:
 *
 *   input        A's program as it is gives B's bits on B's inputs: the difference came in from upstream
 *   order        it gives them under another order of its sums
 *   kernel       it gives them under another kernel, or each side's own ops give its own bits and the ops differ
 *   precision    it gives them under another precision
 *   routing      different experts were chosen: from near ties, because upstream moved the logits, or by another router
 *   unexplained  no candidate gives them; the best one is named with the number of elements that it gets right
 *
 * A parameter, a state or a batch that enters with different numbers is `input` too. LB_EXPLAIN_SOURCE stands for its
 * ops, and `schedule` says what it is ("state up.amax_history"): where no op makes a difference, it comes from there.
 *
 * Where the ops at a place only differ, but their result is the output of a composite (composite.h) on one side, the
 * whole composite is tried under its kernels. An MoE finalise written out by hand becomes `kernel`, "finalise:slots",
 * and `first` names the kernel of the other side where that is written out, too. One finding then stands for all
 * differences inside.
 *
 * The result of a collective follows from the contributions of all its members, so that the recorded programs of all
 * ranks of a step are run together. One finding stands for all members that received the same:
 *
 *   input        a rank brought different numbers; `why` says which rank
 *   order        the same contributions in another legal order ("rank", "ring:2")
 *   precision    the same contributions sent in another type ("bf16, ring")
 *   unexplained  no legal order gives these bits. Where it can be seen, `why` says what they are: a contribution is
 *                missing, was added twice or came in a narrower type, a division was done once too often
 *
 * Sums that both sides write by ops of their own (a ring of sends and receives, a loop over experts) are `order` where
 * these ops add up the same terms and each side's bits come out in the order in which it adds them: "mpi_ring",
 * "reversed", "[0 2 1 3] of ranks", "sequential in f64".
 *
 * Two implementations of one model, whose parameters have hardly a name in common, are matched by values: both run
 * exactly from the same numbers, and ops that give the same quantity are partners. Where the sides do not compute the
 * same function, the finding is `unexplained` (`input` where an op reads what the other side does not hold), and `why`
 * says so in the words of diff.
 *
 * Forward passes of a step are matched by the data that they are given. An evaluation of one side, and micro-batches in
 * another order, are listed in `notes` and are no places. A pass of one side alone that gradients follow from is
 * `unexplained`, once, with `why` in the words of diff.
 *
 * Where the batches of the two sides differ in size, the rows of the smaller are looked for among those of the larger
 * (by what enters as the batch, bit by bit). The smaller side's ops are then run on what the larger side has in those
 * rows: `kernel` and `order` say that a row gets different bits in a larger batch. A result over all rows, such as a
 * loss or a weight's gradient, is over different rows and no finding; what follows from it (the gradients of a mean
 * over more rows) is `input`. Where no row of the smaller is found, or inputs differ in length, `missing` says so.
 *
 * A candidate that misses a single element is excluded. Others that match just as well are named: the data cannot tell
 * them apart. Where replay does not have the kernel that ran (a library's own order), `proof` says what is known
 * instead.
 */
#ifndef LASTBIT_EXPLAIN_H
#define LASTBIT_EXPLAIN_H

#include <lastbit/parts.h>
#include <lastbit/routing.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_CAUSES(X)                                                                                                   \
    X(INPUT, "input")                                                                                                  \
    X(ORDER, "order")                                                                                                  \
    X(KERNEL, "kernel")                                                                                                \
    X(PRECISION, "precision")                                                                                          \
    X(ROUTING, "routing")                                                                                              \
    X(UNEXPLAINED, "unexplained")

typedef enum lb_cause {
#define LB_CAUSE_ENUM(name, text) LB_CAUSE_##name,
    LB_CAUSES(LB_CAUSE_ENUM)
#undef LB_CAUSE_ENUM
} lb_cause;
LB_API const char *lb_explain_cause_name(lb_cause cause); /* "order", … */

typedef enum lb_proof {
    LB_PROOF_NONE,
    LB_PROOF_BITS, /* every element */
    /* the kernel that ran is not one of ours: every element lies inside its error bound, on each side's own inputs. So
     * it is of LB_CAUSE_UNEXPLAINED where an order or a kernel of the library's own is what is unknown */
    LB_PROOF_BOUND,
    LB_PROOF_EXACT /* both sides' programs are the same real function of B's inputs; bits of one are not ours */
} lb_proof;
LB_API const char *lb_explain_proof_name(lb_proof proof); /* "none", "bits", "bound", "exact" */

#define LB_EXPLAIN_SOURCE "lb::source"

/* One place where the sides differ for a reason of its own, or inherit. Strings belong to the report. */
typedef struct lb_explain_finding {
    int64_t step;
    int32_t rank; /* of a collective: the first that was given this */
    lb_phase phase;
    const char *layer;         /* in A */
    const char *op, *other_op; /* "aten::mm"; of a matched region: its ops, "aten::mm x4, aten::add.Tensor x3" */
    uint32_t index, other;     /* the op that gives the output, in each program; LB_NONE */
    lb_cause cause;
    const char *schedule;      /* under what A's program gives B's bits: "torch:4", "bf16, splitk:4"; "" of `input` */
    const char *first;         /* under what it gives A's own, "own" when as replay runs it; "" when unknown */
    bool reversed;             /* B's program was run on A's inputs: under `schedule` it gives A's bits */
    int64_t matched, elements; /* of the candidate named; of `unexplained`: of the best */
    uint32_t tried, excluded;  /* candidates */
    const char *also;          /* candidates that match just as well, joined by "; "; "" */
    lb_proof proof;
    const char *why; /* one sentence */
    /* Relative L2 distances: `local`: A's ops as they are, on B's inputs, from B's bits; `total`: A's bits from B's.
     * NaN: not known. */
    double local, total;
    /* for a chained replay of A to have this change, none where replay has no swap that makes it; of `input`: for it to
     * give A's own bits */
    lb_swap swaps[3];
    uint32_t n_swaps;
    lb_code_line lines[2]; /* the code that called `index` and `other`; number 0: not known */
    lb_swap own[2];        /* of other causes: for it to give A's own bits, where A's ops as replay runs them do not */
    uint32_t n_own;
} lb_explain_finding;

/* A layer, in the order of execution: what it adds (isolated) beside what has come together by then (chained). */
typedef struct lb_explain_layer {
    int64_t step;
    int32_t rank;
    lb_phase phase;
    const char *layer;
    uint32_t own, inherited; /* places */
    double local, total;     /* the largest of its places; of its last one. NaN: not known */
} lb_explain_layer;

/* What chained replays of A, of all its ranks together, that change one thing at a time make of the final gap. Shares
 * are of B's distance from A in its own direction, d.(B - A) / |B - A|^2, so that all together would be 1. */
typedef struct lb_explain_share {
    lb_cause cause;
    const char *schedule, *layer; /* of the layers that the outermost module calls: "model.layers.3" */
    uint32_t places;
    double share, size; /* size: |d| / |B - A| */
} lb_explain_share;

typedef struct lb_explain_budget {
    int64_t step;
    int32_t rank;
    const char *output;          /* the module whose last output is looked at */
    int64_t elements, differing; /* differing: of all changes together from B's bits */
    double gap;                  /* |B - A| / |A| */
    lb_explain_share *rows;
    uint32_t n_rows;
    double together;   /* the share of all changes in one replay; less the rows' sum: the interaction */
    uint32_t left_out; /* places with a reason of their own that no swap makes */
    const char *left;  /* them: "layer op: cause", joined by "; " */
} lb_explain_budget;

/* A step whose batches have different sizes: which rows were compared with each other. */
typedef struct lb_explain_rows {
    int64_t step;
    int32_t rank;
    int64_t first, second; /* rows of each side's batch */
    const char *by;        /* the input by which they were found: "input:input_ids" */
    int64_t *of_first, *of_second;
    uint32_t n;           /* pairs of rows */
    uint32_t over_others; /* ops that give something over all rows: not compared with each other */
} lb_explain_rows;

typedef struct lb_explain_options {
    size_t size;             /* sizeof(lb_explain_options) */
    const char *const *maps; /* s/PATTERN/REPLACEMENT/ on A's layer paths */
    uint32_t n_maps;
    const char *table; /* a file that says which tensor is which (lastbit/tensor_map.h); NULL: their numbers do */
    int64_t first_step, last_step;
    const char *select; /* selector of A's ops as in swaps ("layer=model.layers.3&phase=forward"), NULL: all */
    bool budget;        /* split the final gap by cause and layer: a chained replay for each */
    /* how much of the final gap is experts chosen differently: replays with the second side's ids, weights and slots in
     * force */
    bool routing;
    const char *const *trees; /* files of trees (order.h) that are tried as orders of sums of as many terms */
    uint32_t n_trees;
    /* for ruling out alternatives at places of one kind, once something matched: counted by what runs, so that the
     * answer is the same on every machine; 0: 2 */
    double seconds;
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    uint64_t memory_bytes; /* of tensors of one rank in the replays of `budget` and `routing`; 0: no limit */
    /* is all that differs a named order? Nothing else is tried, and nothing behind the first place that is none */
    bool only_orders;
    /* seconds after which this process begins no place: what was found by then is the answer, and `missing` says so. 0:
     * never */
    double stop_after;
    /* run to try candidates, in chained replays of a step on both sides: what is not found by then is unexplained;
     * counted in operations, so that the answer is the same on every machine. 0: no limit */
    double most_replays;
    /* A step of a rank is a unit of work, and so is a step of all ranks: what collectives made. A rank whose steps are
     * looked at together (decode steps against one pass, batches of different sizes, two implementations, one capture
     * alone) is one unit. NULL: everything is done here (lastbit/parts.h) */
    lb_parts *parts;
    /* only this call uses the captures: programs go when their unit is done, so that memory does not grow with ranks */
    bool alone;
} lb_explain_options;
#define LB_EXPLAIN_OPTIONS_INIT {.size = sizeof(lb_explain_options), .first_step = INT64_MIN, .last_step = INT64_MAX}

typedef struct lb_explain_report {
    lb_explain_finding *findings;
    uint32_t n_findings;
    lb_explain_layer *layers;
    uint32_t n_layers;
    lb_explain_budget *budgets; /* one per step and rank */
    uint32_t n_budgets;
    lb_routing_report *routings; /* one per step and rank whose routing was recorded on both sides; options.routing */
    uint32_t n_routings;
    lb_explain_rows *rows; /* steps whose batches have different sizes */
    uint32_t n_rows;
    /* `op` and `index` of findings are of the second capture: its batch is the smaller, or it calls layers less
     * often */
    bool turned;
    char **missing; /* what could not be looked at, one sentence each */
    uint32_t n_missing;
    char **notes; /* forward passes of one side alone, or in another order, one sentence each */
    uint32_t n_notes;
    /* of regenerated bytes and of trying candidates; replays of `budget` and `routing` are not counted */
    lb_run_cost cost;
    uint64_t ops, differing; /* aligned computing ops; of them with different bits */
    void *store;
} lb_explain_report;

/* LB_ERR_NOT_FOUND when the captures share no step or rank. `b` NULL: A against its own replay, that is, under what its
 * ops give the bits that were recorded, where replay's own kernels do not. */
LB_API lb_status lb_explain_run(lb_capture *a, lb_capture *b, const lb_explain_options *options,
                                lb_explain_report **report, lb_err *err);
LB_API void lb_explain_report_free(lb_explain_report *report);
/* For a person; malloc'ed, NULL when out of memory. `all`: also what is only inherited; `table`: the layers. */
LB_API char *lb_explain_text(const lb_explain_report *report, const char *path_a, const char *path_b, bool all,
                             bool table);

#ifdef __cplusplus
}
#endif
#endif
