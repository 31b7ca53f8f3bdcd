/* Rules of whole tensors against what was done: see tensor_updates.h. Every published form is tried; where none fits,
 * no decay, another norm to clip by, and one factor on all that is taken beside decay. */
#include "check/tensor_updates.h"

#include "check/fault_place.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Two ways of writing one rule in f64 are no further apart, beside the largest update of the tensor. */
static const double LEAST = 1e-7;

/* What was done in the place of the rule. */
typedef struct change {
    bool undecayed;   /* without the decay that its group says */
    lb_clip_way clip; /* by another norm; below LB_CLIP_FORMS: no */
    double factor;    /* of all that is taken beside decay; 1 */
} change;

typedef struct judged {
    lb_check_step *step;
    const lb_group *group;
    const char *name;
    const lb_tensor_rule *rule;
    uint32_t form; /* that fitted last */
    uint32_t tensors, plain, mastered, large, unseen, uncounted, unexplained;
    const lb_optimizer_tensor *odd;
    uint32_t odd_tensors, others; /* those that are as `odd`, and all that a change explains */
    change why;                   /* of `odd` */
    double gap;                   /* and how far it is from the rule */
    double norm, group_norm;      /* of the gradients that the optimizer read, and that the group did; NaN: not known */
    int64_t read;                 /* how many numbers they are */
    double *room;                 /* of one tensor */
    bool failed;
} judged;

static lb_tensor_numbers numbers_of(const judged *judged, const lb_optimizer_tensor *tensor)
{
    const lb_layout *shape = &judged->step->run.program->values[tensor->source].layout;
    lb_tensor_numbers numbers = {.shape = shape, .before = tensor->before, .gradient = tensor->gradient};
    for (uint32_t k = 0; k < LB_TENSOR_STATES; k++) numbers.states[k] = tensor->state[k];
    numbers.norm = judged->norm, numbers.group_norm = judged->group_norm;
    numbers.steps = !isnan(tensor->steps) ? tensor->steps : lb_optimizer_step_had_begun(tensor) ? NAN : 1;
    return numbers;
}

/* The largest distance beside the largest update that was asked for. INFINITY: there is no such form. */
static double gap_of(judged *judged, const lb_tensor_rule *rule, uint32_t form, const lb_optimizer_tensor *tensor)
{
    const lb_tensor_numbers numbers = numbers_of(judged, tensor);
    const lb_status status = lb_tensor_rule_apply(rule, form, &numbers, judged->room);
    double gap = 0, update = 0, size = 0;
    judged->failed |= status == LB_ERR_NOMEM;
    if (status != LB_OK) return INFINITY;
    for (uint32_t k = 0; k < tensor->n; k++) {
        const double distance = fabs(tensor->after[k] - judged->room[k]);
        if (!isfinite(distance)) return INFINITY;
        gap = fmax(gap, distance), update = fmax(update, fabs(judged->room[k] - tensor->before[k]));
        size = fmax(size, fabs(tensor->before[k]));
    }
    return gap <= 0x1p-44 * size ? 0 : update > 0 ? gap / update : INFINITY;
}

/* What the update has to be multiplied by, beside decay, to come next to what was done. */
static double factor_of(judged *judged, const lb_tensor_rule *rule, uint32_t form, const lb_optimizer_tensor *tensor)
{
    lb_tensor_rule still = *rule;
    double products = 0, squares = 0, *kept = malloc(((size_t)tensor->n + 1) * sizeof *kept);
    const lb_tensor_numbers numbers = numbers_of(judged, tensor);
    still.times = 0;
    judged->failed |= !kept;
    if (kept && lb_tensor_rule_apply(&still, form, &numbers, kept) == LB_OK &&
        lb_tensor_rule_apply(rule, form, &numbers, judged->room) == LB_OK)
        for (uint32_t k = 0; k < tensor->n; k++) {
            const double asked = judged->room[k] - kept[k];
            products += (tensor->after[k] - kept[k]) * asked, squares += asked * asked;
        }
    free(kept);
    return squares > 0 ? products / squares : NAN;
}

/* What the divisor of all gradients has to be multiplied by for the same, as far as it is near 1. */
static double divisor_of(judged *judged, const lb_tensor_rule *rule, uint32_t form, const lb_optimizer_tensor *tensor)
{
    const double nearby = 1e-4;
    lb_tensor_rule larger = *rule;
    double products = 0, squares = 0, *moved = malloc(((size_t)tensor->n + 1) * sizeof *moved);
    const lb_tensor_numbers numbers = numbers_of(judged, tensor);
    larger.divides = 1 + nearby;
    judged->failed |= !moved;
    if (moved && lb_tensor_rule_apply(&larger, form, &numbers, moved) == LB_OK &&
        lb_tensor_rule_apply(rule, form, &numbers, judged->room) == LB_OK)
        for (uint32_t k = 0; k < tensor->n; k++) {
            const double slope = (moved[k] - judged->room[k]) / nearby;
            products += (tensor->after[k] - judged->room[k]) * slope, squares += slope * slope;
        }
    free(moved);
    return squares > 0 ? 1 + products / squares : 1;
}

static double reading_of(const judged *judged, const lb_optimizer_tensor *tensor)
{
    const lb_dtype dtype = judged->step->run.program->values[tensor->source].dtype;
    return lb_tensor_rule_reading(judged->rule, dtype,
                                  lb_tensor_rule_clips(judged->rule) ? judged->read : tensor->numel);
}

static bool fits(judged *judged, const lb_tensor_rule *rule, uint32_t form, const lb_optimizer_tensor *tensor)
{
    const double reading = reading_of(judged, tensor);
    lb_tensor_rule r = *rule;
    if (gap_of(judged, rule, form, tensor) <= LEAST) return true;
    if (!(reading > 0)) return false;
    double *read = lb_tensor_rule_clips(rule) ? &r.divides : &r.times;
    *read = (read == &r.divides ? divisor_of : factor_of)(judged, rule, form, tensor);
    return fabs(*read - 1) <= reading && gap_of(judged, &r, form, tensor) <= LEAST;
}

/* The form that fits, the last one first; LB_TENSOR_FORMS: none. */
static uint32_t fitting_form(judged *judged, const lb_tensor_rule *rule, const lb_optimizer_tensor *tensor)
{
    if (fits(judged, rule, judged->form, tensor)) return judged->form;
    for (uint32_t form = 0; form < LB_TENSOR_FORMS && !judged->failed; form++)
        if (form != judged->form && fits(judged, rule, form, tensor)) return form;
    return LB_TENSOR_FORMS;
}

static bool explain(judged *judged, const lb_optimizer_tensor *tensor, change *why)
{
    lb_tensor_rule rule = *judged->rule;
    *why = (change){.undecayed = rule.weight_decay != 0, .factor = 1};
    rule.weight_decay = 0;
    if (why->undecayed && fitting_form(judged, &rule, tensor) < LB_TENSOR_FORMS) return true;
    why->undecayed = false, rule = *judged->rule;
    for (why->clip = LB_CLIP_FORMS; lb_tensor_rule_clips(&rule) && why->clip < LB_CLIP_WAYS; why->clip++) {
        rule.clips_by = why->clip;
        if (fitting_form(judged, &rule, tensor) < LB_TENSOR_FORMS) return true;
    }
    why->clip = LB_CLIP_ALL;
    for (uint32_t form = 0; form < LB_TENSOR_FORMS && !judged->failed; form++) {
        why->factor = factor_of(judged, judged->rule, form, tensor), rule = *judged->rule, rule.times = why->factor;
        if (isfinite(why->factor) && fits(judged, &rule, form, tensor)) return true;
    }
    return false;
}

static bool is_same(const judged *judged, const lb_optimizer_tensor *tensor, const change *why)
{
    const double apart = 1e-6 + reading_of(judged, tensor);
    return why->undecayed == judged->why.undecayed && why->clip == judged->why.clip &&
           fabs(why->factor - judged->why.factor) <= apart * fabs(why->factor);
}

static void judge_tensor(judged *judged, const lb_optimizer_tensor *tensor)
{
    const bool saw = lb_optimizer_step_saw(tensor) && isfinite(judged->norm);
    const bool counted = !isnan(numbers_of(judged, tensor).steps) || !lb_tensor_rule_counts_steps(judged->rule);
    judged->tensors++;
    judged->large += !tensor->whole, judged->unseen += tensor->whole && !saw;
    judged->uncounted += tensor->whole && saw && !counted;
    if (!tensor->whole || !saw || !counted) return;
    judged->room = malloc(((size_t)tensor->n + 1) * sizeof *judged->room);
    judged->failed |= !judged->room;
    const uint32_t form = judged->room ? fitting_form(judged, judged->rule, tensor) : LB_TENSOR_FORMS;
    change why;
    if (form < LB_TENSOR_FORMS) {
        judged->plain++, judged->mastered += tensor->mastered, judged->form = form;
    } else if (judged->room && judged->unexplained < 2 && !tensor->copied && explain(judged, tensor, &why)) {
        if (!judged->odd)
            judged->odd = tensor, judged->why = why, judged->gap = gap_of(judged, judged->rule, judged->form, tensor);
        judged->odd_tensors += is_same(judged, tensor, &why), judged->others++;
    } else {
        judged->unexplained++;
    }
    free(judged->room);
    judged->room = NULL;
}

/* Another ratio or size of a tensor's update is another way of meaning the same rule, and gives each tensor a factor of
 * its own: only a count, or what all of them have in common, is a fault. */
static void drop_factor(judged *judged)
{
    if (!judged->odd || judged->why.undecayed || judged->why.clip >= LB_CLIP_FORMS) return;
    if (lb_fault_place_is_count(judged->why.factor) ||
        (!judged->plain && !judged->unexplained && judged->odd_tensors == judged->others))
        return;
    judged->unexplained += judged->others, judged->odd = NULL;
}

static void say_change(const judged *judged, char *text, size_t size)
{
    if (judged->why.undecayed)
        snprintf(text, size, "leaves weight decay out");
    else if (judged->why.clip >= LB_CLIP_FORMS)
        snprintf(text, size, "%s (%.4g of all, at most %.4g)", lb_tensor_clip_words(judged->why.clip), judged->norm,
                 judged->rule->max_norm);
    else
        snprintf(text, size, "moves %.6g times as far as its rule says", judged->why.factor);
}

static bool tell_finding(const judged *judged)
{
    const lb_program *program = judged->step->run.program;
    lb_check_finding *finding = lb_proof_list_add(judged->step->report, LB_CHECK_UPDATE, program);
    char what[200];
    if (!finding) return false;
    lb_proof_list_place(finding, program, judged->odd->op, LB_NONE, judged->step->path);
    finding->factor = judged->why.undecayed || judged->why.clip >= LB_CLIP_FORMS ? NAN : judged->why.factor,
    finding->effect = judged->gap;
    snprintf(finding->layer, sizeof finding->layer, "%s", judged->odd->name);
    say_change(judged, what, sizeof what);
    snprintf(finding->message, sizeof finding->message,
             "%s group %u %s: %u of its %u parameters are not where %s takes them with the options of the group, "
             "the first (%s) by up to %.2g of its largest update",
             judged->name, judged->group->index, what, judged->odd_tensors, judged->tensors,
             lb_tensor_family_name(judged->rule->family), judged->odd->name, judged->gap);
    return true;
}

bool lb_tensor_updates_leave(lb_check_report *report, const char *what, uint32_t unseen, uint32_t uncounted)
{
    if (unseen && !lb_proof_list_leave(report, what, "of %u parameters not all numbers are known exactly", unseen))
        return false;
    return !uncounted ||
           lb_proof_list_leave(report, what, "%u parameters: the count of its steps was not recorded", uncounted);
}

static bool tell_left(const judged *judged, const char *what)
{
    lb_check_report *report = judged->step->report;
    const char *family = lb_tensor_family_name(judged->rule->family);
    if (judged->large &&
        !lb_proof_list_pass(report, what,
                            "%u parameters are left out: whole tensors are tried up to 2^22 numbers in all",
                            judged->large))
        return false;
    if (!lb_tensor_updates_leave(report, what, judged->unseen, judged->uncounted)) return false;
    return !judged->unexplained || judged->odd ||
           lb_proof_list_leave(report, what, "%u parameters did not move as %s moves them, in any of its forms",
                               judged->unexplained, family);
}

bool lb_tensor_updates_judge(lb_check_step *step, const lb_optimizer_step *updates, uint32_t group,
                             const lb_tensor_rule *rule, bool *found)
{
    const lb_program *program = step->run.program;
    judged judged = {.step = step, .group = &program->groups[group], .rule = rule};
    judged.name = lb_program_text(program, judged.group->optimizer);
    if (lb_tensor_rule_clips(rule)) {
        judged.group_norm = lb_optimizer_step_norm(updates, judged.group, false, &judged.read);
        judged.norm = lb_optimizer_step_norm(updates, judged.group, true, &judged.read);
    }
    for (uint32_t i = 0; i < updates->n && !judged.failed; i++)
        if (updates->tensors[i].group == judged.group && updates->tensors[i].read != LB_NONE)
            judge_tensor(&judged, &updates->tensors[i]);
    char what[160];
    snprintf(what, sizeof what, "the update of %s group %u in step %lld", judged.name, judged.group->index,
             (long long)program->step);
    drop_factor(&judged);
    *found = judged.odd != NULL;
    if (judged.failed || (judged.odd && !tell_finding(&judged)) || !tell_left(&judged, what)) return false;
    if (!judged.plain || judged.odd || judged.unexplained) return true;
    const bool alone = judged.form / 16 == LB_CLIP_GROUP;
    const double norm = alone ? judged.group_norm : judged.norm;
    char clip[120] = "";
    if (lb_tensor_rule_clips(rule))
        snprintf(clip, sizeof clip, ", by gradients whose norm %.4g%s %s %.4g", norm,
                 alone ? ", of this group alone," : "", norm > rule->max_norm ? "it clips to" : "is below its bound",
                 rule->max_norm);
    return lb_proof_list_prove(
        step->report, "step %lld: %s group %u moved %u parameters%s as %s does%s%s%s", (long long)program->step,
        judged.name, judged.group->index, judged.plain, judged.mastered ? ", through masters among its states," : "",
        lb_tensor_family_name(rule->family), clip, rule->weight_decay != 0 ? ", with weight decay" : "",
        judged.large ? ", the others not tried" : "");
}
