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

static void *block(environment *environment, size_t bytes)
{
    void **more = lb_array_grow(environment->blocks, environment->n_blocks, sizeof *more);
    if (!more) {
        environment->status = lb_fail(environment->err, LB_ERR_NOMEM, "out of memory for a composite");
        return NULL;
    }
    environment->blocks = more;
    void *p = calloc(bytes + 64, 1);
    if (!p)
        environment->status = lb_fail(environment->err, LB_ERR_NOMEM, "out of memory for a composite");
    else
        environment->blocks[environment->n_blocks++] = p;
    return p;
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

static place *place_of(environment *environment, int64_t storage)
{
    for (uint32_t i = 0; i < environment->n_places; i++)
        if (environment->places[i].storage == storage) return &environment->places[i];
    return NULL;
}

static void cover(void *context, uint32_t value)
{
    environment *environment = context;
    if (value == LB_NONE || environment->status != LB_OK) return;
    const lb_value *v = &environment->program->values[value];
    int64_t first, last;
    environment->status = lb_layout_dense_range(&v->layout, &first, &last, environment->err);
    const int64_t bits = (int64_t)lb_dtype_bits(v->dtype);
    first = first * bits / 8, last = (last * bits + 7) / 8;
    place *p = place_of(environment, v->storage);
    if (p) {
        p->first = first < p->first ? first : p->first;
        p->last = last > p->last ? last : p->last;
        return;
    }
    place *more = lb_array_grow(environment->places, environment->n_places, sizeof *more);
    if (!more) {
        environment->status = lb_fail(environment->err, LB_ERR_NOMEM, "out of memory for a composite");
        return;
    }
    environment->places = more;
    environment->places[environment->n_places++] = (place){v->storage, first, last, NULL};
}

static void cover_op(environment *environment, const lb_op *op)
{
    lb_op_each_input(environment->program, op, cover, environment);
    for (uint32_t r = 0; r < op->results; r++) cover(environment, lb_op_results(environment->program, op)[r]);
    for (uint32_t w = 0; w < op->written; w++) cover(environment, lb_op_written(environment->program, op)[w]);
}

static lb_tensor window(environment *environment, uint32_t value)
{
    const lb_value *v = &environment->program->values[value];
    const place *place = place_of(environment, v->storage);
    const int64_t bits = (int64_t)lb_dtype_bits(v->dtype);
    lb_tensor tensor = {place->bytes + v->layout.offset * bits / 8 - place->first, v->dtype, v->layout};
    tensor.layout.offset = 0;
    return tensor;
}

/* ---- inputs and outputs ------------------------------------------------------------------------------------------ */

static lb_tensor dense(environment *environment, lb_dtype dtype, const lb_layout *like)
{
    lb_tensor tensor = {NULL, dtype, lb_layout_contiguous(like->ndim, like->shape)};
    tensor.data = block(environment, lb_dtype_bytes(dtype, (size_t)lb_layout_numel(like)));
    return tensor;
}

static void put(environment *environment, uint32_t value, const lb_tensor *given)
{
    const lb_tensor to = window(environment, value);
    if (lb_layout_numel(&given->layout) > lb_layout_numel(&to.layout)) {
        environment->status =
            lb_fail(environment->err, LB_ERR_INVALID, "eager takes at most as many rows as were recorded");
        return;
    }
    const lb_tensor all = dense(environment, to.dtype, &to.layout);
    if (!all.data) return;
    const lb_tensor part = {all.data, to.dtype, lb_layout_contiguous(given->layout.ndim, given->layout.shape)};
    lb_memory_tensor_copy(&part, given, NULL);
    lb_memory_tensor_copy(&to, &all, NULL);
}

static void get(environment *environment, uint32_t value, const lb_tensor *wanted)
{
    const lb_tensor from = window(environment, value), all = dense(environment, from.dtype, &from.layout);
    if (!all.data) return;
    lb_memory_tensor_copy(&all, &from, NULL);
    const lb_tensor part = {all.data, from.dtype, lb_layout_contiguous(wanted->layout.ndim, wanted->layout.shape)};
    if (lb_layout_numel(&wanted->layout) > lb_layout_numel(&from.layout))
        environment->status =
            lb_fail(environment->err, LB_ERR_INVALID, "eager gives at most as many rows as were recorded");
    else
        lb_memory_tensor_copy(wanted, &part, NULL);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Inputs that lie where a result goes are copied, strides kept. */
static lb_tensor operand_tensor(environment *environment, const lb_op *op, uint32_t value)
{
    lb_tensor tensor = window(environment, value);
    bool meets = false;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(environment->program, op, r);
        meets |= v != LB_NONE && environment->program->values[v].storage == environment->program->values[value].storage;
    }
    if (!meets) return tensor;
    const place *place = place_of(environment, environment->program->values[value].storage);
    char *copy = block(environment, (size_t)(place->last - place->first));
    if (!copy) return tensor;
    memcpy(copy, place->bytes, (size_t)(place->last - place->first));
    tensor.data = copy + ((char *)tensor.data - place->bytes);
    return tensor;
}

static lb_operand scalar(const lb_arg *arg)
{
    lb_operand operand = {.tag = arg->tag == LB_ARG_FLOAT ? LB_OPERAND_FLOAT
                                 : arg->tag == LB_ARG_INT ? LB_OPERAND_INT
                                                          : LB_OPERAND_BOOL};
    operand.f = arg->tag == LB_ARG_FLOAT ? arg->u.f : (double)arg->u.i;
    operand.i = arg->tag != LB_ARG_FLOAT ? arg->u.i : arg->u.f > -9.2e18 && arg->u.f < 9.2e18 ? (int64_t)arg->u.f : 0;
    return operand;
}

static bool is_scalar(const lb_arg *arg)
{
    return arg->tag == LB_ARG_FLOAT || arg->tag == LB_ARG_INT || arg->tag == LB_ARG_BOOL;
}

static lb_operand list(environment *environment, const lb_op *op, const lb_arg *arg)
{
    const lb_arg *items = environment->program->args + arg->u.first;
    bool numbers = true;
    for (uint32_t i = 0; i < arg->count; i++) numbers &= is_scalar(&items[i]);
    lb_operand operand = {.tag = numbers ? LB_OPERAND_NUMBERS : LB_OPERAND_TENSORS, .count = arg->count};
    int64_t *ints = numbers ? block(environment, arg->count * sizeof *ints) : NULL;
    double *floats = numbers ? block(environment, arg->count * sizeof *floats) : NULL;
    lb_tensor *tensors = numbers ? NULL : block(environment, arg->count * sizeof *tensors);
    for (uint32_t i = 0; environment->status == LB_OK && i < arg->count; i++) {
        if (numbers)
            ints[i] = scalar(&items[i]).i, floats[i] = scalar(&items[i]).f;
        else if (items[i].tag == LB_ARG_VALUE)
            tensors[i] = operand_tensor(environment, op, items[i].u.value);
    }
    operand.ints = ints, operand.floats = floats, operand.tensors = tensors;
    return operand;
}

static lb_operand operand(environment *environment, const lb_op *op, const lb_arg *arg)
{
    lb_operand operand = {.tag = LB_OPERAND_NONE};
    if (is_scalar(arg)) return scalar(arg);
    if (arg->tag == LB_ARG_LIST) return list(environment, op, arg);
    if (arg->tag == LB_ARG_VALUE)
        operand.tag = LB_OPERAND_TENSOR, operand.tensor = operand_tensor(environment, op, arg->u.value);
    if (arg->tag == LB_ARG_DTYPE) operand.tag = LB_OPERAND_DTYPE, operand.i = arg->u.i;
    if (arg->tag == LB_ARG_STRING)
        operand.tag = LB_OPERAND_STRING, operand.string = lb_program_text(environment->program, arg->u.string);
    return operand;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static uint32_t list_results(environment *environment, const lb_op *op, lb_op_form form, lb_tensor *results)
{
    const lb_program *program = environment->program;
    uint32_t n = 0;
    for (uint32_t r = 0; (form == LB_FORM_PLAIN || !op->written) && r < op->results; r++) {
        const uint32_t v = lb_op_results(program, op)[r];
        if (v != LB_NONE && lb_op_writes(program, op, program->values[v].storage) != LB_NONE) continue;
        results[n++] = v == LB_NONE ? (lb_tensor){0} : window(environment, v);
    }
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(program, op)[w];
        results[n++] = v == LB_NONE ? (lb_tensor){0} : window(environment, v);
    }
    return n;
}

static lb_status run_op(environment *environment, const lb_op *op)
{
    const char *name = lb_op_name(environment->program, op);
    lb_op_form form = LB_FORM_PLAIN;
    const lb_op_row *row = lb_op_find(name, &form);
    const bool copies = row && row->flags & LB_ROW_VIEW && !row->kernel;
    if (!row || (!row->kernel && !copies) || op->flags & LB_OP_RANDOM || form == LB_FORM_FOREACH ||
        form == LB_FORM_FOREACH_INPLACE)
        return lb_fail(environment->err, LB_ERR_UNSUPPORTED, "%s cannot be run by itself", name);
    lb_tensor *results = block(environment, (op->results + op->written + 1) * sizeof *results);
    lb_operand *args = block(environment, (op->args + 1) * sizeof *args);
    if (!results || !args) return environment->status;
    lb_call call = {.row = row, .args = args, .results = results, .err = environment->err};
    call.n_results = list_results(environment, op, form, results);
    call.n_args = form == LB_FORM_OUT ? lb_operands_without_out(environment->program, op) : op->args;
    for (uint32_t i = 0; i < call.n_args; i++)
        args[i] = operand(environment, op, &lb_op_args(environment->program, op)[i]);
    if (environment->status != LB_OK) return environment->status;
    for (uint32_t i = 0; i < LB_ROW_GIVEN_COUNT(row->flags); i++)
        if (LB_ROW_GIVEN_FIRST(row->flags) + i < call.n_results)
            results[LB_ROW_GIVEN_FIRST(row->flags) + i].data = NULL;
    if (!copies) return lb_row_run(&call);
    const lb_tensor all = dense(environment, args[0].tensor.dtype, &args[0].tensor.layout);
    if (!all.data) return environment->status;
    lb_memory_tensor_copy(&all, &args[0].tensor, NULL);
    lb_memory_tensor_copy(
        &results[0],
        &(lb_tensor){all.data, all.dtype, lb_layout_contiguous(results[0].layout.ndim, results[0].layout.shape)}, NULL);
    return LB_OK;
}

static void open_places(environment *environment, const lb_composite *composite)
{
    for (uint32_t i = 0; i < composite->n_ops; i++)
        cover_op(environment, &environment->program->ops[composite->ops[i]]);
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++) cover(environment, composite->inputs[i]);
    for (uint32_t i = 0; i < composite->n_list; i++) cover(environment, composite->list[i]);
    for (int i = 0; i < LB_COMPOSITE_OUTPUTS; i++) cover(environment, composite->outputs[i]);
    for (uint32_t i = 0; environment->status == LB_OK && i < environment->n_places; i++)
        environment->places[i].bytes =
            block(environment, (size_t)(environment->places[i].last - environment->places[i].first));
}

/* Everything that is read must be an input or have been made before. */
typedef struct check {
    environment *environment;
    const lb_composite *composite;
    uint32_t before;
    bool unknown;
} check;

static void look(void *context, uint32_t value)
{
    check *check = context;
    const lb_program *program = check->environment->program;
    bool known = false;
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        known |= check->composite->inputs[i] != LB_NONE &&
                 program->values[check->composite->inputs[i]].storage == program->values[value].storage;
    for (uint32_t i = 0; i < check->composite->n_list; i++)
        known |= program->values[check->composite->list[i]].storage == program->values[value].storage;
    for (uint32_t k = 0; k < check->before && !known; k++) {
        const lb_op *op = &program->ops[check->composite->ops[k]];
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            const uint32_t v = lb_op_outcome(program, op, r);
            known |= v != LB_NONE && program->values[v].storage == program->values[value].storage;
        }
    }
    check->unknown |= !known && lb_layout_numel(&program->values[value].layout) > 0 &&
                      !(program->values[value].flags & LB_VALUE_UNDEFINED);
}

/* Some op reads these contents: an input may be there to be told of, in a storage that has been written since. */
typedef struct search {
    const lb_program *program;
    uint32_t value;
    bool found;
} search;

static void compare(void *context, uint32_t value)
{
    search *search = context;
    const lb_value *a = &search->program->values[search->value], *b = &search->program->values[value];
    search->found |= a->storage == b->storage && a->version == b->version;
}

static bool is_read(const lb_composite *composite, uint32_t value)
{
    search search = {composite->program, value, false};
    for (uint32_t i = 0; i < composite->n_ops && !search.found; i++)
        lb_op_each_input(composite->program, &composite->program->ops[composite->ops[i]], compare, &search);
    return search.found;
}

/* Of `zeros_like(x)` only the layout of x counts. */
static bool reads_contents(const lb_program *program, const lb_op *op)
{
    const char *name = lb_op_name(program, op);
    return strncmp(name, "aten::zeros", 11) && strncmp(name, "aten::new_zeros", 15);
}

lb_status lb_eager_run(const lb_composite *composite, const lb_tensor *inputs, lb_tensor *outputs, lb_err *err)
{
    environment environment = {.program = composite->program, .err = err};
    check known = {&environment, composite, 0, false};
    open_places(&environment, composite);
    for (int i = 0; environment.status == LB_OK && i < LB_COMPOSITE_INPUTS; i++)
        if (composite->inputs[i] != LB_NONE && inputs[i].data && is_read(composite, composite->inputs[i]))
            put(&environment, composite->inputs[i], &inputs[i]);
    for (uint32_t i = 0; environment.status == LB_OK && i < composite->n_list; i++)
        if (inputs[LB_COMPOSITE_INPUTS + i].data)
            put(&environment, composite->list[i], &inputs[LB_COMPOSITE_INPUTS + i]);
    for (uint32_t i = 0; environment.status == LB_OK && i < composite->n_ops; i++) {
        const lb_op *op = &environment.program->ops[composite->ops[i]];
        known.before = i;
        if (reads_contents(environment.program, op)) lb_op_each_input(environment.program, op, look, &known);
        environment.status = known.unknown
                                 ? lb_fail(err, LB_ERR_UNSUPPORTED, "%s reads what is not an input of the composite",
                                           lb_op_name(environment.program, op))
                                 : run_op(&environment, op);
    }
    for (int i = 0; environment.status == LB_OK && i < LB_COMPOSITE_OUTPUTS; i++)
        if (composite->outputs[i] != LB_NONE && outputs[i].data) get(&environment, composite->outputs[i], &outputs[i]);
    for (uint32_t i = 0; i < environment.n_blocks; i++) free(environment.blocks[i]);
    free(environment.blocks);
    free(environment.places);
    return environment.status;
}
