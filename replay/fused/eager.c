/* Running the recorded ops of a composite: see eager.h. */
#include "fused/eager.h"

#include "kernel/complex_rows.h"
#include "kernel/value_memory.h"
#include "machine/operands.h"
#include "kernel/ops.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* A storage: bytes [first, last) of it. */
typedef struct place {
    int64_t storage, first, last;
    char *bytes;
} place;

typedef struct environment {
    const lb_program *program;
    place *places;
    uint32_t n_places;
    void **blocks; /* freed at the end */
    uint32_t n_blocks;
    lb_status status;
    lb_err *err;
} environment;

static void *block(environment *e, size_t bytes)
{
    void **more = lb_array_grow(e->blocks, e->n_blocks, sizeof *more);
    if (!more) {
        e->status = lb_fail(e->err, LB_ERR_NOMEM, "out of memory for a composite");
        return NULL;
    }
    e->blocks = more;
    void *p = calloc(bytes + 64, 1);
    if (!p)
        e->status = lb_fail(e->err, LB_ERR_NOMEM, "out of memory for a composite");
    else
        e->blocks[e->n_blocks++] = p;
    return p;
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

static place *place_of(environment *e, int64_t storage)
{
    for (uint32_t i = 0; i < e->n_places; i++)
        if (e->places[i].storage == storage) return &e->places[i];
    return NULL;
}

static void cover(void *context, uint32_t value)
{
    environment *e = context;
    if (value == LB_NONE || e->status != LB_OK) return;
    const lb_value *v = &e->program->values[value];
    int64_t first, last;
    e->status = lb_layout_dense_range(&v->layout, &first, &last, e->err);
    const int64_t bits = (int64_t)lb_dtype_bits(v->dtype);
    first = first * bits / 8, last = (last * bits + 7) / 8;
    place *p = place_of(e, v->storage);
    if (p) {
        p->first = first < p->first ? first : p->first;
        p->last = last > p->last ? last : p->last;
        return;
    }
    place *more = lb_array_grow(e->places, e->n_places, sizeof *more);
    if (!more) {
        e->status = lb_fail(e->err, LB_ERR_NOMEM, "out of memory for a composite");
        return;
    }
    e->places = more;
    e->places[e->n_places++] = (place){v->storage, first, last, NULL};
}

static void cover_op(environment *e, const lb_op *op)
{
    lb_op_each_input(e->program, op, cover, e);
    for (uint32_t r = 0; r < op->results; r++) cover(e, lb_op_results(e->program, op)[r]);
    for (uint32_t w = 0; w < op->written; w++) cover(e, lb_op_written(e->program, op)[w]);
}

static lb_tensor window(environment *e, uint32_t value)
{
    const lb_value *v = &e->program->values[value];
    const place *p = place_of(e, v->storage);
    const int64_t bits = (int64_t)lb_dtype_bits(v->dtype);
    lb_tensor t = {p->bytes + v->layout.offset * bits / 8 - p->first, v->dtype, v->layout};
    t.layout.offset = 0;
    return t;
}

/* ---- inputs and outputs ------------------------------------------------------------------------------------------ */

static lb_tensor dense(environment *e, lb_dtype dtype, const lb_layout *like)
{
    lb_tensor t = {NULL, dtype, lb_layout_contiguous(like->ndim, like->shape)};
    t.data = block(e, lb_dtype_bytes(dtype, (size_t)lb_layout_numel(like)));
    return t;
}

static void put(environment *e, uint32_t value, const lb_tensor *given)
{
    const lb_tensor to = window(e, value);
    if (lb_layout_numel(&given->layout) > lb_layout_numel(&to.layout)) {
        e->status = lb_fail(e->err, LB_ERR_INVALID, "eager takes at most as many rows as were recorded");
        return;
    }
    const lb_tensor all = dense(e, to.dtype, &to.layout);
    if (!all.data) return;
    const lb_tensor part = {all.data, to.dtype, lb_layout_contiguous(given->layout.ndim, given->layout.shape)};
    lb_memory_tensor_copy(&part, given, NULL);
    lb_memory_tensor_copy(&to, &all, NULL);
}

static void get(environment *e, uint32_t value, const lb_tensor *wanted)
{
    const lb_tensor from = window(e, value), all = dense(e, from.dtype, &from.layout);
    if (!all.data) return;
    lb_memory_tensor_copy(&all, &from, NULL);
    const lb_tensor part = {all.data, from.dtype, lb_layout_contiguous(wanted->layout.ndim, wanted->layout.shape)};
    if (lb_layout_numel(&wanted->layout) > lb_layout_numel(&from.layout))
        e->status = lb_fail(e->err, LB_ERR_INVALID, "eager gives at most as many rows as were recorded");
    else
        lb_memory_tensor_copy(wanted, &part, NULL);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Inputs that lie where a result goes are copied, strides kept. */
static lb_tensor operand_tensor(environment *e, const lb_op *op, uint32_t value)
{
    lb_tensor t = window(e, value);
    bool meets = false;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(e->program, op, r);
        meets |= v != LB_NONE && e->program->values[v].storage == e->program->values[value].storage;
    }
    if (!meets) return t;
    const place *p = place_of(e, e->program->values[value].storage);
    char *copy = block(e, (size_t)(p->last - p->first));
    if (!copy) return t;
    memcpy(copy, p->bytes, (size_t)(p->last - p->first));
    t.data = copy + ((char *)t.data - p->bytes);
    return t;
}

static lb_operand scalar(const lb_arg *arg)
{
    lb_operand o = {.tag = arg->tag == LB_ARG_FLOAT ? LB_OPERAND_FLOAT
                           : arg->tag == LB_ARG_INT ? LB_OPERAND_INT
                                                    : LB_OPERAND_BOOL};
    o.f = arg->tag == LB_ARG_FLOAT ? arg->u.f : (double)arg->u.i;
    o.i = arg->tag != LB_ARG_FLOAT ? arg->u.i : arg->u.f > -9.2e18 && arg->u.f < 9.2e18 ? (int64_t)arg->u.f : 0;
    return o;
}

static bool is_scalar(const lb_arg *arg)
{
    return arg->tag == LB_ARG_FLOAT || arg->tag == LB_ARG_INT || arg->tag == LB_ARG_BOOL;
}

static lb_operand list(environment *e, const lb_op *op, const lb_arg *arg)
{
    const lb_arg *items = e->program->args + arg->u.first;
    bool numbers = true;
    for (uint32_t i = 0; i < arg->count; i++) numbers &= is_scalar(&items[i]);
    lb_operand o = {.tag = numbers ? LB_OPERAND_NUMBERS : LB_OPERAND_TENSORS, .count = arg->count};
    int64_t *ints = numbers ? block(e, arg->count * sizeof *ints) : NULL;
    double *floats = numbers ? block(e, arg->count * sizeof *floats) : NULL;
    lb_tensor *tensors = numbers ? NULL : block(e, arg->count * sizeof *tensors);
    for (uint32_t i = 0; e->status == LB_OK && i < arg->count; i++) {
        if (numbers)
            ints[i] = scalar(&items[i]).i, floats[i] = scalar(&items[i]).f;
        else if (items[i].tag == LB_ARG_VALUE)
            tensors[i] = operand_tensor(e, op, items[i].u.value);
    }
    o.ints = ints, o.floats = floats, o.tensors = tensors;
    return o;
}

static lb_operand operand(environment *e, const lb_op *op, const lb_arg *arg)
{
    lb_operand o = {.tag = LB_OPERAND_NONE};
    if (is_scalar(arg)) return scalar(arg);
    if (arg->tag == LB_ARG_LIST) return list(e, op, arg);
    if (arg->tag == LB_ARG_VALUE) o.tag = LB_OPERAND_TENSOR, o.tensor = operand_tensor(e, op, arg->u.value);
    if (arg->tag == LB_ARG_DTYPE) o.tag = LB_OPERAND_DTYPE, o.i = arg->u.i;
    if (arg->tag == LB_ARG_STRING) o.tag = LB_OPERAND_STRING, o.string = lb_program_text(e->program, arg->u.string);
    return o;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static uint32_t list_results(environment *e, const lb_op *op, lb_op_form form, lb_tensor *results)
{
    const lb_program *p = e->program;
    uint32_t n = 0;
    for (uint32_t r = 0; (form == LB_FORM_PLAIN || !op->written) && r < op->results; r++) {
        const uint32_t v = lb_op_results(p, op)[r];
        if (v != LB_NONE && lb_op_writes(p, op, p->values[v].storage) != LB_NONE) continue;
        results[n++] = v == LB_NONE ? (lb_tensor){0} : window(e, v);
    }
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(p, op)[w];
        results[n++] = v == LB_NONE ? (lb_tensor){0} : window(e, v);
    }
    return n;
}

static lb_status run_op(environment *e, const lb_op *op)
{
    const char *name = lb_op_name(e->program, op);
    lb_op_form form = LB_FORM_PLAIN;
    const lb_op_row *row = lb_op_find(name, &form);
    const bool copies = row && row->flags & LB_ROW_VIEW && !row->kernel;
    if (!row || (!row->kernel && !copies) || op->flags & LB_OP_RANDOM || form == LB_FORM_FOREACH ||
        form == LB_FORM_FOREACH_INPLACE)
        return lb_fail(e->err, LB_ERR_UNSUPPORTED, "%s cannot be run by itself", name);
    lb_tensor *results = block(e, (op->results + op->written + 1) * sizeof *results);
    lb_operand *args = block(e, (op->args + 1) * sizeof *args);
    if (!results || !args) return e->status;
    lb_call call = {.row = row, .args = args, .results = results, .err = e->err};
    call.n_results = list_results(e, op, form, results);
    call.n_args = form == LB_FORM_OUT ? lb_operands_without_out(e->program, op) : op->args;
    for (uint32_t i = 0; i < call.n_args; i++) args[i] = operand(e, op, &lb_op_args(e->program, op)[i]);
    if (e->status != LB_OK) return e->status;
    for (uint32_t i = 0; i < LB_ROW_GIVEN_COUNT(row->flags); i++)
        if (LB_ROW_GIVEN_FIRST(row->flags) + i < call.n_results)
            results[LB_ROW_GIVEN_FIRST(row->flags) + i].data = NULL;
    if (!copies) return lb_row_run(&call);
    const lb_tensor all = dense(e, args[0].tensor.dtype, &args[0].tensor.layout);
    if (!all.data) return e->status;
    lb_memory_tensor_copy(&all, &args[0].tensor, NULL);
    lb_memory_tensor_copy(
        &results[0],
        &(lb_tensor){all.data, all.dtype, lb_layout_contiguous(results[0].layout.ndim, results[0].layout.shape)}, NULL);
    return LB_OK;
}

static void open_places(environment *e, const lb_composite *c)
{
    for (uint32_t i = 0; i < c->n_ops; i++) cover_op(e, &e->program->ops[c->ops[i]]);
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) cover(e, c->inputs[i]);
    for (uint32_t i = 0; i < c->n_list; i++) cover(e, c->list[i]);
    for (int i = 0; i < LB_COMPOSITE_OUTPUTS; i++) cover(e, c->outputs[i]);
    for (uint32_t i = 0; e->status == LB_OK && i < e->n_places; i++)
        e->places[i].bytes = block(e, (size_t)(e->places[i].last - e->places[i].first));
}

/* Everything that is read must be an input or have been made before. */
typedef struct check {
    environment *e;
    const lb_composite *composite;
    uint32_t before;
    bool unknown;
} check;

static void look(void *context, uint32_t value)
{
    check *c = context;
    const lb_program *p = c->e->program;
    bool known = false;
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        known |= c->composite->inputs[i] != LB_NONE &&
                 p->values[c->composite->inputs[i]].storage == p->values[value].storage;
    for (uint32_t i = 0; i < c->composite->n_list; i++)
        known |= p->values[c->composite->list[i]].storage == p->values[value].storage;
    for (uint32_t k = 0; k < c->before && !known; k++) {
        const lb_op *op = &p->ops[c->composite->ops[k]];
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            const uint32_t v = lb_op_outcome(p, op, r);
            known |= v != LB_NONE && p->values[v].storage == p->values[value].storage;
        }
    }
    c->unknown |=
        !known && lb_layout_numel(&p->values[value].layout) > 0 && !(p->values[value].flags & LB_VALUE_UNDEFINED);
}

/* Some op reads these contents: an input may be there to be told of, in a storage that has been written since. */
typedef struct search {
    const lb_program *program;
    uint32_t value;
    bool found;
} search;

static void compare(void *context, uint32_t value)
{
    search *s = context;
    const lb_value *a = &s->program->values[s->value], *b = &s->program->values[value];
    s->found |= a->storage == b->storage && a->version == b->version;
}

static bool is_read(const lb_composite *c, uint32_t value)
{
    search s = {c->program, value, false};
    for (uint32_t i = 0; i < c->n_ops && !s.found; i++)
        lb_op_each_input(c->program, &c->program->ops[c->ops[i]], compare, &s);
    return s.found;
}

/* Of `zeros_like(x)` only the layout of x counts. */
static bool reads_contents(const lb_program *p, const lb_op *op)
{
    const char *name = lb_op_name(p, op);
    return strncmp(name, "aten::zeros", 11) && strncmp(name, "aten::new_zeros", 15);
}

lb_status lb_eager_run(const lb_composite *c, const lb_tensor *inputs, lb_tensor *outputs, lb_err *err)
{
    environment e = {.program = c->program, .err = err};
    check known = {&e, c, 0, false};
    open_places(&e, c);
    for (int i = 0; e.status == LB_OK && i < LB_COMPOSITE_INPUTS; i++)
        if (c->inputs[i] != LB_NONE && inputs[i].data && is_read(c, c->inputs[i])) put(&e, c->inputs[i], &inputs[i]);
    for (uint32_t i = 0; e.status == LB_OK && i < c->n_list; i++)
        if (inputs[LB_COMPOSITE_INPUTS + i].data) put(&e, c->list[i], &inputs[LB_COMPOSITE_INPUTS + i]);
    for (uint32_t i = 0; e.status == LB_OK && i < c->n_ops; i++) {
        const lb_op *op = &e.program->ops[c->ops[i]];
        known.before = i;
        if (reads_contents(e.program, op)) lb_op_each_input(e.program, op, look, &known);
        e.status = known.unknown ? lb_fail(err, LB_ERR_UNSUPPORTED, "%s reads what is not an input of the composite",
                                           lb_op_name(e.program, op))
                                 : run_op(&e, op);
    }
    for (int i = 0; e.status == LB_OK && i < LB_COMPOSITE_OUTPUTS; i++)
        if (c->outputs[i] != LB_NONE && outputs[i].data) get(&e, c->outputs[i], &outputs[i]);
    for (uint32_t i = 0; i < e.n_blocks; i++) free(e.blocks[i]);
    free(e.blocks);
    free(e.places);
    return e.status;
}
