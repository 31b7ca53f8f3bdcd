/* Writes the dtypes to which the sides round differently into a row's reason: "the second side rounds to e5m2 on the
 * way". In exact arithmetic a cast is the identity, so that the verdict is rounding however narrow the type is; this
 * text names the precision that caused it. */
#ifndef LB_BISECT_NARROWING_H
#define LB_BISECT_NARROWING_H

#include "diff/diff_walk.h"

/* Writes ": the second side rounds to e5m2 on the way" when ops without a partner, in that layer and phase, cast reals
 * to a narrower type; else "". */
void lb_narrowing_text(const lb_diff_walk *walk, const char *layer, uint8_t phase, char *text, size_t size);
/* Writes ": bf16 on the first side, e5m2 on the second" when what an aligned pair gives is of two float types; else
 * "". */
void lb_narrowing_pair(const lb_diff_walk *walk, uint32_t op_a, uint32_t op_b, char *text, size_t size);

#endif
