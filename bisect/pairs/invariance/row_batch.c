/* Rows in batches of other sizes: see row_batch.h. */
#include "invariance/row_batch.h"

#include "kernel/ops.h"
#include "composites/recogniser.h"
#include "subprogram/subprogram.h"

#include <stdlib.h>
#include <string.h>

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static const lb_layout *layout_of(const lb_program *program, uint32_t value)
{
    return &program->values[value].layout;
}

/* From the end: 1 is the last one. */
static int64_t dim(const lb_layout *layout, int from_end)
{
    return layout->ndim >= from_end ? layout->shape[layout->ndim - from_end] : 1;
}

static int64_t rows_of(const lb_layout *layout)
{
    return layout->ndim < 2 || !dim(layout, 1) ? 0 : lb_layout_numel(layout) / dim(layout, 1);
}

/* The same with so many rows: leading dimensions become one; of attention the first one holds the sequences, and their
 * heads perhaps. */
static lb_layout with_rows(const lb_row_batch *batch, const lb_layout *like, int64_t rows)
{
    int64_t shape[LB_MAX_DIMS];
    const bool sequences = batch->of == LB_LAUNCH_ATTENTION;
    for (int d = 0; d < like->ndim; d++) shape[d] = sequences || d == like->ndim - 1 ? like->shape[d] : 1;
    shape[0] = sequences ? like->shape[0] / batch->shape.rows * rows : rows;
    return lb_layout_contiguous(like->ndim, shape);
}

/* ---- the recorded rows ------------------------------------------------------------------------------------------- */

static bool add_rows(lb_row_batch *batch, uint32_t value)
{
    lb_tensor x;
    bool exact = true;
    if (!lb_regenerated_value(batch->bytes, value, &x, &exact) || !exact || lb_dtype_bits(x.dtype) < 8) return false;
    const size_t bytes = lb_dtype_bytes(x.dtype, (size_t)lb_layout_numel(&x.layout));
    char *dense = malloc(bytes + 1);
    batch->values[batch->n_values] = value, batch->dense[batch->n_values] = dense;
    batch->each[batch->n_values++] = bytes / (size_t)batch->shape.rows;
    return dense && lb_tensor_gather(&x, dense, NULL) == LB_OK;
}

void lb_row_batch_release(lb_row_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_values; i++) free(batch->dense[i]);
    batch->n_values = 0;
}

static bool is_weight(const lb_program *program, uint32_t value)
{
    for (uint32_t v = 0; v < program->n_values; v++)
        if (program->values[v].storage == program->values[value].storage &&
            program->values[v].flags & LB_VALUE_PARAMETER)
            return true;
    return false;
}

/* Is every row of the result a sum of its own, along the last dimension? Norms of batches, convolutions and recurrences
 * are not. */
static bool sums_in_rows(const lb_program *program, const lb_op *op, int ndim)
{
    static const char *const norms[] = {"layer_norm", "layernorm", "rms_norm", "rmsnorm"};
    const lb_recogniser recogniser = {.program = program};
    uint32_t at;
    if (lb_recogniser_position(&recogniser, (uint32_t)(op - program->ops), "dim", &at))
        return lb_recogniser_last_dim(&recogniser, (uint32_t)(op - program->ops), at, ndim);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (strstr(lb_op_name(program, op), norms[i])) return true;
    return false;
}

/* Where the rows of a product's result come from: what is added to it has as many, and a square factor on its right. */
static bool is_left_factor(const lb_program *program, const lb_op *op, uint32_t argument)
{
    const lb_recogniser recogniser = {.program = program};
    uint32_t at;
    return argument == (lb_recogniser_position(&recogniser, (uint32_t)(op - program->ops), "mat1", &at) ? at : 0);
}

/* The argument of an op whose rows become the rows of its result. */
static uint32_t rows_argument(const lb_program *program, const lb_op *op)
{
    const uint32_t y = op->results ? lb_op_results(program, op)[0] : LB_NONE;
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
    if (y == LB_NONE || op->written || !row || form != LB_FORM_PLAIN || op->phase != LB_PHASE_FORWARD) return LB_NONE;
    if (!(row->flags & (LB_ROW_MATMUL | LB_ROW_REDUCTION)) || !lb_dtype_is_float(program->values[y].dtype))
        return LB_NONE;
    if (layout_of(program, y)->ndim != 2 && row->flags & LB_ROW_MATMUL) return LB_NONE; /* batches of matrices */
    for (uint32_t k = 0; k < op->args; k++) {
        const lb_arg *arg = &lb_op_args(program, op)[k];
        if (arg->tag != LB_ARG_VALUE || is_weight(program, arg->u.value)) continue;
        const lb_value *value = &program->values[arg->u.value];
        const bool fits = rows_of(&value->layout) > 0 && rows_of(&value->layout) == rows_of(layout_of(program, y));
        const bool apart =
            row->flags & LB_ROW_MATMUL ? is_left_factor(program, op, k) : sums_in_rows(program, op, value->layout.ndim);
        if (fits && apart && lb_dtype_is_float(value->dtype)) return arg->u.value;
    }
    return LB_NONE;
}

/* What is added to a product row by row: a residual; LB_NONE. `x`: the product's rows. */
static uint32_t added_rows(const lb_program *program, const lb_op *op, uint32_t x)
{
    const lb_recogniser recogniser = {.program = program};
    const lb_arg *args = lb_op_args(program, op);
    uint32_t at;
    if (!lb_recogniser_position(&recogniser, (uint32_t)(op - program->ops), "mat1", &at) || args[0].tag != LB_ARG_VALUE)
        return LB_NONE;
    const uint32_t term = args[0].u.value;
    const bool none =
        term == x || is_weight(program, term) || rows_of(layout_of(program, term)) != rows_of(layout_of(program, x));
    return none ? LB_NONE : term;
}

/* Sums that a library computes by its general reduction: others have kernels of their own. */
static lb_launch_of launched_as(const lb_program *program, const lb_op *op)
{
    static const char *const sums[] = {"aten::sum.", "aten::mean.", "aten::linalg_vector_norm"};
    const char *name = lb_op_name(program, op);
    if (lb_op_find(name, NULL)->flags & LB_ROW_MATMUL) return LB_LAUNCH_PRODUCT;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        if (!strncmp(name, sums[i], strlen(sums[i]))) return LB_LAUNCH_SUM;
    return LB_LAUNCH_KINDS;
}

bool lb_row_batch_of_op(const lb_program *program, const lb_regenerated *bytes, uint32_t op, lb_row_batch *batch)
{
    const uint32_t x = rows_argument(program, &program->ops[op]);
    *batch = (lb_row_batch){.program = program, .bytes = bytes, .op = op, .y = x};
    if (x == LB_NONE) return false;
    batch->y = lb_op_results(program, &program->ops[op])[0], batch->of = launched_as(program, &program->ops[op]);
    batch->shape = (lb_launch_shape){.rows = rows_of(layout_of(program, x)),
                                     .columns = dim(layout_of(program, batch->y), 1),
                                     .terms = dim(layout_of(program, x), 1),
                                     .element_bytes = lb_dtype_bits(program->values[x].dtype) / 8};
    const uint32_t term = added_rows(program, &program->ops[op], x);
    if (add_rows(batch, x) && (term == LB_NONE || add_rows(batch, term))) return true;
    lb_row_batch_release(batch);
    return false;
}

/* Of a tensor of matrices: how many there are. */
static int64_t matrices(const lb_layout *layout)
{
    const int64_t each = dim(layout, 1) * dim(layout, 2);
    return each ? lb_layout_numel(layout) / each : 0;
}

/* Whether an input of attention has a part for every sequence; masks and sinks may be the same for all. */
static bool has_sequences(const lb_row_batch *batch, int role)
{
    const uint32_t value = batch->composite->inputs[role];
    if (value == LB_NONE) return false;
    const lb_layout *layout = layout_of(batch->program, value);
    return role <= LB_ATTENTION_V ||
           (layout->ndim == 4 && layout->shape[0] == batch->shape.rows && batch->shape.rows > 1);
}

static bool load_sequences(lb_row_batch *batch)
{
    const lb_composite *composite = batch->composite;
    const lb_layout *q = layout_of(batch->program, composite->inputs[LB_ATTENTION_Q]),
                    *v = layout_of(batch->program, composite->inputs[LB_ATTENTION_V]),
                    *y = layout_of(batch->program, batch->y);
    lb_launch_shape *shape = &batch->shape;
    shape->heads = (int64_t)composite->numbers[LB_ATTENTION_HEADS],
    shape->rows = shape->heads > 0 ? matrices(q) / shape->heads : 0;
    if (shape->rows < 1 || matrices(v) % shape->rows || y->ndim < 1) return false;
    shape->key_heads = matrices(v) / shape->rows;
    shape->queries = dim(q, 2), shape->keys = dim(v, 2), shape->size = dim(q, 1);
    if (!shape->key_heads || y->shape[0] % shape->rows) return false;
    for (int role = 0; role < LB_COMPOSITE_INPUTS; role++) {
        if (!has_sequences(batch, role)) continue;
        if (layout_of(batch->program, composite->inputs[role])->shape[0] % shape->rows ||
            !add_rows(batch, composite->inputs[role]))
            return false;
    }
    return true;
}

bool lb_row_batch_of_composite(const lb_composite *composite, const lb_regenerated *bytes, lb_row_batch *batch)
{
    static const struct {
        lb_composite_kind kind;
        lb_launch_of of;
    } kinds[] = {{LB_COMPOSITE_RMS_NORM, LB_LAUNCH_NORM},
                 {LB_COMPOSITE_SOFTMAX, LB_LAUNCH_SOFTMAX},
                 {LB_COMPOSITE_ATTENTION, LB_LAUNCH_ATTENTION}};
    *batch =
        (lb_row_batch){.program = composite->program, .bytes = bytes, .composite = composite, .of = LB_LAUNCH_KINDS};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].kind == composite->kind) batch->of = kinds[i].of;
    if (batch->of == LB_LAUNCH_KINDS || !composite->n_ops) return false;
    batch->op = composite->ops[composite->n_ops - 1], batch->y = composite->outputs[0];
    const lb_value *value = &composite->program->values[composite->inputs[0]];
    batch->shape = (lb_launch_shape){.rows = rows_of(&value->layout),
                                     .terms = dim(&value->layout, 1),
                                     .element_bytes = lb_dtype_bits(value->dtype) / 8};
    if (batch->of == LB_LAUNCH_ATTENTION ? load_sequences(batch)
                                         : batch->shape.rows > 0 && add_rows(batch, composite->inputs[0]))
        return true;
    lb_row_batch_release(batch);
    return false;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Which of the values that have rows `value` is; n_values: none. */
static uint32_t place_of(const lb_row_batch *batch, uint32_t value)
{
    uint32_t i = 0;
    while (i < batch->n_values && batch->values[i] != value) i++;
    return i;
}

/* `value` as the batch has it: its rows in turn, or the recorded tensor where it has none. */
static bool read_input(const lb_row_batch *b, uint32_t value, char *const *batch, int64_t rows, lb_tensor *tensor)
{
    const uint32_t i = place_of(b, value);
    bool exact = true;
    if (i == b->n_values) return lb_regenerated_value(b->bytes, value, tensor, &exact) && exact;
    const lb_value *v = &b->program->values[value];
    *tensor = (lb_tensor){batch[i], v->dtype, with_rows(b, &v->layout, rows)};
    return true;
}

static lb_status run_op(const lb_row_batch *b, const lb_swap *swap, char *const *batch, int64_t rows, lb_tensor *result)
{
    lb_program *program = lb_program_copy(b->program);
    if (!program) return LB_ERR_NOMEM;
    const lb_op *op = &program->ops[b->op];
    const lb_arg *args = lb_op_args(program, op);
    uint32_t leaves[16], n = 0;
    lb_tensor inputs[16];
    bool whole = true;
    for (uint32_t k = 0; k < op->args && n < 16; k++) {
        if (args[k].tag != LB_ARG_VALUE) continue;
        leaves[n] = args[k].u.value;
        whole &= read_input(b, leaves[n], batch, rows, &inputs[n]);
        n++;
    }
    for (uint32_t i = 0; i < b->n_values; i++) {
        lb_value *value = &program->values[b->values[i]];
        value->layout = with_rows(b, &value->layout, rows), value->storage = INT64_MAX / 4 + i;
    }
    for (uint32_t k = 0; k < op->results; k++) {
        const uint32_t v = lb_op_results(program, op)[k];
        if (v != LB_NONE) program->values[v].layout = with_rows(b, &program->values[v].layout, rows);
    }
    lb_subprogram *subprogram = NULL;
    const lb_subprogram_parts parts = {program, &b->op, leaves, &b->y, 1, n, 1};
    lb_status status = whole ? lb_subprogram_new(&parts, &subprogram, NULL) : LB_ERR_NOT_CAPTURED;
    if (status == LB_OK) status = lb_subprogram_run(subprogram, inputs, swap, *swap->argument != 0, result, NULL);
    lb_subprogram_free(subprogram);
    lb_program_free(program);
    return status;
}

static lb_status run_composite(const lb_row_batch *b, const char *kernel, char *const *batch, int64_t rows,
                               lb_tensor *result)
{
    lb_tensor inputs[LB_COMPOSITE_INPUTS] = {{0}}, outputs[LB_COMPOSITE_OUTPUTS] = {{0}};
    const lb_value *y = &b->program->values[b->y];
    for (int role = 0; role < LB_COMPOSITE_INPUTS; role++) {
        const uint32_t value = b->composite->inputs[role];
        if (value != LB_NONE && !read_input(b, value, batch, rows, &inputs[role])) return LB_ERR_NOT_CAPTURED;
    }
    *result = (lb_tensor){NULL, y->dtype, with_rows(b, &y->layout, rows)};
    result->data = malloc(lb_dtype_bytes(y->dtype, (size_t)lb_layout_numel(&result->layout)) + 1);
    if (!result->data) return LB_ERR_NOMEM;
    outputs[0] = *result;
    return lb_composite_run(b->composite, kernel, inputs, outputs, NULL);
}

/* The recorded rows in turn. */
static bool fill(const lb_row_batch *b, int64_t first, int64_t rows, char **batch)
{
    for (uint32_t i = 0; i < b->n_values; i++) {
        const size_t each = b->each[i];
        if (!(batch[i] = malloc((size_t)rows * each + 1))) return false;
        for (int64_t r = 0; r < rows; r++)
            memcpy(batch[i] + (size_t)r * each, b->dense[i] + (size_t)((first + r) % b->shape.rows) * each, each);
    }
    return true;
}

char *lb_row_batch_run(const lb_row_batch *b, lb_row_run run, const char *text, int64_t first, int64_t rows,
                       int64_t *elements)
{
    const lb_swap swap = {run == LB_ROW_RUN_ORDER ? LB_SWAP_ORDER : LB_SWAP_KERNEL, "", text};
    lb_tensor result = {0};
    char *batch[LB_COMPOSITE_INPUTS] = {NULL}, *dense = NULL;
    lb_status status = LB_ERR_NOMEM;
    if (fill(b, first, rows, batch))
        status = b->composite ? run_composite(b, text, batch, rows, &result) : run_op(b, &swap, batch, rows, &result);
    if (status == LB_OK && result.data) {
        const int64_t n = lb_layout_numel(&result.layout);
        dense = malloc(lb_dtype_bytes(result.dtype, (size_t)n) + 1);
        *elements = n / rows;
        if (dense && lb_tensor_gather(&result, dense, NULL) != LB_OK) free(dense), dense = NULL;
    }
    free(result.data);
    for (uint32_t i = 0; i < b->n_values; i++) free(batch[i]);
    return dense;
}
