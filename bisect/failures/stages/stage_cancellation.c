/* The cancellation stage: a difference whose operands have no digits left for it. See stages.h.
 *
 * Asked before blocks: skipping the block around it hides the failure as well, and says nothing of digits. What cures
 * is f64 in the module that computes the operands, in every module that runs the same line, since the same happens to
 * the next as soon as one is cured. It is a block's fault, not the precision stage's: no type that training could have
 * chosen gives these digits.
 */
#include "stages/stages.h"

#include "trials/cancellation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 512, OUTWARDS = 2 };

/* Modules that run that line of code, and the op in each. */
typedef struct suspects {
    const lb_program *program;
    uint32_t ops[MANY], n; /* site k is the module around ops[k] */
    lb_sites sites;
} suspects;

/* The first op, in any step up to the failing one, that made NaN of what such a difference left, or divided by it. */
static const lb_trace_row *find_first(const lb_bisect_session *session, lb_cancellation *found)
{
    for (uint32_t s = 0; s < lb_stage_steps_until_failure(session); s++) {
        const lb_trace_row *row = lb_trace_find(session->trace, session->failure.rank, session->steps[s]);
        for (uint32_t i = 0; row && i < row->program->n_ops; i++)
            if (lb_trace_broke(row, i)) return lb_cancellation_find(row, i, found) ? row : NULL;
    }
    return NULL;
}

static bool same_line(const lb_program *program, uint32_t a, uint32_t b)
{
    const lb_code_line mine = lb_op_line(program, &program->ops[a]), other = lb_op_line(program, &program->ops[b]);
    return mine.number && mine.number == other.number && !strcmp(mine.file, other.file) &&
           program->ops[a].name == program->ops[b].name;
}

/* The module that is `outwards` levels around that of the op; "" when there is none. */
static const char *module_around(const lb_program *program, uint32_t op, uint32_t outwards)
{
    uint32_t scope = program->ops[op].scope;
    while (outwards-- && scope && scope != LB_NONE) scope = program->scopes[scope].parent;
    return scope && scope != LB_NONE ? lb_program_text(program, program->scopes[scope].path) : "";
}

static lb_status list_modules(const lb_cancellation *cancellation, uint32_t outwards, suspects *list, lb_err *err)
{
    const lb_program *program = list->program;
    lb_site_form form = {LB_SWAP_PRECISION, "f64", "layer=^(?:", ")" LB_AND_BELOW, '|'},
                 outside = {LB_SWAP_PRECISION, "f64", "^/&phase=", "", ','};
    lb_sites_release(&list->sites);
    list->n = 0;
    lb_sites_name(&list->sites, "modules with that difference in f64");
    if (!program->ops[cancellation->op].scope && outwards) return LB_OK;
    if (!program->ops[cancellation->op].scope) { /* of a loss */
        lb_sites_name(&list->sites, "what stands in no module in f64");
        list->ops[list->n++] = cancellation->op;
        return lb_sites_add(&list->sites, &outside, lb_phase_name((lb_phase)program->ops[cancellation->op].phase), err);
    }
    for (uint32_t i = 0; i < program->n_ops && list->n < MANY; i++) {
        const char *module = module_around(program, i, outwards);
        char pattern[320];
        bool known = !*module || (i != cancellation->op && !same_line(program, i, cancellation->op));
        for (uint32_t k = 0; k < list->n && !known; k++)
            known = !strcmp(module_around(program, list->ops[k], outwards), module);
        if (known) continue;
        list->ops[list->n++] = i;
        lb_sites_escape(module, pattern, sizeof pattern);
        LB_TRY(lb_sites_add(&list->sites, &form, pattern, err));
    }
    return LB_OK;
}

static lb_status blame(lb_bisect_session *session, const suspects *list, const lb_cancellation *cancellation,
                       const uint32_t *found, uint32_t n, lb_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        lb_culprit *culprit;
        LB_TRY(lb_stage_culprit_add(session, LB_AXIS_BLOCK,
                                    (lb_stage_place){session->failure.rank, list->program->step, list->ops[found[i]]},
                                    &culprit, err));
        LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
        snprintf(culprit->why, sizeof culprit->why,
                 "Its operands cancel: they are as large as %.3g, where %s goes in steps of %.3g, and what it leaves, "
                 "%.3g to %.3g, is their rounding. With %s in f64, %s, the window ends without the failure.",
                 cancellation->operands, lb_dtype_name(cancellation->dtype), cancellation->step, cancellation->least,
                 cancellation->most,
                 list->program->ops[cancellation->op].scope ? "their module" : "what stands in no module",
                 lb_stage_besides(session));
    }
    return LB_OK;
}

lb_status lb_stage_cancellation(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_cancellation cancellation;
    const lb_trace_row *row = find_first(session, &cancellation);
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    uint32_t *needed = NULL, n = 0;
    if (!row) return LB_OK;
    suspects *list = calloc(1, sizeof *list);
    if (!list) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    list->program = row->program;
    lb_status status = lb_trial_stage_begin(session, "cancellation", err);
    for (uint32_t outwards = 0; outwards < OUTWARDS && status == LB_OK && outcome != LB_OUTCOME_CURED; outwards++) {
        status = list_modules(&cancellation, outwards, list, err);
        if (status == LB_OK && !list->n) break;
        if (status == LB_OK) status = lb_trial_run(session, &list->sites, NULL, "whole", &outcome, err);
    }
    *found = status == LB_OK && outcome == LB_OUTCOME_CURED;
    if (*found) status = lb_trial_narrow(session, &list->sites, true, &needed, &n, err);
    if (*found && status == LB_OK) status = lb_stage_cure_set(session, &list->sites, needed, n, err);
    if (*found && status == LB_OK) status = blame(session, list, &cancellation, needed, n, err);
    if (status == LB_OK)
        lb_trial_stage_end(session, *found ? "cured" : "cleared",
                           *found ? "with the digits that a difference lacks"
                                  : "fails with a difference of nearly equal numbers in f64, too");
    lb_sites_release(&list->sites);
    free(list);
    free(needed);
    return status;
}
