/* Reading a written sum: see written_sum.h. */
#include "subprogram/written_sum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- running ---- */

void lb_written_sum_clear(lb_written_sum *sum)
{
    const uint32_t n = sum->ops.n_leaves;
    for (uint32_t i = 0; i < n; i++) {
        lb_tensor *t = &sum->leaves[i].tensor;
        if (lb_dtype_is_float(t->dtype))
            memset(t->data, 0, lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout)));
    }
}

static void put(lb_tensor *tensor, int64_t element, double number)
{
    lb_from_f64(tensor->dtype, (char *)tensor->data + (size_t)element * (lb_dtype_bits(tensor->dtype) / 8), number,
                NULL);
}

void lb_written_sum_put(lb_written_sum *sum, uint32_t term, double number)
{
    lb_written_leaf *leaf = &sum->leaves[sum->terms[term].leaf];
    const int64_t at = sum->terms[term].place * leaf->stride;
    for (int64_t e = 0; e < sum->elements; e++) put(&leaf->tensor, leaf->first[e] + at, number);
}

double lb_written_sum_recorded(const lb_written_sum *sum, uint32_t term, int64_t element)
{
    const lb_written_term *t = &sum->terms[term];
    const lb_written_leaf *leaf = &sum->leaves[t->leaf];
    const lb_tensor *x = &sum->ops.inputs[t->leaf];
    int64_t left = leaf->first[element] + t->place * leaf->stride, at = 0;
    for (int d = x->layout.ndim; d-- > 0;) {
        at += left % x->layout.shape[d] * x->layout.stride[d];
        left /= x->layout.shape[d];
    }
    return lb_to_f64(x->dtype, (const char *)x->data + at * (int64_t)(lb_dtype_bits(x->dtype) / 8));
}

lb_status lb_written_sum_run(lb_written_sum *sum, bool exact, double *out, bool *ran, lb_err *err)
{
    const lb_swap wide = {LB_SWAP_PRECISION, "", "f64"};
    lb_tensor result = {0};
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_subprogram_run(sum->ops.subprogram, sum->inputs, &wide, exact ? 1 : 0, &result, &why);
    sum->cost.runs++, sum->cost.ops += sum->ops.n_ops;
    *ran = status == LB_OK && result.data && lb_dtype_is_float(result.dtype) &&
           lb_layout_numel(&result.layout) == sum->elements;
    if (*ran) lb_load_f64(out, result.dtype, result.data, (size_t)sum->elements);
    free(result.data);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

/* ---- which elements of a leaf are terms ---- */

/* Numbers of elements are written digit by digit: bf16 holds 8 bits of one. */
typedef struct digits {
    uint32_t base, n;
} digits;

static digits digits_of(lb_dtype dtype, int64_t elements)
{
    digits d = {lb_dtype_bits(dtype) >= 32 ? 1u << 20 : 1u << 7, 1};
    for (int64_t most = d.base; most < elements; most *= d.base) d.n++;
    return d;
}

static uint32_t digit_of(const digits *digits, int64_t element, uint32_t place)
{
    while (place--) element /= digits->base;
    return (uint32_t)(element % digits->base);
}

typedef struct reader {
    lb_written_sum *sum;
    uint32_t leaf;
    digits digits;
    double *ones;    /* what comes out where all elements of the leaf are 1 */
    double *numbers; /* digits.n times the output: where they are their own numbers */
} reader;

static lb_status ask(reader *reader, bool *ran, lb_err *err)
{
    lb_written_sum *sum = reader->sum;
    lb_tensor *t = &sum->leaves[reader->leaf].tensor;
    const int64_t n = lb_layout_numel(&t->layout);
    lb_written_sum_clear(sum);
    for (int64_t i = 0; i < n; i++) put(t, i, 1);
    LB_TRY(lb_written_sum_run(sum, true, reader->ones, ran, err));
    for (uint32_t d = 0; d < reader->digits.n && *ran; d++) {
        for (int64_t i = 0; i < n; i++) put(t, i, digit_of(&reader->digits, i, d));
        LB_TRY(lb_written_sum_run(sum, true, reader->numbers + d * sum->elements, ran, err));
    }
    return LB_OK;
}

static bool is_near(double x, double y)
{
    return fabs(x - y) <= 0x1p-30 * fmax(fabs(x), fabs(y));
}

/* One term of the leaf in every element: its number is what came out. */
static bool read_single(reader *reader, lb_written_leaf *leaf, double factor)
{
    const int64_t n = lb_layout_numel(&leaf->tensor.layout);
    for (int64_t e = 0; e < reader->sum->elements; e++) {
        int64_t number = 0;
        if (!is_near(reader->ones[e], factor)) return false;
        for (uint32_t d = reader->digits.n; d-- > 0;) {
            const double digit = reader->numbers[d * reader->sum->elements + e] / factor;
            if (!(fabs(digit - rint(digit)) < 0x1p-8) || digit > reader->digits.base) return false;
            number = number * reader->digits.base + (int64_t)rint(digit);
        }
        if (number < 0 || number >= n) return false;
        leaf->first[e] = (uint32_t)number;
    }
    leaf->count = 1, leaf->stride = 0;
    return true;
}

/* The leaf as (outer, count, inner), whose middle is added up. */
static bool fits(const reader *reader, const lb_written_leaf *leaf, double factor)
{
    for (int64_t e = 0; e < reader->sum->elements; e++) {
        if (!is_near(reader->ones[e], factor * leaf->count)) return false;
        for (uint32_t d = 0; d < reader->digits.n; d++) {
            double total = 0;
            for (uint32_t k = 0; k < leaf->count; k++)
                total += digit_of(&reader->digits, leaf->first[e] + k * leaf->stride, d);
            if (!is_near(reader->numbers[d * reader->sum->elements + e], factor * total)) return false;
        }
    }
    return true;
}

static bool read_several(reader *reader, lb_written_leaf *leaf)
{
    const lb_layout *layout = &leaf->tensor.layout;
    const int64_t n = lb_layout_numel(layout), count = n / reader->sum->elements;
    if (count < 2 || count > LB_WRITTEN_TERMS || count * reader->sum->elements != n) return false;
    leaf->count = (uint32_t)count;
    for (int from = 0; from < layout->ndim; from++) {
        int64_t middle = 1, inner = 1;
        int to = from;
        while (to < layout->ndim && middle < count) middle *= layout->shape[to++];
        for (int d = to; d < layout->ndim; d++) inner *= layout->shape[d];
        if (middle != count) continue;
        leaf->stride = inner;
        for (int64_t e = 0; e < reader->sum->elements; e++)
            leaf->first[e] = (uint32_t)(e / inner * count * inner + e % inner);
        if (fits(reader, leaf, reader->ones[0] / (double)count)) return true;
    }
    leaf->count = 0;
    return false;
}

/* All of the leaf's terms, or none; `*fits`: it can be said. */
static lb_status read_leaf(lb_written_sum *sum, uint32_t i, double *factor, bool *known, lb_err *err)
{
    lb_written_leaf *leaf = &sum->leaves[i];
    const int64_t n = lb_layout_numel(&leaf->tensor.layout);
    reader reader = {.sum = sum, .leaf = i, .digits = digits_of(leaf->tensor.dtype, n)};
    bool any = false;
    *factor = 0, *known = false;
    if (n > INT32_MAX || n < 1) return LB_OK;
    reader.ones = malloc((size_t)sum->elements * (reader.digits.n + 1) * sizeof *reader.ones);
    leaf->first = malloc((size_t)sum->elements * sizeof *leaf->first);
    lb_status status = reader.ones && leaf->first ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    reader.numbers = reader.ones ? reader.ones + sum->elements : NULL;
    if (status == LB_OK) status = ask(&reader, known, err);
    for (int64_t e = 0; status == LB_OK && *known && e < sum->elements; e++) any |= reader.ones[e] != 0;
    if (status == LB_OK && *known && any) {
        *known = read_single(&reader, leaf, reader.ones[0]) || read_several(&reader, leaf);
        *factor = *known ? reader.ones[0] / leaf->count : 0;
    }
    free(reader.ones);
    return status;
}

/* ---- all leaves at once ---- */

/* Numbers without a pattern, of 7 bits: exact in every type, and so are their sums. */
static double noise_of(uint32_t leaf, int64_t element)
{
    uint64_t x = ((uint64_t)leaf + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)element * UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 31, x *= UINT64_C(0x94D049BB133111EB), x ^= x >> 29;
    return (double)(x & 127);
}

static bool is_float_leaf(const lb_written_sum *sum, uint32_t leaf)
{
    return lb_dtype_is_float(sum->leaves[leaf].tensor.dtype);
}

static uint32_t n_leaves(const lb_written_sum *sum)
{
    return sum->ops.n_leaves;
}

/* Which leaves come in at all: each element of the output is asked about another leaf. */
static lb_status ask_who(lb_written_sum *sum, double *out, bool *ran, lb_err *err)
{
    const uint32_t n = n_leaves(sum);
    lb_written_sum_clear(sum);
    for (int64_t e = 0; e < sum->elements; e++)
        if (is_float_leaf(sum, (uint32_t)(e % n))) put(&sum->leaves[e % n].tensor, e, 1);
    LB_TRY(lb_written_sum_run(sum, true, out, ran, err));
    for (uint32_t i = 0; i < n && *ran; i++) sum->leaves[i].count = is_float_leaf(sum, i) && out[i] == 1;
    return LB_OK;
}

static bool is_sum_of_noise(const lb_written_sum *sum, const double *out)
{
    bool is = true;
    for (int64_t e = 0; e < sum->elements && is; e++) {
        double total = 0;
        for (uint32_t i = 0; i < n_leaves(sum); i++)
            if (sum->leaves[i].count) total += noise_of(i, e);
        is = total == out[e];
    }
    return is;
}

/* Each leaf has as many elements as the output, and brings one term, at the same place, or none: a run on noise tells,
 * or two. */
static lb_status read_alike(lb_written_sum *sum, bool *found, lb_err *err)
{
    const uint32_t n = n_leaves(sum);
    double *out = malloc(2 * (size_t)sum->elements * sizeof *out);
    if (!out) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    lb_written_sum_clear(sum);
    for (uint32_t i = 0; i < n; i++) {
        sum->leaves[i].count = is_float_leaf(sum, i);
        for (int64_t e = 0; is_float_leaf(sum, i) && e < sum->elements; e++)
            put(&sum->leaves[i].tensor, e, noise_of(i, e));
    }
    lb_status status = lb_written_sum_run(sum, true, out, found, err);
    if (status == LB_OK && *found && !is_sum_of_noise(sum, out)) {
        status = ask_who(sum, out + sum->elements, found, err);
        *found = *found && is_sum_of_noise(sum, out);
    }
    free(out);
    return status;
}

static bool may_be_alike(const lb_written_sum *sum)
{
    uint32_t terms = 0;
    for (uint32_t i = 0; i < n_leaves(sum); i++) {
        if (!is_float_leaf(sum, i)) continue;
        if (lb_layout_numel(&sum->leaves[i].tensor.layout) != sum->elements || ++terms > LB_WRITTEN_TERMS) return false;
    }
    return sum->elements >= 8 && sum->elements >= n_leaves(sum) && terms > 1; /* of fewer noise tells too little */
}

static lb_status take_alike(lb_written_sum *sum, lb_err *err)
{
    for (uint32_t i = 0; i < n_leaves(sum); i++) {
        lb_written_leaf *leaf = &sum->leaves[i];
        if (!leaf->count) continue;
        leaf->first = malloc((size_t)sum->elements * sizeof *leaf->first);
        if (!leaf->first) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
        for (int64_t e = 0; e < sum->elements; e++) leaf->first[e] = (uint32_t)e;
    }
    return LB_OK;
}

/* ---- all leaves ---- */

static lb_status open_leaves(lb_written_sum *sum, lb_err *err)
{
    sum->leaves = calloc(sum->ops.n_leaves + 1, sizeof *sum->leaves);
    sum->inputs = calloc(sum->ops.n_leaves + 1, sizeof *sum->inputs);
    sum->terms = calloc(LB_WRITTEN_TERMS, sizeof *sum->terms);
    if (!sum->leaves || !sum->inputs || !sum->terms) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    for (uint32_t i = 0; i < sum->ops.n_leaves; i++) {
        const lb_tensor *x = &sum->ops.inputs[i];
        const size_t n = (size_t)lb_layout_numel(&x->layout);
        lb_tensor *t = &sum->leaves[i].tensor;
        *t = (lb_tensor){calloc(lb_dtype_bytes(x->dtype, n) + 1, 1), x->dtype,
                         lb_layout_contiguous(x->layout.ndim, x->layout.shape)};
        if (!t->data) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
        if (!lb_dtype_is_float(t->dtype)) LB_TRY(lb_tensor_gather(x, t->data, err));
        sum->inputs[i] = *t;
    }
    return LB_OK;
}

/* Where all terms are 0 nothing comes out. */
static lb_status gives_nothing(lb_written_sum *sum, bool *nothing, lb_err *err)
{
    double *out = malloc((size_t)sum->elements * sizeof *out);
    if (!out) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    lb_status status = lb_written_sum_run(sum, true, out, nothing, err);
    for (int64_t e = 0; status == LB_OK && e < sum->elements; e++) *nothing &= out[e] == 0;
    free(out);
    return status;
}

static bool add_terms(lb_written_sum *sum, uint32_t leaf, double factor)
{
    const lb_written_leaf *x = &sum->leaves[leaf];
    if (!x->count) return true;
    if (sum->n_terms && (!is_near(factor, sum->factor) || x->tensor.dtype != sum->dtype)) return false;
    if (sum->n_terms + x->count > LB_WRITTEN_TERMS) return false;
    sum->factor = factor, sum->dtype = x->tensor.dtype;
    for (uint32_t k = 0; k < x->count; k++) sum->terms[sum->n_terms++] = (lb_written_term){leaf, k};
    return true;
}

static lb_status read_leaves(lb_written_sum *sum, bool *found, lb_err *err)
{
    bool alike = false;
    LB_TRY(open_leaves(sum, err));
    if (sum->elements > INT32_MAX) return LB_OK;
    if (may_be_alike(sum)) LB_TRY(read_alike(sum, &alike, err));
    for (uint32_t i = 0; i < n_leaves(sum) && !alike; i++) sum->leaves[i].count = 0;
    if (alike) LB_TRY(take_alike(sum, err));
    *found = true;
    lb_written_sum_clear(sum);
    if (!alike) LB_TRY(gives_nothing(sum, found, err));
    for (uint32_t i = 0; i < n_leaves(sum) && *found; i++) {
        double factor = 1;
        if (!lb_dtype_is_float(sum->leaves[i].tensor.dtype)) continue;
        if (!alike) LB_TRY(read_leaf(sum, i, &factor, found, err));
        *found = *found && add_terms(sum, i, factor);
    }
    *found = *found && sum->n_terms > 1 && isfinite(sum->factor) && sum->factor != 0;
    return LB_OK;
}

lb_status lb_written_sum_read(const lb_written_ops *ops, lb_written_sum *sum, bool *found, lb_err *err)
{
    *found = false;
    *sum = (lb_written_sum){.ops = *ops, .elements = lb_layout_numel(&ops->target->layout)};
    if (!lb_dtype_is_float(ops->target->dtype) || lb_dtype_bits(ops->target->dtype) < 16 || sum->elements < 1)
        return LB_OK;
    for (uint32_t i = 0; i < ops->n_leaves; i++)
        if (lb_dtype_is_float(ops->inputs[i].dtype) && lb_dtype_bits(ops->inputs[i].dtype) < 16) return LB_OK;
    return read_leaves(sum, found, err);
}

void lb_written_sum_release(lb_written_sum *sum)
{
    for (uint32_t i = 0; sum->leaves && i < sum->ops.n_leaves; i++)
        free(sum->leaves[i].tensor.data), free(sum->leaves[i].first);
    free(sum->leaves), free(sum->inputs), free(sum->terms);
    sum->leaves = NULL, sum->inputs = NULL, sum->terms = NULL;
}
