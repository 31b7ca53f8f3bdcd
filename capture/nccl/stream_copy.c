/* Copies ordered on streams: see stream_copy.h. */
#include "stream_copy.h"

#include "pinned_memory.h"
#include "stream_driver.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct lb_stream_copy {
    void *event, *context; /* NULL: of the host */
    bool pinned, ready, failed;
    size_t bytes;
    void *data;
};

static void *context_of(const lb_stream_driver *cuda, void *stream)
{
    void *context = NULL;
    const int got = cuda->cuStreamGetCtx ? cuda->cuStreamGetCtx(stream, &context) : cuda->cuCtxGetCurrent(&context);
    return got == LB_CUDA_SUCCESS ? context : NULL;
}

/* Event and stream have to be of one context, which need not be the caller's. */
static bool enqueue(const lb_stream_driver *cuda, lb_stream_copy *copy, const void *from, void *stream)
{
    if (!(copy->context = context_of(cuda, stream))) return false;
    const lb_stream_visit visit = lb_stream_driver_enter(cuda, copy->context);
    bool done = visit.entered && (copy->data = lb_pinned_memory_take(cuda, copy->bytes));
    done = done && cuda->cuEventCreate(&copy->event, LB_CUDA_EVENT_WITHOUT_TIMING) == LB_CUDA_SUCCESS;
    done = done && cuda->cuMemcpyDtoHAsync_v2(copy->data, (uintptr_t)from, copy->bytes, stream) == LB_CUDA_SUCCESS;
    done = done && cuda->cuEventRecord(copy->event, stream) == LB_CUDA_SUCCESS;
    lb_stream_driver_leave(cuda, visit);
    return done;
}

static lb_stream_copy *copy_on_stream(const lb_stream_driver *cuda, const void *from, size_t bytes, void *stream)
{
    int type = 0;
    if (!cuda->whole || lb_stream_is_captured(stream)) return NULL;
    if (bytes && cuda->cuPointerGetAttribute(&type, LB_CUDA_POINTER_MEMORY_TYPE, (uintptr_t)from) != LB_CUDA_SUCCESS)
        return NULL;
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
    const lb_stream_driver *cuda = lb_stream_driver_now();
    if (cuda) return copy_on_stream(cuda, from, bytes, stream);
    void *data = malloc(bytes ? bytes : 1);
    lb_stream_copy *copy = data ? lb_stream_copy_of(data, bytes) : NULL;
    if (!copy)
        free(data);
    else if (bytes)
        memcpy(data, from, bytes);
    return copy;
}

lb_stream_copy *lb_stream_copy_of(void *data, size_t bytes)
{
    lb_stream_copy *copy = calloc(1, sizeof *copy);
    if (copy) *copy = (lb_stream_copy){.data = data, .bytes = bytes, .ready = true};
    return copy;
}

bool lb_stream_copy_ready(lb_stream_copy *copy)
{
    const lb_stream_driver *cuda = copy->ready || !copy->event ? NULL : lb_stream_driver_now();
    if (!cuda) return true;
    const lb_stream_visit visit = lb_stream_driver_enter(cuda, copy->context);
    const int answer = cuda->cuEventQuery(copy->event);
    lb_stream_driver_leave(cuda, visit);
    copy->ready = answer != LB_CUDA_NOT_READY;
    copy->failed = copy->ready && answer != LB_CUDA_SUCCESS;
    return copy->ready;
}

const void *lb_stream_copy_bytes(const lb_stream_copy *copy)
{
    if (copy->failed || (copy->event && !copy->ready)) return NULL;
    return copy->data ? copy->data : "";
}

void lb_stream_copy_free(lb_stream_copy *copy)
{
    if (!copy) return;
    const lb_stream_driver *cuda = copy->pinned ? lb_stream_driver_now() : NULL;
    if (cuda && copy->context) {
        const lb_stream_visit visit = lb_stream_driver_enter(cuda, copy->context);
        if (copy->event) cuda->cuEventDestroy_v2(copy->event);
        lb_stream_driver_leave(cuda, visit);
    }
    if (!copy->pinned)
        free(copy->data);
    else if (copy->data)
        lb_pinned_memory_give(copy->data);
    free(copy);
}

bool lb_stream_is_captured(void *stream)
{
    const lb_stream_driver *cuda = lb_stream_driver_now();
    int status = 0;
    if (!cuda || !cuda->whole) return false;
    const int answer = cuda->cuStreamIsCapturing(stream, &status);
    return answer == LB_CUDA_SUCCESS ? status != 0 : answer >= LB_CUDA_CAPTURE_FIRST && answer <= LB_CUDA_CAPTURE_LAST;
}

int lb_stream_device(void)
{
    lb_stream_driver_look();
    const lb_stream_driver *cuda = lb_stream_driver_now();
    int device = -1;
    return cuda && cuda->whole && cuda->cuCtxGetDevice(&device) == LB_CUDA_SUCCESS ? device : -1;
}

void lb_stream_copies_prepare(void)
{
    const lb_stream_driver *cuda = lb_stream_driver_now();
    if (cuda && cuda->whole) lb_pinned_memory_prepare(cuda);
}
