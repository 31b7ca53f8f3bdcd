/* Are two captures two implementations of one model, to be compared by values alone? Each question fails where the
 * system refused memory or a read (lb_is_refusal): another answer would be another verdict. */
#ifndef LB_BISECT_STRANGERS_H
#define LB_BISECT_STRANGERS_H

#include "pair/program_view.h"

/* All ranks of each run, with ops; of one rank each, forward passes in one order. */
lb_status lb_strangers_may_be_compared(lb_capture *a, lb_capture *b, bool *may, lb_err *err);
/* And one rank each, without collectives. */
lb_status lb_strangers_run_alone(lb_capture *a, lb_capture *b, bool *alone, lb_err *err);
/* And hardly a parameter of one has its name on the other: what lines up by names is chance. Functions of tensors have
 * parameters without names, or none that are known as such. */
lb_status lb_strangers_are(lb_capture *a, lb_capture *b, bool *are, lb_err *err);
/* But of the first side's modules a fourth or more have their names on the other: ops line up by these. */
lb_status lb_strangers_share_modules(lb_capture *a, lb_capture *b, bool *share, lb_err *err);
/* Has a parameter of one name its dimensions in another order on the other side? Then names do not say what is what. */
lb_status lb_strangers_hold_turned(lb_capture *a, lb_capture *b, bool *hold, lb_err *err);
/* Or one side's adapters are in the other side's weights (merged_adapters.h): a tensor that both call base_layer.weight
 * is no pair then. */
lb_status lb_strangers_hold_merged(lb_capture *a, lb_capture *b, bool *hold, lb_err *err);

enum { LB_STRANGERS_MOST_STEPS = 64 };

/* `*infer`: a model that learns nothing ran on one rank of each side, in as many steps in the window at most, of which
 * one side has two or more. `*cut`: and these are given the same input in different steps: a server's prefill and
 * decode steps beside one forward, a sequence a call beside a batch, a prefill in chunks. All steps of either side are
 * one program then (bisect/pairs/joined/joined_steps.h). */
lb_status lb_strangers_infer(lb_capture *a, lb_capture *b, int64_t first, int64_t last, bool *infer, bool *cut,
                             lb_err *err);
/* The steps of the window, ascending; malloc'ed, NULL: one cannot be read. */
lb_status lb_strangers_steps(lb_capture *capture, int64_t first, int64_t last, const lb_program ***list, uint32_t *n,
                             lb_err *err);

#endif
