/* Numbers of four bits, and bitsandbytes' of eight: weights as QLoRA keeps them, further down; first
 * NVFP4 under the names of vLLM and SGLang: two e2m1 per byte, an e4m3 scale for 16 neighbours, one f32 scale for all.
 *
 *      scaled_fp4_quant        scale = e4m3(largest / 6 * input_scale), q = e2m1(x / (scale / input_scale))
 *      cutlass_scaled_fp4_mm   alpha * sum of q_a scale_a q_b scale_b, along both operands' rows
 *
 * Scales lie in rows, or in tiles of 128 rows by 4 scales, as the tensor cores of Blackwell read them, with zeros where
 * a tile goes on behind the last row or column:
 *
 *      tile (row / 128, scale / 4) → row % 32 → row % 128 / 32 → scale % 4
 *
 * Schemas: vllm-project/vllm csrc/libtorch_stable/torch_bindings.cpp, and csrc/torch_bindings.cpp of older versions;
 * sgl-project/sglang sgl-kernel/csrc/common_extension.cc. Definition: csrc/quantization/fp4/nvfp4_quant_kernels.cu,
 * nvfp4_utils.cuh. The originals divide by an approximate reciprocal (rcp.approx.ftz.f32, within 1 ulp), which may
 * round an element the other way that lies on a border.
 */
#include "kernel/frame.h"
#include "kernel/value_memory.h"

#include <math.h>
#include <string.h>

enum { GROUP = 16, TILE_ROWS = 128, TILE_SCALES = 4, TILE = TILE_ROWS * TILE_SCALES };

#define E2M1_MAX 6.0
#define E4M3_MAX 448.0

/* Where scales lie. */
typedef struct scales {
    int64_t rows, columns; /* of scales */
    bool tiled;
} scales;

static int64_t up(int64_t n, int64_t to)
{
    return (n + to - 1) / to;
}

static int64_t bytes_of(const scales *scales)
{
    return scales->tiled ? up(scales->rows, TILE_ROWS) * up(scales->columns, TILE_SCALES) * TILE
                         : scales->rows * scales->columns;
}

static int64_t place(const scales *scales, int64_t row, int64_t column)
{
    if (!scales->tiled) return row * scales->columns + column;
    const int64_t tile = row / TILE_ROWS * up(scales->columns, TILE_SCALES) + column / TILE_SCALES;
    return tile * TILE + row % 32 * 16 + row % TILE_ROWS / 32 * TILE_SCALES + column % TILE_SCALES;
}

static int64_t size_in_bytes(const lb_tensor *tensor)
{
    return tensor ? (int64_t)lb_dtype_bytes(tensor->dtype, (size_t)lb_tensor_numel(tensor)) : 0;
}

/* ---- the quantiser ----------------------------------------------------------------------------------------------- */

/* `x`, `scale`: their args; `q`, `s`: results. */
typedef struct fp4_form {
    uint32_t x, scale, q, s;
    bool tiled;
} fp4_form;

/* (input, input_scale, is_sf_swizzled_layout) gives both; older schemas write (output, input, output_scale,
 * input_scale[, swizzled]), and SGLang's says that it writes all four. */
static fp4_form form_of(const lb_call *call)
{
    const lb_tensor *first = lb_frame_arg_tensor(call, 0);
    const bool writes = first && first->dtype == LB_U8;
    if (!writes) return (fp4_form){0, 1, 0, 1, lb_frame_arg_int(call, 2, 1) != 0};
    return (fp4_form){1, 3, 0, call->n_results == 4 ? 2 : 1, lb_frame_arg_int(call, 4, 1) != 0};
}

static double f32(double x)
{
    return (float)x;
}

static void quantise_group(const lb_frame *frame, const void *x, int64_t i, double given, uint8_t *q, uint8_t *scale)
{
    double most = 0;
    for (int64_t k = i; k < i + GROUP; k++) most = fmax(most, fabs(lb_frame_get(frame, x, k)));
    lb_from_f64(LB_E4M3FN, scale, fmin(f32(given * f32(most * f32(1 / E2M1_MAX))), E4M3_MAX), NULL);
    const double held = lb_to_f64(LB_E4M3FN, scale), factor = held ? f32(1 / f32(held * f32(1 / given))) : 0;
    for (int64_t k = i; k < i + GROUP; k++) {
        uint8_t code = 0;
        lb_from_f64(LB_E2M1, &code, f32(lb_frame_get(frame, x, k) * factor), NULL);
        q[k / 2] = (uint8_t)(k % 2 ? (q[k / 2] & 0xf) | code << 4 : code);
    }
}

static void copy_result(lb_call *call, uint32_t arg, uint32_t result)
{
    const lb_tensor *from = lb_frame_arg_tensor(call, arg);
    if (result < call->n_results && call->results[result].data && from && call->results[result].data != from->data)
        lb_memory_tensor_copy(&call->results[result], from, NULL);
}

static lb_status quantise(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    const fp4_form form = form_of(call);
    const lb_tensor *in = lb_frame_arg_tensor(call, form.x), *given = lb_frame_arg_tensor(call, form.scale);
    const int64_t n = in ? lb_tensor_numel(in) : 0,
                  size = in && in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 0;
    if (!given || !lb_tensor_numel(given) || !size || size % GROUP || call->n_results <= form.s ||
        size_in_bytes(&call->results[form.q]) * 2 != n)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "rows that are no multiple of 16, or results of another size");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    const scales layout = {n / size, size / GROUP, form.tiled};
    if (size_in_bytes(&call->results[form.s]) != bytes_of(&layout))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "another number of scales than the layout has");
    const void *x = lb_frame_tensor(&frame, in), *one = lb_frame_tensor(&frame, given);
    uint8_t *q = lb_frame_output_bytes(&frame, form.q), *s = lb_frame_output_bytes(&frame, form.s);
    if (!q) q = lb_frame_scratch(&frame, (size_t)n / 2);
    if (!s) s = lb_frame_scratch(&frame, (size_t)bytes_of(&layout));
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    memset(s, 0, (size_t)bytes_of(&layout));
    for (int64_t i = 0; i < n; i += GROUP)
        quantise_group(&frame, x, i, lb_frame_get(&frame, one, 0), q, s + place(&layout, i / size, i % size / GROUP));
    const lb_status status = lb_frame_end(&frame);
    if (status == LB_OK && call->n_results == 4) copy_result(call, form.x, 1), copy_result(call, form.scale, 3);
    return status;
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

enum { OUT, A, B, SCALES_A, SCALES_B, ALPHA };

/* (rows, size) reals of the matrix in arg `codes`. */
static double *unpacked(lb_frame *frame, const lb_tensor *codes, const lb_tensor *scale)
{
    const int64_t rows = codes->layout.shape[0], size = 2 * codes->layout.shape[1];
    const scales layout = {rows, size / GROUP, true};
    if (size % GROUP || size_in_bytes(scale) != bytes_of(&layout))
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "another number of scales than the layout has");
    const uint8_t *q = lb_frame_bytes(frame, codes), *s = lb_frame_bytes(frame, scale);
    double *x = lb_frame_scratch(frame, (size_t)(rows * size) * sizeof *x);
    for (int64_t i = 0; lb_frame_ok(frame) && i < rows * size; i++) {
        const uint8_t code = (uint8_t)(i % 2 ? q[i / 2] >> 4 : q[i / 2] & 0xf);
        x[i] = lb_to_f64(LB_E2M1, &code) * lb_to_f64(LB_E4M3FN, s + place(&layout, i / size, i % size / GROUP));
    }
    return x;
}

static lb_status product(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *a = lb_frame_arg_tensor(call, A), *b = lb_frame_arg_tensor(call, B),
                    *sa = lb_frame_arg_tensor(call, SCALES_A), *sb = lb_frame_arg_tensor(call, SCALES_B),
                    *alpha = lb_frame_arg_tensor(call, ALPHA);
    if (!a || !b || !sa || !sb || !alpha || a->dtype != LB_U8 || b->dtype != LB_U8 || a->layout.ndim != 2 ||
        b->layout.ndim != 2 || a->layout.shape[1] != b->layout.shape[1] || !lb_tensor_numel(alpha))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "(m, k / 2) by (n, k / 2) bytes with their scales");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    const int64_t m = a->layout.shape[0], n = b->layout.shape[0], k = 2 * a->layout.shape[1];
    const double *x = unpacked(&frame, a, sa), *w = unpacked(&frame, b, sb);
    const void *factor = lb_frame_tensor(&frame, alpha);
    void *y = lb_frame_output(&frame, 0, m * n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < m * n; i++) {
        const double *row = x + i / n * k, *column = w + i % n * k;
        double sum = 0;
        for (int64_t j = 0; j < k; j++) sum += twin ? fabs(row[j] * column[j]) : row[j] * column[j];
        sum *= lb_frame_get(&frame, factor, 0);
        lb_frame_set(&frame, y, i, twin ? fabs(sum) : sum);
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(product, product(call, twin))

/* ---- bitsandbytes ------------------------------------------------------------------------------------------------ */

/* A number is code[q] times the scale of its block, rounded once; of two in a byte the first has the high bits. FP4's
 * code is that of three bits (0 1/16 8 12 4 6 2 3) over 12. Where a block is longer than a row, bitsandbytes 0.50's
 * kernel for AVX512 reads another block's scale: its results diverge from this, and rightly so. Source:
 * bitsandbytes/backends/default/ops.py, functional.py (get_4bit_type). */
static const float nf4[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};
static const float fp4[16] = {0.0f,  0.0625f / 12,  8.0f / 12,  1.0f,  4.0f / 12,  0.5f,  2.0f / 12,  0.25f,
                              -0.0f, -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f};

/* Weights in blocks, each with a scale; `code` NULL: four bits of that table, else eight of a table that is given. */
typedef struct blocks {
    const uint8_t *q;
    const float *table;
    const void *code, *scale;
    int64_t size, n_scales, n_bytes;
} blocks;

static const float *table_of(const lb_call *call, uint32_t i)
{
    const char *name = i < call->n_args && call->args[i].tag == LB_OPERAND_STRING ? call->args[i].string : NULL;
    return !name ? NULL : !strcmp(name, "nf4") ? nf4 : !strcmp(name, "fp4") ? fp4 : NULL;
}

/* False, and the frame has failed: they are not enough for `n` numbers. */
static bool suffice(lb_frame *frame, const blocks *blocks, int64_t n)
{
    const bool enough = blocks->size > 0 && blocks->n_scales >= up(n, blocks->size) &&
                        blocks->n_bytes >= (blocks->table ? up(n, 2) : n);
    if (!enough) lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "fewer scales or bytes than numbers");
    return lb_frame_ok(frame);
}

static double weight_of(const lb_frame *frame, const blocks *blocks, int64_t i)
{
    const double scale = lb_frame_get(frame, blocks->scale, i / blocks->size);
    if (!blocks->table) return lb_frame_get(frame, blocks->code, blocks->q[i]) * scale;
    return (double)blocks->table[i % 2 ? blocks->q[i / 2] & 0xf : blocks->q[i / 2] >> 4] * scale;
}

static blocks blocks_of(lb_frame *frame, uint32_t q, uint32_t scale, uint32_t size)
{
    const lb_tensor *bytes = lb_frame_arg_tensor(frame->call, q), *scales = lb_frame_arg_tensor(frame->call, scale);
    return (blocks){.q = lb_frame_bytes(frame, bytes),
                    .scale = lb_frame_tensor(frame, scales),
                    .size = lb_frame_arg_int(frame->call, size, 0),
                    .n_scales = lb_tensor_numel(scales),
                    .n_bytes = size_in_bytes(bytes)};
}

static lb_status write_weights(lb_frame *frame, const blocks *blocks)
{
    const int64_t n = lb_tensor_numel(&frame->call->results[0]);
    void *y = lb_frame_output(frame, 0, n);
    if (!lb_frame_ok(frame) || !suffice(frame, blocks, n)) return lb_frame_end(frame);
    for (int64_t i = 0; i < n; i++) lb_frame_set(frame, y, i, weight_of(frame, blocks, i));
    return lb_frame_end(frame);
}

/* A, absmax, blocksize, quant_type, shape, dtype */
static lb_status dequantise_4bit(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    blocks blocks = blocks_of(&frame, 0, 1, 2);
    blocks.table = table_of(call, 3);
    if (!blocks.table) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "another code than nf4 and fp4");
    return write_weights(&frame, &blocks);
}

/* A table of 256 numbers, which bytes point into. */
static void take_code(lb_frame *frame, blocks *blocks, uint32_t i)
{
    const lb_tensor *code = lb_frame_arg_tensor(frame->call, i);
    if (!code || lb_tensor_numel(code) != 256)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "no code of 256 numbers");
    else
        blocks->code = lb_frame_tensor(frame, code);
}

/* A, absmax, code, blocksize, dtype */
static lb_status dequantise_blockwise(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    blocks blocks = blocks_of(&frame, 0, 1, 3);
    take_code(&frame, &blocks, 2);
    return write_weights(&frame, &blocks);
}

/* Scales that are themselves in eight bits, with scales of their own and an offset. */
static void unpack_scales(lb_frame *frame, blocks *b)
{
    const lb_tensor *bytes = lb_frame_arg_tensor(frame->call, 7), *offset = lb_frame_arg_tensor(frame->call, 9);
    blocks outer = {.q = lb_frame_bytes(frame, bytes), .scale = b->scale, .size = 256, .n_scales = b->n_scales};
    const int64_t n = outer.n_bytes = size_in_bytes(bytes);
    take_code(frame, &outer, 8);
    if (!offset || lb_tensor_numel(offset) != 1) lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "scales without an offset");
    void *scale = lb_frame_reals(frame, n);
    if (!lb_frame_ok(frame) || !suffice(frame, &outer, n)) return;
    const double add = lb_to_f64(offset->dtype, offset->data);
    for (int64_t i = 0; i < n; i++) lb_frame_set(frame, scale, i, weight_of(frame, &outer, i) + add);
    b->scale = scale, b->n_scales = n;
}

/* A, B, shapeB, absmax, blocksize, quant_type, bias, absmax_8bit, absmax_code, absmax_offset: A times the transposed
 * weights. They, and their scales and codes, may have been rounded to A's 16 bits before. */
static lb_status by_weights(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    int64_t shape[2] = {0, 0};
    const lb_tensor *a = lb_frame_arg_tensor(call, 0), *bias = lb_frame_arg_tensor(call, 6);
    blocks blocks = blocks_of(&frame, 1, 3, 4);
    blocks.table = table_of(call, 5);
    const int sizes = lb_frame_arg_ints(call, 2, shape, 2);
    const int64_t n = shape[0], k = shape[1], m = k > 0 ? lb_tensor_numel(a) / k : 0;
    if (!blocks.table || sizes != 2 || n < 1 || k < 1 || a->layout.ndim < 1 ||
        a->layout.shape[a->layout.ndim - 1] != k || (bias && lb_tensor_numel(bias) != n))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "no matrix of nf4 or fp4 that fits");
    if (call->cuda && lb_dtype_bits(a->dtype) != 16)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a product of f32 on CUDA may have read TF32");
    if (lb_frame_ok(&frame) && lb_frame_arg_tensor(call, 7)) unpack_scales(&frame, &blocks);
    const void *x = lb_frame_tensor(&frame, a), *add = bias ? lb_frame_tensor(&frame, bias) : NULL;
    void *y = lb_frame_output(&frame, 0, m * n);
    if (!lb_frame_ok(&frame) || !suffice(&frame, &blocks, n * k)) return lb_frame_end(&frame);
    const double rounded = 1 + 3 * lb_frame_twin_rounding(call, 0);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double sum = add ? lb_frame_get(&frame, add, j) : 0;
            if (twin) sum = fabs(sum);
            for (int64_t d = 0; d < k; d++) {
                const double term = lb_frame_get(&frame, x, i * k + d) * weight_of(&frame, &blocks, j * k + d);
                sum += twin ? fabs(term) : term;
            }
            lb_frame_set(&frame, y, i * n + j, twin ? sum * rounded : sum);
        }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(by_weights, by_weights(call, twin))

#define FOUR_BIT "A! absmax! blocksize quant_type shape dtype"
#define EIGHT_BIT "A! absmax! code! blocksize dtype"
#define UNPACKED(NAME, ARGS, KERNEL, FLAGS)                                                                            \
    {.name = "bitsandbytes::" NAME, .args = ARGS, .kernel = KERNEL, .roundings = 4, .flags = FLAGS, .samples = "custom"}
#define OLDER "output! input! output_scale input_scale is_sf_swizzled_layout"
#define PRODUCT "out! a! b! block_scale_a block_scale_b alpha"
const lb_op_row lb_rows_four_bit[] = {
    {.name = "_C::scaled_fp4_quant",
     .args = OLDER,
     .kernel = quantise,
     .flags = LB_ROW_EXACT | LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "_C::scaled_fp4_quant.out",
     .args = "input! input_scale is_sf_swizzled_layout",
     .kernel = quantise,
     .flags = LB_ROW_EXACT | LB_ROW_OUT,
     .samples = "custom"},
    {.name = "sgl_kernel::scaled_fp4_quant",
     .args = OLDER,
     .kernel = quantise,
     .flags = LB_ROW_EXACT | LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "_C::cutlass_scaled_fp4_mm",
     .args = PRODUCT,
     LB_COMPUTED_BY(product),
     LB_SUMS(4, LB_TERMS(PAIRS, 1)),
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "sgl_kernel::cutlass_scaled_fp4_mm",
     .args = PRODUCT,
     LB_COMPUTED_BY(product),
     LB_SUMS(4, LB_TERMS(PAIRS, 1)),
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    UNPACKED("dequantize_4bit", FOUR_BIT, dequantise_4bit, 0),
    UNPACKED("dequantize_4bit.out", FOUR_BIT, dequantise_4bit, LB_ROW_OUT),
    UNPACKED("dequantize_blockwise", EIGHT_BIT, dequantise_blockwise, 0),
    UNPACKED("dequantize_blockwise.out", EIGHT_BIT, dequantise_blockwise, LB_ROW_OUT),
    {.name = "bitsandbytes::gemm_4bit",
     .args = "A! B! shapeB absmax! blocksize quant_type bias absmax_8bit absmax_code absmax_offset",
     LB_COMPUTED_BY(by_weights),
     LB_SUMS(6, LB_TERMS(INNER, 0)),
     .samples = "custom"},
    {NULL},
};
