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

static uint32_t take(subset *x, uint32_t row)
{
    if (row == LB_NONE) x->failed = true;
    return row;
}

static uint32_t new_string(void *context, uint32_t string)
{
    subset *x = context;
    return string == LB_NONE ? LB_NONE : take(x, lb_program_string(x->out, lb_program_text(x->in, string)));
}

static uint32_t new_scope(subset *x, uint32_t scope)
{
    if (scope == LB_NONE || scope == 0) return scope;
    if (x->scopes[scope] != LB_NONE) return x->scopes[scope];
    const lb_scope *row = &x->in->scopes[scope];
    uint32_t parent = new_scope(x, row->parent);
    const char *class_name = row->class_name == LB_NONE ? NULL : lb_program_text(x->in, row->class_name);
    return x->scopes[scope] = take(x, lb_program_scope(x->out, lb_program_text(x->in, row->path), class_name, parent));
}

static uint32_t new_value(void *context, uint32_t value)
{
    subset *x = context;
    if (value == LB_NONE) return LB_NONE;
    if (x->values[value] != LB_NONE) return x->values[value];
    lb_value row = x->in->values[value];
    row.name = new_string(x, row.name);
    row.statistics = LB_NONE;
    row.logical = x->logical[value], row.blob = x->blob[value];
    row.flags &= ~(uint32_t)(LB_VALUE_KEPT | LB_VALUE_SOURCE);
    row.source = LB_SOURCE_NOT;
    if (x->stands_in[value]) {
        row.flags |= LB_VALUE_SOURCE;
        if (!lb_digest_is_none(row.blob)) row.flags |= LB_VALUE_KEPT;
        lb_source_kind was = x->in->values[value].source;
        row.source = was == LB_SOURCE_NOT || was == LB_SOURCE_CARRIED ? LB_SOURCE_OTHER : was;
        if (x->stands_in[value] == LB_PROGRAM_SUBSET_CARRIED) row.source = LB_SOURCE_CARRIED;
    } else if (!lb_digest_is_none(row.blob))
        row.flags |= LB_VALUE_KEPT;
    return x->values[value] = take(x, lb_program_add_value(x->out, &row));
}

static uint32_t new_refs(subset *x, const uint32_t *refs, uint32_t count)
{
    uint32_t *copy = malloc((count + 1) * sizeof *copy);
    if (!copy) {
        x->failed = true;
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) copy[i] = new_value(x, refs[i]);
    uint32_t first = take(x, lb_program_add_refs(x->out, copy, count));
    free(copy);
    return first;
}

static void put_op(subset *x, const lb_op *op)
{
    lb_op row = *op;
    row.name = new_string(x, op->name);
    row.node_name = new_string(x, op->node_name);
    row.line = take(x, lb_program_copy_line(x->out, x->in, op->line));
    row.scope = new_scope(x, op->scope);
    row.first_arg = take(x, lb_program_copy_args(x->out, x->in, lb_op_args(x->in, op), op->args,
                                                 &(lb_arg_rename){new_value, new_string, x}));
    row.first_result = new_refs(x, lb_op_results(x->in, op), op->results);
    row.first_written = new_refs(x, lb_op_written(x->in, op), op->written);
    take(x, lb_program_add_op(x->out, &row));
}

static void put_source(subset *x, const lb_op *op, uint32_t value)
{
    if (!x->needed[value]) return;
    lb_op row = {.name = take(x, lb_program_string(x->out, "lb::source")),
                 .scope = new_scope(x, op->scope),
                 .call = op->call,
                 .results = 1,
                 .node_name = LB_NONE,
                 .node = -1,
                 .phase = op->phase,
                 .thread = op->thread};
    row.first_result = new_refs(x, &value, 1);
    row.first_arg = x->out->n_args, row.first_written = x->out->n_refs;
    take(x, lb_program_add_op(x->out, &row));
}

static void each_result(const lb_program *p, const lb_op *op, void (*visit)(subset *, const lb_op *, uint32_t),
                        subset *x)
{
    for (uint32_t r = 0; r < op->results; r++)
        if (lb_op_results(p, op)[r] != LB_NONE) visit(x, op, lb_op_results(p, op)[r]);
    for (uint32_t r = 0; r < op->written; r++) {
        uint32_t value = lb_op_written(p, op)[r];
        bool twice = value == LB_NONE;
        for (uint32_t k = 0; k < op->results; k++) twice |= lb_op_results(p, op)[k] == value;
        if (!twice) visit(x, op, value);
    }
}

/* ---- what is needed ---------------------------------------------------------------------------------------------- */

typedef struct reading {
    const lb_program *p;
    int64_t *storages;
    uint32_t n;
    bool failed;
} reading;

static void note_storage(void *context, uint32_t value)
{
    reading *r = context;
    int64_t *more = lb_array_grow(r->storages, r->n, sizeof *more);
    if (!more) {
        r->failed = true;
        return;
    }
    r->storages = more;
    r->storages[r->n++] = r->p->values[value].storage;
}

lb_status lb_program_subset_needs(const lb_program *p, const uint8_t *fates, int64_t wanted, uint8_t *needed,
                                  lb_err *err)
{
    reading r = {.p = p};
    memset(needed, 0, p->n_values);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (fates[i] == LB_PROGRAM_SUBSET_KEEP) lb_op_each_input(p, &p->ops[i], note_storage, &r);
        if (fates[i] >= LB_PROGRAM_SUBSET_PASS)
            note_storage(&r, lb_op_args(p, &p->ops[i])[fates[i] - LB_PROGRAM_SUBSET_PASS].u.value);
    }
    if (r.failed) {
        free(r.storages);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subset of %u ops", p->n_ops);
    }
    if (r.n) qsort(r.storages, r.n, sizeof *r.storages, lb_by_i64);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->results + op->written && fates[i] != LB_PROGRAM_SUBSET_DROP; k++) {
            uint32_t v = lb_op_outcome(p, op, k);
            if (v == LB_NONE) continue;
            bool stands_in = fates[i] == LB_PROGRAM_SUBSET_SOURCE || fates[i] == LB_PROGRAM_SUBSET_CARRIED;
            needed[v] |= !stands_in || p->values[v].storage == wanted ||
                         (r.n && bsearch(&p->values[v].storage, r.storages, r.n, sizeof *r.storages, lb_by_i64));
        }
    }
    free(r.storages);
    return LB_OK;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static void note_source(subset *x, const lb_op *op, uint32_t value)
{
    x->stands_in[value] = x->fates[op - x->in->ops];
}

/* The value that a passed op hands on. */
static uint32_t passed(const subset *x, uint32_t i)
{
    return lb_op_args(x->in, &x->in->ops[i])[x->fates[i] - LB_PROGRAM_SUBSET_PASS].u.value;
}

static void put_copy(subset *x, uint32_t i)
{
    lb_op row = x->in->ops[i];
    lb_arg args[2] = {{.tag = LB_ARG_VALUE, .u.value = new_value(x, passed(x, i))}, {.tag = LB_ARG_NONE}};
    row.name = take(x, lb_program_string(x->out, "aten::clone"));
    row.node_name = new_string(x, row.node_name);
    row.line = take(x, lb_program_copy_line(x->out, x->in, row.line));
    row.scope = new_scope(x, row.scope);
    row.args = 2, row.first_arg = take(x, lb_program_add_args(x->out, args, 2));
    row.first_result = new_refs(x, lb_op_results(x->in, &x->in->ops[i]), row.results);
    row.first_written = x->out->n_refs;
    take(x, lb_program_add_op(x->out, &row));
}

static void note_read(void *context, uint32_t value)
{
    ((subset *)context)->read[value] = 1;
}

static bool view_is_read(const subset *x, const lb_op *op)
{
    bool read = false;
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t value = lb_op_results(x->in, op)[r];
        read |= value != LB_NONE && x->read[value];
    }
    return read;
}

static void put_ops(subset *x)
{
    const lb_program *p = x->in;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (x->fates[i] == LB_PROGRAM_SUBSET_KEEP)
            lb_op_each_input(p, &p->ops[i], note_read, x);
        else if (x->fates[i] >= LB_PROGRAM_SUBSET_PASS)
            note_read(x, passed(x, i));
        else if (x->fates[i] != LB_PROGRAM_SUBSET_DROP)
            each_result(p, &p->ops[i], note_source, x);
    }
    for (uint32_t i = 0; i < p->n_ops && !x->failed; i++) {
        const lb_op *op = &p->ops[i];
        x->position[i] = x->out->n_ops;
        if (x->fates[i] == LB_PROGRAM_SUBSET_KEEP)
            put_op(x, op);
        else if (x->fates[i] >= LB_PROGRAM_SUBSET_PASS)
            put_copy(x, i);
        else if (x->fates[i] != LB_PROGRAM_SUBSET_DROP)
            each_result(p, op, put_source, x);
        else if (op->flags & LB_OP_VIEW && view_is_read(x, op))
            put_op(x, op);
    }
    x->position[p->n_ops] = x->out->n_ops;
}

static bool storage_used(const subset *x, int64_t storage)
{
    for (uint32_t v = 0; v < x->out->n_values; v++)
        if (x->out->values[v].storage == storage) return true;
    return false;
}

/* The module that owns a parameter may have run nothing that is kept; its path is how the parameter is spoken of. */
static void put_owner(subset *x, const char *name)
{
    new_scope(x, lb_program_owner(x->in, name));
}

static void put_group(subset *x, lb_group group)
{
    const lb_program *p = x->in;
    uint32_t first = x->position[group.first_op], last = x->position[group.first_op + group.ops];
    uint32_t first_param = x->out->n_group_params, first_option = x->out->n_scalars, params = 0;
    for (uint32_t i = 0; i < group.params; i++) {
        lb_group_param param = p->group_params[group.first_param + i];
        if (!storage_used(x, param.storage) && !storage_used(x, param.gradient)) continue;
        put_owner(x, lb_program_text(p, param.name));
        param.name = new_string(x, param.name);
        take(x, lb_program_add_group_param(x->out, &param));
        params++;
    }
    for (uint32_t i = 0; i < group.options; i++) {
        lb_scalar option = p->scalars[group.first_option + i];
        option.name = new_string(x, option.name), option.op = x->position[option.op];
        take(x, lb_program_add_scalar(x->out, &option));
    }
    group.optimizer = new_string(x, group.optimizer);
    group.first_op = first, group.ops = last - first;
    group.first_param = first_param, group.params = params, group.first_option = first_option;
    take(x, lb_program_add_group(x->out, &group));
}

/* Parameter groups tell Muon and AdamW; boundaries tell outputs and residuals. */
static void put_tables(subset *x)
{
    const lb_program *p = x->in;
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        lb_boundary row = p->boundaries[i];
        if (x->values[row.value] == LB_NONE) continue;
        row.scope = new_scope(x, row.scope), row.value = new_value(x, row.value), row.op = x->position[row.op];
        take(x, lb_program_add_boundary(x->out, &row));
    }
    bool stepped = false; /* a group that did nothing here still tells its learning rate to those that did */
    for (uint32_t g = 0; g < p->n_groups; g++)
        stepped |= x->position[p->groups[g].first_op] < x->position[p->groups[g].first_op + p->groups[g].ops];
    for (uint32_t g = 0; g < p->n_groups && stepped; g++) put_group(x, p->groups[g]);
    for (uint32_t i = 0; i < p->n_collectives; i++) {
        lb_collective row = p->collectives[i];
        if (x->fates[row.op] != LB_PROGRAM_SUBSET_KEEP) continue;
        row.op = x->position[row.op];
        row.group = new_string(x, row.group), row.reduce = new_string(x, row.reduce);
        row.algorithm = new_string(x, row.algorithm);
        row.first_rank = take(x, lb_program_add_refs(x->out, p->refs + row.first_rank, row.ranks));
        take(x, lb_program_add_collective(x->out, &row));
    }
    for (uint32_t i = 0; i < p->n_shards; i++) {
        const lb_shard *row = &p->shards[i];
        if (x->values[row->value] != LB_NONE) take(x, lb_program_copy_shard(x->out, p, row, new_value(x, row->value)));
    }
    lb_program_sort_shards(x->out);
}

lb_status lb_program_subset(const lb_program *program, const uint8_t *fates, const uint8_t *needed,
                            const lb_digest *logical, const lb_digest *blob, lb_program **out, lb_err *err)
{
    subset x = {
        .in = program, .out = lb_program_new(), .fates = fates, .needed = needed, .logical = logical, .blob = blob};
    x.values = malloc((program->n_values + 1) * sizeof *x.values);
    x.scopes = malloc((program->n_scopes + 1) * sizeof *x.scopes);
    x.position = malloc(((size_t)program->n_ops + 1) * sizeof *x.position);
    x.read = calloc(program->n_values + 1, 1);
    x.stands_in = calloc(program->n_values + 1, 1);
    x.failed = !x.out || !x.values || !x.scopes || !x.position || !x.read || !x.stands_in;
    if (!x.failed) {
        memset(x.values, 0xff, (program->n_values + 1) * sizeof *x.values);
        memset(x.scopes, 0xff, (program->n_scopes + 1) * sizeof *x.scopes);
        x.out->step = program->step, x.out->rank = program->rank, x.out->world = program->world;
        x.out->level = 1, x.out->complete = 1;
        x.out->shard = new_string(&x, program->shard);
        put_ops(&x);
    }
    if (!x.failed) put_tables(&x);
    free(x.values);
    free(x.scopes);
    free(x.position);
    free(x.read);
    free(x.stands_in);
    if (x.failed) {
        lb_program_free(x.out);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subset of %u ops", program->n_ops);
    }
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_program_validate(x.out, &why);
    LB_CHECK(status == LB_OK || status == LB_ERR_NOMEM);
    if (status != LB_OK) {
        lb_program_free(x.out);
        return lb_fail(err, status, "%s", why.message);
    }
    *out = x.out;
    return LB_OK;
}
