/* A table that several regions compute: see region_table.h. */
#include "implementations/region_table.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct common {
    uint32_t *ops[2], n[2]; /* ascending */
} common;

/* Keeps of a list what another one has, too; both ascending. */
static uint32_t intersect(uint32_t *list, uint32_t n, const uint32_t *other, uint32_t m)
{
    uint32_t kept = 0;
    for (uint32_t i = 0, j = 0; i < n; i++) {
        while (j < m && other[j] < list[i]) j++;
        if (j < m && other[j] == list[i]) list[kept++] = list[i];
    }
    return kept;
}

static bool have_common(const lb_regions *all, const lb_region *x, const lb_region *y, int side)
{
    for (uint32_t i = 0; i < x->n[side]; i++)
        if (bsearch(&all->ops[x->first[side] + i], all->ops + y->first[side], y->n[side], sizeof *all->ops, lb_by_u32))
            return true;
    return false;
}

/* Is there nothing to say of the region but that both sides compute it by ops of their own? */
static bool is_guess(const lb_region *r)
{
    return r->reason == LB_REGION_OPS && !r->inherited;
}

/* What all regions that have ops in common with this one on both sides have in common. False: it is alone, or no memory
 * (`out` has no lists). */
static bool find_common(const lb_regions *all, const lb_region *r, common *out)
{
    uint32_t others = 0;
    *out = (common){.n = {r->n[0], r->n[1]}};
    for (int k = 0; k < 2; k++) {
        out->ops[k] = malloc(((size_t)r->n[k] + 1) * sizeof *out->ops[k]);
        if (!out->ops[k]) return free(out->ops[0]), out->ops[0] = NULL, false;
        memcpy(out->ops[k], all->ops + r->first[k], (size_t)r->n[k] * sizeof *out->ops[k]);
    }
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_region *other = &all->list[i];
        if (other == r || !is_guess(other) || !have_common(all, r, other, 0) || !have_common(all, r, other, 1))
            continue;
        others++;
        for (int k = 0; k < 2; k++)
            out->n[k] = intersect(out->ops[k], out->n[k], all->ops + other->first[k], other->n[k]);
    }
    return others && out->n[0] && out->n[1] && out->n[0] < r->n[0] && out->n[1] < r->n[1];
}

/* Is a value that the step begins with neither learnt nor given to the model as floats? */
static bool is_no_activation(const lb_region_question *q, int side, uint32_t value)
{
    const lb_exact_side *s = q->sides[side];
    const uint32_t whole = lb_region_shown_whole(s, value), row = q->sources[side]->row_of[whole];
    const lb_value *v = &s->program->values[whole];
    const bool batch = row != LB_NONE && q->sources[side]->list[row].kind == LB_SOURCE_BATCH;
    return !(v->flags & LB_VALUE_PARAMETER) && !(batch && lb_dtype_is_float(v->dtype));
}

/* Does the value follow from such alone? `seen`, per value: it does, as far as it was asked; `stack`: of as many. */
static bool follows_from_no_activation(const lb_region_question *q, int side, uint32_t value, uint8_t *seen,
                                       uint32_t *stack)
{
    const lb_value_graph *g = &q->sides[side]->graph;
    uint32_t n = 0;
    if (!seen[value]) seen[value] = 1, stack[n++] = value;
    while (n) {
        const uint32_t v = stack[--n];
        if (lb_region_is_source(q->sides[side], v) && !is_no_activation(q, side, v)) return false;
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++)
            if (!seen[g->preds[k]]) seen[g->preds[k]] = 1, stack[n++] = g->preds[k];
    }
    return true;
}

static bool are_of_no_activation(const lb_region_question *q, int side, const uint32_t *ops, uint32_t n, bool *room)
{
    const lb_program *p = q->sides[side]->program;
    uint8_t *seen = calloc((size_t)p->n_values + 1, 1);
    uint32_t *stack = malloc(((size_t)p->n_values + 1) * sizeof *stack);
    bool all = seen && stack;
    *room &= all;
    for (uint32_t i = 0; i < n && all; i++)
        for (uint32_t j = 0; j < lb_op_outcomes(&p->ops[ops[i]]) && all; j++) {
            const uint32_t v = lb_op_outcome(p, &p->ops[ops[i]], j);
            all = v == LB_NONE || follows_from_no_activation(q, side, v, seen, stack);
        }
    free(seen), free(stack);
    return all;
}

/* The op that would be named, were the table the whole region. */
static bool name_of_table(const lb_region_frontier *f, lb_regions *all, const lb_region *r, const common *c,
                          lb_region *table)
{
    *table = *r;
    for (int k = 0; k < 2; k++) {
        table->first[k] = all->n_ops, table->n[k] = c->n[k];
        for (uint32_t i = 0; i < c->n[k]; i++) {
            uint32_t *more = lb_array_grow(all->ops, all->n_ops, sizeof *more);
            if (!more) return false;
            all->ops = more, all->ops[all->n_ops++] = c->ops[k][i];
        }
    }
    lb_region_op_choose(f, table);
    return true;
}

bool lb_region_table_name(const lb_region_frontier *f, lb_regions *all)
{
    lb_region *named = malloc(((size_t)all->n + 1) * sizeof *named);
    const uint32_t before = all->n_ops;
    bool room = named != NULL;
    if (room && all->n) memcpy(named, all->list, all->n * sizeof *named);
    for (uint32_t i = 0; i < all->n && room; i++) {
        const lb_region *r = &all->list[i];
        common c = {.n = {0, 0}};
        if (is_guess(r) && find_common(all, r, &c) && are_of_no_activation(f->asked, 0, c.ops[0], c.n[0], &room) &&
            are_of_no_activation(f->asked, 1, c.ops[1], c.n[1], &room)) {
            lb_region table;
            room = name_of_table(f, all, r, &c, &table);
            memcpy(named[i].op, table.op, sizeof named[i].op);
            memcpy(named[i].source, table.source, sizeof named[i].source);
            named[i].reason = table.reason;
        }
        free(c.ops[0]), free(c.ops[1]);
        all->n_ops = before;
    }
    for (uint32_t i = 0; i < all->n && room; i++) all->list[i] = named[i];
    free(named);
    return room;
}
