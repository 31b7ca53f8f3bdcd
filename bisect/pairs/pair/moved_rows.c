/* See moved_rows.h. Rows are put into the order of their products with one random direction, on both sides; rows that
 * are the same are then in the same place, but for some whose products are nearly one: each takes the nearest of a few
 * that are left. */
#include "pair/moved_rows.h"

#include <lastbit/compare.h>
#include <math.h>
#include <stdlib.h>

enum { WINDOW = 8, LARGEST = 1 << 27 /* elements that are looked through */ };

typedef struct row {
    double product;
    int64_t at;
} row;

static int by_product(const void *x, const void *y)
{
    const row *a = x, *b = y;
    return a->product < b->product ? -1 : a->product > b->product;
}

/* Row-major numbers; malloc'ed. */
static double *numbers_of(const lb_tensor *t)
{
    const size_t n = (size_t)lb_layout_numel(&t->layout);
    void *dense = malloc(lb_dtype_bytes(t->dtype, n) + 1);
    double *out = malloc(n * sizeof *out + 1);
    const bool done = dense && out && lb_tensor_gather(t, dense, NULL) == LB_OK;
    if (done) lb_load_f64(out, t->dtype, dense, n);
    free(dense);
    if (done) return out;
    free(out);
    return NULL;
}

static row *order_of(const double *x, int64_t rows, int64_t width)
{
    row *order = malloc((size_t)rows * sizeof *order + 1);
    for (int64_t i = 0; order && i < rows; i++) {
        uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
        order[i] = (row){0, i};
        for (int64_t k = 0; k < width; k++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            order[i].product += x[i * width + k] * ((double)(state >> 11) * 0x1p-53 - 0.5);
        }
    }
    if (order) qsort(order, (size_t)rows, sizeof *order, by_product);
    return order;
}

static double distance(const double *x, const double *y, int64_t width)
{
    double sum = 0;
    for (int64_t k = 0; k < width; k++) sum += (x[k] - y[k]) * (x[k] - y[k]);
    return sum;
}

static bool is_near_in_order(const double *x, const double *y, int64_t rows, int64_t width, double near)
{
    row *rows_x = order_of(x, rows, width), *rows_y = order_of(y, rows, width);
    double apart = 0, size = 0;
    bool known = rows_x && rows_y;
    for (int64_t i = 0; known && i < rows; i++) {
        const double *mine = x + rows_x[i].at * width;
        int64_t best = i;
        for (int64_t k = i; k < rows && k < i + WINDOW; k++)
            if (distance(mine, y + rows_y[k].at * width, width) < distance(mine, y + rows_y[best].at * width, width))
                best = k;
        const row taken = rows_y[best];
        rows_y[best] = rows_y[i], rows_y[i] = taken;
        apart += distance(mine, y + taken.at * width, width);
        for (int64_t k = 0; k < width; k++) size += mine[k] * mine[k];
    }
    free(rows_x), free(rows_y);
    return known && apart < near * near * size;
}

bool lb_rows_moved(const lb_tensor *a, const lb_tensor *b, double near)
{
    lb_difference difference;
    const int32_t ndim = a->layout.ndim;
    if (ndim < 2 || !lb_layout_same_shape(&a->layout, &b->layout) || !lb_dtype_is_float(a->dtype)) return false;
    const int64_t width = a->layout.shape[ndim - 1], n = lb_layout_numel(&a->layout);
    if (width < 2 || n < 2 * width) return false;
    if (lb_compare_numbers(a, b, &difference, NULL) != LB_OK || difference.rel_l2 < near) return false;
    double *x = numbers_of(a), *y = numbers_of(b);
    const bool moved = x && y && is_near_in_order(x, y, n / width, width, near);
    free(x), free(y);
    return moved;
}

/* The first of `n` sorted rows whose product is not below. */
static int64_t lower_bound(const row *order, int64_t n, double product)
{
    int64_t first = 0;
    while (n > 0) {
        const int64_t half = n / 2;
        if (order[first + half].product < product)
            first += half + 1, n -= half + 1;
        else
            n = half;
    }
    return first;
}

static bool are_all_among(const double *x, int64_t few, const double *y, int64_t many, int64_t width, double near)
{
    row *rows_x = order_of(x, few, width), *rows_y = order_of(y, many, width);
    bool among = rows_x && rows_y;
    for (int64_t i = 0; among && i < few; i++) {
        const double *mine = x + rows_x[i].at * width;
        const int64_t place = lower_bound(rows_y, many, rows_x[i].product);
        double size = 0, least = INFINITY;
        for (int64_t k = place < WINDOW ? 0 : place - WINDOW; k < many && k < place + WINDOW; k++)
            least = fmin(least, distance(mine, y + rows_y[k].at * width, width));
        for (int64_t k = 0; k < width; k++) size += mine[k] * mine[k];
        among = least <= near * near * size;
    }
    free(rows_x), free(rows_y);
    return among;
}

/* Rows of length one. */
static void keep_directions(double *x, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows; i++, x += width) {
        double size = 0;
        for (int64_t k = 0; k < width; k++) size += x[k] * x[k];
        for (int64_t k = 0; k < width && size > 0; k++) x[k] /= sqrt(size);
    }
}

bool lb_rows_among(const lb_tensor *few, const lb_tensor *many, double near)
{
    const lb_layout *layout = &few->layout;
    if (layout->ndim < 1 || few->dtype != many->dtype) return false;
    const bool floats = lb_dtype_is_float(few->dtype);
    const int64_t width = layout->ndim == 1 ? 1 : layout->shape[layout->ndim - 1], n = lb_layout_numel(layout),
                  m = lb_layout_numel(&many->layout);
    if (n < 1 || width < 1 || m % width || m > LARGEST || (floats && width == 1)) return false;
    double *x = numbers_of(few), *y = numbers_of(many);
    if (x && y && floats) keep_directions(x, n / width, width), keep_directions(y, m / width, width);
    const bool among = x && y && are_all_among(x, n / width, y, m / width, width, floats ? near : 0);
    free(x), free(y);
    return among;
}
