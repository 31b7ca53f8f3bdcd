/* Merges both sides of a step into one graph, which divergence.h searches. A node is one quantity that both sides
 * compute, with its state: same, apart or unknown. A sink is something that leaves the step.
 *
 * Partners by name (align.h) are nodes, and so are ops that give the same in exact arithmetic (shadow_pair.h); these
 * take precedence over partners that disagree. Sources with a partner are nodes that are the same, as both shadows
 * start from one side's.
 *
 * Sinks, what a difference has to reach to count:
 *   - parameters, buffers and states as the step leaves them, and results of outermost calls,
 *   - inputs of decisions, of collectives whose members are not here, and of opaque ops: neither shadow computes these,
 *   so that equal shadows behind them say nothing about what went in,
 *   - results that no op reads: losses, numbers that Python holds,
 *   - values that are apart in exact arithmetic and have the same bits: there rounding hides a difference of what is
 *   computed. */
#ifndef LB_BISECT_MERGED_STEPS_H
#define LB_BISECT_MERGED_STEPS_H

#include "merged/divergence.h"
#include "shadow/step_outputs.h"
#include "program/slice.h"

typedef struct lb_merged_steps {
    lb_merged merged;
    lb_slice_flow *flows[2];
    uint32_t *node_of[2]; /* as in lb_merged_side */
    uint8_t *may_differ[2], *phase[2];
    uint32_t *first_pred[2], *preds[2]; /* the flow's, and of collectives what all members brought */
    lb_node *nodes;
    uint32_t *ops;
    lb_sink *sinks;
    /* What a sink is of: a row of shadows.finals, or of exits; LB_NONE: neither. */
    uint32_t *sink_final, *sink_exit;
} lb_merged_steps;

/* `differs`: per op of A. Valid as long as what it was made of. LB_ERR_NOMEM is the only failure. */
lb_status lb_merged_steps_make(const lb_aligned_views *views, const uint8_t *differs, const lb_shadow_pair *shadows,
                               const lb_step_outputs *exits, lb_merged_steps *out, lb_err *err);
void lb_merged_steps_release(lb_merged_steps *steps);

#endif
