/* Workers of a recorded run of two ranks: who they are to each other, and products of their gradients. */
#include "cmocka_first.h"

#include "workers/worker_products.h"

#include <math.h>
#include <string.h>

static lb_capture *capture;
static lb_worker_steps steps;

static int open_sample(void **state)
{
    (void)state;
    if (lb_capture_open(LB_SOURCE_DIR "/samples/poisoned-rank.lbz", &capture, NULL) != LB_OK) return -1;
    return lb_worker_steps_init(capture, INT64_MIN, INT64_MAX, &steps, NULL) == LB_OK ? 0 : -1;
}

static int close_sample(void **state)
{
    (void)state;
    lb_worker_steps_release(&steps);
    lb_capture_close(capture);
    return 0;
}

static void ranks_that_reduce_over_one_group_are_pairs(void **state)
{
    (void)state;
    assert_true(steps.n_ranks >= 2 && steps.n_steps >= 1 && steps.n_reduced > 0);
    for (uint32_t a = 0; a < steps.n_ranks; a++) {
        assert_true(lb_worker_steps_has(&steps, a));
        for (uint32_t b = 0; b < steps.n_ranks; b++)
            assert_int_equal(lb_workers_pair(&steps, a, b), lb_workers_pair(&steps, b, a));
    }
    for (uint32_t i = 1; i < steps.n_reduced; i++) assert_true(strcmp(steps.reduced[i - 1], steps.reduced[i]) < 0);
    assert_true(lb_worker_key_reduced(&steps, steps.reduced[0]));
    assert_false(lb_worker_key_reduced(&steps, "no such gradient"));
}

typedef struct taken {
    const lb_worker_products *products;
    uint32_t n;
} taken;

static lb_status take_products(void *context, uint32_t key, const double *m)
{
    taken *t = context;
    const uint32_t n = t->products->n;
    assert_int_equal(key, t->n++);
    assert_true(lb_worker_key_reduced(&steps, t->products->keys[key]));
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = a; b < n; b++) {
            const double ab = m[a * n + b], limit = sqrt(m[a * n + a] * m[b * n + b]);
            assert_true(!(fabs(ab) > limit * (1 + 1e-12)));
        }
    return LB_OK;
}

static void products_are_those_of_vectors(void **state)
{
    (void)state;
    lb_worker_products p;
    assert_int_equal(lb_worker_products_init(&steps, &steps.steps[0], &p, NULL), LB_OK);
    taken t = {&p, 0};
    assert_int_equal(p.n, steps.n_ranks);
    const lb_worker_band all = {0, p.n};
    assert_int_equal(lb_worker_products_each(&steps, &steps.steps[0], all, &p, take_products, &t, NULL), LB_OK);
    assert_true(t.n > 0);
    assert_int_equal(t.n, p.n_keys);
    lb_worker_products_release(&p);
}

static void a_window_without_steps_is_refused(void **state)
{
    (void)state;
    lb_worker_steps none;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_worker_steps_init(capture, 1 << 20, 1 << 21, &none, &err), LB_ERR_NOT_FOUND);
    assert_true(err.message[0] != '\0');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_reduce_over_one_group_are_pairs),
        cmocka_unit_test(products_are_those_of_vectors),
        cmocka_unit_test(a_window_without_steps_is_refused),
    };
    return cmocka_run_group_tests(tests, open_sample, close_sample);
}
