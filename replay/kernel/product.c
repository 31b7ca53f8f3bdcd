/* Dense products in a stated order: which engine runs which schedule. See product.h. */
#include "kernel/product.h"
#include "orders/gemv_orders.h"
#include "kernel/openblas.h"
#include "orders/schedule.h"
#include "orders/schedule_tree.h"
#include "orders/tensor_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 64

#define REAL_TEMPLATE "kernel/product_real.h"
#include "functions/real_template.h"

static bool openblas(const lb_product *product, lb_dtype type, const void *a, const void *b, void *c)
{
    int m = (int)product->m, n = (int)product->n, k = (int)product->k;
    if (m != product->m || n != product->n || k != product->k || !m || !n) return false;
    return type == LB_F64 ? lb_openblas_product_f64(m, n, k, a, b, c) : lb_openblas_product_f32(m, n, k, a, b, c);
}

/* The terms per chain of an order that matmul.h runs: 0 is all of them; -1: an order that adds up products. */
static int64_t chain_block(const lb_product *product, const lb_schedule *order)
{
    if (!order || order->kind == LB_SCHEDULE_SEQUENTIAL) return 0;
    if (order->kind == LB_SCHEDULE_BLOCKED) return order->size;
    if (!product->k || !lb_schedule_applies(order, product->k)) return 0;
    if (order->kind == LB_SCHEDULE_HALVED) return lb_schedule_halved(order->size, product->k);
    if (order->kind == LB_SCHEDULE_SPLITK && !order->vector) return (product->k + order->size - 1) / order->size;
    return -1;
}

/* Chains of fma along a tree: a schedule that is one, or is run as one. */
static bool along_tree(const lb_product *product, lb_dtype type, const lb_method *method, const void *a, const void *b,
                       void *c)
{
    lb_sum_tree *slices = NULL;
    if (method->schedule->kind != LB_SCHEDULE_TREE)
        lb_schedule_tree(method->schedule, (uint32_t)product->k, LB_SUM_PRODUCT, type, &slices, NULL);
    const lb_sum_tree *tree = slices ? slices : method->schedule->tree;
    const lb_tree_rule rule = {.accumulate = method->accumulate, .chained = !tree || !tree->rounded};
    bool failed = !tree;
#pragma omp parallel for schedule(static) reduction(|| : failed) if (product->m * product->n * product->k > 65536)
    for (int64_t i = 0; i < product->m; i++) {
        if (failed) continue;
        const size_t row = (size_t)(i * product->k), to = (size_t)(i * product->n);
        failed = (type == LB_F64 ? lb_sum_tree_products_f64(tree, &rule, (const double *)a + row, b, product->n,
                                                            product->n, (double *)c + to)
                                 : lb_sum_tree_products_f32(tree, &rule, (const float *)a + row, b, product->n,
                                                            product->n, (float *)c + to)) != LB_OK;
    }
    lb_sum_tree_free(slices);
    return !failed;
}

/* Orders of kernels for one row, row by row. */
static void by_rows(const lb_product *product, lb_dtype type, const lb_method *method, const void *a, const void *b,
                    void *c)
{
#pragma omp parallel for schedule(static) if (product->m * product->n * product->k > 65536)
    for (int64_t i = 0; i < product->m; i++) {
        const size_t row = (size_t)(i * product->k), to = (size_t)(i * product->n);
        if (type == LB_F64)
            lb_gemv_row_product_f64(method->schedule, (const double *)a + row, b, product->k, product->n,
                                    (double *)c + to, method->accumulate);
        else
            lb_gemv_row_product_f32(method->schedule, (const float *)a + row, b, product->k, product->n,
                                    (float *)c + to, method->accumulate);
    }
}

static bool named_openblas(const lb_method *method)
{
    return method->kernel && !strcmp(method->kernel, "openblas") && !method->schedule && !method->accumulate;
}

/* As what operands are read. */
typedef struct reading {
    lb_dtype type, compute; /* LB_F32 or LB_F64; rounded to first, or 0 */
    lb_tf32 tf32;
    bool absolute;
} reading;

/* The operand as a dense row-major array: itself, or a copy that goes to *copy. */
static const void *dense(const reading *as, const lb_matrix *x, int64_t rows, int64_t columns, void **copy)
{
    const lb_dtype type = as->type, compute = as->compute;
    const lb_tf32 tf32 = as->tf32;
    const bool absolute = as->absolute;
    const bool lies_dense = (x->row_stride == columns || rows < 2) && (x->col_stride == 1 || columns < 2);
    if (x->dtype == type && lies_dense && !compute && !absolute && !tf32) return x->data;
    const size_t size = type == LB_F64 ? 8 : 4, n = (size_t)(rows * columns);
    if (!(*copy = malloc(n * size + 64))) return NULL;
    double *wide = *copy;
    float *narrow = *copy;
    for (int64_t i = 0; i < rows; i++) {
        const char *row = (const char *)x->data + i * x->row_stride * (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8);
        if (type == LB_F64)
            lb_load_f64_strided(wide + i * columns, x->dtype, row, x->col_stride, (size_t)columns);
        else
            lb_load_f32_strided(narrow + i * columns, x->dtype, row, x->col_stride, (size_t)columns);
    }
    if (compute && type == LB_F64) lb_round_to_grid_f64(wide, n, compute, NULL);
    if (compute && type == LB_F32) lb_round_to_grid_f32(narrow, n, compute, NULL);
    if (tf32 && type == LB_F32)
        lb_round_to_grid_tf32(narrow, n, tf32 == LB_TF32_RZ ? LB_RZ : tf32 == LB_TF32_RNA ? LB_RNA : LB_RNE);
    for (size_t i = 0; absolute && i < n; i++) {
        if (type == LB_F64)
            wide[i] = fabs(wide[i]);
        else
            narrow[i] = fabsf(narrow[i]);
    }
    return *copy;
}

static lb_matrix moved(const lb_matrix *x, ptrdiff_t elements)
{
    lb_matrix y = *x;
    y.data = (const char *)x->data + elements * (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8);
    return y;
}

/* ---- torch:N ----------------------------------------------------------------------------------------------------- */

typedef struct shared_product {
    const lb_product *shape;
    lb_dtype type;
    const lb_matmul_batch *batch;
    const lb_matrix *a, *b;
    lb_matmul_options options;
    size_t extent; /* elements of the result, from the first batch's first to the last's last */
} shared_product;

/* Terms [from, from + terms) of every chain. */
static lb_status product_of_block(const shared_product *shared_product, int64_t from, int64_t terms, void *c)
{
    const size_t m = (size_t)shared_product->shape->m, n = (size_t)shared_product->shape->n;
    const lb_matrix a = moved(shared_product->a, from * shared_product->a->col_stride),
                    b = moved(shared_product->b, from * shared_product->b->row_stride);
    return shared_product->type == LB_F64 ? lb_matmul_batched_f64(shared_product->batch, m, n, (size_t)terms, &a, &b, c,
                                                                  (ptrdiff_t)n, &shared_product->options)
                                          : lb_matmul_batched_f32(shared_product->batch, m, n, (size_t)terms, &a, &b, c,
                                                                  (ptrdiff_t)n, &shared_product->options);
}

static void add_to(const shared_product *shared_product, void *sum, const void *term)
{
    for (size_t i = 0; i < shared_product->extent; i++) {
        if (shared_product->type == LB_F64)
            ((double *)sum)[i] += ((const double *)term)[i];
        else
            ((float *)sum)[i] += ((const float *)term)[i];
    }
    if (shared_product->options.accumulate && shared_product->type == LB_F64)
        lb_round_to_grid_f64(sum, shared_product->extent, shared_product->options.accumulate, NULL);
    if (shared_product->options.accumulate && shared_product->type == LB_F32)
        lb_round_to_grid_f32(sum, shared_product->extent, shared_product->options.accumulate, NULL);
}

static lb_status product_of_share(const shared_product *shared_product, int64_t from, int64_t end, void *c, void *room)
{
    for (int64_t at = from, terms; at < end || at == from; at += terms) {
        terms = lb_schedule_block(end - at);
        LB_TRY(product_of_block(shared_product, at, terms, at == from ? c : room));
        if (at > from) add_to(shared_product, c, room);
        if (!terms) break;
    }
    return LB_OK;
}

static lb_status product_of_threads(const shared_product *shared_product, int64_t threads, void *c)
{
    const size_t bytes = (shared_product->extent + 1) * (shared_product->type == LB_F64 ? 8 : 4);
    const int64_t k = shared_product->shape->k;
    if (lb_schedule_block(k) == k) threads = 1; /* one block: nothing to share out */
    void *sum = calloc(1, bytes), *room = calloc(1, bytes);
    lb_status status = sum && room ? LB_OK : LB_ERR_NOMEM;
    for (int64_t t = 0; t < threads && status == LB_OK; t++) {
        status = product_of_share(shared_product, k * t / threads, k * (t + 1) / threads, t ? sum : c, room);
        if (t && status == LB_OK) add_to(shared_product, c, sum);
    }
    free(sum), free(room);
    return status;
}

/* ---- streamk:C --------------------------------------------------------------------------------------------------- */

enum { STREAM_TERMS = 32 }; /* of one step along k */

/* The first step of share `c`: shares are equal, the first ones one longer where they do not divide. */
static int64_t share_start(int64_t steps, int64_t shares, int64_t c)
{
    const int64_t longer = steps % shares;
    return c * (steps / shares) + (c < longer ? c : longer);
}

/* One tile: rows, columns, and the steps at which it begins and ends. */
typedef struct tile {
    size_t row, column, rows, columns;
    int64_t first, last;
} tile;

static lb_status product_of_tile(const shared_product *product, const tile *tile, int64_t steps, int64_t shares,
                                 char *c, char *room)
{
    const int64_t e = product->type == LB_F64 ? 8 : 4, n = product->shape->n, k = product->shape->k;
    int64_t share = 0;
    for (int64_t at = tile->first, end; at < tile->last; at = end) {
        while (share_start(steps, shares, share + 1) <= at) share++;
        end = share_start(steps, shares, share + 1) < tile->last ? share_start(steps, shares, share + 1) : tile->last;
        const int64_t from = (at - tile->first) * STREAM_TERMS,
                      to = (end - tile->first) * STREAM_TERMS < k ? (end - tile->first) * STREAM_TERMS : k;
        const lb_matrix a =
            moved(product->a, (ptrdiff_t)tile->row * product->a->row_stride + from * product->a->col_stride);
        const lb_matrix b =
            moved(product->b, (ptrdiff_t)tile->column * product->b->col_stride + from * product->b->row_stride);
        char *out = at == tile->first ? c + ((int64_t)tile->row * n + (int64_t)tile->column) * e : room;
        const ptrdiff_t row = at == tile->first ? n : (ptrdiff_t)tile->columns;
        LB_TRY(product->type == LB_F64 ? lb_matmul_f64(tile->rows, tile->columns, (size_t)(to - from), &a, &b,
                                                       (double *)out, row, &product->options)
                                       : lb_matmul_f32(tile->rows, tile->columns, (size_t)(to - from), &a, &b,
                                                       (float *)out, row, &product->options));
        for (size_t i = 0; at > tile->first && i < tile->rows; i++) {
            const shared_product line = {.type = product->type, .options = product->options, .extent = tile->columns};
            add_to(&line, c + (((int64_t)tile->row + (int64_t)i) * n + (int64_t)tile->column) * e,
                   room + (int64_t)(i * tile->columns) * e);
        }
    }
    return LB_OK;
}

static lb_status product_of_stream(const shared_product *shared_product, const lb_schedule *order, char *c)
{
    const int64_t edge = order->vector, rows = (shared_product->shape->m + edge - 1) / edge,
                  columns = (shared_product->shape->n + edge - 1) / edge;
    const int64_t each = shared_product->shape->k ? (shared_product->shape->k + STREAM_TERMS - 1) / STREAM_TERMS : 1,
                  steps = rows * columns * each;
    const int64_t shares = order->size < steps ? order->size : steps ? steps : 1;
    char *room = malloc((size_t)(edge * edge) * 8 + 8);
    lb_status status = room ? LB_OK : LB_ERR_NOMEM;
    for (int64_t i = 0; i < rows * columns && status == LB_OK; i++) {
        const int64_t row = i / columns * edge, column = i % columns * edge;
        const int64_t height = shared_product->shape->m - row < edge ? shared_product->shape->m - row : edge,
                      width = shared_product->shape->n - column < edge ? shared_product->shape->n - column : edge;
        const tile tile = {(size_t)row, (size_t)column, (size_t)height, (size_t)width, i * each, (i + 1) * each};
        status = product_of_tile(shared_product, &tile, steps, shares, c, room);
    }
    free(room);
    return status;
}

/* ---- dpbf16:K ---------------------------------------------------------------------------------------------------- */

/* x is rows * columns, dense: neighbours of a row change places within each block, the last one of an odd number
 * stays. */
static void swap_columns(void *x, size_t size, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j + 1 < columns; j += 2) {
            char *pair = (char *)x + (size_t)(i * columns + j) * size, kept[8];
            memcpy(kept, pair, size);
            memcpy(pair, pair + size, size);
            memcpy(pair + size, kept, size);
        }
}

static void swap_rows(void *x, size_t size, int64_t rows, int64_t columns, void *room)
{
    const size_t row = (size_t)columns * size;
    for (int64_t i = 0; i + 1 < rows; i += 2) {
        char *pair = (char *)x + (size_t)i * row;
        memcpy(room, pair, row);
        memcpy(pair, pair + row, row);
        memcpy(pair + row, room, row);
    }
}

/* Chains of fma over the terms with pairs swapped. */
static lb_status product_of_pairs(const lb_product *product, const lb_method *method, const reading *as,
                                  const lb_matrix *a, const lb_matrix *b, void *c)
{
    const lb_dtype type = as->type;
    const lb_method chains = {.schedule = &(lb_schedule){.kind = LB_SCHEDULE_BLOCKED, .size = method->schedule->size},
                              .accumulate = method->accumulate};
    const size_t size = type == LB_F64 ? 8 : 4,
                 elements[2] = {(size_t)(product->m * product->k), (size_t)(product->k * product->n)};
    const lb_matrix *operand[2] = {a, b};
    const int64_t rows[2] = {product->m, product->k}, columns[2] = {product->k, product->n};
    void *copy[2] = {NULL, NULL}, *room = malloc((size_t)product->n * size + 1);
    bool done = room;
    for (int i = 0; i < 2 && done; i++) {
        const void *x = dense(as, operand[i], rows[i], columns[i], &copy[i]);
        if (x && !copy[i] && (copy[i] = malloc(elements[i] * size + 64))) memcpy(copy[i], x, elements[i] * size);
        done = copy[i];
    }
    if (done) {
        swap_columns(copy[0], size, product->m, product->k);
        swap_rows(copy[1], size, product->k, product->n, room);
        done = lb_product_run(&(lb_product){.m = product->m, .n = product->n, .k = product->k}, type, &chains, copy[0],
                              copy[1], c) == LB_OK;
    }
    free(room), free(copy[0]), free(copy[1]);
    return done ? LB_OK : LB_ERR_NOMEM;
}

/* ---- tdpbf16:N --------------------------------------------------------------------------------------------------- */

/* Every second one of terms [from, end), from zero. */
static lb_status product_of_seconds(const shared_product *shared_product, int64_t from, int64_t end, void *c)
{
    lb_matrix a = moved(shared_product->a, from * shared_product->a->col_stride),
              b = moved(shared_product->b, from * shared_product->b->row_stride);
    a.col_stride *= 2, b.row_stride *= 2;
    const size_t m = (size_t)shared_product->shape->m, n = (size_t)shared_product->shape->n,
                 terms = (size_t)(from < end ? (end - from + 1) / 2 : 0);
    return shared_product->type == LB_F64
               ? lb_matmul_f64(m, n, terms, &a, &b, c, (ptrdiff_t)n, &shared_product->options)
               : lb_matmul_f32(m, n, terms, &a, &b, c, (ptrdiff_t)n, &shared_product->options);
}

/* Terms [from, end) into c; `room` holds two results. */
static lb_status product_of_tiles(const shared_product *shared_product, int64_t from, int64_t end, void *c, char *room)
{
    const int64_t tile = lb_schedule_tile(end - from);
    char *odd = room + shared_product->extent * (shared_product->type == LB_F64 ? 8 : 4);
    for (int64_t at = from; at < end || at == from; at += tile) {
        const int64_t last = end - at < tile ? end : at + tile;
        void *even = at == from ? c : room;
        LB_TRY(product_of_seconds(shared_product, at, last, even));
        LB_TRY(product_of_seconds(shared_product, at + 1, last, odd));
        add_to(shared_product, even, odd);
        if (even != c) add_to(shared_product, c, even);
    }
    return LB_OK;
}

static lb_status product_of_tile_shares(const shared_product *shared_product, const lb_schedule *order, void *c)
{
    const size_t bytes = shared_product->extent * (shared_product->type == LB_F64 ? 8 : 4);
    const int64_t k = shared_product->shape->k, share = lb_schedule_share(order->size, k);
    char *room = malloc(3 * bytes + 1);
    lb_status status = room ? LB_OK : LB_ERR_NOMEM;
    for (int64_t from = 0; status == LB_OK && (from < k || !from); from += share) {
        void *sum = from ? room + 2 * bytes : c;
        status = product_of_tiles(shared_product, from, k - from < share ? k : from + share, sum, room);
        if (from && status == LB_OK) add_to(shared_product, c, sum);
        if (!share) break;
    }
    free(room);
    return status;
}

/* ---- tensorcore:ARCH --------------------------------------------------------------------------------------------- */

/* Whether the method names a matrix unit, as its schedule or as its kernel. */
static bool names_tensor_core(const lb_method *method, lb_schedule *unit)
{
    if (method->schedule)
        *unit = *method->schedule;
    else if (!method->kernel || lb_schedule_parse(method->kernel, unit, NULL) != LB_OK)
        return false;
    return unit->kind == LB_SCHEDULE_TENSOR_CORE;
}

static lb_status on_tensor_core(const lb_product *product, const lb_schedule *unit, const lb_method *method,
                                const lb_matmul_batch *batch, const lb_matrix *a, const lb_matrix *b, float *c)
{
    lb_tensor_core core;
    const lb_dtype compute = method->compute;
    const lb_tf32 tf32 = a->dtype == LB_F32 && b->dtype == LB_F32 ? (lb_tf32)method->tf32 : LB_TF32_NONE;
    LB_TRY(lb_tensor_core_find((int)unit->size, compute ? compute : a->dtype, compute ? compute : b->dtype,
                               method->accumulate, &core, NULL));
    const reading as = {.type = LB_F32, .compute = compute, .tf32 = tf32};
    lb_status status = LB_OK;
    for (size_t i = 0; status == LB_OK && i < batch->batch; i++) {
        lb_matrix ai = moved(a, (ptrdiff_t)i * batch->a_step), bi = moved(b, (ptrdiff_t)i * batch->b_step);
        void *copies[2] = {NULL, NULL};
        if (compute || tf32) {
            ai = (lb_matrix){dense(&as, &ai, product->m, product->k, &copies[0]), LB_F32, (ptrdiff_t)product->k, 1};
            bi = (lb_matrix){dense(&as, &bi, product->k, product->n, &copies[1]), LB_F32, (ptrdiff_t)product->n, 1};
        }
        const lb_tensor_core_shape shape = {(size_t)product->m, (size_t)product->n, (size_t)product->k, unit->vector,
                                            false};
        status = !ai.data || !bi.data
                     ? LB_ERR_NOMEM
                     : lb_tensor_core_product(&core, &shape, &ai, &bi, c + (ptrdiff_t)i * batch->c_step);
        free(copies[0]);
        free(copies[1]);
    }
    return status;
}

/* Orders whose engine takes the products of a batch one by one. */
static bool goes_one_by_one(const lb_schedule *order)
{
    return order && (order->kind == LB_SCHEDULE_STREAMK || order->kind == LB_SCHEDULE_DPBF16 ||
                     order->kind == LB_SCHEDULE_TDPBF16);
}

static lb_status one_product(const shared_product *shared_product, const lb_method *method, const reading *as, void *c)
{
    if (method->schedule->kind == LB_SCHEDULE_STREAMK) return product_of_stream(shared_product, method->schedule, c);
    if (method->schedule->kind == LB_SCHEDULE_TDPBF16)
        return product_of_tile_shares(shared_product, method->schedule, c);
    return product_of_pairs(shared_product->shape, method, as, shared_product->a, shared_product->b, c);
}

/* The matrices of one product, row after row. */
typedef struct dense_pair {
    const void *x, *y;
} dense_pair;

/* Where product i of a batch is written. */
static char *result_of(const shared_product *all, size_t i, void *c)
{
    return (char *)c + (ptrdiff_t)i * all->batch->c_step * (all->type == LB_F64 ? 8 : 4);
}

/* Each product of the batch by itself, from the matrices where they lie. */
static lb_status one_by_one(const shared_product *all, const lb_method *method, const reading *as, void *c)
{
    lb_status status = LB_OK;
    for (size_t i = 0; i < all->batch->batch && status == LB_OK; i++) {
        const lb_matrix a = moved(all->a, (ptrdiff_t)i * all->batch->a_step),
                        b = moved(all->b, (ptrdiff_t)i * all->batch->b_step);
        const shared_product one = {.shape = all->shape,
                                    .type = all->type,
                                    .a = &a,
                                    .b = &b,
                                    .options = all->options,
                                    .extent = (size_t)all->shape->m * (size_t)all->shape->n};
        status = one_product(&one, method, as, result_of(all, i, c));
    }
    return status;
}

/* One product of dense matrices in the method's order; `chained`: one chain of additions for each element. */
static bool in_order(const lb_product *shape, lb_dtype type, const lb_method *method, bool chained,
                     const dense_pair *operands, void *out)
{
    const void *x = operands->x, *y = operands->y;
    if (chained) { /* OpenBLAS is not there, or the product is empty */
        const lb_method order = {.schedule = method->schedule, .accumulate = method->accumulate};
        return lb_product_run(&(lb_product){.m = shape->m, .n = shape->n, .k = shape->k}, type, &order, x, y, out) ==
               LB_OK;
    }
    switch (method->schedule->kind) {
    case LB_SCHEDULE_TREE:
    case LB_SCHEDULE_SPLITK:
    case LB_SCHEDULE_TORCHDOT: return along_tree(shape, type, method, x, y, out);
    case LB_SCHEDULE_FOLDED:
    case LB_SCHEDULE_EIGHTS: by_rows(shape, type, method, x, y, out); return true;
    default: return type == LB_F64 ? products_f64(shape, method, x, y, out) : products_f32(shape, method, x, y, out);
    }
}

/* Each product of the batch from dense copies of its matrices. */
static lb_status from_dense(const shared_product *all, const lb_method *method, const reading *as, bool chained,
                            void *c)
{
    const lb_product *shape = all->shape;
    const bool blas = named_openblas(method);
    bool done = true;
    for (size_t i = 0; done && i < all->batch->batch; i++) {
        const lb_matrix a = moved(all->a, (ptrdiff_t)i * all->batch->a_step),
                        b = moved(all->b, (ptrdiff_t)i * all->batch->b_step);
        void *copies[2] = {NULL, NULL}, *out = result_of(all, i, c);
        const dense_pair pair = {dense(as, &a, shape->m, shape->k, &copies[0]),
                                 dense(as, &b, shape->k, shape->n, &copies[1])};
        done = pair.x && pair.y;
        if (done && !(blas && openblas(shape, all->type, pair.x, pair.y, out)))
            done = in_order(shape, all->type, method, chained, &pair, out);
        free(copies[0]);
        free(copies[1]);
    }
    return done ? LB_OK : LB_ERR_NOMEM;
}

static lb_matmul_options options_of(const lb_method *method, const reading *as, int64_t block)
{
    lb_matmul_options options = LB_MATMUL_OPTIONS_INIT;
    options.block = block >= 0 ? (size_t)block : 0;
    options.accumulate = method->accumulate;
    options.input = as->compute;
    options.absolute = as->absolute;
    options.tf32 = as->tf32;
    return options;
}

/* ---- which engine ------------------------------------------------------------------------------------------------ */

lb_status lb_product_matrices(const lb_product *shape, lb_dtype type, const lb_method *method,
                              const lb_matrix_pair *operands, void *c)
{
    const lb_matmul_batch one = {.batch = 1}, *batch = operands->batch ? operands->batch : &one;
    const lb_matrix *a = &operands->a, *b = &operands->b;
    lb_schedule unit;
    lb_method plain;
    if (names_tensor_core(method, &unit)) {
        if (type == LB_F32 && !operands->absolute) return on_tensor_core(shape, &unit, method, batch, a, b, c);
        plain = *method;
        plain.schedule = NULL, plain.kernel = NULL;
        method = &plain;
    }
    const int64_t block = chain_block(shape, method->schedule);
    const size_t m = (size_t)shape->m, n = (size_t)shape->n, k = (size_t)shape->k;
    const lb_dtype compute = method->compute == type ? LB_NO_DTYPE : method->compute;
    const reading as = {type, compute, (lb_tf32)method->tf32, operands->absolute};
    const lb_matmul_options options = options_of(method, &as, block);
    const size_t extent = batch->batch ? (batch->batch - 1) * (size_t)batch->c_step + m * n : 0;
    const shared_product all = {shape, type, batch, a, b, options, extent};
    if (method->schedule && method->schedule->kind == LB_SCHEDULE_TORCH)
        return product_of_threads(&all, method->schedule->size, c);
    if (goes_one_by_one(method->schedule)) return one_by_one(&all, method, &as, c);
    if (block < 0 || named_openblas(method)) return from_dense(&all, method, &as, block >= 0, c);
    return type == LB_F64 ? lb_matmul_batched_f64(batch, m, n, k, a, b, c, (ptrdiff_t)n, &options)
                          : lb_matmul_batched_f32(batch, m, n, k, a, b, c, (ptrdiff_t)n, &options);
}

lb_status lb_product_run(const lb_product *shape, lb_dtype type, const lb_method *method, const void *a, const void *b,
                         void *c)
{
    const bool a_dense = !shape->a_row && !shape->a_column, b_dense = !shape->b_row && !shape->b_column;
    const lb_matrix_pair operands = {
        .a = {a, type, (ptrdiff_t)(a_dense ? shape->k : shape->a_row), (ptrdiff_t)(a_dense ? 1 : shape->a_column)},
        .b = {b, type, (ptrdiff_t)(b_dense ? shape->n : shape->b_row), (ptrdiff_t)(b_dense ? 1 : shape->b_column)}};
    lb_method rounded = *method;
    rounded.compute = LB_NO_DTYPE;
    return lb_product_matrices(shape, type, &rounded, &operands, c);
}
