/* Ranks: do the workers of a data-parallel run still pull in one direction, and is there a fault behind it when they do
 * not?
 *
 * Simplest use:
 *
 *     lb_ranks_options options = LB_RANKS_OPTIONS_INIT;
 *     lb_ranks_report *report;
 *     LB_TRY(lb_ranks_run(capture, &options, &report, err));
 *     printf("%s\n", lb_ranks_verdict_name(report->verdict));
 *     lb_ranks_report_free(report);
 *
 * N workers, in a step each with its own loss l_i and its own gradient g_i, before any averaging and before any
 * division by the number of workers. Over the workers:
 *
 *      loss        mean, population standard deviation sqrt(mean((l_i - mean)^2)), range max - min
 *      norm        mean and population standard deviation of |g_i|
 *      direction   mean and minimum over all unordered pairs of cos(g_i, g_j) = g_i . g_j / (|g_i| |g_j|)
 *
 * after the paper on silent inconsistency of workers in data-parallel fine-tuning, whose point is that a mean loss
 * stays smooth while these do not. Products are f64 sums over elements in one order, whatever the number of threads. A
 * pair counts where both reduce over one group; pairs with a gradient of zero have no direction. Parameters that are
 * not reduced (experts, shards of tensor parallelism) are left out of g_i; with FSDP g_i is what autograd gave for the
 * gathered parameters.
 *
 * Findings are what stands behind such numbers, collectives that do not match before all others. A note is something
 * that a reader should know and that may be meant.
 */
#ifndef LASTBIT_RANKS_H
#define LASTBIT_RANKS_H

#include <lastbit/archive.h>
#include <lastbit/parts.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text) in the order in which they are told. */
#define LB_RANKS_FINDINGS(X)                                                                                           \
    X(COLLECTIVE, "collective") /* calls of one collective differ, or a rank never came */                             \
    X(RESULT, "result")         /* a member received from a collective what the members did not send */                \
    X(NONFINITE, "nonfinite")   /* a rank sent what is not finite, and had received nothing such */                    \
    X(LOST, "lost")             /* a rank's recording was cut off before the others' ended */                          \
    X(VERSION, "version")       /* other libraries, settings or code on some ranks */                                  \
    X(OPTION, "option")         /* another learning rate or other option of an optimizer */                            \
    X(ALIKE, "alike")           /* different layers that began with the same random numbers */                         \
    X(LATE, "late")             /* a gradient that was added to what had been reduced */                               \
    X(CLIP, "clip")             /* gradients were scaled by, or a log shows, a norm of some of them alone */           \
    X(INITIAL, "initial")       /* parameters unequal from the first recorded step on */                               \
    X(REPLICA, "replica")       /* parameters or optimizer states that stopped being equal */                          \
    X(TOKENS, "tokens")         /* two ranks saw the same batch */                                                     \
    X(BATCH, "batch")           /* a rank repeated a batch, or had more or fewer than the others */                    \
    X(SEED, "seed")             /* the same random draws for other data; on all workers a note: S1-1 of the paper */   \
    X(BUFFER, "buffer")         /* buffers of each rank's own: a note */                                               \
    X(COVERAGE, "coverage")     /* what could not be seen: a note */

#define LB_RANKS_FINDING_ENUM(name, text) LB_RANKS_##name,
typedef enum lb_ranks_finding_kind { LB_RANKS_FINDINGS(LB_RANKS_FINDING_ENUM) } lb_ranks_finding_kind;
#undef LB_RANKS_FINDING_ENUM
LB_API const char *lb_ranks_finding_name(lb_ranks_finding_kind kind); /* "collective", … */

/* A hop on which a sum's bits may have changed, in one order in which the ranks may have added. */
typedef struct lb_ranks_hop {
    char order[48];
    int32_t from, to; /* ranks */
    uint64_t bits;    /* that were turned over, as a mask */
} lb_ranks_hop;

typedef struct lb_ranks_finding {
    lb_ranks_finding_kind kind;
    bool note;
    int64_t step;   /* in which it begins; INT64_MIN: of no step */
    uint32_t steps; /* in how many it was seen */
    int32_t *ranks;
    uint32_t n_ranks;
    char *tensor; /* NULL: it is about none */
    char *message;
    /* Of a result; all -1 where they are not known or do not matter. */
    int32_t from, to; /* ranks: the hop on which bits changed */
    int bit;          /* that was turned over */
    int64_t element;  /* the first that is wrong */
    /* All hops that explain what each rank received; several give the same numbers, and which it was cannot be told.
     * At most 64 are listed; `possible` counts all of them. */
    lb_ranks_hop *hops;
    uint32_t n_hops, possible;
} lb_ranks_finding;

/* NaN: not known. */
typedef struct lb_ranks_row {
    char *layer; /* path of a module; NULL: the whole model */
    double grad_norm_mean, grad_norm_std, grad_cosine_mean, grad_cosine_min;
} lb_ranks_row;

typedef struct lb_ranks_worker {
    int32_t rank;
    double loss, grad_norm;
    double cosine; /* mean over the other workers */
} lb_ranks_worker;

typedef struct lb_ranks_step {
    int64_t step;
    double loss_mean, loss_std, loss_range;
    lb_ranks_row all;
    lb_ranks_worker *workers;
    uint32_t n_workers;
    lb_ranks_row *layers, *blocks; /* modules that own a parameter, in order of backward; residual blocks */
    uint32_t n_layers, n_blocks;
    uint32_t gradients, lacking; /* of one worker, and those (of all workers) whose bytes could not be had */
    bool approximate;            /* some were computed again and are not the recorded bits */
} lb_ranks_step;

typedef enum lb_ranks_verdict { LB_RANKS_CLEAN, LB_RANKS_FOUND, LB_RANKS_UNTESTABLE } lb_ranks_verdict;
LB_API const char *lb_ranks_verdict_name(lb_ranks_verdict verdict); /* "clean", "found", "cannot be tested" */

/* From what the modules of the workers draw (dropout's masks and their like), and so of seeds: those of the paper's
 * settings. */
#define LB_RANKS_SEEDS(X)                                                                                              \
    X(UNKNOWN, "unknown") /* nothing is drawn, or some workers read the same batch */                                  \
    X(ONE, "one")         /* all draw the same numbers: S1-1 */                                                        \
    X(SOME, "some")       /* some draw the same, others do not: S1-2 */                                                \
    X(EACH, "each")       /* each draws its own: S1-3 */

#define LB_RANKS_SEEDS_ENUM(name, text) LB_RANKS_SEEDS_##name,
typedef enum lb_ranks_seeds { LB_RANKS_SEEDS(LB_RANKS_SEEDS_ENUM) } lb_ranks_seeds;
#undef LB_RANKS_SEEDS_ENUM
LB_API const char *lb_ranks_seeds_name(lb_ranks_seeds seeds); /* "one", … */

typedef struct lb_ranks_report {
    lb_ranks_verdict verdict;
    lb_ranks_seeds seeds;
    lb_ranks_step *steps;
    uint32_t n_steps;
    lb_ranks_finding *findings;
    uint32_t n_findings;
    uint32_t replicas, collectives; /* tensors and collectives that were compared, over all steps */
    uint32_t results;               /* collectives and messages whose results were compared with what was sent */
    char *again;                    /* the command that records what lacked; NULL: nothing did */
} lb_ranks_report;

typedef struct lb_ranks_options {
    size_t size; /* sizeof(lb_ranks_options) */
    int64_t first_step, last_step;
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* NULL: none */
    lb_parts *parts; /* a step is a unit of work (lastbit/parts.h); NULL: everything is done here */
} lb_ranks_options;
#define LB_RANKS_OPTIONS_INIT {.size = sizeof(lb_ranks_options), .first_step = INT64_MIN, .last_step = INT64_MAX}

/* LB_ERR_NOT_FOUND: no step of the window was recorded. One gradient of each worker is in memory at a time; those that
 * are computed again wait in an unnamed file in TMPDIR. */
LB_API lb_status lb_ranks_run(lb_capture *capture, const lb_ranks_options *options, lb_ranks_report **report,
                              lb_err *err);
LB_API void lb_ranks_report_free(lb_ranks_report *report);
/* For a person; malloc'ed, NULL when out of memory. `layers`: with the table of layers and blocks of the last step. */
LB_API char *lb_ranks_text(const lb_ranks_report *report, bool layers);

/* ---- settings side by side ---------------------------------------------------------------------------------------- *
 *
 * One run under different seeds or orders of its data, as that paper's figures lay them beside each other: S1-1 one
 * seed for all ranks, S1-2 another for rank 0, S1-3 each rank its own. Compared over the steps that all captures have,
 * with the setting whose losses are closest together. Another setting is inconsistent when its workers are further
 * apart by two of the three measures (dispersion of the loss, of the gradient's norm, 1 - cosine of the direction): by
 * a quarter at least on average, and in so many steps that a coin would do it in less than one of a hundred runs (a
 * sign test, for which seven steps are the fewest). Of fewer steps nothing is told: where its workers are further apart
 * in each of them, they cannot be tested. */

/* Means over the steps; NaN: not known. */
typedef struct lb_ranks_setting {
    double loss_mean, loss_std, loss_range, grad_norm_mean, grad_norm_std, grad_cosine_mean;
    uint32_t wider[3]; /* steps in which its loss, norm and direction are further apart than the closest setting's */
    bool apart[3];     /* and whether that is no chance */
    bool inconsistent;
    bool untold; /* further apart in every step, which are too few for a sign test */
} lb_ranks_setting;

typedef struct lb_ranks_settings {
    lb_ranks_setting *list; /* in the order in which they were given */
    uint32_t n, n_steps, closest;
    bool found; /* some are inconsistent */
    /* Of all: whether one is inconsistent or has findings of its own; then whether something is not told. */
    lb_ranks_verdict verdict;
} lb_ranks_settings;

/* LB_ERR_NOT_FOUND: they have no step in common. */
LB_API lb_status lb_ranks_settings_compare(const lb_ranks_report *const *reports, uint32_t n,
                                           lb_ranks_settings **settings, lb_err *err);
LB_API void lb_ranks_settings_free(lb_ranks_settings *settings);
/* For a person; malloc'ed, NULL when out of memory. */
LB_API char *lb_ranks_settings_text(const lb_ranks_settings *settings, const lb_ranks_report *const *reports,
                                    const char *const *names);

#ifdef __cplusplus
}
#endif
#endif
