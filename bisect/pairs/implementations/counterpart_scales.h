/* Products whose results differ by one factor, which one side takes before them and the other behind.
 *
 *      A   x ─▶ A ─▶ B ─▶ · 2             B   x ─▶ · 2 ─▶ A ─▶ B         the results of A are apart by 2 and are no counterparts; those behind
 *                                                                        both factors are one quantity
 *
 * That a product in one layer is so says that those like it in other layers are, where a difference hides it. */
#ifndef LB_BISECT_COUNTERPART_SCALES_H
#define LB_BISECT_COUNTERPART_SCALES_H

#include "implementations/counterparts.h"

/* Behind free runs; `met_of_b`: lb_regions_meet of B. */
void lb_counterpart_scales_drop(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b,
                                const uint32_t *met_of_b);

#endif
