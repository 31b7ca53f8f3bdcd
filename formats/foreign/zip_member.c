/* See zip_member.h. */
#include "foreign/zip_member.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

lb_status lb_zip_reader_open(lb_zip_reader *r, const lb_zip_member *member, const char *source, uint64_t offset,
                             lb_err *err)
{
    memset(r, 0, sizeof *r);
    r->member = member;
    snprintf(r->where, sizeof r->where, "%.250s: offset %" PRIu64 ": member '%.*s'", source, offset,
             member->name_size < 60 ? member->name_size : 60, member->name);
    if (member->encrypted) return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: is encrypted", r->where);
    if (member->method == 0) return LB_OK;
    if (member->method != 8)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: zip method %u is not read (stored and deflate are)", r->where,
                       (unsigned)member->method);
    if (inflateInit2(&r->inflation, -MAX_WBITS) != Z_OK)
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", r->where);
    r->inflating = true;
    r->inflation.next_in = (Bytef *)(uintptr_t)member->bytes;
    return LB_OK;
}

/* All that was claimed came, and it is what the CRC says. */
static lb_status check_end(lb_zip_reader *r, lb_err *err)
{
    if (r->at != r->member->unpacked)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: gave %" PRIu64 " bytes, the directory says %" PRIu64, r->where, r->at,
                       r->member->unpacked);
    if (r->crc != r->member->crc)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: its CRC-32 does not fit its bytes", r->where);
    return LB_OK;
}

static lb_status inflate_next(lb_zip_reader *r, void *bytes, size_t n, size_t *got, lb_err *err)
{
    z_stream *z = &r->inflation;
    z->next_out = (Bytef *)bytes, z->avail_out = (uInt)n;
    for (int ended = Z_OK; z->avail_out > 0 && ended != Z_STREAM_END;) {
        const uint64_t left = r->member->size - (uint64_t)((const char *)z->next_in - r->member->bytes);
        z->avail_in = left < UINT_MAX ? (uInt)left : UINT_MAX;
        ended = inflate(z, Z_NO_FLUSH);
        if (ended == Z_MEM_ERROR) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", r->where);
        if (ended == Z_BUF_ERROR || (ended == Z_OK && left == 0 && z->avail_out > 0))
            return lb_fail(err, LB_ERR_CORRUPT, "%s: ends before its deflate stream does", r->where);
        if (ended != Z_OK && ended != Z_STREAM_END)
            return lb_fail(err, LB_ERR_CORRUPT, "%s: deflate: %s", r->where, z->msg ? z->msg : "damaged");
    }
    *got = n - z->avail_out;
    return LB_OK;
}

lb_status lb_zip_reader_next(lb_zip_reader *r, void *bytes, size_t n, size_t *got, lb_err *err)
{
    const uint64_t left = r->member->size - (r->inflating ? 0 : r->at);
    if (n > INT_MAX) n = INT_MAX;
    if (r->inflating) {
        LB_TRY(inflate_next(r, bytes, n, got, err));
    } else {
        *got = left < n ? (size_t)left : n;
        memcpy(bytes, r->member->bytes + r->at, *got);
    }
    r->at += *got;
    r->crc = (uint32_t)crc32(r->crc, (const Bytef *)bytes, (uInt)*got);
    if (r->at > r->member->unpacked || *got < n) return check_end(r, err);
    return LB_OK;
}

void lb_zip_reader_close(lb_zip_reader *r)
{
    if (r->inflating) inflateEnd(&r->inflation);
    r->inflating = false;
}
