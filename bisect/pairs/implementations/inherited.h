/* Regions that differ only because what they begin with does.
 *
 * From what both sides have, both run the same ops with the same arguments on the same inputs in the same places: exact
 * arithmetic cannot part there. The difference came in on the way: from a value that is taken to be the other side's
 * and is not quite (its elements stand in another order, its own region is another one). Such a region is no place of
 * its own where there is another. */
#ifndef LB_BISECT_INHERITED_H
#define LB_BISECT_INHERITED_H

#include "implementations/region_op.h"

/* Of a region whose counterpart is one value of A. */
bool lb_inherited_is_region(const lb_region_frontier *frontier, const lb_region *region);

#endif
