/* See block_sums.h. */
#include "shadow/block_sums.h"

#include <lastbit/processor.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { BLOCK = 256, SUMS = 4, LANES = 8 };

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

/* Masks and what is not finite count by their sign. From 2^52 on all numbers are whole; below, adding 2^52
 * rounds to one. */
LB_INLINE void read_numbers_body(block *b, int n)
{
    const double most = 0x1p52;
    double top[LANES] = {0};
    int real[LANES] = {0};
    for (int i = n; i < (n + LANES - 1) / LANES * LANES; i++) b->numbers[i] = 0;
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const double v = b->numbers[i + k], size = fabs(v);
            const double sign = v != v ? 3 : v < 0 ? -1 : 1;
            b->numbers[i + k] = size < MASK ? v : sign;
            top[k] = size < MASK && size > top[k] ? size : top[k];
            real[k] |= size < most && size + most - most != size;
        }
    for (int k = 0; k < LANES; k++) {
        b->largest = top[k] > b->largest ? top[k] : b->largest;
        b->real |= real[k] != 0;
    }
}

LB_INLINE void add_up_body(block *b, int n, double *sums)
{
    double s[SUMS] = {0};
    read_numbers_body(b, n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < SUMS; k++) s[k] += b->numbers[i] * weights[i][k];
    memcpy(sums, s, sizeof s);
}
LB_PER_ISA(add_up, add_up_body, (block * b, int n, double *sums), (b, n, sums))

void lb_block_sums_of(const lb_tensor *tensor, double *sums, double *largest, bool *real)
{
    block b = {.largest = 0};
    int filled = 0;
    pthread_once(&weighed, weigh);
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r);) {
        const int64_t width = (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
        const char *p = (const char *)tensor->data + r.offset * width;
        for (int64_t done = 0; done < r.count;) {
            const int64_t room = BLOCK - filled, n = r.count - done < room ? r.count - done : room;
            lb_load_f64_strided(b.numbers + filled, tensor->dtype, p + done * r.stride * width, r.stride, (size_t)n);
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
