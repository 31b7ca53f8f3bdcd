/* Rounded images of what the other side computes: see tables.h. */
#include "counterparts/tables.h"

#include "base/array.h"
#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double TIMES = 4, LOOSE = 0x1p-8;
enum { MOST_ELEMENTS = 1 << 22, MOST_TIMES = 4 };

typedef struct finder {
    const lb_table_question *asked;
    lb_counterparts *out;
    uint8_t *held[2]; /* per row of sources */
    bool failed;
} finder;

static int64_t numel(const lb_exact_side *s, uint32_t v)
{
    return lb_layout_numel(&s->program->values[v].layout);
}

/* An op that picks rows, and hands them on as they are. */
static bool picks(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::index_select", "aten::index", "aten::embedding",
                                        "aten::gather",       "aten::cat",   "aten::repeat"};
    return lb_op_name_among(p, op, names, sizeof names / sizeof *names) >= 0;
}

/* The source that a value shows elements of, some or all; LB_NONE: it is computed, or the other side has that
 * source. */
static uint32_t table_of(const finder *f, int side, uint32_t v)
{
    const lb_exact_side *s = f->asked->sides[side];
    uint32_t source = lb_value_graph_source(&s->graph, v);
    for (uint32_t depth = 0; source == LB_NONE && depth < 4; depth++) {
        const uint32_t op = s->graph.giver[v], first = s->graph.first_pred[v];
        if (op == LB_NONE || s->graph.first_pred[v + 1] == first ||
            (s->graph.given[v] && !picks(s->program, &s->program->ops[op])))
            return LB_NONE;
        v = s->graph.preds[first];
        source = lb_value_graph_source(&s->graph, v);
    }
    if (source == LB_NONE) return LB_NONE;
    const uint32_t row = f->asked->sources[side]->row_of[source];
    const lb_value *value = &s->program->values[source];
    if (row == LB_NONE || f->held[side][row] || !lb_dtype_is_float(value->dtype) || value->flags & LB_VALUE_PARAMETER)
        return LB_NONE;
    return source;
}

static bool open_finder(finder *f, const lb_table_question *asked)
{
    *f = (finder){.asked = asked};
    for (int k = 0; k < 2; k++) f->held[k] = lb_step_sources_held(asked->contents, k, asked->sources[k]->n, false);
    return f->held[0] && f->held[1];
}

static void close_finder(finder *f)
{
    free(f->held[0]), free(f->held[1]);
}

/* Marks the values of a side that show a table which the other side does not hold; `sizes`: how many elements each of
 * these has, n of them. */
static bool want_shown(const finder *f, int side, int64_t **sizes, uint32_t *n)
{
    const lb_exact_side *s = f->asked->sides[side];
    for (uint32_t v = 0; v < s->program->n_values; v++) {
        const uint32_t table = s->graph.giver[v] == LB_NONE || !lb_dtype_is_float(s->program->values[v].dtype)
                                   ? LB_NONE
                                   : table_of(f, side, v);
        if (table == LB_NONE || numel(s, v) > MOST_ELEMENTS || numel(s, table) > MOST_ELEMENTS) continue;
        s->wanted[v] = s->wanted[table] = 1;
        bool known = false;
        for (uint32_t i = 0; i < *n && !known; i++) known = (*sizes)[i] == numel(s, v);
        if (known) continue;
        int64_t *more = lb_array_grow(*sizes, *n, sizeof *more);
        if (!more) return false;
        *sizes = more, more[(*n)++] = numel(s, v);
    }
    return true;
}

/* Per value: does it follow from a parameter? malloc'ed; NULL: out of memory. */
static uint8_t *list_learnt(const lb_exact_side *s)
{
    const lb_value_graph *g = &s->graph;
    uint8_t *learnt = calloc(s->program->n_values + 1, 1);
    for (uint32_t v = 0; learnt && v < s->program->n_values; v++) {
        learnt[v] = (s->program->values[v].flags & LB_VALUE_PARAMETER) != 0;
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1] && !learnt[v]; k++)
            learnt[v] = g->preds[k] >= v || learnt[g->preds[k]];
    }
    return learnt;
}

static bool has_size_of(const int64_t *sizes, uint32_t n, int64_t elements)
{
    for (uint32_t i = 0; i < n && elements > 1; i++)
        if (sizes[i] > 1 && (elements % sizes[i] == 0 || sizes[i] % elements == 0)) return true;
    return false;
}

/* Marks what a side may compute of a formula in the place of a table that has one of `sizes`. */
static bool want_formulas(const finder *f, int side, const int64_t *sizes, uint32_t n)
{
    const lb_exact_side *s = f->asked->sides[side];
    uint8_t *learnt = n ? list_learnt(s) : NULL;
    for (uint32_t v = 0; learnt && v < s->program->n_values; v++)
        if (s->graph.given[v] && !learnt[v] && lb_dtype_is_float(s->program->values[v].dtype) &&
            numel(s, v) <= MOST_ELEMENTS && has_size_of(sizes, n, numel(s, v)))
            s->wanted[v] = 1;
    const bool room = learnt || !n;
    free(learnt);
    return room;
}

lb_status lb_tables_want(const lb_table_question *asked, lb_err *err)
{
    finder f;
    bool room = open_finder(&f, asked);
    for (int k = 0; k < 2 && room; k++) {
        int64_t *sizes = NULL;
        uint32_t n = 0;
        room = want_shown(&f, k, &sizes, &n) && want_formulas(&f, !k, sizes, n);
        free(sizes);
    }
    close_finder(&f);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for tables");
}

/* ---- near or not ---- */

typedef struct ranked {
    double number;
    int64_t at;
} ranked;

static int by_number(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    return a->number != b->number ? (a->number > b->number) - (a->number < b->number)
                                  : (a->at > b->at) - (a->at < b->at);
}

static ranked *rank(const double *x, int64_t n)
{
    ranked *list = malloc((size_t)(n > 0 ? n : 1) * sizeof *list);
    for (int64_t i = 0; list && i < n; i++) list[i] = (ranked){x[i], i};
    if (list) qsort(list, (size_t)n, sizeof *list, by_number);
    return list;
}

static bool are_near(const lb_quantity *a, const lb_quantity *b)
{
    if (!a->tells || !b->tells || a->elements < 2 || b->elements < 2) return false;
    if (a->elements % b->elements && b->elements % a->elements) return false;
    for (int k = 0; k < LB_QUANTITY_MEANS; k++)
        if (!(fabs(a->mean[k] - b->mean[k]) <= LOOSE * fmax(a->scale[k], b->scale[k]))) return false;
    return true;
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

/* How far the recorded bits of a value are from its exact numbers; -1: they were not kept. */
static double own_error(const lb_exact_side *s, uint32_t v)
{
    double *recorded = lb_exact_side_recorded(s, v), most = -1;
    for (int64_t i = 0; recorded && i < numel(s, v); i++) most = fmax(most, fabs(recorded[i] - s->kept[v][i]));
    free(recorded);
    return most;
}

/* The unit roundoff of a value, and of the table that it shows, cast to another dtype or not. */
static void note_roundoff(const lb_exact_side *s, uint32_t v, uint32_t table, double *fine, double *coarse)
{
    const double u = lb_dtype_unit_roundoff(s->program->values[v].dtype),
                 held = table == LB_NONE ? u : lb_dtype_unit_roundoff(s->program->values[table].dtype);
    *fine = fmax(*fine, u), *coarse = fmax(*coarse, held);
}

/* A table in a coarser dtype than that in which both sides go on from it was rounded to it once, by what it was made
 * of. */
static double room_for(const finder *f, uint32_t va, uint32_t vb)
{
    const lb_exact_side *a = f->asked->sides[0], *b = f->asked->sides[1];
    const uint32_t tables[2] = {table_of(f, 0, va), table_of(f, 1, vb)};
    double fine = 0, coarse = 0;
    note_roundoff(a, va, tables[0], &fine, &coarse), note_roundoff(b, vb, tables[1], &fine, &coarse);
    const double size = largest(a->kept[va], numel(a, va)), once = coarse > fine ? coarse * size : 0;
    const lb_layout *l = &a->program->values[va].layout;
    const double rows = l->ndim > 0 ? (double)numel(a, va) / (double)l->shape[l->ndim - 1] : 1;
    const double error = tables[0] != LB_NONE && tables[1] != LB_NONE ? -1
                         : tables[0] != LB_NONE                       ? own_error(b, vb)
                                                                      : own_error(a, va);
    return once + (error < 0 ? TIMES * fmax(1, rows) * fine * size : TIMES * error + TIMES * fine * size);
}

/* ---- which element is which ---- */

/* The orders in which the elements of one table may stand in the other, likely ones first: one after the other, each
 * row given again in itself, each number given again beside itself, rows and columns exchanged, and at last by rank. */
typedef enum order { IN_ORDER, ROWS_AGAIN, NUMBERS_AGAIN, ACROSS, BY_RANK, ORDERS } order;

/* The element of the smaller (of n) that element j of the larger is, which has m in rows of `width`. */
static int64_t element_at(order how, int64_t j, int64_t n, int64_t m, int64_t width)
{
    const int64_t times = m / n, narrow = width / times;
    switch (how) {
    case IN_ORDER: return j % n;
    case ROWS_AGAIN: return narrow ? j / width * narrow + j % width % narrow : -1;
    case NUMBERS_AGAIN: return j / times;
    case ACROSS: return times == 1 && width && m % width == 0 ? j % width * (m / width) + j / width : -1;
    default: return -1;
    }
}

/* Per element of the larger table the element of the smaller one; malloc'ed. */
static int64_t *places(order how, const double *small, int64_t n, const double *large, int64_t m, int64_t width)
{
    int64_t *at = malloc((size_t)m * sizeof *at);
    ranked *x = how == BY_RANK ? rank(small, n) : NULL, *y = how == BY_RANK ? rank(large, m) : NULL;
    for (int64_t j = 0; at && j < m; j++) {
        if (how == BY_RANK && x && y)
            at[y[j].at] = x[j / (m / n)].at;
        else if (how != BY_RANK)
            at[j] = element_at(how, j, n, m, width);
        if (how == BY_RANK ? !x || !y : at[j] < 0 || at[j] >= n) free(at), at = NULL;
    }
    free(x), free(y);
    return at;
}

static double distance_at(const int64_t *at, const double *small, const double *large, int64_t m)
{
    double most = at ? 0 : INFINITY;
    for (int64_t j = 0; at && j < m; j++) most = fmax(most, fabs(small[at[j]] - large[j]));
    return most;
}

/* Where an element of a window lies in its source, which is contiguous. */
static int64_t in_source(const lb_value *window, const lb_value *source, int64_t i)
{
    int64_t at = window->layout.offset - source->layout.offset;
    for (int d = window->layout.ndim; d-- > 0;)
        at += i % window->layout.shape[d] * window->layout.stride[d], i /= window->layout.shape[d];
    return at;
}

/* `at`: per element of the larger of the two, the element of the smaller. Of a number that A has several times the
 * first is taken. */
static void add_table(finder *f, uint32_t va, int64_t na, uint32_t vb, int64_t nb, const int64_t *at)
{
    const lb_exact_side *s = f->asked->sides[1];
    const lb_program *p = s->program;
    const bool window = !s->graph.given[vb];
    const uint32_t target = window ? lb_value_graph_source(&s->graph, vb) : vb, first = f->out->n_pieces;
    if (target == LB_NONE || (window && !lb_layout_is_contiguous(&p->values[target].layout))) return;
    for (int64_t k = na > nb ? na : nb; k-- > 0;) { /* the first of several comes last, and stays */
        const int64_t from = na < nb ? at[k] : k, mine = na < nb ? k : at[k];
        const int64_t to = window ? in_source(&p->values[vb], &p->values[target], mine) : mine;
        if (to >= 0 && to < numel(s, target))
            f->failed |= !lb_counterparts_add_piece(f->out, (lb_content_run){va, from, 1, to, 1, 1});
    }
    lb_counterpart *table = lb_counterparts_close(f->out, LB_COUNTERPART_TABLE, target, first);
    f->failed |= !table;
    if (table) table->state = LB_COUNTERPART_SAME;
}

/* Two values as a smaller and a larger one. */
typedef struct couple {
    const double *small, *large;
    int64_t n, m, width; /* elements of the smaller, of the larger, and in a row of the larger */
} couple;

static bool couple_of(const finder *f, uint32_t va, uint32_t vb, couple *c)
{
    const lb_exact_side *a = f->asked->sides[0], *b = f->asked->sides[1];
    const int64_t na = numel(a, va), nb = numel(b, vb);
    const bool a_is_larger = na >= nb;
    const lb_layout *l = a_is_larger ? &a->program->values[va].layout : &b->program->values[vb].layout;
    *c = (couple){a_is_larger ? b->kept[vb] : a->kept[va], a_is_larger ? a->kept[va] : b->kept[vb],
                  a_is_larger ? nb : na, a_is_larger ? na : nb, l->ndim > 0 ? l->shape[l->ndim - 1] : 1};
    return c->small && c->large && c->n > 0 && c->m % c->n == 0;
}

/* Ascending numbers are no further apart than the same numbers in any order they may have: that is asked first. */
static bool try_pair(finder *f, uint32_t va, uint32_t vb)
{
    const lb_exact_side *a = f->asked->sides[0], *b = f->asked->sides[1];
    couple c;
    if (!are_near(&a->quantities[va], &b->quantities[vb]) || !couple_of(f, va, vb, &c)) return false;
    const double room = room_for(f, va, vb);
    bool near = true;
    for (int k = -1; k < ORDERS; k++) {
        int64_t *at = places(k < 0 ? BY_RANK : (order)k, c.small, c.n, c.large, c.m, c.width);
        near = distance_at(at, c.small, c.large, c.m) <= room;
        if (k >= 0 && near) add_table(f, va, numel(a, va), vb, numel(b, vb), at);
        free(at);
        if (near == (k >= 0)) break; /* too far in any order, or the order was found */
    }
    return near;
}

static bool may_be(const lb_exact_side *s, uint32_t v)
{
    return s->quantities[v].tells && lb_dtype_is_float(s->program->values[v].dtype) && s->kept[v] &&
           numel(s, v) <= MOST_ELEMENTS;
}

/* A's values that may be a table, and which of them show one and have not met: the same for all of B's. */
typedef struct candidate {
    uint32_t value;
    bool shows;
} candidate;

static candidate *list_candidates(const finder *f, uint32_t *n)
{
    const lb_exact_side *a = f->asked->sides[0];
    candidate *list = malloc((a->program->n_values + 1) * sizeof *list);
    *n = 0;
    for (uint32_t v = 0; list && v < a->program->n_values; v++)
        if (may_be(a, v)) list[(*n)++] = (candidate){v, f->asked->met[0][v] == LB_NONE && table_of(f, 0, v) != LB_NONE};
    return list;
}

lb_status lb_tables_find(const lb_table_question *asked, lb_counterparts *out, lb_err *err)
{
    finder f;
    uint32_t n = 0;
    bool room = open_finder(&f, asked);
    f.out = out;
    const lb_exact_side *b = asked->sides[1];
    candidate *list = room ? list_candidates(&f, &n) : NULL;
    for (uint32_t vb = 0; list && vb < b->program->n_values; vb++) {
        if (asked->met[1][vb] != LB_NONE || !may_be(b, vb)) continue;
        const bool table = table_of(&f, 1, vb) != LB_NONE;
        bool done = !table && !b->graph.given[vb];
        for (uint32_t i = 0; i < n && !done; i++)
            if (table || list[i].shows) done = try_pair(&f, list[i].value, vb);
    }
    room = list != NULL;
    free(list);
    close_finder(&f);
    return room && !f.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for tables");
}

/* ---- a table that is another one ---- */

static double spread_at(const int64_t *at, const couple *c)
{
    double sum = 0, size = 0;
    if (!at) return INFINITY;
    for (int64_t j = 0; j < c->m; j++) {
        const double x = c->small[at[j]], y = c->large[j];
        sum += (x - y) * (x - y), size += x * x + y * y;
    }
    return size > 0 ? sum / size : INFINITY;
}

lb_status lb_tables_put_beside(const lb_table_question *asked, const lb_table_choice *choice, lb_counterparts *out,
                               lb_err *err)
{
    finder f;
    const bool room = open_finder(&f, asked);
    double least = 0.5; /* of what has nothing to do with each other it is about 1 */
    uint32_t va = LB_NONE, vb = LB_NONE;
    int64_t *best = NULL;
    f.out = out;
    for (uint32_t i = 0; i < choice->n[0] && room; i++)
        for (uint32_t j = 0; j < choice->n[1]; j++) {
            couple c;
            if (!couple_of(&f, choice->values[0][i], choice->values[1][j], &c) || c.m > MOST_ELEMENTS ||
                c.m > MOST_TIMES * c.n)
                continue;
            for (int k = IN_ORDER; k < BY_RANK; k++) {
                int64_t *at = places((order)k, c.small, c.n, c.large, c.m, c.width);
                const double spread = spread_at(at, &c);
                if (spread < least)
                    free(best), best = at, least = spread, va = choice->values[0][i], vb = choice->values[1][j];
                else
                    free(at);
            }
        }
    if (best) add_table(&f, va, numel(asked->sides[0], va), vb, numel(asked->sides[1], vb), best);
    free(best);
    close_finder(&f);
    return room && !f.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for tables");
}
