/* Changes to a rule: see rule_changes.h. */
#include "optimizers/rule_changes.h"

/* False: it is that way already, or the rule has no such thing. */
typedef struct change {
    const char *words;
    bool (*apply)(lb_optimizer_rule *rule, double *steps);
} change;

static bool decay_to(lb_optimizer_rule *rule, lb_decay_way way)
{
    const bool other = rule->weight_decay != 0 && rule->decay != way;
    rule->decay = way;
    return other;
}

static bool decay_behind(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    return rule->decay == LB_DECAY_BEFORE && decay_to(rule, LB_DECAY_BEHIND);
}

static bool decay_coupled(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    return decay_to(rule, LB_DECAY_COUPLED);
}

static bool decay_decoupled(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    return rule->decay == LB_DECAY_COUPLED && decay_to(rule, LB_DECAY_BEFORE);
}

static bool decay_fully(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->decays_fully = true;
    return rule->weight_decay != 0 && rule->decay != LB_DECAY_COUPLED;
}

static bool no_decay(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    const bool other = rule->weight_decay != 0;
    rule->weight_decay = 0;
    return other;
}

static bool is_adam(const lb_optimizer_rule *rule)
{
    return rule->family == LB_FAMILY_ADAM;
}

static bool eps_early(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->root_eps = LB_ROOT_EPS_EARLY;
    return is_adam(rule) && rule->second_corrected;
}

static bool eps_inside(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->root_eps = LB_ROOT_EPS_UNDER;
    return (is_adam(rule) || rule->family == LB_FAMILY_NADAM) && rule->eps != 0;
}

/* TensorFlow's RMSprop has it so. */
static bool eps_inside_rms(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->root_eps = LB_ROOT_EPS_UNDER;
    return rule->family == LB_FAMILY_RMSPROP && rule->eps != 0;
}

static bool first_uncorrected(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    const bool other = is_adam(rule) && rule->first_corrected;
    rule->first_corrected = false;
    return other;
}

static bool second_uncorrected(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    const bool other = is_adam(rule) && rule->second_corrected;
    rule->second_corrected = false;
    return other;
}

static bool uncorrected(lb_optimizer_rule *rule, double *steps)
{
    return first_uncorrected(rule, steps) & second_uncorrected(rule, steps);
}

static bool step_early(lb_optimizer_rule *rule, double *steps)
{
    *steps += 1;
    return lb_optimizer_rule_counts_steps(rule);
}

static bool step_late(lb_optimizer_rule *rule, double *steps)
{
    *steps -= 1;
    return lb_optimizer_rule_counts_steps(rule) && *steps >= 1;
}

static bool betas_exchanged(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    const double first = rule->first;
    const bool other =
        rule->family != LB_FAMILY_SGD && rule->family != LB_FAMILY_ADAGRAD && rule->first != rule->second;
    rule->first = rule->second, rule->second = first;
    return other;
}

static bool ascends(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->ascends = !rule->ascends;
    return true;
}

static bool no_largest(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    const bool other = rule->largest;
    rule->largest = false;
    return other;
}

static bool nesterov(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->nesterov = !rule->nesterov;
    return rule->family == LB_FAMILY_SGD && rule->first != 0;
}

static bool undampened(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    rule->dampening = rule->dampening != 0 ? 0 : rule->first;
    return rule->family == LB_FAMILY_SGD && rule->first != 0;
}

static bool no_momentum(lb_optimizer_rule *rule, double *steps)
{
    (void)steps;
    const bool other = rule->first != 0 && (rule->family == LB_FAMILY_SGD || rule->family == LB_FAMILY_RMSPROP);
    rule->first = 0;
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
