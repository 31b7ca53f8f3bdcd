/* Matrix products of numbers of 8 and 4 bits with scales.
 *
 *      one scale, or one per row and column        the sum is scaled
 *      one per 128 along k (and 128 rows)          each block's sum is scaled before it is added to those before it
 *      MX: a power of two per 32 along k           numbers are scaled first, which is exact in f32
 *      NVFP4: an e4m3 per 16 along k               the same, and one f32 scale for all of each operand
 *
 * Scales of MX and NVFP4 lie in rows, or as SWIZZLE_32_4_4 says in tiles of 128 rows by 4 scales (op_four_bit.c). Two
 * e2m1 share a byte, which comes as u8. Source: pytorch/pytorch aten/src/ATen/native/cuda/ScaledBlas.cpp,
 * GroupedBlas.cpp; torch/nn/functional.py scaled_mm.
 */
#include "ops/matrices.h"
#include "ops/row_call.h"
#include "orders/tensor_core.h"

#include <math.h>
#include <string.h>

/* ---- what matrix units do with 8 bits ---------------------------------------------------------------------------- */

/* Ada's and Hopper's units keep 13 fraction bits of each fused sum of 16 products or more, and of the accumulator
 * (tensor_core.h): such a sum is off by at most 18 of these steps of the largest magnitude in it, which is no larger
 * than all of them together. Sums of 128 products from 0 are added in f32 unless accumulation is fast; twice that is
 * allowed for. Factor of a twin, 1 where no operand is a float of 8 bits. */
static double room_of_units(const lb_call *call, const lb_matrices *matrices, bool fast)
{
    const double factor = (double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call);
    const bool eight = (lb_dtype_bits(matrices->a.dtype) == 8 && lb_dtype_is_float(matrices->a.dtype)) ||
                       (lb_dtype_bits(matrices->b.dtype) == 8 && lb_dtype_is_float(matrices->b.dtype));
    const double sums = fast ? (double)matrices->shape.k / 16 + 1 : fmin((double)matrices->shape.k / 16 + 1, 16);
    return eight ? 1 + sums * 18 * 0x1p-13 / (0x1p-24 * factor) : 1;
}

/* ---- sums that are scaled ---------------------------------------------------------------------------------------- */

/* Positions in the schema: a, b follow each other, and so do their scales; the bias is behind them. */
typedef struct scaled_form {
    uint8_t a, scales, bias;
    uint8_t fast; /* whether accumulation may be fast; 0: not said, and not allowed for */
} scaled_form;

/* Scales of blocks of 128 along k: (m, k / 128) and (k / 128, n), or with 128 columns sharing one. */
#define SCALED_BLOCK 128

static bool is_blocked(const lb_tensor *sa, const lb_product *product)
{
    const int64_t blocks = (product->k + SCALED_BLOCK - 1) / SCALED_BLOCK;
    return sa->layout.ndim == 2 && sa->layout.shape[0] == product->m && sa->layout.shape[1] == blocks && blocks > 1;
}

/* How many rows or columns share a scale; 0: neither one nor 128. */
static int64_t sharing(int64_t scales, int64_t size)
{
    return scales == size ? 1 : scales == (size + SCALED_BLOCK - 1) / SCALED_BLOCK ? SCALED_BLOCK : 0;
}

/* Each block's sum is scaled before it is added to those before it. Scales: (rows, blocks) and (blocks, columns), where
 * 128 rows or columns may share one. */
static void scaled_blocks(lb_matrices *matrices, const lb_tensor *sa, const lb_tensor *sb, void *y)
{
    lb_frame *frame = &matrices->frame;
    const lb_product whole = matrices->shape;
    const lb_tensor a = matrices->a, b = matrices->b;
    const int64_t n = whole.m * whole.n, blocks = sa->layout.shape[1],
                  columns = sb->layout.ndim == 2 && sb->layout.shape[0] == blocks ? sb->layout.shape[1] : 0,
                  width = sharing(columns, whole.n), height = sharing(sa->layout.shape[0], whole.m);
    if (!width || !height || blocks != (whole.k + SCALED_BLOCK - 1) / SCALED_BLOCK)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "scales of blocks of other sizes than 128");
    const void *left = lb_frame_tensor(frame, sa), *right = lb_frame_tensor(frame, sb);
    void *part = lb_frame_reals(frame, n);
    for (int64_t k = 0; lb_frame_ok(frame) && k < blocks; k++) {
        const int64_t first = k * SCALED_BLOCK;
        matrices->shape.k = whole.k - first < SCALED_BLOCK ? whole.k - first : SCALED_BLOCK;
        matrices->a.layout.shape[1] = matrices->b.layout.shape[0] = matrices->shape.k;
        matrices->a.data = (char *)a.data + first * a.layout.stride[1] * (int64_t)lb_dtype_bits(a.dtype) / 8;
        matrices->b.data = (char *)b.data + first * b.layout.stride[0] * (int64_t)lb_dtype_bits(b.dtype) / 8;
        lb_matrices_multiply(matrices, part);
        for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++) {
            const double sum = lb_frame_get(frame, part, i),
                         scale_a = lb_frame_get(frame, left, i / whole.n / height * blocks + k),
                         scale_b = lb_frame_get(frame, right, k * columns + i % whole.n / width);
            if (frame->wide)
                ((double *)y)[i] = (k ? ((double *)y)[i] : 0) + sum * (scale_a * scale_b);
            else
                ((float *)y)[i] = (k ? ((float *)y)[i] : 0) + (float)sum * ((float)scale_a * (float)scale_b);
        }
    }
    matrices->shape = whole, matrices->a = a, matrices->b = b;
}

/* Scales of one element, or one per row and column: the sum is scaled by the product of the scales. */
static void scaled_whole(lb_matrices *matrices, const lb_tensor *ta, const lb_tensor *tb, void *y)
{
    lb_frame *frame = &matrices->frame;
    const void *sa = lb_frame_tensor(frame, ta), *sb = lb_frame_tensor(frame, tb);
    const int64_t na = lb_tensor_numel(ta), nb = lb_tensor_numel(tb), n = matrices->shape.n;
    if ((na != 1 && na != matrices->shape.m) || (nb != 1 && nb != n))
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED,
                      "scales that are neither one, one per row and column, nor per block of 128");
    if (lb_frame_ok(frame)) lb_matrices_multiply(matrices, y);
    for (int64_t i = 0; lb_frame_ok(frame) && i < matrices->shape.m * n; i++) {
        const double scale_a = lb_frame_get(frame, sa, na == 1 ? 0 : i / n),
                     scale_b = lb_frame_get(frame, sb, nb == 1 ? 0 : i % n);
        if (frame->wide)
            ((double *)y)[i] *= scale_a * scale_b;
        else
            ((float *)y)[i] *= (float)scale_a * (float)scale_b;
    }
}

/* ---- numbers that are scaled ------------------------------------------------------------------------------------- */

enum { NV = 16, MX = 32, TILE_ROWS = 128, TILE_SCALES = 4 };

/* One scale for so many neighbours along k, of each row of A or column of B. */
typedef struct groups {
    const lb_tensor *scales;
    int64_t width;
    bool tiled;
} groups;

static int64_t up(int64_t n, int64_t to)
{
    return (n + to - 1) / to;
}

static int64_t scales_of(const groups *groups, int64_t rows, int64_t columns)
{
    return groups->tiled ? up(rows, TILE_ROWS) * TILE_ROWS * up(columns, TILE_SCALES) * TILE_SCALES : rows * columns;
}

static int64_t place(const groups *groups, int64_t row, int64_t column, int64_t columns)
{
    if (!groups->tiled) return row * columns + column;
    const int64_t tile = row / TILE_ROWS * up(columns, TILE_SCALES) + column / TILE_SCALES;
    return tile * TILE_ROWS * TILE_SCALES + row % 32 * 16 + row % TILE_ROWS / 32 * TILE_SCALES + column % TILE_SCALES;
}

/* A matrix of 8-bit floats, or of bytes with two e2m1 along k, read by row and place along k. */
typedef struct coded {
    const lb_tensor *tensor;
    int64_t along_rows, along_k; /* strides */
} coded;

static double decoded(const coded *coded, int64_t row, int64_t k)
{
    const lb_dtype dtype = coded->tensor->dtype;
    const bool pairs = dtype == LB_U8;
    const int64_t at = row * coded->along_rows + (pairs ? k / 2 : k) * coded->along_k;
    if (!pairs) return lb_to_f64(dtype, (const char *)coded->tensor->data + at * (int64_t)(lb_dtype_bits(dtype) / 8));
    const uint8_t byte = ((const uint8_t *)coded->tensor->data)[at], code = k % 2 ? byte >> 4 : byte & 0xf;
    return lb_to_f64(LB_E2M1, &code);
}

/* (rows, k) of the frame's type; NULL when scales are others than these numbers have. */
static void *scaled_numbers(lb_matrices *matrices, const coded *coded, const groups *groups, int64_t rows, int64_t k)
{
    lb_frame *frame = &matrices->frame;
    const int64_t columns = up(k, groups->width);
    if (lb_tensor_numel(groups->scales) != scales_of(groups, rows, columns) ||
        !lb_layout_is_contiguous(&groups->scales->layout)) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED,
                      "another number of scales than rows and groups along k have in this layout");
        return NULL;
    }
    void *y = lb_frame_reals(frame, rows * k);
    const char *scales = groups->scales->data;
    const int64_t size = (int64_t)lb_dtype_bits(groups->scales->dtype) / 8;
    for (int64_t i = 0; y && i < rows; i++)
        for (int64_t j = 0; j < k; j++) {
            const double scale =
                lb_to_f64(groups->scales->dtype, scales + place(groups, i, j / groups->width, columns) * size);
            lb_frame_set(frame, y, i * k + j, decoded(coded, i, j) * scale);
        }
    return y;
}

/* The product of numbers that were scaled. */
static void scaled_groups(lb_matrices *matrices, const groups *ga, const groups *gb, void *y)
{
    lb_frame *frame = &matrices->frame;
    lb_product shape = matrices->shape;
    if (matrices->a.dtype == LB_U8) shape.k *= 2;
    const coded coded = {&matrices->a, matrices->a.layout.stride[0], matrices->a.layout.stride[1]},
                b = {&matrices->b, matrices->b.layout.stride[1], matrices->b.layout.stride[0]};
    if ((matrices->a.dtype == LB_U8) != (matrices->b.dtype == LB_U8))
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "operands of 4 and of 8 bits");
    const void *left = lb_frame_ok(frame) ? scaled_numbers(matrices, &coded, ga, shape.m, shape.k) : NULL,
               *right = lb_frame_ok(frame) ? scaled_numbers(matrices, &b, gb, shape.n, shape.k) : NULL;
    if (!lb_frame_ok(frame)) return;
    const lb_matrix_pair operands = {.a = {left, frame->type, (ptrdiff_t)shape.k, 1},
                                     .b = {right, frame->type, 1, (ptrdiff_t)shape.k},
                                     .absolute = matrices->twin};
    const lb_status status = lb_product_matrices(&shape, frame->type, &frame->call->method, &operands, y);
    if (status != LB_OK) lb_matrices_failed(frame, status);
}

/* ---- the op that says how it is scaled --------------------------------------------------------------------------- */

/* torch.nn.functional.ScalingType */
typedef enum recipe { BY_TENSOR, BY_ROW, BY_16, BY_32, BY_128, BY_128_128 } recipe;

/* Args of one operand: its scales, how they were made, how they lie. */
typedef struct scaling {
    const lb_tensor *first, *second; /* second: one scale for all beside those of groups */
    int64_t recipe;
    bool tiled;
} scaling;

static scaling scaling_of(const lb_call *call, uint32_t first)
{
    scaling scaling = {.recipe = -1};
    int64_t numbers[2] = {-1, 0};
    const lb_operand *list = &call->args[first];
    if (first + 2 >= call->n_args || list->tag != LB_OPERAND_TENSORS || !list->count) return scaling;
    scaling.first = &list->tensors[0], scaling.second = list->count > 1 ? &list->tensors[1] : NULL;
    if (lb_frame_arg_ints(call, first + 1, numbers, 2) > 0) scaling.recipe = numbers[0];
    numbers[0] = 0;
    lb_frame_arg_ints(call, first + 2, numbers, 2);
    scaling.tiled = numbers[0] == 1;
    if (numbers[0] < 0 || numbers[0] > 1) scaling.recipe = -1;
    return scaling;
}

/* Scales of blocks as scaled_blocks reads them: (rows, blocks) of A, (blocks, columns) of B. torch has (rows, blocks)
 * of either for 1 x 128, and (blocks, rows / 128) for 128 x 128, where blocks may be rounded up to a multiple of 4. */
static lb_tensor block_scales(const scaling *scaling, int64_t k, bool of_a)
{
    lb_tensor view = *scaling->first;
    const bool blocks_first = scaling->recipe == BY_128_128;
    if (view.layout.ndim == 2 && blocks_first && view.layout.shape[0] >= up(k, SCALED_BLOCK))
        view.layout.shape[0] = up(k, SCALED_BLOCK);
    return view.layout.ndim == 2 && blocks_first == of_a ? lb_frame_dim_last(&view, 0) : view;
}

static void scale_as_said(lb_matrices *matrices, const scaling *a, const scaling *b, void *y)
{
    lb_frame *frame = &matrices->frame;
    const bool by_block =
        (a->recipe == BY_128 || a->recipe == BY_128_128) && (b->recipe == BY_128 || b->recipe == BY_128_128);
    if (a->recipe == b->recipe && (a->recipe == BY_TENSOR || a->recipe == BY_ROW)) {
        scaled_whole(matrices, a->first, b->first, y);
    } else if (by_block) {
        const lb_tensor left = block_scales(a, matrices->shape.k, true),
                        right = block_scales(b, matrices->shape.k, false);
        if (left.layout.ndim == 2)
            scaled_blocks(matrices, &left, &right, y);
        else
            lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "scales of blocks that are no matrix");
    } else if (a->recipe == b->recipe && (a->recipe == BY_16 || a->recipe == BY_32)) {
        const int64_t width = a->recipe == BY_16 ? NV : MX;
        scaled_groups(matrices, &(groups){a->first, width, a->tiled}, &(groups){b->first, width, b->tiled}, y);
    } else {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "scales in a layout that its arguments do not tell");
    }
    const lb_tensor *whole[2] = {a->second, b->second};
    for (int i = 0; i < 2; i++) {
        const void *one = lb_frame_tensor(frame, whole[i]);
        if (one && lb_tensor_numel(whole[i]) != 1)
            lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "second scales that are not one");
        for (int64_t k = 0; one && lb_frame_ok(frame) && k < matrices->shape.m * matrices->shape.n; k++)
            lb_frame_set(frame, y, k, lb_frame_get(frame, y, k) * lb_frame_get(frame, one, 0));
    }
}

/* The bias is added to what was scaled. */
static void add_bias(lb_matrices *matrices, const lb_tensor *bias, void *y)
{
    lb_frame *frame = &matrices->frame;
    const int64_t n = matrices->shape.n;
    const void *added = bias ? lb_matrices_reals(frame, bias, matrices->twin) : NULL;
    if (bias && lb_tensor_numel(bias) != n) lb_frame_fail(frame, LB_ERR_INVALID, "a bias that is not by column");
    for (int64_t i = 0; added && lb_frame_ok(frame) && i < matrices->shape.m * n; i++)
        lb_frame_set(frame, y, i, lb_frame_get(frame, y, i) + lb_frame_get(frame, added, i % n));
}

static void widen(lb_matrices *matrices, double room, void *y)
{
    for (int64_t i = 0; matrices->twin && lb_frame_ok(&matrices->frame) && i < matrices->shape.m * matrices->shape.n;
         i++)
        lb_frame_set(&matrices->frame, y, i, lb_frame_get(&matrices->frame, y, i) * room);
}

static lb_status scaled_run(lb_call *call, const scaled_form *form, bool twin)
{
    lb_matrices matrices;
    if (!lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, form->a), lb_frame_arg_tensor(call, form->a + 1u),
                           twin))
        return lb_frame_end(&matrices.frame);
    lb_frame *frame = &matrices.frame;
    const lb_tensor *sa = lb_frame_arg_tensor(call, form->scales), *sb = lb_frame_arg_tensor(call, form->scales + 1u);
    void *y = lb_frame_output(frame, 0, matrices.shape.m * matrices.shape.n);
    if (lb_frame_ok(frame) && sa->dtype == LB_E8M0)
        scaled_groups(&matrices, &(groups){sa, MX, true}, &(groups){sb, MX, true}, y);
    else if (lb_frame_ok(frame))
        (is_blocked(sa, &matrices.shape) ? scaled_blocks : scaled_whole)(&matrices, sa, sb, y);
    if (form->fast) widen(&matrices, room_of_units(call, &matrices, lb_frame_arg_int(call, form->fast, 0)), y);
    if (form->bias) add_bias(&matrices, lb_frame_arg_tensor(call, form->bias), y);
    return lb_frame_end(frame);
}

#define SCALED(ID, ...)                                                                                                \
    static const scaled_form ID##_form = {__VA_ARGS__};                                                                \
    LB_WITH_TWIN(ID, scaled_run(call, &ID##_form, twin))
SCALED(scaled_mm, .a = 0, .scales = 2, .bias = 4, .fast = 7)

/* Args: self, mat2, scales, recipes and swizzles of either, bias, out_dtype, contraction_dim, use_fast_accum. */
static lb_status scaled_v2_run(lb_call *call, bool twin)
{
    lb_matrices matrices;
    const scaling a = scaling_of(call, 2), b = scaling_of(call, 5);
    if (!lb_matrices_begin(&matrices, call, lb_frame_arg_tensor(call, 0), lb_frame_arg_tensor(call, 1), twin))
        return lb_frame_end(&matrices.frame);
    void *y = lb_frame_output(&matrices.frame, 0, matrices.shape.m * matrices.shape.n);
    if (!a.first || !b.first) lb_frame_fail(&matrices.frame, LB_ERR_UNSUPPORTED, "no scales");
    if (lb_frame_ok(&matrices.frame)) scale_as_said(&matrices, &a, &b, y);
    widen(&matrices, room_of_units(call, &matrices, lb_frame_arg_int(call, 11, 0)), y);
    add_bias(&matrices, lb_frame_arg_tensor(call, 8), y);
    return lb_frame_end(&matrices.frame);
}

LB_WITH_TWIN(scaled_v2, scaled_v2_run(call, twin))

SCALED(scaled_mm_out, .a = 1, .scales = 3, .bias = 5)
SCALED(scaled_mm_typed, .a = 0, .scales = 2, .bias = 5)

/* ---- groups of products ------------------------------------------------------------------------------------------ */

/* Where a grouped product's args stand. */
typedef struct grouped {
    const lb_tensor *scale_a, *scale_b, *offsets;
    bool fast;
} grouped;

/* Which group an element of the result belongs to, its row and its column there; rows or columns of a two-dimensional
 * operand that is cut have scales of their own, else every group has some. */
typedef struct cut_result {
    int64_t rows, columns, groups; /* of one group's matrix; the cut dimension's is that of the whole */
    bool cut_rows, cut_columns; /* the result is (cut rows, columns), (rows, cut columns), or (groups, rows, columns) */
} cut_result;

static int64_t group_at(const int64_t *ends, int64_t groups, int64_t i)
{
    int64_t g = 0;
    while (g < groups && ends[g] <= i) g++;
    return g < groups ? g : groups - 1;
}

static void scale_groups(lb_frame *frame, const cut_result *cut_result, const int64_t *ends, const void *sa,
                         const void *sb, void *y)
{
    const int64_t n = lb_tensor_numel(&frame->call->results[0]);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i / cut_result->columns % cut_result->rows, column = i % cut_result->columns;
        const int64_t g = cut_result->cut_rows      ? group_at(ends, cut_result->groups, row)
                          : cut_result->cut_columns ? group_at(ends, cut_result->groups, column)
                                                    : i / (cut_result->rows * cut_result->columns);
        const double left = lb_frame_get(frame, sa, cut_result->cut_rows ? row : g * cut_result->rows + row),
                     right =
                         lb_frame_get(frame, sb, cut_result->cut_columns ? column : g * cut_result->columns + column);
        lb_frame_set(frame, y, i,
                     lb_frame_get(frame, y, i) * (frame->wide ? left * right : (double)((float)left * (float)right)));
    }
}

static lb_status grouped_run(lb_call *call, const grouped *grouped, bool twin)
{
    const lb_tensor *a = lb_frame_arg_tensor(call, 0), *b = lb_frame_arg_tensor(call, 1);
    const lb_layout *out = &call->results[0].layout;
    lb_frame frame = lb_frame_begin(call);
    const bool a2 = a->layout.ndim == 2, b2 = b->layout.ndim == 2;
    if (out->ndim < 2 || (a2 != b2 && out->ndim != 2) || (a2 == b2 && out->ndim != 3) ||
        (!grouped->offsets && (a2 || b2)))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "operands and groups that do not match");
    if (!grouped->scale_a || !grouped->scale_b || grouped->scale_a->dtype == LB_E8M0)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "scales of groups, whose tiles lie where the kernel has them");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    const cut_result cut_result = {out->shape[out->ndim - 2], out->shape[out->ndim - 1],
                                   grouped->offsets ? lb_tensor_numel(grouped->offsets) : out->shape[0], a2 && !b2,
                                   b2 && !a2};
    if (lb_tensor_numel(grouped->scale_a) != (cut_result.cut_rows ? 1 : cut_result.groups) * cut_result.rows ||
        lb_tensor_numel(grouped->scale_b) != (cut_result.cut_columns ? 1 : cut_result.groups) * cut_result.columns)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "scales that are not one per row and column of each group");
    if (cut_result.groups < 1) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "no groups");
    const int64_t n = lb_layout_numel(out), *ends = lb_frame_integers(&frame, grouped->offsets);
    const void *sa = lb_frame_tensor(&frame, grouped->scale_a), *sb = lb_frame_tensor(&frame, grouped->scale_b);
    lb_tensor sums = {.dtype = frame.type, .layout = lb_layout_contiguous(out->ndim, out->shape)};
    sums.data = lb_frame_reals(&frame, n);
    void *y = lb_frame_output(&frame, 0, n);
    lb_row_call p = {.row = "aten::_grouped_mm",
                     .args = {lb_operand_tensor(a), lb_operand_tensor(b),
                              grouped->offsets ? lb_operand_tensor(grouped->offsets) : lb_operand_none()},
                     .n_args = 3,
                     .results = {sums},
                     .n_results = 1};
    if (lb_frame_ok(&frame)) frame.status = lb_row_call_run(call, &p, twin);
    if (lb_frame_ok(&frame) && cut_result.columns && cut_result.rows) {
        memcpy(y, sums.data, (size_t)n * (frame.wide ? 8 : 4));
        scale_groups(&frame, &cut_result, ends, sa, sb, y);
    }
    const lb_matrices shape = {.shape = {.k = a->layout.shape[a->layout.ndim - 1]}, .a = *a, .b = *b};
    const double room = twin ? room_of_units(call, &shape, grouped->fast) : 1;
    for (int64_t i = 0; twin && lb_frame_ok(&frame) && i < n; i++)
        lb_frame_set(&frame, y, i, lb_frame_get(&frame, y, i) * room);
    return lb_frame_end(&frame);
}

/* Args: self, mat2, scale_a, scale_b, offs, bias, scale_result, out_dtype, use_fast_accum. */
static lb_status scaled_grouped_run(lb_call *call, bool twin)
{
    if (lb_frame_arg_given(call, 5)) return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: a bias", call->row->name);
    const grouped grouped = {lb_frame_arg_tensor(call, 2), lb_frame_arg_tensor(call, 3), lb_frame_arg_tensor(call, 4),
                             lb_frame_arg_int(call, 8, 0)};
    return grouped_run(call, &grouped, twin);
}

/* Args: self, mat2, scales, recipes and swizzles of either, offs, bias, out_dtype, contraction_dim, use_fast_accum. */
static lb_status scaled_grouped_v2_run(lb_call *call, bool twin)
{
    const scaling a = scaling_of(call, 2), b = scaling_of(call, 5);
    if (a.recipe != BY_ROW || b.recipe != BY_ROW || lb_frame_arg_given(call, 9))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED,
                       "%s: scales of groups, whose tiles lie where the kernel has them, or a bias", call->row->name);
    const grouped grouped = {a.first, b.first, lb_frame_arg_tensor(call, 8), lb_frame_arg_int(call, 12, 0)};
    return grouped_run(call, &grouped, twin);
}

LB_WITH_TWIN(scaled_grouped, scaled_grouped_run(call, twin))
LB_WITH_TWIN(scaled_grouped_v2, scaled_grouped_v2_run(call, twin))

#define PRODUCT(NAME, ARGS, KERNEL, TERMS, SAMPLES)                                                                    \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(KERNEL),                                                                                           \
     LB_SUMS(4, LB_TERMS(TERMS, 0)),                                                                                   \
     .flags = LB_ROW_MATMUL,                                                                                           \
     .kernels = "openblas " LB_TENSOR_CORES,                                                                           \
     .samples = SAMPLES}
#define TYPED(NAME, ARGS)                                                                                              \
    {.name = "sgl_kernel::" NAME,                                                                                      \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(scaled_mm_typed),                                                                                  \
     LB_SUMS(4, LB_TERMS(INNER, 0)),                                                                                   \
     .flags = LB_ROW_MATMUL,                                                                                           \
     .kernels = "openblas " LB_TENSOR_CORES,                                                                           \
     .samples = "custom"}
const lb_op_row lb_rows_scaled_product[] = {
    PRODUCT("_scaled_mm", "self! mat2! scale_a! scale_b! bias scale_result out_dtype use_fast_accum", scaled_mm, INNER,
            "scaled_mm"),
    PRODUCT("_scaled_mm_v2",
            "self! mat2! scale_a[] recipe_a swizzle_a scale_b[] recipe_b swizzle_b bias out_dtype contraction_dim "
            "use_fast_accum",
            scaled_v2, PAIRS, "scaled_mm_v2"),
    PRODUCT("_scaled_grouped_mm", "self! mat2! scale_a! scale_b! offs bias scale_result out_dtype use_fast_accum",
            scaled_grouped, INNER, "scaled_grouped_mm"),
    PRODUCT("_scaled_grouped_mm_v2",
            "self! mat2! scale_a[] recipe_a swizzle_a scale_b[] recipe_b swizzle_b offs bias out_dtype contraction_dim "
            "use_fast_accum",
            scaled_grouped_v2, INNER, "scaled_grouped_mm v2"),
    /* vllm-project/vllm csrc/libtorch_stable/torch_bindings.cpp; sgl-project/sglang
     * sgl-kernel/csrc/common_extension.cc */
    {.name = "_C::cutlass_scaled_mm",
     .args = "out! a! b! a_scales! b_scales! bias",
     LB_COMPUTED_BY(scaled_mm_out),
     LB_SUMS(4, LB_TERMS(INNER, 1)),
     .flags = LB_ROW_MATMUL | LB_ROW_WRITES,
     .kernels = "openblas " LB_TENSOR_CORES,
     .samples = "custom"},
    TYPED("fp8_scaled_mm", "mat_a! mat_b! scales_a! scales_b! out_dtype bias"),
    TYPED("int8_scaled_mm", "mat_a! mat_b! scales_a! scales_b! out_dtype bias"),
    TYPED("fp8_blockwise_scaled_mm", "mat_a! mat_b! scales_a! scales_b! out_dtype"),
    {NULL},
};
