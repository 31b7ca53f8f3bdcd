/* Live jobs: see live_job.h. */
#define _GNU_SOURCE /* pipe2 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "live/live_job.h"

#include <lastbit/clock.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pcre2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct lb_live_log_pattern {
    pcre2_code *code;
    pcre2_match_data *match;
};

lb_status lb_live_log_pattern_new(const char *text, lb_live_log_pattern **pattern, lb_err *err)
{
    int code;
    PCRE2_SIZE at;
    lb_live_log_pattern *made = calloc(1, sizeof *made);
    *pattern = NULL;
    if (!made) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    made->code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_MATCH_INVALID_UTF, &code, &at, NULL);
    if (!made->code) {
        PCRE2_UCHAR message[120];
        pcre2_get_error_message(code, message, sizeof message);
        free(made);
        return lb_fail(err, LB_ERR_INVALID, "log pattern \"%s\", at character %zu: %s", text, (size_t)at,
                       (char *)message);
    }
    made->match = pcre2_match_data_create_from_pattern(made->code, NULL);
    *pattern = made;
    return LB_OK;
}

void lb_live_log_pattern_free(lb_live_log_pattern *pattern)
{
    if (!pattern) return;
    pcre2_match_data_free(pattern->match);
    pcre2_code_free(pattern->code);
    free(pattern);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

enum { LINE = 4096 };

typedef struct reader {
    const lb_live_log_pattern *pattern;
    lb_job_result *result;
    char line[LINE + 1]; /* what has come of the current one */
    size_t n;
} reader;

static void end_line(reader *reader)
{
    while (reader->n && (reader->line[reader->n - 1] == '\r' || reader->line[reader->n - 1] == ' ')) reader->n--;
    reader->line[reader->n] = '\0';
    if (reader->n && !reader->result->matched)
        snprintf(reader->result->line, sizeof reader->result->line, "%.150s", reader->line);
    if (reader->pattern && !reader->result->matched && reader->pattern->match)
        reader->result->matched = pcre2_match(reader->pattern->code, (PCRE2_SPTR)reader->line, reader->n, 0, 0,
                                              reader->pattern->match, NULL) >= 0;
    reader->n = 0;
}

static void take_bytes(reader *reader, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n')
            end_line(reader);
        else if (reader->n < LINE)
            reader->line[reader->n++] = bytes[i];
    }
}

/* Reads until every process that could write is gone, or time is up. */
static void follow(reader *reader, int fd, double deadline, pid_t group)
{
    char bytes[4096];
    for (;;) {
        double left = deadline - lb_clock_seconds();
        if (left <= 0) {
            reader->result->timed_out = true;
            kill(-group, SIGKILL);
            return;
        }
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = poll(&wait, 1, isinf(left) ? -1 : (int)fmin(left * 1e3 + 1, 1e9));
        if (ready < 0 && errno != EINTR) return;
        if (ready <= 0) continue;
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n <= 0) return;
        take_bytes(reader, bytes, (size_t)n);
    }
}

/* ---- the process ------------------------------------------------------------------------------------------------- */

static void run_child(const char *command, const int out[2])
{
    int empty = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (empty >= 0) dup2(empty, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(out[1], STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

lb_status lb_job_run(const char *command, const lb_live_log_pattern *pattern, double limit_seconds,
                     lb_job_result *result, lb_err *err)
{
    int out[2], status = 0;
    reader reader = {.pattern = pattern, .result = result};
    double begin = lb_clock_seconds();
    *result = (lb_job_result){0};
    if (pipe2(out, O_CLOEXEC) != 0) return lb_fail(err, LB_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) run_child(command, out);
    close(out[1]);
    if (child < 0) {
        close(out[0]);
        return lb_fail(err, LB_ERR_IO, "cannot start a process: %s", strerror(errno));
    }
    setpgid(child, child);
    follow(&reader, out[0], limit_seconds > 0 ? begin + limit_seconds : INFINITY, child);
    if (reader.n) end_line(&reader);
    close(out[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    result->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    result->seconds = lb_clock_seconds() - begin;
    return LB_OK;
}
