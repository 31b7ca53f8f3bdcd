/* Decisions that hold, change or are forced: see decision.h. */
#include "machine/decision.h"

#include "machine/rebase.h"

#include <lastbit/statistics.h>

#include <stdio.h>
#include <string.h>

void lb_decision_undecided(lb_machine *machine, const char *what)
{
    const lb_program *program = machine->prepared->program;
    const lb_op *op = &program->ops[machine->next];
    lb_replay_summary *summary = machine->run->summary;
    if (!summary->undecided)
        snprintf(summary->undecided_at, sizeof summary->undecided_at, "step %lld rank %d op %u %s in \"%s\": %s",
                 (long long)program->step, (int)machine->rank, machine->next, lb_op_name(program, op),
                 lb_op_layer(program, op), what);
    summary->undecided = true;
    machine->run->stop = true;
}

/* ---- has it changed? --------------------------------------------------------------------------------------------- */

/* What a region would hand over its border is compared, not what it holds. */
static bool changed(lb_machine *machine, uint32_t value)
{
    if (machine->state[value] == LB_STATE_EXACT) return false;
    lb_tensor recorded;
    lb_rebase_recorded(machine, value, &recorded);
    const lb_value *row = &machine->prepared->program->values[value];
    const lb_memory_storage *storage = lb_storage_of(machine, value);
    if (!recorded.data || !storage->base || storage->held == storage->recorded)
        return lb_rebase_compare(machine, value, &recorded) == LB_LIKE_DIFFERENT;
    lb_tensor window = lb_memory_storage_window(storage, row);
    lb_tensor rounded = {NULL, row->dtype, lb_layout_contiguous(row->layout.ndim, row->layout.shape)};
    rounded.data = lb_machine_scratch(machine, lb_dtype_bytes(row->dtype, (size_t)lb_layout_numel(&row->layout)));
    if (!rounded.data) return true;
    lb_memory_tensor_copy(&rounded, &window, NULL);
    return !lb_memory_tensor_same(&rounded, &recorded);
}

/* Bytes that were not kept, and that an observer may have seen in another run. */
static void tell_decision(lb_machine *machine, uint32_t value)
{
    const lb_observer *observer = machine->run->observer;
    const lb_program *program = machine->prepared->program;
    lb_tensor recorded;
    if (!observer || !observer->decision || !machine->run->plan->force_decisions || machine->is_shadow) return;
    if (lb_rebase_recorded(machine, value, &recorded)) return;
    recorded.data = NULL;
    if (value >= machine->prepared->recorded->n_values ||
        lb_rebase_compare(machine, value, &recorded) == LB_LIKE_DIFFERENT)
        return;
    const lb_tensor window = lb_memory_storage_window(lb_storage_of(machine, value), &program->values[value]);
    observer->decision(observer->context, machine->rank, program->step, value, &window);
}

static lb_status load_decision(lb_machine *machine, uint32_t value, bool *loaded)
{
    const lb_observer *observer = machine->run->observer;
    const lb_program *program = machine->prepared->program;
    const lb_value *row = &program->values[value];
    lb_tensor seen = {NULL, row->dtype, lb_layout_contiguous(row->layout.ndim, row->layout.shape)};
    LB_TRY(lb_rebase_load(machine, value, loaded));
    if (*loaded || !observer || !observer->recalled || value >= machine->prepared->recorded->n_values) return LB_OK;
    *loaded = observer->recalled(observer->context, machine->rank, program->step, value, &seen);
    return *loaded ? lb_rebase_put(machine, value, &seen) : LB_OK;
}

/* Nothing recorded speaks for it: a view has no digest. */
static bool is_unknown(lb_machine *machine, uint32_t value)
{
    const lb_program *recorded = machine->prepared->recorded;
    lb_tensor tensor;
    return machine->state[value] != LB_STATE_EXACT && value < recorded->n_values &&
           lb_digest_is_none(recorded->values[value].logical) && !lb_rebase_recorded(machine, value, &tensor);
}

typedef struct weighing {
    lb_machine *machine;
    lb_status status;
    bool hard, soft; /* bools, integers; floats */
} weighing;

static void weigh_input(void *context, uint32_t value)
{
    weighing *weighing = context;
    const bool number = lb_dtype_is_float(weighing->machine->prepared->program->values[value].dtype);
    if (weighing->status == LB_OK && !number) tell_decision(weighing->machine, value);
    if (weighing->status != LB_OK ||
        (!changed(weighing->machine, value) && (number || !is_unknown(weighing->machine, value))))
        return;
    if (number) {
        weighing->soft = true;
        return;
    }
    bool loaded = false;
    if (weighing->machine->run->plan->force_decisions)
        weighing->status = load_decision(weighing->machine, value, &loaded);
    if (loaded)
        weighing->soft = true;
    else
        weighing->hard |= changed(weighing->machine, value);
}

lb_status lb_decision_inputs(lb_machine *machine, const lb_op *op, bool *holds)
{
    *holds = true;
    if (machine->is_shadow || machine->run->plan->mode == LB_REPLAY_ISOLATED) return LB_OK;
    weighing weighing = {machine, LB_OK, false, false};
    lb_op_each_input(machine->prepared->program, op, weigh_input, &weighing);
    LB_TRY(weighing.status);
    if (weighing.soft) machine->conditional = true;
    if (weighing.hard) lb_decision_undecided(machine, "a bool, index or shape that steered the program has changed");
    *holds = !weighing.hard;
    return LB_OK;
}

void lb_decision_results(lb_machine *machine, const uint32_t *values, uint32_t n)
{
    const lb_program *program = machine->prepared->program;
    for (uint32_t i = 0; i < n; i++) {
        if (values[i] == LB_NONE || !changed(machine, values[i])) continue;
        if (lb_dtype_is_float(program->values[values[i]].dtype))
            machine->conditional = true;
        else
            lb_decision_undecided(machine, "the indices or the shape that it gave have changed");
    }
}

/* ---- forcing ----------------------------------------------------------------------------------------------------- */

/* values[..., j, ...] = input[..., indices[j], ...] along `dim`; a reduced dimension (max.dim) is a run of one. */
static void select_again(const lb_tensor *input, const lb_tensor *indices, const lb_tensor *values, int dim)
{
    const lb_layout *in = &input->layout, *at = &indices->layout;
    int64_t numel = lb_layout_numel(at), index[LB_MAX_DIMS] = {0};
    bool reduced = at->ndim < in->ndim;
    size_t from_size = lb_dtype_bits(input->dtype) / 8, to_size = lb_dtype_bits(values->dtype) / 8;
    for (int64_t n = 0; n < numel; n++) {
        int64_t where = 0, to = 0, from = 0;
        for (int d = 0; d < at->ndim; d++) {
            int source = reduced && d >= dim ? d + 1 : d;
            where += index[d] * at->stride[d];
            to += index[d] * values->layout.stride[d];
            if (source != dim) from += index[d] * in->stride[source];
        }
        int64_t chosen = ((const int64_t *)indices->data)[where];
        if (chosen >= 0 && chosen < in->shape[dim]) {
            from += chosen * in->stride[dim];
            lb_convert(values->dtype, (char *)values->data + to * (int64_t)to_size, input->dtype,
                       (const char *)input->data + from * (int64_t)from_size, 1, NULL);
        }
        for (int d = at->ndim - 1; d >= 0 && ++index[d] == at->shape[d]; d--) index[d] = 0;
    }
}

/* Position of the dimension among the args of ops that give (values, indices); -1: no such op. */
static int dim_argument(const char *row)
{
    static const struct {
        const char *row;
        int dim;
    } rows[] = {{"aten::topk", 2},    {"aten::sort", 1},       {"aten::sort.stable", 2}, {"aten::max.dim", 1},
                {"aten::min.dim", 1}, {"aten::median.dim", 1}, {"aten::kthvalue", 2},    {"aten::mode", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].row, row)) return rows[i].dim;
    return -1;
}

/* Over how many of the last dimensions an op takes maxima whose indices count the elements of all of them; 0: no such
 * op. */
static int pooled_axes(const char *row)
{
    static const char *const names[] = {"aten::max_pool", "aten::adaptive_max_pool"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i]);
        if (!strncmp(names[i], row, n) && row[n] >= '1' && row[n] <= '3') return row[n] - '0';
    }
    return 0;
}

/* Where the element stands that `chosen` counts in a plane of the last `axes` dimensions; -1: outside. */
static int64_t place_in_plane(const lb_layout *in, int axes, int64_t chosen)
{
    int64_t at = 0;
    for (int d = in->ndim - 1; d >= in->ndim - axes; d--) {
        at += chosen % in->shape[d] * in->stride[d];
        chosen /= in->shape[d];
    }
    return chosen == 0 ? at : -1;
}

/* values[plane, …] = input[plane, indices[plane, …]] */
static void select_in_planes(const lb_tensor *input, const lb_tensor *indices, const lb_tensor *values, int axes)
{
    const lb_layout *in = &input->layout, *at = &indices->layout;
    const int64_t numel = lb_layout_numel(at);
    int64_t index[LB_MAX_DIMS] = {0};
    const size_t from_size = lb_dtype_bits(input->dtype) / 8, to_size = lb_dtype_bits(values->dtype) / 8;
    for (int64_t n = 0; n < numel; n++) {
        int64_t where = 0, to = 0, plane = 0;
        for (int d = 0; d < at->ndim; d++) {
            where += index[d] * at->stride[d];
            to += index[d] * values->layout.stride[d];
            if (d < in->ndim - axes) plane += index[d] * in->stride[d];
        }
        const int64_t chosen = ((const int64_t *)indices->data)[where];
        const int64_t from = chosen < 0 ? -1 : place_in_plane(in, axes, chosen);
        if (from >= 0)
            lb_convert(values->dtype, (char *)values->data + to * (int64_t)to_size, input->dtype,
                       (const char *)input->data + (plane + from) * (int64_t)from_size, 1, NULL);
        for (int d = at->ndim - 1; d >= 0 && ++index[d] == at->shape[d]; d--) index[d] = 0;
    }
}

/* False for an op that this is not known to be right for. */
static bool select_values(const lb_execution *execution)
{
    const int position = dim_argument(execution->prepared->row->name),
              axes = pooled_axes(execution->prepared->row->name);
    if (execution->outputs.n != 2 || execution->args[0].tag != LB_OPERAND_TENSOR ||
        execution->outputs.tensors[1].dtype != LB_I64 || !execution->outputs.tensors[0].data)
        return false;
    if (axes && execution->args[0].tensor.layout.ndim >= axes) {
        select_in_planes(&execution->args[0].tensor, &execution->outputs.tensors[1], &execution->outputs.tensors[0],
                         axes);
        return true;
    }
    if (position < 0 || (uint32_t)position >= execution->n_args) return false;
    int dim = (int)execution->args[position].i, ndim = execution->args[0].tensor.layout.ndim;
    if (dim < 0) dim += ndim;
    if (dim < 0 || dim >= ndim) return false;
    select_again(&execution->args[0].tensor, &execution->outputs.tensors[1], &execution->outputs.tensors[0], dim);
    return true;
}

lb_status lb_decision_take(lb_machine *machine, lb_execution *execution, bool *taken)
{
    *taken = false;
    lb_tensor decided;
    if (execution->outputs.n != 2 || execution->outputs.values[1] == LB_NONE ||
        !lb_rebase_decided(machine, execution->outputs.values[1], &decided))
        return LB_OK;
    LB_TRY(lb_rebase_put(machine, execution->outputs.values[1], &decided));
    uint32_t v = execution->outputs.values[1];
    execution->outputs.tensors[1] =
        lb_memory_storage_window(lb_storage_of(machine, v), &machine->prepared->program->values[v]);
    *taken = select_values(execution);
    return LB_OK;
}

static bool is_forced(const uint8_t *routed, uint32_t value, uint8_t upto)
{
    return value != LB_NONE && routed[value] && routed[value] <= upto;
}

/* What --routing puts in the place of `value`: the recorded part, or what the observer has instead. `*loaded` false:
 * neither is to be had. */
static lb_status force_part(lb_machine *machine, uint32_t value, bool *loaded)
{
    const lb_observer *observer = machine->run->observer;
    const lb_program *program = machine->prepared->program;
    const lb_value *row = &program->values[value];
    lb_tensor other = {NULL, row->dtype, lb_layout_contiguous(row->layout.ndim, row->layout.shape)};
    machine->state[value] = LB_STATE_UNKNOWN;
    if (observer && observer->routed &&
        observer->routed(observer->context, machine->rank, program->step, value, &other)) {
        *loaded = machine->conditional = true;
        return lb_rebase_put(machine, value, &other);
    }
    if (changed(machine, value)) machine->conditional = true;
    return lb_rebase_load(machine, value, loaded);
}

lb_status lb_decision_route(lb_machine *machine, lb_execution *execution)
{
    const uint8_t upto = lb_machine_choice(machine)->routing, *routed = machine->prepared->routed;
    if (!upto || !routed || machine->is_shadow || machine->run->plan->mode == LB_REPLAY_ISOLATED) return LB_OK;
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        const uint32_t value = execution->outputs.values[i];
        if (!is_forced(routed, value, upto)) continue;
        bool loaded;
        LB_TRY(force_part(machine, value, &loaded));
        if (!loaded) {
            lb_decision_undecided(machine, "the routing to be forced was not kept: record again with --level ops");
            return LB_OK;
        }
        execution->outputs.tensors[i] =
            lb_memory_storage_window(lb_storage_of(machine, value), &machine->prepared->program->values[value]);
        if (routed[value] == LB_ROUTE_IDS && !is_forced(routed, execution->outputs.values[0], upto))
            select_values(execution);
    }
    return LB_OK;
}

/* Fewer of its elements are not finite than in the recording. */
static bool became_finite(lb_machine *machine, uint32_t value)
{
    const lb_program *recorded = machine->prepared->recorded;
    const lb_memory_storage *storage = lb_storage_of(machine, value);
    lb_statistics then = {0};
    lb_tensor tensor;
    if (value >= recorded->n_values || !storage->base) return false;
    if (recorded->values[value].statistics != LB_NONE)
        then = recorded->statistics[recorded->values[value].statistics];
    else if (lb_rebase_recorded(machine, value, &tensor))
        then = lb_statistics_of(&tensor);
    if (!lb_statistics_nonfinite(&then)) return false;
    tensor = lb_memory_storage_window(storage, &machine->prepared->program->values[value]);
    const lb_statistics now = lb_statistics_of(&tensor);
    return lb_statistics_nonfinite(&now) < lb_statistics_nonfinite(&then);
}

typedef struct anew {
    lb_machine *machine;
    bool is;
} anew;

static void weigh_anew(void *context, uint32_t value)
{
    anew *anew = context;
    if (anew->is) return;
    if (lb_dtype_is_float(anew->machine->prepared->program->values[value].dtype))
        anew->is = became_finite(anew->machine, value);
    else
        anew->is = anew->machine->chooses_anew && changed(anew->machine, value);
}

/* What was chosen among numbers that were not finite is no choice for a run in which they are: experts so named may
 * have weights that add up to 0. The run's own stands, and that of each op which reads it, unless the outcome has the
 * program's shapes depend on it. */
static bool chooses_anew(lb_machine *machine, const lb_op *op)
{
    anew anew = {machine, false};
    if (op->flags & LB_OP_DECISION) return false;
    lb_op_each_input(machine->prepared->program, op, weigh_anew, &anew);
    if (anew.is) machine->chooses_anew = machine->conditional = true;
    return anew.is;
}

static bool gives_index(const lb_machine *machine, uint32_t value)
{
    const lb_dtype dtype = value == LB_NONE ? LB_F32 : machine->prepared->program->values[value].dtype;
    return lb_dtype_is_integer(dtype) && dtype != LB_BOOL;
}

lb_status lb_decision_force(lb_machine *machine, const lb_op *op, lb_execution *execution)
{
    const lb_plan *plan = machine->run->plan;
    if (machine->is_shadow || !plan->force_decisions || plan->mode == LB_REPLAY_ISOLATED) return LB_OK;
    if (!(execution->prepared->row->flags & LB_ROW_DISCONTINUOUS) && !(op->flags & LB_OP_DECISION)) return LB_OK;
    for (uint32_t i = 0; i < execution->outputs.n; i++)
        if (gives_index(machine, execution->outputs.values[i])) tell_decision(machine, execution->outputs.values[i]);
    if (execution->inputs.exact) return LB_OK;
    bool forced = false, numbers = true, asked = false;
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        uint32_t value = execution->outputs.values[i];
        if (value == LB_NONE) continue;
        machine->state[value] = LB_STATE_UNKNOWN;
        if (!gives_index(machine, value) || !changed(machine, value)) continue;
        if (!asked && chooses_anew(machine, op)) return LB_OK;
        asked = true;
        bool loaded;
        LB_TRY(load_decision(machine, value, &loaded));
        if (!loaded) continue; /* lb_decision_results or a later decision will end the chain */
        execution->outputs.tensors[i] =
            lb_memory_storage_window(lb_storage_of(machine, value), &machine->prepared->program->values[value]);
        forced = true;
        if (i == 0) numbers = false; /* sorted integers came with the indices; their memory is the recording's */
    }
    if (!forced) return LB_OK;
    machine->conditional = true;
    if (numbers) select_values(execution);
    return LB_OK;
}
