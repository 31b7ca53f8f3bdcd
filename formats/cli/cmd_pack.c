/* lastbit pack: a capture as one compressed file, with private bytes left out when asked. */
#include "command/command_line.h"
#include "command/number_list.h"

#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *out, *strip_text, *steps_text, *ranks_text;
static int level = 9, force;

static const struct poptOption options[] = {
    {"output", 'o', POPT_ARG_STRING, &out, 0, "file to write (default: CAPTURE with suffix .lbz)", "FILE"},
    {"strip", 0, POPT_ARG_STRING, &strip_text, 0,
     "leave out bytes of data, params, state, results; receipt: what the run was", "KINDS"},
    {"steps", 0, POPT_ARG_STRING, &steps_text, 0, "these steps only, e.g. 3-5,8", "LIST"},
    {"ranks", 0, POPT_ARG_STRING, &ranks_text, 0, "these ranks only", "LIST"},
    {"level", 0, POPT_ARG_INT, &level, 0, "zstd level, 1 to 19 (9)", "N"},
    {"force", 'f', POPT_ARG_NONE, &force, 0, "replace an existing file", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "pack",
    .synopsis = "CAPTURE",
    .about = "Packs a capture into one file that every command reads in place of the folder: bytes compressed, equal\n"
             "bytes of all ranks stored once. --strip leaves bytes out (data: batches; params; state: optimizer state\n"
             "and buffers; results of ops), with copies and casts of them, but keeps programs, digests and statistics; "
             "receipt leaves out what the run was: arguments, variables, versions, files of code.\n"
             "What was computed from private data may still tell something about it: strip results too when that\n"
             "matters, and look at `lastbit ls --tables`.",
    .example = "  lastbit pack run.lb\n  lastbit pack run.lb -o bug.lbz --steps 41-43 --strip data,params",
    .options = options,
    .min_args = 1,
    .max_args = 1,
};

static bool want(void *context, int32_t rank, int64_t step)
{
    (void)context;
    return lb_number_list_holds(steps_text, step) && lb_number_list_holds(ranks_text, rank);
}

static bool parse_strip(const char *text, uint32_t *strip)
{
    static const char *const names[] = {"data", "params", "state", "results", "receipt"};
    while (text && *text) {
        size_t n = strcspn(text, ",");
        int k = 0;
        while (k < 5 && (strlen(names[k]) != n || strncmp(text, names[k], n) != 0)) k++;
        if (k == 5) return false;
        *strip |= 1u << k;
        text += n + (text[n] == ',');
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* "runs/a.lb/" gives "runs/a.lbz"; malloc'ed. */
static char *default_output(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n > 3 && strncmp(path + n - 3, ".lb", 3) == 0) n -= 3;
    char *name = malloc(n + 5);
    if (name) sprintf(name, "%.*s.lbz", (int)n, path);
    return name;
}

static void progress(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    lb_command_progress("packing", done, total);
}

static void print_packing(const char *to, const lb_packing *result)
{
    char in[16], out_bytes[16], left[16];
    printf("%s: %" PRIu64 " programs and %" PRIu64 " blobs of %s in %s\n", to, result->programs, result->blobs,
           lb_command_bytes_text(result->blob_bytes, in), lb_command_bytes_text(result->file_bytes, out_bytes));
    if (strip_text)
        printf("left out (%s): %" PRIu64 " blobs of %s\n", strip_text, result->stripped_blobs,
               lb_command_bytes_text(result->stripped_bytes, left));
}

static int pack(const char *path, const char *to, uint32_t strip, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_packing result;
    lb_pack_options how = LB_PACK_OPTIONS_INIT;
    how.level = level;
    how.strip = strip;
    how.overwrite = force != 0;
    how.want = want;
    how.progress = progress;
    lb_status status = lb_output_inputs_refuse(to, (const char *[]){path, NULL}, &err);
    const bool is_input = status != LB_OK;
    if (!is_input) status = lb_capture_pack(path, to, &how, &result, &err);
    lb_command_progress_end();
    if (status == LB_ERR_EXISTS && !is_input && !force) { /* the library knows no options */
        lb_err_clear(&err);
        lb_fail(&err, status, "%s exists; --force replaces it, -o writes another", to);
    }
    if (status != LB_OK) return lb_command_fail("pack", &err);
    double ratio = result.file_bytes ? (double)result.blob_bytes / (double)result.file_bytes : 0;
    if (json)
        lb_command_print_json("pack", json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "capture", path,
                                                "output", to, "programs", (json_int_t)result.programs, "blobs",
                                                (json_int_t)result.blobs, "blob_bytes", (json_int_t)result.blob_bytes,
                                                "stripped_blobs", (json_int_t)result.stripped_blobs, "stripped_bytes",
                                                (json_int_t)result.stripped_bytes, "file_bytes",
                                                (json_int_t)result.file_bytes, "ratio", ratio));
    else
        print_packing(to, &result);
    return LB_EXIT_SAME;
}

int lb_cmd_pack(int argc, const char **argv)
{
    lb_command_arguments arguments;
    uint32_t strip = 0;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    char *to = out ? strdup(out) : default_output(arguments.args[0]);
    if (!lb_number_list_is_valid(steps_text) || !lb_number_list_is_valid(ranks_text))
        code = lb_command_misused("pack", "--steps and --ranks take a list such as 3-5,8");
    else if (!parse_strip(strip_text, &strip))
        code = lb_command_misused("pack", "--strip takes data, params, state, results, receipt, separated by commas");
    else
        code = to ? pack(arguments.args[0], to, strip, arguments.json) : LB_EXIT_FAILED;
    free(to);
    lb_command_arguments_release(&arguments);
    return code;
}
