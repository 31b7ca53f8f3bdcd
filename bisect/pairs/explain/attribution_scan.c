/* The search of one side's bits: every candidate is run until an element misses, those that explained earlier places
 * first. Which of those that give the bits comes first is decided here, too, since few bits fit several. */
#include "explain/attribution_finder.h"

#include "explain/search_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Once a kind has had 4 times its share of the time, other places have ruled out what there is to rule out, and one
 * alternative per place is enough. */
enum { PATIENCE = 4 };

/* ---- time ---- */

/* Time is counted, and not taken: a slow machine, or one that is shared, tries what a fast one tries. One core did so
 * many operations of search_work.h in a second, when the models of tests/bisect/pairs/explain were tried. */
static const double OPERATIONS_A_SECOND = 4e8;

static void charge(lb_attribution_scan *scan, double work)
{
    scan->seconds += work / OPERATIONS_A_SECOND;
}

static double spent(const lb_attribution_finder *finder, const lb_attribution_scan *scan)
{
    return *finder->spent + scan->seconds;
}

/* The work of the runner's ops, once. */
static double work_of(const lb_attribution_finder *finder, int runner)
{
    const lb_matched_region_side *ops = &finder->site->region->sides[runner];
    return lb_work_of_ops(lb_matched_region_program(finder->site->source, runner), ops->ops, ops->n_ops);
}

/* ---- one candidate ---- */

lb_status lb_attribution_try(lb_attribution_finder *finder, int runner, int bits, uint32_t row, lb_score *score)
{
    finder->memory->cost.runs++, finder->memory->cost.ops += finder->site->region->sides[runner].n_ops;
    return lb_match_site_try(finder->site, runner, bits, &finder->list[runner][row], score, finder->err);
}

/* Charges what a candidate costs on `share` of the place; false where that is more than may be spent. What an op does
 * by itself is known and costs nothing. */
static bool is_affordable(lb_attribution_finder *finder, int runner, uint32_t row, double share,
                          lb_attribution_scan *scan)
{
    lb_attribution_memory *memory = finder->memory;
    const double work = row ? share * scan->work * lb_work_slowness(&finder->list[runner][row]) : 0;
    if (memory->most_work > 0 && memory->work + work > memory->most_work) {
        scan->cut_short = true;
        return false;
    }
    memory->work += work;
    charge(scan, work);
    return true;
}

static lb_status try_one(lb_attribution_finder *finder, int runner, int bits, uint32_t row, lb_attribution_scan *scan)
{
    const lb_candidate *candidate = &finder->list[runner][row];
    lb_score score;
    /* blocked:N has a parameter, and of twenty values one fits four elements by chance. */
    if (scan->tried && scan->best_score.elements < candidate->few) return LB_OK;
    /* A few rows and columns of a product decide about most candidates, which would otherwise take
     * minutes for a model of 135M parameters. The op as it is (row 0) always runs whole, since its
     * distance is reported; what looks at whole tensors for a scale cannot be sampled. */
    if (scan->sample.taken && row && candidate->local) {
        if (!is_affordable(finder, runner, row, lb_sample_share(&scan->sample, finder->site), scan)) return LB_OK;
        LB_TRY(lb_match_site_try(&scan->sample.site, runner, bits, candidate, &score, finder->err));
        if (score.ran && !lb_score_all(&score)) {
            scan->tried++, scan->excluded++;
            if (score.matched > scan->likely_matched) scan->likely = row, scan->likely_matched = score.matched;
            return LB_OK;
        }
    }
    if (row) {
        bool excludes;
        LB_TRY(lb_product_probe_excludes(&scan->probe, candidate, &excludes, finder->err));
        if (excludes) {
            scan->tried++, scan->excluded++;
            return LB_OK;
        }
    }
    if (!is_affordable(finder, runner, row, 1, scan)) return LB_OK;
    if (row || !finder->own[runner][bits].ran)
        LB_TRY(lb_attribution_try(finder, runner, bits, row, &score));
    else
        score = finder->own[runner][bits];
    if (!score.ran) return LB_OK;
    scan->tried++;
    /* Of equals the first stays best: likelier candidates stand further in front. */
    if (!scan->best_score.ran || score.matched > scan->best_score.matched) scan->best = row, scan->best_score = score;
    if (!lb_score_all(&score))
        scan->excluded++;
    else if (scan->n < LB_MOST_MATCHES)
        scan->matches[scan->n++] = row;
    return LB_OK;
}

/* Nothing matched: how near did the nearest come that the sample excluded, on all elements?
 * The counts of a sample and of a whole cannot be compared, and what is shown must be of the whole. */
static lb_status score_likely(lb_attribution_finder *finder, int runner, int bits, lb_attribution_scan *scan)
{
    lb_score score;
    LB_TRY(lb_attribution_try(finder, runner, bits, scan->likely, &score));
    if (score.ran && score.matched > scan->best_score.matched) scan->best = scan->likely, scan->best_score = score;
    return LB_OK;
}

/* ---- all of them ---- */

/* No change comes first; then what gave the bits of most places so far, of equals the likelier one: what a place cannot
 * tell apart, others can. */
static void rank_matches(lb_attribution_finder *finder, int runner, int bits, lb_attribution_scan *scan)
{
    uint32_t votes[LB_MOST_MATCHES];
    for (uint32_t i = 0; i < scan->n; i++) {
        const uint32_t row = scan->matches[i];
        uint32_t *sites = lb_attribution_memory_sites(finder->memory, finder->list[runner][row].name, bits);
        const uint32_t vote = !row ? UINT32_MAX : sites ? (*sites)++ : 0;
        /* Insertion sort: there are 64 matches at most, and a vote of UINT32_MAX keeps "no change"
         * in front whatever the other places said. */
        uint32_t at = i;
        for (; at && (votes[at - 1] < vote || (votes[at - 1] == vote && scan->matches[at - 1] > row)); at--)
            votes[at] = votes[at - 1], scan->matches[at] = scan->matches[at - 1];
        votes[at] = vote, scan->matches[at] = row;
    }
}

/* Time never ends a search that has no match: that would call a place unexplained for its size. */
static bool is_enough(const lb_attribution_finder *finder, const lb_attribution_scan *scan)
{
    const double seconds = spent(finder, scan);
    const uint32_t least = seconds < PATIENCE * finder->memory->seconds ? LB_LEAST_TRIED : 2;
    /* A caller that wants only an order has it with the first that gives every bit; what an op does by itself is tried
     * before. */
    if (finder->memory->only_orders && scan->n) return true;
    return scan->n && scan->tried >= least && seconds > finder->memory->seconds;
}

/* What runs, and whose bits are asked for: the same at twins. */
static uint64_t key_of(const lb_attribution_finder *finder, int runner, int bits)
{
    uint64_t key = (uint64_t)(2 * runner + bits) + 1;
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *ops = &finder->site->region->sides[side];
        key = key * UINT64_C(0x9E3779B97F4A7C15) ^
              lb_work_key(lb_matched_region_program(finder->site->source, side), ops->ops, ops->n_ops);
    }
    return key;
}

/* Remembered ones first, then all in order; where twins were searched in vain what came nearest there, so that it is
 * told how near it comes. */
static lb_status try_all(lb_attribution_finder *finder, int runner, int bits, const lb_exhausted_search *twins,
                         lb_attribution_scan *scan)
{
    uint8_t *done = calloc(finder->n[runner] + 1, 1);
    if (!done) return lb_fail(finder->err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_sample_take(finder->site, runner, bits, &scan->sample, finder->err);
    if (status == LB_OK) status = lb_product_probe_take(finder->site, runner, bits, &scan->probe, finder->err);
    if (status == LB_OK) status = try_one(finder, runner, bits, 0, scan);
    done[0] = 1;
    for (uint32_t k = 0; k < finder->memory->n && status == LB_OK; k++)
        for (uint32_t i = 0; i < finder->n[runner] && status == LB_OK; i++)
            if (!done[i] && !strcmp(finder->list[runner][i].name, finder->memory->names[k]))
                done[i] = 1, status = try_one(finder, runner, bits, i, scan);
    for (uint32_t i = 0; i < finder->n[runner] && status == LB_OK; i++) {
        if (done[i] || (twins && strcmp(finder->list[runner][i].name, twins->nearest) != 0)) continue;
        if (is_enough(finder, scan)) break;
        status = try_one(finder, runner, bits, i, scan);
    }
    lb_sample_release(&scan->sample);
    lb_product_probe_release(&scan->probe);
    free(done);
    return status;
}

lb_status lb_attribution_scan_all(lb_attribution_finder *finder, int runner, int bits, lb_attribution_scan *scan)
{
    *scan = (lb_attribution_scan){.work = work_of(finder, runner)};
    if (!lb_match_site_can(finder->site, runner, bits)) return LB_OK;
    const uint64_t key = key_of(finder, runner, bits);
    const bool alike = !finder->site->source->collective_matches[0] &&
                       !finder->site->source->collective_matches[1]; /* of ranks any may have a fault */
    const lb_exhausted_search *twins = alike ? lb_attribution_memory_exhausted(finder->memory, key) : NULL;
    lb_status status = try_all(finder, runner, bits, twins, scan);
    /* `likely` is 0 where the sample excluded none: row 0 never goes through it. */
    if (status == LB_OK && !scan->n && scan->likely) status = score_likely(finder, runner, bits, scan);
    if (status == LB_OK && !scan->n && alike && !twins && !scan->cut_short && scan->tried > 1)
        lb_attribution_memory_note_exhausted(finder->memory, key, finder->list[runner][scan->best].name, scan->tried);
    /* What is excluded at the twins is excluded here. */
    if (twins && !scan->n && scan->tried < twins->tried)
        scan->excluded += twins->tried - scan->tried, scan->tried = twins->tried;
    *finder->spent += scan->seconds;
    rank_matches(finder, runner, bits, scan);
    return status;
}

/* ---- where B is parts ---- */

/* What B ran is several calls there, as decode steps are against one forward pass: some of them may have the bits of
 * A's kernel, and the others those of one other. */

/* Which parts candidate `row` gives; `*rest`: all of those that are not given yet. */
static lb_status try_rest(lb_attribution_finder *finder, uint32_t row, const uint8_t *given, uint8_t *mine, bool *rest)
{
    const uint32_t n = finder->site->region->parts;
    *rest = true;
    memset(mine, 0, n);
    LB_TRY(lb_match_site_parts(finder->site, &finder->list[0][row], mine, finder->err));
    for (uint32_t i = 0; i < n; i++) *rest &= given[i] || mine[i];
    return LB_OK;
}

static void tell_parts(lb_attribution_finder *finder, const lb_attribution_scan *scan, uint32_t base,
                       const uint8_t *given)
{
    lb_attribution_found *out = finder->found;
    const lb_candidate *candidate = &finder->list[0][scan->matches[0]];
    const uint32_t n = finder->site->region->parts;
    uint32_t other = 0, first = n, last = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!given[i]) other++, first = i < first ? i : first, last = i;
    out->cause = candidate->cause, out->proof = LB_PROOF_BITS, out->reversed = false;
    out->matched = out->elements = finder->own[0][1].elements;
    out->tried = scan->tried, out->excluded = scan->excluded;
    snprintf(out->first, sizeof out->first, "%s", lb_attribution_name(finder, 0, base));
    snprintf(out->schedule, sizeof out->schedule, "%s for %u of %u calls", candidate->name, other, n);
    for (uint32_t i = 1; i < scan->n; i++) {
        const char *name = finder->list[0][scan->matches[i]].name;
        if (used + strlen(name) + 3 > sizeof out->also) break;
        used += (size_t)snprintf(out->also + used, sizeof out->also - used, "%s%s", used ? "; " : "", name);
    }
    snprintf(out->why, sizeof out->why,
             "calls %u to %u of %u have the bits of %.80s, the others those of the first side's kernel", first + 1,
             last + 1, n, candidate->name);
    lb_attribution_memory_note(finder->memory, candidate->name);
}

/* A's kernel gives some parts' bits, and of all candidates one gives those of all others: single rows go to kernels of
 * their own. `base`: what gives A's own bits. */
static lb_status scan_parts(lb_attribution_finder *finder, uint32_t base, bool *done)
{
    const uint32_t n = finder->site->region->parts;
    uint8_t *given = calloc(n + 1, 3), *mine = given + n + 1, *tried = calloc(finder->n[0] + 1, 1);
    lb_status status = given && tried ? LB_OK : lb_fail(finder->err, LB_ERR_NOMEM, "out of memory");
    bool all = true, rest = false, any = false;
    lb_attribution_scan scan = {.work = work_of(finder, 0)};
    /* `given` is both what is read and what is written here: nothing is given yet. */
    if (status == LB_OK) status = try_rest(finder, base, given, given, &all);
    for (uint32_t i = 0; status == LB_OK && i < n; i++) any |= given[i];
    /* No part with A's bits: then another kernel ran for all of them, which by_program would have
     * found. All parts: nothing differs that way. */
    const bool worth = status == LB_OK && any && !all;
    for (uint32_t k = 0; worth && k < finder->memory->n + finder->n[0] && status == LB_OK; k++) {
        uint32_t row = k < finder->memory->n ? 0 : k - finder->memory->n;
        for (uint32_t i = 0; k < finder->memory->n && i < finder->n[0]; i++)
            if (!strcmp(finder->list[0][i].name, finder->memory->names[k])) row = i;
        /* The memory's names come first and the list after them, in one loop; `tried` keeps a name
         * from running twice. Recipes that look at whole tensors see other tensors in single rows,
         * and are left out. */
        if (!row || row == base || tried[row] || !finder->list[0][row].local) continue;
        if (scan.n && scan.tried >= LB_LEAST_TRIED && spent(finder, &scan) > finder->memory->seconds) break;
        tried[row] = 1;
        charge(&scan, scan.work * lb_work_slowness(&finder->list[0][row]));
        status = try_rest(finder, row, given, mine, &rest);
        scan.tried++, scan.excluded += !rest;
        if (status == LB_OK && rest && scan.n < LB_MOST_MATCHES) scan.matches[scan.n++] = row;
    }
    *finder->spent += scan.seconds;
    *done = status == LB_OK && scan.n;
    if (*done) rank_matches(finder, 0, 1, &scan), tell_parts(finder, &scan, base, given);
    free(given), free(tried);
    return status;
}

lb_status lb_attribution_by_parts(lb_attribution_finder *finder, bool *done)
{
    const lb_matched_region *region = finder->site->region;
    lb_attribution_scan mine = {0};
    /* This is for decode steps against one forward pass: a library has different kernels for one row
     * than for many, so that some calls may have A's bits and the single rows never. */
    if (region->parts < 2 || region->sides[1].op == LB_NONE || region->n_outputs != 1 ||
        !lb_match_site_can(finder->site, 0, 1))
        return LB_OK;
    if (finder->site->source->alignment->joins.rows) return LB_OK; /* rows of a larger batch: one call */
    /* A's own bits need a name before parts can be told from them: "own", or else what was found to
     * give them. */
    if (lb_score_all(&finder->own[0][0])) return scan_parts(finder, 0, done);
    LB_TRY(lb_attribution_scan_all(finder, 0, 0, &mine));
    return mine.n ? scan_parts(finder, mine.matches[0], done) : LB_OK;
}
