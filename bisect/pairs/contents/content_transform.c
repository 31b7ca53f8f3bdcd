/* Scales and shifts, proven: see content_transform.h. */
#include "contents/content_transform.h"

#include <float.h>
#include <math.h>

static const double LOG2_E = 1.4426950408889634;

double lb_content_transform_room(lb_dtype a, lb_dtype b)
{
    return 1.25 * (lb_dtype_unit_roundoff(a) + lb_dtype_unit_roundoff(b));
}

/* Below it f32 is denormal, and a rounding is no longer relative. */
static const double TINY = FLT_MIN;

static bool is_near(double x, double y, double room)
{
    return x == y || (isfinite(x) && isfinite(y) && fabs(x - y) <= room * fmax(fabs(x), fabs(y)) + TINY);
}

/* A sum is rounded relative to the largest of its terms. */
static bool is_sum(double a, double by, double b, double room)
{
    return fabs(a + by - b) <= room * fmax(fabs(a), fmax(fabs(b), fabs(by)));
}

bool lb_content_transform_holds(const lb_content_transform *t, const double *a, const double *b, int64_t n, double room)
{
    const bool shifted = t->kind == LB_CONTENT_SHIFTED;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return false;
        if (shifted ? !is_sum(a[i], t->by, b[i], room) : !is_near(t->by * a[i], b[i], room)) return false;
    }
    return n > 0;
}

/* A factor is rounded once itself, in f32 where a framework multiplies by a number. */
static const double FACTOR_ROUNDED = 0x1p-23;

/* The factor that fits best; 0: the first numbers already say that there is none. */
static double best_factor(const double *a, const double *b, int64_t n, int64_t stride, double room, int64_t *counted)
{
    double products = 0, squares = 0, first = 0;
    *counted = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = a[i * stride], y = b[i * stride];
        if (!isfinite(x) || !isfinite(y)) return 0;
        if (fabs(x) < TINY || fabs(y) < TINY) continue;
        if (!(*counted)++) first = y / x;
        if (*counted < 16 && !is_near(first, y / x, 2 * room)) return 0;
        products += x * y, squares += x * x;
    }
    return squares > 0 ? products / squares : 0;
}

lb_content_transform lb_content_transform_find(const double *a, const double *b, int64_t n, double room)
{
    enum { FEWEST = 4 };
    int64_t counted;
    lb_content_transform t = {LB_CONTENT_SCALED, best_factor(a, b, n, 1, room, &counted), room};
    if (t.by != 0 && counted >= FEWEST && lb_content_transform_holds(&t, a, b, n, room)) {
        t.known = 4 * room / sqrt((double)counted) + FACTOR_ROUNDED;
        const double usual = lb_content_transform_usual(t.by, t.known);
        if (usual != 0) t.by = usual;
        if (t.by == 1) t.kind = LB_CONTENT_UNTRANSFORMED;
        return t;
    }
    for (int sign = -1; sign <= 1 && n; sign += 2) {
        t = (lb_content_transform){LB_CONTENT_SHIFTED, sign, 0};
        if (lb_content_transform_holds(&t, a, b, n, room)) return t;
    }
    return (lb_content_transform){LB_CONTENT_UNTRANSFORMED, 1, 0};
}

bool lb_content_transform_factors(const double *a, const double *b, int64_t rows, int64_t columns, bool of_rows,
                                  double room, double *factors)
{
    const int64_t lines = of_rows ? rows : columns, each = of_rows ? columns : rows, stride = of_rows ? 1 : columns;
    bool differ = false;
    for (int64_t k = 0; k < lines; k++) {
        const int64_t first = of_rows ? k * columns : k;
        int64_t counted;
        factors[k] = best_factor(a + first, b + first, each, stride, room, &counted);
        if (factors[k] == 0 || counted < 4) return false;
        for (int64_t i = 0; i < each; i++)
            if (!is_near(factors[k] * a[first + i * stride], b[first + i * stride], room)) return false;
        differ |= !is_near(factors[k], factors[0], 2 * room);
    }
    return differ;
}

static double usual_below(double scale, double room)
{
    int exponent;
    const double mantissa = frexp(scale, &exponent), square = scale * scale, turned = 1 / square;
    if (is_near(mantissa, 0.5, room)) return ldexp(0.5, exponent);
    if (is_near(mantissa, 1, room)) return ldexp(1, exponent);
    if (round(square) >= 2 && square < 1e6 && is_near(square, round(square), 2 * room)) return sqrt(round(square));
    if (round(turned) >= 2 && turned < 1e6 && is_near(turned, round(turned), 2 * room)) return 1 / sqrt(round(turned));
    return 0;
}

/* A whole number is near any large square: what is rounded coarsely tells small ones alone. */
double lb_content_transform_usual(double scale, double room)
{
    const double sign = scale < 0 ? -1 : 1, size = fabs(scale), square = fmax(size * size, 1 / (size * size));
    if (square * room > 0.02 && !is_near(frexp(size, &(int){0}), 0.5, room)) return 0;
    double usual = usual_below(size, room);
    if (usual == 0) {
        usual = usual_below(size * LOG2_E, room) / LOG2_E;
        if (usual == 0) usual = usual_below(size / LOG2_E, room) * LOG2_E;
    }
    return sign * usual;
}
