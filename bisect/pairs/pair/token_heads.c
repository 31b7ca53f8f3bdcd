/* See token_heads.h. */
#include "pair/token_heads.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct finder {
    const lb_program *program;
    lb_token_heads *heads;
    lb_token_heads_of *counts;
    void *context;
    bool failed;
} finder;

static const lb_arg *arg_of(const lb_program *program, const lb_op *op, uint32_t i, lb_arg_tag tag)
{
    return i < op->args && lb_op_args(program, op)[i].tag == tag ? &lb_op_args(program, op)[i] : NULL;
}

static bool same_contents(const lb_program *program, uint32_t x, uint32_t y)
{
    const lb_value *a = &program->values[x], *b = &program->values[y];
    return a->storage == b->storage && a->version == b->version && a->layout.offset == b->layout.offset;
}

static void add_head(finder *finder, lb_token_head found)
{
    lb_token_heads *heads = finder->heads;
    const lb_program *program = finder->program;
    const lb_layout *layout = &program->values[found.scores].layout;
    if (layout->ndim < 1) return;
    int64_t columns = layout->shape[layout->ndim - 1];
    if (columns < 2 || (heads->n && columns != heads->columns)) return;
    heads->columns = columns;
    heads->rows += lb_layout_numel(layout) / columns;
    lb_token_head *more = lb_array_grow(heads->list, heads->n, sizeof *more);
    if (!more) {
        finder->failed = true;
        return;
    }
    heads->list = more;
    more[heads->n++] = found;
}

/* nll_loss(self, target, weight, reduction, ignore_index) of a _log_softmax's result. */
static void find_losses(finder *finder)
{
    const lb_program *program = finder->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (finder->counts && !finder->counts(finder->context, i, LB_NONE)) continue;
        if (op->phase != LB_PHASE_FORWARD ||
            !lb_program_name_extends(lb_op_name(program, op), "aten::nll_loss_forward"))
            continue;
        const lb_arg *self = arg_of(program, op, 0, LB_ARG_VALUE), *target = arg_of(program, op, 1, LB_ARG_VALUE);
        const lb_arg *ignored = arg_of(program, op, 4, LB_ARG_INT);
        if (!self || !target) continue;
        for (uint32_t k = i; k-- > 0;) {
            const lb_op *soft = &program->ops[k];
            if (!lb_program_name_extends(lb_op_name(program, soft), "aten::_log_softmax") ||
                lb_op_results(program, soft)[0] == LB_NONE)
                continue;
            if (!same_contents(program, lb_op_results(program, soft)[0], self->u.value)) continue;
            add_head(finder, (lb_token_head){i, lb_op_results(program, soft)[0], target->u.value, true,
                                             ignored ? ignored->u.i : -100});
            break;
        }
    }
}

static bool names_a_head(const char *path)
{
    static const char *const names[] = {"lm_head", "head", "embed_out", "output_layer", "output"};
    const char *last = strrchr(path, '.');
    last = last ? last + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(last, names[i]) == 0) return true;
    return false;
}

/* The result of a module around the head that has its shape, left last: what is done to the logits behind the head (a
 * soft cap, a scale) is done to them. The head's own where there is none. */
static uint32_t final_logits(const lb_program *program, uint32_t row)
{
    const lb_boundary *head = &program->boundaries[row];
    uint32_t value = head->value;
    for (uint32_t i = row + 1; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (boundary->value == LB_NONE || boundary->recompute) continue;
        if (boundary->scope == head->scope) break; /* the next call */
        if (boundary->output && lb_dtype_is_float(program->values[boundary->value].dtype) &&
            lb_layout_same_shape(&program->values[boundary->value].layout, &program->values[head->value].layout))
            value = boundary->value;
    }
    return value;
}

/* What left the model as the language-model head's result, where nothing normalised it. */
static void find_logits(finder *finder)
{
    const lb_program *program = finder->program;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (!boundary->output || boundary->recompute || boundary->position || boundary->value == LB_NONE) continue;
        if (finder->counts && !finder->counts(finder->context, LB_NONE, boundary->value)) continue;
        if (!names_a_head(lb_program_text(program, program->scopes[boundary->scope].path))) continue;
        if (lb_dtype_is_float(program->values[boundary->value].dtype))
            add_head(finder, (lb_token_head){boundary->op, final_logits(program, i), LB_NONE, false, 0});
    }
}

lb_status lb_token_heads_find(const lb_program *program, lb_token_heads_of *counts, void *context,
                              lb_token_heads *heads, lb_err *err)
{
    *heads = (lb_token_heads){0};
    finder finder = {program, heads, counts, context, false};
    find_losses(&finder);
    if (!heads->n) find_logits(&finder);
    return finder.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : LB_OK;
}

void lb_token_heads_release(lb_token_heads *heads)
{
    free(heads->list);
}
