/* Finding the driver: see stream_driver.h. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "stream_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

static lb_stream_driver table;
static _Atomic(const lb_stream_driver *) current;

static void fill(void *library)
{
    table.whole = table.graphs = true;
#define FIND(name, parameters) table.whole &= (*(void **)&table.name = dlsym(library, #name)) != NULL;
    LB_STREAM_DRIVER(FIND)
#undef FIND
#define FIND(name, parameters) table.graphs &= (*(void **)&table.name = dlsym(library, #name)) != NULL;
    LB_GRAPH_DRIVER(FIND)
#undef FIND
    table.graphs &= table.whole;
}

void lb_stream_driver_look(void)
{
    static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
    if (lb_stream_driver_now()) return;
    void *library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
    if (!library) return;
    pthread_mutex_lock(&busy);
    if (!lb_stream_driver_now()) {
        fill(library);
        atomic_store_explicit(&current, &table, memory_order_release);
    }
    pthread_mutex_unlock(&busy);
}

const lb_stream_driver *lb_stream_driver_now(void)
{
    return atomic_load_explicit(&current, memory_order_acquire);
}

lb_stream_visit lb_stream_driver_enter(const lb_stream_driver *cuda, void *context)
{
    lb_stream_visit visit = {.mode = LB_CUDA_CAPTURE_RELAXED};
    cuda->cuThreadExchangeStreamCaptureMode(&visit.mode);
    visit.entered = cuda->cuCtxPushCurrent_v2(context) == LB_CUDA_SUCCESS;
    return visit;
}

void lb_stream_driver_leave(const lb_stream_driver *cuda, lb_stream_visit visit)
{
    void *popped;
    if (visit.entered) cuda->cuCtxPopCurrent_v2(&popped);
    cuda->cuThreadExchangeStreamCaptureMode(&visit.mode);
}
