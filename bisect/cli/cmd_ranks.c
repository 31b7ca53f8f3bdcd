/* lastbit ranks CAPTURE…: losses and gradients of data-parallel workers side by side, of one run or under several
 * settings. The engine is in bisect/inspection/workers. */
#include "command/command_line.h"
#include "command/command_parts.h"

#include <lastbit/ranks.h>

#include <math.h>
#include <stdlib.h>

static char *steps_text, *html;
static int layers;

static const struct poptOption options[] = {
    {"steps", 0, POPT_ARG_STRING, &steps_text, 0, "these steps only", "A-B"},
    {"html", 0, POPT_ARG_STRING, &html, 0, "also write the page of `lastbit report`", "FILE"},
    {"layers", 'l', POPT_ARG_NONE, &layers, 0, "print workers, layers and blocks of the last step, too", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "ranks",
    .synopsis = "CAPTURE [CAPTURE…]",
    .about =
        "Says what is unequal over the ranks of a run that must be equal: collectives that do not match, results of\n"
        "collectives that are not what the members sent (with the bit and the hop where it can be told), "
        "the rank that\n"
        "sent the first NaN, parameters that are no longer the same on ranks that hold copies of them, "
        "workers that read\n"
        "the same tokens, a batch read twice, different learning rates, different versions of libraries. "
        "Shards differ by design\n"
        "and are not compared.\n"
        "\n"
        "And of every step how far the workers of a data-parallel run are apart: "
        "standard deviation and range of their\n"
        "losses, spread of their gradients' norms, mean and least cosine between their gradients. Each worker's own\n"
        "gradient is taken, before averaging and before any division by the number of workers; with gradient\n"
        "accumulation loss and gradient are sums over micro-batches.\n"
        "\n"
        "Several captures are settings of one run (one seed for all ranks, each rank its own, ...), "
        "laid side by side step\n"
        "by step. A setting whose workers are further apart than the closest ones', by more than chance, "
        "is a silent\n"
        "inconsistency, though its mean loss is as smooth.\n"
        "\n"
        "Exit code 1 when something was found, 125 where a setting's workers are further apart in every step and\n"
        "the steps are fewer than seven. The numbers of one run alone are not a finding.",
    .example = "  lastbit record -o run.lb --steps 100-102 -- torchrun --nproc-per-node 8 train.py\n"
               "  lastbit ranks run.lb --layers\n"
               "  lastbit ranks one-seed.lb each-its-own.lb",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .parts = true,
};

static void set_row(json_t *object, const lb_ranks_row *row)
{
    json_object_set_new(object, "grad_norm_mean", lb_command_json_number(row->grad_norm_mean));
    json_object_set_new(object, "grad_norm_std", lb_command_json_number(row->grad_norm_std));
    json_object_set_new(object, "grad_cosine_mean", lb_command_json_number(row->grad_cosine_mean));
    json_object_set_new(object, "grad_cosine_min", lb_command_json_number(row->grad_cosine_min));
}

static json_t *rows_json(const lb_ranks_row *rows, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_t *object = json_pack("{s:s}", "layer", rows[i].layer);
        set_row(object, &rows[i]);
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *step_json(const lb_ranks_step *step)
{
    json_t *workers = json_array();
    json_t *object = json_pack(
        "{s:I,s:o,s:o,s:o}", "step", (json_int_t)step->step, "loss_mean", lb_command_json_number(step->loss_mean),
        "loss_std", lb_command_json_number(step->loss_std), "loss_range", lb_command_json_number(step->loss_range));
    set_row(object, &step->all);
    for (uint32_t i = 0; i < step->n_workers; i++)
        json_array_append_new(workers, json_pack("{s:i,s:o,s:o,s:o}", "rank", step->workers[i].rank, "loss",
                                                 lb_command_json_number(step->workers[i].loss), "grad_norm",
                                                 lb_command_json_number(step->workers[i].grad_norm), "grad_cosine",
                                                 lb_command_json_number(step->workers[i].cosine)));
    json_object_set_new(object, "workers", workers);
    json_object_set_new(object, "layers", rows_json(step->layers, step->n_layers));
    json_object_set_new(object, "blocks", rows_json(step->blocks, step->n_blocks));
    json_object_set_new(object, "gradients", json_integer(step->gradients));
    json_object_set_new(object, "lacking", json_integer(step->lacking));
    json_object_set_new(object, "approximate", json_boolean(step->approximate));
    return object;
}

static json_t *hops_json(const lb_ranks_finding *finding)
{
    json_t *hops = json_array();
    for (uint32_t i = 0; i < finding->n_hops; i++) {
        const lb_ranks_hop *hop = &finding->hops[i];
        json_t *bits = json_array();
        for (int bit = 0; bit < 64; bit++)
            if (hop->bits >> bit & 1) json_array_append_new(bits, json_integer(bit));
        json_array_append_new(
            hops, json_pack("{s:s,s:i,s:i,s:o}", "order", hop->order, "from", hop->from, "to", hop->to, "bits", bits));
    }
    return hops;
}

static json_t *finding_json(const lb_ranks_finding *finding)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < finding->n_ranks; i++) json_array_append_new(ranks, json_integer(finding->ranks[i]));
    json_t *object =
        json_pack("{s:s,s:b,s:o,s:s?,s:s}", "kind", lb_ranks_finding_name(finding->kind), "note", (int)finding->note,
                  "ranks", ranks, "tensor", finding->tensor, "message", finding->message);
    json_object_set_new(object, "step", finding->step == INT64_MIN ? json_null() : json_integer(finding->step));
    json_object_set_new(object, "steps", json_integer(finding->steps));
    if (finding->from >= 0)
        json_object_set_new(object, "hop", json_pack("{s:i,s:i}", "from", finding->from, "to", finding->to));
    if (finding->bit >= 0) json_object_set_new(object, "bit", json_integer(finding->bit));
    if (finding->n_hops) {
        json_object_set_new(object, "hops", hops_json(finding));
        json_object_set_new(object, "possible", json_integer(finding->possible));
    }
    if (finding->element >= 0) json_object_set_new(object, "element", json_integer(finding->element));
    return object;
}

static json_t *report_json(const lb_ranks_report *report)
{
    json_t *steps = json_array(), *findings = json_array();
    for (uint32_t i = 0; i < report->n_steps; i++) json_array_append_new(steps, step_json(&report->steps[i]));
    for (uint32_t i = 0; i < report->n_findings; i++)
        json_array_append_new(findings, finding_json(&report->findings[i]));
    return json_pack("{s:s,s:s,s:o,s:o,s:i,s:i,s:i,s:s?}", "verdict", lb_ranks_verdict_name(report->verdict), "seeds",
                     lb_ranks_seeds_name(report->seeds), "steps", steps, "findings", findings, "collectives",
                     (int)report->collectives, "results", (int)report->results, "replicas", (int)report->replicas,
                     "record", report->again);
}

static json_t *setting_json(const lb_ranks_setting *setting, const lb_ranks_report *report, const char *name)
{
    static const char *const measures[] = {"loss", "grad_norm", "grad_cosine"};
    json_t *apart = json_array();
    for (int m = 0; m < 3; m++)
        if (setting->apart[m]) json_array_append_new(apart, json_string(measures[m]));
    json_t *object = json_pack("{s:s,s:b,s:o,s:o}", "capture", name, "inconsistent", (int)setting->inconsistent,
                               "apart", apart, "report", report_json(report));
    json_object_set_new(object, "loss_mean", lb_command_json_number(setting->loss_mean));
    json_object_set_new(object, "loss_std", lb_command_json_number(setting->loss_std));
    json_object_set_new(object, "loss_range", lb_command_json_number(setting->loss_range));
    json_object_set_new(object, "grad_norm_mean", lb_command_json_number(setting->grad_norm_mean));
    json_object_set_new(object, "grad_norm_std", lb_command_json_number(setting->grad_norm_std));
    json_object_set_new(object, "grad_cosine_mean", lb_command_json_number(setting->grad_cosine_mean));
    return object;
}

static lb_status report_on(const char *name, const lb_ranks_options *options, lb_ranks_report **report, lb_err *err)
{
    lb_capture *capture = NULL;
    lb_status status = lb_capture_open(name, &capture, err);
    if (status == LB_OK) status = lb_ranks_run(capture, options, report, err);
    lb_capture_close(capture);
    lb_command_progress_end();
    return status;
}

static int exit_code(lb_ranks_verdict verdict)
{
    return verdict == LB_RANKS_CLEAN   ? LB_EXIT_SAME
           : verdict == LB_RANKS_FOUND ? LB_EXIT_DIFFERENT
                                       : LB_EXIT_UNTESTABLE;
}

static int run(const lb_command_arguments *arguments, const lb_ranks_options *options)
{
    lb_err err = LB_ERR_INIT;
    lb_ranks_report *report = NULL;
    lb_status status = report_on(arguments->args[0], options, &report, &err);
    char *text = status == LB_OK && !arguments->json ? lb_ranks_text(report, layers) : NULL;
    if (status == LB_OK && !arguments->json && !text)
        status = lb_fail(&err, LB_ERR_NOMEM, "out of memory for the text");
    if (status == LB_OK && html) status = lb_command_write_page("ranks", report_json(report), html, &err);
    if (text && status == LB_OK) lb_command_print_text(text);
    if (status == LB_OK && arguments->json) lb_command_print_json("ranks", report_json(report));
    const int rc = status != LB_OK ? lb_command_fail("ranks", &err) : exit_code(report->verdict);
    free(text);
    lb_ranks_report_free(report);
    return rc;
}

static json_t *settings_json(const lb_command_arguments *arguments, const lb_ranks_settings *settings,
                             const lb_ranks_report *const *reports)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < settings->n; i++)
        json_array_append_new(list, setting_json(&settings->list[i], reports[i], arguments->args[i]));
    return json_pack("{s:s,s:s,s:i,s:o}", "verdict", lb_ranks_verdict_name(settings->verdict), "closest",
                     arguments->args[settings->closest], "steps_compared", (int)settings->n_steps, "settings", list);
}

static lb_status print_settings(const lb_command_arguments *arguments, const lb_ranks_settings *settings,
                                const lb_ranks_report *const *reports, lb_err *err)
{
    if (html) LB_TRY(lb_command_write_page("ranks", settings_json(arguments, settings, reports), html, err));
    if (!arguments->json) {
        char *text = lb_ranks_settings_text(settings, reports, arguments->args);
        if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the text");
        lb_command_print_text(text);
        free(text);
        return LB_OK;
    }
    lb_command_print_json("ranks", settings_json(arguments, settings, reports));
    return LB_OK;
}

/* Of several captures: found where one is inconsistent, or has findings of its own. */
static int run_settings(const lb_command_arguments *arguments, const lb_ranks_options *options)
{
    lb_err err = LB_ERR_INIT;
    lb_ranks_settings *settings = NULL;
    const uint32_t n = (uint32_t)arguments->n_args;
    lb_ranks_report **reports = calloc(n + 1, sizeof *reports);
    lb_status status = reports ? LB_OK : lb_fail(&err, LB_ERR_NOMEM, "out of memory for %u captures", n);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        status = report_on(arguments->args[i], options, &reports[i], &err);
    }
    const lb_ranks_report *const *all = (const lb_ranks_report *const *)reports;
    if (status == LB_OK) status = lb_ranks_settings_compare(all, n, &settings, &err);
    if (status == LB_OK) status = print_settings(arguments, settings, all, &err);
    const int rc = status == LB_OK ? exit_code(settings->verdict) : lb_command_fail("ranks", &err);
    for (uint32_t i = 0; reports && i < n; i++) lb_ranks_report_free(reports[i]);
    free(reports);
    lb_ranks_settings_free(settings);
    return rc;
}

int lb_cmd_ranks(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_ranks_options options = LB_RANKS_OPTIONS_INIT;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    if (steps_text && !lb_command_parse_steps(steps_text, &options.first_step, &options.last_step))
        rc = lb_command_misused("ranks", "--steps %s: expected a step, or the first and the last as in 100-102",
                                steps_text);
    else {
        options.parts = lb_command_parts();
        if (!arguments.json) options.progress = lb_command_progress;
        rc = arguments.n_args > 1 ? run_settings(&arguments, &options) : run(&arguments, &options);
    }
    free(steps_text), free(html);
    lb_command_arguments_release(&arguments);
    return rc;
}
