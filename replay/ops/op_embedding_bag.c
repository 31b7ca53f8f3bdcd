/* Bags of embeddings: sums, means or maxima of the rows that indices select, with backwards; and the renormalisation of
 * rows.
 *
 * Rows are added in order of the indices. Book-keeping results (the bag of every index, the sizes, the chosen rows) are
 * taken as recorded; devices fill them differently. Indices that equal padding_idx add nothing and do not count. */
#include "functions/elementary.h"
#include "kernel/twin_grain.h"
#include "kernel/frame.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum mode { MODE_SUM, MODE_MEAN, MODE_MAX };

static double step(const lb_frame *frame, double v)
{
    return frame->wide ? v : (float)v;
}

/* acc + a b with one rounding for f32 frames and one for the product elsewhere. */
static double add_product(const lb_frame *frame, double acc, double a, double b)
{
    return step(frame, acc + step(frame, a * b));
}

static bool rows_exist(lb_frame *frame, const int64_t *index, int64_t n, int64_t rows)
{
    for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++)
        if (index[i] < 0 || index[i] >= rows) lb_frame_fail(frame, LB_ERR_INVALID, "an index outside the table");
    return lb_frame_ok(frame);
}

/* What all bags of a call are made of. */
typedef struct pooling {
    const void *weight, *scale;
    const int64_t *index;
    int64_t padding, mode, width;
    bool twin;
} pooling;

/* One bag: row `row` of y from indices first … last. */
static void pool_bag(const lb_frame *frame, const pooling *pooling, int64_t first, int64_t last, void *y, int64_t row)
{
    const int64_t *index = pooling->index, mode = pooling->mode, width = pooling->width;
    const void *weight = pooling->weight, *scale = pooling->scale;
    const bool twin = pooling->twin;
    int64_t count = 0;
    for (int64_t d = 0; d < width; d++) lb_frame_set(frame, y, row * width + d, 0);
    for (int64_t i = first; i < last; i++) {
        if (index[i] == pooling->padding) continue;
        for (int64_t d = 0; d < width; d++) {
            const double v = lb_frame_get(frame, weight, index[i] * width + d),
                         s = scale ? lb_frame_get(frame, scale, i) : 1;
            const double old = lb_frame_get(frame, y, row * width + d);
            const double more = mode == MODE_MAX ? (count == 0 || v > old ? v : old)
                                                 : add_product(frame, old, twin ? fabs(v) : v, twin ? fabs(s) : s);
            lb_frame_set(frame, y, row * width + d, more);
        }
        count++;
    }
    for (int64_t d = 0; mode == MODE_MEAN && count && d < width; d++)
        lb_frame_set(frame, y, row * width + d, lb_frame_get(frame, y, row * width + d) / (double)count);
}

/* Args: weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
 * padding_idx. */
static lb_status bag_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *table = lb_frame_arg_tensor(call, 0), *offsets = lb_frame_arg_tensor(call, 2);
    const int64_t n = lb_tensor_numel(lb_frame_arg_tensor(call, 1)),
                  width = table->layout.ndim == 2 ? table->layout.shape[1] : 1;
    const int64_t *index = lb_frame_integers(&frame, lb_frame_arg_tensor(call, 1)),
                  *start = lb_frame_integers(&frame, offsets);
    const int64_t bags = lb_tensor_numel(offsets) - (lb_frame_arg_int(call, 7, 0) ? 1 : 0);
    const pooling pool = {.weight = lb_frame_tensor(&frame, table),
                          .scale = lb_frame_input(&frame, 6),
                          .index = index,
                          .padding = lb_frame_arg_int(call, 8, -1),
                          .mode = lb_frame_arg_int(call, 4, 0),
                          .width = width,
                          .twin = twin};
    void *y = lb_frame_output(&frame, 0, bags * width);
    if (lb_frame_ok(&frame)) rows_exist(&frame, index, n, table->layout.shape[0]);
    for (int64_t b = 0; lb_frame_ok(&frame) && b < bags; b++) {
        const int64_t last = b + 1 < lb_tensor_numel(offsets) ? start[b + 1] : n;
        if (start[b] < 0 || last > n) {
            lb_frame_fail(&frame, LB_ERR_INVALID, "offsets outside the indices");
            break;
        }
        pool_bag(&frame, &pool, start[b], last, y, b);
    }
    for (int64_t i = 0; twin && lb_frame_ok(&frame) && i < bags * width; i++)
        lb_frame_set(&frame, y, i,
                     fabs(lb_frame_get(&frame, y, i)) * lb_frame_twin_scale(call, 0) + lb_twin_grain(call, 0));
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(bag, bag_run(call, twin))

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct bags {
    lb_frame frame;
    const lb_call *call;
    int64_t n, width, rows, padding, mode, count; /* count: bags */
    const int64_t *index, *bag_of, *size, *chosen;
    const void *dy, *scale;
} bags;

/* The bag of each index from the offsets, where the forward did not say. */
static const int64_t *bags_from_offsets(lb_frame *frame, const lb_tensor *offsets, int64_t n)
{
    const int64_t *start = lb_frame_integers(frame, offsets), count = lb_tensor_numel(offsets);
    int64_t *bag_of = lb_frame_scratch(frame, (size_t)(n + 1) * 8), b = -1;
    for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++) {
        while (b + 1 < count && start[b + 1] <= i) b++;
        bag_of[i] = b;
    }
    return bag_of;
}

static void add_row(bags *bags, void *dw, int64_t i, bool twin)
{
    lb_frame *frame = &bags->frame;
    const int64_t bag_index = bags->bag_of[i], row = bags->index[i];
    if (row == bags->padding) return;
    double scale = bags->scale ? lb_frame_get(frame, bags->scale, i) : 1;
    if (bags->mode == MODE_MEAN)
        scale = step(frame, scale / (double)(bags->size[bag_index] > 0 ? bags->size[bag_index] : 1));
    for (int64_t d = 0; d < bags->width; d++) {
        const double g = lb_frame_get(frame, bags->dy, bag_index * bags->width + d),
                     old = lb_frame_get(frame, dw, row * bags->width + d);
        lb_frame_set(frame, dw, row * bags->width + d,
                     add_product(frame, old, twin ? fabs(g) : g, twin ? fabs(scale) : scale));
    }
}

static void add_chosen(bags *bags, void *dw, bool twin)
{
    lb_frame *frame = &bags->frame;
    for (int64_t k = 0; k < bags->count; k++)
        for (int64_t d = 0; d < bags->width; d++) {
            const int64_t row = bags->chosen[k * bags->width + d];
            if (bags->size && bags->size[k] == 0) continue;
            const double g = lb_frame_get(frame, bags->dy, k * bags->width + d);
            lb_frame_set(frame, dw, row * bags->width + d,
                         step(frame, lb_frame_get(frame, dw, row * bags->width + d) + (twin ? fabs(g) : g)));
        }
}

/* Where the arguments stand; `offsets` 0: there are none. */
typedef struct backward_args {
    uint32_t offsets, bag_of, size, chosen, rows, by_frequency, mode, sparse, weights, padding;
} backward_args;

static lb_status backward_run(lb_call *call, const backward_args *at, bool twin)
{
    bags bags = {.frame = lb_frame_begin(call)};
    lb_frame *frame = &bags.frame;
    const lb_tensor *grad = lb_frame_arg_tensor(call, 0), *index = lb_frame_arg_tensor(call, 1),
                    *bag_of = lb_frame_arg_tensor(call, at->bag_of);
    if (at->sparse && lb_frame_arg_int(call, at->sparse, 0))
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "sparse gradients");
    if (lb_frame_arg_int(call, at->by_frequency,
                         0)) /* torch 2.13 divides by other rows' counts on a CPU than on CUDA */
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "gradients scaled by frequency");
    bags.n = lb_tensor_numel(index), bags.count = grad->layout.shape[0], bags.width = grad->layout.shape[1];
    bags.rows = lb_frame_arg_int(call, at->rows, 0), bags.mode = lb_frame_arg_int(call, at->mode, 0),
    bags.padding = lb_frame_arg_int(call, at->padding, -1);
    bags.index = lb_frame_integers(frame, index), bags.dy = lb_frame_tensor(frame, grad),
    bags.scale = lb_frame_input(frame, at->weights);
    if (bag_of && lb_tensor_numel(bag_of) == bags.n)
        bags.bag_of = lb_frame_integers(frame, bag_of);
    else if (at->offsets)
        bags.bag_of = bags_from_offsets(frame, lb_frame_arg_tensor(call, at->offsets), bags.n);
    else if (bags.mode != MODE_MAX)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "offsets are missing: it is unknown which index belongs to which bag");
    bags.size = lb_frame_integers(frame, lb_frame_arg_tensor(call, at->size));
    if (bags.mode == MODE_MAX) bags.chosen = lb_frame_integers(frame, lb_frame_arg_tensor(call, at->chosen));
    void *dw = lb_frame_output(frame, 0, bags.rows * bags.width);
    if (!lb_frame_ok(frame) || !rows_exist(frame, bags.index, bags.n, bags.rows)) return lb_frame_end(frame);
    if (bags.mode != MODE_MAX && !rows_exist(frame, bags.bag_of, bags.n, bags.count)) return lb_frame_end(frame);
    if (bags.mode == MODE_MAX && !rows_exist(frame, bags.chosen, bags.count * bags.width, bags.rows))
        return lb_frame_end(frame);
    memset(dw, 0, (size_t)(bags.rows * bags.width) * (frame->wide ? 8 : 4));
    if (bags.mode == MODE_MAX) add_chosen(&bags, dw, twin);
    for (int64_t i = 0; bags.mode != MODE_MAX && lb_frame_ok(frame) && i < bags.n; i++) add_row(&bags, dw, i, twin);
    for (int64_t i = 0; twin && lb_frame_ok(frame) && i < bags.rows * bags.width; i++)
        lb_frame_set(frame, dw, i, lb_frame_get(frame, dw, i) * lb_frame_twin_scale(call, 0) + lb_twin_grain(call, 0));
    return lb_frame_end(frame);
}

static const backward_args dense_args = {0, 2, 3, 4, 5, 6, 7, 0, 8, 9}, any_args = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
LB_WITH_TWIN(bag_dense_backward, backward_run(call, &dense_args, twin))
LB_WITH_TWIN(bag_backward, backward_run(call, &any_args, twin))

/* Args: grad, weight, indices, offsets, offset2bag, mode, padding_idx. */
static lb_status weights_backward_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *grad = lb_frame_arg_tensor(call, 0), *table = lb_frame_arg_tensor(call, 1),
                    *bag_of = lb_frame_arg_tensor(call, 4);
    const int64_t n = lb_tensor_numel(lb_frame_arg_tensor(call, 2)), width = table->layout.shape[1],
                  padding = lb_frame_arg_int(call, 6, -1);
    const int64_t *index = lb_frame_integers(&frame, lb_frame_arg_tensor(call, 2));
    const int64_t *bags = bag_of && lb_tensor_numel(bag_of) == n
                              ? lb_frame_integers(&frame, bag_of)
                              : bags_from_offsets(&frame, lb_frame_arg_tensor(call, 3), n);
    const void *dy = lb_frame_tensor(&frame, grad), *weight = lb_frame_tensor(&frame, table);
    void *y = lb_frame_output(&frame, 0, n);
    if (lb_frame_ok(&frame) && rows_exist(&frame, index, n, table->layout.shape[0]))
        rows_exist(&frame, bags, n, grad->layout.shape[0]);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        double sum = 0;
        for (int64_t d = 0; index[i] != padding && d < width; d++) {
            const double a = lb_frame_get(&frame, dy, bags[i] * width + d),
                         b = lb_frame_get(&frame, weight, index[i] * width + d);
            sum = add_product(&frame, sum, twin ? fabs(a) : a, twin ? fabs(b) : b);
        }
        lb_frame_set(&frame, y, i, twin ? sum * lb_frame_twin_scale(call, 0) + lb_twin_grain(call, 0) : sum);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(weights_backward, weights_backward_run(call, twin))

/* ---- renormalisation --------------------------------------------------------------------------------------------- */

/* Args: self, indices, max_norm, norm_type. Rows that indices name and whose norm exceeds max_norm are scaled down to
 * it, once. */
static lb_status renorm_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *table = lb_frame_arg_tensor(call, 0);
    const int64_t rows = table->layout.shape[0], width = rows ? lb_tensor_numel(table) / rows : 0,
                  n = lb_tensor_numel(lb_frame_arg_tensor(call, 1));
    const int64_t *index = lb_frame_integers(&frame, lb_frame_arg_tensor(call, 1));
    const double most = lb_frame_arg_float(call, 2, 1), power = lb_frame_arg_float(call, 3, 2);
    const void *x = lb_frame_tensor(&frame, table);
    void *y = lb_frame_output(&frame, 0, rows * width);
    if (!lb_frame_ok(&frame) || !rows_exist(&frame, index, n, rows)) return lb_frame_end(&frame);
    for (int64_t i = 0; i < rows * width; i++)
        lb_frame_set(&frame, y, i, twin ? fabs(lb_frame_get(&frame, x, i)) : lb_frame_get(&frame, x, i));
    for (int64_t k = 0; k < n; k++) {
        double sum = 0;
        for (int64_t d = index[k] * width; d < (index[k] + 1) * width; d++)
            sum += power == 2 ? lb_frame_get(&frame, x, d) * lb_frame_get(&frame, x, d)
                              : lb_pow(fabs(lb_frame_get(&frame, x, d)), power);
        const double norm = power == 2 ? sqrt(sum) : lb_pow(sum, 1 / power);
        /* torch keeps the norm in the table's dtype: an infinite one makes the row 0. A finite twin of this size says
         * nothing (bound.c). */
        const bool overflows = table->dtype != LB_F64 && (sum > FLT_MAX || norm > lb_dtype_max_finite(table->dtype));
        for (int64_t d = index[k] * width; norm > most && d < (index[k] + 1) * width; d++) {
            const double v = lb_frame_get(&frame, x, d) * (most / (norm + 1e-7));
            const double said = overflows ? 0x1p128 : fabs(v) * lb_frame_twin_scale(call, 0) + lb_twin_grain(call, 0);
            lb_frame_set(&frame, y, d, twin ? said : v);
        }
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(renorm, renorm_run(call, twin))

#define BAG(NAME, ARGS, KERNEL, ROUNDINGS, FLAGS, TERMS, SAMPLES)                                                      \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(KERNEL),                                                                                           \
     LB_SUMS(ROUNDINGS, TERMS),                                                                                        \
     .flags = FLAGS,                                                                                                   \
     .samples = SAMPLES}
#define FORWARD                                                                                                        \
    "weight! indices! offsets! scale_grad_by_freq mode sparse per_sample_weights include_last_offset padding_idx"
#define SIZES "offset2bag! bag_size! maximum_indices! num_weights scale_grad_by_freq mode "
const lb_op_row lb_rows_embedding_bag[] = {
    BAG("_embedding_bag", FORWARD, bag, 3, LB_ROW_GIVEN(1, 3), LB_TERMS(ELEMENTS, 1), "embedding_bag"),
    BAG("_embedding_bag_forward_only", FORWARD, bag, 3, LB_ROW_GIVEN(1, 3), LB_TERMS(ELEMENTS, 1), "embedding_bag"),
    BAG("_embedding_bag_dense_backward", "grad! indices! " SIZES "per_sample_weights padding_idx", bag_dense_backward,
        4, 0, LB_TERMS(ELEMENTS, 1), "embedding_bag backward dense"),
    BAG("_embedding_bag_backward", "grad! indices! offsets! " SIZES "sparse per_sample_weights padding_idx",
        bag_backward, 4, 0, LB_TERMS(ELEMENTS, 1), "embedding_bag backward"),
    BAG("_embedding_bag_per_sample_weights_backward", "grad! weight! indices! offsets! offset2bag! mode padding_idx",
        weights_backward, 2, 0, LB_TERMS(INNER, 1), "embedding_bag weights"),
    BAG("embedding_renorm_", "self! indices! max_norm norm_type", renorm, 6, LB_ROW_SQUARES, LB_TERMS(INNER, 0),
        "embedding_renorm"),
    {NULL},
};
