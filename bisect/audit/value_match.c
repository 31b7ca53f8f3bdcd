/* See value_match.h. */
#include "value_match.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1024, GRIDS = 4 };
static const lb_dtype grids[GRIDS] = {LB_BF16, LB_F16, LB_E4M3FN, LB_E5M2};

/* Both tensors as f64, piece by piece in row-major order. */
typedef struct walk {
    const lb_tensor *a, *b;
    lb_rows ra, rb;
    int64_t ia, ib; /* elements of the current rows that were taken */
} walk;

static walk walk_of(const lb_tensor *a, const lb_tensor *b)
{
    walk w = {a, b, lb_rows_of(&a->layout), lb_rows_of(&b->layout), 0, 0};
    w.ia = w.ra.count, w.ib = w.rb.count; /* the first rows are still to come */
    return w;
}

static size_t take(const lb_tensor *t, lb_rows *r, int64_t *done, size_t most, double *to)
{
    size_t n = 0;
    while (n < most) {
        if (*done == r->count) {
            if (!lb_rows_next(r)) break;
            *done = 0;
        }
        size_t more = (size_t)(r->count - *done) < most - n ? (size_t)(r->count - *done) : most - n;
        const char *at = (const char *)t->data + (r->offset + *done * r->stride) * (int64_t)lb_dtype_bits(t->dtype) / 8;
        lb_load_f64_strided(to + n, t->dtype, at, (ptrdiff_t)r->stride, more);
        *done += (int64_t)more;
        n += more;
    }
    return n;
}

static size_t walk_next(walk *w, double *a, double *b)
{
    size_t n = take(w->a, &w->ra, &w->ia, PIECE, a);
    return take(w->b, &w->rb, &w->ib, n, b);
}

static bool same(const double *a, const double *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* The first dtype such that rounding one side to it gives the other; LB_NO_DTYPE. `cast`: the sides' own dtypes alone. */
static lb_dtype rounding_between(const lb_tensor *a, const lb_tensor *b, bool cast)
{
    const lb_cast once = {.exact = true};
    double x[PIECE], y[PIECE], rounded[PIECE];
    for (int k = 0; k < GRIDS; k++) {
        const bool own = grids[k] == a->dtype || grids[k] == b->dtype;
        bool forth = grids[k] != a->dtype, back = grids[k] != b->dtype;
        if (cast != own) continue;
        walk w = walk_of(a, b);
        for (size_t n; (forth || back) && (n = walk_next(&w, x, y)) > 0;) {
            memcpy(rounded, x, n * sizeof *x);
            if (forth) lb_round_to_grid_f64(rounded, n, grids[k], &once);
            forth = forth && same(rounded, y, n);
            memcpy(rounded, y, n * sizeof *y);
            if (back) lb_round_to_grid_f64(rounded, n, grids[k], &once);
            back = back && same(rounded, x, n);
        }
        if (forth || back) return grids[k];
    }
    if (cast && a->dtype != b->dtype && (a->dtype == LB_F32 || b->dtype == LB_F32)) { /* f64 and f32 */
        walk w = walk_of(a, b);
        bool equal = true;
        for (size_t n; equal && (n = walk_next(&w, x, y)) > 0;) {
            for (size_t i = 0; i < n; i++) x[i] = (double)(float)x[i], y[i] = (double)(float)y[i];
            equal = same(x, y, n);
        }
        if (equal) return LB_F32;
    }
    return LB_NO_DTYPE;
}

/* The wide side stored as the narrow one has its bits: the common case of a cast, at the speed of memory. NaNs are left to others. */
static bool is_plain_cast(const lb_tensor *wide, const lb_tensor *narrow)
{
    float numbers[PIECE];
    char stored[PIECE * sizeof(float)];
    const int64_t n = lb_layout_numel(&wide->layout);
    const size_t wide_bytes = lb_dtype_bits(wide->dtype) / 8, narrow_bytes = lb_dtype_bits(narrow->dtype) / 8;
    if (wide->dtype == LB_F64 || wide_bytes <= narrow_bytes || !lb_layout_is_contiguous(&wide->layout) ||
        !lb_layout_is_contiguous(&narrow->layout))
        return false;
    for (int64_t i = 0; i < n; i += PIECE) {
        size_t take_n = (size_t)(n - i < PIECE ? n - i : PIECE);
        lb_load_f32(numbers, wide->dtype, (const char *)wide->data + (size_t)i * wide_bytes, take_n);
        lb_store_f32(narrow->dtype, stored, numbers, take_n, NULL);
        if (memcmp(stored, (const char *)narrow->data + (size_t)i * narrow_bytes, take_n * narrow_bytes) != 0)
            return false;
    }
    return true;
}

static int64_t worst_of(const lb_tensor *a, const lb_tensor *b)
{
    double x[PIECE], y[PIECE], most = -1;
    int64_t at = 0, worst = 0;
    walk w = walk_of(a, b);
    for (size_t n; (n = walk_next(&w, x, y)) > 0; at += (int64_t)n)
        for (size_t i = 0; i < n; i++) {
            double d = fabs(x[i] - y[i]);
            if (isnan(d)) d = isnan(x[i]) && isnan(y[i]) ? 0 : INFINITY;
            if (d > most) most = d, worst = at + (int64_t)i;
        }
    return worst;
}

lb_status lb_value_match_of(const lb_tensor *a, const lb_tensor *b, lb_value_match *m, lb_err *err)
{
    *m = (lb_value_match){LB_AUDIT_IS_IDENTICAL, LB_NO_DTYPE, {0}, -1};
    LB_TRY(lb_compare_numbers(a, b, &m->difference, err));
    if (m->difference.differing == 0) {
        m->match = a->dtype == b->dtype ? LB_AUDIT_IS_IDENTICAL : LB_AUDIT_IS_CAST;
        return LB_OK;
    }
    m->match = LB_AUDIT_IS_CAST;
    if (lb_dtype_is_float(a->dtype) && lb_dtype_is_float(b->dtype) && lb_dtype_bits(a->dtype) >= 8 &&
        lb_dtype_bits(b->dtype) >= 8 && (is_plain_cast(a, b) || is_plain_cast(b, a)))
        return LB_OK;
    m->worst = worst_of(a, b);
    m->match = LB_AUDIT_IS_DIFFERENT;
    if (!lb_dtype_is_float(a->dtype) || !lb_dtype_is_float(b->dtype) || lb_dtype_bits(a->dtype) < 8 ||
        lb_dtype_bits(b->dtype) < 8)
        return LB_OK;
    if (a->dtype != b->dtype && rounding_between(a, b, true) != LB_NO_DTYPE)
        m->match = LB_AUDIT_IS_CAST;
    else if ((m->rounded = rounding_between(a, b, false)) != LB_NO_DTYPE ||
             (m->difference.max_ulp <= 1 && !m->difference.nonfinite))
        m->match = LB_AUDIT_IS_ROUNDING;
    if (m->match == LB_AUDIT_IS_DIFFERENT) LB_TRY(lb_compare(a, b, &m->difference, err));
    return LB_OK;
}
