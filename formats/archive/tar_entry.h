/* The header of one record in the tar: what stands before its payload. Private to formats/.
 *
 *   512 bytes       ustar header of type 'x', named DIR/PaxHeader/FILE
 *   n · 512 bytes   pax records "LENGTH KEY=VALUE\n": path (where ustar has no room for the name),
 *                   SCHILY.xattr.user.lastbit, whose value is the descriptor, and size (from 8 GiB on); zeros fill the
 *                   last block
 *   512 bytes       ustar header of the record itself: a regular file, mode 0600, owner 0, time 0
 *
 * These are POSIX.1-2001's pax interchange format and the attribute that star introduced, in the very bytes of
 * libarchive's writer (test_tar_entry.c compares them). We write them ourselves because the recorder runs inside other
 * people's processes: nothing here allocates, so nothing can fail; libarchive allocates a dozen times per entry, and
 * ends the process when that fails. */
#ifndef LB_TAR_ENTRY_H
#define LB_TAR_ENTRY_H

#include "archive/record.h"

#define LB_TAR_BLOCK 512
#define LB_TAR_ATTRIBUTE_MAX (2 * LB_RECORD_PAGE)
#define LB_TAR_HEADER_MAX (LB_TAR_ATTRIBUTE_MAX + 4 * LB_TAR_BLOCK)
#define LB_TAR_NAME_MAX 255

/* Writes the header of a file called `name` (at most LB_TAR_NAME_MAX bytes, ASCII, a relative path) of `payload` bytes,
 * with an attribute of at most LB_TAR_ATTRIBUTE_MAX bytes; returns how many bytes it is. */
size_t lb_tar_entry_header(const char *name, const void *attribute, size_t attribute_bytes, uint64_t payload,
                           char bytes[LB_TAR_HEADER_MAX]);

/* How long the attribute must be, at least `attribute_bytes`, so that the payload of a header that begins at `offset`
 * begins on a page. The name is one that ustar has room for. */
size_t lb_tar_entry_page_attribute(uint64_t offset, size_t attribute_bytes, uint64_t payload);

/* Zeros behind a payload up to the next block. */
static inline size_t lb_tar_entry_padding(uint64_t payload)
{
    return (size_t)(-payload % LB_TAR_BLOCK);
}

#endif
