/* The vector loops of compare.c, included once per level of instructions with LEVEL(name) giving the function names.
 *
 * A template and not a set of inline functions: GCC lowers vectors wider than the function's own target allows before
 * it inlines, so that only functions compiled for a level get that level's instructions. The lanes, and so the bits,
 * are the same at every level.
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

/* Adds a block whose bits agree: what add_differing would. */
static inline void LEVEL(add_equal)(sums *s, const double *a, size_t n)
{
    vec aa = s->aa, bb = s->bb, ab = s->ab, zero = {0};
    for (size_t i = 0; i < n; i += LANES) {
        vec x;
        memcpy(&x, a + i, sizeof x);
        x = LEVEL(choose)(x - x == 0, x, zero);
        aa += x * x, bb += x * x, ab += x * x;
    }
    s->aa = aa, s->bb = bb, s->ab = ab;
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
