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

static double get(const rule *r, const void *x, int64_t i)
{
    const double value = lb_frame_get(&r->frame, x, i);
    return r->twin ? fabs(value) : value;
}

static void put(const rule *r, void *y, int64_t i, double value)
{
    if (y) lb_frame_set(&r->frame, y, i, r->twin ? value * r->slack : value);
}

static bool open_rule(rule *r, lb_call *call, const rule_form *f, bool twin)
{
    const lb_tensor *q = lb_frame_arg_tensor(call, f->in[Q]), *v = lb_frame_arg_tensor(call, f->in[V]);
    *r = (rule){.frame = lb_frame_begin(call), .twin = twin, .scale = lb_frame_arg_float(call, f->scale, 1)};
    bool fits = q && v && q->layout.ndim == 4 && v->layout.ndim == 4;
    for (int i = 0; fits && i < INPUTS; i++) {
        const lb_tensor *t = lb_frame_arg_tensor(call, f->in[i]);
        fits = t && lb_tensor_numel(t) == lb_tensor_numel(i == V ? v : q);
    }
    if (fits) {
        const int64_t *shape = q->layout.shape;
        const bool ragged =
            f->varlen ? lb_frame_arg_int(call, f->varlen, 0) != 0 : lb_frame_arg_given(call, f->borders);
        const lb_tensor *borders = ragged ? lb_frame_arg_tensor(call, f->borders) : NULL;
        const bool begun = f->has ? lb_frame_arg_int(call, f->has, 0) != 0 : lb_frame_arg_given(call, f->h0);
        const lb_tensor *h0 = begun ? lb_frame_arg_tensor(call, f->h0) : NULL;
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
    for (int i = 0; i < INPUTS; i++) r->in[i] = lb_frame_input(&r->frame, f->in[i]);
    r->slack = 1 + 4 * lb_frame_twin_rounding(call, f->in[Q]);
    if (twin) r->scale = fabs(r->scale);
    return lb_frame_ok(&r->frame);
}

static int64_t length_of(const rule *r, int64_t sequence)
{
    return r->borders ? r->borders[sequence + 1] - r->borders[sequence] : r->tokens;
}

/* Which (token, head) step t of a sequence's head is. */
static int64_t place(const rule *r, int64_t sequence, int64_t head, int64_t t)
{
    return ((r->borders ? r->borders[sequence] : sequence * r->tokens) + t) * r->heads + head;
}

static double decay_of(const rule *r, int64_t at, int64_t k)
{
    const double g = lb_frame_get(&r->frame, r->in[G], at * r->keys + k), decay = lb_exp(g);
    return r->twin ? decay * (1 + fabs(g)) : decay;
}

/* aᵀ S */
static void project(const rule *r, int64_t at, const double *s, double *sa)
{
    for (int64_t v = 0; v < r->values; v++) sa[v] = 0;
    for (int64_t k = 0; k < r->keys; k++)
        for (int64_t v = 0; v < r->values; v++) sa[v] += get(r, r->in[A], at * r->keys + k) * s[k * r->values + v];
}

static void step(const rule *r, int64_t at, const double *before, double *sa, double *after)
{
    project(r, at, before, sa);
    for (int64_t k = 0; k < r->keys; k++) {
        const double decay = decay_of(r, at, k), b = get(r, r->in[B], at * r->keys + k),
                     key = get(r, r->in[K], at * r->keys + k);
        for (int64_t v = 0; v < r->values; v++)
            after[k * r->values + v] =
                decay * before[k * r->values + v] + b * sa[v] + key * get(r, r->in[V], at * r->values + v);
    }
}

static void load_state(const rule *r, int64_t state, double *s)
{
    const int64_t n = r->keys * r->values;
    for (int64_t i = 0; i < n; i++) s[i] = r->h0 ? get(r, r->h0, state * n + i) : 0;
}

static lb_status forward(lb_call *call, const rule_form *f, bool twin)
{
    rule r;
    if (!open_rule(&r, call, f, twin)) return lb_frame_end(&r.frame);
    const int64_t n = r.keys * r.values, states = r.sequences * r.heads;
    const lb_tensor *last = call->n_results > 1 ? &call->results[1] : NULL;
    void *o = lb_frame_output(&r.frame, 0, lb_tensor_numel(lb_frame_arg_tensor(call, f->in[V]))),
         *final = last && last->dtype && lb_tensor_numel(last) ? lb_frame_output(&r.frame, 1, states * n) : NULL;
    double *s = lb_frame_scratch(&r.frame, (size_t)(2 * n + r.values) * sizeof *s), *next = s + n;
    for (int64_t i = 0; lb_frame_ok(&r.frame) && i < states; i++) {
        load_state(&r, i, s);
        for (int64_t t = 0; t < length_of(&r, i / r.heads); t++) {
            const int64_t at = place(&r, i / r.heads, i % r.heads, t);
            step(&r, at, s, next + n, next);
            memcpy(s, next, (size_t)n * sizeof *s);
            for (int64_t v = 0; v < r.values; v++) {
                double sum = 0;
                for (int64_t k = 0; k < r.keys; k++) sum += get(&r, r.in[Q], at * r.keys + k) * s[k * r.values + v];
                put(&r, o, at * r.values + v, r.scale * sum);
            }
        }
        for (int64_t k = 0; k < n; k++) put(&r, final, i * n + k, s[k]);
    }
    return lb_frame_end(&r.frame);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct gradients {
    const void *dout;
    void *of[INPUTS];
    double *g, *dsa; /* of the state after a step; of aᵀ S */
} gradients;

/* One step back: `d->g` is the gradient of `after`, then of `before`. */
static void step_back(const rule *r, gradients *d, int64_t at, const double *before, const double *after,
                      const double *sa)
{
    const int64_t n = r->values;
    for (int64_t v = 0; v < n; v++) d->dsa[v] = 0;
    for (int64_t v = 0; v < n; v++) {
        double of_v = 0;
        for (int64_t k = 0; k < r->keys; k++) {
            double *g = &d->g[k * n + v];
            *g += r->scale * get(r, r->in[Q], at * r->keys + k) * get(r, d->dout, at * n + v);
            of_v += *g * get(r, r->in[K], at * r->keys + k);
            d->dsa[v] += *g * get(r, r->in[B], at * r->keys + k);
        }
        put(r, d->of[V], at * n + v, of_v);
    }
    for (int64_t k = 0; k < r->keys; k++) {
        const double decay = decay_of(r, at, k), a = get(r, r->in[A], at * r->keys + k);
        double of_q = 0, of_k = 0, of_a = 0, of_b = 0, of_g = 0;
        for (int64_t v = 0; v < n; v++) {
            double *g = &d->g[k * n + v];
            of_q += after[k * n + v] * get(r, d->dout, at * n + v), of_k += *g * get(r, r->in[V], at * n + v);
            of_a += d->dsa[v] * before[k * n + v], of_b += *g * sa[v], of_g += *g * before[k * n + v];
            *g = decay * *g + a * d->dsa[v];
        }
        const int64_t i = at * r->keys + k;
        put(r, d->of[Q], i, r->scale * of_q), put(r, d->of[K], i, of_k), put(r, d->of[A], i, of_a);
        put(r, d->of[B], i, of_b), put(r, d->of[G], i, decay * of_g);
    }
}

/* Args: gradients of o and of the final state, then what `f` says. Results: gradients of q, k, v, a, b, g and h0. */
static lb_status backward(lb_call *call, const rule_form *f, bool twin)
{
    rule r;
    if (!open_rule(&r, call, f, twin)) return lb_frame_end(&r.frame);
    const int64_t n = r.keys * r.values, states = r.sequences * r.heads;
    const lb_tensor *dout = lb_frame_arg_tensor(call, 0), *dlast = lb_frame_arg_tensor(call, 1);
    int64_t longest = 0;
    for (int64_t i = 0; i < r.sequences; i++) longest = length_of(&r, i) > longest ? length_of(&r, i) : longest;
    if (!dout || lb_tensor_numel(dout) != lb_tensor_numel(lb_frame_arg_tensor(call, f->in[V])))
        lb_frame_fail(&r.frame, LB_ERR_UNSUPPORTED, "a gradient of another size");
    if (dlast && !lb_tensor_numel(dlast)) dlast = NULL; /* there is none */
    if (dlast && lb_tensor_numel(dlast) != states * n)
        lb_frame_fail(&r.frame, LB_ERR_UNSUPPORTED, "a gradient of a final state of another size");
    gradients d = {.dout = lb_frame_tensor(&r.frame, dout)};
    const void *of_last = lb_frame_tensor(&r.frame, dlast);
    for (uint32_t i = 0; i < INPUTS; i++)
        d.of[i] = lb_frame_output(&r.frame, i, lb_tensor_numel(lb_frame_arg_tensor(call, f->in[i])));
    void *of_h0 = r.h0 ? lb_frame_output(&r.frame, INPUTS, states * n) : NULL;
    double *s = lb_frame_scratch(&r.frame, (size_t)((longest + 2) * n + 2 * r.values) * sizeof *s);
    d.g = s ? s + (longest + 1) * n : NULL, d.dsa = s ? d.g + n : NULL;
    double *sa = s ? d.dsa + r.values : NULL;
    for (int64_t i = 0; lb_frame_ok(&r.frame) && i < states; i++) {
        const int64_t length = length_of(&r, i / r.heads);
        load_state(&r, i, s);
        for (int64_t t = 0; t < length; t++)
            step(&r, place(&r, i / r.heads, i % r.heads, t), s + t * n, sa, s + (t + 1) * n);
        for (int64_t k = 0; k < n; k++) d.g[k] = of_last ? get(&r, of_last, i * n + k) : 0;
        for (int64_t t = length; t-- > 0;) {
            const int64_t at = place(&r, i / r.heads, i % r.heads, t);
            project(&r, at, s + t * n, sa);
            step_back(&r, &d, at, s + t * n, s + (t + 1) * n, sa);
        }
        for (int64_t k = 0; k < n; k++) put(&r, of_h0, i * n + k, d.g[k]);
    }
    return lb_frame_end(&r.frame);
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
