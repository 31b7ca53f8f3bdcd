/* Why the numbers differ, where the data tell one cause from all others.
 *
 * Each cause has a signature that no other cause below has, and is named only where that leaves at most a tenth of the
 * squared difference (a twentieth, where one number per token has to tell it), over at least LB_TOKEN_FEWEST tokens of
 * which LB_TOKEN_CARRIERS carry the difference:
 *
 *   scale, shift   see token_scale_shift.h; undone before anything below is asked
 *   temperature    log q(u) - log q(v) = (log p(u) - log p(v)) / T with one T for all words and tokens, T not 1
 *   renormalised   log q(v) - log p(v) is one number for all words v at a token, and not 0: the same logits, another
 *                  normalisation.
 *     filter         the words that are left are the k most probable (top-k), the fewest of mass P (top-p), or all
 *                    above r times the most probable (min-p), with one k, P or r at all tokens
 *     vocabulary     the words that are left are the same at all tokens, or one side's rows are wider
 *   argmax         the number is that of the most probable word, where another word stands
 *   labels         the number is what another row says, or what the row says of another token of the text
 *   constant       one number at all tokens
 *
 * With logits of one side alone, and one number per token of the other, the same laws are fitted to those numbers
 * (token_fit.h). A lost shard, an older policy, another prompt and other kernels have no signature here: what is left
 * is said to be untold.
 */
#ifndef LB_BISECT_TOKEN_CAUSES_H
#define LB_BISECT_TOKEN_CAUSES_H

#include "parity/token_words.h"

#include <lastbit/parity.h>

/* Fills `states` (one per lb_parity_cause) and appends findings of what is found. `top1`: the share of `chosen` tokens
 * whose most probable word both sides tell and agree in. */
lb_status lb_token_causes_find(const lb_token_scores *scores, double top1, uint64_t chosen,
                               lb_parity_cause_state *states, lb_parity_finding **findings, uint32_t *n, lb_err *err);

#endif
