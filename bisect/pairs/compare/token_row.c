/* See token_row.h. */
#include "compare/token_row.h"

#include <math.h>

void lb_token_log_softmax(double *row, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < n; v++) most = row[v] > most ? row[v] : most;
    for (int64_t v = 0; v < n; v++) sum += exp(row[v] - most);
    for (int64_t v = 0; v < n; v++) row[v] -= most + log(sum);
}

int64_t lb_token_most_probable(const double *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t v = 1; v < n; v++)
        if (row[v] > row[best]) best = v;
    return best;
}

double lb_token_divergence(const double *p, const double *q, int64_t n)
{
    double kl = 0;
    for (int64_t v = 0; v < n; v++)
        if (p[v] != q[v] && p[v] > -INFINITY) kl += exp(p[v]) * (p[v] - q[v]);
    return kl;
}
