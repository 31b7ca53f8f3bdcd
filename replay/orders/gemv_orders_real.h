/* Kernels for one row over one real type, see gemv_orders.h. Included by gemv_orders.c with REAL float and double. */

/* `w` neighbouring results: x is the row, y + i * stride the terms' factors. */
typedef struct NAME(strip) {
    const REAL *x, *y;
    int64_t stride;
    int w;
    bool rounded;
    lb_dtype accumulate;
} NAME(strip);

/* acc += x[i] y[i], by fma or by a rounded product. */
LB_INLINE void NAME(take)(const NAME(strip) * s, int64_t i, REAL *acc)
{
    const REAL x = s->x[i], *y = s->y + i * s->stride;
    if (s->rounded)
        for (int k = 0; k < s->w; k++) acc[k] += x * y[k];
    else
        for (int k = 0; k < s->w; k++) acc[k] = FMA(x, y[k], acc[k]);
    if (s->accumulate) ROUND(acc, (size_t)s->w, s->accumulate, NULL);
}

LB_INLINE void NAME(add)(const NAME(strip) * s, const REAL *term, REAL *acc)
{
    for (int k = 0; k < s->w; k++) acc[k] += term[k];
    if (s->accumulate) ROUND(acc, (size_t)s->w, s->accumulate, NULL);
}

/* ---- folded:L ---- */

/* Terms [from, from + lanes * rounds + more) to the lanes, beginning with lane 0. */
LB_INLINE void NAME(to_lanes)(const NAME(strip) * s, int64_t from, int64_t end, int lanes, REAL (*lane)[COLUMNS])
{
    for (int64_t i = from; i < end; i += lanes)
        for (int l = 0; l < lanes && i + l < end; l++) NAME(take)(s, i + l, lane[l]);
}

/* The sum is in lane 0 then; all others are as they were and must be cleared before they are used again. */
LB_INLINE void NAME(fold)(const NAME(strip) * s, int lanes, bool pairs, REAL (*lane)[COLUMNS])
{
    const int step = pairs ? 2 : 1;
    for (int l = 0; pairs && l < lanes; l += 2) NAME(add)(s, lane[l + 1], lane[l]);
    for (int distance = lanes / 2; distance >= step; distance /= 2)
        for (int l = 0; l < distance; l += step) NAME(add)(s, lane[l + distance], lane[l]);
}

LB_INLINE void NAME(clear)(REAL (*lane)[COLUMNS], int from, int lanes)
{
    for (int l = from; l < lanes; l++)
        for (int k = 0; k < COLUMNS; k++) lane[l][k] = 0;
}

/* How the terms of a column are taken: `head` of them first, then `at_once` at a time into `lanes`. `last`: the head is
 * added at the end, rounded; `doubled`: what fills 2 * lanes goes to as many lanes, whose upper half is then added to
 * the lower one. */
typedef struct NAME(way) {
    int64_t head, at_once;
    int lanes;
    bool pairs, after, again, last, doubled;
} NAME(way);

LB_INLINE void NAME(last_body)(const NAME(strip) * s, const NAME(way) * way, int64_t head, int64_t n,
                               REAL (*lane)[COLUMNS])
{
    const int lanes = way->lanes;
    const int64_t whole = way->doubled ? n - (n - head) % (2 * lanes) : head;
    NAME(strip) last = *s;
    last.rounded = true;
    NAME(to_lanes)(s, head, whole, 2 * lanes, lane);
    for (int l = 0; l < lanes; l++) NAME(add)(s, lane[l + lanes], lane[l]);
    NAME(to_lanes)(s, whole, n, lanes, lane);
    NAME(fold)(s, lanes, way->pairs, lane);
    for (int64_t i = 0; i < head; i++) NAME(take)(&last, i, lane[0]);
}

LB_INLINE void NAME(folded_body)(const NAME(strip) * s, const NAME(way) * way, int64_t n, REAL *out)
{
    REAL lane[2 * LB_FOLDED_MAX_LANES][COLUMNS];
    const int lanes = way->lanes;
    const int64_t head = way->head < n ? way->head : n,
                  whole = way->again || way->after ? n - (n - head) % way->at_once : n;
    NAME(clear)(lane, 0, 2 * LB_FOLDED_MAX_LANES);
    if (way->last) {
        NAME(last_body)(s, way, head, n, lane);
    } else {
        for (int64_t i = 0; i < head; i++) NAME(take)(s, i, lane[0]);
        NAME(to_lanes)(s, head, whole, lanes, lane);
        NAME(fold)(s, lanes, way->pairs, lane);
    }
    if (way->again && whole < n) {
        NAME(clear)(lane, 1, lanes);
        NAME(to_lanes)(s, whole, n, lanes, lane);
        NAME(fold)(s, lanes, way->pairs, lane);
    }
    for (int64_t i = whole; way->after && i < n; i++) NAME(take)(s, i, lane[0]);
    memcpy(out, lane[0], (size_t)s->w * sizeof *out);
}
PER_ISA(NAME(folded), NAME(folded_body), (const NAME(strip) * s, const NAME(way) * way, int64_t n, REAL *out),
        (s, way, n, out))

/* Column `j` of the last few, of which there are `last`; -1: of those before them. */
static NAME(way) NAME(way_of)(const lb_schedule *order, int64_t n, int64_t j, int64_t last)
{
    const int64_t options = order->vector;
    const bool second = j == 1 && last > 1; /* of a pair */
    NAME(way)
    way = {.head = lb_schedule_head(order, n),
           .at_once = order->size,
           .lanes = (int)order->size,
           .pairs = options & LB_FOLDED_PAIRS,
           .after = options & LB_FOLDED_TAIL_AFTER,
           .again = options & LB_FOLDED_TAIL_AGAIN};
    if (j >= 0 && way.after) {
        if (options & LB_FOLDED_ALIGNED) way.head = order->size - LB_FOLDED_OFFSET(options);
        way.at_once = 2 * order->size;
        way.lanes = (int)order->size * (second ? 1 : 2);
    } else if (j >= 0 && way.again)
        way.again = false, way.last = true, way.doubled = !second;
    return way;
}

/* ---- eights ---- */

/* Terms i … i+7 added to `sum`. */
LB_INLINE void NAME(take_eight)(const NAME(strip) * s, int64_t i, REAL *sum)
{
    REAL one[COLUMNS] = {0}, other[COLUMNS] = {0};
    NAME(take)(s, i + 6, sum);
    NAME(take)(s, i + 4, sum);
    NAME(take)(s, i + 7, one);
    NAME(take)(s, i + 5, one);
    NAME(add)(s, one, sum);
    for (int k = 0; k < COLUMNS; k++) one[k] = 0;
    NAME(take)(s, i + 2, one);
    NAME(take)(s, i, one);
    NAME(take)(s, i + 3, other);
    NAME(take)(s, i + 1, other);
    NAME(add)(s, other, one);
    NAME(add)(s, one, sum);
}

LB_INLINE void NAME(eights_body)(const NAME(strip) * s, bool last_columns, int64_t n, REAL *out)
{
    REAL sum[COLUMNS] = {0};
    int64_t i = 0;
    for (; !last_columns && i + 8 <= n; i += 8) NAME(take_eight)(s, i, sum);
    for (; i < n; i++) NAME(take)(s, i, sum);
    memcpy(out, sum, (size_t)s->w * sizeof *out);
}
PER_ISA(NAME(eights), NAME(eights_body), (const NAME(strip) * s, bool last_columns, int64_t n, REAL *out),
        (s, last_columns, n, out))

/* Results from, …, from + w - 1 of `columns`. */
static void NAME(strip_of)(const lb_schedule *order, const NAME(strip) * s, int64_t from, int64_t whole, int64_t n,
                           REAL *out)
{
    if (order->kind == LB_SCHEDULE_EIGHTS) {
        NAME(eights)(s, from >= whole, n, out);
    } else {
        const NAME(way) way = NAME(way_of)(order, n, from < whole ? -1 : from - whole, s->stride - whole);
        NAME(folded)(s, &way, n, out);
    }
    for (int k = 0; k < s->w; k++) out[k] = out[k] == out[k] ? out[k] : (REAL)NAN; /* one NaN for all instructions */
}

void NAME(lb_gemv_row_product)(const lb_schedule *order, const REAL *x, const REAL *y, int64_t n, int64_t columns,
                               REAL *out, lb_dtype accumulate)
{
    const bool eights = order->kind == LB_SCHEDULE_EIGHTS;
    const bool rounded = !eights && order->vector & LB_FOLDED_ROUNDED;
    const int64_t whole = columns - columns % (eights ? 16 : 4);
    for (int64_t j = 0, w; j < columns; j += w) {
        w = j < whole ? whole - j : eights ? columns - j : 1;
        if (w > COLUMNS) w = COLUMNS;
        const NAME(strip) s = {x, y + j, columns, (int)w, rounded, accumulate};
        NAME(strip_of)(order, &s, j, whole, n, out + j);
    }
}
