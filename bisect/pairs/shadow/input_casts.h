/* Finds inputs that one side rounded before its step began and the other side rounded inside the step.
 *
 *      A   batch.to(bf16) ran before the first module was called: the recording begins with bf16 numbers
 *      B   the second micro-batch was cast while the step was open: it begins with f32 numbers and a cast
 *
 * In exact arithmetic a cast is the identity, so that B's shadow would go on from numbers that A never had. Where the
 * result of such a cast has the bits of what the other side begins with, or of a part of it, the shadow takes the
 * rounded numbers. */
#ifndef LB_BISECT_INPUT_CASTS_H
#define LB_BISECT_INPUT_CASTS_H

#include "pair/program_view.h"

/* `ops[i]`, per op of `side`: its shadow takes what was recorded. malloc'ed; NULL: out of memory. */
uint8_t *lb_input_casts_find(const lb_program_view *side, const lb_program_view *other);

#endif
