/* Groups of ops that round: see rounding_groups.h. */
#include "check/rounding_groups.h"

#include "check/digit_list.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const lb_program *program_of(const lb_rounding_groups *groups, uint32_t rank)
{
    return groups->ranks->list[rank]->run->program;
}

/* Texts have numbers in each rank's program of its own. */
static bool same_call(const lb_program *p, const lb_op *a, const lb_program *q, const lb_op *b)
{
    if (p == q) return a->line == b->line && a->name == b->name;
    const lb_code_line line = lb_op_line(p, a), y = lb_op_line(q, b);
    return line.number == y.number && strcmp(lb_op_name(p, a), lb_op_name(q, b)) == 0 &&
           strcmp(line.file, y.file) == 0 && strcmp(line.text, y.text) == 0;
}

/* Where no line was recorded, ops of layers that differ in a number alone are a group; and so are all sums of
 * gradients, which autograd makes itself. */
static bool belongs(const lb_rounding_groups *groups, const lb_rounding_group *one, uint32_t rank, uint32_t op)
{
    const lb_program *p = program_of(groups, rank), *q = program_of(groups, one->rank);
    const lb_op *o = &p->ops[op], *first = &q->ops[one->first];
    char wide[160];
    if (one->backward != (o->phase != LB_PHASE_FORWARD) || !same_call(q, first, p, o)) return false;
    if (groups->sums[rank][op] || groups->sums[one->rank][one->first])
        return groups->sums[rank][op] && groups->sums[one->rank][one->first];
    return o->line || lb_digit_list_alike(lb_op_layer(q, first), lb_op_layer(p, o), wide, sizeof wide);
}

static lb_rounding_group *group_for(lb_rounding_groups *groups, uint32_t rank, uint32_t op)
{
    const bool backward = program_of(groups, rank)->ops[op].phase != LB_PHASE_FORWARD;
    for (uint32_t i = 0; i < groups->n; i++)
        if (belongs(groups, &groups->list[i], rank, op)) return &groups->list[i];
    lb_rounding_group *list = lb_array_grow(groups->list, groups->n, sizeof *list);
    if (!list) return NULL;
    groups->list = list;
    list[groups->n] = (lb_rounding_group){.number = groups->n, .rank = rank, .first = op, .backward = backward};
    return &list[groups->n++];
}

static void add_value(lb_rounding_group *one, const lb_rounding_apart *apart, lb_dtype dtype, bool final)
{
    if (final) one->summed += apart->squares;
    if (!final) one->passing += apart->squares, one->passed += apart->whole;
    one->squares += apart->squares, one->whole += apart->whole, one->largest = fmax(one->largest, apart->largest);
    if (!one->dtype || lb_dtype_precision(dtype) < lb_dtype_precision(one->dtype)) one->dtype = dtype;
}

/* Is it a gradient that an optimizer reads, or becomes one in place? */
static bool is_gradient(const lb_rounding_runs *runs, uint32_t op, uint32_t v)
{
    const lb_program *program = runs->run->program;
    if (program->ops[op].phase != LB_PHASE_BACKWARD) return false;
    for (uint32_t i = 0; i < runs->n_aims; i++)
        if (runs->aims[i].gradient && program->values[runs->aims[i].value].storage == program->values[v].storage)
            return true;
    return false;
}

static lb_status add_rank(lb_rounding_groups *groups, uint32_t rank, lb_err *err)
{
    const lb_rounding_runs *runs = groups->ranks->list[rank];
    const lb_program *program = runs->run->program;
    groups->group_of[rank] = malloc(((size_t)program->n_ops + 1) * sizeof **groups->group_of);
    groups->sums[rank] = calloc((size_t)program->n_ops + 1, 1);
    if (!groups->group_of[rank] || !groups->sums[rank])
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", program->n_ops);
    memset(groups->group_of[rank], 0xFF, ((size_t)program->n_ops + 1) * sizeof **groups->group_of);
    for (uint32_t i = 0; i < program->n_ops && i <= runs->last; i++) {
        lb_rounding_group *one = NULL;
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]); k++) {
            const uint32_t value = lb_op_outcome(program, &program->ops[i], k);
            if (value == LB_NONE || !runs->log->rounded[value] || !lb_rounding_log_is_first(program, i, k)) continue;
            if (runs->run->graph.giver[value] != i) continue;
            const bool final = is_gradient(runs, i, value);
            groups->sums[rank][i] |= final && program->ops[i].written;
            if (!one) one = group_for(groups, rank, i);
            if (!one) return lb_fail(err, LB_ERR_NOMEM, "out of memory for groups of ops");
            add_value(one, &runs->log->sizes[value].apart, program->values[value].dtype, final);
        }
        if (one) one->ops++, groups->group_of[rank][i] = (uint32_t)(one - groups->list);
    }
    return LB_OK;
}

lb_status lb_rounding_groups_make(const lb_rounding_ranks *ranks, lb_rounding_groups *groups, lb_err *err)
{
    *groups = (lb_rounding_groups){.ranks = ranks,
                                   .group_of = calloc((size_t)ranks->n + 1, sizeof *groups->group_of),
                                   .sums = calloc((size_t)ranks->n + 1, sizeof *groups->sums)};
    if (!groups->group_of || !groups->sums) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", ranks->n);
    for (uint32_t k = 0; k < ranks->n; k++) LB_TRY(add_rank(groups, k, err));
    return LB_OK;
}

void lb_rounding_groups_release(lb_rounding_groups *groups)
{
    for (uint32_t k = 0; groups->group_of && k < groups->ranks->n; k++) free(groups->group_of[k]);
    for (uint32_t k = 0; groups->sums && k < groups->ranks->n; k++) free(groups->sums[k]);
    free(groups->list), free(groups->group_of), free(groups->sums);
    *groups = (lb_rounding_groups){0};
}

bool lb_rounding_groups_adds(const lb_rounding_groups *groups, uint32_t group)
{
    return groups->sums[groups->list[group].rank][groups->list[group].first];
}

lb_rounding_reach lb_rounding_group_reach(const lb_rounding_group *group)
{
    return group->backward ? LB_ROUNDING_BACKWARD : group->followed ? LB_ROUNDING_FOLLOWED : LB_ROUNDING_CONSTANT;
}

/* Of what has no gradient the score is what it rounds beside its size, or beside one where it is larger: a phase is
 * turned by what it is off, whatever it is. What is rounded in a gradient itself stays there; on the way to one it is
 * taken for as large beside it as it is where it is made, as a mean over micro-batches. */
static double score_of(const lb_rounding_group *one, const lb_rounding_ranks *ranks)
{
    const uint32_t n_roots = ranks->list[one->rank]->run->n_roots;
    const double micro = n_roots ? n_roots : 1;
    if (lb_rounding_group_reach(one) == LB_ROUNDING_FOLLOWED) return fmax(fabs(one->product), sqrt(one->spread));
    if (lb_rounding_group_reach(one) == LB_ROUNDING_CONSTANT) return fmax(one->relative, one->largest);
    const double passing = one->passed > 0 ? one->passing / one->passed / micro : 0;
    return sqrt(passing + (ranks->sizes[1] > 0 ? one->summed / ranks->sizes[1] : 0));
}

static int by_score(const void *a, const void *b)
{
    const lb_rounding_group *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static void add_products(lb_rounding_groups *groups, uint32_t rank)
{
    const lb_rounding_runs *runs = groups->ranks->list[rank];
    const lb_moved_run *run = runs->run;
    for (uint32_t i = 0; i < run->n_sites; i++) {
        const lb_moved_site *site = &run->sites[i];
        const uint32_t giver = run->graph.giver[site->value];
        if (giver == LB_NONE || groups->group_of[rank][giver] == LB_NONE || site->gradient == LB_NONE) continue;
        if (isnan(runs->spreads[i])) continue;
        lb_rounding_group *one = &groups->list[groups->group_of[rank][giver]];
        one->followed |= !one->backward, one->product += runs->products[i], one->spread += runs->spreads[i];
    }
}

static lb_status sort(lb_rounding_groups *groups, lb_err *err)
{
    uint32_t *now = malloc(((size_t)groups->n + 1) * sizeof *now);
    if (!now) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u groups", groups->n);
    if (groups->n) qsort(groups->list, groups->n, sizeof *groups->list, by_score);
    for (uint32_t i = 0; i < groups->n; i++) now[groups->list[i].number] = i;
    for (uint32_t k = 0; k < groups->ranks->n; k++)
        for (uint32_t i = 0; i < program_of(groups, k)->n_ops; i++)
            if (groups->group_of[k][i] != LB_NONE) groups->group_of[k][i] = now[groups->group_of[k][i]];
    for (uint32_t i = 0; i < groups->n; i++) groups->list[i].number = i;
    free(now);
    return LB_OK;
}

lb_status lb_rounding_groups_score(lb_rounding_groups *groups, lb_err *err)
{
    for (uint32_t k = 0; k < groups->ranks->n; k++) add_products(groups, k);
    for (uint32_t i = 0; i < groups->n; i++) {
        lb_rounding_group *one = &groups->list[i];
        one->relative = one->whole > 0 ? sqrt(one->squares / one->whole) : 1;
        one->score = score_of(one, groups->ranks);
    }
    return sort(groups, err);
}

void lb_rounding_groups_mark(const lb_rounding_groups *groups, uint32_t group, bool without, uint8_t *const *added)
{
    for (uint32_t k = 0; k < groups->ranks->n; k++)
        for (uint32_t i = 0; i < program_of(groups, k)->n_ops; i++)
            if (groups->group_of[k][i] != LB_NONE && (groups->group_of[k][i] == group) != without) added[k][i] = 1;
}
