/* Tensors that the ranks of the two sides cut otherwise (cut_tensors.h): what they hold is compared, and what follows
 * from them is not judged. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_CUTS_H
#define LB_BISECT_DIFF_CUTS_H

#include "diff/diff_verdict.h"
#include "diff/diff_walk.h"

/* A row for each such tensor that differs: diverged where nothing before this step explains it, else inherited;
 * `missing` where some such tensor is not known (lb_cut_tensor.known), so that what follows is not run exactly. Then
 * what is known flows on. LB_ERR_NOMEM is the only failure. */
lb_status lb_diff_walk_cuts(lb_diff_walk *walk, lb_err *err);
/* What both sides hold at the end of the step of the tensor that a final is of: do the bits differ? True as well where
 * they were not kept. */
bool lb_cuts_leave_other_bits(const lb_diff_walk *walk, const lb_shadow_final *final);
/* The verdict of a final, to all sources that hold some of its tensor. */
void lb_cuts_taint(lb_diff_walk *walk, const lb_shadow_final *final, lb_verdict verdict, lb_verdict carried);
/* A verdict on a pair, where there are such tensors: `missing` in place of diverged, but for bits that the op itself
 * cannot give. */
void lb_cuts_judge(const lb_diff_walk *walk, const lb_evidence *evidence, lb_diff_row *row);
/* The same of a source; `known`: a parameter as the run began, or a batch. */
void lb_cuts_judge_source(const lb_diff_walk *walk, bool known, lb_diff_row *row);

#endif
