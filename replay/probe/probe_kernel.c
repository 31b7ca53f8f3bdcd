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
    bench *b = context;
    if (b->library) dlclose(b->library);
    if (b->scheduled) lb_schedule_release(&b->schedule);
    free(b->x);
    free(b->y);
    free(b->out);
    free(b);
}

static char *aligned(size_t bytes)
{
    char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static lb_status bench_new(const lb_probe_shape *s, bench **out, lb_err *err)
{
    *out = NULL;
    const bool known = s->dtype == LB_F64 || s->dtype == LB_F32 || s->dtype == LB_BF16 || s->dtype == LB_F16;
    if (!known || !s->n || !s->rows || !s->columns)
        return lb_fail(err, LB_ERR_INVALID, "a probe is of one term or more in f64, f32, bf16 or f16");
    bench *b = calloc(1, sizeof *b);
    if (!b) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->shape = *s;
    b->size = lb_dtype_bits(s->dtype) / 8;
    b->out_size = lb_dtype_bits(s->result ? s->result : s->dtype) / 8;
    b->x = aligned((size_t)s->rows * s->n * b->size);
    b->y = aligned((size_t)s->n * s->columns * b->size);
    b->out = aligned((size_t)s->rows * s->columns * 8);
    if (!b->x || !b->y || !b->out) {
        bench_free(b);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    *out = b;
    return LB_OK;
}

/* The factors of every column, or ones. */
static void lay_factors(bench *b, const char *factors)
{
    uint64_t one = 0;
    lb_from_f64(b->shape.dtype, &one, 1, NULL);
    for (size_t i = 0; i < b->shape.n; i++)
        for (size_t j = 0; j < b->shape.columns; j++)
            memcpy(b->y + (i * b->shape.columns + j) * b->size, factors ? factors + i * b->size : (const char *)&one,
                   b->size);
}

/* Terms lie in rows; a kernel of columns reads them across. */
static void lay_terms(bench *b, const char *terms)
{
    const size_t rows = b->shape.rows, n = b->shape.n;
    if (b->shape.form != LB_PROBE_COLUMNS) {
        memcpy(b->x, terms, rows * n * b->size);
        return;
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) memcpy(b->x + (i * rows + r) * b->size, terms + (r * n + i) * b->size, b->size);
}

static lb_status run_bench(bench *b, lb_status (*call)(bench *), uint32_t calls, const void *terms, const void *factors,
                           double *sums)
{
    const lb_probe_shape *s = &b->shape;
    const size_t results = (size_t)s->rows * s->columns;
    lay_factors(b, factors);
    for (uint32_t c = 0; c < calls; c++) {
        lay_terms(b, (const char *)terms + (size_t)c * s->rows * s->n * b->size);
        LB_TRY(call(b));
        lb_load_f64(sums + c * results, s->result ? s->result : s->dtype, b->out, results);
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
        const T *x = (const T *)(void *)b->x, *y = (const T *)(void *)b->y;                                            \
        R *out = (R *)(void *)b->out;                                                                                  \
        switch (s->form) {                                                                                             \
        case LB_PROBE_SUM: *out = AS(sum_function, b->symbol)(x, s->n); break;                                         \
        case LB_PROBE_DOT: *out = AS(dot_function, b->symbol)(x, y, s->n); break;                                      \
        case LB_PROBE_ROWS: AS(many_function, b->symbol)(x, s->rows, s->n, out); break;                                \
        case LB_PROBE_COLUMNS: AS(many_function, b->symbol)(x, s->n, s->rows, out); break;                             \
        case LB_PROBE_MATMUL: AS(product_function, b->symbol)(x, y, out, s->rows, s->columns, s->n); break;            \
        }                                                                                                              \
    } while (0)

static lb_status call_symbol(bench *b)
{
    const lb_probe_shape *s = &b->shape;
    if (b->size == 8)
        CALL(double, double);
    else if (b->size == 4)
        CALL(float, float);
    else if (b->out_size == 4)
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
    bench *b;
    LB_TRY(bench_new(shape, &b, err));
    b->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (b->library) b->symbol = dlsym(b->library, symbol);
    if (!b->symbol) {
        const lb_status status = lb_fail(err, LB_ERR_NOT_FOUND, "%s", dlerror());
        bench_free(b);
        return status;
    }
    *kernel = (lb_probe_kernel){*shape, b, run_symbol, bench_free};
    return LB_OK;
}

/* ---- this library's own engine ----------------------------------------------------------------------------------- */

/* As an op does it: in f32 (f64), with the terms widened first, the result rounded once. */
static lb_status call_engine(bench *b)
{
    const lb_probe_shape *s = &b->shape;
    const lb_schedule *order = b->scheduled ? &b->schedule : NULL;
    const lb_dtype type = s->dtype == LB_F64 ? LB_F64 : LB_F32, result = s->result ? s->result : s->dtype;
    const size_t terms = (size_t)s->rows * s->n, results = (size_t)s->rows * s->columns;
    lb_status status = LB_OK;
    double *wide = malloc((terms + results + 1) * sizeof *wide), *sums = wide + terms;
    float *x = (float *)(void *)wide, *y = (float *)(void *)sums;
    if (!wide) return LB_ERR_NOMEM;
    if (type == LB_F64)
        memcpy(wide, b->x, terms * 8);
    else
        lb_load_f32(x, s->dtype, b->x, terms);
    const lb_method method = {.schedule = order};
    const lb_matrix_pair operands = {.a = {b->x, s->dtype, (ptrdiff_t)s->n, 1},
                                     .b = {b->y, s->dtype, (ptrdiff_t)s->columns, 1}};
    const lb_product shape = {.m = s->rows, .n = s->columns, .k = s->n};
    switch (s->form) {
    case LB_PROBE_SUM:
    case LB_PROBE_ROWS:
        for (size_t r = 0; r < s->rows; r++) {
            if (type == LB_F64)
                sums[r] = lb_schedule_sum_f64(order, wide + r * s->n, s->n, LB_NO_DTYPE);
            else
                y[r] = lb_schedule_sum_f32(order, x + r * s->n, s->n, LB_NO_DTYPE);
        }
        break;
    case LB_PROBE_COLUMNS:
        if (type == LB_F64)
            lb_schedule_sum_columns_f64(order, wide, s->rows, s->n, s->rows, sums, LB_NO_DTYPE);
        else
            lb_schedule_sum_columns_f32(order, x, s->rows, s->n, s->rows, y, LB_NO_DTYPE);
        break;
    default: status = lb_product_matrices(&shape, type, &method, &operands, sums);
    }
    if (type == LB_F64)
        lb_store_f64(result, b->out, sums, results, NULL);
    else
        lb_store_f32(result, b->out, y, results, NULL);
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
    bench *b;
    const lb_status status = bench_new(shape, &b, err);
    if (status != LB_OK) {
        lb_schedule_release(&schedule);
        return status;
    }
    b->schedule = schedule;
    b->scheduled = *order != 0;
    *kernel = (lb_probe_kernel){*shape, b, run_engine, bench_free};
    return LB_OK;
}
