/* One side's part of a region: see region_bench.h. */
#include "implementations/region_bench.h"

#include "implementations/differences.h"
#include "counterparts/rank_parts.h"
#include "pair/op_kind.h"
#include "shadow/shadow_numbers.h"
#include "subprogram/exact_run.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a region consists of on one side ---- */

typedef struct extent {
    const lb_exact_side *side;
    const uint32_t *maker; /* per value: the op that lists it among what it gives; LB_NONE */
    uint8_t *seen;         /* per value */
    uint8_t *inside;       /* per op: of the region, or a copy within it */
    uint32_t stop;         /* a value that is a leaf, whatever gives it; LB_NONE */
    uint32_t leaves[LB_REGION_BENCH_MOST_LEAVES], n_leaves;
    bool too_large;
} extent;

enum { MOST_DEPTH = 64 };

/* Does the value show what the region computes? */
static bool leads(const extent *e, uint32_t v, uint32_t depth)
{
    const lb_value_graph *g = &e->side->graph;
    if (e->maker[v] != LB_NONE && e->inside[e->maker[v]]) return true;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1] && !g->given[v] && depth; k++)
        if (leads(e, g->preds[k], depth - 1)) return true;
    return false;
}

static void enter(void *context, uint32_t v);

static void enter_op(extent *e, uint32_t op)
{
    e->inside[op] = 1;
    lb_op_each_input(e->side->program, &e->side->program->ops[op], enter, e);
}

static void enter(void *context, uint32_t v)
{
    extent *e = context;
    const lb_program *p = e->side->program;
    const lb_value_graph *g = &e->side->graph;
    if (v == LB_NONE || e->seen[v]) return;
    e->seen[v] = 1;
    const uint32_t op = v == e->stop ? LB_NONE : e->maker[v];
    if (op != LB_NONE && e->inside[op]) {
        enter_op(e, op);
    } else if (v == e->stop || !leads(e, v, MOST_DEPTH)) {
        e->too_large |= e->n_leaves == LB_REGION_BENCH_MOST_LEAVES;
        if (!e->too_large) e->leaves[e->n_leaves++] = v;
    } else if (op != LB_NONE && !(p->ops[op].flags & LB_OP_VIEW) && !lb_op_is_source(p, &p->ops[op])) {
        enter_op(e, op); /* a copy, a cast */
    } else {
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) enter(e, g->preds[k]);
    }
}

static uint32_t *list_makers(const lb_program *p)
{
    uint32_t *maker = malloc(((size_t)p->n_values + 1) * sizeof *maker);
    if (maker) memset(maker, 0xFF, ((size_t)p->n_values + 1) * sizeof *maker);
    for (uint32_t i = p->n_ops; i-- > 0 && maker;)
        for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(p, &p->ops[i], k);
            if (v != LB_NONE) maker[v] = i;
        }
    return maker;
}

/* ---- one side's part ---- */

void lb_region_bench_release(lb_region_bench *b)
{
    for (uint32_t i = 0; i < b->n_leaves; i++) free(b->numbers[i]);
    free(b->ops), free(b->target);
    *b = (lb_region_bench){0};
}

/* `number` of the two sides. */
static lb_status lay_out(const lb_region_benches *t, int number, const lb_region *r, uint32_t output, uint32_t stop,
                         lb_region_bench *out, lb_err *err)
{
    lb_exact_side *side = &t->x->sides[number];
    const lb_program *p = side->program;
    const uint32_t *ops = t->x->regions.ops + r->first[number];
    extent e = {.side = side, .maker = t->maker[number], .stop = stop};
    *out = (lb_region_bench){.side = side, .output = output, .elements = lb_layout_numel(&p->values[output].layout)};
    e.seen = calloc((size_t)p->n_values + 1, 1), e.inside = calloc((size_t)p->n_ops + 1, 1);
    out->ops = malloc(((size_t)p->n_ops + 1) * sizeof *out->ops);
    const bool room = e.seen && e.inside && out->ops;
    for (uint32_t i = 0; i < r->n[number] && room; i++) e.inside[ops[i]] = 1;
    if (room) enter(&e, output);
    for (uint32_t i = 0; i < p->n_ops && room; i++) {
        const lb_op *op = &p->ops[i];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(p, op, 0) : LB_NONE;
        if (!e.inside[i] || v == LB_NONE || v == stop || !e.seen[v]) continue;
        out->ops[out->n_ops++] = i;
        out->work += lb_layout_numel(&p->values[v].layout);
    }
    for (uint32_t i = 0; i < e.n_leaves; i++) out->work += lb_layout_numel(&p->values[e.leaves[i]].layout);
    if (e.too_large) out->n_ops = 0;
    if (room) memcpy(out->leaves, e.leaves, sizeof out->leaves), out->n_leaves = e.n_leaves;
    free(e.seen), free(e.inside);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a region of %u ops", r->n[number]);
}

lb_status lb_region_bench_run(const lb_region_bench *b, double **out, lb_err *err)
{
    const lb_subprogram_parts parts = {.program = b->side->own,
                                       .ops = b->ops,
                                       .n_ops = b->n_ops,
                                       .leaves = b->leaves,
                                       .n_leaves = b->n_leaves,
                                       .outputs = &b->output,
                                       .n_outputs = 1};
    lb_subprogram *made;
    lb_err why = {0};
    *out = NULL;
    lb_status status = lb_subprogram_new(&parts, &made, &why);
    if (status == LB_OK) status = lb_subprogram_run_exact(made, (const double *const *)b->numbers, out, &why);
    lb_subprogram_free(made);
    lb_exact_side_count(b->side, b->n_ops);
    if (status != LB_OK) free(*out), *out = NULL;
    return status == LB_ERR_NOMEM ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a trial") : LB_OK;
}

lb_status lb_region_bench_gives(const lb_region_bench *b, const double *numbers, bool *same, lb_err *err)
{
    double *got;
    LB_TRY(lb_region_bench_run(b, &got, err));
    *same = got && lb_shadow_numbers_agree(numbers, got, b->elements, b->noise);
    free(got);
    return LB_OK;
}

/* ---- all of them ---- */

static lb_phase phase_of(const lb_implementations *x, const lb_region *r)
{
    return lb_regions_phase(&x->sides[1], &x->counterparts, r);
}

bool lb_region_bench_is_update(const lb_implementations *x, const lb_region *r)
{
    return phase_of(x, r) == LB_PHASE_OPTIMIZER && lb_differences_leave(&x->counterparts.list[r->counterpart]);
}

bool lb_region_bench_are_alike(const lb_implementations *x, const lb_region *a, const lb_region *b)
{
    if (a->reason != b->reason || phase_of(x, a) != phase_of(x, b)) return false;
    for (int k = 0; k < 2; k++) {
        const lb_program *p = x->sides[k].program;
        if (a->n[k] != b->n[k]) return false;
        for (uint32_t i = 0; i < a->n[k]; i++)
            if (!lb_op_same_numbers(p, &p->ops[x->regions.ops[a->first[k] + i]],
                                    &p->ops[x->regions.ops[b->first[k] + i]]))
                return false;
    }
    return true;
}

static int64_t size_of(const lb_implementations *x, const lb_region *r)
{
    return lb_layout_numel(&x->sides[1].program->values[x->counterparts.list[r->counterpart].b].layout);
}

/* Of regions that are alike, one of each parameter, the smallest stands for all. */
static bool stands_for_alike(const lb_implementations *x, const lb_region *r)
{
    const lb_regions *all = &x->regions;
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_region *other = &all->list[i];
        const int64_t mine = size_of(x, r), its = size_of(x, other);
        if (other != r && (its < mine || (its == mine && other < r)) && lb_region_bench_are_alike(x, r, other))
            return false;
    }
    return true;
}

/* The optimizer's group by which the side's part of the region runs; NULL: a loop of the program's. */
static const lb_group *group_of(const lb_implementations *x, const lb_region *r, int side)
{
    const lb_program *p = x->sides[side].program;
    for (uint32_t g = 0; g < p->n_groups && r->n[side]; g++)
        if (x->regions.ops[r->first[side]] - p->groups[g].first_op < p->groups[g].ops) return &p->groups[g];
    return NULL;
}

static uint32_t options_of(const lb_program *p, const lb_group *g, double number)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->options; i++) n += p->scalars[g->first_option + i].number == number;
    return n;
}

/* Have more of the group's options some number than the other group's? Switches, 0 and 1, are not asked. */
static bool has_own_number(const lb_program *p, const lb_group *g, const lb_program *q, const lb_group *h)
{
    for (uint32_t i = 0; i < g->options; i++) {
        const double number = p->scalars[g->first_option + i].number;
        if (number != 0 && number != 1 && options_of(p, g, number) > options_of(q, h, number)) return true;
    }
    return false;
}

/* Are both sides' updates those of optimizers whose options differ? Then these say it (diff_arguments.h). */
static bool differs_in_options(const lb_implementations *x, const lb_region *r)
{
    const lb_program *a = x->sides[0].program, *b = x->sides[1].program;
    const lb_group *mine = group_of(x, r, 0), *its = group_of(x, r, 1);
    return mine && its && has_own_number(a, mine, b, its) && has_own_number(b, its, a, mine);
}

/* May the region be an update whose formula differs, and does it stand for those that are alike? */
static bool is_update_to_try(const lb_implementations *x, const lb_region *r)
{
    return lb_region_bench_is_update(x, r) && r->repair.kind == LB_REPAIR_NONE && !differs_in_options(x, r) &&
           stands_for_alike(x, r);
}

/* Is what is named of the region a guess, and is it small enough for trials? */
static bool is_guess(const lb_implementations *x, bool updates, const lb_region *r)
{
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    const lb_phase phase = phase_of(x, r);
    if (phase == LB_PHASE_BACKWARD) return false; /* it follows from forward */
    if (phase == LB_PHASE_OPTIMIZER && !(updates && is_update_to_try(x, r))) return false;
    return !r->chosen && c->n == 1 && !c->in_parts && !c->turned_by_shape &&
           (r->reason == LB_REGION_OPS || r->reason == LB_REGION_MISSING || r->reason == LB_REGION_MASK ||
            r->reason == LB_REGION_SOURCE) &&
           r->n[0] <= LB_REGION_BENCH_MOST_OPS && r->n[1] <= LB_REGION_BENCH_MOST_OPS;
}

/* The numbers that a side's part begins with; false: some are not known. */
static bool take_leaves(const lb_region_benches *t, int side, lb_region_bench *b)
{
    const lb_exact_side *s = b->side;
    for (uint32_t i = 0; i < b->n_leaves; i++) {
        const uint32_t v = b->leaves[i];
        const int64_t n = lb_layout_numel(&s->program->values[v].layout);
        const double *put = side ? s->forced[v] : NULL, own = lb_exact_side_own();
        const double *from = s->held[v] ? s->held[v] : t->kept[side][v] ? t->kept[side][v] : s->kept[v];
        b->numbers[i] = from ? malloc(((size_t)n + 1) * sizeof **b->numbers) : lb_exact_side_recorded(s, v);
        if (!b->numbers[i]) return false;
        if (from) memcpy(b->numbers[i], from, (size_t)n * sizeof **b->numbers);
        for (int64_t k = 0; put && k < n; k++)
            if (memcmp(&put[k], &own, sizeof own)) b->numbers[i][k] = put[k];
    }
    return true;
}

/* What each side's part is to give: the other's numbers, in its own order. */
static bool take_targets(const lb_region_benches *t, const lb_region *r, lb_region_bench benches[2])
{
    const lb_implementations *x = t->x;
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    const lb_content_run *piece = &x->counterparts.pieces[c->first];
    const double *a = x->sides[0].kept[piece->tensor], *b = x->sides[1].kept[c->b];
    const int64_t n = benches[1].elements;
    if (!a || !b || benches[0].elements != n || piece->n != n || piece->from || piece->to || piece->from_stride != 1 ||
        piece->to_stride != 1)
        return false;
    for (int k = 0; k < 2; k++) {
        benches[k].target = malloc(((size_t)n + 1) * sizeof *a);
        if (!benches[k].target) return false;
        for (int64_t i = 0; i < n; i++) benches[k].target[i] = (c->negated ? -1 : 1) * (k ? a : b)[i];
        benches[k].noise = x->sides[0].noise[piece->tensor];
    }
    return true;
}

/* The numbers that regions begin with, by a run of each side: B from A's numbers. */
static lb_status run_sides(lb_region_benches *t, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        lb_exact_side *s = &t->x->sides[k];
        uint8_t *before = s->wanted;
        s->wanted = calloc((size_t)s->program->n_values + 1, 1);
        for (uint32_t i = 0; i < t->x->regions.n && s->wanted; i++)
            for (uint32_t j = 0; j < t->list[i][k].n_leaves; j++) s->wanted[t->list[i][k].leaves[j]] = 1;
        const lb_status status = s->wanted ? lb_exact_side_run_aside(s, &t->kept[k], err)
                                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for values");
        free(s->wanted);
        s->wanted = before;
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status lay_out_both(const lb_region_benches *t, const lb_region *r, lb_region_bench benches[2], lb_err *err)
{
    const lb_implementations *x = t->x;
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    const uint32_t outputs[] = {x->counterparts.pieces[c->first].tensor, c->b};
    for (int k = 0; k < 2; k++) LB_TRY(lay_out(t, k, r, outputs[k], LB_NONE, &benches[k], err));
    return LB_OK;
}

static lb_status make(lb_implementations *x, bool updates, lb_region_benches *t, lb_err *err)
{
    lb_regions *all = &x->regions;
    *t = (lb_region_benches){.x = x};
    for (int k = 0; k < 2; k++) t->maker[k] = list_makers(x->sides[k].program);
    t->list = calloc((size_t)all->n + 1, sizeof *t->list);
    if (!t->maker[0] || !t->maker[1] || !t->list) return lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
    for (uint32_t i = 0; i < all->n; i++)
        if (is_guess(x, updates, &all->list[i])) LB_TRY(lay_out_both(t, &all->list[i], t->list[i], err));
    return run_sides(t, err);
}

/* Are both sides' parts of that region there, with the numbers that they begin with and are to give? Fills these. */
static bool are_ready(lb_region_benches *t, uint32_t region)
{
    lb_region_bench *b = t->list[region];
    const lb_region *r = &t->x->regions.list[region];
    for (int k = 0; k < 2; k++)
        if (b[k].n_ops && !take_leaves(t, k, &b[k])) b[k].n_ops = 0;
    const bool ready = lb_region_bench_is_update(t->x, r) ? b[0].n_ops || b[1].n_ops : b[0].n_ops && b[1].n_ops;
    return ready && take_targets(t, r, b);
}

lb_status lb_region_bench_from(lb_region_benches *t, uint32_t region, int side, uint32_t stop, lb_region_bench *out,
                               lb_err *err)
{
    const lb_region_bench *whole = &t->list[region][side];
    LB_TRY(lay_out(t, side, &t->x->regions.list[region], whole->output, stop, out, err));
    out->noise = whole->noise;
    if (!take_leaves(t, side, out)) out->n_ops = 0;
    return LB_OK;
}

static void release(lb_region_benches *t)
{
    for (uint32_t i = 0; i < t->x->regions.n && t->list; i++)
        lb_region_bench_release(&t->list[i][0]), lb_region_bench_release(&t->list[i][1]);
    free(t->list);
    for (int k = 0; k < 2; k++) {
        lb_exact_side_free_kept(&t->x->sides[k], t->kept[k]);
        free(t->maker[k]);
    }
}

lb_status lb_region_benches_each(lb_implementations *x, bool updates,
                                 lb_status (*visit)(void *context, lb_region_benches *benches, uint32_t region,
                                                    lb_err *err),
                                 void *context, lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    lb_region_benches benches;
    bool any = false;
    for (uint32_t i = 0; i < x->regions.n && !any; i++) any = is_guess(x, updates, &x->regions.list[i]);
    if (!any || lb_rank_parts_are_parted(sides)) return LB_OK;
    lb_differences_force(x);
    lb_status status = make(x, updates, &benches, err);
    for (uint32_t i = 0; i < x->regions.n && status == LB_OK; i++)
        if (are_ready(&benches, i)) status = visit(context, &benches, i, err);
    lb_differences_unforce(x);
    release(&benches);
    return status;
}
