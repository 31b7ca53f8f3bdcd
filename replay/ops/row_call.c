/* Calling a row by name: see row_call.h. */
#include "ops/row_call.h"

#include "kernel/frame.h"

#include <math.h>

lb_status lb_row_call_run(lb_call *call, lb_row_call *p, bool twin)
{
    const lb_op_row *row = lb_op_find(p->row, NULL);
    LB_CHECK(row && row->kernel);
    lb_call inner = *call;
    inner.row = row;
    inner.args = p->args, inner.n_args = p->n_args;
    inner.results = p->results, inner.n_results = p->n_results;
    LB_TRY((twin && row->twin ? row->twin : row->kernel)(&inner));
    for (uint32_t r = 0; twin && !row->twin && r < p->n_results; r++) {
        double *y = p->results[r].data;
        for (int64_t i = 0, n = y ? lb_tensor_numel(&p->results[r]) : 0; i < n; i++) y[i] = fabs(y[i]);
    }
    return LB_OK;
}
