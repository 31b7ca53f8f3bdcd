/* What is said of a collective's result: the element, the bit, the hop; and of numbers that are not finite. */
#ifndef LB_BISECT_COLLECTIVE_RESULT_TEXT_H
#define LB_BISECT_COLLECTIVE_RESULT_TEXT_H

#include "exchanges/collective_exchange.h"
#include "exchanges/collective_results.h"

/* Sets element, bit and hop of the finding, whose ranks are those of the members that are marked, and its message
 * (NULL: out of memory). */
void lb_collective_result_text(const lb_collective_exchange *exchange, const bool *wrong, lb_collective_finding *found);
/* The members that are marked called something else than the others: sets the message (NULL: out of memory). */
void lb_collective_result_text_calls(const lb_collective_meeting *meeting, const bool *other,
                                     lb_collective_finding *found);
/* Of a member's call that sends `value`; malloc'ed, NULL when out of memory. */
char *lb_collective_result_text_nonfinite(const lb_collective_finding *found, const lb_collective_member *member,
                                          uint32_t value);

#endif
