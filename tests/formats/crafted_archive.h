/* Archives that lie: records with whatever descriptor and payload a test wants, digests right unless it wants them
 * wrong. */
#ifndef LB_TESTS_CRAFTED_ARCHIVE_H
#define LB_TESTS_CRAFTED_ARCHIVE_H
#include "archive/archive_index.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>

typedef struct crafted {
    lb_descriptor descriptor;
    const void *bytes;
    size_t size;
    const char *attribute; /* instead of the descriptor, when not NULL */
    size_t attribute_size;
    bool wrong_digest;
} crafted;

typedef struct crafting {
    struct archive *tar;
    byte_buffer file;
    lb_entry_row entries[32];
    unsigned n;
} crafting;

static la_ssize_t craft_write(struct archive *tar, void *data, const void *bytes, size_t n)
{
    (void)tar;
    buffer_add(&((crafting *)data)->file, bytes, n);
    return (la_ssize_t)n;
}

/* Gives the offset of the payload. */
static uint64_t craft_record(crafting *c, const crafted *r)
{
    char attribute[LB_DESCRIPTOR_MAX];
    lb_descriptor d = r->descriptor;
    if (lb_digest_is_none(d.digest)) d.digest = lb_digest_bytes(r->bytes, r->size);
    if (r->wrong_digest) d.digest.lo ^= 1;
    size_t n = lb_record_descriptor_encode(&d, attribute);
    archive_write_finish_entry(c->tar);
    uint64_t header = c->file.size;
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, "crafted");
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0600);
    archive_entry_set_mtime(entry, 0, 0);
    archive_entry_set_size(entry, (la_int64_t)r->size);
    archive_entry_xattr_add_entry(entry, LB_RECORD_ATTRIBUTE, r->attribute ? r->attribute : attribute,
                                  r->attribute ? r->attribute_size : n);
    archive_write_header(c->tar, entry);
    archive_entry_free(entry);
    uint64_t data = c->file.size;
    archive_write_data(c->tar, r->bytes, r->size);
    if (c->n < 32) c->entries[c->n++] = (lb_entry_row){header, data, r->size, d.digest, d.kind};
    return data;
}

static void craft_begin(crafting *c, uint32_t major)
{
    memset(c, 0, sizeof *c);
    c->tar = archive_write_new();
    archive_write_set_format_pax(c->tar);
    archive_write_set_format_option(c->tar, "pax", "xattrheader", "SCHILY");
    archive_write_set_bytes_per_block(c->tar, 0);
    archive_write_set_bytes_in_last_block(c->tar, 1);
    archive_write_open(c->tar, c, NULL, craft_write, NULL);
    craft_record(c, &(crafted){{.kind = LB_RECORD_HEAD, .major = major}, "\x80", 1, NULL, 0, false});
}

/* A good commit of everything so far. */
static void craft_commit(crafting *c)
{
    byte_buffer b = {0};
    lb_index_commit_encode(0, -1, c->entries, c->n, &b);
    craft_record(c, &(crafted){{.kind = LB_RECORD_COMMIT}, b.bytes, b.size, NULL, 0, false});
    buffer_release(&b);
}

/* A good index record around bad index bytes, and its locator; `change` may lie in it. */
static void craft_close(crafting *c, const void *index, size_t size, void (*change)(lb_locator *))
{
    uint64_t data = craft_record(c, &(crafted){{.kind = LB_RECORD_INDEX}, index, size, NULL, 0, false});
    char bytes[LB_LOCATOR_BYTES];
    archive_write_finish_entry(c->tar);
    lb_locator l = {1, 0, 0, data, size, lb_digest_bytes(index, size), c->file.size + 1536 + LB_LOCATOR_FROM_END};
    if (change) change(&l);
    lb_record_locator_encode(&l, bytes);
    craft_record(c, &(crafted){{.kind = LB_RECORD_LOCATOR}, bytes, sizeof bytes, NULL, 0, false});
    archive_write_close(c->tar);
}

static void craft_end(crafting *c, const char *path)
{
    archive_write_free(c->tar);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(c->file.bytes, 1, c->file.size, file) != c->file.size) abort();
    fclose(file);
    buffer_release(&c->file);
}

#endif
