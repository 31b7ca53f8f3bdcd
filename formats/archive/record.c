/* Descriptors and the locator: see record.h. */
#include "archive/record.h"

#include "base/byte_buffer.h"
#include "base/msgpack_cursor.h"

#include <stdio.h>

const char *lb_record_kind_name(lb_record_kind kind)
{
    static const char *const names[] = {
#define NAME(ID, code, name) [code] = name,
        LB_RECORD_KINDS(NAME)
#undef NAME
    };
    return (unsigned)kind < LB_RECORD_KIND_COUNT ? names[kind] : "unknown";
}

/* msgpack-c writes into a fixed array here: a descriptor must not depend on memory being there. */
typedef struct fixed {
    char *bytes;
    size_t size;
} fixed;

static int fixed_write(void *data, const char *bytes, size_t n)
{
    fixed *f = (fixed *)data;
    LB_CHECK(n <= LB_DESCRIPTOR_MAX - f->size);
    memcpy(f->bytes + f->size, bytes, n);
    f->size += n;
    return 0;
}

size_t lb_record_descriptor_encode(const lb_descriptor *d, char bytes[LB_DESCRIPTOR_MAX])
{
    fixed f = {bytes, 0};
    msgpack_packer packer, *p = &packer;
    msgpack_packer_init(p, &f, fixed_write);
    static const uint8_t pairs[] = {
        [LB_RECORD_HEAD] = 4,  [LB_RECORD_BLOB] = 5,   [LB_RECORD_PACK] = 5,  [LB_RECORD_PROGRAM] = 7,
        [LB_RECORD_TABLE] = 6, [LB_RECORD_COMMIT] = 3, [LB_RECORD_INDEX] = 2, [LB_RECORD_LOCATOR] = 2};
    char digest[16];
    digest_to_bytes(d->digest, digest);
    msgpack_pack_map(p, pairs[d->kind]);
    pack_text(p, "kind");
    pack_text(p, lb_record_kind_name(d->kind));
    pack_bin(p, "digest", digest, sizeof digest);
    if (d->kind == LB_RECORD_HEAD) {
        pack_int(p, "major", d->major);
        pack_int(p, "minor", d->minor);
    }
    if (d->kind >= LB_RECORD_BLOB && d->kind <= LB_RECORD_TABLE) {
        pack_int(p, "coding", d->coding);
        pack_int(p, "size", (int64_t)d->size);
    }
    if (d->kind == LB_RECORD_BLOB) pack_int(p, "dtype", d->dtype);
    if (d->kind == LB_RECORD_PACK) pack_int(p, "directory", (int64_t)d->directory);
    if (d->kind == LB_RECORD_PROGRAM) {
        pack_int(p, "step", d->step);
        pack_int(p, "complete", d->complete);
    }
    if (d->kind == LB_RECORD_PROGRAM || d->kind == LB_RECORD_TABLE) pack_int(p, "rank", d->rank);
    if (d->kind == LB_RECORD_TABLE) {
        pack_text(p, "name");
        pack_text(p, d->name);
    }
    if (d->kind == LB_RECORD_COMMIT) pack_int(p, "number", (int64_t)d->number);
    return f.size;
}

static lb_status read_kind(lb_cursor *c, lb_descriptor *d)
{
    const char *text;
    uint32_t n;
    LB_TRY(lb_cursor_str(c, "kind", &text, &n));
    for (int k = 0; k < LB_RECORD_KIND_COUNT; k++)
        if (lb_text_is(text, n, lb_record_kind_name((lb_record_kind)k))) {
            d->kind = (lb_record_kind)k;
            return LB_OK;
        }
    return lb_cursor_fail(c, "kind", "'%.*s' is not a kind of record", (int)(n > 40 ? 40 : n), text);
}

static lb_status read_name(lb_cursor *c, lb_descriptor *d)
{
    const char *text;
    uint32_t n;
    LB_TRY(lb_cursor_str(c, "name", &text, &n));
    if (n >= sizeof d->name || memchr(text, '\0', n))
        return lb_cursor_fail(c, "name", "%u bytes; at most %zu, none NUL", (unsigned)n, sizeof d->name - 1);
    memcpy(d->name, text, n);
    d->name[n] = '\0';
    return LB_OK;
}

static lb_status read_field(lb_cursor *c, lb_descriptor *d, bool *has_kind)
{
    const char *key;
    uint32_t n;
    const void *bytes;
    size_t length;
    LB_TRY(lb_cursor_str(c, "descriptor", &key, &n));
    if (lb_text_is(key, n, "kind")) {
        *has_kind = true;
        return read_kind(c, d);
    }
    if (lb_text_is(key, n, "name")) return read_name(c, d);
    if (lb_text_is(key, n, "digest")) {
        LB_TRY(lb_cursor_bin(c, "digest", &bytes, &length));
        if (length != 16) return lb_cursor_fail(c, "digest", "%zu bytes, expected 16", length);
        d->digest = digest_from_bytes(bytes);
        return LB_OK;
    }
    int64_t v;
#define INTEGER(field, low, high)                                                                                      \
    if (lb_text_is(key, n, #field)) {                                                                                  \
        LB_TRY(lb_cursor_int_in(c, #field, low, high, &v));                                                            \
        d->field = (__typeof__(d->field))v;                                                                            \
        return LB_OK;                                                                                                  \
    }
    INTEGER(major, 0, UINT32_MAX)
    INTEGER(minor, 0, UINT32_MAX)
    INTEGER(coding, 0, UINT8_MAX)
    INTEGER(size, 0, INT64_MAX)
    INTEGER(dtype, 0, UINT8_MAX)
    INTEGER(directory, 0, INT64_MAX)
    INTEGER(step, INT64_MIN, INT64_MAX)
    INTEGER(complete, 0, 1)
    INTEGER(rank, LB_NO_RANK, INT32_MAX)
    INTEGER(number, 0, INT64_MAX)
#undef INTEGER
    return lb_cursor_skip(c, "descriptor"); /* a later minor version added it */
}

lb_status lb_record_descriptor_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                      lb_descriptor *d, lb_err *err)
{
    lb_cursor c = lb_cursor_of(bytes, size, source, offset, err);
    uint32_t pairs;
    bool has_kind = false;
    memset(d, 0, sizeof *d);
    d->rank = LB_NO_RANK;
    LB_TRY(lb_cursor_map(&c, "descriptor", &pairs));
    for (uint32_t i = 0; i < pairs; i++) LB_TRY(read_field(&c, d, &has_kind));
    return has_kind ? LB_OK : lb_cursor_fail(&c, "descriptor", "has no \"kind\"");
}

/* ---- locator ----------------------------------------------------------------------------------------------------- */

static const char locator_magic[16] = "lastbit-locator";

void lb_record_locator_encode(const lb_locator *l, char bytes[LB_LOCATOR_BYTES])
{
    memset(bytes, 0, LB_LOCATOR_BYTES);
    memcpy(bytes, locator_magic, 16);
    memcpy(bytes + 16, &l->major, 4);
    memcpy(bytes + 20, &l->minor, 4);
    memcpy(bytes + 24, &l->index_header, 8);
    memcpy(bytes + 32, &l->index_data, 8);
    memcpy(bytes + 40, &l->index_size, 8);
    digest_to_bytes(l->index_digest, bytes + 48);
    memcpy(bytes + 64, &l->file_bytes, 8);
    digest_to_bytes(lb_digest_bytes(bytes, LB_LOCATOR_BYTES - 16), bytes + LB_LOCATOR_BYTES - 16);
}

bool lb_record_locator_decode(const char bytes[LB_LOCATOR_BYTES], lb_locator *l)
{
    if (memcmp(bytes, locator_magic, 16) != 0) return false;
    lb_digest own = digest_from_bytes(bytes + LB_LOCATOR_BYTES - 16);
    if (!lb_digest_equal(own, lb_digest_bytes(bytes, LB_LOCATOR_BYTES - 16))) return false;
    memcpy(&l->major, bytes + 16, 4);
    memcpy(&l->minor, bytes + 20, 4);
    memcpy(&l->index_header, bytes + 24, 8);
    memcpy(&l->index_data, bytes + 32, 8);
    memcpy(&l->index_size, bytes + 40, 8);
    l->index_digest = digest_from_bytes(bytes + 48);
    memcpy(&l->file_bytes, bytes + 64, 8);
    return true;
}
