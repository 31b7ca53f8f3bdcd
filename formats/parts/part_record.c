/* Records of units, both ways: see part_record.h. Each field is a MessagePack object; a text is a binary that ends in
 * NUL, so that it can be used where it lies. */
#include "parts/part_record.h"

#include <stdarg.h>
#include <stdio.h>

lb_part_record lb_part_record_reader(const void *bytes, size_t size, const char *source, uint64_t base, lb_err *err)
{
    return (lb_part_record){.reading = true, .cursor = lb_cursor_of(bytes, size, source, base, err)};
}

void lb_part_record_refuse(lb_part_record *record, const char *field, const char *format, ...)
{
    char what[200];
    va_list args;
    if (!record->reading || record->status != LB_OK) return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    record->status = lb_cursor_fail(&record->cursor, field, "%s", what);
}

lb_status lb_part_record_end(lb_part_record *record, lb_err *err)
{
    if (!record->reading)
        return record->written.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a part") : LB_OK;
    if (record->status == LB_OK && lb_cursor_peek(&record->cursor) != LB_MSGPACK_END)
        record->status = lb_cursor_fail(&record->cursor, "record", "more than was asked for");
    return record->status;
}

void lb_part_record_release(lb_part_record *record)
{
    buffer_release(&record->written);
}

static msgpack_packer packer_of(lb_part_record *record)
{
    return buffer_packer(&record->written);
}

static void read_i64(lb_part_record *record, int64_t low, int64_t high, int64_t *number)
{
    *number = 0;
    if (record->status == LB_OK) record->status = lb_cursor_int_in(&record->cursor, "number", low, high, number);
    if (record->status != LB_OK) *number = 0;
}

void lb_part_record_i64(lb_part_record *record, int64_t *number)
{
    if (record->reading) {
        read_i64(record, INT64_MIN, INT64_MAX, number);
    } else {
        msgpack_packer p = packer_of(record);
        msgpack_pack_int64(&p, *number);
    }
}

void lb_part_record_u64(lb_part_record *record, uint64_t *number)
{
    int64_t bits = 0;
    if (!record->reading) memcpy(&bits, number, sizeof bits);
    lb_part_record_i64(record, &bits);
    if (record->reading) memcpy(number, &bits, sizeof bits);
}

void lb_part_record_i32(lb_part_record *record, int32_t *number)
{
    int64_t wide = *number;
    if (record->reading)
        read_i64(record, INT32_MIN, INT32_MAX, &wide);
    else
        lb_part_record_i64(record, &wide);
    *number = (int32_t)wide;
}

void lb_part_record_u32(lb_part_record *record, uint32_t *number)
{
    lb_part_record_word(record, number, UINT32_MAX);
}

void lb_part_record_word(lb_part_record *record, uint32_t *word, uint32_t most)
{
    int64_t wide = *word;
    if (record->reading)
        read_i64(record, 0, most, &wide);
    else
        lb_part_record_i64(record, &wide);
    *word = (uint32_t)wide;
}

/* 2^48. */
static const int64_t MOST_TALLY = INT64_C(1) << 48;

void lb_part_record_tally(lb_part_record *record, int64_t *number, int64_t least)
{
    if (record->reading)
        read_i64(record, least, MOST_TALLY, number);
    else
        lb_part_record_i64(record, number);
}

void lb_part_record_total(lb_part_record *record, uint64_t *number)
{
    int64_t same = (int64_t)*number;
    lb_part_record_tally(record, &same, 0);
    *number = (uint64_t)same;
}

void lb_part_record_bool(lb_part_record *record, bool *truth)
{
    uint32_t word = *truth;
    lb_part_record_word(record, &word, 1);
    *truth = word != 0;
}

void lb_part_record_f64(lb_part_record *record, double *number)
{
    uint64_t bits = 0;
    if (!record->reading) memcpy(&bits, number, sizeof bits);
    lb_part_record_u64(record, &bits);
    if (record->reading) memcpy(number, &bits, sizeof bits);
}

void lb_part_record_bytes(lb_part_record *record, const void **bytes, size_t *n)
{
    if (!record->reading) {
        msgpack_packer p = packer_of(record);
        msgpack_pack_bin(&p, *n);
        if (*n) msgpack_pack_bin_body(&p, *bytes, *n);
        return;
    }
    *bytes = "", *n = 0;
    if (record->status == LB_OK) record->status = lb_cursor_bin(&record->cursor, "bytes", bytes, n);
    if (record->status != LB_OK) *bytes = "", *n = 0;
}

void lb_part_record_text(lb_part_record *record, const char **text)
{
    bool there = *text != NULL;
    const void *bytes = *text;
    size_t n = there && !record->reading ? strlen(*text) + 1 : 0;
    lb_part_record_bool(record, &there);
    if (record->reading) *text = NULL;
    if (!there) return;
    lb_part_record_bytes(record, &bytes, &n);
    if (!record->reading || record->status != LB_OK) return;
    if (n && memchr(bytes, '\0', n) == (const char *)bytes + n - 1)
        *text = bytes;
    else
        record->status = lb_cursor_fail(&record->cursor, "text", "it does not end in NUL, or holds one");
}

void lb_part_record_name(lb_part_record *record, const char **text)
{
    lb_part_record_text(record, text);
    if (!record->reading || *text) return;
    lb_part_record_refuse(record, "text", "there is none, where one is always");
    *text = "";
}

void lb_part_record_count(lb_part_record *record, uint32_t *n)
{
    lb_part_record_u32(record, n);
    if (!record->reading) return;
    if (record->status == LB_OK && *n > (size_t)(record->cursor.end - record->cursor.at))
        record->status = lb_cursor_fail(&record->cursor, "count", "%u rows in %zu bytes", *n,
                                        (size_t)(record->cursor.end - record->cursor.at));
    if (record->status != LB_OK) *n = 0;
}

void *lb_part_record_rows(lb_part_record *record, void *rows, uint32_t *n, size_t size)
{
    lb_part_record_count(record, n);
    if (!record->reading) return rows;
    const size_t left = (size_t)(record->cursor.end - record->cursor.at);
    if (*n > left / (size / LB_PART_RECORD_RATIO + 1)) {
        lb_part_record_refuse(record, "count", "%u rows in %zu bytes, which take %zu at least", *n, left,
                              *n * (size / LB_PART_RECORD_RATIO + 1));
        *n = 0;
    }
    void *room = calloc((size_t)*n + 1, size);
    if (!room && record->status == LB_OK)
        record->status = lb_fail(record->cursor.err, LB_ERR_NOMEM, "out of memory for a part of %u rows", *n);
    if (!room) *n = 0;
    return room;
}
