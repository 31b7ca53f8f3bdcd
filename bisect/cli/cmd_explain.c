/* lastbit explain A [B]: which kernel, precision or order turns one recording into the other. The engine is explain.c,
 * the text explain_text.c. */
#include "command/command_line.h"
#include "command/command_parts.h"

#include <lastbit/explain.h>
#include <lastbit/invariance.h>
#include <lastbit/text_stream.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *layer_json(const lb_explain_layer *l)
{
    json_t *o =
        json_pack("{s:I,s:i,s:s,s:s,s:i,s:i}", "step", (json_int_t)l->step, "rank", l->rank, "phase",
                  lb_phase_name(l->phase), "layer", l->layer, "own", (int)l->own, "inherited", (int)l->inherited);
    json_object_set_new(o, "local", lb_command_json_number(l->local)),
        json_object_set_new(o, "total", lb_command_json_number(l->total));
    return o;
}

static json_t *budget_json(const lb_explain_budget *b)
{
    json_t *rows = json_array();
    double sum = 0;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const lb_explain_share *x = &b->rows[i];
        json_t *o = json_pack("{s:s,s:s,s:s,s:i}", "cause", lb_explain_cause_name(x->cause), "schedule", x->schedule,
                              "layer", x->layer, "places", (int)x->places);
        json_object_set_new(o, "share", lb_command_json_number(x->share)),
            json_object_set_new(o, "size", lb_command_json_number(x->size));
        json_array_append_new(rows, o);
        sum += x->share;
    }
    json_t *o = json_pack("{s:I,s:i,s:s,s:I,s:I,s:i,s:o}", "step", (json_int_t)b->step, "rank", b->rank, "output",
                          b->output, "elements", (json_int_t)b->elements, "differing", (json_int_t)b->differing,
                          "left_out", (int)b->left_out, "rows", rows);
    json_object_set_new(o, "left", json_string(b->left));
    json_object_set_new(o, "gap", lb_command_json_number(b->gap)),
        json_object_set_new(o, "together", lb_command_json_number(b->together));
    json_object_set_new(o, "interaction", lb_command_json_number(b->together - sum)),
        json_object_set_new(o, "rest", lb_command_json_number(1 - b->together));
    return o;
}

static json_t *finding_json(const lb_explain_finding *f)
{
    json_t *o =
        json_pack("{s:I,s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:i,s:i}", "step", (json_int_t)f->step, "rank", f->rank,
                  "phase", lb_phase_name(f->phase), "layer", f->layer, "op", f->op, "other_op", f->other_op, "cause",
                  lb_explain_cause_name(f->cause), "schedule", f->schedule, "matched", (json_int_t)f->matched,
                  "elements", (json_int_t)f->elements, "excluded", (int)f->excluded, "tried", (int)f->tried);
    json_object_set_new(o, "index", f->index == LB_NONE ? json_null() : json_integer(f->index));
    json_object_set_new(o, "other", f->other == LB_NONE ? json_null() : json_integer(f->other));
    json_object_set_new(o, "source", lb_command_json_line(&f->lines[0]));
    json_object_set_new(o, "source_b", lb_command_json_line(&f->lines[1]));
    json_object_set_new(o, "first", json_string(f->first));
    json_object_set_new(o, "reversed", json_boolean(f->reversed));
    json_object_set_new(o, "also", json_string(f->also));
    json_object_set_new(o, "proof", json_string(lb_explain_proof_name(f->proof)));
    json_object_set_new(o, "why", json_string(f->why));
    json_object_set_new(o, "local", lb_command_json_number(f->local)),
        json_object_set_new(o, "total", lb_command_json_number(f->total));
    return o;
}

static json_t *rows_json(const lb_explain_rows *x)
{
    json_t *pairs = json_array();
    for (uint32_t i = 0; i < x->n; i++)
        json_array_append_new(pairs, json_pack("[I,I]", (json_int_t)x->of_first[i], (json_int_t)x->of_second[i]));
    return json_pack("{s:I,s:i,s:I,s:I,s:s,s:o,s:i}", "step", (json_int_t)x->step, "rank", x->rank, "first",
                     (json_int_t)x->first, "second", (json_int_t)x->second, "by", x->by, "pairs", pairs, "over_others",
                     (int)x->over_others);
}

static json_t *report_json(const lb_explain_report *r)
{
    json_t *findings = json_array(), *missing = json_array();
    for (uint32_t i = 0; i < r->n_findings; i++) json_array_append_new(findings, finding_json(&r->findings[i]));
    for (uint32_t i = 0; i < r->n_missing; i++) json_array_append_new(missing, json_string(r->missing[i]));
    json_t *layers = json_array(), *budgets = json_array(), *notes = json_array();
    for (uint32_t i = 0; i < r->n_notes; i++) json_array_append_new(notes, json_string(r->notes[i]));
    for (uint32_t i = 0; i < r->n_layers; i++) json_array_append_new(layers, layer_json(&r->layers[i]));
    for (uint32_t i = 0; i < r->n_budgets; i++) json_array_append_new(budgets, budget_json(&r->budgets[i]));
    json_t *routings = json_array();
    for (uint32_t i = 0; i < r->n_routings; i++) {
        char *text = lb_routing_json(&r->routings[i], UINT32_MAX);
        if (text) json_array_append_new(routings, json_loads(text, 0, NULL));
        free(text);
    }
    json_t *rows = json_array();
    for (uint32_t i = 0; i < r->n_rows; i++) json_array_append_new(rows, rows_json(&r->rows[i]));
    return json_pack("{s:{s:I,s:I},s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:{s:I,s:I}}", "cost", "runs", (json_int_t)r->cost.runs,
                     "ops", (json_int_t)r->cost.ops, "findings", findings, "layers", layers, "budget", budgets,
                     "routing", routings, "rows", rows, "missing", missing, "notes", notes, "ops", "aligned",
                     (json_int_t)r->ops, "differing", (json_int_t)r->differing);
}

static char *steps, *layer, *phase, *select_ops, *invariance, *memory, *html;
static char **maps, **trees, **launches;
static int all, table, budget, routing, multiprocessors, threads;
static long row = -1;
static double seconds, stop_after;

static const struct poptOption options[] = {
    {"map", 0, POPT_ARG_ARGV, &maps, 0, "rename layers of the first side before aligning; repeatable",
     "s/PATTERN/REPL/"},
    {"tree", 0, POPT_ARG_ARGV, &trees, 0,
     "try the order in this file too, as `lastbit order -o FILE` stores it, where a sum has as many terms; repeatable",
     "FILE"},
    {"steps", 0, POPT_ARG_STRING, &steps, 0, "only these steps", "A-B"},
    {"layer", 0, POPT_ARG_STRING, &layer, 0, "only layers whose path has this in it (PCRE2, anywhere unless anchored)",
     "PATTERN"},
    {"phase", 0, POPT_ARG_STRING, &phase, 0, "only forward, backward, optimizer, communication, other", "LIST"},
    {"select", 0, POPT_ARG_STRING, &select_ops, 0, "only these ops of the first side", "SELECTOR"},
    {"seconds", 0, POPT_ARG_DOUBLE, &seconds, 0,
     "rule out alternatives no longer than about this for ops of one kind, counted by what runs (2)", "S"},
    {"stop-after", 0, POPT_ARG_DOUBLE, &stop_after, 0, "begin no place later than this, and say what was found by then",
     "S"},
    {"threads", 0, POPT_ARG_INT, &threads, 0, "threads (results do not depend on them)", "N"},
    {"memory", 0, POPT_ARG_STRING, &memory, 0,
     "most memory for tensors of one rank in replays of --budget and --routing", "512M"},
    {"html", 0, POPT_ARG_STRING, &html, 0, "also write the page of `lastbit report`", "FILE"},
    {"all", 0, POPT_ARG_NONE, &all, 0,
     "list every kind of place, where there are more than 24, and what is only inherited", NULL},
    {"table", 0, POPT_ARG_NONE, &table, 0, "what each layer adds, beside what has come together by then", NULL},
    {"budget", 0, POPT_ARG_NONE, &budget, 0, "split the final gap by cause and layer: a chained replay for each", NULL},
    {"routing", 0, POPT_ARG_NONE, &routing, 0,
     "how much of the final gap is due to different experts: replays of the first side with the second's ids, "
     "weights and slots in force; and which choices are near ties",
     NULL},
    {"invariance", 0, POPT_ARG_STRING, &invariance, 0,
     "does a row of these ops keep its bits in batches of other sizes? By kernel, "
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
    .about = "Two recordings differ: says at each place where they part which kernel, "
             "precision or order turns the first\n"
             "into the second. "
             "The first side's ops are run on the second side's recorded input bits under one candidate\n"
             "after another, and the second side's output bits are asked for, every one of them. "
             "A candidate that misses one\n"
             "element is excluded; what only came in from upstream is said to be `input`. "
             "Of a collective all its ranks are\n"
             "asked what they brought: one brought other numbers, or they were added up in another order, "
             "which is named, or\n"
             "no legal order gives these bits. "
             "Of batches of other sizes the rows that both have are compared with each other:\n"
             "what a library makes of a prompt alone and among seven others. With one capture: "
             "under which order or kernel its ops give the bits that were\n"
             "recorded, where replay's own do not.",
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
static const char *unit_of(const lb_invariance_row *r)
{
    return r->sequences ? "sequence" : "row";
}

static json_t *invariance_json(const lb_invariance *v)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < v->n_rows; i++) {
        const lb_invariance_row *r = &v->rows[i];
        json_t *sizes = json_array();
        for (uint32_t k = 0; k < r->n_sizes; k++)
            json_array_append_new(sizes, json_pack("{s:I,s:I,s:s}", "rows", (json_int_t)r->sizes[k].rows, "differing",
                                                   (json_int_t)r->sizes[k].differing, "launch", r->sizes[k].launch));
        json_array_append_new(rows,
                              json_pack("{s:I,s:i,s:s,s:s,s:i,s:s,s:s,s:s,s:I,s:I,s:I,s:b,s:o}", "step",
                                        (json_int_t)r->step, "rank", r->rank, "layer", r->layer, "op", r->name, "index",
                                        (int)r->op, "kernel", r->kernel, "launch", r->launch, "unit", unit_of(r),
                                        "recorded", (json_int_t)r->recorded, "embedded", (json_int_t)r->embedded,
                                        "elements", (json_int_t)r->elements, "varies", (int)r->varies, "sizes", sizes));
    }
    return json_pack("{s:[],s:o}", "findings", "invariance", rows);
}

/* " (64 of 64 elements, as splitk:8)" */
static void print_size(FILE *to, const lb_invariance_row *r, const lb_invariance_size *s)
{
    fprintf(to, " %lld (%lld of %lld elements", (long long)s->rows, (long long)s->differing, (long long)r->elements);
    if (strcmp(s->launch, r->launch)) fprintf(to, ", as %s", s->launch);
    fprintf(to, ")");
}

/* "1 to 512", or each, where some could not be run. */
static void print_sizes(FILE *to, const lb_invariance_row *r)
{
    bool all = true;
    for (uint32_t k = 1; k < r->n_sizes; k++) all &= r->sizes[k].rows == 2 * r->sizes[k - 1].rows;
    if (all && r->n_sizes > 1)
        fprintf(to, " %lld to %lld", (long long)r->sizes[0].rows, (long long)r->sizes[r->n_sizes - 1].rows);
    for (uint32_t k = 0; (!all || r->n_sizes == 1) && k < r->n_sizes; k++)
        fprintf(to, "%s %lld", k ? "," : "", (long long)r->sizes[k].rows);
}

static char *invariance_text(const lb_invariance *v)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = lb_text_stream_open(&text, &size);
    if (!to) return NULL;
    for (uint32_t i = 0; i < v->n_rows; i++) {
        const lb_invariance_row *r = &v->rows[i];
        const char *separator = "";
        bool alike = true;
        for (uint32_t k = 0; k < r->n_sizes; k++) alike &= !strcmp(r->sizes[k].launch, r->launch);
        fprintf(to, "%s, %s (op %u), %s: ", *r->layer ? r->layer : "(top level)", r->name, r->op, r->kernel);
        if (!r->varies) {
            fprintf(to, "the same bits in batches of");
            print_sizes(to, r);
            fprintf(to, " %ss%s\n", unit_of(r), alike ? "" : ", though they are not all launched alike");
        } else
            fprintf(to, "other bits than in the recorded batch of %lld %ss%s%s in batches of", (long long)r->recorded,
                    unit_of(r), alike ? "" : ", as ", alike ? "" : r->launch);
        for (uint32_t k = 0; r->varies && k < r->n_sizes; k++) {
            if (!r->sizes[k].differing) continue;
            fprintf(to, "%s", separator), print_size(to, r, &r->sizes[k]);
            separator = ",";
        }
        if (r->varies) fprintf(to, "\n");
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

static int exit_code(const lb_explain_report *r)
{
    if (r->n_findings) return LB_EXIT_DIFFERENT;
    return r->n_missing ? LB_EXIT_UNTESTABLE : LB_EXIT_SAME;
}

static lb_command_answer run_explain(const lb_command_arguments *arguments, const lb_explain_options *o)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *a = NULL, *b = NULL;
    lb_explain_report *report = NULL;
    lb_status status = lb_capture_open(arguments->args[0], &a, &err);
    if (status == LB_OK && arguments->n_args > 1) status = lb_capture_open(arguments->args[1], &b, &err);
    const bool opened = status == LB_OK;
    if (status == LB_OK) status = lb_explain_run(a, b, o, &report, &err);
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
static int run_units(const lb_command_arguments *arguments, lb_explain_options *o)
{
    o->parts = lb_command_parts(), o->alone = true;
    lb_command_answer answer = run_explain(arguments, o);
    return lb_command_answer_print("explain", &answer, arguments->json, html);
}

int lb_cmd_explain(int argc, const char **argv)
{
    lb_command_arguments arguments;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    lb_explain_options o = LB_EXPLAIN_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    char *selector = make_selector();
    o.maps = (const char *const *)maps, o.select = selector, o.seconds = seconds, o.budget = budget,
    o.routing = routing, o.stop_after = stop_after;
    if (threads > 0) lb_replay_threads(threads);
    while (maps && maps[o.n_maps]) o.n_maps++;
    o.trees = (const char *const *)trees;
    while (trees && trees[o.n_trees]) o.n_trees++;
    if (!arguments.json) o.progress = lb_command_progress;
    if (steps && !lb_command_parse_steps(steps, &o.first_step, &o.last_step))
        rc = lb_command_misused("explain", "--steps %s: expected N or A-B", steps);
    else if (lb_command_parse_memory(memory, &o.memory_bytes, &err) != LB_OK)
        rc = lb_command_misused("explain", "%s", err.message);
    else if (threads < 0 || stop_after < 0)
        rc = lb_command_misused("explain", "--threads and --stop-after take no negative numbers");
    else if (launches && !invariance)
        rc = lb_command_misused("explain", "--launch is asked of --invariance");
    else if (invariance && arguments.n_args > 1)
        rc = lb_command_misused("explain", "--invariance looks at one capture");
    else if (invariance)
        rc = lb_command_parts_once("explain", run_invariance, &arguments, &o, html);
    else
        rc = run_units(&arguments, &o);
    for (uint32_t i = 0; i < o.n_maps; i++) free(maps[i]);
    for (uint32_t i = 0; i < o.n_trees; i++) free(trees[i]);
    for (uint32_t i = 0; launches && launches[i]; i++) free(launches[i]);
    free(maps), free(trees), free(launches), free(selector), free(steps), free(layer), free(phase), free(select_ops),
        free(invariance), free(memory), free(html);
    lb_command_arguments_release(&arguments);
    return rc;
}
