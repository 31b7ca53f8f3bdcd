/* How a side wrote its numbers: logarithms to another base, losses or probabilities in place of log-probabilities, or
 * scores that stand a token or two further on (shifted labels).
 *
 * Each is a hypothesis: q = c p with the c of that logarithm, or q of token t + s = p of token t. It is taken where it
 * leaves a tenth of the difference, where every other one leaves twice as much, and where the difference does not rest
 * on a few tokens that happen to meet. */
#ifndef LB_TOKEN_SCALE_SHIFT_H
#define LB_TOKEN_SCALE_SHIFT_H

#include "parity/token_k3.h"

/* Finds it, adds a finding, and undoes it in the scores. False: out of memory. */
bool lb_token_scale_shift_undo(lb_token_scores *scores, lb_parity_finding **findings, uint32_t *n);

#endif
