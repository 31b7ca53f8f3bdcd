/* The op stage, when nothing larger cures: single ops anywhere, of a loss, of an optimizer, of a clipping by hand. See
 * stages.h.
 *
 * Asked are the ops that broke their results (finite in, not finite out), each kind of them by layer, op and phase, in
 * all steps together: what divides by 0 in one step does so in the next. The change is 0 wherever such a result is not
 * finite. Changed at the end of the chain that would hide the failure instead of curing it; ops that broke by
 * themselves are the heads of chains.
 */
#include "stages/stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KINDS = 256 };

/* Ops of one layer, name and phase that broke; the first of them. */
typedef struct broken_kind {
    const lb_program *program;
    uint32_t op;
} broken_kind;

typedef struct broken_list {
    broken_kind rows[MAX_KINDS]; /* site k is rows[k], in order of execution */
    lb_sites sites;
} broken_list;

static bool same_kind(const broken_kind *kind, const lb_program *program, const lb_op *op)
{
    const lb_op *mine = &kind->program->ops[kind->op];
    return mine->phase == op->phase && !strcmp(lb_op_layer(kind->program, mine), lb_op_layer(program, op)) &&
           !strcmp(lb_op_name(kind->program, mine), lb_op_name(program, op));
}

static lb_status add_kind(broken_list *list, const lb_program *program, uint32_t i, lb_err *err)
{
    const lb_op *op = &program->ops[i];
    char layer[320], before[340], body[160], after[40];
    for (uint32_t k = 0; k < list->sites.n; k++)
        if (same_kind(&list->rows[k], program, op)) return LB_OK;
    if (list->sites.n == MAX_KINDS) return LB_OK;
    list->rows[list->sites.n] = (broken_kind){program, i};
    lb_sites_escape(lb_op_layer(program, op), layer, sizeof layer);
    lb_sites_escape(lb_op_name(program, op), body, sizeof body);
    snprintf(before, sizeof before, "^%s/", layer);
    snprintf(after, sizeof after, "$&phase=%s", lb_phase_name((lb_phase)op->phase));
    lb_site_form form = {LB_SWAP_KERNEL, "finite", before, after, 0};
    return lb_sites_add(&list->sites, &form, body, err);
}

static lb_status list_broken(lb_bisect_session *session, broken_list *list, lb_err *err)
{
    for (uint32_t s = 0; s < lb_stage_steps_until_failure(session); s++) {
        const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, session->steps[s]);
        for (uint32_t i = 0; row && i < row->program->n_ops; i++)
            if (lb_trace_broke(row, i)) LB_TRY(add_kind(list, row->program, i, err));
    }
    lb_sites_name(&list->sites, "ops that break, with 0 for what is not finite");
    return LB_OK;
}

/* The same with the very ops named: enough where the fault does not come back in a later step. */
static lb_status try_single_ops(lb_bisect_session *session, const broken_list *list, const uint32_t *found, uint32_t n,
                                lb_err *err)
{
    lb_sites single = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        const broken_kind *kind = &list->rows[found[i]];
        char before[64], body[16];
        snprintf(before, sizeof before, "step=%" PRId64 "&index=", kind->program->step);
        snprintf(body, sizeof body, "%u", kind->op);
        lb_site_form form = {LB_SWAP_KERNEL, "finite", before, "", ','};
        status = lb_sites_add(&single, &form, body, err);
    }
    lb_sites_name(&single, "the first op of each kind alone");
    if (status == LB_OK) status = lb_trial_run(session, &single, NULL, "narrow", &outcome, err);
    if (status == LB_OK && outcome == LB_OUTCOME_CURED) status = lb_stage_cure_set(session, &single, NULL, 0, err);
    lb_sites_release(&single);
    return status;
}

static lb_status blame(lb_bisect_session *session, const broken_kind *kind, uint32_t besides, lb_err *err)
{
    char others[80] = "";
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_BLOCK,
                                (lb_stage_place){session->failure.rank, kind->program->step, kind->op}, &culprit, err));
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    if (besides)
        snprintf(others, sizeof others, " and in place of what %u other %s so", besides,
                 besides == 1 ? "op makes" : "ops make");
    snprintf(culprit->why, sizeof culprit->why,
             "It makes numbers that are not finite of finite ones%s%.120s. With 0 in their place%s, "
             "and nothing else changed, the window ends without the failure; no change of a block, "
             "a precision or the data does that.",
             *culprit->parameter ? ", in " : "", culprit->parameter, others);
    return LB_OK;
}

/* The op that broke did what its state asked for: that came in as it is. */
static lb_status blame_state(lb_bisect_session *session, const lb_program *program, uint32_t broken, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_SOURCE, (lb_stage_place){origin->rank, origin->step, origin->op},
                                &culprit, err));
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    snprintf(culprit->why, sizeof culprit->why,
             "The window begins with state that no optimizer leaves: %s. %s makes NaN of it; with 0 there, %s, "
             "the window ends without the failure.",
             origin->text, lb_op_name(program, &program->ops[broken]), lb_stage_besides(session));
    return LB_OK;
}

/* What breaks in backward beside an op of forward is that op's own derivative, or led to: it is no culprit. */
static lb_status blame_all(lb_bisect_session *session, const broken_list *list, const uint32_t *found, uint32_t n,
                           lb_err *err)
{
    bool forward = false;
    uint32_t culprits = 0;
    for (uint32_t i = 0; i < n; i++)
        forward |= list->rows[found[i]].program->ops[list->rows[found[i]].op].phase == LB_PHASE_FORWARD;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < n; i++) {
            const broken_kind *kind = &list->rows[found[i]];
            if (forward && kind->program->ops[kind->op].phase != LB_PHASE_FORWARD) continue;
            if (!pass)
                culprits++;
            else
                LB_TRY(blame(session, kind, n - culprits, err));
        }
    return LB_OK;
}

/* ---- the origin first -------------------------------------------------------------------------------------------- */

/* That op, or (`kind`) the same of its layer in every step: what came in as state stays. */
static lb_status list_own_op(const lb_program *program, uint32_t op, bool kind, lb_sites *site, lb_err *err)
{
    char before[340], body[160], layer[320];
    lb_sites_escape(lb_op_layer(program, &program->ops[op]), layer, sizeof layer);
    lb_sites_escape(lb_op_name(program, &program->ops[op]), body, sizeof body);
    snprintf(before, sizeof before, "^%s/", layer);
    lb_site_form all = {LB_SWAP_KERNEL, "finite", before, "$&phase=optimizer", 0},
                 one = {LB_SWAP_KERNEL, "finite", before, "", ','};
    if (!kind) {
        snprintf(before, sizeof before, "step=%" PRId64 "&index=", program->step);
        snprintf(body, sizeof body, "%u", op);
    }
    lb_sites_name(site, "0 for what %s of the optimizer gives that is not finite",
                  lb_op_name(program, &program->ops[op]));
    return lb_sites_add(site, kind ? &all : &one, body, err);
}

/* An op of the optimizer that made numbers that are not finite of finite ones, or the state from which it did: no block
 * and no data are asked before it. */
lb_status lb_stage_own_op(lb_bisect_session *session, bool *found, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    const lb_trace_row *row = origin->op == LB_NONE ? NULL : lb_trace_find(session->trace, origin->rank, origin->step);
    const uint32_t broken = row ? origin->broken : LB_NONE;
    lb_sites site = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    if (broken == LB_NONE || origin->written || row->program->ops[broken].phase != LB_PHASE_OPTIMIZER ||
        !lb_trace_broke(row, broken))
        return LB_OK;
    /* A number by which all gradients are clipped is asked like any other op. */
    if (row->sums[broken].elements < 2) return LB_OK;
    LB_TRY(lb_trial_stage_begin(session, "op", err));
    lb_status status = LB_OK;
    for (int kind = broken != origin->op; kind < 2 && status == LB_OK && !*found; kind++) {
        if (kind && broken == origin->op && outcome != LB_OUTCOME_OTHER) break;
        lb_sites_release(&site);
        status = list_own_op(row->program, broken, kind, &site, err);
        if (status == LB_OK) status = lb_trial_run(session, &site, NULL, "whole", &outcome, err);
        *found = status == LB_OK && outcome == LB_OUTCOME_CURED;
    }
    if (*found) status = lb_stage_cure_set(session, &site, NULL, 0, err);
    if (*found && status == LB_OK && broken == origin->op)
        status = blame(session, &(broken_kind){row->program, broken}, 0, err);
    if (*found && status == LB_OK && broken != origin->op) status = blame_state(session, row->program, broken, err);
    if (status == LB_OK)
        lb_trial_stage_end(session, *found ? "cured" : "cleared",
                           *found ? "with 0 for what one op gives that is not finite"
                                  : "fails with 0 for what the first op gives that is not finite, too");
    lb_sites_release(&site);
    return status;
}

lb_status lb_stage_op(lb_bisect_session *session, bool *found, lb_err *err)
{
    broken_list *list = calloc(1, sizeof *list);
    uint32_t *rows = NULL, n = 0;
    lb_status status = list ? lb_trial_stage_begin(session, "op", err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = list_broken(session, list, err);
    if (status == LB_OK) status = lb_trial_narrow(session, &list->sites, false, &rows, &n, err);
    *found = n > 0;
    if (status == LB_OK && n) status = lb_stage_cure_set(session, &list->sites, rows, n, err);
    if (status == LB_OK && n) status = try_single_ops(session, list, rows, n, err);
    if (status == LB_OK && n) status = blame_all(session, list, rows, n, err);
    if (status == LB_OK)
        lb_trial_stage_end(session,
                           n               ? "cured"
                           : list->sites.n ? "cleared"
                                           : "none",
                           n               ? "with 0 for what %u %s not finite"
                           : list->sites.n ? "fails with 0 for what ops make that is not finite"
                                           : "every op gives finite numbers of finite ones",
                           n, n == 1 ? "op gives that is" : "ops give that is");
    if (list) lb_sites_release(&list->sites);
    free(list);
    free(rows);
    return status;
}
