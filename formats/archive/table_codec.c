/* Tables: JSON text in the API, MessagePack in the file. Depth and element counts are bounded before anything is
 * built. */
#include "archive/record.h"

#include "base/byte_buffer.h"
#include "base/msgpack_cursor.h"
#include "archive/table_text.h"

#include <lastbit/json_text.h>
#include <lastbit/text.h>
#include <math.h>

lb_status lb_table_encode(const char *json, void **bytes, size_t *size, lb_err *err)
{
    byte_buffer buffer = {0};
    const lb_status status = lb_table_text_pack(json, &buffer, err);
    if (status == LB_OK)
        *bytes = buffer.bytes, *size = buffer.size;
    else
        buffer_release(&buffer);
    return status;
}

static lb_status unpack(lb_cursor *c, int depth, json_t **json);

static lb_status unpack_map(lb_cursor *cursor, int depth, json_t **json)
{
    uint32_t pairs, n;
    const char *key;
    LB_TRY(lb_cursor_map(cursor, "table", &pairs));
    if (!(*json = json_object())) return lb_fail(cursor->err, LB_ERR_NOMEM, "table: out of memory");
    for (uint32_t i = 0; i < pairs; i++) {
        json_t *child = NULL;
        LB_TRY(lb_cursor_str(cursor, "table key", &key, &n));
        char *text = memchr(key, '\0', n) ? lb_text_name(key, n) : strndup(key, n);
        if (!text) return lb_fail(cursor->err, LB_ERR_NOMEM, "table: out of memory");
        lb_status status = unpack(cursor, depth + 1, &child);
        if (status != LB_OK)
            json_decref(child);
        else if (json_object_set_new(*json, text, child) != 0)
            status = lb_fail(cursor->err, LB_ERR_NOMEM, "table: out of memory");
        free(text);
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status unpack_array(lb_cursor *cursor, int depth, json_t **json)
{
    uint32_t count;
    LB_TRY(lb_cursor_array(cursor, "table", &count));
    if (!(*json = json_array())) return lb_fail(cursor->err, LB_ERR_NOMEM, "table: out of memory");
    for (uint32_t i = 0; i < count; i++) {
        json_t *child = NULL;
        lb_status status = unpack(cursor, depth + 1, &child);
        if (status != LB_OK) {
            json_decref(child);
            return status;
        }
        if (json_array_append_new(*json, child) != 0) return lb_fail(cursor->err, LB_ERR_NOMEM, "table: out of memory");
    }
    return LB_OK;
}

/* On failure `*json` may hold what was read so far; the caller drops it. */
static lb_status unpack(lb_cursor *cursor, int depth, json_t **json)
{
    const char *text;
    uint32_t n;
    int64_t integer;
    double real;
    bool truth;
    if (depth > LB_TABLE_DEPTH) return lb_cursor_fail(cursor, "table", "nested more than %d deep", LB_TABLE_DEPTH);
    switch (lb_cursor_peek(cursor)) {
    case LB_MSGPACK_MAP: LB_TRY(unpack_map(cursor, depth, json)); break;
    case LB_MSGPACK_ARRAY: LB_TRY(unpack_array(cursor, depth, json)); break;
    case LB_MSGPACK_STR:
        LB_TRY(lb_cursor_str(cursor, "table", &text, &n));
        *json = json_stringn(text, n);
        break;
    case LB_MSGPACK_INT:
        LB_TRY(lb_cursor_int(cursor, "table", &integer));
        *json = json_integer(integer);
        break;
    case LB_MSGPACK_FLOAT:
        LB_TRY(lb_cursor_f64(cursor, "table", &real));
        *json = isfinite(real) ? json_real(real) : json_null(); /* JSON has no NaN */
        break;
    case LB_MSGPACK_BOOL:
        LB_TRY(lb_cursor_bool(cursor, "table", &truth));
        *json = json_boolean(truth);
        break;
    default: LB_TRY(lb_cursor_skip(cursor, "table")); *json = json_null();
    }
    return *json ? LB_OK : lb_fail(cursor->err, LB_ERR_NOMEM, "table: out of memory");
}

lb_status lb_table_decode(const void *bytes, size_t size, const char *source, uint64_t offset, char **json, lb_err *err)
{
    lb_cursor cursor = lb_cursor_of(bytes, size, source, offset, err);
    json_t *root = NULL;
    lb_status status = unpack(&cursor, 0, &root);
    *json = status == LB_OK ? json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(root);
    if (status == LB_OK && !*json) return lb_fail(err, LB_ERR_NOMEM, "table: out of memory");
    return status;
}
