/* What published optimizers do to a whole tensor where a number depends on the others beside it, in f64.
 *
 * With p the tensor, g its gradient, t the count of steps from 1, rms x = |x| / sqrt(n):
 *
 *     Adafactor  r = mean over columns of g g, c = mean over rows, both averaged by 1 - t^decay; v = r c / mean r, or
 *                of vectors v = the average of g g; u = g / sqrt(v), u /= max(1, rms u / d);
 *                p -= max(eps2, rms p) min(lr, 1 / sqrt t) u (Shazeer & Stern 2018, algorithms 4 to 6), as
 *                torch.optim.Adafactor and transformers' have it
 *     Muon       m = momentum m + (1 - momentum) g; u = m, with Nesterov (1 - momentum) g + momentum m; five rounds of
 *                x = a x + (b x x' + c (x x')^2) x from x = u / |u|; p -= lr s x, s by the sizes of the matrix (Jordan
 *                et al. 2024, https://kellerjordan.github.io/posts/muon), as torch.optim.Muon and muon.py have it
 *     LAMB       u = Adam's update + decay p; p -= lr |p| / |u| u (You et al. 2020, algorithm 2); where the group has a
 *                max_grad_norm, g is first divided by max(1, |all g of the optimizer| / max_grad_norm), as apex and timm
 *                have it
 *
 * Programs of one name differ in details (which s, what eps is added to, a bias correction): those are its forms, and a
 * tensor that one of them explains is proven. */
#ifndef LB_BISECT_TENSOR_RULE_H
#define LB_BISECT_TENSOR_RULE_H

#include <lastbit/program.h>

typedef enum lb_tensor_family {
    LB_TENSOR_ADAFACTOR,
    LB_TENSOR_MUON,
    LB_TENSOR_LAMB,
    LB_TENSOR_FAMILIES
} lb_tensor_family;

enum { LB_TENSOR_STATES = 3, LB_TENSOR_FORMS = 48 };

/* Which norm LAMB clips its gradients by. */
typedef enum lb_clip_way {
    LB_CLIP_ALL,     /* of the gradients of all its groups */
    LB_CLIP_ALL_EPS, /* the same and eps */
    LB_CLIP_GROUP,   /* of those of the group alone */
    LB_CLIP_FORMS,   /* the ways above are published */
    LB_CLIP_NONE = LB_CLIP_FORMS,
    LB_CLIP_OWN,    /* of the tensor's own */
    LB_CLIP_ALWAYS, /* as ALL, and what has a smaller norm is made larger */
    LB_CLIP_WAYS
} lb_clip_way;

/* A rule with the options of one group. */
typedef struct lb_tensor_rule {
    lb_tensor_family family;
    bool relative; /* transformers' Adafactor: eps is added to g g, and lr may be left to it */
    bool nesterov, scales, lr_is_given, ascends;
    double lr, weight_decay, first, second, eps, eps2, clip, momentum, decay;
    double coefficients[3];
    int rounds;
    double times;          /* what is taken beside decay, multiplied by that: 1 */
    bool ratio_is_clipped; /* timm's trust_clip: LAMB's |p| / |u| is 1 at most */
    bool decays_apart;     /* timm's decoupled_decay: p -= lr decay p first, and u is Adam's update alone */
    double takes;          /* what LAMB's m takes of g: 1 - beta, and without grad_averaging 1 */
    double max_norm;       /* of LAMB's gradients; 0: they are not clipped */
    lb_clip_way clips_by;
    double divides; /* what they are divided by, multiplied by that: 1 */
} lb_tensor_rule;

/* All numbers of a parameter before its update. */
typedef struct lb_tensor_numbers {
    const lb_layout *shape;
    const double *before, *gradient;
    const double *states[LB_TENSOR_STATES]; /* NULL: there was none, zeros */
    double steps;                           /* t of the update, from 1 */
    double norm, group_norm;                /* of all gradients that its optimizer read, and of its group's */
} lb_tensor_numbers;

/* The rule that a class of this name has by the options of its group. NULL, or why there is none. */
const char *lb_tensor_rule_of(const lb_program *program, const lb_group *group, lb_tensor_rule *rule);
/* Is a class of that name one of these, whatever its group says? */
bool lb_tensor_rule_names(const lb_program *program, const lb_group *group);
/* "exp_avg_sq_row", …: is a state of that name the k-th of the rule? */
bool lb_tensor_rule_has_state(const lb_tensor_rule *rule, uint32_t k, const char *name);
/* The numbers of that state for a parameter of this shape; 0: it has none. */
int64_t lb_tensor_rule_state_numel(const lb_tensor_rule *rule, uint32_t k, const lb_layout *shape);
bool lb_tensor_rule_counts_steps(const lb_tensor_rule *rule);
/* Does it clip by a norm over all gradients that its optimizer read? */
bool lb_tensor_rule_clips(const lb_tensor_rule *rule);
/* "clips each gradient by its own norm", …: what a way that is not published does. */
const char *lb_tensor_clip_words(lb_clip_way way);
/* torch's Adafactor reads two norms of a tensor of n numbers into Python: they are what was recorded, rounded to the
 * parameter's dtype and summed up in f32, and scale the update by as much. So may the norm be that gradients are
 * clipped by, n of them in all. 0: a rule that reads none. */
double lb_tensor_rule_reading(const lb_tensor_rule *rule, lb_dtype dtype, int64_t n);
/* The tensor behind the update in one of the rule's forms, of which 0 is what the options say; LB_ERR_NOMEM.
 * LB_ERR_NOT_FOUND: there is no such form. */
lb_status lb_tensor_rule_apply(const lb_tensor_rule *rule, uint32_t form, const lb_tensor_numbers *numbers,
                               double *after);
/* "Adafactor", … */
const char *lb_tensor_family_name(lb_tensor_family family);

#endif
