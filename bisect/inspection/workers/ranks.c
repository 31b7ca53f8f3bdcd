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

static void name_record(lb_part_record *record, char **text)
{
    const char *there = *text;
    lb_part_record_name(record, &there);
    if (!record->reading) return;
    *text = strdup(there);
    if (!*text && record->status == LB_OK)
        record->status = lb_fail(record->cursor.err, LB_ERR_NOMEM, "out of memory for a name");
}

static void numbers_record(lb_part_record *record, lb_ranks_row *row)
{
    lb_part_record_f64(record, &row->grad_norm_mean), lb_part_record_f64(record, &row->grad_norm_std);
    lb_part_record_f64(record, &row->grad_cosine_mean), lb_part_record_f64(record, &row->grad_cosine_min);
}

static void row_record(lb_part_record *record, lb_ranks_row *row)
{
    name_record(record, &row->layer);
    numbers_record(record, row);
}

static void step_record(lb_part_record *record, lb_ranks_step *step)
{
    lb_part_record_i64(record, &step->step);
    lb_part_record_f64(record, &step->loss_mean), lb_part_record_f64(record, &step->loss_std),
        lb_part_record_f64(record, &step->loss_range);
    numbers_record(record, &step->all);
    step->workers = lb_part_record_rows(record, step->workers, &step->n_workers, sizeof *step->workers);
    for (uint32_t i = 0; i < step->n_workers; i++) {
        lb_ranks_worker *worker = &step->workers[i];
        lb_part_record_i32(record, &worker->rank);
        lb_part_record_f64(record, &worker->loss), lb_part_record_f64(record, &worker->grad_norm),
            lb_part_record_f64(record, &worker->cosine);
    }
    step->layers = lb_part_record_rows(record, step->layers, &step->n_layers, sizeof *step->layers);
    for (uint32_t i = 0; i < step->n_layers; i++) row_record(record, &step->layers[i]);
    step->blocks = lb_part_record_rows(record, step->blocks, &step->n_blocks, sizeof *step->blocks);
    for (uint32_t i = 0; i < step->n_blocks; i++) row_record(record, &step->blocks[i]);
    lb_part_record_u32(record, &step->gradients), lb_part_record_u32(record, &step->lacking),
        lb_part_record_bool(record, &step->approximate);
}

static void step_release(lb_ranks_step *s);

static lb_status work_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const stepping *stepping = context;
    lb_ranks_step step = {0};
    if (stepping->options->progress) stepping->options->progress("gradients", unit, stepping->steps->n_steps);
    const lb_status status = lb_worker_dispersion_of(stepping->steps, &stepping->steps->steps[unit], 0, &step, err);
    if (status == LB_OK) step_record(record, &step);
    step_release(&step);
    return status;
}

static lb_status fold_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    const stepping *stepping = context;
    lb_ranks_step *step = &stepping->report->steps[stepping->report->n_steps++];
    step_record(record, step);
    if (step->step != stepping->steps->steps[unit].step)
        lb_part_record_refuse(record, "step", "%lld, expected %lld", (long long)step->step,
                              (long long)stepping->steps->steps[unit].step);
    for (uint32_t i = 0; i < step->n_workers; i++)
        if (!bsearch(&step->workers[i].rank, stepping->steps->ranks, stepping->steps->n_ranks, sizeof(int32_t),
                     lb_by_i32))
            lb_part_record_refuse(record, "rank", "%d is none of the capture's", step->workers[i].rank);
    return record->status;
}

/* ---- findings of the room below ---------------------------------------------------------------------------------- */

static bool in_window(const lb_ranks_options *options, int64_t step)
{
    return step >= options->first_step && step <= options->last_step;
}

static lb_status add_collectives(lb_capture *capture, const lb_ranks_options *options, lb_ranks_report *out,
                                 lb_worker_findings *findings, lb_err *err)
{
    lb_collective_calls calls;
    LB_TRY(lb_collective_calls_check(capture, &calls, err));
    lb_status status = LB_OK;
    out->collectives = calls.compared;
    for (uint32_t i = 0; i < calls.n && status == LB_OK; i++) {
        const lb_call_mismatch *mismatch = &calls.list[i];
        const lb_ranks_finding row = {.kind = LB_RANKS_COLLECTIVE,
                                      .step = mismatch->step,
                                      .ranks = mismatch->ranks,
                                      .n_ranks = mismatch->n_ranks};
        if (in_window(options, mismatch->step))
            status = lb_worker_findings_add(findings, &row, strdup(mismatch->message), err);
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

static void hop_record(lb_part_record *record, lb_ranks_hop *hop)
{
    const char *order = hop->order;
    int64_t from = hop->from, to = hop->to;
    lb_part_record_name(record, &order);
    lb_part_record_tally(record, &from, 0), lb_part_record_tally(record, &to, 0);
    lb_part_record_u64(record, &hop->bits);
    if (from > INT32_MAX || to > INT32_MAX)
        lb_part_record_refuse(record, "hop", "%lld to %lld", (long long)from, (long long)to);
    if (record->reading && record->status == LB_OK) {
        snprintf(hop->order, sizeof hop->order, "%s", order);
        hop->from = (int32_t)from, hop->to = (int32_t)to;
    }
}

static void result_record(lb_part_record *record, lb_collective_finding *finding)
{
    uint32_t kind = finding->kind;
    lb_part_record_word(record, &kind, LB_COLLECTIVE_NONFINITE);
    finding->kind = (lb_collective_fault)kind;
    lb_part_record_bool(record, &finding->note), lb_part_record_i64(record, &finding->step);
    finding->ranks = lb_part_record_rows(record, finding->ranks, &finding->n_ranks, sizeof *finding->ranks);
    for (uint32_t i = 0; i < finding->n_ranks; i++) lb_part_record_i32(record, &finding->ranks[i]);
    int64_t rank = finding->rank, from = finding->from, to = finding->to, bit = finding->bit; /* -1: not known */
    int64_t *const places[] = {&rank, &from, &to, &bit, &finding->element};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) lb_part_record_tally(record, places[i], -1);
    if (rank > INT32_MAX || from > INT32_MAX || to > INT32_MAX || bit > 127)
        lb_part_record_refuse(record, "place", "rank %lld, hop %lld to %lld, bit %lld", (long long)rank,
                              (long long)from, (long long)to, (long long)bit);
    finding->rank = (int32_t)rank, finding->from = (int32_t)from, finding->to = (int32_t)to, finding->bit = (int)bit;
    finding->hops = lb_part_record_rows(record, finding->hops, &finding->n_hops, sizeof *finding->hops);
    for (uint32_t i = 0; i < finding->n_hops; i++) hop_record(record, &finding->hops[i]);
    lb_part_record_u32(record, &finding->possible);
    if (finding->possible < finding->n_hops)
        lb_part_record_refuse(record, "possible", "%u hops of %u", finding->n_hops, finding->possible);
    lb_part_record_u32(record, &finding->op);
    name_record(record, &finding->message);
}

static void results_record(lb_part_record *record, lb_collective_results *results)
{
    lb_part_record_u32(record, &results->compared);
    results->list = lb_part_record_rows(record, results->list, &results->n, sizeof *results->list);
    for (uint32_t i = 0; i < results->n; i++) result_record(record, &results->list[i]);
}

static lb_status work_results(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const checking *checking = context;
    lb_collective_results one;
    LB_TRY(lb_collective_results_check_received(checking->capture, checking->steps[unit], &one, err));
    results_record(record, &one);
    lb_collective_results_release(&one);
    return LB_OK;
}

static lb_status fold_results(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const checking *checking = context;
    lb_collective_results one = {0}, *all = checking->results;
    results_record(record, &one);
    for (uint32_t i = 0; i < one.n; i++)
        if (one.list[i].step != checking->steps[unit] || !one.list[i].n_ranks)
            lb_part_record_refuse(record, "finding", "of step %lld and %u ranks, expected step %lld",
                                  (long long)one.list[i].step, one.list[i].n_ranks, (long long)checking->steps[unit]);
    all->compared += one.compared;
    for (uint32_t i = 0; i < one.n && record->status == LB_OK; i++) {
        lb_collective_finding *grown = lb_array_grow(all->list, all->n, sizeof *grown);
        if (!grown) record->status = lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
        if (!grown) continue;
        all->list = grown, all->list[all->n++] = one.list[i];
        one.list[i].ranks = NULL, one.list[i].message = NULL, one.list[i].hops = NULL;
    }
    lb_collective_results_release(&one);
    return record->status;
}

/* Calls that do not match give what they like. */
static lb_status add_results(lb_capture *capture, const lb_ranks_options *options, lb_ranks_report *out,
                             lb_worker_findings *findings, lb_err *err)
{
    lb_collective_results results = {0};
    checking checking = {.capture = capture, .results = &results};
    const lb_parts_loop loop = {"collectives", lb_capture_steps(capture, &checking.steps), work_results, fold_results,
                                &checking};
    lb_status checked = lb_collective_results_check_finite(capture, &results, err);
    if (checked == LB_OK) checked = lb_parts_each(options->parts, &loop, err);
    if (checked != LB_OK) {
        lb_collective_results_release(&results);
        return checked;
    }
    lb_status status = LB_OK;
    out->results = results.compared;
    for (uint32_t i = 0; i < results.n && status == LB_OK; i++) {
        const lb_collective_finding *finding = &results.list[i];
        const lb_ranks_finding row = {.kind =
                                          finding->kind == LB_COLLECTIVE_RESULT ? LB_RANKS_RESULT : LB_RANKS_NONFINITE,
                                      .note = finding->note,
                                      .step = finding->step,
                                      .ranks = finding->ranks,
                                      .n_ranks = finding->n_ranks,
                                      .from = finding->from,
                                      .to = finding->to,
                                      .bit = finding->bit,
                                      .element = finding->element,
                                      .hops = finding->hops,
                                      .n_hops = finding->n_hops,
                                      .possible = finding->possible};
        if (in_window(options, finding->step))
            status = lb_worker_findings_add(findings, &row, strdup(finding->message), err);
    }
    lb_collective_results_release(&results);
    return status;
}

static lb_status add_lost(lb_capture *capture, const lb_ranks_options *options, lb_worker_findings *findings,
                          lb_err *err)
{
    lb_lost_ranks lost;
    LB_TRY(lb_lost_ranks_find(capture, &lost, err));
    const lb_ranks_finding row = {.kind = LB_RANKS_LOST, .step = lost.step, .ranks = lost.ranks, .n_ranks = lost.n};
    const lb_status status = lost.n && in_window(options, lost.step)
                                 ? lb_worker_findings_add(findings, &row, strdup(lost.message), err)
                                 : LB_OK;
    lb_lost_ranks_release(&lost);
    return status;
}

/* What Python does between two steps is recorded with the first. */
static bool after_optimizer(const lb_program *program, uint32_t op)
{
    bool after = program->n_groups > 0;
    for (uint32_t g = 0; g < program->n_groups; g++)
        after &= op >= program->groups[g].first_op + program->groups[g].ops;
    return after;
}

static char *replica_message(lb_capture *capture, const lb_unequal *unequal)
{
    static const char *const nouns[] = {"parameter", "optimizer state", "buffer"};
    char *text = NULL, words[96], more[80] = "", where[400] = "";
    const lb_program *program = NULL;
    if (unequal->count > 1) snprintf(more, sizeof more, " and %u more", unequal->count - 1);
    if (unequal->op != LB_NONE && lb_capture_program(capture, unequal->rank, unequal->step, &program, NULL) == LB_OK)
        snprintf(where, sizeof where, "in step %lld, at op %u of rank %d (%.60s, %s%s%.120s)", (long long)unequal->step,
                 unequal->op, unequal->rank, lb_op_name(program, &program->ops[unequal->op]),
                 after_optimizer(program, unequal->op) ? "after the optimizer"
                                                       : lb_phase_name((lb_phase)program->ops[unequal->op].phase),
                 *lb_op_layer(program, &program->ops[unequal->op]) ? ", " : "",
                 lb_op_layer(program, &program->ops[unequal->op]));
    else if (unequal->at_first)
        snprintf(where, sizeof where, "before step %lld, the first that was recorded", (long long)unequal->step);
    else
        snprintf(where, sizeof where,
                 "between step %lld and the recorded step before it, by no recorded write of all of it",
                 (long long)unequal->step);
    const int n =
        unequal->kind == LB_REPLICA_BUFFER
            ? asprintf(&text,
                       "buffer %s%s %s not the same on all ranks (%s): "
                       "running statistics are each rank's own unless they are broadcast or synchronised; it began %s",
                       unequal->tensor, more, unequal->count > 1 ? "are" : "is",
                       lb_worker_rank_words(unequal->ranks, unequal->n_ranks, words), where)
            : asprintf(&text, "%s %s%s %s no longer the same on the %u ranks that hold %s: %s %s; it began %s%s",
                       nouns[unequal->kind], unequal->tensor, more, unequal->count > 1 ? "are" : "is", unequal->members,
                       unequal->count > 1 ? "them" : "it",
                       lb_worker_rank_words(unequal->ranks, unequal->n_ranks, words),
                       unequal->n_ranks == unequal->members ? "differ from each other"
                       : unequal->n_ranks == 1              ? "differs"
                                                            : "differ",
                       where, unequal->unreduced ? "; its gradient is not summed over them" : "");
    return n < 0 ? NULL : text;
}

static lb_status add_replicas(lb_capture *capture, const lb_ranks_options *options, lb_ranks_report *out,
                              lb_worker_findings *findings, lb_err *err)
{
    lb_replicas replicas;
    LB_TRY(lb_replicas_check(capture, &replicas, err));
    lb_status status = LB_OK;
    out->replicas = replicas.compared;
    for (uint32_t i = 0; i < replicas.n && status == LB_OK; i++) {
        const lb_unequal *unequal = &replicas.list[i];
        const lb_ranks_finding row = {.kind = unequal->kind == LB_REPLICA_BUFFER ? LB_RANKS_BUFFER
                                              : unequal->at_first                ? LB_RANKS_INITIAL
                                                                                 : LB_RANKS_REPLICA,
                                      .note = unequal->kind == LB_REPLICA_BUFFER,
                                      .step = unequal->step,
                                      .ranks = unequal->ranks,
                                      .n_ranks = unequal->n_ranks,
                                      .tensor = unequal->tensor};
        if (in_window(options, unequal->step))
            status = lb_worker_findings_add(findings, &row, replica_message(capture, unequal), err);
    }
    lb_replicas_release(&replicas);
    return status;
}

/* Layers that one seed initialised. */
static lb_status add_twins(lb_capture *capture, const lb_ranks_options *options, lb_worker_findings *findings,
                           lb_err *err)
{
    lb_held_copies copies;
    LB_TRY(lb_held_copies_find(capture, &copies, err));
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < copies.n_twins && status == LB_OK; i++) {
        const lb_held_twins *twins = &copies.twins[i];
        char *message = NULL, more[60] = "";
        if (!in_window(options, copies.step)) continue;
        if (twins->parameters > 1)
            snprintf(more, sizeof more, ", and %u more of their parameters", twins->parameters - 1);
        if (asprintf(&message,
                     "%s on rank %d and %s on rank %d begin with the same random numbers%s: "
                     "parts of one model that were drawn from one seed",
                     twins->names[0], twins->ranks[0], twins->names[1], twins->ranks[1], more) < 0)
            message = NULL;
        const lb_ranks_finding row = {.kind = LB_RANKS_ALIKE,
                                      .step = copies.step,
                                      .ranks = (int32_t *)twins->ranks,
                                      .n_ranks = twins->ranks[0] == twins->ranks[1] ? 1 : 2,
                                      .tensor = (char *)twins->names[0]};
        status = lb_worker_findings_add(findings, &row, message, err);
    }
    lb_held_copies_release(&copies);
    return status;
}

static lb_status add_note(lb_worker_findings *findings, const int32_t *ranks, uint32_t n, int64_t step, char *message,
                          lb_err *err)
{
    const lb_ranks_finding row = {
        .kind = LB_RANKS_COVERAGE, .note = true, .step = step, .ranks = (int32_t *)ranks, .n_ranks = n};
    return lb_worker_findings_add(findings, &row, message, err);
}

/* What was not seen, and why some numbers are missing. */
static lb_status add_coverage(const lb_worker_steps *steps, lb_worker_findings *findings, lb_err *err)
{
    bool workers = false;
    int32_t world = 0;
    char *message = NULL;
    for (uint32_t r = 0; r < steps->n_ranks; r++) workers |= lb_worker_steps_has(steps, r);
    for (uint32_t i = 0; i < steps->n_steps; i++)
        for (uint32_t r = 0; r < steps->n_ranks; r++) {
            const lb_program *program = steps->steps[i].workers[r].program;
            if (program && program->world > world) world = program->world;
            if (program) continue;
            if (asprintf(&message, "rank %d recorded no step %lld", steps->ranks[r], (long long)steps->steps[i].step) <
                0)
                message = NULL;
            LB_TRY(add_note(findings, &steps->ranks[r], 1, steps->steps[i].step, message, err));
        }
    if (world > (int32_t)steps->n_ranks) {
        if (asprintf(&message, "%u of %d ranks were recorded", steps->n_ranks, world) < 0) message = NULL;
        LB_TRY(add_note(findings, NULL, 0, INT64_MIN, message, err));
    }
    if (steps->n_ranks > 1 && !workers)
        LB_TRY(add_note(
            findings, NULL, 0, INT64_MIN,
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

static char *record_again(const lb_worker_steps *steps, const lb_ranks_report *report)
{
    lb_lack lack = {0};
    for (uint32_t i = 0; i < report->n_steps; i++) {
        if (!report->steps[i].lacking) continue;
        for (uint32_t k = 0; k < steps->n_ranks; k++)
            if (steps->steps[i].workers[k].program) lb_lack_add(&lack, steps->steps[i].workers[k].program, LB_NONE);
    }
    return lb_lack_command(&lack, steps->capture, NULL);
}

static void judge(const lb_worker_steps *steps, lb_ranks_report *report)
{
    bool seen = report->replicas || report->collectives || report->results;
    for (uint32_t i = 0; i < report->n_steps; i++)
        seen |= !isnan(report->steps[i].loss_mean) || !isnan(report->steps[i].all.grad_norm_mean);
    report->verdict = steps->n_ranks < 2 || !seen ? LB_RANKS_UNTESTABLE : LB_RANKS_CLEAN;
    for (uint32_t i = 0; i < report->n_findings; i++)
        if (!report->findings[i].note) report->verdict = LB_RANKS_FOUND;
}

static lb_status fill_report(lb_worker_steps *steps, const lb_ranks_options *options, lb_ranks_report *report,
                             lb_err *err)
{
    lb_worker_findings findings = {0};
    report->steps = calloc(steps->n_steps + 1, sizeof *report->steps);
    lb_status status = report->steps ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u steps", steps->n_steps);
    if (status == LB_OK) status = add_collectives(steps->capture, options, report, &findings, err);
    const bool match = !findings.n;
    if (status == LB_OK) status = add_lost(steps->capture, options, &findings, err);
    if (status == LB_OK && match) status = add_results(steps->capture, options, report, &findings, err);
    stepping stepping = {steps, options, report};
    const lb_parts_loop loop = {"step", steps->n_steps, work_step, fold_step, &stepping};
    if (status == LB_ERR_PARTIAL)
        (void)lb_parts_each(options->parts, &loop, NULL); /* a part does its share of this, too */
    if (status == LB_OK) status = add_twins(steps->capture, options, &findings, err);
    if (status == LB_OK) status = lb_worker_findings_of_gradients(steps, &findings, err);
    if (status == LB_OK) status = add_replicas(steps->capture, options, report, &findings, err);
    if (status == LB_OK) status = lb_worker_findings_of_data(steps, &report->seeds, &findings, err);
    if (status == LB_OK) status = lb_worker_findings_of_settings(steps, &findings, err);
    if (status == LB_OK) status = add_coverage(steps, &findings, err);
    if (status == LB_OK) status = lb_parts_each(options->parts, &loop, err);
    if (findings.n) qsort(findings.list, findings.n, sizeof *findings.list, by_kind);
    report->findings = findings.list, report->n_findings = findings.n;
    if (status == LB_OK) judge(steps, report), report->again = record_again(steps, report);
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

static void step_release(lb_ranks_step *step)
{
    lb_worker_dispersion_free(step->layers, step->n_layers), lb_worker_dispersion_free(step->blocks, step->n_blocks);
    free(step->workers);
}

void lb_ranks_report_free(lb_ranks_report *report)
{
    if (!report) return;
    for (uint32_t i = 0; i < report->n_steps; i++) step_release(&report->steps[i]);
    lb_worker_findings findings = {report->findings, report->n_findings};
    lb_worker_findings_release(&findings);
    free(report->steps), free(report->again), free(report);
}
