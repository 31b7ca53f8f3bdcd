/* A tensor that an earlier step of the same recording computed from positions and constants alone, and that the program
 * kept: a rotary table that was filled when it was first asked for. It is none of that step's results, as keys and
 * values in a cache are, and holds none of its rounding but its own. */
#ifndef LB_BISECT_KEPT_TABLE_H
#define LB_BISECT_KEPT_TABLE_H

#include <lastbit/archive.h>
#include <lastbit/program.h>

/* Is the source `value` of step `step` one? False also where the step that computed it was not recorded, or nothing
 * says so. */
bool lb_kept_table(lb_capture *capture, int32_t rank, int64_t step, const lb_value *value);

#endif
