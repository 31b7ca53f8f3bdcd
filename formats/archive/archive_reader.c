/* Reading one archive: see lastbit/archive.h.
 *
 * The file is mapped and blobs are used where they lie. What is decoded (compressed blobs, programs) is
 * published with one compare-and-swap: two threads may do the same work once, neither waits. Bytes are believed after
 * their digest was found right, once per blob; so an index that lies can make a blob unreadable but never wrong. The
 * index's own bytes are checked where they are read; the first that are damaged have the archive read from its
 * beginning, beside the index. */
#include "archive/archive_reader.h"

#include "archive/coding.h"
#include "base/hash.h"
#include "program/program_shelf.h"
#include "program/program_store.h"

#include <lastbit/input.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static lb_status map_file(lb_archive *a, lb_err *err)
{
    int fd;
    LB_TRY(lb_input_open_at_once(a->path, &fd, err));
    struct stat st;
    lb_status status = LB_OK;
    if (fstat(fd, &st) != 0)
        status = lb_input_refuse(a->path, "look at", errno, err);
    else if (!S_ISREG(st.st_mode))
        status = lb_fail(err, LB_ERR_IO, "%s: is not a regular file", a->path);
    else if (st.st_size == 0)
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: the file is empty: nothing was recorded", a->path);
    if (status == LB_OK) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            status = lb_input_refuse(a->path, "map", errno, err);
        } else {
            a->map = (const char *)map;
            a->size = (size_t)st.st_size;
            lb_decode_limit_open(&a->limit, a->size);
        }
    }
    close(fd);
    return status;
}

/* Of a run of many ranks each worker opens all archives, and reads on in its own. Opening asks for the index alone:
 * what the system reads ahead around it, megabytes on file systems of clusters, would be most of the run for each. */
static void read_ahead(const lb_archive *a, bool ahead)
{
    madvise((void *)(uintptr_t)a->map, a->size, ahead ? MADV_NORMAL : MADV_RANDOM);
}

/* These bytes at once, not page by page. Of more than this, ends of columns are read, and the rest may never be. */
static void ask_for(const lb_archive *a, uint64_t offset, uint64_t n)
{
    enum { MOST = 1 << 20 };
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)a->map + (uintptr_t)offset;
    const uintptr_t first = at / page * page;
    if (n <= MOST) madvise((void *)first, (size_t)(at + n - first), MADV_WILLNEED);
}

/* LB_OK with `closed` set when the index at the end is there and whole; no index is no failure. */
static lb_status use_closing_index(lb_archive *a, lb_err *err)
{
    lb_locator locator;
    if (a->size < LB_LOCATOR_FROM_END || !lb_record_locator_decode(a->map + a->size - LB_LOCATOR_FROM_END, &locator))
        return LB_OK;
    if (locator.major > LB_FORMAT_MAJOR)
        return lb_fail(err, LB_ERR_VERSION, "%s: format %u.%u, this program reads %d.x: use a newer lastbit", a->path,
                       (unsigned)locator.major, (unsigned)locator.minor, LB_FORMAT_MAJOR);
    if (locator.file_bytes != a->size || locator.index_size > a->size ||
        locator.index_data > a->size - locator.index_size)
        return LB_OK;
    const char *bytes = a->map + locator.index_data;
    a->index_at = locator.index_data;
    ask_for(a, locator.index_data, locator.index_size);
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_index_decode(bytes, locator.index_size, a->path, locator.index_data, &a->index, &why);
    if (status == LB_OK) status = lb_index_check(&a->index, bytes, locator.index_size, locator.index_digest);
    if (status == LB_ERR_NOMEM) lb_fail(&why, status, "%s: no memory for its index", a->path);
    a->closed = status == LB_OK;
    if (!a->closed) lb_index_release(&a->index);
    return lb_is_refusal(status) ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

static lb_status use_scan(lb_archive *a, bool salvage, lb_err *err)
{
    lb_scan scan;
    lb_index_rows rows;
    memset(&rows, 0, sizeof rows);
    lb_status status = lb_scan_run(a->map, a->size, a->path, &scan, err);
    if (status == LB_OK)
        status = lb_scan_rows(a->map, a->path, &scan, salvage ? scan.n : scan.committed, &rows, &a->left_out, err);
    if (status == LB_OK) status = lb_index_build(&rows, &a->index, err);
    a->damages = scan.damages + a->left_out.packs + a->left_out.programs + a->left_out.tables + a->left_out.others;
    a->places = scan.skipped;
    for (uint64_t i = scan.committed; i < scan.n && salvage; i++) a->salvaged += lb_scan_is_content(&scan.entries[i]);
    a->damaged_at = scan.damaged_at;
    lb_index_rows_release(&rows);
    lb_scan_release(&scan);
    return status;
}

/* One slot per row for what is checked. calloc of a large block touches no page. */
static lb_status make_slots(lb_archive *a, lb_err *err)
{
    const lb_index *index = &a->index;
    a->checked = calloc(index->blobs.rows + 1, sizeof *a->checked);
    a->packs = calloc(index->n_packs + 1u, sizeof *a->packs);
    a->programs = calloc(index->n_programs + 1u, sizeof *a->programs);
    a->tables = calloc(index->n_tables + 1u, sizeof *a->tables);
    if (a->checked && a->packs && a->programs && a->tables) return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", a->path);
}

/* Is a table of the same name and rank among those that were looked at? It stands later, and counts alone. */
static bool is_replaced(const lb_index *index, const lb_hash *seen, uint64_t key, const lb_segment_row *row)
{
    LB_HASH_EACH(i, seen, key)
    if (index->tables[i].rank == row->rank && strcmp(index->tables[i].name, row->name) == 0) return true;
    return false;
}

/* All of them, for they are small: who asks for one later is told that there is none, and never that it could not be
 * read. One that is damaged counts as none; `lastbit verify` says where. */
static lb_status read_tables(lb_archive *a, lb_err *err)
{
    lb_hash seen = {0};
    lb_status status = LB_OK;
    for (uint32_t i = a->index.n_tables; i-- > 0 && status == LB_OK;) {
        const lb_segment_row *row = &a->index.tables[i];
        const uint64_t key = lb_digest_bytes(row->name, strlen(row->name)).lo + (uint64_t)row->rank;
        lb_err why = LB_ERR_INIT;
        if (is_replaced(&a->index, &seen, key, row)) continue;
        status = lb_hash_add(&seen, key, i) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", a->path);
        const lb_status read = status == LB_OK ? lb_archive_read_table(a, row, &a->tables[i], &why) : status;
        if (status == LB_OK && lb_is_refusal(read)) status = lb_fail(err, read, "%s", why.message);
    }
    lb_hash_release(&seen);
    return status;
}

static lb_status open_archive(const char *path, bool by_index, bool salvage, lb_archive **archive, lb_err *err)
{
    lb_archive *a = (lb_archive *)calloc(1, sizeof *a);
    if (!a || !(a->path = strdup(path))) {
        free(a);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    a->damaged_at = UINT64_MAX;
    lb_status status = map_file(a, err);
    if (status == LB_OK && by_index) read_ahead(a, false), status = use_closing_index(a, err);
    if (status == LB_OK && !a->closed) read_ahead(a, true), status = use_scan(a, salvage, err);
    if (status == LB_OK) status = make_slots(a, err);
    if (status == LB_OK) status = read_tables(a, err);
    if (status == LB_OK) read_ahead(a, true);
    if (status == LB_OK)
        *archive = a;
    else
        lb_archive_close(a);
    return status;
}

lb_status lb_archive_open(const char *path, lb_archive **archive, lb_err *err)
{
    return open_archive(path, true, false, archive, err);
}

lb_status lb_archive_open_scanned(const char *path, bool salvage, lb_archive **archive, lb_err *err)
{
    return open_archive(path, false, salvage, archive, err);
}

static void release_decoded(lb_archive *a)
{
    _Atomic(void *) *decoded = atomic_load(&a->decoded);
    for (uint64_t i = 0; decoded && i < a->index.blobs.rows; i++) free(atomic_load(&decoded[i]));
    free((void *)decoded);
    for (uint32_t i = 0; a->packs && i < a->index.n_packs; i++) free(atomic_load(&a->packs[i]));
    for (uint32_t i = 0; a->programs && i < a->index.n_programs; i++) lb_program_free(atomic_load(&a->programs[i]));
    for (uint32_t i = 0; a->tables && i < a->index.n_tables; i++) free(a->tables[i]);
}

void lb_archive_close(lb_archive *archive)
{
    if (!archive) return;
    release_decoded(archive);
    lb_archive_close(atomic_load(&archive->rescue));
    free((void *)archive->checked);
    free((void *)archive->packs);
    free((void *)archive->programs);
    free(archive->tables);
    lb_index_release(&archive->index);
    lb_decode_limit_close(&archive->limit);
    if (archive->map) munmap((void *)(uintptr_t)archive->map, archive->size);
    free(archive->path);
    free(archive);
}

/* ---- stored bytes ------------------------------------------------------------------------------------------------ */

/* `stored` bytes of the file that are `size` when decoded; `what` names them in messages. */
typedef struct stored_bytes {
    uint64_t offset, stored, size;
    lb_coding coding;
    const char *what;
} stored_bytes;

/* A coded blob is checked against its frames too: nothing is allocated for a size that is only claimed. */
static lb_status check_range(const lb_archive *a, const stored_bytes *b, lb_err *err)
{
    if (b->stored > a->size || b->offset > a->size - b->stored)
        return lb_fail(err, LB_ERR_CORRUPT,
                       "%s: offset %" PRIu64 ": %s: its %" PRIu64 " bytes end after the file's %zu", a->path, b->offset,
                       b->what, b->stored, a->size);
    char where[320];
    snprintf(where, sizeof where, "%.200s: offset %" PRIu64 ": %s", a->path, b->offset, b->what);
    return lb_coding_check(b->coding, a->map + b->offset, b->stored, b->size, where, err);
}

/* Planes take as much again while they are decoded; where that would pass the limit they are decoded piece by piece. */
static lb_status decode_into(lb_archive *a, const stored_bytes *b, void *bytes, const char *where, lb_err *err)
{
    const char *stored = a->map + b->offset;
    if (b->coding > 1 && lb_decode_limit_hold(&a->limit, b->size, where, NULL) != LB_OK)
        return lb_coding_decode_pieces(&(lb_coded){b->coding, stored, b->stored, b->size, where}, bytes, err);
    const lb_status status = lb_coding_decode(b->coding, stored, b->stored, bytes, b->size, where, err);
    if (b->coding > 1) lb_decode_limit_drop(&a->limit, b->size);
    return status;
}

/* Malloc'ed decoded bytes, held by the archive's account. */
static lb_status decode(lb_archive *a, const stored_bytes *b, void **bytes, lb_err *err)
{
    char where[320];
    snprintf(where, sizeof where, "%.200s: offset %" PRIu64 ": %.60s", a->path, b->offset, b->what);
    *bytes = NULL;
    LB_TRY(lb_decode_limit_hold(&a->limit, b->size, where, err));
    *bytes = malloc(b->size ? b->size : 1);
    lb_status status = *bytes ? decode_into(a, b, *bytes, where, err)
                              : lb_fail(err, LB_ERR_NOMEM, "%s: no memory for %" PRIu64 " bytes", where, b->size);
    if (status == LB_OK) return LB_OK;
    lb_decode_limit_drop(&a->limit, b->size);
    free(*bytes);
    *bytes = NULL;
    return status;
}

/* Frees what `decode` gave; NULL is fine. */
static void drop(lb_archive *a, void *bytes, uint64_t size)
{
    if (bytes) lb_decode_limit_drop(&a->limit, size);
    free(bytes);
}

/* Publishes `mine` unless another thread was faster; gives what stands. */
static void *publish(lb_archive *a, _Atomic(void *) *slot, void *mine, uint64_t size)
{
    void *expected = NULL;
    if (atomic_compare_exchange_strong(slot, &expected, mine)) return mine;
    drop(a, mine, size);
    return expected;
}

static lb_status decoded_bytes(lb_archive *a, _Atomic(void *) *slot, const stored_bytes *b, const void **bytes,
                               lb_err *err)
{
    void *standing = atomic_load(slot), *mine;
    if (!standing) {
        LB_TRY(check_range(a, b, err));
        LB_TRY(decode(a, b, &mine, err));
        standing = publish(a, slot, mine, b->size);
    }
    *bytes = standing;
    return LB_OK;
}

/* ---- blobs ------------------------------------------------------------------------------------------------------- */

/* The slots of coded blobs, of which few archives have any: made when the first is read. */
static _Atomic(void *) *decoded_slots(lb_archive *a)
{
    _Atomic(void *) *slots = atomic_load(&a->decoded), *none = NULL;
    if (slots) return slots;
    slots = calloc(a->index.blobs.rows, sizeof *slots);
    if (!slots || atomic_compare_exchange_strong(&a->decoded, &none, slots)) return slots;
    free((void *)slots);
    return none;
}

static lb_status decoded_blob(lb_archive *a, uint64_t number, const stored_bytes *b, const void **bytes, lb_err *err)
{
    _Atomic(void *) *slots = decoded_slots(a);
    if (!slots) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", a->path);
    return decoded_bytes(a, &slots[number], b, bytes, err);
}

static lb_status locate_blob(lb_archive *a, uint64_t number, const lb_blob_row *row, const char *what,
                             const void **bytes, lb_err *err)
{
    const void *area;
    if (row->pack != LB_NO_PACK) {
        if (row->pack >= a->index.n_packs)
            return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": blobs.pack: %s: pack %u of %u", a->path,
                           a->index_at, what, row->pack, a->index.n_packs);
        const lb_pack_row *pack = &a->index.packs[row->pack];
        if (pack->size > LB_RECORD_PACK_MAX || row->size > pack->size || row->offset > pack->size - row->size)
            return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": %s: ends after its pack", a->path,
                           pack->offset, what);
        const stored_bytes whole = {pack->offset, pack->stored, pack->size, pack->coding, "pack"};
        LB_TRY(decoded_bytes(a, &a->packs[row->pack], &whole, &area, err));
        *bytes = (const char *)area + row->offset;
        return LB_OK;
    }
    const stored_bytes blob = {row->offset, row->stored, row->size, row->coding, what};
    if (row->coding != 0) return decoded_blob(a, number, &blob, bytes, err);
    LB_TRY(check_range(a, &blob, err));
    *bytes = a->map + row->offset;
    return LB_OK;
}

void lb_archive_unload(const lb_archive *archive)
{
    const lb_archive *rescued = atomic_load(&archive->rescue);
    if (archive->map) madvise((void *)(uintptr_t)archive->map, archive->size, MADV_DONTNEED);
    if (rescued) lb_archive_unload(rescued);
}

lb_status lb_archive_blob_row(lb_archive *archive, uint64_t number, const void **bytes, size_t *size, lb_err *err)
{
    lb_blob_row row = lb_index_blob(&archive->index, number);
    char what[48] = "blob ", found[33];
    lb_digest_format(row.digest, what + 5);
    LB_TRY(locate_blob(archive, number, &row, what, bytes, err));
    *size = row.size;
    if (atomic_load_explicit(&archive->checked[number], memory_order_relaxed)) return LB_OK;
    lb_digest digest = lb_digest_bytes(*bytes, row.size);
    if (!lb_digest_equal(digest, row.digest)) {
        lb_digest_format(digest, found);
        return lb_fail(err, LB_ERR_CORRUPT,
                       "%s: offset %" PRIu64 ": %s: its bytes have digest %s: the file is damaged there", archive->path,
                       row.offset, what, found);
    }
    atomic_store_explicit(&archive->checked[number], 1, memory_order_relaxed);
    return LB_OK;
}

/* The same archive read from its beginning, whatever its index says. */
static lb_status rescue(lb_archive *a, lb_archive **rescued, lb_err *err)
{
    lb_archive *mine, *none = NULL;
    *rescued = atomic_load(&a->rescue);
    if (*rescued) return LB_OK;
    LB_TRY(lb_archive_open_scanned(a->path, false, &mine, err));
    if (!atomic_compare_exchange_strong(&a->rescue, &none, mine)) lb_archive_close(mine);
    *rescued = none ? none : mine;
    return LB_OK;
}

lb_status lb_archive_find(lb_archive *archive, lb_digest digest, lb_archive **holder, uint64_t *row, lb_err *err)
{
    *holder = archive;
    *row = lb_index_find(&archive->index, digest);
    if (*row != LB_DAMAGED_ROW) return LB_OK;
    LB_TRY(rescue(archive, holder, err));
    *row = lb_index_find(&(*holder)->index, digest);
    return LB_OK;
}

lb_status lb_archive_sound(lb_archive *archive, lb_archive **sound, lb_err *err)
{
    *sound = archive;
    return lb_index_holds_all(&archive->index) ? LB_OK : rescue(archive, sound, err);
}

lb_status lb_archive_blob(lb_archive *archive, lb_digest digest, const void **bytes, size_t *size, lb_err *err)
{
    uint64_t row;
    lb_archive *holder;
    LB_TRY(lb_archive_find(archive, digest, &holder, &row, err));
    if (row != LB_NO_ROW) return lb_archive_blob_row(holder, row, bytes, size, err);
    char text[33];
    lb_digest_format(digest, text);
    return lb_fail(err, LB_ERR_NOT_CAPTURED, "%s: blob %s was not kept", archive->path, text);
}

/* A blob of this size is checked piece by piece. */
#define STREAMED_FROM (8u << 20)

lb_status lb_archive_check_row(lb_archive *archive, uint64_t number, lb_err *err)
{
    const lb_blob_row row = lb_index_blob(&archive->index, number);
    const void *bytes;
    size_t size;
    char what[48] = "blob ", where[320], found[33];
    if (row.coding == 0 || row.size < STREAMED_FROM) {
        const lb_status status = lb_archive_blob_row(archive, number, &bytes, &size, err);
        lb_archive_drop_row(archive, number);
        return status;
    }
    lb_digest_format(row.digest, what + 5);
    const stored_bytes b = {row.offset, row.stored, row.size, row.coding, what};
    LB_TRY(check_range(archive, &b, err));
    snprintf(where, sizeof where, "%.200s: offset %" PRIu64 ": %s", archive->path, row.offset, what);
    LB_TRY(lb_decode_limit_pass(&archive->limit, row.size, where, err));
    const lb_coded coded = {row.coding, archive->map + row.offset, row.stored, row.size, where};
    lb_digest digest;
    lb_err own = LB_ERR_INIT;
    lb_status status = lb_coding_digest(&coded, &digest, &own);
    if (status == LB_ERR_UNSUPPORTED) { /* its frame can only be decoded whole */
        status = lb_archive_blob_row(archive, number, &bytes, &size, err);
        lb_archive_drop_row(archive, number);
        return status;
    }
    if (status != LB_OK) return lb_fail(err, status, "%s", own.message);
    if (lb_digest_equal(digest, row.digest)) return LB_OK;
    lb_digest_format(digest, found);
    return lb_fail(err, LB_ERR_CORRUPT, "%s: its bytes have digest %s: the file is damaged there", where, found);
}

void lb_archive_drop_row(lb_archive *archive, uint64_t number)
{
    const lb_blob_row row = lb_index_blob(&archive->index, number);
    _Atomic(void *) *decoded = atomic_load(&archive->decoded);
    if (row.pack == LB_NO_PACK && row.coding != 0 && decoded)
        drop(archive, atomic_exchange(&decoded[number], NULL), row.size);
}

void lb_archive_drop_pack(lb_archive *archive, uint32_t pack)
{
    if (pack < archive->index.n_packs)
        drop(archive, atomic_exchange(&archive->packs[pack], NULL), archive->index.packs[pack].size);
}

lb_program *lb_archive_take_program(lb_archive *archive, uint32_t index)
{
    return atomic_exchange(&archive->programs[index], NULL);
}

/* ---- programs and tables ----------------------------------------------------------------------------------------- */

/* The bytes of a program or table, and how messages about them begin. */
typedef struct segment {
    const void *bytes;
    size_t size;
    void *owned; /* malloc'ed when they were stored coded */
    const char *source;
    uint64_t base; /* offset of the bytes in the source */
    char decompressed[320];
} segment;

static lb_status open_segment(lb_archive *a, const lb_segment_row *row, const char *what, segment *opened, lb_err *err)
{
    const stored_bytes stored = {row->offset, row->stored, row->size, row->coding, what};
    LB_TRY(check_range(a, &stored, err));
    *opened = (segment){a->map + row->offset, row->size, NULL, a->path, row->offset, ""};
    if (!lb_digest_equal(lb_digest_bytes(a->map + row->offset, row->stored), row->digest))
        return lb_fail(err, LB_ERR_CORRUPT,
                       "%s: offset %" PRIu64 ": %s: its bytes contradict its digest: the file is damaged there",
                       a->path, row->offset, what);
    if (row->coding == 0) return LB_OK;
    LB_TRY(decode(a, &stored, &opened->owned, err));
    opened->bytes = opened->owned;
    /* Offsets in decompressed bytes are none in the file. */
    snprintf(opened->decompressed, sizeof opened->decompressed, "%.200s: offset %" PRIu64 ": %.60s, decompressed",
             a->path, row->offset, what);
    opened->source = opened->decompressed;
    opened->base = 0;
    return LB_OK;
}

uint32_t lb_archive_programs(const lb_archive *archive)
{
    return archive->index.n_programs;
}

int64_t lb_archive_step(const lb_archive *archive, uint32_t index)
{
    return index < archive->index.n_programs ? archive->index.programs[index].step : -1;
}

/* A value takes up to so many times the bytes that describe it, and an element of JSON. */
enum { PROGRAM_GROWTH = 16, TABLE_GROWTH = 32 };

/* What reading a segment takes beside it. What was stored as it is cannot grow beyond the share of the file itself. */
static uint64_t growth_of(const segment *segment, uint64_t times)
{
    uint64_t growth;
    return __builtin_mul_overflow(segment->owned ? segment->size : 0, times, &growth) ? UINT64_MAX : growth;
}

lb_status lb_archive_read_program(lb_archive *archive, uint32_t index, lb_program **program, lb_err *err)
{
    const lb_segment_row *row = &archive->index.programs[index];
    char what[64];
    snprintf(what, sizeof what, "program of step %" PRId64, row->step);
    segment segment;
    LB_TRY(open_segment(archive, row, what, &segment, err));
    const uint64_t growth = growth_of(&segment, PROGRAM_GROWTH);
    lb_status status = lb_decode_limit_hold(&archive->limit, growth, segment.source, err);
    if (status == LB_OK) {
        status = lb_program_decode_from(segment.bytes, segment.size, segment.source, segment.base, program, err);
        lb_decode_limit_drop(&archive->limit, growth);
    }
    drop(archive, segment.owned, segment.size);
    return status;
}

bool lb_archive_has_program(const lb_archive *archive, uint32_t index, const lb_program *program)
{
    return index < archive->index.n_programs && atomic_load(&archive->programs[index]) == program;
}

lb_status lb_archive_program(lb_archive *archive, uint32_t index, const lb_program **program, lb_err *err)
{
    if (index >= archive->index.n_programs)
        return lb_fail(err, LB_ERR_NOT_FOUND, "%s: program %u of %u", archive->path, index, archive->index.n_programs);
    *program = atomic_load(&archive->programs[index]);
    if (*program) return LB_OK;
    lb_program *mine, *expected = NULL;
    LB_TRY(lb_archive_read_program(archive, index, &mine, err));
    if (archive->shelf) lb_program_shelf_put(archive->shelf, mine);
    if (atomic_compare_exchange_strong(&archive->programs[index], &expected, mine)) {
        *program = mine;
    } else {
        lb_program_free(mine);
        *program = expected;
    }
    return LB_OK;
}

lb_status lb_archive_read_table(lb_archive *archive, const lb_segment_row *row, char **json, lb_err *err)
{
    segment segment;
    char what[80];
    *json = NULL;
    snprintf(what, sizeof what, "table '%.60s'", row->name);
    LB_TRY(open_segment(archive, row, what, &segment, err));
    const uint64_t growth = growth_of(&segment, TABLE_GROWTH);
    lb_status status = lb_decode_limit_hold(&archive->limit, growth, segment.source, err);
    if (status == LB_OK) {
        status = lb_table_decode(segment.bytes, segment.size, segment.source, segment.base, json, err);
        lb_decode_limit_drop(&archive->limit, growth);
    }
    drop(archive, segment.owned, segment.size);
    return status;
}

const char *lb_archive_rank_table(const lb_archive *archive, int32_t rank, const char *name)
{
    for (uint32_t i = archive->index.n_tables; i-- > 0;) { /* a later one of the same name wins */
        const lb_segment_row *row = &archive->index.tables[i];
        if (row->rank == rank && strcmp(row->name, name) == 0) return archive->tables[i];
    }
    return NULL;
}

const char *lb_archive_table(lb_archive *archive, const char *name)
{
    return lb_archive_rank_table(archive, LB_NO_RANK, name);
}

bool lb_archive_complete(const lb_archive *archive)
{
    if (archive->damages) return false;
    if (archive->closed) return true;
    for (uint32_t i = 0; i < archive->index.n_programs; i++)
        if (!archive->index.programs[i].complete) return false;
    return archive->index.n_programs > 0;
}
