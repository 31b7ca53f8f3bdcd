/* Sums in lanes: see rounding_sums.h. */
#include "check/rounding_sums.h"

#include <lastbit/processor.h>

#include <float.h>
#include <math.h>

static const double MASK = 0x1p96; /* such numbers hide what they are added to */
enum { LANES = 8 };

typedef struct apart_lanes {
    double largest[LANES], squares[LANES], reach[LANES], whole[LANES];
} apart_lanes;

LB_INLINE void apart_of(apart_lanes *lanes, int lane, double x, double a)
{
    const double d = fabs(x - a), size = fabs(a);
    const bool counts = size < MASK, known = counts && d <= DBL_MAX;
    lanes->reach[lane] = counts && size > lanes->reach[lane] ? size : lanes->reach[lane];
    lanes->whole[lane] += counts ? a * a : 0;
    lanes->largest[lane] = known && d > lanes->largest[lane] ? d : lanes->largest[lane];
    lanes->squares[lane] += known ? d * d : 0;
}

LB_INLINE void apart_body(apart_lanes *lanes, const double *x, const double *exact, int64_t n)
{
    apart_lanes s = *lanes;
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) apart_of(&s, k, x[i + k], exact[i + k]);
    for (int64_t i = n - n % LANES; i < n; i++) apart_of(&s, (int)(i % LANES), x[i], exact[i]);
    *lanes = s;
}
LB_PER_ISA(add_apart, apart_body, (apart_lanes * lanes, const double *x, const double *exact, int64_t n),
           (lanes, x, exact, n))

void lb_rounding_apart_add(lb_rounding_apart *apart, const double *numbers, const double *exact, int64_t n)
{
    apart_lanes lanes = {{0}, {0}, {0}, {0}};
    add_apart(&lanes, numbers, exact, n);
    for (int k = 0; k < LANES; k++) {
        apart->largest = fmax(apart->largest, lanes.largest[k]), apart->squares += lanes.squares[k];
        apart->reach = fmax(apart->reach, lanes.reach[k]), apart->whole += lanes.whole[k];
    }
}

typedef struct count_lanes {
    int64_t nonzero[LANES], vanished[LANES], subnormal[LANES], saturated[LANES];
} count_lanes;

LB_INLINE void count_one(count_lanes *lanes, int lane, const lb_rounding_limits *limits, double y, double x)
{
    const double size = fabs(x), recorded = fabs(y);
    lanes->nonzero[lane] += x != 0, lanes->vanished[lane] += (x != 0) & (y == 0);
    lanes->subnormal[lane] += (y != 0) & (recorded < limits->normal);
    lanes->saturated[lane] += (size > limits->range) & (size < limits->beyond) & !(recorded < limits->most);
}

LB_INLINE void counts_body(count_lanes *lanes, const lb_rounding_limits *limits, const double *y, const double *x,
                           int64_t n)
{
    count_lanes s = *lanes;
    const lb_rounding_limits l = *limits;
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) count_one(&s, k, &l, y[i + k], x[i + k]);
    for (int64_t i = n - n % LANES; i < n; i++) count_one(&s, (int)(i % LANES), &l, y[i], x[i]);
    *lanes = s;
}
LB_PER_ISA(add_counts, counts_body,
           (count_lanes * lanes, const lb_rounding_limits *limits, const double *y, const double *x, int64_t n),
           (lanes, limits, y, x, n))

void lb_rounding_counts_add(lb_rounding_counts *counts, const lb_rounding_limits *limits, const double *recorded,
                            const double *exact, int64_t n)
{
    count_lanes lanes = {{0}, {0}, {0}, {0}};
    add_counts(&lanes, limits, recorded, exact, n);
    for (int k = 0; k < LANES; k++) {
        counts->nonzero += lanes.nonzero[k], counts->vanished += lanes.vanished[k];
        counts->subnormal += lanes.subnormal[k], counts->saturated += lanes.saturated[k];
    }
}

LB_INLINE void keep_body(float *rounded, const double *y, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double d = y[i] - x[i];
        rounded[i] = (float)(fabs(d) <= DBL_MAX && fabs(x[i]) < MASK ? d : 0);
    }
}
LB_PER_ISA(keep, keep_body, (float *rounded, const double *y, const double *x, int64_t n), (rounded, y, x, n))

void lb_rounding_sums_keep(float *rounded, const double *recorded, const double *exact, int64_t n)
{
    keep(rounded, recorded, exact, n);
}

LB_INLINE void multiply_body(const double *x, const float *rounded, int64_t n, double *sums, double *squares)
{
    double sum[LANES] = {0}, square[LANES] = {0};
    for (int64_t i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES && i + k < n; k++) {
            const double term = x[i + k] * (double)rounded[i + k], counted = fabs(term) <= DBL_MAX ? term : 0;
            sum[k] += counted, square[k] += counted * counted;
        }
    for (int k = 0; k < LANES; k++) *sums += sum[k], *squares += square[k];
}
LB_PER_ISA(multiply, multiply_body, (const double *x, const float *rounded, int64_t n, double *sums, double *squares),
           (x, rounded, n, sums, squares))

void lb_rounding_sums_multiply(const double *numbers, const float *rounded, int64_t n, double *sum, double *squares)
{
    multiply(numbers, rounded, n, sum, squares);
}

LB_INLINE void put_body(double *x, const float *rounded, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += (double)rounded[i];
}
LB_PER_ISA(put, put_body, (double *x, const float *rounded, int64_t n), (x, rounded, n))

void lb_rounding_sums_put(double *numbers, const float *rounded, int64_t n)
{
    put(numbers, rounded, n);
}
