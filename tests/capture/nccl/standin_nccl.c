/* A stand-in for libnccl.so.2 on host memory: threads and processes are ranks, and meet in shared memory.
 *
 * It really reduces, in the orders that NCCL documents by its source (src/device/all_reduce.h, reduce.h,
 * reduce_scatter.h, src/graph/trees.cc), each addition rounded to the payload's type; the arithmetic is its own, so
 * that a replay that gives the same bits was not compared with itself. Without CUDA streams are ignored: a call has
 * done its work when it returns, in a group when the group ends. Where a driver of CUDA is loaded (late_cuda.c), it
 * does it when its stream gets there. It speaks to a profiler plugin as NCCL does.
 *
 *     STANDIN_NCCL_ALGO=ring|tree     STANDIN_NCCL_CHANNELS=N     STANDIN_NCCL_NODES=N
 *     STANDIN_NCCL_PROFILER=N         it speaks that version of the profiler interface, of 1 to 7
 *     STANDIN_NCCL_FAIL=N             every N-th call that moves something fails, and does nothing
 *     STANDIN_NCCL_FLIP=CALL:RANK:ELEMENT:BIT     of what RANK receives in collective CALL of its communicator, counted
 *                                                 from 0, one bit
 *     STANDIN_NCCL_HOP=CALL:HOP:ELEMENT:BIT       the same on one message of a ring's all-reduce: hops 1 to n-1 hand
 *                                                 sums on, n to 2n-2 what came out (an element of chunk 0 goes from
 *                                                 rank 1 on, and ends its sum at rank 0)
 *     STANDIN_NCCL_MESSAGE=SENDER:ELEMENT:BIT     of every message that this rank sends
 */
#define _GNU_SOURCE
#include "standin_nccl.h"
#include "standin_reduce.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define EXPORT(name, parameters, arguments)                                                                            \
    EXPORTED lb_nccl_result name parameters __attribute__((weak, alias("p" #name)));                                   \
    EXPORTED lb_nccl_result p##name parameters

/* ---- where ranks meet -------------------------------------------------------------------------------------------- */

static const char *const verb_names[] = {"AllReduce", "Reduce", "Broadcast", "ReduceScatter", "AllGather",
                                         "AlltoAll",  "Gather", "Scatter",   "Send",          "Recv"};

static _Thread_local int depth;
static _Thread_local task *tasks, **tasks_end;
static _Thread_local unsigned long calls; /* of a thread, so that the same ones fail in every run */

static void pause_a_little(int turn)
{
    if (turn < 100)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 50000}, NULL);
}

static void meet(struct ncclComm *comm)
{
    const int round = atomic_load(&comm->hall->round);
    if (atomic_fetch_add(&comm->hall->arrived, 1) + 1 == comm->ranks) {
        atomic_store(&comm->hall->arrived, 0);
        atomic_store(&comm->hall->round, round + 1);
    }
    for (int turn = 0; atomic_load(&comm->hall->round) == round; turn++) pause_a_little(turn);
}

static hall *enter_hall(const char *name)
{
    const int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(hall)) != 0) return NULL;
    void *memory = mmap(NULL, sizeof(hall), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

/* ---- the profiler plugin ----------------------------------------------------------------------------------------- */

/* Versions 1 to 7 begin in three ways. */
struct plugin {
    const char *name;
    union {
        int (*of_1)(void **, int *);
        int (*of_4)(void **, int *, const char *, uint64_t, int, int, int, void *);
        int (*of_5)(void **, uint64_t, int *, const char *, int, int, int, void *);
    } init;
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
};

static int spoken(void)
{
    return standin_number("STANDIN_NCCL_PROFILER", 5);
}

static struct plugin *plugin(void)
{
    static struct plugin *_Atomic found;
    const char *path = getenv("NCCL_PROFILER_PLUGIN");
    static const char *const names[] = {"",
                                        "ncclProfiler_v1",
                                        "ncclProfiler_v2",
                                        "ncclProfiler_v3",
                                        "ncclProfiler_v4",
                                        "ncclProfiler_v5",
                                        "ncclProfiler_v6",
                                        "ncclProfiler_v7"};
    if (!found && path && *path) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) found = dlsym(library, names[spoken()]);
    }
    return found;
}

/* 0: it wants nothing. */
static int plug_in(void **context, int nodes, int ranks, int rank)
{
    const struct plugin *p = plugin();
    int wanted = 0, failed = 0;
    if (!p) return 0;
    if (spoken() < 4)
        failed = p->init.of_1(context, &wanted);
    else if (spoken() == 4)
        failed = p->init.of_4(context, &wanted, NULL, 1, nodes, ranks, rank, NULL);
    else
        failed = p->init.of_5(context, 1, &wanted, NULL, nodes, ranks, rank, NULL);
    return failed ? 0 : wanted;
}

/* The member `coll` of an event, a field after the other as a compiler lays out the headers' structs. */
typedef struct event {
    _Alignas(8) char bytes[160];
    size_t used;
} event;

static void put(event *e, const void *field, size_t size)
{
    e->used = (e->used + size - 1) / size * size;
    memcpy(e->bytes + e->used, field, size);
    e->used += size;
}

#define PUT(e, type, ...) put(e, &(type){__VA_ARGS__}, sizeof(type))

static void describe(event *e, const task *t)
{
    static const uint8_t numbers[] = {4, 1, 0, 3, 2}; /* of ncclFunc_t, as far as version 1 goes */
    const char *named = getenv("STANDIN_NCCL_ALGO");
    const bool tree = named && !strcmp(named, "tree") && t->verb == ALL_REDUCE;
    const bool as_bytes = t->verb == ALL_GATHER || t->verb == BROADCAST; /* collTaskAppend in src/enqueue.cc */
    const int version = spoken();
    if (version < 5)
        PUT(e, uint8_t, 1 << 1);
    else
        PUT(e, uint64_t, 1 << 1);
    PUT(e, void *, NULL);
    PUT(e, int, t->comm->rank);
    e->used = (e->used + 7) / 8 * 8; /* where the union is */
    if (version < 4) PUT(e, const char *, NULL), PUT(e, uint64_t, 1);
    PUT(e, uint64_t, t->comm->sequence++);
    if (version == 1)
        PUT(e, uint8_t, numbers[t->verb]);
    else
        PUT(e, const char *, verb_names[t->verb]);
    PUT(e, const void *, t->send);
    PUT(e, void *, t->recv);
    PUT(e, size_t, as_bytes ? t->count * (size_t)standin_widths[t->dtype] : t->count);
    PUT(e, int, t->root);
    if (version == 1)
        PUT(e, uint8_t, 0), PUT(e, uint32_t, 0);
    else
        PUT(e, const char *, "");
    if (version < 3) PUT(e, size_t, 0);
    PUT(e, uint8_t, (uint8_t)standin_number("STANDIN_NCCL_CHANNELS", 1));
    PUT(e, uint8_t, 1);
    if (version == 1)
        PUT(e, uint8_t, tree ? 0 : 1), PUT(e, uint8_t, 2);
    else
        PUT(e, const char *, tree ? "TREE" : "RING"), PUT(e, const char *, "SIMPLE");
}

static void tell_plugin(const task *t)
{
    event e = {0};
    void *handle = NULL;
    if (!plugin() || !(t->comm->wanted & 2) || t->verb >= SEND || (spoken() == 1 && t->verb > ALL_GATHER)) return;
    describe(&e, t);
    plugin()->start(t->comm->profiler, &handle, e.bytes);
    if (handle) plugin()->stop(handle);
}

/* ---- carrying out ------------------------------------------------------------------------------------------------ */

static size_t sent_elements(const task *t)
{
    const size_t n = (size_t)t->comm->ranks;
    const bool all = t->verb == REDUCE_SCATTER || t->verb == ALL_TO_ALL || t->verb == SCATTER;
    if ((t->verb == BROADCAST || t->verb == SCATTER) && t->root != t->comm->rank) return 0;
    return all ? n * t->count : t->count;
}

static void take(const task *t, int rank, size_t from, size_t to, size_t count)
{
    const size_t size = (size_t)standin_widths[t->dtype];
    memcpy((char *)t->recv + to * size, t->comm->hall->slots[rank] + 64 + from * size, count * size);
}

static void receive(const task *t)
{
    const int n = t->comm->ranks, me = t->comm->rank;
    const size_t size = (size_t)standin_widths[t->dtype], count = t->count;
    const bool root = t->root == me, reduces = t->verb == ALL_REDUCE || t->verb == REDUCE_SCATTER || t->verb == REDUCE;
    const size_t first = t->verb == REDUCE_SCATTER ? count * (size_t)me : 0;
    for (size_t i = 0; reduces && (t->verb != REDUCE || root) && i < count; i++) {
        element e = standin_reduced(t, first + i);
        if (t->op == 4 && t->dtype != 8 && !standin_is_float(t->dtype)) e.i /= n;
        standin_store(t->dtype, (char *)t->recv + i * size, e);
    }
    if (t->verb == BROADCAST || t->verb == SCATTER)
        take(t, t->root, t->verb == SCATTER ? count * (size_t)me : 0, 0, count);
    for (int r = 0; r < n; r++) {
        if (t->verb == ALL_GATHER || (t->verb == GATHER && root)) take(t, r, 0, count * (size_t)r, count);
        if (t->verb == ALL_TO_ALL) take(t, r, count * (size_t)me, count * (size_t)r, count);
    }
}

static double factor_of(const task *t)
{
    if (t->op == 4 && t->dtype >= 6)
        return t->dtype == 8 ? 1.0 / t->comm->ranks : (double)(float)(1.0 / t->comm->ranks);
    return t->op >= 5 && t->op - 5 < t->comm->premuls ? t->comm->premul[t->op - 5].number : 1;
}

static void carry_out(const task *t)
{
    const double factor = factor_of(t);
    char *slot = t->comm->hall->slots[t->comm->rank];
    tell_plugin(t);
    meet(t->comm); /* what is in the slots from before has been read */
    memcpy(slot, &factor, sizeof factor);
    if (t->count) memcpy(slot + 64, t->send, sent_elements(t) * (size_t)standin_widths[t->dtype]);
    meet(t->comm);
    receive(t);
    flip f;
    if (standin_flip_of("STANDIN_NCCL_FLIP", &f) && f.call == t->comm->carried_out && f.who == t->comm->rank)
        standin_turn_over(t->dtype, t->recv, &f);
    t->comm->carried_out++;
}

/* True when it went through. */
static bool try_message(const task *t)
{
    const int me = t->comm->rank;
    const size_t bytes = t->count * (size_t)standin_widths[t->dtype];
    mailbox *box = t->verb == SEND ? &t->comm->hall->boxes[me][t->root] : &t->comm->hall->boxes[t->root][me];
    if (atomic_load(&box->full) == (t->verb == SEND)) return false;
    flip f = {0};
    const char *message = getenv("STANDIN_NCCL_MESSAGE");
    if (t->verb == SEND) {
        memcpy(box->bytes, t->send, bytes);
        if (message && sscanf(message, "%d:%d:%d", &f.who, &f.element, &f.bit) == 3 && f.who == me)
            standin_turn_over(t->dtype, box->bytes, &f);
    } else
        memcpy(t->recv, box->bytes, bytes);
    atomic_store(&box->full, t->verb == SEND);
    return true;
}

/* Messages of a group go side by side, in order between two ranks; collectives one after the other. */
static void run_list(task *list)
{
    bool left = true;
    for (int turn = 0; left; turn++) {
        left = false;
        bool waits[2][MOST_RANKS] = {{false}};
        for (task *t = list; t; t = t->next) {
            if (t->done || (t->verb != SEND && t->verb != RECV)) continue;
            bool *wait = &waits[t->verb == SEND][t->root];
            t->done = !*wait && try_message(t);
            *wait |= !t->done;
            left |= !t->done;
        }
        if (left) pause_a_little(turn);
    }
    for (task *t = list, *next; t; t = next) {
        next = t->next;
        if (!t->done) carry_out(t);
        free(t);
    }
}

static void *run_thread(void *list)
{
    run_list(list);
    return NULL;
}

/* What graphs run stays to the end. */
static void keep(task *list)
{
    static task *_Atomic kept;
    task *mark = calloc(1, sizeof *mark);
    mark->send = list;
    mark->next = atomic_exchange(&kept, mark);
}

/* A node of a graph, which runs often: it takes copies. */
static void run_again(void *of)
{
    task *first = NULL, **end = &first;
    for (const task *t = of; t; t = t->next) {
        *end = malloc(sizeof **end);
        **end = *t;
        end = &(*end)->next;
    }
    run_list(first);
}

static struct {
    int (*enqueue)(void *, void (*)(void *), void *), (*is_capturing)(void *, int *);
} driver;

static void look_for_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (!library) return;
    *(void **)&driver.is_capturing = dlsym(library, "cuStreamIsCapturing");
    *(void **)&driver.enqueue = dlsym(library, "cuLaunchHostFunc");
}

/* Where the process has a driver of CUDA, calls run when their stream comes to them. */
static bool run_on_stream(task *list)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int captured = 0;
    if (!list) return true;
    pthread_once(&once, look_for_driver);
    if (!driver.enqueue) return false;
    driver.is_capturing(list->stream, &captured);
    if (captured) keep(list);
    return driver.enqueue(list->stream, captured ? run_again : (void (*)(void *))run_list, list) == 0;
}

static void append(task ***end, task **first, task *t)
{
    if (!*first) *end = first;
    t->next = NULL;
    **end = t;
    *end = &t->next;
}

/* One thread may drive several communicators: each has its own from here on. */
static void run_all(task *all)
{
    task *lists[64] = {0}, **ends[64];
    pthread_t threads[64];
    int n = 0;
    for (task *t = all, *next; t; t = next) {
        int i = 0;
        next = t->next;
        while (i < n && lists[i]->comm != t->comm) i++;
        n += i == n;
        append(&ends[i], &lists[i], t);
    }
    for (int i = 0; i < n; i++)
        if (run_on_stream(lists[i])) lists[i] = NULL;
    for (int i = 1; i < n; i++) pthread_create(&threads[i], NULL, run_thread, lists[i]);
    if (n) run_list(lists[0]);
    for (int i = 1; i < n; i++) pthread_join(threads[i], NULL);
}

static int give(const task *given)
{
    const int every = standin_number("STANDIN_NCCL_FAIL", 0);
    struct ncclComm *comm = given->comm;
    if (every && calls++ % (unsigned long)every == (unsigned long)every - 1) return LB_NCCL_SYSTEM_ERROR;
    if (!comm || given->dtype < 0 || given->dtype > 11 || given->root >= comm->ranks) return INVALID_ARGUMENT;
    const size_t bytes =
        (given->verb < SEND ? sent_elements(given) : given->count) * (size_t)standin_widths[given->dtype];
    if (bytes + 64 > (given->verb < SEND ? SLOT : MESSAGE)) return INVALID_USAGE;
    task *t = malloc(sizeof *t);
    *t = *given;
    if (comm->later) {
        append(&comm->launched_end, &comm->launched, t);
        return LB_NCCL_IN_PROGRESS;
    }
    append(&tasks_end, &tasks, t);
    if (depth) return LB_NCCL_SUCCESS;
    task *list = tasks;
    tasks = NULL;
    if (!run_on_stream(list)) run_list(list);
    return LB_NCCL_SUCCESS;
}

/* ---- what is exported -------------------------------------------------------------------------------------------- */

#define GIVE(...) return give(&(task){.count = count, .dtype = dtype, .comm = comm, .stream = stream, __VA_ARGS__})
#define BOTH .send = send, .recv = recv
#define GIVE_ncclAllReduce GIVE(.verb = ALL_REDUCE, BOTH, .op = op);
#define GIVE_ncclReduce GIVE(.verb = REDUCE, BOTH, .op = op, .root = root);
#define GIVE_ncclBcast return ncclBroadcast(recv, recv, count, dtype, root, comm, stream);
#define GIVE_ncclBroadcast GIVE(.verb = BROADCAST, BOTH, .root = root);
#define GIVE_ncclReduceScatter GIVE(.verb = REDUCE_SCATTER, BOTH, .op = op);
#define GIVE_ncclAllGather GIVE(.verb = ALL_GATHER, BOTH);
#define GIVE_ncclAlltoAll GIVE(.verb = ALL_TO_ALL, BOTH);
#define GIVE_ncclGather GIVE(.verb = GATHER, BOTH, .root = root);
#define GIVE_ncclScatter GIVE(.verb = SCATTER, BOTH, .root = root);
#define GIVE_ncclAllReduceConfig                                                                                       \
    (void)config;                                                                                                      \
    GIVE_ncclAllReduce
#define GIVE_ncclReduceConfig                                                                                          \
    (void)config;                                                                                                      \
    GIVE_ncclReduce
#define GIVE_ncclBroadcastConfig                                                                                       \
    (void)config;                                                                                                      \
    GIVE_ncclBroadcast
#define GIVE_ncclReduceScatterConfig                                                                                   \
    (void)config;                                                                                                      \
    GIVE_ncclReduceScatter
#define GIVE_ncclAllGatherConfig                                                                                       \
    (void)config;                                                                                                      \
    GIVE_ncclAllGather
#define GIVE_ncclAlltoAllConfig                                                                                        \
    (void)config;                                                                                                      \
    GIVE_ncclAlltoAll
#define GIVE_ncclGatherConfig                                                                                          \
    (void)config;                                                                                                      \
    GIVE_ncclGather
#define GIVE_ncclScatterConfig                                                                                         \
    (void)config;                                                                                                      \
    GIVE_ncclScatter
#define GIVE_ncclSend GIVE(.verb = SEND, .send = send, .root = root);
#define GIVE_ncclRecv GIVE(.verb = RECV, .recv = recv, .root = root);
/* NCCL's own ncclBcast calls ncclBroadcast by its public name, too. */
EXPORTED lb_nccl_result ncclBroadcast(const void *, void *, size_t, lb_nccl_dtype, int, lb_nccl_comm, lb_nccl_stream);
#define MOVE(name, parameters, arguments)                                                                              \
    EXPORT(name, parameters, arguments)                                                                                \
    {                                                                                                                  \
        GIVE_##name                                                                                                    \
    }
LB_NCCL_MOVING(MOVE)

EXPORT(ncclGroupStart, (void), ())
{
    depth++;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclGroupEnd, (void), ())
{
    if (!depth) return INVALID_USAGE;
    if (--depth) return LB_NCCL_SUCCESS;
    task *list = tasks;
    tasks = NULL;
    run_all(list);
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclGroupSimulateEnd, (lb_nccl_sim * info), (info))
{
    (void)info;
    depth--;
    while (tasks) {
        task *next = tasks->next;
        free(tasks);
        tasks = next;
    }
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclGetUniqueId, (lb_nccl_unique * id), (id))
{
    static _Atomic int serial;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/standin-nccl-%d-%d-%lx", getpid(), serial++,
             (unsigned long)now.tv_nsec);
    return LB_NCCL_SUCCESS;
}

static struct ncclComm *make(const char *name, int ranks, int rank)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    comm->hall = ranks >= 1 && ranks <= MOST_RANKS ? enter_hall(name) : NULL;
    if (!comm->hall) {
        free(comm);
        return NULL;
    }
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->ranks = ranks;
    comm->rank = comm->device = rank;
    comm->wanted = plug_in(&comm->profiler, standin_nodes(ranks), ranks, rank);
    return comm;
}

EXPORT(ncclCommInitRank, (lb_nccl_comm * comm, int ranks, lb_nccl_unique id, int rank), (comm, ranks, id, rank))
{
    *comm = make(id.internal, ranks, rank);
    if (*comm && !depth) meet(*comm);
    return *comm ? LB_NCCL_SUCCESS : INVALID_ARGUMENT;
}

EXPORT(ncclCommInitRankConfig, (lb_nccl_comm * comm, int ranks, lb_nccl_unique id, int rank, lb_nccl_config *config),
       (comm, ranks, id, rank, config))
{
    const int blocking = config ? ((const int *)config)[4] : 1; /* after size, magic, version */
    const int result = pncclCommInitRank(comm, ranks, id, rank);
    if (result == LB_NCCL_SUCCESS) (*comm)->later = blocking == 0;
    return result;
}

EXPORT(ncclCommInitRankScalable,
       (lb_nccl_comm * comm, int ranks, int rank, int n, lb_nccl_unique *ids, lb_nccl_config *config),
       (comm, ranks, rank, n, ids, config))
{
    return n < 1 ? INVALID_ARGUMENT : pncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}

EXPORT(ncclCommInitAll, (lb_nccl_comm * comms, int n, const int *devices), (comms, n, devices))
{
    lb_nccl_unique id;
    (void)devices;
    pncclGetUniqueId(&id);
    for (int rank = 0; rank < n; rank++)
        if (!(comms[rank] = make(id.internal, n, rank))) return INVALID_ARGUMENT;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclCommSplit, (lb_nccl_comm comm, int color, int key, lb_nccl_comm *made, lb_nccl_config *config),
       (comm, color, key, made, config))
{
    char name[128];
    int rank = 0, ranks = 0;
    (void)config;
    meet(comm);
    comm->hall->wishes[comm->rank].color = color;
    comm->hall->wishes[comm->rank].key = key;
    meet(comm);
    for (int r = 0; r < comm->ranks; r++) {
        if (comm->hall->wishes[r].color != color) continue;
        const int other = comm->hall->wishes[r].key;
        ranks++;
        rank += other < key || (other == key && r < comm->rank);
    }
    snprintf(name, sizeof name, "%.60s-%d.%d", comm->name, comm->splits++, color);
    struct ncclComm *part = color < 0 ? NULL : make(name, ranks, rank);
    *made = comm->later ? NULL : part;
    if (!comm->later) return LB_NCCL_SUCCESS;
    comm->splitting = made, comm->split = part;
    if (part) part->later = true;
    return LB_NCCL_IN_PROGRESS;
}

EXPORT(ncclCommShrink, (lb_nccl_comm comm, int *excluded, int n, lb_nccl_comm *made, lb_nccl_config *config, int flags),
       (comm, excluded, n, made, config, flags))
{
    char name[128];
    int before = 0;
    (void)config, (void)flags;
    for (int i = 0; i < n; i++) before += excluded[i] < comm->rank;
    snprintf(name, sizeof name, "%.60s-%d.s", comm->name, comm->splits++);
    *made = make(name, comm->ranks - n, comm->rank - before);
    return LB_NCCL_SUCCESS;
}

/* Of a stand-in nobody new comes: the same ranks again. */
EXPORT(ncclCommGrow,
       (lb_nccl_comm comm, int ranks, const lb_nccl_unique *id, int rank, lb_nccl_comm *made, lb_nccl_config *config),
       (comm, ranks, id, rank, made, config))
{
    char name[128];
    (void)id, (void)rank, (void)config;
    if (!comm || ranks != comm->ranks) return INVALID_USAGE;
    snprintf(name, sizeof name, "%.60s-%d.g", comm->name, comm->splits++);
    *made = make(name, ranks, comm->rank);
    return *made ? LB_NCCL_SUCCESS : INVALID_ARGUMENT;
}

EXPORT(ncclCommDestroy, (lb_nccl_comm comm), (comm))
{
    if (!comm) return LB_NCCL_SUCCESS;
    if (plugin() && comm->profiler) plugin()->finalize(comm->profiler);
    shm_unlink(comm->name); /* those that are in it stay in it */
    munmap(comm->hall, sizeof(hall));
    free(comm);
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclCommAbort, (lb_nccl_comm comm), (comm))
{
    return pncclCommDestroy(comm);
}

EXPORT(ncclCommFinalize, (lb_nccl_comm comm), (comm))
{
    (void)comm;
    return LB_NCCL_SUCCESS;
}

/* A non-blocking communicator gets on when it is asked. */
EXPORT(ncclCommGetAsyncError, (lb_nccl_comm comm, lb_nccl_result *error), (comm, error))
{
    *error = comm->launched || comm->splitting ? LB_NCCL_IN_PROGRESS : LB_NCCL_SUCCESS;
    if (comm->splitting) *comm->splitting = comm->split;
    comm->splitting = NULL;
    task *list = comm->launched;
    comm->launched = NULL;
    if (!run_on_stream(list)) run_list(list);
    return LB_NCCL_SUCCESS;
}

/* NCCL's own asks by the public name whether the communicator is ready, before it tells anything of it. */
EXPORTED lb_nccl_result ncclCommGetAsyncError(lb_nccl_comm, lb_nccl_result *);
static bool is_ready(lb_nccl_comm comm)
{
    lb_nccl_result state;
    return ncclCommGetAsyncError(comm, &state) == LB_NCCL_SUCCESS && state == LB_NCCL_SUCCESS;
}

EXPORT(ncclCommCount, (const lb_nccl_comm comm, int *count), (comm, count))
{
    if (!is_ready(comm)) return INVALID_ARGUMENT;
    *count = comm->ranks;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclCommUserRank, (const lb_nccl_comm comm, int *rank), (comm, rank))
{
    if (!is_ready(comm)) return INVALID_ARGUMENT;
    *rank = comm->rank;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclCommCuDevice, (const lb_nccl_comm comm, int *device), (comm, device))
{
    *device = comm->device;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclGetVersion, (int *version), (version))
{
    *version = 23203;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclRedOpCreatePreMulSum,
       (lb_nccl_op * op, void *scalar, lb_nccl_dtype dtype, lb_nccl_residence residence, lb_nccl_comm comm),
       (op, scalar, dtype, residence, comm))
{
    (void)residence; /* all memory is the host's */
    if (comm->premuls == 16) return INVALID_USAGE;
    const element e = standin_load(dtype, scalar);
    comm->premul[comm->premuls].number = dtype == 8 ? e.d : standin_is_float(dtype) ? (double)e.f : (double)e.i;
    *op = 5 + comm->premuls++;
    return LB_NCCL_SUCCESS;
}

EXPORT(ncclRedOpDestroy, (lb_nccl_op op, lb_nccl_comm comm), (op, comm))
{
    (void)op, (void)comm;
    return LB_NCCL_SUCCESS;
}

EXPORTED const char *ncclGetErrorString(lb_nccl_result result)
{
    return result == LB_NCCL_SUCCESS ? "no error" : "an error of the stand-in";
}
