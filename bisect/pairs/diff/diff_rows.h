/* Builds the rows of the report for the ops that the walk visits: layer, names and measured difference. Converts op
 * numbers of a side's merged program to those of the recorded programs. */
#ifndef LB_BISECT_DIFF_ROWS_H
#define LB_BISECT_DIFF_ROWS_H

#include "diff/diff_walk.h"

/* The row of an op of A and one of B, either of which may be LB_NONE; of two, A's gives layer and name. The second: the
 * row of A's op and its partner. */
lb_diff_row lb_diff_walk_row(const lb_diff_walk *walk, uint32_t a, uint32_t b);
lb_diff_row lb_diff_walk_own_row(const lb_diff_walk *walk, uint32_t a);
/* The op of B that is aligned with A's op, or the first of several; LB_NONE: none. */
uint32_t lb_diff_rows_partner(const lb_diff_walk *walk, uint32_t a);
/* A row names ops by their place in the whole program of a side. lb_diff_rows_turned gives it as it stands in the
 * report: by the place in one recorded program, first side first. `second`: the second side's program that `other`
 * belongs to. The next two hand it to the report. */
lb_diff_row lb_diff_rows_turned(const lb_diff_walk *walk, const lb_diff_row *row, const lb_program **second);
void lb_diff_rows_report(const lb_diff_walk *walk, const lb_diff_row *row);
void lb_diff_rows_report_layer(const lb_diff_walk *walk, const lb_diff_row *row);
/* By how much the pair (or join) of A's op differs, and whether that is noise. */
void lb_diff_rows_measure(lb_diff_walk *walk, uint32_t a, lb_diff_row *row, bool bad_bits);
/* Calls the row noise where other runs of the first side differ as much there, whatever made the difference; but not
 * where no run of this op can give its bits. */
void lb_diff_rows_call_noise(const lb_diff_walk *walk, lb_diff_row *row, bool bad_bits);

#endif
