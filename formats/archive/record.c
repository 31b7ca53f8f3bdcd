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

size_t lb_record_descriptor_encode(const lb_descriptor *descriptor, char bytes[LB_DESCRIPTOR_MAX])
{
    fixed fixed = {bytes, 0};
    msgpack_packer packer, *to = &packer;
    msgpack_packer_init(to, &fixed, fixed_write);
    static const uint8_t pairs[] = {
        [LB_RECORD_HEAD] = 4,  [LB_RECORD_BLOB] = 5,   [LB_RECORD_PACK] = 5,  [LB_RECORD_PROGRAM] = 7,
        [LB_RECORD_TABLE] = 6, [LB_RECORD_COMMIT] = 3, [LB_RECORD_INDEX] = 2, [LB_RECORD_LOCATOR] = 2};
    char digest[16];
    digest_to_bytes(descriptor->digest, digest);
    msgpack_pack_map(to, pairs[descriptor->kind]);
    pack_text(to, "kind");
    pack_text(to, lb_record_kind_name(descriptor->kind));
    pack_bin(to, "digest", digest, sizeof digest);
    if (descriptor->kind == LB_RECORD_HEAD) {
        pack_int(to, "major", descriptor->major);
        pack_int(to, "minor", descriptor->minor);
    }
    if (descriptor->kind >= LB_RECORD_BLOB && descriptor->kind <= LB_RECORD_TABLE) {
        pack_int(to, "coding", descriptor->coding);
        pack_int(to, "size", (int64_t)descriptor->size);
    }
    if (descriptor->kind == LB_RECORD_BLOB) pack_int(to, "dtype", descriptor->dtype);
    if (descriptor->kind == LB_RECORD_PACK) pack_int(to, "directory", (int64_t)descriptor->directory);
    if (descriptor->kind == LB_RECORD_PROGRAM) {
        pack_int(to, "step", descriptor->step);
        pack_int(to, "complete", descriptor->complete);
    }
    if (descriptor->kind == LB_RECORD_PROGRAM || descriptor->kind == LB_RECORD_TABLE)
        pack_int(to, "rank", descriptor->rank);
    if (descriptor->kind == LB_RECORD_TABLE) {
        pack_text(to, "name");
        pack_text(to, descriptor->name);
    }
    if (descriptor->kind == LB_RECORD_COMMIT) pack_int(to, "number", (int64_t)descriptor->number);
    return fixed.size;
}

static lb_status read_kind(lb_cursor *cursor, lb_descriptor *descriptor)
{
    const char *text;
    uint32_t n;
    LB_TRY(lb_cursor_str(cursor, "kind", &text, &n));
    for (int k = 0; k < LB_RECORD_KIND_COUNT; k++)
        if (lb_text_is(text, n, lb_record_kind_name((lb_record_kind)k))) {
            descriptor->kind = (lb_record_kind)k;
            return LB_OK;
        }
    return lb_cursor_fail(cursor, "kind", "'%.*s' is not a kind of record", (int)(n > 40 ? 40 : n), text);
}

static lb_status read_name(lb_cursor *cursor, lb_descriptor *descriptor)
{
    const char *text;
    uint32_t n;
    LB_TRY(lb_cursor_str(cursor, "name", &text, &n));
    if (n >= sizeof descriptor->name || memchr(text, '\0', n))
        return lb_cursor_fail(cursor, "name", "%u bytes; at most %zu, none NUL", (unsigned)n,
                              sizeof descriptor->name - 1);
    memcpy(descriptor->name, text, n);
    descriptor->name[n] = '\0';
    return LB_OK;
}

static lb_status read_field(lb_cursor *cursor, lb_descriptor *descriptor, bool *has_kind)
{
    const char *key;
    uint32_t n;
    const void *bytes;
    size_t length;
    LB_TRY(lb_cursor_str(cursor, "descriptor", &key, &n));
    if (lb_text_is(key, n, "kind")) {
        *has_kind = true;
        return read_kind(cursor, descriptor);
    }
    if (lb_text_is(key, n, "name")) return read_name(cursor, descriptor);
    if (lb_text_is(key, n, "digest")) {
        LB_TRY(lb_cursor_bin(cursor, "digest", &bytes, &length));
        if (length != 16) return lb_cursor_fail(cursor, "digest", "%zu bytes, expected 16", length);
        descriptor->digest = digest_from_bytes(bytes);
        return LB_OK;
    }
    int64_t number;
#define INTEGER(field, low, high)                                                                                      \
    if (lb_text_is(key, n, #field)) {                                                                                  \
        LB_TRY(lb_cursor_int_in(cursor, #field, low, high, &number));                                                  \
        descriptor->field = (__typeof__(descriptor->field))number;                                                     \
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
    return lb_cursor_skip(cursor, "descriptor"); /* a later minor version added it */
}

lb_status lb_record_descriptor_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                      lb_descriptor *descriptor, lb_err *err)
{
    lb_cursor cursor = lb_cursor_of(bytes, size, source, offset, err);
    uint32_t pairs;
    bool has_kind = false;
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->rank = LB_NO_RANK;
    LB_TRY(lb_cursor_map(&cursor, "descriptor", &pairs));
    for (uint32_t i = 0; i < pairs; i++) LB_TRY(read_field(&cursor, descriptor, &has_kind));
    return has_kind ? LB_OK : lb_cursor_fail(&cursor, "descriptor", "has no \"kind\"");
}

/* ---- locator ----------------------------------------------------------------------------------------------------- */

static const char locator_magic[16] = "lastbit-locator";

void lb_record_locator_encode(const lb_locator *locator, char bytes[LB_LOCATOR_BYTES])
{
    memset(bytes, 0, LB_LOCATOR_BYTES);
    memcpy(bytes, locator_magic, 16);
    memcpy(bytes + 16, &locator->major, 4);
    memcpy(bytes + 20, &locator->minor, 4);
    memcpy(bytes + 24, &locator->index_header, 8);
    memcpy(bytes + 32, &locator->index_data, 8);
    memcpy(bytes + 40, &locator->index_size, 8);
    digest_to_bytes(locator->index_digest, bytes + 48);
    memcpy(bytes + 64, &locator->file_bytes, 8);
    digest_to_bytes(lb_digest_bytes(bytes, LB_LOCATOR_BYTES - 16), bytes + LB_LOCATOR_BYTES - 16);
}

bool lb_record_locator_decode(const char bytes[LB_LOCATOR_BYTES], lb_locator *locator)
{
    if (memcmp(bytes, locator_magic, 16) != 0) return false;
    lb_digest own = digest_from_bytes(bytes + LB_LOCATOR_BYTES - 16);
    if (!lb_digest_equal(own, lb_digest_bytes(bytes, LB_LOCATOR_BYTES - 16))) return false;
    memcpy(&locator->major, bytes + 16, 4);
    memcpy(&locator->minor, bytes + 20, 4);
    memcpy(&locator->index_header, bytes + 24, 8);
    memcpy(&locator->index_data, bytes + 32, 8);
    memcpy(&locator->index_size, bytes + 40, 8);
    locator->index_digest = digest_from_bytes(bytes + 48);
    memcpy(&locator->file_bytes, bytes + 64, 8);
    return true;
}
