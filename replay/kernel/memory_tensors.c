/* Tensors in the memory of a rank, element by element: copied, compared, and compared with a digest. See
 * value_memory.h. */
#include "kernel/value_memory.h"

#include <lastbit/statistics.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Walks two tensors of one shape in step along common runs: the inner run is the last dimension. */
typedef struct pair_walk {
    int32_t outer;
    int64_t index[LB_MAX_DIMS], at_a, at_b;
} pair_walk;

static bool next_run(pair_walk *walk, const lb_layout *a, const lb_layout *b)
{
    for (int d = walk->outer - 1; d >= 0; d--) {
        walk->at_a += a->stride[d];
        walk->at_b += b->stride[d];
        if (++walk->index[d] < a->shape[d]) return true;
        walk->at_a -= a->stride[d] * a->shape[d];
        walk->at_b -= b->stride[d] * a->shape[d];
        walk->index[d] = 0;
    }
    return false;
}

static bool both_dense(const lb_layout *a, const lb_layout *b)
{
    if (lb_layout_is_contiguous(a) && lb_layout_is_contiguous(b)) return true;
    int64_t first, last;
    if (a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->stride[d] != b->stride[d] && a->shape[d] > 1) return false;
    /* The same permutation without gaps or overlaps: any order of elements is the same in both. */
    return lb_layout_dense_range(a, &first, &last, NULL) == LB_OK && last - first == lb_layout_numel(a) &&
           first == a->offset;
}

static char *element(const lb_tensor *tensor, int64_t at)
{
    return (char *)tensor->data + at * (int64_t)lb_dtype_bits(tensor->dtype) / 8;
}

void lb_memory_tensor_copy(const lb_tensor *to, const lb_tensor *from, const lb_cast *cast)
{
    int64_t numel = lb_layout_numel(&to->layout);
    if (numel <= 0) return;
    const lb_layout *a = &to->layout, *b = &from->layout;
    bool same_dtype = to->dtype == from->dtype && !cast;
    if (both_dense(a, b)) {
        if (same_dtype)
            memmove(to->data, from->data, lb_dtype_bytes(to->dtype, (size_t)numel));
        else
            lb_convert(to->dtype, to->data, from->dtype, from->data, (size_t)numel, cast);
        return;
    }
    int32_t inner = a->ndim - 1;
    int64_t count = a->shape[inner];
    size_t size = lb_dtype_bits(to->dtype) / 8;
    pair_walk walk = {.outer = inner};
    lb_cast moved = cast ? *cast : (lb_cast)LB_CAST_INIT;
    do {
        if (same_dtype && a->stride[inner] == 1 && b->stride[inner] == 1 && size)
            memmove(element(to, walk.at_a), element(from, walk.at_b), (size_t)count * size);
        else
            lb_convert_strided(to->dtype, element(to, walk.at_a), a->stride[inner], from->dtype,
                               element(from, walk.at_b), b->stride[inner], (size_t)count, cast ? &moved : NULL);
        moved.counter += (uint64_t)count;
    } while (next_run(&walk, a, b));
}

static bool is_nan(lb_dtype dtype, const void *p)
{
    const double x = lb_dtype_is_float(dtype) ? lb_to_f64(dtype, p) : 0;
    return x != x;
}

static bool same_element(lb_dtype dtype, size_t size, const char *a, const char *b)
{
    const lb_dtype part = lb_dtype_part(dtype);
    if (part != dtype)
        return same_element(part, size / 2, a, b) && same_element(part, size / 2, a + size / 2, b + size / 2);
    return !memcmp(a, b, size) || (is_nan(dtype, a) && is_nan(dtype, b));
}

/* Elements of a tensor, `step` bytes apart. */
typedef struct run {
    const char *at;
    ptrdiff_t step;
} run;

static bool run_same(lb_dtype dtype, size_t size, run a, run b, int64_t n)
{
    for (int64_t i = 0; i < n; i++, a.at += a.step, b.at += b.step)
        if (memcmp(a.at, b.at, size) && !same_element(dtype, size, a.at, b.at)) return false;
    return true;
}

bool lb_memory_tensor_same(const lb_tensor *a, const lb_tensor *b)
{
    if (a->dtype != b->dtype || !lb_layout_same_shape(&a->layout, &b->layout)) return false;
    int64_t numel = lb_layout_numel(&a->layout);
    if (numel <= 0) return true;
    size_t size = lb_dtype_bits(a->dtype) / 8;
    if (size == 0) return !memcmp(a->data, b->data, lb_dtype_bytes(a->dtype, (size_t)numel));
    if (both_dense(&a->layout, &b->layout))
        return !memcmp(a->data, b->data, (size_t)numel * size) ||
               run_same(a->dtype, size, (run){a->data, (ptrdiff_t)size}, (run){b->data, (ptrdiff_t)size}, numel);
    int32_t inner = a->layout.ndim - 1;
    pair_walk walk = {.outer = inner};
    do {
        const run in_a = {element(a, walk.at_a), a->layout.stride[inner] * (ptrdiff_t)size},
                  in_b = {element(b, walk.at_b), b->layout.stride[inner] * (ptrdiff_t)size};
        if (!run_same(a->dtype, size, in_a, in_b, a->layout.shape[inner])) return false;
    } while (next_run(&walk, &a->layout, &b->layout));
    return true;
}

/* Gives every NaN the same bits. */
static void put_nan(lb_dtype part, char *bytes, int64_t n, const char *bits)
{
    const size_t size = lb_dtype_bits(part) / 8;
    for (int64_t i = 0; i < n; i++)
        if (is_nan(part, bytes + (size_t)i * size)) memcpy(bytes + (size_t)i * size, bits, size);
}

bool lb_memory_tensor_has_digest(const lb_tensor *tensor, lb_digest digest)
{
    if (lb_digest_equal(lb_digest_tensor(tensor), digest)) return true;
    const lb_dtype part = lb_dtype_part(tensor->dtype);
    const size_t size = lb_dtype_bits(part) / 8;
    const int64_t n = lb_layout_numel(&tensor->layout), parts = part == tensor->dtype ? n : 2 * n;
    if (!lb_dtype_is_float(part) || !size || n <= 0 || !lb_statistics_of(tensor).nan) return false;
    lb_tensor copy = {malloc((size_t)parts * size), tensor->dtype,
                      lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape)};
    const bool copied = copy.data && lb_tensor_gather(tensor, copy.data, NULL) == LB_OK;
    bool same = false;
    for (int k = 0; k < 4 && copied && !same; k++) { /* the quiet NaN and all ones, with either sign */
        char bits[8];
        lb_from_f64(part, bits, NAN, NULL);
        if (k & 2) memset(bits, 0xff, size);
        bits[size - 1] = (char)(k & 1 ? bits[size - 1] | 0x80 : bits[size - 1] & 0x7f);
        if (!is_nan(part, bits)) continue; /* the fnuz types have one NaN */
        put_nan(part, copy.data, parts, bits);
        same = lb_digest_equal(lb_digest_tensor(&copy), digest);
    }
    free(copy.data);
    return same;
}
