/* Finds the ops of B that depend on choices which the two sides made differently (experts, for example), and the ops at
 * which both sides agree again.
 *
 * Where an expert gets different tokens than on the other side, its ops run in different shapes and have no partner.
 * Two such ops are still one quantity in either of two cases:
 *   - They give the same rows in the same order, except for rows that the choice moved.
 *   - They are the same op with the same arguments, and everything they read is one quantity, some of it except for
 *   such rows. Then the choice alone explains what they give. So the gradient of an expert's weight, in which no row
 *   belongs to a token, is matched with the other side's.
 *
 * In both cases the op of each side also has to agree with its own recording. Where the shapes are equal, what is
 * matched takes A's numbers on B's side. */
#ifndef LB_BISECT_FLIP_REACH_H
#define LB_BISECT_FLIP_REACH_H

#include "shadow/flips.h"

typedef enum lb_met { LB_MET_NOT, LB_MET_SAME, LB_MET_BUT_ROWS } lb_met;

typedef struct lb_flip_reach {
    const lb_program_view *a, *b;
    const lb_alignment *alignment;
    const uint8_t *wanted; /* per op of A: the pair is to be compared; all others have the same bits */
    lb_flips flips;        /* all below is NULL where there is none */
    struct lb_slice_flow *flows[2];
    uint64_t *which;         /* per op of B: the choices that it follows from (lb_flips_bit), where `asked` says so */
    uint8_t *asked;          /* per op of B: `which` is known */
    uint8_t *met;            /* per op of B: lb_met */
    uint32_t *met_of[2];     /* per op of A (of B): the op of the other side that is the same quantity; LB_NONE */
    uint32_t *reshaped_of_b; /* alignment.reshaped_b_of_a the other way round */
    uint32_t *source_of_b;   /* alignment.source_b_of_a the other way round */
} lb_flip_reach;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_flip_reach_open(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             const uint8_t *wanted, lb_flip_reach *reach, lb_err *err);
void lb_flip_reach_close(lb_flip_reach *reach);
/* The choices that an op of B follows from, as far back as the shadows agreed again. */
uint64_t lb_flip_reach_of(lb_flip_reach *reach, uint32_t op);
/* The sides agree at this op by themselves: what follows from it does not follow from any choice before it. */
void lb_flip_reach_end(lb_flip_reach *reach, uint32_t op);
void lb_flip_reach_meet(lb_flip_reach *reach, uint32_t a, uint32_t b, lb_met how);
/* The op of A that an op of B without a partner corresponds to, in different shapes; LB_NONE. */
uint32_t lb_flip_reach_reshaped(const lb_flip_reach *reach, uint32_t b);
/* Are the two ops the same op with the same arguments, and is everything that they read one quantity, some of it except
 * for rows? */
bool lb_flip_reach_explains(lb_flip_reach *reach, uint32_t a, uint32_t b);
/* Rows after each other. */
typedef struct lb_shadow_rows {
    const double *numbers;
    int64_t n, width;
} lb_shadow_rows;

/* Have both the same rows in the same order, except for rows that some of the choices `which` can have moved? `noise`:
 * as lb_shadow_numbers_agree takes it. */
bool lb_flip_reach_same_rows(const lb_flip_reach *reach, uint64_t which, const lb_shadow_rows *a,
                             const lb_shadow_rows *b, double noise);

#endif
