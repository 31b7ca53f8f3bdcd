/* See python_child.h. The environment is made before the fork: the host may have threads. */
#define _GNU_SOURCE /* asprintf, execvpe */
#include "python_child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static lb_status lost(lb_python_child *c, lb_err *err)
{
    int code = 0;
    if (c->process > 0) waitpid(c->process, &code, 0);
    c->process = -1;
    if (!*c->gone && WIFSIGNALED(code))
        snprintf(c->gone, sizeof c->gone, "the %s process was ended by signal %d", c->name, WTERMSIG(code));
    else if (!*c->gone)
        snprintf(c->gone, sizeof c->gone, "the %s process ended with exit code %d%s", c->name, WEXITSTATUS(code),
                 c->hint);
    return lb_fail(err, LB_ERR_IO, "%s", c->gone);
}

lb_status lb_python_child_put(lb_python_child *child, const void *bytes, size_t n, lb_err *err)
{
    for (const char *at = bytes; n;) {
        const ssize_t written = send(child->socket, at, n, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return lost(child, err);
        at += written, n -= (size_t)written;
    }
    return LB_OK;
}

lb_status lb_python_child_get(lb_python_child *child, void *bytes, size_t n, lb_err *err)
{
    for (char *at = bytes; n;) {
        const ssize_t got = recv(child->socket, at, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return lost(child, err);
        at += got, n -= (size_t)got;
    }
    return LB_OK;
}

/* The child's environment: where the package is, and as many threads as asked for. */
static char **environment(const char *folder, int threads)
{
    static const char *const counts[] = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
    const char *before = getenv("PYTHONPATH");
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **all = calloc(n + 6, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        bool mine = !strncmp(environ[i], "PYTHONPATH=", 11);
        for (int k = 0; threads && k < 3; k++)
            mine |= !strncmp(environ[i], counts[k], strlen(counts[k])) && environ[i][strlen(counts[k])] == '=';
        if (!mine) all[kept++] = strdup(environ[i]);
    }
    if (all &&
        asprintf(&all[kept++], "PYTHONPATH=%s%s%s", folder, before && *before ? ":" : "", before ? before : "") < 0)
        all[--kept] = NULL;
    for (int k = 0; all && threads && k < 3; k++)
        if (asprintf(&all[kept++], "%s=%d", counts[k], threads) < 0) all[--kept] = NULL;
    return all;
}

static void environment_free(char **all)
{
    for (size_t i = 0; all && all[i]; i++) free(all[i]);
    free(all);
}

lb_status lb_python_child_start(lb_python_child *child, const char *const *arguments, const char *folder, int threads,
                                lb_err *err)
{
    int ends[2];
    char **env = environment(folder, threads);
    if (!env) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        environment_free(env);
        return lb_fail(err, LB_ERR_IO, "socketpair: %s", strerror(errno));
    }
    child->socket = ends[0];
    child->process = fork();
    if (child->process == 0) {
        dup2(ends[1], 0);
        dup2(ends[1], 1);
        signal(SIGXFSZ, SIG_DFL);
        execvpe(arguments[0], (char *const *)arguments, env);
        fprintf(stderr, "%s: %s\n", arguments[0], strerror(errno));
        _exit(127);
    }
    const int why = errno;
    close(ends[1]);
    environment_free(env);
    if (child->process > 0) return LB_OK;
    close(ends[0]);
    child->process = 0;
    return lb_fail(err, LB_ERR_IO, "fork: %s", strerror(why));
}

void lb_python_child_end(lb_python_child *child)
{
    if (child->process != 0) close(child->socket);
    if (child->process > 0) waitpid(child->process, NULL, 0);
    child->process = 0;
}
