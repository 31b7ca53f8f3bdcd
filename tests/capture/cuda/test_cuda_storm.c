/* Threads that record beside each other, a driver that fails anywhere, and forks: what is given is right, the rest is
 * skipped or lost, and nothing of the program is touched. LASTBIT_FULL=1: a million calls. */
#include "host_program.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, CALLS = 60, ALIKE = 8 };
#define MEMORY (8u << 10)

/* What the threads share. The lock is the recorder's. */
typedef struct storm {
    pthread_mutex_t lock;
    lb_device *reader;
    CUcontext context;
    CUdeviceptr memory;
    int n_calls;
} storm;

typedef struct thread {
    storm *storm;
    pthread_t id;
    uint64_t random;
    CUstream streams[2];
    value *values[CALLS];
    int n;
} thread;

static void submit_some(thread *t, CUstream stream)
{
    const int n = 1 + (int)(draw(&t->random) % ALIKE);
    if (t->n + n > CALLS) return;
    for (int i = 0; i < n; i++) t->values[t->n + i] = value_drawn(t->storm->memory, MEMORY, &t->random);
    submit_values(t->storm->reader, t->values + t->n, (size_t)n, stream, draw(&t->random) % 2);
    t->n += n;
}

static void capture_some(thread *t, CUstream stream)
{
    CUgraph graph = NULL;
    if (t->n == CALLS || cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) != CUDA_SUCCESS) return;
    value *v = t->values[t->n++] = value_drawn(t->storm->memory, MEMORY, &t->random);
    submit_values(t->storm->reader, &v, 1, stream, true);
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) cuGraphDestroy(graph);
}

/* A graph of one value, which expects what its one run measures. */
static void run_some(thread *t, CUstream stream)
{
    lb_device *reader = t->storm->reader;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    if (t->n == CALLS || cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) != CUDA_SUCCESS) return;
    value *v = t->values[t->n++] = value_drawn(t->storm->memory, MEMORY, &t->random);
    lb_device_work *work = &v->work;
    submit_values(reader, &v, 1, stream, true);
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (graph) cuGraphDestroy(graph);
    if (exec && work->slot && work->state == LB_WORK_SKIPPED) {
        const uint64_t name = work->slot;
        free(v->expected.leaves);
        v->expected.leaves = NULL;
        v->expected.n_leaves = 0;
        reader->ops->expect(reader, &work, 1, draw(&t->random) % 2);
        cuGraphLaunch(exec, stream);
        reader->ops->ran(reader, name, name, stream);
    }
    if (exec) cuGraphExecDestroy(exec);
}

static void ignore(void *context, const lb_cuda_replay *replay)
{
    (void)context;
    (void)replay;
}

static void call(thread *t)
{
    lb_device *reader = t->storm->reader;
    CUstream stream = t->streams[draw(&t->random) % 2];
    switch (draw(&t->random) % 11) {
    case 0: reader->ops->collect(reader, NULL, draw(&t->random) % 4 == 0); break;
    case 1: reader->ops->collect(reader, t->n ? &t->values[t->n - 1]->work : NULL, true); break;
    case 2: reader->ops->order_before(reader, stream); break;
    case 3: reader->ops->is_capturing(reader, stream); break;
    case 4: capture_some(t, stream); break;
    case 5:
        lb_cuda_order_after(reader, stream);
        lb_cuda_replays(reader, ignore, NULL);
        break;
    case 6: run_some(t, stream); break;
    default: submit_some(t, stream);
    }
}

static void *record(void *argument)
{
    thread *t = argument;
    cuCtxSetCurrent(t->storm->context);
    for (int i = 0; i < CALLS; i++) {
        pthread_mutex_lock(&t->storm->lock);
        call(t);
        t->storm->n_calls++;
        pthread_mutex_unlock(&t->storm->lock);
    }
    return NULL;
}

static const char *const fallible[] = {
    "cuLaunchKernel",       "cuEventRecord",     "cuEventQuery",       "cuEventCreate", "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2", "cuStreamWaitEvent", "cuEventSynchronize", "cuMemAlloc_v2", "cuStreamIsCapturing"};

/* While other threads are anywhere in their calls. */
static void fork_once(storm *s)
{
    pthread_mutex_lock(&s->lock);
    const pid_t child = fork();
    if (child == 0) {
        s->reader->ops->abandon(s->reader);
        _exit(0);
    }
    pthread_mutex_unlock(&s->lock);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void check(const thread *t, bool failed)
{
    for (int i = 0; i < t->n; i++) {
        const lb_work_state found = t->values[i]->work.state;
        if (found == LB_WORK_DONE)
            value_assert_same(t->values[i]);
        else
            assert_true(found == LB_WORK_SKIPPED || (found == LB_WORK_LOST && failed));
        value_free(t->values[i]);
    }
}

static int storm_once(uint64_t seed)
{
    static const lb_cuda_options options = {
        .device_bytes = 256u << 10, .pinned_bytes = 32u << 10, .replays = 2, .unit = -1};
    host_begin(1, seed, seed % 3 ? 0 : 20);
    storm s = {.reader = host_reader(&options), .context = host_context(0), .memory = host_memory(MEMORY, seed)};
    thread threads[THREADS] = {{.n = 0}};
    uint64_t random = seed;
    pthread_mutex_init(&s.lock, NULL);
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (thread){.storm = &s, .random = draw(&random), .streams = {host_stream(), host_stream()}};
    }
    const bool fails = seed % 2;
    if (fails)
        standin_fail(fallible[draw(&random) % (sizeof fallible / sizeof *fallible)], (int)(draw(&random) % 60),
                     CUDA_ERROR_UNKNOWN);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i].id, NULL, record, &threads[i]), 0);
    if (seed % 8 == 0) fork_once(&s);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i].id, NULL);
    s.reader->ops->collect(s.reader, NULL, true);
    const bool failed = *s.reader->ops->why_lost(s.reader);
    assert_true(fails || !failed);
    for (int i = 0; i < THREADS; i++) check(&threads[i], failed);
    s.reader->ops->close(s.reader);
    host_end(NULL);
    pthread_mutex_destroy(&s.lock);
    return s.n_calls;
}

static void threads_failures_and_forks(void **state)
{
    (void)state;
    const char *full = getenv("LASTBIT_FULL");
    const int wanted = full && strcmp(full, "1") == 0 ? 1000000 : 1500;
    int calls = 0;
    for (uint64_t seed = 1; calls < wanted; seed++) calls += storm_once(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_failures_and_forks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
