/* Tables: JSON text in the API, MessagePack in the file. Depth and element counts are bounded before anything is built. */
#include "record.h"

#include "byte_buffer.h"
#include "msgpack_cursor.h"

#include <lastbit/json_text.h>
#include <lastbit/text.h>
#include <math.h>

#define MAX_DEPTH 64

static bool pack_json(msgpack_packer *p, const json_t *json, int depth)
{
    if (depth > MAX_DEPTH) return false;
    const char *key;
    json_t *child;
    size_t index;
    switch (json_typeof(json)) {
    case JSON_NULL: return msgpack_pack_nil(p) == 0;
    case JSON_TRUE: return msgpack_pack_true(p) == 0;
    case JSON_FALSE: return msgpack_pack_false(p) == 0;
    case JSON_INTEGER: return msgpack_pack_int64(p, json_integer_value(json)) == 0;
    case JSON_REAL: return msgpack_pack_double(p, json_real_value(json)) == 0;
    case JSON_STRING:
        return msgpack_pack_str(p, json_string_length(json)) == 0 &&
               msgpack_pack_str_body(p, json_string_value(json), json_string_length(json)) == 0;
    case JSON_ARRAY:
        if (msgpack_pack_array(p, json_array_size(json)) != 0) return false;
        json_array_foreach(json, index, child) if (!pack_json(p, child, depth + 1)) return false;
        return true;
    case JSON_OBJECT:
        if (msgpack_pack_map(p, json_object_size(json)) != 0) return false;
        json_object_foreach((json_t *)(uintptr_t)json, key, child)
        {
            pack_text(p, key);
            if (!pack_json(p, child, depth + 1)) return false;
        }
        return true;
    }
    return false;
}

lb_status lb_table_encode(const char *json, void **bytes, size_t *size, lb_err *err)
{
    json_error_t why;
    json_t *root = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!root) return lb_fail(err, LB_ERR_INVALID, "table: line %d, column %d: %s", why.line, why.column, why.text);
    byte_buffer buffer = {0};
    msgpack_packer packer = buffer_packer(&buffer);
    bool packed = pack_json(&packer, root, 0);
    json_decref(root);
    if (packed && !buffer.failed) {
        *bytes = buffer.bytes;
        *size = buffer.size;
        return LB_OK;
    }
    bool memory = buffer.failed;
    buffer_release(&buffer);
    return memory ? lb_fail(err, LB_ERR_NOMEM, "table: out of memory")
                  : lb_fail(err, LB_ERR_INVALID, "table: nested more than %d deep", MAX_DEPTH);
}

static lb_status unpack(lb_cursor *c, int depth, json_t **json);

static lb_status unpack_map(lb_cursor *c, int depth, json_t **json)
{
    uint32_t pairs, n;
    const char *key;
    LB_TRY(lb_cursor_map(c, "table", &pairs));
    *json = json_object();
    for (uint32_t i = 0; i < pairs; i++) {
        json_t *child = NULL;
        LB_TRY(lb_cursor_str(c, "table key", &key, &n));
        char *text = memchr(key, '\0', n) ? lb_text_name(key, n) : strndup(key, n);
        lb_status status = unpack(c, depth + 1, &child);
        if (status != LB_OK)
            json_decref(child);
        else if (!text || json_object_set_new(*json, text, child) != 0)
            status = lb_fail(c->err, LB_ERR_NOMEM, "table: out of memory");
        free(text);
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status unpack_array(lb_cursor *c, int depth, json_t **json)
{
    uint32_t count;
    LB_TRY(lb_cursor_array(c, "table", &count));
    *json = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *child = NULL;
        lb_status status = unpack(c, depth + 1, &child);
        if (status != LB_OK) {
            json_decref(child);
            return status;
        }
        json_array_append_new(*json, child);
    }
    return LB_OK;
}

/* On failure `*json` may hold what was read so far; the caller drops it. */
static lb_status unpack(lb_cursor *c, int depth, json_t **json)
{
    const char *text;
    uint32_t n;
    int64_t integer;
    double real;
    bool truth;
    if (depth > MAX_DEPTH) return lb_cursor_fail(c, "table", "nested more than %d deep", MAX_DEPTH);
    switch (lb_cursor_peek(c)) {
    case LB_MSGPACK_MAP: LB_TRY(unpack_map(c, depth, json)); break;
    case LB_MSGPACK_ARRAY: LB_TRY(unpack_array(c, depth, json)); break;
    case LB_MSGPACK_STR:
        LB_TRY(lb_cursor_str(c, "table", &text, &n));
        *json = json_stringn(text, n);
        break;
    case LB_MSGPACK_INT:
        LB_TRY(lb_cursor_int(c, "table", &integer));
        *json = json_integer(integer);
        break;
    case LB_MSGPACK_FLOAT:
        LB_TRY(lb_cursor_f64(c, "table", &real));
        *json = isfinite(real) ? json_real(real) : json_null(); /* JSON has no NaN */
        break;
    case LB_MSGPACK_BOOL:
        LB_TRY(lb_cursor_bool(c, "table", &truth));
        *json = json_boolean(truth);
        break;
    default: LB_TRY(lb_cursor_skip(c, "table")); *json = json_null();
    }
    return *json ? LB_OK : lb_fail(c->err, LB_ERR_NOMEM, "table: out of memory");
}

lb_status lb_table_decode(const void *bytes, size_t size, const char *source, uint64_t offset, char **json, lb_err *err)
{
    lb_cursor c = lb_cursor_of(bytes, size, source, offset, err);
    json_t *root = NULL;
    lb_status status = unpack(&c, 0, &root);
    *json = status == LB_OK ? json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(root);
    if (status == LB_OK && !*json) return lb_fail(err, LB_ERR_NOMEM, "table: out of memory");
    return status;
}
