/* How far the tail of a statistic reaches that nothing is assumed of, from what was seen of it.
 *
 * The tail above the 95th percentile u is taken for a generalised Pareto distribution (Pickands 1975; peaks over
 * threshold in streams: Siffer et al., KDD 2017), fitted by moments (Hosking and Wallis 1987), of shape 0 at least:
 *
 *      height(p) = u + sigma (1 + 1 / sqrt k) ((F / p)^xi - 1) / xi         F: the share above u, k: how many independent ones that is
 *
 * A mixture (noise, and rare bursts) has another tail further out: where that can be seen the greater height counts. */
#ifndef LB_FAR_TAIL_H
#define LB_FAR_TAIL_H

#include <stdint.h>

enum { LB_TAIL_BINS = 480 };

/* The positive part of a distribution, on a grid of 16 bins an octave from 2^-24 to 2^6; old samples fade. */
typedef struct lb_far_tail {
    double weight[LB_TAIL_BINS], total;
} lb_far_tail;

void lb_far_tail_add(lb_far_tail *tail, double s);
/* The height that is passed with probability exp(-logp); `width`: samples that one independent sample takes. Infinite
 * where too few were seen. */
double lb_far_tail_height(const lb_far_tail *tail, double width, double logp);

#endif
