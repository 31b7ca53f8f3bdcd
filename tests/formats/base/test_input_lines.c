/* Lines come as they lie in the file, whatever their lengths; one that is too long is refused in as much memory as a
 * line may take. */
#define _GNU_SOURCE
#include "cmocka_first.h"

#include "scratch_folder.h"

#include <lastbit/decode_limit.h>
#include <lastbit/input.h>
#include <lastbit/input_lines.h>

#include <stdlib.h>

static uint64_t random_state = 88172645463325252u;
static size_t random_below(size_t n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (size_t)(random_state % n);
}

/* The lines of `text` are what is read of it; `most`: what the longest one has. */
static void check_lines(const char *text, size_t size, size_t most)
{
    lb_input_lines lines;
    lb_err err = LB_ERR_INIT;
    const char *path = in_scratch("lines"), *at = text, *end = text + size;
    uint64_t number = 0;
    write_whole(path, text, size);
    assert_int_equal(lb_input_lines_open(&lines, path, most, &err), LB_OK);
    while (lb_input_lines_next(&lines)) {
        const char *stop = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (!stop) stop = end;
        assert_true(at < end);
        assert_int_equal(lines.number, ++number);
        assert_int_equal(lines.size, stop - at);
        assert_memory_equal(lines.text, at, lines.size);
        assert_int_equal(lines.text[lines.size], 0);
        memset(lines.text, 'w', lines.size); /* it is the reader's */
        at = stop + 1;
    }
    assert_true(at >= end);
    assert_int_equal(lb_input_lines_close(&lines, &err), LB_OK);
}

static void every_line_is_read_as_it_lies_there(void **state)
{
    static char text[1 << 20];
    static const size_t LENGTHS[] = {1, 2, 10, 1000, 65535, 65536, 65537, 131072, 300000};
    (void)state;
    check_lines("", 0, 10), check_lines("\n", 1, 10), check_lines("\n\n", 2, 10), check_lines("a", 1, 1);
    check_lines("a\0b\n\0", 5, 3);
    for (int run = 0; run < 200; run++) {
        size_t size = 0, most = 0;
        const size_t wanted = random_below(sizeof text);
        while (size < wanted) {
            size_t n = random_below(LENGTHS[random_below(sizeof LENGTHS / sizeof *LENGTHS)]);
            if (n > wanted - size) n = wanted - size;
            for (size_t i = 0; i < n; i += 1 + random_below(97)) text[size + i] = (char)('a' + random_below(20));
            for (size_t i = 0; i < n; i++) /* what the run before left there may be a newline */
                if (text[size + i] == '\n') text[size + i] = 'n';
            if (n > most) most = n;
            size += n;
            if (size < wanted) text[size++] = '\n';
        }
        check_lines(text, size, most);
    }
}

static void a_line_that_is_too_long_is_refused_with_its_number(void **state)
{
    lb_input_lines lines;
    lb_err err = LB_ERR_INIT;
    (void)state;
    write_whole(in_scratch("long"), "ab\nabcd\nabc\n", 12);
    const char *path = in_scratch("long");
    assert_int_equal(lb_input_lines_open(&lines, path, 3, &err), LB_OK);
    assert_true(lb_input_lines_next(&lines));
    assert_false(lb_input_lines_next(&lines));
    assert_false(lb_input_lines_next(&lines));
    assert_int_equal(lb_input_lines_close(&lines, &err), LB_ERR_LIMIT);
    assert_non_null(strstr(err.message, "long: line 2 is longer than"));
}

static void a_line_without_an_end_takes_bounded_memory(void **state)
{
    lb_input_lines lines;
    lb_err err = LB_ERR_INIT;
    char *bytes;
    size_t size;
    FILE *zeros;
    (void)state;
    assert_int_equal(lb_input_lines_open(&lines, "/dev/zero", 1 << 20, &err), LB_OK);
    assert_false(lb_input_lines_next(&lines));
    assert_true(lines.room <= 4 << 20);
    assert_int_equal(lb_input_lines_close(&lines, &err), LB_ERR_LIMIT);
    lb_err_clear(&err);
    assert_int_equal(lb_input_stream("/dev/zero", &zeros, &err), LB_OK);
    assert_int_equal(lb_input_lines_rest(zeros, "/dev/zero", 100000, &bytes, &size, &err), LB_ERR_LIMIT);
    assert_null(bytes);
    assert_non_null(strstr(err.message, "/dev/zero: it is longer than"));
}

static void the_option_lowers_the_bound_of_a_line(void **state)
{
    lb_input_lines lines;
    lb_err err = LB_ERR_INIT;
    (void)state;
    write_whole(in_scratch("long"), "abcdefgh\n", 9);
    const char *path = in_scratch("long");
    lb_decode_limit_set(14, 1);
    assert_int_equal(lb_input_lines_open(&lines, path, 100, &err), LB_OK);
    assert_false(lb_input_lines_next(&lines));
    assert_int_equal(lb_input_lines_close(&lines, &err), LB_ERR_LIMIT);
    lb_decode_limit_set(16, 1);
    assert_int_equal(lb_input_lines_open(&lines, path, 100, &err), LB_OK);
    assert_true(lb_input_lines_next(&lines));
    assert_int_equal(lb_input_lines_close(&lines, NULL), LB_OK);
    lb_decode_limit_set(LB_DECODE_LIMIT_ROOM, LB_DECODE_LIMIT_RATIO);
}

static void the_rest_of_a_stream_is_all_of_it_or_refused(void **state)
{
    static char text[200000], *bytes;
    size_t size;
    FILE *stream;
    lb_err err = LB_ERR_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)random_below(256);
    static const size_t SIZES[] = {0, 1, 65534, 65535, 65536, 65537, 131071, 131072, sizeof text};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        const size_t n = SIZES[i];
        const char *path = in_scratch("rest");
        write_whole(path, text, n);
        for (int one_less = 0; one_less < (n ? 2 : 1); one_less++) {
            lb_err_clear(&err);
            assert_int_equal(lb_input_stream(path, &stream, &err), LB_OK);
            const lb_status status = lb_input_lines_rest(stream, path, n - (size_t)one_less, &bytes, &size, &err);
            assert_int_equal(status, one_less ? LB_ERR_LIMIT : LB_OK);
            assert_int_equal(size, one_less ? 0 : n);
            if (!one_less && n) assert_memory_equal(bytes, text, n);
            if (!one_less) assert_int_equal(bytes[n], 0);
            free(bytes);
        }
    }
}

static void what_is_not_there_has_no_lines(void **state)
{
    lb_input_lines lines;
    (void)state;
    assert_int_equal(lb_input_lines_open(&lines, in_scratch("none"), 10, NULL), LB_ERR_NOT_FOUND);
    assert_false(lb_input_lines_next(&lines));
    assert_int_equal(lb_input_lines_close(&lines, NULL), LB_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_scratch, drop_scratch)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_line_is_read_as_it_lies_there),          TEST(a_line_that_is_too_long_is_refused_with_its_number),
        TEST(a_line_without_an_end_takes_bounded_memory),   TEST(the_option_lowers_the_bound_of_a_line),
        TEST(the_rest_of_a_stream_is_all_of_it_or_refused), TEST(what_is_not_there_has_no_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
