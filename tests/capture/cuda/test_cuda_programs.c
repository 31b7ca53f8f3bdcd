/* Programs drawn at random, on streams that run late: what each op left is measured as it was then, whatever the
 * program does with its memory afterwards. It writes there in place, on the same stream without a word, on others
 * behind an event; frees it to an allocator that gives it anew at once; destroys streams, whose handles others get;
 * captures graphs; holds the device.
 *
 * argv[1]: how many programs. */
#include "host_program.h"
#include "cuda/cuda_inside.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK (24u << 10)
enum { BLOCKS = 12, STREAMS = 3, ACTIONS = 160, VALUES = 6 * ACTIONS, PINNED = ACTIONS };

typedef struct block {
    CUdeviceptr there;
    char shadow[BLOCK]; /* its bytes when all that is queued has run */
    int stream;         /* which has written to it last, and may again */
    CUevent written;
    bool old; /* it was a stream that is gone: the one in its place does not wait for that one yet */
    bool live;
} block;

typedef struct program {
    lb_device *reader;
    CUstream streams[STREAMS];
    CUevent last[STREAMS]; /* what was queued on the stream before it */
    bool nameless;         /* the driver does not tell streams apart that have one handle after the other */
    block blocks[BLOCKS];
    char *sent; /* pinned: a block for each write */
    int n_sent;
    value *values[VALUES];
    int n_values, held; /* actions that the device is still held for */
    uint64_t random;
} program;

static uint64_t below(program *p, uint64_t n)
{
    return draw(&p->random) % n;
}

/* ---- what the program does --------------------------------------------------------------------------------------- */

/* The kernel of an op: other bytes in the block, or in a part of it. */
static void write_block(program *p, block *b)
{
    if (b->old) assert_int_equal(cuStreamWaitEvent(p->streams[b->stream], p->last[b->stream], 0), CUDA_SUCCESS);
    b->old = false;
    const size_t first = below(p, 3) ? 0 : below(p, BLOCK / 8) * 4, bytes = BLOCK - first;
    char *const sent = p->sent + (size_t)p->n_sent++ * BLOCK;
    for (size_t i = 0; i < bytes; i += 4) {
        const float x = (float)(int64_t)(draw(&p->random) - (1u << 30)) * 0x1p-28f;
        memcpy(sent + i, &x, sizeof x);
    }
    memcpy(b->shadow + first, sent, bytes);
    assert_int_equal(cuMemcpyHtoDAsync_v2(b->there + first, sent, bytes, p->streams[b->stream]), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(b->written, p->streams[b->stream]), CUDA_SUCCESS);
}

/* What the value is when all that is queued by now has run. */
static void expect_shadow(value *v, const block *b)
{
    lb_measuring there = v->work.item;
    const char *dense = b->shadow + ((CUdeviceptr)(uintptr_t)there.dense - b->there);
    there.tensor.data = (char *)(uintptr_t)dense + ((const char *)there.tensor.data - (const char *)there.dense);
    there.dense = dense;
    free(v->expected.leaves);
    assert_true(lb_measure(&there, 1));
    v->expected = there.out;
    if (v->expected_bytes) memcpy(v->expected_bytes, dense, there.dense_bytes);
}

/* The op has ended: it has some results in the block. */
static void submit_results(program *p, const block *b)
{
    const int n = below(p, 8) ? 1 + (int)below(p, 2) : 5;
    value **results = p->values + p->n_values;
    for (int i = 0; i < n; i++) {
        results[i] = value_drawn(b->there, BLOCK, &p->random);
        results[i]->work.awaited = below(p, 6) == 0;
        expect_shadow(results[i], b);
    }
    submit_values(p->reader, results, (size_t)n, p->streams[b->stream], !p->held && below(p, 2));
    p->n_values += n;
}

/* A block that was freed on the stream last, as caching allocators have it: at once, and nothing is told of it. */
static void make(program *p, int stream)
{
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &p->blocks[i];
        if (b->live || b->stream != stream) continue;
        b->live = true;
        write_block(p, b);
        submit_results(p, b);
        return;
    }
}

/* The block is another stream's from now on, which waits for what was written, and of itself for nothing that reads. */
static void hand_over(program *p, block *b, int stream)
{
    assert_int_equal(cuStreamWaitEvent(p->streams[stream], b->written, 0), CUDA_SUCCESS);
    if (b->old && p->nameless) /* reads on a stream that is gone are not known to be any */
        assert_int_equal(cuStreamWaitEvent(p->streams[stream], p->last[b->stream], 0), CUDA_SUCCESS);
    b->old &= b->stream == stream;
    b->stream = stream;
}

static void write_in_place(program *p, block *b)
{
    if (!b->live) return;
    if (below(p, 2)) hand_over(p, b, (int)below(p, STREAMS));
    p->reader->ops->order_before(p->reader, p->streams[b->stream]);
    write_block(p, b);
    submit_results(p, b);
}

/* No op of the program that is recorded: what was submitted was read before. */
static void write_unseen(program *p, block *b)
{
    if (b->live) write_block(p, b);
}

/* The handle is that of the next stream. All of its blocks are that one's, which waits for what is queued on the old
 * one when it first writes to one of them. */
static void renew_stream(program *p, int s)
{
    if (!p->streams[s]) return; /* the default one stays */
    const CUevent last = host_event();
    if (p->last[s]) assert_int_equal(cuStreamWaitEvent(p->streams[s], p->last[s], 0), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(last, p->streams[s]), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy_v2(p->streams[s]), CUDA_SUCCESS);
    p->streams[s] = host_stream();
    p->last[s] = last;
    for (int i = 0; i < BLOCKS; i++) p->blocks[i].old |= p->blocks[i].stream == s;
}

/* What is submitted is the graph's, which nothing runs; what was gathered on the stream is none of its own. */
static void capture(program *p, const block *b)
{
    CUgraph graph;
    if (!p->streams[b->stream]) return; /* the default one cannot be captured */
    assert_int_equal(cuStreamBeginCapture_v2(p->streams[b->stream], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    value *v = value_dense(b->there, LB_F32, 100, false);
    submit_values(p->reader, &v, 1, p->streams[b->stream], false);
    assert_int_equal(v->work.state, LB_WORK_SKIPPED);
    if (!p->held) p->reader->ops->collect(p->reader, NULL, below(p, 2));
    assert_int_equal(cuStreamEndCapture(p->streams[b->stream], &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    value_free(v);
}

static void hold(program *p)
{
    if (!p->n_values) return; /* memory is taken with the first value */
    if (!p->held) standin_hold();
    p->held = 20;
}

static void collect(program *p)
{
    const lb_device_work *one = p->n_values && below(p, 2) ? &p->values[below(p, (uint64_t)p->n_values)]->work : NULL;
    p->reader->ops->collect(p->reader, one, !p->held && below(p, 6) == 0);
}

static void act(program *p)
{
    block *b = &p->blocks[below(p, BLOCKS)];
    switch (below(p, 20)) {
    case 0:
    case 1:
    case 2: write_in_place(p, b); break;
    case 3:
    case 4: write_unseen(p, b); break;
    case 5:
    case 6:
    case 7:
    case 8: b->live = false; break; /* freed */
    case 9: renew_stream(p, (int)below(p, STREAMS)); break;
    case 10: capture(p, b); break;
    case 11: hold(p); break;
    case 12:
    case 13: collect(p); break;
    default: make(p, (int)below(p, STREAMS));
    }
    if (p->held && --p->held == 0) standin_let_go();
}

/* ---- what is found ----------------------------------------------------------------------------------------------- */

static void check(program *p, bool all)
{
    int skipped = 0;
    for (int i = 0; i < p->n_values; i++) {
        if (p->values[i]->work.state == LB_WORK_SKIPPED)
            skipped++;
        else
            value_assert_same(p->values[i]);
        value_free(p->values[i]);
    }
    assert_true(!all || skipped == 0);
    assert_true(2 * skipped < p->n_values);
}

/* As drivers before CUDA 12: streams are told apart by their handles alone. */
static void take_ids_away(lb_device *reader)
{
    static lb_cuda_driver without;
    lb_cuda *device = (lb_cuda *)reader;
    without = *device->cuda;
    without.StreamGetId = NULL;
    device->cuda = &without;
}

/* With room for all of it, and with so little that rings begin anew many times and values are measured where they
 * lie. */
static void run(uint64_t seed)
{
    const bool small = seed % 3 == 0;
    lb_cuda_options options = {.device_bytes = small ? 1u << 20 : 16u << 20,
                               .pinned_bytes = small ? 96u << 10 : 8u << 20,
                               .replays = 2,
                               .unit = -1};
    program *p = calloc(1, sizeof *p);
    void *sent = NULL;
    assert_non_null(p);
    host_begin(1, seed, seed % 2 ? 300 : 30);
    p->random = seed;
    p->reader = host_reader(&options);
    p->nameless = seed % 5 == 0;
    if (p->nameless) take_ids_away(p->reader);
    assert_int_equal(cuMemHostAlloc(&sent, (size_t)PINNED * BLOCK, 0), CUDA_SUCCESS);
    p->sent = sent;
    for (int s = 1; s < STREAMS; s++) p->streams[s] = host_stream(); /* the first one is the default one */
    p->streams[0] = seed % 4 ? host_stream() : NULL;
    for (int i = 0; i < BLOCKS; i++) {
        p->blocks[i].there = host_memory(BLOCK, seed);
        memcpy(p->blocks[i].shadow, standin_twin(p->blocks[i].there, BLOCK), BLOCK);
        p->blocks[i].stream = i % STREAMS;
        p->blocks[i].written = host_event();
    }
    while (p->n_sent + 1 < PINNED && p->n_values + 5 < VALUES) act(p);
    if (p->held) standin_let_go();
    p->reader->ops->collect(p->reader, NULL, true);
    check(p, !small);
    host_end(p->reader);
    free(p);
}

static uint64_t n_programs = 12;

static void values_are_as_their_ops_left_them(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= n_programs; seed++) run(seed);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_programs = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_as_their_ops_left_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
