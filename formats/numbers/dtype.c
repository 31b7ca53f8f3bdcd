/* Names and properties of the element types, and the bit layouts: see lastbit/dtype.h and float_format.h. */
#include <lastbit/dtype.h>

#include "numbers/float_format.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct properties {
    const char *name, *torch, *safetensors, *numpy;
    size_t bits;
    lb_kind kind;
} properties;

static const properties table[LB_DTYPE_COUNT] = {{"none", "none", "", "", 0, LB_KIND_NONE},
#define ROW(NAME, code, name, torch, safetensors, numpy, bits, kind)                                                   \
    [code] = {name, torch, safetensors, numpy, bits, LB_KIND_##kind},
                                                 LB_DTYPES(ROW)
#undef ROW
};

static const properties *row(lb_dtype dtype)
{
    return &table[dtype < LB_DTYPE_COUNT ? dtype : LB_NO_DTYPE];
}

const char *lb_dtype_name(lb_dtype dtype)
{
    return dtype == LB_TF32 ? "tf32" : row(dtype)->name;
}
const char *lb_dtype_torch(lb_dtype dtype)
{
    return row(dtype)->torch;
}
const char *lb_dtype_safetensors(lb_dtype dtype)
{
    return row(dtype)->safetensors;
}
const char *lb_dtype_numpy(lb_dtype dtype)
{
    return row(dtype)->numpy;
}
bool lb_dtype_valid(lb_dtype dtype)
{
    return dtype != LB_NO_DTYPE && dtype < LB_DTYPE_COUNT;
}
lb_kind lb_dtype_kind(lb_dtype dtype)
{
    return row(dtype)->kind;
}
size_t lb_dtype_bits(lb_dtype dtype)
{
    return row(dtype)->bits;
}
bool lb_dtype_is_float(lb_dtype dtype)
{
    return row(dtype)->kind == LB_KIND_FLOAT;
}
bool lb_dtype_is_complex(lb_dtype dtype)
{
    return row(dtype)->kind == LB_KIND_COMPLEX;
}

bool lb_dtype_is_integer(lb_dtype dtype)
{
    lb_kind kind = row(dtype)->kind;
    return kind == LB_KIND_INT || kind == LB_KIND_UINT || kind == LB_KIND_BOOL;
}

size_t lb_dtype_bytes(lb_dtype dtype, size_t n)
{
    size_t bits = row(dtype)->bits, bytes;
    if (bits == 4) return n / 2 + n % 2;
    return __builtin_mul_overflow(n, bits / 8, &bytes) ? SIZE_MAX : bytes;
}

lb_dtype lb_dtype_part(lb_dtype dtype)
{
    return dtype == LB_C32 ? LB_F16 : dtype == LB_C64 ? LB_F32 : dtype == LB_C128 ? LB_F64 : dtype;
}

/* Spellings besides the table's: NumPy's and torch's other names for the same bits. */
static const struct {
    const char *text;
    lb_dtype dtype;
} aliases[] = {
    {"double", LB_F64},
    {"float", LB_F32},
    {"half", LB_F16},
    {"complex_half", LB_C32},
    {"chalf", LB_C32},
    {"cfloat", LB_C64},
    {"cdouble", LB_C128},
    {"char", LB_I8},
    {"short", LB_I16},
    {"int", LB_I32},
    {"long", LB_I64},
    {"byte", LB_U8},
    {"fp64", LB_F64},
    {"fp32", LB_F32},
    {"fp16", LB_F16},
    {"float8_e8m0", LB_E8M0},
    {"float4_e2m1fn", LB_E2M1},
    {"e8m0fnu", LB_E8M0},
    {"e2m1fn", LB_E2M1},
    {"e4m3", LB_E4M3FN},
    {"C128", LB_C128},
    {"F8_E4M3FN", LB_E4M3FN},
    {"boolean", LB_BOOL},
    {"|V2", LB_NO_DTYPE},
    {"|b", LB_BOOL},
    {"?", LB_BOOL},
};

static bool same_word(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
    return *a == *b;
}

lb_dtype lb_dtype_parse(const char *text)
{
    if (!text || !*text) return LB_NO_DTYPE;
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    /* NumPy writes '=' for the machine's own order, and little-endian is the only one there is here. */
    char numpy[8] = "";
    if ((*text == '=' || *text == '|' || *text == '<') && strlen(text) < sizeof numpy) {
        strcpy(numpy, text);
        numpy[0] = strcmp(text + 1, "i1") && strcmp(text + 1, "u1") && strcmp(text + 1, "b1") ? '<' : '|';
        text = numpy;
    }
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++) {
        const properties *properties = &table[d];
        if (same_word(text, properties->name) || same_word(text, properties->torch) ||
            same_word(text, properties->safetensors) || strcmp(text, properties->numpy) == 0)
            return d;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (same_word(text, aliases[i].text)) return aliases[i].dtype;
    return LB_NO_DTYPE;
}

lb_dtype lb_dtype_grid_parse(const char *text)
{
    if (text && same_word(text, "tf32")) return LB_TF32;
    const lb_dtype dtype = lb_dtype_parse(text);
    return lb_dtype_is_float(dtype) || dtype == LB_E8M0 ? dtype : LB_NO_DTYPE;
}

/* --- layouts --------------------------------------------------------------------------------------------------- */

const float_format float_format_f32 = {23, 127,      31, 0x7f7fffff, 0x7f800000, 0x7fc00000,
                                       1,  0x3fffff, 0,  0x1p-149f,  0x7f800000, 0x7f800000};
static const float_format bf16 = {7, 127, 15, 0x7f7f, 0x7f80, 0x7fc0, 0, 0, 0, 0x1p-133f, 0x7f80, 0x7f80};
static const float_format tf32 = {10, 127, 18, 0x3fbff, 0x3fc00, 0x3fe00, 1, 0x1ff, 0, 0x1p-136f, 0x3fc00, 0x3fc00};
static const float_format f16 = {10, 15, 15, 0x7bff, 0x7c00, 0x7e00, 1, 0x1ff, 0, 0x1p-24f, 0x7c00, 0x7c00};
static const float_format e4m3fn = {3, 7, 7, 0x7e, 0, 0x7f, 1, 0, 0, 0x1p-9f, 0x7e, 0x7e};
static const float_format e5m2 = {2, 15, 7, 0x7b, 0x7c, 0x7f, 1, 0, 0, 0x1p-16f, 0x7c, 0x7c};
static const float_format e4m3fnuz = {3, 8, 7, 0x7f, 0, 0x80, 0, 0, 1, 0x1p-10f, 0x80, 0x80};
static const float_format e5m2fnuz = {2, 16, 7, 0x7f, 0, 0x80, 0, 0, 1, 0x1p-17f, 0x80, 0x80};
static const float_format e2m1 = {1, 1, 3, 0x7, 0, 0x8, 0, 0, 0, 0.5f, 0x7, 0x7};

const float_format *float_format_of(lb_dtype dtype)
{
    switch (dtype) {
    case LB_BF16: return &bf16;
    case LB_TF32: return &tf32;
    case LB_F16: return &f16;
    case LB_E4M3FN: return &e4m3fn;
    case LB_E5M2: return &e5m2;
    case LB_E4M3FNUZ: return &e4m3fnuz;
    case LB_E5M2FNUZ: return &e5m2fnuz;
    case LB_E2M1: return &e2m1;
    default: return NULL;
    }
}

float_target float_target_of(const float_format *format, const lb_cast *cast)
{
    float_target target = {format->fraction_bits,
                           format->bias,
                           format->sign_shift,
                           format->max_code,
                           format->nan_code,
                           format->nan_sign,
                           format->payload_mask,
                           format->unsigned_zero,
                           format->torch_over,
                           format->torch_inf,
                           0};
    if (cast->overflow == LB_OVERFLOW_SATURATE) {
        target.over_code = target.inf_code = format->max_code;
    } else if (cast->overflow == LB_OVERFLOW_IEEE) {
        target.over_code = target.inf_code = format->inf_code  ? format->inf_code
                                             : format == &e2m1 ? format->max_code
                                                               : format->nan_code;
    }
    if (cast->rounding == LB_RZ) target.over_code = format->max_code;
    if (cast->flush_subnormals) target.smallest_kept = 1u << format->fraction_bits;
    return target;
}

/* --- numbers about them ---------------------------------------------------------------------------------------- */

static const float_format *layout_of(lb_dtype dtype)
{
    lb_dtype part = lb_dtype_part(dtype);
    return part == LB_F32 ? &float_format_f32 : float_format_of(part);
}

int lb_dtype_precision(lb_dtype dtype)
{
    const float_format *format = layout_of(dtype);
    if (format) return (int)format->fraction_bits + 1;
    return lb_dtype_part(dtype) == LB_F64 ? DBL_MANT_DIG : dtype == LB_E8M0 ? 1 : 0;
}

double lb_dtype_unit_roundoff(lb_dtype dtype)
{
    int precision = lb_dtype_precision(dtype);
    return precision ? ldexp(1.0, -precision) : 0.0;
}

double lb_dtype_max_finite(lb_dtype dtype)
{
    const float_format *format = layout_of(dtype);
    if (format) return float_decode(format->max_code, format);
    switch (dtype) {
    case LB_F64:
    case LB_C128: return DBL_MAX;
    case LB_E8M0: return 0x1p127;
    case LB_BOOL: return 1.0;
    default: break;
    }
    lb_kind kind = lb_dtype_kind(dtype);
    if (kind != LB_KIND_INT && kind != LB_KIND_UINT) return 0.0;
    return ldexp(1.0, (int)lb_dtype_bits(dtype) - (kind == LB_KIND_INT)) - 1.0;
}

double lb_dtype_min_normal(lb_dtype dtype)
{
    const float_format *format = layout_of(dtype);
    if (format) return ldexp(1.0, 1 - format->bias);
    return lb_dtype_part(dtype) == LB_F64 ? DBL_MIN : dtype == LB_E8M0 ? 0x1p-127 : 0.0;
}

double lb_dtype_min_subnormal(lb_dtype dtype)
{
    const float_format *format = layout_of(dtype);
    if (format) return format->min_subnormal;
    return lb_dtype_part(dtype) == LB_F64 ? 0x1p-1074 : dtype == LB_E8M0 ? 0x1p-127 : 0.0;
}

bool lb_dtype_cast_parse(const char *text, lb_cast *cast)
{
    if (strcmp(text, "rne") == 0) {
        cast->rounding = LB_RNE;
    } else if (strcmp(text, "rz") == 0) {
        cast->rounding = LB_RZ;
    } else if (strcmp(text, "rna") == 0) {
        cast->rounding = LB_RNA;
    } else if (strncmp(text, "stochastic:", 11) == 0 && isdigit((unsigned char)text[11])) {
        char *end;
        errno = 0;
        unsigned long long seed = strtoull(text + 11, &end, 0);
        if (*end || errno) return false;
        cast->rounding = LB_STOCHASTIC;
        cast->seed = seed;
    } else {
        return false;
    }
    return true;
}
