/* Several culprits on several axes: no stage alone cures, all of them together do. See stages.h.
 *
 *      whole     Muon by AdamW + f32 + without suspected ranks + without E, R, M, A, D      cures?
 *      narrow    the fewest of these that still cure; the playbook's earlier ones stay where either would do
 *      each      its own stage runs again, while the others' changes are made in the background: then what it has to
 *                cure is one failure, with one cause
 */
#include "stages/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum stage_number { MUON, PRECISION, RANK, BLOCK, STAGES };

static lb_status (*const run_stage[STAGES])(lb_bisect_session *, bool *, lb_err *) = {lb_stage_muon, lb_stage_precision,
                                                                                      lb_stage_rank, lb_stage_block};

typedef struct changes {
    lb_sites sites;
    uint8_t *stage;   /* per site: the stage that it is the whole of, or part of it */
    uint64_t *chosen; /* sites that the cure needs */
} changes;

/* Whether that stage had something to change. */
static bool applies(const lb_bisect_session *session, const char *name)
{
    for (uint32_t i = 0; i < session->out->n_stages; i++)
        if (!strcmp(session->out->stages[i].name, name)) return strcmp(session->out->stages[i].outcome, "none") != 0;
    return false;
}

static lb_status add(changes *changes, enum stage_number stage, const lb_site_form *form, const char *body, lb_err *err)
{
    changes->stage[changes->sites.n] = (uint8_t)stage;
    return lb_sites_add(&changes->sites, form, body, err);
}

/* Ranks that fail by themselves, unless all do: without any rank there is nothing left to fail. */
static lb_status add_ranks(lb_bisect_session *session, changes *changes, lb_err *err)
{
    uint32_t failed = 0;
    lb_site_form form = {LB_SWAP_RANK, "exclude", "rank=", "", ','};
    for (uint32_t i = 0; i < session->n_ranks; i++) failed += lb_stage_rank_broke(session, i);
    for (uint32_t i = 0; i < session->n_ranks && failed < session->n_ranks; i++) {
        char body[16];
        if (!lb_stage_rank_broke(session, i)) continue;
        snprintf(body, sizeof body, "%d", session->ranks[i]);
        LB_TRY(add(changes, RANK, &form, body, err));
        changes->sites.rows[changes->sites.n - 1].rank_row = i;
    }
    return LB_OK;
}

static lb_status add_changes(lb_bisect_session *session, changes *changes, lb_err *err)
{
    static const char *const classes[] = {"E", "R", "M", "A", "D"};
    lb_site_form adamw = {LB_SWAP_MUON, "adamw", "", "", ','}, f32 = {LB_SWAP_PRECISION, "f32", "", "", ','},
                 skip = {LB_SWAP_SKIP, "", "block=", "", ','};
    changes->stage = malloc(session->n_ranks + 8);
    if (!changes->stage) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (applies(session, "muon")) LB_TRY(add(changes, MUON, &adamw, "", err));
    if (applies(session, "precision")) LB_TRY(add(changes, PRECISION, &f32, "", err));
    if (applies(session, "rank")) LB_TRY(add_ranks(session, changes, err));
    for (size_t i = 0; i < 5 && applies(session, "block"); i++) LB_TRY(add(changes, BLOCK, &skip, classes[i], err));
    lb_sites_name(&changes->sites, "changes of all stages together");
    changes->chosen = calloc(LB_SITE_WORDS(changes->sites.n) + 1, sizeof *changes->chosen);
    return changes->chosen ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* Site `from` and those after it that the cure needs and that another run looks into: every class of blocks has its
 * own. */
static lb_status append_later(const changes *changes, uint32_t from, lb_sites *to, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(changes->sites.n) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = from; i < changes->sites.n; i++)
        if (lb_site_in(changes->chosen, i)) set[i / 64] |= (uint64_t)1 << (i % 64);
    lb_status status = lb_sites_append(to, &changes->sites, set, err);
    free(set);
    return status;
}

/* Runs the stage of sites [from, to) against what fails while all other changes are made; its cure joins the narrowed
 * ones. */
static lb_status run_beside(lb_bisect_session *session, const changes *changes, uint32_t from, uint32_t to,
                            lb_sites *narrowed, lb_err *err)
{
    lb_replay_summary summary = {0};
    lb_sites whole = {0};
    bool found = false;
    lb_sites_release(&session->background);
    LB_TRY(lb_sites_append(&session->background, narrowed, NULL, err));
    LB_TRY(append_later(changes, to, &session->background, err));
    LB_TRY(lb_rerun_retrace(session, &summary, err));
    if (session->failure.kind != LB_FAILURE_NONE) LB_TRY(run_stage[changes->stage[from]](session, &found, err));
    if (found) return lb_sites_append(narrowed, &session->cure, NULL, err);
    for (uint32_t i = from; i < to; i++) { /* narrower is not to be had */
        uint64_t *one = calloc(LB_SITE_WORDS(changes->sites.n) + 1, sizeof *one);
        if (!one) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        one[i / 64] = (uint64_t)1 << (i % 64);
        lb_status status = lb_site_in(changes->chosen, i) ? lb_sites_append(&whole, &changes->sites, one, err) : LB_OK;
        free(one);
        LB_TRY(status);
    }
    lb_status status = lb_sites_append(narrowed, &whole, NULL, err);
    lb_sites_release(&whole);
    return status;
}

static lb_status run_each(lb_bisect_session *session, const changes *changes, lb_err *err)
{
    lb_sites narrowed = {0};
    lb_replay_summary summary = {0};
    lb_status status = LB_OK;
    for (uint32_t from = 0, to; from < changes->sites.n && status == LB_OK; from = to) {
        bool needed = false;
        /* One run looks into all ranks; each class of blocks has a run of its own. */
        for (to = from + 1; to < changes->sites.n && changes->stage[from] == RANK && changes->stage[to] == RANK;) to++;
        for (uint32_t i = from; i < to; i++) needed |= lb_site_in(changes->chosen, i);
        if (needed) status = run_beside(session, changes, from, to, &narrowed, err);
    }
    lb_sites_release(&session->background);
    lb_sites_release(&session->cure);
    session->cure = narrowed;
    return status == LB_OK ? lb_rerun_retrace(session, &summary, err) : status;
}

lb_status lb_stage_several(lb_bisect_session *session, bool *found, lb_err *err)
{
    changes changes = {0};
    uint32_t *rows = NULL, n = 0;
    LB_TRY(lb_trial_stage_begin(session, "several", err));
    uint32_t row = session->out->n_stages - 1;
    lb_status status = add_changes(session, &changes, err);
    bool any = changes.sites.n > 1;
    if (status == LB_OK && any) status = lb_trial_narrow(session, &changes.sites, false, &rows, &n, err);
    for (uint32_t i = 0; i < n; i++) changes.chosen[rows[i] / 64] |= (uint64_t)1 << (rows[i] % 64);
    if (status == LB_OK && n) status = run_each(session, &changes, err);
    *found = session->out->n_culprits > 0;
    if (status == LB_OK)
        lb_trial_stage_end_row(session, row,
                               *found ? "cured"
                               : any  ? "cleared"
                                      : "none",
                               "%s",
                               *found ? "by several changes together"
                               : any  ? "fails with the changes of all stages together"
                                      : "one change is all that there is to make");
    lb_sites_release(&changes.sites);
    free(changes.stage);
    free(changes.chosen);
    free(rows);
    return status;
}
