/* Tokens whose log-probability is NaN on one side and a number on the other: a model that computed no number there.
 *
 * A file may use NaN for tokens without a score, too: the first token, a prompt, a kind. So it counts behind the first
 * number of its sequence (or where the sequence has none at all), and for kinds that the side has numbers of. */
#ifndef LB_BISECT_TOKEN_NAN_H
#define LB_BISECT_TOKEN_NAN_H

#include "parity/token_match.h"

/* `shift`: B's numbers stand so many tokens further on. Appends a finding for either side; false when out of memory. */
bool lb_token_find_nan(const lb_token_set *a, const lb_token_set *b, const lb_token_match *match, int shift,
                       lb_parity_finding **findings, uint32_t *n);

#endif
