/* What a step ends in: the numbers that a whole run is judged by. */
#ifndef LB_REPLAY_STEP_END_H
#define LB_REPLAY_STEP_END_H

#include <lastbit/program.h>

/* A value as it is when op `before` begins; value LB_NONE: there is none. */
typedef struct lb_step_end {
    uint32_t value, before;
} lb_step_end;

/* The loss: what backward starts from. */
lb_step_end lb_step_end_loss(const lb_program *program);
/* The outermost output: of the last module of the forward pass that gave floats, more than one, the largest tensor.
 * `*scope`: that module's row. */
lb_step_end lb_step_end_output(const lb_program *program, uint32_t *scope);

#endif
