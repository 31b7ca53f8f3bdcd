/* See openblas.h. */
#include "kernel/openblas.h"

#include "kernel/thread_probe.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* CBLAS as its reference declares it, with 32-bit integers: a build with 64-bit ones has a soname of its own. */
enum { ROW_MAJOR = 101, AS_IT_LIES = 111 };
typedef void sgemm(int order, int of_a, int of_b, int m, int n, int k, float alpha, const float *a, int lda,
                   const float *b, int ldb, float beta, float *c, int ldc);
typedef void dgemm(int order, int of_a, int of_b, int m, int n, int k, double alpha, const double *a, int lda,
                   const double *b, int ldb, double beta, double *c, int ldc);

static sgemm *product_f32;
static dgemm *product_f64;
static char why[256];

/* When it gets no address space for its threads and buffers, OpenBLAS asks again for ever: so a limit that may not
 * suffice is told before. */
static bool has_room(void)
{
    struct rlimit limit;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const rlim_t wanted = (rlim_t)(cores > 0 ? cores : 1) * (128 << 20) + (512 << 20);
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted) return true;
    snprintf(why, sizeof why, "its threads want up to %llu MB of address space, and `ulimit -v` allows %llu MB",
             (unsigned long long)wanted >> 20, (unsigned long long)limit.rlim_cur >> 20);
    return false;
}

static long threads_of_it(long cores)
{
    static const char *const names[] = {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        const long n = value ? strtol(value, NULL, 10) : 0;
        if (n > 0) return n < cores ? n : cores;
    }
    return cores;
}

/* Where it gets no thread OpenBLAS sends its process SIGINT. */
static bool has_threads(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN), wanted = threads_of_it(cores > 0 ? cores : 1) - 1;
    int error;
    lb_thread_probe(wanted, &error);
    if (error) snprintf(why, sizeof why, "its %ld threads cannot be started: %s", wanted, strerror(error));
    return error == 0;
}

/* It stays: its threads run until the process ends. */
static void load(void)
{
    /* Debian, Fedora and Arch have the first; openSUSE calls its build with threads by the second. */
    static const char *const names[] = {"libopenblas.so.0", "libopenblas_pthreads.so.0", "libopenblas.so"};
    void *library = NULL;
    if (!has_room() || !has_threads()) return;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && i == 0) snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!library) return;
    sgemm *const f32 = (sgemm *)dlsym(library, "cblas_sgemm");
    dgemm *const f64 = (dgemm *)dlsym(library, "cblas_dgemm");
    if (f32 && f64)
        product_f32 = f32, product_f64 = f64;
    else
        snprintf(why, sizeof why, "the library that is found has no cblas_sgemm or no cblas_dgemm");
}

lb_status lb_openblas_load(lb_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (product_f32) return LB_OK;
    return lb_fail(err, LB_ERR_UNSUPPORTED,
                   "kernel openblas: OpenBLAS (Debian: libopenblas0) cannot be loaded here: %s", why);
}

bool lb_openblas_product_f32(int m, int n, int k, const float *a, const float *b, float *c)
{
    if (lb_openblas_load(NULL) != LB_OK) return false;
    product_f32(ROW_MAJOR, AS_IT_LIES, AS_IT_LIES, m, n, k, 1, a, k ? k : 1, b, n, 0, c, n);
    return true;
}

bool lb_openblas_product_f64(int m, int n, int k, const double *a, const double *b, double *c)
{
    if (lb_openblas_load(NULL) != LB_OK) return false;
    product_f64(ROW_MAJOR, AS_IT_LIES, AS_IT_LIES, m, n, k, 1, a, k ? k : 1, b, n, 0, c, n);
    return true;
}
