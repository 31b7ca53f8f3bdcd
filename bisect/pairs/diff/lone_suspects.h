/* Of ops that one side alone runs, those that can be to blame where the sides' ranks hold other parts: most of them
 * have their like on the other side, over other elements.
 *
 *      first side     addmm  mul  softmax  bmm            mul is suspected; of two that are like each other, one with
 *                     other arguments
 *      second side    addmm       softmax  bmm
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_LONE_SUSPECTS_H
#define LB_BISECT_LONE_SUSPECTS_H

#include "diff/diff_walk.h"

typedef struct lb_lone_suspects {
    lb_divergence alone; /* the ops without a like, as a divergence has them; none: all of them have one */
    uint32_t other[2];   /* the first two that are like each other and are called with other arguments; LB_NONE */
} lb_lone_suspects;

/* Adds rows to the walk's divergences.lone. False: nothing is known, or out of memory. */
bool lb_lone_suspects_find(lb_diff_walk *walk, const lb_divergence *divergence, lb_lone_suspects *suspects);

#endif
