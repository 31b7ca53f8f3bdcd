/* Kernels of a shared object that `lastbit order` probes, one for each form and kind of behaviour: see
 * test_order.py. */
#include "compensated_sum.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

/* Two accumulators for even and odd terms. */
PUBLIC float even_odd(const float *x, int64_t n)
{
    float even = 0, odd = 0;
    for (int64_t i = 0; i < n; i++) *(i & 1 ? &odd : &even) += x[i];
    return even + odd;
}

PUBLIC double backwards(const double *x, int64_t n)
{
    double sum = 0;
    while (n--) sum += x[n];
    return sum;
}

static float widened(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

static uint16_t narrowed(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Rounded to bf16 at every addition. */
PUBLIC uint16_t narrow(const uint16_t *x, int64_t n)
{
    uint16_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum = narrowed(widened(sum) + widened(x[i]));
    return sum;
}

/* bf16 in, f32 out. */
PUBLIC float narrow_to_wide(const uint16_t *x, const uint16_t *y, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += widened(x[i]) * widened(y[i]);
    return sum;
}

/* The last row is added from its end. */
PUBLIC void odd_one_out(const float *x, int64_t rows, int64_t n, float *out)
{
    for (int64_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (int64_t i = 0; i < n; i++) out[r] += x[r * n + (r + 1 < rows ? i : n - 1 - i)];
    }
}

PUBLIC void of_columns(const float *x, int64_t n, int64_t columns, float *out)
{
    for (int64_t c = 0; c < columns; c++) out[c] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c++) out[c] += x[i * columns + c];
}

/* Four slices of k, the second pass in the order 2, 0, 3, 1; rounded products. */
PUBLIC void splitk(const float *a, const float *b, float *c, int64_t m, int64_t n, int64_t k)
{
    static const int order[] = {2, 0, 3, 1};
    const int64_t slice = (k + 3) / 4;
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int s = 0; s < 4; s++) {
                float part = 0;
                for (int64_t p = order[s] * slice; p < k && p < (order[s] + 1) * slice; p++)
                    part += a[i * k + p] * b[p * n + j];
                c[i * n + j] += part;
            }
}

/* Compensated (Neumaier). */
PUBLIC float compensated(const float *x, int64_t n)
{
    return compensated_sum(x, n);
}

PUBLIC float largest(const float *x, int64_t n)
{
    float most = x[0];
    for (int64_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* ---- what must not take the command along ------------------------------------------------------------------------ */

/* Another signature: what it is given as x is a number. */
PUBLIC float turned_round(int64_t n, const float *x)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

PUBLIC float endless(const float *x, int64_t n)
{
    for (volatile int64_t i = 0; i < n; i = 0) (void)x;
    return 0;
}

PUBLIC float aborts(const float *x, int64_t n)
{
    if (n > 3 && x[3] != 0) abort();
    return x[0];
}

PUBLIC float leaves(const float *x, int64_t n)
{
    (void)x, (void)n;
    exit(3);
}

/* Prints where results are printed. */
PUBLIC float talks(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    printf("the sum is %g\n", (double)sum);
    fflush(stdout);
    return sum;
}
