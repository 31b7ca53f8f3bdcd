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

standin_set standin_both(standin_set a, standin_set b)
{
    if (a.n == 0 || b.n == 0) return a.n ? a : b;
    int *nodes = standin_object((size_t)(a.n + b.n) * sizeof *nodes), n = a.n;
    memcpy(nodes, a.nodes, (size_t)a.n * sizeof *nodes);
    for (int i = 0, j; i < b.n; i++) {
        for (j = 0; j < a.n && a.nodes[j] != b.nodes[i];) j++;
        if (j == a.n) nodes[n++] = b.nodes[i];
    }
    return (standin_set){nodes, n};
}

static standin_set only(int node)
{
    int *nodes = standin_object(sizeof *nodes);
    *nodes = node;
    return (standin_set){nodes, 1};
}

static void make_room(standin_graph *g)
{
    if (g->n < g->room) return;
    g->room = g->room ? 2 * g->room : 64;
    standin_node *nodes = standin_object((size_t)g->room * sizeof *nodes);
    if (g->n) memcpy(nodes, g->nodes, (size_t)g->n * sizeof *nodes);
    g->nodes = nodes;
}

CUresult standin_capture_add(CUstream stream, action *what)
{
    standin_graph *g = stream->capturing;
    if (g->invalidated) {
        standin_action_release(what);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    make_room(g);
    g->nodes[g->n] = (standin_node){*what, stream->tips};
    stream->tips = only(g->n++);
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
        s->tips = (standin_set){NULL, 0};
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static bool has_all(const bool *marks, standin_set of)
{
    for (int i = 0; i < of.n; i++)
        if (!marks[of.nodes[i]]) return false;
    return true;
}

/* One for each node. */
static bool *no_marks(const standin_graph *g)
{
    bool *marks = calloc((size_t)g->n + 1, sizeof *marks);
    if (!marks) abort();
    return marks;
}

/* All nodes from which one of `tips` can be reached, those included, are marked. */
static bool *before(const standin_graph *g, standin_set tips)
{
    bool *marks = no_marks(g);
    for (int t = 0; t < tips.n; t++) marks[tips.nodes[t]] = true;
    for (int i = g->n - 1; i >= 0; i--)
        for (int a = 0; marks[i] && a < g->nodes[i].after.n; a++) marks[g->nodes[i].after.nodes[a]] = true;
    return marks;
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
    bool *joined = before(g, s->tips);
    if (g->invalidated) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (CUstream other = standin_streams(); other; other = other->next) {
        if (other->capturing != g) continue;
        if (!result && !has_all(joined, other->tips)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        other->capturing = NULL;
    }
    free(joined);
    g->active = false;
    if (!result)
        *to = (CUgraph)(void *)g;
    else
        standin_graph_unuse(g);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* The legacy stream cannot be asked while a blocking stream is captured, and asking breaks nothing. */
static CUresult status_of(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream s;
    const CUresult result = standin_stream_anywhere(handle, &s);
    if (result) return result;
    if (s == s->context->legacy)
        for (CUstream other = standin_streams(); other; other = other->next)
            if (other->capturing && other->blocking && other->context == s->context)
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !s->capturing               ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capturing->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUresult result = standin_enter("cuStreamIsCapturing", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = status_of(handle, status);
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
    bool *done = no_marks(g), fine = true;
    for (int left = g->n; left > 0 && fine; left--) {
        pthread_mutex_lock(&standin_lock);
        int i = (int)(standin_draw(&g->random) % (uint64_t)g->n);
        pthread_mutex_unlock(&standin_lock);
        while (done[i] || !has_all(done, g->nodes[i].after)) i = (i + 1) % g->n;
        fine = standin_perform(&g->nodes[i].action, context);
        done[i] = true;
    }
    free(done);
    return fine;
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
