/* Multi-head attention and a whole encoder layer, which nn.MultiheadAttention and nn.TransformerEncoderLayer run as one op in evaluation.
 *
 *      attention   q, k, v = x W + b, q / sqrt(size);  p = softmax(q k') under the mask;  y = (p v) W + b, and p by head or on average
 *      layer       x + attention(x) and then x + f(x W + b) W + b, f gelu or relu, with a layer norm behind either sum or in front
 *
 * Each is a chain of rows, whose results are held in the result's dtype as torch's CPU kernels hold them; in f64 it is the exact value. The
 * twin runs the chain in f64 with the error of every number beside it: in parts of what the row's bound multiplies its twin with, to first
 * order, but for softmax, where errors are those of exponents. CUDA may leave roundings to 16 bits out, and takes gelu's tanh form.
 * Source: pytorch/pytorch aten/src/ATen/native/transformers/attention.cpp, transformer.cpp, aten/src/ATen/native/cuda/Blas.cpp. */
#include "frame.h"
#include "row_call.h"
#include "value_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 96 };
#define UNKNOWN INFINITY /* the error of a number that may have overflowed */

/* A tensor on the way, and of a twin what its elements may be off by. */
typedef struct number_tensor {
    lb_tensor value, error;
} number_tensor;

typedef struct chain {
    lb_call *call;
    lb_call apart; /* for rows that are no product: orders of sums are for products */
    bool twin;
    lb_dtype type;
    double factor;        /* roundings in an error of 1 */
    double unit;          /* what an error of 1 stands for */
    double coarse, least; /* what holding a number in 16 bits adds: per magnitude, and below the normal ones */
    double largest;       /* finite number that the op can hold */
    lb_status status;
    void *owned[MOST_TENSORS];
    int n;
} chain;

static chain chain_begin(lb_call *call, bool twin)
{
    const lb_tensor *x = lb_call_tensor(call, 0);
    const double factor = (double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call);
    chain c = {.call = call, .apart = *call, .twin = twin, .type = twin ? LB_F64 : call->results[0].dtype};
    c.factor = factor;
    c.apart.method.schedule = NULL;
    c.unit = factor * (x->dtype == LB_F64 ? 0x1p-53 : 0x1p-24);
    c.largest = lb_dtype_max_finite(x->dtype);
    c.coarse = lb_twin_rounding(call, 0);
    if (c.coarse > 0) c.least = 0.5 * lb_dtype_min_subnormal(x->dtype) / c.unit;
    return c;
}

static lb_status chain_end(chain *c)
{
    while (c->n) free(c->owned[--c->n]);
    return c->status;
}

static bool ok(const chain *c)
{
    return c->status == LB_OK;
}

static lb_status refuse(chain *c, const char *what)
{
    c->status = lb_fail(c->call->err, LB_ERR_UNSUPPORTED, "%s: %s", c->call->row->name, what);
    return chain_end(c);
}

/* ---- tensors on the way ------------------------------------------------------------------------------------------------- */

static lb_tensor fresh(chain *c, lb_dtype type, int ndim, const int64_t *shape)
{
    lb_tensor t = {.dtype = type, .layout = lb_layout_contiguous(ndim, shape)};
    const size_t bytes = lb_dtype_bytes(type, (size_t)lb_tensor_numel(&t)) + 8;
    if (!ok(c)) return t;
    LB_CHECK(c->n < MOST_TENSORS);
    t.data = c->owned[c->n] = malloc(bytes);
    if (t.data)
        c->n++;
    else
        c->status = lb_fail(c->call->err, LB_ERR_NOMEM, "%s: no memory on the way", c->call->row->name);
    return t;
}

static number_tensor number_of(chain *c, int ndim, const int64_t *shape)
{
    number_tensor x = {.value = fresh(c, c->type, ndim, shape)};
    if (c->twin) x.error = fresh(c, LB_F64, ndim, shape);
    return x;
}

/* The same elements under another shape and other strides, from element `first` on. */
static lb_tensor seen_as(lb_tensor t, const lb_layout *layout, int64_t first)
{
    t.layout = *layout;
    if (t.data) t.data = (char *)t.data + lb_dtype_bytes(t.dtype, (size_t)first);
    return t;
}

static number_tensor number_seen_as(number_tensor x, const lb_layout *layout)
{
    return (number_tensor){seen_as(x.value, layout, 0), seen_as(x.error, layout, 0)};
}

static lb_tensor transposed(lb_tensor t)
{
    lb_layout *l = &t.layout;
    const int a = l->ndim - 1, b = l->ndim - 2;
    const int64_t shape = l->shape[a], stride = l->stride[a];
    l->shape[a] = l->shape[b], l->stride[a] = l->stride[b];
    l->shape[b] = shape, l->stride[b] = stride;
    return t;
}

/* Elements `part` of `parts` along the first dimension. */
static lb_tensor part_of(const lb_tensor *t, int64_t part, int64_t parts)
{
    lb_layout l = t->layout;
    l.shape[0] /= parts;
    return seen_as(*t, &l, part * l.shape[0] * l.stride[0]);
}

/* An argument, exact. Where errors are asked for, they are 0. */
static number_tensor number_from(chain *c, const lb_tensor *t)
{
    number_tensor x = {.value = *t};
    if (!c->twin) return x;
    x = number_of(c, t->layout.ndim, t->layout.shape);
    if (!ok(c)) return x;
    lb_tensor_copy(&x.value, t, NULL);
    memset(x.error.data, 0, (size_t)lb_tensor_numel(t) * sizeof(double));
    return x;
}

static void run(chain *c, lb_call *as, lb_row_call *piece, bool twin)
{
    if (ok(c)) c->status = lb_row_call_run(as, piece, twin);
}

/* a + k |b|, of dense f64 tensors. */
static void add_magnitudes(chain *c, lb_tensor *a, const lb_tensor *b, double k)
{
    double *y = a->data;
    const double *x = b->data;
    for (int64_t i = 0, n = lb_tensor_numel(a); ok(c) && i < n; i++) y[i] += k * fabs(x[i]);
}

/* k |value| + m error */
static lb_tensor mixed(chain *c, const number_tensor *x, double k, double m)
{
    lb_tensor t = fresh(c, LB_F64, x->value.layout.ndim, x->value.layout.shape);
    for (int64_t i = 0, n = lb_tensor_numel(&t); ok(c) && i < n; i++)
        ((double *)t.data)[i] = k * fabs(((double *)x->value.data)[i]) + m * ((double *)x->error.data)[i];
    return t;
}

/* What `n` roundings are in parts of all that the row's bound has. */
static double roundings(const chain *c, double n)
{
    return n / c->factor;
}
static double roundings_of_sum(const chain *c, int64_t terms)
{
    return roundings(c, (double)terms + 2);
}

/* Held in the op's type: in 16 bits `times` over. Beyond its largest number nothing more can be said. */
static void hold(chain *c, number_tensor *x, double times)
{
    double *e = x->error.data;
    const double *v = x->value.data;
    for (int64_t i = 0, n = c->twin ? lb_tensor_numel(&x->error) : 0; ok(c) && i < n; i++) {
        e[i] += times * (c->coarse * (fabs(v[i]) + c->unit * e[i]) + c->least);
        if (!(fabs(v[i]) + c->unit * e[i] <= c->largest)) e[i] = UNKNOWN;
    }
}

/* ---- links of the chain ------------------------------------------------------------------------------------------------- */

/* y = x W' + b into the value and the error of y. */
static void linear_into(chain *c, const number_tensor *x, const lb_tensor *weight, const lb_tensor *bias,
                        number_tensor *y)
{
    lb_row_call p = {.row = "aten::linear",
                     .args = {lb_operand_tensor(&x->value), lb_operand_tensor(weight),
                              bias ? lb_operand_tensor(bias) : lb_operand_none()},
                     .n_args = 3,
                     .results = {y->value},
                     .n_results = 1};
    run(c, c->call, &p, false);
    if (!c->twin) return;
    const lb_tensor most = mixed(c, x, roundings_of_sum(c, weight->layout.shape[1]), 1);
    p.args[0] = lb_operand_tensor(&most), p.args[2] = lb_operand_none(), p.results[0] = y->error;
    run(c, c->call, &p, true);
}

static number_tensor linear(chain *c, const number_tensor *x, const lb_tensor *weight, const lb_tensor *bias)
{
    int64_t shape[LB_MAX_DIMS];
    const lb_layout *in = &x->value.layout;
    memcpy(shape, in->shape, sizeof shape);
    shape[in->ndim - 1] = weight->layout.shape[0];
    number_tensor y = number_of(c, in->ndim, shape);
    linear_into(c, x, weight, bias, &y);
    if (c->twin && bias) add_magnitudes(c, &y.error, &y.value, roundings(c, 2));
    hold(c, &y, bias ? 2 : 1);
    return y;
}

static void product_into(chain *c, const lb_tensor *a, const lb_tensor *b, const lb_tensor *y)
{
    lb_row_call p = {.row = "aten::bmm",
                     .args = {lb_operand_tensor(a), lb_operand_tensor(b)},
                     .n_args = 2,
                     .results = {*y},
                     .n_results = 1};
    run(c, c->call, &p, false);
}

/* y = a b (b transposed: a b'), whose error is |a| (its roundings |b| + e_b) + e_a (|b| + unit e_b). */
static void product(chain *c, const number_tensor *a, const number_tensor *b, bool turned, number_tensor *y)
{
    const lb_tensor right = turned ? transposed(b->value) : b->value;
    product_into(c, &a->value, &right, &y->value);
    if (!c->twin) return;
    const double own = roundings_of_sum(c, a->value.layout.shape[a->value.layout.ndim - 1]);
    lb_tensor most = mixed(c, b, own, 1), more = mixed(c, b, 1, c->unit), left = mixed(c, a, 1, 0);
    lb_tensor part = fresh(c, LB_F64, y->error.layout.ndim, y->error.layout.shape);
    part.layout = y->error.layout;
    if (turned) most = transposed(most), more = transposed(more);
    product_into(c, &left, &most, &y->error);
    product_into(c, &a->error, &more, &part);
    add_magnitudes(c, &y->error, &part, 1);
    hold(c, y, 1);
}

static number_tensor sum(chain *c, const number_tensor *a, const number_tensor *b)
{
    number_tensor y = number_of(c, a->value.layout.ndim, a->value.layout.shape);
    lb_row_call p = {.row = "aten::add.Tensor",
                     .args = {lb_operand_tensor(&a->value), lb_operand_tensor(&b->value), lb_operand_int(1)},
                     .n_args = 3,
                     .results = {y.value},
                     .n_results = 1};
    run(c, &c->apart, &p, false);
    if (!c->twin || !ok(c)) return y;
    memcpy(y.error.data, a->error.data, (size_t)lb_tensor_numel(&y.error) * sizeof(double));
    add_magnitudes(c, &y.error, &b->error, 1);
    add_magnitudes(c, &y.error, &y.value, roundings(c, 2));
    hold(c, &y, 1);
    return y;
}

/* What the row of `piece` says of its own roundings, whose result is y, into y's error. */
static void own_errors(chain *c, lb_row_call *piece, number_tensor *y, double n)
{
    double *error = y->error.data;
    piece->results[0] = y->error;
    run(c, &c->apart, piece, true);
    for (int64_t i = 0, count = lb_tensor_numel(&y->error); ok(c) && i < count; i++) error[i] *= roundings(c, n);
}

/* An error e of x is one of |gamma| rstd (e + mean e + |z| mean |z| e) of y, z = (x - mean) rstd. */
static void norm_errors(chain *c, const number_tensor *x, const lb_tensor *gamma, double eps, lb_tensor *error)
{
    const int64_t size = x->value.layout.shape[x->value.layout.ndim - 1], n = lb_tensor_numel(&x->value);
    const lb_tensor weight = number_from(c, gamma).value;
    for (int64_t i = 0; ok(c) && i < n; i += size) {
        const double *v = (const double *)x->value.data + i, *e = (const double *)x->error.data + i;
        double *y = (double *)error->data + i, mean = 0, squares = 0, shift = 0, turn = 0;
        for (int64_t k = 0; k < size; k++) mean += v[k] / (double)size, shift += e[k] / (double)size;
        for (int64_t k = 0; k < size; k++) squares += (v[k] - mean) * (v[k] - mean) / (double)size;
        const double rstd = 1 / sqrt(squares + eps);
        for (int64_t k = 0; k < size; k++) turn += fabs(v[k] - mean) * rstd * e[k] / (double)size;
        for (int64_t k = 0; k < size; k++)
            y[k] += fabs(((double *)weight.data)[k]) * rstd * (e[k] + shift + fabs(v[k] - mean) * rstd * turn);
    }
}

static number_tensor norm(chain *c, const number_tensor *x, const lb_tensor *weight, const lb_tensor *bias, double eps)
{
    const lb_layout *in = &x->value.layout;
    const int64_t size = in->shape[in->ndim - 1];
    const double size_as_real = (double)size;
    number_tensor y = number_of(c, in->ndim, in->shape);
    lb_row_call p = {.row = "aten::native_layer_norm",
                     .args = {lb_operand_tensor(&x->value), lb_operand_numbers(&size, &size_as_real, 1),
                              lb_operand_tensor(weight), lb_operand_tensor(bias), lb_operand_real(eps)},
                     .n_args = 5,
                     .results = {y.value},
                     .n_results = 3};
    run(c, &c->apart, &p, false);
    if (!c->twin) return y;
    own_errors(c, &p, &y, 8 + size_as_real);
    norm_errors(c, x, weight, eps, &y.error);
    hold(c, &y, 1);
    return y;
}

#define GELU_STEEPEST 1.13 /* the largest slope of gelu */

static number_tensor activated(chain *c, const number_tensor *x, bool gelu)
{
    number_tensor y = number_of(c, x->value.layout.ndim, x->value.layout.shape);
    lb_row_call p = {
        .row = gelu ? "aten::gelu" : "aten::relu",
        .args = {lb_operand_tensor(&x->value), {.tag = LB_OPERAND_STRING, .string = c->call->cuda ? "tanh" : "none"}},
        .n_args = gelu ? 2 : 1,
        .results = {y.value},
        .n_results = 1};
    run(c, &c->apart, &p, false);
    if (!c->twin) return y;
    own_errors(c, &p, &y, gelu ? 8 : 0);
    add_magnitudes(c, &y.error, &x->error, gelu ? GELU_STEEPEST : 1);
    hold(c, &y, 1);
    return y;
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

typedef struct attention {
    const lb_tensor *qkv_weight, *qkv_bias, *weight, *bias;
    lb_operand mask, mask_type;
    int64_t batch, tokens, heads, size;
} attention;

static bool is_matrix(const lb_tensor *t, int64_t rows, int64_t columns)
{
    return t && t->layout.ndim == 2 && t->layout.shape[0] == rows && t->layout.shape[1] == columns;
}

static bool is_vector(const lb_tensor *t, int64_t size)
{
    return t && t->layout.ndim == 1 && t->layout.shape[0] == size;
}

/* From arg `first` on: embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias; the mask and its type stand apart. */
static bool attention_of(attention *a, const lb_call *call, uint32_t first, uint32_t mask, uint32_t mask_type)
{
    const lb_tensor *x = lb_call_tensor(call, 0);
    *a = (attention){.qkv_weight = lb_call_tensor(call, first + 2),
                     .qkv_bias = lb_call_tensor(call, first + 3),
                     .weight = lb_call_tensor(call, first + 4),
                     .bias = lb_call_tensor(call, first + 5),
                     .mask = lb_operand_arg(call, mask),
                     .mask_type = lb_operand_arg(call, mask_type),
                     .heads = lb_call_int(call, first + 1, 1)};
    if (x->layout.ndim != 3 || a->heads < 1 || x->layout.shape[2] % a->heads) return false;
    const int64_t width = x->layout.shape[2];
    a->batch = x->layout.shape[0], a->tokens = x->layout.shape[1], a->size = width / a->heads;
    return is_matrix(a->qkv_weight, 3 * width, width) && is_vector(a->qkv_bias, 3 * width) &&
           is_matrix(a->weight, width, width) && is_vector(a->bias, width);
}

/* x W of query, key and value side by side: (batch, tokens, 3 heads size). */
static number_tensor projected(chain *c, const attention *a, const number_tensor *x)
{
    const int64_t width = a->heads * a->size, wide[3] = {a->batch, a->tokens, 3 * width};
    number_tensor y = number_of(c, 3, wide);
    for (int64_t part = 0; part < 3; part++) {
        const lb_tensor weight = part_of(a->qkv_weight, part, 3);
        lb_layout third = y.value.layout;
        third.shape[2] = width;
        number_tensor to = {seen_as(y.value, &third, part * width), seen_as(y.error, &third, part * width)};
        linear_into(c, &x[part], &weight, NULL, &to);
    }
    hold(c, &y, 1);
    return y;
}

/* q, k and v of (batch, heads, tokens, size). */
static void split_heads(chain *c, const attention *a, const number_tensor *qkv, number_tensor *heads)
{
    const int64_t shape[4] = {a->batch, a->heads, a->tokens, a->size};
    for (int i = 0; i < 3; i++) heads[i] = number_of(c, 4, shape);
    lb_row_call p = {.row = "aten::_transform_bias_rescale_qkv",
                     .args = {lb_operand_tensor(&qkv->value), lb_operand_tensor(a->qkv_bias), lb_operand_int(a->heads)},
                     .n_args = 3,
                     .results = {heads[0].value, heads[1].value, heads[2].value},
                     .n_results = 3};
    run(c, &c->apart, &p, false);
    if (!c->twin) return;
    const lb_tensor none = fresh(c, LB_F64, 1, &a->qkv_bias->layout.shape[0]);
    if (ok(c)) memset(none.data, 0, (size_t)lb_tensor_numel(&none) * sizeof(double));
    p.args[0] = lb_operand_tensor(&qkv->error), p.args[1] = lb_operand_tensor(&none);
    for (int i = 0; i < 3; i++) p.results[i] = heads[i].error;
    run(c, &c->apart, &p, true);
    for (int i = 0; i < 3; i++) {
        add_magnitudes(c, &heads[i].error, &heads[i].value, roundings(c, 4));
        hold(c, &heads[i], i ? 1 : 4);
    }
}

/* How far p = exp(log_p) can move when its exponent is off by d, and all are by `mean` on average. Where they are off by much, the sum can also
 * grow to `grown`, by keys that p all but leaves out. */
static double softmax_error(double p, double log_p, double d, double mean, double grown)
{
    const double up = d + mean < 1 ? p * expm1(d + mean) : exp(fmin(0, log_p + d + mean));
    return grown > 1 ? fmax(up, p * (1 - exp(-d) / grown)) : up;
}

static void softmax_errors(chain *c, const number_tensor *x, number_tensor *p)
{
    const int64_t size = x->value.layout.shape[3], n = lb_tensor_numel(&x->value);
    const double own = roundings(c, 4);
    lb_tensor room = fresh(c, LB_F64, 1, &size);
    double *d = room.data;
    for (int64_t i = 0; ok(c) && i < n; i += size) {
        const double *v = (const double *)x->value.data + i, *e = (const double *)x->error.data + i;
        double *y = (double *)p->value.data + i, *error = (double *)p->error.data + i;
        double top = -INFINITY, mean = 0, most = 0, worst = 0, grown = 0;
        for (int64_t k = 0; k < size; k++)
            if (y[k] > most) most = y[k], top = v[k];
        for (int64_t k = 0; k < size; k++) {
            d[k] = c->unit * (e[k] + (1 + fabs(v[k] - top)) * (own + c->coarse));
            if (y[k] > 0) mean += y[k] * d[k];
            grown += exp(v[k] - top + log(most) + d[k]);
            worst = fmax(worst, d[k]);
        }
        if (worst < 0x1p-7) grown = 0;
        for (int64_t k = 0; k < size; k++) {
            error[k] = softmax_error(y[k], v[k] - top + log(most), d[k], mean, grown) / c->unit;
            error[k] += y[k] * (roundings_of_sum(c, size) + own + c->coarse);
            if (isinf(worst)) error[k] = UNKNOWN;
        }
    }
}

/* Arg 1 of the row that stands without a mask: the dimension. */
static number_tensor weights(chain *c, const attention *a, const number_tensor *scores)
{
    number_tensor y = number_of(c, 4, scores->value.layout.shape);
    lb_row_call p = {.row = "aten::_softmax",
                     .args = {lb_operand_tensor(&scores->value), lb_operand_int(-1), lb_operand_flag(false)},
                     .n_args = 3,
                     .results = {y.value},
                     .n_results = 1};
    if (a->mask.tag == LB_OPERAND_TENSOR) {
        p.row = "aten::_masked_softmax", p.n_args = 4;
        p.args[1] = a->mask, p.args[2] = lb_operand_int(-1), p.args[3] = a->mask_type;
    }
    run(c, &c->apart, &p, false);
    if (c->twin) softmax_errors(c, scores, &y);
    hold(c, &y, 1);
    return y;
}

/* Of the inputs x, which are one in self-attention. *p: the weights. */
static number_tensor attend(chain *c, const attention *a, const number_tensor *x, number_tensor *p)
{
    const int64_t square[4] = {a->batch, a->heads, a->tokens, a->tokens},
                  joined[3] = {a->batch, a->tokens, a->heads * a->size};
    const lb_layout by_head = {.ndim = 4,
                               .shape = {a->batch, a->heads, a->tokens, a->size},
                               .stride = {a->tokens * joined[2], a->size, joined[2], 1}};
    const number_tensor qkv = projected(c, a, x);
    number_tensor heads[3], scores = number_of(c, 4, square), all = number_of(c, 3, joined);
    split_heads(c, a, &qkv, heads);
    product(c, &heads[0], &heads[1], true, &scores);
    *p = weights(c, a, &scores);
    number_tensor context = number_seen_as(all, &by_head);
    product(c, p, &heads[2], false, &context);
    return linear(c, &all, a->weight, a->bias);
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */

static bool is_wanted(const lb_call *call, uint32_t r)
{
    return r < call->n_results && call->results[r].data;
}

/* Result `r`: the value, or of a twin the error with the magnitude. */
static void put(chain *c, uint32_t r, const number_tensor *x)
{
    if (!ok(c) || !is_wanted(c->call, r)) return;
    const lb_tensor *to = &c->call->results[r];
    if (lb_tensor_numel(to) != lb_tensor_numel(&x->value)) {
        c->status = lb_fail(c->call->err, LB_ERR_INVALID, "%s: a result of another size", c->call->row->name);
        return;
    }
    lb_tensor from = c->twin ? mixed(c, x, roundings(c, 1), 1) : x->value;
    from.layout = lb_layout_contiguous(to->layout.ndim, to->layout.shape);
    if (ok(c)) lb_tensor_copy(to, &from, NULL);
}

/* p summed over heads, divided by their number. */
static number_tensor averaged(chain *c, const attention *a, const number_tensor *p)
{
    const int64_t shape[3] = {a->batch, a->tokens, a->tokens}, dim = 1;
    const double dim_as_real = 1;
    number_tensor total = number_of(c, 3, shape), y = number_of(c, 3, shape);
    lb_row_call add = {.row = "aten::sum.dim_IntList",
                       .args = {lb_operand_tensor(&p->value), lb_operand_numbers(&dim, &dim_as_real, 1),
                                lb_operand_flag(false), lb_operand_none()},
                       .n_args = 4,
                       .results = {total.value},
                       .n_results = 1};
    lb_row_call divide = {.row = "aten::div.Scalar",
                          .args = {lb_operand_tensor(&total.value), lb_operand_int(a->heads)},
                          .n_args = 2,
                          .results = {y.value},
                          .n_results = 1};
    run(c, &c->apart, &add, false), run(c, &c->apart, &divide, false);
    if (!c->twin) return y;
    add.args[0] = lb_operand_tensor(&p->error), add.results[0] = total.error;
    divide.args[0] = lb_operand_tensor(&total.error), divide.results[0] = y.error;
    run(c, &c->apart, &add, false), run(c, &c->apart, &divide, false);
    add_magnitudes(c, &y.error, &y.value, roundings_of_sum(c, a->heads));
    hold(c, &y, 2);
    return y;
}

static bool same_shape(const lb_tensor *a, const lb_tensor *b)
{
    bool same = a->layout.ndim == b->layout.ndim;
    for (int d = 0; same && d < a->layout.ndim; d++) same = a->layout.shape[d] == b->layout.shape[d];
    return same;
}

/* Args: query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights, average_attn_weights,
 * mask_type. */
static lb_status attention_run(lb_call *call, bool twin)
{
    chain c = chain_begin(call, twin);
    attention a;
    const lb_tensor *x = lb_call_tensor(call, 0);
    if (!attention_of(&a, call, 3, 9, 12) || !same_shape(x, lb_call_tensor(call, 1)) ||
        !same_shape(x, lb_call_tensor(call, 2)))
        return refuse(&c, "query, key, value and weights that do not fit each other");
    number_tensor in[3], p;
    for (uint32_t i = 0; i < 3; i++) in[i] = number_from(&c, lb_call_tensor(call, i));
    const number_tensor y = attend(&c, &a, in, &p);
    put(&c, 0, &y);
    if (lb_call_int(call, 10, 1) && lb_call_int(call, 11, 1) && is_wanted(call, 1)) p = averaged(&c, &a, &p);
    put(&c, 1, &p);
    return chain_end(&c);
}

/* ---- an encoder layer --------------------------------------------------------------------------------------------------- */

enum encoder_args { GELU = 7, NORM_FIRST = 8, EPS = 9, NORM_1 = 10, NORM_2 = 12, FEED_1 = 14, FEED_2 = 16 };

static number_tensor norm_at(chain *c, const number_tensor *x, uint32_t weight)
{
    return norm(c, x, lb_call_tensor(c->call, weight), lb_call_tensor(c->call, weight + 1),
                lb_call_float(c->call, EPS, 1e-5));
}

static number_tensor feed_forward(chain *c, const number_tensor *x)
{
    number_tensor y = linear(c, x, lb_call_tensor(c->call, FEED_1), lb_call_tensor(c->call, FEED_1 + 1));
    y = activated(c, &y, lb_call_int(c->call, GELU, 0));
    return linear(c, &y, lb_call_tensor(c->call, FEED_2), lb_call_tensor(c->call, FEED_2 + 1));
}

static bool layer_fits(const lb_call *call, int64_t width)
{
    const lb_tensor *up = lb_call_tensor(call, FEED_1);
    const int64_t inner = up && up->layout.ndim == 2 ? up->layout.shape[0] : 0;
    return is_matrix(up, inner, width) && is_vector(lb_call_tensor(call, FEED_1 + 1), inner) &&
           is_matrix(lb_call_tensor(call, FEED_2), width, inner) &&
           is_vector(lb_call_tensor(call, FEED_2 + 1), width) && is_vector(lb_call_tensor(call, NORM_1), width) &&
           is_vector(lb_call_tensor(call, NORM_1 + 1), width) && is_vector(lb_call_tensor(call, NORM_2), width) &&
           is_vector(lb_call_tensor(call, NORM_2 + 1), width);
}

/* Args: src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, and as above; mask, mask_type. */
static lb_status layer_run(lb_call *call, bool twin)
{
    chain c = chain_begin(call, twin);
    attention a;
    if (!attention_of(&a, call, 1, 18, 19) || !layer_fits(call, a.heads * a.size))
        return refuse(&c, "an input and weights that do not fit each other");
    const bool first = lb_call_int(call, NORM_FIRST, 0);
    const number_tensor src = number_from(&c, lb_call_tensor(call, 0));
    const number_tensor in = first ? norm_at(&c, &src, NORM_1) : src;
    number_tensor p, y = attend(&c, &a, (number_tensor[]){in, in, in}, &p);
    y = sum(&c, &y, &src);
    if (!first) y = norm_at(&c, &y, NORM_1);
    const number_tensor between = first ? norm_at(&c, &y, NORM_2) : y;
    number_tensor out = feed_forward(&c, &between);
    out = sum(&c, &out, &y);
    if (!first) out = norm_at(&c, &out, NORM_2);
    put(&c, 0, &out);
    return chain_end(&c);
}

LB_WITH_TWIN(attention, attention_run(call, twin))
LB_WITH_TWIN(layer, layer_run(call, twin))

#define PROJECTIONS "qkv_weight! qkv_bias! proj_weight! proj_bias! "
const lb_op_row lb_rows_encoder[] = {
    {.name = "aten::_native_multi_head_attention",
     .args = "query! key! value! embed_dim num_head " PROJECTIONS "mask need_weights average_attn_weights mask_type",
     LB_COMPUTED_BY(attention),
     LB_SUMS(12, LB_TERMS(KEYS, 0)),
     .flags = LB_ROW_MATMUL | LB_ROW_REDUCTION,
     .kernels = "openblas",
     .samples = "encoder attention"},
    {.name = "aten::_transformer_encoder_layer_fwd",
     .args = "src! embed_dim num_heads " PROJECTIONS
             "use_gelu norm_first eps norm_weight_1! norm_bias_1! norm_weight_2! norm_bias_2! "
             "ffn_weight_1! ffn_bias_1! ffn_weight_2! ffn_bias_2! mask mask_type",
     LB_COMPUTED_BY(layer),
     LB_SUMS(12, LB_TERMS(FED, 14)),
     .flags = LB_ROW_MATMUL | LB_ROW_REDUCTION | LB_ROW_SQUARES,
     .kernels = "openblas",
     .samples = "encoder layer"},
    {NULL},
};
