/* Evaluations that one side alone runs in a step of training.
 *
 *      A             1 ── 2 ── update        without its evaluation B's step is A's: the passes of both stand beside
 *      B    eval ─── 1 ── 2 ── update        each other in order
 *
 * Nothing that the step learns follows from such a pass. Its ops are left out, but for those that give what others read
 * (a cast that is kept, a cache) or that write memory which the step begins with (running statistics). */
#ifndef LB_BISECT_ADDITIONAL_PASSES_H
#define LB_BISECT_ADDITIONAL_PASSES_H

#include "pair/program_view.h"

typedef struct lb_additional_passes {
    uint8_t *left_out[2]; /* per op of either side: it is not compared; NULL: all are */
    char sentences[8][300];
    uint32_t n_sentences; /* what one side does besides, twice or in another order */
} lb_additional_passes;

/* Of one recorded program on each side. LB_ERR_NOMEM is the only failure; release in any case. */
lb_status lb_additional_passes_find(const lb_program_view *a, const lb_program_view *b, lb_additional_passes *out,
                                    lb_err *err);
void lb_additional_passes_release(lb_additional_passes *passes);

#endif
