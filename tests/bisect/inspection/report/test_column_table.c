/* Lists as columns: what stays, what is counted, what is cut. */
#include "cmocka_first.h"

#include "report/column_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *compact(json_t *value)
{
    size_t budget = 1 << 30;
    json_t *small = lb_column_compact(value, &budget);
    json_decref(value);
    return small;
}

static json_t *rows_of(int n, const char *verdict)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:i}", "layer", i % 2 ? "odd" : "even", "verdict", verdict, "row", i));
    return list;
}

static void short_lists_stay_lists(void **state)
{
    (void)state;
    json_t *small = compact(rows_of(LB_COLUMN_ROWS - 1, "rounding"));
    assert_true(json_is_array(small));
    assert_int_equal(json_array_size(small), LB_COLUMN_ROWS - 1);
    json_decref(small);
}

static void a_list_becomes_columns_with_each_word_once(void **state)
{
    (void)state;
    json_t *small = compact(rows_of(100, "rounding")), *columns = json_object_get(small, "columns");
    json_t *layers = json_object_get(columns, "layer"), *rows = json_object_get(columns, "row");
    assert_int_equal(json_integer_value(json_object_get(small, "rows")), 100);
    assert_int_equal(json_integer_value(json_object_get(small, "of")), 100);
    assert_int_equal(json_array_size(json_object_get(layers, "words")), 2);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(json_integer_value(json_array_get(json_object_get(layers, "at"), i)), i % 2);
        assert_int_equal(json_integer_value(json_array_get(rows, i)), i);
    }
    json_decref(small);
}

static void keys_that_some_rows_lack_are_null_there(void **state)
{
    (void)state;
    json_t *list = rows_of(40, "noise");
    json_object_set_new(json_array_get(list, 7), "op", json_string("aten::mm"));
    json_object_set_new(json_array_get(list, 7), "inputs", json_pack("[i, i]", 1, 2));
    json_t *small = compact(list), *columns = json_object_get(small, "columns");
    json_t *ops = json_object_get(json_object_get(columns, "op"), "at"), *inputs = json_object_get(columns, "inputs");
    for (size_t i = 0; i < 40; i++) {
        assert_int_equal(json_integer_value(json_array_get(ops, i)), i == 7 ? 0 : -1);
        assert_int_equal(json_array_size(json_array_get(inputs, i)), i == 7 ? 2 : 0);
    }
    json_decref(small);
}

static void the_worst_rows_stay_in_their_order(void **state)
{
    (void)state;
    json_t *list = rows_of(LB_ROWS_KEPT + 500, "rounding");
    json_object_set_new(json_array_get(list, LB_ROWS_KEPT + 400), "verdict", json_string("diverged"));
    json_object_set_new(json_array_get(list, LB_ROWS_KEPT + 300), "rel_l2", json_real(0.5));
    json_t *small = compact(list), *rows = json_object_get(json_object_get(small, "columns"), "row");
    assert_int_equal(json_integer_value(json_object_get(small, "rows")), LB_ROWS_KEPT);
    assert_int_equal(json_integer_value(json_object_get(small, "of")), LB_ROWS_KEPT + 500);
    assert_int_equal(json_integer_value(json_array_get(rows, LB_ROWS_KEPT - 1)), LB_ROWS_KEPT + 400);
    assert_int_equal(json_integer_value(json_array_get(rows, LB_ROWS_KEPT - 2)), LB_ROWS_KEPT + 300);
    assert_int_equal(json_integer_value(json_array_get(rows, LB_ROWS_KEPT - 3)), LB_ROWS_KEPT - 3);
    json_decref(small);
}

static void lists_share_what_they_may_take(void **state)
{
    (void)state;
    size_t budget = 4000;
    json_t *both = json_pack("{s:o, s:o}", "a", rows_of(1000, "rounding"), "b", rows_of(1000, "rounding"));
    json_t *small = lb_column_compact(both, &budget);
    const json_int_t a = json_integer_value(json_object_get(json_object_get(small, "a"), "rows"));
    const json_int_t b = json_integer_value(json_object_get(json_object_get(small, "b"), "rows"));
    assert_true(a > 100 && a < 250 && b == 1);
    assert_int_equal(budget, 0);
    json_decref(both), json_decref(small);
}

static void texts_are_cut_between_characters(void **state)
{
    (void)state;
    char text[3 * LB_TEXT_KEPT + 30];
    size_t n = 0;
    for (int i = 0; i < LB_TEXT_KEPT + 5; i++) n += (size_t)sprintf(text + n, "€");
    json_t *whole = json_stringn(text, 3 * LB_TEXT_KEPT), *small = lb_column_text_cut(whole),
           *longer = json_string(text);
    assert_true(json_equal(small, whole));
    json_decref(whole), json_decref(small);
    small = lb_column_text_cut(longer);
    char end[40];
    snprintf(end, sizeof end, "€… (%d characters)", LB_TEXT_KEPT + 5);
    assert_string_equal(json_string_value(small) + json_string_length(small) - strlen(end), end);
    json_decref(small), json_decref(longer);
}

static void numbers_keep_six_digits_and_times_their_seconds(void **state)
{
    (void)state;
    char *text;
    json_t *small = compact(json_pack("[f, f, f, f]", 0.123456789, 1795273072.27606, 1.23456789e300, -27817450.0));
    text = json_dumps(small, JSON_COMPACT | JSON_REAL_PRECISION(6));
    assert_string_equal(text, "[0.123457,1795273072,1.23457e300,-27817450]");
    free(text);
    json_decref(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_lists_stay_lists),
        cmocka_unit_test(a_list_becomes_columns_with_each_word_once),
        cmocka_unit_test(keys_that_some_rows_lack_are_null_there),
        cmocka_unit_test(the_worst_rows_stay_in_their_order),
        cmocka_unit_test(lists_share_what_they_may_take),
        cmocka_unit_test(texts_are_cut_between_characters),
        cmocka_unit_test(numbers_keep_six_digits_and_times_their_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
