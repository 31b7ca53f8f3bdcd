/* Patterns of difference: see pattern.h.
 *
 * Works on row-major f64 copies of both values and looks at the positions that differ. Rules go from the most
 * specific to the least: one that holds for every differing element wins. Values above LIMIT elements are
 * called scattered unless the counts alone decide: a pattern is a hint for a person, never a verdict.
 */
#include "compare/pattern.h"

#include "kernel/complex_rows.h"
#include "compare/pattern_moved.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT = 1 << 24, LARGE = 1024 };

typedef lb_pattern_sides sides;

static void say(lb_difference *d, lb_pattern pattern, const char *format, long long x, long long y, long long z)
{
    d->pattern = pattern;
    snprintf(d->detail, sizeof d->detail, format, x, y, z);
}

static bool load(const lb_tensor *t, int64_t n, double *out)
{
    int64_t done = 0;
    size_t size = lb_dtype_bits(t->dtype) / 8;
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r);) {
        lb_load_f64_strided(out + done, t->dtype, (const char *)t->data + r.offset * (int64_t)size, r.stride,
                            (size_t)r.count);
        done += r.count;
    }
    return done == n;
}

/* ---- rules on single elements ---- */

static bool flipped_bit(const lb_tensor *ta, const lb_tensor *tb, const sides *s, lb_difference *d)
{
    if (s->count != 1 || ta->dtype != tb->dtype) return false;
    size_t size = lb_dtype_bits(ta->dtype) / 8;
    if (size > 8) return false;
    uint64_t x = 0, y = 0;
    int64_t at = 0;
    for (lb_rows ra = lb_rows_of(&ta->layout), rb = lb_rows_of(&tb->layout); lb_rows_next(&ra) && lb_rows_next(&rb);) {
        if (ra.count != rb.count) return false; /* other layouts: rows do not pair up */
        if (s->first < at + ra.count) {
            memcpy(&x, (const char *)ta->data + (ra.offset + (s->first - at) * ra.stride) * (int64_t)size, size);
            memcpy(&y, (const char *)tb->data + (rb.offset + (s->first - at) * rb.stride) * (int64_t)size, size);
            break;
        }
        at += ra.count;
    }
    uint64_t changed = x ^ y;
    if (changed == 0 || (changed & (changed - 1)) != 0) return false;
    say(d, LB_PATTERN_ONE_BIT, "bit %lld of element %lld", __builtin_ctzll(changed), s->first, 0);
    return true;
}

/* A zero has a sign, too, and no size. */
static bool scaled(const sides *s, lb_difference *d)
{
    double ratio = 0;
    for (int64_t i = s->first; i <= s->last; i++) {
        if (!s->differs[i] || (s->a[i] == 0 && s->b[i] == 0)) continue;
        double r = s->b[i] / s->a[i];
        if (!isfinite(r) || r == 0) return false;
        if (ratio == 0) ratio = r;
        if (r != ratio) return false;
    }
    int exponent;
    if (frexp(fabs(ratio), &exponent) != 0.5) return false;
    for (int64_t i = s->first; i <= s->last && ratio > 0; i++)
        if (s->differs[i] && s->a[i] == 0 && s->b[i] == 0) return false;
    if (ratio == -1)
        say(d, LB_PATTERN_SIGN, "%lld of %lld elements", s->count, s->n, 0);
    else
        say(d, LB_PATTERN_POWER_OF_TWO, ratio < 0 ? "factor -(2^%lld)" : "factor 2^%lld", exponent - 1, 0, 0);
    return true;
}

static bool saturated(const sides *s, lb_dtype dtype_a, lb_dtype dtype_b, lb_difference *d)
{
    for (int side = 0; side < 2; side++) {
        const double *low = side ? s->a : s->b, *high = side ? s->b : s->a;
        double top = 0;
        bool all = true;
        for (int64_t i = s->first; i <= s->last && all; i++) {
            if (!s->differs[i]) continue;
            if (top == 0) top = fabs(low[i]);
            all = fabs(low[i]) == top && fabs(high[i]) > top && (low[i] < 0) == (high[i] < 0);
        }
        /* 448, 57344, … or the format's own largest value: a value that is a limit of some format people
         * saturate to. */
        bool limit = top == lb_dtype_max_finite(dtype_a) || top == lb_dtype_max_finite(dtype_b);
        for (lb_dtype t = LB_BF16; t <= LB_E2M1; t++) limit |= top == lb_dtype_max_finite(t) && top > 0;
        if (!all || !limit) continue;
        d->pattern = LB_PATTERN_SATURATION;
        snprintf(d->detail, sizeof d->detail, "%s is limited to %g", side ? "the first" : "the second", top);
        return true;
    }
    return false;
}

/* ---- rules on dimensions ---- */

/* b at index j of `dim` equals a at index j + k, for every element that has such a neighbour. */
static bool shifted(const sides *s, lb_difference *d)
{
    for (int dim = s->ndim - 1; dim >= 0; dim--) {
        int64_t inner = lb_pattern_sides_inner(s, dim), size = s->shape[dim];
        for (int64_t k = 1; k <= 4 && 2 * k < size; k++)
            for (int sign = -1; sign <= 1; sign += 2) {
                bool all = true;
                for (int64_t i = 0; i < s->n && all; i++) {
                    int64_t j = i / inner % size + sign * k;
                    if (j < 0 || j >= size) continue;
                    double other = s->a[i + sign * k * inner];
                    all = s->b[i] == other || (s->b[i] != s->b[i] && other != other);
                }
                if (!all) continue;
                say(d, LB_PATTERN_SHIFT, "dimension %lld, by %lld", dim, -sign * k, 0);
                return true;
            }
    }
    return false;
}

/* The smallest box around all that differs: first and last index of each dimension. */
typedef struct box {
    int64_t low[LB_MAX_DIMS], high[LB_MAX_DIMS];
} box;

static bool is_whole(const sides *s, const box *x)
{
    for (int dim = 1; dim < s->ndim; dim++)
        if (x->low[dim] > 0 || x->high[dim] + 1 < s->shape[dim]) return false;
    return true;
}

/* In the outermost dimension it reaches from the first to the last; in the others it may be whole long before the
 * last. */
static box box_around(const sides *s)
{
    box x;
    bool whole = s->ndim < 2;
    for (int dim = 0; dim < s->ndim; dim++) x.low[dim] = s->shape[dim], x.high[dim] = -1;
    if (s->ndim) x.low[0] = s->first / lb_pattern_sides_inner(s, 0), x.high[0] = s->last / lb_pattern_sides_inner(s, 0);
    for (int64_t i = s->first; i <= s->last && !whole; i++) {
        bool grown = false;
        if (!s->differs[i]) continue;
        int64_t rest = i;
        for (int dim = s->ndim; dim-- > 1;) {
            const int64_t at = rest % s->shape[dim];
            rest /= s->shape[dim];
            if (at < x.low[dim]) x.low[dim] = at, grown = true;
            if (at > x.high[dim]) x.high[dim] = at, grown = true;
        }
        whole = grown && is_whole(s, &x);
    }
    return x;
}

/* Could chance have left `outside` more elements equal, as it left those that are equal among `inside`? */
static bool by_chance(const sides *s, int64_t inside, int64_t outside)
{
    const double equal = 1 - (double)s->count / (double)inside;
    return pow(equal, (double)outside) > 1e-3;
}

/* Do the differences fill the `count` slices of `dim` that they touch, in every other dimension from end to end? A tile
 * does not. */
static bool fills_slices(const sides *s, const box *x, int dim, int64_t count)
{
    int64_t inside = count;
    for (int i = 0; i < s->ndim; i++)
        if (i != dim) inside *= x->high[i] - x->low[i] + 1;
    return by_chance(s, inside, count * (s->n / s->shape[dim]) - inside);
}

/* Marks which slices of `dim` hold a difference; returns how many. */
static int64_t touched_slices(const sides *s, int dim, uint8_t *touched)
{
    int64_t inner = lb_pattern_sides_inner(s, dim), size = s->shape[dim], count = 0;
    memset(touched, 0, (size_t)size);
    for (int64_t i = 0, j = 0; i < s->n; i += inner, j = j + 1 < size ? j + 1 : 0)
        touched[j] = touched[j] || memchr(s->differs + i, 1, (size_t)inner) != NULL;
    for (int64_t j = 0; j < size; j++) count += touched[j];
    return count;
}

static bool swapped(const sides *s, int dim, const uint8_t *touched, lb_difference *d)
{
    int64_t inner = lb_pattern_sides_inner(s, dim), size = s->shape[dim], p = -1, q = -1;
    for (int64_t j = 0; j < size; j++)
        if (touched[j]) p < 0 ? (p = j) : (q = j);
    for (int64_t outer = 0; outer < s->n; outer += inner * size)
        for (int64_t k = 0; k < inner; k++)
            if (s->a[outer + p * inner + k] != s->b[outer + q * inner + k] ||
                s->a[outer + q * inner + k] != s->b[outer + p * inner + k])
                return false;
    say(d, LB_PATTERN_SWAPPED, "dimension %lld, slices %lld and %lld", dim, p, q);
    return true;
}

/* What lost elements hold: on one side all that differ are zero. */
static const char *zero_side(const sides *s)
{
    bool zero[2] = {true, true};
    for (int64_t i = s->first; i <= s->last; i++)
        if (s->differs[i]) zero[0] &= s->a[i] == 0, zero[1] &= s->b[i] == 0;
    return zero[1] ? "; zero on the second side" : zero[0] ? "; zero on the first side" : "";
}

/* A run that divides the dimension is what a shard looks like: say which one. */
static void say_run(const sides *s, int dim, int64_t first, int64_t count, lb_difference *d)
{
    int64_t size = s->shape[dim];
    char part[64] = "";
    d->pattern = LB_PATTERN_ROWS;
    if (size % count == 0 && first % count == 0)
        snprintf(part, sizeof part, " (part %lld of %lld)", (long long)first / count + 1, (long long)size / count);
    if (count == 1) {
        snprintf(d->detail, sizeof d->detail, "dimension %d, slice %lld of %lld%s", dim, (long long)first,
                 (long long)size, zero_side(s));
        return;
    }
    snprintf(d->detail, sizeof d->detail, "dimension %d, %lld to %lld of %lld%s%s", dim, (long long)first,
             (long long)(first + count - 1), (long long)size, part, zero_side(s));
}

/* The elements are all there, elsewhere. */
static bool moved(const sides *s, uint8_t *touched, lb_difference *d)
{
    if (lb_pattern_transposed(s, d)) return true;
    for (int dim = 0; dim < s->ndim; dim++) {
        const int64_t count = touched_slices(s, dim, touched);
        if (count == 2 && swapped(s, dim, touched, d)) return true;
        if (lb_pattern_permuted(s, dim, touched, count, d)) return true;
    }
    return false;
}

static bool slices(const sides *s, uint8_t *touched, lb_difference *d)
{
    const box around = box_around(s);
    for (int dim = 0; dim < s->ndim; dim++) {
        int64_t size = s->shape[dim], count = touched_slices(s, dim, touched), first = 0, run = 0;
        if (size < 2 || count == size) continue;
        while (!touched[first]) first++;
        while (first + run < size && touched[first + run]) run++;
        /* Whole slices: most of what they hold differs (rounding leaves some elements equal by chance). */
        bool most = count * 2 > size && (run < count || s->ndim < 2);
        if (most || s->count * 2 < count * (s->n / size) || !fills_slices(s, &around, dim, count)) continue;
        if (run == count)
            say_run(s, dim, first, count, d);
        else
            say(d, LB_PATTERN_ROWS, "dimension %lld, %lld of its slices, first %lld", dim, count, first);
        return true;
    }
    return false;
}

static bool strided(const sides *s, lb_difference *d)
{
    int64_t step = 0, last = -1;
    for (int64_t i = s->first; i <= s->last; i++) {
        if (!s->differs[i]) continue;
        if (last >= 0) {
            if (step == 0) step = i - last;
            if (i - last != step) return false;
        }
        last = i;
    }
    if (step < 2 || s->count < 4) return false;
    say(d, LB_PATTERN_STRIDE, "every %lld-th element from %lld on", step, s->first, 0);
    return true;
}

/* "rows 8 to 15, columns 16 to 31", or "dimension 0, 3 to 5; dimension 2, 0 to 7" of those that it does not fill. */
static void say_tile(const sides *s, const box *x, lb_difference *d)
{
    static const char *const names[] = {"rows", "columns"};
    size_t used = 0;
    d->pattern = LB_PATTERN_TILE, d->detail[0] = '\0';
    for (int dim = 0; dim < s->ndim && used < sizeof d->detail; dim++) {
        const long long low = (long long)x->low[dim], high = (long long)x->high[dim];
        if (s->ndim == 2)
            used += (size_t)snprintf(d->detail + used, sizeof d->detail - used, "%s%s %lld to %lld", used ? ", " : "",
                                     names[dim], low, high);
        else if (high - low + 1 < s->shape[dim])
            used += (size_t)snprintf(d->detail + used, sizeof d->detail - used, "%sdimension %d, %lld to %lld",
                                     used ? "; " : "", dim, low, high);
    }
    if (used < sizeof d->detail) snprintf(d->detail + used, sizeof d->detail - used, "%s", zero_side(s));
}

static bool tiled(const sides *s, lb_difference *d)
{
    const box x = box_around(s);
    int64_t inside = 1, narrow = 0;
    for (int dim = 0; dim < s->ndim; dim++) {
        const int64_t length = x.high[dim] - x.low[dim] + 1;
        inside *= length, narrow += length < s->shape[dim];
    }
    if (narrow < 2 || s->count * 2 < inside || by_chance(s, inside, s->n - inside)) return false;
    say_tile(s, &x, d);
    return true;
}

/* What holds for all that differ, where they stand: "factor 2^3; rows 8 to 15, columns 16 to 31". */
static void add_place(const sides *s, uint8_t *touched, lb_difference *d)
{
    lb_difference place = *d;
    if (s->count == s->n || !(slices(s, touched, &place) || tiled(s, &place))) return;
    if (place.pattern != LB_PATTERN_ROWS && place.pattern != LB_PATTERN_TILE) return;
    const size_t used = strlen(d->detail);
    snprintf(d->detail + used, sizeof d->detail - used, "; %s", place.detail);
}

static void decide(const lb_tensor *ta, const lb_tensor *tb, const sides *s, uint8_t *touched, lb_difference *d)
{
    if (flipped_bit(ta, tb, s, d)) return;
    if (s->count == 1) {
        say(d, LB_PATTERN_ONE_ELEMENT, "index %lld", s->first, 0, 0);
        return;
    }
    if (d->nonfinite == d->differing) {
        say(d, LB_PATTERN_NONFINITE, "%lld elements, first index %lld", s->count, s->first, 0);
        return;
    }
    if (scaled(s, d)) {
        add_place(s, touched, d);
        return;
    }
    if (saturated(s, ta->dtype, tb->dtype, d)) return;
    if (s->ndim > 0 && (shifted(s, d) || moved(s, touched, d) || (s->count < s->n && slices(s, touched, d)))) return;
    if (s->count < s->n && tiled(s, d)) return;
    if (s->first > 0 && s->last == s->n - 1 && s->count * 4 > (s->n - s->first) * 3 && s->first * 8 > s->n) {
        say(d, LB_PATTERN_STALE_TAIL, "from index %lld of %lld", s->first, s->n, 0);
        return;
    }
    if (s->count < s->n && strided(s, d)) return;
    if (lb_pattern_quantised(s, ta->dtype, tb->dtype, d)) return;
    say(d, LB_PATTERN_SCATTERED, "%lld of %lld elements", s->count, s->n, 0);
}

static void mark(sides *s, uint8_t *marks, double above)
{
    s->count = 0, s->first = s->last = -1;
    for (int64_t i = 0; i < s->n; i++) {
        double x = s->a[i], y = s->b[i];
        bool same = x == y ? signbit(x) == signbit(y) : x != x && y != y;
        marks[i] = !same && !(fabs(x - y) <= above);
        if (!marks[i]) continue;
        s->count++;
        s->last = i;
        if (s->first < 0) s->first = i;
    }
}

/* Rounding everywhere hides a fault in one place: look at what is far above the rest. */
static void decide_large(const lb_tensor *ta, const lb_tensor *tb, sides *s, uint8_t *marks, uint8_t *touched,
                         lb_difference *d)
{
    int64_t all = s->count;
    double above = 0, rest = 0;
    for (int64_t i = 0; i < s->n; i++)
        above = isfinite(s->a[i] - s->b[i]) ? fmax(above, fabs(s->a[i] - s->b[i])) : above;
    mark(s, marks, above / LARGE);
    if (s->count == 0 || s->count == all) return;
    lb_difference large = *d;
    large.differing = s->count;
    decide(ta, tb, s, touched, &large);
    if (large.pattern == LB_PATTERN_SCATTERED) return;
    for (int64_t i = 0; i < s->n; i++)
        if (!marks[i] && isfinite(s->a[i] - s->b[i])) rest = fmax(rest, fabs(s->a[i] - s->b[i]));
    d->pattern = large.pattern;
    snprintf(d->detail, sizeof d->detail, "%.140s; the rest differs by %.3g at most", large.detail, rest);
}

void lb_pattern_find(const lb_tensor *ta, const lb_tensor *tb, lb_difference *d)
{
    lb_tensor x, y;
    if (lb_dtype_is_complex(ta->dtype) && lb_dtype_is_complex(tb->dtype) && lb_complex_tensor_parts(ta, &x) &&
        lb_complex_tensor_parts(tb, &y))
        ta = &x, tb = &y;
    d->pattern = LB_PATTERN_NONE;
    if (d->differing == 0) return;
    int64_t n = d->elements, longest = 1;
    for (int i = 0; i < ta->layout.ndim; i++) longest = ta->layout.shape[i] > longest ? ta->layout.shape[i] : longest;
    double *values = n <= LIMIT ? malloc((size_t)n * 2 * sizeof(double)) : NULL;
    uint8_t *marks = values ? calloc((size_t)(n + longest), 1) : NULL;
    say(d, LB_PATTERN_SCATTERED, "%lld of %lld elements", d->differing, n, 0);
    if (values && marks && load(ta, n, values) && load(tb, n, values + n)) {
        sides s = {values, values + n, marks, n, 0, -1, -1, ta->layout.ndim, ta->layout.shape};
        mark(&s, marks, -1);
        if (s.count) decide(ta, tb, &s, marks + n, d);
        if (s.count && d->pattern == LB_PATTERN_SCATTERED) decide_large(ta, tb, &s, marks, marks + n, d);
    }
    free(values);
    free(marks);
}
