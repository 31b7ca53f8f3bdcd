/* lastbit recover: a new capture from what is whole in a damaged or unfinished one. */
#include "command_line.h"

#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *out;

static const struct poptOption options[] = {
    {"output", 'o', POPT_ARG_STRING, &out, 0, "where to write (default: CAPTURE with .recovered before its suffix)", "PATH"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "recover",
    .synopsis = "CAPTURE",
    .about = "Writes a new capture with every record of the old one that is whole, also those after the last commit, and\n"
             "with a closing index. The old one is not changed. Exit code 0 when nothing was lost, 1 when something was.",
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

int lb_cmd_recover(int argc, const char **argv)
{
    lb_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_recovery r;
    int code = lb_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    char *to = out ? strdup(out) : default_output(arguments.args[0]);
    if (!to || lb_capture_recover(arguments.args[0], to, &r, &err) != LB_OK) {
        code = lb_command_fail("recover", &err);
    } else {
        uint64_t lost = r.lost_blobs + r.lost_programs + r.lost_tables + r.places;
        code = lost ? LB_EXIT_DIFFERENT : LB_EXIT_SAME;
        if (arguments.json)
            lb_print_json("recover", json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "capture", arguments.args[0], "output", to,
                                               "blobs", (json_int_t)r.blobs, "programs", (json_int_t)r.programs, "tables",
                                               (json_int_t)r.tables, "lost_blobs", (json_int_t)r.lost_blobs, "lost_programs",
                                               (json_int_t)r.lost_programs, "lost_tables", (json_int_t)r.lost_tables, "places",
                                               (json_int_t)r.places, "salvaged", (json_int_t)r.salvaged));
        else
            printf("%s: %" PRIu64 " blobs, %" PRIu64 " programs, %" PRIu64 " tables recovered (%" PRIu64 " records from behind the last commit)\n"
                   "lost: %" PRIu64 " blobs, %" PRIu64 " programs, %" PRIu64 " tables, and %" PRIu64 " place%s where no record is left\n",
                   to, r.blobs, r.programs, r.tables, r.salvaged, r.lost_blobs, r.lost_programs, r.lost_tables, r.places,
                   r.places == 1 ? "" : "s");
    }
    free(to);
    lb_arguments_release(&arguments);
    return code;
}
