/* What `lastbit watch` does: see watch_action.h. */
#include "cli/watch_action.h"

#include "cli/watch_output.h"

#include <lastbit/executable.h>
#include <lastbit/output.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK "lastbit watch: no checkpoint while this file exists"

/* ---- the hold file ----------------------------------------------------------------------------------------------- */

/* LB_OK: a watch has written it (`there`), or there is none. Anything else is the user's, and what cannot be looked at
 * may be: neither is replaced. A pipe's other end is not waited for. */
static lb_status look_at_hold(const char *path, bool *there, lb_err *err)
{
    char line[sizeof MARK] = "";
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    *there = fd >= 0;
    if (fd < 0 && errno == ENOENT) return LB_OK;
    if (fd < 0) return lb_fail(err, LB_ERR_IO, "--hold %s: cannot look at it: %s", path, strerror(errno));
    const ssize_t n = read(fd, line, sizeof MARK - 1);
    close(fd);
    if (n == sizeof MARK - 1 && strcmp(line, MARK) == 0) return LB_OK;
    return lb_fail(err, LB_ERR_EXISTS, "--hold %s: there is a file of that name that no watch has written", path);
}

static lb_status remove_hold(const char *path, lb_err *err)
{
    bool there;
    LB_TRY(look_at_hold(path, &there, err));
    if (!there || unlink(path) == 0 || errno == ENOENT) return LB_OK;
    return lb_fail(err, LB_ERR_IO, "--hold %s: cannot remove it: %s", path, strerror(errno));
}

lb_status lb_watch_actions_begin(lb_watch_actions *actions, const char *const *logs, lb_err *err)
{
    actions->logs = logs;
    if (actions->file) LB_TRY(lb_output_inputs_refuse(actions->file, logs, err));
    if (actions->hold_file) LB_TRY(lb_output_inputs_refuse(actions->hold_file, logs, err));
    return actions->hold_file ? remove_hold(actions->hold_file, err) : LB_OK;
}

/* A reader sees the whole file or none. Since watching began another one may have been put there. */
static lb_status write_hold(const lb_watch_actions *actions, const lb_watch_hold *hold, lb_err *err)
{
    bool there;
    char text[sizeof MARK + 40];
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = how.shared = true;
    how.inputs = actions->logs;
    snprintf(text, sizeof text, "%s\nfrom %" PRId64 "\n", MARK, hold->from);
    LB_TRY(look_at_hold(actions->hold_file, &there, err));
    return lb_output_save(actions->hold_file, &how, text, strlen(text), err);
}

void lb_watch_actions_hold(lb_watch_actions *actions, const lb_watch_hold *hold)
{
    if (!actions->hold_file) return;
    lb_err err = LB_ERR_INIT;
    const bool was_held = actions->held;
    if (hold->open)
        actions->held = write_hold(actions, hold, &err) == LB_OK;
    else
        actions->held = was_held && remove_hold(actions->hold_file, &err) != LB_OK;
    if (err.status != LB_OK) fprintf(stderr, "lastbit watch: %s\n", err.message);
}

/* ---- the flight recorder ----------------------------------------------------------------------------------------- */

/* Whether SIGUSR2 has a handler there; where it has none it would end the process. */
static bool catches(pid_t pid)
{
    char path[64], line[256];
    unsigned long long caught = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "SigCgt: %llx", &caught);
    if (file) fclose(file);
    return caught >> (SIGUSR2 - 1) & 1;
}

static bool wake(pid_t pid)
{
    return pid > 1 && catches(pid) && kill(pid, SIGUSR2) == 0;
}

/* A process, or those that `lastbit record` (which catches every signal to pass it on) has started. */
static int wake_process(pid_t pid)
{
    char path[96], name[32] = "";
    snprintf(path, sizeof path, "/proc/%ld/comm", (long)pid);
    FILE *file = fopen(path, "r");
    if (file && !fgets(name, sizeof name, file)) *name = '\0';
    if (file) fclose(file);
    if (strcmp(name, "lastbit\n") != 0) return wake(pid);
    int woken = 0;
    long child;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", (long)pid, (long)pid);
    file = fopen(path, "r");
    while (file && fscanf(file, "%ld", &child) == 1) woken += wake((pid_t)child);
    if (file) fclose(file);
    return woken;
}

/* A recording process leaves "launch.PID.at" in its folder. */
static int wake_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    int woken = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        long pid;
        char rest[8];
        if (sscanf(entry->d_name, "launch.%ld.%7s", &pid, rest) == 2 && !strcmp(rest, "at")) woken += wake((pid_t)pid);
    }
    if (dir) closedir(dir);
    return woken;
}

static void trigger(lb_watch_actions *actions)
{
    char *end;
    const long pid = strtol(actions->trigger, &end, 10);
    const bool is_pid = isdigit((unsigned char)*actions->trigger) && !*end;
    const int woken = is_pid ? wake_process((pid_t)pid) : wake_folder(actions->trigger);
    actions->triggered = true;
    if (woken)
        fprintf(stderr, "lastbit watch: %d recording process%s told to write the flight recorder\n", woken,
                woken == 1 ? "" : "es");
    else
        fprintf(stderr,
                "lastbit watch: --trigger %s: no process there waits for the signal (lastbit record --ring K does)\n",
                actions->trigger);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static void put_number(const char *name, double number)
{
    char text[40];
    snprintf(text, sizeof text, isnan(number) ? "nan" : "%.9g", number);
    setenv(name, text, 1);
}

static void run_child(const lb_watch_actions *actions, const lb_watch_alarm *alarm)
{
    char step[24];
    snprintf(step, sizeof step, "%" PRId64, alarm->step);
    setenv("LASTBIT_LOG", actions->log, 1);
    setenv("LASTBIT_ALARM_STEP", step, 1);
    setenv("LASTBIT_ALARM_KIND", lb_alarm_kind_name(alarm->kind), 1);
    setenv("LASTBIT_ALARM_LEVEL", lb_alarm_level_name(alarm->level), 1);
    setenv("LASTBIT_ALARM_DETECTOR", lb_alarm_detector_name(alarm->detector), 1);
    put_number("LASTBIT_ALARM_VALUE", alarm->value);
    put_number("LASTBIT_ALARM_REFERENCE", alarm->reference);
    put_number("LASTBIT_ALARM_RATIO", alarm->ratio);
    setenv("LASTBIT_ALARM_SHARD", alarm->shard, 1);
    setenv("LASTBIT_ALARM_WHY", alarm->why, 1);
    setpgid(0, 0);                      /* an interrupt of ours is not theirs */
    dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout is the report's */
    execl("/bin/sh", "sh", "-c", actions->command, (char *)NULL);
    _exit(127);
}

/* Its input is the alarm: a pipe holds more than one. */
static void run_curl(const lb_watch_actions *actions, const lb_watch_alarm *alarm)
{
    int ends[2];
    json_t *row = lb_watch_alarm_json(alarm, actions->log);
    char *text = row ? json_dumps(row, JSON_COMPACT) : NULL;
    if (!text || pipe(ends) != 0) _exit(127);
    const size_t n = strlen(text);
    if (write(ends[1], text, n) != (ssize_t)n) _exit(127);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    setpgid(0, 0);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    char *program = lb_executable_find("curl");
    if (!program) _exit(127);
    execl(program, "curl", "--silent", "--show-error", "--fail", "--max-time", "20", "--output", "/dev/null",
          "--header", "Content-Type: application/json", "--data-binary", "@-", "--", actions->webhook, (char *)NULL);
    _exit(127);
}

/* Looks after the one that runs; `wait`: until it has ended. */
static void look_after(lb_watch_actions *actions, bool wait)
{
    int status;
    if (!actions->running) return;
    pid_t done;
    do done = waitpid(actions->running, &status, wait ? 0 : WNOHANG);
    while (done < 0 && errno == EINTR);
    if (done == 0) return;
    actions->running = 0;
    if (done < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return;
    actions->failed++;
    if (actions->posting && WIFEXITED(status) && WEXITSTATUS(status) == 127)
        fprintf(stderr, "lastbit watch: --webhook needs the program curl, which is not there\n");
    else
        fprintf(stderr, "lastbit watch: %s `%s` ended with %s %d\n", actions->posting ? "--webhook" : "--on-alarm",
                actions->posting ? actions->webhook : actions->command, WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void lb_watch_actions_poll(lb_watch_actions *actions)
{
    look_after(actions, false);
    if (actions->running || !actions->n_waiting) return;
    const lb_waiting_alarm next = actions->waiting[actions->first_waiting];
    actions->first_waiting = (actions->first_waiting + 1) % LB_ACTIONS_WAITING;
    actions->n_waiting--;
    actions->posting = next.to_webhook;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0 && actions->posting) run_curl(actions, &next.alarm);
    if (child == 0) run_child(actions, &next.alarm);
    if (child > 0)
        actions->running = child;
    else
        actions->failed++, fprintf(stderr, "lastbit watch: cannot start what an alarm asks for: %s\n", strerror(errno));
}

static void enqueue(lb_watch_actions *actions, const lb_watch_alarm *alarm, bool to_webhook)
{
    if (actions->n_waiting == LB_ACTIONS_WAITING) {
        actions->passed_over++;
        return;
    }
    actions->waiting[(actions->first_waiting + actions->n_waiting++) % LB_ACTIONS_WAITING] =
        (lb_waiting_alarm){*alarm, to_webhook};
    lb_watch_actions_poll(actions);
}

/* A line at a time, so that who reads the file while it grows sees whole ones. */
static void append(lb_watch_actions *actions, const lb_watch_alarm *alarm)
{
    lb_err err = LB_ERR_INIT;
    lb_output *out = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.way = LB_OUTPUT_APPENDED;
    how.replace = how.shared = true;
    how.inputs = actions->logs;
    json_t *row = lb_watch_alarm_json(alarm, actions->log);
    char *text = row ? json_dumps(row, JSON_COMPACT) : NULL;
    lb_status status = text ? lb_output_open(actions->file, &how, &out, &err)
                            : lb_fail(&err, LB_ERR_NOMEM, "%s: out of memory", actions->file);
    if (status == LB_OK) {
        lb_output_write(out, text, strlen(text));
        lb_output_write(out, "\n", 1);
        status = lb_output_close(out, &err);
    }
    if (status != LB_OK) actions->failed++, fprintf(stderr, "lastbit watch: %s\n", err.message);
    free(text);
    json_decref(row);
}

void lb_watch_actions_alarm(lb_watch_actions *actions, const lb_watch_alarm *alarm)
{
    const bool values =
        alarm->kind == LB_ALARM_GRAD_NORM || alarm->kind == LB_ALARM_LOSS || alarm->kind == LB_ALARM_NONFINITE;
    if (actions->trigger && !actions->triggered && values) trigger(actions);
    if (actions->file) append(actions, alarm);
    if (actions->command) enqueue(actions, alarm, false);
    if (actions->webhook) enqueue(actions, alarm, true);
}

void lb_watch_actions_end(lb_watch_actions *actions, bool interrupted)
{
    if (interrupted) actions->passed_over += actions->n_waiting, actions->n_waiting = 0;
    do {
        look_after(actions, true);
        lb_watch_actions_poll(actions);
    } while (actions->running || actions->n_waiting);
    if (actions->passed_over)
        fprintf(stderr, "lastbit watch: %u alarms were not told to --on-alarm or --webhook: too many waited\n",
                actions->passed_over);
    lb_err err = LB_ERR_INIT;
    if (actions->held && interrupted && remove_hold(actions->hold_file, &err) != LB_OK)
        fprintf(stderr, "lastbit watch: %s\n", err.message);
    else if (actions->held)
        fprintf(stderr, "lastbit watch: the run is still out of its usual range; %s %s\n", actions->hold_file,
                interrupted ? "was removed, because watching has ended" : "stays");
}
