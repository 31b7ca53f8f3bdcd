/* Where two spellings of one region meet: see halfway.h. */
#include "implementations/halfway.h"

#include "implementations/region_bench.h"
#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_INNER = 40 };
static const int64_t MOST_WORK = INT64_C(200000000); /* elements of all trials of a region */

/* A value that a region computes, with its side's part from there on. */
typedef struct inner {
    uint32_t value;
    int64_t n;
    const double *numbers;
    lb_region_bench rest;
} inner;

typedef struct pair {
    uint32_t a, b; /* LB_NONE: none */
    bool negated;
} pair;

typedef struct meeting {
    lb_region_benches *benches;
    uint32_t region;
    inner *list[2];
    uint32_t n[2];
    int64_t work;
    pair end, until, begins[MOST_INNER]; /* until: the last value from which what is behind is right */
    uint32_t n_begins;
} meeting;

static lb_region_bench *whole_of(const meeting *m, int side)
{
    return &m->benches->list[m->region][side];
}

/* Does it leave what the side's part gives when other numbers go on from there? */
static lb_status gives_from(meeting *m, inner *at, const double *numbers, bool negated, const double *wanted,
                            bool *same, lb_err *err)
{
    lb_region_bench *rest = &at->rest;
    *same = false;
    for (uint32_t i = 0; i < rest->n_leaves; i++) {
        if (rest->leaves[i] != at->value) continue;
        for (int64_t k = 0; k < at->n; k++) rest->numbers[i][k] = negated ? -numbers[k] : numbers[k];
        m->work += rest->work;
        LB_TRY(lb_region_bench_gives(rest, wanted, same, err));
    }
    return LB_OK;
}

/* Does what the side gives depend on the value at all? */
static lb_status matters(meeting *m, inner *at, const double *given, bool *does, lb_err *err)
{
    double *other = malloc(((size_t)at->n + 1) * sizeof *other);
    bool same;
    if (!other) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %lld numbers", (long long)at->n);
    for (int64_t k = 0; k < at->n; k++) other[k] = 1.25 * at->numbers[k] + 0.5;
    lb_status status = gives_from(m, at, other, false, given, &same, err);
    *does = status == LB_OK && !same;
    if (*does) status = gives_from(m, at, at->numbers, false, given, does, err); /* its own: it can be run from there */
    free(other);
    return status;
}

/* What the region computes on a side, but for what it gives. */
static lb_status list_inner(meeting *m, int side, const double *given, lb_err *err)
{
    const lb_region_bench *whole = whole_of(m, side);
    const lb_exact_side *s = whole->side;
    for (uint32_t i = 0; i < whole->n_ops && m->n[side] < MOST_INNER; i++) {
        const lb_op *op = &s->program->ops[whole->ops[i]];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(s->program, op, 0) : LB_NONE;
        if (v == LB_NONE || v == whole->output || !lb_dtype_is_float(s->program->values[v].dtype) || !s->kept[v] ||
            !s->graph.given[v] || !lb_value_graph_computes(s->program, op))
            continue;
        inner *one = &m->list[side][m->n[side]];
        bool does = false;
        *one = (inner){.value = v, .n = lb_layout_numel(&s->program->values[v].layout), .numbers = s->kept[v]};
        lb_status status = lb_region_bench_from(m->benches, m->region, side, v, &one->rest, err);
        if (status == LB_OK && one->rest.n_ops) status = matters(m, one, given, &does, err);
        if (does)
            m->n[side]++;
        else
            lb_region_bench_release(&one->rest);
        LB_TRY(status);
    }
    return LB_OK;
}

/* One value of either side: what is behind it, and what is before it. */
static lb_status try_pair(meeting *m, inner *a, inner *b, bool negated, lb_err *err)
{
    const double *of_a = whole_of(m, 1)->target, *of_b = whole_of(m, 0)->target;
    bool same;
    if (m->end.b == LB_NONE) {
        LB_TRY(gives_from(m, b, a->numbers, negated, of_a, &same, err));
        if (same) m->end = (pair){a->value, b->value, negated};
        if (same) return LB_OK;
    }
    LB_TRY(gives_from(m, a, b->numbers, negated, of_a, &same, err));
    if (!same) LB_TRY(gives_from(m, b, a->numbers, negated, of_b, &same, err));
    if (same && m->n_begins < MOST_INNER) m->begins[m->n_begins++] = (pair){a->value, b->value, negated};
    return LB_OK;
}

static lb_status try_pairs(meeting *m, lb_err *err)
{
    for (uint32_t j = 0; j < m->n[1] && m->end.b == LB_NONE; j++)
        for (uint32_t i = 0; i < m->n[0]; i++)
            for (int negated = 0; negated < 2 && m->work < MOST_WORK; negated++)
                if (m->list[0][i].n == m->list[1][j].n)
                    LB_TRY(try_pair(m, &m->list[0][i], &m->list[1][j], negated, err));
    return LB_OK;
}

/* What one side lacks may stand at any value from which the rest is right: the last of them. */
static lb_status find_last(meeting *m, lb_err *err)
{
    m->until = m->end;
    for (uint32_t j = m->n[1]; j-- > 0 && m->list[1][j].value != m->end.b;)
        for (uint32_t i = 0; i < m->n[0]; i++)
            for (int negated = 0; negated < 2 && m->work < MOST_WORK; negated++) {
                inner *a = &m->list[0][i], *b = &m->list[1][j];
                bool same = false;
                if (a->n == b->n) LB_TRY(gives_from(m, b, a->numbers, negated, whole_of(m, 1)->target, &same, err));
                if (same) m->until = (pair){a->value, b->value, negated};
                if (same) return LB_OK;
            }
    return LB_OK;
}

static bool add_pair(lb_implementations *x, lb_counterpart_kind kind, const pair *met)
{
    const uint32_t row = x->counterparts.n;
    if (!lb_counterparts_add(&x->counterparts, kind, met->a, met->b,
                             lb_layout_numel(&x->sides[1].program->values[met->b].layout)))
        return false;
    lb_counterpart *c = &x->counterparts.list[row];
    c->negated = met->negated;
    c->state = kind == LB_COUNTERPART_SERVES ? LB_COUNTERPART_SAME : LB_COUNTERPART_APART;
    if (kind == LB_COUNTERPART_SHARED && !lb_counterpart_can_be_put(&x->counterparts, c, &x->sides[0], &x->sides[1]))
        c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
    return true;
}

static void mark_around(lb_implementations *x, uint32_t region)
{
    const lb_region *r = &x->regions.list[region];
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < r->n[k]; i++) x->around[k][x->regions.ops[r->first[k] + i]] = 1;
}

static lb_status meet(void *context, lb_region_benches *benches, uint32_t region, lb_err *err)
{
    bool *any = context;
    if (benches->x->regions.list[region].repair.kind != LB_REPAIR_NONE) return LB_OK;
    meeting m = {.benches = benches, .region = region, .end = {LB_NONE, LB_NONE, false}};
    lb_status status = LB_OK;
    bool room = true;
    for (int k = 0; k < 2; k++) room &= (m.list[k] = calloc(MOST_INNER, sizeof *m.list[k])) != NULL;
    for (int k = 0; k < 2 && room && status == LB_OK; k++) status = list_inner(&m, k, whole_of(&m, !k)->target, err);
    if (room && status == LB_OK) status = try_pairs(&m, err);
    if (room && status == LB_OK && m.end.b != LB_NONE) status = find_last(&m, err);
    if (room && status == LB_OK && m.end.b != LB_NONE) {
        const uint32_t row = benches->x->counterparts.n;
        room = add_pair(benches->x, LB_COUNTERPART_SHARED, &m.end);
        lb_counterpart *c = room ? &benches->x->counterparts.list[row] : NULL;
        if (c) c->until[0] = m.until.a, c->until[1] = m.until.b;
    }
    for (uint32_t i = 0; i < m.n_begins && room && status == LB_OK; i++)
        room = add_pair(benches->x, LB_COUNTERPART_SERVES, &m.begins[i]);
    if (m.end.b != LB_NONE || m.n_begins) *any = true, mark_around(benches->x, region);
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < m.n[k]; i++) lb_region_bench_release(&m.list[k][i].rest);
        free(m.list[k]);
    }
    if (status != LB_OK) return status;
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a region");
}

lb_status lb_halfway_find(lb_implementations *x, bool *any, lb_err *err)
{
    *any = false;
    return lb_region_benches_each(x, false, meet, any, err);
}
