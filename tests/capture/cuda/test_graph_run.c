/* Each launch of a captured graph is recorded as if its ops had run one by one: the same step, eagerly in memory of the
 * host, and as a graph on the stand-in driver, whose streams run late. */
#include "host_program.h"
#include "recorder/recorder.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

enum { N = 600, TENSORS = 6, STEPS = 5, GRAPH = 77, TEMPORARY = 4, KEY_OF_TEMPORARY = 100, CACHE = 5 };

/* How a program runs. */
typedef struct way {
    lb_level level;
    int runs;              /* in each step */
    uint64_t device_bytes; /* 0: enough */
    bool anew;             /* each step captures the graph again, and drops the one before */
    const char *lost_by;   /* a call of the driver that fails, so many calls later */
    int after;
    /* before each run another one that the recorder is not told of; one that it is told of, and that fails */
    bool untold, failing;
} way;

typedef struct program {
    lb_recorder *recorder;
    bool on_device, captures;
    CUstream stream;
    CUdeviceptr there[TENSORS];
    float *here[TENSORS];
    int64_t temporary; /* key */
    char *notes;       /* of coverage */
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
static lb_host_tensor seen_of(const program *p, int t, int rows)
{
    lb_host_tensor seen = lb_host_tensor_of(p->here[t], LB_F32, rows > 1 ? 2 : 1,
                                            rows > 1 ? (int64_t[]){rows, N / rows} : (int64_t[]){N});
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
    lb_host_tensor from, to;
    uint32_t flags;
    unsigned written; /* flags of `to` as an argument; 0: it is a result */
    lb_place place;
} op;

static lb_pending *begin(program *p, const op *o)
{
    lb_recorded_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = &o->from},
                                  {.tag = LB_ARG_VALUE, .u.tensor = &o->to, .flags = (uint8_t)o->written}};
    lb_recorded_call call = LB_CALL_INIT;
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
    lb_recorded_operand results[] = {{.tag = LB_ARG_VALUE, .u.tensor = &o->to}};
    assert_int_equal(lb_recorder_op_end(p->recorder, pending, results, 1, NULL, NULL), LB_OK);
}

static void make_of(program *p, int from, int rows, int to, uint32_t flags, lb_place place)
{
    const op o = {"test::make", seen_of(p, from, rows), seen_of(p, to, 1), flags, 0, place};
    lb_pending *pending = begin(p, &o);
    copy(p, to, 0, from, 0, N);
    end(p, &o, pending);
}

static void make(program *p, int from, int rows, int to, lb_place place)
{
    make_of(p, from, rows, to, 0, place);
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

/* The body of a step: results, a view that is read, a draw (or so it says), a write in place, a cache of which a slice
 * is written, and two tensors one behind the other in the same memory under the same key. */
static void run_ops(program *p)
{
    const uint32_t scope = lb_recorder_scope(p->recorder, "block", "Block", 0);
    const lb_host_tensor input = seen_of(p, 0, 1), output = seen_of(p, 3, 1);
    lb_place place;
    assert_int_equal(lb_recorder_enter(p->recorder, scope, &input, 1, false, &place, NULL), LB_OK);
    make(p, 0, 1, 1, place);
    look_at(p, 1, 20, place);
    make_of(p, 1, 20, 2, LB_OP_RANDOM, place);
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
    assert_int_equal(lb_recorder_graph_ran(p->recorder, GRAPH, true, p->stream, NULL), LB_OK);
}

static void destroy(program *p, CUgraphExec exec)
{
    cuGraphExecDestroy(exec);
    lb_recorder_graph_drop(p->recorder, GRAPH);
}

/* As it comes to nothing: an untold run is one of the same graph, on the same input. */
static void disturb(program *p, const way *w, CUgraphExec exec)
{
    if (w->untold) assert_int_equal(cuGraphLaunch(exec, p->stream), CUDA_SUCCESS);
    if (!w->failing) return;
    assert_int_equal(lb_recorder_graph_run(p->recorder, GRAPH, p->stream, NULL), LB_OK);
    assert_int_equal(lb_recorder_graph_ran(p->recorder, GRAPH, false, p->stream, NULL), LB_OK);
}

/* A launch between steps. */
static void run_unrecorded(program *p, CUgraphExec exec)
{
    if (exec) {
        launch(p, exec);
    } else {
        copy(p, 1, 0, 0, 0, N);
        copy(p, 2, 0, 1, 0, N);
        copy(p, 1, N / 3, 2, 7, N / 3);
        copy(p, CACHE, 0, 2, 7, N / 3);
        copy(p, 2, 0, CACHE, 0, N);
        copy(p, 3, 0, 1, 0, N);
    }
    lb_recorder_step_skip(p->recorder);
}

/* `runs` bodies in each step, with an op outside the graph behind them. */
static void record(program *p, const char *name, const way *w)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    CUgraphExec exec = NULL;
    options.level = w->level;
    assert_int_equal(lb_recorder_open(in_scratch(name), &options, &p->recorder, NULL), LB_OK);
    p->recorder->cuda.code = &any_kernels;
    assert_int_equal(lb_recorder_cuda(p->recorder, w->device_bytes ? w->device_bytes : 8 << 20, NULL), LB_OK);
    if (p->on_device && w->lost_by) standin_fail(w->lost_by, w->after, CUDA_ERROR_LAUNCH_FAILED);
    if (p->on_device) exec = capture(p);
    for (int step = 0; step < STEPS; step++) {
        if (w->anew && exec && step) {
            destroy(p, exec);
            exec = capture(p);
        }
        fill(p, 0, step);
        assert_int_equal(lb_recorder_step_begin(p->recorder, step, NULL, NULL), LB_OK);
        for (int run = 0; run < w->runs; run++) {
            if (exec) disturb(p, w, exec);
            if (exec)
                launch(p, exec);
            else
                run_ops(p);
            make(p, 3, 1, 0, (lb_place){0, 0});
        }
        assert_int_equal(lb_recorder_step_end(p->recorder, true, NULL), LB_OK);
        if (step == 1) run_unrecorded(p, exec);
    }
    p->notes = json_dumps(p->recorder->coverage.notes, 0);
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

/* Of values and steps: the same; or less is known of them on the device, and nothing wrong. */
static void assert_not_wrong(const lb_program *p, const lb_program *q)
{
    assert_int_equal(p->n_values, q->n_values);
    for (uint32_t v = 0; v < p->n_values; v++) {
        const lb_value *x = &p->values[v], *y = &q->values[v];
        const bool known = !lb_digest_is_none(y->logical);
        if (known) assert_true(lb_digest_equal(x->logical, y->logical));
        if (y->flags & LB_VALUE_KEPT) assert_true(lb_digest_equal(x->blob, y->blob));
    }
}

static void assert_same_value(lb_capture *a, const lb_program *p, lb_capture *b, const lb_program *q, uint32_t v)
{
    const lb_value *x = &p->values[v], *y = &q->values[v];
    /* A graph measures each value that is read, a step without bytes not all of them: then it knows less of what was
     * left. */
    assert_true(x->source == y->source || (x->source == LB_SOURCE_OTHER && y->source == LB_SOURCE_CARRIED));
    assert_int_equal(x->flags, y->flags);
    assert_int_equal(x->version, y->version);
    assert_true(lb_digest_equal(x->logical, y->logical) || (p->level < LB_LEVEL_OPS && lb_digest_is_none(x->logical)));
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

typedef struct pair {
    program host, device;
    lb_capture *of_host, *of_device;
    char names[2][24];
} pair;

static pair record_both(const way *w, uint64_t seed)
{
    host_begin(1, seed, 80);
    pair p = {.host = program_new(false), .device = program_new(true)};
    snprintf(p.names[0], sizeof p.names[0], "host%u.lb", (unsigned)seed);
    snprintf(p.names[1], sizeof p.names[1], "device%u.lb", (unsigned)seed);
    record(&p.host, p.names[0], w);
    record(&p.device, p.names[1], w);
    host_end(NULL);
    return p;
}

static const lb_program *host_step(pair *p, int step)
{
    return step_of(&p->of_host, p->names[0], step);
}

static const lb_program *device_step(pair *p, int step)
{
    return step_of(&p->of_device, p->names[1], step);
}

static void pair_release(pair *p)
{
    lb_capture_close(p->of_host);
    lb_capture_close(p->of_device);
    for (int t = 0; t < TENSORS; t++) free(p->host.here[t]), free(p->device.here[t]);
    free(p->host.notes);
    free(p->device.notes);
}

static void compare(way w, uint64_t seed)
{
    pair both = record_both(&w, seed);
    for (int step = 0; step < STEPS; step++) {
        const lb_program *p = host_step(&both, step), *q = device_step(&both, step);
        assert_same_step(both.of_host, p, both.of_device, q);
        assert_int_equal(q->level, w.level);
    }
    assert_null(strstr(both.device.notes, "graph"));
    pair_release(&both);
}

static void a_run_is_recorded_as_its_ops(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_OPS, 1}, 2);
}

static void a_run_is_recorded_without_bytes(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_STATS, 1}, 1);
}

/* Those that the graph draws among them. */
static void a_run_is_recorded_with_its_sources(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_SOURCES, 2}, 6);
}

static void a_run_is_recorded_with_its_layers(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_LAYERS, 2}, 7);
}

static void runs_of_one_step_are_kept_apart(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_OPS, 3}, 3);
}

/* More runs in a step than the device holds results of. */
static void many_runs_in_a_step_wait_for_room(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_OPS, 40}, 4);
}

/* Of this much memory the five captures leave nothing, where what one took is not given back. */
static void room_of_a_graph_that_is_gone_is_free_again(void **state)
{
    (void)state;
    compare((way){LB_LEVEL_OPS, 2, .device_bytes = 1 << 20, .anew = true}, 8);
}

/* Two temporary tensors share memory: what lies there at the end is not what the first of them was. */
static void what_finds_no_room_is_missing_and_not_wrong(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {64 << 10, 100 << 10, 160 << 10, 240 << 10};
    unsigned lower = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const way w = {LB_LEVEL_OPS, 2, .device_bytes = sizes[s]};
        pair both = record_both(&w, 9 + s);
        for (int step = 0; step < STEPS; step++) {
            const lb_program *p = host_step(&both, step), *q = device_step(&both, step);
            assert_not_wrong(p, q);
            lower += q->level < LB_LEVEL_OPS;
        }
        pair_release(&both);
    }
    assert_true(lower > 0);
}

/* Whose results are whose cannot be known then: none are given to the run that was told of. */
static void a_run_that_nobody_tells_of_is_noted(void **state)
{
    (void)state;
    const way w = {LB_LEVEL_OPS, 1, .untold = true};
    pair both = record_both(&w, 14);
    for (int step = 0; step < STEPS; step++)
        assert_int_equal(device_step(&both, step)->n_ops, host_step(&both, step)->n_ops);
    assert_non_null(strstr(both.device.notes, "by other means than its replay()"));
    pair_release(&both);
}

/* The step has its ops twice, without results the first time; no run gets those of another one. */
static void a_run_that_fails_disturbs_no_other(void **state)
{
    (void)state;
    const way w = {LB_LEVEL_STATS, 1, .failing = true};
    pair both = record_both(&w, 15);
    for (int step = 0; step < STEPS; step++) {
        const lb_program *p = host_step(&both, step), *q = device_step(&both, step);
        assert_true(q->n_ops > p->n_ops);
    }
    assert_null(strstr(both.device.notes, "by other means"));
    assert_non_null(strstr(both.device.notes, "the launch of a graph failed"));
    pair_release(&both);
}

/* Wherever that is: in the capture, behind a run, where results are fetched. The program goes on, and nothing that is
 * recorded is wrong. */
static void a_device_that_is_lost_leaves_nothing_wrong(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuEventRecord"};
    static const int counts[] = {2, 20, 60};
    for (unsigned i = 0; i < 9; i++) {
        const way w = {LB_LEVEL_OPS, 3, .lost_by = calls[i / 3], .after = counts[i % 3]};
        pair both = record_both(&w, 20 + i);
        for (int step = 0; step < STEPS; step++) assert_not_wrong(host_step(&both, step), device_step(&both, step));
        pair_release(&both);
    }
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
    assert_int_equal(lb_recorder_graph_ran(recorder, 1, true, NULL, NULL), LB_OK);
    lb_recorder_graph_drop(recorder, 1);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(a_run_is_recorded_as_its_ops),
                                       TEST(a_run_is_recorded_without_bytes),
                                       TEST(a_run_is_recorded_with_its_sources),
                                       TEST(a_run_is_recorded_with_its_layers),
                                       TEST(runs_of_one_step_are_kept_apart),
                                       TEST(many_runs_in_a_step_wait_for_room),
                                       TEST(room_of_a_graph_that_is_gone_is_free_again),
                                       TEST(what_finds_no_room_is_missing_and_not_wrong),
                                       TEST(a_run_that_nobody_tells_of_is_noted),
                                       TEST(a_run_that_fails_disturbs_no_other),
                                       TEST(a_device_that_is_lost_leaves_nothing_wrong),
                                       TEST(mistakes_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
