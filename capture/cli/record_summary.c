/* What was recorded, and saying so: see record_summary.h. */
#include "cli/record_summary.h"
#include "command/command_line.h"
#include "launch/launch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/input.h>
#include <lastbit/maintenance.h>
#include <lastbit/text.h>

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define LEAST_FREE_BYTES 65536

static void weigh(const char *folder, lb_record_summary *recorded)
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
static void note_stop(lb_capture *capture, int32_t rank, lb_record_summary *recorded)
{
    const char *table = lb_capture_table(capture, rank, "coverage");
    json_t *coverage = table ? json_loads(table, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(coverage, "stopped"));
    if (why)
        snprintf(recorded->stopped, sizeof recorded->stopped, "it went no further: %s%s",
                 lb_error_is_full_disk(why) ? "the disk is full: " : "", why);
    json_decref(coverage);
}

void lb_record_summary_look(const char *folder, lb_record_summary *recorded)
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

void lb_record_summary_rescue(const lb_record_options *options, const char *folder, lb_record_summary *recorded)
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
static void explain_steps(const lb_record_options *options, const lb_record_summary *recorded,
                          const lb_launch_report *notes, char *why, size_t size)
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

static void explain_nothing(const lb_record_options *options, const lb_record_summary *recorded,
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
static void say_unread(const lb_record_options *options, const lb_record_summary *recorded)
{
    char path[PATH_MAX + 2];
    if (recorded->unread)
        fprintf(stderr,
                "lastbit: files of the flight recorder could not be read whole and stay in %s%s%s: "
                "`lastbit recover %s` tries them again\n",
                options->out, recorded->err.status != LB_OK ? ": " : "", recorded->err.message,
                quoted(options->out, path, sizeof path));
}

void lb_record_summary_say(const lb_record_options *options, const lb_record_summary *recorded,
                           const lb_launch_report *notes)
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

void lb_record_summary_say_json(const lb_record_options *options, const lb_record_summary *recorded,
                                const lb_launch_report *notes, int code)
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
    if (object) lb_command_print_json("record", object);
}
