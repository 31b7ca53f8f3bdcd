/* See block_sums.h. */
#include "block_sums.h"

#include <math.h>
#include <pthread.h>

enum { BLOCK = 256, SUMS = 4 };

static const double MASK =
    0x1p96; /* as in shadow_numbers.c: lowest values of a dtype and infinities count by their place and sign */

/* The same for all blocks: differences of two programs know nothing of them. */
static double weights[BLOCK][SUMS];
static pthread_once_t weighed = PTHREAD_ONCE_INIT;

/* splitmix64 (Steele, Lea and Flood, 2014), its words as numbers of [-1, 1). */
static void weigh(void)
{
    uint64_t state = 0;
    for (int i = 0; i < BLOCK * SUMS; i++) {
        uint64_t x = state += UINT64_C(0x9E3779B97F4A7C15);
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        weights[i / SUMS][i % SUMS] = (double)(int64_t)(x ^ (x >> 31)) * 0x1p-63;
    }
}

int64_t lb_block_sums_count(int64_t elements)
{
    return elements > 0 ? (elements + BLOCK - 1) / BLOCK * SUMS : 0;
}

typedef struct block {
    double numbers[BLOCK], largest;
    bool real;
} block;

static void add_up(block *b, int n, double *sums)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int i = 0; i < n; i++) {
        double v = b->numbers[i];
        const double size = fabs(v);
        if (!(size < MASK))
            v = v != v ? 3 : v < 0 ? -1 : 1;
        else if (size > b->largest)
            b->largest = size;
        b->real = b->real || v != nearbyint(v);
        const double *w = weights[i];
        s0 += v * w[0], s1 += v * w[1], s2 += v * w[2], s3 += v * w[3];
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
}

void lb_block_sums_of(const lb_tensor *t, double *sums, double *largest, bool *real)
{
    block b = {.largest = 0};
    int filled = 0;
    pthread_once(&weighed, weigh);
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r);) {
        const int64_t width = (int64_t)(lb_dtype_bits(t->dtype) / 8);
        const char *p = (const char *)t->data + r.offset * width;
        for (int64_t done = 0; done < r.count;) {
            const int64_t room = BLOCK - filled, n = r.count - done < room ? r.count - done : room;
            lb_load_f64_strided(b.numbers + filled, t->dtype, p + done * r.stride * width, r.stride, (size_t)n);
            filled += (int)n, done += n;
            if (filled < BLOCK) continue;
            add_up(&b, BLOCK, sums);
            sums += SUMS, filled = 0;
        }
    }
    if (filled) add_up(&b, filled, sums);
    if (largest) *largest = b.largest;
    if (real) *real = b.real;
}

double lb_block_sums_noise(const double *sums, const double *disturbed, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs(sums[i] - disturbed[i]);
        if (d > worst) worst = d;
    }
    return worst;
}

bool lb_block_sums_agree(const double *a, const double *b, int64_t count, double noise, double largest)
{
    const double room = 0x1p6 * noise + 0x1p-36 * largest; /* the root of 256 elements is 2^4 */
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= room)) return false;
    return true;
}

bool lb_block_sums_tell(double largest, double noise)
{
    return largest > 0x1p15 * noise && largest > 0;
}
