/* The update stage: something that outlives a step was written over, and what failed was computed from that. See
 * stages.h.
 *
 * Asked only where origin.h found such a write, before any block is: skipping a block that reads what was spoilt hides
 * the failure, as skipping one that is fed by it does. The change is smaller than a block's: one write.
 *
 *   an optimizer's     it does what it was told, and was told too much: a learning rate, a decay. Updates are made so
 *                      much smaller that this parameter changes by a thousandth of itself at most; direction and
 *                      moments stay as they are
 *   any other op's     a weight that was multiplied, a state that was reset, a buffer that was filled: it leaves what
 *                      was there
 *
 * Both come from outside the model, as data do: the axis is the source's, the place the op that wrote. A weight that
 * was loaded is the model's own: the block that holds it is asked before its write is, unless what was written is not
 * finite.
 */
#include "stages/stages.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double learning_rate(const lb_program *program, const lb_group *group)
{
    for (uint32_t i = 0; group && i < group->options; i++) {
        const lb_scalar *scalar = &program->scalars[group->first_option + i];
        if (!strncmp(lb_program_text(program, scalar->name), "lr", 2)) return scalar->number;
    }
    return NAN;
}

static bool by_optimizer(const lb_origin *origin)
{
    return origin->updates;
}

static lb_status blame(lb_bisect_session *session, const char *change, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    const lb_program *program = lb_trial_program(session, origin->rank, origin->step);
    const lb_group *group = by_optimizer(origin) ? lb_program_group_of(program, origin->storage) : NULL;
    char rate[60] = "";
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_SOURCE, (lb_stage_place){origin->rank, origin->step, origin->op},
                                &culprit, err));
    LB_TRY(lb_stage_culprit_of_storage(session, culprit, origin->rank, origin->storage, err));
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    if (!by_optimizer(origin)) lb_stage_culprit_between_steps(session, culprit);
    const double lr = learning_rate(program, group);
    if (isfinite(lr)) snprintf(rate, sizeof rate, ", at a learning rate of %.3g", lr);
    const char *what = *culprit->parameter ? culprit->parameter : "what it writes";
    char effect[220];
    if (isfinite(origin->growth))
        snprintf(effect, sizeof effect, "makes %.120s %.3g times as large", what, origin->growth);
    else
        snprintf(effect, sizeof effect, "writes numbers that are not finite into %.120s", what);
    snprintf(culprit->why, sizeof culprit->why, "%s%s%s%s%s. With %s, %s, the window ends without the failure.",
             by_optimizer(origin) ? "The update is too large: " : "It stands outside the model, and ",
             group                  ? lb_program_text(program, group->optimizer)
             : by_optimizer(origin) ? "it"
                                    : "",
             group || by_optimizer(origin) ? " " : "", effect, rate, change, lb_stage_besides(session));
    return LB_OK;
}

/* The steps whose updates must be smaller. The culprit's is the first in which the parameter leaves what it was. */
static lb_status narrow(lb_bisect_session *session, const char *factor, char *change, size_t size, lb_err *err)
{
    lb_sites steps = {0};
    lb_site_form form = {LB_SWAP_UPDATE, factor, "step=", "", ','};
    uint32_t *found = NULL, n = 0;
    char list[256] = "";
    lb_status status = lb_stage_sites_add_steps(session, &form, session->n_steps, &steps, err);
    lb_sites_name(&steps, "steps with smaller updates");
    if (status == LB_OK) status = lb_trial_narrow(session, &steps, true, &found, &n, err);
    if (status == LB_OK && n) status = lb_stage_cure_set(session, &steps, found, n, err);
    if (n) lb_stage_step_list(session, found, n, list, sizeof list);
    snprintf(change, size, "the updates of step %s made %.2g times as large", list, atof(factor));
    lb_sites_release(&steps);
    free(found);
    return status;
}

static lb_status list_change(const lb_origin *origin, const char *factor, lb_sites *whole, lb_err *err)
{
    char before[80], body[16];
    if (by_optimizer(origin)) {
        lb_sites_name(whole, "updates %.2g times as large", atof(factor));
        return lb_sites_add_all(whole, LB_SWAP_UPDATE, factor, err);
    }
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", origin->step);
    snprintf(body, sizeof body, "%u", origin->op);
    lb_site_form form = {LB_SWAP_UPDATE, "0", before, "", ','};
    lb_sites_name(whole, "what %s of step %" PRId64 " writes, left as it was", origin->name, origin->step);
    return lb_sites_add(whole, &form, body, err);
}

static bool writes_parameter(const lb_bisect_session *session, const lb_origin *origin)
{
    const lb_program *program = lb_trial_program(session, origin->rank, origin->step);
    for (uint32_t v = 0; program && v < program->n_values; v++)
        if (program->values[v].storage == origin->storage && program->values[v].flags & LB_VALUE_PARAMETER) return true;
    return false;
}

static lb_status run_update(lb_bisect_session *session, bool *found, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    lb_sites whole = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    char factor[40], change[160] = "what was there left in its place";
    LB_TRY(lb_trial_stage_begin(session, "update", err));
    snprintf(factor, sizeof factor, "%.17g",
             isfinite(origin->growth) && origin->growth >= 1 ? ldexp(1, -10 - (int)ceil(log2(origin->growth))) : 0);
    lb_status status = list_change(origin, factor, &whole, err);
    if (status == LB_OK) status = lb_trial_run(session, &whole, NULL, "whole", &outcome, err);
    *found = status == LB_OK && outcome == LB_OUTCOME_CURED;
    if (*found) status = lb_stage_cure_set(session, &whole, NULL, 0, err);
    if (*found && status == LB_OK && by_optimizer(origin)) status = narrow(session, factor, change, sizeof change, err);
    if (*found && status == LB_OK) status = blame(session, change, err);
    if (status == LB_OK)
        lb_trial_stage_end(session, *found ? "cured" : "cleared", "%s",
                           by_optimizer(origin) ? (*found ? "by smaller updates" : "fails with smaller updates, too")
                           : *found             ? "without what one op wrote"
                                                : "fails without what that op wrote, too");
    lb_sites_release(&whole);
    return status;
}

lb_status lb_stage_update(lb_bisect_session *session, bool *found, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    const bool any = origin->op != LB_NONE && origin->written;
    return any && (by_optimizer(origin) || isinf(origin->growth) || !writes_parameter(session, origin))
               ? run_update(session, found, err)
               : LB_OK;
}

lb_status lb_stage_loaded(lb_bisect_session *session, bool *found, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    const bool any = origin->op != LB_NONE && origin->written;
    return any && !by_optimizer(origin) && !isinf(origin->growth) && writes_parameter(session, origin)
               ? run_update(session, found, err)
               : LB_OK;
}
