/* Rows, columns and lookup: see archive_index.h. */
#include "archive/archive_index.h"

#include "archive/coding.h"
#include "base/msgpack_cursor.h"

#include "base/array.h"
#include <inttypes.h>
#include <stdio.h>

/* ---- gathering --------------------------------------------------------------------------------------------------- */

#define ADD_ROW(function, type, array, count)                                                                          \
    bool function(lb_index_rows *rows, const type *row)                                                                \
    {                                                                                                                  \
        type *grown = lb_array_grow(rows->array, rows->count, sizeof *grown);                                          \
        if (!grown) return false;                                                                                      \
        rows->array = grown;                                                                                           \
        rows->array[rows->count++] = *row;                                                                             \
        return true;                                                                                                   \
    }
ADD_ROW(lb_index_add_blob, lb_blob_row, blobs, n_blobs)
ADD_ROW(lb_index_add_pack, lb_pack_row, packs, n_packs)
ADD_ROW(lb_index_add_program, lb_segment_row, programs, n_programs)
ADD_ROW(lb_index_add_table, lb_segment_row, tables, n_tables)
#undef ADD_ROW

void lb_index_rows_release(lb_index_rows *rows)
{
    free(rows->blobs);
    free(rows->packs);
    free(rows->programs);
    free(rows->tables);
    memset(rows, 0, sizeof *rows);
}

static int by_digest(const void *a, const void *b)
{
    const lb_blob_row *x = (const lb_blob_row *)a, *y = (const lb_blob_row *)b;
    if (x->digest.hi != y->digest.hi) return x->digest.hi < y->digest.hi ? -1 : 1;
    if (x->digest.lo != y->digest.lo) return x->digest.lo < y->digest.lo ? -1 : 1;
    if (x->pack != y->pack) return x->pack < y->pack ? -1 : 1; /* qsort is not stable */
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* X(column, bytes per row) in the order of memory and file */
#define BLOB_COLUMNS(X) X(digest, 16) X(offset, 8) X(stored, 8) X(size, 8) X(pack, 4) X(coding, 1) X(dtype, 1)
#define BLOB_ROW_BYTES (16 + 8 + 8 + 8 + 4 + 1 + 1)

lb_status lb_index_build(lb_index_rows *rows, lb_index *index, lb_err *err)
{
    memset(index, 0, sizeof *index);
    if (rows->n_blobs) qsort(rows->blobs, rows->n_blobs, sizeof *rows->blobs, by_digest);
    uint64_t n = 0;
    for (uint64_t i = 0; i < rows->n_blobs; i++)
        if (n == 0 || !lb_digest_equal(rows->blobs[n - 1].digest, rows->blobs[i].digest))
            rows->blobs[n++] = rows->blobs[i];
    char *at = buffer_extend(&index->own, n * BLOB_ROW_BYTES);
    if (!at) return lb_fail(err, LB_ERR_NOMEM, "no memory for an index of %" PRIu64 " blobs", n);
    index->blobs.rows = n;
#define PLACE(column, width) index->blobs.column = at, at += n * width;
    BLOB_COLUMNS(PLACE)
#undef PLACE
    for (uint64_t i = 0; i < n; i++) {
        const lb_blob_row *row = &rows->blobs[i];
        digest_to_bytes(row->digest, (char *)(uintptr_t)index->blobs.digest + i * 16);
#define FILL(column, width)                                                                                            \
    if ((width) != 16) memcpy((char *)(uintptr_t)index->blobs.column + i * width, &row->column, width);
        BLOB_COLUMNS(FILL)
#undef FILL
    }
    index->packs = rows->packs, index->n_packs = rows->n_packs;
    index->programs = rows->programs, index->n_programs = rows->n_programs;
    index->tables = rows->tables, index->n_tables = rows->n_tables;
    free(rows->blobs);
    memset(rows, 0, sizeof *rows);
    return LB_OK;
}

void lb_index_release(lb_index *index)
{
    buffer_release(&index->own);
    free(index->packs);
    free(index->programs);
    free(index->tables);
    memset(index, 0, sizeof *index);
}

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

uint64_t lb_index_find(const lb_index *index, lb_digest digest)
{
    char wanted[16];
    digest_to_bytes(digest, wanted);
    uint64_t low = 0, high = index->blobs.rows;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = memcmp(index->blobs.digest + middle * 16, wanted, 16);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT64_MAX;
}

lb_blob_row lb_index_blob(const lb_index *index, uint64_t row)
{
    lb_blob_row blob;
#define GET(column, width)                                                                                             \
    if ((width) == 16)                                                                                                 \
        blob.digest = digest_from_bytes(index->blobs.digest + row * 16);                                               \
    else                                                                                                               \
        memcpy(&blob.column, index->blobs.column + row * width, width);
    BLOB_COLUMNS(GET)
#undef GET
    return blob;
}

/* ---- tables of columns ------------------------------------------------------------------------------------------- */

typedef struct column {
    const char *name;
    uint32_t width;     /* bytes per row */
    const char **bytes; /* gets where the column lies */
} column;

static lb_status read_column(lb_cursor *c, const char *table, const column *column, int64_t rows)
{
    const void *bytes;
    size_t length;
    char field[64];
    snprintf(field, sizeof field, "%s.%s", table, column->name);
    LB_TRY(lb_cursor_bin(c, field, &bytes, &length));
    if (rows < 0 || length != (uint64_t)rows * column->width)
        return lb_cursor_fail(c, field, "%zu bytes for %" PRId64 " rows of %" PRIu32, length, rows, column->width);
    *column->bytes = (const char *)bytes;
    return LB_OK;
}

/* A map of "rows", which comes first and once, and a BIN per column; all of `columns` must be there. */
static lb_status read_columns(lb_cursor *c, const char *table, const column *columns, uint32_t n, uint64_t *rows)
{
    uint32_t pairs, length;
    const char *key;
    int64_t number = -1;
    LB_TRY(lb_cursor_map(c, table, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t k = 0;
        LB_TRY(lb_cursor_str(c, table, &key, &length));
        if (lb_text_is(key, length, "rows")) {
            if (number >= 0) return lb_cursor_fail(c, table, "\"rows\" stands there twice");
            LB_TRY(lb_cursor_int_in(c, table, 0, INT64_MAX / 64, &number));
            continue;
        }
        while (k < n && !lb_text_is(key, length, columns[k].name)) k++;
        LB_TRY(k < n ? read_column(c, table, &columns[k], number) : lb_cursor_skip(c, table));
    }
    for (uint32_t k = 0; k < n; k++)
        if (!*columns[k].bytes) return lb_cursor_fail(c, table, "has no column '%s'", columns[k].name);
    *rows = (uint64_t)number;
    return LB_OK;
}

/* ---- the closing index as bytes ---------------------------------------------------------------------------------- */

static void encode_segments(msgpack_packer *p, const char *key, const lb_segment_row *rows, uint32_t n, bool tables)
{
    char digest[16];
    pack_text(p, key);
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++) {
        const lb_segment_row *row = &rows[i];
        msgpack_pack_map(p, tables ? 7 : 8);
        digest_to_bytes(row->digest, digest);
        pack_bin(p, "digest", digest, 16);
        pack_int(p, "offset", (int64_t)row->offset);
        pack_int(p, "stored", (int64_t)row->stored);
        pack_int(p, "size", (int64_t)row->size);
        pack_int(p, "coding", row->coding);
        pack_int(p, "rank", row->rank);
        if (tables) {
            pack_text(p, "name");
            pack_text(p, row->name);
        } else {
            pack_int(p, "step", row->step);
            pack_int(p, "complete", row->complete);
        }
    }
}

lb_status lb_index_encode(const lb_index *index, byte_buffer *bytes, lb_err *err)
{
    msgpack_packer packer = buffer_packer(bytes), *p = &packer;
    msgpack_pack_map(p, 4);
    pack_text(p, "blobs");
    msgpack_pack_map(p, 8);
    pack_int(p, "rows", (int64_t)index->blobs.rows);
#define PUT(column, width) pack_bin(p, #column, index->blobs.column, index->blobs.rows *width);
    BLOB_COLUMNS(PUT)
#undef PUT
    pack_text(p, "packs");
    msgpack_pack_array(p, index->n_packs);
    for (uint32_t i = 0; i < index->n_packs; i++) {
        msgpack_pack_map(p, 4);
        pack_int(p, "offset", (int64_t)index->packs[i].offset);
        pack_int(p, "stored", (int64_t)index->packs[i].stored);
        pack_int(p, "size", (int64_t)index->packs[i].size);
        pack_int(p, "coding", index->packs[i].coding);
    }
    encode_segments(p, "programs", index->programs, index->n_programs, false);
    encode_segments(p, "tables", index->tables, index->n_tables, true);
    return bytes->failed ? lb_fail(err, LB_ERR_NOMEM, "no memory for the index") : LB_OK;
}

static lb_status read_segment(lb_cursor *c, const char *field, lb_segment_row *row)
{
    uint32_t pairs, n;
    const char *key;
    const void *bytes;
    size_t length;
    int64_t v;
    memset(row, 0, sizeof *row);
    LB_TRY(lb_cursor_map(c, field, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        LB_TRY(lb_cursor_str(c, field, &key, &n));
        if (lb_text_is(key, n, "digest")) {
            LB_TRY(lb_cursor_bin(c, field, &bytes, &length));
            if (length != 16) return lb_cursor_fail(c, field, "digest of %zu bytes, expected 16", length);
            row->digest = digest_from_bytes(bytes);
        } else if (lb_text_is(key, n, "name")) {
            LB_TRY(lb_cursor_str(c, field, &key, &n));
            if (n >= sizeof row->name) return lb_cursor_fail(c, field, "name of %u bytes", (unsigned)n);
            memcpy(row->name, key, n);
        }
#define INTEGER(name, low, high)                                                                                       \
    else if (lb_text_is(key, n, #name))                                                                                \
    {                                                                                                                  \
        LB_TRY(lb_cursor_int_in(c, field, low, high, &v));                                                             \
        row->name = (__typeof__(row->name))v;                                                                          \
    }
        INTEGER(offset, 0, INT64_MAX)
        INTEGER(stored, 0, INT64_MAX)
        INTEGER(size, 0, INT64_MAX)
        INTEGER(coding, 0, UINT8_MAX)
        INTEGER(rank, LB_NO_RANK, INT32_MAX)
        INTEGER(step, INT64_MIN, INT64_MAX)
        INTEGER(complete, 0, 1)
#undef INTEGER
        else LB_TRY(lb_cursor_skip(c, field));
    }
    return LB_OK;
}

static lb_status read_blobs(lb_cursor *c, lb_index *index)
{
    lb_blob_columns found = {0, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
#define COLUMN(name, width) {#name, width, &found.name},
    const column columns[] = {BLOB_COLUMNS(COLUMN)};
#undef COLUMN
    LB_TRY(read_columns(c, "blobs", columns, sizeof columns / sizeof *columns, &found.rows));
    index->blobs = found;
    return LB_OK;
}

static lb_status read_segments(lb_cursor *c, const char *key, uint32_t n, lb_index_rows *rows)
{
    uint32_t count;
    bool packs = lb_text_is(key, n, "packs"), programs = lb_text_is(key, n, "programs");
    if (!packs && !programs && !lb_text_is(key, n, "tables")) return lb_cursor_skip(c, "index");
    LB_TRY(lb_cursor_array(c, "index", &count));
    for (uint32_t i = 0; i < count; i++) {
        lb_segment_row row;
        LB_TRY(read_segment(c, packs ? "packs" : programs ? "programs" : "tables", &row));
        lb_pack_row pack = {row.offset, row.stored, row.size, row.coding};
        bool added = packs      ? lb_index_add_pack(rows, &pack)
                     : programs ? lb_index_add_program(rows, &row)
                                : lb_index_add_table(rows, &row);
        if (!added) return lb_fail(c->err, LB_ERR_NOMEM, "%s: no memory for its index", c->source);
    }
    return LB_OK;
}

lb_status lb_index_decode(const void *bytes, size_t size, const char *source, uint64_t offset, lb_index *index,
                          lb_err *err)
{
    lb_cursor c = lb_cursor_of(bytes, size, source, offset, err);
    lb_index_rows rows;
    memset(index, 0, sizeof *index);
    memset(&rows, 0, sizeof rows);
    uint32_t pairs = 0, n;
    const char *key;
    lb_status status = lb_cursor_map(&c, "index", &pairs);
    for (uint32_t i = 0; i < pairs && status == LB_OK; i++) {
        status = lb_cursor_str(&c, "index", &key, &n);
        if (status != LB_OK) break;
        status = lb_text_is(key, n, "blobs") ? read_blobs(&c, index) : read_segments(&c, key, n, &rows);
    }
    index->packs = rows.packs, index->n_packs = rows.n_packs;
    index->programs = rows.programs, index->n_programs = rows.n_programs;
    index->tables = rows.tables, index->n_tables = rows.n_tables;
    if (status != LB_OK) lb_index_release(index);
    return status;
}

/* ---- packs and commits ------------------------------------------------------------------------------------------- */

/* Empties `column`. */
static void pack_column(msgpack_packer *p, const char *name, byte_buffer *column, byte_buffer *bytes)
{
    pack_bin(p, name, column->bytes, column->size);
    bytes->failed |= column->failed;
    buffer_clear(column);
}

#define COLUMN(name, type, of_row_i)                                                                                   \
    for (uint64_t i = 0; i < n; i++) buffer_add_##type(&column, of_row_i);                                             \
    pack_column(p, name, &column, bytes);

void lb_index_directory_encode(const lb_blob_row *rows, uint64_t n, byte_buffer *bytes)
{
    byte_buffer column = {0};
    msgpack_packer packer = buffer_packer(bytes), *p = &packer;
    msgpack_pack_map(p, 5);
    pack_int(p, "rows", (int64_t)n);
    COLUMN("digest", digest, rows[i].digest)
    COLUMN("offset", u64, rows[i].offset)
    COLUMN("size", u64, rows[i].size)
    COLUMN("dtype", u8, rows[i].dtype)
    buffer_release(&column);
}

lb_status lb_index_directory_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                    const lb_directory_area *area, lb_index_rows *rows, lb_err *err)
{
    lb_cursor c = lb_cursor_of(bytes, size, source, offset, err);
    const char *digest = NULL, *at = NULL, *sizes = NULL, *dtype = NULL;
    const column columns[] = {{"digest", 16, &digest}, {"offset", 8, &at}, {"size", 8, &sizes}, {"dtype", 1, &dtype}};
    uint64_t n;
    LB_TRY(read_columns(&c, "directory", columns, 4, &n));
    for (uint64_t i = 0; i < n; i++) {
        lb_blob_row row = {
            .digest = digest_from_bytes(digest + i * 16), .pack = area->pack, .dtype = (lb_dtype)dtype[i]};
        memcpy(&row.offset, at + i * 8, 8);
        memcpy(&row.size, sizes + i * 8, 8);
        if (row.size > area->bytes || row.offset > area->bytes - row.size)
            return lb_cursor_fail(&c, "directory.offset",
                                  "row %" PRIu64 ": blob of %" PRIu64 " bytes at %" PRIu64
                                  " ends after the pack's %" PRIu64,
                                  i, row.size, row.offset, area->bytes);
        row.offset += area->at;
        row.stored = row.size;
        if (!lb_index_add_blob(rows, &row)) return lb_fail(err, LB_ERR_NOMEM, "%s: no memory for its index", source);
    }
    return LB_OK;
}

void lb_index_commit_encode(uint64_t number, int64_t previous, const lb_entry_row *rows, uint64_t n, byte_buffer *bytes)
{
    byte_buffer column = {0};
    msgpack_packer packer = buffer_packer(bytes), *p = &packer;
    msgpack_pack_map(p, 7);
    pack_int(p, "number", (int64_t)number);
    pack_int(p, "previous", previous);
    pack_int(p, "rows", (int64_t)n);
    COLUMN("kind", u8, (uint8_t)rows[i].kind)
    COLUMN("header", u64, rows[i].header)
    COLUMN("size", u64, rows[i].size)
    COLUMN("digest", digest, rows[i].digest)
    buffer_release(&column);
}

lb_status lb_index_commit_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                 lb_entry_row **rows, uint64_t *n, lb_err *err)
{
    lb_cursor c = lb_cursor_of(bytes, size, source, offset, err);
    const char *kind = NULL, *header = NULL, *sizes = NULL, *digest = NULL;
    const column columns[] = {{"kind", 1, &kind}, {"header", 8, &header}, {"size", 8, &sizes}, {"digest", 16, &digest}};
    LB_TRY(read_columns(&c, "commit", columns, 4, n));
    *rows = (lb_entry_row *)calloc(*n + 1, sizeof **rows);
    if (!*rows) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", source);
    for (uint64_t i = 0; i < *n; i++) {
        lb_entry_row *row = &(*rows)[i];
        memcpy(&row->header, header + i * 8, 8);
        memcpy(&row->size, sizes + i * 8, 8);
        row->digest = digest_from_bytes(digest + i * 16);
        row->kind = (lb_record_kind)(uint8_t)kind[i];
    }
    return LB_OK;
}
