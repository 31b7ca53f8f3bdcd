/* Differences that have a name. Rounding: layers that the sides compute in different ops are `reordered` where the
 * search of explain.h proves, bit by bit, that they add the same terms in another order.
 *
 *      A   mean                           torch:1 gives A's bits
 *      B   add x 23, div                  sequential gives B's, for all elements: reordered
 *
 * All that differs has to be accounted for: by such an order, or as what follows from one. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_ORDERS_H
#define LB_BISECT_DIFF_ORDERS_H

#include "diff/diff_report.h"

/* `swapped`: the sides are asked about the other way round, so that the answer does not depend on which is named first.
 * What cannot be proven leaves the report as it is. LB_ERR_NOMEM and LB_ERR_IO are the only failures. */
lb_status lb_diff_name_orders(lb_diff_report *report, lb_capture *a, lb_capture *b, const lb_diff_options *options,
                              bool swapped, lb_err *err);

/* Rows that are a collective whose result no order of its members' inputs gives: whose it is, in which bit and on which
 * hop it changed. LB_ERR_NOMEM, LB_ERR_IO. */
lb_status lb_diff_name_exchanges(lb_diff_report *report, lb_capture *a, lb_capture *b, lb_err *err);

#endif
