/* The edits of one op that are tried on a region (repairs.h). */
#ifndef LB_BISECT_REPAIR_EDITS_H
#define LB_BISECT_REPAIR_EDITS_H

#include "implementations/regions.h"

typedef struct lb_repair_edits {
    lb_repair *list;
    uint32_t n;
} lb_repair_edits;

/* All edits of the ops of a region on both sides; what one line of code runs several times alike (a loop) is edited as
 * one first. By rank: a number that the other side alone has, in the place of one
 * that this side alone has; an op left out, or another function; another number of the other side; of an update one
 * that the other side has in another update; a count; last the factor of a sum, which is seldom written. Of one rank
 * those of B come first. Release it in any case; false when out of memory. */
bool lb_repair_edits_list(const lb_exact_side *const sides[2], const lb_regions *regions, const lb_region *region,
                          lb_repair_edits *out);
void lb_repair_edits_release(lb_repair_edits *edits);
/* The ops of the region that are edited together with the edit's own; `out`: as many rows as the region has ops of that
 * side. Gives how many there are, its own among them. */
uint32_t lb_repair_edits_ops(const lb_exact_side *side, const lb_regions *regions, const lb_region *region,
                             const lb_repair *edit, uint32_t *out);

#endif
