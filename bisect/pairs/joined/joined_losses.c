/* Losses of ranks put together: see joined_losses.h. */
#include "joined/joined_losses.h"

#include "pair/op_kind.h"

#include <stdlib.h>
#include <string.h>

/* Above joined_ranks.c's storages, below those of joined_copies.c. */
#define LOSS_STORAGES ((int64_t)3 << 60)

typedef struct number {
    uint32_t value, part, op, nth; /* the how manieth of its rank */
} number;

typedef struct adder {
    lb_program_view *view;
    lb_program *p;
    number *list;
    uint32_t n, added;
    bool failed;
} adder;

static void list_numbers(adder *a)
{
    uint32_t *many = calloc(a->view->n_parts + 1, sizeof *many), v;
    a->list = malloc(((size_t)a->p->n_ops + 1) * sizeof *a->list);
    a->failed = !many || !a->list;
    for (uint32_t i = 0; i < a->p->n_ops && !a->failed; i++) {
        if ((v = lb_op_last_number(a->p, i, true)) == LB_NONE) continue;
        const uint32_t part = lb_program_view_part_of(a->view, i);
        a->list[a->n++] = (number){v, part, i, many[part]++};
    }
    free(many);
}

static uint32_t add_value(adder *a, uint32_t like)
{
    lb_value value = {.storage = LOSS_STORAGES + a->added++, .version = 1, .name = LB_NONE, .statistics = LB_NONE};
    value.dtype = a->p->values[like].dtype;
    value.layout = lb_layout_contiguous(a->p->values[like].layout.ndim, a->p->values[like].layout.shape);
    const uint32_t v = lb_program_add_value(a->p, &value);
    a->failed |= v == LB_NONE;
    return v;
}

static void add_op(adder *a, const number *at, const char *name, const lb_arg *args, uint32_t n, uint32_t result)
{
    lb_op op = a->p->ops[at->op];
    op.name = lb_program_string(a->p, name), op.flags = 0;
    op.first_arg = lb_program_add_args(a->p, args, n), op.args = n;
    op.first_result = op.first_written = lb_program_add_refs(a->p, &result, 1), op.results = 1, op.written = 0;
    a->failed |= op.name == LB_NONE || op.first_arg == LB_NONE || op.first_result == LB_NONE;
    if (!a->failed) a->failed |= lb_program_add_op(a->p, &op) == LB_NONE;
}

/* The n-th number of each rank, added up; and divided by how many they are. */
static void add_total(adder *a, uint32_t nth, uint32_t ranks, bool mean)
{
    const number *at = NULL;
    uint32_t sum = LB_NONE;
    for (uint32_t i = 0; i < a->n && !a->failed; i++) {
        if (a->list[i].nth != nth) continue;
        at = &a->list[i];
        const uint32_t before = sum, v = sum == LB_NONE ? at->value : add_value(a, at->value);
        const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = before},
                               {.tag = LB_ARG_VALUE, .u.value = at->value},
                               {.tag = LB_ARG_INT, .u.i = 1}};
        if (before != LB_NONE && !a->failed) add_op(a, at, "aten::add.Tensor", args, 3, v);
        sum = v;
    }
    if (!mean || a->failed) return;
    const uint32_t v = add_value(a, sum);
    const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = sum}, {.tag = LB_ARG_INT, .u.i = ranks}};
    if (!a->failed) add_op(a, at, "aten::div.Scalar", args, 2, v);
}

/* How many ranks have numbers of their own, as many each; 0: they do not stand beside each other. */
static uint32_t count_ranks(const adder *a, uint32_t *each)
{
    uint32_t ranks = 0;
    *each = 0;
    for (uint32_t k = 0; k < a->view->n_parts; k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < a->n; i++) n += a->list[i].part == k;
        if (n && *each && n != *each) return 0;
        ranks += n > 0, *each = n ? n : *each;
    }
    return ranks;
}

/* The tables of the view grow with the ops: the new ones are of the first rank, and stand for all. */
static void note_ops(adder *a, uint32_t before)
{
    lb_program_view *view = a->view;
    const uint32_t n = a->p->n_ops;
    uint32_t *ranks = realloc(view->rank_of, ((size_t)n + 1) * sizeof *ranks);
    if (ranks) view->rank_of = ranks;
    uint64_t *all = ranks && view->ranks_of ? realloc(view->ranks_of, ((size_t)n + 1) * sizeof *all) : NULL;
    if (all) view->ranks_of = all;
    a->failed |= !ranks || (view->ranks_of && !all);
    for (uint32_t i = before; i < n && !a->failed; i++) {
        view->rank_of[i] = 0;
        if (view->ranks_of) view->ranks_of[i] = ~(uint64_t)0 >> (view->n_parts < 64 ? 64 - view->n_parts : 0);
    }
}

lb_status lb_joined_losses_add(lb_program_view *view, lb_err *err)
{
    adder a = {.view = view, .p = view->merged};
    const uint32_t before = a.p->n_ops;
    uint32_t each = 0;
    list_numbers(&a);
    const uint32_t ranks = a.failed ? 0 : count_ranks(&a, &each);
    for (uint32_t i = 0; i < each && ranks > 1 && !a.failed; i++)
        add_total(&a, i, ranks, true), add_total(&a, i, ranks, false);
    if (!a.failed) note_ops(&a, before);
    free(a.list);
    return a.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for losses") : LB_OK;
}
