/* The vector loops of compare.c over f32 numbers (and bf16 widened to f32, on one side or both), included once per
 * level of instructions, as compare_lanes.h is.
 *
 * Ranks of f32 are their bits, so that distances need no f64, and the sums meet the lanes in the order of
 * compare_lanes.h: bits are the same. The hard idea is what a group's largest distance tells. 0: the sides agree. At
 * most NEAR: no element changes its sign or more than doubles, so that its difference is exact in f32 (Sterbenz), the
 * square of that in f64, and the largest is found without any f64. Only groups beyond that take the long way.
 *
 * Of f32 against bf16 distances are those of bf16, whose ranks are the high halves of f32's: `low`, the bits that they
 * leave out, is 0xFFFF then and 0 otherwise. What differs in those alone is no distance apart and counts as `zeros`, as
 * -0 against +0 does. */

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

/* Below: `screened` becomes negative where |d| / |x| may be the largest yet. Distances count as their leading bits,
 * each alone; -0 and +0, which differ by no distance, as `zeros`. Products of two f32 numbers are exact in f64: fused
 * or not, one bit pattern. */
/* Four numbers. GCC 12 widens no more than two at a time by itself. */
static inline __attribute__((always_inline)) vec4 LEVEL(widen)(const float *a)
{
#if defined(__AVX2__)
    return (vec4)_mm256_cvtps_pd(_mm_loadu_ps(a));
#else
    float4 f;
    memcpy(&f, a, sizeof f);
    return __builtin_convertvector(f, vec4);
#endif
}

static inline __attribute__((always_inline)) vec4 LEVEL(add_product)(vec4 sum, vec4 x, vec4 y)
{
#if defined(__FMA__)
    return (vec4)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)sum);
#else
    return sum + x * y;
#endif
}

/* The four sums of eight elements. Where differences are not exact in f32 their squares are not in f64, and `max_abs`
 * is given. By four at every level: Zen 4 widens f32 to eight f64 at less than half the rate. */
static inline __attribute__((always_inline)) void LEVEL(add_products)(products *t, vec *max_abs, const float *a,
                                                                      const float *b)
{
    for (int at = 0; at < 2; at++) {
        const vec4 x = LEVEL(widen)(a + 4 * at), y = LEVEL(widen)(b + 4 * at), d = x - y;
        t->aa[at] = LEVEL(add_product)(t->aa[at], x, x), t->bb[at] = LEVEL(add_product)(t->bb[at], y, y);
        t->ab[at] = LEVEL(add_product)(t->ab[at], x, y);
        if (!max_abs) {
            t->dd[at] = LEVEL(add_product)(t->dd[at], d, d);
            continue;
        }
        t->dd[at] += d * d;
        vec4 *const most = (vec4 *)max_abs + at;
#if defined(__AVX512CD__)
        *most = (vec4)_mm256_range_pd((__m256d)*most, (__m256d)d, 0xB); /* the larger magnitude */
#else
        const vec4 ad = (vec4)((int4)d & INT64_MAX);
        const int4 larger = ad > *most;
        *most = (vec4)(((int4)ad & larger) | ((int4)*most & ~larger));
#endif
    }
}

#if defined(__AVX512CD__)
static inline __attribute__((always_inline)) uint32_t LEVEL(distances_of)(word distance[4], word *most, uint32_t low,
                                                                          const float *a, const float *b)
{
    const __m512i high = _mm512_set1_epi32((int)~low), unit = _mm512_set1_epi32((int)low + 1);
    __m512i d[4];
    __mmask16 differ[4];
    for (int k = 0; k < 4; k++) {
        const __m512i x = _mm512_loadu_si512(a + 16 * k), y = _mm512_loadu_si512(b + 16 * k);
        if (low) differ[k] = _mm512_cmpneq_epi32_mask(x, y);
        d[k] = low ? _mm512_abs_epi32(_mm512_sub_epi32(_mm512_and_si512(x, high), _mm512_and_si512(y, high)))
                   : _mm512_abs_epi32(_mm512_sub_epi32(x, y));
        distance[k] = (word)(low ? _mm512_mask_max_epu32(d[k], differ[k], d[k], unit) : d[k]);
    }
    const __m512i all = _mm512_max_epu32(_mm512_max_epu32(d[0], d[1]), _mm512_max_epu32(d[2], d[3]));
    if (_mm512_cmpgt_epu32_mask(all, _mm512_set1_epi32(NEAR - (int)low))) return NEAR + 1;
    *most = (word)_mm512_max_epu32((__m512i)*most, all);
    if (low) return (differ[0] | differ[1] | differ[2] | differ[3]) != 0;
    return _mm512_test_epi32_mask(all, all) != 0;
}

static inline __attribute__((always_inline)) word LEVEL(add_near)(products *t, real *farthest, word *screened,
                                                                  float screen, word distance, const float *a,
                                                                  const float *b)
{
    const __m512 x = _mm512_loadu_ps(a), far = _mm512_abs_ps(_mm512_sub_ps(x, _mm512_loadu_ps(b)));
    *farthest = (real)_mm512_max_ps((__m512)*farthest, far);
    *screened |= (word)_mm512_fmsub_ps(_mm512_abs_ps(x), _mm512_set1_ps(screen), far);
    LEVEL(add_products)(t, NULL, a, b), LEVEL(add_products)(t, NULL, a + LANES, b + LANES);
    return (word)_mm512_srlv_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_lzcnt_epi32((__m512i)distance));
}

static inline __attribute__((always_inline)) word LEVEL(add_far)(products *t, vec *max_abs, word *most, word *screened,
                                                                 float screen, units u, const float *a, const float *b)
{
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b), magnitude = _mm512_set1_epi32(INT32_MAX);
    const __m512i high = _mm512_set1_epi32((int)(INT32_MAX & ~u.low)), mx = _mm512_and_si512(x, magnitude);
    const __m512i rx = _mm512_and_si512(x, high), ry = _mm512_and_si512(y, high);
    const __mmask16 other_sign = _mm512_movepi32_mask(_mm512_xor_si512(x, y)), nonzero = _mm512_test_epi32_mask(mx, mx),
                    differ = _mm512_cmpneq_epi32_mask(x, y);
    __m512i distance = _mm512_mask_add_epi32(_mm512_abs_epi32(_mm512_sub_epi32(rx, ry)), other_sign, rx, ry);
    *most = (word)_mm512_max_epu32((__m512i)*most, distance);
    const __m512 far = _mm512_abs_ps(_mm512_sub_ps((__m512)x, (__m512)y));
    *screened |= (word)_mm512_maskz_fmsub_ps(nonzero, (__m512)mx, _mm512_set1_ps(screen), far);
    LEVEL(add_products)(t, max_abs, a, b), LEVEL(add_products)(t, max_abs, a + LANES, b + LANES);
    distance = _mm512_mask_max_epu32(distance, differ, distance, _mm512_set1_epi32((int)u.zeros));
    return (word)_mm512_srlv_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_lzcnt_epi32(distance));
}
#else
/* By eight, since GCC compares vectors wider than the processor's one element at a time. */
static inline __attribute__((always_inline)) word8 LEVEL(pick)(word8 mask, word8 yes, word8 no)
{
    return (yes & mask) | (no & ~mask);
}

static inline __attribute__((always_inline)) uint32_t LEVEL(some_bit)(word8 x)
{
    uint64_t quarters[4];
    memcpy(quarters, &x, sizeof quarters);
    const uint64_t all = quarters[0] | quarters[1] | quarters[2] | quarters[3];
    return (uint32_t)all | (uint32_t)(all >> 32);
}

static inline __attribute__((always_inline)) uint32_t LEVEL(distances_of)(word distance[4], word *most, uint32_t low,
                                                                          const float *a, const float *b)
{
    word8 any = {0}, differ[8], *const d = (word8 *)distance;
    for (int k = 0; k < 8; k++) {
        word8 x, y;
        memcpy(&x, a + LANES * k, sizeof x), memcpy(&y, b + LANES * k, sizeof y);
        const int8 apart = (int8)((x & ~low) - (y & ~low)), sign = apart >> 31;
        differ[k] = (word8)(x != y);
        d[k] = (word8)(apart ^ sign) - (word8)sign;
        any |= d[k];
        if (low) any |= differ[k] & 1;
    }
    const uint32_t some = LEVEL(some_bit)(any);
    if (some >= NEAR || some == 0) return some;
    for (int k = 0; k < 8; k++) {
        word8 *const m = (word8 *)most + k % 2;
        *m = LEVEL(pick)((word8)(d[k] > *m), d[k], *m);
        if (low) d[k] = LEVEL(pick)((word8)(d[k] == 0), differ[k] & (low + 1), d[k]);
    }
    return 1;
}

static inline __attribute__((always_inline)) word LEVEL(add_near)(products *t, real *farthest, word *screened,
                                                                  float screen, word distance, const float *a,
                                                                  const float *b)
{
    word leading;
    for (int h = 0; h < 2; h++, a += LANES, b += LANES) {
        word8 x, y, *const most = (word8 *)farthest + h;
        memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
        const word8 mx = x & INT32_MAX, far = (word8)((real8)x - (real8)y) & INT32_MAX;
        *most = LEVEL(pick)((word8)((int8)far > (int8)*most), far, *most); /* magnitudes: as their bits */
        ((word8 *)screened)[h] |= (word8)((real8)far >= (real8)mx * screen) & (word8)(far != 0);
        LEVEL(add_products)(t, NULL, a, b);
        /* As f32, whose power of two is the leading bit: distances up to NEAR are exact there. */
        const real8 apart = __builtin_convertvector((int8)((word8 *)&distance)[h], real8);
        ((word8 *)&leading)[h] = (word8) __builtin_convertvector((real8)((word8)apart & 0x7F800000), int8);
    }
    return leading;
}

static inline __attribute__((always_inline)) word LEVEL(add_far)(products *t, vec *max_abs, word *most, word *screened,
                                                                 float screen, units u, const float *a, const float *b)
{
    word leading;
    for (int h = 0; h < 2; h++, a += LANES, b += LANES) {
        word8 x, y, *const m = (word8 *)most + h;
        memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
        const word8 mx = x & INT32_MAX, rx = mx & ~u.low, ry = y & INT32_MAX & ~u.low,
                    first = (word8)((int8)rx > (int8)ry), other_sign = (word8)((int8)(x ^ y) >> 31),
                    differ = (word8)(x != y);
        const word8 distance = LEVEL(pick)(other_sign, rx + ry, LEVEL(pick)(first, rx - ry, ry - rx));
        *m = LEVEL(pick)((word8)(distance > *m), distance, *m);
        const real8 far = (real8)((word8)((real8)x - (real8)y) & INT32_MAX);
        ((word8 *)screened)[h] |= (word8)(far >= (real8)mx * screen) & (word8)(mx != 0) & (word8)(x != y);
        LEVEL(add_products)(t, max_abs, a, b);
        word8 filled = distance | (differ & (word8)(distance == 0) & u.zeros);
        for (int by = 1; by < 32; by *= 2) filled |= filled >> by;
        ((word8 *)&leading)[h] = filled ^ (filled >> 1);
    }
    return leading;
}
#endif

static inline bool LEVEL(negative)(word x)
{
#if defined(__AVX512CD__)
    return _mm512_movepi32_mask((__m512i)x) != 0;
#else
    return LEVEL(some_bit)(((word8 *)&x)[0] | ((word8 *)&x)[1]) >> 31;
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

/* Adds n words, with room for one more, that count 2^plane: of every two of them comes one for the plane above. */
static inline void LEVEL(add_words)(word *planes, int plane, word *words, size_t n)
{
    for (; n > 1; plane++, n /= 2) {
        word sum = planes[plane], none = {0};
        if (n % 2) words[n++] = none;
        for (size_t i = 0; i < n; i += 2) words[i / 2] = LEVEL(carry_of)(&sum, words[i], words[i + 1]);
        planes[plane] = sum;
    }
    if (n == 0) return;
    for (word carry = words[0]; plane < PLANES; plane++) {
        const word sum = planes[plane];
        planes[plane] = sum ^ carry, carry &= sum;
    }
}

/* A group whose bits agree adds to three sums what add_near would. */
static inline __attribute__((always_inline)) void LEVEL(add_same)(products *t, const float *a)
{
    for (size_t i = 0; i < GROUP; i += 4) {
        const vec4 x = LEVEL(widen)(a + i), square = x * x;
        const int at = i / 4 % 2;
        t->aa[at] += square, t->bb[at] += square, t->ab[at] += square;
    }
}

static inline __attribute__((always_inline)) word LEVEL(count_leading)(word *ones, word *twos, const word leading[4])
{
    const word low = LEVEL(carry_of)(ones, leading[0], leading[1]),
               high = LEVEL(carry_of)(ones, leading[2], leading[3]);
    return LEVEL(carry_of)(twos, low, high);
}

/* The long way, for as many groups as need it: returns their elements. It is asked after one, three, seven groups
 * whether the next one does, since bits are the same either way. Not inlined: the loop that takes it seldom keeps its
 * registers. */
static __attribute__((noinline)) size_t LEVEL(add_far_groups)(products *t, vec *max_abs, rates *largest, distances *u,
                                                              word *fours, units of, const float *a, const float *b,
                                                              size_t n)
{
    products s = *t;
    vec m = *max_abs;
    word most = u->most, ones = u->planes[0], twos = u->planes[1];
    size_t i = 0;
    for (size_t next = GROUP, step = GROUP; i < n;) {
        word leading[4], distance[4], screened = {0};
        for (int k = 0; k < 4; k++)
            leading[k] = LEVEL(add_far)(&s, &m, &most, &screened, largest->screen, of, a + i + 2 * LANES * k,
                                        b + i + 2 * LANES * k);
        if (__builtin_expect(LEVEL(negative)(screened), 0)) LEVEL(note_rates)(largest, a + i, b + i);
        *fours++ = LEVEL(count_leading)(&ones, &twos, leading);
        i += GROUP;
        if (i < next) continue;
        if (i < n && LEVEL(distances_of)(distance, &(word){0}, of.low, a + i, b + i) < NEAR) break;
        step *= 2, next = i + step;
    }
    *t = s, *max_abs = m, u->most = most, u->planes[0] = ones, u->planes[1] = twos;
    return i;
}

/* n is a multiple of GROUP, BLOCK at most. Nothing is added when a number is not finite. */
static inline __attribute__((always_inline)) outcome LEVEL(add_floats_of)(sums *s, distances *u, units of,
                                                                          const float *a, const float *b, size_t n)
{
    products t = {{halves(&s->aa)[0], halves(&s->aa)[1]},
                  {halves(&s->bb)[0], halves(&s->bb)[1]},
                  {halves(&s->dd)[0], halves(&s->dd)[1]},
                  {halves(&s->ab)[0], halves(&s->ab)[1]}};
    vec max_abs = s->max_abs;
    rates largest = s->largest;
    real farthest = u->farthest;
    word most = u->most, ones = u->planes[0], twos = u->planes[1], fours[BLOCK / GROUP + 1];
    size_t count = 0, first = n;
    for (size_t i = 0; i < n; i += GROUP) {
        word distance[4], leading[4], screened = {0};
        const uint32_t apart = LEVEL(distances_of)(distance, &most, of.low, a + i, b + i);
        if (apart == 0) {
            LEVEL(add_same)(&t, a + i);
            continue;
        }
        first = i < first ? i : first;
        if (__builtin_expect(apart < NEAR, 1)) {
            for (int k = 0; k < 4; k++)
                leading[k] = LEVEL(add_near)(&t, &farthest, &screened, largest.screen, distance[k],
                                             a + i + 2 * LANES * k, b + i + 2 * LANES * k);
            if (__builtin_expect(LEVEL(negative)(screened), 0)) LEVEL(note_rates)(&largest, a + i, b + i);
            fours[count++] = LEVEL(count_leading)(&ones, &twos, leading);
            continue;
        }
        products far = {{t.aa[0], t.aa[1]}, {t.bb[0], t.bb[1]}, {t.dd[0], t.dd[1]}, {t.ab[0], t.ab[1]}};
        distances counted;
        counted.most = most, counted.planes[0] = ones, counted.planes[1] = twos;
        const size_t taken =
            LEVEL(add_far_groups)(&far, &max_abs, &largest, &counted, fours + count, of, a + i, b + i, n - i);
        for (int at = 0; at < 2; at++)
            t.aa[at] = far.aa[at], t.bb[at] = far.bb[at], t.dd[at] = far.dd[at], t.ab[at] = far.ab[at];
        most = counted.most, ones = counted.planes[0], twos = counted.planes[1];
        count += taken / GROUP, i += taken - GROUP;
    }
    vec squares; /* of f32 numbers, that f64 holds */
    for (int at = 0; at < 2; at++) halves(&squares)[at] = t.aa[at] + t.bb[at];
    if (LEVEL(any)(squares - squares != 0)) return (outcome){.finite = false};
    for (int at = 0; at < 2; at++) {
        halves(&s->aa)[at] = t.aa[at], halves(&s->bb)[at] = t.bb[at];
        halves(&s->dd)[at] = t.dd[at], halves(&s->ab)[at] = t.ab[at];
    }
    s->max_abs = max_abs, s->largest = largest;
    u->farthest = farthest, u->most = most, u->planes[0] = ones, u->planes[1] = twos;
    LEVEL(add_words)(u->planes, 2, fours, count);
    return (outcome){.finite = true, .first = first};
}

/* Both sides of one dtype: no low bits. */
static outcome LEVEL(add_floats)(sums *s, distances *u, uint32_t zeros, const float *a, const float *b, size_t n)
{
    return LEVEL(add_floats_of)(s, u, (units){zeros, 0}, a, b, n);
}

/* One of them f32, the other bf16. */
static outcome LEVEL(add_mixed)(sums *s, distances *u, const float *a, const float *b, size_t n)
{
    return LEVEL(add_floats_of)(s, u, (units){1 << 16, 0xFFFF}, a, b, n);
}

/* Adds what the planes count to buckets: bit i, of distances that are shifted, to bucket i - shift + 1. */
static inline void LEVEL(count_planes)(const word *planes, int shift, int64_t *buckets)
{
    for (int bit = shift; bit < 32; bit++) {
        word counts = {0};
        for (int plane = 0; plane < PLANES; plane++) counts += (planes[plane] >> bit & 1) << plane;
        for (int l = 0; l < 2 * LANES; l++) buckets[bit - shift + 1] += counts[l];
    }
}
