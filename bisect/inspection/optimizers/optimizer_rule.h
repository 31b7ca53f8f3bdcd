/* What published optimizers do to one number of a parameter, in f64.
 *
 * With p the number, g its gradient, t the count of steps from 1, and the options of its group:
 *
 *     SGD      m = momentum m + (1 - dampening) g, at t = 1 m = g; p -= lr m, Nesterov lr (g + momentum m)
 *              (torch.optim.SGD's form of Polyak 1964 and Nesterov 1983)
 *     Adam     m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; p -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
 *              (Kingma & Ba, "Adam", 2015, algorithm 1)
 *     AdamW    the same, and p -= lr decay p beside it (Loshchilov & Hutter, "Decoupled Weight Decay", 2019)
 *     NAdam    Adam with mu_t = b1 (1 - 0.96^(t decay) / 2) (Dozat 2016), as torch.optim.NAdam has it
 *     RAdam    Adam without v while 2 / (1 - b2) - 1 - 2 t b2^t / (1 - b2^t) <= 5 (Liu et al. 2020)
 *     Adamax   v = max(b2 v, |g| + eps); p -= lr m / (1 - b1^t) / v (Kingma & Ba, algorithm 2)
 *     RMSprop  v = alpha v + (1 - alpha) g g; p -= lr g / (sqrt(v) + eps), with a momentum and centered where asked
 *              (Hinton's lecture 6e, 2012)
 *     Adagrad  v = v + g g; p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(v) + eps) (Duchi et al. 2011)
 *     Lion     p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g (Chen et al. 2023, algorithm 2)
 *
 * Weight decay is added to g, or taken from p: `decay` says which. */
#ifndef LB_BISECT_OPTIMIZER_RULE_H
#define LB_BISECT_OPTIMIZER_RULE_H

#include <lastbit/program.h>

typedef enum lb_optimizer_family {
    LB_FAMILY_SGD,
    LB_FAMILY_ADAM,
    LB_FAMILY_NADAM,
    LB_FAMILY_RADAM,
    LB_FAMILY_ADAMAX,
    LB_FAMILY_RMSPROP,
    LB_FAMILY_ADAGRAD,
    LB_FAMILY_LION,
    LB_FAMILIES
} lb_optimizer_family;

/* Where weight decay goes. */
typedef enum lb_decay_way {
    LB_DECAY_COUPLED, /* to the gradient */
    LB_DECAY_BEFORE,  /* p (1 - lr decay), then the update */
    LB_DECAY_BEHIND   /* the update, then p (1 - lr decay) */
} lb_decay_way;

/* Where eps stands in Adam. */
typedef enum lb_root_eps {
    LB_ROOT_EPS_OUTSIDE, /* sqrt(v / (1 - b2^t)) + eps */
    LB_ROOT_EPS_EARLY,   /* (sqrt(v) + eps) / sqrt(1 - b2^t): the paper's section 2, TensorFlow, transformers */
    LB_ROOT_EPS_UNDER    /* sqrt(v / (1 - b2^t) + eps) */
} lb_root_eps;

/* A rule with the options of one group. */
typedef struct lb_optimizer_rule {
    lb_optimizer_family family;
    double lr, first, second, eps, weight_decay; /* first, second: betas; of SGD and RMSprop momentum and alpha */
    double dampening, momentum, lr_decay, momentum_decay;
    bool nesterov, centered, largest /* amsgrad */, ascends /* maximize */;
    lb_decay_way decay;
    lb_root_eps root_eps;
    bool first_corrected, second_corrected; /* divided by 1 - beta^t */
    bool decays_fully;                      /* p (1 - decay), whatever lr is */
    double times;                           /* what is taken beside decay, multiplied by that: 1 */
} lb_optimizer_rule;

enum { LB_RULE_STATES = 3 };
/* One number of a parameter before its update. */
typedef struct lb_optimizer_number {
    double before, gradient;
    double states[LB_RULE_STATES]; /* m, v, and the largest v or the mean of g: 0 where there is none yet */
    double steps;                  /* t of the update, from 1 */
} lb_optimizer_number;

/* The rule that a class of this name has by the options of its group. NULL, or why there is none: a name that is not
 * known, an option that the group does not say. */
const char *lb_optimizer_rule_of(const lb_program *program, const lb_group *group, lb_optimizer_rule *rule);
/* An option of the group by whichever of these names it has (the last NULL), or `otherwise`. */
double lb_optimizer_rule_option(const lb_program *program, const lb_group *group, const char *const names[],
                                double otherwise);
/* The count of steps that the group or its states say, this one included; NaN. */
double lb_optimizer_rule_count(const lb_program *program, const lb_group *group);
/* Does an update depend on the count of steps? */
bool lb_optimizer_rule_counts_steps(const lb_optimizer_rule *rule);
/* The number behind the update. */
double lb_optimizer_rule_apply(const lb_optimizer_rule *rule, const lb_optimizer_number *number);
/* "exp_avg", …: is a state of that name the k-th of the rule? */
bool lb_optimizer_rule_has_state(const lb_optimizer_rule *rule, uint32_t k, const char *name);
/* "Adam", … */
const char *lb_optimizer_family_name(lb_optimizer_family family);

#endif
