/* Which ops that one side alone runs can be to blame where the ranks of the sides hold different parts: most such ops
 * have their like on the other side, over different elements.
 *
 *      first side     addmm  mul  softmax  bmm       mul is suspected, and so are two that are alike
 *      second side    addmm       softmax  bmm       and called with different arguments
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_LONE_SUSPECTS_H
#define LB_BISECT_LONE_SUSPECTS_H

#include "diff/diff_walk.h"

typedef struct lb_lone_suspects {
    lb_divergence alone; /* the ops without a like, as a divergence lists them; none: all ops have a like */
    /* the first two that are like each other and are called with different arguments; LB_NONE: there are none */
    uint32_t other[2];
} lb_lone_suspects;

/* Adds rows to the walk's divergences.lone. False: no tensor is known to be split differently, so that
 * this says nothing; or out of memory. */
bool lb_lone_suspects_find(lb_diff_walk *walk, const lb_divergence *divergence, lb_lone_suspects *suspects);

#endif
