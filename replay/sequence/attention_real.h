/* One head of attention over one real type. Included by attention.c with REAL float and double. h describes the
 * head. */

/* What lies outside the window of query i. */
static void NAME(fill_unseen)(const lb_attention_head *h, int64_t i, REAL *row, REAL value)
{
    for (int64_t j = 0, first = first_key(h, i); j < first; j++) row[j] = value;
    for (int64_t j = end_key(h, i); j < h->keys; j++) row[j] = value;
}

/* row = exp(row - x) where query i looks, and 0 elsewhere. */
static void NAME(seen_exponentials)(const lb_attention_head *h, int64_t i, REAL *row, REAL x)
{
    const int64_t first = first_key(h, i), end = end_key(h, i);
    for (int64_t j = first; j < end; j++) row[j] -= x;
    NAME(lb_exp)(row + first, row + first, (size_t)(end - first));
    NAME(fill_unseen)(h, i, row, 0);
}

/* scores[i, j] = scale q_i k_j + mask, -inf where masked. */
static bool NAME(head_scores)(const lb_attention_head *h, const REAL *q, const REAL *k, const REAL *mask, REAL *scores)
{
    lb_product s = {
        .m = h->queries, .n = h->keys, .k = h->size, .a_row = h->size, .a_column = 1, .b_row = 1, .b_column = h->size};
    if (lb_product_run(&s, h->type, &h->method, q, k, scores) != LB_OK) return false;
    for (int64_t i = 0; i < h->queries; i++) {
        REAL *row = scores + i * h->keys;
        const int64_t first = first_key(h, i), end = end_key(h, i);
        for (int64_t j = first; j < end; j++) row[j] *= (REAL)h->scale;
        for (int64_t j = first; mask && j < end; j++) row[j] += mask[i * h->keys + j];
        NAME(fill_unseen)(h, i, row, -(REAL)INFINITY);
    }
    return true;
}

/* Nothing in row i is seen: all is -inf, or a NaN that the search for the maximum passes over. */
static bool NAME(sees_nothing)(const lb_attention_head *h, const REAL *row)
{
    const int64_t passed_over = h->skips_nan ? h->keys / h->vector * h->vector : h->keys;
    for (int64_t j = 0; j < h->keys; j++)
        if (row[j] != -(REAL)INFINITY && (row[j] == row[j] || j < passed_over)) return false;
    return true;
}

/* A score of +inf makes exp(inf - inf) of itself. torch's CPU kernels take it for 0 (16-bit inputs) or inf (f32) in
 * full vectors, so that the row has the log-sum-exp +inf and not NaN, unless more keys follow its block. Without
 * vectors it is NaN: the bound leaves both open. */
static bool NAME(overflows)(const lb_attention_head *h, REAL *row, REAL *sum, REAL *lse)
{
    const int64_t last = (h->keys - 1) / KEY_BLOCK * KEY_BLOCK;
    const int64_t vectors = last + (h->keys - last) / h->vector * h->vector;
    for (int64_t j = 0; j < h->keys; j++) {
        if (row[j] != row[j] || (row[j] == (REAL)INFINITY && (j < last || j >= vectors))) return false;
    }
    for (int64_t j = 0; j < h->keys; j++) row[j] = row[j] == (REAL)INFINITY && h->fast_exp == LB_F32 ? (REAL)NAN : 0;
    *sum = 1, *lse = (REAL)INFINITY;
    return true;
}

/* lse = max + log sum. Rows that see nothing, or +inf, have the sum 1. */
static void NAME(add_logarithms)(const REAL *sum, REAL *lse, int64_t rows)
{
    enum { ROWS = 64 };
    REAL logs[ROWS];
    for (int64_t i = 0; i < rows; i += ROWS) {
        const int64_t n = rows - i < ROWS ? rows - i : ROWS;
        NAME(lb_log)(logs, sum + i, (size_t)n);
        for (int64_t r = 0; r < n; r++) lse[i + r] += logs[r];
    }
}

/* Rows become exp(score - max); sums and log-sum-exps go to `sum` and `lse`. A row that sees nothing becomes 0. */
static void NAME(head_exponentials)(const lb_attention_head *h, REAL *scores, REAL *sum, REAL *lse)
{
    for (int64_t i = 0; i < h->queries; i++) {
        REAL *row = scores + i * h->keys, top = -(REAL)INFINITY;
        for (int64_t j = 0; j < h->keys; j++) top = row[j] > top ? row[j] : top;
        if (top == -(REAL)INFINITY && NAME(sees_nothing)(h, row)) {
            memset(row, 0, (size_t)h->keys * sizeof *row);
            sum[i] = 1;
            lse[i] = h->empty_lse;
            continue;
        }
        if (h->fast_exp && top == (REAL)INFINITY && NAME(overflows)(h, row, &sum[i], &lse[i])) continue;
        if (top == -(REAL)INFINITY) /* NaNs alone: exp(-inf - -inf) is one, too */
            for (int64_t j = 0; j < h->keys; j++) row[j] = (REAL)NAN;
        else
            NAME(seen_exponentials)(h, i, row, top);
        sum[i] = NAME(lb_schedule_sum)(h->method.schedule, row, h->keys, h->method.accumulate);
        lse[i] = top;
    }
    NAME(add_logarithms)(sum, lse, h->queries);
}

/* y = softmax(scores) v. */
static bool NAME(head_forward)(const lb_attention_head *h, const head_inputs *in, const head_outputs *out)
{
    const REAL *v = in->v;
    REAL *scores = out->scores, *sum = out->sum, *y = out->y;
    if (!NAME(head_scores)(h, in->q, in->k, in->mask, scores)) return false;
    NAME(head_exponentials)(h, scores, sum, out->lse);
    if (h->rounds) ROUND(scores, (size_t)(h->queries * h->keys), h->rounds, NULL);
    lb_product s = {.m = h->queries, .n = h->values, .k = h->keys};
    if (lb_product_run(&s, h->type, &h->method, scores, v, y) != LB_OK) return false;
    for (int64_t i = 0; i < h->queries; i++)
        for (int64_t j = 0; j < h->values; j++) y[i * h->values + j] /= sum[i];
    return true;
}

/* dv += p' dy, ds = p (dy v' - sum dy y), dq = scale ds k, dk += scale ds' q. */
static bool NAME(head_backward)(const lb_attention_head *h, const gradients *g, const head_inputs *in)
{
    const REAL *dy = g->dy, *y = g->y, *lse = g->lse, *q = in->q, *k = in->k, *v = in->v;
    REAL *p = g->p, *ds = g->ds, *part = g->part, *dq = g->dq, *dk = g->dk, *dv = g->dv;
    int64_t n = h->queries * h->keys;
    if (!NAME(head_scores)(h, q, k, in->mask, p)) return false;
    for (int64_t i = 0; i < h->queries; i++)
        NAME(seen_exponentials)(h, i, p + i * h->keys, lse[i]); /* 0 also where lse is NaN */
    lb_product s = {.m = h->queries,
                    .n = h->keys,
                    .k = h->values,
                    .a_row = h->values,
                    .a_column = 1,
                    .b_row = 1,
                    .b_column = h->values};
    if (lb_product_run(&s, h->type, &h->method, dy, v, ds) != LB_OK) return false;
    for (int64_t i = 0; i < h->queries; i++) {
        REAL delta = 0;
        for (int64_t j = 0; j < h->values; j++) delta += dy[i * h->values + j] * y[i * h->values + j];
        for (int64_t j = 0; j < h->keys; j++) ds[i * h->keys + j] = p[i * h->keys + j] * (ds[i * h->keys + j] - delta);
    }
    if (h->rounds) ROUND(p, (size_t)n, h->rounds, NULL), ROUND(ds, (size_t)n, h->rounds, NULL);
    s = (lb_product){.m = h->keys,
                     .n = h->values,
                     .k = h->queries,
                     .a_row = 1,
                     .a_column = h->keys,
                     .b_row = h->values,
                     .b_column = 1};
    if (lb_product_run(&s, h->type, &h->method, p, dy, part) != LB_OK) return false;
    for (int64_t i = 0; i < h->keys * h->values; i++) dv[i] += part[i];
    s.n = h->size, s.b_row = h->size;
    if (lb_product_run(&s, h->type, &h->method, ds, q, part) != LB_OK) return false;
    for (int64_t i = 0; i < h->keys * h->size; i++) dk[i] += (REAL)h->scale * part[i];
    s = (lb_product){.m = h->queries, .n = h->size, .k = h->keys};
    if (lb_product_run(&s, h->type, &h->method, ds, k, dq) != LB_OK) return false;
    for (int64_t i = 0; i < h->queries * h->size; i++) dq[i] *= (REAL)h->scale;
    return true;
}
