/* Values measured beside the run: the same numbers as at once, the caller's help included, and bytes are let go when
 * done. */
#include "measure/measure_queue.h"

#include <setjmp.h>
#include <stdarg.h>
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
}
#endif

enum { VALUES = 40, MOST = 300000 };

static float *numbers(size_t n, unsigned seed)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)((i * 2654435761u + seed) % 1000) - 500;
    return x;
}

static lb_measuring measuring(const float *x, int64_t n)
{
    const int64_t shape[1] = {n};
    return (lb_measuring){.tensor = {(void *)(uintptr_t)x, LB_F32, lb_layout_contiguous(1, shape)},
                          .dense = x,
                          .dense_bytes = (size_t)n * sizeof *x,
                          .what = LB_MEASURE_STATISTICS};
}

static bool same(const lb_measured *a, const lb_measured *b)
{
    return lb_digest_equal(a->logical, b->logical) && lb_digest_equal(a->blob, b->blob) &&
           memcmp(&a->statistics, &b->statistics, sizeof a->statistics) == 0;
}

static int64_t length(int i)
{
    return 1 + (int64_t)(i * 7919) % MOST;
}

static void what_is_measured_beside_the_run_is_what_is_measured_at_once(void **state)
{
    (void)state;
    lb_measure_queue *backlog = lb_measure_queue_new();
    assert_non_null(backlog);
    for (int round = 0; round < 5; round++) {
        lb_work works[VALUES] = {0};
        float *x[VALUES];
        for (int i = 0; i < VALUES; i++) {
            x[i] = numbers((size_t)length(i), (unsigned)(round + i));
            works[i].item = measuring(x[i], length(i));
            assert_true(lb_measure_queue_add(backlog, &works[i]));
        }
        for (int i = round; i < VALUES; i += 3) { /* the host is about to write there */
            lb_measure_queue_finish(backlog, &works[i]);
            assert_true(lb_measure_queue_is_done(&works[i]));
            lb_measuring now = measuring(x[i], length(i));
            assert_true(lb_measure(&now, 1));
            assert_true(same(&now.out, &works[i].item.out));
            free(now.out.leaves);
            memset(x[i], 0xff, (size_t)length(i) * sizeof **x);
        }
        for (int i = 0; i < VALUES; i++) {
            assert_ptr_equal(lb_measure_queue_oldest(backlog), &works[i]);
            lb_measure_queue_finish(backlog, &works[i]);
            if ((i - round) % 3 || i < round) {
                lb_measuring now = measuring(x[i], length(i));
                assert_true(lb_measure(&now, 1));
                assert_true(same(&now.out, &works[i].item.out));
                free(now.out.leaves);
            }
            lb_measure_queue_remove_oldest(backlog);
            free(works[i].item.out.leaves);
            free(x[i]);
        }
        assert_null(lb_measure_queue_oldest(backlog));
        assert_int_equal(lb_measure_queue_bytes(backlog), 0);
    }
    assert_true(lb_measure_queue_free(backlog));
}

static void a_backlog_that_nobody_waits_for_is_dropped(void **state)
{
    (void)state;
    float *x = numbers(MOST, 1);
    lb_measure_queue *backlog = lb_measure_queue_new();
    lb_work works[VALUES] = {0};
    for (int i = 0; i < VALUES; i++) {
        works[i].item = measuring(x, MOST);
        assert_true(lb_measure_queue_add(backlog, &works[i]));
    }
    assert_true(lb_measure_queue_free(backlog));
    for (int i = 0; i < VALUES; i++) free(works[i].item.out.leaves);
    free(x);
    assert_true(lb_measure_queue_free(NULL));
}

static void a_forked_child_touches_nothing(void **state)
{
    (void)state;
    float *x = numbers(MOST, 2);
    lb_measure_queue *backlog = lb_measure_queue_new();
    lb_work work = {.item = measuring(x, MOST)};
    assert_true(lb_measure_queue_add(backlog, &work));
    pid_t child = fork();
    if (child == 0) _exit(lb_measure_queue_free(backlog) ? 1 : 0);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    lb_measure_queue_finish(backlog, &work);
    lb_measure_queue_remove_oldest(backlog);
    free(work.item.out.leaves);
    assert_true(lb_measure_queue_free(backlog));
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_measured_beside_the_run_is_what_is_measured_at_once),
        cmocka_unit_test(a_backlog_that_nobody_waits_for_is_dropped),
        cmocka_unit_test(a_forked_child_touches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
