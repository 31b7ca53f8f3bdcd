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

lb_status lb_cursor_fail(const lb_cursor *cursor, const char *field, const char *format, ...)
{
    char what[240];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return lb_fail(cursor->err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": %s: %s", cursor->source,
                   cursor->base + (uint64_t)(cursor->at - cursor->start), field, what);
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
static bool short_head(uint8_t byte, head *made)
{
    *made = (head){LB_MSGPACK_INVALID, 1, 0, false, false};
    if (byte < 0x80)
        made->type = LB_MSGPACK_INT, made->count = byte;
    else if (byte < 0x90)
        made->type = LB_MSGPACK_MAP, made->count = byte & 15;
    else if (byte < 0xa0)
        made->type = LB_MSGPACK_ARRAY, made->count = byte & 15;
    else if (byte < 0xc0)
        made->type = LB_MSGPACK_STR, made->count = byte & 31;
    else if (byte >= 0xe0)
        made->type = LB_MSGPACK_INT, made->count = (uint64_t)(int64_t)(int8_t)byte, made->negative = true;
    else if (byte == 0xc0)
        made->type = LB_MSGPACK_NIL;
    else if (byte == 0xc1)
        return true;
    else if (byte == 0xc2 || byte == 0xc3)
        made->type = LB_MSGPACK_BOOL, made->count = byte & 1;
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

static head read_head(const lb_cursor *cursor)
{
    size_t left = (size_t)(cursor->end - cursor->at);
    head made = {LB_MSGPACK_END, 0, 0, false, false};
    if (left == 0 || short_head(*cursor->at, &made)) return made;
    uint8_t byte = *cursor->at;
    uint32_t follow = long_forms[byte - 0xc4].follow;
    if (left < 1 + (size_t)follow) return (head){LB_MSGPACK_END, 0, 0, false, false};
    made.type = (lb_msgpack_type)long_forms[byte - 0xc4].type;
    made.bytes = 1 + follow;
    made.count = big_endian(cursor->at + 1, follow);
    made.single = byte == 0xca;
    if (byte >= 0xd0 && byte <= 0xd3) { /* signed */
        made.count = (uint64_t)((int64_t)(made.count << (64 - 8 * follow)) >> (64 - 8 * follow));
        made.negative = (int64_t)made.count < 0;
    } else if (byte >= 0xd4 && byte <= 0xd8) { /* fixext: the type byte counts as body */
        made.count = (1u << (byte - 0xd4)) + 1;
    } else if (made.type == LB_MSGPACK_EXT) {
        made.count += 1;
    }
    return made;
}

/* How many bytes at least the claimed content must take. */
static uint64_t claimed(const head *head)
{
    switch (head->type) {
    case LB_MSGPACK_STR:
    case LB_MSGPACK_BIN:
    case LB_MSGPACK_EXT:
    case LB_MSGPACK_ARRAY: return head->count;
    case LB_MSGPACK_MAP: return head->count * 2;
    default: return 0;
    }
}

lb_msgpack_type lb_cursor_peek(const lb_cursor *cursor)
{
    return read_head(cursor).type;
}

static lb_status take(lb_cursor *cursor, const char *field, lb_msgpack_type type, head *head)
{
    *head = read_head(cursor);
    if (head->type != type)
        return lb_cursor_fail(cursor, field, "found %s, expected %s", type_name(head->type), type_name(type));
    uint64_t left = (uint64_t)(cursor->end - cursor->at) - head->bytes;
    if (claimed(head) > left)
        return lb_cursor_fail(cursor, field, "claims %" PRIu64 " bytes or elements, only %" PRIu64 " bytes are left",
                              claimed(head), left);
    cursor->at += head->bytes;
    return LB_OK;
}

lb_status lb_cursor_map(lb_cursor *cursor, const char *field, uint32_t *pairs)
{
    head head;
    LB_TRY(take(cursor, field, LB_MSGPACK_MAP, &head));
    *pairs = (uint32_t)head.count;
    return LB_OK;
}

lb_status lb_cursor_array(lb_cursor *cursor, const char *field, uint32_t *count)
{
    head head;
    LB_TRY(take(cursor, field, LB_MSGPACK_ARRAY, &head));
    *count = (uint32_t)head.count;
    return LB_OK;
}

lb_status lb_cursor_str(lb_cursor *cursor, const char *field, const char **text, uint32_t *n)
{
    head head;
    LB_TRY(take(cursor, field, LB_MSGPACK_STR, &head));
    *text = (const char *)cursor->at;
    *n = (uint32_t)head.count;
    cursor->at += head.count;
    return LB_OK;
}

lb_status lb_cursor_bin(lb_cursor *cursor, const char *field, const void **bytes, size_t *n)
{
    head head;
    LB_TRY(take(cursor, field, LB_MSGPACK_BIN, &head));
    *bytes = cursor->at;
    *n = (size_t)head.count;
    cursor->at += head.count;
    return LB_OK;
}

lb_status lb_cursor_int(lb_cursor *cursor, const char *field, int64_t *number)
{
    head head;
    LB_TRY(take(cursor, field, LB_MSGPACK_INT, &head));
    if (!head.negative && head.count > INT64_MAX)
        return lb_cursor_fail(cursor, field, "%" PRIu64 " is too large", head.count);
    *number = (int64_t)head.count;
    return LB_OK;
}

lb_status lb_cursor_int_in(lb_cursor *cursor, const char *field, int64_t low, int64_t high, int64_t *number)
{
    LB_TRY(lb_cursor_int(cursor, field, number));
    if (*number < low || *number > high)
        return lb_cursor_fail(cursor, field, "%" PRId64 " is not in %" PRId64 "…%" PRId64, *number, low, high);
    return LB_OK;
}

lb_status lb_cursor_f64(lb_cursor *cursor, const char *field, double *number)
{
    head head;
    if (lb_cursor_peek(cursor) == LB_MSGPACK_INT) {
        LB_TRY(take(cursor, field, LB_MSGPACK_INT, &head));
        *number = head.negative ? (double)(int64_t)head.count : (double)head.count;
        return LB_OK;
    }
    LB_TRY(take(cursor, field, LB_MSGPACK_FLOAT, &head));
    if (head.single) {
        uint32_t bits = (uint32_t)head.count;
        float single;
        memcpy(&single, &bits, sizeof single);
        *number = single;
    } else {
        memcpy(number, &head.count, sizeof *number);
    }
    return LB_OK;
}

lb_status lb_cursor_bool(lb_cursor *cursor, const char *field, bool *truth)
{
    head head;
    LB_TRY(take(cursor, field, LB_MSGPACK_BOOL, &head));
    *truth = head.count != 0;
    return LB_OK;
}

lb_status lb_cursor_skip(lb_cursor *cursor, const char *field)
{
    /* `pending` objects are still to come over all open containers; each needs a byte. */
    for (uint64_t pending = 1; pending > 0; pending--) {
        head head = read_head(cursor);
        if (head.type == LB_MSGPACK_END || head.type == LB_MSGPACK_INVALID)
            return lb_cursor_fail(cursor, field, "found %s inside an object", type_name(head.type));
        LB_TRY(take(cursor, field, head.type, &head));
        if (head.type == LB_MSGPACK_ARRAY || head.type == LB_MSGPACK_MAP) {
            pending += claimed(&head);
            if (pending - 1 > (uint64_t)(cursor->end - cursor->at))
                return lb_cursor_fail(cursor, field,
                                      "open lists and maps claim %" PRIu64 " elements, only %zu bytes are left",
                                      pending - 1, (size_t)(cursor->end - cursor->at));
        } else {
            cursor->at += claimed(&head);
        }
    }
    return LB_OK;
}
