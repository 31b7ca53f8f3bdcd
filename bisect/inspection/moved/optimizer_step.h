/* What an exact run of a step did to its parameters: some numbers of each, with what its optimizer read. */
#ifndef LB_BISECT_OPTIMIZER_STEP_H
#define LB_BISECT_OPTIMIZER_STEP_H

#include "optimizers/optimizer_rule.h"
#include "moved/trained.h"

enum { LB_OPTIMIZER_NUMBERS = 4096 };

/* Numbers of one parameter: all, or as many as LB_OPTIMIZER_NUMBERS, spread over it. */
typedef struct lb_optimizer_tensor {
    const char *name;
    const lb_group *group;
    uint32_t source, read, last;            /* value before, gradient that the optimizer read, value behind; LB_NONE */
    uint32_t op;                            /* that gave `last` */
    uint32_t states[LB_RULE_STATES], count; /* values with which the step began; LB_NONE */
    uint32_t others[2], n_others;           /* states of its size whose names say nothing */
    bool copied;                            /* a copy gave it its numbers: of a master, mostly */
    bool scaled;                            /* an op that updates it divides the gradient by a scale of its own */
    int64_t numel;
    uint32_t n;
    double *before, *gradient, *after, *state[LB_RULE_STATES]; /* n each; NULL: not seen */
    double steps;                                              /* counted, this one included; NaN: not known */
} lb_optimizer_tensor;

typedef struct lb_optimizer_step {
    const lb_moved_run *run;
    lb_optimizer_tensor *tensors;
    uint32_t n;
    bool failed; /* out of memory */
} lb_optimizer_step;

/* Parameters that an optimizer updated, with its rule's states; false when out of memory. */
bool lb_optimizer_step_open(const lb_moved_run *run, const lb_trained *trained, lb_optimizer_step *step);
/* An op of the exact run has given its results. */
void lb_optimizer_step_note(lb_optimizer_step *step, const lb_event *event);
/* Is an op of that name a copy, from a master or another tensor that has the digits? */
bool lb_optimizer_step_copies(const char *op_name);
void lb_optimizer_step_release(lb_optimizer_step *step);

#endif
