/* Matrix products: mm, bmm, addmm and their kin, grouped products, triangular solves.
 *
 * The default order is acc = fma(a[k], b[k], acc), k ascending, in f32 (f64), rounded once. A schedule adds up products
 * instead (each rounded), but blocked and splitk, which chain fma inside their blocks. `accumulate` rounds after every
 * fma. "openblas" is whatever OpenBLAS does on this machine. */
#include "ops/matrices.h"
#include "kernel/complex_rows.h"
#include "orders/tensor_core.h"

#include <math.h>
#include <string.h>

static lb_status product(lb_call *call, uint32_t a, uint32_t b, bool twin)
{
    lb_matrices matrices;
    if (lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, a), lb_frame_arg_tensor(call, b), twin)) {
        void *c = lb_frame_output(&matrices.frame, 0, matrices.batch * matrices.shape.m * matrices.shape.n);
        if (c) lb_matrices_multiply(&matrices, c);
    }
    return lb_frame_end(&matrices.frame);
}

LB_WITH_TWIN(mm, product(call, 0, 1, twin))

/* What a product and what it is added to are multiplied with. */
typedef struct factors {
    double alpha, beta;
} factors;

/* c = beta * self + alpha * c, elementwise with self broadcast to the result; beta 0 leaves self unread. */
static void blend(lb_frame *frame, const lb_tensor *self, void *c, const lb_layout *shape, factors factors, bool twin)
{
    double alpha = factors.alpha, beta = factors.beta;
    lb_tensor wide = *self;
    wide.layout = *shape;
    for (int d = 0; d < shape->ndim; d++) {
        int own = d - (shape->ndim - self->layout.ndim);
        wide.layout.stride[d] = own < 0 || self->layout.shape[own] == 1 ? 0 : self->layout.stride[own];
    }
    if (twin) alpha = fabs(alpha), beta = fabs(beta);
    const void *x = beta != 0 ? lb_matrices_reals(frame, &wide, twin) : NULL;
    int64_t n = lb_layout_numel(shape);
    for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++) {
        if (frame->wide) {
            double *y = (double *)c + i;
            if (alpha != 1) *y *= alpha;
            if (x) *y += beta * ((const double *)x)[i];
        } else {
            float *y = (float *)c + i;
            if (alpha != 1) *y *= (float)alpha;
            if (x) *y += (float)beta * ((const float *)x)[i];
        }
    }
}

/* Args: self, a, b, then from `scalars` on beta, alpha. */
static lb_status add_product(lb_call *call, uint32_t scalars, bool twin)
{
    lb_matrices matrices;
    if (lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, 1), lb_frame_arg_tensor(call, 2), twin)) {
        bool flat = lb_frame_arg_tensor(call, 1)->layout.ndim == 2;
        int64_t dims[3] = {matrices.batch, matrices.shape.m, matrices.shape.n},
                n = matrices.batch * matrices.shape.m * matrices.shape.n;
        lb_layout shape = lb_layout_contiguous(flat ? 2 : 3, dims + flat);
        void *y = lb_frame_output(&matrices.frame, 0, n);
        if (y) lb_matrices_multiply(&matrices, y);
        if (y)
            blend(&matrices.frame, lb_frame_arg_tensor(call, 0), y, &shape,
                  (factors){lb_frame_arg_float(call, scalars + 1, 1), lb_frame_arg_float(call, scalars, 1)}, twin);
    }
    return lb_frame_end(&matrices.frame);
}

/* One product after the other is added to the result, which is rounded each time. */
static lb_status addbmm_run(lb_call *call, bool twin)
{
    lb_matrices matrices;
    if (lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, 1), lb_frame_arg_tensor(call, 2), twin)) {
        int64_t dims[2] = {matrices.shape.m, matrices.shape.n}, n = matrices.shape.m * matrices.shape.n;
        lb_layout shape = lb_layout_contiguous(2, dims);
        void *c = lb_frame_reals(&matrices.frame, matrices.batch * n), *y = lb_frame_output(&matrices.frame, 0, n);
        double alpha = lb_frame_arg_float(call, 4, 1), scale = twin ? lb_frame_twin_scale(call, 1) : 1;
        if (y) lb_matrices_multiply(&matrices, c);
        if (y) {
            memset(y, 0, (size_t)n * (matrices.frame.wide ? 8 : 4)); /* 0 * alpha + beta * self */
            blend(&matrices.frame, lb_frame_arg_tensor(call, 0), y, &shape,
                  (factors){1, lb_frame_arg_float(call, 3, 1)}, twin);
        }
        for (int64_t i = 0; twin && lb_frame_ok(&matrices.frame) && i < n; i++)
            ((double *)y)[i] *= scale; /* is rounded as often */
        for (int64_t b = 0; lb_frame_ok(&matrices.frame) && b < matrices.batch; b++) {
            for (int64_t i = 0; i < n; i++) {
                if (matrices.frame.wide)
                    ((double *)y)[i] += (twin ? fabs(alpha) : alpha) * scale * ((double *)c)[b * n + i];
                else
                    ((float *)y)[i] += (float)alpha * ((float *)c)[b * n + i];
            }
            if (!twin) lb_frame_round(&matrices.frame, y, n, call->results[0].dtype);
        }
    }
    return lb_frame_end(&matrices.frame);
}

LB_WITH_TWIN(addmm, add_product(call, 3, twin))
LB_WITH_TWIN(addmm_typed, add_product(call, 4, twin))
LB_WITH_TWIN(addbmm, addbmm_run(call, twin))

/* ---- vectors and broadcasting ------------------------------------------------------------------------------------ */

static lb_tensor as_matrix(const lb_tensor *vector, bool column)
{
    lb_tensor matrix = *vector;
    matrix.layout.ndim = 2;
    matrix.layout.shape[column ? 1 : 0] = 1;
    matrix.layout.stride[column ? 1 : 0] = 0;
    matrix.layout.shape[column ? 0 : 1] = vector->layout.shape[0];
    matrix.layout.stride[column ? 0 : 1] = vector->layout.stride[0];
    return matrix;
}

/* torch.matmul: vectors become matrices, leading dimensions broadcast, result lies dense as (batch…, m, n). */
static lb_status matmul_of(lb_call *call, const lb_tensor *self, const lb_tensor *other, bool twin)
{
    lb_tensor a = self->layout.ndim == 1 ? as_matrix(self, false) : *self;
    lb_tensor b = other->layout.ndim == 1 ? as_matrix(other, true) : *other;
    if (!self->layout.ndim || !other->layout.ndim)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: no product with a 0-dim tensor", call->row->name);
    int ndim = a.layout.ndim > b.layout.ndim ? a.layout.ndim : b.layout.ndim;
    lb_tensor *both[2] = {&a, &b}, wide[2];
    for (int i = 0; i < 2; i++) {
        const lb_layout *l = &both[i]->layout, *o = &both[1 - i]->layout;
        wide[i] = *both[i];
        wide[i].layout.ndim = ndim;
        for (int d = 0; d < ndim; d++) {
            int own = d - (ndim - l->ndim), theirs = d - (ndim - o->ndim);
            int64_t size = own >= 0 ? l->shape[own] : 1, their = theirs >= 0 ? o->shape[theirs] : 1;
            bool spread = d < ndim - 2 && size == 1;
            wide[i].layout.shape[d] = spread ? their : size;
            wide[i].layout.stride[d] = spread || own < 0 ? 0 : l->stride[own];
        }
    }
    lb_matrices matrices;
    if (lb_matrices_begin(&matrices, call, &wide[0], &wide[1], twin)) {
        void *c = lb_frame_output(&matrices.frame, 0, matrices.batch * matrices.shape.m * matrices.shape.n);
        if (c) lb_matrices_multiply(&matrices, c);
    }
    return lb_frame_end(&matrices.frame);
}

LB_WITH_TWIN(matmul, matmul_of(call, lb_frame_arg_tensor(call, 0), lb_frame_arg_tensor(call, 1), twin))

/* Args: self, matrix, vector, beta, alpha. */
static lb_status addmv_run(lb_call *call, bool twin)
{
    lb_matrices matrices;
    lb_tensor column = as_matrix(lb_frame_arg_tensor(call, 2), true);
    if (lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, 1), &column, twin)) {
        void *c = lb_frame_reals(&matrices.frame, matrices.shape.m),
             *y = lb_frame_output(&matrices.frame, 0, matrices.shape.m);
        lb_layout shape = lb_layout_contiguous(1, &matrices.shape.m);
        double alpha = lb_frame_arg_float(call, 4, 1),
               once = 1 + lb_frame_twin_rounding(call, 1); /* of the product, before self is added */
        if (y) {
            lb_matrices_multiply(&matrices, c);
            /* torch rounds alpha * vector to 16 bits first */
            if (twin) alpha = alpha != 1 ? alpha * lb_frame_twin_scale(call, 1) : once;
            blend(&matrices.frame, lb_frame_arg_tensor(call, 0), c, &shape,
                  (factors){alpha, lb_frame_arg_float(call, 3, 1)}, twin);
            memcpy(y, c, (size_t)matrices.shape.m * (matrices.frame.wide ? 8 : 4));
        }
    }
    return lb_frame_end(&matrices.frame);
}

LB_WITH_TWIN(addmv, addmv_run(call, twin))

/* input (…, k), weight (n, k), bias (n): the bias is added before the one rounding, but for an input of one dimension,
 * or of more than two that are not dense, after it. */
static lb_status linear_run(lb_call *call, bool twin)
{
    const lb_tensor *weight = lb_frame_arg_tensor(call, 1), *bias = lb_frame_arg_tensor(call, 2);
    lb_tensor input = *lb_frame_arg_tensor(call, 0);
    if (weight->layout.ndim != 2)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "linear: a weight that is not a matrix");
    lb_frame frame = lb_frame_begin(call);
    lb_product product = {.n = weight->layout.shape[0], .k = weight->layout.shape[1]};
    product.m = product.k ? lb_tensor_numel(&input) / product.k : 0;
    lb_matrix a = {input.data, input.dtype, (ptrdiff_t)product.k, 1}, b = lb_matrix_at(weight, 2, 0);
    const ptrdiff_t along = b.row_stride;
    b.row_stride = b.col_stride, b.col_stride = along; /* the weight is (n, k) */
    if (!lb_layout_is_contiguous(&input.layout)) a.data = lb_matrices_reals(&frame, &input, twin), a.dtype = frame.type;
    const void *add = bias ? lb_matrices_reals(&frame, bias, twin) : NULL;
    void *y = lb_frame_output(&frame, 0, product.m * product.n);
    if (lb_frame_ok(&frame)) {
        const lb_matrix_pair operands = {.a = a, .b = b, .absolute = twin};
        const lb_status status = lb_product_matrices(&product, frame.type, &call->method, &operands, y);
        if (status != LB_OK) lb_matrices_failed(&frame, status);
    }
    bool apart = input.layout.ndim == 1 || (input.layout.ndim > 2 && !lb_layout_is_contiguous(&input.layout));
    if (add && apart && lb_frame_ok(&frame) && !twin)
        lb_frame_round(&frame, y, product.m * product.n, call->results[0].dtype);
    double scale = twin && add ? 1 + lb_frame_twin_rounding(call, 0) : 1;
    for (int64_t i = 0; add && lb_frame_ok(&frame) && i < product.m * product.n; i++) {
        if (frame.wide)
            ((double *)y)[i] = ((double *)y)[i] * scale + ((const double *)add)[i % product.n];
        else
            ((float *)y)[i] += ((const float *)add)[i % product.n];
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(linear, linear_run(call, twin))

/* ---- 8 bits ------------------------------------------------------------------------------------------------------ */

/* int8 times int8 in int32: exact, as f64 holds every sum. */
static lb_status int_mm(lb_call *call)
{
    const lb_method plain = {0};
    lb_matrices matrices;
    if (!lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, 0), lb_frame_arg_tensor(call, 1), false))
        return lb_frame_end(&matrices.frame);
    lb_frame *frame = &matrices.frame;
    const int64_t n = matrices.shape.m * matrices.shape.n;
    double *sums = lb_frame_scratch(frame, (size_t)n * 8);
    int64_t *y = lb_frame_output_integers(frame, 0, n);
    const lb_matrix_pair operands = {.a = lb_matrix_at(&matrices.a, 2, 0), .b = lb_matrix_at(&matrices.b, 2, 0)};
    if (lb_frame_ok(frame)) {
        const lb_status status = lb_product_matrices(&matrices.shape, LB_F64, &plain, &operands, sums);
        if (status != LB_OK) lb_matrices_failed(frame, status);
    }
    for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++) y[i] = (int64_t)sums[i];
    return lb_frame_end(frame);
}

/* Args: input (m, k), weights (n, k) in 8 bits, scales (n): each sum is scaled. */
static lb_status int8_weights_run(lb_call *call, bool twin)
{
    const lb_tensor *weight = lb_frame_arg_tensor(call, 1), *scales = lb_frame_arg_tensor(call, 2);
    if (weight->layout.ndim != 2 || lb_tensor_numel(scales) != weight->layout.shape[0])
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: scales that are not by row of the weights", call->row->name);
    const lb_tensor turned = lb_frame_dim_last(weight, 0);
    lb_matrices matrices;
    if (!lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, 0), &turned, twin))
        return lb_frame_end(&matrices.frame);
    lb_frame *frame = &matrices.frame;
    const int64_t n = matrices.shape.n, all = matrices.shape.m * n;
    const void *scale = lb_matrices_reals(frame, scales, twin);
    void *y = lb_frame_output(frame, 0, all);
    if (y) lb_matrices_multiply(&matrices, y);
    for (int64_t i = 0; lb_frame_ok(frame) && i < all; i++)
        lb_frame_set(frame, y, i, lb_frame_get(frame, y, i) * lb_frame_get(frame, scale, i % n));
    return lb_frame_end(frame);
}

LB_WITH_TWIN(int8_weights, int8_weights_run(call, twin))

/* ---- grouped ----------------------------------------------------------------------------------------------------- */

/* Rows (or columns, or the summed dimension) of a 2-d operand are cut at the offsets; a 3-d operand has one matrix per
 * group. What lies past the last offset is undefined in torch, zero here. */
static lb_status grouped_run(lb_call *call, bool twin)
{
    const lb_tensor *a = lb_frame_arg_tensor(call, 0), *b = lb_frame_arg_tensor(call, 1),
                    *offsets = lb_frame_arg_tensor(call, 2);
    if (lb_frame_arg_given(call, 3))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "_grouped_mm: a bias is not supported");
    if (!offsets) return product(call, 0, 1, twin);
    lb_frame frame = lb_frame_begin(call);
    bool a2 = a->layout.ndim == 2, b2 = b->layout.ndim == 2;
    int64_t groups = lb_tensor_numel(offsets), size = frame.wide ? 8 : 4, n_out = lb_tensor_numel(&call->results[0]);
    const int64_t *end = lb_frame_integers(&frame, offsets);
    char *y = lb_frame_output(&frame, 0, n_out);
    if (lb_frame_ok(&frame)) memset(y, 0, (size_t)(n_out * size));
    int64_t rows = a->layout.shape[a->layout.ndim - 2], inner = a->layout.shape[a->layout.ndim - 1];
    int64_t columns = b->layout.shape[b->layout.ndim - 1], cut = a2 ? (b2 ? inner : rows) : columns, start = 0;
    for (int64_t g = 0; lb_frame_ok(&frame) && g < groups; start = end[g++]) {
        if (end[g] < start || end[g] > cut) {
            lb_frame_fail(&frame, LB_ERR_INVALID, "offsets do not ascend inside the operand");
            break;
        }
        int64_t length = end[g] - start;
        lb_product s = {.m = a2 && !b2 ? length : rows, .n = a2 ? columns : length, .k = a2 && b2 ? length : inner};
        lb_tensor ga = *a, gb = *b;
        ga.layout = lb_layout_contiguous(2, (int64_t[]){s.m, s.k}),
        gb.layout = lb_layout_contiguous(2, (int64_t[]){s.k, s.n});
        memcpy(ga.layout.stride, a->layout.stride + (a2 ? 0 : 1), 16);
        memcpy(gb.layout.stride, b->layout.stride + (b2 ? 0 : 1), 16);
        int64_t at_a = a2 ? start * a->layout.stride[b2 ? 1 : 0] : g * a->layout.stride[0];
        int64_t at_b = b2 ? start * b->layout.stride[a2 ? 0 : 1] : g * b->layout.stride[0];
        ga.data = (char *)a->data + at_a * (int64_t)lb_dtype_bits(a->dtype) / 8;
        gb.data = (char *)b->data + at_b * (int64_t)lb_dtype_bits(b->dtype) / 8;
        lb_frame part = lb_frame_begin(call); /* the result of one group */
        const lb_matrix_pair operands = {.a = lb_matrix_at(&ga, 2, 0), .b = lb_matrix_at(&gb, 2, 0), .absolute = twin};
        char *c = lb_frame_reals(&part, s.m * s.n);
        if (lb_frame_ok(&part)) {
            const lb_status status = lb_product_matrices(&s, frame.type, &call->method, &operands, c);
            if (status != LB_OK) lb_matrices_failed(&part, status);
        }
        if (lb_frame_ok(&part)) {
            for (int64_t i = 0; i < s.m; i++) {
                int64_t to = a2 && b2 ? (g * s.m + i) * s.n : a2 ? (start + i) * s.n : i * columns + start;
                memcpy(y + to * size, c + i * s.n * size, (size_t)(s.n * size));
            }
        }
        lb_status status = lb_frame_end(&part);
        if (status != LB_OK) frame.status = status;
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(grouped_mm, grouped_run(call, twin))

/* Args: input (T, D), experts' matrices (E, N, D), each token's experts (M, A), three tensors by which a GPU's blocks
 * are filled, how many experts read one row of the input. The result (M, A, N): row i of it is row i / topk of the
 * input times the matrix of its expert, or 0 where there is no such expert. Definition:
 * foundation-model-stack/foundation-model-stack fms/triton/pytorch_ops.py, moe_mm_cpu. */
static lb_status expert_rows_run(lb_call *call, bool twin)
{
    const lb_tensor *x = lb_frame_arg_tensor(call, 0), *w = lb_frame_arg_tensor(call, 1),
                    *ids = lb_frame_arg_tensor(call, 2);
    const int64_t topk = lb_frame_arg_int(call, 6, 1);
    if (!x || !w || !ids) return lb_fail(call->err, LB_ERR_INVALID, "moe_mm: a tensor is missing");
    if (x->layout.ndim != 2 || w->layout.ndim != 3 || x->layout.shape[1] != w->layout.shape[2] || topk < 1 ||
        x->layout.shape[0] * topk != lb_tensor_numel(ids))
        return lb_fail(call->err, LB_ERR_INVALID, "moe_mm: an input, matrices and experts of other sizes");
    lb_frame frame = lb_frame_begin(call);
    const int64_t rows = lb_tensor_numel(ids), experts = w->layout.shape[0], size = frame.wide ? 8 : 4;
    const lb_product one = {.m = 1, .n = w->layout.shape[1], .k = w->layout.shape[2]};
    const int64_t *expert = lb_frame_integers(&frame, ids);
    char *y = lb_frame_output(&frame, 0, rows * one.n);
    if (lb_frame_ok(&frame)) memset(y, 0, (size_t)(rows * one.n * size));
    for (int64_t i = 0; lb_frame_ok(&frame) && i < rows; i++) {
        lb_tensor row = *x, matrix = *w;
        if (expert[i] < 0 || expert[i] >= experts) continue;
        row.layout = lb_layout_contiguous(2, (int64_t[]){1, one.k}), row.layout.stride[1] = x->layout.stride[1];
        matrix.layout = lb_layout_contiguous(2, (int64_t[]){one.k, one.n});
        matrix.layout.stride[0] = w->layout.stride[2], matrix.layout.stride[1] = w->layout.stride[1];
        row.data = (char *)x->data + i / topk * x->layout.stride[0] * (int64_t)lb_dtype_bits(x->dtype) / 8;
        matrix.data = (char *)w->data + expert[i] * w->layout.stride[0] * (int64_t)lb_dtype_bits(w->dtype) / 8;
        const lb_matrix_pair operands = {
            .a = lb_matrix_at(&row, 2, 0), .b = lb_matrix_at(&matrix, 2, 0), .absolute = twin};
        const lb_status status = lb_product_matrices(&one, frame.type, &call->method, &operands, y + i * one.n * size);
        if (status != LB_OK) lb_matrices_failed(&frame, status);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(expert_rows, expert_rows_run(call, twin))

/* ---- triangular systems ------------------------------------------------------------------------------------------ */

/* a[i, j] of a dense n * n matrix seen so that row r only needs rows before it: `flip` turns upper into lower. */
typedef struct triangle {
    const lb_frame *f;
    const void *a;
    int64_t n;
    bool flip, turn, unit;
} triangle;

static double entry(const triangle *triangle, int64_t i, int64_t j)
{
    if (triangle->flip) i = triangle->n - 1 - i, j = triangle->n - 1 - j;
    return lb_frame_get(triangle->f, triangle->a, triangle->turn ? j * triangle->n + i : i * triangle->n + j);
}

/* x_i = (b_i - sum a_ij x_j) / a_ii, each operation rounded. The twin is the error recursion
 * e_i = (|b_i| + sum |a_ij| (|x_j| + e_j)) / |a_ii| + |x_i|. */
static void solve_column(const triangle *triangle, double *x, double *e)
{
    bool wide = triangle->f->wide;
    for (int64_t i = 0; i < triangle->n; i++) {
        double sum = x[i], size = fabs(x[i]);
        for (int64_t j = 0; j < i; j++) {
            double a = entry(triangle, i, j), term = a * x[j];
            if (!wide) term = (float)term;
            sum -= term;
            if (!wide) sum = (float)sum;
            if (e) size += fabs(a) * (fabs(x[j]) + e[j]);
        }
        double pivot = triangle->unit ? 1 : entry(triangle, i, i);
        x[i] = sum / pivot;
        if (!wide) x[i] = (float)x[i];
        if (e) e[i] = size / fabs(pivot) + fabs(x[i]);
    }
}

/* Args: A, B, upper, left, unitriangular. A X = B, or X A = B as A' X' = B'. Leading dimensions broadcast. */
static lb_status solve_run(lb_call *call, bool twin)
{
    bool upper = lb_frame_arg_int(call, 2, 0), left = lb_frame_arg_int(call, 3, 1), unit = lb_frame_arg_int(call, 4, 0);
    const lb_layout *shape = &call->results[0].layout;
    int ndim = shape->ndim;
    lb_tensor a = *lb_frame_arg_tensor(call, 0), b = *lb_frame_arg_tensor(call, 1);
    lb_tensor *both[2] = {&a, &b};
    int64_t n = a.layout.shape[a.layout.ndim - 1];
    for (int k = 0; k < 2; k++) { /* broadcast to the batch of the result */
        lb_layout wide = *shape, *own = &both[k]->layout;
        for (int d = 0; d < ndim; d++) {
            int from = d - (ndim - own->ndim);
            if (d >= ndim - 2) wide.shape[d] = own->shape[from];
            wide.stride[d] = from < 0 || (d < ndim - 2 && own->shape[from] == 1) ? 0 : own->stride[from];
        }
        *own = wide;
    }
    lb_frame frame = lb_frame_begin(call);
    const void *matrix = lb_frame_tensor(&frame, &a), *right = lb_frame_tensor(&frame, &b);
    int64_t rows = shape->shape[ndim - 2], columns = shape->shape[ndim - 1], numel = lb_layout_numel(shape);
    void *y = lb_frame_output(&frame, 0, numel);
    double *x = lb_frame_scratch(&frame, (size_t)n * 8), *e = lb_frame_scratch(&frame, (size_t)n * 8);
    int64_t systems = left ? columns : rows, batches = numel ? numel / (rows * columns) : 0, size = frame.wide ? 8 : 4;
    for (int64_t s = 0; lb_frame_ok(&frame) && s < batches * systems; s++) {
        int64_t batch = s / systems, k = s % systems, base = batch * rows * columns;
        bool flip = upper == left;
        triangle triangle = {&frame, (const char *)matrix + batch * n * n * size, n, flip, !left, unit};
        for (int64_t i = 0; i < n; i++) {
            int64_t at = flip ? n - 1 - i : i;
            x[i] = lb_frame_get(&frame, right, base + (left ? at * columns + k : k * columns + at));
        }
        solve_column(&triangle, x, twin ? e : NULL);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = flip ? n - 1 - i : i, to = base + (left ? at * columns + k : k * columns + at);
            if (frame.wide)
                ((double *)y)[to] = twin ? e[i] : x[i];
            else
                ((float *)y)[to] = (float)x[i];
        }
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(solve_triangular, solve_run(call, twin))

#define FACTORS(A, SUM_A, B, SUM_B) {.a = A, .sum_a = SUM_A, .b = B, .sum_b = SUM_B}
#define NO_FACTORS {0}
#define PRODUCT(NAME, ARGS, KERNEL, ROUNDINGS, TERMS, ITS_FACTORS, SAMPLES)                                            \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(KERNEL),                                                                                           \
     LB_SUMS(ROUNDINGS, TERMS),                                                                                        \
     .flags = LB_ROW_MATMUL,                                                                                           \
     .factors = ITS_FACTORS,                                                                                           \
     .kernels = "openblas " LB_TENSOR_CORES,                                                                           \
     .samples = SAMPLES}
#define OF_TWO(NAME)                                                                                                   \
    {.name = "aten::" NAME,                                                                                            \
     .args = "self! mat2!",                                                                                            \
     LB_COMPUTED_BY(mm),                                                                                               \
     LB_SUMS(1, LB_TERMS(INNER, 0)),                                                                                   \
     .flags = LB_ROW_MATMUL,                                                                                           \
     .factors = FACTORS(0, 1, 1, 2),                                                                                   \
     .kernels = "openblas " LB_TENSOR_CORES,                                                                           \
     .samples = NAME,                                                                                                  \
     .complex = &lb_complex_matrices}
const lb_op_row lb_rows_matmul[] = {
    OF_TWO("mm"),
    OF_TWO("bmm"),
    PRODUCT("addmm", "self! mat1! mat2! beta alpha", addmm, 4, LB_TERMS(INNER, 1), FACTORS(1, 1, 2, 2), "addmm"),
    PRODUCT("baddbmm", "self! batch1! batch2! beta alpha", addmm, 4, LB_TERMS(INNER, 1), FACTORS(1, 1, 2, 2),
            "baddbmm"),
    /* results wider than the factors, which CUDA has */
    PRODUCT("mm.dtype", "self! mat2! out_dtype", mm, 1, LB_TERMS(INNER, 0), FACTORS(0, 1, 1, 2), "mm typed"),
    PRODUCT("bmm.dtype", "self! mat2! out_dtype", mm, 1, LB_TERMS(INNER, 0), FACTORS(0, 1, 1, 2), "bmm typed"),
    PRODUCT("addmm.dtype", "self! mat1! mat2! out_dtype beta alpha", addmm_typed, 4, LB_TERMS(INNER, 1),
            FACTORS(1, 1, 2, 2), "addmm typed"),
    PRODUCT("baddbmm.dtype", "self! batch1! batch2! out_dtype beta alpha", addmm_typed, 4, LB_TERMS(INNER, 1),
            FACTORS(1, 1, 2, 2), "baddbmm typed"),
    PRODUCT("addbmm", "self! batch1! batch2! beta alpha", addbmm, 4, LB_TERMS(ELEMENTS, 1), FACTORS(1, 1, 2, 2),
            "addbmm"),
    PRODUCT("addmv", "self! mat! vec! beta alpha", addmv, 4, LB_TERMS(INNER, 1), FACTORS(1, 1, 2, 1), "addmv"),
    PRODUCT("mv", "self! vec!", matmul, 1, LB_TERMS(INNER, 0), FACTORS(0, 1, 1, 1), "mv"),
    PRODUCT("dot", "self! tensor!", matmul, 1, LB_TERMS(ELEMENTS, 0), FACTORS(0, 1, 1, 1), "dot"),
    PRODUCT("vdot", "self! other!", matmul, 1, LB_TERMS(ELEMENTS, 0), NO_FACTORS, "dot"),
    PRODUCT("matmul", "self! other!", matmul, 1, LB_TERMS(INNER, 0), FACTORS(0, 1, 1, 2), "matmul"),
    PRODUCT("linear", "input! weight! bias", linear, 2, LB_TERMS(INNER, 0), FACTORS(0, 1, 1, 1), "linear"),
    {.name = "aten::_int_mm",
     .args = "self! mat2!",
     .kernel = int_mm,
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,
     .samples = "int_mm"},
    PRODUCT("_weight_int8pack_mm", "self! mat2! scales!", int8_weights, 3, LB_TERMS(INNER, 0), FACTORS(0, 1, 1, 1),
            "int8_weights"),
    PRODUCT("_grouped_mm", "self! mat2! offs bias out_dtype", grouped_mm, 1, LB_TERMS(ELEMENTS, 0), FACTORS(0, 1, 1, 2),
            "grouped_mm"),
    {.name = "moe::moe_mm",
     .args = "input! moe_matrix! token_expert_mapping padded_token_ids_per_block expert_block_mapping "
             "total_padded_tokens topk padding_size",
     LB_COMPUTED_BY(expert_rows),
     LB_SUMS(1, LB_TERMS(INNER, 0)),
     .flags = LB_ROW_MATMUL,
     .kernels = "openblas " LB_TENSOR_CORES,
     .samples = "custom"},
    {.name = "aten::linalg_solve_triangular",
     .args = "self! B! upper left unitriangular",
     LB_COMPUTED_BY(solve_triangular),
     LB_SUMS(3, LB_TERMS(INNER, 0)),
     .samples = "solve_triangular"},
    {NULL},
};
