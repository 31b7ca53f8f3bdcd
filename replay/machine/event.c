/* Comparing, judging, telling: see event.h. */
#include "machine/event.h"

#include "machine/rebase.h"
#include "machine/decision.h"
#include "judgement/factorisation.h"
#include "judgement/verdict.h"
#include "kernel/complex_rows.h"
#include "kernel/required_arguments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is gathered about the results and written values of an op, in that order, as the observer sees them. */
typedef struct account {
    uint32_t n;
    uint32_t *values;
    lb_tensor *computed, *recorded, *shadow;
    lb_bound *bounds; /* per unit */
    uint32_t n_bounds;
} account;

static lb_status open_account(lb_machine *machine, const lb_op *op, account *a)
{
    const lb_program *program = machine->prepared->program;
    *a = (account){.n = op->results + op->written};
    size_t tensors = (a->n + 1) * sizeof(lb_tensor);
    a->values = lb_machine_take(machine, (a->n + 1) * sizeof(uint32_t));
    a->computed = lb_machine_take(machine, tensors);
    a->recorded = lb_machine_take(machine, tensors);
    a->shadow = lb_machine_take(machine, tensors);
    if (!a->values || !a->computed || !a->recorded || !a->shadow) return LB_ERR_NOMEM;
    for (uint32_t i = 0; i < a->n; i++) {
        a->values[i] = lb_op_outcome(program, op, i);
        a->computed[i].data = a->recorded[i].data = a->shadow[i].data = NULL;
    }
    return LB_OK;
}

static void close_account(account *account)
{
    for (uint32_t u = 0; u < account->n_bounds; u++) lb_bound_release(&account->bounds[u]);
}

/* Row of the recorded program that stands behind the current op; LB_NONE for ops a pass made. */
static uint32_t origin_of(const lb_machine *machine)
{
    const lb_prepared *prepared = machine->prepared;
    return prepared->origin ? prepared->origin[machine->next] : machine->next;
}

static bool made_by_pass(const lb_prepared_op *op)
{
    if (op->row && !strncmp(op->row->name, "fused::", 7)) return true;
    return !op->row && (op->action == LB_ACT_ZERO || op->action == LB_ACT_COPY || op->action == LB_ACT_STATE ||
                        op->action == LB_ACT_ROUND);
}

/* What this op gives is what was asked for, not what was recorded. */
static bool is_swapped(const lb_machine *machine, const lb_execution *execution)
{
    return lb_machine_choice(machine)->swapped || made_by_pass(execution->prepared) || origin_of(machine) == LB_NONE ||
           execution->inputs.swapped;
}

static const char *why_unknown(const char *op)
{
    const char *why = lb_op_unknown_why(op);
    return why ? why : "no row of the op table has this name";
}

/* NULL: there is none. */
static const lb_machine *shadow_of(const lb_machine *machine)
{
    return machine->alone ? machine : machine->shadow;
}

/* The shadow's window on a value; data NULL: it has none. Of a chain it is the shadow's own memory, in which an
 * observer may write. */
static lb_status shadow_window(const lb_machine *machine, uint32_t value, lb_tensor *window)
{
    lb_memory_storage *storage = lb_storage_of(shadow_of(machine), value);
    if (!storage->base || storage->missing) return LB_OK;
    if (storage->borrowed)
        LB_TRY(lb_memory_storage_convert(shadow_of(machine)->memory, storage, storage->held, NULL, machine->err));
    *window = lb_memory_storage_window(storage, &machine->prepared->program->values[value]);
    return LB_OK;
}

bool lb_event_exact(const lb_event *event, uint32_t value, lb_tensor *tensor)
{
    const lb_machine *machine = event->machine;
    tensor->data = NULL;
    if (!machine || !shadow_of(machine) || value >= machine->prepared->recorded->n_values) return false;
    const lb_memory_storage *storage = lb_storage_of(shadow_of(machine), value);
    if (!storage->base || storage->missing) return false;
    *tensor = lb_memory_storage_window(storage, &machine->prepared->program->values[value]);
    return true;
}

/* How an op came out. */
typedef struct result {
    lb_verdict verdict;
    double ratio;      /* to its bound; NAN: not judged */
    bool backend;      /* a back end ran it */
    const char *order; /* the order of its sum that gives the recorded bits; NULL */
} result;

static lb_status tell(lb_machine *machine, account *account, const lb_inputs *inputs, const result *result)
{
    const lb_observer *observer = machine->run->observer;
    uint32_t origin = origin_of(machine);
    if ((machine->is_shadow && !machine->alone) || !observer || !observer->op || origin == LB_NONE) return LB_OK;
    const lb_prepared *prepared = machine->prepared;
    for (uint32_t i = 0; i < account->n; i++) {
        uint32_t v = account->values[i];
        if (v == LB_NONE) continue;
        lb_memory_storage *storage = lb_storage_of(machine, v);
        if (storage->base && !storage->missing && !account->computed[i].data && !machine->alone)
            account->computed[i] = lb_memory_storage_window(storage, &prepared->program->values[v]);
        if (shadow_of(machine)) LB_TRY(shadow_window(machine, v, &account->shadow[i]));
        if (v >= prepared->recorded->n_values) account->values[i] = LB_NONE;
    }
    lb_event event = {.program = prepared->recorded,
                      .op = origin,
                      .step = prepared->program->step,
                      .rank = machine->rank,
                      .verdict = result->verdict,
                      .approximate = !inputs->exact,
                      .swapped = lb_machine_choice(machine)->swapped || made_by_pass(&prepared->ops[machine->next]),
                      .selected = !machine->selected || machine->selected[machine->next],
                      .conditional = machine->conditional,
                      .bound_ratio = result->ratio,
                      .why = result->verdict != LB_VERDICT_OPAQUE ? result->order
                             : machine->why
                                 ? machine->why
                                 : why_unknown(lb_op_name(prepared->program, &prepared->program->ops[machine->next])),
                      .n_results = account->n,
                      .values = account->values,
                      .computed = account->computed,
                      .recorded = account->recorded,
                      .shadow = account->shadow,
                      .backend = result->backend,
                      .machine = machine};
    if (!observer->op(observer->context, &event)) machine->run->stop = true;
    return LB_OK;
}

static void count(lb_machine *machine, lb_verdict verdict, bool native, bool compared, bool same)
{
    lb_replay_summary *summary = machine->run->summary;
    summary->ops++;
    if (native)
        summary->native++;
    else
        summary->opaque++;
    summary->compared += compared;
    summary->bitwise += compared && same;
    summary->verdict = lb_verdict_worse(summary->verdict, verdict);
}

/* ---- judging ---------------------------------------------------------------------------------------------------- */

static const lb_tensor *recorded_of(const account *account, uint32_t value)
{
    for (uint32_t i = 0; i < account->n; i++)
        if (account->values[i] == value && account->recorded[i].data) return &account->recorded[i];
    return NULL;
}

enum { CUDA = 1 }; /* lb_value.device */

bool lb_event_on_cuda(const lb_machine *machine, const lb_execution *execution, uint32_t first)
{
    const lb_program *program = machine->prepared->program;
    for (uint32_t i = 0; i < execution->per_unit; i++) {
        const uint32_t v = execution->outputs.values[first + i];
        if (v != LB_NONE && program->values[v].device == CUDA) return true;
    }
    return false;
}

bool lb_event_host_scalars(const lb_machine *machine, const lb_execution *execution, uint32_t first)
{
    const lb_program *program = machine->prepared->program;
    const lb_op *op = &program->ops[machine->next];
    if (!lb_event_on_cuda(machine, execution, first)) return false;
    for (uint32_t i = 0; i < op->args; i++) {
        const lb_arg *arg = &lb_op_args(program, op)[i];
        const bool list = arg->tag == LB_ARG_LIST;
        for (uint32_t k = 0; k < (list ? arg->count : 1); k++) {
            const lb_arg *one = list ? &program->args[arg->u.first + k] : arg;
            if (one->tag == LB_ARG_VALUE && program->values[one->u.value].device != CUDA) return true;
        }
    }
    return false;
}

static bool may_be_tf32(const lb_machine *machine, const lb_execution *execution, uint32_t first)
{
    const bool convolution = execution->prepared->row->flags & LB_ROW_CONVOLUTION;
    return (convolution ? machine->tf32_convolutions : machine->tf32_products) &&
           lb_event_on_cuda(machine, execution, first);
}

/* The call whose results begin at `first`; its args are those of `unit`. */
static lb_call call_of(const lb_machine *machine, const lb_execution *execution, uint32_t first)
{
    return (lb_call){execution->prepared->row,
                     execution->unit,
                     execution->n_args,
                     execution->outputs.tensors + first,
                     execution->per_unit,
                     lb_machine_choice(machine)->method,
                     NULL,
                     may_be_tf32(machine, execution, first),
                     lb_event_on_cuda(machine, execution, first),
                     execution->branch ? execution->branch + first : NULL,
                     lb_event_host_scalars(machine, execution, first),
                     machine->e4m3_nan};
}

static lb_status judge_units(lb_machine *machine, const lb_execution *execution, account *account, lb_judgement *worst)
{
    bool force = machine->run->plan->shadow && machine->run->plan->mode == LB_REPLAY_ISOLATED;
    *worst = (lb_judgement){LB_VERDICT_IDENTICAL, NAN};
    lb_tensor *recorded = lb_machine_take(machine, (execution->per_unit + 1) * sizeof *recorded);
    account->bounds = lb_machine_take(machine, (execution->units + 1) * sizeof *account->bounds);
    if (!recorded || !account->bounds) return LB_ERR_NOMEM;
    for (uint32_t unit = 0; unit < execution->units; unit++) {
        uint32_t first = unit * execution->per_unit;
        for (uint32_t i = 0; i < execution->per_unit; i++) {
            const lb_tensor *r = recorded_of(account, execution->outputs.values[first + i]);
            recorded[i] = r ? *r : (lb_tensor){0};
        }
        if (execution->unit != execution->args)
            lb_operands_split(execution->args, execution->n_args, execution->units, unit, execution->unit);
        const lb_call call = call_of(machine, execution, first);
        lb_judgement one;
        lb_status status =
            lb_verdict_judge(machine->memory, &call, recorded, force, &account->bounds[unit], &one, machine->err);
        account->n_bounds = unit + 1;
        LB_TRY(status);
        worst->verdict = lb_verdict_worse(worst->verdict, one.verdict);
        if (!(worst->bound_ratio >= one.bound_ratio) && !isnan(one.bound_ratio)) worst->bound_ratio = one.bound_ratio;
    }
    return LB_OK;
}

/* The f64 evaluation of each unit is the isolated shadow; where there is none, the recorded result is. */
static void show_isolated_shadow(const lb_execution *execution, account *account)
{
    for (uint32_t i = 0; i < account->n; i++) {
        for (uint32_t j = 0; j < execution->outputs.n && account->values[i] != LB_NONE; j++) {
            if (execution->outputs.values[j] != account->values[i] || !execution->per_unit ||
                j / execution->per_unit >= account->n_bounds)
                continue;
            const lb_bound *bound = &account->bounds[j / execution->per_unit];
            if (bound->exact) account->shadow[i] = bound->exact[j % execution->per_unit];
        }
        if (!account->shadow[i].data) account->shadow[i] = account->recorded[i];
    }
}

/* ---- the shadow alone ---- */

bool lb_event_shows_alone(const lb_machine *machine)
{
    const lb_plan *plan = machine->run->plan;
    return plan->shadow && plan->shadow_only && plan->mode == LB_REPLAY_ISOLATED;
}

static void show_unit(lb_machine *machine, const lb_execution *execution, const account *account, uint32_t first,
                      const lb_bound *bound)
{
    const lb_observer *observer = machine->run->observer;
    for (uint32_t i = 0; i < execution->per_unit; i++) {
        const uint32_t v = execution->outputs.values[first + i];
        if (v == LB_NONE || v >= machine->prepared->recorded->n_values || !bound->exact[i].data) continue;
        const lb_tensor *r = recorded_of(account, v);
        observer->beside(observer->context, machine->prepared->recorded, origin_of(machine), v,
                         r ? r : &execution->outputs.tensors[first + i], &bound->exact[i]);
    }
}

void lb_event_show(lb_machine *machine, uint32_t value, const lb_tensor *exact)
{
    const lb_observer *observer = machine->run->observer;
    const uint32_t origin = origin_of(machine);
    lb_tensor recorded;
    if (!observer || !observer->beside || origin == LB_NONE || !lb_rebase_recorded(machine, value, &recorded)) return;
    observer->beside(observer->context, machine->prepared->recorded, origin, value, &recorded, exact);
}

/* One call after the other, so that no more than one has exact numbers at a time. */
static lb_status show_units(lb_machine *machine, const lb_execution *execution, const account *account)
{
    const lb_observer *observer = machine->run->observer;
    lb_status status = LB_OK;
    if (!observer || !observer->beside || origin_of(machine) == LB_NONE) return LB_OK;
    for (uint32_t unit = 0; unit < execution->units && status == LB_OK; unit++) {
        if (execution->unit != execution->args)
            lb_operands_split(execution->args, execution->n_args, execution->units, unit, execution->unit);
        const lb_call call = call_of(machine, execution, unit * execution->per_unit);
        if (call.row->flags & LB_ROW_DISCONTINUOUS && lb_row_is_exact(&call)) continue;
        lb_err local = LB_ERR_INIT;
        lb_call asked = call;
        asked.err = &local;
        if (lb_required_arguments_are_there(&asked) != LB_OK) continue;
        lb_bound bound;
        status = lb_bound_exact(&bound, machine->memory, &call, &local);
        if (status == LB_OK) show_unit(machine, execution, account, unit * execution->per_unit, &bound);
        lb_bound_release(&bound);
        if (status == LB_ERR_UNSUPPORTED) status = LB_OK;
        if (status != LB_OK) return lb_fail(machine->err, status, "%s", local.message);
    }
    return LB_OK;
}

lb_status lb_event_taken(lb_machine *machine, const lb_op *op, const lb_execution *execution)
{
    account account;
    LB_TRY(open_account(machine, op, &account));
    for (uint32_t i = 0; i < account.n; i++)
        if (account.values[i] != LB_NONE) lb_rebase_recorded(machine, account.values[i], &account.recorded[i]);
    LB_TRY(show_units(machine, execution, &account));
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        bool loaded;
        if (execution->outputs.values[i] != LB_NONE)
            LB_TRY(lb_rebase_load(machine, execution->outputs.values[i], &loaded));
    }
    count(machine, LB_VERDICT_IDENTICAL, true, false, true);
    return tell(machine, &account, &execution->inputs, &(result){.verdict = LB_VERDICT_IDENTICAL, .ratio = NAN});
}

/* ---- computed --------------------------------------------------------------------------------------------------- */

typedef struct comparison {
    bool compared, same, unknown, unkept; /* unkept: differs from a digest whose bytes were not kept */
} comparison;

static void compare_outputs(lb_machine *machine, const lb_execution *execution, account *account, lb_likeness *likes,
                            comparison *compared)
{
    *compared = (comparison){false, true, false, false};
    for (uint32_t i = 0; i < account->n; i++)
        if (account->values[i] != LB_NONE) lb_rebase_recorded(machine, account->values[i], &account->recorded[i]);
    for (uint32_t j = 0; j < execution->outputs.n; j++) {
        likes[j] = LB_LIKE_UNKNOWN;
        uint32_t v = execution->outputs.values[j];
        if (v == LB_NONE) continue;
        const lb_tensor *recorded = recorded_of(account, v);
        likes[j] = lb_rebase_compare(machine, v, recorded);
        if (likes[j] == LB_LIKE_UNKNOWN) {
            compared->unknown = true;
            continue;
        }
        compared->compared = true;
        compared->same &= likes[j] == LB_LIKE_SAME;
        compared->unkept |= likes[j] == LB_LIKE_DIFFERENT && !recorded;
    }
}

/* PyTorch's results differ from the recorded ones, and nothing bounds by how much: but the recorded ones must be right
 * for their inputs. */
static lb_judgement judge_recorded(lb_machine *machine, const lb_execution *execution, account *account)
{
    const lb_prepared *prepared = machine->prepared;
    const char *name = lb_op_name(prepared->program, &prepared->program->ops[machine->next]);
    const double ratio =
        lb_factorisation_ratio(name, execution->args, execution->n_args, account->recorded, account->n);
    return (lb_judgement){isnan(ratio) ? LB_VERDICT_OPAQUE
                          : ratio <= 1 ? LB_VERDICT_ROUNDING
                                       : LB_VERDICT_DIVERGED,
                          ratio};
}

/* Of an output that differs and whose bytes were not kept, its statistics were: diverged where no result within the
 * bound could have them, else missing. */
static lb_status judge_statistics(lb_machine *machine, const lb_execution *execution, const account *account,
                                  const lb_likeness *likes, lb_judgement *judgement)
{
    const lb_program *program = machine->prepared->recorded;
    judgement->verdict = LB_VERDICT_MISSING;
    for (uint32_t u = 0; u < execution->units && judgement->verdict == LB_VERDICT_MISSING; u++) {
        const uint32_t first = u * execution->per_unit;
        bool known = false;
        for (uint32_t i = 0; i < execution->per_unit; i++) {
            const uint32_t value = execution->outputs.values[first + i];
            known |= value < program->n_values && likes[first + i] == LB_LIKE_DIFFERENT &&
                     !recorded_of(account, value) && program->values[value].statistics != LB_NONE;
        }
        if (!known || execution->prepared->row->flags & LB_ROW_FACTORS) continue;
        if (execution->unit != execution->args)
            lb_operands_split(execution->args, execution->n_args, execution->units, u, execution->unit);
        lb_err ignored = LB_ERR_INIT;
        const lb_call call = call_of(machine, execution, first);
        lb_bound bound = {0};
        const lb_status status = lb_bound_init(&bound, machine->memory, &call, &ignored);
        for (uint32_t i = 0; status == LB_OK && i < execution->per_unit; i++) {
            const uint32_t value = execution->outputs.values[first + i];
            if (value >= program->n_values || likes[first + i] != LB_LIKE_DIFFERENT || recorded_of(account, value))
                continue;
            if (program->values[value].statistics == LB_NONE) continue;
            if (lb_bound_allows(&bound, i, program->values[value].dtype,
                                &program->statistics[program->values[value].statistics]))
                continue;
            *judgement = (lb_judgement){LB_VERDICT_DIVERGED, INFINITY};
        }
        lb_bound_release(&bound);
        if (status == LB_ERR_NOMEM) return lb_fail(machine->err, status, "%s", ignored.message);
    }
    return LB_OK;
}

static lb_status weigh(lb_machine *machine, const lb_execution *execution, account *account,
                       const comparison *comparison, const lb_likeness *likes, lb_judgement *judgement)
{
    const lb_choice *choice = lb_machine_choice(machine);
    const bool swapped = is_swapped(machine, execution);
    bool shadowed =
        machine->run->plan->shadow && machine->run->plan->mode == LB_REPLAY_ISOLATED && !lb_event_shows_alone(machine);
    *judgement = (lb_judgement){LB_VERDICT_IDENTICAL, NAN};
    if (execution->units &&
        (shadowed || (comparison->compared && !comparison->same && execution->inputs.exact && !comparison->unkept)))
        LB_TRY(judge_units(machine, execution, account, judgement));
    if (shadowed) show_isolated_shadow(execution, account);
    if (!comparison->compared) {
        judgement->verdict = swapped                   ? lb_verdict_worse(execution->inputs.taint, LB_VERDICT_SWAPPED)
                             : execution->inputs.exact ? LB_VERDICT_IDENTICAL
                                                       : execution->inputs.taint;
    } else if (comparison->same) {
        judgement->verdict = choice->reordered || execution->order ? LB_VERDICT_REORDERED : LB_VERDICT_IDENTICAL;
    } else if (swapped) {
        judgement->verdict = lb_verdict_worse(execution->inputs.taint, LB_VERDICT_SWAPPED);
    } else if (!execution->inputs.exact) {
        judgement->verdict = lb_verdict_worse(execution->inputs.taint, LB_VERDICT_ROUNDING);
    } else if (comparison->unkept) {
        LB_TRY(judge_statistics(machine, execution, account, likes, judgement));
    } else if (execution->backend && !execution->units) {
        *judgement = judge_recorded(machine, execution, account);
    } else if (!execution->units) {
        /* A copy has no bound. */
        judgement->verdict = *execution->sum.order   ? LB_VERDICT_REORDERED
                             : execution->sum.inside ? LB_VERDICT_ROUNDING
                                                     : LB_VERDICT_DIVERGED;
    }
    return LB_OK;
}

/* A storage that is also read as bytes is held as recorded: what a shadow writes there has been rounded. */
static bool cannot_be_exact(const lb_machine *machine, uint32_t value)
{
    const lb_dtype part = lb_dtype_part(machine->prepared->program->values[value].dtype);
    return machine->is_shadow && lb_storage_of(machine, value)->punned && lb_dtype_is_float(part) && part != LB_F64;
}

lb_status lb_event_computed(lb_machine *machine, const lb_op *op, const lb_execution *execution)
{
    const lb_plan *plan = machine->run->plan;
    bool isolated = plan->mode == LB_REPLAY_ISOLATED, watch = plan->compare || isolated;
    account account;
    comparison comparison = {false, false, true, false};
    lb_judgement judgement = {execution->inputs.taint, NAN};
    LB_TRY(open_account(machine, op, &account));
    lb_likeness *likes = lb_machine_take(machine, (execution->outputs.n + 1) * sizeof *likes);
    if (!likes) return LB_ERR_NOMEM;
    if (watch) {
        compare_outputs(machine, execution, &account, likes, &comparison);
        lb_status status = weigh(machine, execution, &account, &comparison, likes, &judgement);
        if (status == LB_OK && lb_event_shows_alone(machine)) status = show_units(machine, execution, &account);
        if (status != LB_OK) {
            close_account(&account);
            return status;
        }
    }
    bool carried = execution->inputs.exact && !is_swapped(machine, execution);
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        uint32_t v = execution->outputs.values[i];
        if (v == LB_NONE) continue;
        lb_likeness like = watch ? likes[i] : LB_LIKE_UNKNOWN;
        bool exact = like == LB_LIKE_SAME || (like == LB_LIKE_UNKNOWN && watch && carried);
        lb_rebase_written(machine, v, exact, cannot_be_exact(machine, v),
                          exact ? LB_VERDICT_IDENTICAL : judgement.verdict);
    }
    if (op->flags & LB_OP_DECISION && !isolated && !machine->is_shadow && comparison.compared && !comparison.same)
        lb_decision_results(machine, account.values, account.n);
    count(machine, judgement.verdict, true, comparison.compared, comparison.same);
    if (execution->backend && !machine->is_shadow) machine->run->summary->backend++, machine->run->summary->native--;
    if (execution->order) machine->run->summary->regenerated++;
    const bool other = judgement.verdict == LB_VERDICT_REORDERED && *execution->sum.order;
    const result result = {judgement.verdict, judgement.bound_ratio, execution->backend,
                           other ? execution->sum.order : execution->order};
    const lb_status told = tell(machine, &account, &execution->inputs, &result);
    close_account(&account);
    LB_TRY(told);
    for (uint32_t i = 0; isolated && i < execution->outputs.n; i++) {
        bool loaded;
        if (execution->outputs.values[i] != LB_NONE && likes[i] == LB_LIKE_DIFFERENT)
            LB_TRY(lb_rebase_load(machine, execution->outputs.values[i], &loaded));
    }
    return LB_OK;
}

/* ---- standing in ------------------------------------------------------------------------------------------------ */

static lb_status stand_in(lb_machine *machine, const lb_op *op, lb_verdict verdict, bool native, const lb_operand *args,
                          uint32_t n_args)
{
    account account;
    lb_inputs inputs = LB_INPUTS_INIT;
    double ratio = NAN;
    LB_TRY(open_account(machine, op, &account));
    LB_TRY(lb_rebase_outputs(machine, op));
    if (machine->is_shadow) LB_TRY(lb_rebase_decisions(machine, op));
    bool missing = false;
    for (uint32_t i = 0; i < account.n; i++) {
        if (account.values[i] == LB_NONE) continue;
        lb_rebase_recorded(machine, account.values[i], &account.recorded[i]);
        missing |= lb_storage_of(machine, account.values[i])->missing;
    }
    if (args && !missing)
        ratio = lb_factorisation_ratio(lb_op_name(machine->prepared->program, op), args, n_args, account.recorded,
                                       account.n);
    if (ratio > 1) verdict = LB_VERDICT_DIVERGED;
    if (ratio <= 1 && !machine->why)
        machine->why =
            "the bits of a factorisation are its library's own; the recorded results are right for its inputs";
    count(machine, missing ? LB_VERDICT_MISSING : verdict, native, ratio > 1, false);
    return tell(machine, &account, &inputs,
                &(result){.verdict = missing ? LB_VERDICT_MISSING : verdict, .ratio = ratio});
}

lb_status lb_event_stand_in(lb_machine *machine, const lb_op *op, lb_verdict verdict)
{
    return stand_in(machine, op, verdict, verdict != LB_VERDICT_OPAQUE, NULL, 0);
}

lb_status lb_event_stand_in_judged(lb_machine *machine, const lb_op *op, const lb_operand *args, uint32_t n_args)
{
    return stand_in(machine, op, LB_VERDICT_OPAQUE, false, args, n_args);
}

lb_status lb_event_missing(lb_machine *machine, const lb_op *op)
{
    const lb_program *program = machine->prepared->program;
    account account;
    lb_inputs inputs = {false, true, false, LB_VERDICT_MISSING};
    LB_TRY(open_account(machine, op, &account));
    for (uint32_t i = 0; i < account.n; i++) {
        uint32_t value = account.values[i];
        bool loaded = false;
        if (value == LB_NONE) continue;
        if (machine->run->plan->mode == LB_REPLAY_ISOLATED) LB_TRY(lb_rebase_load(machine, value, &loaded));
        lb_rebase_recorded(machine, value, &account.recorded[i]);
        if (loaded) continue;
        lb_memory_storage *storage = lb_storage_of(machine, value);
        LB_TRY(lb_memory_storage_allocate(machine->memory, storage, storage->recorded, true, machine->err));
        if (storage->borrowed)
            LB_TRY(lb_memory_storage_convert(machine->memory, storage, storage->held, NULL, machine->err));
        lb_rebase_written(machine, value, false, !(program->values[value].flags & LB_VALUE_UNDEFINED),
                          LB_VERDICT_MISSING);
    }
    count(machine, LB_VERDICT_MISSING, true, false, false);
    lb_tensor none = {0};
    for (uint32_t i = 0; i < account.n; i++) account.computed[i] = none;
    return tell(machine, &account, &inputs, &(result){.verdict = LB_VERDICT_MISSING, .ratio = NAN});
}
