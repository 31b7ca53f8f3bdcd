/* What several ranks have and do alike is one thing: a weight that begins with the same bits on all of them, what they
 * compute of it from the same values, and its update.
 *
 *      rank 0   W ─▶ mm(x0, W) ─▶ … ─▶ add(g0, g1) ─▶ step(W)          one W, one step; mm(x1, W) reads that W
 *      rank 1   W ─▶ mm(x1, W) ─▶ …                   step(W)
 *
 * Memory of two ranks is one where it has one history: the same sources, and the same ops on the same values write it
 * in the same order. Nothing is said of recorded bits that ops gave: each rank's own recording is compared with its own
 * inputs elsewhere, and a rank that goes another way (another eps, another update) has another history from there on.
 * What it began with is then there twice. */
#ifndef LB_BISECT_JOINED_COPIES_H
#define LB_BISECT_JOINED_COPIES_H

#include "pair/program_view.h"

/* Of a view of joined ranks; its program is changed. LB_ERR_NOMEM is the only failure. */
lb_status lb_joined_copies_merge(lb_program_view *view, lb_err *err);

#endif
