/* What an archive holds, row by row, and the bytes of commits, pack directories and the closing index.
 *
 * Blob rows stay columns: the index of a closed archive is used where it lies in the file, sorted by digest, so that
 * opening 100,000 blobs reads nothing but a checksum. The other rows are few and become structs. Private to
 * formats/. */
#ifndef LB_ARCHIVE_INDEX_H
#define LB_ARCHIVE_INDEX_H

#include "base/byte_buffer.h"
#include "archive/record.h"

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

typedef struct lb_index {
    lb_blob_columns blobs; /* sorted by digest */
    byte_buffer own;       /* their memory when they do not lie in a file */
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

/* The closing index as bytes; decoding leaves the blob columns where they are. */
lb_status lb_index_encode(const lb_index *index, byte_buffer *bytes, lb_err *err);
lb_status lb_index_decode(const void *bytes, size_t size, const char *source, uint64_t offset, lb_index *index,
                          lb_err *err);

/* Row of a digest, or UINT64_MAX. */
uint64_t lb_index_find(const lb_index *index, lb_digest digest);
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
