/* Gradients of results of forward ops: see cotangents.h. */
#include "moved/cotangents.h"

#include <stdlib.h>
#include <string.h>

static bool same_shape(const lb_layout *a, const lb_layout *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->ndim) == 0;
}

typedef struct search {
    const lb_moved_run *run;
    const lb_trained *trained;
    int64_t node;
    const lb_layout *like;
    uint32_t found, candidates;
} search;

/* A gradient comes from the loss's seed, and not from the node itself. */
static void consider(void *context, uint32_t v)
{
    search *s = context;
    const lb_program *p = s->run->program;
    const uint32_t giver = s->run->graph.giver[v];
    if (giver == LB_NONE || p->ops[giver].phase != LB_PHASE_BACKWARD || p->ops[giver].node == s->node) return;
    if (!lb_dtype_is_float(p->values[v].dtype) || !same_shape(&p->values[v].layout, s->like)) return;
    if (!lb_trained_from(s->run, s->trained, v) || v == s->found) return;
    s->found = v, s->candidates++;
}

bool lb_cotangents_node(const lb_program *p, uint32_t op, int64_t *node)
{
    const lb_op *o = &p->ops[op];
    *node = o->node - 1;
    if (o->phase != LB_PHASE_FORWARD || o->node < 1 || lb_op_is_source(p, o)) return false;
    for (uint32_t i = op; i-- > 0;) {
        const lb_op *before = &p->ops[i];
        if (before->phase == LB_PHASE_FORWARD && before->thread == o->thread && before->node >= 0 &&
            !lb_op_is_source(p, before))
            return o->node > before->node;
    }
    return true;
}

bool lb_cotangents_is_custom(const lb_program *p, uint32_t op)
{
    const lb_op *o = &p->ops[op];
    const char *name = o->node_name == LB_NONE ? "" : lb_program_text(p, o->node_name);
    const size_t n = strlen(name);
    return o->phase == LB_PHASE_BACKWARD && n > 8 && strcmp(name + n - 8, "Backward") == 0 && !strstr(name, "::");
}

bool lb_cotangents_is_foreign(const lb_moved_run *run, uint32_t op)
{
    const lb_program *p = run->program;
    const uint32_t forward = run->graph.forward[op];
    return p->ops[op].line && forward != LB_NONE && p->ops[forward].line && p->ops[op].line != p->ops[forward].line;
}

static bool is_custom_node(const lb_program *p, int64_t node)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].node == node && lb_cotangents_is_custom(p, i)) return true;
    return false;
}

lb_check_seen lb_cotangents_seen(const lb_program *p, uint32_t op)
{
    int64_t node;
    if (lb_cotangents_node(p, op, &node) && !is_custom_node(p, node)) return LB_SEEN_FOLLOWED;
    return p->ops[op].node > 0 && is_custom_node(p, p->ops[op].node - 1) ? LB_SEEN_WRAPPED : LB_SEEN_CONSTANT;
}

/* Ops whose backward reads their result, by torch's derivatives.yaml: autograd keeps it detached, right behind the
 * op. */
static bool keeps_result(const char *name)
{
    static const char *const names[] = {"exp",
                                        "exp2",
                                        "expm1",
                                        "sqrt",
                                        "rsqrt",
                                        "reciprocal",
                                        "sigmoid",
                                        "tanh",
                                        "tan",
                                        "_softmax",
                                        "relu",
                                        "_log_softmax",
                                        "threshold",
                                        "elu_",
                                        "cumprod",
                                        "prod",
                                        "pow",
                                        "norm",
                                        "logsumexp",
                                        "amax",
                                        "amin",
                                        "std",
                                        "logcumsumexp",
                                        "sgn",
                                        "leaky_relu_",
                                        "relu_",
                                        "sigmoid_",
                                        "tanh_",
                                        "linalg_vector_norm",
                                        "exp_",
                                        "sqrt_",
                                        "rsqrt_",
                                        "reciprocal_",
                                        "_safe_softmax",
                                        "_sparse_softmax",
                                        "linalg_inv_ex",
                                        "linalg_cholesky_ex",
                                        "hardtanh_",
                                        "cummax",
                                        "cummin"};
    const char *base = strncmp(name, "aten::", 6) == 0 ? name + 6 : name;
    const size_t n = strcspn(base, ".");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && strncmp(base, names[i], n) == 0) return true;
    return strncmp(base, "_scaled_dot_product", 19) == 0 || strncmp(base, "native_", 7) == 0;
}

bool lb_cotangents_detaches(const lb_program *p, uint32_t op)
{
    const lb_op *o = &p->ops[op];
    if (strcmp(lb_op_name(p, o), "aten::detach") != 0 || o->phase != LB_PHASE_FORWARD) return false;
    if (!op || !o->args || lb_op_args(p, o)[0].tag != LB_ARG_VALUE) return true;
    if (lb_cotangents_seen(p, op) == LB_SEEN_WRAPPED) return false; /* a function of the program's own saves a result */
    for (uint32_t i = op - 1;; i--) {
        const lb_op *before = &p->ops[i];
        for (uint32_t k = 0; k < lb_op_outcomes(before); k++)
            if (lb_op_outcome(p, before, k) == lb_op_args(p, o)[0].u.value) return !keeps_result(lb_op_name(p, before));
        if (!i || strcmp(lb_op_name(p, before), "aten::detach") != 0) return true;
    }
}

/* The first op of backward that runs a node, from what it reads. */
static uint32_t gradient_of(const lb_moved_run *run, const lb_trained *t, const uint32_t *first, uint32_t n,
                            int64_t node, const lb_layout *like)
{
    const lb_program *p = run->program;
    search s = {run, t, node, like, LB_NONE, 0};
    for (uint32_t k = 0; k < n; k++)
        if (p->ops[first[k]].node == node) {
            if (lb_cotangents_is_custom(p, first[k])) return LB_NONE;
            lb_op_each_input(p, &p->ops[first[k]], consider, &s);
            break;
        }
    return s.candidates == 1 ? s.found : LB_NONE;
}

static uint32_t list_backward(const lb_program *p, uint32_t *ops)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].phase == LB_PHASE_BACKWARD && p->ops[i].node >= 0 && !(p->ops[i].flags & LB_OP_RECOMPUTE))
            ops[n++] = i;
    return n;
}

lb_status lb_cotangents_add(lb_moved_run *run, const lb_trained *t, lb_err *err)
{
    const lb_program *p = run->program;
    uint32_t *ops = malloc(((size_t)p->n_ops + 1) * sizeof *ops);
    if (!ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", p->n_ops);
    const uint32_t n = list_backward(p, ops);
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < p->n_ops && status == LB_OK; i++) {
        int64_t node;
        if (lb_op_outcomes(&p->ops[i]) < 1 || !lb_cotangents_node(p, i, &node)) continue;
        const uint32_t v = lb_op_outcome(p, &p->ops[i], 0);
        if (v == LB_NONE || !run->graph.given[v] || run->graph.giver[v] != i || !lb_dtype_is_float(p->values[v].dtype))
            continue;
        if (run->site_of[v] != LB_NONE || !lb_trained_moves(run, t, v)) continue;
        const uint32_t g = gradient_of(run, t, ops, n, node, &p->values[v].layout);
        if (g != LB_NONE && !lb_moved_run_add_site(run, v, g, i, LB_NONE))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for places");
    }
    free(ops);
    return status;
}

/* ---- between ---- */

typedef struct walk {
    const lb_moved_run *run;
    uint8_t *seen; /* per value */
    uint32_t *ops, n, max;
    bool failed;
} walk;

static bool is_sites_gradient(const lb_moved_run *run, uint32_t v)
{
    for (uint32_t i = 0; i < run->n_sites; i++)
        if (run->sites[i].gradient == v) return true;
    return false;
}

static void go_back(walk *w, uint32_t v, bool begin)
{
    const lb_value_graph *g = &w->run->graph;
    const lb_program *p = w->run->program;
    if (w->seen[v] || w->n >= w->max) return;
    w->seen[v] = 1;
    if (!begin && is_sites_gradient(w->run, v)) return;
    const uint32_t op = g->giver[v];
    if (op == LB_NONE || p->ops[op].phase != LB_PHASE_BACKWARD || p->ops[op].flags & LB_OP_RECOMPUTE) return;
    if (g->given[v]) w->ops[w->n++] = op;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) go_back(w, g->preds[k], begin && !g->given[v]);
}

uint32_t lb_cotangents_between(const lb_moved_run *run, uint32_t gradient, uint32_t *ops, uint32_t max)
{
    walk w = {.run = run, .seen = calloc((size_t)run->program->n_values + 1, 1), .ops = ops, .max = max};
    if (w.seen) go_back(&w, gradient, true);
    free(w.seen);
    return w.n;
}
