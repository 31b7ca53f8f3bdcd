/* The schedules over one real type. Included by schedule.c once with REAL float and once with REAL double; NAME(x) adds
 * the suffix, ROUND rounds accumulators after an addition where `accumulate` asks for it. */

#define ADD(dst, src, w)                                                                                               \
    do {                                                                                                               \
        for (int k_ = 0; k_ < (w); k_++) (dst)[k_] += (src)[k_];                                                       \
        if (accumulate) ROUND((dst), (size_t)(w), accumulate, NULL);                                                   \
    } while (0)

/* torch's multi_row_sum: `size` rows of w columns. */
LB_INLINE void NAME(cascade_body)(const REAL *x, int64_t stride, int64_t size, int w, REAL *out, lb_dtype accumulate)
{
    int power = ceil_log2(size) / 4 > 4 ? ceil_log2(size) / 4 : 4;
    int64_t step = (int64_t)1 << power, i = 0;
    REAL acc[4][MAX_WIDTH];
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < w; k++) acc[j][k] = 0;
    while (i + step <= size) {
        for (int64_t end = i + step; i < end; i++) ADD(acc[0], x + i * stride, w);
        for (int j = 1; j < 4; j++) {
            ADD(acc[j], acc[j - 1], w);
            for (int k = 0; k < w; k++) acc[j - 1][k] = 0;
            if (i & ((step - 1) << (j * power))) break;
        }
    }
    for (; i < size; i++) ADD(acc[0], x + i * stride, w);
    for (int j = 1; j < 4; j++) ADD(acc[0], acc[j], w);
    for (int k = 0; k < w; k++) out[k] = acc[0][k];
}

/* A constant width lets the compiler keep the accumulators in registers. */
LB_INLINE void NAME(cascade_widths)(const REAL *x, int64_t stride, int64_t size, int w, REAL *out, lb_dtype accumulate)
{
    if (accumulate)
        NAME(cascade_body)(x, stride, size, w, out, accumulate);
    else if (w == 64)
        NAME(cascade_body)(x, stride, size, 64, out, 0);
    else if (w == 32)
        NAME(cascade_body)(x, stride, size, 32, out, 0);
    else if (w == 16)
        NAME(cascade_body)(x, stride, size, 16, out, 0);
    else if (w == 4)
        NAME(cascade_body)(x, stride, size, 4, out, 0);
    else
        NAME(cascade_body)(x, stride, size, w, out, 0);
}
PER_ISA(NAME(cascade), NAME(cascade_widths),
        (const REAL *x, int64_t stride, int64_t size, int w, REAL *out, lb_dtype accumulate),
        (x, stride, size, w, out, accumulate))

/* torch's row_sum of w lanes: rows are taken four at a time into four partial sums. */
static void NAME(cascade_interleaved)(const REAL *x, int64_t stride, int64_t size, int w, REAL *out,
                                      lb_dtype accumulate)
{
    REAL partial[4 * MAX_LANES];
    int64_t quarter = size / 4;
    if (stride == w) {
        NAME(cascade)(x, 4 * stride, quarter, 4 * w, partial, accumulate);
    } else {
        for (int r = 0; r < 4; r++) NAME(cascade)(x + r * stride, 4 * stride, quarter, w, partial + r * w, accumulate);
    }
    for (int64_t i = quarter * 4; i < size; i++) ADD(partial, x + i * stride, w);
    for (int r = 1; r < 4; r++) ADD(partial, partial + r * w, w);
    for (int k = 0; k < w; k++) out[k] = partial[k];
}

static REAL NAME(cascade_row)(const REAL *x, int64_t vectors, int lanes, const REAL *tail, int64_t n_tail,
                              lb_dtype accumulate)
{
    REAL lane[MAX_LANES], sum = 0;
    NAME(cascade_interleaved)(x, lanes, vectors, lanes, lane, accumulate);
    if (lanes == 1) return lane[0];
    for (int64_t i = 0; i < n_tail; i++) ADD(&sum, tail + i, 1);
    for (int k = 0; k < lanes; k++) ADD(&sum, lane + k, 1);
    return sum;
}

/* torch's outer reduction. */
static void NAME(cascade_columns)(const REAL *x, int64_t stride, int64_t n, int64_t width, int lanes, REAL *out,
                                  lb_dtype accumulate)
{
    int64_t j = 0;
    for (; j + 4 * lanes <= width; j += 4 * lanes) NAME(cascade)(x + j, stride, n, 4 * lanes, out + j, accumulate);
    for (; j + lanes <= width; j += lanes) NAME(cascade_interleaved)(x + j, stride, n, lanes, out + j, accumulate);
    for (; j < width; j++) NAME(cascade_interleaved)(x + j, stride, n, 1, out + j, accumulate);
}

/* Consecutive blocks of `block` terms, each from zero, added in order; block >= n: sequential. */
static void NAME(blocked)(const REAL *x, int64_t stride, int64_t n, int64_t block, int w, REAL *out,
                          lb_dtype accumulate)
{
    REAL acc[MAX_WIDTH];
    for (int k = 0; k < w; k++) out[k] = 0;
    for (int64_t i = 0; i < n; i += block) {
        int64_t end = n - i < block ? n : i + block;
        REAL *into = block >= n ? out : acc;
        for (int k = 0; k < w; k++) into[k] = 0;
        for (int64_t r = i; r < end; r++) ADD(into, x + r * stride, w);
        if (into != out) ADD(out, acc, w);
    }
}

/* Slices of `block` terms, each from zero, added in the order given. */
static void NAME(slices)(const REAL *x, int64_t stride, int64_t n, const lb_schedule *s, int w, REAL *out,
                         lb_dtype accumulate)
{
    const int64_t block = n ? (n + s->size - 1) / s->size : 1;
    REAL acc[MAX_WIDTH];
    for (int k = 0; k < w; k++) out[k] = 0;
    for (int64_t i = 0; i < s->size; i++) {
        const int64_t from = (int64_t)((uint64_t)s->vector >> 4 * i & 15) * block;
        if (from >= n) continue;
        NAME(blocked)(x + from * stride, stride, n - from < block ? n - from : block, block, w, acc, accumulate);
        ADD(out, acc, w);
    }
}

static void NAME(tree)(const lb_schedule *s, const REAL *x, int64_t stride, int w, REAL *out, lb_dtype accumulate)
{
    const lb_tree_rule rule = {.accumulate = accumulate};
    if (NAME(lb_sum_tree_run)(s->tree, &rule, x, stride, w, out) == LB_OK) return;
    for (int k = 0; k < w; k++) out[k] = (REAL)NAN; /* out of memory */
}

/* A binary counter of partial sums: partial[l] holds 2^l terms, as in a tree split at powers of two. */
static void NAME(pairwise)(const REAL *x, int64_t stride, int64_t n, int w, REAL *out, lb_dtype accumulate)
{
    REAL partial[48][MAX_WIDTH];
    for (int64_t i = 0; i < n; i++) {
        REAL term[MAX_WIDTH];
        for (int k = 0; k < w; k++) term[k] = x[i * stride + k] + (REAL)0;
        int level = 0;
        for (; i >> level & 1; level++) { /* earlier terms are the left operand; the sum is the same either way */
            ADD(term, partial[level], w);
        }
        for (int k = 0; k < w; k++) partial[level][k] = term[k];
    }
    bool first = true;
    for (int k = 0; k < w; k++) out[k] = 0;
    for (int level = 0; level < 48 && n >> level; level++) {
        if (!(n >> level & 1)) continue;
        if (first)
            for (int k = 0; k < w; k++) out[k] = partial[level][k];
        else
            ADD(out, partial[level], w);
        first = false;
    }
}

/* Terms, or their squares (each rounded), into eight lanes: no term waits for one in another lane. */
LB_INLINE void NAME(eight_lanes_body)(const REAL *x, int64_t n, bool squared, REAL *acc)
{
    REAL lane[8] = {0};
    const int64_t whole = n - n % 8;
    if (squared)
        for (int64_t i = 0; i < whole; i += 8)
            for (int k = 0; k < 8; k++) lane[k] += x[i + k] * x[i + k];
    else
        for (int64_t i = 0; i < whole; i += 8)
            for (int k = 0; k < 8; k++) lane[k] += x[i + k];
    for (int64_t i = whole; i < n; i++) lane[i - whole] += squared ? x[i] * x[i] : x[i];
    for (int k = 0; k < 8; k++) acc[k] = lane[k];
}
PER_ISA(NAME(eight_lanes), NAME(eight_lanes_body), (const REAL *x, int64_t n, bool squared, REAL *acc),
        (x, n, squared, acc))

REAL NAME(lb_schedule_sum_squares)(const REAL *x, int64_t n)
{
    REAL acc[8];
    const int64_t whole = n - n % 8, fours = n - n % 4;
    NAME(eight_lanes)(x, whole, true, acc);
    for (int l = 1; l < 8; l++) acc[0] += acc[l];
    for (int64_t i = whole; i < fours; i++) acc[0] += x[i] * x[i];
    for (int64_t i = fours; i < n; i++) acc[0] = FMA(x[i], x[i], acc[0]);
    return acc[0];
}

static void NAME(lanes)(const REAL *x, int64_t stride, int64_t n, int lanes, int w, REAL *out, lb_dtype accumulate)
{
    REAL acc[MAX_PARTIALS] = {0};
    if (lanes == 8 && w == 1 && stride == 1 && !accumulate)
        NAME(eight_lanes)(x, n, false, acc);
    else
        for (int64_t i = 0; i < n; i++) ADD(acc + i % lanes * w, x + i * stride, w);
    for (int l = 1; l < lanes; l++) ADD(acc, acc + l * w, w);
    for (int k = 0; k < w; k++) out[k] = acc[k];
}

/* After it every thread of the warp holds the same sum; thread 0's is computed alone, level by level. */
static void NAME(warp)(REAL *acc, int threads, int w, lb_dtype accumulate)
{
    for (int distance = threads / 2; distance >= 1; distance /= 2)
        for (int t = 0; t < distance; t++) ADD(acc + t * w, acc + (t + distance) * w, w);
}

static void NAME(butterfly)(const REAL *x, int64_t stride, int64_t n, int threads, int64_t vector, int w, REAL *out,
                            lb_dtype accumulate)
{
    REAL acc[MAX_PARTIALS];
    const int64_t turns = (n + vector - 1) / vector;
    const int warps = (threads + 31) / 32, used = turns < threads ? ((int)turns + 31) / 32 : warps;
    for (int k = 0; k < (warps > 1 ? used * 32 : threads) * w; k++) acc[k] = 0;
    for (int64_t i = 0, t = 0; i < n; t = t + 1 < threads ? t + 1 : 0)
        for (const int64_t end = i + vector < n ? i + vector : n; i < end; i++) ADD(acc + t * w, x + i * stride, w);
    if (warps == 1) {
        NAME(warp)(acc, threads, w, accumulate);
    } else {
        REAL sums[32 * MAX_WIDTH];
        for (int k = 0; k < 32 * w; k++) sums[k] = 0;
        for (int g = 0; g < used; g++) { /* warps without a term hold zeros */
            NAME(warp)(acc + g * 32 * w, 32, w, accumulate);
            for (int k = 0; k < w; k++) sums[g * w + k] = acc[g * 32 * w + k];
        }
        NAME(warp)(sums, 32, w, accumulate);
        for (int k = 0; k < w; k++) acc[k] = sums[k];
    }
    for (int k = 0; k < w; k++) out[k] = acc[k];
}

/* Halves of multiples of eight terms, summed as trees; from 128 terms down eight accumulators and then the tail. */
static void NAME(halves)(const REAL *x, int64_t stride, int64_t n, int w, REAL *out, lb_dtype accumulate)
{
    REAL acc[8 * MAX_WIDTH];
    int64_t i = 0;
    for (int k = 0; k < w; k++) out[k] = 0;
    if (n > 128) {
        int64_t half = n / 2 - n / 2 % 8;
        NAME(halves)(x, stride, half, w, out, accumulate);
        NAME(halves)(x + half * stride, stride, n - half, w, acc, accumulate);
        ADD(out, acc, w);
        return;
    }
    if (n >= 8) {
        for (int k = 0; k < 8 * w; k++) acc[k] = x[k / w * stride + k % w];
        for (i = 8; i < n - n % 8; i++) ADD(acc + i % 8 * w, x + i * stride, w);
        for (int distance = 1; distance < 8; distance *= 2)
            for (int r = 0; r < 8; r += 2 * distance) ADD(acc + r * w, acc + (r + distance) * w, w);
        for (int k = 0; k < w; k++) out[k] = acc[k];
    }
    for (; i < n; i++) ADD(out, x + i * stride, w);
}

static void NAME(columns)(const lb_schedule *s, const REAL *x, int64_t stride, int64_t n, int w, REAL *out,
                          lb_dtype accumulate)
{
    switch (s->kind) {
    case LB_SCHEDULE_PAIRWISE: NAME(pairwise)(x, stride, n, w, out, accumulate); return;
    case LB_SCHEDULE_BLOCKED: NAME(blocked)(x, stride, n, s->size, w, out, accumulate); return;
    case LB_SCHEDULE_HALVED: NAME(blocked)(x, stride, n, lb_schedule_halved(s->size, n), w, out, accumulate); return;
    case LB_SCHEDULE_TREE: NAME(tree)(s, x, stride, w, out, accumulate); return;
    case LB_SCHEDULE_SPLITK:
        if (s->vector)
            NAME(slices)(x, stride, n, s, w, out, accumulate);
        else
            NAME(blocked)(x, stride, n, n ? (n + s->size - 1) / s->size : 1, w, out, accumulate);
        return;
    case LB_SCHEDULE_LANES: NAME(lanes)(x, stride, n, (int)s->size, w, out, accumulate); return;
    case LB_SCHEDULE_BUTTERFLY: NAME(butterfly)(x, stride, n, (int)s->size, s->vector, w, out, accumulate); return;
    case LB_SCHEDULE_NUMPY: NAME(halves)(x, stride, n, w, out, accumulate); return;
    case LB_SCHEDULE_EXACT:
        for (int k = 0; k < w; k++) out[k] = NAME(exact)(x + k, stride, n);
        return;
    case LB_SCHEDULE_TENSOR_CORE: /* sums of products alone: choices.c gives them to no other op */
    case LB_SCHEDULE_STREAMK:
    case LB_SCHEDULE_DPBF16:
    case LB_SCHEDULE_TORCHDOT:
    case LB_SCHEDULE_FOLDED:
    case LB_SCHEDULE_EIGHTS:
    case LB_SCHEDULE_TDPBF16:
    case LB_SCHEDULE_CASCADE:
    case LB_SCHEDULE_TORCH:
    case LB_SCHEDULE_SEQUENTIAL: NAME(blocked)(x, stride, n, n ? n : 1, w, out, accumulate); return;
    }
}

static REAL NAME(vector_row)(const REAL *x, int64_t n, int lanes, lb_dtype accumulate)
{
    if (n < lanes) lanes = 1;
    return NAME(cascade_row)(x, n / lanes, lanes, x + n / lanes * lanes, n % lanes, accumulate);
}

/* A piece per thread, none below the grain; then the pieces' sums, zeros for idle threads. */
static REAL NAME(pieces)(const REAL *x, int64_t n, int threads, lb_dtype accumulate)
{
    enum { GRAIN = 32768 };
    int lanes = (int)NAME(torch).size;
    int64_t used = (n + GRAIN - 1) / GRAIN < threads ? (n + GRAIN - 1) / GRAIN : threads;
    if (n < GRAIN || threads == 1) return NAME(vector_row)(x, n, lanes, accumulate);
    REAL sums[LB_SCHEDULE_MAX_SIZE] = {0};
    int64_t size = (n + used - 1) / used;
    for (int64_t i = 0, t = 0; i < n; i += size, t++)
        sums[t] = NAME(vector_row)(x + i, n - i < size ? n - i : size, lanes, accumulate);
    return NAME(vector_row)(sums, threads, lanes, accumulate);
}

REAL NAME(lb_schedule_sum)(const lb_schedule *schedule, const REAL *x, int64_t n, lb_dtype accumulate)
{
    const lb_schedule *s = schedule && lb_schedule_applies(schedule, n) ? schedule : &NAME(torch);
    REAL sum = 0;
    if (s->kind == LB_SCHEDULE_CASCADE) return NAME(vector_row)(x, n, (int)s->size, accumulate);
    if (s->kind == LB_SCHEDULE_TORCH) return NAME(pieces)(x, n, (int)s->size, accumulate);
    NAME(columns)(s, x, 1, n, 1, &sum, accumulate);
    return sum;
}

void NAME(lb_schedule_sum_columns)(const lb_schedule *schedule, const REAL *x, int64_t stride, int64_t n, int64_t width,
                                   REAL *out, lb_dtype accumulate)
{
    const bool own = schedule && schedule->kind != LB_SCHEDULE_TORCH && lb_schedule_applies(schedule, n);
    const lb_schedule *s = own ? schedule : &NAME(torch);
    if (s->kind == LB_SCHEDULE_CASCADE) {
        NAME(cascade_columns)(x, stride, n, width, (int)s->size, out, accumulate);
        return;
    }
    bool many = s->kind == LB_SCHEDULE_LANES || s->kind == LB_SCHEDULE_BUTTERFLY;
    int step = many ? (int)(MAX_PARTIALS / s->size) : MAX_WIDTH;
    if (step > MAX_WIDTH) step = MAX_WIDTH;
    for (int64_t j = 0; j < width; j += step)
        NAME(columns)(s, x + j, stride, n, width - j < step ? (int)(width - j) : step, out + j, accumulate);
}
#undef ADD
