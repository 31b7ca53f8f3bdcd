/* The steps of a window, for ranks of either side that are taken together: what one step leaves, the next begins with.
 */
#ifndef LB_BISECT_DIFF_STEPS_H
#define LB_BISECT_DIFF_STEPS_H

#include "diff/diff_half.h"

/* `exchanges`: collectives whose other members are judged elsewhere are listed there; NULL: those of single ranks
 * cannot be judged. */
lb_status lb_diff_steps_compare(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second,
                                lb_diff_exchanges *exchanges, lb_err *err);

#endif
