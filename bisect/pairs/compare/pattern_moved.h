/* Patterns of elements that are there on both sides, elsewhere (permuted slices, a transpose), or on a coarser grid on
 * one of them. Each rule holds for every differing element, or is not said.
 */
#ifndef LB_BISECT_PATTERN_MOVED_H
#define LB_BISECT_PATTERN_MOVED_H

#include <lastbit/compare.h>

/* Both values, row-major, and which elements differ. */
typedef struct lb_pattern_sides {
    const double *a, *b;
    const uint8_t *differs;
    int64_t n, count, first, last; /* elements, differing, first and last differing index */
    int ndim;
    const int64_t *shape;
} lb_pattern_sides;

int64_t lb_pattern_sides_inner(const lb_pattern_sides *sides,
                               int dim); /* elements of one index of `dim` and those before it */

/* Fill `difference` where they hold. */
bool lb_pattern_transposed(const lb_pattern_sides *sides, lb_difference *difference);
/* `touched`: which slices of `dim` hold a difference, `count` of them. */
bool lb_pattern_permuted(const lb_pattern_sides *sides, int dim, const uint8_t *touched, int64_t count,
                         lb_difference *difference);
bool lb_pattern_quantised(const lb_pattern_sides *sides, lb_dtype dtype_a, lb_dtype dtype_b, lb_difference *difference);

#endif
