/* lastbit record: runs a program under the recorder and passes its exit code on.
 *
 * Everything that can be wrong with the options is found before the program starts: it may run for hours. Afterwards
 * one line on stderr says what was recorded and what to type next, or why nothing was.
 */
#include <lastbit/archive.h>
#include <lastbit/input.h>
#include <lastbit/text.h>
#include <lastbit/maintenance.h>
#include <lastbit/text_stream.h>
#include "cli/record_summary.h"
#include "command/command_line.h"
#include "launch/launch.h"
#include "launch/launch_folder.h"
#include "command/refusal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME "record"

static void release(lb_record_options *options)
{
    char *texts[] = {options->out,      options->level,         options->steps, options->ranks,
                     options->keep, /* popt's copies */
                     options->layers,   options->budget,        options->ring,  options->compiled,
                     options->step_at,  options->like,          options->nccl,  options->nccl_step,
                     options->mpi_step, options->device_memory, options->sync,  options->close_each};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free(texts[i]);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* "3", "3-5", "3-", and several with commas between; numbers below 2^31, no range backwards. */
static bool is_ranges(const char *text)
{
    for (;;) {
        char *end;
        if (!isdigit((unsigned char)*text)) return false;
        errno = 0;
        unsigned long first = strtoul(text, &end, 10);
        if (errno || first > INT_MAX) return false;
        if (*end == '-' && isdigit((unsigned char)end[1])) {
            unsigned long last = strtoul(end + 1, &end, 10);
            if (errno || last > INT_MAX || last < first) return false;
        } else if (*end == '-') {
            end++;
        }
        if (!*end) return true;
        if (*end != ',') return false;
        text = end + 1;
    }
}

static int check_regex(const char *option, const char *pattern)
{
    if (!pattern) return 0;
    int error;
    PCRE2_SIZE offset;
    char *spelt = lb_text_escaped(LB_TEXT_PATTERN, pattern, strlen(pattern));
    if (!spelt) return LB_EXIT_FAILED;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)spelt, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code), free(spelt);
    if (code) return 0;
    char message[160] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return lb_command_misused(NAME, "%s: `%s` is not a regular expression: %s (at character %zu)", option, pattern,
                              message, (size_t)offset);
}

static bool is_number_of_calls(const char *text)
{
    return *text && *text != '0' && !text[strspn(text, "0123456789")] && strlen(text) <= 9;
}

/* 0, or the exit code of a misuse. */
static int check_options(lb_record_options *options)
{
    static const char *const levels[] = {"auto", "stats", "sources", "layers", "ops"};
    bool known = !options->level;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) known = known || strcmp(options->level, levels[i]) == 0;
    if (!known)
        return lb_command_misused(NAME, "--level: `%s` is none of auto, stats, sources, layers, ops", options->level);
    if (options->steps && !is_ranges(options->steps))
        return lb_command_misused(NAME, "--steps: `%s` is not a list of steps such as 3, 3-5 or 0,10-12",
                                  options->steps);
    if (options->ranks && !is_ranges(options->ranks))
        return lb_command_misused(NAME, "--ranks: `%s` is not a list of ranks such as 0, 0-3 or 0,5", options->ranks);
    if (options->budget && !lb_command_parse_size(options->budget, &options->budget_bytes))
        return lb_command_misused(NAME, "--budget: `%s` is not a size such as 500M or 2G", options->budget);
    if (options->device_memory &&
        (!lb_command_parse_size(options->device_memory, &options->device_bytes) || !options->device_bytes))
        return lb_command_misused(NAME, "--device-memory: `%s` is not a size such as 64M or 1G",
                                  options->device_memory);
    if (options->ring) {
        char *end;
        options->ring_steps = strtoul(options->ring, &end, 10);
        if (!isdigit((unsigned char)options->ring[0]) || *end || options->ring_steps < 1 ||
            options->ring_steps > 1000000)
            return lb_command_misused(NAME, "--ring: `%s` is not a number of steps from 1 to 1000000", options->ring);
        if (options->steps)
            return lb_command_misused(NAME, "--ring and --steps exclude each other: a ring is written at a trigger");
    }
    if (options->close_each) {
        char *end;
        options->close_steps = strcmp(options->close_each, "step") ? strtoul(options->close_each, &end, 10) : 1;
        if (strcmp(options->close_each, "step") && (!isdigit((unsigned char)options->close_each[0]) || *end ||
                                                    options->close_steps < 1 || options->close_steps > 1000000))
            return lb_command_misused(NAME,
                                      "--close-each: `%s` is neither `step` nor a number of steps from 1 to 1000000",
                                      options->close_each);
        if (options->ring)
            return lb_command_misused(NAME,
                                      "--close-each and --ring exclude each other: a ring is written at a trigger");
    }
    if (options->like && (options->level || options->keep || options->layers))
        return lb_command_misused(NAME, "--like keeps what %s kept: it stands in place of --level, --keep and --layers",
                                  options->like);
    if (options->like && options->ring) return lb_command_misused(NAME, "--like and --ring exclude each other");
    if (options->compiled && strcmp(options->compiled, "eager") && strcmp(options->compiled, "graph") &&
        strcmp(options->compiled, "kernels"))
        return lb_command_misused(NAME, "--compiled: `%s` is none of eager, graph, kernels", options->compiled);
    if (options->sync && strcmp(options->sync, "never") && strcmp(options->sync, "close") &&
        strcmp(options->sync, "step"))
        return lb_command_misused(NAME, "--sync: `%s` is none of never, close, step", options->sync);
    if (options->nccl && strcmp(options->nccl, "bytes") != 0 && strcmp(options->nccl, "calls") != 0 &&
        strcmp(options->nccl, "off") != 0)
        return lb_command_misused(NAME, "--nccl: `%s` is none of bytes, calls, off", options->nccl);
    if (options->nccl_step && !is_number_of_calls(options->nccl_step))
        return lb_command_misused(NAME, "--nccl-step: `%s` is not a number of calls", options->nccl_step);
    if (options->mpi_step && !is_number_of_calls(options->mpi_step))
        return lb_command_misused(NAME, "--mpi-step: `%s` is not a number of calls", options->mpi_step);
    if (options->mpi_step && !options->mpi) return lb_command_misused(NAME, "--mpi-step goes with --mpi");
    if (options->mpi && (options->nccl || options->compiled || options->step_at))
        return lb_command_misused(NAME, "--mpi records calls of MPI alone: --nccl, "
                                        "--compiled and --step-at do not go with it");
    int code = check_regex("--keep", options->keep);
    if (code == 0 && options->step_at && !options->step_at[strspn(options->step_at, " \t")])
        return lb_command_misused(NAME, "--step-at: the name of a module or a function is missing");
    return code ? code : check_regex("--layers", options->layers);
}

/* ---- the environment --------------------------------------------------------------------------------------------- */

/* What is not asked for is unset: a variable left from elsewhere must not change what is recorded. */
static int put(const char *name, const char *text)
{
    return text ? setenv(name, text, 1) : unsetenv(name);
}

static lb_status tell_child(const lb_record_options *options, const char *folder, const lb_launch *launch, lb_err *err)
{
    char number[32];
    int failed = put("LASTBIT_OUT", folder);
    failed |= put("LASTBIT_LEVEL", options->level ? options->level : "auto");
    failed |= put("LASTBIT_STEPS", options->steps) | put("LASTBIT_RANKS", options->ranks);
    failed |= put("LASTBIT_KEEP", options->keep) | put("LASTBIT_LAYERS", options->layers);
    snprintf(number, sizeof number, "%" PRIu64, options->budget_bytes);
    failed |= put("LASTBIT_BUDGET", options->budget ? number : NULL);
    snprintf(number, sizeof number, "%" PRIu64, options->device_bytes);
    failed |= put("LASTBIT_DEVICE_MEMORY", options->device_memory ? number : NULL);
    snprintf(number, sizeof number, "%lu", options->ring_steps);
    failed |= put("LASTBIT_RING", options->ring ? number : NULL);
    failed |= put("LASTBIT_RING_FILES", options->ring ? "1" : NULL);
    failed |= put("LASTBIT_SYNC", options->sync);
    snprintf(number, sizeof number, "%lu", options->close_steps);
    failed |= put("LASTBIT_CLOSE_EACH", options->close_each ? number : NULL);
    failed |= put("LASTBIT_COMPILED", options->compiled) | put("LASTBIT_STEP_AT", options->step_at);
    failed |= put("LASTBIT_LIKE", options->like) | put("LASTBIT_LINES", options->no_lines ? "0" : NULL);
    failed |= put("LASTBIT_RECEIPT_HOST", options->receipt_host ? "1" : NULL);
    failed |= put("LASTBIT_POISON", options->poison ? "1" : NULL);
    failed |=
        put("LASTBIT_NCCL_KEEP", options->mpi ? "off" : options->nccl) | put("LASTBIT_NCCL_STEP", options->nccl_step);
    failed |= put("LASTBIT_MPI_KEEP", options->mpi ? "bytes" : "off") | put("LASTBIT_MPI_STEP", options->mpi_step);
    if (failed) return lb_fail(err, LB_ERR_NOMEM, "no memory for the environment");
    if (options->mpi) { /* one recorder to an archive: calls of MPI, and nothing of Python */
        LB_TRY(lb_launch_preload_mpi(launch, err));
        return lb_launch_library(launch, err);
    }
    if (!options->nccl || strcmp(options->nccl, "off") != 0) {
        if (launch->nccl && !lb_launch_preloads(launch))
            fprintf(stderr,
                    "lastbit: calls of NCCL beneath PyTorch are not recorded: "
                    "LD_PRELOAD takes no path with a space or a colon, as %s has\n",
                    launch->nccl);
        LB_TRY(lb_launch_preload(launch, err));
        LB_TRY(lb_launch_nccl_behind(folder, err));
    }
    return lb_launch_environment(launch, err);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* The steps that the other capture holds, as --steps takes them. */
static char *steps_of(lb_capture *other)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(other, &steps);
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    for (uint32_t first = 0, next; first < n; first = next) {
        for (next = first + 1; next < n && steps[next] == steps[next - 1] + 1;) next++;
        fprintf(out, "%s%" PRId64, first ? "," : "", steps[first]);
        if (next > first + 1) fprintf(out, "-%" PRId64, steps[next - 1]);
    }
    fclose(out);
    return text;
}

/* Whether there is something to be like, before the program starts; its path from wherever a process of it stands, and
 * its steps. */
static lb_status resolve_like(lb_record_options *options, lb_err *err)
{
    lb_capture *other = NULL;
    const int64_t *steps;
    if (!options->like) return LB_OK;
    LB_TRY(lb_capture_open(options->like, &other, err));
    lb_status status = LB_OK;
    if (!lb_capture_steps(other, &steps))
        status = lb_fail(err, LB_ERR_INVALID, "--like: %s holds no recorded step", options->like);
    char *path = realpath(options->like, NULL);
    if (status == LB_OK && !options->steps) options->steps = steps_of(other);
    lb_capture_close(other);
    if (path) {
        free(options->like);
        options->like = path;
    }
    return status;
}

/* Under --json our answer has stdout for itself: what the program prints there goes to stderr. */
static lb_status run_program(const char **argv, bool json, int *code, lb_err *err)
{
    fflush(stdout);
    const int ours = json ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    if (ours >= 0) dup2(STDERR_FILENO, STDOUT_FILENO);
    const lb_status status = lb_launch_run(argv, code, err);
    if (ours >= 0) {
        dup2(ours, STDOUT_FILENO);
        close(ours);
    }
    return status;
}

static int run(lb_record_options *options, const char **argv, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_launch launch;
    char *folder = NULL;
    int code = LB_EXIT_FAILED;
    char *python = lb_command_python_folder();
    lb_status status = lb_launch_find(python, &launch, &err);
    if (status == LB_OK) status = resolve_like(options, &err);
    if (status == LB_OK && options->like)
        status = lb_output_inputs_refuse(options->out, (const char *[]){options->like, NULL}, &err);
    free(python);
    if (status == LB_OK) status = lb_launch_folder_make(options->out, options->force, &folder, &err);
    if (status == LB_OK) status = tell_child(options, folder, &launch, &err);
    if (status != LB_OK) {
        code = lb_command_fail(NAME, &err);
    } else if (run_program(argv, json, &code, &err) != LB_OK) {
        lb_command_fail(NAME, &err);
        lb_launch_folder_tidy(folder);
    } else {
        lb_record_summary recorded = {.code = code};
        lb_launch_report notes;
        lb_refusal_pass_on(code);
        lb_record_summary_rescue(options, folder, &recorded);
        lb_record_summary_look(folder, &recorded);
        lb_launch_notes(folder, &notes);
        /* A folder without a step would be in the way of the next start. */
        if (recorded.steps == 0 && recorded.err.status == LB_OK && !recorded.unread && !lb_launch_is_shared())
            lb_launch_folder_drop(folder);
        else
            lb_launch_folder_tidy(folder);
        if (lb_launch_is_first()) lb_record_summary_say(options, &recorded, &notes);
        if (json) lb_record_summary_say_json(options, &recorded, &notes, code);
    }
    free(folder);
    lb_launch_release(&launch);
    return code;
}

int lb_cmd_record(int argc, const char **argv)
{
    lb_record_options given = {0};
    const struct poptOption options[] = {
        {"output", 'o', POPT_ARG_STRING, &given.out, 0, "the capture's folder (run.lb), created for you alone",
         "FOLDER"},
        {"level", 0, POPT_ARG_STRING, &given.level, 0,
         "bytes kept: stats (none), sources (what replay cannot recompute), layers (and their inputs and outputs), "
         "ops (and every result), auto (of each step the highest that fits whole into 256 MB, 2 GB per rank)",
         "LEVEL"},
        {"steps", 0, POPT_ARG_STRING, &given.steps, 0, "record these steps only", "A-B"},
        {"ranks", 0, POPT_ARG_STRING, &given.ranks, 0, "record these ranks only", "A,B-C"},
        {"keep", 0, POPT_ARG_STRING, &given.keep, 0, "keep the results of ops whose layer/op matches, at any level",
         "REGEX"},
        {"layers", 0, POPT_ARG_STRING, &given.layers, 0, "levels layers and ops keep bytes in these layers only",
         "REGEX"},
        {"budget", 0, POPT_ARG_STRING, &given.budget, 0, "write at most this much per rank", "SIZE"},
        {"device-memory", 0, POPT_ARG_STRING, &given.device_memory, 0,
         "take at most this much memory of each GPU for what is measured there (256M)", "SIZE"},
        {"ring", 0, POPT_ARG_STRING, &given.ring, 0,
         "flight recorder: hold the last K to 2K steps, write them when the run goes wrong, also when it is killed",
         "K"},
        {"sync", 0, POPT_ARG_STRING, &given.sync, 0,
         "when the capture is forced to the disk; a power cut loses what came later: close (default: once, "
         "when recording ends), step (after each step, which waits for the disk), never",
         "WHEN"},
        {"close-each", 0, POPT_ARG_STRING, &given.close_each, 0,
         "for object stores: each rank closes its file after every N steps (step: 1) and begins another; "
         "a closed file never changes",
         "N"},
        {"like", 0, POPT_ARG_STRING, &given.like, 0,
         "keep what that capture kept, so that the two can be compared: its steps (unless --steps says others), "
         "their levels, and of each op and layer what it has",
         "CAPTURE"},
        {"compiled", 0, POPT_ARG_STRING, &given.compiled, 0,
         "how functions of torch.compile run in recorded steps: eager (as if they were not compiled), "
         "graph (the graphs of ATen ops that the compiler makes, run op by op; in all steps), "
         "or kernels (as inductor compiled them; the bits that enter and leave each compiled graph are recorded, "
         "and beside them its ops one by one)",
         "HOW"},
        {"step-at", 0, POPT_ARG_STRING, &given.step_at, 0,
         "a step begins at each call of this module (its path or class) or function (train_step, "
         "Trainer.training_step), and nowhere else",
         "NAME"},
        {"nccl", 0, POPT_ARG_STRING, &given.nccl, 0,
         "of programs that call NCCL without PyTorch: bytes (default: what each call sends and receives), "
         "calls (neither bytes nor digests), off (no library is preloaded; "
         "programs built with AddressSanitizer need this)",
         "HOW"},
        {"nccl-step", 0, POPT_ARG_STRING, &given.nccl_step, 0,
         "a step of such a program is N collectives of its first communicator (100), "
         "unless it calls lb_nccl_step (lastbit/nccl.h)",
         "N"},
        {"mpi", 0, POPT_ARG_NONE, &given.mpi, 0,
         "record a program's calls of MPI (Open MPI, MPICH), in place of PyTorch's ops: "
         "what each collective and each message sends and receives",
         NULL},
        {"mpi-step", 0, POPT_ARG_STRING, &given.mpi_step, 0,
         "a step of such a program is N collectives of all ranks (100), unless it calls MPI_Pcontrol(2) "
         "or lb_mpi_step (lastbit/mpi.h)",
         "N"},
        {"no-lines", 0, POPT_ARG_NONE, &given.no_lines, 0,
         "leave out which line of the program's code called each op, and its text", NULL},
        {"poison", 0, POPT_ARG_NONE, &given.poison, 0,
         "fill memory that torch.empty and its like leave unwritten with NaN, so that what no kernel writes is seen",
         NULL},
        {"receipt-host", 0, POPT_ARG_NONE, &given.receipt_host, 0, "keep the machine's name in the receipt", NULL},
        {"force", 0, POPT_ARG_NONE, &given.force, 0, "replace a capture of that name", NULL},
        POPT_TABLEEND,
    };
    const lb_command command = {
        .name = NAME,
        .synopsis = "-- COMMAND [ARGS]",
        .about =
            "Runs COMMAND and records the PyTorch steps of every Python process it starts, "
            "also under torchrun and multiprocessing. "
            "The program needs no change and lastbit need not be installed in its environment. "
            "Its exit code is passed on (128 + N when signal N ended it); lastbit's own failures are 128, "
            "misuse is 129. With --json stdout is one JSON object, and what the program prints there goes to stderr. "
            "A capture holds data and weights: its folder is readable by you alone. "
            "Of programs without PyTorch (JAX, TensorRT-LLM, C++) the calls of NCCL are recorded, "
            "and with --mpi those of MPI; nothing else of them is. Programs in C, "
            "C++ and CUDA can record themselves by lastbit/capture.h, which takes arrays of any framework by DLPack.",
        .example = "  lastbit record -o run.lb --steps 3-5 -- torchrun --nproc-per-node 2 train.py --lr 3e-4\n"
                   "  lastbit bisect run.lb",
        .options = options,
        .min_args = 0,
        .max_args = 0,
    };
    int own = 1; /* what stands before `--` is ours */
    while (own < argc && strcmp(argv[own], "--") != 0) own++;
    lb_command_arguments arguments;
    const char **program = own < argc ? argv + own + 1 : NULL;
    const char **ours = malloc((size_t)(own + 1) * sizeof *ours);
    if (!ours) return LB_EXIT_FAILED;
    memcpy(ours, argv, (size_t)own * sizeof *ours);
    ours[own] = NULL;
    int code = lb_command_arguments_parse(&command, own, ours, &arguments);
    if (code < 0) {
        if (!program || !program[0])
            code = lb_command_misused(
                NAME, "what is to be run? Put the program after `--`: lastbit record -o run.lb -- python train.py");
        else
            code = check_options(&given);
        if (code == 0 && !given.out) given.out = strdup("run.lb");
        if (code == 0) code = run(&given, program, arguments.json);
        lb_command_arguments_release(&arguments);
    }
    release(&given);
    free(ours);
    return code;
}
