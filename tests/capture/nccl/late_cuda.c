/* As much of libcuda.so.1 as the shim's copies need: streams that run late, events, graphs that are captured and
 * launched, a capture that forbids what CUDA forbids. Device memory is the host's. Each stream is a queue with a
 * thread, which rests before every operation. Pinned memory is made and given back only when all streams have done what
 * they had then, as CUDA does it. The default stream, by each of its names, is a thread's own, as if each
 * had a device.
 *
 *     LATE_CUDA_LOADS_NOTHING=1      no modules
 *     LATE_CUDA_DEVICE=N             the device that is current in all threads */
#define _GNU_SOURCE
#include "graph_kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_READY = 600,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    RELAXED = 2,
    REST_NS = 300000,
    MOST = 4096
};
#define API __attribute__((visibility("default")))

typedef struct operation {
    struct operation *next;
    void (*run)(void *);
    void *of;
    bool kept; /* `of` is a graph's */
} operation;

typedef struct user_object {
    struct user_object *next;
    void (*destroy)(void *);
    void *of;
} user_object;

/* A graph and what is made of it are one; nodes run in the order in which they were captured. */
typedef struct graph {
    _Atomic int references;
    uint64_t id;
    operation *first, **end;
    user_object *objects;
} graph;

typedef struct stream {
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    operation *first, **end;
    bool busy, destroyed;
    graph *capture;
    struct stream *older; /* of all that were made */
    _Atomic uint64_t queued, ran;
} stream;
static _Atomic(stream *) youngest;

typedef struct event {
    _Atomic bool done;
} event;

static struct {
    uint64_t from;
    size_t bytes;
} allocated[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int captures;   /* that are under way, each of mode global */
static _Atomic bool is_broken; /* one of them, by a call that CUDA forbids meanwhile */
static _Thread_local int mode; /* 0: global */

static void be_careful(void)
{
    if (atomic_load(&captures) && mode != RELAXED) atomic_store(&is_broken, true);
}

static void *work(void *of)
{
    stream *s = of;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->less);
        while (!s->first && !s->destroyed) pthread_cond_wait(&s->more, &s->lock);
        operation *next = s->first;
        if (next && !(s->first = next->next)) s->end = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        if (!next) break;
        nanosleep(&(struct timespec){0, REST_NS}, NULL);
        next->run(next->of);
        if (!next->kept) free(next->of);
        free(next);
        atomic_fetch_add(&s->ran, 1);
    }
    return NULL; /* it stays in the list of all */
}

static void append(operation ***end, void (*run)(void *), void *of, bool kept)
{
    operation *o = malloc(sizeof *o);
    *o = (operation){NULL, run, of, kept};
    **end = o;
    *end = &o->next;
}

static stream *stream_of(void *of);

/* `of` is freed after it ran, or with the graph. */
static int enqueue(void *on, void (*run)(void *), void *of)
{
    stream *s = stream_of(on);
    if (s->capture) {
        append(&s->capture->end, run, of, true);
        return SUCCESS;
    }
    pthread_mutex_lock(&s->lock);
    append(&s->end, run, of, false);
    atomic_fetch_add(&s->queued, 1);
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}

static void wait_for_all(void)
{
    for (stream *s = atomic_load(&youngest); s; s = s->older)
        for (const uint64_t until = atomic_load(&s->queued); atomic_load(&s->ran) < until;)
            nanosleep(&(struct timespec){0, REST_NS}, NULL);
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
    s->older = atomic_load(&youngest);
    while (!atomic_compare_exchange_weak(&youngest, &s->older, s)) {
    }
    return pthread_create(&thread, NULL, work, s) || pthread_detach(thread) ? INVALID_VALUE : SUCCESS;
}

API int cuStreamDestroy_v2(void *of)
{
    stream *s = of;
    pthread_mutex_lock(&s->lock);
    s->destroyed = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}

API int cuStreamSynchronize(void *of)
{
    stream *s = stream_of(of);
    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy) pthread_cond_wait(&s->less, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}

/* NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. */
static stream *stream_of(void *of)
{
    static _Thread_local void *mine;
    if ((uintptr_t)of > 2) return of;
    if (!mine) cuStreamCreate(&mine, 0);
    return mine;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

API int cuStreamBeginCapture_v2(void *of, int how)
{
    static _Atomic uint64_t serial;
    graph *g = calloc(1, sizeof *g);
    (void)how;
    g->references = 1;
    g->id = ++serial;
    g->end = &g->first;
    stream_of(of)->capture = g;
    captures++;
    return SUCCESS;
}

API int cuStreamEndCapture(void *of, void **made)
{
    *made = stream_of(of)->capture;
    stream_of(of)->capture = NULL;
    captures--;
    return atomic_load(&is_broken) ? CAPTURE_INVALIDATED : SUCCESS;
}

API int cuStreamIsCapturing(void *of, int *status)
{
    *status = stream_of(of)->capture != NULL;
    return SUCCESS;
}

API int cuStreamGetCaptureInfo_v2(void *of, int *status, uint64_t *id, void **made, const void *const **nodes,
                                  size_t *n)
{
    const graph *g = stream_of(of)->capture;
    (void)nodes, (void)n;
    *status = g != NULL;
    if (g) *id = g->id, *made = stream_of(of)->capture;
    return SUCCESS;
}

API int cuUserObjectCreate(void **made, void *of, void (*destroy)(void *), unsigned references, unsigned flags)
{
    user_object *object = malloc(sizeof *object);
    (void)references, (void)flags;
    *object = (user_object){NULL, destroy, of};
    *made = object;
    return SUCCESS;
}

API int cuUserObjectRelease(void *of, unsigned references)
{
    user_object *object = of;
    (void)references;
    object->destroy(object->of);
    free(object);
    return SUCCESS;
}

API int cuGraphRetainUserObject(void *of, void *object, unsigned references, unsigned flags)
{
    graph *g = of;
    (void)references, (void)flags;
    ((user_object *)object)->next = g->objects;
    g->objects = object;
    return SUCCESS;
}

static void release_graph(void *of)
{
    graph *g = of;
    if (--g->references) return;
    for (operation *o = g->first, *next; o; o = next) {
        next = o->next;
        free(o->of);
        free(o);
    }
    for (user_object *o = g->objects, *next; o; o = next) {
        next = o->next;
        cuUserObjectRelease(o, 1);
    }
    free(g);
}

API int cuGraphDestroy(void *of)
{
    release_graph(of);
    return SUCCESS;
}

API int cuGraphInstantiateWithFlags(void **made, void *of, unsigned long long flags)
{
    (void)flags;
    ((graph *)of)->references++;
    *made = of;
    return SUCCESS;
}

API int cuGraphExecDestroy(void *of)
{
    release_graph(of);
    return SUCCESS;
}

API int cuGraphLaunch(void *of, void *on)
{
    graph *g = of;
    stream *s = on;
    g->references++;
    pthread_mutex_lock(&s->lock);
    for (const operation *o = g->first; o; o = o->next) {
        append(&s->end, o->run, o->of, true);
        atomic_fetch_add(&s->queued, 1);
    }
    append(&s->end, release_graph, g, true);
    atomic_fetch_add(&s->queued, 1);
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}

/* What the kernel does, in C: one thread of it. */
static void run_kernel(void *of)
{
    const lb_graph_kernel_arguments *a = of;
    lb_graph_head *head = (lb_graph_head *)(uintptr_t)a->head;
    const uint64_t run = atomic_load(&head->ended);
    if (a->ticket)
        atomic_store(&head->tickets[run % LB_GRAPH_TICKETS],
                     atomic_fetch_add((_Atomic uint64_t *)(uintptr_t)a->ticket, 1));
    if (a->bytes)
        memcpy((char *)(uintptr_t)a->to + run % a->slots * a->stride, (const void *)(uintptr_t)a->from, a->bytes);
    if (!a->arrived) return;
    atomic_store(&head->ended, run + 1);
    atomic_fetch_add((_Atomic uint64_t *)(uintptr_t)a->activity, 1);
}

API int cuModuleLoadData(void **module, const void *image)
{
    be_careful();
    *module = &lock;
    if (getenv("LATE_CUDA_LOADS_NOTHING")) return INVALID_VALUE;
    return strstr(image, ".visible .entry") ? SUCCESS : INVALID_VALUE;
}

API int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    *(void (**)(void *))function = run_kernel;
    return strcmp(name, LB_GRAPH_KERNEL) == 0 ? SUCCESS : INVALID_VALUE;
}

API int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                       unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra)
{
    uint64_t *a = malloc(sizeof(lb_graph_kernel_arguments));
    void (*run)(void *);
    (void)x, (void)y, (void)z, (void)threads_x, (void)threads_y, (void)threads_z, (void)shared, (void)extra;
    *(void **)&run = function;
    for (size_t i = 0; i < sizeof(lb_graph_kernel_arguments) / sizeof *a; i++) a[i] = *(const uint64_t *)parameters[i];
    return enqueue(stream, run, a);
}

API int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    (void)memory, (void)bytes, (void)flags;
    be_careful();
    return SUCCESS;
}

API int cuMemHostUnregister(void *memory)
{
    (void)memory;
    be_careful();
    return SUCCESS;
}

/* ---- contexts and memory ----------------------------------------------------------------------------------------- */

API int cuInit(unsigned flags)
{
    (void)flags;
    return SUCCESS;
}

API int cuDeviceGet(int *device, int number)
{
    *device = number;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = &lock;
    return SUCCESS;
}

API int cuCtxSetCurrent(void *context)
{
    return context == &lock ? SUCCESS : INVALID_VALUE;
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
    const char *current = getenv("LATE_CUDA_DEVICE");
    if (!current) return INVALID_VALUE; /* threads of this program make no context current */
    *device = atoi(current);
    return SUCCESS;
}

API int cuThreadExchangeStreamCaptureMode(int *given)
{
    const int before = mode;
    mode = *given;
    *given = before;
    return SUCCESS;
}

API int cuMemHostAlloc(void **made, size_t bytes, unsigned flags)
{
    (void)flags;
    be_careful();
    wait_for_all();
    return (*made = malloc(bytes)) ? SUCCESS : INVALID_VALUE;
}

API int cuMemFreeHost(void *data)
{
    be_careful();
    wait_for_all();
    free(data);
    return SUCCESS;
}

API int cuMemAlloc_v2(uint64_t *made, size_t bytes)
{
    be_careful();
    *made = (uintptr_t)malloc(bytes);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST - 1 && allocated[i].bytes) i++;
    allocated[i].from = *made;
    allocated[i].bytes = bytes;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API int cuMemFree_v2(uint64_t memory)
{
    be_careful();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (allocated[i].from == memory) allocated[i].from = allocated[i].bytes = 0;
    pthread_mutex_unlock(&lock);
    free((void *)(uintptr_t)memory);
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
    if (m->bytes == sizeof(uint64_t)) /* a word at once, as devices copy it, while another stream counts in it */
        *(uint64_t *)m->to = atomic_load((const _Atomic uint64_t *)m->from);
    else
        memcpy(m->to, m->from, m->bytes);
}

API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *of)
{
    move *m = malloc(sizeof *m);
    *m = (move){to, (const void *)(uintptr_t)from, bytes};
    return enqueue(of, run_move, m);
}

API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *of)
{
    return cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, of);
}

/* The host's bytes are taken at once, as CUDA takes those of pageable memory. */
static void run_staged(void *of)
{
    move *m = of;
    memcpy(m->to, m + 1, m->bytes);
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *of)
{
    move *m = malloc(sizeof *m + bytes);
    *m = (move){(void *)(uintptr_t)to, NULL, bytes};
    memcpy(m + 1, from, bytes);
    return enqueue(of, run_staged, m);
}

static void run_set(void *of)
{
    const move *m = of;
    memset(m->to, (int)(uintptr_t)m->from, m->bytes);
}

API int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *of)
{
    move *m = malloc(sizeof *m);
    *m = (move){(void *)(uintptr_t)to, (const void *)(uintptr_t)value, bytes};
    return enqueue(of, run_set, m);
}

typedef struct host_function {
    void (*run)(void *);
    void *of;
} host_function;

static void run_function(void *of)
{
    const host_function *f = of;
    f->run(f->of);
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

typedef struct mark {
    event *event;
} mark;

static void run_event(void *of)
{
    atomic_store(&((mark *)of)->event->done, true);
}

API int cuEventRecord(void *of, void *on)
{
    if (stream_of(on)->capture) return CAPTURE_UNSUPPORTED;
    mark *m = malloc(sizeof *m);
    m->event = of;
    return enqueue(on, run_event, m);
}

API int cuEventQuery(void *of)
{
    be_careful();
    return atomic_load(&((event *)of)->done) ? SUCCESS : NOT_READY;
}

API int cuEventDestroy_v2(void *of)
{
    free(of);
    return SUCCESS;
}
