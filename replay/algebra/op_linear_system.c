/* The LU factorisation, and what is made of it: solutions, inverses, determinants.
 *
 * All is f64 and rounded once; judged by residuals (factorisation.h). Which rows an LU exchanges is a choice among near
 * ties: it takes the recorded exchanges (lb_call.branch), or those of partial pivoting where none were recorded. Of
 * singular matrices nothing is computed: what a library leaves behind there is its own. */
#include "algebra/triangle.h"

#include "functions/elementary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
            lb_matrix_batch_refuse(batch, "recorded exchanges that are out of range");
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
static bool factored_of(lb_matrix_batch *batch, lb_matrix_columns a, uint32_t pivots, factored *made)
{
    *made = (factored){.lu = lb_matrix_columns_new(batch, a.m, a.n), .n = a.m < a.n ? a.m : a.n};
    made->pivots = malloc((size_t)(made->n + 1) * sizeof *made->pivots);
    if (!made->pivots || !made->lu.x) {
        lb_matrix_batch_refuse(batch, "out of memory");
        return false;
    }
    memcpy(made->lu.x, a.x, (size_t)(a.m * a.n) * sizeof(double));
    lb_matrix_columns recorded = lb_matrix_columns_branch(batch, pivots, 1);
    if (recorded.x && recorded.m != made->n) recorded.x = NULL;
    factor_lu(batch, made->lu, recorded, made->pivots);
    return batch->status == LB_OK;
}

static void exchange(const factored *factored, double *x, bool back)
{
    for (int64_t k = 0; k < factored->n; k++) {
        const int64_t i = back ? factored->n - 1 - k : k, at = factored->pivots[i] - 1;
        const double t = x[i];
        x[i] = x[at], x[at] = t;
    }
}

/* x := A⁻¹ x, or A⁻ᵀ x, of the factored A. */
static void solve_lu(const factored *factored, bool transposed, double *x)
{
    if (!transposed) {
        exchange(factored, x, false);
        lb_triangle_solve(factored->lu, false, true, x), lb_triangle_solve(factored->lu, true, false, x);
    } else {
        lb_triangle_solve_transposed(factored->lu, true, false, x),
            lb_triangle_solve_transposed(factored->lu, false, true, x);
        exchange(factored, x, true);
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

static void write_factors(lb_matrix_batch *batch, const factored *factored, uint32_t lu)
{
    lb_matrix_columns_write(batch, lu, 2, factored->lu);
    lb_matrix_numbers_write(batch, lu + 1, 1, factored->pivots, factored->n);
}

/* A, pivot, check_errors */
static lb_status lu_factor(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    if (!lb_frame_arg_int(call, 1, 1)) lb_matrix_batch_refuse(&batch, "without exchanges");
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0);
        factored factored = {0};
        if (lb_matrix_is_usable(&batch, a, false) && !lb_matrix_batch_gave_up(&batch, 2) &&
            factored_of(&batch, a, 1, &factored)) {
            write_factors(&batch, &factored, 0);
            lb_matrix_zero_write(&batch, 2);
        }
        free(factored.pivots);
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
static lb_matrix_columns solve_all(lb_matrix_batch *batch, const factored *factored, bool transposed, bool left,
                                   lb_matrix_columns b)
{
    lb_matrix_columns x = left ? b : lb_matrix_columns_transposed(batch, b);
    if (lb_triangle_is_singular(factored->lu) || x.m != factored->lu.n)
        lb_matrix_batch_refuse(batch, "a singular matrix, or sizes that do not fit");
    for (int64_t j = 0; batch->status == LB_OK && j < x.n; j++)
        solve_lu(factored, left ? transposed : !transposed, x.x + j * x.m);
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
        factored factored = {0};
        if (!lb_matrix_is_usable(&batch, a, true) || !b.x || lb_matrix_batch_gave_up(&batch, 3)) continue;
        const bool turned = factors_transpose(&batch, a, 1, false);
        if (turned) a = lb_matrix_columns_transposed(&batch, a);
        if (a.x && factored_of(&batch, a, 2, &factored)) {
            lb_matrix_columns_write(&batch, 0, core, solve_all(&batch, &factored, turned, left, b));
            write_factors(&batch, &factored, 1);
            lb_matrix_zero_write(&batch, 3);
        }
        free(factored.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* A, check_errors */
static lb_status inverse(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0);
        factored factored = {0};
        if (lb_matrix_is_usable(&batch, a, true) && !lb_matrix_batch_gave_up(&batch, 1) &&
            factored_of(&batch, a, UINT32_MAX, &factored)) {
            lb_matrix_columns_write(&batch, 0, 2,
                                    solve_all(&batch, &factored, false, true, lb_matrix_columns_identity(&batch, a.n)));
            lb_matrix_zero_write(&batch, 1);
        }
        free(factored.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* Of an LU that an op was given. */
static bool given_factors(lb_matrix_batch *batch, factored *made)
{
    lb_matrix_columns numbers = lb_matrix_columns_read(batch, lb_frame_arg_tensor(batch->call, 1), 1);
    *made = (factored){.lu = lb_matrix_columns_arg(batch, 0), .n = numbers.m};
    if (!lb_matrix_is_usable(batch, made->lu, false) || !numbers.x) return false;
    made->pivots = malloc((size_t)(made->n + 1) * sizeof *made->pivots);
    if (!made->pivots || made->n != (made->lu.m < made->lu.n ? made->lu.m : made->lu.n))
        lb_matrix_batch_refuse(batch, "exchanges that do not fit");
    for (int64_t k = 0; batch->status == LB_OK && k < made->n; k++) {
        made->pivots[k] = (int64_t)numbers.x[k];
        if (made->pivots[k] <= k || made->pivots[k] > made->lu.m)
            lb_matrix_batch_refuse(batch, "exchanges that are out of range");
    }
    return batch->status == LB_OK;
}

/* LU, pivots, B, left, adjoint */
static lb_status lu_solve(lb_call *call)
{
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 2);
    while (lb_matrix_batch_next(&batch)) {
        factored factored = {0};
        lb_matrix_columns b = lb_matrix_columns_arg(&batch, 2);
        if (b.x && given_factors(&batch, &factored) && factored.lu.m == factored.lu.n)
            lb_matrix_columns_write(
                &batch, 0, 2,
                solve_all(&batch, &factored, lb_frame_arg_int(call, 4, 0) != 0, lb_frame_arg_int(call, 3, 1) != 0, b));
        free(factored.pivots);
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
static lb_matrix_columns permutation_of(lb_matrix_batch *batch, const factored *factored, int64_t m)
{
    lb_matrix_columns columns = lb_matrix_columns_new(batch, m, m), rows = lb_matrix_columns_new(batch, m, 1);
    for (int64_t i = 0; rows.x && i < m; i++) rows.x[i] = (double)i;
    if (rows.x) exchange(factored, rows.x, false);
    for (int64_t i = 0; columns.x && rows.x && i < m; i++) columns.x[i * m + (int64_t)rows.x[i]] = 1;
    return columns;
}

static void write_parts(lb_matrix_batch *batch, const factored *factored, bool data, bool permutation)
{
    if (permutation) lb_matrix_columns_write(batch, 0, 2, permutation_of(batch, factored, factored->lu.m));
    if (!data) return;
    lb_matrix_columns_write(batch, 1, 2, triangle_of(batch, factored->lu, false, factored->lu.m, factored->n));
    lb_matrix_columns_write(batch, 2, 2, triangle_of(batch, factored->lu, true, factored->n, factored->lu.n));
}

/* LU_data, LU_pivots, unpack_data, unpack_pivots: what is not asked for has no elements */
static lb_status lu_unpack(lb_call *call)
{
    const lb_layout *layout = &lb_frame_arg_tensor(call, 0)->layout;
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 0);
    if (layout->ndim < 2) lb_matrix_batch_refuse(&batch, "no matrix");
    batch.n_dims = layout->ndim - 2, batch.count = 1;
    for (int d = 0; d < batch.n_dims; d++) batch.shape[d] = layout->shape[d], batch.count *= layout->shape[d];
    while (lb_matrix_batch_next(&batch)) {
        factored factored = {0};
        if (given_factors(&batch, &factored))
            write_parts(&batch, &factored, lb_frame_arg_int(call, 2, 1) != 0, lb_frame_arg_int(call, 3, 1) != 0);
        free(factored.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* The exchanges that make the recorded permutation; false: it is none. */
static bool exchanges_of(lb_matrix_columns columns, lb_matrix_columns pivots)
{
    for (int64_t i = 0; i < columns.m; i++) {
        int64_t row = -1;
        for (int64_t k = 0; k < columns.m; k++)
            if (columns.x[i * columns.m + k] == 1) row = k;
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
        lb_matrix_columns a = lb_matrix_columns_arg(&batch, 0), columns = lb_matrix_columns_branch(&batch, 0, 2);
        if (!lb_matrix_is_usable(&batch, a, false)) continue;
        factored factored = {.lu = a, .n = a.m < a.n ? a.m : a.n};
        lb_matrix_columns recorded = lb_matrix_columns_new(&batch, factored.n, 1);
        factored.pivots = malloc((size_t)(factored.n + 1) * sizeof *factored.pivots);
        if (!columns.x || columns.m != a.m || !recorded.x || !exchanges_of(columns, recorded)) recorded.x = NULL;
        if (factored.pivots) factor_lu(&batch, a, recorded, factored.pivots);
        if (factored.pivots && batch.status == LB_OK) write_parts(&batch, &factored, true, true);
        free(factored.pivots);
    }
    return lb_matrix_batch_end(&batch);
}

/* ---- determinants ------------------------------------------------------------------------------------------------ */

static double sign_of(const factored *factored)
{
    double sign = 1;
    for (int64_t k = 0; k < factored->n; k++) {
        const double d = factored->lu.x[k * factored->lu.m + k];
        if (factored->pivots[k] != k + 1) sign = -sign;
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
        factored factored = {0};
        if (!lb_matrix_is_usable(&batch, a, true)) continue;
        if (factors_transpose(&batch, a, factors, by_rows)) a = lb_matrix_columns_transposed(&batch, a);
        if (a.x && factored_of(&batch, a, factors + 1, &factored)) {
            double product = sign_of(&factored), sum = 0;
            for (int64_t k = 0; k < factored.n; k++) {
                const double d = fabs(factored.lu.x[k * factored.lu.m + k]);
                product *= d, sum += lb_log(d);
            }
            write_number(&batch, 0, logarithm ? sign_of(&factored) : product);
            if (logarithm) write_number(&batch, 1, sum);
            write_factors(&batch, &factored, factors);
        }
        free(factored.pivots);
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

#define ROW(NAME, ARGS, KERNEL, FLAGS, SAMPLES)                                                                        \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = FLAGS, .samples = "factors " SAMPLES}

/* clang-format off */
const lb_op_row lb_rows_linear_system[] = {
    ROW("linalg_lu_factor_ex", "A! pivot check_errors", lu_factor, LB_ROW_FACTORS, "lu"),
    ROW("linalg_lu", "A! pivot", lu, LB_ROW_FACTORS, "lu"),
    ROW("lu_unpack", "LU_data! LU_pivots! unpack_data unpack_pivots", lu_unpack, LB_ROW_EXACT, "unpack"),
    ROW("linalg_lu_solve", "LU! pivots! B! left adjoint", lu_solve, LB_ROW_FACTORS, "lu_solve"),
    ROW("_linalg_solve_ex", "A! B! left check_errors", solve, LB_ROW_FACTORS, "solve"),
    ROW("linalg_inv_ex", "A! check_errors", inverse, LB_ROW_FACTORS, "inverse"),
    ROW("_linalg_det", "A!", det, LB_ROW_FACTORS, "inverse"),
    ROW("_linalg_slogdet", "A!", slogdet, LB_ROW_FACTORS, "inverse"),
    {NULL},
};
