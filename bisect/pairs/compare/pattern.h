/* What the differing elements of two values have in common: a stale tail, swapped slices, one flipped bit. */
#ifndef LB_BISECT_PATTERN_H
#define LB_BISECT_PATTERN_H

#include <lastbit/compare.h>

/* Fills `pattern` and `detail` from the values and the counts already in `difference`. Same shapes. */
void lb_pattern_find(const lb_tensor *a, const lb_tensor *b, lb_difference *difference);

#endif
