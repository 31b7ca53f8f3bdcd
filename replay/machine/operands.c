/* Operands and result windows: see operands.h. */
#include "machine/operands.h"

#include "machine/rebase.h"

#include <string.h>

/* ---- outputs ---------------------------------------------------------------------------------------------------- */

static bool same_contents(const lb_program *program, uint32_t a, uint32_t b)
{
    return program->values[a].storage == program->values[b].storage &&
           program->values[a].version == program->values[b].version;
}

/* A result that is a written arg under another row, as in-place ops return. */
static bool returned_argument(const lb_program *program, const lb_op *op, uint32_t value)
{
    for (uint32_t w = 0; w < op->written; w++) {
        uint32_t v = lb_op_written(program, op)[w];
        if (v != LB_NONE && same_contents(program, v, value)) return true;
    }
    return false;
}

lb_status lb_operands_outputs_list(lb_machine *machine, const lb_op *op, lb_op_form form, lb_operands_outputs *outputs)
{
    const lb_program *program = machine->prepared->program;
    uint32_t room = op->results + op->written;
    *outputs = (lb_operands_outputs){.values = lb_machine_take(machine, (room + 1) * sizeof(uint32_t)),
                                     .tensors = lb_machine_take(machine, (room + 1) * sizeof(lb_tensor))};
    if (!outputs->values || !outputs->tensors) return LB_ERR_NOMEM;
    bool results = form == LB_FORM_PLAIN || form == LB_FORM_FOREACH || form == LB_FORM_MUTATES || !op->written;
    for (uint32_t r = 0; results && r < op->results; r++) {
        uint32_t v = lb_op_results(program, op)[r];
        if (v == LB_NONE || !op->written || !returned_argument(program, op, v)) outputs->values[outputs->n++] = v;
    }
    for (uint32_t w = 0; w < op->written; w++) outputs->values[outputs->n++] = lb_op_written(program, op)[w];
    memset(outputs->tensors, 0, outputs->n * sizeof(lb_tensor));
    return LB_OK;
}

lb_dtype lb_operands_choice_dtype(const lb_choice *choice, lb_dtype dtype)
{
    if (lb_dtype_is_complex(dtype)) return choice->region == LB_F64 ? LB_F64 : lb_dtype_part(dtype);
    if (!choice->region || !lb_dtype_is_float(dtype)) return dtype;
    if (choice->widen_only && lb_dtype_precision(choice->region) <= lb_dtype_precision(dtype)) return dtype;
    return choice->region;
}

/* What the elements of a storage are to be held in, once an op under `choice` has written that value there. */
static lb_dtype dtype_in(const lb_memory_storage *storage, const lb_choice *choice, const lb_value *value)
{
    const lb_dtype dtype = lb_operands_choice_dtype(choice, value->dtype);
    const bool fits = !storage->paired || dtype == LB_F64 || !lb_dtype_is_float(dtype);
    return storage->punned ? value->dtype : fits ? dtype : lb_dtype_part(value->dtype);
}

typedef struct reads {
    const lb_machine *machine;
    const lb_memory_storage *storage;
    bool found;
} reads;

static void look(void *context, uint32_t value)
{
    reads *reads = context;
    reads->found |= lb_storage_of(reads->machine, value) == reads->storage;
}

static bool op_reads(lb_machine *machine, const lb_op *op, const lb_memory_storage *storage)
{
    reads reads = {machine, storage, false};
    lb_op_each_input(machine->prepared->program, op, look, &reads);
    return reads.found;
}

/* Results that a swap of rounding evaluates in f64 and rounds as it says. */
static bool rounds_wide(const lb_machine *machine, const lb_choice *choice, lb_dtype dtype)
{
    return choice->rounds_wide && dtype == LB_F32 && machine->prepared->ops[machine->next].row;
}

/* Does the op give zeros, which in this dtype are zero bits? */
static bool is_zero(const lb_machine *machine, lb_dtype dtype)
{
    const lb_op_row *row = machine->prepared->ops[machine->next].row;
    return row && row->flags & LB_ROW_ZERO && dtype != LB_E8M0;
}

/* The window is all of the storage, so that it may change the dtype it is held in. `zero`: that is what a new buffer is
 * to hold. */
static lb_status open_whole(lb_machine *machine, const lb_op *op, lb_memory_storage *storage, lb_dtype want, bool zero)
{
    if (storage->base && (storage->borrowed || storage->held != want)) {
        if (op_reads(machine, op, storage))
            return lb_memory_storage_convert(machine->memory, storage, want, NULL, machine->err);
        lb_memory_storage_drop(machine->memory, storage);
    }
    return lb_memory_storage_allocate(machine->memory, storage, want, zero, machine->err);
}

static lb_status open_part(lb_machine *machine, lb_memory_storage *storage, lb_dtype want, bool region)
{
    if (!storage->base) return lb_memory_storage_allocate(machine->memory, storage, want, true, machine->err);
    bool widen = region && lb_dtype_precision(want) > lb_dtype_precision(storage->held);
    if (widen || storage->borrowed)
        return lb_memory_storage_convert(machine->memory, storage, widen ? want : storage->held, NULL, machine->err);
    return LB_OK;
}

lb_status lb_operands_outputs_open(lb_machine *machine, const lb_op *op, lb_operands_outputs *outputs)
{
    const lb_choice *choice = lb_machine_choice(machine);
    for (uint32_t i = 0; i < outputs->n; i++) {
        uint32_t v = outputs->values[i];
        if (v == LB_NONE) continue;
        const lb_value *value = &machine->prepared->program->values[v];
        lb_memory_storage *storage = lb_storage_of(machine, v);
        const lb_dtype held = dtype_in(storage, choice, value);
        lb_dtype want = storage->punned ? held : lb_memory_held_dtype(held, value->dtype);
        storage->stamp = machine->serial;
        if (storage->punned)
            LB_TRY(open_part(machine, storage, LB_U8, false));
        else if (lb_memory_storage_covers(storage, value)) {
            outputs->ready = is_zero(machine, want) && outputs->n == 1 && !storage->base;
            LB_TRY(open_whole(machine, op, storage, held, outputs->ready));
        } else
            LB_TRY(open_part(machine, storage, held, choice->region != 0));
        outputs->tensors[i] = lb_memory_storage_window(storage, value);
        if (rounds_wide(machine, choice, want)) want = LB_F64;
        if (outputs->tensors[i].dtype == want) continue;
        /* Part of a storage that is held differently: compute beside it, then convert into the window. */
        int64_t numel = lb_layout_numel(&value->layout);
        outputs->tensors[i] = (lb_tensor){lb_machine_scratch(machine, lb_dtype_bytes(want, (size_t)numel)), want,
                                          lb_layout_contiguous(value->layout.ndim, value->layout.shape)};
        if (!outputs->tensors[i].data) return LB_ERR_LIMIT;
        if (op_reads(machine, op, storage)) {
            lb_tensor window = lb_memory_storage_window(storage, value);
            lb_memory_tensor_copy(&outputs->tensors[i], &window, NULL);
        }
        outputs->detour = true;
    }
    return LB_OK;
}

void lb_operands_outputs_settle(lb_machine *machine, lb_operands_outputs *outputs, uint64_t first_draw)
{
    if (!outputs->detour) return;
    for (uint32_t i = 0; i < outputs->n; i++) {
        uint32_t v = outputs->values[i];
        if (v == LB_NONE) continue;
        lb_tensor window = lb_memory_storage_window(lb_storage_of(machine, v), &machine->prepared->program->values[v]);
        if (window.data == outputs->tensors[i].data) continue;
        const lb_choice *choice = lb_machine_choice(machine);
        lb_cast cast = LB_CAST_INIT;
        const bool rounds = rounds_wide(machine, choice, window.dtype);
        if (rounds) cast = *choice->method.cast, cast.exact = true, cast.counter = first_draw + ((uint64_t)i << 40);
        lb_memory_tensor_copy(&window, &outputs->tensors[i], rounds ? &cast : NULL);
        outputs->tensors[i] = window;
    }
    outputs->detour = false;
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

static lb_status copy_to_scratch(lb_machine *machine, lb_tensor *tensor, lb_dtype dtype)
{
    /* The same strides if they are dense, so that kernels see the layout they know. */
    int64_t first, last, numel = lb_layout_numel(&tensor->layout);
    LB_TRY(lb_layout_dense_range(&tensor->layout, &first, &last, machine->err));
    lb_tensor copy = {.dtype = dtype, .layout = tensor->layout};
    if (last - first != numel) {
        copy.layout = lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape);
    }
    copy.data = lb_machine_scratch(machine, lb_dtype_bytes(dtype, (size_t)numel));
    if (!copy.data) return LB_ERR_LIMIT;
    lb_memory_tensor_copy(&copy, tensor, NULL);
    *tensor = copy;
    return LB_OK;
}

/* What the op saw: the conjugates or the opposites of the numbers that lie there, in a copy. */
static lb_status resolve(lb_machine *machine, lb_tensor *tensor, uint32_t flags)
{
    LB_TRY(copy_to_scratch(machine, tensor, tensor->dtype));
    const lb_dtype part = lb_dtype_part(tensor->dtype);
    const int64_t size = (int64_t)lb_dtype_bits(part) / 8, parts = lb_dtype_is_complex(tensor->dtype) ? 2 : 1;
    const int64_t n = lb_layout_numel(&tensor->layout) * parts;
    for (int64_t i = 0; i < n && size; i++) { /* the copy has no holes: its order does not matter */
        const bool turns = (flags & LB_VALUE_NEGATED) != 0, imaginary = parts == 2 && i % 2 == 1;
        if (turns != (imaginary && flags & LB_VALUE_CONJUGATED)) ((uint8_t *)tensor->data)[(i + 1) * size - 1] ^= 0x80;
    }
    return LB_OK;
}

typedef struct builder {
    lb_machine *machine;
    const lb_op_row *row;
    lb_op_form form;
    const lb_operands_outputs *outputs;
    bool keep_inputs;
} builder;

static bool same_window(const lb_tensor *a, const lb_tensor *b)
{
    if (a->data != b->data || a->dtype != b->dtype || a->layout.ndim != b->layout.ndim) return false;
    for (int d = 0; d < a->layout.ndim; d++)
        if (a->layout.shape[d] != b->layout.shape[d] ||
            (a->layout.stride[d] != b->layout.stride[d] && a->layout.shape[d] > 1))
            return false;
    return true;
}

/* In place: arg 0 of an in-place op is its result, elementwise or not (rows that start as a copy of it expect that);
 * elsewhere only elementwise rows may meet their own result. Sums would read what they have already written. */
static bool must_copy(const builder *builder, const lb_tensor *input, const lb_memory_storage *storage,
                      uint32_t position)
{
    for (uint32_t i = 0; i < builder->outputs->n; i++) {
        uint32_t v = builder->outputs->values[i];
        if (v == LB_NONE || lb_storage_of(builder->machine, v) != storage) continue;
        if (builder->keep_inputs) return true;
        if (builder->form == LB_FORM_MUTATES) continue;
        if (!same_window(input, &builder->outputs->tensors[i])) return true;
        bool arg0 = position == 0 && (builder->form == LB_FORM_INPLACE || builder->form == LB_FORM_FOREACH_INPLACE);
        if (!(builder->row->flags & LB_ROW_ELEMENTWISE) &&
            (!arg0 || builder->row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL)))
            return true;
    }
    return false;
}

/* Complex numbers of one op are all of one type: what no region has written yet is widened for it. */
static lb_dtype operand_dtype(const lb_machine *machine, const lb_memory_storage *storage, const lb_value *value,
                              lb_dtype held)
{
    const lb_choice *choice = lb_machine_choice(machine);
    if (!choice->region) return value->dtype;
    if (!lb_dtype_is_complex(value->dtype) || storage->punned) return held;
    return lb_memory_held_dtype(lb_operands_choice_dtype(choice, value->dtype), value->dtype);
}

static lb_status take_tensor(const builder *builder, uint32_t row, uint32_t position, lb_tensor *tensor)
{
    lb_machine *machine = builder->machine;
    const lb_value *value = &machine->prepared->program->values[row];
    const lb_memory_storage *storage = lb_storage_of(machine, row);
    if (!storage->base) { /* nothing of it was ever used: an empty tensor */
        *tensor = (lb_tensor){lb_machine_scratch(machine, 64), value->dtype, value->layout};
        return tensor->data ? LB_OK : LB_ERR_LIMIT;
    }
    *tensor = lb_memory_storage_window(storage, value);
    const lb_dtype dtype = operand_dtype(machine, storage, value, tensor->dtype);
    const bool lazy = value->flags & LB_VALUE_LAZY && lb_dtype_is_float(lb_dtype_part(tensor->dtype));
    if (lazy) LB_TRY(resolve(machine, tensor, value->flags));
    if (tensor->dtype != dtype) return copy_to_scratch(machine, tensor, dtype);
    if (lazy) return LB_OK;
    if (storage->stamp == machine->serial && must_copy(builder, tensor, storage, position))
        return copy_to_scratch(machine, tensor, tensor->dtype);
    return LB_OK;
}

static void scalar_operand(const lb_arg *arg, lb_operand *operand)
{
    operand->i = arg->tag == LB_ARG_FLOAT ? 0 : arg->u.i;
    operand->f = arg->tag == LB_ARG_FLOAT ? arg->u.f : (double)arg->u.i;
    if (arg->tag == LB_ARG_FLOAT && arg->u.f > -9.2e18 && arg->u.f < 9.2e18) operand->i = (int64_t)arg->u.f;
    operand->tag = arg->tag == LB_ARG_FLOAT ? LB_OPERAND_FLOAT
                   : arg->tag == LB_ARG_INT ? LB_OPERAND_INT
                                            : LB_OPERAND_BOOL;
}

static bool holds_tensors(const lb_arg *items, uint32_t n)
{
    bool none = false;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].tag == LB_ARG_VALUE) return true;
        if (items[i].tag != LB_ARG_NONE) return false;
        none = true;
    }
    return none;
}

static lb_status list_operand(const builder *builder, const lb_arg *arg, uint32_t position, lb_operand *operand)
{
    const lb_arg *items = builder->machine->prepared->program->args + arg->u.first;
    operand->count = arg->count;
    if (holds_tensors(items, arg->count)) {
        lb_tensor *tensors = lb_machine_take(builder->machine, (arg->count + 1) * sizeof *tensors);
        if (!tensors) return LB_ERR_NOMEM;
        memset(tensors, 0, arg->count * sizeof *tensors);
        for (uint32_t i = 0; i < arg->count; i++)
            if (items[i].tag == LB_ARG_VALUE) LB_TRY(take_tensor(builder, items[i].u.value, position, &tensors[i]));
        operand->tag = LB_OPERAND_TENSORS;
        operand->tensors = tensors;
        return LB_OK;
    }
    int64_t *ints = lb_machine_take(builder->machine, (arg->count + 1) * sizeof *ints);
    double *floats = lb_machine_take(builder->machine, (arg->count + 1) * sizeof *floats);
    if (!ints || !floats) return LB_ERR_NOMEM;
    for (uint32_t i = 0; i < arg->count; i++) {
        lb_operand item = {0};
        if (items[i].tag == LB_ARG_INT || items[i].tag == LB_ARG_FLOAT || items[i].tag == LB_ARG_BOOL)
            scalar_operand(&items[i], &item);
        ints[i] = item.i;
        floats[i] = item.f;
    }
    operand->tag = LB_OPERAND_NUMBERS;
    operand->ints = ints;
    operand->floats = floats;
    return LB_OK;
}

static lb_status build_one(const builder *builder, const lb_arg *arg, uint32_t position, lb_operand *operand)
{
    *operand = (lb_operand){.tag = LB_OPERAND_NONE};
    switch ((lb_arg_tag)arg->tag) {
    case LB_ARG_NONE: return LB_OK;
    case LB_ARG_VALUE:
        operand->tag = LB_OPERAND_TENSOR;
        return take_tensor(builder, arg->u.value, position, &operand->tensor);
    case LB_ARG_INT:
    case LB_ARG_FLOAT:
    case LB_ARG_BOOL: scalar_operand(arg, operand); return LB_OK;
    case LB_ARG_DTYPE:
        operand->tag = LB_OPERAND_DTYPE;
        operand->i = arg->u.i;
        return LB_OK;
    case LB_ARG_STRING:
        operand->tag = LB_OPERAND_STRING;
        operand->string = lb_program_text(builder->machine->prepared->program, arg->u.string);
        return LB_OK;
    case LB_ARG_LIST:
    case LB_ARG_COMPLEX: return list_operand(builder, arg, position, operand);
    }
    return lb_fail(builder->machine->err, LB_ERR_CORRUPT, "an argument has the unknown tag %u", arg->tag);
}

/* `out` args stand last: as many args as hold the written values. */
uint32_t lb_operands_without_out(const lb_program *program, const lb_op *op)
{
    uint32_t n = op->args, left = op->written;
    while (n && left) {
        const lb_arg *arg = &lb_op_args(program, op)[n - 1];
        if (arg->tag == LB_ARG_VALUE)
            left--;
        else if (arg->tag == LB_ARG_LIST)
            left -= arg->count < left ? arg->count : left;
        else if (arg->tag != LB_ARG_NONE)
            break;
        n--;
    }
    return n;
}

lb_status lb_operands_build(lb_machine *machine, const lb_op *op, const lb_operand_plan *plan, lb_operand **args,
                            uint32_t *n_args)
{
    const lb_program *program = machine->prepared->program;
    builder builder = {machine, plan->row, plan->form, plan->outputs, plan->keep_inputs};
    *n_args = plan->form == LB_FORM_OUT ? lb_operands_without_out(program, op) : op->args;
    *args = lb_machine_take(machine, (*n_args + 1) * sizeof **args);
    if (!*args) return LB_ERR_NOMEM;
    for (uint32_t i = 0; i < *n_args; i++) LB_TRY(build_one(&builder, &lb_op_args(program, op)[i], i, &(*args)[i]));
    return LB_OK;
}

lb_status lb_operands_tensor(lb_machine *machine, uint32_t value, const lb_operands_outputs *outputs, lb_tensor *tensor)
{
    static const lb_op_row row = {.name = "", .flags = LB_ROW_ELEMENTWISE};
    builder builder = {machine, &row, LB_FORM_PLAIN, outputs, false};
    return take_tensor(&builder, value, 0, tensor);
}

/* ---- foreach ---------------------------------------------------------------------------------------------------- */

uint32_t lb_operands_units(const lb_operand *args, uint32_t n_args, lb_op_form form)
{
    if (form != LB_FORM_FOREACH && form != LB_FORM_FOREACH_INPLACE) return 1;
    for (uint32_t i = 0; i < n_args; i++)
        if (args[i].tag == LB_OPERAND_TENSORS) return args[i].count;
    return 1;
}

void lb_operands_split(const lb_operand *args, uint32_t n_args, uint32_t units, uint32_t index, lb_operand *unit)
{
    for (uint32_t i = 0; i < n_args; i++) {
        unit[i] = args[i];
        if (args[i].tag == LB_OPERAND_TENSORS && args[i].count == units) {
            unit[i].tag = args[i].tensors[index].data ? LB_OPERAND_TENSOR : LB_OPERAND_NONE;
            unit[i].tensor = args[i].tensors[index];
        } else if (args[i].tag == LB_OPERAND_NUMBERS && args[i].count == units) {
            unit[i].tag = LB_OPERAND_FLOAT;
            unit[i].f = args[i].floats[index];
            unit[i].i = args[i].ints[index];
        }
    }
}
