/* Weights that one side holds, and the other never makes: it multiplies with their codes, and scales what comes out.
 *
 *      A   x · weightᵀ                         B   (x · codesᵀ) · scales
 *          weight (f16)                            row r of A's weight is codes[r] · scales[r], which A rounded when it
 *                                                  was made
 *
 * Rows (or columns) of the weight are found among the other side's codes, each times a number, but for the rounding of
 * the weight's dtype (contents.h). That number is looked up among the floats that the side of the codes holds or makes:
 * in a tensor that has one for each row, or for each of some rows behind each other, else wherever the nearest is.
 * Where all rows have their scale the weight's own side goes on from codes times scales, unrounded, and no value behind
 * it has the difference of these roundings. */
#ifndef LB_BISECT_CODED_WEIGHTS_H
#define LB_BISECT_CODED_WEIGHTS_H

#include "counterparts/tables.h"

/* Behind runs of both sides that kept what they made. `changed`, per side: what it goes on from has changed, and it is
 * to be run again. LB_ERR_NOMEM is the only failure. */
lb_status lb_coded_weights_find(const lb_table_question *asked, bool changed[2], lb_err *err);

#endif
