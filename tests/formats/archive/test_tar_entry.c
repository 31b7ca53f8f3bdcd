/* The header that we write is the one that libarchive writes, and what libarchive reads back. */
#include "cmocka_first.h"

#include "archive/tar_entry.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_disable()
#define __lsan_enable()
#endif
#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;
static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static la_ssize_t gather(struct archive *tar, void *context, const void *bytes, size_t n)
{
    (void)tar;
    char **to = context;
    memcpy(*to, bytes, n);
    *to += n;
    return (la_ssize_t)n;
}

/* The header as libarchive's pax writer has it. */
static size_t by_libarchive(const char *name, const void *attribute, size_t n, uint64_t payload, char *bytes)
{
    char *end = bytes;
    __lsan_disable(); /* an entry that is given up leaks */
    struct archive *tar = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    archive_write_set_format_pax(tar);
    archive_write_set_format_option(tar, "pax", "xattrheader", "SCHILY");
    archive_write_set_bytes_per_block(tar, 0);
    archive_write_open(tar, &end, NULL, gather, NULL);
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0600);
    archive_entry_set_mtime(entry, 0, 0);
    archive_entry_set_size(entry, (la_int64_t)payload);
    archive_entry_xattr_add_entry(entry, LB_RECORD_ATTRIBUTE, attribute, n);
    assert_int_equal(archive_write_header(tar, entry), ARCHIVE_OK);
    const size_t written = (size_t)(end - bytes);
    archive_entry_free(entry);
    archive_write_fail(tar);
    archive_write_free(tar);
    __lsan_enable();
    return written;
}

static void check_same(const char *name, size_t n, uint64_t payload)
{
    char attribute[LB_TAR_ATTRIBUTE_MAX], ours[LB_TAR_HEADER_MAX], theirs[1 << 16];
    for (size_t i = 0; i < n; i++) attribute[i] = (char)draw(256);
    const size_t mine = lb_tar_entry_header(name, attribute, n, payload, ours);
    const size_t wanted = by_libarchive(name, attribute, n, payload, theirs);
    if (mine != wanted || memcmp(ours, theirs, mine) != 0)
        fail_msg("%s, attribute of %zu bytes, payload of %" PRIu64 ": %zu bytes, libarchive's %zu", name, n, payload,
                 mine, wanted);
}

static void the_header_is_that_of_libarchive(void **unused)
{
    (void)unused;
    static const char *const names[] = {"head.msgpack",
                                        "index.msgpack",
                                        "locator",
                                        "commit/00000000.msgpack",
                                        "pack/00000012.blobs",
                                        "program/rank-00003-step-00000042.msgpack",
                                        "blob/0123456789abcdef0123456789abcdef",
                                        "table/receipt.msgpack",
                                        "table/rank-00001-coverage.msgpack"};
    static const uint64_t sizes[] = {
        0, 1, 511, 512, 513, 16384, 1ull << 33, (1ull << 33) - 1, 10000000000ull, 123456789012ull};
    for (size_t name = 0; name < sizeof names / sizeof *names; name++)
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
            if (sizes[size] < 1ull << 36) /* beyond, libarchive's second size is a number in base 256 */
                check_same(names[name], 1 + draw(LB_TAR_ATTRIBUTE_MAX), sizes[size]);
    for (size_t n = 0; n < 1200; n++) check_same("table/receipt.msgpack", n, 100); /* over every length of the length */
    for (size_t n = 940; n < 1010; n++) check_same("blob/0", n, 1ull << 34);
}

/* Names of tables may have 127 characters: ustar has no room for some. */
static void any_name_and_size_is_read_back_by_libarchive(void **unused)
{
    (void)unused;
    for (int round = 0; round < 400; round++) {
        char name[LB_TAR_NAME_MAX + 1] = "", attribute[600], file[LB_TAR_HEADER_MAX];
        const size_t n = 1 + draw(sizeof attribute), length = 1 + draw(LB_TAR_NAME_MAX);
        for (size_t i = 0; i < length; i++)
            name[i] = "abcXYZ019_-./"[draw(i && name[i - 1] != '/' && i + 1 < length ? 13 : 12)];
        if (name[0] == '.') name[0] = 'a';
        for (size_t i = 0; i < n; i++) attribute[i] = (char)draw(256);
        const uint64_t payload = draw(1ull << draw(60));
        const size_t size = lb_tar_entry_header(name, attribute, n, payload, file);
        struct archive *tar = archive_read_new();
        struct archive_entry *entry;
        archive_read_support_format_tar(tar);
        archive_read_open_memory(tar, file, size);
        assert_int_equal(archive_read_next_header(tar, &entry), ARCHIVE_OK);
        assert_string_equal(archive_entry_pathname(entry), name);
        assert_int_equal(archive_entry_size(entry), payload);
        assert_int_equal(archive_entry_filetype(entry), AE_IFREG);
        assert_int_equal(archive_entry_perm(entry), 0600);
        const char *key;
        const void *value;
        size_t bytes;
        assert_int_equal(archive_entry_xattr_reset(entry), 1);
        archive_entry_xattr_next(entry, &key, &value, &bytes);
        assert_string_equal(key, LB_RECORD_ATTRIBUTE);
        assert_int_equal(bytes, n);
        assert_memory_equal(value, attribute, n);
        archive_read_free(tar);
    }
}

static void a_padded_attribute_ends_the_header_on_a_page(void **unused)
{
    (void)unused;
    static const char attribute[LB_TAR_ATTRIBUTE_MAX];
    for (int round = 0; round < 20000; round++) {
        char header[LB_TAR_HEADER_MAX];
        const uint64_t offset = LB_TAR_BLOCK * draw(1 << 20), payload = LB_RECORD_SMALL + draw(1ull << (20 + draw(30)));
        const size_t least = 20 + draw(LB_DESCRIPTOR_MAX - 20);
        const size_t n = lb_tar_entry_page_attribute(offset, least, payload);
        assert_in_range(n, least, LB_TAR_ATTRIBUTE_MAX);
        const size_t size = lb_tar_entry_header("blob/0123456789abcdef0123456789abcdef", attribute, n, payload, header);
        assert_int_equal((offset + size) % LB_RECORD_PAGE, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_header_is_that_of_libarchive),
                                       cmocka_unit_test(any_name_and_size_is_read_back_by_libarchive),
                                       cmocka_unit_test(a_padded_attribute_ends_the_header_on_a_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
