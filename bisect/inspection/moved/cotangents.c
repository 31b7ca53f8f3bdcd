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
static void consider(void *context, uint32_t value)
{
    search *search = context;
    const lb_program *program = search->run->program;
    const uint32_t giver = search->run->graph.giver[value];
    if (giver == LB_NONE || program->ops[giver].phase != LB_PHASE_BACKWARD || program->ops[giver].node == search->node)
        return;
    if (!lb_dtype_is_float(program->values[value].dtype) || !same_shape(&program->values[value].layout, search->like))
        return;
    if (!lb_trained_from(search->run, search->trained, value) || value == search->found) return;
    search->found = value, search->candidates++;
}

bool lb_cotangents_node(const lb_program *program, uint32_t op, int64_t *node)
{
    const lb_op *o = &program->ops[op];
    *node = o->node - 1;
    if (o->phase != LB_PHASE_FORWARD || o->node < 1 || lb_op_is_source(program, o)) return false;
    for (uint32_t i = op; i-- > 0;) {
        const lb_op *before = &program->ops[i];
        if (before->phase == LB_PHASE_FORWARD && before->thread == o->thread && before->node >= 0 &&
            !lb_op_is_source(program, before))
            return o->node > before->node;
    }
    return true;
}

bool lb_cotangents_is_custom(const lb_program *program, uint32_t op)
{
    const lb_op *o = &program->ops[op];
    const char *name = o->node_name == LB_NONE ? "" : lb_program_text(program, o->node_name);
    const size_t n = strlen(name);
    return o->phase == LB_PHASE_BACKWARD && n > 8 && strcmp(name + n - 8, "Backward") == 0 && !strstr(name, "::");
}

bool lb_cotangents_is_foreign(const lb_moved_run *run, uint32_t op)
{
    const lb_program *program = run->program;
    const uint32_t forward = run->graph.forward[op];
    return program->ops[op].line && forward != LB_NONE && program->ops[forward].line &&
           program->ops[op].line != program->ops[forward].line;
}

static bool is_custom_node(const lb_program *program, int64_t node)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].node == node && lb_cotangents_is_custom(program, i)) return true;
    return false;
}

lb_check_seen lb_cotangents_seen(const lb_program *program, uint32_t op)
{
    int64_t node;
    if (lb_cotangents_node(program, op, &node) && !is_custom_node(program, node)) return LB_SEEN_FOLLOWED;
    return program->ops[op].node > 0 && is_custom_node(program, program->ops[op].node - 1) ? LB_SEEN_WRAPPED
                                                                                           : LB_SEEN_CONSTANT;
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

bool lb_cotangents_detaches(const lb_program *program, uint32_t op)
{
    const lb_op *o = &program->ops[op];
    if (strcmp(lb_op_name(program, o), "aten::detach") != 0 || o->phase != LB_PHASE_FORWARD) return false;
    if (!op || !o->args || lb_op_args(program, o)[0].tag != LB_ARG_VALUE) return true;
    if (lb_cotangents_seen(program, op) == LB_SEEN_WRAPPED)
        return false; /* a function of the program's own saves a result */
    for (uint32_t i = op - 1;; i--) {
        const lb_op *before = &program->ops[i];
        for (uint32_t k = 0; k < lb_op_outcomes(before); k++)
            if (lb_op_outcome(program, before, k) == lb_op_args(program, o)[0].u.value)
                return !keeps_result(lb_op_name(program, before));
        if (!i || strcmp(lb_op_name(program, before), "aten::detach") != 0) return true;
    }
}

/* The first op of backward that runs a node, from what it reads. */
static uint32_t gradient_of(const lb_moved_run *run, const lb_trained *trained, const uint32_t *first, uint32_t n,
                            int64_t node, const lb_layout *like)
{
    const lb_program *program = run->program;
    search search = {run, trained, node, like, LB_NONE, 0};
    for (uint32_t k = 0; k < n; k++)
        if (program->ops[first[k]].node == node) {
            if (lb_cotangents_is_custom(program, first[k])) return LB_NONE;
            lb_op_each_input(program, &program->ops[first[k]], consider, &search);
            break;
        }
    return search.candidates == 1 ? search.found : LB_NONE;
}

static uint32_t list_backward(const lb_program *program, uint32_t *ops)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_BACKWARD && program->ops[i].node >= 0 &&
            !(program->ops[i].flags & LB_OP_RECOMPUTE))
            ops[n++] = i;
    return n;
}

lb_status lb_cotangents_add(lb_moved_run *run, const lb_trained *trained, lb_err *err)
{
    const lb_program *program = run->program;
    uint32_t *ops = malloc(((size_t)program->n_ops + 1) * sizeof *ops);
    if (!ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", program->n_ops);
    const uint32_t n = list_backward(program, ops);
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        int64_t node;
        if (lb_op_outcomes(&program->ops[i]) < 1 || !lb_cotangents_node(program, i, &node)) continue;
        const uint32_t v = lb_op_outcome(program, &program->ops[i], 0);
        if (v == LB_NONE || !run->graph.given[v] || run->graph.giver[v] != i ||
            !lb_dtype_is_float(program->values[v].dtype))
            continue;
        if (run->site_of[v] != LB_NONE || !lb_trained_moves(run, trained, v)) continue;
        const uint32_t g = gradient_of(run, trained, ops, n, node, &program->values[v].layout);
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

static void go_back(walk *walk, uint32_t value, bool begin)
{
    const lb_value_graph *graph = &walk->run->graph;
    const lb_program *program = walk->run->program;
    if (walk->seen[value] || walk->n >= walk->max) return;
    walk->seen[value] = 1;
    if (!begin && is_sites_gradient(walk->run, value)) return;
    const uint32_t op = graph->giver[value];
    if (op == LB_NONE || program->ops[op].phase != LB_PHASE_BACKWARD || program->ops[op].flags & LB_OP_RECOMPUTE)
        return;
    if (graph->given[value]) walk->ops[walk->n++] = op;
    for (uint32_t k = graph->first_pred[value]; k < graph->first_pred[value + 1]; k++)
        go_back(walk, graph->preds[k], begin && !graph->given[value]);
}

uint32_t lb_cotangents_between(const lb_moved_run *run, uint32_t gradient, uint32_t *ops, uint32_t max)
{
    walk walk = {.run = run, .seen = calloc((size_t)run->program->n_values + 1, 1), .ops = ops, .max = max};
    if (walk.seen) go_back(&walk, gradient, true);
    free(walk.seen);
    return walk.n;
}
