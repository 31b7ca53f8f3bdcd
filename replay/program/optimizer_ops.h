/* Which ops of the optimizer phase are an optimizer's. The recorder puts there all that touches parameters and what is
 * like them outside the modules (capture/recorder/phase.c), and so what a program writes over them beside any
 * optimizer: a weight that is loaded or multiplied, a buffer that is filled, an average of the weights. An optimizer's
 * are
 *
 *     in a recorded step     the ops that ran while it stepped
 *     beside it              those that a gradient enters, by another tensor than the ones they write: clipping, an
 *                            update by hand
 *     of an update by hand   the others that write what such ops write, where no recorded step does: its decay, its
 *                            momentum
 */
#ifndef LB_REPLAY_OPTIMIZER_OPS_H
#define LB_REPLAY_OPTIMIZER_OPS_H

#include "program/slice.h"

/* Per op 1 or 0, malloc'ed; NULL when out of memory. */
uint8_t *lb_optimizer_ops(const lb_slice_flow *flow);

#endif
