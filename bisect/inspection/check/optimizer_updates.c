/* The update of each parameter beside the rule of the optimizer that its group names: both in f64 from the same
 * gradient, states and options, so that rounding has no part in the difference. Where they differ, one change to the
 * rule is looked for, or two, that explain every number. */
#include "check/fault_place.h"
#include "check/master_copies.h"
#include "check/tensor_updates.h"
#include "moved/optimizer_step.h"
#include "optimizers/rule_changes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Two ways of writing one rule in f64 are no further apart, beside the largest update of the tensor. */
static const double LEAST = 1e-7;

/* ---- one tensor under one rule ---- */

static lb_optimizer_number number_at(const lb_optimizer_tensor *tensor, uint32_t k, double steps)
{
    lb_optimizer_number x = {.before = tensor->before[k], .gradient = tensor->gradient[k], .steps = steps};
    for (uint32_t s = 0; s < LB_RULE_STATES; s++) x.states[s] = tensor->state[s] ? tensor->state[s][k] : 0;
    return x;
}

/* The largest distance beside the largest update that the rule gives, of the first `most` numbers; 0 below what f64
 * leaves of the number itself. */
static double gap_of(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor, double steps, uint32_t most)
{
    double gap = 0, update = 0, size = 0;
    for (uint32_t k = 0; k < tensor->n && k < most; k++) {
        const lb_optimizer_number x = number_at(tensor, k, steps);
        const double asked = lb_optimizer_rule_apply(rule, &x), distance = fabs(tensor->after[k] - asked);
        if (!isfinite(distance)) return INFINITY;
        gap = fmax(gap, distance), update = fmax(update, fabs(asked - x.before)), size = fmax(size, fabs(x.before));
    }
    return gap <= 0x1p-44 * size ? 0 : update > 0 ? gap / update : INFINITY;
}

/* What the update has to be multiplied by, beside decay (`whole`: with it), to come next to what was done. */
static double factor_of(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor, double steps, bool whole)
{
    lb_optimizer_rule still = *rule;
    double products = 0, squares = 0;
    still.times = 0;
    for (uint32_t k = 0; k < tensor->n; k++) {
        const lb_optimizer_number x = number_at(tensor, k, steps);
        const double from = whole ? x.before : lb_optimizer_rule_apply(&still, &x);
        const double asked = lb_optimizer_rule_apply(rule, &x) - from;
        products += (tensor->after[k] - from) * asked, squares += asked * asked;
    }
    return squares > 0 ? products / squares : NAN;
}

/* ---- which changes explain a tensor ---- */

typedef struct explanation {
    bool fits;
    lb_optimizer_rule base; /* the published form that is meant */
    uint32_t n, changes[2]; /* to it; n 0: none */
    double factor;          /* of the update; 1 */
} explanation;

static bool fits(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor, double steps)
{
    return gap_of(rule, tensor, steps, 32) <= LEAST && gap_of(rule, tensor, steps, tensor->n) <= LEAST;
}

/* Changes `a` and `b` of a base; LB_RULE_CHANGES: none. */
static bool try_changes(const lb_optimizer_tensor *tensor, double steps, uint32_t a, uint32_t b,
                        explanation *explanation)
{
    lb_optimizer_rule rule = explanation->base;
    if (a < LB_RULE_CHANGES && !lb_rule_changes_apply(a, &rule, &steps)) return false;
    if (b < LB_RULE_CHANGES && !lb_rule_changes_apply(b, &rule, &steps)) return false;
    if (!fits(&rule, tensor, steps)) return false;
    explanation->fits = true, explanation->factor = 1, explanation->n = (a < LB_RULE_CHANGES) + (b < LB_RULE_CHANGES),
    explanation->changes[0] = a, explanation->changes[1] = b;
    return true;
}

/* With `n` changes to any form. */
static bool explain_by(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor, double steps, uint32_t n,
                       explanation *explanation)
{
    for (uint32_t form = 0; form < 1 << LB_RULE_FORMS; form++) {
        if (!lb_rule_changes_form(rule, form, &explanation->base)) continue;
        for (uint32_t a = n ? 0 : LB_RULE_CHANGES; a < LB_RULE_CHANGES + !n; a++)
            for (uint32_t b = n == 2 ? a + 1 : LB_RULE_CHANGES; b < LB_RULE_CHANGES + (n != 2); b++)
                if (try_changes(tensor, steps, a, b, explanation)) return true;
    }
    return false;
}

/* All of it times one number, as by another learning rate, or all beside decay. Forms differ by a factor of their own
 * there: a number that is a count, or one by it, is what was meant. */
static bool explain_by_factor(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor, double steps,
                              explanation *explained)
{
    for (uint32_t form = 0; form < 1 << LB_RULE_FORMS; form++)
        for (int whole = 1; whole >= 0; whole--) {
            explanation by = {.fits = true};
            if (!lb_rule_changes_form(rule, form, &by.base) ||
                (explained->fits && lb_fault_place_is_count(explained->factor)))
                continue;
            lb_optimizer_rule r = by.base;
            by.factor = factor_of(&r, tensor, steps, whole);
            if (whole)
                r.lr *= by.factor;
            else
                r.times = by.factor;
            if ((!explained->fits || lb_fault_place_is_count(by.factor)) && fits(&r, tensor, steps)) *explained = by;
        }
    return explained->fits;
}

/* No change, one, a factor, two. */
static explanation explain(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor, double steps)
{
    explanation explanation = {.base = *rule};
    if (explain_by(rule, tensor, steps, 0, &explanation) || explain_by(rule, tensor, steps, 1, &explanation))
        return explanation;
    if (!explain_by_factor(rule, tensor, steps, &explanation)) explain_by(rule, tensor, steps, 2, &explanation);
    return explanation;
}

/* ---- a group ---- */

/* The count of the step, from where it was kept; NaN: nowhere. */
static double steps_of(const lb_optimizer_rule *rule, const lb_optimizer_tensor *tensor)
{
    if (!isnan(tensor->steps)) return tensor->steps;
    if (!lb_optimizer_step_had_begun(tensor) && rule->family != LB_FAMILY_ADAGRAD) return 1;
    return lb_optimizer_rule_counts_steps(rule) ? NAN : 2; /* any later one */
}

typedef struct group_judged {
    lb_check_step *step;
    const lb_group *group;
    const char *name;
    lb_optimizer_rule rule;
    uint32_t tensors, plain, narrow; /* narrow: of one dimension, with a weight decay */
    uint32_t mastered;               /* of `plain`: copies of states of more digits */
    uint32_t unseen, uncounted;      /* numbers that were not seen; steps whose count is not known */
    uint32_t unexplained;            /* no change explains them */
    const lb_optimizer_tensor *odd, *unclear;
    uint32_t odd_tensors;
    explanation why;
    double gap; /* of `unclear` */
} group_judged;

static bool is_same(const explanation *a, const explanation *b)
{
    bool same = a->n == b->n && fabs(a->factor - b->factor) <= 1e-6 * fabs(a->factor);
    for (uint32_t i = 0; same && i < a->n; i++) same = a->changes[i] == b->changes[i];
    return same;
}

static void judge_tensor(group_judged *group_judged, const lb_optimizer_tensor *tensor)
{
    const lb_program *program = group_judged->step->run.program;
    group_judged->tensors++;
    group_judged->narrow += group_judged->rule.weight_decay != 0 && program->values[tensor->source].layout.ndim <= 1;
    if (!lb_optimizer_step_saw(tensor)) {
        group_judged->unseen++;
        return;
    }
    const double steps = steps_of(&group_judged->rule, tensor);
    if (isnan(steps)) {
        group_judged->uncounted++;
        return;
    }
    const explanation explanation = explain(&group_judged->rule, tensor, steps);
    if (explanation.fits && !explanation.n && explanation.factor == 1) {
        group_judged->plain++, group_judged->mastered += tensor->mastered;
    } else if (explanation.fits && !tensor->copied) {
        if (!group_judged->odd) group_judged->odd = tensor, group_judged->why = explanation;
        group_judged->odd_tensors += is_same(&explanation, &group_judged->why);
    } else {
        if (!group_judged->unclear)
            group_judged->unclear = tensor, group_judged->gap = gap_of(&group_judged->rule, tensor, steps, tensor->n);
        group_judged->unexplained++;
    }
}

/* torch.optim's own classes do what they say; another class of that name may add something to its rule. */
static bool is_torchs(const lb_program *program, const lb_group *group)
{
    bool found = false;
    for (uint32_t i = 0; i < group->options; i++)
        found |=
            strcmp(lb_program_text(program, program->scalars[group->first_option + i].name), "differentiable") == 0;
    return found;
}

static void say_changes(const explanation *explanation, char *text, size_t size)
{
    *text = '\0';
    if (!explanation->n) snprintf(text, size, "moves %.6g times as far as its rule says", explanation->factor);
    for (uint32_t i = 0; i < explanation->n; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, size - n, "%s%s", i ? ", and " : "", lb_rule_changes_words(explanation->changes[i]));
    }
}

static bool add_finding(const group_judged *group_judged, const lb_optimizer_tensor *tensor, uint32_t tensors,
                        const char *what, double factor, double effect)
{
    lb_check_step *step = group_judged->step;
    const lb_program *program = step->run.program;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_UPDATE, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, tensor->op, LB_NONE, step->path);
    finding->factor = factor, finding->effect = effect;
    snprintf(finding->layer, sizeof finding->layer, "%s", tensor->name);
    snprintf(finding->message, sizeof finding->message,
             "%s group %u %s: %u of its %u parameters are not where %s takes them with the options of the group, "
             "the first (%s) by up to %.2g of its largest update",
             group_judged->name, group_judged->group->index, what, tensors, group_judged->tensors,
             lb_optimizer_family_name(group_judged->rule.family), tensor->name, effect);
    return true;
}

static bool tell_findings(const group_judged *group_judged)
{
    char what[240];
    if (group_judged->odd) {
        say_changes(&group_judged->why, what, sizeof what);
        const double effect = gap_of(&group_judged->why.base, group_judged->odd,
                                     steps_of(&group_judged->rule, group_judged->odd), group_judged->odd->n);
        if (!add_finding(group_judged, group_judged->odd, group_judged->odd_tensors, what,
                         group_judged->why.n ? NAN : group_judged->why.factor, effect))
            return false;
    }
    const bool own = is_torchs(group_judged->step->run.program, group_judged->group) || group_judged->plain;
    if (!group_judged->unclear || group_judged->unclear->copied || group_judged->unclear->n_others || !own) return true;
    return add_finding(group_judged, group_judged->unclear, group_judged->unexplained,
                       "does something else to a parameter than its rule says", NAN, group_judged->gap);
}

static bool tell_group(const group_judged *group_judged, bool *found)
{
    lb_check_report *report = group_judged->step->report;
    const uint32_t before = report->n_findings;
    const long long step = (long long)group_judged->step->run.program->step;
    char what[160], decay[120] = "";
    snprintf(what, sizeof what, "the update of %s group %u in step %lld", group_judged->name,
             group_judged->group->index, step);
    if (!tell_findings(group_judged)) return false;
    *found = report->n_findings > before;
    if (!lb_tensor_updates_leave(report, what, group_judged->unseen, group_judged->uncounted)) return false;
    if (*found || group_judged->unexplained)
        return *found || lb_proof_list_leave(
                             report, what, "%u parameters did not move as %s moves them, %s", group_judged->unexplained,
                             lb_optimizer_family_name(group_judged->rule.family),
                             group_judged->unclear->copied ? "from a copy that is kept elsewhere"
                                                           : "and none of the changes that were tried explains it");
    if (!group_judged->plain) return true;
    if (group_judged->rule.weight_decay != 0)
        snprintf(decay, sizeof decay, ", weight decay %.4g %s", group_judged->rule.weight_decay,
                 group_judged->rule.decay == LB_DECAY_COUPLED ? "through the gradient" : "of the parameter itself");
    if (group_judged->narrow) {
        const size_t n = strlen(decay);
        snprintf(decay + n, sizeof decay - n, ", also on %u of one dimension", group_judged->narrow);
    }
    return lb_proof_list_prove(report, "step %lld: %s group %u moved %u parameters%s as %s does, lr %.4g%s", step,
                               group_judged->name, group_judged->group->index, group_judged->plain,
                               group_judged->mastered ? ", through masters among its states," : "",
                               lb_optimizer_family_name(group_judged->rule.family), group_judged->rule.lr, decay);
}

static bool judge_group(lb_check_step *checked, const lb_optimizer_step *updates, uint32_t group, bool *found)
{
    const lb_program *program = checked->run.program;
    group_judged group_judged = {.step = checked,
                                 .group = &program->groups[group],
                                 .name = lb_program_text(program, program->groups[group].optimizer)};
    const char *why = lb_optimizer_rule_of(program, group_judged.group, &group_judged.rule);
    uint32_t n = 0, narrow = 0, unread = 0;
    for (uint32_t i = 0; i < updates->n; i++) {
        const lb_optimizer_tensor *tensor = &updates->tensors[i];
        if (tensor->group != group_judged.group) continue;
        unread += tensor->read == LB_NONE;
        if (tensor->read == LB_NONE) continue;
        n++, narrow += tensor->narrow;
        if (!why && !tensor->narrow) judge_tensor(&group_judged, tensor);
    }
    *found = false;
    lb_tensor_rule of_tensors;
    const char *why_not = why ? lb_tensor_rule_of(program, group_judged.group, &of_tensors) : NULL;
    char what[160];
    snprintf(what, sizeof what, "the update of %s group %u", group_judged.name, group_judged.group->index);
    if (unread && !lb_proof_list_pass(checked->report, what,
                                      "which gradient it read of %u parameters was not recorded in step %lld", unread,
                                      (long long)program->step))
        return false;
    if (n && why && !why_not && !narrow) return lb_tensor_updates_judge(checked, updates, group, &of_tensors, found);
    if (narrow && !lb_proof_list_pass(checked->report, what,
                                      "states of %u parameters are codes of 8 bits or less, "
                                      "whose scales only its program knows",
                                      narrow))
        return false;
    if (n && why && !narrow)
        return lb_proof_list_pass(checked->report, what, "%s",
                                  lb_tensor_rule_names(program, group_judged.group) ? why_not : why);
    return why || tell_group(&group_judged, found);
}

static void note_op(void *context, const lb_event *event)
{
    lb_optimizer_step_note(context, event);
}

bool lb_check_step_watch_updates(lb_check_step *step)
{
    step->run.note = note_op, step->run.context = &step->updates;
    return lb_optimizer_step_open(&step->run, &step->trained, &step->updates);
}

lb_status lb_check_step_updates(lb_check_step *step, lb_err *err)
{
    bool found = false, said = true;
    for (uint32_t i = 0; i < step->run.program->n_groups && !found && said; i++)
        said = judge_group(step, &step->updates, i, &found);
    said = said && lb_master_copies_judge(step);
    return said && !step->updates.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
}
