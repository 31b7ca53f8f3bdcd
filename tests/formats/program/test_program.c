#include "cmocka_first.h"
#include "program_sample.h"

#include <stdio.h>

static const float data[6] = {1, 2, 3, 4, 5, 6};

static void strings_and_scopes_are_interned(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    assert_int_equal(lb_program_string(p, ""), 0);
    assert_int_equal(lb_program_string(p, NULL), LB_NONE);
    char text[32];
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 1; i < 5000; i++) {
            snprintf(text, sizeof text, "name.%u", i);
            assert_int_equal(lb_program_string(p, text), i);
        }
    assert_int_equal(p->n_strings, 5000);
    assert_string_equal(lb_program_text(p, 4999), "name.4999");
    assert_string_equal(lb_program_text(p, LB_NONE), "");
    uint32_t a = lb_program_scope(p, "model.a", NULL, 0);
    assert_int_equal(a, 1);
    assert_int_equal(lb_program_scope(p, "model.a", "Linear", 0), a);
    assert_string_equal(lb_program_text(p, p->scopes[a].class_name), "Linear");
    assert_int_equal(lb_program_scope(p, "", NULL, LB_NONE), 0);
    lb_program_free(p);
}

static void a_text_stays_where_it_is_while_the_program_grows(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const char *first = lb_program_text(p, lb_program_string(p, "first"));
    char *large = malloc(200000);
    memset(large, 'x', 199999);
    large[199999] = '\0';
    assert_int_not_equal(lb_program_string(p, large), LB_NONE);
    char text[32];
    for (uint32_t i = 1; i < 20000; i++) snprintf(text, sizeof text, "n%u", i), lb_program_string(p, text);
    assert_ptr_equal(first, lb_program_text(p, 1));
    assert_string_equal(lb_program_text(p, 2), large);
    free(large);
    lb_program_free(p);
}

static void a_copy_is_deep_and_interns_on(void **state)
{
    (void)state;
    lb_program *p = sample_program(3, 1, data), *copy = lb_program_copy(p);
    p->strings[1][0] = '#';
    p->values[0].version = 99;
    lb_program_free(p);
    assert_int_equal(lb_program_validate(copy, NULL), LB_OK);
    assert_int_equal(copy->values[0].version, 0);
    uint32_t rows = copy->n_strings;
    assert_true(lb_program_string(copy, "aten::mm") < rows);
    assert_int_equal(lb_program_string(copy, "something new"), rows);
    assert_string_equal(lb_op_name(copy, &copy->ops[2]), "aten::mm");
    assert_string_equal(lb_op_layer(copy, &copy->ops[2]), "model.layers.0");
    assert_string_equal(lb_op_class(copy, &copy->ops[2]), "Block");
    lb_program_free(copy);
}

static void collect(void *context, uint32_t value)
{
    uint32_t *seen = context;
    seen[++seen[0]] = value;
}

static void inputs_are_visited_in_schema_order_lists_entered(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data);
    uint32_t seen[8] = {0};
    lb_op_each_input(p, &p->ops[2], collect, seen);
    assert_int_equal(seen[0], 3);
    assert_int_equal(seen[1], 1);
    assert_int_equal(seen[2], 0);
    assert_int_equal(seen[3], 0);
    lb_program_free(p);
}

static void what_an_op_reads_and_writes_in_a_storage_is_found(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data);
    lb_op *mm = &p->ops[2]; /* reads values 1 and 0, the latter again in a list */
    const uint32_t y = lb_op_results(p, mm)[0];
    assert_int_equal(lb_op_reads(p, mm, p->values[0].storage), 0);
    assert_int_equal(lb_op_reads(p, mm, p->values[1].storage), 1);
    assert_int_equal(lb_op_reads(p, mm, p->values[y].storage), LB_NONE);
    assert_int_equal(lb_op_writes(p, mm, p->values[y].storage), LB_NONE); /* a result is no write */
    mm->written = 1;
    assert_int_equal(lb_op_writes(p, mm, p->values[y].storage), y);
    assert_int_equal(lb_op_writes(p, mm, p->values[0].storage), LB_NONE);
    p->values[0].storage = p->values[1].storage; /* of two, the first in schema order */
    assert_int_equal(lb_op_reads(p, mm, p->values[1].storage), 1);
    lb_program_free(p);
}

static void a_parameter_belongs_to_the_module_that_its_name_begins_with(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data);
    assert_string_equal(lb_program_text(p, p->scopes[lb_program_owner(p, "model.layers.0.weight")].path),
                        "model.layers.0");
    assert_string_equal(lb_program_text(p, p->scopes[lb_program_owner(p, "model.weight")].path), "model");
    assert_int_equal(lb_program_owner(p, "model.layers.01.weight"), 0);
    assert_int_equal(lb_program_owner(p, "weight"), 0);
    lb_program_free(p);
}

static uint32_t next(void *context, uint32_t value)
{
    (void)context;
    return value + 10;
}

static uint32_t same_text(void *context, uint32_t string)
{
    const lb_program *const *programs = context;
    return lb_program_string((lb_program *)programs[1], lb_program_text(programs[0], string));
}

static void args_are_copied_with_their_lists(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data), *out = lb_program_new(), *both[] = {p, out};
    lb_program_string(out, "another");
    const uint32_t first = lb_program_copy_args(out, p, lb_op_args(p, &p->ops[2]), p->ops[2].args,
                                                &(lb_arg_rename){next, same_text, both});
    const lb_arg *copy = out->args + first, *list = out->args + copy[6].u.first, *parts = out->args + copy[7].u.first;
    assert_int_equal(copy[0].u.value, 11);
    assert_int_equal(copy[1].u.value, 10);
    assert_int_equal(copy[4].u.i, LB_BF16);
    assert_string_equal(lb_program_text(out, copy[5].u.string), "cpu");
    assert_int_equal(copy[6].count, 2);
    assert_true(list[0].u.i == INT64_MIN);
    assert_int_equal(list[1].u.value, 10);
    assert_true(parts[0].u.f == 0.1);
    lb_program_free(p);
    lb_program_free(out);
}

/* Every row index pushed out of range is named in the error. */
#define REFUSED(change, undo, text)                                                                                    \
    do {                                                                                                               \
        lb_err err = LB_ERR_INIT;                                                                                      \
        change;                                                                                                        \
        assert_int_equal(lb_program_validate(p, &err), LB_ERR_CORRUPT);                                                \
        if (!strstr(err.message, text)) fail_msg("'%s' does not say '%s'", err.message, text);                         \
        undo;                                                                                                          \
        assert_int_equal(lb_program_validate(p, NULL), LB_OK);                                                         \
    } while (0)
#define REFUSED_VALUE(place, broken, text)                                                                             \
    do {                                                                                                               \
        __typeof__(place) kept = place;                                                                                \
        REFUSED(place = broken, place = kept, text);                                                                   \
    } while (0)

static void a_broken_rule_is_named_by_table_row_and_field(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data);
    assert_int_equal(lb_program_validate(p, NULL), LB_OK);
    REFUSED_VALUE(p->ops[2].name, p->n_strings, "ops[2].name");
    REFUSED_VALUE(p->ops[2].scope, 77, "ops[2].scope");
    REFUSED_VALUE(p->ops[2].first_arg, UINT32_MAX, "ops[2].first_arg");
    REFUSED_VALUE(p->ops[2].args, UINT32_MAX, "ops[2].first_arg");
    REFUSED_VALUE(p->ops[2].results, p->n_refs + 1, "ops[2].results");
    REFUSED_VALUE(p->ops[2].phase, 9, "ops[2].phase");
    REFUSED_VALUE(p->ops[0].results, 0, "ops[0].results");
    REFUSED_VALUE(p->args[0].tag, 50, "args[0].tag");
    REFUSED_VALUE(p->args[10].u.first, 10, "args[10].list"); /* a list that holds itself */
    REFUSED_VALUE(p->args[11].count, 1, "args[11].complex");
    REFUSED_VALUE(p->args[4].u.value, 3, "args[4].value");
    REFUSED_VALUE(p->args[8].u.i, 200, "args[8].dtype");
    REFUSED_VALUE(p->values[1].dtype, 0, "values[1].dtype");
    REFUSED_VALUE(p->values[1].layout.ndim, 17, "values[1].layout.ndim");
    REFUSED_VALUE(p->values[1].layout.shape[0], INT64_MAX, "values[1]");
    REFUSED_VALUE(p->values[1].layout.stride[0], -100, "values[1]");
    REFUSED_VALUE(p->values[1].layout.offset, INT64_MAX - 10, "values[1]");
    REFUSED_VALUE(p->values[1].statistics, 3, "values[1].statistics");
    REFUSED_VALUE(p->scopes[1].parent, 2, "scopes[1].parent");
    REFUSED_VALUE(p->boundaries[0].op, p->n_ops + 1, "boundaries[0].op");
    REFUSED_VALUE(p->collectives[0].ranks, 100, "collectives[0].ranks");
    REFUSED_VALUE(p->routings[0].slots, 55, "routings[0].slots");
    REFUSED_VALUE(p->scalars[1].name, LB_NONE, "scalars[1].name");
    REFUSED_VALUE(p->groups[0].ops, 2, "groups[0].ops");
    REFUSED_VALUE(p->group_params[0].name, 1000, "group_params[0].name");
    REFUSED_VALUE(p->notices[0].value, 1000, "notices[0].value");
    REFUSED_VALUE(p->shard, 1000, "shard");
    REFUSED_VALUE(p->rank, -2, "rank");
    lb_program_free(p);
}

/* Eight rows that name each other would be a million visits: refused by size, not by patience. */
static void lists_that_multiply_are_refused(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    lb_arg leaf[2] = {{.tag = LB_ARG_NONE}, {.tag = LB_ARG_NONE}};
    uint32_t first = lb_program_add_args(p, leaf, 2);
    for (int level = 0; level < 14; level++) {
        lb_arg twice[2] = {{.tag = LB_ARG_LIST, .count = 2, .u.first = first},
                           {.tag = LB_ARG_LIST, .count = 2, .u.first = first}};
        first = lb_program_add_args(p, twice, 2);
    }
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_program_validate(p, &err), LB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "expands"));
    lb_program_free(p);
}

static void a_name_goes_on_behind_a_dot_only(void **state)
{
    (void)state;
    assert_true(lb_program_name_extends("layers.1", "layers.1"));
    assert_true(lb_program_name_extends("layers.1.mlp", "layers.1"));
    assert_false(lb_program_name_extends("layers.10", "layers.1"));
    assert_false(lb_program_name_extends("layers", "layers.1"));
    assert_true(lb_program_name_extends("aten::sum.dim_IntList", "aten::sum"));
}

static void a_group_knows_its_parameters_and_its_options(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const lb_scalar loss = {.name = lb_program_string(p, "loss")}, rate = {.name = lb_program_string(p, "lr")};
    lb_program_add_scalar(p, &loss);
    const lb_group_param param = {.name = lb_program_string(p, "weight"), .storage = 7};
    const lb_group group = {.first_option = lb_program_add_scalar(p, &rate),
                            .options = 1,
                            .first_param = lb_program_add_group_param(p, &param),
                            .params = 1};
    lb_program_add_group(p, &group);
    assert_ptr_equal(lb_program_group_of(p, 7), &p->groups[0]);
    assert_null(lb_program_group_of(p, 8));
    assert_false(lb_program_is_option(p, 0));
    assert_true(lb_program_is_option(p, 1));
    lb_program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_and_scopes_are_interned),
        cmocka_unit_test(a_text_stays_where_it_is_while_the_program_grows),
        cmocka_unit_test(a_copy_is_deep_and_interns_on),
        cmocka_unit_test(inputs_are_visited_in_schema_order_lists_entered),
        cmocka_unit_test(what_an_op_reads_and_writes_in_a_storage_is_found),
        cmocka_unit_test(a_parameter_belongs_to_the_module_that_its_name_begins_with),
        cmocka_unit_test(a_name_goes_on_behind_a_dot_only),
        cmocka_unit_test(a_group_knows_its_parameters_and_its_options),
        cmocka_unit_test(args_are_copied_with_their_lists),
        cmocka_unit_test(a_broken_rule_is_named_by_table_row_and_field),
        cmocka_unit_test(lists_that_multiply_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
