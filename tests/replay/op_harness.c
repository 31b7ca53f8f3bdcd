/* The op table as a shared library for Python: look a name up, run a kernel or its twin on given memory.
 *
 * op_harness.py mirrors lb_operand, lb_tensor and lb_op_row with ctypes; op_samples.py makes inputs; test_ops_torch.py compares with
 * torch. Nothing here knows any op. */
#include <lastbit/processor.h>

#include "complex.h"
#include "ops.h"
#include "required.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

#pragma weak lb_call_terms

/* So that the mirrors in Python cannot go stale unseen. */
LB_API void harness_sizes(uint64_t sizes[4])
{
    sizes[0] = sizeof(lb_tensor);
    sizes[1] = sizeof(lb_operand);
    sizes[2] = sizeof(lb_op_row);
    sizes[3] = sizeof(lb_method);
}

LB_API uint32_t harness_rows(const lb_op_row *const **rows) { return lb_op_rows(rows); }

/* NULL when nothing computes `name`. */
LB_API const lb_op_row *harness_find(const char *name, int *form)
{
    lb_op_form found;
    const lb_op_row *row = lb_op_find(name, &found);
    *form = (int)found;
    return row;
}

LB_API void harness_limit(int isa, int threads)
{
    lb_processor_limit((lb_isa)isa);
    omp_set_num_threads(threads);
}
LB_API int harness_best_isa(void) { return (int)lb_processor_best(); }

LB_API int harness_run(const lb_op_row *row, int twin, const lb_operand *args, uint32_t n_args, lb_tensor *results,
                       uint32_t n_results, const lb_method *method, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, results, n_results, {0}, &err};
    if (method) call.method = *method;
    const lb_status status = twin ? lb_row_twin(&call) : lb_row_run(&call);
    snprintf(message, 512, "%s: %s", lb_status_name(status), err.message);
    return (int)status;
}

/* Whether all tensors that the row needs are among the args. */
LB_API int harness_complete(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *results, uint32_t n_results,
                            char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, results, n_results, {0}, &err};
    const lb_status status = lb_call_complete(&call);
    snprintf(message, 512, "%s", err.message);
    return (int)status;
}

/* What lb_row_roundings and lb_row_is_exact say of a call. */
LB_API double harness_roundings(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *results, uint32_t n_results,
                                int *exact)
{
    lb_call call = {row, args, n_args, results, n_results, {0}, NULL};
    *exact = lb_row_is_exact(&call);
    return lb_row_roundings(&call);
}

/* Of elementwise ops 1; -1 when the library at hand does not say. */
LB_API double harness_terms(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *results,
                            uint32_t n_results)
{
    lb_call call = {row, args, n_args, results, n_results, {0}, NULL};
    if (lb_call_terms) return lb_call_terms(&call);
    return row->flags & LB_ROW_ELEMENTWISE ? 1 : -1;
}
