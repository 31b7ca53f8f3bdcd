/* Records: what the entries of an archive are. Private to formats/; FORMAT.md has the bytes.
 *
 * Every tar entry is one record. Its descriptor, a MessagePack map in the pax attribute `user.lastbit`, says what the
 * payload is; it is the truth, and the index at the end only a faster way to it. */
#ifndef LB_RECORD_H
#define LB_RECORD_H

#include <lastbit/archive.h>

#define LB_RECORD_ATTRIBUTE "user.lastbit"
#define LB_RECORD_PAGE 4096            /* payloads of large blobs begin at multiples of this */
#define LB_RECORD_SMALL 16384          /* blobs below this size share a pack */
#define LB_RECORD_PACK_ALIGN 64        /* of a blob inside a pack */
#define LB_RECORD_PACK_MAX (64u << 20) /* decoded bytes of one pack: what a reader may have to decode for one blob */
#define LB_DESCRIPTOR_MAX 1024         /* bytes of MessagePack in a descriptor; zeros may follow them */
#define LB_NO_RANK (-1)

/* X(ID, code, name) */
#define LB_RECORD_KINDS(X)                                                                                             \
    X(HEAD, 0, "head")                                                                                                 \
    X(BLOB, 1, "blob")                                                                                                 \
    X(PACK, 2, "pack")                                                                                                 \
    X(PROGRAM, 3, "program")                                                                                           \
    X(TABLE, 4, "table")                                                                                               \
    X(COMMIT, 5, "commit")                                                                                             \
    X(INDEX, 6, "index")                                                                                               \
    X(LOCATOR, 7, "locator")

typedef enum lb_record_kind {
#define LB_RECORD_ENUM(ID, code, name) LB_RECORD_##ID = code,
    LB_RECORD_KINDS(LB_RECORD_ENUM)
#undef LB_RECORD_ENUM
        LB_RECORD_KIND_COUNT
} lb_record_kind;
const char *lb_record_kind_name(lb_record_kind kind);

/* How a payload is stored: as it is, or zstd over byte planes (see coding.h). */
typedef uint8_t lb_coding;

/* Fields that a kind does not use are 0 (rank: LB_NO_RANK). */
typedef struct lb_descriptor {
    lb_record_kind kind;
    lb_digest digest;      /* blob: of the decoded bytes; pack: of the directory; others: of the payload as stored */
    uint32_t major, minor; /* head */
    lb_coding coding;
    uint64_t size;      /* decoded bytes (pack: of the blob area) */
    lb_dtype dtype;     /* blob */
    uint64_t directory; /* pack: where in the payload the directory begins */
    int64_t step;       /* program */
    int32_t rank;       /* program, table */
    uint8_t complete;   /* program */
    uint64_t number;    /* commit */
    char name[128];     /* table */
} lb_descriptor;

/* Writes at most LB_DESCRIPTOR_MAX bytes; returns how many. */
size_t lb_record_descriptor_encode(const lb_descriptor *descriptor, char bytes[LB_DESCRIPTOR_MAX]);
lb_status lb_record_descriptor_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                      lb_descriptor *descriptor, lb_err *err);

/* The 512 bytes at the end of a closed archive that say where its index is. */
#define LB_LOCATOR_BYTES 512
#define LB_LOCATOR_FROM_END (LB_LOCATOR_BYTES + 1024) /* two zero blocks follow it */
typedef struct lb_locator {
    uint32_t major, minor;
    uint64_t index_header, index_data, index_size;
    lb_digest index_digest;
    uint64_t file_bytes;
} lb_locator;
void lb_record_locator_encode(const lb_locator *locator, char bytes[LB_LOCATOR_BYTES]);
/* False when these bytes are no locator: there is then no index, which is no error. */
bool lb_record_locator_decode(const char bytes[LB_LOCATOR_BYTES], lb_locator *locator);

/* JSON text <-> MessagePack. `*bytes` and `*json` are malloc'ed and the caller's. */
lb_status lb_table_encode(const char *json, void **bytes, size_t *size, lb_err *err);
lb_status lb_table_decode(const void *bytes, size_t size, const char *source, uint64_t offset, char **json,
                          lb_err *err);

#endif
