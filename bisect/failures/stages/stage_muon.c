/* The Muon stage: its iteration in f32, then AdamW in its place. See stages.h.
 *
 * What runs away in one step depends on every step before: steps are narrowed first, then the owners of parameters in
 * the first of them, while later steps are changed whole.
 */
#include "stages/stages.h"

#include "program/muon.h"

#include "base/array.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Modules that own Muon's parameters, by path, in order of their first write. */
typedef struct muon_owners {
    char (*paths)[160];
    uint32_t *steps;     /* per owner: in how many steps its update was Muon's */
    uint32_t n, updates; /* updates: steps in which some parameter was written */
} muon_owners;

static lb_status add_owner(muon_owners *owners, const char *path, uint32_t *row, lb_err *err)
{
    for (*row = 0; *row < owners->n; (*row)++)
        if (!strcmp(owners->paths[*row], path)) return LB_OK;
    void *more = lb_array_grow(owners->paths, owners->n, sizeof *owners->paths),
         *steps = lb_array_grow(owners->steps, owners->n, sizeof *owners->steps);
    if (more) owners->paths = more;
    if (steps) owners->steps = steps;
    if (!more || !steps) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    owners->steps[owners->n] = 0;
    snprintf(owners->paths[owners->n++], sizeof *owners->paths, "%s", path);
    return LB_OK;
}

static void release_owners(muon_owners *owners)
{
    free(owners->paths);
    free(owners->steps);
}

/* What is Muon is so in every step. A preconditioner whose statistics are made in the first looks like one there
 * alone. */
static void keep_steady(muon_owners *owners)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < owners->n; i++)
        if (2 * owners->steps[i] > owners->updates)
            memmove(owners->paths[n++], owners->paths[i], sizeof *owners->paths);
    owners->n = n;
}

static bool updates_parameters(const lb_bisect_session *session, const lb_program *program)
{
    const uint8_t *marks = lb_failure_monitor_marks(session->monitor, program->rank, program->step);
    for (uint32_t i = 0; marks && i < program->n_ops; i++)
        if (marks[i] & LB_WATCH_PARAMETER) return true;
    return false;
}

static const char *owner_path(const lb_program *program, const lb_muon_slice *slice)
{
    return lb_program_text(program, program->scopes[slice->scope].path);
}

static lb_status with_muon(const lb_program *program, lb_muon *muon, lb_err *err)
{
    lb_slice_flow *flow;
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    lb_status status = lb_muon_find(program, flow, muon, err);
    lb_slice_flow_free(flow);
    return status;
}

static lb_status list_owners(lb_bisect_session *session, muon_owners *owners, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint32_t s = 0; s < session->n_steps && status == LB_OK; s++) {
        const lb_program *program = lb_trial_program(session, session->failure.rank, session->steps[s]);
        lb_muon muon;
        if (!program) continue;
        LB_TRY(with_muon(program, &muon, err));
        owners->updates += updates_parameters(session, program);
        for (uint32_t i = 0; i < muon.n && status == LB_OK; i++) {
            uint32_t row;
            status = add_owner(owners, owner_path(program, &muon.slices[i]), &row, err);
            bool again = false; /* a module may own several */
            for (uint32_t k = 0; k < i; k++) again |= muon.slices[k].scope == muon.slices[i].scope;
            if (status == LB_OK) owners->steps[row] += !again;
        }
        lb_muon_release(&muon);
    }
    keep_steady(owners);
    return status;
}

static const char *short_how(const char *argument)
{
    return strcmp(argument, "f32") ? "by AdamW" : "in f32";
}

/* Sites of a step: one of each owner, and behind them, where the cure needs later steps, one of all owners there. */
typedef struct owner_sites {
    const muon_owners *owners;
    int64_t step;
    lb_sites sites;
} owner_sites;

/* Sites of the first step that the cure needs. */
static lb_status list_owner_sites(lb_bisect_session *session, const uint32_t *when, uint32_t n_when,
                                  const char *argument, owner_sites *list, lb_err *err)
{
    const muon_owners *owners = list->owners;
    lb_sites *sites = &list->sites;
    char before[64];
    snprintf(before, sizeof before, "step=%" PRId64 "&^(?:", list->step);
    lb_site_form form = {LB_SWAP_MUON, argument, before, ")$", '|'}, later = {LB_SWAP_MUON, argument, "step=", "", ','};
    for (uint32_t i = 0; i < owners->n; i++) {
        char pattern[320];
        lb_sites_escape(owners->paths[i], pattern, sizeof pattern);
        LB_TRY(lb_sites_add(sites, &form, pattern, err));
    }
    char steps[512];
    lb_stage_step_list(session, when + 1, n_when - 1, steps, sizeof steps);
    lb_sites_name(sites, "Muon updates of step %" PRId64 " %s", list->step, short_how(argument));
    return *steps ? lb_sites_add(sites, &later, steps, err) : LB_OK;
}

/* The product in the iteration whose result first leaves what an orthogonalisation can hold; else the first Gram
 * product. */
static lb_status guilty_product(const lb_bisect_session *session, const char *layer, int64_t step, uint32_t *op,
                                lb_err *err)
{
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, step);
    lb_muon muon;
    *op = LB_NONE;
    if (!row) return LB_OK;
    LB_TRY(with_muon(row->program, &muon, err));
    for (uint32_t s = 0; s < muon.n && *op == LB_NONE; s++) {
        const lb_muon_slice *slice = &muon.slices[s];
        if (strcmp(owner_path(row->program, slice), layer)) continue;
        *op = slice->first_gram;
        for (uint32_t i = 0; i < slice->n_ops; i++) {
            const char *name = lb_op_name(row->program, &row->program->ops[slice->ops[i]]);
            bool product = strstr(name, "::mm") || strstr(name, "bmm") || strstr(name, "addmm");
            if (!product || !(row->bits[slice->ops[i]] & LB_TRACE_BAD || row->sums[slice->ops[i]].largest > 100))
                continue;
            *op = slice->ops[i];
            break;
        }
    }
    lb_muon_release(&muon);
    return LB_OK;
}

/* Did this owner's parameter leave the step not finite? Such a one shows the failure by itself. */
static bool owner_failed(const lb_bisect_session *session, const char *layer, int64_t step)
{
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, step);
    bool failed = false;
    lb_muon muon;
    if (!row || with_muon(row->program, &muon, NULL) != LB_OK) return false;
    for (uint32_t s = 0; s < muon.n; s++)
        failed |=
            !strcmp(owner_path(row->program, &muon.slices[s]), layer) && row->bits[muon.slices[s].write] & LB_TRACE_BAD;
    lb_muon_release(&muon);
    return failed;
}

static lb_status add_muon_culprit(lb_bisect_session *session, const char *layer, int64_t step, bool later,
                                  const char *how, lb_err *err)
{
    uint32_t op;
    lb_culprit *culprit;
    LB_TRY(guilty_product(session, layer, step, &op, err));
    LB_TRY(
        lb_stage_culprit_add(session, LB_AXIS_MUON, (lb_stage_place){session->failure.rank, step, op}, &culprit, err));
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    snprintf(culprit->layer, sizeof culprit->layer, "%s", layer);
    culprit->block = 0;
    snprintf(culprit->why, sizeof culprit->why,
             "The cure needs %s for the Muon update of %s%s; with that, %s, the window ends without the failure.", how,
             layer, later ? ", and in later steps" : "", lb_stage_besides(session));
    return LB_OK;
}

enum { MANY = 4 }; /* beyond that, owners that ran away are all named, not narrowed further */

/* Owners whose iteration ran away by itself in that step, as the unchanged replay shows; *cured when changing them (and
 * the later steps) cures. The sites beyond the owners are in the set. */
static lb_status try_runaways(lb_bisect_session *session, const owner_sites *list, uint64_t *set, bool *cured,
                              lb_err *err)
{
    const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, list->step);
    const lb_sites *sites = &list->sites;
    lb_search_outcome outcome;
    uint32_t n = 0;
    for (uint32_t i = 0; i < sites->n; i++) {
        uint32_t op = LB_NONE;
        if (i < list->owners->n) {
            LB_TRY(guilty_product(session, list->owners->paths[i], list->step, &op, err));
            if (op == LB_NONE || !row || !(row->bits[op] & LB_TRACE_BAD || row->sums[op].largest > 100)) continue;
            n++;
        }
        set[i / 64] |= (uint64_t)1 << (i % 64);
    }
    *cured = false;
    if (n <= MANY) return LB_OK;
    LB_TRY(lb_trial_run(session, sites, set, "narrow", &outcome, err));
    *cured = outcome == LB_OUTCOME_CURED;
    return LB_OK;
}

/* The owners to blame in that step: all that ran away, when they are many and changing them cures; else the smallest
 * set. */
static lb_status blame_owners(lb_bisect_session *session, const owner_sites *list, uint32_t **found, uint32_t *n,
                              lb_err *err)
{
    const lb_sites *sites = &list->sites;
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    bool cured = false;
    lb_status status =
        set ? try_runaways(session, list, set, &cured, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && !cured)
        status = lb_trial_narrow(session, sites, false, found, n, err);
    else if (status == LB_OK) {
        *found = malloc((sites->n + 1) * sizeof **found);
        if (!*found) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
        for (uint32_t i = 0; *found && i < sites->n; i++)
            if (lb_site_in(set, i)) (*found)[(*n)++] = i;
    }
    free(set);
    return status;
}

static lb_status narrow_muon(lb_bisect_session *session, const muon_owners *owners, const lb_sites *whole,
                             const char *argument, const char *how, lb_err *err)
{
    lb_sites steps = {0};
    lb_site_form in_steps = {LB_SWAP_MUON, argument, "step=", "", ','};
    uint32_t *found = NULL, n = 0, *when = NULL, n_when = 0;
    lb_status status = lb_stage_cure_set(session, whole, NULL, 0, err);
    if (status == LB_OK) status = lb_stage_sites_add_steps(session, &in_steps, session->n_steps, &steps, err);
    lb_sites_name(&steps, "steps with Muon %s", short_how(argument));
    if (status == LB_OK) status = lb_trial_narrow(session, &steps, false, &when, &n_when, err);
    const int64_t step = n_when ? session->steps[when[0]] : session->failure.step;
    owner_sites layers = {.owners = owners, .step = step};
    if (status == LB_OK && n_when) {
        status = lb_stage_cure_set(session, &steps, when, n_when, err);
        if (status == LB_OK) status = list_owner_sites(session, when, n_when, argument, &layers, err);
        if (status == LB_OK) status = blame_owners(session, &layers, &found, &n, err);
        if (status == LB_OK && n) status = lb_stage_cure_set(session, &layers.sites, found, n, err);
    }
    uint32_t blamed = 0;
    for (int failed = 1; failed >= 0; failed--)
        for (uint32_t i = 0; i < n && status == LB_OK; i++) {
            if (found[i] >= owners->n || owner_failed(session, owners->paths[found[i]], step) != failed) continue;
            blamed++;
            status = add_muon_culprit(session, owners->paths[found[i]], step, n_when > 1, how, err);
        }
    if (status == LB_OK && !blamed) status = add_muon_culprit(session, owners->paths[0], step, n_when > 1, how, err);
    lb_sites_release(&layers.sites);
    lb_sites_release(&steps);
    free(found);
    free(when);
    return status;
}

lb_status lb_stage_muon(lb_bisect_session *session, bool *found, lb_err *err)
{
    static const char *const arguments[] = {"f32", "adamw"};
    static const char *const hows[] = {"its iteration in f32", "AdamW in its place"};
    muon_owners owners = {0};
    lb_status status = lb_trial_stage_begin(session, "muon", err);
    if (status == LB_OK) status = list_owners(session, &owners, err);
    if (status == LB_OK && !owners.n) lb_trial_stage_end(session, "none", "no Muon in this window");
    for (int a = 0; a < 2 && status == LB_OK && owners.n && !*found; a++) {
        lb_sites whole = {0};
        lb_search_outcome outcome = LB_OUTCOME_SAME;
        status = lb_sites_add_all(&whole, LB_SWAP_MUON, arguments[a], err);
        lb_sites_name(&whole, a ? "AdamW in Muon's place" : "Muon's iteration in f32");
        if (status == LB_OK) status = lb_trial_run(session, &whole, NULL, "whole", &outcome, err);
        if (status == LB_OK && outcome == LB_OUTCOME_CURED) {
            *found = true;
            status = narrow_muon(session, &owners, &whole, arguments[a], hows[a], err);
            if (status == LB_OK) lb_trial_stage_end(session, "cured", "by %s", hows[a]);
        }
        lb_sites_release(&whole);
    }
    if (status == LB_OK && owners.n && !*found)
        lb_trial_stage_end(session, "cleared", "fails with its iteration in f32, and with AdamW in its place");
    release_owners(&owners);
    return status;
}
