/* Streams of the stand-in: a queue and a thread each. An event is a place in a queue. */
#include "standin_inside.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_cond_t standin_change = PTHREAD_COND_INITIALIZER;

static CUstream streams;
static CUstream free_handles[256];
static int n_free_handles;
static bool held;
static int waits;

CUstream standin_streams(void)
{
    return streams;
}

/* ---- actions ----------------------------------------------------------------------------------------------------- */

void standin_action_release(action *what)
{
    free(what->parameters);
    what->parameters = NULL;
    if (what->graph) standin_graph_unuse(what->graph);
    what->graph = NULL;
}

static bool run_kernel(const action *a)
{
    void *parameters[8];
    char *at = a->parameters;
    for (int i = 0; i < a->kernel.n_parameters; i++) {
        parameters[i] = at;
        at += (a->kernel.sizes[i] + 15) / 16 * 16;
    }
    const standin_launch launch = {
        {a->grid[0], a->grid[1], a->grid[2]}, {a->block[0], a->block[1], a->block[2]}, parameters};
    return a->kernel.run(&launch);
}

/* As devices do, whole words at once where they are aligned: who reads a word that is being written gets all or nothing
 * of it. */
static void copy_words(char *to, const char *from, size_t bytes)
{
    size_t done = 0;
    if (((uintptr_t)to | (uintptr_t)from) % sizeof(uint64_t) == 0)
        for (; done + sizeof(uint64_t) <= bytes; done += sizeof(uint64_t)) {
            const uint64_t word = __atomic_load_n((const uint64_t *)(const void *)(from + done), __ATOMIC_ACQUIRE);
            __atomic_store_n((uint64_t *)(void *)(to + done), word, __ATOMIC_RELEASE);
        }
    memcpy(to + done, from + done, bytes - done);
}

static bool copy(const action *a)
{
    void *to = standin_twin(a->to, a->bytes), *from = standin_twin(a->from, a->bytes);
    if (!to || !from) return false;
    copy_words(to, from, a->bytes);
    return true;
}

static bool fill(const action *a)
{
    void *to = standin_twin(a->to, a->bytes);
    if (!to) return false;
    memset(to, a->value, a->bytes);
    return true;
}

static void set_error(CUcontext context, CUresult error)
{
    pthread_mutex_lock(&standin_lock);
    if (!context->error) context->error = error;
    pthread_mutex_unlock(&standin_lock);
}

bool standin_perform(const action *what, CUcontext context)
{
    bool good = true;
    pthread_mutex_lock(&standin_lock);
    const bool lost = context->error != CUDA_SUCCESS;
    pthread_mutex_unlock(&standin_lock);
    if (lost) return false;
    switch (what->kind) {
    case ACTION_NONE: break;
    case ACTION_KERNEL: {
        const CUresult told = standin_enter("kernel", false);
        if (told) {
            set_error(context, told);
            return false;
        }
        good = run_kernel(what);
        break;
    }
    case ACTION_COPY: good = copy(what); break;
    case ACTION_FILL: good = fill(what); break;
    case ACTION_GRAPH: return standin_graph_run(what->graph, context);
    }
    if (!good) set_error(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return good;
}

/* ---- the thread of a stream -------------------------------------------------------------------------------------- */

extern unsigned standin_delay_us;

static void be_late(uint64_t *random)
{
    const unsigned most = standin_delay_us;
    const uint64_t late = most ? standin_draw(random) % most : 0;
    pthread_mutex_unlock(&standin_lock);
    if (late) nanosleep(&(struct timespec){0, (long)late * 1000}, NULL);
    pthread_mutex_lock(&standin_lock);
}

static void *work(void *argument)
{
    CUstream s = argument;
    pthread_mutex_lock(&standin_lock);
    for (;;) {
        operation *o = s->first;
        if (!o && s->gone) break;
        if (!o || held || (o->after && o->after->done < o->ticket)) {
            pthread_cond_wait(&standin_change, &standin_lock);
            continue;
        }
        be_late(&s->random);
        pthread_mutex_unlock(&standin_lock);
        standin_perform(&o->action, s->context);
        pthread_mutex_lock(&standin_lock);
        s->first = o->next;
        if (!s->first) s->last = &s->first;
        s->done++;
        standin_action_release(&o->action);
        free(o);
        pthread_cond_broadcast(&standin_change);
    }
    pthread_mutex_unlock(&standin_lock);
    return NULL;
}

static CUstream new_stream(CUcontext context, bool blocking)
{
    static uint64_t count;
    CUstream s = calloc(1, sizeof *s);
    if (!s) abort();
    *s =
        (struct CUstream_st){.context = context, .next = streams, .blocking = blocking, .random = ++count, .id = count};
    s->handle = n_free_handles ? free_handles[--n_free_handles] : s;
    s->last = &s->first;
    streams = s;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, s) != 0) abort();
    pthread_detach(thread);
    return s;
}

/* The streams of before are abandoned with their threads, which end when their queue is empty. */
void standin_streams_begin(void)
{
    held = false;
    waits = 0;
    n_free_handles = 0;
    for (CUstream s = streams; s; s = s->next) {
        s->gone = true;
        s->capturing = NULL;
    }
    pthread_cond_broadcast(&standin_change);
    for (CUstream s = streams; s; s = s->next)
        while (s->done < s->added) pthread_cond_wait(&standin_change, &standin_lock);
}

static void append(CUstream s, const action *what, CUstream after, uint64_t ticket)
{
    operation *o = malloc(sizeof *o);
    if (!o) abort();
    *o = (operation){NULL, *what, after, ticket};
    *s->last = o;
    s->last = &o->next;
    s->added++;
    pthread_cond_broadcast(&standin_change);
}

/* The legacy stream and the blocking ones wait for each other. */
static void order_with_legacy(CUstream s)
{
    const action nothing = {.kind = ACTION_NONE};
    CUstream legacy = s->context->legacy;
    if (s != legacy) {
        if (s->blocking && legacy && legacy->done < legacy->added) append(s, &nothing, legacy, legacy->added);
        return;
    }
    for (CUstream other = streams; other; other = other->next)
        if (other != s && other->context == s->context && other->blocking && other->done < other->added)
            append(s, &nothing, other, other->added);
}

CUresult standin_add(CUstream s, action *what)
{
    if (s->capturing) return standin_capture_add(s, what);
    if (s == s->context->legacy) {
        for (CUstream other = streams; other; other = other->next) {
            if (!other->capturing || other->context != s->context || !other->blocking) continue;
            standin_action_release(what);
            return standin_invalidate(other->capturing, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
    }
    order_with_legacy(s);
    append(s, what, NULL, 0);
    return CUDA_SUCCESS;
}

CUresult standin_stream_anywhere(CUstream handle, CUstream *stream)
{
    CUcontext context = standin_current();
    if ((uintptr_t)handle <= 1) {
        if (!context->legacy) context->legacy = new_stream(context, true);
        *stream = context->legacy;
        return CUDA_SUCCESS;
    }
    for (CUstream s = streams; s; s = s->next) {
        if (s->handle != handle || s->gone) continue;
        *stream = s;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult standin_stream_of(CUstream handle, CUstream *stream)
{
    const CUresult result = standin_stream_anywhere(handle, stream);
    return !result && (*stream)->context != standin_current() ? CUDA_ERROR_INVALID_HANDLE : result;
}

/* ---- the host waits ---------------------------------------------------------------------------------------------- */

void standin_wait_for(CUstream s, uint64_t ticket)
{
    waits++;
    if (held && s->done < ticket) {
        standin_broke("the host waits for a device that is held");
        held = false;
        pthread_cond_broadcast(&standin_change);
    }
    while (s->done < ticket) pthread_cond_wait(&standin_change, &standin_lock);
}

void standin_wait_for_all(CUcontext context)
{
    for (CUstream s = streams; s; s = s->next)
        if (s->context == context && s->done < s->added) standin_wait_for(s, s->added);
}

int standin_waits(void)
{
    pthread_mutex_lock(&standin_lock);
    const int n = waits;
    pthread_mutex_unlock(&standin_lock);
    return n;
}

void standin_hold(void)
{
    pthread_mutex_lock(&standin_lock);
    held = true;
    pthread_mutex_unlock(&standin_lock);
}

void standin_let_go(void)
{
    pthread_mutex_lock(&standin_lock);
    held = false;
    pthread_cond_broadcast(&standin_change);
    pthread_mutex_unlock(&standin_lock);
}

/* ---- streams and events as the driver has them ------------------------------------------------------------------- */

CUresult cuStreamCreate(CUstream *to, unsigned flags)
{
    CUresult result = standin_enter("cuStreamCreate", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    *to = new_stream(standin_current(), !(flags & CU_STREAM_NON_BLOCKING))->handle;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = standin_enter("cuStreamDestroy_v2", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_of(handle, &s);
    if (!result) {
        s->gone = true;
        if (n_free_handles < (int)(sizeof free_handles / sizeof *free_handles)) free_handles[n_free_handles++] = handle;
    }
    pthread_cond_broadcast(&standin_change);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    CUresult result = standin_enter("cuStreamSynchronize", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_anywhere(handle, &s);
    if (!result && s->capturing) result = standin_invalidate(s->capturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (!result) result = standin_forbidden();
    if (!result) {
        standin_wait_for(s, s->added);
        result = s->context->error;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* Of what is asked of a stream, and of waiting for it or in it, any context may be current. */
CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    CUresult result = standin_enter("cuStreamGetCtx", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_anywhere(handle, &s);
    if (!result) *context = s->context;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    CUresult result = standin_enter("cuStreamGetId", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_anywhere(handle, &s);
    if (!result) *id = s->id;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuCtxSynchronize(void)
{
    CUresult result = standin_enter("cuCtxSynchronize", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = standin_forbidden();
    if (!result) {
        standin_wait_for_all(standin_current());
        result = standin_current()->error;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuEventCreate(CUevent *to, unsigned flags)
{
    (void)flags;
    CUresult result = standin_enter("cuEventCreate", true);
    if (result) return result;
    *to = standin_object(sizeof **to);
    (*to)->context = standin_current();
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    (void)event;
    return standin_enter("cuEventDestroy_v2", true);
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
    CUresult result = standin_enter("cuEventRecord", true);
    if (result) return result;
    CUstream s;
    action nothing = {.kind = ACTION_NONE};
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_of(handle, &s);
    if (!result && event->context != s->context) result = CUDA_ERROR_INVALID_HANDLE;
    if (!result && s->capturing) {
        if (s->capturing->invalidated) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->graph = s->capturing;
        event->tips = s->tips;
    } else if (!result) {
        result = standin_add(s, &nothing); /* of the legacy stream this is also its place among the others */
        event->graph = NULL;
        event->stream = s;
        event->ticket = s->added;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* A stream that waits for an event of a capture joins the capture. */
static CUresult wait_in_capture(CUstream s, CUevent event)
{
    if (!event->graph) return standin_invalidate(s->capturing, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (s->capturing && s->capturing != event->graph)
        return standin_invalidate(s->capturing, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    if (!event->graph->active) return CUDA_ERROR_CAPTURED_EVENT;
    if (event->graph->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    s->tips = s->capturing ? standin_both(s->tips, event->tips) : event->tips;
    s->capturing = event->graph;
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    (void)flags;
    CUresult result = standin_enter("cuStreamWaitEvent", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_anywhere(handle, &s);
    if (!result && (s->capturing || event->graph)) {
        result = wait_in_capture(s, event);
    } else if (!result && event->stream) {
        const action nothing = {.kind = ACTION_NONE};
        append(s, &nothing, event->stream, event->ticket);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static CUresult ask_event(CUevent event, bool wait)
{
    CUresult result;
    if (event->graph) {
        if (event->graph->active) standin_invalidate(event->graph, CUDA_ERROR_CAPTURED_EVENT);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    result = standin_forbidden();
    if (result || !event->stream) return result;
    if (wait) standin_wait_for(event->stream, event->ticket);
    if (event->context->error) return event->context->error;
    return event->stream->done >= event->ticket ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventQuery(CUevent event)
{
    CUresult result = standin_enter("cuEventQuery", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = ask_event(event, false);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = standin_enter("cuEventSynchronize", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = ask_event(event, true);
    pthread_mutex_unlock(&standin_lock);
    return result;
}
