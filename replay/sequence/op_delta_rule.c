/* The generalised delta rule of fla-org/flash-linear-attention, forward and backward: RWKV-7's attention.
 *
 *      S = diag(exp g) S + b (aᵀ S) + k vᵀ,   o = scale Sᵀ q          S (keys, values) of one head of one sequence
 *
 * q, k, a, b, g (batch, tokens, heads, keys), v and o with values; with borders, sequences stand end to end in one
 * batch. Names and schemas: fla/ops/generalized_delta_rule/dplr/backends/tilelang/chunk.py and fla/ops/rwkv7's fused
 * recurrent op; the definition is dplr/naive.py. What the originals keep between chunks is taken as recorded and not
 * read. Twins follow magnitudes, which nothing subtracts from, so that the bound of a long sequence says little. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

enum { Q, K, V, A, B, G, INPUTS };

/* Positions in the schema; has, varlen 0: there are h0 and borders where they are given. */
typedef struct rule_form {
    uint8_t in[INPUTS], h0, borders, scale, has, varlen;
} rule_form;

typedef struct rule {
    lb_frame frame;
    int64_t tokens, heads, keys, values, sequences; /* tokens of one sequence, without borders */
    const void *in[INPUTS], *h0;
    const int64_t *borders;
    double scale, slack;
    bool twin;
} rule;

static double get(const rule *rule, const void *x, int64_t i)
{
    const double value = lb_frame_get(&rule->frame, x, i);
    return rule->twin ? fabs(value) : value;
}

static void put(const rule *rule, void *y, int64_t i, double value)
{
    if (y) lb_frame_set(&rule->frame, y, i, rule->twin ? value * rule->slack : value);
}

static bool open_rule(rule *r, lb_call *call, const rule_form *rule_form, bool twin)
{
    const lb_tensor *q = lb_frame_arg_tensor(call, rule_form->in[Q]), *v = lb_frame_arg_tensor(call, rule_form->in[V]);
    *r = (rule){.frame = lb_frame_begin(call), .twin = twin, .scale = lb_frame_arg_float(call, rule_form->scale, 1)};
    bool fits = q && v && q->layout.ndim == 4 && v->layout.ndim == 4;
    for (int i = 0; fits && i < INPUTS; i++) {
        const lb_tensor *t = lb_frame_arg_tensor(call, rule_form->in[i]);
        fits = t && lb_tensor_numel(t) == lb_tensor_numel(i == V ? v : q);
    }
    if (fits) {
        const int64_t *shape = q->layout.shape;
        const bool ragged = rule_form->varlen ? lb_frame_arg_int(call, rule_form->varlen, 0) != 0
                                              : lb_frame_arg_given(call, rule_form->borders);
        const lb_tensor *borders = ragged ? lb_frame_arg_tensor(call, rule_form->borders) : NULL;
        const bool begun =
            rule_form->has ? lb_frame_arg_int(call, rule_form->has, 0) != 0 : lb_frame_arg_given(call, rule_form->h0);
        const lb_tensor *h0 = begun ? lb_frame_arg_tensor(call, rule_form->h0) : NULL;
        r->tokens = shape[1], r->heads = shape[2], r->keys = shape[3], r->values = v->layout.shape[3];
        r->sequences = borders ? lb_tensor_numel(borders) - 1 : shape[0];
        fits = (!ragged || (borders && shape[0] == 1)) && r->sequences >= 0 &&
               lb_tensor_numel(v) == shape[0] * r->tokens * r->heads * r->values &&
               (!begun || (h0 && lb_tensor_numel(h0) == r->sequences * r->heads * r->keys * r->values));
        r->borders = lb_frame_integers(&r->frame, borders), r->h0 = lb_frame_tensor(&r->frame, h0);
        for (int64_t s = 0; fits && r->borders && s < r->sequences; s++)
            fits = r->borders[s] >= 0 && r->borders[s] <= r->borders[s + 1] && r->borders[s + 1] <= r->tokens;
    }
    if (!fits)
        lb_frame_fail(&r->frame, LB_ERR_UNSUPPORTED,
                      "(batch, tokens, heads, keys) with states and borders that do not belong to it");
    for (int i = 0; i < INPUTS; i++) r->in[i] = lb_frame_input(&r->frame, rule_form->in[i]);
    r->slack = 1 + 4 * lb_frame_twin_rounding(call, rule_form->in[Q]);
    if (twin) r->scale = fabs(r->scale);
    return lb_frame_ok(&r->frame);
}

static int64_t length_of(const rule *rule, int64_t sequence)
{
    return rule->borders ? rule->borders[sequence + 1] - rule->borders[sequence] : rule->tokens;
}

/* Which (token, head) step t of a sequence's head is. */
static int64_t place(const rule *rule, int64_t sequence, int64_t head, int64_t t)
{
    return ((rule->borders ? rule->borders[sequence] : sequence * rule->tokens) + t) * rule->heads + head;
}

static double decay_of(const rule *rule, int64_t at, int64_t k)
{
    const double g = lb_frame_get(&rule->frame, rule->in[G], at * rule->keys + k), decay = lb_exp(g);
    return rule->twin ? decay * (1 + fabs(g)) : decay;
}

/* aᵀ S */
static void project(const rule *rule, int64_t at, const double *s, double *sa)
{
    for (int64_t v = 0; v < rule->values; v++) sa[v] = 0;
    for (int64_t k = 0; k < rule->keys; k++)
        for (int64_t v = 0; v < rule->values; v++)
            sa[v] += get(rule, rule->in[A], at * rule->keys + k) * s[k * rule->values + v];
}

static void step(const rule *rule, int64_t at, const double *before, double *sa, double *after)
{
    project(rule, at, before, sa);
    for (int64_t k = 0; k < rule->keys; k++) {
        const double decay = decay_of(rule, at, k), b = get(rule, rule->in[B], at * rule->keys + k),
                     key = get(rule, rule->in[K], at * rule->keys + k);
        for (int64_t v = 0; v < rule->values; v++)
            after[k * rule->values + v] =
                decay * before[k * rule->values + v] + b * sa[v] + key * get(rule, rule->in[V], at * rule->values + v);
    }
}

static void load_state(const rule *rule, int64_t state, double *s)
{
    const int64_t n = rule->keys * rule->values;
    for (int64_t i = 0; i < n; i++) s[i] = rule->h0 ? get(rule, rule->h0, state * n + i) : 0;
}

static lb_status forward(lb_call *call, const rule_form *rule_form, bool twin)
{
    rule rule;
    if (!open_rule(&rule, call, rule_form, twin)) return lb_frame_end(&rule.frame);
    const int64_t n = rule.keys * rule.values, states = rule.sequences * rule.heads;
    const lb_tensor *last = call->n_results > 1 ? &call->results[1] : NULL;
    void *o = lb_frame_output(&rule.frame, 0, lb_tensor_numel(lb_frame_arg_tensor(call, rule_form->in[V]))),
         *final = last && last->dtype && lb_tensor_numel(last) ? lb_frame_output(&rule.frame, 1, states * n) : NULL;
    double *s = lb_frame_scratch(&rule.frame, (size_t)(2 * n + rule.values) * sizeof *s), *next = s + n;
    for (int64_t i = 0; lb_frame_ok(&rule.frame) && i < states; i++) {
        load_state(&rule, i, s);
        for (int64_t t = 0; t < length_of(&rule, i / rule.heads); t++) {
            const int64_t at = place(&rule, i / rule.heads, i % rule.heads, t);
            step(&rule, at, s, next + n, next);
            memcpy(s, next, (size_t)n * sizeof *s);
            for (int64_t v = 0; v < rule.values; v++) {
                double sum = 0;
                for (int64_t k = 0; k < rule.keys; k++)
                    sum += get(&rule, rule.in[Q], at * rule.keys + k) * s[k * rule.values + v];
                put(&rule, o, at * rule.values + v, rule.scale * sum);
            }
        }
        for (int64_t k = 0; k < n; k++) put(&rule, final, i * n + k, s[k]);
    }
    return lb_frame_end(&rule.frame);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct gradients {
    const void *dout;
    void *of[INPUTS];
    double *g, *dsa; /* of the state after a step; of aᵀ S */
} gradients;

/* One step back: `gradients->g` is the gradient of `after`, then of `before`. */
static void step_back(const rule *rule, gradients *gradients, int64_t at, const double *before, const double *after,
                      const double *sa)
{
    const int64_t n = rule->values;
    for (int64_t v = 0; v < n; v++) gradients->dsa[v] = 0;
    for (int64_t v = 0; v < n; v++) {
        double of_v = 0;
        for (int64_t k = 0; k < rule->keys; k++) {
            double *g = &gradients->g[k * n + v];
            *g += rule->scale * get(rule, rule->in[Q], at * rule->keys + k) * get(rule, gradients->dout, at * n + v);
            of_v += *g * get(rule, rule->in[K], at * rule->keys + k);
            gradients->dsa[v] += *g * get(rule, rule->in[B], at * rule->keys + k);
        }
        put(rule, gradients->of[V], at * n + v, of_v);
    }
    for (int64_t k = 0; k < rule->keys; k++) {
        const double decay = decay_of(rule, at, k), a = get(rule, rule->in[A], at * rule->keys + k);
        double of_q = 0, of_k = 0, of_a = 0, of_b = 0, of_g = 0;
        for (int64_t v = 0; v < n; v++) {
            double *g = &gradients->g[k * n + v];
            of_q += after[k * n + v] * get(rule, gradients->dout, at * n + v),
                of_k += *g * get(rule, rule->in[V], at * n + v);
            of_a += gradients->dsa[v] * before[k * n + v], of_b += *g * sa[v], of_g += *g * before[k * n + v];
            *g = decay * *g + a * gradients->dsa[v];
        }
        const int64_t i = at * rule->keys + k;
        put(rule, gradients->of[Q], i, rule->scale * of_q), put(rule, gradients->of[K], i, of_k),
            put(rule, gradients->of[A], i, of_a);
        put(rule, gradients->of[B], i, of_b), put(rule, gradients->of[G], i, decay * of_g);
    }
}

/* Args: gradients of o and of the final state, then what the form says.
 * Results: gradients of q, k, v, a, b, g and h0. */
static lb_status backward(lb_call *call, const rule_form *rule_form, bool twin)
{
    rule rule;
    if (!open_rule(&rule, call, rule_form, twin)) return lb_frame_end(&rule.frame);
    const int64_t n = rule.keys * rule.values, states = rule.sequences * rule.heads;
    const lb_tensor *dout = lb_frame_arg_tensor(call, 0), *dlast = lb_frame_arg_tensor(call, 1);
    int64_t longest = 0;
    for (int64_t i = 0; i < rule.sequences; i++)
        longest = length_of(&rule, i) > longest ? length_of(&rule, i) : longest;
    if (!dout || lb_tensor_numel(dout) != lb_tensor_numel(lb_frame_arg_tensor(call, rule_form->in[V])))
        lb_frame_fail(&rule.frame, LB_ERR_UNSUPPORTED, "a gradient of another size");
    if (dlast && !lb_tensor_numel(dlast)) dlast = NULL; /* there is none */
    if (dlast && lb_tensor_numel(dlast) != states * n)
        lb_frame_fail(&rule.frame, LB_ERR_UNSUPPORTED, "a gradient of a final state of another size");
    gradients gradients = {.dout = lb_frame_tensor(&rule.frame, dout)};
    const void *of_last = lb_frame_tensor(&rule.frame, dlast);
    for (uint32_t i = 0; i < INPUTS; i++)
        gradients.of[i] = lb_frame_output(&rule.frame, i, lb_tensor_numel(lb_frame_arg_tensor(call, rule_form->in[i])));
    void *of_h0 = rule.h0 ? lb_frame_output(&rule.frame, INPUTS, states * n) : NULL;
    double *s = lb_frame_scratch(&rule.frame, (size_t)((longest + 2) * n + 2 * rule.values) * sizeof *s);
    gradients.g = s ? s + (longest + 1) * n : NULL, gradients.dsa = s ? gradients.g + n : NULL;
    double *sa = s ? gradients.dsa + rule.values : NULL;
    for (int64_t i = 0; lb_frame_ok(&rule.frame) && i < states; i++) {
        const int64_t length = length_of(&rule, i / rule.heads);
        load_state(&rule, i, s);
        for (int64_t t = 0; t < length; t++)
            step(&rule, place(&rule, i / rule.heads, i % rule.heads, t), s + t * n, sa, s + (t + 1) * n);
        for (int64_t k = 0; k < n; k++) gradients.g[k] = of_last ? get(&rule, of_last, i * n + k) : 0;
        for (int64_t t = length; t-- > 0;) {
            const int64_t at = place(&rule, i / rule.heads, i % rule.heads, t);
            project(&rule, at, s + t * n, sa);
            step_back(&rule, &gradients, at, s + t * n, s + (t + 1) * n, sa);
        }
        for (int64_t k = 0; k < n; k++) put(&rule, of_h0, i * n + k, gradients.g[k]);
    }
    return lb_frame_end(&rule.frame);
}

#define KERNELS(ID, RUN, ...)                                                                                          \
    static const rule_form ID##_form = {__VA_ARGS__};                                                                  \
    LB_WITH_TWIN(ID, RUN(call, &ID##_form, twin))
KERNELS(chunk, forward, {0, 1, 2, 3, 4, 5}, 6, 7, 8, 9, 11)
KERNELS(recurrent, forward, {0, 2, 3, 4, 5, 1}, 7, 9, 6, 0, 0)
KERNELS(chunk_back, backward, {2, 3, 4, 5, 6, 7}, 8, 9, 12, 13, 14)
KERNELS(chunk_back_kept, backward, {2, 3, 4, 5, 6, 7}, 8, 9, 23, 24, 25)

#define ROW(NAME, ARGS, ID, FLAGS)                                                                                     \
    {.name = "fla::" NAME,                                                                                             \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = 32,                                                                                                  \
     .roundings_per_term = 8,                                                                                          \
     .terms = LB_TERMS(STEPS, 2),                                                                                      \
     .flags = FLAGS,                                                                                                   \
     .samples = "custom"},
#define RULE "q! k! v! a! b! gk h0 cu_seqlens "
#define KEPT "h_ctx v_new_ctx qg_ctx kg_ctx ag_ctx bg_ctx w_ctx A_ab_inv_ctx A_ak_ctx A_qk_ctx A_qb_ctx "
#define HOW "scale has_initial_state output_final_state is_varlen chunk_size"
#define HOW_BACK "scale has_initial_state is_varlen chunk_size"
/* clang-format off */
const lb_op_row lb_rows_delta_rule[] = {
    ROW("chunk_dplr_delta_rule_fwd", RULE HOW, chunk, LB_ROW_GIVEN(2, 2))
    ROW("chunk_dplr_delta_rule_fwd_ctx", RULE HOW, chunk, LB_ROW_GIVEN(2, 13))
    ROW("chunk_dplr_delta_rule_bwd", "do dht " RULE "chunk_indices chunk_offsets " HOW_BACK, chunk_back, 0)
    ROW("chunk_dplr_delta_rule_bwd_ctx", "do dht " RULE "chunk_indices chunk_offsets " KEPT HOW_BACK, chunk_back_kept, 0)
    ROW("fused_recurrent_rwkv7", "r! w k! v! a! b! scale initial_state output_final_state cu_seqlens", recurrent, 0)
    {NULL}};
