/* One op written otherwise: see repairs.h. */
#include "implementations/repairs.h"

#include "implementations/differences.h"
#include "implementations/rank_parts.h"
#include "implementations/repair_edits.h"
#include "shadow/shadow_numbers.h"
#include "subprogram/exact_run.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* Regions that are larger say little by one number, and cost much. */
enum { MOST_OPS = 128, MOST_LEAVES = 64 };
static const int64_t MOST_WORK = INT64_C(400000000); /* elements of all trials together */

/* ---- an edit ---- */

static bool write_edit(lb_program *own, lb_repair *e)
{
    const lb_op *op = &own->ops[e->op];
    lb_arg *args = malloc((op->args + 1) * sizeof *args);
    if (!args) return false;
    memcpy(args, lb_op_args(own, op), op->args * sizeof *args);
    e->name[0] = e->name[1] = op->name;
    e->first_arg[0] = op->first_arg, e->args[0] = e->args[1] = op->args;
    if (e->kind == LB_REPAIR_NUMBER) args[e->arg] = (lb_arg){.tag = LB_ARG_FLOAT, .u.f = e->after};
    if (e->kind == LB_REPAIR_LEFT_OUT) args[0] = args[e->arg], e->args[1] = 1;
    if (e->kind != LB_REPAIR_NUMBER)
        e->name[1] = lb_program_string(own, e->kind == LB_REPAIR_FUNCTION ? e->function : "lb::copy");
    e->first_arg[1] = lb_program_add_args(own, args, e->args[1]);
    free(args);
    return e->name[1] != LB_NONE && e->first_arg[1] != LB_NONE;
}

bool lb_repair_set(lb_program *own, lb_repair *e, bool on)
{
    if (on && !e->args[0] && !write_edit(own, e)) return false;
    lb_op *op = &own->ops[e->op];
    op->name = e->name[on], op->first_arg = e->first_arg[on], op->args = e->args[on];
    return true;
}

/* ---- what a region consists of on one side ---- */

typedef struct extent {
    const lb_exact_side *side;
    const uint32_t *maker; /* per value: the op that lists it among what it gives; LB_NONE */
    uint8_t *seen;         /* per value */
    uint8_t *inside;       /* per op: of the region, or a copy within it */
    uint32_t leaves[MOST_LEAVES], n_leaves;
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
    const uint32_t op = e->maker[v];
    if (op != LB_NONE && e->inside[op]) {
        enter_op(e, op);
    } else if (!leads(e, v, MOST_DEPTH)) {
        e->too_large |= e->n_leaves == MOST_LEAVES;
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

/* ---- trials ---- */

/* One side's part of a region, to be run with an edit. */
typedef struct bench {
    lb_exact_side *side;
    uint32_t *ops, n_ops;
    uint32_t leaves[MOST_LEAVES], n_leaves, output;
    double *numbers[MOST_LEAVES]; /* that it begins with */
    double *target;               /* what it is to give */
    int64_t elements, work;       /* of the output; of all that a trial computes */
    double noise;
} bench;

typedef struct repairer {
    lb_implementations *x;
    uint32_t *maker[2];
    bench (*benches)[2]; /* per region: of A and of B; of one that is no guess without ops */
    double **kept[2];    /* what each side gave in its last run, B from A's numbers */
} repairer;

static void release_bench(bench *b)
{
    for (uint32_t i = 0; i < b->n_leaves; i++) free(b->numbers[i]);
    free(b->ops), free(b->target);
    *b = (bench){0};
}

/* `number` of the two sides. */
static lb_status lay_out(repairer *t, int number, const lb_region *r, uint32_t output, bench *out, lb_err *err)
{
    lb_exact_side *side = &t->x->sides[number];
    const lb_program *p = side->program;
    const uint32_t *ops = t->x->regions.ops + r->first[number];
    extent e = {.side = side, .maker = t->maker[number]};
    *out = (bench){.side = side, .output = output, .elements = lb_layout_numel(&p->values[output].layout)};
    e.seen = calloc((size_t)p->n_values + 1, 1), e.inside = calloc((size_t)p->n_ops + 1, 1);
    out->ops = malloc(((size_t)p->n_ops + 1) * sizeof *out->ops);
    const bool room = e.seen && e.inside && out->ops;
    for (uint32_t i = 0; i < r->n[number] && room; i++) e.inside[ops[i]] = 1;
    if (room) enter(&e, output);
    for (uint32_t i = 0; i < p->n_ops && room; i++) {
        const lb_op *op = &p->ops[i];
        const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(p, op, 0) : LB_NONE;
        if (!e.inside[i] || v == LB_NONE || !e.seen[v]) continue;
        out->ops[out->n_ops++] = i;
        out->work += lb_layout_numel(&p->values[v].layout);
    }
    for (uint32_t i = 0; i < e.n_leaves; i++) out->work += lb_layout_numel(&p->values[e.leaves[i]].layout);
    if (e.too_large) out->n_ops = 0;
    if (room) memcpy(out->leaves, e.leaves, sizeof out->leaves), out->n_leaves = e.n_leaves;
    free(e.seen), free(e.inside);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a region of %u ops", r->n[number]);
}

/* What the part gives as its program is now. `*out`: NULL where it cannot be run. */
static lb_status run_bench(const bench *b, double **out, lb_err *err)
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
    if (status != LB_OK) free(*out), *out = NULL;
    return status == LB_ERR_NOMEM ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a trial") : LB_OK;
}

static lb_status gives(const bench *b, const double *numbers, bool *same, lb_err *err)
{
    double *got;
    LB_TRY(run_bench(b, &got, err));
    *same = got && lb_shadow_numbers_agree(numbers, got, b->elements, b->noise);
    free(got);
    return LB_OK;
}

static lb_status try_edit(const bench *b, lb_repair *edit, bool *same, lb_err *err)
{
    *same = false;
    if (!lb_repair_set(b->side->own, edit, true)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for an edit");
    const lb_status status = gives(b, b->target, same, err);
    lb_repair_set(b->side->own, edit, false);
    return status;
}

/* ---- regions ---- */

/* Is what is named of the region a guess? */
static bool is_guessed(const lb_implementations *x, const lb_region *r)
{
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    const lb_exact_side *b = &x->sides[1];
    const uint32_t giver = b->graph.giver[c->b];
    const lb_phase phase = giver == LB_NONE ? LB_PHASE_OTHER : (lb_phase)b->program->ops[giver].phase;
    /* Backward follows from forward; an optimizer's options are read off its formula (diff_arguments.h). */
    if (phase == LB_PHASE_BACKWARD || phase == LB_PHASE_OPTIMIZER) return false;
    return !r->chosen && c->n == 1 && !c->in_parts && !c->turned_by_shape &&
           (r->reason == LB_REGION_OPS || r->reason == LB_REGION_MISSING || r->reason == LB_REGION_MASK ||
            r->reason == LB_REGION_SOURCE) &&
           r->n[0] <= MOST_OPS && r->n[1] <= MOST_OPS;
}

/* The numbers that a side's part begins with; false: some are not known. */
static bool take_leaves(repairer *t, int side, bench *b)
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
static bool take_targets(repairer *t, const lb_region *r, bench benches[2])
{
    lb_implementations *x = t->x;
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
        memcpy(benches[k].target, k ? a : b, (size_t)n * sizeof *a);
        benches[k].noise = x->sides[0].noise[piece->tensor];
    }
    return true;
}

/* Is it one op on both sides, called with another number? Then its arguments say it all. */
static bool is_of_arguments(const lb_implementations *x, const lb_region *r)
{
    const lb_program *a = x->sides[0].program, *b = x->sides[1].program;
    if (r->repair.kind != LB_REPAIR_NUMBER || r->op[0] == LB_NONE || r->op[1] == LB_NONE) return false;
    const lb_op *mine = &a->ops[r->op[0]], *other = &b->ops[r->op[1]];
    return !strcmp(lb_op_name(a, mine), lb_op_name(b, other)) && mine->args == other->args;
}

static void name_repair(const lb_implementations *x, lb_region *r, const lb_repair *found)
{
    const int side = found->side;
    const bool left_out = found->kind == LB_REPAIR_LEFT_OUT;
    r->repair = *found;
    r->op[side] = found->op;
    if (found->other != LB_NONE || left_out) r->op[!side] = found->other;
    r->source[0] = r->source[1] = LB_NONE;
    r->reason = left_out ? LB_REGION_MISSING : is_of_arguments(x, r) ? LB_REGION_ARGUMENTS : LB_REGION_REPAIRED;
}

/* The first edit by which one side gives the other's numbers. */
static lb_status try_edits(const bench benches[2], const bool runs[2], const lb_repair_edits *edits, lb_repair *found,
                           lb_err *err)
{
    int64_t work = 0;
    for (uint32_t i = 0; i < edits->n && work < MOST_WORK; i++) {
        lb_repair *edit = &edits->list[i];
        bool same;
        if (!runs[edit->side]) continue;
        LB_TRY(try_edit(&benches[edit->side], edit, &same, err));
        work += benches[edit->side].work;
        if (same) *found = *edit;
        if (same) return LB_OK;
    }
    return LB_OK;
}

static lb_status repair_region(repairer *t, lb_region *r, const bench benches[2], lb_err *err)
{
    lb_implementations *x = t->x;
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    lb_repair_edits edits;
    lb_repair found = {.kind = LB_REPAIR_NONE};
    bool runs[2];
    for (int k = 0; k < 2; k++) LB_TRY(gives(&benches[k], benches[!k].target, &runs[k], err));
    lb_status status = lb_repair_edits_list(sides, &x->regions, r, &edits)
                           ? try_edits(benches, runs, &edits, &found, err)
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for edits");
    lb_repair_edits_release(&edits);
    if (found.kind != LB_REPAIR_NONE) name_repair(x, r, &found);
    return status;
}

static lb_status lay_out_both(repairer *t, const lb_region *r, bench benches[2], lb_err *err)
{
    lb_implementations *x = t->x;
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    const uint32_t outputs[] = {x->counterparts.pieces[c->first].tensor, c->b};
    for (int k = 0; k < 2; k++) LB_TRY(lay_out(t, k, r, outputs[k], &benches[k], err));
    return LB_OK;
}

/* The numbers that regions begin with, by a run of each side: B from A's numbers. */
static lb_status run_sides(repairer *t, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        lb_exact_side *s = &t->x->sides[k];
        uint8_t *before = s->wanted;
        s->wanted = calloc((size_t)s->program->n_values + 1, 1);
        for (uint32_t i = 0; i < t->x->regions.n && s->wanted; i++)
            for (uint32_t j = 0; j < t->benches[i][k].n_leaves; j++) s->wanted[t->benches[i][k].leaves[j]] = 1;
        const lb_status status = s->wanted ? lb_exact_side_run_aside(s, &t->kept[k], err)
                                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for values");
        free(s->wanted);
        s->wanted = before;
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status repair_all(repairer *t, lb_err *err)
{
    lb_regions *all = &t->x->regions;
    for (uint32_t i = 0; i < all->n; i++)
        if (is_guessed(t->x, &all->list[i])) LB_TRY(lay_out_both(t, &all->list[i], t->benches[i], err));
    LB_TRY(run_sides(t, err));
    for (uint32_t i = 0; i < all->n; i++) {
        bench *b = t->benches[i];
        if (b[0].n_ops && b[1].n_ops && take_leaves(t, 0, &b[0]) && take_leaves(t, 1, &b[1]) &&
            take_targets(t, &all->list[i], b))
            LB_TRY(repair_region(t, &all->list[i], b, err));
    }
    return LB_OK;
}

lb_status lb_repairs_find(lb_implementations *x, lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    repairer t = {.x = x};
    bool any = false;
    for (uint32_t i = 0; i < x->regions.n; i++) any |= is_guessed(x, &x->regions.list[i]);
    if (!any || lb_rank_parts_are_parted(sides)) return LB_OK;
    for (int k = 0; k < 2; k++) t.maker[k] = list_makers(x->sides[k].program);
    t.benches = calloc(x->regions.n, sizeof *t.benches);
    lb_differences_force(x);
    const lb_status status = t.maker[0] && t.maker[1] && t.benches
                                 ? repair_all(&t, err)
                                 : lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
    lb_differences_unforce(x);
    for (uint32_t i = 0; i < x->regions.n && t.benches; i++)
        release_bench(&t.benches[i][0]), release_bench(&t.benches[i][1]);
    free(t.benches);
    for (int k = 0; k < 2; k++) {
        lb_exact_side_free_kept(&x->sides[k], t.kept[k]);
        free(t.maker[k]);
    }
    return status;
}
