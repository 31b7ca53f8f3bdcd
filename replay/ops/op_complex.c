/* Complex numbers: see complex_rows.h. A complex tensor of n dimensions is one of reals that has another dimension of
 * two at its end. */
#include "kernel/complex_rows.h"

#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the ways ---------------------------------------------------------------------------------------------------- */

typedef struct number {
    double re, im;
} number;
typedef number (*loop)(number a, number b, bool wide);

typedef enum manner { MOVED, BY_PARTS, PRODUCTS, FILLED, ITS_OWN } manner;

static double absolute(number z);

/* (a + bi)(c + di) as torch's scalar loops have it: the first product of each part is fused with the sum. Where
 * elements lie side by side torch's vectors round all four products. Source: torch's complex_rows.h and
 * vec512_complex_float.h, and measured. */
static number times(number a, number b, bool wide)
{
    if (wide) return (number){fma(a.re, b.re, -(a.im * b.im)), fma(a.re, b.im, a.im * b.re)};
    const float ar = (float)a.re, ai = (float)a.im, br = (float)b.re, bi = (float)b.im;
    return (number){fmaf(ar, br, -(ai * bi)), fmaf(ar, bi, ai * br)};
}
static number times_twin(number a, number b, bool wide)
{
    (void)wide;
    return (number){fabs(a.re * b.re) + fabs(a.im * b.im), fabs(a.re * b.im) + fabs(a.im * b.re)};
}
static number magnitude(number a, number b, bool wide)
{
    (void)b, (void)wide;
    return (number){absolute(a), 0};
}
/* a / b without overflow on the way: both are scaled by the larger part of b (Smith's way; torch has it, too). */
static number quotient(number a, number b, bool wide)
{
    (void)wide;
    const double c = fabs(b.re), d = fabs(b.im);
    if (c == 0 && d == 0) return (number){a.re / c, a.im / c};
    if (c >= d) {
        const double ratio = b.im / b.re, scale = 1 / (b.re + b.im * ratio);
        return (number){(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const double ratio = b.re / b.im, scale = 1 / (b.re * ratio + b.im);
    return (number){(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
/* Either part is off in parts of the magnitude. */
static number quotient_twin(number a, number b, bool wide)
{
    (void)wide;
    const double size = absolute(a) / absolute(b);
    return (number){size, size};
}
/* z / |z|, and 0 for 0 */
static number direction(number a, number b, bool wide)
{
    (void)b, (void)wide;
    const double size = absolute(a);
    return size == 0 ? (number){0, 0} : (number){a.re / size, a.im / size};
}
static number direction_twin(number a, number b, bool wide)
{
    (void)b, (void)wide;
    const double size = absolute(a) == 0 ? 0 : 1;
    return (number){size, size};
}
static number exponential(number a, number b, bool wide)
{
    (void)b, (void)wide;
    const double size = lb_exp(a.re);
    return (number){size * lb_cos(a.im), a.im == 0 ? a.im : size * lb_sin(a.im)};
}
static number exponential_twin(number a, number b, bool wide)
{
    (void)b, (void)wide;
    const double size = lb_exp(a.re);
    return (number){size, a.im == 0 ? 0 : size};
}
static number conjugate(number a, number b, bool wide)
{
    (void)b, (void)wide;
    return (number){a.re, -a.im};
}
static number put_together(number a, number b, bool wide)
{
    (void)wide;
    return (number){a.re, b.re};
}
static number from_polar(number a, number b, bool wide)
{
    if (wide) return (number){a.re * lb_cos(b.re), a.re * lb_sin(b.re)};
    const float r = (float)a.re, c = (float)lb_cos(b.re), s = (float)lb_sin(b.re);
    return (number){r * c, r * s};
}

typedef struct lb_complex_way {
    manner manner;
    bool lists_are_dims; /* by parts: lists of numbers are dimensions, not complex numbers */
    loop run, twin;      /* its own; twin NULL: |y| */
    double roundings;
    bool exact;
    int filler; /* filled: which arg every element is; 0: one */
} lb_complex_way;

const lb_complex_way lb_complex_moved = {.manner = MOVED, .exact = true};
const lb_complex_way lb_complex_ones = {.manner = FILLED, .exact = true};
const lb_complex_way lb_complex_second = {.manner = FILLED, .exact = true, .filler = 1};
const lb_complex_way lb_complex_linear = {.manner = BY_PARTS};
const lb_complex_way lb_complex_negation = {.manner = BY_PARTS, .exact = true};
const lb_complex_way lb_complex_sums = {.manner = BY_PARTS, .lists_are_dims = true};
const lb_complex_way lb_complex_product = {.manner = ITS_OWN, .run = times, .twin = times_twin, .roundings = 2};
const lb_complex_way lb_complex_magnitude = {.manner = ITS_OWN, .run = magnitude, .roundings = 3};
const lb_complex_way lb_complex_quotient = {.manner = ITS_OWN, .run = quotient, .twin = quotient_twin, .roundings = 10};
const lb_complex_way lb_complex_direction = {
    .manner = ITS_OWN, .run = direction, .twin = direction_twin, .roundings = 6};
const lb_complex_way lb_complex_exponential = {
    .manner = ITS_OWN, .run = exponential, .twin = exponential_twin, .roundings = 10};
const lb_complex_way lb_complex_matrices = {.manner = PRODUCTS};
static const lb_complex_way of_conjugate = {.manner = ITS_OWN, .run = conjugate, .exact = true};
static const lb_complex_way of_parts = {.manner = ITS_OWN, .run = put_together, .exact = true};
static const lb_complex_way of_polar = {.manner = ITS_OWN, .run = from_polar, .roundings = 6};

bool lb_complex_is_used(const lb_call *call)
{
    for (uint32_t r = 0; r < call->n_results; r++)
        if (call->results[r].data && lb_dtype_is_complex(call->results[r].dtype)) return true;
    for (uint32_t i = 0; i < call->n_args; i++) {
        const lb_operand *arg = &call->args[i];
        if (arg->tag == LB_OPERAND_TENSOR && lb_dtype_is_complex(arg->tensor.dtype)) return true;
        for (uint32_t k = 0; arg->tag == LB_OPERAND_TENSORS && k < arg->count; k++)
            if (lb_dtype_is_complex(arg->tensors[k].dtype)) return true;
    }
    return false;
}

lb_layout lb_complex_layout_parts(const lb_layout *layout, lb_dtype dtype)
{
    lb_layout l = *layout;
    if (!lb_dtype_is_complex(dtype) || l.ndim == LB_MAX_DIMS) return l;
    for (int d = 0; d < l.ndim; d++) l.stride[d] *= 2;
    l.offset *= 2;
    l.shape[l.ndim] = 2, l.stride[l.ndim] = 1;
    l.ndim++;
    return l;
}

bool lb_complex_tensor_parts(const lb_tensor *tensor, lb_tensor *parts)
{
    *parts = (lb_tensor){tensor->data, lb_dtype_part(tensor->dtype),
                         lb_complex_layout_parts(&tensor->layout, tensor->dtype)};
    return !lb_dtype_is_complex(tensor->dtype) || tensor->layout.ndim < LB_MAX_DIMS;
}

static lb_status refuse(const lb_call *call)
{
    return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: not computed with complex numbers", call->row->name);
}

/* ---- by parts ---------------------------------------------------------------------------------------------------- */

/* Of a real tensor part 1 is zero; `zero` holds it. */
static lb_tensor part_of(const lb_tensor *tensor, int part, const uint64_t *zero)
{
    lb_tensor t = *tensor;
    if (!t.data) return t;
    if (lb_dtype_is_complex(t.dtype)) {
        t.dtype = lb_dtype_part(t.dtype);
        t.data = (char *)t.data + (size_t)part * (lb_dtype_bits(t.dtype) / 8);
        t.layout.offset = 2 * t.layout.offset + part;
        for (int d = 0; d < t.layout.ndim; d++) t.layout.stride[d] *= 2;
    } else if (part) {
        t.data = (void *)(uintptr_t)zero;
        t.layout.offset = 0;
        memset(t.layout.stride, 0, sizeof t.layout.stride);
    }
    return t;
}

/* Of a number in a tensor's place; false: it is none. A complex one of Python's is a list of two. */
static bool part_of_number(const lb_operand *number, int part, lb_operand *out)
{
    const bool real =
        number->tag == LB_OPERAND_INT || number->tag == LB_OPERAND_FLOAT || number->tag == LB_OPERAND_BOOL;
    if (!real && (number->tag != LB_OPERAND_NUMBERS || number->count != 2)) return false;
    *out = *number;
    if (!real)
        *out = (lb_operand){.tag = LB_OPERAND_FLOAT, .f = number->floats[part], .i = (int64_t)number->floats[part]};
    else if (part)
        out->i = 0, out->f = 0;
    return true;
}

enum { MOST_ARGS = 16 };

static lb_status by_parts(const lb_call *call, lb_kernel kernel)
{
    static const uint64_t zero = 0;
    lb_operand args[MOST_ARGS];
    lb_tensor result;
    if (call->n_args > MOST_ARGS || call->n_results != 1) return refuse(call);
    for (int part = 0; part < 2; part++) {
        lb_call one = *call;
        one.args = args, one.results = &result;
        result = part_of(&call->results[0], part, NULL);
        if (!lb_dtype_is_complex(call->results[0].dtype)) return refuse(call);
        for (uint32_t i = 0; i < call->n_args; i++) {
            args[i] = call->args[i];
            if (args[i].tag == LB_OPERAND_TENSOR) args[i].tensor = part_of(&call->args[i].tensor, part, &zero);
            /* Of complex numbers no alpha is known. */
            const bool sums = call->row->complex->lists_are_dims;
            if (!sums && i < 2 && args[i].tag != LB_OPERAND_TENSOR && !part_of_number(&call->args[i], part, &args[i]))
                return refuse(call);
            if (!sums && i >= 2 && args[i].tag == LB_OPERAND_NUMBERS) return refuse(call);
            if (args[i].tag == LB_OPERAND_DTYPE) args[i].i = (int64_t)lb_dtype_part((lb_dtype)args[i].i);
        }
        LB_TRY(kernel(&one));
    }
    return LB_OK;
}

/* (A + iB)(C + iD) = AC - BD + i (AD + BC), of the factors that are args 0 and 1. `kernel` gives products, or the sums
 * of their magnitudes. */
static lb_status products(const lb_call *call, lb_kernel kernel, bool twin)
{
    static const uint64_t zero = 0;
    const lb_tensor *y = &call->results[0];
    if (call->n_results != 1 || call->n_args < 2 || call->args[0].tag != LB_OPERAND_TENSOR ||
        call->args[1].tag != LB_OPERAND_TENSOR || !lb_dtype_is_complex(y->dtype))
        return refuse(call);
    const lb_dtype part = lb_dtype_part(y->dtype);
    const int64_t n = lb_layout_numel(&y->layout);
    const lb_layout dense = lb_layout_contiguous(y->layout.ndim, y->layout.shape);
    char *room = calloc((size_t)(2 * n) + 1, lb_dtype_bits(part) / 8);
    if (!room) return lb_fail(call->err, LB_ERR_NOMEM, "out of memory");
    lb_tensor terms[2] = {{room, part, dense}, {room + n * (int64_t)(lb_dtype_bits(part) / 8), part, dense}};
    lb_status status = LB_OK;
    for (int imaginary = 0; status == LB_OK && imaginary < 2; imaginary++) {
        for (int k = 0; status == LB_OK && k < 2; k++) {
            lb_operand factors[2] = {call->args[0], call->args[1]};
            factors[0].tensor = part_of(&call->args[0].tensor, k, &zero);
            factors[1].tensor = part_of(&call->args[1].tensor, imaginary ? 1 - k : k, &zero);
            lb_call one = *call;
            one.args = factors, one.n_args = 2, one.results = &terms[k];
            status = kernel(&one);
        }
        lb_tensor to = part_of(y, imaginary, NULL);
        const bool minus = !imaginary && !twin;
        int64_t index[LB_MAX_DIMS] = {0}, at = 0;
        const int64_t size = (int64_t)(lb_dtype_bits(part) / 8);
        for (int64_t i = 0; status == LB_OK && i < n; i++) {
            const double a = lb_to_f64(part, (char *)terms[0].data + i * size),
                         b = lb_to_f64(part, (char *)terms[1].data + i * size), sum = minus ? a - b : a + b;
            lb_convert(part, (char *)to.data + at * size, LB_F64, &sum, 1, call->method.cast);
            for (int d = to.layout.ndim - 1; d >= 0; d--) {
                at += to.layout.stride[d];
                if (++index[d] < to.layout.shape[d]) break;
                at -= to.layout.stride[d] * to.layout.shape[d];
                index[d] = 0;
            }
        }
    }
    free(room);
    return status;
}

/* ---- loops of our own -------------------------------------------------------------------------------------------- */

/* |z| without overflow on the way. */
static double absolute(number number)
{
    const double a = fabs(number.re), b = fabs(number.im), most = a > b ? a : b, least = a > b ? b : a;
    if (isinf(a) || isinf(b)) return INFINITY;
    if (isnan(a) || isnan(b)) return NAN;
    if (most == 0) return 0;
    if (most > 0x1p-400 && most < 0x1p400) return __builtin_sqrt(most * most + least * least);
    const double ratio = least / most;
    return most * __builtin_sqrt(1 + ratio * ratio);
}

typedef struct operand {
    const char *data;
    lb_dtype part;
    bool complex, constant;
    number number;
    int64_t stride[LB_MAX_DIMS]; /* bytes, along the result's dimensions */
} operand;

static bool read_operand(const lb_operand *arg, const lb_layout *to, operand *read)
{
    *read = (operand){.constant = true};
    if (arg->tag == LB_OPERAND_INT || arg->tag == LB_OPERAND_FLOAT || arg->tag == LB_OPERAND_BOOL) {
        read->number.re = arg->f;
        return true;
    }
    if (arg->tag == LB_OPERAND_NUMBERS && arg->count == 2) { /* a complex number of Python's */
        read->number = (number){arg->floats[0], arg->floats[1]};
        return true;
    }
    if (arg->tag != LB_OPERAND_TENSOR || arg->tensor.layout.ndim > to->ndim) return false;
    const lb_tensor *tensor = &arg->tensor;
    const int64_t size = (int64_t)lb_dtype_bits(tensor->dtype) / 8;
    read->constant = false;
    read->data = tensor->data;
    read->complex = lb_dtype_is_complex(tensor->dtype);
    read->part = lb_dtype_part(tensor->dtype);
    const int missing = to->ndim - tensor->layout.ndim;
    for (int d = missing; d < to->ndim; d++) {
        const int64_t n = tensor->layout.shape[d - missing];
        if (n != to->shape[d] && n != 1) return false;
        read->stride[d] = n == 1 ? 0 : tensor->layout.stride[d - missing] * size;
    }
    return true;
}

static number load(const operand *operand, int64_t at)
{
    if (operand->constant) return operand->number;
    const char *p = operand->data + at;
    return (number){lb_to_f64(operand->part, p),
                    operand->complex ? lb_to_f64(operand->part, p + lb_dtype_bits(operand->part) / 8) : 0};
}

static lb_status each(const lb_call *call, loop run)
{
    lb_tensor *y = &call->results[0];
    if (call->n_results != 1 || call->method.kernel || call->method.cast || call->method.compute) return refuse(call);
    if (!y->data) return LB_OK;
    const lb_layout *to = &y->layout;
    operand a, b = {.constant = true};
    if (!read_operand(&call->args[0], to, &a) || (call->n_args > 1 && !read_operand(&call->args[1], to, &b)))
        return refuse(call);
    const lb_dtype part = lb_dtype_part(y->dtype);
    const size_t size = lb_dtype_bits(part) / 8;
    const int parts = lb_dtype_is_complex(y->dtype) ? 2 : 1;
    if (part != LB_F32 && part != LB_F64) return refuse(call);
    const bool wide = part == LB_F64 || a.part == LB_F64 || b.part == LB_F64;
    int64_t index[LB_MAX_DIMS] = {0}, at_a = 0, at_b = 0, at = 0;
    for (int64_t n = lb_layout_numel(to), i = 0; i < n; i++) {
        const number number = run(load(&a, at_a), load(&b, at_b), wide);
        const double z_parts[2] = {number.re, number.im};
        char *out = (char *)y->data + at * (int64_t)size * parts;
        lb_convert(part, out, LB_F64, z_parts, (size_t)parts, NULL);
        for (int d = to->ndim - 1; d >= 0; d--) {
            at_a += a.stride[d], at_b += b.stride[d], at += to->stride[d];
            if (++index[d] < to->shape[d]) break;
            at_a -= a.stride[d] * to->shape[d], at_b -= b.stride[d] * to->shape[d], at -= to->stride[d] * to->shape[d];
            index[d] = 0;
        }
    }
    return LB_OK;
}

static number itself(number a, number b, bool wide)
{
    (void)b, (void)wide;
    return a;
}

static lb_status fill(const lb_call *call, uint32_t filler)
{
    const lb_operand one = {.tag = LB_OPERAND_INT, .i = 1, .f = 1};
    lb_call own = *call;
    if (filler >= call->n_args) return refuse(call);
    own.args = filler ? &call->args[filler] : &one, own.n_args = 1;
    return each(&own, itself);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

lb_status lb_row_run(const lb_call *call)
{
    lb_call own = *call;
    const bool complex = lb_complex_is_used(call) && !(call->row->flags & LB_ROW_COMPLEX);
    const lb_complex_way *way = complex ? call->row->complex : NULL;
    if (!way) return complex ? refuse(call) : call->row->kernel(&own);
    if (way->manner == MOVED) return call->row->kernel(&own);
    if (way->manner == FILLED) return fill(call, (uint32_t)way->filler);
    if (way->manner == PRODUCTS) return products(call, call->row->kernel, false);
    return way->manner == BY_PARTS ? by_parts(call, call->row->kernel) : each(call, way->run);
}

lb_status lb_row_twin(const lb_call *call)
{
    lb_call own = *call;
    const bool complex = lb_complex_is_used(call) && !(call->row->flags & LB_ROW_COMPLEX);
    const lb_complex_way *way = complex ? call->row->complex : NULL;
    if (!way && complex) return refuse(call);
    if (way && way->manner == FILLED) return LB_ERR_NOT_FOUND;
    if (way && way->manner == ITS_OWN) return way->twin ? each(call, way->twin) : LB_ERR_NOT_FOUND;
    if (!call->row->twin) return LB_ERR_NOT_FOUND;
    if (way && way->manner == PRODUCTS) return products(call, call->row->twin, true);
    return way && way->manner == BY_PARTS ? by_parts(call, call->row->twin) : call->row->twin(&own);
}

bool lb_row_is_exact(const lb_call *call)
{
    const lb_complex_way *way = lb_complex_is_used(call) ? call->row->complex : NULL;
    if (way) return way->exact;
    return (call->row->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)) != 0;
}

double lb_row_roundings(const lb_call *call)
{
    const lb_complex_way *way = lb_complex_is_used(call) ? call->row->complex : NULL;
    if (way && way->manner == ITS_OWN) return way->roundings;
    if (way && way->manner == PRODUCTS)
        return (double)call->row->roundings + 3 + (double)call->row->roundings_per_term * 2 * lb_call_terms(call);
    return (double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call);
}

/* Their results are complex, whatever their operands are: only lb_row_run computes them. */
static lb_status only_complex(lb_call *call)
{
    return lb_complex_is_used(call) ? lb_row_run(call) : refuse(call);
}

#define ROW(NAME, ARGS, WAY, ROUNDINGS, FLAGS, SAMPLES)                                                                \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = only_complex,                                                                                           \
     .roundings = ROUNDINGS,                                                                                           \
     .flags = LB_ROW_ELEMENTWISE | (FLAGS),                                                                            \
     .samples = SAMPLES,                                                                                               \
     .complex = &WAY},

/* clang-format off */
const lb_op_row lb_rows_complex[] = {
    ROW("polar", "abs! angle!", of_polar, 6, 0, "complex polar")
    ROW("complex", "real! imag!", of_parts, 0, LB_ROW_EXACT, "complex parts")
    ROW("_conj_physical", "self!", of_conjugate, 0, LB_ROW_EXACT, "complex one")
    ROW("conj_physical", "self!", of_conjugate, 0, LB_ROW_EXACT, "complex one")
    {NULL}
};
