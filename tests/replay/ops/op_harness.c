/* The op table as a shared library for Python: look a name up, run a kernel or its twin on given memory.
 *
 * op_harness.py mirrors lb_operand, lb_tensor and lb_op_row with ctypes; op_samples.py makes inputs; test_ops_torch.py
 * compares with torch, search_bounds.py looks for what exceeds a bound. Nothing here knows any op. */
#include <lastbit/processor.h>
#include <lastbit/statistics.h>

#include "judgement/bound.h"
#include "kernel/complex_rows.h"
#include "judgement/factorisation.h"
#include "kernel/ops.h"
#include "kernel/required_arguments.h"

#include <math.h>
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

LB_API uint32_t harness_rows(const lb_op_row *const **rows)
{
    return lb_op_rows(rows);
}

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
LB_API int harness_best_isa(void)
{
    return (int)lb_processor_best();
}

/* What the calls that follow say of the recording: lb_call.cuda. */
static bool on_cuda;
LB_API void harness_cuda(int cuda)
{
    on_cuda = cuda != 0;
}

LB_API int harness_run(const lb_op_row *row, int twin, const lb_operand *args, uint32_t n_args, lb_tensor *results,
                       uint32_t n_results, const lb_method *method, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, results, n_results, {0}, &err};
    if (method) call.method = *method;
    call.cuda = on_cuda;
    const lb_status status = twin ? lb_row_twin(&call) : lb_row_run(&call);
    snprintf(message, 512, "%s: %s", lb_status_name(status), err.message);
    return (int)status;
}

/* The same of a row that follows what was recorded: lb_call.branch, a tensor per result. */
LB_API int harness_run_branch(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *results,
                              uint32_t n_results, const lb_tensor *branch, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, results, n_results, {0}, &err};
    call.branch = branch;
    call.cuda = on_cuda;
    const lb_status status = lb_row_run(&call);
    snprintf(message, 512, "%s: %s", lb_status_name(status), err.message);
    return (int)status;
}

/* Whether all tensors that the row needs are among the args. */
LB_API int harness_complete(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *results,
                            uint32_t n_results, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, results, n_results, {0}, &err};
    const lb_status status = lb_required_arguments_are_there(&call);
    snprintf(message, 512, "%s", err.message);
    return (int)status;
}

/* What lb_row_roundings and lb_row_is_exact say of a call. */
LB_API double harness_roundings(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *results,
                                uint32_t n_results, int *exact)
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

/* The bound ratio of element `at` (of the recorded value) and `dense_at` (of the exact one) of result `i`. */
static double ratio_of(const lb_bound *bound, uint32_t i, const lb_tensor *value, int64_t at, int64_t dense_at)
{
    const lb_layout none = {0};
    lb_tensor one = {(char *)value->data + at * (int64_t)(lb_dtype_bits(value->dtype) / 8), value->dtype, none};
    lb_tensor exact = bound->exact[i], twin = bound->twin[i];
    const int64_t size = (int64_t)(lb_dtype_bits(exact.dtype) / 8);
    exact = (lb_tensor){(char *)exact.data + dense_at * size, exact.dtype, none};
    twin = (lb_tensor){twin.data ? (char *)twin.data + dense_at * size : NULL, twin.dtype, none};
    const lb_bound single = {1, &exact, &twin, bound->factor, bound->tiny, NULL};
    return lb_bound_ratio(&single, 0, &one);
}

/* Per element of each recorded result, in row-major order, how much of its bound it uses (NaN: it has none). */
LB_API int harness_ratios(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *recorded,
                          uint32_t n_results, double **ratios, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, recorded, n_results, {0}, &err};
    call.cuda = on_cuda;
    lb_memory *memory = lb_memory_new(0);
    lb_bound bound = {0};
    const lb_status status = lb_bound_init(&bound, memory, &call, &err);
    for (uint32_t i = 0; status == LB_OK && i < n_results; i++) {
        const lb_layout *layout = &recorded[i].layout, *dense = &bound.exact[i].layout;
        int64_t index[LB_MAX_DIMS] = {0}, at = 0, dense_at = 0;
        const bool bounded = recorded[i].data && bound.exact[i].data && lb_dtype_part(bound.exact[i].dtype) == LB_F64;
        for (int64_t n = 0, numel = recorded[i].data ? lb_layout_numel(layout) : 0; n < numel; n++) {
            ratios[i][n] = bounded ? ratio_of(&bound, i, &recorded[i], at, dense_at) : (double)NAN;
            for (int d = layout->ndim - 1; d >= 0; d--) {
                at += layout->stride[d], dense_at += dense->stride[d];
                if (++index[d] < layout->shape[d]) break;
                at -= layout->stride[d] * layout->shape[d], dense_at -= dense->stride[d] * layout->shape[d];
                index[d] = 0;
            }
        }
    }
    lb_bound_release(&bound);
    lb_memory_free(memory);
    snprintf(message, 512, "%s: %s", lb_status_name(status), err.message);
    return (int)status;
}

/* Whether a result `i` of which the bytes are not known may have the statistics of `recorded[i]`. */
LB_API int harness_allows(const lb_op_row *row, const lb_operand *args, uint32_t n_args, lb_tensor *recorded,
                          uint32_t n_results, uint32_t i)
{
    lb_err err = LB_ERR_INIT;
    lb_call call = {row, args, n_args, recorded, n_results, {0}, &err};
    call.cuda = on_cuda;
    lb_memory *memory = lb_memory_new(0);
    lb_bound bound = {0};
    const lb_status status = lb_bound_init(&bound, memory, &call, &err);
    const lb_statistics statistics = lb_statistics_of(&recorded[i]);
    const int allowed = status == LB_OK ? lb_bound_allows(&bound, i, recorded[i].dtype, &statistics) : -1;
    lb_bound_release(&bound);
    lb_memory_free(memory);
    return allowed;
}

LB_API double harness_factorisation(const char *name, const lb_operand *args, uint32_t n_args, const lb_tensor *results,
                                    uint32_t n_results)
{
    return lb_factorisation_ratio(name, args, n_args, results, n_results);
}
