/* Programs put one after the other: see program_view.h. */
#include "pair/program_view.h"

#include "program/shard_axes.h"
#include "kernel/value_memory.h"

#include "base/array.h"
#include <lastbit/compare.h>

#include <stdlib.h>
#include <string.h>

/* Storage ids are unique in one archive only. */
#define STORAGES_PER_RANK ((int64_t)1 << 44)

/* What the rows of one program become in the whole. */
typedef struct move {
    lb_program *to;
    const lb_program *from;
    uint32_t first_value, first_op, first_arg, first_ref;
    uint32_t *scopes;
    int64_t storages;
    bool failed;
} move;

static uint32_t moved(uint32_t row, uint32_t first)
{
    return row == LB_NONE ? LB_NONE : row + first;
}

static uint32_t text(move *move, uint32_t string)
{
    return string == LB_NONE ? LB_NONE : lb_program_string(move->to, move->from->strings[string]);
}

static void note(move *move, uint32_t row)
{
    move->failed |= row == LB_NONE;
}

static void move_scopes(move *move)
{
    for (uint32_t i = 0; i < move->from->n_scopes; i++) {
        const lb_scope *scope = &move->from->scopes[i];
        const char *class_name = scope->class_name == LB_NONE ? NULL : move->from->strings[scope->class_name];
        uint32_t parent = scope->parent == LB_NONE || scope->parent >= i ? 0 : move->scopes[scope->parent];
        move->scopes[i] =
            i == 0 ? 0 : lb_program_scope(move->to, lb_program_text(move->from, scope->path), class_name, parent);
        note(move, move->scopes[i]);
    }
}

static void move_values(move *move)
{
    for (uint32_t i = 0; i < move->from->n_values && !move->failed; i++) {
        lb_value value = move->from->values[i];
        value.storage += move->storages;
        value.name = text(move, value.name), value.statistics = LB_NONE;
        note(move, lb_program_add_value(move->to, &value));
    }
}

static void move_args(move *move)
{
    for (uint32_t i = 0; i < move->from->n_args && !move->failed; i++) {
        lb_arg arg = move->from->args[i];
        if (arg.tag == LB_ARG_VALUE) arg.u.value = moved(arg.u.value, move->first_value);
        if (arg.tag == LB_ARG_STRING) arg.u.string = text(move, arg.u.string);
        if (arg.tag == LB_ARG_LIST || arg.tag == LB_ARG_COMPLEX) arg.u.first += move->first_arg;
        note(move, lb_program_add_args(move->to, &arg, 1));
    }
}

static void move_shards(move *move)
{
    for (uint32_t i = 0; i < move->from->n_shards && !move->failed; i++) {
        const lb_shard *shard = &move->from->shards[i];
        note(move, lb_program_copy_shard(move->to, move->from, shard, shard->value + move->first_value));
    }
}

/* All refs move as values, which those of collectives (ranks) are not: the whole is not asked for these. */
static void move_refs(move *move)
{
    for (uint32_t i = 0; i < move->from->n_refs && !move->failed; i++) {
        uint32_t ref = move->from->refs[i] < move->from->n_values ? move->from->refs[i] + move->first_value : LB_NONE;
        note(move, lb_program_add_refs(move->to, &ref, 1));
    }
}

static void move_ops(move *move)
{
    for (uint32_t i = 0; i < move->from->n_ops && !move->failed; i++) {
        lb_op op = move->from->ops[i];
        op.name = text(move, op.name), op.node_name = text(move, op.node_name);
        op.line = lb_program_copy_line(move->to, move->from, op.line);
        move->failed |= op.line == LB_NONE;
        op.scope = move->scopes[op.scope];
        op.first_arg += move->first_arg, op.first_result += move->first_ref, op.first_written += move->first_ref;
        note(move, lb_program_add_op(move->to, &op));
    }
}

static void move_boundaries(move *move)
{
    for (uint32_t i = 0; i < move->from->n_boundaries && !move->failed; i++) {
        lb_boundary boundary = move->from->boundaries[i];
        boundary.scope = move->scopes[boundary.scope];
        boundary.op += move->first_op, boundary.value = moved(boundary.value, move->first_value);
        note(move, lb_program_add_boundary(move->to, &boundary));
    }
}

static void move_routings(move *move)
{
    for (uint32_t i = 0; i < move->from->n_routings && !move->failed; i++) {
        lb_routing routing = move->from->routings[i];
        routing.scope = move->scopes[routing.scope];
        uint32_t *values[] = {&routing.logits, &routing.ids, &routing.weights, &routing.slots, &routing.dropped};
        for (int k = 0; k < 5; k++) *values[k] = moved(*values[k], move->first_value);
        note(move, lb_program_add_routing(move->to, &routing));
    }
}

static lb_status append(lb_program_view *side, const lb_program *from, lb_err *err)
{
    lb_program *to = side->merged;
    move move = {.to = to, .from = from, .first_value = to->n_values, .first_op = to->n_ops, .first_arg = to->n_args};
    move.first_ref = to->n_refs, move.storages = (int64_t)from->rank * STORAGES_PER_RANK;
    move.scopes = malloc((from->n_scopes + 1) * sizeof *move.scopes);
    if (move.scopes) move_scopes(&move), move_values(&move), move_args(&move), move_refs(&move);
    if (move.scopes) move_ops(&move), move_boundaries(&move), move_routings(&move), move_shards(&move);
    side->parts[side->n_parts++] = (lb_program_view_part){from, move.first_op, move.first_value};
    bool done = move.scopes && !move.failed;
    free(move.scopes);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", from->n_ops);
}

/* ---- parts that lie flat ----------------------------------------------------------------------------------------- */

/* The part of a larger tensor that a value holds all by itself, in one dimension and maybe with padding behind it;
 * NULL. */
static const lb_shard *flat_shard(const lb_program *program, uint32_t value)
{
    uint32_t n;
    const lb_shard *shard = lb_program_shards_of(program, value, &n);
    if (n != 1 || shard->at || lb_shard_is_flat(program, shard)) return NULL;
    const lb_layout part = lb_shard_part(program, shard), *has = &program->values[value].layout;
    const bool same = lb_layout_same_shape(&part, has);
    return same || has->ndim != 1 || !lb_layout_is_contiguous(has) || lb_layout_numel(&part) == 0 ? NULL : shard;
}

static bool has_flat_shards(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_shards; i++)
        if (flat_shard(program, program->shards[i].value)) return true;
    return false;
}

/* Where the bytes of such a value are there it becomes what it is part of the whole as; the digest of another shape is
 * another one. */
static void shape_shards(lb_program_view *side)
{
    lb_program *program = side->merged;
    for (uint32_t i = 0; i < program->n_shards; i++) {
        const uint32_t v = program->shards[i].value;
        const lb_shard *shard = flat_shard(program, v);
        lb_tensor tensor;
        if (!shard || lb_program_view_value(side, v, &tensor, NULL) != LB_OK) continue;
        const int64_t offset = program->values[v].layout.offset;
        tensor.layout = lb_shard_part(program, shard);
        program->values[v].layout = tensor.layout, program->values[v].layout.offset = offset;
        program->values[v].logical = lb_digest_tensor(&tensor);
    }
}

static uint32_t part_of(const void *view, uint32_t value)
{
    return lb_program_view_part_of_value(view, value);
}

/* `shaped`: parts that lie flat get the shape of what they are part of; what runs keeps them as they were recorded. */
static lb_status merge(lb_program_view *side, const lb_program *const *programs, uint32_t n, bool shaped, lb_err *err)
{
    side->program = side->merged = lb_program_new();
    lb_status status = side->merged ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && status == LB_OK; i++) status = append(side, programs[i], err);
    if (status != LB_OK) return status;
    side->merged->step = programs[0]->step, side->merged->rank = programs[0]->rank;
    side->merged->complete = 1;
    for (uint32_t i = 0; i < n; i++) side->merged->complete &= programs[i]->complete;
    if (shaped) shape_shards(side);
    side->axes = calloc(1, sizeof *side->axes);
    if (!side->axes) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return lb_shard_axes_find(side->merged, n, part_of, side, side->axes, err);
}

typedef enum form { SHAPED, RECORDED, MERGED } form;

static lb_status init(lb_capture *capture, const lb_program *const *programs, uint32_t n, form form,
                      lb_program_view *side, lb_err *err)
{
    *side = (lb_program_view){.capture = capture, .program = programs[0]};
    side->parts = calloc(n, sizeof *side->parts);
    lb_status status = side->parts ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && n == 1 && form != MERGED && (form == RECORDED || !has_flat_shards(programs[0])))
        side->parts[side->n_parts++] = (lb_program_view_part){programs[0], 0, 0};
    else if (status == LB_OK)
        status = merge(side, programs, n, form == SHAPED, err);
    if (status == LB_OK) side->blocks = calloc((size_t)side->program->n_values + 1, sizeof *side->blocks);
    if (status == LB_OK && !side->blocks) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status != LB_OK) lb_program_view_release(side);
    return status;
}

lb_status lb_program_view_init(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *side, lb_err *err)
{
    return init(capture, programs, n, SHAPED, side, err);
}

lb_status lb_program_view_init_recorded(lb_capture *capture, const lb_program *program, lb_program_view *side,
                                        lb_err *err)
{
    return init(capture, &program, 1, RECORDED, side, err);
}

lb_status lb_program_view_init_merged(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                                      lb_program_view *side, lb_err *err)
{
    return init(capture, programs, n, MERGED, side, err);
}

void lb_program_view_reorder(lb_program_view *side, uint32_t *op_of, uint32_t *rank_of, uint64_t *ranks_of)
{
    free(side->op_of), free(side->rank_of), free(side->ranks_of);
    side->op_of = op_of, side->rank_of = rank_of, side->ranks_of = ranks_of;
}

bool lb_program_view_is_recorded(const lb_program_view *side, uint32_t value)
{
    uint32_t row;
    const lb_program *recorded = lb_program_view_recorded(side, value, &row);
    return row < recorded->n_values;
}

void lb_program_view_release(lb_program_view *side)
{
    free(side->op_of), free(side->rank_of), free(side->ranks_of);
    lb_program_free(side->merged);
    if (side->axes) lb_shard_axes_release(side->axes);
    free(side->axes);
    free(side->parts), free(side->group), free(side->copy_of), free(side->blocks);
    free(side->original), free(side->own);
    memset(side, 0, sizeof *side);
}

uint32_t lb_program_view_group(const lb_program_view *side, const lb_program_view *other, uint32_t part)
{
    if (side->group) return side->group[part];
    return side->n_parts > other->n_parts ? part / (side->n_parts / other->n_parts) : part;
}

uint32_t lb_program_view_groups(const lb_program_view *side, const lb_program_view *other)
{
    uint32_t n = side->group ? 0 : side->n_parts < other->n_parts ? side->n_parts : other->n_parts;
    for (uint32_t p = 0; side->group && p < side->n_parts; p++)
        if (side->group[p] != LB_NONE && side->group[p] >= n) n = side->group[p] + 1;
    return n;
}

uint32_t lb_program_view_first_of(const lb_program_view *side, const lb_program_view *other, uint32_t group,
                                  uint32_t *n)
{
    uint32_t first = 0;
    while (first < side->n_parts && lb_program_view_group(side, other, first) != group) first++;
    for (*n = 0; first + *n < side->n_parts && lb_program_view_group(side, other, first + *n) == group;) ++*n;
    return *n ? first : LB_NONE;
}

bool lb_program_views_are_uneven(const lb_program_view *a, const lb_program_view *b)
{
    return a->n_parts != b->n_parts || a->group || b->group;
}

lb_status lb_program_view_suppose_grid(lb_program_view *side, uint32_t outer, uint32_t inner, lb_err *err)
{
    const lb_mesh_axis axes[] = {{LB_NONE, outer}, {LB_NONE, inner}};
    if (!side->merged || lb_program_mesh(side->merged, axes, 2, NULL, 0) != LB_NONE) return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for a grid of ranks");
}

uint32_t lb_program_view_part_of(const lb_program_view *side, uint32_t op)
{
    uint32_t p = 0, end = side->n_parts;
    if (side->rank_of) return side->rank_of[op];
    while (end - p > 1) { /* the last part that does not begin behind it: they lie in order */
        const uint32_t middle = p + (end - p) / 2;
        if (side->parts[middle].first_op > op)
            end = middle;
        else
            p = middle;
    }
    return p;
}

uint32_t lb_program_view_part_of_value(const lb_program_view *side, uint32_t value)
{
    uint32_t p = 0, end = side->n_parts;
    while (end - p > 1) {
        const uint32_t middle = p + (end - p) / 2;
        if (side->parts[middle].first_value > value)
            end = middle;
        else
            p = middle;
    }
    return p;
}

uint32_t lb_program_view_part_at(const lb_program_view *side, int32_t rank, int64_t step)
{
    for (uint32_t p = 0; p < side->n_parts; p++)
        if (side->parts[p].program->rank == rank && side->parts[p].program->step == step) return p;
    return LB_NONE;
}

static const lb_program_view_part *part_named(const lb_program_view *side, const lb_program *recorded)
{
    /* Ranks mostly stand in their order. */
    uint32_t p = 0, end = side->n_parts;
    while (end - p > 1) {
        const uint32_t middle = p + (end - p) / 2;
        if (side->parts[middle].program->rank > recorded->rank)
            end = middle;
        else
            p = middle;
    }
    if (side->n_parts && side->parts[p].program == recorded) return &side->parts[p];
    for (p = 0; p < side->n_parts; p++)
        if (side->parts[p].program == recorded) return &side->parts[p];
    return NULL;
}

uint32_t lb_program_view_op(const lb_program_view *side, const lb_program *recorded, uint32_t op)
{
    const lb_program_view_part *part = part_named(side, recorded);
    if (!part) return LB_NONE;
    return side->op_of ? side->op_of[part->first_op + op] : part->first_op + op;
}

uint32_t lb_program_view_value_of(const lb_program_view *side, const lb_program *recorded, uint32_t value)
{
    const lb_program_view_part *part = part_named(side, recorded);
    return part && value != LB_NONE ? part->first_value + value : LB_NONE;
}

const lb_program *lb_program_view_recorded(const lb_program_view *side, uint32_t value, uint32_t *row)
{
    const uint32_t p = lb_program_view_part_of_value(side, value);
    *row = value - side->parts[p].first_value;
    return side->parts[p].program;
}

int64_t lb_program_view_storage(const lb_program_view *side, uint32_t part, int64_t storage)
{
    return side->merged ? storage + (int64_t)side->parts[part].program->rank * STORAGES_PER_RANK : storage;
}

bool lb_program_view_shape(const lb_program_view *side, uint32_t value, lb_tensor *tensor)
{
    const lb_layout *here = &side->program->values[value].layout;
    if (tensor->layout.ndim != 1 || here->ndim == 1 || !lb_layout_is_contiguous(&tensor->layout) ||
        lb_layout_numel(here) > lb_layout_numel(&tensor->layout))
        return false;
    const int64_t offset = tensor->layout.offset;
    tensor->layout = lb_layout_contiguous(here->ndim, here->shape);
    tensor->layout.offset = offset;
    return true;
}

void lb_program_view_part_shape(const lb_program_view *side, uint32_t value, lb_tensor *tensor)
{
    const lb_shard *shard = flat_shard(side->program, value);
    const lb_layout part = shard ? lb_shard_part(side->program, shard) : (lb_layout){0};
    if (!shard || lb_layout_numel(&part) != lb_layout_numel(&tensor->layout)) return;
    const int64_t offset = tensor->layout.offset;
    tensor->layout = part, tensor->layout.offset = offset;
}

lb_status lb_program_view_value(const lb_program_view *side, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    uint32_t row;
    const lb_program *recorded = lb_program_view_recorded(side, value, &row);
    if (row >= recorded->n_values) return lb_fail(err, LB_ERR_NOT_CAPTURED, "no rank recorded value %u", value);
    LB_TRY(lb_capture_value(side->capture, recorded, row, tensor, err));
    lb_program_view_shape(side, value, tensor);
    return LB_OK;
}

/* Whole numbers are what they are in any integer dtype: a draw, a choice or a count is no other in 32 bits than in
 * 64. */
static bool same_whole_numbers(const lb_tensor *x, const lb_tensor *y)
{
    lb_difference difference;
    if (x->dtype == y->dtype || !lb_dtype_is_integer(x->dtype) || !lb_dtype_is_integer(y->dtype)) return false;
    if (lb_dtype_bits(x->dtype) > 32 && lb_dtype_bits(y->dtype) > 32) return false; /* f64 does not hold them all */
    return lb_compare_numbers(x, y, &difference, NULL) == LB_OK && difference.differing == 0;
}

bool lb_program_view_values_differ(const lb_program_view *a, uint32_t value_a, const lb_program_view *b,
                                   uint32_t value_b)
{
    const lb_value *u = &a->program->values[value_a], *v = &b->program->values[value_b];
    lb_tensor x, y;
    if (lb_digest_is_none(u->logical) || lb_digest_is_none(v->logical)) return false;
    if (lb_digest_equal(u->logical, v->logical)) return false;
    /* NaN is NaN, whatever bits a processor gave it. */
    return lb_program_view_value(a, value_a, &x, NULL) != LB_OK ||
           lb_program_view_value(b, value_b, &y, NULL) != LB_OK ||
           !(lb_memory_tensor_same(&x, &y) || same_whole_numbers(&x, &y));
}
