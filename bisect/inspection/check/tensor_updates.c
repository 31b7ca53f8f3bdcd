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

static lb_tensor_numbers numbers_of(const judged *g, const lb_optimizer_tensor *t)
{
    const lb_layout *shape = &g->step->run.program->values[t->source].layout;
    lb_tensor_numbers x = {.shape = shape, .before = t->before, .gradient = t->gradient};
    for (uint32_t k = 0; k < LB_TENSOR_STATES; k++) x.states[k] = t->state[k];
    x.norm = g->norm, x.group_norm = g->group_norm;
    x.steps = !isnan(t->steps) ? t->steps : lb_optimizer_step_had_begun(t) ? NAN : 1;
    return x;
}

/* The largest distance beside the largest update that was asked for. INFINITY: there is no such form. */
static double gap_of(judged *g, const lb_tensor_rule *r, uint32_t form, const lb_optimizer_tensor *t)
{
    const lb_tensor_numbers x = numbers_of(g, t);
    const lb_status status = lb_tensor_rule_apply(r, form, &x, g->room);
    double gap = 0, update = 0, size = 0;
    g->failed |= status == LB_ERR_NOMEM;
    if (status != LB_OK) return INFINITY;
    for (uint32_t k = 0; k < t->n; k++) {
        const double distance = fabs(t->after[k] - g->room[k]);
        if (!isfinite(distance)) return INFINITY;
        gap = fmax(gap, distance), update = fmax(update, fabs(g->room[k] - t->before[k]));
        size = fmax(size, fabs(t->before[k]));
    }
    return gap <= 0x1p-44 * size ? 0 : update > 0 ? gap / update : INFINITY;
}

/* What the update has to be multiplied by, beside decay, to come next to what was done. */
static double factor_of(judged *g, const lb_tensor_rule *r, uint32_t form, const lb_optimizer_tensor *t)
{
    lb_tensor_rule still = *r;
    double products = 0, squares = 0, *kept = malloc(((size_t)t->n + 1) * sizeof *kept);
    const lb_tensor_numbers x = numbers_of(g, t);
    still.times = 0;
    g->failed |= !kept;
    if (kept && lb_tensor_rule_apply(&still, form, &x, kept) == LB_OK &&
        lb_tensor_rule_apply(r, form, &x, g->room) == LB_OK)
        for (uint32_t k = 0; k < t->n; k++) {
            const double asked = g->room[k] - kept[k];
            products += (t->after[k] - kept[k]) * asked, squares += asked * asked;
        }
    free(kept);
    return squares > 0 ? products / squares : NAN;
}

/* What the divisor of all gradients has to be multiplied by for the same, as far as it is near 1. */
static double divisor_of(judged *g, const lb_tensor_rule *r, uint32_t form, const lb_optimizer_tensor *t)
{
    const double nearby = 1e-4;
    lb_tensor_rule larger = *r;
    double products = 0, squares = 0, *moved = malloc(((size_t)t->n + 1) * sizeof *moved);
    const lb_tensor_numbers x = numbers_of(g, t);
    larger.divides = 1 + nearby;
    g->failed |= !moved;
    if (moved && lb_tensor_rule_apply(&larger, form, &x, moved) == LB_OK &&
        lb_tensor_rule_apply(r, form, &x, g->room) == LB_OK)
        for (uint32_t k = 0; k < t->n; k++) {
            const double slope = (moved[k] - g->room[k]) / nearby;
            products += (t->after[k] - g->room[k]) * slope, squares += slope * slope;
        }
    free(moved);
    return squares > 0 ? 1 + products / squares : 1;
}

static double reading_of(const judged *g, const lb_optimizer_tensor *t)
{
    const lb_dtype dtype = g->step->run.program->values[t->source].dtype;
    return lb_tensor_rule_reading(g->rule, dtype, lb_tensor_rule_clips(g->rule) ? g->read : t->numel);
}

static bool fits(judged *g, const lb_tensor_rule *rule, uint32_t form, const lb_optimizer_tensor *t)
{
    const double reading = reading_of(g, t);
    lb_tensor_rule r = *rule;
    if (gap_of(g, rule, form, t) <= LEAST) return true;
    if (!(reading > 0)) return false;
    double *read = lb_tensor_rule_clips(rule) ? &r.divides : &r.times;
    *read = (read == &r.divides ? divisor_of : factor_of)(g, rule, form, t);
    return fabs(*read - 1) <= reading && gap_of(g, &r, form, t) <= LEAST;
}

/* The form that fits, the last one first; LB_TENSOR_FORMS: none. */
static uint32_t fitting_form(judged *g, const lb_tensor_rule *r, const lb_optimizer_tensor *t)
{
    if (fits(g, r, g->form, t)) return g->form;
    for (uint32_t form = 0; form < LB_TENSOR_FORMS && !g->failed; form++)
        if (form != g->form && fits(g, r, form, t)) return form;
    return LB_TENSOR_FORMS;
}

static bool explain(judged *g, const lb_optimizer_tensor *t, change *why)
{
    lb_tensor_rule r = *g->rule;
    *why = (change){.undecayed = r.weight_decay != 0, .factor = 1};
    r.weight_decay = 0;
    if (why->undecayed && fitting_form(g, &r, t) < LB_TENSOR_FORMS) return true;
    why->undecayed = false, r = *g->rule;
    for (why->clip = LB_CLIP_FORMS; lb_tensor_rule_clips(&r) && why->clip < LB_CLIP_WAYS; why->clip++) {
        r.clips_by = why->clip;
        if (fitting_form(g, &r, t) < LB_TENSOR_FORMS) return true;
    }
    why->clip = LB_CLIP_ALL;
    for (uint32_t form = 0; form < LB_TENSOR_FORMS && !g->failed; form++) {
        why->factor = factor_of(g, g->rule, form, t), r = *g->rule, r.times = why->factor;
        if (isfinite(why->factor) && fits(g, &r, form, t)) return true;
    }
    return false;
}

static bool is_same(const judged *g, const lb_optimizer_tensor *t, const change *why)
{
    const double apart = 1e-6 + reading_of(g, t);
    return why->undecayed == g->why.undecayed && why->clip == g->why.clip &&
           fabs(why->factor - g->why.factor) <= apart * fabs(why->factor);
}

static void judge_tensor(judged *g, const lb_optimizer_tensor *t)
{
    const bool saw = lb_optimizer_step_saw(t) && isfinite(g->norm);
    const bool counted = !isnan(numbers_of(g, t).steps) || !lb_tensor_rule_counts_steps(g->rule);
    g->tensors++;
    g->large += !t->whole, g->unseen += t->whole && !saw;
    g->uncounted += t->whole && saw && !counted;
    if (!t->whole || !saw || !counted) return;
    g->room = malloc(((size_t)t->n + 1) * sizeof *g->room);
    g->failed |= !g->room;
    const uint32_t form = g->room ? fitting_form(g, g->rule, t) : LB_TENSOR_FORMS;
    change why;
    if (form < LB_TENSOR_FORMS) {
        g->plain++, g->mastered += t->mastered, g->form = form;
    } else if (g->room && g->unexplained < 2 && !t->copied && explain(g, t, &why)) {
        if (!g->odd) g->odd = t, g->why = why, g->gap = gap_of(g, g->rule, g->form, t);
        g->odd_tensors += is_same(g, t, &why), g->others++;
    } else {
        g->unexplained++;
    }
    free(g->room);
    g->room = NULL;
}

/* Another ratio or size of a tensor's update is another way of meaning the same rule, and gives each tensor a factor of
 * its own: only a count, or what all of them have in common, is a fault. */
static void drop_factor(judged *g)
{
    if (!g->odd || g->why.undecayed || g->why.clip >= LB_CLIP_FORMS) return;
    if (lb_fault_place_is_count(g->why.factor) || (!g->plain && !g->unexplained && g->odd_tensors == g->others)) return;
    g->unexplained += g->others, g->odd = NULL;
}

static void say_change(const judged *g, char *text, size_t size)
{
    if (g->why.undecayed)
        snprintf(text, size, "leaves weight decay out");
    else if (g->why.clip >= LB_CLIP_FORMS)
        snprintf(text, size, "%s (%.4g of all, at most %.4g)", lb_tensor_clip_words(g->why.clip), g->norm,
                 g->rule->max_norm);
    else
        snprintf(text, size, "moves %.6g times as far as its rule says", g->why.factor);
}

static bool tell_finding(const judged *g)
{
    const lb_program *p = g->step->run.program;
    lb_check_finding *f = lb_proof_list_add(g->step->report, LB_CHECK_UPDATE, p);
    char what[200];
    if (!f) return false;
    lb_proof_list_place(f, p, g->odd->op, LB_NONE, g->step->path);
    f->factor = g->why.undecayed || g->why.clip >= LB_CLIP_FORMS ? NAN : g->why.factor, f->effect = g->gap;
    snprintf(f->layer, sizeof f->layer, "%s", g->odd->name);
    say_change(g, what, sizeof what);
    snprintf(f->message, sizeof f->message,
             "%s group %u %s: %u of its %u parameters are not where %s takes them with the options of the group, the "
             "first (%s) by up to %.2g of its largest update",
             g->name, g->group->index, what, g->odd_tensors, g->tensors, lb_tensor_family_name(g->rule->family),
             g->odd->name, g->gap);
    return true;
}

bool lb_tensor_updates_leave(lb_check_report *report, const char *what, uint32_t unseen, uint32_t uncounted)
{
    if (unseen && !lb_proof_list_leave(report, what, "of %u parameters not all numbers are known exactly", unseen))
        return false;
    return !uncounted ||
           lb_proof_list_leave(report, what, "%u parameters: the count of its steps was not recorded", uncounted);
}

static bool tell_left(const judged *g, const char *what)
{
    lb_check_report *report = g->step->report;
    const char *family = lb_tensor_family_name(g->rule->family);
    if (g->large &&
        !lb_proof_list_pass(report, what,
                            "%u parameters are left out: whole tensors are tried up to 2^22 numbers in all", g->large))
        return false;
    if (!lb_tensor_updates_leave(report, what, g->unseen, g->uncounted)) return false;
    return !g->unexplained || g->odd ||
           lb_proof_list_leave(report, what, "%u parameters moved otherwise than %s does, in any of its forms",
                               g->unexplained, family);
}

bool lb_tensor_updates_judge(lb_check_step *c, const lb_optimizer_step *s, uint32_t group, const lb_tensor_rule *rule,
                             bool *found)
{
    const lb_program *p = c->run.program;
    judged g = {.step = c, .group = &p->groups[group], .rule = rule};
    g.name = lb_program_text(p, g.group->optimizer);
    if (lb_tensor_rule_clips(rule)) {
        g.group_norm = lb_optimizer_step_norm(s, g.group, false, &g.read);
        g.norm = lb_optimizer_step_norm(s, g.group, true, &g.read);
    }
    for (uint32_t i = 0; i < s->n && !g.failed; i++)
        if (s->tensors[i].group == g.group && s->tensors[i].read != LB_NONE) judge_tensor(&g, &s->tensors[i]);
    char what[160];
    snprintf(what, sizeof what, "the update of %s group %u in step %lld", g.name, g.group->index, (long long)p->step);
    drop_factor(&g);
    *found = g.odd != NULL;
    if (g.failed || (g.odd && !tell_finding(&g)) || !tell_left(&g, what)) return false;
    if (!g.plain || g.odd || g.unexplained) return true;
    const bool alone = g.form / 16 == LB_CLIP_GROUP;
    const double norm = alone ? g.group_norm : g.norm;
    char clip[120] = "";
    if (lb_tensor_rule_clips(rule))
        snprintf(clip, sizeof clip, ", by gradients whose norm %.4g%s %s %.4g", norm,
                 alone ? ", of this group alone," : "", norm > rule->max_norm ? "it clips to" : "is below its bound",
                 rule->max_norm);
    return lb_proof_list_prove(
        c->report, "step %lld: %s group %u moved %u parameters%s as %s does%s%s%s", (long long)p->step, g.name,
        g.group->index, g.plain, g.mastered ? ", through masters among its states," : "",
        lb_tensor_family_name(rule->family), clip, rule->weight_decay != 0 ? ", with weight decay" : "",
        g.large ? ", the others not tried" : "");
}
