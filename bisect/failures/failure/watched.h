/* Which results of a program are watched, and as what: gradients where they leave autograd, the loss, what the
 * optimizer writes, what the outermost modules give. See failure.h for what is judged of them. */
#ifndef LB_BISECT_WATCHED_H
#define LB_BISECT_WATCHED_H

#include "program/selector.h"

/* One program of the window. */
typedef struct lb_watched {
    const lb_program *program;
    uint32_t rank_row;
    uint8_t *marks;   /* lb_watch_bits per op; the caller frees them */
    bool scaler;      /* a loss scaler judges its gradients */
    double scale;     /* by which it makes loss and gradients larger; 0: not known, or there is none */
    uint32_t updates; /* ops by which an optimizer writes parameters: none where every step is skipped */
    uint64_t blind;   /* watched results that were not there */
    uint64_t judged;  /* and those that were */
} lb_watched;

/* Sets marks and scaler of watched->program. `selector`: of a predicate, or NULL. */
lb_status lb_watch_program(lb_watched *watched, const lb_selector *selector, lb_err *err);

#endif
