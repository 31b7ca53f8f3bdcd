/* How far the choices that the sides made otherwise reach into B, and what has met again behind them.
 *
 * Where an expert sees other tokens than on the other side, its ops run in other shapes and have no partner. Two such
 * ops are one quantity all the same
 *   - where they give the same rows in the same order, but for no more than the choice moved, or
 *   - where they are one op with one set of arguments, and everything they read has met, some of it but for such rows:
 *   then the choice alone
 *     explains what they give. So the gradient of an expert's weight, which no row of a token shows, is that of the
 *     other side.
 * Both ask that either side's op keeps to its own recording. What has met hands A's numbers to B where the shapes are
 * the same. */
#ifndef LB_BISECT_FLIP_REACH_H
#define LB_BISECT_FLIP_REACH_H

#include "shadow/flips.h"

typedef enum lb_met { LB_MET_NOT, LB_MET_SAME, LB_MET_BUT_ROWS } lb_met;

typedef struct lb_flip_reach {
    const lb_program_view *a, *b;
    const lb_alignment *alignment;
    const uint8_t *wanted; /* per op of A: the pair is compared; else it has the same bits */
    lb_flips flips;        /* all below is NULL where there is none */
    struct lb_slice_flow *flows[2];
    uint64_t *which;         /* per op of B: the choices that it follows from (lb_flips_bit) */
    uint8_t *asked;          /* per op of B: `which` is known */
    uint8_t *met;            /* per op of B: lb_met */
    uint32_t *met_of[2];     /* per op of A (of B): what it has met; LB_NONE */
    uint32_t *reshaped_of_b; /* alignment.reshaped_b_of_a the other way round */
    uint32_t *source_of_b;   /* alignment.source_b_of_a the other way round */
} lb_flip_reach;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_flip_reach_open(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             const uint8_t *wanted, lb_flip_reach *reach, lb_err *err);
void lb_flip_reach_close(lb_flip_reach *reach);
/* The choices that an op of B follows from: up to where the shadows have met again. */
uint64_t lb_flip_reach_of(lb_flip_reach *reach, uint32_t op);
/* From here on the sides agree by themselves: what follows from this op follows from no choice before it. */
void lb_flip_reach_end(lb_flip_reach *reach, uint32_t op);
void lb_flip_reach_meet(lb_flip_reach *reach, uint32_t a, uint32_t b, lb_met how);
/* The op of A that an op of B without a partner is in other shapes; LB_NONE. */
uint32_t lb_flip_reach_reshaped(const lb_flip_reach *reach, uint32_t b);
/* Does everything that the two ops read meet, some of it but for rows, and are they one op with the same arguments? */
bool lb_flip_reach_explains(lb_flip_reach *reach, uint32_t a, uint32_t b);
/* Rows after each other. */
typedef struct lb_shadow_rows {
    const double *numbers;
    int64_t n, width;
} lb_shadow_rows;

/* Have both the same rows in the same order, but for those that some of the choices `which` can have moved? `noise`: as
 * lb_shadow_numbers_agree takes it. */
bool lb_flip_reach_same_rows(const lb_flip_reach *reach, uint64_t which, const lb_shadow_rows *a,
                             const lb_shadow_rows *b, double noise);

#endif
