/* Collectives as ops: see join_collective.h. */
#include "joined/join_collective.h"

#include "ranks/collective_names.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct pieces {
    uint32_t *list, n; /* values: of one dimension, or a whole input */
} pieces;

static void add_piece(lb_join *j, pieces *out, uint32_t v)
{
    uint32_t *more = lb_array_grow(out->list, out->n, sizeof *more);
    j->failed |= !more;
    if (more) out->list = more, out->list[out->n++] = v;
}

/* Where parts of a contiguous value that ops wrote by themselves begin and end, in elements of it; sorted. A bucket of
 * gradients has as many as there are gradients in it. */
static int64_t *list_borders(lb_join *j, uint32_t v, uint32_t *n)
{
    const lb_value *whole = &j->p->values[v];
    const int64_t all = lb_layout_numel(&whole->layout);
    int64_t *list = NULL;
    *n = 0;
    for (uint32_t i = 0; i < j->n_ops && lb_layout_is_contiguous(&whole->layout); i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&j->ops[i]); k++) {
            const uint32_t w = lb_op_outcome(j->p, &j->ops[i], k);
            if (w == LB_NONE || j->p->values[w].storage != whole->storage || j->ops[i].flags & LB_OP_VIEW) continue;
            const lb_layout *l = &j->p->values[w].layout;
            const int64_t from = l->offset - whole->layout.offset, to = from + lb_layout_numel(l);
            for (int end = 0; end < 2 && lb_layout_is_contiguous(l); end++) {
                const int64_t border = end ? to : from;
                if (border <= 0 || border >= all) continue;
                int64_t *more = lb_array_grow(list, *n, sizeof *more);
                j->failed |= !more;
                if (more) list = more, list[(*n)++] = border;
            }
        }
    if (*n) qsort(list, *n, sizeof *list, lb_by_i64);
    return list;
}

/* The elements [from, to) of a value that is contiguous, at its borders. */
static void cut_at_borders(lb_join *j, uint32_t v, int64_t from, int64_t to, pieces *out)
{
    uint32_t n;
    int64_t *borders = list_borders(j, v, &n), at = from;
    for (uint32_t i = 0; i <= n && !j->failed; i++) {
        const int64_t end = i < n && borders[i] < to ? borders[i] : to, length = end - at;
        if (length <= 0) continue;
        const lb_layout shape = lb_layout_contiguous(1, &length);
        add_piece(j, out, at == 0 && end == lb_join_numel(j, v) ? v : lb_join_reshaped(j, v, &shape, at));
        at = end;
    }
    free(borders);
}

/* Elements [first, first + n) of what a member brings, which is its inputs one behind the other. `fine`: also where
 * parts of them were written by themselves. */
static void cut(lb_join *j, const lb_collective_told *member, uint32_t part, int64_t first, int64_t n, bool fine,
                pieces *out)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < member->n_inputs && !j->failed; i++) {
        const uint32_t v = j->view->parts[part].first_value + member->inputs[i];
        const int64_t size = lb_join_numel(j, v), from = first > at ? first - at : 0,
                      to = first + n < at + size ? first + n - at : size;
        at += size;
        if (from >= to) continue;
        if (fine && lb_layout_is_contiguous(&j->p->values[v].layout)) {
            cut_at_borders(j, v, from, to, out);
            continue;
        }
        if (from == 0 && to == size) {
            add_piece(j, out, v);
            continue;
        }
        const int64_t length = to - from;
        const lb_layout shape = lb_layout_contiguous(1, &length);
        const uint32_t whole = lb_join_dense(j, v);
        if (!j->failed) add_piece(j, out, lb_join_reshaped(j, whole, &shape, from));
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

static bool all_alike(const lb_join *j, const pieces *of, uint32_t n, uint32_t i)
{
    for (uint32_t r = 1; r < n; r++)
        if (!lb_layout_same_shape(&j->p->values[of[r].list[i]].layout, &j->p->values[of[0].list[i]].layout))
            return false;
    return true;
}

/* One number of all members' for each element; in the order of ranks. */
static uint32_t reduce_pieces(lb_join *j, const char *reduce, const pieces *of, uint32_t n, uint32_t i)
{
    const bool alike = all_alike(j, of, n, i);
    uint32_t sum = LB_NONE;
    for (uint32_t r = 0; r < n && !j->failed; r++) {
        uint32_t v = of[r].list[i];
        if (!alike) {
            const int64_t length = lb_join_numel(j, v);
            const lb_layout flat = lb_layout_contiguous(1, &length);
            v = lb_join_reshaped(j, lb_join_dense(j, v), &flat, 0);
        }
        if (sum == LB_NONE) {
            sum = v;
            continue;
        }
        const lb_layout shape = j->p->values[sum].layout;
        const uint32_t next = lb_join_fresh(j, j->p->values[sum].dtype, &shape);
        const lb_arg args[] = {lb_join_value_arg(sum), lb_join_value_arg(v), lb_join_int_arg(1)};
        if (!j->failed)
            lb_join_write_op(j, pair_op(reduce), args, strcmp(pair_op(reduce), "aten::add.Tensor") ? 2 : 3, next);
        sum = next;
    }
    if (!strcmp(reduce, "avg") && !j->failed) {
        const lb_layout shape = j->p->values[sum].layout;
        const uint32_t mean = lb_join_fresh(j, j->p->values[sum].dtype, &shape);
        const lb_arg args[] = {lb_join_value_arg(sum), lb_join_int_arg(n)};
        if (!j->failed) lb_join_write_op(j, "aten::div.Scalar", args, 2, mean);
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
static bool cut_alike(const meeting *m, int64_t first, int64_t n, bool fine, pieces *of)
{
    lb_join *j = m->joiner;
    for (uint32_t r = 0; r < m->n && !j->failed; r++) {
        of[r].n = 0;
        cut(j, &m->told[r], m->parts[r], first, n, fine, &of[r]);
        if (of[r].n != of[0].n) return false;
        for (uint32_t i = 0; i < of[r].n; i++)
            if (lb_join_numel(j, of[r].list[i]) != lb_join_numel(j, of[0].list[i])) return false;
    }
    return !j->failed;
}

static void add_reduced(const meeting *m, int64_t first, int64_t n, pieces *out)
{
    lb_join *j = m->joiner;
    pieces *of = calloc(m->n, sizeof *of);
    j->failed |= !of;
    const bool fits = of && (cut_alike(m, first, n, true, of) || cut_alike(m, first, n, false, of));
    j->standing = 0;
    for (uint32_t r = 0; r < m->n; r++) j->standing |= lb_program_view_rank_bit(m->parts[r]);
    for (uint32_t i = 0; fits && i < of[0].n && !j->failed; i++)
        add_piece(j, out, reduce_pieces(j, m->reduce, of, m->n, i));
    j->standing = 0;
    for (uint32_t r = 0; of && r < m->n; r++) free(of[r].list);
    free(of);
}

/* All that the member is given, piece by piece. */
static void list_received(const meeting *m, uint32_t who, pieces *out)
{
    for (uint32_t k = 0; k < m->told[who].n_moves && !m->joiner->failed; k++) {
        const lb_collective_move *move = &m->told[who].moves[k];
        if (move->member == LB_NONE)
            add_reduced(m, move->first, move->n, out);
        else
            cut(m->joiner, &m->told[move->member], m->parts[move->member], move->first, move->n, false, out);
    }
}

/* The pieces behind each other, in the shape of `to`. */
static uint32_t put_together(lb_join *j, const pieces *of, uint32_t first, uint32_t n, uint32_t to)
{
    lb_arg *list = malloc((n + 1) * sizeof *list);
    const lb_layout shape = j->p->values[to].layout;
    j->failed |= !list;
    for (uint32_t i = 0; i < n && !j->failed; i++) {
        const int64_t length = lb_join_numel(j, of->list[first + i]);
        const lb_layout flat = lb_layout_contiguous(1, &length);
        list[i] = lb_join_value_arg(lb_join_reshaped(j, lb_join_dense(j, of->list[first + i]), &flat, 0));
    }
    const int64_t all = lb_layout_numel(&shape);
    const lb_layout flat = lb_layout_contiguous(1, &all);
    const uint32_t joined = j->failed ? LB_NONE : lb_join_fresh(j, j->p->values[to].dtype, &flat);
    const lb_arg args[] = {
        {.tag = LB_ARG_LIST, .count = n, .u.first = j->failed ? 0 : lb_program_add_args(j->p, list, n)},
        lb_join_int_arg(0)};
    free(list);
    if (j->failed) return LB_NONE;
    lb_join_write_op(j, "aten::cat", args, 2, joined);
    return lb_join_reshaped(j, joined, &shape, 0);
}

/* Each piece where it lies in `to`, by itself: what reads one of them follows from that alone. */
static void write_parts(lb_join *j, const pieces *of, uint32_t first, uint32_t n, uint32_t to)
{
    int64_t at = 0;
    for (uint32_t i = first; i < first + n && !j->failed; i++) {
        const lb_layout shape = j->p->values[of->list[i]].layout;
        lb_value window = j->p->values[to];
        window.layout = lb_layout_contiguous(shape.ndim, shape.shape),
        window.layout.offset = j->p->values[to].layout.offset + at;
        window.logical = window.blob = (lb_digest){0}, window.name = LB_NONE;
        at += lb_layout_numel(&shape);
        const uint32_t part = lb_join_add_value(j, &window);
        if (!j->failed) lb_join_write_clone(j, of->list[i], part);
    }
}

static bool reduces(const lb_collective_told *told)
{
    for (uint32_t i = 0; i < told->n_moves; i++)
        if (told->moves[i].member != LB_NONE) return false;
    return told->n_moves > 0;
}

/* Hands each output its part of the pieces. False: they do not fit. */
static bool hand_out(lb_join *j, const lb_collective_told *told, uint32_t part, const pieces *of)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < told->n_outputs && !j->failed; i++) {
        const uint32_t v = j->view->parts[part].first_value + told->outputs[i], first = next;
        int64_t left = lb_join_numel(j, v);
        while (left > 0 && next < of->n) left -= lb_join_numel(j, of->list[next++]);
        if (left) return false;
        if (next == first) continue;
        uint32_t from = of->list[first];
        const lb_layout shape = j->p->values[v].layout;
        if (next - first > 1 && reduces(told) && lb_layout_is_contiguous(&shape)) {
            write_parts(j, of, first, next - first, v);
            continue;
        }
        if (next - first > 1)
            from = put_together(j, of, first, next - first, v);
        else if (!lb_layout_same_shape(&j->p->values[from].layout, &shape))
            from = lb_join_reshaped(j, lb_join_dense(j, from), &shape, 0);
        if (!j->failed) lb_join_write_clone(j, from, v);
    }
    return true;
}

static bool brings_undefined(const meeting *m)
{
    for (uint32_t r = 0; r < m->n; r++)
        for (uint32_t i = 0; i < m->told[r].n_inputs; i++) {
            const lb_value *v =
                &m->joiner->p->values[m->joiner->view->parts[m->parts[r]].first_value + m->told[r].inputs[i]];
            bool read = false;
            for (uint32_t who = 0; who < m->n && !read; who++)
                for (uint32_t k = 0; k < m->told[who].n_moves && !read; k++)
                    read = m->told[who].moves[k].member == r || m->told[who].moves[k].member == LB_NONE;
            if (read && v->flags & LB_VALUE_UNDEFINED) return true;
        }
    return false;
}

static bool tell(meeting *m)
{
    lb_join *j = m->joiner;
    const lb_program **programs = calloc(m->n, sizeof *programs);
    uint32_t *ops = calloc(m->n, sizeof *ops);
    const lb_program *recorded;
    bool told = programs && ops;
    j->failed |= !told;
    for (uint32_t r = 0; r < m->n && told; r++) {
        m->parts[r] = lb_program_view_part_of(j->view, m->ops[r]);
        programs[r] = j->view->parts[m->parts[r]].program, ops[r] = m->ops[r] - j->view->parts[m->parts[r]].first_op;
    }
    told = told && lb_collective_run_tell(programs, ops, m->n, m->told, NULL) == LB_OK;
    free(programs), free(ops);
    const lb_collective *row = lb_collective_of_side(j->view, m->ops[0], &recorded);
    m->reduce = row && row->reduce != LB_NONE ? lb_program_text(recorded, row->reduce) : "sum";
    return told && pair_op(m->reduce) && !brings_undefined(m);
}

void lb_join_collective_write(lb_join *j, uint32_t row)
{
    meeting m = {.joiner = j,
                 .ops = j->collective_matches.ops + j->collective_matches.list[row].first,
                 .n = j->collective_matches.list[row].n};
    m.parts = calloc(m.n, sizeof *m.parts), m.told = calloc(m.n, sizeof *m.told);
    j->failed |= !m.parts || !m.told;
    pieces *received = calloc(m.n, sizeof *received);
    j->failed |= !received;
    const uint32_t before = j->n_ops;
    j->called = j->p->ops[m.ops[0]].name;
    bool known = !j->failed && tell(&m);
    /* Before any of it is handed out: a member may be given it where what it brought lies. */
    for (uint32_t r = 0; r < m.n && known && !j->failed; r++) {
        lb_join_stand_at(j, m.ops[r], m.parts[r]);
        if (r && m.told[r].n_moves && m.told[r].n_moves == m.told[0].n_moves &&
            !memcmp(m.told[r].moves, m.told[0].moves, m.told[0].n_moves * sizeof *m.told[0].moves)) {
            for (uint32_t i = 0; i < received[0].n; i++) add_piece(j, &received[r], received[0].list[i]);
        } else
            list_received(&m, r, &received[r]);
    }
    for (uint32_t r = 0; r < m.n && known && !j->failed; r++) {
        lb_join_stand_at(j, m.ops[r], m.parts[r]);
        known = hand_out(j, &m.told[r], m.parts[r], &received[r]);
    }
    if (!known) j->n_ops = before;
    for (uint32_t r = 0; r < m.n && !known && !j->failed; r++) {
        lb_join_stand_at(j, m.ops[r], lb_program_view_part_of(j->view, m.ops[r]));
        lb_join_write_recorded(j, m.ops[r]);
    }
    for (uint32_t r = 0; received && r < m.n; r++) free(received[r].list);
    j->called = LB_NONE;
    if (m.told) lb_collective_told_release(m.told, m.n);
    free(received), free(m.parts), free(m.told);
}
