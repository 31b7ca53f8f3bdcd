/* The interpreter's loop: see machine.h. What an event says is event.c's business. */
#include "machine/machine.h"

#include "machine/decision.h"
#include "machine/event.h"
#include "machine/execution.h"
#include "machine/operands.h"
#include "machine/rebase.h"
#include "machine/substitute.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory of one op ------------------------------------------------------------------------------------------- */

enum { ARENA_BLOCK = 64 * 1024 };

void *lb_machine_take(lb_machine *machine, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    struct lb_arena *arena = machine->arena;
    if (!arena || arena->used + bytes > arena->size) {
        size_t size = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
        struct lb_arena *block = malloc(sizeof *block + 16 + size);
        if (!block) {
            lb_fail(machine->err, LB_ERR_NOMEM, "out of memory for the arguments of an op");
            return NULL;
        }
        *block = (struct lb_arena){(char *)(((uintptr_t)(block + 1) + 15) & ~(uintptr_t)15), 0, size, arena};
        machine->arena = arena = block;
    }
    void *p = arena->block + arena->used;
    arena->used += bytes;
    return p;
}

void *lb_machine_scratch(lb_machine *machine, size_t bytes)
{
    void **grown = lb_array_fit(machine->scratch, &machine->scratch_room, machine->n_scratch + 1, sizeof *grown);
    if (!grown) {
        lb_fail(machine->err, LB_ERR_NOMEM, "out of memory");
        return NULL;
    }
    machine->scratch = grown;
    void *p = lb_memory_scratch(machine->memory, bytes ? bytes : 1, machine->err);
    if (p) machine->scratch[machine->n_scratch++] = p;
    return p;
}

static void end_op_memory(lb_machine *machine)
{
    while (machine->n_scratch) lb_memory_scratch_free(machine->memory, machine->scratch[--machine->n_scratch]);
    while (machine->arena && machine->arena->older) {
        struct lb_arena *older = machine->arena->older;
        free(machine->arena);
        machine->arena = older;
    }
    if (machine->arena) machine->arena->used = 0;
}

/* ---- life-cycle ------------------------------------------------------------------------------------------------- */

static lb_status make_shadow(lb_machine *machine, lb_err *err)
{
    machine->shadow_plan = *machine->run->plan;
    machine->shadow_plan.shadow = machine->shadow_plan.compare = false;
    machine->shadow_run = *machine->run;
    machine->shadow_run.plan = &machine->shadow_plan;
    machine->shadow_run.summary = &machine->shadow_summary;
    LB_TRY(lb_machine_new(&machine->shadow_run, machine->rank, &machine->shadow, err));
    machine->shadow->is_shadow = true;
    return LB_OK;
}

lb_status lb_machine_new(lb_run *run, int32_t rank, lb_machine **out, lb_err *err)
{
    lb_machine *machine = calloc(1, sizeof *machine);
    if (machine) machine->memory = lb_memory_new(run->plan->memory_bytes);
    if (!machine || !machine->memory) {
        free(machine);
        *out = NULL;
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    lb_memory_share(machine->memory, run->spare);
    machine->run = run;
    machine->rank = rank;
    machine->resume = LB_NONE;
    *out = machine;
    if (!run->plan->shadow || run->plan->mode == LB_REPLAY_ISOLATED) return LB_OK;
    if (run->plan->shadow_only) {
        machine->is_shadow = machine->alone = true;
        return LB_OK;
    }
    lb_status status = make_shadow(machine, err);
    if (status != LB_OK) {
        lb_machine_free(machine);
        *out = NULL;
    }
    return status;
}

void lb_machine_free(lb_machine *machine)
{
    if (!machine) return;
    lb_machine_free(machine->shadow);
    end_op_memory(machine);
    free(machine->arena);
    free(machine->scratch);
    lb_memory_free(machine->memory);
    lb_reuse_release(&machine->reuse);
    free(machine->storages);
    free(machine->state);
    free(machine->postponed);
    free(machine);
}

lb_status lb_machine_declare(lb_machine *machine, const lb_prepared *prepared, lb_err *err)
{
    for (uint32_t s = 0; s < prepared->n_storages; s++) {
        const lb_prepared_storage *row = &prepared->storages[s];
        lb_memory_storage *storage =
            lb_memory_declare(machine->memory, row->id, row->dtype, row->first, row->last, machine->declared);
        if (!storage) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u storages", prepared->n_storages);
        storage->punned |= row->punned;
        storage->paired |= row->paired;
    }
    machine->declared++;
    return machine->shadow ? lb_machine_declare(machine->shadow, prepared, err) : LB_OK;
}

lb_status lb_machine_begin(lb_machine *machine, const lb_prepared *prepared, const lb_choice *choices,
                           const uint8_t *choice_of, lb_err *err)
{
    free(machine->storages);
    free(machine->state);
    machine->storages = malloc((prepared->n_storages + 1) * sizeof *machine->storages);
    machine->state = calloc(prepared->program->n_values + 1, 1);
    if (!machine->storages || !machine->state) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < prepared->n_storages; s++) {
        machine->storages[s] = lb_memory_find(machine->memory, prepared->storages[s].id);
        LB_CHECK(machine->storages[s]);
    }
    if (machine->prepared) machine->current++;
    machine->prepared = prepared;
    machine->choices = choices;
    machine->choice_of = choice_of;
    machine->selected = NULL;
    machine->next = 0;
    machine->chooses_anew = false;
    if (lb_reuse_begin(machine) != LB_OK) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return machine->shadow ? lb_machine_begin(machine->shadow, prepared, NULL, NULL, err) : LB_OK;
}

const lb_choice *lb_machine_choice(const lb_machine *machine)
{
    static const lb_choice none,
        wide = {.region = LB_F64, .widen_only = true, .swapped = true, .method = {.exact = true}};
    if (machine->is_shadow) return &wide;
    return machine->choice_of ? &machine->choices[machine->choice_of[machine->next]] : &none;
}

/* ---- inputs of the current op ----------------------------------------------------------------------------------- */

static lb_status decide(lb_machine *machine, const lb_op *op)
{
    lb_inputs inputs;
    bool holds;
    LB_TRY(lb_execution_inputs_gather(machine, op, LB_FORM_PLAIN, &inputs));
    return inputs.missing ? LB_OK : lb_decision_inputs(machine, op, &holds);
}

/* An op that replay doesn't know: its inputs may be missing, which is no change. */
static lb_status decide_inputs_of_unknown(lb_machine *machine, const lb_op *op, bool *holds)
{
    lb_inputs inputs;
    LB_TRY(lb_execution_inputs_gather(machine, op, LB_FORM_PLAIN, &inputs));
    *holds = true;
    return inputs.missing ? LB_OK : lb_decision_inputs(machine, op, holds);
}

/* ---- sources ---------------------------------------------------------------------------------------------------- */

lb_status lb_machine_take_source(lb_machine *machine, const lb_op *op)
{
    const lb_program *program = machine->prepared->program;
    const lb_observer *observer = machine->run->observer;
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t row = lb_op_results(program, op)[r];
        if (row == LB_NONE) continue;
        const lb_value *value = &program->values[row];
        lb_memory_storage *storage = lb_storage_of(machine, row);
        bool chained = machine->run->plan->mode != LB_REPLAY_ISOLATED;
        lb_tensor other;
        bool loaded;
        LB_TRY(lb_substitute_source(machine, row, lb_machine_choice(machine), &loaded));
        if (loaded || (chained && value->source == LB_SOURCE_CARRIED && lb_memory_storage_holds(storage, value)))
            continue;
        if (observer && observer->source && lb_rebase_recorded(machine, row, &other) &&
            observer->source(observer->context, machine->rank, program->step, row, &other)) {
            LB_TRY(lb_rebase_put(machine, row, &other));
            continue;
        }
        LB_TRY(lb_rebase_source(machine, row, &loaded));
        if (loaded) continue;
        LB_TRY(lb_memory_storage_allocate(machine->memory, storage, storage->recorded, true, machine->err));
        bool empty = lb_layout_numel(&value->layout) == 0 || value->flags & LB_VALUE_UNDEFINED;
        lb_rebase_written(machine, row, empty, !empty, LB_VERDICT_IDENTICAL);
    }
    return LB_OK;
}

/* Layer mode: what enters a module is what entered it in the recording. */
static lb_status anchor_boundaries(lb_machine *machine)
{
    const lb_prepared *prepared = machine->prepared;
    for (uint32_t b = prepared->boundary_at[machine->next]; b < prepared->boundary_at[machine->next + 1]; b++) {
        uint32_t v = prepared->program->boundaries[prepared->boundary_rows[b]].value;
        bool loaded;
        if (v == LB_NONE || machine->state[v] == LB_STATE_EXACT || lb_storage_of(machine, v)->exact) continue;
        LB_TRY(lb_rebase_load(machine, v, &loaded));
    }
    return LB_OK;
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* A shadow's op ends when its machine's does, which reads the shadow's results until then. */
static void end_op(lb_machine *machine)
{
    const lb_prepared *prepared = machine->prepared;
    const lb_prepared_op *op = &prepared->ops[machine->next];
    for (uint32_t i = op->first_dying; i < op->first_dying + op->dying; i++) {
        lb_memory_storage *storage = machine->storages[prepared->dying[i]];
        lb_reuse_drop(machine, prepared->dying[i]);
        if (storage->last_program <= machine->current) lb_memory_storage_drop(machine->memory, storage);
    }
    end_op_memory(machine);
    machine->next = machine->resume == LB_NONE ? machine->next + 1 : machine->resume;
    machine->resume = LB_NONE;
    if (machine->shadow) end_op(machine->shadow);
}

/* ---- receives that were postponed ---- */

static bool touches(const lb_machine *machine, uint32_t at, uint32_t receive)
{
    const lb_program *program = machine->prepared->program;
    const lb_op *op = &program->ops[at], *given = &program->ops[receive];
    if (machine->prepared->ops[at].action == LB_ACT_NOTHING) return false;
    for (uint32_t i = 0; i < lb_op_outcomes(given); i++) {
        const uint32_t v = lb_op_outcome(program, given, i);
        if (v == LB_NONE) continue;
        const int64_t storage = program->values[v].storage;
        if (lb_op_reads(program, op, storage) != LB_NONE || lb_op_writes(program, op, storage) != LB_NONE) return true;
        for (uint32_t r = 0; r < op->results; r++) {
            const uint32_t result = lb_op_results(program, op)[r];
            if (result != LB_NONE && program->values[result].storage == storage) return true;
        }
    }
    return false;
}

static void return_to(lb_machine *machine, uint32_t receive)
{
    machine->resume = machine->next;
    machine->next = receive;
    if (machine->shadow) return_to(machine->shadow, receive);
}

/* The first receive that the next op, or the end of the step, needs; true: the machine stands at it. */
static bool returns(lb_machine *machine)
{
    const bool ends = machine->next == machine->prepared->program->n_ops;
    for (uint32_t i = 0; i < machine->n_postponed; i++) {
        const uint32_t receive = machine->postponed[i];
        if (!ends && !touches(machine, machine->next, receive)) continue;
        memmove(machine->postponed + i, machine->postponed + i + 1,
                (machine->n_postponed - i - 1) * sizeof *machine->postponed);
        machine->n_postponed--;
        return_to(machine, receive);
        return true;
    }
    return false;
}

bool lb_machine_can_postpone(const lb_machine *machine)
{
    return machine->resume == LB_NONE && machine->run->plan->mode != LB_REPLAY_LAYER;
}

lb_status lb_machine_postpone(lb_machine *machine, lb_err *err)
{
    uint32_t *grown = lb_array_grow(machine->postponed, machine->n_postponed, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    machine->postponed = grown, grown[machine->n_postponed++] = machine->next++;
    if (machine->shadow) machine->shadow->next++;
    return LB_OK;
}

static lb_status run_op(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    switch ((lb_action)prepared->action) {
    case LB_ACT_NOTHING: machine->run->summary->views += prepared->view; return LB_OK;
    case LB_ACT_SOURCE: return lb_machine_take_source(machine, op);
    case LB_ACT_STAND_IN: {
        bool random = op->flags & LB_OP_RANDOM || (prepared->row && prepared->row->flags & LB_ROW_RANDOM);
        bool holds = true;
        if (op->flags & LB_OP_DECISION) LB_TRY(decide_inputs_of_unknown(machine, op, &holds));
        if (!holds) return LB_OK;
        if (random) return lb_event_stand_in(machine, op, LB_VERDICT_IDENTICAL);
        return lb_execute_unknown(machine, op, prepared);
    }
    case LB_ACT_DECIDE: return decide(machine, op);
    case LB_ACT_COMPUTE: return lb_execute(machine, op, prepared);
    case LB_ACT_ZERO:
    case LB_ACT_COPY:
    case LB_ACT_STATE:
    case LB_ACT_ROUND: return lb_execute_pseudo(machine, op, prepared);
    case LB_ACT_COLLECTIVE: break;
    }
    return LB_OK;
}

/* The shadow first: the event of the op shows both. */
static lb_status run_both(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared)
{
    if (machine->shadow) {
        machine->shadow->err = machine->err;
        machine->shadow->serial++;
        if (machine->run->plan->mode == LB_REPLAY_LAYER) LB_TRY(anchor_boundaries(machine->shadow));
        if (prepared->action != LB_ACT_COLLECTIVE) LB_TRY(run_op(machine->shadow, op, prepared));
    }
    return prepared->action == LB_ACT_COLLECTIVE ? LB_OK : run_op(machine, op, prepared);
}

lb_status lb_machine_run(lb_machine *machine, lb_machine_state *state, lb_err *err)
{
    const lb_prepared *prepared = machine->prepared;
    const lb_program *program = prepared->program;
    bool layers = machine->run->plan->mode == LB_REPLAY_LAYER;
    machine->err = err;
    *state = LB_MACHINE_STOPPED;
    while (machine->next < program->n_ops || machine->n_postponed) {
        if (machine->run->stop) return LB_OK;
        if (machine->resume == LB_NONE && machine->n_postponed && returns(machine)) {
            *state = LB_MACHINE_AT_COLLECTIVE;
            return LB_OK;
        }
        machine->serial++;
        bool reused;
        LB_TRY(lb_reuse_before(machine, &reused));
        if (reused || (machine->run->plan->only && !machine->run->plan->only[machine->next])) {
            end_op(machine);
            continue;
        }
        if (layers) LB_TRY(anchor_boundaries(machine));
        LB_TRY(run_both(machine, &program->ops[machine->next], &prepared->ops[machine->next]));
        if (prepared->ops[machine->next].action == LB_ACT_COLLECTIVE) {
            *state = LB_MACHINE_AT_COLLECTIVE;
            return LB_OK;
        }
        end_op(machine);
    }
    *state = LB_MACHINE_STEP_DONE;
    return LB_OK;
}

/* ---- at a collective -------------------------------------------------------------------------------------------- */

lb_status lb_machine_stand_in(lb_machine *machine, lb_err *err)
{
    machine->err = err;
    const lb_op *op = &machine->prepared->program->ops[machine->next];
    if (machine->shadow) LB_TRY(lb_machine_stand_in(machine->shadow, err));
    LB_TRY(lb_event_stand_in(machine, op, LB_VERDICT_IDENTICAL));
    if (!machine->is_shadow || machine->alone) end_op(machine);
    return LB_OK;
}

lb_status lb_machine_input(lb_machine *machine, uint32_t value, lb_tensor *tensor, lb_inputs *inputs, lb_err *err)
{
    machine->err = err;
    LB_TRY(lb_execution_inputs_add(machine, value, inputs));
    lb_operands_outputs none = {0};
    return lb_operands_tensor(machine, value, &none, tensor);
}

lb_status lb_machine_output(lb_machine *machine, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    machine->err = err;
    lb_operands_outputs one = {&value, tensor, 1, false};
    const lb_op *op = &machine->prepared->program->ops[machine->next];
    *tensor = (lb_tensor){0};
    LB_TRY(lb_operands_outputs_open(machine, op, &one));
    *tensor = lb_memory_storage_window(lb_storage_of(machine, value), &machine->prepared->program->values[value]);
    return LB_OK;
}

lb_status lb_machine_finish(lb_machine *machine, const lb_inputs *inputs, const lb_sum_verdict *sum, lb_err *err)
{
    machine->err = err;
    const lb_prepared *prepared = machine->prepared;
    const lb_op *op = &prepared->program->ops[machine->next];
    lb_execution execution = {.prepared = &prepared->ops[machine->next], .inputs = *inputs};
    if (sum) execution.sum = *sum;
    if (inputs->missing) {
        LB_TRY(lb_event_missing(machine, op));
    } else {
        LB_TRY(lb_operands_outputs_list(machine, op, LB_FORM_OUT, &execution.outputs));
        LB_TRY(lb_event_computed(machine, op, &execution));
    }
    if (!machine->is_shadow || machine->alone) end_op(machine);
    return LB_OK;
}
