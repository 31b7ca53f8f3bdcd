/* Tensors that the ranks of the two sides cut otherwise (cut_tensors.h): what they hold is compared, and what follows from them is not judged.
 * Private to diff*.c. */
#ifndef LB_BISECT_DIFF_CUTS_H
#define LB_BISECT_DIFF_CUTS_H

#include "diff_judge.h"
#include "diff_walk.h"

/* A row for each such tensor: `missing`, or diverged where it holds other numbers that nothing before this step explains. */
void lb_walk_cuts(lb_walk *walk);
/* A verdict on a pair, where there are such tensors: `missing` in place of diverged, but for bits that the op itself cannot give. */
void lb_cuts_judge(const lb_walk *walk, const lb_evidence *evidence, lb_diff_row *row);
/* The same of a source; `known`: a parameter as the run began, or a batch. */
void lb_cuts_judge_source(const lb_walk *walk, bool known, lb_diff_row *row);

#endif
