/* Two implementations of one model as a report: verdict, every place that differs by itself, layers beside layers,
 * tensors beside tensors.
 *
 * Asked where names and ops do not line up: of two programs by different authors, or of two releases that spell a layer
 * differently. What the walk over aligned ops (diff_walk.h) calls missing there, or takes for a difference because
 * names put together what is not one thing, is decided by values alone (bisect/pairs/implementations). */
#ifndef LB_BISECT_DIFF_IMPLEMENTATIONS_H
#define LB_BISECT_DIFF_IMPLEMENTATIONS_H

#include "diff/diff_report.h"

typedef struct lb_diff_implementations_answer {
    bool judged;  /* every step that both sides have; else the report says in missing[] why not */
    bool proven;  /* and that both are one function, not only but for what rounding may do */
    bool padded;  /* rows of one side are longer, and which of its tokens are the other's is known (token_map.h) */
    bool cleared; /* the place that was asked about lies in no region that differs */
} lb_diff_implementations_answer;

/* All steps of the window. */
typedef struct lb_diff_implementations_question {
    lb_capture *captures[2];
    const lb_diff_options *options;
    const struct lb_content_map *map; /* what the user says of tensors; NULL */
    const lb_diff_row *place;         /* where the walk over aligned ops says that the sides part; NULL: nowhere */
    bool cut;                         /* lb_strangers_infer: all steps of a side are one program */
    bool as_one;                      /* they may be taken so where steps one by one are not judged */
} lb_diff_implementations_question;

lb_status lb_diff_implementations(const lb_diff_implementations_question *question, lb_diff_report *report,
                                  lb_diff_implementations_answer *answer, lb_err *err);

#endif
