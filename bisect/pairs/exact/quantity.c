/* Means over the elements of a value: see quantity.h. */
#include "exact/quantity.h"

#include "shadow/number_blocks.h"
#include "shadow/number_lanes.h"
#include "shadow/shadow_numbers.h"
#include "base/array.h"

#include <lastbit/processor.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const double MASK = 0x1p96;

enum { LANES = LB_LANES, SUMS = 7 };

/* What one pass tells; each lane has every eighth element. */
typedef struct extent {
    double squares, low, high;
    int64_t n, masked;
    bool whole;
} extent;

/* What eight lanes have seen. */
typedef struct lanes {
    lb_eight squares, low, high;
    lb_eight_bits finite, broken;
} lanes;

LB_INLINE void look_at_lanes(const double *numbers, lanes *all)
{
    lb_eight x;
    memcpy(&x, numbers, sizeof x);
    const lb_eight size = LB_LANES_SIZES(x), below = LB_LANES_CHOSEN(size < 0x1p52, size);
    const lb_eight_bits counts = size < MASK;
    const lb_eight v = LB_LANES_CHOSEN(counts, x), low = LB_LANES_EITHER(counts, x, all->low),
                   high = LB_LANES_EITHER(counts, x, all->high);
    all->squares += v * v;
    all->finite -= counts, all->broken |= below + 0x1p52 - 0x1p52 != below;
    all->low = LB_LANES_EITHER(low < all->low, low, all->low),
    all->high = LB_LANES_EITHER(high > all->high, high, all->high);
}

LB_INLINE void measure_body(const double *x, int64_t n, extent *e)
{
    lanes all = {.finite = {0}};
    double last[LANES]; /* filled up with what does not count */
    for (int k = 0; k < LANES; k++) {
        all.low[k] = INFINITY, all.high[k] = -INFINITY;
        last[k] = k < n % LANES ? x[n - n % LANES + k] : INFINITY;
    }
    for (int64_t i = 0; i + LANES <= n; i += LANES) look_at_lanes(x + i, &all);
    look_at_lanes(last, &all);
    *e = (extent){0, INFINITY, -INFINITY, 0, n, true};
    for (int k = 0; k < LANES; k++) {
        e->squares += all.squares[k], e->n += all.finite[k];
        e->whole = e->whole && !all.broken[k];
        e->low = all.low[k] < e->low ? all.low[k] : e->low, e->high = all.high[k] > e->high ? all.high[k] : e->high;
    }
    e->masked = n - e->n;
}
LB_PER_ISA(measure, measure_body, (const double *x, int64_t n, extent *e), (x, n, e))

/* Six functions of an element, two of them bounded by the root of the mean square `r`, so that a few large numbers do
 * not speak for all. Odd and even ones: a change of sign shows. The seventh is the size of the fifth. */
LB_INLINE void add_lanes(const double *numbers, double per_r, lb_eight *sums)
{
    lb_eight x;
    memcpy(&x, numbers, sizeof x);
    const lb_eight_bits counts = LB_LANES_SIZES(x) < MASK;
    const lb_eight u = LB_LANES_CHOSEN(counts, x) * per_r, size = LB_LANES_SIZES(u), one = {1, 1, 1, 1, 1, 1, 1, 1};
    const lb_eight less = one / (1 + size);
    sums[0] += u, sums[1] += size, sums[2] += u * u, sums[3] += u * size;
    sums[4] += u * less, sums[5] += LB_LANES_CHOSEN(counts, one) / (1 + u * u), sums[6] += size * less;
}

LB_INLINE void add_up_body(const double *x, int64_t n, double r, double *total)
{
    lb_eight sums[SUMS];
    double last[LANES];
    memset(sums, 0, sizeof sums);
    for (int k = 0; k < LANES; k++) last[k] = k < n % LANES ? x[n - n % LANES + k] : INFINITY;
    for (int64_t i = 0; i + LANES <= n; i += LANES) add_lanes(x + i, 1 / r, sums);
    add_lanes(last, 1 / r, sums);
    for (int j = 0; j < SUMS; j++)
        for (int k = 0; k < LANES; k++) total[j] += sums[j][k];
}
LB_PER_ISA(add_up, add_up_body, (const double *x, int64_t n, double r, double *total), (x, n, r, total))

/* The scale of each function is the sum of its size. */
static void take_sums(lb_quantity *q, const double *total)
{
    const double scale[LB_QUANTITY_MEANS] = {total[1], total[1], total[2], total[2], total[6], total[5]};
    for (int k = 0; k < LB_QUANTITY_MEANS; k++) q->mean[k] = total[k], q->scale[k] = scale[k];
}

/* `copy`: the numbers, where they are one; its rows are sorted. */
static uint64_t digest_of(const double *x, double *copy, int64_t n, const lb_tensor *t)
{
    const int64_t width = t->layout.ndim ? t->layout.shape[t->layout.ndim - 1] : 1;
    if (copy && lb_dtype_is_integer(t->dtype) && t->dtype != LB_BOOL && t->layout.ndim > 1)
        for (int64_t i = 0; i + width <= n; i += width) qsort(copy + i, (size_t)width, sizeof *copy, lb_by_f64);
    return XXH3_64bits(x, (size_t)n * sizeof *x);
}

lb_quantity lb_quantity_of(const lb_tensor *t)
{
    lb_quantity q = {.elements = lb_layout_numel(&t->layout)};
    const bool some = q.elements > 0 && t->data;
    const double *in_place = some ? lb_number_blocks_in_place(t) : NULL;
    double *copy = some && !in_place ? lb_shadow_numbers_copy(t) : NULL;
    const double *x = in_place ? in_place : copy;
    if (!x) return (lb_quantity){0};
    extent e;
    measure(x, q.elements, &e);
    const int64_t n = e.n, masked = e.masked;
    const double r = n ? sqrt(e.squares / (double)n) : 0;
    double total[SUMS] = {0};
    q.tells = r > 0 && (e.low < e.high || masked > 0 || q.elements == 1);
    if (q.tells) add_up(x, q.elements, r, total);
    take_sums(&q, total);
    for (int k = 0; k < LB_QUANTITY_MEANS && n; k++) q.mean[k] /= (double)n, q.scale[k] /= (double)n;
    /* The first five are relative to r; r itself and the share of masked elements are the rest of what it is. */
    q.mean[2] = r, q.scale[2] = r;
    q.mean[1] *= 1 + (double)masked / (double)q.elements;
    q.whole = e.whole;
    if (q.whole) q.digest = digest_of(x, copy, q.elements, t);
    free(copy);
    return q;
}

void lb_quantity_disturbed(lb_quantity *q, const lb_quantity *disturbed)
{
    bool noise = false;
    if (!q->tells || disturbed->elements != q->elements) return;
    for (int k = 0; k < LB_QUANTITY_MEANS; k++) {
        q->noise[k] = fmax(q->noise[k], fabs(q->mean[k] - disturbed->mean[k]));
        noise |= !(q->noise[k] <= 0x1p-12 * fmax(q->scale[k], 0x1p-1000));
    }
    if (noise) q->tells = false;
}

static double room_of(const lb_quantity *a, const lb_quantity *b, int k)
{
    return 0x1p6 * fmax(a->noise[k], b->noise[k]) + 0x1p-38 * fmax(a->scale[k], b->scale[k]);
}

bool lb_quantities_repeat(const lb_quantity *a, const lb_quantity *b)
{
    if (!a->tells || !b->tells || a->elements <= 0 || b->elements <= 0) return false;
    if ((a->elements == 1) != (b->elements == 1)) return false;
    for (int k = 0; k < LB_QUANTITY_MEANS; k++)
        if (!(fabs(a->mean[k] - b->mean[k]) <= room_of(a, b, k))) return false;
    return true;
}

bool lb_quantities_agree(const lb_quantity *a, const lb_quantity *b)
{
    if (a->elements <= 0 || b->elements <= 0 || (a->elements % b->elements && b->elements % a->elements)) return false;
    return lb_quantities_repeat(a, b);
}

double lb_quantity_key(const lb_quantity *q)
{
    return q->mean[2];
}

double lb_quantity_reach(const lb_quantity *q)
{
    return 0x1p7 * q->noise[2] + 0x1p-37 * q->scale[2];
}
