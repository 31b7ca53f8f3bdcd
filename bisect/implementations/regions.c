/* Parts of two implementations that are not the same function: see regions.h. */
#include "regions.h"

#include <lastbit/array.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- equal quantities ---- */

typedef struct keyed {
    double key;
    uint32_t value;
} keyed;

static int by_key(const void *x, const void *y)
{
    const keyed *a = x, *b = y;
    return a->key != b->key ? (a->key > b->key) - (a->key < b->key) : (a->value > b->value) - (a->value < b->value);
}

static keyed *sorted(const lb_exact_side *s, uint32_t *n)
{
    keyed *list = malloc((s->program->n_values + 1) * sizeof *list);
    *n = 0;
    for (uint32_t v = 0; list && v < s->program->n_values; v++)
        if (s->quantities[v].tells) list[(*n)++] = (keyed){lb_quantity_key(&s->quantities[v]), v};
    if (list && *n) qsort(list, *n, sizeof *list, by_key);
    return list;
}

uint32_t *lb_regions_meet(const lb_exact_side *mine, const lb_exact_side *other)
{
    const uint32_t n = mine->program->n_values;
    uint32_t *met = malloc((n + 1) * sizeof *met), many;
    keyed *list = sorted(other, &many);
    for (uint32_t v = 0; met && v < n; v++) {
        const lb_quantity *q = &mine->quantities[v];
        met[v] = LB_NONE;
        if (!q->tells || !list) continue;
        const double key = lb_quantity_key(q), reach = 4 * lb_quantity_reach(q);
        uint32_t low = 0, high = many;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (list[middle].key < key - reach)
                low = middle + 1;
            else
                high = middle;
        }
        for (; low < many && list[low].key <= key + reach && met[v] == LB_NONE; low++)
            if (lb_quantities_agree(q, &other->quantities[list[low].value])) met[v] = list[low].value;
    }
    if (!list) free(met), met = NULL;
    free(list);
    return met;
}

/* ---- regions ---- */

typedef struct finder {
    const lb_region_question *asked;
    uint8_t *same[2]; /* per value: the search ends here */
    uint8_t *held[2]; /* per source row: the other side has it */
    uint32_t *stamp[2], walk, *stack;
    lb_regions *out;
    bool failed;
} finder;

/* What shows some of a table is the same, too. */
static void mark_shown(finder *f, uint32_t source)
{
    const lb_value_graph *g = &f->asked->sides[1]->graph;
    for (uint32_t v = 0; v < g->program->n_values; v++)
        if (lb_value_graph_source(g, v) == source) f->same[1][v] = 1;
}

static void mark_same(finder *f)
{
    const lb_region_question *q = f->asked;
    for (int k = 0; k < 2; k++)
        for (uint32_t v = 0; v < q->sides[k]->program->n_values; v++) f->same[k][v] = q->met[k][v] != LB_NONE;
    for (uint32_t i = 0; i < q->counterparts->n; i++) {
        const lb_counterpart *c = &q->counterparts->list[i];
        if (c->state == LB_COUNTERPART_UNKNOWN) continue;
        f->same[1][c->b] = 1;
        if (c->kind == LB_COUNTERPART_TABLE) mark_shown(f, c->b);
        for (uint32_t k = 0; k < c->n; k++) f->same[0][q->counterparts->pieces[c->first + k].tensor] = 1;
    }
    for (uint32_t i = 0; i < q->contents->n; i++) {
        const lb_content *c = &q->contents->list[i];
        if (c->relation == LB_CONTENT_NONE) continue;
        f->held[1][i] = 1;
        for (uint32_t k = 0; k < c->n; k++) f->held[0][q->contents->runs[c->first + k].tensor] = 1;
    }
}

static bool is_source(const lb_exact_side *s, uint32_t v)
{
    return s->graph.giver[v] != LB_NONE && lb_op_is_source(s->program, &s->program->ops[s->graph.giver[v]]);
}

static uint32_t source_row(const finder *f, int side, uint32_t v)
{
    const lb_exact_side *s = f->asked->sides[side];
    return f->asked->sources[side]->row_of[lb_op_results(s->program, &s->program->ops[s->graph.giver[v]])[0]];
}

static bool is_held(const finder *f, int side, uint32_t v)
{
    const uint32_t row = source_row(f, side, v);
    return row != LB_NONE && f->held[side][row];
}

static void add_op(finder *f, uint32_t op)
{
    uint32_t *more = lb_array_grow(f->out->ops, f->out->n_ops, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    f->out->ops = more;
    f->out->ops[f->out->n_ops++] = op;
}

/* Back from a value to where the sides meet; the ops on the way, each once. */
static void walk_back(finder *f, int side, uint32_t value, lb_region *r)
{
    const lb_exact_side *s = f->asked->sides[side];
    const lb_value_graph *g = &s->graph;
    uint32_t n = 0;
    if (f->stamp[side][value] == f->walk) return;
    f->stamp[side][value] = f->walk, f->stack[n++] = value;
    while (n) {
        const uint32_t v = f->stack[--n], op = g->giver[v];
        if (g->given[v] && op != LB_NONE && !is_source(s, v) &&
            lb_value_graph_computes(s->program, &s->program->ops[op]))
            add_op(f, op);
        if (is_source(s, v) && !is_held(f, side, v) && r->source[side] == LB_NONE &&
            lb_layout_numel(&s->program->values[v].layout) > 1)
            r->source[side] = lb_op_results(s->program, &s->program->ops[op])[0];
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
            const uint32_t from = g->preds[k];
            if (f->same[side][from] || f->stamp[side][from] == f->walk) continue;
            f->stamp[side][from] = f->walk, f->stack[n++] = from;
        }
    }
}

static void close_ops(finder *f, lb_region *r, int side)
{
    uint32_t *list = f->out->ops + r->first[side], n = f->out->n_ops - r->first[side], kept = 0;
    if (n > 1) qsort(list, n, sizeof *list, lb_by_u32);
    for (uint32_t k = 0; k < n; k++)
        if (!kept || list[kept - 1] != list[k]) list[kept++] = list[k];
    r->n[side] = kept, f->out->n_ops = r->first[side] + kept;
}

/* ---- which op of a region to name ---- */

/* All that the op reads is met: what it gives otherwise it makes itself. */
static bool begins_here(const finder *f, int side, uint32_t op)
{
    const lb_exact_side *s = f->asked->sides[side];
    const lb_value_graph *g = &s->graph;
    const uint32_t v =
        lb_op_outcomes(&s->program->ops[op]) ? lb_op_outcome(s->program, &s->program->ops[op], 0) : LB_NONE;
    if (v == LB_NONE) return false;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        uint32_t from = g->preds[k];
        for (uint32_t depth = 0; depth < 32 && !f->same[side][from]; depth++) { /* through copies and casts */
            if (is_source(s, from)) break;
            const uint32_t giver = g->giver[from], first = g->first_pred[from];
            if (giver == LB_NONE || (g->given[from] && lb_value_graph_computes(s->program, &s->program->ops[giver])) ||
                g->first_pred[from + 1] == first)
                return false;
            from = g->preds[first];
        }
        if (!f->same[side][from] && !(is_source(s, from) && is_held(f, side, from))) return false;
    }
    return true;
}

static bool same_name(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b)
{
    const char *x = lb_op_name(pa, a), *y = lb_op_name(pb, b);
    size_t n = strcspn(x, "."), m = strcspn(y, ".");
    while (n && x[n - 1] == '_') n--; /* in place or not */
    while (m && y[m - 1] == '_') m--;
    return n == m && !strncmp(x, y, n);
}

static uint32_t *ops_of(const finder *f, const lb_region *r, int side)
{
    return f->out->ops + r->first[side];
}

static uint32_t row_of_source(const finder *f, int side, uint32_t v)
{
    const uint32_t source = lb_value_graph_source(&f->asked->sides[side]->graph, v);
    return source == LB_NONE ? LB_NONE : f->asked->sources[side]->row_of[source];
}

/* Is a value of B what one of A is: by its numbers, or as a source? Values that tell nothing are not asked. */
static bool are_alike(const finder *f, uint32_t va, uint32_t vb)
{
    const lb_quantity *a = &f->asked->sides[0]->quantities[va], *b = &f->asked->sides[1]->quantities[vb];
    const uint32_t row[2] = {row_of_source(f, 0, va), row_of_source(f, 1, vb)};
    const bool held[2] = {row[0] != LB_NONE && f->held[0][row[0]], row[1] != LB_NONE && f->held[1][row[1]]};
    if (held[0] != held[1]) return false;
    if (held[0]) {
        const lb_content *c = &f->asked->contents->list[row[1]];
        for (uint32_t k = 0; k < c->n; k++)
            if (f->asked->contents->runs[c->first + k].tensor == row[0]) return true;
        return false;
    }
    return !a->tells || !b->tells || lb_quantities_agree(a, b);
}

typedef struct reads {
    uint32_t list[16], n;
} reads;

static void note_read(void *context, uint32_t value)
{
    reads *r = context;
    if (value != LB_NONE && r->n < sizeof r->list / sizeof *r->list) r->list[r->n++] = value;
}

static bool read_alike(const finder *f, uint32_t a, uint32_t b)
{
    const lb_program *pa = f->asked->sides[0]->program, *pb = f->asked->sides[1]->program;
    reads x = {.n = 0}, y = {.n = 0};
    lb_op_each_input(pa, &pa->ops[a], note_read, &x), lb_op_each_input(pb, &pb->ops[b], note_read, &y);
    for (uint32_t k = 0; k < x.n && k < y.n; k++)
        if (!are_alike(f, x.list[k], y.list[k])) return false;
    return x.n > 0 && y.n > 0;
}

/* One op, from the same inputs, with other arguments. */
static bool name_by_arguments(const finder *f, lb_region *r)
{
    const lb_program *pa = f->asked->sides[0]->program, *pb = f->asked->sides[1]->program;
    for (uint32_t i = 0; i < r->n[0]; i++)
        for (uint32_t j = 0; j < r->n[1]; j++) {
            const lb_op *a = &pa->ops[ops_of(f, r, 0)[i]], *b = &pb->ops[ops_of(f, r, 1)[j]];
            if (a->phase != b->phase || !same_name(pa, a, pb, b)) continue;
            if (!begins_here(f, 0, ops_of(f, r, 0)[i]) || !begins_here(f, 1, ops_of(f, r, 1)[j])) continue;
            if (!read_alike(f, ops_of(f, r, 0)[i], ops_of(f, r, 1)[j])) continue;
            if (a->args == b->args && lb_op_same_args(pa, a, pb, b, 0)) continue;
            r->op[0] = ops_of(f, r, 0)[i], r->op[1] = ops_of(f, r, 1)[j], r->reason = LB_REGION_ARGUMENTS;
            return true;
        }
    return false;
}

static uint32_t count_named(const finder *f, const lb_region *r, int side, const lb_program *p, const lb_op *op)
{
    const lb_program *q = f->asked->sides[side]->program;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n[side]; i++) n += same_name(p, op, q, &q->ops[ops_of(f, r, side)[i]]);
    return n;
}

/* An op that one side alone runs, where all ops of the other are among its own: something was left out. */
static bool name_by_absence(const finder *f, lb_region *r)
{
    uint32_t alone[2] = {LB_NONE, LB_NONE};
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        for (uint32_t i = 0; i < r->n[k] && alone[k] == LB_NONE; i++)
            if (!count_named(f, r, !k, p, &p->ops[ops_of(f, r, k)[i]])) alone[k] = ops_of(f, r, k)[i];
    }
    if ((alone[0] == LB_NONE) == (alone[1] == LB_NONE)) return false;
    r->op[0] = alone[0], r->op[1] = alone[1], r->reason = LB_REGION_MISSING;
    return true;
}

static uint32_t count_values(const lb_counterparts *all, const lb_counterpart *c)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n; k++) {
        uint32_t j = 0;
        while (j < k && all->pieces[c->first + j].tensor != all->pieces[c->first + k].tensor) j++;
        n += j == k;
    }
    return n;
}

/* B's one op stands beside those of all the values of A that make up its own: of all names but one as many, of that one too few. */
static bool name_by_count(const finder *f, lb_region *r)
{
    const lb_counterpart *c = &f->asked->counterparts->list[r->counterpart];
    const uint32_t times = c->n > 64 ? 1 : count_values(f->asked->counterparts, c);
    uint32_t odd[2] = {LB_NONE, LB_NONE};
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        for (uint32_t i = 0; i < r->n[k]; i++) {
            const uint32_t op = ops_of(f, r, k)[i];
            const uint32_t a = count_named(f, r, 0, p, &p->ops[op]), b = count_named(f, r, 1, p, &p->ops[op]) * times;
            if (a == b || (k == 0) != (a > b)) continue;
            if (odd[k] != LB_NONE && !same_name(p, &p->ops[odd[k]], p, &p->ops[op])) return false;
            if (odd[k] == LB_NONE) odd[k] = op;
        }
    }
    if ((odd[0] == LB_NONE) == (odd[1] == LB_NONE)) return false;
    r->op[0] = odd[0], r->op[1] = odd[1], r->reason = LB_REGION_MISSING;
    return true;
}

static uint32_t first_of(const finder *f, const lb_region *r, int side)
{
    for (uint32_t i = 0; i < r->n[side]; i++)
        if (begins_here(f, side, ops_of(f, r, side)[i])) return ops_of(f, r, side)[i];
    return r->n[side] ? ops_of(f, r, side)[0] : LB_NONE;
}

/* The first op of the region that reads the source. */
static uint32_t reader_of(const finder *f, const lb_region *r, int side)
{
    const lb_exact_side *s = f->asked->sides[side];
    for (uint32_t i = 0; i < r->n[side]; i++) {
        const lb_op *op = &s->program->ops[ops_of(f, r, side)[i]];
        if (lb_op_reads(s->program, op, s->program->values[r->source[side]].storage) != LB_NONE)
            return ops_of(f, r, side)[i];
    }
    return LB_NONE;
}

static void name_region(const finder *f, lb_region *r)
{
    if (name_by_arguments(f, r)) return;
    if (r->source[0] == LB_NONE && r->source[1] == LB_NONE && (name_by_absence(f, r) || name_by_count(f, r))) return;
    for (int k = 0; k < 2; k++) r->op[k] = first_of(f, r, k);
    r->reason = r->n[0] && r->n[1] ? LB_REGION_OPS : LB_REGION_MISSING;
    for (int k = 0; k < 2; k++) {
        const uint32_t reader = r->source[k] == LB_NONE ? LB_NONE : reader_of(f, r, k);
        if (reader != LB_NONE) r->op[k] = reader, r->reason = LB_REGION_SOURCE;
    }
}

static void find_region(finder *f, uint32_t row)
{
    const lb_counterparts *all = f->asked->counterparts;
    const lb_counterpart *c = &all->list[row];
    lb_region r = {
        .counterpart = row, .times = 1, .op = {LB_NONE, LB_NONE}, .source = {LB_NONE, LB_NONE}, .effect = NAN};
    f->walk++;
    r.first[0] = f->out->n_ops;
    for (uint32_t k = 0; k < c->n; k++) walk_back(f, 0, all->pieces[c->first + k].tensor, &r);
    close_ops(f, &r, 0);
    r.first[1] = f->out->n_ops;
    walk_back(f, 1, c->b, &r);
    close_ops(f, &r, 1);
    name_region(f, &r);
    lb_region *more = lb_array_grow(f->out->list, f->out->n, sizeof *more);
    f->failed |= !more;
    if (!more) return;
    f->out->list = more;
    f->out->list[f->out->n++] = r;
}

static uint32_t first_op(const lb_regions *all, const lb_region *r)
{
    return r->n[1] ? all->ops[r->first[1]] : r->n[0] ? all->ops[r->first[0]] : LB_NONE;
}

/* In B's order of execution; of regions that begin alike the one that ends first. */
static void sort_regions(finder *f)
{
    lb_regions *all = f->out;
    for (uint32_t i = 1; i < all->n; i++)
        for (uint32_t j = i; j > 0; j--) {
            lb_region *x = &all->list[j - 1], *y = &all->list[j];
            const uint32_t a = first_op(all, x), b = first_op(all, y);
            const uint32_t *giver = f->asked->sides[1]->graph.giver;
            const lb_counterpart *list = f->asked->counterparts->list;
            if (a < b || (a == b && giver[list[x->counterpart].b] <= giver[list[y->counterpart].b])) break;
            const lb_region swap = *x;
            *x = *y, *y = swap;
        }
}

/* One difference that shows in several regions: it lies in one op of both, in what both read, or in what the optimizer does with each parameter. */
static bool are_one(const finder *f, const lb_region *x, const lb_region *y)
{
    bool source = false, updates = true;
    if (x->reason != y->reason) return false;
    if (x->op[0] == y->op[0] && x->op[1] == y->op[1]) return true;
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        source |= x->source[k] != LB_NONE && x->source[k] == y->source[k];
        if ((x->op[k] == LB_NONE) != (y->op[k] == LB_NONE)) return false;
        if (x->op[k] == LB_NONE) continue;
        const lb_op *a = &p->ops[x->op[k]], *b = &p->ops[y->op[k]];
        updates &= a->phase == LB_PHASE_OPTIMIZER && b->phase == LB_PHASE_OPTIMIZER && a->name == b->name;
    }
    return updates || (source && x->reason == LB_REGION_SOURCE);
}

/* Is a choice in the region (experts, rows) that the other side made differently? Both run with the choices that they recorded. */
static bool chose_differently(const finder *f, const lb_region *r)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        for (uint32_t i = 0; i < r->n[k]; i++) {
            lb_op_form form;
            const lb_op *op = &p->ops[ops_of(f, r, k)[i]];
            const lb_op_row *row = lb_op_find(lb_op_name(p, op), &form);
            if (!row || !(row->flags & LB_ROW_DISCONTINUOUS)) continue;
            for (uint32_t j = 0; j < op->results; j++) {
                const uint32_t v = lb_op_results(p, op)[j];
                if (v != LB_NONE && lb_dtype_is_integer(p->values[v].dtype) &&
                    f->asked->sides[k]->quantities[v].tells && f->asked->met[k][v] == LB_NONE)
                    return true;
            }
        }
    }
    return false;
}

/* Behind a difference choices may fall differently, and what follows from them is no difference of its own. */
static void drop_flipped(finder *f)
{
    lb_regions *all = f->out;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->n; i++)
        if ((all->list[i].chosen = chose_differently(f, &all->list[i])) == false || !kept)
            all->list[kept++] = all->list[i];
    all->n = kept;
}

void lb_regions_join_alike(const lb_region_question *asked, lb_regions *all)
{
    const finder f = {.asked = asked, .out = all};
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        uint32_t j = 0;
        while (j < kept && !are_one(&f, &all->list[j], &all->list[i])) j++;
        if (j < kept)
            all->list[j].times++;
        else
            all->list[kept++] = all->list[i];
    }
    all->n = kept;
}

lb_status lb_regions_find(const lb_region_question *asked, lb_regions *out, lb_err *err)
{
    finder f = {.asked = asked, .out = out};
    uint32_t most = 0;
    bool room = true;
    *out = (lb_regions){0};
    for (int k = 0; k < 2; k++) {
        const uint32_t n = asked->sides[k]->program->n_values;
        f.same[k] = calloc(n + 1, 1), f.held[k] = calloc(asked->sources[k]->n + 1, 1),
        f.stamp[k] = calloc(n + 1, sizeof *f.stamp[k]);
        room = room && f.same[k] && f.held[k] && f.stamp[k];
        most = n > most ? n : most;
    }
    f.stack = malloc((most + 1) * sizeof *f.stack);
    room = room && f.stack;
    if (room) mark_same(&f);
    for (uint32_t i = 0; i < asked->counterparts->n && room && !f.failed; i++)
        if (asked->counterparts->list[i].state == LB_COUNTERPART_APART) find_region(&f, i);
    if (room && !f.failed) sort_regions(&f), drop_flipped(&f);
    for (int k = 0; k < 2; k++) free(f.same[k]), free(f.held[k]), free(f.stamp[k]);
    free(f.stack);
    if (room && !f.failed) return LB_OK;
    lb_regions_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for regions of %u values", most);
}

void lb_regions_release(lb_regions *r)
{
    free(r->list), free(r->ops);
    *r = (lb_regions){0};
}

/* ---- what regions share ---- */

static uint32_t last_shared(const lb_region_question *asked, const lb_regions *all, const lb_region *x,
                            const lb_region *y, int side, int64_t elements)
{
    const lb_exact_side *s = asked->sides[side];
    const uint32_t *a = all->ops + x->first[side], *b = all->ops + y->first[side];
    uint32_t i = x->n[side], j = y->n[side];
    while (i && j) {
        if (a[i - 1] != b[j - 1]) {
            if (a[i - 1] > b[j - 1])
                i--;
            else
                j--;
            continue;
        }
        const lb_op *op = &s->program->ops[a[i - 1]];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(s->program, op, 0) : LB_NONE;
        if (v != LB_NONE && lb_dtype_is_float(s->program->values[v].dtype) &&
            (elements < 0 || lb_layout_numel(&s->program->values[v].layout) == elements))
            return v;
        i--, j--;
    }
    return LB_NONE;
}

bool lb_regions_shared(const lb_region_question *asked, const lb_regions *all, uint32_t *a, uint32_t *b)
{
    for (uint32_t i = 0; i < all->n; i++)
        for (uint32_t j = i + 1; j < all->n; j++) {
            *b = last_shared(asked, all, &all->list[i], &all->list[j], 1, -1);
            if (*b == LB_NONE) continue;
            *a = last_shared(asked, all, &all->list[i], &all->list[j], 0,
                             lb_layout_numel(&asked->sides[1]->program->values[*b].layout));
            if (*a == LB_NONE) continue;
            bool known = false;
            for (uint32_t k = 0; k < asked->counterparts->n; k++) known |= asked->counterparts->list[k].b == *b;
            if (!known) return true;
        }
    return false;
}
