/* Checkpoints of chained replays: see checkpoint.h. */
#include "machine/checkpoint.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* ---- the list ---------------------------------------------------------------------------------------------------- */

lb_status lb_checkpoints_new(uint64_t limit_bytes, lb_checkpoints **checkpoints, lb_err *err)
{
    *checkpoints = calloc(1, sizeof **checkpoints);
    if (!*checkpoints) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    (*checkpoints)->limit = limit_bytes;
    return LB_OK;
}

static void release(lb_machine_checkpoint *row)
{
    for (uint32_t i = 0; i < row->n_machines; i++) {
        for (uint32_t s = 0; s < row->machines[i].n_rows; s++) lb_memory_shared_release(&row->machines[i].rows[s]);
        free(row->machines[i].rows);
    }
    free(row->machines);
}

static void drop_oldest(lb_checkpoints *checkpoints)
{
    checkpoints->bytes -= checkpoints->rows[0].bytes;
    release(&checkpoints->rows[0]);
    memmove(checkpoints->rows, checkpoints->rows + 1, --checkpoints->n * sizeof *checkpoints->rows);
}

void lb_checkpoints_clear(lb_checkpoints *checkpoints)
{
    for (uint32_t i = 0; i < checkpoints->n; i++) release(&checkpoints->rows[i]);
    checkpoints->n = 0;
    checkpoints->bytes = 0;
}

void lb_checkpoints_free(lb_checkpoints *checkpoints)
{
    if (!checkpoints) return;
    lb_checkpoints_clear(checkpoints);
    free(checkpoints->rows);
    free(checkpoints);
}

uint32_t lb_checkpoints_count(const lb_checkpoints *checkpoints)
{
    return checkpoints->n;
}
uint64_t lb_checkpoints_bytes(const lb_checkpoints *checkpoints)
{
    return checkpoints->bytes;
}

void lb_checkpoints_begin(lb_checkpoints *checkpoints, const lb_plan *plan)
{
    lb_checkpoints_clear(checkpoints);
    checkpoints->first_step = plan->first_step;
    checkpoints->compare = plan->compare, checkpoints->force_decisions = plan->force_decisions;
}

bool lb_checkpoints_serve(const lb_checkpoints *checkpoints, const lb_plan *plan)
{
    return plan->mode == LB_REPLAY_CHAINED && !plan->shadow && checkpoints->first_step == plan->first_step &&
           checkpoints->compare == plan->compare && checkpoints->force_decisions == plan->force_decisions;
}

/* ---- keeping ----------------------------------------------------------------------------------------------------- */

static size_t storage_bytes(const lb_memory_storage *storage)
{
    return storage->base && (!storage->borrowed || storage->shared)
               ? lb_dtype_bytes(storage->held, (size_t)(storage->last - storage->first))
               : 0;
}

static uint64_t machine_bytes(const lb_machine *machine)
{
    uint64_t bytes = 0;
    uint32_t at = 0;
    for (lb_memory_storage *storage; (storage = lb_memory_next(machine->memory, &at));) bytes += storage_bytes(storage);
    return bytes;
}

static lb_status keep(lb_machine *machine, uint32_t done, lb_kept_machine *out, lb_err *err)
{
    uint32_t at = 0, n = 0;
    *out = (lb_kept_machine){
        .rank = machine->rank, .done = done, .serial = machine->serial, .conditional = machine->conditional};
    while (lb_memory_next(machine->memory, &at)) n++;
    out->rows = malloc((n + 1) * sizeof *out->rows);
    if (!out->rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    at = 0;
    for (lb_memory_storage *storage; (storage = lb_memory_next(machine->memory, &at));)
        lb_memory_storage_share(machine->memory, storage, &out->rows[out->n_rows++]);
    return LB_OK;
}

lb_status lb_checkpoints_add(lb_checkpoints *checkpoints, lb_machine *const *machines, const uint32_t *done, uint32_t n,
                             const lb_replay_summary *summary, lb_err *err)
{
    uint64_t bytes = 0, beside = 0; /* what the replay itself needs of a limit */
    for (uint32_t i = 0; i < n; i++) {
        bytes += machine_bytes(machines[i]);
        if (machines[i]->run->plan->memory_bytes) beside += lb_memory_peak(machines[i]->memory);
    }
    if (bytes + beside > checkpoints->limit) return LB_OK;
    while (checkpoints->n && checkpoints->bytes + bytes + beside > checkpoints->limit) drop_oldest(checkpoints);
    lb_machine_checkpoint *more = lb_array_grow(checkpoints->rows, checkpoints->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    checkpoints->rows = more;
    lb_machine_checkpoint row = {.id = checkpoints->next_id++, .summary = *summary, .bytes = bytes};
    row.machines = calloc(n + 1, sizeof *row.machines);
    lb_status status = row.machines ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        status = keep(machines[i], done[i], &row.machines[row.n_machines++], err);
    if (status != LB_OK) {
        release(&row);
        return status;
    }
    checkpoints->rows[checkpoints->n++] = row;
    checkpoints->bytes += bytes;
    return LB_OK;
}

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

static bool same_extent(const lb_memory_storage *a, const lb_memory_storage *b)
{
    return a->first == b->first && a->last == b->last && a->recorded == b->recorded && a->punned == b->punned;
}

bool lb_checkpoint_fits(const lb_kept_machine *kept, const lb_machine *machine)
{
    for (uint32_t i = 0; i < kept->n_rows; i++) {
        const lb_memory_storage *row = &kept->rows[i], *mine = lb_memory_find(machine->memory, row->id);
        if (!mine || mine->last_program < kept->done) continue; /* it is never asked for */
        if (row->base && !same_extent(row, mine)) return false;
        bool died = !row->base && row->first_program < kept->done && row->last_program < kept->done;
        if (died) return false;
    }
    return true;
}

void lb_checkpoint_resume(const lb_kept_machine *kept, lb_machine *machine, const lb_prepared *last)
{
    for (uint32_t i = 0; i < kept->n_rows; i++) {
        lb_memory_storage *mine = kept->rows[i].base ? lb_memory_find(machine->memory, kept->rows[i].id) : NULL;
        if (mine && mine->last_program >= kept->done) lb_memory_storage_adopt(machine->memory, mine, &kept->rows[i]);
    }
    machine->serial = kept->serial;
    machine->conditional = kept->conditional;
    machine->prepared = last;
    machine->current = kept->done ? kept->done - 1 : 0;
}

/* ---- looking inside ---------------------------------------------------------------------------------------------- */

static const lb_kept_machine *find_machine(const lb_checkpoints *checkpoints, uint32_t id, int32_t rank)
{
    for (uint32_t i = 0; i < checkpoints->n; i++)
        for (uint32_t k = 0; checkpoints->rows[i].id == id && k < checkpoints->rows[i].n_machines; k++)
            if (checkpoints->rows[i].machines[k].rank == rank) return &checkpoints->rows[i].machines[k];
    return NULL;
}

bool lb_checkpoint_contents(const lb_checkpoints *checkpoints, uint32_t checkpoint, int32_t rank, const lb_value *value,
                            lb_tensor *tensor)
{
    const lb_kept_machine *machine = find_machine(checkpoints, checkpoint, rank);
    for (uint32_t i = 0; machine && i < machine->n_rows; i++) {
        const lb_memory_storage *row = &machine->rows[i];
        if (row->id != value->storage) continue;
        if (row->missing || !lb_memory_storage_holds(row, value)) return false;
        *tensor = lb_memory_storage_window(row, value);
        return tensor->dtype == value->dtype;
    }
    return false;
}
