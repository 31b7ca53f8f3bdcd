/* Parity: do two runs give the same tokens the same probability?
 *
 * Simplest use:
 *
 *     lb_token_set *trainer, *server;
 *     lb_parity_options options = LB_PARITY_OPTIONS_INIT;
 *     lb_parity_report *report;
 *     LB_TRY(lb_token_set_read("trainer.jsonl", &trainer, err));
 *     LB_TRY(lb_token_set_read("server.jsonl", &server, err));
 *     LB_TRY(lb_parity_run(trainer, server, &options, &report, err));
 *     puts(report->decided);
 *     lb_parity_report_free(report);
 *     lb_token_set_free(trainer);
 *     lb_token_set_free(server);
 *
 * A side is a set of sequences of tokens, each token with the log-probability that the run gave it, read from a file.
 * Both sides' sequences are paired, their tokens aligned, and what is compared is p (A, the reference: the trainer) and
 * q (B: the server), per token t with target y, in f64 and natural logarithms:
 *
 *      d  = log p(y) - log q(y)
 *      k3 = exp(d) - 1 - d >= 0, as expm1(d) - d. d is clamped to [-20, 20] and k3 to at most 10 first, as verl's
 *           `low_var_kl` does (verl/trainer/ppo/core_algos.py); TRL's GRPO clamps neither. The report counts the tokens
 *           that were clamped
 *      KL(p || q) = sum over v of p(v) (log p(v) - log q(v)), where both sides have full rows of logits
 *      top-1: both sides' most probable token is the same
 *      loss = -mean log p(y), of either side; perplexity = exp(loss)
 *
 * k3 is J. Schulman's estimator ("Approximating KL Divergence", 2020) of KL(q || p) from samples of q: the tokens
 * should be what the server drew. A mean hides what is wrong with a few, so that every kind of token is a row of its
 * own, and the verdict is that of the worst kind.
 *
 * k3 is blind where a text was memorised: of a loss of 1e-4 against 0.03 it is 4.5e-4. There 1 - p(y) is about the loss
 * itself, and what rounding does to logits moves the loss by a factor near 1 (bf16 in the place of f32: 1.00 to 1.002),
 * while an adapter that lost a shard moves it 50 to 800 times. So a kind also fails where one side's loss is more than
 * LB_PARITY_LOSS_FACTOR times the other's. Both limits stand on the noise floor where one is known: k3 within twice the
 * floor is noise, and so is a factor of the losses up to the floor's squared.
 */
#ifndef LASTBIT_PARITY_H
#define LASTBIT_PARITY_H

#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a side ------------------------------------------------------------------------------------------------------ */

/* One of the alternatives that a server reports beside a token. */
typedef struct lb_token_choice {
    int64_t id;       /* -1: not told */
    const char *text; /* NULL: not told */
    double logp;
} lb_token_choice;

typedef struct lb_token {
    int64_t id;       /* -1: not told */
    const char *text; /* its piece of text, NULL: not told */
    double logp;  /* natural logarithm of its probability after those before it; NaN: none was given, or it is `nan` */
    bool nan;     /* it was given, and is not a number */
    int32_t kind; /* row of the set's kinds, -1: not told */
    int64_t top1; /* the most probable token, -1: not told */
    uint32_t first_choice, choices; /* rows of the sequence's choices */
} lb_token;

typedef struct lb_token_sequence {
    const char *name;    /* NULL: none */
    const char *version; /* of the weights that scored it; NULL: not told */
    lb_token *tokens;
    uint32_t n, n_choices;
    lb_token_choice *choices;
    /* [positions, vocabulary]; row i is what was said after token i, of token i + 1; data NULL: none */
    lb_tensor logits;
    /* per token: its position among the rows, where padding was left out; UINT32_MAX: it has none */
    uint32_t *logit_of;
} lb_token_sequence;

typedef struct lb_token_set lb_token_set;

/* Reads a file. What it is, is seen from its contents:
 *
 * A capture: what the recorded model said of the tokens that it read and of the labels of its loss (its first rank).
 * The kinds are those that its own inputs tell, or "prompt" and "generated" where the loss ignores some. Full rows are
 * kept where all of them together take no more than a gigabyte.
 *
 * JSON, a value a line or one document. A value is
 *
 *   - one sequence: {"id", "token_ids" (or "input_ids"), "tokens" (texts), "logprobs", "kinds" (names or numbers),
 *     "mask" (0: padding, left out), "loss_mask" (0: prompt, 1: generated), "top1", "top_logprobs", "weight_version"};
 *   - a trainer's sample of the same (verl's, slime's and TRL's names; "response_length" where numbers are of the
 *     response alone);
 *   - one token: {"sequence", "position", "token_id", "token", "logprob", "kind"};
 *   - what servers answer: OpenAI's completions and chat with logprobs, vLLM's prompt_logprobs and dumped
 *     RequestOutput, SGLang's meta_info, TRL's vllm-serve.
 *
 * safetensors and .npz: tensors "token_ids" [N, T], "logprobs" [N, T] (or [N, T - 1]: none for the first token),
 * "kinds", "mask", "loss_mask", "top1" [N, T], "logits" [N, T, V] (row t is of token t + 1, as models return them). A
 * dimension N of 1 may be left out. Where there are no "logprobs" they follow from "logits" and "token_ids".
 *
 * LB_ERR_CORRUPT names line and field; LB_ERR_INVALID: a file without log-probabilities. */
LB_API lb_status lb_token_set_read(const char *path, lb_token_set **set, lb_err *err);
LB_API void lb_token_set_free(lb_token_set *set);
LB_API uint32_t lb_token_set_sequences(const lb_token_set *set, const lb_token_sequence **sequences);

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

typedef struct lb_parity_options {
    size_t size;               /* sizeof(lb_parity_options) */
    double threshold;          /* k3 of every kind below it passes */
    uint32_t worst;            /* so many tokens are listed */
    const lb_token_set *noise; /* another run of the first side: what it differs by is the noise floor; NULL: none */
    void (*progress)(const char *what, uint64_t done, uint64_t total);
} lb_parity_options;
#define LB_PARITY_OPTIONS_INIT {.size = sizeof(lb_parity_options), .threshold = 1e-3, .worst = 10}

/* Losses further apart than this factor are no rounding. Paths that were healthy in field reports: 1.00 to 2.3; lost
 * shards: 50 and more. */
#define LB_PARITY_LOSS_FACTOR 3.0

/* Why a row does not pass. */
#define LB_PARITY_REASONS(X)                                                                                           \
    X(WITHIN, "")               /* it passes */                                                                        \
    X(K3, "k3")                 /* k3 is not below its limit */                                                        \
    X(LOSS, "loss")             /* the losses are further apart than their limit */                                    \
    X(IMPOSSIBLE, "impossible") /* a token has the probability 0 on one side */                                        \
    X(NOISE, "noise")           /* k3 is above the threshold, and so is what two runs of the first side differ by */

typedef enum lb_parity_reason {
#define LB_PARITY_REASON_ENUM(name, text) LB_PARITY_BY_##name,
    LB_PARITY_REASONS(LB_PARITY_REASON_ENUM)
#undef LB_PARITY_REASON_ENUM
} lb_parity_reason;
LB_API const char *lb_parity_reason_name(lb_parity_reason reason);

/* Tokens of one kind, or of one range of positions. Means over `scored` tokens; NaN where there is nothing to take one
 * of. */
typedef struct lb_parity_row {
    const char *name;
    uint64_t count;     /* aligned tokens with a log-probability on both sides */
    uint64_t full;      /* of them with full rows on both sides */
    uint64_t chosen;    /* of them with a most probable token on both sides */
    uint64_t held;      /* of them whose d or k3 was held */
    uint64_t nonfinite; /* of them with an infinite d: a probability of 0 on one side; in no mean */
    double k3, kl, top1, mean_abs, max_abs, mean; /* mean: of d, with its sign */
    double perplexity_a, perplexity_b;
    double loss_a, loss_b;
    double noise;      /* k3 of the same kind in the noise floor; NaN: none */
    double noise_loss; /* factor between the losses of the noise pair, at least 1; NaN: none */
    /* it passes below this k3, and up to this factor between the losses; both stand on the noise */
    double k3_limit, loss_limit;
    lb_parity_reason reason;
} lb_parity_row;

/* How many times one side's loss is the other's, at least 1; a loss below 1e-7, which f32 cannot tell from 0, counts as
 * that. */
LB_API double lb_parity_loss_factor(double loss_a, double loss_b);

/* How the sides differ other than in their numbers, and what was done about it. */
#define LB_PARITY_FINDINGS(X)                                                                                          \
    X(SEQUENCE, "sequence")         /* one that the other side lacks, or has twice */                                  \
    X(SHIFT, "shift")               /* log-probabilities stand at the token before or behind theirs */                 \
    X(PADDING, "padding")           /* one side is padded */                                                           \
    X(SPECIAL, "special-token")     /* a token at an end of every sequence that the other side lacks */                \
    X(TEMPLATE, "chat-template")    /* the same pieces between turns on one side only */                               \
    X(TOKENS, "tokenisation")       /* the same text in other pieces */                                                \
    X(DROPPED, "dropped")           /* tokens that one side lacks */                                                   \
    X(REPEATED, "repeated")         /* a token that one side has twice */                                              \
    X(TEXT, "text")                 /* another text */                                                                 \
    X(NAN, "nan")                   /* log-probabilities that are NaN on one side */                                   \
    X(TEMPERATURE, "temperature")   /* logits divided by something on one side */                                      \
    X(FILTER, "filter")             /* top-k, top-p or min-p on one side */                                            \
    X(VOCABULARY, "vocabulary")     /* one side's softmax runs over other words */                                     \
    X(RENORMALISED, "renormalised") /* the same logits under another normalisation: a filter or another vocabulary */  \
    X(ARGMAX, "argmax")             /* numbers of the most probable word in the place of the token's own */            \
    X(LABELS, "labels")             /* numbers that another row, or the row of another token, gives */                 \
    X(CONSTANT, "constant")         /* one number at all tokens: logits that do not depend on the text */              \
    X(SCALE, "scale")               /* other logarithm, sign, or probabilities in place of logarithms */               \
    X(POSITION, "position")         /* the difference grows along the sequence */                                      \
    X(KIND, "kind")                 /* tokens of some kinds alone are apart */                                         \
    X(KINDS, "kinds")               /* the sides call the same token by other kinds */                                 \
    X(SEQUENCES, "sequences")       /* some sequences agree, the others are apart */                                   \
    X(VERSION, "version")           /* those of one version of the weights agree, those of another are apart */        \
    X(UNTOLD, "untold")             /* the numbers are apart, and no cause could be told from the others */

typedef enum lb_parity_finding_kind {
#define LB_PARITY_FINDING_ENUM(name, text) LB_PARITY_##name,
    LB_PARITY_FINDINGS(LB_PARITY_FINDING_ENUM)
#undef LB_PARITY_FINDING_ENUM
} lb_parity_finding_kind;
LB_API const char *lb_parity_finding_name(lb_parity_finding_kind kind);

/* Causes that the numbers alone can prove; their signatures stand in bisect/pairs/parity/token_causes.h. */
#define LB_PARITY_CAUSES(X)                                                                                            \
    X(SCALE, "scale")                                                                                                  \
    X(SHIFT, "shift")                                                                                                  \
    X(TEMPERATURE, "temperature")                                                                                      \
    X(RENORMALISED, "renormalised") /* filter and vocabulary among them */                                             \
    X(ARGMAX, "argmax")                                                                                                \
    X(LABELS, "labels")                                                                                                \
    X(CONSTANT, "constant")

typedef enum lb_parity_cause {
#define LB_PARITY_CAUSE_ENUM(name, text) LB_PARITY_CAUSE_##name,
    LB_PARITY_CAUSES(LB_PARITY_CAUSE_ENUM)
#undef LB_PARITY_CAUSE_ENUM
        LB_PARITY_CAUSES_N
} lb_parity_cause;
LB_API const char *lb_parity_cause_name(lb_parity_cause cause);

/* UNKNOWN: what the files hold cannot tell, or there is nothing to explain. */
typedef enum lb_parity_cause_state {
    LB_PARITY_CAUSE_UNKNOWN,
    LB_PARITY_CAUSE_EXCLUDED,
    LB_PARITY_CAUSE_FOUND
} lb_parity_cause_state;
LB_API const char *lb_parity_cause_state_name(lb_parity_cause_state state); /* "unknown", "excluded", "found" */

typedef struct lb_parity_finding {
    lb_parity_finding_kind kind;
    bool corrected; /* the numbers are of what is left once it is undone */
    char message[320];
} lb_parity_finding;

typedef struct lb_parity_token {
    uint32_t sequence, a, b; /* row of A's sequences; places of the token in both */
    double log_p, log_q, k3;
} lb_parity_token;

/* A's sequence and what stands against it, token by token. */
typedef struct lb_parity_pair {
    uint32_t a, b;           /* rows of the sequences */
    lb_parity_token *tokens; /* aligned ones in order; log_q belongs to the place of the token after any shift */
    uint32_t n;
} lb_parity_pair;

typedef enum lb_parity_verdict { LB_PARITY_PASS, LB_PARITY_FAIL, LB_PARITY_UNDECIDED } lb_parity_verdict;
LB_API const char *lb_parity_verdict_name(lb_parity_verdict verdict);

/* Tokens of one side: all = compared + first + unscored + unmatched. */
typedef struct lb_parity_coverage {
    uint64_t tokens, compared;
    uint64_t first;     /* without a number, as the first of their sequence */
    uint64_t unscored;  /* without a number, elsewhere */
    uint64_t unmatched; /* with a number, and the other side has no such token or no number for it */
} lb_parity_coverage;

typedef struct lb_parity_report {
    lb_parity_verdict verdict; /* UNDECIDED: nothing could be compared, or the noise floor lies above the threshold */
    char decided[240];         /* the number that decided it, in a sentence */
    lb_parity_coverage coverage[2];
    lb_parity_cause_state causes[LB_PARITY_CAUSES_N];
    lb_parity_row all, *kinds, *positions;
    uint32_t n_kinds, n_positions;
    double noise_floor; /* k3 of all tokens of the noise pair; NaN: none given */
    lb_parity_finding *findings;
    uint32_t n_findings;
    lb_parity_pair *pairs;
    uint32_t n_pairs;
    lb_parity_token *worst; /* of the largest k3, largest first */
    uint32_t n_worst;
} lb_parity_report;

LB_API lb_status lb_parity_run(const lb_token_set *a, const lb_token_set *b, const lb_parity_options *options,
                               lb_parity_report **report, lb_err *err);
LB_API void lb_parity_report_free(lb_parity_report *report);

/* The report for a person; malloc'ed, NULL when out of memory. */
LB_API char *lb_parity_text(const lb_parity_report *report, const lb_token_set *a, const lb_token_set *b,
                            double threshold);
/* Tokens of the pair `row` coloured by probability, from red (0) by yellow to green (1), A's line over B's, `width`
 * columns wide; without `colour` (which gives the code of a terminal for numbers such as "30;48;5;16", and "0" for
 * their end) a digit under each token: tenths of its probability. malloc'ed. */
typedef const char *(*lb_parity_colour)(const char *numbers);
LB_API char *lb_parity_heat_map(const lb_parity_report *report, const lb_token_set *set, uint32_t row, uint32_t width,
                                lb_parity_colour colour);

/* ---- one class of blocks taken from the other side --------------------------------------------------------------- */

typedef struct lb_block_swap {
    char classes[8];   /* letters of blocks that are the other model's: "E"; "" for the model as it was recorded */
    uint32_t blocks;   /* calls of modules that were exchanged */
    bool run;          /* else `message` says why not */
    lb_parity_row all; /* all tokens against the other model's own */
    double worst;      /* k3 of the worst kind */
    char worst_kind[40];
    char message[240];
} lb_block_swap;

/* Runs the model of `base_path` by replay with the blocks of one class of the model of `donor_path` in their place,
 * and compares what it then says with what `donor_path` said: the class whose exchange takes k3 to zero is what the
 * sides do differently. Of the first step that both have, one rank. `classes`: letters (A D E M R) to exchange
 * together, NULL: every class by itself, then all. Rows begin with the model as it was recorded; malloc'ed. Choices of
 * experts are those that each side recorded. `floor`: the donor run by itself in the same way, against what it
 * recorded: no exchange can come nearer than that but by chance (in bf16 1e-7 and more, in f32 next to nothing). */
LB_API lb_status lb_block_swaps(const char *base_path, const char *donor_path, const char *classes,
                                const lb_parity_options *options, lb_block_swap *floor, lb_block_swap **rows,
                                uint32_t *n, lb_err *err);

/* ---- elimination: one variable at a time ------------------------------------------------------------------------- */

/* One run of the user's command. */
typedef struct lb_parity_cell {
    const char *variable, *value; /* NULL: the baseline, all variables at their first value, or its second run */
    const char *command, *out;
    int exit; /* 128 + N: ended by signal N; -1: it ran out of time */
    double seconds;
    bool resumed, scored;      /* taken from an earlier run; has a token file that could be compared */
    lb_parity_row reference;   /* all tokens against the reference; worst: of the worst kind */
    lb_parity_verdict verdict; /* against the reference */
    /* k3: of the worst kind; compared with the baseline, of all tokens and of the worst kind */
    double worst, baseline, worst_baseline;
    bool matters;      /* it changes the verdict, or stands above noise and threshold from the baseline */
    char message[240]; /* why it could not be scored */
} lb_parity_cell;

typedef struct lb_parity_matrix {
    lb_parity_cell *cells; /* baseline, its second run, then variable by variable */
    uint32_t n;
    double noise_floor; /* k3 of the baseline's two runs */
    char **texts;       /* what the cells point to */
    uint32_t n_texts;
} lb_parity_matrix;

/* Runs the commands that a JSON file describes:
 *
 *   {"command": "python serve.py --precision {precision} --adapter {adapter} --out {out}",
 *    "variables": {"precision": ["bf16", "fp32"], "adapter": ["online", "merged"]},
 *    "reference": "trainer.jsonl", "seconds": 600}
 *
 * by /bin/sh: the baseline twice (its noise floor), then each other value of each variable by itself. `{out}` is a
 * token file that the command writes, in the folder `work`; "reference" (beside the JSON file) is what each is compared
 * with, the baseline where it is left out; "seconds" ends a run. Runs that ended well are noted in WORK/runs.jsonl and
 * not run again. LB_ERR_INVALID names what is wrong with the file. */
LB_API lb_status lb_parity_matrix_run(const char *path, const char *work, const lb_parity_options *options,
                                      lb_parity_matrix **matrix, lb_err *err);
LB_API void lb_parity_matrix_free(lb_parity_matrix *matrix);
LB_API char *lb_parity_matrix_text(const lb_parity_matrix *matrix, double threshold); /* malloc'ed */

#ifdef __cplusplus
}
#endif
#endif
