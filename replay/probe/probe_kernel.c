/* Kernels to be probed as they are called: symbols of shared objects, and this library's own engine. See
 * lastbit/order.h. */
#include "probe/probe.h"

#include "kernel/product.h"
#include "orders/schedule.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const char *const forms[] = {"sum", "rows", "columns", "dot", "matmul"};
const char *lb_probe_form_name(lb_probe_form form)
{
    return forms[form];
}

bool lb_probe_form_parse(const char *text, lb_probe_form *form)
{
    for (int i = 0; i < 5; i++)
        if (!strcmp(text, forms[i])) {
            *form = (lb_probe_form)i;
            return true;
        }
    return false;
}

void lb_probe_kernel_release(lb_probe_kernel *kernel)
{
    if (kernel->release) kernel->release(kernel->context);
    *kernel = (lb_probe_kernel){0};
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

/* Memory of one call, aligned as allocators of frameworks do it, whatever the shape. */
typedef struct bench {
    lb_probe_shape shape;
    size_t size, out_size;
    char *x, *y, *out;
    void *library;
    void *symbol;
    lb_schedule schedule;
    bool scheduled;
} bench;

static void bench_free(void *context)
{
    bench *bench = context;
    if (bench->library) dlclose(bench->library);
    if (bench->scheduled) lb_schedule_release(&bench->schedule);
    free(bench->x);
    free(bench->y);
    free(bench->out);
    free(bench);
}

static char *aligned(size_t bytes)
{
    char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static lb_status bench_new(const lb_probe_shape *shape, bench **out, lb_err *err)
{
    *out = NULL;
    const bool known =
        shape->dtype == LB_F64 || shape->dtype == LB_F32 || shape->dtype == LB_BF16 || shape->dtype == LB_F16;
    if (!known || !shape->n || !shape->rows || !shape->columns)
        return lb_fail(err, LB_ERR_INVALID, "a probe is of one term or more in f64, f32, bf16 or f16");
    bench *b = calloc(1, sizeof *b);
    if (!b) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->shape = *shape;
    b->size = lb_dtype_bits(shape->dtype) / 8;
    b->out_size = lb_dtype_bits(shape->result ? shape->result : shape->dtype) / 8;
    b->x = aligned((size_t)shape->rows * shape->n * b->size);
    b->y = aligned((size_t)shape->n * shape->columns * b->size);
    b->out = aligned((size_t)shape->rows * shape->columns * 8);
    if (!b->x || !b->y || !b->out) {
        bench_free(b);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    *out = b;
    return LB_OK;
}

/* The factors of every column, or ones. */
static void lay_factors(bench *bench, const char *factors)
{
    uint64_t one = 0;
    lb_from_f64(bench->shape.dtype, &one, 1, NULL);
    for (size_t i = 0; i < bench->shape.n; i++)
        for (size_t j = 0; j < bench->shape.columns; j++)
            memcpy(bench->y + (i * bench->shape.columns + j) * bench->size,
                   factors ? factors + i * bench->size : (const char *)&one, bench->size);
}

/* Terms lie in rows; a kernel of columns reads them across. */
static void lay_terms(bench *bench, const char *terms)
{
    const size_t rows = bench->shape.rows, n = bench->shape.n;
    if (bench->shape.form != LB_PROBE_COLUMNS) {
        memcpy(bench->x, terms, rows * n * bench->size);
        return;
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            memcpy(bench->x + (i * rows + r) * bench->size, terms + (r * n + i) * bench->size, bench->size);
}

static lb_status run_bench(bench *b, lb_status (*call)(bench *), uint32_t calls, const void *terms, const void *factors,
                           double *sums)
{
    const lb_probe_shape *shape = &b->shape;
    const size_t results = (size_t)shape->rows * shape->columns;
    lay_factors(b, factors);
    for (uint32_t c = 0; c < calls; c++) {
        lay_terms(b, (const char *)terms + (size_t)c * shape->rows * shape->n * b->size);
        LB_TRY(call(b));
        lb_load_f64(sums + c * results, shape->result ? shape->result : shape->dtype, b->out, results);
    }
    return LB_OK;
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

/* A function pointer of any type from dlsym's object pointer, as POSIX has it. */
#define AS(type, symbol) (*(type *)(void *)&(symbol))

#define CALL(T, R)                                                                                                     \
    do {                                                                                                               \
        typedef R (*sum_function)(const T *, int64_t);                                                                 \
        typedef R (*dot_function)(const T *, const T *, int64_t);                                                      \
        typedef void (*many_function)(const T *, int64_t, int64_t, R *);                                               \
        typedef void (*product_function)(const T *, const T *, R *, int64_t, int64_t, int64_t);                        \
        const T *x = (const T *)(void *)bench->x, *y = (const T *)(void *)bench->y;                                    \
        R *out = (R *)(void *)bench->out;                                                                              \
        switch (shape->form) {                                                                                         \
        case LB_PROBE_SUM: *out = AS(sum_function, bench->symbol)(x, shape->n); break;                                 \
        case LB_PROBE_DOT: *out = AS(dot_function, bench->symbol)(x, y, shape->n); break;                              \
        case LB_PROBE_ROWS: AS(many_function, bench->symbol)(x, shape->rows, shape->n, out); break;                    \
        case LB_PROBE_COLUMNS: AS(many_function, bench->symbol)(x, shape->n, shape->rows, out); break;                 \
        case LB_PROBE_MATMUL:                                                                                          \
            AS(product_function, bench->symbol)(x, y, out, shape->rows, shape->columns, shape->n);                     \
            break;                                                                                                     \
        }                                                                                                              \
    } while (0)

static lb_status call_symbol(bench *bench)
{
    const lb_probe_shape *shape = &bench->shape;
    if (bench->size == 8)
        CALL(double, double);
    else if (bench->size == 4)
        CALL(float, float);
    else if (bench->out_size == 4)
        CALL(uint16_t, float);
    else
        CALL(uint16_t, uint16_t);
    return LB_OK;
}

static lb_status run_symbol(void *context, uint32_t calls, const void *terms, const void *factors, double *sums,
                            lb_err *err)
{
    (void)err;
    return run_bench(context, call_symbol, calls, terms, factors, sums);
}

lb_status lb_probe_symbol(const lb_probe_shape *shape, const char *path, const char *symbol, lb_probe_kernel *kernel,
                          lb_err *err)
{
    *kernel = (lb_probe_kernel){0};
    bench *bench;
    LB_TRY(bench_new(shape, &bench, err));
    bench->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (bench->library) bench->symbol = dlsym(bench->library, symbol);
    if (!bench->symbol) {
        const lb_status status = lb_fail(err, LB_ERR_NOT_FOUND, "%s", dlerror());
        bench_free(bench);
        return status;
    }
    *kernel = (lb_probe_kernel){*shape, bench, run_symbol, bench_free};
    return LB_OK;
}

/* ---- this library's own engine ----------------------------------------------------------------------------------- */

/* As an op does it: in f32 (f64), with the terms widened first, the result rounded once. */
static lb_status call_engine(bench *bench)
{
    const lb_probe_shape *called = &bench->shape;
    const lb_schedule *order = bench->scheduled ? &bench->schedule : NULL;
    const lb_dtype type = called->dtype == LB_F64 ? LB_F64 : LB_F32,
                   result = called->result ? called->result : called->dtype;
    const size_t terms = (size_t)called->rows * called->n, results = (size_t)called->rows * called->columns;
    lb_status status = LB_OK;
    double *wide = malloc((terms + results + 1) * sizeof *wide), *sums = wide + terms;
    float *x = (float *)(void *)wide, *y = (float *)(void *)sums;
    if (!wide) return LB_ERR_NOMEM;
    if (type == LB_F64)
        memcpy(wide, bench->x, terms * 8);
    else
        lb_load_f32(x, called->dtype, bench->x, terms);
    const lb_method method = {.schedule = order};
    const lb_matrix_pair operands = {.a = {bench->x, called->dtype, (ptrdiff_t)called->n, 1},
                                     .b = {bench->y, called->dtype, (ptrdiff_t)called->columns, 1}};
    const lb_product shape = {.m = called->rows, .n = called->columns, .k = called->n};
    switch (called->form) {
    case LB_PROBE_SUM:
    case LB_PROBE_ROWS:
        for (size_t r = 0; r < called->rows; r++) {
            if (type == LB_F64)
                sums[r] = lb_schedule_sum_f64(order, wide + r * called->n, called->n, LB_NO_DTYPE);
            else
                y[r] = lb_schedule_sum_f32(order, x + r * called->n, called->n, LB_NO_DTYPE);
        }
        break;
    case LB_PROBE_COLUMNS:
        if (type == LB_F64)
            lb_schedule_sum_columns_f64(order, wide, called->rows, called->n, called->rows, sums, LB_NO_DTYPE);
        else
            lb_schedule_sum_columns_f32(order, x, called->rows, called->n, called->rows, y, LB_NO_DTYPE);
        break;
    default: status = lb_product_matrices(&shape, type, &method, &operands, sums);
    }
    if (type == LB_F64)
        lb_store_f64(result, bench->out, sums, results, NULL);
    else
        lb_store_f32(result, bench->out, y, results, NULL);
    free(wide);
    return status;
}

static lb_status run_engine(void *context, uint32_t calls, const void *terms, const void *factors, double *sums,
                            lb_err *err)
{
    const lb_status status = run_bench(context, call_engine, calls, terms, factors, sums);
    return status == LB_OK ? LB_OK : lb_fail(err, status, "the engine has no such sum: %s", lb_status_text(status));
}

lb_status lb_probe_schedule(const lb_probe_shape *shape, const char *order, lb_probe_kernel *kernel, lb_err *err)
{
    *kernel = (lb_probe_kernel){0};
    lb_schedule schedule = {0};
    if (*order) LB_TRY(lb_schedule_parse(order, &schedule, err));
    bench *bench;
    const lb_status status = bench_new(shape, &bench, err);
    if (status != LB_OK) {
        lb_schedule_release(&schedule);
        return status;
    }
    bench->schedule = schedule;
    bench->scheduled = *order != 0;
    *kernel = (lb_probe_kernel){*shape, bench, run_engine, bench_free};
    return LB_OK;
}
