/* What the workers of a capture did, step by step: their own gradients, and with whom they share them. */
#ifndef LB_BISECT_WORKER_STEPS_H
#define LB_BISECT_WORKER_STEPS_H

#include "failure/own_gradient.h"
#include "workers/worker_pairs.h"

#include <lastbit/ranks.h>

/* One rank in one step. */
typedef struct lb_worker {
    int32_t rank;
    const lb_program *program; /* NULL: it did not record the step */
    lb_own_gradients own;
} lb_worker;

typedef struct lb_worker_step {
    int64_t step;
    lb_worker *workers; /* per rank of the capture */
} lb_worker_step;

typedef struct lb_worker_steps {
    lb_capture *capture;
    const int32_t *ranks;
    uint32_t n_ranks;
    lb_worker_step *steps;
    uint32_t n_steps;
    char **reduced; /* keys of gradients that enter a collective in some step, sorted */
    uint32_t n_reduced;
    lb_worker_pairs pairs;
} lb_worker_steps;

lb_status lb_worker_steps_init(lb_capture *capture, int64_t first_step, int64_t last_step, lb_worker_steps *out,
                               lb_err *err);
void lb_worker_steps_release(lb_worker_steps *steps);
/* A key of lb_own_gradient. */
bool lb_worker_key_reduced(const lb_worker_steps *steps, const char *key);
/* Does it share gradients with any other rank? */
static inline bool lb_worker_steps_has(const lb_worker_steps *steps, uint32_t rank_row)
{
    return steps->pairs.has[rank_row];
}
/* Do they reduce gradients over one group? */
static inline bool lb_workers_pair(const lb_worker_steps *steps, uint32_t a, uint32_t b)
{
    return lb_worker_pairs_are(&steps->pairs, a, b);
}

#endif
