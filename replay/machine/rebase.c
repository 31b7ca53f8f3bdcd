/* Recorded bytes and exactness: see rebase.h. */
#include "machine/rebase.h"

#include "judgement/verdict.h"

bool lb_rebase_recorded(lb_machine *machine, uint32_t value, lb_tensor *tensor)
{
    const lb_recording *recording = &machine->run->recording;
    const lb_program *recorded = machine->prepared->recorded;
    tensor->data = NULL;
    if (value >= recorded->n_values || !recording->value) return false;
    return recording->value(recording->context, recorded, value, tensor, NULL) == LB_OK;
}

bool lb_rebase_decided(lb_machine *machine, uint32_t value, lb_tensor *tensor)
{
    const lb_observer *observer = machine->run->observer;
    if (!lb_rebase_recorded(machine, value, tensor)) return false;
    if (observer && observer->decided)
        observer->decided(observer->context, machine->rank, machine->prepared->program->step, value, tensor);
    return true;
}

/* `row`: the value, or the range it lies in. */
static void note_written(lb_machine *machine, uint32_t value, const lb_value *row, bool exact, bool missing,
                         lb_verdict taint)
{
    lb_memory_storage *storage = lb_storage_of(machine, value);
    machine->state[value] = exact ? LB_STATE_EXACT : LB_STATE_APPROXIMATE;
    storage->version = row->version;
    lb_memory_storage_fill(storage, row);
    if (lb_memory_storage_covers(storage, row)) {
        storage->exact = exact;
        storage->missing = missing;
        storage->taint = (uint8_t)taint;
    } else {
        storage->exact &= exact;
        storage->missing |= missing;
        storage->taint = (uint8_t)lb_verdict_worse(storage->taint, taint);
    }
}

/* A dense window over the whole storage is used in place: parameters are never copied unless they are written. */
static bool borrow(lb_machine *machine, lb_memory_storage *storage, const lb_value *value, const lb_tensor *recorded)
{
    if (storage->punned || !lb_memory_storage_covers(storage, value) || (uintptr_t)recorded->data % 16) return false;
    if (value->layout.offset * (lb_dtype_is_complex(value->dtype) ? 2 : 1) != storage->first) return false;
    for (int d = 0; d < value->layout.ndim; d++)
        if (recorded->layout.stride[d] != value->layout.stride[d]) return false;
    lb_memory_storage_borrow(machine->memory, storage, recorded->data);
    return true;
}

/* A shadow that is given f64 numbers in the place of narrower ones goes on with all of their digits. */
static lb_dtype dtype_to_hold(const lb_machine *machine, const lb_memory_storage *storage, const lb_tensor *contents)
{
    const bool exact = machine->is_shadow && contents->dtype == LB_F64 && lb_dtype_is_float(storage->recorded);
    return exact ? LB_F64 : storage->recorded;
}

static lb_status fill_window(lb_machine *machine, lb_memory_storage *storage, const lb_value *value,
                             const lb_tensor *contents)
{
    const bool covers = lb_memory_storage_covers(storage, value);
    const lb_dtype dtype = dtype_to_hold(machine, storage, contents);
    if (!storage->base)
        LB_TRY(lb_memory_storage_allocate(machine->memory, storage, dtype, !covers, machine->err));
    else if (storage->borrowed || (covers && storage->held != dtype) || (dtype == LB_F64 && storage->held != LB_F64))
        LB_TRY(lb_memory_storage_convert(machine->memory, storage, covers || dtype == LB_F64 ? dtype : storage->held,
                                         NULL, machine->err));
    lb_tensor window = lb_memory_storage_window(storage, value);
    lb_memory_tensor_copy(&window, contents, NULL);
    return LB_OK;
}

/* Recorded bytes are those of the dense range of a window, what lies between its elements included. */
static bool widen_to_range(lb_value *row, lb_tensor *recorded)
{
    int64_t first, last;
    for (int d = 0; d < row->layout.ndim; d++)
        if (row->layout.shape[d] > 1 && recorded->layout.stride[d] != row->layout.stride[d]) return false;
    if (lb_dtype_bits(row->dtype) % 8 || lb_layout_dense_range(&row->layout, &first, &last, NULL) != LB_OK)
        return false;
    if (row->layout.offset != first) return false;
    int64_t count = last - first;
    row->layout = recorded->layout = lb_layout_contiguous(1, &count);
    row->layout.offset = first;
    return true;
}

static lb_status load(lb_machine *machine, uint32_t value, bool range, bool *loaded)
{
    lb_value row = machine->prepared->program->values[value];
    lb_memory_storage *storage = lb_storage_of(machine, value);
    lb_tensor recorded;
    *loaded = lb_rebase_recorded(machine, value, &recorded);
    if (!*loaded) return LB_OK;
    if (range) widen_to_range(&row, &recorded);
    if (!borrow(machine, storage, &row, &recorded)) LB_TRY(fill_window(machine, storage, &row, &recorded));
    note_written(machine, value, &row, true, false, LB_VERDICT_IDENTICAL);
    return LB_OK;
}

lb_status lb_rebase_load(lb_machine *machine, uint32_t value, bool *loaded)
{
    return load(machine, value, machine->run->plan->mode == LB_REPLAY_ISOLATED, loaded);
}

lb_status lb_rebase_source(lb_machine *machine, uint32_t value, bool *loaded)
{
    return load(machine, value, true, loaded);
}

lb_status lb_rebase_put(lb_machine *machine, uint32_t value, const lb_tensor *contents)
{
    lb_tensor recorded;
    LB_TRY(fill_window(machine, lb_storage_of(machine, value), &machine->prepared->program->values[value], contents));
    const bool same = !machine->is_shadow && lb_rebase_recorded(machine, value, &recorded) &&
                      lb_memory_tensor_same(contents, &recorded);
    lb_rebase_written(machine, value, same, false, same ? LB_VERDICT_IDENTICAL : LB_VERDICT_SWAPPED);
    return LB_OK;
}

lb_status lb_rebase_output(lb_machine *machine, uint32_t value)
{
    const lb_value *record = &machine->prepared->program->values[value];
    bool loaded;
    if (machine->state[value] == LB_STATE_EXACT) return LB_OK;
    LB_TRY(lb_rebase_load(machine, value, &loaded));
    if (loaded) return LB_OK;
    lb_memory_storage *storage = lb_storage_of(machine, value);
    LB_TRY(lb_memory_storage_allocate(machine->memory, storage, storage->recorded, true, machine->err));
    bool undefined = record->flags & LB_VALUE_UNDEFINED || lb_layout_numel(&record->layout) == 0;
    lb_rebase_written(machine, value, undefined, !undefined, LB_VERDICT_IDENTICAL);
    return LB_OK;
}

lb_status lb_rebase_outputs(lb_machine *machine, const lb_op *op)
{
    const lb_program *program = machine->prepared->program;
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        uint32_t v = lb_op_outcome(program, op, i);
        if (v != LB_NONE) LB_TRY(lb_rebase_output(machine, v));
    }
    return LB_OK;
}

lb_status lb_rebase_decision(lb_machine *machine, uint32_t value)
{
    lb_tensor recorded, decided;
    if (!lb_rebase_recorded(machine, value, &recorded) || !lb_rebase_decided(machine, value, &decided)) return LB_OK;
    return decided.data != recorded.data ? lb_rebase_put(machine, value, &decided) : LB_OK;
}

lb_status lb_rebase_decisions(lb_machine *machine, const lb_op *op)
{
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        const uint32_t v = lb_op_outcome(machine->prepared->program, op, i);
        if (v != LB_NONE) LB_TRY(lb_rebase_decision(machine, v));
    }
    return LB_OK;
}

lb_likeness lb_rebase_compare(lb_machine *machine, uint32_t value, const lb_tensor *recorded)
{
    const lb_value *row = &machine->prepared->program->values[value];
    const lb_memory_storage *storage = lb_storage_of(machine, value);
    if (row->flags & LB_VALUE_UNDEFINED || !storage->base) return LB_LIKE_UNKNOWN;
    lb_tensor window = lb_memory_storage_window(storage, row);
    if (recorded && recorded->data) return lb_memory_tensor_same(&window, recorded) ? LB_LIKE_SAME : LB_LIKE_DIFFERENT;
    if (lb_digest_is_none(row->logical)) return LB_LIKE_UNKNOWN;
    if (window.dtype != row->dtype) return LB_LIKE_DIFFERENT;
    return lb_memory_tensor_has_digest(&window, row->logical) ? LB_LIKE_SAME : LB_LIKE_DIFFERENT;
}

/* The op that wrote these contents was taken out by a pass: what is there is older, and not what was recorded. */
static bool is_stale(const lb_machine *machine, const lb_memory_storage *storage, const lb_value *row)
{
    return machine->prepared->origin && storage->version != row->version;
}

lb_status lb_rebase_input(lb_machine *machine, uint32_t value, bool *exact, bool *missing)
{
    lb_memory_storage *storage = lb_storage_of(machine, value);
    *missing = false;
    *exact = true;
    const lb_value *row = &machine->prepared->program->values[value];
    if (lb_layout_numel(&row->layout) == 0) return LB_OK;
    /* Bytes that no source and no op has brought (a slice beside the one that a source held) come from the
     * recording. */
    bool strange = !storage->base || !lb_memory_storage_holds(storage, row);
    bool known = (storage->exact && !is_stale(machine, storage, row)) || machine->state[value] == LB_STATE_EXACT;
    if (!strange && !storage->missing && known) return LB_OK;
    bool isolated = machine->run->plan->mode == LB_REPLAY_ISOLATED;
    if (isolated || strange) {
        bool loaded;
        LB_TRY(lb_rebase_load(machine, value, &loaded));
        if (loaded) return LB_OK;
    }
    if (!storage->base)
        LB_TRY(lb_memory_storage_allocate(machine->memory, storage, storage->recorded, true, machine->err));
    else if (!storage->missing && (isolated || machine->run->plan->compare) &&
             machine->state[value] == LB_STATE_UNKNOWN) {
        lb_tensor recorded;
        lb_rebase_recorded(machine, value, &recorded);
        lb_likeness like = lb_rebase_compare(machine, value, &recorded);
        /* Where nothing recorded speaks for it (a view without a digest in a storage that is not exact), it may
         * differ. */
        bool same = like == LB_LIKE_SAME || row->flags & LB_VALUE_UNDEFINED;
        machine->state[value] = same ? LB_STATE_EXACT : LB_STATE_APPROXIMATE;
    }
    *missing = storage->missing;
    if (row->flags & LB_VALUE_UNDEFINED) *missing = false;
    *exact = !*missing && machine->state[value] == LB_STATE_EXACT;
    if (!*exact && is_stale(machine, storage, row))
        storage->taint = (uint8_t)lb_verdict_worse(storage->taint, LB_VERDICT_SWAPPED);
    return LB_OK;
}

void lb_rebase_written(lb_machine *machine, uint32_t value, bool exact, bool missing, lb_verdict taint)
{
    note_written(machine, value, &machine->prepared->program->values[value], exact, missing, taint);
}
