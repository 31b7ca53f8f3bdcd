/* See routing.h. */
#include "recorder/routing.h"

#include <string.h>

#define MAX_EXPERTS 4096
#define MAX_DISTANCE 64 /* ops between the logits and the top-k, and between it and the weights */

static bool is_op(const lb_program *program, const lb_op *op, const char *name)
{
    const char *text = lb_op_name(program, op);
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && (text[n] == '\0' || text[n] == '.');
}

static bool is_one_of(const lb_program *program, const lb_op *op, const char *const *names)
{
    for (; *names; names++)
        if (is_op(program, op, *names)) return true;
    return false;
}

/* The first tensor among the args, LB_NONE when there is none. */
static uint32_t first_value(const lb_program *program, const lb_op *op)
{
    for (uint32_t a = 0; a < op->args; a++)
        if (lb_op_args(program, op)[a].tag == LB_ARG_VALUE) return lb_op_args(program, op)[a].u.value;
    return LB_NONE;
}

static bool gives(const lb_program *program, const lb_op *op, uint32_t value)
{
    for (uint32_t r = 0; r < op->results; r++)
        if (lb_op_results(program, op)[r] == value) return true;
    for (uint32_t w = 0; w < op->written; w++)
        if (lb_op_written(program, op)[w] == value) return true;
    return false;
}

static bool same_place(const lb_op *a, const lb_op *b)
{
    return a->scope == b->scope && a->call == b->call;
}

static bool looks_like_routing(const lb_program *program, const lb_op *op)
{
    if (!is_op(program, op, "aten::topk") || op->scope == 0 || op->phase != LB_PHASE_FORWARD || op->results != 2)
        return false;
    uint32_t scores = first_value(program, op), ids = lb_op_results(program, op)[1];
    if (scores == LB_NONE || ids == LB_NONE) return false;
    const lb_layout *from = &program->values[scores].layout, *to = &program->values[ids].layout;
    if (from->ndim < 2 || to->ndim != from->ndim) return false;
    int64_t experts = from->shape[from->ndim - 1], k = to->shape[to->ndim - 1];
    return experts >= 2 && experts <= MAX_EXPERTS && k < experts;
}

/* Back through what routers do to logits before they choose. */
static uint32_t logits_of(const lb_program *program, uint32_t at, uint32_t scores)
{
    static const char *const passes[] = {
        "aten::_softmax",    "aten::sigmoid",      "aten::_to_copy", "aten::view", "aten::add",
        "aten::masked_fill", "aten::_unsafe_view", "aten::detach",   "aten::div",  NULL};
    uint32_t value = scores, distance = 0;
    while (at-- > 0 && distance++ < MAX_DISTANCE) {
        const lb_op *op = &program->ops[at];
        if (!gives(program, op, value)) continue;
        uint32_t from = is_one_of(program, op, passes) ? first_value(program, op) : LB_NONE;
        if (from == LB_NONE) break;
        const lb_layout *a = &program->values[from].layout, *b = &program->values[value].layout;
        if (a->ndim < 1 || b->ndim < 1 || a->shape[a->ndim - 1] != b->shape[b->ndim - 1]) break;
        value = from;
    }
    return value;
}

/* Forward through normalising and casting, to what the experts' outputs are multiplied with. */
static uint32_t weights_of(const lb_program *program, uint32_t at, uint32_t chosen)
{
    static const char *const passes[] = {"aten::_softmax",   "aten::div",  "aten::div_", "aten::_to_copy",
                                         "aten::mul.Scalar", "aten::mul_", NULL};
    const lb_op *top = &program->ops[at];
    uint32_t value = chosen, last = at + MAX_DISTANCE < program->n_ops ? at + MAX_DISTANCE : program->n_ops;
    while (++at < last) {
        const lb_op *op = &program->ops[at];
        if (!same_place(op, top) || op->phase != LB_PHASE_FORWARD) continue;
        if (first_value(program, op) != value || !is_one_of(program, op, passes)) continue;
        uint32_t to = op->results ? lb_op_results(program, op)[0] : LB_NONE;
        if (to != LB_NONE && lb_layout_same_shape(&program->values[to].layout, &program->values[chosen].layout))
            value = to;
    }
    return value;
}

/* The order in which tokens lie for the experts: a sort of the ids. */
static uint32_t slots_of(const lb_program *program, uint32_t at, uint32_t ids)
{
    uint32_t last = at + 4 * MAX_DISTANCE < program->n_ops ? at + 4 * MAX_DISTANCE : program->n_ops;
    while (++at < last) {
        const lb_op *op = &program->ops[at];
        if (!is_op(program, op, "aten::sort") || op->phase != LB_PHASE_FORWARD || op->results != 2) continue;
        uint32_t from = first_value(program, op);
        if (from != LB_NONE && program->values[from].storage == program->values[ids].storage)
            return lb_op_results(program, op)[1];
    }
    return LB_NONE;
}

/* Group-limited routers choose twice: the last top-k of a call is the one over experts. */
static bool is_last_of_call(const lb_program *program, uint32_t at)
{
    const lb_op *top = &program->ops[at];
    uint32_t last = at + 4 * MAX_DISTANCE < program->n_ops ? at + 4 * MAX_DISTANCE : program->n_ops;
    for (uint32_t o = at + 1; o < last; o++)
        if (same_place(&program->ops[o], top) && looks_like_routing(program, &program->ops[o])) return false;
    return true;
}

static bool has_routing(const lb_program *program, const lb_op *op)
{
    for (uint32_t r = 0; r < program->n_routings; r++)
        if (program->routings[r].scope == op->scope && program->routings[r].call == op->call) return true;
    return false;
}

lb_status lb_routing_find(lb_program *program, lb_err *err)
{
    for (uint32_t o = 0; o < program->n_ops; o++) {
        const lb_op *op = &program->ops[o];
        if (!looks_like_routing(program, op) || has_routing(program, op) || !is_last_of_call(program, o)) continue;
        const uint32_t *results = lb_op_results(program, op);
        lb_routing row = {.scope = op->scope,
                          .call = op->call,
                          .logits = logits_of(program, o, first_value(program, op)),
                          .ids = results[1],
                          .weights = results[0] == LB_NONE ? LB_NONE : weights_of(program, o, results[0]),
                          .slots = slots_of(program, o, results[1]),
                          .dropped = LB_NONE};
        if (lb_program_add_routing(program, &row) == LB_NONE)
            return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
    }
    return LB_OK;
}
