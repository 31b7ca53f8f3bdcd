/* The rank stage: whose contributions carry the fault. See stages.h.
 *
 * A fault that every rank shows by itself is no rank's: then leaving out some of them is not tried. Otherwise the ranks
 * that failed on their own (before any collective, before any sanitiser) are left out first; where none did, the ranks
 * are searched.
 */
#include "stages/stages.h"

#include "failure/collective_calls.h"
#include "exchanges/collective_results.h"
#include "failure/lost_rank.h"
#include "pair/op_kind.h"
#include "failure/replicas.h"

#include "base/array.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Per op: it follows from what ranks have exchanged in this step, so that what it breaks may be another rank's fault.
 * NULL when out of memory. */
static uint8_t *after_exchange(const lb_trace_row *row)
{
    const lb_program *program = row->program;
    uint8_t *marks = calloc((size_t)program->n_ops + 1, 1);
    for (uint32_t i = 0; marks && i < program->n_ops; i++)
        marks[i] = program->ops[i].flags & LB_OP_COLLECTIVE && program->ops[i].phase != LB_PHASE_FORWARD;
    if (marks) lb_slice_grow(row->flow, false, 0, NULL, marks);
    return marks;
}

/* The first op of a rank that broke its result by itself, in the steps up to the failing one; LB_NONE when nothing
 * did. */
static uint32_t first_broken(const lb_bisect_session *session, int32_t rank, int64_t *step)
{
    uint32_t found = LB_NONE;
    for (uint32_t s = 0; s < lb_stage_steps_until_failure(session) && found == LB_NONE; s++) {
        const lb_trace_row *row = lb_trace_find(session->trace, rank, session->steps[s]);
        uint8_t *shared = NULL;
        for (uint32_t i = 0; row && i < row->program->n_ops && found == LB_NONE; i++) {
            if (!lb_trace_broke(row, i)) continue;
            if (!shared && !(shared = after_exchange(row))) break;
            if (!shared[i]) found = i, *step = session->steps[s];
        }
        free(shared);
    }
    return found;
}

bool lb_stage_rank_broke(const lb_bisect_session *session, uint32_t rank_row)
{
    int64_t step;
    return first_broken(session, session->ranks[rank_row], &step) != LB_NONE && step <= session->failure.step;
}

/* ---- finite, and far larger than on any other rank --------------------------------------------------------------- */

/* The first op whose result is more than a hundred times that of the same op on another rank; ops of one side are
 * passed. */
static uint32_t first_larger(const lb_trace_row *row, const lb_trace_row *other)
{
    enum { AHEAD = 64 };
    const lb_program *p = row->program, *o = other->program;
    for (uint32_t i = 0, k = 0; i < p->n_ops && k < o->n_ops; i++) {
        uint32_t j = k;
        while (j < o->n_ops && j < k + AHEAD && !lb_op_same_place(p, i, o, j)) j++;
        if (j == o->n_ops || j == k + AHEAD) continue;
        k = j + 1;
        const double mine = lb_trace_size(row, i), theirs = lb_trace_size(other, j);
        if (theirs > 0 && mine > 100 * theirs) return i;
    }
    return LB_NONE;
}

/* The first op, in any step, by which a rank exceeds all others. */
static uint32_t outlying_op(const lb_bisect_session *session, uint32_t rank_row, int64_t *step)
{
    for (uint32_t at = 0; at < lb_stage_steps_until_failure(session); at++) {
        const lb_trace_row *row = lb_trace_find(session->trace, session->ranks[rank_row], session->steps[at]);
        uint32_t first = LB_NONE;
        for (uint32_t r = 0; r < session->n_ranks && row; r++) {
            const lb_trace_row *other =
                r == rank_row ? NULL : lb_trace_find(session->trace, session->ranks[r], session->steps[at]);
            if (!other) continue;
            uint32_t op = first_larger(row, other);
            if (op == LB_NONE)
                row = NULL;
            else if (first == LB_NONE || op > first)
                first = op;
        }
        if (row && first != LB_NONE) {
            *step = session->steps[at];
            return first;
        }
    }
    return LB_NONE;
}

/* Of a rank that is left out: the op to name, and in words why it is that one. */
static uint32_t guilty_op(const lb_bisect_session *session, uint32_t rank_row, int64_t *step, const char **why)
{
    const lb_origin *origin = &session->out->origin;
    uint32_t op = first_broken(session, session->ranks[rank_row], step);
    *why = " The op named is the first on that rank whose inputs are finite and whose result is not.";
    if (op != LB_NONE) return op;
    *why = " The op named is where the numbers that are not finite come from.";
    if (origin->op != LB_NONE && origin->rank == session->ranks[rank_row]) return *step = origin->step, origin->op;
    *why = " The op named is the first there whose result is over a hundred times that of any other rank.";
    op = outlying_op(session, rank_row, step);
    if (op == LB_NONE) *why = "";
    return op;
}

static lb_status add_rank_culprit(lb_bisect_session *session, const lb_sites *sites, const uint32_t *found, uint32_t n,
                                  lb_err *err)
{
    int32_t first = session->ranks[sites->rows[found[0]].rank_row];
    int64_t step = session->failure.step;
    const char *named;
    uint32_t row = guilty_op(session, sites->rows[found[0]].rank_row, &step, &named);
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_RANK, (lb_stage_place){first, step, row}, &culprit, err));
    int32_t *ranks = lb_array_reserve(culprit->ranks, culprit->n_ranks, n - culprit->n_ranks, sizeof *ranks);
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    culprit->ranks = ranks, culprit->n_ranks = n;
    for (uint32_t i = 0; i < n; i++) ranks[i] = session->ranks[sites->rows[found[i]].rank_row];
    snprintf(culprit->why, sizeof culprit->why,
             "Without the contribution of %s, %s, the window ends without the failure; "
             "the others show none of their own.%s",
             n == 1 ? "this rank" : "these ranks", lb_stage_besides(session), named);
    return LB_OK;
}

/* One site per rank that is suspected. */
static lb_status list_suspects(lb_bisect_session *session, const bool *suspected, lb_sites *sites, lb_err *err)
{
    lb_site_form form = {LB_SWAP_RANK, "exclude", "rank=", "", ','};
    for (uint32_t i = 0; i < session->n_ranks; i++) {
        char body[16];
        if (!suspected[i]) continue;
        snprintf(body, sizeof body, "%d", session->ranks[i]);
        LB_TRY(lb_sites_add(sites, &form, body, err));
        sites->rows[sites->n - 1].rank_row = i;
    }
    lb_sites_name(sites, sites->n == 1 ? "ranks that fail by themselves left out" : "ranks left out");
    return LB_OK;
}

/* No rank failed by itself: one after another is left out. */
static lb_status try_each(lb_bisect_session *session, lb_sites *sites, uint32_t *guilty, bool *found, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    lb_status status = set ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < sites->n && status == LB_OK && !*found; i++) {
        lb_search_outcome outcome;
        memset(set, 0, LB_SITE_WORDS(sites->n) * sizeof *set);
        set[i / 64] |= (uint64_t)1 << (i % 64);
        status = lb_trial_run(session, sites, set, "single", &outcome, err);
        if (status == LB_OK && outcome == LB_OUTCOME_CURED) *guilty = i, *found = true;
    }
    free(set);
    return status;
}

/* Where all ranks break or none does: those that exceed all others, if there are any. */
static void suspect_outliers(const lb_bisect_session *session, bool *suspected, uint32_t *n)
{
    int64_t step;
    uint32_t outliers = 0;
    bool *is = calloc(session->n_ranks, sizeof *is);
    for (uint32_t i = 0; is && i < session->n_ranks; i++) outliers += is[i] = outlying_op(session, i, &step) != LB_NONE;
    if (outliers) memcpy(suspected, is, session->n_ranks * sizeof *is), *n = outliers;
    free(is);
}

/* ---- calls alone ------------------------------------------------------------------------------------------------- */

/* Nothing is known of what the program computes between its collectives: a capture made beneath it. */
static bool only_exchanges(const lb_bisect_session *session)
{
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program;
            if (lb_capture_program(session->capture, session->ranks[r], session->steps[s], &program, NULL) != LB_OK)
                continue;
            for (uint32_t i = 0; i < program->n_ops; i++)
                if (!lb_op_is_source(program, &program->ops[i]) && !(program->ops[i].flags & LB_OP_COLLECTIVE))
                    return false;
        }
    return true;
}

/* Who sent numbers that are not finite without having received any: no replay is asked, for messages are not sent again
 * in one. */
static lb_status add_sender(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_collective_results results;
    lb_status status = LB_OK;
    LB_TRY(lb_collective_results_check(session->capture, &results, err));
    for (uint32_t i = 0; i < results.n && !*found && status == LB_OK; i++) {
        const lb_collective_finding *finding = &results.list[i];
        lb_culprit *culprit;
        if (finding->kind != LB_COLLECTIVE_NONFINITE || finding->step < session->steps[0] ||
            finding->step > session->failure.step)
            continue;
        status = lb_stage_culprit_add(session, LB_AXIS_RANK,
                                      (lb_stage_place){finding->rank, finding->step, finding->op}, &culprit, err);
        if (status != LB_OK) break;
        int32_t *ranks =
            lb_array_reserve(culprit->ranks, culprit->n_ranks, finding->n_ranks - culprit->n_ranks, sizeof *ranks);
        if (!ranks) {
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
            break;
        }
        culprit->ranks = ranks, culprit->n_ranks = finding->n_ranks, *found = true;
        memcpy(ranks, finding->ranks, finding->n_ranks * sizeof *ranks);
        snprintf(culprit->why, sizeof culprit->why, "%s.", finding->message);
        lb_trial_stage_end(session, "found", "%s", finding->message);
    }
    lb_collective_results_release(&results);
    return status;
}

/* ---- the stage --------------------------------------------------------------------------------------------------- */

/* Leaves out suspects, and names those without whom the window does not fail. */
static lb_status try_suspects(lb_bisect_session *session, const bool *suspected, uint32_t failed, bool *found,
                              lb_err *err)
{
    lb_sites sites = {0};
    uint32_t *culprits = NULL, n = 0, single = 0;
    lb_status status = list_suspects(session, suspected, &sites, err);
    if (status == LB_OK && failed)
        status = lb_trial_narrow(session, &sites, false, &culprits, &n, err);
    else if (status == LB_OK) {
        status = try_each(session, &sites, &single, found, err);
        if (*found) culprits = malloc(sizeof *culprits), culprits[0] = single, n = 1;
    }
    *found = n > 0;
    if (status == LB_OK && n) status = lb_stage_cure_set(session, &sites, culprits, n, err);
    if (status == LB_OK && n) status = add_rank_culprit(session, &sites, culprits, n, err);
    if (status == LB_OK && n)
        lb_trial_stage_end(session, "cured", "by leaving out %u of %u ranks", n, session->n_ranks);
    else if (status == LB_OK)
        lb_trial_stage_end(session, "cleared", "fails without any one of them");
    lb_sites_release(&sites);
    free(culprits);
    return status;
}

lb_status lb_stage_rank(lb_bisect_session *session, bool *found, lb_err *err)
{
    uint32_t failed = 0;
    LB_TRY(lb_trial_stage_begin(session, "rank", err));
    if (session->n_ranks < 2) {
        lb_trial_stage_end(session, "none", "one rank was recorded");
        return LB_OK;
    }
    if (only_exchanges(session)) LB_TRY(add_sender(session, found, err));
    if (*found) return LB_OK;
    bool *suspected = calloc(session->n_ranks, sizeof *suspected);
    for (uint32_t i = 0; suspected && i < session->n_ranks; i++) {
        suspected[i] = lb_stage_rank_broke(session, i);
        failed += suspected[i];
    }
    lb_status status = suspected ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && (failed == session->n_ranks || !failed)) suspect_outliers(session, suspected, &failed);
    if (status == LB_OK && failed == session->n_ranks) {
        lb_trial_stage_end(session, "cleared", "every rank fails by itself");
    } else if (status == LB_OK) {
        for (uint32_t i = 0; i < session->n_ranks && !failed; i++) suspected[i] = true;
        status = try_suspects(session, suspected, failed, found, err);
    }
    free(suspected);
    return status;
}

/* ---- no number fails, and ranks disagree ------------------------------------------------------------------------- */

static bool in_window(const lb_bisect_session *session, int64_t step)
{
    return step >= session->steps[0] && step <= session->steps[session->n_steps - 1];
}

/* Ranks that do not agree, at the op of one of them. */
typedef struct disagreement {
    int64_t step;
    int32_t rank;
    uint32_t op;
    const int32_t *ranks;
    uint32_t n_ranks;
    const char *tensor, *what; /* tensor: or "" */
} disagreement;

static lb_status add_disagreement(lb_bisect_session *session, const disagreement *disagreement, lb_err *err)
{
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_RANK,
                                (lb_stage_place){disagreement->rank, disagreement->step, disagreement->op}, &culprit,
                                err));
    int32_t *copy = realloc(culprit->ranks, (disagreement->n_ranks + 1) * sizeof *copy);
    if (!copy) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    memcpy(copy, disagreement->ranks, disagreement->n_ranks * sizeof *copy);
    culprit->ranks = copy, culprit->n_ranks = disagreement->n_ranks;
    if (disagreement->op == LB_NONE) culprit->phase = LB_PHASE_COMMUNICATION; /* where ranks meet */
    if (*disagreement->tensor) snprintf(culprit->parameter, sizeof culprit->parameter, "%s", disagreement->tensor);
    snprintf(culprit->why, sizeof culprit->why, "%s. Nothing else fails for it: `lastbit ranks` says more.",
             disagreement->what);
    lb_failure *failure = &session->out->failure;
    *failure = (lb_failure){
        .kind = LB_FAILURE_RANKS, .step = disagreement->step, .rank = disagreement->rank, .op = disagreement->op};
    snprintf(failure->layer, sizeof failure->layer, "%s", culprit->layer);
    snprintf(failure->name, sizeof failure->name, "%s", culprit->op);
    snprintf(failure->what, sizeof failure->what, "%s", disagreement->what);
    return LB_OK;
}

static lb_status find_lost(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_lost_ranks lost;
    LB_TRY(lb_lost_ranks_find(session->capture, &lost, err));
    *found = lost.n && in_window(session, lost.step);
    const disagreement disagreement = {.step = lost.step,
                                       .rank = lost.n ? lost.ranks[0] : 0,
                                       .op = LB_NONE,
                                       .ranks = lost.ranks,
                                       .n_ranks = lost.n,
                                       .tensor = "",
                                       .what = lost.message};
    const lb_status status = *found ? add_disagreement(session, &disagreement, err) : LB_OK;
    lb_lost_ranks_release(&lost);
    return status;
}

static lb_status find_results(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_collective_results results;
    lb_status status = LB_OK;
    LB_TRY(lb_collective_results_check(session->capture, &results, err));
    for (uint32_t i = 0; i < results.n && !*found && status == LB_OK; i++) {
        const lb_collective_finding *finding = &results.list[i];
        if (!in_window(session, finding->step) || finding->note) continue;
        *found = true;
        const disagreement disagreement = {
            finding->step, finding->rank, finding->op, finding->ranks, finding->n_ranks, "", finding->message};
        status = add_disagreement(session, &disagreement, err);
    }
    lb_collective_results_release(&results);
    return status;
}

lb_status lb_stage_disagree(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_collective_calls calls;
    lb_replicas replicas;
    lb_status status = LB_OK;
    *found = false;
    LB_TRY(lb_collective_calls_check(session->capture, &calls, err));
    for (uint32_t i = 0; i < calls.n && !*found && status == LB_OK; i++) {
        const lb_call_mismatch *mismatch = &calls.list[i];
        if (!in_window(session, mismatch->step)) continue;
        *found = true;
        const disagreement disagreement = {
            mismatch->step, mismatch->rank, mismatch->op, mismatch->ranks, mismatch->n_ranks, "", mismatch->message};
        status = add_disagreement(session, &disagreement, err);
    }
    lb_collective_calls_release(&calls);
    if (*found || status != LB_OK) return status;
    LB_TRY(find_lost(session, found, err));
    if (!*found) LB_TRY(find_results(session, found, err));
    if (*found) return LB_OK;
    LB_TRY(lb_replicas_check(session->capture, &replicas, err));
    for (uint32_t i = 0; i < replicas.n && !*found && status == LB_OK; i++) {
        const lb_unequal *unequal = &replicas.list[i];
        char what[480];
        if (!in_window(session, unequal->step) || unequal->kind == LB_REPLICA_BUFFER) continue;
        *found = true;
        snprintf(what, sizeof what, "%.300s%s no longer the same on the %u ranks that hold %s in common",
                 unequal->tensor, unequal->count > 1 ? " and others are" : " is", unequal->members,
                 unequal->count > 1 ? "them" : "it");
        const disagreement disagreement = {unequal->step,    unequal->rank,   unequal->op, unequal->ranks,
                                           unequal->n_ranks, unequal->tensor, what};
        status = add_disagreement(session, &disagreement, err);
    }
    lb_replicas_release(&replicas);
    return status;
}
