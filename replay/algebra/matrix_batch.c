/* Batches of matrices in f64: see matrix_batch.h. */
#include "algebra/matrix_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

lb_matrix_batch lb_matrix_batch_begin(lb_call *call, uint32_t first, int core)
{
    lb_matrix_batch batch = {.call = call, .b = -1, .count = 1, .status = LB_OK};
    while (first + 1 < call->n_results && !call->results[first].data) first++;
    const lb_layout *layout = &call->results[first].layout;
    batch.n_dims = layout->ndim > core ? layout->ndim - core : 0;
    for (int d = 0; d < batch.n_dims; d++) batch.shape[d] = layout->shape[d], batch.count *= layout->shape[d];
    if (call->method.kernel || call->method.compute || call->method.schedule || call->method.accumulate)
        lb_matrix_batch_refuse(&batch, "computed in f64 alone");
    if (layout->ndim < core) lb_matrix_batch_refuse(&batch, "a result that is not a matrix");
    return batch;
}

static void clear(lb_matrix_batch *batch)
{
    while (batch->n_blocks) free(batch->blocks[--batch->n_blocks]);
}

bool lb_matrix_batch_next(lb_matrix_batch *batch)
{
    clear(batch);
    return batch->status == LB_OK && ++batch->b < batch->count;
}

lb_status lb_matrix_batch_end(lb_matrix_batch *batch)
{
    clear(batch);
    return batch->status;
}

static void fail(lb_matrix_batch *batch, lb_status status, const char *why)
{
    if (batch->status == LB_OK)
        batch->status = lb_fail(batch->call->err, status, "%s: %s", batch->call->row->name, why);
}

void lb_matrix_batch_refuse(lb_matrix_batch *batch, const char *why)
{
    fail(batch, LB_ERR_UNSUPPORTED, why);
}

lb_matrix_columns lb_matrix_columns_new(lb_matrix_batch *batch, int64_t m, int64_t n)
{
    lb_matrix_columns a = {NULL, m, n};
    if (batch->status != LB_OK) return a;
    if (batch->n_blocks < 64) a.x = calloc((size_t)(m * n) + 1, sizeof *a.x);
    if (a.x)
        batch->blocks[batch->n_blocks++] = a.x;
    else
        fail(batch, LB_ERR_NOMEM, "out of memory");
    return a;
}

/* Elements before the matrix at hand of a tensor whose leading dimensions broadcast to the batch's. */
static int64_t offset_of(const lb_matrix_batch *batch, const lb_tensor *tensor, int core)
{
    int64_t at = 0, b = batch->b;
    const int own = tensor->layout.ndim - core;
    for (int d = batch->n_dims - 1; d >= 0; d--) {
        const int64_t i = b % batch->shape[d];
        const int k = d - (batch->n_dims - own);
        b /= batch->shape[d];
        if (k >= 0 && tensor->layout.shape[k] != 1) at += i * tensor->layout.stride[k];
    }
    return at;
}

static bool broadcasts(const lb_matrix_batch *batch, const lb_tensor *tensor, int core)
{
    const int own = tensor->layout.ndim - core;
    if (own < 0 || own > batch->n_dims) return false;
    for (int k = 0; k < own; k++) {
        const int64_t n = tensor->layout.shape[k];
        if (n != 1 && n != batch->shape[batch->n_dims - own + k]) return false;
    }
    return true;
}

/* Where elements of the matrix at hand lie. */
typedef struct place {
    int64_t base, along_rows, along_columns, m, n;
} place;

static place place_of(lb_matrix_batch *batch, const lb_tensor *tensor, int core)
{
    const lb_layout *layout = &tensor->layout;
    const int rows = layout->ndim - core;
    if (!broadcasts(batch, tensor, core)) {
        lb_matrix_batch_refuse(batch, "batches that do not fit");
        return (place){0};
    }
    return (place){offset_of(batch, tensor, core), core ? layout->stride[rows] : 0,
                   core == 2 ? layout->stride[rows + 1] : 0, core ? layout->shape[rows] : 1,
                   core == 2 ? layout->shape[rows + 1] : 1};
}

lb_matrix_columns lb_matrix_columns_read(lb_matrix_batch *batch, const lb_tensor *tensor, int core)
{
    if (!tensor || !tensor->data || batch->status != LB_OK) return (lb_matrix_columns){0};
    if (lb_dtype_is_complex(tensor->dtype)) lb_matrix_batch_refuse(batch, "not computed with complex numbers");
    const place place = place_of(batch, tensor, core);
    lb_matrix_columns a = lb_matrix_columns_new(batch, place.m, place.n);
    const int64_t size = (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
    for (int64_t j = 0; a.x && j < a.n; j++)
        for (int64_t i = 0; i < a.m; i++)
            a.x[j * a.m + i] =
                lb_to_f64(tensor->dtype, (const char *)tensor->data +
                                             (place.base + i * place.along_rows + j * place.along_columns) * size);
    return a;
}

lb_matrix_columns lb_matrix_columns_arg(lb_matrix_batch *batch, uint32_t i)
{
    return lb_matrix_columns_read(batch, lb_frame_arg_tensor(batch->call, i), 2);
}

lb_matrix_columns lb_matrix_columns_branch(lb_matrix_batch *batch, uint32_t result, int core)
{
    const lb_call *call = batch->call;
    return call->branch && result < call->n_results ? lb_matrix_columns_read(batch, &call->branch[result], core)
                                                    : (lb_matrix_columns){0};
}

void lb_matrix_columns_write(lb_matrix_batch *batch, uint32_t result, int core, lb_matrix_columns a)
{
    const lb_tensor *tensor = result < batch->call->n_results ? &batch->call->results[result] : NULL;
    if (!tensor || !tensor->data || !a.x || batch->status != LB_OK) return;
    const place place = place_of(batch, tensor, core);
    const int64_t size = (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
    if (place.m != a.m || place.n != a.n) lb_matrix_batch_refuse(batch, "a result of another shape");
    for (int64_t j = 0; batch->status == LB_OK && j < a.n; j++)
        for (int64_t i = 0; i < a.m; i++)
            lb_convert(tensor->dtype,
                       (char *)tensor->data + (place.base + i * place.along_rows + j * place.along_columns) * size,
                       LB_F64, &a.x[j * a.m + i], 1, batch->call->method.cast);
}

void lb_matrix_columns_write_nan(lb_matrix_batch *batch, uint32_t result, int core)
{
    const lb_tensor *tensor = result < batch->call->n_results ? &batch->call->results[result] : NULL;
    if (!tensor || !tensor->data || !lb_dtype_is_float(tensor->dtype)) return;
    const place place = place_of(batch, tensor, core);
    lb_matrix_columns nan = lb_matrix_columns_new(batch, place.m, place.n);
    for (int64_t i = 0; nan.x && i < place.m * place.n; i++) nan.x[i] = NAN;
    lb_matrix_columns_write(batch, result, core, nan);
}

void lb_matrix_zero_write(lb_matrix_batch *batch, uint32_t result)
{
    const int64_t zero = 0;
    lb_matrix_columns a = lb_matrix_columns_new(batch, 1, 1);
    if (a.x) a.x[0] = (double)zero;
    lb_matrix_columns_write(batch, result, 0, a);
}

void lb_matrix_numbers_write(lb_matrix_batch *batch, uint32_t result, int core, const int64_t *numbers, int64_t n)
{
    lb_matrix_columns a = lb_matrix_columns_new(batch, n, 1);
    for (int64_t i = 0; a.x && i < n; i++) a.x[i] = (double)numbers[i];
    lb_matrix_columns_write(batch, result, core, a);
}

bool lb_matrix_columns_finite(lb_matrix_columns a)
{
    for (int64_t i = 0; a.x && i < a.m * a.n; i++)
        if (!isfinite(a.x[i])) return false;
    return true;
}

lb_matrix_columns lb_matrix_columns_transposed(lb_matrix_batch *batch, lb_matrix_columns a)
{
    lb_matrix_columns t = lb_matrix_columns_new(batch, a.n, a.m);
    for (int64_t j = 0; t.x && a.x && j < a.n; j++)
        for (int64_t i = 0; i < a.m; i++) t.x[i * t.m + j] = a.x[j * a.m + i];
    return t;
}

void lb_matrix_columns_mirror(lb_matrix_columns a, bool upper)
{
    for (int64_t j = 0; j < a.n; j++)
        for (int64_t i = j + 1; i < a.m; i++) {
            if (upper)
                a.x[j * a.m + i] = a.x[i * a.m + j];
            else
                a.x[i * a.m + j] = a.x[j * a.m + i];
        }
}

lb_matrix_columns lb_matrix_columns_product(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns b)
{
    if (a.n != b.m) lb_matrix_batch_refuse(batch, "matrices that do not fit");
    lb_matrix_columns c = lb_matrix_columns_new(batch, a.m, b.n);
    for (int64_t j = 0; c.x && j < b.n; j++)
        for (int64_t k = 0; k < a.n; k++) lb_matrix_add_scaled(c.x + j * c.m, b.x[j * b.m + k], a.x + k * a.m, a.m);
    return c;
}

double lb_matrix_branch_roundoff(const lb_matrix_batch *batch, uint32_t result)
{
    const lb_call *call = batch->call;
    const bool known = call->branch && result < call->n_results && call->branch[result].data;
    const lb_dtype dtype =
        known ? call->branch[result].dtype : call->results[result < call->n_results ? result : 0].dtype;
    return dtype == LB_F64 ? 0x1p-53 : 0x1p-24;
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

double lb_matrix_dot(const double *x, const double *y, int64_t n)
{
    double lanes[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) lanes[k] += x[i + k] * y[i + k];
    for (int k = 0; i < n; i++, k++) lanes[k] += x[i] * y[i];
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double lb_matrix_length(const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    if (largest == 0 || !isfinite(largest)) return largest;
    int e;
    frexp(largest, &e);
    if (e > -400 && e < 400) return __builtin_sqrt(lb_matrix_dot(x, x, n));
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ldexp(x[i], -e) * ldexp(x[i], -e);
    return ldexp(__builtin_sqrt(sum), e);
}

void lb_matrix_add_scaled(double *x, double a, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += a * y[i];
}

double lb_matrix_orthogonalise(double *x, lb_matrix_columns columns, int64_t n)
{
    for (int pass = 0; pass < 2; pass++) /* twice is enough: Giraud, Langou and others 2005 */
        for (int64_t j = 0; j < n; j++)
            lb_matrix_add_scaled(x, -lb_matrix_dot(columns.x + j * columns.m, x, columns.m), columns.x + j * columns.m,
                                 columns.m);
    return lb_matrix_length(x, columns.m);
}

static void divide(double *x, double by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] /= by;
}

void lb_matrix_fill_column(lb_matrix_columns columns, int64_t at, const double *wanted)
{
    double *x = columns.x + at * columns.m;
    if (wanted) {
        memcpy(x, wanted, (size_t)columns.m * sizeof *x);
        const double left = lb_matrix_orthogonalise(x, columns, at);
        if (left > 0.5) { /* of a column that is orthogonal to those before it nearly all is left */
            divide(x, left, columns.m);
            return;
        }
    }
    for (int64_t i = 0; i < columns.m; i++) {
        memset(x, 0, (size_t)columns.m * sizeof *x);
        x[i] = 1;
        const double left = lb_matrix_orthogonalise(x, columns, at);
        if (left * left * (double)(2 * columns.m) > 1) { /* some unit vector keeps 1 / m of its square */
            divide(x, left, columns.m);
            return;
        }
    }
}

/* ---- what ops ask of a matrix ------------------------------------------------------------------------------------ */

bool lb_matrix_is_usable(lb_matrix_batch *batch, lb_matrix_columns a, bool square)
{
    if (!a.x) return false;
    if (square && a.m != a.n) lb_matrix_batch_refuse(batch, "a matrix that is not square");
    if (a.m > LB_MATRIX_MOST_ROWS || a.n > LB_MATRIX_MOST_ROWS)
        lb_matrix_batch_refuse(batch, "a matrix that takes too long here");
    return batch->status == LB_OK;
}

bool lb_matrix_batch_gave_up(lb_matrix_batch *batch, uint32_t info)
{
    lb_matrix_columns said = lb_matrix_columns_branch(batch, info, 0);
    if (said.x && said.x[0] != 0)
        lb_matrix_batch_refuse(batch, "the library found the matrix singular or not positive definite");
    return batch->status != LB_OK;
}

lb_matrix_columns lb_matrix_columns_identity(lb_matrix_batch *batch, int64_t n)
{
    lb_matrix_columns a = lb_matrix_columns_new(batch, n, n);
    for (int64_t j = 0; a.x && j < n; j++) a.x[j * n + j] = 1;
    return a;
}
