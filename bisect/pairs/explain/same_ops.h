/* Tells whether both sides run the same ops on different rows. A token that goes to another expert changes how many
 * rows each of two experts has, so that neither side's ops can be run on the other's bits. Then the ops themselves say
 * that both sides compute one function: they match one by one, with the same arguments and the same readers. */
#ifndef LB_BISECT_SAME_OPS_H
#define LB_BISECT_SAME_OPS_H

#include "explain/match_site.h"

/* Does each op of A match one of B with the same name, constants and dtypes, which reads the counterparts of what it
 * reads? Shapes may differ. `*same` is false where inputs have no counterpart. LB_ERR_NOMEM is the only failure. */
lb_status lb_same_ops(const lb_matched_region_source *source, const lb_matched_region *region, bool *same, lb_err *err);
/* Were different experts chosen before, by a router of the module in which the region gives its output, or by one
 * beside that module? */
bool lb_same_ops_chose(const lb_matched_region_source *source, const lb_matched_region *region);

#endif
