/* What lastbit/capture.h promises to a host in C: threads, unseen writes, failures, budgets, the ring, DLPack, fork.
 * What was recorded is read back through lastbit/archive.h. */
#include "cmocka_first.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Before the C library's: how often the disk is waited for. */
static int synced;
int fsync(int fd)
{
    synced++;
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    synced++;
    return (int)syscall(SYS_fdatasync, fd);
}

enum { N = 64, THREADS = 4, OPS = 200 };

static lb_recorder *open_recorder(const lb_recorder_options *options)
{
    lb_recorder *recorder = NULL;
    lb_err err = LB_ERR_INIT;
    if (lb_recorder_open(in_scratch("run.lb"), options, &recorder, &err) != LB_OK) fail_msg("%s", err.message);
    return recorder;
}

static lb_recorded_operand tensor(const lb_host_tensor *seen)
{
    return (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = seen};
}

/* One elementwise op x -> y on dense vectors; 0 or the first status that is none. */
static lb_status record(lb_recorder *recorder, const char *name, const float *x, float *y, uint8_t thread)
{
    lb_host_tensor in = lb_host_tensor_of(x, LB_F32, 1, (int64_t[]){N}),
                   out = lb_host_tensor_of(y, LB_F32, 1, (int64_t[]){N});
    lb_recorded_operand args[] = {tensor(&in)}, results[] = {tensor(&out)};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = name;
    call.thread = thread;
    call.args = args;
    call.n_args = 1;
    lb_status status = lb_recorder_op_begin(recorder, &call, &pending, NULL);
    return status == LB_OK ? lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL) : status;
}

static const lb_program *read_step(lb_capture **capture, int64_t step)
{
    const lb_program *program = NULL;
    lb_err err = LB_ERR_INIT;
    if (lb_capture_open(in_scratch("run.lb"), capture, &err) != LB_OK) fail_msg("%s", err.message);
    if (lb_capture_program(*capture, 0, step, &program, &err) != LB_OK) fail_msg("%s", err.message);
    assert_int_equal(lb_program_validate(program, &err), LB_OK);
    return program;
}

static uint32_t ops_named(const lb_program *p, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) n += strcmp(lb_op_name(p, &p->ops[i]), name) == 0;
    return n;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct worker {
    lb_recorder *recorder;
    uint8_t number;
    lb_status status;
} worker;

/* Each has vectors of its own, a fresh one per op, as an allocator would hand them out again. */
static void *work(void *argument)
{
    worker *w = (worker *)argument;
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(w->number * 1000 + i);
    for (int op = 0; op < OPS && w->status == LB_OK; op++) {
        for (int i = 0; i < N; i++) y[i] = x[i] + (float)op;
        w->status = record(w->recorder, "test::thread", x, y, w->number);
        lb_recorder_forget(w->recorder, lb_host_tensor_of(y, LB_F32, 1, (int64_t[]){N}).storage);
    }
    return NULL;
}

static void ops_of_all_threads_are_recorded_whole(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_OPS;
    lb_recorder *recorder = open_recorder(&options);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    assert_int_equal(lb_recorder_step_begin(recorder, 7, NULL, NULL), LB_OK);
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){recorder, (uint8_t)t, LB_OK};
        assert_int_equal(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(workers[t].status, LB_OK);
    }
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);

    lb_capture *capture;
    const lb_program *p = read_step(&capture, 7);
    assert_int_equal(ops_named(p, "test::thread"), THREADS * OPS);
    uint32_t seen[THREADS] = {0};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (strcmp(lb_op_name(p, op), "test::thread") != 0) continue;
        lb_tensor y;
        assert_int_equal(lb_capture_value(capture, p, p->refs[op->first_result], &y, NULL), LB_OK);
        assert_true(*(const float *)y.data == (float)(op->thread * 1000) + (float)seen[op->thread]);
        seen[op->thread]++;
    }
    lb_capture_close(capture);
}

/* ---- writes that no op did --------------------------------------------------------------------------------------- */

static void writes_by_others_to_an_escaped_storage_become_a_source(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_SOURCES;
    lb_recorder *recorder = open_recorder(&options);
    float x[N] = {0}, y[N] = {0}, z[N] = {0};
    lb_recorder_step_begin(recorder, 0, NULL, NULL);
    assert_int_equal(record(recorder, "test::first", x, y, 0), LB_OK);
    lb_recorder_escaped(recorder, lb_host_tensor_of(y, LB_F32, 1, (int64_t[]){N}).storage);
    y[3] = 5;
    assert_int_equal(record(recorder, "test::second", y, z, 0), LB_OK);
    lb_recorder_step_end(recorder, true, NULL);
    lb_recorder_close(recorder, NULL);

    lb_capture *capture;
    const lb_program *p = read_step(&capture, 0);
    assert_int_equal(ops_named(p, "lb::source"), 2); /* x, and y as it was left */
    bool found = false;
    for (uint32_t v = 0; v < p->n_values; v++) {
        lb_tensor t;
        if (p->values[v].source != LB_SOURCE_UNSEEN || lb_capture_value(capture, p, v, &t, NULL) != LB_OK) continue;
        found = found || ((const float *)t.data)[3] == 5;
    }
    assert_true(found);
    lb_capture_close(capture);
}

/* As FSDP2 does with gathered parameters: emptied, then filled anew, at the same address. */
/* ---- measured beside the run ------------------------------------------------------------------------------------- */

enum { LARGE = 200000 };

/* An op fills x, another reads x into y, a third writes x in place; then the program is read back. */
static void record_large(bool beside, lb_digest digests[4], lb_statistics statistics[4])
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_STATS;
    options.overwrite = true;
    lb_recorder *recorder = open_recorder(&options);
    lb_recorder_async(recorder, beside);
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    float *a = calloc(LARGE, sizeof *a), *x = calloc(LARGE, sizeof *x), *y = calloc(LARGE, sizeof *y);
    const int64_t shape[1] = {LARGE};
    lb_host_tensor in = lb_host_tensor_of(a, LB_F32, 1, shape), sx = lb_host_tensor_of(x, LB_F32, 1, shape),
                   sy = lb_host_tensor_of(y, LB_F32, 1, shape);
    struct {
        lb_host_tensor *from, *to;
        bool in_place;
    } ops[] = {{&in, &sx, false}, {&sx, &sy, false}, {&sx, &sx, true}, {&sy, &sy, true}};
    uint64_t promised = 0, fulfilled = 0;
    uint32_t told = 0;
    for (int i = 0; i < 4; i++) {
        lb_recorded_operand args[] = {tensor(ops[i].from)}, results[] = {tensor(ops[i].to)};
        lb_recorded_call call = LB_CALL_INIT;
        lb_pending *pending = NULL;
        call.name = ops[i].in_place ? "test::write_" : "test::make";
        call.args = args;
        call.n_args = 1;
        if (ops[i].in_place) args[0].flags = LB_OPERAND_WRITTEN, call.flags = LB_OP_MUTABLE;
        assert_int_equal(lb_recorder_op_begin(recorder, &call, &pending, NULL), LB_OK);
        float *to = i == 0 || i == 2 ? x : y;
        for (int k = 0; k < LARGE; k++) to[k] = 3 * to[k] + (float)(i * 1000 + k);
        assert_int_equal(lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL), LB_OK);
        int64_t keys[8];
        told += lb_recorder_unheld(recorder, keys, 8, &promised, &fulfilled);
    }
    assert_int_equal(told, promised);
    assert_true(fulfilled <= promised && (beside || !promised));
    lb_recorder_settle(recorder, sy.storage);
    memset(y, 0, LARGE * sizeof *y);
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    free(a), free(x), free(y);
    lb_capture *capture;
    const lb_program *p = read_step(&capture, 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (strncmp(lb_op_name(p, &p->ops[i]), "test::", 6) != 0) continue;
        const lb_value *value = &p->values[p->refs[p->ops[i].first_result]];
        digests[n] = value->logical;
        statistics[n++] = p->statistics[value->statistics];
    }
    assert_int_equal(n, 4);
    lb_capture_close(capture);
}

static void what_is_measured_beside_the_run_is_the_same(void **state)
{
    (void)state;
    lb_digest alone[4], beside[4];
    lb_statistics of_alone[4], of_beside[4];
    record_large(false, alone, of_alone);
    for (int i = 0; i < 10; i++) {
        record_large(true, beside, of_beside);
        assert_memory_equal(alone, beside, sizeof alone);
        assert_memory_equal(of_alone, of_beside, sizeof of_alone);
    }
    assert_false(lb_digest_equal(alone[0], alone[2]));
}

static void a_storage_that_was_emptied_holds_nothing_yet(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_SOURCES;
    lb_recorder *recorder = open_recorder(&options);
    float x[N] = {0}, y[N] = {0}, z[N] = {0};
    const int64_t key = lb_host_tensor_of(y, LB_F32, 1, (int64_t[]){N}).storage;
    lb_recorder_step_begin(recorder, 0, NULL, NULL);
    assert_int_equal(record(recorder, "test::first", x, y, 0), LB_OK);
    lb_recorder_step_end(recorder, true, NULL);
    lb_recorder_step_begin(recorder, 1, NULL, NULL);
    lb_recorder_resized(recorder, key, NULL, 0);
    y[3] = 5;
    lb_recorder_resized(recorder, key, y, sizeof y);
    assert_int_equal(record(recorder, "test::second", y, z, 0), LB_OK);
    lb_recorder_step_end(recorder, true, NULL);
    lb_recorder_close(recorder, NULL);

    lb_capture *capture;
    const lb_program *p = read_step(&capture, 1);
    uint32_t undefined = 0;
    for (uint32_t v = 0; v < p->n_values; v++) {
        assert_int_not_equal(p->values[v].source, LB_SOURCE_UNSEEN);
        undefined += (p->values[v].flags & LB_VALUE_UNDEFINED) != 0;
    }
    assert_int_equal(undefined, 2); /* what was read, and what was computed from it */
    lb_capture_close(capture);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void a_full_disk_kills_the_recorder_and_keeps_what_was_committed(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_OPS;
    static float x[N], y[N];
    struct rlimit before, small;
    lb_recorder *recorder = open_recorder(&options);
    lb_recorder_step_begin(recorder, 0, NULL, NULL);
    assert_int_equal(record(recorder, "test::kept", x, y, 0), LB_OK);
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = (rlim_t)lb_recorder_bytes(recorder) + 20000;
    setrlimit(RLIMIT_FSIZE, &small);
    lb_status status = lb_recorder_step_begin(recorder, 1, NULL, NULL);
    for (int i = 0; i < 4000 && status == LB_OK; i++) {
        for (int k = 0; k < N; k++) y[k] = (float)(i * N + k);
        status = record(recorder, "test::lost", x, y, 0);
    }
    if (status == LB_OK) status = lb_recorder_step_end(recorder, true, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_not_equal(status, LB_OK);
    assert_int_equal(record(recorder, "test::after", x, y, 0), LB_ERR_STATE);
    assert_int_equal(lb_recorder_step_begin(recorder, 2, NULL, NULL), LB_ERR_STATE);
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_recorder_close(recorder, &err),
                     LB_ERR_IO); /* whoever asked for no status before hears it now */
    assert_true(lb_error_is_full_disk(err.message));

    lb_capture *capture;
    const lb_program *p = read_step(&capture, 0);
    assert_int_equal(ops_named(p, "test::kept"), 1);
    assert_int_equal(p->complete, 1);
    const char *coverage =
        lb_capture_table(capture, 0, "coverage"); /* there was room for it where the lost step was cut off */
    assert_non_null(coverage);
    assert_non_null(strstr(coverage, "\"stopped\""));
    assert_true(lb_error_is_full_disk(coverage));
    lb_capture_close(capture);
}

static void sync_says_when_the_disk_is_waited_for(void **state)
{
    (void)state;
    static const int at_step[] = {0, 1, 0}, at_close[] = {1, 1, 0};
    static float x[N], y[N];
    for (int sync = LB_OUTPUT_SYNC_CLOSE; sync <= LB_OUTPUT_SYNC_NEVER; sync++) {
        lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
        options.overwrite = true;
        options.sync = (uint8_t)sync;
        lb_recorder *recorder = open_recorder(&options);
        for (int step = 0; step < 3; step++) {
            lb_recorder_step_begin(recorder, step, NULL, NULL);
            assert_int_equal(record(recorder, "test::kept", x, y, 0), LB_OK);
            synced = 0;
            assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
            assert_int_equal(synced > 0, at_step[sync]);
        }
        synced = 0;
        assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
        assert_int_equal(synced > 0, at_close[sync]);
    }
}

static void an_archive_of_an_earlier_run_is_not_overwritten_unasked(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder = open_recorder(&options), *second = NULL;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    assert_int_equal(lb_recorder_open(in_scratch("run.lb"), &options, &second, &err), LB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "run.lb"));
    options.overwrite = true;
    assert_int_equal(lb_recorder_close(open_recorder(&options), NULL), LB_OK);
}

static void calls_out_of_order_are_refused_and_harmless(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder = open_recorder(&options);
    assert_int_not_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    float x[N] = {0}, y[N] = {0};
    assert_int_equal(record(recorder, "test::before", x, y, 0),
                     LB_OK); /* of a thread that comes too late or too early */
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    assert_int_equal(lb_recorder_step_begin(recorder, 1, NULL, NULL), LB_ERR_STATE);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    assert_int_equal(lb_recorder_close(NULL, NULL), LB_OK);

    lb_capture *capture;
    const lb_program *program = read_step(&capture, 0); /* the step that was open */
    assert_int_equal(program->complete, 0);
    assert_int_equal(program->n_ops, 0);
    lb_capture_close(capture);
}

/* ---- budget and ring --------------------------------------------------------------------------------------------- */

/* First bytes are left out; when not even a step's program fits, recording ends and says so. */
static void a_budget_is_kept_and_what_was_written_reads(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_OPS;
    options.budget_bytes = 512 << 10;
    lb_recorder *recorder = open_recorder(&options);
    float x[N] = {0}, y[N];
    int64_t step = 0;
    lb_status status = LB_OK;
    for (; step < 2000 && status == LB_OK; step++) {
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        for (int op = 0; op < 20; op++) {
            for (int k = 0; k < N; k++) y[k] = (float)(step * 10000 + op * 100 + k);
            assert_int_equal(record(recorder, "test::op", x, y, 0), LB_OK);
        }
        status = lb_recorder_step_end(recorder, true, NULL);
    }
    assert_int_equal(status, LB_ERR_LIMIT);
    assert_int_equal(record(recorder, "test::after", x, y, 0), LB_ERR_STATE);
    lb_recorder_close(recorder, NULL);
    size_t size;
    free(read_whole(in_scratch("run.lb/rank-00000.tar"), &size));
    assert_in_range(size, 0, options.budget_bytes);

    lb_capture *capture;
    const lb_program *p = read_step(&capture, 0);
    uint32_t kept = 0, kept_late = 0;
    for (uint32_t v = 0; v < p->n_values; v++) kept += lb_capture_has_value(capture, p, v);
    assert_int_equal(kept, p->n_values);
    assert_true(step > 3);
    assert_int_equal(lb_capture_program(capture, 0, step - 2, &p, NULL), LB_OK);
    for (uint32_t v = 0; v < p->n_values; v++) kept_late += lb_capture_has_value(capture, p, v);
    assert_true(kept_late < p->n_values && p->complete);
    lb_capture_close(capture);
}

static void the_ring_holds_the_last_steps_until_something_happens(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.ring = 3;
    options.level = LB_LEVEL_SOURCES;
    lb_recorder *recorder = open_recorder(&options);
    float x[N] = {0}, y[N] = {0};
    for (int64_t step = 0; step < 50; step++) {
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        x[0] = (float)step;
        assert_int_equal(record(recorder, "test::op", x, y, 0), LB_OK);
        if (step == 40) assert_int_equal(lb_recorder_trigger(recorder, "a test", NULL), LB_OK);
        assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
        if (step == 40) break; /* behind a trigger, recording goes on without a ring */
    }
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    lb_capture *capture;
    const int64_t *steps;
    assert_int_equal(lb_capture_open(in_scratch("run.lb"), &capture, NULL), LB_OK);
    uint32_t n = lb_capture_steps(capture, &steps);
    assert_true(n >= 3 && n <= 2 * 3 + 1);
    assert_int_equal(steps[n - 1], 40);
    assert_int_equal(steps[0], 40 - (int64_t)n + 1);
    lb_capture_close(capture);
}

/* ---- DLPack, fork ------------------------------------------------------------------------------------------------ */

/* The layout of dlpack.h's DLTensor (https://github.com/dmlc/dlpack), written out. */
typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

static void dlpack_tensors_are_seen_as_they_lie(void **state)
{
    (void)state;
    float data[12];
    int64_t shape[] = {2, 3}, strides[] = {1, 2};
    dl_tensor dl = {.data = data,
                    .device_type = 1,
                    .ndim = 2,
                    .code = 2,
                    .bits = 32,
                    .lanes = 1,
                    .shape = shape,
                    .strides = strides,
                    .byte_offset = 8};
    lb_host_tensor seen;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_host_tensor_of_dlpack(&dl, &seen, &err), LB_OK);
    assert_int_equal(seen.dtype, LB_F32);
    assert_int_equal(seen.layout.ndim, 2);
    assert_int_equal(seen.layout.stride[1], 2);
    assert_ptr_equal(seen.data, data + 2);
    dl.strides = NULL; /* row-major */
    assert_int_equal(lb_host_tensor_of_dlpack(&dl, &seen, &err), LB_OK);
    assert_int_equal(seen.layout.stride[0], 3);
    dl.lanes = 4;
    assert_int_equal(lb_host_tensor_of_dlpack(&dl, &seen, &err), LB_ERR_UNSUPPORTED);
    dl.lanes = 1, dl.bits = 24;
    assert_int_equal(lb_host_tensor_of_dlpack(&dl, &seen, &err), LB_ERR_UNSUPPORTED);
    dl.bits = 32, dl.ndim = 1000;
    assert_int_not_equal(lb_host_tensor_of_dlpack(&dl, &seen, &err), LB_OK);
}

static void a_forked_child_lets_go_without_a_trace(void **state)
{
    (void)state;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder = open_recorder(&options);
    float x[N] = {0}, y[N] = {0};
    lb_recorder_step_begin(recorder, 0, NULL, NULL);
    assert_int_equal(record(recorder, "test::before", x, y, 0), LB_OK);
    pid_t child = fork();
    if (child == 0) {
        lb_recorder_abandon(recorder);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_int_equal(record(recorder, "test::behind", x, y, 0), LB_OK);
    lb_recorder_step_end(recorder, true, NULL);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    lb_capture *capture;
    const lb_program *p = read_step(&capture, 0);
    assert_int_equal(ops_named(p, "test::before") + ops_named(p, "test::behind"), 2);
    lb_capture_close(capture);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_measured_beside_the_run_is_the_same),
        TEST(ops_of_all_threads_are_recorded_whole),
        TEST(writes_by_others_to_an_escaped_storage_become_a_source),
        TEST(a_storage_that_was_emptied_holds_nothing_yet),
        TEST(a_full_disk_kills_the_recorder_and_keeps_what_was_committed),
        TEST(sync_says_when_the_disk_is_waited_for),
        TEST(an_archive_of_an_earlier_run_is_not_overwritten_unasked),
        TEST(calls_out_of_order_are_refused_and_harmless),
        TEST(a_budget_is_kept_and_what_was_written_reads),
        TEST(the_ring_holds_the_last_steps_until_something_happens),
        TEST(dlpack_tensors_are_seen_as_they_lie),
        TEST(a_forked_child_lets_go_without_a_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
