/* The rules of published optimizers: see optimizer_rule.h. */
#include "optimizers/optimizer_rule.h"

#include <math.h>
#include <string.h>

/* ---- options ---- */

double lb_optimizer_rule_option(const lb_program *p, const lb_group *g, const char *const names[], double otherwise)
{
    for (uint32_t i = 0; i < g->options; i++) {
        const lb_scalar *o = &p->scalars[g->first_option + i];
        for (uint32_t k = 0; names[k]; k++)
            if (strcmp(lb_program_text(p, o->name), names[k]) == 0) return o->number;
    }
    return otherwise;
}
#define OPTION(otherwise, ...) lb_optimizer_rule_option(p, g, (const char *const[]){__VA_ARGS__, NULL}, otherwise)

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

static void read_options(const lb_program *p, const lb_group *g, lb_optimizer_rule *r)
{
    r->lr = OPTION(NAN, "lr", "learning_rate");
    r->first = OPTION(NAN, "betas.0", "beta1", "b1"), r->second = OPTION(NAN, "betas.1", "beta2", "b2");
    r->eps = OPTION(NAN, "eps", "epsilon"), r->weight_decay = OPTION(0, "weight_decay", "wd");
    r->ascends = OPTION(0, "maximize") != 0, r->largest = OPTION(0, "amsgrad") != 0;
    r->nesterov = OPTION(0, "nesterov") != 0, r->centered = OPTION(0, "centered") != 0;
    r->dampening = OPTION(0, "dampening"), r->momentum = OPTION(0, "momentum"), r->lr_decay = OPTION(0, "lr_decay");
    r->momentum_decay = OPTION(4e-3, "momentum_decay");
    r->first_corrected = r->second_corrected = OPTION(1, "correct_bias", "bias_correction") != 0;
    if (OPTION(r->decay == LB_DECAY_BEFORE, "decoupled_weight_decay", "adam_w_mode") != 0)
        r->decay = LB_DECAY_BEFORE;
    else
        r->decay = LB_DECAY_COUPLED;
    if (r->family == LB_FAMILY_SGD) r->first = r->momentum, r->second = r->eps = 0;
    if (r->family == LB_FAMILY_RMSPROP) r->first = r->momentum, r->second = OPTION(NAN, "alpha", "rho");
    if (r->family == LB_FAMILY_ADAGRAD) r->first = r->second = 0;
    if (r->family == LB_FAMILY_LION) r->eps = 0;
}

double lb_optimizer_rule_count(const lb_program *p, const lb_group *g)
{
    return OPTION(NAN, "state.step", "step");
}

const char *lb_optimizer_rule_of(const lb_program *p, const lb_group *g, lb_optimizer_rule *r)
{
    const char *name = lb_program_text(p, g->optimizer);
    size_t i = 0;
    while (i < sizeof classes / sizeof *classes && strcmp(classes[i].name, name) != 0) i++;
    if (i == sizeof classes / sizeof *classes) return "its rule is not known";
    *r = (lb_optimizer_rule){
        .family = classes[i].family, .times = 1, .decay = classes[i].decoupled ? LB_DECAY_BEFORE : LB_DECAY_COUPLED};
    read_options(p, g, r);
    if (isnan(r->lr)) return "its group does not say the learning rate";
    if (isnan(r->first) || isnan(r->second)) return "its group does not say the betas";
    if (isnan(r->eps)) return "its group does not say eps";
    return NULL;
}

/* ---- states ---- */

bool lb_optimizer_rule_has_state(const lb_optimizer_rule *r, uint32_t k, const char *name)
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
    for (uint32_t i = 0; i < 4 && names[r->family][k][i]; i++)
        if (strcmp(names[r->family][k][i], name) == 0) return true;
    return false;
}

bool lb_optimizer_rule_counts_steps(const lb_optimizer_rule *r)
{
    if (r->family == LB_FAMILY_ADAGRAD) return r->lr_decay != 0;
    return r->family != LB_FAMILY_SGD && r->family != LB_FAMILY_RMSPROP && r->family != LB_FAMILY_LION;
}

/* ---- the rules ---- */

/* What is taken from the number, less its decay, divided by lr. */
static double sgd(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    if (r->first == 0) return g;
    const double m = x->steps <= 1 ? g : r->first * x->states[0] + (1 - r->dampening) * g;
    return r->nesterov ? g + r->first * m : m;
}

static double under_root(const lb_optimizer_rule *r, double v, double corrected)
{
    if (r->root_eps == LB_ROOT_EPS_UNDER) return sqrt(v / corrected + r->eps);
    if (r->root_eps == LB_ROOT_EPS_EARLY) return (sqrt(v) + r->eps) / sqrt(corrected);
    return sqrt(v / corrected) + r->eps;
}

static double second_moment(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double v = r->second * x->states[1] + (1 - r->second) * g * g;
    return r->largest ? fmax(v, x->states[2]) : v;
}

static double adam(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double m = r->first * x->states[0] + (1 - r->first) * g, v = second_moment(r, x, g);
    const double first = r->first_corrected ? 1 - pow(r->first, x->steps) : 1;
    const double second = r->second_corrected ? 1 - pow(r->second, x->steps) : 1;
    return m / first / under_root(r, v, second);
}

static double nadam_mu(const lb_optimizer_rule *r, double t)
{
    return r->first * (1 - 0.5 * pow(0.96, t * r->momentum_decay));
}

static double nadam(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double mu = nadam_mu(r, x->steps), next = nadam_mu(r, x->steps + 1);
    const double product = (x->steps <= 1 ? 1 : x->states[2]) * mu;
    const double m = r->first * x->states[0] + (1 - r->first) * g, v = second_moment(r, x, g);
    const double root = under_root(r, v, 1 - pow(r->second, x->steps));
    return ((1 - mu) / (1 - product) * g + next / (1 - product * next) * m) / root;
}

/* torch adds eps before the root is divided by its correction. */
static double radam(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double m = (r->first * x->states[0] + (1 - r->first) * g) / (1 - pow(r->first, x->steps));
    const double power = pow(r->second, x->steps), corrected = 1 - power, most = 2 / (1 - r->second) - 1;
    const double length = most - 2 * x->steps * power / corrected;
    if (length <= 5) return m;
    const double rectified = sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    return m * rectified * sqrt(corrected) / (sqrt(second_moment(r, x, g)) + r->eps);
}

static double adamax(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double m = r->first * x->states[0] + (1 - r->first) * g;
    return m / (1 - pow(r->first, x->steps)) / fmax(r->second * x->states[1], fabs(g) + r->eps);
}

static double rmsprop(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double v = r->second * x->states[1] + (1 - r->second) * g * g;
    const double mean = r->centered ? r->second * x->states[2] + (1 - r->second) * g : 0;
    const double u =
        g / (r->root_eps == LB_ROOT_EPS_UNDER ? sqrt(v - mean * mean + r->eps) : sqrt(v - mean * mean) + r->eps);
    return r->first != 0 ? r->first * x->states[0] + u : u;
}

static double adagrad(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    return g / (sqrt(x->states[1] + g * g) + r->eps) / (1 + (x->steps - 1) * r->lr_decay);
}

static double lion(const lb_optimizer_rule *r, const lb_optimizer_number *x, double g)
{
    const double m = r->first * x->states[0] + (1 - r->first) * g;
    return (m > 0) - (m < 0);
}

double lb_optimizer_rule_apply(const lb_optimizer_rule *r, const lb_optimizer_number *x)
{
    static double (*const moves[LB_FAMILIES])(const lb_optimizer_rule *, const lb_optimizer_number *,
                                              double) = {sgd, adam, nadam, radam, adamax, rmsprop, adagrad, lion};
    const double g =
        (r->ascends ? -x->gradient : x->gradient) + (r->decay == LB_DECAY_COUPLED ? r->weight_decay * x->before : 0);
    const double move = r->times * r->lr * moves[r->family](r, x, g);
    const double kept = r->decay == LB_DECAY_COUPLED ? 1 : 1 - (r->decays_fully ? 1 : r->lr) * r->weight_decay;
    return r->decay == LB_DECAY_BEHIND ? (x->before - move) * kept : x->before * kept - move;
}
