/* Functions of shared objects to be probed: called in a process of their own, since they may do anything. See
 * lastbit/order.h.
 *
 *      we      request: calls, factors?, terms, factors ──▶  child    reads all of it, then after each call
 *              ◀── one row of sums, or nothing for too long           sends what it gave
 *
 * A function that has another signature than it is called with may crash, write anywhere or never return. The child
 * dies of it, and what it died of becomes the error. */
#include "probe/probe.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct stranger {
    lb_probe_shape shape;
    int seconds;   /* that a call may take */
    pid_t process; /* 0: it has ended */
    int socket;
    char called[400]; /* "f of lib.so", and how it is called */
    char gone[700];   /* why it answers no more; empty: it does */
} stranger;

typedef struct request {
    uint32_t calls;
    bool factors;
} request;

/* What the child says first: LB_OK, or why it has no such function. */
typedef struct greeting {
    lb_status status;
    char message[sizeof((lb_err *)0)->message];
} greeting;

static size_t terms_bytes(const lb_probe_shape *shape)
{
    return (size_t)shape->rows * shape->n * (lb_dtype_bits(shape->dtype) / 8);
}
static size_t factors_bytes(const lb_probe_shape *shape)
{
    return (size_t)shape->n * (lb_dtype_bits(shape->dtype) / 8);
}

/* ---- the socket -------------------------------------------------------------------------------------------------- */

static bool put(int socket, const void *bytes, size_t n)
{
    for (const char *at = bytes; n;) {
        const ssize_t written = send(socket, at, n, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        at += written, n -= (size_t)written;
    }
    return true;
}

/* `seconds` without a byte: false, and errno is ETIMEDOUT. Negative: however long it takes. */
static bool get(int socket, void *bytes, size_t n, int seconds)
{
    for (char *at = bytes; n;) {
        struct pollfd ready = {.fd = socket, .events = POLLIN};
        const int found = poll(&ready, 1, seconds < 0 ? -1 : seconds * 1000);
        if (found < 0 && errno == EINTR) continue;
        if (found == 0) errno = ETIMEDOUT;
        if (found <= 0) return false;
        const ssize_t got = recv(socket, at, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return errno = 0, false;
        at += got, n -= (size_t)got;
    }
    return true;
}

/* ---- the child --------------------------------------------------------------------------------------------------- */

/* Signals end it, whatever the host does about them; it leaves no core behind, and goes when we go. What it prints is
 * no result. */
static void settle_in(void)
{
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM};
    const struct rlimit none = {0, 0};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++) signal(deadly[i], SIG_DFL);
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(STDERR_FILENO, STDOUT_FILENO);
}

static bool serve_one(const lb_probe_kernel *kernel, int socket)
{
    const lb_probe_shape *shape = &kernel->shape;
    const size_t results = (size_t)shape->rows * shape->columns;
    request request;
    if (!get(socket, &request, sizeof request, -1)) return false;
    char *terms = malloc(request.calls * terms_bytes(shape) + 1), *factors = malloc(factors_bytes(shape) + 1);
    double *sums = malloc(results * sizeof *sums + 1);
    bool fine = terms && factors && sums && get(socket, terms, request.calls * terms_bytes(shape), -1) &&
                (!request.factors || get(socket, factors, factors_bytes(shape), -1));
    for (uint32_t c = 0; c < request.calls && fine; c++)
        fine = kernel->run(kernel->context, 1, terms + c * terms_bytes(shape), request.factors ? factors : NULL, sums,
                           NULL) == LB_OK &&
               put(socket, sums, results * sizeof *sums);
    free(terms);
    free(factors);
    free(sums);
    return fine;
}

/* Does not return: what the function has done to this process must not reach an exit handler of the host. */
static void live_as_child(const lb_probe_shape *shape, const char *path, const char *symbol, int socket)
{
    lb_probe_kernel kernel;
    lb_err err = LB_ERR_INIT;
    greeting hello = {0};
    settle_in();
    hello.status = lb_probe_symbol(shape, path, symbol, &kernel, &err);
    memcpy(hello.message, err.message, sizeof hello.message);
    if (put(socket, &hello, sizeof hello) && hello.status == LB_OK)
        while (serve_one(&kernel, socket)) continue;
    _exit(0);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void describe(stranger *stranger, const char *path, const char *symbol)
{
    const lb_probe_shape *shape = &stranger->shape;
    const size_t size = lb_dtype_bits(shape->dtype) / 8;
    const char *type = size == 8 ? "double" : size == 4 ? "float" : "uint16_t";
    const char *result = size == 2 && shape->result == LB_F32 ? "float" : type;
    char arguments[120];
    const bool gives = shape->form == LB_PROBE_SUM || shape->form == LB_PROBE_DOT;
    switch (shape->form) {
    case LB_PROBE_SUM: snprintf(arguments, sizeof arguments, "const %s *x, int64_t n", type); break;
    case LB_PROBE_ROWS:
        snprintf(arguments, sizeof arguments, "const %s *x, int64_t rows, int64_t n, %s *out", type, result);
        break;
    case LB_PROBE_COLUMNS:
        snprintf(arguments, sizeof arguments, "const %s *x, int64_t n, int64_t columns, %s *out", type, result);
        break;
    case LB_PROBE_DOT: snprintf(arguments, sizeof arguments, "const %s *x, const %s *y, int64_t n", type, type); break;
    case LB_PROBE_MATMUL:
        snprintf(arguments, sizeof arguments, "const %s *a, const %s *b, %s *c, int64_t m, int64_t n, int64_t k", type,
                 type, result);
        break;
    }
    snprintf(stranger->called, sizeof stranger->called, "%.120s of %.120s, called as %s f(%s),", symbol, path,
             gives ? result : "void", arguments);
}

/* How it ended, for good. A child that answers no more is made to end. */
static lb_status lost(stranger *stranger, bool late, lb_err *err)
{
    static const char hint[] = "has it another signature? --as, --dtype and --result say which it is called with";
    int code = 0;
    if (!*stranger->gone) {
        if (late) kill(stranger->process, SIGKILL);
        waitpid(stranger->process, &code, 0);
        close(stranger->socket);
        stranger->process = 0;
        if (late)
            snprintf(stranger->gone, sizeof stranger->gone,
                     "%s has not returned for %d s: does it need longer (--timeout), or %s", stranger->called,
                     stranger->seconds, hint);
        else if (WIFSIGNALED(code))
            snprintf(stranger->gone, sizeof stranger->gone, "%s was ended by signal %d (%s): %s", stranger->called,
                     WTERMSIG(code), strsignal(WTERMSIG(code)), hint);
        else
            snprintf(stranger->gone, sizeof stranger->gone, "%s ended its process with exit code %d: %s",
                     stranger->called, WEXITSTATUS(code), hint);
    }
    return lb_fail(err, LB_ERR_IO, "%s", stranger->gone);
}

static lb_status run(void *context, uint32_t calls, const void *terms, const void *factors, double *sums, lb_err *err)
{
    stranger *stranger = context;
    const request request = {.calls = calls, .factors = factors != NULL};
    const size_t results = (size_t)stranger->shape.rows * stranger->shape.columns;
    if (!stranger->process || !put(stranger->socket, &request, sizeof request) ||
        !put(stranger->socket, terms, calls * terms_bytes(&stranger->shape)) ||
        (factors && !put(stranger->socket, factors, factors_bytes(&stranger->shape))))
        return lost(stranger, false, err);
    for (uint32_t c = 0; c < calls; c++)
        if (!get(stranger->socket, sums + c * results, results * sizeof *sums, stranger->seconds))
            return lost(stranger, errno == ETIMEDOUT, err);
    return LB_OK;
}

static void release(void *context)
{
    stranger *stranger = context;
    if (stranger->process) {
        kill(stranger->process, SIGKILL); /* its destructors are as unknown as the rest */
        waitpid(stranger->process, NULL, 0);
        close(stranger->socket);
    }
    free(stranger);
}

static lb_status start(stranger *stranger, const char *path, const char *symbol, lb_err *err)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return lb_fail(err, LB_ERR_IO, "socketpair: %s", strerror(errno));
    fflush(NULL); /* the function may call exit() */
    stranger->process = fork();
    if (stranger->process == 0) {
        close(ends[0]);
        live_as_child(&stranger->shape, path, symbol, ends[1]);
    }
    const int why = errno;
    close(ends[1]);
    stranger->socket = ends[0];
    if (stranger->process > 0) return LB_OK;
    close(ends[0]);
    stranger->process = 0;
    return lb_fail(err, LB_ERR_IO, "fork: %s", strerror(why));
}

lb_status lb_probe_library(const lb_probe_shape *shape, const char *path, const char *symbol, int seconds,
                           lb_probe_kernel *kernel, lb_err *err)
{
    *kernel = (lb_probe_kernel){0};
    const bool narrow = lb_dtype_bits(shape->dtype) == 16;
    if (shape->result && shape->result != shape->dtype && !(narrow && shape->result == LB_F32))
        return lb_fail(err, LB_ERR_INVALID, "results of a C function are of the terms' dtype, or f32 for 16-bit terms");
    stranger *stranger = calloc(1, sizeof *stranger);
    if (!stranger) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    stranger->shape = *shape;
    stranger->seconds = seconds <= 0 ? LB_PROBE_SECONDS : seconds < LB_PROBE_LONGEST ? seconds : LB_PROBE_LONGEST;
    describe(stranger, path, symbol);
    greeting hello;
    lb_status status = start(stranger, path, symbol, err);
    if (status == LB_OK && !get(stranger->socket, &hello, sizeof hello, stranger->seconds))
        status = lost(stranger, errno == ETIMEDOUT, err);
    else if (status == LB_OK && hello.status != LB_OK)
        status = lb_fail(err, hello.status, "%s", hello.message);
    if (status != LB_OK) {
        release(stranger);
        return status;
    }
    *kernel = (lb_probe_kernel){*shape, stranger, run, release};
    return LB_OK;
}
