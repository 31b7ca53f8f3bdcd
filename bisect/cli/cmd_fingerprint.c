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
        "Prints 128 bits of each tensor's numbers, each with its place in the whole, that add up over shards: FSDP "
        "over 8 ranks, tensor parallelism by rows or by columns and one file agree. FILE is a checkpoint as `audit` "
        "reads it (safetensors, an index, a distributed checkpoint, torch.save, GGUF, folders of ranks' files), a "
        "capture, "
        "whose parameters are taken as a step begins with them, or a table that --json or lastbit.torch.fingerprint "
        "wrote. A quantised tensor of GGUF has none, and is told as such.\n"
        "`fingerprint` is of dtype and bits; `numbers` of the numbers alone, so that bf16 and its f32 copy agree.\n"
        "\n"
        "Against another one, tensors meet by names (wrappers' prefixes and frameworks' spellings seen through), then "
        "by fingerprints, then by their numbers where both sides hold them. Each is the same, a cast, under another "
        "name, in another layout (none of these is a finding), or it did not arrive, is old (an earlier FILE's), late "
        "(old, and right in a later OTHER), laid out as its siblings are not, or of other numbers. With as many "
        "OTHERs as FILEs the first is compared with the first, and so on: the weight syncs of a run.\n"
        "\n"
        "Exit code 1 when a tensor did not arrive as it was sent, 125 when nothing else is wrong and one of them "
        "cannot be told.",
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

static lb_status open_tables(const char **paths, const lb_fingerprint_table_options *o, tables *t, lb_err *err)
{
    uint32_t n = 0;
    while (paths && paths[n]) n++;
    t->list = calloc(n + 1u, sizeof *t->list);
    if (!t->list) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    t->room = n;
    /* A part does its share of every file, though it sees none as a whole. */
    bool partial = false;
    for (uint32_t i = 0; i < n; i++) {
        lb_err why = LB_ERR_INIT;
        const lb_status status = lb_fingerprint_table_open(paths[i], o, &t->list[i], &why);
        partial |= status == LB_ERR_PARTIAL;
        if (status != LB_OK && status != LB_ERR_PARTIAL) return lb_fail(err, status, "%s", why.message);
    }
    t->n = n;
    return partial ? lb_fail(err, LB_ERR_PARTIAL, "other parts have the rest") : LB_OK;
}

static void close_tables(tables *t)
{
    for (uint32_t i = 0; t->list && i < t->room; i++) lb_fingerprint_table_close(t->list[i]);
    free(t->list);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *fingerprint_json(const lb_fingerprint_row *row, lb_fingerprint f)
{
    char text[33];
    if (row && row->lacks) return json_null();
    lb_fingerprint_format(f, text);
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

static json_t *tables_json(const tables *t, bool rows)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n; i++) {
        const lb_fingerprint_table *table = t->list[i];
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

static json_t *counts_json(const lb_fingerprint_comparison *c)
{
    json_t *counts = c ? json_object() : json_null();
    for (int kind = 0; c && kind < LB_FINGERPRINT_KIND_COUNT; kind++) {
        int n = 0;
        for (uint32_t i = 0; i < c->n; i++) n += c->matches[i].kind == (lb_fingerprint_kind)kind;
        json_object_set_new(counts, lb_fingerprint_kind_name((lb_fingerprint_kind)kind), json_integer(n));
    }
    return counts;
}

/* All that is not the same, or everything. */
static json_t *matches_json(const lb_fingerprint_comparison *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; c && i < c->n; i++) {
        const lb_fingerprint_match *m = &c->matches[i];
        if (m->kind == LB_FINGERPRINT_IS_SAME && !all) continue;
        json_array_append_new(
            list, json_pack("{s:s,s:b,s:s?,s:s?,s:i,s:i,s:o,s:o,s:s}", "kind", lb_fingerprint_kind_name(m->kind),
                            "finding", lb_fingerprint_kind_is_finding(m->kind), "tensor", m->name, "other", m->partner,
                            "file", (int)m->file, "against", (int)m->against, "earlier", number_or_null(m->earlier),
                            "later", number_or_null(m->later), "how", m->how));
    }
    return list;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_table(const lb_fingerprint_table *t)
{
    char text[33];
    size_t width = 4;
    for (uint32_t i = 0; i < t->n; i++)
        if (strlen(t->rows[i].name) > width && strlen(t->rows[i].name) < 80) width = strlen(t->rows[i].name);
    lb_fingerprint_format(t->sum, text);
    printf("%s", t->path);
    if (t->step != INT64_MIN) printf(", step %" PRId64, t->step);
    printf(": %" PRIu32 " tensor%s, sum %s\n", t->n, t->n == 1 ? "" : "s", text);
    for (uint32_t i = 0; i < t->n; i++) {
        const lb_fingerprint_row *row = &t->rows[i];
        lb_fingerprint_format(row->raw, text);
        printf("  %-*s  %-6s  %s  ", (int)width, row->name, lb_dtype_name(row->dtype), row->lacks ? row->lacks : text);
        lb_command_print_shape(&row->shape);
        printf("\n");
    }
}

static void print_match(const lb_fingerprint_match *m, const tables *files, const tables *others)
{
    printf("    %s", m->name ? m->name : m->partner);
    if (m->name && m->partner && strcmp(m->name, m->partner) != 0) printf(" (%s)", m->partner);
    if (m->earlier != UINT32_MAX) printf(": has the numbers of %s", files->list[m->earlier]->path);
    if (m->later != UINT32_MAX) printf("; the right ones are in %s", others->list[m->later]->path);
    if (*m->how) printf(": %s", m->how);
    printf("\n");
}

enum { SHOWN = 8 };

static void print_kind(const lb_fingerprint_comparison *c, lb_fingerprint_kind kind, uint32_t against,
                       const tables *files, const tables *others)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->matches[i].kind == kind && c->matches[i].against == against) n++;
    if (!n) return;
    printf("  ");
    for (const char *at = lb_fingerprint_kind_name(kind); *at; at++) putchar(*at == '_' ? ' ' : *at);
    printf(": %" PRIu32 " tensor%s; %s\n", n, n == 1 ? "" : "s", lb_fingerprint_kind_text(kind));
    if (kind == LB_FINGERPRINT_IS_SAME || (kind == LB_FINGERPRINT_IS_CAST && !all)) return;
    uint32_t shown = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->matches[i].kind != kind || c->matches[i].against != against) continue;
        if (shown++ < SHOWN || all) print_match(&c->matches[i], files, others);
    }
    if (shown > SHOWN && !all) printf("    and %" PRIu32 " more; --all names them\n", shown - SHOWN);
}

/* Findings first, the gravest before others. */
static void print_comparison(const lb_fingerprint_comparison *c, const char *verdict, const tables *files,
                             const tables *others)
{
    static const lb_fingerprint_kind order[] = {
        LB_FINGERPRINT_IS_MISSING, LB_FINGERPRINT_IS_OLD,     LB_FINGERPRINT_IS_LATE,  LB_FINGERPRINT_IS_NUMBERS,
        LB_FINGERPRINT_IS_ODD,     LB_FINGERPRINT_IS_UNKNOWN, LB_FINGERPRINT_IS_ADDED, LB_FINGERPRINT_IS_LAYOUT,
        LB_FINGERPRINT_IS_NAME,    LB_FINGERPRINT_IS_CAST,    LB_FINGERPRINT_IS_SAME};
    for (uint32_t j = 0; j < others->n; j++) {
        uint32_t findings = 0, file = files->n - 1;
        for (uint32_t i = 0; i < c->n; i++) {
            if (c->matches[i].against != j) continue;
            findings += lb_fingerprint_kind_is_finding(c->matches[i].kind), file = c->matches[i].file;
        }
        const lb_fingerprint_table *a = files->list[file], *b = others->list[j];
        printf("%s: %s of %s: %" PRIu32 " finding%s\n",
               others->n == 1 ? verdict
               : findings     ? "different"
                              : "same",
               b->path, a->path, findings, findings == 1 ? "" : "s");
        for (size_t k = 0; k < sizeof order / sizeof *order; k++) print_kind(c, order[k], j, files, others);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool any_row(const tables *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t k = 0; k < t->list[i]->n; k++)
            if (!t->list[i]->rows[k].lacks) return true;
    return false;
}

static int answer(const lb_command_arguments *arguments, const tables *files, const tables *others,
                  const lb_fingerprint_comparison *c)
{
    int code = c && c->n_findings ? LB_EXIT_DIFFERENT : c && c->n_unknown ? LB_EXIT_UNTESTABLE : LB_EXIT_SAME;
    if (!any_row(files)) code = LB_EXIT_UNTESTABLE;
    const char *verdict = code == LB_EXIT_SAME ? "same" : code == LB_EXIT_DIFFERENT ? "different" : "undecided";
    if (arguments->json) {
        json_t *object =
            json_pack("{s:s?,s:o,s:o,s:o,s:o}", "verdict", c ? verdict : NULL, "tables", tables_json(files, true),
                      "others", tables_json(others, false), "counts", counts_json(c), "matches", matches_json(c));
        lb_command_print_json("fingerprint", object);
    } else if (c) {
        print_comparison(c, verdict, files, others);
    } else {
        for (uint32_t i = 0; i < files->n; i++) print_table(files->list[i]);
    }
    return code;
}

static int run(const lb_command_arguments *arguments, const lb_fingerprint_table_options *o)
{
    lb_err err = LB_ERR_INIT;
    tables files = {0}, others = {0};
    lb_fingerprint_comparison *c = NULL;
    lb_status status = open_tables(arguments->args, o, &files, &err);
    if (status == LB_OK || status == LB_ERR_PARTIAL) {
        const lb_status second = open_tables(against, o, &others, &err);
        if (status == LB_OK || second != LB_OK) status = second;
    }
    if (status == LB_OK && others.n)
        status = lb_fingerprint_table_compare(files.list, files.n, others.list, others.n, o, &c, &err);
    lb_command_progress_end();
    const int code = status == LB_OK ? answer(arguments, &files, &others, c) : lb_command_fail("fingerprint", &err);
    lb_fingerprint_comparison_free(c);
    close_tables(&files), close_tables(&others);
    return code;
}

int lb_cmd_fingerprint(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_fingerprint_table_options o = LB_FINGERPRINT_TABLE_OPTIONS_INIT;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    if (step_text && !lb_command_parse_integer(step_text, &o.step)) {
        code = lb_command_misused("fingerprint", "--step %s: expected a step", step_text);
    } else {
        o.rounded = rounded, o.parts = lb_command_parts();
        if (!arguments.json) o.progress = lb_command_progress;
        code = run(&arguments, &o);
    }
    free(step_text);
    lb_command_arguments_release(&arguments);
    return code;
}
