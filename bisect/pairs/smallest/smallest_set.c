/* The smallest set of exchanges: see smallest_set.h. */
#include "smallest/smallest_set.h"

#include "implementations/differences.h"
#include "shadow/shadow_numbers.h"
#include "smallest/smaller_sets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* What leaves is what it was, but for rounding (lb_differences_find leaves out what moves it no further). */
static const double ROUNDING = 1e-13;

/* ---- all of them ---- */

typedef struct trial {
    lb_implementations *x;
    uint8_t *ends; /* per counterpart: a region that is exchanged ends there */
    lb_smallest_set *out;
} trial;

static bool can_be_put(const lb_implementations *x, const lb_counterpart *counterpart)
{
    return !x->sides[1].held[counterpart->b] &&
           lb_counterpart_can_be_put(&x->counterparts, counterpart, &x->sides[0], &x->sides[1]);
}

/* Where the regions end. One without effect ends where the sides are apart for nothing: it is not exchanged. False: one
 * cannot be. */
static bool list_ends(trial *trial)
{
    const lb_implementations *x = trial->x;
    for (uint32_t i = 0; i < x->regions.n_parts; i++) {
        const lb_region_part *part = &x->regions.parts[i];
        const lb_counterpart *counterpart = &x->counterparts.list[part->counterpart];
        trial->ends[part->counterpart] = 1;
        if (lb_regions_row_of(&x->regions, i) != LB_NONE && !part->put && !lb_differences_leave(counterpart) &&
            !can_be_put(x, counterpart))
            return false;
    }
    return true;
}

/* B with all of them exchanged. */
static lb_status run_exchanged(const trial *trial, lb_err *err)
{
    lb_implementations *x = trial->x;
    lb_exact_side *b = &x->sides[1];
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *counterpart = &x->counterparts.list[i];
        if (trial->ends[i] && can_be_put(x, counterpart) && !b->forced[counterpart->b])
            b->forced[counterpart->b] =
                lb_counterpart_forced(&x->counterparts, counterpart, &x->sides[0],
                                      lb_layout_numel(&b->program->values[counterpart->b].layout));
    }
    const lb_status status = lb_exact_side_run(b, err);
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const uint32_t v = x->counterparts.list[i].b;
        if (trial->ends[i]) free(b->forced[v]), b->forced[v] = NULL;
    }
    if (status == LB_OK) lb_counterparts_compare(&x->counterparts, &x->sides[0], b);
    return status;
}

static uint32_t place_of(const lb_implementations *x, uint32_t counterpart)
{
    return x->sides[1].graph.giver[x->counterparts.list[counterpart].b];
}

static bool is_apart(const trial *trial, uint32_t counterpart)
{
    const lb_counterpart *at = &trial->x->counterparts.list[counterpart];
    return !trial->ends[counterpart] && at->kind < LB_COUNTERPART_TURNED && at->state == LB_COUNTERPART_APART;
}

/* The last op of B that A's numbers stand behind. */
static uint32_t last_end(const trial *trial)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < trial->x->counterparts.n; i++)
        if (trial->ends[i] && place_of(trial->x, i) != LB_NONE && place_of(trial->x, i) > last)
            last = place_of(trial->x, i);
    return last;
}

/* The first value on the way that is apart, in the order of B's ops; LB_NONE. Where all that leaves agrees, what is
 * apart behind the last end is taken back by B itself, for no number of A's hides it. */
static uint32_t first_apart(const trial *trial)
{
    const lb_implementations *x = trial->x;
    const uint32_t last = last_end(trial);
    uint32_t first = LB_NONE;
    bool leaves = false;
    for (uint32_t i = 0; i < x->counterparts.n; i++)
        leaves |= is_apart(trial, i) && lb_differences_leave(&x->counterparts.list[i]);
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        if (!is_apart(trial, i) || (!leaves && place_of(x, i) != LB_NONE && place_of(x, i) > last)) continue;
        if (first == LB_NONE || place_of(x, i) < place_of(x, first)) first = i;
    }
    return first;
}

static bool leaves_unknown(const lb_implementations *x)
{
    for (uint32_t i = 0; i < x->counterparts.n; i++)
        if (lb_differences_leave(&x->counterparts.list[i]) && x->counterparts.list[i].state == LB_COUNTERPART_UNKNOWN)
            return true;
    return false;
}

/* ---- what belongs to them ---- */

static uint32_t root_of(const lb_regions *all, uint32_t part)
{
    while (all->parts[part].into != part) part = all->parts[part].into;
    return part;
}

/* Is the part one of a region that is exchanged, or its backward? */
static bool belongs(const trial *trial, const lb_regions *all, uint32_t part)
{
    for (uint32_t i = 0; i < all->n_parts; i++)
        if (trial->ends[all->parts[i].counterpart] && root_of(all, i) == root_of(all, part)) return true;
    return false;
}

/* Backward of what is exchanged is exchanged, too, and so is what was one difference with it and ended elsewhere. */
static lb_status take_what_belongs(trial *trial, bool *more, lb_err *err)
{
    lb_implementations *x = trial->x;
    lb_regions rest, all = {0};
    LB_TRY(lb_differences_meet(x, err));
    for (uint32_t i = 0; i < x->counterparts.n; i++) /* from there on B has A's numbers */
        if (trial->ends[i] && can_be_put(x, &x->counterparts.list[i]))
            x->counterparts.list[i].state = LB_COUNTERPART_SAME;
    LB_TRY(lb_differences_regions(x, &rest, err));
    bool room = true;
    for (uint32_t i = 0; i < x->regions.n && room; i++)
        room = lb_regions_append(&all, &x->regions, &x->regions.list[i]);
    for (uint32_t i = 0; i < all.n; i++) all.list[i].numbers = NULL; /* the difference's own */
    for (uint32_t i = 0; i < rest.n && room; i++) room = lb_regions_append(&all, &rest, &rest.list[i]);
    lb_regions_release(&rest);
    room = room && lb_differences_join(x, &all);
    *more = false;
    for (uint32_t i = 0; i < all.n_parts && room; i++) {
        const uint32_t end = all.parts[i].counterpart;
        if (trial->ends[end] || !can_be_put(x, &x->counterparts.list[end]) || !belongs(trial, &all, i)) continue;
        trial->ends[end] = 1, *more = true;
    }
    lb_regions_release(&all);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for regions");
}

static void say_hidden(const trial *trial, uint32_t apart)
{
    const lb_implementations *x = trial->x;
    const uint32_t giver = apart == LB_NONE ? LB_NONE : x->sides[1].graph.giver[x->counterparts.list[apart].b];
    const lb_program *p = x->sides[1].program;
    if (giver == LB_NONE)
        snprintf(trial->out->why, sizeof trial->out->why,
                 "with all of them exchanged what leaves the step could not be compared in exact arithmetic");
    else
        snprintf(trial->out->why, sizeof trial->out->why,
                 "with all of them exchanged %.80s of the second side still gives other numbers in %.160s: another "
                 "difference is hidden there",
                 lb_op_name(p, &p->ops[giver]), lb_op_layer(p, &p->ops[giver]));
}

static lb_status try_all(trial *trial, lb_err *err)
{
    enum { MOST_ROUNDS = 4 };
    lb_implementations *x = trial->x;
    bool more = true;
    uint32_t apart = LB_NONE;
    if (!list_ends(trial)) {
        snprintf(trial->out->why, sizeof trial->out->why,
                 "one of them ends at a value in whose place the other side's cannot be put");
        return LB_OK;
    }
    for (uint32_t i = 0; i < MOST_ROUNDS && more; i++) {
        LB_TRY(run_exchanged(trial, err));
        apart = first_apart(trial), more = false;
        if (apart != LB_NONE) LB_TRY(take_what_belongs(trial, &more, err));
    }
    trial->out->whole = apart == LB_NONE && !leaves_unknown(x);
    if (!trial->out->whole) say_hidden(trial, apart);
    lb_differences_force(x); /* what the last run of B left is what it was */
    const lb_status status = lb_exact_side_run(&x->sides[1], err);
    lb_differences_unforce(x);
    if (status == LB_OK) lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    return status == LB_OK ? lb_differences_meet(x, err) : status;
}

/* ---- each of them, and several ---- */

/* What puts one difference right in B. */
static bool set_exchanges(lb_implementations *x, uint32_t row, bool on)
{
    bool any = false;
    for (uint32_t i = 0; i < x->regions.n_parts; i++) {
        const uint32_t put = x->regions.parts[i].put;
        if (!put || lb_regions_row_of(&x->regions, i) != row) continue;
        lb_exchange_set(&x->exchanges[put - 1], on, &x->sides[0], &x->sides[1], &x->counterparts);
        any = true;
    }
    return any;
}

/* It stays as it is in B: what was taken for a difference is another one's, which is put right elsewhere. */
static void forget_exchanges(lb_implementations *x, uint32_t row)
{
    for (uint32_t i = 0; i < x->regions.n_parts; i++)
        if (lb_regions_row_of(&x->regions, i) == row) x->regions.parts[i].put = 0;
}

static bool are_numbers_of_first(const lb_implementations *x, const lb_counterpart *counterpart, const double *numbers)
{
    const int64_t n = lb_layout_numel(&x->sides[1].program->values[counterpart->b].layout);
    uint8_t *known = NULL;
    double noise, *expected = lb_counterpart_expected(&x->counterparts, counterpart, &x->sides[0], n, &known, &noise);
    for (int64_t i = 0; expected && i < n; i++)
        if (!known[i]) expected[i] = numbers[i];
    const bool same = expected && lb_shadow_numbers_agree(expected, numbers, n, noise);
    free(expected), free(known);
    return same;
}

/* The effect of a difference that was put right to find what it hid: what B gave before holds both. */
static lb_status measure_alone(lb_implementations *x, uint32_t row, lb_smallest_set *out, lb_err *err)
{
    lb_region *region = &x->regions.list[row];
    const lb_counterpart *counterpart = &x->counterparts.list[region->counterpart];
    double **given = NULL, **moved = NULL;
    if (lb_differences_leave(counterpart) || !set_exchanges(x, row, false)) return LB_OK;
    lb_status status = lb_exact_side_prepare(&x->sides[1], err);
    lb_differences_force(x);
    if (status == LB_OK) status = lb_exact_side_run_aside(&x->sides[1], &given, err);
    lb_differences_unforce(x);
    const double *numbers = given ? given[counterpart->b] : NULL;
    const bool nothing = numbers && are_numbers_of_first(x, counterpart, numbers);
    if (nothing) out->spared[row] = LB_SPARED_NOTHING;
    region->effect = NAN;
    if (numbers && !nothing && lb_differences_put_into_first(x, counterpart, numbers))
        status = lb_exact_side_run_aside(&x->sides[0], &moved, err);
    if (moved && status == LB_OK) region->effect = lb_differences_of_exits(x, moved);
    lb_differences_take_back(x, counterpart);
    lb_exact_side_free_kept(&x->sides[0], moved);
    lb_exact_side_free_kept(&x->sides[1], given);
    if (nothing)
        forget_exchanges(x, row);
    else
        set_exchanges(x, row, true);
    return status == LB_OK ? lb_exact_side_prepare(&x->sides[1], err) : status;
}

static lb_status measure_each(lb_implementations *x, lb_smallest_set *out, lb_err *err)
{
    out->each = true;
    for (uint32_t i = x->regions.n; i-- > 0;) { /* one that was hidden may be the other once more: it goes first */
        const lb_region *region = &x->regions.list[i];
        if (x->regions.n > 1) LB_TRY(measure_alone(x, i, out, err));
        if (out->spared[i] || (!region->vague && region->effect > ROUNDING)) continue;
        out->each = false;
        snprintf(out->why, sizeof out->why, "what one of them does by itself could not be measured");
    }
    return LB_OK;
}

/* Parameters that hold different numbers as the window begins are no regions: both sides began with A's. */
static void add_what_came_before(const lb_implementations *x, lb_smallest_set *out)
{
    if (!out->whole || !(x->moved.n + x->left_apart)) return;
    out->whole = false;
    snprintf(
        out->why, sizeof out->why,
        "%u tensors hold different numbers on the two sides as the window begins, which came before it: what these do "
        "was not tried",
        x->moved.n + x->left_apart);
}

static lb_status try_several(lb_implementations *x, lb_smallest_set *out, lb_err *err)
{
    uint32_t cancel;
    LB_TRY(lb_smaller_sets_find(x, out->spared, &cancel, &out->smallest, err));
    for (uint32_t i = 0; i < x->regions.n && i < 32; i++)
        if (cancel >> i & 1) out->spared[i] = LB_SPARED_CANCELS;
    if (!out->smallest && x->regions.n > LB_SMALLEST_SET_MOST_TRIED)
        snprintf(out->why, sizeof out->why, "of more than %d places it was not tried whether several cancel",
                 LB_SMALLEST_SET_MOST_TRIED);
    else if (!out->smallest)
        snprintf(out->why, sizeof out->why,
                 "whether several of them cancel could not be tried: one ends where nothing can be put");
    return LB_OK;
}

/* The regions as they are now. */
static lb_status try_regions(lb_implementations *x, bool first, lb_smallest_set *out, lb_err *err)
{
    *out = (lb_smallest_set){.spared = calloc((size_t)x->regions.n + 1, 1)};
    trial t = {x, calloc((size_t)x->counterparts.n + 1, 1), out};
    lb_status status = out->spared && t.ends ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for differences");
    if (status == LB_OK) status = try_all(&t, err);
    if (status == LB_OK && first) add_what_came_before(x, out);
    if (status == LB_OK && out->whole) status = measure_each(x, out, err);
    if (status == LB_OK && out->each) status = try_several(x, out, err);
    free(t.ends);
    if (status != LB_OK) lb_smallest_set_release(out);
    return status;
}

/* Was something taken for a difference that is none beside the others? */
static bool is_in_doubt(const lb_implementations *x, const lb_smallest_set *set)
{
    bool doubt = !set->whole || !set->each;
    for (uint32_t i = 0; i < x->regions.n; i++) doubt |= set->spared[i] == LB_SPARED_NOTHING;
    return doubt;
}

lb_status lb_smallest_set_find(lb_implementations *x, bool first, lb_smallest_set *out, lb_err *err)
{
    LB_TRY(try_regions(x, first, out, err));
    if (!x->n_exchanges || !is_in_doubt(x, out)) return LB_OK;
    lb_smallest_set_release(out);
    LB_TRY(lb_differences_find_whole(x, err));
    return try_regions(x, first, out, err);
}

void lb_smallest_set_release(lb_smallest_set *set)
{
    free(set->spared);
    *set = (lb_smallest_set){0};
}
