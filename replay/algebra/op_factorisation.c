/* QR, eigenvectors of symmetric matrices and singular vectors, in the branch that was recorded.
 *
 * What these give is not one result: signs are free, and so is the basis of the space of equal eigenvalues. Libraries
 * differ in both, and a shadow that chose anew would part from the recording, and two sides from each other, for
 * nothing. So a kernel begins with what was recorded (lb_call.branch) and takes the exact result that is nearest to it:
 *
 *      QR      the columns of A orthogonalised one after the other; a column takes the recorded sign, and where A's own
 *              is dependent on those before it as far as the recorded precision tells, the recorded column
 *      eigh    Jacobi's rotations (Golub and Van Loan 8.5) of VᵀAV, begun with the recorded V: they end at the
 *              eigenvectors nearest to it. Two eigenvalues that the recorded precision does not tell apart are not
 *              rotated against each other
 *      SVD     the same with one-sided rotations (Hestenes) of the columns of AV
 *
 * Where nothing was recorded diagonals of R are not negative, eigenvectors begin with the unit vectors and have a
 * positive largest element. All is f64 and rounded once. A result is judged by what it promises: factorisation.h. */
#include "algebra/matrix_batch.h"
#include "algebra/singular_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 1024, MOST_WITHOUT_BRANCH = 512, MOST_SWEEPS = 40 };

/* Numbers that the recorded precision does not tell apart, per norm of the matrix: LAPACK's errors are a small multiple
 * of n u. */
static double blur(const lb_matrix_batch *batch, uint32_t result, int64_t n)
{
    return 8 * (double)n * lb_matrix_branch_roundoff(batch, result);
}

static bool is_too_large(lb_matrix_batch *batch, int64_t n, bool begun)
{
    const bool large = n > (begun ? MOST_ROWS : MOST_WITHOUT_BRANCH);
    if (large) lb_matrix_batch_refuse(batch, "a matrix of which the factorisation takes too long here");
    return large;
}

static void negate(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = -x[i];
}

static bool is_largest_negative(const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i]) > fabs(largest)) largest = x[i];
    return largest < 0;
}

/* ---- QR ---------------------------------------------------------------------------------------------------------- */

/* Column j of Q, from column j of A. */
static void qr_column(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns q, lb_matrix_columns q0,
                      lb_matrix_columns r0, int64_t j)
{
    const double *from = a.x + j * a.m, *recorded = q0.x ? q0.x + j * q0.m : NULL;
    double *x = q.x + j * q.m;
    const double whole = lb_matrix_length(from, a.m);
    memcpy(x, from, (size_t)a.m * sizeof *x);
    const double left = lb_matrix_orthogonalise(x, q, j);
    if (!(left > blur(batch, q0.x ? 0 : 1, a.m) * whole)) {
        lb_matrix_fill_column(q, j, recorded);
        return;
    }
    for (int64_t i = 0; i < a.m; i++) x[i] /= left;
    const bool turned = recorded ? lb_matrix_dot(x, recorded, a.m) < 0 : r0.x && r0.x[j * r0.m + j] < 0;
    if (turned) negate(x, a.m);
}

static void qr_one(lb_matrix_batch *batch, bool complete, bool no_q)
{
    lb_matrix_columns a = lb_matrix_columns_arg(batch, 0),
                      q0 = no_q ? (lb_matrix_columns){0} : lb_matrix_columns_branch(batch, 0, 2),
                      r0 = lb_matrix_columns_branch(batch, 1, 2);
    const int64_t k = a.m < a.n ? a.m : a.n, width = complete ? a.m : k;
    if (!a.x || is_too_large(batch, a.m > a.n ? k : a.m, true)) return;
    if (!lb_matrix_columns_finite(a)) {
        lb_matrix_columns_write_nan(batch, 0, 2), lb_matrix_columns_write_nan(batch, 1, 2);
        return;
    }
    lb_matrix_columns q = lb_matrix_columns_new(batch, a.m, width), r = lb_matrix_columns_new(batch, width, a.n);
    if ((q0.x && (q0.m != a.m || q0.n != width)) || (r0.x && (r0.m != width || r0.n != a.n)))
        lb_matrix_batch_refuse(batch, "a recorded result of another shape");
    if (batch->status != LB_OK || !q.x || !r.x) return;
    for (int64_t j = 0; j < k; j++) qr_column(batch, a, q, q0, r0, j);
    for (int64_t j = k; j < width; j++) lb_matrix_fill_column(q, j, q0.x ? q0.x + j * q0.m : NULL);
    for (int64_t j = 0; j < a.n; j++)
        for (int64_t i = 0; i <= j && i < k; i++) r.x[j * width + i] = lb_matrix_dot(q.x + i * q.m, a.x + j * a.m, a.m);
    if (!no_q) lb_matrix_columns_write(batch, 0, 2, q);
    lb_matrix_columns_write(batch, 1, 2, r);
}

/* A, mode: reduced, complete or r */
static lb_status qr(lb_call *call)
{
    const char *mode = call->n_args > 1 && call->args[1].tag == LB_OPERAND_STRING && call->args[1].string
                           ? call->args[1].string
                           : "reduced";
    if (call->n_results < 2) return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: other results", call->row->name);
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 1, 2);
    while (lb_matrix_batch_next(&batch)) qr_one(&batch, *mode == 'c', *mode == 'r' && mode[1] == '\0');
    return lb_matrix_batch_end(&batch);
}

/* ---- symmetric matrices ------------------------------------------------------------------------------------------ */

/* The rotation that makes the off-diagonal element of [[p, o], [o, q]] vanish: the smaller of the two angles. */
static void rotation(double p, double q, double o, double *c, double *s)
{
    const double theta = (q - p) / (2 * o);
    const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + __builtin_sqrt(1 + theta * theta));
    *c = 1 / __builtin_sqrt(1 + t * t);
    *s = t * *c;
}

static void rotate(double *x, double *y, double c, double s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double u = x[i], w = y[i];
        x[i] = c * u - s * w;
        y[i] = s * u + c * w;
    }
}

/* B := JᵀBJ of the symmetric B, V := VJ. */
static void rotate_pair(lb_matrix_columns b, lb_matrix_columns v, int64_t p, int64_t q)
{
    double c, s;
    const int64_t n = b.n;
    rotation(b.x[p * n + p], b.x[q * n + q], b.x[q * n + p], &c, &s);
    rotate(b.x + p * n, b.x + q * n, c, s, n);
    for (int64_t i = 0; i < n; i++) {
        const double u = b.x[i * n + p], w = b.x[i * n + q];
        b.x[i * n + p] = c * u - s * w;
        b.x[i * n + q] = s * u + c * w;
    }
    b.x[q * n + p] = b.x[p * n + q] = 0;
    if (v.x) rotate(v.x + p * v.m, v.x + q * v.m, c, s, v.m);
}

/* `blurred`: pairs closer than that keep the basis that they have. False: it does not end. */
static bool diagonalise(lb_matrix_columns b, lb_matrix_columns v, double blurred)
{
    const int64_t n = b.n;
    const double quiet = 0x1p-54 * lb_matrix_length(b.x, n * n);
    bool rotated = true;
    for (int sweep = 0; rotated && sweep < MOST_SWEEPS; sweep++) {
        rotated = false;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                const double off = fabs(b.x[q * n + p]), gap = fabs(b.x[q * n + q] - b.x[p * n + p]);
                if (!(off > quiet) || (gap <= blurred && off <= blurred)) continue;
                rotate_pair(b, v, p, q);
                rotated = true;
            }
    }
    return !rotated;
}

/* Orthonormal columns nearest to the recorded ones, in their order; the unit vectors where nothing was recorded. */
static lb_matrix_columns first_basis(lb_matrix_batch *batch, lb_matrix_columns recorded, int64_t n)
{
    lb_matrix_columns v = lb_matrix_columns_new(batch, n, n);
    const bool known = recorded.x && recorded.m == n && recorded.n >= n && lb_matrix_columns_finite(recorded);
    for (int64_t j = 0; v.x && j < n; j++) {
        if (known)
            lb_matrix_fill_column(v, j, recorded.x + j * recorded.m);
        else
            v.x[j * n + j] = 1;
    }
    return v;
}

/* Where values have left the order (ascending, or descending where `direction` is -1) by more than `blurred`, all are
 * put in order. */
static void put_in_order(double *values, double *order, int64_t n, int direction, double blurred)
{
    bool sorted = true;
    for (int64_t j = 0; j < n; j++) order[j] = (double)j;
    for (int64_t j = 1; j < n; j++) sorted = sorted && (values[j] - values[j - 1]) * direction >= -blurred;
    for (int64_t j = 1; !sorted && j < n; j++)
        for (int64_t i = j; i > 0 && (values[i] - values[i - 1]) * direction < 0; i--) {
            const double t = values[i], o = order[i];
            values[i] = values[i - 1], order[i] = order[i - 1];
            values[i - 1] = t, order[i - 1] = o;
        }
}

/* Of values that the recorded precision does not tell apart the columns keep their places, and the numbers are put in
 * order without them. */
static void sort_alone(double *values, int64_t n, int direction)
{
    for (int64_t j = 1; j < n; j++)
        for (int64_t i = j; i > 0 && (values[i] - values[i - 1]) * direction < 0; i--) {
            const double t = values[i];
            values[i] = values[i - 1], values[i - 1] = t;
        }
}

/* Columns in that order, each with the sign of the recorded one in its place. `partner` (may be empty) takes the
 * same. */
static void arrange(lb_matrix_batch *batch, lb_matrix_columns *v, lb_matrix_columns *partner, const double *order,
                    int64_t n, lb_matrix_columns recorded)
{
    lb_matrix_columns sorted = lb_matrix_columns_new(batch, v->m, v->n),
                      other = lb_matrix_columns_new(batch, partner->m, partner->n);
    if (!sorted.x || !other.x) return;
    memcpy(sorted.x, v->x, (size_t)(v->m * v->n) * sizeof(double));
    if (partner->x) memcpy(other.x, partner->x, (size_t)(partner->m * partner->n) * sizeof(double));
    for (int64_t j = 0; j < n; j++) {
        double *x = sorted.x + j * v->m;
        memcpy(x, v->x + (int64_t)order[j] * v->m, (size_t)v->m * sizeof *x);
        if (partner->x)
            memcpy(other.x + j * other.m, partner->x + (int64_t)order[j] * other.m, (size_t)other.m * sizeof *x);
        const bool turned =
            recorded.x ? lb_matrix_dot(x, recorded.x + j * recorded.m, v->m) < 0 : is_largest_negative(x, v->m);
        if (!turned) continue;
        negate(x, v->m);
        if (partner->x) negate(other.x + j * other.m, other.m);
    }
    *v = sorted;
    if (partner->x) *partner = other;
}

static void eigh_one(lb_matrix_batch *batch, bool upper, bool vectors)
{
    lb_matrix_columns a = lb_matrix_columns_arg(batch, 0),
                      v0 = vectors ? lb_matrix_columns_branch(batch, 1, 2) : (lb_matrix_columns){0}, none = {0};
    const int64_t n = a.n;
    if (!a.x || is_too_large(batch, n, v0.x != NULL)) return;
    lb_matrix_columns_mirror(a, upper);
    if (a.m != n || !lb_matrix_columns_finite(a)) {
        lb_matrix_columns_write_nan(batch, 0, 1), lb_matrix_columns_write_nan(batch, 1, 2);
        return;
    }
    lb_matrix_columns v = vectors ? first_basis(batch, v0, n) : none, b = a;
    if (v0.x) {
        b = lb_matrix_columns_product(batch, lb_matrix_columns_transposed(batch, v),
                                      lb_matrix_columns_product(batch, a, v));
        if (b.x) lb_matrix_columns_mirror(b, true);
    }
    lb_matrix_columns values = lb_matrix_columns_new(batch, n, 1), order = lb_matrix_columns_new(batch, n, 1);
    if (batch->status != LB_OK) return;
    const double size = lb_matrix_length(a.x, n * n), blurred = v0.x ? blur(batch, 1, n) * size : 0;
    if (!diagonalise(b, v, blurred)) lb_matrix_batch_refuse(batch, "rotations do not end");
    for (int64_t j = 0; j < n; j++) values.x[j] = b.x[j * n + j];
    put_in_order(values.x, order.x, n, 1, blurred);
    if (vectors) arrange(batch, &v, &none, order.x, n, v0);
    sort_alone(values.x, n, 1);
    lb_matrix_columns_write(batch, 0, 1, values);
    if (vectors) lb_matrix_columns_write(batch, 1, 2, v);
}

/* A, UPLO, compute_v */
static lb_status eigh(lb_call *call)
{
    const bool named = call->n_args > 1 && call->args[1].tag == LB_OPERAND_STRING && call->args[1].string;
    const char side = named ? *call->args[1].string : 'L';
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 0, 1);
    while (lb_matrix_batch_next(&batch))
        eigh_one(&batch, side == 'U' || side == 'u', call->n_results > 1 && lb_frame_arg_int(call, 2, 1) != 0);
    return lb_matrix_batch_end(&batch);
}

/* ---- singular values --------------------------------------------------------------------------------------------- */

/* One pair of columns of W = AV, by a rotation of both that makes them orthogonal. */
static bool meet(lb_matrix_columns w, lb_matrix_columns v, int64_t p, int64_t q, double quiet, double blurred)
{
    double *x = w.x + p * w.m, *y = w.x + q * w.m, c, s;
    const double off = lb_matrix_dot(x, y, w.m), a = lb_matrix_dot(x, x, w.m), b = lb_matrix_dot(y, y, w.m),
                 largest = __builtin_sqrt(fmax(a, b));
    if (!(fabs(off) > 0x1p-52 * __builtin_sqrt(a) * __builtin_sqrt(b)) || !(fabs(off) > quiet * largest)) return false;
    if (fabs(__builtin_sqrt(a) - __builtin_sqrt(b)) <= blurred && fabs(off) <= blurred * largest) return false;
    rotation(a, b, off, &c, &s);
    rotate(x, y, c, s, w.m);
    if (v.x) rotate(v.x + p * v.m, v.x + q * v.m, c, s, v.m);
    return true;
}

static bool make_orthogonal(lb_matrix_columns w, lb_matrix_columns v, double quiet, double blurred)
{
    bool rotated = true;
    for (int sweep = 0; rotated && sweep < MOST_SWEEPS; sweep++) {
        rotated = false;
        for (int64_t p = 0; p < w.n; p++)
            for (int64_t q = p + 1; q < w.n; q++) rotated = meet(w, v, p, q, quiet, blurred) || rotated;
    }
    return !rotated;
}

/* Columns of U that A gives, divided by their lengths; those of the space that A does not reach are the recorded
 * ones, made orthogonal. Pairs that were not rotated may be short of orthogonal by their gap, which each makes good
 * by half. */
static void left_vectors(lb_matrix_columns w, lb_matrix_columns u, lb_matrix_columns u0, const double *values,
                         int64_t n, double blurred)
{
    int64_t reached = 0;
    for (int64_t j = 0; j < n && values[j] > blurred && values[j] > 0; j++, reached++)
        for (int64_t i = 0; i < w.m; i++) u.x[j * w.m + i] = w.x[j * w.m + i] / values[j];
    for (int pass = 0; pass < 3; pass++)
        for (int64_t p = 0; p < reached; p++)
            for (int64_t q = p + 1; q < reached && fabs(values[p] - values[q]) <= blurred; q++) {
                double *x = u.x + p * u.m, *y = u.x + q * u.m;
                const double half = lb_matrix_dot(x, y, u.m) / 2;
                for (int64_t i = 0; i < u.m; i++) {
                    const double a = x[i], b = y[i];
                    x[i] = a - half * b, y[i] = b - half * a;
                }
            }
    for (int64_t j = 0; j < reached; j++) {
        const double length = lb_matrix_length(u.x + j * u.m, u.m);
        for (int64_t i = 0; i < u.m; i++) u.x[j * u.m + i] /= length;
    }
    for (int64_t j = reached; j < u.n; j++) lb_matrix_fill_column(u, j, u0.x && j < u0.n ? u0.x + j * u0.m : NULL);
}

/* A is tall here: m ≥ n. U has `width` columns. */
static bool tall(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns u0, lb_matrix_columns v0, int64_t width,
                 bool vectors, double unit, lb_singular *singular)
{
    const int64_t n = a.n;
    lb_matrix_columns none = {0}, order = lb_matrix_columns_new(batch, n, 1);
    singular->v = vectors ? first_basis(batch, v0, n) : none;
    lb_matrix_columns w = v0.x && vectors ? lb_matrix_columns_product(batch, a, singular->v) : a;
    singular->values = lb_matrix_columns_new(batch, n, 1);
    singular->u = vectors ? lb_matrix_columns_new(batch, a.m, width) : none;
    if (batch->status != LB_OK) return false;
    const double size = lb_matrix_length(a.x, a.m * n), blurred = v0.x ? unit * size : 0;
    if (!make_orthogonal(w, singular->v, 0x1p-54 * size, blurred))
        lb_matrix_batch_refuse(batch, "rotations do not end");
    for (int64_t j = 0; j < n; j++) singular->values.x[j] = lb_matrix_length(w.x + j * w.m, w.m);
    put_in_order(singular->values.x, order.x, n, -1, blurred);
    if (vectors) arrange(batch, &singular->v, &w, order.x, n, v0);
    if (vectors && batch->status == LB_OK)
        left_vectors(w, singular->u, u0, singular->values.x, n, fmax(blurred, 0x1p-50 * size));
    sort_alone(singular->values.x, n, -1);
    return batch->status == LB_OK;
}

bool lb_singular_values_take(lb_matrix_batch *batch, lb_matrix_columns a, lb_singular *s)
{
    const lb_matrix_columns none = {0};
    return !is_too_large(batch, a.n, false) && tall(batch, a, none, none, a.n, true, 0, s);
}

static void svd_one(lb_matrix_batch *batch, bool full, bool vectors)
{
    lb_matrix_columns a = lb_matrix_columns_arg(batch, 0), none = {0};
    if (!a.x) return;
    const bool wide = a.m < a.n;
    lb_matrix_columns u0 = vectors ? lb_matrix_columns_branch(batch, 0, 2) : none,
                      vh0 = vectors ? lb_matrix_columns_branch(batch, 2, 2) : none;
    if (is_too_large(batch, wide ? a.m : a.n, u0.x && vh0.x)) return;
    if (!lb_matrix_columns_finite(a)) {
        lb_matrix_columns_write_nan(batch, 0, 2), lb_matrix_columns_write_nan(batch, 1, 1),
            lb_matrix_columns_write_nan(batch, 2, 2);
        return;
    }
    lb_matrix_columns v0 = u0.x && vh0.x ? lb_matrix_columns_transposed(batch, vh0) : none;
    if (!vh0.x) u0 = none;
    const int64_t most = a.m > a.n ? a.m : a.n, least = a.m < a.n ? a.m : a.n;
    const double unit = blur(batch, vectors ? 0 : 1, most);
    lb_singular singular = {0};
    if (wide) a = lb_matrix_columns_transposed(batch, a);
    if (batch->status != LB_OK ||
        !tall(batch, a, wide ? v0 : u0, wide ? u0 : v0, full ? most : least, vectors, unit, &singular))
        return;
    lb_matrix_columns_write(batch, 1, 1, singular.values);
    if (!vectors) return;
    lb_matrix_columns_write(batch, 0, 2, wide ? singular.v : singular.u);
    lb_matrix_columns_write(batch, 2, 2, lb_matrix_columns_transposed(batch, wide ? singular.u : singular.v));
}

/* A, full_matrices, compute_uv, driver */
static lb_status svd(lb_call *call)
{
    if (call->n_results < 3) return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: other results", call->row->name);
    lb_matrix_batch batch = lb_matrix_batch_begin(call, 1, 1);
    while (lb_matrix_batch_next(&batch))
        svd_one(&batch, lb_frame_arg_int(call, 1, 0) != 0, lb_frame_arg_int(call, 2, 1) != 0);
    return lb_matrix_batch_end(&batch);
}

#define ROW(NAME, ARGS, KERNEL, SAMPLES)                                                                               \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = LB_ROW_FACTORS, .samples = "factors " SAMPLES}

const lb_op_row lb_rows_factorisation[] = {
    ROW("linalg_qr", "A! mode", qr, "qr"),
    ROW("_linalg_eigh", "A! UPLO compute_v", eigh, "eigh"),
    ROW("_linalg_svd", "A! full_matrices compute_uv driver", svd, "svd"),
    {NULL},
};
