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

typedef struct lb_region_detached {
    bool found;     /* false: there is no such value, or forward differs */
    uint32_t op[2]; /* of A and B: what gives the value, or the `detach` of it */
    int side;       /* on which the gradient stops */
} lb_region_detached;

/* Of counterparts that were compared. */
lb_region_detached lb_region_detached_find(const lb_region_question *asked);
/* Does the parameter in that storage, of the side on which the gradient passes, lose its gradient, or part of it, where
 * it stops on the other? False, too, when out of memory. */
bool lb_region_detached_takes_from(const lb_region_question *asked, const lb_region_detached *detached,
                                   int64_t storage);

#endif
