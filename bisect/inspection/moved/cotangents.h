/* Results of forward ops, and the gradient that backward had for each: the node of autograd that an op made runs in
 * backward and begins with the gradient of its result. What several readers give is added up by then. */
#ifndef LB_BISECT_COTANGENTS_H
#define LB_BISECT_COTANGENTS_H

#include "moved/trained.h"

/* Adds a site for each result of forward whose gradient is seen, in the order of the ops. */
lb_status lb_cotangents_add(lb_moved_run *run, const lb_trained *trained, lb_err *err);

/* Does an op of forward make a node of autograd, and which is it? It has the number that is given next: the first op
 * that saw the count go past a node made it. */
bool lb_cotangents_node(const lb_program *program, uint32_t op, int64_t *node);
/* An op of backward that a function of the program's own runs (torch.autograd.Function). Nodes of autograd's own have a
 * number at the end of their names. */
bool lb_cotangents_is_custom(const lb_program *program, uint32_t op);
/* An op of backward in a hook: it has a line of its own, where the backward of an op has the op's. */
bool lb_cotangents_is_foreign(const lb_moved_run *run, uint32_t op);

/* What autograd sees of an op of forward. */
typedef enum lb_check_seen {
    LB_SEEN_FOLLOWED, /* it made a node */
    LB_SEEN_WRAPPED,  /* it lies in a function of the program's own, which has a backward */
    LB_SEEN_CONSTANT  /* it was run without a gradient (no_grad) */
} lb_check_seen;
lb_check_seen lb_cotangents_seen(const lb_program *program, uint32_t op);
/* A detach by the program, and none by which autograd keeps a result for its own backward. */
bool lb_cotangents_detaches(const lb_program *program, uint32_t op);

/* The ops of backward by which a gradient was made from gradients of other sites, latest first; at most `max` are
 * stored. */
uint32_t lb_cotangents_between(const lb_moved_run *run, uint32_t gradient, uint32_t *ops, uint32_t max);

#endif
