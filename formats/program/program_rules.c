/* What makes a program valid. Decoding ends here, so everything behind it may index without looking.
 *
 * Lists: the children of a list stand in front of it. That rules cycles out; the expanded size of an op's args is
 * bounded besides, so that a few rows cannot name each other into billions of visits. */
#include "program/program_store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LIST_DEPTH 16

const lb_program_table lb_program_tables[LB_TABLE_COUNT] = {
#define TABLE(ID, field, type) {#field, offsetof(lb_program, field), offsetof(lb_program, n_##field), sizeof(type)},
    LB_PROGRAM_TABLES(TABLE)
#undef TABLE
};

/* Where a check stands, for its message. */
typedef struct site {
    lb_err *err;
    const char *table;
    uint32_t row;
} site;

static lb_status bad(const site *at, const char *field, const char *what, int64_t found, int64_t limit)
{
    return lb_fail(at->err, LB_ERR_CORRUPT, "program: %s[%" PRIu32 "].%s: %s: found %" PRId64 ", limit %" PRId64,
                   at->table, at->row, field, what, found, limit);
}

static lb_status must_index(const site *at, const char *field, uint32_t index, uint32_t rows)
{
    return index < rows ? LB_OK : bad(at, field, "names a row that does not exist", index, rows);
}

static lb_status may_index(const site *at, const char *field, uint32_t index, uint32_t rows)
{
    return index == LB_NONE ? LB_OK : must_index(at, field, index, rows);
}

static lb_status must_range(const site *at, const char *field, uint32_t first, uint32_t count, uint32_t rows)
{
    return count <= rows && first <= rows - count
               ? LB_OK
               : bad(at, field, "range ends after the table", (int64_t)first + count, rows);
}

static lb_status at_most(const site *at, const char *field, int64_t found, int64_t limit)
{
    return found >= 0 && found <= limit ? LB_OK : bad(at, field, "no such code", found, limit);
}

static lb_status check_scopes(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_scopes; i++) {
        const lb_scope *scope = &program->scopes[i];
        site at = {err, "scopes", i};
        LB_TRY(must_index(&at, "path", scope->path, program->n_strings));
        LB_TRY(may_index(&at, "class_name", scope->class_name, program->n_strings));
        if (scope->parent != LB_NONE && scope->parent >= i)
            return bad(&at, "parent", "must stand before", scope->parent, i);
    }
    return LB_OK;
}

/* Children counted with their own children, and how deep they go. */
typedef struct arg_extent {
    uint32_t size;
    uint8_t depth;
} arg_extent;

static lb_status check_list(const lb_program *program, const site *at, arg_extent *extents)
{
    const lb_arg *list = &program->args[at->row];
    uint64_t size = 1;
    uint8_t depth = 0;
    LB_TRY(must_range(at, "list", list->u.first, list->count, at->row));
    for (uint32_t c = list->u.first; c < list->u.first + list->count; c++) {
        size += extents[c].size;
        if (extents[c].depth > depth) depth = extents[c].depth;
    }
    if (size > program->n_args)
        return bad(at, "list", "expands to more args than there are", (int64_t)size, program->n_args);
    if (depth + 1 > MAX_LIST_DEPTH) return bad(at, "list", "nests too deep", depth + 1, MAX_LIST_DEPTH);
    extents[at->row] = (arg_extent){(uint32_t)size, (uint8_t)(depth + 1)};
    return LB_OK;
}

static lb_status check_arg(const lb_program *program, const site *at, arg_extent *extents)
{
    const lb_arg *arg = &program->args[at->row];
    extents[at->row] = (arg_extent){1, 0};
    switch (arg->tag) {
    case LB_ARG_NONE:
    case LB_ARG_INT:
    case LB_ARG_FLOAT: return LB_OK;
    case LB_ARG_VALUE: return must_index(at, "value", arg->u.value, program->n_values);
    case LB_ARG_STRING: return must_index(at, "string", arg->u.string, program->n_strings);
    case LB_ARG_BOOL: return at_most(at, "bool", arg->u.i, 1);
    case LB_ARG_DTYPE:
        return arg->u.i >= 0 && arg->u.i < 256 && lb_dtype_valid((lb_dtype)arg->u.i)
                   ? LB_OK
                   : bad(at, "dtype", "no such dtype", arg->u.i, LB_DTYPE_COUNT);
    case LB_ARG_LIST: return check_list(program, at, extents);
    case LB_ARG_COMPLEX:
        LB_TRY(check_list(program, at, extents));
        if (arg->count != 2 || program->args[arg->u.first].tag != LB_ARG_FLOAT ||
            program->args[arg->u.first + 1].tag != LB_ARG_FLOAT)
            return bad(at, "complex", "must have two floats", arg->count, 2);
        return LB_OK;
    }
    return bad(at, "tag", "no such kind of arg", arg->tag, LB_ARG_COMPLEX);
}

static lb_status check_values_of(const lb_program *program, const site *at, const char *field, uint32_t first,
                                 uint32_t count)
{
    LB_TRY(must_range(at, field, first, count, program->n_refs));
    for (uint32_t r = first; r < first + count; r++) LB_TRY(may_index(at, field, program->refs[r], program->n_values));
    return LB_OK;
}

static lb_status check_op(const lb_program *program, const site *at, const arg_extent *extents)
{
    const lb_op *op = &program->ops[at->row];
    LB_TRY(must_index(at, "name", op->name, program->n_strings));
    LB_TRY(must_index(at, "scope", op->scope, program->n_scopes));
    LB_TRY(may_index(at, "node_name", op->node_name, program->n_strings));
    LB_TRY(must_range(at, "first_arg", op->first_arg, op->args, program->n_args));
    LB_TRY(check_values_of(program, at, "results", op->first_result, op->results));
    LB_TRY(check_values_of(program, at, "written", op->first_written, op->written));
    LB_TRY(at_most(at, "phase", op->phase, LB_PHASE_OTHER));
    LB_TRY(at_most(at, "line", op->line, program->n_lines));
    uint64_t size = 0;
    for (uint32_t a = op->first_arg; a < op->first_arg + op->args; a++) size += extents[a].size;
    if (size > program->n_args)
        return bad(at, "args", "expand to more args than there are", (int64_t)size, program->n_args);
    if (strcmp(program->strings[op->name], "lb::source") == 0 && (op->args != 0 || op->results != 1))
        return bad(at, "results", "a source has no args and one result", op->results, 1);
    return LB_OK;
}

static lb_status check_ops_and_args(const lb_program *program, lb_err *err)
{
    arg_extent *extents = (arg_extent *)malloc(((size_t)program->n_args + 1) * sizeof *extents);
    if (!extents) return lb_fail(err, LB_ERR_NOMEM, "program: no memory to check %" PRIu32 " args", program->n_args);
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < program->n_args && status == LB_OK; i++)
        status = check_arg(program, &(site){err, "args", i}, extents);
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++)
        status = check_op(program, &(site){err, "ops", i}, extents);
    free(extents);
    return status;
}

static lb_status check_values(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        site at = {err, "values", i};
        LB_TRY(may_index(&at, "name", value->name, program->n_strings));
        LB_TRY(may_index(&at, "statistics", value->statistics, program->n_statistics));
        LB_TRY(at_most(&at, "source", value->source, LB_SOURCE_OTHER));
        LB_TRY(at_most(&at, "device", value->device, 2));
        LB_TRY(at_most(&at, "layout.ndim", value->layout.ndim, LB_MAX_DIMS));
        if (!lb_dtype_valid(value->dtype)) return bad(&at, "dtype", "no such dtype", value->dtype, LB_DTYPE_COUNT);
        int64_t first, last, n = lb_layout_numel(&value->layout);
        lb_err why = LB_ERR_INIT;
        if (lb_layout_dense_range(&value->layout, &first, &last, &why) != LB_OK)
            return lb_fail(err, LB_ERR_CORRUPT, "program: values[%" PRIu32 "].%s", i, why.message);
        if (lb_dtype_bytes(value->dtype, (size_t)n) > (size_t)INT64_MAX ||
            lb_dtype_bytes(value->dtype, (size_t)last) > (size_t)INT64_MAX)
            return bad(&at, "layout", "more bytes than can be addressed", n, INT64_MAX);
    }
    return LB_OK;
}

static lb_status check_collectives(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        const lb_collective *row = &program->collectives[i];
        site at = {err, "collectives", i};
        LB_TRY(must_index(&at, "op", row->op, program->n_ops));
        LB_TRY(must_index(&at, "group", row->group, program->n_strings));
        LB_TRY(may_index(&at, "reduce", row->reduce, program->n_strings));
        LB_TRY(may_index(&at, "algorithm", row->algorithm, program->n_strings));
        LB_TRY(must_range(&at, "ranks", row->first_rank, row->ranks, program->n_refs));
    }
    return LB_OK;
}

static lb_status check_modules(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *row = &program->boundaries[i];
        site at = {err, "boundaries", i};
        LB_TRY(must_index(&at, "scope", row->scope, program->n_scopes));
        LB_TRY(at_most(&at, "op", row->op, program->n_ops));
        LB_TRY(must_index(&at, "value", row->value, program->n_values));
        LB_TRY(at_most(&at, "output", row->output, 1));
    }
    for (uint32_t i = 0; i < program->n_routings; i++) {
        const lb_routing *row = &program->routings[i];
        site at = {err, "routings", i};
        LB_TRY(must_index(&at, "scope", row->scope, program->n_scopes));
        LB_TRY(may_index(&at, "logits", row->logits, program->n_values));
        LB_TRY(may_index(&at, "ids", row->ids, program->n_values));
        LB_TRY(may_index(&at, "weights", row->weights, program->n_values));
        LB_TRY(may_index(&at, "slots", row->slots, program->n_values));
        LB_TRY(may_index(&at, "dropped", row->dropped, program->n_values));
    }
    return LB_OK;
}

static lb_status check_optimizers(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_scalars; i++) {
        site at = {err, "scalars", i};
        LB_TRY(must_index(&at, "name", program->scalars[i].name, program->n_strings));
        LB_TRY(at_most(&at, "op", program->scalars[i].op, program->n_ops));
    }
    for (uint32_t i = 0; i < program->n_groups; i++) {
        const lb_group *row = &program->groups[i];
        site at = {err, "groups", i};
        LB_TRY(must_index(&at, "optimizer", row->optimizer, program->n_strings));
        LB_TRY(must_range(&at, "ops", row->first_op, row->ops, program->n_ops));
        LB_TRY(must_range(&at, "params", row->first_param, row->params, program->n_group_params));
        LB_TRY(must_range(&at, "options", row->first_option, row->options, program->n_scalars));
    }
    for (uint32_t i = 0; i < program->n_group_params; i++)
        LB_TRY(may_index(&(site){err, "group_params", i}, "name", program->group_params[i].name, program->n_strings));
    return LB_OK;
}

static lb_status check_notices(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_notices; i++) {
        const lb_notice *row = &program->notices[i];
        site at = {err, "notices", i};
        LB_TRY(must_index(&at, "kind", row->kind, program->n_strings));
        LB_TRY(must_index(&at, "message", row->message, program->n_strings));
        LB_TRY(may_index(&at, "op", row->op, program->n_ops));
        LB_TRY(may_index(&at, "value", row->value, program->n_values));
    }
    return LB_OK;
}

static lb_status check_meshes(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_mesh_axes; i++) {
        site at = {err, "mesh_axes", i};
        LB_TRY(may_index(&at, "name", program->mesh_axes[i].name, program->n_strings));
        if (program->mesh_axes[i].size == 0) return bad(&at, "size", "an axis has at least one rank", 0, 1);
    }
    for (uint32_t i = 0; i < program->n_meshes; i++) {
        const lb_mesh *mesh = &program->meshes[i];
        site at = {err, "meshes", i};
        uint64_t ranks = 1;
        LB_TRY(must_range(&at, "axes", mesh->first_axis, mesh->axes, program->n_mesh_axes));
        LB_TRY(must_range(&at, "ranks", mesh->first_rank, mesh->ranks, program->n_refs));
        for (uint32_t a = mesh->first_axis; a < mesh->first_axis + mesh->axes && ranks <= mesh->ranks; a++)
            ranks *= program->mesh_axes[a].size;
        if (ranks != mesh->ranks)
            return bad(&at, "ranks", "must be the product of the axes", mesh->ranks, (int64_t)ranks);
    }
    for (uint32_t i = 0; i < program->n_placements; i++) {
        const lb_placement *placed = &program->placements[i];
        site at = {err, "placements", i};
        LB_TRY(at_most(&at, "kind", placed->kind, LB_PLACEMENT_PARTIAL));
        if (placed->kind == LB_PLACEMENT_SHARD && placed->dim != LB_EXTENT_FLAT)
            LB_TRY(at_most(&at, "dim", placed->dim, LB_MAX_DIMS - 1));
        LB_TRY(may_index(&at, "reduce", placed->reduce, program->n_strings));
    }
    return LB_OK;
}

static lb_status check_shards(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_shards; i++) {
        const lb_shard *row = &program->shards[i];
        site at = {err, "shards", i};
        int64_t elements = 0;
        LB_TRY(must_index(&at, "value", row->value, program->n_values));
        if (i && row->value < row[-1].value) return bad(&at, "value", "rows are by value", row->value, row[-1].value);
        LB_TRY(may_index(&at, "name", row->name, program->n_strings));
        LB_TRY(may_index(&at, "mesh", row->mesh, program->n_meshes));
        LB_TRY(must_range(&at, "placements", row->first_placement, row->placements, program->n_placements));
        if (row->mesh != LB_NONE && row->placements != program->meshes[row->mesh].axes)
            return bad(&at, "placements", "one for each axis", row->placements, program->meshes[row->mesh].axes);
        LB_TRY(must_range(&at, "extents", row->first_extent, row->extents, program->n_extents));
        lb_err why = LB_ERR_INIT;
        if (lb_shard_extents_check(row->extents ? program->extents + row->first_extent : NULL, row->extents, &elements,
                                   &why) != LB_OK)
            return lb_fail(err, LB_ERR_CORRUPT, "program: shards[%" PRIu32 "].extents: %s", i, why.message);
        const int64_t numel = lb_layout_numel(&program->values[row->value].layout);
        if (row->at < 0 || elements > numel || row->at > numel - elements)
            return bad(&at, "at", "the part reaches beyond the value", row->at, numel - elements);
    }
    return LB_OK;
}

static lb_status check_lines(const lb_program *program, lb_err *err)
{
    for (uint32_t i = 0; i < program->n_lines; i++) {
        site at = {err, "lines", i};
        LB_TRY(must_index(&at, "file", program->lines[i].file, program->n_strings));
        LB_TRY(may_index(&at, "function", program->lines[i].function, program->n_strings));
        LB_TRY(may_index(&at, "text", program->lines[i].text, program->n_strings));
    }
    return LB_OK;
}

lb_status lb_program_validate(const lb_program *program, lb_err *err)
{
    if (program->n_strings == 0 || program->strings[0][0] != '\0')
        return lb_fail(err, LB_ERR_CORRUPT, "program: strings[0] must be empty");
    if (program->n_scopes == 0 || program->scopes[0].path != 0 || program->scopes[0].parent != LB_NONE)
        return lb_fail(err, LB_ERR_CORRUPT, "program: scopes[0] must be the outside of every module");
    if (program->rank < 0) return lb_fail(err, LB_ERR_CORRUPT, "program: rank %" PRId32 " is negative", program->rank);
    site header = {err, "header", 0};
    LB_TRY(at_most(&header, "level", program->level, 3));
    LB_TRY(may_index(&header, "shard", program->shard, program->n_strings));
    LB_TRY(check_scopes(program, err));
    LB_TRY(check_ops_and_args(program, err));
    LB_TRY(check_values(program, err));
    LB_TRY(check_modules(program, err));
    LB_TRY(check_collectives(program, err));
    LB_TRY(check_optimizers(program, err));
    LB_TRY(check_notices(program, err));
    LB_TRY(check_meshes(program, err));
    LB_TRY(check_lines(program, err));
    return check_shards(program, err);
}
