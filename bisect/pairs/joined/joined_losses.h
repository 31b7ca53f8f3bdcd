/* The loss of the whole batch, of which each rank has that of its part: their mean, and their sum.
 *
 * No rank computes it: each goes back from its own, and gradients are averaged, or added up. One process has it, and
 * other ranks have different parts of it. Both are written behind the last op as ops of forward, which nothing reads; a
 * number that all ranks have alike is there once (joined_copies.h) and is none of these. */
#ifndef LB_BISECT_JOINED_LOSSES_H
#define LB_BISECT_JOINED_LOSSES_H

#include "pair/program_view.h"

/* Of a view of joined ranks. LB_ERR_NOMEM is the only failure. */
lb_status lb_joined_losses_add(lb_program_view *view, lb_err *err);

#endif
