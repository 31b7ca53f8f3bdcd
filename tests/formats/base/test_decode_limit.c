/* The accounts of what is decoded: room and ratio, one file and all of them, what is dropped, and JSON. */
#include "cmocka_first.h"

#include <lastbit/decode_limit.h>

#include <lastbit/json_text.h>
#include <string.h>

static int reset(void **state)
{
    (void)state;
    lb_decode_limit_set(LB_DECODE_LIMIT_ROOM, LB_DECODE_LIMIT_RATIO);
    return 0;
}

static void what_is_held_grows_to_room_and_ratio(void **state)
{
    (void)state;
    lb_decode_limit_account file = {0};
    lb_err err = LB_ERR_INIT;
    lb_decode_limit_set(1000, 10);
    lb_decode_limit_open(&file, 50);
    assert_int_equal(lb_decode_limit_hold(&file, 1500, "x.npz", &err), LB_OK);
    assert_int_equal(lb_decode_limit_hold(&file, 1, "x.npz: member 'w'", &err), LB_ERR_LIMIT);
    assert_non_null(strstr(err.message, "x.npz: member 'w'"));
    assert_non_null(strstr(err.message, "--max-decoded"));
    lb_decode_limit_drop(&file, 1500);
    assert_int_equal(lb_decode_limit_hold(&file, 1500, "x", NULL), LB_OK);
    lb_decode_limit_close(&file);
    assert_int_equal(file.held + file.stored + file.passed, 0);
}

static void refusals_hold_nothing(void **state)
{
    (void)state;
    lb_decode_limit_account file = {0};
    lb_decode_limit_set(1000, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(lb_decode_limit_hold(&file, UINT64_MAX, "x", NULL), LB_ERR_LIMIT);
    for (int i = 0; i < 100; i++) assert_int_equal(lb_decode_limit_hold(&file, 1001, "x", NULL), LB_ERR_LIMIT);
    assert_int_equal(lb_decode_limit_hold(&file, 1000, "x", NULL), LB_OK);
    lb_decode_limit_close(&file);
}

static void many_small_files_share_one_room(void **state)
{
    (void)state;
    lb_decode_limit_account files[10] = {{0}};
    unsigned held = 0;
    lb_decode_limit_set(1000, 1);
    for (int i = 0; i < 10; i++) lb_decode_limit_open(&files[i], 10);
    for (int i = 0; i < 10; i++) held += lb_decode_limit_hold(&files[i], 500, "x", NULL) == LB_OK;
    assert_int_equal(held, 2);
    for (int i = 0; i < 10; i++) lb_decode_limit_close(&files[i]);
    assert_int_equal(lb_decode_limit_hold(&files[0], 1000, "x", NULL), LB_OK); /* closed files hold nothing */
    lb_decode_limit_close(&files[0]);
}

static void what_passes_has_an_end_too(void **state)
{
    (void)state;
    lb_decode_limit_account file = {0};
    lb_decode_limit_set(1000, 0);
    for (int i = 0; i < LB_DECODE_LIMIT_PASSES; i++)
        assert_int_equal(lb_decode_limit_pass(&file, 1000, "x", NULL), LB_OK);
    assert_int_equal(lb_decode_limit_pass(&file, 1, "x", NULL), LB_ERR_LIMIT);
    lb_decode_limit_set(UINT64_MAX, 0);
    assert_int_equal(lb_decode_limit_pass(&file, UINT64_MAX / 2, "x", NULL), LB_OK);
    lb_decode_limit_close(&file);
}

static void json_is_counted_while_it_is_parsed(void **state)
{
    (void)state;
    json_error_t why;
    static char text[60001];
    memset(text, '[', 1);
    for (int i = 1; i < 59999; i += 2) memcpy(text + i, "1,", 2);
    memcpy(text + 59999, "1]", 2);
    assert_null(lb_decode_limit_json(text, 60001, 0, 100000, &why));
    assert_non_null(strstr(why.text, "--max-decoded"));
    assert_int_equal(lb_decode_limit_json_status(LB_ERR_CORRUPT), LB_ERR_LIMIT);
    json_t *whole = lb_decode_limit_json(text, 60001, 0, 10 << 20, &why);
    assert_int_equal(json_array_size(whole), 30000);
    assert_int_equal(lb_decode_limit_json_status(LB_ERR_CORRUPT), LB_ERR_CORRUPT);
    json_decref(whole);
    assert_null(lb_decode_limit_json("[1,", 3, 0, 100000, &why));
    assert_int_equal(lb_decode_limit_json_status(LB_ERR_CORRUPT), LB_ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_held_grows_to_room_and_ratio, reset),
        cmocka_unit_test_teardown(refusals_hold_nothing, reset),
        cmocka_unit_test_teardown(many_small_files_share_one_room, reset),
        cmocka_unit_test_teardown(what_passes_has_an_end_too, reset),
        cmocka_unit_test_teardown(json_is_counted_while_it_is_parsed, reset),
    };
    lb_decode_limit_count_json();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
