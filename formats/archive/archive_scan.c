/* See archive_scan.h. libarchive walks the tar in memory; it copies nothing and skips payloads without touching
 * them. */
#include "archive/archive_scan.h"

#include "archive/coding.h"

#include "base/array.h"
#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>

#define BLOCK 512

/* ---- finding headers after damage -------------------------------------------------------------------------------- */

static bool is_extended_header(const unsigned char *block)
{
    if (memcmp(block + 257, "ustar", 5) != 0 || block[156] != 'x') return false;
    unsigned sum = 8 * ' ', stated = 0;
    for (int i = 0; i < BLOCK; i++)
        if (i < 148 || i >= 156) sum += block[i];
    for (int i = 148; i < 154 && block[i] >= '0' && block[i] <= '7'; i++) stated = stated * 8 + (block[i] - '0');
    return sum == stated;
}

static uint64_t next_header(const char *map, uint64_t size, uint64_t from)
{
    for (uint64_t at = (from + BLOCK - 1) / BLOCK * BLOCK; at + BLOCK <= size; at += BLOCK)
        if (is_extended_header((const unsigned char *)map + at)) return at;
    return UINT64_MAX;
}

static void note_damage(lb_scan *scan, uint64_t at)
{
    if (scan->skipped++ == 0) scan->damaged_at = at;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

static bool add_entry(lb_scan *scan, const lb_scan_entry *entry)
{
    lb_scan_entry *grown = lb_array_grow(scan->entries, scan->n, sizeof *grown);
    if (!grown) return false;
    scan->entries = grown;
    scan->entries[scan->n++] = *entry;
    return true;
}

bool lb_scan_entry_holds(const char *map, const lb_scan_entry *entry)
{
    const char *bytes = map + entry->data;
    uint64_t size = entry->size;
    if (entry->descriptor.kind == LB_RECORD_BLOB) return true;
    if (entry->descriptor.kind == LB_RECORD_PACK) {
        if (entry->descriptor.directory > size) return false;
        bytes += entry->descriptor.directory;
        size -= entry->descriptor.directory;
    }
    return lb_digest_equal(lb_digest_bytes(bytes, size), entry->descriptor.digest);
}

typedef enum taken { TAKEN, FOREIGN, TRUNCATED, NO_MEMORY } taken;

static taken take_entry(struct archive *tar, struct archive_entry *header, const char *map, uint64_t size,
                        const char *path, uint64_t at, lb_scan *scan)
{
    const char *name;
    const void *value = NULL, *data;
    size_t length = 0, n;
    la_int64_t offset, claimed = archive_entry_size(header);
    bool ours = false;
    archive_entry_xattr_reset(header);
    while (!ours && archive_entry_xattr_next(header, &name, &value, &length) == ARCHIVE_OK)
        ours = strcmp(name, LB_RECORD_ATTRIBUTE) == 0;
    lb_scan_entry entry = {.header = at, .size = (uint64_t)claimed};
    if (!ours || archive_entry_filetype(header) != AE_IFREG ||
        lb_record_descriptor_decode(value, length, path, at, &entry.descriptor, NULL) != LB_OK)
        return FOREIGN;
    if (claimed <= 0 || (uint64_t)claimed > size - at) return TRUNCATED;
    if (archive_read_data_block(tar, &data, &n, &offset) != ARCHIVE_OK) return TRUNCATED;
    /* In memory a stored entry is one block inside the map; whatever else this is, it is not what we wrote. */
    uintptr_t begin = (uintptr_t)data, low = (uintptr_t)map;
    if (offset != 0 || n != (uint64_t)claimed || begin < low || begin - low > size - n) return TRUNCATED;
    entry.data = begin - low;
    if (!add_entry(scan, &entry)) return NO_MEMORY;
    scan->end = entry.data + (entry.size + BLOCK - 1) / BLOCK * BLOCK;
    if (entry.descriptor.kind == LB_RECORD_COMMIT && lb_scan_entry_holds(map, &entry)) {
        scan->committed = scan->n;
        scan->damages = scan->skipped;
    }
    return TAKEN;
}

/* Reads entries from `from` on; gives where a new start must be looked for, or UINT64_MAX at the end. */
static lb_status walk(const char *map, uint64_t size, const char *path, uint64_t from, uint64_t *stopped, lb_scan *scan,
                      lb_err *err)
{
    struct archive *tar = archive_read_new();
    *stopped = UINT64_MAX;
    if (!tar) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    archive_read_support_format_tar(tar);
    lb_status status = LB_OK;
    struct archive_entry *header;
    uint64_t next = from; /* at least here the next header begins */
    int got = archive_read_open_memory(tar, (void *)(uintptr_t)(map + from), size - from);
    while (got == ARCHIVE_OK || got == ARCHIVE_WARN) {
        got = archive_read_next_header(tar, &header);
        const la_int64_t position = archive_read_header_position(tar); /* negative after some failures */
        const uint64_t at = position < 0 ? next : from + (uint64_t)position;
        if (got == ARCHIVE_EOF) break;
        if (got != ARCHIVE_OK && got != ARCHIVE_WARN) {
            note_damage(scan, at);
            *stopped = at + BLOCK;
            break;
        }
        taken result = take_entry(tar, header, map, size, path, at, scan);
        next = result == TAKEN ? scan->end : at + BLOCK;
        if (result == FOREIGN) scan->foreign++;
        if (result == TRUNCATED) {
            note_damage(scan, at);
            *stopped = at + BLOCK;
            break;
        }
        if (result == NO_MEMORY) {
            status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
            break;
        }
    }
    archive_read_free(tar);
    return status;
}

lb_status lb_scan_run(const char *map, size_t size, const char *path, lb_scan *scan, lb_err *err)
{
    memset(scan, 0, sizeof *scan);
    scan->damaged_at = UINT64_MAX;
    for (uint64_t from = 0; from < size;) {
        uint64_t stopped;
        LB_TRY(walk(map, size, path, from, &stopped, scan, err));
        if (stopped == UINT64_MAX) break;
        from = next_header(map, size, stopped);
        if (from == UINT64_MAX) break;
    }
    if (scan->n == 0)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: no record found in %zu bytes: this is not a lastbit archive",
                       path, size);
    const lb_descriptor *head = &scan->entries[0].descriptor;
    if (head->kind == LB_RECORD_HEAD && head->major > LB_FORMAT_MAJOR)
        return lb_fail(err, LB_ERR_VERSION, "%s: format %u.%u, this program reads %d.x: use a newer lastbit", path,
                       (unsigned)head->major, (unsigned)head->minor, LB_FORMAT_MAJOR);
    return LB_OK;
}

void lb_scan_release(lb_scan *scan)
{
    free(scan->entries);
    scan->entries = NULL;
    scan->n = 0;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static lb_status add_pack(const char *map, const char *path, const lb_scan_entry *entry, lb_index_rows *rows,
                          lb_err *err)
{
    const lb_descriptor *descriptor = &entry->descriptor;
    lb_directory_area area = {entry->data, descriptor->directory, LB_NO_PACK};
    if (descriptor->coding != 0) {
        lb_pack_row row = {entry->data, descriptor->directory, descriptor->size, descriptor->coding};
        area = (lb_directory_area){0, descriptor->size, rows->n_packs};
        if (!lb_index_add_pack(rows, &row)) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    uint64_t at = entry->data + descriptor->directory;
    return lb_index_directory_decode(map + at, entry->size - descriptor->directory, path, at, &area, rows, err);
}

static lb_status add_rows(const char *map, const char *path, const lb_scan_entry *entry, lb_index_rows *rows,
                          lb_err *err)
{
    const lb_descriptor *descriptor = &entry->descriptor;
    bool added = true;
    if (descriptor->kind == LB_RECORD_PACK) return add_pack(map, path, entry, rows, err);
    if (descriptor->kind == LB_RECORD_BLOB) {
        lb_blob_row row = {descriptor->digest, entry->data,        entry->size,      descriptor->size,
                           LB_NO_PACK,         descriptor->coding, descriptor->dtype};
        added = lb_index_add_blob(rows, &row);
    } else if (descriptor->kind == LB_RECORD_PROGRAM || descriptor->kind == LB_RECORD_TABLE) {
        lb_segment_row row = {.digest = descriptor->digest,
                              .offset = entry->data,
                              .stored = entry->size,
                              .size = descriptor->size,
                              .step = descriptor->step,
                              .rank = descriptor->rank,
                              .complete = descriptor->complete,
                              .coding = descriptor->coding};
        memcpy(row.name, descriptor->name, sizeof row.name);
        added =
            descriptor->kind == LB_RECORD_PROGRAM ? lb_index_add_program(rows, &row) : lb_index_add_table(rows, &row);
    }
    return added ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
}

static void leave_out(lb_left_out *left_out, lb_record_kind kind)
{
    left_out->packs += kind == LB_RECORD_PACK;
    left_out->programs += kind == LB_RECORD_PROGRAM;
    left_out->tables += kind == LB_RECORD_TABLE;
    left_out->others += kind < LB_RECORD_PACK || kind > LB_RECORD_TABLE;
}

lb_status lb_scan_rows(const char *map, const char *path, const lb_scan *scan, uint64_t count, lb_index_rows *rows,
                       lb_left_out *left_out, lb_err *err)
{
    memset(left_out, 0, sizeof *left_out);
    for (uint64_t i = 0; i < count; i++) {
        const lb_scan_entry *entry = &scan->entries[i];
        lb_err why = LB_ERR_INIT;
        lb_status status = lb_scan_entry_holds(map, entry) ? add_rows(map, path, entry, rows, &why) : LB_ERR_CORRUPT;
        if (status == LB_ERR_NOMEM) return lb_fail(err, status, "%s", why.message);
        if (status != LB_OK) leave_out(left_out, entry->descriptor.kind);
    }
    return LB_OK;
}
