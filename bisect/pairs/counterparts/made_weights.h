/* Weights that one side holds and the other makes of its sources in the step, in other roundings.
 *
 *      A   q_proj.weight (f16)            B   qkv.codes (8 bits) ─▶ to float ─▶ mul scales ─▶ product
 *          k_proj.weight                                            └── rows of A's weights, before A rounded them ──┘
 *          norm.weight ─▶ add 1           B   norm.scale, 1 + w rounded to bf16 when it was made
 *
 * What is made follows from sources alone, and from no input of the model. Its exact numbers are looked up in the
 * tensors that the other side alone holds, row by row, whatever their layout, but for a few roundings of that tensor's
 * dtype (contents.h). Where all of a value is found B goes on from A's numbers, and no value behind it has the
 * difference of these roundings. */
#ifndef LB_BISECT_MADE_WEIGHTS_H
#define LB_BISECT_MADE_WEIGHTS_H

#include "counterparts/tables.h"

/* Behind runs of both sides that kept what they made. Adds a counterpart of kind LB_COUNTERPART_TABLE for each value of
 * B that takes A's numbers: what B made, or a source. LB_ERR_NOMEM is the only failure. */
lb_status lb_made_weights_find(const lb_table_question *asked, lb_counterparts *counterparts, lb_err *err);

#endif
