/* A value that several regions go through and that is no counterpart would carry a difference on from one to the next:
 * the sum of a residual stream.
 *
 *      A   x ─▶ add ─▶ norm ─▶ q, k, v          B   x ─▶ norm ─▶ q, k, v        add was left out: q, k and v are apart for one reason
 *
 * B's is the last that two regions share. A's is the last of as many elements that an op of the same name gives, else
 * any such; where A computes nothing for both, the one result that both begin at.
 *
 *      A   x ─▶ shuffle ─▶ conv                 B   x ─▶ conv                       shuffle and x are the same numbers: they meet, and yet conv's are apart
 *
 * So are values that one region reads in another order on the other side. They are guesses: one stays where B, going on
 * from A's order, gives what A gives. */
#ifndef LB_BISECT_REGION_SHARED_H
#define LB_BISECT_REGION_SHARED_H

#include "implementations/regions.h"

typedef struct lb_region_shared {
    uint32_t a, b;
    bool is_guess; /* their ops have different names: to be kept only where it puts some counterpart right */
    bool is_sure;  /* ops of one name that read the same quantities */
} lb_region_shared;

/* The last values of A and B that two regions share and that are not counterparts, of as many elements, else what one
 * region reads in two orders; false: there are none. */
bool lb_region_shared_find(const lb_region_question *asked, const lb_regions *regions, lb_region_shared *found);

#endif
