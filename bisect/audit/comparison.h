/* A checkpoint against another, element by element, whatever names, fusions and shards lie between. */
#ifndef LB_BISECT_AUDIT_COMPARISON_H
#define LB_BISECT_AUDIT_COMPARISON_H

#include "whole_tensor.h"

lb_status lb_audit_against(lb_audit_gathering *g, const lb_inventory *a, const lb_inventory *b, lb_err *err);

#endif
