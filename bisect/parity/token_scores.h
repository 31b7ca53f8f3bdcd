/* Numbers of aligned tokens, one row each, and what is systematically wrong with one side's: another logarithm or sign, scores that stand
 * one token off, a temperature, a distribution that was cut.
 */
#ifndef LB_BISECT_TOKEN_SCORES_H
#define LB_BISECT_TOKEN_SCORES_H

#include "token_match.h"

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
    double heat;           /* B's logits times this are A's, where one side divided its by a temperature: 1 otherwise */
    lb_token_form form[2]; /* how either side wrote its numbers */
} lb_token_scores;

/* Both sides' numbers of every span that has them, after undoing what `findings` says (appended to). */
lb_status lb_token_scores_make(const lb_token_set *a, const lb_token_set *b, const lb_token_match *match,
                               lb_token_scores *scores, lb_parity_finding **findings, uint32_t *n, lb_err *err);
void lb_token_scores_release(lb_token_scores *scores);

/* d = log p - log q, held to [-20, 20], and k3 = expm1(d) - d, held to 10; *held: either was. */
double lb_token_k3(double p, double q, bool *held);

#endif
