/* See python_child.h. The environment is made before the fork: the host may have threads. */
#define _GNU_SOURCE /* asprintf */
#include "machine/python_child.h"

#include <lastbit/executable.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static lb_status lost(lb_python_child *child, lb_err *err)
{
    int code = 0;
    if (child->process > 0) waitpid(child->process, &code, 0);
    child->process = -1;
    if (!*child->gone && WIFSIGNALED(code))
        snprintf(child->gone, sizeof child->gone, "the %s process was ended by signal %d", child->name, WTERMSIG(code));
    else if (!*child->gone)
        snprintf(child->gone, sizeof child->gone, "the %s process ended with exit code %d%s", child->name,
                 WEXITSTATUS(code), child->hint);
    return lb_fail(err, LB_ERR_IO, "%s", child->gone);
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

/* What the interpreter runs: the current folder goes from the front of the path to its end before anything is
 * imported. */
static const char START[] = "import sys\n"
                            "if sys.path and not sys.path[0]: del sys.path[0]\n"
                            "import os, runpy\n"
                            "sys.path.append(os.getcwd())\n"
                            "del sys.argv[0]\n"
                            "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n";
enum { MOST_ARGUMENTS = 80 };

/* "PYTHONPATH=FOLDER:…" with what the user has in it, but for empty items, which mean the current folder. */
static char *python_path(const char *folder)
{
    const char *before = getenv("PYTHONPATH");
    const size_t room = strlen(folder) + (before ? strlen(before) : 0) + sizeof "PYTHONPATH=:";
    char *text = malloc(room);
    if (!text) return NULL;
    size_t n = (size_t)snprintf(text, room, "PYTHONPATH=%s", folder);
    for (const char *item = before ? before : ""; *item;) {
        const size_t length = strcspn(item, ":");
        if (length) n += (size_t)snprintf(text + n, room - n, ":%.*s", (int)length, item);
        item += length + (item[length] == ':');
    }
    return text;
}

/* The child's environment: where the package is, and as many threads as asked for. */
static char **environment(const char *folder, int threads)
{
    static const char *const counts[] = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **all = calloc(n + 6, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        bool mine = !strncmp(environ[i], "PYTHONPATH=", 11);
        for (int k = 0; threads && k < 3; k++)
            mine |= !strncmp(environ[i], counts[k], strlen(counts[k])) && environ[i][strlen(counts[k])] == '=';
        if (!mine) all[kept++] = strdup(environ[i]);
    }
    if (all && (all[kept] = python_path(folder))) kept++;
    for (int k = 0; all && threads && k < 3; k++)
        if (asprintf(&all[kept++], "%s=%d", counts[k], threads) < 0) all[--kept] = NULL;
    return all;
}

static void environment_free(char **all)
{
    for (size_t i = 0; all && all[i]; i++) free(all[i]);
    free(all);
}

/* In the child: the socket is its input and its output. */
static void become(const char *const *words, int end, char **env)
{
    dup2(end, 0);
    dup2(end, 1);
    signal(SIGXFSZ, SIG_DFL);
    execve(words[0], (char *const *)words, env);
    fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static lb_status start(lb_python_child *child, const char *const *words, const char *folder, int threads, lb_err *err)
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
    if (child->process == 0) become(words, ends[1], env);
    const int why = errno;
    close(ends[1]);
    environment_free(env);
    if (child->process > 0) return LB_OK;
    close(ends[0]);
    child->process = 0;
    return lb_fail(err, LB_ERR_IO, "fork: %s", strerror(why));
}

lb_status lb_python_child_start(lb_python_child *child, const lb_python_child_program *program, lb_err *err)
{
    const char *words[MOST_ARGUMENTS + 5] = {NULL, "-c", START, program->module};
    const char *interpreter = program->interpreter ? program->interpreter : "python3", *folder = program->folder;
    size_t n = 0;
    while (program->arguments[n]) n++;
    if (n > MOST_ARGUMENTS)
        return lb_fail(err, LB_ERR_INVALID, "more than %d arguments for %s", MOST_ARGUMENTS, program->module);
    memcpy(words + 4, program->arguments, n * sizeof *words);
    if (strchr(folder, ':')) /* PYTHONPATH would end there, and what follows is a path from the current folder */
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "the Python package lies in %s, and no path with a colon can be named to Python; "
                       "name another folder in LASTBIT_PYTHON",
                       folder);
    char *found = lb_executable_find(interpreter);
    if (!found) return lb_fail(err, LB_ERR_NOT_FOUND, "%s: no such program in PATH", interpreter);
    words[0] = found;
    lb_status status = start(child, words, folder, program->threads, err);
    free(found);
    return status;
}

void lb_python_child_end(lb_python_child *child)
{
    if (child->process != 0) close(child->socket);
    if (child->process > 0) waitpid(child->process, NULL, 0);
    child->process = 0;
}
