/* Rules of whole tensors: see tensor_rule.h. */
#include "optimizers/tensor_rule.h"

#include "optimizers/optimizer_rule.h"
#include "orders/matmul.h"

#include <lastbit/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

#define OPTION(otherwise, ...)                                                                                         \
    lb_optimizer_rule_option(program, group, (const char *const[]){__VA_ARGS__, NULL}, otherwise)

static const struct {
    const char *name;
    lb_tensor_family family;
} classes[] = {
    {"Adafactor", LB_TENSOR_ADAFACTOR}, {"Muon", LB_TENSOR_MUON}, {"SingleDeviceMuon", LB_TENSOR_MUON},
    {"Lamb", LB_TENSOR_LAMB},           {"LAMB", LB_TENSOR_LAMB}, {"FusedLAMB", LB_TENSOR_LAMB},
};

/* The row of its class; the number of rows where it has none. */
static size_t class_of(const lb_program *program, const lb_group *group)
{
    const char *name = lb_program_text(program, group->optimizer);
    size_t i = 0;
    while (i < sizeof classes / sizeof *classes && strcmp(classes[i].name, name) != 0) i++;
    return i;
}

bool lb_tensor_rule_names(const lb_program *program, const lb_group *group)
{
    return class_of(program, group) < sizeof classes / sizeof *classes;
}

const char *lb_tensor_family_name(lb_tensor_family family)
{
    static const char *const names[LB_TENSOR_FAMILIES] = {"Adafactor", "Muon", "LAMB"};
    return names[family];
}

/* torch's Adafactor raises t to beta2_decay and keeps eps apart from g g; transformers' raises it to decay_rate. */
static const char *read_adafactor(const lb_program *program, const lb_group *group, lb_tensor_rule *rule)
{
    rule->relative = isnan(OPTION(NAN, "beta2_decay"));
    rule->decay = OPTION(NAN, "beta2_decay", "decay_rate");
    rule->eps = OPTION(NAN, "eps.0"), rule->eps2 = OPTION(NAN, "eps.1");
    rule->clip = OPTION(NAN, "d", "clip_threshold");
    rule->scales = !rule->relative || OPTION(1, "scale_parameter") != 0;
    rule->lr_is_given = !rule->relative || OPTION(0, "relative_step") == 0;
    if (!isnan(OPTION(NAN, "beta1"))) return "its averages of the updates themselves are not tried";
    if (rule->relative && OPTION(0, "warmup_init") != 0) return "its warm-up is not tried";
    if (isnan(rule->decay) || isnan(rule->eps2) || isnan(rule->clip)) return "its group does not say how squares decay";
    return NULL;
}

static const char *read_muon(const lb_program *program, const lb_group *group, lb_tensor_rule *rule)
{
    static const double published[3] = {3.4445, -4.7750, 2.0315};
    static const char *const names[3] = {"ns_coefficients.0", "ns_coefficients.1", "ns_coefficients.2"};
    for (int i = 0; i < 3; i++) rule->coefficients[i] = OPTION(published[i], names[i]);
    rule->rounds = (int)OPTION(5, "ns_steps", "backend_steps");
    rule->momentum = OPTION(NAN, "momentum", "beta"), rule->nesterov = OPTION(1, "nesterov") != 0;
    rule->eps = OPTION(1e-7, "eps");
    if (rule->rounds < 1 || rule->rounds > 20) return "its rounds are not from 1 to 20";
    return isnan(rule->momentum) ? "its group does not say the momentum" : NULL;
}

static const char *read_lamb(const lb_program *program, const lb_group *group, lb_tensor_rule *rule)
{
    rule->first = OPTION(NAN, "betas.0", "beta1"), rule->second = OPTION(NAN, "betas.1", "beta2");
    rule->eps = OPTION(NAN, "eps", "epsilon");
    rule->max_norm = fmax(0, OPTION(0, "max_grad_norm"));
    rule->takes = OPTION(1, "grad_averaging") != 0 ? 1 - rule->first : 1;
    rule->ratio_is_clipped = OPTION(0, "trust_clip") != 0, rule->decays_apart = OPTION(0, "decoupled_decay") != 0;
    if (OPTION(0, "caution") != 0) return "its cautious updates are not tried";
    if (rule->decays_apart && OPTION(0, "corrected_weight_decay") != 0) return "its corrected decay is not tried";
    return isnan(rule->first) || isnan(rule->second) || isnan(rule->eps) ? "its group does not say the betas and eps"
                                                                         : NULL;
}

const char *lb_tensor_rule_of(const lb_program *program, const lb_group *group, lb_tensor_rule *rule)
{
    static const char *(*const readers[LB_TENSOR_FAMILIES])(const lb_program *, const lb_group *,
                                                            lb_tensor_rule *) = {read_adafactor, read_muon, read_lamb};
    const size_t i = class_of(program, group);
    if (i == sizeof classes / sizeof *classes) return "its rule is not known";
    *rule = (lb_tensor_rule){.family = classes[i].family, .times = 1, .divides = 1};
    rule->lr = OPTION(NAN, "lr", "learning_rate"), rule->weight_decay = OPTION(0, "weight_decay", "wd");
    rule->ascends = OPTION(0, "maximize") != 0;
    const char *why = readers[rule->family](program, group, rule);
    return why ? why
           : isnan(rule->lr) && (rule->family != LB_TENSOR_ADAFACTOR || rule->lr_is_given)
               ? "its group does not say the learning rate"
               : NULL;
}

/* ---- states ---- */

bool lb_tensor_rule_has_state(const lb_tensor_rule *rule, uint32_t k, const char *name)
{
    static const char *const names[LB_TENSOR_FAMILIES][LB_TENSOR_STATES][2] = {
        [LB_TENSOR_ADAFACTOR] = {{"row_var", "exp_avg_sq_row"},
                                 {"col_var", "exp_avg_sq_col"},
                                 {"variance", "exp_avg_sq"}},
        [LB_TENSOR_MUON] = {{"momentum_buffer", "momentum"}},
        [LB_TENSOR_LAMB] = {{"exp_avg", "m"}, {"exp_avg_sq", "v"}},
    };
    for (uint32_t i = 0; i < 2; i++)
        if (names[rule->family][k][i] && strcmp(names[rule->family][k][i], name) == 0) return true;
    return false;
}

/* Rows and columns of the last two dimensions, and how many such matrices lie behind each other. */
typedef struct matrices {
    int64_t n, rows, columns;
} matrices;

static matrices matrices_of(const lb_layout *layout)
{
    const int64_t numel = lb_layout_numel(layout);
    if (layout->ndim < 2 || !numel) return (matrices){1, 1, numel};
    const int64_t rows = layout->shape[layout->ndim - 2], columns = layout->shape[layout->ndim - 1];
    return (matrices){numel / (rows * columns), rows, columns};
}

int64_t lb_tensor_rule_state_numel(const lb_tensor_rule *rule, uint32_t k, const lb_layout *shape)
{
    const int64_t numel = lb_layout_numel(shape);
    if (rule->family != LB_TENSOR_ADAFACTOR) return k < (rule->family == LB_TENSOR_MUON ? 1u : 2u) ? numel : 0;
    const matrices matrices = matrices_of(shape);
    if (shape->ndim < 2) return k == 2 ? numel : 0;
    return k == 2 ? 0 : matrices.n * (k == 0 ? matrices.rows : matrices.columns);
}

double lb_tensor_rule_reading(const lb_tensor_rule *rule, lb_dtype dtype, int64_t n)
{
    if (!lb_tensor_rule_clips(rule) && (rule->family != LB_TENSOR_ADAFACTOR || rule->relative)) return 0;
    return 2 * lb_dtype_unit_roundoff(dtype) + 2 * sqrt((double)n) * lb_dtype_unit_roundoff(LB_F32);
}

bool lb_tensor_rule_counts_steps(const lb_tensor_rule *rule)
{
    return rule->family != LB_TENSOR_MUON;
}

/* ---- Adafactor ---- */

static double norm_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* (1 - w) state + w mean of g g over columns, or rows. */
static void average_squares(const lb_tensor_rule *rule, const double *gradient, matrices matrices, const double *old,
                            double share, bool of_rows, double *out)
{
    const int64_t n = of_rows ? matrices.rows : matrices.columns, over = of_rows ? matrices.columns : matrices.rows;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < over; k++) {
            const double x = of_rows ? gradient[i * matrices.columns + k] : gradient[k * matrices.columns + i];
            sum += x * x + (rule->relative ? rule->eps : 0);
        }
        out[i] = (1 - share) * (old ? old[i] : 0) + share * sum / (double)over;
    }
}

/* The estimate of g g for one matrix, from rows and columns. */
static void factored_squares(const lb_tensor_rule *rule, matrices matrices, const double *row, const double *column,
                             double *squares)
{
    double mean = 0;
    for (int64_t i = 0; i < matrices.rows; i++) mean += row[i] / (double)matrices.rows;
    if (!rule->relative) mean = fmax(mean, rule->eps);
    for (int64_t i = 0; i < matrices.rows; i++)
        for (int64_t k = 0; k < matrices.columns; k++) squares[i * matrices.columns + k] = row[i] * column[k] / mean;
}

static lb_status square_estimate(const lb_tensor_rule *rule, const lb_tensor_numbers *numbers, double share,
                                 double *squares)
{
    const matrices matrices = matrices_of(numbers->shape);
    if (numbers->shape->ndim < 2) {
        for (int64_t i = 0; i < matrices.columns; i++)
            squares[i] = (1 - share) * (numbers->states[2] ? numbers->states[2][i] : 0) +
                         share * (numbers->gradient[i] * numbers->gradient[i] + (rule->relative ? rule->eps : 0));
        return LB_OK;
    }
    double *row = malloc(sizeof *row * (size_t)(matrices.rows + matrices.columns)), *column = row + matrices.rows;
    if (!row) return LB_ERR_NOMEM;
    for (int64_t i = 0; i < matrices.n; i++) {
        const double *gradient = numbers->gradient + i * matrices.rows * matrices.columns;
        average_squares(rule, gradient, matrices, numbers->states[0] ? numbers->states[0] + i * matrices.rows : NULL,
                        share, true, row);
        average_squares(rule, gradient, matrices, numbers->states[1] ? numbers->states[1] + i * matrices.columns : NULL,
                        share, false, column);
        factored_squares(rule, matrices, row, column, squares + i * matrices.rows * matrices.columns);
    }
    free(row);
    return LB_OK;
}

/* `form` 1: eps is that of f32, which torch takes where the group says none; 2: of bf16. */
static lb_status adafactor(const lb_tensor_rule *rule, uint32_t form, const lb_tensor_numbers *numbers, double *after)
{
    lb_tensor_rule mine = *rule;
    const int64_t n = lb_layout_numel(numbers->shape);
    const double root = sqrt((double)n), share = pow(numbers->steps, mine.decay);
    if (form > 1 || (form && (mine.relative || !isnan(mine.eps)))) return LB_ERR_NOT_FOUND;
    if (isnan(mine.eps)) mine.eps = form ? 0x1p-7 : 0x1p-23;
    const double step = fmin(mine.relative ? 1e-2 : mine.lr, 1 / sqrt(numbers->steps));
    const double rate = mine.relative && mine.lr_is_given ? mine.lr : step;
    const double alpha = rate * (mine.scales ? fmax(mine.eps2, norm_of(numbers->before, n) / root) : 1);
    LB_TRY(square_estimate(&mine, numbers, share, after));
    for (int64_t i = 0; i < n; i++)
        after[i] = numbers->gradient[i] / sqrt(mine.relative ? after[i] : fmax(after[i], mine.eps * mine.eps));
    const double large = fmax(1, norm_of(after, n) / root / mine.clip);
    const double decay = mine.weight_decay * (mine.relative ? alpha : mine.lr);
    for (int64_t i = 0; i < n; i++)
        after[i] = numbers->before[i] * (1 - decay) - mine.times * (mine.ascends ? -1 : 1) * alpha * after[i] / large;
    return LB_OK;
}

/* ---- Muon ---- */

/* x = a x + (b x x' + c (x x')^2) x, of `rows` that are not more than `columns`; room: rows * rows twice, and an x. */
static lb_status round_of(const lb_tensor_rule *rule, int64_t rows, int64_t columns, double *x, double *room)
{
    double *gram = room, *square = room + rows * rows, *next = square + rows * rows;
    const size_t m = (size_t)rows, n = (size_t)columns;
    const lb_matrix a = {x, LB_F64, columns, 1}, turned = {x, LB_F64, 1, columns}, g = {gram, LB_F64, rows, 1};
    LB_TRY(lb_matmul_f64(m, m, n, &a, &turned, gram, rows, NULL));
    LB_TRY(lb_matmul_f64(m, m, m, &g, &g, square, rows, NULL));
    for (int64_t i = 0; i < rows * rows; i++)
        gram[i] = rule->coefficients[1] * gram[i] + rule->coefficients[2] * square[i];
    LB_TRY(lb_matmul_f64(m, n, m, &g, &a, next, columns, NULL));
    for (int64_t i = 0; i < rows * columns; i++) x[i] = rule->coefficients[0] * x[i] + next[i];
    return LB_OK;
}

/* In place; what is higher than wide is turned meanwhile. `adds`: eps is added to the norm, and not the least of it. */
static lb_status orthogonalise(const lb_tensor_rule *rule, int64_t rows, int64_t columns, bool adds, double *update)
{
    const int64_t low = rows < columns ? rows : columns, high = rows < columns ? columns : rows, n = rows * columns;
    double *x = malloc(sizeof *x * (size_t)(2 * n + 2 * low * low)), *room = x + n;
    if (!x) return LB_ERR_NOMEM;
    const double norm = norm_of(update, n), by = adds ? norm + rule->eps : fmax(norm, rule->eps);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            x[rows > columns ? k * rows + i : i * columns + k] = update[i * columns + k] / by;
    lb_status status = LB_OK;
    for (int i = 0; i < rule->rounds && status == LB_OK; i++) status = round_of(rule, low, high, x, room);
    for (int64_t i = 0; i < rows && status == LB_OK; i++)
        for (int64_t k = 0; k < columns; k++)
            update[i * columns + k] = x[rows > columns ? k * rows + i : i * columns + k];
    free(x);
    return status;
}

/* Forms: how the momentum is kept (an average, a sum), what eps does (the least norm, added), which s. */
static lb_status muon(const lb_tensor_rule *rule, uint32_t form, const lb_tensor_numbers *numbers, double *after)
{
    const bool sums = form & 1, adds = form & 2;
    const uint32_t sizes = form >> 2;
    if (numbers->shape->ndim < 2 || sizes > 2) return LB_ERR_NOT_FOUND;
    const int64_t n = lb_layout_numel(numbers->shape), rows = numbers->shape->shape[0], columns = rows ? n / rows : 0;
    const double a = (double)rows, b = (double)columns, keep = rule->momentum, take = sums ? 1 : 1 - keep;
    const double s = sizes == 0 ? sqrt(fmax(1, a / b)) : sizes == 1 ? 0.2 * sqrt(fmax(a, b)) : 1;
    for (int64_t i = 0; i < n; i++) {
        const double g = rule->ascends ? -numbers->gradient[i] : numbers->gradient[i];
        const double m = keep * (numbers->states[0] ? numbers->states[0][i] : 0) + take * g;
        after[i] = rule->nesterov ? take * g + keep * m : m;
    }
    LB_TRY(orthogonalise(rule, rows, columns, adds, after));
    for (int64_t i = 0; i < n; i++)
        after[i] = numbers->before[i] * (1 - rule->lr * rule->weight_decay) - rule->times * rule->lr * s * after[i];
    return LB_OK;
}

/* ---- LAMB ---- */

bool lb_tensor_rule_clips(const lb_tensor_rule *rule)
{
    return rule->max_norm > 0;
}

const char *lb_tensor_clip_words(lb_clip_way way)
{
    return way == LB_CLIP_NONE  ? "does not clip its gradients"
           : way == LB_CLIP_OWN ? "clips each gradient by its own norm, and not by that of all"
                                : "divides by the norm of its gradients where that is below its max_grad_norm, too";
}

/* What its gradients are divided by. */
static double divisor_of(const lb_tensor_rule *rule, lb_clip_way way, const lb_tensor_numbers *numbers)
{
    if (!lb_tensor_rule_clips(rule) || way == LB_CLIP_NONE) return 1;
    const double norm = way == LB_CLIP_GROUP ? numbers->group_norm
                        : way == LB_CLIP_OWN ? norm_of(numbers->gradient, lb_layout_numel(numbers->shape))
                                             : numbers->norm + (way == LB_CLIP_ALL_EPS ? rule->eps : 0);
    const double by = norm / rule->max_norm * rule->divides;
    return way == LB_CLIP_ALWAYS ? by : fmax(1, by);
}

/* Forms: without the correction of the moments; without the ratio where nothing decays; the norm of p at most 10; a
 * ratio of 0 where p is 0, as the paper has it, and not 1; above these, by which norm gradients are clipped. */
static lb_status lamb(const lb_tensor_rule *rule, uint32_t form, const lb_tensor_numbers *numbers, double *after)
{
    const bool plain = form & 1, decays = form & 2, least = form & 4, strict = form & 8;
    const lb_clip_way clip = form < 16 ? rule->clips_by : (lb_clip_way)(form / 16);
    if (clip >= (form < 16 ? LB_CLIP_WAYS : LB_CLIP_FORMS) || (form > 15 && !lb_tensor_rule_clips(rule)))
        return LB_ERR_NOT_FOUND;
    if (decays && rule->weight_decay != 0) return LB_ERR_NOT_FOUND;
    const double by = divisor_of(rule, clip, numbers) * (rule->ascends ? -1 : 1);
    const int64_t n = lb_layout_numel(numbers->shape);
    const double first = plain ? 1 : 1 - pow(rule->first, numbers->steps),
                 second = plain ? 1 : 1 - pow(rule->second, numbers->steps);
    for (int64_t i = 0; i < n; i++) {
        const double g = numbers->gradient[i] / by;
        const double m = rule->first * (numbers->states[0] ? numbers->states[0][i] : 0) + rule->takes * g;
        const double v = rule->second * (numbers->states[1] ? numbers->states[1][i] : 0) + (1 - rule->second) * g * g;
        after[i] = m / first / (sqrt(v / second) + rule->eps) +
                   (rule->decays_apart ? 0 : rule->weight_decay) * numbers->before[i];
    }
    const double stays = rule->decays_apart ? 1 - rule->lr * rule->weight_decay : 1;
    const double norm = stays * norm_of(numbers->before, n), size = least ? fmin(norm, 10) : norm,
                 of = norm_of(after, n);
    const bool adapts = of > 0 && (size > 0 || strict) && !decays;
    const double ratio = adapts ? fmin(size / of, rule->ratio_is_clipped ? 1 : INFINITY) : 1;
    for (int64_t i = 0; i < n; i++) after[i] = stays * numbers->before[i] - rule->times * rule->lr * ratio * after[i];
    return LB_OK;
}

lb_status lb_tensor_rule_apply(const lb_tensor_rule *rule, uint32_t form, const lb_tensor_numbers *numbers,
                               double *after)
{
    static lb_status (*const moves[LB_TENSOR_FAMILIES])(const lb_tensor_rule *, uint32_t, const lb_tensor_numbers *,
                                                        double *) = {adafactor, muon, lamb};
    return moves[rule->family](rule, form, numbers, after);
}
