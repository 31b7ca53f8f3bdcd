/* What an exact run of a step did to its parameters: some numbers of each, with what its optimizer read. */
#ifndef LB_BISECT_OPTIMIZER_STEP_H
#define LB_BISECT_OPTIMIZER_STEP_H

#include "optimizers/optimizer_rule.h"
#include "optimizers/tensor_rule.h"
#include "moved/trained.h"

enum { LB_OPTIMIZER_NUMBERS = 4096, LB_OPTIMIZER_WHOLE = 1 << 21, LB_OPTIMIZER_WHOLES = 1 << 22 };

/* Numbers of one parameter: all, or as many as LB_OPTIMIZER_NUMBERS, spread over it. Under a rule of whole tensors all
 * of those that have LB_OPTIMIZER_WHOLE at most, as long as together they are no more than LB_OPTIMIZER_WHOLES. */
typedef struct lb_optimizer_tensor {
    const char *name;
    const lb_group *group;
    uint32_t source, read, last; /* value before, gradient that the optimizer read, value behind; LB_NONE */
    uint32_t op;                 /* that gave `last` */
    uint32_t copy, back; /* of a master: its parameter before, and the last value of that behind the update; LB_NONE */
    bool cast;           /* what it is behind its update is cast to the parameter's dtype, whatever becomes of that */
    uint32_t states[LB_RULE_STATES], count; /* values with which the step began; LB_NONE */
    uint32_t others[3], n_others;           /* states of its size whose names say nothing */
    bool copied;                            /* a copy gave it its numbers, and where they were before is not known */
    bool mastered; /* it began, and went on, as a state of more digits, of which it is a copy */
    bool begun;    /* its states have been taken */
    bool narrow;   /* a state of it has 8 bits or less: codes, with scales elsewhere */
    bool whole;    /* all numbers, of states as many as they have */
    bool clipped;  /* by a norm over all gradients of its optimizer */
    bool scaled;   /* an op that updates it divides the gradient by a scale of its own */
    int64_t numel;
    uint32_t n;
    double *before, *gradient, *after, *behind, *state[LB_RULE_STATES]; /* n each; NULL: not seen */
    double squares; /* of `clipped`: what the squares of all numbers of the gradient add up to; NaN: not seen */
    double steps;   /* counted, this one included; NaN: not known */
} lb_optimizer_tensor;

typedef struct lb_optimizer_step {
    const lb_moved_run *run;
    lb_optimizer_tensor *tensors;
    uint32_t n;
    int64_t whole; /* numbers of whole tensors */
    bool failed;   /* out of memory */
} lb_optimizer_step;

/* Parameters that an optimizer updated, with its rule's states; false when out of memory. */
bool lb_optimizer_step_open(const lb_moved_run *run, const lb_trained *trained, lb_optimizer_step *step);
/* An op of the exact run has given its results. */
void lb_optimizer_step_note(lb_optimizer_step *step, const lb_event *event);
/* Were the numbers before and behind, and the gradient, seen, and finite, with nothing else in the op? */
bool lb_optimizer_step_saw(const lb_optimizer_tensor *tensor);
/* Did the step begin with a state of it? */
bool lb_optimizer_step_had_begun(const lb_optimizer_tensor *tensor);
/* The norm of all gradients that an optimizer read for the parameters of a group, or of all of its groups (`whole`),
 * and how many numbers they are. NaN: not all were seen. */
double lb_optimizer_step_norm(const lb_optimizer_step *step, const lb_group *group, bool whole, int64_t *numel);
void lb_optimizer_step_release(lb_optimizer_step *step);

#endif
