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

static bool same_inputs(const trial *trial, const lb_op *a, const lb_op *b)
{
    const lb_program *pa = trial->pa, *pb = trial->pb;
    inputs x = {.p = pa, .fits = true}, y = {.p = pb, .fits = true};
    lb_op_each_input(pa, a, list_input, &x);
    lb_op_each_input(pb, b, list_input, &y);
    if (x.n != y.n || !x.fits || !y.fits) return false;
    for (uint32_t i = 0; i < x.n; i++) {
        lb_digest da, db;
        if (pa->values[x.values[i]].dtype != pb->values[y.values[i]].dtype) return false;
        if (!digest_of(trial->a, x.values[i], &da) || !digest_of(trial->b, y.values[i], &db)) return false;
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

static bool is_candidate(const trial *trial, const lb_shadow_pair *shadows, uint32_t i)
{
    uint32_t j = trial->alignment->b_of_a[i];
    if (j == LB_NONE || !lb_verdict_is_accounted_for(shadows->rows[i].own[0]) ||
        !lb_verdict_is_accounted_for(shadows->rows[i].own[1]))
        return false;
    const lb_op *a = &trial->pa->ops[i], *b = &trial->pb->ops[j];
    return has_order(lb_op_name(trial->pa, a)) && lb_op_same_args(trial->pa, a, trial->pb, b, 0) &&
           same_inputs(trial, a, b);
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
    trial *trial = context;
    if (event->approximate || !trial->wanted[event->op]) return true;
    lb_reordering *row = &trial->rows[event->op];
    const lb_program *programs[] = {trial->pa, trial->pb};
    uint32_t ops[] = {event->op, trial->alignment->b_of_a[event->op]};
    for (int side = 0; side < 2; side++) {
        if (row->order[side][0] || !gives(event, programs[side], &programs[side]->ops[ops[side]])) continue;
        snprintf(row->order[side], sizeof row->order[side], "%s",
                 strcmp(trial->order, "own") ? trial->order : own_order(trial->pa, event->op));
    }
    if (row->order[0][0] && row->order[1][0]) trial->wanted[event->op] = 0, trial->left--;
    return true;
}

static lb_status try_order(lb_replay *replay, trial *trial, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_swap swap = {LB_SWAP_ORDER, "", trial->order};
    plan.first_step = plan.last_step = trial->pa->step;
    plan.ranks = &trial->pa->rank, plan.n_ranks = 1;
    plan.only = trial->wanted, plan.compare = false;
    if (strcmp(trial->order, "own")) plan.swaps = &swap, plan.n_swaps = 1;
    lb_observer observer = {.context = trial, .op = note_event};
    lb_replay_summary summary = {0};
    lb_status status = lb_replay_run(replay, &plan, &observer, &summary, err);
    trial->cost->runs++, trial->cost->ops += summary.ops;
    return status;
}

/* ---- all of it ---- */

static void pass_over_small(trial *trial)
{
    for (uint32_t i = 0; i < trial->pa->n_ops; i++) {
        const lb_op *op = &trial->pa->ops[i];
        int64_t n = 0;
        for (uint32_t k = 0; k < op->results; k++)
            if (lb_op_results(trial->pa, op)[k] != LB_NONE)
                n += lb_layout_numel(&trial->pa->values[lb_op_results(trial->pa, op)[k]].layout);
        if (trial->wanted[i] && n < FEW) trial->wanted[i] = 0, trial->left--;
    }
}

static lb_status try_orders(trial *trial, lb_err *err)
{
    lb_replay *replay = NULL;
    LB_TRY(lb_replay_open(trial->a->capture, &replay, err));
    lb_status status = LB_OK;
    for (const char *at = orders; *at && trial->left && status == LB_OK; at += strspn(at, " ")) {
        int n = (int)strcspn(at, " ");
        snprintf(trial->order, sizeof trial->order, "%.*s", n, at);
        if (*at == '|')
            pass_over_small(trial);
        else
            status = try_order(replay, trial, err);
        at += n;
    }
    lb_replay_close(replay);
    return status;
}

lb_status lb_reorder_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                          const uint8_t *differs, lb_shadow_pair *shadows, lb_reordering **out, lb_err *err)
{
    const lb_program *pa = a->program, *pb = b->program;
    trial trial = {.a = a, .b = b, .pa = pa, .pb = pb, .alignment = alignment, .cost = &shadows->cost};
    *out = NULL;
    if (a->n_parts > 1 || b->n_parts > 1) return LB_OK;
    trial.wanted = calloc(pa->n_ops + 1, 1);
    if (!trial.wanted) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", pa->n_ops);
    for (uint32_t i = 0; i < pa->n_ops && trial.left < MOST; i++)
        if (differs[i] && is_candidate(&trial, shadows, i)) trial.wanted[i] = 1, trial.left++;
    lb_status status = LB_OK;
    if (trial.left) {
        trial.rows = calloc(pa->n_ops + 1, sizeof *trial.rows);
        status =
            trial.rows ? try_orders(&trial, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", pa->n_ops);
    }
    free(trial.wanted);
    if (status == LB_OK)
        *out = trial.rows;
    else
        free(trial.rows);
    return status;
}
