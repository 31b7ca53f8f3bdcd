/* TensorBoard's event file: see tensorboard.h. */
#include "watch/tensorboard.h"

#include <math.h>
#include <string.h>

enum { FRAME = 12, TAIL = 4, LARGEST = 64 << 20 };

/* ---- framing ----------------------------------------------------------------------------------------------------- */

uint32_t lb_tensorboard_crc32c(const void *bytes, size_t n)
{
    static const uint32_t POLYNOMIAL = 0x82f63b78; /* reflected */
    uint32_t table[16], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int bit = 0; bit < 4; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
    }
    for (const uint8_t *at = bytes; n--; at++) {
        crc = crc >> 4 ^ table[(crc ^ *at) & 15];
        crc = crc >> 4 ^ table[(crc ^ (uint32_t)(*at >> 4)) & 15];
    }
    return ~crc;
}

/* TFRecord's mask, so that a checksum of bytes that hold checksums is none of itself. */
static uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static uint32_t u32_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
static uint64_t u64_at(const uint8_t *at)
{
    return u32_at(at) | (uint64_t)u32_at(at + 4) << 32;
}
static float f32_at(const uint8_t *at)
{
    const uint32_t bits = u32_at(at);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static double f64_at(const uint8_t *at)
{
    const uint64_t bits = u64_at(at);
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

bool lb_tensorboard_event_begins(const uint8_t *bytes, size_t n)
{
    return n >= FRAME && masked(lb_tensorboard_crc32c(bytes, 8)) == u32_at(bytes + 8);
}

/* ---- protocol buffers -------------------------------------------------------------------------------------------- */

typedef struct message {
    const uint8_t *at, *end;
} message;
typedef struct field {
    uint32_t number, wire;
    uint64_t integer; /* varint */
    message bytes;    /* of a length-delimited or a fixed field */
} field;
enum { VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5 };

static bool read_varint(message *message, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && message->at < message->end; shift += 7) {
        const uint8_t byte = *message->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* The next field; false at the end, and where the bytes are none (`m->at` is then not the end). */
static bool next(message *read, field *field)
{
    uint64_t key, length = 0;
    const uint8_t *start = read->at;
    if (read->at == read->end || !read_varint(read, &key)) return read->at = start, false;
    field->number = (uint32_t)(key >> 3), field->wire = key & 7;
    bool whole = true;
    if (field->wire == VARINT)
        whole = read_varint(read, &field->integer);
    else if (field->wire == DELIMITED)
        whole = read_varint(read, &length);
    else
        length = field->wire == FIXED64 ? 8 : field->wire == FIXED32 ? 4 : UINT64_MAX;
    if (!whole || length > (uint64_t)(read->end - read->at)) return read->at = start, false;
    field->bytes = (message){read->at, read->at + length};
    read->at += length;
    return true;
}

/* ---- a scalar ---------------------------------------------------------------------------------------------------- */

/* tensorflow/core/framework/types.proto */
enum { DT_FLOAT = 1, DT_DOUBLE = 2, DT_INT32 = 3, DT_INT64 = 9, DT_BFLOAT16 = 14, DT_HALF = 19 };

static double half(uint32_t bits)
{
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31
                            ? (fraction ? NAN : INFINITY)
                            : ldexp(exponent ? 1024 + fraction : fraction, (int)(exponent ? exponent : 1) - 25);
    return bits >> 15 & 1 ? -size : size;
}

static double bfloat(uint32_t bits)
{
    const uint32_t wide = bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

static bool from_content(uint64_t dtype, message message, double *number)
{
    const size_t n = (size_t)(message.end - message.at);
    if (dtype == DT_FLOAT && n == 4) return *number = f32_at(message.at), true;
    if (dtype == DT_DOUBLE && n == 8) return *number = f64_at(message.at), true;
    if (dtype == DT_INT32 && n == 4) return *number = (int32_t)u32_at(message.at), true;
    if (dtype == DT_INT64 && n == 8) return *number = (double)(int64_t)u64_at(message.at), true;
    if (dtype == DT_HALF && n == 2) return *number = half(message.at[0] | (uint32_t)message.at[1] << 8), true;
    if (dtype == DT_BFLOAT16 && n == 2) return *number = bfloat(message.at[0] | (uint32_t)message.at[1] << 8), true;
    return false;
}

/* A list of one, packed or not. */
static bool from_list(const field *field, uint64_t dtype, double *number)
{
    message message = field->bytes;
    const size_t n = (size_t)(message.end - message.at);
    uint64_t integer = field->integer;
    enum { FLOAT_VAL = 5, DOUBLE_VAL = 6, INT_VAL = 7, INT64_VAL = 10, HALF_VAL = 13 };
    if (field->number == FLOAT_VAL && n == 4) return *number = f32_at(message.at), true;
    if (field->number == DOUBLE_VAL && n == 8) return *number = f64_at(message.at), true;
    if (field->number != INT_VAL && field->number != INT64_VAL && field->number != HALF_VAL) return false;
    if (field->wire == DELIMITED && (!read_varint(&message, &integer) || message.at != message.end)) return false;
    if (field->number == HALF_VAL)
        return *number = dtype == DT_BFLOAT16 ? bfloat(integer & 65535) : half(integer & 65535), true;
    *number = (double)(int64_t)integer;
    return true;
}

static bool read_tensor(message message, double *number)
{
    enum { DTYPE = 1, CONTENT = 4 };
    uint64_t dtype = 0;
    bool found = false;
    for (field f = {0}; next(&message, &f); f = (field){0}) {
        if (f.number == DTYPE && f.wire == VARINT) dtype = f.integer;
        if (f.number == CONTENT && f.wire == DELIMITED) found = from_content(dtype, f.bytes, number) || found;
        if (f.number > CONTENT) found = from_list(&f, dtype, number) || found;
    }
    return found;
}

typedef struct scalar {
    message tag;
    double number;
    bool found;
} scalar;

static bool read_scalar(message message, scalar *scalar)
{
    enum { TAG = 1, SIMPLE_VALUE = 2, TENSOR = 8 };
    for (field f = {0}; next(&message, &f); f = (field){0}) {
        if (f.number == TAG && f.wire == DELIMITED) scalar->tag = f.bytes;
        if (f.number == SIMPLE_VALUE && f.wire == FIXED32) scalar->number = f32_at(f.bytes.at), scalar->found = true;
        if (f.number == TENSOR && f.wire == DELIMITED && read_tensor(f.bytes, &scalar->number)) scalar->found = true;
    }
    return message.at == message.end;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void flush(lb_event_reader *reader, const lb_event_out *out)
{
    if (reader->open) out->record(out->context, &reader->record);
    reader->open = false;
}

static void put(lb_event_reader *reader, int64_t step, const scalar *scalar, const lb_event_out *out)
{
    const lb_watch_field field =
        lb_field_of(reader->names, (const char *)scalar->tag.at, (size_t)(scalar->tag.end - scalar->tag.at));
    if (field == LB_WATCH_FIELDS || field == LB_WATCH_step || (field >= LB_WATCH_shard && field < LB_WATCH_step))
        return;
    if (reader->open && (reader->record.step != step || lb_watch_has(&reader->record, field))) flush(reader, out);
    if (!reader->open) {
        lb_log_field_record_clear(&reader->record);
        lb_log_field_record_put_number(&reader->record, LB_WATCH_step, (double)step);
        reader->open = true;
    }
    lb_log_field_record_put_number(&reader->record, field, scalar->number);
    if (field == LB_WATCH_lrm || field == LB_WATCH_lr) reader->record.lr_rounding = fabs(scalar->number) * 0x1p-24;
}

static bool read_event(lb_event_reader *reader, message event, const lb_event_out *out)
{
    enum { STEP = 2, SUMMARY = 5, VALUE = 1 };
    int64_t step = 0;
    message summary = {0};
    for (field f = {0}; next(&event, &f); f = (field){0}) {
        if (f.number == STEP && f.wire == VARINT) step = (int64_t)f.integer;
        if (f.number == SUMMARY && f.wire == DELIMITED) summary = f.bytes;
    }
    if (event.at != event.end) return false;
    for (field f = {0}; next(&summary, &f); f = (field){0}) {
        scalar scalar = {0};
        if (f.number != VALUE || f.wire != DELIMITED) continue;
        if (!read_scalar(f.bytes, &scalar)) return false;
        if (scalar.found && scalar.tag.at) put(reader, step, &scalar, out);
    }
    return summary.at == summary.end;
}

size_t lb_tensorboard_event_read(lb_event_reader *reader, const uint8_t *bytes, size_t n, const lb_event_out *out)
{
    size_t at = 0;
    while (n - at >= FRAME) {
        const uint64_t length = u64_at(bytes + at);
        if (masked(lb_tensorboard_crc32c(bytes + at, 8)) != u32_at(bytes + at + 8) || length > LARGEST)
            return at ? at : SIZE_MAX;
        if (n - at < FRAME + length + TAIL) break;
        const uint8_t *body = bytes + at + FRAME;
        if (masked(lb_tensorboard_crc32c(body, length)) != u32_at(body + length))
            out->complaint(out->context, "its checksum does not agree");
        else if (!read_event(reader, (message){body, body + length}, out))
            out->complaint(out->context, "it is not an event");
        at += FRAME + length + TAIL;
    }
    return at;
}

void lb_tensorboard_event_end(lb_event_reader *reader, const lb_event_out *out)
{
    flush(reader, out);
}
