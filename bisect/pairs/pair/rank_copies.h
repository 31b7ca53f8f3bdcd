/* Ranks that share out the weights of one model, but not its batch: what lies between its layers each of them has, and
 * one of them stands for all. What that one has by itself (a part of a result, a term of a sum) is not what they have
 * together, whatever its shape. */
#ifndef LB_BISECT_RANK_COPIES_H
#define LB_BISECT_RANK_COPIES_H

#include "pair/program_view.h"

/* Fills `original` and `own` of a view whose `copy_of` is set. LB_ERR_NOMEM is the only failure. */
lb_status lb_rank_copies_find(lb_program_view *view, lb_err *err);

#endif
