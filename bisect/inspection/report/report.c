/* The page: the results read, made small and put into the template (lastbit/report.h). */
#define _GNU_SOURCE /* memmem */
#include <lastbit/output.h>
#include <lastbit/decode_limit.h>
#include <lastbit/report.h>
#include <lastbit/text.h>

#include "report/answer.h"
#include "report/column_table.h"
#include "report/drift_summary.h"
#include "report/page_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Rows of lists in all parts together; a page stays below 5 MB with the library and the maps beside them. */
enum { ROW_BYTES = 3200000, CURVE_POINTS = 4000 };

/* Every page begins so; only such a file is written over. */
static const char OPENING[] = "<!doctype html>\n<!-- lastbit report -->\n";

/* ---- results ---- */

/* "lastbit.diff/1" -> "diff" */
static lb_status read_schema(const json_t *result, const char *name, char command[32], lb_err *err)
{
    const char *schema = json_string_value(json_object_get(result, "schema"));
    int major = 0;
    if (!schema || sscanf(schema, "lastbit.%31[a-z]/%d", command, &major) != 2)
        return lb_fail(err, LB_ERR_CORRUPT,
                       "%s: expected an object with a field \"schema\" such as \"lastbit.diff/1\", "
                       "as commands print it with --json",
                       name);
    if (major != 1)
        return lb_fail(err, LB_ERR_VERSION, "%s: its schema is %.60s, and this program knows lastbit.%s/1", name,
                       schema, command);
    return LB_OK;
}

/* What is counted over all rows, before compacting leaves some out. */
static json_t *derive(const char *command, json_t *result)
{
    json_t *derived = strcmp(command, "diff") == 0 ? lb_drift_summary(json_object_get(result, "layers")) : NULL;
    const json_t *curves = json_object_get(result, "curves");
    if (json_is_object(curves)) json_object_set_new(result, "curves", lb_drift_curves_thinned(curves, CURVE_POINTS));
    return derived ? derived : json_object();
}

static json_t *run_title(const json_t *result, const char *name)
{
    const time_t now = time(NULL);
    struct tm utc;
    char day[16] = "";
    if (gmtime_r(&now, &utc)) strftime(day, sizeof day, "%Y-%m-%d", &utc);
    return lb_answer_run_title(result, name, day);
}

static lb_status read_part(const lb_report_part *part, size_t *budget, json_t *parts, lb_err *err)
{
    char command[32];
    json_error_t error;
    json_t *result = lb_decode_limit_json(part->json, part->bytes, 0, lb_decode_limit_room(), &error);
    if (!result)
        return lb_fail(err, lb_decode_limit_json_status(LB_ERR_CORRUPT), "%s: no JSON in line %d: %s", part->name,
                       error.line, error.text);
    lb_status status = read_schema(result, part->name, command, err);
    if (status == LB_OK) {
        json_t *derived = derive(command, result), *map = json_incref(json_object_get(derived, "map"));
        char *cells = map ? json_dumps(map, JSON_COMPACT) : NULL; /* a cell each, not to be cut as a text is */
        const size_t bytes = cells ? strlen(cells) : 0;
        free(cells);
        *budget -= bytes < *budget ? bytes : *budget;
        json_object_del(derived, "map");
        json_t *small = lb_column_compact(derived, budget);
        if (map) json_object_set_new(small, "map", map);
        json_t *row =
            json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "name", part->name, "command", command, "answer",
                      lb_answer_of(command, result), "runs", lb_answer_runs(result, part->name), "run",
                      run_title(result, part->name), "derived", small, "result", lb_column_compact(result, budget));
        json_decref(derived);
        if (!row || json_array_append_new(parts, row) != 0) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    json_decref(result);
    return status;
}

/* ---- text into the page ---- */

/* JSON in an element <script>: no character may end it, open a comment, or be a line end to an old parser. Such
 * characters stand in strings alone, where an escape means the same. */
static void put_data(FILE *to, const char *json)
{
    for (const char *at = json; *at; at++) {
        if (*at == '<' || *at == '>' || *at == '&')
            fprintf(to, "\\u%04x", *at);
        else if (strncmp(at, "\xe2\x80\xa8", 3) == 0 || strncmp(at, "\xe2\x80\xa9", 3) == 0)
            fprintf(to, "\\u202%c", at[2] == '\xa8' ? '8' : '9'), at += 2;
        else
            fputc(*at, to);
    }
}

/* At most `most` characters; "…" stands for the rest. A name is not to look like another: what is not seen is spelt
 * out. */
static void put_cut(FILE *to, const char *text, size_t most)
{
    for (const char *end = text + strlen(text); *text && most; most--) {
        char spelt[16];
        int32_t character;
        const size_t n = lb_text_character(text, (size_t)(end - text), &character);
        lb_text_escape(LB_TEXT_SHOWN, text, n, spelt, sizeof spelt);
        if (strchr("<>&\"'", *text))
            fprintf(to, "&#%d;", *text);
        else
            fputs(spelt, to);
        text += n;
    }
    if (*text) fputs("…", to);
}

static void put_text(FILE *to, const char *text)
{
    put_cut(to, text, SIZE_MAX);
}

/* ---- answers: for readers without scripts, too ---- */

enum { TITLE_CHARACTERS = 160, FACT_CHARACTERS = 400 };

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* "RUN, DATE: the gravest finding" */
static void put_title(FILE *to, const json_t *parts)
{
    const json_t *part = json_array_get(parts, 0);
    put_cut(to, text_at(part, "run"), TITLE_CHARACTERS);
    fputs(": ", to);
    put_cut(to, text_at(json_object_get(part, "answer"), "finding"), TITLE_CHARACTERS);
    if (json_array_size(parts) > 1)
        fprintf(to, " (and %zu more answer%s)", json_array_size(parts) - 1, json_array_size(parts) == 2 ? "" : "s");
}

static void put_fact(FILE *to, const json_t *fact)
{
    fputs("<dt>", to);
    put_text(to, json_string_value(json_array_get(fact, 0)));
    fputs("</dt><dd><bdi>", to);
    put_cut(to, json_string_value(json_array_get(fact, 1)), FACT_CHARACTERS);
    fputs("</bdi></dd>\n", to);
}

/* A card: its head is the finding. */
static void put_card(FILE *to, const json_t *part, size_t number, int heading)
{
    static const char *const signs[] = {"✓", "≈", "?", "✗"};
    const json_t *answer = json_object_get(part, "answer"), *facts = json_object_get(answer, "facts");
    const char *tone = text_at(answer, "tone"), *word = text_at(answer, "word");
    const char *line = text_at(json_object_get(part, "result"), "command");
    fprintf(to, "<article class=\"card %s\" data-command=\"%s\">\n<h%d class=\"word\">%s <bdi>", tone,
            text_at(part, "command"), heading, signs[lb_answer_gravity(answer)]);
    put_cut(to, text_at(answer, "finding"), FACT_CHARACTERS);
    fprintf(to, "</bdi></h%d>\n<p class=\"source\">", heading);
    if (*word) fprintf(to, "<span class=\"tone %s\">", tone), put_text(to, word), fputs("</span>, ", to);
    fprintf(to, "lastbit %s of <bdi>", text_at(part, "command"));
    put_cut(to, text_at(part, "runs"), FACT_CHARACTERS);
    fprintf(to, "</bdi> (<a href=\"#result-%zu\">details</a>)</p>\n<dl>\n", number);
    for (size_t i = 0; i < json_array_size(facts); i++) put_fact(to, json_array_get(facts, i));
    fputs("</dl>\n", to);
    if (*line) fputs("<div class=\"command\"><code>", to), put_text(to, line), fputs("</code></div>\n", to);
    fputs("</article>\n", to);
}

static void put_answers(FILE *to, const json_t *parts)
{
    const size_t n = json_array_size(parts);
    if (n > 1) fprintf(to, "<h1>%zu answers, the gravest first</h1>\n", n);
    for (size_t i = 0; i < n; i++) put_card(to, json_array_get(parts, i), i + 1, n > 1 ? 2 : 1);
}

static void put_file(FILE *to, enum lb_page_part part)
{
    const lb_page_file file = lb_page_file_get(part);
    fwrite(file.bytes, 1, file.n, to);
}

static void put_policy(FILE *to)
{
    fprintf(to, "default-src 'none'; base-uri 'none'; form-action 'none'; style-src '%s'; script-src",
            lb_page_file_get(LB_PAGE_style).hash);
    for (int i = LB_PAGE_FIRST_SCRIPT; i < LB_PAGE_PARTS; i++) fprintf(to, " '%s'", lb_page_file_get(i).hash);
}

static void put_scripts(FILE *to)
{
    for (int i = LB_PAGE_FIRST_SCRIPT; i < LB_PAGE_PARTS; i++) {
        fputs("<script>", to);
        put_file(to, i);
        fputs("</script>\n", to);
    }
}

/* What stands at "{{name}}" in the template. */
static void put_named(FILE *to, const char *name, size_t n, const json_t *parts, const char *data)
{
    if (strncmp(name, "policy", n) == 0)
        put_policy(to);
    else if (strncmp(name, "style", n) == 0)
        put_file(to, LB_PAGE_style);
    else if (strncmp(name, "title", n) == 0)
        put_title(to, parts);
    else if (strncmp(name, "answers", n) == 0)
        put_answers(to, parts);
    else if (strncmp(name, "data", n) == 0)
        put_data(to, data);
    else if (strncmp(name, "scripts", n) == 0)
        put_scripts(to);
    else if (strncmp(name, "licence", n) == 0)
        put_file(to, LB_PAGE_licence);
    else
        LB_CHECK(!"the template names nothing else");
}

static void put_page(FILE *to, const json_t *parts, const char *data)
{
    const lb_page_file page = lb_page_file_get(LB_PAGE_template);
    const char *end = page.bytes + page.n;
    fputs(OPENING, to);
    for (const char *at = page.bytes; at < end;) {
        const char *mark = memmem(at, (size_t)(end - at), "{{", 2);
        const char *close = mark ? memmem(mark, (size_t)(end - mark), "}}", 2) : NULL;
        fwrite(at, 1, (size_t)((close ? mark : end) - at), to);
        if (!close) break;
        put_named(to, mark + 2, (size_t)(close - mark - 2), parts, data);
        at = close + 2;
    }
}

/* Parts from the gravest answer to the slightest; those alike stay in their order. */
static json_t *by_gravity(const json_t *parts)
{
    json_t *sorted = json_array();
    for (int gravity = 3; gravity >= 0; gravity--)
        for (size_t i = 0; i < json_array_size(parts); i++) {
            json_t *part = json_array_get(parts, i);
            if (lb_answer_gravity(json_object_get(part, "answer")) == gravity) json_array_append(sorted, part);
        }
    return sorted;
}

lb_status lb_report_write(FILE *to, const lb_report_part *parts, uint32_t n, lb_err *err)
{
    if (!n) return lb_fail(err, LB_ERR_INVALID, "a report needs a result");
    json_t *all = json_array();
    size_t budget = ROW_BYTES;
    lb_status status = all ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; status == LB_OK && i < n; i++) status = read_part(&parts[i], &budget, all, err);
    json_t *sorted = by_gravity(all);
    json_decref(all);
    all = sorted;
    char *data = status == LB_OK ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (status == LB_OK && !data) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for the page");
    if (status == LB_OK) put_page(to, all, data);
    if (status == LB_OK && ferror(to))
        status = lb_fail(err, LB_ERR_IO, "the page cannot be written: %s", strerror(errno));
    free(data);
    json_decref(all);
    return status;
}

/* ---- into a file ---- */

/* Whether `path` may be written: nothing is there, or a page, or what has no contents (a pipe). */
static bool may_replace(const char *path)
{
    char opening[sizeof OPENING] = "";
    struct stat st;
    if (stat(path, &st) != 0) return errno == ENOENT;
    if (!S_ISREG(st.st_mode)) return !S_ISDIR(st.st_mode);
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const bool ours = st.st_size == 0 || (fread(opening, 1, sizeof OPENING - 1, file) == sizeof OPENING - 1 &&
                                          strcmp(opening, OPENING) == 0);
    fclose(file);
    return ours;
}

lb_status lb_report_save(const char *path, const lb_report_part *parts, uint32_t n, lb_err *err)
{
    if (!may_replace(path))
        return lb_fail(err, LB_ERR_EXISTS, "%s is there and is not a report: name another file, or remove it", path);
    const char **names = calloc((size_t)n + 1, sizeof *names);
    if (!names) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) names[i] = parts[i].name;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = how.shared = true;
    how.inputs = names;
    lb_output *out = NULL;
    lb_status status = lb_output_open(path, &how, &out, err);
    free(names);
    if (status != LB_OK) return status;
    lb_err why = LB_ERR_INIT;
    FILE *to = lb_output_stream(out);
    status = to ? lb_report_write(to, parts, n, &why) : LB_OK;
    if (status == LB_OK || lb_output_error(out))
        return lb_output_close(out, err); /* which names the file and the cause */
    lb_output_abandon(out);
    return lb_fail(err, status, "%s", why.message);
}
