/* Sums of blocks in the place of a large shadow: what they see, and what they let pass. */
#include "cmocka_first.h"

#include "shadow/block_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 70001 }; /* blocks, and a part of one */

typedef struct sides {
    double *a, *b, *sums[2], largest, noise;
} sides;

static lb_tensor tensor_of(double *x)
{
    const int64_t n = N;
    return (lb_tensor){x, LB_F64, lb_layout_contiguous(1, &n)};
}

/* Numbers of many sizes, none of them whole. */
static int set_up(void **state)
{
    sides *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->a = malloc(N * sizeof *s->a), s->b = malloc(N * sizeof *s->b);
    for (int k = 0; k < 2; k++) s->sums[k] = malloc((size_t)lb_block_sums_count(N) * sizeof(double));
    assert_true(s->a && s->b && s->sums[0] && s->sums[1]);
    for (int i = 0; i < N; i++) s->a[i] = ldexp(sin(0.7 * i + 0.1), -(i % 9));
    memcpy(s->b, s->a, N * sizeof *s->a);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    sides *s = *state;
    free(s->a), free(s->b), free(s->sums[0]), free(s->sums[1]), free(s);
    return 0;
}

static bool agree(sides *s)
{
    const lb_tensor a = tensor_of(s->a), b = tensor_of(s->b);
    lb_block_sums_of(&a, s->sums[0], &s->largest, NULL);
    lb_block_sums_of(&b, s->sums[1], NULL, NULL);
    return lb_block_sums_agree(s->sums[0], s->sums[1], lb_block_sums_count(N), s->noise, s->largest);
}

static void one_wrong_element_is_seen_wherever_it_stands(void **state)
{
    sides *s = *state;
    assert_true(agree(s));
    for (int i = 0; i < N; i += 997) {
        s->b[i] = s->a[i] + 0x1p-30;
        assert_false(agree(s));
        s->b[i] = s->a[i];
    }
    s->b[N - 1] += 0x1p-30; /* of the last block, which is not full */
    assert_false(agree(s));
}

static void elements_in_other_places_are_seen(void **state)
{
    sides *s = *state;
    memcpy(s->b, s->a + 1, (N - 1) * sizeof *s->a);
    assert_false(agree(s));
    memcpy(s->b, s->a, N * sizeof *s->a);
    memcpy(s->b, s->a + 256, 256 * sizeof *s->a); /* two blocks exchanged */
    memcpy(s->b + 256, s->a, 256 * sizeof *s->a);
    assert_false(agree(s));
}

static void rounding_passes_and_a_constant_factor_does_not(void **state)
{
    sides *s = *state;
    for (int i = 0; i < N; i++) s->b[i] = s->a[i] * (1 + (i % 7 - 3) * 0x1p-50);
    assert_true(agree(s));
    for (int i = 0; i < N; i++) s->b[i] = s->a[i] * (1 + 0x1p-20);
    assert_false(agree(s));
    s->noise = 0x1p-20; /* what a disturbed run was carried as far */
    assert_true(agree(s));
}

static void masks_and_infinities_count_by_their_place(void **state)
{
    sides *s = *state;
    s->a[5] = -3.4e38, s->b[5] = -INFINITY, s->a[300] = s->b[300] = NAN;
    assert_true(agree(s));
    assert_true(s->largest <= 1);
    s->b[5] = 0.25;
    assert_false(agree(s));
}

static void a_strided_tensor_has_the_sums_of_its_copy(void **state)
{
    sides *s = *state;
    enum { ROWS = 300, COLUMNS = 100, WIDTH = 230 };
    double *copy = malloc(ROWS * COLUMNS * sizeof *copy), sums[2][ROWS * COLUMNS / 256 * 4 + 4];
    assert_non_null(copy);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) copy[r * COLUMNS + c] = s->a[r * WIDTH + 2 * c];
    const lb_tensor strided = {s->a, LB_F64, {.ndim = 2, .shape = {ROWS, COLUMNS}, .stride = {WIDTH, 2}}};
    const int64_t n = ROWS * COLUMNS;
    const lb_tensor dense = {copy, LB_F64, lb_layout_contiguous(1, &n)};
    bool real[2];
    lb_block_sums_of(&strided, sums[0], NULL, &real[0]);
    lb_block_sums_of(&dense, sums[1], NULL, &real[1]);
    assert_memory_equal(sums[0], sums[1], (size_t)lb_block_sums_count(n) * sizeof(double));
    assert_true(real[0] && real[1]);
    for (int i = 0; i < ROWS * COLUMNS; i++) copy[i] = i % 5;
    lb_block_sums_of(&dense, sums[1], NULL, &real[1]);
    assert_false(real[1]);
    free(copy);
}

static void what_rounding_alone_has_made_tells_nothing(void **state)
{
    (void)state;
    assert_false(lb_block_sums_tell(0, 0));
    assert_false(lb_block_sums_tell(1e-17, 1e-16));
    assert_true(lb_block_sums_tell(1, 1e-12));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_wrong_element_is_seen_wherever_it_stands, set_up, tear_down),
        cmocka_unit_test_setup_teardown(elements_in_other_places_are_seen, set_up, tear_down),
        cmocka_unit_test_setup_teardown(rounding_passes_and_a_constant_factor_does_not, set_up, tear_down),
        cmocka_unit_test_setup_teardown(masks_and_infinities_count_by_their_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_strided_tensor_has_the_sums_of_its_copy, set_up, tear_down),
        cmocka_unit_test(what_rounding_alone_has_made_tells_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
