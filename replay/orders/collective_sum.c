/* Reductions over ranks: see collective_sum.h. */
#include "orders/collective_sum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names ------------------------------------------------------------------------------------------------------ */

bool lb_collective_reduction_parse(const char *text, lb_collective_reduction *reduction)
{
    static const struct {
        const char *name;
        lb_collective_reduction reduction;
    } names[] = {{"sum", LB_REDUCE_SUM},         {"avg", LB_REDUCE_AVG},      {"mean", LB_REDUCE_AVG},
                 {"product", LB_REDUCE_PRODUCT}, {"prod", LB_REDUCE_PRODUCT}, {"min", LB_REDUCE_MIN},
                 {"max", LB_REDUCE_MAX},         {"band", LB_REDUCE_BAND},    {"bor", LB_REDUCE_BOR},
                 {"bxor", LB_REDUCE_BXOR}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(text, names[i].name)) {
            *reduction = names[i].reduction;
            return true;
        }
    return false;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

enum { BLOCK = 512 }; /* elements of all ranks' registers that are worked on at one time */

/* What a fold does, and in which type the registers are. `to`: every sum and product is rounded to that grid. */
typedef struct folder {
    lb_collective_reduction reduction;
    lb_dtype dtype; /* payload */
    lb_dtype to;    /* 0: the register type's own rounding is enough */
} folder;

#define FOLD_LOOP(expression)                                                                                          \
    for (int64_t i = 0; i < n; i++) a[i] = (expression);                                                               \
    break

static void fold_f32(const folder *folder, float *a, const float *b, int64_t n)
{
    switch (folder->reduction) {
    case LB_REDUCE_PRODUCT: FOLD_LOOP(a[i] * b[i]);
    case LB_REDUCE_MIN: FOLD_LOOP(isnan(a[i]) || a[i] < b[i] ? a[i] : b[i]);
    case LB_REDUCE_MAX: FOLD_LOOP(isnan(a[i]) || a[i] > b[i] ? a[i] : b[i]);
    default: FOLD_LOOP(a[i] + b[i]);
    }
    if (folder->to) lb_round_to_grid_f32(a, (size_t)n, folder->to, NULL);
}

static void fold_f64(const folder *folder, double *a, const double *b, int64_t n)
{
    switch (folder->reduction) {
    case LB_REDUCE_PRODUCT: FOLD_LOOP(a[i] * b[i]);
    case LB_REDUCE_MIN: FOLD_LOOP(isnan(a[i]) || a[i] < b[i] ? a[i] : b[i]);
    case LB_REDUCE_MAX: FOLD_LOOP(isnan(a[i]) || a[i] > b[i] ? a[i] : b[i]);
    default: FOLD_LOOP(a[i] + b[i]);
    }
    if (folder->to) lb_round_to_grid_f64(a, (size_t)n, folder->to, NULL);
}

/* Sums and products wrap, so they are done unsigned; comparisons know the sign. */
static void fold_int(const folder *folder, int64_t *a, const int64_t *b, int64_t n)
{
    bool is_unsigned = folder->dtype == LB_U64, is_bool = folder->dtype == LB_BOOL;
    switch (folder->reduction) {
    case LB_REDUCE_PRODUCT: FOLD_LOOP((int64_t)((uint64_t)a[i] * (uint64_t)b[i]));
    case LB_REDUCE_MIN: FOLD_LOOP((is_unsigned ? (uint64_t)a[i] < (uint64_t)b[i] : a[i] < b[i]) ? a[i] : b[i]);
    case LB_REDUCE_MAX: FOLD_LOOP((is_unsigned ? (uint64_t)a[i] > (uint64_t)b[i] : a[i] > b[i]) ? a[i] : b[i]);
    case LB_REDUCE_BAND: FOLD_LOOP(a[i] & b[i]);
    case LB_REDUCE_BOR: FOLD_LOOP(a[i] | b[i]);
    case LB_REDUCE_BXOR: FOLD_LOOP(a[i] ^ b[i]);
    default: FOLD_LOOP(is_bool ? (a[i] | b[i]) : (int64_t)((uint64_t)a[i] + (uint64_t)b[i]));
    }
}

typedef struct reduction_run {
    folder fold;
    uint32_t n;
    const void *const *inputs;
    lb_dtype dtype;
    double scale; /* AVG: of each contribution (per-hop orders) or of the sum (wide ones) */
    bool scale_last;
    bool divides;    /* … by n, rather than multiplied by 1/n */
    char *registers; /* n * BLOCK of 8 bytes */
    void *out;
} reduction_run;

static void *reg(const reduction_run *reduction_run, uint32_t k, size_t width)
{
    return reduction_run->registers + (size_t)k * BLOCK * width;
}

static void scale_f32(const reduction_run *reduction_run, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = reduction_run->divides ? x[i] / (float)reduction_run->n : x[i] * (float)reduction_run->scale;
    if (reduction_run->fold.to) lb_round_to_grid_f32(x, (size_t)n, reduction_run->fold.to, NULL);
}

static void block_f32(const reduction_run *reduction_run, const lb_collective_slice *piece, int64_t at, int64_t n)
{
    size_t size = lb_dtype_bits(reduction_run->dtype) / 8;
    for (uint32_t k = 0; k < reduction_run->n; k++) {
        lb_load_f32(reg(reduction_run, k, 4), reduction_run->dtype,
                    (const char *)reduction_run->inputs[k] + at * (int64_t)size, (size_t)n);
        if (reduction_run->scale != 1 && !reduction_run->scale_last)
            scale_f32(reduction_run, reg(reduction_run, k, 4), n);
    }
    for (uint32_t f = 0; f + 1 < reduction_run->n; f++)
        fold_f32(&reduction_run->fold, reg(reduction_run, piece->folds[f].dst, 4),
                 reg(reduction_run, piece->folds[f].src, 4), n);
    if (reduction_run->scale != 1 && reduction_run->scale_last)
        scale_f32(reduction_run, reg(reduction_run, piece->root, 4), n);
    lb_store_f32(reduction_run->dtype, (char *)reduction_run->out + at * (int64_t)size,
                 reg(reduction_run, piece->root, 4), (size_t)n, NULL);
}

static void block_f64(const reduction_run *reduction_run, const lb_collective_slice *piece, int64_t at, int64_t n)
{
    size_t size = lb_dtype_bits(reduction_run->dtype) / 8;
    for (uint32_t k = 0; k < reduction_run->n; k++) {
        double *x = reg(reduction_run, k, 8);
        lb_load_f64(x, reduction_run->dtype, (const char *)reduction_run->inputs[k] + at * (int64_t)size, (size_t)n);
        for (int64_t i = 0; reduction_run->scale != 1 && !reduction_run->scale_last && i < n; i++)
            x[i] *= reduction_run->scale;
    }
    for (uint32_t f = 0; f + 1 < reduction_run->n; f++)
        fold_f64(&reduction_run->fold, reg(reduction_run, piece->folds[f].dst, 8),
                 reg(reduction_run, piece->folds[f].src, 8), n);
    double *root = reg(reduction_run, piece->root, 8);
    for (int64_t i = 0; reduction_run->scale != 1 && reduction_run->scale_last && i < n; i++)
        root[i] = reduction_run->divides ? root[i] / reduction_run->n : root[i] * reduction_run->scale;
    lb_store_f64(reduction_run->dtype, (char *)reduction_run->out + at * (int64_t)size, root, (size_t)n, NULL);
}

static void block_int(const reduction_run *reduction_run, const lb_collective_slice *piece, int64_t at, int64_t n)
{
    size_t size = lb_dtype_bits(reduction_run->dtype) / 8;
    for (uint32_t k = 0; k < reduction_run->n; k++)
        lb_convert(LB_I64, reg(reduction_run, k, 8), reduction_run->dtype,
                   (const char *)reduction_run->inputs[k] + at * (int64_t)size, (size_t)n, NULL);
    for (uint32_t f = 0; f + 1 < reduction_run->n; f++)
        fold_int(&reduction_run->fold, reg(reduction_run, piece->folds[f].dst, 8),
                 reg(reduction_run, piece->folds[f].src, 8), n);
    int64_t *root = reg(reduction_run, piece->root, 8);
    for (int64_t i = 0; reduction_run->scale_last && i < n; i++)
        root[i] /= (int64_t)reduction_run->n; /* AVG of integers: SumPostDiv */
    lb_convert(reduction_run->dtype, (char *)reduction_run->out + at * (int64_t)size, LB_I64, root, (size_t)n, NULL);
}

/* Complex sums are sums of their parts; nothing else is defined on them. */
static lb_dtype arithmetic_dtype(lb_dtype dtype, int64_t *count)
{
    if (!lb_dtype_is_complex(dtype)) return dtype;
    *count *= 2;
    return lb_dtype_part(dtype);
}

lb_status lb_collective_reduce(const lb_collective_order *order, lb_collective_reduction reduction,
                               const lb_rank_terms *terms, void *out, lb_err *err)
{
    const uint32_t n = terms->n;
    const lb_dtype dtype = terms->dtype;
    bool bits = reduction >= LB_REDUCE_BAND, complex = lb_dtype_is_complex(dtype);
    if ((bits && !lb_dtype_is_integer(dtype)) || (complex && reduction != LB_REDUCE_SUM) || lb_dtype_bits(dtype) % 8)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "a reduction over ranks that %s doesn't have", lb_dtype_name(dtype));
    lb_collective_pieces pieces;
    /* Pieces count whole complex numbers; the arithmetic then runs over their parts. */
    LB_TRY(lb_collective_order_pieces(order, n, terms->count, lb_dtype_bits(dtype) / 8, &pieces, err));
    int64_t parts = 1;
    reduction_run reduction_run = {
        .n = n, .inputs = terms->inputs, .dtype = arithmetic_dtype(dtype, &parts), .out = out, .scale = 1};
    bool wide = order->kind == LB_ORDER_WIDE || order->kind == LB_ORDER_ROTATED,
         integer = lb_dtype_is_integer(reduction_run.dtype);
    bool f64 = reduction_run.dtype == LB_F64 || (wide && reduction_run.dtype == LB_F32);
    reduction_run.fold = (folder){
        reduction, reduction_run.dtype,
        wide || reduction_run.dtype == LB_F32 || reduction_run.dtype == LB_F64 ? LB_NO_DTYPE : reduction_run.dtype};
    if (reduction == LB_REDUCE_AVG) {
        reduction_run.divides =
            order->kind == LB_ORDER_GLOO; /* torch's ProcessGroupGloo divides the sum, seen with 2.13 */
        reduction_run.scale_last = wide || integer || reduction_run.divides;
        reduction_run.scale = 1.0 / n;
        if (!integer && !wide && reduction_run.dtype != LB_F64) {
            float scale = (float)reduction_run.scale;
            if (reduction_run.fold.to) lb_round_to_grid_f32(&scale, 1, reduction_run.fold.to, NULL);
            reduction_run.scale = scale;
        }
    }
    reduction_run.registers = malloc((size_t)n * BLOCK * 8);
    if (!reduction_run.registers) {
        lb_collective_pieces_release(&pieces);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", n);
    }
    for (uint32_t p = 0; p < pieces.n; p++)
        for (int64_t at = pieces.pieces[p].first * parts; at < pieces.pieces[p].last * parts; at += BLOCK) {
            int64_t left = pieces.pieces[p].last * parts - at, k = left < BLOCK ? left : BLOCK;
            if (integer)
                block_int(&reduction_run, &pieces.pieces[p], at, k);
            else if (f64)
                block_f64(&reduction_run, &pieces.pieces[p], at, k);
            else
                block_f32(&reduction_run, &pieces.pieces[p], at, k);
        }
    free(reduction_run.registers);
    lb_collective_pieces_release(&pieces);
    return LB_OK;
}

lb_status lb_collective_reduce_blocks(const lb_collective_order *order, lb_collective_reduction reduction,
                                      const lb_rank_terms *terms, void *out, lb_err *err)
{
    const uint32_t n = terms->n;
    const int64_t each = n ? terms->count / n : 0;
    if (!lb_collective_order_ends_at_home(order)) return lb_collective_reduce(order, reduction, terms, out, err);
    const void **inputs = malloc((n + 1) * sizeof *inputs);
    if (!inputs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", n);
    lb_status status = LB_OK;
    for (uint32_t block = 0; block < n && status == LB_OK; block++) {
        const size_t offset = (size_t)(block * each) * (lb_dtype_bits(terms->dtype) / 8);
        lb_collective_order mine = *order;
        mine.home = block + 1;
        for (uint32_t r = 0; r < n; r++) inputs[r] = (const char *)terms->inputs[r] + offset;
        status = lb_collective_reduce(&mine, reduction, &(lb_rank_terms){inputs, n, terms->dtype, each},
                                      (char *)out + offset, err);
    }
    free(inputs);
    return status;
}
