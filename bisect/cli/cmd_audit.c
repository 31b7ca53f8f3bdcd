/* lastbit audit CKPT: a checkpoint or an adapter by itself, against another, merged against online. */
#include "command/command_line.h"
#include "command/command_map.h"
#include "command/command_parts.h"

#include "base/array.h"
#include "base/hash.h"
#include <lastbit/audit.h>
#include <lastbit/output.h>
#include <lastbit/tensor_map.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static char *expect, *against, *base, *merged, *inputs, *adapter, *html, *map_out;
static char **maps;
static int restart, rows;
static long long seed;

static const struct poptOption options[] = {
    {"against", 0, POPT_ARG_STRING, &against, 0, "compare every tensor with this checkpoint's", "CKPT"},
    {"map", 0, POPT_ARG_ARGV, (void *)&maps, 0,
     "rename tensors (of an adapter: modules) of CKPT first (PCRE2; a trailing g: all matches); "
     "with --against also a table that --map-out wrote; repeatable",
     "'s/PATTERN/REPL/'|FILE"},
    {"map-out", 0, POPT_ARG_STRING, &map_out, 0, "with --against: write which of its tensors is which of CKPT's",
     "FILE"},
    {"expect", 0, POPT_ARG_STRING, &expect, 0, "the names and shapes that should be there", "CKPT"},
    {"adapter", 0, POPT_ARG_STRING, &adapter, 0, "a LoRA adapter, in CKPT's place", "DIR"},
    {"base", 0, POPT_ARG_STRING, &base, 0, "what an adapter adds to: shapes, and online against merged", "CKPT"},
    {"merged", 0, POPT_ARG_STRING, &merged, 0, "ask how this checkpoint was merged from --base and the adapter",
     "CKPT"},
    {"inputs", 0, POPT_ARG_STRING, &inputs, 0,
     "inputs of the adapted layers, [rows, features], by module name or for all (default: unit normal)", "FILE"},
    {"seed", 0, POPT_ARG_LONGLONG, &seed, 0, "of the unit normal inputs (default: 0)", "N"},
    {"rows", 0, POPT_ARG_INT, &rows, 0, "how many rows of them (default: 16)", "N"},
    {"html", 0, POPT_ARG_STRING, &html, 0, "also write the page of `lastbit report`", "FILE"},
    {"restart", 0, POPT_ARG_NONE, &restart, 0, "ask for everything that an exact restart needs", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "audit",
    .synopsis = "[CKPT]",
    .about =
        "Says whether a checkpoint or an adapter holds what was trained. CKPT is safetensors (one file, "
        "or a folder with an index), a torch distributed checkpoint, torch.save files, GGUF, "
        "or a folder of files of several ranks (mp_rank_00, rank-0, adapter_model-00000-of-00002). "
        "Quantised tensors of GGUF are counted, not judged.\n"
        "By itself: keys that lack or come twice, shards that are absent or bit-equal, "
        "parts that do not tile their tensor, a whole tensor with a part that is zero or there twice, "
        "NaN and infinity, tensors that are zero, constant, dead, "
        "fresh from an initialiser or of another dtype where their siblings in other layers are not, tensors, rows, "
        "heads and experts off their siblings, fp8 without scales, files that end too early, "
        "optimizer slots that lack. --restart also asks for what the next step needs.\n"
        "Against another checkpoint each tensor is identical, a cast, a rounding, or differs; "
        "tensors meet by their numbers, whatever their names and layouts, "
        "and a layer that was converted as its siblings were not is a finding.\n"
        "Of an adapter, W x + s B(A x) is computed beside (W + s B A) x, in f32, f16, bf16 and e4m3.\n"
        "Exit code 1 when something was found. Nothing in a checkpoint is executed.",
    .example = "  lastbit audit checkpoint-500/\n"
               "  lastbit audit exported/ --against checkpoint-500/ --map 's/^module\\.//'\n"
               "  lastbit audit --adapter lora/ --base model/ --merged merged/",
    .options = options,
    .min_args = 0,
    .max_args = 1,
    .parts = true,
};

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Findings that one cause gives: which tensors, as patterns ("layers.*.mlp.up_proj.weight"), and how many of how
 * many. */
enum { MOST_PATTERNS = 4 };
typedef struct group {
    const lb_audit_finding *first;
    const char *last; /* tensor that was counted */
    uint32_t findings, tensors, patterns;
    uint64_t of;
    char pattern[MOST_PATTERNS][160];
} group;

/* A name with "*" for its numbers between dots. */
static void star(const char *name, char *to, size_t room)
{
    size_t n = 0;
    for (const char *at = name; *at && n + 2 < room;) {
        const size_t word = strcspn(at, "."), digits = strspn(at, "0123456789");
        if (word && digits == word)
            to[n++] = '*';
        else
            for (size_t i = 0; i < word && n + 2 < room; i++) to[n++] = at[i];
        at += word;
        if (*at) to[n++] = *at++;
    }
    to[n] = '\0';
}

static void add_pattern(group *group, const char *tensor)
{
    char pattern[160];
    star(tensor, pattern, sizeof pattern);
    for (uint32_t i = 0; i < group->patterns && i < MOST_PATTERNS; i++)
        if (!strcmp(group->pattern[i], pattern)) return;
    if (group->patterns < MOST_PATTERNS) memcpy(group->pattern[group->patterns], pattern, sizeof pattern);
    group->patterns++;
}

/* One more finding of the group, behind its first. */
static void add_finding(group *group, const lb_audit_finding *finding)
{
    if (!group->first) group->first = finding;
    group->findings++;
    if (!finding->tensor || (group->last && !strcmp(group->last, finding->tensor))) return;
    group->last = finding->tensor, group->tensors++;
    add_pattern(group, finding->tensor);
}

/* Tensors that lack are none of the checkpoint's: with them it would have as many more. */
static void set_whole(group *group, const lb_audit_report *report)
{
    const lb_audit_kind kind = group->first->kind;
    const bool lacks =
        kind == LB_AUDIT_MISSING || kind == LB_AUDIT_ADAPTER_PARTNER || kind == LB_AUDIT_OPTIMIZER_MISSING;
    group->of = report->tensors + (lacks ? group->tensors : 0);
}

static int by_gravity_and_place(const void *a, const void *b)
{
    const group *x = a, *y = b;
    const uint32_t left = lb_audit_kind_gravity(x->first->kind), right = lb_audit_kind_gravity(y->first->kind);
    if (left != right) return left < right ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* The groups of a report, the gravest first; malloc'ed, NULL: out of memory. */
static group *list_groups(const lb_audit_report *report, uint32_t *n)
{
    group *groups = calloc(report->n_groups + 1u, sizeof *groups);
    *n = 0;
    for (uint32_t i = 0; groups && i < report->n_findings; i++)
        add_finding(&groups[report->findings[i].group], &report->findings[i]);
    for (uint32_t i = 0; groups && i < report->n_groups; i++)
        if (groups[i].first) set_whole(&groups[i], report), groups[(*n)++] = groups[i];
    if (groups) qsort(groups, *n, sizeof *groups, by_gravity_and_place);
    return groups;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *text(const char *words)
{
    return words ? json_string(words) : json_null();
}

static json_t *findings_json(const lb_audit_report *report, bool notes)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_findings; i++) {
        const lb_audit_finding *finding = &report->findings[i];
        if (finding->note != notes) continue;
        json_t *ranks = json_array();
        for (uint32_t k = 0; k < finding->n_ranks; k++) json_array_append_new(ranks, json_integer(finding->ranks[k]));
        json_array_append_new(list, json_pack("{s:s,s:o,s:o,s:o,s:s}", "kind", lb_audit_kind_name(finding->kind),
                                              "tensor", text(finding->tensor), "file", text(finding->file), "ranks",
                                              ranks, "message", finding->message));
    }
    return list;
}

static json_t *group_json(const group *group)
{
    json_t *patterns = json_array();
    for (uint32_t k = 0; k < group->patterns && k < MOST_PATTERNS; k++)
        json_array_append_new(patterns, text(group->pattern[k]));
    return json_pack("{s:s,s:b,s:i,s:i,s:I,s:o,s:i,s:s}", "kind", lb_audit_kind_name(group->first->kind), "note",
                     group->first->note, "findings", (int)group->findings, "tensors", (int)group->tensors, "of",
                     (json_int_t)group->of, "patterns", patterns, "pattern_count", (int)group->patterns, "message",
                     group->first->message);
}

static json_t *groups_json(const lb_audit_report *report)
{
    uint32_t n;
    group *groups = list_groups(report, &n);
    json_t *list = groups ? json_array() : NULL;
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, group_json(&groups[i]));
    free(groups);
    return list;
}

static json_t *precision_json(const lb_audit_report *report, bool modules)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_precision; i++) {
        const lb_audit_precision *p = &report->precision[i];
        if ((p->module != NULL) != modules) continue;
        json_t *object = json_pack("{s:s,s:o,s:o,s:o}", "dtype", lb_dtype_name(p->dtype), "max_abs",
                                   lb_command_json_number(p->max_abs), "rel_l2", lb_command_json_number(p->rel_l2),
                                   "rel_max", lb_command_json_number(p->rel_max));
        if (modules) json_object_set_new(object, "module", text(p->module));
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *pairs_json(const lb_audit_report *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_pairs; i++) {
        const lb_audit_pair *pair = &report->pairs[i];
        json_t *index = json_array();
        for (int d = 0; d < pair->ndim; d++) json_array_append_new(index, json_integer(pair->index[d]));
        json_t *object = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "tensor", pair->name, "other", pair->other, "how",
                                   pair->how, "verdict", lb_audit_match_name(pair->match), "dtype",
                                   lb_dtype_name(pair->dtype), "other_dtype", lb_dtype_name(pair->other_dtype));
        json_object_set_new(object, "rounded_to", pair->rounded ? text(lb_dtype_name(pair->rounded)) : json_null());
        json_object_set_new(object, "max_abs", lb_command_json_number(pair->difference.max_abs));
        json_object_set_new(object, "rel_l2", lb_command_json_number(pair->difference.rel_l2));
        json_object_set_new(object, "max_ulp", lb_command_json_number(pair->difference.max_ulp));
        json_object_set_new(object, "differing", json_integer(pair->difference.differing));
        json_object_set_new(object, "elements", json_integer(pair->difference.elements));
        json_object_set_new(object, "index", index);
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *merges_json(const lb_audit_report *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->n_merges; i++) {
        const lb_audit_merge *m = &report->merges[i];
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:o,s:s,s:b}", "module", m->module, "scaling", m->scaling, "factor",
                                        lb_command_json_number(m->factor), "order", m->order, "exact", m->exact));
    }
    return list;
}

static json_t *report_json(const char *path, const lb_audit_report *report, const char *verdict)
{
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:i,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "checkpoint", path, "verdict", verdict,
                     "files", (json_int_t)report->files, "bytes", (json_int_t)report->bytes, "tensors",
                     (json_int_t)report->tensors, "ranks", (int)report->ranks, "groups", groups_json(report),
                     "findings", findings_json(report, false), "notes", findings_json(report, true), "precision",
                     precision_json(report, false), "modules", precision_json(report, true), "pairs",
                     pairs_json(report), "merged", merges_json(report));
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_finding(const lb_audit_finding *finding)
{
    if (finding->tensor) printf("  %s", finding->tensor);
    for (uint32_t k = 0; k < finding->n_ranks; k++)
        printf("%s%" PRId32, k ? ", " : finding->n_ranks > 1 ? "  ranks " : "  rank ", finding->ranks[k]);
    if (finding->file) printf("  (%s)", finding->file);
}

/* The kind in words: "shards equal". */
static void print_kind(lb_audit_kind kind)
{
    if (kind == LB_AUDIT_NOOP)
        printf("does nothing");
    else
        for (const char *at = lb_audit_kind_name(kind); *at; at++) putchar(*at == '_' ? ' ' : *at);
}

/* What is no tensor's is a thing of its own each time. */
static void print_each(const lb_audit_report *report, const group *group)
{
    enum { MOST = 8 };
    uint32_t n = 0;
    const lb_audit_finding *end = report->findings + report->n_findings;
    for (const lb_audit_finding *finding = group->first; finding < end && n < MOST && n < group->findings; finding++)
        if (finding->group == group->first->group) n++, printf("    %s\n", finding->message);
    if (group->findings > n) printf("    and %" PRIu32 " more\n", group->findings - n);
}

static void print_group(const lb_audit_report *report, const group *group)
{
    if (group->first->note) printf("note: ");
    print_kind(group->first->kind);
    if (group->findings == 1) {
        print_finding(group->first);
        printf("\n    %s\n", group->first->message);
        return;
    }
    if (!group->tensors) {
        printf(": %" PRIu32 " times\n", group->findings);
        print_each(report, group);
        return;
    }
    printf(": %" PRIu32 " of %" PRIu64 " tensors\n", group->tensors, group->of);
    for (uint32_t k = 0; k < group->patterns && k < MOST_PATTERNS; k++) printf("    %s\n", group->pattern[k]);
    if (group->patterns > MOST_PATTERNS) printf("    and %" PRIu32 " more\n", group->patterns - MOST_PATTERNS);
    printf("    the first:");
    print_finding(group->first);
    printf("\n        %s\n", group->first->message);
}

static void print_findings(const lb_audit_report *report)
{
    uint32_t n;
    group *groups = list_groups(report, &n);
    for (uint32_t i = 0; i < n; i++) print_group(report, &groups[i]);
    free(groups);
}

/* Lines that are alike, each once with how often it came. */
typedef struct tally {
    char (*lines)[600];
    uint32_t *counts, n;
    lb_hash index; /* of lines */
} tally;

static uint64_t line_hash(const char *line)
{
    return XXH3_64bits(line, strlen(line));
}

static void tally_add(tally *tally, const char *line)
{
    LB_HASH_EACH(row, &tally->index, line_hash(line))
    if (!strcmp(tally->lines[row], line)) {
        tally->counts[row]++;
        return;
    }
    void *lines = lb_array_grow(tally->lines, tally->n, sizeof *tally->lines);
    if (lines) tally->lines = lines;
    uint32_t *counts = lines ? lb_array_grow(tally->counts, tally->n, sizeof *counts) : NULL;
    if (counts) tally->counts = counts;
    if (!counts || !lb_hash_add(&tally->index, line_hash(line), tally->n)) return; /* a line less */
    tally->counts[tally->n] = 1;
    snprintf(tally->lines[tally->n++], sizeof *tally->lines, "%s", line);
}

static void tally_print(tally *tally, const char *what)
{
    for (uint32_t i = 0; i < tally->n; i++)
        if (tally->counts[i] > 1)
            printf("    %s: %" PRIu32 " %s\n", tally->lines[i], tally->counts[i], what);
        else
            printf("    %s\n", tally->lines[i]);
    free(tally->lines), free(tally->counts), lb_hash_release(&tally->index);
}

static void print_pairs(const lb_audit_report *report)
{
    uint32_t counts[4] = {0};
    tally tally = {0};
    for (uint32_t i = 0; i < report->n_pairs; i++) counts[report->pairs[i].match]++;
    if (report->n_pairs)
        printf("%u pairs of tensors: %u identical, %u cast, %u rounding, %u differ\n", report->n_pairs,
               counts[LB_AUDIT_IS_IDENTICAL], counts[LB_AUDIT_IS_CAST], counts[LB_AUDIT_IS_ROUNDING],
               counts[LB_AUDIT_IS_DIFFERENT]);
    for (uint32_t i = 0; i < report->n_pairs; i++) {
        const lb_audit_pair *pair = &report->pairs[i];
        char name[160], other[160], how[200], line[600];
        if (!pair->how[0] || pair->match == LB_AUDIT_IS_DIFFERENT) continue;
        star(pair->name, name, sizeof name), star(pair->other, other, sizeof other), star(pair->how, how, sizeof how);
        snprintf(line, sizeof line, "%s = %s (%s)", name, other, how);
        tally_add(&tally, line);
    }
    tally_print(&tally, "tensors");
}

static void print_precision(const lb_audit_report *report)
{
    if (!report->n_precision) return;
    printf("online against merged, over all modules (rel max: over the output or the outputs' root mean square, "
           "whichever is larger)\n"
           "    %-6s %12s %12s %12s\n",
           "dtype", "max abs", "rel L2", "rel max");
    for (uint32_t i = 0; i < report->n_precision; i++) {
        const lb_audit_precision *p = &report->precision[i];
        if (!p->module)
            printf("    %-6s %12.3g %12.3g %11.4g%%\n", lb_dtype_name(p->dtype), p->max_abs, p->rel_l2,
                   100 * p->rel_max);
    }
    tally tally = {0};
    for (uint32_t i = 0; i < report->n_merges; i++) {
        const lb_audit_merge *m = &report->merges[i];
        char line[600];
        snprintf(line, sizeof line, "merged with %s (factor %.6g)%s%s%s", m->scaling, m->factor, *m->order ? ", " : "",
                 m->order,
                 !*m->order ? ""
                 : m->exact ? ", every bit"
                            : ", within the error of an f32 product");
        tally_add(&tally, line);
    }
    tally_print(&tally, "modules");
}

/* The verdict first. */
static void print_text(const char *path, const lb_audit_report *report, const char *verdict)
{
    char bytes[16];
    const uint32_t findings = report->n_findings - report->n_notes;
    printf("%s: %s: %u finding%s, %u note%s; %" PRIu64 " tensors, %s in %" PRIu64 " file%s", path, verdict, findings,
           findings == 1 ? "" : "s", report->n_notes, report->n_notes == 1 ? "" : "s", report->tensors,
           lb_command_bytes_text(report->bytes, bytes), report->files, report->files == 1 ? "" : "s");
    if (report->ranks) printf(", %" PRId32 " rank%s", report->ranks, report->ranks == 1 ? "" : "s");
    printf("\n");
    print_findings(report);
    print_pairs(report);
    print_precision(report);
}

/* `against`'s tensors and what CKPT has of them. Of those that other numbers were multiplied into nothing is read
 * back. */
static lb_status write_table(const char *path, const lb_audit_report *report, lb_err *err)
{
    const char *inputs_of[] = {path, against, NULL};
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    lb_output *out = NULL;
    how.replace = how.shared = true, how.inputs = inputs_of;
    LB_TRY(lb_output_open(map_out, &how, &out, err));
    FILE *file = lb_output_stream(out);
    lb_tensor_map_write_head(file);
    for (uint32_t i = 0; i < report->n_pairs; i++) {
        const lb_audit_pair *pair = &report->pairs[i];
        const bool same = !strcmp(pair->first, pair->other) && !*pair->how;
        if (!same)
            lb_tensor_map_write(file, pair->other, pair->first,
                                *pair->how ? pair->how : lb_audit_match_name(pair->match), pair->folded);
    }
    return lb_output_close(out, err);
}

int lb_cmd_audit(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_audit_report *report;
    lb_audit_options chosen = LB_AUDIT_OPTIONS_INIT;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    const char *path = arguments.n_args ? arguments.args[0] : adapter;
    if (!path || (arguments.n_args && adapter) || rows < 0)
        code = lb_command_misused("audit", "%s",
                                  rows < 0 ? "--rows: expected a count above 0"
                                           : "expected one CKPT, or --adapter DIR in its place");
    chosen.expect = expect, chosen.against = against, chosen.base = base, chosen.merged = merged,
    chosen.inputs = inputs;
    lb_command_map map;
    if (lb_command_map_split(maps, &map, &err) != LB_OK && code < 0)
        code = lb_command_misused("audit", "%s", err.message);
    chosen.maps = map.rules, chosen.n_maps = map.n_rules, chosen.table = map.table, chosen.seed = (uint64_t)seed,
    chosen.rows = (uint32_t)rows, chosen.restart = restart;
    chosen.progress = lb_command_progress, chosen.parts = lb_command_parts();
    if (code < 0 && (map.table || map_out) && !against)
        code = lb_command_misused("audit", "--map %s goes with --against CKPT", map.table ? map.table : "FILE");
    if (code < 0 && merged && !base) code = lb_command_misused("audit", "--merged needs --base, too");
    if (code < 0) {
        lb_status status = lb_audit(path, &chosen, &report, &err);
        lb_command_progress_end();
        if (status != LB_OK) {
            code = status == LB_ERR_INVALID ? lb_command_misused("audit", "%s", err.message)
                                            : lb_command_fail("audit", &err);
        } else {
            code = report->n_findings > report->n_notes ? LB_EXIT_DIFFERENT : LB_EXIT_SAME;
            const char *verdict = code ? "found" : "clean";
            if (map_out && write_table(path, report, &err) != LB_OK)
                code = lb_command_fail("audit", &err);
            else if (html && lb_command_write_page("audit", report_json(path, report, verdict), html, &err) != LB_OK)
                code = lb_command_fail("audit", &err);
            else if (arguments.json)
                lb_command_print_json("audit", report_json(path, report, verdict));
            else
                print_text(path, report, verdict);
            lb_audit_report_free(report);
        }
    }
    lb_command_map_release(&map);
    lb_command_arguments_release(&arguments);
    return code;
}
