/* Modules that stand beside each other: see modules.h. */
#include "exact/modules.h"

#include <stdlib.h>
#include <string.h>

uint32_t lb_modules_parent(const lb_program *p, uint32_t scope)
{
    return p->scopes[scope].parent == LB_NONE ? 0 : p->scopes[scope].parent;
}

bool lb_modules_is_in(const lb_program *p, uint32_t scope, uint32_t module)
{
    while (scope && scope != module) scope = lb_modules_parent(p, scope);
    return scope == module;
}

typedef struct pair {
    uint32_t mine, other; /* scopes of two ops that give one quantity */
    double weight;        /* all pairs of a scope of `mine` together have one vote */
} pair;

static uint32_t scope_of(const lb_exact_side *s, uint32_t v)
{
    return s->graph.giver[v] == LB_NONE ? LB_NONE : s->program->ops[s->graph.giver[v]].scope;
}

/* A table that every layer computes anew is one quantity in all of them: it says nothing of which layer is which.
 * `met`, `back`: values of `mine` on the other side, and of the other side on `mine`. */
static pair *list_pairs(const lb_exact_side *mine, const lb_exact_side *other, const uint32_t *met,
                        const uint32_t *back, uint32_t *n)
{
    const lb_program *p = mine->program, *q = other->program;
    pair *list = malloc((p->n_values + 1) * sizeof *list);
    *n = 0;
    for (uint32_t v = 0; list && v < p->n_values; v++) {
        if (met[v] == LB_NONE || !mine->graph.given[v] || mine->graph.giver[v] == LB_NONE ||
            other->graph.giver[met[v]] == LB_NONE ||
            (back[met[v]] != LB_NONE && scope_of(mine, back[met[v]]) != scope_of(mine, v)))
            continue;
        const lb_op *a = &p->ops[mine->graph.giver[v]], *b = &q->ops[other->graph.giver[met[v]]];
        if (lb_value_graph_computes(p, a) && lb_value_graph_computes(q, b) && a->phase == b->phase)
            list[(*n)++] = (pair){a->scope, b->scope, 1};
    }
    uint32_t *many = calloc(p->n_scopes + 1, sizeof *many);
    for (uint32_t i = 0; many && list && i < *n; i++) many[list[i].mine]++;
    for (uint32_t i = 0; many && list && i < *n; i++) list[i].weight = 1.0 / many[list[i].mine];
    if (!many) free(list), list = NULL;
    free(many);
    return list;
}

static uint32_t depth_of(const lb_program *p, uint32_t scope)
{
    uint32_t depth = 0;
    for (; scope; scope = lb_modules_parent(p, scope)) depth++;
    return depth;
}

typedef struct vote {
    const lb_program *mine, *other;
    const pair *pairs;
    uint32_t n;
    double *count;                  /* per scope of `other` */
    uint32_t *alone[2], n_alone[2]; /* ops of scopes of either that give nothing which the other side gives */
    const uint32_t *shared; /* per scope of `other`: LB_NONE where several modules share it; NULL: not known yet */
} vote;

/* Does something in `module`, and not in `but` (0: none), stand beside nothing yet and run an op of A's name? */
static bool holds_like(const vote *x, const lb_op *a, uint32_t module, uint32_t but)
{
    const lb_program *q = x->other;
    for (uint32_t j = 0; j < x->n_alone[1]; j++) {
        const lb_op *b = &q->ops[x->alone[1][j]];
        if (a->phase == b->phase && lb_modules_is_in(q, b->scope, module) &&
            (!but || !lb_modules_is_in(q, b->scope, but)) && !strcmp(lb_op_name(x->mine, a), lb_op_name(q, b)))
            return true;
    }
    return false;
}

/* Does a module in the module hold an op that stands beside nothing yet, and that something in `outer` may be, but
 * nothing in `inner`? */
static bool may_be_outside(const vote *x, uint32_t module, uint32_t outer, uint32_t inner)
{
    for (uint32_t i = 0; i < x->n_alone[0]; i++) {
        const lb_op *a = &x->mine->ops[x->alone[0][i]];
        if (a->scope != module && lb_modules_is_in(x->mine, a->scope, module) && holds_like(x, a, outer, inner) &&
            !holds_like(x, a, inner, 0))
            return true;
    }
    return false;
}

static void count_votes(vote *x, uint32_t module, double *all)
{
    memset(x->count, 0, (x->other->n_scopes + 1) * sizeof *x->count);
    *all = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        const pair *one = &x->pairs[i];
        if (!lb_modules_is_in(x->mine, one->mine, module) || (x->shared && x->shared[one->other] == LB_NONE)) continue;
        *all += one->weight;
        for (uint32_t scope = one->other; scope; scope = lb_modules_parent(x->other, scope))
            x->count[scope] += one->weight;
    }
    x->count[0] = *all;
}

/* Down from `within` to the innermost scope that has three of four votes, as long as no scope's whole vote is lost on
 * the way, nor anything that what is alone in the module may stand beside; LB_NONE: the votes lie all over the other
 * side. */
static uint32_t most_common(vote *x, uint32_t module, uint32_t within)
{
    const lb_program *q = x->other;
    double all;
    count_votes(x, module, &all);
    bool together = 4 * x->count[within] >= 3 * all;
    for (uint32_t scope = 1; scope < q->n_scopes && all > 0 && !together; scope++)
        together = 4 * x->count[scope] >= 3 * all && depth_of(q, scope) >= depth_of(q, within);
    if (!together) return LB_NONE;
    uint32_t best = within;
    for (bool down = all > 0; down;) {
        down = false;
        for (uint32_t scope = 1; scope < q->n_scopes && !down; scope++) {
            if (lb_modules_parent(q, scope) != best || scope == best || 4 * x->count[scope] < 3 * all ||
                x->count[best] - x->count[scope] >= 0.999 || may_be_outside(x, module, best, scope))
                continue;
            best = scope, down = true;
        }
    }
    return best;
}

static bool list_alone(vote *x, int side)
{
    const lb_program *p = side ? x->other : x->mine;
    uint8_t *paired = calloc(p->n_scopes + 1, 1);
    x->alone[side] = malloc(((size_t)p->n_ops + 1) * sizeof *x->alone[side]);
    const bool room = paired && x->alone[side];
    for (uint32_t i = 0; i < x->n && room; i++) paired[side ? x->pairs[i].other : x->pairs[i].mine] = 1;
    for (uint32_t i = 0; i < p->n_ops && room; i++)
        if (!paired[p->ops[i].scope] && lb_value_graph_computes(p, &p->ops[i])) x->alone[side][x->n_alone[side]++] = i;
    free(paired);
    return room;
}

static bool put_beside(const lb_exact_side *const sides[2], uint32_t *const met[2], int side, const uint32_t *shared,
                       uint32_t *beside)
{
    vote x = {.mine = sides[side]->program, .other = sides[!side]->program, .shared = shared};
    pair *pairs = list_pairs(sides[side], sides[!side], met[side], met[!side], &x.n);
    x.pairs = pairs, x.count = malloc((x.other->n_scopes + 1) * sizeof *x.count);
    const bool room = pairs && x.count && list_alone(&x, 0) && list_alone(&x, 1);
    for (uint32_t scope = 1; room && scope < x.mine->n_scopes; scope++) {
        const uint32_t parent = beside[lb_modules_parent(x.mine, scope)];
        beside[scope] = parent == LB_NONE ? LB_NONE : most_common(&x, scope, parent);
    }
    free(pairs), free(x.count), free(x.alone[0]), free(x.alone[1]);
    return room;
}

bool lb_modules_beside(const lb_exact_side *const sides[2], uint32_t *const met[2], uint32_t *beside[2])
{
    uint32_t *first[2];
    bool room = true;
    for (int k = 0; k < 2; k++) {
        first[k] = calloc(sides[k]->program->n_scopes + 1, sizeof *first[k]);
        beside[k] = calloc(sides[k]->program->n_scopes + 1, sizeof *beside[k]);
        room = room && first[k] && beside[k];
    }
    for (int k = 0; k < 2 && room; k++) room = put_beside(sides, met, k, NULL, first[k]);
    for (int k = 0; k < 2 && room; k++) room = put_beside(sides, met, k, first[!k], beside[k]);
    for (int k = 0; k < 2; k++) {
        free(first[k]);
        if (!room) free(beside[k]), beside[k] = NULL;
    }
    return room;
}
