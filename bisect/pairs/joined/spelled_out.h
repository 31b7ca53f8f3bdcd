/* Fused ops of a loss as the ops that they stand for.
 *
 *      nll_loss      ─▶      gather ─▶ neg ─▶ mul mask ─▶ sum ─▶ div
 *
 * What one side computes in one op is several lines of the other side. Written as elementary ops its inner values are
 * values like any others: two implementations meet inside, and a line that differs is told from those that do not.
 *
 * Only ops of forward whose results lead to no product with a parameter are spelled out: what the model itself is made
 * of is known by its weights. And only where the other side does not run as many of the same name: what both sides
 * call alike is compared as it was called. Each op written has the line and module of the fused one. */
#ifndef LB_BISECT_SPELLED_OUT_H
#define LB_BISECT_SPELLED_OUT_H

#include "pair/program_view.h"

/* `other`: the other side's program of the same step. `left_out`: per op, those that the view has not (they give
 * nothing that others read); NULL: it has all. A view of one program, with nothing to spell out and nothing left out,
 * is the plain one. LB_ERR_NOMEM is the only failure. */
lb_status lb_spelled_out_view(lb_capture *capture, const lb_program *program, const lb_program *other,
                              const uint8_t *left_out, lb_program_view *view, lb_err *err);

#endif
