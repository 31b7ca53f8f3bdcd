/* Nodes around captured calls: see graph_copy.h. */
#define _GNU_SOURCE /* MADV_DONTFORK */
#include "graph_copy.h"

#include "graph_kernel.h"
#include "stream_copy.h"
#include "stream_driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of pinned memory all captured calls together take at most so much for bytes; one call as many slots as fit into
 * SLOTS_BYTES. */
#define MOST_BYTES (256ull << 20)
#define SLOTS_BYTES (1ull << 20)
enum { LEAST_SLOTS = 2, MOST_SLOTS = 64, DEVICE_WORDS = 16384, THREADS = 256, BLOCK_BYTES = 16384, MOST_BLOCKS = 32 };

struct lb_graph_device {
    lb_graph_device *next;
    void *context, *function; /* NULL: this device cannot */
    uint64_t words;           /* device memory: two for tickets, then one for each call */
    uint32_t n_words, n_free, *free_words;
};

typedef struct graph {
    struct graph *next;
    uint64_t id, number; /* the driver's, ours */
    lb_graph_device *device;
    _Atomic uint64_t *activity; /* pinned: nodes that have ended a run */
    uint64_t seen;
    unsigned joining; /* calls that are about to be among the copies */
    lb_graph_copy *copies;
} graph;

struct lb_graph_copy {
    lb_graph_copy *next;
    graph *of;
    void *owner, *stream;
    uint64_t send_bytes, recv_bytes, slots, stride, send_at, recv_at, taken; /* places in a slot; bytes of the limit */
    uint32_t word;
    char *pinned; /* a lb_graph_head, then slots */
    size_t pinned_bytes;
    uint64_t seen;
    bool collected; /* it has an owner, whose runs are collected */
    _Atomic bool gone;
};

static struct {
    pthread_mutex_t lock;
    lb_graph_device *devices;
    graph *graphs;
    uint64_t n_graphs, bytes;
    _Atomic bool any;
} books = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static lb_graph_device *device_of(void *context)
{
    pthread_mutex_lock(&books.lock);
    lb_graph_device *device = books.devices;
    while (device && device->context != context) device = device->next;
    pthread_mutex_unlock(&books.lock);
    return device;
}

/* Counters begin at zero, by a stream of their own: another may be captured, or wait. */
static bool make_words(const lb_stream_driver *cuda, lb_graph_device *device)
{
    void *stream;
    const size_t bytes = DEVICE_WORDS * sizeof(uint32_t);
    if (cuda->cuMemAlloc_v2(&device->words, bytes) != LB_CUDA_SUCCESS) return false;
    bool made = cuda->cuStreamCreate(&stream, LB_CUDA_STREAM_NON_BLOCKING) == LB_CUDA_SUCCESS;
    if (made) {
        made = cuda->cuMemsetD8Async(device->words, 0, bytes, stream) == LB_CUDA_SUCCESS &&
               cuda->cuStreamSynchronize(stream) == LB_CUDA_SUCCESS;
        cuda->cuStreamDestroy_v2(stream);
    }
    if (!made) cuda->cuMemFree_v2(device->words);
    return made;
}

static void *load_function(const lb_stream_driver *cuda)
{
    void *module, *function;
    if (cuda->cuModuleLoadData(&module, lb_graph_kernel_text) != LB_CUDA_SUCCESS) return NULL;
    return cuda->cuModuleGetFunction(&function, module, LB_GRAPH_KERNEL) == LB_CUDA_SUCCESS ? function : NULL;
}

void lb_graph_prepare(void)
{
    void *context = NULL;
    const lb_stream_driver *cuda = lb_stream_driver_now();
    if (!cuda || !cuda->graphs || cuda->cuCtxGetCurrent(&context) != LB_CUDA_SUCCESS || !context) return;
    if (device_of(context)) return;
    lb_graph_device *device = calloc(1, sizeof *device);
    if (!device) return;
    device->context = context;
    const lb_stream_visit visit = lb_stream_driver_enter(cuda, context);
    void *function = visit.entered ? load_function(cuda) : NULL;
    device->free_words = function ? calloc(DEVICE_WORDS, sizeof *device->free_words) : NULL;
    if (device->free_words && make_words(cuda, device)) device->function = function;
    lb_stream_driver_leave(cuda, visit);
    device->n_words = 2;
    pthread_mutex_lock(&books.lock);
    device->next = books.devices;
    books.devices = device;
    pthread_mutex_unlock(&books.lock);
}

static lb_graph_device *device_of_stream(const lb_stream_driver *cuda, void *stream)
{
    void *context = NULL;
    if (cuda->cuStreamGetCtx(stream, &context) != LB_CUDA_SUCCESS || !context) return NULL;
    lb_graph_device *device = device_of(context);
    return device && device->function ? device : NULL;
}

lb_stream_copy *lb_graph_position(void *stream, const lb_graph_device **device)
{
    const lb_stream_driver *cuda = lb_stream_driver_now();
    *device = cuda && cuda->graphs ? device_of_stream(cuda, stream) : NULL;
    return *device ? lb_stream_copy_new((const void *)(uintptr_t)(*device)->words, sizeof(uint64_t), stream) : NULL;
}

/* ---- what a captured call has ------------------------------------------------------------------------------------ */

typedef struct capture {
    uint64_t id;
    void *graph;
} capture;

static bool ask_capture(const lb_stream_driver *cuda, void *stream, capture *capture)
{
    int status = 0;
    return cuda->cuStreamGetCaptureInfo_v2(stream, &status, &capture->id, &capture->graph, NULL, NULL) ==
               LB_CUDA_SUCCESS &&
           status == LB_CUDA_CAPTURE_ACTIVE;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* Where bytes go, and how many runs have room; no bytes where the limit is reached. With the books locked. */
static void plan(lb_graph_copy *copy, uint64_t send_bytes, uint64_t recv_bytes)
{
    const uint64_t stride = rounded(send_bytes) + rounded(recv_bytes);
    const uint64_t fit = stride ? SLOTS_BYTES / stride : 0;
    uint64_t slots = fit < LEAST_SLOTS ? LEAST_SLOTS : fit > MOST_SLOTS ? MOST_SLOTS : fit;
    if (slots * stride > MOST_BYTES - books.bytes) slots = LEAST_SLOTS;
    if (!stride || slots * stride > MOST_BYTES - books.bytes) return;
    copy->send_bytes = send_bytes;
    copy->recv_bytes = recv_bytes;
    copy->slots = slots;
    copy->stride = stride;
    copy->send_at = sizeof(lb_graph_head);
    copy->recv_at = copy->send_at + rounded(send_bytes);
    books.bytes += copy->taken = slots * stride;
}

static uint32_t take_word(lb_graph_device *device)
{
    if (device->n_free) return device->free_words[--device->n_free];
    return device->n_words < DEVICE_WORDS ? device->n_words++ : 0;
}

static graph *find_graph(const lb_graph_device *device, uint64_t id)
{
    graph *g = books.graphs;
    while (g && (g->id != id || g->device != device)) g = g->next;
    return g;
}

/* Memory of the host that a device writes. It is no memory of CUDA's, which would be gone with its context while we
 * read it. */
static void *make_pinned(const lb_stream_driver *cuda, size_t bytes)
{
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return NULL;
    if (madvise(made, bytes, MADV_DONTFORK) == 0 &&
        cuda->cuMemHostRegister_v2(made, bytes, LB_CUDA_REGISTER_MAPPED) == LB_CUDA_SUCCESS)
        return made;
    munmap(made, bytes);
    return NULL;
}

static void free_pinned(const lb_stream_driver *cuda, void *memory, size_t bytes)
{
    if (!memory) return;
    cuda->cuMemHostUnregister(memory);
    munmap(memory, bytes);
}

/* With the books locked: `made` where there is none yet. */
static graph *find_or_add(const lb_graph_device *device, uint64_t id, graph *made)
{
    graph *g = find_graph(device, id);
    if (!g && (g = made)) {
        g->number = ++books.n_graphs;
        g->next = books.graphs;
        books.graphs = g;
    }
    if (g) g->joining++;
    return g;
}

/* A graph that several threads capture is one; the first of them makes it. */
static graph *join_graph(const lb_stream_driver *cuda, lb_graph_device *device, uint64_t id)
{
    pthread_mutex_lock(&books.lock);
    graph *found = find_or_add(device, id, NULL);
    pthread_mutex_unlock(&books.lock);
    if (found) return found;
    graph *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    *made = (graph){.id = id, .device = device, .activity = make_pinned(cuda, sizeof *made->activity)};
    if (made->activity) {
        pthread_mutex_lock(&books.lock);
        found = find_or_add(device, id, made);
        pthread_mutex_unlock(&books.lock);
    }
    if (found == made) return made;
    free_pinned(cuda, (void *)made->activity, sizeof *made->activity);
    free(made);
    return found;
}

/* A thread of the driver calls it, which may not call the driver. */
static void graph_is_gone(void *of)
{
    atomic_store_explicit(&((lb_graph_copy *)of)->gone, true, memory_order_release);
}

typedef enum holding { NOT_HELD, LET_GO, HELD } holding;

/* LET_GO: nothing holds it, and that it is gone will be said. */
static holding retain(const lb_stream_driver *cuda, lb_graph_copy *copy, void *captured)
{
    void *object;
    if (cuda->cuUserObjectCreate(&object, copy, graph_is_gone, 1, LB_CUDA_DESTRUCTOR_UNSYNCHRONISED) != LB_CUDA_SUCCESS)
        return NOT_HELD;
    if (cuda->cuGraphRetainUserObject(captured, object, 1, LB_CUDA_MOVE_REFERENCE) == LB_CUDA_SUCCESS) return HELD;
    cuda->cuUserObjectRelease(object, 1);
    return LET_GO;
}

/* With the books locked. */
static void add_copy(lb_graph_copy *copy)
{
    copy->next = copy->of->copies;
    copy->of->copies = copy;
    atomic_store_explicit(&books.any, true, memory_order_release);
}

static bool launch(const lb_stream_driver *cuda, const lb_graph_copy *copy, const void *from, bool last)
{
    const lb_graph_device *device = copy->of->device;
    const uint64_t bytes = last ? copy->recv_bytes : copy->send_bytes;
    lb_graph_kernel_arguments arguments = {.from = (uintptr_t)from,
                                           .bytes = bytes,
                                           .to = (uintptr_t)copy->pinned + (last ? copy->recv_at : copy->send_at),
                                           .stride = copy->stride,
                                           .slots = copy->slots ? copy->slots : 1,
                                           .head = (uintptr_t)copy->pinned,
                                           .ticket = last ? 0 : device->words,
                                           .arrived = last ? device->words + copy->word * sizeof(uint32_t) : 0,
                                           .activity = last ? (uintptr_t)copy->of->activity : 0};
    void *parameters[] = {&arguments.from, &arguments.bytes,  &arguments.to,      &arguments.stride,  &arguments.slots,
                          &arguments.head, &arguments.ticket, &arguments.arrived, &arguments.activity};
    const uint64_t wanted = bytes / BLOCK_BYTES + 1;
    const unsigned blocks = (unsigned)(wanted < MOST_BLOCKS ? wanted : MOST_BLOCKS);
    return cuda->cuLaunchKernel(device->function, blocks, 1, 1, THREADS, 1, 1, 0, copy->stream, parameters, NULL) ==
           LB_CUDA_SUCCESS;
}

static void free_copy(const lb_stream_driver *cuda, lb_graph_copy *copy)
{
    free_pinned(cuda, copy->pinned, copy->pinned_bytes);
    free(copy);
}

static void give_back(lb_graph_copy *copy)
{
    lb_graph_device *device = copy->of->device;
    if (copy->word) device->free_words[device->n_free++] = copy->word;
    books.bytes -= copy->taken;
    copy->taken = 0;
    copy->word = 0;
}

/* In the stream's context. From the moment that the graph holds it only the collecting thread frees it. */
static lb_graph_copy *make_copy(const lb_stream_driver *cuda, lb_graph_device *device, const capture *capture,
                                const uint64_t bytes[2])
{
    lb_graph_copy *copy = calloc(1, sizeof *copy);
    if (!copy || !(copy->of = join_graph(cuda, device, capture->id))) {
        free(copy);
        return NULL;
    }
    pthread_mutex_lock(&books.lock);
    plan(copy, bytes[0], bytes[1]);
    copy->word = take_word(device);
    pthread_mutex_unlock(&books.lock);
    copy->pinned_bytes = sizeof(lb_graph_head) + copy->slots * copy->stride;
    copy->pinned = copy->word ? make_pinned(cuda, copy->pinned_bytes) : NULL;
    const holding held = copy->pinned ? retain(cuda, copy, capture->graph) : NOT_HELD;
    pthread_mutex_lock(&books.lock);
    if (held == NOT_HELD)
        give_back(copy);
    else
        add_copy(copy);
    copy->of->joining--;
    pthread_mutex_unlock(&books.lock);
    if (held == NOT_HELD) free_copy(cuda, copy);
    return held == HELD ? copy : NULL;
}

lb_graph_copy *lb_graph_copy_begin(const void *send, size_t send_bytes, size_t recv_bytes, void *stream)
{
    capture capture;
    const lb_stream_driver *cuda = lb_stream_driver_now();
    if (!cuda || !cuda->graphs || !ask_capture(cuda, stream, &capture)) return NULL;
    lb_graph_device *device = device_of_stream(cuda, stream);
    if (!device) return NULL;
    const lb_stream_visit visit = lb_stream_driver_enter(cuda, device->context);
    lb_graph_copy *copy = make_copy(cuda, device, &capture, (uint64_t[]){send_bytes, recv_bytes});
    bool begun = false;
    if (copy) {
        copy->stream = stream;
        begun = launch(cuda, copy, send, false);
    }
    lb_stream_driver_leave(cuda, visit);
    return begun ? copy : NULL; /* one that did not begin goes with its graph */
}

bool lb_graph_copy_end(lb_graph_copy *copy, const void *recv, void *owner)
{
    capture capture;
    const lb_stream_driver *cuda = lb_stream_driver_now();
    if (!ask_capture(cuda, copy->stream, &capture) || capture.id != copy->of->id) return false;
    const lb_stream_visit visit = lb_stream_driver_enter(cuda, copy->of->device->context);
    const bool ended = launch(cuda, copy, recv, true);
    lb_stream_driver_leave(cuda, visit);
    pthread_mutex_lock(&books.lock);
    if (ended) copy->owner = owner;
    pthread_mutex_unlock(&books.lock);
    return ended;
}

uint64_t lb_graph_copy_graph(const lb_graph_copy *copy)
{
    return copy->of->number;
}

bool lb_graph_copy_has_bytes(const lb_graph_copy *copy)
{
    return copy->slots != 0;
}

const lb_graph_device *lb_graph_copy_device(const lb_graph_copy *copy)
{
    return copy->of->device;
}

/* ---- what runs have left ----------------------------------------------------------------------------------------- */

bool lb_graph_copies_any(void)
{
    return atomic_load_explicit(&books.any, memory_order_acquire);
}

static void *fetch(const char *from, uint64_t bytes)
{
    void *made = bytes ? malloc(bytes) : NULL;
    return made ? memcpy(made, from, bytes) : NULL;
}

/* Run number r has the slot until run r + slots begins, which it may as soon as r + slots runs have ended. */
static void give_run(lb_graph_copy *copy, bool bytes, void (*take)(const lb_nccl_graph_run *run))
{
    lb_graph_head *head = (lb_graph_head *)(void *)copy->pinned;
    lb_nccl_graph_run run = {.owner = copy->owner, .number = copy->seen};
    const char *slot = copy->pinned + (copy->slots ? run.number % copy->slots : 0) * copy->stride;
    const bool wanted = bytes && copy->slots && atomic_load(&head->ended) < run.number + copy->slots;
    run.ticket = atomic_load(&head->tickets[run.number % LB_GRAPH_TICKETS]);
    if (wanted) {
        run.sent = fetch(slot + copy->send_at, copy->send_bytes);
        run.received = fetch(slot + copy->recv_at, copy->recv_bytes);
    }
    atomic_thread_fence(memory_order_acquire);
    const uint64_t ended = atomic_load(&head->ended);
    run.lost = copy->slots && (!wanted || ended >= run.number + copy->slots);
    if (run.lost) {
        free(run.sent), free(run.received);
        run.sent = run.received = NULL;
    }
    if (ended >= run.number + LB_GRAPH_TICKETS) run.ticket = 0;
    take(&run);
}

static void collect_graph(graph *graph, bool bytes, void (*take)(const lb_nccl_graph_run *run))
{
    const uint64_t activity = atomic_load_explicit(graph->activity, memory_order_acquire);
    if (activity == graph->seen) return;
    graph->seen = activity;
    for (lb_graph_copy *copy = graph->copies; copy; copy = copy->next) {
        const uint64_t ended =
            atomic_load_explicit(&((lb_graph_head *)(void *)copy->pinned)->ended, memory_order_acquire);
        for (; copy->owner && copy->seen < ended; copy->seen++) give_run(copy, bytes, take);
    }
}

/* Those that are gone are moved to `freed`: asked before their runs are collected, as none can come afterwards. */
static void sort_out_gone(graph *graph, lb_graph_copy **freed, void (*gone)(void *owner))
{
    for (lb_graph_copy **at = &graph->copies; *at;) {
        lb_graph_copy *copy = *at;
        if (!copy->collected) {
            at = &copy->next;
            continue;
        }
        *at = copy->next;
        if (copy->owner) gone(copy->owner);
        give_back(copy);
        copy->next = *freed;
        *freed = copy;
    }
}

static void mark_gone(graph *graph)
{
    for (lb_graph_copy *copy = graph->copies; copy; copy = copy->next)
        copy->collected = atomic_load_explicit(&copy->gone, memory_order_acquire);
}

static void free_all(lb_graph_copy *copies, graph *graphs)
{
    const lb_stream_driver *cuda = lb_stream_driver_now();
    while (copies) {
        lb_graph_copy *next = copies->next;
        const lb_stream_visit visit = lb_stream_driver_enter(cuda, copies->of->device->context);
        free_copy(cuda, copies);
        lb_stream_driver_leave(cuda, visit);
        copies = next;
    }
    while (graphs) {
        graph *next = graphs->next;
        const lb_stream_visit visit = lb_stream_driver_enter(cuda, graphs->device->context);
        free_pinned(cuda, (void *)graphs->activity, sizeof *graphs->activity);
        lb_stream_driver_leave(cuda, visit);
        free(graphs);
        graphs = next;
    }
}

void lb_graph_copies_collect(bool bytes, void (*take)(const lb_nccl_graph_run *run), void (*gone)(void *owner))
{
    lb_graph_copy *freed = NULL;
    graph *ended = NULL;
    pthread_mutex_lock(&books.lock);
    for (graph **at = &books.graphs; *at;) {
        graph *g = *at;
        mark_gone(g);
        collect_graph(g, bytes, take);
        sort_out_gone(g, &freed, gone);
        if (g->copies || g->joining) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        g->next = ended;
        ended = g;
    }
    pthread_mutex_unlock(&books.lock);
    if (freed || ended) free_all(freed, ended);
}

/* ---- forks ------------------------------------------------------------------------------------------------------- */

void lb_graph_copies_lock(void)
{
    pthread_mutex_lock(&books.lock);
}

void lb_graph_copies_unlock(void)
{
    pthread_mutex_unlock(&books.lock);
}

void lb_graph_copies_drop(void)
{
    books.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    books.devices = NULL;
    books.graphs = NULL;
    books.bytes = 0;
    books.any = false;
}
