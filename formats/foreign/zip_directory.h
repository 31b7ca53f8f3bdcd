/* The members of a zip, found where they lie: what torch.save and numpy.savez write is such a zip.
 *
 * Only the central directory and the members' own headers are read, so opening costs nothing per byte of a checkpoint
 * (and CRCs are not checked). Zip64 is read; zip_member.h unpacks compressed members. Private to formats/.
 * https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT */
#ifndef LB_ZIP_DIRECTORY_H
#define LB_ZIP_DIRECTORY_H

#include <lastbit/error.h>

typedef struct lb_zip_member {
    const char *name; /* in the input, not NUL-terminated */
    const char *bytes;
    uint64_t size;              /* as it lies there */
    uint64_t unpacked;          /* as the directory claims */
    uint32_t crc;               /* CRC-32 of the unpacked bytes */
    uint16_t name_size, method; /* method 0: stored, 8: deflate */
    bool encrypted;
} lb_zip_member;

typedef struct lb_zip {
    lb_zip_member *members;
    uint32_t n;
} lb_zip;

/* `source` begins messages; `offset` is where the bytes lie in it. */
lb_status lb_zip_open(const char *bytes, size_t size, const char *source, uint64_t offset, lb_zip *zip, lb_err *err);
void lb_zip_release(lb_zip *zip);
/* The member of this name below the zip's one folder ("archive/data.pkl" for "data.pkl"), or NULL. */
const lb_zip_member *lb_zip_find(const lb_zip *zip, const char *name, size_t name_size);

#endif
