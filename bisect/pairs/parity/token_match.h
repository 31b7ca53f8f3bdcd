/* Which sequence of B is which of A, and which token is which: the sides may pad differently, put other tokens at the
 * ends, cut the text into other pieces, drop some or say them twice. What differs is classified and counted over all
 * sequences.
 */
#ifndef LB_BISECT_TOKEN_MATCH_H
#define LB_BISECT_TOKEN_MATCH_H

#include "parity/token_set.h"

/* Tokens [a, a + a_count) of A stand against [b, b + b_count) of B: one against one, or pieces of the same text. */
typedef struct lb_token_span {
    uint32_t a, a_count, b, b_count;
} lb_token_span;

typedef struct lb_sequence_match {
    uint32_t a, b; /* rows of the sequences */
    lb_token_span *spans;
    uint32_t n;
} lb_sequence_match;

typedef struct lb_token_match {
    lb_sequence_match *pairs;
    uint32_t n;
    lb_parity_finding *findings; /* of what did not match */
    uint32_t n_findings;
} lb_token_match;

lb_status lb_token_match_make(const lb_token_set *a, const lb_token_set *b, lb_token_match *match, lb_err *err);
void lb_token_match_release(lb_token_match *match);

/* Appends a finding; false when out of memory. */
bool lb_token_match_note(lb_parity_finding **findings, uint32_t *n, lb_parity_finding_kind kind, bool corrected,
                         const char *format, ...) LB_PRINTF(5, 6);

#endif
