/* Collectives as ops: see join_collective.h. */
#include "joined/join_collective.h"

#include "ranks/collective_names.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct pieces {
    uint32_t *list, n; /* values: of one dimension, or a whole input */
} pieces;

static void add_piece(lb_join *join, pieces *out, uint32_t v)
{
    uint32_t *more = lb_array_grow(out->list, out->n, sizeof *more);
    join->failed |= !more;
    if (more) out->list = more, out->list[out->n++] = v;
}

/* Where parts of a contiguous value that ops wrote by themselves begin and end, in elements of it; sorted. A bucket of
 * gradients has as many as there are gradients in it. */
static int64_t *list_borders(lb_join *join, uint32_t row, uint32_t *n)
{
    const lb_value *whole = &join->p->values[row];
    const int64_t all = lb_layout_numel(&whole->layout);
    int64_t *list = NULL;
    *n = 0;
    for (uint32_t i = 0; i < join->n_ops && lb_layout_is_contiguous(&whole->layout); i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&join->ops[i]); k++) {
            const uint32_t w = lb_op_outcome(join->p, &join->ops[i], k);
            if (w == LB_NONE || join->p->values[w].storage != whole->storage || join->ops[i].flags & LB_OP_VIEW)
                continue;
            const lb_layout *layout = &join->p->values[w].layout;
            const int64_t from = layout->offset - whole->layout.offset, to = from + lb_layout_numel(layout);
            for (int end = 0; end < 2 && lb_layout_is_contiguous(layout); end++) {
                const int64_t border = end ? to : from;
                if (border <= 0 || border >= all) continue;
                int64_t *more = lb_array_grow(list, *n, sizeof *more);
                join->failed |= !more;
                if (more) list = more, list[(*n)++] = border;
            }
        }
    if (*n) qsort(list, *n, sizeof *list, lb_by_i64);
    return list;
}

/* The elements [from, to) of a value that is contiguous, at its borders. */
static void cut_at_borders(lb_join *join, uint32_t v, int64_t from, int64_t to, pieces *out)
{
    uint32_t n;
    int64_t *borders = list_borders(join, v, &n), at = from;
    for (uint32_t i = 0; i <= n && !join->failed; i++) {
        const int64_t end = i < n && borders[i] < to ? borders[i] : to, length = end - at;
        if (length <= 0) continue;
        const lb_layout shape = lb_layout_contiguous(1, &length);
        add_piece(join, out, at == 0 && end == lb_join_numel(join, v) ? v : lb_join_reshaped(join, v, &shape, at));
        at = end;
    }
    free(borders);
}

/* Elements [first, first + n) of what a member brings, which is its inputs one behind the other. `fine`: also where
 * parts of them were written by themselves. */
static void cut(lb_join *join, const lb_collective_told *member, uint32_t part, int64_t first, int64_t n, bool fine,
                pieces *out)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < member->n_inputs && !join->failed; i++) {
        const uint32_t given = join->view->parts[part].first_value + member->inputs[i];
        const int64_t size = lb_join_numel(join, given), from = first > at ? first - at : 0,
                      to = first + n < at + size ? first + n - at : size;
        at += size;
        if (from >= to) continue;
        if (fine && lb_layout_is_contiguous(&join->p->values[given].layout)) {
            cut_at_borders(join, given, from, to, out);
            continue;
        }
        if (from == 0 && to == size) {
            add_piece(join, out, given);
            continue;
        }
        const int64_t length = to - from;
        const lb_layout shape = lb_layout_contiguous(1, &length);
        const uint32_t whole = lb_join_dense(join, given);
        if (!join->failed) add_piece(join, out, lb_join_reshaped(join, whole, &shape, from));
    }
}

/* ---- reductions ---- */

static const char *pair_op(const char *reduce)
{
    static const char *const names[][2] = {{"sum", "aten::add.Tensor"},        {"avg", "aten::add.Tensor"},
                                           {"max", "aten::maximum"},           {"min", "aten::minimum"},
                                           {"product", "aten::mul.Tensor"},    {"band", "aten::bitwise_and.Tensor"},
                                           {"bor", "aten::bitwise_or.Tensor"}, {"bxor", "aten::bitwise_xor.Tensor"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(reduce, names[i][0])) return names[i][1];
    return NULL;
}

static bool all_alike(const lb_join *join, const pieces *of, uint32_t n, uint32_t i)
{
    for (uint32_t r = 1; r < n; r++)
        if (!lb_layout_same_shape(&join->p->values[of[r].list[i]].layout, &join->p->values[of[0].list[i]].layout))
            return false;
    return true;
}

/* One number of all members' for each element; in the order of ranks. */
static uint32_t reduce_pieces(lb_join *join, const char *reduce, const pieces *of, uint32_t n, uint32_t i)
{
    const bool alike = all_alike(join, of, n, i);
    uint32_t sum = LB_NONE;
    for (uint32_t r = 0; r < n && !join->failed; r++) {
        uint32_t reduced = of[r].list[i];
        if (!alike) {
            const int64_t length = lb_join_numel(join, reduced);
            const lb_layout flat = lb_layout_contiguous(1, &length);
            reduced = lb_join_reshaped(join, lb_join_dense(join, reduced), &flat, 0);
        }
        if (sum == LB_NONE) {
            sum = reduced;
            continue;
        }
        const lb_layout shape = join->p->values[sum].layout;
        const uint32_t next = lb_join_fresh(join, join->p->values[sum].dtype, &shape);
        const lb_arg args[] = {lb_join_value_arg(sum), lb_join_value_arg(reduced), lb_join_int_arg(1)};
        if (!join->failed)
            lb_join_write_op(join, pair_op(reduce), args, strcmp(pair_op(reduce), "aten::add.Tensor") ? 2 : 3, next);
        sum = next;
    }
    if (!strcmp(reduce, "avg") && !join->failed) {
        const lb_layout shape = join->p->values[sum].layout;
        const uint32_t mean = lb_join_fresh(join, join->p->values[sum].dtype, &shape);
        const lb_arg args[] = {lb_join_value_arg(sum), lb_join_int_arg(n)};
        if (!join->failed) lb_join_write_op(join, "aten::div.Scalar", args, 2, mean);
        sum = mean;
    }
    return sum;
}

/* ---- a collective ---- */

typedef struct meeting {
    lb_join *joiner;
    const uint32_t *ops; /* of all members, in group order */
    uint32_t n, *parts;
    lb_collective_told *told;
    const char *reduce;
} meeting;

/* What all members bring to a reduction, cut alike; false: they are not. */
static bool cut_alike(const meeting *meeting, int64_t first, int64_t n, bool fine, pieces *of)
{
    lb_join *join = meeting->joiner;
    for (uint32_t r = 0; r < meeting->n && !join->failed; r++) {
        of[r].n = 0;
        cut(join, &meeting->told[r], meeting->parts[r], first, n, fine, &of[r]);
        if (of[r].n != of[0].n) return false;
        for (uint32_t i = 0; i < of[r].n; i++)
            if (lb_join_numel(join, of[r].list[i]) != lb_join_numel(join, of[0].list[i])) return false;
    }
    return !join->failed;
}

static void add_reduced(const meeting *meeting, int64_t first, int64_t n, pieces *out)
{
    lb_join *join = meeting->joiner;
    pieces *of = calloc(meeting->n, sizeof *of);
    join->failed |= !of;
    const bool fits = of && (cut_alike(meeting, first, n, true, of) || cut_alike(meeting, first, n, false, of));
    join->standing = 0;
    for (uint32_t r = 0; r < meeting->n; r++) join->standing |= lb_program_view_rank_bit(meeting->parts[r]);
    for (uint32_t i = 0; fits && i < of[0].n && !join->failed; i++)
        add_piece(join, out, reduce_pieces(join, meeting->reduce, of, meeting->n, i));
    join->standing = 0;
    for (uint32_t r = 0; of && r < meeting->n; r++) free(of[r].list);
    free(of);
}

/* All that the member is given, piece by piece. */
static void list_received(const meeting *meeting, uint32_t who, pieces *out)
{
    for (uint32_t k = 0; k < meeting->told[who].n_moves && !meeting->joiner->failed; k++) {
        const lb_collective_move *move = &meeting->told[who].moves[k];
        if (move->member == LB_NONE)
            add_reduced(meeting, move->first, move->n, out);
        else
            cut(meeting->joiner, &meeting->told[move->member], meeting->parts[move->member], move->first, move->n,
                false, out);
    }
}

/* The pieces behind each other, in the shape of `to`. */
static uint32_t put_together(lb_join *join, const pieces *of, uint32_t first, uint32_t n, uint32_t to)
{
    lb_arg *list = malloc((n + 1) * sizeof *list);
    const lb_layout shape = join->p->values[to].layout;
    join->failed |= !list;
    for (uint32_t i = 0; i < n && !join->failed; i++) {
        const int64_t length = lb_join_numel(join, of->list[first + i]);
        const lb_layout flat = lb_layout_contiguous(1, &length);
        list[i] = lb_join_value_arg(lb_join_reshaped(join, lb_join_dense(join, of->list[first + i]), &flat, 0));
    }
    const int64_t all = lb_layout_numel(&shape);
    const lb_layout flat = lb_layout_contiguous(1, &all);
    const uint32_t joined = join->failed ? LB_NONE : lb_join_fresh(join, join->p->values[to].dtype, &flat);
    const lb_arg args[] = {
        {.tag = LB_ARG_LIST, .count = n, .u.first = join->failed ? 0 : lb_program_add_args(join->p, list, n)},
        lb_join_int_arg(0)};
    free(list);
    if (join->failed) return LB_NONE;
    lb_join_write_op(join, "aten::cat", args, 2, joined);
    return lb_join_reshaped(join, joined, &shape, 0);
}

/* Each piece where it lies in `to`, by itself: what reads one of them follows from that alone. */
static void write_parts(lb_join *join, const pieces *of, uint32_t first, uint32_t n, uint32_t to)
{
    int64_t at = 0;
    for (uint32_t i = first; i < first + n && !join->failed; i++) {
        const lb_layout shape = join->p->values[of->list[i]].layout;
        lb_value window = join->p->values[to];
        window.layout = lb_layout_contiguous(shape.ndim, shape.shape),
        window.layout.offset = join->p->values[to].layout.offset + at;
        window.logical = window.blob = (lb_digest){0}, window.name = LB_NONE;
        at += lb_layout_numel(&shape);
        const uint32_t part = lb_join_add_value(join, &window);
        if (!join->failed) lb_join_write_clone(join, of->list[i], part);
    }
}

static bool reduces(const lb_collective_told *told)
{
    for (uint32_t i = 0; i < told->n_moves; i++)
        if (told->moves[i].member != LB_NONE) return false;
    return told->n_moves > 0;
}

/* Hands each output its part of the pieces. False: they do not fit. */
static bool hand_out(lb_join *join, const lb_collective_told *told, uint32_t part, const pieces *of)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < told->n_outputs && !join->failed; i++) {
        const uint32_t handed = join->view->parts[part].first_value + told->outputs[i], first = next;
        int64_t left = lb_join_numel(join, handed);
        while (left > 0 && next < of->n) left -= lb_join_numel(join, of->list[next++]);
        if (left) return false;
        if (next == first) continue;
        uint32_t from = of->list[first];
        const lb_layout shape = join->p->values[handed].layout;
        if (next - first > 1 && reduces(told) && lb_layout_is_contiguous(&shape)) {
            write_parts(join, of, first, next - first, handed);
            continue;
        }
        if (next - first > 1)
            from = put_together(join, of, first, next - first, handed);
        else if (!lb_layout_same_shape(&join->p->values[from].layout, &shape))
            from = lb_join_reshaped(join, lb_join_dense(join, from), &shape, 0);
        if (!join->failed) lb_join_write_clone(join, from, handed);
    }
    return true;
}

static bool brings_undefined(const meeting *meeting)
{
    for (uint32_t r = 0; r < meeting->n; r++)
        for (uint32_t i = 0; i < meeting->told[r].n_inputs; i++) {
            const lb_value *value =
                &meeting->joiner->p
                     ->values[meeting->joiner->view->parts[meeting->parts[r]].first_value + meeting->told[r].inputs[i]];
            bool read = false;
            for (uint32_t who = 0; who < meeting->n && !read; who++)
                for (uint32_t k = 0; k < meeting->told[who].n_moves && !read; k++)
                    read = meeting->told[who].moves[k].member == r || meeting->told[who].moves[k].member == LB_NONE;
            if (read && value->flags & LB_VALUE_UNDEFINED) return true;
        }
    return false;
}

static bool tell(meeting *meeting)
{
    lb_join *join = meeting->joiner;
    const lb_program **programs = calloc(meeting->n, sizeof *programs);
    uint32_t *ops = calloc(meeting->n, sizeof *ops);
    const lb_program *recorded;
    bool told = programs && ops;
    join->failed |= !told;
    for (uint32_t r = 0; r < meeting->n && told; r++) {
        meeting->parts[r] = lb_program_view_part_of(join->view, meeting->ops[r]);
        programs[r] = join->view->parts[meeting->parts[r]].program,
        ops[r] = meeting->ops[r] - join->view->parts[meeting->parts[r]].first_op;
    }
    told = told && lb_collective_run_tell(programs, ops, meeting->n, meeting->told, NULL) == LB_OK;
    free(programs), free(ops);
    const lb_collective *row = lb_collective_of_side(join->view, meeting->ops[0], &recorded);
    meeting->reduce = row && row->reduce != LB_NONE ? lb_program_text(recorded, row->reduce) : "sum";
    return told && pair_op(meeting->reduce) && !brings_undefined(meeting);
}

void lb_join_collective_write(lb_join *join, uint32_t row)
{
    meeting meeting = {.joiner = join,
                       .ops = join->collective_matches.ops + join->collective_matches.list[row].first,
                       .n = join->collective_matches.list[row].n};
    meeting.parts = calloc(meeting.n, sizeof *meeting.parts), meeting.told = calloc(meeting.n, sizeof *meeting.told);
    join->failed |= !meeting.parts || !meeting.told;
    pieces *received = calloc(meeting.n, sizeof *received);
    join->failed |= !received;
    const uint32_t before = join->n_ops;
    join->called = join->p->ops[meeting.ops[0]].name;
    bool known = !join->failed && tell(&meeting);
    /* Before any of it is handed out: a member may be given it where what it brought lies. */
    for (uint32_t r = 0; r < meeting.n && known && !join->failed; r++) {
        lb_join_stand_at(join, meeting.ops[r], meeting.parts[r]);
        if (r && meeting.told[r].n_moves && meeting.told[r].n_moves == meeting.told[0].n_moves &&
            !memcmp(meeting.told[r].moves, meeting.told[0].moves,
                    meeting.told[0].n_moves * sizeof *meeting.told[0].moves)) {
            for (uint32_t i = 0; i < received[0].n; i++) add_piece(join, &received[r], received[0].list[i]);
        } else
            list_received(&meeting, r, &received[r]);
    }
    for (uint32_t r = 0; r < meeting.n && known && !join->failed; r++) {
        lb_join_stand_at(join, meeting.ops[r], meeting.parts[r]);
        known = hand_out(join, &meeting.told[r], meeting.parts[r], &received[r]);
    }
    if (!known) join->n_ops = before;
    for (uint32_t r = 0; r < meeting.n && !known && !join->failed; r++) {
        lb_join_stand_at(join, meeting.ops[r], lb_program_view_part_of(join->view, meeting.ops[r]));
        lb_join_write_recorded(join, meeting.ops[r]);
    }
    for (uint32_t r = 0; received && r < meeting.n; r++) free(received[r].list);
    join->called = LB_NONE;
    if (meeting.told) lb_collective_told_release(meeting.told, meeting.n);
    free(received), free(meeting.parts), free(meeting.told);
}
