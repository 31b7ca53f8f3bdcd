/* Mean and variance as torch computes them on a CPU, see welford.h. */
#include "orders/welford.h"

#include <lastbit/processor.h>
#include <string.h>

#define LANES 8
#define CHUNK 16 /* vectors */
#define DEPTH 48

typedef struct moments {
    int64_t n;
    float m1[LANES], m2[LANES];
} moments;

/* Adds `n` elements per lane with moments m1, m2. */
LB_INLINE void combine(moments *to, int64_t n, const float *m1, const float *m2)
{
    int64_t total = to->n + n;
    float c = total ? (float)n / (float)total : 0, before = (float)to->n;
    for (int l = 0; l < LANES; l++) {
        float delta = m1[l] - to->m1[l], part = c * delta;
        to->m1[l] += part;
        to->m2[l] = __builtin_fmaf(part, delta * before, to->m2[l] + m2[l]);
    }
    to->n = total;
}

/* `count` vectors, `stride` elements apart. */
LB_INLINE void update(moments *to, const float *x, int64_t count, int64_t stride)
{
    float m1[LANES] = {0}, m2[LANES] = {0};
    for (int64_t j = 0; j < count; j++) {
        float c = 1.0f / (float)(j + 1);
        for (int l = 0; l < LANES; l++) {
            float v = x[j * stride + l], delta = v - m1[l];
            m1[l] = __builtin_fmaf(delta, c, m1[l]);
            m2[l] = __builtin_fmaf(delta, v - m1[l], m2[l]);
        }
    }
    combine(to, count, m1, m2);
}

static int ceil_log2(int64_t n)
{
    return n <= 2 ? 1 : 64 - __builtin_clzll((uint64_t)(n - 1));
}

LB_INLINE void welford_body(const float *x, int64_t n, bool halves, float *mean, float *var)
{
    int64_t vector = halves ? 2 * LANES : LANES, vectors = n / vector, chunks = (vectors + CHUNK - 1) / CHUNK;
    int depth = ceil_log2(chunks);
    moments stack[DEPTH];
    memset(stack, 0, (size_t)(depth > 1 ? depth : 1) * sizeof *stack);
    for (int64_t i = 0; i < chunks; i++) {
        int64_t count = vectors - i * CHUNK < CHUNK ? vectors - i * CHUNK : CHUNK;
        const float *from = x + i * CHUNK * vector;
        update(&stack[0], from, count, vector);
        if (halves) update(&stack[0], from + LANES, count, vector);
        int64_t mask = i + 1;
        for (int j = 1; j < depth && !(mask & 1); j++, mask >>= 1) {
            combine(&stack[j], stack[j - 1].n, stack[j - 1].m1, stack[j - 1].m2);
            memset(&stack[j - 1], 0, sizeof *stack);
        }
    }
    for (int j = 1; j < depth; j++) combine(&stack[0], stack[j].n, stack[j].m1, stack[j].m2);
    int64_t seen = 0, per_lane = vectors * vector / LANES;
    float m1 = 0, m2 = 0;
    for (int64_t i = vectors * vector; i < n; i++) {
        float delta = x[i] - m1;
        m1 += delta / (float)++seen;
        m2 += delta * (x[i] - m1);
    }
    for (int l = 0; l < LANES; l++) {
        int64_t total = seen + per_lane;
        float c = total ? (float)per_lane / (float)total : 0, delta = stack[0].m1[l] - m1;
        m1 = __builtin_fmaf(c, delta, m1);
        m2 += __builtin_fmaf(delta * delta * c, (float)seen, stack[0].m2[l]);
        seen = total;
    }
    *mean = m1;
    *var = m2 / (float)n;
}

LB_PER_ISA(lb_welford_run, welford_body, (const float *x, int64_t n, bool halves, float *mean, float *var),
           (x, n, halves, mean, var))

void lb_welford(const float *x, int64_t n, bool halves, float *mean, float *var)
{
    lb_welford_run(x, n, halves, mean, var);
}
