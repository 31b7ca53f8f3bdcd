/* Replays that change one thing at a time: see gap_attribution.h. */
#define _GNU_SOURCE /* strndup */
#include "explain/gap_attribution.h"

#include <lastbit/text_stream.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static bool find_ending(const lb_matched_region_source *s, lb_gap_step_end *end, uint32_t *value_b)
{
    const lb_program *a = s->a->program, *b = s->b->program;
    for (uint32_t i = a->n_boundaries; i-- > 0;) {
        const lb_boundary *x = &a->boundaries[i];
        if (!x->output || x->recompute || x->value == LB_NONE || !lb_dtype_is_float(a->values[x->value].dtype))
            continue;
        const uint32_t maker = maker_of(a, x->value, x->op);
        if (maker == LB_NONE || a->ops[maker].phase != LB_PHASE_FORWARD) continue;
        const uint32_t v = lb_op_results(a, &a->ops[maker])[0];
        if (v == LB_NONE || lb_layout_numel(&a->values[v].layout) != lb_layout_numel(&a->values[x->value].layout))
            continue;
        for (uint32_t j = b->n_boundaries; j-- > 0;) {
            if (!lb_matched_region_same_place(s, x, &b->boundaries[j])) continue;
            *value_b = b->boundaries[j].value;
            *end = (lb_gap_step_end){.step = a->step,
                                     .rank = a->rank,
                                     .value = v,
                                     .maker = maker,
                                     .layer = lb_program_text(a, a->scopes[x->scope].path),
                                     .n = lb_layout_numel(&a->values[v].layout)};
            return end->n == lb_layout_numel(&b->values[*value_b].layout);
        }
    }
    return false;
}

lb_status lb_gap_step_end_open(const lb_matched_region_source *s, lb_gap_step_end *end, bool *found, lb_err *err)
{
    lb_tensor a, b;
    uint32_t value_b;
    *end = (lb_gap_step_end){0}, *found = false;
    if (!find_ending(s, end, &value_b) || !lb_matched_region_bytes(s, 0, end->value, &a) ||
        !lb_matched_region_bytes(s, 1, value_b, &b))
        return LB_OK;
    double **lists[] = {&end->a, &end->b, &end->base, &end->moved};
    for (int i = 0; i < 4; i++)
        if (!(*lists[i] = malloc((size_t)end->n * sizeof **lists[i] + 1)))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    *found = load(&a, end->a) && load(&b, end->b);
    return LB_OK;
}

void lb_gap_step_end_release(lb_gap_step_end *end)
{
    free(end->a), free(end->b), free(end->base), free(end->moved);
    *end = (lb_gap_step_end){0};
}

/* ---- a replay ---- */

typedef struct maker {
    const lb_gap_question *of;
    lb_replay *engine;
    uint32_t *row_of;
    lb_swap *swaps;
    lb_explain_share *rows; /* places counted, shares not */
    uint32_t n_rows;
    bool base; /* it is the replay without a change that is seen */
} maker;

static bool note_event(void *context, const lb_event *event)
{
    maker *m = context;
    bool all = true;
    for (uint32_t e = 0; e < m->of->n_endings; e++) {
        lb_gap_step_end *end = &m->of->endings[e];
        for (uint32_t i = 0; i < event->n_results && !end->seen && event->rank == end->rank; i++)
            if (event->values[i] == end->value && event->computed[i].data)
                end->seen = load(&event->computed[i], m->base ? end->base : end->moved);
        all &= end->seen;
    }
    return !all;
}

static lb_status replay(maker *m, uint32_t n_swaps, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = m, .op = note_event};
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false;
    plan.first_step = plan.last_step = m->of->endings[0].step;
    plan.swaps = m->swaps, plan.n_swaps = n_swaps, plan.memory_bytes = m->of->memory_bytes;
    for (uint32_t e = 0; e < m->of->n_endings; e++) m->of->endings[e].seen = false;
    return lb_replay_run(m->engine, &plan, &observer, NULL, err);
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

static double square_gap(const lb_gap_step_end *end)
{
    double square = 0;
    for (int64_t i = 0; i < end->n; i++) square += (end->b[i] - end->a[i]) * (end->b[i] - end->a[i]);
    return square;
}

static void measure(const lb_gap_step_end *end, double *share, double *size)
{
    const double gap = square_gap(end);
    double along = 0, square = 0;
    for (int64_t i = 0; i < end->n; i++) {
        const double d = end->moved[i] - end->base[i];
        along += d * (end->b[i] - end->a[i]), square += d * d;
    }
    *share = along / gap, *size = sqrt(square / gap);
}

static bool in_row(const lb_explain_share *row, const lb_explain_finding *f, const char *stage)
{
    return row->cause == f->cause && !strcmp(row->schedule, f->schedule) && !strcmp(row->layer, stage);
}

/* Can it have to do with an output? Of collectives those before it. */
static bool is_before(const maker *m, const lb_explain_finding *f)
{
    const lb_gap_step_end *end = &m->of->endings[0];
    for (uint32_t e = 0; e < m->of->n_endings; e++)
        if (m->of->endings[e].rank == f->rank) end = &m->of->endings[e];
    return f->phase == LB_PHASE_FORWARD ||
           (f->phase == LB_PHASE_COMMUNICATION && f->index != LB_NONE && f->index < end->maker);
}

static bool can_change(const lb_explain_finding *f)
{
    return f->n_swaps || f->n_own;
}

/* Findings by cause, schedule and stage; `row_of` per finding, LB_NONE: it has no swap, or only inherits. */
static bool make_rows(maker *m)
{
    m->rows = calloc(m->of->n_findings + 1, sizeof *m->rows);
    for (uint32_t i = 0; m->rows && i < m->of->n_findings; i++) {
        const lb_explain_finding *f = &m->of->findings[i];
        m->row_of[i] = LB_NONE;
        if (f->cause == LB_CAUSE_INPUT || !can_change(f) || !is_before(m, f)) continue;
        char *stage = stage_of(f->layer);
        if (!stage) return false;
        uint32_t at = 0;
        while (at < m->n_rows && !in_row(&m->rows[at], f, stage)) at++;
        if (at == m->n_rows)
            m->rows[m->n_rows++] = (lb_explain_share){f->cause, f->schedule, stage, 0, 0, 0};
        else
            free(stage);
        m->rows[at].places++, m->row_of[i] = at;
    }
    return m->rows != NULL;
}

static bool is_left_out(const maker *m, const lb_explain_finding *f)
{
    return f->cause != LB_CAUSE_INPUT && !can_change(f) && is_before(m, f);
}

static bool leaves_out(const maker *m)
{
    bool any = false;
    for (uint32_t i = 0; i < m->of->n_findings; i++) any |= is_left_out(m, &m->of->findings[i]);
    return any;
}

/* Places that no swap changes, each once: "down c10d::allreduce_: unexplained; up aten::mm: kernel own". NULL: out of
 * memory. */
static char *list_left_out(const maker *m, uint32_t *count)
{
    char *text = NULL;
    size_t size = 0, listed = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    *count = 0;
    for (uint32_t i = 0; out && i < m->of->n_findings; i++) {
        const lb_explain_finding *f = &m->of->findings[i];
        if (!is_left_out(m, f)) continue;
        ++*count;
        bool known = false;
        for (uint32_t k = 0; k < i; k++) {
            const lb_explain_finding *x = &m->of->findings[k];
            known |= x->cause == f->cause && !can_change(x) && !strcmp(x->layer, f->layer) && !strcmp(x->op, f->op) &&
                     !strcmp(x->schedule, f->schedule);
        }
        if (known) continue;
        const bool named = f->cause != LB_CAUSE_UNEXPLAINED && *f->schedule;
        fprintf(out, "%s%s %s: %s%s%s", listed++ ? "; " : "", *f->layer ? f->layer : "(top)",
                *f->op ? f->op : f->other_op, lb_explain_cause_name(f->cause), named ? " " : "",
                named ? f->schedule : "");
    }
    if (out) fclose(out);
    return text;
}

enum { EVERY = UINT32_MAX, NO_ROW = UINT32_MAX - 1 };

/* What every replay of A takes to give A's own bits, but for the changes of a row. */
static uint32_t swaps_of(const maker *m, uint32_t row)
{
    uint32_t count = 0;
    for (int changes = 0; changes < 2; changes++) /* of two swaps the later wins */
        for (uint32_t i = 0; i < m->of->n_findings; i++) {
            const lb_explain_finding *f = &m->of->findings[i];
            const bool changed = m->row_of[i] != LB_NONE && (row == EVERY || m->row_of[i] == row);
            if (changed != changes) continue;
            const bool mine = changed || f->cause == LB_CAUSE_INPUT;
            const lb_swap *swaps = mine ? f->swaps : f->own;
            for (uint32_t k = 0; k < (mine ? f->n_swaps : f->n_own); k++) m->swaps[count++] = swaps[k];
        }
    return count;
}

/* The rows and what was left out, for an ending. */
static bool open_budget(const maker *m, const lb_gap_step_end *end, lb_explain_budget *b)
{
    *b =
        (lb_explain_budget){.step = end->step, .rank = end->rank, .output = end->layer, .elements = end->n, .gap = NAN};
    b->rows = calloc(m->n_rows + 1, sizeof *b->rows);
    bool room = b->rows && (b->left = list_left_out(m, &b->left_out));
    for (uint32_t i = 0; room && i < m->n_rows; i++) {
        b->rows[i] = m->rows[i];
        room = (b->rows[i].layer = strdup(m->rows[i].layer)) != NULL;
        b->n_rows = i + 1;
    }
    return room;
}

static bool has_gap(const lb_gap_step_end *end)
{
    const double square = square_gap(end);
    return end->seen && square > 0 && isfinite(square);
}

static void close_gap(const lb_gap_step_end *end, lb_explain_budget *b)
{
    double size, norm = 0;
    measure(end, &b->together, &size);
    for (int64_t i = 0; i < end->n; i++) b->differing += end->moved[i] != end->b[i], norm += end->a[i] * end->a[i];
    b->gap = sqrt(square_gap(end) / norm);
}

/* `apart` per ending: it was seen without a change, and the sides differ there. */
static lb_status run_all(maker *m, uint8_t *apart, lb_explain_budget *budgets, lb_err *err)
{
    m->base = true;
    LB_TRY(replay(m, swaps_of(m, NO_ROW), err));
    m->base = false;
    for (uint32_t e = 0; e < m->of->n_endings; e++) apart[e] = has_gap(&m->of->endings[e]);
    for (uint32_t row = 0; row < m->n_rows; row++) {
        if (m->of->progress) m->of->progress("budget", row, m->n_rows);
        LB_TRY(replay(m, swaps_of(m, row), err));
        for (uint32_t e = 0; e < m->of->n_endings; e++)
            if (apart[e] && m->of->endings[e].seen)
                measure(&m->of->endings[e], &budgets[e].rows[row].share, &budgets[e].rows[row].size);
    }
    LB_TRY(replay(m, swaps_of(m, EVERY), err));
    for (uint32_t e = 0; e < m->of->n_endings; e++)
        if (apart[e] && m->of->endings[e].seen) close_gap(&m->of->endings[e], &budgets[e]);
    return LB_OK;
}

static void release(maker *m)
{
    for (uint32_t i = 0; m->rows && i < m->n_rows; i++) free((char *)m->rows[i].layer);
    lb_replay_close(m->engine);
    free(m->rows), free(m->row_of), free(m->swaps);
}

lb_status lb_gap_attribution_make(const lb_gap_question *question, lb_explain_budget *budgets, bool *made, lb_err *err)
{
    maker m = {.of = question};
    const uint32_t n = question->n_findings, n_endings = question->n_endings;
    uint8_t *apart = calloc(n_endings + 1, 1);
    m.row_of = malloc((n + 1) * sizeof *m.row_of), m.swaps = malloc((3 * (size_t)n + 1) * sizeof *m.swaps);
    bool room = apart && m.row_of && m.swaps && make_rows(&m);
    *made = room && n_endings && (m.n_rows || leaves_out(&m));
    memset(budgets, 0, n_endings * sizeof *budgets);
    for (uint32_t e = 0; e < n_endings && *made && room; e++)
        room = open_budget(&m, &question->endings[e], &budgets[e]);
    lb_status status = room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    if (status == LB_OK && *made) status = lb_replay_open(question->a, &m.engine, err);
    if (status == LB_OK && *made) status = run_all(&m, apart, budgets, err);
    for (uint32_t e = 0; e < n_endings && status != LB_OK; e++) lb_gap_attribution_release(&budgets[e]);
    release(&m);
    free(apart);
    return status;
}

void lb_gap_attribution_release(lb_explain_budget *b)
{
    for (uint32_t i = 0; b->rows && i < b->n_rows; i++) free((char *)b->rows[i].layer);
    free(b->rows), free((char *)b->left);
    *b = (lb_explain_budget){0};
}
