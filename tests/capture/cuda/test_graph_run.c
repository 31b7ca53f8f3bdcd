/* Each launch of a captured graph is recorded as if its ops had run one by one: the same step, eagerly in memory of the host, and as a
 * graph on the stand-in driver, whose streams run late. */
#include "host_program.h"
#include "recorder.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

enum { N = 600, TENSORS = 6, STEPS = 5, GRAPH = 77, TEMPORARY = 4, KEY_OF_TEMPORARY = 100, CACHE = 5 };

typedef struct program {
    lb_recorder *recorder;
    bool on_device, captures;
    CUstream stream;
    CUdeviceptr there[TENSORS];
    float *here[TENSORS];
    int64_t temporary; /* key */
} program;

static program program_new(bool on_device)
{
    program p = {.on_device = on_device, .temporary = KEY_OF_TEMPORARY};
    if (on_device) p.stream = host_stream();
    for (int t = 0; t < TENSORS; t++) {
        p.here[t] = calloc(N, sizeof(float));
        if (!on_device) continue;
        p.there[t] = host_memory(N * sizeof(float), 1);
        memset(standin_twin(p.there[t], N * sizeof(float)), 0, N * sizeof(float));
    }
    return p;
}

/* `rows` rows of N / rows elements. */
static lb_seen seen_of(const program *p, int t, int rows)
{
    lb_seen seen =
        lb_seen_of(p->here[t], LB_F32, rows > 1 ? 2 : 1, rows > 1 ? (int64_t[]){rows, N / rows} : (int64_t[]){N});
    seen.storage = t == TEMPORARY ? p->temporary : t + 1;
    if (!p->on_device) return seen;
    seen.data = (const void *)(uintptr_t)p->there[t];
    seen.device = 1;
    seen.stream = p->stream;
    return seen;
}

static void copy(program *p, int to, int at, int from, int from_at, int n)
{
    if (!p->on_device)
        memcpy(p->here[to] + at, p->here[from] + from_at, (size_t)n * sizeof(float));
    else
        assert_int_equal(cuMemcpyDtoDAsync_v2(p->there[to] + (size_t)at * sizeof(float),
                                              p->there[from] + (size_t)from_at * sizeof(float),
                                              (size_t)n * sizeof(float), p->stream),
                         CUDA_SUCCESS);
}

/* What the host writes between steps, in memory that the graph reads. */
static void fill(program *p, int t, int seed)
{
    for (int i = 0; i < N; i++) p->here[t][i] = (float)((i * 13 + seed * 29) % 97) - 48;
    if (!p->on_device) return;
    void *sent;
    assert_int_equal(cuMemHostAlloc(&sent, N * sizeof(float), 0), CUDA_SUCCESS);
    memcpy(sent, p->here[t], N * sizeof(float));
    assert_int_equal(cuMemcpyHtoDAsync_v2(p->there[t], sent, N * sizeof(float), p->stream), CUDA_SUCCESS);
}

typedef struct op {
    const char *name;
    lb_seen from, to;
    uint32_t flags;
    unsigned written; /* flags of `to` as an argument; 0: it is a result */
    lb_place place;
} op;

static lb_pending *begin(program *p, const op *o)
{
    lb_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = &o->from},
                         {.tag = LB_ARG_VALUE, .u.tensor = &o->to, .flags = (uint8_t)o->written}};
    lb_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = o->name;
    call.args = args;
    call.n_args = o->written ? 2 : 1;
    call.flags = o->flags;
    call.place = o->place;
    assert_int_equal(lb_recorder_op_begin(p->recorder, &call, &pending, NULL), LB_OK);
    return pending;
}

static void end(program *p, const op *o, lb_pending *pending)
{
    lb_operand results[] = {{.tag = LB_ARG_VALUE, .u.tensor = &o->to}};
    assert_int_equal(lb_recorder_op_end(p->recorder, pending, results, 1, NULL, NULL), LB_OK);
}

static void make(program *p, int from, int rows, int to, lb_place place)
{
    const op o = {"test::make", seen_of(p, from, rows), seen_of(p, to, 1), 0, 0, place};
    lb_pending *pending = begin(p, &o);
    copy(p, to, 0, from, 0, N);
    end(p, &o, pending);
}

static void look_at(program *p, int t, int rows, lb_place place)
{
    const op o = {"test::view", seen_of(p, t, 1), seen_of(p, t, rows), LB_OP_VIEW, 0, place};
    end(p, &o, begin(p, &o));
}

/* A slice of `to` gets what stands in another slice of `from`. */
static void write_slice(program *p, int from, int to, int at, lb_place place)
{
    op o = {"test::write_",
            seen_of(p, from, 1),
            seen_of(p, to, 1),
            LB_OP_MUTABLE,
            LB_OPERAND_WRITTEN | LB_OPERAND_OVERWRITTEN,
            place};
    o.to.layout = lb_layout_contiguous(1, (int64_t[]){N / 3});
    o.to.layout.offset = at;
    o.to.data = (const char *)o.to.data + (size_t)at * sizeof(float);
    lb_pending *pending = begin(p, &o);
    copy(p, to, at, from, 7, N / 3);
    end(p, &o, pending);
}

static void free_temporary(program *p)
{
    lb_recorder_forget(p->recorder, p->temporary);
}

/* The body of a step: results, a view that is read, a write in place, a cache of which a slice is written, and two tensors one behind
 * the other in the same memory under the same key. */
static void run_ops(program *p)
{
    const uint32_t scope = lb_recorder_scope(p->recorder, "block", "Block", 0);
    const lb_seen input = seen_of(p, 0, 1), output = seen_of(p, 3, 1);
    lb_place place;
    assert_int_equal(lb_recorder_enter(p->recorder, scope, &input, 1, false, &place, NULL), LB_OK);
    make(p, 0, 1, 1, place);
    look_at(p, 1, 20, place);
    make(p, 1, 20, 2, place);
    write_slice(p, 2, 1, N / 3, place);
    write_slice(p, 2, CACHE, 0, place);
    make(p, CACHE, 1, TEMPORARY, place);
    make(p, TEMPORARY, 1, 2, place);
    free_temporary(p);
    make(p, 1, 1, TEMPORARY, place);
    make(p, TEMPORARY, 1, 3, place);
    assert_int_equal(lb_recorder_leave(p->recorder, place, &output, 1, false, NULL), LB_OK);
    free_temporary(p);
}

static CUgraphExec capture(program *p)
{
    CUgraph graph;
    CUgraphExec exec;
    assert_int_equal(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    assert_int_equal(lb_recorder_graph_begin(p->recorder, GRAPH, NULL), LB_OK);
    run_ops(p);
    assert_int_equal(lb_recorder_graph_end(p->recorder, true, NULL), LB_OK);
    assert_int_equal(cuStreamEndCapture(p->stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    return exec;
}

static void launch(program *p, CUgraphExec exec)
{
    assert_int_equal(lb_recorder_graph_run(p->recorder, GRAPH, p->stream, NULL), LB_OK);
    assert_int_equal(cuGraphLaunch(exec, p->stream), CUDA_SUCCESS);
    assert_int_equal(lb_recorder_graph_ran(p->recorder, GRAPH, p->stream, NULL), LB_OK);
}

/* `runs` bodies in each step, with an op outside the graph behind them; a launch between steps is of no step. */
static void record(program *p, const char *name, lb_level level, int runs)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    CUgraphExec exec = NULL;
    options.level = level;
    assert_int_equal(lb_recorder_open(in_scratch(name), &options, &p->recorder, NULL), LB_OK);
    p->recorder->cuda_code = &any_kernels;
    assert_int_equal(lb_recorder_cuda(p->recorder, 8 << 20, NULL), LB_OK);
    if (p->on_device) exec = capture(p);
    for (int step = 0; step < STEPS; step++) {
        fill(p, 0, step);
        assert_int_equal(lb_recorder_step_begin(p->recorder, step, NULL, NULL), LB_OK);
        for (int run = 0; run < runs; run++) {
            if (exec)
                launch(p, exec);
            else
                run_ops(p);
            make(p, 3, 1, 0, (lb_place){0, 0});
        }
        assert_int_equal(lb_recorder_step_end(p->recorder, true, NULL), LB_OK);
        if (exec && step == 1) {
            launch(p, exec);
        } else if (step == 1) { /* not recorded */
            copy(p, 1, 0, 0, 0, N);
            copy(p, 2, 0, 1, 0, N);
            copy(p, 1, N / 3, 2, 7, N / 3);
            copy(p, CACHE, 0, 2, 7, N / 3);
            copy(p, 2, 0, CACHE, 0, N);
            copy(p, 3, 0, 1, 0, N);
        }
        if (step == 1) lb_recorder_step_skip(p->recorder);
    }
    assert_int_equal(lb_recorder_close(p->recorder, NULL), LB_OK);
    if (exec) cuGraphExecDestroy(exec);
}

static const lb_program *step_of(lb_capture **capture, const char *name, int64_t step)
{
    const lb_program *program = NULL;
    lb_err err = LB_ERR_INIT;
    if (!*capture && lb_capture_open(in_scratch(name), capture, &err) != LB_OK) fail_msg("%s", err.message);
    if (lb_capture_program(*capture, 0, step, &program, &err) != LB_OK) fail_msg("%s", err.message);
    return program;
}

static void assert_same_value(lb_capture *a, const lb_program *p, lb_capture *b, const lb_program *q, uint32_t v)
{
    const lb_value *x = &p->values[v], *y = &q->values[v];
    /* A graph measures each value that is read, a step without bytes not all of them: then it knows less of what was left. */
    assert_true(x->source == y->source || (x->source == LB_SOURCE_OTHER && y->source == LB_SOURCE_CARRIED));
    assert_int_equal(x->flags % LB_VALUE_KEPT, y->flags % LB_VALUE_KEPT);
    assert_int_equal(x->version, y->version);
    assert_true(lb_digest_equal(x->logical, y->logical) ||
                (p->level == LB_LEVEL_STATS && lb_digest_is_none(x->logical)));
    if (x->statistics != LB_NONE)
        assert_memory_equal(&p->statistics[x->statistics], &q->statistics[y->statistics], sizeof p->statistics[0]);
    if (!(x->flags & y->flags & LB_VALUE_KEPT)) return;
    lb_tensor s, t;
    assert_int_equal(lb_capture_value(a, p, v, &s, NULL), LB_OK);
    assert_int_equal(lb_capture_value(b, q, v, &t, NULL), LB_OK);
    assert_memory_equal(s.data, t.data, (size_t)lb_layout_numel(&s.layout) * sizeof(float));
}

static void assert_same_step(lb_capture *a, const lb_program *p, lb_capture *b, const lb_program *q)
{
    assert_int_equal(p->n_ops, q->n_ops);
    assert_int_equal(p->n_values, q->n_values);
    assert_int_equal(p->n_boundaries, q->n_boundaries);
    for (uint32_t i = 0; i < p->n_ops; i++)
        assert_string_equal(lb_program_text(p, p->ops[i].name), lb_program_text(q, q->ops[i].name));
    for (uint32_t v = 0; v < p->n_values; v++) {
        assert_same_value(a, p, b, q, v);
        if (q->values[v].flags & LB_VALUE_SOURCE && p->values[v].flags & LB_VALUE_KEPT)
            assert_true(q->values[v].flags & LB_VALUE_KEPT);
    }
}

static void compare(lb_level level, int runs, uint64_t seed)
{
    host_begin(1, seed, 80);
    program host = program_new(false), device = program_new(true);
    record(&host, "host.lb", level, runs);
    record(&device, "device.lb", level, runs);
    host_end(NULL);
    lb_capture *a = NULL, *b = NULL;
    for (int step = 0; step < STEPS; step++) {
        const lb_program *p = step_of(&a, "host.lb", step), *q = step_of(&b, "device.lb", step);
        assert_same_step(a, p, b, q);
        assert_int_equal(q->level, level < LB_LEVEL_SOURCES ? level : LB_LEVEL_SOURCES);
    }
    lb_capture_close(a);
    lb_capture_close(b);
    for (int t = 0; t < TENSORS; t++) free(host.here[t]), free(device.here[t]);
}

static void a_run_is_recorded_as_its_ops(void **state)
{
    (void)state;
    compare(LB_LEVEL_OPS, 1, 2);
}

static void a_run_is_recorded_without_bytes(void **state)
{
    (void)state;
    compare(LB_LEVEL_STATS, 1, 1);
}

static void runs_of_one_step_are_kept_apart(void **state)
{
    (void)state;
    compare(LB_LEVEL_OPS, 3, 3);
}

/* More runs in a step than the device holds results of. */
static void many_runs_in_a_step_wait_for_room(void **state)
{
    (void)state;
    compare(LB_LEVEL_OPS, 40, 4);
}

static void mistakes_are_told(void **state)
{
    (void)state;
    const lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_recorder_open(in_scratch("x.lb"), &options, &recorder, NULL), LB_OK);
    assert_int_equal(lb_recorder_graph_end(recorder, true, &err), LB_ERR_STATE);
    assert_string_equal(err.message, "no graph is being captured");
    assert_int_equal(lb_recorder_graph_begin(recorder, 1, NULL), LB_OK);
    lb_err_clear(&err);
    assert_int_equal(lb_recorder_graph_begin(recorder, 2, &err), LB_ERR_STATE);
    assert_string_equal(err.message, "another graph is being captured");
    assert_int_equal(lb_recorder_graph_end(recorder, false, NULL), LB_OK);
    assert_int_equal(lb_recorder_graph_run(recorder, 1, NULL, NULL), LB_OK); /* unknown: nothing */
    assert_int_equal(lb_recorder_graph_ran(recorder, 1, NULL, NULL), LB_OK);
    lb_recorder_graph_drop(recorder, 1);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(a_run_is_recorded_as_its_ops), TEST(a_run_is_recorded_without_bytes),
                                       TEST(runs_of_one_step_are_kept_apart), TEST(many_runs_in_a_step_wait_for_room),
                                       TEST(mistakes_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
