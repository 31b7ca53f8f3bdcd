/* What leaves the step: see counterpart_exits.h. */
#include "counterparts/counterpart_exits.h"

#include "counterparts/rank_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct finder {
    const lb_exact_side *sides[2];
    const lb_step_sources *sources_a;
    const lb_contents *contents; /* which tables are padded */
    lb_counterparts *out;
    bool failed;
} finder;

static int64_t numel(const lb_program *p, uint32_t v)
{
    return lb_layout_numel(&p->values[v].layout);
}

/* Does an op of forward go on computing from it? One that hands a number to Python does not, and what backward reads
 * again is a result all the same: a loss by `logsumexp` is. */
static bool is_gone_on_from(const lb_exact_side *s, uint32_t v, bool trains)
{
    for (uint32_t k = s->graph.first_use[v]; k < s->graph.first_use[v + 1]; k++) {
        const lb_op *op = &s->program->ops[s->graph.uses[k]];
        if (lb_op_is_of_forward(op, trains) && !(op->flags & LB_OP_DECISION)) return true;
    }
    return false;
}

/* Is it one number that forward ends with, the first result of its op? The count that `nll_loss_forward` gives beside
 * the loss is none, nor is a constant. */
static bool is_last_number(const lb_exact_side *s, uint32_t v, bool trains)
{
    const lb_program *p = s->program;
    const bool constant = s->graph.first_pred[v] == s->graph.first_pred[v + 1];
    if (!s->graph.given[v] || constant || numel(p, v) != 1 || is_gone_on_from(s, v, trains)) return false;
    const lb_op *op = &p->ops[s->graph.giver[v]];
    return lb_op_is_of_forward(op, trains) && lb_op_outcomes(op) && lb_op_outcome(p, op, 0) == v &&
           lb_value_graph_computes(p, op);
}

/* Does an op go on from the value, or from a window on it? Windows that were there before are none on it. */
static bool is_read(const lb_exact_side *s, uint32_t v)
{
    uint32_t at = 0, window;
    bool read = s->graph.first_use[v] < s->graph.first_use[v + 1];
    while (!read && (window = lb_exact_side_window(s, v, &at)) != LB_NONE) read = window > v;
    return read;
}

/* What a program that calls no module ends with: numbers of forward that nothing goes on from, through the last window
 * on them. */
static bool is_last_of_functions(const lb_exact_side *s, uint32_t v)
{
    const lb_program *p = s->program;
    const uint32_t giver = s->graph.giver[v];
    if (giver == LB_NONE || s->graph.first_pred[v] == s->graph.first_pred[v + 1] || is_read(s, v)) return false;
    if (!lb_op_is_of_forward(&p->ops[giver], false) || lb_op_is_source(p, &p->ops[giver])) return false;
    return !s->graph.given[v] || lb_op_outcome(p, &p->ops[giver], 0) == v;
}

static bool is_listed(const uint32_t *list, uint32_t n, uint32_t v)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

/* What a program that only infers ends with: the last numbers that an outermost module (in the list) or the program's
 * own code behind its modules gives, and that nothing goes on from (pooled rows, shares of a sampler, all answers in
 * one tensor); LB_NONE: there are none. */
static uint32_t last_of_program(const lb_exact_side *s, const uint32_t *list, uint32_t n)
{
    const lb_program *p = s->program;
    for (uint32_t i = lb_op_any_backward(p) ? 0 : p->n_ops; i-- > 0;) {
        const lb_op *op = &p->ops[i];
        const uint32_t v = lb_op_is_source(p, op) || !lb_op_outcomes(op) ? LB_NONE : lb_op_outcome(p, op, 0);
        if (v == LB_NONE || numel(p, v) < 2 || !lb_dtype_is_float(p->values[v].dtype)) continue;
        if ((!op->scope || is_listed(list, n, v)) && is_last_of_functions(s, v)) return v;
    }
    return LB_NONE;
}

/* Results of the outermost module calls, then numbers that forward ends with: losses, numbers that Python reads. */
static uint32_t list_exits(const lb_exact_side *s, uint32_t **out)
{
    const lb_program *p = s->program;
    uint8_t *called = calloc(p->n_scopes + 1, 1), *listed = calloc(p->n_values + 1, 1);
    const bool trains = lb_op_any_backward(p);
    uint32_t n = 0;
    bool calls = trains;
    *out = malloc((p->n_boundaries + p->n_values + 1) * sizeof **out);
    for (uint32_t i = 0; i < p->n_boundaries && !calls; i++) calls = p->boundaries[i].output;
    for (uint32_t i = 0; called && i < p->n_boundaries; i++) called[p->boundaries[i].scope] |= p->boundaries[i].output;
    for (uint32_t i = 0; called && listed && *out && i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        bool outermost = b->output && !b->recompute && b->value != LB_NONE;
        for (uint32_t scope = b->scope; outermost && scope;) {
            scope = p->scopes[scope].parent == LB_NONE ? 0 : p->scopes[scope].parent;
            outermost = !called[scope];
        }
        if (!outermost || listed[b->value] || s->graph.giver[b->value] == LB_NONE ||
            !lb_dtype_is_float(p->values[b->value].dtype))
            continue;
        listed[b->value] = 1, (*out)[n++] = b->value;
    }
    for (uint32_t v = 0; called && listed && *out && v < p->n_values; v++)
        if (!listed[v] && lb_dtype_is_float(p->values[v].dtype) &&
            (is_last_number(s, v, trains) || (!calls && is_last_of_functions(s, v))))
            (*out)[n++] = v;
    free(called), free(listed);
    return n;
}

/* The op behind the last call that hands the value out: what goes on from it before is in that call. */
static uint32_t handed_out_at(const lb_program *p, uint32_t value)
{
    uint32_t op = 0;
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (b->output && !b->recompute && b->value == value && b->op > op) op = b->op;
    }
    return op;
}

/* Does an op in a module of forward go on from the value that was handed out, directly or through ops that lie in none?
 * A program whose outermost module is never called itself hands the results of one part to the next one: these do not
 * leave. A result that its own module reads, too (as a pooler does), leaves. */
static bool enters_module(const lb_exact_side *s, uint32_t value, uint8_t *reached)
{
    const lb_program *p = s->program;
    const lb_value_graph *g = &s->graph;
    const bool trains = lb_op_any_backward(p);
    const uint32_t behind = handed_out_at(p, value);
    memset(reached, 0, p->n_values);
    reached[value] = 1;
    for (uint32_t v = value + 1; v < p->n_values; v++) {
        const lb_op *op = g->giver[v] == LB_NONE ? NULL : &p->ops[g->giver[v]];
        if (!op || g->giver[v] < behind || !lb_op_is_of_forward(op, trains) || !lb_dtype_is_float(p->values[v].dtype))
            continue;
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1] && !reached[v]; k++)
            reached[v] = reached[g->preds[k]];
        if (reached[v] && g->given[v] && op->scope) return true;
    }
    return false;
}

static void leave_out_inner(const lb_exact_side *s, uint32_t *list, uint32_t *n)
{
    uint8_t *reached = malloc((size_t)s->program->n_values + 1);
    uint32_t kept = 0;
    for (uint32_t i = 0; reached && i < *n; i++)
        if (!enters_module(s, list[i], reached)) list[kept++] = list[i];
    if (reached) *n = kept;
    free(reached);
}

/* Does each side give out as many, of the same shapes in the same order? */
static bool are_shaped_alike(const lb_exact_side *const sides[2], uint32_t *const lists[2], const uint32_t n[2])
{
    bool alike = n[0] == n[1];
    for (uint32_t i = 0; i < n[0] && alike; i++)
        alike = lb_layout_same_shape(&sides[0]->program->values[lists[0][i]].layout,
                                     &sides[1]->program->values[lists[1][i]].layout);
    return alike;
}

static uint32_t count_shaped(const lb_exact_side *s, const uint32_t *list, uint32_t n, const lb_layout *shape)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) found += lb_layout_same_shape(&s->program->values[list[i]].layout, shape);
    return found;
}

/* Where one side gives out more of a shape than the other (the results of all layers, and not only the last one's), the
 * last that were computed come first: what both give out is what the model ends with. */
static void put_last_first(const lb_exact_side *const sides[2], uint32_t *const lists[2], const uint32_t n[2], int side)
{
    const lb_exact_side *s = sides[side];
    uint32_t *list = lists[side];
    for (uint32_t i = 1; i < n[side]; i++)
        for (uint32_t j = i; j > 0; j--) {
            const lb_layout *l = &s->program->values[list[j]].layout;
            uint32_t k = j;
            while (k > 0 && !lb_layout_same_shape(&s->program->values[list[k - 1]].layout, l)) k--;
            if (!k || s->graph.giver[list[k - 1]] >= s->graph.giver[list[j]] ||
                count_shaped(sides[0], lists[0], n[0], l) == count_shaped(sides[1], lists[1], n[1], l))
                break;
            const uint32_t later = list[j];
            list[j] = list[k - 1], list[k - 1] = later;
            j = k;
        }
}

static void take_out(uint32_t *list, uint32_t *n, const uint32_t *values, uint32_t many)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++) {
        bool out = false;
        for (uint32_t k = 0; k < many; k++) out |= list[i] == values[k];
        if (!out) list[kept++] = list[i];
    }
    *n = kept;
}

/* Exits that ranks have in parts, and the other side whole or split differently. */
static void put_lone_exits(finder *m)
{
    lb_rank_parts parts[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++)
        m->failed |= !lb_rank_parts_group(m->sides[k], m->out->lone[k], m->out->n_lone[k], &parts[k]);
    for (uint32_t i = 0; i < parts[0].n_groups && !m->failed; i++)
        for (uint32_t j = 0; j < parts[1].n_groups && !m->failed; j++) {
            const uint32_t row[] = {i, j};
            bool added = false, there = true;
            for (int k = 0; k < 2; k++) there &= parts[k].values[parts[k].first[row[k]]] != LB_NONE;
            const uint32_t *a = parts[0].first + i, *b = parts[1].first + j;
            if (there)
                m->failed |= !lb_rank_parts_put(m->out, LB_COUNTERPART_EXIT, m->sides[0], parts[0].values + a[0],
                                                a[1] - a[0], m->sides[1], parts[1].values + b[0], b[1] - b[0], &added);
            for (int k = 0; k < 2 && added; k++) {
                uint32_t *values = parts[k].values + parts[k].first[row[k]];
                take_out(m->out->lone[k], &m->out->n_lone[k], values,
                         parts[k].first[row[k] + 1] - parts[k].first[row[k]]);
                values[0] = LB_NONE;
            }
        }
    for (int k = 0; k < 2; k++) lb_rank_parts_release(&parts[k]);
}

/* The sum of what ranks have (joined_losses.h) stands in for their mean where the other side has that; of other many
 * ranks it is another number. */
static bool is_sum_of_ranks(const lb_exact_side *s, uint32_t v)
{
    const uint32_t op = s->graph.giver[v];
    return !lb_program_view_is_recorded(s->view, v) && op != LB_NONE && lb_value_graph_adds(s->program, op);
}

/* The shape in which a side shows the value last: that of the last view of all of it, row by row. No op reads such a
 * view, so that it is none of the graph's. */
static const lb_layout *shape_shown(const lb_exact_side *s, uint32_t v)
{
    const lb_program *p = s->program;
    const lb_value *value = &p->values[v];
    const lb_layout *shape = &value->layout;
    for (uint32_t i = s->graph.giver[v] + 1; lb_layout_is_contiguous(&value->layout) && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        const uint32_t shown = op->flags & LB_OP_VIEW && lb_op_outcomes(op) ? lb_op_outcome(p, op, 0) : LB_NONE;
        if (shown == LB_NONE || p->values[shown].storage != value->storage) continue;
        const lb_layout *l = &p->values[shown].layout;
        if (l->offset == value->layout.offset && lb_layout_is_contiguous(l) && numel(p, shown) == numel(p, v))
            shape = l;
    }
    return shape;
}

/* What both end with stands beside each other where it has one shape. In another shape of as many elements it is not
 * known which is which: it is there on either side alone, unless these are the same numbers. Else it says nothing. */
static void put_last(finder *m, uint32_t *const lists[2], uint32_t n[2])
{
    const uint32_t last[] = {last_of_program(m->sides[0], lists[0], n[0]),
                             last_of_program(m->sides[1], lists[1], n[1])};
    if (last[0] == LB_NONE || last[1] == LB_NONE ||
        numel(m->sides[0]->program, last[0]) != numel(m->sides[1]->program, last[1]))
        return;
    const bool listed[] = {is_listed(lists[0], n[0], last[0]), is_listed(lists[1], n[1], last[1])};
    const bool alike = lb_layout_same_shape(shape_shown(m->sides[0], last[0]), shape_shown(m->sides[1], last[1]));
    if (alike ? listed[0] && listed[1] : listed[0] || listed[1]) return;
    for (int k = 0; k < 2; k++) {
        take_out(lists[k], &n[k], &last[k], 1);
        if (!alike) m->out->lone[k][m->out->n_lone[k]++] = last[k];
    }
    m->failed |= alike && !lb_counterparts_add(m->out, LB_COUNTERPART_EXIT, last[0], last[1],
                                               numel(m->sides[1]->program, last[1]));
}

/* Does one side hold a table of as many rows more, which pad the other side's? */
static bool is_table_padded(const finder *m, int64_t of_a, int64_t of_b)
{
    for (uint32_t i = 0; i < m->contents->n; i++) {
        const lb_content *c = &m->contents->list[i];
        if (c->relation == LB_CONTENT_PADDED && of_b > of_a && c->all * of_a == c->found * of_b) return true;
        if (c->relation != LB_CONTENT_SPLIT || c->found != c->all || of_a <= of_b) continue;
        if (lb_layout_numel(&m->sources_a->tensors[c->tensor].tensor.layout) * of_b == c->all * of_a) return true;
    }
    return false;
}

/* Scores of a vocabulary that one side padded: of each row the first ones stand beside each other. */
static bool put_padded(finder *m, uint32_t va, uint32_t vb)
{
    const lb_layout *a = &m->sides[0]->program->values[va].layout, *b = &m->sides[1]->program->values[vb].layout;
    const int32_t d = a->ndim - 1;
    bool alike = d >= 1 && b->ndim == a->ndim && a->shape[d] > 0 && b->shape[d] > 0 && a->shape[d] != b->shape[d];
    for (int32_t k = 0; k < d && alike; k++) alike = a->shape[k] == b->shape[k];
    if (!alike || !is_table_padded(m, a->shape[d], b->shape[d])) return false;
    const int64_t rows = lb_layout_numel(a) / a->shape[d], both = a->shape[d] < b->shape[d] ? a->shape[d] : b->shape[d];
    const uint32_t first = m->out->n_pieces;
    for (int64_t i = 0; i < rows && !m->failed; i++)
        m->failed |=
            !lb_counterparts_add_piece(m->out, (lb_content_run){va, i * a->shape[d], 1, i * b->shape[d], 1, both});
    m->failed |= !m->failed && !lb_counterparts_close(m->out, LB_COUNTERPART_EXIT, vb, first);
    return true;
}

static void find_exits(finder *m)
{
    uint32_t *lists[2] = {NULL, NULL}, n[2];
    for (int k = 0; k < 2; k++) n[k] = list_exits(m->sides[k], &lists[k]);
    for (int k = 0; k < 2; k++) m->out->lone[k] = malloc((n[k] + 2) * sizeof *m->out->lone[k]);
    m->failed |= !lists[0] || !lists[1] || !m->out->lone[0] || !m->out->lone[1];
    if (!m->failed) put_last(m, lists, n);
    const bool cut = m->sides[0]->tokens || lb_rank_parts_are_parted(m->sides);
    if (lists[0] && lists[1] && !cut && !are_shaped_alike(m->sides, lists, n))
        for (int k = 0; k < 2; k++) leave_out_inner(m->sides[k], lists[k], &n[k]);
    for (int k = 0; k < 2 && lists[0] && lists[1]; k++) put_last_first(m->sides, lists, n, k);
    uint8_t *taken = calloc(n[1] + 1, 1);
    m->failed |= !taken;
    for (uint32_t i = 0; i < n[0] && !m->failed; i++) {
        uint32_t best = LB_NONE;
        bool padded = false;
        if (is_sum_of_ranks(m->sides[0], lists[0][i])) {
            m->out->lone[0][m->out->n_lone[0]++] = lists[0][i];
            continue;
        }
        const int passes = m->sides[0]->tokens && numel(m->sides[0]->program, lists[0][i]) > 1 ? 0
                           : lb_rank_parts_are_parted(m->sides)                                ? 1
                                                                                               : 2;
        for (int pass = 0; pass < passes && best == LB_NONE;
             pass++) /* ranks may have different parts of as many elements */
            for (uint32_t j = 0; j < n[1] && best == LB_NONE; j++) {
                if (taken[j] || is_sum_of_ranks(m->sides[1], lists[1][j]) ||
                    numel(m->sides[0]->program, lists[0][i]) != numel(m->sides[1]->program, lists[1][j]))
                    continue;
                if (pass || lb_layout_same_shape(&m->sides[0]->program->values[lists[0][i]].layout,
                                                 &m->sides[1]->program->values[lists[1][j]].layout))
                    best = j;
            }
        for (uint32_t j = 0; j < n[1] && best == LB_NONE && passes; j++)
            if (!taken[j] && put_padded(m, lists[0][i], lists[1][j])) best = j, padded = true;
        if (best == LB_NONE) {
            m->out->lone[0][m->out->n_lone[0]++] = lists[0][i];
            continue;
        }
        taken[best] = 1;
        if (padded) continue;
        m->failed |= !lb_counterparts_add(m->out, LB_COUNTERPART_EXIT, lists[0][i], lists[1][best],
                                          numel(m->sides[1]->program, lists[1][best]));
    }
    for (uint32_t j = 0; j < n[1] && !m->failed; j++)
        if (!taken[j]) m->out->lone[1][m->out->n_lone[1]++] = lists[1][j];
    free(lists[0]), free(lists[1]), free(taken);
    if (!m->failed) put_lone_exits(m);
}

bool lb_counterpart_exits_find(const lb_exact_side *a, const lb_exact_side *b, const lb_step_sources *sources_a,
                               const lb_contents *contents, lb_counterparts *out)
{
    finder f = {.sides = {a, b}, .sources_a = sources_a, .contents = contents, .out = out};
    find_exits(&f);
    return !f.failed;
}

/* ---- exits by their numbers ---- */

static bool is_same_exit(const lb_exact_side *a, const lb_exact_side *b, uint32_t va, uint32_t vb)
{
    return va != LB_NONE && vb != LB_NONE && numel(a->program, va) == numel(b->program, vb) &&
           lb_quantities_agree(&a->quantities[va], &b->quantities[vb]);
}

static void swap(uint32_t *x, uint32_t *y)
{
    const uint32_t kept = *x;
    *x = *y, *y = kept;
}

/* The same, for one that was left over: runs keep numbers of what an op gave, and not of a window that shows all of
 * it. */
static void swap_left_over(const lb_exact_side *s, uint32_t *x, uint32_t *left_over)
{
    swap(x, left_over);
    *x = lb_value_graph_whole(&s->graph, *x);
}

/* Of what is in parts, elements are told by tokens or places: those stay. */
bool lb_counterpart_exits_exchange(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b)
{
    bool any = false;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        uint32_t *va = &all->pieces[c->first].tensor;
        if (c->kind != LB_COUNTERPART_EXIT || c->state != LB_COUNTERPART_APART || c->in_parts) continue;
        bool met = false;
        for (uint32_t k = 0; k < all->n_lone[1] && !met; k++)
            if ((met = is_same_exit(a, b, *va, all->lone[1][k]))) swap_left_over(b, &c->b, &all->lone[1][k]);
        for (uint32_t k = 0; k < all->n_lone[0] && !met; k++)
            if ((met = is_same_exit(a, b, all->lone[0][k], c->b))) swap_left_over(a, va, &all->lone[0][k]);
        for (uint32_t k = 0; k < all->n && !met; k++) {
            lb_counterpart *d = &all->list[k];
            if (d->kind == LB_COUNTERPART_EXIT && d->state == LB_COUNTERPART_APART && k != i && !d->in_parts &&
                (met = is_same_exit(a, b, *va, d->b)))
                swap(&c->b, &d->b);
        }
        any |= met;
    }
    return any;
}
