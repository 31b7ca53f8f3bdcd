/* Jansson behind the gate for text: see lastbit/json_text.h. */
#define _GNU_SOURCE /* vasprintf */
#define LB_JSON_TEXT_OF_JANSSON
#include <lastbit/decode_limit.h>
#include <lastbit/input.h>
#include <lastbit/input_lines.h>
#include <lastbit/json_text.h>

#include <lastbit/text.h>

#include "base/byte_buffer.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ------------------------------------------------------------------------------------------------------ */

json_t *lb_json_stringn(const char *text, size_t n)
{
    if (!text) return NULL;
    if (lb_text_is_plain(LB_TEXT_UTF8, text, n)) return json_stringn_nocheck(text, n);
    char *valid = lb_text_escaped(LB_TEXT_UTF8, text, n);
    json_t *string = valid ? json_string_nocheck(valid) : NULL;
    free(valid);
    return string;
}

json_t *lb_json_string(const char *text)
{
    return text ? lb_json_stringn(text, strlen(text)) : NULL;
}

json_t *lb_json_vsprintf(const char *format, va_list arguments)
{
    char *text = NULL;
    json_t *string = vasprintf(&text, format, arguments) < 0 ? NULL : lb_json_string(text);
    free(text);
    return string;
}

json_t *lb_json_sprintf(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    json_t *string = lb_json_vsprintf(format, arguments);
    va_end(arguments);
    return string;
}

int lb_json_object_set_new(json_t *object, const char *key, json_t *value)
{
    if (!key || lb_text_is_plain(LB_TEXT_UTF8, key, strlen(key))) return json_object_set_new(object, key, value);
    char *valid = lb_text_escaped(LB_TEXT_UTF8, key, strlen(key));
    if (!valid) json_decref(value);
    const int failed = valid ? json_object_set_new(object, valid, value) : -1;
    free(valid);
    return failed;
}

int lb_json_object_set(json_t *object, const char *key, json_t *value)
{
    return lb_json_object_set_new(object, key, json_incref(value));
}

/* ---- a value from a format --------------------------------------------------------------------------------------- */

typedef struct packing {
    const char *at;
    va_list arguments;
    bool failed; /* out of memory */
} packing;

static void pass_space(packing *packing)
{
    while (*packing->at == ' ' || *packing->at == ',' || *packing->at == ':') packing->at++;
}

static bool take(packing *packing, char letter)
{
    const bool is = *packing->at == letter;
    packing->at += is;
    return is;
}

static json_t *pack_value(packing *p, bool *left_out);

static json_t *pack_object(packing *packing)
{
    json_t *object = json_object();
    for (pass_space(packing); *packing->at && *packing->at != '}'; pass_space(packing)) {
        LB_CHECK(*packing->at == 's');
        packing->at++;
        const char *key = va_arg(packing->arguments, const char *);
        bool left_out = false;
        pass_space(packing);
        json_t *value = pack_value(packing, &left_out);
        if (!left_out && lb_json_object_set_new(object, key, value) != 0) packing->failed = true;
    }
    LB_CHECK(*packing->at == '}');
    packing->at++;
    return object;
}

static json_t *pack_array(packing *packing)
{
    json_t *array = json_array();
    for (pass_space(packing); *packing->at && *packing->at != ']'; pass_space(packing)) {
        bool left_out = false;
        json_t *value = pack_value(packing, &left_out);
        if (!left_out && json_array_append_new(array, value) != 0) packing->failed = true;
    }
    LB_CHECK(*packing->at == ']');
    packing->at++;
    return array;
}

/* Of what may be absent: `s?` is null then, and `s*` is left out. */
static json_t *absent(packing *packing, json_t *value, bool there, bool *left_out)
{
    const bool null = take(packing, '?'), out = take(packing, '*');
    if (there) return value;
    *left_out = out;
    return null ? json_null() : NULL;
}

static json_t *pack_string(packing *packing, bool *left_out)
{
    const char *text = va_arg(packing->arguments, const char *);
    const size_t n = take(packing, '#') ? (size_t)va_arg(packing->arguments, int) : text ? strlen(text) : 0;
    return absent(packing, lb_json_stringn(text, n), text != NULL, left_out);
}

static json_t *pack_value(packing *packing, bool *left_out)
{
    json_t *value;
    const char letter = *packing->at++;
    switch (letter) {
    case '{': return pack_object(packing);
    case '[': return pack_array(packing);
    case 's': return pack_string(packing, left_out);
    case 'n': return json_null();
    case 'b': return json_boolean(va_arg(packing->arguments, int));
    case 'i': return json_integer(va_arg(packing->arguments, int));
    case 'I': return json_integer(va_arg(packing->arguments, json_int_t));
    case 'f': return json_real(va_arg(packing->arguments, double));
    case 'o':
    case 'O':
        value = va_arg(packing->arguments, json_t *);
        return absent(packing, letter == 'O' ? json_incref(value) : value, value != NULL, left_out);
    default: LB_CHECK(!"a letter of lb_json_pack"); return NULL;
    }
}

json_t *lb_json_pack(const char *format, ...)
{
    packing packing = {.at = format};
    bool left_out = false;
    va_start(packing.arguments, format);
    json_t *value = pack_value(&packing, &left_out);
    va_end(packing.arguments);
    if (!packing.failed) return value;
    json_decref(value);
    return NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A character that people do not see, as JSON spells it; a byte that it could not hold, as we do. Outside of strings
 * there is none. */
static void put_hidden(byte_buffer *to, int32_t c)
{
    char text[16];
    if (c >= 0x10ff00)
        snprintf(text, sizeof text, "\\\\x%02x", (unsigned)c & 0xff);
    else if (c >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + (unsigned)((c - 0x10000) >> 10),
                 0xdc00 + ((unsigned)c & 0x3ff));
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    buffer_add(to, text, strlen(text));
}

static int add_piece(const char *piece, size_t n, void *text)
{
    return buffer_write(text, piece, n);
}

/* Jansson goes on without a key for which its own text cannot grow; this one remembers that it could not. */
static char *dump_whole(const json_t *json, size_t flags)
{
    byte_buffer text = {0};
    const int failed = json_dump_callback(json, add_piece, &text, flags);
    buffer_add(&text, "", 1);
    if (!failed && !text.failed) return text.bytes;
    buffer_release(&text);
    return NULL;
}

char *lb_json_dumps(const json_t *json, size_t flags)
{
    char *text = dump_whole(json, flags);
    const size_t n = text ? strlen(text) : 0;
    if (!text || lb_text_is_plain(LB_TEXT_SHOWN, text, n)) return text;
    byte_buffer to = {0};
    for (size_t i = 0; i < n;) {
        int32_t c;
        const size_t length = lb_text_character(text + i, n - i, &c);
        if (c != '\n' && lb_text_is_hidden(c))
            put_hidden(&to, c);
        else
            buffer_add(&to, text + i, length);
        i += length;
    }
    buffer_add(&to, "", 1);
    free(text);
    if (!to.failed) return to.bytes;
    buffer_release(&to);
    return NULL;
}

int lb_json_dumpf(const json_t *json, FILE *to, size_t flags)
{
    char *text = lb_json_dumps(json, flags);
    const int failed = !text || fputs(text, to) == EOF ? -1 : 0;
    free(text);
    return failed;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void put_byte(byte_buffer *to, unsigned char byte)
{
    const unsigned c = 0x10ff00u + byte;
    const char text[] = {(char)0xf4, (char)(0x80 | (c >> 12 & 0x3f)), (char)(0x80 | (c >> 6 & 0x3f)),
                         (char)(0x80 | (c & 0x3f))};
    buffer_add(to, text, sizeof text);
}

/* The bytes of a character that Jansson would not take, and of those that stand for bytes, each for itself. */
static void put_bytes(byte_buffer *to, int32_t c)
{
    if (c < 0x80) {
        put_byte(to, (unsigned char)c);
    } else if (c < 0x10000) {
        put_byte(to, (unsigned char)(0xe0 | c >> 12)), put_byte(to, (unsigned char)(0x80 | (c >> 6 & 0x3f)));
        put_byte(to, (unsigned char)(0x80 | (c & 0x3f)));
    } else {
        put_byte(to, (unsigned char)(0xf0 | c >> 18)), put_byte(to, (unsigned char)(0x80 | (c >> 12 & 0x3f)));
        put_byte(to, (unsigned char)(0x80 | (c >> 6 & 0x3f))), put_byte(to, (unsigned char)(0x80 | (c & 0x3f)));
    }
}

/* The number of "\uXXXX" at `at`, or -1. */
static int32_t unit_at(const char *at, size_t n)
{
    int32_t unit = 0;
    if (n < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const int c = tolower((unsigned char)at[i]);
        if (!isxdigit(c)) return -1;
        unit = unit << 4 | (isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return unit;
}

/* What stands at `at`, a backslash, as Jansson takes it; gives the bytes that it took. */
static size_t put_escape(byte_buffer *to, const char *at, size_t n, bool nul)
{
    const int32_t unit = unit_at(at, n), low = unit >= 0xd800 && unit < 0xdc00 ? unit_at(at + 6, n - 6) : -1;
    const bool is_pair = low >= 0xdc00 && low < 0xe000;
    const int32_t c = is_pair ? 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00) : unit;
    const size_t length = is_pair ? 12 : unit >= 0 ? 6 : n > 1 && (unsigned char)at[1] < 0x80 ? 2 : 1;
    if ((c == 0 && !nul) || (!is_pair && c >= 0xd800 && c < 0xe000) || c >= 0x10ff00)
        put_bytes(to, c);
    else
        buffer_add(to, at, length);
    return length;
}

/* Whether Jansson would refuse what it would be without a fault of its grammar. */
static bool needs_repair(const char *bytes, size_t size, bool nul)
{
    for (size_t i = 0; i < size;) {
        if (bytes[i] == '\\') {
            const int32_t unit = unit_at(bytes + i, size - i);
            if ((unit == 0 && !nul) || (unit >= 0xd800 && unit < 0xe000)) return true;
            i += 2;
            continue;
        }
        int32_t c = bytes[i];
        i += c > 0 ? 1 : lb_text_character(bytes + i, size - i, &c);
        if (c == LB_TEXT_NONE || c >= 0x10ff00) return true;
    }
    return false;
}

json_t *lb_json_loadb(const char *bytes, size_t size, size_t flags, json_error_t *why)
{
    const bool nul = flags & JSON_ALLOW_NUL;
    if (!needs_repair(bytes, size, nul)) return json_loadb(bytes, size, flags, why);
    byte_buffer to = {0};
    for (size_t i = 0; i < size;) {
        int32_t c;
        const size_t length = lb_text_character(bytes + i, size - i, &c);
        if (c == '\\') {
            i += put_escape(&to, bytes + i, size - i, nul);
            continue;
        }
        if (c == LB_TEXT_NONE)
            put_byte(&to, (unsigned char)bytes[i]);
        else if (c >= 0x10ff00)
            put_bytes(&to, c);
        else
            buffer_add(&to, bytes + i, length);
        i += length;
    }
    json_t *json = to.failed ? NULL : json_loadb(to.bytes ? to.bytes : "", to.size, flags, why);
    if (to.failed && why) *why = (json_error_t){.line = -1, .column = -1, .text = "out of memory"};
    buffer_release(&to);
    return json;
}

json_t *lb_json_loads(const char *text, size_t flags, json_error_t *why)
{
    return text ? lb_json_loadb(text, strlen(text), flags, why) : json_loads(text, flags, why);
}

json_t *lb_json_load_file(const char *path, size_t flags, json_error_t *why)
{
    FILE *file;
    char *text;
    size_t size;
    lb_err err = LB_ERR_INIT;
    if (lb_input_stream(path, &file, NULL) != LB_OK) return json_load_file(path, flags, why); /* which says why */
    if (lb_input_lines_rest(file, path, lb_decode_limit_room(), &text, &size, &err) != LB_OK) {
        if (why) *why = (json_error_t){.line = -1, .column = -1};
        if (why) snprintf(why->text, sizeof why->text, "%.150s", err.message);
        return NULL;
    }
    json_t *json = lb_json_loadb(text, size, flags, why);
    free(text);
    return json;
}
