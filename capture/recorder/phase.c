/* The phase of an op outside every module: the host knows what it called, not what the lines between mean.
 *
 * Of an op with no module, no autograd node and no optimizer's step around it, the host says `forward` (in grad mode)
 * or `other`, whether autograd made a node for it, and whether a backward has ended since the last forward in grad
 * mode. Then
 *
 *     an op that autograd follows                                          is of the forward: the loss
 *     one that reads or writes a gradient, or what was made of one         is of the optimizer: clipping, unscaling, an update
 *     one that writes a parameter                                          is of the optimizer, too
 *     after a backward, one that takes parameters and what is like them    is of the optimizer: a moving average of the weights,
 *     (element by element, or in lists)                                    weight decay, a norm
 *     after a backward, one whose results only such ops take or write      is of the optimizer: momentum, bias corrections
 *     anything else                                                        is as the host says
 *
 * The last but one is known when the step ends; until then the rows of such ops are remembered. Then it is known, too,
 * that nothing in the step has a phase: functions that infer, without modules and without grad mode, are a forward. */
#include "recorder/recorder.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

/* ---- by what it reads -------------------------------------------------------------------------------------------- */

typedef struct lb_touched {
    bool gradient;  /* of a parameter, or made of gradients */
    bool parameter; /* a parameter, buffer or state, or made of one after backward */
    bool writes_parameter;
    bool list;
    int64_t numel;    /* of what is a parameter */
    int64_t other[2]; /* the fewest and most elements of any other tensor that is no number; -1: there is none */
} lb_touched;

static uint32_t roles_of(const lb_tracked *storage)
{
    uint32_t flags = 0;
    for (uint32_t r = 0; r < storage->n_roles; r++) flags |= storage->roles[r].flags;
    return flags;
}

static void touch_tensor(const lb_recorder *recorder, const lb_host_tensor *seen, bool written, lb_touched *touched)
{
    const lb_tracked *storage = lb_tracked_set_find(&recorder->storages, seen->storage);
    const int64_t numel = lb_layout_numel(&seen->layout);
    const bool fresh = storage && storage->program == recorder->serial;
    const uint32_t flags = storage ? roles_of(storage) : 0;
    if (flags & LB_VALUE_GRADIENT || (fresh && storage->of_gradient)) touched->gradient = true;
    if (flags & LB_VALUE_PARAMETER && written) touched->writes_parameter = true;
    if (flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE) || (fresh && storage->of_parameter)) {
        touched->parameter = true;
        touched->numel = numel;
    } else if (numel > 1) {
        if (touched->other[0] < 0 || numel < touched->other[0]) touched->other[0] = numel;
        if (numel > touched->other[1]) touched->other[1] = numel;
    }
}

static void touch(const lb_recorder *recorder, const lb_recorded_operand *operand, unsigned flags, int depth,
                  lb_touched *touched)
{
    flags |= operand->flags;
    if (operand->tag == LB_ARG_VALUE) touch_tensor(recorder, operand->u.tensor, flags & LB_OPERAND_WRITTEN, touched);
    if (operand->tag != LB_ARG_LIST || depth > 8) return;
    touched->list = true;
    for (uint32_t i = 0; i < operand->count; i++) touch(recorder, &operand->u.items[i], flags, depth + 1, touched);
}

lb_unclassified lb_phase_of(const lb_recorder *recorder, const lb_recorded_call *call, uint8_t *phase)
{
    *phase = call->phase;
    if (call->place.scope != 0 || call->followed || (*phase != LB_PHASE_FORWARD && *phase != LB_PHASE_OTHER))
        return LB_UNCLASSIFIED_NOT;
    lb_touched touched = {.other = {-1, -1}};
    for (uint32_t a = 0; a < call->n_args; a++) touch(recorder, &call->args[a], 0, 0, &touched);
    const bool alike =
        touched.list || (touched.other[0] < 0 ? touched.numel > 0
                                              : touched.other[0] == touched.numel && touched.other[1] == touched.numel);
    const bool of_parameter = touched.parameter && call->after_backward && alike && !(call->flags & LB_OP_VIEW);
    if (touched.gradient || touched.writes_parameter || of_parameter) {
        *phase = LB_PHASE_OPTIMIZER;
        return touched.gradient ? LB_UNCLASSIFIED_GRADIENT : LB_UNCLASSIFIED_PARAMETER;
    }
    return call->after_backward ? LB_UNCLASSIFIED_OPEN : LB_UNCLASSIFIED_NOT;
}

void lb_phase_made(lb_tracked_set *storages, lb_unclassified loose, int64_t key)
{
    lb_tracked *storage = lb_tracked_set_find(storages, key);
    if (!storage || roles_of(storage) & LB_VALUE_PARAMETER) return; /* what was written to a parameter is a parameter */
    if (loose == LB_UNCLASSIFIED_GRADIENT) storage->of_gradient = true;
    if (loose == LB_UNCLASSIFIED_PARAMETER) storage->of_parameter = true;
}

/* ---- by what reads it -------------------------------------------------------------------------------------------- */

lb_status lb_phase_remember(lb_phase_rows *rows, uint32_t first, uint32_t last, lb_err *err)
{
    lb_row_range *grown = lb_array_fit(rows->list, &rows->cap, rows->n + 1, sizeof *grown);
    if (!grown) return lb_recorder_no_memory(err);
    rows->list = grown;
    grown[rows->n++] = (lb_row_range){first, last};
    return LB_OK;
}

/* The storages of values, each by one of them. */
typedef struct lb_storage_set {
    const lb_program *program;
    lb_hash values;
} lb_storage_set;

static bool set_has(const lb_storage_set *set, int64_t id)
{
    LB_HASH_EACH(row, &set->values, (uint64_t)id)
    if (set->program->values[row].storage == id) return true;
    return false;
}

static bool add_args(lb_storage_set *set, uint32_t first, uint32_t n, int depth)
{
    for (uint32_t a = first; a < first + n; a++) {
        const lb_arg *arg = &set->program->args[a];
        const int64_t id = arg->tag == LB_ARG_VALUE ? set->program->values[arg->u.value].storage : 0;
        if (arg->tag == LB_ARG_VALUE && !set_has(set, id) && !lb_hash_add(&set->values, (uint64_t)id, arg->u.value))
            return false;
        if (arg->tag == LB_ARG_LIST && depth < 8 && !add_args(set, arg->u.first, arg->count, depth + 1)) return false;
    }
    return true;
}

static bool meets(const lb_storage_set *set, uint32_t first, uint32_t n)
{
    for (uint32_t r = first; r < first + n; r++) {
        const uint32_t row = set->program->refs[r];
        if (row != LB_NONE && set_has(set, set->program->values[row].storage)) return true;
    }
    return false;
}

static void settle_step_without_phases(lb_program *program)
{
    for (uint32_t o = 0; o < program->n_ops; o++)
        if (program->ops[o].phase != LB_PHASE_OTHER) return;
    for (uint32_t o = 0; o < program->n_ops; o++) program->ops[o].phase = LB_PHASE_FORWARD;
}

lb_status lb_phase_settle(lb_recorder *recorder, lb_err *err)
{
    lb_program *program = recorder->program;
    settle_step_without_phases(program);
    lb_storage_set taken = {.program = program};
    bool fine = true;
    uint32_t left = recorder->unclassified.n;
    for (uint32_t o = program->n_ops; o-- > 0 && left > 0 && fine;) {
        lb_op *op = &program->ops[o];
        while (left > 0 && recorder->unclassified.list[left - 1].first > o) left--;
        const bool loose = left > 0 && o <= recorder->unclassified.list[left - 1].last;
        if (loose && op->phase != LB_PHASE_OPTIMIZER &&
            (op->phase == LB_PHASE_FORWARD || op->phase == LB_PHASE_OTHER) &&
            (meets(&taken, op->first_result, op->results) || meets(&taken, op->first_written, op->written)))
            op->phase = LB_PHASE_OPTIMIZER;
        if (op->phase == LB_PHASE_OPTIMIZER) fine = add_args(&taken, op->first_arg, op->args, 0);
    }
    lb_hash_release(&taken.values);
    recorder->unclassified.n = 0;
    return fine ? LB_OK : lb_recorder_no_memory(err);
}
