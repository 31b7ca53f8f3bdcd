/* Changes to a rule: see rule_changes.h. */
#include "optimizers/rule_changes.h"

/* False: it is that way already, or the rule has no such thing. */
typedef struct change {
    const char *words;
    bool (*apply)(lb_optimizer_rule *rule, double *steps);
} change;

static bool decay_to(lb_optimizer_rule *r, lb_decay_way way)
{
    const bool other = r->weight_decay != 0 && r->decay != way;
    r->decay = way;
    return other;
}

static bool decay_behind(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    return r->decay == LB_DECAY_BEFORE && decay_to(r, LB_DECAY_BEHIND);
}

static bool decay_coupled(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    return decay_to(r, LB_DECAY_COUPLED);
}

static bool decay_decoupled(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    return r->decay == LB_DECAY_COUPLED && decay_to(r, LB_DECAY_BEFORE);
}

static bool decay_fully(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->decays_fully = true;
    return r->weight_decay != 0 && r->decay != LB_DECAY_COUPLED;
}

static bool no_decay(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    const bool other = r->weight_decay != 0;
    r->weight_decay = 0;
    return other;
}

static bool is_adam(const lb_optimizer_rule *r)
{
    return r->family == LB_FAMILY_ADAM;
}

static bool eps_early(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->root_eps = LB_ROOT_EPS_EARLY;
    return is_adam(r) && r->second_corrected;
}

static bool eps_inside(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->root_eps = LB_ROOT_EPS_UNDER;
    return (is_adam(r) || r->family == LB_FAMILY_NADAM) && r->eps != 0;
}

/* TensorFlow's RMSprop has it so. */
static bool eps_inside_rms(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->root_eps = LB_ROOT_EPS_UNDER;
    return r->family == LB_FAMILY_RMSPROP && r->eps != 0;
}

static bool first_uncorrected(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    const bool other = is_adam(r) && r->first_corrected;
    r->first_corrected = false;
    return other;
}

static bool second_uncorrected(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    const bool other = is_adam(r) && r->second_corrected;
    r->second_corrected = false;
    return other;
}

static bool uncorrected(lb_optimizer_rule *r, double *steps)
{
    return first_uncorrected(r, steps) & second_uncorrected(r, steps);
}

static bool step_early(lb_optimizer_rule *r, double *steps)
{
    *steps += 1;
    return lb_optimizer_rule_counts_steps(r);
}

static bool step_late(lb_optimizer_rule *r, double *steps)
{
    *steps -= 1;
    return lb_optimizer_rule_counts_steps(r) && *steps >= 1;
}

static bool betas_exchanged(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    const double first = r->first;
    const bool other = r->family != LB_FAMILY_SGD && r->family != LB_FAMILY_ADAGRAD && r->first != r->second;
    r->first = r->second, r->second = first;
    return other;
}

static bool ascends(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->ascends = !r->ascends;
    return true;
}

static bool no_largest(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    const bool other = r->largest;
    r->largest = false;
    return other;
}

static bool nesterov(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->nesterov = !r->nesterov;
    return r->family == LB_FAMILY_SGD && r->first != 0;
}

static bool undampened(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    r->dampening = r->dampening != 0 ? 0 : r->first;
    return r->family == LB_FAMILY_SGD && r->first != 0;
}

static bool no_momentum(lb_optimizer_rule *r, double *steps)
{
    (void)steps;
    const bool other = r->first != 0 && (r->family == LB_FAMILY_SGD || r->family == LB_FAMILY_RMSPROP);
    r->first = 0;
    return other;
}

/* Other programs have it so, under the same name: transformers' AdamW of 2019 the first two, TensorFlow the others. */
static bool (*const forms[LB_RULE_FORMS])(lb_optimizer_rule *, double *) = {decay_behind, eps_early, eps_inside_rms};

static const change changes[LB_RULE_CHANGES] = {
    {"adds weight decay to the gradient, where it goes through the moments", decay_coupled},
    {"takes weight decay from the parameter, and not through the gradient", decay_decoupled},
    {"takes weight decay without the learning rate", decay_fully},
    {"leaves weight decay out", no_decay},
    {"corrects neither moment by 1 - beta^t", uncorrected},
    {"does not correct the first moment by 1 - beta^t", first_uncorrected},
    {"does not correct the second moment by 1 - beta^t", second_uncorrected},
    {"adds eps under the root", eps_inside},
    {"corrects by a count of steps that is one too high", step_early},
    {"corrects by a count of steps that is one too low", step_late},
    {"exchanges the two betas", betas_exchanged},
    {"goes up the gradient", ascends},
    {"leaves amsgrad out", no_largest},
    {"has Nesterov's momentum the other way round", nesterov},
    {"has another dampening of the momentum", undampened},
    {"leaves the momentum out", no_momentum},
};

bool lb_rule_changes_form(const lb_optimizer_rule *rule, uint32_t form, lb_optimizer_rule *base)
{
    double steps = 1;
    *base = *rule;
    for (uint32_t i = 0; i < LB_RULE_FORMS; i++)
        if (form >> i & 1 && !forms[i](base, &steps)) return false;
    return true;
}

bool lb_rule_changes_apply(uint32_t change, lb_optimizer_rule *rule, double *steps)
{
    return changes[change].apply(rule, steps);
}

const char *lb_rule_changes_words(uint32_t change)
{
    return changes[change].words;
}
