/* Which ranks compute one model together within a step: those that hand each other activations.
 *
 *      forward   all_reduce, all_gather, reduce_scatter of what the model computes     tensor and sequence parallelism
 *                all_to_all                                                            experts, heads that share out
 *                                                                                      a sequence
 *                a message from one rank to another                                    stages of a pipeline, ring
 *                                                                                      attention
 *
 * A message between a backward and the optimizer that has the shape of a parameter is its gradient, which workers hand
 * around a ring.
 *
 * Workers of data parallelism exchange gradients, and read other batches; these ranks need not. */
#ifndef LB_BISECT_MODEL_RANKS_H
#define LB_BISECT_MODEL_RANKS_H

#include "ranks/collective_names.h"

/* Does this collective carry activations in forward? Numbers of one element are losses and counts. */
bool lb_model_ranks_meet(const lb_program *program, const lb_collective *collective);
/* The rank that this message goes to or comes from; -1: it is not a message. */
int32_t lb_model_ranks_peer(const lb_program *program, const lb_collective *collective);
/* May this message carry activations? */
bool lb_model_ranks_hand_on(const lb_program *program, const lb_collective *collective);
/* Marks those of `ranks`, which are sorted, that such a message of the program goes to or comes from. */
void lb_model_ranks_mark_written(const lb_program *program, const int32_t *ranks, uint32_t n, bool *marked);

#endif
