/* Sums over numbers beside their exact ones. They are added up in eight lanes, so that a processor takes several at
 * once, and the lanes in their order: how many it takes changes no bit. */
#ifndef LB_BISECT_ROUNDING_SUMS_H
#define LB_BISECT_ROUNDING_SUMS_H

#include <lastbit/tensor.h>

/* Numbers beside their exact ones; of the exact ones nothing but finite numbers that are no masks counts. */
typedef struct lb_rounding_apart {
    double largest, squares; /* of the distances that are finite: the largest, the sum of their squares */
    double reach, whole;     /* the same of the exact numbers */
} lb_rounding_apart;

void lb_rounding_apart_add(lb_rounding_apart *apart, const double *numbers, const double *exact, int64_t n);

/* How numbers stand to the range of their dtype. */
typedef struct lb_rounding_limits {
    double range;        /* larger ones are rounded to no finite number */
    double most, normal; /* the largest finite number, the least normal one */
    double beyond;       /* numbers from there on are meant to be infinite */
} lb_rounding_limits;

typedef struct lb_rounding_counts {
    int64_t nonzero;  /* exact numbers that are not zero */
    int64_t vanished; /* of these, recorded as zero */
    int64_t subnormal;
    int64_t saturated; /* beyond the range of the dtype: recorded as its largest number, an infinity or a NaN */
} lb_rounding_counts;

void lb_rounding_counts_add(lb_rounding_counts *counts, const lb_rounding_limits *limits, const double *recorded,
                            const double *exact, int64_t n);
/* What was rounded, as f32: 0 where it does not count. */
void lb_rounding_sums_keep(float *rounded, const double *recorded, const double *exact, int64_t n);
/* Products with what was rounded that are finite: their sum, and that of their squares. */
void lb_rounding_sums_multiply(const double *numbers, const float *rounded, int64_t n, double *sum, double *squares);
/* numbers += rounded */
void lb_rounding_sums_put(double *numbers, const float *rounded, int64_t n);

#endif
