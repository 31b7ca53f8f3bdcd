/* A subprogram run exactly: f64, casts the identity, from leaves that are f64 themselves. */
#ifndef LB_BISECT_EXACT_RUN_H
#define LB_BISECT_EXACT_RUN_H

#include "subprogram/subprogram.h"

/* `leaves`: per leaf its elements, row-major; the subprogram is of one rank and has one output. `*out`: its elements,
 * row-major, malloc'ed; NULL where some op has no exact form. LB_ERR_NOMEM, or what a kernel says of its arguments. */
lb_status lb_subprogram_run_exact(const lb_subprogram *subprogram, const double *const *leaves, double **out,
                                  lb_err *err);

#endif
