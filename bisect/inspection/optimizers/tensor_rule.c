/* Rules of whole tensors: see tensor_rule.h. */
#include "optimizers/tensor_rule.h"

#include "optimizers/optimizer_rule.h"
#include "orders/matmul.h"

#include <lastbit/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

#define OPTION(otherwise, ...) lb_optimizer_rule_option(p, g, (const char *const[]){__VA_ARGS__, NULL}, otherwise)

static const struct {
    const char *name;
    lb_tensor_family family;
} classes[] = {
    {"Adafactor", LB_TENSOR_ADAFACTOR}, {"Muon", LB_TENSOR_MUON}, {"SingleDeviceMuon", LB_TENSOR_MUON},
    {"Lamb", LB_TENSOR_LAMB},           {"LAMB", LB_TENSOR_LAMB}, {"FusedLAMB", LB_TENSOR_LAMB},
};

/* The row of its class; the number of rows where it has none. */
static size_t class_of(const lb_program *p, const lb_group *g)
{
    const char *name = lb_program_text(p, g->optimizer);
    size_t i = 0;
    while (i < sizeof classes / sizeof *classes && strcmp(classes[i].name, name) != 0) i++;
    return i;
}

bool lb_tensor_rule_names(const lb_program *p, const lb_group *g)
{
    return class_of(p, g) < sizeof classes / sizeof *classes;
}

const char *lb_tensor_family_name(lb_tensor_family family)
{
    static const char *const names[LB_TENSOR_FAMILIES] = {"Adafactor", "Muon", "LAMB"};
    return names[family];
}

/* torch's Adafactor raises t to beta2_decay and keeps eps apart from g g; transformers' raises it to decay_rate. */
static const char *read_adafactor(const lb_program *p, const lb_group *g, lb_tensor_rule *r)
{
    r->relative = isnan(OPTION(NAN, "beta2_decay"));
    r->decay = OPTION(NAN, "beta2_decay", "decay_rate");
    r->eps = OPTION(NAN, "eps.0"), r->eps2 = OPTION(NAN, "eps.1");
    r->clip = OPTION(NAN, "d", "clip_threshold");
    r->scales = !r->relative || OPTION(1, "scale_parameter") != 0;
    r->lr_is_given = !r->relative || OPTION(0, "relative_step") == 0;
    if (!isnan(OPTION(NAN, "beta1"))) return "its averages of the updates themselves are not tried";
    if (r->relative && OPTION(0, "warmup_init") != 0) return "its warm-up is not tried";
    if (isnan(r->decay) || isnan(r->eps2) || isnan(r->clip)) return "its group does not say how squares decay";
    return NULL;
}

static const char *read_muon(const lb_program *p, const lb_group *g, lb_tensor_rule *r)
{
    static const double published[3] = {3.4445, -4.7750, 2.0315};
    static const char *const names[3] = {"ns_coefficients.0", "ns_coefficients.1", "ns_coefficients.2"};
    for (int i = 0; i < 3; i++) r->coefficients[i] = OPTION(published[i], names[i]);
    r->rounds = (int)OPTION(5, "ns_steps", "backend_steps");
    r->momentum = OPTION(NAN, "momentum", "beta"), r->nesterov = OPTION(1, "nesterov") != 0;
    r->eps = OPTION(1e-7, "eps");
    if (r->rounds < 1 || r->rounds > 20) return "its rounds are no 1 to 20";
    return isnan(r->momentum) ? "its group does not say the momentum" : NULL;
}

static const char *read_lamb(const lb_program *p, const lb_group *g, lb_tensor_rule *r)
{
    r->first = OPTION(NAN, "betas.0", "beta1"), r->second = OPTION(NAN, "betas.1", "beta2");
    r->eps = OPTION(NAN, "eps", "epsilon");
    r->max_norm = fmax(0, OPTION(0, "max_grad_norm"));
    r->takes = OPTION(1, "grad_averaging") != 0 ? 1 - r->first : 1;
    r->ratio_is_clipped = OPTION(0, "trust_clip") != 0, r->decays_apart = OPTION(0, "decoupled_decay") != 0;
    if (OPTION(0, "caution") != 0) return "its cautious updates are not tried";
    if (r->decays_apart && OPTION(0, "corrected_weight_decay") != 0) return "its corrected decay is not tried";
    return isnan(r->first) || isnan(r->second) || isnan(r->eps) ? "its group does not say the betas and eps" : NULL;
}

const char *lb_tensor_rule_of(const lb_program *p, const lb_group *g, lb_tensor_rule *r)
{
    static const char *(*const readers[LB_TENSOR_FAMILIES])(const lb_program *, const lb_group *,
                                                            lb_tensor_rule *) = {read_adafactor, read_muon, read_lamb};
    const size_t i = class_of(p, g);
    if (i == sizeof classes / sizeof *classes) return "its rule is not known";
    *r = (lb_tensor_rule){.family = classes[i].family, .times = 1, .divides = 1};
    r->lr = OPTION(NAN, "lr", "learning_rate"), r->weight_decay = OPTION(0, "weight_decay", "wd");
    r->ascends = OPTION(0, "maximize") != 0;
    const char *why = readers[r->family](p, g, r);
    return why ? why
           : isnan(r->lr) && (r->family != LB_TENSOR_ADAFACTOR || r->lr_is_given)
               ? "its group does not say the learning rate"
               : NULL;
}

/* ---- states ---- */

bool lb_tensor_rule_has_state(const lb_tensor_rule *r, uint32_t k, const char *name)
{
    static const char *const names[LB_TENSOR_FAMILIES][LB_TENSOR_STATES][2] = {
        [LB_TENSOR_ADAFACTOR] = {{"row_var", "exp_avg_sq_row"},
                                 {"col_var", "exp_avg_sq_col"},
                                 {"variance", "exp_avg_sq"}},
        [LB_TENSOR_MUON] = {{"momentum_buffer", "momentum"}},
        [LB_TENSOR_LAMB] = {{"exp_avg", "m"}, {"exp_avg_sq", "v"}},
    };
    for (uint32_t i = 0; i < 2; i++)
        if (names[r->family][k][i] && strcmp(names[r->family][k][i], name) == 0) return true;
    return false;
}

/* Rows and columns of the last two dimensions, and how many such matrices lie behind each other. */
typedef struct matrices {
    int64_t n, rows, columns;
} matrices;

static matrices matrices_of(const lb_layout *l)
{
    const int64_t numel = lb_layout_numel(l);
    if (l->ndim < 2 || !numel) return (matrices){1, 1, numel};
    const int64_t rows = l->shape[l->ndim - 2], columns = l->shape[l->ndim - 1];
    return (matrices){numel / (rows * columns), rows, columns};
}

int64_t lb_tensor_rule_state_numel(const lb_tensor_rule *r, uint32_t k, const lb_layout *l)
{
    const int64_t numel = lb_layout_numel(l);
    if (r->family != LB_TENSOR_ADAFACTOR) return k < (r->family == LB_TENSOR_MUON ? 1u : 2u) ? numel : 0;
    const matrices m = matrices_of(l);
    if (l->ndim < 2) return k == 2 ? numel : 0;
    return k == 2 ? 0 : m.n * (k == 0 ? m.rows : m.columns);
}

double lb_tensor_rule_reading(const lb_tensor_rule *r, lb_dtype dtype, int64_t n)
{
    if (!lb_tensor_rule_clips(r) && (r->family != LB_TENSOR_ADAFACTOR || r->relative)) return 0;
    return 2 * lb_dtype_unit_roundoff(dtype) + 2 * sqrt((double)n) * lb_dtype_unit_roundoff(LB_F32);
}

bool lb_tensor_rule_counts_steps(const lb_tensor_rule *r)
{
    return r->family != LB_TENSOR_MUON;
}

/* ---- Adafactor ---- */

static double norm_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* (1 - w) state + w mean of g g over columns, or rows. */
static void average_squares(const lb_tensor_rule *r, const double *g, matrices m, const double *old, double w,
                            bool of_rows, double *out)
{
    const int64_t n = of_rows ? m.rows : m.columns, over = of_rows ? m.columns : m.rows;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < over; k++) {
            const double x = of_rows ? g[i * m.columns + k] : g[k * m.columns + i];
            sum += x * x + (r->relative ? r->eps : 0);
        }
        out[i] = (1 - w) * (old ? old[i] : 0) + w * sum / (double)over;
    }
}

/* The estimate of g g for one matrix, from rows and columns. */
static void factored_squares(const lb_tensor_rule *r, matrices m, const double *row, const double *column, double *v)
{
    double mean = 0;
    for (int64_t i = 0; i < m.rows; i++) mean += row[i] / (double)m.rows;
    if (!r->relative) mean = fmax(mean, r->eps);
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t k = 0; k < m.columns; k++) v[i * m.columns + k] = row[i] * column[k] / mean;
}

static lb_status square_estimate(const lb_tensor_rule *r, const lb_tensor_numbers *x, double w, double *v)
{
    const matrices m = matrices_of(x->shape);
    if (x->shape->ndim < 2) {
        for (int64_t i = 0; i < m.columns; i++)
            v[i] = (1 - w) * (x->states[2] ? x->states[2][i] : 0) +
                   w * (x->gradient[i] * x->gradient[i] + (r->relative ? r->eps : 0));
        return LB_OK;
    }
    double *row = malloc(sizeof *row * (size_t)(m.rows + m.columns)), *column = row + m.rows;
    if (!row) return LB_ERR_NOMEM;
    for (int64_t i = 0; i < m.n; i++) {
        const double *g = x->gradient + i * m.rows * m.columns;
        average_squares(r, g, m, x->states[0] ? x->states[0] + i * m.rows : NULL, w, true, row);
        average_squares(r, g, m, x->states[1] ? x->states[1] + i * m.columns : NULL, w, false, column);
        factored_squares(r, m, row, column, v + i * m.rows * m.columns);
    }
    free(row);
    return LB_OK;
}

/* `form` 1: eps is that of f32, which torch takes where the group says none; 2: of bf16. */
static lb_status adafactor(const lb_tensor_rule *rule, uint32_t form, const lb_tensor_numbers *x, double *after)
{
    lb_tensor_rule r = *rule;
    const int64_t n = lb_layout_numel(x->shape);
    const double root = sqrt((double)n), w = pow(x->steps, r.decay);
    if (form > 1 || (form && (r.relative || !isnan(r.eps)))) return LB_ERR_NOT_FOUND;
    if (isnan(r.eps)) r.eps = form ? 0x1p-7 : 0x1p-23;
    const double step = fmin(r.relative ? 1e-2 : r.lr, 1 / sqrt(x->steps));
    const double rate = r.relative && r.lr_is_given ? r.lr : step;
    const double alpha = rate * (r.scales ? fmax(r.eps2, norm_of(x->before, n) / root) : 1);
    LB_TRY(square_estimate(&r, x, w, after));
    for (int64_t i = 0; i < n; i++)
        after[i] = x->gradient[i] / sqrt(r.relative ? after[i] : fmax(after[i], r.eps * r.eps));
    const double large = fmax(1, norm_of(after, n) / root / r.clip);
    const double decay = r.weight_decay * (r.relative ? alpha : r.lr);
    for (int64_t i = 0; i < n; i++)
        after[i] = x->before[i] * (1 - decay) - r.times * (r.ascends ? -1 : 1) * alpha * after[i] / large;
    return LB_OK;
}

/* ---- Muon ---- */

/* x = a x + (b x x' + c (x x')^2) x, of `rows` that are not more than `columns`; room: rows * rows twice, and an x. */
static lb_status round_of(const lb_tensor_rule *r, int64_t rows, int64_t columns, double *x, double *room)
{
    double *gram = room, *square = room + rows * rows, *next = square + rows * rows;
    const size_t m = (size_t)rows, n = (size_t)columns;
    const lb_matrix a = {x, LB_F64, columns, 1}, turned = {x, LB_F64, 1, columns}, g = {gram, LB_F64, rows, 1};
    LB_TRY(lb_matmul_f64(m, m, n, &a, &turned, gram, rows, NULL));
    LB_TRY(lb_matmul_f64(m, m, m, &g, &g, square, rows, NULL));
    for (int64_t i = 0; i < rows * rows; i++) gram[i] = r->coefficients[1] * gram[i] + r->coefficients[2] * square[i];
    LB_TRY(lb_matmul_f64(m, n, m, &g, &a, next, columns, NULL));
    for (int64_t i = 0; i < rows * columns; i++) x[i] = r->coefficients[0] * x[i] + next[i];
    return LB_OK;
}

/* In place; what is higher than wide is turned meanwhile. `adds`: eps is added to the norm, and not the least of it. */
static lb_status orthogonalise(const lb_tensor_rule *r, int64_t rows, int64_t columns, bool adds, double *u)
{
    const int64_t low = rows < columns ? rows : columns, high = rows < columns ? columns : rows, n = rows * columns;
    double *x = malloc(sizeof *x * (size_t)(2 * n + 2 * low * low)), *room = x + n;
    if (!x) return LB_ERR_NOMEM;
    const double norm = norm_of(u, n), by = adds ? norm + r->eps : fmax(norm, r->eps);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            x[rows > columns ? k * rows + i : i * columns + k] = u[i * columns + k] / by;
    lb_status status = LB_OK;
    for (int i = 0; i < r->rounds && status == LB_OK; i++) status = round_of(r, low, high, x, room);
    for (int64_t i = 0; i < rows && status == LB_OK; i++)
        for (int64_t k = 0; k < columns; k++) u[i * columns + k] = x[rows > columns ? k * rows + i : i * columns + k];
    free(x);
    return status;
}

/* Forms: how the momentum is kept (an average, a sum), what eps does (the least norm, added), which s. */
static lb_status muon(const lb_tensor_rule *r, uint32_t form, const lb_tensor_numbers *x, double *after)
{
    const bool sums = form & 1, adds = form & 2;
    const uint32_t sizes = form >> 2;
    if (x->shape->ndim < 2 || sizes > 2) return LB_ERR_NOT_FOUND;
    const int64_t n = lb_layout_numel(x->shape), rows = x->shape->shape[0], columns = rows ? n / rows : 0;
    const double a = (double)rows, b = (double)columns, keep = r->momentum, take = sums ? 1 : 1 - keep;
    const double s = sizes == 0 ? sqrt(fmax(1, a / b)) : sizes == 1 ? 0.2 * sqrt(fmax(a, b)) : 1;
    for (int64_t i = 0; i < n; i++) {
        const double g = r->ascends ? -x->gradient[i] : x->gradient[i];
        const double m = keep * (x->states[0] ? x->states[0][i] : 0) + take * g;
        after[i] = r->nesterov ? take * g + keep * m : m;
    }
    LB_TRY(orthogonalise(r, rows, columns, adds, after));
    for (int64_t i = 0; i < n; i++)
        after[i] = x->before[i] * (1 - r->lr * r->weight_decay) - r->times * r->lr * s * after[i];
    return LB_OK;
}

/* ---- LAMB ---- */

bool lb_tensor_rule_clips(const lb_tensor_rule *r)
{
    return r->max_norm > 0;
}

const char *lb_tensor_clip_words(lb_clip_way way)
{
    return way == LB_CLIP_NONE  ? "does not clip its gradients"
           : way == LB_CLIP_OWN ? "clips each gradient by its own norm, and not by that of all"
                                : "divides by the norm of its gradients where that is below its max_grad_norm, too";
}

/* What its gradients are divided by. */
static double divisor_of(const lb_tensor_rule *r, lb_clip_way way, const lb_tensor_numbers *x)
{
    if (!lb_tensor_rule_clips(r) || way == LB_CLIP_NONE) return 1;
    const double norm = way == LB_CLIP_GROUP ? x->group_norm
                        : way == LB_CLIP_OWN ? norm_of(x->gradient, lb_layout_numel(x->shape))
                                             : x->norm + (way == LB_CLIP_ALL_EPS ? r->eps : 0);
    const double by = norm / r->max_norm * r->divides;
    return way == LB_CLIP_ALWAYS ? by : fmax(1, by);
}

/* Forms: without the correction of the moments; without the ratio where nothing decays; the norm of p at most 10; a
 * ratio of 0 where p is 0, as the paper has it, and not 1; above these, by which norm gradients are clipped. */
static lb_status lamb(const lb_tensor_rule *r, uint32_t form, const lb_tensor_numbers *x, double *after)
{
    const bool plain = form & 1, decays = form & 2, least = form & 4, strict = form & 8;
    const lb_clip_way clip = form < 16 ? r->clips_by : (lb_clip_way)(form / 16);
    if (clip >= (form < 16 ? LB_CLIP_WAYS : LB_CLIP_FORMS) || (form > 15 && !lb_tensor_rule_clips(r)))
        return LB_ERR_NOT_FOUND;
    if (decays && r->weight_decay != 0) return LB_ERR_NOT_FOUND;
    const double by = divisor_of(r, clip, x) * (r->ascends ? -1 : 1);
    const int64_t n = lb_layout_numel(x->shape);
    const double first = plain ? 1 : 1 - pow(r->first, x->steps), second = plain ? 1 : 1 - pow(r->second, x->steps);
    for (int64_t i = 0; i < n; i++) {
        const double g = x->gradient[i] / by;
        const double m = r->first * (x->states[0] ? x->states[0][i] : 0) + r->takes * g;
        const double v = r->second * (x->states[1] ? x->states[1][i] : 0) + (1 - r->second) * g * g;
        after[i] = m / first / (sqrt(v / second) + r->eps) + (r->decays_apart ? 0 : r->weight_decay) * x->before[i];
    }
    const double stays = r->decays_apart ? 1 - r->lr * r->weight_decay : 1;
    const double norm = stays * norm_of(x->before, n), size = least ? fmin(norm, 10) : norm, of = norm_of(after, n);
    const bool adapts = of > 0 && (size > 0 || strict) && !decays;
    const double ratio = adapts ? fmin(size / of, r->ratio_is_clipped ? 1 : INFINITY) : 1;
    for (int64_t i = 0; i < n; i++) after[i] = stays * x->before[i] - r->times * r->lr * ratio * after[i];
    return LB_OK;
}

lb_status lb_tensor_rule_apply(const lb_tensor_rule *r, uint32_t form, const lb_tensor_numbers *x, double *after)
{
    static lb_status (*const moves[LB_TENSOR_FAMILIES])(const lb_tensor_rule *, uint32_t, const lb_tensor_numbers *,
                                                        double *) = {adafactor, muon, lamb};
    return moves[r->family](r, form, x, after);
}
