/* Differences that cancel: see smaller_sets.h. */
#include "smallest/smaller_sets.h"

#include "implementations/counterpart_scales.h"
#include "implementations/differences.h"
#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

/* B's numbers at a counterpart of which no element is A's to begin with; NULL: not known. */
static const double *numbers_at(const lb_implementations *x, const lb_region *r)
{
    const lb_counterpart *counterpart = &x->counterparts.list[r->counterpart];
    return r->numbers ? r->numbers : x->sides[1].kept[counterpart->b];
}

/* ---- the regions in the order in which A computes them ---- */

typedef struct subsets {
    lb_implementations *x;
    uint32_t order[LB_SMALLEST_SET_MOST_TRIED], n; /* rows of regions */
    uint32_t best, n_best;                         /* a bit for each place of `order` */
    bool tried;
} subsets;

static uint32_t place_of(const lb_implementations *x, uint32_t region)
{
    const lb_counterpart *counterpart = &x->counterparts.list[x->regions.list[region].counterpart];
    return x->sides[0].graph.giver[x->counterparts.pieces[counterpart->first].tensor];
}

static void put_in_order(subsets *subsets, const uint8_t *spared)
{
    for (uint32_t i = 0; i < subsets->x->regions.n; i++) {
        if (spared[i]) continue;
        uint32_t k = subsets->n++;
        while (k && place_of(subsets->x, subsets->order[k - 1]) > place_of(subsets->x, i))
            subsets->order[k] = subsets->order[k - 1], k--;
        subsets->order[k] = i;
    }
}

/* ---- one subset ---- */

/* Does all that leaves A hold the numbers that it holds without anything of B? */
static bool moves_nothing(const lb_implementations *x, double *const *moved)
{
    const lb_exact_side *a = &x->sides[0];
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *counterpart = &x->counterparts.list[i];
        for (uint32_t k = 0; lb_differences_leave(counterpart) && k < counterpart->n; k++) {
            const uint32_t v = x->counterparts.pieces[counterpart->first + k].tensor;
            if (!a->kept[v]) continue;
            if (!moved[v] || !lb_shadow_numbers_agree(a->kept[v], moved[v],
                                                      lb_layout_numel(&a->program->values[v].layout), a->noise[v]))
                return false;
        }
    }
    return true;
}

/* A run keeps what A's own ops give: where B's numbers were put, these are what A goes on with. */
static bool show_what_was_put(const lb_implementations *x, double **moved)
{
    const lb_exact_side *a = &x->sides[0];
    for (uint32_t v = 0; v < a->program->n_values; v++) {
        if (!a->forced[v] || !moved[v]) continue;
        const int64_t n = lb_layout_numel(&a->program->values[v].layout);
        const double own = lb_counterpart_scales_own(x, v);
        double *numbers = malloc(((size_t)n + 1) * sizeof *numbers);
        if (!numbers) return false;
        for (int64_t i = 0; i < n; i++) numbers[i] = a->forced[v][i] / own;
        if (moved[v] != a->kept[v]) free(moved[v]);
        moved[v] = numbers;
    }
    return true;
}

/* B with none of its regions put right, from the numbers of an A that has some of B's. */
static lb_status run_second(lb_implementations *x, double **moved, double ***kept, lb_err *err)
{
    double **still = x->sides[0].kept;
    x->sides[0].kept = moved;
    lb_differences_force(x);
    const lb_status status = lb_exact_side_run_aside(&x->sides[1], kept, err);
    lb_differences_unforce(x);
    x->sides[0].kept = still;
    return status;
}

static lb_status extend(subsets *s, uint32_t chosen, uint32_t next, double *const *numbers, lb_err *err);

/* A with one more region of B's, beside those that it has; and all subsets that begin so. */
static lb_status go_on_with(subsets *subsets, uint32_t chosen, uint32_t last, const double *numbers, lb_err *err)
{
    lb_implementations *x = subsets->x;
    const uint32_t all = (1u << subsets->n) - 1, with = chosen | 1u << last;
    const lb_counterpart *counterpart = &x->counterparts.list[x->regions.list[subsets->order[last]].counterpart];
    double **moved = NULL, **given = NULL;
    if (with == all || lb_differences_leave(counterpart)) return LB_OK; /* nothing behind it takes that back */
    if (!numbers || !lb_differences_put_into_first(x, counterpart, numbers)) {
        subsets->tried = false;
        return LB_OK;
    }
    lb_status status = lb_exact_side_run_aside(&x->sides[0], &moved, err);
    if (status == LB_OK && moves_nothing(x, moved) && (uint32_t)__builtin_popcount(with) > subsets->n_best)
        subsets->best = with, subsets->n_best = (uint32_t)__builtin_popcount(with);
    if (status == LB_OK && !show_what_was_put(x, moved))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a difference");
    if (status == LB_OK && last + 1 < subsets->n) status = run_second(x, moved, &given, err);
    if (status == LB_OK && given) status = extend(subsets, with, last + 1, given, err);
    lb_exact_side_free_kept(&x->sides[1], given);
    lb_exact_side_free_kept(&x->sides[0], moved);
    lb_differences_take_back(x, counterpart);
    return status;
}

/* `numbers`: per value of B, from A as it is with those chosen; NULL: none are. */
static lb_status extend(subsets *subsets, uint32_t chosen, uint32_t next, double *const *numbers, lb_err *err)
{
    for (uint32_t i = next; i < subsets->n; i++) {
        const lb_region *r = &subsets->x->regions.list[subsets->order[i]];
        const lb_counterpart *counterpart = &subsets->x->counterparts.list[r->counterpart];
        LB_TRY(go_on_with(subsets, chosen, i, numbers ? numbers[counterpart->b] : numbers_at(subsets->x, r), err));
    }
    return LB_OK;
}

static uint32_t by_region(const subsets *subsets)
{
    uint32_t bits = 0;
    for (uint32_t k = 0; k < subsets->n; k++)
        if (subsets->best & 1u << k) bits |= 1u << subsets->order[k];
    return bits;
}

/* B as its program is, or with all that was put right in it. */
static lb_status put(lb_implementations *x, bool on, lb_err *err)
{
    bool any = false;
    for (uint32_t i = 0; i < x->regions.n_parts; i++) {
        const uint32_t row = x->regions.parts[i].put;
        if (!row) continue;
        lb_exchange_set(&x->exchanges[row - 1], on, &x->sides[0], &x->sides[1], &x->counterparts);
        any = true;
    }
    return any ? lb_exact_side_prepare(&x->sides[1], err) : LB_OK;
}

lb_status lb_smaller_sets_find(lb_implementations *x, const uint8_t *spared, uint32_t *cancel, bool *tried, lb_err *err)
{
    subsets s = {.x = x, .tried = true};
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->regions.n; i++) n += !spared[i];
    *cancel = 0, *tried = n < 3; /* of two the one that is left is needed, or both are not */
    if (n < 3 || n > LB_SMALLEST_SET_MOST_TRIED || x->regions.n > 32) return LB_OK;
    put_in_order(&s, spared);
    LB_TRY(put(x, false, err));
    lb_status status = extend(&s, 0, 0, NULL, err);
    if (status == LB_OK) status = put(x, true, err);
    *tried = s.tried, *cancel = by_region(&s);
    return status;
}
