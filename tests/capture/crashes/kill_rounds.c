/* kill_rounds KIND COUNT SEED MAKE_STEPS LASTBIT SCRATCH: starts a program, kills it at a moment of chance, and looks
 * at what is left.
 *
 *   recorder   make_steps writing as it goes; each step that it had said is there and whole
 *   beside     the same with the thread beside the run, which may be one step behind
 *   ring       the flight recorder: the newest step that it had said, and before it as many as the window has at least
 *   ranks      two processes of one capture, killed one after the other
 *   pack       `lastbit pack --force` over a good pack: what stands there is the old one or the new one
 *   recover    `lastbit recover`: its input stays as it was, and there is no output or a whole one
 *
 * Steps are compared with those of an undisturbed run. Prints one JSON object; exit code 1 where something was lost or
 * wrong. */
#define _GNU_SOURCE
#include "step_list.h"

#include <lastbit/maintenance.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 400, RING = 3, LONGEST_US = 25000 };

static const char *make_steps, *lastbit, *scratch;
static step_list reference; /* rank 0 and 1 of an undisturbed run */
static uint64_t kills, deaths, said, kept;
static uint64_t random_state;

static void fail(uint64_t round, const char *what, int64_t step)
{
    fprintf(stderr, "kill_rounds: round %" PRIu64 ": %s (step %" PRId64 "); see %s\n", round, what, step, scratch);
    exit(1);
}

static uint32_t draw(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % below);
}

/* A path in the scratch folder; four are valid at a time. */
static const char *in_scratch(const char *name)
{
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", scratch, name);
    return path;
}

static void clear(const char *name)
{
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", in_scratch(name));
    if (system(command) != 0) abort();
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct program {
    pid_t pid;
    int out;
    char text[65536];
    size_t n;
} program;

static void start(program *p, const char *const *arguments)
{
    int ends[2];
    if (pipe(ends) != 0) abort();
    p->n = 0;
    p->pid = fork();
    if (p->pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]), close(ends[1]);
        if (!freopen("/dev/null", "w", stderr)) _exit(126);
        execv(arguments[0], (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    close(ends[1]);
    p->out = ends[0];
}

/* Reads what it says until it ends or the time is over. */
static void listen(program *p, long us)
{
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += us * 1000;
    end.tv_sec += end.tv_nsec / 1000000000, end.tv_nsec %= 1000000000;
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        const long left = (end.tv_sec - now.tv_sec) * 1000000 + (end.tv_nsec - now.tv_nsec) / 1000;
        struct pollfd one = {p->out, POLLIN, 0};
        if (left <= 0 || ppoll(&one, 1, &(struct timespec){0, left * 1000}, NULL) <= 0) return;
        const ssize_t n = read(p->out, p->text + p->n, sizeof p->text - 1 - p->n);
        if (n <= 0) return;
        p->n += (size_t)n;
    }
}

static void end(program *p)
{
    int status;
    kill(p->pid, SIGKILL);
    if (waitpid(p->pid, &status, 0) != p->pid) abort();
    for (ssize_t n; p->n < sizeof p->text - 1 && (n = read(p->out, p->text + p->n, sizeof p->text - 1 - p->n)) > 0;)
        p->n += (size_t)n;
    close(p->out);
    p->text[p->n] = 0;
    kills++;
    deaths += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!WIFSIGNALED(status) && WEXITSTATUS(status) != 0) fail(kills, "the program failed", WEXITSTATUS(status));
}

/* The number in its last whole line; -1: none. */
static long last_said(const program *p)
{
    const char *newest = memrchr(p->text, '\n', p->n);
    if (!newest) return -1;
    const char *line = newest > p->text ? memrchr(p->text, '\n', (size_t)(newest - p->text)) : NULL;
    return strtol(line ? line + 1 : p->text, NULL, 10);
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static void list(uint64_t round, const char *path, bool window, step_list *found)
{
    const char *wrong = NULL;
    step_list_read(path, found, &wrong);
    if (wrong) fail(round, wrong, -1);
    for (int i = 0; i < found->n; i++) {
        const step *real = step_list_find(&reference, found->list[i].rank, found->list[i].number);
        const bool same = real && (window ? lb_digest_equal(real->values, found->list[i].values)
                                          : lb_digest_equal(real->program, found->list[i].program));
        if (!same) fail(round, "a step that was never recorded", found->list[i].number);
        if (!found->list[i].whole) fail(round, "bytes of a committed step are lost", found->list[i].number);
    }
    kept += (uint64_t)found->n;
}

static void want(uint64_t round, const step_list *found, int32_t rank, long first, long last)
{
    for (long number = first < 0 ? 0 : first; number <= last; number++) {
        said++;
        if (!step_list_find(found, rank, number)) fail(round, "a committed step is lost", number);
    }
}

static void record_round(uint64_t round, bool beside)
{
    static program p;
    static step_list found;
    clear("run.lb");
    const char *path = in_scratch("run.lb"), *syncs[] = {"sync=0", "sync=1", "sync=2"};
    start(&p, (const char *[]){make_steps, path, "steps=400", "world=2", beside ? "beside=1" : "beside=0",
                               syncs[draw(3)], NULL});
    listen(&p, (long)draw(LONGEST_US));
    end(&p);
    found.n = 0;
    list(round, path, false, &found);
    want(round, &found, 0, 0, last_said(&p) - beside);
}

static void ring_round(uint64_t round)
{
    static program p;
    static step_list found;
    uint32_t steps;
    lb_err err = LB_ERR_INIT;
    clear("run.lb"), clear("out.lb");
    const char *path = in_scratch("run.lb"), *out = in_scratch("out.lb");
    start(&p, (const char *[]){make_steps, path, "steps=400", "world=2", "ring=3", draw(2) ? "beside=1" : "beside=0",
                               NULL});
    listen(&p, (long)draw(LONGEST_US));
    end(&p);
    mkdir(out, 0700);
    const long last = last_said(&p);
    if (last < 0) return;          /* killed before its first step: the folder may not be there */
    if (last + 1 == STEPS) return; /* it ended well, and its files are there, or gone */
    if (lb_ring_files_assemble(path, out, "killed", &steps, NULL, &err) != LB_OK) fail(round, err.message, last);
    found.n = 0;
    list(round, out, true, &found);
    want(round, &found, 0, last - RING + 1, last);
}

static void rank_round(uint64_t round)
{
    static program p[2];
    static step_list found;
    clear("run.lb");
    const char *path = in_scratch("run.lb");
    for (int r = 0; r < 2; r++)
        start(&p[r],
              (const char *[]){make_steps, path, "steps=400", "beside=0", "world=2", r ? "rank=1" : "rank=0", NULL});
    for (int r = 0; r < 2; r++) listen(&p[r], (long)draw(LONGEST_US / 2)), end(&p[r]);
    found.n = 0;
    list(round, path, false, &found);
    for (int r = 0; r < 2; r++) want(round, &found, r, 0, last_said(&p[r]));
}

/* `lastbit` with these arguments, killed within the time that it took of late, or a third later. */
static void kill_command(const char *const *arguments)
{
    static program p;
    static long takes_us = LONGEST_US;
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    start(&p, arguments);
    const uint64_t died = deaths;
    listen(&p, (long)draw((uint32_t)(takes_us + takes_us / 3)));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    end(&p);
    const long us = (ended.tv_sec - begun.tv_sec) * 1000000 + (ended.tv_nsec - begun.tv_nsec) / 1000;
    if (deaths == died)
        takes_us = us; /* it was faster */
    else
        takes_us += takes_us / 16;
}

/* How many steps a good capture has, all of them whole; -1: there is nothing. */
static int count(uint64_t round, const char *path)
{
    static step_list found;
    lb_verification v;
    if (access(path, F_OK) != 0) return -1;
    found.n = 0;
    list(round, path, false, &found);
    if (lb_capture_verify(path, NULL, NULL, &v, NULL) != LB_OK || v.damages || v.missing || v.closed != v.archives)
        fail(round, "an output is there and not whole", found.n);
    return found.n;
}

static void pack_round(uint64_t round)
{
    const char *from = in_scratch("reference.lb"), *to = in_scratch("kept.lbz");
    kill_command((const char *[]){lastbit, "pack", "--force", from, "-o", to, "--steps", draw(2) ? "0-49" : "0-99",
                                  "--ranks", "0", NULL});
    const int n = count(round, to);
    if (n != 50 && n != 100) fail(round, "a good pack is neither the old one nor the new one", n);
}

static void recover_round(uint64_t round)
{
    clear("whole.lb");
    const char *from = in_scratch("reference.lb"), *to = in_scratch("whole.lb");
    kill_command((const char *[]){lastbit, "recover", from, "-o", to, NULL});
    const int n = count(round, to);
    if (n >= 0 && n != reference.n) fail(round, "half a repair stands in its place", n);
    if (round % 50 == 0 && count(round, from) != reference.n) fail(round, "the input of a repair changed", 0);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void make_reference(void)
{
    static program p;
    clear("reference.lb");
    for (int r = 0; r < 2; r++) {
        start(&p, (const char *[]){make_steps, in_scratch("reference.lb"), "steps=400", "world=2",
                                   r ? "rank=1" : "rank=0", NULL});
        while (p.n < sizeof p.text - 1) {
            const ssize_t n = read(p.out, p.text + p.n, sizeof p.text - 1 - p.n);
            if (n <= 0) break;
            p.n += (size_t)n;
        }
        waitpid(p.pid, NULL, 0);
        close(p.out);
    }
    const char *wrong = NULL;
    step_list_read(in_scratch("reference.lb"), &reference, &wrong);
    if (reference.n != 2 * STEPS || wrong) fail(0, "the undisturbed run", reference.n);
}

int main(int argc, char **argv)
{
    if (argc != 7) return 129;
    const char *kind = argv[1];
    const uint64_t rounds = strtoull(argv[2], NULL, 10);
    random_state = strtoull(argv[3], NULL, 10);
    make_steps = argv[4], lastbit = argv[5], scratch = argv[6];
    mkdir(scratch, 0700);
    make_reference();
    if (strcmp(kind, "pack") == 0) {
        char command[4 * PATH_MAX];
        snprintf(command, sizeof command, "'%s' pack --force '%s' -o '%s' --steps 0-49 --ranks 0 >/dev/null", lastbit,
                 in_scratch("reference.lb"), in_scratch("kept.lbz"));
        if (system(command) != 0) fail(0, "the first pack", 0);
    }
    for (uint64_t round = 1; round <= rounds; round++) {
        if (strcmp(kind, "recorder") == 0) record_round(round, false);
        if (strcmp(kind, "beside") == 0) record_round(round, true);
        if (strcmp(kind, "ring") == 0) ring_round(round);
        if (strcmp(kind, "ranks") == 0) rank_round(round);
        if (strcmp(kind, "pack") == 0) pack_round(round);
        if (strcmp(kind, "recover") == 0) recover_round(round);
    }
    printf("{\"kills\": %" PRIu64 ", \"deaths\": %" PRIu64 ", \"said\": %" PRIu64 ", \"kept\": %" PRIu64 "}\n", kills,
           deaths, said, kept);
    return 0;
}
