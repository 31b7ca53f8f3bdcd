/* An exact run of one side: see exact_side.h. */
#include "exact/exact_side.h"
#include "exact/moved_choice.h"

#include "shadow/kept_shadow.h"
#include "shadow/number_blocks.h"
#include "shadow/shadow_numbers.h"
#include "ranks/rank_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    lb_exact_side *side;
    bool disturbed, aside; /* aside: nothing asks for its quantities */
    uint64_t serial;
    uint8_t *anew; /* per value: see moved_choice.h */
} run;

static bool is_real(const lb_tensor *t)
{
    return t->data && !lb_dtype_is_complex(t->dtype) && lb_dtype_bits(t->dtype) >= 8;
}

static bool has_numbers(const lb_tensor *t, const double *numbers)
{
    lb_number_blocks blocks;
    double room[LB_NUMBER_BLOCK];
    bool same = lb_number_blocks_open(t, &blocks);
    for (int64_t i = 0; same && i < blocks.n; i += LB_NUMBER_BLOCK) {
        const int64_t n = lb_number_blocks_count(&blocks, i);
        same = !memcmp(lb_number_blocks_at(&blocks, i, n, room), numbers + i, (size_t)n * sizeof *numbers);
    }
    lb_number_blocks_close(&blocks);
    return same;
}

/* Of several runs no total is known before they end. */
void lb_exact_side_count(lb_exact_side *s, uint64_t ops)
{
    enum { EVERY = 64 };
    const uint64_t before = s->ops_run / EVERY;
    s->ops_run += ops;
    if (s->progress && s->ops_run / EVERY != before) s->progress("running both exactly", s->ops_run, 0);
}

void lb_exact_side_note_change(lb_exact_side *s, uint32_t value)
{
    s->changed[value] = ++s->changes;
}

/* Keeps the numbers where they are wanted; were they the same in the last run? Beside the last run what is the same
 * stays that run's. */
static bool keep(run *r, uint32_t value, const lb_tensor *t)
{
    lb_exact_side *s = r->side;
    double *before = s->former.asks ? s->former.numbers[value] : NULL, *room = s->kept[value];
    const int64_t n = lb_layout_numel(&t->layout);
    if (n <= 0) return s->former.asks;
    const bool same = before && has_numbers(t, before);
    if (!s->wanted[value]) return same;
    if (same && (!room || room == before)) {
        s->kept[value] = before;
        return true;
    }
    if (r->aside && room == before) room = NULL;
    if (!room) room = malloc((size_t)n * sizeof *room);
    if (room) lb_shadow_numbers(t, room);
    s->kept[value] = room, s->noise[value] = 0;
    if (!r->aside) lb_exact_side_note_change(s, value);
    return same;
}

static void measure_noise(const run *r, uint32_t value, const lb_tensor *t)
{
    lb_exact_side *s = r->side;
    if (s->wanted[value] && s->kept[value])
        s->noise[value] = fmax(s->noise[value], lb_shadow_noise_of(s->kept[value], t));
}

/* Of values that are not kept, integers at most: had they the same bits in the last run? */
static bool has_same_digest(const run *r, uint32_t value, const lb_tensor *t)
{
    lb_former_run *f = &r->side->former;
    if (lb_dtype_is_float(t->dtype)) return false;
    const uint64_t before = f->digests[value], now = lb_digest_tensor(t).lo | 1;
    if (!r->aside) f->digests[value] = now;
    return before == now;
}

/* Has the value the bits that it had in the last run? */
static bool look_at(run *r, uint32_t value, const lb_tensor *t)
{
    lb_exact_side *s = r->side;
    if (!is_real(t)) return false;
    if (r->disturbed) {
        const lb_quantity q = lb_quantity_of(t);
        lb_quantity_disturbed(&s->quantities[value], &q);
        lb_exact_side_note_change(s, value);
        measure_noise(r, value, t);
        return false;
    }
    const bool same = keep(r, value, t) || has_same_digest(r, value, t);
    if (!r->aside && !same) s->quantities[value] = lb_quantity_of(t);
    return same;
}

/* A window that holds all of what its one giver gave is the same quantity. */
static bool is_whole(const lb_value_graph *g, uint32_t value)
{
    const uint32_t first = g->first_pred[value];
    return g->first_pred[value + 1] - first == 1 && lb_layout_numel(&g->program->values[value].layout) ==
                                                        lb_layout_numel(&g->program->values[g->preds[first]].layout);
}

static void look_at_windows(run *r, uint32_t op, const lb_event *event)
{
    lb_exact_side *s = r->side;
    for (uint32_t k = s->first_window[op]; k < s->first_window[op + 1]; k++) {
        const uint32_t v = s->windows[k];
        lb_tensor t;
        if (!s->wanted[v] && is_whole(&s->graph, v)) {
            s->quantities[v] = s->quantities[s->graph.preds[s->graph.first_pred[v]]];
            continue;
        }
        if (lb_event_exact(event, v, &t)) look_at(r, v, &t);
    }
}

/* A parameter that begins with the other side's numbers. */
static void keep_held(const run *r, uint32_t v)
{
    lb_exact_side *s = r->side;
    const int64_t n = lb_layout_numel(&s->program->values[v].layout);
    if (!s->held[v] || !s->kept[v]) return;
    memcpy(s->kept[v], s->held[v], (size_t)n * sizeof **s->kept);
    if (!r->aside) lb_exact_side_note_change(s, v);
}

/* What shows some of a source has the numbers that were recorded of it; no op gives these, so that no event speaks of
 * them. */
static void look_at_sources(run *r)
{
    lb_exact_side *s = r->side;
    const lb_value_graph *g = &s->graph;
    const lb_program *p = s->program;
    for (uint32_t v = 0; v < p->n_values; v++) {
        if (g->giver[v] == LB_NONE || !lb_op_is_source(p, &p->ops[g->giver[v]])) continue;
        const uint32_t source = lb_op_results(p, &p->ops[g->giver[v]])[0];
        lb_tensor t;
        const bool parameter = p->values[source].flags & LB_VALUE_PARAMETER;
        if (lb_former_run_is_put_alike(s, source)) continue;
        if ((parameter && !(s->wanted[v] && v == source)) || lb_program_view_value(s->view, source, &t, NULL) != LB_OK)
            continue;
        if (v != source) {
            if (memcmp(t.layout.stride, p->values[source].layout.stride,
                       sizeof t.layout.stride[0] * (size_t)t.layout.ndim))
                continue;
            t.data = (char *)t.data + (p->values[v].layout.offset - p->values[source].layout.offset) *
                                          (int64_t)(lb_dtype_bits(t.dtype) / 8);
            t.layout = p->values[v].layout;
        }
        look_at(r, v, &t);
        if (parameter) keep_held(r, v);
    }
}

static void disturb(run *r, const lb_event *event)
{
    for (uint32_t i = 0; i < event->n_results; i++)
        if (lb_kept_shadow_elements(event, i) > 0 && event->shadow[i].dtype == LB_F64)
            lb_shadow_disturb(&event->shadow[i], r->serial++);
}

double *lb_exact_side_taken(const lb_exact_side *s, uint32_t v)
{
    return s->forced[v] ? s->forced[v] : s->held[v];
}

/* A NaN that no arithmetic gives. */
static const uint64_t OWN = UINT64_C(0x7FFCC0FFEE0B175A);

double lb_exact_side_own(void)
{
    double own;
    memcpy(&own, &OWN, sizeof own);
    return own;
}

static void put(const lb_tensor *shadow, const double *numbers)
{
    const int64_t n = lb_layout_numel(&shadow->layout);
    double *merged = NULL;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&numbers[i], &OWN, sizeof OWN)) continue;
        if (!merged && !(merged = lb_shadow_numbers_copy(shadow))) return;
        for (int64_t k = 0; k < n; k++)
            if (memcmp(&numbers[k], &OWN, sizeof OWN)) merged[k] = numbers[k];
        break;
    }
    lb_shadow_put(shadow, merged ? merged : numbers);
    free(merged);
}

/* This run does not give it. */
static void forget(lb_exact_side *s, uint32_t v)
{
    if (s->kept[v]) lb_exact_side_note_change(s, v);
    const bool of_last_run = s->former.asks && s->former.numbers != s->kept && s->former.numbers[v] == s->kept[v];
    if (!of_last_run) free(s->kept[v]);
    s->kept[v] = NULL, s->quantities[v] = (lb_quantity){0};
}

static bool note_op(void *context, const lb_event *event)
{
    run *r = context;
    lb_exact_side *s = r->side;
    const uint32_t op = event->op;
    lb_exact_side_count(s, lb_op_computes(s->program, &s->program->ops[op]));
    if (!event->shadow) return true;
    if (r->disturbed) disturb(r, event);
    for (uint32_t i = 0; i < event->n_results; i++) {
        const uint32_t v = event->values[i];
        if (v == LB_NONE) continue;
        if (!event->shadow[i].data) {
            lb_former_run_note(s, op, v, false);
            if (!r->disturbed) forget(s, v);
            continue;
        }
        const double *taken = lb_exact_side_taken(s, v);
        const bool same = lb_kept_shadow_elements(event, i) >= 0 && look_at(r, v, &event->shadow[i]);
        lb_former_run_note(s, op, v, same);
        if (taken) put(&event->shadow[i], taken);
    }
    lb_former_run_noted(s, op);
    look_at_windows(r, op, event);
    return true;
}

/* A source goes on from other numbers: as f64, so that the shadow has all of their digits. */
static bool take_source(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    const run *r = context;
    const lb_exact_side *s = r->side;
    (void)rank, (void)step;
    if (value >= s->program->n_values || !lb_exact_side_taken(s, value)) return false;
    const lb_layout *l = &s->program->values[value].layout;
    *tensor = (lb_tensor){lb_exact_side_taken(s, value), LB_F64, lb_layout_contiguous(l->ndim, l->shape)};
    return true;
}

static bool chooses_anew(void *context, int32_t rank, int64_t step, uint32_t op)
{
    const run *r = context;
    (void)rank, (void)step;
    return lb_moved_choice_is_made(r->side, r->anew, op);
}

static lb_status value_of(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    const run *r = context;
    (void)program;
    return lb_program_view_value(r->side->view, value, tensor, err);
}

static bool leaves_out(void *context, int32_t rank, int64_t step, uint32_t op)
{
    (void)rank, (void)step;
    return lb_former_run_leaves_out(((run *)context)->side, op);
}

static bool give_former(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    (void)rank, (void)step;
    return lb_former_run_result(((run *)context)->side, value, tensor);
}

/* Beside the last run: what did not run has the numbers that it had. */
static void take_over_former(lb_exact_side *s, double *const *numbers)
{
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if (s->wanted[v] && !s->kept[v] && lb_former_run_end_of(s, v) == LB_FORMER_LEFT_OUT) s->kept[v] = numbers[v];
}

/* Where the run ended before it reached an op (what steered it came out otherwise), nothing is known of what that
 * gives. */
static void forget_unreached(lb_exact_side *s)
{
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if (s->kept[v] && lb_former_run_end_of(s, v) == LB_FORMER_UNKNOWN) forget(s, v);
}

/* `numbers`: those that the last run kept. */
static lb_status run_chained(lb_exact_side *s, bool disturbed, bool aside, double **numbers, lb_err *err)
{
    run r = {s, disturbed, aside, 0, calloc((size_t)s->program->n_values + 1, 1)};
    if (!r.anew || !lb_former_run_begin(s, !disturbed, numbers)) {
        free(r.anew);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", s->program->n_values);
    }
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = plan.shadow_only = true;
    const lb_observer observer = {.context = &r,
                                  .op = note_op,
                                  .source = take_source,
                                  .computes = chooses_anew,
                                  .reuses = s->former.asks ? leaves_out : NULL,
                                  .former = give_former};
    lb_rank_run ranks = {.programs = (const lb_prepared *const *)&s->prepared,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = &r,
                         .value = value_of};
    look_at_sources(&r);
    s->runs++;
    lb_status status = lb_rank_run_all(&ranks, err);
    free(r.anew);
    if (aside && s->former.asks) take_over_former(s, numbers);
    if (!aside && !disturbed) forget_unreached(s);
    if (!lb_former_run_end(s, !disturbed && !aside && status == LB_OK) && status == LB_OK)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", s->program->n_ops);
    if (status != LB_OK) s->former.is_there = false;
    return status;
}

lb_status lb_exact_side_run(lb_exact_side *side, lb_err *err)
{
    return run_chained(side, false, false, side->kept, err);
}

void lb_exact_side_free_kept(const lb_exact_side *s, double **kept)
{
    for (uint32_t v = 0; kept && v < s->program->n_values; v++)
        if (kept[v] != s->kept[v]) free(kept[v]);
    free(kept);
}

lb_status lb_exact_side_run_aside(lb_exact_side *s, double ***kept, lb_err *err)
{
    const uint32_t n = s->program->n_values;
    double **before = s->kept, *noise = s->noise;
    lb_quantity *quantities = s->quantities;
    s->kept = calloc(n + 1, sizeof *s->kept), s->quantities = calloc(n + 1, sizeof *s->quantities);
    s->noise = calloc(n + 1, sizeof *s->noise);
    const bool room = s->kept && s->quantities && s->noise;
    const lb_status status =
        room ? run_chained(s, false, true, before, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", n);
    *kept = s->kept;
    free(s->quantities), free(s->noise);
    s->kept = before, s->quantities = quantities, s->noise = noise;
    return status;
}

lb_status lb_exact_side_run_disturbed(lb_exact_side *side, lb_err *err)
{
    return run_chained(side, true, false, side->kept, err);
}

static bool is_window(const lb_exact_side *s, uint32_t v)
{
    const uint32_t giver = s->graph.giver[v];
    return !s->graph.given[v] && giver != LB_NONE && !lb_op_is_source(s->program, &s->program->ops[giver]);
}

/* Windows that some op reads, or that leave, by the op that gave them. */
static bool list_windows(lb_exact_side *s)
{
    const lb_program *p = s->program;
    const lb_value_graph *g = &s->graph;
    s->first_window = calloc((size_t)p->n_ops + 2, sizeof *s->first_window);
    s->windows = malloc(((size_t)p->n_values + 1) * sizeof *s->windows);
    if (!s->first_window || !s->windows) return false;
    for (uint32_t v = 0; v < p->n_values; v++)
        if (is_window(s, v)) s->first_window[g->giver[v] + 2]++;
    for (uint32_t i = 2; i < p->n_ops + 2; i++) s->first_window[i] += s->first_window[i - 1];
    for (uint32_t v = 0; v < p->n_values; v++)
        if (is_window(s, v)) s->windows[s->first_window[g->giver[v] + 1]++] = v;
    return true;
}

/* Without its overload, in place or not. */
static uint64_t kind_of(const char *name)
{
    size_t n = strcspn(name, ".");
    while (n && name[n - 1] == '_') n--;
    return lb_digest_bytes(name, n).lo;
}

lb_status lb_exact_side_open(const lb_program_view *view, lb_exact_side *s, lb_err *err)
{
    *s = (lb_exact_side){.view = view, .program = view->program};
    const size_t n = s->program->n_values + 1;
    LB_TRY(lb_value_graph_make(s->program, &s->graph, err));
    s->own = lb_program_copy(s->program);
    if (!s->own) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a copy of %u ops", s->program->n_ops);
    LB_TRY(lb_prepared_make(s->own, NULL, NULL, &s->prepared, err));
    s->kinds = malloc(((size_t)s->program->n_ops + 1) * sizeof *s->kinds);
    for (uint32_t i = 0; i < s->program->n_ops && s->kinds; i++)
        s->kinds[i] = kind_of(lb_op_name(s->program, &s->program->ops[i]));
    s->quantities = calloc(n, sizeof *s->quantities), s->wanted = calloc(n, 1), s->kept = calloc(n, sizeof *s->kept);
    s->noise = calloc(n, sizeof *s->noise), s->changed = calloc(n, sizeof *s->changed);
    s->forced = calloc(n, sizeof *s->forced), s->held = calloc(n, sizeof *s->held);
    if (s->kinds && s->quantities && s->wanted && s->kept && s->noise && s->changed && s->forced && s->held &&
        list_windows(s))
        return LB_OK;
    lb_exact_side_close(s);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
}

void lb_exact_side_hold(lb_exact_side *s, uint32_t value, double *numbers)
{
    free(s->held[value]);
    s->held[value] = numbers;
}

lb_status lb_exact_side_prepare(lb_exact_side *s, lb_err *err)
{
    lb_prepared_free(s->prepared);
    s->prepared = NULL, s->former.is_there = false;
    return lb_prepared_make(s->own, NULL, NULL, &s->prepared, err);
}

void lb_exact_side_close(lb_exact_side *s)
{
    for (uint32_t v = 0; v < s->program->n_values; v++) {
        if (s->kept) free(s->kept[v]);
        if (s->held) free(s->held[v]);
    }
    free(s->kept), free(s->held);
    free(s->kinds), free(s->quantities), free(s->wanted), free(s->noise), free(s->changed), free(s->forced);
    free(s->first_window), free(s->windows);
    lb_prepared_free(s->prepared), lb_program_free(s->own);
    lb_former_run_release(&s->former);
    lb_value_graph_release(&s->graph);
    *s = (lb_exact_side){0};
}

/* Adds the ops of forward that read a value to the one that was found; false: these are several. */
static bool note_readers(const lb_exact_side *s, uint32_t value, uint32_t *found)
{
    for (uint32_t k = s->graph.first_use[value]; k < s->graph.first_use[value + 1]; k++) {
        const uint32_t op = s->graph.uses[k];
        if (s->program->ops[op].phase != LB_PHASE_FORWARD || op == *found) continue;
        if (*found != LB_NONE) return false;
        *found = op;
    }
    return true;
}

uint32_t lb_exact_side_only_reader(const lb_exact_side *s, uint32_t op, uint32_t result)
{
    const lb_value_graph *g = &s->graph;
    const int64_t n = lb_layout_numel(&s->program->values[result].layout);
    uint32_t found = LB_NONE;
    if (!note_readers(s, result, &found)) return LB_NONE;
    for (uint32_t k = s->first_window[op]; k < s->first_window[op + 1]; k++) {
        const uint32_t v = s->windows[k], first = g->first_pred[v];
        if (g->first_pred[v + 1] - first == 1 && g->preds[first] == result &&
            lb_layout_numel(&s->program->values[v].layout) == n && !note_readers(s, v, &found))
            return LB_NONE;
    }
    return found;
}

uint32_t lb_exact_side_window(const lb_exact_side *s, uint32_t value, uint32_t *at)
{
    const uint32_t op = s->graph.giver[value];
    const int64_t storage = s->program->values[value].storage;
    while (op != LB_NONE && s->first_window[op] + *at < s->first_window[op + 1]) {
        const uint32_t v = s->windows[s->first_window[op] + (*at)++];
        if (s->program->values[v].storage == storage) return v;
    }
    return LB_NONE;
}

double *lb_exact_side_recorded(const lb_exact_side *s, uint32_t value)
{
    lb_tensor t;
    if (lb_program_view_value(s->view, value, &t, NULL) != LB_OK || !is_real(&t)) return NULL;
    return lb_shadow_numbers_copy(&t);
}
