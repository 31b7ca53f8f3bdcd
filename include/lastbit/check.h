/* What one recording alone can prove: that the gradient is the derivative of the loss, and that the optimizer read it.
 *
 * Simplest use:
 *
 *     lb_check_options options = LB_CHECK_OPTIONS_INIT;
 *     lb_check_report *report;
 *     LB_TRY(lb_check_run(capture, &options, &report, err));
 *     printf("%s\n", lb_check_verdict_name(report->verdict));
 *     lb_check_report_free(report);
 *
 * The recorded step runs in f64 with every cast the identity, draws and decisions held. There the backward has to give
 * the derivative of the forward; rounding has no part in it. Derivatives are difference quotients of the loss from
 * which backward began, along a random direction over all parameters at once, extrapolated over three step sizes
 * (Richardson, "The Approximate Arithmetical Solution by Finite Differences", 1911), with an error that their
 * disagreement states. Where gradient and derivative disagree, the same is asked of results of forward ops: all that
 * come late in the step at once, and fewer until the last one is found whose gradient is wrong.
 *
 * A step whose loss scores tokens of its own input is run again with different tokens: no row of scores may depend on a
 * later token, sequences of a batch and packed documents do not meet, and what an attention mask hides changes nothing.
 * Decisions are computed anew, and random draws stay. Which row is scored against which token is read from the labels.
 *
 * Ranks run together. A parameter of which they hold copies is moved alike on all of them, and the mean of their losses
 * changes by the mean of their own gradients; what each optimizer read is compared with that mean. What a rank holds
 * alone (a part of a parameter, a stage of a pipeline) is moved by itself, and what it sends is exact, too. Where ranks
 * add gradients up before the optimizer, as with sequence parallelism, what the optimizers read is asked instead.
 *
 * What optimizers did to parameters is compared, in f64 and from the same gradients, states and options, with the rule
 * that their class is named after; where it differs, with that rule changed in one thing or two.
 *
 * An op whose inputs hold NaN and whose results are finite runs again by itself with numbers in the place of NaN.
 * Finite results that change then depended on the NaN, and should have been NaN. Elements that masks and conditions of
 * the program hide do not change.
 *
 * What autograd was told to leave out (detach, no_grad) is no part of the derivative: a gradient is right if it is the
 * derivative with such values held, or without.
 *
 * Where digits are lost is found by adding rounding errors to an exact run. The error of one op is its recorded result
 * less the same op in f64 from its recorded inputs. The exact run with the errors of all ops gives the recorded loss;
 * with those of one line of code alone it says what the line costs, and with those of all other lines what is left once
 * the line is mended. This is a table of facts. Findings are the following; beneath each stands how far 79 steps
 * without a fault come (tests/BENCHMARKS.md):
 *
 *     one line costs 10 times what all others do together, 0.05 of what leaves the step, and 16 roundings of its dtype
 *         none above 2.4 times, nor 0.033; a cast to e4m3fn 1e5 times, 0.024, where 16 roundings are 1
 *     the angle of a sine or a cosine is off by 0.1 rad
 *         none by 5e-6
 *     90 % of the updates of all parameters of 16 bits of one group of an optimizer are absorbed
 *         none above 52 %
 *     1 % of the numbers of a line in 8 bits, or in f16 in forward, lie beyond its range
 *         none above 0.2 %
 *     10 % of those not zero become zero in 8 bits, in a state, or in all gradients of f16 together
 *         none above 0.5 %
 *     gradients of f16 lie beyond its range by 2^3, more than a scaler that begins has to halve
 *         none by 2^0.3 */
#ifndef LASTBIT_CHECK_H
#define LASTBIT_CHECK_H

#include <lastbit/archive.h>
#include <lastbit/parts.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text) */
#define LB_CHECK_KINDS(X)                                                                                              \
    X(GRADIENT, "gradient")   /* it is not the derivative of the loss */                                               \
    X(SCALE, "scale")         /* it is the derivative times a constant */                                              \
    X(DETACHED, "detached")   /* it is zero, or none, and the derivative is not */                                     \
    X(REDRAWN, "redrawn")     /* a recomputation drew different numbers than the forward it repeats */                 \
    X(LOST, "lost")           /* it lacks some of the micro-batches whose losses were differentiated */                \
    X(READ, "read")           /* the optimizer read something else than what backward gave */                          \
    X(UPDATE, "update")       /* an optimizer does something else than the rule that it is named after */              \
    X(FUTURE, "future")       /* a row of scores depends on tokens behind its own, one of which it is to predict */    \
    X(TARGET, "target")       /* rows are scored against a token further away than the next */                         \
    X(ROWS, "rows")           /* sequences of a batch meet */                                                          \
    X(DOCUMENTS, "documents") /* documents that are packed into one sequence meet */                                   \
    X(PADDING, "padding")     /* what the attention mask hides is seen */                                              \
    X(CARRIED, "carried")     /* a micro-batch depends on the tokens of one before it */                               \
    X(POSITIONS, "positions") /* padding on the left shifts the positions of what is behind it */                      \
    X(WEIGHTS, "weights")     /* the micro-batches were divided by their number once too often */                      \
    X(UNWRITTEN, "unwritten") /* numbers were read that no op wrote, and what the step leaves follows from them */     \
    X(DROPPED, "dropped")     /* finite numbers follow from NaN, and what the step leaves from them */                 \
    X(MEANS, "means")         /* micro-batches were each divided by their own number of tokens */                      \
    X(ROUNDED, "rounded")     /* one line rounds more than all others together, or a phase is off by a tenth */        \
    X(ABSORBED, "absorbed")   /* parameters of 16 bits do not move */                                                  \
    X(SATURATED, "saturated") /* numbers lie beyond the range of their dtype */                                        \
    X(UNDERFLOW, "underflow") /* numbers became zero */

typedef enum lb_check_kind {
#define LB_CHECK_KIND_ENUM(name, text) LB_CHECK_##name,
    LB_CHECK_KINDS(LB_CHECK_KIND_ENUM)
#undef LB_CHECK_KIND_ENUM
} lb_check_kind;
LB_API const char *lb_check_kind_name(lb_check_kind kind);

typedef enum lb_check_verdict { LB_CHECK_CLEAN, LB_CHECK_FOUND, LB_CHECK_UNDECIDED } lb_check_verdict;
LB_API const char *lb_check_verdict_name(lb_check_verdict verdict); /* "clean", "found", "undecided" */

typedef struct lb_check_finding {
    lb_check_kind kind;
    int64_t step;
    int32_t rank;
    const char *phase;             /* of the op */
    char layer[160], op[96];       /* where it goes wrong; op "" where no op does */
    char forward[96];              /* the forward op whose backward that is; "" where none is known */
    uint32_t index;                /* of the op, LB_NONE */
    lb_code_line line, of_forward; /* the code of both; number 0: not known */
    double factor;                 /* gradient / derivative where that is one number; NaN */
    double effect;                 /* |gradient - derivative| / |derivative| along the direction tried */
    char message[640];             /* the proof in a sentence */
    char command[320];             /* what shows it */
} lb_check_finding;

typedef struct lb_check_unjudged {
    char what[160], why[240];
    bool passed; /* nothing was claimed of it: the verdict is what it is without */
} lb_check_unjudged;

/* Rows of a table of facts: where digits go. They are no findings. X(name, text) */
#define LB_CHECK_DIGIT_KINDS(X)                                                                                        \
    X(ROUNDING, "rounding")         /* what a line of code rounds, and how far that carries */                         \
    X(CANCELLATION, "cancellation") /* a sum or a difference that is small beside its terms */                         \
    X(UPDATES, "updates")   /* of a tensor, or of a group of an optimizer: what was added and did not move it */       \
    X(STATE, "state")       /* of an optimizer: numbers that became zero or are subnormal */                           \
    X(RANGE, "range")       /* results of f16 and of 8 bits that left the range of their dtype */                      \
    X(HEADROOM, "headroom") /* how far gradients of f16 are from their largest number */                               \
    X(ROUTER, "router")     /* how near a choice of k is to a tie */

typedef enum lb_check_digit_kind {
#define LB_CHECK_DIGIT_KIND_ENUM(name, text) LB_CHECK_DIGIT_##name,
    LB_CHECK_DIGIT_KINDS(LB_CHECK_DIGIT_KIND_ENUM)
#undef LB_CHECK_DIGIT_KIND_ENUM
} lb_check_digit_kind;
LB_API const char *lb_check_digit_kind_name(lb_check_digit_kind kind);

/* How far some rounding moves what leaves the step, from an exact run without any. Relative; NaN: not known. */
typedef struct lb_check_effect {
    double loss;
    double logits;        /* root of the mean square: what the loss reads, logits or log-probabilities */
    double largest_logit; /* largest distance by the largest logit */
    double gradients;     /* root of the mean square, all that optimizers read together */
    double reached;       /* the loss itself */
} lb_check_effect;

typedef struct lb_check_digit {
    lb_check_digit_kind kind;
    int64_t step;
    int32_t rank;
    const char *phase; /* of the op; "" */
    char layer[160];   /* "blocks.*.n1" where ops of several layers are one row; of a tensor: its name */
    char op[96];
    uint32_t index, ops; /* the first op, LB_NONE; how many */
    lb_dtype dtype;
    lb_code_line line;
    lb_check_effect effect; /* of a rounding: with it alone */
    lb_check_effect cured;  /* with all others, which is what is left where the cure is applied */
    double digits;          /* right digits that it leaves by itself, by its largest effect; NaN */
    double share;           /* of the whole rounding, of the numbers counted, of the updates: 0 to 1; NaN */
    double recent;          /* of updates: the share of the last step; NaN */
    double bits;            /* lost by a cancellation; of a headroom; NaN */
    int64_t numbers;        /* counted */
    char cure[360];         /* "" where there is none */
    char message[320];
} lb_check_digit;

/* Sections that --only names. */
enum lb_check_part {
    LB_CHECK_PART_GRADIENT = 1 << 0,
    LB_CHECK_PART_STEP = 1 << 1,
    LB_CHECK_PART_RELATIONS = 1 << 2,
    LB_CHECK_PART_MEMORY = 1 << 3,
    LB_CHECK_PART_DIGITS = 1 << 4
};

typedef struct lb_check_options {
    size_t size;    /* sizeof(lb_check_options) */
    uint32_t parts; /* lb_check_part; 0: all */
    /* at most, for proving, of each step by itself; naming a place that was found may take as many again ten times; 0:
     * 20 */
    uint32_t replays;
    int64_t first_step, last_step;
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    /* A step is a unit of work. NULL: everything is done here (lastbit/parts.h) */
    lb_parts *work;
    /* only this call uses the capture: programs go when their unit is done, so that memory does not grow with steps */
    bool alone;
} lb_check_options;
#define LB_CHECK_OPTIONS_INIT {.size = sizeof(lb_check_options), .first_step = INT64_MIN, .last_step = INT64_MAX}

typedef struct lb_check_report {
    lb_check_verdict verdict;
    lb_check_finding *findings; /* by effect */
    uint32_t n_findings;
    char (*proven)[320]; /* a sentence each */
    uint32_t n_proven;
    lb_check_unjudged *unjudged;
    uint32_t n_unjudged;
    lb_check_digit *digits; /* by kind, what costs most first */
    uint32_t n_digits;
    bool left;        /* something of a step that was looked at was not judged */
    uint32_t replays; /* all of them, of whole steps or of their beginnings */
} lb_check_report;

/* LB_ERR_NOT_FOUND: no step was recorded in that range. */
LB_API lb_status lb_check_run(lb_capture *capture, const lb_check_options *options, lb_check_report **report,
                              lb_err *err);
LB_API void lb_check_report_free(lb_check_report *report);
/* For a person; malloc'ed, NULL when out of memory. */
LB_API char *lb_check_text(const lb_check_report *report);

#ifdef __cplusplus
}
#endif
#endif
