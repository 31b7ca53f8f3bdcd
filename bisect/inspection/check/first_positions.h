/* Which row of a table of positions the first token of each sequence reads that its mask does not hide. */
#ifndef LB_BISECT_FIRST_POSITIONS_H
#define LB_BISECT_FIRST_POSITIONS_H

#include "check/check_step.h"
#include "tokens/token_marks.h"

/* Sequences of one batch that are padded on the left by different numbers of tokens begin at the same position, if
 * positions are looked up in a parameter. Those that are turned by an angle, or only compared, may be shifted together
 * with all that they see, and say nothing here. `marks`: per loss. False when out of memory. */
bool lb_first_positions_judge(lb_check_step *step, const lb_scored_step *scored, const lb_token_marks *marks);

#endif
