#define _GNU_SOURCE /* memmem */
#include "cmocka_first.h"
#include "program_sample.h"

#include <stdio.h>

static const float data[6] = {1, -2, 3, 0, NAN, 6};

static void assert_same_bytes(const lb_program *a, const lb_program *b)
{
    void *x, *y;
    size_t n, m;
    assert_int_equal(lb_program_encode(a, &x, &n, NULL), LB_OK);
    assert_int_equal(lb_program_encode(b, &y, &m, NULL), LB_OK);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x), free(y);
}

#define SAME_ROWS(a, b, field, count)                                                                                  \
    (assert_int_equal((a)->count, (b)->count),                                                                         \
     assert_memory_equal((a)->field, (b)->field, (a)->count * sizeof *(a)->field))

static void every_row_comes_back_bit_by_bit(void **state)
{
    (void)state;
    lb_program *p = sample_program(-5, 2, data), *q = NULL;
    void *bytes;
    size_t size;
    assert_int_equal(lb_program_encode(p, &bytes, &size, NULL), LB_OK);
    lb_err err = LB_ERR_INIT;
    lb_status status = lb_program_decode(bytes, size, &q, &err);
    if (status != LB_OK) fail_msg("%s", err.message);
    assert_true(q->step == -5 && q->rank == 2 && q->world == 4 && q->level == 3 && q->complete == 1);
    assert_string_equal(lb_program_text(q, q->shard), "shard-7");
    assert_int_equal(p->n_strings, q->n_strings);
    for (uint32_t i = 0; i < p->n_strings; i++) assert_string_equal(p->strings[i], q->strings[i]);
    SAME_ROWS(p, q, scopes, n_scopes);
    SAME_ROWS(p, q, refs, n_refs);
    SAME_ROWS(p, q, statistics, n_statistics);
    SAME_ROWS(p, q, routings, n_routings);
    assert_int_equal(p->n_args, q->n_args);
    for (uint32_t i = 0; i < p->n_args; i++) {
        assert_int_equal(p->args[i].tag, q->args[i].tag);
        assert_int_equal(p->args[i].count, q->args[i].count);
        if (p->args[i].tag != LB_ARG_NONE) assert_true((uint32_t)p->args[i].u.i == (uint32_t)q->args[i].u.i);
    }
    assert_true(q->args[2].u.i == INT64_MIN);
    assert_true(isnan(q->args[1].u.f) && q->args[0].u.f == 0.1);
    assert_int_equal(p->n_values, q->n_values);
    for (uint32_t i = 0; i < p->n_values; i++) {
        const lb_value *a = &p->values[i], *b = &q->values[i];
        assert_true(a->storage == b->storage && a->flags == b->flags && a->name == b->name && a->source == b->source);
        assert_true(lb_digest_equal(a->logical, b->logical) && lb_digest_equal(a->blob, b->blob));
        assert_memory_equal(&a->layout, &b->layout, sizeof a->layout);
    }
    assert_int_equal(q->n_ops, 3);
    assert_true(q->ops[2].node == 17 && q->ops[0].node == -1 && q->ops[0].node_name == LB_NONE);
    const lb_code_line line = lb_op_line(q, &q->ops[2]), none = lb_op_line(q, &q->ops[0]);
    char text[80];
    assert_int_equal(none.number, 0);
    lb_code_line_text(&line, text, sizeof text);
    assert_string_equal(text, "llama.py:214 in forward: y = x @ w");
    assert_true(q->collectives[0].sequence == 5 && q->collectives[0].algorithm == LB_NONE);
    assert_true(q->group_params[0].gradient == -1 && q->scalars[0].number == 1e-3 && isinf(q->scalars[1].number));
    assert_same_bytes(p, q);
    free(bytes);
    lb_program_free(p), lb_program_free(q);
}

static void a_decoded_program_grows_like_a_built_one(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data), *q;
    void *bytes;
    size_t size;
    lb_program_encode(p, &bytes, &size, NULL);
    assert_int_equal(lb_program_decode(bytes, size, &q, NULL), LB_OK);
    assert_true(lb_program_string(q, "aten::mm") < p->n_strings);
    for (int i = 0; i < 1000; i++) lb_program_add_op(q, &q->ops[2]);
    assert_int_equal(q->n_ops, 1003);
    assert_int_equal(lb_program_validate(q, NULL), LB_OK);
    free(bytes);
    lb_program_free(p), lb_program_free(q);
}

static void every_truncation_is_refused_and_every_flip_is_survived(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data), *q;
    void *bytes;
    size_t size;
    lb_program_encode(p, &bytes, &size, NULL);
    unsigned char *copy = malloc(size);
    for (size_t n = 0; n < size; n++) {
        lb_err err = LB_ERR_INIT;
        memcpy(copy, bytes, n);
        assert_int_equal(lb_program_decode(copy, n, &q, &err), LB_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "offset"));
    }
    for (size_t bit = 0; bit < size * 8; bit++) {
        memcpy(copy, bytes, size);
        copy[bit / 8] ^= (unsigned char)(1 << bit % 8);
        q = NULL;
        if (lb_program_decode(copy, size, &q, NULL) == LB_OK) {
            assert_int_equal(lb_program_validate(q, NULL), LB_OK);
            lb_program_free(q);
        }
    }
    free(copy), free(bytes);
    lb_program_free(p);
}

static bool contains(const void *bytes, size_t size, const char *word)
{
    return memmem(bytes, size, word, strlen(word)) != NULL;
}

/* An archive of before 1.2 has neither column nor table, and reads as a program without lines. */
static void a_program_without_lines_is_written_as_it_was_before_there_were_any(void **state)
{
    (void)state;
    lb_program *p = sample_program(1, 0, data), *q = NULL;
    void *with, *without;
    size_t with_size, without_size;
    OK(lb_program_encode(p, &with, &with_size, &err));
    assert_true(contains(with, with_size, "lines") && contains(with, with_size, "\xa4line\xc4"));
    p->ops[2].line = p->n_lines = 0;
    OK(lb_program_encode(p, &without, &without_size, &err));
    assert_false(contains(without, without_size, "lines") || contains(without, without_size, "\xa4line\xc4"));
    OK(lb_program_decode(without, without_size, &q, &err));
    assert_int_equal(q->n_lines, 0);
    for (uint32_t i = 0; i < q->n_ops; i++) assert_int_equal(lb_op_line(q, &q->ops[i]).number, 0);
    free(with), free(without);
    lb_program_free(p), lb_program_free(q);
}

static void a_line_beyond_the_table_is_refused(void **state)
{
    (void)state;
    lb_program *p = sample_program(1, 0, data);
    lb_err err = LB_ERR_INIT;
    p->ops[2].line = 2;
    assert_int_equal(lb_program_validate(p, &err), LB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "ops[2].line"));
    p->ops[2].line = 1, p->lines[0].text = p->n_strings;
    assert_int_equal(lb_program_validate(p, NULL), LB_ERR_CORRUPT);
    lb_program_free(p);
}

static void a_line_is_kept_once_and_goes_with_its_op_to_another_program(void **state)
{
    (void)state;
    lb_program *p = sample_program(1, 0, data), *q = lb_program_new();
    assert_int_equal(lb_program_line(p, &p->lines[0]), 1);
    assert_int_equal(lb_program_copy_line(q, p, 0), 0);
    lb_op op = {.line = lb_program_copy_line(q, p, p->ops[2].line)};
    assert_int_equal(lb_program_copy_line(q, p, p->ops[2].line), op.line);
    assert_int_equal(q->n_lines, 1);
    lb_code_line its = lb_op_line(q, &op), copy = lb_code_line_copy(&its);
    lb_program_free(p), lb_program_free(q);
    assert_true(copy.number == 214 && !strcmp(copy.file, "models/llama.py") && !strcmp(copy.text, "y = x @ w"));
    lb_code_line_release(&copy);
    lb_code_line_release(&copy);
}

static void a_few_bytes_that_claim_gigabytes_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } bombs[] = {
        {"\xdf\xff\xff\xff\xff", 5, "claims"},                           /* a map of 2^32 pairs */
        {"\x81\xa7strings\xdd\xff\xff\xff\xff", 14, "claims"},           /* an array of 2^32 strings */
        {"\x81\xa3ops\x81\xa4rows\xce\x10\x00\x00\x00", 16, "ops.name"}, /* rows without columns */
        {"\x81\xa1x\xdd\x00\x00\x00\x03\xdd\x00\x00\x00\x03\x01", 15,
         "claim"}, /* nested: each level fits, the sum does not */
        {"\xc1", 1, "invalid"},
        {"", 0, "the end"},
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        lb_program *q = NULL;
        lb_err err = LB_ERR_INIT;
        assert_int_equal(lb_program_decode(bombs[i].bytes, bombs[i].size, &q, &err), LB_ERR_CORRUPT);
        if (!strstr(err.message, bombs[i].says)) fail_msg("bomb %zu: %s", i, err.message);
    }
}

static void unknown_keys_of_a_later_minor_version_are_skipped(void **state)
{
    (void)state;
    lb_program *p = sample_program(0, 0, data), *q;
    void *bytes;
    size_t size;
    lb_program_encode(p, &bytes, &size, NULL);
    unsigned char *more = malloc(size + 64), *at = more;
    memcpy(more, "\xde\x00\x16", 3); /* was \xde\x00\x15: one pair more */
    assert_memory_equal(bytes, "\xde\x00\x15", 3);
    memcpy(more + 3,
           "\xa6"
           "future\x92\x81\xa1x\xc3\x01",
           7 + 6),
        at = more + 16;
    memcpy(at, (char *)bytes + 3, size - 3);
    lb_err err = LB_ERR_INIT;
    if (lb_program_decode(more, size + 13, &q, &err) != LB_OK) fail_msg("%s", err.message);
    assert_same_bytes(p, q);
    free(bytes), free(more);
    lb_program_free(p), lb_program_free(q);
}

/* Strings as a writer without the gate leaves them: of the length that they have, so that the row is written over in
 * place. */
static lb_program *with_strings(const char *const *strings, const size_t *sizes, uint32_t n)
{
    lb_program *p = lb_program_new(), *q = NULL;
    void *bytes;
    size_t size;
    char stand_in[40];
    for (uint32_t i = 0; i < n; i++) {
        memset(stand_in, 'a' + (char)i, sizeof stand_in);
        stand_in[sizes[i]] = '\0';
        assert_int_equal(lb_program_string(p, stand_in), i + 1);
    }
    assert_int_equal(lb_program_encode(p, &bytes, &size, NULL), LB_OK);
    for (uint32_t i = 0; i < n; i++) {
        memset(stand_in, 'a' + (char)i, sizeof stand_in);
        char *at = memmem(bytes, size, stand_in, sizes[i]);
        assert_non_null(at);
        memcpy(at, strings[i], sizes[i]);
    }
    assert_int_equal(lb_program_decode(bytes, size, &q, NULL), LB_OK);
    lb_program_free(p), free(bytes);
    return q;
}

static void strings_pass_the_gate_and_stay_different(void **state)
{
    (void)state;
    static const char *const texts[] = {"fine.path", "bad\xff\xfe", "line\nend", "nul\0nul", "a\\x0a b", "esc\x1b[31m"};
    static const size_t sizes[] = {9, 5, 8, 7, 7, 8};
    lb_program *p = with_strings(texts, sizes, 6);
    static const char *const forms[] = {"fine.path",   "bad\\xff\\xfe", "line\\x0aend",
                                        "nul\\x00nul", "a\\x0a b",      "esc\\x1b[31m"};
    for (uint32_t i = 0; i < 6; i++) assert_string_equal(p->strings[i + 1], forms[i]);
    lb_program_free(p);
    /* A text that reads as the form of another. */
    static const char *const twins[] = {"x\\x0ay", "x\nyz", "x\ny", "p\\xff"};
    static const size_t twin_sizes[] = {6, 4, 3, 5};
    p = with_strings(twins, twin_sizes, 4);
    for (uint32_t i = 1; i <= 4; i++)
        for (uint32_t k = 1; k < i; k++) assert_string_not_equal(p->strings[i], p->strings[k]);
    assert_string_equal(p->strings[1], "x\\x5cx0ay");
    assert_string_equal(p->strings[3], "x\\x0ay");
    lb_program_free(p);
}

static void names_pass_the_gate_when_they_are_recorded(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const uint32_t bytes = lb_program_name(p, "bad\xff"), letters = lb_program_name(p, "bad\\xff");
    assert_int_not_equal(bytes, letters);
    assert_string_equal(lb_program_text(p, bytes), "bad\\xff");
    assert_string_equal(lb_program_text(p, letters), "bad\\x5cxff");
    assert_int_equal(lb_program_string(p, lb_program_text(p, letters)), letters); /* a form is its own */
    assert_int_equal(lb_program_string(p, "bad\xff"), bytes);
    lb_program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_pass_the_gate_and_stay_different),
        cmocka_unit_test(names_pass_the_gate_when_they_are_recorded),
        cmocka_unit_test(every_row_comes_back_bit_by_bit),
        cmocka_unit_test(a_decoded_program_grows_like_a_built_one),
        cmocka_unit_test(every_truncation_is_refused_and_every_flip_is_survived),
        cmocka_unit_test(a_few_bytes_that_claim_gigabytes_are_refused),
        cmocka_unit_test(a_program_without_lines_is_written_as_it_was_before_there_were_any),
        cmocka_unit_test(a_line_beyond_the_table_is_refused),
        cmocka_unit_test(a_line_is_kept_once_and_goes_with_its_op_to_another_program),
        cmocka_unit_test(unknown_keys_of_a_later_minor_version_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
