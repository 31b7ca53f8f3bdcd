/* Which ops give the same bits on several ranks. Under tensor parallelism ranks share out the weights of a model and
 * read the same batch: what lies between layers is the same on all of them, so that one rank stands for the others.
 * What differs from rank to rank (a part of a result, one term of a sum) is that rank's own, even where shapes agree.
 */
#ifndef LB_BISECT_RANK_COPIES_H
#define LB_BISECT_RANK_COPIES_H

#include "pair/program_view.h"

/* Fills `view->original` and `view->own`. `view->copy_of` has to be set. LB_ERR_NOMEM is the only failure. */
lb_status lb_rank_copies_find(lb_program_view *view, lb_err *err);

#endif
