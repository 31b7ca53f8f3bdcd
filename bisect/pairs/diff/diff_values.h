/* Values of both sides against each other: do their bits differ, and by how much? Private to diff*.c. */
#ifndef LB_BISECT_DIFF_VALUES_H
#define LB_BISECT_DIFF_VALUES_H

#include "diff/diff_walk.h"

/* Compares digests, and where these differ the bytes that were kept: NaNs are equal to each other. Undefined bytes are
 * no finding. LB_NONE differs from a value. */
bool lb_diff_walk_value_differs(const lb_diff_walk *walk, uint32_t value_a, uint32_t value_b);
/* Results and written values of an aligned pair; of a join, whose parts are put together; of a source and its partner
 * (none: no difference). A join whose bytes were not kept, or that is a sum, differs. */
bool lb_diff_values_of_pair_differ(const lb_diff_walk *walk, uint32_t op_a, uint32_t op_b);
bool lb_diff_values_of_join_differ(const lb_diff_walk *walk, const lb_reassembly *join);
bool lb_diff_values_of_source_differ(const lb_diff_walk *walk, uint32_t op_a);
/* Are they the same numbers after rounding to the narrower dtype? Then the difference is one of precision. */
bool lb_diff_values_same_rounded(const lb_diff_walk *walk, uint32_t value_a, uint32_t value_b);

/* Fills row->difference with the worst of what differs. True when all of it was measured and lies inside the noise. */
bool lb_diff_values_measure_pair(lb_diff_walk *walk, uint32_t op_a, uint32_t op_b, lb_diff_row *row);
bool lb_diff_walk_measure_values(lb_diff_walk *walk, uint32_t value_a, uint32_t value_b, lb_diff_row *row);
bool lb_diff_values_measure_join(lb_diff_walk *walk, const lb_reassembly *join, lb_diff_row *row);
bool lb_diff_values_measure_final(lb_diff_walk *walk, const lb_shadow_final *final, lb_diff_row *row);

#endif
