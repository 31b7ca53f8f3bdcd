/* What one row of scores over a vocabulary says of the next token. Definitions: lastbit/parity.h. */
#ifndef LB_BISECT_TOKEN_ROW_H
#define LB_BISECT_TOKEN_ROW_H

#include <stdint.h>

/* log p of each of the `n` words of a row of logits, in place, in f64: x - max - log(sum of exp(x - max)). */
void lb_token_log_softmax(double *row, int64_t n);
/* The most probable word; the lower one of a tie. */
int64_t lb_token_most_probable(const double *row, int64_t n);
/* KL(p || q) = sum over v of p(v) (log p(v) - log q(v)), of rows of log-probabilities. */
double lb_token_divergence(const double *p, const double *q, int64_t n);

#endif
