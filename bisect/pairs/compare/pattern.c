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

static void say(lb_difference *difference, lb_pattern pattern, const char *format, long long x, long long y,
                long long z)
{
    difference->pattern = pattern;
    snprintf(difference->detail, sizeof difference->detail, format, x, y, z);
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

static bool flipped_bit(const lb_tensor *ta, const lb_tensor *tb, const sides *sides, lb_difference *difference)
{
    if (sides->count != 1 || ta->dtype != tb->dtype) return false;
    size_t size = lb_dtype_bits(ta->dtype) / 8;
    if (size > 8) return false;
    uint64_t x = 0, y = 0;
    int64_t at = 0;
    for (lb_rows ra = lb_rows_of(&ta->layout), rb = lb_rows_of(&tb->layout); lb_rows_next(&ra) && lb_rows_next(&rb);) {
        if (ra.count != rb.count) return false; /* other layouts: rows do not pair up */
        if (sides->first < at + ra.count) {
            memcpy(&x, (const char *)ta->data + (ra.offset + (sides->first - at) * ra.stride) * (int64_t)size, size);
            memcpy(&y, (const char *)tb->data + (rb.offset + (sides->first - at) * rb.stride) * (int64_t)size, size);
            break;
        }
        at += ra.count;
    }
    uint64_t changed = x ^ y;
    if (changed == 0 || (changed & (changed - 1)) != 0) return false;
    say(difference, LB_PATTERN_ONE_BIT, "bit %lld of element %lld", __builtin_ctzll(changed), sides->first, 0);
    return true;
}

/* A zero has a sign, too, and no size. */
static bool scaled(const sides *sides, lb_difference *difference)
{
    double ratio = 0;
    for (int64_t i = sides->first; i <= sides->last; i++) {
        if (!sides->differs[i] || (sides->a[i] == 0 && sides->b[i] == 0)) continue;
        double r = sides->b[i] / sides->a[i];
        if (!isfinite(r) || r == 0) return false;
        if (ratio == 0) ratio = r;
        if (r != ratio) return false;
    }
    int exponent;
    if (frexp(fabs(ratio), &exponent) != 0.5) return false;
    for (int64_t i = sides->first; i <= sides->last && ratio > 0; i++)
        if (sides->differs[i] && sides->a[i] == 0 && sides->b[i] == 0) return false;
    if (ratio == -1)
        say(difference, LB_PATTERN_SIGN, "%lld of %lld elements", sides->count, sides->n, 0);
    else
        say(difference, LB_PATTERN_POWER_OF_TWO, ratio < 0 ? "factor -(2^%lld)" : "factor 2^%lld", exponent - 1, 0, 0);
    return true;
}

static bool saturated(const sides *sides, lb_dtype dtype_a, lb_dtype dtype_b, lb_difference *difference)
{
    for (int side = 0; side < 2; side++) {
        const double *low = side ? sides->a : sides->b, *high = side ? sides->b : sides->a;
        double top = 0;
        bool all = true;
        for (int64_t i = sides->first; i <= sides->last && all; i++) {
            if (!sides->differs[i]) continue;
            if (top == 0) top = fabs(low[i]);
            all = fabs(low[i]) == top && fabs(high[i]) > top && (low[i] < 0) == (high[i] < 0);
        }
        /* 448, 57344, … or the format's own largest value: a value that is a limit of some format people
         * saturate to. */
        bool limit = top == lb_dtype_max_finite(dtype_a) || top == lb_dtype_max_finite(dtype_b);
        for (lb_dtype t = LB_BF16; t <= LB_E2M1; t++) limit |= top == lb_dtype_max_finite(t) && top > 0;
        if (!all || !limit) continue;
        difference->pattern = LB_PATTERN_SATURATION;
        snprintf(difference->detail, sizeof difference->detail, "%s is limited to %g",
                 side ? "the first" : "the second", top);
        return true;
    }
    return false;
}

/* ---- rules on dimensions ---- */

/* b at index j of `dim` equals a at index j + k, for every element that has such a neighbour. */
static bool shifted(const sides *sides, lb_difference *difference)
{
    for (int dim = sides->ndim - 1; dim >= 0; dim--) {
        int64_t inner = lb_pattern_sides_inner(sides, dim), size = sides->shape[dim];
        for (int64_t k = 1; k <= 4 && 2 * k < size; k++)
            for (int sign = -1; sign <= 1; sign += 2) {
                bool all = true;
                for (int64_t i = 0; i < sides->n && all; i++) {
                    int64_t j = i / inner % size + sign * k;
                    if (j < 0 || j >= size) continue;
                    double other = sides->a[i + sign * k * inner];
                    all = sides->b[i] == other || (sides->b[i] != sides->b[i] && other != other);
                }
                if (!all) continue;
                say(difference, LB_PATTERN_SHIFT, "dimension %lld, by %lld", dim, -sign * k, 0);
                return true;
            }
    }
    return false;
}

/* The smallest box around all that differs: first and last index of each dimension. */
typedef struct box {
    int64_t low[LB_MAX_DIMS], high[LB_MAX_DIMS];
} box;

static bool is_whole(const sides *sides, const box *box)
{
    for (int dim = 1; dim < sides->ndim; dim++)
        if (box->low[dim] > 0 || box->high[dim] + 1 < sides->shape[dim]) return false;
    return true;
}

/* In the outermost dimension it reaches from the first to the last; in the others it may be whole long before the
 * last. */
static box box_around(const sides *sides)
{
    box x;
    bool whole = sides->ndim < 2;
    for (int dim = 0; dim < sides->ndim; dim++) x.low[dim] = sides->shape[dim], x.high[dim] = -1;
    if (sides->ndim)
        x.low[0] = sides->first / lb_pattern_sides_inner(sides, 0),
        x.high[0] = sides->last / lb_pattern_sides_inner(sides, 0);
    for (int64_t i = sides->first; i <= sides->last && !whole; i++) {
        bool grown = false;
        if (!sides->differs[i]) continue;
        int64_t rest = i;
        for (int dim = sides->ndim; dim-- > 1;) {
            const int64_t at = rest % sides->shape[dim];
            rest /= sides->shape[dim];
            if (at < x.low[dim]) x.low[dim] = at, grown = true;
            if (at > x.high[dim]) x.high[dim] = at, grown = true;
        }
        whole = grown && is_whole(sides, &x);
    }
    return x;
}

/* Could chance have left `outside` more elements equal, as it left those that are equal among `inside`? */
static bool by_chance(const sides *sides, int64_t inside, int64_t outside)
{
    const double equal = 1 - (double)sides->count / (double)inside;
    return pow(equal, (double)outside) > 1e-3;
}

/* Do the differences fill the `count` slices of `dim` that they touch, in every other dimension from end to end? A tile
 * does not. */
static bool fills_slices(const sides *sides, const box *box, int dim, int64_t count)
{
    int64_t inside = count;
    for (int i = 0; i < sides->ndim; i++)
        if (i != dim) inside *= box->high[i] - box->low[i] + 1;
    return by_chance(sides, inside, count * (sides->n / sides->shape[dim]) - inside);
}

/* Marks which slices of `dim` hold a difference; returns how many. */
static int64_t touched_slices(const sides *sides, int dim, uint8_t *touched)
{
    int64_t inner = lb_pattern_sides_inner(sides, dim), size = sides->shape[dim], count = 0;
    memset(touched, 0, (size_t)size);
    for (int64_t i = 0, j = 0; i < sides->n; i += inner, j = j + 1 < size ? j + 1 : 0)
        touched[j] = touched[j] || memchr(sides->differs + i, 1, (size_t)inner) != NULL;
    for (int64_t j = 0; j < size; j++) count += touched[j];
    return count;
}

static bool swapped(const sides *sides, int dim, const uint8_t *touched, lb_difference *difference)
{
    int64_t inner = lb_pattern_sides_inner(sides, dim), size = sides->shape[dim], p = -1, q = -1;
    for (int64_t j = 0; j < size; j++)
        if (touched[j]) p < 0 ? (p = j) : (q = j);
    for (int64_t outer = 0; outer < sides->n; outer += inner * size)
        for (int64_t k = 0; k < inner; k++)
            if (sides->a[outer + p * inner + k] != sides->b[outer + q * inner + k] ||
                sides->a[outer + q * inner + k] != sides->b[outer + p * inner + k])
                return false;
    say(difference, LB_PATTERN_SWAPPED, "dimension %lld, slices %lld and %lld", dim, p, q);
    return true;
}

/* What lost elements hold: on one side all that differ are zero. */
static const char *zero_side(const sides *sides)
{
    bool zero[2] = {true, true};
    for (int64_t i = sides->first; i <= sides->last; i++)
        if (sides->differs[i]) zero[0] &= sides->a[i] == 0, zero[1] &= sides->b[i] == 0;
    return zero[1] ? "; zero on the second side" : zero[0] ? "; zero on the first side" : "";
}

/* A run that divides the dimension is what a shard looks like: say which one. */
static void say_run(const sides *sides, int dim, int64_t first, int64_t count, lb_difference *difference)
{
    int64_t size = sides->shape[dim];
    char part[64] = "";
    difference->pattern = LB_PATTERN_ROWS;
    if (size % count == 0 && first % count == 0)
        snprintf(part, sizeof part, " (part %lld of %lld)", (long long)first / count + 1, (long long)size / count);
    if (count == 1) {
        snprintf(difference->detail, sizeof difference->detail, "dimension %d, slice %lld of %lld%s", dim,
                 (long long)first, (long long)size, zero_side(sides));
        return;
    }
    snprintf(difference->detail, sizeof difference->detail, "dimension %d, %lld to %lld of %lld%s%s", dim,
             (long long)first, (long long)(first + count - 1), (long long)size, part, zero_side(sides));
}

/* The elements are all there, elsewhere. */
static bool moved(const sides *sides, uint8_t *touched, lb_difference *difference)
{
    if (lb_pattern_transposed(sides, difference)) return true;
    for (int dim = 0; dim < sides->ndim; dim++) {
        const int64_t count = touched_slices(sides, dim, touched);
        if (count == 2 && swapped(sides, dim, touched, difference)) return true;
        if (lb_pattern_permuted(sides, dim, touched, count, difference)) return true;
    }
    return false;
}

static bool slices(const sides *sides, uint8_t *touched, lb_difference *difference)
{
    const box around = box_around(sides);
    for (int dim = 0; dim < sides->ndim; dim++) {
        int64_t size = sides->shape[dim], count = touched_slices(sides, dim, touched), first = 0, run = 0;
        if (size < 2 || count == size) continue;
        while (!touched[first]) first++;
        while (first + run < size && touched[first + run]) run++;
        /* Whole slices: most of what they hold differs (rounding leaves some elements equal by chance). */
        bool most = count * 2 > size && (run < count || sides->ndim < 2);
        if (most || sides->count * 2 < count * (sides->n / size) || !fills_slices(sides, &around, dim, count)) continue;
        if (run == count)
            say_run(sides, dim, first, count, difference);
        else
            say(difference, LB_PATTERN_ROWS, "dimension %lld, %lld of its slices, first %lld", dim, count, first);
        return true;
    }
    return false;
}

static bool strided(const sides *sides, lb_difference *difference)
{
    int64_t step = 0, last = -1;
    for (int64_t i = sides->first; i <= sides->last; i++) {
        if (!sides->differs[i]) continue;
        if (last >= 0) {
            if (step == 0) step = i - last;
            if (i - last != step) return false;
        }
        last = i;
    }
    if (step < 2 || sides->count < 4) return false;
    say(difference, LB_PATTERN_STRIDE, "every %lld-th element from %lld on", step, sides->first, 0);
    return true;
}

/* "rows 8 to 15, columns 16 to 31", or "dimension 0, 3 to 5; dimension 2, 0 to 7" of those that it does not fill. */
static void say_tile(const sides *sides, const box *box, lb_difference *difference)
{
    static const char *const names[] = {"rows", "columns"};
    size_t used = 0;
    difference->pattern = LB_PATTERN_TILE, difference->detail[0] = '\0';
    for (int dim = 0; dim < sides->ndim && used < sizeof difference->detail; dim++) {
        const long long low = (long long)box->low[dim], high = (long long)box->high[dim];
        if (sides->ndim == 2)
            used += (size_t)snprintf(difference->detail + used, sizeof difference->detail - used, "%s%s %lld to %lld",
                                     used ? ", " : "", names[dim], low, high);
        else if (high - low + 1 < sides->shape[dim])
            used += (size_t)snprintf(difference->detail + used, sizeof difference->detail - used,
                                     "%sdimension %d, %lld to %lld", used ? "; " : "", dim, low, high);
    }
    if (used < sizeof difference->detail)
        snprintf(difference->detail + used, sizeof difference->detail - used, "%s", zero_side(sides));
}

static bool tiled(const sides *sides, lb_difference *difference)
{
    const box box = box_around(sides);
    int64_t inside = 1, narrow = 0;
    for (int dim = 0; dim < sides->ndim; dim++) {
        const int64_t length = box.high[dim] - box.low[dim] + 1;
        inside *= length, narrow += length < sides->shape[dim];
    }
    if (narrow < 2 || sides->count * 2 < inside || by_chance(sides, inside, sides->n - inside)) return false;
    say_tile(sides, &box, difference);
    return true;
}

/* What holds for all that differ, where they stand: "factor 2^3; rows 8 to 15, columns 16 to 31". */
static void add_place(const sides *sides, uint8_t *touched, lb_difference *difference)
{
    lb_difference place = *difference;
    if (sides->count == sides->n || !(slices(sides, touched, &place) || tiled(sides, &place))) return;
    if (place.pattern != LB_PATTERN_ROWS && place.pattern != LB_PATTERN_TILE) return;
    const size_t used = strlen(difference->detail);
    snprintf(difference->detail + used, sizeof difference->detail - used, "; %s", place.detail);
}

static void decide(const lb_tensor *ta, const lb_tensor *tb, const sides *sides, uint8_t *touched,
                   lb_difference *difference)
{
    if (flipped_bit(ta, tb, sides, difference)) return;
    if (sides->count == 1) {
        say(difference, LB_PATTERN_ONE_ELEMENT, "index %lld", sides->first, 0, 0);
        return;
    }
    if (difference->nonfinite == difference->differing) {
        say(difference, LB_PATTERN_NONFINITE, "%lld elements, first index %lld", sides->count, sides->first, 0);
        return;
    }
    if (scaled(sides, difference)) {
        add_place(sides, touched, difference);
        return;
    }
    if (saturated(sides, ta->dtype, tb->dtype, difference)) return;
    if (sides->ndim > 0 && (shifted(sides, difference) || moved(sides, touched, difference) ||
                            (sides->count < sides->n && slices(sides, touched, difference))))
        return;
    if (sides->count < sides->n && tiled(sides, difference)) return;
    if (sides->first > 0 && sides->last == sides->n - 1 && sides->count * 4 > (sides->n - sides->first) * 3 &&
        sides->first * 8 > sides->n) {
        say(difference, LB_PATTERN_STALE_TAIL, "from index %lld of %lld", sides->first, sides->n, 0);
        return;
    }
    if (sides->count < sides->n && strided(sides, difference)) return;
    if (lb_pattern_quantised(sides, ta->dtype, tb->dtype, difference)) return;
    say(difference, LB_PATTERN_SCATTERED, "%lld of %lld elements", sides->count, sides->n, 0);
}

static void mark(sides *sides, uint8_t *marks, double above)
{
    sides->count = 0, sides->first = sides->last = -1;
    for (int64_t i = 0; i < sides->n; i++) {
        double x = sides->a[i], y = sides->b[i];
        bool same = x == y ? signbit(x) == signbit(y) : x != x && y != y;
        marks[i] = !same && !(fabs(x - y) <= above);
        if (!marks[i]) continue;
        sides->count++;
        sides->last = i;
        if (sides->first < 0) sides->first = i;
    }
}

/* Rounding everywhere hides a fault in one place: look at what is far above the rest. */
static void decide_large(const lb_tensor *ta, const lb_tensor *tb, sides *sides, uint8_t *marks, uint8_t *touched,
                         lb_difference *difference)
{
    int64_t all = sides->count;
    double above = 0, rest = 0;
    for (int64_t i = 0; i < sides->n; i++)
        above = isfinite(sides->a[i] - sides->b[i]) ? fmax(above, fabs(sides->a[i] - sides->b[i])) : above;
    mark(sides, marks, above / LARGE);
    if (sides->count == 0 || sides->count == all) return;
    lb_difference large = *difference;
    large.differing = sides->count;
    decide(ta, tb, sides, touched, &large);
    if (large.pattern == LB_PATTERN_SCATTERED) return;
    for (int64_t i = 0; i < sides->n; i++)
        if (!marks[i] && isfinite(sides->a[i] - sides->b[i])) rest = fmax(rest, fabs(sides->a[i] - sides->b[i]));
    difference->pattern = large.pattern;
    snprintf(difference->detail, sizeof difference->detail, "%.140s; the rest differs by %.3g at most", large.detail,
             rest);
}

void lb_pattern_find(const lb_tensor *a, const lb_tensor *b, lb_difference *difference)
{
    lb_tensor x, y;
    if (lb_dtype_is_complex(a->dtype) && lb_dtype_is_complex(b->dtype) && lb_complex_tensor_parts(a, &x) &&
        lb_complex_tensor_parts(b, &y))
        a = &x, b = &y;
    difference->pattern = LB_PATTERN_NONE;
    if (difference->differing == 0) return;
    int64_t n = difference->elements, longest = 1;
    for (int i = 0; i < a->layout.ndim; i++) longest = a->layout.shape[i] > longest ? a->layout.shape[i] : longest;
    double *values = n <= LIMIT ? malloc((size_t)n * 2 * sizeof(double)) : NULL;
    uint8_t *marks = values ? calloc((size_t)(n + longest), 1) : NULL;
    say(difference, LB_PATTERN_SCATTERED, "%lld of %lld elements", difference->differing, n, 0);
    if (values && marks && load(a, n, values) && load(b, n, values + n)) {
        sides sides = {values, values + n, marks, n, 0, -1, -1, a->layout.ndim, a->layout.shape};
        mark(&sides, marks, -1);
        if (sides.count) decide(a, b, &sides, marks + n, difference);
        if (sides.count && difference->pattern == LB_PATTERN_SCATTERED)
            decide_large(a, b, &sides, marks, marks + n, difference);
    }
    free(values);
    free(marks);
}
