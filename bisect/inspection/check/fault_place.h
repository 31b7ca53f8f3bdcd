/* Where a gradient goes wrong, and which count a factor is. */
#ifndef LB_BISECT_FAULT_PLACE_H
#define LB_BISECT_FAULT_PLACE_H

#include "check/check_step.h"

/* The backward of the active parameters is wrong: where, and in what way. */
lb_status lb_fault_place_find(lb_check_step *step, uint64_t roots, const lb_quotient *quotient, lb_err *err);
/* ", which is 1 / 4, the number of micro-batches" of `losses` of them; "" where no count explains it. */
void lb_fault_place_factor_text(uint32_t losses, double factor, char *text, size_t room);
/* Is it an integer above 1, or one divided by it, of either sign? */
bool lb_fault_place_is_count(double factor);

#endif
