/* Computing one op: see execution.h. */
#include "machine/execution.h"

#include "machine/backend.h"
#include "kernel/complex_rows.h"
#include "machine/decision.h"
#include "machine/event.h"
#include "judgement/factorisation.h"
#include "machine/operand_rounding.h"
#include "machine/operands.h"
#include "machine/rebase.h"
#include "machine/regenerate.h"
#include "kernel/required_arguments.h"
#include "judgement/verdict.h"

#include <string.h>

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

lb_status lb_execution_inputs_add(lb_machine *machine, uint32_t value, lb_inputs *inputs)
{
    bool exact, missing;
    LB_TRY(lb_rebase_input(machine, value, &exact, &missing));
    inputs->exact &= exact;
    inputs->missing |= missing;
    if (!exact) inputs->taint = lb_verdict_worse(inputs->taint, lb_storage_of(machine, value)->taint);
    return LB_OK;
}

static lb_status add_arg(lb_machine *machine, const lb_arg *arg, lb_inputs *inputs)
{
    if (arg->tag == LB_ARG_VALUE) return lb_execution_inputs_add(machine, arg->u.value, inputs);
    for (uint32_t i = 0; arg->tag == LB_ARG_LIST && i < arg->count; i++)
        LB_TRY(add_arg(machine, &machine->prepared->program->args[arg->u.first + i], inputs));
    return LB_OK;
}

lb_status lb_execution_inputs_gather(lb_machine *machine, const lb_op *op, lb_op_form form, lb_inputs *inputs)
{
    const lb_program *program = machine->prepared->program;
    *inputs = (lb_inputs)LB_INPUTS_INIT;
    uint32_t n = form == LB_FORM_OUT ? lb_operands_without_out(program, op) : op->args;
    const lb_op_row *row = machine->prepared->ops[machine->next].row;
    for (uint32_t i = 0; i < n; i++) {
        const lb_arg *arg = &lb_op_args(program, op)[i];
        /* Fresh memory that a custom op is to fill. */
        if (row && row->flags & LB_ROW_WRITES && arg->tag == LB_ARG_VALUE &&
            program->values[arg->u.value].flags & LB_VALUE_UNDEFINED)
            continue;
        LB_TRY(add_arg(machine, arg, inputs));
    }
    return LB_OK;
}

/* ---- by a row --------------------------------------------------------------------------------------------------- */

/* Stochastic rounding: every op of every step and rank draws numbers of its own, whatever ran before it. */
static uint64_t first_draw(const lb_machine *machine, uint32_t unit)
{
    const lb_prepared *prepared = machine->prepared;
    const uint32_t op = prepared->origin ? prepared->origin[machine->next] : machine->next;
    const uint64_t words[] = {(uint64_t)prepared->program->step, (uint64_t)machine->rank, op, unit};
    uint64_t x = 0;
    for (size_t i = 0; i < 4; i++) { /* splitmix64 */
        x += words[i] + 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x ^= x >> 31;
    }
    return x;
}

static lb_status count_units(lb_machine *machine, const lb_prepared_op *prepared, lb_execution *execution)
{
    execution->units = lb_operands_units(execution->args, execution->n_args, prepared->form);
    execution->unit =
        execution->units == 1 && prepared->form != LB_FORM_FOREACH && prepared->form != LB_FORM_FOREACH_INPLACE
            ? execution->args
            : lb_machine_take(machine, (execution->n_args + 1) * sizeof *execution->unit);
    execution->per_unit = execution->units ? execution->outputs.n / execution->units : 0;
    return execution->unit ? LB_OK : LB_ERR_NOMEM;
}

static lb_status call_units(lb_machine *machine, const lb_prepared_op *prepared, lb_execution *execution, lb_err *local)
{
    const lb_choice *choice = lb_machine_choice(machine);
    LB_TRY(count_units(machine, prepared, execution));
    for (uint32_t unit = 0; unit < execution->units; unit++) {
        if (execution->unit != execution->args)
            lb_operands_split(execution->args, execution->n_args, execution->units, unit, execution->unit);
        lb_call call = {prepared->row,
                        execution->unit,
                        execution->n_args,
                        execution->outputs.tensors + (size_t)unit * execution->per_unit,
                        execution->per_unit,
                        choice->method,
                        local};
        call.cuda = lb_event_on_cuda(machine, execution, unit * execution->per_unit);
        call.host_scalars = lb_event_host_scalars(machine, execution, unit * execution->per_unit);
        call.e4m3_nan = machine->e4m3_nan;
        call.branch = execution->branch ? execution->branch + (size_t)unit * execution->per_unit : NULL;
        lb_cast cast;
        if (choice->method.cast) {
            cast = *choice->method.cast;
            cast.counter = first_draw(machine, unit);
            call.method.cast = &cast;
        }
        LB_TRY(lb_required_arguments_are_there(&call));
        LB_TRY(lb_row_run(&call));
    }
    return LB_OK;
}

/* By-products take what was recorded and are no business of the kernel. */
static lb_status take_given(lb_machine *machine, const lb_prepared_op *prepared, lb_operands_outputs *outputs)
{
    uint32_t first = LB_ROW_GIVEN_FIRST(prepared->row->flags), end = first + LB_ROW_GIVEN_COUNT(prepared->row->flags);
    for (uint32_t i = first; i < end && i < outputs->n; i++) {
        if (outputs->values[i] != LB_NONE) LB_TRY(lb_rebase_output(machine, outputs->values[i]));
        outputs->values[i] = LB_NONE;
    }
    return LB_OK;
}

/* What was recorded of one output, or what the observer says that a shadow decides there: a shadow by itself follows
 * nothing, so that two of them go the same way. A copy: what an observer gives stays only until it is asked again. */
static lb_status take_branch(lb_machine *machine, uint32_t value, lb_tensor *branch)
{
    const lb_observer *observer = machine->run->observer;
    lb_tensor recorded;
    *branch = (lb_tensor){0};
    if (value == LB_NONE || !lb_rebase_recorded(machine, value, &recorded)) return LB_OK;
    if (machine->is_shadow &&
        (!observer || !observer->decided ||
         !observer->decided(observer->context, machine->rank, machine->prepared->program->step, value, &recorded)))
        return LB_OK;
    branch->dtype = recorded.dtype;
    branch->layout = lb_layout_contiguous(recorded.layout.ndim, recorded.layout.shape);
    branch->data =
        lb_machine_scratch(machine, lb_dtype_bytes(recorded.dtype, (size_t)lb_layout_numel(&recorded.layout)) + 1);
    if (!branch->data) return LB_ERR_LIMIT;
    lb_memory_tensor_copy(branch, &recorded, NULL);
    return LB_OK;
}

static lb_status take_branches(lb_machine *machine, lb_execution *execution)
{
    const uint32_t flags = execution->prepared->row->flags;
    bool follows = flags & (LB_ROW_FACTORS | LB_ROW_COMPLETES | LB_ROW_CHOOSES);
    for (uint32_t i = 0; i < execution->outputs.n; i++)
        follows |= flags & LB_ROW_CASTS && execution->outputs.tensors[i].dtype == LB_E4M3FN;
    if (!follows) return LB_OK;
    execution->branch = lb_machine_take(machine, (execution->outputs.n + 1) * sizeof *execution->branch);
    if (!execution->branch) return LB_ERR_NOMEM;
    for (uint32_t i = 0; i < execution->outputs.n; i++)
        LB_TRY(take_branch(machine, execution->outputs.values[i], &execution->branch[i]));
    return LB_OK;
}

/* Draws stay what was recorded, in a shadow what was decided: they stand behind the result that is computed from
 * them. False: one was not kept. */
static lb_status take_draws(lb_machine *machine, const lb_prepared_op *prepared, lb_operands_outputs *outputs,
                            bool *kept)
{
    const lb_program *program = machine->prepared->program;
    *kept = true;
    for (uint32_t i = 1; i < outputs->n && prepared->row->flags & LB_ROW_RANDOM; i++) {
        const uint32_t v = outputs->values[i];
        if (v == LB_NONE) continue;
        LB_TRY(lb_rebase_output(machine, v));
        if (machine->is_shadow) LB_TRY(lb_rebase_decision(machine, v));
        *kept &= !lb_storage_of(machine, v)->missing;
        outputs->tensors[i] = lb_memory_storage_window(lb_storage_of(machine, v), &program->values[v]);
    }
    return LB_OK;
}

typedef struct masks {
    lb_machine *machine;
    bool held; /* each is what was decided, as far as the recording says */
} masks;

static void look_at_mask(void *context, uint32_t value)
{
    masks *masks = context;
    if (value == LB_NONE || lb_dtype_is_float(masks->machine->prepared->program->values[value].dtype)) return;
    masks->held &= lb_storage_of(masks->machine, value)->base &&
                   lb_rebase_compare(masks->machine, value, NULL) != LB_LIKE_DIFFERENT;
}

/* What a mask chooses is continuous in the numbers it chooses from: a shadow computes it, from the mask that was
 * decided. */
static bool chooses_by_mask(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    masks masks = {machine, true};
    if (prepared->row->flags & LB_ROW_DISCONTINUOUS) return false;
    lb_op_each_input(machine->prepared->program, op, look_at_mask, &masks);
    return masks.held;
}

typedef struct float_search {
    const lb_program *program;
    bool found;
} float_search;

static void look_for_float(void *context, uint32_t value)
{
    float_search *search = context;
    search->found |= value != LB_NONE && lb_dtype_is_float(search->program->values[value].dtype);
}

/* Are floats made into whole numbers or bools? A cast is no choice by its name, and yet it steps: a logarithm of 2 that
 * is 1.9999… is in another bucket. */
static bool steps_from_floats(const lb_program *program, const lb_op *op)
{
    float_search search = {program, false};
    const uint32_t first = op->results + op->written ? lb_op_outcome(program, op, 0) : LB_NONE;
    if (first == LB_NONE || !lb_dtype_is_integer(program->values[first].dtype)) return false;
    lb_op_each_input(program, op, look_for_float, &search);
    return search.found;
}

/* The shadow of an op that is not continuous is what the recording chose, if that was kept. */
static bool shadow_takes_recorded(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    if (!machine->is_shadow) return false;
    const bool steps = steps_from_floats(machine->prepared->program, op);
    if (!(op->flags & LB_OP_DECISION) && !(prepared->row->flags & LB_ROW_DISCONTINUOUS) && !steps) return false;
    if (!steps && chooses_by_mask(machine, op, prepared)) return false;
    const lb_program *program = machine->prepared->program;
    const uint32_t first = op->results + op->written ? lb_op_outcome(program, op, 0) : LB_NONE;
    if (prepared->row->complex && first != LB_NONE && lb_dtype_is_complex(program->values[first].dtype))
        return false; /* the sign of a complex number is continuous but for 0 */
    const lb_observer *observer = machine->run->observer;
    if (observer && observer->computes &&
        observer->computes(observer->context, machine->rank, program->step, (uint32_t)(op - program->ops)))
        return false;
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        uint32_t v = lb_op_outcome(program, op, i);
        lb_tensor recorded;
        if (v != LB_NONE && !lb_rebase_recorded(machine, v, &recorded)) return false;
    }
    return true;
}

/* A choice (sort, top-k, a maximum along a dimension) gives indices and the numbers that they choose. The numbers are
 * continuous in the inputs: a shadow keeps its own, for the indices that were decided. */
static bool is_choice(const lb_program *program, const lb_op *op)
{
    bool numbers = false, indices = false;
    for (uint32_t i = 0; i < op->results; i++) {
        uint32_t v = lb_op_results(program, op)[i];
        if (v == LB_NONE) continue;
        bool is_float = lb_dtype_is_float(program->values[v].dtype);
        numbers |= is_float, indices |= !is_float;
    }
    return numbers && indices;
}

static bool chooses_as_decided(lb_machine *machine, const lb_operands_outputs *outputs)
{
    for (uint32_t i = 0; i < outputs->n; i++) {
        lb_tensor recorded;
        if (!outputs->tensors[i].data || lb_dtype_is_float(outputs->tensors[i].dtype)) continue;
        if (!lb_rebase_decided(machine, outputs->values[i], &recorded)) return false;
        if (!lb_digest_equal(lb_digest_tensor(&outputs->tensors[i]), lb_digest_tensor(&recorded))) return false;
    }
    return true;
}

/* Does the observer give every outcome of this op, so that an exact shadow may go on from there? */
static bool is_given(lb_machine *machine, const lb_op *op)
{
    const lb_program *program = machine->prepared->program;
    const lb_observer *observer = machine->run->observer;
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        uint32_t v = lb_op_outcome(program, op, i);
        lb_tensor recorded;
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) continue;
        if (!observer || !observer->decided || !lb_rebase_recorded(machine, v, &recorded)) return false;
        if (!observer->decided(observer->context, machine->rank, program->step, v, &recorded)) return false;
    }
    return true;
}

/* The args of the current op with every tensor as it was recorded. False: one was not kept. */
static bool recorded_args(lb_machine *machine, const lb_op *op, lb_operand *args, uint32_t n_args)
{
    for (uint32_t i = 0; i < n_args; i++) {
        const lb_arg *arg = &lb_op_args(machine->prepared->program, op)[i];
        if (args[i].tag == LB_OPERAND_TENSOR &&
            (arg->tag != LB_ARG_VALUE || !lb_rebase_recorded(machine, arg->u.value, &args[i].tensor)))
            return false;
    }
    return true;
}

/* A factorisation, whose recorded results are judged by its recorded inputs where they are at hand. */
static lb_status stand_in_judged(lb_machine *machine, const lb_op *op)
{
    static const lb_op_row row = {.name = "a factorisation"};
    const char *why = machine->why;
    lb_inputs inputs;
    lb_operands_outputs none = {0};
    lb_operand *args;
    uint32_t n_args;
    LB_TRY(lb_execution_inputs_gather(machine, op, LB_FORM_PLAIN, &inputs));
    if (inputs.missing) return lb_event_stand_in(machine, op, LB_VERDICT_OPAQUE);
    LB_TRY(lb_operands_build(machine, op, &(lb_operand_plan){&row, LB_FORM_PLAIN, &none, false}, &args, &n_args));
    if (!inputs.exact && !recorded_args(machine, op, args, n_args))
        return lb_event_stand_in(machine, op, LB_VERDICT_OPAQUE);
    const lb_status status = lb_event_stand_in_judged(machine, op, args, n_args);
    machine->why = why;
    return status;
}

/* Nothing computed it: the recorded result stands in. It is rounded, so that no exact shadow follows from it but by the
 * observer's leave. */
static lb_status stand_in_opaque(lb_machine *machine, const lb_op *op)
{
    if (machine->is_shadow && !is_given(machine, op)) return lb_event_missing(machine, op);
    if (!machine->is_shadow && lb_factorisation_known(lb_op_name(machine->prepared->program, op)))
        return stand_in_judged(machine, op);
    return lb_event_stand_in(machine, op, LB_VERDICT_OPAQUE);
}

static lb_status compute(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared);

/* Ops that no row knows, unless only some are asked for; with `backend_all` the others, too, and what a swap says. */
static bool is_for_backend(const lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    const lb_plan *plan = machine->run->plan;
    const lb_choice *choice = lb_machine_choice(machine);
    if (!plan->backend || machine->is_shadow) return false;
    if (choice->by_torch) return true;
    if (!prepared->row) return !plan->backend_selected;
    return plan->backend_all && lb_prepared_is_call(op, prepared) && !choice->swapped;
}

/* The operands as the row's kernel takes them: what the bound is computed from. */
static lb_status take_units(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared,
                            lb_execution *execution)
{
    const lb_operand_plan plan = {prepared->row, prepared->form, &execution->outputs, true};
    LB_TRY(lb_operands_build(machine, op, &plan, &execution->args, &execution->n_args));
    execution->units = lb_operands_units(execution->args, execution->n_args, prepared->form);
    execution->unit = lb_machine_take(machine, (execution->n_args + 1) * sizeof *execution->unit);
    execution->per_unit = execution->units ? execution->outputs.n / execution->units : 0;
    return execution->unit ? LB_OK : LB_ERR_NOMEM;
}

/* An op by PyTorch: one that no row knows, or whose recorded bits are wanted and no row gives. What that refuses its
 * row computes, or the recording stands in for it where there is none. */
static lb_status compute_by_backend(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    const char *name = lb_op_name(machine->prepared->program, op);
    const lb_op_row row = {.name = name, .flags = LB_ROW_WRITES};
    lb_execution execution = {.prepared = prepared, .backend = true};
    const lb_op_form form = prepared->row ? (lb_op_form)prepared->form : LB_FORM_MUTATES;
    lb_operand *args;
    uint32_t n_args;
    LB_TRY(lb_execution_inputs_gather(machine, op, form, &execution.inputs));
    if (execution.inputs.missing) return lb_event_missing(machine, op);
    LB_TRY(lb_operands_outputs_list(machine, op, form, &execution.outputs));
    LB_TRY(lb_operands_outputs_open(machine, op, &execution.outputs));
    if (prepared->row) LB_TRY(take_units(machine, op, prepared, &execution));
    LB_TRY(lb_operands_build(machine, op, &(lb_operand_plan){&row, LB_FORM_MUTATES, &execution.outputs, true}, &args,
                             &n_args));
    if (!prepared->row) execution.args = args, execution.n_args = n_args;
    lb_err local = LB_ERR_INIT;
    lb_status status = lb_backend_run(machine->run->plan->backend, name, args, n_args, execution.outputs.tensors,
                                      execution.outputs.n, &local);
    if (status == LB_ERR_NOMEM) return lb_fail(machine->err, status, "%s", local.message);
    if (status != LB_OK && lb_machine_choice(machine)->by_torch)
        return lb_fail(machine->err, LB_ERR_UNSUPPORTED, "--kernel torch: %s: %s", name, local.message);
    if (status != LB_OK && prepared->row) {
        machine->refused = true;
        status = compute(machine, op, prepared);
        machine->refused = false;
        return status;
    }
    if (status != LB_OK) {
        machine->why = local.message;
        status = stand_in_opaque(machine, op);
        machine->why = NULL;
        return status;
    }
    lb_operands_outputs_settle(machine, &execution.outputs, first_draw(machine, UINT32_MAX));
    machine->why = "PyTorch gives other bits here than were recorded, and there is no bound";
    status = lb_event_computed(machine, op, &execution);
    machine->why = NULL;
    return status;
}

static bool writes_lazily(const lb_machine *machine, const lb_operands_outputs *outputs)
{
    for (uint32_t i = 0; i < outputs->n; i++)
        if (outputs->values[i] != LB_NONE &&
            machine->prepared->program->values[outputs->values[i]].flags & LB_VALUE_LAZY)
            return true;
    return false;
}

static lb_status stand_in_because(lb_machine *machine, const lb_op *op, const char *why)
{
    machine->why = why;
    lb_status status = stand_in_opaque(machine, op);
    machine->why = NULL;
    return status;
}

/* Isolated, with the shadow alone: were all results kept? Then nothing but the shadow is computed. */
static bool takes_results(lb_machine *machine, const lb_prepared_op *prepared, const lb_operands_outputs *outputs)
{
    const lb_plan *plan = machine->run->plan;
    if (!plan->shadow || !plan->shadow_only || plan->mode != LB_REPLAY_ISOLATED) return false;
    if (!prepared->row->kernel || outputs->ready) return false;
    for (uint32_t i = 0; i < outputs->n; i++) {
        lb_tensor recorded;
        if (outputs->values[i] != LB_NONE && !lb_rebase_recorded(machine, outputs->values[i], &recorded)) return false;
    }
    return true;
}

/* A mask that a call gives besides is the recorded one in the shadow, too. */
static lb_status take_results(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared,
                              lb_execution *execution)
{
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        lb_tensor *tensor = &execution->outputs.tensors[i], recorded;
        if (!tensor->data || lb_dtype_is_float(lb_dtype_part(tensor->dtype))) continue;
        if (lb_rebase_recorded(machine, execution->outputs.values[i], &recorded))
            lb_memory_tensor_copy(tensor, &recorded, NULL);
    }
    if (count_units(machine, prepared, execution) != LB_OK) return lb_fail(machine->err, LB_ERR_NOMEM, "out of memory");
    return lb_event_taken(machine, op, execution);
}

static lb_status compute(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    bool recorded = shadow_takes_recorded(machine, op, prepared),
         choice = recorded && is_choice(machine->prepared->program, op);
    if (recorded && !choice) return lb_event_stand_in(machine, op, LB_VERDICT_IDENTICAL);
    lb_execution execution = {.prepared = prepared};
    LB_TRY(lb_execution_inputs_gather(machine, op, prepared->form, &execution.inputs));
    if (execution.inputs.missing) return lb_event_missing(machine, op);
    bool holds = true;
    if (op->flags & LB_OP_DECISION) LB_TRY(lb_decision_inputs(machine, op, &holds));
    if (!holds) return LB_OK;
    bool watch = machine->run->plan->compare || machine->run->plan->mode == LB_REPLAY_ISOLATED;
    LB_TRY(lb_operands_outputs_list(machine, op, prepared->form, &execution.outputs));
    if (writes_lazily(machine, &execution.outputs))
        return stand_in_because(machine, op, "it writes through a view that is conjugated or negated when it is read");
    LB_TRY(take_given(machine, prepared, &execution.outputs));
    LB_TRY(lb_operands_outputs_open(machine, op, &execution.outputs));
    bool kept;
    LB_TRY(take_draws(machine, prepared, &execution.outputs, &kept));
    if (!kept) return stand_in_because(machine, op, "what it drew was not kept");
    const lb_operand_plan plan = {prepared->row, prepared->form, &execution.outputs, watch};
    LB_TRY(lb_operands_build(machine, op, &plan, &execution.args, &execution.n_args));
    LB_TRY(lb_round_operands(machine, op, &execution));
    LB_TRY(take_branches(machine, &execution));
    if (takes_results(machine, prepared, &execution.outputs)) return take_results(machine, op, prepared, &execution);
    lb_err local = LB_ERR_INIT;
    lb_status status =
        prepared->row->kernel && !execution.outputs.ready ? call_units(machine, prepared, &execution, &local) : LB_OK;
    if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) return lb_fail(machine->err, status, "%s", local.message);
    if (status != LB_OK) {
        if (op->flags & LB_OP_DECISION && status != LB_ERR_UNSUPPORTED && !execution.inputs.exact) {
            lb_decision_undecided(machine, local.message);
            return LB_OK;
        }
        return stand_in_because(machine, op, local.message);
    }
    lb_operands_outputs_settle(machine, &execution.outputs, first_draw(machine, UINT32_MAX));
    LB_TRY(lb_round_results(machine, &execution));
    if (choice && !chooses_as_decided(machine, &execution.outputs)) {
        bool taken;
        LB_TRY(lb_decision_take(machine, &execution, &taken));
        if (!taken) return lb_event_stand_in(machine, op, LB_VERDICT_IDENTICAL);
    }
    LB_TRY(lb_decision_force(machine, op, &execution));
    LB_TRY(lb_decision_route(machine, &execution));
    if (machine->run->stop) return LB_OK;
    if (lb_regenerate_is_possible(machine, &execution)) {
        LB_TRY(lb_regenerate(machine, &execution));
        if (!execution.order && machine->run->plan->backend && !machine->run->plan->backend_selected &&
            !machine->refused)
            return compute_by_backend(machine, op, prepared);
    }
    return lb_event_computed(machine, op, &execution);
}

static lb_status fill_zero(lb_machine *machine, lb_operands_outputs *outputs)
{
    for (uint32_t i = 0; i < outputs->n; i++) {
        lb_tensor *tensor = &outputs->tensors[i], zero = {0};
        if (!tensor->data) continue;
        int64_t nothing[2] = {0};
        zero = (lb_tensor){nothing, tensor->dtype, tensor->layout};
        memset(zero.layout.stride, 0, sizeof zero.layout.stride);
        lb_memory_tensor_copy(tensor, &zero, NULL);
    }
    (void)machine;
    return LB_OK;
}

static lb_status round_into(lb_machine *machine, const lb_operand *args, uint32_t n_args, lb_tensor *result)
{
    if (n_args < 1 || args[0].tag != LB_OPERAND_TENSOR)
        return lb_fail(machine->err, LB_ERR_INVALID, "lb::copy needs a value");
    if (n_args < 2 || args[1].tag != LB_OPERAND_DTYPE) {
        lb_memory_tensor_copy(result, &args[0].tensor, NULL);
        return LB_OK;
    }
    lb_dtype dtype = (lb_dtype)args[1].i;
    lb_tensor rounded = {NULL, dtype, lb_layout_contiguous(result->layout.ndim, result->layout.shape)};
    rounded.data = lb_machine_scratch(machine, lb_dtype_bytes(dtype, (size_t)lb_layout_numel(&result->layout)));
    if (!rounded.data) return LB_ERR_LIMIT;
    lb_memory_tensor_copy(&rounded, &args[0].tensor, NULL);
    lb_memory_tensor_copy(result, &rounded, NULL);
    return LB_OK;
}

lb_status lb_execute_pseudo(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    static const lb_op_row row = {.name = "lb::copy", .flags = LB_ROW_EXACT | LB_ROW_ELEMENTWISE};
    lb_execution execution = {.prepared = prepared, .units = 0};
    LB_TRY(lb_execution_inputs_gather(machine, op, LB_FORM_PLAIN, &execution.inputs));
    if (execution.inputs.missing) return lb_event_missing(machine, op);
    LB_TRY(lb_operands_outputs_list(machine, op, LB_FORM_PLAIN, &execution.outputs));
    if (!execution.outputs.n || execution.outputs.values[0] == LB_NONE) return LB_OK;
    if (prepared->action == LB_ACT_STATE && lb_storage_of(machine, execution.outputs.values[0])->base) {
        lb_rebase_written(machine, execution.outputs.values[0], false, false, LB_VERDICT_IDENTICAL);
        return LB_OK;
    }
    LB_TRY(lb_operands_outputs_open(machine, op, &execution.outputs));
    if (prepared->action == LB_ACT_ZERO || prepared->action == LB_ACT_STATE) {
        LB_TRY(fill_zero(machine, &execution.outputs));
    } else {
        const lb_operand_plan plan = {&row, LB_FORM_PLAIN, &execution.outputs, false};
        LB_TRY(lb_operands_build(machine, op, &plan, &execution.args, &execution.n_args));
        if (prepared->row) execution.n_args = 1; /* a reshape: its size argument is no dtype */
        LB_TRY(round_into(machine, execution.args, execution.n_args, &execution.outputs.tensors[0]));
    }
    lb_operands_outputs_settle(machine, &execution.outputs, 0);
    LB_TRY(lb_round_results(machine, &execution));
    return lb_event_computed(machine, op, &execution);
}

lb_status lb_execute(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    return is_for_backend(machine, op, prepared) ? compute_by_backend(machine, op, prepared)
                                                 : compute(machine, op, prepared);
}

lb_status lb_execute_unknown(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    return is_for_backend(machine, op, prepared) ? compute_by_backend(machine, op, prepared)
                                                 : stand_in_opaque(machine, op);
}
