/* All ranks of a side as one program that runs: what they hand each other becomes ordinary ops over the values of all
 * members.
 *
 *      rank 0   … mm ─▶ y0 ─▶ allreduce_ ─▶ y                      … mm ─▶ y0 ─┐
 *                                             becomes                        add ─▶ y
 *      rank 1   … mm ─▶ y1 ─▶ allreduce_ ─▶ y                      … mm ─▶ y1 ─┘
 *
 * An all-reduce is a chain of additions (maxima, …), an all-gather a concatenation, a reduce-scatter sums of parts, and
 * all that moves elements only is copies; barriers vanish, and what was sent is what the other rank received, also
 * where that was recorded before its step began. A collective of which a member is not there, or that moves what no
 * recorded op wrote, gives what was recorded. Ops keep their order on each rank; those of all ranks go on side by side.
 * Plain copies (`copy_`, FSDP's copies out of a gathered buffer) become clones, so that what reads them is seen to read
 * what was copied.
 *
 * Then what ranks have alike is there once (joined_copies.h). */
#ifndef LB_BISECT_JOINED_RANKS_H
#define LB_BISECT_JOINED_RANKS_H

#include "pair/program_view.h"

/* The name of what ran: of an op that does a part of a collective that of the collective. */
const char *lb_joined_ranks_op_name(const lb_program *program, const lb_op *op);
/* Of a step of each rank of a capture, in the order of ranks. The view is one of the joined program; of one rank
 * without collectives it is the plain one. LB_ERR_NOMEM is the only failure. */
lb_status lb_joined_ranks_view(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *view, lb_err *err);

#endif
