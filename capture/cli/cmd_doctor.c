/* lastbit doctor: would recording work with this Python, what would it see, what not, and why.
 *
 * The checks run inside that Python (capture/lastbit/doctor.py), in the very environment that `lastbit record` makes,
 * and end with two recorded training steps; this side opens their capture, prints the answers and makes the verdict.
 */
#include <lastbit/archive.h>
#include <lastbit/input.h>
#include "command/command_line.h"
#include "launch/launch.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "doctor"

static const char *const states[] = {"ok", "note", "degraded", "impossible"};
enum { OK, NOTE, DEGRADED, IMPOSSIBLE, STATES };

static int state_of(const json_t *check)
{
    const char *text = json_string_value(json_object_get(check, "state"));
    for (int s = 0; text && s < STATES; s++)
        if (strcmp(text, states[s]) == 0) return s;
    return DEGRADED;
}

static void add(json_t *checks, int state, const char *what, const char *detail, const char *advice)
{
    json_array_append_new(checks, json_pack("{s:s, s:s, s:s, s:s}", "state", states[state], "what", what, "detail",
                                            detail, "advice", advice));
}

/* The program that users mean by "python", unless they name one. */
static const char *default_python(void)
{
    const char *path = getenv("PATH");
    for (const char *part = path ? path : ""; *part;) {
        size_t n = strcspn(part, ":");
        char file[PATH_MAX];
        const bool whole = snprintf(file, sizeof file, "%.*s/python", (int)n, part) < (int)sizeof file;
        if (whole && access(file, X_OK) == 0) return "python";
        if (whole && !lb_input_is_absent(errno) && errno != EACCES) lb_input_refuse(file, "look at", errno, NULL);
        part += n + (part[n] == ':');
    }
    return "python3";
}

/* A scratch folder: capture, answer and log. */
typedef struct lb_doctor_scratch {
    char folder[PATH_MAX / 2], capture[PATH_MAX], answer[PATH_MAX], log[PATH_MAX];
} lb_doctor_scratch;

static lb_status scratch_make(lb_doctor_scratch *scratch, lb_err *err)
{
    const char *temporary = getenv("TMPDIR");
    int n = snprintf(scratch->folder, sizeof scratch->folder, "%s/lastbit-doctor-XXXXXX",
                     temporary && *temporary ? temporary : "/tmp");
    if (n >= (int)sizeof scratch->folder || !mkdtemp(scratch->folder))
        return lb_fail(err, LB_ERR_IO, "%s: no scratch folder can be made there; set TMPDIR", scratch->folder);
    snprintf(scratch->capture, sizeof scratch->capture, "%s/trial.lb", scratch->folder);
    if (mkdir(scratch->capture, 0700) != 0) return lb_fail(err, LB_ERR_IO, "%s cannot be made", scratch->capture);
    snprintf(scratch->answer, sizeof scratch->answer, "%s/answer.json", scratch->folder);
    snprintf(scratch->log, sizeof scratch->log, "%s/log", scratch->folder);
    return LB_OK;
}

static void scratch_remove(const lb_doctor_scratch *scratch)
{
    char file[2 * PATH_MAX];
    DIR *folder = opendir(scratch->capture);
    for (struct dirent *entry;
         folder && (entry = readdir(folder));) { /* the archive, and what the processes noted for the launcher */
        snprintf(file, sizeof file, "%s/%s", scratch->capture, entry->d_name);
        unlink(file);
    }
    if (folder) closedir(folder);
    unlink(scratch->answer);
    unlink(scratch->log);
    rmdir(scratch->capture);
    rmdir(scratch->folder);
}

/* The last line of the log that says something: where an interpreter puts the error. */
static void last_line(const char *path, char *text, size_t size)
{
    char line[512];
    FILE *file = fopen(path, "re");
    text[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0]) snprintf(text, size, "%s", line);
    }
    if (file) fclose(file);
}

/* Runs the checks there; *checks is what they found. */
static lb_status examine(const char *python, const lb_doctor_scratch *scratch, json_t **checks, lb_err *err)
{
    static const char *const unset[] = {"LASTBIT_STEPS",   "LASTBIT_RANKS",  "LASTBIT_KEEP",
                                        "LASTBIT_LAYERS",  "LASTBIT_BUDGET", "LASTBIT_RING",
                                        "LASTBIT_DISABLE", "RANK",           "WORLD_SIZE"};
    static const char code[] =
        /* the current folder: its json.py is not ours to run */
        "import sys\nif sys.path and not sys.path[0]: del sys.path[0]\n"
        "from lastbit import doctor\ndoctor.main(*sys.argv[1:])\n";
    const char *argv[] = {python, "-c", code, scratch->answer, scratch->log, NULL};
    lb_launch launch;
    char *folder = lb_command_python_folder();
    lb_status status = lb_launch_find(folder, &launch, err);
    free(folder);
    if (status == LB_OK) status = lb_launch_environment(&launch, err);
    unsetenv("LASTBIT_NCCL_SHIM");
    if (status == LB_OK && launch.nccl && setenv("LASTBIT_NCCL_SHIM", launch.nccl, 1))
        status = lb_fail(err, LB_ERR_NOMEM, "no memory for the environment");
    lb_launch_release(&launch);
    LB_TRY(status);
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) unsetenv(unset[i]);
    if (setenv("LASTBIT_OUT", scratch->capture, 1) | setenv("LASTBIT_LEVEL", "ops", 1))
        return lb_fail(err, LB_ERR_NOMEM, "no memory for the environment");
    int code_of_python = 0;
    lb_err run = LB_ERR_INIT;
    status = lb_launch_run(argv, &code_of_python, &run);
    if (status != LB_OK) /* 126 and 127: there is no such program to start, which is an answer */
        return lb_fail(err, code_of_python ? LB_ERR_UNSUPPORTED : status, "%s", run.message);

    const char *text;
    size_t size;
    json_t *answer = NULL;
    lb_err unread = LB_ERR_INIT;
    status = lb_input_map(scratch->answer, &text, &size, &unread);
    if (lb_is_refusal(status)) return lb_fail(err, status, "%s", unread.message);
    if (status == LB_OK) {
        answer = json_loadb(text, size, 0, NULL);
        munmap((void *)(uintptr_t)text, size);
    }
    *checks = json_incref(json_object_get(answer, "checks"));
    json_decref(answer);
    if (json_is_array(*checks)) return LB_OK;
    char why[512];
    last_line(scratch->log, why, sizeof why);
    return lb_fail(err, LB_ERR_UNSUPPORTED, "%s did not answer (it ended with %d)%s%s", python, code_of_python,
                   why[0] ? ": " : "; is it a Python?", why);
}

static bool found(const json_t *checks, const char *what)
{
    size_t index;
    json_t *check;
    json_array_foreach(checks, index, check)
    {
        const char *name = json_string_value(json_object_get(check, "what"));
        if (name && strcmp(name, what) == 0 && state_of(check) == OK) return true;
    }
    return false;
}

/* Does the capture of the trial's two steps open? */
static void examine_trial(const lb_doctor_scratch *scratch, json_t *checks)
{
    if (!found(checks, "trial")) return;
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL;
    const int64_t *steps;
    lb_status status = lb_capture_open(scratch->capture, &capture, &err);
    uint32_t n = status == LB_OK ? lb_capture_steps(capture, &steps) : 0;
    lb_capture_close(capture);
    if (n >= 2) {
        add(checks, OK, "recording", "their capture opens", "");
        return;
    }
    char why[512];
    lb_launch_report notes;
    lb_launch_notes(scratch->capture, &notes);
    last_line(scratch->log, why, sizeof why);
    add(checks, IMPOSSIBLE, "recording", "the trial's two steps were not recorded",
        notes.failure[0] ? notes.failure
        : why[0]         ? why
        : err.message[0] ? err.message
                         : "no reason was given");
}

static void print(const json_t *checks, const char *python, int worst)
{
    static const char *const verdicts[] = {"recording works", "recording works",
                                           "recording works, with what is said above missing",
                                           "recording is impossible"};
    size_t index;
    json_t *check;
    json_array_foreach(checks, index, check)
    {
        const char *advice = json_string_value(json_object_get(check, "advice"));
        printf("%-10s  %-13s  %s\n", states[state_of(check)], json_string_value(json_object_get(check, "what")),
               json_string_value(json_object_get(check, "detail")));
        if (advice && *advice) printf("%-10s  %-13s  -> %s\n", "", "", advice);
    }
    if (worst < IMPOSSIBLE)
        printf("\n"
               "Never seen: processes started with -S, -I or -E or without our environment (env -i, ssh, containers), "
               "and\n"
               "writes that pass PyTorch by (NumPy views, C extensions); "
               "these are found by their digests and reported.\n");
    printf("\n%s: %s%s\n", python, verdicts[worst],
           worst < IMPOSSIBLE ? ". Next: lastbit record -o run.lb -- python train.py" : "");
}

static int conclude(json_t *checks, const char *python, bool json)
{
    static const char *const verdicts[] = {"works", "works", "degraded", "impossible"};
    static const int codes[] = {LB_EXIT_SAME, LB_EXIT_SAME, LB_EXIT_DIFFERENT, LB_EXIT_UNTESTABLE};
    int worst = OK;
    size_t index;
    json_t *check;
    json_array_foreach(checks, index, check) if (state_of(check) > worst) worst = state_of(check);
    if (json)
        lb_command_print_json(
            NAME, json_pack("{s:s, s:s, s:O}", "python", python, "verdict", verdicts[worst], "checks", checks));
    else
        print(checks, python, worst);
    return codes[worst];
}

int lb_cmd_doctor(int argc, const char **argv)
{
    char *python = NULL;
    const struct poptOption options[] = {
        {"python", 0, POPT_ARG_STRING, &python, 0, "the interpreter that runs your program (python)", "PYTHON"},
        POPT_TABLEEND,
    };
    const lb_command command = {
        .name = NAME,
        .synopsis = "",
        .about =
            "Says what `lastbit record` would see with your Python, what it would not, and why: runs that Python as\n"
            "record would, looks at PyTorch, and records two small training steps in a scratch folder.\n"
            "Ends with 0 when recording works, 1 when something would be missing, 125 when it is impossible.",
        .example = "  lastbit doctor --python ./venv/bin/python",
        .options = options,
    };
    lb_command_arguments arguments;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code < 0) {
        lb_err err = LB_ERR_INIT;
        lb_doctor_scratch scratch;
        json_t *checks = NULL;
        const char *which = python ? python : default_python();
        lb_status status = scratch_make(&scratch, &err);
        if (status != LB_OK) {
            code = lb_command_fail(NAME, &err);
        } else {
            status = examine(which, &scratch, &checks, &err);
            if (status == LB_OK) {
                examine_trial(&scratch, checks);
            } else {
                json_decref(checks);
                checks = json_array();
                add(checks, IMPOSSIBLE, "python", err.message, "name the interpreter with --python");
            }
            code = lb_is_refusal(status) ? lb_command_fail(NAME, &err) : conclude(checks, which, arguments.json);
            scratch_remove(&scratch);
        }
        json_decref(checks);
        lb_command_arguments_release(&arguments);
    }
    free(python);
    return code;
}
