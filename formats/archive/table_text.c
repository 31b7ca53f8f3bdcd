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

static bool fail(reading *r, const char *wrong)
{
    if (!r->wrong) r->wrong = wrong;
    return false;
}

static char next(reading *r)
{
    r->at += strspn(r->at, " \t\n\r");
    return *r->at;
}

static bool take(reading *r, char c, const char *wrong)
{
    if (next(r) != c) return fail(r, wrong);
    r->at++;
    return true;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `s`, as RFC 3629 has it; 0: it is none. */
static size_t utf8_bytes(const unsigned char *s)
{
    const unsigned c = s[0];
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (c == 0xe0 && s[1] < 0xa0) || (c == 0xf0 && s[1] < 0x90);
    const bool beyond = (c == 0xed && s[1] >= 0xa0) || (c == 0xf4 && s[1] >= 0x90); /* surrogates, above 10FFFF */
    return overlong || beyond ? 0 : n;
}

static void add_utf8(byte_buffer *out, unsigned code)
{
    char s[4];
    size_t n = 0;
    if (code < 0x80) {
        s[n++] = (char)code;
    } else if (code < 0x800) {
        s[n++] = (char)(0xc0 | code >> 6);
    } else if (code < 0x10000) {
        s[n++] = (char)(0xe0 | code >> 12);
        s[n++] = (char)(0x80 | (code >> 6 & 0x3f));
    } else {
        s[n++] = (char)(0xf0 | code >> 18);
        s[n++] = (char)(0x80 | (code >> 12 & 0x3f));
        s[n++] = (char)(0x80 | (code >> 6 & 0x3f));
    }
    if (code >= 0x80) s[n++] = (char)(0x80 | (code & 0x3f));
    buffer_add(out, s, n);
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
static bool read_escape(reading *r, bool key)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *name = *r->at ? strchr(names, *r->at) : NULL;
    if (name) {
        r->at++;
        buffer_add_u8(r->out, (uint8_t)meant[name - names]);
        return true;
    }
    int code = *r->at == 'u' ? hexadecimal(r->at + 1) : -1;
    if (code < 0) return fail(r, "invalid escape");
    if (code >= 0xdc00 && code < 0xe000) return fail(r, "invalid Unicode escape: the second half of a pair alone");
    if (code >= 0xd800 && code < 0xdc00) {
        const int low = r->at[5] == '\\' && r->at[6] == 'u' ? hexadecimal(r->at + 7) : -1;
        if (low < 0xdc00 || low >= 0xe000) return fail(r, "invalid Unicode escape: the first half of a pair alone");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        r->at += 6;
    }
    if (code == 0 && key) return fail(r, "a key holds NUL");
    r->at += 5;
    add_utf8(r->out, (unsigned)code);
    return true;
}

/* A header of 5 bytes was left open at `header`: it becomes the shortest that msgpack-c writes for this count. */
static void close_header(reading *r, size_t header, int (*pack)(msgpack_packer *, size_t), size_t count)
{
    enum { ROOM = 5 };
    if (r->out->failed) return;
    const size_t body = r->out->size - header - ROOM;
    byte_buffer form = {0};
    char bytes[ROOM];
    form.bytes = bytes, form.capacity = sizeof bytes;
    r->packer.data = &form;
    pack(&r->packer, count);
    r->packer.data = r->out;
    memcpy(r->out->bytes + header, bytes, form.size);
    memmove(r->out->bytes + header + form.size, r->out->bytes + header + ROOM, body);
    r->out->size = header + form.size + body;
}

static bool read_string(reading *r, bool key)
{
    const size_t header = r->out->size;
    if (!take(r, '"', "expected a string")) return false;
    buffer_extend(r->out, 5);
    while (*r->at != '"') {
        if (*r->at == '\\') {
            r->at++;
            if (!read_escape(r, key)) return false;
            continue;
        }
        const size_t n = utf8_bytes((const unsigned char *)r->at);
        if (!n) return fail(r, "invalid UTF-8");
        if ((unsigned char)*r->at < 0x20)
            return fail(r, *r->at ? "a control character in a string" : "a string without end");
        buffer_add(r->out, r->at, n);
        r->at += n;
    }
    r->at++;
    close_header(r, header, msgpack_pack_str, r->out->failed ? 0 : r->out->size - header - 5);
    return true;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static size_t digits_at(const char *s)
{
    return strspn(s, "0123456789");
}

/* The text is a number of JSON, so that strtoll and strtod read all of it; in the C locale, whatever the host has
 * set. */
static bool read_number(reading *r)
{
    const char *s = r->at + (*r->at == '-'), *end;
    const size_t whole = *s == '0' ? 1 : digits_at(s);
    if (!whole) return fail(r, "invalid token");
    end = s + whole;
    bool real = false;
    if (*end == '.') {
        const size_t n = digits_at(end + 1);
        if (!n) return fail(r, "invalid number");
        end += 1 + n, real = true;
    }
    if (*end == 'e' || *end == 'E') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-');
        const size_t n = digits_at(power);
        if (!n) return fail(r, "invalid number");
        end = power + n, real = true;
    }
    errno = 0;
    if (real) {
        const double number = strtod_l(r->at, NULL, newlocale(LC_ALL_MASK, "C", (locale_t)0)); /* which is static */
        if (!isfinite(number)) return fail(r, "real number overflow");
        msgpack_pack_double(&r->packer, number);
    } else {
        const long long number = strtoll(r->at, NULL, 10);
        if (errno == ERANGE) return fail(r, "too big integer");
        msgpack_pack_int64(&r->packer, number);
    }
    r->at = end;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool read_value(reading *r, int depth);

static bool read_items(reading *r, char close, int depth)
{
    const size_t header = r->out->size;
    const bool map = close == '}';
    size_t count = 0;
    r->at++;
    buffer_extend(r->out, 5);
    if (next(r) == close) {
        r->at++;
    } else {
        for (;; r->at++) {
            if (map && !(read_string(r, true) && take(r, ':', "expected ':'"))) return false;
            if (!read_value(r, depth + 1)) return false;
            count++;
            if (next(r) != ',') break;
        }
        if (!take(r, close, map ? "expected '}'" : "expected ']'")) return false;
    }
    close_header(r, header, map ? msgpack_pack_map : msgpack_pack_array, count);
    return true;
}

static bool read_word(reading *r)
{
    static const struct {
        const char *word;
        int (*pack)(msgpack_packer *);
    } words[] = {{"null", msgpack_pack_nil}, {"true", msgpack_pack_true}, {"false", msgpack_pack_false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i].word);
        if (strncmp(r->at, words[i].word, n) != 0) continue;
        r->at += n;
        words[i].pack(&r->packer);
        return true;
    }
    return fail(r, *r->at ? "invalid token" : "the text ends too early");
}

static bool read_value(reading *r, int depth)
{
    const char c = next(r);
    if (depth > LB_TABLE_DEPTH) return fail(r, "nested too deep");
    if (c == '{') return read_items(r, '}', depth);
    if (c == '[') return read_items(r, ']', depth);
    if (c == '"') return read_string(r, false);
    return c == '-' || (c >= '0' && c <= '9') ? read_number(r) : read_word(r);
}

lb_status lb_table_text_pack(const char *json, byte_buffer *out, lb_err *err)
{
    reading r = {.start = json, .at = json, .out = out, .packer = buffer_packer(out)};
    if (read_value(&r, 0) && next(&r) != '\0') fail(&r, "expected the end of the text");
    if (out->failed) return lb_fail(err, LB_ERR_NOMEM, "table: out of memory");
    if (!r.wrong) return LB_OK;
    int line = 1;
    const char *row = json;
    for (const char *at = json; at < r.at; at++)
        if (*at == '\n') line++, row = at + 1;
    return lb_fail(err, LB_ERR_INVALID, "table: line %d, column %d: %s", line, (int)(r.at - row) + 1, r.wrong);
}
