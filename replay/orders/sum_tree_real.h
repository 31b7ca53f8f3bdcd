/* A tree of additions run over one real type, see sum_tree_run.c, which includes this with REAL float and double. */

typedef struct NAME(run) {
    const lb_sum_tree *tree;
    const lb_tree_rule *rule;
    const REAL *x, *y; /* the terms x[i * stride + j], or the products x[i] y[i * stride + j] */
    int64_t stride;
    int width; /* columns at a time, up to WIDTH */
    const slots *slots;
    REAL *sums;         /* WIDTH per slot */
    REAL *left, *right; /* operands of a fused addition */
} NAME(run);

/* Operand `operand` of the columns from j on; a term that has to be computed goes to `room`. */
static const REAL *NAME(operand)(const NAME(run) * r, uint32_t operand, int64_t j, REAL *room)
{
    const uint32_t leaves = r->tree->leaves;
    if (operand >= leaves) return r->sums + (size_t)r->slots->of[operand - leaves] * WIDTH;
    if (!r->y) return r->x + operand * r->stride + j;
    const REAL *y = r->y + operand * r->stride + j;
    for (int k = 0; k < r->width; k++) room[k] = r->x[operand] * y[k];
    return room;
}

static void NAME(add)(const NAME(run) * r, uint32_t a, uint32_t b, int64_t j, REAL *out)
{
    REAL room[2][WIDTH];
    const uint32_t leaves = r->tree->leaves;
    if (r->y && r->rule->chained && (a < leaves || b < leaves)) {
        /* Of two terms the later one is added to the other. */
        const uint32_t term = a < leaves && (b >= leaves || a > b) ? a : b;
        const REAL *sum = NAME(operand)(r, term == a ? b : a, j, room[0]), *y = r->y + term * r->stride + j;
        for (int k = 0; k < r->width; k++) out[k] = FMA(r->x[term], y[k], sum[k]);
    } else {
        const REAL *left = NAME(operand)(r, a, j, room[0]), *right = NAME(operand)(r, b, j, room[1]);
        for (int k = 0; k < r->width; k++) out[k] = left[k] + right[k];
    }
}

/* Sums among the operands are accumulators: the first one is, others count as terms. */
static void NAME(fuse)(const NAME(run) * r, const uint32_t *operand, uint32_t count, int64_t j, REAL *out)
{
    REAL result[WIDTH];
    for (int k = 0; k < r->width; k++) {
        REAL acc = 0;
        bool has_acc = false;
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++) {
            const bool sum = operand[i] >= r->tree->leaves;
            const REAL *at = sum    ? r->sums + (size_t)r->slots->of[operand[i] - r->tree->leaves] * WIDTH + k
                             : r->y ? r->x + operand[i]
                                    : r->x + operand[i] * r->stride + j + k;
            if (sum && !has_acc) {
                has_acc = true;
                acc = *at;
                continue;
            }
            r->left[n] = *at;
            r->right[n++] = r->y && !sum ? r->y[operand[i] * r->stride + j + k] : 1;
        }
        result[k] = NAME(fused)(r->rule, r->left, r->y ? r->right : NULL, n, acc);
    }
    memcpy(out, result, (size_t)r->width * sizeof *out);
}

static void NAME(columns)(const NAME(run) * r, int64_t j, REAL *out)
{
    const lb_sum_tree *t = r->tree;
    REAL room[WIDTH];
    for (uint32_t i = 0; i < t->nodes; i++) {
        const uint32_t *operand = t->operand + t->first[i], n = t->first[i + 1] - t->first[i];
        REAL *sum = r->sums + (size_t)r->slots->of[i] * WIDTH;
        const bool in_unit = r->rule->fused && (operand[0] < t->leaves || operand[n - 1] < t->leaves);
        if (n == 2 && !in_unit)
            NAME(add)(r, operand[0], operand[1], j, sum);
        else
            NAME(fuse)(r, operand, n, j, sum);
        if (r->rule->accumulate) ROUND(sum, (size_t)r->width, r->rule->accumulate, NULL);
    }
    const REAL *last = NAME(operand)(r, t->leaves + t->nodes - 1, j, room);
    for (int k = 0; k < r->width; k++) out[k] = last[k] + (REAL)0; /* sums start from +0 */
}

static lb_status NAME(run_tree)(const lb_sum_tree *tree, const lb_tree_rule *rule, const REAL *x, const REAL *y,
                                int64_t stride, int64_t width, REAL *out)
{
    slots s;
    lb_status status = slots_plan(tree, &s) ? LB_OK : LB_ERR_NOMEM;
    REAL *sums = malloc(((size_t)s.n + 1) * WIDTH * sizeof *sums), *left = malloc(2 * (size_t)s.most * sizeof *left);
    if (!sums || !left) status = LB_ERR_NOMEM;
    for (int64_t j = 0; status == LB_OK && j < width; j += WIDTH) {
        const int w = width - j < WIDTH ? (int)(width - j) : WIDTH;
        const NAME(run) r = {tree, rule, x, y, stride, w, &s, sums, left, left + s.most};
        NAME(columns)(&r, j, out + j);
    }
    free(left);
    free(sums);
    free(s.of);
    return status;
}

lb_status NAME(lb_sum_tree_run)(const lb_sum_tree *tree, const lb_tree_rule *rule, const REAL *x, int64_t stride,
                                int64_t width, REAL *out)
{
    return NAME(run_tree)(tree, rule, x, NULL, stride, width, out);
}

lb_status NAME(lb_sum_tree_products)(const lb_sum_tree *tree, const lb_tree_rule *rule, const REAL *x, const REAL *y,
                                     int64_t stride, int64_t width, REAL *out)
{
    return NAME(run_tree)(tree, rule, x, y, stride, width, out);
}
