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

static bool target_begin(target *t, lb_call *call, const lb_tensor *self, bool twin)
{
    t->frame = lb_frame_begin(call);
    t->twin = twin;
    t->integer = lb_dtype_is_integer(call->results[0].dtype);
    t->n = lb_tensor_numel(self);
    t->dtype = call->results[0].dtype;
    size_t bytes = (size_t)t->n * (t->integer || t->frame.wide ? 8 : 4);
    const void *x = t->integer ? (const void *)lb_frame_integers(&t->frame, self) : lb_frame_tensor(&t->frame, self);
    t->y = t->integer ? (void *)lb_frame_output_integers(&t->frame, 0, t->n) : lb_frame_output(&t->frame, 0, t->n);
    if (lb_frame_ok(&t->frame)) memcpy(t->y, x, bytes);
    for (int64_t i = 0; twin && lb_frame_ok(&t->frame) && i < t->n; i++)
        ((double *)t->y)[i] = fabs(((double *)t->y)[i]);
    return lb_frame_ok(&t->frame);
}

static lb_status target_end(target *t)
{
    if (t->twin && lb_frame_ok(&t->frame)) {
        double scale = lb_frame_twin_scale(t->frame.call, 0);
        for (int64_t i = 0; i < t->n; i++) ((double *)t->y)[i] *= scale;
    }
    return lb_frame_end(&t->frame);
}

static const void *values_of(target *t, const lb_tensor *tensor)
{
    return t->integer ? (const void *)lb_frame_integers(&t->frame, tensor) : lb_frame_tensor(&t->frame, tensor);
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

/* y[i .. i+n) = how(y, x[j .. j+n) * alpha); f32 products and sums of f32 are exact in f64 before their own
 * rounding. */
static void combine(target *t, action how, int64_t i, const void *x, int64_t j, int64_t n, double alpha)
{
    if (t->integer) {
        for (int64_t k = 0; k < n; k++)
            combine_integer(how, (int64_t *)t->y + i + k, ((const int64_t *)x)[j + k] * (int64_t)alpha);
        return;
    }
    if (t->frame.wide) {
        double *y = (double *)t->y + i;
        const double *from = (const double *)x + j;
        for (int64_t k = 0; k < n; k++)
            y[k] = combine_real(how, y[k], t->twin ? fabs(from[k] * alpha) : from[k] * alpha);
    } else {
        float *y = (float *)t->y + i;
        const float *from = (const float *)x + j, a = (float)alpha;
        if (how == ADD && a == 1)
            for (int64_t k = 0; k < n; k++) y[k] += from[k];
        else if (how == ADD)
            for (int64_t k = 0; k < n; k++) y[k] += from[k] * a;
        else
            for (int64_t k = 0; k < n; k++) y[k] = (float)combine_real(how, y[k], from[k]);
    }
    if (how != ASSIGN && !t->twin) {
        size_t size = t->frame.wide ? 8 : 4;
        lb_frame_round(&t->frame, (char *)t->y + (size_t)i * size, n, t->dtype);
    }
}

static bool wrap(target *t, int64_t *index, int64_t size)
{
    if (*index < 0) *index += size;
    if (*index >= 0 && *index < size) return true;
    lb_frame_fail(&t->frame, LB_ERR_INVALID, "an index is out of range");
    return false;
}

/* ---- index_put --------------------------------------------------------------------------------------------------- */

/* Args: self, indices, values, accumulate. */
static lb_status index_put_run(lb_call *call, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    lb_tensor values = *lb_frame_arg_tensor(call, 2);
    action how = lb_frame_arg_int(call, 3, 0) ? ADD : ASSIGN;
    lb_index_plan p;
    target t;
    if (!target_begin(&t, call, self, twin) ||
        !lb_index_plan_make(&t.frame, &self->layout, call->args[1].tensors, call->args[1].count, &p))
        return lb_frame_end(&t.frame);
    lb_layout wide = lb_layout_contiguous(p.ndim, p.shape);
    for (int d = 0; d < p.ndim; d++) { /* values broadcast to the shape that is addressed */
        int own = d - (p.ndim - values.layout.ndim);
        int64_t size = own >= 0 ? values.layout.shape[own] : 1;
        wide.stride[d] = size == 1 ? 0 : values.layout.stride[own];
        if (size != 1 && size != p.shape[d]) lb_frame_fail(&t.frame, LB_ERR_INVALID, "values do not broadcast");
    }
    values.layout = wide;
    const void *x = lb_frame_ok(&t.frame) ? values_of(&t, &values) : NULL;
    int64_t i = 0;
    for (int64_t a = 0; lb_frame_ok(&t.frame) && a < p.n_before; a++)
        for (int64_t b = 0; b < p.n_at; b++) {
            int64_t to = p.before[a] + p.at[b];
            if (p.run) {
                combine(&t, how, to, x, i, p.n_after, 1);
                i += p.n_after;
            } else {
                for (int64_t c = 0; c < p.n_after; c++) combine(&t, how, to + p.after[c], x, i++, 1, 1);
            }
        }
    return target_end(&t);
}

LB_WITH_TWIN(index_put, index_put_run(call, twin))

/* ---- whole slices along one dimension ---------------------------------------------------------------------------- */

/* Slice index[k] of self along dim gets slice k of `source`; a 0-dim source or NULL gives `value`. */
static lb_status write_slices(lb_call *call, const lb_tensor *source, action how, double alpha, double value, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *index_tensor = lb_frame_arg_tensor(call, 2);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    lb_around a = lb_frame_shape_around(&self->layout, dim);
    target t;
    if (!target_begin(&t, call, self, twin)) return lb_frame_end(&t.frame);
    const int64_t *index = lb_frame_integers(&t.frame, index_tensor);
    int64_t n = lb_tensor_numel(index_tensor);
    const void *x = source ? values_of(&t, source) : NULL;
    void *fill = NULL;
    if (!source) { /* one slice of the value */
        fill = lb_frame_scratch(&t.frame, (size_t)a.inner * 8);
        for (int64_t k = 0; fill && k < a.inner; k++) {
            if (t.integer)
                ((int64_t *)fill)[k] = (int64_t)value;
            else if (t.frame.wide)
                ((double *)fill)[k] = value;
            else
                ((float *)fill)[k] = (float)value;
        }
    } else if (lb_tensor_numel(source) != a.outer * n * a.inner) {
        lb_frame_fail(&t.frame, LB_ERR_INVALID, "the source has another number of slices than the index");
    }
    for (int64_t k = 0; lb_frame_ok(&t.frame) && k < n; k++) {
        int64_t at = index[k];
        if (!wrap(&t, &at, a.size)) break;
        for (int64_t o = 0; o < a.outer; o++)
            combine(&t, how, (o * a.size + at) * a.inner, fill ? fill : x, fill ? 0 : (o * n + k) * a.inner, a.inner,
                    alpha);
    }
    return target_end(&t);
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
    target t = {.frame = lb_frame_begin(call), .twin = twin, .dtype = call->results[0].dtype};
    const int64_t *index = lb_frame_integers(&t.frame, index_tensor);
    const void *g = lb_frame_tensor(&t.frame, grad);
    t.n = lb_tensor_numel(&call->results[0]);
    int64_t width = rows > 0 ? t.n / rows : 0;
    t.y = lb_frame_output(&t.frame, 0, rows * width);
    int64_t *count = by_frequency ? lb_frame_scratch(&t.frame, (size_t)rows * 8) : NULL;
    if (lb_frame_ok(&t.frame)) {
        memset(t.y, 0, (size_t)t.n * (t.frame.wide ? 8 : 4));
        if (count) memset(count, 0, (size_t)rows * 8);
    }
    for (int64_t i = 0; count && lb_frame_ok(&t.frame) && i < n; i++) {
        int64_t at = index[i];
        if (wrap(&t, &at, rows)) count[at]++;
    }
    for (int64_t i = 0; lb_frame_ok(&t.frame) && i < n; i++) {
        int64_t at = index[i];
        if (at == padding || !wrap(&t, &at, rows)) continue;
        combine(&t, ADD, at * width, g, i * width, width, count ? 1.0 / (double)count[at] : 1);
    }
    return target_end(&t);
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

static void scatter_element(target *t, const scattering *s, int64_t to, const void *x, int64_t from, int64_t *hits,
                            bool twin)
{
    bool first = !s->include_self && hits && hits[to] == 0;
    double value = s->value;
    int64_t integer = (int64_t)s->value;
    float narrow = (float)s->value;
    const void *src = x;
    if (!x) {
        src = t->integer ? (const void *)&integer : t->frame.wide ? (const void *)&value : &narrow;
        from = 0;
    }
    if (first && twin) ((double *)t->y)[to] = s->how == MULTIPLY;
    combine(t, first && !twin ? ASSIGN : s->how, to, src, from, 1, 1);
    if (hits) hits[to]++;
}

static void divide_by_hits(target *t, const scattering *s, const int64_t *hits)
{
    for (int64_t i = 0; i < t->n; i++) {
        int64_t n = hits[i] + (s->include_self ? 1 : 0);
        if (!hits[i] || n < 2) continue;
        if (t->integer) {
            int64_t *y = (int64_t *)t->y + i, q = *y / n;
            *y = *y % n && (*y < 0) != (n < 0) ? q - 1 : q;
        } else if (t->frame.wide) {
            ((double *)t->y)[i] /= (double)n;
        } else {
            ((float *)t->y)[i] /= (float)n;
        }
    }
}

static lb_status scatter_run(lb_call *call, scattering s, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *index_tensor = lb_frame_arg_tensor(call, 2);
    const lb_layout *l = &index_tensor->layout;
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    target t;
    if (!target_begin(&t, call, self, twin)) return lb_frame_end(&t.frame);
    lb_layout dense = lb_layout_contiguous(self->layout.ndim, self->layout.shape), from_dense = dense;
    const int64_t *index = lb_frame_integers(&t.frame, index_tensor);
    const void *x = s.source ? values_of(&t, s.source) : NULL;
    if (s.source) from_dense = lb_layout_contiguous(s.source->layout.ndim, s.source->layout.shape);
    int64_t size = self->layout.ndim ? self->layout.shape[dim] : 1, *hits = NULL;
    if (!s.include_self || s.mean) {
        hits = lb_frame_scratch(&t.frame, (size_t)t.n * 8);
        if (hits) memset(hits, 0, (size_t)t.n * 8);
    }
    for (int64_t i = 0, n = lb_tensor_numel(index_tensor); lb_frame_ok(&t.frame) && i < n; i++) {
        int64_t at = index[i], rest = i, to = 0, from = 0;
        if (!wrap(&t, &at, size)) break;
        for (int d = l->ndim - 1; d >= 0; d--) {
            int64_t c = rest % l->shape[d];
            rest /= l->shape[d];
            to += (d == dim ? at : c) * dense.stride[d];
            from += c * from_dense.stride[d];
        }
        scatter_element(&t, &s, to, x, from, hits, twin);
    }
    if (s.mean && lb_frame_ok(&t.frame)) divide_by_hits(&t, &s, hits);
    return target_end(&t);
}

static bool action_of(const char *name, scattering *s)
{
    static const struct {
        const char *name;
        action how;
    } actions[] = {{"add", ADD},       {"sum", ADD},      {"mean", ADD},    {"multiply", MULTIPLY},
                   {"prod", MULTIPLY}, {"amax", MAXIMUM}, {"amin", MINIMUM}};
    for (size_t i = 0; name && i < sizeof actions / sizeof *actions; i++)
        if (!strcmp(name, actions[i].name)) {
            s->how = actions[i].how;
            s->mean = !strcmp(name, "mean");
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
    scattering s = {ADD, source, source ? 0 : lb_frame_arg_float(call, 3, 0), lb_frame_arg_int(call, 5, 1) != 0, false};
    if (!lb_frame_arg_given(call, 4) || !action_of(call->args[4].string, &s))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: unknown reduction", call->row->name);
    return scatter_run(call, s, twin);
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
    lb_frame f = lb_frame_begin(call);
    const int64_t *m = lb_frame_integers(&f, &mask);
    const void *x = lb_frame_bytes(&f, &self), *s = lb_frame_bytes(&f, source);
    void *y = lb_frame_output_bytes(&f, 0);
    lb_elements keep = lb_elements_of(result->dtype, self.dtype, call->method.cast);
    lb_elements put = lb_elements_of(result->dtype, source->dtype, call->method.cast);
    int64_t k = 0, n = lb_tensor_numel(result), room = lb_tensor_numel(source);
    for (int64_t i = 0; y && lb_frame_ok(&f) && i < n; i++) {
        if (m[i] && k >= room) lb_frame_fail(&f, LB_ERR_INVALID, "the source has fewer elements than the mask is true");
        if (m[i] && k < room)
            lb_elements_move(&put, y, i, s, k++, 1);
        else
            lb_elements_move(&keep, y, i, x, i, 1);
    }
    return lb_frame_end(&f);
}

/* Args: self, index, source, accumulate. */
static lb_status put_run(lb_call *call, bool twin)
{
    const lb_tensor *index_tensor = lb_frame_arg_tensor(call, 1);
    target t;
    if (!target_begin(&t, call, lb_frame_arg_tensor(call, 0), twin)) return lb_frame_end(&t.frame);
    const int64_t *index = lb_frame_integers(&t.frame, index_tensor);
    const void *x = values_of(&t, lb_frame_arg_tensor(call, 2));
    for (int64_t i = 0, n = lb_tensor_numel(index_tensor); lb_frame_ok(&t.frame) && i < n; i++) {
        int64_t at = index[i];
        if (!wrap(&t, &at, t.n)) break;
        combine(&t, lb_frame_arg_int(call, 3, 0) ? ADD : ASSIGN, at, x, i, 1, 1);
    }
    return target_end(&t);
}

LB_WITH_TWIN(put, put_run(call, twin))

static lb_status bincount_run(lb_call *call, bool twin)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *weights = lb_frame_arg_tensor(call, 1);
    target t = {.frame = lb_frame_begin(call), .twin = twin, .dtype = LB_NO_DTYPE};
    t.integer = lb_dtype_is_integer(call->results[0].dtype);
    t.n = lb_tensor_numel(&call->results[0]);
    const int64_t *x = lb_frame_integers(&t.frame, self);
    const void *w = weights ? values_of(&t, weights) : NULL;
    t.y = t.integer ? (void *)lb_frame_output_integers(&t.frame, 0, t.n) : lb_frame_output(&t.frame, 0, t.n);
    if (lb_frame_ok(&t.frame)) memset(t.y, 0, (size_t)t.n * (t.integer || t.frame.wide ? 8 : 4));
    const int64_t one = 1;
    for (int64_t i = 0, n = lb_tensor_numel(self); lb_frame_ok(&t.frame) && i < n; i++) {
        if (x[i] < 0 || x[i] >= t.n)
            lb_frame_fail(&t.frame, LB_ERR_INVALID, "a recorded result has another number of elements");
        else
            combine(&t, ADD, x[i], w ? w : (const void *)&one, w ? i : 0, 1, 1);
    }
    return target_end(&t);
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
