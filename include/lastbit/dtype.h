/* Element types: names, properties, and every conversion between them.
 *
 * Simplest use:
 *
 *     lb_dtype dtype = lb_dtype_parse("torch.bfloat16");
 *     printf("%s: %zu bits\n", lb_dtype_name(dtype), lb_dtype_bits(dtype));
 *
 * A conversion is what torch 2.13 does in an eager `.to()` unless an `lb_cast` says otherwise; where torch itself
 * differs between its scalar and vector code (the bits of a NaN, integers out of range) the choice made here is stated
 * below. Bits never depend on the instruction set. No function here allocates; all are safe from any thread.
 *
 *   f32 -> bf16      nearest even; NaN gives 0x7FC0 (c10's; torch's AVX-512 path gives 0xFFFF: compare NaN as a class)
 *   f32 -> f16       IEEE nearest even with subnormals; a NaN keeps its sign and upper payload bits, made quiet
 *   f32 -> e4m3fn    nearest even, everything above 448 and infinity give +-448; NaN gives sign | 0x7F
 *   f32 -> e5m2      nearest even, overflow gives infinity; NaN gives sign | 0x7F
 *   f32 -> *fnuz     nearest even, overflow, infinity and NaN give NaN 0x80; there is no -0
 *   f32 -> e8m0      sign ignored, nearest power of two, ties up; 0 gives 0x00 (2^-127); overflow, infinity, NaN: 0xFF
 *   f32 -> e2m1      nearest even, saturating at +-6; NaN gives 0x8 (as ml_dtypes; torch has no such cast)
 *   f64 -> 16 or 8 bits goes through f32 (two roundings), as in torch; lb_cast.exact rounds once
 *   float -> int     truncation; out of range the value an x86 cvtt instruction leaves (via i32 for 8, 16, 32 bits)
 *   any -> bool      != 0 (NaN is true);  bool -> any: 0 or 1
 *   int -> float     through f32 (f64 for f64), each one rounding;  int -> int: low bits
 *   complex -> real  the real part;  real -> complex: imaginary part 0;  complex -> complex: by parts
 *
 * Elements of e2m1 lie two per byte, low nibble first; a pointer to such elements means one that starts at a low
 * nibble. Strides are in elements and may be negative or 0 (not for e2m1, which takes strides >= 0).
 */
#ifndef LASTBIT_DTYPE_H
#define LASTBIT_DTYPE_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lb_kind {
    LB_KIND_NONE,
    LB_KIND_FLOAT,
    LB_KIND_COMPLEX,
    LB_KIND_INT,
    LB_KIND_UINT,
    LB_KIND_BOOL,
    LB_KIND_SCALE /* e8m0: a power of two, no sign, no zero */
} lb_kind;

/* X(NAME, code, name, torch, safetensors, numpy, bits, kind). Codes are part of the file format: never renumber.
 * A spelling that does not exist is "". */
#define LB_DTYPES(X)                                                                                                   \
    X(F64, 1, "f64", "float64", "F64", "<f8", 64, FLOAT)                                                               \
    X(F32, 2, "f32", "float32", "F32", "<f4", 32, FLOAT)                                                               \
    X(BF16, 3, "bf16", "bfloat16", "BF16", "", 16, FLOAT)                                                              \
    X(F16, 4, "f16", "float16", "F16", "<f2", 16, FLOAT)                                                               \
    X(E4M3FN, 5, "e4m3fn", "float8_e4m3fn", "F8_E4M3", "", 8, FLOAT)                                                   \
    X(E5M2, 6, "e5m2", "float8_e5m2", "F8_E5M2", "", 8, FLOAT)                                                         \
    X(E4M3FNUZ, 7, "e4m3fnuz", "float8_e4m3fnuz", "F8_E4M3FNUZ", "", 8, FLOAT)                                         \
    X(E5M2FNUZ, 8, "e5m2fnuz", "float8_e5m2fnuz", "F8_E5M2FNUZ", "", 8, FLOAT)                                         \
    X(E8M0, 9, "e8m0", "float8_e8m0fnu", "F8_E8M0", "", 8, SCALE)                                                      \
    X(E2M1, 10, "e2m1", "float4_e2m1fn_x2", "F4", "", 4, FLOAT)                                                        \
    X(C32, 11, "c32", "complex32", "", "", 32, COMPLEX)                                                                \
    X(C64, 12, "c64", "complex64", "C64", "<c8", 64, COMPLEX)                                                          \
    X(C128, 13, "c128", "complex128", "", "<c16", 128, COMPLEX)                                                        \
    X(I8, 14, "i8", "int8", "I8", "|i1", 8, INT)                                                                       \
    X(I16, 15, "i16", "int16", "I16", "<i2", 16, INT)                                                                  \
    X(I32, 16, "i32", "int32", "I32", "<i4", 32, INT)                                                                  \
    X(I64, 17, "i64", "int64", "I64", "<i8", 64, INT)                                                                  \
    X(U8, 18, "u8", "uint8", "U8", "|u1", 8, UINT)                                                                     \
    X(U16, 19, "u16", "uint16", "U16", "<u2", 16, UINT)                                                                \
    X(U32, 20, "u32", "uint32", "U32", "<u4", 32, UINT)                                                                \
    X(U64, 21, "u64", "uint64", "U64", "<u8", 64, UINT)                                                                \
    X(BOOL, 22, "bool", "bool", "BOOL", "|b1", 8, BOOL)

typedef uint8_t lb_dtype;
enum {
    LB_NO_DTYPE = 0,
#define LB_DTYPE_ENUM(NAME, code, name, torch, safetensors, numpy, bits, kind) LB_##NAME = code,
    LB_DTYPES(LB_DTYPE_ENUM)
#undef LB_DTYPE_ENUM
        LB_DTYPE_COUNT = 23, /* one past the last code */
    /* A grid to round to (8 exponent bits, 10 fraction bits) whose values are held as f32: no element has this type. It
     * has a name and the numbers below, is not valid, and stands only where lb_round_to_grid_* rounds. */
    LB_TF32 = 64
};

/* --- names. A code outside the table reads as "none"; nothing here returns NULL. ------------------------------- */
LB_API const char *lb_dtype_name(lb_dtype dtype);        /* "bf16" */
LB_API const char *lb_dtype_torch(lb_dtype dtype);       /* "bfloat16" */
LB_API const char *lb_dtype_safetensors(lb_dtype dtype); /* "BF16"; "" when it has none */
LB_API const char *lb_dtype_numpy(lb_dtype dtype);       /* "<f4"; "" when NumPy itself has none */
/* Any of those spellings, "torch.bfloat16", NumPy's long names, torch's aliases ("half", "long"); LB_NO_DTYPE if
 * none. */
LB_API lb_dtype lb_dtype_parse(const char *text);
/* What can be rounded to: a float type, e8m0 or tf32; LB_NO_DTYPE for anything else. */
LB_API lb_dtype lb_dtype_grid_parse(const char *text);

/* --- properties ------------------------------------------------------------------------------------------------ */
LB_API bool lb_dtype_valid(lb_dtype dtype);
LB_API lb_kind lb_dtype_kind(lb_dtype dtype);
LB_API size_t lb_dtype_bits(lb_dtype dtype);            /* per element; 0 for none */
LB_API size_t lb_dtype_bytes(lb_dtype dtype, size_t n); /* of n dense elements, rounded up; SIZE_MAX on overflow */
LB_API bool lb_dtype_is_float(lb_dtype dtype);          /* kind FLOAT */
LB_API bool lb_dtype_is_complex(lb_dtype dtype);
LB_API bool lb_dtype_is_integer(lb_dtype dtype); /* INT, UINT or BOOL */
LB_API lb_dtype lb_dtype_part(lb_dtype dtype);   /* c64 -> f32; any other: itself */
/* Of floats and of a complex type's parts; 0 for the others. Significand bits include the hidden one. */
LB_API int lb_dtype_precision(lb_dtype dtype);        /* 24 for f32 */
LB_API double lb_dtype_unit_roundoff(lb_dtype dtype); /* 2^-precision */
LB_API double lb_dtype_max_finite(lb_dtype dtype);    /* also of integers (rounded to f64) */
LB_API double lb_dtype_min_normal(lb_dtype dtype);
LB_API double lb_dtype_min_subnormal(lb_dtype dtype);

/* --- how to round ---------------------------------------------------------------------------------------------- */
typedef enum lb_rounding {
    LB_RNE,       /* to nearest, ties to even */
    LB_RZ,        /* toward zero; a finite overflow gives the largest finite value */
    LB_RNA,       /* to nearest, ties away from zero */
    LB_STOCHASTIC /* up with the probability of the discarded fraction (in 2^-32), numbers from Philox4x32-10 */
} lb_rounding;

typedef enum lb_overflow {
    LB_OVERFLOW_TORCH,    /* per dtype, as in the table above */
    LB_OVERFLOW_SATURATE, /* overflow and infinity give the largest finite value */
    LB_OVERFLOW_IEEE      /* infinity, or NaN where the format has no infinity (e2m1: saturates still) */
} lb_overflow;

/* Zero (or NULL wherever a `const lb_cast *` is asked for) means torch's cast. */
typedef struct lb_cast {
    lb_rounding rounding;
    lb_overflow overflow;
    bool flush_subnormals; /* a subnormal result becomes zero of the same sign */
    bool exact;            /* f64 sources are rounded once, not through f32 */
    uint64_t seed;         /* stochastic: key */
    uint64_t counter;      /* stochastic: number of the first element; element i draws number counter + i */
} lb_cast;
#define LB_CAST_INIT {.rounding = LB_RNE, .overflow = LB_OVERFLOW_TORCH}

/* "rne", "rz", "rna", "stochastic:SEED"; false when `text` is none of them. */
LB_API bool lb_dtype_cast_parse(const char *text, lb_cast *cast);

/* Philox4x32-10 (Salmon et al., SC'11): four words for one 128-bit counter {counter, stream} and 64-bit key. */
LB_API void lb_philox(uint64_t key, uint64_t counter, uint64_t stream, uint32_t words[4]);

/* --- one element ----------------------------------------------------------------------------------------------- */
/* The value as f64 (exact but for i64 and u64); real part of a complex. `p` may be unaligned. */
LB_API double lb_to_f64(lb_dtype dtype, const void *p);
/* e2m1 writes the low nibble and leaves the high one. */
LB_API void lb_from_f64(lb_dtype dtype, void *p, double value, const lb_cast *cast);

/* --- arrays. dst and src must not overlap unless they are equal and of the same element size. ------------------- */
LB_API void lb_load_f32(float *dst, lb_dtype src_dtype, const void *src, size_t n);
LB_API void lb_load_f64(double *dst, lb_dtype src_dtype, const void *src, size_t n);
LB_API void lb_store_f32(lb_dtype dst_dtype, void *dst, const float *src, size_t n, const lb_cast *cast);
LB_API void lb_store_f64(lb_dtype dst_dtype, void *dst, const double *src, size_t n, const lb_cast *cast);
/* The typed side is strided, the f32/f64 side dense. */
LB_API void lb_load_f32_strided(float *dst, lb_dtype src_dtype, const void *src, ptrdiff_t stride, size_t n);
LB_API void lb_load_f64_strided(double *dst, lb_dtype src_dtype, const void *src, ptrdiff_t stride, size_t n);
LB_API void lb_store_f32_strided(lb_dtype dst_dtype, void *dst, ptrdiff_t stride, const float *src, size_t n,
                                 const lb_cast *cast);
LB_API void lb_store_f64_strided(lb_dtype dst_dtype, void *dst, ptrdiff_t stride, const double *src, size_t n,
                                 const lb_cast *cast);
/* `src.to(dst_dtype)`: any dtype to any other. */
LB_API void lb_convert(lb_dtype dst_dtype, void *dst, lb_dtype src_dtype, const void *src, size_t n,
                       const lb_cast *cast);
LB_API void lb_convert_strided(lb_dtype dst_dtype, void *dst, ptrdiff_t dst_stride, lb_dtype src_dtype, const void *src,
                               ptrdiff_t src_stride, size_t n, const lb_cast *cast);

/* Round in place to the values of `dtype` (LB_TF32 too), keeping f32 (f64) storage: the same values as a store and a
 * load. */
LB_API void lb_round_to_grid_f32(float *x, size_t n, lb_dtype dtype, const lb_cast *cast);
LB_API void lb_round_to_grid_f64(double *x, size_t n, lb_dtype dtype, const lb_cast *cast);
/* To TF32 (8 exponent bits, 10 fraction bits); tensor cores truncate, cvt.rna.tf32 rounds ties away. Not stochastic. */
LB_API void lb_round_to_grid_tf32(float *x, size_t n, lb_rounding rounding);

#ifdef __cplusplus
}
#endif
#endif
