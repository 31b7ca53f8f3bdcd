/* The places of a diff that are a bisection's culprits: the smallest set that, exchanged for the reference's, leaves
 * nothing but rounding (bisect/pairs/smallest). */
#ifndef LB_BISECT_AGAINST_SET_H
#define LB_BISECT_AGAINST_SET_H

#include "trials/trial.h"
#include <lastbit/diff.h>

/* Fills the bisection's set. */
lb_status lb_against_set_read(lb_bisect_session *session, const lb_diff_report *report, lb_err *err);
/* The difference that a row of the walk over aligned ops is about; NULL: none. The two may name one place by ops next
 * to each other. */
const lb_diff_difference *lb_against_set_place(const lb_diff_report *report, const lb_diff_row *row);
/* The row that is named first: the walk's own, unless it is about a place that is spared. */
const lb_diff_row *lb_against_set_first(const lb_diff_report *report, const lb_diff_row *row);
/* Is it a culprit beside that one? */
bool lb_against_set_has(const lb_diff_report *report, const lb_diff_difference *difference, const lb_diff_row *first);

#endif
