/* See value_match.h. */
#include "audit/value_match.h"

#include "compare/pattern.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1024, SHARE = 256 * PIECE, GRIDS = 4 };
static const lb_dtype grids[GRIDS] = {LB_BF16, LB_F16, LB_E4M3FN, LB_E5M2};

/* ---- both tensors as numbers of one type, piece by piece in row-major order -------------------------------------- */

/* f32 holds the numbers of both sides, else f64 does. */
typedef union piece {
    float f32[PIECE];
    double f64[PIECE];
} piece;

typedef struct walk {
    const lb_tensor *a, *b;
    bool short_floats;
    int64_t at, end;
    lb_rows ra, rb; /* of sides that are not dense */
    int64_t ia, ib; /* elements of the current rows that were taken */
} walk;

static bool fits_f32(const lb_tensor *tensor)
{
    return tensor->dtype == LB_F32 || (lb_dtype_is_float(tensor->dtype) && lb_dtype_bits(tensor->dtype) <= 16);
}

static bool are_dense(const lb_tensor *a, const lb_tensor *b)
{
    return lb_layout_is_contiguous(&a->layout) && lb_layout_is_contiguous(&b->layout);
}

/* Elements from `from` to `end`; all of them, unless both sides are dense. */
static walk walk_of(const lb_tensor *a, const lb_tensor *b, int64_t from, int64_t end)
{
    walk walk = {a, b, fits_f32(a) && fits_f32(b), from, end, lb_rows_of(&a->layout), lb_rows_of(&b->layout), 0, 0};
    walk.ia = walk.ra.count, walk.ib = walk.rb.count; /* the first rows are still to come */
    return walk;
}

static void load(const walk *walk, const lb_tensor *tensor, int64_t element, int64_t stride, size_t n, piece *to,
                 size_t at)
{
    const char *from = (const char *)tensor->data + element * (int64_t)lb_dtype_bits(tensor->dtype) / 8;
    if (walk->short_floats)
        lb_load_f32_strided(to->f32 + at, tensor->dtype, from, (ptrdiff_t)stride, n);
    else
        lb_load_f64_strided(to->f64 + at, tensor->dtype, from, (ptrdiff_t)stride, n);
}

static void take(const walk *walk, const lb_tensor *tensor, lb_rows *rows, int64_t *done, size_t n, piece *to)
{
    for (size_t at = 0; at < n;) {
        if (*done == rows->count) {
            LB_CHECK(lb_rows_next(rows));
            *done = 0;
        }
        const size_t more = (size_t)(rows->count - *done) < n - at ? (size_t)(rows->count - *done) : n - at;
        load(walk, tensor, rows->offset + *done * rows->stride, rows->stride, more, to, at);
        *done += (int64_t)more;
        at += more;
    }
}

static size_t walk_next(walk *walk, piece *x, piece *y)
{
    const size_t n = (size_t)(walk->end - walk->at < PIECE ? walk->end - walk->at : PIECE);
    if (are_dense(walk->a, walk->b)) {
        load(walk, walk->a, walk->at, 1, n, x, 0);
        load(walk, walk->b, walk->at, 1, n, y, 0);
    } else {
        take(walk, walk->a, &walk->ra, &walk->ia, n, x);
        take(walk, walk->b, &walk->rb, &walk->ib, n, y);
    }
    walk->at += (int64_t)n;
    return n;
}

/* Elements that a thread takes at a time. */
static int64_t share_of(const lb_tensor *a, const lb_tensor *b)
{
    const int64_t n = lb_layout_numel(&a->layout);
    return are_dense(a, b) || n == 0 ? SHARE : n;
}

/* ---- roundings --------------------------------------------------------------------------------------------------- */

#define SAME(name, type)                                                                                               \
    static bool name(const type *a, const type *b, size_t n)                                                           \
    {                                                                                                                  \
        size_t differ = 0;                                                                                             \
        for (size_t i = 0; i < n; i++) differ += (a[i] != b[i]) & !((a[i] != a[i]) & (b[i] != b[i]));                  \
        return differ == 0;                                                                                            \
    }
SAME(same_f32, float)
SAME(same_f64, double)

/* Whether `from`, rounded to a dtype (LB_F32, where f64 is meant), is `to`. */
static bool is_rounded(const walk *walk, const piece *from, const piece *to, lb_dtype dtype, size_t n)
{
    const lb_cast once = {.exact = true};
    piece rounded;
    if (walk->short_floats) {
        memcpy(rounded.f32, from->f32, n * sizeof *from->f32);
        lb_round_to_grid_f32(rounded.f32, n, dtype, &once);
        return same_f32(rounded.f32, to->f32, n);
    }
    memcpy(rounded.f64, from->f64, n * sizeof *from->f64);
    if (dtype == LB_F32)
        for (size_t i = 0; i < n; i++) rounded.f64[i] = (double)(float)rounded.f64[i];
    else
        lb_round_to_grid_f64(rounded.f64, n, dtype, &once);
    return same_f64(rounded.f64, to->f64, n);
}

/* Whether one side, the same one in every place, rounded to a dtype is the other. */
static bool is_rounding(const lb_tensor *a, const lb_tensor *b, lb_dtype dtype)
{
    const int64_t n = lb_layout_numel(&a->layout), share = share_of(a, b), shares = (n + share - 1) / share;
    bool forth = dtype != a->dtype, back = dtype != b->dtype;
#pragma omp parallel for schedule(static) if (shares > 1)
    for (int64_t s = 0; s < shares; s++) {
        walk walk = walk_of(a, b, s * share, n - s * share < share ? n : (s + 1) * share);
        piece x, y;
        bool forward, backward;
        for (size_t m; (m = walk_next(&walk, &x, &y)) > 0;) {
#pragma omp atomic read
            forward = forth;
#pragma omp atomic read
            backward = back;
            if (!forward && !backward) break;
            if (forward && !is_rounded(&walk, &x, &y, dtype, m)) {
#pragma omp atomic write
                forth = false;
            }
            if (backward && !is_rounded(&walk, &y, &x, dtype, m)) {
#pragma omp atomic write
                back = false;
            }
        }
    }
    return forth || back;
}

/* The first dtype such that rounding one side to it gives the other; LB_NO_DTYPE. `cast`: the sides' own dtypes
 * alone. */
static lb_dtype rounding_between(const lb_tensor *a, const lb_tensor *b, bool cast)
{
    for (int k = 0; k < GRIDS; k++) {
        const bool own = grids[k] == a->dtype || grids[k] == b->dtype;
        if (cast == own && is_rounding(a, b, grids[k])) return grids[k];
    }
    const bool wide = a->dtype == LB_F64 || b->dtype == LB_F64;
    return cast && wide && (a->dtype == LB_F32 || b->dtype == LB_F32) && is_rounding(a, b, LB_F32) ? LB_F32
                                                                                                   : LB_NO_DTYPE;
}

/* Whether the numbers of one side are f16's, those of the other bf16's, and some t rounds to both in every place. Then
 * |x - y| <= |x - t| + |t - y|, half a step of each format. With 2^(e-1) <= max(|x|, |y|) < 2^e these are 2^(e-12), or
 * 2^-25 where f16 has its least numbers, and 2^(e-9). */
static bool are_two_roundings(const lb_tensor *half, const lb_tensor *brain)
{
    const int64_t n = lb_layout_numel(&half->layout), share = share_of(half, brain), shares = (n + share - 1) / share;
    bool agree = fits_f32(half) && fits_f32(brain);
#pragma omp parallel for schedule(static) if (shares > 1)
    for (int64_t s = 0; s < shares; s++) {
        walk walk = walk_of(half, brain, s * share, n - s * share < share ? n : (s + 1) * share);
        piece x, y;
        for (size_t m; (m = walk_next(&walk, &x, &y)) > 0;) {
            bool go;
#pragma omp atomic read
            go = agree;
            if (!go) break;
            bool near = is_rounded(&walk, &x, &x, LB_F16, m) && is_rounded(&walk, &y, &y, LB_BF16, m);
            for (size_t i = 0; i < m && near; i++) {
                int e;
                const float most = fmaxf(fabsf(x.f32[i]), fabsf(y.f32[i]));
                near = isfinite(most);
                frexpf(most, &e); /* most < 2^e */
                near &= fabsf(x.f32[i] - y.f32[i]) <= ldexpf(1, e - 9) + fmaxf(ldexpf(1, e - 12), 0x1p-25f);
            }
            if (near) continue;
#pragma omp atomic write
            agree = false;
        }
    }
    return agree;
}

/* The wide side stored as the narrow one has its bits: the common case of a cast, at the speed of memory. NaNs are left
 * to others. */
static bool is_plain_cast(const lb_tensor *wide, const lb_tensor *narrow)
{
    const int64_t n = lb_layout_numel(&wide->layout), shares = (n + SHARE - 1) / SHARE;
    const size_t wide_bytes = lb_dtype_bits(wide->dtype) / 8, narrow_bytes = lb_dtype_bits(narrow->dtype) / 8;
    bool differ = false;
    if (wide->dtype == LB_F64 || wide_bytes <= narrow_bytes || !are_dense(wide, narrow)) return false;
#pragma omp parallel for schedule(static) if (shares > 1)
    for (int64_t s = 0; s < shares; s++)
        for (int64_t i = s * SHARE; i < n && i < (s + 1) * SHARE; i += PIECE) {
            float numbers[PIECE];
            char stored[PIECE * sizeof(float)];
            bool over;
            const size_t count = (size_t)(n - i < PIECE ? n - i : PIECE);
#pragma omp atomic read
            over = differ;
            if (over) break;
            lb_load_f32(numbers, wide->dtype, (const char *)wide->data + (size_t)i * wide_bytes, count);
            lb_store_f32(narrow->dtype, stored, numbers, count, NULL);
            if (!memcmp(stored, (const char *)narrow->data + (size_t)i * narrow_bytes, count * narrow_bytes)) continue;
#pragma omp atomic write
            differ = true;
        }
    return !differ;
}

/* ---- the largest difference -------------------------------------------------------------------------------------- */

static double distance(const walk *walk, const piece *x, const piece *y, size_t i)
{
    const double p = walk->short_floats ? (double)x->f32[i] : x->f64[i],
                 q = walk->short_floats ? (double)y->f32[i] : y->f64[i];
    const double d = p == q ? 0 : fabs(p - q);
    return isnan(d) ? (isnan(p) && isnan(q) ? 0 : INFINITY) : d;
}

typedef struct farthest {
    double most;
    int64_t at;
} farthest;

static farthest farthest_in(walk walk)
{
    farthest found = {-1, 0};
    piece x, y;
    for (size_t n; (n = walk_next(&walk, &x, &y)) > 0;) {
        double most = 0;
        for (size_t i = 0; i < n; i++) {
            const double d = distance(&walk, &x, &y, i);
            most = d > most ? d : most;
        }
        if (most <= found.most) continue;
        size_t i = 0;
        while (distance(&walk, &x, &y, i) != most) i++;
        found = (farthest){most, walk.at - (int64_t)n + (int64_t)i};
    }
    return found;
}

/* Row-major index of the largest difference, the first of several. */
static int64_t worst_of(const lb_tensor *a, const lb_tensor *b)
{
    const int64_t n = lb_layout_numel(&a->layout), share = share_of(a, b), shares = (n + share - 1) / share;
    farthest worst = {-1, 0};
#pragma omp parallel for schedule(static) if (shares > 1)
    for (int64_t s = 0; s < shares; s++) {
        const farthest found = farthest_in(walk_of(a, b, s * share, n - s * share < share ? n : (s + 1) * share));
#pragma omp critical(lb_value_match_worst)
        if (found.most > worst.most || (found.most == worst.most && found.at < worst.at)) worst = found;
    }
    return worst.at;
}

lb_status lb_value_match_of(const lb_tensor *a, const lb_tensor *b, lb_value_match *match, lb_err *err)
{
    *match = (lb_value_match){LB_AUDIT_IS_IDENTICAL, LB_NO_DTYPE, {0}, -1};
    LB_TRY(lb_compare_numbers(a, b, &match->difference, err));
    if (match->difference.differing == 0) {
        match->match = a->dtype == b->dtype ? LB_AUDIT_IS_IDENTICAL : LB_AUDIT_IS_CAST;
        return LB_OK;
    }
    match->match = LB_AUDIT_IS_CAST;
    if (lb_dtype_is_float(a->dtype) && lb_dtype_is_float(b->dtype) && lb_dtype_bits(a->dtype) >= 8 &&
        lb_dtype_bits(b->dtype) >= 8 && (is_plain_cast(a, b) || is_plain_cast(b, a)))
        return LB_OK;
    match->worst = worst_of(a, b);
    match->match = LB_AUDIT_IS_DIFFERENT;
    if (!lb_dtype_is_float(a->dtype) || !lb_dtype_is_float(b->dtype) || lb_dtype_bits(a->dtype) < 8 ||
        lb_dtype_bits(b->dtype) < 8)
        return LB_OK;
    if (a->dtype != b->dtype && rounding_between(a, b, true) != LB_NO_DTYPE)
        match->match = LB_AUDIT_IS_CAST;
    else if ((match->rounded = rounding_between(a, b, false)) != LB_NO_DTYPE ||
             (match->difference.max_ulp <= 1 && !match->difference.nonfinite) || are_two_roundings(a, b) ||
             are_two_roundings(b, a))
        match->match = LB_AUDIT_IS_ROUNDING;
    if (match->match == LB_AUDIT_IS_DIFFERENT) lb_pattern_find(a, b, &match->difference);
    return LB_OK;
}
