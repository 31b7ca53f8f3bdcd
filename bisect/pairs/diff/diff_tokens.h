/* Parity: do both sides give the same probabilities to the same tokens?
 *
 * Per token t with log-probabilities log p (A, the reference) and log q (B), target token y, all in f64:
 *
 *      d = log p(y) - log q(y)         k3 = exp(d) - 1 - d >= 0, computed as expm1(d) - d: exp(d) - d - 1 in f32 has no
 *                                      correct digit below |d| = 3e-4
 *      KL(p || q) = sum over v of p(v) (log p(v) - log q(v))
 *      top-1: the same most probable token (the lower index on a tie)
 *
 * k3 is Schulman's estimator of KL(q || p) from samples of q, as in TRL's and verl's GRPO (ref minus policy
 * log-probability, per token). Reported are its mean, the mean KL, the share of equal top-1, max and mean of |d|.
 *
 * Tokens are the rows of what goes into a loss over a vocabulary (_log_softmax with nll_loss), in the order of
 * execution; where a program has none, of what leaves the language-model head, and then y is A's most probable token.
 */
#ifndef LB_BISECT_DIFF_TOKENS_H
#define LB_BISECT_DIFF_TOKENS_H

#include "pair/regenerated.h"

#include <lastbit/diff.h>

/* Adds the tokens of one step to the report, by kind: of a rank against its partner, or against the ranks that stand
 * for it. Sides whose tokens do not match (in number or in targets) add a finding in place of numbers. */
lb_status lb_diff_tokens_add(const lb_program_view *a, const lb_program_view *b, const lb_diff_options *options,
                             lb_diff_report *report, lb_err *err);
/* Divides the sums by the number of tokens: to be called once, behind the last step. */
void lb_diff_tokens_finish(lb_diff_report *report);

#endif
