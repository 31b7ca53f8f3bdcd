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

static void list_numbers(adder *adder)
{
    uint32_t *many = calloc(adder->view->n_parts + 1, sizeof *many), v;
    adder->list = malloc(((size_t)adder->p->n_ops + 1) * sizeof *adder->list);
    adder->failed = !many || !adder->list;
    for (uint32_t i = 0; i < adder->p->n_ops && !adder->failed; i++) {
        if ((v = lb_op_last_number(adder->p, i, true)) == LB_NONE) continue;
        const uint32_t part = lb_program_view_part_of(adder->view, i);
        adder->list[adder->n++] = (number){v, part, i, many[part]++};
    }
    free(many);
}

static uint32_t add_value(adder *adder, uint32_t like)
{
    lb_value value = {.storage = LOSS_STORAGES + adder->added++, .version = 1, .name = LB_NONE, .statistics = LB_NONE};
    value.dtype = adder->p->values[like].dtype;
    value.layout = lb_layout_contiguous(adder->p->values[like].layout.ndim, adder->p->values[like].layout.shape);
    const uint32_t v = lb_program_add_value(adder->p, &value);
    adder->failed |= v == LB_NONE;
    return v;
}

static void add_op(adder *adder, const number *at, const char *name, const lb_arg *args, uint32_t n, uint32_t result)
{
    lb_op op = adder->p->ops[at->op];
    op.name = lb_program_string(adder->p, name), op.flags = 0;
    op.first_arg = lb_program_add_args(adder->p, args, n), op.args = n;
    op.first_result = op.first_written = lb_program_add_refs(adder->p, &result, 1), op.results = 1, op.written = 0;
    adder->failed |= op.name == LB_NONE || op.first_arg == LB_NONE || op.first_result == LB_NONE;
    if (!adder->failed) adder->failed |= lb_program_add_op(adder->p, &op) == LB_NONE;
}

/* The n-th number of each rank, added up; and divided by how many they are. */
static void add_total(adder *adder, uint32_t nth, uint32_t ranks, bool mean)
{
    const number *at = NULL;
    uint32_t sum = LB_NONE;
    for (uint32_t i = 0; i < adder->n && !adder->failed; i++) {
        if (adder->list[i].nth != nth) continue;
        at = &adder->list[i];
        const uint32_t before = sum, v = sum == LB_NONE ? at->value : add_value(adder, at->value);
        const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = before},
                               {.tag = LB_ARG_VALUE, .u.value = at->value},
                               {.tag = LB_ARG_INT, .u.i = 1}};
        if (before != LB_NONE && !adder->failed) add_op(adder, at, "aten::add.Tensor", args, 3, v);
        sum = v;
    }
    if (!mean || adder->failed) return;
    const uint32_t v = add_value(adder, sum);
    const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = sum}, {.tag = LB_ARG_INT, .u.i = ranks}};
    if (!adder->failed) add_op(adder, at, "aten::div.Scalar", args, 2, v);
}

/* How many ranks have numbers of their own, as many each; 0: they do not stand beside each other. */
static uint32_t count_ranks(const adder *adder, uint32_t *each)
{
    uint32_t ranks = 0;
    *each = 0;
    for (uint32_t k = 0; k < adder->view->n_parts; k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < adder->n; i++) n += adder->list[i].part == k;
        if (n && *each && n != *each) return 0;
        ranks += n > 0, *each = n ? n : *each;
    }
    return ranks;
}

/* The tables of the view grow with the ops: the new ones are of the first rank, and stand for all. */
static void note_ops(adder *adder, uint32_t before)
{
    lb_program_view *view = adder->view;
    const uint32_t n = adder->p->n_ops;
    uint32_t *ranks = realloc(view->rank_of, ((size_t)n + 1) * sizeof *ranks);
    if (ranks) view->rank_of = ranks;
    uint64_t *all = ranks && view->ranks_of ? realloc(view->ranks_of, ((size_t)n + 1) * sizeof *all) : NULL;
    if (all) view->ranks_of = all;
    adder->failed |= !ranks || (view->ranks_of && !all);
    for (uint32_t i = before; i < n && !adder->failed; i++) {
        view->rank_of[i] = 0;
        if (view->ranks_of) view->ranks_of[i] = ~(uint64_t)0 >> (view->n_parts < 64 ? 64 - view->n_parts : 0);
    }
}

lb_status lb_joined_losses_add(lb_program_view *view, lb_err *err)
{
    adder adder = {.view = view, .p = view->merged};
    const uint32_t before = adder.p->n_ops;
    uint32_t each = 0;
    list_numbers(&adder);
    const uint32_t ranks = adder.failed ? 0 : count_ranks(&adder, &each);
    for (uint32_t i = 0; i < each && ranks > 1 && !adder.failed; i++)
        add_total(&adder, i, ranks, true), add_total(&adder, i, ranks, false);
    if (!adder.failed) note_ops(&adder, before);
    free(adder.list);
    return adder.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for losses") : LB_OK;
}
