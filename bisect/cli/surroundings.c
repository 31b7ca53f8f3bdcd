/* See surroundings.h. */
#include "cli/surroundings.h"

#include "command/command_line.h"

#include <lastbit/replay.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Some kernels hold 130 KB of numbers on the stack, the analyses of a program nest. What OpenMP's threads run nests
 * less. */
enum { STACK_BYTES = 8 << 20 };
static const char thread_stack[] = "2M";

static bool computes(const char *command)
{
    static const char *const computing[] = {"replay", "diff",  "explain", "bisect",      "parity",
                                            "audit",  "ranks", "check",   "fingerprint", "order"};
    for (size_t i = 0; i < sizeof computing / sizeof *computing; i++)
        if (strcmp(command, computing[i]) == 0) return true;
    return false;
}

/* ---- what OpenMP reads ------------------------------------------------------------------------------------------- */

/* What the user has of a variable stands in another one until we have started again; a mark alone: nothing. */
static const struct {
    const char *name, *ours, *kept;
} variables[] = {{"OMP_WAIT_POLICY", "passive", "LASTBIT_GIVEN_POLICY"},
                 {"OMP_STACKSIZE", thread_stack, "LASTBIT_GIVEN_STACK"}};
enum { VARIABLES = sizeof variables / sizeof *variables, POLICY = 0 };
static const char mark[] = "LASTBIT_STARTED_AGAIN";

static void give_back(void)
{
    unsetenv(mark);
    for (size_t i = 0; i < VARIABLES; i++) {
        const char *given = getenv(variables[i].kept);
        if (given)
            setenv(variables[i].name, given, 1);
        else
            unsetenv(variables[i].name);
        unsetenv(variables[i].kept);
    }
}

/* Threads of OpenMP that wait spin, and where other processes want the cores, the one that all wait for does not get
 * its turn: a replay by two threads takes ten times as long as by one. A user who has a policy keeps it. */
static bool is_wanted(size_t i)
{
    const char *given = getenv(variables[i].name);
    return i == POLICY ? given || getenv("GOMP_SPINCOUNT") : given && strcmp(given, variables[i].ours) == 0;
}

void lb_surroundings_enter(const char *command, const char **argv)
{
    if (getenv(mark)) {
        give_back();
        return;
    }
    bool wanted = true;
    for (size_t i = 0; i < VARIABLES; i++) wanted &= is_wanted(i);
    if (!computes(command) || wanted) return;
    for (size_t i = 0; i < VARIABLES; i++) {
        const char *given = getenv(variables[i].name);
        if (given) setenv(variables[i].kept, given, 1);
        if (!is_wanted(i)) setenv(variables[i].name, variables[i].ours, 1);
    }
    setenv(mark, "1", 1);
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    give_back();
}

/* ---- the stack --------------------------------------------------------------------------------------------------- */

typedef struct lb_started {
    int (*run)(int argc, const char **argv);
    int argc;
    const char **argv;
    int code;
} lb_started;

/* OpenMP's number of threads belongs to the thread that starts them. */
static void *start(void *context)
{
    lb_started *started = context;
    if (started->argc > 1 && computes(started->argv[1])) lb_replay_threads(0);
    started->code = started->run(started->argc, started->argv);
    return NULL;
}

int lb_surroundings_run(int (*run)(int argc, const char **argv), int argc, const char **argv)
{
    lb_started started = {run, argc, argv, LB_EXIT_FAILED};
    struct rlimit limit;
    pthread_attr_t attributes;
    pthread_t thread;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= STACK_BYTES) return start(&started), started.code;
    int error = pthread_attr_init(&attributes);
    if (!error) error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (!error) error = pthread_create(&thread, &attributes, start, &started);
    if (!error) error = pthread_join(thread, NULL);
    if (error)
        fprintf(stderr, "lastbit %s: `ulimit -s` allows %llu KB of stack, and there is no thread with more: %s\n",
                argc > 1 ? argv[1] : "help", (unsigned long long)limit.rlim_cur >> 10, strerror(error));
    return started.code;
}
