/* Readers of lines: what they take, what they refuse, and how numbers are rounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "watch/log_line.h"
#include "watch/log_number.h"
#include "watch/log_object.h"
#include "watch/log_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double read(const char *text, size_t taken)
{
    lb_log_number n;
    assert_int_equal(lb_log_number_read(text, strlen(text), &n), taken);
    return n.number;
}

static void numbers_are_those_of_strtod(void **state)
{
    (void)state;
    static const char *const texts[] = {"0.1",         "4.2371", "1e-3", "-2.5E+10", "123456789012345",
                                        "0.000001234", "3",      "1e22", "0.55"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(read(texts[i], strlen(texts[i])) == strtod(texts[i], NULL));
    assert_true(read("254,128", 7) == 254128);
    assert_true(read("1,254,128.5x", 11) == 1254128.5);
    assert_true(read("1,25", 1) == 1);
    assert_true(isnan(read("nan", 3)) && isnan(read("NaN", 3)));
    assert_true(read("-Infinity", 9) == -INFINITY && read("inf", 3) == INFINITY);
    assert_true(read("1e999", 5) == INFINITY);
    assert_true(read("1e", 1) == 1);
    read("", 0), read("-", 0), read("abc", 0), read(".", 0);
}

static lb_watch_record line(const char *text, lb_line_answer expected)
{
    lb_line_reader reader = {0};
    lb_watch_record record = {0};
    const char *why = NULL;
    assert_int_equal(lb_line_read(&reader, text, strlen(text), &record, &why), expected);
    assert_int_equal(why != NULL, expected == LB_LINE_BAD);
    return record;
}

static void the_one_line_format_is_read(void **state)
{
    (void)state;
    const lb_watch_record record =
        line("step 00050/30000 (0.17%) | loss: 4.2371 | lrm: 0.55 | dt: 412.10ms | tok/sec: 254,128 | mfu: 17.8 "
             "| gnorm: 1.4231 | total time: 0.34m",
             LB_LINE_RECORD);
    assert_int_equal(record.step, 50);
    assert_int_equal(record.steps, 30000);
    assert_true(record.number[LB_WATCH_loss] == 4.2371 && record.number[LB_WATCH_gnorm] == 1.4231);
    assert_true(record.number[LB_WATCH_dt] == 412.10 && record.number[LB_WATCH_tok_sec] == 254128);
    assert_float_equal(record.lr_rounding, 0.005, 1e-15);
    assert_int_equal(record.has & ~(1u << LB_WATCH_step | 1u << LB_WATCH_loss | 1u << LB_WATCH_lrm | 1u << LB_WATCH_dt |
                                    1u << LB_WATCH_tok_sec | 1u << LB_WATCH_gnorm),
                     0);
}

static void other_programs_lines_are_read(void **state)
{
    (void)state;
    const lb_watch_record record =
        line(" [2026-01-01 12:00:00] iteration      100/     500 | consumed samples: 800 | elapsed time per "
             "iteration (ms): 412.5 | learning rate: 1.500E-04 | lm loss: 4.2E+00 | grad norm: 1.234 | "
             "number of skipped iterations:   1 |",
             LB_LINE_RECORD);
    assert_int_equal(record.step, 100);
    assert_true(record.number[LB_WATCH_loss] == 4.2 && record.number[LB_WATCH_lr] == 1.5e-4 &&
                record.number[LB_WATCH_dt] == 412.5);
    assert_true(record.skipped);
    assert_float_equal(record.lr_rounding, 0.5e-7, 1e-15);
    assert_int_equal(line("[rank0]: Step 3 | loss: inf", LB_LINE_RECORD).step, 3);
    assert_true(line("step 3 | dt: 1.5s | loss: 2", LB_LINE_RECORD).number[LB_WATCH_dt] == 1500);
}

static void lines_that_are_none_are_told_from_broken_ones(void **state)
{
    (void)state;
    line("saving checkpoint at step 100", LB_LINE_OTHER);
    line("step by step", LB_LINE_OTHER);
    line("", LB_LINE_OTHER);
    line("| loss: 3 | step 4 |", LB_LINE_OTHER);
    line("step x/3 | loss: 2", LB_LINE_BAD);
    line("step 3 | loss: 4.2.x | gnorm: oops", LB_LINE_BAD);
    line("step 99999999999999999999999999 | loss: 2", LB_LINE_BAD);
}

static bool object(const char *text, lb_watch_record *record)
{
    const char *why = NULL;
    const bool whole = lb_object_read(NULL, text, strlen(text), record, &why);
    assert_int_equal(why == NULL, whole);
    return whole;
}

static void objects_are_read_with_what_python_writes_into_them(void **state)
{
    (void)state;
    lb_watch_record record;
    assert_true(object(
        "{\"step\": 3, \"train\": {\"loss\": NaN}, \"x\": [1, {\"loss\": 7}], \"grad_norm\": 1e3, \"shard\": \"a b\", "
        "\"lr\": null, \"skipped\": true}",
        &record));
    assert_int_equal(record.step, 3);
    assert_true(isnan(record.number[LB_WATCH_loss]) && record.number[LB_WATCH_gnorm] == 1000 && record.skipped);
    assert_false(lb_watch_has(&record, LB_WATCH_lr));
    assert_int_equal(record.word[0].n, 3);
    assert_true(object("{'loss': 1.5, 'grad_norm': inf, 'epoch': 0.1}", &record));
    assert_true(record.number[LB_WATCH_loss] == 1.5 && isinf(record.number[LB_WATCH_gnorm]));
    assert_true(object("{\"eval/loss\": 9, \"val_loss\": 8}", &record));
    assert_false(lb_watch_has(&record, LB_WATCH_loss));
    assert_true(object("{}", &record));
}

static void objects_that_are_cut_or_strange_are_refused(void **state)
{
    (void)state;
    lb_watch_record record;
    static const char *const bad[] = {"{",
                                      "{\"a\"",
                                      "{\"a\":",
                                      "{\"a\":1",
                                      "{\"a\":1,}",
                                      "{\"a\":[1,2",
                                      "{\"a\" 1}",
                                      "{a:1}",
                                      "{\"loss\":\"high\"}",
                                      "{\"a\":1} x",
                                      "{\"a",
                                      "[1]",
                                      "{\"a\":{\"b\":1}",
                                      "{\"step\":1.5}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(object(bad[i], &record));
    char deep[200] = "";
    for (int i = 0; i < 20; i++) strcat(deep, "{\"a\":");
    assert_false(object(deep, &record));
}

static void tables_map_their_columns(void **state)
{
    (void)state;
    static lb_table_reader t;
    lb_watch_record record;
    const char *why = NULL, *header = "Step;train_loss;\"grad norm\";what", *row = "7; 2.5 ;\"1.5\";x";
    assert_true(lb_table_header(&t, NULL, header, strlen(header)));
    assert_true(lb_table_row(&t, row, strlen(row), &record, &why));
    assert_int_equal(record.step, 7);
    assert_true(record.number[LB_WATCH_loss] == 2.5 && record.number[LB_WATCH_gnorm] == 1.5);
    assert_true(lb_table_row(&t, "8;;;", 4, &record, &why));
    assert_false(lb_watch_has(&record, LB_WATCH_loss));
    assert_false(lb_table_row(&t, "8;1", 3, &record, &why));
    assert_false(lb_table_row(&t, "8;1;2;3;4", 9, &record, &why));
    assert_false(lb_table_row(&t, "8;1;a;3", 7, &record, &why));
    assert_false(lb_table_header(&t, NULL, "1,2,3", 5));
}

static void names_of_the_users_own_come_first(void **state)
{
    (void)state;
    lb_field_names names;
    static const char *const pairs[] = {"gnorm=my/norm", "loss=nll"};
    assert_int_equal(lb_field_names_init(&names, pairs, 2, NULL), LB_OK);
    assert_int_equal(lb_field_of(&names, "my/norm", 7), LB_WATCH_gnorm);
    assert_int_equal(lb_field_of(&names, "nll", 3), LB_WATCH_loss);
    assert_int_equal(lb_field_of(&names, "train/Grad-Norm", 15), LB_WATCH_gnorm);
    assert_int_equal(lb_field_of(&names, "val/loss", 8), LB_WATCH_FIELDS);
    lb_field_names_release(&names);
    static const char *const wrong[] = {"norm=x"};
    assert_int_equal(lb_field_names_init(&names, wrong, 1, NULL), LB_ERR_INVALID);
    lb_field_names_release(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_strtod),
        cmocka_unit_test(the_one_line_format_is_read),
        cmocka_unit_test(other_programs_lines_are_read),
        cmocka_unit_test(lines_that_are_none_are_told_from_broken_ones),
        cmocka_unit_test(objects_are_read_with_what_python_writes_into_them),
        cmocka_unit_test(objects_that_are_cut_or_strange_are_refused),
        cmocka_unit_test(tables_map_their_columns),
        cmocka_unit_test(names_of_the_users_own_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
