/* Which token of one side each token of the other is, by the rows that exact runs of both computed for them.
 *
 *      A   calls of one request each     token 7 at place 3 of request 2:  k0 (…)  h0 (…)  k1 (…)  h1 (…)
 *                                                                           │        │
 *      B   requests packed               token 7, the ninth of the row:    k0 (…)  h0 (…)  k1'(…)  h1'(…)
 *
 * One number stands in many places, and the map of tokens (bisect/pairs/joined/token_map.h) knows only which runs of
 * numbers are alike. What a layer computes for a token follows from all that the token sees; rows with the same numbers
 * on both sides are of one token, whatever the values' shapes. Every pair of rows that agree is a vote, the more the
 * fewer tokens share it; the pairs with most votes are taken first, of equal ones those that the map had. Rows behind a
 * fault no longer agree; the votes of what stands before it are enough. */
#ifndef LB_BISECT_TOKEN_ROWS_H
#define LB_BISECT_TOKEN_ROWS_H

#include "exact/exact_side.h"

/* Behind runs of both sides that kept what ops give. The map stays as it was where rows say less than it does.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_token_rows_match(const lb_exact_side *const sides[2], lb_token_map *map, lb_err *err);
/* The numbers of a kept value that an op gives, without those of tokens that the other side does not have: malloc'ed,
 * row-major, `*n` of them; all where the shape does not tell tokens. NULL: out of memory. */
double *lb_token_rows_paired(const lb_exact_side *side, uint32_t value, int64_t *n);

#endif
