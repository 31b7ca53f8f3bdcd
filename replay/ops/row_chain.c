/* Rows one after the other: see row_chain.h. */
#include "ops/row_chain.h"

#include "kernel/value_memory.h"

#include <stdlib.h>
#include <string.h>

lb_row_chain lb_row_chain_begin(lb_call *call, bool twin)
{
    const lb_tensor *x = lb_frame_arg_tensor(call, 0);
    const double factor = (double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call);
    lb_row_chain chain = {.call = call, .apart = *call, .twin = twin, .type = twin ? LB_F64 : call->results[0].dtype};
    chain.factor = factor;
    chain.apart.method.schedule = NULL;
    chain.unit = factor * (x->dtype == LB_F64 ? 0x1p-53 : 0x1p-24);
    chain.largest = lb_dtype_max_finite(x->dtype);
    chain.coarse = lb_frame_twin_rounding(call, 0);
    if (chain.coarse > 0) chain.least = 0.5 * lb_dtype_min_subnormal(x->dtype) / chain.unit;
    return chain;
}

lb_status lb_row_chain_end(lb_row_chain *chain)
{
    while (chain->n) free(chain->owned[--chain->n]);
    return chain->status;
}

bool lb_row_chain_ok(const lb_row_chain *chain)
{
    return chain->status == LB_OK;
}

lb_status lb_row_chain_refuse(lb_row_chain *chain, const char *what)
{
    chain->status = lb_fail(chain->call->err, LB_ERR_UNSUPPORTED, "%s: %s", chain->call->row->name, what);
    return lb_row_chain_end(chain);
}

/* ---- tensors on the way ------------------------------------------------------------------------------------------ */

lb_tensor lb_row_chain_fresh(lb_row_chain *chain, lb_dtype type, int ndim, const int64_t *shape)
{
    lb_tensor tensor = {.dtype = type, .layout = lb_layout_contiguous(ndim, shape)};
    const size_t bytes = lb_dtype_bytes(type, (size_t)lb_tensor_numel(&tensor)) + 8;
    if (!lb_row_chain_ok(chain)) return tensor;
    LB_CHECK(chain->n < LB_ROW_CHAIN_MOST);
    tensor.data = chain->owned[chain->n] = malloc(bytes);
    if (tensor.data)
        chain->n++;
    else
        chain->status = lb_fail(chain->call->err, LB_ERR_NOMEM, "%s: no memory on the way", chain->call->row->name);
    return tensor;
}

lb_row_chain_number lb_row_chain_number_of(lb_row_chain *chain, int ndim, const int64_t *shape)
{
    lb_row_chain_number x = {.value = lb_row_chain_fresh(chain, chain->type, ndim, shape)};
    if (chain->twin) x.error = lb_row_chain_fresh(chain, LB_F64, ndim, shape);
    return x;
}

lb_tensor lb_row_chain_seen_as(lb_tensor tensor, const lb_layout *layout, int64_t first)
{
    tensor.layout = *layout;
    if (tensor.data) tensor.data = (char *)tensor.data + lb_dtype_bytes(tensor.dtype, (size_t)first);
    return tensor;
}

lb_row_chain_number lb_row_chain_number_seen_as(lb_row_chain_number x, const lb_layout *layout)
{
    return (lb_row_chain_number){lb_row_chain_seen_as(x.value, layout, 0), lb_row_chain_seen_as(x.error, layout, 0)};
}

static lb_tensor transposed(lb_tensor tensor)
{
    lb_layout *layout = &tensor.layout;
    const int a = layout->ndim - 1, b = layout->ndim - 2;
    const int64_t shape = layout->shape[a], stride = layout->stride[a];
    layout->shape[a] = layout->shape[b], layout->stride[a] = layout->stride[b];
    layout->shape[b] = shape, layout->stride[b] = stride;
    return tensor;
}

lb_tensor lb_row_chain_part_of(const lb_tensor *tensor, int64_t part, int64_t parts)
{
    lb_layout layout = tensor->layout;
    layout.shape[0] /= parts;
    return lb_row_chain_seen_as(*tensor, &layout, part * layout.shape[0] * layout.stride[0]);
}

lb_row_chain_number lb_row_chain_number_from(lb_row_chain *chain, const lb_tensor *tensor)
{
    lb_row_chain_number x = {.value = *tensor};
    if (!chain->twin) return x;
    x = lb_row_chain_number_of(chain, tensor->layout.ndim, tensor->layout.shape);
    if (!lb_row_chain_ok(chain)) return x;
    lb_memory_tensor_copy(&x.value, tensor, NULL);
    memset(x.error.data, 0, (size_t)lb_tensor_numel(tensor) * sizeof(double));
    return x;
}

void lb_row_chain_run(lb_row_chain *chain, lb_call *as, lb_row_call *piece, bool twin)
{
    if (lb_row_chain_ok(chain)) chain->status = lb_row_call_run(as, piece, twin);
}

void lb_row_chain_add_magnitudes(lb_row_chain *chain, lb_tensor *a, const lb_tensor *b, double k)
{
    double *y = a->data;
    const double *x = b->data;
    for (int64_t i = 0, n = lb_tensor_numel(a); lb_row_chain_ok(chain) && i < n; i++) y[i] += k * fabs(x[i]);
}

lb_tensor lb_row_chain_mixed(lb_row_chain *chain, const lb_row_chain_number *x, double k, double m)
{
    lb_tensor tensor = lb_row_chain_fresh(chain, LB_F64, x->value.layout.ndim, x->value.layout.shape);
    for (int64_t i = 0, n = lb_tensor_numel(&tensor); lb_row_chain_ok(chain) && i < n; i++)
        ((double *)tensor.data)[i] = k * fabs(((double *)x->value.data)[i]) + m * ((double *)x->error.data)[i];
    return tensor;
}

double lb_row_chain_roundings(const lb_row_chain *chain, double n)
{
    return n / chain->factor;
}
double lb_row_chain_roundings_of_sum(const lb_row_chain *chain, int64_t terms)
{
    return lb_row_chain_roundings(chain, (double)terms + 2);
}

void lb_row_chain_hold(lb_row_chain *chain, lb_row_chain_number *x, double times)
{
    double *e = x->error.data;
    const double *v = x->value.data;
    for (int64_t i = 0, n = chain->twin ? lb_tensor_numel(&x->error) : 0; lb_row_chain_ok(chain) && i < n; i++) {
        e[i] += times * (chain->coarse * (fabs(v[i]) + chain->unit * e[i]) + chain->least);
        if (!(fabs(v[i]) + chain->unit * e[i] <= chain->largest)) e[i] = LB_ROW_CHAIN_UNKNOWN;
    }
}

/* ---- links of the chain ------------------------------------------------------------------------------------------ */

/* y = x W' + b into the value and the error of y. */
void lb_row_chain_linear_into(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *weight,
                              const lb_tensor *bias, lb_row_chain_number *y)
{
    lb_row_call call = {.row = "aten::linear",
                        .args = {lb_operand_tensor(&x->value), lb_operand_tensor(weight),
                                 bias ? lb_operand_tensor(bias) : lb_operand_none()},
                        .n_args = 3,
                        .results = {y->value},
                        .n_results = 1};
    lb_row_chain_run(chain, chain->call, &call, false);
    if (!chain->twin) return;
    const lb_tensor most =
        lb_row_chain_mixed(chain, x, lb_row_chain_roundings_of_sum(chain, weight->layout.shape[1]), 1);
    call.args[0] = lb_operand_tensor(&most), call.args[2] = lb_operand_none(), call.results[0] = y->error;
    lb_row_chain_run(chain, chain->call, &call, true);
}

lb_row_chain_number lb_row_chain_linear(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *weight,
                                        const lb_tensor *bias)
{
    int64_t shape[LB_MAX_DIMS];
    const lb_layout *in = &x->value.layout;
    memcpy(shape, in->shape, sizeof shape);
    shape[in->ndim - 1] = weight->layout.shape[0];
    lb_row_chain_number y = lb_row_chain_number_of(chain, in->ndim, shape);
    lb_row_chain_linear_into(chain, x, weight, bias, &y);
    if (chain->twin && bias) lb_row_chain_add_magnitudes(chain, &y.error, &y.value, lb_row_chain_roundings(chain, 2));
    lb_row_chain_hold(chain, &y, bias ? 2 : 1);
    return y;
}

static void product_into(lb_row_chain *chain, const lb_tensor *a, const lb_tensor *b, const lb_tensor *y)
{
    lb_row_call call = {.row = "aten::bmm",
                        .args = {lb_operand_tensor(a), lb_operand_tensor(b)},
                        .n_args = 2,
                        .results = {*y},
                        .n_results = 1};
    lb_row_chain_run(chain, chain->call, &call, false);
}

/* y = a b (b transposed: a b'), whose error is |a| (its roundings |b| + e_b) + e_a (|b| + unit e_b). */
void lb_row_chain_product(lb_row_chain *chain, const lb_row_chain_number *a, const lb_row_chain_number *b, bool turned,
                          lb_row_chain_number *y)
{
    const lb_tensor right = turned ? transposed(b->value) : b->value;
    product_into(chain, &a->value, &right, &y->value);
    if (!chain->twin) return;
    const double own = lb_row_chain_roundings_of_sum(chain, a->value.layout.shape[a->value.layout.ndim - 1]);
    lb_tensor most = lb_row_chain_mixed(chain, b, own, 1), more = lb_row_chain_mixed(chain, b, 1, chain->unit),
              left = lb_row_chain_mixed(chain, a, 1, 0);
    lb_tensor part = lb_row_chain_fresh(chain, LB_F64, y->error.layout.ndim, y->error.layout.shape);
    part.layout = y->error.layout;
    if (turned) most = transposed(most), more = transposed(more);
    product_into(chain, &left, &most, &y->error);
    product_into(chain, &a->error, &more, &part);
    lb_row_chain_add_magnitudes(chain, &y->error, &part, 1);
    lb_row_chain_hold(chain, y, 1);
}

lb_row_chain_number lb_row_chain_sum(lb_row_chain *chain, const lb_row_chain_number *a, const lb_row_chain_number *b)
{
    lb_row_chain_number y = lb_row_chain_number_of(chain, a->value.layout.ndim, a->value.layout.shape);
    lb_row_call call = {.row = "aten::add.Tensor",
                        .args = {lb_operand_tensor(&a->value), lb_operand_tensor(&b->value), lb_operand_int(1)},
                        .n_args = 3,
                        .results = {y.value},
                        .n_results = 1};
    lb_row_chain_run(chain, &chain->apart, &call, false);
    if (!chain->twin || !lb_row_chain_ok(chain)) return y;
    memcpy(y.error.data, a->error.data, (size_t)lb_tensor_numel(&y.error) * sizeof(double));
    lb_row_chain_add_magnitudes(chain, &y.error, &b->error, 1);
    lb_row_chain_add_magnitudes(chain, &y.error, &y.value, lb_row_chain_roundings(chain, 2));
    lb_row_chain_hold(chain, &y, 1);
    return y;
}

/* What the row of `piece` says of its own roundings, whose result is y, into y's error. */
static void own_errors(lb_row_chain *chain, lb_row_call *piece, lb_row_chain_number *y, double n)
{
    double *error = y->error.data;
    piece->results[0] = y->error;
    lb_row_chain_run(chain, &chain->apart, piece, true);
    for (int64_t i = 0, count = lb_tensor_numel(&y->error); lb_row_chain_ok(chain) && i < count; i++)
        error[i] *= lb_row_chain_roundings(chain, n);
}

/* An error e of x is one of |gamma| rstd (e + mean e + |z| mean |z| e) of y, z = (x - mean) rstd. */
static void norm_errors(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *gamma, double eps,
                        lb_tensor *error)
{
    const int64_t size = x->value.layout.shape[x->value.layout.ndim - 1], n = lb_tensor_numel(&x->value);
    const lb_tensor weight = lb_row_chain_number_from(chain, gamma).value;
    for (int64_t i = 0; lb_row_chain_ok(chain) && i < n; i += size) {
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

lb_row_chain_number lb_row_chain_norm(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *weight,
                                      const lb_tensor *bias, double eps)
{
    const lb_layout *in = &x->value.layout;
    const int64_t size = in->shape[in->ndim - 1];
    const double size_as_real = (double)size;
    lb_row_chain_number y = lb_row_chain_number_of(chain, in->ndim, in->shape);
    lb_row_call call = {.row = "aten::native_layer_norm",
                        .args = {lb_operand_tensor(&x->value), lb_operand_numbers(&size, &size_as_real, 1),
                                 lb_operand_tensor(weight), lb_operand_tensor(bias), lb_operand_real(eps)},
                        .n_args = 5,
                        .results = {y.value},
                        .n_results = 3};
    lb_row_chain_run(chain, &chain->apart, &call, false);
    if (!chain->twin) return y;
    own_errors(chain, &call, &y, 8 + size_as_real);
    norm_errors(chain, x, weight, eps, &y.error);
    lb_row_chain_hold(chain, &y, 1);
    return y;
}

#define GELU_STEEPEST 1.13 /* the largest slope of gelu */

lb_row_chain_number lb_row_chain_activated(lb_row_chain *chain, const lb_row_chain_number *x, bool gelu)
{
    lb_row_chain_number y = lb_row_chain_number_of(chain, x->value.layout.ndim, x->value.layout.shape);
    lb_row_call call = {.row = gelu ? "aten::gelu" : "aten::relu",
                        .args = {lb_operand_tensor(&x->value),
                                 {.tag = LB_OPERAND_STRING, .string = chain->call->cuda ? "tanh" : "none"}},
                        .n_args = gelu ? 2 : 1,
                        .results = {y.value},
                        .n_results = 1};
    lb_row_chain_run(chain, &chain->apart, &call, false);
    if (!chain->twin) return y;
    own_errors(chain, &call, &y, gelu ? 8 : 0);
    lb_row_chain_add_magnitudes(chain, &y.error, &x->error, gelu ? GELU_STEEPEST : 1);
    lb_row_chain_hold(chain, &y, 1);
    return y;
}
