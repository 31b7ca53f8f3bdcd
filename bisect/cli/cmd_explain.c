/* lastbit explain A [B]: which kernel, precision or order turns one recording into the other. The engine is explain.c,
 * the text explain_text.c. */
#include "command/command_line.h"
#include "command/command_map.h"
#include "command/command_parts.h"

#include <lastbit/explain.h>
#include <lastbit/invariance.h>
#include <lastbit/text_stream.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *layer_json(const lb_explain_layer *layer)
{
    json_t *o = json_pack("{s:I,s:i,s:s,s:s,s:i,s:i}", "step", (json_int_t)layer->step, "rank", layer->rank, "phase",
                          lb_phase_name(layer->phase), "layer", layer->layer, "own", (int)layer->own, "inherited",
                          (int)layer->inherited);
    json_object_set_new(o, "local", lb_command_json_number(layer->local)),
        json_object_set_new(o, "total", lb_command_json_number(layer->total));
    return o;
}

static json_t *budget_json(const lb_explain_budget *budget)
{
    json_t *rows = json_array();
    double sum = 0;
    for (uint32_t i = 0; i < budget->n_rows; i++) {
        const lb_explain_share *share = &budget->rows[i];
        json_t *o = json_pack("{s:s,s:s,s:s,s:i}", "cause", lb_explain_cause_name(share->cause), "schedule",
                              share->schedule, "layer", share->layer, "places", (int)share->places);
        json_object_set_new(o, "share", lb_command_json_number(share->share)),
            json_object_set_new(o, "size", lb_command_json_number(share->size));
        json_array_append_new(rows, o);
        sum += share->share;
    }
    json_t *o = json_pack("{s:I,s:i,s:s,s:I,s:I,s:i,s:o}", "step", (json_int_t)budget->step, "rank", budget->rank,
                          "output", budget->output, "elements", (json_int_t)budget->elements, "differing",
                          (json_int_t)budget->differing, "left_out", (int)budget->left_out, "rows", rows);
    json_object_set_new(o, "left", json_string(budget->left));
    json_object_set_new(o, "gap", lb_command_json_number(budget->gap)),
        json_object_set_new(o, "together", lb_command_json_number(budget->together));
    json_object_set_new(o, "interaction", lb_command_json_number(budget->together - sum)),
        json_object_set_new(o, "rest", lb_command_json_number(1 - budget->together));
    return o;
}

static json_t *finding_json(const lb_explain_finding *finding)
{
    json_t *object =
        json_pack("{s:I,s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:i,s:i}", "step", (json_int_t)finding->step, "rank",
                  finding->rank, "phase", lb_phase_name(finding->phase), "layer", finding->layer, "op", finding->op,
                  "other_op", finding->other_op, "cause", lb_explain_cause_name(finding->cause), "schedule",
                  finding->schedule, "matched", (json_int_t)finding->matched, "elements", (json_int_t)finding->elements,
                  "excluded", (int)finding->excluded, "tried", (int)finding->tried);
    json_object_set_new(object, "index", finding->index == LB_NONE ? json_null() : json_integer(finding->index));
    json_object_set_new(object, "other", finding->other == LB_NONE ? json_null() : json_integer(finding->other));
    json_object_set_new(object, "source", lb_command_json_line(&finding->lines[0]));
    json_object_set_new(object, "source_b", lb_command_json_line(&finding->lines[1]));
    json_object_set_new(object, "first", json_string(finding->first));
    json_object_set_new(object, "reversed", json_boolean(finding->reversed));
    json_object_set_new(object, "also", json_string(finding->also));
    json_object_set_new(object, "proof", json_string(lb_explain_proof_name(finding->proof)));
    json_object_set_new(object, "why", json_string(finding->why));
    json_object_set_new(object, "local", lb_command_json_number(finding->local)),
        json_object_set_new(object, "total", lb_command_json_number(finding->total));
    return object;
}

static json_t *rows_json(const lb_explain_rows *rows)
{
    json_t *pairs = json_array();
    for (uint32_t i = 0; i < rows->n; i++)
        json_array_append_new(pairs, json_pack("[I,I]", (json_int_t)rows->of_first[i], (json_int_t)rows->of_second[i]));
    return json_pack("{s:I,s:i,s:I,s:I,s:s,s:o,s:i}", "step", (json_int_t)rows->step, "rank", rows->rank, "first",
                     (json_int_t)rows->first, "second", (json_int_t)rows->second, "by", rows->by, "pairs", pairs,
                     "over_others", (int)rows->over_others);
}

static json_t *report_json(const lb_explain_report *report)
{
    json_t *findings = json_array(), *missing = json_array();
    for (uint32_t i = 0; i < report->n_findings; i++)
        json_array_append_new(findings, finding_json(&report->findings[i]));
    for (uint32_t i = 0; i < report->n_missing; i++) json_array_append_new(missing, json_string(report->missing[i]));
    json_t *layers = json_array(), *budgets = json_array(), *notes = json_array();
    for (uint32_t i = 0; i < report->n_notes; i++) json_array_append_new(notes, json_string(report->notes[i]));
    for (uint32_t i = 0; i < report->n_layers; i++) json_array_append_new(layers, layer_json(&report->layers[i]));
    for (uint32_t i = 0; i < report->n_budgets; i++) json_array_append_new(budgets, budget_json(&report->budgets[i]));
    json_t *routings = json_array();
    for (uint32_t i = 0; i < report->n_routings; i++) {
        char *text = lb_routing_json(&report->routings[i], UINT32_MAX);
        if (text) json_array_append_new(routings, json_loads(text, 0, NULL));
        free(text);
    }
    json_t *rows = json_array();
    for (uint32_t i = 0; i < report->n_rows; i++) json_array_append_new(rows, rows_json(&report->rows[i]));
    return json_pack("{s:{s:I,s:I},s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:{s:I,s:I}}", "cost", "runs",
                     (json_int_t)report->cost.runs, "ops", (json_int_t)report->cost.ops, "findings", findings, "layers",
                     layers, "budget", budgets, "routing", routings, "rows", rows, "missing", missing, "notes", notes,
                     "ops", "aligned", (json_int_t)report->ops, "differing", (json_int_t)report->differing);
}

static char *steps, *layer, *phase, *select_ops, *invariance, *memory, *html;
static char **maps, **trees, **launches;
static int all, table, budget, routing, multiprocessors, threads;
static long row = -1;
static double seconds, stop_after;

static const struct poptOption options[] = {
    {"map", 0, POPT_ARG_ARGV, &maps, 0,
     "rename layers of the first side before aligning, or read the table of tensors that diff wrote; repeatable",
     "s/PATTERN/REPL/|FILE"},
    {"tree", 0, POPT_ARG_ARGV, &trees, 0,
     "try the order in this file too, as `lastbit order -o FILE` stores it, where a sum has as many terms; repeatable",
     "FILE"},
    {"steps", 0, POPT_ARG_STRING, &steps, 0, "only these steps", "A-B"},
    {"layer", 0, POPT_ARG_STRING, &layer, 0, "only layers whose path has this in it (PCRE2, anywhere unless anchored)",
     "PATTERN"},
    {"phase", 0, POPT_ARG_STRING, &phase, 0, "only forward, backward, optimizer, communication, other", "LIST"},
    {"select", 0, POPT_ARG_STRING, &select_ops, 0, "only these ops of the first side", "SELECTOR"},
    {"seconds", 0, POPT_ARG_DOUBLE, &seconds, 0,
     "take about this long to rule out alternatives for ops of one kind; counted by the work, not by the clock (2)",
     "S"},
    {"stop-after", 0, POPT_ARG_DOUBLE, &stop_after, 0,
     "begin no new place after this time, "
     "and say what was found by then",
     "S"},
    {"threads", 0, POPT_ARG_INT, &threads, 0, "threads (results do not depend on them)", "N"},
    {"memory", 0, POPT_ARG_STRING, &memory, 0,
     "most memory for tensors of one rank in replays of --budget and --routing", "512M"},
    {"html", 0, POPT_ARG_STRING, &html, 0, "also write the page of `lastbit report`", "FILE"},
    {"all", 0, POPT_ARG_NONE, &all, 0,
     "list every kind of place, where there are more than 24, and what is only inherited", NULL},
    {"table", 0, POPT_ARG_NONE, &table, 0, "what each layer adds to the difference, and the difference so far", NULL},
    {"budget", 0, POPT_ARG_NONE, &budget, 0, "split the final gap by cause and layer: a chained replay for each", NULL},
    {"routing", 0, POPT_ARG_NONE, &routing, 0,
     "how much of the final gap is due to different experts: replays of the first side with the second's ids, "
     "weights and slots in force; and which choices are near ties",
     NULL},
    {"invariance", 0, POPT_ARG_STRING, &invariance, 0,
     "does a row of these ops keep its bits in batches of different sizes? By kernel, "
     "and by the launch rules of GPU libraries",
     "SELECTOR"},
    {"launch", 0, POPT_ARG_ARGV, &launches, 0,
     "ask --invariance only this; repeatable: own, openblas; a rule: of products splitk, streamk, of sums blocks, "
     "of RMSNorm butterfly, of softmax persistent, vocabulary, of attention flash-attention, flashinfer, paged; "
     "or the text of an order or kernel that every batch is given, whatever its size: splitk:4",
     "LAUNCH"},
    {"row", 0, POPT_ARG_LONG, &row, 0, "which recorded row --invariance embeds (-1: the first 64)", "N"},
    {"multiprocessors", 0, POPT_ARG_INT, &multiprocessors, 0, "of the GPU whose launch rules are asked (132: H100)",
     "N"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "explain",
    .synopsis = "CAPTURE [CAPTURE]",
    .about = "Two recordings differ: says of each place where they do which kernel, "
             "precision or order turns the first into the second. "
             "It runs the first side's ops on the second side's recorded input bits under one candidate after another. "
             "A candidate has to give all of the second side's output bits; one that misses an element is excluded. "
             "A difference that only came in from upstream is called `input`. "
             "Of a collective it says whether a rank sent different numbers, "
             "whether they were added up in a different order, which is named, "
             "or that no legal order gives these bits. "
             "Of batches of different sizes it compares the rows that both have: "
             "a prompt alone and among seven others. "
             "With one capture it says under which order or kernel the ops give the recorded bits, "
             "where replay's own does not.",
    .example = "  OMP_NUM_THREADS=1 lastbit record -o one.lb -- python sum.py\n"
               "  OMP_NUM_THREADS=4 lastbit record -o four.lb -- python sum.py\n"
               "  lastbit explain one.lb four.lb      # order: aten::sum, torch:1 became torch:4",
    .options = options,
    .min_args = 1,
    .max_args = 2,
    .parts = true,
};

/* --layer, --phase and --select as one selector; malloc'ed, NULL: everything. */
static char *make_selector(void)
{
    const char *values[] = {layer, phase, select_ops}, *names[] = {"layer=", "phase=", ""};
    size_t room = 32, used = 0;
    for (int i = 0; i < 3; i++) room += values[i] ? strlen(values[i]) : 0;
    char *text = calloc(room, 1);
    for (int i = 0; text && i < 3; i++)
        if (values[i])
            used += (size_t)snprintf(text + used, room - used, "%s%s%s", used ? "&" : "", names[i], values[i]);
    if (used) return text;
    free(text);
    return NULL;
}

/* ---- batch invariance ---- */

/* What rows are. */
static const char *unit_of(const lb_invariance_row *row)
{
    return row->sequences ? "sequence" : "row";
}

static json_t *invariance_json(const lb_invariance *invariance)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < invariance->n_rows; i++) {
        const lb_invariance_row *row = &invariance->rows[i];
        json_t *sizes = json_array();
        for (uint32_t k = 0; k < row->n_sizes; k++)
            json_array_append_new(sizes,
                                  json_pack("{s:I,s:I,s:s}", "rows", (json_int_t)row->sizes[k].rows, "differing",
                                            (json_int_t)row->sizes[k].differing, "launch", row->sizes[k].launch));
        json_array_append_new(rows, json_pack("{s:I,s:i,s:s,s:s,s:i,s:s,s:s,s:s,s:I,s:I,s:I,s:b,s:o}", "step",
                                              (json_int_t)row->step, "rank", row->rank, "layer", row->layer, "op",
                                              row->name, "index", (int)row->op, "kernel", row->kernel, "launch",
                                              row->launch, "unit", unit_of(row), "recorded", (json_int_t)row->recorded,
                                              "embedded", (json_int_t)row->embedded, "elements",
                                              (json_int_t)row->elements, "varies", (int)row->varies, "sizes", sizes));
    }
    return json_pack("{s:[],s:o}", "findings", "invariance", rows);
}

/* " (64 of 64 elements, as splitk:8)" */
static void print_size(FILE *to, const lb_invariance_row *row, const lb_invariance_size *size)
{
    fprintf(to, " %lld (%lld of %lld elements", (long long)size->rows, (long long)size->differing,
            (long long)row->elements);
    if (strcmp(size->launch, row->launch)) fprintf(to, ", as %s", size->launch);
    fprintf(to, ")");
}

/* "1 to 512", or each, where some could not be run. */
static void print_sizes(FILE *to, const lb_invariance_row *row)
{
    bool all = true;
    for (uint32_t k = 1; k < row->n_sizes; k++) all &= row->sizes[k].rows == 2 * row->sizes[k - 1].rows;
    if (all && row->n_sizes > 1)
        fprintf(to, " %lld to %lld", (long long)row->sizes[0].rows, (long long)row->sizes[row->n_sizes - 1].rows);
    for (uint32_t k = 0; (!all || row->n_sizes == 1) && k < row->n_sizes; k++)
        fprintf(to, "%s %lld", k ? "," : "", (long long)row->sizes[k].rows);
}

static char *invariance_text(const lb_invariance *invariance)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = lb_text_stream_open(&text, &size);
    if (!to) return NULL;
    for (uint32_t i = 0; i < invariance->n_rows; i++) {
        const lb_invariance_row *row = &invariance->rows[i];
        const char *separator = "";
        bool alike = true;
        for (uint32_t k = 0; k < row->n_sizes; k++) alike &= !strcmp(row->sizes[k].launch, row->launch);
        fprintf(to, "%s, %s (op %u), %s: ", *row->layer ? row->layer : "(top level)", row->name, row->op, row->kernel);
        if (!row->varies) {
            fprintf(to, "the same bits in batches of");
            print_sizes(to, row);
            fprintf(to, " %ss%s\n", unit_of(row), alike ? "" : ", though they are not all launched alike");
        } else
            fprintf(to, "other bits than in the recorded batch of %lld %ss%s%s in batches of", (long long)row->recorded,
                    unit_of(row), alike ? "" : ", as ", alike ? "" : row->launch);
        for (uint32_t k = 0; row->varies && k < row->n_sizes; k++) {
            if (!row->sizes[k].differing) continue;
            fprintf(to, "%s", separator), print_size(to, row, &row->sizes[k]);
            separator = ",";
        }
        if (row->varies) fprintf(to, "\n");
    }
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}

static lb_command_answer run_invariance(const lb_command_arguments *arguments, const void *options)
{
    const lb_explain_options *o = options;
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL;
    lb_invariance found = {0};
    bool varies = false;
    lb_invariance_options v = LB_INVARIANCE_OPTIONS_INIT;
    v.select = invariance, v.row = row, v.multiprocessors = multiprocessors;
    v.first_step = o->first_step, v.last_step = o->last_step;
    v.launches = (const char *const *)launches;
    while (launches && launches[v.n_launches]) v.n_launches++;
    lb_status status = lb_capture_open(arguments->args[0], &capture, &err);
    const bool opened = status == LB_OK;
    if (status == LB_OK) status = lb_invariance_run(capture, &v, &found, &err);
    for (uint32_t i = 0; i < found.n_rows; i++) varies |= found.rows[i].varies;
    lb_command_answer answer = {0};
    if (status == LB_OK) answer = (lb_command_answer){0, invariance_json(&found), invariance_text(&found)};
    answer.code = !opened                      ? lb_command_fail("explain", &err)
                  : status == LB_ERR_NOT_FOUND ? (lb_command_fail("explain", &err), LB_EXIT_UNTESTABLE)
                  : status == LB_ERR_INVALID   ? lb_command_misused("explain", "%s", err.message)
                  : status != LB_OK            ? lb_command_fail("explain", &err)
                  : varies                     ? LB_EXIT_DIFFERENT
                                               : LB_EXIT_SAME;
    lb_invariance_release(&found);
    lb_capture_close(capture);
    return answer;
}

static int exit_code(const lb_explain_report *report)
{
    if (report->n_findings) return LB_EXIT_DIFFERENT;
    return report->n_missing ? LB_EXIT_UNTESTABLE : LB_EXIT_SAME;
}

static lb_command_answer run_explain(const lb_command_arguments *arguments, const lb_explain_options *options)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *a = NULL, *b = NULL;
    lb_explain_report *report = NULL;
    lb_status status = lb_capture_open(arguments->args[0], &a, &err);
    if (status == LB_OK && arguments->n_args > 1) status = lb_capture_open(arguments->args[1], &b, &err);
    const bool opened = status == LB_OK;
    if (status == LB_OK) status = lb_explain_run(a, b, options, &report, &err);
    lb_command_progress_end();
    lb_command_answer answer = {0};
    if (status == LB_OK) {
        answer.text =
            lb_explain_text(report, arguments->args[0], arguments->n_args > 1 ? arguments->args[1] : NULL, all, table);
        if (answer.text)
            answer.object = report_json(report);
        else
            status = lb_fail(&err, LB_ERR_NOMEM, "out of memory for the text");
    }
    answer.code = status == LB_OK              ? exit_code(report)
                  : status == LB_ERR_PARTIAL   ? lb_command_parts_partial()
                  : status == LB_ERR_INVALID   ? lb_command_misused("explain", "%s", err.message)
                  : !opened                    ? lb_command_fail("explain", &err)
                  : status == LB_ERR_NOT_FOUND ? (lb_command_fail("explain", &err), LB_EXIT_UNTESTABLE)
                                               : lb_command_fail("explain", &err);
    lb_explain_report_free(report);
    lb_capture_close(a), lb_capture_close(b);
    return answer;
}

/* An explanation is cut into units of work. */
static int run_units(const lb_command_arguments *arguments, lb_explain_options *options)
{
    options->parts = lb_command_parts(), options->alone = true;
    lb_command_answer answer = run_explain(arguments, options);
    return lb_command_answer_print("explain", &answer, arguments->json, html);
}

int lb_cmd_explain(int argc, const char **argv)
{
    lb_command_arguments arguments;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    lb_explain_options options = LB_EXPLAIN_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    char *selector = make_selector();
    lb_command_map map;
    const lb_status split = lb_command_map_split(maps, &map, &err);
    options.maps = map.rules, options.n_maps = map.n_rules, options.table = map.table;
    options.select = selector, options.seconds = seconds, options.budget = budget, options.routing = routing,
    options.stop_after = stop_after;
    if (threads > 0) lb_replay_threads(threads);
    options.trees = (const char *const *)trees;
    while (trees && trees[options.n_trees]) options.n_trees++;
    if (!arguments.json) options.progress = lb_command_progress;
    if (split != LB_OK)
        rc = lb_command_misused("explain", "%s", err.message);
    else if (steps && !lb_command_parse_steps(steps, &options.first_step, &options.last_step))
        rc = lb_command_misused("explain", "--steps %s: expected N or A-B", steps);
    else if (lb_command_parse_memory(memory, &options.memory_bytes, &err) != LB_OK)
        rc = lb_command_misused("explain", "%s", err.message);
    else if (threads < 0 || stop_after < 0)
        rc = lb_command_misused("explain", "--threads and --stop-after take no negative numbers");
    else if (launches && !invariance)
        rc = lb_command_misused("explain", "--launch is asked of --invariance");
    else if (invariance && arguments.n_args > 1)
        rc = lb_command_misused("explain", "--invariance looks at one capture");
    else if (invariance)
        rc = lb_command_parts_once("explain", run_invariance, &arguments, &options, html);
    else
        rc = run_units(&arguments, &options);
    lb_command_map_release(&map);
    for (uint32_t i = 0; maps && maps[i]; i++) free(maps[i]);
    for (uint32_t i = 0; i < options.n_trees; i++) free(trees[i]);
    for (uint32_t i = 0; launches && launches[i]; i++) free(launches[i]);
    free(maps), free(trees), free(launches), free(selector), free(steps), free(layer), free(phase), free(select_ops),
        free(invariance), free(memory), free(html);
    lb_command_arguments_release(&arguments);
    return rc;
}
