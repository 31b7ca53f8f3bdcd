/* What the files of the stand-in driver share; see standin.h. One lock guards everything but the bytes of memory. */
#ifndef LB_STANDIN_INSIDE_H
#define LB_STANDIN_INSIDE_H

#include "standin.h"

#include <pthread.h>

extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_change; /* something ended, was added or was let go */

typedef struct standin_graph standin_graph;

struct CUctx_st {
    int device;
    int users;      /* who retained it */
    CUresult error; /* stays: every call fails with it */
    CUstream legacy;
};

typedef enum action_kind { ACTION_NONE, ACTION_KERNEL, ACTION_COPY, ACTION_FILL, ACTION_GRAPH } action_kind;
/* What a stream or a node of a graph does. */
typedef struct action {
    action_kind kind;
    standin_kernel kernel;
    unsigned grid[3], block[3];
    char *parameters; /* malloc'ed, one after the other, each in `sizes` rounded up to 16 */
    CUdeviceptr to, from;
    size_t bytes;
    int value;
    standin_graph *graph;
} action;

typedef struct operation {
    struct operation *next;
    action action;
    CUstream after; /* not begun before this one has done `ticket` operations; NULL: at once */
    uint64_t ticket;
} operation;

/* Nodes of a graph, by their numbers; the array is a standin_object, and never changes. */
typedef struct standin_set {
    const int *nodes;
    int n;
} standin_set;

struct CUstream_st {
    CUcontext context;
    CUstream handle; /* what the program calls it: once it is destroyed, the name of the next one that is made */
    CUstream next;   /* all of them, the destroyed ones too: events go on naming them */
    bool blocking, gone;
    operation *first, **last;
    uint64_t added, done, random, id;
    standin_graph *capturing;
    standin_set tips; /* nodes that the next one depends on */
};

struct CUevent_st {
    CUcontext context;
    CUstream stream; /* NULL: never recorded */
    uint64_t ticket;
    standin_graph *graph; /* recorded inside its capture */
    standin_set tips;
};

typedef struct standin_node {
    action action;
    standin_set after;
} standin_node;
struct standin_graph {
    standin_node *nodes; /* a standin_object */
    int n, room, users;
    uint64_t id, random;
    CUstream origin;
    pthread_t thread;
    CUstreamCaptureMode mode;
    bool active, invalidated;
};

/* Every call begins with it: what was told to fail, a child after a fork, no driver, no context, one in error. */
CUresult standin_enter(const char *symbol, bool needs_context);
CUcontext standin_current(void);
/* What a handle points to: zeros, there until the next standin_begin, so that a handle which was given back does no
 * harm. */
void *standin_object(size_t bytes);
CUcontext standin_context_of(int device);
void standin_broke(const char *rule); /* under the lock */
uint64_t standin_draw(uint64_t *state);

/* Memory, under the lock. */
void standin_memory_begin(int devices);
char *standin_find(CUdeviceptr address, size_t bytes);
bool standin_is_pinned(const void *address, size_t bytes);

/* Queues. `add` takes the action over. All under the lock. */
CUresult standin_add(CUstream stream, action *what);
CUresult standin_stream_of(CUstream handle, CUstream *stream);       /* the current context's, or an error */
CUresult standin_stream_anywhere(CUstream handle, CUstream *stream); /* ... or another context's */
void standin_streams_begin(void);
void standin_wait_for(CUstream stream, uint64_t ticket); /* the host waits */
void standin_wait_for_all(CUcontext context);
CUstream standin_streams(void);
/* Runs it, without the lock; false: the context is in error now. */
bool standin_perform(const action *what, CUcontext context);
void standin_action_release(action *what);

/* Graphs, under the lock. */
CUresult standin_capture_add(CUstream stream, action *what);
standin_set standin_both(standin_set a, standin_set b);
bool standin_graph_run(standin_graph *graph, CUcontext context); /* without the lock */
void standin_graph_unuse(standin_graph *graph);
CUresult standin_forbidden(void); /* a call that may be unsafe in a capture: it invalidates what it must not disturb */
CUresult standin_invalidate(standin_graph *graph, CUresult result);

#endif
