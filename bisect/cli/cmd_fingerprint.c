/* lastbit fingerprint FILE…: fingerprints of tensors that survive sharding, and whether what was sent arrived. The
 * engine is in bisect/inspection/fingerprints. */
#include "command/command_line.h"
#include "command/command_parts.h"

#include <lastbit/fingerprint_table.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char **against;
static char *step_text;
static int rounded, all;

static const struct poptOption options[] = {
    {"against", 0, POPT_ARG_ARGV, (void *)&against, 0, "compare with this one (several times: one for each FILE)",
     "OTHER"},
    {"step", 0, POPT_ARG_STRING, &step_text, 0, "of captures: the step whose parameters are taken (the first)", "N"},
    {"rounded", 0, POPT_ARG_NONE, &rounded, 0,
     "also of f32 and f64 tensors as bf16 and f16, so that a table knows its rounded copy", NULL},
    {"all", 0, POPT_ARG_NONE, &all, 0, "name every tensor, not the first few of each kind", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "fingerprint",
    .synopsis = "FILE...",
    .about =
        "Prints 128 bits for each tensor, which can be added up over its shards: FSDP over 8 ranks, "
        "tensor parallelism by rows or by columns and one file give the same. "
        "FILE is a checkpoint as `audit` reads it (safetensors, an index, a distributed checkpoint, torch.save, "
        "GGUF, folders of ranks' files), a capture, whose parameters are taken as a step begins with them, "
        "or a table that --json or lastbit.torch.fingerprint wrote. A quantised tensor of GGUF has none, "
        "and is reported as such. `fingerprint` is of dtype and bits; `numbers` of the numbers alone, "
        "so that a bf16 tensor and its f32 copy agree.\n"
        "\n"
        "With --against, tensors are matched by names (wrappers' prefixes and frameworks' spellings are known), "
        "then by fingerprints, then by their numbers where both sides hold them. Each is the same, a cast, "
        "under a different name, in a different layout (none of these is a finding), or it did not arrive, "
        "is old (an earlier FILE's), late (old, and right in a later OTHER), laid out differently from its siblings, "
        "or has different numbers. With as many OTHERs as FILEs the first is compared with the first, and so on: "
        "the weight syncs of a run.\n"
        "\n"
        "Exit code 1 when a tensor did not arrive as it was sent, "
        "125 when nothing else is wrong and one of them cannot be told.",
    .example = "  lastbit fingerprint checkpoint-500/\n"
               "  lastbit fingerprint fsdp-8/ --against tensor-parallel-4/\n"
               "  lastbit fingerprint sent-1.json sent-2.json --against server-1.json --against server-2.json",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .parts = true,
};

typedef struct tables {
    lb_fingerprint_table **list;
    uint32_t n, room; /* n: all of them are open */
} tables;

static lb_status open_tables(const char **paths, const lb_fingerprint_table_options *options, tables *tables,
                             lb_err *err)
{
    uint32_t n = 0;
    while (paths && paths[n]) n++;
    tables->list = calloc(n + 1u, sizeof *tables->list);
    if (!tables->list) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    tables->room = n;
    /* A part does its share of every file, though it sees none as a whole. */
    bool partial = false;
    for (uint32_t i = 0; i < n; i++) {
        lb_err why = LB_ERR_INIT;
        const lb_status status = lb_fingerprint_table_open(paths[i], options, &tables->list[i], &why);
        partial |= status == LB_ERR_PARTIAL;
        if (status != LB_OK && status != LB_ERR_PARTIAL) return lb_fail(err, status, "%s", why.message);
    }
    tables->n = n;
    return partial ? lb_fail(err, LB_ERR_PARTIAL, "other parts have the rest") : LB_OK;
}

static void close_tables(tables *tables)
{
    for (uint32_t i = 0; tables->list && i < tables->room; i++) lb_fingerprint_table_close(tables->list[i]);
    free(tables->list);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *fingerprint_json(const lb_fingerprint_row *row, lb_fingerprint fingerprint)
{
    char text[33];
    if (row && row->lacks) return json_null();
    lb_fingerprint_format(fingerprint, text);
    return json_string(text);
}

static json_t *row_json(const lb_fingerprint_row *row)
{
    json_t *shape = json_array(), *narrow = json_array();
    for (int d = 0; d < row->shape.ndim; d++) json_array_append_new(shape, json_integer(row->shape.shape[d]));
    for (int k = 0; k < LB_FINGERPRINT_NARROW; k++)
        if (row->has_rounded[k])
            json_array_append_new(narrow, json_pack("{s:s,s:o}", "dtype", lb_dtype_name(lb_fingerprint_table_narrow(k)),
                                                    "numbers", fingerprint_json(row, row->rounded[k])));
    return json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:b,s:s?,s:n}", "name", row->name, "dtype", lb_dtype_name(row->dtype),
                     "shape", shape, "fingerprint", fingerprint_json(row, row->raw), "numbers",
                     fingerprint_json(row, row->numbers), "rounded", narrow, "constant", row->constant, "lacks",
                     row->lacks, "part");
}

static json_t *tables_json(const tables *tables, bool rows)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < tables->n; i++) {
        const lb_fingerprint_table *table = tables->list[i];
        json_t *tensors = json_array();
        for (uint32_t k = 0; k < table->n && rows; k++) json_array_append_new(tensors, row_json(&table->rows[k]));
        json_array_append_new(list,
                              json_pack("{s:s,s:o,s:i,s:o,s:o}", "path", table->path, "step",
                                        table->step == INT64_MIN ? json_null() : json_integer(table->step), "count",
                                        (int)table->n, "sum", fingerprint_json(NULL, table->sum), "tensors", tensors));
    }
    return list;
}

static json_t *number_or_null(uint32_t n)
{
    return n == UINT32_MAX ? json_null() : json_integer(n);
}

static json_t *counts_json(const lb_fingerprint_comparison *comparison)
{
    json_t *counts = comparison ? json_object() : json_null();
    for (int kind = 0; comparison && kind < LB_FINGERPRINT_KIND_COUNT; kind++) {
        int n = 0;
        for (uint32_t i = 0; i < comparison->n; i++) n += comparison->matches[i].kind == (lb_fingerprint_kind)kind;
        json_object_set_new(counts, lb_fingerprint_kind_name((lb_fingerprint_kind)kind), json_integer(n));
    }
    return counts;
}

/* All that is not the same, or everything. */
static json_t *matches_json(const lb_fingerprint_comparison *comparison)
{
    json_t *list = json_array();
    for (uint32_t i = 0; comparison && i < comparison->n; i++) {
        const lb_fingerprint_match *match = &comparison->matches[i];
        if (match->kind == LB_FINGERPRINT_IS_SAME && !all) continue;
        json_array_append_new(
            list, json_pack("{s:s,s:b,s:s?,s:s?,s:i,s:i,s:o,s:o,s:s}", "kind", lb_fingerprint_kind_name(match->kind),
                            "finding", lb_fingerprint_kind_is_finding(match->kind), "tensor", match->name, "other",
                            match->partner, "file", (int)match->file, "against", (int)match->against, "earlier",
                            number_or_null(match->earlier), "later", number_or_null(match->later), "how", match->how));
    }
    return list;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_table(const lb_fingerprint_table *table)
{
    char text[33];
    size_t width = 4;
    for (uint32_t i = 0; i < table->n; i++)
        if (strlen(table->rows[i].name) > width && strlen(table->rows[i].name) < 80)
            width = strlen(table->rows[i].name);
    lb_fingerprint_format(table->sum, text);
    printf("%s", table->path);
    if (table->step != INT64_MIN) printf(", step %" PRId64, table->step);
    printf(": %" PRIu32 " tensor%s, sum %s\n", table->n, table->n == 1 ? "" : "s", text);
    for (uint32_t i = 0; i < table->n; i++) {
        const lb_fingerprint_row *row = &table->rows[i];
        lb_fingerprint_format(row->raw, text);
        printf("  %-*s  %-6s  %s  ", (int)width, row->name, lb_dtype_name(row->dtype), row->lacks ? row->lacks : text);
        lb_command_print_shape(&row->shape);
        printf("\n");
    }
}

static void print_match(const lb_fingerprint_match *match, const tables *files, const tables *others)
{
    printf("    %s", match->name ? match->name : match->partner);
    if (match->name && match->partner && strcmp(match->name, match->partner) != 0) printf(" (%s)", match->partner);
    if (match->earlier != UINT32_MAX) printf(": has the numbers of %s", files->list[match->earlier]->path);
    if (match->later != UINT32_MAX) printf("; the right ones are in %s", others->list[match->later]->path);
    if (*match->how) printf(": %s", match->how);
    printf("\n");
}

enum { SHOWN = 8 };

static void print_kind(const lb_fingerprint_comparison *comparison, lb_fingerprint_kind kind, uint32_t against,
                       const tables *files, const tables *others)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < comparison->n; i++)
        if (comparison->matches[i].kind == kind && comparison->matches[i].against == against) n++;
    if (!n) return;
    printf("  ");
    for (const char *at = lb_fingerprint_kind_name(kind); *at; at++) putchar(*at == '_' ? ' ' : *at);
    printf(": %" PRIu32 " tensor%s; %s\n", n, n == 1 ? "" : "s", lb_fingerprint_kind_text(kind));
    if (kind == LB_FINGERPRINT_IS_SAME || (kind == LB_FINGERPRINT_IS_CAST && !all)) return;
    uint32_t shown = 0;
    for (uint32_t i = 0; i < comparison->n; i++) {
        if (comparison->matches[i].kind != kind || comparison->matches[i].against != against) continue;
        if (shown++ < SHOWN || all) print_match(&comparison->matches[i], files, others);
    }
    if (shown > SHOWN && !all) printf("    and %" PRIu32 " more; --all names them\n", shown - SHOWN);
}

/* Findings first, the gravest before others. */
static void print_comparison(const lb_fingerprint_comparison *comparison, const char *verdict, const tables *files,
                             const tables *others)
{
    static const lb_fingerprint_kind order[] = {
        LB_FINGERPRINT_IS_MISSING, LB_FINGERPRINT_IS_OLD,     LB_FINGERPRINT_IS_LATE,  LB_FINGERPRINT_IS_NUMBERS,
        LB_FINGERPRINT_IS_ODD,     LB_FINGERPRINT_IS_UNKNOWN, LB_FINGERPRINT_IS_ADDED, LB_FINGERPRINT_IS_LAYOUT,
        LB_FINGERPRINT_IS_NAME,    LB_FINGERPRINT_IS_CAST,    LB_FINGERPRINT_IS_SAME};
    for (uint32_t j = 0; j < others->n; j++) {
        uint32_t findings = 0, file = files->n - 1;
        for (uint32_t i = 0; i < comparison->n; i++) {
            if (comparison->matches[i].against != j) continue;
            findings += lb_fingerprint_kind_is_finding(comparison->matches[i].kind), file = comparison->matches[i].file;
        }
        const lb_fingerprint_table *a = files->list[file], *b = others->list[j];
        printf("%s: %s of %s: %" PRIu32 " finding%s\n",
               others->n == 1 ? verdict
               : findings     ? "different"
                              : "same",
               b->path, a->path, findings, findings == 1 ? "" : "s");
        for (size_t k = 0; k < sizeof order / sizeof *order; k++) print_kind(comparison, order[k], j, files, others);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool any_row(const tables *tables)
{
    for (uint32_t i = 0; i < tables->n; i++)
        for (uint32_t k = 0; k < tables->list[i]->n; k++)
            if (!tables->list[i]->rows[k].lacks) return true;
    return false;
}

static int answer(const lb_command_arguments *arguments, const tables *files, const tables *others,
                  const lb_fingerprint_comparison *comparison)
{
    int code = comparison && comparison->n_findings  ? LB_EXIT_DIFFERENT
               : comparison && comparison->n_unknown ? LB_EXIT_UNTESTABLE
                                                     : LB_EXIT_SAME;
    if (!any_row(files)) code = LB_EXIT_UNTESTABLE;
    const char *verdict = code == LB_EXIT_SAME ? "same" : code == LB_EXIT_DIFFERENT ? "different" : "undecided";
    if (arguments->json) {
        json_t *object = json_pack("{s:s?,s:o,s:o,s:o,s:o}", "verdict", comparison ? verdict : NULL, "tables",
                                   tables_json(files, true), "others", tables_json(others, false), "counts",
                                   counts_json(comparison), "matches", matches_json(comparison));
        lb_command_print_json("fingerprint", object);
    } else if (comparison) {
        print_comparison(comparison, verdict, files, others);
    } else {
        for (uint32_t i = 0; i < files->n; i++) print_table(files->list[i]);
    }
    return code;
}

static int run(const lb_command_arguments *arguments, const lb_fingerprint_table_options *options)
{
    lb_err err = LB_ERR_INIT;
    tables files = {0}, others = {0};
    lb_fingerprint_comparison *comparison = NULL;
    lb_status status = open_tables(arguments->args, options, &files, &err);
    if (status == LB_OK || status == LB_ERR_PARTIAL) {
        const lb_status second = open_tables(against, options, &others, &err);
        if (status == LB_OK || second != LB_OK) status = second;
    }
    if (status == LB_OK && others.n)
        status = lb_fingerprint_table_compare(files.list, files.n, others.list, others.n, options, &comparison, &err);
    lb_command_progress_end();
    const int code =
        status == LB_OK ? answer(arguments, &files, &others, comparison) : lb_command_fail("fingerprint", &err);
    lb_fingerprint_comparison_free(comparison);
    close_tables(&files), close_tables(&others);
    return code;
}

int lb_cmd_fingerprint(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_fingerprint_table_options options = LB_FINGERPRINT_TABLE_OPTIONS_INIT;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    if (step_text && !lb_command_parse_integer(step_text, &options.step)) {
        code = lb_command_misused("fingerprint", "--step %s: expected a step", step_text);
    } else {
        options.rounded = rounded, options.parts = lb_command_parts();
        if (!arguments.json) options.progress = lb_command_progress;
        code = run(&arguments, &options);
    }
    free(step_text);
    lb_command_arguments_release(&arguments);
    return code;
}
