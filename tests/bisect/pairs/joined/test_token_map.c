/* Elements of values that parts have of some tokens each: whatever the cut and the layout, each element of B meets the
 * very element of A that it is, and none that A has is left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "joined/token_map.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, LENGTH = 7, HEADS = 2, WIDTH = 5, MOST_PARTS = 8 };

/* Sequences `row` to `row + rows` and of each the tokens listed: what one part has. */
typedef struct cut {
    int64_t row, rows, length;
    int64_t at[LENGTH];
} cut;

typedef struct side {
    cut cuts[MOST_PARTS];
    uint32_t n;
    lb_token_part parts[MOST_PARTS];
    lb_layout shapes[MOST_PARTS];
    const lb_layout *layouts[MOST_PARTS];
    uint32_t numbers[MOST_PARTS];
    uint32_t token[ROWS * LENGTH], n_tokens; /* row * LENGTH + place, part by part */
} side;

static uint64_t state;

static int64_t drawn(int64_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)below);
}

static void add_cut(side *s, int64_t row, int64_t rows, const int64_t *at, int64_t length)
{
    cut *c = &s->cuts[s->n];
    *c = (cut){.row = row, .rows = rows, .length = length};
    memcpy(c->at, at, sizeof *at * (size_t)length);
    s->parts[s->n] = (lb_token_part){rows, length, s->n_tokens, 0, false};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t t = 0; t < length; t++) s->token[s->n_tokens++] = (uint32_t)((row + r) * LENGTH + at[t]);
    s->numbers[s->n] = s->n, s->n++;
}

/* All in one, by sequences, in pieces of time, or in a zigzag. */
static void draw_cuts(side *s)
{
    int64_t all[LENGTH], at = 0;
    const int64_t how = drawn(4);
    *s = (side){.n = 0};
    for (int64_t t = 0; t < LENGTH; t++) all[t] = t;
    if (how == 0) add_cut(s, 0, ROWS, all, LENGTH);
    for (int64_t r = 0; how == 1 && r < ROWS; r++) add_cut(s, r, 1, all, LENGTH);
    while (how == 2 && at < LENGTH) {
        const int64_t length = 1 + drawn(LENGTH - at < 4 ? LENGTH - at : 4);
        add_cut(s, 0, ROWS, all + at, length), at += length;
    }
    if (how == 3) {
        const int64_t outer[] = {0, 1, 5, 6}, inner[] = {2, 3, 4};
        add_cut(s, 0, ROWS, outer, 4), add_cut(s, 0, ROWS, inner, 3);
    }
}

/* (row, time, head, width), (row · time, head · width), (row, head, time, width) or (row, time, head · width). */
static void lay_out(side *s, int layout)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const int64_t rows = s->cuts[i].rows, length = s->cuts[i].length;
        const int64_t shapes[4][4] = {{rows, length, HEADS, WIDTH},
                                      {rows * length, HEADS, WIDTH},
                                      {rows, HEADS, length, WIDTH},
                                      {length, rows, HEADS, WIDTH}};
        s->shapes[i] = lb_layout_contiguous(layout == 1 ? 3 : 4, shapes[layout]), s->layouts[i] = &s->shapes[i];
    }
}

/* The element (token, head, column) that stands at a place of a part's value. */
static int64_t element_at(const side *s, int layout, uint32_t part, int64_t place)
{
    const cut *c = &s->cuts[part];
    const int64_t column = place % WIDTH;
    int64_t row, time, head;
    place /= WIDTH;
    if (layout == 2) {
        time = place % c->length, head = place / c->length % HEADS, row = place / c->length / HEADS;
    } else {
        head = place % HEADS, place /= HEADS;
        row = layout == 3 ? place % c->rows : place / c->length,
        time = layout == 3 ? place / c->rows : place % c->length;
    }
    return ((((c->row + row) * LENGTH + c->at[time]) * HEADS) + head) * WIDTH + column;
}

static void map_tokens(lb_token_map *m, side *a, side *b)
{
    side *sides[] = {a, b};
    for (int k = 0; k < 2; k++) {
        m->parts[k] = sides[k]->parts, m->n_parts[k] = sides[k]->n, m->n[k] = sides[k]->n_tokens;
        m->beside[k] = malloc(sizeof *m->beside[k] * ROWS * LENGTH);
        for (uint32_t i = 0; i < sides[k]->n_tokens; i++) {
            m->beside[k][i] = LB_NONE;
            for (uint32_t j = 0; j < sides[!k]->n_tokens; j++)
                if (sides[k]->token[i] == sides[!k]->token[j]) m->beside[k][i] = j;
        }
        m->end_of[k] = malloc(sizeof *m->end_of[k] * ROWS * LENGTH);
    }
    lb_token_map_judge(m);
}

static void release(lb_token_map *m)
{
    for (int k = 0; k < 2; k++) free(m->beside[k]), free(m->end_of[k]);
}

static void every_element_meets_the_one_that_it_is(void **unused)
{
    uint32_t told = 0;
    (void)unused;
    for (uint32_t trial = 0; trial < 2000; trial++) {
        side a, b;
        lb_token_map map = {0};
        lb_token_run *runs;
        uint32_t n;
        int64_t met = 0;
        const int layouts[] = {(int)drawn(4), (int)drawn(4)};
        draw_cuts(&a), draw_cuts(&b), lay_out(&a, layouts[0]), lay_out(&b, layouts[1]), map_tokens(&map, &a, &b);
        const lb_token_group x = {a.layouts, a.numbers, a.n}, y = {b.layouts, b.numbers, b.n};
        assert_true(lb_token_map_runs(&map, &x, &y, false, &runs, &n));
        for (uint32_t i = 0; i < n; i++)
            for (int64_t e = 0; e < runs[i].n; e++, met++)
                assert_int_equal(element_at(&a, layouts[0], runs[i].a, runs[i].from + e * runs[i].from_stride),
                                 element_at(&b, layouts[1], runs[i].b, runs[i].to + e * runs[i].to_stride));
        assert_true(!n || met == ROWS * LENGTH * HEADS * WIDTH);
        told += n > 0;
        free(runs), release(&map);
    }
    assert_true(told > 1500); /* of some cuts the shapes leave two readings */
}

static void the_last_token_of_each_row_may_be_all(void **unused)
{
    const int64_t all[] = {0, 1, 2, 3, 4, 5, 6};
    side a = {.n = 0}, b = {.n = 0};
    lb_token_map map = {0};
    lb_token_run *runs;
    uint32_t n;
    int64_t met = 0;
    (void)unused;
    add_cut(&a, 0, ROWS, all, LENGTH), add_cut(&b, 0, ROWS, all, 5), add_cut(&b, 0, ROWS, all + 5, 1);
    lay_out(&a, 0), map_tokens(&map, &a, &b);
    b.shapes[0] = b.shapes[1] = lb_layout_contiguous(4, (const int64_t[]){ROWS, 1, HEADS, WIDTH});
    b.layouts[0] = &b.shapes[0], b.layouts[1] = &b.shapes[1];
    const lb_token_group x = {a.layouts, a.numbers, a.n}, y = {b.layouts, b.numbers, b.n};
    assert_true(lb_token_map_runs(&map, &x, &y, false, &runs, &n) && !runs);
    assert_true(lb_token_map_runs(&map, &x, &y, true, &runs, &n));
    for (uint32_t i = 0; i < n; i++)
        for (int64_t e = 0; e < runs[i].n; e++, met++) {
            const int64_t place = runs[i].to + e * runs[i].to_stride, row = place / (HEADS * WIDTH),
                          expected = ((row * LENGTH + (runs[i].b ? 5 : 4)) * HEADS * WIDTH) + place % (HEADS * WIDTH);
            assert_int_equal(element_at(&a, 0, 0, runs[i].from + e * runs[i].from_stride), expected);
        }
    assert_int_equal(met, 2 * ROWS * HEADS * WIDTH);
    free(runs), release(&map);
}

/* Sequences of drawn lengths, one a part on one side, one behind the other in one row on the other: the last token of
 * each is known there, too, and a result that has these alone meets. */
static void a_packed_row_has_an_end_for_each_sequence(void **unused)
{
    (void)unused;
    for (uint32_t trial = 0; trial < 200; trial++) {
        int64_t length[ROWS], all = 0;
        lb_token_map map = {.sound = false};
        lb_token_part alone[ROWS];
        for (int r = 0; r < ROWS; all += length[r++]) {
            length[r] = 2 + drawn(LENGTH - 1);
            alone[r] = (lb_token_part){1, length[r], (uint32_t)all, 0, false};
        }
        lb_token_part packed = {1, all, 0, 0, false};
        map.parts[0] = alone, map.parts[1] = &packed, map.n_parts[0] = ROWS, map.n_parts[1] = 1;
        for (int k = 0; k < 2; k++) {
            map.n[k] = (uint32_t)all;
            map.beside[k] = malloc(sizeof *map.beside[k] * (size_t)all);
            map.end_of[k] = malloc(sizeof *map.end_of[k] * (size_t)all);
            for (uint32_t i = 0; i < all; i++) map.beside[k][i] = i;
        }
        lb_token_map_judge(&map);
        assert_true(map.sound);
        assert_int_equal(packed.ends, ROWS);
        int64_t end = -1;
        for (uint32_t r = 0; r < ROWS; r++) {
            end += length[r];
            assert_int_equal(map.end_of[1][end], r);
            assert_int_equal(map.end_of[0][end], 0);
            assert_int_equal(alone[r].ends, 1);
        }
        release(&map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_meets_the_one_that_it_is),
        cmocka_unit_test(the_last_token_of_each_row_may_be_all),
        cmocka_unit_test(a_packed_row_has_an_end_for_each_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
