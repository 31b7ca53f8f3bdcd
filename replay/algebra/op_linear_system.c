/* Factorisations that are one result (Cholesky, LU), and what is made of them: solutions, inverses, determinants.
 * Besides the exponential of a matrix and the product of reflections, which have bounds of their own.
 *
 * All is f64 and rounded once; judged by residuals (factorisation.h). Which rows an LU exchanges is a choice among near
 * ties: it takes the recorded exchanges (lb_call.branch), or those of partial pivoting where none were recorded. Of
 * matrices that are singular or not positive definite nothing is computed: what a library leaves behind there is its
 * own. */
#include "algebra/matrix_batch.h"
#include "algebra/singular_values.h"

#include "functions/elementary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 2048 };

static bool is_usable(lb_matrix_batch *batch, lb_matrix_columns a, bool square)
{
    if (!a.x) return false;
    if (square && a.m != a.n) lb_matrix_batch_refuse(batch, "a matrix that is not square");
    if (a.m > MOST_ROWS || a.n > MOST_ROWS) lb_matrix_batch_refuse(batch, "a matrix that takes too long here");
    return batch->status == LB_OK;
}

/* What the library said that it could not do, it left half done. */
static bool gave_up(lb_matrix_batch *batch, uint32_t info)
{
    lb_matrix_columns said = lb_matrix_columns_branch(batch, info, 0);
    if (said.x && said.x[0] != 0)
        lb_matrix_batch_refuse(batch, "the library found the matrix singular or not positive definite");
    return batch->status != LB_OK;
}

static void write_zero(lb_matrix_batch *batch, uint32_t r)
{
    const int64_t zero = 0;
    lb_matrix_columns a = lb_matrix_columns_new(batch, 1, 1);
    if (a.x) a.x[0] = (double)zero;
    lb_matrix_columns_write(batch, r, 0, a);
}

/* ---- triangles --------------------------------------------------------------------------------------------------- */

/* x := T⁻¹ x, T the triangle of a. */
static void solve_triangle(lb_matrix_columns a, bool upper, bool unit, double *x)
{
    for (int64_t k = 0; k < a.n; k++) {
        const int64_t j = upper ? a.n - 1 - k : k;
        const double *column = a.x + j * a.m;
        if (!unit) x[j] /= column[j];
        if (upper)
            lb_matrix_add_scaled(x, -x[j], column, j);
        else
            lb_matrix_add_scaled(x + j + 1, -x[j], column + j + 1, a.n - j - 1);
    }
}

/* x := T⁻ᵀ x */
static void solve_transposed_triangle(lb_matrix_columns a, bool upper, bool unit, double *x)
{
    for (int64_t k = 0; k < a.n; k++) {
        const int64_t j = upper ? k : a.n - 1 - k;
        const double *column = a.x + j * a.m;
        x[j] -= upper ? lb_matrix_dot(column, x, j) : lb_matrix_dot(column + j + 1, x + j + 1, a.n - j - 1);
        if (!unit) x[j] /= column[j];
    }
}

static bool has_zero_on_diagonal(lb_matrix_columns a)
{
    const int64_t k = a.m < a.n ? a.m : a.n;
    for (int64_t j = 0; j < k; j++)
        if (a.x[j * a.m + j] == 0) return true;
    return false;
}

/* ---- Cholesky ---------------------------------------------------------------------------------------------------- */

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
    if (!is_usable(batch, a, true) || gave_up(batch, 1)) return;
    if (upper) a = lb_matrix_columns_transposed(batch, a);
    if (a.x && !factor_cholesky(a)) lb_matrix_batch_refuse(batch, "a matrix that is not positive definite");
    if (batch->status != LB_OK) return;
    lb_matrix_columns_write(batch, 0, 2, upper ? lb_matrix_columns_transposed(batch, a) : a);
    write_zero(batch, 1);
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
        solve_transposed_triangle(l, true, false, x), solve_triangle(l, true, false, x);
    else
        solve_triangle(l, false, false, x), solve_transposed_triangle(l, false, false, x);
}

/* self, input2, upper */
static lb_status cholesky_solve(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns x = lb_matrix_columns_arg(&batch, 0), l = lb_matrix_columns_arg(&batch, 1);
        if (!is_usable(&batch, l, true) || !x.x) continue;
        if (x.m != l.n || has_zero_on_diagonal(l))
            lb_matrix_batch_refuse(&batch, "a singular factor, or sizes that do not fit");
        for (int64_t j = 0; batch.status == LB_OK && j < x.n; j++)
            solve_factored(l, lb_frame_arg_int(call, 2, 0) != 0, x.x + j * x.m);
        lb_matrix_columns_write(&batch, 0, 2, x);
    }
    return lb_matrix_batch_end(&batch);
}

static lb_matrix_columns identity(lb_matrix_batch *batch, int64_t n)
{
    lb_matrix_columns a = lb_matrix_columns_new(batch, n, n);
    for (int64_t j = 0; a.x && j < n; j++) a.x[j * n + j] = 1;
    return a;
}

/* self, upper */
static lb_status cholesky_inverse(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns l = lb_matrix_columns_arg(&batch, 0);
        if (!is_usable(&batch, l, true)) continue;
        if (has_zero_on_diagonal(l)) lb_matrix_batch_refuse(&batch, "a singular factor");
        lb_matrix_columns x = identity(&batch, l.n);
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
        if (!is_usable(&batch, a, true) || !x.x) continue;
        if (x.m != a.n || (!unit && has_zero_on_diagonal(a)))
            lb_matrix_batch_refuse(&batch, "a singular triangle, or sizes that do not fit");
        for (int64_t j = 0; batch.status == LB_OK && j < x.n; j++)
            (lb_frame_arg_int(call, 3, 0) ? solve_transposed_triangle : solve_triangle)(a, upper, unit, x.x + j * x.m);
        lb_matrix_columns_write(&batch, 0, 2, x);
        lb_matrix_columns_write(&batch, 1, 2, a);
    }
    return lb_matrix_batch_end(&batch);
}

/* ---- LU ---------------------------------------------------------------------------------------------------------- */

static void exchange_rows(lb_matrix_columns a, int64_t i, int64_t k)
{
    for (int64_t j = 0; i != k && j < a.n; j++) {
        const double t = a.x[j * a.m + i];
        a.x[j * a.m + i] = a.x[j * a.m + k];
        a.x[j * a.m + k] = t;
    }
}

static int64_t largest_of(const double *x, int64_t from, int64_t n)
{
    int64_t at = from;
    for (int64_t i = from; i < n; i++)
        if (fabs(x[i]) > fabs(x[at])) at = i;
    return at;
}

/* a becomes L (below the diagonal of ones) and U. pivots[k], counted from 1, is the row with which row k was exchanged:
 * those of `recorded`, or the largest of its column. */
static void factor_lu(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns recorded, int64_t *pivots)
{
    const int64_t k = a.m < a.n ? a.m : a.n;
    for (int64_t j = 0; j < k; j++) {
        const int64_t at = recorded.x ? (int64_t)recorded.x[j] - 1 : largest_of(a.x + j * a.m, j, a.m);
        if (at < j || at >= a.m) {
            lb_matrix_batch_refuse(batch, "recorded exchanges that are none");
            return;
        }
        pivots[j] = at + 1;
        exchange_rows(a, j, at);
        const double pivot = a.x[j * a.m + j];
        for (int64_t i = j + 1; pivot != 0 && i < a.m; i++) a.x[j * a.m + i] /= pivot;
        for (int64_t c = j + 1; c < a.n; c++)
            lb_matrix_add_scaled(a.x + c * a.m + j + 1, -a.x[c * a.m + j], a.x + j * a.m + j + 1, a.m - j - 1);
    }
}

typedef struct factored {
    lb_matrix_columns lu;
    int64_t *pivots;
    int64_t n; /* pivots */
} factored;

/* Of a copy of `a`; the recorded exchanges are result `pivots`. The caller frees it. False: refused. */
static bool factored_of(lb_matrix_batch *batch, lb_matrix_columns a, uint32_t pivots, factored *f)
{
    *f = (factored){.lu = lb_matrix_columns_new(batch, a.m, a.n), .n = a.m < a.n ? a.m : a.n};
    f->pivots = malloc((size_t)(f->n + 1) * sizeof *f->pivots);
    if (!f->pivots || !f->lu.x) {
        lb_matrix_batch_refuse(batch, "out of memory");
        return false;
    }
    memcpy(f->lu.x, a.x, (size_t)(a.m * a.n) * sizeof(double));
    lb_matrix_columns recorded = lb_matrix_columns_branch(batch, pivots, 1);
    if (recorded.x && recorded.m != f->n) recorded.x = NULL;
    factor_lu(batch, f->lu, recorded, f->pivots);
    return batch->status == LB_OK;
}

static void exchange(const factored *f, double *x, bool back)
{
    for (int64_t k = 0; k < f->n; k++) {
        const int64_t i = back ? f->n - 1 - k : k, at = f->pivots[i] - 1;
        const double t = x[i];
        x[i] = x[at], x[at] = t;
    }
}

/* x := A⁻¹ x, or A⁻ᵀ x, of the factored A. */
static void solve_lu(const factored *f, bool transposed, double *x)
{
    if (!transposed) {
        exchange(f, x, false);
        solve_triangle(f->lu, false, true, x), solve_triangle(f->lu, true, false, x);
    } else {
        solve_transposed_triangle(f->lu, true, false, x), solve_transposed_triangle(f->lu, false, true, x);
        exchange(f, x, true);
    }
}

/* Whether the recorded LU, results `lu` and the one after it, is that of the transpose: its first row of U is a row of
 * what was factored. Libraries choose by layout; where nothing was recorded, as `otherwise` says. */
static bool factors_transpose(lb_matrix_batch *batch, lb_matrix_columns a, uint32_t lu, bool otherwise)
{
    lb_matrix_columns recorded = lb_matrix_columns_branch(batch, lu, 2),
                      pivots = lb_matrix_columns_branch(batch, lu + 1, 1);
    const int64_t at = pivots.x && pivots.m ? (int64_t)pivots.x[0] - 1 : -1;
    if (!recorded.x || recorded.n != a.n || at < 0 || at >= a.m) return otherwise;
    double plain = 0, turned = 0;
    for (int64_t j = 0; j < a.n; j++) {
        plain += fabs(recorded.x[j * recorded.m] - a.x[j * a.m + at]);
        turned += fabs(recorded.x[j * recorded.m] - a.x[at * a.m + j]);
    }
    return turned < plain;
}

static void write_factors(lb_matrix_batch *batch, const factored *f, uint32_t lu)
{
    lb_matrix_columns_write(batch, lu, 2, f->lu);
    lb_matrix_numbers_write(batch, lu + 1, 1, f->pivots, f->n);
}

/* A, pivot, check_errors */
static lb_status lu_factor(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    if (!lb_frame_arg_int(call, 1, 1)) lb_matrix_batch_refuse(&batch, "without exchanges");
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0);
        factored f = {0};
        if (is_usable(&batch, a, false) && !gave_up(&batch, 2) && factored_of(&batch, a, 1, &f)) {
            write_factors(&batch, &f, 0);
            write_zero(&batch, 2);
        }
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* As torch decides it: linalg_solve's right side is a vector where it has the shape of the matrices without their last
 * dimension. */
static bool is_vector(const lb_tensor *a, const lb_tensor *b)
{
    if (b->layout.ndim == 1) return true;
    if (b->layout.ndim != a->layout.ndim - 1) return false;
    for (int d = 0; d < b->layout.ndim; d++)
        if (b->layout.shape[d] != a->layout.shape[d]) return false;
    return true;
}

/* Every column of x, or every row where `left` is not. */
static lb_matrix_columns solve_all(lb_matrix_batch *batch, const factored *f, bool transposed, bool left,
                                   lb_matrix_columns b)
{
    lb_matrix_columns x = left ? b : lb_matrix_columns_transposed(batch, b);
    if (has_zero_on_diagonal(f->lu) || x.m != f->lu.n)
        lb_matrix_batch_refuse(batch, "a singular matrix, or sizes that do not fit");
    for (int64_t j = 0; batch->status == LB_OK && j < x.n; j++)
        solve_lu(f, left ? transposed : !transposed, x.x + j * x.m);
    return left ? x : lb_matrix_columns_transposed(batch, x);
}

/* A, B, left, check_errors */
static lb_status solve(lb_call *call)
{
    const lb_tensor *right = lb_frame_arg_tensor(call, 1);
    const int core = is_vector(lb_frame_arg_tensor(call, 0), right) ? 1 : 2;
    const bool left = core == 1 || lb_frame_arg_int(call, 2, 1) != 0;
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, core);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0), b = lb_matrix_columns_read(&batch, right, core);
        factored f = {0};
        if (!is_usable(&batch, a, true) || !b.x || gave_up(&batch, 3)) continue;
        const bool turned = factors_transpose(&batch, a, 1, false);
        if (turned) a = lb_matrix_columns_transposed(&batch, a);
        if (a.x && factored_of(&batch, a, 2, &f)) {
            lb_matrix_columns_write(&batch, 0, core, solve_all(&batch, &f, turned, left, b));
            write_factors(&batch, &f, 1);
            write_zero(&batch, 3);
        }
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* A, check_errors */
static lb_status inverse(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0);
        factored f = {0};
        if (is_usable(&batch, a, true) && !gave_up(&batch, 1) && factored_of(&batch, a, UINT32_MAX, &f)) {
            lb_matrix_columns_write(&batch, 0, 2, solve_all(&batch, &f, false, true, identity(&batch, a.n)));
            write_zero(&batch, 1);
        }
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

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
    const lb_operand *o = arg < batch->call->n_args ? &batch->call->args[arg] : NULL;
    if (!o || o->tag == LB_OPERAND_NONE) return NAN;
    if (o->tag != LB_OPERAND_TENSOR) return o->f;
    const lb_matrix_columns a = lb_matrix_columns_read(batch, &o->tensor, 0);
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
static bool counts(lb_matrix_batch *batch, const lb_singular *s, lb_matrix_columns recorded, int64_t j, double least)
{
    const double value = s->values.x[j], *u = s->u.x + j * s->u.m, *v = s->v.x + j * s->v.m;
    const double blurred =
        8 * (double)s->u.m * lb_matrix_branch_roundoff(batch, 0) * lb_matrix_length(s->values.x, s->values.m);
    if (!recorded.x || fabs(value - least) > blurred || !(value > 0)) return value > least;
    double sum = 0;
    for (int64_t i = 0; i < s->u.m; i++) sum += u[i] * lb_matrix_dot(v, recorded.x + i * recorded.m, recorded.m);
    return sum * value > 0.5;
}

/* By the singular values of a tall matrix that are not small. `recorded` is the result of this matrix. */
static lb_matrix_columns inverse_of_large(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns recorded,
                                          tolerance t)
{
    lb_singular s;
    lb_matrix_columns x = lb_matrix_columns_new(batch, a.n, a.m);
    if (!x.x || !lb_singular_values_take(batch, a, &s)) return (lb_matrix_columns){0};
    const double least = fmax(t.atol, t.rtol * (s.values.m ? s.values.x[0] : 0));
    for (int64_t k = 0; k < s.values.m; k++) {
        if (!counts(batch, &s, recorded, k, least)) continue;
        for (int64_t j = 0; j < a.m; j++)
            lb_matrix_add_scaled(x.x + j * x.m, s.u.x[k * s.u.m + j] / s.values.x[k], s.v.x + k * s.v.m, x.m);
    }
    return x;
}

/* By columns that do not depend on each other; empty where they do, to what counts as nothing. */
static lb_matrix_columns inverse_of_independent(lb_matrix_batch *batch, lb_matrix_columns a, tolerance t)
{
    lb_matrix_columns q, r;
    const double size = lb_matrix_length(a.x, a.m * a.n);
    if (!orthonormal(batch, a, 8 * (t.atol + t.rtol * size), &q, &r)) return (lb_matrix_columns){0};
    lb_matrix_columns x = lb_matrix_columns_transposed(batch, q);
    for (int64_t j = 0; x.x && j < x.n; j++) solve_triangle(r, true, false, x.x + j * x.m);
    return x;
}

/* self, atol, rtol, hermitian: of a matrix that is symmetric the upper triangle is not read. */
static lb_status pseudoinverse(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0), recorded = lb_matrix_columns_branch(&batch, 0, 2);
        if (!is_usable(&batch, a, false)) continue;
        if (lb_frame_arg_int(call, 3, 0)) lb_matrix_columns_mirror(a, false);
        if (!lb_matrix_columns_finite(a)) {
            lb_matrix_columns_write_nan(&batch, 0, 2);
            continue;
        }
        const tolerance t = tolerance_of(&batch, a);
        const bool wide = a.m < a.n;
        if (wide) a = lb_matrix_columns_transposed(&batch, a);
        if (wide && recorded.x) recorded = lb_matrix_columns_transposed(&batch, recorded);
        if (batch.status != LB_OK) continue;
        lb_matrix_columns x = inverse_of_independent(&batch, a, t);
        if (!x.x) x = inverse_of_large(&batch, a, recorded, t);
        if (x.x) lb_matrix_columns_write(&batch, 0, 2, wide ? lb_matrix_columns_transposed(&batch, x) : x);
    }
    return lb_matrix_batch_end(&batch);
}

/* Of an LU that an op was given. */
static bool given_factors(lb_matrix_batch *batch, factored *f)
{
    lb_matrix_columns numbers = lb_matrix_columns_read(batch, lb_frame_arg_tensor(batch->call, 1), 1);
    *f = (factored){.lu = lb_matrix_columns_arg(batch, 0), .n = numbers.m};
    if (!is_usable(batch, f->lu, false) || !numbers.x) return false;
    f->pivots = malloc((size_t)(f->n + 1) * sizeof *f->pivots);
    if (!f->pivots || f->n != (f->lu.m < f->lu.n ? f->lu.m : f->lu.n))
        lb_matrix_batch_refuse(batch, "exchanges that do not fit");
    for (int64_t k = 0; batch->status == LB_OK && k < f->n; k++) {
        f->pivots[k] = (int64_t)numbers.x[k];
        if (f->pivots[k] <= k || f->pivots[k] > f->lu.m) lb_matrix_batch_refuse(batch, "exchanges that are none");
    }
    return batch->status == LB_OK;
}

/* LU, pivots, B, left, adjoint */
static lb_status lu_solve(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        factored f = {0};
        lb_matrix_columns b = lb_matrix_columns_arg(&batch, 2);
        if (b.x && given_factors(&batch, &f) && f.lu.m == f.lu.n)
            lb_matrix_columns_write(
                &batch, 0, 2,
                solve_all(&batch, &f, lb_frame_arg_int(call, 4, 0) != 0, lb_frame_arg_int(call, 3, 1) != 0, b));
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* One triangle of lu, m × n; `unit`: ones on the diagonal. */
static lb_matrix_columns triangle_of(lb_matrix_batch *batch, lb_matrix_columns lu, bool upper, int64_t m, int64_t n)
{
    lb_matrix_columns t = lb_matrix_columns_new(batch, m, n);
    for (int64_t j = 0; t.x && j < n; j++)
        for (int64_t i = 0; i < m; i++)
            t.x[j * m + i] = upper ? (i <= j ? lu.x[j * lu.m + i] : 0) : i == j ? 1 : i > j ? lu.x[j * lu.m + i] : 0;
    return t;
}

/* P of A = P L U. */
static lb_matrix_columns permutation_of(lb_matrix_batch *batch, const factored *f, int64_t m)
{
    lb_matrix_columns p = lb_matrix_columns_new(batch, m, m), rows = lb_matrix_columns_new(batch, m, 1);
    for (int64_t i = 0; rows.x && i < m; i++) rows.x[i] = (double)i;
    if (rows.x) exchange(f, rows.x, false);
    for (int64_t i = 0; p.x && rows.x && i < m; i++) p.x[i * m + (int64_t)rows.x[i]] = 1;
    return p;
}

static void write_parts(lb_matrix_batch *batch, const factored *f, bool data, bool permutation)
{
    if (permutation) lb_matrix_columns_write(batch, 0, 2, permutation_of(batch, f, f->lu.m));
    if (!data) return;
    lb_matrix_columns_write(batch, 1, 2, triangle_of(batch, f->lu, false, f->lu.m, f->n));
    lb_matrix_columns_write(batch, 2, 2, triangle_of(batch, f->lu, true, f->n, f->lu.n));
}

/* LU_data, LU_pivots, unpack_data, unpack_pivots: what is not asked for has no elements */
static lb_status lu_unpack(lb_call *call)
{
    const lb_layout *l = &lb_frame_arg_tensor(call, 0)->layout;
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 0);
    if (l->ndim < 2) lb_matrix_batch_refuse(&batch, "no matrix");
    batch.n_dims = l->ndim - 2, batch.count = 1;
    for (int d = 0; d < batch.n_dims; d++) batch.shape[d] = l->shape[d], batch.count *= l->shape[d];
    while (lb_matrix_batch_next(&batch)) {
        factored f = {0};
        if (given_factors(&batch, &f))
            write_parts(&batch, &f, lb_frame_arg_int(call, 2, 1) != 0, lb_frame_arg_int(call, 3, 1) != 0);
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* The exchanges that make the recorded permutation; false: it is none. */
static bool exchanges_of(lb_matrix_columns p, lb_matrix_columns pivots)
{
    for (int64_t i = 0; i < p.m; i++) {
        int64_t row = -1;
        for (int64_t k = 0; k < p.m; k++)
            if (p.x[i * p.m + k] == 1) row = k;
        if (row < 0) return false;
        for (int64_t k = 0; k < i && k < pivots.m; k++) { /* where the exchanges so far have put that row */
            const int64_t at = (int64_t)pivots.x[k] - 1;
            row = row == k ? at : row == at ? k : row;
        }
        if (row < i) return false;
        if (i < pivots.m) pivots.x[i] = (double)(row + 1);
    }
    return true;
}

/* A, pivot -> P, L, U */
static lb_status lu(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 1, 2);
    if (!lb_frame_arg_int(call, 1, 1)) lb_matrix_batch_refuse(&batch, "without exchanges");
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0), p = lb_matrix_columns_branch(&batch, 0, 2);
        if (!is_usable(&batch, a, false)) continue;
        factored f = {.lu = a, .n = a.m < a.n ? a.m : a.n};
        lb_matrix_columns recorded = lb_matrix_columns_new(&batch, f.n, 1);
        f.pivots = malloc((size_t)(f.n + 1) * sizeof *f.pivots);
        if (!p.x || p.m != a.m || !recorded.x || !exchanges_of(p, recorded)) recorded.x = NULL;
        if (f.pivots) factor_lu(&batch, a, recorded, f.pivots);
        if (f.pivots && batch.status == LB_OK) write_parts(&batch, &f, true, true);
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* ---- determinants ------------------------------------------------------------------------------------------------ */

static double sign_of(const factored *f)
{
    double sign = 1;
    for (int64_t k = 0; k < f->n; k++) {
        const double d = f->lu.x[k * f->lu.m + k];
        if (f->pivots[k] != k + 1) sign = -sign;
        sign = d == 0 ? 0 : d < 0 ? -sign : sign;
    }
    return sign;
}

static void write_number(lb_matrix_batch *batch, uint32_t r, double value)
{
    lb_matrix_columns a = lb_matrix_columns_new(batch, 1, 1);
    if (a.x) a.x[0] = value;
    lb_matrix_columns_write(batch, r, 0, a);
}

/* A -> det, LU, pivots; or sign, logarithm of the magnitude, LU, pivots */
static lb_status determinant(lb_call *call, bool logarithm)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 0);
    const bool by_rows = lb_layout_is_contiguous(&lb_frame_arg_tensor(call, 0)->layout);
    const uint32_t factors = logarithm ? 2 : 1;
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0);
        factored f = {0};
        if (!is_usable(&batch, a, true)) continue;
        if (factors_transpose(&batch, a, factors, by_rows)) a = lb_matrix_columns_transposed(&batch, a);
        if (a.x && factored_of(&batch, a, factors + 1, &f)) {
            double product = sign_of(&f), sum = 0;
            for (int64_t k = 0; k < f.n; k++) {
                const double d = fabs(f.lu.x[k * f.lu.m + k]);
                product *= d, sum += lb_log(d);
            }
            write_number(&batch, 0, logarithm ? sign_of(&f) : product);
            if (logarithm) write_number(&batch, 1, sum);
            write_factors(&batch, &f, factors);
        }
        free(f.pivots);
    }
    return lb_matrix_batch_end(&batch);
}
static lb_status det(lb_call *call)
{
    return determinant(call, false);
}
static lb_status slogdet(lb_call *call)
{
    return determinant(call, true);
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
        if (!is_usable(&batch, a, true)) continue;
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
        lb_matrix_columns y = identity(&batch, n); /* Horner's: I + A (I + A / 2 (I + A / 3 (…))) */
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
        if (!is_usable(&batch, a, false) || !tau.x || tau.m > a.n || a.n > a.m) continue;
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
const lb_op_row lb_rows_linear_system[] = {
    ROW("linalg_cholesky_ex", "self! upper check_errors", cholesky, LB_ROW_FACTORS, "cholesky"),
    ROW("cholesky_solve", "self! input2! upper", cholesky_solve, LB_ROW_FACTORS, "cholesky_solve"),
    ROW("cholesky_inverse", "self! upper", cholesky_inverse, LB_ROW_FACTORS, "cholesky_inverse"),
    ROW("triangular_solve", "self! A! upper transpose unitriangular", triangular_solve, LB_ROW_FACTORS, "triangular"),
    ROW("linalg_lu_factor_ex", "A! pivot check_errors", lu_factor, LB_ROW_FACTORS, "lu"),
    ROW("linalg_lu", "A! pivot", lu, LB_ROW_FACTORS, "lu"),
    ROW("lu_unpack", "LU_data! LU_pivots! unpack_data unpack_pivots", lu_unpack, LB_ROW_EXACT, "unpack"),
    ROW("linalg_lu_solve", "LU! pivots! B! left adjoint", lu_solve, LB_ROW_FACTORS, "lu_solve"),
    ROW("_linalg_solve_ex", "A! B! left check_errors", solve, LB_ROW_FACTORS, "solve"),
    ROW("linalg_inv_ex", "A! check_errors", inverse, LB_ROW_FACTORS, "inverse"),
    ROW("linalg_pinv.atol_rtol_tensor", "self! atol rtol hermitian", pseudoinverse, LB_ROW_FACTORS, "pinv"),
    ROW("_linalg_det", "A!", det, LB_ROW_FACTORS, "inverse"),
    ROW("_linalg_slogdet", "A!", slogdet, LB_ROW_FACTORS, "inverse"),
    {.name = "aten::linalg_matrix_exp", .args = "self!", LB_COMPUTED_BY(exponential), LB_SUMS(16, LB_TERMS(INNER, 0)),
     .samples = "matrix_exp"},
    {.name = "aten::linalg_householder_product", .args = "input! tau!", LB_COMPUTED_BY(householder),
     LB_SUMS(8, LB_TERMS(ELEMENTS, 0)), .samples = "householder"},
    {NULL},
};
