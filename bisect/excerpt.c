/* Excerpts: see excerpt.h. Rows are taken over when something names them first. */
#include "excerpt.h"

#include <stdlib.h>
#include <string.h>

typedef struct excerpt {
    const lb_program *in;
    lb_program *out;
    const uint8_t *fates;
    const lb_digest *logical, *blob;
    uint32_t *values, *scopes, *position; /* new rows; position: new ops before each op */
    uint8_t *read;                        /* per value: a kept op reads it */
    uint8_t *stands_in;                   /* per value: result of a SOURCE op */
    bool failed;
} excerpt;

static uint32_t take(excerpt *x, uint32_t row)
{
    if (row == LB_NONE) x->failed = true;
    return row;
}

static uint32_t new_string(excerpt *x, uint32_t string)
{
    return string == LB_NONE ? LB_NONE : take(x, lb_program_string(x->out, lb_program_text(x->in, string)));
}

static uint32_t new_scope(excerpt *x, uint32_t scope)
{
    if (scope == LB_NONE || scope == 0) return scope;
    if (x->scopes[scope] != LB_NONE) return x->scopes[scope];
    const lb_scope *row = &x->in->scopes[scope];
    uint32_t parent = new_scope(x, row->parent);
    const char *class_name = row->class_name == LB_NONE ? NULL : lb_program_text(x->in, row->class_name);
    return x->scopes[scope] =
               take(x, lb_program_scope(x->out, lb_program_text(x->in, row->path), class_name, parent));
}

static uint32_t new_value(excerpt *x, uint32_t value)
{
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
        if (x->stands_in[value] == LB_EXCERPT_CARRIED) row.source = LB_SOURCE_CARRIED;
    }
    return x->values[value] = take(x, lb_program_add_value(x->out, &row));
}

static uint32_t new_args(excerpt *x, const lb_arg *args, uint32_t count)
{
    lb_arg *copy = malloc((count + 1) * sizeof *copy);
    if (!copy) {
        x->failed = true;
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        copy[i] = args[i];
        if (args[i].tag == LB_ARG_VALUE)
            copy[i].u.value = new_value(x, args[i].u.value);
        else if (args[i].tag == LB_ARG_STRING)
            copy[i].u.string = new_string(x, args[i].u.string);
        else if (args[i].tag == LB_ARG_LIST || args[i].tag == LB_ARG_COMPLEX)
            copy[i].u.first = args[i].count ? new_args(x, x->in->args + args[i].u.first, args[i].count) : 0;
    }
    uint32_t first = take(x, lb_program_add_args(x->out, copy, count));
    free(copy);
    return first;
}

static uint32_t new_refs(excerpt *x, const uint32_t *refs, uint32_t count)
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

static void put_op(excerpt *x, const lb_op *op)
{
    lb_op row = *op;
    row.name = new_string(x, op->name);
    row.node_name = new_string(x, op->node_name);
    row.scope = new_scope(x, op->scope);
    row.first_arg = new_args(x, lb_op_args(x->in, op), op->args);
    row.first_result = new_refs(x, lb_op_results(x->in, op), op->results);
    row.first_written = new_refs(x, lb_op_written(x->in, op), op->written);
    take(x, lb_program_add_op(x->out, &row));
}

static void put_source(excerpt *x, const lb_op *op, uint32_t value)
{
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

static void each_result(const lb_program *p, const lb_op *op, void (*visit)(excerpt *, const lb_op *, uint32_t),
                        excerpt *x)
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

static void note_source(excerpt *x, const lb_op *op, uint32_t value)
{
    x->stands_in[value] = x->fates[op - x->in->ops];
}

static void note_read(void *context, uint32_t value)
{
    ((excerpt *)context)->read[value] = 1;
}

static bool view_is_read(const excerpt *x, const lb_op *op)
{
    bool read = false;
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t value = lb_op_results(x->in, op)[r];
        read |= value != LB_NONE && x->read[value];
    }
    return read;
}

static void put_ops(excerpt *x)
{
    const lb_program *p = x->in;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (x->fates[i] == LB_EXCERPT_KEEP)
            lb_op_each_input(p, &p->ops[i], note_read, x);
        else if (x->fates[i] != LB_EXCERPT_DROP)
            each_result(p, &p->ops[i], note_source, x);
    }
    for (uint32_t i = 0; i < p->n_ops && !x->failed; i++) {
        const lb_op *op = &p->ops[i];
        x->position[i] = x->out->n_ops;
        if (x->fates[i] == LB_EXCERPT_KEEP)
            put_op(x, op);
        else if (x->fates[i] != LB_EXCERPT_DROP)
            each_result(p, op, put_source, x);
        else if (op->flags & LB_OP_VIEW && view_is_read(x, op))
            put_op(x, op);
    }
    x->position[p->n_ops] = x->out->n_ops;
}

/* Parameter groups tell Muon and AdamW; boundaries tell outputs and residuals. */
static void put_tables(excerpt *x)
{
    const lb_program *p = x->in;
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        lb_boundary row = p->boundaries[i];
        if (x->values[row.value] == LB_NONE) continue;
        row.scope = new_scope(x, row.scope), row.value = new_value(x, row.value), row.op = x->position[row.op];
        take(x, lb_program_add_boundary(x->out, &row));
    }
    for (uint32_t g = 0; g < p->n_groups; g++) {
        lb_group group = p->groups[g];
        uint32_t first = x->position[group.first_op], last = x->position[group.first_op + group.ops];
        if (first == last) continue;
        group.optimizer = new_string(x, group.optimizer);
        group.first_op = first, group.ops = last - first;
        uint32_t first_param = x->out->n_group_params, first_option = x->out->n_scalars;
        for (uint32_t i = 0; i < group.params; i++) {
            lb_group_param param = p->group_params[group.first_param + i];
            param.name = new_string(x, param.name);
            take(x, lb_program_add_group_param(x->out, &param));
        }
        for (uint32_t i = 0; i < group.options; i++) {
            lb_scalar option = p->scalars[group.first_option + i];
            option.name = new_string(x, option.name), option.op = x->position[option.op];
            take(x, lb_program_add_scalar(x->out, &option));
        }
        group.first_param = first_param, group.first_option = first_option;
        take(x, lb_program_add_group(x->out, &group));
    }
    for (uint32_t i = 0; i < p->n_collectives; i++) {
        lb_collective row = p->collectives[i];
        if (x->fates[row.op] != LB_EXCERPT_KEEP) continue;
        row.op = x->position[row.op];
        row.group = new_string(x, row.group), row.reduce = new_string(x, row.reduce);
        row.algorithm = new_string(x, row.algorithm);
        row.first_rank = take(x, lb_program_add_refs(x->out, p->refs + row.first_rank, row.ranks));
        take(x, lb_program_add_collective(x->out, &row));
    }
}

lb_status lb_excerpt(const lb_program *program, const uint8_t *fates, const lb_digest *logical,
                     const lb_digest *blob, lb_program **out, lb_err *err)
{
    excerpt x = {.in = program, .out = lb_program_new(), .fates = fates, .logical = logical, .blob = blob};
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
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for an excerpt of %u ops", program->n_ops);
    }
    lb_err why = LB_ERR_INIT;
    LB_CHECK(lb_program_validate(x.out, &why) == LB_OK);
    *out = x.out;
    return LB_OK;
}
