/* The rank stage: whose contributions carry the fault. See stages.h.
 *
 * A fault that every rank shows by itself is no rank's: then leaving out some of them is not tried. Otherwise the ranks that
 * failed on their own (before any collective, before any sanitiser) are left out first; where none did, the ranks are
 * searched.
 */
#include "stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first op of a rank that broke its result, in the steps up to the failing one; LB_NONE when nothing did. */
static uint32_t first_broken(const lb_inquiry *q, int32_t rank, int64_t *step)
{
    for (uint32_t s = 0; s < lb_steps_until_failure(q); s++) {
        const lb_trace_row *row = lb_trace_find(q->trace, rank, q->steps[s]);
        for (uint32_t i = 0; row && i < row->program->n_ops; i++)
            if (lb_trace_broke(row, i)) {
                *step = q->steps[s];
                return i;
            }
    }
    return LB_NONE;
}

bool lb_rank_broke(const lb_inquiry *q, uint32_t rank_row)
{
    int64_t step;
    return first_broken(q, q->ranks[rank_row], &step) != LB_NONE && step <= q->failure.step;
}

static lb_status add_rank_culprit(lb_inquiry *q, const lb_sites *sites, const uint32_t *found, uint32_t n,
                                  lb_err *err)
{
    int32_t first = q->ranks[sites->rows[found[0]].rank_row];
    int64_t step = q->failure.step;
    uint32_t row = first_broken(q, first, &step);
    lb_culprit *c;
    LB_TRY(lb_culprit_add(q, LB_AXIS_RANK, first, step, row, &c, err));
    int32_t *ranks = realloc(c->ranks, n * sizeof *ranks);
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    c->ranks = ranks, c->n_ranks = n;
    for (uint32_t i = 0; i < n; i++) ranks[i] = q->ranks[sites->rows[found[i]].rank_row];
    snprintf(c->why, sizeof c->why,
             "Without the contribution of %s, %s, the window ends without the failure; the others show none of "
             "their own.%s",
             n == 1 ? "this rank" : "these ranks", lb_besides(q),
             row == LB_NONE
                 ? ""
                 : " The op named is the first on that rank whose inputs are finite and whose result is not.");
    return LB_OK;
}

/* One site per rank that is suspected. */
static lb_status list_suspects(lb_inquiry *q, const bool *suspected, lb_sites *sites, lb_err *err)
{
    lb_site_form form = {LB_SWAP_RANK, "exclude", "rank=", "", ','};
    for (uint32_t i = 0; i < q->n_ranks; i++) {
        char body[16];
        if (!suspected[i]) continue;
        snprintf(body, sizeof body, "%d", q->ranks[i]);
        LB_TRY(lb_sites_add(sites, &form, body, err));
        sites->rows[sites->n - 1].rank_row = i;
    }
    lb_sites_name(sites, sites->n == 1 ? "ranks that fail by themselves left out" : "ranks left out");
    return LB_OK;
}

/* No rank failed by itself: one after another is left out. */
static lb_status try_each(lb_inquiry *q, lb_sites *sites, uint32_t *guilty, bool *found, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    lb_status status = set ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < sites->n && status == LB_OK && !*found; i++) {
        lb_outcome outcome;
        memset(set, 0, LB_SITE_WORDS(sites->n) * sizeof *set);
        set[i / 64] |= (uint64_t)1 << (i % 64);
        status = lb_try(q, sites, set, "single", &outcome, err);
        if (status == LB_OK && outcome == LB_OUTCOME_CURED) *guilty = i, *found = true;
    }
    free(set);
    return status;
}

lb_status lb_stage_rank(lb_inquiry *q, bool *found, lb_err *err)
{
    lb_sites sites = {0};
    uint32_t *culprits = NULL, n = 0, failed = 0, single = 0;
    LB_TRY(lb_stage_begin(q, "rank", err));
    if (q->n_ranks < 2) {
        lb_stage_end(q, "none", "one rank was recorded");
        return LB_OK;
    }
    bool *suspected = calloc(q->n_ranks, sizeof *suspected);
    for (uint32_t i = 0; suspected && i < q->n_ranks; i++) {
        suspected[i] = lb_rank_broke(q, i);
        failed += suspected[i];
    }
    lb_status status = suspected ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && failed == q->n_ranks) {
        lb_stage_end(q, "cleared", "every rank fails by itself");
    } else if (status == LB_OK) {
        for (uint32_t i = 0; i < q->n_ranks && !failed; i++) suspected[i] = true;
        status = list_suspects(q, suspected, &sites, err);
        if (status == LB_OK && failed)
            status = lb_narrow(q, &sites, &culprits, &n, err);
        else if (status == LB_OK) {
            status = try_each(q, &sites, &single, found, err);
            if (*found) culprits = malloc(sizeof *culprits), culprits[0] = single, n = 1;
        }
        *found = n > 0;
        if (status == LB_OK && n) status = lb_cure_set(q, &sites, culprits, n, err);
        if (status == LB_OK && n) status = add_rank_culprit(q, &sites, culprits, n, err);
        if (status == LB_OK && n)
            lb_stage_end(q, "cured", "by leaving out %u of %u ranks", n, q->n_ranks);
        else if (status == LB_OK)
            lb_stage_end(q, "cleared", "fails without any one of them");
    }
    lb_sites_release(&sites);
    free(suspected);
    free(culprits);
    return status;
}
