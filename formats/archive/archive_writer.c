/* Writing an archive: see lastbit/archive.h for the verbs and FORMAT.md for the bytes.
 *
 *   head | blob … pack … program … table … | commit | … | commit | index | locator | two zero blocks
 *
 * The pax attribute of a record carries its descriptor, and for a large blob it is filled up with zeros so that the
 * payload begins on a page (tar_entry.h). Small blobs wait in memory and share one entry.
 *
 * When writing fails the file is cut back to its last commit: it stays a whole archive, and everything after says
 * why. */
#include "archive/archive_writer.h"

#include "archive/archive_index.h"
#include "archive/coding.h"
#include "archive/row_spill.h"
#include "archive/tar_entry.h"

#include "base/array.h"
#include "base/digest_set.h"
#include <inttypes.h>
#include <stdio.h>

#define PACK_FLUSH_BYTES (16u << 20)
#define DIGEST_SETS 5 /* small blobs wait by element size, so that planes fit; stored ones all in the first */

/* Small blobs that wait for their entry. */
typedef struct waiting {
    byte_buffer area;
    lb_blob_row *rows;
    uint64_t n;
} waiting;

struct lb_writer {
    lb_output *out;
    size_t padding; /* zeros that the last entry wants behind it */
    char *path;
    lb_writer_options options;
    int level; /* zstd; 0: nothing is compressed */
    lb_status dead;
    char why[256];
    lb_digest_memory *known; /* of a run without end the late ones: an old blob may be stored twice */
    waiting small[DIGEST_SETS];
    lb_index_rows rows; /* but for those that were spilled */
    lb_row_spill spill;
    lb_entry_row *entries; /* since the last commit */
    uint64_t n_entries, entries_before;
    uint64_t commits, committed_end;
    uint64_t closed_bytes; /* of the archives before this one; `out` is NULL until this one has a record */
    int64_t previous_commit;
    byte_buffer payload; /* scratch */
};

/* ---- failing ----------------------------------------------------------------------------------------------------- */

static lb_status dead(const lb_writer *w, lb_err *err)
{
    return lb_fail(err, w->dead, "%s", w->why);
}

/* From here on the writer refuses everything with this reason. */
static lb_status die(lb_writer *w, lb_status status, lb_err *err, const char *doing)
{
    if (w->dead == LB_OK) {
        const int error = w->out ? lb_output_error(w->out) : 0;
        snprintf(w->why, sizeof w->why, "%s: offset %" PRIu64 ": %s: %s", w->path,
                 w->out ? lb_output_offset(w->out) : 0, doing, error ? strerror(error) : lb_status_text(status));
        w->dead = status;
        if (w->out) lb_output_cut(w->out, w->committed_end);
    }
    return dead(w, err);
}

static lb_status no_memory(lb_err *err, const lb_writer *w)
{
    return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", w->path);
}

/* Blobs and programs leave room for the tables that say what was left out, and why the archive ended. */
enum { LAST_WORDS = 16384 };

static lb_status check_budget(const lb_writer *w, uint64_t size, bool table, lb_err *err)
{
    uint64_t budget = w->options.budget_bytes;
    if (budget == 0 || lb_writer_bytes(w) + size + (table ? 0 : LAST_WORDS) <= budget) return LB_OK;
    return lb_fail(err, LB_ERR_LIMIT, "%s: %" PRIu64 " bytes more would pass the budget of %" PRIu64, w->path, size,
                   budget);
}

bool lb_writer_has_blob(const lb_writer *writer, lb_digest digest)
{
    return lb_digest_memory_has(writer->known, digest);
}

/* ---- tar entries ------------------------------------------------------------------------------------------------- */

/* The zeros behind the last entry. They are written late, with what follows. */
static bool finish_entry(lb_writer *w)
{
    static const char zeros[LB_TAR_BLOCK];
    const size_t padding = w->padding;
    w->padding = 0;
    return lb_output_write(w->out, zeros, padding);
}

typedef struct piece {
    const void *bytes;
    size_t size;
} piece;

static bool add_entry(lb_writer *w, const lb_entry_row *entry)
{
    lb_entry_row *grown = lb_array_grow(w->entries, w->n_entries, sizeof *grown);
    if (!grown) return false;
    w->entries = grown;
    w->entries[w->n_entries++] = *entry;
    return true;
}

/* One record. `entry` tells where it came to lie. */
static lb_status put_record(lb_writer *w, const char *name, const lb_descriptor *descriptor, const piece *pieces, int n,
                            lb_entry_row *entry, lb_err *err)
{
    char attribute[LB_TAR_ATTRIBUTE_MAX] = {0}, header[LB_TAR_HEADER_MAX];
    size_t size = lb_record_descriptor_encode(descriptor, attribute);
    uint64_t payload = 0;
    for (int i = 0; i < n; i++) payload += pieces[i].size;
    if (!finish_entry(w)) return die(w, LB_ERR_IO, err, "cannot write");
    *entry = (lb_entry_row){lb_output_offset(w->out), 0, payload, descriptor->digest, descriptor->kind};
    if (payload >= LB_RECORD_SMALL) size = lb_tar_entry_page_attribute(entry->header, size, payload);
    bool written = lb_output_write(w->out, header, lb_tar_entry_header(name, attribute, size, payload, header));
    entry->data = lb_output_offset(w->out);
    for (int i = 0; i < n && written; i++) written = lb_output_write(w->out, pieces[i].bytes, pieces[i].size);
    if (!written) return die(w, LB_ERR_IO, err, "cannot write");
    w->padding = lb_tar_entry_padding(payload);
    return add_entry(w, entry) ? LB_OK : die(w, LB_ERR_NOMEM, err, "there is no memory");
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static lb_status put_head(lb_writer *w, lb_err *err)
{
    byte_buffer *b = &w->payload;
    buffer_clear(b);
    msgpack_packer packer = buffer_packer(b), *p = &packer;
    msgpack_pack_map(p, 4);
    pack_text(p, "format");
    pack_text(p, "lastbit archive");
    pack_int(p, "major", LB_FORMAT_MAJOR);
    pack_int(p, "minor", LB_FORMAT_MINOR);
    pack_text(p, "leaf");
    msgpack_pack_int64(p, LB_DIGEST_LEAF);
    if (b->failed) return no_memory(err, w);
    lb_descriptor d = {.kind = LB_RECORD_HEAD,
                       .digest = lb_digest_bytes(b->bytes, b->size),
                       .major = LB_FORMAT_MAJOR,
                       .minor = LB_FORMAT_MINOR};
    lb_entry_row entry;
    LB_TRY(put_record(w, "head.msgpack", &d, &(piece){b->bytes, b->size}, 1, &entry, err));
    return lb_writer_commit(w, err);
}

static void discard(lb_writer *w)
{
    lb_output_abandon(w->out);
    for (int i = 0; i < DIGEST_SETS; i++) {
        buffer_release(&w->small[i].area);
        free(w->small[i].rows);
    }
    lb_index_rows_release(&w->rows);
    lb_row_spill_close(&w->spill);
    buffer_release(&w->payload);
    if (w->known) lb_digest_memory_release(w->known);
    free(w->known);
    free(w->entries);
    free(w->path);
    free(w);
}

static lb_status open_output(lb_writer *w, lb_err *err)
{
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.way = w->options.whole ? LB_OUTPUT_WHOLE : w->options.in_place ? LB_OUTPUT_IN_PLACE : LB_OUTPUT_GROWING;
    how.sync = (lb_output_sync)w->options.sync;
    how.replace = w->options.overwrite;
    how.inputs = w->options.inputs;
    return lb_output_open(w->path, &how, &w->out, err);
}

/* Before anything is taken: the archive after a turn has no file yet. */
static lb_status make_file(lb_writer *w, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    if (w->out) return LB_OK;
    lb_status status = open_output(w, &why);
    if (status == LB_OK) status = put_head(w, &why);
    if (status == LB_OK) return LB_OK;
    if (!w->dead) snprintf(w->why, sizeof w->why, "%s", why.message), w->dead = status;
    return dead(w, err);
}

lb_status lb_writer_open_coded(const char *path, const lb_writer_options *options, int level, lb_writer **writer,
                               lb_err *err)
{
    lb_writer *w = (lb_writer *)calloc(1, sizeof *w);
    if (!w) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    w->options = (lb_writer_options)LB_WRITER_OPTIONS_INIT;
    if (options) memcpy(&w->options, options, options->size < sizeof *options ? options->size : sizeof *options);
    w->level = level;
    w->spill = (lb_row_spill)LB_ROW_SPILL_INIT;
    w->previous_commit = -1;
    w->path = strdup(path);
    w->known = (lb_digest_memory *)calloc(1, sizeof *w->known);
    lb_status status =
        w->path && w->known ? open_output(w, err) : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    if (status == LB_OK) status = put_head(w, err);
    if (status == LB_OK) {
        *writer = w;
        return LB_OK;
    }
    discard(w);
    return status;
}

lb_status lb_writer_open(const char *path, const lb_writer_options *options, lb_writer **writer, lb_err *err)
{
    return lb_writer_open_coded(path, options, 0, writer, err);
}

/* ---- blobs ------------------------------------------------------------------------------------------------------- */

/* Writes what waits as one entry: the blobs, then their directory. */
static lb_status flush_pack(lb_writer *w, waiting *small, lb_coding coding, lb_err *err)
{
    if (small->n == 0) return LB_OK;
    void *stored = NULL;
    size_t stored_size = small->area.size;
    if (w->level)
        LB_TRY(lb_coding_encode(small->area.bytes, small->area.size, w->level, &coding, &stored, &stored_size, err));
    byte_buffer *directory = &w->payload;
    buffer_clear(directory);
    lb_index_directory_encode(small->rows, small->n, directory);
    lb_descriptor d = {.kind = LB_RECORD_PACK,
                       .digest = lb_digest_bytes(directory->bytes, directory->size),
                       .coding = stored ? coding : 0,
                       .size = small->area.size,
                       .directory = stored_size};
    piece pieces[] = {{stored ? stored : small->area.bytes, stored_size}, {directory->bytes, directory->size}};
    char name[48];
    snprintf(name, sizeof name, "pack/%08" PRIu64 ".blobs", w->entries_before + w->n_entries);
    lb_entry_row entry;
    lb_status status = directory->failed ? no_memory(err, w) : put_record(w, name, &d, pieces, 2, &entry, err);
    free(stored);
    LB_TRY(status);

    uint32_t pack = stored ? w->rows.n_packs : LB_NO_PACK;
    bool added = !stored || lb_index_add_pack(&w->rows, &(lb_pack_row){entry.data, stored_size, d.size, coding});
    for (uint64_t i = 0; i < small->n && added; i++) {
        lb_blob_row row = small->rows[i];
        row.pack = pack;
        if (!stored) row.offset += entry.data;
        added = lb_index_add_blob(&w->rows, &row);
    }
    buffer_clear(&small->area);
    small->n = 0;
    return added ? LB_OK : die(w, LB_ERR_NOMEM, err, "there is no memory");
}

static lb_coding small_coding(int set)
{
    return set == 0 ? 1 : (lb_coding)(1 << set);
} /* 1, 2, 4, 8, 16 */

static lb_status flush_packs(lb_writer *w, lb_err *err)
{
    for (int i = 0; i < DIGEST_SETS; i++) LB_TRY(flush_pack(w, &w->small[i], small_coding(i), err));
    return LB_OK;
}

static lb_status put_small(lb_writer *w, const lb_blob_row *row, const void *bytes, lb_err *err)
{
    int set = 0;
    while (w->level && small_coding(set) != lb_coding_for(row->dtype)) set++;
    waiting *small = &w->small[set];
    lb_blob_row *grown = lb_array_grow(small->rows, small->n, sizeof *grown);
    if (!grown) return no_memory(err, w);
    small->rows = grown;
    size_t padding = -small->area.size % LB_RECORD_PACK_ALIGN;
    char *to = buffer_extend(&small->area, padding + row->size);
    if (!to) {
        small->area.failed = false; /* nothing was added */
        return no_memory(err, w);
    }
    memset(to, 0, padding);
    if (row->size) memcpy(to + padding, bytes, row->size);
    small->rows[small->n] = *row;
    small->rows[small->n].offset = small->area.size - row->size;
    small->n++;
    return small->area.size >= PACK_FLUSH_BYTES ? flush_pack(w, small, small_coding(set), err) : LB_OK;
}

static lb_status put_large(lb_writer *w, lb_blob_row *row, const void *bytes, lb_err *err)
{
    void *stored = NULL;
    size_t stored_size = row->size;
    lb_coding coding = lb_coding_for(row->dtype);
    if (w->level) LB_TRY(lb_coding_encode(bytes, row->size, w->level, &coding, &stored, &stored_size, err));
    row->coding = stored ? coding : 0;
    row->stored = stored_size;
    lb_descriptor d = {
        .kind = LB_RECORD_BLOB, .digest = row->digest, .coding = row->coding, .size = row->size, .dtype = row->dtype};
    char name[48] = "blob/";
    lb_digest_format(row->digest, name + 5);
    lb_entry_row entry;
    lb_status status = put_record(w, name, &d, &(piece){stored ? stored : bytes, stored_size}, 1, &entry, err);
    free(stored);
    LB_TRY(status);
    row->offset = entry.data;
    return lb_index_add_blob(&w->rows, row) ? LB_OK : die(w, LB_ERR_NOMEM, err, "out of memory");
}

lb_status lb_writer_blob(lb_writer *writer, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                         lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    if (lb_digest_is_none(digest)) return lb_fail(err, LB_ERR_INVALID, "%s: a blob without a digest", writer->path);
    if (lb_writer_has_blob(writer, digest)) return LB_OK;
    LB_TRY(make_file(writer, err));
    LB_TRY(check_budget(writer, size, false, err));
    lb_blob_row row = {.digest = digest, .stored = size, .size = size, .pack = LB_NO_PACK, .dtype = dtype};
    LB_TRY(size < LB_RECORD_SMALL ? put_small(writer, &row, bytes, err) : put_large(writer, &row, bytes, err));
    return lb_digest_memory_add(writer->known, digest, size) ? LB_OK : no_memory(err, writer);
}

/* ---- programs and tables ----------------------------------------------------------------------------------------- */

/* Compresses when the writer does, writes, and gives the row. `bytes` is freed. */
static lb_status put_segment(lb_writer *w, const char *entry_name, lb_descriptor *d, void *bytes, size_t size,
                             lb_segment_row *row, lb_err *err)
{
    void *stored = NULL;
    size_t stored_size = size;
    d->coding = 1;
    lb_status status = check_budget(w, size, d->kind == LB_RECORD_TABLE, err);
    if (status == LB_OK && w->level)
        status = lb_coding_encode(bytes, size, w->level, &d->coding, &stored, &stored_size, err);
    if (!stored) d->coding = 0;
    d->size = size;
    piece payload = {stored ? stored : bytes, stored_size};
    if (status == LB_OK) d->digest = lb_digest_bytes(payload.bytes, payload.size);
    lb_entry_row entry = {0};
    if (status == LB_OK) status = put_record(w, entry_name, d, &payload, 1, &entry, err);
    free(stored);
    free(bytes);
    *row = (lb_segment_row){.digest = d->digest,
                            .offset = entry.data,
                            .stored = stored_size,
                            .size = size,
                            .step = d->step,
                            .rank = d->rank,
                            .complete = d->complete,
                            .coding = d->coding};
    memcpy(row->name, d->name, sizeof row->name);
    return status;
}

lb_status lb_writer_program(lb_writer *writer, const lb_program *program, lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    LB_TRY(make_file(writer, err));
    void *bytes;
    size_t size;
    LB_TRY(lb_program_encode(program, &bytes, &size, err));
    lb_descriptor d = {
        .kind = LB_RECORD_PROGRAM, .step = program->step, .rank = program->rank, .complete = program->complete};
    char name[80];
    snprintf(name, sizeof name, "program/rank-%05" PRId32 "-step-%08" PRId64 ".msgpack", program->rank, program->step);
    lb_segment_row row;
    LB_TRY(put_segment(writer, name, &d, bytes, size, &row, err));
    return lb_index_add_program(&writer->rows, &row) ? LB_OK : die(writer, LB_ERR_NOMEM, err, "there is no memory");
}

lb_status lb_writer_rank_table(lb_writer *writer, int32_t rank, const char *name, const char *json, lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    LB_TRY(make_file(writer, err));
    lb_descriptor d = {.kind = LB_RECORD_TABLE, .rank = rank};
    /* The name becomes part of a path in the tar. */
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t n = strlen(name);
    if (n == 0 || n >= sizeof d.name || name[0] == '.' || strspn(name, allowed) != n)
        return lb_fail(err, LB_ERR_INVALID, "'%.40s' is not a table name: 1 to %zu letters, digits, '_', '-' and '.'",
                       name, sizeof d.name - 1);
    memcpy(d.name, name, n);
    void *bytes;
    size_t size;
    LB_TRY(lb_table_encode(json, &bytes, &size, err));
    char path[192];
    if (rank == LB_NO_RANK)
        snprintf(path, sizeof path, "table/%s.msgpack", name);
    else
        snprintf(path, sizeof path, "table/rank-%05" PRId32 "-%s.msgpack", rank, name);
    lb_segment_row row;
    LB_TRY(put_segment(writer, path, &d, bytes, size, &row, err));
    return lb_index_add_table(&writer->rows, &row) ? LB_OK : die(writer, LB_ERR_NOMEM, err, "there is no memory");
}

lb_status lb_writer_last_table(lb_writer *writer, const char *name, const char *json, lb_err *err)
{
    lb_writer *w = writer;
    const lb_status was = w->dead;
    if (!was) return lb_fail(err, LB_ERR_STATE, "%s: the archive is not at its end", w->path);
    if (!w->committed_end || lb_output_error(w->out) || lb_output_offset(w->out) != w->committed_end)
        return dead(w, err); /* it could not be cut back */
    w->padding = 0;
    w->n_entries = 0;
    for (int i = 0; i < DIGEST_SETS; i++) {
        buffer_clear(&w->small[i].area);
        w->small[i].n = 0;
    }
    w->dead = LB_OK;
    lb_status status = lb_writer_table(w, name, json, err);
    if (status == LB_OK) status = lb_writer_commit(w, err);
    if (status != LB_OK) lb_output_cut(w->out, w->committed_end);
    w->dead = was;
    return status;
}

lb_status lb_writer_table(lb_writer *writer, const char *name, const char *json, lb_err *err)
{
    return lb_writer_rank_table(writer, LB_NO_RANK, name, json, err);
}

/* ---- commit and close -------------------------------------------------------------------------------------------- */

lb_status lb_writer_commit(lb_writer *writer, lb_err *err)
{
    lb_writer *w = writer;
    if (w->dead) return dead(w, err);
    LB_TRY(flush_packs(w, err));
    if (w->n_entries == 0) return LB_OK;
    byte_buffer *b = &w->payload;
    buffer_clear(b);
    lb_index_commit_encode(w->commits, w->previous_commit, w->entries, w->n_entries, b);
    if (b->failed) return no_memory(err, w);
    lb_descriptor d = {.kind = LB_RECORD_COMMIT, .digest = lb_digest_bytes(b->bytes, b->size), .number = w->commits};
    char name[48];
    snprintf(name, sizeof name, "commit/%08" PRIu64 ".msgpack", w->commits);
    lb_entry_row entry;
    LB_TRY(put_record(w, name, &d, &(piece){b->bytes, b->size}, 1, &entry, err));
    if (!finish_entry(w) || lb_output_commit(w->out, NULL) != LB_OK) return die(w, LB_ERR_IO, err, "cannot write");
    w->entries_before += w->n_entries;
    w->n_entries = 0;
    w->commits++;
    w->previous_commit = (int64_t)entry.header;
    w->committed_end = lb_output_offset(w->out);
    if (w->level == 0) { /* a pack is of one capture, and ends */
        lb_digest_memory_turn(w->known);
        lb_row_spill_out(&w->spill, w->path, &w->rows);
    }
    return LB_OK;
}

/* Beside the bytes at hand: the columns of the index, a row per segment in it, a row per entry in the next commit; and
 * the headers and padding of a record, a commit, the index and the locator. */
uint64_t lb_writer_bytes(const lb_writer *writer)
{
    const lb_writer *w = writer;
    uint64_t bytes = w->closed_bytes + (w->out ? lb_output_offset(w->out) : 0) +
                     48 * (w->rows.n_blobs + w->spill.n_blobs) +
                     160 * (w->rows.n_programs + w->spill.n_programs + w->rows.n_tables) + 100 * w->n_entries + 8192;
    for (int i = 0; i < DIGEST_SETS; i++) bytes += w->small[i].area.size + w->small[i].n * (48 + 48);
    return bytes;
}

static lb_status put_index(lb_writer *w, lb_err *err)
{
    lb_index index;
    byte_buffer *b = &w->payload;
    buffer_clear(b);
    LB_TRY(lb_row_spill_back(&w->spill, w->path, &w->rows, err));
    LB_TRY(lb_index_build(&w->rows, &index, err));
    lb_status status = lb_index_encode(&index, b, err);
    lb_index_release(&index);
    LB_TRY(status);
    lb_descriptor d = {.kind = LB_RECORD_INDEX, .digest = lb_digest_bytes(b->bytes, b->size)};
    lb_entry_row entry, last;
    LB_TRY(put_record(w, "index.msgpack", &d, &(piece){b->bytes, b->size}, 1, &entry, err));

    /* The locator says how large the file is, so its own header is counted before it is written: both are 1024
     * bytes. */
    if (!finish_entry(w)) return die(w, LB_ERR_IO, err, "cannot write");
    char bytes[LB_LOCATOR_BYTES];
    lb_locator locator = {LB_FORMAT_MAJOR,
                          LB_FORMAT_MINOR,
                          entry.header,
                          entry.data,
                          entry.size,
                          d.digest,
                          lb_output_offset(w->out) + 1536 + LB_LOCATOR_FROM_END};
    lb_record_locator_encode(&locator, bytes);
    lb_descriptor l = {.kind = LB_RECORD_LOCATOR, .digest = lb_digest_bytes(bytes, sizeof bytes)};
    LB_TRY(put_record(w, "locator", &l, &(piece){bytes, sizeof bytes}, 1, &last, err));
    static const char end[2 * LB_TAR_BLOCK];
    return lb_output_write(w->out, end, sizeof end) ? LB_OK : die(w, LB_ERR_IO, err, "cannot write");
}

/* Everything of the archive that was closed, but for its options. */
static void begin_anew(lb_writer *w, char *path)
{
    free(w->path);
    w->path = path;
    lb_row_spill_close(&w->spill);
    w->spill = (lb_row_spill)LB_ROW_SPILL_INIT;
    lb_digest_memory_release(w->known);
    memset(w->known, 0, sizeof *w->known);
    w->padding = 0;
    w->n_entries = w->entries_before = 0;
    w->commits = w->committed_end = 0;
    w->previous_commit = -1;
}

lb_status lb_writer_turn(lb_writer *writer, const char *next, lb_err *err)
{
    lb_writer *w = writer;
    if (w->dead) return dead(w, err);
    char *path = strdup(next);
    if (!path) return no_memory(err, w);
    lb_status status = w->out ? lb_writer_commit(w, err) : LB_OK;
    if (status == LB_OK && w->out) status = put_index(w, err);
    if (status != LB_OK) {
        free(path);
        return status;
    }
    lb_err why = LB_ERR_INIT;
    if (w->out) {
        w->closed_bytes += lb_output_offset(w->out);
        status = lb_output_close(w->out, &why);
        w->out = NULL;
    }
    begin_anew(w, path);
    if (status == LB_OK) return LB_OK;
    snprintf(w->why, sizeof w->why, "%s", why.message);
    w->dead = status;
    return dead(w, err);
}

lb_status lb_writer_close(lb_writer *writer, lb_err *err)
{
    if (!writer) return LB_OK;
    if (!writer->out) { /* nothing came after a turn */
        const lb_status was = writer->dead ? dead(writer, err) : LB_OK;
        discard(writer);
        return was;
    }
    lb_status status = lb_writer_commit(writer, err);
    if (status == LB_OK) status = put_index(writer, err);
    /* One that died keeps what it committed, if it grew; a file that was to be whole is not there. */
    if (status == LB_OK || (writer->committed_end && !writer->options.whole)) {
        const lb_status closed = lb_output_close(writer->out, status == LB_OK ? err : NULL);
        writer->out = NULL;
        if (status == LB_OK) status = closed;
    }
    discard(writer);
    return status;
}

void lb_writer_abandon(lb_writer *writer)
{
    if (writer) discard(writer);
}
