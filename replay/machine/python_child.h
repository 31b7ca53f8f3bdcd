/* A Python process that a module of the package lastbit serves, and the socket to it: what probes and runs single ops.
 * Private to replay/. */
#ifndef LB_REPLAY_PYTHON_CHILD_H
#define LB_REPLAY_PYTHON_CHILD_H

#include <lastbit/error.h>

#include <sys/types.h>

typedef struct lb_python_child {
    const char *name, *hint; /* in messages: "Python"; what to do about an exit code, or "" */
    pid_t process;           /* 0: none; -1: it has left */
    int socket;
    char gone[300]; /* why it answers no more; empty: it does */
} lb_python_child;

/* What is run: a module of the package as a program. */
typedef struct lb_python_child_program {
    const char *interpreter; /* NULL: python3 */
    const char *module;
    const char *const *arguments; /* what it is given; the last is NULL */
    const char *folder;           /* where the package lies */
    int threads;                  /* 0: the environment says how many */
} lb_python_child_program;

/* Starts it.
 *
 * Python looks for modules in the current folder first, under -m as under -c, so that a file json.py there would run.
 * Here it looks there last: a module of the user's is found, one of Python's own is never replaced. */
lb_status lb_python_child_start(lb_python_child *child, const lb_python_child_program *program, lb_err *err);
/* Closes the socket, at which the child leaves, and waits for it. Of a zeroed one too. */
void lb_python_child_end(lb_python_child *child);

/* All n bytes. When the child is gone: LB_ERR_IO, and how it ended. */
lb_status lb_python_child_put(lb_python_child *child, const void *bytes, size_t n, lb_err *err);
lb_status lb_python_child_get(lb_python_child *child, void *bytes, size_t n, lb_err *err);

#endif
