/* A run that leaves out what does not change gives what a run of all ops gives, whatever is put where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "exact/exact_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLEAN LB_SOURCE_DIR "/samples/clean.lbz" /* a hybrid model with experts, Muon and AdamW */

enum { ROUNDS = 12, PLACES = 5 };

static uint64_t seed = 11;
static uint32_t drawn(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % n);
}

typedef struct sides {
    lb_capture *capture;
    lb_program_view view;
    lb_exact_side side; /* runs again and again */
} sides;

static void open_side(const lb_program_view *view, lb_exact_side *side)
{
    assert_int_equal(lb_exact_side_open(view, side, NULL), LB_OK);
    for (uint32_t v = 0; v < view->program->n_values; v++)
        side->wanted[v] = side->graph.given[v] && lb_dtype_is_float(view->program->values[v].dtype);
}

static int open_all(void **state)
{
    sides *s = calloc(1, sizeof *s);
    const lb_program *program;
    if (!s || lb_capture_open(CLEAN, &s->capture, NULL) != LB_OK ||
        lb_capture_program(s->capture, 0, 1, &program, NULL) != LB_OK ||
        lb_program_view_init(s->capture, &program, 1, &s->view, NULL) != LB_OK)
        return -1;
    open_side(&s->view, &s->side);
    *state = s;
    return 0;
}

static int close_all(void **state)
{
    sides *s = *state;
    lb_exact_side_close(&s->side);
    lb_program_view_release(&s->view), lb_capture_close(s->capture);
    free(s);
    return 0;
}

static int64_t numel(const lb_exact_side *s, uint32_t v)
{
    return lb_layout_numel(&s->program->values[v].layout);
}

/* Numbers beside those that were kept, of which some stay the run's own: so near that no choice falls otherwise. */
static double *beside(const lb_exact_side *s, uint32_t v)
{
    const int64_t n = numel(s, v);
    double *numbers = malloc(((size_t)n + 1) * sizeof *numbers);
    const bool some = drawn(3) == 0;
    for (int64_t i = 0; i < n; i++)
        numbers[i] = some && drawn(2) ? lb_exact_side_own() : s->kept[v][i] * (1 + 1e-10 * (drawn(100) - 50.0));
    return numbers;
}

/* Lets go of what is put, and puts others at some places; now and then the old ones once more. */
static void put_elsewhere(lb_exact_side *s, double **put)
{
    const uint32_t n = s->program->n_values;
    for (uint32_t v = 0; v < n; v++) {
        s->forced[v] = NULL;
        if (drawn(3)) free(put[v]), put[v] = NULL;
    }
    for (int k = 0; k < PLACES;) {
        const uint32_t v = drawn(n);
        if (!s->kept[v] || !s->graph.given[v] || put[v]) continue;
        put[v] = beside(s, v), k++;
    }
    for (uint32_t v = 0; v < n; v++) s->forced[v] = put[v];
}

static void assert_same(const lb_exact_side *side, double *const *kept, const lb_exact_side *fresh)
{
    uint32_t compared = 0;
    for (uint32_t v = 0; v < side->program->n_values; v++) {
        assert_int_equal(!kept[v], !fresh->kept[v]);
        if (!kept[v]) continue;
        assert_memory_equal(kept[v], fresh->kept[v], (size_t)numel(side, v) * sizeof **kept);
        compared++;
    }
    assert_true(compared > 500);
}

static void what_is_left_out_has_the_numbers_of_a_whole_run(void **state)
{
    sides *s = *state;
    const uint32_t n = s->view.program->n_values;
    double **put = calloc(n + 1, sizeof *put), **aside;
    assert_int_equal(lb_exact_side_run(&s->side, NULL), LB_OK);
    for (int round = 0; round < ROUNDS; round++) {
        lb_exact_side fresh;
        put_elsewhere(&s->side, put);
        open_side(&s->view, &fresh);
        memcpy(fresh.forced, s->side.forced, n * sizeof *fresh.forced);
        assert_int_equal(lb_exact_side_run(&fresh, NULL), LB_OK);
        if (drawn(2)) {
            assert_int_equal(lb_exact_side_run_aside(&s->side, &aside, NULL), LB_OK);
            assert_same(&s->side, aside, &fresh);
            lb_exact_side_free_kept(&s->side, aside);
        } else {
            assert_int_equal(lb_exact_side_run(&s->side, NULL), LB_OK);
            assert_same(&s->side, s->side.kept, &fresh);
            assert_memory_equal(s->side.quantities, fresh.quantities, n * sizeof *fresh.quantities);
        }
        memset(fresh.forced, 0, n * sizeof *fresh.forced);
        lb_exact_side_close(&fresh);
    }
    for (uint32_t v = 0; v < n; v++) s->side.forced[v] = NULL, free(put[v]);
    free(put);
}

/* The first number among an op's arguments, and another one in its place; false: it takes none. */
static bool change_number(lb_program *p, uint32_t op)
{
    lb_arg args[8];
    const uint32_t n = p->ops[op].args;
    uint32_t at = 0;
    if (n > 8) return false;
    memcpy(args, lb_op_args(p, &p->ops[op]), n * sizeof *args);
    while (at < n && (args[at].tag != LB_ARG_FLOAT || args[at].u.f == 0)) at++;
    if (at == n) return false;
    args[at].u.f *= 1.25;
    p->ops[op].first_arg = lb_program_add_args(p, args, n);
    return true;
}

static void run_prepared(lb_exact_side *s)
{
    assert_int_equal(lb_exact_side_prepare(s, NULL), LB_OK);
    assert_int_equal(lb_exact_side_run(s, NULL), LB_OK);
}

static void other_arguments_run_again(void **state)
{
    sides *s = *state;
    lb_program *own = s->side.own;
    uint32_t tried = 0;
    lb_exact_side fresh;
    open_side(&s->view, &fresh);
    assert_int_equal(lb_exact_side_run(&fresh, NULL), LB_OK);
    for (uint32_t i = drawn(5); i < own->n_ops && tried < 6; i += 1 + drawn(5)) {
        const lb_op before = own->ops[i];
        const uint32_t v = lb_op_outcomes(&before) ? lb_op_outcome(own, &before, 0) : LB_NONE;
        if (v == LB_NONE || !fresh.kept[v] || numel(&fresh, v) < 2 || !change_number(own, i)) continue;
        run_prepared(&s->side);
        assert_non_null(s->side.kept[v]);
        if (fresh.kept[v][1] != 0) assert_memory_not_equal(s->side.kept[v], fresh.kept[v], sizeof(double));
        own->ops[i] = before;
        run_prepared(&s->side);
        assert_same(&s->side, s->side.kept, &fresh);
        tried++;
    }
    lb_exact_side_close(&fresh);
    assert_true(tried > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_out_has_the_numbers_of_a_whole_run),
        cmocka_unit_test(other_arguments_run_again),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
