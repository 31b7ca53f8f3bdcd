/* Python callables to be probed: a child process, and batches of .npy arrays through a socket. See lastbit/order.h and
 * capture/lastbit/order_server.py, the other side. */
#define _GNU_SOURCE /* asprintf, execvpe */
#include <lastbit/order.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef struct python {
    lb_probe_shape shape;
    pid_t child;
    int socket;
    char *factors; /* (n, columns), as sent */
} python;

/* ---- the pipe ---------------------------------------------------------------------------------------------------- */

static lb_status gone(python *p, lb_err *err)
{
    int code = 0;
    if (p->child > 0) waitpid(p->child, &code, 0);
    p->child = 0;
    if (WIFSIGNALED(code)) return lb_fail(err, LB_ERR_IO, "the Python process was ended by signal %d", WTERMSIG(code));
    return lb_fail(err, LB_ERR_IO, "the Python process ended with exit code %d; what it said stands above", WEXITSTATUS(code));
}

static lb_status put(python *p, const void *bytes, size_t n, lb_err *err)
{
    for (const char *at = bytes; n;) {
        const ssize_t written = send(p->socket, at, n, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return gone(p, err);
        at += written;
        n -= (size_t)written;
    }
    return LB_OK;
}

static lb_status get(python *p, void *bytes, size_t n, lb_err *err)
{
    for (char *at = bytes; n;) {
        const ssize_t got = recv(p->socket, at, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return gone(p, err);
        at += got;
        n -= (size_t)got;
    }
    return LB_OK;
}

/* ---- .npy -------------------------------------------------------------------------------------------------------- */

static const char *descriptor(lb_dtype dtype)
{
    return dtype == LB_F64 ? "<f8" : dtype == LB_F32 ? "<f4" : dtype == LB_F16 ? "<f2" : "<u2";
}

/* Version 1.0: magic, length of the header, the header padded so that the data start at a multiple of 64. */
static lb_status put_array(python *p, const void *data, const uint32_t *shape, int ndim, size_t bytes, lb_err *err)
{
    char header[256];
    int n = 10 + snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (", descriptor(p->shape.dtype));
    for (int d = 0; d < ndim; d++) n += snprintf(header + n, sizeof header - (size_t)n, "%u,", shape[d]);
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    const int end = (n + 1 + 63) / 64 * 64;
    memset(header + n, ' ', (size_t)(end - n));
    header[end - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((end - 10) & 255);
    header[9] = (char)((end - 10) >> 8);
    LB_TRY(put(p, header, (size_t)end, err));
    return put(p, data, bytes, err);
}

typedef struct npy_header {
    bool text; /* of bytes: an error */
    uint64_t elements;
} npy_header;

static lb_status get_header(python *p, npy_header *h, lb_err *err)
{
    unsigned char start[10];
    char text[1024];
    LB_TRY(get(p, start, sizeof start, err));
    const size_t length = start[8] | (size_t)start[9] << 8;
    if (memcmp(start, "\x93NUMPY\x01", 7) || length >= sizeof text)
        return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent something else than a .npy array");
    LB_TRY(get(p, text, length, err));
    text[length] = 0;
    const char *at = strstr(text, "'shape': (");
    h->text = strstr(text, "'|u1'") != NULL;
    if (!at || (!h->text && !strstr(text, "'<f8'")))
        return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent an array of another type: %.100s", text);
    h->elements = 1;
    for (at += 10; *at && *at != ')';) {
        char *end;
        const unsigned long long size = strtoull(at, &end, 10);
        if (end == at || size > UINT32_MAX || h->elements > UINT32_MAX)
            return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent an array of no known shape: %.100s", text);
        h->elements *= size;
        at = end + strspn(end, ", ");
    }
    return LB_OK;
}

/* `count` doubles; an error text becomes the error. */
static lb_status get_answer(python *p, double *numbers, uint64_t count, lb_err *err)
{
    npy_header h = {0};
    LB_TRY(get_header(p, &h, err));
    if (h.text) {
        char text[400];
        const size_t n = h.elements < sizeof text ? (size_t)h.elements : sizeof text - 1;
        LB_TRY(get(p, text, n, err));
        text[n] = 0;
        return lb_fail(err, LB_ERR_INVALID, "Python: %s", text);
    }
    if (h.elements != count)
        return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent %llu numbers, not %llu", (unsigned long long)h.elements, (unsigned long long)count);
    return get(p, numbers, (size_t)count * 8, err);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static lb_status run(void *context, uint32_t calls, const void *terms, const void *factors, double *sums, lb_err *err)
{
    python *p = context;
    const lb_probe_shape *s = &p->shape;
    const size_t size = lb_dtype_bits(s->dtype) / 8;
    uint64_t one = 0;
    lb_from_f64(s->dtype, &one, 1, NULL);
    for (size_t i = 0; i < s->n; i++)
        for (size_t j = 0; j < s->columns; j++)
            memcpy(p->factors + (i * s->columns + j) * size, factors ? (const char *)factors + i * size : (const char *)&one, size);
    LB_TRY(put_array(p, terms, (uint32_t[]){calls, s->rows, s->n}, 3, (size_t)calls * s->rows * s->n * size, err));
    LB_TRY(put_array(p, p->factors, (uint32_t[]){s->n, s->columns}, 2, (size_t)s->n * s->columns * size, err));
    return get_answer(p, sums, (uint64_t)calls * s->rows * s->columns, err);
}

static void release(void *context)
{
    python *p = context;
    if (p->socket >= 0) close(p->socket); /* the child reads the end and leaves */
    if (p->child > 0) waitpid(p->child, NULL, 0);
    free(p->factors);
    free(p);
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
    if (all && asprintf(&all[kept++], "PYTHONPATH=%s%s%s", folder, before && *before ? ":" : "", before ? before : "") < 0) all[--kept] = NULL;
    for (int k = 0; all && threads && k < 3; k++)
        if (asprintf(&all[kept++], "%s=%d", counts[k], threads) < 0) all[--kept] = NULL;
    return all;
}

static void environment_free(char **all)
{
    for (size_t i = 0; all && all[i]; i++) free(all[i]);
    free(all);
}

static lb_status start(python *p, const char *const *arguments, char **env, lb_err *err)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return lb_fail(err, LB_ERR_IO, "socketpair: %s", strerror(errno));
    p->socket = ends[0];
    p->child = fork();
    if (p->child == 0) {
        dup2(ends[1], 0);
        dup2(ends[1], 1);
        execvpe(arguments[0], (char *const *)arguments, env);
        fprintf(stderr, "%s: %s\n", arguments[0], strerror(errno));
        _exit(127);
    }
    close(ends[1]);
    return p->child > 0 ? LB_OK : lb_fail(err, LB_ERR_IO, "fork: %s", strerror(errno));
}

lb_status lb_probe_python(const lb_probe_shape *shape, const char *interpreter, const char *folder, const char *function,
                          const char *arrays, int threads, lb_probe_kernel *kernel, lb_err *err)
{
    *kernel = (lb_probe_kernel){0};
    const lb_dtype d = shape->dtype;
    if (d != LB_F64 && d != LB_F32 && d != LB_BF16 && d != LB_F16)
        return lb_fail(err, LB_ERR_INVALID, "a probe is of terms in f64, f32, bf16 or f16");
    char count[16];
    snprintf(count, sizeof count, "%d", threads);
    const char *arguments[16] = {interpreter ? interpreter : "python3", "-m", "lastbit.order_server", "--form", lb_probe_form_name(shape->form),
                                 "--dtype", lb_dtype_name(d), "--threads", count, function};
    if (arrays) arguments[10] = "--arrays", arguments[11] = arrays;
    python *p = calloc(1, sizeof *p);
    char **env = environment(folder, threads);
    if (p) *p = (python){*shape, 0, -1, malloc((size_t)shape->n * shape->columns * 8 + 1)};
    lb_status status = p && p->factors && env ? start(p, arguments, env, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    environment_free(env);
    if (status == LB_OK) status = get_answer(p, NULL, 0, err);
    if (status != LB_OK) {
        if (p) release(p);
        return status;
    }
    *kernel = (lb_probe_kernel){*shape, p, run, release};
    return LB_OK;
}
