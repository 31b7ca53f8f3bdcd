/* The allocator's functions, each one that of the next library behind a check: see refusal.h.
 *
 * The C library's free stays as it is, so what is preloaded (jemalloc, a checker) goes on to serve both. A build with
 * AddressSanitizer or ThreadSanitizer, which need their own functions in this place, has none of these; only exit() is
 * held there. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "command/refusal.h"

#include "command/command_line.h"

#include <lastbit/input.h>
#include <lastbit/output.h>

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;
static pid_t process; /* 0: not begun */
static int failure = LB_EXIT_FAILED;
static bool passed_on;
static atomic_bool large_failed, ended;

static void say(const char *what)
{
    char line[1200];
    const int n = snprintf(line, sizeof line, "lastbit %.60s: %s\n", name, what);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) return; /* there is no one to tell */
}

/* Whatever is half written goes with the process. */
static void end(void)
{
    lb_output_remove_drafts();
    _exit(failure);
}

/* A library that calls exit(): what was printed so far is no answer. */
static void hold_exit(void)
{
    if (ended || getpid() != process) return;
    say("a library gave up, see above; nothing was found out");
    end();
}

/* A file that is mapped became shorter, or its disk fails: there is no call that could return it. */
static void unread_page(int signal)
{
    (void)signal;
    static const char what[] =
        ": a page of a file could not be read: it became shorter while it was read, or its disk fails\n";
    const bool told = write(STDERR_FILENO, "lastbit ", 8) > 0 && write(STDERR_FILENO, name, strlen(name)) > 0 &&
                      write(STDERR_FILENO, what, sizeof what - 1) > 0;
    (void)told; /* whether or not it is read */
    end();
}

void lb_refusal_begin(const char *command)
{
    name = command;
    process = getpid();
    signal(SIGBUS, unread_page);
    if (atexit(hold_exit) != 0) say("out of memory"), _exit(failure);
}

void lb_refusal_pass_on(int code)
{
    failure = code, passed_on = true;
}

lb_status lb_refusal_so_far(lb_err *err)
{
    return large_failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : lb_input_refusal(err);
}

int lb_refusal_end(int code)
{
    lb_err err = LB_ERR_INIT;
    ended = true;
    if (passed_on) return failure;
    if (lb_refusal_so_far(&err) == LB_OK) return code;
    if (code != failure) say(err.message); /* otherwise it has been said */
    return failure;
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__

/* errno is ENOMEM. */
static void no_memory(size_t bytes)
{
    if (!process || getpid() != process) return;
    if (bytes >= LB_LARGE_ALLOCATION) {
        large_failed = true;
        return;
    }
    char what[80];
    snprintf(what, sizeof what, "out of memory: there are no %zu bytes more", bytes);
    say(what);
    end();
}

typedef void *of_size(size_t);
typedef void *of_two_sizes(size_t, size_t);
typedef void *of_old(void *, size_t);
typedef int of_place(void **, size_t, size_t);

static void *next(const char *function, _Atomic(void *) *found)
{
    if (!*found) *found = dlsym(RTLD_NEXT, function);
    return *found;
}
#define NEXT(type, function)                                                                                           \
    static _Atomic(void *) found;                                                                                      \
    type *const real = (type *)next(#function, &found)

/* Visible to the libraries that the program loads. */
#define OVER LB_API

OVER void *malloc(size_t n)
{
    NEXT(of_size, malloc);
    void *const got = real(n);
    if (!got) no_memory(n);
    return got;
}

OVER void *calloc(size_t n, size_t size)
{
    NEXT(of_two_sizes, calloc);
    void *const got = real(n, size);
    size_t bytes;
    if (!got) no_memory(__builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes);
    return got;
}

OVER void *realloc(void *old, size_t n)
{
    NEXT(of_old, realloc);
    void *const got = real(old, n);
    if (!got && n) no_memory(n);
    return got;
}

OVER void *reallocarray(void *old, size_t n, size_t size)
{
    size_t bytes;
    if (!__builtin_mul_overflow(n, size, &bytes)) return realloc(old, bytes);
    no_memory(SIZE_MAX);
    errno = ENOMEM;
    return NULL;
}

OVER void *aligned_alloc(size_t alignment, size_t n)
{
    NEXT(of_two_sizes, aligned_alloc);
    void *const got = real(alignment, n);
    if (!got && errno == ENOMEM) no_memory(n);
    return got;
}

OVER void *memalign(size_t alignment, size_t n)
{
    NEXT(of_two_sizes, memalign);
    void *const got = real(alignment, n);
    if (!got && errno == ENOMEM) no_memory(n);
    return got;
}

OVER int posix_memalign(void **got, size_t alignment, size_t n)
{
    NEXT(of_place, posix_memalign);
    const int status = real(got, alignment, n);
    if (status == ENOMEM) no_memory(n);
    return status;
}

#endif
