/* A recorded router by itself: from the hidden states that it reads to the scores by which experts are chosen, and the
 * choice. */
#ifndef LB_REPLAY_ROUTER_H
#define LB_REPLAY_ROUTER_H

#include "composites/recogniser.h"

/* The ops stand in composites, so that eager.h runs them. `scores`: of all experts; behind a softmax or a sigmoid,
 * which keep their order, what went in. Inputs of the scores (`path.list`) are the router's own when they hold what
 * nothing in the forward pass computed: parameters, buffers, and casts of them are part of the path. */
typedef struct lb_router {
    const lb_routing *row;
    /* to the scores; n_ops 0: they come as they are from elsewhere, or from ops that cannot be run alone */
    lb_composite path;
    lb_composite choice;   /* from what it reads (input 0) to the ids (output 0) */
    uint8_t *own;          /* per row of path.list */
    uint32_t scores, made; /* the value; the op that reads it */
    uint32_t topk;         /* the op that chooses; LB_NONE: not found, and nothing else is known */
} lb_router;

/* `flow`: of `program`. Nothing that fails but memory. */
lb_status lb_router_find(const lb_program *program, lb_slice_flow *flow, const lb_routing *row, lb_router *router,
                         lb_err *err);
void lb_router_release(lb_router *router);

#endif
