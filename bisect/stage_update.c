/* The update stage, when nothing that a program computes is to blame: the optimizer does what it was told, and was told too much.
 * See stages.h.
 *
 * Asked only where an optimizer's own write is what made a parameter much larger (origin.h). The change makes updates so much
 * smaller that this parameter changes by a thousandth of itself at most: direction and moments stay as they are. A learning
 * rate is given from outside, as data are: the axis is the source's, the place the op that wrote.
 */
#include "stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lb_group *group_of(const lb_program *p, uint32_t row, const lb_group_param **param)
{
    const lb_op *op = &p->ops[row];
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t i = 0; i < p->groups[g].params; i++)
            for (uint32_t w = 0; w < op->written; w++) {
                const uint32_t v = lb_op_written(p, op)[w];
                *param = &p->group_params[p->groups[g].first_param + i];
                if (v != LB_NONE && p->values[v].storage == (*param)->storage) return &p->groups[g];
            }
    return NULL;
}

static double learning_rate(const lb_program *p, const lb_group *group)
{
    for (uint32_t i = 0; i < group->options; i++) {
        const lb_scalar *s = &p->scalars[group->first_option + i];
        if (!strncmp(lb_program_text(p, s->name), "lr", 2)) return s->number;
    }
    return NAN;
}

static lb_status blame(lb_inquiry *q, int64_t step, const char *steps, const char *factor, lb_err *err)
{
    const lb_origin *origin = &q->out->origin;
    const lb_program *p = lb_inquiry_program(q, origin->rank, origin->step);
    const lb_group_param *param;
    const lb_group *group = group_of(p, origin->op, &param);
    const bool here = origin->step == step && group;
    char rate[60] = "";
    lb_culprit *c;
    LB_TRY(lb_culprit_add(q, LB_AXIS_SOURCE, origin->rank, step, here ? origin->op : LB_NONE, &c, err));
    LB_TRY(lb_culprit_all_ranks(q, c, err));
    c->phase = LB_PHASE_OPTIMIZER;
    const char *name = group ? lb_program_text(p, param->name) : "", *dot = strrchr(name, '.');
    if (dot) snprintf(c->layer, sizeof c->layer, "%.*s", (int)(dot - name), name);
    const double lr = group ? learning_rate(p, group) : NAN;
    if (isfinite(lr)) snprintf(rate, sizeof rate, ", at a learning rate of %.3g", lr);
    snprintf(
        c->why, sizeof c->why,
        "The update is too large: %s makes %s %.3g times as large%s. With the updates of step %s made %.2g "
        "times as large, "
        "%s, the window ends without the failure; no change of a block, a precision or the data does that.",
        group ? lb_program_text(p, group->optimizer) : "the optimizer", *name ? name : "a parameter",
        origin->growth, rate, steps, atof(factor), lb_besides(q));
    return LB_OK;
}

static lb_status narrow(lb_inquiry *q, const char *factor, lb_err *err)
{
    lb_sites steps = {0};
    lb_site_form form = {LB_SWAP_UPDATE, factor, "step=", "", ','};
    uint32_t *found = NULL, n = 0;
    char list[256] = "";
    lb_status status = lb_sites_add_steps(q, &form, q->n_steps, &steps, err);
    lb_sites_name(&steps, "steps with smaller updates");
    if (status == LB_OK) status = lb_narrow(q, &steps, true, &found, &n, err);
    if (status == LB_OK && n) status = lb_cure_set(q, &steps, found, n, err);
    if (n) lb_step_list(q, found, n, list, sizeof list);
    if (status == LB_OK) status = blame(q, n ? q->steps[found[0]] : q->out->origin.step, list, factor, err);
    lb_sites_release(&steps);
    free(found);
    return status;
}

lb_status lb_stage_update(lb_inquiry *q, bool *found, lb_err *err)
{
    const lb_origin *origin = &q->out->origin;
    lb_sites whole = {0};
    lb_outcome outcome = LB_OUTCOME_SAME;
    char factor[40];
    if (origin->op == LB_NONE || origin->phase != LB_PHASE_OPTIMIZER || !(origin->growth > 1)) return LB_OK;
    LB_TRY(lb_stage_begin(q, "update", err));
    snprintf(factor, sizeof factor, "%.17g",
             isfinite(origin->growth) ? ldexp(1, -10 - (int)ceil(log2(origin->growth))) : 0);
    lb_status status = lb_sites_add_all(&whole, LB_SWAP_UPDATE, factor, err);
    lb_sites_name(&whole, "updates %.2g times as large", atof(factor));
    if (status == LB_OK) status = lb_try(q, &whole, NULL, "whole", &outcome, err);
    *found = status == LB_OK && outcome == LB_OUTCOME_CURED;
    if (*found) status = lb_cure_set(q, &whole, NULL, 0, err);
    if (*found && status == LB_OK) status = narrow(q, factor, err);
    if (status == LB_OK)
        lb_stage_end(q, *found ? "cured" : "cleared",
                     *found ? "by smaller updates" : "fails with smaller updates, too");
    lb_sites_release(&whole);
    return status;
}
