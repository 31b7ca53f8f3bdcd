/* A failure that the user states, as in "loss>9" or "max>1e4@layer=mlp": a condition on a result, and which results it
 * is asked of. */
#ifndef LB_BISECT_FAILURE_PREDICATE_H
#define LB_BISECT_FAILURE_PREDICATE_H

#include "program/selector.h"

typedef enum lb_failure_predicate_kind {
    LB_PREDICATE_NONE,
    LB_PREDICATE_NONFINITE,
    LB_PREDICATE_MAX,
    LB_PREDICATE_LOSS,
    LB_PREDICATE_NORM /* of all gradients of a step together: no result holds it by itself */
} lb_failure_predicate_kind;

typedef struct lb_failure_predicate {
    lb_failure_predicate_kind kind;
    double limit;
} lb_failure_predicate;

/* `*selector` is the caller's: what stands behind "@", or one that selects everything. */
lb_status lb_failure_predicate_parse(const char *text, lb_failure_predicate *predicate, lb_selector **selector,
                                     lb_err *err);
/* `most`: the largest magnitude of a result, INFINITY where an element is not finite. `loss`: it is the loss. */
bool lb_failure_predicate_holds(const lb_failure_predicate *predicate, double most, bool loss);

#endif
