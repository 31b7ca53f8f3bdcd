/* Ops that read a sparse tensor: the list of its parts, the numbers last.
 *
 *      COO     indices (sparse dims, numbers), numbers (numbers, dense dims…)
 *
 * A compressed one has three parts, and nothing tells whether its rows are compressed or its columns: it is refused.
 * A place may be named several times, by the gradient of an embedding as a rule: its numbers are added up in their
 * order, each sum rounded to the dtype, and the twin counts how many they are. Which order a library takes (threads, a
 * GPU's atomics) no bound depends on. Shapes of sparse tensors are not recorded; nothing here needs them. */
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

typedef struct sparse {
    int64_t dims, numbers, inner; /* sparse dimensions; numbers, each of `inner` elements */
    const int64_t *at;            /* (dims, numbers) */
    const void *x;
    lb_dtype dtype;
} sparse;

static const lb_tensor *part_of(const lb_call *call, uint32_t i, uint32_t k)
{
    return &call->args[i].tensors[k];
}

/* Arg `i`; false: it is none that is known here, and the frame has failed. */
static bool take(lb_frame *frame, uint32_t i, sparse *taken)
{
    const lb_call *call = frame->call;
    *taken = (sparse){0};
    if (i >= call->n_args || call->args[i].tag != LB_OPERAND_TENSORS || call->args[i].count != 2) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "no sparse tensor of layout COO");
        return false;
    }
    const lb_tensor *where = part_of(call, i, 0), *numbers = part_of(call, i, 1);
    if (numbers->layout.ndim < 1 || where->layout.ndim != 2 || where->layout.shape[1] != numbers->layout.shape[0] ||
        !lb_dtype_is_float(numbers->dtype)) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "a sparse tensor of integers or complex numbers");
        return false;
    }
    taken->numbers = numbers->layout.shape[0], taken->dims = where->layout.shape[0];
    taken->inner = taken->numbers ? lb_tensor_numel(numbers) / taken->numbers : 1;
    taken->at = lb_frame_integers(frame, where), taken->x = lb_frame_tensor(frame, numbers),
    taken->dtype = numbers->dtype;
    return lb_frame_ok(frame);
}

/* What one rounding to 16 bits is among roundings to f32, which the bound counts. */
static double grain(lb_dtype dtype)
{
    return dtype == LB_BF16 ? 0x1p16 : dtype == LB_F16 ? 0x1p13 : 1;
}

/* Which of the places along the first `sparse->dims` of `shape` number k is at; -1, and the frame has failed: none. */
static int64_t place_of(lb_frame *frame, const sparse *sparse, int64_t k, const int64_t *shape)
{
    int64_t place = 0;
    for (int64_t d = 0; d < sparse->dims; d++) {
        const int64_t i = sparse->at[d * sparse->numbers + k];
        if (i < 0 || i >= shape[d]) {
            lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "a place that the dense tensor does not have");
            return -1;
        }
        place = place * shape[d] + i;
    }
    return place;
}

static bool fits(const sparse *sparse, const lb_layout *dense)
{
    if (dense->ndim < sparse->dims) return false;
    int64_t inner = 1;
    for (int d = (int)sparse->dims; d < dense->ndim; d++) inner *= dense->shape[d];
    return !sparse->numbers || inner == sparse->inner;
}

/* ---- sums into a dense tensor ------------------------------------------------------------------------------------ */

static int64_t *counts_of(lb_frame *frame, int64_t places)
{
    int64_t *counts = lb_frame_scratch(frame, (size_t)(places + 1) * sizeof *counts);
    if (lb_frame_ok(frame)) memset(counts, 0, (size_t)places * sizeof *counts);
    return counts;
}

/* self, other, alpha: a dense tensor and a sparse one */
static lb_status add_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    sparse sparse;
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    if (!self || call->n_results != 1 || !take(&frame, 1, &sparse) || !fits(&sparse, &self->layout)) {
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "not a dense tensor and a sparse one of its shape");
        return lb_frame_end(&frame);
    }
    const int64_t n = lb_tensor_numel(self), places = sparse.inner ? n / sparse.inner : 0;
    const double alpha = lb_frame_arg_float(call, 2, 1), scale = twin ? grain(self->dtype) : 1;
    const void *x = lb_frame_input(&frame, 0);
    void *y = lb_frame_output(&frame, 0, n);
    int64_t *counts = counts_of(&frame, places);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const double v = lb_frame_get(&frame, x, i);
        lb_frame_set(&frame, y, i, twin ? fabs(v) : v);
    }
    for (int64_t k = 0; lb_frame_ok(&frame) && k < sparse.numbers; k++) {
        const int64_t place = place_of(&frame, &sparse, k, self->layout.shape);
        if (place < 0) break;
        counts[place]++;
        for (int64_t e = 0; e < sparse.inner; e++) {
            const int64_t i = place * sparse.inner + e;
            const double term = alpha * lb_frame_get(&frame, sparse.x, k * sparse.inner + e);
            lb_frame_set(&frame, y, i,
                         lb_frame_get(&frame, y, i) + (twin         ? fabs(term)
                                                       : frame.wide ? term
                                                                    : (double)(float)term));
        }
    }
    for (int64_t i = 0; twin && lb_frame_ok(&frame) && i < places * sparse.inner; i++) {
        const int64_t met = counts[i / sparse.inner];
        lb_frame_set(&frame, y, i, met ? lb_frame_get(&frame, y, i) * (double)(met + 2) * scale : 0);
    }
    return lb_frame_end(&frame);
}

/* y := beta self + alpha (a b); a is sparse. `self` NULL: nothing is added to. */
static lb_status product(lb_call *call, uint32_t of_a, const lb_tensor *self, double beta, double alpha, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    sparse sparse;
    const lb_tensor *b = lb_frame_arg_tensor(call, of_a + 1), *out = &call->results[0];
    const bool whole = call->n_results == 1 && b && b->layout.ndim == 2 && out->layout.ndim == 2;
    if (!whole || !take(&frame, of_a, &sparse) || sparse.dims != 2 || sparse.inner != 1) {
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "not a sparse matrix and a dense one");
        return lb_frame_end(&frame);
    }
    const int64_t rows = out->layout.shape[0], n = out->layout.shape[1], inner = b->layout.shape[0];
    const double scale = twin ? grain(sparse.dtype) : 1;
    const void *x = self ? lb_frame_tensor(&frame, self) : NULL, *right = lb_frame_tensor(&frame, b);
    const int64_t each_row = x && lb_tensor_numel(self) == n && self->layout.ndim < 2 ? 0 : n;
    if (x && each_row && lb_tensor_numel(self) != rows * n)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a sum that expands");
    void *y = lb_frame_output(&frame, 0, rows * n);
    int64_t *counts = counts_of(&frame, rows);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < rows * n; i++) {
        const double v = x && beta != 0 ? beta * lb_frame_get(&frame, x, i / n * each_row + i % n) : 0;
        lb_frame_set(&frame, y, i, twin ? fabs(v) : v);
    }
    for (int64_t k = 0; lb_frame_ok(&frame) && k < sparse.numbers; k++) {
        const int64_t i = sparse.at[k], from = sparse.at[sparse.numbers + k];
        if (i < 0 || i >= rows || from < 0 || from >= inner) {
            lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a place that the matrix does not have");
            break;
        }
        const double factor = alpha * lb_frame_get(&frame, sparse.x, k);
        counts[i]++;
        for (int64_t j = 0; j < n; j++) {
            const double term = factor * lb_frame_get(&frame, right, from * n + j);
            lb_frame_set(&frame, y, i * n + j, lb_frame_get(&frame, y, i * n + j) + (twin ? fabs(term) : term));
        }
    }
    for (int64_t i = 0; twin && lb_frame_ok(&frame) && i < rows * n; i++)
        lb_frame_set(&frame, y, i, lb_frame_get(&frame, y, i) * (double)(counts[i / n] + 3) * scale);
    return lb_frame_end(&frame);
}

/* self, mat2 */
static lb_status mm_run(lb_call *call, bool twin)
{
    return product(call, 0, NULL, 0, 1, twin);
}

/* self, mat1, mat2, beta, alpha */
static lb_status addmm_run(lb_call *call, bool twin)
{
    return product(call, 1, lb_frame_arg_tensor(call, 0), lb_frame_arg_float(call, 3, 1),
                   lb_frame_arg_float(call, 4, 1), twin);
}

/* ---- sparse results ---------------------------------------------------------------------------------------------- */

/* Results are two parts; false, and the frame has failed: they are not. */
static bool two_results(lb_frame *frame, int64_t dims, int64_t numbers, int64_t inner)
{
    const lb_call *call = frame->call;
    const bool two = call->n_results == 2 &&
                     (!call->results[0].data || lb_tensor_numel(&call->results[0]) == dims * numbers) &&
                     (!call->results[1].data || lb_tensor_numel(&call->results[1]) == numbers * inner);
    if (!two) lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "parts that were recorded otherwise");
    return lb_frame_ok(frame);
}

/* Is number a before number b, as their places are ordered? 0: they are at one place. */
static int order(const sparse *sparse, int64_t a, int64_t b)
{
    for (int64_t d = 0; d < sparse->dims; d++) {
        const int64_t i = sparse->at[d * sparse->numbers + a], k = sparse->at[d * sparse->numbers + b];
        if (i != k) return i < k ? -1 : 1;
    }
    return 0;
}

/* Stable: numbers at one place keep their order. */
static int64_t *in_order(lb_frame *frame, const sparse *sparse)
{
    const size_t bytes = (size_t)(sparse->numbers + 1) * sizeof(int64_t);
    int64_t *from = lb_frame_scratch(frame, bytes), *to = lb_frame_scratch(frame, bytes);
    if (!lb_frame_ok(frame)) return NULL;
    for (int64_t i = 0; i < sparse->numbers; i++) from[i] = i;
    for (int64_t width = 1; width < sparse->numbers; width *= 2) {
        for (int64_t low = 0; low < sparse->numbers; low += 2 * width) {
            const int64_t middle = low + width < sparse->numbers ? low + width : sparse->numbers,
                          high = low + 2 * width < sparse->numbers ? low + 2 * width : sparse->numbers;
            int64_t a = low, b = middle;
            for (int64_t i = low; i < high; i++)
                to[i] = b >= high || (a < middle && order(sparse, from[b], from[a]) >= 0) ? from[a++] : from[b++];
        }
        int64_t *swap = from;
        from = to, to = swap;
    }
    return from;
}

/* self -> indices in ascending order, each once, and the sum of the numbers of each */
static lb_status coalesce_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    sparse sparse;
    if (!take(&frame, 0, &sparse)) return lb_frame_end(&frame);
    const int64_t *sorted = in_order(&frame, &sparse);
    int64_t kept = 0;
    for (int64_t i = 0; sorted && i < sparse.numbers; i++) kept += !i || order(&sparse, sorted[i - 1], sorted[i]) != 0;
    if (!two_results(&frame, sparse.dims, kept, sparse.inner)) return lb_frame_end(&frame);
    int64_t *at = lb_frame_output_integers(&frame, 0, sparse.dims * kept), place = -1, met = 0;
    void *y = lb_frame_output(&frame, 1, kept * sparse.inner);
    const double scale = twin ? grain(sparse.dtype) : 1;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < sparse.numbers; i++) {
        const bool begins = !i || order(&sparse, sorted[i - 1], sorted[i]) != 0;
        const bool ends = i + 1 == sparse.numbers || order(&sparse, sorted[i], sorted[i + 1]) != 0;
        place += begins, met = begins ? 1 : met + 1;
        for (int64_t d = 0; d < sparse.dims; d++) at[d * kept + place] = sparse.at[d * sparse.numbers + sorted[i]];
        for (int64_t e = 0; e < sparse.inner; e++) {
            const int64_t to = place * sparse.inner + e;
            const double x = lb_frame_get(&frame, sparse.x, sorted[i] * sparse.inner + e), term = twin ? fabs(x) : x;
            const double sum = begins ? term : lb_frame_get(&frame, y, to) + term;
            lb_frame_set(&frame, y, to, !twin || !ends ? sum : met > 1 ? sum * (double)met * scale : 0);
        }
    }
    return lb_frame_end(&frame);
}

/* self, memory_format */
static lb_status copy(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    sparse sparse;
    if (!take(&frame, 0, &sparse) || !two_results(&frame, sparse.dims, sparse.numbers, sparse.inner))
        return lb_frame_end(&frame);
    int64_t *at = lb_frame_output_integers(&frame, 0, sparse.dims * sparse.numbers);
    void *y = lb_frame_output(&frame, 1, sparse.numbers * sparse.inner);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < sparse.dims * sparse.numbers; i++) at[i] = sparse.at[i];
    for (int64_t i = 0; lb_frame_ok(&frame) && i < sparse.numbers * sparse.inner; i++)
        lb_frame_set(&frame, y, i, lb_frame_get(&frame, sparse.x, i));
    return lb_frame_end(&frame);
}

/* self of two dimensions that are both sparse */
static lb_status transpose(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    sparse sparse;
    if (!take(&frame, 0, &sparse) || !two_results(&frame, sparse.dims, sparse.numbers, sparse.inner))
        return lb_frame_end(&frame);
    if (sparse.dims != 2 || sparse.inner != 1) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "no sparse matrix");
    int64_t *at = lb_frame_output_integers(&frame, 0, 2 * sparse.numbers);
    void *y = lb_frame_output(&frame, 1, sparse.numbers);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < sparse.numbers; i++) {
        at[i] = sparse.at[sparse.numbers + i], at[sparse.numbers + i] = sparse.at[i];
        lb_frame_set(&frame, y, i, lb_frame_get(&frame, sparse.x, i));
    }
    return lb_frame_end(&frame);
}

/* self (dense), mask, accumulate_matches: the numbers of self at the places of a mask that names each once */
static lb_status masked(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    sparse sparse;
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    if (!self || !take(&frame, 1, &sparse) || !fits(&sparse, &self->layout)) {
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "not a dense tensor under a sparse mask");
        return lb_frame_end(&frame);
    }
    if (!two_results(&frame, sparse.dims, sparse.numbers, sparse.inner)) return lb_frame_end(&frame);
    const void *x = lb_frame_input(&frame, 0);
    int64_t *at = lb_frame_output_integers(&frame, 0, sparse.dims * sparse.numbers);
    void *y = lb_frame_output(&frame, 1, sparse.numbers * sparse.inner);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < sparse.dims * sparse.numbers; i++) at[i] = sparse.at[i];
    for (int64_t k = 0; lb_frame_ok(&frame) && k < sparse.numbers; k++) {
        const int64_t place = place_of(&frame, &sparse, k, self->layout.shape);
        for (int64_t e = 0; place >= 0 && e < sparse.inner; e++)
            lb_frame_set(&frame, y, k * sparse.inner + e, lb_frame_get(&frame, x, place * sparse.inner + e));
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(add, add_run(call, twin))
LB_WITH_TWIN(mm, mm_run(call, twin))
LB_WITH_TWIN(addmm, addmm_run(call, twin))
LB_WITH_TWIN(coalesce, coalesce_run(call, twin))

#define MOVES(NAME, ARGS, KERNEL)                                                                                      \
    {.name = "parts::" NAME, .args = ARGS, .kernel = KERNEL, .flags = LB_ROW_EXACT, .samples = "sparse " NAME}
#define SUMS(NAME, ARGS, ID)                                                                                           \
    {.name = "parts::" NAME, .args = ARGS, LB_COMPUTED_BY(ID), .roundings = 1, .samples = "sparse " NAME}

const lb_op_row lb_rows_sparse[] = {
    MOVES("clone", "self% memory_format", copy),
    MOVES("t", "self%", transpose),
    MOVES("sparse_mask", "self! mask%", masked),
    SUMS("add.Tensor", "self! other% alpha", add),
    SUMS("mm", "self% mat2!", mm),
    SUMS("_sparse_addmm", "self! mat1% mat2! beta alpha", addmm),
    SUMS("_coalesce", "self%", coalesce),
    {NULL},
};
