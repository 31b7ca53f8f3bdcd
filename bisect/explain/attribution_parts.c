/* Where what B ran is several calls, as decode steps are against one forward pass: some of them may have the bits of A's kernel, and the
 * others those of one other. */
#include "attribution_finder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A's kernel gives some parts' bits, and of all candidates one gives those of all others: single rows go to kernels of their own. `base`:
 * what gives A's own bits. */
static lb_status scan_parts(lb_attribution_finder *f, uint32_t base, bool *done)
{
    const uint32_t n = f->site->region->parts;
    uint8_t *given = calloc(n + 1, 3), *mine = given + n + 1, *tried = calloc(f->n[0] + 1, 1);
    lb_status status = given && tried ? LB_OK : lb_fail(f->err, LB_ERR_NOMEM, "out of memory");
    bool all = true, rest = false, any = false;
    lb_attribution_scan s;
    lb_attribution_scan_begin(&s);
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
        if (s.n && s.tried >= LB_LEAST_TRIED && lb_attribution_scan_spent(f, &s) > f->memory->seconds) break;
        tried[row] = 1;
        status = try_rest(f, row, given, mine, &rest);
        s.tried++, s.excluded += !rest;
        if (status == LB_OK && rest && s.n < LB_MOST_MATCHES) s.matches[s.n++] = row;
    }
    lb_attribution_scan_end(f, &s);
    *done = status == LB_OK && s.n;
    if (*done) lb_attribution_scan_rank(f, 0, 1, &s), tell_parts(f, &s, base, given);
    free(given), free(tried);
    return status;
}

lb_status lb_attribution_by_parts(lb_attribution_finder *f, bool *done)
{
    const lb_matched_region *region = f->site->region;
    lb_attribution_scan mine = {0};
    /* This is for decode steps against one forward pass: a library has other kernels for one row
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
