/* lastbit diff A B: two captures layer by layer. The engine is diff.c, the text is diff_text.c. */
#include "command/command_line.h"
#include "command/command_map.h"
#include "command/command_parts.h"

#include <lastbit/output.h>
#include <lastbit/diff.h>
#include <lastbit/tensor_map.h>
#include <lastbit/text_stream.h>

#include <math.h>
#include <stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A number where it reads as one. */
static json_t *argument_value(const char *text)
{
    char *end;
    const double number = strtod(text, &end);
    return *text && !*end ? lb_command_json_number(number) : json_string(text);
}

static json_t *arguments_json(const lb_diff_row *row)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < row->n_arguments; i++) {
        const lb_diff_argument *argument = &row->arguments[i];
        json_t *object = json_pack("{s:s, s:o, s:o}", "name", argument->name, "first", argument_value(argument->first),
                                   "second", argument_value(argument->second));
        if (*argument->group) json_object_set_new(object, "group", json_string(argument->group));
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *row_json(const lb_diff_row *row)
{
    json_t *object =
        json_pack("{s:I,s:i,s:s,s:s,s:s,s:s,s:s,s:s}", "step", (json_int_t)row->step, "rank", row->rank, "phase",
                  lb_phase_name(row->phase), "layer", row->layer, "verdict", lb_verdict_name(row->verdict), "local",
                  lb_verdict_name(row->local), "inherited", lb_verdict_name(row->inherited), "why", row->why);
    if (row->op) {
        json_object_set_new(object, "op", json_string(row->op));
        json_object_set_new(object, "index", row->index == LB_NONE ? json_null() : json_integer(row->index));
        json_object_set_new(object, "other", row->other == LB_NONE ? json_null() : json_integer(row->other));
        json_object_set_new(object, "other_rank", json_integer(row->other_rank));
    }
    if (row->hop_from != row->hop_to)
        json_object_set_new(object, "hop", json_pack("{s:i,s:i}", "from", row->hop_from, "to", row->hop_to));
    json_object_set_new(object, "source", lb_command_json_line(&row->lines[0]));
    json_object_set_new(object, "source_b", lb_command_json_line(&row->lines[1]));
    if (row->n_arguments) json_object_set_new(object, "arguments", arguments_json(row));
    if (row->means) json_object_set_new(object, "means", json_string(row->means));
    json_object_set_new(object, "value", json_boolean(row->value));
    if (row->parameter) json_object_set_new(object, "parameter", json_string(row->parameter));
    if (row->before) json_object_set_new(object, "after_module", json_string(row->before));
    if (row->after) json_object_set_new(object, "before_module", json_string(row->after));
    const lb_difference *difference = &row->difference;
    bool known = row->measured || row->verdict == LB_VERDICT_IDENTICAL;
    json_object_set_new(object, "max_abs", known ? lb_command_json_number(difference->max_abs) : json_null());
    json_object_set_new(object, "max_rel", known ? lb_command_json_number(difference->max_rel) : json_null());
    json_object_set_new(object, "rel_l2", known ? lb_command_json_number(difference->rel_l2) : json_null());
    json_object_set_new(object, "cosine", known ? lb_command_json_number(difference->cosine) : json_null());
    json_object_set_new(object, "max_ulp", known ? lb_command_json_number(difference->max_ulp) : json_null());
    json_object_set_new(object, "differing", known ? json_integer(difference->differing) : json_null());
    json_object_set_new(object, "elements", known ? json_integer(difference->elements) : json_null());
    json_object_set_new(object, "bound_ratio", lb_command_json_number(row->bound_ratio));
    if (row->tensor)
        json_object_set_new(
            object, "tensors",
            json_pack("{s:s,s:s}", "first", row->tensor_of ? row->tensor_of : "", "second", row->tensor));
    if (row->measured)
        json_object_set_new(object, "pattern",
                            json_sprintf("%s: %s", lb_compare_pattern_text(difference->pattern), difference->detail));
    return object;
}

static json_t *tokens_json(const lb_diff_report *report)
{
    json_t *tokens = json_array();
    for (uint32_t i = 0; i < report->n_tokens; i++) {
        const lb_diff_tokens *t = &report->tokens[i];
        json_t *object = json_pack("{s:s,s:I}", "kind", t->kind, "count", (json_int_t)t->count);
        json_object_set_new(object, "k3", t->has_targets ? lb_command_json_number(t->k3) : json_null());
        json_object_set_new(object, "kl", lb_command_json_number(t->kl));
        json_object_set_new(object, "top1", lb_command_json_number(t->top1));
        json_object_set_new(object, "max_abs", t->has_targets ? lb_command_json_number(t->max_abs) : json_null());
        json_object_set_new(object, "mean_abs", t->has_targets ? lb_command_json_number(t->mean_abs) : json_null());
        json_array_append_new(tokens, object);
    }
    return tokens;
}

static json_t *routing_json(const lb_diff_report *report)
{
    json_t *routing = json_array();
    for (uint32_t i = 0; i < report->n_routings; i++) {
        const lb_diff_routing *x = &report->routings[i];
        json_t *object = json_pack("{s:I,s:i,s:s,s:I,s:I,s:I,s:I,s:I}", "step", (json_int_t)x->step, "rank", x->rank,
                                   "layer", x->layer, "tokens", (json_int_t)x->tokens, "choices",
                                   (json_int_t)x->choices, "flips", (json_int_t)x->flips, "near_ties",
                                   (json_int_t)x->near_ties, "explained", (json_int_t)x->explained);
        json_object_set_new(object, "share",
                            lb_command_json_number(x->choices ? (double)x->flips / (double)x->choices : 0));
        json_object_set_new(object, "largest_margin", lb_command_json_number(x->largest_margin));
        json_array_append_new(routing, object);
    }
    return routing;
}

/* Elements of what was compared by their distance in ulp: ["0", equal ones], ["2^i", those in [2^i, 2^(i+1))], …,
 * ["inf", farther or not finite]. */
static json_t *ulp_json(const int64_t counts[LB_ULP_BUCKETS])
{
    json_t *bins = json_array();
    int last = LB_ULP_BUCKETS - 2;
    while (last > 0 && !counts[last]) last--;
    for (int i = 0; i <= last && (last || counts[0]); i++)
        json_array_append_new(bins, i ? json_pack("[o, I]", json_sprintf("2^%d", i - 1), (json_int_t)counts[i])
                                      : json_pack("[s, I]", "0", (json_int_t)counts[0]));
    if (counts[LB_ULP_BUCKETS - 1])
        json_array_append_new(bins, json_pack("[s, I]", "inf", (json_int_t)counts[LB_ULP_BUCKETS - 1]));
    return bins;
}

static json_t *ranks_json(uint64_t ranks)
{
    json_t *list = json_array();
    for (int i = 0; i < 64; i++)
        if (ranks >> i & 1) json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *lines_json(const lb_diff_lines *lines)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < lines->n; i++) json_array_append_new(list, json_integer(lines->list[i]));
    return list;
}

/* Places that differ by themselves, each with the second side's op and its effect. */
static json_t *differences_json(const lb_diff_report *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_differences; i++) {
        const lb_diff_difference *difference = &report->differences[i];
        json_t *object = row_json(&difference->row);
        if (!difference->row.n_arguments) json_object_set_new(object, "arguments", json_array());
        json_object_set_new(object, "layer_b", difference->layer_b ? json_string(difference->layer_b) : json_null());
        json_object_set_new(object, "op_b", difference->op_b ? json_string(difference->op_b) : json_null());
        json_object_set_new(object, "lines", lines_json(&difference->lines[0]));
        json_object_set_new(object, "lines_b", lines_json(&difference->lines[1]));
        json_object_set_new(object, "axis", difference->row.tensor ? json_string("source") : json_null());
        json_object_set_new(object, "effect", lb_command_json_number(difference->effect));
        json_object_set_new(object, "times", json_integer(difference->times));
        json_object_set_new(object, "steps", json_integer(difference->steps));
        json_object_set_new(object, "ranks", ranks_json(difference->ranks[0]));
        json_object_set_new(object, "ranks_b", ranks_json(difference->ranks[1]));
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *map_json(const lb_diff_report *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_map; i++)
        json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "first", report->map[i].first, "second",
                                              report->map[i].second, "relation", report->map[i].relation));
    return list;
}

static json_t *report_json(const lb_diff_report *report)
{
    json_t *layers = json_array(), *structure = json_array(), *missing = json_array();
    for (uint32_t i = 0; i < report->n_layers; i++) json_array_append_new(layers, row_json(&report->layers[i]));
    for (uint32_t i = 0; i < report->n_structures; i++) {
        const lb_diff_structure *s = &report->structures[i];
        json_array_append_new(structure, json_pack("{s:I,s:i,s:s,s:s,s:s,s:s}", "step", (json_int_t)s->step, "rank",
                                                   s->rank, "phase", lb_phase_name(s->phase), "layer", s->layer,
                                                   "only_first", s->ops_a, "only_second", s->ops_b));
    }
    for (uint32_t i = 0; i < report->n_missing; i++) json_array_append_new(missing, json_string(report->missing[i]));
    json_t *findings = json_array();
    for (uint32_t i = 0; i < report->n_findings; i++) json_array_append_new(findings, json_string(report->findings[i]));
    json_t *object = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:{s:I,s:I,s:I}}", "verdict", lb_verdict_name(report->verdict),
                               "first", report->has_first ? row_json(&report->first) : json_null(), "earliest",
                               report->has_earliest ? row_json(&report->earliest) : json_null(), "layers", layers,
                               "structure", structure, "missing", missing, "ops", "aligned", (json_int_t)report->ops,
                               "identical", (json_int_t)report->identical, "unseen", (json_int_t)report->unseen);
    json_object_set_new(object, "sources",
                        json_pack("{s:I,s:I}", "aligned", (json_int_t)report->sources, "identical",
                                  (json_int_t)report->sources_identical));
    json_object_set_new(object, "tokens", tokens_json(report));
    json_object_set_new(object, "tokens_approximate", json_boolean(report->tokens_approximate));
    json_object_set_new(object, "routing", routing_json(report));
    json_object_set_new(object, "findings", findings);
    json_object_set_new(object, "implementations", json_boolean(report->implementations));
    json_object_set_new(object, "differences", differences_json(report));
    json_object_set_new(object, "map", map_json(report));
    json_object_set_new(object, "cost",
                        json_pack("{s:I,s:I,s:I,s:I}", "runs", (json_int_t)report->cost.runs, "exact",
                                  (json_int_t)report->exact_runs, "ops", (json_int_t)report->cost.ops, "recorded",
                                  (json_int_t)report->recorded_ops));
    json_object_set_new(object, "ulp_histogram", ulp_json(report->ulp_counts));
    return object;
}

static lb_status print_report_text(const lb_diff_report *report, const char *const *paths, bool all, lb_err *err)
{
    char *text = lb_diff_text(report, paths[0], paths[1], all);
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the text");
    lb_command_print_text(text);
    free(text);
    return LB_OK;
}

static char *steps, *kinds_path, *kind_names, *memory, *html, *map_out;
static char **maps, **noise;
static int exact, all, digests_only, tokens_only, threads;

static const struct poptOption options[] = {
    {"map", 0, POPT_ARG_ARGV, &maps, 0,
     "rename layers of the first side before aligning, or read what --map-out wrote; repeatable",
     "s/PATTERN/REPL/|FILE"},
    {"map-out", 0, POPT_ARG_STRING, &map_out, 0, "write which tensor of the second side is which of the first", "FILE"},
    {"steps", 0, POPT_ARG_STRING, &steps, 0, "only these steps", "A-B"},
    {"noise", 0, POPT_ARG_ARGV, &noise, 0, "another run of the first side: what it differs by is noise; repeatable",
     "CAPTURE"},
    {"kinds", 0, POPT_ARG_STRING, &kinds_path, 0, "kinds of tokens: one integer per token of a step (.npy)", "FILE"},
    {"kind-names", 0, POPT_ARG_STRING, &kind_names, 0, "names of kinds 0, 1, ...", "A,B,..."},
    {"exact", 0, POPT_ARG_NONE, &exact, 0, "exit 0 only when every bit is the same", NULL},
    {"digests", 0, POPT_ARG_NONE, &digests_only, 0, "compare digests and kept bytes only, replay nothing", NULL},
    {"tokens", 0, POPT_ARG_NONE, &tokens_only, 0,
     "log-probabilities of tokens alone, also of token files: as `lastbit parity`", NULL},
    {"all", 0, POPT_ARG_NONE, &all, 0, "list every layer and value, identical ones too", NULL},
    {"memory", 0, POPT_ARG_STRING, &memory, 0, "keep at most this much for exact shadows (4G)", "512M"},
    {"threads", 0, POPT_ARG_INT, &threads, 0, "threads (results do not depend on them)", "N"},
    {"html", 0, POPT_ARG_STRING, &html, 0, "also write the page of `lastbit report`", "FILE"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "diff",
    .synopsis = "CAPTURE CAPTURE",
    .about = "Compares two captures of what should be the same computation. Equal digests are never read. Where bits\n"
             "differ, both sides' programs are replayed exactly, and the verdict says whether they compute the same\n"
             "real function (rounding) or not (diverged), and where that begins.",
    .example = "  lastbit diff samples/clean.lbz samples/dropped-term.lbz\n"
               "  lastbit diff run.lb changed.lb --noise again.lb     # again.lb: a second run of the first",
    .options = options,
    .min_args = 2,
    .max_args = 2,
    .parts = true,
};

static uint32_t count_texts(char **texts)
{
    uint32_t n = 0;
    while (texts && texts[n]) n++;
    return n;
}

static void free_texts(char **texts)
{
    for (uint32_t i = 0; texts && texts[i]; i++) free(texts[i]);
    free(texts);
}

/* ---- the table of tensors ---- */

static lb_status write_table(const lb_command_arguments *arguments, const lb_diff_report *report, lb_err *err)
{
    const uint32_t n_maps = count_texts(maps);
    const char **inputs = calloc((size_t)arguments->n_args + n_maps + 1, sizeof *inputs);
    if (!inputs) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    memcpy(inputs, arguments->args, (size_t)arguments->n_args * sizeof *inputs);
    if (n_maps) memcpy(inputs + arguments->n_args, maps, n_maps * sizeof *inputs);
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = how.shared = true;
    how.inputs = inputs;
    lb_output *out = NULL;
    const lb_status status = lb_output_open(map_out, &how, &out, err);
    free(inputs);
    FILE *file = status == LB_OK ? lb_output_stream(out) : NULL;
    if (file) lb_tensor_map_write_head(file);
    for (uint32_t i = 0; file && i < report->n_map; i++)
        lb_tensor_map_write(file, report->map[i].second, report->map[i].first, report->map[i].relation,
                            !strcmp(report->map[i].relation, "merged"));
    return status == LB_OK ? lb_output_close(out, err) : status;
}

/* What a diff reads: the two sides, other runs of the first, kinds of tokens. */
typedef struct sides {
    lb_capture *a, *b, **noise;
    uint32_t n_noise;
    int64_t *kinds;
    const char **names; /* into kind_names, which is cut at its commas */
    lb_command_map map;
} sides;

static lb_status read_kinds(lb_diff_options *options, sides *sides, lb_err *err)
{
    lb_capture *file = NULL;
    const lb_program *program;
    lb_tensor tensor;
    LB_TRY(lb_capture_open(kinds_path, &file, err));
    lb_status status = lb_capture_program(file, 0, 0, &program, err);
    if (status == LB_OK && program->n_values != 1)
        status = lb_fail(err, LB_ERR_CORRUPT, "--kinds %s: expected one array of integers (.npy)", kinds_path);
    if (status == LB_OK) status = lb_capture_value(file, program, 0, &tensor, err);
    if (status == LB_OK && !lb_dtype_is_integer(tensor.dtype))
        status = lb_fail(err, LB_ERR_CORRUPT, "--kinds %s: expected integers, not %s", kinds_path,
                         lb_dtype_name(tensor.dtype));
    int64_t done = 0, n = status == LB_OK ? lb_layout_numel(&tensor.layout) : 0;
    double *wide = calloc((size_t)n + 1, sizeof *wide);
    sides->kinds = malloc((size_t)n * sizeof *sides->kinds + 1);
    if (status == LB_OK && (!wide || !sides->kinds)) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        for (lb_rows r = lb_rows_of(&tensor.layout); lb_rows_next(&r); done += r.count)
            lb_load_f64_strided(wide + done, tensor.dtype,
                                (char *)tensor.data + r.offset * (int64_t)(lb_dtype_bits(tensor.dtype) / 8), r.stride,
                                (size_t)r.count);
        for (int64_t i = 0; i < n; i++) sides->kinds[i] = (int64_t)wide[i];
        options->kinds = sides->kinds, options->n_kinds = n;
    }
    free(wide);
    lb_capture_close(file);
    return status;
}

static lb_status read_kind_names(lb_diff_options *options, sides *sides, lb_err *err)
{
    sides->names = calloc(strlen(kind_names) + 1, sizeof *sides->names);
    if (!sides->names) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (char *at = kind_names; at;) {
        char *comma = strchr(at, ',');
        if (comma) *comma = '\0';
        sides->names[options->n_kind_names++] = at;
        at = comma ? comma + 1 : NULL;
    }
    options->kind_names = sides->names;
    return LB_OK;
}

static lb_status open_sides(const lb_command_arguments *arguments, lb_diff_options *options, sides *sides, lb_err *err)
{
    uint32_t n = count_texts(noise);
    sides->noise = calloc(n + 1, sizeof *sides->noise);
    if (!sides->noise) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(lb_capture_open(arguments->args[0], &sides->a, err));
    LB_TRY(lb_capture_open(arguments->args[1], &sides->b, err));
    for (; sides->n_noise < n; sides->n_noise++)
        LB_TRY(lb_capture_open(noise[sides->n_noise], &sides->noise[sides->n_noise], err));
    options->noise = sides->noise, options->n_noise = sides->n_noise;
    if (kinds_path) LB_TRY(read_kinds(options, sides, err));
    return kind_names ? read_kind_names(options, sides, err) : LB_OK;
}

static void close_sides(sides *sides)
{
    lb_capture_close(sides->a), lb_capture_close(sides->b);
    lb_command_map_release(&sides->map);
    for (uint32_t i = 0; sides->noise && i < sides->n_noise; i++) lb_capture_close(sides->noise[i]);
    free(sides->noise), free(sides->kinds), free(sides->names);
}

static int exit_code(const lb_diff_report *report)
{
    bool same = report->verdict == LB_VERDICT_IDENTICAL;
    if (exact) return same && report->n_structures == 0 ? LB_EXIT_SAME : LB_EXIT_DIFFERENT;
    bool clean =
        report->verdict != LB_VERDICT_DIVERGED && report->verdict != LB_VERDICT_MISSING && report->n_missing == 0;
    return clean ? LB_EXIT_SAME : LB_EXIT_DIFFERENT;
}

static int run_diff(const lb_command_arguments *arguments, lb_diff_options *options)
{
    lb_err err = LB_ERR_INIT;
    sides sides = {0};
    lb_diff_report *report = NULL;
    lb_status status = open_sides(arguments, options, &sides, &err);
    if (status == LB_OK) status = lb_command_map_split(maps, &sides.map, &err);
    options->maps = sides.map.rules, options->n_maps = sides.map.n_rules, options->table = sides.map.table;
    if (status == LB_OK) status = lb_diff_run(sides.a, sides.b, options, &report, &err);
    lb_command_progress_end();
    if (status == LB_OK && map_out) status = write_table(arguments, report, &err);
    if (status == LB_OK && html) status = lb_command_write_page("diff", report_json(report), html, &err);
    if (status == LB_OK && arguments->json) lb_command_print_json("diff", report_json(report));
    if (status == LB_OK && !arguments->json) status = print_report_text(report, arguments->args, all, &err);
    int rc = status == LB_OK            ? exit_code(report)
             : status == LB_ERR_INVALID ? lb_command_misused("diff", "%s", err.message)
                                        : lb_command_fail("diff", &err);
    lb_diff_report_free(report);
    close_sides(&sides);
    return rc;
}

/* `lastbit parity A B` */
static int run_tokens(const lb_command_arguments *arguments)
{
    const char *words[] = {"parity", arguments->args[0], arguments->args[1], arguments->json ? "--json" : NULL, NULL};
    return lb_cmd_parity(arguments->json ? 4 : 3, words);
}

int lb_cmd_diff(int argc, const char **argv)
{
    lb_command_arguments arguments;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    lb_diff_options options = LB_DIFF_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    if (tokens_only) {
        rc = run_tokens(&arguments);
        lb_command_arguments_release(&arguments);
        return rc;
    }
    options.digests_only = digests_only, options.parts = lb_command_parts();
    if (threads > 0) lb_replay_threads(threads);
    if (!arguments.json) options.progress = lb_command_progress;
    if (steps && !lb_command_parse_steps(steps, &options.first_step, &options.last_step))
        rc = lb_command_misused("diff", "--steps %s: expected N or A-B", steps);
    else if (lb_command_parse_memory(memory, &options.memory_bytes, &err) != LB_OK)
        rc = lb_command_misused("diff", "%s", err.message);
    else if (threads < 0)
        rc = lb_command_misused("diff", "--threads %d: expected a number of threads", threads);
    else
        rc = run_diff(&arguments, &options);
    free_texts(maps), free_texts(noise);
    free(steps), free(kinds_path), free(kind_names), free(memory), free(html), free(map_out);
    lb_command_arguments_release(&arguments);
    return rc;
}
