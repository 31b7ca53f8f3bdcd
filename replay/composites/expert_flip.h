/* Flips: experts that one side chose for a token and the other did not. Slots don't matter. Each is paired with one
 * that the other side chose in its place, the best remaining of A's with the worst of B's, so that the margin of
 * several flips is not made smaller than it is. */
#ifndef LB_REPLAY_EXPERT_FLIP_H
#define LB_REPLAY_EXPERT_FLIP_H

#include <lastbit/tensor.h>

#define LB_MOST_CHOICES 64 /* experts per token */

typedef struct lb_expert_flip {
    int64_t lost, won; /* won: -1 when there is none */
} lb_expert_flip;

/* `a`, `b`: n <= LB_MOST_CHOICES expert ids; `scores`: A's, by expert, or NULL. Returns the number of flips. */
int64_t lb_flips_of(const int64_t *a, const int64_t *b, int64_t n, const double *scores, lb_expert_flip *flips);
/* Below this two scores are a few roundings apart: 8 u max|score| over the experts. */
double lb_expert_flip_rounding(const double *scores, int64_t experts, lb_dtype dtype);

/* Ids as numbers, row-major. False for ids that are no i64 or i32. */
bool lb_expert_flip_load_ids(const lb_tensor *tensor, int64_t *ids);
double *lb_expert_flip_scores(const lb_tensor *tensor); /* malloc'ed; NULL when out of memory */

#endif
