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

static const lb_arg *arg_of(const lb_program *p, const lb_op *op, uint32_t i, lb_arg_tag tag)
{
    return i < op->args && lb_op_args(p, op)[i].tag == tag ? &lb_op_args(p, op)[i] : NULL;
}

static bool same_contents(const lb_program *p, uint32_t x, uint32_t y)
{
    const lb_value *a = &p->values[x], *b = &p->values[y];
    return a->storage == b->storage && a->version == b->version && a->layout.offset == b->layout.offset;
}

static void add_head(finder *f, lb_token_head found)
{
    lb_token_heads *h = f->heads;
    const lb_program *p = f->program;
    const lb_layout *l = &p->values[found.scores].layout;
    if (l->ndim < 1) return;
    int64_t columns = l->shape[l->ndim - 1];
    if (columns < 2 || (h->n && columns != h->columns)) return;
    h->columns = columns;
    h->rows += lb_layout_numel(l) / columns;
    lb_token_head *more = lb_array_grow(h->list, h->n, sizeof *more);
    if (!more) {
        f->failed = true;
        return;
    }
    h->list = more;
    more[h->n++] = found;
}

/* nll_loss(self, target, weight, reduction, ignore_index) of a _log_softmax's result. */
static void find_losses(finder *f)
{
    const lb_program *p = f->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (f->counts && !f->counts(f->context, i, LB_NONE)) continue;
        if (op->phase != LB_PHASE_FORWARD || !lb_program_name_extends(lb_op_name(p, op), "aten::nll_loss_forward"))
            continue;
        const lb_arg *self = arg_of(p, op, 0, LB_ARG_VALUE), *target = arg_of(p, op, 1, LB_ARG_VALUE);
        const lb_arg *ignored = arg_of(p, op, 4, LB_ARG_INT);
        if (!self || !target) continue;
        for (uint32_t k = i; k-- > 0;) {
            const lb_op *soft = &p->ops[k];
            if (!lb_program_name_extends(lb_op_name(p, soft), "aten::_log_softmax") ||
                lb_op_results(p, soft)[0] == LB_NONE)
                continue;
            if (!same_contents(p, lb_op_results(p, soft)[0], self->u.value)) continue;
            add_head(
                f, (lb_token_head){i, lb_op_results(p, soft)[0], target->u.value, true, ignored ? ignored->u.i : -100});
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
static uint32_t final_logits(const lb_program *p, uint32_t row)
{
    const lb_boundary *head = &p->boundaries[row];
    uint32_t value = head->value;
    for (uint32_t i = row + 1; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (b->value == LB_NONE || b->recompute) continue;
        if (b->scope == head->scope) break; /* the next call */
        if (b->output && lb_dtype_is_float(p->values[b->value].dtype) &&
            lb_layout_same_shape(&p->values[b->value].layout, &p->values[head->value].layout))
            value = b->value;
    }
    return value;
}

/* What left the model as the language-model head's result, where nothing normalised it. */
static void find_logits(finder *f)
{
    const lb_program *p = f->program;
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (!b->output || b->recompute || b->position || b->value == LB_NONE) continue;
        if (f->counts && !f->counts(f->context, LB_NONE, b->value)) continue;
        if (!names_a_head(lb_program_text(p, p->scopes[b->scope].path))) continue;
        if (lb_dtype_is_float(p->values[b->value].dtype))
            add_head(f, (lb_token_head){b->op, final_logits(p, i), LB_NONE, false, 0});
    }
}

lb_status lb_token_heads_find(const lb_program *program, lb_token_heads_of *counts, void *context,
                              lb_token_heads *heads, lb_err *err)
{
    *heads = (lb_token_heads){0};
    finder f = {program, heads, counts, context, false};
    find_losses(&f);
    if (!heads->n) find_logits(&f);
    return f.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : LB_OK;
}

void lb_token_heads_release(lb_token_heads *heads)
{
    free(heads->list);
}
