/* Products over one real type, see product.h. Included by product.c with REAL float and double. */

/* Any other order: the products of COLUMNS outputs, then their sums. */
static bool NAME(products)(const lb_product *s, const lb_method *method, const REAL *a, const REAL *b, REAL *c)
{
    bool exact = method->schedule->kind == LB_SCHEDULE_EXACT, failed = false;
#pragma omp parallel for schedule(static) if (s->m * s->n * s->k > 65536)
    for (int64_t i = 0; i < s->m; i++) {
        double *terms = malloc((size_t)s->k * COLUMNS * sizeof *terms + 64);
        if (!terms) {
            failed = true;
            continue;
        }
        for (int64_t j0 = 0; j0 < s->n; j0 += COLUMNS) {
            int64_t width = s->n - j0 < COLUMNS ? s->n - j0 : COLUMNS;
            REAL *rounded = (REAL *)terms, *out = c + i * s->n + j0;
            for (int64_t p = 0; p < s->k; p++)
                for (int64_t j = 0; j < width; j++) {
                    if (exact)
                        terms[p * width + j] = (double)a[i * s->k + p] * (double)b[p * s->n + j0 + j];
                    else
                        rounded[p * width + j] = a[i * s->k + p] * b[p * s->n + j0 + j];
                }
            double sums[COLUMNS];
            if (exact) {
                lb_schedule_sum_columns_f64(method->schedule, terms, width, s->k, width, sums, 0);
                for (int64_t j = 0; j < width; j++) out[j] = (REAL)sums[j];
            } else {
                NAME(lb_schedule_sum_columns)(method->schedule, rounded, width, s->k, width, out, method->accumulate);
            }
        }
        free(terms);
    }
    return !failed;
}
