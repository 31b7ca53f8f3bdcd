#include "cmocka_first.h"
#include "program/shard_cover.h"

/* Rows [from, from + size) of [6, 2]. */
static uint32_t add_rows(lb_program *program, int64_t from, int64_t size)
{
    const lb_extent extents[] = {{0, 6, from, size}, {1, 2, 0, 2}};
    const int64_t shape[] = {size, 2};
    lb_value v = {.storage = program->n_values, .dtype = LB_F32, .name = LB_NONE, .statistics = LB_NONE};
    v.layout = lb_layout_contiguous(2, shape);
    const uint32_t value = lb_program_add_value(program, &v);
    const lb_shard shard = {.value = value,
                            .name = LB_NONE,
                            .mesh = LB_NONE,
                            .first_extent = lb_program_add_extents(program, extents, 2),
                            .extents = 2};
    lb_program_add_shard(program, &shard);
    return value;
}

static const int64_t whole_shape[] = {6, 2};

static void parts_are_put_in_order_and_copies_left_out(void **state)
{
    (void)state;
    lb_program *program = lb_program_new();
    const lb_layout whole = lb_layout_contiguous(2, whole_shape);
    const uint32_t values[] = {add_rows(program, 4, 2), add_rows(program, 0, 3), add_rows(program, 0, 3),
                               add_rows(program, 3, 1)};
    uint32_t order[4];
    assert_int_equal(lb_shard_cover(program, &whole, values, 4, order), 3);
    assert_true(order[0] == 1 && order[1] == 3 && order[2] == 0);
    assert_true(lb_shard_is_copy(program, values[1], program, values[2]));
    assert_false(lb_shard_is_copy(program, values[0], program, values[1]));
    lb_program_free(program);
}

static void what_lacks_a_part_or_is_of_another_tensor_covers_nothing(void **state)
{
    (void)state;
    lb_program *program = lb_program_new();
    const int64_t others[] = {6, 4};
    const lb_layout whole = lb_layout_contiguous(2, whole_shape), other = lb_layout_contiguous(2, others);
    const uint32_t values[] = {add_rows(program, 0, 3), add_rows(program, 4, 2), add_rows(program, 3, 3),
                               add_rows(program, 0, 6)};
    uint32_t order[4];
    assert_int_equal(lb_shard_cover(program, &whole, values, 2, order), 0);
    assert_int_equal(lb_shard_cover(program, &whole, values, 0, order), 0);
    assert_int_equal(lb_shard_cover(program, &whole, values, 4, order), 0); /* the last has all of it */
    assert_int_equal(lb_shard_cover(program, &other, (uint32_t[]){values[0], values[2]}, 2, order), 0);
    assert_int_equal(lb_shard_cover(program, &whole, (uint32_t[]){values[0], values[2]}, 2, order), 2);
    lb_program_free(program);
}

static void terms_of_a_sum_are_no_copies(void **state)
{
    (void)state;
    lb_program *program = lb_program_new();
    const uint32_t ranks[] = {0, 1};
    const lb_mesh_axis axis = {LB_NONE, 2};
    const lb_placement partial = {LB_PLACEMENT_PARTIAL, 0, lb_program_string(program, "sum")};
    const uint32_t a = add_rows(program, 0, 6), b = add_rows(program, 0, 6);
    assert_true(lb_shard_is_copy(program, a, program, b));
    program->shards[0].mesh = lb_program_mesh(program, &axis, 1, ranks, 2);
    program->shards[0].first_placement = lb_program_add_placements(program, &partial, 1),
    program->shards[0].placements = 1;
    assert_int_equal(lb_program_validate(program, NULL), LB_OK);
    assert_false(lb_shard_is_copy(program, a, program, b));
    lb_program_free(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_put_in_order_and_copies_left_out),
        cmocka_unit_test(what_lacks_a_part_or_is_of_another_tensor_covers_nothing),
        cmocka_unit_test(terms_of_a_sum_are_no_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
