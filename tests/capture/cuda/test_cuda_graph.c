/* Measuring inside a graph: each run gives the values of that run, and a capture of the program is not disturbed. */
#include "host_program.h"

#include <stdlib.h>
#include <string.h>

#define BYTES (40u << 10)
#define MOST_RUNS 16

/* What lb_cuda_replays gave, by value and run. */
typedef struct runs {
    lb_measured found[3][MOST_RUNS];
    bool there[3][MOST_RUNS];
    uint64_t first_value;
    int n;
} runs;

static void take(void *context, const lb_cuda_replay *replay)
{
    runs *r = context;
    const uint64_t value = replay->value - r->first_value;
    assert_true(value < 3 && replay->number < MOST_RUNS);
    assert_false(r->there[value][replay->number]);
    r->found[value][replay->number] = replay->out;
    r->there[value][replay->number] = true;
    r->n++;
}

typedef struct program {
    lb_device *reader;
    CUdeviceptr input, middle, output;
    CUstream stream, side;
    CUevent forked, joined;
    value *works[3];
    CUgraphExec exec;
    runs runs;
} program;

static void queue_copy(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    assert_int_equal(cuMemcpyDtoDAsync_v2(to, from, BYTES, stream), CUDA_SUCCESS);
}

/* input ─▶ middle ─▶ output, where middle is measured on a side stream. */
static void queue_ops(program *p)
{
    submit_values(p->reader, &p->works[0], 1, p->stream, false);
    queue_copy(p->middle, p->input, p->stream);
    cuEventRecord(p->forked, p->stream);
    cuStreamWaitEvent(p->side, p->forked, 0);
    submit_values(p->reader, &p->works[1], 1, p->side, false);
    assert_true(p->reader->ops->is_capturing(p->reader, p->side));
    p->reader->ops->order_before(p->reader, p->side);
    queue_copy(p->output, p->middle, p->stream);
    submit_values(p->reader, &p->works[2], 1, p->stream, false);
    cuEventRecord(p->joined, p->side);
    cuStreamWaitEvent(p->stream, p->joined, 0);
}

static void capture(program *p)
{
    CUgraph graph;
    assert_int_equal(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    queue_ops(p);
    assert_int_equal(cuStreamEndCapture(p->stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cuGraphInstantiateWithFlags(&p->exec, graph, 0), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    for (int i = 0; i < 3; i++) assert_int_equal(p->works[i]->work.state, LB_WORK_SKIPPED);
    p->runs.first_value = p->works[0]->work.slot;
    assert_true(p->runs.first_value > 0);
}

static program *program_of(uint64_t seed, unsigned delay_us)
{
    program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    host_begin(1, seed, delay_us);
    p->reader = host_reader(NULL);
    p->input = host_memory(BYTES, 1);
    p->middle = host_memory(BYTES, 2);
    p->output = host_memory(BYTES, 3);
    p->stream = host_stream();
    p->side = host_stream();
    p->forked = host_event();
    p->joined = host_event();
    const CUdeviceptr at[] = {p->input, p->middle, p->output};
    for (int i = 0; i < 3; i++)
        p->works[i] = value_dense(at[i], i ? LB_F32 : LB_BF16, i ? BYTES / 4 : BYTES / 2, false);
    return p;
}

static void program_free(program *p)
{
    cuGraphExecDestroy(p->exec);
    cuEventDestroy_v2(p->forked);
    cuEventDestroy_v2(p->joined);
    for (int i = 0; i < 3; i++) value_free(p->works[i]);
    free(p);
}

/* The input of a run, and what is expected of the values then. */
static void run(program *p, int number, lb_measured expected[2])
{
    const CUdeviceptr input = host_memory(BYTES, 50 + (uint64_t)number);
    queue_copy(p->input, input, p->stream);
    assert_int_equal(cuGraphLaunch(p->exec, p->stream), CUDA_SUCCESS);
    value *half = value_dense(input, LB_BF16, BYTES / 2, false), *whole = value_dense(input, LB_F32, BYTES / 4, false);
    expected[0] = half->expected;
    expected[1] = whole->expected;
    expected[0].leaves = expected[1].leaves = NULL;
    value_free(half);
    value_free(whole);
}

static void assert_run(const program *p, int number, const lb_measured expected[2])
{
    for (int v = 0; v < 3; v++) {
        assert_true(p->runs.there[v][number]);
        measured_assert_same(&p->runs.found[v][number], &expected[v > 0]);
        assert_null(p->runs.found[v][number].leaves);
    }
}

static void each_run_of_a_graph_gives_its_results(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        program *p = program_of(seed, 60);
        capture(p);
        lb_measured expected[6][2];
        for (int i = 0; i < 3; i++) run(p, i, expected[i]);
        lb_cuda_order_after(p->reader, p->stream);
        lb_cuda_replays(p->reader, take, &p->runs);
        assert_int_equal(p->runs.n, 9);
        for (int i = 3; i < 6; i++) run(p, i, expected[i]);
        lb_cuda_order_after(p->reader, p->stream);
        lb_cuda_replays(p->reader, take, &p->runs);
        assert_int_equal(p->runs.n, 18);
        for (int i = 0; i < 6; i++) assert_run(p, i, expected[i]);
        lb_cuda_replays(p->reader, take, &p->runs);
        assert_int_equal(p->runs.n, 18);
        assert_int_equal(skipped_by(p->reader), 0);
        host_end(p->reader);
        program_free(p);
    }
}

/* Four sets are kept, of which the next run overwrites one: the last three are sure. */
static void runs_that_were_overwritten_are_counted(void **state)
{
    (void)state;
    program *p = program_of(2, 0);
    capture(p);
    lb_measured expected[9][2];
    for (int i = 0; i < 9; i++) run(p, i, expected[i]);
    lb_cuda_order_after(p->reader, p->stream);
    lb_cuda_replays(p->reader, take, &p->runs);
    assert_int_equal(p->runs.n, 9);
    for (int i = 6; i < 9; i++) assert_run(p, i, expected[i]);
    assert_int_equal(skipped_by(p->reader), 6 * 3);
    host_end(p->reader);
    program_free(p);
}

/* While runs are under way: what is given is whole, and the rest comes later. */
static void runs_under_way_are_given_when_they_have_ended(void **state)
{
    (void)state;
    program *p = program_of(4, 300);
    capture(p);
    lb_measured expected[3][2];
    for (int i = 0; i < 3; i++) run(p, i, expected[i]);
    while (p->runs.n < 9) lb_cuda_replays(p->reader, take, &p->runs); /* ordered after nothing */
    for (int i = 0; i < 3; i++) assert_run(p, i, expected[i]);
    host_end(p->reader);
    program_free(p);
}

/* The reader is used for the first time in the capture, asks and collects while another thread's rules would forbid
 * it. */
static void capture_of_the_program_is_not_disturbed(void **state)
{
    (void)state;
    program *p = program_of(5, 0);
    const CUstream other = host_stream();
    value *v = value_dense(p->output, LB_F32, 10, true);
    CUgraph graph;
    assert_int_equal(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    submit_values(p->reader, &v, 1, other, true);
    assert_int_equal(v->work.state, LB_WORK_UNDER_WAY);
    submit_values(p->reader, &p->works[0], 1, p->stream, true);
    p->reader->ops->collect(p->reader, NULL, true);
    value_assert_same(v);
    value_free(v);
    assert_int_equal(cuStreamEndCapture(p->stream, &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuThreadExchangeStreamCaptureMode(&mode);
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL); /* this thread's, as it was */
    assert_int_equal(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    assert_int_equal(cuStreamEndCapture(p->stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cuGraphInstantiateWithFlags(&p->exec, graph, 0), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    host_end(p->reader);
    program_free(p);
}

/* Bytes cannot be part of a graph; nor can a value be measured while the capture is broken by the program. */
static void what_a_graph_cannot_hold_is_skipped(void **state)
{
    (void)state;
    program *p = program_of(6, 0);
    CUdeviceptr unused;
    CUgraph graph;
    value *v = value_dense(p->output, LB_F32, 10, true);
    assert_int_equal(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    submit_values(p->reader, &v, 1, p->stream, true);
    assert_int_equal(v->work.state, LB_WORK_SKIPPED);
    assert_int_equal(v->work.slot, 0);
    value_free(v);
    assert_int_equal(cuMemAlloc_v2(&unused, 8), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    submit_values(p->reader, &p->works[1], 1, p->stream, true);
    assert_int_equal(p->works[1]->work.state, LB_WORK_SKIPPED);
    assert_int_equal(cuStreamEndCapture(p->stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(skipped_by(p->reader), 2);
    capture(p);
    lb_measured expected[2];
    run(p, 0, expected);
    lb_cuda_order_after(p->reader, p->stream);
    lb_cuda_replays(p->reader, take, &p->runs);
    assert_run(p, 0, expected);
    host_end(p->reader);
    program_free(p);
}

/* A capture that breaks between the question and the launch says nothing about the device. */
static void capture_that_breaks_under_us_loses_nothing(void **state)
{
    (void)state;
    program *p = program_of(7, 0);
    CUgraph graph;
    assert_int_equal(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    standin_fail("cuLaunchKernel", 0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    submit_values(p->reader, &p->works[0], 1, p->stream, true);
    assert_int_equal(p->works[0]->work.state, LB_WORK_SKIPPED);
    assert_int_equal(cuStreamEndCapture(p->stream, &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    capture(p);
    host_end(p->reader);
    program_free(p);
}

/* Graphs may run after the reader was closed: their nodes write to memory of the reader. */
static void graph_outlives_the_reader(void **state)
{
    (void)state;
    program *p = program_of(8, 0);
    capture(p);
    p->reader->ops->close(p->reader);
    lb_measured expected[2];
    run(p, 0, expected);
    host_end(NULL);
    program_free(p);
}

static void more_captured_values_than_there_is_room_for_are_skipped(void **state)
{
    (void)state;
    host_begin(1, 9, 0);
    const lb_cuda_options small = {.device_bytes = 128u << 10, .pinned_bytes = 16u << 10, .replays = 4, .unit = -1};
    lb_device *reader = host_reader(&small);
    const CUdeviceptr memory = host_memory(BYTES, 1);
    const CUstream stream = host_stream();
    CUgraph graph;
    value *values[20];
    for (int i = 0; i < 20; i++) values[i] = value_dense(memory, LB_F32, 10 + i, false);
    assert_int_equal(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    uint64_t with_a_name = 0;
    for (int i = 0; i < 20; i++) {
        submit_values(reader, values + i, 1, stream, true);
        assert_int_equal(values[i]->work.state, LB_WORK_SKIPPED);
        if (values[i]->work.slot) with_a_name++;
    }
    assert_in_range(with_a_name, 1, 19);
    assert_int_equal(skipped_by(reader), 20 - with_a_name);
    assert_int_equal(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    for (int i = 0; i < 20; i++) value_free(values[i]);
    host_end(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_run_of_a_graph_gives_its_results),
        cmocka_unit_test(runs_that_were_overwritten_are_counted),
        cmocka_unit_test(runs_under_way_are_given_when_they_have_ended),
        cmocka_unit_test(capture_of_the_program_is_not_disturbed),
        cmocka_unit_test(what_a_graph_cannot_hold_is_skipped),
        cmocka_unit_test(capture_that_breaks_under_us_loses_nothing),
        cmocka_unit_test(graph_outlives_the_reader),
        cmocka_unit_test(more_captured_values_than_there_is_room_for_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
