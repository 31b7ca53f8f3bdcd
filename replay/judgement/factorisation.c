/* Residuals of factorisations: see factorisation.h. Everything is f64, matrices are dense and row-major. */
#include "judgement/factorisation.h"

#include "functions/elementary.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THRESHOLD 50
#define TWO_STEPS 8   /* units of off_by_two_steps; its analysis counts 2 */
#define MAX_SIZE 4096 /* products of larger matrices take longer than a judgement is worth */

/* One matrix of a batch; NULL: not there. */
typedef struct matrix {
    double *x;
    int64_t m, n;
} matrix;

/* What is allocated until the next matrix of the batch. */
typedef struct workspace {
    void *blocks[48];
    int n;
    bool failed;
} workspace;

static matrix new_matrix(workspace *workspace, int64_t m, int64_t n)
{
    matrix matrix = {NULL, m, n};
    if (workspace->n < 48) matrix.x = calloc((size_t)(m * n + 1), sizeof *matrix.x);
    if (matrix.x)
        workspace->blocks[workspace->n++] = matrix.x;
    else
        workspace->failed = true;
    return matrix;
}

static void clear(workspace *workspace)
{
    while (workspace->n) free(workspace->blocks[--workspace->n]);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool is_real(const lb_tensor *tensor)
{
    return tensor && tensor->data && (tensor->dtype == LB_F32 || tensor->dtype == LB_F64);
}

static int64_t batches_of(const lb_tensor *tensor, int core)
{
    int64_t n = 1;
    for (int d = 0; d < tensor->layout.ndim - core; d++) n *= tensor->layout.shape[d];
    return n;
}

/* Elements before sample `b` of the leading dimensions. */
static int64_t offset_of(const lb_tensor *tensor, int64_t b, int core)
{
    int64_t at = 0;
    for (int d = tensor->layout.ndim - core - 1; d >= 0; d--) {
        at += b % tensor->layout.shape[d] * tensor->layout.stride[d];
        b /= tensor->layout.shape[d];
    }
    return at;
}

static double element(const lb_tensor *tensor, int64_t at)
{
    return lb_to_f64(tensor->dtype, (const char *)tensor->data + at * (int64_t)(lb_dtype_bits(tensor->dtype) / 8));
}

/* Matrix `b` of the tensor; vectors (core 1) are one column. */
static matrix read_matrix(workspace *workspace, const lb_tensor *tensor, int64_t b, int core)
{
    const lb_layout *layout = &tensor->layout;
    if (!is_real(tensor) || layout->ndim < core) return (matrix){0};
    const int rows = layout->ndim - core;
    matrix a = new_matrix(workspace, layout->shape[rows], core == 2 ? layout->shape[rows + 1] : 1);
    const int64_t base = offset_of(tensor, b, core);
    for (int64_t i = 0; a.x && i < a.m; i++)
        for (int64_t j = 0; j < a.n; j++) {
            a.x[i * a.n + j] =
                element(tensor, base + i * layout->stride[rows] + (core == 2 ? j * layout->stride[rows + 1] : 0));
            if (!isfinite(a.x[i * a.n + j])) return (matrix){0};
        }
    return a;
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static matrix transposed(workspace *workspace, matrix a)
{
    matrix t = new_matrix(workspace, a.n, a.m);
    for (int64_t i = 0; t.x && i < a.m; i++)
        for (int64_t j = 0; j < a.n; j++) t.x[j * a.m + i] = a.x[i * a.n + j];
    return t;
}

static matrix product(workspace *workspace, matrix a, matrix b)
{
    matrix c = new_matrix(workspace, a.m, b.n);
    if (a.n != b.m) workspace->failed = true;
    if (workspace->failed) return c;
    for (int64_t i = 0; i < a.m; i++)
        for (int64_t k = 0; k < a.n; k++) {
            const double factor = a.x[i * a.n + k], *row = b.x + k * b.n;
            for (int64_t j = 0; j < b.n; j++) c.x[i * b.n + j] += factor * row[j];
        }
    return c;
}

static double norm(matrix matrix) /* the largest sum of magnitudes of a column */
{
    double largest = 0;
    for (int64_t j = 0; j < matrix.n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < matrix.m; i++) sum += fabs(matrix.x[i * matrix.n + j]);
        largest = fmax(largest, sum);
    }
    return largest;
}

static double distance(workspace *workspace, matrix a, matrix b)
{
    if (workspace->failed || a.m != b.m || a.n != b.n) return INFINITY;
    for (int64_t i = 0; i < a.m * a.n; i++) a.x[i] -= b.x[i];
    return norm(a);
}

static matrix identity(workspace *workspace, int64_t n)
{
    matrix matrix = new_matrix(workspace, n, n);
    for (int64_t i = 0; matrix.x && i < n; i++) matrix.x[i * n + i] = 1;
    return matrix;
}

static double orthogonality(workspace *workspace, matrix matrix)
{
    return distance(workspace, product(workspace, transposed(workspace, matrix), matrix),
                    identity(workspace, matrix.n));
}

/* The columns of a scaled by the numbers of d, the others left out. */
static matrix scaled(workspace *workspace, matrix a, matrix d)
{
    matrix y = new_matrix(workspace, a.m, d.m);
    for (int64_t i = 0; y.x && d.m <= a.n && i < a.m; i++)
        for (int64_t j = 0; j < d.m; j++) y.x[i * d.m + j] = a.x[i * a.n + j] * d.x[j];
    return y;
}

/* The symmetric matrix of which one triangle is read. */
static void mirror(matrix matrix, bool upper)
{
    for (int64_t i = 0; i < matrix.m; i++)
        for (int64_t j = 0; j < i && j < matrix.n; j++) {
            if (upper)
                matrix.x[i * matrix.n + j] = matrix.x[j * matrix.n + i];
            else
                matrix.x[j * matrix.n + i] = matrix.x[i * matrix.n + j];
        }
}

static bool is_triangular(matrix matrix, bool upper)
{
    for (int64_t i = 0; i < matrix.m; i++)
        for (int64_t j = 0; j < matrix.n; j++)
            if ((upper ? j < i : j > i) && matrix.x[i * matrix.n + j] != 0) return false;
    return true;
}

/* One triangle of a, the diagonal of ones where `unit`. */
static matrix triangle(workspace *workspace, matrix a, bool upper, bool unit, int64_t m, int64_t n)
{
    matrix t = new_matrix(workspace, m, n);
    for (int64_t i = 0; t.x && i < m; i++)
        for (int64_t j = 0; j < n; j++)
            if (upper ? j >= i : j <= i) t.x[i * n + j] = unit && i == j ? 1 : a.x[i * a.n + j];
    return t;
}

static bool is_sorted(matrix matrix, int direction)
{
    for (int64_t i = 1; i < matrix.m; i++)
        if ((matrix.x[i] - matrix.x[i - 1]) * direction < 0) return false;
    return true;
}

static double square_sum(matrix matrix)
{
    double sum = 0;
    for (int64_t i = 0; i < matrix.m * matrix.n; i++) sum += matrix.x[i] * matrix.x[i];
    return sum;
}

/* ---- the ops ----------------------------------------------------------------------------------------------------- */

/* A call, and which matrix of its batch is looked at. Checks give the worst of what they find, in units of n ulp; -1:
 * nothing. */
typedef struct check {
    const lb_operand *args;
    uint32_t n_args;
    const lb_tensor *results;
    uint32_t n_results;
    int64_t b;
    workspace *workspace;
    double unit; /* n ulp */
} check;

static matrix arg(const check *check, uint32_t i)
{
    const lb_operand none = {.tag = LB_OPERAND_NONE}, *operand = i < check->n_args ? &check->args[i] : &none;
    if (operand->tag != LB_OPERAND_TENSOR || batches_of(&operand->tensor, 2) != batches_of(&check->args[0].tensor, 2))
        return (matrix){0};
    return read_matrix(check->workspace, &operand->tensor, check->b, 2);
}
static matrix result(const check *check, uint32_t i, int core)
{
    return i < check->n_results && check->results[i].data && lb_layout_numel(&check->results[i].layout)
               ? read_matrix(check->workspace, &check->results[i], check->b, core)
               : (matrix){0};
}
static bool flag(const check *check, uint32_t i)
{
    return i < check->n_args && check->args[i].tag != LB_OPERAND_NONE && check->args[i].i != 0;
}
static char letter(const check *check, uint32_t i, char otherwise)
{
    return i < check->n_args && check->args[i].tag == LB_OPERAND_STRING && check->args[i].string
               ? check->args[i].string[0]
               : otherwise;
}
/* Of something as large as `size`. */
static double part(const check *check, double residual, double size)
{
    return residual == 0 ? 0 : size > 0 ? residual / (size * check->unit) : INFINITY;
}
/* What a library could not factorise it left undone, and said so. */
static bool gave_up(const check *check, uint32_t info)
{
    const lb_tensor *tensor = info < check->n_results ? &check->results[info] : NULL;
    return tensor && tensor->data && lb_layout_numel(&tensor->layout) &&
           element(tensor, offset_of(tensor, check->b, 0)) != 0;
}

static double check_qr(const check *check)
{
    matrix a = arg(check, 0), q = result(check, 0, 2), r = result(check, 1, 2);
    double worst = -1;
    if (q.x) worst = part(check, orthogonality(check->workspace, q), 1);
    if (!a.x || !r.x) return worst;
    if (!is_triangular(r, true)) return INFINITY;
    const double size = norm(a);
    if (q.x) return fmax(worst, part(check, distance(check->workspace, product(check->workspace, q, r), a), size));
    matrix gram = product(check->workspace, transposed(check->workspace, a), a); /* Q was not asked for: RᵀR = AᵀA */
    return part(check, distance(check->workspace, product(check->workspace, transposed(check->workspace, r), r), gram),
                size * norm(transposed(check->workspace, a)));
}

static double check_eigh(const check *check)
{
    matrix a = arg(check, 0), eigenvalues = result(check, 0, 1), v = result(check, 1, 2);
    double worst = -1;
    if (v.x) worst = part(check, orthogonality(check->workspace, v), 1);
    if (!a.x || !eigenvalues.x) return worst;
    if (!is_sorted(eigenvalues, 1)) return INFINITY;
    mirror(a, letter(check, 1, 'L') == 'U' || letter(check, 1, 'L') == 'u');
    const double size = norm(a);
    if (v.x)
        return fmax(worst, part(check,
                                distance(check->workspace, product(check->workspace, a, v),
                                         scaled(check->workspace, v, eigenvalues)),
                                size));
    double trace = 0, sum = 0, squares = square_sum(a); /* vectors were not asked for: the first two moments */
    for (int64_t i = 0; i < a.m; i++) trace += a.x[i * a.n + i], sum += eigenvalues.x[i];
    return fmax(part(check, fabs(trace - sum), size * (double)a.m),
                part(check, fabs(squares - square_sum(eigenvalues)), 2 * size * size * (double)a.m));
}

static double check_svd(const check *check)
{
    matrix a = arg(check, 0), u = result(check, 0, 2), s = result(check, 1, 1), vh = result(check, 2, 2);
    double worst = -1;
    if (u.x) worst = part(check, orthogonality(check->workspace, u), 1);
    if (vh.x) worst = fmax(worst, part(check, orthogonality(check->workspace, transposed(check->workspace, vh)), 1));
    if (!a.x || !s.x) return worst;
    if (!is_sorted(s, -1) || s.x[s.m - 1] < 0) return INFINITY;
    const double size = fmax(norm(a), norm(transposed(check->workspace, a)));
    if (!u.x || !vh.x) return part(check, fabs(square_sum(a) - square_sum(s)), 2 * size * size * (double)s.m);
    vh.m = s.m; /* rows beyond belong to full_matrices */
    return fmax(
        worst, part(check, distance(check->workspace, product(check->workspace, scaled(check->workspace, u, s), vh), a),
                    size));
}

static double check_cholesky(const check *check)
{
    matrix a = arg(check, 0), l = result(check, 0, 2);
    const bool upper = flag(check, 1);
    if (!a.x || !l.x || gave_up(check, 1)) return -1;
    if (!is_triangular(l, upper)) return INFINITY;
    mirror(a, upper);
    const double size = norm(a);
    matrix t = transposed(check->workspace, l);
    return part(
        check, distance(check->workspace, upper ? product(check->workspace, t, l) : product(check->workspace, l, t), a),
        size);
}

static double inverse_of(const check *check, matrix a, matrix x)
{
    const double size = norm(a) * norm(x);
    matrix left = product(check->workspace, x, a), right = product(check->workspace, a, x),
           one = identity(check->workspace, a.m);
    return part(check, fmin(distance(check->workspace, left, one), distance(check->workspace, right, one)), size);
}

static double check_inverse(const check *check)
{
    matrix a = arg(check, 0), x = result(check, 0, 2);
    return a.x && x.x && !gave_up(check, 1) ? inverse_of(check, a, x) : -1;
}

/* A number that is an argument, one for all matrices or one for each. NAN: none was given; infinite: not known. */
static double number_arg(const check *check, uint32_t i)
{
    if (i >= check->n_args || check->args[i].tag == LB_OPERAND_NONE) return NAN;
    if (check->args[i].tag != LB_OPERAND_TENSOR) return check->args[i].f;
    const lb_tensor *tensor = &check->args[i].tensor;
    const int64_t n = is_real(tensor) ? lb_layout_numel(&tensor->layout) : 0;
    return n == 1                                            ? element(tensor, 0)
           : n && n == batches_of(&check->args[0].tensor, 2) ? element(tensor, offset_of(tensor, check->b, 0))
                                                             : INFINITY;
}

static double asymmetry(const check *check, matrix matrix)
{
    return distance(check->workspace, transposed(check->workspace, matrix), matrix);
}

/* self, atol, rtol, hermitian. X is the pseudoinverse of what is left of A without its small singular values: AX and XA
 * are symmetric, XAX is X, and AXA is A but for what was left out, which is at most the tolerance. X itself is at most
 * its inverse. The largest singular value lies between |A|_F and that by the root of the smaller size. */
static double check_pseudoinverse(const check *check)
{
    matrix a = arg(check, 0), x = result(check, 0, 2);
    if (!a.x || !x.x) return -1;
    if (flag(check, 3)) mirror(a, false);
    const double least = (double)(a.m < a.n ? a.m : a.n), largest = __builtin_sqrt(square_sum(a)), size = norm(a),
                 atol = fmax(number_arg(check, 1), 0), given = number_arg(check, 2),
                 rtol = isnan(given) ? (atol > 0 ? 0 : check->unit) : given;
    const double most = fmax(atol, rtol * largest), lowest = fmax(atol, rtol * largest / __builtin_sqrt(least));
    const double inverse = norm(x);
    if (!isfinite(most)) return -1;
    if (inverse * lowest > __builtin_sqrt((double)a.n) * (1 + THRESHOLD * check->unit)) return INFINITY;
    matrix ax = product(check->workspace, a, x), xa = product(check->workspace, x, a);
    matrix xax = product(check->workspace, xa, x), axa = product(check->workspace, ax, a);
    const double left_out = __builtin_sqrt((double)a.m) * most, off = distance(check->workspace, axa, a);
    const double twice = size * inverse;
    double worst = part(check, fmax(off - left_out, 0), twice * size);
    worst = fmax(worst, part(check, distance(check->workspace, xax, x), twice * inverse));
    return fmax(worst, part(check, fmax(asymmetry(check, ax), asymmetry(check, xa)), twice));
}

/* L Lᵀ, or Uᵀ U, of the triangle that arg `i` holds. */
static matrix of_cholesky(const check *check, uint32_t i, bool upper)
{
    matrix l = arg(check, i);
    if (!l.x) return l;
    l = triangle(check->workspace, l, upper, false, l.m, l.n);
    matrix t = transposed(check->workspace, l);
    return upper ? product(check->workspace, t, l) : product(check->workspace, l, t);
}

static matrix magnitudes(workspace *workspace, matrix a)
{
    matrix y = new_matrix(workspace, a.m, a.n);
    for (int64_t i = 0; y.x && i < a.m * a.n; i++) y.x[i] = fabs(a.x[i]);
    return y;
}

/* L^-1, row by row */
static matrix inverse_of_lower(workspace *workspace, matrix l)
{
    matrix s = identity(workspace, l.m);
    for (int64_t i = 0; s.x && i < l.m; i++) {
        for (int64_t k = 0; k < i; k++)
            for (int64_t j = 0; j <= k; j++) s.x[i * l.m + j] -= l.x[i * l.m + k] * s.x[k * l.m + j];
        for (int64_t j = 0; j <= i; j++) s.x[i * l.m + j] /= l.x[i * l.m + i];
    }
    return s;
}

/* LAPACK inverts the triangle first and multiplies then: with S = L^-1, X = S'S. Of the two residuals SL - I and LS - I
 * one is small, |S||L| or |L||S| times the rounding: which one depends on the triangle and the library. Either way X is
 * off by at most |S'||S||L||S| and its transpose (running error analysis, to first order), though XA - I may exceed
 * what norms of A and X tell by the condition of L. */
static double off_by_two_steps(const check *check, matrix l, matrix x)
{
    matrix s = inverse_of_lower(check->workspace, l),
           exact = product(check->workspace, transposed(check->workspace, s), s);
    matrix size = magnitudes(check->workspace, s), turned = transposed(check->workspace, size);
    matrix of_l = product(check->workspace, magnitudes(check->workspace, l), size);
    matrix allowed = product(check->workspace, product(check->workspace, turned, size), of_l);
    const double off =
        part(check, distance(check->workspace, exact, x), norm(allowed) + norm(transposed(check->workspace, allowed)));
    return off * THRESHOLD / TWO_STEPS;
}

static double check_cholesky_inverse(const check *check)
{
    const bool upper = flag(check, 1);
    matrix a = of_cholesky(check, 0, upper), x = result(check, 0, 2), l = arg(check, 0);
    if (!a.x || !x.x || !l.x) return -1;
    const double residual = inverse_of(check, a, x); /* of what solves with the factors, it is small */
    if (residual <= THRESHOLD) return residual;
    l = triangle(check->workspace, l, upper, false, l.m, l.n);
    return fmin(residual, off_by_two_steps(check, upper ? transposed(check->workspace, l) : l, x));
}

static double solution(const check *check, matrix a, matrix x, matrix b)
{
    const double size = norm(a) * norm(x) + norm(b);
    return part(check, distance(check->workspace, product(check->workspace, a, x), b), size);
}

static double check_cholesky_solve(const check *check)
{
    matrix b = arg(check, 0), a = of_cholesky(check, 1, flag(check, 2)), x = result(check, 0, 2);
    return a.x && b.x && x.x ? solution(check, a, x, b) : -1;
}

/* Row i was exchanged with row pivots[i], counted from 1. False: there is no such row. */
static bool exchange_rows(const check *check, const lb_tensor *pivots, matrix matrix, bool back)
{
    const int64_t k = pivots->layout.shape[pivots->layout.ndim - 1], base = offset_of(pivots, check->b, 1);
    for (int64_t s = 0; s < k; s++) {
        const int64_t i = back ? k - 1 - s : s,
                      p = (int64_t)element(pivots, base + i * pivots->layout.stride[pivots->layout.ndim - 1]) - 1;
        if (p < 0 || p >= matrix.m || i >= matrix.m) return false;
        for (int64_t j = 0; p != i && j < matrix.n; j++) {
            const double t = matrix.x[i * matrix.n + j];
            matrix.x[i * matrix.n + j] = matrix.x[p * matrix.n + j];
            matrix.x[p * matrix.n + j] = t;
        }
    }
    return true;
}

/* LU and exchanges of a, which are results `first` and the one after it. */
static double lu_of(const check *check, matrix a, uint32_t first)
{
    matrix lu = result(check, first, 2);
    const lb_tensor *pivots = check->n_results > first + 1 ? &check->results[first + 1] : NULL;
    if (!a.x || !lu.x || !pivots || !pivots->data) return -1;
    const int64_t k = a.m < a.n ? a.m : a.n;
    if (!exchange_rows(check, pivots, a, false)) return INFINITY;
    matrix l = triangle(check->workspace, lu, false, true, a.m, k),
           u = triangle(check->workspace, lu, true, false, k, a.n);
    const double size = norm(l) * norm(u);
    return part(check, distance(check->workspace, product(check->workspace, l, u), a), size);
}

static double check_lu(const check *check)
{
    return gave_up(check, 2) ? -1 : lu_of(check, arg(check, 0), 0);
}

/* P, L, U */
static double check_lu_parts(const check *check)
{
    matrix a = arg(check, 0), p = result(check, 0, 2), l = result(check, 1, 2), u = result(check, 2, 2);
    if (!a.x || !p.x || !l.x || !u.x) return -1;
    if (!is_triangular(l, false) || !is_triangular(u, true)) return INFINITY;
    const double size = norm(l) * norm(u);
    return fmax(part(check, orthogonality(check->workspace, p), 1),
                part(check,
                     distance(check->workspace, product(check->workspace, p, product(check->workspace, l, u)), a),
                     size));
}

/* The LU that stands beside a determinant or a solution, from result `first` on, is of A or of its transpose, as
 * library and layout have it. Which one cannot be seen from single rows: a row may be equal to its column. */
static double lu_of_either(const check *check, uint32_t first)
{
    matrix matrix = arg(check, 0), turned = {0};
    if (!matrix.x || matrix.m != matrix.n) return lu_of(check, matrix, first);
    turned = transposed(check->workspace, matrix);
    const double plain = lu_of(check, matrix, first), other = lu_of(check, turned, first);
    return fmin(plain, other);
}

static double check_solve(const check *check)
{
    const bool vector = check->args[1].tag == LB_OPERAND_TENSOR &&
                        check->args[1].tensor.layout.ndim == check->args[0].tensor.layout.ndim - 1;
    matrix a = arg(check, 0),
           b = vector ? read_matrix(check->workspace, &check->args[1].tensor, check->b, 1) : arg(check, 1),
           x = result(check, 0, vector ? 1 : 2);
    if (!a.x || !b.x || !x.x || gave_up(check, 3)) return -1;
    const double factors = lu_of_either(check, 1);
    if (vector || check->n_args < 3 || flag(check, 2)) return fmax(factors, solution(check, a, x, b));
    return fmax(factors, solution(check, transposed(check->workspace, a), transposed(check->workspace, x),
                                  transposed(check->workspace, b))); /* X A = B */
}

static double number(const check *check, uint32_t i)
{
    const lb_tensor *tensor = i < check->n_results ? &check->results[i] : NULL;
    return is_real(tensor) ? element(tensor, offset_of(tensor, check->b, 0)) : NAN;
}

/* A determinant is the product of its LU's diagonal, its sign that of the exchanges. */
static double determinant_of(const check *check, uint32_t first, bool logarithm)
{
    const double factors = lu_of_either(check, first);
    matrix lu = result(check, first, 2);
    const lb_tensor *pivots = first + 1 < check->n_results ? &check->results[first + 1] : NULL;
    if (!lu.x || !pivots || !pivots->data || factors < 0) return -1;
    double sign = 1, large = 1, small = 1, sum = 0, magnitude = 0;
    for (int64_t k = 0; k < lu.m; k++) {
        const double d = lu.x[k * lu.n + k];
        if ((int64_t)element(pivots, offset_of(pivots, check->b, 1) +
                                         k * pivots->layout.stride[pivots->layout.ndim - 1]) != k + 1)
            sign = -sign;
        if (d == 0) return factors;
        sign = d < 0 ? -sign : sign;
        *(fabs(d) > 1 ? &large : &small) *= fabs(d);
        sum += lb_log(fabs(d)), magnitude += 1 + fabs(lb_log(fabs(d)));
    }
    if (logarithm) {
        const double off = fabs(number(check, 0) - sign) == 0 ? fabs(number(check, 1) - sum) : INFINITY;
        return fmax(factors, part(check, off, magnitude));
    }
    const bool fits =
        small > FLT_MIN && large < FLT_MAX; /* elsewhere a product of f32 may leave the range on the way */
    const double product = small * large;
    return fits ? fmax(factors, part(check, fabs(number(check, 0) - sign * product), product)) : factors;
}
static double check_det(const check *check)
{
    return determinant_of(check, 1, false);
}
static double check_slogdet(const check *check)
{
    return determinant_of(check, 2, true);
}

/* LU, pivots, B, left, adjoint */
static double check_lu_solve(const check *check)
{
    matrix lu = arg(check, 0), b = arg(check, 2), x = result(check, 0, 2);
    if (!lu.x || !b.x || !x.x || lu.m != lu.n || check->args[1].tag != LB_OPERAND_TENSOR) return -1;
    matrix a = product(check->workspace, triangle(check->workspace, lu, false, true, lu.m, lu.m),
                       triangle(check->workspace, lu, true, false, lu.m, lu.m));
    if (!a.x || !exchange_rows(check, &check->args[1].tensor, a, true)) return INFINITY;
    if (flag(check, 4)) a = transposed(check->workspace, a);
    if (check->n_args < 4 || flag(check, 3)) return solution(check, a, x, b);
    return solution(check, transposed(check->workspace, a), transposed(check->workspace, x),
                    transposed(check->workspace, b)); /* X A = B */
}

/* b, A, upper, transpose, unitriangular */
static double check_triangular(const check *check)
{
    matrix b = arg(check, 0), a = arg(check, 1), x = result(check, 0, 2);
    if (!a.x || !b.x || !x.x) return -1;
    a = triangle(check->workspace, a, check->n_args < 3 || flag(check, 2), flag(check, 4), a.m, a.n);
    return solution(check, flag(check, 3) ? transposed(check->workspace, a) : a, x, b);
}

static const struct factorisation {
    const char *name;
    double (*check)(const check *);
} known[] = {
    {"aten::linalg_qr", check_qr},
    {"aten::_linalg_eigh", check_eigh},
    {"aten::linalg_eigh", check_eigh},
    {"aten::_linalg_svd", check_svd},
    {"aten::linalg_svd", check_svd},
    {"aten::linalg_cholesky_ex", check_cholesky},
    {"aten::linalg_cholesky", check_cholesky},
    {"aten::linalg_inv_ex", check_inverse},
    {"aten::linalg_inv", check_inverse},
    {"aten::linalg_pinv", check_pseudoinverse},
    {"aten::linalg_pinv.atol_rtol_tensor", check_pseudoinverse},
    {"aten::cholesky_inverse", check_cholesky_inverse},
    {"aten::cholesky_solve", check_cholesky_solve},
    {"aten::_linalg_solve_ex", check_solve},
    {"aten::linalg_lu_factor_ex", check_lu},
    {"aten::linalg_lu", check_lu_parts},
    {"aten::linalg_lu_solve", check_lu_solve},
    {"aten::triangular_solve", check_triangular},
    {"aten::_linalg_det", check_det},
    {"aten::_linalg_slogdet", check_slogdet},
};

static const struct factorisation *find(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) return &known[i];
    return NULL;
}

bool lb_factorisation_known(const char *name)
{
    return find(name) != NULL;
}

double lb_factorisation_ratio(const char *name, const lb_operand *args, uint32_t n_args, const lb_tensor *results,
                              uint32_t n_results)
{
    const struct factorisation *factorisation = find(name);
    if (!factorisation || !n_args || args[0].tag != LB_OPERAND_TENSOR || !is_real(&args[0].tensor)) return NAN;
    const lb_tensor *a = &args[0].tensor;
    if (a->layout.ndim < 2) return NAN;
    int64_t n = 0;
    for (int d = a->layout.ndim - 2; d < a->layout.ndim; d++) n = a->layout.shape[d] > n ? a->layout.shape[d] : n;
    if (n == 0 || n > MAX_SIZE) return NAN;
    workspace workspace = {{0}, 0, false};
    double worst = -1;
    for (int64_t b = 0, end = batches_of(a, 2); b < end && !(worst > THRESHOLD); b++) {
        const check check = {
            args, n_args, results, n_results, b, &workspace, (double)n * (a->dtype == LB_F64 ? 0x1p-52 : 0x1p-23)};
        const double found = factorisation->check(&check);
        if (!workspace.failed && found > worst) worst = found;
        workspace.failed = false;
        clear(&workspace);
    }
    return worst < 0 ? NAN : worst / THRESHOLD;
}
