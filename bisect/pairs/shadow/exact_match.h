/* Matches ops by what they compute: ops of both sides that give the same numbers in exact arithmetic are the same
 * quantity, whatever they are called, and wherever they stand in a layer that the two sides compute by different ops.
 *
 *      A: pow ─ mean ─ add ─ rsqrt ─ mul ─ mul              the product of x and 1/rms is matched although no name fits
 *      B: mul ─ sum ─ div ─ add ─ sqrt ─ div ─ mul ─ cast
 *
 * So a region without partners is as small as the values allow, and what differs in it stands between values that
 * agree. Private to shadow_pair.c. */
#ifndef LB_BISECT_EXACT_MATCH_H
#define LB_BISECT_EXACT_MATCH_H

#include "shadow/shadow_numbers.h"
#include "shadow/shadow_pair.h"

enum { LB_MATCH_RESULTS = 4 };

/* Projections of the first results of an op, where these are reals. */
typedef lb_shadow_projection lb_match_results[LB_MATCH_RESULTS];

typedef struct lb_exact_match {
    const lb_program *program[2];
    const lb_alignment *alignment;
    lb_match_results *results[2]; /* per op of A and of B that may be matched */
    /* What results of such ops are like (dtype aside: phase, size, and of several the op), ascending: a result that
     * none of the other side is like meets nothing. */
    uint64_t *forms[2];
    size_t n_forms[2];
} lb_exact_match;

lb_status lb_exact_match_init(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                              lb_exact_match *match, lb_err *err);
void lb_exact_match_release(lb_exact_match *match);
/* An op of a shadow has run; of A also in the disturbed run, which says how noisy its projection is. */
void lb_exact_match_note(lb_exact_match *match, int side, bool disturbed, uint32_t op, const lb_event *event);
/* Fills out->meets: ops without a partner, and those whose partner in an irregular group disagrees. */
lb_status lb_exact_match_find(const lb_exact_match *match, lb_shadow_pair *out, lb_err *err);

#endif
