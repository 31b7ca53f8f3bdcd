/* Modules of one side and those of the other that stand beside them, without names in common: `transformer.h.0.attn` is
 * where `model.layers.0.self_attn` is.
 *
 * A module's ops give quantities that ops of the other side give, too: the innermost module there in which most of
 * these lie, within the module that stands beside its parent. A module that several layers share (one activation for
 * all) stands beside none. */
#ifndef LB_BISECT_MODULES_H
#define LB_BISECT_MODULES_H

#include "exact/exact_side.h"

/* Per scope of either side the other's beside it; 0: the outermost, or not known; LB_NONE: it is shared. `met`: per
 * value of a side the other's value that is the same quantity, LB_NONE (lb_regions_meet). malloc'ed; false: out of
 * memory, and both are NULL. */
bool lb_modules_beside(const lb_exact_side *const sides[2], uint32_t *const met[2], uint32_t *beside[2]);
/* Is the scope the module itself, or in it? */
uint32_t lb_modules_parent(const lb_program *program, uint32_t scope); /* of the outermost: 0 */
bool lb_modules_is_in(const lb_program *program, uint32_t scope, uint32_t module);

#endif
