/* See shadow_numbers.h. */
#include "shadow/shadow_numbers.h"

#include "shadow/number_blocks.h"
#include "shadow/number_lanes.h"

#include <lastbit/processor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double MASK = 0x1p96;

int64_t lb_shadow_numbers(const lb_tensor *tensor, double *out)
{
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r);) {
        const char *p = (const char *)tensor->data + r.offset * (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
        lb_load_f64_strided(out + done, tensor->dtype, p, r.stride, (size_t)r.count);
        done += r.count;
    }
    return done;
}

double *lb_shadow_numbers_copy(const lb_tensor *tensor)
{
    const int64_t n = lb_layout_numel(&tensor->layout);
    double *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    if (x) lb_shadow_numbers(tensor, x);
    return x;
}

/* splitmix64 (Steele, Lea and Flood, 2014): a word as a function of its number. */
static uint64_t word_of(uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* In [-1, 1). */
static double uniform(uint64_t number)
{
    return (double)(int64_t)word_of(number) * 0x1p-63;
}

/* Is it a whole number, or none at all? From 2^52 on all are whole; below, adding 2^52 and cross_feed it away again
 * rounds to one. */
static inline bool is_whole(double x)
{
    const double size = fabs(x), most = 0x1p52;
    return !(size < most) || size + most - most == size;
}

void lb_shadow_put(const lb_tensor *tensor, const double *numbers)
{
    const lb_cast exact = LB_CAST_INIT;
    const int64_t width = (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r); numbers += r.count)
        lb_store_f64_strided(tensor->dtype, (char *)tensor->data + r.offset * width, r.stride, numbers, (size_t)r.count,
                             &exact);
}

LB_INLINE void disturb_numbers(double *x, int64_t stride, int64_t n, uint64_t number)
{
    for (int64_t i = 0; i < n; i++) {
        const double now = x[i * stride], moved = now * (1 + 0x1p-44 * uniform(number + (uint64_t)i));
        x[i * stride] = is_whole(now) ? now : moved;
    }
}

/* Numbers beside each other are several at once. */
LB_INLINE void disturb_row_body(double *x, int64_t stride, int64_t n, uint64_t number)
{
    if (stride == 1)
        disturb_numbers(x, 1, n, number);
    else
        disturb_numbers(x, stride, n, number);
}
LB_PER_ISA(disturb_row, disturb_row_body, (double *x, int64_t stride, int64_t n, uint64_t number),
           (x, stride, n, number))

void lb_shadow_disturb(const lb_tensor *tensor, uint64_t serial)
{
    uint64_t number = word_of(serial) & ~(uint64_t)0xFFFFFFFF;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r); number += (uint64_t)r.count)
        disturb_row((double *)tensor->data + r.offset, r.stride, r.count, number);
}

/* Additive masks hold the lowest value of a dtype. Next to that the scores vanish: any of them would agree. Masks that
 * are there on both sides are left out, of the error as of the scale. */
static bool is_masked(double x, double s)
{
    return fabs(x) >= MASK && fabs(s) >= MASK && (x < 0) == (s < 0) && fabs(x - s) <= 0x1p-7 * fabs(s);
}

/* ---- how far apart ---- */

/* Of eight numbers and others: true where all of both are numbers below MASK; then the largest difference and the
 * largest size are noted. */
LB_INLINE bool note_lanes(const double *x, const double *other, lb_eight *worst, lb_eight *largest)
{
    lb_eight a, b;
    memcpy(&a, x, sizeof a), memcpy(&b, other, sizeof b);
    const lb_eight size = LB_LANES_SIZES(a), apart = LB_LANES_SIZES(a - b);
    const lb_eight_bits plain = (size < MASK) & (LB_LANES_SIZES(b) < MASK);
    int64_t all = -1;
    for (int k = 0; k < LB_LANES; k++) all &= plain[k];
    if (!all) return false;
    *worst = LB_LANES_EITHER(apart > *worst, apart, *worst);
    *largest = LB_LANES_EITHER(size > *largest, size, *largest);
    return true;
}

LB_INLINE double largest_of(const lb_eight *x)
{
    double most = 0;
    for (int k = 0; k < LB_LANES; k++) most = (*x)[k] > most ? (*x)[k] : most;
    return most;
}

/* What two rows of numbers are to each other. */
typedef struct apartness {
    double error;   /* max |x − s| over elements finite on both sides; infinity when finiteness differs */
    double noise;   /* the same, of what differs by a finite number */
    double largest; /* of x, below MASK */
} apartness;

static void note_one(double x, double s, apartness *a)
{
    const double d = fabs(x - s);
    if (fabs(x) < MASK && fabs(x) > a->largest) a->largest = fabs(x);
    if (x == s || (x != x && s != s) || is_masked(x, s)) return;
    if (!(d <= a->error)) a->error = d - d == 0 ? d : INFINITY;
    if (d > a->noise && d - d == 0) a->noise = d;
}

LB_INLINE void compare_body(const double *x, const double *other, int64_t n, apartness *a)
{
    lb_eight worst = {0}, largest = {0};
    int64_t i = 0;
    *a = (apartness){0, 0, 0};
    for (; i + LB_LANES <= n; i += LB_LANES)
        if (!note_lanes(x + i, other + i, &worst, &largest))
            for (int k = 0; k < LB_LANES; k++) note_one(x[i + k], other[i + k], a);
    for (; i < n; i++) note_one(x[i], other[i], a);
    a->error = fmax(a->error, largest_of(&worst)), a->noise = fmax(a->noise, largest_of(&worst));
    a->largest = fmax(a->largest, largest_of(&largest));
}
LB_PER_ISA(compare, compare_body, (const double *x, const double *other, int64_t n, apartness *a), (x, other, n, a))

double lb_shadow_numbers_largest(const double *a, int64_t n)
{
    apartness x;
    compare(a, a, n, &x);
    return x.largest;
}

double lb_shadow_noise(const double *shadow, const double *disturbed, int64_t n)
{
    apartness a;
    compare(shadow, disturbed, n, &a);
    return a.noise;
}

double lb_shadow_noise_of(const double *shadow, const lb_tensor *disturbed)
{
    lb_number_blocks blocks;
    double room[LB_NUMBER_BLOCK], worst = 0;
    if (!lb_number_blocks_open(disturbed, &blocks)) return 0;
    for (int64_t i = 0; i < blocks.n; i += LB_NUMBER_BLOCK) {
        const int64_t n = lb_number_blocks_count(&blocks, i);
        worst = fmax(worst, lb_shadow_noise(shadow + i, lb_number_blocks_at(&blocks, i, n, room), n));
    }
    lb_number_blocks_close(&blocks);
    return worst;
}

bool lb_shadow_numbers_agree(const double *a, const double *b, int64_t n, double noise)
{
    apartness x;
    compare(a, b, n, &x);
    return x.error <= 0x1p5 * noise + 0x1p-40 * x.largest;
}

static const double FAR = 0x1p10;

bool lb_shadow_numbers_tell(const double *a, int64_t n, double noise)
{
    const double largest = lb_shadow_numbers_largest(a, n);
    return largest > FAR * 0x1p5 * noise && largest > 0;
}

/* ---- projections ---- */

enum { TABLE = 512, SUMS = 4 };
static const uint64_t TURNS = UINT64_C(1) << 62; /* numbers of turns are none of places */

/* The weight of element i is that of its place in a table, times that of the table's turn: both drawn, so that two
 * elements have one weight nowhere. Of the table four columns stay in the nearest cache. */
typedef struct weights {
    double of_place[SUMS][TABLE];
} weights;

static const weights *weights_of_places(void)
{
    static weights drawn;
    static bool is_drawn;
#pragma omp critical(shadow_weights)
    for (uint64_t i = 0; !is_drawn && i < SUMS * TABLE; i++) {
        drawn.of_place[i / TABLE][i % TABLE] = uniform(i);
        if (i + 1 == SUMS * TABLE) is_drawn = true;
    }
    return &drawn;
}

/* 1, and later ones from 2/3 to 4/3 with a random sign: no turn counts for little in any sum. */
static double weight_of_turn(uint64_t turn, int k)
{
    const double drawn = uniform((turn * SUMS + (uint64_t)k) | TURNS);
    return turn ? copysign(1 + (fabs(drawn) - 0.5) * (2.0 / 3), drawn) : 1;
}

/* Numbers of one turn, TABLE of them but for the last: masks and numbers that are not finite count by their place and
 * sign alone. */
LB_INLINE void project_body(const double *x, const double (*of_place)[TABLE], const double *of_turn, double *sums,
                            double *squares)
{
    lb_eight all[SUMS] = {{0}}, square = {0};
    for (int i = 0; i < TABLE; i += LB_LANES) {
        lb_eight v, w;
        memcpy(&v, x + i, sizeof v);
        const lb_eight one = {1, 1, 1, 1, 1, 1, 1, 1};
        v = LB_LANES_EITHER(LB_LANES_SIZES(v) < MASK, v, LB_LANES_EITHER(v < 0, -one, one));
        square += v * v;
        for (int k = 0; k < SUMS; k++) {
            memcpy(&w, of_place[k] + i, sizeof w);
            all[k] += v * w;
        }
    }
    for (int lane = 0; lane < LB_LANES; lane++) {
        *squares += square[lane];
        for (int k = 0; k < SUMS; k++) sums[k] += of_turn[k] * all[k][lane];
    }
}
LB_PER_ISA(project, project_body,
           (const double *x, const double (*of_place)[TABLE], const double *of_turn, double *sums, double *squares),
           (x, of_place, of_turn, sums, squares))

lb_shadow_projection lb_shadow_projection_of(const lb_tensor *tensor)
{
    lb_shadow_projection projection = {.elements = lb_layout_numel(&tensor->layout)};
    const weights *weights = weights_of_places();
    lb_number_blocks blocks;
    double squares = 0, room[LB_NUMBER_BLOCK], last[TABLE];
    if (!lb_number_blocks_open(tensor, &blocks)) return (lb_shadow_projection){0};
    for (int64_t from = 0; from < projection.elements; from += TABLE) {
        const int64_t n = projection.elements - from < TABLE ? projection.elements - from : TABLE;
        const double *x = lb_number_blocks_at(&blocks, from, n, room);
        double of_turn[SUMS];
        for (int k = 0; k < SUMS; k++) of_turn[k] = weight_of_turn((uint64_t)(from / TABLE), k);
        if (n < TABLE) {
            memset(last, 0, sizeof last), memcpy(last, x, (size_t)n * sizeof *x);
            x = last;
        }
        project(x, weights->of_place, of_turn, projection.sums, &squares);
    }
    lb_number_blocks_close(&blocks);
    projection.norm = sqrt(squares);
    return projection;
}

bool lb_shadow_projections_agree(const lb_shadow_projection *a, const lb_shadow_projection *b)
{
    if (!a->elements || a->elements != b->elements) return false;
    const double room = 0x1p6 * fmax(a->noise, b->noise) + 0x1p-40 * fmax(a->norm, b->norm);
    for (int k = 0; k < 4; k++)
        if (!(fabs(a->sums[k] - b->sums[k]) <= room)) return false;
    return true;
}

bool lb_shadow_projections_tell(const lb_shadow_projection *a, const lb_shadow_projection *b)
{
    return fmin(a->norm, b->norm) > FAR * 0x1p6 * fmax(a->noise, b->noise) && fmin(a->norm, b->norm) > 0;
}
