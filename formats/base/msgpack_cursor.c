/* See msgpack_cursor.h. Every object begins with one byte that says its type; `head` reads that and the size after
 * it. */
#include "base/msgpack_cursor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct head {
    lb_msgpack_type type;
    uint32_t bytes; /* of header and scalar; for str, bin, ext the body follows */
    uint64_t count; /* body bytes, elements or pairs; of a scalar its raw bits */
    bool negative;  /* the bits are a negative int64 */
    bool single;    /* the bits are a 32-bit float */
} head;

lb_cursor lb_cursor_of(const void *bytes, size_t size, const char *source, uint64_t base, lb_err *err)
{
    const uint8_t *start = (const uint8_t *)bytes;
    return (lb_cursor){start, start, start + size, source, base, err};
}

lb_status lb_cursor_fail(const lb_cursor *c, const char *field, const char *format, ...)
{
    char what[240];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return lb_fail(c->err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": %s: %s", c->source,
                   c->base + (uint64_t)(c->at - c->start), field, what);
}

static const char *type_name(lb_msgpack_type type)
{
    static const char *const names[] = {"nil",  "bool", "integer",          "float",   "text",           "bytes",
                                        "list", "map",  "extension object", "the end", "an invalid byte"};
    return names[type];
}

static uint64_t big_endian(const uint8_t *p, uint32_t n)
{
    uint64_t v = 0;
    for (uint32_t i = 0; i < n; i++) v = v << 8 | p[i];
    return v;
}

/* The one-byte forms; false when a size or a scalar follows. */
static bool short_head(uint8_t b, head *h)
{
    *h = (head){LB_MSGPACK_INVALID, 1, 0, false, false};
    if (b < 0x80)
        h->type = LB_MSGPACK_INT, h->count = b;
    else if (b < 0x90)
        h->type = LB_MSGPACK_MAP, h->count = b & 15;
    else if (b < 0xa0)
        h->type = LB_MSGPACK_ARRAY, h->count = b & 15;
    else if (b < 0xc0)
        h->type = LB_MSGPACK_STR, h->count = b & 31;
    else if (b >= 0xe0)
        h->type = LB_MSGPACK_INT, h->count = (uint64_t)(int64_t)(int8_t)b, h->negative = true;
    else if (b == 0xc0)
        h->type = LB_MSGPACK_NIL;
    else if (b == 0xc1)
        return true;
    else if (b == 0xc2 || b == 0xc3)
        h->type = LB_MSGPACK_BOOL, h->count = b & 1;
    else
        return false;
    return true;
}

/* 0xc4 … 0xdf: type and number of bytes that follow the first. */
static const struct {
    uint8_t type, follow;
} long_forms[] = {
    {LB_MSGPACK_BIN, 1},   {LB_MSGPACK_BIN, 2},   {LB_MSGPACK_BIN, 4},   {LB_MSGPACK_EXT, 1}, {LB_MSGPACK_EXT, 2},
    {LB_MSGPACK_EXT, 4},   {LB_MSGPACK_FLOAT, 4}, {LB_MSGPACK_FLOAT, 8}, {LB_MSGPACK_INT, 1}, {LB_MSGPACK_INT, 2},
    {LB_MSGPACK_INT, 4},   {LB_MSGPACK_INT, 8},   {LB_MSGPACK_INT, 1},   {LB_MSGPACK_INT, 2}, {LB_MSGPACK_INT, 4},
    {LB_MSGPACK_INT, 8},   {LB_MSGPACK_EXT, 0},   {LB_MSGPACK_EXT, 0},   {LB_MSGPACK_EXT, 0}, {LB_MSGPACK_EXT, 0},
    {LB_MSGPACK_EXT, 0},   {LB_MSGPACK_STR, 1},   {LB_MSGPACK_STR, 2},   {LB_MSGPACK_STR, 4}, {LB_MSGPACK_ARRAY, 2},
    {LB_MSGPACK_ARRAY, 4}, {LB_MSGPACK_MAP, 2},   {LB_MSGPACK_MAP, 4},
};

static head read_head(const lb_cursor *c)
{
    size_t left = (size_t)(c->end - c->at);
    head h = {LB_MSGPACK_END, 0, 0, false, false};
    if (left == 0 || short_head(*c->at, &h)) return h;
    uint8_t b = *c->at;
    uint32_t follow = long_forms[b - 0xc4].follow;
    if (left < 1 + (size_t)follow) return (head){LB_MSGPACK_END, 0, 0, false, false};
    h.type = (lb_msgpack_type)long_forms[b - 0xc4].type;
    h.bytes = 1 + follow;
    h.count = big_endian(c->at + 1, follow);
    h.single = b == 0xca;
    if (b >= 0xd0 && b <= 0xd3) { /* signed */
        h.count = (uint64_t)((int64_t)(h.count << (64 - 8 * follow)) >> (64 - 8 * follow));
        h.negative = (int64_t)h.count < 0;
    } else if (b >= 0xd4 && b <= 0xd8) { /* fixext: the type byte counts as body */
        h.count = (1u << (b - 0xd4)) + 1;
    } else if (h.type == LB_MSGPACK_EXT) {
        h.count += 1;
    }
    return h;
}

/* How many bytes at least the claimed content must take. */
static uint64_t claimed(const head *h)
{
    switch (h->type) {
    case LB_MSGPACK_STR:
    case LB_MSGPACK_BIN:
    case LB_MSGPACK_EXT:
    case LB_MSGPACK_ARRAY: return h->count;
    case LB_MSGPACK_MAP: return h->count * 2;
    default: return 0;
    }
}

lb_msgpack_type lb_cursor_peek(const lb_cursor *c)
{
    return read_head(c).type;
}

static lb_status take(lb_cursor *c, const char *field, lb_msgpack_type type, head *h)
{
    *h = read_head(c);
    if (h->type != type) return lb_cursor_fail(c, field, "found %s, expected %s", type_name(h->type), type_name(type));
    uint64_t left = (uint64_t)(c->end - c->at) - h->bytes;
    if (claimed(h) > left)
        return lb_cursor_fail(c, field, "claims %" PRIu64 " bytes or elements, only %" PRIu64 " bytes are left",
                              claimed(h), left);
    c->at += h->bytes;
    return LB_OK;
}

lb_status lb_cursor_map(lb_cursor *c, const char *field, uint32_t *pairs)
{
    head h;
    LB_TRY(take(c, field, LB_MSGPACK_MAP, &h));
    *pairs = (uint32_t)h.count;
    return LB_OK;
}

lb_status lb_cursor_array(lb_cursor *c, const char *field, uint32_t *count)
{
    head h;
    LB_TRY(take(c, field, LB_MSGPACK_ARRAY, &h));
    *count = (uint32_t)h.count;
    return LB_OK;
}

lb_status lb_cursor_str(lb_cursor *c, const char *field, const char **text, uint32_t *n)
{
    head h;
    LB_TRY(take(c, field, LB_MSGPACK_STR, &h));
    *text = (const char *)c->at;
    *n = (uint32_t)h.count;
    c->at += h.count;
    return LB_OK;
}

lb_status lb_cursor_bin(lb_cursor *c, const char *field, const void **bytes, size_t *n)
{
    head h;
    LB_TRY(take(c, field, LB_MSGPACK_BIN, &h));
    *bytes = c->at;
    *n = (size_t)h.count;
    c->at += h.count;
    return LB_OK;
}

lb_status lb_cursor_int(lb_cursor *c, const char *field, int64_t *number)
{
    head h;
    LB_TRY(take(c, field, LB_MSGPACK_INT, &h));
    if (!h.negative && h.count > INT64_MAX) return lb_cursor_fail(c, field, "%" PRIu64 " is too large", h.count);
    *number = (int64_t)h.count;
    return LB_OK;
}

lb_status lb_cursor_int_in(lb_cursor *c, const char *field, int64_t low, int64_t high, int64_t *number)
{
    LB_TRY(lb_cursor_int(c, field, number));
    if (*number < low || *number > high)
        return lb_cursor_fail(c, field, "%" PRId64 " is not in %" PRId64 "…%" PRId64, *number, low, high);
    return LB_OK;
}

lb_status lb_cursor_f64(lb_cursor *c, const char *field, double *number)
{
    head h;
    if (lb_cursor_peek(c) == LB_MSGPACK_INT) {
        LB_TRY(take(c, field, LB_MSGPACK_INT, &h));
        *number = h.negative ? (double)(int64_t)h.count : (double)h.count;
        return LB_OK;
    }
    LB_TRY(take(c, field, LB_MSGPACK_FLOAT, &h));
    if (h.single) {
        uint32_t bits = (uint32_t)h.count;
        float single;
        memcpy(&single, &bits, sizeof single);
        *number = single;
    } else {
        memcpy(number, &h.count, sizeof *number);
    }
    return LB_OK;
}

lb_status lb_cursor_bool(lb_cursor *c, const char *field, bool *truth)
{
    head h;
    LB_TRY(take(c, field, LB_MSGPACK_BOOL, &h));
    *truth = h.count != 0;
    return LB_OK;
}

lb_status lb_cursor_skip(lb_cursor *c, const char *field)
{
    /* `pending` objects are still to come over all open containers; each needs a byte. */
    for (uint64_t pending = 1; pending > 0; pending--) {
        head h = read_head(c);
        if (h.type == LB_MSGPACK_END || h.type == LB_MSGPACK_INVALID)
            return lb_cursor_fail(c, field, "found %s inside an object", type_name(h.type));
        LB_TRY(take(c, field, h.type, &h));
        if (h.type == LB_MSGPACK_ARRAY || h.type == LB_MSGPACK_MAP) {
            pending += claimed(&h);
            if (pending - 1 > (uint64_t)(c->end - c->at))
                return lb_cursor_fail(c, field,
                                      "open lists and maps claim %" PRIu64 " elements, only %zu bytes are left",
                                      pending - 1, (size_t)(c->end - c->at));
        } else {
            c->at += claimed(&h);
        }
    }
    return LB_OK;
}
