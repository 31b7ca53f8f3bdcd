/* Exchanges: what a collective moves and reduces between the machines of its members.
 *
 * All members stand at their collective op. Each contributes its inputs end to end as one dense stream; what a member
 * receives is spelled out as moves, from one member's stream or from the reduction of all of them, and is then spread
 * over its output windows. c10d::*, _c10d_functional::* and their in-place, coalesced and base forms are one table,
 * which has the custom ops of serving stacks, too.
 *
 *      all_reduce       out_r = reduce(all)                    broadcast   out_r = in_root
 *      all_gather       out_r = in_0 in_1 …                    gather      the same, at the root alone
 *      reduce_scatter   out_r = reduce(chunk r of all)         scatter     out_r = chunk r of in_root
 *      all_to_all       out_r = (chunk r of in_0) (chunk r of in_1) …
 */
#ifndef LB_REPLAY_COLLECTIVE_RUN_H
#define LB_REPLAY_COLLECTIVE_RUN_H

#include "orders/collective_sum.h"
#include "ranks/collective_names.h"
#include "machine/machine.h"

/* `members` in group order; every one stands at the op of the same collective. Outputs are written and every machine
 * goes on (lb_machine_finish), or, where an op or a dtype is not known, takes its recorded outputs. */
lb_status lb_collective_run_run(lb_machine *const *members, uint32_t n, lb_err *err);

#endif
