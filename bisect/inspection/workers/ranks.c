/* The report on workers: see lastbit/ranks.h. */
#define _GNU_SOURCE /* asprintf */
#include "workers/worker_findings.h"
#include "workers/worker_dispersion.h"

#include "failure/collective_calls.h"
#include "exchanges/collective_results.h"
#include "failure/held_copies.h"
#include "failure/lost_rank.h"
#include "failure/replicas.h"

#include "base/array.h"
#include "parts/parts_each.h"

#include <lastbit/lacking.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_TEXT(name, text) text,
const char *lb_ranks_finding_name(lb_ranks_finding_kind kind)
{
    static const char *const names[] = {LB_RANKS_FINDINGS(NAME_TEXT)};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "";
}

const char *lb_ranks_seeds_name(lb_ranks_seeds seeds)
{
    static const char *const names[] = {LB_RANKS_SEEDS(NAME_TEXT)};
    return (size_t)seeds < sizeof names / sizeof *names ? names[seeds] : "";
}

const char *lb_ranks_verdict_name(lb_ranks_verdict verdict)
{
    static const char *const names[] = {"clean", "found", "cannot be tested"};
    return names[verdict];
}

/* ---- steps as units of work -------------------------------------------------------------------------------------- */

typedef struct stepping {
    const lb_worker_steps *steps;
    const lb_ranks_options *options;
    lb_ranks_report *report;
} stepping;

static void name_record(lb_part_record *r, char **text)
{
    const char *there = *text;
    lb_part_record_name(r, &there);
    if (!r->reading) return;
    *text = strdup(there);
    if (!*text && r->status == LB_OK) r->status = lb_fail(r->cursor.err, LB_ERR_NOMEM, "out of memory for a name");
}

static void numbers_record(lb_part_record *r, lb_ranks_row *row)
{
    lb_part_record_f64(r, &row->grad_norm_mean), lb_part_record_f64(r, &row->grad_norm_std);
    lb_part_record_f64(r, &row->grad_cosine_mean), lb_part_record_f64(r, &row->grad_cosine_min);
}

static void row_record(lb_part_record *r, lb_ranks_row *row)
{
    name_record(r, &row->layer);
    numbers_record(r, row);
}

static void step_record(lb_part_record *r, lb_ranks_step *s)
{
    lb_part_record_i64(r, &s->step);
    lb_part_record_f64(r, &s->loss_mean), lb_part_record_f64(r, &s->loss_std), lb_part_record_f64(r, &s->loss_range);
    numbers_record(r, &s->all);
    s->workers = lb_part_record_rows(r, s->workers, &s->n_workers, sizeof *s->workers);
    for (uint32_t i = 0; i < s->n_workers; i++) {
        lb_ranks_worker *w = &s->workers[i];
        lb_part_record_i32(r, &w->rank);
        lb_part_record_f64(r, &w->loss), lb_part_record_f64(r, &w->grad_norm), lb_part_record_f64(r, &w->cosine);
    }
    s->layers = lb_part_record_rows(r, s->layers, &s->n_layers, sizeof *s->layers);
    for (uint32_t i = 0; i < s->n_layers; i++) row_record(r, &s->layers[i]);
    s->blocks = lb_part_record_rows(r, s->blocks, &s->n_blocks, sizeof *s->blocks);
    for (uint32_t i = 0; i < s->n_blocks; i++) row_record(r, &s->blocks[i]);
    lb_part_record_u32(r, &s->gradients), lb_part_record_u32(r, &s->lacking), lb_part_record_bool(r, &s->approximate);
}

static void step_release(lb_ranks_step *s);

static lb_status work_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const stepping *x = context;
    lb_ranks_step step = {0};
    if (x->options->progress) x->options->progress("gradients", unit, x->steps->n_steps);
    const lb_status status = lb_worker_dispersion_of(x->steps, &x->steps->steps[unit], &step, err);
    if (status == LB_OK) step_record(record, &step);
    step_release(&step);
    return status;
}

static lb_status fold_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    const stepping *x = context;
    lb_ranks_step *step = &x->report->steps[x->report->n_steps++];
    step_record(record, step);
    if (step->step != x->steps->steps[unit].step)
        lb_part_record_refuse(record, "step", "%lld, expected %lld", (long long)step->step,
                              (long long)x->steps->steps[unit].step);
    for (uint32_t i = 0; i < step->n_workers; i++)
        if (!bsearch(&step->workers[i].rank, x->steps->ranks, x->steps->n_ranks, sizeof(int32_t), lb_by_i32))
            lb_part_record_refuse(record, "rank", "%d is none of the capture's", step->workers[i].rank);
    return record->status;
}

/* ---- findings of the room below ---------------------------------------------------------------------------------- */

static bool in_window(const lb_ranks_options *o, int64_t step)
{
    return step >= o->first_step && step <= o->last_step;
}

static lb_status add_collectives(lb_capture *capture, const lb_ranks_options *o, lb_ranks_report *out,
                                 lb_worker_findings *f, lb_err *err)
{
    lb_collective_calls calls;
    LB_TRY(lb_collective_calls_check(capture, &calls, err));
    lb_status status = LB_OK;
    out->collectives = calls.compared;
    for (uint32_t i = 0; i < calls.n && status == LB_OK; i++) {
        const lb_call_mismatch *x = &calls.list[i];
        const lb_ranks_finding row = {
            .kind = LB_RANKS_COLLECTIVE, .step = x->step, .ranks = x->ranks, .n_ranks = x->n_ranks};
        if (in_window(o, x->step)) status = lb_worker_findings_add(f, &row, strdup(x->message), err);
    }
    lb_collective_calls_release(&calls);
    return status;
}

/* What members received, each step by itself. */
typedef struct checking {
    lb_capture *capture;
    const int64_t *steps;
    lb_collective_results *results;
} checking;

static void result_record(lb_part_record *r, lb_collective_finding *f)
{
    uint32_t kind = f->kind;
    lb_part_record_word(r, &kind, LB_COLLECTIVE_NONFINITE);
    f->kind = (lb_collective_fault)kind;
    lb_part_record_bool(r, &f->note), lb_part_record_i64(r, &f->step);
    f->ranks = lb_part_record_rows(r, f->ranks, &f->n_ranks, sizeof *f->ranks);
    for (uint32_t i = 0; i < f->n_ranks; i++) lb_part_record_i32(r, &f->ranks[i]);
    int64_t rank = f->rank, from = f->from, to = f->to, bit = f->bit; /* -1: not known */
    int64_t *const places[] = {&rank, &from, &to, &bit, &f->element};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) lb_part_record_tally(r, places[i], -1);
    if (rank > INT32_MAX || from > INT32_MAX || to > INT32_MAX || bit > 127)
        lb_part_record_refuse(r, "place", "rank %lld, hop %lld to %lld, bit %lld", (long long)rank, (long long)from,
                              (long long)to, (long long)bit);
    f->rank = (int32_t)rank, f->from = (int32_t)from, f->to = (int32_t)to, f->bit = (int)bit;
    lb_part_record_u32(r, &f->op);
    name_record(r, &f->message);
}

static void results_record(lb_part_record *r, lb_collective_results *x)
{
    lb_part_record_u32(r, &x->compared);
    x->list = lb_part_record_rows(r, x->list, &x->n, sizeof *x->list);
    for (uint32_t i = 0; i < x->n; i++) result_record(r, &x->list[i]);
}

static lb_status work_results(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const checking *c = context;
    lb_collective_results one;
    LB_TRY(lb_collective_results_check_received(c->capture, c->steps[unit], &one, err));
    results_record(record, &one);
    lb_collective_results_release(&one);
    return LB_OK;
}

static lb_status fold_results(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const checking *c = context;
    lb_collective_results one = {0}, *all = c->results;
    results_record(record, &one);
    for (uint32_t i = 0; i < one.n; i++)
        if (one.list[i].step != c->steps[unit] || !one.list[i].n_ranks)
            lb_part_record_refuse(record, "finding", "of step %lld and %u ranks, expected step %lld",
                                  (long long)one.list[i].step, one.list[i].n_ranks, (long long)c->steps[unit]);
    all->compared += one.compared;
    for (uint32_t i = 0; i < one.n && record->status == LB_OK; i++) {
        lb_collective_finding *grown = lb_array_grow(all->list, all->n, sizeof *grown);
        if (!grown) record->status = lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
        if (!grown) continue;
        all->list = grown, all->list[all->n++] = one.list[i];
        one.list[i].ranks = NULL, one.list[i].message = NULL;
    }
    lb_collective_results_release(&one);
    return record->status;
}

/* Calls that do not match give what they like. */
static lb_status add_results(lb_capture *capture, const lb_ranks_options *o, lb_ranks_report *out,
                             lb_worker_findings *f, lb_err *err)
{
    lb_collective_results results = {0};
    checking c = {.capture = capture, .results = &results};
    const lb_parts_loop loop = {"collectives", lb_capture_steps(capture, &c.steps), work_results, fold_results, &c};
    lb_status checked = lb_collective_results_check_finite(capture, &results, err);
    if (checked == LB_OK) checked = lb_parts_each(o->parts, &loop, err);
    if (checked != LB_OK) {
        lb_collective_results_release(&results);
        return checked;
    }
    lb_status status = LB_OK;
    out->results = results.compared;
    for (uint32_t i = 0; i < results.n && status == LB_OK; i++) {
        const lb_collective_finding *x = &results.list[i];
        const lb_ranks_finding row = {.kind = x->kind == LB_COLLECTIVE_RESULT ? LB_RANKS_RESULT : LB_RANKS_NONFINITE,
                                      .note = x->note,
                                      .step = x->step,
                                      .ranks = x->ranks,
                                      .n_ranks = x->n_ranks,
                                      .from = x->from,
                                      .to = x->to,
                                      .bit = x->bit,
                                      .element = x->element};
        if (in_window(o, x->step)) status = lb_worker_findings_add(f, &row, strdup(x->message), err);
    }
    lb_collective_results_release(&results);
    return status;
}

static lb_status add_lost(lb_capture *capture, const lb_ranks_options *o, lb_worker_findings *f, lb_err *err)
{
    lb_lost_ranks lost;
    LB_TRY(lb_lost_ranks_find(capture, &lost, err));
    const lb_ranks_finding row = {.kind = LB_RANKS_LOST, .step = lost.step, .ranks = lost.ranks, .n_ranks = lost.n};
    const lb_status status =
        lost.n && in_window(o, lost.step) ? lb_worker_findings_add(f, &row, strdup(lost.message), err) : LB_OK;
    lb_lost_ranks_release(&lost);
    return status;
}

/* What Python does between two steps is recorded with the first. */
static bool after_optimizer(const lb_program *p, uint32_t op)
{
    bool after = p->n_groups > 0;
    for (uint32_t g = 0; g < p->n_groups; g++) after &= op >= p->groups[g].first_op + p->groups[g].ops;
    return after;
}

static char *replica_message(lb_capture *capture, const lb_unequal *u)
{
    static const char *const nouns[] = {"parameter", "optimizer state", "buffer"};
    char *text = NULL, words[96], more[80] = "", where[400] = "";
    const lb_program *p = NULL;
    if (u->count > 1) snprintf(more, sizeof more, " and %u more", u->count - 1);
    if (u->op != LB_NONE && lb_capture_program(capture, u->rank, u->step, &p, NULL) == LB_OK)
        snprintf(where, sizeof where, "in step %lld, at op %u of rank %d (%.60s, %s%s%.120s)", (long long)u->step,
                 u->op, u->rank, lb_op_name(p, &p->ops[u->op]),
                 after_optimizer(p, u->op) ? "after the optimizer" : lb_phase_name((lb_phase)p->ops[u->op].phase),
                 *lb_op_layer(p, &p->ops[u->op]) ? ", " : "", lb_op_layer(p, &p->ops[u->op]));
    else if (u->at_first)
        snprintf(where, sizeof where, "before step %lld, the first that was recorded", (long long)u->step);
    else
        snprintf(where, sizeof where,
                 "between step %lld and the recorded step before it, by no recorded write of all of it",
                 (long long)u->step);
    const int n =
        u->kind == LB_REPLICA_BUFFER
            ? asprintf(&text,
                       "buffer %s%s %s not the same on all ranks (%s): "
                       "running statistics are each rank's own unless they are broadcast or synchronised; it began %s",
                       u->tensor, more, u->count > 1 ? "are" : "is", lb_worker_rank_words(u->ranks, u->n_ranks, words),
                       where)
            : asprintf(&text, "%s %s%s %s no longer the same on the %u ranks that hold %s: %s %s; it began %s%s",
                       nouns[u->kind], u->tensor, more, u->count > 1 ? "are" : "is", u->members,
                       u->count > 1 ? "them" : "it", lb_worker_rank_words(u->ranks, u->n_ranks, words),
                       u->n_ranks == u->members ? "differ from each other"
                       : u->n_ranks == 1        ? "differs"
                                                : "differ",
                       where, u->unreduced ? "; its gradient is not summed over them" : "");
    return n < 0 ? NULL : text;
}

static lb_status add_replicas(lb_capture *capture, const lb_ranks_options *o, lb_ranks_report *out,
                              lb_worker_findings *f, lb_err *err)
{
    lb_replicas replicas;
    LB_TRY(lb_replicas_check(capture, &replicas, err));
    lb_status status = LB_OK;
    out->replicas = replicas.compared;
    for (uint32_t i = 0; i < replicas.n && status == LB_OK; i++) {
        const lb_unequal *u = &replicas.list[i];
        const lb_ranks_finding row = {.kind = u->kind == LB_REPLICA_BUFFER ? LB_RANKS_BUFFER
                                              : u->at_first                ? LB_RANKS_INITIAL
                                                                           : LB_RANKS_REPLICA,
                                      .note = u->kind == LB_REPLICA_BUFFER,
                                      .step = u->step,
                                      .ranks = u->ranks,
                                      .n_ranks = u->n_ranks,
                                      .tensor = u->tensor};
        if (in_window(o, u->step)) status = lb_worker_findings_add(f, &row, replica_message(capture, u), err);
    }
    lb_replicas_release(&replicas);
    return status;
}

/* Layers that one seed initialised. */
static lb_status add_twins(lb_capture *capture, const lb_ranks_options *o, lb_worker_findings *f, lb_err *err)
{
    lb_held_copies copies;
    LB_TRY(lb_held_copies_find(capture, &copies, err));
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < copies.n_twins && status == LB_OK; i++) {
        const lb_held_twins *t = &copies.twins[i];
        char *message = NULL, more[60] = "";
        if (!in_window(o, copies.step)) continue;
        if (t->parameters > 1) snprintf(more, sizeof more, ", and %u more of their parameters", t->parameters - 1);
        if (asprintf(&message,
                     "%s on rank %d and %s on rank %d begin with the same random numbers%s: "
                     "parts of one model that were drawn from one seed",
                     t->names[0], t->ranks[0], t->names[1], t->ranks[1], more) < 0)
            message = NULL;
        const lb_ranks_finding row = {.kind = LB_RANKS_ALIKE,
                                      .step = copies.step,
                                      .ranks = (int32_t *)t->ranks,
                                      .n_ranks = t->ranks[0] == t->ranks[1] ? 1 : 2,
                                      .tensor = (char *)t->names[0]};
        status = lb_worker_findings_add(f, &row, message, err);
    }
    lb_held_copies_release(&copies);
    return status;
}

static lb_status add_note(lb_worker_findings *f, const int32_t *ranks, uint32_t n, int64_t step, char *message,
                          lb_err *err)
{
    const lb_ranks_finding row = {
        .kind = LB_RANKS_COVERAGE, .note = true, .step = step, .ranks = (int32_t *)ranks, .n_ranks = n};
    return lb_worker_findings_add(f, &row, message, err);
}

/* What was not seen, and why some numbers are missing. */
static lb_status add_coverage(const lb_worker_steps *s, lb_worker_findings *f, lb_err *err)
{
    bool workers = false;
    int32_t world = 0;
    char *message = NULL;
    for (uint32_t r = 0; r < s->n_ranks; r++) workers |= lb_worker_steps_has(s, r);
    for (uint32_t i = 0; i < s->n_steps; i++)
        for (uint32_t r = 0; r < s->n_ranks; r++) {
            const lb_program *p = s->steps[i].workers[r].program;
            if (p && p->world > world) world = p->world;
            if (p) continue;
            if (asprintf(&message, "rank %d recorded no step %lld", s->ranks[r], (long long)s->steps[i].step) < 0)
                message = NULL;
            LB_TRY(add_note(f, &s->ranks[r], 1, s->steps[i].step, message, err));
        }
    if (world > (int32_t)s->n_ranks) {
        if (asprintf(&message, "%u of %d ranks were recorded", s->n_ranks, world) < 0) message = NULL;
        LB_TRY(add_note(f, NULL, 0, INT64_MIN, message, err));
    }
    if (s->n_ranks > 1 && !workers)
        LB_TRY(add_note(
            f, NULL, 0, INT64_MIN,
            strdup("these ranks are no data-parallel workers (they share out one model, or exchange no gradients): "
                   "their gradients are not compared"),
            err));
    return LB_OK;
}

static int by_kind(const void *x, const void *y)
{
    const lb_ranks_finding *a = x, *b = y;
    if (a->note != b->note) return a->note - b->note;
    /* What is called comes before any number; of the rest what began first. */
    const bool first_a = a->kind == LB_RANKS_COLLECTIVE, first_b = b->kind == LB_RANKS_COLLECTIVE;
    if (first_a != first_b) return first_b - first_a;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    return a->n_ranks && b->n_ranks ? (a->ranks[0] > b->ranks[0]) - (a->ranks[0] < b->ranks[0]) : 0;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static char *record_again(const lb_worker_steps *s, const lb_ranks_report *r)
{
    lb_lack lack = {0};
    for (uint32_t i = 0; i < r->n_steps; i++) {
        if (!r->steps[i].lacking) continue;
        for (uint32_t k = 0; k < s->n_ranks; k++)
            if (s->steps[i].workers[k].program) lb_lack_add(&lack, s->steps[i].workers[k].program, LB_NONE);
    }
    return lb_lack_command(&lack, s->capture, NULL);
}

static void judge(const lb_worker_steps *s, lb_ranks_report *r)
{
    bool seen = r->replicas || r->collectives || r->results;
    for (uint32_t i = 0; i < r->n_steps; i++)
        seen |= !isnan(r->steps[i].loss_mean) || !isnan(r->steps[i].all.grad_norm_mean);
    r->verdict = s->n_ranks < 2 || !seen ? LB_RANKS_UNTESTABLE : LB_RANKS_CLEAN;
    for (uint32_t i = 0; i < r->n_findings; i++)
        if (!r->findings[i].note) r->verdict = LB_RANKS_FOUND;
}

static lb_status fill_report(lb_worker_steps *s, const lb_ranks_options *o, lb_ranks_report *r, lb_err *err)
{
    lb_worker_findings f = {0};
    r->steps = calloc(s->n_steps + 1, sizeof *r->steps);
    lb_status status = r->steps ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u steps", s->n_steps);
    if (status == LB_OK) status = add_collectives(s->capture, o, r, &f, err);
    const bool match = !f.n;
    if (status == LB_OK) status = add_lost(s->capture, o, &f, err);
    if (status == LB_OK && match) status = add_results(s->capture, o, r, &f, err);
    stepping x = {s, o, r};
    const lb_parts_loop loop = {"step", s->n_steps, work_step, fold_step, &x};
    if (status == LB_ERR_PARTIAL) (void)lb_parts_each(o->parts, &loop, NULL); /* a part does its share of this, too */
    if (status == LB_OK) status = add_twins(s->capture, o, &f, err);
    if (status == LB_OK) status = lb_worker_findings_of_gradients(s, &f, err);
    if (status == LB_OK) status = add_replicas(s->capture, o, r, &f, err);
    if (status == LB_OK) status = lb_worker_findings_of_data(s, &r->seeds, &f, err);
    if (status == LB_OK) status = lb_worker_findings_of_settings(s, &f, err);
    if (status == LB_OK) status = add_coverage(s, &f, err);
    if (status == LB_OK) status = lb_parts_each(o->parts, &loop, err);
    if (f.n) qsort(f.list, f.n, sizeof *f.list, by_kind);
    r->findings = f.list, r->n_findings = f.n;
    if (status == LB_OK) judge(s, r), r->again = record_again(s, r);
    return status;
}

lb_status lb_ranks_run(lb_capture *capture, const lb_ranks_options *options, lb_ranks_report **report, lb_err *err)
{
    const lb_ranks_options defaults = LB_RANKS_OPTIONS_INIT, *o = options ? options : &defaults;
    lb_worker_steps steps;
    *report = NULL;
    LB_TRY(lb_worker_steps_init(capture, o->first_step, o->last_step, &steps, err));
    lb_ranks_report *r = calloc(1, sizeof *r);
    lb_status status = r ? fill_report(&steps, o, r, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for a report");
    lb_worker_steps_release(&steps);
    if (status == LB_OK) status = lb_capture_refusal(capture, err);
    if (status == LB_OK)
        *report = r;
    else
        lb_ranks_report_free(r);
    return status;
}

static void step_release(lb_ranks_step *s)
{
    lb_worker_dispersion_free(s->layers, s->n_layers), lb_worker_dispersion_free(s->blocks, s->n_blocks);
    free(s->workers);
}

void lb_ranks_report_free(lb_ranks_report *report)
{
    if (!report) return;
    for (uint32_t i = 0; i < report->n_steps; i++) step_release(&report->steps[i]);
    lb_worker_findings f = {report->findings, report->n_findings};
    lb_worker_findings_release(&f);
    free(report->steps), free(report->again), free(report);
}
