/* Batch invariance: does a row keep its bits when other rows stand beside it?
 *
 * Simplest use:
 *
 *     lb_invariance_options options = LB_INVARIANCE_OPTIONS_INIT;
 *     lb_invariance found;
 *     LB_TRY(lb_invariance_run(capture, &options, &found, err));
 *     printf("%u ops under a launch rule\n", found.n_rows);
 *     lb_invariance_release(&found);
 *
 * Recorded rows of an op's input are embedded in batches of different sizes, made of the recorded rows in turn, and the
 * op is run under each kernel that it has, and under launch rules of GPU libraries: how many slices a split-K product
 * takes by its tiles and the multiprocessors, how many slices of keys a decoding attention takes, how many threads a
 * sum or a fused norm has. What is compared are those rows of the result, with what they are in the recorded batch. Of
 * attention a row is a sequence, with its keys and values. */
#ifndef LASTBIT_INVARIANCE_H
#define LASTBIT_INVARIANCE_H

#include <lastbit/archive.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_INVARIANCE_SIZES 24

typedef struct lb_invariance_options {
    size_t size;         /* sizeof(lb_invariance_options) */
    const char *select;  /* selector of ops, NULL: all that have rows */
    int64_t row;         /* of the recorded batch; -1: its first 64 */
    int multiprocessors; /* of the GPU whose launch rules are asked; 0: 132 (H100) */
    int64_t first_step, last_step;
    const char *const *
        /* only these: "own", "openblas", a rule ("splitk", …); or the text of an order or a composite's kernel
         * ("splitk:4"), which every batch is then given */
        launches;
    uint32_t n_launches; /* 0: each kernel and rule that there is */
} lb_invariance_options;
#define LB_INVARIANCE_OPTIONS_INIT                                                                                     \
    {.size = sizeof(lb_invariance_options), .row = -1, .first_step = INT64_MIN, .last_step = INT64_MAX}

typedef struct lb_invariance_size {
    int64_t rows;      /* of the batch */
    int64_t differing; /* elements with different bits, over the rows embedded */
    char launch[64];   /* what a batch of that size is given: "splitk:4"; "": nothing, the op's own kernel */
} lb_invariance_size;

typedef struct lb_invariance_row {
    int64_t step;
    int32_t rank;
    uint32_t op; /* row of the program */
    char layer[160], name[96];
    char kernel[64]; /* "own", "openblas", a rule and what it looks at ("splitk,sms:132"), or the text that was given */
    char launch[64]; /* what the recorded batch is given */
    bool sequences;  /* rows are sequences: of attention */
    /* rows of the recorded batch, those embedded, and elements of the result in them */
    int64_t recorded, embedded, elements;
    lb_invariance_size sizes[LB_INVARIANCE_SIZES];
    uint32_t n_sizes;
    bool varies;
} lb_invariance_row;

typedef struct lb_invariance {
    lb_invariance_row *rows;
    uint32_t n_rows;
} lb_invariance;

/* LB_ERR_NOT_FOUND: no op that was selected has rows whose bytes were kept and is launched so. LB_ERR_INVALID: a launch
 * that is none. */
LB_API lb_status lb_invariance_run(lb_capture *capture, const lb_invariance_options *options, lb_invariance *out,
                                   lb_err *err);
LB_API void lb_invariance_release(lb_invariance *invariance);

#ifdef __cplusplus
}
#endif
#endif
