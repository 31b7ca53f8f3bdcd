/* What nodes around a captured call leave of each run, on the driver that the program has: late_cuda.c, or a device's
 * own. A copy within the device stands for the call. Skipped where the driver has no device. */
#include "cmocka_first.h"

#include "graph_copy.h"
#include "stream_copy.h"
#include "stream_driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int number);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags);
int cuGraphLaunch(void *exec, void *stream);
int cuGraphExecDestroy(void *exec);
int cuGraphDestroy(void *graph);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuMemAlloc_v2(uint64_t *made, size_t bytes);
int cuMemFree_v2(uint64_t memory);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
#define RUN(call) assert_int_equal(call, 0)

enum { MOST_RUNS = 64, LARGE = 3000001 };
static void *stream;

typedef struct call {
    lb_graph_copy *copy;
    void *exec;
    uint64_t from, to;
    size_t bytes;
    char *expected; /* of the last launch */
} call;

static lb_nccl_graph_run found[MOST_RUNS];
static int n_found, n_gone;

static void take(const lb_nccl_graph_run *run)
{
    assert_true(n_found < MOST_RUNS);
    found[n_found++] = *run;
}

static void gone(void *owner)
{
    assert_non_null(owner);
    n_gone++;
}

static void collect(void)
{
    lb_graph_copies_collect(true, take, gone);
}

static void forget(void)
{
    for (int i = 0; i < n_found; i++) free(found[i].sent), free(found[i].received);
    n_found = 0;
}

static void fill(const call *c, unsigned seed)
{
    for (size_t i = 0; i < c->bytes; i++) c->expected[i] = (char)(seed * 31 + i * 7 + i / 251);
}

/* `of`: how far from an address that a device aligns. */
static call capture(size_t bytes, size_t of)
{
    call c = {.bytes = bytes, .expected = malloc(bytes)};
    void *graph;
    RUN(cuMemAlloc_v2(&c.from, bytes + of));
    RUN(cuMemAlloc_v2(&c.to, bytes + of));
    c.from += of, c.to += of;
    RUN(cuStreamBeginCapture_v2(stream, 0));
    c.copy = lb_graph_copy_begin((const void *)(uintptr_t)c.from, bytes, bytes, stream);
    assert_non_null(c.copy);
    RUN(cuMemcpyDtoDAsync_v2(c.to, c.from, bytes, stream));
    assert_true(lb_graph_copy_end(c.copy, (const void *)(uintptr_t)c.to, c.expected));
    RUN(cuStreamEndCapture(stream, &graph));
    RUN(cuGraphInstantiateWithFlags(&c.exec, graph, 0));
    RUN(cuGraphDestroy(graph));
    return c;
}

static void launch(const call *c, unsigned seed)
{
    fill(c, seed);
    RUN(cuMemcpyHtoDAsync_v2(c->from, c->expected, c->bytes, stream));
    RUN(cuGraphLaunch(c->exec, stream));
    RUN(cuStreamSynchronize(stream));
}

static void release(call *c, size_t of)
{
    const int before = n_gone;
    RUN(cuGraphExecDestroy(c->exec));
    RUN(cuStreamSynchronize(stream));
    for (int i = 0; n_gone == before && i < 5000; i++) {
        collect();
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_int_equal(n_gone, before + 1);
    RUN(cuMemFree_v2(c->from - of));
    RUN(cuMemFree_v2(c->to - of));
    free(c->expected);
    forget();
}

static void assert_bytes(const lb_nccl_graph_run *run, const call *c)
{
    assert_false(run->lost);
    assert_ptr_equal(run->owner, c->expected);
    assert_memory_equal(run->sent, c->expected, c->bytes);
    assert_memory_equal(run->received, c->expected, c->bytes);
}

static void each_run_leaves_its_bytes(void **state)
{
    static const size_t sizes[] = {1, 3, 16, 100, 4096, 65537, LARGE};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t of = 0; of <= 4; of += of ? 3 : 1) { /* 0, 1, 4 */
            call c = capture(sizes[s], of);
            for (unsigned run = 0; run < 5; run++) {
                launch(&c, run);
                collect();
                assert_int_equal(n_found, 1);
                assert_int_equal(found[0].number, run);
                assert_bytes(&found[0], &c);
                forget();
            }
            collect();
            assert_int_equal(n_found, 0);
            release(&c, of);
        }
    }
}

static void runs_that_were_overwritten_are_counted_and_known_to_be_lost(void **state)
{
    (void)state;
    call c = capture(LARGE, 0);
    for (unsigned run = 0; run < 10; run++) launch(&c, run);
    collect();
    assert_int_equal(n_found, 10);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(found[i].number, i);
        assert_true(found[i].lost && !found[i].sent && !found[i].received);
        if (i) assert_true(found[i].ticket > found[i - 1].ticket);
    }
    assert_bytes(&found[9], &c);
    release(&c, 0);
}

static uint64_t position(void)
{
    const lb_graph_device *device;
    lb_stream_copy *copy = lb_graph_position(stream, &device);
    assert_non_null(copy);
    RUN(cuStreamSynchronize(stream));
    assert_true(lb_stream_copy_ready(copy));
    const uint64_t drawn = *(const uint64_t *)lb_stream_copy_bytes(copy);
    lb_stream_copy_free(copy);
    return drawn;
}

static void tickets_say_which_run_came_before_a_call(void **state)
{
    (void)state;
    call a = capture(64, 0), b = capture(64, 0);
    const uint64_t before = position();
    launch(&a, 0);
    launch(&b, 0);
    const uint64_t between = position();
    launch(&a, 1);
    collect();
    assert_int_equal(n_found, 3);
    assert_int_equal(between, before + 2);
    for (int i = 0; i < 3; i++) {
        const bool of_a = found[i].owner == a.expected;
        assert_int_equal(found[i].ticket, before + (of_a ? (found[i].number ? 2 : 0) : 1));
    }
    forget();
    release(&a, 0);
    release(&b, 0);
}

/* Each takes two slots of 6 MB. */
static void memory_has_a_limit_and_comes_back_with_the_graph(void **state)
{
    call held[30];
    int without = 0;
    (void)state;
    for (int i = 0; i < 30; i++) {
        held[i] = capture(LARGE, 0);
        without += !lb_graph_copy_has_bytes(held[i].copy);
    }
    assert_int_equal(without, 30 - 22);
    launch(&held[29], 0);
    collect();
    assert_int_equal(n_found, 1);
    assert_true(!found[0].lost && !found[0].sent);
    forget();
    for (int i = 0; i < 30; i++) release(&held[i], 0);
    call again = capture(LARGE, 0);
    assert_true(lb_graph_copy_has_bytes(again.copy));
    release(&again, 0);
}

static void one_that_is_not_captured_has_no_nodes(void **state)
{
    (void)state;
    assert_null(lb_graph_copy_begin(NULL, 0, 0, stream));
}

/* At the end of a program whose kernel never ends, what was to come behind it is no value. */
static void bytes_that_have_not_arrived_are_none(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *expected = malloc(BYTES);
    uint64_t memory;
    RUN(cuMemAlloc_v2(&memory, BYTES));
    memset(expected, 7, BYTES);
    for (int i = 0; i < 20; i++) RUN(cuMemcpyHtoDAsync_v2(memory, expected, BYTES, stream));
    lb_stream_copy *copy = lb_stream_copy_new((const void *)(uintptr_t)memory, BYTES, stream);
    assert_non_null(copy);
    assert_null(lb_stream_copy_bytes(copy));
    while (!lb_stream_copy_ready(copy)) nanosleep(&(struct timespec){0, 100000}, NULL);
    assert_memory_equal(lb_stream_copy_bytes(copy), expected, BYTES);
    lb_stream_copy_free(copy);
    RUN(cuMemFree_v2(memory));
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_have_not_arrived_are_none),
        cmocka_unit_test(one_that_is_not_captured_has_no_nodes),
        cmocka_unit_test(each_run_leaves_its_bytes),
        cmocka_unit_test(runs_that_were_overwritten_are_counted_and_known_to_be_lost),
        cmocka_unit_test(tickets_say_which_run_came_before_a_call),
        cmocka_unit_test(memory_has_a_limit_and_comes_back_with_the_graph),
    };
    int device;
    void *context;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context) || cuStreamCreate(&stream, LB_CUDA_STREAM_NON_BLOCKING))
        return 77;
    lb_stream_driver_look();
    lb_graph_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
