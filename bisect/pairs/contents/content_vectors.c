/* Vectors of tensors, read, hashed and compared: see content_vectors.h. */
#include "contents/content_vectors.h"

#include "contents/content_transform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- vectors ---- */

/* The dimension that columns run along; -1: the cut is none of columns, or this tensor has no such ones. */
static int32_t dimension_along(const lb_layout *layout, lb_content_cut how)
{
    const int32_t d = layout->ndim, between = 1 + (int32_t)how - LB_VECTORS_ALONG_SECOND;
    if (how == LB_VECTORS_COLUMNS) return d >= 2 ? d - 2 : -1;
    if (how == LB_VECTORS_FLAT_COLUMNS) return d >= 3 ? 0 : -1;
    return how >= LB_VECTORS_ALONG_SECOND && between < d - 2 ? between : -1;
}

lb_content_vectors lb_content_vectors_of(const lb_layout *layout, lb_content_cut how)
{
    const int32_t d = layout->ndim, along = dimension_along(layout, how);
    const int64_t all = lb_layout_numel(layout);
    if (all <= 0) return (lb_content_vectors){0, 0};
    switch (how) {
    case LB_VECTORS_WHOLE: return (lb_content_vectors){1, all};
    case LB_VECTORS_ROWS:
        return d >= 2 ? (lb_content_vectors){all / layout->shape[d - 1], layout->shape[d - 1]}
                      : (lb_content_vectors){0, 0};
    case LB_VECTORS_FLAT_ROWS:
        return d >= 3 ? (lb_content_vectors){layout->shape[0], all / layout->shape[0]} : (lb_content_vectors){0, 0};
    default:
        return along >= 0 ? (lb_content_vectors){all / layout->shape[along], layout->shape[along]}
                          : (lb_content_vectors){0, 0};
    }
}

/* How far apart the numbers of a column are; 0: the cut is none of columns. */
static int64_t width_of(const lb_layout *layout, lb_content_cut how)
{
    const int32_t along = dimension_along(layout, how);
    int64_t width = along >= 0;
    for (int32_t d = along + 1; d < layout->ndim && along >= 0; d++) width *= layout->shape[d];
    return width;
}

lb_content_vector lb_content_vectors_at(uint32_t tensor, const lb_layout *layout, lb_content_cut how, int64_t i)
{
    const lb_content_vectors all = lb_content_vectors_of(layout, how);
    lb_content_vector v = {tensor, (uint8_t)how, i * all.n, 1, all.n};
    const int64_t width = width_of(layout, how);
    if (!width) return v;
    v.start = i / width * all.n * width + i % width, v.stride = width;
    return v;
}

/* ---- numbers ---- */

bool lb_content_vectors_open(lb_content_numbers *numbers, const lb_tensor *tensor, const lb_dtype *as)
{
    *numbers = (lb_content_numbers){
        tensor, tensor->data, NULL, as && lb_dtype_is_float(tensor->dtype) ? *as : LB_NO_DTYPE, LB_NO_DTYPE, 1, false};
    if (lb_layout_is_contiguous(&tensor->layout)) return true;
    numbers->bytes = numbers->owned =
        malloc(lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout)) + 1);
    return numbers->owned && lb_tensor_gather(tensor, numbers->owned, NULL) == LB_OK;
}

void lb_content_vectors_load(const lb_content_numbers *numbers, int64_t first, int64_t stride, int64_t n, double *x)
{
    const lb_cast once = LB_CAST_INIT;
    const size_t width = lb_dtype_bits(numbers->t->dtype) / 8;
    char rounded[LB_CONTENT_PORTION * sizeof(double)];
    lb_load_f64_strided(x, numbers->t->dtype, numbers->bytes + (size_t)first * width, (ptrdiff_t)stride, (size_t)n);
    if (numbers->as == LB_NO_DTYPE) return;
    lb_store_f64_strided(numbers->as, rounded, 1, x, (size_t)n, &once);
    lb_load_f64_strided(x, numbers->as, rounded, 1, (size_t)n);
}

/* Numbers so small are 0 in one dtype and not in another. */
static const double NOTHING = 0x1p-20;

/* -0 is 0. Of numbers that were rounded in different ways the signs are the same. */
static uint64_t mixed(const lb_content_numbers *s, uint64_t hash, double x)
{
    const double nothing = s->scaled ? 0x1p-1000 : NOTHING;
    const double sign = fabs(x) < nothing ? 0 : x < 0 ? -1 : 1, number = s->digits == LB_NO_DTYPE ? x + 0.0 : sign;
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0xFF51AFD7ED558CCD);
    return hash ^ hash >> 32;
}

static uint64_t seed_of(int64_t n)
{
    return (uint64_t)n * UINT64_C(0x9E3779B97F4A7C15);
}

/* The hash of each column, row by row: every column goes on from its own state, so that memory is read in its order. */
static void hash_columns(const lb_content_numbers *s, int64_t width, int64_t height, uint64_t *out)
{
    const int64_t all = lb_layout_numel(&s->t->layout);
    double x[LB_CONTENT_PORTION];
    for (int64_t i = 0; i < all / height; i++) out[i] = seed_of(height);
    for (int64_t row = 0; row < all / width; row++) {
        uint64_t *states = out + row / height * width;
        for (int64_t at = 0; at < width; at += LB_CONTENT_PORTION) {
            const int64_t n = width - at < LB_CONTENT_PORTION ? width - at : LB_CONTENT_PORTION;
            lb_content_vectors_load(s, row * width + at, 1, n, x);
            for (int64_t i = 0; i < n; i++) states[at + i] = mixed(s, states[at + i], x[i]);
        }
    }
}

void lb_content_vectors_hash(const lb_content_numbers *numbers, lb_content_cut how, uint64_t *out)
{
    const lb_content_vectors all = lb_content_vectors_of(&numbers->t->layout, how);
    double x[LB_CONTENT_PORTION];
    const int64_t width = width_of(&numbers->t->layout, how);
    if (width) {
        hash_columns(numbers, width, all.n, out);
        return;
    }
    for (int64_t i = 0; i < all.count; i++) {
        out[i] = seed_of(all.n);
        for (int64_t at = 0; at < all.n; at += LB_CONTENT_PORTION) {
            const int64_t n = all.n - at < LB_CONTENT_PORTION ? all.n - at : LB_CONTENT_PORTION;
            lb_content_vectors_load(numbers, i * all.n + at, 1, n, x);
            for (int64_t k = 0; k < n; k++) out[i] = mixed(numbers, out[i], x[k]);
        }
    }
}

bool lb_content_vectors_is_constant(const lb_content_numbers *numbers, const lb_content_vector *vector)
{
    double first[LB_CONTENT_PORTION], x[LB_CONTENT_PORTION];
    lb_content_vectors_load(numbers, vector->start, vector->stride, 1, first);
    for (int64_t at = 0; at < vector->n; at += LB_CONTENT_PORTION) {
        const int64_t n = vector->n - at < LB_CONTENT_PORTION ? vector->n - at : LB_CONTENT_PORTION;
        lb_content_vectors_load(numbers, vector->start + at * vector->stride, vector->stride, n, x);
        for (int64_t i = 0; i < n; i++)
            if (x[i] != first[0]) return false;
    }
    return true;
}

double lb_content_vectors_first(const lb_content_numbers *numbers, const lb_content_vector *vector)
{
    double x[LB_CONTENT_PORTION];
    lb_content_vectors_load(numbers, vector->start, vector->stride, 1, x);
    return x[0];
}

lb_dtype lb_content_vectors_digits(const lb_content_numbers *numbers)
{
    static const lb_dtype coarse[] = {LB_BF16, LB_F16, LB_F32};
    const int64_t all = lb_layout_numel(&numbers->t->layout);
    for (size_t k = 0; k < sizeof coarse / sizeof *coarse && lb_dtype_bits(numbers->t->dtype) > 16; k++) {
        lb_content_numbers rounded = *numbers;
        double x[LB_CONTENT_PORTION], y[LB_CONTENT_PORTION];
        bool held = true;
        rounded.as = coarse[k];
        for (int64_t at = 0; at < all && held; at += LB_CONTENT_PORTION) {
            const int64_t n = all - at < LB_CONTENT_PORTION ? all - at : LB_CONTENT_PORTION;
            lb_content_vectors_load(numbers, at, 1, n, x), lb_content_vectors_load(&rounded, at, 1, n, y);
            held = !memcmp(x, y, (size_t)n * sizeof *x);
        }
        if (held) return coarse[k];
    }
    return numbers->t->dtype;
}

double lb_content_vectors_room(const lb_content_numbers *a, const lb_content_numbers *b)
{
    return a->digits == b->digits ? 0 : b->roundings * lb_content_transform_room(a->digits, b->digits);
}

/* Half the smallest number of a dtype: what is nearer to 0 may be 0 in it. */
static double smallest_between(const lb_content_numbers *a, const lb_content_numbers *b)
{
    const double half_of_f16 = 0x1p-25;
    return a->digits == LB_F16 || b->digits == LB_F16 ? 1.25 * b->roundings * half_of_f16 : 0;
}

/* What A's vector is to be multiplied with to be nearest to B's; 1 where vectors are compared as they are. */
static double factor_between(const lb_content_numbers *a, const lb_content_vector *v, const lb_content_numbers *b,
                             const lb_content_vector *w)
{
    double x[LB_CONTENT_PORTION], y[LB_CONTENT_PORTION], both = 0, size = 0;
    if (!a->scaled) return 1;
    for (int64_t at = 0; at < v->n; at += LB_CONTENT_PORTION) {
        const int64_t n = v->n - at < LB_CONTENT_PORTION ? v->n - at : LB_CONTENT_PORTION;
        lb_content_vectors_load(a, v->start + at * v->stride, v->stride, n, x);
        lb_content_vectors_load(b, w->start + at * w->stride, w->stride, n, y);
        for (int64_t i = 0; i < n; i++) both += x[i] * y[i], size += x[i] * x[i];
    }
    return size > 0 ? both / size : 0;
}

/* How far apart two numbers may be; NAN of one that is not finite, which no rounding makes of another. */
static double allowed(double x, double y, double room, double small)
{
    const double largest = fmax(fabs(x), fabs(y));
    return room && isfinite(largest) ? room * largest + small : NAN;
}

enum { FEW = 8 };

static const double NORMAL = 0x1p-12; /* in all dtypes of 16 bits */

/* Is the factor of the first few elements not the same, so that the rest need not be read? */
static bool begin_apart(const lb_content_numbers *a, const lb_content_vector *v, const lb_content_numbers *b,
                        const lb_content_vector *w, double room)
{
    double x[FEW], y[FEW], least = INFINITY, most = -INFINITY;
    const int64_t n = v->n < FEW ? v->n : FEW;
    lb_content_vectors_load(a, v->start, v->stride, n, x), lb_content_vectors_load(b, w->start, w->stride, n, y);
    for (int64_t i = 0; i < n; i++)
        if (x[i] && fabs(y[i]) > NORMAL) least = fmin(least, y[i] / x[i]), most = fmax(most, y[i] / x[i]);
    return most - least > 4 * room * most;
}

bool lb_content_vectors_are_equal(const lb_content_numbers *a, const lb_content_vector *v, const lb_content_numbers *b,
                                  const lb_content_vector *w)
{
    const double room = lb_content_vectors_room(a, b), small = room ? smallest_between(a, b) : 0;
    double x[LB_CONTENT_PORTION], y[LB_CONTENT_PORTION];
    if (a->scaled && begin_apart(a, v, b, w, room)) return false;
    const double factor = factor_between(a, v, b, w);
    for (int64_t at = 0; at < v->n; at += LB_CONTENT_PORTION) {
        const int64_t n = v->n - at < LB_CONTENT_PORTION ? v->n - at : LB_CONTENT_PORTION;
        lb_content_vectors_load(a, v->start + at * v->stride, v->stride, n, x);
        lb_content_vectors_load(b, w->start + at * w->stride, w->stride, n, y);
        for (int64_t i = 0; i < n && a->scaled; i++) x[i] *= factor;
        for (int64_t i = 0; i < n; i++)
            if (x[i] != y[i] && !(fabs(x[i] - y[i]) <= allowed(x[i], y[i], room, small))) return false;
    }
    return true;
}
