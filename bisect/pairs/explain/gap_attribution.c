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
static uint32_t maker_of(const lb_program *program, uint32_t value, uint32_t before)
{
    for (uint32_t i = before; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        for (uint32_t k = 0; k < op->results && !(op->flags & LB_OP_VIEW); k++) {
            const uint32_t v = lb_op_results(program, op)[k];
            if (v != LB_NONE && program->values[v].storage == program->values[value].storage) return i;
        }
    }
    return LB_NONE;
}

/* The last float output of a module in the forward pass that both sides have, as a whole op's result. */
static bool find_ending(const lb_matched_region_source *source, lb_gap_step_end *end, uint32_t *value_b)
{
    const lb_program *a = source->a->program, *b = source->b->program;
    for (uint32_t i = a->n_boundaries; i-- > 0;) {
        const lb_boundary *boundary = &a->boundaries[i];
        if (!boundary->output || boundary->recompute || boundary->value == LB_NONE ||
            !lb_dtype_is_float(a->values[boundary->value].dtype))
            continue;
        const uint32_t maker = maker_of(a, boundary->value, boundary->op);
        if (maker == LB_NONE || a->ops[maker].phase != LB_PHASE_FORWARD) continue;
        const uint32_t result = lb_op_results(a, &a->ops[maker])[0];
        if (result == LB_NONE ||
            lb_layout_numel(&a->values[result].layout) != lb_layout_numel(&a->values[boundary->value].layout))
            continue;
        for (uint32_t j = b->n_boundaries; j-- > 0;) {
            if (!lb_matched_region_same_place(source, boundary, &b->boundaries[j])) continue;
            *value_b = b->boundaries[j].value;
            *end = (lb_gap_step_end){.step = a->step,
                                     .rank = a->rank,
                                     .value = result,
                                     .maker = maker,
                                     .layer = lb_program_text(a, a->scopes[boundary->scope].path),
                                     .n = lb_layout_numel(&a->values[result].layout)};
            return end->n == lb_layout_numel(&b->values[*value_b].layout);
        }
    }
    return false;
}

lb_status lb_gap_step_end_open(const lb_matched_region_source *source, lb_gap_step_end *ending, bool *found,
                               lb_err *err)
{
    lb_tensor a, b;
    uint32_t value_b;
    *ending = (lb_gap_step_end){0}, *found = false;
    if (!find_ending(source, ending, &value_b) || !lb_matched_region_bytes(source, 0, ending->value, &a) ||
        !lb_matched_region_bytes(source, 1, value_b, &b))
        return LB_OK;
    double **lists[] = {&ending->a, &ending->b, &ending->base, &ending->moved};
    for (int i = 0; i < 4; i++)
        if (!(*lists[i] = malloc((size_t)ending->n * sizeof **lists[i] + 1)))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    *found = load(&a, ending->a) && load(&b, ending->b);
    return LB_OK;
}

void lb_gap_step_end_release(lb_gap_step_end *ending)
{
    free(ending->a), free(ending->b), free(ending->base), free(ending->moved);
    *ending = (lb_gap_step_end){0};
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
    maker *maker = context;
    bool all = true;
    for (uint32_t e = 0; e < maker->of->n_endings; e++) {
        lb_gap_step_end *end = &maker->of->endings[e];
        for (uint32_t i = 0; i < event->n_results && !end->seen && event->rank == end->rank; i++)
            if (event->values[i] == end->value && event->computed[i].data)
                end->seen = load(&event->computed[i], maker->base ? end->base : end->moved);
        all &= end->seen;
    }
    return !all;
}

static lb_status replay(maker *maker, uint32_t n_swaps, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = maker, .op = note_event};
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false;
    plan.first_step = plan.last_step = maker->of->endings[0].step;
    plan.swaps = maker->swaps, plan.n_swaps = n_swaps, plan.memory_bytes = maker->of->memory_bytes;
    for (uint32_t e = 0; e < maker->of->n_endings; e++) maker->of->endings[e].seen = false;
    return lb_replay_run(maker->engine, &plan, &observer, NULL, err);
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

static bool in_row(const lb_explain_share *row, const lb_explain_finding *finding, const char *stage)
{
    return row->cause == finding->cause && !strcmp(row->schedule, finding->schedule) && !strcmp(row->layer, stage);
}

/* Can it have to do with an output? Of collectives those before it. */
static bool is_before(const maker *maker, const lb_explain_finding *finding)
{
    const lb_gap_step_end *end = &maker->of->endings[0];
    for (uint32_t e = 0; e < maker->of->n_endings; e++)
        if (maker->of->endings[e].rank == finding->rank) end = &maker->of->endings[e];
    return finding->phase == LB_PHASE_FORWARD ||
           (finding->phase == LB_PHASE_COMMUNICATION && finding->index != LB_NONE && finding->index < end->maker);
}

static bool can_change(const lb_explain_finding *finding)
{
    return finding->n_swaps || finding->n_own;
}

/* Findings by cause, schedule and stage; `row_of` per finding, LB_NONE: it has no swap, or only inherits. */
static bool make_rows(maker *maker)
{
    maker->rows = calloc(maker->of->n_findings + 1, sizeof *maker->rows);
    for (uint32_t i = 0; maker->rows && i < maker->of->n_findings; i++) {
        const lb_explain_finding *finding = &maker->of->findings[i];
        maker->row_of[i] = LB_NONE;
        if (finding->cause == LB_CAUSE_INPUT || !can_change(finding) || !is_before(maker, finding)) continue;
        char *stage = stage_of(finding->layer);
        if (!stage) return false;
        uint32_t at = 0;
        while (at < maker->n_rows && !in_row(&maker->rows[at], finding, stage)) at++;
        if (at == maker->n_rows)
            maker->rows[maker->n_rows++] = (lb_explain_share){finding->cause, finding->schedule, stage, 0, 0, 0};
        else
            free(stage);
        maker->rows[at].places++, maker->row_of[i] = at;
    }
    return maker->rows != NULL;
}

static bool is_left_out(const maker *maker, const lb_explain_finding *finding)
{
    return finding->cause != LB_CAUSE_INPUT && !can_change(finding) && is_before(maker, finding);
}

static bool leaves_out(const maker *maker)
{
    bool any = false;
    for (uint32_t i = 0; i < maker->of->n_findings; i++) any |= is_left_out(maker, &maker->of->findings[i]);
    return any;
}

/* Places that no swap changes, each once: "down c10d::allreduce_: unexplained; up aten::mm: kernel own". NULL: out of
 * memory. */
static char *list_left_out(const maker *maker, uint32_t *count)
{
    char *text = NULL;
    size_t size = 0, listed = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    *count = 0;
    for (uint32_t i = 0; out && i < maker->of->n_findings; i++) {
        const lb_explain_finding *finding = &maker->of->findings[i];
        if (!is_left_out(maker, finding)) continue;
        ++*count;
        bool known = false;
        for (uint32_t k = 0; k < i; k++) {
            const lb_explain_finding *x = &maker->of->findings[k];
            known |= x->cause == finding->cause && !can_change(x) && !strcmp(x->layer, finding->layer) &&
                     !strcmp(x->op, finding->op) && !strcmp(x->schedule, finding->schedule);
        }
        if (known) continue;
        const bool named = finding->cause != LB_CAUSE_UNEXPLAINED && *finding->schedule;
        fprintf(out, "%s%s %s: %s%s%s", listed++ ? "; " : "", *finding->layer ? finding->layer : "(top)",
                *finding->op ? finding->op : finding->other_op, lb_explain_cause_name(finding->cause), named ? " " : "",
                named ? finding->schedule : "");
    }
    if (out) fclose(out);
    return text;
}

enum { EVERY = UINT32_MAX, NO_ROW = UINT32_MAX - 1 };

/* What every replay of A takes to give A's own bits, but for the changes of a row. */
static uint32_t swaps_of(const maker *maker, uint32_t row)
{
    uint32_t count = 0;
    for (int changes = 0; changes < 2; changes++) /* of two swaps the later wins */
        for (uint32_t i = 0; i < maker->of->n_findings; i++) {
            const lb_explain_finding *finding = &maker->of->findings[i];
            const bool changed = maker->row_of[i] != LB_NONE && (row == EVERY || maker->row_of[i] == row);
            if (changed != changes) continue;
            const bool mine = changed || finding->cause == LB_CAUSE_INPUT;
            const lb_swap *swaps = mine ? finding->swaps : finding->own;
            for (uint32_t k = 0; k < (mine ? finding->n_swaps : finding->n_own); k++) maker->swaps[count++] = swaps[k];
        }
    return count;
}

/* The rows and what was left out, for an ending. */
static bool open_budget(const maker *maker, const lb_gap_step_end *end, lb_explain_budget *budget)
{
    *budget =
        (lb_explain_budget){.step = end->step, .rank = end->rank, .output = end->layer, .elements = end->n, .gap = NAN};
    budget->rows = calloc(maker->n_rows + 1, sizeof *budget->rows);
    bool room = budget->rows && (budget->left = list_left_out(maker, &budget->left_out));
    for (uint32_t i = 0; room && i < maker->n_rows; i++) {
        budget->rows[i] = maker->rows[i];
        room = (budget->rows[i].layer = strdup(maker->rows[i].layer)) != NULL;
        budget->n_rows = i + 1;
    }
    return room;
}

static bool has_gap(const lb_gap_step_end *end)
{
    const double square = square_gap(end);
    return end->seen && square > 0 && isfinite(square);
}

static void close_gap(const lb_gap_step_end *end, lb_explain_budget *budget)
{
    double size, norm = 0;
    measure(end, &budget->together, &size);
    for (int64_t i = 0; i < end->n; i++) budget->differing += end->moved[i] != end->b[i], norm += end->a[i] * end->a[i];
    budget->gap = sqrt(square_gap(end) / norm);
}

/* `apart` per ending: it was seen without a change, and the sides differ there. */
static lb_status run_all(maker *maker, uint8_t *apart, lb_explain_budget *budgets, lb_err *err)
{
    maker->base = true;
    LB_TRY(replay(maker, swaps_of(maker, NO_ROW), err));
    maker->base = false;
    for (uint32_t e = 0; e < maker->of->n_endings; e++) apart[e] = has_gap(&maker->of->endings[e]);
    for (uint32_t row = 0; row < maker->n_rows; row++) {
        if (maker->of->progress) maker->of->progress("budget", row, maker->n_rows);
        LB_TRY(replay(maker, swaps_of(maker, row), err));
        for (uint32_t e = 0; e < maker->of->n_endings; e++)
            if (apart[e] && maker->of->endings[e].seen)
                measure(&maker->of->endings[e], &budgets[e].rows[row].share, &budgets[e].rows[row].size);
    }
    LB_TRY(replay(maker, swaps_of(maker, EVERY), err));
    for (uint32_t e = 0; e < maker->of->n_endings; e++)
        if (apart[e] && maker->of->endings[e].seen) close_gap(&maker->of->endings[e], &budgets[e]);
    return LB_OK;
}

static void release(maker *maker)
{
    for (uint32_t i = 0; maker->rows && i < maker->n_rows; i++) free((char *)maker->rows[i].layer);
    lb_replay_close(maker->engine);
    free(maker->rows), free(maker->row_of), free(maker->swaps);
}

lb_status lb_gap_attribution_make(const lb_gap_question *question, lb_explain_budget *budgets, bool *made, lb_err *err)
{
    maker maker = {.of = question};
    const uint32_t n = question->n_findings, n_endings = question->n_endings;
    uint8_t *apart = calloc(n_endings + 1, 1);
    maker.row_of = malloc((n + 1) * sizeof *maker.row_of),
    maker.swaps = malloc((3 * (size_t)n + 1) * sizeof *maker.swaps);
    bool room = apart && maker.row_of && maker.swaps && make_rows(&maker);
    *made = room && n_endings && (maker.n_rows || leaves_out(&maker));
    memset(budgets, 0, n_endings * sizeof *budgets);
    for (uint32_t e = 0; e < n_endings && *made && room; e++)
        room = open_budget(&maker, &question->endings[e], &budgets[e]);
    lb_status status = room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    if (status == LB_OK && *made) status = lb_replay_open(question->a, &maker.engine, err);
    if (status == LB_OK && *made) status = run_all(&maker, apart, budgets, err);
    for (uint32_t e = 0; e < n_endings && status != LB_OK; e++) lb_gap_attribution_release(&budgets[e]);
    release(&maker);
    free(apart);
    return status;
}

void lb_gap_attribution_release(lb_explain_budget *budget)
{
    for (uint32_t i = 0; budget->rows && i < budget->n_rows; i++) free((char *)budget->rows[i].layer);
    free(budget->rows), free((char *)budget->left);
    *budget = (lb_explain_budget){0};
}
