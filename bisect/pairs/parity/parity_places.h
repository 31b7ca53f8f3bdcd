/* Where the difference sits, in facts: kinds of tokens, positions, sequences, versions of the weights. A place is no
 * cause, and is not called one.
 */
#ifndef LB_BISECT_PARITY_PLACES_H
#define LB_BISECT_PARITY_PLACES_H

#include "parity/token_k3.h"

/* Positions 0-15, 16-63, 64-255, …: each range four times as long as the one before. */
enum { LB_PARITY_PLACES_N = 12 };
extern const char *const LB_PARITY_PLACES_RANGES[LB_PARITY_PLACES_N];
uint32_t lb_parity_places_range(uint32_t position);

/* Appends findings to the report, whose rows are there; false when out of memory. */
bool lb_parity_places_note(const lb_token_scores *scores, lb_parity_report *report, double threshold);
/* Says of a verdict by numbers that no cause was told: which way the tokens lie, what is excluded, what the files
 * cannot tell. */
bool lb_parity_places_untold(lb_parity_report *report);

#endif
