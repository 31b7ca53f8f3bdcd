/* lastbit ranks CAPTURE: losses and gradients of data-parallel workers side by side. The engine is in bisect/workers. */
#include "command_line.h"

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
    .synopsis = "CAPTURE",
    .about =
        "Says of every step how far the workers of a data-parallel run are apart: standard deviation and range of "
        "their\n"
        "losses, spread of their gradients' norms, mean and least cosine between their gradients. Each worker's own\n"
        "gradient is taken, before averaging and before any division by the number of workers; with gradient\n"
        "accumulation loss and gradient are sums over micro-batches. And says what is behind it: collectives that do "
        "not\n"
        "match, parameters that are no longer equal over replicas, workers that read the same tokens or drew the same\n"
        "dropout masks, a batch read twice, other learning rates, other versions of libraries. Shards differ by "
        "design\n"
        "and are not compared.\n"
        "\n"
        "Exit code 1 when something of that was found. Numbers alone are no finding.",
    .example = "  lastbit record -o run.lb --steps 100-102 -- torchrun --nproc-per-node 8 train.py\n"
               "  lastbit ranks run.lb --layers",
    .options = options,
    .min_args = 1,
    .max_args = 1,
};

static void set_row(json_t *o, const lb_ranks_row *row)
{
    json_object_set_new(o, "grad_norm_mean", lb_json_number(row->grad_norm_mean));
    json_object_set_new(o, "grad_norm_std", lb_json_number(row->grad_norm_std));
    json_object_set_new(o, "grad_cosine_mean", lb_json_number(row->grad_cosine_mean));
    json_object_set_new(o, "grad_cosine_min", lb_json_number(row->grad_cosine_min));
}

static json_t *rows_json(const lb_ranks_row *rows, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_t *o = json_pack("{s:s}", "layer", rows[i].layer);
        set_row(o, &rows[i]);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *step_json(const lb_ranks_step *s)
{
    json_t *workers = json_array();
    json_t *o = json_pack("{s:I,s:o,s:o,s:o}", "step", (json_int_t)s->step, "loss_mean", lb_json_number(s->loss_mean),
                          "loss_std", lb_json_number(s->loss_std), "loss_range", lb_json_number(s->loss_range));
    set_row(o, &s->all);
    for (uint32_t i = 0; i < s->n_workers; i++)
        json_array_append_new(workers, json_pack("{s:i,s:o,s:o,s:o}", "rank", s->workers[i].rank, "loss",
                                                 lb_json_number(s->workers[i].loss), "grad_norm",
                                                 lb_json_number(s->workers[i].grad_norm), "grad_cosine",
                                                 lb_json_number(s->workers[i].cosine)));
    json_object_set_new(o, "workers", workers);
    json_object_set_new(o, "layers", rows_json(s->layers, s->n_layers));
    json_object_set_new(o, "blocks", rows_json(s->blocks, s->n_blocks));
    json_object_set_new(o, "gradients", json_integer(s->gradients));
    json_object_set_new(o, "lacking", json_integer(s->lacking));
    json_object_set_new(o, "approximate", json_boolean(s->approximate));
    return o;
}

static json_t *finding_json(const lb_ranks_finding *f)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < f->n_ranks; i++) json_array_append_new(ranks, json_integer(f->ranks[i]));
    json_t *o = json_pack("{s:s,s:b,s:o,s:s?,s:s}", "kind", lb_ranks_finding_name(f->kind), "note", (int)f->note,
                          "ranks", ranks, "tensor", f->tensor, "message", f->message);
    json_object_set_new(o, "step", f->step == INT64_MIN ? json_null() : json_integer(f->step));
    json_object_set_new(o, "steps", json_integer(f->steps));
    return o;
}

static json_t *report_json(const lb_ranks_report *r)
{
    json_t *steps = json_array(), *findings = json_array();
    for (uint32_t i = 0; i < r->n_steps; i++) json_array_append_new(steps, step_json(&r->steps[i]));
    for (uint32_t i = 0; i < r->n_findings; i++) json_array_append_new(findings, finding_json(&r->findings[i]));
    return json_pack("{s:s,s:o,s:o,s:i,s:i,s:s?}", "verdict", lb_ranks_verdict_name(r->verdict), "steps", steps,
                     "findings", findings, "collectives", (int)r->collectives, "replicas", (int)r->replicas, "record",
                     r->again);
}

static int run(const lb_arguments *arguments, const lb_ranks_options *o)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL;
    lb_ranks_report *report = NULL;
    lb_status status = lb_capture_open(arguments->args[0], &capture, &err);
    if (status == LB_OK) status = lb_ranks_run(capture, o, &report, &err);
    lb_progress_end();
    char *text = status == LB_OK && !arguments->json ? lb_ranks_text(report, layers) : NULL;
    if (status == LB_OK && !arguments->json && !text)
        status = lb_fail(&err, LB_ERR_NOMEM, "out of memory for the text");
    if (status == LB_OK && html) status = lb_write_page("ranks", report_json(report), html, &err);
    if (text && status == LB_OK) lb_print_text(text);
    if (status == LB_OK && arguments->json) lb_print_json("ranks", report_json(report));
    const int rc = status != LB_OK                     ? lb_command_fail("ranks", &err)
                   : report->verdict == LB_RANKS_CLEAN ? LB_EXIT_SAME
                   : report->verdict == LB_RANKS_FOUND ? LB_EXIT_DIFFERENT
                                                       : LB_EXIT_UNTESTABLE;
    free(text);
    lb_ranks_report_free(report);
    lb_capture_close(capture);
    return rc;
}

int lb_cmd_ranks(int argc, const char **argv)
{
    lb_arguments arguments;
    lb_ranks_options o = LB_RANKS_OPTIONS_INIT;
    int rc = lb_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    if (steps_text && !lb_steps_parse(steps_text, &o.first_step, &o.last_step))
        rc = lb_command_misused("ranks", "--steps %s: expected a step, or the first and the last as in 100-102",
                                steps_text);
    else {
        if (!arguments.json) o.progress = lb_progress;
        rc = run(&arguments, &o);
    }
    free(steps_text), free(html);
    lb_arguments_release(&arguments);
    return rc;
}
