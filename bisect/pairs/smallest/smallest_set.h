/* The smallest set of differences whose exchange takes what leaves the step from one implementation to the other.
 *
 *      exchanged    B computes a region as A does: B's op is written as A's (exchange.h), or B goes on from A's numbers
 *                   at the region's end, where all that it begins with is A's, too
 *
 *   1. All are exchanged, and B runs from its own numbers everywhere else: what leaves has to be what leaves A, and so
 *   has every value on the way that stands beside one of A's. Otherwise something differs that is in no region.
 *   2. All but one are exchanged: that is A with this region of B. Where what leaves A moves, the region is needed.
 *   3. All but several: A with these of B, one after the other. Where nothing moves they cancel (a factor of q and its
 *   inverse of k), and the set is smaller without them.
 *
 * Cost, in runs of one side: 2 to 5 for all; none for one, whose effect has been measured, but 2 where B's op was
 * written as A's to find what it hid; for several, of up to MOST_TRIED differences, at most 19 more. A run computes
 * what changes since the one before. */
#ifndef LB_BISECT_SMALLEST_SET_H
#define LB_BISECT_SMALLEST_SET_H

#include "implementations/implementations.h"

enum { LB_SMALLEST_SET_MOST_TRIED = 4 };

/* Why a region is not in the set. */
typedef enum lb_spared {
    LB_SPARED_NOT,
    LB_SPARED_CANCELS, /* what it does is taken back by others that are not in the set */
    LB_SPARED_NOTHING  /* with all others exchanged B gives there what A gives */
} lb_spared;

typedef struct lb_smallest_set {
    bool whole;      /* all of them together leave no gap */
    bool each;       /* of those that are in the set: without any one of them there is a gap */
    bool smallest;   /* each smaller set was tried, and leaves a gap */
    uint8_t *spared; /* per region: lb_spared */
    char why[400];   /* of what is not proven; "" */
} lb_smallest_set;

/* Behind lb_implementations_judge, of sides that are not the same. `first`: of the window's steps. Where regions that
 * were found behind others turn out to be none, those of the first search take their place in `x`. */
lb_status lb_smallest_set_find(lb_implementations *x, bool first, lb_smallest_set *out, lb_err *err);
void lb_smallest_set_release(lb_smallest_set *set);

#endif
