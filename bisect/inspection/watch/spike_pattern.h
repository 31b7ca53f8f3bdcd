/* The three ways in which runs go wrong, told apart by when it happens and whether it ends. */
#ifndef LB_SPIKE_PATTERN_H
#define LB_SPIKE_PATTERN_H

#include <lastbit/watch.h>

enum {
    LB_EARLY_RECORDS = 200, /* "early" ends here, */
    LB_EARLY_STEPS = 1000,  /* and here in a log of every fiftieth step */
    LB_PEAK_RECORDS = 100,  /* an early spike has its peak before */
    LB_AT_ONCE = 10         /* records within which a NaN is immediate */
};

/* A rise of the first norms that no average could judge: three times within ten steps, to ten times what they settle
 * at. */
typedef struct lb_early_spike {
    uint32_t peak; /* row of the norms */
    double settled, ratio;
} lb_early_spike;
bool lb_early_spike_find(const double *norms, uint32_t n, lb_early_spike *spike);

typedef struct lb_run_shape {
    uint64_t records;
    int64_t first_nonfinite; /* record, -1: none */
    uint64_t nonfinite;      /* records */
    bool early_spike;        /* of the norm, settled */
    bool late_loss;          /* the loss rose behind the early records, and what followed was finite */
} lb_run_shape;
lb_watch_pattern lb_spike_pattern_of(const lb_run_shape *shape);

#endif
