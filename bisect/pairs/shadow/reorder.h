/* Is it the same sum in another order? Where the inputs of a pair have the same bits and the results differ, this finds
 * the named order that gives each side's recorded bits. It is cheap, as only such pairs are run, on one side's inputs
 * for both. */
#ifndef LB_BISECT_REORDER_H
#define LB_BISECT_REORDER_H

#include "shadow/shadow_pair.h"

typedef struct lb_reordering {
    char order[2][48]; /* "torch:2", "blocked:128"; empty: no known order gives that side's bits */
} lb_reordering;

/* `differs` (per op of A): the pairs to look at. Pairs that are neither sums nor products are passed over, and so are
 * pairs whose inputs differ and sides of several programs. The cost is added to that of `shadows`. `*out`: a row per op
 * of A, malloc'ed; NULL when there was nothing to look at. */
lb_status lb_reorder_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                          const uint8_t *differs, lb_shadow_pair *shadows, lb_reordering **out, lb_err *err);

#endif
