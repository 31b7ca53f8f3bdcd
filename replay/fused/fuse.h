/* Fusing: one op in the place of a composite (lastbit/composite.h), as a pass.
 *
 *      to ─ pow ─ mean ─ add ─ rsqrt ─ mul ─ to ─ mul ─▶ y        becomes    fused::rms_norm(kernel, …, x, weight) ─▶ y
 *                                └─▶ backward                                to ─ pow ─ mean ─ add ─ rsqrt ─▶ backward
 *
 * The op stands where output 0 was made and gives the recorded values. Ops whose results something else still reads
 * stay; the others go. A composite whose inputs are overwritten before its end, or that decides something, is left as
 * it was recorded. */
#ifndef LB_REPLAY_FUSE_H
#define LB_REPLAY_FUSE_H

#include "program/passes.h"
#include "composites/recogniser.h"

#include <lastbit/replay.h>

/* Applies swap `which` of the plan, a LB_SWAP_FUSE, to one step, as lb_pass_apply does the others. Where several swaps
 * select the same composite the last one counts: an earlier one leaves it alone. */
lb_status lb_fuse_pass(const lb_program *in, const uint32_t *given, const lb_plan *plan, uint32_t which, lb_passed *out,
                       lb_err *err);

#endif
