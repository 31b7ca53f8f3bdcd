/* Ops that need not run: see reuse.h. */
#include "machine/reuse.h"

#include "base/array.h"
#include "machine/machine.h"
#include "machine/rebase.h"

#include <stdlib.h>

static bool is_asked(const lb_machine *machine)
{
    const lb_observer *observer = machine->run->observer;
    return machine->alone && machine->run->plan->mode == LB_REPLAY_CHAINED && observer && observer->reuses &&
           !machine->prepared->origin;
}

lb_status lb_reuse_begin(lb_machine *machine)
{
    lb_reuse *reuse = &machine->reuse;
    lb_reuse_release(reuse);
    if (!is_asked(machine)) return LB_OK;
    const size_t n = machine->prepared->n_storages;
    reuse->first = malloc((n + 1) * sizeof *reuse->first), reuse->last = malloc((n + 1) * sizeof *reuse->last);
    for (size_t i = 0; i < n && reuse->first && reuse->last; i++) reuse->first[i] = reuse->last[i] = LB_NONE;
    return reuse->first && reuse->last ? LB_OK : LB_ERR_NOMEM;
}

void lb_reuse_release(lb_reuse *reuse)
{
    free(reuse->list), free(reuse->first), free(reuse->last);
    *reuse = (lb_reuse){0};
}

void lb_reuse_drop(lb_machine *machine, uint32_t storage)
{
    if (machine->reuse.first) machine->reuse.first[storage] = machine->reuse.last[storage] = LB_NONE;
}

static lb_status note(lb_machine *machine, uint32_t value)
{
    lb_reuse *reuse = &machine->reuse;
    const uint32_t storage = machine->prepared->storage_of[value];
    struct lb_reuse_result *more = lb_array_grow(reuse->list, reuse->n, sizeof *more);
    if (!more) return lb_fail(machine->err, LB_ERR_NOMEM, "out of memory for results of an earlier run");
    reuse->list = more;
    reuse->list[reuse->n] = (struct lb_reuse_result){machine->next, value, LB_NONE};
    if (reuse->first[storage] == LB_NONE)
        reuse->first[storage] = reuse->n;
    else
        reuse->list[reuse->last[storage]].next = reuse->n;
    reuse->last[storage] = reuse->n++;
    return LB_OK;
}

static lb_status put(lb_machine *machine, const struct lb_reuse_result *result)
{
    const lb_program *program = machine->prepared->program;
    const lb_op *op = &program->ops[result->op];
    const lb_observer *observer = machine->run->observer;
    lb_tensor former = {0};
    if (machine->prepared->ops[result->op].action == LB_ACT_SOURCE) return lb_machine_take_source(machine, op);
    if (!observer->former(observer->context, machine->rank, program->step, result->value, &former))
        return lb_fail(machine->err, LB_ERR_NOMEM, "out of memory for a result of an earlier run");
    return lb_rebase_put(machine, result->value, &former);
}

typedef struct touched {
    lb_machine *machine;
    lb_status status;
} touched;

static void touch(void *context, uint32_t value)
{
    touched *touched = context;
    lb_reuse *reuse = &touched->machine->reuse;
    if (value == LB_NONE) return;
    const uint32_t storage = touched->machine->prepared->storage_of[value];
    uint32_t i = reuse->first[storage];
    lb_reuse_drop(touched->machine, storage);
    for (; i != LB_NONE && touched->status == LB_OK; i = reuse->list[i].next)
        touched->status = put(touched->machine, &reuse->list[i]);
}

lb_status lb_reuse_before(lb_machine *machine, bool *reused)
{
    const lb_prepared *prepared = machine->prepared;
    const lb_program *program = prepared->program;
    const lb_op *op = &program->ops[machine->next];
    const lb_observer *observer = machine->run->observer;
    const uint8_t action = prepared->ops[machine->next].action;
    *reused = false;
    if (!machine->reuse.first || action == LB_ACT_NOTHING) return LB_OK;
    if (action != LB_ACT_COLLECTIVE)
        *reused = observer->reuses(observer->context, machine->rank, program->step, machine->next);
    touched touched = {machine, LB_OK};
    if (!*reused) lb_op_each_input(program, op, touch, &touched);
    for (uint32_t i = 0; i < lb_op_outcomes(op) && touched.status == LB_OK; i++) {
        const uint32_t v = lb_op_outcome(program, op, i);
        if (v == LB_NONE) continue;
        if (*reused)
            touched.status = note(machine, v);
        else
            touch(&touched, v);
    }
    return touched.status;
}
