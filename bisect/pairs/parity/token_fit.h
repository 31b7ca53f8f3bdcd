/* One side's rows of logits against one number per token, of the same or the other side: which law of the row gives the
 * number?
 *
 *     the row's log-probability of the token (what it should be) · of its most probable word · of a neighbouring token,
 *     or by a
 *     neighbouring row · after a temperature · after a top-k, top-p or min-p filter
 *
 * A law is taken where it leaves a twentieth of the squared difference that the first one leaves, and no law of another
 * kind leaves less than four times as much.
 */
#ifndef LB_BISECT_TOKEN_FIT_H
#define LB_BISECT_TOKEN_FIT_H

#include "parity/token_words.h"

typedef enum lb_token_law {
    LB_TOKEN_LAW_NONE, /* none of them, or there is nothing to explain */
    LB_TOKEN_LAW_ARGMAX,
    LB_TOKEN_LAW_LABELS,
    LB_TOKEN_LAW_TEMPERATURE,
    LB_TOKEN_LAW_TOP_K,
    LB_TOKEN_LAW_TOP_P,
    LB_TOKEN_LAW_MIN_P
} lb_token_law;

typedef struct lb_token_fit {
    bool judged;      /* there were rows and numbers enough */
    lb_token_law law; /* which holds */
    double parameter; /* T, k, P or r */
    int row, token;   /* of LABELS: the row that stands so many further on says it of the token so many further on */
} lb_token_fit;

/* `rows`, `numbers`: which side's; false the first. */
lb_token_fit lb_token_fit_rows(lb_token_sample *sample, bool rows, bool numbers);

#endif
