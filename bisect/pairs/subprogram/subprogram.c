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

static uint32_t checked(builder *b, uint32_t row)
{
    return lb_copier_check(&b->copier, row);
}

static uint32_t leaf_row(const builder *b, uint32_t value)
{
    for (uint32_t i = 0; i < b->parts->n_leaves; i++)
        if (b->parts->leaves[i] == value) return i;
    return LB_NONE;
}

static bool is_own_op(const builder *b, uint32_t op)
{
    return !b->parts->ranks || lb_program_view_part_of(b->parts->ranks, op) == b->part;
}

static bool is_own_value(const builder *b, uint32_t value)
{
    uint32_t row;
    const lb_program_view *ranks = b->parts->ranks;
    return !ranks || lb_program_view_recorded(ranks, value, &row) == ranks->parts[b->part].program;
}

/* What a recipe calls a weight: the contents of a parameter's storage, whatever view of it is read. */
static bool is_parameter(const lb_program *p, uint32_t value)
{
    for (uint32_t v = 0; v < p->n_values; v++)
        if (p->values[v].storage == p->values[value].storage &&
            (p->values[v].flags & LB_VALUE_PARAMETER || p->values[v].source == LB_SOURCE_PARAMETER))
            return true;
    return false;
}

/* Values of other shapes than recorded lie in storages of their own. */
static void reshape(builder *b, uint32_t value, lb_value *row)
{
    static const int64_t fresh = INT64_MAX / 4;
    const lb_layout *given = NULL;
    for (uint32_t i = 0; b->parts->output_layouts && i < b->parts->n_outputs; i++)
        if (b->parts->outputs[i] == value) given = &b->parts->output_layouts[i];
    if (b->parts->leaf_layouts && leaf_row(b, value) != LB_NONE) given = &b->parts->leaf_layouts[leaf_row(b, value)];
    if (given && given->ndim >= 0)
        row->layout = *given, row->storage = fresh + (int64_t)b->out->n_values, row->version = 0;
}

/* Nothing recorded goes along, but that some bytes were never written. */
static void change(void *context, uint32_t value, lb_value *row)
{
    builder *b = context;
    row->name = row->statistics = LB_NONE;
    row->logical = row->blob = (lb_digest){0};
    row->flags &= LB_VALUE_UNDEFINED;
    row->source = LB_SOURCE_NOT;
    reshape(b, value, row);
    if (leaf_row(b, value) == LB_NONE) return;
    const bool weight = is_parameter(b->in, value);
    row->flags = LB_VALUE_SOURCE | (weight ? LB_VALUE_PARAMETER : 0);
    row->source = weight ? LB_SOURCE_PARAMETER : LB_SOURCE_OTHER;
}

static lb_op plain_op(builder *b, const char *name)
{
    return (lb_op){.name = checked(b, lb_program_string(b->out, name)),
                   .first_arg = b->out->n_args,
                   .first_written = b->out->n_refs,
                   .node_name = LB_NONE,
                   .node = -1};
}

static void put_source(builder *b, uint32_t row)
{
    lb_op op = plain_op(b, "lb::source");
    b->loaded[row] = 1;
    op.first_result = lb_copier_refs(&b->copier, &b->parts->leaves[row], 1), op.results = 1;
    op.first_written = b->out->n_refs;
    checked(b, lb_program_add_op(b->out, &op));
}

/* Before `value` is read: the leaves that lie in its storage, for it may be a window of one. */
static void put_sources_of(void *context, uint32_t value)
{
    builder *b = context;
    for (uint32_t i = 0; value != LB_NONE && i < b->parts->n_leaves; i++) {
        const lb_value *leaf = &b->in->values[b->parts->leaves[i]], *read = &b->in->values[value];
        if (!b->loaded[i] && leaf->storage == read->storage && leaf->version <= read->version) put_source(b, i);
    }
}

/* Who meets at the op that comes next. */
static void put_collective(builder *b, uint32_t op)
{
    const lb_program *p;
    const lb_collective *row = lb_collective_of_side(b->parts->ranks, op, &p);
    if (!row) return;
    lb_collective copy = *row;
    const uint32_t *texts[] = {&row->group, &row->reduce, &row->algorithm};
    uint32_t *copies[] = {&copy.group, &copy.reduce, &copy.algorithm};
    for (int i = 0; i < 3; i++)
        if (*texts[i] != LB_NONE) *copies[i] = checked(b, lb_program_string(b->out, lb_program_text(p, *texts[i])));
    copy.op = b->out->n_ops;
    copy.first_rank = checked(b, lb_program_add_refs(b->out, p->refs + row->first_rank, row->ranks));
    checked(b, lb_program_add_collective(b->out, &copy));
}

static void put_op(builder *b, uint32_t at)
{
    const lb_op *op = &b->in->ops[at];
    lb_op_each_input(b->in, op, put_sources_of, b);
    lb_op row = lb_copier_op(&b->copier, op);
    row.line = checked(b, lb_program_copy_line(b->out, b->in, op->line));
    row.flags &= ~(uint32_t)LB_OP_DECISION;
    if (op->flags & LB_OP_COLLECTIVE) put_collective(b, at);
    checked(b, lb_program_add_op(b->out, &row));
}

/* What an op computed is told to the observer; what is only a view of it, or a leaf, through a copy. */
static uint32_t put_copy(builder *b, uint32_t value)
{
    static const int64_t fresh = INT64_MAX / 2;
    put_sources_of(b, value);
    lb_value row = b->in->values[value];
    lb_arg arg = {.tag = LB_ARG_VALUE, .u.value = lb_copier_value(&b->copier, value)};
    row.storage = fresh + (int64_t)b->out->n_values, row.version = 0;
    row.layout = lb_layout_contiguous(row.layout.ndim, row.layout.shape);
    row.name = row.statistics = LB_NONE, row.flags = 0, row.source = LB_SOURCE_NOT;
    row.logical = row.blob = (lb_digest){0};
    uint32_t copied = checked(b, lb_program_add_value(b->out, &row));
    lb_op op = plain_op(b, "lb::copy");
    op.first_arg = checked(b, lb_program_add_args(b->out, &arg, 1)), op.args = 1;
    op.first_result = checked(b, lb_program_add_refs(b->out, &copied, 1)), op.results = 1;
    op.first_written = b->out->n_refs;
    checked(b, lb_program_add_op(b->out, &op));
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

static void build(builder *b, lb_subprogram *r)
{
    const lb_subprogram_parts *parts = b->parts;
    const uint32_t rank_program = r->n_rank_programs;
    b->out->step = b->in->step, b->out->world = parts->ranks ? (int32_t)parts->ranks->n_parts : 1;
    b->out->rank = parts->ranks ? parts->ranks->parts[b->part].program->rank : b->in->rank;
    for (uint32_t i = 0; i < parts->n_ops; i++)
        if (is_own_op(b, parts->ops[i])) put_op(b, parts->ops[i]);
    for (uint32_t i = 0; i < parts->n_leaves; i++)
        if (is_own_value(b, parts->leaves[i]))
            r->leaves[i] = (lb_spot){rank_program, lb_copier_value(&b->copier, parts->leaves[i])};
    for (uint32_t i = 0; i < parts->n_outputs; i++) {
        const uint32_t output = parts->outputs[i];
        if (!is_own_value(b, output)) continue;
        r->outputs[i] = (lb_spot){rank_program, computed_by(parts, output) ? lb_copier_value(&b->copier, output)
                                                                           : put_copy(b, output)};
    }
}

static lb_status make_rank_program(const lb_subprogram_parts *parts, uint32_t part, lb_subprogram *r, lb_err *err)
{
    lb_rank_program *v = &r->rank_programs[r->n_rank_programs];
    v->program = lb_program_new();
    builder b = {.in = parts->program, .out = v->program, .parts = parts, .part = part};
    b.copier = (lb_copier){.from = b.in, .to = b.out, .change = change, .context = &b};
    b.loaded = calloc(parts->n_leaves + 1, 1);
    const bool room = b.out && b.loaded;
    if (room) build(&b, r);
    lb_copier_release(&b.copier), free(b.loaded);
    r->n_rank_programs++;
    if (!room || b.copier.failed)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a subprogram of %u ops", parts->n_ops);
    LB_TRY(lb_program_validate(v->program, err));
    return lb_prepared_make(v->program, NULL, NULL, &v->prepared, err);
}

/* Has a rank anything to do with it? */
static bool takes_part(const lb_subprogram_parts *parts, uint32_t part)
{
    const builder b = {.parts = parts, .part = part};
    bool any = false;
    for (uint32_t i = 0; i < parts->n_ops && !any; i++) any = is_own_op(&b, parts->ops[i]);
    for (uint32_t i = 0; i < parts->n_outputs && !any; i++) any = is_own_value(&b, parts->outputs[i]);
    return any;
}

static lb_status make_rank_programs(const lb_subprogram_parts *parts, lb_subprogram *r, lb_err *err)
{
    if (!parts->ranks) return make_rank_program(parts, 0, r, err);
    for (uint32_t part = 0; part < parts->ranks->n_parts; part++)
        if (takes_part(parts, part)) LB_TRY(make_rank_program(parts, part, r, err));
    return LB_OK;
}

lb_status lb_subprogram_new(const lb_subprogram_parts *parts, lb_subprogram **out, lb_err *err)
{
    *out = NULL;
    for (uint32_t i = 0; i < parts->n_ops && !parts->ranks; i++)
        if (parts->program->ops[parts->ops[i]].flags & LB_OP_COLLECTIVE)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "%s needs its other ranks",
                           lb_op_name(parts->program, &parts->program->ops[parts->ops[i]]));
    lb_subprogram *r = calloc(1, sizeof *r);
    if (!r) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    r->rank_programs = calloc(parts->ranks ? parts->ranks->n_parts : 1, sizeof *r->rank_programs);
    r->leaves = malloc((parts->n_leaves + 1) * sizeof *r->leaves), r->n_leaves = parts->n_leaves;
    r->outputs = malloc((parts->n_outputs + 1) * sizeof *r->outputs), r->n_outputs = parts->n_outputs;
    lb_status status = LB_ERR_NOMEM;
    if (r->leaves) memset(r->leaves, 0xFF, parts->n_leaves * sizeof *r->leaves);
    if (r->rank_programs && r->leaves && r->outputs) status = make_rank_programs(parts, r, err);
    if (status == LB_OK)
        *out = r;
    else
        lb_subprogram_free(r);
    return status;
}

void lb_subprogram_free(lb_subprogram *r)
{
    if (!r) return;
    for (uint32_t i = 0; r->rank_programs && i < r->n_rank_programs; i++) {
        lb_prepared_free(r->rank_programs[i].prepared);
        lb_program_free(r->rank_programs[i].program);
    }
    free(r->rank_programs), free(r->leaves), free(r->outputs);
    free(r);
}

const lb_program *lb_subprogram_program(const lb_subprogram *r)
{
    return r->n_rank_programs == 1 ? r->rank_programs[0].program : NULL;
}
