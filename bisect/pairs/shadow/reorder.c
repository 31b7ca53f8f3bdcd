/* Trying orders: see reorder.h. Each order is one isolated replay of the candidates alone; what it computes from A's
 * inputs, which are B's too, is compared with the digests of both recordings. */
#include "shadow/reorder.h"

#include "kernel/ops.h"
#include "pair/orders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Likely ones first; "own" is the order that the op has by itself. What has a parameter fits a few elements by chance,
 * so that those after the mark are tried on more than that only. */
static const char orders[] = "own " LB_ORDERS_PLAIN " " LB_ORDERS_OF_PRODUCTS " | " LB_ORDERS_CASCADE
                             " " LB_ORDERS_LANES " " LB_ORDERS_BLOCKED " " LB_ORDERS_SPLITK " " LB_ORDERS_BUTTERFLY;
enum { MOST = 512, FEW = 8 };

typedef struct trial {
    const lb_program_view *a, *b;
    const lb_program *pa, *pb;
    const lb_alignment *alignment;
    lb_reordering *rows;
    uint8_t *wanted; /* per op of A; cleared when both sides' orders are known */
    char order[48];
    uint32_t left;
    lb_run_cost *cost;
} trial;

/* ---- candidates ---- */

typedef struct inputs {
    const lb_program *p;
    uint32_t values[64], n;
    bool fits;
} inputs;

static void list_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (value == LB_NONE) return;
    if (in->n < sizeof in->values / sizeof *in->values)
        in->values[in->n++] = value;
    else
        in->fits = false;
}

/* Views have no digest of their own. */
static bool digest_of(const lb_program_view *side, uint32_t value, lb_digest *digest)
{
    const lb_program *p = side->program;
    lb_tensor bytes;
    *digest = p->values[value].logical;
    if (!lb_digest_is_none(*digest)) return true;
    if (p->values[value].flags & LB_VALUE_UNDEFINED || lb_program_view_value(side, value, &bytes, NULL) != LB_OK)
        return false;
    *digest = lb_digest_tensor(&bytes);
    return true;
}

static bool same_inputs(const trial *t, const lb_op *a, const lb_op *b)
{
    const lb_program *pa = t->pa, *pb = t->pb;
    inputs x = {.p = pa, .fits = true}, y = {.p = pb, .fits = true};
    lb_op_each_input(pa, a, list_input, &x);
    lb_op_each_input(pb, b, list_input, &y);
    if (x.n != y.n || !x.fits || !y.fits) return false;
    for (uint32_t i = 0; i < x.n; i++) {
        lb_digest da, db;
        if (pa->values[x.values[i]].dtype != pb->values[y.values[i]].dtype) return false;
        if (!digest_of(t->a, x.values[i], &da) || !digest_of(t->b, y.values[i], &db)) return false;
        if (!lb_digest_equal(da, db)) return false;
    }
    return true;
}

static bool has_order(const char *name)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(name, &form);
    return row && row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL) &&
           !(row->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS));
}

static bool is_candidate(const trial *t, const lb_shadow_pair *shadows, uint32_t i)
{
    uint32_t j = t->alignment->b_of_a[i];
    if (j == LB_NONE || !lb_verdict_is_accounted_for(shadows->rows[i].own[0]) ||
        !lb_verdict_is_accounted_for(shadows->rows[i].own[1]))
        return false;
    const lb_op *a = &t->pa->ops[i], *b = &t->pb->ops[j];
    return has_order(lb_op_name(t->pa, a)) && lb_op_same_args(t->pa, a, t->pb, b, 0) && same_inputs(t, a, b);
}

/* ---- one order ---- */

static bool gives(const lb_event *event, const lb_program *p, const lb_op *op)
{
    bool any = false;
    for (uint32_t i = 0; i < event->n_results; i++) {
        uint32_t v = lb_op_outcome(p, op, i);
        if (v == LB_NONE || event->values[i] == LB_NONE || lb_digest_is_none(p->values[v].logical)) continue;
        if (!event->computed[i].data || event->computed[i].dtype != p->values[v].dtype) return false;
        if (!lb_digest_equal(lb_digest_tensor(&event->computed[i]), p->values[v].logical)) return false;
        any = true;
    }
    return any;
}

static const char *own_order(const lb_program *p, uint32_t op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(p, &p->ops[op]), &form);
    return row && row->flags & LB_ROW_MATMUL ? "sequential" : "torch:1";
}

static bool note_event(void *context, const lb_event *event)
{
    trial *t = context;
    if (event->approximate || !t->wanted[event->op]) return true;
    lb_reordering *row = &t->rows[event->op];
    const lb_program *programs[] = {t->pa, t->pb};
    uint32_t ops[] = {event->op, t->alignment->b_of_a[event->op]};
    for (int side = 0; side < 2; side++) {
        if (row->order[side][0] || !gives(event, programs[side], &programs[side]->ops[ops[side]])) continue;
        snprintf(row->order[side], sizeof row->order[side], "%s",
                 strcmp(t->order, "own") ? t->order : own_order(t->pa, event->op));
    }
    if (row->order[0][0] && row->order[1][0]) t->wanted[event->op] = 0, t->left--;
    return true;
}

static lb_status try_order(lb_replay *replay, trial *t, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_swap swap = {LB_SWAP_ORDER, "", t->order};
    plan.first_step = plan.last_step = t->pa->step;
    plan.ranks = &t->pa->rank, plan.n_ranks = 1;
    plan.only = t->wanted, plan.compare = false;
    if (strcmp(t->order, "own")) plan.swaps = &swap, plan.n_swaps = 1;
    lb_observer observer = {.context = t, .op = note_event};
    lb_replay_summary summary = {0};
    lb_status status = lb_replay_run(replay, &plan, &observer, &summary, err);
    t->cost->runs++, t->cost->ops += summary.ops;
    return status;
}

/* ---- all of it ---- */

static void pass_over_small(trial *t)
{
    for (uint32_t i = 0; i < t->pa->n_ops; i++) {
        const lb_op *op = &t->pa->ops[i];
        int64_t n = 0;
        for (uint32_t k = 0; k < op->results; k++)
            if (lb_op_results(t->pa, op)[k] != LB_NONE)
                n += lb_layout_numel(&t->pa->values[lb_op_results(t->pa, op)[k]].layout);
        if (t->wanted[i] && n < FEW) t->wanted[i] = 0, t->left--;
    }
}

static lb_status try_orders(trial *t, lb_err *err)
{
    lb_replay *replay = NULL;
    LB_TRY(lb_replay_open(t->a->capture, &replay, err));
    lb_status status = LB_OK;
    for (const char *at = orders; *at && t->left && status == LB_OK; at += strspn(at, " ")) {
        int n = (int)strcspn(at, " ");
        snprintf(t->order, sizeof t->order, "%.*s", n, at);
        if (*at == '|')
            pass_over_small(t);
        else
            status = try_order(replay, t, err);
        at += n;
    }
    lb_replay_close(replay);
    return status;
}

lb_status lb_reorder_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                          const uint8_t *differs, lb_shadow_pair *shadows, lb_reordering **out, lb_err *err)
{
    const lb_program *pa = a->program, *pb = b->program;
    trial t = {.a = a, .b = b, .pa = pa, .pb = pb, .alignment = alignment, .cost = &shadows->cost};
    *out = NULL;
    if (a->n_parts > 1 || b->n_parts > 1) return LB_OK;
    t.wanted = calloc(pa->n_ops + 1, 1);
    if (!t.wanted) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", pa->n_ops);
    for (uint32_t i = 0; i < pa->n_ops && t.left < MOST; i++)
        if (differs[i] && is_candidate(&t, shadows, i)) t.wanted[i] = 1, t.left++;
    lb_status status = LB_OK;
    if (t.left) {
        t.rows = calloc(pa->n_ops + 1, sizeof *t.rows);
        status = t.rows ? try_orders(&t, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", pa->n_ops);
    }
    free(t.wanted);
    if (status == LB_OK)
        *out = t.rows;
    else
        free(t.rows);
    return status;
}
