/* Transformer Engine's fused softmax: scaled, and masked by a tensor or by the order of tokens; and its gradient.
 *
 *      v = scale x, or -10000 under the mask;  y = softmax(v), and 0 where all of a row is under it
 *      causal masks leave out what they hide, which is 0; the aligned one ends at the last query and key together
 *      dx = scale y (dy - sum y dy)
 *
 * Names, schemas and definitions: NVIDIA/TransformerEngine transformer_engine/pytorch/csrc/stable
 * (`transformer_engine::`, on the way there `transformer_engine_stable::`), transformer_engine/common/fused_softmax/.
 * Its other functions, and Megatron's fused bias-GELU, bias-SwiGLU and bias-dropout-add, are pybind11 functions or
 * scripted ones: no registered ops, or ops of ATen. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>

#define HIDDEN -10000.0

typedef enum mask { OPEN, BY_TENSOR, CAUSAL, ALIGNED } mask;

typedef struct rows {
    lb_frame frame;
    int64_t count, size, queries;
    const void *x;
    void *y;
    double scale;
} rows;

/* Results are as arg 0, whose last two dimensions are queries and keys. */
static bool open_rows(rows *begun, lb_call *call, uint32_t scale)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    *begun = (rows){.frame = lb_frame_begin(call), .scale = lb_frame_arg_float(call, scale, 1)};
    if (!in || in->layout.ndim < 2 || !lb_dtype_is_float(call->results[0].dtype)) {
        lb_frame_fail(&begun->frame, LB_ERR_UNSUPPORTED, "an input that is not (…, queries, keys)");
        return false;
    }
    const int64_t n = lb_tensor_numel(in);
    begun->size = in->layout.shape[in->layout.ndim - 1], begun->queries = in->layout.shape[in->layout.ndim - 2];
    begun->count = begun->size ? n / begun->size : 0;
    begun->x = lb_frame_tensor(&begun->frame, in), begun->y = lb_frame_output(&begun->frame, 0, n);
    return lb_frame_ok(&begun->frame);
}

/* The mask (1 or batch, 1, queries, keys) of row `i` of (batch, heads, queries, keys). */
static const int64_t *mask_row(const int64_t *hidden, const lb_tensor *mask, const lb_tensor *in, int64_t i)
{
    const int64_t queries = in->layout.shape[2], heads = in->layout.shape[1], batch = i / queries / heads;
    return hidden + ((mask->layout.shape[0] == 1 ? 0 : batch) * queries + i % queries) * in->layout.shape[3];
}

static bool fits(const lb_tensor *mask, const lb_tensor *in)
{
    const int64_t *m = mask->layout.shape, *x = in->layout.shape;
    return mask->layout.ndim == 4 && in->layout.ndim == 4 && (m[0] == 1 || m[0] == x[0]) && m[1] == 1 && m[2] == x[2] &&
           m[3] == x[3];
}

/* v has `seen` numbers; the rest of the row is 0. An error of v is one of its exponential: the twin has |v| + |top| of
 * them, on average in the sum. */
static void softmax_row(const rows *rows, double *row, int64_t seen, int64_t first, bool vanishes, bool twin)
{
    double top = -INFINITY, sum = 0, off = 0;
    for (int64_t k = 0; k < seen; k++) top = row[k] > top ? row[k] : top;
    for (int64_t k = 0; k < seen; k++) {
        const double y = lb_exp(row[k] - top);
        off += y * (fabs(row[k]) + fabs(top)), sum += y;
        row[k] = twin ? y * (1 + fabs(row[k]) + fabs(top)) : y;
    }
    const double factor = vanishes && top == HIDDEN ? 0 : twin ? (1 + off / sum) / sum : 1 / sum;
    for (int64_t k = 0; k < rows->size; k++)
        lb_frame_set(&rows->frame, rows->y, first + k, k < seen ? row[k] * factor : 0);
}

static lb_status forward(lb_call *call, mask kind, bool twin)
{
    rows rows;
    const lb_tensor *in = lb_frame_arg_tensor(call, 0),
                    *given = kind == BY_TENSOR ? lb_frame_arg_tensor(call, 1) : NULL;
    if (!open_rows(&rows, call, kind == BY_TENSOR ? 2 : 1)) return lb_frame_end(&rows.frame);
    if (kind == BY_TENSOR && (!given || !fits(given, in)))
        lb_frame_fail(&rows.frame, LB_ERR_UNSUPPORTED, "a mask that is not (1 or batch, 1, queries, keys)");
    const int64_t *hidden = given ? lb_frame_integers(&rows.frame, given) : NULL;
    double *row = lb_frame_scratch(&rows.frame, (size_t)rows.size * sizeof *row);
    for (int64_t i = 0; lb_frame_ok(&rows.frame) && i < rows.count; i++) {
        const int64_t *under = hidden ? mask_row(hidden, given, in, i) : NULL;
        int64_t seen = rows.size;
        if (kind == CAUSAL) seen = i % rows.queries + 1;
        if (kind == ALIGNED) seen = i % rows.queries + 1 + rows.size - rows.queries;
        seen = seen < 0 ? 0 : seen > rows.size ? rows.size : seen;
        for (int64_t k = 0; k < seen; k++) {
            const double scaled = lb_frame_get(&rows.frame, rows.x, i * rows.size + k) * rows.scale;
            row[k] = under && under[k] ? HIDDEN : rows.frame.wide ? scaled : (float)scaled;
        }
        softmax_row(&rows, row, seen, i * rows.size, kind == BY_TENSOR, twin);
    }
    return lb_frame_end(&rows.frame);
}

/* Args: dy, y, scale. */
static lb_status backward(lb_call *call, bool twin)
{
    rows rows;
    const lb_tensor *y = lb_frame_arg_tensor(call, 1);
    if (!open_rows(&rows, call, 2)) return lb_frame_end(&rows.frame);
    if (!y || lb_tensor_numel(y) != rows.count * rows.size)
        lb_frame_fail(&rows.frame, LB_ERR_UNSUPPORTED, "a softmax of another size");
    const void *p = lb_frame_tensor(&rows.frame, y);
    for (int64_t i = 0; lb_frame_ok(&rows.frame) && i < rows.count * rows.size; i += rows.size) {
        double sum = 0;
        for (int64_t k = i; k < i + rows.size; k++) {
            const double term = lb_frame_get(&rows.frame, p, k) * lb_frame_get(&rows.frame, rows.x, k);
            sum += twin ? fabs(term) : term;
        }
        for (int64_t k = i; k < i + rows.size; k++) {
            const double q = lb_frame_get(&rows.frame, p, k), dy = lb_frame_get(&rows.frame, rows.x, k);
            lb_frame_set(&rows.frame, rows.y, k,
                         twin ? fabs(rows.scale * q) * (fabs(dy) + sum) : rows.scale * q * (dy - sum));
        }
    }
    return lb_frame_end(&rows.frame);
}

LB_WITH_TWIN(scaled, forward(call, OPEN, twin))
LB_WITH_TWIN(masked, forward(call, BY_TENSOR, twin))
LB_WITH_TWIN(causal, forward(call, CAUSAL, twin))
LB_WITH_TWIN(aligned, forward(call, ALIGNED, twin))
LB_WITH_TWIN(gradient, backward(call, twin))

#define ROW(NAME, ARGS, ID)                                                                                            \
    {.name = NAME,                                                                                                     \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = 8,                                                                                                   \
     .roundings_per_term = 2,                                                                                          \
     .terms = LB_TERMS(INNER, 0),                                                                                      \
     .samples = "custom"},
#define ROWS(SPACE)                                                                                                    \
    ROW(SPACE "::scaled_softmax_forward", "input! scale_factor", scaled)                                               \
    ROW(SPACE "::scaled_softmax_backward", GRADIENT, gradient)                                                         \
    ROW(SPACE "::scaled_masked_softmax_forward", "input! mask! scale_factor", masked)                                  \
    ROW(SPACE "::scaled_masked_softmax_backward", GRADIENT, gradient)                                                  \
    ROW(SPACE "::scaled_upper_triang_masked_softmax_forward", "input! scale_factor", causal)                           \
    ROW(SPACE "::scaled_upper_triang_masked_softmax_backward", GRADIENT, gradient)                                     \
    ROW(SPACE "::scaled_aligned_causal_masked_softmax_forward", "input! scale_factor", aligned)                        \
    ROW(SPACE "::scaled_aligned_causal_masked_softmax_backward", GRADIENT, gradient)
#define GRADIENT "output_grad softmax_results scale_factor"
const lb_op_row lb_rows_masked_softmax[] = {ROWS("transformer_engine") ROWS("transformer_engine_stable"){NULL}};
