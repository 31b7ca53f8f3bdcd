/* A checkpoint against another, tensor by tensor: first by names, as both sides spell them, then by contents
 * (arrangement.h). */
#ifndef LB_BISECT_AUDIT_COMPARISON_H
#define LB_BISECT_AUDIT_COMPARISON_H

#include "audit/value_match.h"
#include "audit/whole_tensor.h"

/* What a name has led to. */
typedef enum lb_comparison_state {
    LB_COMPARISON_OPEN,     /* nothing yet */
    LB_COMPARISON_STRAIGHT, /* the same tensor as it is */
    LB_COMPARISON_TURNED,   /* its transpose */
    LB_COMPARISON_ARRANGED, /* its numbers were found in another arrangement */
    LB_COMPARISON_STATE     /* no weight: of the optimizer, of random numbers */
} lb_comparison_state;

typedef struct lb_comparison_side {
    const lb_inventory *inventory;
    char **names;                /* by row of v->names: as the other side may call them */
    uint32_t *order;             /* rows by those names */
    lb_comparison_state *states; /* by row */
    uint32_t *partners;          /* by row: the other side's row of that name, LB_NONE */
} lb_comparison_side;

typedef struct lb_comparison {
    lb_audit_gathering *gathering;
    lb_comparison_side a, b;
} lb_comparison;

/* Two tensors that are one; `how`: what was done to make them one shape, or "". */
typedef struct lb_comparison_pair {
    const char *name, *other, *how;
    const lb_tensor *a, *b;
} lb_comparison_pair;

/* Adds a row of the report, and a finding where they differ. */
void lb_comparison_add(lb_audit_gathering *gathering, const lb_comparison_pair *pair, const lb_value_match *match,
                       const lb_audit_where *where);
lb_status lb_comparison_audit(lb_audit_gathering *gathering, const lb_inventory *a, const lb_inventory *b, lb_err *err);

#endif
