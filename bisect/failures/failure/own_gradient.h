/* Each worker's own gradient and loss in a recorded step: what autograd left there before ranks met.
 *
 *      mm ─▶ AccumulateGrad ─▶ mul 1/N ─▶ bucket ─▶ all_reduce ─▶ copy into .grad ─▶ optimizer
 *              │                                      └ the collective that it enters: who shares this parameter
 *              └ here: no division has happened yet, no cast for the wire, no other rank's share
 *
 * AccumulateGrad (torch/csrc/autograd/functions/accumulate_grad.h) takes a fresh gradient by detach or clone, and adds
 * to one that is there: what it left last is the sum over micro-batches. Where ranks meet between two of them (DDP
 * without no_sync), or the program takes the gradient away (FSDP), it is the sum of what each brought.
 *
 * The loss is what backward starts from: over micro-batches the sum, whose gradient this is. A loss scaler's scale is
 * taken out of both.
 */
#ifndef LB_BISECT_OWN_GRADIENT_H
#define LB_BISECT_OWN_GRADIENT_H

#include "program/slice.h"

typedef struct lb_own_gradient {
    char *key; /* the parameter's name, or "LAYER [SHAPE] #N" where autograd saw a gathered one: unique in its step */
    uint32_t name;          /* string: the parameter; LB_NONE: not told */
    uint32_t scope;         /* of the module that owns it */
    uint32_t first, values; /* rows of lb_own_gradients.values: their sum is the gradient */
    uint32_t collective;    /* row of the program's collectives: the first that it enters; LB_NONE */
    bool whole;             /* an all-reduce: each member has all of it, and all of the parameter */
    uint32_t late; /* op: added to it behind the collective, and entering none before an optimizer reads it; LB_NONE */
} lb_own_gradient;

typedef struct lb_own_gradients {
    const lb_program *program;
    lb_own_gradient *list;
    uint32_t n;
    uint32_t *values, n_values;
    double loss;        /* NaN: none was seen */
    double scale;       /* of a loss scaler, 1 without: gradients are this many times as large */
    uint32_t backwards; /* how often backward began: micro-batches */
} lb_own_gradients;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_own_gradients_find(const lb_program *program, const lb_slice_flow *flow, lb_own_gradients *own,
                                lb_err *err);
void lb_own_gradients_release(lb_own_gradients *own);
/* The same members in the same order. */
bool lb_own_gradient_same_group(const lb_program *p, const lb_collective *a, const lb_program *q,
                                const lb_collective *b);

#endif
