/* Rows among other rows: see lastbit/invariance.h. */
#include <lastbit/invariance.h>

#include "ops.h"
#include "rehearsal.h"
#include "selector.h"
#include "stretch.h"

#include <lastbit/compare.h>
#include <lastbit/composite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 512, SOME_ROWS = 64 };

/* A recorded batch, and what is run on others. */
typedef struct subject {
    const lb_side *side;
    const lb_witness *bytes;
    const lb_program *p;
    uint32_t op;
    const lb_composite *norm; /* NULL: the op itself */
    uint32_t x;               /* the value whose rows they are */
    int64_t rows, width, row;
    size_t element;
    char *batch; /* the recorded rows, dense */
    int multiprocessors;
} subject;

/* ---- batches ---- */

static lb_layout with_rows(const lb_layout *like, int64_t rows)
{
    int64_t shape[LB_MAX_DIMS];
    for (int d = 0; d < like->ndim; d++) shape[d] = d == like->ndim - 1 ? like->shape[d] : 1;
    shape[0] = rows;
    return lb_layout_contiguous(like->ndim, shape);
}

/* `rows` of the recorded rows, in turn from `first` on; malloc'ed. */
static void *make_batch(const subject *s, int64_t first, int64_t rows)
{
    const size_t bytes = (size_t)s->width * s->element;
    char *batch = malloc((size_t)rows * bytes + 1);
    for (int64_t i = 0; batch && i < rows; i++)
        memcpy(batch + (size_t)i * bytes, s->batch + (size_t)((first + i) % s->rows) * bytes, bytes);
    return batch;
}

/* ---- an op ---- */

static lb_status run_op(const subject *s, const char *kernel, int64_t rows, void *batch, lb_tensor *result,
                        lb_err *err)
{
    lb_program *p = lb_program_copy(s->p);
    if (!p) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a batch");
    const lb_op *op = &p->ops[s->op];
    uint32_t leaves[16], n = 0;
    lb_tensor inputs[16];
    lb_rehearsal *rehearsal = NULL;
    const lb_arg *args = lb_op_args(p, op);
    bool whole = true;
    p->values[s->x].layout = with_rows(&p->values[s->x].layout, rows);
    p->values[s->x].storage = INT64_MAX / 4;
    for (uint32_t k = 0; k < op->results; k++) {
        const uint32_t v = lb_op_results(p, op)[k];
        if (v != LB_NONE) p->values[v].layout = with_rows(&p->values[v].layout, rows);
    }
    for (uint32_t k = 0; k < op->args && n < 16; k++) {
        if (args[k].tag != LB_ARG_VALUE) continue;
        leaves[n] = args[k].u.value;
        inputs[n] = (lb_tensor){batch, p->values[s->x].dtype, p->values[s->x].layout};
        bool exact = true;
        if (leaves[n] != s->x) whole &= lb_witness_value(s->bytes, leaves[n], &inputs[n], &exact) && exact;
        n++;
    }
    const uint32_t output = lb_op_results(p, op)[0];
    const lb_rehearsal_parts parts = {p, &s->op, leaves, &output, 1, n, 1};
    const lb_swap swap = {LB_SWAP_KERNEL, "", kernel};
    lb_status status =
        whole ? lb_rehearsal_new(&parts, &rehearsal, err) : lb_fail(err, LB_ERR_NOT_CAPTURED, "bytes lack");
    if (status == LB_OK) status = lb_rehearsal_run(rehearsal, inputs, &swap, *kernel != 0, result, err);
    lb_rehearsal_free(rehearsal);
    lb_program_free(p);
    return status;
}

/* ---- a fused norm ---- */

static lb_status run_norm(const subject *s, const char *kernel, int64_t rows, void *batch, lb_tensor *result,
                          lb_err *err)
{
    lb_tensor inputs[LB_COMPOSITE_INPUTS] = {{0}}, outputs[LB_COMPOSITE_OUTPUTS] = {{0}};
    const lb_value *x = &s->p->values[s->x], *y = &s->p->values[s->norm->outputs[LB_NORM_Y]];
    const uint32_t weight = s->norm->inputs[LB_NORM_WEIGHT];
    bool exact = true;
    inputs[LB_NORM_X] = (lb_tensor){batch, x->dtype, with_rows(&x->layout, rows)};
    if (weight != LB_NONE && !(lb_witness_value(s->bytes, weight, &inputs[LB_NORM_WEIGHT], &exact) && exact))
        return lb_fail(err, LB_ERR_NOT_CAPTURED, "bytes lack");
    *result = (lb_tensor){NULL, y->dtype, with_rows(&y->layout, rows)};
    result->data = malloc(lb_dtype_bytes(y->dtype, (size_t)lb_layout_numel(&result->layout)) + 1);
    if (!result->data) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a batch");
    outputs[LB_NORM_Y] = *result;
    lb_status status = lb_composite_run(s->norm, kernel, inputs, outputs, err);
    if (status != LB_OK) free(result->data), result->data = NULL;
    return status;
}

/* ---- one subject, one kernel ---- */

/* The result for a batch, dense; malloc'ed, NULL where this cannot be run. `elements`: of one row of it. */
static char *run_batch(const subject *s, const char *kernel, int64_t first, int64_t rows, int64_t *elements)
{
    lb_tensor result = {0};
    char *dense = NULL;
    void *batch = make_batch(s, first, rows);
    lb_status status = LB_ERR_NOMEM;
    if (batch)
        status = s->norm ? run_norm(s, kernel, rows, batch, &result, NULL)
                         : run_op(s, kernel, rows, batch, &result, NULL);
    if (status == LB_OK && result.data) {
        const int64_t n = lb_layout_numel(&result.layout);
        dense = malloc(lb_dtype_bytes(result.dtype, (size_t)n) + 1);
        *elements = n / rows;
        if (dense && lb_tensor_gather(&result, dense, NULL) != LB_OK) free(dense), dense = NULL;
    }
    free(result.data), free(batch);
    return dense;
}

static int64_t count_differing(const char *x, const char *y, int64_t elements, size_t element)
{
    int64_t differing = 0;
    for (int64_t i = 0; i < elements; i++)
        differing += memcmp(x + (size_t)i * element, y + (size_t)i * element, element) != 0;
    return differing;
}

/* Rows in batches of one size, as many batches as it takes to see `row->embedded` of them. */
static int64_t embed(const subject *s, const char *kernel, const char *base, size_t element,
                     const lb_invariance_row *row, int64_t rows)
{
    int64_t differing = 0, elements = 0;
    const int64_t each = row->elements / row->embedded;
    for (int64_t seen = 0; seen < row->embedded; seen += rows) {
        const int64_t first = (s->row + seen) % s->rows;
        char *bits = run_batch(s, kernel, first, rows, &elements);
        for (int64_t i = 0; bits && elements == each && i < rows && seen + i < row->embedded; i++)
            differing += count_differing(base + (size_t)(((first + i) % s->rows) * each) * element,
                                         bits + (size_t)(i * each) * element, each, element);
        free(bits);
    }
    return differing;
}

static lb_status try_kernel(subject *s, const char *kernel, const char *name, int64_t wanted,
                            lb_invariance *out, lb_err *err)
{
    lb_invariance_row row = {.step = s->p->step, .rank = s->p->rank, .op = s->op, .recorded = s->rows};
    const lb_value *y =
        &s->p->values[s->norm ? s->norm->outputs[LB_NORM_Y] : lb_op_results(s->p, &s->p->ops[s->op])[0]];
    snprintf(row.layer, sizeof row.layer, "%s", lb_op_layer(s->p, &s->p->ops[s->op]));
    snprintf(row.name, sizeof row.name, "%s",
             s->norm ? lb_composite_kind_name(s->norm->kind) : lb_op_name(s->p, &s->p->ops[s->op]));
    snprintf(row.kernel, sizeof row.kernel, "%s", name);
    s->row = wanted < 0 ? 0 : wanted;
    row.embedded = wanted >= 0 ? 1 : s->rows < SOME_ROWS ? s->rows : SOME_ROWS;
    char *base = run_batch(s, kernel, 0, s->rows, &row.elements);
    if (!base) return LB_OK;
    row.elements *= row.embedded;
    for (int64_t rows = 1; rows <= LARGEST; rows *= 2) {
        lb_invariance_size *size = &row.sizes[row.n_sizes++];
        size->rows = rows, size->differing = embed(s, kernel, base, lb_dtype_bits(y->dtype) / 8, &row, rows);
        row.varies |= size->differing > 0;
    }
    free(base);
    lb_invariance_row *grown = realloc(out->rows, (out->n_rows + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    out->rows = grown, out->rows[out->n_rows++] = row;
    return LB_OK;
}

/* ---- what has rows ---- */

static bool is_weight(const lb_program *p, uint32_t value)
{
    for (uint32_t v = 0; v < p->n_values; v++)
        if (p->values[v].storage == p->values[value].storage && p->values[v].flags & LB_VALUE_PARAMETER)
            return true;
    return false;
}

static int64_t rows_of(const lb_layout *l)
{
    return l->ndim < 2 || !l->shape[l->ndim - 1] ? 0 : lb_layout_numel(l) / l->shape[l->ndim - 1];
}

/* The argument of an op whose rows become the rows of its result. */
static uint32_t rows_argument(const lb_program *p, const lb_op *op)
{
    const uint32_t y = op->results ? lb_op_results(p, op)[0] : LB_NONE;
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(p, op), &form);
    if (y == LB_NONE || op->written || !row || form != LB_FORM_PLAIN || op->phase != LB_PHASE_FORWARD)
        return LB_NONE;
    if (!(row->flags & (LB_ROW_MATMUL | LB_ROW_REDUCTION)) || !lb_dtype_is_float(p->values[y].dtype))
        return LB_NONE;
    if (p->values[y].layout.ndim != 2 && row->flags & LB_ROW_MATMUL) return LB_NONE; /* batches of matrices */
    for (uint32_t k = 0; k < op->args; k++) {
        const lb_arg *arg = &lb_op_args(p, op)[k];
        if (arg->tag != LB_ARG_VALUE || is_weight(p, arg->u.value)) continue;
        const lb_value *x = &p->values[arg->u.value];
        const bool fits = rows_of(&x->layout) > 0 && rows_of(&x->layout) == rows_of(&p->values[y].layout);
        if (fits && lb_dtype_is_float(x->dtype)) return arg->u.value;
    }
    return LB_NONE;
}

static bool load_rows(subject *s, int64_t wanted)
{
    lb_tensor x;
    bool exact = true;
    const lb_layout *l = &s->p->values[s->x].layout;
    s->rows = rows_of(l);
    if (s->rows <= (wanted < 0 ? 0 : wanted) || !lb_witness_value(s->bytes, s->x, &x, &exact) || !exact ||
        lb_dtype_bits(x.dtype) < 8)
        return false;
    s->width = l->shape[l->ndim - 1], s->element = lb_dtype_bits(x.dtype) / 8;
    s->batch = malloc((size_t)(s->rows * s->width) * s->element + 1);
    if (s->batch && lb_tensor_gather(&x, s->batch, NULL) == LB_OK) return true;
    free(s->batch);
    return false;
}

static lb_status try_op(subject *s, const lb_invariance_options *o, lb_invariance *out, lb_err *err)
{
    lb_op_form form;
    s->norm = NULL, s->x = rows_argument(s->p, &s->p->ops[s->op]);
    if (s->x == LB_NONE || !load_rows(s, o->row)) return LB_OK;
    const char *kernels = lb_op_find(lb_op_name(s->p, &s->p->ops[s->op]), &form)->kernels;
    lb_status status = try_kernel(s, "", "own", o->row, out, err);
    if (status == LB_OK && kernels && !strncmp(kernels, "openblas", 8))
        status = try_kernel(s, "openblas", "openblas", o->row, out, err);
    free(s->batch);
    return status;
}

static lb_status try_norms(subject *s, const lb_composites *composites, const uint8_t *marks,
                           const lb_invariance_options *o, lb_invariance *out, lb_err *err)
{
    for (uint32_t i = 0; i < composites->n; i++) {
        const lb_composite *c = &composites->rows[i];
        bool selected = false;
        for (uint32_t k = 0; k < c->n_ops; k++) selected |= marks[c->ops[k]] != 0;
        if (c->kind != LB_COMPOSITE_RMS_NORM || !selected || !c->n_ops) continue;
        s->norm = c, s->op = c->ops[c->n_ops - 1], s->x = c->inputs[LB_NORM_X];
        if (!load_rows(s, o->row)) continue;
        char kernel[64];
        snprintf(kernel, sizeof kernel, "butterfly,sms:%d", s->multiprocessors);
        lb_status status = try_kernel(s, kernel, kernel, o->row, out, err);
        free(s->batch);
        LB_TRY(status);
    }
    return LB_OK;
}

static void want_value(void *context, uint32_t value)
{
    lb_witness_want(context, value);
}

static lb_status try_program(const lb_side *side, const lb_selector *selector, const lb_invariance_options *o,
                             lb_invariance *out, lb_err *err)
{
    const lb_program *p = side->program;
    lb_witness bytes = {0};
    lb_composites composites = {0};
    uint8_t *marks = calloc(p->n_ops + 1, 1);
    lb_status status =
        marks ? lb_witness_init(side, &bytes, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && lb_selector_mark(selector, p, NULL, NULL, marks, 1) < 0)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; status == LB_OK && i < p->n_ops; i++)
        if (marks[i] && lb_op_computes(p, &p->ops[i])) lb_op_each_input(p, &p->ops[i], want_value, &bytes);
    if (status == LB_OK) status = lb_witness_run(&bytes, err);
    if (status == LB_OK) status = lb_composites_find(p, &composites, err);
    subject s = {.side = side,
                 .bytes = &bytes,
                 .p = p,
                 .multiprocessors = o->multiprocessors > 0 ? o->multiprocessors : 132};
    for (s.op = 0; status == LB_OK && s.op < p->n_ops; s.op++)
        if (marks[s.op] && lb_op_computes(p, &p->ops[s.op])) status = try_op(&s, o, out, err);
    if (status == LB_OK) status = try_norms(&s, &composites, marks, o, out, err);
    lb_composites_release(&composites);
    if (bytes.program) lb_witness_release(&bytes);
    free(marks);
    return status;
}

lb_status lb_invariance_run(lb_capture *capture, const lb_invariance_options *options, lb_invariance *out,
                            lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    lb_selector *selector = NULL;
    *out = (lb_invariance){0};
    lb_status status = lb_selector_new(options->select ? options->select : "", &selector, err);
    for (uint32_t i = 0; i < n_ranks && status == LB_OK; i++)
        for (uint32_t k = 0; k < n_steps && status == LB_OK; k++) {
            const lb_program *p;
            lb_side side = {0};
            if (steps[k] < options->first_step || steps[k] > options->last_step) continue;
            if (lb_capture_program(capture, ranks[i], steps[k], &p, NULL) != LB_OK) continue;
            status = lb_side_init(capture, &p, 1, &side, err);
            if (status == LB_OK) status = try_program(&side, selector, options, out, err);
            lb_side_release(&side);
        }
    lb_selector_free(selector);
    if (status == LB_OK && !out->n_rows)
        status = lb_fail(
            err, LB_ERR_NOT_FOUND,
            "explain --invariance %s: no op there has rows (a product, a sum, a norm) whose bytes were kept",
            options->select ? options->select : "");
    if (status != LB_OK) lb_invariance_release(out);
    return status;
}

void lb_invariance_release(lb_invariance *invariance)
{
    free(invariance->rows);
    *invariance = (lb_invariance){0};
}
