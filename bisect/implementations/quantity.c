/* Means over the elements of a value: see quantity.h. */
#include "quantity.h"

#include "shadow_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

static const double MASK = 0x1p96;

/* Six functions of an element, two of them bounded by the root of the mean square `r`, so that a few large numbers do not speak for all. Odd and
 * even ones: a change of sign shows. The scale of each is the mean of its size. */
static void add(lb_quantity *q, double x, double r)
{
    const double u = x / r, v[LB_QUANTITY_MEANS] = {u, fabs(u), u * u, u * fabs(u), u / (1 + fabs(u)), 1 / (1 + u * u)};
    for (int k = 0; k < LB_QUANTITY_MEANS; k++) q->mean[k] += v[k], q->scale[k] += fabs(v[k]);
}

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Changes the order within rows. */
static uint64_t digest_of(double *x, int64_t n, const lb_tensor *t)
{
    const int64_t width = t->layout.ndim ? t->layout.shape[t->layout.ndim - 1] : 1;
    if (lb_dtype_is_integer(t->dtype) && t->dtype != LB_BOOL && t->layout.ndim > 1)
        for (int64_t i = 0; i + width <= n; i += width) qsort(x + i, (size_t)width, sizeof *x, by_size);
    return XXH3_64bits(x, (size_t)n * sizeof *x);
}

lb_quantity lb_quantity_of(const lb_tensor *t)
{
    lb_quantity q = {.elements = lb_layout_numel(&t->layout)};
    double *x = q.elements > 0 && t->data ? lb_shadow_numbers_copy(t) : NULL;
    if (!x) return (lb_quantity){0};
    double squares = 0, low = INFINITY, high = -INFINITY;
    int64_t n = 0, masked = 0;
    for (int64_t i = 0; i < q.elements; i++) {
        if (!(fabs(x[i]) < MASK)) {
            masked++;
            continue;
        }
        squares += x[i] * x[i], n++;
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    const double r = n ? sqrt(squares / (double)n) : 0;
    q.tells = r > 0 && (low < high || masked > 0 || q.elements == 1);
    for (int64_t i = 0; i < q.elements && q.tells; i++)
        if (fabs(x[i]) < MASK) add(&q, x[i], r);
    for (int k = 0; k < LB_QUANTITY_MEANS && n; k++) q.mean[k] /= (double)n, q.scale[k] /= (double)n;
    /* The first five are relative to r; r itself and the share of masked elements are the rest of what it is. */
    q.mean[2] = r, q.scale[2] = r;
    q.mean[1] *= 1 + (double)masked / (double)q.elements;
    q.whole = true;
    for (int64_t i = 0; i < q.elements && q.whole; i++) q.whole = !(fabs(x[i]) < MASK) || x[i] == nearbyint(x[i]);
    if (q.whole) q.digest = digest_of(x, q.elements, t);
    free(x);
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

bool lb_quantities_agree(const lb_quantity *a, const lb_quantity *b)
{
    if (!a->tells || !b->tells || a->elements <= 0 || b->elements <= 0) return false;
    if (a->elements % b->elements && b->elements % a->elements) return false;
    if ((a->elements == 1) != (b->elements == 1)) return false;
    for (int k = 0; k < LB_QUANTITY_MEANS; k++)
        if (!(fabs(a->mean[k] - b->mean[k]) <= room_of(a, b, k))) return false;
    return true;
}

double lb_quantity_key(const lb_quantity *q)
{
    return q->mean[2];
}

double lb_quantity_reach(const lb_quantity *q)
{
    return 0x1p7 * q->noise[2] + 0x1p-37 * q->scale[2];
}
