/* k3, and the numbers of aligned tokens that it is taken of: one row each, with what token_scale_shift.h found undone.
 */
#ifndef LB_TOKEN_K3_H
#define LB_TOKEN_K3_H

#include "parity/token_match.h"

typedef struct lb_token_score {
    uint32_t pair, span; /* rows of the match */
    double p, q;         /* log-probabilities: of A, of B */
} lb_token_score;

/* Numbers times `scale` are natural logarithms of probabilities, or the numbers are `odds`: probabilities. */
typedef struct lb_token_form {
    double scale;
    bool odds;
} lb_token_form;

typedef struct lb_token_scores {
    const lb_token_set *a, *b;
    const lb_token_match *match;
    lb_token_score *list;
    uint32_t n;
    int shift;             /* B's numbers stand at the token this much further on than A's */
    lb_token_form form[2]; /* how either side wrote its numbers */
    bool judged;           /* the difference is large and spread enough to look for how they were written */
} lb_token_scores;

/* Nothing is said of fewer tokens; nor where the difference rests on fewer, (sum |d|)^2 / sum d^2. */
enum { LB_TOKEN_FEWEST = 8, LB_TOKEN_CARRIERS = 6 };

/* Both sides' numbers of every span that has them, after undoing what `findings` says (appended to). */
lb_status lb_token_scores_make(const lb_token_set *a, const lb_token_set *b, const lb_token_match *match,
                               lb_token_scores *scores, lb_parity_finding **findings, uint32_t *n, lb_err *err);
void lb_token_scores_release(lb_token_scores *scores);
/* Reads them anew under scores->form and shift; a span without numbers is left out. False: out of memory. */
bool lb_token_scores_collect(lb_token_scores *scores);

/* A number of a side's file as a natural logarithm. */
double lb_token_written(const lb_token_scores *scores, bool second, double number);

/* d = log p - log q, held to [-20, 20], and k3 = expm1(d) - d, held to 10; *held: either was. */
double lb_token_k3(double p, double q, bool *held);

#endif
