/* What the last run of a side left: see former_run.h. */
#include "exact/former_run.h"

#include "exact/exact_side.h"

#include <stdlib.h>
#include <string.h>

static int64_t numel(const lb_exact_side *s, uint32_t v)
{
    return lb_layout_numel(&s->program->values[v].layout);
}

/* ---- what a run goes on with ---- */

static lb_former_put put_of(const double *numbers, int64_t n)
{
    const double own = lb_exact_side_own();
    lb_former_put put = {0, true};
    if (!numbers) return put;
    put.digest = lb_digest_tensor(&(lb_tensor){(void *)numbers, LB_F64, lb_layout_contiguous(1, &n)}).lo | 1;
    for (int64_t i = 0; i < n && put.whole; i++) put.whole = memcmp(&numbers[i], &own, sizeof own) != 0;
    return put;
}

static bool is_put_alike(const lb_former_run *f, uint32_t v)
{
    return f->puts[v].digest == f->now[v].digest;
}

bool lb_former_run_is_put_alike(const lb_exact_side *s, uint32_t v)
{
    return s->former.asks && is_put_alike(&s->former, v);
}

bool lb_former_run_begin(lb_exact_side *s, bool may_ask, double **numbers)
{
    lb_former_run *f = &s->former;
    const uint32_t n = s->program->n_values;
    f->asks = may_ask && f->is_there, f->numbers = numbers, f->running = LB_NONE;
    free(f->now), free(f->changed), free(f->ends);
    f->ends = calloc((size_t)s->program->n_ops + 1, 1);
    if (!f->digests) f->digests = calloc((size_t)n + 1, sizeof *f->digests);
    f->now = malloc((n + 1) * sizeof *f->now), f->changed = calloc((size_t)s->prepared->n_storages + 1, 1);
    for (uint32_t v = 0; v < n && f->now; v++) f->now[v] = put_of(lb_exact_side_taken(s, v), numel(s, v));
    return f->now && f->changed && f->ends && f->digests;
}

/* ---- what changes ---- */

static void mark(lb_exact_side *s, uint32_t v)
{
    if (v != LB_NONE) s->former.changed[s->prepared->storage_of[v]] = 1;
}

static void mark_all(lb_exact_side *s, uint32_t op)
{
    const lb_op *o = &s->own->ops[op];
    for (uint32_t i = 0; i < lb_op_outcomes(o); i++) mark(s, lb_op_outcome(s->own, o, i));
}

/* An op ran and told of nothing that it gave. */
static void settle(lb_exact_side *s)
{
    lb_former_run *f = &s->former;
    if (f->running != LB_NONE && !f->running_same) mark_all(s, f->running);
    f->running = LB_NONE;
}

typedef struct reading {
    const lb_exact_side *side;
    bool same;
} reading;

static void look_at_input(void *context, uint32_t value)
{
    reading *r = context;
    if (value != LB_NONE) r->same &= !r->side->former.changed[r->side->prepared->storage_of[value]];
}

static bool is_called_alike(const lb_exact_side *s, uint32_t op)
{
    const struct lb_former_op *f = &s->former.ops[op];
    const lb_op *o = &s->own->ops[op];
    return f->name == o->name && f->first_arg == o->first_arg && f->args == o->args;
}

/* Does the op give what it gave, and do its results go on as they did? */
static bool gives_the_same(const lb_exact_side *s, uint32_t op)
{
    const lb_op *o = &s->own->ops[op];
    reading r = {s, is_called_alike(s, op)};
    if (r.same) lb_op_each_input(s->own, o, look_at_input, &r);
    for (uint32_t i = 0; i < lb_op_outcomes(o) && r.same; i++) {
        const uint32_t v = lb_op_outcome(s->own, o, i);
        if (v == LB_NONE) continue;
        look_at_input(&r, v);
        r.same &= is_put_alike(&s->former, v);
    }
    return r.same;
}

/* Are its results at hand, as the machine held them? */
static bool is_at_hand(const lb_exact_side *s, uint32_t op)
{
    const lb_op *o = &s->own->ops[op];
    const bool source = lb_op_is_source(s->own, o);
    for (uint32_t i = 0; i < lb_op_outcomes(o) && !source; i++) {
        const uint32_t v = lb_op_outcome(s->own, o, i);
        if (v == LB_NONE) continue;
        const lb_dtype dtype = s->own->values[v].dtype;
        if (!s->former.numbers[v] || !lb_dtype_is_float(dtype) || lb_dtype_is_complex(dtype) ||
            s->prepared->storages[s->prepared->storage_of[v]].punned)
            return false;
    }
    for (uint32_t k = s->first_window[op]; k < s->first_window[op + 1]; k++)
        if (s->wanted[s->windows[k]] && !s->former.numbers[s->windows[k]]) return false;
    return !source || lb_op_outcomes(o) == 1;
}

bool lb_former_run_leaves_out(lb_exact_side *s, uint32_t op)
{
    lb_former_run *f = &s->former;
    settle(s);
    const bool same = gives_the_same(s, op);
    if (same && is_at_hand(s, op)) {
        f->ends[op] = LB_FORMER_LEFT_OUT;
        return true;
    }
    f->running = op, f->running_same = same;
    if (lb_op_is_source(s->own, &s->own->ops[op])) settle(s); /* no event tells of it */
    return false;
}

bool lb_former_run_result(lb_exact_side *s, uint32_t v, lb_tensor *tensor)
{
    lb_former_run *f = &s->former;
    const lb_layout *l = &s->program->values[v].layout;
    const int64_t n = numel(s, v);
    const double own = lb_exact_side_own();
    double *numbers = lb_exact_side_taken(s, v);
    if (!numbers) numbers = f->numbers[v];
    if (!f->now[v].whole) {
        free(f->merged);
        if (!(f->merged = malloc(((size_t)n + 1) * sizeof *f->merged))) return false;
        for (int64_t i = 0; i < n; i++)
            f->merged[i] = memcmp(&numbers[i], &own, sizeof own) ? numbers[i] : f->numbers[v][i];
        numbers = f->merged;
    }
    *tensor = (lb_tensor){numbers, LB_F64, lb_layout_contiguous(l->ndim, l->shape)};
    return true;
}

void lb_former_run_note(lb_exact_side *s, uint32_t op, uint32_t v, bool same)
{
    const lb_former_run *f = &s->former;
    if (!f->asks || (f->running == op && f->running_same)) return;
    if (!is_put_alike(f, v) || !(same || (f->now[v].digest && f->now[v].whole))) mark(s, v);
}

void lb_former_run_noted(lb_exact_side *s, uint32_t op)
{
    if (s->former.running == op) s->former.running = LB_NONE;
    s->former.ends[op] = LB_FORMER_NOTED;
}

lb_former_end lb_former_run_end_of(const lb_exact_side *s, uint32_t v)
{
    const uint32_t giver = s->graph.giver[v];
    if (giver == LB_NONE) return LB_FORMER_UNKNOWN;
    const lb_op *op = &s->program->ops[giver];
    if (!lb_op_is_source(s->program, op)) return (lb_former_end)s->former.ends[giver];
    return lb_former_run_is_put_alike(s, lb_op_results(s->program, op)[0]) ? LB_FORMER_LEFT_OUT : LB_FORMER_NOTED;
}

/* ---- the last run ---- */

static bool reserve(lb_former_run *f, uint32_t n_ops)
{
    if (!f->ops) f->ops = calloc((size_t)n_ops + 1, sizeof *f->ops);
    return f->ops != NULL;
}

bool lb_former_run_end(lb_exact_side *s, bool is_last)
{
    lb_former_run *f = &s->former;
    free(f->changed), free(f->ends), free(f->merged);
    f->changed = f->ends = NULL, f->merged = NULL, f->numbers = NULL, f->asks = false;
    if (!is_last) return true;
    f->is_there = reserve(f, s->own->n_ops);
    for (uint32_t i = 0; i < s->own->n_ops && f->is_there; i++)
        f->ops[i] = (struct lb_former_op){s->own->ops[i].name, s->own->ops[i].first_arg, s->own->ops[i].args};
    free(f->puts);
    f->puts = f->now, f->now = NULL;
    return f->is_there;
}

void lb_former_run_release(lb_former_run *f)
{
    free(f->ops), free(f->puts), free(f->digests), free(f->now), free(f->changed);
    free(f->ends), free(f->merged);
    *f = (lb_former_run){0};
}
