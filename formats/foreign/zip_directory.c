/* See zip_directory.h. */
#include "foreign/zip_directory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct file {
    const uint8_t *bytes;
    size_t size;
    const char *source;
    uint64_t offset;
    lb_err *err;
} file;

static lb_status bad(const file *file, uint64_t at, const char *what)
{
    return lb_fail(file->err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": zip: %s", file->source, file->offset + at, what);
}

static uint64_t number(const uint8_t *at, unsigned width)
{
    uint64_t n = 0;
    memcpy(&n, at, width); /* little-endian */
    return n;
}

/* `n` bytes at `at` that begin with "PK" and these two. */
static const uint8_t *record(const file *file, uint64_t at, size_t n, char a, char b)
{
    const char signature[4] = {'P', 'K', a, b};
    return at <= file->size && file->size - at >= n && memcmp(file->bytes + at, signature, 4) == 0 ? file->bytes + at
                                                                                                   : NULL;
}

typedef struct directory {
    uint64_t at, size, members;
} directory;

static lb_status find_directory(const file *file, directory *found)
{
    const uint8_t *end = NULL;
    uint64_t at = 0;
    for (uint64_t back = 22; back <= file->size && back <= 22 + 65535 && !end; back++)
        end = record(file, at = file->size - back, 22, 5, 6);
    if (!end) return bad(file, 0, "has no end of a central directory");
    *found = (directory){number(end + 16, 4), number(end + 12, 4), number(end + 10, 2)};
    const uint8_t *locator = at >= 20 ? record(file, at - 20, 20, 6, 7) : NULL;
    const uint8_t *wide = locator ? record(file, number(locator + 8, 8), 56, 6, 6) : NULL;
    if (wide) *found = (directory){number(wide + 48, 8), number(wide + 40, 8), number(wide + 32, 8)};
    if (found->size > file->size || found->at > file->size - found->size)
        return bad(file, at, "its central directory leaves the file");
    if (found->members > found->size / 46) return bad(file, at, "claims more members than its central directory holds");
    return LB_OK;
}

/* Sizes and offset beyond 32 bits stand in an extra field, those that need it, in this order. */
static void read_wide(const uint8_t *extra, size_t n, uint64_t *size, uint64_t *stored, uint64_t *at)
{
    uint64_t *fields[] = {size, stored, at};
    for (size_t i = 0; i + 4 <= n;) {
        size_t length = (size_t)number(extra + i + 2, 2), k = i + 4;
        if (length > n - k) return;
        for (int f = 0; f < 3 && number(extra + i, 2) == 1; f++) {
            if (*fields[f] != UINT32_MAX || k + 8 > i + 4 + length) continue;
            *fields[f] = number(extra + k, 8);
            k += 8;
        }
        i += 4 + length;
    }
}

static lb_status read_member(const file *file, uint64_t *at, uint64_t end, lb_zip_member *member)
{
    const uint8_t *entry = record(file, *at, 46, 1, 2);
    if (!entry || *at + 46 > end) return bad(file, *at, "expected a member of the central directory");
    size_t name = (size_t)number(entry + 28, 2), extra = (size_t)number(entry + 30, 2),
           comment = (size_t)number(entry + 32, 2);
    uint64_t stored = number(entry + 20, 4), size = number(entry + 24, 4), local = number(entry + 42, 4);
    if (46 + name + extra + comment > end - *at) return bad(file, *at, "a member leaves the central directory");
    read_wide(entry + 46 + name, extra, &size, &stored, &local);
    const uint8_t *l = record(file, local, 30, 3, 4);
    if (!l) return bad(file, *at, "a member has no header of its own");
    uint64_t data = local + 30 + number(l + 26, 2) + number(l + 28, 2);
    if (stored > file->size || data > file->size - stored) return bad(file, *at, "a member leaves the file");
    uint16_t method = (uint16_t)number(entry + 10, 2);
    if (method == 0 && stored != size) return bad(file, *at, "a stored member has two sizes");
    *member = (lb_zip_member){.name = (const char *)entry + 46,
                              .bytes = (const char *)file->bytes + data,
                              .size = stored,
                              .unpacked = size,
                              .crc = (uint32_t)number(entry + 16, 4),
                              .name_size = (uint16_t)name,
                              .method = method,
                              .encrypted = number(entry + 8, 2) & 1};
    *at += 46 + name + extra + comment;
    return LB_OK;
}

lb_status lb_zip_open(const char *bytes, size_t size, const char *source, uint64_t offset, lb_zip *zip, lb_err *err)
{
    file file = {(const uint8_t *)bytes, size, source, offset, err};
    directory directory = {0, 0, 0};
    *zip = (lb_zip){NULL, 0};
    LB_TRY(find_directory(&file, &directory));
    zip->members = (lb_zip_member *)calloc((size_t)directory.members + 1, sizeof *zip->members);
    if (!zip->members) return lb_fail(err, LB_ERR_NOMEM, "%s: zip: out of memory", source);
    lb_status status = LB_OK;
    for (uint64_t at = directory.at; zip->n < directory.members && status == LB_OK;) {
        status = read_member(&file, &at, directory.at + directory.size, &zip->members[zip->n]);
        zip->n += status == LB_OK;
    }
    if (status != LB_OK) lb_zip_release(zip);
    return status;
}

void lb_zip_release(lb_zip *zip)
{
    free(zip->members);
    *zip = (lb_zip){NULL, 0};
}

const lb_zip_member *lb_zip_find(const lb_zip *zip, const char *name, size_t name_size)
{
    for (uint32_t i = 0; i < zip->n; i++) {
        const lb_zip_member *member = &zip->members[i];
        const char *slash = (const char *)memchr(member->name, '/', member->name_size);
        size_t before = slash ? (size_t)(slash - member->name) + 1 : 0;
        if (member->name_size - before == name_size && memcmp(member->name + before, name, name_size) == 0)
            return member;
    }
    return NULL;
}
