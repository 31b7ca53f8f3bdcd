/* Calling a row by name: see row_call.h. */
#include "ops/row_call.h"

#include "kernel/frame.h"

#include <math.h>

lb_status lb_row_call_run(lb_call *call, lb_row_call *piece, bool twin)
{
    const lb_op_row *row = lb_op_find(piece->row, NULL);
    LB_CHECK(row && row->kernel);
    lb_call inner = *call;
    inner.row = row;
    inner.args = piece->args, inner.n_args = piece->n_args;
    inner.results = piece->results, inner.n_results = piece->n_results;
    LB_TRY((twin && row->twin ? row->twin : row->kernel)(&inner));
    for (uint32_t r = 0; twin && !row->twin && r < piece->n_results; r++) {
        double *y = piece->results[r].data;
        for (int64_t i = 0, n = y ? lb_tensor_numel(&piece->results[r]) : 0; i < n; i++) y[i] = fabs(y[i]);
    }
    return LB_OK;
}
