/* Sources of two steps: named ones meet by name, nameless ones by their place among those that look alike. */
#include "program/source_twin.h"
#include "small_program.h"

static uint32_t add_named(small *s, int64_t storage, const char *name, int64_t rows)
{
    const uint32_t value = small_value(s, storage, 0, LB_F32, rows, 4);
    if (name) s->p->values[value].name = lb_program_string(s->p, name);
    return small_source(s, value);
}

static uint32_t value_of(const small *s, uint32_t op)
{
    return lb_op_results(s->p, &s->p->ops[op])[0];
}

static void a_named_source_is_found_wherever_it_stands(void **state)
{
    (void)state;
    small a = {.p = lb_program_new()}, b = {.p = lb_program_new()};
    const uint32_t x = add_named(&a, 1, "batch.x", 4);
    add_named(&b, 1, "batch.y", 4);
    const uint32_t twin = add_named(&b, 2, "batch.x", 4);
    assert_int_equal(lb_source_twin(a.p, value_of(&a, x), b.p), twin);
    lb_program_free(a.p), lb_program_free(b.p);
}

static void nameless_sources_meet_by_their_place_among_those_of_one_shape(void **state)
{
    (void)state;
    small a = {.p = lb_program_new()}, b = {.p = lb_program_new()};
    add_named(&a, 1, NULL, 4), add_named(&a, 2, NULL, 8);
    const uint32_t second = add_named(&a, 3, NULL, 4);
    add_named(&b, 1, NULL, 8), add_named(&b, 2, NULL, 4);
    const uint32_t twin = add_named(&b, 3, NULL, 4);
    assert_int_equal(lb_source_twin(a.p, value_of(&a, second), b.p), twin);
    lb_program_free(a.p), lb_program_free(b.p);
}

static void a_source_of_another_shape_is_no_twin(void **state)
{
    (void)state;
    small a = {.p = lb_program_new()}, b = {.p = lb_program_new()};
    const uint32_t x = add_named(&a, 1, "batch.x", 4);
    add_named(&b, 1, "batch.x", 5);
    assert_int_equal(lb_source_twin(a.p, value_of(&a, x), b.p), LB_NONE);
    lb_program_free(a.p), lb_program_free(b.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_named_source_is_found_wherever_it_stands),
        cmocka_unit_test(nameless_sources_meet_by_their_place_among_those_of_one_shape),
        cmocka_unit_test(a_source_of_another_shape_is_no_twin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
