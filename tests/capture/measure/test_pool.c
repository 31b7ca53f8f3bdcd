/* Threads that read along: every part runs once, whoever runs it, and what is measured does not depend on them. */
#include "measure/measure.h"
#include "measure/pool.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
} /* children with threads are tested here */
#endif

#define PARTS 1000

static void count(void *context, size_t i)
{
    atomic_fetch_add((atomic_int *)context + i, 1);
}

/* How many parts did not run exactly once. */
static int wrong_parts(void)
{
    atomic_int *runs = calloc(PARTS, sizeof *runs);
    int wrong = 0;
    lb_pool_run(PARTS, count, runs);
    for (int i = 0; i < PARTS; i++) wrong += atomic_load(&runs[i]) != 1;
    free(runs);
    return wrong;
}

static void every_part_runs_once(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 8; threads++) {
        lb_pool_use(threads);
        for (int i = 0; i < 200; i++) assert_int_equal(wrong_parts(), 0);
    }
}

static void *run_many(void *wrong)
{
    for (int i = 0; i < 200; i++) atomic_fetch_add((atomic_int *)wrong, wrong_parts());
    return NULL;
}

static void callers_do_not_wait_for_each_other(void **state)
{
    (void)state;
    lb_pool_use(3);
    atomic_int wrong = 0;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_many, &wrong), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
}

static void forked_child_has_threads_of_its_own(void **state)
{
    (void)state;
    lb_pool_use(3);
    assert_int_equal(wrong_parts(), 0);
    pid_t child = fork();
    if (child == 0) _exit(wrong_parts() ? 1 : 0);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(wrong_parts(), 0);
}

/* A large value, a small one, and one that is not contiguous, at once. */
static void measure_three(const float *data, int64_t n, lb_measured out[3])
{
    const int64_t side = 512, few = 1000;
    lb_measuring items[3] = {
        {.tensor = {(void *)(uintptr_t)data, LB_F32, lb_layout_contiguous(1, &n)}},
        {.tensor = {(void *)(uintptr_t)data, LB_F32, lb_layout_contiguous(1, &few)}},
        {.tensor = {(void *)(uintptr_t)data, LB_F32, {.ndim = 2, .shape = {side, side}, .stride = {1, side}}}}};
    for (int i = 0; i < 3; i++) {
        items[i].dense = data;
        items[i].dense_bytes = (size_t)(i == 0 ? n : i == 1 ? few : side * side) * 4;
        items[i].what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB;
    }
    assert_true(lb_measure(items, 3));
    for (int i = 0; i < 3; i++) {
        free(items[i].out.leaves);
        items[i].out.leaves = NULL;
        out[i] = items[i].out;
    }
}

static void measured_bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    const int64_t n = 1234567;
    float *data = malloc((size_t)n * sizeof *data);
    uint32_t x = 1;
    for (int64_t i = 0; i < n; i++) data[i] = (float)(int32_t)(x = x * 1664525u + 1013904223u) * 1e-6f;
    lb_measured alone[3], together[3];
    lb_pool_use(1);
    measure_three(data, n, alone);
    for (unsigned threads = 2; threads <= 5; threads++) {
        lb_pool_use(threads);
        measure_three(data, n, together);
        for (int i = 0; i < 3; i++) {
            assert_true(lb_digest_equal(alone[i].logical, together[i].logical));
            assert_true(lb_digest_equal(alone[i].blob, together[i].blob));
            assert_memory_equal(&alone[i].statistics, &together[i].statistics, sizeof alone[i].statistics);
        }
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_once),
        cmocka_unit_test(callers_do_not_wait_for_each_other),
        cmocka_unit_test(forked_child_has_threads_of_its_own),
        cmocka_unit_test(measured_bits_do_not_depend_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
