#include "cmocka_first.h"
#include "program/shard_axes.h"

#include <stdlib.h>

/* Value k is what rank k has. */
static uint32_t own_part(const void *context, uint32_t value)
{
    (void)context;
    return value;
}

static void add_part(lb_program *program, int64_t rows, int64_t columns, const lb_extent *extents, uint32_t n)
{
    const int64_t shape[] = {rows, columns};
    lb_value v = {.storage = program->n_values, .dtype = LB_F32, .name = LB_NONE, .statistics = LB_NONE};
    v.layout = lb_layout_contiguous(2, shape);
    const uint32_t value = lb_program_add_value(program, &v);
    const lb_shard shard = {.value = value,
                            .name = LB_NONE,
                            .mesh = LB_NONE,
                            .first_extent = lb_program_add_extents(program, extents, n),
                            .extents = n};
    lb_program_add_shard(program, &shard);
}

/* [3, 8]: rank 0 has columns 0, 1, 6, 7, rank 1 has 2 to 5. */
static lb_program *zigzag(void)
{
    static const lb_extent outside[] = {{0, 3, 0, 3}, {1, 8, 0, 2}, {1, 8, 6, 2}},
                           inside[] = {{0, 3, 0, 3}, {1, 8, 2, 4}};
    lb_program *program = lb_program_new();
    add_part(program, 3, 4, outside, 3), add_part(program, 3, 4, inside, 2);
    return program;
}

static void a_zigzag_is_an_axis_in_the_order_of_the_whole(void **state)
{
    (void)state;
    lb_program *program = zigzag();
    lb_shard_axes axes;
    int64_t inner, sizes[] = {4, 4}, flat[] = {12, 12}, others[] = {6, 2};
    assert_int_equal(lb_program_validate(program, NULL), LB_OK);
    assert_int_equal(lb_shard_axes_find(program, 2, own_part, NULL, &axes, NULL), LB_OK);
    assert_int_equal(axes.n, 1);
    const lb_shard_axis *axis = lb_shard_axes_match(&axes, 8, sizes, &inner);
    assert_non_null(axis);
    assert_true(inner == 1 && axis->n == 3 && axis->outer == 3);
    const lb_shard_range expected[] = {{0, 0, 0, 2}, {1, 0, 2, 4}, {0, 2, 6, 2}};
    for (uint32_t i = 0; i < 3; i++) {
        const lb_shard_range *r = &axis->ranges[i];
        assert_true(r->part == expected[i].part && r->at == expected[i].at && r->from == expected[i].from &&
                    r->size == expected[i].size);
    }
    assert_ptr_equal(lb_shard_axes_match(&axes, 24, flat, &inner),
                     axis); /* [3 * 8]: what stands before it repeats it */
    assert_int_equal(inner, 1);
    assert_null(lb_shard_axes_match(&axes, 8, others, &inner));
    assert_null(lb_shard_axes_match(&axes, 16, (int64_t[]){8, 8}, &inner)); /* twice, but of three rows */
    assert_null(lb_shard_axes_match(&axes, 9, sizes, &inner));
    lb_shard_axes_release(&axes);
    lb_program_free(program);
}

static void elements_behind_the_axis_are_flattened_with_it(void **state)
{
    (void)state;
    static const lb_extent outside[] = {{0, 8, 0, 2}, {0, 8, 6, 2}, {1, 3, 0, 3}},
                           inside[] = {{0, 8, 2, 4}, {1, 3, 0, 3}};
    lb_program *program = lb_program_new();
    lb_shard_axes axes;
    int64_t inner;
    add_part(program, 4, 3, outside, 3), add_part(program, 4, 3, inside, 2);
    assert_int_equal(lb_shard_axes_find(program, 2, own_part, NULL, &axes, NULL), LB_OK);
    assert_non_null(lb_shard_axes_match(&axes, 24, (int64_t[]){12, 12}, &inner));
    assert_int_equal(inner, 3);
    lb_shard_axes_release(&axes);
    lb_program_free(program);
}

static void parts_in_their_own_order_or_with_gaps_are_none(void **state)
{
    (void)state;
    static const lb_extent rows[][2] = {
        {{0, 8, 0, 4}, {1, 3, 0, 3}}, {{0, 8, 4, 4}, {1, 3, 0, 3}}, {{0, 8, 3, 4}, {1, 3, 0, 3}}};
    for (int second = 1; second < 3; second++) {
        lb_program *program = lb_program_new();
        lb_shard_axes axes;
        add_part(program, 4, 3, rows[0], 2), add_part(program, 4, 3, rows[second], 2);
        assert_int_equal(lb_shard_axes_find(program, 2, own_part, NULL, &axes, NULL), LB_OK);
        assert_int_equal(axes.n, 0);
        lb_shard_axes_release(&axes);
        lb_program_free(program);
    }
    lb_program *half = zigzag();
    lb_shard_axes axes;
    half->n_shards = 1; /* what the second rank has nobody said */
    assert_int_equal(lb_shard_axes_find(half, 2, own_part, NULL, &axes, NULL), LB_OK);
    assert_int_equal(axes.n, 0);
    lb_shard_axes_release(&axes);
    lb_program_free(half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zigzag_is_an_axis_in_the_order_of_the_whole),
        cmocka_unit_test(elements_behind_the_axis_are_flattened_with_it),
        cmocka_unit_test(parts_in_their_own_order_or_with_gaps_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
