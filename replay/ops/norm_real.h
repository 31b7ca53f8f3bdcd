/* Layer and RMS norm over one real type. Included by op_norm.c with REAL float and double.
 * A row has n elements; gamma and beta may be NULL (1 and 0). */

/* With both, the last product is fused with the sum, as torch's build does. */
LB_INLINE void NAME(normalize_body)(const REAL *x, REAL *y, int64_t n, REAL mean, REAL rstd, const REAL *gamma,
                                    const REAL *beta)
{
    if (gamma && beta)
        for (int64_t i = 0; i < n; i++) y[i] = FMA((x[i] - mean) * rstd, gamma[i], beta[i]);
    else if (gamma)
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * gamma[i];
    else
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd + (beta ? beta[i] : 0);
}
PER_ISA(NAME(normalize), NAME(normalize_body),
        (const REAL *x, REAL *y, int64_t n, REAL mean, REAL rstd, const REAL *gamma, const REAL *beta),
        (x, y, n, mean, rstd, gamma, beta))

/* Mean and variance in a given order: two passes, `row` is room for n elements. */
static void NAME(two_pass)(const lb_method *method, const REAL *x, int64_t n, REAL *row, REAL *mean, REAL *var)
{
    *mean = NAME(lb_schedule_sum)(method->schedule, x, n, method->accumulate) / (REAL)n;
    for (int64_t i = 0; i < n; i++) row[i] = (x[i] - *mean) * (x[i] - *mean);
    *var = NAME(lb_schedule_sum)(method->schedule, row, n, method->accumulate) / (REAL)n;
}

/* What a backward pass reads of one row, or of some columns of it. */
typedef struct NAME(norm_row) {
    const REAL *dy, *x;
    REAL mean, rstd;
    int64_t n;
} NAME(norm_row);

/* torch's formula: dx = a g + b x + c with a = rstd, b = (sum g mean - sum g x) a^3 / n, c = -b mean - sum g a / n,
 * where g = dy gamma. `row` is room for 2 n elements. */
static void NAME(layer_backward)(const lb_method *method, const NAME(norm_row) * r, const REAL *gamma, REAL *row,
                                 REAL *dx)
{
    const REAL *dy = r->dy, *x = r->x, mean = r->mean, rstd = r->rstd;
    const int64_t n = r->n;
    REAL *g = row, *gx = row + n, scale = (REAL)1 / (REAL)n;
    for (int64_t i = 0; i < n; i++) g[i] = gamma ? dy[i] * gamma[i] : dy[i];
    for (int64_t i = 0; i < n; i++) gx[i] = g[i] * x[i];
    REAL ds = NAME(lb_schedule_sum)(method->schedule, gx, n, method->accumulate);
    REAL db = NAME(lb_schedule_sum)(method->schedule, g, n, method->accumulate);
    REAL b = (db * mean - ds) * rstd * rstd * rstd * scale, c = -b * mean - db * rstd * scale;
    for (int64_t i = 0; i < n; i++) dx[i] = rstd * g[i] + b * x[i] + c;
}

/* dx = rstd g - x rstd^3 / n sum(g x) */
static void NAME(rms_backward)(const lb_method *method, const NAME(norm_row) * r, const REAL *gamma, REAL *row,
                               REAL *dx)
{
    const REAL *dy = r->dy, *x = r->x, rstd = r->rstd;
    const int64_t n = r->n;
    REAL *g = row, *gx = row + n;
    for (int64_t i = 0; i < n; i++) g[i] = gamma ? dy[i] * gamma[i] : dy[i];
    for (int64_t i = 0; i < n; i++) gx[i] = g[i] * x[i];
    REAL b = NAME(lb_schedule_sum)(method->schedule, gx, n, method->accumulate) * rstd * rstd * rstd / (REAL)n;
    for (int64_t i = 0; i < n; i++) dx[i] = rstd * g[i] - b * x[i];
}

/* dgamma += dy (x - mean) rstd and dbeta += dy, row after row; sums may be NULL. `round`: 16-bit dtype of the sums.
 * `fused`: as torch's layer norm of f32 is compiled, dgamma + dy (rstd x - rstd mean) with two fmas (seen in its
 * bits). */
static void NAME(affine_backward)(const NAME(norm_row) * r, REAL *dgamma, REAL *dbeta, bool fused, lb_dtype round)
{
    const REAL *dy = r->dy, *x = r->x, mean = r->mean, rstd = r->rstd;
    const int64_t n = r->n;
    const REAL shift = -(rstd * mean);
    if (dgamma && fused)
        for (int64_t i = 0; i < n; i++) dgamma[i] = FMA(dy[i], FMA(rstd, x[i], shift), dgamma[i]);
    if (dgamma && !fused)
        for (int64_t i = 0; i < n; i++) dgamma[i] += dy[i] * ((x[i] - mean) * rstd);
    if (dbeta)
        for (int64_t i = 0; i < n; i++) dbeta[i] += dy[i];
    if (round && dgamma) ROUND(dgamma, (size_t)n, round, NULL);
    if (round && dbeta) ROUND(dbeta, (size_t)n, round, NULL);
}
