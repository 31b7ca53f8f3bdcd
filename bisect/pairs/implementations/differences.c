/* Every difference of two implementations: see differences.h. */
#include "implementations/differences.h"
#include "pair/op_kind.h"

#include "counterparts/counterpart_exits.h"
#include "counterparts/counterpart_orders.h"
#include "implementations/counterpart_scales.h"
#include "implementations/exchange.h"
#include "implementations/halfway.h"
#include "counterparts/parted.h"
#include "counterparts/rank_parts.h"
#include "implementations/region_shared.h"
#include "implementations/repairs.h"
#include "implementations/slack.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHARED = 6, MOST_ROUNDS = 4, MOST_SETTLING = 4 };

bool lb_differences_leave(const lb_counterpart *c)
{
    return c->kind == LB_COUNTERPART_EXIT || c->kind == LB_COUNTERPART_FINAL;
}

/* ---- B from A's numbers ---- */

void lb_differences_force(lb_implementations *x)
{
    const lb_exact_side *a = &x->sides[0], *b = &x->sides[1];
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (!b->forced[c->b] && !b->held[c->b] && lb_counterpart_can_be_put(&x->counterparts, c, a, b))
            b->forced[c->b] =
                lb_counterpart_forced(&x->counterparts, c, a, lb_layout_numel(&b->program->values[c->b].layout));
    }
}

void lb_differences_unforce(lb_implementations *x)
{
    const lb_exact_side *a = &x->sides[0], *b = &x->sides[1];
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (lb_counterpart_can_be_put(&x->counterparts, c, a, b)) free(b->forced[c->b]), b->forced[c->b] = NULL;
    }
}

/* Its counterparts are compared. */
static lb_status run_forced(lb_implementations *x, lb_err *err)
{
    lb_differences_force(x);
    lb_status status = lb_exact_side_run(&x->sides[1], err);
    lb_differences_unforce(x);
    if (status == LB_OK) lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    return status;
}

lb_status lb_differences_meet(lb_implementations *x, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        free(x->met[k]);
        x->met[k] = lb_regions_meet(&x->sides[k], &x->sides[!k], lb_slack_room(x));
    }
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    const bool room = x->met[0] && x->met[1] && lb_parted_meet(sides, x->met);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for equal values");
}

static lb_region_question question(const lb_implementations *x)
{
    return (lb_region_question){{&x->sides[0], &x->sides[1]},
                                {&x->sources[0], &x->sources[1]},
                                &x->contents,
                                &x->counterparts,
                                {x->met[0], x->met[1]},
                                x->innocent,
                                {x->around[0], x->around[1]}};
}

lb_status lb_differences_regions(const lb_implementations *x, lb_regions *out, lb_err *err)
{
    const lb_region_question asked = question(x);
    return lb_regions_find(&asked, out, err);
}

bool lb_differences_join(const lb_implementations *x, lb_regions *regions)
{
    const lb_region_question asked = question(x);
    return lb_regions_join_alike(&asked, regions);
}

/* B from A's numbers at every counterpart, compared there; and what is equal then. */
static lb_status run_and_meet(lb_implementations *x, lb_err *err)
{
    LB_TRY(run_forced(x, err));
    return lb_differences_meet(x, err);
}

/* Until all counterparts that are put are what they are taken for. */
static lb_status run_settled(lb_implementations *x, lb_err *err)
{
    for (uint32_t i = 0; i < MOST_SETTLING; i++) {
        LB_TRY(run_and_meet(x, err));
        const bool turned = lb_counterpart_orders_find_turned(&x->counterparts, &x->sides[0], &x->sides[1]),
                   wrong = lb_counterparts_drop_wrong(&x->counterparts, x->met, &x->sides[0], &x->sides[1]),
                   exchanged = lb_counterpart_exits_exchange(&x->counterparts, &x->sides[0], &x->sides[1]);
        if (!turned && !wrong && !exchanged) return LB_OK;
    }
    return run_and_meet(x, err);
}

/* What rounding may do from place to place takes the place of what it may do through all layers. */
static lb_status measure_slack(lb_implementations *x, lb_err *err)
{
    uint32_t alone;
    if (!x->alone) return LB_OK;
    LB_TRY(lb_slack_measure(x, true, &alone, err));
    lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    return LB_OK;
}

lb_status lb_differences_prove(lb_implementations *x, lb_err *err)
{
    double doubt = 0;
    LB_TRY(run_settled(x, err));
    LB_TRY(measure_slack(x, err));
    x->same = x->judged = true;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        x->same &= c->state != LB_COUNTERPART_APART;
        if (c->in_doubt) doubt = fmax(doubt, c->distance);
    }
    if (!x->same || !doubt) return LB_OK;
    x->same = x->judged = false;
    snprintf(x->missing, sizeof x->missing,
             "%u tensors that one side alone holds are so coarse that their rounding alone may move what follows as "
             "far as it does move (%.1g of its "
             "size): whether something else differs, too, cannot be told",
             x->alone, doubt);
    return LB_OK;
}

/* Adds what two regions share to the counterparts. */
static lb_status add_shared(lb_implementations *x, const lb_region_shared *shared, lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    const uint32_t before = x->counterparts.n;
    const bool added = lb_rank_parts_are_parted(sides)
                           ? lb_rank_parts_add_shared(&x->counterparts, sides, shared->a, shared->b)
                           : lb_counterparts_add_values(&x->counterparts, LB_COUNTERPART_SHARED, sides[0], shared->a,
                                                        sides[1], shared->b);
    if (!added) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a value that regions share");
    for (uint32_t i = before; i < x->counterparts.n; i++) x->sides[1].wanted[x->counterparts.list[i].b] = 1;
    return LB_OK;
}

/* The distance of each counterpart that is apart; NaN: of one that is not. malloc'ed; NULL: out of memory. */
static double *list_distances(const lb_implementations *x)
{
    double *list = malloc((x->counterparts.n + 1) * sizeof *list);
    for (uint32_t i = 0; list && i < x->counterparts.n; i++)
        list[i] = x->counterparts.list[i].state == LB_COUNTERPART_APART ? x->counterparts.list[i].distance : NAN;
    return list;
}

/* Did some counterpart come right? Or, between ops of one name, nearer? */
static bool was_of_help(const lb_implementations *x, const double *before, uint32_t n, bool is_guess)
{
    for (uint32_t i = 0; i < n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (isnan(before[i])) continue;
        if (c->state != LB_COUNTERPART_APART || (!is_guess && c->distance < 0.9 * before[i])) return true;
    }
    return false;
}

/* B from A's numbers at what two regions share. Values that put nothing right do not stand for each other (one may be
 * the other's negative). */
static lb_status go_on_from_shared(lb_implementations *x, const lb_region_shared *shared, lb_err *err)
{
    const uint32_t rows = x->counterparts.n;
    double *before = list_distances(x);
    lb_status status = before ? add_shared(x, shared, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for distances");
    if (status == LB_OK) status = run_and_meet(x, err);
    const uint32_t giver = x->sides[1].graph.giver[shared->b];
    const bool backward = giver != LB_NONE && x->sides[1].program->ops[giver].phase == LB_PHASE_BACKWARD;
    const bool helped = status != LB_OK || was_of_help(x, before, rows, shared->is_guess || backward);
    free(before);
    if (helped) return status;
    for (uint32_t i = rows; i < x->counterparts.n; i++) {
        lb_counterpart *c = &x->counterparts.list[i];
        c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN, c->was_guessed = true;
    }
    return run_and_meet(x, err);
}

/* The regions of B as it is now, or with what was put right in it. */
static lb_status search_places(lb_implementations *x, lb_err *err)
{
    lb_region_shared shared;
    LB_TRY(run_settled(x, err));
    LB_TRY(measure_slack(x, err));
    for (uint32_t k = 0, sure = 0;; k += !shared.is_sure, sure += shared.is_sure) {
        const lb_region_question asked = question(x);
        lb_regions_release(&x->regions);
        LB_TRY(lb_regions_find(&asked, &x->regions, err));
        if (k == MOST_SHARED || sure == MOST_SHARED || !lb_region_shared_find(&asked, &x->regions, &shared) ||
            !x->sides[0].kept[shared.a])
            return LB_OK;
        LB_TRY(go_on_from_shared(x, &shared, err));
    }
}

static lb_status search(lb_implementations *x, lb_err *err)
{
    bool any;
    LB_TRY(search_places(x, err));
    LB_TRY(lb_repairs_find(x, err));
    LB_TRY(lb_halfway_find(x, &any, err));
    if (!any) return LB_OK;
    LB_TRY(run_and_meet(x, err));
    const lb_region_question asked = question(x);
    lb_regions_release(&x->regions);
    LB_TRY(lb_regions_find(&asked, &x->regions, err));
    return lb_repairs_find(x, err);
}

/* ---- what hides behind a difference ---- */

typedef struct tried {
    lb_exchange exchange;
    lb_region region;
    double distance; /* of its counterpart before */
    bool put;
} tried;

typedef struct rounds {
    lb_implementations *x;
    tried *list;
    uint32_t n;
    lb_regions found; /* whose exchange helped */
} rounds;

static lb_table_question about_tables(lb_implementations *x)
{
    return (lb_table_question){
        {&x->sides[0], &x->sides[1]}, {&x->sources[0], &x->sources[1]}, &x->contents, {x->met[0], x->met[1]}};
}

/* The same difference that was tried before, for good or for nothing; NULL. */
static tried *find_tried(const rounds *t, const lb_region *r)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const lb_region *before = &t->list[i].region;
        if (before->reason != r->reason) continue;
        if (r->reason != LB_REGION_SOURCE ? before->op[1] == r->op[1]
            : r->source[1] != LB_NONE     ? before->source[1] == r->source[1]
                                          : before->source[0] == r->source[0])
            return &t->list[i];
    }
    return NULL;
}

static double *copy_numbers(const lb_implementations *x, const lb_region *r)
{
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    const size_t n = (size_t)lb_layout_numel(&x->sides[1].program->values[c->b].layout);
    double *copy = x->sides[1].kept[c->b] && !lb_differences_leave(c) ? malloc((n + 1) * sizeof *copy) : NULL;
    if (copy) memcpy(copy, x->sides[1].kept[c->b], n * sizeof *copy);
    return copy;
}

/* Puts a region right, if it can be. */
static lb_status put_one(rounds *t, const lb_table_question *asked, const lb_region *r, lb_err *err)
{
    lb_implementations *x = t->x;
    tried *before = find_tried(t, r);
    lb_exchange made;
    if (before) before->region.times += before->put;
    if (before) return LB_OK;
    LB_TRY(lb_exchange_make(asked, &x->regions, r, &x->counterparts, &made, err));
    if (made.op == LB_NONE && !made.n_tables) return LB_OK;
    tried *more = lb_array_grow(t->list, t->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for differences");
    t->list = more;
    t->list[t->n] = (tried){made, *r, x->counterparts.list[r->counterpart].distance, true};
    t->list[t->n].region.numbers = copy_numbers(x, r);
    t->list[t->n].region.put = t->n + 1;
    if (lb_differences_leave(&x->counterparts.list[r->counterpart]))
        t->list[t->n].region.effect = t->list[t->n].distance;
    lb_exchange_set(&t->list[t->n++].exchange, true, &x->sides[0], &x->sides[1], &x->counterparts);
    return LB_OK;
}

/* Puts right what can be of the regions in x; `*first` is the first row of what was tried. What backward reads of a
 * weight, too, is named in forward. */
static lb_status put_right(rounds *t, uint32_t *first, lb_err *err)
{
    lb_implementations *x = t->x;
    const lb_table_question asked = about_tables(x);
    *first = t->n;
    for (int later = 0; later < 2; later++)
        for (uint32_t i = 0; i < x->regions.n; i++) {
            const lb_region *r = &x->regions.list[i];
            const bool forward = lb_regions_phase(&x->sides[1], &x->counterparts, r) == LB_PHASE_FORWARD;
            if (forward != later) LB_TRY(put_one(t, &asked, r, err));
        }
    return LB_OK;
}

/* Of a region that ended at a value which several shared: where it helped, none goes through its op any more. */
static bool is_in_regions(const lb_implementations *x, uint32_t op)
{
    for (uint32_t i = 0; i < x->regions.n; i++)
        for (uint32_t k = 0; k < x->regions.list[i].n[1]; k++)
            if (x->regions.ops[x->regions.list[i].first[1] + k] == op) return true;
    return false;
}

/* Is the op a choice, which exact runs take as it was recorded, so that its arguments change nothing in them? */
static bool is_taken_as_recorded(const lb_exact_side *s, uint32_t op)
{
    const lb_program *p = s->program;
    const uint32_t v = lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
    return lb_op_kind_is_discontinuous(p, &p->ops[op]) && v != LB_NONE && lb_dtype_is_integer(p->values[v].dtype);
}

/* The arguments of an op are not what differs, nor are they where the same line of the program has them again: in other
 * layers, for other tokens. */
static void clear_alike(lb_implementations *x, uint32_t op)
{
    const lb_program *b = x->sides[1].program;
    x->innocent[op] = 1;
    for (uint32_t i = 0; i < b->n_ops && b->ops[op].line; i++)
        x->innocent[i] |= b->ops[i].line == b->ops[op].line && b->ops[i].name == b->ops[op].name &&
                          lb_op_same_args(b, &b->ops[i], b, &b->ops[op], 0);
}

/* Takes out again what changed nothing for the better; is there any? What helped is found. */
static lb_status take_out(rounds *t, uint32_t first, const lb_regions *before, bool *any, lb_err *err)
{
    lb_implementations *x = t->x;
    *any = false;
    for (uint32_t i = first; i < t->n; i++) {
        tried *one = &t->list[i];
        const lb_counterpart *c = &x->counterparts.list[one->region.counterpart];
        if (c->kind == LB_COUNTERPART_DROPPED
                ? !is_in_regions(x, one->region.op[1])
                : c->state == LB_COUNTERPART_SAME || c->distance < 0.999 * one->distance) {
            if (!lb_regions_append(&t->found, before, &one->region))
                return lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
            one->region.numbers = NULL;
            continue;
        }
        lb_exchange_set(&one->exchange, one->put = false, &x->sides[0], &x->sides[1], &x->counterparts);
        if (one->region.reason == LB_REGION_ARGUMENTS && !is_taken_as_recorded(&x->sides[1], one->region.op[1]))
            clear_alike(x, one->region.op[1]);
        *any = true;
    }
    return LB_OK;
}

/* What regions share is asked anew: without what was put right other regions remain. */
static lb_status search_again(lb_implementations *x, lb_err *err)
{
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind == LB_COUNTERPART_SHARED || c->kind == LB_COUNTERPART_SERVES)
            c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
    }
    LB_TRY(lb_exact_side_prepare(&x->sides[1], err));
    return search(x, err);
}

/* B as it is now, from its own numbers: does all that leaves agree? What both have in other orders is seen here, too (a
 * difference at the step's beginning hid it). */
static lb_status run_put_right(lb_implementations *x, bool *same, lb_err *err)
{
    lb_exact_side *a = &x->sides[0], *b = &x->sides[1];
    LB_TRY(lb_exact_side_prepare(b, err));
    LB_TRY(lb_exact_side_run(b, err));
    lb_counterparts_compare(&x->counterparts, a, b);
    LB_TRY(lb_differences_meet(x, err));
    if (lb_counterpart_orders_find_others(&x->counterparts, a, b, x->met[1]))
        lb_counterparts_compare(&x->counterparts, a, b);
    *same = true;
    for (uint32_t i = 0; i < x->counterparts.n; i++)
        *same &=
            !lb_differences_leave(&x->counterparts.list[i]) || x->counterparts.list[i].state == LB_COUNTERPART_SAME;
    return LB_OK;
}

/* With all that was put right nothing is apart: what is not needed for that, by itself, is taken out again. */
static lb_status keep_needed(rounds *t, uint32_t first, const lb_regions *before, lb_err *err)
{
    lb_implementations *x = t->x;
    const uint32_t n = t->n - first;
    for (uint32_t i = first; i < t->n; i++) {
        tried *one = &t->list[i];
        bool same = false;
        if (n > 1) {
            lb_exchange_set(&one->exchange, one->put = false, &x->sides[0], &x->sides[1], &x->counterparts);
            LB_TRY(run_put_right(x, &same, err));
        }
        if (same) continue;
        lb_exchange_set(&one->exchange, one->put = true, &x->sides[0], &x->sides[1], &x->counterparts);
        if (!lb_regions_append(&t->found, before, &one->region))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
        one->region.numbers = NULL;
    }
    return LB_OK;
}

/* One round: false in `*more` when nothing could be put right, or all that there was. */
static lb_status look_behind(rounds *t, bool *more, lb_err *err)
{
    lb_implementations *x = t->x;
    uint32_t first;
    LB_TRY(put_right(t, &first, err));
    *more = t->n > first;
    if (!*more) return LB_OK;
    bool again = false, same;
    LB_TRY(run_put_right(x, &same, err));
    lb_regions before = x->regions;
    x->regions = (lb_regions){0};
    if (same) {
        *more = false;
        const lb_status kept = keep_needed(t, first, &before, err);
        lb_regions_release(&before);
        return kept;
    }
    lb_status status = search_again(x, err);
    if (status == LB_OK) status = take_out(t, first, &before, &again, err);
    if (status == LB_OK && again) status = search_again(x, err);
    lb_regions_release(&before);
    return status;
}

/* What puts right each region that was found so. */
static bool keep_exchanges(const rounds *t)
{
    t->x->exchanges = malloc((t->n + 1) * sizeof *t->x->exchanges), t->x->n_exchanges = t->n;
    for (uint32_t i = 0; t->x->exchanges && i < t->n; i++) t->x->exchanges[i] = t->list[i].exchange;
    return t->x->exchanges != NULL;
}

static lb_status search_all(lb_implementations *x, lb_err *err)
{
    rounds t = {.x = x};
    bool more = true;
    x->innocent = calloc(x->sides[1].program->n_ops + 1, 1);
    for (int k = 0; k < 2; k++) x->around[k] = calloc((size_t)x->sides[k].program->n_ops + 1, 1);
    lb_status status = x->innocent && x->around[0] && x->around[1]
                           ? search(x, err)
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for ops");
    for (uint32_t i = 0; i < MOST_ROUNDS && more && status == LB_OK; i++) status = look_behind(&t, &more, err);
    for (uint32_t i = 0; i < x->regions.n && status == LB_OK; i++)
        if (!lb_regions_append(&t.found, &x->regions, &x->regions.list[i]))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
    lb_regions_release(&x->regions);
    x->regions = t.found;
    if (status == LB_OK && !keep_exchanges(&t)) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for differences");
    for (uint32_t i = 0; i < t.n; i++) free(t.list[i].region.numbers);
    free(t.list);
    return status;
}

/* ---- effects ---- */

/* What B gave in a region from A's numbers, in the place of A's own. Where A's value is a window nothing can be put
 * there. */
bool lb_differences_put_into_first(lb_implementations *x, const lb_counterpart *c, const double *numbers)
{
    lb_exact_side *a = &x->sides[0];
    bool any = false;
    for (uint32_t k = 0; k < c->n; k++) {
        const lb_content_run *r = &x->counterparts.pieces[c->first + k];
        const int64_t n = lb_layout_numel(&a->program->values[r->tensor].layout);
        const double own = lb_counterpart_scales_own(x, r->tensor);
        if (!a->graph.given[r->tensor] || !a->kept[r->tensor]) continue;
        if (!a->forced[r->tensor]) {
            a->forced[r->tensor] = malloc((size_t)n * sizeof **a->forced);
            for (int64_t i = 0; i < n && a->forced[r->tensor]; i++)
                a->forced[r->tensor][i] = own * a->kept[r->tensor][i];
        }
        for (int64_t i = 0; i < r->n && a->forced[r->tensor]; i++)
            a->forced[r->tensor][r->from + i * r->from_stride] =
                (c->negated ? -own : own) * numbers[r->to + i * r->to_stride];
        any |= a->forced[r->tensor] != NULL;
    }
    return any;
}

void lb_differences_take_back(lb_implementations *x, const lb_counterpart *c)
{
    for (uint32_t k = 0; k < c->n; k++) {
        double **forced = &x->sides[0].forced[x->counterparts.pieces[c->first + k].tensor];
        free(*forced), *forced = NULL;
    }
}

/* How far what leaves A has moved, at most. */
double lb_differences_of_exits(const lb_implementations *x, double *const *moved)
{
    double most = 0;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        for (uint32_t k = 0; lb_differences_leave(c) && k < c->n; k++) {
            const uint32_t v = x->counterparts.pieces[c->first + k].tensor;
            const int64_t n = lb_layout_numel(&x->sides[0].program->values[v].layout);
            const double *still = x->sides[0].kept[v];
            const double far =
                still && moved[v] && moved[v] != still ? lb_counterparts_distance(still, moved[v], n) : 0;
            if (far > most) most = far;
        }
    }
    return most;
}

/* A once more with one region of B in it. */
static lb_status measure_effect(lb_implementations *x, lb_region *r, const double *numbers, lb_err *err)
{
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    double **moved = NULL;
    lb_status status = LB_OK;
    if (lb_differences_put_into_first(x, c, numbers)) status = lb_exact_side_run_aside(&x->sides[0], &moved, err);
    if (moved && status == LB_OK) r->effect = lb_differences_of_exits(x, moved);
    lb_exact_side_free_kept(&x->sides[0], moved);
    lb_differences_take_back(x, c);
    return status;
}

static lb_status measure_effects(lb_implementations *x, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint32_t i = 0; status == LB_OK && i < x->regions.n && i < LB_IMPLEMENTATIONS_MOST_REGIONS; i++) {
        lb_region *r = &x->regions.list[i];
        const lb_counterpart *c = &x->counterparts.list[r->counterpart];
        const double *numbers = r->numbers ? r->numbers : x->sides[1].kept[c->b];
        if (r->effect == r->effect) continue;
        if (lb_differences_leave(c))
            r->effect = c->distance;
        else if (numbers && (r->numbers || lb_counterpart_can_be_put(&x->counterparts, c, &x->sides[0], &x->sides[1])))
            status = measure_effect(x, r, numbers, err);
    }
    return status;
}

/* Numbers of forward that one side rounded to f32 before they became constants do less than f32 can show. */
static bool is_rounding_of_a_constant(const lb_implementations *x, const lb_region *r, double most)
{
    const uint32_t giver = x->sides[1].graph.giver[x->counterparts.list[r->counterpart].b];
    const bool forward = giver != LB_NONE && x->sides[1].program->ops[giver].phase == LB_PHASE_FORWARD;
    return forward && r->reason == LB_REGION_OPS && r->effect < 0x1p-24 && r->effect < 0x1p-20 * most;
}

/* Beside a place that does more, what leaves the step is what it was, but for rounding: rows of a block that no op
 * reads are no difference of the step. */
static void drop_idle(lb_implementations *x)
{
    static const double ROUNDING = 1e-13;
    uint32_t kept = 0;
    double most = 0;
    for (uint32_t i = 0; i < x->regions.n; i++) most = fmax(most, x->regions.list[i].effect);
    for (uint32_t i = 0; i < x->regions.n; i++) {
        lb_region *r = &x->regions.list[i];
        if ((most > ROUNDING && r->effect <= ROUNDING) || is_rounding_of_a_constant(x, r, most))
            free(r->numbers);
        else
            x->regions.list[kept++] = *r;
    }
    x->regions.n = kept;
}

/* What is in x->regions, as it is reported. */
static lb_status finish(lb_implementations *x, lb_err *err)
{
    if (!lb_differences_join(x, &x->regions)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
    LB_TRY(measure_effects(x, err));
    drop_idle(x);
    return LB_OK;
}

lb_status lb_differences_find(lb_implementations *x, lb_err *err)
{
    LB_TRY(search_all(x, err));
    return finish(x, err);
}

lb_status lb_differences_find_whole(lb_implementations *x, lb_err *err)
{
    for (uint32_t i = 0; i < x->n_exchanges; i++)
        lb_exchange_set(&x->exchanges[i], false, &x->sides[0], &x->sides[1], &x->counterparts);
    x->n_exchanges = 0;
    LB_TRY(search_again(x, err));
    return finish(x, err);
}
