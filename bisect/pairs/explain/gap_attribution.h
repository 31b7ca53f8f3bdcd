/* Makes the budget: how much of the difference between A's and B's last outputs (the gap) each cause and each layer
 * accounts for. A is replayed from its sources with one change at a time, then with all of them, and each replay
 * measures how far the last output moves towards B's. All ranks are replayed together, since collectives carry a change
 * on one of them to the others. */
#ifndef LB_BISECT_GAP_ATTRIBUTION_H
#define LB_BISECT_GAP_ATTRIBUTION_H

#include "explain/attribution.h"

/* The output of one rank's step that is looked at. */
typedef struct lb_gap_step_end {
    int64_t step, n;
    int32_t rank;
    uint32_t value, maker; /* in A; the op that gives it */
    const char *layer;     /* the module's; the program's text */
    double *a, *b;         /* recorded, n each */
    double *base, *moved;  /* replayed: without a change, with one */
    bool seen;
} lb_gap_step_end;

/* `*found` false: both sides have no such output in common, or its bytes lack. Release it all the same. */
lb_status lb_gap_step_end_open(const lb_matched_region_source *source, lb_gap_step_end *ending, bool *found,
                               lb_err *err);
void lb_gap_step_end_release(lb_gap_step_end *ending);

/* What is attributed to what: findings and endings of one step, of any ranks of A. */
typedef struct lb_gap_question {
    lb_capture *a;
    lb_gap_step_end *endings;
    uint32_t n_endings;
    const lb_explain_finding *findings;
    uint32_t n_findings;
    uint64_t memory_bytes;
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
} lb_gap_question;

/* Makes a budget per ending. Its gap is NaN where no replay gave the output: then there is nothing to tell. `*made`
 * false: nothing differs for a reason of its own, and there are no budgets. Layers of rows, and `left`, are malloc'ed
 * and the caller's; each budget has its own. */
lb_status lb_gap_attribution_make(const lb_gap_question *question, lb_explain_budget *budgets, bool *made, lb_err *err);
void lb_gap_attribution_release(lb_explain_budget *budget);

#endif
