/* Where a gradient stops on one side alone: `.detach()`, `torch.no_grad()`.
 *
 *      A   at ─▶ 1 - at ─▶ …          B   at ─▶ detach ─▶ 1 - at ─▶ …        forward is the same, and what is left of
 *      ◀───────┘  gradient                                                   backward is not the other side's
 *
 * No number of forward tells it, and backward lacks whole paths. But each op of forward that autograd follows makes a
 * node, and a node that runs leaves ops of backward: a value that both sides have, and that a gradient passes on one
 * side alone, is the place. */
#ifndef LB_BISECT_REGION_DETACHED_H
#define LB_BISECT_REGION_DETACHED_H

#include "implementations/regions.h"

/* The ops of A and B that give such a value, or the `detach` of it; `*side`: on which the gradient stops. False: there
 * is none, or forward differs. */
bool lb_region_detached_find(const lb_region_question *asked, uint32_t op[2], int *side);

#endif
