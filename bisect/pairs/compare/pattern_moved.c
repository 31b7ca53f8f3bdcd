/* Elements that moved, and grids: see pattern_moved.h. */
#include "compare/pattern_moved.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t lb_pattern_sides_inner(const lb_pattern_sides *sides, int dim)
{
    int64_t n = 1;
    for (int i = dim + 1; i < sides->ndim; i++) n *= sides->shape[i];
    return n;
}

static bool same(double x, double y)
{
    return x == y || (x != x && y != y);
}

/* ---- transposes ---- */

/* Is b what a gives when dimensions p and p + 1, of sizes P and Q, change places in memory? a: (outer, P, Q, inner). Of
 * a square that is the transpose, of another shape the elements of the transpose under the shape of the original. */
static bool is_turned(const lb_pattern_sides *sides, int p)
{
    const int64_t inner = lb_pattern_sides_inner(sides, p + 1), rows = sides->shape[p], columns = sides->shape[p + 1];
    for (int64_t outer = 0; outer < sides->n; outer += rows * columns * inner)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                for (int64_t k = 0; k < inner; k++)
                    if (!same(sides->a[outer + (i * columns + j) * inner + k],
                              sides->b[outer + (j * rows + i) * inner + k]))
                        return false;
    return true;
}

bool lb_pattern_transposed(const lb_pattern_sides *sides, lb_difference *difference)
{
    for (int p = sides->ndim - 2; p >= 0; p--) {
        const int64_t rows = sides->shape[p], columns = sides->shape[p + 1];
        if (rows < 2 || columns < 2 || !is_turned(sides, p)) continue;
        difference->pattern = LB_PATTERN_TRANSPOSED;
        snprintf(difference->detail, sizeof difference->detail, "dimensions %d and %d, %lld by %lld%s", p, p + 1,
                 (long long)rows, (long long)columns, rows == columns ? "" : ", under the shape of the other");
        return true;
    }
    return false;
}

/* ---- permutations ---- */

typedef struct slice {
    uint64_t hash;
    int64_t index;
} slice;

static uint64_t hash_slice(const lb_pattern_sides *sides, const double *values, int64_t size, int64_t inner,
                           int64_t index)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t outer = 0; outer < sides->n; outer += size * inner)
        for (int64_t k = 0; k < inner; k++) {
            uint64_t bits;
            memcpy(&bits, &values[outer + index * inner + k], sizeof bits);
            hash = (hash ^ bits) * UINT64_C(0x9E3779B97F4A7C15);
            hash ^= hash >> 29;
        }
    return hash;
}

static int by_hash(const void *x, const void *y)
{
    const slice *p = x, *q = y;
    return p->hash != q->hash ? (p->hash < q->hash ? -1 : 1) : p->index < q->index ? -1 : p->index > q->index;
}

/* Slices that are alike (zeros, labels) could have come from anywhere: a permutation is only seen in those that are
 * not. */
static bool mostly_distinct(const slice *rows, int64_t n)
{
    int64_t distinct = 1;
    for (int64_t i = 1; i < n; i++) distinct += rows[i].hash != rows[i - 1].hash;
    return distinct * 2 > n;
}

static bool is_slice(const lb_pattern_sides *sides, int dim, int64_t of_a, int64_t of_b)
{
    const int64_t size = sides->shape[dim], inner = lb_pattern_sides_inner(sides, dim);
    for (int64_t outer = 0; outer < sides->n; outer += size * inner)
        if (memcmp(&sides->a[outer + of_a * inner], &sides->b[outer + of_b * inner],
                   (size_t)inner * sizeof *sides->a) != 0)
            return false;
    return true;
}

/* Has the first of b's touched slices come from anywhere? Rounding alone nearly always says no, long before all slices
 * are read. */
static bool first_is_found(const lb_pattern_sides *sides, int dim, const uint8_t *touched)
{
    int64_t first = 0;
    while (!touched[first]) first++;
    for (int64_t j = 0; j < sides->shape[dim]; j++)
        if (touched[j] && is_slice(sides, dim, j, first)) return true;
    return false;
}

bool lb_pattern_permuted(const lb_pattern_sides *sides, int dim, const uint8_t *touched, int64_t count,
                         lb_difference *difference)
{
    const int64_t size = sides->shape[dim], inner = lb_pattern_sides_inner(sides, dim);
    if (count < 3 || !first_is_found(sides, dim, touched)) return false;
    slice *rows = count > 2 ? malloc(2 * (size_t)count * sizeof *rows) : NULL, *others = rows + (rows ? count : 0);
    if (!rows) return false;
    for (int64_t j = 0, n = 0; j < size; j++) {
        if (!touched[j]) continue;
        rows[n] = (slice){hash_slice(sides, sides->a, size, inner, j), j};
        others[n++] = (slice){hash_slice(sides, sides->b, size, inner, j), j};
    }
    qsort(rows, (size_t)count, sizeof *rows, by_hash), qsort(others, (size_t)count, sizeof *others, by_hash);
    bool all = mostly_distinct(rows, count);
    for (int64_t i = 0; i < count && all; i++) all = rows[i].hash == others[i].hash;
    free(rows);
    if (!all) return false;
    difference->pattern = LB_PATTERN_PERMUTED;
    snprintf(difference->detail, sizeof difference->detail, "dimension %d, %lld of its %lld slices in another order",
             dim, (long long)count, (long long)size);
    return true;
}

/* ---- grids ---- */

/* Fewer say nothing: any few numbers lie on some grid. */
enum { FEW = 8, MOST_LEVELS = 1024, MOST_SORTED = 4096, MOST_PROBED = 256 };

static bool is_of_type(double x, lb_dtype type)
{
    unsigned char bytes[8];
    lb_from_f64(type, bytes, x, NULL);
    return same(lb_to_f64(type, bytes), x);
}

/* Are all that differ values of a narrower type on that side, and not on the other? */
static bool holds_type(const lb_pattern_sides *sides, const double *grid, const double *other, lb_dtype type)
{
    int64_t off = 0;
    for (int64_t i = sides->first; i <= sides->last; i++) {
        if (!sides->differs[i]) continue;
        if (!is_of_type(grid[i], type)) return false;
        off += !is_of_type(other[i], type) && fabs(grid[i] - other[i]) <= fabs(other[i]) / 2;
    }
    return off * 2 > sides->count;
}

static int by_value(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;
    return p < q ? -1 : p > q;
}

/* Of those above `least`; sorts the numbers. */
static double least_gap(double *numbers, size_t n, double least)
{
    double gap = INFINITY;
    qsort(numbers, n, sizeof *numbers, by_value);
    for (size_t i = 1; i < n; i++)
        if (numbers[i] - numbers[i - 1] > least) gap = fmin(gap, numbers[i] - numbers[i - 1]);
    return gap;
}

/* The step of which all differing elements of that side are multiples, at most MOST_LEVELS of them; 0: there is
 * none. */
static double step_of(const lb_pattern_sides *sides, const double *grid)
{
    double *sorted = malloc((MOST_SORTED + 1) * sizeof *sorted), step = INFINITY, top = 0;
    size_t n = 1;
    if (!sorted) return 0;
    sorted[0] = 0;
    for (int64_t i = sides->first; i <= sides->last; i++) {
        if (!sides->differs[i]) continue;
        const double x = fabs(grid[i]);
        if (!isfinite(x))
            n = 0, i = sides->last;
        else if (n && n <= MOST_SORTED)
            sorted[n++] = x;
        top = x > top ? x : top;
    }
    /* Gaps only shrink as more are looked at: a few tell that the steps are too many. */
    if (n > MOST_PROBED) step = least_gap(sorted, MOST_PROBED, top / (2 * MOST_LEVELS));
    if (!isfinite(step) || top / step <= MOST_LEVELS)
        step = n ? least_gap(sorted, n, top / (2 * MOST_LEVELS)) : INFINITY;
    free(sorted);
    if (!isfinite(step) || !(top > 0) || top / step > MOST_LEVELS) return 0;
    step = top / round(top / step);
    for (int64_t i = sides->first; i <= sides->last; i++)
        if (sides->differs[i] && fabs(grid[i] / step - round(grid[i] / step)) > 1e-3) return 0;
    return step;
}

/* How far apart are the sides at most? */
static double farthest(const lb_pattern_sides *sides)
{
    double most = 0;
    for (int64_t i = sides->first; i <= sides->last; i++)
        if (sides->differs[i]) most = fmax(most, fabs(sides->a[i] - sides->b[i]));
    return most;
}

/* Largest magnitude of what differs, on either side. */
static double largest(const lb_pattern_sides *sides)
{
    double most = 0;
    for (int64_t i = sides->first; i <= sides->last; i++)
        if (sides->differs[i]) most = fmax(most, fmax(fabs(sides->a[i]), fabs(sides->b[i])));
    return most;
}

/* Every float lies on steps of its own type: only what is coarser says something. `roundoff`: of the coarser type of
 * both. */
static bool on_steps(const lb_pattern_sides *sides, double roundoff, lb_difference *difference)
{
    const double steps[2] = {step_of(sides, sides->a), step_of(sides, sides->b)}, step = fmax(steps[0], steps[1]);
    if (!(step > 0)) return false;
    const double far = farthest(sides), top = largest(sides);
    if (!(step > 16 * roundoff * top) || far > 8 * step || top < 2 * step) return false;
    const bool both = steps[0] > 0 && steps[1] > 0 && fabs(steps[0] - steps[1]) <= 1e-3 * step;
    if (!both && far > step * 1.001) return false;
    difference->pattern = LB_PATTERN_QUANTISED;
    if (both)
        snprintf(difference->detail, sizeof difference->detail, "both lie on steps of %.6g, %.0f apart at most", step,
                 round(far / step));
    else
        snprintf(difference->detail, sizeof difference->detail, "%s lies on steps of %.6g",
                 steps[0] == step ? "the first" : "the second", step);
    return true;
}

bool lb_pattern_quantised(const lb_pattern_sides *sides, lb_dtype dtype_a, lb_dtype dtype_b, lb_difference *difference)
{
    static const lb_dtype types[] = {LB_E4M3FN, LB_E5M2, LB_BF16, LB_F16};
    if (sides->count < FEW || !lb_dtype_is_float(dtype_a) || !lb_dtype_is_float(dtype_b)) return false;
    if (on_steps(sides, fmax(lb_dtype_unit_roundoff(dtype_a), lb_dtype_unit_roundoff(dtype_b)), difference))
        return true;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int side = 0; side < 2; side++) {
            if (lb_dtype_bits(types[i]) >= lb_dtype_bits(side ? dtype_b : dtype_a)) continue;
            if (!holds_type(sides, side ? sides->b : sides->a, side ? sides->a : sides->b, types[i])) continue;
            difference->pattern = LB_PATTERN_QUANTISED;
            snprintf(difference->detail, sizeof difference->detail, "%s holds values of %s",
                     side ? "the second" : "the first", lb_dtype_name(types[i]));
            return true;
        }
    return false;
}
