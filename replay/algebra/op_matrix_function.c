/* The pseudoinverse of a matrix, its exponential, and the product of reflections.
 *
 * All is f64 and rounded once. A pseudoinverse is judged by residuals (factorisation.h); which singular values near its
 * tolerance count follows what was recorded (lb_call.branch). The other two have bounds of their own. */
#include "algebra/singular_values.h"
#include "algebra/triangle.h"

#include <math.h>
#include <string.h>

/* ---- the pseudoinverse ------------------------------------------------------------------------------------------- */

/* What is left of each column of `a` by itself, of length one; `r`: a is q r. False: some column follows from those
 * before it, to what the op counts as nothing. */
static bool orthonormal(lb_matrix_batch *batch, lb_matrix_columns a, double nothing, lb_matrix_columns *q,
                        lb_matrix_columns *r)
{
    *q = lb_matrix_columns_new(batch, a.m, a.n), *r = lb_matrix_columns_new(batch, a.n, a.n);
    for (int64_t j = 0; batch->status == LB_OK && j < a.n; j++) {
        double *x = q->x + j * a.m;
        memcpy(x, a.x + j * a.m, sizeof *x * (size_t)a.m);
        const double left = lb_matrix_orthogonalise(x, *q, j);
        if (!(left > nothing)) return false;
        for (int64_t i = 0; i < a.m; i++) x[i] /= left;
        for (int64_t i = 0; i <= j; i++) r->x[j * a.n + i] = lb_matrix_dot(q->x + i * a.m, a.x + j * a.m, a.m);
    }
    return batch->status == LB_OK;
}

/* The number of the matrix at hand, NAN where none was given. */
static double number_of(lb_matrix_batch *batch, uint32_t arg)
{
    const lb_operand *operand = arg < batch->call->n_args ? &batch->call->args[arg] : NULL;
    if (!operand || operand->tag == LB_OPERAND_NONE) return NAN;
    if (operand->tag != LB_OPERAND_TENSOR) return operand->f;
    const lb_matrix_columns a = lb_matrix_columns_read(batch, &operand->tensor, 0);
    return a.x ? a.x[0] : NAN;
}

/* What counts as nothing beside a largest singular value. */
typedef struct tolerance {
    double atol, rtol;
} tolerance;

static tolerance tolerance_of(lb_matrix_batch *batch, lb_matrix_columns a)
{
    const double most = (double)(a.m > a.n ? a.m : a.n), atol = fmax(number_of(batch, 1), 0),
                 rtol = number_of(batch, 2), ulp = 2 * lb_dtype_unit_roundoff(batch->call->results[0].dtype);
    return (tolerance){atol, !isnan(rtol) ? rtol : atol > 0 ? 0 : most * ulp};
}

/* Which of the values near the tolerance count is the library's choice: as was recorded, v'Xu is then 1 / value. */
static bool counts(lb_matrix_batch *batch, const lb_singular *singular, lb_matrix_columns recorded, int64_t j,
                   double least)
{
    const double value = singular->values.x[j], *u = singular->u.x + j * singular->u.m,
                 *v = singular->v.x + j * singular->v.m;
    const double blurred = 8 * (double)singular->u.m * lb_matrix_branch_roundoff(batch, 0) *
                           lb_matrix_length(singular->values.x, singular->values.m);
    if (!recorded.x || fabs(value - least) > blurred || !(value > 0)) return value > least;
    double sum = 0;
    for (int64_t i = 0; i < singular->u.m; i++) sum += u[i] * lb_matrix_dot(v, recorded.x + i * recorded.m, recorded.m);
    return sum * value > 0.5;
}

/* By the singular values of a tall matrix that are not small. `recorded` is the result of this matrix. */
static lb_matrix_columns inverse_of_large(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns recorded,
                                          tolerance tolerance)
{
    lb_singular singular;
    lb_matrix_columns x = lb_matrix_columns_new(batch, a.n, a.m);
    if (!x.x || !lb_singular_values_take(batch, a, &singular)) return (lb_matrix_columns){0};
    const double least = fmax(tolerance.atol, tolerance.rtol * (singular.values.m ? singular.values.x[0] : 0));
    for (int64_t k = 0; k < singular.values.m; k++) {
        if (!counts(batch, &singular, recorded, k, least)) continue;
        for (int64_t j = 0; j < a.m; j++)
            lb_matrix_add_scaled(x.x + j * x.m, singular.u.x[k * singular.u.m + j] / singular.values.x[k],
                                 singular.v.x + k * singular.v.m, x.m);
    }
    return x;
}

/* By columns that do not depend on each other; empty where they do, to what counts as nothing. */
static lb_matrix_columns inverse_of_independent(lb_matrix_batch *batch, lb_matrix_columns a, tolerance tolerance)
{
    lb_matrix_columns q, r;
    const double size = lb_matrix_length(a.x, a.m * a.n);
    if (!orthonormal(batch, a, 8 * (tolerance.atol + tolerance.rtol * size), &q, &r)) return (lb_matrix_columns){0};
    lb_matrix_columns x = lb_matrix_columns_transposed(batch, q);
    for (int64_t j = 0; x.x && j < x.n; j++) lb_triangle_solve(r, true, false, x.x + j * x.m);
    return x;
}

/* self, atol, rtol, hermitian: of a matrix that is symmetric the upper triangle is not read. */
static lb_status pseudoinverse(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0), recorded = lb_matrix_columns_branch(&batch, 0, 2);
        if (!lb_matrix_is_usable(&batch, a, false)) continue;
        if (lb_frame_arg_int(call, 3, 0)) lb_matrix_columns_mirror(a, false);
        if (!lb_matrix_columns_finite(a)) {
            lb_matrix_columns_write_nan(&batch, 0, 2);
            continue;
        }
        const tolerance tolerance = tolerance_of(&batch, a);
        const bool wide = a.m < a.n;
        if (wide) a = lb_matrix_columns_transposed(&batch, a);
        if (wide && recorded.x) recorded = lb_matrix_columns_transposed(&batch, recorded);
        if (batch.status != LB_OK) continue;
        lb_matrix_columns x = inverse_of_independent(&batch, a, tolerance);
        if (!x.x) x = inverse_of_large(&batch, a, recorded, tolerance);
        if (x.x) lb_matrix_columns_write(&batch, 0, 2, wide ? lb_matrix_columns_transposed(&batch, x) : x);
    }
    return lb_matrix_batch_end(&batch);
}

/* ---- products of matrices that an op takes apart ----------------------------------------------------------------- */

/* exp(A) by scaling and squaring: Taylor's series of A / 2^s, whose norm is below 1/2, to where terms vanish in f64,
 * squared s times. All terms of the twin are positive: exp(|A|), which each product and addition may put off by its
 * roundings. In f64 torch's polynomials are hardly better than in f32 where the norm is small (off by 2^-30 of a
 * result; measured). */
static lb_status exponential_run(lb_call *call, bool twin)
{
    enum { TERMS = 20 };
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0);
        if (!lb_matrix_is_usable(&batch, a, true)) continue;
        const int64_t n = a.n;
        double size = 0;
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += fabs(a.x[j * n + i]);
            size = fmax(size, sum);
        }
        if (!lb_matrix_columns_finite(a) || size > 0x1p10) {
            lb_matrix_batch_refuse(&batch, "a matrix whose exponential leaves the range of f64");
            continue;
        }
        int squarings = 0;
        for (; size > 0.5; size /= 2) squarings++;
        for (int64_t i = 0; i < n * n; i++) a.x[i] = ldexp(twin ? fabs(a.x[i]) : a.x[i], -squarings);
        lb_matrix_columns y = lb_matrix_columns_identity(&batch, n); /* Horner's: I + A (I + A / 2 (I + A / 3 (…))) */
        for (int k = TERMS; k > 0 && y.x; k--) {
            lb_matrix_columns next = lb_matrix_columns_product(&batch, a, y);
            for (int64_t i = 0; next.x && i < n * n; i++) next.x[i] /= k;
            for (int64_t j = 0; next.x && j < n; j++) next.x[j * n + j] += 1;
            y = next;
        }
        for (int k = 0; k < squarings && y.x; k++) y = lb_matrix_columns_product(&batch, y, y);
        const double most = lb_frame_arg_tensor(call, 0)->dtype == LB_F64 ? 0x1p24 : 1;
        for (int64_t i = 0; twin && y.x && i < n * n; i++) y.x[i] *= most * (squarings + 8);
        lb_matrix_columns_write(&batch, 0, 2, y);
    }
    return lb_matrix_batch_end(&batch);
}
LB_WITH_TWIN(exponential, exponential_run(call, twin))

/* input, tau: the first columns of H(1) H(2) …, H(k) = I - tau[k] v vᵀ, v = (0, …, 1, what stands below the diagonal of
 * column k). */
static lb_status householder_run(lb_call *call, bool twin)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0),
                          tau = lb_matrix_columns_read(&batch, lb_frame_arg_tensor(call, 1), 1);
        if (!lb_matrix_is_usable(&batch, a, false) || !tau.x || tau.m > a.n || a.n > a.m) continue;
        lb_matrix_columns q = lb_matrix_columns_new(&batch, a.m, a.n), v = lb_matrix_columns_new(&batch, a.m, 1);
        for (int64_t j = 0; q.x && v.x && j < a.n; j++) q.x[j * a.m + j] = 1;
        for (int64_t k = tau.m - 1; q.x && v.x && k >= 0; k--) {
            memset(v.x, 0, (size_t)a.m * sizeof *v.x);
            v.x[k] = 1;
            for (int64_t i = k + 1; i < a.m; i++) v.x[i] = twin ? fabs(a.x[k * a.m + i]) : a.x[k * a.m + i];
            for (int64_t j = 0; j < a.n; j++) {
                const double along = lb_matrix_dot(v.x, q.x + j * a.m, a.m);
                lb_matrix_add_scaled(q.x + j * a.m, twin ? fabs(tau.x[k]) * along : -tau.x[k] * along, v.x, a.m);
            }
        }
        lb_matrix_columns_write(&batch, 0, 2, q);
    }
    return lb_matrix_batch_end(&batch);
}
LB_WITH_TWIN(householder, householder_run(call, twin))

#define ROW(NAME, ARGS, KERNEL, FLAGS, SAMPLES)                                                                        \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = FLAGS, .samples = "factors " SAMPLES}

/* clang-format off */
const lb_op_row lb_rows_matrix_function[] = {
    ROW("linalg_pinv.atol_rtol_tensor", "self! atol rtol hermitian", pseudoinverse, LB_ROW_FACTORS, "pinv"),
    {.name = "aten::linalg_matrix_exp", .args = "self!", LB_COMPUTED_BY(exponential), LB_SUMS(16, LB_TERMS(INNER, 0)),
     .samples = "matrix_exp"},
    {.name = "aten::linalg_householder_product", .args = "input! tau!", LB_COMPUTED_BY(householder),
     LB_SUMS(8, LB_TERMS(ELEMENTS, 0)), .samples = "householder"},
    {NULL},
};
