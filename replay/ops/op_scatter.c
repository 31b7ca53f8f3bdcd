/* Ops that write or add elements at given places: index_put, index_add, index_copy, scatter and its kin,
 * masked_scatter, the backward of embedding.
 *
 * A result starts as a copy of `self`. Additions run in index order, one after the other, each rounded to the result's
 * dtype when that has 16 bits: so does torch on a CPU. Where several writes hit one element the last in index order
 * stays. */
#include "kernel/elements.h"
#include "kernel/frame.h"
#include "kernel/index_plan.h"

#include <math.h>

/* What is done with an element that is hit. */
typedef enum action { ASSIGN, ADD, MULTIPLY, MAXIMUM, MINIMUM } action;

/* A result as reals (or i64) that starts as self; `twin`: as |self|. */
typedef struct target {
    lb_frame frame;
    bool integer, twin;
    void *y;
    int64_t n;
    lb_dtype dtype;
} target;

static bool target_begin(target *target, lb_call *call, const lb_tensor *self, bool twin)
{
    target->frame = lb_frame_begin(call);
    target->twin = twin;
    target->integer = lb_dtype_is_integer(call->results[0].dtype);
    target->n = lb_tensor_numel(self);
    target->dtype = call->results[0].dtype;
    size_t bytes = (size_t)target->n * (target->integer || target->frame.wide ? 8 : 4);
    const void *x =
        target->integer ? (const void *)lb_frame_integers(&target->frame, self) : lb_frame_tensor(&target->frame, self);
    target->y = target->integer ? (void *)lb_frame_output_integers(&target->frame, 0, target->n)
                                : lb_frame_output(&target->frame, 0, target->n);
    if (lb_frame_ok(&target->frame)) memcpy(target->y, x, bytes);
    for (int64_t i = 0; twin && lb_frame_ok(&target->frame) && i < target->n; i++)
        ((double *)target->y)[i] = fabs(((double *)target->y)[i]);
    return lb_frame_ok(&target->frame);
}

static lb_status target_end(target *target)
{
    if (target->twin && lb_frame_ok(&target->frame)) {
        double scale = lb_frame_twin_scale(target->frame.call, 0);
        for (int64_t i = 0; i < target->n; i++) ((double *)target->y)[i] *= scale;
    }
    return lb_frame_end(&target->frame);
}

static const void *values_of(target *target, const lb_tensor *tensor)
{
    return target->integer ? (const void *)lb_frame_integers(&target->frame, tensor)
                           : lb_frame_tensor(&target->frame, tensor);
}

static void combine_integer(action how, int64_t *y, int64_t x)
{
    switch (how) {
    case ASSIGN: *y = x; return;
    case ADD: *y = (int64_t)((uint64_t)*y + (uint64_t)x); return;
    case MULTIPLY: *y = (int64_t)((uint64_t)*y * (uint64_t)x); return;
    case MAXIMUM: *y = x > *y ? x : *y; return;
    case MINIMUM: *y = x < *y ? x : *y; return;
    }
}

static double combine_real(action how, double y, double x)
{
    switch (how) {
    case ASSIGN: return x;
    case ADD: return y + x;
    case MULTIPLY: return y * x;
    case MAXIMUM: return x > y || isnan(x) ? x : y;
    case MINIMUM: return x < y || isnan(x) ? x : y;
    }
    return y;
}

/* Elements x[from .. from + n), each times alpha. */
typedef struct elements {
    const void *x;
    int64_t from, n;
    double alpha;
} elements;

/* y[to .. to + n) = how(y, elements); f32 products and sums of f32 are exact in f64 before their own
 * rounding. */
static void combine(target *target, action how, int64_t to, elements elements)
{
    const int64_t n = elements.n;
    const double alpha = elements.alpha;
    if (target->integer) {
        for (int64_t k = 0; k < n; k++)
            combine_integer(how, (int64_t *)target->y + to + k,
                            ((const int64_t *)elements.x)[elements.from + k] * (int64_t)alpha);
        return;
    }
    if (target->frame.wide) {
        double *y = (double *)target->y + to;
        const double *from = (const double *)elements.x + elements.from;
        for (int64_t k = 0; k < n; k++)
            y[k] = combine_real(how, y[k], target->twin ? fabs(from[k] * alpha) : from[k] * alpha);
    } else {
        float *y = (float *)target->y + to;
        const float *from = (const float *)elements.x + elements.from, a = (float)alpha;
        if (how == ADD && a == 1)
            for (int64_t k = 0; k < n; k++) y[k] += from[k];
        else if (how == ADD)
            for (int64_t k = 0; k < n; k++) y[k] += from[k] * a;
        else
            for (int64_t k = 0; k < n; k++) y[k] = (float)combine_real(how, y[k], from[k]);
    }
    if (how != ASSIGN && !target->twin) {
        size_t size = target->frame.wide ? 8 : 4;
        lb_frame_round(&target->frame, (char *)target->y + (size_t)to * size, n, target->dtype);
    }
}

static bool wrap(target *target, int64_t *index, int64_t size)
{
    if (*index < 0) *index += size;
    if (*index >= 0 && *index < size) return true;
    lb_frame_fail(&target->frame, LB_ERR_INVALID, "an index is out of range");
    return false;
}

/* ---- index_put --------------------------------------------------------------------------------------------------- */

/* Args: self, indices, values, accumulate. */
static lb_status index_put_run(lb_call *call, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    lb_tensor values = *lb_frame_arg_tensor(call, 2);
    action how = lb_frame_arg_int(call, 3, 0) ? ADD : ASSIGN;
    lb_index_plan plan;
    target target;
    if (!target_begin(&target, call, self, twin) ||
        !lb_index_plan_make(&target.frame, &self->layout, call->args[1].tensors, call->args[1].count, &plan))
        return lb_frame_end(&target.frame);
    lb_layout wide = lb_layout_contiguous(plan.ndim, plan.shape);
    for (int d = 0; d < plan.ndim; d++) { /* values broadcast to the shape that is addressed */
        int own = d - (plan.ndim - values.layout.ndim);
        int64_t size = own >= 0 ? values.layout.shape[own] : 1;
        wide.stride[d] = size == 1 ? 0 : values.layout.stride[own];
        if (size != 1 && size != plan.shape[d]) lb_frame_fail(&target.frame, LB_ERR_INVALID, "values do not broadcast");
    }
    values.layout = wide;
    const void *x = lb_frame_ok(&target.frame) ? values_of(&target, &values) : NULL;
    int64_t i = 0;
    for (int64_t a = 0; lb_frame_ok(&target.frame) && a < plan.n_before; a++)
        for (int64_t b = 0; b < plan.n_at; b++) {
            int64_t to = plan.before[a] + plan.at[b];
            if (plan.run) {
                combine(&target, how, to, (elements){x, i, plan.n_after, 1});
                i += plan.n_after;
            } else {
                for (int64_t c = 0; c < plan.n_after; c++)
                    combine(&target, how, to + plan.after[c], (elements){x, i++, 1, 1});
            }
        }
    return target_end(&target);
}

LB_WITH_TWIN(index_put, index_put_run(call, twin))

/* ---- whole slices along one dimension ---------------------------------------------------------------------------- */

/* Slice index[k] of self along dim gets slice k of `source`; a 0-dim source or NULL gives `value`. */
static lb_status write_slices(lb_call *call, const lb_tensor *source, action how, double alpha, double value, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *index_tensor = lb_frame_arg_tensor(call, 2);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    lb_around around = lb_frame_shape_around(&self->layout, dim);
    target target;
    if (!target_begin(&target, call, self, twin)) return lb_frame_end(&target.frame);
    const int64_t *index = lb_frame_integers(&target.frame, index_tensor);
    int64_t n = lb_tensor_numel(index_tensor);
    const void *x = source ? values_of(&target, source) : NULL;
    void *fill = NULL;
    if (!source) { /* one slice of the value */
        fill = lb_frame_scratch(&target.frame, (size_t)around.inner * 8);
        for (int64_t k = 0; fill && k < around.inner; k++) {
            if (target.integer)
                ((int64_t *)fill)[k] = (int64_t)value;
            else if (target.frame.wide)
                ((double *)fill)[k] = value;
            else
                ((float *)fill)[k] = (float)value;
        }
    } else if (lb_tensor_numel(source) != around.outer * n * around.inner) {
        lb_frame_fail(&target.frame, LB_ERR_INVALID, "the source has another number of slices than the index");
    }
    for (int64_t k = 0; lb_frame_ok(&target.frame) && k < n; k++) {
        int64_t at = index[k];
        if (!wrap(&target, &at, around.size)) break;
        for (int64_t o = 0; o < around.outer; o++)
            combine(&target, how, (o * around.size + at) * around.inner,
                    (elements){fill ? fill : x, fill ? 0 : (o * n + k) * around.inner, around.inner, alpha});
    }
    return target_end(&target);
}

LB_WITH_TWIN(index_add, write_slices(call, lb_frame_arg_tensor(call, 3), ADD, lb_frame_arg_float(call, 4, 1), 0, twin))

static lb_status index_copy(lb_call *call)
{
    return write_slices(call, lb_frame_arg_tensor(call, 3), ASSIGN, 1, 0, false);
}

static lb_status index_fill(lb_call *call)
{
    return write_slices(call, NULL, ASSIGN, 1, lb_frame_arg_float(call, 3, 0), false);
}

/* Args: grad_output, indices, num_weights, padding_idx, scale_grad_by_freq. Rows are added in the order of the
 * indices. */
static lb_status embedding_backward(lb_call *call, bool twin)
{
    const lb_tensor *grad = lb_frame_arg_tensor(call, 0), *index_tensor = lb_frame_arg_tensor(call, 1);
    int64_t rows = lb_frame_arg_int(call, 2, 0), padding = lb_frame_arg_int(call, 3, -1),
            n = lb_tensor_numel(index_tensor);
    bool by_frequency = lb_frame_arg_int(call, 4, 0);
    target target = {.frame = lb_frame_begin(call), .twin = twin, .dtype = call->results[0].dtype};
    const int64_t *index = lb_frame_integers(&target.frame, index_tensor);
    const void *g = lb_frame_tensor(&target.frame, grad);
    target.n = lb_tensor_numel(&call->results[0]);
    int64_t width = rows > 0 ? target.n / rows : 0;
    target.y = lb_frame_output(&target.frame, 0, rows * width);
    int64_t *count = by_frequency ? lb_frame_scratch(&target.frame, (size_t)rows * 8) : NULL;
    if (lb_frame_ok(&target.frame)) {
        memset(target.y, 0, (size_t)target.n * (target.frame.wide ? 8 : 4));
        if (count) memset(count, 0, (size_t)rows * 8);
    }
    for (int64_t i = 0; count && lb_frame_ok(&target.frame) && i < n; i++) {
        int64_t at = index[i];
        if (wrap(&target, &at, rows)) count[at]++;
    }
    for (int64_t i = 0; lb_frame_ok(&target.frame) && i < n; i++) {
        int64_t at = index[i];
        if (at == padding || !wrap(&target, &at, rows)) continue;
        combine(&target, ADD, at * width, (elements){g, i * width, width, count ? 1.0 / (double)count[at] : 1});
    }
    return target_end(&target);
}

LB_WITH_TWIN(embedding_dense_backward, embedding_backward(call, twin))

/* ---- scatter ----------------------------------------------------------------------------------------------------- */

/* The sizes of index bound what is read from `source` (NULL: `value`). `include_self` false: an element that is hit
 * starts from nothing; `mean`: sums are divided by how many were added. */
typedef struct scattering {
    action how;
    const lb_tensor *source;
    double value;
    bool include_self, mean;
} scattering;

static void scatter_element(target *target, const scattering *scattering, int64_t to, const void *x, int64_t from,
                            int64_t *hits)
{
    bool first = !scattering->include_self && hits && hits[to] == 0;
    double value = scattering->value;
    int64_t integer = (int64_t)scattering->value;
    float narrow = (float)scattering->value;
    const void *src = x;
    if (!x) {
        src = target->integer ? (const void *)&integer : target->frame.wide ? (const void *)&value : &narrow;
        from = 0;
    }
    if (first && target->twin) ((double *)target->y)[to] = scattering->how == MULTIPLY;
    combine(target, first && !target->twin ? ASSIGN : scattering->how, to, (elements){src, from, 1, 1});
    if (hits) hits[to]++;
}

static void divide_by_hits(target *target, const scattering *scattering, const int64_t *hits)
{
    for (int64_t i = 0; i < target->n; i++) {
        int64_t n = hits[i] + (scattering->include_self ? 1 : 0);
        if (!hits[i] || n < 2) continue;
        if (target->integer) {
            int64_t *y = (int64_t *)target->y + i, q = *y / n;
            *y = *y % n && (*y < 0) != (n < 0) ? q - 1 : q;
        } else if (target->frame.wide) {
            ((double *)target->y)[i] /= (double)n;
        } else {
            ((float *)target->y)[i] /= (float)n;
        }
    }
}

static lb_status scatter_run(lb_call *call, scattering scattering, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *index_tensor = lb_frame_arg_tensor(call, 2);
    const lb_layout *layout = &index_tensor->layout;
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    target target;
    if (!target_begin(&target, call, self, twin)) return lb_frame_end(&target.frame);
    lb_layout dense = lb_layout_contiguous(self->layout.ndim, self->layout.shape), from_dense = dense;
    const int64_t *index = lb_frame_integers(&target.frame, index_tensor);
    const void *x = scattering.source ? values_of(&target, scattering.source) : NULL;
    if (scattering.source)
        from_dense = lb_layout_contiguous(scattering.source->layout.ndim, scattering.source->layout.shape);
    int64_t size = self->layout.ndim ? self->layout.shape[dim] : 1, *hits = NULL;
    if (!scattering.include_self || scattering.mean) {
        hits = lb_frame_scratch(&target.frame, (size_t)target.n * 8);
        if (hits) memset(hits, 0, (size_t)target.n * 8);
    }
    for (int64_t i = 0, n = lb_tensor_numel(index_tensor); lb_frame_ok(&target.frame) && i < n; i++) {
        int64_t at = index[i], rest = i, to = 0, from = 0;
        if (!wrap(&target, &at, size)) break;
        for (int d = layout->ndim - 1; d >= 0; d--) {
            int64_t c = rest % layout->shape[d];
            rest /= layout->shape[d];
            to += (d == dim ? at : c) * dense.stride[d];
            from += c * from_dense.stride[d];
        }
        scatter_element(&target, &scattering, to, x, from, hits);
    }
    if (scattering.mean && lb_frame_ok(&target.frame)) divide_by_hits(&target, &scattering, hits);
    return target_end(&target);
}

static bool action_of(const char *name, scattering *scattering)
{
    static const struct {
        const char *name;
        action how;
    } actions[] = {{"add", ADD},       {"sum", ADD},      {"mean", ADD},    {"multiply", MULTIPLY},
                   {"prod", MULTIPLY}, {"amax", MAXIMUM}, {"amin", MINIMUM}};
    for (size_t i = 0; name && i < sizeof actions / sizeof *actions; i++)
        if (!strcmp(name, actions[i].name)) {
            scattering->how = actions[i].how;
            scattering->mean = !strcmp(name, "mean");
            return true;
        }
    return false;
}

static lb_status scatter_src(lb_call *call)
{
    return scatter_run(call, (scattering){ASSIGN, lb_frame_arg_tensor(call, 3), 0, true, false}, false);
}

static lb_status scatter_value(lb_call *call)
{
    return scatter_run(call, (scattering){ASSIGN, NULL, lb_frame_arg_float(call, 3, 0), true, false}, false);
}

LB_WITH_TWIN(scatter_add, scatter_run(call, (scattering){ADD, lb_frame_arg_tensor(call, 3), 0, true, false}, twin))

/* scatter.reduce, scatter.value_reduce and scatter_reduce.two: arg 4 names the reduction. */
static lb_status scatter_reduce_run(lb_call *call, bool twin)
{
    const lb_tensor *source = lb_frame_arg_tensor(call, 3);
    scattering scattering = {ADD, source, source ? 0 : lb_frame_arg_float(call, 3, 0),
                             lb_frame_arg_int(call, 5, 1) != 0, false};
    if (!lb_frame_arg_given(call, 4) || !action_of(call->args[4].string, &scattering))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: unknown reduction", call->row->name);
    return scatter_run(call, scattering, twin);
}

LB_WITH_TWIN(scatter_reduce, scatter_reduce_run(call, twin))

/* ---- masked_scatter, put, bincount ------------------------------------------------------------------------------- */

/* True elements of the mask (which broadcasts to self) take the elements of source in turn. */
static lb_status masked_scatter(lb_call *call)
{
    const lb_tensor *result = &call->results[0];
    lb_tensor self = *lb_frame_arg_tensor(call, 0), mask = *lb_frame_arg_tensor(call, 1);
    const lb_tensor *source = lb_frame_arg_tensor(call, 2);
    lb_tensor *both[] = {&self, &mask};
    for (int b = 0; b < 2; b++) {
        lb_layout wide = result->layout, *own = &both[b]->layout;
        for (int d = 0; d < wide.ndim; d++) {
            int k = d - (wide.ndim - own->ndim);
            wide.stride[d] = k < 0 || own->shape[k] == 1 ? 0 : own->stride[k];
        }
        *own = wide;
    }
    lb_frame frame = lb_frame_begin(call);
    const int64_t *m = lb_frame_integers(&frame, &mask);
    const void *x = lb_frame_bytes(&frame, &self), *s = lb_frame_bytes(&frame, source);
    void *y = lb_frame_output_bytes(&frame, 0);
    lb_elements keep = lb_elements_of(result->dtype, self.dtype, call->method.cast);
    lb_elements put = lb_elements_of(result->dtype, source->dtype, call->method.cast);
    int64_t k = 0, n = lb_tensor_numel(result), room = lb_tensor_numel(source);
    for (int64_t i = 0; y && lb_frame_ok(&frame) && i < n; i++) {
        if (m[i] && k >= room)
            lb_frame_fail(&frame, LB_ERR_INVALID, "the source has fewer elements than the mask is true");
        if (m[i] && k < room)
            lb_elements_move(&put, y, i, s, k++, 1);
        else
            lb_elements_move(&keep, y, i, x, i, 1);
    }
    return lb_frame_end(&frame);
}

/* Args: self, index, source, accumulate. */
static lb_status put_run(lb_call *call, bool twin)
{
    const lb_tensor *index_tensor = lb_frame_arg_tensor(call, 1);
    target target;
    if (!target_begin(&target, call, lb_frame_arg_tensor(call, 0), twin)) return lb_frame_end(&target.frame);
    const int64_t *index = lb_frame_integers(&target.frame, index_tensor);
    const void *x = values_of(&target, lb_frame_arg_tensor(call, 2));
    for (int64_t i = 0, n = lb_tensor_numel(index_tensor); lb_frame_ok(&target.frame) && i < n; i++) {
        int64_t at = index[i];
        if (!wrap(&target, &at, target.n)) break;
        combine(&target, lb_frame_arg_int(call, 3, 0) ? ADD : ASSIGN, at, (elements){x, i, 1, 1});
    }
    return target_end(&target);
}

LB_WITH_TWIN(put, put_run(call, twin))

static lb_status bincount_run(lb_call *call, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *weights = lb_frame_arg_tensor(call, 1);
    target target = {.frame = lb_frame_begin(call), .twin = twin, .dtype = LB_NO_DTYPE};
    target.integer = lb_dtype_is_integer(call->results[0].dtype);
    target.n = lb_tensor_numel(&call->results[0]);
    const int64_t *x = lb_frame_integers(&target.frame, self);
    const void *w = weights ? values_of(&target, weights) : NULL;
    target.y = target.integer ? (void *)lb_frame_output_integers(&target.frame, 0, target.n)
                              : lb_frame_output(&target.frame, 0, target.n);
    if (lb_frame_ok(&target.frame))
        memset(target.y, 0, (size_t)target.n * (target.integer || target.frame.wide ? 8 : 4));
    const int64_t one = 1;
    for (int64_t i = 0, n = lb_tensor_numel(self); lb_frame_ok(&target.frame) && i < n; i++) {
        if (x[i] < 0 || x[i] >= target.n)
            lb_frame_fail(&target.frame, LB_ERR_INVALID, "a recorded result has another number of elements");
        else
            combine(&target, ADD, x[i], (elements){w ? w : (const void *)&one, w ? i : 0, 1, 1});
    }
    return target_end(&target);
}

LB_WITH_TWIN(bincount, bincount_run(call, twin))

#define EXACT LB_ROW_EXACT
const lb_op_row lb_rows_scatter[] = {
    {.name = "aten::index_put",
     .args = "self! indices?[] values! accumulate",
     LB_COMPUTED_BY(index_put),
     LB_SUMS(1, LB_TERMS(POSITIONS, 1)),
     .samples = "index_put"},
    {.name = "aten::_unsafe_index_put",
     .args = "self! indices?[] values! accumulate",
     LB_COMPUTED_BY(index_put),
     LB_SUMS(1, LB_TERMS(POSITIONS, 1)),
     .samples = "index_put"},
    {.name = "aten::_index_put_impl",
     .args = "self! indices?[] values! accumulate unsafe",
     LB_COMPUTED_BY(index_put),
     LB_SUMS(1, LB_TERMS(POSITIONS, 1)),
     .samples = "index_put"},
    {.name = "aten::index_add",
     .args = "self! dim index! source! alpha",
     LB_COMPUTED_BY(index_add),
     .roundings = 2,
     .roundings_per_term = 2,
     .terms = LB_TERMS(ELEMENTS, 2),
     .samples = "index_add"},
    {.name = "aten::index_copy",
     .args = "self! dim index! source!",
     .kernel = index_copy,
     .flags = EXACT,
     .samples = "index_copy"},
    {.name = "aten::index_fill.int_Scalar",
     .args = "self! dim index! value",
     .kernel = index_fill,
     .flags = EXACT,
     .samples = "index_fill"},
    {.name = "aten::embedding_dense_backward",
     .args = "grad_output! indices! num_weights padding_idx scale_grad_by_freq",
     LB_COMPUTED_BY(embedding_dense_backward),
     .roundings = 1,
     .roundings_per_term = 2,
     .terms = LB_TERMS(ELEMENTS, 1),
     .samples = "embedding_dense_backward"},
    {.name = "aten::scatter.src",
     .args = "self! dim index! src!",
     .kernel = scatter_src,
     .flags = EXACT,
     .samples = "scatter_src"},
    {.name = "aten::scatter.value",
     .args = "self! dim index! value",
     .kernel = scatter_value,
     .flags = EXACT,
     .samples = "scatter_value"},
    {.name = "aten::scatter.reduce",
     .args = "self! dim index! src! reduce",
     LB_COMPUTED_BY(scatter_reduce),
     LB_SUMS(1, LB_TERMS(INDICES, 2)),
     .samples = "scatter_reduce"},
    {.name = "aten::scatter.value_reduce",
     .args = "self! dim index! value reduce",
     LB_COMPUTED_BY(scatter_reduce),
     LB_SUMS(1, LB_TERMS(INDICES, 2)),
     .samples = "scatter_value_reduce"},
    {.name = "aten::scatter_add",
     .args = "self! dim index! src!",
     LB_COMPUTED_BY(scatter_add),
     LB_SUMS(1, LB_TERMS(INDICES, 2)),
     .samples = "scatter_add"},
    {.name = "aten::scatter_reduce.two",
     .args = "self! dim index! src! reduce include_self",
     LB_COMPUTED_BY(scatter_reduce),
     LB_SUMS(2, LB_TERMS(INDICES, 2)),
     .samples = "scatter_reduce_two"},
    {.name = "aten::masked_scatter",
     .args = "self! mask! source!",
     .kernel = masked_scatter,
     .flags = EXACT,
     .samples = "masked_scatter"},
    {.name = "aten::put",
     .args = "self! index! source! accumulate",
     LB_COMPUTED_BY(put),
     LB_SUMS(1, LB_TERMS(ELEMENTS, 1)),
     .samples = "put"},
    {.name = "aten::bincount",
     .args = "self! weights minlength",
     LB_COMPUTED_BY(bincount),
     LB_SUMS(1, LB_TERMS(ELEMENTS, 0)),
     .samples = "bincount"},
    {NULL},
};
