/* Elements of ops over lists of tensors: `_foreach_add_([p1, p2], [g1, g2])` is two ops in one call, and each of its
 * inputs, results and written tensors belongs to one of them, or to all. Every other op has one element. */
#ifndef LB_REPLAY_FOREACH_ELEMENTS_H
#define LB_REPLAY_FOREACH_ELEMENTS_H

#include <lastbit/program.h>

#define LB_ELEMENT_ALL UINT32_MAX

/* At least 1. */
uint32_t lb_foreach_count(const lb_program *program, const lb_op *op);
/* The element of `n` whose result, written value or input a value (or another version of it) is; LB_ELEMENT_ALL when it
 * belongs to all, or to none. `guess` is tried first: lists are written in order. */
uint32_t lb_foreach_find(const lb_program *program, const lb_op *op, uint32_t n, uint32_t value, uint32_t guess);
/* What element `element` of `n` reads: its own of each list of n tensors, and all that stands in no such list. */
void lb_foreach_each_input(const lb_program *program, const lb_op *op, uint32_t n, uint32_t element,
                           void (*visit)(void *context, uint32_t value), void *context);

#endif
