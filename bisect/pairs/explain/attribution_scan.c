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

static void charge(lb_attribution_scan *s, double work)
{
    s->seconds += work / OPERATIONS_A_SECOND;
}

static double spent(const lb_attribution_finder *f, const lb_attribution_scan *s)
{
    return *f->spent + s->seconds;
}

/* The work of the runner's ops, once. */
static double work_of(const lb_attribution_finder *f, int runner)
{
    const lb_matched_region_side *ops = &f->site->region->sides[runner];
    return lb_work_of_ops(lb_matched_region_program(f->site->source, runner), ops->ops, ops->n_ops);
}

/* ---- one candidate ---- */

lb_status lb_attribution_try(lb_attribution_finder *f, int runner, int bits, uint32_t row, lb_score *score)
{
    f->memory->cost.runs++, f->memory->cost.ops += f->site->region->sides[runner].n_ops;
    return lb_match_site_try(f->site, runner, bits, &f->list[runner][row], score, f->err);
}

/* Charges what a candidate costs on `share` of the place; false where that is more than may be spent. What an op does
 * by itself is known and costs nothing. */
static bool is_affordable(lb_attribution_finder *f, int runner, uint32_t row, double share, lb_attribution_scan *s)
{
    lb_attribution_memory *m = f->memory;
    const double work = row ? share * s->work * lb_work_slowness(&f->list[runner][row]) : 0;
    if (m->most_work > 0 && m->work + work > m->most_work) {
        s->cut_short = true;
        return false;
    }
    m->work += work;
    charge(s, work);
    return true;
}

static lb_status try_one(lb_attribution_finder *f, int runner, int bits, uint32_t row, lb_attribution_scan *s)
{
    const lb_candidate *c = &f->list[runner][row];
    lb_score score;
    /* blocked:N has a parameter, and of twenty values one fits four elements by chance. */
    if (s->tried && s->best_score.elements < c->few) return LB_OK;
    /* A few rows and columns of a product decide about most candidates, which would otherwise take
     * minutes for a model of 135M parameters. The op as it is (row 0) always runs whole, since its
     * distance is reported; what looks at whole tensors for a scale cannot be sampled. */
    if (s->sample.taken && row && c->local) {
        if (!is_affordable(f, runner, row, lb_sample_share(&s->sample, f->site), s)) return LB_OK;
        LB_TRY(lb_match_site_try(&s->sample.site, runner, bits, c, &score, f->err));
        if (score.ran && !lb_score_all(&score)) {
            s->tried++, s->excluded++;
            if (score.matched > s->likely_matched) s->likely = row, s->likely_matched = score.matched;
            return LB_OK;
        }
    }
    if (row) {
        bool excludes;
        LB_TRY(lb_product_probe_excludes(&s->probe, c, &excludes, f->err));
        if (excludes) {
            s->tried++, s->excluded++;
            return LB_OK;
        }
    }
    if (!is_affordable(f, runner, row, 1, s)) return LB_OK;
    if (row || !f->own[runner][bits].ran)
        LB_TRY(lb_attribution_try(f, runner, bits, row, &score));
    else
        score = f->own[runner][bits];
    if (!score.ran) return LB_OK;
    s->tried++;
    /* Of equals the first stays best: likelier candidates stand further in front. */
    if (!s->best_score.ran || score.matched > s->best_score.matched) s->best = row, s->best_score = score;
    if (!lb_score_all(&score))
        s->excluded++;
    else if (s->n < LB_MOST_MATCHES)
        s->matches[s->n++] = row;
    return LB_OK;
}

/* Nothing matched: how near did the nearest come that the sample excluded, on all elements?
 * The counts of a sample and of a whole cannot be compared, and what is shown must be of the whole. */
static lb_status score_likely(lb_attribution_finder *f, int runner, int bits, lb_attribution_scan *s)
{
    lb_score score;
    LB_TRY(lb_attribution_try(f, runner, bits, s->likely, &score));
    if (score.ran && score.matched > s->best_score.matched) s->best = s->likely, s->best_score = score;
    return LB_OK;
}

/* ---- all of them ---- */

/* No change comes first; then what gave the bits of most places so far, of equals the likelier one: what a place cannot
 * tell apart, others can. */
void lb_attribution_scan_rank(lb_attribution_finder *f, int runner, int bits, lb_attribution_scan *s)
{
    uint32_t votes[LB_MOST_MATCHES];
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t row = s->matches[i];
        uint32_t *sites = lb_attribution_memory_sites(f->memory, f->list[runner][row].name, bits);
        const uint32_t vote = !row ? UINT32_MAX : sites ? (*sites)++ : 0;
        /* Insertion sort: there are 64 matches at most, and a vote of UINT32_MAX keeps "no change"
         * in front whatever the other places said. */
        uint32_t at = i;
        for (; at && (votes[at - 1] < vote || (votes[at - 1] == vote && s->matches[at - 1] > row)); at--)
            votes[at] = votes[at - 1], s->matches[at] = s->matches[at - 1];
        votes[at] = vote, s->matches[at] = row;
    }
}

/* Time never ends a search that has no match: that would call a place unexplained for its size. */
static bool is_enough(const lb_attribution_finder *f, const lb_attribution_scan *s)
{
    const double seconds = spent(f, s);
    const uint32_t least = seconds < PATIENCE * f->memory->seconds ? LB_LEAST_TRIED : 2;
    /* Whoever asks for an order alone has it with the first that gives every bit; what an op does by itself is tried
     * before. */
    if (f->memory->only_orders && s->n) return true;
    return s->n && s->tried >= least && seconds > f->memory->seconds;
}

/* What runs, and whose bits are asked for: the same at twins. */
static uint64_t key_of(const lb_attribution_finder *f, int runner, int bits)
{
    uint64_t key = (uint64_t)(2 * runner + bits) + 1;
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *ops = &f->site->region->sides[side];
        key = key * UINT64_C(0x9E3779B97F4A7C15) ^
              lb_work_key(lb_matched_region_program(f->site->source, side), ops->ops, ops->n_ops);
    }
    return key;
}

/* Remembered ones first, then all in order; where twins were searched in vain what came nearest there, so that it is
 * told how near it comes. */
static lb_status try_all(lb_attribution_finder *f, int runner, int bits, const lb_exhausted_search *twins,
                         lb_attribution_scan *s)
{
    uint8_t *done = calloc(f->n[runner] + 1, 1);
    if (!done) return lb_fail(f->err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_sample_take(f->site, runner, bits, &s->sample, f->err);
    if (status == LB_OK) status = lb_product_probe_take(f->site, runner, bits, &s->probe, f->err);
    if (status == LB_OK) status = try_one(f, runner, bits, 0, s);
    done[0] = 1;
    for (uint32_t k = 0; k < f->memory->n && status == LB_OK; k++)
        for (uint32_t i = 0; i < f->n[runner] && status == LB_OK; i++)
            if (!done[i] && !strcmp(f->list[runner][i].name, f->memory->names[k]))
                done[i] = 1, status = try_one(f, runner, bits, i, s);
    for (uint32_t i = 0; i < f->n[runner] && status == LB_OK; i++) {
        if (done[i] || (twins && strcmp(f->list[runner][i].name, twins->nearest) != 0)) continue;
        if (is_enough(f, s)) break;
        status = try_one(f, runner, bits, i, s);
    }
    lb_sample_release(&s->sample);
    lb_product_probe_release(&s->probe);
    free(done);
    return status;
}

lb_status lb_attribution_scan_all(lb_attribution_finder *f, int runner, int bits, lb_attribution_scan *s)
{
    *s = (lb_attribution_scan){.work = work_of(f, runner)};
    if (!lb_match_site_can(f->site, runner, bits)) return LB_OK;
    const uint64_t key = key_of(f, runner, bits);
    const bool alike = !f->site->source->collective_matches[0] &&
                       !f->site->source->collective_matches[1]; /* of ranks any may have a fault */
    const lb_exhausted_search *twins = alike ? lb_attribution_memory_exhausted(f->memory, key) : NULL;
    lb_status status = try_all(f, runner, bits, twins, s);
    /* `likely` is 0 where the sample excluded none: row 0 never goes through it. */
    if (status == LB_OK && !s->n && s->likely) status = score_likely(f, runner, bits, s);
    if (status == LB_OK && !s->n && alike && !twins && !s->cut_short && s->tried > 1)
        lb_attribution_memory_note_exhausted(f->memory, key, f->list[runner][s->best].name, s->tried);
    /* What is excluded at the twins is excluded here. */
    if (twins && !s->n && s->tried < twins->tried) s->excluded += twins->tried - s->tried, s->tried = twins->tried;
    *f->spent += s->seconds;
    lb_attribution_scan_rank(f, runner, bits, s);
    return status;
}

/* ---- where B is parts ---- */

/* What B ran is several calls there, as decode steps are against one forward pass: some of them may have the bits of
 * A's kernel, and the others those of one other. */

/* Which parts candidate `row` gives; `*rest`: all of those that are not given yet. */
static lb_status try_rest(lb_attribution_finder *f, uint32_t row, const uint8_t *given, uint8_t *mine, bool *rest)
{
    const uint32_t n = f->site->region->parts;
    *rest = true;
    memset(mine, 0, n);
    LB_TRY(lb_match_site_parts(f->site, &f->list[0][row], mine, f->err));
    for (uint32_t i = 0; i < n; i++) *rest &= given[i] || mine[i];
    return LB_OK;
}

static void tell_parts(lb_attribution_finder *f, const lb_attribution_scan *s, uint32_t base, const uint8_t *given)
{
    lb_attribution_found *out = f->found;
    const lb_candidate *c = &f->list[0][s->matches[0]];
    const uint32_t n = f->site->region->parts;
    uint32_t other = 0, first = n, last = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!given[i]) other++, first = i < first ? i : first, last = i;
    out->cause = c->cause, out->proof = LB_PROOF_BITS, out->reversed = false;
    out->matched = out->elements = f->own[0][1].elements;
    out->tried = s->tried, out->excluded = s->excluded;
    snprintf(out->first, sizeof out->first, "%s", lb_attribution_name(f, 0, base));
    snprintf(out->schedule, sizeof out->schedule, "%s for %u of %u calls", c->name, other, n);
    for (uint32_t i = 1; i < s->n; i++) {
        const char *name = f->list[0][s->matches[i]].name;
        if (used + strlen(name) + 3 > sizeof out->also) break;
        used += (size_t)snprintf(out->also + used, sizeof out->also - used, "%s%s", used ? "; " : "", name);
    }
    snprintf(out->why, sizeof out->why,
             "calls %u to %u of %u have the bits of %.80s, the others those of the first side's kernel", first + 1,
             last + 1, n, c->name);
    lb_attribution_memory_note(f->memory, c->name);
}

/* A's kernel gives some parts' bits, and of all candidates one gives those of all others: single rows go to kernels of
 * their own. `base`: what gives A's own bits. */
static lb_status scan_parts(lb_attribution_finder *f, uint32_t base, bool *done)
{
    const uint32_t n = f->site->region->parts;
    uint8_t *given = calloc(n + 1, 3), *mine = given + n + 1, *tried = calloc(f->n[0] + 1, 1);
    lb_status status = given && tried ? LB_OK : lb_fail(f->err, LB_ERR_NOMEM, "out of memory");
    bool all = true, rest = false, any = false;
    lb_attribution_scan s = {.work = work_of(f, 0)};
    /* `given` is both what is read and what is written here: nothing is given yet. */
    if (status == LB_OK) status = try_rest(f, base, given, given, &all);
    for (uint32_t i = 0; status == LB_OK && i < n; i++) any |= given[i];
    /* No part with A's bits: then another kernel ran for all of them, which by_program would have
     * found. All parts: nothing differs that way. */
    const bool worth = status == LB_OK && any && !all;
    for (uint32_t k = 0; worth && k < f->memory->n + f->n[0] && status == LB_OK; k++) {
        uint32_t row = k < f->memory->n ? 0 : k - f->memory->n;
        for (uint32_t i = 0; k < f->memory->n && i < f->n[0]; i++)
            if (!strcmp(f->list[0][i].name, f->memory->names[k])) row = i;
        /* The memory's names come first and the list after them, in one loop; `tried` keeps a name
         * from running twice. Recipes that look at whole tensors see other tensors in single rows,
         * and are left out. */
        if (!row || row == base || tried[row] || !f->list[0][row].local) continue;
        if (s.n && s.tried >= LB_LEAST_TRIED && spent(f, &s) > f->memory->seconds) break;
        tried[row] = 1;
        charge(&s, s.work * lb_work_slowness(&f->list[0][row]));
        status = try_rest(f, row, given, mine, &rest);
        s.tried++, s.excluded += !rest;
        if (status == LB_OK && rest && s.n < LB_MOST_MATCHES) s.matches[s.n++] = row;
    }
    *f->spent += s.seconds;
    *done = status == LB_OK && s.n;
    if (*done) lb_attribution_scan_rank(f, 0, 1, &s), tell_parts(f, &s, base, given);
    free(given), free(tried);
    return status;
}

lb_status lb_attribution_by_parts(lb_attribution_finder *f, bool *done)
{
    const lb_matched_region *region = f->site->region;
    lb_attribution_scan mine = {0};
    /* This is for decode steps against one forward pass: a library has different kernels for one row
     * than for many, so that some calls may have A's bits and the single rows never. */
    if (region->parts < 2 || region->sides[1].op == LB_NONE || region->n_outputs != 1 ||
        !lb_match_site_can(f->site, 0, 1))
        return LB_OK;
    if (f->site->source->alignment->joins.rows) return LB_OK; /* rows of a larger batch: one call */
    /* A's own bits need a name before parts can be told from them: "own", or else what was found to
     * give them. */
    if (lb_score_all(&f->own[0][0])) return scan_parts(f, 0, done);
    LB_TRY(lb_attribution_scan_all(f, 0, 0, &mine));
    return mine.n ? scan_parts(f, mine.matches[0], done) : LB_OK;
}
