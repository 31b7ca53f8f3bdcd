/* Texts that are printed piece by piece: whole, or not there. */
#include "cmocka_first.h"
#include "failing_memory.h"

#include <lastbit/text_stream.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef OPENED /* the C library's, to see what it does: -DOPENED=open_memstream */
#define OPENED lb_text_stream_open
#endif

/* `lines` numbers, each on a line of its own; NULL: out of memory. */
static char *print_lines(int lines, size_t *size)
{
    char *text;
    FILE *out = OPENED(&text, size);
    if (!out) return NULL;
    for (int i = 0; i < lines; i++) fprintf(out, "%d\n", i);
    fclose(out);
    return text;
}

static void what_is_printed_comes_whole(void **state)
{
    (void)state;
    for (int lines = 0; lines < 40000; lines = 3 * lines + 1) {
        size_t size, at = 0;
        char *text = print_lines(lines, &size), *end = text;
        assert_non_null(text);
        assert_int_equal(strlen(text), size);
        for (int i = 0; i < lines; i++, at++, end++) assert_int_equal(strtol(end, &end, 10), i);
        assert_string_equal(end, "");
        free(text);
    }
}

static void zeros_and_empty_texts_are_texts(void **state)
{
    (void)state;
    char *text;
    size_t size;
    FILE *out = lb_text_stream_open(&text, &size);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "");
    assert_int_equal(size, 0);
    free(text);
    out = lb_text_stream_open(&text, &size);
    assert_int_equal(fwrite("a\0b", 1, 3, out), 3);
    assert_int_equal(ftell(out), 3);
    fflush(out);
    assert_int_equal(ftell(out), 3);
    assert_int_equal(fseek(out, 1, SEEK_SET), -1);
    assert_int_equal(fclose(out), 0);
    assert_memory_equal(text, "a\0b", 4);
    assert_int_equal(size, 3);
    free(text);
}

/* Each allocation in turn, alone and with all after it. */
static void a_text_is_whole_or_not_there(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    for (int lines = 0; lines < 40000; lines = 4 * lines + 1) {
        size_t size, whole_size;
        char *whole = print_lines(lines, &whole_size);
        bool failed = true;
        for (long n = 1; failed; n++) {
            for (int for_good = 0; for_good < 2; for_good++) {
                fail_memory_until(n, for_good ? 1 << 30 : n);
                char *text = print_lines(lines, &size);
                failed = memory_failed();
                if (text) assert_int_equal(size, whole_size);
                if (text) assert_string_equal(text, whole);
                if (!failed) assert_non_null(text);
                free(text);
            }
        }
        free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_comes_whole),
        cmocka_unit_test(zeros_and_empty_texts_are_texts),
        cmocka_unit_test(a_text_is_whole_or_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
