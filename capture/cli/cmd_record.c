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
#define LEAST_FREE_BYTES 65536

typedef struct lb_record_options {
    char *out, *level, *steps, *ranks, *keep, *layers, *budget, *ring, *compiled, *step_at, *like, *nccl, *nccl_step,
        *mpi_step, *device_memory, *sync, *close_each;
    int mpi, force, no_lines, receipt_host, poison;
    uint64_t budget_bytes, device_bytes;
    unsigned long ring_steps, close_steps;
} lb_record_options;

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

/* ---- what was recorded ------------------------------------------------------------------------------------------- */

typedef struct lb_recorded {
    uint64_t bytes;
    uint32_t archives, ranks, steps;
    bool full; /* the disk */
    int64_t first_step, last_step;
    uint32_t rescued;  /* steps that the flight recorder's files had when the program had ended badly */
    bool unread;       /* files of the flight recorder, or parts of them: they stay */
    int code;          /* of the program */
    char stopped[200]; /* why recording ended before the program did; "": it did not */
    lb_err err;        /* why the capture does not read */
} lb_recorded;

static void weigh(const char *folder, lb_recorded *recorded)
{
    lb_input_names names;
    struct stat info;
    char path[PATH_MAX];
    lb_input_list(folder, &names, recorded->err.status == LB_OK ? &recorded->err : NULL);
    for (uint32_t i = 0; i < names.n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names.rows[i]);
        if (!lb_launch_is_archive(names.rows[i]) || stat(path, &info) != 0) continue;
        recorded->archives++;
        recorded->bytes += (uint64_t)info.st_size;
    }
    lb_input_names_release(&names);
}

/* A disk that is full says so in the words of the system; people are told in theirs. */
static void note_stop(lb_capture *capture, int32_t rank, lb_recorded *recorded)
{
    const char *table = lb_capture_table(capture, rank, "coverage");
    json_t *coverage = table ? json_loads(table, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(coverage, "stopped"));
    if (why)
        snprintf(recorded->stopped, sizeof recorded->stopped, "it went no further: %s%s",
                 lb_error_is_full_disk(why) ? "the disk is full: " : "", why);
    json_decref(coverage);
}

static void look(const char *folder, lb_recorded *recorded)
{
    weigh(folder, recorded);
    struct statvfs disk;
    recorded->ranks = recorded->archives; /* where it does not open, as many as there are files */
    recorded->full = statvfs(folder, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES;
    lb_capture *capture = NULL;
    if (!recorded->archives) return;
    if (recorded->err.status != LB_OK || lb_capture_open(folder, &capture, &recorded->err) != LB_OK) return;
    const int32_t *ranks;
    const int64_t *steps;
    recorded->ranks = lb_capture_ranks(capture, &ranks);
    for (uint32_t r = 0; r < recorded->ranks && !recorded->stopped[0]; r++) note_stop(capture, ranks[r], recorded);
    recorded->steps = lb_capture_steps(capture, &steps);
    if (recorded->steps) {
        recorded->first_step = steps[0];
        recorded->last_step = steps[recorded->steps - 1];
    }
    lb_capture_close(capture);
}

enum { LB_WHY = sizeof((lb_err *)0)->message };

/* "killed by signal 9", "exit code 1"; "" for a program that ended well. */
static const char *how_it_ended(int code, char *text, size_t size)
{
    *text = 0;
    if (code > 128)
        snprintf(text, size, "killed by signal %d", code - 128);
    else if (code)
        snprintf(text, size, "exit code %d", code);
    return text;
}

/* Of a program that was ended: the iteration it was in did not run to its end. */
static const char *iterations(const lb_launch_report *notes, char *text, size_t size)
{
    const long n = notes->last_step - notes->first_step;
    if (n == 0)
        snprintf(text, size, "no iteration");
    else
        snprintf(text, size, "%ld iteration%s", n, n == 1 ? "" : "s");
    return text;
}

/* What the flight recorder left in its files becomes the capture where the program ended badly, whatever ended it. */
static void rescue(const lb_record_options *options, const char *folder, lb_recorded *recorded)
{
    char ended[64], why[96];
    if (!options->ring || lb_launch_is_shared())
        return; /* other processes may still be writing theirs: `recover` takes them */
    snprintf(why, sizeof why, "the program ended: %s", how_it_ended(recorded->code, ended, sizeof ended));
    bool whole = true;
    if (recorded->code &&
        (lb_ring_files_assemble(folder, folder, why, &recorded->rescued, &whole, &recorded->err) != LB_OK || !whole))
        recorded->unread = true;
    else
        lb_ring_files_remove(folder, -1);
}

/* Steps ran, and none of them is there. */
static void explain_steps(const lb_record_options *options, const lb_recorded *recorded, const lb_launch_report *notes,
                          char *why, size_t size)
{
    char steps[64], ended[64];
    if (notes->last_step > notes->first_step)
        snprintf(steps, sizeof steps, "steps %ld to %ld ran", notes->first_step, notes->last_step);
    else
        snprintf(steps, sizeof steps, "step %ld ran", notes->first_step);
    if (recorded->code > 128 || (recorded->code && options->ring))
        snprintf(why, size, "%s ran, nothing was kept: %s", iterations(notes, steps, sizeof steps),
                 how_it_ended(recorded->code, ended, sizeof ended));
    else if (options->ring)
        snprintf(why, size, "%s, and nothing went wrong that the flight recorder writes at", steps);
    else if (options->ranks && !options->steps)
        snprintf(why, size, "steps ran, but in no rank that --ranks %s asks for", options->ranks);
    else if (options->steps)
        snprintf(why, size, "%s, but none that --steps %s%s%s asks for", steps, options->steps,
                 options->ranks ? " and --ranks " : "", options->ranks ? options->ranks : "");
    else
        snprintf(why, size, "%s, and none was recorded to its end", steps);
}

static void explain_nothing(const lb_record_options *options, const lb_recorded *recorded,
                            const lb_launch_report *notes, char *why, size_t size)
{
    if (notes->failure[0])
        snprintf(why, size, "%s", notes->failure);
    else if (recorded->err.status != LB_OK)
        snprintf(why, size, "%s", recorded->err.message);
    else if (recorded->stopped[0])
        snprintf(why, size, "%s", recorded->stopped);
    else if (recorded->full)
        snprintf(why, size, "the disk that holds %s is full", options->out);
    else if (notes->stepped)
        explain_steps(options, recorded, notes, why, size);
    else if (recorded->archives)
        snprintf(why, size, "no step was finished; was any in the window?");
    else if (options->mpi)
        snprintf(why, size,
                 "no call of MPI was seen: does the program call it, "
                 "is it linked with its library (a static one is not seen), "
                 "and did LD_PRELOAD reach its processes (`mpirun -x LD_PRELOAD` on other machines)? "
                 "`lastbit doctor` says which MPI is known here");
    else if (notes->bare[0])
        snprintf(why, size,
                 "the modules that were called (%s) have no parameters, and a step begins at one that has some; "
                 "lastbit.torch.capture and its step() say themselves what a step is",
                 notes->bare);
    else if (notes->torch && options->step_at)
        snprintf(why, size,
                 "nothing called %s was called after torch was imported, and --step-at has steps begin there alone",
                 options->step_at);
    else if (notes->uncalled)
        snprintf(why, size,
                 "modules were made, but none was called, "
                 "and no backward ran (`model.forward(x)` passes by what `model(x)` tells): "
                 "--step-at NAME has a step begin at each call of that function");
    else if (notes->torch)
        snprintf(why, size,
                 "torch was imported, "
                 "but nothing was computed with it (workers of a pool or of a DataLoader are not recorded): "
                 "is the program that computes the one that was started?");
    else if (notes->framework[0])
        snprintf(why, size,
                 "%u Python process%s ran, none imported torch but %s: the launcher records PyTorch alone. What works: "
                 "arrays handed over by DLPack from C or C++, to lb_host_tensor_of_dlpack of lastbit/capture.h, "
                 "or in Python to torch.from_dlpack and lastbit.torch.tap inside lastbit.torch.capture",
                 notes->processes, notes->processes == 1 ? "" : "es", notes->framework);
    else if (notes->processes)
        snprintf(why, size,
                 "%u Python process%s ran, none imported torch, and the launcher records PyTorch alone; "
                 "`lastbit doctor` says what it would see",
                 notes->processes, notes->processes == 1 ? "" : "es");
    else
        snprintf(why, size,
                 "was the program Python, and not started with -S, -I or -E? run `lastbit doctor`. "
                 "The launcher records PyTorch and calls of NCCL alone; a program in C, C++ or CUDA records itself, "
                 "by lastbit/capture.h (samples/train_in_c.c)");
}

/* The path as a shell reads it. */
static const char *quoted(const char *path, char *text, size_t size)
{
    if (!path[strcspn(path, " \t\n'\"\\$&|;<>()*?[]#~`!{}")] || strchr(path, '\'')) return path;
    snprintf(text, size, "'%s'", path);
    return text;
}

/* What was not read whole was not removed either. */
static void say_unread(const lb_record_options *options, const lb_recorded *recorded)
{
    char path[PATH_MAX + 2];
    if (recorded->unread)
        fprintf(stderr,
                "lastbit: files of the flight recorder could not be read whole and stay in %s%s%s: "
                "`lastbit recover %s` tries them again\n",
                options->out, recorded->err.status != LB_OK ? ": " : "", recorded->err.message,
                quoted(options->out, path, sizeof path));
}

static void say(const lb_record_options *options, const lb_recorded *recorded, const lb_launch_report *notes)
{
    char size[32], steps[64], path[PATH_MAX + 2], why[LB_WHY], ended[64], ran[64], rescued[160] = "";
    say_unread(options, recorded);
    if (!recorded->steps) {
        explain_nothing(options, recorded, notes, why, sizeof why);
        fprintf(stderr, "lastbit: nothing was recorded: %s\n", why);
        return;
    }
    lb_command_bytes_text(recorded->bytes, size);
    if (recorded->steps == 1)
        snprintf(steps, sizeof steps, "step %" PRId64, recorded->first_step);
    else
        snprintf(steps, sizeof steps, "%u steps (%" PRId64 " to %" PRId64 ")", recorded->steps, recorded->first_step,
                 recorded->last_step);
    /* After a trigger of its own the flight recorder counts no further. */
    if (recorded->rescued || (recorded->code > 128 && !options->ring)) {
        how_it_ended(recorded->code, ended, sizeof ended);
        if (notes->stepped)
            snprintf(rescued, sizeof rescued, "; %s ran, the last %u kept: %s", iterations(notes, ran, sizeof ran),
                     recorded->steps, ended);
        else /* a program that is seen by its calls alone */
            snprintf(rescued, sizeof rescued, "; %s", ended);
    }
    fprintf(stderr, "lastbit: %s: %s of %u rank%s, %s%s%s%s%s%s. Next: lastbit bisect %s\n", options->out, steps,
            recorded->ranks, recorded->ranks == 1 ? "" : "s", size, recorded->stopped[0] ? "; " : "", recorded->stopped,
            rescued, notes->failure[0] ? "; not every process recorded: " : "", notes->failure,
            quoted(options->out, path, sizeof path));
}

static void say_json(const lb_record_options *options, const lb_recorded *recorded, const lb_launch_report *notes,
                     int code)
{
    char why[LB_WHY] = "";
    if (!recorded->steps) explain_nothing(options, recorded, notes, why, sizeof why);
    json_t *object = json_pack("{s:s, s:i, s:I, s:i, s:i, s:i, s:i}", "capture", options->out, "exit", code, "bytes",
                               (json_int_t)recorded->bytes, "ranks", (int)recorded->ranks, "steps",
                               (int)recorded->steps, "processes", (int)notes->processes, "torch", (int)notes->torch);
    if (object && recorded->steps) {
        json_object_set_new(object, "first_step", json_integer(recorded->first_step));
        json_object_set_new(object, "last_step", json_integer(recorded->last_step));
    } else if (object) {
        json_object_set_new(object, "nothing_because", json_string(why));
    }
    if (object && recorded->unread) json_object_set_new(object, "unread", json_true());
    if (object && recorded->stopped[0]) json_object_set_new(object, "stopped", json_string(recorded->stopped));
    if (object) lb_command_print_json(NAME, object);
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
        lb_recorded recorded = {.code = code};
        lb_launch_report notes;
        lb_refusal_pass_on(code);
        rescue(options, folder, &recorded);
        look(folder, &recorded);
        lb_launch_notes(folder, &notes);
        /* A folder without a step would be in the way of the next start. */
        if (recorded.steps == 0 && recorded.err.status == LB_OK && !recorded.unread && !lb_launch_is_shared())
            lb_launch_folder_drop(folder);
        else
            lb_launch_folder_tidy(folder);
        if (lb_launch_is_first()) say(options, &recorded, &notes);
        if (json) say_json(options, &recorded, &notes, code);
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
