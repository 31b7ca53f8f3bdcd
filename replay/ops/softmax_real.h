/* Rows of softmax and its relatives over one real type. Included by op_softmax.c with REAL float and double. */

/* Sixteen running maxima, so that the loop is vector code; a NaN is passed over (it reappears in the exponentials). */
static REAL NAME(row_max)(const REAL *x, int64_t n)
{
    REAL lane[16], top = -(REAL)INFINITY;
    int64_t i = 0;
    for (int k = 0; k < 16; k++) lane[k] = top;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    for (int k = 0; k < 16; k++) top = lane[k] > top ? lane[k] : top;
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* y = exp(x - max); returns the sum of y. */
static REAL NAME(row_exp)(const lb_method *method, const REAL *x, REAL *y, int64_t n, REAL top)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - top;
    NAME(lb_exp)(y, y, (size_t)n);
    return NAME(lb_schedule_sum)(method->schedule, y, n, method->accumulate);
}

static void NAME(row_softmax)(const row_kind *kind, const REAL *x, REAL *y, int64_t n)
{
    const lb_method *method = &kind->method;
    REAL top = NAME(row_max)(x, n);
    if (kind->safe && top == -(REAL)INFINITY) { /* all masked (a row of NaNs has the same maximum here) */
        bool nan = false;
        for (int64_t i = 0; i < n; i++) nan |= x[i] != x[i];
        if (!nan) {
            memset(y, 0, (size_t)n * sizeof *y);
            return;
        }
    }
    REAL sum = NAME(row_exp)(method, x, y, n, top);
    if (kind->rounds && kind->across) ROUND(y, (size_t)n, kind->rounds, NULL);
    for (int64_t i = 0; i < n; i++) y[i] /= sum;
}

static void NAME(row_log_softmax)(const row_kind *kind, const REAL *x, REAL *y, int64_t n)
{
    REAL top = NAME(row_max)(x, n), log_sum = NAME(row_exp)(&kind->method, x, y, n, top);
    bool rounds = kind->rounds && !kind->across;
    if (rounds) ROUND(&log_sum, 1, kind->rounds, NULL);
    NAME(lb_log)(&log_sum, &log_sum, 1);
    if (rounds) ROUND(&log_sum, 1, kind->rounds, NULL);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - top - log_sum;
}

/* d = y (g - sum g y). On CUDA torch makes the products a tensor of the gradient's dtype first, and takes y sum from
 * them (SoftMax.cu, softmax_backward_cuda_out). */
static void NAME(row_softmax_backward)(const row_kind *kind, const REAL *g, const REAL *y, REAL *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++) d[i] = g[i] * y[i];
    if (kind->rounds) ROUND(d, (size_t)n, kind->rounds, NULL);
    REAL sum = NAME(lb_schedule_sum)(kind->method.schedule, d, n, kind->method.accumulate);
    for (int64_t i = 0; i < n; i++) d[i] = kind->rounds ? d[i] - y[i] * sum : (g[i] - sum) * y[i];
}

/* d = g - exp(y) sum g */
static void NAME(row_log_softmax_backward)(const row_kind *kind, const REAL *g, const REAL *y, REAL *d, int64_t n)
{
    REAL sum = NAME(lb_schedule_sum)(kind->method.schedule, g, n, kind->method.accumulate);
    NAME(lb_exp)(d, y, (size_t)n);
    for (int64_t i = 0; i < n; i++) d[i] = g[i] - d[i] * sum;
}
