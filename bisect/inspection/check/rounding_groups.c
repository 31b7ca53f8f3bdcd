/* Groups of ops that round: see rounding_groups.h. */
#include "check/rounding_groups.h"

#include "check/digit_list.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where no line was recorded, ops of layers that differ in a number alone are a group; and so are all sums of
 * gradients, which autograd makes itself. */
static bool belongs(const lb_rounding_groups *g, const lb_program *p, const lb_rounding_group *one, uint32_t op)
{
    const lb_op *o = &p->ops[op];
    char wide[160];
    if (one->line != o->line || one->name != o->name || one->backward != (o->phase != LB_PHASE_FORWARD)) return false;
    if (g->sums[op] || g->sums[one->first]) return g->sums[op] && g->sums[one->first];
    return o->line || lb_digit_list_alike(lb_op_layer(p, &p->ops[one->first]), lb_op_layer(p, o), wide, sizeof wide);
}

static lb_rounding_group *group_for(lb_rounding_groups *g, const lb_program *p, uint32_t op)
{
    const lb_op *o = &p->ops[op];
    const bool backward = o->phase != LB_PHASE_FORWARD;
    for (uint32_t i = 0; i < g->n; i++)
        if (belongs(g, p, &g->list[i], op)) return &g->list[i];
    lb_rounding_group *list = lb_array_grow(g->list, g->n, sizeof *list);
    if (!list) return NULL;
    g->list = list;
    list[g->n] = (lb_rounding_group){.first = op, .line = o->line, .name = o->name, .backward = backward};
    return &list[g->n++];
}

static void add_value(lb_rounding_group *one, const lb_rounding_apart *s, lb_dtype dtype, bool final)
{
    if (final) one->summed += s->squares;
    if (!final) one->passing += s->squares, one->passed += s->whole;
    one->squares += s->squares, one->whole += s->whole, one->largest = fmax(one->largest, s->largest);
    if (!one->dtype || lb_dtype_precision(dtype) < lb_dtype_precision(one->dtype)) one->dtype = dtype;
}

/* Is it a gradient that an optimizer reads, or becomes one in place? */
static bool is_gradient(const lb_rounding_runs *runs, uint32_t op, uint32_t v)
{
    const lb_program *p = runs->run->program;
    if (p->ops[op].phase != LB_PHASE_BACKWARD) return false;
    for (uint32_t i = 0; i < runs->n_aims; i++)
        if (runs->aims[i].gradient && p->values[runs->aims[i].value].storage == p->values[v].storage) return true;
    return false;
}

lb_status lb_rounding_groups_make(const lb_rounding_runs *runs, const lb_rounding_log *log, lb_rounding_groups *g,
                                  lb_err *err)
{
    const lb_program *p = runs->run->program;
    *g = (lb_rounding_groups){.group_of = malloc(((size_t)p->n_ops + 1) * sizeof *g->group_of),
                              .sums = calloc((size_t)p->n_ops + 1, 1)};
    if (!g->group_of || !g->sums) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", p->n_ops);
    memset(g->group_of, 0xFF, ((size_t)p->n_ops + 1) * sizeof *g->group_of);
    for (uint32_t i = 0; i < p->n_ops && i <= runs->last; i++) {
        lb_rounding_group *one = NULL;
        for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(p, &p->ops[i], k);
            if (v == LB_NONE || !log->rounded[v] || !lb_rounding_log_is_first(p, i, k)) continue;
            if (runs->run->graph.giver[v] != i) continue;
            const bool final = is_gradient(runs, i, v);
            g->sums[i] |= final && p->ops[i].written;
            if (!one) one = group_for(g, p, i);
            if (!one) return lb_fail(err, LB_ERR_NOMEM, "out of memory for groups of ops");
            add_value(one, &log->sizes[v].apart, p->values[v].dtype, final);
        }
        if (one) one->ops++, g->group_of[i] = (uint32_t)(one - g->list);
    }
    return LB_OK;
}

void lb_rounding_groups_release(lb_rounding_groups *g)
{
    free(g->list), free(g->group_of), free(g->sums);
    *g = (lb_rounding_groups){0};
}

lb_rounding_reach lb_rounding_group_reach(const lb_rounding_group *group)
{
    return group->backward ? LB_ROUNDING_BACKWARD : group->followed ? LB_ROUNDING_FOLLOWED : LB_ROUNDING_CONSTANT;
}

/* Of what has no gradient the score is what it rounds beside its size, or beside one where it is larger: a phase is
 * turned by what it is off, whatever it is. What is rounded in a gradient itself stays there; on the way to one it is
 * taken for as large beside it as it is where it is made, as a mean over micro-batches. */
static double score_of(const lb_rounding_group *one, const lb_rounding_runs *runs)
{
    const double micro = runs->run->n_roots ? runs->run->n_roots : 1;
    if (lb_rounding_group_reach(one) == LB_ROUNDING_FOLLOWED) return fmax(fabs(one->product), sqrt(one->spread));
    if (lb_rounding_group_reach(one) == LB_ROUNDING_CONSTANT) return fmax(one->relative, one->largest);
    const double passing = one->passed > 0 ? one->passing / one->passed / micro : 0;
    return sqrt(passing + (runs->sizes[1] > 0 ? one->summed / runs->sizes[1] : 0));
}

static int by_score(const void *a, const void *b)
{
    const lb_rounding_group *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

void lb_rounding_groups_score(lb_rounding_groups *g, const lb_rounding_runs *runs)
{
    const lb_moved_run *run = runs->run;
    for (uint32_t i = 0; i < run->n_sites; i++) {
        const lb_moved_site *s = &run->sites[i];
        const uint32_t giver = run->graph.giver[s->value];
        if (giver == LB_NONE || g->group_of[giver] == LB_NONE || s->gradient == LB_NONE) continue;
        if (isnan(runs->spreads[i])) continue;
        lb_rounding_group *one = &g->list[g->group_of[giver]];
        one->followed |= !one->backward, one->product += runs->products[i], one->spread += runs->spreads[i];
    }
    for (uint32_t i = 0; i < g->n; i++) {
        lb_rounding_group *one = &g->list[i];
        one->relative = one->whole > 0 ? sqrt(one->squares / one->whole) : 1;
        one->score = score_of(one, runs);
    }
    if (g->n) qsort(g->list, g->n, sizeof *g->list, by_score);
}

void lb_rounding_groups_mark(const lb_rounding_groups *g, const lb_program *p, uint32_t group, bool without,
                             uint8_t *added)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (g->group_of[i] != LB_NONE && belongs(g, p, &g->list[group], i) != without) added[i] = 1;
}
