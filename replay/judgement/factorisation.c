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

static matrix new_matrix(workspace *w, int64_t m, int64_t n)
{
    matrix a = {NULL, m, n};
    if (w->n < 48) a.x = calloc((size_t)(m * n + 1), sizeof *a.x);
    if (a.x)
        w->blocks[w->n++] = a.x;
    else
        w->failed = true;
    return a;
}

static void clear(workspace *w)
{
    while (w->n) free(w->blocks[--w->n]);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool is_real(const lb_tensor *t)
{
    return t && t->data && (t->dtype == LB_F32 || t->dtype == LB_F64);
}

static int64_t batches_of(const lb_tensor *t, int core)
{
    int64_t n = 1;
    for (int d = 0; d < t->layout.ndim - core; d++) n *= t->layout.shape[d];
    return n;
}

/* Elements before sample `b` of the leading dimensions. */
static int64_t offset_of(const lb_tensor *t, int64_t b, int core)
{
    int64_t at = 0;
    for (int d = t->layout.ndim - core - 1; d >= 0; d--) {
        at += b % t->layout.shape[d] * t->layout.stride[d];
        b /= t->layout.shape[d];
    }
    return at;
}

static double element(const lb_tensor *t, int64_t at)
{
    return lb_to_f64(t->dtype, (const char *)t->data + at * (int64_t)(lb_dtype_bits(t->dtype) / 8));
}

/* Matrix `b` of t; vectors (core 1) are one column. */
static matrix read_matrix(workspace *w, const lb_tensor *t, int64_t b, int core)
{
    const lb_layout *l = &t->layout;
    if (!is_real(t) || l->ndim < core) return (matrix){0};
    const int rows = l->ndim - core;
    matrix a = new_matrix(w, l->shape[rows], core == 2 ? l->shape[rows + 1] : 1);
    const int64_t base = offset_of(t, b, core);
    for (int64_t i = 0; a.x && i < a.m; i++)
        for (int64_t j = 0; j < a.n; j++) {
            a.x[i * a.n + j] = element(t, base + i * l->stride[rows] + (core == 2 ? j * l->stride[rows + 1] : 0));
            if (!isfinite(a.x[i * a.n + j])) return (matrix){0};
        }
    return a;
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static matrix transposed(workspace *w, matrix a)
{
    matrix t = new_matrix(w, a.n, a.m);
    for (int64_t i = 0; t.x && i < a.m; i++)
        for (int64_t j = 0; j < a.n; j++) t.x[j * a.m + i] = a.x[i * a.n + j];
    return t;
}

static matrix product(workspace *w, matrix a, matrix b)
{
    matrix c = new_matrix(w, a.m, b.n);
    if (a.n != b.m) w->failed = true;
    if (w->failed) return c;
    for (int64_t i = 0; i < a.m; i++)
        for (int64_t k = 0; k < a.n; k++) {
            const double factor = a.x[i * a.n + k], *row = b.x + k * b.n;
            for (int64_t j = 0; j < b.n; j++) c.x[i * b.n + j] += factor * row[j];
        }
    return c;
}

static double norm(matrix a) /* the largest sum of magnitudes of a column */
{
    double largest = 0;
    for (int64_t j = 0; j < a.n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a.m; i++) sum += fabs(a.x[i * a.n + j]);
        largest = fmax(largest, sum);
    }
    return largest;
}

static double distance(workspace *w, matrix a, matrix b)
{
    if (w->failed || a.m != b.m || a.n != b.n) return INFINITY;
    for (int64_t i = 0; i < a.m * a.n; i++) a.x[i] -= b.x[i];
    return norm(a);
}

static matrix identity(workspace *w, int64_t n)
{
    matrix a = new_matrix(w, n, n);
    for (int64_t i = 0; a.x && i < n; i++) a.x[i * n + i] = 1;
    return a;
}

static double orthogonality(workspace *w, matrix q)
{
    return distance(w, product(w, transposed(w, q), q), identity(w, q.n));
}

/* The columns of a scaled by the numbers of d, the others left out. */
static matrix scaled(workspace *w, matrix a, matrix d)
{
    matrix y = new_matrix(w, a.m, d.m);
    for (int64_t i = 0; y.x && d.m <= a.n && i < a.m; i++)
        for (int64_t j = 0; j < d.m; j++) y.x[i * d.m + j] = a.x[i * a.n + j] * d.x[j];
    return y;
}

/* The symmetric matrix of which one triangle is read. */
static void mirror(matrix a, bool upper)
{
    for (int64_t i = 0; i < a.m; i++)
        for (int64_t j = 0; j < i && j < a.n; j++) {
            if (upper)
                a.x[i * a.n + j] = a.x[j * a.n + i];
            else
                a.x[j * a.n + i] = a.x[i * a.n + j];
        }
}

static bool is_triangular(matrix a, bool upper)
{
    for (int64_t i = 0; i < a.m; i++)
        for (int64_t j = 0; j < a.n; j++)
            if ((upper ? j < i : j > i) && a.x[i * a.n + j] != 0) return false;
    return true;
}

/* One triangle of a, the diagonal of ones where `unit`. */
static matrix triangle(workspace *w, matrix a, bool upper, bool unit, int64_t m, int64_t n)
{
    matrix t = new_matrix(w, m, n);
    for (int64_t i = 0; t.x && i < m; i++)
        for (int64_t j = 0; j < n; j++)
            if (upper ? j >= i : j <= i) t.x[i * n + j] = unit && i == j ? 1 : a.x[i * a.n + j];
    return t;
}

static bool is_sorted(matrix d, int direction)
{
    for (int64_t i = 1; i < d.m; i++)
        if ((d.x[i] - d.x[i - 1]) * direction < 0) return false;
    return true;
}

static double square_sum(matrix a)
{
    double sum = 0;
    for (int64_t i = 0; i < a.m * a.n; i++) sum += a.x[i] * a.x[i];
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
    workspace *w;
    double unit; /* n ulp */
} check;

static matrix arg(const check *c, uint32_t i)
{
    const lb_operand none = {.tag = LB_OPERAND_NONE}, *o = i < c->n_args ? &c->args[i] : &none;
    if (o->tag != LB_OPERAND_TENSOR || batches_of(&o->tensor, 2) != batches_of(&c->args[0].tensor, 2))
        return (matrix){0};
    return read_matrix(c->w, &o->tensor, c->b, 2);
}
static matrix result(const check *c, uint32_t i, int core)
{
    return i < c->n_results && c->results[i].data && lb_layout_numel(&c->results[i].layout)
               ? read_matrix(c->w, &c->results[i], c->b, core)
               : (matrix){0};
}
static bool flag(const check *c, uint32_t i)
{
    return i < c->n_args && c->args[i].tag != LB_OPERAND_NONE && c->args[i].i != 0;
}
static char letter(const check *c, uint32_t i, char otherwise)
{
    return i < c->n_args && c->args[i].tag == LB_OPERAND_STRING && c->args[i].string ? c->args[i].string[0] : otherwise;
}
/* Of something as large as `size`. */
static double part(const check *c, double residual, double size)
{
    return residual == 0 ? 0 : size > 0 ? residual / (size * c->unit) : INFINITY;
}
/* What a library could not factorise it left undone, and said so. */
static bool gave_up(const check *c, uint32_t info)
{
    const lb_tensor *t = info < c->n_results ? &c->results[info] : NULL;
    return t && t->data && lb_layout_numel(&t->layout) && element(t, offset_of(t, c->b, 0)) != 0;
}

static double check_qr(const check *c)
{
    matrix a = arg(c, 0), q = result(c, 0, 2), r = result(c, 1, 2);
    double worst = -1;
    if (q.x) worst = part(c, orthogonality(c->w, q), 1);
    if (!a.x || !r.x) return worst;
    if (!is_triangular(r, true)) return INFINITY;
    const double size = norm(a);
    if (q.x) return fmax(worst, part(c, distance(c->w, product(c->w, q, r), a), size));
    matrix gram = product(c->w, transposed(c->w, a), a); /* Q was not asked for: RᵀR = AᵀA */
    return part(c, distance(c->w, product(c->w, transposed(c->w, r), r), gram), size * norm(transposed(c->w, a)));
}

static double check_eigh(const check *c)
{
    matrix a = arg(c, 0), d = result(c, 0, 1), v = result(c, 1, 2);
    double worst = -1;
    if (v.x) worst = part(c, orthogonality(c->w, v), 1);
    if (!a.x || !d.x) return worst;
    if (!is_sorted(d, 1)) return INFINITY;
    mirror(a, letter(c, 1, 'L') == 'U' || letter(c, 1, 'L') == 'u');
    const double size = norm(a);
    if (v.x) return fmax(worst, part(c, distance(c->w, product(c->w, a, v), scaled(c->w, v, d)), size));
    double trace = 0, sum = 0, squares = square_sum(a); /* vectors were not asked for: the first two moments */
    for (int64_t i = 0; i < a.m; i++) trace += a.x[i * a.n + i], sum += d.x[i];
    return fmax(part(c, fabs(trace - sum), size * (double)a.m),
                part(c, fabs(squares - square_sum(d)), 2 * size * size * (double)a.m));
}

static double check_svd(const check *c)
{
    matrix a = arg(c, 0), u = result(c, 0, 2), s = result(c, 1, 1), vh = result(c, 2, 2);
    double worst = -1;
    if (u.x) worst = part(c, orthogonality(c->w, u), 1);
    if (vh.x) worst = fmax(worst, part(c, orthogonality(c->w, transposed(c->w, vh)), 1));
    if (!a.x || !s.x) return worst;
    if (!is_sorted(s, -1) || s.x[s.m - 1] < 0) return INFINITY;
    const double size = fmax(norm(a), norm(transposed(c->w, a)));
    if (!u.x || !vh.x) return part(c, fabs(square_sum(a) - square_sum(s)), 2 * size * size * (double)s.m);
    vh.m = s.m; /* rows beyond belong to full_matrices */
    return fmax(worst, part(c, distance(c->w, product(c->w, scaled(c->w, u, s), vh), a), size));
}

static double check_cholesky(const check *c)
{
    matrix a = arg(c, 0), l = result(c, 0, 2);
    const bool upper = flag(c, 1);
    if (!a.x || !l.x || gave_up(c, 1)) return -1;
    if (!is_triangular(l, upper)) return INFINITY;
    mirror(a, upper);
    const double size = norm(a);
    matrix t = transposed(c->w, l);
    return part(c, distance(c->w, upper ? product(c->w, t, l) : product(c->w, l, t), a), size);
}

static double inverse_of(const check *c, matrix a, matrix x)
{
    const double size = norm(a) * norm(x);
    matrix left = product(c->w, x, a), right = product(c->w, a, x), one = identity(c->w, a.m);
    return part(c, fmin(distance(c->w, left, one), distance(c->w, right, one)), size);
}

static double check_inverse(const check *c)
{
    matrix a = arg(c, 0), x = result(c, 0, 2);
    return a.x && x.x && !gave_up(c, 1) ? inverse_of(c, a, x) : -1;
}

/* A number that is an argument, one for all matrices or one for each. NAN: none was given; infinite: not known. */
static double number_arg(const check *c, uint32_t i)
{
    if (i >= c->n_args || c->args[i].tag == LB_OPERAND_NONE) return NAN;
    if (c->args[i].tag != LB_OPERAND_TENSOR) return c->args[i].f;
    const lb_tensor *t = &c->args[i].tensor;
    const int64_t n = is_real(t) ? lb_layout_numel(&t->layout) : 0;
    return n == 1                                        ? element(t, 0)
           : n && n == batches_of(&c->args[0].tensor, 2) ? element(t, offset_of(t, c->b, 0))
                                                         : INFINITY;
}

static double asymmetry(const check *c, matrix a)
{
    return distance(c->w, transposed(c->w, a), a);
}

/* self, atol, rtol, hermitian. X is the pseudoinverse of what is left of A without its small singular values: AX and XA
 * are symmetric, XAX is X, and AXA is A but for what was left out, which is at most the tolerance. X itself is at most
 * its inverse. The largest singular value lies between |A|_F and that by the root of the smaller size. */
static double check_pseudoinverse(const check *c)
{
    matrix a = arg(c, 0), x = result(c, 0, 2);
    if (!a.x || !x.x) return -1;
    if (flag(c, 3)) mirror(a, false);
    const double least = (double)(a.m < a.n ? a.m : a.n), largest = __builtin_sqrt(square_sum(a)), size = norm(a),
                 atol = fmax(number_arg(c, 1), 0), given = number_arg(c, 2),
                 rtol = isnan(given) ? (atol > 0 ? 0 : c->unit) : given;
    const double most = fmax(atol, rtol * largest), lowest = fmax(atol, rtol * largest / __builtin_sqrt(least));
    const double inverse = norm(x);
    if (!isfinite(most)) return -1;
    if (inverse * lowest > __builtin_sqrt((double)a.n) * (1 + THRESHOLD * c->unit)) return INFINITY;
    matrix ax = product(c->w, a, x), xa = product(c->w, x, a);
    matrix xax = product(c->w, xa, x), axa = product(c->w, ax, a);
    const double left_out = __builtin_sqrt((double)a.m) * most, off = distance(c->w, axa, a);
    const double twice = size * inverse;
    double worst = part(c, fmax(off - left_out, 0), twice * size);
    worst = fmax(worst, part(c, distance(c->w, xax, x), twice * inverse));
    return fmax(worst, part(c, fmax(asymmetry(c, ax), asymmetry(c, xa)), twice));
}

/* L Lᵀ, or Uᵀ U, of the triangle that arg `i` holds. */
static matrix of_cholesky(const check *c, uint32_t i, bool upper)
{
    matrix l = arg(c, i);
    if (!l.x) return l;
    l = triangle(c->w, l, upper, false, l.m, l.n);
    matrix t = transposed(c->w, l);
    return upper ? product(c->w, t, l) : product(c->w, l, t);
}

static matrix magnitudes(workspace *w, matrix a)
{
    matrix y = new_matrix(w, a.m, a.n);
    for (int64_t i = 0; y.x && i < a.m * a.n; i++) y.x[i] = fabs(a.x[i]);
    return y;
}

/* L^-1, row by row */
static matrix inverse_of_lower(workspace *w, matrix l)
{
    matrix s = identity(w, l.m);
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
static double off_by_two_steps(const check *c, matrix l, matrix x)
{
    matrix s = inverse_of_lower(c->w, l), exact = product(c->w, transposed(c->w, s), s);
    matrix size = magnitudes(c->w, s), turned = transposed(c->w, size);
    matrix of_l = product(c->w, magnitudes(c->w, l), size);
    matrix allowed = product(c->w, product(c->w, turned, size), of_l);
    const double off = part(c, distance(c->w, exact, x), norm(allowed) + norm(transposed(c->w, allowed)));
    return off * THRESHOLD / TWO_STEPS;
}

static double check_cholesky_inverse(const check *c)
{
    const bool upper = flag(c, 1);
    matrix a = of_cholesky(c, 0, upper), x = result(c, 0, 2), l = arg(c, 0);
    if (!a.x || !x.x || !l.x) return -1;
    const double residual = inverse_of(c, a, x); /* of what solves with the factors, it is small */
    if (residual <= THRESHOLD) return residual;
    l = triangle(c->w, l, upper, false, l.m, l.n);
    return fmin(residual, off_by_two_steps(c, upper ? transposed(c->w, l) : l, x));
}

static double solution(const check *c, matrix a, matrix x, matrix b)
{
    const double size = norm(a) * norm(x) + norm(b);
    return part(c, distance(c->w, product(c->w, a, x), b), size);
}

static double check_cholesky_solve(const check *c)
{
    matrix b = arg(c, 0), a = of_cholesky(c, 1, flag(c, 2)), x = result(c, 0, 2);
    return a.x && b.x && x.x ? solution(c, a, x, b) : -1;
}

/* Row i was exchanged with row pivots[i], counted from 1. False: there is no such row. */
static bool exchange_rows(const check *c, const lb_tensor *pivots, matrix a, bool back)
{
    const int64_t k = pivots->layout.shape[pivots->layout.ndim - 1], base = offset_of(pivots, c->b, 1);
    for (int64_t s = 0; s < k; s++) {
        const int64_t i = back ? k - 1 - s : s,
                      p = (int64_t)element(pivots, base + i * pivots->layout.stride[pivots->layout.ndim - 1]) - 1;
        if (p < 0 || p >= a.m || i >= a.m) return false;
        for (int64_t j = 0; p != i && j < a.n; j++) {
            const double t = a.x[i * a.n + j];
            a.x[i * a.n + j] = a.x[p * a.n + j];
            a.x[p * a.n + j] = t;
        }
    }
    return true;
}

/* LU and exchanges of a, which are results `first` and the one after it. */
static double lu_of(const check *c, matrix a, uint32_t first)
{
    matrix lu = result(c, first, 2);
    const lb_tensor *pivots = c->n_results > first + 1 ? &c->results[first + 1] : NULL;
    if (!a.x || !lu.x || !pivots || !pivots->data) return -1;
    const int64_t k = a.m < a.n ? a.m : a.n;
    if (!exchange_rows(c, pivots, a, false)) return INFINITY;
    matrix l = triangle(c->w, lu, false, true, a.m, k), u = triangle(c->w, lu, true, false, k, a.n);
    const double size = norm(l) * norm(u);
    return part(c, distance(c->w, product(c->w, l, u), a), size);
}

static double check_lu(const check *c)
{
    return gave_up(c, 2) ? -1 : lu_of(c, arg(c, 0), 0);
}

/* P, L, U */
static double check_lu_parts(const check *c)
{
    matrix a = arg(c, 0), p = result(c, 0, 2), l = result(c, 1, 2), u = result(c, 2, 2);
    if (!a.x || !p.x || !l.x || !u.x) return -1;
    if (!is_triangular(l, false) || !is_triangular(u, true)) return INFINITY;
    const double size = norm(l) * norm(u);
    return fmax(part(c, orthogonality(c->w, p), 1),
                part(c, distance(c->w, product(c->w, p, product(c->w, l, u)), a), size));
}

/* The LU that stands beside a determinant or a solution, from result `first` on, is of A or of its transpose, as
 * library and layout have it. Which one cannot be seen from single rows: a row may be equal to its column. */
static double lu_of_either(const check *c, uint32_t first)
{
    matrix a = arg(c, 0), turned = {0};
    if (!a.x || a.m != a.n) return lu_of(c, a, first);
    turned = transposed(c->w, a);
    const double plain = lu_of(c, a, first), other = lu_of(c, turned, first);
    return fmin(plain, other);
}

static double check_solve(const check *c)
{
    const bool vector =
        c->args[1].tag == LB_OPERAND_TENSOR && c->args[1].tensor.layout.ndim == c->args[0].tensor.layout.ndim - 1;
    matrix a = arg(c, 0), b = vector ? read_matrix(c->w, &c->args[1].tensor, c->b, 1) : arg(c, 1),
           x = result(c, 0, vector ? 1 : 2);
    if (!a.x || !b.x || !x.x || gave_up(c, 3)) return -1;
    const double factors = lu_of_either(c, 1);
    if (vector || c->n_args < 3 || flag(c, 2)) return fmax(factors, solution(c, a, x, b));
    return fmax(factors, solution(c, transposed(c->w, a), transposed(c->w, x), transposed(c->w, b))); /* X A = B */
}

static double number(const check *c, uint32_t i)
{
    const lb_tensor *t = i < c->n_results ? &c->results[i] : NULL;
    return is_real(t) ? element(t, offset_of(t, c->b, 0)) : NAN;
}

/* A determinant is the product of its LU's diagonal, its sign that of the exchanges. */
static double determinant_of(const check *c, uint32_t first, bool logarithm)
{
    const double factors = lu_of_either(c, first);
    matrix lu = result(c, first, 2);
    const lb_tensor *pivots = first + 1 < c->n_results ? &c->results[first + 1] : NULL;
    if (!lu.x || !pivots || !pivots->data || factors < 0) return -1;
    double sign = 1, large = 1, small = 1, sum = 0, magnitude = 0;
    for (int64_t k = 0; k < lu.m; k++) {
        const double d = lu.x[k * lu.n + k];
        if ((int64_t)element(pivots, offset_of(pivots, c->b, 1) + k * pivots->layout.stride[pivots->layout.ndim - 1]) !=
            k + 1)
            sign = -sign;
        if (d == 0) return factors;
        sign = d < 0 ? -sign : sign;
        *(fabs(d) > 1 ? &large : &small) *= fabs(d);
        sum += lb_log(fabs(d)), magnitude += 1 + fabs(lb_log(fabs(d)));
    }
    if (logarithm) {
        const double off = fabs(number(c, 0) - sign) == 0 ? fabs(number(c, 1) - sum) : INFINITY;
        return fmax(factors, part(c, off, magnitude));
    }
    const bool fits =
        small > FLT_MIN && large < FLT_MAX; /* elsewhere a product of f32 may leave the range on the way */
    const double product = small * large;
    return fits ? fmax(factors, part(c, fabs(number(c, 0) - sign * product), product)) : factors;
}
static double check_det(const check *c)
{
    return determinant_of(c, 1, false);
}
static double check_slogdet(const check *c)
{
    return determinant_of(c, 2, true);
}

/* LU, pivots, B, left, adjoint */
static double check_lu_solve(const check *c)
{
    matrix lu = arg(c, 0), b = arg(c, 2), x = result(c, 0, 2);
    if (!lu.x || !b.x || !x.x || lu.m != lu.n || c->args[1].tag != LB_OPERAND_TENSOR) return -1;
    matrix a = product(c->w, triangle(c->w, lu, false, true, lu.m, lu.m), triangle(c->w, lu, true, false, lu.m, lu.m));
    if (!a.x || !exchange_rows(c, &c->args[1].tensor, a, true)) return INFINITY;
    if (flag(c, 4)) a = transposed(c->w, a);
    if (c->n_args < 4 || flag(c, 3)) return solution(c, a, x, b);
    return solution(c, transposed(c->w, a), transposed(c->w, x), transposed(c->w, b)); /* X A = B */
}

/* b, A, upper, transpose, unitriangular */
static double check_triangular(const check *c)
{
    matrix b = arg(c, 0), a = arg(c, 1), x = result(c, 0, 2);
    if (!a.x || !b.x || !x.x) return -1;
    a = triangle(c->w, a, c->n_args < 3 || flag(c, 2), flag(c, 4), a.m, a.n);
    return solution(c, flag(c, 3) ? transposed(c->w, a) : a, x, b);
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
    const struct factorisation *f = find(name);
    if (!f || !n_args || args[0].tag != LB_OPERAND_TENSOR || !is_real(&args[0].tensor)) return NAN;
    const lb_tensor *a = &args[0].tensor;
    if (a->layout.ndim < 2) return NAN;
    int64_t n = 0;
    for (int d = a->layout.ndim - 2; d < a->layout.ndim; d++) n = a->layout.shape[d] > n ? a->layout.shape[d] : n;
    if (n == 0 || n > MAX_SIZE) return NAN;
    workspace w = {{0}, 0, false};
    double worst = -1;
    for (int64_t b = 0, end = batches_of(a, 2); b < end && !(worst > THRESHOLD); b++) {
        const check c = {args, n_args, results, n_results, b, &w, (double)n * (a->dtype == LB_F64 ? 0x1p-52 : 0x1p-23)};
        const double found = f->check(&c);
        if (!w.failed && found > worst) worst = found;
        w.failed = false;
        clear(&w);
    }
    return worst < 0 ? NAN : worst / THRESHOLD;
}
