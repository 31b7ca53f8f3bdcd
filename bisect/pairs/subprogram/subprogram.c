/* Making the programs of a subprogram: see subprogram.h. subprogram_run.c runs them. */
#include "pair/collective_match.h"
#include "program/copier.h"
#include "subprogram/rank_program.h"

#include <stdlib.h>
#include <string.h>

typedef struct builder {
    const lb_program *in;
    lb_program *out;
    const lb_subprogram_parts *parts;
    const lb_rank_rows *rows;
    lb_copier copier; /* from `in` to `out` */
    uint8_t *loaded;  /* per leaf: its source stands; a leaf is of one rank */
    uint32_t part;    /* of `parts->ranks`: which rank's ops these are */
} builder;

static uint32_t checked(builder *builder, uint32_t row)
{
    return lb_copier_check(&builder->copier, row);
}

static uint32_t leaf_row(const builder *builder, uint32_t value)
{
    uint32_t n;
    const lb_keyed_row *leaf = lb_keyed_rows_of(&builder->rows->leaf_of_value, value, &n);
    return n ? leaf->row : LB_NONE;
}

/* What a recipe calls a weight: the contents of a parameter's storage, whatever view of it is read. Storages are those
 * of one rank, whose values stand beside each other. */
static bool is_parameter(const builder *builder, uint32_t value)
{
    const lb_program *program = builder->in;
    const lb_program_view *ranks = builder->parts->ranks;
    const uint32_t part = ranks ? lb_program_view_part_of_value(ranks, value) : 0;
    const uint32_t first = ranks ? ranks->parts[part].first_value : 0;
    const uint32_t end = ranks && part + 1 < ranks->n_parts ? ranks->parts[part + 1].first_value : program->n_values;
    for (uint32_t v = first; v < end; v++)
        if (program->values[v].storage == program->values[value].storage &&
            (program->values[v].flags & LB_VALUE_PARAMETER || program->values[v].source == LB_SOURCE_PARAMETER))
            return true;
    return false;
}

/* Values of other shapes than recorded lie in storages of their own. */
static void reshape(builder *builder, uint32_t value, lb_value *row)
{
    static const int64_t fresh = INT64_MAX / 4;
    const lb_layout *given = NULL;
    uint32_t n;
    const lb_keyed_row *output = lb_keyed_rows_of(&builder->rows->output_of_value, value, &n);
    if (builder->parts->output_layouts && n) given = &builder->parts->output_layouts[output[n - 1].row];
    if (builder->parts->leaf_layouts && leaf_row(builder, value) != LB_NONE)
        given = &builder->parts->leaf_layouts[leaf_row(builder, value)];
    if (given && given->ndim >= 0)
        row->layout = *given, row->storage = fresh + (int64_t)builder->out->n_values, row->version = 0;
}

/* Nothing recorded goes along, but that some bytes were never written. */
static void change(void *context, uint32_t value, lb_value *row)
{
    builder *builder = context;
    row->name = row->statistics = LB_NONE;
    row->logical = row->blob = (lb_digest){0};
    row->flags &= LB_VALUE_UNDEFINED;
    row->source = LB_SOURCE_NOT;
    reshape(builder, value, row);
    if (leaf_row(builder, value) == LB_NONE) return;
    const bool weight = is_parameter(builder, value);
    row->flags = LB_VALUE_SOURCE | (weight ? LB_VALUE_PARAMETER : 0);
    row->source = weight ? LB_SOURCE_PARAMETER : LB_SOURCE_OTHER;
}

static lb_op plain_op(builder *builder, const char *name)
{
    return (lb_op){.name = checked(builder, lb_program_string(builder->out, name)),
                   .first_arg = builder->out->n_args,
                   .first_written = builder->out->n_refs,
                   .node_name = LB_NONE,
                   .node = -1};
}

static void put_source(builder *builder, uint32_t row)
{
    lb_op op = plain_op(builder, "lb::source");
    builder->loaded[row] = 1;
    op.first_result = lb_copier_refs(&builder->copier, &builder->parts->leaves[row], 1), op.results = 1;
    op.first_written = builder->out->n_refs;
    checked(builder, lb_program_add_op(builder->out, &op));
}

/* Before `value` is read: the leaves that lie in its storage, for it may be a window of one. */
static void put_sources_of(void *context, uint32_t value)
{
    builder *builder = context;
    if (value == LB_NONE) return;
    uint32_t n;
    const lb_value *values = builder->in->values, *read = &values[value];
    const lb_keyed_row *leaf = lb_keyed_rows_of(&builder->rows->leaves_of_storage, read->storage, &n);
    for (uint32_t i = 0; i < n; i++)
        if (!builder->loaded[leaf[i].row] && values[builder->parts->leaves[leaf[i].row]].version <= read->version)
            put_source(builder, leaf[i].row);
}

/* Who meets at the op that comes next. */
static void put_collective(builder *builder, uint32_t op)
{
    const lb_program *program;
    const lb_collective *row = lb_collective_of_side(builder->parts->ranks, op, &program);
    if (!row) return;
    lb_collective copy = *row;
    const uint32_t *texts[] = {&row->group, &row->reduce, &row->algorithm};
    uint32_t *copies[] = {&copy.group, &copy.reduce, &copy.algorithm};
    for (int i = 0; i < 3; i++)
        if (*texts[i] != LB_NONE)
            *copies[i] = checked(builder, lb_program_string(builder->out, lb_program_text(program, *texts[i])));
    copy.op = builder->out->n_ops;
    copy.first_rank = checked(builder, lb_program_add_refs(builder->out, program->refs + row->first_rank, row->ranks));
    checked(builder, lb_program_add_collective(builder->out, &copy));
}

static void put_op(builder *builder, uint32_t at)
{
    const lb_op *op = &builder->in->ops[at];
    lb_op_each_input(builder->in, op, put_sources_of, builder);
    lb_op row = lb_copier_op(&builder->copier, op);
    row.line = checked(builder, lb_program_copy_line(builder->out, builder->in, op->line));
    row.flags &= ~(uint32_t)LB_OP_DECISION;
    if (op->flags & LB_OP_COLLECTIVE) put_collective(builder, at);
    checked(builder, lb_program_add_op(builder->out, &row));
}

/* What an op computed is told to the observer; what is only a view of it, or a leaf, through a copy. */
static uint32_t put_copy(builder *builder, uint32_t value)
{
    static const int64_t fresh = INT64_MAX / 2;
    put_sources_of(builder, value);
    lb_value row = builder->in->values[value];
    lb_arg arg = {.tag = LB_ARG_VALUE, .u.value = lb_copier_value(&builder->copier, value)};
    row.storage = fresh + (int64_t)builder->out->n_values, row.version = 0;
    row.layout = lb_layout_contiguous(row.layout.ndim, row.layout.shape);
    row.name = row.statistics = LB_NONE, row.flags = 0, row.source = LB_SOURCE_NOT;
    row.logical = row.blob = (lb_digest){0};
    uint32_t copied = checked(builder, lb_program_add_value(builder->out, &row));
    lb_op op = plain_op(builder, "lb::copy");
    op.first_arg = checked(builder, lb_program_add_args(builder->out, &arg, 1)), op.args = 1;
    op.first_result = checked(builder, lb_program_add_refs(builder->out, &copied, 1)), op.results = 1;
    op.first_written = builder->out->n_refs;
    checked(builder, lb_program_add_op(builder->out, &op));
    return copied;
}

static bool is_computed(const builder *builder, uint32_t value)
{
    uint32_t n;
    lb_keyed_rows_of(&builder->rows->computed, value, &n);
    return n > 0;
}

static void build(builder *builder, lb_subprogram *subprogram)
{
    const lb_subprogram_parts *parts = builder->parts;
    const uint32_t rank_program = subprogram->n_rank_programs, part = builder->part;
    lb_rank_program *made = &subprogram->rank_programs[rank_program];
    uint32_t n;
    builder->out->step = builder->in->step, builder->out->world = parts->ranks ? (int32_t)parts->ranks->n_parts : 1;
    builder->out->rank = parts->ranks ? parts->ranks->parts[part].program->rank : builder->in->rank;
    const lb_keyed_row *row = lb_keyed_rows_of(&subprogram->rows.ops, part, &n);
    for (uint32_t i = 0; i < n; i++) put_op(builder, parts->ops[row[i].row]);
    made->leaves = row = lb_keyed_rows_of(&subprogram->rows.leaves, part, &made->n_leaves);
    for (uint32_t i = 0; i < made->n_leaves; i++)
        subprogram->leaves[row[i].row] =
            (lb_spot){rank_program, lb_copier_value(&builder->copier, parts->leaves[row[i].row])};
    made->outputs = row = lb_keyed_rows_of(&subprogram->rows.outputs, part, &made->n_outputs);
    for (uint32_t i = 0; i < made->n_outputs; i++) {
        const uint32_t output = parts->outputs[row[i].row];
        subprogram->outputs[row[i].row] =
            (lb_spot){rank_program, is_computed(builder, output) ? lb_copier_value(&builder->copier, output)
                                                                 : put_copy(builder, output)};
    }
}

static lb_status make_rank_program(builder *builder, lb_subprogram *subprogram, lb_err *err)
{
    lb_rank_program *program = &subprogram->rank_programs[subprogram->n_rank_programs];
    builder->out = program->program = lb_program_new();
    builder->copier = (lb_copier){.from = builder->in, .to = builder->out, .change = change, .context = builder};
    if (builder->out) build(builder, subprogram);
    lb_copier_release(&builder->copier);
    builder->copier.failed |=
        !lb_keyed_rows_add(&subprogram->by_address, (int64_t)(intptr_t)builder->out, subprogram->n_rank_programs++);
    if (!builder->out || builder->copier.failed)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subprogram of %u ops", builder->parts->n_ops);
    LB_TRY(lb_program_validate(program->program, err));
    return lb_prepared_make(program->program, NULL, NULL, &program->prepared, err);
}

/* Has a rank anything to do with it? */
static bool takes_part(const lb_rank_rows *rows, uint32_t part)
{
    uint32_t ops, outputs;
    lb_keyed_rows_of(&rows->ops, part, &ops);
    lb_keyed_rows_of(&rows->outputs, part, &outputs);
    return ops || outputs;
}

static lb_status make_rank_programs(const lb_subprogram_parts *parts, lb_subprogram *subprogram, lb_err *err)
{
    builder builder = {.in = parts->program, .parts = parts, .rows = &subprogram->rows};
    builder.loaded = calloc(parts->n_leaves + 1, 1);
    lb_status status = LB_OK;
    if (!builder.loaded || !lb_rank_rows_sort(parts, &subprogram->rows))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a subprogram of %u ops", parts->n_ops);
    for (uint32_t part = 0; part < (parts->ranks ? parts->ranks->n_parts : 1) && status == LB_OK; part++) {
        builder.part = part;
        if (!parts->ranks || takes_part(&subprogram->rows, part)) status = make_rank_program(&builder, subprogram, err);
    }
    free(builder.loaded);
    return status;
}

lb_status lb_subprogram_new(const lb_subprogram_parts *parts, lb_subprogram **out, lb_err *err)
{
    *out = NULL;
    for (uint32_t i = 0; i < parts->n_ops && !parts->ranks; i++)
        if (parts->program->ops[parts->ops[i]].flags & LB_OP_COLLECTIVE)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "%s needs its other ranks",
                           lb_op_name(parts->program, &parts->program->ops[parts->ops[i]]));
    lb_subprogram *subprogram = calloc(1, sizeof *subprogram);
    if (!subprogram) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    subprogram->rank_programs = calloc(parts->ranks ? parts->ranks->n_parts : 1, sizeof *subprogram->rank_programs);
    subprogram->leaves = malloc((parts->n_leaves + 1) * sizeof *subprogram->leaves),
    subprogram->n_leaves = parts->n_leaves;
    subprogram->outputs = malloc((parts->n_outputs + 1) * sizeof *subprogram->outputs),
    subprogram->n_outputs = parts->n_outputs;
    lb_status status = LB_ERR_NOMEM;
    if (subprogram->leaves) memset(subprogram->leaves, 0xFF, parts->n_leaves * sizeof *subprogram->leaves);
    if (subprogram->rank_programs && subprogram->leaves && subprogram->outputs)
        status = make_rank_programs(parts, subprogram, err);
    lb_keyed_rows_sort(&subprogram->by_address);
    if (status == LB_OK)
        *out = subprogram;
    else
        lb_subprogram_free(subprogram);
    return status;
}

void lb_subprogram_free(lb_subprogram *subprogram)
{
    if (!subprogram) return;
    for (uint32_t i = 0; subprogram->rank_programs && i < subprogram->n_rank_programs; i++) {
        lb_prepared_free(subprogram->rank_programs[i].prepared);
        lb_program_free(subprogram->rank_programs[i].program);
    }
    free(subprogram->rank_programs), free(subprogram->leaves), free(subprogram->outputs);
    free(subprogram->by_address.list);
    lb_rank_rows_release(&subprogram->rows);
    free(subprogram);
}

const lb_program *lb_subprogram_program(const lb_subprogram *subprogram)
{
    return subprogram->n_rank_programs == 1 ? subprogram->rank_programs[0].program : NULL;
}
