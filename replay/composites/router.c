/* Cutting a router out of a recorded program: see router.h. */
#include "composites/router.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct cut {
    const lb_recogniser *recogniser;
    lb_router *router;
    const char *path; /* of the module that chooses */
    bool failed;
} cut;

static bool is_product(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "addmv", NULL};
    return lb_recogniser_is_any(recogniser, op, names);
}

static bool keeps_the_order(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"_softmax", "softmax",  "_log_softmax", "log_softmax",
                                        "sigmoid",  "_to_copy", "clone",        NULL};
    return lb_recogniser_is_any(recogniser, op, names);
}

static bool append(uint32_t **rows, uint32_t *n, uint32_t row)
{
    for (uint32_t i = 0; i < *n; i++)
        if ((*rows)[i] == row) return true;
    uint32_t *grown = lb_array_grow(*rows, *n, sizeof *grown);
    if (!grown) return false;
    *rows = grown;
    (*rows)[(*n)++] = row;
    return true;
}

static bool inside(const cut *cut, uint32_t op)
{
    const char *path = lb_op_layer(cut->recogniser->program, &cut->recogniser->program->ops[op]);
    return *cut->path && lb_program_name_extends(path, cut->path);
}

/* Contents that no forward op of this step computed. */
static bool given(const lb_recogniser *recogniser, lb_reading reading)
{
    uint32_t defs[4];
    const uint32_t n = lb_slice_flow_defs_of(recogniser->flow, reading.op, reading.value, defs, 4);
    for (uint32_t i = 0; i < n && i < 4; i++)
        if (recogniser->program->ops[defs[i]].phase == LB_PHASE_FORWARD) return false;
    return n <= 4;
}

/* Whether the op belongs to the router; `behind`: its product reads what the op gives. */
static bool belongs(const cut *cut, uint32_t op, bool behind)
{
    const lb_op *row = &cut->recogniser->program->ops[op];
    if (row->phase != LB_PHASE_FORWARD || row->flags & (LB_OP_RANDOM | LB_OP_COLLECTIVE)) return false;
    if (!behind) return inside(cut, op);
    const lb_reading from = lb_recogniser_arg(cut->recogniser, op, 0);
    if (from.op == LB_NONE ||
        !(lb_recogniser_is(cut->recogniser, op, "_to_copy") || lb_recogniser_is(cut->recogniser, op, "clone")))
        return false;
    return inside(cut, op) || given(cut->recogniser, from);
}

static void enter(cut *c, lb_reading reading, bool behind);

typedef struct visit {
    cut *cut;
    uint32_t op;
    bool behind;
} visit;

static void enter_input(void *context, uint32_t value)
{
    visit *visit = context;
    enter(visit->cut, (lb_reading){visit->op, value}, visit->behind);
}

static void enter(cut *cut, lb_reading reading, bool behind)
{
    uint32_t defs[8];
    lb_router *router = cut->router;
    const uint32_t n = lb_slice_flow_defs_of(cut->recogniser->flow, reading.op, reading.value, defs, 8);
    bool all = n > 0 && n <= 8 && !given(cut->recogniser, reading);
    for (uint32_t i = 0; i < n && all; i++) all = belongs(cut, defs[i], behind);
    if (!all) {
        cut->failed |= !append(&router->path.list, &router->path.n_list, reading.value);
        return;
    }
    for (uint32_t i = 0; i < n && !cut->failed; i++) {
        const uint32_t before = router->path.n_ops;
        cut->failed |= !append(&router->path.ops, &router->path.n_ops, defs[i]);
        visit visit = {cut, defs[i], behind || is_product(cut->recogniser, defs[i])};
        if (router->path.n_ops > before)
            lb_op_each_input(cut->recogniser->program, &cut->recogniser->program->ops[defs[i]], enter_input, &visit);
    }
}

/* An input's own if the ops that read it find nothing computed there. */
static void mark_own(const cut *cut)
{
    const lb_program *program = cut->recogniser->program;
    lb_router *router = cut->router;
    for (uint32_t i = 0; i < router->path.n_list; i++) {
        const lb_value *value = &program->values[router->path.list[i]];
        router->own[i] = (value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE)) != 0 ||
                         value->source == LB_SOURCE_PARAMETER || value->source == LB_SOURCE_STATE;
        for (uint32_t k = 0; k < router->path.n_ops && !router->own[i]; k++) {
            const lb_op *op = &program->ops[router->path.ops[k]];
            for (uint32_t a = 0; a < op->args; a++)
                if (lb_op_args(program, op)[a].tag == LB_ARG_VALUE &&
                    lb_op_args(program, op)[a].u.value == router->path.list[i])
                    router->own[i] = given(cut->recogniser, (lb_reading){router->path.ops[k], router->path.list[i]});
        }
    }
}

/* Back from what the choice reads through what keeps the order of the scores. */
static lb_reading strip(const lb_recogniser *recogniser, lb_reading reading)
{
    for (uint32_t maker;
         (maker = lb_recogniser_maker(recogniser, reading)) != LB_NONE && keeps_the_order(recogniser, maker);) {
        const lb_reading from = lb_recogniser_arg(recogniser, maker, 0);
        if (from.op == LB_NONE) break;
        const lb_value *value = lb_recogniser_value(recogniser, from.value),
                       *b = lb_recogniser_value(recogniser, reading.value);
        if (!lb_dtype_is_float(value->dtype) || lb_layout_numel(&value->layout) != lb_layout_numel(&b->layout)) break;
        reading = from;
    }
    return reading;
}

static bool find_choice(const lb_recogniser *recogniser, lb_router *router)
{
    uint32_t *producers = lb_program_producers(recogniser->program);
    if (!producers) return false;
    const uint32_t op = router->row->ids == LB_NONE ? LB_NONE : producers[router->row->ids];
    free(producers);
    if (op == LB_NONE || !lb_recogniser_is(recogniser, op, "topk") ||
        lb_recogniser_arg(recogniser, op, 0).op == LB_NONE)
        return true;
    router->choice.inputs[0] = lb_recogniser_arg(recogniser, op, 0).value;
    router->choice.outputs[0] = router->row->ids;
    router->choice.ops = malloc(sizeof *router->choice.ops);
    if (!router->choice.ops) return false;
    router->choice.ops[0] = router->topk = op, router->choice.n_ops = 1;
    return true;
}

lb_status lb_router_find(const lb_program *program, lb_slice_flow *flow, const lb_routing *row, lb_router *router,
                         lb_err *err)
{
    const lb_recogniser recogniser = {.program = program, .flow = flow, .err = err};
    *router = (lb_router){.row = row, .topk = LB_NONE, .scores = LB_NONE, .made = LB_NONE};
    router->path = router->choice = lb_recogniser_composite(&recogniser, LB_COMPOSITE_ROUTER);
    if (!find_choice(&recogniser, router)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a router");
    if (router->topk == LB_NONE) return LB_OK;
    const lb_reading scores = strip(&recogniser, lb_recogniser_arg(&recogniser, router->topk, 0));
    router->scores = scores.value, router->made = scores.op;
    cut cut = {&recogniser, router, lb_op_layer(program, &program->ops[router->topk]), false};
    enter(&cut, scores, false);
    router->own = calloc(router->path.n_list + 1, 1);
    if (cut.failed || !router->own) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a router");
    if (router->path.n_ops) qsort(router->path.ops, router->path.n_ops, sizeof *router->path.ops, lb_by_u32);
    router->path.outputs[0] = router->scores;
    mark_own(&cut);
    return LB_OK;
}

void lb_router_release(lb_router *router)
{
    free(router->path.ops), free(router->path.list), free(router->choice.ops), free(router->own);
    *router = (lb_router){0};
}
