/* Both sides of an alignment replayed: each op is compared with its own recording (A/A), and the exact shadows of the
 * two sides with each other.
 *
 *      isolated   A, B            own verdicts: do the recorded bits lie inside the op's own bound?
 *      shadow     A               kept, op by op
 *      shadow     A, disturbed    how far f64 rounding can carry a result (shadow_numbers.h)
 *      shadow     B               from A's sources, draws and decisions (cross_feed.h): the same real function up to here?
 *
 * Ops that stand on one side only, or whose partners by name disagree, are matched once more by what they compute: two
 * results that agree are the same quantity, whatever the ops are called (`meets`). */
#ifndef LB_BISECT_SHADOW_PAIR_H
#define LB_BISECT_SHADOW_PAIR_H

#include "pair/align.h"
#include "pair/held_part.h"
#include "pair/side_replay.h"

typedef enum lb_agreement { LB_SHADOW_UNKNOWN, LB_SHADOW_AGREES, LB_SHADOW_DISAGREES } lb_agreement;

/* Per op of A. */
typedef struct lb_shadow_row {
    lb_agreement agreement; /* of the aligned pair's (or join's) results and written values */
    uint32_t outcome;       /* the first of them that disagrees */
    /* unknown only because the results differ in their number of elements; both were run */
    bool other_counts;
    /* they agree, by numbers that are more than noise: it is one quantity (lb_shadow_numbers_tell) */
    bool told;
    bool terms;        /* the parts of a join agree as terms of the whole: their sum is it, or their mean */
    int64_t flipped;   /* rows in which the two sides chose differently: they are not compared (flips.h) */
    lb_verdict own[2]; /* A/A verdict of A's and of B's op, the worst of its parts; MISSING when it was not replayed */
    double bound_ratio[2];
    /* of a reduction over ranks: the order that gives a side's bits where replay's own order does not; "" */
    char order[2][24];
} lb_shadow_row;

/* What a parameter holds at the end: the same on both sides, whatever ops wrote it. Each part of B is a slice of A's
 * along `dim`, or (LB_REASSEMBLY_SAME) all of it. */
typedef struct lb_shadow_part {
    uint32_t op, value; /* the last op that wrote it, and the value that left */
} lb_shadow_part;

typedef struct lb_shadow_final {
    lb_shadow_part whole;  /* of A */
    uint32_t first, parts; /* rows of final_parts: of B */
    uint32_t seen;         /* parts whose shadows were compared */
    /* the last writes are of parts of it, or only one side made them: images are compared (final_image.h) */
    bool pieces;
    uint32_t sources[2]; /* what was there before, ops of A and (of its first part) of B */
    /* row of the alignment's cuts, where the sides split this tensor differently: what both hold of it is compared.
     * LB_NONE: they split it alike */
    uint32_t cut;
    int dim;
    lb_agreement agreement;
} lb_shadow_final;

/* A value that leaves the step, on both sides; see step_outputs.h. */
typedef struct lb_step_output {
    uint32_t op[2], value[2]; /* of A and of B: what gave it last, and the value */
    bool differs, other_shape;
    int rows; /* other_shape: the dimension in which one side has more rows because its call was given more; -1: none */
    bool input; /* an input of an op whose result both shadows take from one side */
    /* a result that was matched by its place among several alone: where numbers differ, it may be a different result */
    bool by_place;
    bool logged; /* a number that the program logged or read (logged_scalars.h) */
    bool loss;   /* the one number that forward ends with */
    bool by_use; /* it was identified only by the op of the next step that reads it */
    /* of what the next step takes up: "optimizer.exp_avg:up.weight"; NULL: a result of an outermost call, or an
     * input */
    const char *name;
    lb_agreement agreement;
} lb_step_output;

typedef struct lb_step_outputs {
    lb_step_output *list;
    uint32_t n;
} lb_step_outputs;

typedef struct lb_shadow_pair {
    lb_shadow_row *rows; /* per op of A */
    uint32_t n_rows;
    lb_shadow_final *finals; /* parameters that may differ at the end */
    uint32_t n_finals;
    lb_shadow_part *final_parts;
    uint32_t n_final_parts;
    /* per op of A (of B): the op of B (of A) that gives the same in exact arithmetic although it is no partner, or the
     * partner disagrees; LB_NONE: none */
    uint32_t *meets[2];
    uint32_t first_flip; /* of B: the first choice that the two sides made differently (flips.h); LB_NONE */
    bool undecided[2];   /* a chain ended before the end of the step */
    lb_run_cost cost;    /* of all runs */
    bool over_memory;    /* some shadows were not kept: their rows stay unknown */
} lb_shadow_pair;

/* Finds the finals: named sources of A with a partner that both sides write. Before the run, which judges them. */
lb_status lb_shadow_pair_init(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                              lb_shadow_pair *out, lb_err *err);
/* The op that wrote some of a part last, and the value that left; its source where none did. */
lb_shadow_part lb_shadow_part_left(const lb_held_part *part);

typedef struct lb_shadow_question {
    const lb_program_view *a, *b;
    const lb_alignment *alignment;
    const uint8_t *wanted; /* per op of A: compare the shadows of that pair or join */
    uint64_t memory_bytes; /* of shadows that may be kept at a time; 0: 4 GiB */
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
} lb_shadow_question;

/* Replays both sides. `exits` get their agreement. */
lb_status lb_shadow_pair_run(const lb_shadow_question *asked, lb_step_outputs *exits, lb_shadow_pair *out, lb_err *err);
void lb_shadow_pair_release(lb_shadow_pair *pair);

#endif
