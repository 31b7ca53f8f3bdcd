/* Running the window again: see rerun.h. */
#include "trials/rerun.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what is run ------------------------------------------------------------------------------------------------- */

lb_status lb_rerun_swaps(const lb_bisect_session *session, const lb_sites *sites, const uint64_t *set, lb_swap **swaps,
                         uint32_t *n, lb_err *err)
{
    uint32_t more = 0;
    *n = 0;
    *swaps = calloc(session->background.n + sites->n + 1, sizeof **swaps);
    if (!*swaps) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(lb_sites_swaps(&session->background, NULL, *swaps, n, err));
    lb_status status = lb_sites_swaps(sites, set, *swaps + *n, &more, err);
    *n += more;
    return status;
}

void lb_rerun_plan(const lb_bisect_session *session, lb_plan *plan)
{
    plan->mode = LB_REPLAY_CHAINED;
    plan->first_step = session->steps[0], plan->last_step = session->steps[session->n_steps - 1];
    plan->threads = session->options->threads;
    plan->memory_bytes = session->options->memory_bytes;
    plan->compare = false;
    plan->force_decisions = true;
}

/* Ranks whose contributions are left out have no values of their own to be judged. */
static void exclude_ranks(const lb_sites *sites, const uint64_t *set, bool *excluded)
{
    for (uint32_t i = 0; i < sites->n; i++)
        if (lb_site_chosen(set, i) && sites->rows[i].rank_row != LB_NONE) excluded[sites->rows[i].rank_row] = true;
}

static bool *ranks_excluded(const lb_bisect_session *session, const lb_sites *sites, const uint64_t *set)
{
    bool *excluded = calloc(session->n_ranks + 1, sizeof *excluded);
    if (!excluded) return NULL;
    if (session->left_out) memcpy(excluded, session->left_out, session->n_ranks * sizeof *excluded);
    exclude_ranks(&session->background, NULL, excluded);
    exclude_ranks(sites, set, excluded);
    return excluded;
}

/* ---- who watches ------------------------------------------------------------------------------------------------- */

typedef struct watcher {
    lb_bisect_session *session;
    lb_trace *trace; /* NULL: none */
    bool over; /* all is seen; the run goes on for the decisions of later steps, of which the recording has no bytes */
    lb_status status; /* of keeping and resuming what the monitor knows */
    lb_err err;
} watcher;

/* Of a changed run what is asked for stands where the numbers went bad, or where they fail. */
static bool is_traced(const watcher *watcher, int64_t step)
{
    const lb_bisect_session *session = watcher->session;
    return watcher->trace == session->trace || step == session->failure.step ||
           (session->out->origin.op != LB_NONE && step == session->out->origin.step);
}

static bool watch_op(void *context, const lb_event *event)
{
    watcher *watcher = context;
    if (watcher->status != LB_OK) return false;
    if (watcher->over) return true;
    if (watcher->trace && is_traced(watcher, event->step)) lb_trace_op(watcher->trace, event);
    if (lb_failure_monitor_op(watcher->session->monitor, event)) return true;
    watcher->over = watcher->trace == watcher->session->trace && watcher->session->decisions.n;
    return watcher->over;
}

static void watch_step(void *context, int32_t rank, int64_t step)
{
    const watcher *watcher = context;
    if (!watcher->over) lb_failure_monitor_step_end(watcher->session->monitor, rank, step);
}

/* A step after the failing one is no place to begin. */
static bool keep_monitor(void *context, uint32_t checkpoint)
{
    watcher *watcher = context;
    if (watcher->status != LB_OK || lb_failure_monitor_failure(watcher->session->monitor)->kind != LB_FAILURE_NONE)
        return false;
    watcher->status = lb_failure_monitor_keep(watcher->session->monitor, checkpoint, &watcher->err);
    return watcher->status == LB_OK;
}

static void resume_monitor(void *context, uint32_t checkpoint)
{
    watcher *watcher = context;
    if (watcher->status == LB_OK)
        watcher->status = lb_failure_monitor_resume(watcher->session->monitor, checkpoint, &watcher->err);
}

static void note_decision(void *context, int32_t rank, int64_t step, uint32_t value, const lb_tensor *contents)
{
    lb_decisions_keep(&((watcher *)context)->session->decisions, rank, step, value, contents);
}

static bool recall_decision(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    return lb_decisions_find(&((watcher *)context)->session->decisions, rank, step, value, tensor);
}

static lb_status run_watched(lb_bisect_session *session, const lb_plan *plan, lb_trace *trace,
                             lb_replay_summary *summary, lb_err *err)
{
    watcher watcher = {.session = session, .trace = trace, .err = LB_ERR_INIT};
    lb_observer observer = {.context = &watcher,
                            .op = watch_op,
                            .step_end = watch_step,
                            .decision = session->decisions.n || plan->n_swaps ? NULL : note_decision,
                            .recalled = recall_decision,
                            .keep = keep_monitor,
                            .resumed = resume_monitor};
    lb_status status = lb_replay_run(session->replay, plan, &observer, summary, err);
    return watcher.status == LB_OK ? status : lb_fail(err, watcher.status, "%s", watcher.err.message);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* What the machine could give without swapping, in bytes. */
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *info = fopen("/proc/meminfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (info) fclose(info);
    return kib ? kib * 1024 : (uint64_t)sysconf(_SC_PHYS_PAGES) / 4 * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The run of this plan will keep checkpoints. */
static lb_status begin_keeping(lb_bisect_session *session, const bool *excluded, lb_plan *plan, lb_err *err)
{
    lb_past *past = &session->past;
    uint64_t room = session->options->memory_bytes ? session->options->memory_bytes : available_bytes() / 2;
    lb_rerun_release(session);
    if (session->options->from_start || session->options->check || session->n_steps < 2) return LB_OK;
    past->excluded = malloc((session->n_ranks + 1) * sizeof *past->excluded);
    past->swaps = lb_sites_swaps_text(plan->swaps, plan->n_swaps);
    if (!past->excluded || !past->swaps) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    memcpy(past->excluded, excluded, session->n_ranks * sizeof *excluded);
    past->n_swaps = plan->n_swaps;
    past->mode = session->mode;
    LB_TRY(lb_checkpoints_new(room, &past->checkpoints, err));
    plan->keep = past->checkpoints;
    return LB_OK;
}

void lb_rerun_release(lb_bisect_session *session)
{
    lb_checkpoints_free(session->past.checkpoints);
    free(session->past.excluded);
    free(session->past.swaps);
    session->past = (lb_past){0};
    if (session->monitor) lb_failure_monitor_forget(session->monitor);
}

void lb_rerun_resume(const lb_bisect_session *session, lb_plan *plan)
{
    const lb_past *past = &session->past;
    if (!past->checkpoints || !lb_checkpoints_count(past->checkpoints) || plan->n_swaps < past->n_swaps) return;
    char *first = lb_sites_swaps_text(plan->swaps, past->n_swaps);
    if (first && !strcmp(first, past->swaps)) plan->from = past->checkpoints, plan->n_common = past->n_swaps;
    free(first);
}

/* What is judged otherwise has another past, whatever is computed. */
static bool same_judge(const lb_bisect_session *session, const bool *excluded)
{
    return session->past.checkpoints && session->mode == session->past.mode &&
           !memcmp(excluded, session->past.excluded, session->n_ranks * sizeof *excluded);
}

/* ---- changed ----------------------------------------------------------------------------------------------------- */

static lb_search_outcome judge(const lb_bisect_session *session, lb_status status, const lb_replay_summary *summary,
                               const lb_err *err, char *what, size_t size)
{
    const lb_failure *failure = lb_failure_monitor_failure(session->monitor);
    uint64_t blind = lb_failure_monitor_blind(session->monitor, session->failure.step);
    what[0] = '\0';
    if (status != LB_OK) {
        snprintf(what, size, "%s", err->message);
        return LB_OUTCOME_INVALID;
    }
    if (failure->kind != LB_FAILURE_NONE) {
        snprintf(what, size, "step %" PRId64 "%s%.60s: %.100s", failure->step, *failure->layer ? " " : "",
                 failure->layer, failure->what);
        return failure->step == session->failure.step ? LB_OUTCOME_SAME : LB_OUTCOME_OTHER;
    }
    if (summary->undecided) {
        snprintf(what, size, "%s", summary->undecided_at);
        return LB_OUTCOME_INVALID;
    }
    if (blind > session->blind) {
        snprintf(what, size, "%" PRIu64 " watched results could not be computed: bytes lack", blind - session->blind);
        return LB_OUTCOME_INVALID;
    }
    return LB_OUTCOME_CURED;
}

/* Bytes that checkpoints hold are not the replay's; where it needs them it gets them, and runs from the first step. */
static lb_status run_within(lb_bisect_session *session, lb_plan *plan, const bool *excluded, lb_replay_summary *summary,
                            lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const uint64_t held = plan->from ? lb_checkpoints_bytes(plan->from) : 0;
    if (plan->memory_bytes && held) plan->memory_bytes -= held < plan->memory_bytes ? held : plan->memory_bytes - 1;
    lb_failure_monitor_reset(session->monitor, session->mode, excluded);
    lb_status status = run_watched(session, plan, session->changed, summary, &why);
    if (status == LB_ERR_LIMIT && held) {
        lb_rerun_release(session);
        plan->from = NULL;
        plan->memory_bytes = session->options->memory_bytes;
        why = (lb_err)LB_ERR_INIT;
        lb_failure_monitor_reset(session->monitor, session->mode, excluded);
        if (session->changed) lb_trace_clear(session->changed);
        status = run_watched(session, plan, session->changed, summary, &why);
    }
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why.message);
}

lb_status lb_rerun(lb_bisect_session *session, const lb_sites *sites, const uint64_t *set, lb_search_outcome *outcome,
                   char *what, size_t size, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_swap *swaps = NULL;
    bool *excluded = ranks_excluded(session, sites, set);
    lb_status status = excluded ? lb_rerun_swaps(session, sites, set, &swaps, &plan.n_swaps, err)
                                : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        lb_replay_summary summary = {0};
        lb_err why = LB_ERR_INIT;
        lb_rerun_plan(session, &plan);
        plan.swaps = swaps;
        if (same_judge(session, excluded)) lb_rerun_resume(session, &plan);
        lb_status ran = run_within(session, &plan, excluded, &summary, &why);
        if (ran == LB_ERR_NOMEM || ran == LB_ERR_IO || ran == LB_ERR_CORRUPT || ran == LB_ERR_LIMIT)
            status = lb_fail(err, ran, "%s", why.message);
        else
            *outcome = judge(session, ran, &summary, &why, what, size);
    }
    lb_sites_swaps_free(swaps, plan.n_swaps);
    free(excluded);
    return status;
}

/* ---- unchanged --------------------------------------------------------------------------------------------------- */

lb_status lb_rerun_retrace(lb_bisect_session *session, lb_replay_summary *summary, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_sites nothing = {0};
    lb_swap *swaps = NULL;
    bool *excluded = ranks_excluded(session, &nothing, NULL);
    lb_status status = excluded ? lb_rerun_swaps(session, &nothing, NULL, &swaps, &plan.n_swaps, err)
                                : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        lb_rerun_plan(session, &plan);
        plan.swaps = swaps;
        status = begin_keeping(session, excluded, &plan, err);
    }
    if (status == LB_OK) {
        lb_trace_clear(session->trace);
        lb_failure_monitor_reset(session->monitor, session->mode, excluded);
        lb_failure_monitor_collect(session->monitor, true);
        status = run_watched(session, &plan, session->trace, summary, err);
    }
    if (status == LB_OK) {
        session->failure = *lb_failure_monitor_failure(session->monitor);
        session->blind = lb_failure_monitor_blind(
            session->monitor, session->failure.kind == LB_FAILURE_NONE ? INT64_MAX : session->failure.step);
    }
    lb_sites_swaps_free(swaps, plan.n_swaps);
    free(excluded);
    return status;
}
