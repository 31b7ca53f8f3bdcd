/* A sum that both sides write out by hand, each in an order of its own: neither has an op whose order could be swapped. One
 * `aten::sum` over the last dimension of what both read stands for it, and its orders are tried against each side's bits. */
#ifndef LB_BISECT_REFERENCE_SUM_H
#define LB_BISECT_REFERENCE_SUM_H

#include "match_site.h"

typedef struct lb_reference_sum {
    bool found;         /* a named order gives all bits, on each side */
    char order[2][128]; /* the first that does */
    uint32_t excluded[2];
    uint32_t tried;
} lb_reference_sum;

/* Needs a matched region whose sides each read one float tensor of which every row of the last dimension becomes one element of the
 * output; otherwise nothing is found. LB_ERR_NOMEM is the only failure. */
lb_status lb_reference_sum_find(const lb_match_site *site, lb_reference_sum *sum, lb_err *err);

#endif
