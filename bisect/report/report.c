/* The page: the results read, made small and put into the template (lastbit/report.h). */
#define _GNU_SOURCE /* memmem */
#include <lastbit/report.h>

#include "column_table.h"
#include "drift_summary.h"
#include "page_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
                       "%s: expected an object with a field \"schema\" such as \"lastbit.diff/1\", as commands print "
                       "it with --json",
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
    if (json_is_object(curves)) json_object_set_new(result, "curves", lb_curves_thinned(curves, CURVE_POINTS));
    return derived ? derived : json_object();
}

static lb_status read_part(const lb_report_part *part, size_t *budget, json_t *parts, lb_err *err)
{
    char command[32];
    json_error_t error;
    json_t *result = json_loadb(part->json, part->bytes, 0, &error);
    if (!result) return lb_fail(err, LB_ERR_CORRUPT, "%s: no JSON in line %d: %s", part->name, error.line, error.text);
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
        json_t *row = json_pack("{s:s, s:s, s:o, s:o}", "name", part->name, "command", command, "derived", small,
                                "result", lb_column_compact(result, budget));
        json_decref(derived);
        if (!row || json_array_append_new(parts, row) != 0) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    json_decref(result);
    return status;
}

/* ---- text into the page ---- */

/* JSON in an element <script>: no character may end it, open a comment, or be a line end to an old parser. Such characters stand in strings alone, where
 * an escape means the same. */
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

static void put_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        static const char special[] = "<>&\"'";
        if (strchr(special, *text))
            fprintf(to, "&#%d;", *text);
        else
            fputc(*text, to);
    }
}

/* What each result says in a word, for readers without scripts. */
static void put_summary(FILE *to, const json_t *parts)
{
    static const char *const words[] = {"verdict", "outcome", "pattern"};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *result = json_object_get(part, "result");
        const char *word = NULL;
        for (size_t k = 0; !word && k < sizeof words / sizeof *words; k++)
            word = json_string_value(json_object_get(result, words[k]));
        fputs("<li>lastbit ", to);
        put_text(to, json_string_value(json_object_get(part, "command")));
        fputs(", ", to);
        put_text(to, json_string_value(json_object_get(part, "name")));
        if (word) fputs(": ", to), put_text(to, word);
        fputs("</li>\n", to);
    }
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
    else if (strncmp(name, "summary", n) == 0)
        put_summary(to, parts);
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

lb_status lb_report_write(FILE *to, const lb_report_part *parts, uint32_t n, lb_err *err)
{
    if (!n) return lb_fail(err, LB_ERR_INVALID, "a report needs a result");
    json_t *all = json_array();
    size_t budget = ROW_BYTES;
    lb_status status = all ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; status == LB_OK && i < n; i++) status = read_part(&parts[i], &budget, all, err);
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

/* Whether `path` may be written: nothing is there, or a page. */
static bool may_replace(const char *path)
{
    char opening[sizeof OPENING] = "";
    struct stat st;
    if (stat(path, &st) != 0) return errno == ENOENT;
    FILE *file = S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    if (!file) return false;
    const bool ours = st.st_size == 0 || (fread(opening, 1, sizeof OPENING - 1, file) == sizeof OPENING - 1 &&
                                          strcmp(opening, OPENING) == 0);
    fclose(file);
    return ours;
}

lb_status lb_report_save(const char *path, const lb_report_part *parts, uint32_t n, lb_err *err)
{
    if (!may_replace(path))
        return lb_fail(err, LB_ERR_EXISTS, "%s is there and is no report: name another file, or remove it", path);
    char *draft = malloc(strlen(path) + sizeof ".XXXXXX");
    if (!draft) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    sprintf(draft, "%s.XXXXXX", path);
    const int fd = mkstemp(draft);
    FILE *to = fd >= 0 ? fdopen(fd, "wb") : NULL;
    lb_status status = to ? lb_report_write(to, parts, n, err)
                          : lb_fail(err, LB_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    const mode_t mask = umask(0);
    umask(mask);
    if (to && fchmod(fd, 0666 & ~mask) != 0 && status == LB_OK)
        status = lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(errno));
    if (to && fclose(to) != 0 && status == LB_OK)
        status = lb_fail(err, LB_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    if (status == LB_OK && rename(draft, path) != 0)
        status = lb_fail(err, LB_ERR_IO, "%s cannot be put in place: %s", path, strerror(errno));
    if (!to && fd >= 0) close(fd);
    if (status != LB_OK && fd >= 0) unlink(draft);
    free(draft);
    return status;
}
