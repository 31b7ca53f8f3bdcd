/* Ops that one line of code calls under one name, in all layers and on all ranks, as one cause of rounding. */
#ifndef LB_BISECT_ROUNDING_GROUPS_H
#define LB_BISECT_ROUNDING_GROUPS_H

#include "check/rounding_runs.h"

/* What is known of a group before it is tried. */
typedef enum lb_rounding_reach {
    LB_ROUNDING_FOLLOWED, /* backward has gradients of its results */
    LB_ROUNDING_CONSTANT, /* of forward, and none is seen: a table of phases */
    LB_ROUNDING_BACKWARD
} lb_rounding_reach;

typedef struct lb_rounding_group {
    uint32_t number;      /* as they were found */
    uint32_t rank, first; /* which of the ranks has the first op, and that op */
    uint32_t ops;         /* how many round anything */
    bool backward;
    bool followed;
    lb_dtype dtype; /* the narrowest one among the results */
    double squares, whole, largest;
    double product, spread; /* of followed ones: sums over what rounding_runs.h measured */
    double relative;        /* root of squares / whole */
    double summed;          /* of backward: what was rounded in gradients themselves, sum of squares */
    double passing, passed; /* in all else: the same, and of the exact numbers */
    double score;           /* by which groups of one reach are tried */
} lb_rounding_group;

typedef struct lb_rounding_groups {
    const lb_rounding_ranks *ranks;
    lb_rounding_group *list;
    uint32_t n;
    uint8_t **sums;      /* per rank and op: it adds a gradient to another one in place */
    uint32_t **group_of; /* per rank and op; LB_NONE: it rounds nothing */
} lb_rounding_groups;

lb_status lb_rounding_groups_make(const lb_rounding_ranks *ranks, lb_rounding_groups *groups, lb_err *err);
void lb_rounding_groups_release(lb_rounding_groups *groups);
lb_rounding_reach lb_rounding_group_reach(const lb_rounding_group *group);
/* Behind the first exact run: scores, and all groups sorted by them. */
lb_status lb_rounding_groups_score(lb_rounding_groups *groups, lb_err *err);
/* Is it a sum of gradients, which autograd makes itself? */
bool lb_rounding_groups_adds(const lb_rounding_groups *groups, uint32_t group);
/* Marks the ops of a group (1) in a table per rank that is zero, or, where `without`, all others. */
void lb_rounding_groups_mark(const lb_rounding_groups *groups, uint32_t group, bool without, uint8_t *const *added);

#endif
