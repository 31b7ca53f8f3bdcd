/* The pass that scales updates: what the optimizers of a step do to a parameter, or what single ops do to what they
 * write, made `factor` times as large.
 *
 *      old := copy of the parameter, before the first op of the optimizer phase that writes it
 *      … the optimizer's ops as they are …
 *      parameter := old + factor (parameter - old), after the last           aten::lerp_ with weight 1 - factor, to old;
 *                                                                            aten::copy_ of old where the factor is 0
 *
 * Moments stay what they become: only what reaches the parameter is scaled. 0 leaves the parameter as it was. What an
 * observer sees of the parameter is the scaled value, under the last op; the ops in between are seen by none. A
 * selector with index= names ops by themselves: whatever each of them writes in place (a state that was multiplied, a
 * buffer that was filled), in any phase.
 */
#include "program/block.h"
#include "program/optimizer_ops.h"
#include "program/passes.h"
#include "program/rewrite.h"
#include "program/selector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A parameter that the step's optimizer phase writes. */
typedef struct written {
    int64_t storage;
    uint32_t first, last;   /* ops */
    uint32_t before, after; /* values: as the first op reads it, as the last leaves it */
    uint32_t old;           /* the copy */
} written;

/* Marks what an optimizer does. One that is plain code runs outside the model, and older captures have its ops in the
 * phase `other`. */
static uint8_t *list_updates(const lb_slice_flow *flow)
{
    const lb_program *program = flow->program;
    uint8_t *marks = lb_optimizer_ops(flow);
    for (uint32_t i = 0; marks && i < program->n_ops; i++)
        marks[i] |= !program->ops[i].scope && program->ops[i].phase == LB_PHASE_OTHER;
    return marks;
}

/* False where nothing writes it, or its first write does not read it: then there is no update to scale. */
static bool find_written(const lb_program *program, const uint8_t *updates, int64_t storage, written *out)
{
    *out = (written){.storage = storage, .first = LB_NONE, .before = LB_NONE};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        uint32_t v = updates[i] ? lb_op_writes(program, &program->ops[i], storage) : LB_NONE;
        if (v == LB_NONE) continue;
        if (out->first == LB_NONE) out->first = i, out->before = lb_op_reads(program, &program->ops[i], storage);
        out->last = i, out->after = v;
    }
    return out->before != LB_NONE && lb_dtype_is_float(program->values[out->after].dtype) &&
           lb_layout_same_shape(&program->values[out->before].layout, &program->values[out->after].layout);
}

/* Which parameters' updates are wanted. */
typedef struct wanted {
    const lb_program *in;
    const uint8_t *updates; /* per op */
    const lb_selector *selector;
    const char *blocks;
} wanted;

static lb_status add_written(const wanted *w, uint32_t name, int64_t storage, written *rows, uint32_t *n, lb_err *err)
{
    bool selected;
    for (uint32_t i = 0; i < *n; i++)
        if (rows[i].storage == storage) return LB_OK;
    const uint32_t owner = lb_program_owner(w->in, lb_program_text(w->in, name));
    LB_TRY(lb_selector_scope(w->selector, w->in, owner, w->blocks, &selected, err));
    if (selected) *n += find_written(w->in, w->updates, storage, &rows[*n]);
    return LB_OK;
}

/* The parameters of the groups, and what the model calls a parameter where an optimizer without a class steps it. */
static lb_status collect(const wanted *all, written **rows, uint32_t *n, lb_err *err)
{
    const lb_program *in = all->in;
    uint32_t sources = 0;
    for (uint32_t i = 0; i < in->n_ops; i++) sources += lb_op_is_source(in, &in->ops[i]);
    *n = 0;
    *rows = malloc((in->n_group_params + sources + 1) * sizeof **rows);
    if (!*rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < in->n_group_params; k++)
        LB_TRY(add_written(all, in->group_params[k].name, in->group_params[k].storage, *rows, n, err));
    for (uint32_t i = 0; i < in->n_ops; i++) {
        if (!lb_op_is_source(in, &in->ops[i])) continue;
        const lb_value *value = &in->values[lb_op_results(in, &in->ops[i])[0]];
        if (value->flags & LB_VALUE_PARAMETER) LB_TRY(add_written(all, value->name, value->storage, *rows, n, err));
    }
    return LB_OK;
}

/* What the ops named write over, each by itself. */
static lb_status collect_ops(const lb_program *in, const uint32_t *given, const lb_selector *selector, written **rows,
                             uint32_t *n, lb_err *err)
{
    uint8_t *marks = calloc((size_t)in->n_ops + 1, 1);
    uint32_t room = 0;
    *n = 0;
    const lb_status status = marks ? lb_selector_mark(selector, in, NULL, given, marks, 1, NULL, err)
                                   : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status != LB_OK) {
        free(marks);
        return status;
    }
    for (uint32_t i = 0; i < in->n_ops; i++) room += marks[i] ? in->ops[i].written : 0;
    *rows = malloc((room + 1) * sizeof **rows);
    for (uint32_t i = 0; i < in->n_ops && *rows; i++)
        for (uint32_t w = 0; marks[i] && w < in->ops[i].written; w++) {
            const uint32_t after = lb_op_written(in, &in->ops[i])[w];
            const int64_t storage = after == LB_NONE ? -1 : in->values[after].storage;
            const uint32_t before = after == LB_NONE ? LB_NONE : lb_op_reads(in, &in->ops[i], storage);
            if (before == LB_NONE || !lb_layout_same_shape(&in->values[before].layout, &in->values[after].layout))
                continue;
            (*rows)[(*n)++] = (written){storage, i, i, before, after, LB_NONE};
        }
    free(marks);
    return *rows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* A fresh storage for the copy. */
static void add_copy(lb_rewrite *rw, written *written, int64_t storage)
{
    lb_value row = {
        .storage = storage, .dtype = rw->in->values[written->before].dtype, .name = LB_NONE, .statistics = LB_NONE};
    const lb_layout *layout = &rw->in->values[written->before].layout;
    row.layout = lb_layout_contiguous(layout->ndim, layout->shape);
    written->old = lb_program_add_value(rw->out, &row);
    if (written->old == LB_NONE)
        rw->failed = true;
    else
        lb_rewrite_copy(rw, written->first, written->before, written->old);
}

static void add_scaling(lb_rewrite *rw, const written *written, double factor)
{
    const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = written->after},
                           {.tag = LB_ARG_VALUE, .u.value = written->old},
                           {.tag = LB_ARG_FLOAT, .u.f = 1 - factor}};
    const lb_arg plain = {.tag = LB_ARG_BOOL}, copied[] = {args[0], args[1], plain};
    const bool copies = factor == 0; /* what was written may be infinite, and 0 times that is NaN */
    lb_rewrite_new(rw, &(lb_new_op){.name = copies ? "aten::copy_" : "aten::lerp_.Scalar",
                                    .like = &rw->in->ops[written->last],
                                    .origin = written->last,
                                    .args = copies ? copied : args,
                                    .n_args = 3,
                                    .results = &written->after,
                                    .n_results = 1,
                                    .written = &written->after,
                                    .n_written = 1});
}

/* What is scaled has no reader between its first and its last op. */
static bool writes_any(const lb_program *program, const uint8_t *updates, uint32_t i, const written *rows, uint32_t n)
{
    const lb_op *op = &program->ops[i];
    if (op->flags & LB_OP_COLLECTIVE) return false;
    for (uint32_t k = 0; k < n; k++)
        if ((updates[i] || rows[k].first == i) && lb_op_writes(program, op, rows[k].storage) != LB_NONE) return true;
    return false;
}

static lb_status write_all(const lb_program *in, const uint8_t *updates, written *rows, double factor, lb_passed *out,
                           lb_err *err)
{
    const uint32_t n = out->touched;
    lb_rewrite rw;
    int64_t fresh = 0;
    for (uint32_t v = 0; v < in->n_values; v++)
        if (in->values[v].storage > fresh) fresh = in->values[v].storage;
    LB_TRY(lb_rewrite_init(&rw, in, err));
    for (uint32_t i = 0; i < in->n_ops; i++) {
        lb_rewrite_begin(&rw, i);
        for (uint32_t k = 0; k < n; k++)
            if (rows[k].first == i) add_copy(&rw, &rows[k], fresh + 1 + k);
        lb_rewrite_op(&rw, &in->ops[i], writes_any(in, updates, i, rows, n) ? LB_NONE : i);
        for (uint32_t k = 0; k < n; k++)
            if (rows[k].last == i) add_scaling(&rw, &rows[k], factor);
    }
    return lb_rewrite_finish(&rw, &out->program, &out->origin, err);
}

lb_status lb_pass_update(const lb_program *in, const uint32_t *given, const struct lb_slice_flow *flow,
                         const lb_selector *selector, const char *argument, lb_passed *out, lb_err *err)
{
    char *end;
    const double factor = strtod(argument, &end);
    if (end == argument || *end || !(factor >= 0 && factor <= 1))
        return lb_fail(err, LB_ERR_INVALID, "an update can be made 0 to 1 times as large, not \"%s\"", argument);
    lb_blocks blocks = {0};
    written *rows = NULL;
    uint32_t n = 0;
    const bool single = lb_selector_names_ops(selector);
    uint8_t *updates = list_updates(flow);
    lb_status status = updates ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && !single) status = lb_blocks_find(in, flow, &blocks, err);
    if (status == LB_OK)
        status = single ? collect_ops(in, given, selector, &rows, &n, err)
                        : collect(&(wanted){in, updates, selector, blocks.letters}, &rows, &n, err);
    out->touched = n;
    if (status == LB_OK) status = write_all(in, updates, rows, factor, out, err);
    free(rows);
    free(updates);
    lb_blocks_release(&blocks);
    return status;
}
