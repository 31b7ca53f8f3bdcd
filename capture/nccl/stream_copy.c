/* Copies ordered on streams: see stream_copy.h. */
#define _GNU_SOURCE
#include "stream_copy.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of cuda.h: the few calls that are needed, by the names that the driver exports. */
enum { CUDA_SUCCESS = 0, CUDA_NOT_READY = 600, POINTER_MEMORY_TYPE = 2, EVENT_WITHOUT_TIMING = 2, CAPTURE_RELAXED = 2 };
#define DRIVER(X)                                                                                                      \
    X(cuPointerGetAttribute, (void *value, int attribute, uint64_t pointer))                                           \
    X(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))                                     \
    X(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                                  \
    X(cuMemFreeHost, (void *pointer))                                                                                  \
    X(cuEventCreate, (void **event, unsigned flags))                                                                   \
    X(cuEventRecord, (void *event, void *stream))                                                                      \
    X(cuEventQuery, (void *event))                                                                                     \
    X(cuEventDestroy_v2, (void *event))                                                                                \
    X(cuStreamIsCapturing, (void *stream, int *status))                                                                \
    X(cuCtxGetCurrent, (void **context))                                                                               \
    X(cuCtxPushCurrent_v2, (void *context))                                                                            \
    X(cuCtxPopCurrent_v2, (void **context))                                                                            \
    X(cuCtxGetDevice, (int *device))                                                                                   \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))

typedef struct driver {
#define FIELD(name, parameters) int(*name) parameters;
    DRIVER(FIELD)
#undef FIELD
    int (*cuStreamGetCtx)(void *stream, void **context); /* NULL: an old driver's */
    bool whole; /* it has all of them; of memory under one that has not, nothing can be said */
} driver;

struct lb_stream_copy {
    void *event, *context; /* NULL: of the host */
    bool pinned, ready, failed;
    size_t bytes;
    void *data;
};

static driver table;
static _Atomic(const driver *) current; /* NULL as long as this process uses no CUDA */

/* Whoever makes a communicator has CUDA loaded. */
static void look_for_driver(void)
{
    static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&current, memory_order_acquire)) return;
    void *library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
    if (!library) return;
    bool whole = true;
    pthread_mutex_lock(&busy);
    if (atomic_load_explicit(&current, memory_order_acquire)) {
        pthread_mutex_unlock(&busy);
        return;
    }
#define FIND(name, parameters) whole &= (*(void **)&table.name = dlsym(library, #name)) != NULL;
    DRIVER(FIND)
#undef FIND
    *(void **)&table.cuStreamGetCtx = dlsym(library, "cuStreamGetCtx");
    table.whole = whole;
    atomic_store_explicit(&current, &table, memory_order_release);
    pthread_mutex_unlock(&busy);
}

static const driver *find_driver(void)
{
    return atomic_load_explicit(&current, memory_order_acquire);
}

/* Pinned memory is dear to get and cheap to keep: a few blocks of each power of two wait for the next copy. */
enum { LEAST_SHIFT = 12, SHIFTS = 36, KEPT = 4 };
static _Atomic(void *) spare[SHIFTS][KEPT];

static int shift_of(size_t bytes)
{
    int shift = LEAST_SHIFT;
    while (shift < SHIFTS - 1 && ((size_t)1 << shift) < bytes) shift++;
    return shift;
}

static void *take_pinned(const driver *cuda, size_t bytes)
{
    const int shift = shift_of(bytes);
    void *data = NULL;
    for (int i = 0; i < KEPT; i++)
        if ((data = atomic_exchange(&spare[shift][i], NULL))) return data;
    return cuda->cuMemHostAlloc(&data, (size_t)1 << shift, 0) == CUDA_SUCCESS ? data : NULL;
}

static void give_pinned(const driver *cuda, void *data, size_t bytes)
{
    const int shift = shift_of(bytes);
    for (int i = 0; i < KEPT; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&spare[shift][i], &none, data)) return;
    }
    cuda->cuMemFreeHost(data);
}

/* Event and stream have to be of one context, which need not be the caller's. */
static bool enqueue(const driver *cuda, lb_stream_copy *copy, const void *from, void *stream)
{
    void *popped;
    const int got =
        cuda->cuStreamGetCtx ? cuda->cuStreamGetCtx(stream, &copy->context) : cuda->cuCtxGetCurrent(&copy->context);
    if (got != CUDA_SUCCESS || !copy->context) return false;
    if (cuda->cuCtxPushCurrent_v2(copy->context) != CUDA_SUCCESS) return false;
    copy->data = take_pinned(cuda, copy->bytes);
    bool done = copy->data && cuda->cuEventCreate(&copy->event, EVENT_WITHOUT_TIMING) == CUDA_SUCCESS;
    done = done && cuda->cuMemcpyDtoHAsync_v2(copy->data, (uintptr_t)from, copy->bytes, stream) == CUDA_SUCCESS;
    done = done && cuda->cuEventRecord(copy->event, stream) == CUDA_SUCCESS;
    cuda->cuCtxPopCurrent_v2(&popped);
    return done;
}

static lb_stream_copy *copy_on_stream(const driver *cuda, const void *from, size_t bytes, void *stream)
{
    int type = 0;
    if (!cuda->whole || lb_stream_is_captured(stream)) return NULL;
    if (bytes && cuda->cuPointerGetAttribute(&type, POINTER_MEMORY_TYPE, (uintptr_t)from) != CUDA_SUCCESS) return NULL;
    lb_stream_copy *copy = calloc(1, sizeof *copy);
    if (!copy) return NULL;
    copy->bytes = bytes ? bytes : 1;
    copy->pinned = true;
    if (bytes && !enqueue(cuda, copy, from, stream)) {
        lb_stream_copy_free(copy);
        return NULL;
    }
    return copy;
}

lb_stream_copy *lb_stream_copy_new(const void *from, size_t bytes, void *stream)
{
    const driver *cuda = find_driver();
    if (cuda) return copy_on_stream(cuda, from, bytes, stream);
    lb_stream_copy *copy = calloc(1, sizeof *copy);
    if (!copy || !(copy->data = malloc(bytes ? bytes : 1))) {
        free(copy);
        return NULL;
    }
    if (bytes) memcpy(copy->data, from, bytes);
    copy->bytes = bytes;
    copy->ready = true;
    return copy;
}

bool lb_stream_copy_ready(lb_stream_copy *copy)
{
    const driver *cuda = copy->ready || !copy->event ? NULL : find_driver();
    if (!cuda) return true;
    int mode = CAPTURE_RELAXED; /* another thread may be capturing, which a question must not end */
    void *popped;
    cuda->cuThreadExchangeStreamCaptureMode(&mode);
    const bool entered = cuda->cuCtxPushCurrent_v2(copy->context) == CUDA_SUCCESS;
    const int answer = cuda->cuEventQuery(copy->event);
    if (entered) cuda->cuCtxPopCurrent_v2(&popped);
    cuda->cuThreadExchangeStreamCaptureMode(&mode);
    copy->ready = answer != CUDA_NOT_READY;
    copy->failed = copy->ready && answer != CUDA_SUCCESS;
    return copy->ready;
}

const void *lb_stream_copy_bytes(const lb_stream_copy *copy)
{
    return copy->failed ? NULL : copy->data ? copy->data : "";
}

void lb_stream_copy_free(lb_stream_copy *copy)
{
    if (!copy) return;
    const driver *cuda = copy->pinned ? find_driver() : NULL;
    void *popped;
    const bool entered = cuda && copy->context && cuda->cuCtxPushCurrent_v2(copy->context) == CUDA_SUCCESS;
    if (cuda && copy->event) cuda->cuEventDestroy_v2(copy->event);
    if (cuda && copy->data) give_pinned(cuda, copy->data, copy->bytes);
    if (entered) cuda->cuCtxPopCurrent_v2(&popped);
    if (!copy->pinned) free(copy->data);
    free(copy);
}

bool lb_stream_is_captured(void *stream)
{
    const driver *cuda = find_driver();
    int status = 0;
    return cuda && cuda->whole && (cuda->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != 0);
}

int lb_stream_device(void)
{
    look_for_driver();
    const driver *cuda = find_driver();
    int device = -1;
    return cuda && cuda->whole && cuda->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}
