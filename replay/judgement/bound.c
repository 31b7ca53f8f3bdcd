/* Running error bounds: see bound.h. */
#include "judgement/bound.h"

#include "kernel/complex_rows.h"

#include <lastbit/statistics.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 2^(e - precision), where a = m * 2^e and m lies in [1/2, 1); a > 0 is finite. Normal numbers hold e in their bits. */
static inline double step_near(double a, int precision)
{
    uint64_t bits;
    memcpy(&bits, &a, sizeof bits);
    const int power = (int)(bits >> 52) - 1022 - precision;
    int e;
    if (a >= DBL_MIN && power >= -1022) {
        bits = (uint64_t)(power + 1023) << 52;
        memcpy(&a, &bits, sizeof a);
        return a;
    }
    frexp(a, &e);
    return ldexp(1.0, e - precision);
}

double lb_bound_ulp(lb_dtype dtype, double x)
{
    double tiny = lb_dtype_min_subnormal(dtype), a = fabs(x);
    if (!(a > tiny)) return tiny;
    if (isinf(a)) a = lb_dtype_max_finite(dtype);
    return fmax(step_near(a, lb_dtype_precision(dtype)), tiny);
}

/* The same shape with the same order of strides, dense: kernels see the layout they know. */
static lb_layout dense_like(const lb_layout *layout)
{
    lb_layout dense = *layout;
    int order[LB_MAX_DIMS];
    for (int d = 0; d < layout->ndim; d++) order[d] = d;
    for (int i = 1; i < layout->ndim; i++)
        for (int j = i; j > 0 && layout->stride[order[j]] < layout->stride[order[j - 1]]; j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    /* Equal strides (0, or size 1) in row-major order: the later dimension moves faster. */
    for (int i = 1; i < layout->ndim; i++)
        for (int j = i; j > 0 && layout->stride[order[j]] == layout->stride[order[j - 1]] && order[j] > order[j - 1];
             j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    int64_t step = 1;
    for (int i = 0; i < layout->ndim; i++) {
        dense.stride[order[i]] = step;
        step *= layout->shape[order[i]] > 0 ? layout->shape[order[i]] : 1;
    }
    dense.offset = 0;
    return dense;
}

static lb_status f64_results(lb_memory *memory, const lb_call *call, lb_tensor *results, lb_err *err)
{
    for (uint32_t i = 0; i < call->n_results; i++) {
        const lb_tensor *original = &call->results[i];
        results[i] = (lb_tensor){.dtype = original->dtype, .layout = dense_like(&original->layout)};
        if (!original->data) continue;
        if (lb_dtype_is_float(original->dtype)) results[i].dtype = LB_F64;
        if (lb_dtype_is_complex(original->dtype)) results[i].dtype = LB_C128;
        int64_t numel = lb_layout_numel(&original->layout);
        size_t bytes = lb_dtype_bytes(results[i].dtype, (size_t)(numel > 0 ? numel : 1));
        results[i].data = lb_memory_scratch(memory, bytes, err);
        if (!results[i].data) return LB_ERR_LIMIT;
        memset(results[i].data, 0, bytes);
        if (!lb_dtype_is_float(lb_dtype_part(original->dtype)) || (i && call->row->flags & LB_ROW_RANDOM))
            lb_memory_tensor_copy(&results[i], original, NULL); /* a recorded draw */
    }
    return LB_OK;
}

static bool has_f64(const lb_call *call)
{
    for (uint32_t i = 0; i < call->n_results; i++)
        if (call->results[i].data && lb_dtype_part(call->results[i].dtype) == LB_F64) return true;
    for (uint32_t i = 0; i < call->n_args; i++) {
        if (call->args[i].tag == LB_OPERAND_TENSOR && lb_dtype_part(call->args[i].tensor.dtype) == LB_F64) return true;
        for (uint32_t k = 0; call->args[i].tag == LB_OPERAND_TENSORS && k < call->args[i].count; k++)
            if (call->args[i].tensors[k].data && call->args[i].tensors[k].dtype == LB_F64) return true;
    }
    return false;
}

/* The largest finite magnitude among bf16 factors of a product; negative: there are none. What a custom op writes
 * stands first and is no factor. */
static double largest_bf16(const lb_call *call)
{
    double largest = -1;
    for (uint32_t i = call->row->flags & LB_ROW_WRITES ? call->n_results : 0; i < call->n_args; i++) {
        const lb_tensor *tensor = &call->args[i].tensor;
        if (call->args[i].tag != LB_OPERAND_TENSOR || tensor->dtype != LB_BF16 || !tensor->data) continue;
        const lb_statistics statistics = lb_statistics_of(tensor);
        largest =
            fmax(largest, statistics.min <= statistics.max ? fmax(fabs(statistics.min), fabs(statistics.max)) : 0);
    }
    return largest;
}

/* What one rounding may lose where numbers are too small. Dot products of bf16 (VDPBF16PS, TDPBF16PS) take subnormals
 * for 0 and flush what they add up to 0: Intel's manual, volume 2, has it under both instructions. A sum that is
 * flushed is off by less than the least normal number, a factor by that times the other factor. */
static double least(const lb_call *call, bool f64)
{
    const double largest = call->row->flags & LB_ROW_MATMUL && !f64 ? largest_bf16(call) : -1;
    if (largest >= 0) return FLT_MIN * (1 + largest);
    return f64 ? 0x1p-1074 : 0x1p-149;
}

/* What a product loses where it may have read factors of f32 as TF32. */
static double from_factors(const lb_call *call, bool f64)
{
    const bool product = call->row->flags & (LB_ROW_MATMUL | LB_ROW_CONVOLUTION);
    bool any = false;
    for (uint32_t i = 0; call->tf32 && product && !f64 && i < call->n_args; i++)
        any |= call->args[i].tag == LB_OPERAND_TENSOR && lb_dtype_part(call->args[i].tensor.dtype) == LB_F32;
    return any ? LB_TF32_LOSS : 0;
}

/* What is asked of a dtype for each element. */
typedef struct result_type {
    lb_dtype dtype;
    /* `limit`: the largest finite number, beyond which infinity or saturation is right; `tiny`: the least step */
    double limit, tiny;
    int precision;
} result_type;

static result_type type_of(lb_dtype dtype)
{
    return (result_type){dtype, lb_dtype_max_finite(dtype), lb_dtype_min_subnormal(dtype), lb_dtype_precision(dtype)};
}

/* What rounding the result to its dtype may lose. VCVTNEPS2BF16, with which oneDNN and compilers do it where the
 * processor has it, takes subnormals for 0 and gives 0 for them (Intel's manual, volume 2). */
static inline double last_rounding(const result_type *type, double exact)
{
    const double a = isinf(exact) ? type->limit : fabs(exact);
    const double step = a > type->tiny ? step_near(a, type->precision) : 0;
    const double half_ulp = 0.5 * (step > type->tiny ? step : type->tiny);
    return type->dtype == LB_BF16 && half_ulp < FLT_MIN ? FLT_MIN : half_ulp;
}

static void release(lb_memory *memory, lb_tensor *tensors, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) lb_memory_scratch_free(memory, tensors[i].data);
}

/* |y| stands for it. */
static void forget_twin(lb_bound *bound)
{
    release(bound->memory, bound->twin, bound->n_results);
    for (uint32_t i = 0; i < bound->n_results; i++) bound->twin[i].data = NULL;
}

/* ---- squares that overflow ---------------------------------------------------------------------------------------- *
 * Norms and variances add up squares. Where those overflow in f32, a norm is infinite or what it divides becomes 0, or
 * not, as the squares are scaled and in what they are added up. Of f32 and bf16 alone inputs can be so large. */

static double most_squared(const lb_call *call)
{
    return FLT_MAX / (1 + lb_call_terms(call));
}

static bool overflows(const lb_tensor *tensor, double most)
{
    if (!tensor->data || (tensor->dtype != LB_F32 && tensor->dtype != LB_BF16)) return false;
    const lb_statistics statistics = lb_statistics_of(tensor);
    const double largest = statistics.min <= statistics.max ? fmax(fabs(statistics.min), fabs(statistics.max)) : 0;
    return largest * largest > most;
}

static bool squares_overflow(const lb_call *call)
{
    for (uint32_t i = 0; call->row->flags & LB_ROW_SQUARES && i < call->n_args; i++)
        if (call->args[i].tag == LB_OPERAND_TENSOR && overflows(&call->args[i].tensor, most_squared(call))) return true;
    return false;
}

/* A copy with NaN for finite elements whose squares overflow. */
static lb_status with_nan(lb_memory *memory, lb_tensor *tensor, double most, lb_err *err)
{
    lb_tensor copy = {.dtype = tensor->dtype,
                      .layout = lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape)};
    const int64_t numel = lb_layout_numel(&copy.layout);
    copy.data = lb_memory_scratch(memory, lb_dtype_bytes(copy.dtype, (size_t)numel), err);
    if (!copy.data) return LB_ERR_LIMIT;
    lb_memory_tensor_copy(&copy, tensor, NULL);
    const double nan = NAN;
    const size_t size = lb_dtype_bits(copy.dtype) / 8;
    for (int64_t i = 0; i < numel; i++) {
        char *at = (char *)copy.data + i * (int64_t)size;
        const double x = lb_to_f64(copy.dtype, at);
        if (isfinite(x) && x * x > most) lb_convert(copy.dtype, at, LB_F64, &nan, 1, NULL);
    }
    *tensor = copy;
    return LB_OK;
}

/* Nothing is said of the elements that such an input reaches: those that become NaN with it. */
static void silence(lb_bound *bound, const lb_tensor *reached)
{
    for (uint32_t i = 0; i < bound->n_results; i++) {
        lb_tensor *exact = &bound->exact[i], *twin = &bound->twin[i];
        if (!exact->data || !reached[i].data || lb_dtype_part(exact->dtype) != LB_F64) continue;
        const int64_t n = lb_layout_numel(&exact->layout) * (lb_dtype_is_complex(exact->dtype) ? 2 : 1);
        for (int64_t k = 0; k < n; k++)
            if (isnan(((double *)reached[i].data)[k]) && !isnan(((double *)exact->data)[k]))
                ((double *)twin->data)[k] = 0x1p128;
    }
}

/* |y| where the row has no twin. */
static lb_status fill_twin(lb_bound *bound, const lb_call *call, lb_err *err)
{
    for (uint32_t i = 0; i < bound->n_results; i++)
        if (bound->twin[i].data) return LB_OK;
    LB_TRY(f64_results(bound->memory, call, bound->twin, err));
    for (uint32_t i = 0; i < bound->n_results; i++)
        if (bound->twin[i].data) lb_memory_tensor_copy(&bound->twin[i], &bound->exact[i], NULL);
    return LB_OK;
}

static lb_status silence_squares(lb_bound *bound, const lb_call *call, lb_err *err)
{
    lb_err local = LB_ERR_INIT;
    lb_call marked = *call;
    lb_operand *args = malloc((call->n_args + 1) * sizeof *args);
    lb_tensor *reached = calloc(call->n_results + 1, sizeof *reached);
    bool *copied = calloc(call->n_args + 1, sizeof *copied);
    lb_status status =
        args && reached && copied ? fill_twin(bound, call, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && call->n_args) memcpy(args, call->args, call->n_args * sizeof *args);
    for (uint32_t i = 0; i < call->n_args && status == LB_OK; i++)
        if (args[i].tag == LB_OPERAND_TENSOR && overflows(&args[i].tensor, most_squared(call))) {
            status = with_nan(bound->memory, &args[i].tensor, most_squared(call), err);
            copied[i] = status == LB_OK;
        }
    if (status == LB_OK) status = f64_results(bound->memory, call, reached, err);
    marked.args = args, marked.results = reached, marked.method = (lb_method){0}, marked.err = &local;
    if (status == LB_OK && lb_row_run(&marked) != LB_OK)
        status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s has no f64 evaluation here: %s", call->row->name, local.message);
    if (status == LB_OK) silence(bound, reached);
    for (uint32_t i = 0; copied && i < call->n_args; i++)
        if (copied[i]) lb_memory_scratch_free(bound->memory, args[i].tensor.data);
    if (reached) release(bound->memory, reached, call->n_results);
    free(args);
    free(reached);
    free(copied);
    return status;
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

lb_status lb_bound_exact(lb_bound *bound, lb_memory *memory, const lb_call *call, lb_err *err)
{
    *bound = (lb_bound){.n_results = call->n_results, .memory = memory};
    bound->exact = calloc(2 * call->n_results + 1, sizeof *bound->exact);
    if (!bound->exact) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bound->twin = bound->exact + call->n_results;
    LB_TRY(f64_results(memory, call, bound->exact, err));

    lb_err local = LB_ERR_INIT;
    lb_call wide = *call;
    wide.method = (lb_method){0}, wide.err = &local, wide.results = bound->exact;
    if (lb_row_run(&wide) != LB_OK)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s has no f64 evaluation here: %s", call->row->name, local.message);
    return LB_OK;
}

lb_status lb_bound_init(lb_bound *bound, lb_memory *memory, const lb_call *call, lb_err *err)
{
    const lb_op_row *row = call->row;
    LB_TRY(lb_bound_exact(bound, memory, call, err));
    lb_err local = LB_ERR_INIT;
    lb_call wide = *call;
    wide.method = (lb_method){0}, wide.err = &local;
    bool any = false; /* twins take it that some result is f64 */
    for (uint32_t i = 0; i < call->n_results; i++)
        any |= bound->exact[i].data && lb_dtype_part(bound->exact[i].dtype) == LB_F64;
    if (any && (row->twin || lb_complex_is_used(call))) {
        LB_TRY(f64_results(memory, call, bound->twin, err));
        wide.results = bound->twin;
        const lb_status status = lb_row_twin(&wide);
        if (status == LB_ERR_NOT_FOUND)
            forget_twin(bound);
        else if (status != LB_OK)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "%s has no twin here: %s", row->name, local.message);
    }
    bool f64 = has_f64(call);
    double roundings = lb_row_roundings(call);
    bound->factor = roundings * ((f64 ? 0 : 0x1p-24) + 2 * 0x1p-53) + from_factors(call, f64);
    bound->tiny = roundings * least(call, f64);
    return any && !f64 && squares_overflow(call) ? silence_squares(bound, call, err) : LB_OK;
}

void lb_bound_release(lb_bound *bound)
{
    if (!bound->exact) return;
    release(bound->memory, bound->exact, bound->n_results);
    release(bound->memory, bound->twin, bound->n_results);
    free(bound->exact);
    bound->exact = NULL;
}

/* One element. */
static double element_ratio(const lb_bound *bound, const result_type *type, double value, double exact, double twin)
{
    const double limit = type->limit;
    /* Terms of finite inputs that overflow what is computed in: on the way to either value one may have become
     * infinite, or not. */
    if (isfinite(twin) && fabs(twin) >= limit && fabs(twin) >= FLT_MAX) return 0;
    /* Another order of the same operations makes infinity minus infinity at another place, or not at all. */
    if (isnan(exact)) return isnan(value) || (isinf(value) && !(fabs(twin) < limit)) ? 0 : INFINITY;
    double room = bound->factor * fabs(twin) + bound->tiny;
    double half_ulp = last_rounding(type, exact);
    if (isnan(value)) {
        /* Intermediate overflow (inf - inf) is legal where the terms themselves overflow. */
        return fabs(twin) >= limit ? 0 : INFINITY;
    }
    if (isinf(value)) {
        if (isinf(exact)) return signbit(value) == signbit(exact) ? 0 : INFINITY;
        return fabs(exact) + room + half_ulp >= limit || fabs(twin) >= limit ? 0 : INFINITY;
    }
    if (isinf(exact)) return fabs(value) >= limit ? 0 : INFINITY;
    double error = fabs(value - exact);
    if (error == 0) return 0;
    if (fabs(exact) >= limit && fabs(value) >= limit && signbit(exact) == signbit(value)) return 0;
    return isnan(room) || isinf(room) ? 0 : error / (room + half_ulp);
}

/* The worst of `n` elements that lie beside each other; most are finite and far from the limit. */
static double worst_of(const lb_bound *bound, const result_type *type, const double *x, const double *exact,
                       const double *twin, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == exact[i]) continue;
        const double ratio = element_ratio(bound, type, x[i], exact[i], twin[i]);
        if (ratio > worst) worst = ratio;
    }
    return worst;
}

/* Do both walk through memory alike? The second is dense. */
static bool lie_alike(const lb_layout *value, const lb_layout *dense)
{
    for (int d = 0; d < value->ndim; d++)
        if (value->shape[d] > 1 && value->stride[d] != dense->stride[d]) return false;
    return true;
}

enum { CHUNK = 256 };

static double worst_alike(const lb_bound *bound, const result_type *type, const char *value, const double *exact,
                          const double *twin, int64_t n)
{
    const int64_t size = (int64_t)(lb_dtype_bits(type->dtype) / 8);
    double x[CHUNK], worst = 0;
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t count = n - i < CHUNK ? n - i : CHUNK;
        lb_load_f64_strided(x, type->dtype, value + i * size, 1, (size_t)count);
        worst = fmax(worst, worst_of(bound, type, x, exact + i, twin + i, count));
    }
    return worst;
}

double lb_bound_ratio(const lb_bound *bound, uint32_t i, const lb_tensor *value)
{
    if (!bound->exact[i].data || lb_dtype_part(bound->exact[i].dtype) != LB_F64) return NAN;
    const result_type type = type_of(lb_dtype_part(value->dtype));
    const int parts = lb_dtype_is_complex(value->dtype) ? 2 : 1; /* each is judged by itself */
    double worst = 0;
    const double *exact = bound->exact[i].data;
    const double *twin = bound->twin[i].data ? bound->twin[i].data : exact;
    const lb_layout *layout = &value->layout, *dense = &bound->exact[i].layout;
    int64_t numel = lb_layout_numel(layout), index[LB_MAX_DIMS] = {0}, at = 0, dense_at = 0;
    size_t size = lb_dtype_bits(type.dtype) / 8;
    if (!size) return NAN;
    if (lie_alike(layout, dense)) return worst_alike(bound, &type, value->data, exact, twin, numel * parts);
    for (int64_t n = 0; n < numel; n++) {
        for (int k = 0; k < parts; k++) {
            double x = lb_to_f64(type.dtype, (const char *)value->data + (at * parts + k) * (int64_t)size);
            double ratio = element_ratio(bound, &type, x, exact[dense_at * parts + k], twin[dense_at * parts + k]);
            if (ratio > worst) worst = ratio;
        }
        for (int d = layout->ndim - 1; d >= 0; d--) {
            at += layout->stride[d];
            dense_at += dense->stride[d];
            if (++index[d] < layout->shape[d]) break;
            at -= layout->stride[d] * layout->shape[d];
            dense_at -= dense->stride[d] * layout->shape[d];
            index[d] = 0;
        }
    }
    return worst;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* The numbers that one element may be: from `low` to `high`, which may be infinite, besides NaN and the infinities. */
typedef struct possible {
    double low, high;
    bool number, nan, pos_inf, neg_inf;
} possible;

static possible possible_of(const lb_bound *bound, const result_type *type, double exact, double twin)
{
    const double limit = type->limit;
    const double room = bound->factor * fabs(twin) + bound->tiny + last_rounding(type, exact);
    /* Most elements: a number, far from where the type ends. */
    if (fabs(twin) < limit && fabs(exact) + room < limit / 2)
        return (possible){.number = true, .low = exact - room, .high = exact + room};
    possible found = {.nan = element_ratio(bound, type, NAN, exact, twin) <= 1,
                      .pos_inf = element_ratio(bound, type, INFINITY, exact, twin) <= 1,
                      .neg_inf = element_ratio(bound, type, -INFINITY, exact, twin) <= 1};
    const bool free =
        (isfinite(exact) && !(room < INFINITY)) || (isfinite(twin) && fabs(twin) >= limit && fabs(twin) >= FLT_MAX);
    found.number = free || isfinite(exact) ||
                   (isinf(exact) && element_ratio(bound, type, copysign(limit, exact), exact, twin) <= 1);
    found.low = free ? -INFINITY : isfinite(exact) ? exact - room : exact;
    found.high = free ? INFINITY : isfinite(exact) ? exact + room : exact;
    /* Beyond the type's range the largest finite number is right, too. */
    if (fabs(exact) >= limit && exact > 0 && found.low > limit) found.low = limit;
    if (fabs(exact) >= limit && exact < 0 && found.high < -limit) found.high = -limit;
    return found;
}

bool lb_bound_allows(const lb_bound *bound, uint32_t i, lb_dtype dtype, const lb_statistics *recorded)
{
    const lb_tensor *exact = &bound->exact[i], *twin = &bound->twin[i];
    if (!exact->data || exact->dtype != LB_F64 || !lb_dtype_is_float(dtype)) return true;
    const int64_t n = lb_layout_numel(&exact->layout);
    const result_type type = type_of(dtype);
    int64_t nan = 0, pos_inf = 0, neg_inf = 0, no_number = 0, must_nan = 0, must_inf = 0;
    double most_low = -INFINITY, most_high = -INFINITY, least_low = INFINITY, least_high = INFINITY;
    for (int64_t k = 0; k < n; k++) {
        const double x = ((const double *)exact->data)[k];
        const possible possible = possible_of(bound, &type, x, twin->data ? ((const double *)twin->data)[k] : x);
        nan += possible.nan, pos_inf += possible.pos_inf, neg_inf += possible.neg_inf;
        no_number += !possible.number;
        must_nan += !possible.number && !possible.pos_inf && !possible.neg_inf;
        must_inf += !possible.number && !possible.nan;
        if (!possible.number) continue;
        most_high = possible.high > most_high ? possible.high : most_high,
        least_low = possible.low < least_low ? possible.low : least_low;
        if (possible.nan || possible.pos_inf || possible.neg_inf) continue; /* it need not be among the finite ones */
        most_low = possible.low > most_low ? possible.low : most_low,
        least_high = possible.high < least_high ? possible.high : least_high;
    }
    if (recorded->nan > nan || recorded->pos_inf > pos_inf || recorded->neg_inf > neg_inf) return false;
    if (lb_statistics_nonfinite(recorded) < no_number || recorded->nan < must_nan ||
        recorded->pos_inf + recorded->neg_inf < must_inf)
        return false;
    if (!(recorded->min <= recorded->max)) return true; /* nothing finite, or not kept */
    return recorded->max <= most_high && recorded->max >= most_low && recorded->min >= least_low &&
           recorded->min <= least_high;
}
