/* Jansson behind the gate for text. */
#include "cmocka_first.h"

#include <lastbit/json_text.h>
#include <lastbit/text.h>

#include <stdlib.h>
#include <string.h>

static void any_bytes_make_a_value(void **state)
{
    (void)state;
    json_t *all = json_pack("{s:s, s:s#, s:s?, s:s*, s:o, s:[s, i, I, b, f, n], s:{s:O?}}", "a\xff", "x\xff\x1b", "cut",
                            "\xe4\xb8\xad", 2, "none", NULL, "out", NULL, "made", json_sprintf("%s-%d", "\xc0\xaf", 3),
                            "list", "\xed\xa0\x80", 1, (json_int_t)2, 1, 0.5, "in", "deep", NULL);
    char *text = json_dumps(all, JSON_COMPACT);
    assert_string_equal(
        text,
        "{\"a\\\\xff\":\"x\\\\xff\\u001B\",\"cut\":\"\\\\xe4\\\\xb8\",\"none\":null,\"made\":\"\\\\xc0\\\\xaf-3\","
        "\"list\":[\"\\\\xed\\\\xa0\\\\x80\",1,2,true,0.5,null],\"in\":{\"deep\":null}}");
    free(text);
    json_decref(all);
}

static void what_is_not_seen_is_written_as_an_escape(void **state)
{
    (void)state;
    json_t *value = json_string("\xe2\x80\xae"
                                "\xc2\x9b"
                                "\x7f"
                                "\xf3\xa0\x81\x81"
                                "\xc3\xb6\n"),
           *again;
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    assert_string_equal(text, "\"\\u202e\\u009b\\u007f\\udb40\\udc41\xc3\xb6\\n\"");
    again = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_true(json_equal(value, again)); /* for every reader of JSON it is the character */
    json_decref(value), json_decref(again), free(text);
}

static void reads(const char *bytes, size_t n, const char *name)
{
    json_error_t why;
    json_t *all = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &why);
    assert_non_null(all);
    const char *key = json_object_iter_key(json_object_iter(all));
    char *form = lb_text_escaped(LB_TEXT_CARRIED, key, strlen(key));
    assert_string_equal(form, name);
    free(form);
    json_decref(all);
}

static void any_key_is_read(void **state)
{
    (void)state;
#define READS(text, name) reads("{\"" text "\":1}", sizeof "{\"" text "\":1}" - 1, name)
    READS("plain", "plain");
    READS("a\xff", "a\\xff");
    READS("a\\\\xff", "a\\x5cxff");
    READS("\xed\xa0\x80", "\\xed\\xa0\\x80");
    READS("\\u0000x", "\\x00x");
    READS("\\ud800x", "\\xed\\xa0\\x80x");
    READS("\\ud83d\\ude00", "\xf0\x9f\x98\x80");
    READS("\\\\ud800\xff", "\\ud800\\xff"); /* a backslash, and letters */
    READS("\\udbff\\udfff", "\\xf4\\x8f\\xbf\\xbf");
    READS("\xf4\x8f\xbf\xbf", "\\xf4\\x8f\\xbf\\xbf");
    READS("\\u202e\\n", "\\u{202e}\\x0a");
}

static void what_is_no_json_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{", "\xff", "{\"a\xff\"", "{\"\\x\":1}", "[1,]", "{\"a\":1}\xff"};
    json_error_t why;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_null(json_loadb(texts[i], strlen(texts[i]), 0, &why));
    static const char twice[] = "{\"\xff\":1,\"\xff\":2}";
    assert_null(json_loadb(twice, sizeof twice - 1, JSON_REJECT_DUPLICATES, &why));
}

static void hostile_texts_read_as_they_are_written(void **state)
{
    (void)state;
    static const char letters[] = "\\u0d8fFe\xff\xed\xa0\x80\xf4\x8f\xbe\"{}:1,[ ";
    uint32_t seed = 7;
    for (int round = 0; round < 100000; round++) {
        char text[24];
        size_t n = 0;
        for (; n < 1 + seed % 22; n++)
            seed = seed * 1664525u + 1013904223u, text[n] = letters[(seed >> 16) % (sizeof letters - 1)];
        seed = seed * 69069u + 1u;
        json_t *value = json_loadb(text, n, JSON_DECODE_ANY, NULL);
        char *written = json_dumps(value, JSON_ENCODE_ANY);
        if (!value) continue;
        assert_true(lb_text_is_plain(LB_TEXT_SHOWN, written, strlen(written)));
        json_t *again = json_loads(written, JSON_DECODE_ANY, NULL);
        assert_non_null(again);
        json_decref(value), json_decref(again), free(written);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bytes_make_a_value),
        cmocka_unit_test(what_is_not_seen_is_written_as_an_escape),
        cmocka_unit_test(any_key_is_read),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(hostile_texts_read_as_they_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
