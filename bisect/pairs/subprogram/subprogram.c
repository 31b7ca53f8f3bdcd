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
    lb_copier copier; /* from `in` to `out` */
    uint8_t *loaded;  /* per leaf: its source stands */
    uint32_t part;    /* of `parts->ranks`: which rank's ops these are */
} builder;

static uint32_t checked(builder *builder, uint32_t row)
{
    return lb_copier_check(&builder->copier, row);
}

static uint32_t leaf_row(const builder *builder, uint32_t value)
{
    for (uint32_t i = 0; i < builder->parts->n_leaves; i++)
        if (builder->parts->leaves[i] == value) return i;
    return LB_NONE;
}

static bool is_own_op(const builder *builder, uint32_t op)
{
    return !builder->parts->ranks || lb_program_view_part_of(builder->parts->ranks, op) == builder->part;
}

static bool is_own_value(const builder *builder, uint32_t value)
{
    uint32_t row;
    const lb_program_view *ranks = builder->parts->ranks;
    return !ranks || lb_program_view_recorded(ranks, value, &row) == ranks->parts[builder->part].program;
}

/* What a recipe calls a weight: the contents of a parameter's storage, whatever view of it is read. */
static bool is_parameter(const lb_program *program, uint32_t value)
{
    for (uint32_t v = 0; v < program->n_values; v++)
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
    for (uint32_t i = 0; builder->parts->output_layouts && i < builder->parts->n_outputs; i++)
        if (builder->parts->outputs[i] == value) given = &builder->parts->output_layouts[i];
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
    const bool weight = is_parameter(builder->in, value);
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
    for (uint32_t i = 0; value != LB_NONE && i < builder->parts->n_leaves; i++) {
        const lb_value *leaf = &builder->in->values[builder->parts->leaves[i]], *read = &builder->in->values[value];
        if (!builder->loaded[i] && leaf->storage == read->storage && leaf->version <= read->version)
            put_source(builder, i);
    }
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

static bool computed_by(const lb_subprogram_parts *parts, uint32_t value)
{
    for (uint32_t i = 0; i < parts->n_ops; i++) {
        const lb_op *op = &parts->program->ops[parts->ops[i]];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t k = 0; k < op->results + op->written; k++)
            if ((lb_op_outcome(parts->program, op, k)) == value) return true;
    }
    return false;
}

static void build(builder *builder, lb_subprogram *subprogram)
{
    const lb_subprogram_parts *parts = builder->parts;
    const uint32_t rank_program = subprogram->n_rank_programs;
    builder->out->step = builder->in->step, builder->out->world = parts->ranks ? (int32_t)parts->ranks->n_parts : 1;
    builder->out->rank = parts->ranks ? parts->ranks->parts[builder->part].program->rank : builder->in->rank;
    for (uint32_t i = 0; i < parts->n_ops; i++)
        if (is_own_op(builder, parts->ops[i])) put_op(builder, parts->ops[i]);
    for (uint32_t i = 0; i < parts->n_leaves; i++)
        if (is_own_value(builder, parts->leaves[i]))
            subprogram->leaves[i] = (lb_spot){rank_program, lb_copier_value(&builder->copier, parts->leaves[i])};
    for (uint32_t i = 0; i < parts->n_outputs; i++) {
        const uint32_t output = parts->outputs[i];
        if (!is_own_value(builder, output)) continue;
        subprogram->outputs[i] =
            (lb_spot){rank_program, computed_by(parts, output) ? lb_copier_value(&builder->copier, output)
                                                               : put_copy(builder, output)};
    }
}

static lb_status make_rank_program(const lb_subprogram_parts *parts, uint32_t part, lb_subprogram *subprogram,
                                   lb_err *err)
{
    lb_rank_program *program = &subprogram->rank_programs[subprogram->n_rank_programs];
    program->program = lb_program_new();
    builder builder = {.in = parts->program, .out = program->program, .parts = parts, .part = part};
    builder.copier = (lb_copier){.from = builder.in, .to = builder.out, .change = change, .context = &builder};
    builder.loaded = calloc(parts->n_leaves + 1, 1);
    const bool room = builder.out && builder.loaded;
    if (room) build(&builder, subprogram);
    lb_copier_release(&builder.copier), free(builder.loaded);
    subprogram->n_rank_programs++;
    if (!room || builder.copier.failed)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subprogram of %u ops", parts->n_ops);
    LB_TRY(lb_program_validate(program->program, err));
    return lb_prepared_make(program->program, NULL, NULL, &program->prepared, err);
}

/* Has a rank anything to do with it? */
static bool takes_part(const lb_subprogram_parts *parts, uint32_t part)
{
    const builder builder = {.parts = parts, .part = part};
    bool any = false;
    for (uint32_t i = 0; i < parts->n_ops && !any; i++) any = is_own_op(&builder, parts->ops[i]);
    for (uint32_t i = 0; i < parts->n_outputs && !any; i++) any = is_own_value(&builder, parts->outputs[i]);
    return any;
}

static lb_status make_rank_programs(const lb_subprogram_parts *parts, lb_subprogram *subprogram, lb_err *err)
{
    if (!parts->ranks) return make_rank_program(parts, 0, subprogram, err);
    for (uint32_t part = 0; part < parts->ranks->n_parts; part++)
        if (takes_part(parts, part)) LB_TRY(make_rank_program(parts, part, subprogram, err));
    return LB_OK;
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
    free(subprogram);
}

const lb_program *lb_subprogram_program(const lb_subprogram *subprogram)
{
    return subprogram->n_rank_programs == 1 ? subprogram->rank_programs[0].program : NULL;
}
