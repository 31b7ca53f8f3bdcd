/* Numbers that are another tensor's after a change that a conversion makes and that leaves the model what it was.
 *
 *      scaled    b = s a            a scale of attention folded into q; s of a tensor's own, a power of two, 1/sqrt(head)
 *      shifted   b = a + 1, a - 1   a norm that stores w, beside one that multiplies by 1 + w
 *      columns   b[i, j] = a[i, j] g[j]    a norm's weight folded into the matrix behind it
 *      rows      b[i, j] = a[i, j] g[i]    the same of a matrix that is stored transposed
 *      product   b[i] = a[i] + sum over j of W[i, j] c[j]   a norm's bias folded into the bias behind it
 *
 * Each is proven element by element: what is left is within the roundings of the two dtypes, each once. */
#ifndef LB_BISECT_CONTENT_TRANSFORM_H
#define LB_BISECT_CONTENT_TRANSFORM_H

#include <lastbit/tensor.h>

typedef enum lb_content_transform_kind {
    LB_CONTENT_UNTRANSFORMED,
    LB_CONTENT_SCALED,
    LB_CONTENT_SHIFTED,
    LB_CONTENT_COLUMNS_SCALED,
    LB_CONTENT_ROWS_SCALED,
    LB_CONTENT_SOME_ROWS_SCALED, /* by s, and the others not */
    LB_CONTENT_PRODUCT_ADDED
} lb_content_transform_kind;

typedef struct lb_content_transform {
    lb_content_transform_kind kind;
    double by;    /* s, or what is added */
    double known; /* how well, relative: the more numbers tell it, the better */
} lb_content_transform;

/* Roundings that may lie between the numbers of two dtypes, relative to a number: each side's once, and half of one for
 * the factor. */
double lb_content_transform_room(lb_dtype a, lb_dtype b);
/* `b` scaled or shifted `a`. Of `n` numbers of which fewer than four are not zero nothing is said. */
lb_content_transform lb_content_transform_find(const double *a, const double *b, int64_t n, double room);
bool lb_content_transform_holds(const lb_content_transform *t, const double *a, const double *b, int64_t n,
                                double room);
/* Of matrices (rows, columns): the factor of each column, or of each row. `factors`: as many. False: there are none, or
 * all are one. */
bool lb_content_transform_factors(const double *a, const double *b, int64_t rows, int64_t columns, bool of_rows,
                                  double room, double *factors);
/* Is a scale one that conversions fold in: a power of two, or the root or the reciprocal root of a whole number; these
 * with log2(e), which turns exp into exp2? Gives the nearest one, or 0. */
double lb_content_transform_usual(double scale, double room);

#endif
