/* Finds the ops that may have caused a divergence where the ranks of the two sides hold different parts. Most ops
 * without a partner have a counterpart there (same layer and name) over different elements. Suspects are the ops
 * without a counterpart, and those whose counterpart is called with different arguments.
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
