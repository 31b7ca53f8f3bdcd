/* What an archive holds, row by row, and the bytes of commits, pack directories and the closing index.
 *
 * Blob rows stay columns: the index of a closed archive is used where it lies in the file, sorted by digest. Its bytes
 * are checked leaf by leaf, the columns' when they are first read, so that opening 1,000,000 blobs reads a few leaves.
 * The other rows are few and become structs. Private to formats/. */
#ifndef LB_ARCHIVE_INDEX_H
#define LB_ARCHIVE_INDEX_H

#include "base/byte_buffer.h"
#include "archive/record.h"

#include <stdatomic.h>

#define LB_NO_PACK UINT32_MAX

typedef struct lb_blob_row {
    lb_digest digest;
    uint64_t offset; /* in the file, or in the decoded pack */
    uint64_t stored, size;
    uint32_t pack; /* row of packs when that pack is coded, otherwise LB_NO_PACK */
    lb_coding coding;
    lb_dtype dtype;
} lb_blob_row;

/* A coded pack. */
typedef struct lb_pack_row {
    uint64_t offset, stored, size;
    lb_coding coding;
} lb_pack_row;

/* A program or a table. */
typedef struct lb_segment_row {
    lb_digest digest; /* of the stored bytes */
    uint64_t offset, stored, size;
    int64_t step;
    int32_t rank;
    uint8_t complete;
    lb_coding coding;
    char name[128]; /* table */
} lb_segment_row;

/* One tar entry, for commits. */
typedef struct lb_entry_row {
    uint64_t header, data, size;
    lb_digest digest;
    lb_record_kind kind;
} lb_entry_row;

/* Columns of blob rows, unaligned little-endian. */
typedef struct lb_blob_columns {
    uint64_t rows;
    const char *digest, *offset, *stored, *size, *pack, *coding, *dtype;
} lb_blob_columns;

/* The hashes of the first `n` leaves (lastbit/digest.h) of the bytes of a closing index: what lies in them is checked
 * when it is read. */
typedef struct lb_index_leaves {
    const char *bytes;  /* of the index, where it lies in the file */
    const char *hashes; /* u64, little-endian, unaligned */
    uint64_t n;
    _Atomic uint8_t *seen; /* per leaf: it was found right; NULL: there is nothing left to check */
} lb_index_leaves;

typedef struct lb_index {
    lb_blob_columns blobs; /* sorted by digest */
    lb_index_leaves leaves;
    byte_buffer own; /* their memory when they do not lie in a file */
    lb_pack_row *packs;
    uint32_t n_packs;
    lb_segment_row *programs, *tables;
    uint32_t n_programs, n_tables;
} lb_index;

/* Rows being gathered. */
typedef struct lb_index_rows {
    lb_blob_row *blobs;
    lb_pack_row *packs;
    lb_segment_row *programs, *tables;
    uint64_t n_blobs;
    uint32_t n_packs, n_programs, n_tables;
} lb_index_rows;

bool lb_index_add_blob(lb_index_rows *rows, const lb_blob_row *row);
bool lb_index_add_pack(lb_index_rows *rows, const lb_pack_row *row);
bool lb_index_add_program(lb_index_rows *rows, const lb_segment_row *row);
bool lb_index_add_table(lb_index_rows *rows, const lb_segment_row *row);
void lb_index_rows_release(lb_index_rows *rows);

/* Sorts the blobs (of equal digests the first stays) and turns rows into an index that owns its memory. Empties
 * `rows`. */
lb_status lb_index_build(lb_index_rows *rows, lb_index *index, lb_err *err);
void lb_index_release(lb_index *index);

/* The closing index as bytes; decoding leaves the blob columns where they are, and believes its bytes. */
lb_status lb_index_encode(const lb_index *index, byte_buffer *bytes, lb_err *err);
lb_status lb_index_decode(const void *bytes, size_t size, const char *source, uint64_t offset, lb_index *index,
                          lb_err *err);
/* Have the bytes it was decoded from this digest? Of blob columns whose leaves it has nothing is read but the ends:
 * lb_index_holds and lb_index_find look at the rest. LB_ERR_CORRUPT: they have not. LB_ERR_NOMEM. */
lb_status lb_index_check(lb_index *index, const void *bytes, size_t size, lb_digest digest);
/* Whether these bytes of a column, or all of the index, are those that were written. Any thread. */
bool lb_index_holds(const lb_index *index, const void *at, uint64_t size);
bool lb_index_holds_all(const lb_index *index);

/* Not a row: there is none of the digest, or the index is damaged where it would stand. */
#define LB_NO_ROW UINT64_MAX
#define LB_DAMAGED_ROW (UINT64_MAX - 1)

/* Row of a digest; what is in it holds. LB_NO_ROW, LB_DAMAGED_ROW. */
uint64_t lb_index_find(const lb_index *index, lb_digest digest);
/* A row that was found, or any of an index that holds. */
lb_blob_row lb_index_blob(const lb_index *index, uint64_t row);

/* The directory of a pack. */
void lb_index_directory_encode(const lb_blob_row *rows, uint64_t n, byte_buffer *bytes);
/* Where the blobs of a directory lie: `at` counts in the file, or in the decoded pack when `pack` is one. */
typedef struct lb_directory_area {
    uint64_t at, bytes;
    uint32_t pack;
} lb_directory_area;
/* Appends a row per blob. */
lb_status lb_index_directory_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                    const lb_directory_area *area, lb_index_rows *rows, lb_err *err);

/* A commit: the entries since the one before. */
void lb_index_commit_encode(uint64_t number, int64_t previous, const lb_entry_row *rows, uint64_t n,
                            byte_buffer *bytes);
/* `*rows` is malloc'ed; `data` of each is 0. */
lb_status lb_index_commit_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                 lb_entry_row **rows, uint64_t *n, lb_err *err);

#endif
