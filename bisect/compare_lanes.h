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

/* The largest |d| and |d| / |x| among two vectors' worth of elements. */
static inline void LEVEL(note_largest)(sums *t, const float *a, const float *b)
{
    for (int half = 0; half < 2; half++) {
        half_real fx, fy;
        memcpy(&fx, a + half * LANES, sizeof fx), memcpy(&fy, b + half * LANES, sizeof fy);
        vec vx = __builtin_convertvector(fx, vec), vy = __builtin_convertvector(fy, vec), d = vx - vy;
        vec ad = LEVEL(absolute)(d), aa = LEVEL(absolute)(vx);
        t->max_abs = LEVEL(choose)(ad > t->max_abs, ad, t->max_abs);
        ivec larger = (aa != 0) & (ad * t->rel_a > t->rel_d * aa);
        t->rel_d = LEVEL(choose)(larger, ad, t->rel_d), t->rel_a = LEVEL(choose)(larger, aa, t->rel_a);
    }
    double most = 0, rate = 0;
    vec rates = t->rel_d / t->rel_a;
    for (int l = 0; l < LANES; l++) most = t->max_abs[l] > most ? t->max_abs[l] : most, rate = rates[l] > rate ? rates[l] : rate;
    /* Below what the f32 difference and product of anything larger can be rounded to: 2^-24 of them, and some. */
    const double below = 1 - 0x1p-20;
    t->screen_abs = (float)fmin(most * below, FLT_MAX), t->screen_rel = (float)fmin(rate * below, FLT_MAX);
    if (t->screen_abs < FLT_MIN) t->screen_abs = -1; /* no room below a subnormal */
}

/* Sixteen f32 numbers of either side, told of in the vector registers of a level: the f64 sums, the distances' greatest and their
 * buckets, the numbers that differ, the largest bits of a magnitude. True: some difference may be the largest yet. */
typedef struct LEVEL(counts) {
    word most, top;
    uint64_t differing;
} LEVEL(counts);

static inline bool LEVEL(add_sixteen)(sums *t, LEVEL(counts) *c, int shift, const float *a, const float *b, uint8_t *bucket)
{
#if defined(__AVX512CD__)
    /* What follows below, with comparisons kept in mask registers. Products of two f32 numbers are exact in f64: fused or not, one bit
     * pattern. */
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b), magnitude = _mm512_set1_epi32(INT32_MAX);
    const __m512i mx = _mm512_and_si512(x, magnitude), my = _mm512_and_si512(y, magnitude);
    const __m512i larger = _mm512_max_epu32(mx, my), smaller = _mm512_min_epu32(mx, my);
    const __mmask16 other_sign = _mm512_movepi32_mask(_mm512_xor_si512(x, y)), differs = _mm512_cmpneq_epi32_mask(x, y);
    const __m512i distance = _mm512_srl_epi32(_mm512_mask_add_epi32(_mm512_sub_epi32(larger, smaller), other_sign, mx, my), _mm_cvtsi32_si128(shift));
    c->top = (word)_mm512_max_epu32((__m512i)c->top, larger), c->most = (word)_mm512_max_epu32((__m512i)c->most, distance);
    c->differing += (unsigned)__builtin_popcount(differs);
    const __m512i power = _mm512_max_epu32(_mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(distance)), _mm512_set1_epi32(1));
    _mm_storeu_si128((__m128i *)bucket, _mm512_maskz_cvtepi32_epi8(differs, power));
    const __m512 far = _mm512_abs_ps(_mm512_sub_ps((__m512)x, (__m512)y)), rate = _mm512_mul_ps((__m512)mx, _mm512_set1_ps(t->screen_rel));
    const __mmask16 high = _mm512_cmp_ps_mask(far, _mm512_set1_ps(t->screen_abs), _CMP_GT_OQ) |
                           _mm512_mask_cmp_ps_mask(_mm512_test_epi32_mask(mx, mx), far, rate, _CMP_GE_OQ);
    for (int half = 0; half < 2; half++) {
        const __m512d vx = _mm512_cvtps_pd(_mm256_loadu_ps(a + half * LANES)), vy = _mm512_cvtps_pd(_mm256_loadu_ps(b + half * LANES));
        const __m512d d = _mm512_sub_pd(vx, vy);
        t->aa = (vec)_mm512_fmadd_pd(vx, vx, (__m512d)t->aa), t->bb = (vec)_mm512_fmadd_pd(vy, vy, (__m512d)t->bb);
        t->ab = (vec)_mm512_fmadd_pd(vx, vy, (__m512d)t->ab), t->dd = (vec)_mm512_add_pd((__m512d)t->dd, _mm512_mul_pd(d, d));
    }
    return (high & differs) != 0;
#else
    const word none = {0};
    word x, y;
    memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
    word mx = x & INT32_MAX, my = y & INT32_MAX, first = (word)(mx > my);
    word larger = LEVEL(pick)(first, mx, my), smaller = LEVEL(pick)(first, my, mx);
    word other_sign = (word)((x ^ y) >> 31 != 0), differs = (word)(x != y);
    word distance = LEVEL(pick)(other_sign, mx + my, larger - smaller) >> shift;
    c->top = LEVEL(pick)((word)(larger > c->top), larger, c->top), c->most = LEVEL(pick)((word)(distance > c->most), distance, c->most);
    /* The leading bit alone, so that the conversion cannot round up to the next power. */
    real leading = __builtin_convertvector(distance & ~(distance >> 1), real);
    word power = ((word)leading >> 23) - 126; /* 2^(power-1) <= distance < 2^power */
    power = LEVEL(pick)((word)(distance == 0), none + 1, power) & differs; /* -0 and +0: no distance, other bits */
    bytes packed = __builtin_convertvector(power, bytes);
    memcpy(bucket, &packed, sizeof packed);
    real far = (real)((word)((real)x - (real)y) & INT32_MAX);
    word high = (word)(far > t->screen_abs) | ((word)(far >= (real)mx * t->screen_rel) & (word)(mx != 0));
    for (int half = 0; half < 2; half++) {
        half_real fx, fy;
        memcpy(&fx, a + half * LANES, sizeof fx), memcpy(&fy, b + half * LANES, sizeof fy);
        vec vx = __builtin_convertvector(fx, vec), vy = __builtin_convertvector(fy, vec), d = vx - vy;
        t->aa += vx * vx, t->bb += vy * vy, t->dd += d * d, t->ab += vx * vy;
    }
    uint32_t some = 0;
    for (int l = 0; l < 2 * LANES; l++) c->differing += differs[l] & 1, some |= high[l] & differs[l];
    return some != 0;
#endif
}

/* The same for f32 (and bf16 widened to f32: `shift` 16): ranks are their bits, so that distances need no f64. The f64
 * sums meet the lanes in the same order, and have the same bits. n is a multiple of 2 LANES. `bucket`: of each distance.
 * The largest differences are found in f64 only among elements whose f32 difference is not below a screen, which follows the
 * largest so far. Nothing is added when a number is not finite: then `*finite` is cleared. What comes next is fetched early: `ahead`
 * floats on. */
static inline void LEVEL(add_differing_f32)(sums *s, int shift, const float *a, const float *b, uint8_t *bucket,
                                            size_t n, size_t ahead, bool *finite)
{
    sums t = *s;
    LEVEL(counts) c = {0};
    for (size_t i = 0; i < n; i += 2 * LANES) {
        __builtin_prefetch(a + i + ahead), __builtin_prefetch(b + i + ahead);
        if (LEVEL(add_sixteen)(&t, &c, shift, a + i, b + i, bucket + i)) LEVEL(note_largest)(&t, a + i, b + i);
    }
    uint32_t top = 0;
    for (int l = 0; l < 2 * LANES; l++) top = c.top[l] > top ? c.top[l] : top;
    *finite = top < F32_INFINITY;
    if (!*finite) return;
    for (int l = 0; l < 2 * LANES; l++) t.max_ulp[0] = c.most[l] > t.max_ulp[0] ? c.most[l] : t.max_ulp[0];
    t.differing[0] += (double)c.differing;
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
