/* Following operands back to where they were made: see operand_role.h. */
#include "program/operand_role.h"

#include "kernel/ops.h"
#include "program/slice.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct tensor {
    uint32_t root, slot; /* root: op that made the contents */
    uint32_t next;       /* of the same scope; LB_NONE: the last */
    uint8_t role;
} tensor;

struct lb_roles {
    const lb_prepared *prepared;
    lb_slice_flow *flow;
    lb_product_site *sites; /* ascending by op */
    uint32_t n_sites;
};

bool lb_operand_is_product(const lb_op_row *row)
{
    return row && row->factors.sum_b;
}

/* ---- roots ------------------------------------------------------------------------------------------------------ */

/* The arg whose elements an op hands on unchanged, but for their type and place; LB_NONE when it computes. */
static uint32_t handed_on(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {
        "aten::_to_copy",       "aten::clone",     "aten::contiguous",    "aten::reshape",     "aten::cat",
        "aten::stack",          "aten::to",        "aten::alias",         "aten::expand_copy", "aten::permute_copy",
        "aten::transpose_copy", "aten::view_copy", "aten::_reshape_copy", "lb::copy",          "lb::round"};
    const char *name = lb_op_known_as(lb_op_name(program, op));
    const size_t n = strcspn(name, ".");
    if (!op->args) return LB_NONE;
    const lb_arg *arg = &lb_op_args(program, op)[0];
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        found |= strlen(names[i]) == n && !strncmp(name, names[i], n);
    if (n == 11 && !strncmp(name, "aten::copy_", n) && op->args > 1) found = true, arg++;
    if (!found) return LB_NONE;
    if (arg->tag == LB_ARG_LIST && arg->count) arg = &program->args[arg->u.first];
    return arg->tag == LB_ARG_VALUE ? arg->u.value : LB_NONE;
}

/* The op that made the contents of `value` as `op` reads it; LB_NONE when none of this program did. */
static uint32_t root_of(const lb_roles *roles, uint32_t op, uint32_t *value)
{
    const lb_program *program = roles->prepared->program;
    uint32_t root = LB_NONE;
    for (int hops = 0; hops < 64; hops++) {
        uint32_t def;
        if (!lb_slice_flow_defs_of(roles->flow, op, *value, &def, 1)) break;
        root = op = def;
        const uint32_t from = handed_on(program, &program->ops[def]);
        if (from == LB_NONE) break;
        *value = from;
    }
    return root;
}

static lb_precision_role role_of_root(const lb_program *program, uint32_t root, uint32_t value)
{
    if (program->values[value].flags & LB_VALUE_PARAMETER || program->values[value].source == LB_SOURCE_PARAMETER)
        return LB_ROLE_WEIGHT;
    if (root == LB_NONE) return LB_ROLE_INPUT;
    const lb_op *op = &program->ops[root];
    if (lb_op_is_source(program, op)) {
        const lb_value *v = &program->values[lb_op_results(program, op)[0]];
        return v->flags & LB_VALUE_PARAMETER || v->source == LB_SOURCE_PARAMETER ? LB_ROLE_WEIGHT : LB_ROLE_INPUT;
    }
    return op->phase == LB_PHASE_BACKWARD && !(op->flags & LB_OP_RECOMPUTE) ? LB_ROLE_GRADIENT : LB_ROLE_INPUT;
}

lb_precision_role lb_roles_of(const lb_roles *roles, uint32_t op, uint32_t value)
{
    const uint32_t root = root_of(roles, op, &value);
    return role_of_root(roles->prepared->program, root, value);
}

/* ---- products --------------------------------------------------------------------------------------------------- */

static const uint32_t *factor_value(const lb_program *program, const lb_op *op, const lb_factor *factor)
{
    if (factor->operand >= op->args) return NULL;
    const lb_arg *arg = &lb_op_args(program, op)[factor->operand];
    return arg->tag == LB_ARG_VALUE ? &arg->u.value : NULL;
}

/* Tensors of a scope, and how many of each role its current call has. */
typedef struct numbering {
    tensor *tensors;
    uint32_t n;
    struct scope_tensors {
        uint32_t first, call, count[LB_ROLES];
    } *scopes;
} numbering;

static lb_status give_slot(numbering *all, const lb_op *op, uint32_t root, lb_factor *factor, lb_err *err)
{
    struct scope_tensors *scope = &all->scopes[op->scope];
    for (uint32_t i = scope->first; i != LB_NONE; i = all->tensors[i].next) {
        const tensor *t = &all->tensors[i];
        if (t->root != root || t->role != factor->role) continue;
        factor->slot = t->slot;
        return LB_OK;
    }
    if (scope->call != op->call) {
        memset(scope->count, 0, sizeof scope->count);
        scope->call = op->call;
    }
    tensor *more = lb_array_grow(all->tensors, all->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    all->tensors = more;
    factor->slot = scope->count[factor->role]++;
    all->tensors[all->n] = (tensor){root, factor->slot, scope->first, factor->role};
    scope->first = all->n++;
    return LB_OK;
}

static lb_status add_site(lb_roles *roles, uint32_t i, numbering *all, lb_err *err)
{
    const lb_program *program = roles->prepared->program;
    const lb_op *op = &program->ops[i];
    const lb_factors its = roles->prepared->ops[i].row->factors;
    lb_product_site site = {
        .op = i, .factors = {{.operand = its.a, .dimension = its.sum_a}, {.operand = its.b, .dimension = its.sum_b}}};
    uint32_t roots[2];
    for (int f = 0; f < 2; f++) {
        const uint32_t *v = factor_value(program, op, &site.factors[f]);
        if (!v) return LB_OK;
        uint32_t value = *v;
        /* A vector has but one dimension. */
        if (program->values[value].layout.ndim < site.factors[f].dimension) site.factors[f].dimension = 1;
        roots[f] = root_of(roles, i, &value);
        site.factors[f].role = (uint8_t)role_of_root(program, roots[f], value);
        site.linear |= site.factors[f].role == LB_ROLE_WEIGHT;
    }
    for (int f = 0; f < 2; f++) LB_TRY(give_slot(all, op, roots[f], &site.factors[f], err));
    roles->sites[roles->n_sites++] = site;
    return LB_OK;
}

static int by_node(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* A product of backward inherits from the products that ran when its node had just been made: theirs is the number of
 * the node to come. */
static lb_status join_backward(lb_roles *roles, lb_err *err)
{
    const lb_program *program = roles->prepared->program;
    int64_t *nodes = malloc((roles->n_sites + 1) * sizeof *nodes);
    uint32_t n = 0;
    if (!nodes) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < roles->n_sites; s++) {
        const lb_op *op = &program->ops[roles->sites[s].op];
        if (roles->sites[s].linear && op->node > 0 && op->phase == LB_PHASE_FORWARD) nodes[n++] = op->node - 1;
    }
    qsort(nodes, n, sizeof *nodes, by_node);
    for (uint32_t s = 0; s < roles->n_sites; s++) {
        lb_product_site *site = &roles->sites[s];
        const lb_op *op = &program->ops[site->op];
        if (site->linear || op->phase != LB_PHASE_BACKWARD) continue;
        const uint32_t *v = factor_value(program, op, &site->factors[0]);
        site->linear = op->node < 0 ? v && program->values[*v].layout.ndim == 2
                                    : n && bsearch(&op->node, nodes, n, sizeof *nodes, by_node) != NULL;
    }
    free(nodes);
    return LB_OK;
}

lb_status lb_roles_new(const lb_prepared *prepared, lb_roles **out, lb_err *err)
{
    const lb_program *program = prepared->program;
    lb_roles *roles = calloc(1, sizeof *roles);
    numbering all = {.scopes = calloc(program->n_scopes + 1, sizeof *all.scopes)};
    for (uint32_t i = 0; all.scopes && i < program->n_scopes; i++) all.scopes[i].first = LB_NONE;
    uint32_t n = 0;
    *out = NULL;
    for (uint32_t i = 0; i < program->n_ops; i++)
        n += prepared->ops[i].action == LB_ACT_COMPUTE && lb_operand_is_product(prepared->ops[i].row);
    if (roles) roles->sites = malloc((n + 1) * sizeof *roles->sites);
    lb_status status = roles && all.scopes && roles->sites ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) roles->prepared = prepared, status = lb_slice_flow_new(program, &roles->flow, err);
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        if (prepared->ops[i].action == LB_ACT_COMPUTE && lb_operand_is_product(prepared->ops[i].row))
            status = add_site(roles, i, &all, err);
    }
    if (status == LB_OK) status = join_backward(roles, err);
    free(all.scopes);
    free(all.tensors);
    if (status == LB_OK)
        *out = roles;
    else
        lb_roles_free(roles);
    return status;
}

void lb_roles_free(lb_roles *roles)
{
    if (!roles) return;
    lb_slice_flow_free(roles->flow);
    free(roles->sites);
    free(roles);
}

const lb_product_site *lb_roles_product(const lb_roles *roles, uint32_t op)
{
    uint32_t low = 0, high = roles->n_sites;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (roles->sites[middle].op < op)
            low = middle + 1;
        else
            high = middle;
    }
    return low < roles->n_sites && roles->sites[low].op == op ? &roles->sites[low] : NULL;
}
