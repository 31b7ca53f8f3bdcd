/* Tensors of a CUDA device are recorded as the host's are, and no op waits for the device: the same steps over memory
 * of the host, and on the stand-in driver, whose streams run late. */
#include "host_program.h"
#include "recorder/recorder.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

#include <lastbit/json_text.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { N = 3000, TENSORS = 4, STEPS = 2, OPS = 12, DEVICE_BYTES = 8 << 20, MOST_SENT = 256 };

typedef struct program {
    bool on_device;
    CUstream stream;
    CUdeviceptr there[TENSORS];
    float *here[TENSORS]; /* what the bytes are when all that is queued has run */
    float *sent;          /* pinned memory: what ops are still to write, one after the other */
    size_t n_sent;
} program;

static program program_new(bool on_device)
{
    program p = {.on_device = on_device};
    void *sent = NULL;
    if (on_device) p.stream = host_stream();
    if (on_device) assert_int_equal(cuMemHostAlloc(&sent, MOST_SENT * N * sizeof(float), 0), CUDA_SUCCESS);
    p.sent = sent;
    for (int t = 0; t < TENSORS; t++) {
        p.here[t] = calloc(N, sizeof(float));
        if (!on_device) continue;
        p.there[t] = host_memory(N * sizeof(float), 1);
        memset(standin_twin(p.there[t], N * sizeof(float)), 0, N * sizeof(float));
    }
    return p;
}

static void program_free(program *p)
{
    for (int t = 0; t < TENSORS; t++) free(p->here[t]);
}

static lb_host_tensor seen_of(const program *p, int t)
{
    lb_host_tensor seen = lb_host_tensor_of(p->here[t], LB_F32, 1, (int64_t[]){N});
    seen.storage = t + 1;
    if (!p->on_device) return seen;
    seen.data = (const void *)(uintptr_t)p->there[t];
    seen.device = 1;
    seen.stream = p->stream;
    return seen;
}

/* The kernel of an op: tensor `t` gets other numbers, on the device when the stream comes to it. */
static void compute(program *p, int t, int seed)
{
    for (int i = 0; i < N; i++) p->here[t][i] += (float)((i * 7 + seed) % 61) - 30;
    if (!p->on_device) return;
    assert_true(p->n_sent < MOST_SENT);
    float *const sent = p->sent + N * p->n_sent++;
    memcpy(sent, p->here[t], N * sizeof(float));
    assert_int_equal(cuMemcpyHtoDAsync_v2(p->there[t], sent, N * sizeof(float), p->stream), CUDA_SUCCESS);
}

static void run_op(lb_recorder *recorder, program *p, int from, int to, int seed)
{
    const bool in_place = from == to;
    lb_host_tensor in = seen_of(p, from), out = seen_of(p, to);
    lb_recorded_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = &in}},
                        results[] = {{.tag = LB_ARG_VALUE, .u.tensor = &out}};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = in_place ? "test::write_" : "test::make";
    call.args = args;
    call.n_args = 1;
    if (in_place) args[0].flags = LB_OPERAND_WRITTEN, call.flags = LB_OP_MUTABLE;
    assert_int_equal(lb_recorder_op_begin(recorder, &call, &pending, NULL), LB_OK);
    compute(p, to, seed);
    assert_int_equal(lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL), LB_OK);
}

static lb_recorder *opened(const char *name, lb_level level)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder;
    options.level = level;
    assert_int_equal(lb_recorder_open(in_scratch(name), &options, &recorder, NULL), LB_OK);
    recorder->cuda.code = &any_kernels;
    assert_int_equal(lb_recorder_cuda(recorder, DEVICE_BYTES, NULL), LB_OK);
    return recorder;
}

static void record(program *p, const char *name, lb_level level)
{
    lb_recorder *recorder = opened(name, level);
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        for (int op = 0; op < OPS; op++) run_op(recorder, p, op % TENSORS, (op * op + 1) % TENSORS, 100 * step + op);
        assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    }
    assert_int_equal(recorder->devices.n, p->on_device ? 1 : 0);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
}

static const lb_program *step_of(lb_capture **capture, const char *name, int64_t step)
{
    const lb_program *program = NULL;
    lb_err err = LB_ERR_INIT;
    if (!*capture && lb_capture_open(in_scratch(name), capture, &err) != LB_OK) fail_msg("%s", err.message);
    if (lb_capture_program(*capture, 0, step, &program, &err) != LB_OK) fail_msg("%s", err.message);
    return program;
}

static void assert_value_equal(lb_capture *a, const lb_program *p, lb_capture *b, const lb_program *q, uint32_t v)
{
    const lb_value *x = &p->values[v], *y = &q->values[v];
    /* Memory of the host that was written in parts has no digest as a whole, on either side. */
    assert_true(lb_digest_equal(x->logical, y->logical) && (y->device == 0 || !lb_digest_is_none(y->logical)));
    assert_true(x->source == y->source && x->flags == y->flags && x->version == y->version);
    assert_true((x->statistics == LB_NONE) == (y->statistics == LB_NONE));
    if (x->statistics == LB_NONE) return;
    assert_memory_equal(&p->statistics[x->statistics], &q->statistics[y->statistics], sizeof p->statistics[0]);
    if (!(x->flags & LB_VALUE_KEPT)) return;
    lb_tensor s, t;
    assert_int_equal(lb_capture_value(a, p, v, &s, NULL), LB_OK);
    assert_int_equal(lb_capture_value(b, q, v, &t, NULL), LB_OK);
    assert_memory_equal(s.data, t.data, (size_t)lb_layout_numel(&x->layout) * sizeof(float));
}

static uint32_t values_on_device(const lb_program *p)
{
    uint32_t n = 0;
    for (uint32_t v = 0; v < p->n_values; v++) n += p->values[v].device == 1;
    return n;
}

/* Coverage says what was taken of a device, and nothing of devices where there is none. */
static void assert_accounted(lb_capture *capture, bool on_device)
{
    json_t *coverage = json_loads(lb_capture_table(capture, 0, "coverage"), 0, NULL);
    json_t *devices = json_object_get(coverage, "devices"), *device = json_array_get(devices, 0);
    assert_int_equal(json_array_size(devices), on_device ? 1 : 0);
    if (on_device) {
        const json_int_t bytes = json_integer_value(json_object_get(device, "memory_bytes"));
        assert_string_equal(json_string_value(json_object_get(device, "back_end")), "cuda");
        assert_true(bytes > 0 && bytes <= DEVICE_BYTES);
        assert_int_equal(json_integer_value(json_object_get(device, "skipped")), 0);
    }
    json_decref(coverage);
}

/* Of the host, and of a device. */
static void assert_same_steps(const char *here, const char *there)
{
    lb_capture *a = NULL, *b = NULL;
    for (int step = 0; step < STEPS; step++) {
        const lb_program *p = step_of(&a, here, step), *q = step_of(&b, there, step);
        assert_int_equal(p->n_ops, q->n_ops);
        assert_int_equal(p->n_values, q->n_values);
        for (uint32_t v = 0; v < p->n_values; v++) assert_value_equal(a, p, b, q, v);
        assert_true(values_on_device(q) > 0 && values_on_device(p) == 0);
    }
    assert_accounted(a, false);
    assert_accounted(b, true);
    lb_capture_close(a);
    lb_capture_close(b);
}

static void a_device_of_cuda_is_recorded_as_the_host_is(void **state)
{
    (void)state;
    for (lb_level level = LB_LEVEL_STATS; level <= LB_LEVEL_OPS; level++) {
        char here[32], there[32];
        snprintf(here, sizeof here, "host%d.lb", level);
        snprintf(there, sizeof there, "cuda%d.lb", level);
        host_begin(1, (uint64_t)level + 1, 50);
        program host = program_new(false), device = program_new(true);
        record(&host, here, level);
        record(&device, there, level);
        host_end(NULL);
        assert_same_steps(here, there);
        program_free(&host);
        program_free(&device);
    }
}

/* An op that reads all tensors in a list, as an optimizer's does, where nothing is known of them; how often the host
 * waited for it. */
static int read_all(lb_recorder *recorder, program *p)
{
    lb_host_tensor seen[TENSORS], out = seen_of(p, 0);
    lb_recorded_operand items[TENSORS], results[] = {{.tag = LB_ARG_VALUE, .u.tensor = &out}};
    for (int t = 0; t < TENSORS; t++) {
        seen[t] = seen_of(p, t);
        items[t] = (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = &seen[t]};
    }
    lb_recorded_operand list = {.tag = LB_ARG_LIST, .u.items = items, .count = TENSORS};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = "test::read_all";
    call.args = &list;
    call.n_args = 1;
    const int before = p->on_device ? standin_waits() : 0;
    assert_int_equal(lb_recorder_op_begin(recorder, &call, &pending, NULL), LB_OK);
    const int waits = p->on_device ? standin_waits() - before : 0;
    assert_int_equal(lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL), LB_OK);
    return waits;
}

static int record_list(program *p, const char *name, lb_level level)
{
    for (int t = 0; t < TENSORS; t++) compute(p, t, t);
    lb_recorder *recorder = opened(name, level);
    int waits = 0; /* of the second step: in the first one the device is opened */
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        waits = read_all(recorder, p);
        assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    }
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    return waits;
}

static void what_one_op_reads_is_waited_for_once(void **state)
{
    (void)state;
    for (lb_level level = LB_LEVEL_STATS; level <= LB_LEVEL_SOURCES; level++) {
        char here[32], there[32];
        snprintf(here, sizeof here, "list-host%d.lb", level);
        snprintf(there, sizeof there, "list-cuda%d.lb", level);
        host_begin(1, (uint64_t)level + 1, 50);
        program host = program_new(false), device = program_new(true);
        record_list(&host, here, level);
        const int waits = record_list(&device, there, level);
        const int fetched = standin_calls("cuMemcpyDtoHAsync_v2");
        host_end(NULL);
        /* Where bytes are kept each tensor comes by itself. */
        assert_int_equal(waits, level == LB_LEVEL_STATS ? 1 : TENSORS);
        assert_true(level != LB_LEVEL_STATS || fetched <= 6); /* results, and what they are made of; no tensor */
        assert_same_steps(here, there);
        program_free(&host);
        program_free(&device);
    }
}

/* ---- what an op costs -------------------------------------------------------------------------------------------- */

/* Calls since standin_begin: those that a stream has to do something for, and all. */
typedef struct calls {
    int queued, all, waits;
} calls;

static calls calls_now(void)
{
    static const char *const queued[] = {"cuLaunchKernel",       "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
                                         "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async",      "cuEventRecord",
                                         "cuStreamWaitEvent"};
#define NAME(name, symbol, parameters) #symbol,
    static const char *const all[] = {LB_CUDA_FUNCTIONS(NAME) LB_CUDA_OPTIONAL(NAME)};
#undef NAME
    calls n = {.waits = standin_waits()};
    for (size_t i = 0; i < sizeof queued / sizeof *queued; i++) n.queued += standin_calls(queued[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) n.all += standin_calls(all[i]);
    return n;
}

enum { STEP_OPS = 200 }; /* so that rings are more than half taken on the way, and results are fetched */

/* The tensors' memory is written in place, freed, and given anew under another name. `named`: the stream has a handle
 * of its own. */
static void run_step(lb_recorder *recorder, program *p)
{
    for (int op = 0; op < STEP_OPS; op++) {
        const int from = op % TENSORS, to = (op / 2 + 1) % TENSORS;
        if (op % 3 == 0) lb_recorder_forget(recorder, to + 1);
        p->n_sent %= MOST_SENT - 1;
        run_op(recorder, p, op % 3 == 0 && from == to ? (to + 1) % TENSORS : from, to, op);
    }
}

/* Once a step knows its tensors: what was made in it is read where it lies, however long the device takes. */
static void an_op_costs_at_most_three_queued_calls_and_none_that_waits(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const lb_level level = i % 2 ? LB_LEVEL_OPS : LB_LEVEL_STATS;
        host_begin(1, 21, 0);
        program device = program_new(true);
        if (i / 2) device.stream = NULL; /* the default one */
        lb_recorder *recorder = opened(i % 2 ? "cost-ops.lb" : "cost-stats.lb", level);
        assert_int_equal(lb_recorder_step_begin(recorder, i, NULL, NULL), LB_OK);
        for (int t = 0; t < TENSORS; t++) run_op(recorder, &device, t, t, t);
        const calls before = calls_now();
        const bool held = i == 0;
        if (held) standin_hold(); /* to wait would be a violation */
        run_step(recorder, &device);
        const calls after = calls_now();
        if (held) standin_let_go();
        /* Of the program's own each op has one. */
        const double queued = (double)(after.queued - before.queued) / STEP_OPS - 1,
                     all = (double)(after.all - before.all) / STEP_OPS - 1;
        print_message("level %d, %s stream: of the driver an op has %.2f calls that are queued, %.2f in all\n", level,
                      device.stream ? "a" : "the default", queued, all);
        assert_int_equal(after.waits, before.waits);
        assert_true(queued > 1 && queued <= 3 && all <= 9);
        assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
        assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
        host_end(NULL);
        program_free(&device);
        drop_scratch(state);
        make_scratch(state);
    }
}

/* ---- copies that arrive later ------------------------------------------------------------------------------------ */

enum { HALVES = 2 };

/* One half of memory of the host, which a test of a device has pinned. */
static lb_host_tensor half_of(float *memory, int half)
{
    lb_host_tensor seen = lb_host_tensor_of(memory, LB_F32, 1, (int64_t[]){N});
    seen.storage = TENSORS + 1;
    seen.storage_bytes = HALVES * N * sizeof(float);
    seen.layout.offset = half * N;
    seen.data = memory + (size_t)half * N;
    return seen;
}

static void copy(program *p, const lb_host_tensor *to, const lb_host_tensor *from)
{
    const size_t bytes = N * sizeof(float);
    CUresult result = CUDA_SUCCESS;
    if (to->device)
        result = cuMemcpyHtoDAsync_v2((CUdeviceptr)(uintptr_t)to->data, from->data, bytes, p->stream);
    else if (from->device)
        result =
            cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to->data, (CUdeviceptr)(uintptr_t)from->data, bytes, p->stream);
    else
        memmove((void *)(uintptr_t)to->data, from->data, bytes);
    assert_int_equal(result, CUDA_SUCCESS);
}

static void run_copy(lb_recorder *recorder, program *p, lb_host_tensor to, lb_host_tensor from)
{
    lb_recorded_operand args[] = {
        {.tag = LB_ARG_VALUE, .flags = LB_OPERAND_WRITTEN | LB_OPERAND_OVERWRITTEN, .u.tensor = &to},
        {.tag = LB_ARG_VALUE, .u.tensor = &from}};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = "test::copy_";
    call.args = args;
    call.n_args = 2;
    call.flags = LB_OP_MUTABLE;
    call.non_blocking = true;
    assert_int_equal(lb_recorder_op_begin(recorder, &call, &pending, NULL), LB_OK);
    copy(p, &to, &from);
    assert_int_equal(lb_recorder_op_end(recorder, pending, args, 1, NULL, NULL), LB_OK);
}

/* Tensors that were just made go to the halves, change where they lay, and come back into other ones; the host waits,
 * and uses its memory anew. `held`: while the device stands still the recorder waits for none of it. Where every input
 * is kept it does, for a half of memory that was written in parts. */
static void copy_away_and_back(lb_recorder *recorder, program *p, float *memory, int seed, bool held)
{
    float copied[HALVES][N];
    for (int t = 0; t < TENSORS; t++) run_op(recorder, p, t, t, seed + t);
    memcpy(copied[0], p->here[0], sizeof copied[0]);
    memcpy(copied[1], p->here[1], sizeof copied[1]);
    const int waits = p->on_device ? standin_waits() : 0;
    if (held) standin_hold();
    for (int half = 0; half < HALVES; half++) run_copy(recorder, p, half_of(memory, half), seen_of(p, half));
    for (int half = 0; half < HALVES; half++) run_op(recorder, p, half, half, seed + half);
    for (int half = 0; half < HALVES; half++) {
        run_copy(recorder, p, seen_of(p, HALVES + half), half_of(memory, half));
        memcpy(p->here[HALVES + half], copied[half], sizeof copied[half]);
    }
    if (held) assert_int_equal(standin_waits(), waits);
    if (held) standin_let_go();
    if (p->on_device) assert_int_equal(cuStreamSynchronize(p->stream), CUDA_SUCCESS);
    for (int i = 0; i < N; i++) memory[i] = (float)(seed + i);
}

static void record_copies(program *p, const char *name, lb_level level)
{
    lb_recorder *recorder = opened(name, level);
    void *memory = calloc(HALVES * N, sizeof(float));
    if (p->on_device) free(memory);
    if (p->on_device) assert_int_equal(cuMemHostAlloc(&memory, HALVES * N * sizeof(float), 0), CUDA_SUCCESS);
    if (p->on_device) memset(memory, 0, HALVES * N * sizeof(float));
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        copy_away_and_back(recorder, p, memory, 100 * step, p->on_device && level != LB_LEVEL_OPS);
        assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    }
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    if (!p->on_device) free(memory);
}

static void copies_to_the_host_are_recorded_as_they_arrive(void **state)
{
    (void)state;
    for (lb_level level = LB_LEVEL_STATS; level <= LB_LEVEL_OPS; level++) {
        char here[32], there[32];
        snprintf(here, sizeof here, "copies-host%d.lb", level);
        snprintf(there, sizeof there, "copies-cuda%d.lb", level);
        host_begin(1, (uint64_t)level + 1, 50);
        program host = program_new(false), device = program_new(true);
        record_copies(&host, here, level);
        record_copies(&device, there, level);
        host_end(NULL);
        assert_same_steps(here, there);
        program_free(&host);
        program_free(&device);
    }
}

/* ---- other threads ----------------------------------------------------------------------------------------------- */

enum { LATE_US = 200000, SILENT_NS = 50000000 };

typedef struct waiter {
    lb_device_wait wait;
    atomic_bool over;
} waiter;

static void *wait_for_device(void *context)
{
    waiter *w = context;
    lb_device_wait_for(&w->wait);
    atomic_store(&w->over, true);
    return NULL;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Ops of the host while the device is waited for; how long the longest of them took. */
static int64_t beat(lb_recorder *recorder, program *host, const waiter *w)
{
    int64_t longest = 0;
    for (int beats = 0; !atomic_load(&w->over); beats++) {
        const int64_t began = now_ns();
        run_op(recorder, host, 3, 3, beats); /* the device's program has no such tensor */
        longest = now_ns() - began > longest ? now_ns() - began : longest;
    }
    return longest;
}

static int64_t silent_while_waiting(void)
{
    host_begin(1, 3, LATE_US);
    program host = program_new(false), device = program_new(true);
    lb_recorder *recorder = opened("waits.lb", LB_LEVEL_STATS);
    const lb_host_tensor read = seen_of(&device, 0), written = seen_of(&device, 1);
    const lb_host_tensor *one[] = {&read}, *made[] = {&written};
    waiter w = {.over = false};
    const CUevent queued = host_event();
    assert_false(lb_recorder_waits(recorder, one, 1, NULL, false, &w.wait)); /* no step is open */
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    run_op(recorder, &device, 0, 1, 1);
    assert_false(lb_recorder_waits(recorder, made, 1, NULL, false, &w.wait)); /* it is measured on its way */
    for (int i = 0; i < 4; i++) compute(&device, 2, i);
    const lb_host_tensor strange = seen_of(&device, 2);
    one[0] = &strange;
    assert_true(lb_recorder_waits(recorder, one, 1, NULL, false, &w.wait));
    assert_true(w.wait.context && w.wait.stream == device.stream && !w.wait.copies);
    assert_int_equal(cuEventRecord(queued, device.stream), CUDA_SUCCESS);
    assert_int_equal(cuEventQuery(queued), CUDA_ERROR_NOT_READY);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_device, &w), 0);
    const int64_t silent = beat(recorder, &host, &w);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(cuEventQuery(queued), CUDA_SUCCESS);
    run_op(recorder, &device, 2, 1, 5);
    lb_device_wait all[4];
    assert_int_equal(lb_recorder_waits_at_end(recorder, all, 4), 1);
    assert_true(all[0].stream == device.stream);
    lb_device_wait_for(&all[0]);
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    assert_int_equal(lb_recorder_waits_at_end(recorder, all, 4), 0);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    host_end(NULL);
    program_free(&host);
    program_free(&device);
    return silent;
}

/* A lock that is held is held every time; a machine that others use pauses a thread now and then. */
static void a_device_is_waited_for_without_a_lock(void **state)
{
    int64_t silent = SILENT_NS;
    (void)state;
    for (int attempt = 0; attempt < 8 && silent >= SILENT_NS; attempt++) {
        drop_scratch(state);
        make_scratch(state);
        silent = silent_while_waiting();
    }
    assert_true(silent < SILENT_NS);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_device_of_cuda_is_recorded_as_the_host_is), TEST(what_one_op_reads_is_waited_for_once),
        TEST(an_op_costs_at_most_three_queued_calls_and_none_that_waits),
        TEST(copies_to_the_host_are_recorded_as_they_arrive), TEST(a_device_is_waited_for_without_a_lock)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
