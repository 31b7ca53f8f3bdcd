/* Rows of the report, from where the walk stands. */
#ifndef LB_BISECT_DIFF_ROWS_H
#define LB_BISECT_DIFF_ROWS_H

#include "diff/diff_walk.h"

/* `a`, `b`: an op of either side, or LB_NONE; of two, A's gives layer and name. And of A's op and what stands for it in
 * B. */
lb_diff_row lb_diff_walk_row(const lb_diff_walk *walk, uint32_t a, uint32_t b);
lb_diff_row lb_diff_walk_own_row(const lb_diff_walk *walk, uint32_t a);
/* The op of B that is aligned with A's op, or the first of several; LB_NONE: none. */
uint32_t lb_diff_rows_partner(const lb_diff_walk *walk, uint32_t a);
/* A row speaks of A's ops (or, where A has none, of B's) by their place in the whole: into the report, of the first
 * side's by their place in one program. */
/* As it stands in the report: of the first side. `second`: the program of the second side that `other` is of. */
lb_diff_row lb_diff_rows_turned(const lb_diff_walk *walk, const lb_diff_row *row, const lb_program **second);
void lb_diff_rows_report(const lb_diff_walk *walk, const lb_diff_row *row);
void lb_diff_rows_report_layer(const lb_diff_walk *walk, const lb_diff_row *row);
/* By how much the pair (or join) of A's op differs, and whether that is noise. */
void lb_diff_rows_measure(lb_diff_walk *walk, uint32_t a, lb_diff_row *row, bool bad_bits);
/* Whatever made it, a difference that other runs of the first side have, too, is no finding; but for bits that no run
 * of this op can give. */
void lb_diff_rows_call_noise(const lb_diff_walk *walk, lb_diff_row *row, bool bad_bits);

#endif
