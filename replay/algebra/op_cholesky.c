/* The Cholesky factorisation, and systems whose matrix is a triangle or a product of two.
 *
 * All is f64 and rounded once; judged by residuals (factorisation.h). Of matrices that are not positive definite
 * nothing is computed: what a library leaves behind there is its own. */
#include "algebra/triangle.h"

#include <math.h>
#include <string.h>

/* The lower triangle of a becomes L of A = L Lᵀ. False: it is not positive definite. */
static bool factor_cholesky(lb_matrix_columns a)
{
    for (int64_t j = 0; j < a.n; j++) {
        double *column = a.x + j * a.m;
        for (int64_t k = 0; k < j; k++) lb_matrix_add_scaled(column + j, -a.x[k * a.m + j], a.x + k * a.m + j, a.m - j);
        if (!(column[j] > 0) || !isfinite(column[j])) return false;
        const double root = __builtin_sqrt(column[j]);
        for (int64_t i = j; i < a.m; i++) column[i] /= root;
        memset(column, 0, (size_t)j * sizeof *column);
    }
    return true;
}

static void cholesky_one(lb_matrix_batch *batch, bool upper)
{
    lb_matrix_columns a = lb_matrix_columns_arg(batch, 0);
    if (!lb_matrix_is_usable(batch, a, true) || lb_matrix_batch_gave_up(batch, 1)) return;
    if (upper) a = lb_matrix_columns_transposed(batch, a);
    if (a.x && !factor_cholesky(a)) lb_matrix_batch_refuse(batch, "a matrix that is not positive definite");
    if (batch->status != LB_OK) return;
    lb_matrix_columns_write(batch, 0, 2, upper ? lb_matrix_columns_transposed(batch, a) : a);
    lb_matrix_zero_write(batch, 1);
}

/* self, upper, check_errors */
static lb_status cholesky(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) cholesky_one(&batch, lb_frame_arg_int(call, 1, 0) != 0);
    return lb_matrix_batch_end(&batch);
}

/* x := (L Lᵀ)⁻¹ x, or (Uᵀ U)⁻¹ x */
static void solve_factored(lb_matrix_columns l, bool upper, double *x)
{
    if (upper)
        lb_triangle_solve_transposed(l, true, false, x), lb_triangle_solve(l, true, false, x);
    else
        lb_triangle_solve(l, false, false, x), lb_triangle_solve_transposed(l, false, false, x);
}

/* self, input2, upper */
static lb_status cholesky_solve(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns x = lb_matrix_columns_arg(&batch, 0), l = lb_matrix_columns_arg(&batch, 1);
        if (!lb_matrix_is_usable(&batch, l, true) || !x.x) continue;
        if (x.m != l.n || lb_triangle_is_singular(l))
            lb_matrix_batch_refuse(&batch, "a singular factor, or sizes that do not fit");
        for (int64_t j = 0; batch.status == LB_OK && j < x.n; j++)
            solve_factored(l, lb_frame_arg_int(call, 2, 0) != 0, x.x + j * x.m);
        lb_matrix_columns_write(&batch, 0, 2, x);
    }
    return lb_matrix_batch_end(&batch);
}

/* self, upper */
static lb_status cholesky_inverse(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns l = lb_matrix_columns_arg(&batch, 0);
        if (!lb_matrix_is_usable(&batch, l, true)) continue;
        if (lb_triangle_is_singular(l)) lb_matrix_batch_refuse(&batch, "a singular factor");
        lb_matrix_columns x = lb_matrix_columns_identity(&batch, l.n);
        for (int64_t j = 0; x.x && j < x.n; j++) solve_factored(l, lb_frame_arg_int(call, 1, 0) != 0, x.x + j * x.m);
        lb_matrix_columns_write(&batch, 0, 2, x);
    }
    return lb_matrix_batch_end(&batch);
}

/* self, A, upper, transpose, unitriangular; the second result is A */
static lb_status triangular_solve(lb_call *call)
{
    const bool upper = lb_frame_arg_int(call, 2, 1) != 0, unit = lb_frame_arg_int(call, 4, 0) != 0;
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns x = lb_matrix_columns_arg(&batch, 0), a = lb_matrix_columns_arg(&batch, 1);
        if (!lb_matrix_is_usable(&batch, a, true) || !x.x) continue;
        if (x.m != a.n || (!unit && lb_triangle_is_singular(a)))
            lb_matrix_batch_refuse(&batch, "a singular triangle, or sizes that do not fit");
        for (int64_t j = 0; batch.status == LB_OK && j < x.n; j++)
            (lb_frame_arg_int(call, 3, 0) ? lb_triangle_solve_transposed : lb_triangle_solve)(a, upper, unit,
                                                                                              x.x + j * x.m);
        lb_matrix_columns_write(&batch, 0, 2, x);
        lb_matrix_columns_write(&batch, 1, 2, a);
    }
    return lb_matrix_batch_end(&batch);
}

#define ROW(NAME, ARGS, KERNEL, FLAGS, SAMPLES)                                                                        \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = FLAGS, .samples = "factors " SAMPLES}

/* clang-format off */
const lb_op_row lb_rows_cholesky[] = {
    ROW("linalg_cholesky_ex", "self! upper check_errors", cholesky, LB_ROW_FACTORS, "cholesky"),
    ROW("cholesky_solve", "self! input2! upper", cholesky_solve, LB_ROW_FACTORS, "cholesky_solve"),
    ROW("cholesky_inverse", "self! upper", cholesky_inverse, LB_ROW_FACTORS, "cholesky_inverse"),
    ROW("triangular_solve", "self! A! upper transpose unitriangular", triangular_solve, LB_ROW_FACTORS, "triangular"),
    {NULL},
};
