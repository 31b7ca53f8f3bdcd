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

/* Replaces the lanes' largest quotients by |d| / |a| where that is larger; tells where. */
static inline ivec LEVEL(note_rate)(rates *r, vec ad, vec aa)
{
    const ivec larger = (aa != 0) & (ad * r->a > r->d * aa);
    r->d = LEVEL(choose)(larger, ad, r->d), r->a = LEVEL(choose)(larger, aa, r->a);
    return larger;
}

/* Adds a block that differs; `ulp` gets the distances, −1 where the bits agree. */
static inline void LEVEL(add_differing)(sums *s, const grid *g, const double *a, const double *b, double *ulp, size_t n)
{
    sums t = *s;
    const vec zero = {0}, one = zero + 1, infinity = zero + INFINITY;
    for (size_t i = 0; i < n; i += LANES) {
        vec x, y;
        memcpy(&x, a + i, sizeof x), memcpy(&y, b + i, sizeof y);
        ivec finite = (x - x == 0) & (y - y == 0), differs = ((ivec)x != (ivec)y) & ~((x != x) & (y != y));
        vec ranks = LEVEL(rank_distance)(LEVEL(rank_of)(g, x), LEVEL(rank_of)(g, y));
        vec distance =
            LEVEL(choose)(finite, LEVEL(absolute)(g->ranks ? ranks : x - y), LEVEL(choose)(x == y, zero, infinity));
        distance = LEVEL(choose)(differs, distance, zero - 1);
        memcpy(ulp + i, &distance, sizeof distance);
        x = LEVEL(choose)(finite, x, zero), y = LEVEL(choose)(finite, y, zero);
        vec d = x - y, ad = LEVEL(absolute)(d), aa = LEVEL(absolute)(x);
        t.aa += x * x, t.bb += y * y, t.dd += d * d, t.ab += x * y;
        t.max_abs = LEVEL(choose)(ad > t.max_abs, ad, t.max_abs);
        LEVEL(note_rate)(&t.largest, ad, aa);
        t.max_ulp = LEVEL(choose)(distance > t.max_ulp, distance, t.max_ulp);
        t.differing += LEVEL(choose)(differs, one, zero), t.nonfinite += LEVEL(choose)(differs & ~finite, one, zero);
    }
    *s = t;
}

static inline bool LEVEL(any)(ivec mask)
{
    int64_t some = 0;
    for (int l = 0; l < LANES; l++) some |= mask[l];
    return some != 0;
}

/* The largest |d| / |x| among GROUP elements. Not inlined: the loop that asks for it keeps its registers. */
static __attribute__((noinline)) void LEVEL(note_rates)(rates *r, const float *a, const float *b)
{
    ivec news = {0};
    for (size_t i = 0; i < GROUP; i += LANES) {
        half_real fx, fy;
        memcpy(&fx, a + i, sizeof fx), memcpy(&fy, b + i, sizeof fy);
        vec vx = __builtin_convertvector(fx, vec), vy = __builtin_convertvector(fy, vec);
        news |= LEVEL(note_rate)(r, LEVEL(absolute)(vx - vy), LEVEL(absolute)(vx));
    }
    if (!LEVEL(any)(news)) return;
    double most = 0;
    const vec quotients = r->d / r->a;
    for (int l = 0; l < LANES; l++) most = quotients[l] > most ? quotients[l] : most;
    /* Below what the f32 difference and product of anything larger can be rounded to: 2^-24 of them, and some. */
    r->screen = (float)fmin(most * (1 - 0x1p-20), FLT_MAX);
}

/* Adds sixteen f32 numbers of either side to the sums, and their distances to the greatest; returns the leading bits of those, each
 * alone. `screened` becomes negative where |d| / |x| may be the largest yet. */
#if defined(__AVX512CD__)
static inline __attribute__((always_inline)) word LEVEL(add_sixteen)(sums *t, word *most, real *screened, int shift,
                                                                     float screen, const float *a, const float *b)
{
    /* Products of two f32 numbers are exact in f64: fused or not, one bit pattern. */
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b), magnitude = _mm512_set1_epi32(INT32_MAX);
    const __m512i mx = _mm512_and_si512(x, magnitude), my = _mm512_and_si512(y, magnitude);
    const __mmask16 other_sign = _mm512_movepi32_mask(_mm512_xor_si512(x, y));
    __m512i distance = _mm512_mask_add_epi32(_mm512_abs_epi32(_mm512_sub_epi32(mx, my)), other_sign, mx, my);
    if (shift) distance = _mm512_srli_epi32(distance, (unsigned)shift);
    *most = (word)_mm512_max_epu32((__m512i)*most, distance);
    const __m512 far = _mm512_abs_ps(_mm512_sub_ps((__m512)x, (__m512)y));
    *screened = (real)_mm512_min_ps((__m512)*screened, _mm512_fmsub_ps((__m512)mx, _mm512_set1_ps(screen), far));
    for (int half = 0; half < 2; half++) {
        const __m512d vx = _mm512_cvtps_pd(_mm256_loadu_ps(a + half * LANES)),
                      vy = _mm512_cvtps_pd(_mm256_loadu_ps(b + half * LANES));
        const __m512d d = _mm512_sub_pd(vx, vy);
        t->aa = (vec)_mm512_fmadd_pd(vx, vx, (__m512d)t->aa), t->bb = (vec)_mm512_fmadd_pd(vy, vy, (__m512d)t->bb);
        t->ab = (vec)_mm512_fmadd_pd(vx, vy, (__m512d)t->ab),
        t->dd = (vec)_mm512_add_pd((__m512d)t->dd, _mm512_mul_pd(d, d));
        t->max_abs = (vec)_mm512_range_pd((__m512d)t->max_abs, d, 0xB); /* the larger magnitude */
    }
    const __m512i least =
        _mm512_mask_max_epu32(distance, other_sign, distance, _mm512_set1_epi32(1)); /* -0 and +0: as below */
    return (word)_mm512_srlv_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_lzcnt_epi32(least));
}
#else
/* By eight, since GCC compares vectors wider than the processor's one element at a time. */
static inline __attribute__((always_inline)) word8 LEVEL(pick)(word8 mask, word8 yes, word8 no)
{
    return (yes & mask) | (no & ~mask);
}

static inline __attribute__((always_inline)) word8 LEVEL(add_eight)(word8 *most, word8 *screened, int shift,
                                                                    float screen, word8 x, word8 y)
{
    const word8 mx = x & INT32_MAX, my = y & INT32_MAX, first = (word8)((int8)mx > (int8)my),
                other_sign = (word8)((int8)(x ^ y) >> 31);
    const word8 distance = LEVEL(pick)(other_sign, mx + my, LEVEL(pick)(first, mx - my, my - mx)) >> shift;
    *most = LEVEL(pick)((word8)(distance > *most), distance, *most);
    const real8 far = (real8)((word8)((real8)x - (real8)y) & INT32_MAX);
    *screened |= (word8)(far >= (real8)mx * screen) & (word8)(mx != 0) & (word8)(x != y);
    word8 filled = distance | (other_sign & 1); /* -0 and +0: no distance, other bits */
    for (int by = 1; by < 32; by *= 2) filled |= filled >> by;
    return filled ^ (filled >> 1);
}

static inline __attribute__((always_inline)) void LEVEL(add_four)(sums *t, int at, const float *a, const float *b)
{
    float4 fx, fy;
    memcpy(&fx, a, sizeof fx), memcpy(&fy, b, sizeof fy);
    const vec4 x = __builtin_convertvector(fx, vec4), y = __builtin_convertvector(fy, vec4), d = x - y;
    vec4 *const aa = (vec4 *)&t->aa + at, *const bb = (vec4 *)&t->bb + at, *const ab = (vec4 *)&t->ab + at,
                *const dd = (vec4 *)&t->dd + at;
    *aa += x * x, *bb += y * y, *ab += x * y, *dd += d * d;
    vec4 *const max_abs = (vec4 *)&t->max_abs + at, ad = (vec4)((int4)d & INT64_MAX);
    const int4 larger = ad > *max_abs;
    *max_abs = (vec4)(((int4)ad & larger) | ((int4)*max_abs & ~larger));
}

static inline __attribute__((always_inline)) word LEVEL(add_sixteen)(sums *t, word *most, real *screened, int shift,
                                                                     float screen, const float *a, const float *b)
{
    word8 leading[2];
    for (int h = 0; h < 2; h++, a += LANES, b += LANES) {
        word8 x, y;
        memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
        leading[h] = LEVEL(add_eight)((word8 *)most + h, (word8 *)screened + h, shift, screen, x, y);
        LEVEL(add_four)(t, 0, a, b), LEVEL(add_four)(t, 1, a + 4, b + 4);
    }
    word both;
    memcpy(&both, leading, sizeof both);
    return both;
}
#endif

static inline bool LEVEL(negative)(real x)
{
#if defined(__AVX512CD__)
    return _mm512_movepi32_mask((__m512i)x) != 0;
#else
    uint32_t some = 0;
    for (int l = 0; l < 2 * LANES; l++) some |= ((word)x)[l];
    return some >> 31;
#endif
}

/* A full adder of each bit: `sum` takes a and b, and what is returned counts twice. */
static inline __attribute__((always_inline)) word LEVEL(carry_of)(word *sum, word a, word b)
{
    const word s = *sum;
#if defined(__AVX512CD__)
    *sum = (word)_mm512_ternarylogic_epi32((__m512i)s, (__m512i)a, (__m512i)b, 0x96);
    return (word)_mm512_ternarylogic_epi32((__m512i)s, (__m512i)a, (__m512i)b, 0xE8);
#else
    *sum = s ^ a ^ b;
    return (s & a) | ((s ^ a) & b);
#endif
}

/* Adds n words, at least one and with room for one more, that count 2^plane: of every two of them comes one for the plane above. */
static inline void LEVEL(add_words)(word *planes, int plane, word *words, size_t n)
{
    for (; n > 1; plane++, n /= 2) {
        word sum = planes[plane], none = {0};
        if (n % 2) words[n++] = none;
        for (size_t i = 0; i < n; i += 2) words[i / 2] = LEVEL(carry_of)(&sum, words[i], words[i + 1]);
        planes[plane] = sum;
    }
    for (word carry = words[0]; plane < PLANES; plane++) {
        const word sum = planes[plane];
        planes[plane] = sum ^ carry, carry &= sum;
    }
}

/* The same for f32 (and `half`, bf16 widened to f32): ranks are their bits, so that distances need no f64. The f64
 * sums meet the lanes in the same order, and have the same bits. n is a multiple of GROUP. The largest |d| / |x| is looked for in f64 only in groups where some f32
 * quotient is not below a screen, which follows the largest so far. Nothing is added when a number is not finite: then `*finite`
 * is cleared. */
static inline __attribute__((always_inline)) void LEVEL(add_floats)(sums *s, distances *u, int shift, const float *a,
                                                                    const float *b, size_t n, bool *finite)
{
    sums t = *s;
    rates largest = s->largest;
    word most = u->most, ones = u->planes[0], twos = u->planes[1], fours[BLOCK / GROUP + 1];
    for (size_t i = 0; i < n; i += GROUP) {
        word leading[4];
        real screened = {0};
        for (int k = 0; k < 4; k++)
            leading[k] = LEVEL(add_sixteen)(&t, &most, &screened, shift, largest.screen, a + i + 2 * LANES * k,
                                            b + i + 2 * LANES * k);
        word low = LEVEL(carry_of)(&ones, leading[0], leading[1]),
             high = LEVEL(carry_of)(&ones, leading[2], leading[3]);
        fours[i / GROUP] = LEVEL(carry_of)(&twos, low, high);
        if (__builtin_expect(LEVEL(negative)(screened), 0)) LEVEL(note_rates)(&largest, a + i, b + i);
    }
    const vec squares = t.aa + t.bb; /* of f32 numbers, that f64 holds */
    *finite = !LEVEL(any)(squares - squares != 0);
    if (!*finite) return;
    t.largest = largest, *s = t;
    u->most = most, u->planes[0] = ones, u->planes[1] = twos;
    LEVEL(add_words)(u->planes, 2, fours, n / GROUP);
}

static inline void LEVEL(add_differing_f32)(sums *s, distances *u, bool half, const float *a, const float *b, size_t n,
                                            bool *finite)
{
    if (half)
        LEVEL(add_floats)(s, u, 16, a, b, n, finite);
    else
        LEVEL(add_floats)(s, u, 0, a, b, n, finite);
}

/* Adds what the planes count to buckets: bit i to bucket i + 1. */
static inline void LEVEL(count_planes)(const word *planes, int64_t *buckets)
{
    for (int bit = 0; bit < 32; bit++) {
        word counts = {0};
        for (int plane = 0; plane < PLANES; plane++) counts += (planes[plane] >> bit & 1) << plane;
        for (int l = 0; l < 2 * LANES; l++) buckets[bit + 1] += counts[l];
    }
}
