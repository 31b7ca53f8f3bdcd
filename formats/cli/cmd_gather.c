/* lastbit gather: chosen steps of chosen ranks, from the folders of several machines, in one capture. */
#include "command/command_line.h"
#include "command/number_list.h"

#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static char *out, *steps_text, *ranks_text;
static int force;

static const struct poptOption options[] = {
    {"output", 'o', POPT_ARG_STRING, &out, 0, "the folder to write", "FOLDER"},
    {"steps", 0, POPT_ARG_STRING, &steps_text, 0, "these steps only, e.g. 3-5,8", "LIST"},
    {"ranks", 0, POPT_ARG_STRING, &ranks_text, 0, "these ranks only, e.g. 0,8-11", "LIST"},
    {"force", 'f', POPT_ARG_NONE, &force, 0, "replace a capture of that name", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "gather",
    .synopsis = "CAPTURE [CAPTURE2 ...]",
    .about =
        "Brings steps of ranks together in one capture, which every command reads: of a run whose ranks were recorded\n"
        "into a folder on each machine, or of one that is too large to be copied whole. "
        "Bytes that those steps need come\n"
        "with them, once where several ranks hold the same. "
        "Of a folder only the archives of the ranks that are asked for\n"
        "are read. Exit code 0 when everything that was asked for is there, 1 when a rank, a step of a rank, or bytes\n"
        "that were kept once are in none of the captures: they are named, and the rest is gathered all the same.",
    .example = "  lastbit gather node*/run.lb -o step41.lb --steps 41\n"
               "  lastbit gather run.lb -o some.lb --steps 41-43 --ranks 0,8-11",
    .options = options,
    .min_args = 1,
    .max_args = -1,
};

/* ---- what is lacking --------------------------------------------------------------------------------------------- */

/* A few lines say as much as thousands. */
enum { LACKING_SHOWN = 8 };

static void note_lacking(void *context, int32_t rank, int64_t step)
{
    json_array_append_new((json_t *)context, json_pack("{s:i, s:I}", "rank", (int)rank, "step", (json_int_t)step));
}

/* Ranks that --ranks names and that were not gathered; at most as many as the capture may have in all. */
static json_t *absent_ranks(const char *path)
{
    json_t *absent = json_array();
    lb_capture *capture;
    const int32_t *ranks;
    int64_t low, high;
    if (!ranks_text || lb_capture_open(path, &capture, NULL) != LB_OK) return absent;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    for (const char *at = ranks_text; lb_number_list_next(&at, &low, &high);)
        for (int64_t rank = low, r = 0; rank <= high && json_array_size(absent) < 65536; rank++) {
            while (r < n && ranks[r] < rank) r++;
            if (r == n || ranks[r] != rank) json_array_append_new(absent, json_integer((json_int_t)rank));
        }
    lb_capture_close(capture);
    return absent;
}

static void print_lacking(const json_t *lacking, const json_t *absent)
{
    size_t i;
    json_t *item;
    if (json_array_size(absent)) printf("not there: rank%s", json_array_size(absent) == 1 ? "" : "s");
    json_array_foreach(absent, i, item)
    {
        if (i < LACKING_SHOWN) printf("%s %" JSON_INTEGER_FORMAT, i ? "," : "", json_integer_value(item));
    }
    if (json_array_size(absent) > LACKING_SHOWN) printf(" and %zu more", json_array_size(absent) - LACKING_SHOWN);
    if (json_array_size(absent)) putchar('\n');
    json_array_foreach(lacking, i, item)
    {
        if (i < LACKING_SHOWN)
            printf("not there: step %" JSON_INTEGER_FORMAT " of rank %" JSON_INTEGER_FORMAT "\n",
                   json_integer_value(json_object_get(item, "step")),
                   json_integer_value(json_object_get(item, "rank")));
    }
    if (json_array_size(lacking) > LACKING_SHOWN) printf("and %zu more\n", json_array_size(lacking) - LACKING_SHOWN);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static bool want_rank(void *context, int32_t rank)
{
    (void)context;
    return lb_number_list_holds(ranks_text, rank);
}

static bool want_step(void *context, int64_t step)
{
    (void)context;
    return lb_number_list_holds(steps_text, step);
}

static void progress(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    lb_command_progress("gathering", done, total);
}

static void print_gathering(const lb_gathering *result, const json_t *lacking, const json_t *absent)
{
    char bytes[16], file[16];
    printf("%s: %" PRIu64 " programs of %" PRIu32 " rank%s, and %" PRIu64 " blobs of %s, in %s\n", out,
           result->programs, result->ranks, result->ranks == 1 ? "" : "s", result->blobs,
           lb_command_bytes_text(result->blob_bytes, bytes), lb_command_bytes_text(result->file_bytes, file));
    print_lacking(lacking, absent);
    if (result->missing)
        printf("missing: bytes of %" PRIu64 " values, which were kept once and are in none of the captures\n",
               result->missing);
}

static json_t *capture_names(const lb_command_arguments *arguments)
{
    json_t *names = json_array();
    for (int i = 0; i < arguments->n_args; i++) json_array_append_new(names, json_string(arguments->args[i]));
    return names;
}

static int gather(const lb_command_arguments *arguments)
{
    lb_err err = LB_ERR_INIT;
    lb_gathering result;
    lb_gather_options how = LB_GATHER_OPTIONS_INIT;
    json_t *lacking = json_array();
    how.want_rank = want_rank;
    how.want_step = want_step;
    how.lacks = note_lacking;
    how.context = lacking;
    how.progress = progress;
    how.overwrite = force != 0;
    lb_status status = lb_output_inputs_refuse(out, arguments->args, &err);
    const bool is_input = status != LB_OK;
    if (!is_input) status = lb_capture_gather(arguments->args, (uint32_t)arguments->n_args, out, &how, &result, &err);
    lb_command_progress_end();
    if (status != LB_OK) {
        json_decref(lacking);
        if (status == LB_ERR_EXISTS && !is_input && !force) { /* the library knows no options */
            lb_err_clear(&err);
            lb_fail(&err, status, "%s exists; --force replaces a capture, -o writes another", out);
        }
        return lb_command_fail("gather", &err);
    }
    json_t *absent = absent_ranks(out);
    const bool all = !result.lacking && !result.missing && !json_array_size(absent);
    if (arguments->json)
        lb_command_print_json(
            "gather", json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:O, s:O}", "captures",
                                capture_names(arguments), "output", out, "ranks", (json_int_t)result.ranks, "programs",
                                (json_int_t)result.programs, "blobs", (json_int_t)result.blobs, "blob_bytes",
                                (json_int_t)result.blob_bytes, "missing", (json_int_t)result.missing, "file_bytes",
                                (json_int_t)result.file_bytes, "absent_ranks", absent, "absent_steps", lacking));
    else
        print_gathering(&result, lacking, absent);
    json_decref(absent);
    json_decref(lacking);
    return all ? LB_EXIT_SAME : LB_EXIT_DIFFERENT;
}

int lb_cmd_gather(int argc, const char **argv)
{
    lb_command_arguments arguments;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    if (!out)
        code = lb_command_misused("gather", "say where to write: -o FOLDER");
    else if (!lb_number_list_is_valid(steps_text) || !lb_number_list_is_valid(ranks_text))
        code = lb_command_misused("gather", "--steps and --ranks take a list such as 3-5,8");
    else
        code = gather(&arguments);
    lb_command_arguments_release(&arguments);
    return code;
}
