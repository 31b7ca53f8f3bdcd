/* Rows of an expert that sees other tokens than on the other side: generated lists, against the longest common
 * subsequence. */
#include "shadow/flip_reach.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

enum { MOST = 9, WIDTH = 3, CASES = 4000 };

static uint64_t state = 7;

static uint64_t draw(uint64_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

/* Tokens of an expert, ascending, and their rows. */
typedef struct expert {
    int tokens[MOST], n;
    double rows[MOST * WIDTH];
} expert;

static void add_token(expert *e, int token)
{
    for (int k = 0; k < WIDTH; k++) e->rows[e->n * WIDTH + k] = token * 10 + k + 0.5;
    e->tokens[e->n++] = token;
}

/* Both sides' tokens, of which some are on one side only; returns how many both have. */
static int draw_experts(expert *a, expert *b)
{
    int common = 0;
    *a = *b = (expert){.n = 0};
    for (int token = 0; token < MOST; token++) {
        const uint64_t where = draw(8);
        if (where == 0 || where > 2) add_token(a, token);
        if (where == 1 || where > 2) add_token(b, token);
        common += where > 2;
    }
    return common;
}

static bool have_same_rows(const lb_flip_reach *reach, uint64_t which, const expert *a, const expert *b)
{
    const lb_shadow_rows x = {a->rows, a->n, WIDTH}, y = {b->rows, b->n, WIDTH};
    return lb_flip_reach_same_rows(reach, which, &x, &y, 0);
}

static void rows_are_the_same_but_for_what_choices_moved(void **unused)
{
    (void)unused;
    uint32_t same = 0, other = 0;
    for (int i = 0; i < CASES; i++) {
        expert a, b;
        uint8_t flipped[MOST] = {0};
        const int common = draw_experts(&a, &b), moved = (int)draw(4), width = 1 + (int)draw(2);
        for (int r = 0; r < moved; r++) flipped[r] = 1;
        lb_flip list[] = {{.op = 3, .rows = MOST, .width = width, .flipped = flipped}};
        const lb_flip_reach reach = {.flips = {list, 1}};
        const bool expected = common && a.n - common <= moved * width && b.n - common <= moved * width;
        assert_int_equal(lb_flips_count(list), moved * width);
        assert_int_equal(have_same_rows(&reach, 1, &a, &b), expected);
        assert_int_equal(have_same_rows(&reach, 2, &a, &b), common && a.n == common && b.n == common);
        same += expected, other += !expected;
    }
    assert_true(same > 500 && other > 500);
}

/* One number of a row that both sides have is wrong: no choice explains that where none moved a token. */
static void a_row_with_another_number_is_no_moved_row(void **unused)
{
    (void)unused;
    for (int i = 0; i < CASES; i++) {
        expert a, b;
        uint8_t flipped[] = {1};
        if (draw_experts(&a, &b) != a.n || a.n >= b.n) continue;
        lb_flip list[] = {{.op = 3, .rows = 1, .width = b.n - a.n, .flipped = flipped}};
        const lb_flip_reach reach = {.flips = {list, 1}};
        if (!a.n) continue;
        assert_true(have_same_rows(&reach, 1, &a, &b));
        a.rows[draw((uint64_t)a.n * WIDTH)] += 0.25;
        assert_false(have_same_rows(&reach, 1, &a, &b));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_the_same_but_for_what_choices_moved),
                                       cmocka_unit_test(a_row_with_another_number_is_no_moved_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
