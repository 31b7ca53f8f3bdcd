/* The gate for text. */
#include "cmocka_first.h"

#include <lastbit/text.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void spells(lb_text_kind kind, const char *bytes, size_t n, const char *form)
{
    char *text = lb_text_escaped(kind, bytes, n);
    assert_non_null(text);
    assert_string_equal(text, form);
    assert_int_equal(lb_text_is_plain(kind, bytes, n), strlen(form) == n && memcmp(form, bytes, n) == 0);
    free(text);
}

static void table_of_forms_holds(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *name, *shown;
    } rows[] = {
        {"model.layers.3.mlp", 18, "model.layers.3.mlp", "model.layers.3.mlp"},
        {"gr\xc3\xb6\xc3\x9f\x65", 7, "gr\xc3\xb6\xc3\x9f\x65", "gr\xc3\xb6\xc3\x9f\x65"},
        {"a\0b", 3, "a\\x00b", "a\\x00b"},
        {"a\nb\tc", 5, "a\\x0ab\\x09c", "a\nb\tc"},
        {"\x1b[31m", 5, "\\x1b[31m", "\\x1b[31m"},
        {"\x7f", 1, "\\x7f", "\\x7f"},
        {"\xff", 1, "\\xff", "\\xff"},
        {"\xc0\xaf", 2, "\\xc0\\xaf", "\\xc0\\xaf"},                             /* overlong */
        {"\xed\xa0\x80", 3, "\\xed\\xa0\\x80", "\\xed\\xa0\\x80"},               /* a surrogate */
        {"\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond Unicode */
        {"\xe4\xb8", 2, "\\xe4\\xb8", "\\xe4\\xb8"},                             /* cut off */
        {"\xc2\x9b"
         "1m",
         4, "\\u{9b}1m", "\\u{9b}1m"}, /* C1 */
        {"\xe2\x80\xae"
         "x",
         4, "\\u{202e}x", "\\u{202e}x"},                          /* right to left */
        {"\xf3\xa0\x81\x81", 4, "\\u{e0041}", "\\u{e0041}"},      /* a tag */
        {"\xf4\x8f\xbf\xbf", 4, "\\xf4\\x8f\\xbf\\xbf", "\\xff"}, /* what JSON carries a byte as */
        {"\\xff", 4, "\\x5cxff", "\\xff"},
        {"\\u{1}", 5, "\\x5cu{1}", "\\u{1}"},
        {"\\xfg \\d \\", 9, "\\xfg \\d \\", "\\xfg \\d \\"},
        {"\\\xff", 2, "\\\\xff", "\\\\xff"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        spells(LB_TEXT_NAME, rows[i].bytes, rows[i].n, rows[i].name);
        spells(LB_TEXT_SHOWN, rows[i].bytes, rows[i].n, rows[i].shown);
        assert_true(lb_text_is_name(rows[i].name, strlen(rows[i].name)));
    }
    spells(LB_TEXT_CARRIED, "\xf4\x8f\xbf\xbf", 4, "\\xff");
    spells(LB_TEXT_PATTERN, "^a\xff$", 4, "^a\\\\xff$");
    spells(LB_TEXT_UTF8, "\x1b\xff", 2, "\x1b\\xff");
}

/* The bytes that a form spells: what makes two forms of different names different. */
static size_t bytes_of(const char *form, char *bytes)
{
    size_t n = 0;
    for (const char *at = form; *at;) {
        unsigned code;
        int length = 0;
        if (at[0] == '\\' && at[1] == 'x' && isxdigit((unsigned char)at[2]) && isxdigit((unsigned char)at[3])) {
            sscanf(at + 2, "%2x", &code);
            bytes[n++] = (char)code, at += 4;
        } else if (at[0] == '\\' && at[1] == 'u' && sscanf(at, "\\u{%x}%n", &code, &length) == 1 && length) {
            if (code < 0x800) bytes[n++] = (char)(0xc0 | code >> 6);
            if (code >= 0x800 && code < 0x10000) bytes[n++] = (char)(0xe0 | code >> 12);
            if (code >= 0x10000)
                bytes[n++] = (char)(0xf0 | code >> 18), bytes[n++] = (char)(0x80 | (code >> 12 & 0x3f));
            if (code >= 0x800) bytes[n++] = (char)(0x80 | (code >> 6 & 0x3f));
            bytes[n++] = (char)(0x80 | (code & 0x3f)), at += length;
        } else {
            bytes[n++] = *at++;
        }
    }
    return n;
}

static void form_tells_the_bytes_of_any_name(void **state)
{
    (void)state;
    static const char letters[] =
        "\\xu{}0aF\xff\xc0\x80\xe2\x80\xae\xf4\x8f\xbe\x1b\n\0b"; /* parts of escapes and of characters */
    uint32_t seed = 1;
    for (int round = 0; round < 200000; round++) {
        char name[12], *form, again[64];
        size_t n = 0;
        seed = seed * 1664525u + 1013904223u;
        for (uint32_t draw = seed >> 8; n < 1 + seed % 11; draw = draw * 69069u + 5u)
            name[n++] = letters[(draw >> 16) % (sizeof letters - 1)];
        form = lb_text_name(name, n);
        assert_true(lb_text_is_name(form, strlen(form)));
        assert_int_equal(bytes_of(form, again), n);
        assert_memory_equal(again, name, n);
        free(form);
    }
}

static void form_is_cut_before_what_does_not_fit(void **state)
{
    (void)state;
    static const char name[] = "ab\xffz\xc3\xb6";
    char whole[32], part[32];
    const size_t size = lb_text_escape(LB_TEXT_NAME, name, sizeof name - 1, whole, sizeof whole);
    assert_int_equal(size, 9);
    for (size_t room = 0; room <= size + 1; room++) {
        memset(part, '#', sizeof part);
        assert_int_equal(lb_text_escape(LB_TEXT_NAME, name, sizeof name - 1, part, room), size);
        if (room == 0) continue;
        const size_t n = strlen(part);
        assert_true(n < room && memcmp(part, whole, n) == 0);
        assert_true(n <= 2 || n >= 6); /* no piece of an escape */
        assert_true(lb_text_is_name(part, n));
        assert_int_equal(part[room], '#');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_of_forms_holds),
        cmocka_unit_test(form_tells_the_bytes_of_any_name),
        cmocka_unit_test(form_is_cut_before_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
