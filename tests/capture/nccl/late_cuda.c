/* As much of libcuda.so.1 as the shim's copies need: streams that run late, events, a capture that forbids what CUDA forbids.
 * Device memory is the host's. Each stream is a queue with a thread, which rests before every operation. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, REST_NS = 300000, MOST = 4096 };
#define API __attribute__((visibility("default")))

typedef struct operation {
    struct operation *next;
    void (*run)(void *);
    void *of;
} operation;

typedef struct stream {
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    operation *first, **end;
    bool busy, capturing;
} stream;

typedef struct event {
    _Atomic bool done;
} event;

static struct {
    uint64_t from;
    size_t bytes;
} allocated[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *of)
{
    stream *s = of;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->less);
        while (!s->first) pthread_cond_wait(&s->more, &s->lock);
        operation *next = s->first;
        s->first = next->next;
        if (!s->first) s->end = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){0, REST_NS}, NULL);
        next->run(next->of);
        free(next);
    }
    return NULL;
}

static int enqueue(stream *s, void (*run)(void *), void *of)
{
    if (s->capturing) { /* it would become a node, which runs when the graph does */
        free(of);
        return SUCCESS;
    }
    operation *o = malloc(sizeof *o);
    *o = (operation){NULL, run, of};
    pthread_mutex_lock(&s->lock);
    *s->end = o;
    s->end = &o->next;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}

API int cuStreamCreate(void **made, unsigned flags)
{
    stream *s = calloc(1, sizeof *s);
    pthread_t thread;
    (void)flags;
    s->end = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->less, NULL);
    *made = s;
    return pthread_create(&thread, NULL, work, s) || pthread_detach(thread) ? INVALID_VALUE : SUCCESS;
}

API int cuStreamSynchronize(void *of)
{
    stream *s = of;
    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy) pthread_cond_wait(&s->less, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}

API int cuStreamBeginCapture_v2(void *of, int mode)
{
    (void)mode;
    ((stream *)of)->capturing = true;
    return SUCCESS;
}

API int cuStreamEndCapture(void *of, void **graph)
{
    ((stream *)of)->capturing = false;
    *graph = NULL;
    return SUCCESS;
}

API int cuStreamIsCapturing(void *of, int *status)
{
    *status = ((stream *)of)->capturing;
    return SUCCESS;
}

API int cuCtxGetCurrent(void **context)
{
    *context = &lock;
    return SUCCESS;
}

API int cuStreamGetCtx(void *of, void **context)
{
    (void)of;
    *context = &lock;
    return SUCCESS;
}

API int cuCtxPushCurrent_v2(void *context)
{
    return context == &lock ? SUCCESS : INVALID_VALUE;
}

API int cuCtxPopCurrent_v2(void **context)
{
    *context = &lock;
    return SUCCESS;
}

API int cuCtxGetDevice(int *device)
{
    (void)device;
    return INVALID_VALUE; /* threads of this program make no context current */
}

API int cuThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return SUCCESS;
}

API int cuMemHostAlloc(void **made, size_t bytes, unsigned flags)
{
    (void)flags;
    return (*made = malloc(bytes)) ? SUCCESS : INVALID_VALUE;
}

API int cuMemFreeHost(void *data)
{
    free(data);
    return SUCCESS;
}

API int cuMemAlloc_v2(uint64_t *made, size_t bytes)
{
    *made = (uintptr_t)malloc(bytes);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST - 1 && allocated[i].bytes) i++;
    allocated[i].from = *made;
    allocated[i].bytes = bytes;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer)
{
    bool known = false;
    (void)attribute;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && !known; i++)
        known = pointer >= allocated[i].from && pointer < allocated[i].from + allocated[i].bytes;
    pthread_mutex_unlock(&lock);
    *(unsigned *)value = 2;
    return known ? SUCCESS : INVALID_VALUE;
}

typedef struct move {
    void *to;
    const void *from;
    size_t bytes;
} move;

static void run_move(void *of)
{
    move *m = of;
    memcpy(m->to, m->from, m->bytes);
    free(m);
}

API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *of)
{
    move *m = malloc(sizeof *m);
    *m = (move){to, (const void *)(uintptr_t)from, bytes};
    return enqueue(of, run_move, m);
}

/* The host's bytes are taken at once, as CUDA takes those of pageable memory. */
static void run_staged(void *of)
{
    move *m = of;
    memcpy(m->to, m + 1, m->bytes);
    free(m);
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *of)
{
    move *m = malloc(sizeof *m + bytes);
    *m = (move){(void *)(uintptr_t)to, NULL, bytes};
    memcpy(m + 1, from, bytes);
    return enqueue(of, run_staged, m);
}

typedef struct host_function {
    void (*run)(void *);
    void *of;
} host_function;

static void run_function(void *of)
{
    host_function f = *(host_function *)of;
    free(of);
    f.run(f.of);
}

API int cuLaunchHostFunc(void *of, void (*run)(void *), void *argument)
{
    host_function *f = malloc(sizeof *f);
    *f = (host_function){run, argument};
    return enqueue(of, run_function, f);
}

API int cuEventCreate(void **made, unsigned flags)
{
    (void)flags;
    return (*made = calloc(1, sizeof(event))) ? SUCCESS : INVALID_VALUE;
}

static void run_event(void *of)
{
    atomic_store(&((event *)of)->done, true);
}

API int cuEventRecord(void *of, void *on)
{
    return ((stream *)on)->capturing ? CAPTURE_UNSUPPORTED : enqueue(on, run_event, of);
}

API int cuEventQuery(void *of)
{
    return atomic_load(&((event *)of)->done) ? SUCCESS : NOT_READY;
}

API int cuEventDestroy_v2(void *of)
{
    free(of);
    return SUCCESS;
}
