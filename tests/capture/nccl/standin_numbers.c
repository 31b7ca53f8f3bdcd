/* Arithmetic of the stand-in: see standin_numbers.h. */
#include "standin_numbers.h"

#include <math.h>
#include <string.h>

/* Types of 8 and 16 bits by their fields; e4m3fn has no infinity and one NaN a sign. */
typedef struct narrow {
    int exponent_bits, fraction_bits;
    bool infinite;
} narrow;

static const narrow *narrow_of(int dtype)
{
    static const narrow f16 = {5, 10, true}, bf16 = {8, 7, true}, e4m3 = {4, 3, false}, e5m2 = {5, 2, true};
    return dtype == 6 ? &f16 : dtype == 9 ? &bf16 : dtype == 10 ? &e4m3 : dtype == 11 ? &e5m2 : NULL;
}

static float widen(const narrow *n, unsigned bits)
{
    const int bias = (1 << (n->exponent_bits - 1)) - 1, top = (1 << n->exponent_bits) - 1;
    const int exponent = (int)(bits >> n->fraction_bits) & top, fraction = (int)(bits & ((1u << n->fraction_bits) - 1));
    const float sign = bits >> (n->exponent_bits + n->fraction_bits) ? -1.0f : 1.0f;
    if (exponent == top && n->infinite) return fraction ? NAN : sign * INFINITY;
    if (exponent == top && fraction == (1 << n->fraction_bits) - 1) return NAN;
    const float mantissa = (float)(fraction + (exponent ? 1 << n->fraction_bits : 0));
    return sign * ldexpf(mantissa, (exponent ? exponent : 1) - bias - n->fraction_bits);
}

/* To nearest, ties to even: nearbyint of a multiple of the last place. */
static unsigned narrowed(const narrow *n, float x)
{
    const int bias = (1 << (n->exponent_bits - 1)) - 1, top = (1 << n->exponent_bits) - 1;
    const unsigned sign = (signbit(x) ? 1u : 0u) << (n->exponent_bits + n->fraction_bits);
    const unsigned most = (unsigned)((top << n->fraction_bits) - (n->infinite ? 1 : 0)) +
                          (n->infinite ? 0u : (1u << n->fraction_bits) - 2);
    int exponent;
    if (isnan(x)) return sign | ((1u << (n->exponent_bits + n->fraction_bits)) - 1);
    if (x == 0) return sign;
    frexpf(x, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    const double units = nearbyint(ldexp(fabs((double)x), n->fraction_bits - exponent));
    const double code = units + ldexp(exponent + bias - 1, n->fraction_bits);
    if (isinf(x) || code > most) return sign | (n->infinite ? most + 1 : most);
    return sign | (unsigned)code;
}

element standin_load(int dtype, const void *from)
{
    element e = {0};
    uint16_t half;
    switch (dtype) {
    case 0: e.i = *(const int8_t *)from; break;
    case 1: e.i = *(const uint8_t *)from; break;
    case 2: e.i = *(const int32_t *)from; break;
    case 3: e.i = *(const uint32_t *)from; break;
    case 4:
    case 5: memcpy(&e.i, from, 8); break;
    case 7: memcpy(&e.f, from, 4); break;
    case 8: memcpy(&e.d, from, 8); break;
    case 6:
    case 9: memcpy(&half, from, 2), e.f = widen(narrow_of(dtype), half); break;
    default: e.f = widen(narrow_of(dtype), *(const uint8_t *)from);
    }
    return e;
}

void standin_store(int dtype, void *to, element e)
{
    const unsigned code = narrow_of(dtype) ? narrowed(narrow_of(dtype), e.f) : 0;
    switch (dtype) {
    case 6:
    case 9:
    case 10:
    case 11: memcpy(to, &code, (size_t)standin_widths[dtype]); break; /* little-endian */
    case 7: memcpy(to, &e.f, 4); break;
    case 8: memcpy(to, &e.d, 8); break;
    default: memcpy(to, &e.i, (size_t)standin_widths[dtype]); /* little-endian */
    }
}

element standin_rounded(int dtype, element e)
{
    if (narrow_of(dtype)) e.f = widen(narrow_of(dtype), narrowed(narrow_of(dtype), e.f));
    return e;
}

bool standin_is_float(int dtype)
{
    return dtype == 7 || narrow_of(dtype);
}

element standin_join(int dtype, int op, element a, element b)
{
    if (dtype == 8)
        a.d = op == 1 ? a.d * b.d : op == 2 ? fmax(a.d, b.d) : op == 3 ? fmin(a.d, b.d) : a.d + b.d;
    else if (standin_is_float(dtype))
        a.f = op == 1 ? a.f * b.f : op == 2 ? fmaxf(a.f, b.f) : op == 3 ? fminf(a.f, b.f) : a.f + b.f;
    else
        a.i = op == 1   ? (int64_t)((uint64_t)a.i * (uint64_t)b.i)
              : op == 2 ? (a.i > b.i ? a.i : b.i)
              : op == 3 ? (a.i < b.i ? a.i : b.i)
                        : (int64_t)((uint64_t)a.i + (uint64_t)b.i);
    return standin_rounded(dtype, a);
}
