/* What leaves a step: results of the outermost modules, losses, numbers that Python reads.
 *
 * Exits of both sides meet in order, those of one shape first, and last ones before those that one side gives out in
 * addition (the results of all layers). Their numbers correct that: where one is another exit of the other side it
 * changes its partner. */
#ifndef LB_BISECT_COUNTERPART_EXITS_H
#define LB_BISECT_COUNTERPART_EXITS_H

#include "counterparts/counterparts.h"

/* Adds them; those without a counterpart are `lone`. False when out of memory. */
bool lb_counterpart_exits_find(const lb_exact_side *a, const lb_exact_side *b, const lb_step_sources *sources_a,
                               const lb_contents *contents, lb_counterparts *out);
/* Behind a free run: of those that are apart, one that is another exit of the other side (the last of all layers'
 * results, which that side gives out, too) changes its partner; did any? */
bool lb_counterpart_exits_exchange(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b);

#endif
