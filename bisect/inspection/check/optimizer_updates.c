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

static lb_optimizer_number number_at(const lb_optimizer_tensor *t, uint32_t k, double steps)
{
    lb_optimizer_number x = {.before = t->before[k], .gradient = t->gradient[k], .steps = steps};
    for (uint32_t s = 0; s < LB_RULE_STATES; s++) x.states[s] = t->state[s] ? t->state[s][k] : 0;
    return x;
}

/* The largest distance beside the largest update that the rule gives, of the first `most` numbers; 0 below what f64
 * leaves of the number itself. */
static double gap_of(const lb_optimizer_rule *r, const lb_optimizer_tensor *t, double steps, uint32_t most)
{
    double gap = 0, update = 0, size = 0;
    for (uint32_t k = 0; k < t->n && k < most; k++) {
        const lb_optimizer_number x = number_at(t, k, steps);
        const double asked = lb_optimizer_rule_apply(r, &x), distance = fabs(t->after[k] - asked);
        if (!isfinite(distance)) return INFINITY;
        gap = fmax(gap, distance), update = fmax(update, fabs(asked - x.before)), size = fmax(size, fabs(x.before));
    }
    return gap <= 0x1p-44 * size ? 0 : update > 0 ? gap / update : INFINITY;
}

/* What the update has to be multiplied by, beside decay (`whole`: with it), to come next to what was done. */
static double factor_of(const lb_optimizer_rule *rule, const lb_optimizer_tensor *t, double steps, bool whole)
{
    lb_optimizer_rule still = *rule;
    double products = 0, squares = 0;
    still.times = 0;
    for (uint32_t k = 0; k < t->n; k++) {
        const lb_optimizer_number x = number_at(t, k, steps);
        const double from = whole ? x.before : lb_optimizer_rule_apply(&still, &x);
        const double asked = lb_optimizer_rule_apply(rule, &x) - from;
        products += (t->after[k] - from) * asked, squares += asked * asked;
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

static bool fits(const lb_optimizer_rule *r, const lb_optimizer_tensor *t, double steps)
{
    return gap_of(r, t, steps, 32) <= LEAST && gap_of(r, t, steps, t->n) <= LEAST;
}

/* Changes `a` and `b` of a base; LB_RULE_CHANGES: none. */
static bool try_changes(const lb_optimizer_tensor *t, double steps, uint32_t a, uint32_t b, explanation *e)
{
    lb_optimizer_rule r = e->base;
    if (a < LB_RULE_CHANGES && !lb_rule_changes_apply(a, &r, &steps)) return false;
    if (b < LB_RULE_CHANGES && !lb_rule_changes_apply(b, &r, &steps)) return false;
    if (!fits(&r, t, steps)) return false;
    e->fits = true, e->factor = 1, e->n = (a < LB_RULE_CHANGES) + (b < LB_RULE_CHANGES), e->changes[0] = a,
    e->changes[1] = b;
    return true;
}

/* With `n` changes to any form. */
static bool explain_by(const lb_optimizer_rule *rule, const lb_optimizer_tensor *t, double steps, uint32_t n,
                       explanation *e)
{
    for (uint32_t form = 0; form < 1 << LB_RULE_FORMS; form++) {
        if (!lb_rule_changes_form(rule, form, &e->base)) continue;
        for (uint32_t a = n ? 0 : LB_RULE_CHANGES; a < LB_RULE_CHANGES + !n; a++)
            for (uint32_t b = n == 2 ? a + 1 : LB_RULE_CHANGES; b < LB_RULE_CHANGES + (n != 2); b++)
                if (try_changes(t, steps, a, b, e)) return true;
    }
    return false;
}

/* All of it times one number, as by another learning rate, or all beside decay. Forms differ by a factor of their own
 * there: a number that is a count, or one by it, is what was meant. */
static bool explain_by_factor(const lb_optimizer_rule *rule, const lb_optimizer_tensor *t, double steps, explanation *e)
{
    for (uint32_t form = 0; form < 1 << LB_RULE_FORMS; form++)
        for (int whole = 1; whole >= 0; whole--) {
            explanation by = {.fits = true};
            if (!lb_rule_changes_form(rule, form, &by.base) || (e->fits && lb_fault_place_is_count(e->factor)))
                continue;
            lb_optimizer_rule r = by.base;
            by.factor = factor_of(&r, t, steps, whole);
            if (whole)
                r.lr *= by.factor;
            else
                r.times = by.factor;
            if ((!e->fits || lb_fault_place_is_count(by.factor)) && fits(&r, t, steps)) *e = by;
        }
    return e->fits;
}

/* No change, one, a factor, two. */
static explanation explain(const lb_optimizer_rule *rule, const lb_optimizer_tensor *t, double steps)
{
    explanation e = {.base = *rule};
    if (explain_by(rule, t, steps, 0, &e) || explain_by(rule, t, steps, 1, &e)) return e;
    if (!explain_by_factor(rule, t, steps, &e)) explain_by(rule, t, steps, 2, &e);
    return e;
}

/* ---- a group ---- */

/* The count of the step, from where it was kept; NaN: nowhere. */
static double steps_of(const lb_optimizer_rule *rule, const lb_optimizer_tensor *t)
{
    if (!isnan(t->steps)) return t->steps;
    if (!lb_optimizer_step_had_begun(t) && rule->family != LB_FAMILY_ADAGRAD) return 1;
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

static void judge_tensor(group_judged *g, const lb_optimizer_tensor *t)
{
    const lb_program *p = g->step->run.program;
    g->tensors++;
    g->narrow += g->rule.weight_decay != 0 && p->values[t->source].layout.ndim <= 1;
    if (!lb_optimizer_step_saw(t)) {
        g->unseen++;
        return;
    }
    const double steps = steps_of(&g->rule, t);
    if (isnan(steps)) {
        g->uncounted++;
        return;
    }
    const explanation e = explain(&g->rule, t, steps);
    if (e.fits && !e.n && e.factor == 1) {
        g->plain++, g->mastered += t->mastered;
    } else if (e.fits && !t->copied) {
        if (!g->odd) g->odd = t, g->why = e;
        g->odd_tensors += is_same(&e, &g->why);
    } else {
        if (!g->unclear) g->unclear = t, g->gap = gap_of(&g->rule, t, steps, t->n);
        g->unexplained++;
    }
}

/* torch.optim's own classes do what they say; another class of that name may add something to its rule. */
static bool is_torchs(const lb_program *p, const lb_group *g)
{
    bool found = false;
    for (uint32_t i = 0; i < g->options; i++)
        found |= strcmp(lb_program_text(p, p->scalars[g->first_option + i].name), "differentiable") == 0;
    return found;
}

static void say_changes(const explanation *e, char *text, size_t size)
{
    *text = '\0';
    if (!e->n) snprintf(text, size, "moves %.6g times as far as its rule says", e->factor);
    for (uint32_t i = 0; i < e->n; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, size - n, "%s%s", i ? ", and " : "", lb_rule_changes_words(e->changes[i]));
    }
}

static bool add_finding(const group_judged *g, const lb_optimizer_tensor *t, uint32_t tensors, const char *what,
                        double factor, double effect)
{
    lb_check_step *c = g->step;
    const lb_program *p = c->run.program;
    lb_check_finding *f = lb_proof_list_add(c->report, LB_CHECK_UPDATE, p);
    if (!f) return false;
    lb_proof_list_place(f, p, t->op, LB_NONE, c->path);
    f->factor = factor, f->effect = effect;
    snprintf(f->layer, sizeof f->layer, "%s", t->name);
    snprintf(f->message, sizeof f->message,
             "%s group %u %s: %u of its %u parameters are not where %s takes them with the options of the group, the "
             "first (%s) by up to %.2g of its largest update",
             g->name, g->group->index, what, tensors, g->tensors, lb_optimizer_family_name(g->rule.family), t->name,
             effect);
    return true;
}

static bool tell_findings(const group_judged *g)
{
    char what[240];
    if (g->odd) {
        say_changes(&g->why, what, sizeof what);
        const double effect = gap_of(&g->why.base, g->odd, steps_of(&g->rule, g->odd), g->odd->n);
        if (!add_finding(g, g->odd, g->odd_tensors, what, g->why.n ? NAN : g->why.factor, effect)) return false;
    }
    const bool own = is_torchs(g->step->run.program, g->group) || g->plain;
    if (!g->unclear || g->unclear->copied || g->unclear->n_others || !own) return true;
    return add_finding(g, g->unclear, g->unexplained, "does something else to a parameter than its rule says", NAN,
                       g->gap);
}

static bool tell_group(const group_judged *g, bool *found)
{
    lb_check_report *report = g->step->report;
    const uint32_t before = report->n_findings;
    const long long step = (long long)g->step->run.program->step;
    char what[160], decay[120] = "";
    snprintf(what, sizeof what, "the update of %s group %u in step %lld", g->name, g->group->index, step);
    if (!tell_findings(g)) return false;
    *found = report->n_findings > before;
    if (!lb_tensor_updates_leave(report, what, g->unseen, g->uncounted)) return false;
    if (*found || g->unexplained)
        return *found ||
               lb_proof_list_leave(report, what, "%u parameters moved otherwise than %s does, %s", g->unexplained,
                                   lb_optimizer_family_name(g->rule.family),
                                   g->unclear->copied ? "from a copy that is kept elsewhere"
                                                      : "and none of the changes that were tried explains it");
    if (!g->plain) return true;
    if (g->rule.weight_decay != 0)
        snprintf(decay, sizeof decay, ", weight decay %.4g %s", g->rule.weight_decay,
                 g->rule.decay == LB_DECAY_COUPLED ? "through the gradient" : "of the parameter itself");
    if (g->narrow) {
        const size_t n = strlen(decay);
        snprintf(decay + n, sizeof decay - n, ", also on %u of one dimension", g->narrow);
    }
    return lb_proof_list_prove(report, "step %lld: %s group %u moved %u parameters%s as %s does, lr %.4g%s", step,
                               g->name, g->group->index, g->plain,
                               g->mastered ? ", through masters among its states," : "",
                               lb_optimizer_family_name(g->rule.family), g->rule.lr, decay);
}

static bool judge_group(lb_check_step *c, const lb_optimizer_step *s, uint32_t group, bool *found)
{
    const lb_program *p = c->run.program;
    group_judged g = {.step = c, .group = &p->groups[group], .name = lb_program_text(p, p->groups[group].optimizer)};
    const char *why = lb_optimizer_rule_of(p, g.group, &g.rule);
    uint32_t n = 0, narrow = 0, unread = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const lb_optimizer_tensor *t = &s->tensors[i];
        if (t->group != g.group) continue;
        unread += t->read == LB_NONE;
        if (t->read == LB_NONE) continue;
        n++, narrow += t->narrow;
        if (!why && !t->narrow) judge_tensor(&g, t);
    }
    *found = false;
    lb_tensor_rule of_tensors;
    const char *why_not = why ? lb_tensor_rule_of(p, g.group, &of_tensors) : NULL;
    char what[160];
    snprintf(what, sizeof what, "the update of %s group %u", g.name, g.group->index);
    if (unread &&
        !lb_proof_list_pass(c->report, what, "which gradient it read of %u parameters was not recorded in step %lld",
                            unread, (long long)p->step))
        return false;
    if (n && why && !why_not && !narrow) return lb_tensor_updates_judge(c, s, group, &of_tensors, found);
    if (narrow && !lb_proof_list_pass(c->report, what,
                                      "states of %u parameters are codes of 8 bits or less, whose scales only its "
                                      "program knows",
                                      narrow))
        return false;
    if (n && why && !narrow)
        return lb_proof_list_pass(c->report, what, "%s", lb_tensor_rule_names(p, g.group) ? why_not : why);
    return why || tell_group(&g, found);
}

static void note_op(void *context, const lb_event *event)
{
    lb_optimizer_step_note(context, event);
}

bool lb_check_step_watch_updates(lb_check_step *c)
{
    c->run.note = note_op, c->run.context = &c->updates;
    return lb_optimizer_step_open(&c->run, &c->trained, &c->updates);
}

lb_status lb_check_step_updates(lb_check_step *c, lb_err *err)
{
    bool found = false, said = true;
    for (uint32_t i = 0; i < c->run.program->n_groups && !found && said; i++)
        said = judge_group(c, &c->updates, i, &found);
    said = said && lb_master_copies_judge(c);
    return said && !c->updates.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
}
