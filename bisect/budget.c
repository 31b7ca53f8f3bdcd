/* Replays that change one thing at a time: see budget.h. */
#define _GNU_SOURCE /* strndup */
#include "budget.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The output that is looked at. */
typedef struct ending {
    uint32_t value_a, value_b, storage_op; /* storage_op: the op of A that gives it */
    const char *layer;
    int64_t n;
    double *a, *b; /* recorded */
} ending;

typedef struct run {
    const ending *end;
    double *out;
    bool seen;
} run;

/* ---- what is looked at ---- */

static bool load(const lb_tensor *t, double *out)
{
    const int64_t n = lb_layout_numel(&t->layout);
    void *dense = malloc(lb_dtype_bytes(t->dtype, (size_t)n) + 1);
    const bool done = dense && lb_tensor_gather(t, dense, NULL) == LB_OK;
    if (done) lb_load_f64(out, t->dtype, dense, (size_t)n);
    free(dense);
    return done;
}

/* The op that gives the contents of a module's output. */
static uint32_t maker_of(const lb_program *p, uint32_t value, uint32_t before)
{
    for (uint32_t i = before; i-- > 0;) {
        const lb_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->results && !(op->flags & LB_OP_VIEW); k++) {
            const uint32_t v = lb_op_results(p, op)[k];
            if (v != LB_NONE && p->values[v].storage == p->values[value].storage) return i;
        }
    }
    return LB_NONE;
}

/* The last float output of a module in the forward pass that both sides have, as a whole op's result. */
static bool find_ending(const lb_stretch_source *s, ending *end)
{
    const lb_program *a = s->a->program, *b = s->b->program;
    for (uint32_t i = a->n_boundaries; i-- > 0;) {
        const lb_boundary *x = &a->boundaries[i];
        if (!x->output || x->recompute || x->value == LB_NONE || !lb_dtype_is_float(a->values[x->value].dtype))
            continue;
        const uint32_t maker = maker_of(a, x->value, x->op);
        if (maker == LB_NONE || a->ops[maker].phase != LB_PHASE_FORWARD) continue;
        const uint32_t v = lb_op_results(a, &a->ops[maker])[0];
        if (v == LB_NONE ||
            lb_layout_numel(&a->values[v].layout) != lb_layout_numel(&a->values[x->value].layout))
            continue;
        for (uint32_t j = b->n_boundaries; j-- > 0;) {
            if (!lb_stretch_same_place(s, x, &b->boundaries[j])) continue;
            *end = (ending){.value_a = v,
                            .value_b = b->boundaries[j].value,
                            .storage_op = maker,
                            .layer = lb_program_text(a, a->scopes[x->scope].path),
                            .n = lb_layout_numel(&a->values[v].layout)};
            return end->n == lb_layout_numel(&b->values[end->value_b].layout);
        }
    }
    return false;
}

static bool open_ending(const lb_stretch_source *s, ending *end)
{
    lb_tensor a, b;
    if (!find_ending(s, end)) return false;
    end->a = malloc((size_t)end->n * sizeof *end->a + 1), end->b = malloc((size_t)end->n * sizeof *end->b + 1);
    return end->a && end->b && lb_stretch_bytes(s, 0, end->value_a, &a) &&
           lb_stretch_bytes(s, 1, end->value_b, &b) && load(&a, end->a) && load(&b, end->b);
}

/* ---- a replay ---- */

static bool note_event(void *context, const lb_event *event)
{
    run *r = context;
    for (uint32_t i = 0; i < event->n_results && !r->seen; i++)
        if (event->values[i] == r->end->value_a && event->computed[i].data)
            r->seen = load(&event->computed[i], r->out);
    return !r->seen;
}

static lb_status replay(const lb_stretch_source *s, lb_replay *engine, const ending *end, const lb_swap *swaps,
                        uint32_t n, double *out, bool *seen, lb_err *err)
{
    const lb_program *p = s->a->program;
    lb_plan plan = LB_PLAN_INIT;
    run r = {end, out, false};
    lb_observer observer = {.context = &r, .op = note_event};
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false;
    plan.first_step = plan.last_step = p->step;
    plan.ranks = &p->rank, plan.n_ranks = 1;
    plan.swaps = swaps, plan.n_swaps = n;
    LB_TRY(lb_replay_run(engine, &plan, &observer, NULL, err));
    *seen = r.seen;
    return LB_OK;
}

/* ---- shares ---- */

/* "model.layers.3" of "model.layers.3.mlp.up_proj": up to the first number, or the whole. malloc'ed. */
static char *stage_of(const char *layer)
{
    for (const char *c = layer; *c; c++) {
        if (!isdigit((unsigned char)*c) || (c != layer && c[-1] != '.')) continue;
        while (isdigit((unsigned char)*c)) c++;
        if (*c == '.' || !*c) return strndup(layer, (size_t)(c - layer));
        break;
    }
    return strdup(*layer ? layer : "");
}

typedef struct gap {
    const double *from; /* the replay without a change */
    const ending *end;
    double square; /* |B - A|^2 */
} gap;

static void measure(const gap *g, const double *moved, double *share, double *size)
{
    double along = 0, square = 0;
    for (int64_t i = 0; i < g->end->n; i++) {
        const double d = moved[i] - g->from[i];
        along += d * (g->end->b[i] - g->end->a[i]), square += d * d;
    }
    *share = along / g->square, *size = sqrt(square / g->square);
}

static bool in_row(const lb_explain_share *row, const lb_explain_finding *f, const char *stage)
{
    return row->cause == f->cause && !strcmp(row->schedule, f->schedule) && !strcmp(row->layer, stage);
}

/* Findings by cause, schedule and stage; `row_of` per finding, LB_NONE: it has no swap, or only inherits. */
static bool make_rows(const lb_explain_finding *findings, uint32_t n, lb_explain_budget *budget,
                      uint32_t *row_of)
{
    budget->rows = calloc(n + 1, sizeof *budget->rows);
    for (uint32_t i = 0; budget->rows && i < n; i++) {
        const lb_explain_finding *f = &findings[i];
        row_of[i] = LB_NONE;
        if (f->cause == LB_CAUSE_INPUT) continue;
        if (!f->n_swaps || f->phase != LB_PHASE_FORWARD) {
            budget->left_out += f->phase == LB_PHASE_FORWARD;
            continue;
        }
        char *stage = stage_of(f->layer);
        if (!stage) return false;
        uint32_t at = 0;
        while (at < budget->n_rows && !in_row(&budget->rows[at], f, stage)) at++;
        if (at == budget->n_rows)
            budget->rows[budget->n_rows++] = (lb_explain_share){f->cause, f->schedule, stage, 0, 0, 0};
        else
            free(stage);
        budget->rows[at].places++, row_of[i] = at;
    }
    return budget->rows != NULL;
}

enum { EVERY = UINT32_MAX, NO_ROW = UINT32_MAX - 1 };

/* What every replay of A takes to give A's own bits, and then the changes of a row: the later of two swaps wins. */
static uint32_t swaps_of(const lb_explain_finding *findings, uint32_t n, const uint32_t *row_of, uint32_t row,
                         lb_swap *swaps)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; findings[i].cause == LB_CAUSE_INPUT && k < findings[i].n_swaps; k++)
            swaps[count++] = findings[i].swaps[k];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0;
             row_of[i] != LB_NONE && (row == EVERY || row_of[i] == row) && k < findings[i].n_swaps; k++)
            swaps[count++] = findings[i].swaps[k];
    return count;
}

typedef struct maker {
    const lb_stretch_source *source;
    const lb_explain_finding *findings;
    uint32_t n;
    void (*progress)(const char *what, uint64_t done, uint64_t total);
    lb_explain_budget *budget;
    ending end;
    double *base, *moved;
    uint32_t *row_of;
    lb_swap *swaps;
} maker;

static lb_status run_all(maker *m, lb_replay *engine, bool *made, lb_err *err)
{
    lb_explain_budget *b = m->budget;
    bool seen;
    const uint32_t base = swaps_of(m->findings, m->n, m->row_of, NO_ROW, m->swaps);
    LB_TRY(replay(m->source, engine, &m->end, m->swaps, base, m->base, &seen, err));
    gap g = {m->base, &m->end, 0};
    double norm = 0;
    for (int64_t i = 0; i < m->end.n; i++) {
        const double d = m->end.b[i] - m->end.a[i];
        g.square += d * d, norm += m->end.a[i] * m->end.a[i];
    }
    *made = seen && g.square > 0 && isfinite(g.square);
    for (uint32_t row = 0; *made && row < b->n_rows; row++) {
        if (m->progress) m->progress("budget", row, b->n_rows);
        const uint32_t count = swaps_of(m->findings, m->n, m->row_of, row, m->swaps);
        LB_TRY(replay(m->source, engine, &m->end, m->swaps, count, m->moved, &seen, err));
        if (seen) measure(&g, m->moved, &b->rows[row].share, &b->rows[row].size);
    }
    if (!*made) return LB_OK;
    const uint32_t count = swaps_of(m->findings, m->n, m->row_of, EVERY, m->swaps);
    LB_TRY(replay(m->source, engine, &m->end, m->swaps, count, m->moved, &seen, err));
    double size;
    measure(&g, m->moved, &b->together, &size);
    for (int64_t i = 0; i < m->end.n; i++) b->differing += m->moved[i] != m->end.b[i];
    b->gap = sqrt(g.square / norm), b->elements = m->end.n;
    b->step = m->source->a->program->step, b->rank = m->source->a->program->rank, b->output = m->end.layer;
    return LB_OK;
}

lb_status lb_budget_make(const lb_stretch_source *source, const lb_explain_finding *findings, uint32_t n,
                         void (*progress)(const char *what, uint64_t done, uint64_t total),
                         lb_explain_budget *budget, bool *made, lb_err *err)
{
    maker m = {.source = source, .findings = findings, .n = n, .progress = progress, .budget = budget};
    lb_replay *engine = NULL;
    lb_status status = LB_OK;
    *budget = (lb_explain_budget){0}, *made = false;
    m.row_of = malloc((n + 1) * sizeof *m.row_of), m.swaps = malloc((3 * (size_t)n + 1) * sizeof *m.swaps);
    const bool room = m.row_of && m.swaps && make_rows(findings, n, budget, m.row_of);
    if (!room) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    if (status == LB_OK && budget->n_rows && open_ending(source, &m.end)) {
        m.base = malloc((size_t)m.end.n * sizeof *m.base + 1),
        m.moved = malloc((size_t)m.end.n * sizeof *m.moved + 1);
        status = m.base && m.moved ? lb_replay_open(source->a->capture, &engine, err)
                                   : lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
        if (status == LB_OK) status = run_all(&m, engine, made, err);
        lb_replay_close(engine);
    }
    for (uint32_t i = 0; !*made && budget->rows && i < budget->n_rows; i++) free((char *)budget->rows[i].layer);
    if (!*made) free(budget->rows), budget->rows = NULL;
    free(m.row_of), free(m.swaps), free(m.base), free(m.moved), free(m.end.a), free(m.end.b);
    return status;
}
