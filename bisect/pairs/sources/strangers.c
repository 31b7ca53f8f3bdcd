/* Who is compared by values: see strangers.h. */
#include "sources/strangers.h"

#include "pair/forwards.h"
#include "sources/merged_adapters.h"
#include "pair/op_kind.h"

#include <stdlib.h>
#include <string.h>

/* What cannot be read or built leaves a question unanswered; what the system refused says nothing of it. */
static lb_status pass_refusal(lb_status status, const lb_err *why, lb_err *err)
{
    return lb_is_refusal(status) ? lb_fail(err, status, "%s", why->message) : LB_OK;
}

/* Of the first rank; NULL: not all ranks of the run were recorded, and what they handed each other is not known. */
static lb_status first_step(lb_capture *capture, const lb_program **first, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const int32_t *ranks;
    const int64_t *steps;
    const lb_program *program;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    *first = NULL;
    if (!n || !lb_capture_steps(capture, &steps)) return LB_OK;
    const lb_status status = lb_capture_program(capture, ranks[0], steps[0], &program, &why);
    if (status != LB_OK) return pass_refusal(status, &why, err);
    if ((n == 1 && program->n_collectives == 0) || (uint32_t)(program->world > 0 ? program->world : 1) == n)
        *first = program;
    return LB_OK;
}

static bool has_one_rank(lb_capture *capture)
{
    const int32_t *ranks;
    return lb_capture_ranks(capture, &ranks) == 1;
}

static bool has_ops(const lb_program *program)
{
    for (uint32_t i = 0; program && i < program->n_ops; i++)
        if (lb_op_computes(program, &program->ops[i])) return true;
    return false;
}

/* Regions are found in the order of execution: of passes in another order they would be those of different data. */
static lb_status passes_shift(lb_capture *a, const lb_program *x, lb_capture *b, const lb_program *y, bool *shift,
                              lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    lb_program_view views[2] = {{0}, {0}};
    lb_forwards passes = {.used = false};
    lb_status status = lb_program_view_init(a, &x, 1, &views[0], &why);
    if (status == LB_OK) status = lb_program_view_init(b, &y, 1, &views[1], &why);
    if (status == LB_OK) status = lb_forwards_find(&views[0], &views[1], &passes, &why);
    *shift = status == LB_OK && lb_forwards_cross(&passes);
    lb_forwards_release(&passes);
    lb_program_view_release(&views[0]), lb_program_view_release(&views[1]);
    return pass_refusal(status, &why, err);
}

/* The first steps of both, where they may be compared; both NULL where not. */
static lb_status comparable_steps(lb_capture *a, lb_capture *b, const lb_program *first[2], lb_err *err)
{
    bool shift = false;
    LB_TRY(first_step(a, &first[0], err));
    LB_TRY(first_step(b, &first[1], err));
    bool may = has_ops(first[0]) && has_ops(first[1]);
    if (may && has_one_rank(a) && has_one_rank(b)) LB_TRY(passes_shift(a, first[0], b, first[1], &shift, err));
    if (!may || shift) first[0] = first[1] = NULL;
    return LB_OK;
}

lb_status lb_strangers_may_be_compared(lb_capture *a, lb_capture *b, bool *may, lb_err *err)
{
    const lb_program *first[2];
    LB_TRY(comparable_steps(a, b, first, err));
    *may = first[0] != NULL;
    return LB_OK;
}

lb_status lb_strangers_run_alone(lb_capture *a, lb_capture *b, bool *alone, lb_err *err)
{
    const lb_program *first[2];
    LB_TRY(comparable_steps(a, b, first, err));
    *alone = first[0] && has_one_rank(a) && has_one_rank(b) && !first[0]->n_collectives && !first[1]->n_collectives;
    return LB_OK;
}

/* Parameters that a program begins with; `*shared`: of these, those that the other has by the same name. */
static uint32_t count_parameters(const lb_program *program, const lb_program *other, uint32_t *shared)
{
    uint32_t all = 0;
    *shared = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t v =
            lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !(program->values[v].flags & LB_VALUE_PARAMETER)) continue;
        bool found = false;
        for (uint32_t w = 0; w < other->n_values && !found; w++)
            found = other->values[w].flags & LB_VALUE_PARAMETER &&
                    !strcmp(lb_program_text(program, program->values[v].name),
                            lb_program_text(other, other->values[w].name));
        all++, *shared += found;
    }
    return all;
}

/* Numbers that a program begins with: of parameters, or of all that may be one. */
static int64_t count_numbers(const lb_program *program, bool of_parameters)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t v =
            lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) continue;
        if (!of_parameters || program->values[v].flags & LB_VALUE_PARAMETER)
            n += lb_layout_numel(&program->values[v].layout);
    }
    return n;
}

/* May the side's tensors be the other one's parameters, although none is known as such? */
static bool may_hold(const lb_program *side, uint32_t parameters, const lb_program *other)
{
    return parameters || 2 * count_numbers(side, false) > count_numbers(other, true);
}

lb_status lb_strangers_are(lb_capture *a, lb_capture *b, bool *are, lb_err *err)
{
    const lb_program *first[2];
    uint32_t shared[2];
    *are = false;
    LB_TRY(comparable_steps(a, b, first, err));
    if (!first[0]) return LB_OK;
    const uint32_t all[] = {count_parameters(first[0], first[1], &shared[0]),
                            count_parameters(first[1], first[0], &shared[1])};
    const bool may = may_hold(first[0], all[0], first[1]) && may_hold(first[1], all[1], first[0]);
    *are = (all[0] || all[1]) && may && 4 * shared[0] <= all[0] && 4 * shared[1] <= all[1];
    return LB_OK;
}

static bool has_module(const lb_program *program, const char *path)
{
    for (uint32_t i = 1; i < program->n_scopes; i++)
        if (!strcmp(lb_program_text(program, program->scopes[i].path), path)) return true;
    return false;
}

lb_status lb_strangers_share_modules(lb_capture *a, lb_capture *b, bool *share, lb_err *err)
{
    const lb_program *first[2];
    uint32_t shared = 0;
    *share = false;
    LB_TRY(comparable_steps(a, b, first, err));
    if (!first[0]) return LB_OK;
    for (uint32_t i = 1; i < first[0]->n_scopes; i++)
        shared += has_module(first[1], lb_program_text(first[0], first[0]->scopes[i].path));
    *share = shared && 4 * shared >= first[0]->n_scopes - 1;
    return LB_OK;
}

/* Are the dimensions of one those of the other, in another order? */
static bool are_turned(const lb_layout *x, const lb_layout *y)
{
    return !lb_layout_same_shape(x, y) && lb_layout_same_sizes(x, y);
}

/* The parameter that an op brings; LB_NONE. */
static uint32_t parameter_of(const lb_program *program, uint32_t op)
{
    const lb_op *o = &program->ops[op];
    const uint32_t v = lb_op_is_source(program, o) ? lb_op_results(program, o)[0] : LB_NONE;
    return v != LB_NONE && program->values[v].flags & LB_VALUE_PARAMETER ? v : LB_NONE;
}

/* A parameter of x with one of y's by the same name, whose dimensions stand in another order. */
static bool hold_turned(const lb_program *x, const lb_program *y)
{
    for (uint32_t i = 0; i < x->n_ops; i++) {
        const uint32_t v = parameter_of(x, i);
        for (uint32_t k = 0; v != LB_NONE && k < y->n_ops; k++) {
            const uint32_t w = parameter_of(y, k);
            if (w != LB_NONE && are_turned(&x->values[v].layout, &y->values[w].layout) &&
                !strcmp(lb_program_text(x, x->values[v].name), lb_program_text(y, y->values[w].name)))
                return true;
        }
    }
    return false;
}

lb_status lb_strangers_hold_turned(lb_capture *a, lb_capture *b, bool *hold, lb_err *err)
{
    const lb_program *first[2];
    LB_TRY(comparable_steps(a, b, first, err));
    *hold = first[0] && hold_turned(first[0], first[1]);
    return LB_OK;
}

/* Whether the other side has an adapter in its weights, in the first step. */
static lb_status find_merged(lb_capture *a, const lb_program *x, lb_capture *b, const lb_program *y, bool *hold,
                             lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    lb_program_view views[2] = {{0}, {0}};
    lb_step_sources sources[2] = {{0}, {0}};
    lb_merged_adapter *list = NULL;
    uint32_t n = 0;
    lb_status status = lb_program_view_init(a, &x, 1, &views[0], &why);
    if (status == LB_OK) status = lb_program_view_init(b, &y, 1, &views[1], &why);
    for (int k = 0; k < 2 && status == LB_OK; k++) status = lb_step_sources_list(&views[k], &sources[k], &why);
    if (status == LB_OK) status = lb_merged_adapters_find(&sources[0], &sources[1], 1, &list, &n, &why);
    free(list);
    for (int k = 0; k < 2; k++) lb_step_sources_release(&sources[k]), lb_program_view_release(&views[k]);
    *hold = status == LB_OK && n;
    return pass_refusal(status, &why, err);
}

lb_status lb_strangers_hold_merged(lb_capture *a, lb_capture *b, bool *hold, lb_err *err)
{
    const lb_program *first[2];
    *hold = false;
    LB_TRY(comparable_steps(a, b, first, err));
    return first[0] ? find_merged(a, first[0], b, first[1], hold, err) : LB_OK;
}

/* ---- cut into different steps ---- */

lb_status lb_strangers_steps(lb_capture *capture, int64_t first, int64_t last, const lb_program ***list, uint32_t *n,
                             lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t all = lb_capture_steps(capture, &steps);
    const lb_program **found = calloc((size_t)all + 1, sizeof *found);
    bool there = lb_capture_ranks(capture, &ranks) == 1;
    lb_status status = LB_OK;
    *list = NULL, *n = 0;
    if (!found) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u steps", all);
    for (uint32_t i = 0; i < all && there; i++) {
        if (steps[i] < first || steps[i] > last) continue;
        status = lb_capture_program(capture, ranks[0], steps[i], &found[*n], &why);
        there = status == LB_OK && found[*n]->complete;
        ++*n;
    }
    if (there)
        *list = found;
    else
        free(found);
    return pass_refusal(status, &why, err);
}

/* Of steps that only infer, all on one rank. */
static bool infers(const lb_program *program)
{
    bool computes = false;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (program->ops[i].flags & LB_OP_FAILED) return false; /* the program may have ended there */
        computes |= lb_op_computes(program, &program->ops[i]);
    }
    return computes && lb_op_only_infers(program);
}

/* The first tensor that a module was given; NULL: no module was given one. */
static const lb_layout *entering(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_boundaries; i++)
        if (!program->boundaries[i].output && program->boundaries[i].value != LB_NONE)
            return &program->values[program->boundaries[i].value].layout;
    return NULL;
}

/* Is some step given a tensor of another shape than the other side's of its number, or is that not known? */
static bool are_given_otherwise(const lb_program *const *a, uint32_t n_a, const lb_program *const *b, uint32_t n_b)
{
    for (uint32_t i = 0; i < n_a && i < n_b; i++) {
        const lb_layout *x = entering(a[i]), *y = entering(b[i]);
        if (!x || !y ? n_a != n_b : !lb_layout_same_shape(x, y)) return true;
    }
    return false;
}

lb_status lb_strangers_infer(lb_capture *a, lb_capture *b, int64_t first, int64_t last, bool *infer, bool *cut,
                             lb_err *err)
{
    uint32_t n[2] = {0, 0};
    const lb_program **lists[2] = {NULL, NULL};
    lb_status status = lb_strangers_steps(a, first, last, &lists[0], &n[0], err);
    if (status == LB_OK) status = lb_strangers_steps(b, first, last, &lists[1], &n[1], err);
    bool do_infer = lists[0] && lists[1] && n[0] && n[1] && n[0] + n[1] > 2 && n[0] <= LB_STRANGERS_MOST_STEPS &&
                    n[1] <= LB_STRANGERS_MOST_STEPS;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; do_infer && i < n[k]; i++) do_infer = infers(lists[k][i]);
    *infer = do_infer, *cut = do_infer && are_given_otherwise(lists[0], n[0], lists[1], n[1]);
    free(lists[0]), free(lists[1]);
    return status;
}
