/* MoE decisions found in a finished program: a top-k over experts inside a module, with the logits it came from, the
 * weights that became of its values, and the sort that gave tokens their slots. Structure alone decides, no library is
 * known. */
#ifndef LB_ROUTING_H
#define LB_ROUTING_H

#include <lastbit/program.h>

/* Adds a routing for every (scope, call) that has none yet. LB_ERR_NOMEM is the only failure. */
lb_status lb_routing_find(lb_program *program, lb_err *err);

#endif
