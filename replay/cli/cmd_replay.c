/* lastbit replay: re-execute recorded steps, as they were or under swaps, and say how they compare with the
 * recording. */
#include "command/command_line.h"
#include "cli/cmd_coverage.h"
#include "cli/cmd_effect.h"
#include "cli/cmd_kernels.h"
#include "cli/cmd_missing.h"
#include "cli/cmd_plan.h"
#include "cli/cmd_routing.h"
#include "cli/cmd_switches.h"
#include "cli/cmd_tensorfile.h"

#include <lastbit/precision.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORST = 10 };

typedef struct finding {
    lb_verdict verdict;
    double ratio;
    int64_t step;
    int32_t rank;
    uint32_t index;
    const char *op, *layer, *phase;
    double max_abs;
} finding;

typedef struct report {
    finding *worst;
    uint32_t n_worst, room;
    uint64_t verdicts[LB_VERDICT_COUNT];
    lb_coverage *coverage;
    lb_missing missing;
    char *missing_text; /* NULL: nothing is */
    uint64_t done;
    struct found {
        uint64_t ops;
        finding first;
    } nan, inf;
    lb_tensorfile *file; /* of --write, or NULL */
    bool wants_digest;
    lb_digest digest;          /* of everything computed, in order */
    lb_precision_table *table; /* --table */
    lb_effects *effects;       /* of swaps; NULL: none, or op by op */
    lb_replay_summary summary;
} report;

/* ---- watching a run ---------------------------------------------------------------------------------------------- */

/* Of an identical result there is nothing to list, and of an opaque or missing one nothing was compared. */
static bool is_listed(lb_verdict verdict)
{
    return verdict != LB_VERDICT_IDENTICAL && verdict != LB_VERDICT_OPAQUE && verdict != LB_VERDICT_MISSING;
}

static bool worse(const finding *a, const finding *b)
{
    if (a->verdict != b->verdict) return lb_verdict_severity(a->verdict) > lb_verdict_severity(b->verdict);
    return a->ratio > b->ratio || (!isnan(a->ratio) && isnan(b->ratio));
}

static void keep_worst(report *report, const finding *finding)
{
    uint32_t at = report->n_worst < report->room ? report->n_worst++ : report->room;
    if (!report->room || (at == report->room && !worse(finding, &report->worst[report->room - 1]))) return;
    if (at == report->room) at--;
    for (; at > 0 && worse(finding, &report->worst[at - 1]); at--) report->worst[at] = report->worst[at - 1];
    report->worst[at] = *finding;
}

/* Largest absolute difference over the results of an op. */
static double max_abs(const lb_event *event)
{
    double worst = 0;
    for (uint32_t i = 0; i < event->n_results; i++) {
        const lb_tensor *a = &event->computed[i], *b = &event->recorded[i];
        if (!a->data || !b->data || lb_dtype_bits(a->dtype) < 8 || lb_dtype_bits(b->dtype) < 8) continue;
        size_t size_a = lb_dtype_bits(a->dtype) / 8, size_b = lb_dtype_bits(b->dtype) / 8;
        int64_t numel = lb_layout_numel(&a->layout), index[LB_MAX_DIMS] = {0}, at_a = 0, at_b = 0;
        for (int64_t n = 0; n < numel; n++) {
            double x = lb_to_f64(a->dtype, (char *)a->data + at_a * (int64_t)size_a);
            double y = lb_to_f64(b->dtype, (char *)b->data + at_b * (int64_t)size_b);
            if (x != y && !(isnan(x) && isnan(y)) && !(fabs(x - y) <= worst))
                worst = isnan(x - y) ? INFINITY : fabs(x - y);
            for (int d = a->layout.ndim - 1; d >= 0; d--) {
                at_a += a->layout.stride[d];
                at_b += b->layout.stride[d];
                if (++index[d] < a->layout.shape[d]) break;
                at_a -= a->layout.stride[d] * a->layout.shape[d];
                at_b -= b->layout.stride[d] * a->layout.shape[d];
                index[d] = 0;
            }
        }
    }
    return worst;
}

static void chain_digest(report *report, const lb_event *event)
{
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (!event->computed[i].data) continue;
        lb_digest pair[2] = {report->digest, lb_digest_tensor(&event->computed[i])};
        report->digest = lb_digest_bytes(pair, sizeof pair);
    }
}

/* Masks of forwards are made of -inf: it counts in other phases only. */
static void look_for_nonfinite(report *report, const lb_event *event, const finding *finding)
{
    bool nan = false, inf = false;
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (!event->computed[i].data || !lb_dtype_is_float(event->computed[i].dtype)) continue;
        const lb_statistics statistics = lb_statistics_of(&event->computed[i]);
        nan |= statistics.nan > 0;
        inf |= statistics.pos_inf > 0 ||
               (statistics.neg_inf > 0 && event->program->ops[event->op].phase != LB_PHASE_FORWARD);
    }
    if (nan && report->nan.ops++ == 0) report->nan.first = *finding;
    if (inf && report->inf.ops++ == 0) report->inf.first = *finding;
}

static bool watch(void *context, const lb_event *event)
{
    report *report = context;
    const lb_op *op = &event->program->ops[event->op];
    report->verdicts[event->verdict]++;
    if (report->table) lb_precision_table_event(report->table, event, true);
    if (++report->done % 256 == 0) lb_command_progress("replaying", report->done, 0);
    lb_coverage_add(report->coverage, event);
    finding finding = {event->verdict,
                       event->bound_ratio,
                       event->step,
                       event->rank,
                       event->op,
                       lb_op_name(event->program, op),
                       lb_op_layer(event->program, op),
                       lb_phase_name((lb_phase)op->phase),
                       NAN};
    if (report->wants_digest) chain_digest(report, event);
    if (report->effects) lb_effects_op(report->effects, event);
    if (report->file && event->selected) lb_tensorfile_add(report->file, event);
    look_for_nonfinite(report, event, &finding);
    lb_missing_add(&report->missing, event);
    if (!is_listed(event->verdict)) return true;
    bool kept = report->n_worst < report->room || (report->room && worse(&finding, &report->worst[report->room - 1]));
    if (kept) finding.max_abs = max_abs(event);
    keep_worst(report, &finding);
    return true;
}

static void watch_quantised(void *context, const lb_quantisation *quantisation)
{
    lb_precision_table_add(((report *)context)->table, quantisation);
}

static bool watch_plain(void *context, const lb_event *event)
{
    lb_precision_table_event(context, event, false);
    return true;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static const char *mode_name(lb_replay_mode mode)
{
    return mode == LB_REPLAY_ISOLATED ? "isolated" : mode == LB_REPLAY_LAYER ? "layer" : "chained";
}

static json_t *found_json(const struct found *found)
{
    const finding *finding = &found->first;
    if (!found->ops) return json_pack("{s:i}", "ops", 0);
    return json_pack("{s:I, s:{s:s, s:s, s:s, s:I, s:i, s:i}}", "ops", (json_int_t)found->ops, "first", "op",
                     finding->op, "layer", finding->layer, "phase", finding->phase, "step", (json_int_t)finding->step,
                     "rank", (int)finding->rank, "index", (int)finding->index);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static json_t *table_json(const lb_precision_table *table)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const lb_precision_row *row = &table->rows[i];
        const lb_precision_loss *loss = &row->loss;
        json_array_append_new(
            rows,
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:o, s:o, s:[o, o]}", "layer",
                      row->layer, "role", lb_precision_role_name(row->role), "format", row->format, "tensors",
                      (json_int_t)row->tensors, "elements", (json_int_t)loss->elements, "nonfinite",
                      (json_int_t)loss->nonfinite, "spoiled", (json_int_t)loss->spoiled, "masked",
                      (json_int_t)loss->masked, "amax", lb_effect_number(loss->amax), "underflow",
                      percent(loss->underflow, loss->nonzero), "overflow", percent(loss->overflow, loss->elements),
                      "mse", lb_effect_number(lb_precision_loss_mse(loss)), "sqnr",
                      lb_effect_number(lb_precision_loss_sqnr(loss)), "scale", lb_effect_number(loss->scale_low),
                      lb_effect_number(loss->scale_high)));
    }
    return rows;
}

static json_t *effects_json(const lb_precision_table *table)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < table->n_effects; i++) {
        const lb_precision_effect *effect = &table->effects[i];
        json_array_append_new(rows,
                              json_pack("{s:I, s:i, s:o, s:o, s:o, s:o}", "step", (json_int_t)effect->step, "rank",
                                        (int)effect->rank, "recorded", lb_effect_number(effect->recorded), "plain",
                                        lb_effect_number(effect->plain), "swapped", lb_effect_number(effect->swapped),
                                        "difference", lb_effect_number(effect->swapped - effect->plain)));
    }
    return rows;
}

static json_t *as_json(const lb_plan *plan, const lb_replay_summary *summary, const report *report, bool coverage)
{
    json_t *worst = json_array(), *opaque = lb_coverage_json(report->coverage, true), *verdicts = json_object();
    for (uint32_t i = 0; i < report->n_worst; i++) {
        const finding *finding = &report->worst[i];
        json_array_append_new(worst, json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:o, s:o}", "op", finding->op,
                                               "layer", finding->layer, "phase", finding->phase, "verdict",
                                               lb_verdict_name(finding->verdict), "step", (json_int_t)finding->step,
                                               "rank", (int)finding->rank, "index", (int)finding->index, "bound_ratio",
                                               lb_effect_number(finding->ratio), "max_abs",
                                               lb_effect_number(finding->max_abs)));
    }
    for (int v = 0; v < LB_VERDICT_COUNT; v++)
        json_object_set_new(verdicts, lb_verdict_name((lb_verdict)v), json_integer((json_int_t)report->verdicts[v]));
    json_t *all =
        json_pack("{s:s, s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:s, s:o, s:o, s:o, s:b, s:s, s:f, s:o}", "mode",
                  mode_name(plan->mode), "ops", "total", (json_int_t)summary->ops, "native",
                  (json_int_t)summary->native, "opaque", (json_int_t)summary->opaque, "views",
                  (json_int_t)summary->views, "bitwise", (json_int_t)summary->bitwise, "compared",
                  (json_int_t)summary->compared, "verdict", lb_verdict_name(summary->verdict), "verdicts", verdicts,
                  "worst", worst, "opaque_ops", opaque, "undecided", summary->undecided, "undecided_at",
                  summary->undecided_at, "seconds", summary->seconds, "nan", found_json(&report->nan));
    if (plan->backend)
        json_object_set_new(json_object_get(all, "ops"), "backend", json_integer((json_int_t)summary->backend));
    json_object_set_new(all, "inf", found_json(&report->inf));
    json_object_set_new(all, "regenerated", json_integer((json_int_t)summary->regenerated));
    if (report->missing_text) json_object_set_new(all, "missing", json_string(report->missing_text));
    json_object_set_new(all, "swaps", lb_plan_swaps_json(plan));
    if (plan->n_swaps) json_object_set_new(all, "effect", lb_effects_json(report->effects));
    if (coverage) json_object_set_new(all, "coverage", lb_coverage_json(report->coverage, false));
    if (*summary->note) json_object_set_new(all, "note", json_string(summary->note));
    json_object_set_new(all, "peak_bytes", json_integer((json_int_t)summary->peak_bytes));
    json_object_set_new(all, "live_bytes", json_integer((json_int_t)summary->live_bytes));
    if (report->table) {
        json_object_set_new(all, "table", table_json(report->table));
        json_object_set_new(all, "loss", effects_json(report->table));
    }
    char text[33];
    lb_digest_format(report->digest, text);
    if (report->wants_digest) json_object_set_new(all, "digest", json_string(text));
    return all;
}

static void print_found(const char *what, const struct found *found)
{
    const finding *finding = &found->first;
    if (found->ops)
        printf("%s in the results of %llu ops, first in op %u %s of \"%s\" (%s, step %lld, rank %d)\n", what,
               (unsigned long long)found->ops, finding->index, finding->op, finding->layer, finding->phase,
               (long long)finding->step, (int)finding->rank);
}

/* "-": there is none, as of an op without a bound. */
static const char *known_text(double x, char text[16])
{
    if (isnan(x)) return "-";
    snprintf(text, 16, "%.3g", x);
    return text;
}

static void print_text(const lb_plan *plan, const lb_replay_summary *summary, const report *report, bool coverage)
{
    printf("%s replay of %llu ops (%llu native, %llu opaque", mode_name(plan->mode), (unsigned long long)summary->ops,
           (unsigned long long)summary->native, (unsigned long long)summary->opaque);
    if (plan->backend) printf(", %llu by PyTorch", (unsigned long long)summary->backend);
    printf("; %llu views besides) in %.2f s\n", (unsigned long long)summary->views, summary->seconds);
    if (summary->compared)
        printf("bit-equal to the recording: %llu of %llu compared (%.1f %%)\n", (unsigned long long)summary->bitwise,
               (unsigned long long)summary->compared, 100.0 * (double)summary->bitwise / (double)summary->compared);
    if (summary->regenerated)
        printf("  %llu of them by another order of additions than lastbit's own, tried where no bytes were kept\n",
               (unsigned long long)summary->regenerated);
    printf("verdict: ");
    lb_command_print_verdict(lb_verdict_name(summary->verdict), 0);
    putchar('\n');
    if (summary->undecided) printf("undecided: %s\n", summary->undecided_at);
    if (*summary->note) printf("%s\n", summary->note);
    for (uint32_t i = 0; i < plan->n_swaps; i++)
        if (!plan->touched[i])
            printf("--%s %s%s%s concerned nothing\n", lb_command_swap_option(plan->swaps[i].kind),
                   plan->swaps[i].selector, *plan->swaps[i].argument ? "=" : "", plan->swaps[i].argument);
    if (summary->verdict == LB_VERDICT_SWAPPED)
        printf("  what a swap does is said, not judged%s\n",
               report->effects ? ":" : "; --mode chained says what becomes of it");
    lb_effects_print(report->effects);
    print_found("NaN", &report->nan);
    print_found("inf", &report->inf);
    if (report->missing_text) fputs(report->missing_text, stdout);
    if (report->wants_digest) {
        char text[33];
        lb_digest_format(report->digest, text);
        printf("digest of all results: %s\n", text);
    }
    if (report->n_worst)
        printf("\n%-10s %10s %10s  %-6s %-28s %s\n", "verdict", "of bound", "max diff", "op#", "op", "layer");
    for (uint32_t i = 0; i < report->n_worst; i++) {
        const finding *finding = &report->worst[i];
        char ratio[16], apart[16];
        lb_command_print_verdict(lb_verdict_name(finding->verdict), 10);
        printf(" %10s %10s  %-6u %-28s %s (%s, step %lld, rank %d)\n", known_text(finding->ratio, ratio),
               known_text(finding->max_abs, apart), finding->index, finding->op, *finding->layer ? finding->layer : "-",
               finding->phase, (long long)finding->step, (int)finding->rank);
    }
    if (coverage || summary->opaque) lb_coverage_print(report->coverage, coverage);
}

/* The numbers of a row are those of finite elements. */
static void print_nonfinite(const lb_precision_row *row)
{
    const lb_precision_loss *loss = &row->loss;
    if (!loss->nonfinite && !loss->spoiled) return;
    printf("%s %s, %s: %llu elements are NaN or infinite before rounding", *row->layer ? row->layer : "-",
           lb_precision_role_name(row->role), row->format, (unsigned long long)loss->nonfinite);
    if (loss->masked) printf("; %llu of them are finite after it", (unsigned long long)loss->masked);
    if (loss->spoiled)
        printf("; %llu finite ones are NaN or infinite after it, for their scale is",
               (unsigned long long)loss->spoiled);
    printf("\n");
}

static double unsigned_nan(double x)
{
    return isnan(x) ? NAN : x;
}

static void print_table(const lb_precision_table *table)
{
    printf("\n%-36s %-8s %-22s %9s %9s %9s %9s %8s  %s\n", "layer", "role", "format", "amax", "underfl %", "overfl %",
           "mse", "SQNR dB", "scale");
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const lb_precision_row *row = &table->rows[i];
        const lb_precision_loss *loss = &row->loss;
        printf("%-36s %-8s %-22s %9.3g %9.3f %9.3f %9.3g %8.2f  ", *row->layer ? row->layer : "-",
               lb_precision_role_name(row->role), row->format, loss->amax, percent(loss->underflow, loss->nonzero),
               percent(loss->overflow, loss->elements), lb_precision_loss_mse(loss), lb_precision_loss_sqnr(loss));
        if (loss->scale_low == loss->scale_high)
            printf("%.3g\n", loss->scale_high);
        else
            printf("%.3g to %.3g\n", loss->scale_low, loss->scale_high);
    }
    for (uint32_t i = 0; i < table->n_rows; i++) print_nonfinite(&table->rows[i]);
    if (!table->n_rows)
        printf("no operand was rounded: does the selector select anything, and is there a --precision?\n");
    printf("\n%-6s %-5s %14s %14s %14s %12s\n", "step", "rank", "loss recorded", "replayed", "with swaps",
           "difference");
    for (uint32_t i = 0; i < table->n_effects; i++) {
        const lb_precision_effect *effect = &table->effects[i];
        printf("%-6lld %-5d %14.7g %14.7g %14.7g %12.3g\n", (long long)effect->step, (int)effect->rank,
               unsigned_nan(effect->recorded), unsigned_nan(effect->plain), unsigned_nan(effect->swapped),
               unsigned_nan(effect->swapped - effect->plain));
    }
    if (!table->n_effects) printf("no loss: no backward starts from one in these steps\n");
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* The same replay without any swap: what the loss is compared with. */
static lb_status run_plain(lb_replay *replay, const lb_plan *plan, report *report, lb_err *err)
{
    lb_plan plain = *plan;
    report->table = lb_precision_table_new();
    if (!report->table) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    plain.swaps = NULL;
    plain.touched = NULL;
    plain.n_swaps = 0;
    lb_observer observer = {.context = report->table, .op = watch_plain};
    return lb_replay_run(replay, &plain, &observer, NULL, err);
}

static lb_status open_backend(const lb_cmd_plan_request *request, lb_plan *plan, lb_err *err)
{
    uint32_t n = 0;
    while (request->imports && request->imports[n]) n++;
    char *folder = lb_command_python_folder();
    lb_status status = lb_backend_open(request->python, folder ? folder : ".", (const char *const *)request->imports, n,
                                       &plan->backend, err);
    free(folder);
    return status;
}

/* None of the swaps concerned anything. Fusions that are off, or that later ones take the place of, may. */
static bool nothing_happened(const lb_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_swaps; i++)
        if (plan->touched[i] || plan->swaps[i].kind == LB_SWAP_FUSE) return false;
    return true;
}

/* --kernels: what could stand in for each composite; nothing is replayed. */
static lb_status list_kernels(const char *path, const lb_plan *plan, bool json, lb_err *err)
{
    lb_capture *capture = NULL;
    lb_status status = lb_capture_open(path, &capture, err);
    if (status == LB_OK) status = lb_kernels_print(capture, plan, json, err);
    lb_capture_close(capture);
    return status;
}

/* One replay of the window, with what --write and --table ask for. */
static lb_status replay_window(lb_capture *capture, lb_replay *replay, const lb_cmd_plan_request *request,
                               const lb_plan *plan, report *report, lb_err *err)
{
    lb_observer observer = {.context = report, .op = watch, .quantised = request->table ? watch_quantised : NULL};
    lb_status status = LB_OK;
    if (request->table) status = run_plain(replay, plan, report, err);
    if (status == LB_OK && plan->n_swaps && plan->mode != LB_REPLAY_ISOLATED)
        status = lb_effects_new(capture, replay, plan, &report->effects, err);
    return status == LB_OK ? lb_replay_run(replay, plan, &observer, &report->summary, err) : status;
}

/* Prints the report; the exit code. */
static int give_report(lb_capture *capture, const char *path, const lb_cmd_plan_request *request, const lb_plan *plan,
                       report *report, bool json)
{
    const lb_replay_summary *summary = &report->summary;
    report->missing_text = lb_missing_text(&report->missing, capture, path,
                                           plan->backend || plan->mode != LB_REPLAY_ISOLATED || plan->n_swaps);
    if (nothing_happened(plan)) {
        lb_effects_free(report->effects); /* what is left is the rounding of a replay */
        report->effects = NULL;
    }
    if (json)
        lb_command_print_json("replay", as_json(plan, summary, report, request->coverage));
    else
        print_text(plan, summary, report, request->coverage);
    if (report->table && !json) print_table(report->table);
    if (summary->verdict == LB_VERDICT_DIVERGED) return LB_EXIT_DIFFERENT;
    if (summary->undecided || summary->verdict == LB_VERDICT_MISSING) return LB_EXIT_UNTESTABLE;
    return plan->n_swaps && nothing_happened(plan) ? LB_EXIT_UNTESTABLE : LB_EXIT_SAME;
}

static void release_report(report *report)
{
    lb_effects_free(report->effects);
    lb_precision_table_free(report->table);
    free(report->worst);
    free(report->missing_text);
    lb_coverage_free(report->coverage);
}

static int fails(lb_err *err)
{
    return err->status == LB_ERR_INVALID ? lb_command_misused("replay", "%s", err->message)
                                         : lb_command_fail("replay", err);
}

/* Opens what was asked for, and answers it: --routing, --each, or one replay. */
static int run_opened(const char *path, const lb_cmd_plan_request *request, lb_plan *plan, report *report, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL;
    lb_replay *replay = NULL;
    const bool one = !request->routing && !request->each;
    bool routers_differ = false, ended = false;
    lb_status status = lb_capture_open(path, &capture, &err);
    if (status == LB_OK) status = lb_replay_open(capture, &replay, &err);
    if (status == LB_OK && lb_cmd_plan_request_wants_torch(request)) status = open_backend(request, plan, &err);
    if (status == LB_OK && request->routing)
        status = lb_routing_print(capture, replay, plan, report->room, json, &routers_differ, &err);
    if (status == LB_OK && request->each) status = lb_switches_print(capture, replay, plan, json, &ended, &err);
    if (status == LB_OK && request->write)
        status = lb_tensorfile_open(request->write, lb_capture_path(capture), &report->file, &err);
    if (status == LB_OK && one) status = replay_window(capture, replay, request, plan, report, &err);
    if (status == LB_OK && one && !report->summary.ops && !report->summary.views)
        status = lb_fail(&err, LB_ERR_NOT_CAPTURED,
                         "%s: these are tensors only: no op was recorded that could be run again", path);
    lb_command_progress_end();
    if (report->file) {
        lb_status closed = lb_tensorfile_close(report->file, status == LB_OK, status == LB_OK ? &err : NULL);
        if (status == LB_OK) status = closed;
    }
    const int code = status != LB_OK  ? fails(&err)
                     : one            ? give_report(capture, path, request, plan, report, json)
                     : routers_differ ? LB_EXIT_DIFFERENT
                     : ended          ? LB_EXIT_UNTESTABLE
                                      : LB_EXIT_SAME;
    lb_backend_close(plan->backend);
    lb_replay_close(replay);
    lb_capture_close(capture);
    return code;
}

static int run(const char *path, const lb_cmd_plan_request *request, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_plan plan;
    report report = {.room = request->worst > 0 ? (uint32_t)request->worst : 0, .wants_digest = request->digest != 0};
    uint64_t *touched = calloc(request->swaps.n + 1, sizeof *touched);
    int code;
    report.worst = calloc(report.room + 1, sizeof *report.worst);
    report.coverage = lb_coverage_new();
    if (lb_cmd_plan_make(request, &plan, &err) != LB_OK) {
        code = lb_command_misused("replay", "%s", err.message);
    } else if (!report.worst || !touched || !report.coverage) {
        lb_fail(&err, LB_ERR_NOMEM, "out of memory");
        code = lb_command_fail("replay", &err);
    } else {
        plan.touched = touched;
        if (!request->kernels)
            code = run_opened(path, request, &plan, &report, json);
        else
            code = list_kernels(path, &plan, json, &err) == LB_OK ? LB_EXIT_SAME : lb_command_fail("replay", &err);
    }
    release_report(&report);
    free(touched);
    return code;
}

int lb_cmd_replay(int argc, const char **argv)
{
    lb_cmd_plan_request request = {.worst = WORST};
    const struct poptOption *swaps = lb_command_swaps_table(&request.swaps);
    const struct poptOption options[] = {
        {"mode", 'm', POPT_ARG_STRING, &request.mode, 0,
         "isolated (default): each op from its recorded inputs, which leaves no room for routing, source, skip, "
         "muon and update; layer: each layer from its own; chained: all from what the window begins with",
         "MODE"},
        {"steps", 0, POPT_ARG_STRING, &request.steps, 0, "recorded steps to replay", "A-B"},
        {"ranks", 0, POPT_ARG_STRING, &request.ranks, 0,
         "ranks to replay; collectives with others take recorded results", "LIST"},
        {"threads", 0, POPT_ARG_INT, &request.threads, 0, "threads (results do not depend on them)", "N"},
        {"memory", 0, POPT_ARG_STRING, &request.memory, 0,
         "most memory for tensors of one rank; a replay that needs more fails", "512M"},
        {"worst", 0, POPT_ARG_INT, &request.worst, 0, "how many of the worst ops to list", "N"},
        {"digest", 0, POPT_ARG_NONE, &request.digest, 0,
         "print one digest of everything computed: equal for equal bits", NULL},
        {"force-decisions", 0, POPT_ARG_NONE, &request.force, 0,
         "where a swap changes a decision (item, nonzero, top-k), take the recorded one and go on", NULL},
        {"write", 0, POPT_ARG_STRING, &request.write, 0,
         "write computed values to a safetensors file, as stepS.rankR.opI.RESULT", "FILE"},
        {"select", 0, POPT_ARG_STRING, &request.select, 0, "ops whose results --write writes (default: all)", "SEL"},
        {"table", 0, POPT_ARG_NONE, &request.table, 0,
         "what the precision swaps do to each layer's inputs, weights and gradients, and to the loss; "
         "implies --mode chained and --force-decisions",
         NULL},
        {"each", 0, POPT_ARG_NONE, &request.each, 0,
         "replay with each swap alone, and with all but it: how far each moves the output and the loss; "
         "implies --mode chained",
         NULL},
        {"routing-report", 0, POPT_ARG_NONE, &request.routing, 0,
         "replay with routing recomputed and with the recorded ids, weights and slots in force: "
         "how much of the gap each recovers, and which choices of experts change, "
         "by near ties or by the router itself (exit code 1); implies --mode chained",
         NULL},
        {"kernels", 0, POPT_ARG_NONE, &request.kernels, 0,
         "list what the steps are made of, and the kernels and orders that could take its place", NULL},
        {"coverage", 0, POPT_ARG_NONE, &request.coverage, 0,
         "count every op: how often, how often with the recorded bits, and what was not computed and why", NULL},
        {"backend", 0, POPT_ARG_STRING, &request.backend, 0,
         "who computes ops that replay does not know, "
         "and ops whose recorded bits are needed but come out different here: torch is PyTorch on the CPU, "
         "in a child process; torch:all: all other ops, too, as a cross-check",
         "torch[:all]"},
        {"backend-import", 0, POPT_ARG_ARGV, &request.imports, 0,
         "module that defines custom ops, found from here; repeatable", "NAME"},
        {"backend-python", 0, POPT_ARG_STRING, &request.python, 0, "interpreter with PyTorch (python3)", "PATH"},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)swaps, 0, "Swaps, each as often as you like:", NULL},
        POPT_TABLEEND};
    static const lb_command command = {
        .name = "replay",
        .synopsis = "CAPTURE",
        .about = "Re-executes recorded steps without the framework and compares every op with the recording: "
                 "the same bits, inside the op's error bound (rounding), or outside it (diverged).\n"
                 "\n"
                 "The effect of a swap is measured, not judged: ops that it applies to, "
                 "and ops that read their results, are `swapped`, and the change of the outermost output, "
                 "the loss and the parameters is measured against the recording (in --json: effect). Exit code 0: "
                 "nothing but the swaps diverged; 1: something did; 125: something could not be judged, "
                 "or the swaps applied to no op.\n"
                 "\n"
                 "Bits depend neither on threads nor on the processor (LASTBIT_ISA=scalar, avx2, avx512 limits it).",
        .example =
            "  lastbit replay run.lb --mode chained --precision 'block=E&phase=forward=f32'\n"
            "  lastbit replay run.lb --mode chained --muon f32 --order 'op=allreduce_=ring' --write after.safetensors\n"
            "  lastbit replay run.lb --precision 'layer=model.layers=fp8-delayed,history:16' --table\n"
            "  lastbit replay run.lb --each --fuse rms_norm=on --fuse attention=splitkv:4 --order 'op=sum=pairwise'\n"
            "  lastbit replay run.lb --routing-report --precision 'phase=forward=bf16'",
        .min_args = 1,
        .max_args = 1};
    lb_command with_options = command;
    with_options.options = options;
    lb_command_arguments arguments;
    int code = lb_command_arguments_parse(&with_options, argc, argv, &arguments);
    if (code < 0) {
        code = request.swaps.err.status != LB_OK ? lb_command_misused("replay", "%s", request.swaps.err.message)
                                                 : run(arguments.args[0], &request, arguments.json);
        lb_command_arguments_release(&arguments);
    }
    lb_cmd_plan_request_release(&request);
    return code;
}
