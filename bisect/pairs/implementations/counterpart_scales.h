/* What differs by one factor, which one side takes before it and the other behind: products, and losses.
 *
 *      A   x ─▶ A ─▶ B ─▶ · 2             B   x ─▶ · 2 ─▶ A ─▶ B         the results of A are apart by 2 and are no counterparts; those behind
 *                                                                        both factors are one quantity
 *
 * That a product in one layer is so says that those like it in other layers are, where a difference hides it.
 *
 *      A   loss / 2 ─▶ backward ─▶ update           B   loss ─▶ backward ─▶ gradient / 2 ─▶ update
 *
 * All of backward is apart by the factor of the loss then, and nothing behind it. Where something else differs, too,
 * backward is compared in units of the loss: a place that is left is one of the loop. Where nothing does but that the
 * factor is never taken back, B leaves what A leaves when it goes back from a loss with A's factor. */
#ifndef LB_BISECT_COUNTERPART_SCALES_H
#define LB_BISECT_COUNTERPART_SCALES_H

#include "counterparts/counterparts.h"

/* Behind free runs; `met_of_b`: lb_regions_meet of B. */
void lb_counterpart_scales_drop(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b,
                                const uint32_t *met_of_b);

struct lb_implementations;
/* Behind a comparison: where all that is updated is the same, losses that are the same together, but for a scale, are
 * no difference: one side scales the loss and its gradients back, or divides by the number of micro-batches before
 * backward and the other behind it, or goes back from the sum of what the other goes back from one by one. */
void lb_counterpart_scales_settle_losses(struct lb_implementations *x);
/* Behind free runs of which not all that is updated agrees: up to three runs. Fills x->loss, and takes losses that
 * another part of the step may make up for out of the counterparts. */
lb_status lb_counterpart_scales_find_losses(struct lb_implementations *x, lb_err *err);
/* By what numbers that A's last run kept of a value are to be multiplied so that they are its own. */
double lb_counterpart_scales_own(const struct lb_implementations *x, uint32_t value);
/* The value from which a side goes back by this op; LB_NONE: it begins no backward, or not at one number. */
uint32_t lb_counterpart_scales_seeded(const lb_exact_side *side, uint32_t op);

#endif
