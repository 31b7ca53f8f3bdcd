/* Capture and graphs of the stand-in. */
#include "standin_inside.h"

#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
    standin_graph graph;
};
struct CUgraphExec_st {
    standin_graph *graph;
};

static _Thread_local CUstreamCaptureMode own_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- what a capture forbids -------------------------------------------------------------------------------------- */

CUresult standin_invalidate(standin_graph *graph, CUresult result)
{
    graph->invalidated = true;
    return result;
}

/* Whether a capture of `graph` forbids this thread what may be unsafe, as cuThreadExchangeStreamCaptureMode has it. */
static bool forbids(const standin_graph *graph)
{
    if (own_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (pthread_equal(graph->thread, pthread_self())) return graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return own_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && graph->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult standin_forbidden(void)
{
    for (CUstream s = standin_streams(); s; s = s->next)
        if (s->capturing && forbids(s->capturing))
            return standin_invalidate(s->capturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    const CUresult result = standin_enter("cuThreadExchangeStreamCaptureMode", false);
    if (result) return result;
    const CUstreamCaptureMode before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

CUresult standin_capture_add(CUstream stream, action *what)
{
    standin_graph *g = stream->capturing;
    if (g->invalidated || g->n == STANDIN_NODES) {
        standin_action_release(what);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    g->nodes[g->n] = (standin_node){*what, stream->tips};
    stream->tips = 1ull << g->n++;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    static uint64_t ids;
    CUresult result = standin_enter("cuStreamBeginCapture_v2", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_of(handle, &s);
    if (!result && (s->capturing || s == s->context->legacy)) result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!result) {
        CUgraph g = standin_object(sizeof *g);
        g->graph = (standin_graph){.users = 1, .id = ++ids, .random = ids, .origin = s, .mode = mode, .active = true};
        g->graph.thread = pthread_self();
        s->capturing = &g->graph;
        s->tips = 0;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* All nodes from which one of `tips` can be reached, those included. */
static uint64_t before(const standin_graph *g, uint64_t tips)
{
    for (int i = g->n - 1; i >= 0; i--)
        if (tips >> i & 1) tips |= g->nodes[i].after;
    return tips;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *to)
{
    CUresult result = standin_enter("cuStreamEndCapture", true);
    if (result) return result;
    CUstream s;
    *to = NULL;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_of(handle, &s);
    if (!result && (!s->capturing || s->capturing->origin != s)) result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (result) {
        pthread_mutex_unlock(&standin_lock);
        return result;
    }
    standin_graph *g = s->capturing;
    const uint64_t joined = before(g, s->tips);
    if (g->invalidated) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (CUstream other = standin_streams(); other; other = other->next) {
        if (other->capturing != g) continue;
        if (!result && (other->tips & ~joined)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        other->capturing = NULL;
    }
    g->active = false;
    if (!result)
        *to = (CUgraph)(void *)g;
    else
        standin_graph_unuse(g);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* The legacy stream cannot be asked while a blocking stream is captured, and asking breaks nothing. */
static CUresult status_of(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    CUstream s;
    const CUresult result = standin_stream_of(handle, &s);
    if (result) return result;
    if (s == s->context->legacy)
        for (CUstream other = standin_streams(); other; other = other->next)
            if (other->capturing && other->blocking && other->context == s->context)
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !s->capturing               ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capturing->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id && s->capturing) *id = s->capturing->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUresult result = standin_enter("cuStreamIsCapturing", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = status_of(handle, status, NULL);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    CUresult result = standin_enter("cuStreamGetCaptureInfo", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = status_of(handle, status, id);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

void standin_graph_unuse(standin_graph *g)
{
    if (--g->users > 0) return;
    for (int i = 0; i < g->n; i++) standin_action_release(&g->nodes[i].action);
    g->n = 0;
}

bool standin_graph_run(standin_graph *g, CUcontext context)
{
    const uint64_t all = g->n == STANDIN_NODES ? ~0ull : (1ull << g->n) - 1;
    for (uint64_t done = 0; done != all;) {
        pthread_mutex_lock(&standin_lock);
        const int from = (int)(standin_draw(&g->random) % (uint64_t)g->n);
        pthread_mutex_unlock(&standin_lock);
        int i = from;
        while (done >> i & 1 || g->nodes[i].after & ~done) i = (i + 1) % g->n;
        if (!standin_perform(&g->nodes[i].action, context)) return false;
        done |= 1ull << i;
    }
    return true;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *to, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    const CUresult result = standin_enter("cuGraphInstantiateWithFlags", true);
    if (result) return result;
    *to = standin_object(sizeof **to);
    pthread_mutex_lock(&standin_lock);
    graph->graph.users++;
    (*to)->graph = &graph->graph;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CUresult result = standin_enter("cuGraphLaunch", true);
    if (result) return result;
    CUstream s;
    pthread_mutex_lock(&standin_lock);
    result = standin_stream_of(handle, &s);
    if (!result) {
        action launch = {.kind = ACTION_GRAPH, .graph = exec->graph};
        exec->graph->users++;
        result = standin_add(s, &launch);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    const CUresult result = standin_enter("cuGraphExecDestroy", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    standin_graph_unuse(exec->graph);
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    const CUresult result = standin_enter("cuGraphDestroy", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    standin_graph_unuse(&graph->graph);
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}
