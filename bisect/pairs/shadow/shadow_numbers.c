/* See shadow_numbers.h. */
#include "shadow/shadow_numbers.h"

#include <lastbit/processor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double MASK = 0x1p96;

int64_t lb_shadow_numbers(const lb_tensor *t, double *out)
{
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r);) {
        const char *p = (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8);
        lb_load_f64_strided(out + done, t->dtype, p, r.stride, (size_t)r.count);
        done += r.count;
    }
    return done;
}

double *lb_shadow_numbers_copy(const lb_tensor *t)
{
    const int64_t n = lb_layout_numel(&t->layout);
    double *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    if (x) lb_shadow_numbers(t, x);
    return x;
}

/* splitmix64 (Steele, Lea and Flood, 2014): a word as a function of its number. */
static uint64_t word_of(uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* In [-1, 1). */
static double uniform(uint64_t number)
{
    return (double)(int64_t)word_of(number) * 0x1p-63;
}

/* Is it a whole number, or none at all? From 2^52 on all are whole; below, adding 2^52 and cross_feed it away again
 * rounds to one. */
static inline bool is_whole(double x)
{
    const double size = fabs(x), most = 0x1p52;
    return !(size < most) || size + most - most == size;
}

void lb_shadow_put(const lb_tensor *t, const double *numbers)
{
    const lb_cast exact = LB_CAST_INIT;
    const int64_t width = (int64_t)(lb_dtype_bits(t->dtype) / 8);
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r); numbers += r.count)
        lb_store_f64_strided(t->dtype, (char *)t->data + r.offset * width, r.stride, numbers, (size_t)r.count, &exact);
}

LB_INLINE void disturb_numbers(double *x, int64_t stride, int64_t n, uint64_t number)
{
    for (int64_t i = 0; i < n; i++) {
        const double now = x[i * stride], moved = now * (1 + 0x1p-44 * uniform(number + (uint64_t)i));
        x[i * stride] = is_whole(now) ? now : moved;
    }
}

/* Numbers beside each other are several at once. */
LB_INLINE void disturb_row_body(double *x, int64_t stride, int64_t n, uint64_t number)
{
    if (stride == 1)
        disturb_numbers(x, 1, n, number);
    else
        disturb_numbers(x, stride, n, number);
}
LB_PER_ISA(disturb_row, disturb_row_body, (double *x, int64_t stride, int64_t n, uint64_t number),
           (x, stride, n, number))

void lb_shadow_disturb(const lb_tensor *t, uint64_t serial)
{
    uint64_t number = word_of(serial) & ~(uint64_t)0xFFFFFFFF;
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r); number += (uint64_t)r.count)
        disturb_row((double *)t->data + r.offset, r.stride, r.count, number);
}

/* Additive masks hold the lowest value of a dtype. Next to that the scores vanish: any of them would agree. Masks that
 * are there on both sides are left out, of the error as of the scale. */
static bool is_masked(double x, double s)
{
    return fabs(x) >= MASK && fabs(s) >= MASK && (x < 0) == (s < 0) && fabs(x - s) <= 0x1p-7 * fabs(s);
}

/* max |x − s| over elements finite on both sides; infinity when finiteness differs. */
static double max_error(const double *x, const double *s, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == s[i] || (x[i] != x[i] && s[i] != s[i]) || is_masked(x[i], s[i])) continue;
        double d = fabs(x[i] - s[i]);
        if (!(d <= worst)) worst = d - d == 0 ? d : INFINITY;
    }
    return worst;
}

static double max_finite(const double *x, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i]) < MASK && fabs(x[i]) > worst) worst = fabs(x[i]);
    return worst;
}

double lb_shadow_noise(const double *shadow, const double *disturbed, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(shadow[i] - disturbed[i]);
        if (d > worst && d - d == 0 && !is_masked(shadow[i], disturbed[i])) worst = d;
    }
    return worst;
}

bool lb_shadow_numbers_agree(const double *a, const double *b, int64_t n, double noise)
{
    return max_error(a, b, n) <= 0x1p5 * noise + 0x1p-40 * max_finite(a, n);
}

static const double FAR = 0x1p10;

bool lb_shadow_numbers_tell(const double *a, int64_t n, double noise)
{
    return max_finite(a, n) > FAR * 0x1p5 * noise && max_finite(a, n) > 0;
}

/* The next `n` numbers of a value, and the weights of their places: masks and non-finite numbers count by their place
 * alone. */
enum { AT_ONCE = 64, SUMS = 4 };

LB_INLINE void weigh_body(const double *x, int64_t stride, int64_t n, uint64_t number, double *numbers,
                          double (*weights)[SUMS])
{
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i * stride], sign = v < 0 ? -1 : 1;
        const uint64_t bits = word_of(number + (uint64_t)i);
        numbers[i] = fabs(v) < MASK ? v : sign;
        for (int k = 0; k < SUMS; k++) weights[i][k] = ((double)(int)(bits >> 16 * k & 0xFFFF) - 32767.5) * 0x1p-15;
    }
}

LB_INLINE void project_body(const double *x, int64_t stride, int64_t n, uint64_t number, double *sums, double *squares)
{
    double numbers[AT_ONCE], weights[AT_ONCE][SUMS], s[SUMS], square = *squares;
    memcpy(s, sums, sizeof s);
    for (int64_t from = 0; from < n; from += AT_ONCE) {
        const int64_t count = n - from < AT_ONCE ? n - from : AT_ONCE;
        weigh_body(x + from * stride, stride, count, number + (uint64_t)from, numbers, weights);
        for (int64_t i = 0; i < count; i++) {
            square += numbers[i] * numbers[i];
            for (int k = 0; k < SUMS; k++) s[k] += numbers[i] * weights[i][k];
        }
    }
    memcpy(sums, s, sizeof s), *squares = square;
}
LB_PER_ISA(project, project_body,
           (const double *x, int64_t stride, int64_t n, uint64_t number, double *sums, double *squares),
           (x, stride, n, number, sums, squares))

lb_shadow_projection lb_shadow_projection_of(const lb_tensor *t)
{
    lb_shadow_projection p = {.elements = lb_layout_numel(&t->layout)};
    uint64_t number = 0;
    double squares = 0;
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r); number += (uint64_t)r.count)
        project((const double *)t->data + r.offset, r.stride, r.count, number, p.sums, &squares);
    p.norm = sqrt(squares);
    return p;
}

bool lb_shadow_projections_agree(const lb_shadow_projection *a, const lb_shadow_projection *b)
{
    if (!a->elements || a->elements != b->elements) return false;
    const double room = 0x1p6 * fmax(a->noise, b->noise) + 0x1p-40 * fmax(a->norm, b->norm);
    for (int k = 0; k < 4; k++)
        if (!(fabs(a->sums[k] - b->sums[k]) <= room)) return false;
    return true;
}

bool lb_shadow_projections_tell(const lb_shadow_projection *a, const lb_shadow_projection *b)
{
    return fmin(a->norm, b->norm) > FAR * 0x1p6 * fmax(a->noise, b->noise) && fmin(a->norm, b->norm) > 0;
}
