/* Threads of ours in the host's process. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include "measure/thread.h"

#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { HELD = 400 << 10 };

static void *hold(void *argument)
{
    volatile char held[HELD];
    for (size_t i = 0; i < HELD; i += 512) held[i] = 1;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    *(int *)argument = held[0] + sigismember(&mask, SIGUSR1);
    return NULL;
}

static void a_thread_has_a_stack_where_the_hosts_limit_is_small(void **state)
{
    (void)state;
    pthread_attr_t before, small;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 128 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    pthread_t thread;
    int got = 0;
    assert_true(lb_thread_start(&thread, "lastbit", hold, &got));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(got, 2);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thread_has_a_stack_where_the_hosts_limit_is_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
