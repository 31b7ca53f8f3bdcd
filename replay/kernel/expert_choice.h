/* Which experts a router takes: of equal scores the one of the lower number comes first. */
#ifndef LB_REPLAY_EXPERT_CHOICE_H
#define LB_REPLAY_EXPERT_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* ids[0 ... k - 1]: the k best of n scores, the best first; k <= n. */
static inline void lb_first_best(const double *score, int64_t n, int64_t k, int64_t *ids)
{
    for (int64_t j = 0; j < k; j++) {
        int64_t found = -1;
        for (int64_t e = 0; e < n; e++) {
            bool taken = false;
            for (int64_t i = 0; i < j; i++) taken |= ids[i] == e;
            if (!taken && (found < 0 || score[e] > score[found])) found = e;
        }
        ids[j] = found;
    }
}

#endif
