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

static lb_status dead(const lb_writer *writer, lb_err *err)
{
    return lb_fail(err, writer->dead, "%s", writer->why);
}

/* From here on the writer refuses everything with this reason. */
static lb_status die(lb_writer *writer, lb_status status, lb_err *err, const char *doing)
{
    if (writer->dead == LB_OK) {
        const int error = writer->out ? lb_output_error(writer->out) : 0;
        snprintf(writer->why, sizeof writer->why, "%s: offset %" PRIu64 ": %s: %s", writer->path,
                 writer->out ? lb_output_offset(writer->out) : 0, doing,
                 error ? strerror(error) : lb_status_text(status));
        writer->dead = status;
        if (writer->out) lb_output_cut(writer->out, writer->committed_end);
    }
    return dead(writer, err);
}

static lb_status no_memory(lb_err *err, const lb_writer *writer)
{
    return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", writer->path);
}

/* Blobs and programs leave room for the tables that say what was left out, and why the archive ended. */
enum { LAST_WORDS = 16384 };

static lb_status check_budget(const lb_writer *writer, uint64_t size, bool table, lb_err *err)
{
    uint64_t budget = writer->options.budget_bytes;
    if (budget == 0 || lb_writer_bytes(writer) + size + (table ? 0 : LAST_WORDS) <= budget) return LB_OK;
    return lb_fail(err, LB_ERR_LIMIT, "%s: %" PRIu64 " bytes more would pass the budget of %" PRIu64, writer->path,
                   size, budget);
}

bool lb_writer_has_blob(const lb_writer *writer, lb_digest digest)
{
    return lb_digest_memory_has(writer->known, digest);
}

/* ---- tar entries ------------------------------------------------------------------------------------------------- */

/* The zeros behind the last entry. They are written late, with what follows. */
static bool finish_entry(lb_writer *writer)
{
    static const char zeros[LB_TAR_BLOCK];
    const size_t padding = writer->padding;
    writer->padding = 0;
    return lb_output_write(writer->out, zeros, padding);
}

typedef struct piece {
    const void *bytes;
    size_t size;
} piece;

static bool add_entry(lb_writer *writer, const lb_entry_row *entry)
{
    lb_entry_row *grown = lb_array_grow(writer->entries, writer->n_entries, sizeof *grown);
    if (!grown) return false;
    writer->entries = grown;
    writer->entries[writer->n_entries++] = *entry;
    return true;
}

/* One record. `entry` tells where it came to lie. */
static lb_status put_record(lb_writer *writer, const char *name, const lb_descriptor *descriptor, const piece *pieces,
                            int n, lb_entry_row *entry, lb_err *err)
{
    char attribute[LB_TAR_ATTRIBUTE_MAX] = {0}, header[LB_TAR_HEADER_MAX];
    size_t size = lb_record_descriptor_encode(descriptor, attribute);
    uint64_t payload = 0;
    for (int i = 0; i < n; i++) payload += pieces[i].size;
    if (!finish_entry(writer)) return die(writer, LB_ERR_IO, err, "cannot write");
    *entry = (lb_entry_row){lb_output_offset(writer->out), 0, payload, descriptor->digest, descriptor->kind};
    if (payload >= LB_RECORD_SMALL) size = lb_tar_entry_page_attribute(entry->header, size, payload);
    bool written = lb_output_write(writer->out, header, lb_tar_entry_header(name, attribute, size, payload, header));
    entry->data = lb_output_offset(writer->out);
    for (int i = 0; i < n && written; i++) written = lb_output_write(writer->out, pieces[i].bytes, pieces[i].size);
    if (!written) return die(writer, LB_ERR_IO, err, "cannot write");
    writer->padding = lb_tar_entry_padding(payload);
    return add_entry(writer, entry) ? LB_OK : die(writer, LB_ERR_NOMEM, err, "there is no memory");
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static lb_status put_head(lb_writer *writer, lb_err *err)
{
    byte_buffer *buffer = &writer->payload;
    buffer_clear(buffer);
    msgpack_packer packer = buffer_packer(buffer), *p = &packer;
    msgpack_pack_map(p, 4);
    pack_text(p, "format");
    pack_text(p, "lastbit archive");
    pack_int(p, "major", LB_FORMAT_MAJOR);
    pack_int(p, "minor", LB_FORMAT_MINOR);
    pack_text(p, "leaf");
    msgpack_pack_int64(p, LB_DIGEST_LEAF);
    if (buffer->failed) return no_memory(err, writer);
    lb_descriptor descriptor = {.kind = LB_RECORD_HEAD,
                                .digest = lb_digest_bytes(buffer->bytes, buffer->size),
                                .major = LB_FORMAT_MAJOR,
                                .minor = LB_FORMAT_MINOR};
    lb_entry_row entry;
    LB_TRY(put_record(writer, "head.msgpack", &descriptor, &(piece){buffer->bytes, buffer->size}, 1, &entry, err));
    return lb_writer_commit(writer, err);
}

static void discard(lb_writer *writer)
{
    lb_output_abandon(writer->out);
    for (int i = 0; i < DIGEST_SETS; i++) {
        buffer_release(&writer->small[i].area);
        free(writer->small[i].rows);
    }
    lb_index_rows_release(&writer->rows);
    lb_row_spill_close(&writer->spill);
    buffer_release(&writer->payload);
    if (writer->known) lb_digest_memory_release(writer->known);
    free(writer->known);
    free(writer->entries);
    free(writer->path);
    free(writer);
}

static lb_status open_output(lb_writer *writer, lb_err *err)
{
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.way = writer->options.whole      ? LB_OUTPUT_WHOLE
              : writer->options.in_place ? LB_OUTPUT_IN_PLACE
                                         : LB_OUTPUT_GROWING;
    how.sync = (lb_output_sync)writer->options.sync;
    how.replace = writer->options.overwrite;
    how.inputs = writer->options.inputs;
    return lb_output_open(writer->path, &how, &writer->out, err);
}

/* Before anything is taken: the archive after a turn has no file yet. */
static lb_status make_file(lb_writer *writer, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    if (writer->out) return LB_OK;
    lb_status status = open_output(writer, &why);
    if (status == LB_OK) status = put_head(writer, &why);
    if (status == LB_OK) return LB_OK;
    if (!writer->dead) snprintf(writer->why, sizeof writer->why, "%s", why.message), writer->dead = status;
    return dead(writer, err);
}

lb_status lb_writer_open_coded(const char *path, const lb_writer_options *options, int level, lb_writer **writer,
                               lb_err *err)
{
    lb_writer *opened = (lb_writer *)calloc(1, sizeof *opened);
    if (!opened) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    opened->options = (lb_writer_options)LB_WRITER_OPTIONS_INIT;
    if (options) memcpy(&opened->options, options, options->size < sizeof *options ? options->size : sizeof *options);
    opened->level = level;
    opened->spill = (lb_row_spill)LB_ROW_SPILL_INIT;
    opened->previous_commit = -1;
    opened->path = strdup(path);
    opened->known = (lb_digest_memory *)calloc(1, sizeof *opened->known);
    lb_status status = opened->path && opened->known ? open_output(opened, err)
                                                     : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    if (status == LB_OK) status = put_head(opened, err);
    if (status == LB_OK) {
        *writer = opened;
        return LB_OK;
    }
    discard(opened);
    return status;
}

lb_status lb_writer_open(const char *path, const lb_writer_options *options, lb_writer **writer, lb_err *err)
{
    return lb_writer_open_coded(path, options, 0, writer, err);
}

/* ---- blobs ------------------------------------------------------------------------------------------------------- */

/* Writes what waits as one entry: the blobs, then their directory. */
static lb_status flush_pack(lb_writer *writer, waiting *small, lb_coding coding, lb_err *err)
{
    if (small->n == 0) return LB_OK;
    void *stored = NULL;
    size_t stored_size = small->area.size;
    if (writer->level)
        LB_TRY(
            lb_coding_encode(small->area.bytes, small->area.size, writer->level, &coding, &stored, &stored_size, err));
    byte_buffer *directory = &writer->payload;
    buffer_clear(directory);
    lb_index_directory_encode(small->rows, small->n, directory);
    lb_descriptor descriptor = {.kind = LB_RECORD_PACK,
                                .digest = lb_digest_bytes(directory->bytes, directory->size),
                                .coding = stored ? coding : 0,
                                .size = small->area.size,
                                .directory = stored_size};
    piece pieces[] = {{stored ? stored : small->area.bytes, stored_size}, {directory->bytes, directory->size}};
    char name[48];
    snprintf(name, sizeof name, "pack/%08" PRIu64 ".blobs", writer->entries_before + writer->n_entries);
    lb_entry_row entry;
    lb_status status =
        directory->failed ? no_memory(err, writer) : put_record(writer, name, &descriptor, pieces, 2, &entry, err);
    free(stored);
    LB_TRY(status);

    uint32_t pack = stored ? writer->rows.n_packs : LB_NO_PACK;
    bool added =
        !stored || lb_index_add_pack(&writer->rows, &(lb_pack_row){entry.data, stored_size, descriptor.size, coding});
    for (uint64_t i = 0; i < small->n && added; i++) {
        lb_blob_row row = small->rows[i];
        row.pack = pack;
        if (!stored) row.offset += entry.data;
        added = lb_index_add_blob(&writer->rows, &row);
    }
    buffer_clear(&small->area);
    small->n = 0;
    return added ? LB_OK : die(writer, LB_ERR_NOMEM, err, "there is no memory");
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

static lb_status put_small(lb_writer *writer, const lb_blob_row *row, const void *bytes, lb_err *err)
{
    int set = 0;
    while (writer->level && small_coding(set) != lb_coding_for(row->dtype)) set++;
    waiting *small = &writer->small[set];
    lb_blob_row *grown = lb_array_grow(small->rows, small->n, sizeof *grown);
    if (!grown) return no_memory(err, writer);
    small->rows = grown;
    size_t padding = -small->area.size % LB_RECORD_PACK_ALIGN;
    char *to = buffer_extend(&small->area, padding + row->size);
    if (!to) {
        small->area.failed = false; /* nothing was added */
        return no_memory(err, writer);
    }
    memset(to, 0, padding);
    if (row->size) memcpy(to + padding, bytes, row->size);
    small->rows[small->n] = *row;
    small->rows[small->n].offset = small->area.size - row->size;
    small->n++;
    return small->area.size >= PACK_FLUSH_BYTES ? flush_pack(writer, small, small_coding(set), err) : LB_OK;
}

static lb_status put_large(lb_writer *writer, lb_blob_row *row, const void *bytes, lb_err *err)
{
    void *stored = NULL;
    size_t stored_size = row->size;
    lb_coding coding = lb_coding_for(row->dtype);
    if (writer->level) LB_TRY(lb_coding_encode(bytes, row->size, writer->level, &coding, &stored, &stored_size, err));
    row->coding = stored ? coding : 0;
    row->stored = stored_size;
    lb_descriptor descriptor = {
        .kind = LB_RECORD_BLOB, .digest = row->digest, .coding = row->coding, .size = row->size, .dtype = row->dtype};
    char name[48] = "blob/";
    lb_digest_format(row->digest, name + 5);
    lb_entry_row entry;
    lb_status status =
        put_record(writer, name, &descriptor, &(piece){stored ? stored : bytes, stored_size}, 1, &entry, err);
    free(stored);
    LB_TRY(status);
    row->offset = entry.data;
    return lb_index_add_blob(&writer->rows, row) ? LB_OK : die(writer, LB_ERR_NOMEM, err, "out of memory");
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
static lb_status put_segment(lb_writer *writer, const char *entry_name, lb_descriptor *descriptor, void *bytes,
                             size_t size, lb_segment_row *row, lb_err *err)
{
    void *stored = NULL;
    size_t stored_size = size;
    descriptor->coding = 1;
    lb_status status = check_budget(writer, size, descriptor->kind == LB_RECORD_TABLE, err);
    if (status == LB_OK && writer->level)
        status = lb_coding_encode(bytes, size, writer->level, &descriptor->coding, &stored, &stored_size, err);
    if (!stored) descriptor->coding = 0;
    descriptor->size = size;
    piece payload = {stored ? stored : bytes, stored_size};
    if (status == LB_OK) descriptor->digest = lb_digest_bytes(payload.bytes, payload.size);
    lb_entry_row entry = {0};
    if (status == LB_OK) status = put_record(writer, entry_name, descriptor, &payload, 1, &entry, err);
    free(stored);
    free(bytes);
    *row = (lb_segment_row){.digest = descriptor->digest,
                            .offset = entry.data,
                            .stored = stored_size,
                            .size = size,
                            .step = descriptor->step,
                            .rank = descriptor->rank,
                            .complete = descriptor->complete,
                            .coding = descriptor->coding};
    memcpy(row->name, descriptor->name, sizeof row->name);
    return status;
}

lb_status lb_writer_program(lb_writer *writer, const lb_program *program, lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    LB_TRY(make_file(writer, err));
    void *bytes;
    size_t size;
    LB_TRY(lb_program_encode(program, &bytes, &size, err));
    lb_descriptor descriptor = {
        .kind = LB_RECORD_PROGRAM, .step = program->step, .rank = program->rank, .complete = program->complete};
    char name[80];
    snprintf(name, sizeof name, "program/rank-%05" PRId32 "-step-%08" PRId64 ".msgpack", program->rank, program->step);
    lb_segment_row row;
    LB_TRY(put_segment(writer, name, &descriptor, bytes, size, &row, err));
    return lb_index_add_program(&writer->rows, &row) ? LB_OK : die(writer, LB_ERR_NOMEM, err, "there is no memory");
}

lb_status lb_writer_rank_table(lb_writer *writer, int32_t rank, const char *name, const char *json, lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    LB_TRY(make_file(writer, err));
    lb_descriptor descriptor = {.kind = LB_RECORD_TABLE, .rank = rank};
    /* The name becomes part of a path in the tar. */
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t n = strlen(name);
    if (n == 0 || n >= sizeof descriptor.name || name[0] == '.' || strspn(name, allowed) != n)
        return lb_fail(err, LB_ERR_INVALID, "'%.40s' is not a table name: 1 to %zu letters, digits, '_', '-' and '.'",
                       name, sizeof descriptor.name - 1);
    memcpy(descriptor.name, name, n);
    void *bytes;
    size_t size;
    LB_TRY(lb_table_encode(json, &bytes, &size, err));
    char path[192];
    if (rank == LB_NO_RANK)
        snprintf(path, sizeof path, "table/%s.msgpack", name);
    else
        snprintf(path, sizeof path, "table/rank-%05" PRId32 "-%s.msgpack", rank, name);
    lb_segment_row row;
    LB_TRY(put_segment(writer, path, &descriptor, bytes, size, &row, err));
    return lb_index_add_table(&writer->rows, &row) ? LB_OK : die(writer, LB_ERR_NOMEM, err, "there is no memory");
}

lb_status lb_writer_last_table(lb_writer *writer, const char *name, const char *json, lb_err *err)
{
    const lb_status was = writer->dead;
    if (!was) return lb_fail(err, LB_ERR_STATE, "%s: the archive is not at its end", writer->path);
    if (!writer->committed_end || lb_output_error(writer->out) ||
        lb_output_offset(writer->out) != writer->committed_end)
        return dead(writer, err); /* it could not be cut back */
    writer->padding = 0;
    writer->n_entries = 0;
    for (int i = 0; i < DIGEST_SETS; i++) {
        buffer_clear(&writer->small[i].area);
        writer->small[i].n = 0;
    }
    writer->dead = LB_OK;
    lb_status status = lb_writer_table(writer, name, json, err);
    if (status == LB_OK) status = lb_writer_commit(writer, err);
    if (status != LB_OK) lb_output_cut(writer->out, writer->committed_end);
    writer->dead = was;
    return status;
}

lb_status lb_writer_table(lb_writer *writer, const char *name, const char *json, lb_err *err)
{
    return lb_writer_rank_table(writer, LB_NO_RANK, name, json, err);
}

/* ---- commit and close -------------------------------------------------------------------------------------------- */

lb_status lb_writer_commit(lb_writer *writer, lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    LB_TRY(flush_packs(writer, err));
    if (writer->n_entries == 0) return LB_OK;
    byte_buffer *buffer = &writer->payload;
    buffer_clear(buffer);
    lb_index_commit_encode(writer->commits, writer->previous_commit, writer->entries, writer->n_entries, buffer);
    if (buffer->failed) return no_memory(err, writer);
    lb_descriptor descriptor = {
        .kind = LB_RECORD_COMMIT, .digest = lb_digest_bytes(buffer->bytes, buffer->size), .number = writer->commits};
    char name[48];
    snprintf(name, sizeof name, "commit/%08" PRIu64 ".msgpack", writer->commits);
    lb_entry_row entry;
    LB_TRY(put_record(writer, name, &descriptor, &(piece){buffer->bytes, buffer->size}, 1, &entry, err));
    if (!finish_entry(writer) || lb_output_commit(writer->out, NULL) != LB_OK)
        return die(writer, LB_ERR_IO, err, "cannot write");
    writer->entries_before += writer->n_entries;
    writer->n_entries = 0;
    writer->commits++;
    writer->previous_commit = (int64_t)entry.header;
    writer->committed_end = lb_output_offset(writer->out);
    if (writer->level == 0) { /* a pack is of one capture, and ends */
        lb_digest_memory_turn(writer->known);
        lb_row_spill_out(&writer->spill, writer->path, &writer->rows);
    }
    return LB_OK;
}

/* Beside the bytes at hand: the columns of the index, a row per segment in it, a row per entry in the next commit; and
 * the headers and padding of a record, a commit, the index and the locator. */
uint64_t lb_writer_bytes(const lb_writer *writer)
{
    uint64_t bytes = writer->closed_bytes + (writer->out ? lb_output_offset(writer->out) : 0) +
                     48 * (writer->rows.n_blobs + writer->spill.n_blobs) +
                     160 * (writer->rows.n_programs + writer->spill.n_programs + writer->rows.n_tables) +
                     100 * writer->n_entries + 8192;
    for (int i = 0; i < DIGEST_SETS; i++) bytes += writer->small[i].area.size + writer->small[i].n * (48 + 48);
    return bytes;
}

static lb_status put_index(lb_writer *writer, lb_err *err)
{
    lb_index index;
    byte_buffer *buffer = &writer->payload;
    buffer_clear(buffer);
    LB_TRY(lb_row_spill_back(&writer->spill, writer->path, &writer->rows, err));
    LB_TRY(lb_index_build(&writer->rows, &index, err));
    lb_status status = lb_index_encode(&index, buffer, err);
    lb_index_release(&index);
    LB_TRY(status);
    lb_descriptor descriptor = {.kind = LB_RECORD_INDEX, .digest = lb_digest_bytes(buffer->bytes, buffer->size)};
    lb_entry_row entry, last;
    LB_TRY(put_record(writer, "index.msgpack", &descriptor, &(piece){buffer->bytes, buffer->size}, 1, &entry, err));

    /* The locator says how large the file is, so its own header is counted before it is written: both are 1024
     * bytes. */
    if (!finish_entry(writer)) return die(writer, LB_ERR_IO, err, "cannot write");
    char bytes[LB_LOCATOR_BYTES];
    lb_locator locator = {LB_FORMAT_MAJOR,
                          LB_FORMAT_MINOR,
                          entry.header,
                          entry.data,
                          entry.size,
                          descriptor.digest,
                          lb_output_offset(writer->out) + 1536 + LB_LOCATOR_FROM_END};
    lb_record_locator_encode(&locator, bytes);
    lb_descriptor l = {.kind = LB_RECORD_LOCATOR, .digest = lb_digest_bytes(bytes, sizeof bytes)};
    LB_TRY(put_record(writer, "locator", &l, &(piece){bytes, sizeof bytes}, 1, &last, err));
    static const char end[2 * LB_TAR_BLOCK];
    return lb_output_write(writer->out, end, sizeof end) ? LB_OK : die(writer, LB_ERR_IO, err, "cannot write");
}

/* Everything of the archive that was closed, but for its options. */
static void begin_anew(lb_writer *writer, char *path)
{
    free(writer->path);
    writer->path = path;
    lb_row_spill_close(&writer->spill);
    writer->spill = (lb_row_spill)LB_ROW_SPILL_INIT;
    lb_digest_memory_release(writer->known);
    memset(writer->known, 0, sizeof *writer->known);
    writer->padding = 0;
    writer->n_entries = writer->entries_before = 0;
    writer->commits = writer->committed_end = 0;
    writer->previous_commit = -1;
}

lb_status lb_writer_turn(lb_writer *writer, const char *next, lb_err *err)
{
    if (writer->dead) return dead(writer, err);
    char *path = strdup(next);
    if (!path) return no_memory(err, writer);
    lb_status status = writer->out ? lb_writer_commit(writer, err) : LB_OK;
    if (status == LB_OK && writer->out) status = put_index(writer, err);
    if (status != LB_OK) {
        free(path);
        return status;
    }
    lb_err why = LB_ERR_INIT;
    if (writer->out) {
        writer->closed_bytes += lb_output_offset(writer->out);
        status = lb_output_close(writer->out, &why);
        writer->out = NULL;
    }
    begin_anew(writer, path);
    if (status == LB_OK) return LB_OK;
    snprintf(writer->why, sizeof writer->why, "%s", why.message);
    writer->dead = status;
    return dead(writer, err);
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
