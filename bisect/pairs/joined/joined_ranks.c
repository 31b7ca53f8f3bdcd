/* Ranks as one program: see joined_ranks.h. */
#include "joined/joined_ranks.h"

#include "ranks/collective_names.h"
#include "joined/join_collective.h"
#include "joined/joined_copies.h"
#include "joined/joined_losses.h"
#include "pair/op_kind.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* What one rank sent another, and where that received it. */
typedef struct message {
    /* ops; `receive` may be the source by which it entered the step; LB_NONE: it is not in this step */
    uint32_t send, receive;
    uint32_t value; /* a copy of what was sent, once it was; LB_NONE */
} message;

/* ---- messages from rank to rank ---- */

static bool is_named(const lb_program *program, const lb_op *op, const char *name)
{
    return !strcmp(lb_op_name(program, op), name);
}

static uint32_t part_of_rank(const lb_program_view *view, int64_t rank)
{
    for (uint32_t k = 0; k < view->n_parts; k++)
        if (view->parts[k].program->rank == rank) return k;
    return LB_NONE;
}

/* The part at the other end of a send or a receive, whose third argument is its place in the group. */
static uint32_t other_end(const lb_program_view *view, uint32_t op)
{
    const lb_program *recorded;
    const lb_collective *row = lb_collective_of_side(view, op, &recorded);
    const lb_op *o = &view->program->ops[op];
    const lb_arg *place = o->args > 2 ? &lb_op_args(view->program, o)[2] : NULL;
    if (!row || !place || place->tag != LB_ARG_INT || place->u.i < 0 || place->u.i >= row->ranks) return LB_NONE;
    return part_of_rank(view, recorded->refs[row->first_rank + (uint32_t)place->u.i]);
}

/* The value that a send reads, or that a receive or a source gives; LB_NONE. */
static uint32_t carried(const lb_program *program, uint32_t op)
{
    const lb_op *o = &program->ops[op];
    if (lb_op_outcomes(o)) return lb_op_outcome(program, o, 0);
    const lb_arg *list = o->args ? lb_op_args(program, o) : NULL;
    if (!list || list->tag != LB_ARG_LIST || list->count != 1 || program->args[list->u.first].tag != LB_ARG_VALUE)
        return LB_NONE;
    return program->args[list->u.first].u.value;
}

static bool are_same(const lb_program *program, uint32_t x, uint32_t y)
{
    const lb_value *a = &program->values[x], *b = &program->values[y];
    return a->dtype == b->dtype && lb_layout_numel(&a->layout) == lb_layout_numel(&b->layout) &&
           !lb_digest_is_none(a->logical) && lb_digest_equal(a->logical, b->logical);
}

static bool is_taken(const lb_join *join, uint32_t op)
{
    for (uint32_t i = 0; i < join->n_messages; i++)
        if (join->messages[i].receive == op) return true;
    return false;
}

/* A receive that had just these bytes; else a source without a name that has: its receive was recorded before the
 * step. */
static uint32_t find_receive(const lb_join *join, uint32_t send, uint32_t to, bool receives)
{
    const lb_program *program = join->p;
    const uint32_t sent = carried(program, send), from = lb_program_view_part_of(join->view, send);
    for (uint32_t i = join->view->parts[to].first_op; sent != LB_NONE && i < lb_join_end_of(join, to); i++) {
        const lb_op *op = &program->ops[i];
        if (receives ? !is_named(program, op, "c10d::recv_") && !is_named(program, op, "c10d::recv_any_source_")
                     : !lb_op_is_source(program, op))
            continue;
        const uint32_t got = carried(program, i);
        if (got == LB_NONE || is_taken(join, i) || !are_same(program, sent, got)) continue;
        if (receives ? is_named(program, op, "c10d::recv_") && other_end(join->view, i) != from
                     : program->values[got].flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE) ||
                           lb_layout_numel(&program->values[got].layout) < 2)
            continue;
        return i;
    }
    return LB_NONE;
}

static void list_messages(lb_join *join)
{
    for (uint32_t i = 0; i < join->p->n_ops && !join->failed; i++) {
        if (!is_named(join->p, &join->p->ops[i], "c10d::send")) continue;
        const uint32_t to = other_end(join->view, i);
        message m = {i, LB_NONE, LB_NONE};
        for (int receives = 1; receives >= 0 && to != LB_NONE && m.receive == LB_NONE; receives--)
            m.receive = find_receive(join, i, to, receives);
        message *more = lb_array_grow(join->messages, join->n_messages, sizeof *more);
        join->failed |= !more;
        if (more) join->messages = more, join->messages[join->n_messages++] = m;
    }
}

static message *message_at(const lb_join *join, uint32_t op, bool send)
{
    for (uint32_t i = 0; i < join->n_messages; i++)
        if ((send ? join->messages[i].send : join->messages[i].receive) == op) return &join->messages[i];
    return NULL;
}

/* ---- one op of a rank ---- */

static bool can_clone(const lb_join *join, const lb_arg *from, uint32_t to)
{
    return from->tag == LB_ARG_VALUE && from->u.value != LB_NONE && to != LB_NONE &&
           lb_layout_same_shape(&join->p->values[from->u.value].layout, &join->p->values[to].layout);
}

/* Copies between values of one shape: all of the old contents go. */
static bool write_copies(lb_join *join, const lb_op *op)
{
    static const char *const names[] = {"aten::copy_", "aten::_foreach_copy_"};
    const int which = lb_op_name_among(join->p, op, names, 2);
    if (which < 0 || op->args < 2) return false;
    const lb_arg args = lb_op_args(join->p, op)[1];
    const uint32_t n = which ? args.count : 1, first = args.u.first;
    if (op->written != n || (which && args.tag != LB_ARG_LIST)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!can_clone(join, which ? &join->p->args[first + i] : &args, lb_op_written(join->p, op)[i])) return false;
    for (uint32_t i = 0; i < n && !join->failed; i++)
        lb_join_write_clone(join, which ? join->p->args[first + i].u.value : args.u.value,
                            lb_op_written(join->p, op)[i]);
    return true;
}

/* FSDP's copies of parameters out of the buffer that they were gathered in: windows, each copied. */
static bool write_splits(lb_join *join, const lb_op *op)
{
    if (!is_named(join->p, op, "fsdp::split_with_sizes_copy") || op->args < 3) return false;
    const lb_arg *args = lb_op_args(join->p, op), *sizes = &args[1];
    const int64_t dim = args[2].u.i;
    if (args[0].tag != LB_ARG_VALUE || sizes->tag != LB_ARG_LIST || sizes->count != op->written) return false;
    const lb_value from = join->p->values[args[0].u.value];
    const uint32_t first = sizes->u.first;
    int64_t at = from.layout.offset;
    if (dim < 0 || dim >= from.layout.ndim) return false;
    for (uint32_t i = 0; i < op->written && !join->failed; i++) {
        lb_value window = from;
        window.layout.shape[dim] = join->p->args[first + i].u.i, window.layout.offset = at;
        window.logical = window.blob = (lb_digest){0}, window.name = LB_NONE;
        at += window.layout.shape[dim] * window.layout.stride[dim];
        const uint32_t to = lb_op_written(join->p, op)[i],
                       v = to == LB_NONE ? LB_NONE : lb_join_add_value(join, &window);
        if (to != LB_NONE && !join->failed) lb_join_write_clone(join, v, to);
    }
    return true;
}

/* FSDP's buffer of gradients: a row for each rank, in which each gradient has its rank's rows, one behind the other.
 * Rows that do not come out even are padded. */
static bool write_chunks(lb_join *join, const lb_op *op)
{
    if (!is_named(join->p, op, "fsdp::chunk_cat") || op->args < 3 || op->written != 1) return false;
    const lb_arg *args = lb_op_args(join->p, op);
    const lb_arg list = args[0];
    const int64_t chunks = args[2].u.i;
    const lb_value to = join->p->values[lb_op_written(join->p, op)[0]];
    if (list.tag != LB_ARG_LIST || args[1].u.i != 0 || to.layout.ndim != 2 || to.layout.shape[0] != chunks ||
        !lb_layout_is_contiguous(&to.layout))
        return false;
    for (uint32_t i = 0; i < list.count; i++) {
        const lb_layout *layout = &join->p->values[join->p->args[list.u.first + i].u.value].layout;
        if (!layout->ndim || layout->shape[0] % chunks || !lb_layout_is_contiguous(layout)) return false;
    }
    int64_t column = 0;
    for (uint32_t i = 0; i < list.count && !join->failed; i++) {
        const uint32_t v = join->p->args[list.u.first + i].u.value;
        const int64_t length = lb_join_numel(join, v) / chunks;
        const lb_layout flat = lb_layout_contiguous(1, &length);
        for (int64_t c = 0; c < chunks && !join->failed; c++) {
            lb_value window = to;
            window.layout = flat, window.layout.offset = to.layout.offset + c * to.layout.shape[1] + column;
            window.logical = window.blob = (lb_digest){0}, window.name = LB_NONE;
            const uint32_t from = lb_join_reshaped(join, v, &flat, c * length), part = lb_join_add_value(join, &window);
            if (!join->failed) lb_join_write_clone(join, from, part);
        }
        column += length;
    }
    return true;
}

static void write_one(lb_join *join, uint32_t op, uint32_t part)
{
    lb_join_stand_at(join, op, part);
    const lb_op like = join->like;
    message *sent = message_at(join, op, true), *received = message_at(join, op, false);
    if (sent) {
        const uint32_t v = carried(join->p, op);
        if (v == LB_NONE || sent->receive == LB_NONE) return;
        const lb_layout shape = join->p->values[v].layout;
        sent->value = lb_join_fresh(join, join->p->values[v].dtype, &shape);
        if (!join->failed) lb_join_write_clone(join, v, sent->value);
    } else if (received && received->value != LB_NONE) {
        const uint32_t to = carried(join->p, op);
        const lb_layout shape = join->p->values[to].layout;
        const uint32_t from = lb_join_reshaped(join, received->value, &shape, 0);
        if (!join->failed) lb_join_write_clone(join, from, to);
    } else if (like.flags & LB_OP_COLLECTIVE) {
        lb_join_write_recorded(join, op);
    } else if (!write_copies(join, &like) && !write_splits(join, &like) && !write_chunks(join, &like))
        lb_join_append(join, like);
}

/* ---- all of them ---- */

static bool is_there(const lb_join *join, uint32_t row)
{
    const lb_collective_match *match = &join->collective_matches.list[row];
    for (uint32_t r = 0; r < match->n; r++) {
        const uint32_t op = join->collective_matches.ops[match->first + r];
        if (join->at[lb_program_view_part_of(join->view, op)] != op) return false;
    }
    return true;
}

static bool waits(const lb_join *join, uint32_t part)
{
    const uint32_t op = join->at[part];
    if (join->collective_matches.of_op[op] != LB_NONE) return !is_there(join, join->collective_matches.of_op[op]);
    const message *message = message_at(join, op, false);
    return message && message->value == LB_NONE;
}

/* The part that is furthest behind; of those that wait none, unless all do. */
static uint32_t next_part(const lb_join *join, bool *forced)
{
    uint32_t best = LB_NONE, least = LB_NONE;
    for (int pass = 0; pass < 2 && best == LB_NONE; pass++)
        for (uint32_t k = 0; k < join->view->n_parts; k++) {
            const uint32_t done = join->at[k] - join->view->parts[k].first_op;
            if (join->at[k] == lb_join_end_of(join, k) || done >= least || (!pass && waits(join, k))) continue;
            best = k, least = done, *forced = pass;
        }
    return best;
}

static void write_all(lb_join *join)
{
    bool forced = false;
    for (uint32_t part; !join->failed && (part = next_part(join, &forced)) != LB_NONE;) {
        const uint32_t op = join->at[part], row = join->collective_matches.of_op[op];
        if (row == LB_NONE || forced) {
            join->new_of[op] = join->n_ops, join->at[part]++;
            write_one(join, op, part);
            continue;
        }
        const lb_collective_match *match = &join->collective_matches.list[row];
        for (uint32_t r = 0; r < match->n; r++) {
            const uint32_t member = join->collective_matches.ops[match->first + r];
            join->new_of[member] = join->n_ops, join->at[lb_program_view_part_of(join->view, member)]++;
        }
        lb_join_collective_write(join, row);
    }
}

static bool needs_joining(const lb_program *const *programs, uint32_t n)
{
    return n > 1 || programs[0]->n_collectives > 0;
}

static lb_status join(lb_program_view *view, lb_err *err)
{
    lb_join j = {.view = view, .p = view->merged, .called = LB_NONE};
    LB_TRY(lb_collective_matches_find(view, &j.collective_matches, err));
    j.at = calloc(view->n_parts + 1, sizeof *j.at), j.new_of = malloc(((size_t)j.p->n_ops + 1) * sizeof *j.new_of);
    j.failed = !j.at || !j.new_of;
    for (uint32_t k = 0; k < view->n_parts && !j.failed; k++) j.at[k] = view->parts[k].first_op;
    if (!j.failed) list_messages(&j);
    if (!j.failed) write_all(&j);
    if (!j.failed) lb_join_hand_over(&j);
    lb_collective_matches_release(&j.collective_matches);
    free(j.messages), free(j.at), free(j.ops), free(j.part_of), free(j.ranks), free(j.new_of);
    return j.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for the ops of %u ranks", view->n_parts) : LB_OK;
}

lb_status lb_joined_ranks_view(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *view, lb_err *err)
{
    if (!needs_joining(programs, n)) return lb_program_view_init(capture, programs, n, view, err);
    LB_TRY(lb_program_view_init_merged(capture, programs, n, view, err));
    lb_status status = join(view, err);
    if (status == LB_OK) status = lb_joined_copies_merge(view, err);
    if (status == LB_OK) status = lb_joined_losses_add(view, err);
    if (status != LB_OK) lb_program_view_release(view);
    return status;
}

const char *lb_joined_ranks_op_name(const lb_program *program, const lb_op *op)
{
    const char *node = op->node_name == LB_NONE ? "" : lb_program_text(program, op->node_name);
    return lb_collective_run_knows(node) ? node : lb_op_name(program, op);
}
