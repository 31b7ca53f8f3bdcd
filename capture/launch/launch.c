/* Finding our parts and running a child: see launch.h. */
#define _GNU_SOURCE /* asprintf, pipe2 */
#include "launch/launch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define LIBRARY "liblastbit_capture.so"
#define NCCL_SHIM "liblastbit_nccl.so"
#define MPI_SHIM "liblastbit_mpi.so"

/* ---- finding ----------------------------------------------------------------------------------------------------- */

static char *join(const char *folder, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, name) < 0) return NULL;
    return path;
}

/* The real path of folder/name when it is there, else NULL. */
static char *existing(const char *folder, const char *name)
{
    char *path = join(folder, name);
    char *real = path ? realpath(path, NULL) : NULL;
    free(path);
    return real;
}

static char *executable_folder(void)
{
    char *path = realpath("/proc/self/exe", NULL);
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash) *slash = 0;
    return path;
}

static char *find_beside(const char *beside, const char *name)
{
    /* A sanitized library cannot be loaded into an ordinary interpreter; the plain build stands beside ours. */
    static const char *const places[] = {".", "../lib", "../lib64"};
    static const char *const plain_places[] = {"../release"};
    const char *const *place = SANITIZED ? plain_places : places;
    const size_t n = SANITIZED ? 1 : sizeof places / sizeof *places;
    char *path = NULL;
    for (size_t i = 0; i < n && !path; i++) {
        char *folder = join(beside, place[i]);
        path = folder ? existing(folder, name) : NULL;
        free(folder);
    }
    return path;
}

static char *find_library(const char *beside)
{
    const char *named = getenv("LASTBIT_LIB");
    return named && *named ? realpath(named, NULL) : find_beside(beside, LIBRARY);
}

lb_status lb_launch_find(const char *python, lb_launch *launch, lb_err *err)
{
    memset(launch, 0, sizeof *launch);
    lb_status status = LB_OK;
    char *beside = executable_folder();
    if (!beside) return lb_fail(err, LB_ERR_IO, "where this executable lies is not known: %s", strerror(errno));
    launch->python = python ? realpath(python, NULL) : NULL;
    launch->shim = launch->python ? join(launch->python, "lastbit/launch") : NULL;
    launch->library = find_library(beside);
    launch->nccl = find_beside(beside, NCCL_SHIM);
    launch->mpi = find_beside(beside, MPI_SHIM);
    if (!launch->shim || access(launch->shim, X_OK) != 0)
        status = lb_fail(err, LB_ERR_NOT_FOUND,
                         "the Python package is not in %s; install lastbit again, "
                         "or name the folder that holds it in LASTBIT_PYTHON",
                         python ? python : "any folder");
    else if (!launch->library)
        status = lb_fail(err, LB_ERR_NOT_FOUND, "%s is not beside %s%s; build it, or name it in LASTBIT_LIB", LIBRARY,
                         beside, SANITIZED ? " in ../release (a sanitized build records with the plain library)" : "");
    free(beside);
    return status;
}

void lb_launch_release(lb_launch *launch)
{
    free(launch->python);
    free(launch->shim);
    free(launch->library);
    free(launch->nccl);
    free(launch->mpi);
    memset(launch, 0, sizeof *launch);
}

lb_status lb_launch_environment(const lb_launch *launch, lb_err *err)
{
    const char *before = getenv("PYTHONPATH");
    char *path = NULL;
    bool has = before && *before;    /* an empty item would mean the current directory */
    if (strchr(launch->python, ':')) /* and what follows a colon, a path from there */
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "the Python package lies in %s, and PYTHONPATH takes no path with a colon; "
                       "name another folder in LASTBIT_PYTHON",
                       launch->python);
    if (asprintf(&path, "%s:%s%s%s", launch->shim, has ? before : "", has ? ":" : "", launch->python) < 0)
        return lb_fail(err, LB_ERR_NOMEM, "no memory for PYTHONPATH");
    int failed = setenv("PYTHONPATH", path, 1) | setenv("LASTBIT_LIB", launch->library, 1);
    free(path);
    return failed ? lb_fail(err, LB_ERR_NOMEM, "no memory for the environment") : LB_OK;
}

lb_status lb_launch_library(const lb_launch *launch, lb_err *err)
{
    return setenv("LASTBIT_LIB", launch->library, 1) ? lb_fail(err, LB_ERR_NOMEM, "no memory for the environment")
                                                     : LB_OK;
}

bool lb_launch_preloads(const lb_launch *launch)
{
    return launch->nccl && !strpbrk(launch->nccl, " :");
}

/* In front of what is preloaded already. */
static lb_status preload(const char *library, lb_err *err)
{
    const char *before = getenv("LD_PRELOAD");
    char *libraries = NULL;
    const bool has = before && *before;
    if (asprintf(&libraries, "%s%s%s", library, has ? ":" : "", has ? before : "") < 0)
        return lb_fail(err, LB_ERR_NOMEM, "no memory for LD_PRELOAD");
    const int failed = setenv("LD_PRELOAD", libraries, 1);
    free(libraries);
    return failed ? lb_fail(err, LB_ERR_NOMEM, "no memory for the environment") : LB_OK;
}

lb_status lb_launch_preload(const lb_launch *launch, lb_err *err)
{
    const char *plugin = getenv("NCCL_PROFILER_PLUGIN");
    if (!launch->nccl || !lb_launch_preloads(launch)) return LB_OK;
    LB_TRY(preload(launch->nccl, err));
    int failed = setenv("LASTBIT_NCCL_SHIM", launch->nccl, 1);
    if (!plugin || !*plugin) failed |= setenv("NCCL_PROFILER_PLUGIN", launch->nccl, 1);
    return failed ? lb_fail(err, LB_ERR_NOMEM, "no memory for the environment") : LB_OK;
}

lb_status lb_launch_preload_mpi(const lb_launch *launch, lb_err *err)
{
    if (!launch->mpi)
        return lb_fail(err, LB_ERR_NOT_FOUND, "--mpi: %s is not beside %s; build it", MPI_SHIM, launch->library);
    if (strpbrk(launch->mpi, " :"))
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "--mpi: LD_PRELOAD takes no path with a space or a colon, as %s has; install lastbit elsewhere",
                       launch->mpi);
    return preload(launch->mpi, err);
}

lb_status lb_launch_nccl_behind(const char *folder, lb_err *err)
{
    const char *named = getenv("LASTBIT_NCCL"), *before = getenv("LD_LIBRARY_PATH");
    char *real = named && *named ? realpath(named, NULL) : NULL, *link = join(folder, LB_LAUNCH_NCCL), *path = NULL;
    const bool has = before && *before;
    int failed = 0;
    /* Without it the functions that ours has go on; the first of several ranks makes it. */
    if (real && link && !strpbrk(folder, ":;") && (symlink(real, link) == 0 || errno == EEXIST)) {
        failed = asprintf(&path, "%s%s%s", has ? before : "", has ? ":" : "", folder) < 0;
        failed = failed || setenv("LD_LIBRARY_PATH", path, 1) != 0;
        free(path);
    }
    free(real);
    free(link);
    return failed ? lb_fail(err, LB_ERR_NOMEM, "no memory for the environment") : LB_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static const int passed_on[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
enum { PASSED_ON = sizeof passed_on / sizeof *passed_on };
static volatile sig_atomic_t child_pid;

/* A signal from the kernel (the terminal's Ctrl-C) goes to the whole process group, so the child has it already. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    (void)context;
    int saved = errno;
    if (child_pid > 0 && info->si_code <= 0) kill((pid_t)child_pid, number);
    errno = saved;
}

/* An ignored signal stays ignored, here and in the child (nohup). */
static void catch_signals(struct sigaction before[PASSED_ON])
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = pass_on;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigfillset(&action.sa_mask);
    for (int i = 0; i < PASSED_ON; i++) {
        sigaction(passed_on[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(passed_on[i], &action, NULL);
    }
}

static void restore_signals(const struct sigaction before[PASSED_ON])
{
    for (int i = 0; i < PASSED_ON; i++) sigaction(passed_on[i], &before[i], NULL);
}

/* In the child. exec failing is told through the pipe, which exec succeeding closes. */
static void become(const char *const *argv, int tell)
{
    signal(SIGXFSZ, SIG_DFL); /* which we ignore ourselves */
    execvp(argv[0], (char *const *)argv);
    int why = errno;
    ssize_t told = write(tell, &why, sizeof why);
    _exit(told == (ssize_t)sizeof why ? 127 : 126);
}

static lb_status wait_for(pid_t child, int *code, lb_err *err)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return lb_fail(err, LB_ERR_IO, "waiting for the program: %s", strerror(errno));
    *code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return LB_OK;
}

lb_status lb_launch_run(const char *const *argv, int *code, lb_err *err)
{
    int tell[2], why = 0;
    sigset_t all, mask;
    struct sigaction before[PASSED_ON];
    if (pipe2(tell, O_CLOEXEC) != 0) return lb_fail(err, LB_ERR_IO, "pipe: %s", strerror(errno));
    fflush(NULL);
    /* No signal may come between fork and the moment that the handler knows whom to pass it to. */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &mask);
    pid_t child = fork();
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &mask, NULL);
        become(argv, tell[1]);
    }
    child_pid = child > 0 ? child : 0;
    if (child > 0) catch_signals(before);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    close(tell[1]);
    lb_status status = LB_OK;
    if (child < 0) {
        status = lb_fail(err, LB_ERR_IO, "fork: %s", strerror(errno));
    } else {
        ssize_t got;
        do got = read(tell[0], &why, sizeof why);
        while (got < 0 && errno == EINTR);
        status = wait_for(child, code, err);
        restore_signals(before);
        child_pid = 0;
        if (status == LB_OK && got == (ssize_t)sizeof why) {
            *code = why == ENOENT ? 127 : 126;
            status = lb_fail(err, LB_ERR_IO, "%s: %s", argv[0], strerror(why));
        }
    }
    close(tell[0]);
    return status;
}

/* ---- what the shims noted ---------------------------------------------------------------------------------------- */

/* What follows the kind of note and the process that made it. */
static const char *said(const char *line)
{
    const char *process = strchr(line, ' '), *text = process ? strchr(process + 1, ' ') : NULL;
    return text ? text + 1 : "";
}

static void note_step(const char *line, lb_launch_report *report)
{
    const bool first = strncmp(line, "step ", 5) == 0;
    if (!first && strncmp(line, "last ", 5) != 0) return;
    const long step = strtol(said(line), NULL, 10);
    if (first && (!report->stepped++ || step < report->first_step)) report->first_step = step;
    if (step > report->last_step) report->last_step = step;
}

bool lb_launch_is_note(const char *name)
{
    const size_t n = strlen(name);
    return strcmp(name, LB_LAUNCH_NOTES) == 0 ||
           (strncmp(name, "launch.", 7) == 0 && n > 10 && strcmp(name + n - 3, ".at") == 0);
}

/* How far the processes got that may not have been asked to say so. */
static void read_steps(const char *folder, lb_launch_report *report)
{
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!lb_launch_is_note(entry->d_name) || !isdigit((unsigned char)entry->d_name[strlen("launch.")])) continue;
        char text[32] = "";
        const int file = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
        const ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0) close(file);
        const long step = n > 0 ? strtol(text, NULL, 10) : -1;
        if (step > report->last_step) report->last_step = step;
    }
    closedir(dir);
}

void lb_launch_notes(const char *folder, lb_launch_report *report)
{
    memset(report, 0, sizeof *report);
    read_steps(folder, report);
    char *path = join(folder, LB_LAUNCH_NOTES);
    FILE *file = path ? fopen(path, "re") : NULL;
    free(path);
    if (!file) return;
    char line[512];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "python ", 7) == 0) report->processes++;
        if (strncmp(line, "torch ", 6) == 0) report->torch++;
        if (strncmp(line, "uncalled ", 9) == 0) report->uncalled++;
        note_step(line, report);
        if (strncmp(line, "bare ", 5) == 0 && !report->bare[0])
            snprintf(report->bare, sizeof report->bare, "%.*s", (int)sizeof report->bare - 1, said(line));
        if (strncmp(line, "framework ", 10) == 0 && !report->framework[0])
            snprintf(report->framework, sizeof report->framework, "%.*s", (int)sizeof report->framework - 1,
                     said(line));
        if (strncmp(line, "failed ", 7) == 0 && !report->failure[0])
            snprintf(report->failure, sizeof report->failure, "%.*s", (int)sizeof report->failure - 1, said(line));
    }
    fclose(file);
}
