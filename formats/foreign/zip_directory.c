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

static lb_status bad(const file *f, uint64_t at, const char *what)
{
    return lb_fail(f->err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": zip: %s", f->source, f->offset + at, what);
}

static uint64_t number(const uint8_t *at, unsigned width)
{
    uint64_t n = 0;
    memcpy(&n, at, width); /* little-endian */
    return n;
}

/* `n` bytes at `at` that begin with "PK" and these two. */
static const uint8_t *record(const file *f, uint64_t at, size_t n, char a, char b)
{
    const char signature[4] = {'P', 'K', a, b};
    return at <= f->size && f->size - at >= n && memcmp(f->bytes + at, signature, 4) == 0 ? f->bytes + at : NULL;
}

typedef struct directory {
    uint64_t at, size, members;
} directory;

static lb_status find_directory(const file *f, directory *d)
{
    const uint8_t *end = NULL;
    uint64_t at = 0;
    for (uint64_t back = 22; back <= f->size && back <= 22 + 65535 && !end; back++)
        end = record(f, at = f->size - back, 22, 5, 6);
    if (!end) return bad(f, 0, "has no end of a central directory");
    *d = (directory){number(end + 16, 4), number(end + 12, 4), number(end + 10, 2)};
    const uint8_t *locator = at >= 20 ? record(f, at - 20, 20, 6, 7) : NULL;
    const uint8_t *wide = locator ? record(f, number(locator + 8, 8), 56, 6, 6) : NULL;
    if (wide) *d = (directory){number(wide + 48, 8), number(wide + 40, 8), number(wide + 32, 8)};
    if (d->size > f->size || d->at > f->size - d->size) return bad(f, at, "its central directory leaves the file");
    if (d->members > d->size / 46) return bad(f, at, "claims more members than its central directory holds");
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

static lb_status read_member(const file *f, uint64_t *at, uint64_t end, lb_zip_member *member)
{
    const uint8_t *c = record(f, *at, 46, 1, 2);
    if (!c || *at + 46 > end) return bad(f, *at, "expected a member of the central directory");
    size_t name = (size_t)number(c + 28, 2), extra = (size_t)number(c + 30, 2), comment = (size_t)number(c + 32, 2);
    uint64_t stored = number(c + 20, 4), size = number(c + 24, 4), local = number(c + 42, 4);
    if (46 + name + extra + comment > end - *at) return bad(f, *at, "a member leaves the central directory");
    read_wide(c + 46 + name, extra, &size, &stored, &local);
    const uint8_t *l = record(f, local, 30, 3, 4);
    if (!l) return bad(f, *at, "a member has no header of its own");
    uint64_t data = local + 30 + number(l + 26, 2) + number(l + 28, 2);
    if (stored > f->size || data > f->size - stored) return bad(f, *at, "a member leaves the file");
    uint16_t method = (uint16_t)number(c + 10, 2);
    if (method == 0 && stored != size) return bad(f, *at, "a stored member has two sizes");
    *member = (lb_zip_member){.name = (const char *)c + 46,
                              .bytes = (const char *)f->bytes + data,
                              .size = stored,
                              .unpacked = size,
                              .crc = (uint32_t)number(c + 16, 4),
                              .name_size = (uint16_t)name,
                              .method = method,
                              .encrypted = number(c + 8, 2) & 1};
    *at += 46 + name + extra + comment;
    return LB_OK;
}

lb_status lb_zip_open(const char *bytes, size_t size, const char *source, uint64_t offset, lb_zip *zip, lb_err *err)
{
    file f = {(const uint8_t *)bytes, size, source, offset, err};
    directory d = {0, 0, 0};
    *zip = (lb_zip){NULL, 0};
    LB_TRY(find_directory(&f, &d));
    zip->members = (lb_zip_member *)calloc((size_t)d.members + 1, sizeof *zip->members);
    if (!zip->members) return lb_fail(err, LB_ERR_NOMEM, "%s: zip: out of memory", source);
    lb_status status = LB_OK;
    for (uint64_t at = d.at; zip->n < d.members && status == LB_OK;) {
        status = read_member(&f, &at, d.at + d.size, &zip->members[zip->n]);
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
        const lb_zip_member *m = &zip->members[i];
        const char *slash = (const char *)memchr(m->name, '/', m->name_size);
        size_t before = slash ? (size_t)(slash - m->name) + 1 : 0;
        if (m->name_size - before == name_size && memcmp(m->name + before, name, name_size) == 0) return m;
    }
    return NULL;
}
