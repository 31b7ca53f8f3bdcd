/* Analysis of a program before it runs: see prepared.h. */
#include "program/prepared.h"

#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

/* ---- what each op asks for -------------------------------------------------------------------------------------- */

/* Every result is a window on a storage that an argument already had. */
static bool results_alias_inputs(const lb_program *program, const lb_op *op)
{
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t v = lb_op_results(program, op)[r];
        if (v != LB_NONE && lb_op_reads(program, op, program->values[v].storage) == LB_NONE) return false;
    }
    return op->results > 0;
}

static uint8_t pseudo_action(const char *name)
{
    if (!strcmp(name, "lb::source")) return LB_ACT_SOURCE;
    if (!strcmp(name, "lb::zero")) return LB_ACT_ZERO;
    if (!strcmp(name, "lb::copy")) return LB_ACT_COPY;
    if (!strcmp(name, "lb::round")) return LB_ACT_ROUND;
    if (!strcmp(name, "lb::state")) return LB_ACT_STATE;
    return LB_ACT_STAND_IN;
}

/* Some argument is a list of tensors: a sparse or nested one, where the op is none that takes lists. */
static bool reads_parts(const lb_program *program, const lb_op *op)
{
    for (uint32_t i = 0; i < op->args; i++) {
        const lb_arg *arg = &lb_op_args(program, op)[i];
        if (arg->tag == LB_ARG_LIST && arg->count && program->args[arg->u.first].tag == LB_ARG_VALUE) return true;
    }
    return false;
}

static void classify(const lb_program *program, const lb_op *op, lb_prepared_op *out)
{
    const char *name = lb_op_name(program, op);
    lb_op_form form = LB_FORM_PLAIN;
    if (!strncmp(name, "lb::", 4)) {
        out->action = pseudo_action(name);
        return;
    }
    if (reads_parts(program, op)) out->row = lb_op_find_of_parts(name, &form);
    if (!out->row) out->row = lb_op_find(name, &form);
    if (!out->row) out->row = lb_op_find_of_parts(name, &form); /* made of dense ones */
    out->form = (uint8_t)form;
    uint32_t flags = out->row ? out->row->flags : 0;
    if (op->flags & LB_OP_FAILED) {
        out->action = LB_ACT_NOTHING;
    } else if ((op->flags & LB_OP_COLLECTIVE) || (flags & LB_ROW_COLLECTIVE)) {
        out->action = LB_ACT_COLLECTIVE;
    } else if ((op->flags & LB_OP_DECISION || flags & LB_ROW_DECISION) && !op->results && !op->written) {
        out->action = LB_ACT_DECIDE;
    } else if (op->flags & LB_OP_VIEW) {
        out->action = LB_ACT_NOTHING;
        out->view = 1;
    } else if ((flags & LB_ROW_VIEW) && results_alias_inputs(program, op) && !op->written) {
        out->action = LB_ACT_NOTHING;
        out->view = 1;
    } else if (flags & LB_ROW_VIEW && !out->row->kernel) {
        /* A view op whose result the recorder found in fresh memory. */
        out->action = op->results == 1 ? LB_ACT_COPY : LB_ACT_STAND_IN;
    } else if ((flags & (LB_ROW_HOST | LB_ROW_UNDEFINED)) ||
               (op->flags & LB_OP_UNDEFINED && !op->written && !out->row)) {
        out->action = LB_ACT_NOTHING;
    } else if (out->row && out->row->kernel && !((op->flags & LB_OP_RANDOM) && !(flags & LB_ROW_RANDOM))) {
        out->action = LB_ACT_COMPUTE;
    } else {
        out->action = LB_ACT_STAND_IN;
    }
}

bool lb_prepared_is_call(const lb_op *op, const lb_prepared_op *prepared)
{
    const lb_op_row *row = prepared->row;
    if (op->flags & (LB_OP_RANDOM | LB_OP_DECISION)) return false;
    if (!row) return prepared->action == LB_ACT_STAND_IN;
    return prepared->action == LB_ACT_COMPUTE && row->kernel && !(row->flags & (LB_ROW_RANDOM | LB_ROW_DECISION)) &&
           !LB_ROW_GIVEN_COUNT(row->flags);
}

/* ---- storages --------------------------------------------------------------------------------------------------- */

/* LB_NONE when out of memory. */
static uint32_t storage_row(lb_prepared *prepared, lb_hash *by_id, int64_t id)
{
    LB_HASH_EACH(row, by_id, (uint64_t)id)
    if (prepared->storages[row].id == id) return row;
    if (!lb_hash_add(by_id, (uint64_t)id, prepared->n_storages)) return LB_NONE;
    prepared->storages[prepared->n_storages] = (lb_prepared_storage){.id = id};
    return prepared->n_storages++;
}

static void to_bytes(lb_dtype dtype, int64_t *first, int64_t *last)
{
    int64_t bits = (int64_t)lb_dtype_bits(dtype);
    *first = *first * bits / 8;
    *last = (*last * bits + 7) / 8;
}

static lb_status extend(lb_prepared_storage *storage, const lb_value *value, lb_err *err)
{
    const lb_dtype part = lb_dtype_part(value->dtype);
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&value->layout, &first, &last, err));
    if (part != value->dtype) first *= 2, last *= 2, storage->paired = true;
    if (storage->dtype == LB_NO_DTYPE) {
        storage->dtype = part;
    } else if (storage->dtype != part && !storage->punned) {
        to_bytes(storage->dtype, &storage->first, &storage->last);
        storage->punned = true;
    }
    if (storage->punned) to_bytes(part, &first, &last);
    if (first == last) return LB_OK;
    if (storage->first == storage->last) {
        storage->first = first;
        storage->last = last;
    }
    if (first < storage->first) storage->first = first;
    if (last > storage->last) storage->last = last;
    return LB_OK;
}

static lb_status collect_storages(lb_prepared *prepared, lb_err *err)
{
    const lb_program *program = prepared->program;
    lb_hash by_id = {0};
    prepared->storages = malloc((program->n_values + 1) * sizeof *prepared->storages);
    prepared->storage_of = malloc((program->n_values + 1) * sizeof *prepared->storage_of);
    bool room = prepared->storages && prepared->storage_of;
    lb_status status = LB_OK;
    for (uint32_t v = 0; room && v < program->n_values && status == LB_OK; v++) {
        const uint32_t row = prepared->storage_of[v] = storage_row(prepared, &by_id, program->values[v].storage);
        room = row != LB_NONE;
        if (room) status = extend(&prepared->storages[row], &program->values[v], err);
    }
    lb_hash_release(&by_id);
    if (!room) return lb_fail(err, LB_ERR_NOMEM, "out of memory preparing a program of %u values", program->n_values);
    for (uint32_t s = 0; s < prepared->n_storages; s++)
        if (prepared->storages[s].punned) prepared->storages[s].dtype = LB_U8;
    return status;
}

/* ---- liveness --------------------------------------------------------------------------------------------------- */

typedef struct last_uses {
    const lb_prepared *prepared;
    uint32_t *last;
    uint32_t op;
} last_uses;

static void touch(void *context, uint32_t value)
{
    last_uses *uses = context;
    uses->last[uses->prepared->storage_of[value]] = uses->op;
}

static void touch_refs(last_uses *uses, const uint32_t *refs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (refs[i] != LB_NONE) touch(uses, refs[i]);
}

static lb_status find_last_uses(lb_prepared *prepared, lb_err *err)
{
    const lb_program *program = prepared->program;
    uint32_t *last = malloc((prepared->n_storages + 1) * sizeof *last);
    uint32_t *count = calloc(program->n_ops + 1, sizeof *count);
    prepared->dying = malloc((prepared->n_storages + 1) * sizeof *prepared->dying);
    if (!last || !count || !prepared->dying) {
        free(last);
        free(count);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory preparing a program of %u ops", program->n_ops);
    }
    memset(last, 0xff, (prepared->n_storages + 1) * sizeof *last);
    last_uses uses = {prepared, last, 0};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        uses.op = i;
        lb_op_each_input(program, op, touch, &uses);
        touch_refs(&uses, lb_op_results(program, op), op->results);
        touch_refs(&uses, lb_op_written(program, op), op->written);
    }
    for (uint32_t s = 0; s < prepared->n_storages; s++)
        if (last[s] != LB_NONE) count[last[s]]++;
    uint32_t at = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        prepared->ops[i].first_dying = at;
        at += count[i];
    }
    for (uint32_t s = 0; s < prepared->n_storages; s++) {
        if (last[s] == LB_NONE) continue;
        lb_prepared_op *op = &prepared->ops[last[s]];
        prepared->dying[op->first_dying + op->dying++] = s;
    }
    free(last);
    free(count);
    return LB_OK;
}

/* ---- boundaries ------------------------------------------------------------------------------------------------- */

/* Module inputs by the op they stand before; a counting sort, since hooks may have recorded them in any order. */
static lb_status order_boundaries(lb_prepared *prepared, lb_err *err)
{
    const lb_program *program = prepared->program;
    prepared->boundary_at = calloc(program->n_ops + 2, sizeof *prepared->boundary_at);
    prepared->boundary_rows = malloc((program->n_boundaries + 1) * sizeof *prepared->boundary_rows);
    if (!prepared->boundary_at || !prepared->boundary_rows)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory preparing a program of %u ops", program->n_ops);
    for (uint32_t b = 0; b < program->n_boundaries; b++)
        if (!program->boundaries[b].output && program->boundaries[b].op < program->n_ops)
            prepared->boundary_at[program->boundaries[b].op + 2]++;
    for (uint32_t i = 2; i < program->n_ops + 2; i++) prepared->boundary_at[i] += prepared->boundary_at[i - 1];
    for (uint32_t b = 0; b < program->n_boundaries; b++)
        if (!program->boundaries[b].output && program->boundaries[b].op < program->n_ops)
            prepared->boundary_rows[prepared->boundary_at[program->boundaries[b].op + 1]++] = b;
    return LB_OK;
}

/* ---- routing ---------------------------------------------------------------------------------------------------- */

static lb_status mark_routed(lb_prepared *prepared, lb_err *err)
{
    const lb_program *program = prepared->program;
    if (!program->n_routings) return LB_OK;
    prepared->routed = calloc(program->n_values + 1, 1);
    if (!prepared->routed)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory preparing a program of %u values", program->n_values);
    for (uint32_t r = 0; r < program->n_routings; r++) {
        const lb_routing *row = &program->routings[r];
        if (row->slots != LB_NONE) prepared->routed[row->slots] = 3;
        if (row->weights != LB_NONE) prepared->routed[row->weights] = 2;
        if (row->ids != LB_NONE) prepared->routed[row->ids] = 1;
    }
    return LB_OK;
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static void mark_written(lb_prepared *prepared)
{
    const lb_program *program = prepared->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (prepared->ops[i].action == LB_ACT_SOURCE || prepared->ops[i].action == LB_ACT_NOTHING) continue;
        for (uint32_t r = 0; r < op->results; r++)
            if (lb_op_results(program, op)[r] != LB_NONE)
                prepared->storages[prepared->storage_of[lb_op_results(program, op)[r]]].written = true;
        for (uint32_t w = 0; w < op->written; w++)
            if (lb_op_written(program, op)[w] != LB_NONE)
                prepared->storages[prepared->storage_of[lb_op_written(program, op)[w]]].written = true;
    }
}

lb_status lb_prepared_make(const lb_program *program, const lb_program *recorded, const uint32_t *origin,
                           lb_prepared **out, lb_err *err)
{
    *out = NULL;
    lb_prepared *prepared = calloc(1, sizeof *prepared);
    if (!prepared || !(prepared->ops = calloc(program->n_ops + 1, sizeof *prepared->ops))) {
        free(prepared);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory preparing a program of %u ops", program->n_ops);
    }
    prepared->program = program;
    prepared->recorded = recorded ? recorded : program;
    prepared->origin = origin;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        prepared->ops[i].collective = LB_NONE;
        classify(program, &program->ops[i], &prepared->ops[i]);
        uint8_t action = prepared->ops[i].action;
        prepared->computing += action != LB_ACT_NOTHING && action != LB_ACT_SOURCE && action != LB_ACT_DECIDE;
    }
    for (uint32_t c = 0; c < program->n_collectives; c++) prepared->ops[program->collectives[c].op].collective = c;
    lb_status status = collect_storages(prepared, err);
    if (status == LB_OK) status = find_last_uses(prepared, err);
    if (status == LB_OK) status = order_boundaries(prepared, err);
    if (status == LB_OK) status = mark_routed(prepared, err);
    if (status != LB_OK) {
        lb_prepared_free(prepared);
        return status;
    }
    mark_written(prepared);
    *out = prepared;
    return LB_OK;
}

void lb_prepared_free(lb_prepared *prepared)
{
    if (!prepared) return;
    free(prepared->ops);
    free(prepared->storages);
    free(prepared->storage_of);
    free(prepared->dying);
    free(prepared->routed);
    free(prepared->boundary_at);
    free(prepared->boundary_rows);
    free(prepared);
}
