/* A recorder that many threads use at once, while another asks it everything that can be asked: what is recorded is
 * whole. Built by the preset tsan it is a test of the locks, which the binding of Python relies on
 * (tests/capture/recorder/test_races.py). */
#include "cmocka_first.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

#include <pthread.h>
#include <stdatomic.h>

enum { N = 64, THREADS = 4, STEPS = 6, OPS = 60 };

typedef struct storm {
    lb_recorder *recorder;
    _Atomic bool over;
    _Atomic uint32_t asked;
} storm;

typedef struct worker {
    storm *storm;
    pthread_t thread;
    uint8_t number;
    lb_status status;
} worker;

/* x -> y, and then y in place, as ops of this thread. */
static lb_status record(lb_recorder *recorder, const lb_host_tensor *x, const lb_host_tensor *y, uint8_t thread)
{
    lb_recorded_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = x}},
                        results[] = {{.tag = LB_ARG_VALUE, .u.tensor = y}};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = "test::storm";
    call.thread = thread;
    call.args = args;
    call.n_args = 1;
    const lb_status status = lb_recorder_op_begin(recorder, &call, &pending, NULL);
    if (status != LB_OK) return status;
    for (int i = 0; i < N; i++) ((float *)(uintptr_t)y->data)[i] = ((const float *)x->data)[i] + 1;
    return lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL);
}

static void *work(void *of)
{
    worker *w = of;
    lb_recorder *recorder = w->storm->recorder;
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(w->number * 1000 + i);
    const lb_host_tensor a = lb_host_tensor_of(x, LB_F32, 1, (int64_t[]){N}),
                         b = lb_host_tensor_of(y, LB_F32, 1, (int64_t[]){N});
    for (int op = 0; op < OPS && w->status == LB_OK; op++) {
        w->status = record(recorder, &a, &b, w->number);
        if (op % 7 == 1) lb_recorder_escaped(recorder, b.storage);
        if (op % 5 == 2) lb_recorder_resized(recorder, b.storage, y, sizeof y);
        if (op % 9 == 3) lb_recorder_scalar(recorder, "loss", op, NULL);
        if (op % 11 == 4) lb_recorder_notice(recorder, "thread", "a storm", NULL);
        lb_recorder_forget(recorder, b.storage);
    }
    return NULL;
}

static void *ask(void *of)
{
    storm *s = of;
    while (!atomic_load(&s->over)) {
        int64_t parts[4];
        lb_recorder_bytes(s->recorder);
        lb_recorder_in_step(s->recorder);
        lb_recorder_nonfinite(s->recorder);
        lb_recorder_next_op(s->recorder);
        lb_recorder_partial(s->recorder, parts, 4);
        if (atomic_fetch_add(&s->asked, 1) % 16 == 0) lb_recorder_flush(s->recorder);
        sched_yield();
    }
    return NULL;
}

static void run_step(storm *s, int64_t step)
{
    worker workers[THREADS];
    assert_int_equal(lb_recorder_step_begin(s->recorder, step, NULL, NULL), LB_OK);
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.storm = s, .number = (uint8_t)t};
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(workers[t].thread, NULL);
        assert_int_equal(workers[t].status, LB_OK);
    }
    assert_int_equal(lb_recorder_step_end(s->recorder, true, NULL), LB_OK);
}

static void assert_whole(void)
{
    lb_capture *capture;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_capture_open(in_scratch("run.lb"), &capture, &err), LB_OK);
    for (int step = 0; step < STEPS; step++) {
        const lb_program *p;
        uint32_t ops[THREADS] = {0};
        assert_int_equal(lb_capture_program(capture, 0, step, &p, &err), LB_OK);
        assert_int_equal(lb_program_validate(p, &err), LB_OK);
        for (uint32_t i = 0; i < p->n_ops; i++)
            if (!strcmp(lb_op_name(p, &p->ops[i]), "test::storm")) ops[p->ops[i].thread]++;
        for (int t = 0; t < THREADS; t++) assert_int_equal(ops[t], OPS);
    }
    lb_capture_close(capture);
}

static void record_storm(bool beside)
{
    storm s = {0};
    pthread_t asking;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = LB_LEVEL_OPS;
    options.overwrite = true;
    assert_int_equal(lb_recorder_open(in_scratch("run.lb"), &options, &s.recorder, NULL), LB_OK);
    if (beside) lb_recorder_async(s.recorder, true);
    assert_int_equal(pthread_create(&asking, NULL, ask, &s), 0);
    for (int step = 0; step < STEPS; step++) run_step(&s, step);
    atomic_store(&s.over, true);
    pthread_join(asking, NULL);
    assert_true(s.asked > 0);
    assert_int_equal(lb_recorder_close(s.recorder, NULL), LB_OK);
    assert_whole();
}

static void all_that_threads_record_at_once_is_whole(void **state)
{
    (void)state;
    record_storm(false);
}

static void so_it_is_where_steps_are_written_beside_the_run(void **state)
{
    (void)state;
    record_storm(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_that_threads_record_at_once_is_whole, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(so_it_is_where_steps_are_written_beside_the_run, make_scratch, drop_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
