/* The same sum in another order? For pairs whose inputs have the same bits and whose results differ: the named order
 * under which each side's recorded bits come out. Cheap, for only such pairs are run, on one side's inputs for both. */
#ifndef LB_BISECT_REORDER_H
#define LB_BISECT_REORDER_H

#include "shadow/shadow_pair.h"

typedef struct lb_reordering {
    char order[2][48]; /* "torch:2", "blocked:128"; empty: no known order gives that side's bits */
} lb_reordering;

/* `differs` (per op of A): the pairs to look at; those that are no sums or products, or whose inputs differ, are passed
 * over; so are sides of several programs. What it takes is added to the cost of `shadows`. `*out`: a row per op of A,
 * malloc'ed, NULL when there was nothing to look at. */
lb_status lb_reorder_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                          const uint8_t *differs, lb_shadow_pair *shadows, lb_reordering **out, lb_err *err);

#endif
