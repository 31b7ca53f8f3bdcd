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

static uint32_t text(move *m, uint32_t string)
{
    return string == LB_NONE ? LB_NONE : lb_program_string(m->to, m->from->strings[string]);
}

static void note(move *m, uint32_t row)
{
    m->failed |= row == LB_NONE;
}

static void move_scopes(move *m)
{
    for (uint32_t i = 0; i < m->from->n_scopes; i++) {
        const lb_scope *s = &m->from->scopes[i];
        const char *class_name = s->class_name == LB_NONE ? NULL : m->from->strings[s->class_name];
        uint32_t parent = s->parent == LB_NONE || s->parent >= i ? 0 : m->scopes[s->parent];
        m->scopes[i] = i == 0 ? 0 : lb_program_scope(m->to, lb_program_text(m->from, s->path), class_name, parent);
        note(m, m->scopes[i]);
    }
}

static void move_values(move *m)
{
    for (uint32_t i = 0; i < m->from->n_values && !m->failed; i++) {
        lb_value v = m->from->values[i];
        v.storage += m->storages;
        v.name = text(m, v.name), v.statistics = LB_NONE;
        note(m, lb_program_add_value(m->to, &v));
    }
}

static void move_args(move *m)
{
    for (uint32_t i = 0; i < m->from->n_args && !m->failed; i++) {
        lb_arg a = m->from->args[i];
        if (a.tag == LB_ARG_VALUE) a.u.value = moved(a.u.value, m->first_value);
        if (a.tag == LB_ARG_STRING) a.u.string = text(m, a.u.string);
        if (a.tag == LB_ARG_LIST || a.tag == LB_ARG_COMPLEX) a.u.first += m->first_arg;
        note(m, lb_program_add_args(m->to, &a, 1));
    }
}

static void move_shards(move *m)
{
    for (uint32_t i = 0; i < m->from->n_shards && !m->failed; i++) {
        const lb_shard *s = &m->from->shards[i];
        note(m, lb_program_copy_shard(m->to, m->from, s, s->value + m->first_value));
    }
}

/* All refs move as values, which those of collectives (ranks) are not: the whole is not asked for these. */
static void move_refs(move *m)
{
    for (uint32_t i = 0; i < m->from->n_refs && !m->failed; i++) {
        uint32_t ref = m->from->refs[i] < m->from->n_values ? m->from->refs[i] + m->first_value : LB_NONE;
        note(m, lb_program_add_refs(m->to, &ref, 1));
    }
}

static void move_ops(move *m)
{
    for (uint32_t i = 0; i < m->from->n_ops && !m->failed; i++) {
        lb_op op = m->from->ops[i];
        op.name = text(m, op.name), op.node_name = text(m, op.node_name);
        op.line = lb_program_copy_line(m->to, m->from, op.line);
        m->failed |= op.line == LB_NONE;
        op.scope = m->scopes[op.scope];
        op.first_arg += m->first_arg, op.first_result += m->first_ref, op.first_written += m->first_ref;
        note(m, lb_program_add_op(m->to, &op));
    }
}

static void move_boundaries(move *m)
{
    for (uint32_t i = 0; i < m->from->n_boundaries && !m->failed; i++) {
        lb_boundary b = m->from->boundaries[i];
        b.scope = m->scopes[b.scope];
        b.op += m->first_op, b.value = moved(b.value, m->first_value);
        note(m, lb_program_add_boundary(m->to, &b));
    }
}

static void move_routings(move *m)
{
    for (uint32_t i = 0; i < m->from->n_routings && !m->failed; i++) {
        lb_routing r = m->from->routings[i];
        r.scope = m->scopes[r.scope];
        uint32_t *values[] = {&r.logits, &r.ids, &r.weights, &r.slots, &r.dropped};
        for (int k = 0; k < 5; k++) *values[k] = moved(*values[k], m->first_value);
        note(m, lb_program_add_routing(m->to, &r));
    }
}

static lb_status append(lb_program_view *side, const lb_program *from, lb_err *err)
{
    lb_program *to = side->merged;
    move m = {.to = to, .from = from, .first_value = to->n_values, .first_op = to->n_ops, .first_arg = to->n_args};
    m.first_ref = to->n_refs, m.storages = (int64_t)from->rank * STORAGES_PER_RANK;
    m.scopes = malloc((from->n_scopes + 1) * sizeof *m.scopes);
    if (m.scopes) move_scopes(&m), move_values(&m), move_args(&m), move_refs(&m);
    if (m.scopes) move_ops(&m), move_boundaries(&m), move_routings(&m), move_shards(&m);
    side->parts[side->n_parts++] = (lb_program_view_part){from, m.first_op, m.first_value};
    bool done = m.scopes && !m.failed;
    free(m.scopes);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", from->n_ops);
}

/* ---- parts that lie flat ----------------------------------------------------------------------------------------- */

/* The part of a larger tensor that a value holds all by itself, in one dimension and maybe with padding behind it;
 * NULL. */
static const lb_shard *flat_shard(const lb_program *p, uint32_t value)
{
    uint32_t n;
    const lb_shard *shard = lb_program_shards_of(p, value, &n);
    if (n != 1 || shard->at || lb_shard_is_flat(p, shard)) return NULL;
    const lb_layout part = lb_shard_part(p, shard), *has = &p->values[value].layout;
    const bool same = lb_layout_same_shape(&part, has);
    return same || has->ndim != 1 || !lb_layout_is_contiguous(has) || lb_layout_numel(&part) == 0 ? NULL : shard;
}

static bool has_flat_shards(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_shards; i++)
        if (flat_shard(p, p->shards[i].value)) return true;
    return false;
}

/* Where the bytes of such a value are there it becomes what it is part of the whole as; the digest of another shape is
 * another one. */
static void shape_shards(lb_program_view *side)
{
    lb_program *p = side->merged;
    for (uint32_t i = 0; i < p->n_shards; i++) {
        const uint32_t v = p->shards[i].value;
        const lb_shard *shard = flat_shard(p, v);
        lb_tensor tensor;
        if (!shard || lb_program_view_value(side, v, &tensor, NULL) != LB_OK) continue;
        const int64_t offset = p->values[v].layout.offset;
        tensor.layout = lb_shard_part(p, shard);
        p->values[v].layout = tensor.layout, p->values[v].layout.offset = offset;
        p->values[v].logical = lb_digest_tensor(&tensor);
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

bool lb_program_view_give(lb_program_view *side, uint32_t value, lb_tensor tensor)
{
    lb_given_value *more = lb_array_grow(side->given, side->n_given, sizeof *more);
    if (!more) return false;
    side->given = more, side->given[side->n_given++] = (lb_given_value){value, tensor};
    return true;
}

void lb_program_view_release(lb_program_view *side)
{
    for (uint32_t i = 0; i < side->n_given; i++) free(side->given[i].tensor.data);
    free(side->given), free(side->op_of), free(side->rank_of), free(side->ranks_of);
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
    uint32_t p = side->n_parts - 1;
    if (side->rank_of) return side->rank_of[op];
    while (p > 0 && side->parts[p].first_op > op) p--;
    return p;
}

uint32_t lb_program_view_part_of_value(const lb_program_view *side, uint32_t value)
{
    uint32_t p = side->n_parts - 1;
    while (p > 0 && side->parts[p].first_value > value) p--;
    return p;
}

static const lb_program_view_part *part_named(const lb_program_view *side, const lb_program *recorded)
{
    for (uint32_t p = 0; p < side->n_parts; p++)
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
    for (uint32_t i = 0; i < side->n_given && row >= recorded->n_values; i++)
        if (side->given[i].value == value) return *tensor = side->given[i].tensor, LB_OK;
    if (row >= recorded->n_values) return lb_fail(err, LB_ERR_NOT_CAPTURED, "no rank recorded value %u", value);
    LB_TRY(lb_capture_value(side->capture, recorded, row, tensor, err));
    lb_program_view_shape(side, value, tensor);
    return LB_OK;
}

/* Whole numbers are what they are in any integer dtype: a draw, a choice or a count is no other in 32 bits than in
 * 64. */
static bool same_whole_numbers(const lb_tensor *x, const lb_tensor *y)
{
    lb_difference d;
    if (x->dtype == y->dtype || !lb_dtype_is_integer(x->dtype) || !lb_dtype_is_integer(y->dtype)) return false;
    if (lb_dtype_bits(x->dtype) > 32 && lb_dtype_bits(y->dtype) > 32) return false; /* f64 does not hold them all */
    return lb_compare_numbers(x, y, &d, NULL) == LB_OK && d.differing == 0;
}

bool lb_program_view_values_differ(const lb_program_view *a, uint32_t va, const lb_program_view *b, uint32_t vb)
{
    const lb_value *u = &a->program->values[va], *v = &b->program->values[vb];
    lb_tensor x, y;
    if (lb_digest_is_none(u->logical) || lb_digest_is_none(v->logical)) return false;
    if (lb_digest_equal(u->logical, v->logical)) return false;
    /* NaN is NaN, whatever bits a processor gave it. */
    return lb_program_view_value(a, va, &x, NULL) != LB_OK || lb_program_view_value(b, vb, &y, NULL) != LB_OK ||
           !(lb_memory_tensor_same(&x, &y) || same_whole_numbers(&x, &y));
}
