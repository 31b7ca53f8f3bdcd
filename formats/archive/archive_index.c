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
    free((void *)index->leaves.seen);
    free(index->packs);
    free(index->programs);
    free(index->tables);
    memset(index, 0, sizeof *index);
}

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

bool lb_index_holds(const lb_index *index, const void *at, uint64_t size)
{
    const lb_index_leaves *x = &index->leaves;
    if (!x->seen || !size) return true;
    const uint64_t from = (uint64_t)((const char *)at - x->bytes), last = (from + size - 1) / LB_DIGEST_LEAF;
    for (uint64_t i = from / LB_DIGEST_LEAF; i <= last && i < x->n; i++) {
        uint64_t expected;
        if (atomic_load_explicit(&x->seen[i], memory_order_relaxed)) continue;
        memcpy(&expected, x->hashes + i * 8, 8);
        if (lb_digest_leaf(x->bytes + i * LB_DIGEST_LEAF, LB_DIGEST_LEAF, i) != expected) return false;
        atomic_store_explicit(&x->seen[i], 1, memory_order_relaxed); /* the bytes stay as they are */
    }
    return true;
}

bool lb_index_holds_all(const lb_index *index)
{
    return lb_index_holds(index, index->leaves.bytes, index->leaves.n * LB_DIGEST_LEAF);
}

static bool row_holds(const lb_index *index, uint64_t row)
{
#define HOLDS(column, width) &&lb_index_holds(index, index->blobs.column + row * width, width)
    return true BLOB_COLUMNS(HOLDS);
#undef HOLDS
}

/* Digests are hashed bits: of some that are sorted, one stands about where its share of their range says. */
static uint64_t likely_row(uint64_t wanted, uint64_t low, uint64_t high, uint64_t at_low, uint64_t at_high)
{
    if (wanted < at_low || wanted > at_high || at_low == at_high) return low + (high - low) / 2;
    const uint64_t steps = (uint64_t)((double)(wanted - at_low) / (double)(at_high - at_low) * (double)(high - low));
    return steps < high - low ? low + steps : high - 1;
}

uint64_t lb_index_find(const lb_index *index, lb_digest digest)
{
    enum { GUESSES = 6 }; /* then by halves, whatever the digests are */
    char wanted[16];
    digest_to_bytes(digest, wanted);
    uint64_t low = 0, high = index->blobs.rows, at_low = 0, at_high = UINT64_MAX;
    for (int guesses = 0; low < high; guesses++) {
        const uint64_t middle =
            guesses < GUESSES ? likely_row(digest.hi, low, high, at_low, at_high) : low + (high - low) / 2;
        const char *there = index->blobs.digest + middle * 16;
        if (!lb_index_holds(index, there, 16)) return LB_DAMAGED_ROW;
        int order = memcmp(there, wanted, 16);
        if (order == 0) return row_holds(index, middle) ? middle : LB_DAMAGED_ROW;
        if (order < 0)
            low = middle + 1, at_low = digest_from_bytes(there).hi;
        else
            high = middle, at_high = digest_from_bytes(there).hi;
    }
    return LB_NO_ROW;
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

static lb_status read_column(lb_cursor *cursor, const char *table, const column *column, int64_t rows)
{
    const void *bytes;
    size_t length;
    char field[64];
    snprintf(field, sizeof field, "%s.%s", table, column->name);
    LB_TRY(lb_cursor_bin(cursor, field, &bytes, &length));
    if (rows < 0 || length != (uint64_t)rows * column->width)
        return lb_cursor_fail(cursor, field, "%zu bytes for %" PRId64 " rows of %" PRIu32, length, rows, column->width);
    *column->bytes = (const char *)bytes;
    return LB_OK;
}

/* A map of "rows", which comes first and once, and a BIN per column; all of `columns` must be there. */
static lb_status read_columns(lb_cursor *cursor, const char *table, const column *columns, uint32_t n, uint64_t *rows)
{
    uint32_t pairs, length;
    const char *key;
    int64_t number = -1;
    LB_TRY(lb_cursor_map(cursor, table, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t k = 0;
        LB_TRY(lb_cursor_str(cursor, table, &key, &length));
        if (lb_text_is(key, length, "rows")) {
            if (number >= 0) return lb_cursor_fail(cursor, table, "\"rows\" stands there twice");
            LB_TRY(lb_cursor_int_in(cursor, table, 0, INT64_MAX / 64, &number));
            continue;
        }
        while (k < n && !lb_text_is(key, length, columns[k].name)) k++;
        LB_TRY(k < n ? read_column(cursor, table, &columns[k], number) : lb_cursor_skip(cursor, table));
    }
    for (uint32_t k = 0; k < n; k++)
        if (!*columns[k].bytes) return lb_cursor_fail(cursor, table, "has no column '%s'", columns[k].name);
    *rows = (uint64_t)number;
    return LB_OK;
}

/* ---- the closing index as bytes ---------------------------------------------------------------------------------- */

static void encode_segments(msgpack_packer *to, const char *key, const lb_segment_row *rows, uint32_t n, bool tables)
{
    char digest[16];
    pack_text(to, key);
    msgpack_pack_array(to, n);
    for (uint32_t i = 0; i < n; i++) {
        const lb_segment_row *row = &rows[i];
        msgpack_pack_map(to, tables ? 7 : 8);
        digest_to_bytes(row->digest, digest);
        pack_bin(to, "digest", digest, 16);
        pack_int(to, "offset", (int64_t)row->offset);
        pack_int(to, "stored", (int64_t)row->stored);
        pack_int(to, "size", (int64_t)row->size);
        pack_int(to, "coding", row->coding);
        pack_int(to, "rank", row->rank);
        if (tables) {
            pack_text(to, "name");
            pack_text(to, row->name);
        } else {
            pack_int(to, "step", row->step);
            pack_int(to, "complete", row->complete);
        }
    }
}

/* Of an index that has any; they come last. */
static void encode_leaves(msgpack_packer *to, byte_buffer *bytes)
{
    byte_buffer hashes = {0};
    const uint64_t n = bytes->size / LB_DIGEST_LEAF;
    for (uint64_t i = 0; i < n && !bytes->failed; i++)
        buffer_add_u64(&hashes, lb_digest_leaf(bytes->bytes + i * LB_DIGEST_LEAF, LB_DIGEST_LEAF, i));
    bytes->failed |= hashes.failed;
    pack_bin(to, "leaves", hashes.bytes, hashes.size);
    buffer_release(&hashes);
}

lb_status lb_index_encode(const lb_index *index, byte_buffer *bytes, lb_err *err)
{
    msgpack_packer packer = buffer_packer(bytes), *to = &packer;
    const bool leaves = index->blobs.rows * BLOB_ROW_BYTES >= LB_DIGEST_LEAF;
    buffer_clear(bytes);
    msgpack_pack_map(to, leaves ? 5 : 4);
    pack_text(to, "blobs");
    msgpack_pack_map(to, 8);
    pack_int(to, "rows", (int64_t)index->blobs.rows);
#define PUT(column, width) pack_bin(to, #column, index->blobs.column, index->blobs.rows *width);
    BLOB_COLUMNS(PUT)
#undef PUT
    pack_text(to, "packs");
    msgpack_pack_array(to, index->n_packs);
    for (uint32_t i = 0; i < index->n_packs; i++) {
        msgpack_pack_map(to, 4);
        pack_int(to, "offset", (int64_t)index->packs[i].offset);
        pack_int(to, "stored", (int64_t)index->packs[i].stored);
        pack_int(to, "size", (int64_t)index->packs[i].size);
        pack_int(to, "coding", index->packs[i].coding);
    }
    encode_segments(to, "programs", index->programs, index->n_programs, false);
    encode_segments(to, "tables", index->tables, index->n_tables, true);
    if (leaves) encode_leaves(to, bytes);
    return bytes->failed ? lb_fail(err, LB_ERR_NOMEM, "no memory for the index") : LB_OK;
}

static lb_status read_segment(lb_cursor *cursor, const char *field, lb_segment_row *row)
{
    uint32_t pairs, n;
    const char *key;
    const void *bytes;
    size_t length;
    int64_t number;
    memset(row, 0, sizeof *row);
    LB_TRY(lb_cursor_map(cursor, field, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        LB_TRY(lb_cursor_str(cursor, field, &key, &n));
        if (lb_text_is(key, n, "digest")) {
            LB_TRY(lb_cursor_bin(cursor, field, &bytes, &length));
            if (length != 16) return lb_cursor_fail(cursor, field, "digest of %zu bytes, expected 16", length);
            row->digest = digest_from_bytes(bytes);
        } else if (lb_text_is(key, n, "name")) {
            LB_TRY(lb_cursor_str(cursor, field, &key, &n));
            if (n >= sizeof row->name) return lb_cursor_fail(cursor, field, "name of %u bytes", (unsigned)n);
            memcpy(row->name, key, n);
        }
#define INTEGER(name, low, high)                                                                                       \
    else if (lb_text_is(key, n, #name))                                                                                \
    {                                                                                                                  \
        LB_TRY(lb_cursor_int_in(cursor, field, low, high, &number));                                                   \
        row->name = (__typeof__(row->name))number;                                                                     \
    }
        INTEGER(offset, 0, INT64_MAX)
        INTEGER(stored, 0, INT64_MAX)
        INTEGER(size, 0, INT64_MAX)
        INTEGER(coding, 0, UINT8_MAX)
        INTEGER(rank, LB_NO_RANK, INT32_MAX)
        INTEGER(step, INT64_MIN, INT64_MAX)
        INTEGER(complete, 0, 1)
#undef INTEGER
        else LB_TRY(lb_cursor_skip(cursor, field));
    }
    return LB_OK;
}

static lb_status read_blobs(lb_cursor *cursor, lb_index *index)
{
    lb_blob_columns found = {0, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
#define COLUMN(name, width) {#name, width, &found.name},
    const column columns[] = {BLOB_COLUMNS(COLUMN)};
#undef COLUMN
    LB_TRY(read_columns(cursor, "blobs", columns, sizeof columns / sizeof *columns, &found.rows));
    index->blobs = found;
    return LB_OK;
}

static lb_status read_leaves(lb_cursor *cursor, lb_index *index)
{
    const void *hashes;
    size_t size;
    LB_TRY(lb_cursor_bin(cursor, "leaves", &hashes, &size));
    if (size % 8) return lb_cursor_fail(cursor, "leaves", "%zu bytes, of 8 each", size);
    index->leaves = (lb_index_leaves){.bytes = (const char *)cursor->start, .hashes = hashes, .n = size / 8};
    return LB_OK;
}

static lb_status read_segments(lb_cursor *cursor, const char *key, uint32_t n, lb_index_rows *rows)
{
    uint32_t count;
    bool packs = lb_text_is(key, n, "packs"), programs = lb_text_is(key, n, "programs");
    if (!packs && !programs && !lb_text_is(key, n, "tables")) return lb_cursor_skip(cursor, "index");
    LB_TRY(lb_cursor_array(cursor, "index", &count));
    for (uint32_t i = 0; i < count; i++) {
        lb_segment_row row;
        LB_TRY(read_segment(cursor, packs ? "packs" : programs ? "programs" : "tables", &row));
        lb_pack_row pack = {row.offset, row.stored, row.size, row.coding};
        bool added = packs      ? lb_index_add_pack(rows, &pack)
                     : programs ? lb_index_add_program(rows, &row)
                                : lb_index_add_table(rows, &row);
        if (!added) return lb_fail(cursor->err, LB_ERR_NOMEM, "%s: no memory for its index", cursor->source);
    }
    return LB_OK;
}

lb_status lb_index_decode(const void *bytes, size_t size, const char *source, uint64_t offset, lb_index *index,
                          lb_err *err)
{
    lb_cursor cursor = lb_cursor_of(bytes, size, source, offset, err);
    lb_index_rows rows;
    memset(index, 0, sizeof *index);
    memset(&rows, 0, sizeof rows);
    uint32_t pairs = 0, n;
    const char *key;
    lb_status status = lb_cursor_map(&cursor, "index", &pairs);
    for (uint32_t i = 0; i < pairs && status == LB_OK; i++) {
        status = lb_cursor_str(&cursor, "index", &key, &n);
        if (status != LB_OK) break;
        status = lb_text_is(key, n, "blobs")    ? read_blobs(&cursor, index)
                 : lb_text_is(key, n, "leaves") ? read_leaves(&cursor, index)
                                                : read_segments(&cursor, key, n, &rows);
    }
    index->packs = rows.packs, index->n_packs = rows.n_packs;
    index->programs = rows.programs, index->n_programs = rows.n_programs;
    index->tables = rows.tables, index->n_tables = rows.n_tables;
    if (status != LB_OK) lb_index_release(index);
    return status;
}

/* Leaves that lie in one column may wait. */
static void mark_waiting(const lb_index *index, const char *column, uint64_t size, uint8_t *waits)
{
    const uint64_t from = (uint64_t)(column - index->leaves.bytes);
    for (uint64_t i = (from + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF; (i + 1) * LB_DIGEST_LEAF <= from + size; i++)
        if (i < index->leaves.n) waits[i] = 1;
}

/* The digest is that of all leaves: those that are listed, and those behind them. LB_ERR_CORRUPT: it is another. */
static lb_status compare_digest(const lb_index_leaves *x, const char *bytes, size_t size, lb_digest digest)
{
    const uint64_t n = (size + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF;
    uint64_t *all = malloc((n + 1) * sizeof *all);
    if (!all) return LB_ERR_NOMEM;
    if (x->n) memcpy(all, x->hashes, x->n * 8);
    for (uint64_t i = x->n; i < n; i++) {
        const size_t left = size - i * LB_DIGEST_LEAF;
        all[i] = lb_digest_leaf(bytes + i * LB_DIGEST_LEAF, left < LB_DIGEST_LEAF ? left : LB_DIGEST_LEAF, i);
    }
    const bool equal = lb_digest_equal(lb_digest_of_byte_leaves(all, n, size), digest);
    free(all);
    return equal ? LB_OK : LB_ERR_CORRUPT;
}

/* What lies in no column is read already. */
static lb_status check_ends(lb_index *index)
{
    lb_index_leaves *x = &index->leaves;
    uint8_t *waits = calloc(x->n, 1);
    x->seen = calloc(x->n, sizeof *x->seen);
    lb_status status = waits && x->seen ? LB_OK : LB_ERR_NOMEM;
#define MARK(column, width)                                                                                            \
    if (status == LB_OK) mark_waiting(index, index->blobs.column, index->blobs.rows *width, waits);
    BLOB_COLUMNS(MARK)
#undef MARK
    for (uint64_t i = 0; i < x->n && status == LB_OK; i++)
        if (!waits[i] && !lb_index_holds(index, x->bytes + i * LB_DIGEST_LEAF, LB_DIGEST_LEAF)) status = LB_ERR_CORRUPT;
    free(waits);
    return status;
}

lb_status lb_index_check(lb_index *index, const void *bytes, size_t size, lb_digest digest)
{
    if (index->leaves.n > size / LB_DIGEST_LEAF) index->leaves.n = 0;
    LB_TRY(compare_digest(&index->leaves, bytes, size, digest));
    return index->leaves.n ? check_ends(index) : LB_OK;
}

/* ---- packs and commits ------------------------------------------------------------------------------------------- */

/* Empties `column`. */
static void pack_column(msgpack_packer *to, const char *name, byte_buffer *column, byte_buffer *bytes)
{
    pack_bin(to, name, column->bytes, column->size);
    bytes->failed |= column->failed;
    buffer_clear(column);
}

#define COLUMN(name, type, of_row_i)                                                                                   \
    for (uint64_t i = 0; i < n; i++) buffer_add_##type(&column, of_row_i);                                             \
    pack_column(to, name, &column, bytes);

void lb_index_directory_encode(const lb_blob_row *rows, uint64_t n, byte_buffer *bytes)
{
    byte_buffer column = {0};
    msgpack_packer packer = buffer_packer(bytes), *to = &packer;
    msgpack_pack_map(to, 5);
    pack_int(to, "rows", (int64_t)n);
    COLUMN("digest", digest, rows[i].digest)
    COLUMN("offset", u64, rows[i].offset)
    COLUMN("size", u64, rows[i].size)
    COLUMN("dtype", u8, rows[i].dtype)
    buffer_release(&column);
}

lb_status lb_index_directory_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                    const lb_directory_area *area, lb_index_rows *rows, lb_err *err)
{
    lb_cursor cursor = lb_cursor_of(bytes, size, source, offset, err);
    const char *digest = NULL, *at = NULL, *sizes = NULL, *dtype = NULL;
    const column columns[] = {{"digest", 16, &digest}, {"offset", 8, &at}, {"size", 8, &sizes}, {"dtype", 1, &dtype}};
    uint64_t n;
    LB_TRY(read_columns(&cursor, "directory", columns, 4, &n));
    for (uint64_t i = 0; i < n; i++) {
        lb_blob_row row = {
            .digest = digest_from_bytes(digest + i * 16), .pack = area->pack, .dtype = (lb_dtype)dtype[i]};
        memcpy(&row.offset, at + i * 8, 8);
        memcpy(&row.size, sizes + i * 8, 8);
        if (row.size > area->bytes || row.offset > area->bytes - row.size)
            return lb_cursor_fail(&cursor, "directory.offset",
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
    msgpack_packer packer = buffer_packer(bytes), *to = &packer;
    msgpack_pack_map(to, 7);
    pack_int(to, "number", (int64_t)number);
    pack_int(to, "previous", previous);
    pack_int(to, "rows", (int64_t)n);
    COLUMN("kind", u8, (uint8_t)rows[i].kind)
    COLUMN("header", u64, rows[i].header)
    COLUMN("size", u64, rows[i].size)
    COLUMN("digest", digest, rows[i].digest)
    buffer_release(&column);
}

lb_status lb_index_commit_decode(const void *bytes, size_t size, const char *source, uint64_t offset,
                                 lb_entry_row **rows, uint64_t *n, lb_err *err)
{
    lb_cursor cursor = lb_cursor_of(bytes, size, source, offset, err);
    const char *kind = NULL, *header = NULL, *sizes = NULL, *digest = NULL;
    const column columns[] = {{"kind", 1, &kind}, {"header", 8, &header}, {"size", 8, &sizes}, {"digest", 16, &digest}};
    LB_TRY(read_columns(&cursor, "commit", columns, 4, n));
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
