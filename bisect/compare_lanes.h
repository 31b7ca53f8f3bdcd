/* The vector loops of compare.c, included once per level of instructions with LEVEL(name) giving the function names.
 *
 * A template and not a set of inline functions: GCC lowers vectors wider than the function's own target allows before it
 * inlines, so that only functions compiled for a level get that level's instructions. The lanes, and so the bits, are the
 * same at every level.
 */
static inline vec LEVEL(choose)(ivec mask, vec yes, vec no)
{
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

static inline vec LEVEL(absolute)(vec x)
{
    return (vec)((ivec)x & INT64_MAX);
}

static inline ivec LEVEL(rank_of)(const grid *g, vec x)
{
    vec m = LEVEL(absolute)(x), zero = {0};
    ivec above = (((ivec)m - g->normal_bits) >> g->shift) + g->normal_rank;
    ivec below = __builtin_convertvector(LEVEL(choose)(m < g->normal, m * g->per_tiny, zero), ivec);
    ivec rank = (above & ~(m < g->normal)) | (below & (m < g->normal));
    return (rank ^ (x < 0)) - (x < 0); /* negative where x is */
}

/* |x - y|. Of f64 on both sides of zero it takes all 64 bits. */
static inline vec LEVEL(rank_distance)(ivec x, ivec y)
{
    const ivec larger = x > y;
    const uvec high = (uvec)((x & larger) | (y & ~larger)), low = (uvec)((y & larger) | (x & ~larger));
    return __builtin_convertvector(high - low, vec);
}

static inline void LEVEL(add_equal)(sums *s, const double *a, size_t n)
{
    vec same = s->same, zero = {0};
    for (size_t i = 0; i < n; i += LANES) {
        vec x;
        memcpy(&x, a + i, sizeof x);
        x = LEVEL(choose)(x - x == 0, x, zero);
        same += x * x;
    }
    s->same = same;
}

/* Adds a block that differs; `ulp` gets the distances, −1 where the bits agree. */
static inline void LEVEL(add_differing)(sums *s, const grid *g, const double *a, const double *b, double *ulp,
                                        size_t n)
{
    sums t = *s;
    const vec zero = {0}, one = zero + 1, infinity = zero + INFINITY;
    for (size_t i = 0; i < n; i += LANES) {
        vec x, y;
        memcpy(&x, a + i, sizeof x), memcpy(&y, b + i, sizeof y);
        ivec finite = (x - x == 0) & (y - y == 0), differs = ((ivec)x != (ivec)y) & ~((x != x) & (y != y));
        vec ranks = LEVEL(rank_distance)(LEVEL(rank_of)(g, x), LEVEL(rank_of)(g, y));
        vec distance = LEVEL(choose)(finite, LEVEL(absolute)(g->ranks ? ranks : x - y),
                                     LEVEL(choose)(x == y, zero, infinity));
        distance = LEVEL(choose)(differs, distance, zero - 1);
        memcpy(ulp + i, &distance, sizeof distance);
        x = LEVEL(choose)(finite, x, zero), y = LEVEL(choose)(finite, y, zero);
        vec d = x - y, ad = LEVEL(absolute)(d), aa = LEVEL(absolute)(x);
        t.aa += x * x, t.bb += y * y, t.dd += d * d, t.ab += x * y;
        t.max_abs = LEVEL(choose)(ad > t.max_abs, ad, t.max_abs);
        ivec larger = (aa != 0) & (ad * t.rel_a > t.rel_d * aa);
        t.rel_d = LEVEL(choose)(larger, ad, t.rel_d), t.rel_a = LEVEL(choose)(larger, aa, t.rel_a);
        t.max_ulp = LEVEL(choose)(distance > t.max_ulp, distance, t.max_ulp);
        t.differing += LEVEL(choose)(differs, one, zero),
            t.nonfinite += LEVEL(choose)(differs & ~finite, one, zero);
    }
    *s = t;
}

static inline word LEVEL(pick)(word mask, word yes, word no)
{
    return (yes & mask) | (no & ~mask);
}

/* The same for f32 (and bf16 widened to f32: `shift` 16): ranks are their bits, so that distances need no f64. The f64
 * sums meet the lanes in the same order, and have the same bits. n is a multiple of 2 LANES. `bucket`: of each distance.
 * Nothing is added when a number is not finite: then `*finite` is cleared. What comes next is fetched early: `ahead` floats
 * on. */
static inline void LEVEL(add_differing_f32)(sums *s, int shift, const float *a, const float *b, uint8_t *bucket,
                                            size_t n, size_t ahead, bool *finite)
{
    sums t = *s;
    const vec zero = {0};
    const word none = {0};
    /* Two of each: the next half need not wait for what the last one found. */
    vec max_abs[2] = {t.max_abs, t.max_abs}, rel_d[2] = {t.rel_d, t.rel_d}, rel_a[2] = {t.rel_a, t.rel_a};
    word most = {0}, count = {0}, bad = {0};
    for (size_t i = 0; i < n; i += 2 * LANES) {
        word x, y;
        memcpy(&x, a + i, sizeof x), memcpy(&y, b + i, sizeof y);
        __builtin_prefetch(a + i + ahead), __builtin_prefetch(b + i + ahead);
        word mx = x & INT32_MAX, my = y & INT32_MAX;
        bad |= (word)(mx >= F32_INFINITY) | (word)(my >= F32_INFINITY);
        word gap = LEVEL(pick)((word)(mx > my), mx - my, my - mx), other_sign = (word)((x ^ y) >> 31 != 0);
        word distance = LEVEL(pick)(other_sign, mx + my, gap) >> shift, differs = (word)(x != y);
        most = LEVEL(pick)((word)(distance > most), distance, most);
        count -= differs;
        /* The leading bit alone, so that the conversion cannot round up to the next power. */
        real leading = __builtin_convertvector(distance & ~(distance >> 1), real);
        word power = ((word)leading >> 23) - 126; /* 2^(power-1) <= distance < 2^power */
        power = LEVEL(pick)((word)(distance == 0), none + 1, power) &
                differs; /* -0 and +0: no distance, other bits */
        bytes packed = __builtin_convertvector(power, bytes);
        memcpy(bucket + i, &packed, sizeof packed);
        for (int half = 0; half < 2; half++) {
            half_real fx, fy;
            memcpy(&fx, a + i + half * LANES, sizeof fx), memcpy(&fy, b + i + half * LANES, sizeof fy);
            vec vx = __builtin_convertvector(fx, vec), vy = __builtin_convertvector(fy, vec);
            vec d = vx - vy, ad = LEVEL(absolute)(d), aa = LEVEL(absolute)(vx);
            t.aa += vx * vx, t.bb += vy * vy, t.dd += d * d, t.ab += vx * vy;
            max_abs[half] = LEVEL(choose)(ad > max_abs[half], ad, max_abs[half]);
            ivec larger = (aa != zero) & (ad * rel_a[half] > rel_d[half] * aa);
            rel_d[half] = LEVEL(choose)(larger, ad, rel_d[half]), rel_a[half] = LEVEL(choose)(larger, aa, rel_a[half]);
        }
    }
    uint32_t any = 0;
    for (int l = 0; l < 2 * LANES; l++) any |= bad[l];
    *finite = any == 0;
    if (any) return;
    for (int l = 0; l < 2 * LANES; l++) {
        t.max_ulp[0] = most[l] > t.max_ulp[0] ? most[l] : t.max_ulp[0];
        t.differing[0] += count[l];
    }
    t.max_abs = LEVEL(choose)(max_abs[1] > max_abs[0], max_abs[1], max_abs[0]);
    ivec second = rel_d[1] * rel_a[0] > rel_d[0] * rel_a[1];
    t.rel_d = LEVEL(choose)(second, rel_d[1], rel_d[0]), t.rel_a = LEVEL(choose)(second, rel_a[1], rel_a[0]);
    *s = t;
}

/* How many of n bytes (a multiple of 64) are `byte`, for each byte between the least and the greatest: neighbours that are alike
 * do not wait for each other as they would at a table of counters. n is at most 64 * 255. */
static inline void LEVEL(count_bytes)(const uint8_t *list, size_t n, int64_t *counts)
{
    many_bytes least = {0}, most = {0}, x;
    for (size_t l = 0; l < sizeof least; l++) least[l] = UINT8_MAX;
    for (size_t i = 0; i < n; i += sizeof x) {
        memcpy(&x, list + i, sizeof x);
        many_bytes below = (many_bytes)(x < least), above = (many_bytes)(x > most);
        least = (x & below) | (least & ~below), most = (x & above) | (most & ~above);
    }
    uint8_t from = UINT8_MAX, to = 0;
    for (size_t l = 0; l < sizeof x; l++)
        from = least[l] < from ? least[l] : from, to = most[l] > to ? most[l] : to;
    for (int byte = from; byte <= to; byte++) {
        many_bytes sum = {0}, like = sum + (uint8_t)byte;
        for (size_t i = 0; i < n; i += sizeof x) {
            memcpy(&x, list + i, sizeof x);
            sum -= (many_bytes)(x == like);
        }
        for (size_t l = 0; l < sizeof x; l++) counts[byte] += sum[l];
    }
}
