/* A live job: one run of a shell command, with an end, a log that is looked through as it comes, and a time limit. */
#ifndef LB_BISECT_LIVE_JOB_H
#define LB_BISECT_LIVE_JOB_H

#include <lastbit/error.h>

typedef struct lb_live_log_pattern lb_live_log_pattern; /* a compiled PCRE2 */
/* LB_ERR_INVALID says where the pattern is wrong. */
lb_status lb_live_log_pattern_new(const char *text, lb_live_log_pattern **pattern, lb_err *err);
void lb_live_log_pattern_free(lb_live_log_pattern *pattern);

typedef struct lb_job_result {
    int code;       /* exit code; 128 + N: ended by signal N */
    bool timed_out; /* it was killed, with what it had started */
    bool matched;   /* a line of what it printed matches */
    char line[160]; /* that line, or the last one it printed */
    double seconds;
} lb_job_result;

/* Runs `command` by /bin/sh in a process group of its own, stdin empty, stdout and stderr read together. `pattern` may
 * be NULL; `limit_seconds` 0: none. Fails for what keeps a process from being started. */
lb_status lb_job_run(const char *command, const lb_live_log_pattern *pattern, double limit_seconds,
                     lb_job_result *result, lb_err *err);

#endif
