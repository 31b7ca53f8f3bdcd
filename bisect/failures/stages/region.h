/* Narrowing a change that any op can take (a precision, an order of sums) from everywhere to the smallest region that
 * needs it: the first op that loses in its own rounding what the change keeps, and who reads that; where this does not
 * cure the steps, then the layers of the first such step, then their ops. */
#ifndef LB_BISECT_REGION_H
#define LB_BISECT_REGION_H

#include "stages/stages.h"

typedef struct lb_stage_region {
    lb_swap_kind kind;
    const char *argument; /* "f32" */
    const char *how;      /* after a count of layers, ops or steps: "in f32" */
    lb_bisect_axis axis;
    bool (*touches)(const lb_program *program, const lb_op *op); /* can the change mean anything to this op? */
    bool (*guilty)(const lb_program *program, const lb_op *op);  /* of the ops in the region: the one to name first */
} lb_stage_region;

/* Whether any op of the failing rank can take the change. */
bool lb_region_exists(const lb_bisect_session *session, const lb_stage_region *region);
/* Everywhere is known to cure; session->changed, when it is there, has the trace of that. Adds the culprits, one per
 * layer of the region, and sets the cure. `ops` (malloc'ed, may be NULL) gets the rows of the region's ops in *step,
 * none when it could not be narrowed to ops. */
lb_status lb_region_narrow(lb_bisect_session *session, const lb_stage_region *region, int64_t *step, uint32_t **ops,
                           uint32_t *n_ops, lb_err *err);

#endif
