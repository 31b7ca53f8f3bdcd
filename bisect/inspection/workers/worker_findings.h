/* The list of findings, and what stands behind numbers that drift apart: data, draws, options, libraries. */
#ifndef LB_BISECT_WORKER_FINDINGS_H
#define LB_BISECT_WORKER_FINDINGS_H

#include "workers/worker_steps.h"

typedef struct lb_worker_findings {
    lb_ranks_finding *list;
    uint32_t n;
} lb_worker_findings;

/* One of the same kind, ranks and tensor as an earlier one is another step of that. Takes `message` (NULL: out of
 * memory), copies the rest; `tensor` may be NULL. */
lb_status lb_worker_findings_add(lb_worker_findings *findings, const lb_ranks_finding *finding, char *message,
                                 lb_err *err);
void lb_worker_findings_release(lb_worker_findings *findings);
/* "rank 3", "ranks 0,2"; for `text`. */
const char *lb_worker_rank_words(const int32_t *ranks, uint32_t n, char text[96]);

/* The same tokens on two workers, a batch again, other numbers of micro-batches; the same draws for other data. */
lb_status lb_worker_findings_of_data(const lb_worker_steps *steps, lb_ranks_seeds *seeds, lb_worker_findings *findings,
                                     lb_err *err);
/* Gradients that were added to what had been reduced; norms over a part of them by which all were scaled, or which were
 * logged. */
lb_status lb_worker_findings_of_gradients(const lb_worker_steps *steps, lb_worker_findings *findings, lb_err *err);
/* Options of optimizers, and what receipts say of libraries, settings and code. */
lb_status lb_worker_findings_of_settings(const lb_worker_steps *steps, lb_worker_findings *findings, lb_err *err);

#endif
