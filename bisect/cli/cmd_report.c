/* lastbit report RESULT …: one HTML page of what commands found. The engine is in bisect/inspection/report. */
#include "command/command_line.h"

#include <lastbit/input.h>
#include <lastbit/input_lines.h>
#include <lastbit/archive.h>
#include <lastbit/decode_limit.h>
#include <lastbit/report.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A result is the JSON of one command, and bytes beyond this are none. */
enum { MOST_BYTES = 1 << 30 };

static char *output;

static const struct poptOption options[] = {
    {"output", 'o', POPT_ARG_STRING, &output, 0, "write the page there (report.html)", "FILE"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "report",
    .synopsis = "RESULT ...",
    .about = "Writes one self-contained HTML page for a reader who was not there: the verdict first, "
             "then where and why with tables and\n"
             "plots, and the command behind each number. It needs no network, opens from disk, prints, "
             "works by keyboard.\n"
             "\n"
             "RESULT is what diff, bisect, explain, parity, ranks, watch, "
             "audit or replay printed with --json (- for stdin), or a\n"
             "capture, of which the receipt is shown. Several make one page. "
             "All but replay write it themselves with --html.",
    .example = "  lastbit diff good.lb bad.lb --json > diff.json; lastbit bisect bad.lb --json > bisect.json\n"
               "  lastbit report -o report.html bisect.json diff.json bad.lb",
    .options = options,
    .min_args = 1,
    .max_args = -1,
};

/* ---- a file with a result ---- */

/* JSON of a command begins with a brace, or comes from a pipe; a capture does not. */
static bool is_result(const char *path)
{
    struct stat st;
    if (lb_input_look(path, &st, NULL) != LB_OK) return false;
    if (S_ISFIFO(st.st_mode)) return true;
    FILE *file = NULL;
    if (S_ISREG(st.st_mode)) lb_input_stream(path, &file, NULL);
    int first = ' ';
    while (file && first != EOF && strchr(" \t\r\n", first)) first = fgetc(file);
    lb_input_stream_end(file, path, NULL);
    return first == '{';
}

/* ---- a capture ---- */

/* What `lastbit ls --tables --json` prints, of each rank. */
static json_t *listing(lb_capture *capture)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    json_t *all_ranks = json_array(), *all_steps = json_array(), *tables = json_array();
    for (uint32_t i = 0; i < n_steps; i++) json_array_append_new(all_steps, json_integer(steps[i]));
    for (uint32_t r = 0; r < n_ranks; r++) {
        json_t *of_rank = json_object();
        const char *name;
        json_array_append_new(all_ranks, json_integer(ranks[r]));
        for (uint32_t i = 0; (name = lb_capture_table_name(capture, ranks[r], i)); i++) {
            const char *text = lb_capture_table(capture, ranks[r], name);
            json_t *table = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
            json_object_set_new(of_rank, name, table ? table : json_null());
        }
        json_array_append_new(tables, json_pack("{s:i, s:o}", "rank", (int)ranks[r], "tables", of_rank));
    }
    return json_pack("{s:s, s:s*, s:o, s:o, s:o}", "schema", "lastbit.ls/1", "capture", lb_capture_path(capture),
                     "ranks", all_ranks, "steps", all_steps, "tables", tables);
}

static lb_status read_capture(const char *path, char **bytes, size_t *n, lb_err *err)
{
    lb_capture *capture = NULL;
    LB_TRY(lb_capture_open(path, &capture, err));
    json_t *tables = listing(capture);
    *bytes = tables ? json_dumps(tables, JSON_COMPACT) : NULL;
    *n = *bytes ? strlen(*bytes) : 0;
    json_decref(tables);
    lb_capture_close(capture);
    return *bytes ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the tables of %s", path);
}

/* A result is no larger than a GB. */
static uint64_t most_bytes(void)
{
    return lb_decode_limit_room() < MOST_BYTES ? lb_decode_limit_room() : MOST_BYTES;
}

static lb_status read_argument(const char *path, char **bytes, size_t *n, lb_err *err)
{
    if (strcmp(path, "-") == 0) return lb_input_lines_rest(stdin, NULL, most_bytes(), bytes, n, err);
    if (!is_result(path)) return read_capture(path, bytes, n, err);
    FILE *from;
    LB_TRY(lb_input_stream(path, &from, err));
    return lb_input_lines_rest(from, path, most_bytes(), bytes, n, err);
}

static int run(const lb_command_arguments *arguments)
{
    lb_err err = LB_ERR_INIT;
    lb_report_part *parts = calloc((size_t)arguments->n_args, sizeof *parts);
    lb_status status = parts ? LB_OK : lb_fail(&err, LB_ERR_NOMEM, "out of memory");
    const char *path = output ? output : "report.html";
    for (int i = 0; status == LB_OK && i < arguments->n_args; i++) {
        char *bytes = NULL;
        parts[i].name = arguments->args[i];
        status = read_argument(parts[i].name, &bytes, &parts[i].bytes, &err);
        parts[i].json = bytes;
    }
    if (status == LB_OK) status = lb_report_save(path, parts, (uint32_t)arguments->n_args, &err);
    for (int i = 0; parts && i < arguments->n_args; i++) free((char *)parts[i].json);
    free(parts);
    if (status != LB_OK) return lb_command_fail("report", &err);
    if (arguments->json)
        lb_command_print_json("report", json_pack("{s:s, s:i}", "page", path, "results", arguments->n_args));
    else
        printf("%s: a page of %d result%s\n", path, arguments->n_args, arguments->n_args == 1 ? "" : "s");
    return LB_EXIT_SAME;
}

int lb_cmd_report(int argc, const char **argv)
{
    lb_command_arguments arguments;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    rc = run(&arguments);
    free(output);
    lb_command_arguments_release(&arguments);
    return rc;
}
