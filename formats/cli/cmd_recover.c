/* lastbit recover: a new capture from what is whole in a damaged or unfinished one. */
#include "command/command_line.h"

#include <lastbit/archive.h>
#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *out;

static const struct poptOption options[] = {
    {"output", 'o', POPT_ARG_STRING, &out, 0, "where to write (default: CAPTURE with .recovered before its suffix)",
     "PATH"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "recover",
    .synopsis = "CAPTURE",
    .about = "Writes a new capture with every record of the old one that is whole, also those after the last commit, "
             "and\n"
             "with a closing index. The old one is not changed. Exit code 0 when nothing was lost, "
             "1 when something was.",
    .example = "  lastbit recover run.lb -o whole.lb",
    .options = options,
    .min_args = 1,
    .max_args = 1,
};

/* "runs/a.lb/" gives "runs/a.recovered.lb"; malloc'ed. */
static char *default_output(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t dot = n;
    for (size_t i = n; i > 0 && path[i - 1] != '/'; i--)
        if (path[i - 1] == '.' && dot == n) dot = i - 1;
    char *name = malloc(n + sizeof ".recovered");
    if (name) sprintf(name, "%.*s.recovered%.*s", (int)dot, path, (int)(n - dot), path + dot);
    return name;
}

static uint64_t lost(const lb_recovery *result)
{
    return result->lost_blobs + result->lost_programs + result->lost_tables + result->lost_packs + result->places;
}

/* Why recording had ended before the program did, as the first rank that says so has it; malloc'ed, NULL: none does. */
static char *why_stopped(const char *path)
{
    lb_capture *capture;
    const int32_t *ranks;
    char *why = NULL;
    if (lb_capture_open(path, &capture, NULL) != LB_OK) return NULL;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    for (uint32_t r = 0; r < n && !why; r++) {
        const char *table = lb_capture_table(capture, ranks[r], "coverage");
        json_t *coverage = table ? json_loads(table, 0, NULL) : NULL;
        const char *stopped = json_string_value(json_object_get(coverage, "stopped"));
        const char *full = stopped && lb_error_is_full_disk(stopped) ? "the disk was full: " : "";
        if (stopped && (why = malloc(strlen(full) + strlen(stopped) + 1))) sprintf(why, "%s%s", full, stopped);
        json_decref(coverage);
    }
    lb_capture_close(capture);
    return why;
}

static void print_json(const char *path, const char *to, const lb_recovery *result, const char *stopped)
{
    lb_command_print_json("recover",
                          json_pack("{s:s, s:s, s:s*, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "capture", path,
                                    "output", to, "stopped", stopped, "blobs", (json_int_t)result->blobs, "programs",
                                    (json_int_t)result->programs, "tables", (json_int_t)result->tables, "lost_blobs",
                                    (json_int_t)result->lost_blobs, "lost_programs", (json_int_t)result->lost_programs,
                                    "lost_tables", (json_int_t)result->lost_tables, "lost_packs",
                                    (json_int_t)result->lost_packs, "places", (json_int_t)result->places, "salvaged",
                                    (json_int_t)result->salvaged));
}

static void print_text(const char *to, const lb_recovery *result, const char *stopped)
{
    printf("%s: %" PRIu64 " blobs, %" PRIu64 " programs, %" PRIu64 " tables recovered", to, result->blobs,
           result->programs, result->tables);
    if (result->salvaged) printf(", %" PRIu64 " of them from behind the last commit", result->salvaged);
    putchar('\n');
    if (stopped) printf("recording had stopped before the program ended: %s\n", stopped);
    if (!lost(result)) {
        puts("nothing was lost");
        return;
    }
    printf("lost: %" PRIu64 " programs, %" PRIu64 " tables, %" PRIu64 " blobs", result->lost_programs,
           result->lost_tables, result->lost_blobs);
    if (result->lost_packs)
        printf(", %" PRIu64 " pack%s of small blobs", result->lost_packs, result->lost_packs == 1 ? "" : "s");
    if (result->places)
        printf(", and whatever stood at %" PRIu64 " place%s where no record is left", result->places,
               result->places == 1 ? "" : "s");
    putchar('\n');
}

int lb_cmd_recover(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_recovery result;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    char *to = out ? strdup(out) : default_output(arguments.args[0]);
    if (!to || lb_capture_recover(arguments.args[0], to, &result, &err) != LB_OK) {
        code = lb_command_fail("recover", &err);
    } else {
        code = lost(&result) ? LB_EXIT_DIFFERENT : LB_EXIT_SAME;
        char *stopped = why_stopped(to);
        if (arguments.json)
            print_json(arguments.args[0], to, &result, stopped);
        else
            print_text(to, &result, stopped);
        free(stopped);
    }
    free(to);
    lb_command_arguments_release(&arguments);
    return code;
}
