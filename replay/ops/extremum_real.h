/* Extremes of folded dimensions over one type. Included by op_extremum.c with REAL float, double and int64_t. A NaN
 * wins over everything; among equals the first wins. `x` points at the first element, the n elements are `stride`
 * apart. */

#define BEATS(a, b, largest) (IS_NAN(a) ? !IS_NAN(b) : (largest) ? (a) > (b) : (a) < (b))

/* Its position; n > 0. */
static int64_t NAME(extremum)(const REAL *x, int64_t n, int64_t stride, bool largest)
{
    REAL best = x[0];
    int64_t at = 0;
    for (int64_t k = 1; k < n; k++) {
        REAL value = x[k * stride];
        if (IS_NAN(best)) break;
        if (BEATS(value, best, largest)) best = value, at = k;
    }
    return at;
}

/* Columns side by side: the rows are dense, so the inner loop runs along memory. */
static void NAME(extremum_columns)(const REAL *x, int64_t n, int64_t stride, int64_t width, bool largest, REAL *best,
                                   int64_t *at)
{
    for (int64_t j = 0; j < width; j++) best[j] = x[j], at[j] = 0;
    for (int64_t k = 1; k < n; k++)
        for (int64_t j = 0; j < width; j++) {
            REAL value = x[k * stride + j];
            if (!IS_NAN(best[j]) && BEATS(value, best[j], largest)) best[j] = value, at[j] = k;
        }
}
#undef BEATS
