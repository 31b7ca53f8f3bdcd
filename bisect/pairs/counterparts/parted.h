/* Quantities that ranks have in parts and the other side has whole or in different parts: by their numbers, behind runs
 * that kept them.
 *
 *      rank 0   scores of heads 0, 1  ─┐
 *                                      ├─ together the numbers of one value of the other side, in whichever dimension they are put together
 *      rank 1   scores of heads 2, 3  ─┘
 *
 * What ops at one place (module, call, name, the how manieth) give on all ranks is put together and is a quantity
 * (quantity.h). In backward each of n ranks that have parts of a batch goes back from the mean of its own part, so that
 * its numbers are n times those of one process: there a factor of n is looked through. That is enough to end a search
 * at, and no proof: what follows is compared by itself. */
#ifndef LB_BISECT_PARTED_H
#define LB_BISECT_PARTED_H

#include "exact/exact_side.h"

/* Adds to `met` (lb_regions_meet of both sides) values that are met in parts: each part has one value of the other
 * side, that one the first part. False when out of memory. */
bool lb_parted_meet(const lb_exact_side *const sides[2], uint32_t *const met[2]);

#endif
