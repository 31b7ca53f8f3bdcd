/* One op written differently: see repairs.h. */
#include "implementations/repairs.h"

#include "implementations/differences.h"
#include "counterparts/rank_parts.h"
#include "implementations/region_bench.h"
#include "implementations/repair_edits.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

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
    if (e->swapped) args[0] = lb_op_args(own, op)[1], args[1] = lb_op_args(own, op)[0];
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

/* ---- trials ---- */

/* What is tried of a region. */
typedef struct trial {
    const lb_regions *regions;
    const lb_region *region;
    const lb_region_bench *benches;
    bool runs[2];     /* the part gives what its side gave */
    uint32_t *ops;    /* room for those that one edit is made in */
    lb_repair *turns; /* and for the edit of each */
} trial;

static lb_status try_edit(const trial *t, lb_repair *edit, bool *same, lb_err *err)
{
    const lb_region_bench *b = &t->benches[edit->side];
    const uint32_t n = lb_repair_edits_ops(b->side, t->regions, t->region, edit, t->ops);
    bool set = true;
    for (uint32_t i = 0; i < n; i++) {
        t->turns[i] = *edit;
        if (t->ops[i] != edit->op) t->turns[i].op = t->ops[i], t->turns[i].args[0] = 0;
        set = set && lb_repair_set(b->side->own, &t->turns[i], true);
    }
    *same = false;
    const lb_status status =
        set ? lb_region_bench_gives(b, b->target, same, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for an edit");
    for (uint32_t i = 0; i < n; i++) {
        if (t->turns[i].args[0]) lb_repair_set(b->side->own, &t->turns[i], false);
        if (t->ops[i] == edit->op) *edit = t->turns[i];
    }
    return status;
}

/* ---- regions ---- */

/* Is it one op on both sides, called with another number? Then its arguments say it all. */
static bool is_of_arguments(const lb_implementations *x, const lb_region *r)
{
    const lb_program *a = x->sides[0].program, *b = x->sides[1].program;
    if (r->repair.kind != LB_REPAIR_NUMBER || r->op[0] == LB_NONE || r->op[1] == LB_NONE) return false;
    const lb_op *mine = &a->ops[r->op[0]], *other = &b->ops[r->op[1]];
    return !strcmp(lb_op_name(a, mine), lb_op_name(b, other)) && mine->args == other->args;
}

static void name_repair(const lb_implementations *x, lb_region *r, const lb_repair found[2])
{
    const int side = found->side;
    const bool left_out = found->kind == LB_REPAIR_LEFT_OUT;
    r->repair = found[0], r->also = found[1];
    r->op[side] = found->op;
    if (found->other != LB_NONE || left_out) r->op[!side] = found->other;
    r->source[0] = r->source[1] = LB_NONE;
    r->reason = left_out                                                  ? LB_REGION_MISSING
                : r->also.kind == LB_REPAIR_NONE && is_of_arguments(x, r) ? LB_REGION_ARGUMENTS
                                                                          : LB_REGION_REPAIRED;
}

enum { MOST_NUMBERS_IN_PAIRS = 64 };

/* Two numbers that each side has alone, at once. */
static lb_status try_pairs(const trial *t, const lb_repair_edits *edits, lb_repair found[2], lb_err *err)
{
    lb_repair *list[MOST_NUMBERS_IN_PAIRS];
    uint32_t n = 0;
    int64_t work = 0;
    for (uint32_t i = 0; i < edits->n && n < MOST_NUMBERS_IN_PAIRS; i++)
        if (edits->list[i].kind == LB_REPAIR_NUMBER && edits->list[i].alone && edits->list[i].times == 1 &&
            t->runs[edits->list[i].side])
            list[n++] = &edits->list[i];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n && work < MOST_WORK; j++) {
            const lb_region_bench *b = &t->benches[list[i]->side];
            bool same;
            if (list[i]->side != list[j]->side || list[i]->op == list[j]->op) continue;
            if (!lb_repair_set(b->side->own, list[i], true)) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            const lb_status status = try_edit(t, list[j], &same, err);
            lb_repair_set(b->side->own, list[i], false);
            LB_TRY(status);
            work += b->work;
            if (same) found[0] = *list[i], found[1] = *list[j];
            if (same) return LB_OK;
        }
    return LB_OK;
}

/* The first edit by which one side gives the other's numbers. */
static lb_status try_edits(const trial *t, const lb_repair_edits *edits, lb_repair *found, lb_err *err)
{
    int64_t work = 0;
    for (uint32_t i = 0; i < edits->n && work < MOST_WORK; i++) {
        lb_repair *edit = &edits->list[i];
        bool same;
        if (!t->runs[edit->side]) continue;
        LB_TRY(try_edit(t, edit, &same, err));
        work += t->benches[edit->side].work;
        if (same) *found = *edit;
        if (same) return LB_OK;
    }
    return LB_OK;
}

/* Does the part, as it is, give what its side gave? Without ops it cannot be run. */
static lb_status can_run(const lb_region_bench *b, const double *given, bool *runs, lb_err *err)
{
    *runs = false;
    return b->n_ops ? lb_region_bench_gives(b, given, runs, err) : LB_OK;
}

/* The op of `like` that stands where `op` stands in `region`, on that side; `op` itself where it stands in neither. */
static uint32_t op_alike(const lb_regions *all, const lb_region *region, const lb_region *like, int side, uint32_t op)
{
    for (uint32_t i = 0; i < region->n[side]; i++)
        if (all->ops[region->first[side] + i] == op) return all->ops[like->first[side] + i];
    return op;
}

/* An update is one formula for many parameters: what is proven of one is said of those that are alike. */
static void name_alike(lb_implementations *x, const lb_region *proven, const lb_repair found[2])
{
    lb_regions *all = &x->regions;
    const lb_region before = *proven;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_region *like = &all->list[i];
        if (like == proven || !lb_region_bench_are_alike(x, &before, like)) continue;
        lb_repair mapped[2] = {found[0], found[1]};
        for (int k = 0; k < 2; k++) {
            mapped[k].op = op_alike(all, &before, like, mapped[k].side, mapped[k].op);
            mapped[k].other = op_alike(all, &before, like, !mapped[k].side, mapped[k].other);
            mapped[k].args[0] = 0; /* it is written anew where it is tried */
        }
        name_repair(x, like, mapped);
    }
}

/* ---- regions that were tried before ---- */

/* What a search tries is tried again when another difference was put right, and is mostly the same. */
typedef struct question {
    lb_digest *words;
    uint32_t n;
    bool no_memory;
} question;

static void add_bytes(question *q, const void *bytes, size_t n)
{
    lb_digest *more = lb_array_grow(q->words, q->n, sizeof *more);
    q->no_memory |= !more;
    if (!more) return;
    q->words = more, q->words[q->n++] = lb_digest_bytes(bytes, n);
}

/* An edit gives an op a row of arguments of its own, or another name. */
static void add_op(question *q, const lb_exact_side *s, uint32_t op)
{
    const lb_op *o = &s->own->ops[op];
    const uint32_t row[] = {op, o->name, o->first_arg, o->args};
    add_bytes(q, row, sizeof row);
}

static void add_bench(question *q, const lb_region_bench *b)
{
    const lb_program *p = b->side->program;
    const uint32_t row[] = {b->n_ops, b->n_leaves, b->output};
    add_bytes(q, row, sizeof row);
    for (uint32_t i = 0; i < b->n_ops; i++) add_op(q, b->side, b->ops[i]);
    for (uint32_t i = 0; i < b->n_leaves && b->n_ops; i++) {
        add_bytes(q, &b->leaves[i], sizeof b->leaves[i]);
        add_bytes(q, b->numbers[i], (size_t)lb_layout_numel(&p->values[b->leaves[i]].layout) * sizeof **b->numbers);
    }
    add_bytes(q, b->target, (size_t)b->elements * sizeof *b->target);
    add_bytes(q, &b->noise, sizeof b->noise);
}

/* `update`: edits are made with what the optimizer does elsewhere, too. */
static lb_status ask(const lb_implementations *x, const lb_region *r, const lb_region_bench *benches, bool update,
                     lb_digest *out, lb_err *err)
{
    question q = {0};
    for (int k = 0; k < 2; k++) {
        const lb_exact_side *s = &x->sides[k];
        add_bench(&q, &benches[k]);
        for (uint32_t i = 0; i < r->n[k]; i++) add_op(&q, s, x->regions.ops[r->first[k] + i]);
        for (uint32_t i = 0; i < s->program->n_ops && update; i++)
            if (s->program->ops[i].phase == LB_PHASE_OPTIMIZER) add_op(&q, s, i);
        add_bytes(&q, &k, sizeof k);
    }
    *out = lb_digest_bytes(q.words, q.n * sizeof *q.words);
    free(q.words);
    return q.no_memory ? lb_fail(err, LB_ERR_NOMEM, "out of memory for what is tried") : LB_OK;
}

static const lb_repairs_tried *find_answer(const lb_implementations *x, lb_digest question)
{
    for (uint32_t i = 0; i < x->n_tried; i++)
        if (lb_digest_equal(x->tried[i].question, question)) return &x->tried[i];
    return NULL;
}

/* As it was found: where it is written into a program again, that is done anew. */
static lb_status keep_answer(lb_implementations *x, lb_digest question, const lb_repair found[2], lb_err *err)
{
    lb_repairs_tried *more = lb_array_grow(x->tried, x->n_tried, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for what was tried");
    x->tried = more;
    x->tried[x->n_tried++] = (lb_repairs_tried){question, {found[0], found[1]}};
    return LB_OK;
}

static lb_status try_region(lb_implementations *x, lb_region *r, const lb_region_bench *benches, bool update,
                            lb_repair found[2], lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    lb_repair_edits edits = {0};
    trial t = {.regions = &x->regions, .region = r, .benches = benches};
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++) status = can_run(&benches[k], benches[!k].target, &t.runs[k], err);
    const size_t most = (size_t)r->n[0] + r->n[1] + 1;
    t.ops = malloc(most * sizeof *t.ops), t.turns = malloc(most * sizeof *t.turns);
    if (status == LB_OK && !(t.ops && t.turns && lb_repair_edits_list(sides, &x->regions, r, &edits)))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for edits");
    if (status == LB_OK) status = try_edits(&t, &edits, &found[0], err);
    if (status == LB_OK && found[0].kind == LB_REPAIR_NONE && !update) status = try_pairs(&t, &edits, found, err);
    lb_repair_edits_release(&edits);
    free(t.ops), free(t.turns);
    return status;
}

static lb_status repair_region(void *context, lb_region_benches *all, uint32_t region, lb_err *err)
{
    lb_implementations *x = context;
    lb_region *r = &x->regions.list[region];
    lb_repair found[2] = {{.kind = LB_REPAIR_NONE}, {.kind = LB_REPAIR_NONE}};
    const bool update = lb_region_bench_is_update(x, r);
    lb_digest question;
    LB_TRY(ask(x, r, all->list[region], update, &question, err));
    const lb_repairs_tried *before = find_answer(x, question);
    if (before) memcpy(found, before->answer, sizeof found);
    lb_status status = before ? LB_OK : try_region(x, r, all->list[region], update, found, err);
    if (!before && status == LB_OK) status = keep_answer(x, question, found, err);
    if (found[0].kind != LB_REPAIR_NONE && update) name_alike(x, r, found);
    if (found[0].kind != LB_REPAIR_NONE) name_repair(x, r, found);
    return status;
}

lb_status lb_repairs_find(lb_implementations *x, lb_err *err)
{
    return lb_region_benches_each(x, true, repair_region, x, err);
}
