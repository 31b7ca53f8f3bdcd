/* Rows of flipped choices: generated results of which some rows differ, against what the definition says. */
#include "shadow/flips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, WIDTH = 5, ELEMENTS = ROWS * WIDTH, CASES = 2000 };

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

static lb_layout layout_of(int ndim, const int64_t *shape)
{
    lb_layout l = {.ndim = (uint8_t)ndim};
    int64_t stride = 1;
    for (int d = ndim; d-- > 0; stride *= shape[d]) l.shape[d] = shape[d], l.stride[d] = stride;
    return l;
}

/* Shapes whose leading dimensions count ROWS, and some that have as many elements without such a part. */
static lb_layout some_shape(bool *has_rows)
{
    static const int64_t with[][3] = {{ROWS, WIDTH, 1}, {3, 4, WIDTH}, {2, 6, WIDTH}, {ROWS, 1, WIDTH}};
    static const int64_t without[][3] = {{WIDTH, ROWS, 1}, {WIDTH, 3, 4}, {5, 2, 6}};
    *has_rows = draw(3) > 0;
    return layout_of(3, *has_rows ? with[draw(4)] : without[draw(3)]);
}

static void draw_case(uint8_t flipped[2][ROWS], double *a, double *b, uint8_t *differs)
{
    for (int r = 0; r < ROWS; r++)
        flipped[0][r] = draw(4) == 0, flipped[1][r] = draw(6) == 0, differs[r] = draw(8) == 0;
    for (int e = 0; e < ELEMENTS; e++) a[e] = b[e] = (double)draw(1000) + 0.5;
    for (int r = 0; r < ROWS; r++)
        if (differs[r]) b[r * WIDTH + (int)draw(WIDTH)] += 1 + (double)draw(9);
}

static void rows_of_chosen_flips_are_settled_and_no_others(void **unused)
{
    (void)unused;
    uint32_t settled_some = 0, refused_some = 0;
    for (int i = 0; i < CASES; i++) {
        uint8_t flipped[2][ROWS], differs[ROWS];
        double a[ELEMENTS], b[ELEMENTS], before[ELEMENTS];
        bool has_rows, covered = true;
        draw_case(flipped, a, b, differs);
        memcpy(before, b, sizeof b);
        lb_flip list[] = {{3, ROWS, 1, flipped[0]}, {9, ROWS, 1, flipped[1]}};
        const lb_flips flips = {list, 2};
        const uint64_t which = draw(4);
        const lb_layout layout = some_shape(&has_rows);
        int64_t rows = 0;
        for (int r = 0; r < ROWS; r++) {
            const bool chosen = (which & 1 && flipped[0][r]) || (which & 2 && flipped[1][r]);
            covered &= !differs[r] || chosen;
            rows += differs[r];
        }
        const int64_t settled = lb_flips_settle(&flips, which, &layout, a, b, 0);
        const bool expected = has_rows && covered && which;
        assert_int_equal(settled, expected ? rows : 0);
        assert_memory_equal(b, settled ? a : before, sizeof b);
        settled_some += settled > 0, refused_some += rows > 0 && !settled;
    }
    assert_true(settled_some > 20 && refused_some > 500);
}

static void choices_behind_the_last_bit_share_it(void **unused)
{
    (void)unused;
    assert_true(lb_flips_bit(0) == 1 && lb_flips_bit(62) == UINT64_C(1) << 62);
    assert_true(lb_flips_bit(63) == lb_flips_bit(1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_chosen_flips_are_settled_and_no_others),
                                       cmocka_unit_test(choices_behind_the_last_bit_share_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
