/* Excerpts: see program_subset.h. Rows are taken over when something names them first. */
#include "reproduce/program_subset.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct subset {
    const lb_program *in;
    lb_program *out;
    const uint8_t *fates;
    const lb_digest *logical, *blob;
    uint32_t *values, *scopes, *position; /* new rows; position: new ops before each op */
    uint8_t *read;                        /* per value: a kept op reads it */
    const uint8_t *needed;                /* per value: see lb_program_subset_needs */
    uint8_t *stands_in;                   /* per value: result of a SOURCE op */
    bool failed;
} subset;

static uint32_t take(subset *subset, uint32_t row)
{
    if (row == LB_NONE) subset->failed = true;
    return row;
}

static uint32_t new_string(void *context, uint32_t string)
{
    subset *subset = context;
    return string == LB_NONE ? LB_NONE
                             : take(subset, lb_program_string(subset->out, lb_program_text(subset->in, string)));
}

static uint32_t new_scope(subset *subset, uint32_t scope)
{
    if (scope == LB_NONE || scope == 0) return scope;
    if (subset->scopes[scope] != LB_NONE) return subset->scopes[scope];
    const lb_scope *row = &subset->in->scopes[scope];
    uint32_t parent = new_scope(subset, row->parent);
    const char *class_name = row->class_name == LB_NONE ? NULL : lb_program_text(subset->in, row->class_name);
    return subset->scopes[scope] =
               take(subset, lb_program_scope(subset->out, lb_program_text(subset->in, row->path), class_name, parent));
}

static uint32_t new_value(void *context, uint32_t value)
{
    subset *subset = context;
    if (value == LB_NONE) return LB_NONE;
    if (subset->values[value] != LB_NONE) return subset->values[value];
    lb_value row = subset->in->values[value];
    row.name = new_string(subset, row.name);
    row.statistics = LB_NONE;
    row.logical = subset->logical[value], row.blob = subset->blob[value];
    row.flags &= ~(uint32_t)(LB_VALUE_KEPT | LB_VALUE_SOURCE);
    row.source = LB_SOURCE_NOT;
    if (subset->stands_in[value]) {
        row.flags |= LB_VALUE_SOURCE;
        if (!lb_digest_is_none(row.blob)) row.flags |= LB_VALUE_KEPT;
        lb_source_kind was = subset->in->values[value].source;
        row.source = was == LB_SOURCE_NOT || was == LB_SOURCE_CARRIED ? LB_SOURCE_OTHER : was;
        if (subset->stands_in[value] == LB_PROGRAM_SUBSET_CARRIED) row.source = LB_SOURCE_CARRIED;
    } else if (!lb_digest_is_none(row.blob))
        row.flags |= LB_VALUE_KEPT;
    return subset->values[value] = take(subset, lb_program_add_value(subset->out, &row));
}

static uint32_t new_refs(subset *subset, const uint32_t *refs, uint32_t count)
{
    uint32_t *copy = malloc((count + 1) * sizeof *copy);
    if (!copy) {
        subset->failed = true;
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) copy[i] = new_value(subset, refs[i]);
    uint32_t first = take(subset, lb_program_add_refs(subset->out, copy, count));
    free(copy);
    return first;
}

static void put_op(subset *subset, const lb_op *op)
{
    lb_op row = *op;
    row.name = new_string(subset, op->name);
    row.node_name = new_string(subset, op->node_name);
    row.line = take(subset, lb_program_copy_line(subset->out, subset->in, op->line));
    row.scope = new_scope(subset, op->scope);
    row.first_arg = take(subset, lb_program_copy_args(subset->out, subset->in, lb_op_args(subset->in, op), op->args,
                                                      &(lb_arg_rename){new_value, new_string, subset}));
    row.first_result = new_refs(subset, lb_op_results(subset->in, op), op->results);
    row.first_written = new_refs(subset, lb_op_written(subset->in, op), op->written);
    take(subset, lb_program_add_op(subset->out, &row));
}

static void put_source(subset *subset, const lb_op *op, uint32_t value)
{
    if (!subset->needed[value]) return;
    lb_op row = {.name = take(subset, lb_program_string(subset->out, "lb::source")),
                 .scope = new_scope(subset, op->scope),
                 .call = op->call,
                 .results = 1,
                 .node_name = LB_NONE,
                 .node = -1,
                 .phase = op->phase,
                 .thread = op->thread};
    row.first_result = new_refs(subset, &value, 1);
    row.first_arg = subset->out->n_args, row.first_written = subset->out->n_refs;
    take(subset, lb_program_add_op(subset->out, &row));
}

static void each_result(const lb_program *program, const lb_op *op, void (*visit)(subset *, const lb_op *, uint32_t),
                        subset *x)
{
    for (uint32_t r = 0; r < op->results; r++)
        if (lb_op_results(program, op)[r] != LB_NONE) visit(x, op, lb_op_results(program, op)[r]);
    for (uint32_t r = 0; r < op->written; r++) {
        uint32_t value = lb_op_written(program, op)[r];
        bool twice = value == LB_NONE;
        for (uint32_t k = 0; k < op->results; k++) twice |= lb_op_results(program, op)[k] == value;
        if (!twice) visit(x, op, value);
    }
}

/* ---- what is needed ---------------------------------------------------------------------------------------------- */

typedef struct reading {
    const lb_program *program;
    int64_t *storages;
    uint32_t n;
    bool failed;
} reading;

static void note_storage(void *context, uint32_t value)
{
    reading *reading = context;
    int64_t *more = lb_array_grow(reading->storages, reading->n, sizeof *more);
    if (!more) {
        reading->failed = true;
        return;
    }
    reading->storages = more;
    reading->storages[reading->n++] = reading->program->values[value].storage;
}

lb_status lb_program_subset_needs(const lb_program *program, const uint8_t *fates, int64_t wanted, uint8_t *needed,
                                  lb_err *err)
{
    reading reading = {.program = program};
    memset(needed, 0, program->n_values);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (fates[i] == LB_PROGRAM_SUBSET_KEEP) lb_op_each_input(program, &program->ops[i], note_storage, &reading);
        if (fates[i] >= LB_PROGRAM_SUBSET_PASS)
            note_storage(&reading, lb_op_args(program, &program->ops[i])[fates[i] - LB_PROGRAM_SUBSET_PASS].u.value);
    }
    if (reading.failed) {
        free(reading.storages);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subset of %u ops", program->n_ops);
    }
    if (reading.n) qsort(reading.storages, reading.n, sizeof *reading.storages, lb_by_i64);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        for (uint32_t k = 0; k < op->results + op->written && fates[i] != LB_PROGRAM_SUBSET_DROP; k++) {
            uint32_t v = lb_op_outcome(program, op, k);
            if (v == LB_NONE) continue;
            bool stands_in = fates[i] == LB_PROGRAM_SUBSET_SOURCE || fates[i] == LB_PROGRAM_SUBSET_CARRIED;
            needed[v] |= !stands_in || program->values[v].storage == wanted ||
                         (reading.n && bsearch(&program->values[v].storage, reading.storages, reading.n,
                                               sizeof *reading.storages, lb_by_i64));
        }
    }
    free(reading.storages);
    return LB_OK;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static void note_source(subset *subset, const lb_op *op, uint32_t value)
{
    subset->stands_in[value] = subset->fates[op - subset->in->ops];
}

/* The value that a passed op hands on. */
static uint32_t passed(const subset *subset, uint32_t i)
{
    return lb_op_args(subset->in, &subset->in->ops[i])[subset->fates[i] - LB_PROGRAM_SUBSET_PASS].u.value;
}

static void put_copy(subset *subset, uint32_t i)
{
    lb_op row = subset->in->ops[i];
    lb_arg args[2] = {{.tag = LB_ARG_VALUE, .u.value = new_value(subset, passed(subset, i))}, {.tag = LB_ARG_NONE}};
    row.name = take(subset, lb_program_string(subset->out, "aten::clone"));
    row.node_name = new_string(subset, row.node_name);
    row.line = take(subset, lb_program_copy_line(subset->out, subset->in, row.line));
    row.scope = new_scope(subset, row.scope);
    row.args = 2, row.first_arg = take(subset, lb_program_add_args(subset->out, args, 2));
    row.first_result = new_refs(subset, lb_op_results(subset->in, &subset->in->ops[i]), row.results);
    row.first_written = subset->out->n_refs;
    take(subset, lb_program_add_op(subset->out, &row));
}

static void note_read(void *context, uint32_t value)
{
    ((subset *)context)->read[value] = 1;
}

static bool view_is_read(const subset *subset, const lb_op *op)
{
    bool read = false;
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t value = lb_op_results(subset->in, op)[r];
        read |= value != LB_NONE && subset->read[value];
    }
    return read;
}

static void put_ops(subset *subset)
{
    const lb_program *program = subset->in;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (subset->fates[i] == LB_PROGRAM_SUBSET_KEEP)
            lb_op_each_input(program, &program->ops[i], note_read, subset);
        else if (subset->fates[i] >= LB_PROGRAM_SUBSET_PASS)
            note_read(subset, passed(subset, i));
        else if (subset->fates[i] != LB_PROGRAM_SUBSET_DROP)
            each_result(program, &program->ops[i], note_source, subset);
    }
    for (uint32_t i = 0; i < program->n_ops && !subset->failed; i++) {
        const lb_op *op = &program->ops[i];
        subset->position[i] = subset->out->n_ops;
        if (subset->fates[i] == LB_PROGRAM_SUBSET_KEEP)
            put_op(subset, op);
        else if (subset->fates[i] >= LB_PROGRAM_SUBSET_PASS)
            put_copy(subset, i);
        else if (subset->fates[i] != LB_PROGRAM_SUBSET_DROP)
            each_result(program, op, put_source, subset);
        else if (op->flags & LB_OP_VIEW && view_is_read(subset, op))
            put_op(subset, op);
    }
    subset->position[program->n_ops] = subset->out->n_ops;
}

static bool storage_used(const subset *subset, int64_t storage)
{
    for (uint32_t v = 0; v < subset->out->n_values; v++)
        if (subset->out->values[v].storage == storage) return true;
    return false;
}

/* The module that owns a parameter may have run nothing that is kept; its path is how the parameter is spoken of. */
static void put_owner(subset *subset, const char *name)
{
    new_scope(subset, lb_program_owner(subset->in, name));
}

static void put_group(subset *subset, lb_group group)
{
    const lb_program *program = subset->in;
    uint32_t first = subset->position[group.first_op], last = subset->position[group.first_op + group.ops];
    uint32_t first_param = subset->out->n_group_params, first_option = subset->out->n_scalars, params = 0;
    for (uint32_t i = 0; i < group.params; i++) {
        lb_group_param param = program->group_params[group.first_param + i];
        if (!storage_used(subset, param.storage) && !storage_used(subset, param.gradient)) continue;
        put_owner(subset, lb_program_text(program, param.name));
        param.name = new_string(subset, param.name);
        take(subset, lb_program_add_group_param(subset->out, &param));
        params++;
    }
    for (uint32_t i = 0; i < group.options; i++) {
        lb_scalar option = program->scalars[group.first_option + i];
        option.name = new_string(subset, option.name), option.op = subset->position[option.op];
        take(subset, lb_program_add_scalar(subset->out, &option));
    }
    group.optimizer = new_string(subset, group.optimizer);
    group.first_op = first, group.ops = last - first;
    group.first_param = first_param, group.params = params, group.first_option = first_option;
    take(subset, lb_program_add_group(subset->out, &group));
}

/* Parameter groups tell Muon and AdamW; boundaries tell outputs and residuals. */
static void put_tables(subset *subset)
{
    const lb_program *program = subset->in;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        lb_boundary row = program->boundaries[i];
        if (subset->values[row.value] == LB_NONE) continue;
        row.scope = new_scope(subset, row.scope), row.value = new_value(subset, row.value),
        row.op = subset->position[row.op];
        take(subset, lb_program_add_boundary(subset->out, &row));
    }
    bool stepped = false; /* a group that did nothing here still tells its learning rate to those that did */
    for (uint32_t g = 0; g < program->n_groups; g++)
        stepped |= subset->position[program->groups[g].first_op] <
                   subset->position[program->groups[g].first_op + program->groups[g].ops];
    for (uint32_t g = 0; g < program->n_groups && stepped; g++) put_group(subset, program->groups[g]);
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        lb_collective row = program->collectives[i];
        if (subset->fates[row.op] != LB_PROGRAM_SUBSET_KEEP) continue;
        row.op = subset->position[row.op];
        row.group = new_string(subset, row.group), row.reduce = new_string(subset, row.reduce);
        row.algorithm = new_string(subset, row.algorithm);
        row.first_rank = take(subset, lb_program_add_refs(subset->out, program->refs + row.first_rank, row.ranks));
        take(subset, lb_program_add_collective(subset->out, &row));
    }
    for (uint32_t i = 0; i < program->n_shards; i++) {
        const lb_shard *row = &program->shards[i];
        if (subset->values[row->value] != LB_NONE)
            take(subset, lb_program_copy_shard(subset->out, program, row, new_value(subset, row->value)));
    }
    lb_program_sort_shards(subset->out);
}

lb_status lb_program_subset(const lb_program *program, const uint8_t *fates, const uint8_t *needed,
                            const lb_digest *logical, const lb_digest *blob, lb_program **out, lb_err *err)
{
    subset subset = {
        .in = program, .out = lb_program_new(), .fates = fates, .needed = needed, .logical = logical, .blob = blob};
    subset.values = malloc((program->n_values + 1) * sizeof *subset.values);
    subset.scopes = malloc((program->n_scopes + 1) * sizeof *subset.scopes);
    subset.position = malloc(((size_t)program->n_ops + 1) * sizeof *subset.position);
    subset.read = calloc(program->n_values + 1, 1);
    subset.stands_in = calloc(program->n_values + 1, 1);
    subset.failed =
        !subset.out || !subset.values || !subset.scopes || !subset.position || !subset.read || !subset.stands_in;
    if (!subset.failed) {
        memset(subset.values, 0xff, (program->n_values + 1) * sizeof *subset.values);
        memset(subset.scopes, 0xff, (program->n_scopes + 1) * sizeof *subset.scopes);
        subset.out->step = program->step, subset.out->rank = program->rank, subset.out->world = program->world;
        subset.out->level = 1, subset.out->complete = 1;
        subset.out->shard = new_string(&subset, program->shard);
        put_ops(&subset);
    }
    if (!subset.failed) put_tables(&subset);
    free(subset.values);
    free(subset.scopes);
    free(subset.position);
    free(subset.read);
    free(subset.stands_in);
    if (subset.failed) {
        lb_program_free(subset.out);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subset of %u ops", program->n_ops);
    }
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_program_validate(subset.out, &why);
    LB_CHECK(status == LB_OK || status == LB_ERR_NOMEM);
    if (status != LB_OK) {
        lb_program_free(subset.out);
        return lb_fail(err, status, "%s", why.message);
    }
    *out = subset.out;
    return LB_OK;
}
