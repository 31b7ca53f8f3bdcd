/* See zip_member.h. */
#include "foreign/zip_member.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

lb_status lb_zip_reader_open(lb_zip_reader *reader, const lb_zip_member *member, const char *source, uint64_t offset,
                             lb_err *err)
{
    memset(reader, 0, sizeof *reader);
    reader->member = member;
    snprintf(reader->where, sizeof reader->where, "%.250s: offset %" PRIu64 ": member '%.*s'", source, offset,
             member->name_size < 60 ? member->name_size : 60, member->name);
    if (member->encrypted) return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: is encrypted", reader->where);
    if (member->method == 0) return LB_OK;
    if (member->method != 8)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: zip method %u is not read (stored and deflate are)", reader->where,
                       (unsigned)member->method);
    if (inflateInit2(&reader->inflation, -MAX_WBITS) != Z_OK)
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", reader->where);
    reader->inflating = true;
    reader->inflation.next_in = (Bytef *)(uintptr_t)member->bytes;
    return LB_OK;
}

/* All that was claimed came, and it is what the CRC says. */
static lb_status check_end(lb_zip_reader *reader, lb_err *err)
{
    if (reader->at != reader->member->unpacked)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: gave %" PRIu64 " bytes, the directory says %" PRIu64, reader->where,
                       reader->at, reader->member->unpacked);
    if (reader->crc != reader->member->crc)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: its CRC-32 does not fit its bytes", reader->where);
    return LB_OK;
}

static lb_status inflate_next(lb_zip_reader *reader, void *bytes, size_t n, size_t *got, lb_err *err)
{
    z_stream *inflation = &reader->inflation;
    inflation->next_out = (Bytef *)bytes, inflation->avail_out = (uInt)n;
    for (int ended = Z_OK; inflation->avail_out > 0 && ended != Z_STREAM_END;) {
        const uint64_t left =
            reader->member->size - (uint64_t)((const char *)inflation->next_in - reader->member->bytes);
        inflation->avail_in = left < UINT_MAX ? (uInt)left : UINT_MAX;
        ended = inflate(inflation, Z_NO_FLUSH);
        if (ended == Z_MEM_ERROR) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", reader->where);
        if (ended == Z_BUF_ERROR || (ended == Z_OK && left == 0 && inflation->avail_out > 0))
            return lb_fail(err, LB_ERR_CORRUPT, "%s: ends before its deflate stream does", reader->where);
        if (ended != Z_OK && ended != Z_STREAM_END)
            return lb_fail(err, LB_ERR_CORRUPT, "%s: deflate: %s", reader->where,
                           inflation->msg ? inflation->msg : "damaged");
    }
    *got = n - inflation->avail_out;
    return LB_OK;
}

lb_status lb_zip_reader_next(lb_zip_reader *reader, void *bytes, size_t n, size_t *got, lb_err *err)
{
    const uint64_t left = reader->member->size - (reader->inflating ? 0 : reader->at);
    if (n > INT_MAX) n = INT_MAX;
    if (reader->inflating) {
        LB_TRY(inflate_next(reader, bytes, n, got, err));
    } else {
        *got = left < n ? (size_t)left : n;
        memcpy(bytes, reader->member->bytes + reader->at, *got);
    }
    reader->at += *got;
    reader->crc = (uint32_t)crc32(reader->crc, (const Bytef *)bytes, (uInt)*got);
    if (reader->at > reader->member->unpacked || *got < n) return check_end(reader, err);
    return LB_OK;
}

void lb_zip_reader_close(lb_zip_reader *reader)
{
    if (reader->inflating) inflateEnd(&reader->inflation);
    reader->inflating = false;
}
