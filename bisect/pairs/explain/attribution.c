/* The decision: see attribution.h. Each side's bits are identified by what gives them; a cause is the difference of two
 * identities. Nothing is concluded from a candidate that misses one element.
 *
 *      recorded inputs of B ──▶ A's ops under candidate c ──▶ equal to B's recorded bits?
 *      recorded inputs of A ──▶ A's ops under candidate c' ─▶ equal to A's recorded bits?
 *                                                             then the cause is c' against c
 *
 * The search is exhaustion and no fit: a list of known orders, kernels and precisions, each of
 * which is either excluded by one element or left standing. So an answer can be checked by anyone who
 * runs the same candidate, and "unexplained" is an answer, too. */
#include "explain/attribution_finder.h"

#include "explain/fallback_proof.h"
#include "kernel/ops.h"
#include "explain/same_ops.h"
#include "explain/search_work.h"
#include "explain/written_order.h"

#include <lastbit/compare.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts' outputs put together ---- */

static bool is_finalise(const lb_candidate *candidate)
{
    return lb_candidate_is_fused(candidate) && !strncmp(candidate->name, "finalise:", 9);
}

/* A kernel that says of slots and products how they are added tells more than the order of the sum that is a part of
 * it. */
static void lead_with_finalise(const lb_attribution_finder *finder, int runner, lb_attribution_scan *scan)
{
    for (uint32_t i = 0; i < scan->n; i++) {
        const uint32_t row = scan->matches[i];
        if (!is_finalise(&finder->list[runner][row])) continue;
        memmove(scan->matches + 1, scan->matches, i * sizeof *scan->matches);
        scan->matches[0] = row;
        return;
    }
}

/* The kernel that gives the runner's own bits, and not the other side's: what its ops do by themselves. LB_NONE:
 * none. */
static lb_status own_finalise(lb_attribution_finder *finder, int runner, const lb_attribution_scan *theirs,
                              uint32_t *row)
{
    *row = LB_NONE;
    for (uint32_t i = 1; i < finder->n[runner]; i++) {
        lb_score score;
        bool also_theirs = false;
        if (!is_finalise(&finder->list[runner][i])) continue;
        for (uint32_t k = 0; k < theirs->n; k++) also_theirs |= theirs->matches[k] == i;
        if (also_theirs) continue;
        /* A kernel that also gives the other side's bits explains no difference, and has been left
         * out above. */
        LB_TRY(lb_attribution_try(finder, runner, runner, i, &score));
        if (!lb_score_all(&score)) continue;
        *row = i;
        return LB_OK;
    }
    return LB_OK;
}

/* ---- each side's own bits ---- */

/* The first of x's is taken, whose matches are ranked: x is the runner's own side. */
static bool share_one(const lb_attribution_scan *x, const lb_attribution_scan *y, uint32_t *row)
{
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; k < y->n; k++)
            if (x->matches[i] == y->matches[k]) {
                *row = x->matches[i];
                return true;
            }
    return false;
}

/* Of what gives the other side's bits, what gives the runner's own as well, whose own kernel does: few bits fit several
 * kernels, and one for both sides is less to believe than two. LB_NONE: nothing does. */
static lb_status serves_both(lb_attribution_finder *finder, int runner, const lb_attribution_scan *theirs,
                             uint32_t *row)
{
    *row = LB_NONE;
    for (uint32_t i = 0; i < theirs->n && *row == LB_NONE; i++) {
        const lb_candidate *candidate = &finder->list[runner][theirs->matches[i]];
        lb_score score;
        /* Precisions are left out: an op on bf16 values gives the same in f32 and in f64 often
         * enough, and that would turn a difference of dtypes into one of inputs. */
        if (lb_candidate_is_fused(candidate) || candidate->cause != LB_CAUSE_ORDER) continue;
        LB_TRY(lb_attribution_try(finder, runner, runner, theirs->matches[i], &score));
        if (lb_score_all(&score)) *row = theirs->matches[i];
    }
    return LB_OK;
}

/* Both sides ran the very same op: one program says all that the other would.
 * Saves half of the runs at most places, which are pairs. */
static bool same_ops(const lb_attribution_finder *finder)
{
    const lb_matched_region *region = finder->site->region;
    const lb_program *a = finder->site->source->a->program, *b = finder->site->source->b->program;
    if ((!region->pair && !(region->parts && region->sides[1].n_ops)) ||
        lb_attribution_output(finder, 0)->dtype != lb_attribution_output(finder, 1)->dtype ||
        !lb_match_site_can(finder->site, 0, 1))
        return false;
    const lb_op *x = &a->ops[region->sides[0].op], *y = &b->ops[region->sides[1].op];
    return !strcmp(lb_op_name(a, x), lb_op_name(b, y)) && lb_op_same_args(a, x, b, y, region->parts);
}

/* ---- one program on both sides' bits ---- */

/* Searches by one program: what gives the other side's bits, and its own where its ops as they are do not. */
typedef struct identities {
    int runner;
    bool plain; /* the runner's ops give its own bits as they are */
    lb_attribution_scan theirs, mine;
} identities;

/* The cheapest answer is asked first: no change at all gives both sides' bits, hence only the inputs differ. Where a
 * rounding at the end was needed it is no such answer, but one of precision. */
static bool only_inputs_differ(lb_attribution_finder *finder, const identities *by)
{
    const lb_score *across = &finder->own[by->runner][!by->runner];
    if (!by->plain || !lb_score_all(across) || across->unrounded != across->elements) return false;
    lb_attribution_tell_input(finder, LB_PROOF_BITS, across,
                              "the first side's ops give the second's bits on the second's inputs");
    finder->found->tried = 1;
    snprintf(finder->found->first, sizeof finder->found->first, "%s", lb_attribution_own_name(finder, by->runner));
    return true;
}

/* Two identities are needed: under what A's program gives B's bits, and under what it gives A's own. Where replay has
 * not A's kernel, the second is searched like the first. */
static lb_status search_both(lb_attribution_finder *finder, identities *by)
{
    LB_TRY(lb_attribution_scan_all(finder, by->runner, !by->runner, &by->theirs));
    lead_with_finalise(finder, by->runner, &by->theirs);
    finder->found->tried += by->theirs.tried, finder->found->excluded += by->theirs.excluded;
    return by->plain ? LB_OK : lb_attribution_scan_all(finder, by->runner, by->runner, &by->mine);
}

static void keep_nearest(lb_attribution_finder *finder, int runner, const lb_attribution_scan *scan, bool reversed)
{
    finder->found->matched = scan->best_score.matched, finder->found->elements = scan->best_score.elements;
    snprintf(finder->found->schedule, sizeof finder->found->schedule, "%s",
             lb_attribution_name(finder, runner, scan->best));
    finder->found->reversed = reversed;
}

/* One identity alone is no cause: a match for B's bits says nothing of what changed while A's own are unknown. The
 * nearest is kept, so that "unexplained" comes with a number. */
static bool lacks_identity(lb_attribution_finder *finder, const identities *by)
{
    const int runner = by->runner;
    if (by->theirs.n && (by->plain || by->mine.n)) return false;
    if (!by->theirs.n && (by->theirs.best_score.matched > finder->found->matched || !finder->found->elements))
        keep_nearest(finder, runner, &by->theirs, runner == 1);
    else if (by->theirs.n && !finder->found->elements) /* it is the runner's own bits that nothing gives */
        keep_nearest(finder, runner, &by->mine, runner == 0);
    return true;
}

/* Occam's razor: one kernel on both sides needs one coincidence less than two kernels. */
static lb_status by_one_kernel(lb_attribution_finder *finder, const identities *by, bool *done)
{
    const int runner = by->runner;
    uint32_t both = LB_NONE;
    if (by->plain && by->theirs.matches[0]) LB_TRY(serves_both(finder, runner, &by->theirs, &both));
    *done = by->plain ? both != LB_NONE : share_one(&by->mine, &by->theirs, &both);
    if (!*done) return LB_OK;
    lb_attribution_tell_input(finder, LB_PROOF_BITS, &by->theirs.best_score,
                              "both sides' bits come out of the same kernel");
    if (!runner) lb_attribution_add_swaps(finder->found, &finder->list[runner][both], NULL);
    snprintf(finder->found->first, sizeof finder->found->first, "%s", lb_attribution_name(finder, runner, both));
    return LB_OK;
}

/* The cause is the difference of the two identities. */
static lb_status by_two_kernels(lb_attribution_finder *finder, const identities *by, bool rounds)
{
    const int runner = by->runner;
    uint32_t first = by->plain ? 0 : by->mine.matches[0];
    lb_attribution_tell_match(finder, runner, !runner, &by->theirs);
    if (is_finalise(&finder->list[runner][by->theirs.matches[0]])) {
        uint32_t row;
        LB_TRY(own_finalise(finder, runner, &by->theirs, &row));
        if (row != LB_NONE) first = row;
    }
    if (!by->plain && !runner) lb_attribution_keep_own(finder, &finder->list[runner][first]);
    snprintf(finder->found->first, sizeof finder->found->first, "%s",
             rounds ? lb_dtype_name(lb_attribution_output(finder, runner)->dtype)
                    : lb_attribution_name(finder, runner, first));
    /* B ran what replay has, and A did not: the change is A's, although the match is "own". */
    if (finder->found->cause == LB_CAUSE_INPUT) finder->found->cause = finder->list[runner][first].cause;
    return LB_OK;
}

/* The same op, on different inputs: candidate `row` gives all bits of one side and all but a few of the other's. By
 * chance one kernel ran on both. */
static lb_status misses_by_chance(lb_attribution_finder *finder, int runner, uint32_t row, const lb_score *with,
                                  const lb_score *without, bool *chance)
{
    const lb_match_site *site = finder->site;
    *chance = same_ops(finder) && site->subprograms[0] && site->subprograms[1] && !lb_match_site_same_inputs(site) &&
              lb_match_score_by_chance(with, without);
    for (int side = 0; side < 2 && *chance; side++)
        LB_TRY(lb_match_site_reaches(site, side, side, chance, finder->err));
    if (!*chance) return LB_OK;
    lb_attribution_tell_input(finder, LB_PROOF_BOUND, with,
                              "one kernel gives all bits of one side and all but a few of the other's, "
                              "as often as replay misses the last bit of a library's function");
    if (!runner && row) lb_attribution_add_swaps(finder->found, &finder->list[0][row], NULL);
    snprintf(finder->found->first, sizeof finder->found->first, "%s", lb_attribution_name(finder, runner, row));
    return LB_OK;
}

/* A kernel of its own on the other side, of an op whose elements are each a function of a few numbers: not for sums,
 * whose order is one thing for all elements. */
static lb_status elements_miss_by_chance(lb_attribution_finder *finder, const identities *by, bool *chance)
{
    lb_op_form form;
    const lb_program *program = lb_matched_region_program(finder->site->source, by->runner);
    const lb_op_row *row =
        finder->site->region->pair
            ? lb_op_find(lb_op_name(program, &program->ops[finder->site->region->sides[by->runner].op]), &form)
            : NULL;
    *chance = false;
    if (!by->plain || !row || !(row->flags & LB_ROW_ELEMENTWISE)) return LB_OK;
    return misses_by_chance(finder, by->runner, 0, &finder->own[by->runner][by->runner],
                            &finder->own[by->runner][!by->runner], chance);
}

/* One program (runner) on both sides' bits: which candidates give each? */
static lb_status by_program(lb_attribution_finder *finder, int runner, bool *done)
{
    identities by = {.runner = runner, .plain = lb_score_all(&finder->own[runner][runner])};
    *done = false;
    if (!lb_match_site_can(finder->site, runner, !runner)) return LB_OK;
    if ((*done = only_inputs_differ(finder, &by))) return LB_OK;
    LB_TRY(search_both(finder, &by));
    const bool rounds = lb_attribution_rounds_at_end(finder, runner, !runner);
    if (by.theirs.n && !by.plain && !by.mine.n && lb_candidate_is_fused(&finder->list[runner][by.theirs.matches[0]])) {
        const uint32_t row = by.theirs.matches[0];
        lb_score mine;
        LB_TRY(lb_attribution_try(finder, runner, runner, row, &mine));
        LB_TRY(misses_by_chance(finder, runner, row, &by.theirs.best_score, &mine, done));
        if (*done) return LB_OK;
        /* A kernel that is known for what it gives, beside one that is not: it gave none of the other side's bits. */
        lb_attribution_tell_match(finder, runner, !runner, &by.theirs);
        *finder->found->first = '\0', *done = true;
        return LB_OK;
    }
    if (lacks_identity(finder, &by)) return LB_OK;
    /* Counts from here on are those of the search that succeeded; the other's would make it look more thorough. */
    finder->found->tried = finder->found->excluded = 0;
    if (!rounds) LB_TRY(by_one_kernel(finder, &by, done));
    if (!*done && !rounds) LB_TRY(elements_miss_by_chance(finder, &by, done));
    if (*done) return LB_OK;
    *done = true;
    return by_two_kernels(finder, &by, rounds);
}

/* ---- the decision ---- */

static const lb_program *alone_of(const lb_match_site *site, int side)
{
    return site->subprograms[side] ? lb_subprogram_program(site->subprograms[side]) : NULL;
}

/* A's recorded output from B's.
 * As recorded and so without any run: the place's share of the whole gap is measured against it. */
static double distance_of(const lb_match_site *site)
{
    lb_difference difference;
    if (!site->targets[0] || !site->targets[1]) return NAN;
    if (lb_compare_numbers(&site->targets[0][0], &site->targets[1][0], &difference, NULL) != LB_OK) return NAN;
    return difference.rel_l2;
}

static lb_status list_candidates(lb_attribution_finder *finder, int side)
{
    const lb_matched_region_side *ops = &finder->site->region->sides[side];
    const lb_candidate_ops place = {lb_matched_region_program(finder->site->source, side),
                                    ops->ops,
                                    ops->n_ops,
                                    alone_of(finder->site, side),
                                    finder->memory->only_orders,
                                    &finder->memory->digests};
    return lb_candidates_list(&place, &finder->memory->trees, &finder->list[side], &finder->n[side], finder->err);
}

static lb_status run_own(lb_attribution_finder *finder, int runner)
{
    for (int bits = 0; bits < 2; bits++)
        LB_TRY(lb_attribution_try(finder, runner, bits, 0, &finder->own[runner][bits]));
    return LB_OK;
}

static uint64_t kinds_of(const lb_match_site *site)
{
    uint64_t kinds = 0;
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *s = &site->region->sides[side];
        kinds = kinds * 31 + lb_work_kind(lb_matched_region_program(site->source, side), s->ops, s->n_ops);
    }
    return kinds;
}

/* What differs is an order, a kernel or a precision, or nothing does: then both sides compute one real function. */
static bool shows_one_function(const lb_attribution_found *found)
{
    return (found->proof == LB_PROOF_BITS || found->proof == LB_PROOF_EXACT) && found->cause != LB_CAUSE_ROUTING &&
           found->cause != LB_CAUSE_UNEXPLAINED;
}

/* Sums that are written by ops, in whole or on one side, as orders: where that alone is asked for before anything is
 * searched, and where "in f64" would be said of sums whose terms are what they were, and whose additions alone round
 * otherwise. */
static lb_status by_written_order(lb_attribution_finder *finder, bool *done)
{
    lb_written_order order;
    lb_attribution_memory *memory = finder->memory;
    lb_attribution_found *out = finder->found;
    if (finder->site->region->pair || finder->site->region->parts) return LB_OK;
    LB_TRY(lb_written_order_find(
        finder->site,
        lb_attribution_memory_runs(memory, finder->site->region->sides[0].n_ops + finder->site->region->sides[1].n_ops),
        &order, finder->err));
    lb_attribution_memory_charge(memory, &order.cost);
    if (!order.found) return LB_OK;
    *done = true;
    out->cause = LB_CAUSE_ORDER, out->proof = LB_PROOF_BITS, out->reversed = false;
    out->matched = out->elements = lb_layout_numel(&finder->site->targets[1][0].layout);
    out->tried = order.tried, out->excluded = order.excluded;
    out->n_swaps = out->n_own = 0, *out->also = 0;
    snprintf(out->schedule, sizeof out->schedule, "%s", order.name[1]);
    snprintf(out->first, sizeof out->first, "%s", order.name[0]);
    snprintf(out->why, sizeof out->why,
             "both sides add up the same %u terms, and in these orders each side's bits come out", order.terms);
    return LB_OK;
}

/* So few elements that many candidates fit by chance. */
static bool is_few(const lb_match_site *site)
{
    enum { FEW = 8 };
    return site->targets[1] && site->region->n_outputs == 1 && lb_layout_numel(&site->targets[1][0].layout) < FEW;
}

/* No more was found than a precision wider than what is stored. */
static bool is_wider_precision(const lb_attribution_found *found)
{
    if (found->proof != LB_PROOF_BITS) return false;
    if (found->cause == LB_CAUSE_KERNEL) return !strcmp(found->schedule, "rounded once");
    return found->cause == LB_CAUSE_PRECISION &&
           (!strncmp(found->schedule, "f64", 3) || !strncmp(found->schedule, "f32", 3));
}

static lb_status by_fallback(lb_attribution_finder *finder, bool *done)
{
    const lb_match_site *site = finder->site;
    const lb_fallback_question asked = {
        .site = site,
        .own = {&finder->own[0][0], &finder->own[1][1]},
        .score = site->region->parts && finder->own[0][1].ran ? &finder->own[0][1] : &finder->own[1][1],
        .memory = finder->memory,
        .proven_elsewhere = lb_attribution_memory_one_function(finder->memory, kinds_of(site)),
    };
    return lb_fallback_proofs_find(&asked, finder->found, done, finder->err);
}

lb_status lb_attribution_find(const lb_match_site *site, lb_attribution_memory *memory, lb_attribution_found *found,
                              lb_err *err)
{
    lb_attribution_finder finder = {.site = site, .memory = memory, .found = found, .err = err};
    const lb_matched_region_source *source = site->source;
    lb_status status = LB_OK;
    bool done = false;
    *found = (lb_attribution_found){0};
    found->total = distance_of(site);
    finder.spent = lb_attribution_memory_spent(memory, source->a->program, &site->region->sides[0]);
    if (memory->only_orders || is_few(site)) status = by_written_order(&finder, &done);
    if (status != LB_OK || done) return status;
    if (memory->only_orders && is_few(site) && !site->region->pair) {
        lb_attribution_tell_unexplained(&finder);
        return LB_OK;
    }
    for (int side = 0; side < 2 && status == LB_OK; side++) status = list_candidates(&finder, side);
    for (int side = 0; side < 2 && status == LB_OK; side++)
        lb_candidates_put_recorded_first(side ? source->a : source->b, site->region->sides[!side].ops,
                                         site->region->sides[!side].n_ops, finder.list[side], &finder.n[side]);
    /* Own bits on both sides first: two runs answer most places, and say of the rest which identities are known. */
    if (status == LB_OK) status = run_own(&finder, 0);
    if (status == LB_OK) status = by_program(&finder, 0, &done);
    if (status == LB_OK && !done) status = run_own(&finder, 1);
    found->local = finder.own[0][1].ran   ? finder.own[0][1].distance
                   : finder.own[1][0].ran ? finder.own[1][0].distance
                                          : NAN;
    /* A's program first, because only its changes can become swaps; then B's; parts and
     * fallback proofs are weaker and come last. */
    if (status == LB_OK && !done && !same_ops(&finder)) status = by_program(&finder, 1, &done);
    if (status == LB_OK && done && is_wider_precision(found)) status = by_written_order(&finder, &done);
    if (status == LB_OK && !done) status = lb_attribution_by_parts(&finder, &done);
    if (status == LB_OK && !done) status = by_fallback(&finder, &done);
    if (status == LB_OK && !done) lb_attribution_tell_unexplained(&finder);
    if (status == LB_OK && !done && !site->region->pair && lb_same_ops_chose(source, site->region))
        snprintf(found->why, sizeof found->why,
                 "experts were chosen differently here, so that neither side's ops can be run on the other's rows, "
                 "and no candidate could have given them");
    if (status == LB_OK && shows_one_function(found)) lb_attribution_memory_note_function(memory, kinds_of(site));
    free(finder.list[0]), free(finder.list[1]);
    return status;
}

lb_status lb_attribution_identify(const lb_match_site *site, lb_attribution_memory *memory, bool *own,
                                  lb_attribution_found *found, lb_err *err)
{
    lb_attribution_finder finder = {.site = site, .memory = memory, .found = found, .err = err};
    const lb_matched_region_side *side = &site->region->sides[0];
    lb_attribution_scan scan = {0};
    bool inside;
    *found = (lb_attribution_found){0}, *own = false;
    finder.spent = lb_attribution_memory_spent(memory, site->source->a->program, side);
    lb_status status = list_candidates(&finder, 0);
    if (status == LB_OK) status = lb_attribution_try(&finder, 0, 0, 0, &finder.own[0][0]);
    *own = lb_score_all(&finder.own[0][0]);
    if (status == LB_OK && !*own) status = lb_attribution_scan_all(&finder, 0, 0, &scan);
    if (status != LB_OK || *own) goto done;
    snprintf(found->first, sizeof found->first, "%s", lb_attribution_own_name(&finder, 0));
    if (scan.n) {
        lb_attribution_tell_match(&finder, 0, 0, &scan);
        goto done;
    }
    found->tried = scan.tried, found->excluded = scan.excluded;
    found->matched = scan.best_score.matched, found->elements = scan.best_score.elements;
    snprintf(found->schedule, sizeof found->schedule, "%s",
             scan.tried ? lb_attribution_name(&finder, 0, scan.best) : "");
    /* Inside its bound the op may have run as a kernel that is unknown here; outside of it
     * something is wrong with the recording. */
    status = lb_match_site_reaches(site, 0, 0, &inside, err);
    lb_attribution_tell_unexplained(&finder);
    if (inside) found->proof = LB_PROOF_BOUND;
done:
    free(finder.list[0]);
    return status;
}
