/* JSON text to MessagePack: see table_text.h. A recursive descent, bounded in depth, which writes what it has read. */
#define _GNU_SOURCE /* strtod_l */
#include "archive/table_text.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
    const char *start, *at; /* the text ends in NUL */
    byte_buffer *out;
    msgpack_packer packer;
    const char *wrong; /* what is wrong at `at`; NULL: nothing so far */
} reading;

static bool fail(reading *reading, const char *wrong)
{
    if (!reading->wrong) reading->wrong = wrong;
    return false;
}

static char next(reading *reading)
{
    reading->at += strspn(reading->at, " \t\n\r");
    return *reading->at;
}

static bool take(reading *reading, char c, const char *wrong)
{
    if (next(reading) != c) return fail(reading, wrong);
    reading->at++;
    return true;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `s`, as RFC 3629 has it; 0: it is none. */
static size_t utf8_bytes(const unsigned char *text)
{
    const unsigned lead = text[0];
    const size_t n = lead < 0x80                   ? 1
                     : lead >= 0xc2 && lead < 0xe0 ? 2
                     : lead >= 0xe0 && lead < 0xf0 ? 3
                     : lead >= 0xf0 && lead < 0xf5 ? 4
                                                   : 0;
    for (size_t i = 1; i < n; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (lead == 0xe0 && text[1] < 0xa0) || (lead == 0xf0 && text[1] < 0x90);
    const bool beyond =
        (lead == 0xed && text[1] >= 0xa0) || (lead == 0xf4 && text[1] >= 0x90); /* surrogates, above 10FFFF */
    return overlong || beyond ? 0 : n;
}

static void add_utf8(byte_buffer *out, unsigned code)
{
    char bytes[4];
    size_t n = 0;
    if (code < 0x80) {
        bytes[n++] = (char)code;
    } else if (code < 0x800) {
        bytes[n++] = (char)(0xc0 | code >> 6);
    } else if (code < 0x10000) {
        bytes[n++] = (char)(0xe0 | code >> 12);
        bytes[n++] = (char)(0x80 | (code >> 6 & 0x3f));
    } else {
        bytes[n++] = (char)(0xf0 | code >> 18);
        bytes[n++] = (char)(0x80 | (code >> 12 & 0x3f));
        bytes[n++] = (char)(0x80 | (code >> 6 & 0x3f));
    }
    if (code >= 0x80) bytes[n++] = (char)(0x80 | (code & 0x3f));
    buffer_add(out, bytes, n);
}

/* The four digits behind "\u"; -1: they are none. */
static int hexadecimal(const char *s)
{
    int code = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = s[i] ? strchr(digits, s[i] >= 'A' && s[i] <= 'F' ? s[i] + 32 : s[i]) : NULL;
        if (!digit) return -1;
        code = code * 16 + (int)(digit - digits);
    }
    return code;
}

/* Behind the backslash. */
static bool read_escape(reading *reading, bool key)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *name = *reading->at ? strchr(names, *reading->at) : NULL;
    if (name) {
        reading->at++;
        buffer_add_u8(reading->out, (uint8_t)meant[name - names]);
        return true;
    }
    int code = *reading->at == 'u' ? hexadecimal(reading->at + 1) : -1;
    if (code < 0) return fail(reading, "invalid escape");
    if (code >= 0xdc00 && code < 0xe000)
        return fail(reading, "invalid Unicode escape: the second half of a pair alone");
    if (code >= 0xd800 && code < 0xdc00) {
        const int low = reading->at[5] == '\\' && reading->at[6] == 'u' ? hexadecimal(reading->at + 7) : -1;
        if (low < 0xdc00 || low >= 0xe000)
            return fail(reading, "invalid Unicode escape: the first half of a pair alone");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        reading->at += 6;
    }
    if (code == 0 && key) return fail(reading, "a key holds NUL");
    reading->at += 5;
    add_utf8(reading->out, (unsigned)code);
    return true;
}

/* A header of 5 bytes was left open at `header`: it becomes the shortest that msgpack-c writes for this count. */
static void close_header(reading *reading, size_t header, int (*pack)(msgpack_packer *, size_t), size_t count)
{
    enum { ROOM = 5 };
    if (reading->out->failed) return;
    const size_t body = reading->out->size - header - ROOM;
    byte_buffer form = {0};
    char bytes[ROOM];
    form.bytes = bytes, form.capacity = sizeof bytes;
    reading->packer.data = &form;
    pack(&reading->packer, count);
    reading->packer.data = reading->out;
    memcpy(reading->out->bytes + header, bytes, form.size);
    memmove(reading->out->bytes + header + form.size, reading->out->bytes + header + ROOM, body);
    reading->out->size = header + form.size + body;
}

static bool read_string(reading *reading, bool key)
{
    const size_t header = reading->out->size;
    if (!take(reading, '"', "expected a string")) return false;
    buffer_extend(reading->out, 5);
    while (*reading->at != '"') {
        if (*reading->at == '\\') {
            reading->at++;
            if (!read_escape(reading, key)) return false;
            continue;
        }
        const size_t n = utf8_bytes((const unsigned char *)reading->at);
        if (!n) return fail(reading, "invalid UTF-8");
        if ((unsigned char)*reading->at < 0x20)
            return fail(reading, *reading->at ? "a control character in a string" : "a string without end");
        buffer_add(reading->out, reading->at, n);
        reading->at += n;
    }
    reading->at++;
    close_header(reading, header, msgpack_pack_str, reading->out->failed ? 0 : reading->out->size - header - 5);
    return true;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static size_t digits_at(const char *s)
{
    return strspn(s, "0123456789");
}

/* The text is a number of JSON, so that strtoll and strtod read all of it; in the C locale, whatever the host has
 * set. */
static bool read_number(reading *reading)
{
    const char *s = reading->at + (*reading->at == '-'), *end;
    const size_t whole = *s == '0' ? 1 : digits_at(s);
    if (!whole) return fail(reading, "invalid token");
    end = s + whole;
    bool real = false;
    if (*end == '.') {
        const size_t n = digits_at(end + 1);
        if (!n) return fail(reading, "invalid number");
        end += 1 + n, real = true;
    }
    if (*end == 'e' || *end == 'E') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-');
        const size_t n = digits_at(power);
        if (!n) return fail(reading, "invalid number");
        end = power + n, real = true;
    }
    errno = 0;
    if (real) {
        const double number =
            strtod_l(reading->at, NULL, newlocale(LC_ALL_MASK, "C", (locale_t)0)); /* which is static */
        if (!isfinite(number)) return fail(reading, "real number overflow");
        msgpack_pack_double(&reading->packer, number);
    } else {
        const long long number = strtoll(reading->at, NULL, 10);
        if (errno == ERANGE) return fail(reading, "too big integer");
        msgpack_pack_int64(&reading->packer, number);
    }
    reading->at = end;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool read_value(reading *r, int depth);

static bool read_items(reading *reading, char close, int depth)
{
    const size_t header = reading->out->size;
    const bool map = close == '}';
    size_t count = 0;
    reading->at++;
    buffer_extend(reading->out, 5);
    if (next(reading) == close) {
        reading->at++;
    } else {
        for (;; reading->at++) {
            if (map && !(read_string(reading, true) && take(reading, ':', "expected ':'"))) return false;
            if (!read_value(reading, depth + 1)) return false;
            count++;
            if (next(reading) != ',') break;
        }
        if (!take(reading, close, map ? "expected '}'" : "expected ']'")) return false;
    }
    close_header(reading, header, map ? msgpack_pack_map : msgpack_pack_array, count);
    return true;
}

static bool read_word(reading *reading)
{
    static const struct {
        const char *word;
        int (*pack)(msgpack_packer *);
    } words[] = {{"null", msgpack_pack_nil}, {"true", msgpack_pack_true}, {"false", msgpack_pack_false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i].word);
        if (strncmp(reading->at, words[i].word, n) != 0) continue;
        reading->at += n;
        words[i].pack(&reading->packer);
        return true;
    }
    return fail(reading, *reading->at ? "invalid token" : "the text ends too early");
}

static bool read_value(reading *reading, int depth)
{
    const char c = next(reading);
    if (depth > LB_TABLE_DEPTH) return fail(reading, "nested too deep");
    if (c == '{') return read_items(reading, '}', depth);
    if (c == '[') return read_items(reading, ']', depth);
    if (c == '"') return read_string(reading, false);
    return c == '-' || (c >= '0' && c <= '9') ? read_number(reading) : read_word(reading);
}

lb_status lb_table_text_pack(const char *json, byte_buffer *out, lb_err *err)
{
    reading reading = {.start = json, .at = json, .out = out, .packer = buffer_packer(out)};
    if (read_value(&reading, 0) && next(&reading) != '\0') fail(&reading, "expected the end of the text");
    if (out->failed) return lb_fail(err, LB_ERR_NOMEM, "table: out of memory");
    if (!reading.wrong) return LB_OK;
    int line = 1;
    const char *row = json;
    for (const char *at = json; at < reading.at; at++)
        if (*at == '\n') line++, row = at + 1;
    return lb_fail(err, LB_ERR_INVALID, "table: line %d, column %d: %s", line, (int)(reading.at - row) + 1,
                   reading.wrong);
}
