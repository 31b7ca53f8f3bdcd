/* Compares and reports tensors that the ranks of the two sides split differently (cut_tensors.h). Where such a tensor
 * is not known on both sides, verdicts on what follows become `missing` in place of diverged, unless an op cannot give
 * its own recorded bits. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_CUTS_H
#define LB_BISECT_DIFF_CUTS_H

#include "diff/diff_verdict.h"
#include "diff/diff_walk.h"

/* Reports a row for each such tensor that differs: diverged where nothing before this step explains it, else inherited.
 * It is `missing` where such a tensor is not known on both sides (lb_cut_tensor.known), as what follows is then not run
 * exactly. Differences of known tensors are handed on. LB_ERR_NOMEM is the only failure. */
lb_status lb_diff_walk_cuts(lb_diff_walk *walk, lb_err *err);
/* Do the bits differ that both sides hold, at the end of the step, of the tensor that a final is of? True as well where
 * they were not kept. */
bool lb_cuts_leave_other_bits(const lb_diff_walk *walk, const lb_shadow_final *final);
/* Hands the verdict of a final to all sources that hold some of its tensor. */
void lb_cuts_taint(lb_diff_walk *walk, const lb_shadow_final *final, lb_verdict verdict, lb_verdict carried);
/* Where there are such tensors, the verdict on a pair becomes `missing` in place of diverged, unless the op itself
 * cannot give its bits. */
void lb_cuts_judge(const lb_diff_walk *walk, const lb_evidence *evidence, lb_diff_row *row);
/* The same for a source. `known`: it is a parameter at the beginning of the run, or a batch. */
void lb_cuts_judge_source(const lb_diff_walk *walk, bool known, lb_diff_row *row);

#endif
