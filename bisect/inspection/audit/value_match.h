/* Whether one tensor is the other, the other converted, the other rounded, or something else. */
#ifndef LB_BISECT_AUDIT_VALUE_MATCH_H
#define LB_BISECT_AUDIT_VALUE_MATCH_H

#include <lastbit/audit.h>

typedef struct lb_value_match {
    lb_audit_match match;
    lb_dtype rounded;
    lb_difference difference;
    int64_t worst; /* row-major, of the largest difference; -1: not looked for, in what is identical or plainly cast */
} lb_value_match;

/* Shapes must agree. */
lb_status lb_value_match_of(const lb_tensor *a, const lb_tensor *b, lb_value_match *match, lb_err *err);

#endif
