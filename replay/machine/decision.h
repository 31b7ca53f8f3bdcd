/* Decisions: values that became Python scalars, indices or shapes, and so steered what the recorded program did next.
 *
 * In a chain a changed float decision is noted (`conditional`); a changed bool, index or shape ends the chain, since
 * the recorded ops are no longer those that the program would have run. With plan.force_decisions the recorded decision
 * is put in its place instead and the chain goes on, conditional. Isolated replay re-anchors, so nothing changes there.
 */
#ifndef LB_REPLAY_DECISION_H
#define LB_REPLAY_DECISION_H

#include "machine/event.h"

/* Before a decision op runs: are its inputs what they were? False: the chain has ended (run->stop). */
lb_status lb_decision_inputs(lb_machine *machine, const lb_op *op, bool *holds);
/* After an op ran: indices it gave (top-k, sort, argmax) become the recorded ones, and what was selected with them is
 * selected again. Only under force_decisions and for inputs that differ from the recording. */
lb_status lb_decision_force(lb_machine *machine, const lb_op *op, lb_execution *execution);
/* In the exact shadow, after a choice (sort, top-k, a maximum along a dimension) ran: its indices become the ones that
 * were decided, and what they choose is chosen again from the shadow's own numbers, which are continuous in the inputs.
 * `*taken` is false for a choice of another kind. */
lb_status lb_decision_take(lb_machine *machine, lb_execution *execution, bool *taken);
/* After an op ran that gave part of a routing decision: the recorded part takes its place where --routing says so, and
 * the numbers that ids choose are chosen again. Ends the chain when it was not kept. */
lb_status lb_decision_route(lb_machine *machine, lb_execution *execution);
/* After a decision op was compared and differs: ends the chain or marks it. */
void lb_decision_results(lb_machine *machine, const uint32_t *values, uint32_t n);
/* Ends the run as undecided at the current op. */
void lb_decision_undecided(lb_machine *machine, const char *what);

#endif
