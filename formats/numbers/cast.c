/* Conversions built on the dense loops of conversion.c: one element, strided sides, any type to any type. */
#include <lastbit/dtype.h>

#include <string.h>

#define CHUNK 256

static const lb_cast torch_cast = LB_CAST_INIT;

double lb_to_f64(lb_dtype dtype, const void *p)
{
    double value;
    lb_load_f64(&value, dtype, p, 1);
    return value;
}

void lb_from_f64(lb_dtype dtype, void *p, double value, const lb_cast *cast)
{
    lb_store_f64(dtype, p, &value, 1, cast);
}

/* --- strides --------------------------------------------------------------------------------------------------- */

static void *at_element(const void *base, size_t size, ptrdiff_t stride, size_t i)
{
    return (char *)(uintptr_t)base + (ptrdiff_t)size * stride * (ptrdiff_t)i;
}

#define COPY_EACH(bytes)                                                                                               \
    case bytes:                                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                                 \
            memcpy((char *)dst + (ptrdiff_t)i * dst_step, (const char *)src + (ptrdiff_t)i * src_step, bytes);         \
        return

/* n elements of `size` bytes; steps in bytes. */
static void copy_elements(void *dst, ptrdiff_t dst_step, const void *src, ptrdiff_t src_step, size_t size, size_t n)
{
    switch (size) {
        COPY_EACH(1);
        COPY_EACH(2);
        COPY_EACH(4);
        COPY_EACH(8);
        COPY_EACH(16);
    default: LB_CHECK(!"an element size");
    }
}

static uint8_t get_nibble(const uint8_t *bytes, size_t i)
{
    return (bytes[i / 2] >> (i % 2 * 4)) & 15u;
}

static void set_nibble(uint8_t *bytes, size_t i, uint8_t code)
{
    const unsigned at = i % 2 * 4;
    bytes[i / 2] = (uint8_t)((bytes[i / 2] & (0xf0u >> at)) | ((unsigned)code << at));
}

/* Elements [at, at + n) of a strided array, dense into `dst`. */
static void gather(void *dst, lb_dtype dtype, const void *src, ptrdiff_t stride, size_t at, size_t n)
{
    if (dtype == LB_E2M1) {
        for (size_t i = 0; i < n; i++) set_nibble(dst, i, get_nibble(src, (at + i) * (size_t)stride));
        return;
    }
    const size_t size = lb_dtype_bits(dtype) / 8;
    copy_elements(dst, (ptrdiff_t)size, at_element(src, size, stride, at), stride * (ptrdiff_t)size, size, n);
}

static void scatter(void *dst, lb_dtype dtype, ptrdiff_t stride, const void *src, size_t at, size_t n)
{
    if (dtype == LB_E2M1) {
        for (size_t i = 0; i < n; i++) set_nibble(dst, (at + i) * (size_t)stride, get_nibble(src, i));
        return;
    }
    const size_t size = lb_dtype_bits(dtype) / 8;
    copy_elements(at_element(dst, size, stride, at), stride * (ptrdiff_t)size, src, (ptrdiff_t)size, size, n);
}

#define EACH_CHUNK(at, count) for (size_t at = 0, count; count = n - at < CHUNK ? n - at : CHUNK, at < n; at += CHUNK)

/* For `type`, whose dense conversions are lb_load_NAME and lb_store_NAME. */
#define STRIDED(name, type)                                                                                            \
    void lb_load_##name##_strided(type *dst, lb_dtype src_dtype, const void *src, ptrdiff_t stride, size_t n)          \
    {                                                                                                                  \
        if (stride == 1) {                                                                                             \
            lb_load_##name(dst, src_dtype, src, n);                                                                    \
            return;                                                                                                    \
        }                                                                                                              \
        uint64_t dense[2 * CHUNK];                                                                                     \
        EACH_CHUNK(at, count)                                                                                          \
        {                                                                                                              \
            gather(dense, src_dtype, src, stride, at, count);                                                          \
            lb_load_##name(dst + at, src_dtype, dense, count);                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    void lb_store_##name##_strided(lb_dtype dst_dtype, void *dst, ptrdiff_t stride, const type *src, size_t n,         \
                                   const lb_cast *cast)                                                                \
    {                                                                                                                  \
        if (stride == 1) {                                                                                             \
            lb_store_##name(dst_dtype, dst, src, n, cast);                                                             \
            return;                                                                                                    \
        }                                                                                                              \
        uint64_t dense[2 * CHUNK] = {0};                                                                               \
        lb_cast rest = cast ? *cast : torch_cast;                                                                      \
        EACH_CHUNK(at, count)                                                                                          \
        {                                                                                                              \
            lb_store_##name(dst_dtype, dense, src + at, count, &rest);                                                 \
            scatter(dst, dst_dtype, stride, dense, at, count);                                                         \
            rest.counter += count;                                                                                     \
        }                                                                                                              \
    }

STRIDED(f32, float)
STRIDED(f64, double)

/* --- any to any ------------------------------------------------------------------------------------------------ */

static uint64_t integer_of(lb_dtype dtype, const void *src, size_t i)
{
    int8_t i8;
    int16_t i16;
    int32_t i32;
    uint64_t u64 = 0;
    const size_t size = lb_dtype_bits(dtype) / 8;
    const char *p = (const char *)src + i * size;
    switch (dtype) {
    case LB_BOOL: return *p != 0;
    case LB_I8: return memcpy(&i8, p, 1), (uint64_t)(int64_t)i8;
    case LB_I16: return memcpy(&i16, p, 2), (uint64_t)(int64_t)i16;
    case LB_I32: return memcpy(&i32, p, 4), (uint64_t)(int64_t)i32;
    default: return memcpy(&u64, p, size), u64; /* little-endian: the low bytes */
    }
}

static void integer_convert(lb_dtype dst_dtype, void *dst, lb_dtype src_dtype, const void *src, size_t n)
{
    const size_t size = lb_dtype_bits(dst_dtype) / 8;
    for (size_t i = 0; i < n; i++) {
        uint64_t value = integer_of(src_dtype, src, i);
        if (dst_dtype == LB_BOOL) value = value != 0;
        memcpy((char *)dst + i * size, &value, size);
    }
}

/* From a complex type to bool: true when either part is. */
static void complex_to_bool(uint8_t *dst, lb_dtype part, const void *src, size_t n)
{
    const size_t size = lb_dtype_bits(part) / 8;
    for (size_t i = 0; i < n; i++) {
        const char *p = (const char *)src + 2 * i * size;
        dst[i] = lb_to_f64(part, p) != 0 || lb_to_f64(part, p + size) != 0;
    }
}

static void chunk_convert(lb_dtype dst_dtype, void *dst, lb_dtype src_dtype, const void *src, size_t n,
                          const lb_cast *cast)
{
    const lb_dtype from = lb_dtype_part(src_dtype), to = lb_dtype_part(dst_dtype);
    /* f64 goes the wide way; so does an exact cast of an integer, which f32 might not hold. */
    if (from == LB_F64 || to == LB_F64 || (cast->exact && lb_dtype_is_integer(from))) {
        double wide[CHUNK];
        lb_load_f64(wide, src_dtype, src, n);
        lb_store_f64(dst_dtype, dst, wide, n, cast);
    } else {
        float part[CHUNK];
        lb_load_f32(part, src_dtype, src, n);
        lb_store_f32(dst_dtype, dst, part, n, cast);
    }
}

void lb_convert(lb_dtype dst_dtype, void *dst, lb_dtype src_dtype, const void *src, size_t n, const lb_cast *cast)
{
    if (n == 0) return;
    lb_cast rest = cast ? *cast : torch_cast;
    if (dst_dtype == src_dtype && !rest.flush_subnormals) {
        memmove(dst, src, lb_dtype_bytes(dst_dtype, n));
    } else if (lb_dtype_is_complex(dst_dtype) && lb_dtype_is_complex(src_dtype)) {
        lb_convert(lb_dtype_part(dst_dtype), dst, lb_dtype_part(src_dtype), src, 2 * n, cast);
    } else if (dst_dtype == LB_BOOL && lb_dtype_is_complex(src_dtype)) {
        complex_to_bool(dst, lb_dtype_part(src_dtype), src, n);
    } else if (lb_dtype_is_integer(dst_dtype) && lb_dtype_is_integer(src_dtype)) {
        integer_convert(dst_dtype, dst, src_dtype, src, n);
    } else if (src_dtype == LB_F32) {
        lb_store_f32(dst_dtype, dst, src, n, &rest);
    } else {
        EACH_CHUNK(at, count)
        {
            chunk_convert(dst_dtype, (char *)dst + lb_dtype_bytes(dst_dtype, at), src_dtype,
                          (const char *)src + lb_dtype_bytes(src_dtype, at), count, &rest);
            rest.counter += count;
        }
    }
}

void lb_convert_strided(lb_dtype dst_dtype, void *dst, ptrdiff_t dst_stride, lb_dtype src_dtype, const void *src,
                        ptrdiff_t src_stride, size_t n, const lb_cast *cast)
{
    if (dst_stride == 1 && src_stride == 1) {
        lb_convert(dst_dtype, dst, src_dtype, src, n, cast);
        return;
    }
    uint64_t from[2 * CHUNK] = {0}, to[2 * CHUNK] = {0};
    lb_cast rest = cast ? *cast : torch_cast;
    EACH_CHUNK(at, count)
    {
        gather(from, src_dtype, src, src_stride, at, count);
        lb_convert(dst_dtype, to, src_dtype, from, count, &rest);
        scatter(dst, dst_dtype, dst_stride, to, at, count);
        rest.counter += count;
    }
}
