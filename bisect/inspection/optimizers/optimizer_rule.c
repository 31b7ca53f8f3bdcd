/* The rules of published optimizers: see optimizer_rule.h. */
#include "optimizers/optimizer_rule.h"

#include <math.h>
#include <string.h>

/* ---- options ---- */

double lb_optimizer_rule_option(const lb_program *program, const lb_group *group, const char *const names[],
                                double otherwise)
{
    for (uint32_t i = 0; i < group->options; i++) {
        const lb_scalar *scalar = &program->scalars[group->first_option + i];
        for (uint32_t k = 0; names[k]; k++)
            if (strcmp(lb_program_text(program, scalar->name), names[k]) == 0) return scalar->number;
    }
    return otherwise;
}
#define OPTION(otherwise, ...)                                                                                         \
    lb_optimizer_rule_option(program, group, (const char *const[]){__VA_ARGS__, NULL}, otherwise)

/* Class names as torch.optim, apex, DeepSpeed, bitsandbytes' 32-bit classes and transformers have them. Others that
 * begin or end alike (StableAdamW, AdamW8bit) do something else. */
static const struct {
    const char *name;
    lb_optimizer_family family;
    bool decoupled;
} classes[] = {
    {"SGD", LB_FAMILY_SGD, false},
    {"FusedSGD", LB_FAMILY_SGD, false},
    {"Adam", LB_FAMILY_ADAM, false},
    {"AdamW", LB_FAMILY_ADAM, true},
    {"FusedAdam", LB_FAMILY_ADAM, true},
    {"FusedAdamW", LB_FAMILY_ADAM, true},
    {"DeepSpeedCPUAdam", LB_FAMILY_ADAM, true},
    {"NAdam", LB_FAMILY_NADAM, false},
    {"RAdam", LB_FAMILY_RADAM, false},
    {"Adamax", LB_FAMILY_ADAMAX, false},
    {"RMSprop", LB_FAMILY_RMSPROP, false},
    {"Adagrad", LB_FAMILY_ADAGRAD, false},
    {"Lion", LB_FAMILY_LION, true},
};

const char *lb_optimizer_family_name(lb_optimizer_family family)
{
    static const char *const names[LB_FAMILIES] = {"SGD",    "Adam",    "NAdam",   "RAdam",
                                                   "Adamax", "RMSprop", "Adagrad", "Lion"};
    return names[family];
}

static void read_options(const lb_program *program, const lb_group *group, lb_optimizer_rule *rule)
{
    rule->lr = OPTION(NAN, "lr", "learning_rate");
    rule->first = OPTION(NAN, "betas.0", "beta1", "b1"), rule->second = OPTION(NAN, "betas.1", "beta2", "b2");
    rule->eps = OPTION(NAN, "eps", "epsilon"), rule->weight_decay = OPTION(0, "weight_decay", "wd");
    rule->ascends = OPTION(0, "maximize") != 0, rule->largest = OPTION(0, "amsgrad") != 0;
    rule->nesterov = OPTION(0, "nesterov") != 0, rule->centered = OPTION(0, "centered") != 0;
    rule->dampening = OPTION(0, "dampening"), rule->momentum = OPTION(0, "momentum"),
    rule->lr_decay = OPTION(0, "lr_decay");
    rule->momentum_decay = OPTION(4e-3, "momentum_decay");
    rule->first_corrected = rule->second_corrected = OPTION(1, "correct_bias", "bias_correction") != 0;
    if (OPTION(rule->decay == LB_DECAY_BEFORE, "decoupled_weight_decay", "adam_w_mode") != 0)
        rule->decay = LB_DECAY_BEFORE;
    else
        rule->decay = LB_DECAY_COUPLED;
    if (rule->family == LB_FAMILY_SGD) rule->first = rule->momentum, rule->second = rule->eps = 0;
    if (rule->family == LB_FAMILY_RMSPROP) rule->first = rule->momentum, rule->second = OPTION(NAN, "alpha", "rho");
    if (rule->family == LB_FAMILY_ADAGRAD) rule->first = rule->second = 0;
    if (rule->family == LB_FAMILY_LION) rule->eps = 0;
}

double lb_optimizer_rule_count(const lb_program *program, const lb_group *group)
{
    return OPTION(NAN, "state.step", "step");
}

const char *lb_optimizer_rule_of(const lb_program *program, const lb_group *group, lb_optimizer_rule *rule)
{
    const char *name = lb_program_text(program, group->optimizer);
    size_t i = 0;
    while (i < sizeof classes / sizeof *classes && strcmp(classes[i].name, name) != 0) i++;
    if (i == sizeof classes / sizeof *classes) return "its rule is not known";
    *rule = (lb_optimizer_rule){
        .family = classes[i].family, .times = 1, .decay = classes[i].decoupled ? LB_DECAY_BEFORE : LB_DECAY_COUPLED};
    read_options(program, group, rule);
    if (isnan(rule->lr)) return "its group does not say the learning rate";
    if (isnan(rule->first) || isnan(rule->second)) return "its group does not say the betas";
    if (isnan(rule->eps)) return "its group does not say eps";
    return NULL;
}

/* ---- states ---- */

bool lb_optimizer_rule_has_state(const lb_optimizer_rule *rule, uint32_t k, const char *name)
{
    static const char *const names[LB_FAMILIES][LB_RULE_STATES][4] = {
        [LB_FAMILY_SGD] = {{"momentum_buffer", "velocity"}},
        [LB_FAMILY_ADAM] = {{"exp_avg", "m"}, {"exp_avg_sq", "v"}, {"max_exp_avg_sq"}},
        [LB_FAMILY_NADAM] = {{"exp_avg", "m"}, {"exp_avg_sq", "v"}, {"mu_product"}},
        [LB_FAMILY_RADAM] = {{"exp_avg", "m"}, {"exp_avg_sq", "v"}},
        [LB_FAMILY_ADAMAX] = {{"exp_avg", "m"}, {"exp_inf", "u"}},
        [LB_FAMILY_RMSPROP] = {{"momentum_buffer"}, {"square_avg", "v"}, {"grad_avg"}},
        [LB_FAMILY_ADAGRAD] = {{NULL}, {"sum", "v"}},
        [LB_FAMILY_LION] = {{"exp_avg", "m"}},
    };
    for (uint32_t i = 0; i < 4 && names[rule->family][k][i]; i++)
        if (strcmp(names[rule->family][k][i], name) == 0) return true;
    return false;
}

bool lb_optimizer_rule_counts_steps(const lb_optimizer_rule *rule)
{
    if (rule->family == LB_FAMILY_ADAGRAD) return rule->lr_decay != 0;
    return rule->family != LB_FAMILY_SGD && rule->family != LB_FAMILY_RMSPROP && rule->family != LB_FAMILY_LION;
}

/* ---- the rules ---- */

/* What is taken from the number, less its decay, divided by lr. */
static double sgd(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    if (rule->first == 0) return g;
    const double m = x->steps <= 1 ? g : rule->first * x->states[0] + (1 - rule->dampening) * g;
    return rule->nesterov ? g + rule->first * m : m;
}

static double under_root(const lb_optimizer_rule *rule, double v, double corrected)
{
    if (rule->root_eps == LB_ROOT_EPS_UNDER) return sqrt(v / corrected + rule->eps);
    if (rule->root_eps == LB_ROOT_EPS_EARLY) return (sqrt(v) + rule->eps) / sqrt(corrected);
    return sqrt(v / corrected) + rule->eps;
}

static double second_moment(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double v = rule->second * x->states[1] + (1 - rule->second) * g * g;
    return rule->largest ? fmax(v, x->states[2]) : v;
}

static double adam(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double m = rule->first * x->states[0] + (1 - rule->first) * g, v = second_moment(rule, x, g);
    const double first = rule->first_corrected ? 1 - pow(rule->first, x->steps) : 1;
    const double second = rule->second_corrected ? 1 - pow(rule->second, x->steps) : 1;
    return m / first / under_root(rule, v, second);
}

static double nadam_mu(const lb_optimizer_rule *rule, double t)
{
    return rule->first * (1 - 0.5 * pow(0.96, t * rule->momentum_decay));
}

static double nadam(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double mu = nadam_mu(rule, x->steps), next = nadam_mu(rule, x->steps + 1);
    const double product = (x->steps <= 1 ? 1 : x->states[2]) * mu;
    const double m = rule->first * x->states[0] + (1 - rule->first) * g, v = second_moment(rule, x, g);
    const double root = under_root(rule, v, 1 - pow(rule->second, x->steps));
    return ((1 - mu) / (1 - product) * g + next / (1 - product * next) * m) / root;
}

/* torch adds eps before the root is divided by its correction. */
static double radam(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double m = (rule->first * x->states[0] + (1 - rule->first) * g) / (1 - pow(rule->first, x->steps));
    const double power = pow(rule->second, x->steps), corrected = 1 - power, most = 2 / (1 - rule->second) - 1;
    const double length = most - 2 * x->steps * power / corrected;
    if (length <= 5) return m;
    const double rectified = sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    return m * rectified * sqrt(corrected) / (sqrt(second_moment(rule, x, g)) + rule->eps);
}

static double adamax(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double m = rule->first * x->states[0] + (1 - rule->first) * g;
    return m / (1 - pow(rule->first, x->steps)) / fmax(rule->second * x->states[1], fabs(g) + rule->eps);
}

static double rmsprop(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double v = rule->second * x->states[1] + (1 - rule->second) * g * g;
    const double mean = rule->centered ? rule->second * x->states[2] + (1 - rule->second) * g : 0;
    const double u = g / (rule->root_eps == LB_ROOT_EPS_UNDER ? sqrt(v - mean * mean + rule->eps)
                                                              : sqrt(v - mean * mean) + rule->eps);
    return rule->first != 0 ? rule->first * x->states[0] + u : u;
}

static double adagrad(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    return g / (sqrt(x->states[1] + g * g) + rule->eps) / (1 + (x->steps - 1) * rule->lr_decay);
}

static double lion(const lb_optimizer_rule *rule, const lb_optimizer_number *x, double g)
{
    const double m = rule->first * x->states[0] + (1 - rule->first) * g;
    return (m > 0) - (m < 0);
}

double lb_optimizer_rule_apply(const lb_optimizer_rule *rule, const lb_optimizer_number *number)
{
    static double (*const moves[LB_FAMILIES])(const lb_optimizer_rule *, const lb_optimizer_number *,
                                              double) = {sgd, adam, nadam, radam, adamax, rmsprop, adagrad, lion};
    const double g = (rule->ascends ? -number->gradient : number->gradient) +
                     (rule->decay == LB_DECAY_COUPLED ? rule->weight_decay * number->before : 0);
    const double move = rule->times * rule->lr * moves[rule->family](rule, number, g);
    const double kept =
        rule->decay == LB_DECAY_COUPLED ? 1 : 1 - (rule->decays_fully ? 1 : rule->lr) * rule->weight_decay;
    return rule->decay == LB_DECAY_BEHIND ? (number->before - move) * kept : number->before * kept - move;
}
