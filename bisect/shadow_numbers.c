/* See shadow_numbers.h. */
#include "shadow_numbers.h"

#include <math.h>

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

/* Additive masks hold the lowest value of a dtype. Next to that the scores vanish: any of them would agree. Masks that are
 * there on both sides are left out, of the error as of the scale. */
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

double lb_shadow_amplification(const double *x, const double *s, int64_t n, lb_dtype dtype)
{
    double e = max_error(x, s, n), u = lb_dtype_unit_roundoff(lb_dtype_part(dtype));
    return isfinite(e) && u > 0 ? e / u : 0;
}

bool lb_shadow_numbers_agree(const double *a, const double *b, int64_t n, double amplified)
{
    double tolerance = 0x1p13 * amplified * 0x1p-53 + 0x1p-40 * max_finite(a, n);
    return max_error(a, b, n) <= tolerance;
}
