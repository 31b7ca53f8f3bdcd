/* The text of a table becomes the MessagePack that its JSON library's tree would, over generated texts; what is no JSON
 * is refused by both. */
#include "cmocka_first.h"

#include "archive/table_text.h"

#include <jansson.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;
static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

/* ---- the same by way of jansson ---------------------------------------------------------------------------------- */

static void pack_tree(msgpack_packer *p, json_t *json)
{
    const char *key;
    json_t *child;
    size_t index;
    switch (json_typeof(json)) {
    case JSON_NULL: msgpack_pack_nil(p); break;
    case JSON_TRUE: msgpack_pack_true(p); break;
    case JSON_FALSE: msgpack_pack_false(p); break;
    case JSON_INTEGER: msgpack_pack_int64(p, json_integer_value(json)); break;
    case JSON_REAL: msgpack_pack_double(p, json_real_value(json)); break;
    case JSON_STRING:
        msgpack_pack_str(p, json_string_length(json));
        msgpack_pack_str_body(p, json_string_value(json), json_string_length(json));
        break;
    case JSON_ARRAY:
        msgpack_pack_array(p, json_array_size(json));
        json_array_foreach(json, index, child) pack_tree(p, child);
        break;
    case JSON_OBJECT:
        msgpack_pack_map(p, json_object_size(json));
        json_object_foreach(json, key, child) pack_text(p, key), pack_tree(p, child);
    }
}

/* Both agree on this text, on its bytes or on its refusal. */
static bool check(const char *text)
{
    lb_err err = LB_ERR_INIT;
    byte_buffer ours = {0}, theirs = {0};
    json_error_t why;
    json_t *tree = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    const lb_status status = lb_table_text_pack(text, &ours, &err);
    const bool duplicate = !tree && json_error_code(&why) == json_error_duplicate_key;
    if (!duplicate && (status == LB_OK) != (tree != NULL)) fail_msg("%s: %s; jansson: %s", text, err.message, why.text);
    if (tree) {
        msgpack_packer p = buffer_packer(&theirs);
        pack_tree(&p, tree);
        if (ours.size != theirs.size || memcmp(ours.bytes, theirs.bytes, ours.size) != 0)
            fail_msg("other bytes: %s", text);
    }
    json_decref(tree);
    buffer_release(&ours), buffer_release(&theirs);
    return status == LB_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void put(char *text, const char *piece)
{
    strcat(text, piece);
}

static void put_value(char *text, int depth)
{
    static const char *const plain[] = {"null",
                                        "true",
                                        "false",
                                        "0",
                                        "-0",
                                        "1.5",
                                        "-2e-3",
                                        "1E+5",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "9223372036854775808",
                                        "1e400",
                                        "0.1",
                                        "01",
                                        "1.",
                                        ".5",
                                        "+1",
                                        "\"\"",
                                        "\"a\\n\\u00e9\\ud834\\udd1e\\/\"",
                                        "\"\\u0000\"",
                                        "\"\\ud834\"",
                                        "\"\\udd1e\"",
                                        "\"\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e\"",
                                        "\"\xc0\x80\"",
                                        "\"\xed\xa0\x80\"",
                                        "\"\xf5\x80\x80\x80\"",
                                        "\"\xe2\x82\"",
                                        "\"\x01\"",
                                        "\"\\x\"",
                                        "\"\\u12g4\"",
                                        "nul",
                                        "True",
                                        "NaN",
                                        "4294967296",
                                        "-129"};
    const uint64_t kind = depth > 4 ? 0 : draw(4);
    if (kind < 2) {
        /* mostly what is right, so that whole texts are */
        put(text, plain[draw(20) ? draw(9) : draw(sizeof plain / sizeof *plain)]);
        return;
    }
    const uint64_t n = draw(20) ? draw(5) : draw(20);
    put(text, kind == 2 ? "[" : "{ ");
    for (uint64_t i = 0; i < n; i++) {
        char key[40];
        snprintf(key, sizeof key, "\"key %llu\" :\t", (unsigned long long)i);
        if (i) put(text, " , ");
        if (kind == 3) put(text, key);
        put_value(text, depth + 1);
    }
    put(text, kind == 2 ? "]" : "}");
}

static void generated_texts_become_the_bytes_of_their_tree(void **unused)
{
    (void)unused;
    int whole = 0;
    for (int round = 0; round < 20000; round++) {
        static char text[1 << 18];
        text[0] = '\0';
        put_value(text, 0);
        if (draw(4) == 0 && *text) { /* one byte is another, or the text is cut */
            const size_t at = draw(strlen(text));
            text[at] = draw(2) ? (char)(1 + draw(255)) : '\0';
        }
        whole += check(text);
    }
    assert_in_range(whole, 5000, 19000);
}

static void long_strings_and_containers_get_the_header_of_their_length(void **unused)
{
    (void)unused;
    static const size_t lengths[] = {0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536, 70000};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        char *text = malloc(3 * lengths[l] + 8);
        text[0] = '"', memset(text + 1, 'x', lengths[l]), strcpy(text + 1 + lengths[l], "\"");
        assert_true(check(text));
        strcpy(text, "[");
        for (size_t i = 0; i < lengths[l]; i++) memcpy(text + 1 + 2 * i, "1,", 3);
        strcpy(text + (lengths[l] ? 2 * lengths[l] : 1), "]");
        assert_true(check(text));
        free(text);
    }
}

static void numbers_are_read_as_in_the_c_locale(void **unused)
{
    (void)unused;
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales && !setlocale(LC_NUMERIC, locales[i]); i++) continue;
    assert_true(check("[1.5, -2.25e2]"));
    setlocale(LC_NUMERIC, "C");
}

static void nesting_is_bounded(void **unused)
{
    (void)unused;
    char text[400];
    lb_err err = LB_ERR_INIT;
    for (int depth = LB_TABLE_DEPTH - 1; depth < LB_TABLE_DEPTH + 3; depth++) {
        byte_buffer out = {0};
        memset(text, '[', (size_t)depth), memset(text + depth, ']', (size_t)depth), text[2 * depth] = '\0';
        assert_int_equal(lb_table_text_pack(text, &out, &err), depth <= LB_TABLE_DEPTH + 1 ? LB_OK : LB_ERR_INVALID);
        buffer_release(&out);
    }
    assert_non_null(strstr(err.message, "line 1, column 66"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(generated_texts_become_the_bytes_of_their_tree),
                                       cmocka_unit_test(long_strings_and_containers_get_the_header_of_their_length),
                                       cmocka_unit_test(numbers_are_read_as_in_the_c_locale),
                                       cmocka_unit_test(nesting_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
