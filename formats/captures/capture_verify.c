/* Verifying a capture: every record is read from the file itself, and only then compared with what the index says. */
#include "captures/capture_reader.h"
#include "archive/coding.h"
#include "parts/parts_each.h"

#include "base/array.h"
#include <lastbit/input.h>
#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

const char *lb_verify_damage_kind_name(lb_damage_kind kind)
{
    static const char *const names[] = {"bytes", "record", "index", "program", "missing"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

typedef struct check {
    void (*found)(void *, const lb_damage *);
    void *context;
    lb_verification *result;
    lb_capture *whole; /* to find bytes that another rank holds; NULL when it does not open */
    const char *file;
    lb_err refused; /* a read, or memory: verifying goes no further */
} check;

static void report(check *c, lb_damage_kind kind, uint64_t offset, const char *format, ...) LB_PRINTF(4, 5);
static void report(check *check, lb_damage_kind kind, uint64_t offset, const char *format, ...)
{
    char message[480];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (kind == LB_DAMAGE_MISSING)
        check->result->missing++;
    else
        check->result->damages++;
    if (check->found) check->found(check->context, &(lb_damage){kind, check->file, offset, message});
}

/* What failed is a finding; unless the system refused it, which says nothing about the file. */
static void report_failure(check *check, lb_damage_kind kind, uint64_t offset, const lb_err *why)
{
    if (lb_is_refusal(why->status))
        lb_fail(&check->refused, why->status, "%s", why->message);
    else
        report(check, kind, offset, "%s", why->message);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static const lb_scan_entry *entry_at(const lb_scan *scan, uint64_t header)
{
    const size_t low = lb_array_first(scan->entries, scan->n, sizeof scan->entries[0], &header, lb_by_u64);
    return low < scan->n && scan->entries[low].header == header ? &scan->entries[low] : NULL;
}

/* What a commit promised must stand where it said. */
static void check_commit(check *check, const char *map, const lb_scan *scan, const lb_scan_entry *commit)
{
    lb_entry_row *rows = NULL;
    uint64_t n;
    lb_err err = LB_ERR_INIT;
    if (lb_index_commit_decode(map + commit->data, commit->size, check->file, commit->data, &rows, &n, &err) != LB_OK) {
        report_failure(check, LB_DAMAGE_RECORD, commit->data, &err);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        const lb_scan_entry *entry = entry_at(scan, rows[i].header);
        if (entry && entry->descriptor.kind == rows[i].kind && entry->size == rows[i].size &&
            lb_digest_equal(entry->descriptor.digest, rows[i].digest))
            continue;
        report(check, LB_DAMAGE_RECORD, rows[i].header,
               "%s: offset %" PRIu64 ": the commit at %" PRIu64 " names a %s of %" PRIu64 " bytes here, which %s",
               check->file, rows[i].header, commit->header, lb_record_kind_name(rows[i].kind), rows[i].size,
               entry ? "is another record" : "is gone");
    }
    free(rows);
}

/* "program of rank 0, step 2", "table receipt", "commit". */
static void say_entry(const lb_descriptor *d, char *text, size_t size)
{
    if (d->kind == LB_RECORD_PROGRAM)
        snprintf(text, size, "program of rank %" PRId32 ", step %" PRId64, d->rank, d->step);
    else
        snprintf(text, size, "%s%s%.128s", lb_record_kind_name(d->kind), d->kind == LB_RECORD_TABLE ? " " : "",
                 d->kind == LB_RECORD_TABLE ? d->name : "");
}

static void check_gaps(check *check, const lb_scan *scan)
{
    if (scan->damages)
        report(check, LB_DAMAGE_RECORD, scan->damaged_at,
               "%s: offset %" PRIu64 ": expected a record, found none; the next one was looked for", check->file,
               scan->damaged_at);
}

static void check_record(check *check, const char *map, const lb_scan *scan, uint64_t i)
{
    const lb_scan_entry *entry = &scan->entries[i];
    char which[200];
    check->result->records++;
    check->result->uncommitted += i >= scan->committed && lb_scan_is_content(entry);
    say_entry(&entry->descriptor, which, sizeof which);
    if (!lb_scan_entry_holds(map, entry))
        report(check, LB_DAMAGE_BYTES, entry->data, "%s: offset %" PRIu64 ": %s: its bytes contradict its digest",
               check->file, entry->data, which);
    else if (entry->descriptor.kind == LB_RECORD_COMMIT)
        check_commit(check, map, scan, entry);
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

/* A row and the pack that it lies in. */
typedef struct packed_row {
    uint32_t pack;
    uint64_t row;
} packed_row;

static int by_pack(const void *a, const void *b)
{
    const packed_row *x = (const packed_row *)a, *y = (const packed_row *)b;
    if (x->pack != y->pack) return x->pack < y->pack ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* A limit that is met is no damage: nothing is known of what stands behind it. */
static lb_status tell_blob(check *check, const lb_blob_row *row, lb_status status, const lb_err *why, lb_err *err)
{
    if (status == LB_ERR_LIMIT) return lb_fail(err, status, "%s", why->message);
    if (status != LB_OK) report_failure(check, LB_DAMAGE_BYTES, row->offset, why);
    if (status == LB_OK) check->result->bytes += row->size;
    return LB_OK;
}

/* The blobs of an archive in the order in which they are checked: those that lie by themselves, then those in coded
 * packs, pack by pack, so that one is in memory at a time. */
typedef struct blob_list {
    packed_row *rows;
    uint64_t n;
    uint64_t *firsts; /* of runs, which are checked together: a pack, or a few blobs; and behind the last */
    uint64_t runs;
} blob_list;

static void release_blobs(blob_list *list)
{
    free(list->rows), free(list->firsts);
}

static lb_status list_blobs(const lb_archive *a, blob_list *list, lb_err *err)
{
    enum { FEW = 16 };
    const uint64_t n = a->index.blobs.rows;
    *list = (blob_list){malloc((n + 1) * sizeof *list->rows), 0, malloc((n + 1) * sizeof *list->firsts), 0};
    if (!list->rows || !list->firsts) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", a->path);
    for (int in_packs = 0; in_packs < 2; in_packs++) {
        const uint64_t from = list->n;
        for (uint64_t i = 0; i < n; i++) {
            const uint32_t pack = lb_index_blob(&a->index, i).pack;
            if ((pack != LB_NO_PACK) == in_packs) list->rows[list->n++] = (packed_row){pack, i};
        }
        if (in_packs && list->n > from) qsort(list->rows + from, list->n - from, sizeof *list->rows, by_pack);
        for (uint64_t i = from; i < list->n; i++)
            if (in_packs ? i == from || list->rows[i].pack != list->rows[i - 1].pack : (i - from) % FEW == 0)
                list->firsts[list->runs++] = i;
    }
    list->firsts[list->runs] = list->n;
    return LB_OK;
}

static lb_status check_run(check *check, lb_archive *a, const blob_list *list, uint64_t run, lb_err *err)
{
    const void *bytes;
    size_t size;
    lb_status status = LB_OK;
    for (uint64_t i = list->firsts[run]; i < list->firsts[run + 1] && status == LB_OK; i++) {
        lb_err why = LB_ERR_INIT;
        const packed_row *at = &list->rows[i];
        const lb_blob_row row = lb_index_blob(&a->index, at->row);
        const lb_status found = at->pack == LB_NO_PACK ? lb_archive_check_row(a, at->row, &why)
                                                       : lb_archive_blob_row(a, at->row, &bytes, &size, &why);
        status = tell_blob(check, &row, found, &why, err);
    }
    if (list->rows[list->firsts[run]].pack != LB_NO_PACK) lb_archive_drop_pack(a, list->rows[list->firsts[run]].pack);
    check->result->blobs += list->firsts[run + 1] - list->firsts[run];
    return status;
}

static void check_values(check *check, const lb_archive *a, const lb_program *program)
{
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        int64_t first, last;
        if (!(value->flags & LB_VALUE_KEPT) || lb_digest_is_none(value->blob)) continue;
        lb_layout_dense_range(&value->layout, &first, &last, NULL);
        size_t expected = lb_dtype_bytes(value->dtype, (size_t)(last - first));
        uint64_t row = lb_index_find(&a->index, value->blob);
        char which[160];
        snprintf(which, sizeof which, "rank %" PRId32 ", step %" PRId64 ", value %" PRIu32 "%s%.80s", program->rank,
                 program->step, v, value->name == LB_NONE ? "" : " ", lb_program_text(program, value->name));
        if (row == LB_NO_ROW && !(check->whole && lb_capture_has_value(check->whole, program, v)))
            report(check, LB_DAMAGE_MISSING, 0, "%s: %s: its bytes were kept once and are not here", check->file,
                   which);
        else if (row != LB_NO_ROW && last > first && lb_index_blob(&a->index, row).size != expected)
            report(check, LB_DAMAGE_PROGRAM, lb_index_blob(&a->index, row).offset,
                   "%s: %s: blob of %" PRIu64 " bytes, its layout needs %zu", check->file, which,
                   lb_index_blob(&a->index, row).size, expected);
    }
}

static lb_status check_program(check *check, lb_archive *a, uint32_t i, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    lb_program *program;
    const lb_status status = lb_archive_read_program(a, i, &program, &why);
    if (status == LB_ERR_LIMIT) return lb_fail(err, status, "%s", why.message);
    check->result->programs++;
    if (status != LB_OK) {
        report_failure(check, LB_DAMAGE_PROGRAM, a->index.programs[i].offset, &why);
        return LB_OK;
    }
    check_values(check, a, program);
    lb_program_free(program);
    return LB_OK;
}

static lb_status check_table(check *check, lb_archive *a, uint32_t i, lb_err *err)
{
    const lb_segment_row *row = &a->index.tables[i];
    lb_err why = LB_ERR_INIT;
    char *json;
    const lb_status status = lb_archive_read_table(a, row, &json, &why);
    if (status == LB_ERR_LIMIT) return lb_fail(err, status, "%s", why.message);
    if (status != LB_OK) report_failure(check, LB_DAMAGE_BYTES, row->offset, &why);
    check->result->tables++;
    free(json);
    return LB_OK;
}

/* The closing index must say what the records say. */
static void check_index(check *check, const lb_scan *scan, const lb_archive *scanned)
{
    bool has_index = false;
    uint64_t at = 0;
    for (uint64_t i = 0; i < scan->n; i++)
        if (scan->entries[i].descriptor.kind == LB_RECORD_INDEX ||
            scan->entries[i].descriptor.kind == LB_RECORD_LOCATOR)
            has_index = true, at = scan->entries[i].data;
    lb_archive *indexed;
    lb_err why = LB_ERR_INIT;
    if (lb_archive_open(scanned->path, &indexed, &why) !=
        LB_OK) { /* the scan has said why, unless it could not be read again */
        if (lb_is_refusal(why.status)) report_failure(check, LB_DAMAGE_INDEX, at, &why);
        return;
    }
    const bool usable = indexed->closed && lb_index_holds_all(&indexed->index);
    if (!usable && has_index)
        report(check, LB_DAMAGE_INDEX, at,
               "%s: offset %" PRIu64
               ": the closing index cannot be used; nothing is lost, `lastbit recover` writes one",
               check->file, at);
    const lb_index *x = &indexed->index, *y = &scanned->index;
    bool same = x->blobs.rows == y->blobs.rows && x->n_programs == y->n_programs && x->n_tables == y->n_tables;
    for (uint64_t i = 0; usable && same && i < x->blobs.rows; i++) {
        lb_blob_row p = lb_index_blob(x, i), q = lb_index_blob(y, i);
        same = lb_digest_equal(p.digest, q.digest) && p.offset == q.offset && p.size == q.size && p.coding == q.coding;
    }
    if (usable) {
        check->result->closed++;
        if (!same && scanned->damages == 0)
            report(check, LB_DAMAGE_INDEX, at,
                   "%s: offset %" PRIu64 ": the closing index does not list what the records hold", check->file, at);
    }
    lb_archive_close(indexed);
}

/* ---- one archive ------------------------------------------------------------------------------------------------- */

/* What is in it, in the order in which it is checked: records, blobs, programs, tables. */
typedef struct contents {
    lb_archive *archive;
    lb_scan scan;
    blob_list blobs;
    lb_capture *whole;
    /* of what is folded */
    void (*found)(void *context, const lb_damage *damage);
    void *context;
    lb_verification *result;
} contents;

static uint64_t units_of(const contents *x)
{
    return x->scan.n + x->blobs.runs + x->archive->index.n_programs + x->archive->index.n_tables;
}

static lb_status check_unit(check *check, const contents *x, uint64_t unit, lb_err *err)
{
    lb_archive *a = x->archive;
    if (unit < x->scan.n) return check_record(check, a->map, &x->scan, unit), LB_OK;
    unit -= x->scan.n;
    if (unit < x->blobs.runs) return check_run(check, a, &x->blobs, unit, err);
    unit -= x->blobs.runs;
    if (unit < a->index.n_programs) return check_program(check, a, (uint32_t)unit, err);
    return check_table(check, a, (uint32_t)(unit - a->index.n_programs), err);
}

static lb_status refusal_of(const check *check, lb_err *err)
{
    return check->refused.status == LB_OK ? LB_OK : lb_fail(err, check->refused.status, "%s", check->refused.message);
}

static lb_status open_contents(check *check, const char *path, contents *x, lb_err *err)
{
    check->file = path;
    *x = (contents){.whole = check->whole, .found = check->found, .context = check->context, .result = check->result};
    LB_TRY(lb_archive_open_scanned(path, false, &x->archive, err));
    lb_status status = lb_scan_run(x->archive->map, x->archive->size, path, &x->scan, err);
    if (status == LB_OK) status = list_blobs(x->archive, &x->blobs, err);
    if (status != LB_OK) return status;
    check->result->archives++;
    const uint32_t minor = x->scan.entries[0].descriptor.minor;
    if (minor > check->result->minor) check->result->minor = minor;
    check_gaps(check, &x->scan);
    return LB_OK;
}

static void close_contents(contents *x)
{
    release_blobs(&x->blobs);
    lb_scan_release(&x->scan);
    lb_archive_close(x->archive);
}

static lb_status verify_archive(check *check, const char *path, lb_err *err)
{
    contents x;
    lb_status status = open_contents(check, path, &x, err);
    for (uint64_t i = 0; status == LB_OK && i < units_of(&x); i++) status = check_unit(check, &x, i, err);
    if (status == LB_OK) check_index(check, &x.scan, x.archive);
    close_contents(&x);
    return status == LB_OK ? refusal_of(check, err) : status;
}

/* ---- records of units -------------------------------------------------------------------------------------------- */

static void verification_record(lb_part_record *r, lb_verification *v)
{
    lb_part_record_word(r, &v->archives, 1), lb_part_record_word(r, &v->closed, 1);
    uint64_t *const totals[] = {&v->records, &v->blobs,       &v->programs, &v->tables,
                                &v->bytes,   &v->uncommitted, &v->damages,  &v->missing};
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) lb_part_record_total(r, totals[i]);
    lb_part_record_u32(r, &v->minor);
}

static void damage_record(lb_part_record *r, lb_damage *d)
{
    uint32_t kind = d->kind;
    lb_part_record_word(r, &kind, LB_DAMAGE_MISSING);
    d->kind = (lb_damage_kind)kind;
    lb_part_record_name(r, &d->file), lb_part_record_total(r, &d->offset), lb_part_record_name(r, &d->message);
}

static void record_damage(void *context, const lb_damage *damage)
{
    bool more = true;
    lb_damage same = *damage;
    lb_part_record_bool(context, &more);
    damage_record(context, &same);
}

static lb_status fold(lb_part_record *record, void (*found)(void *context, const lb_damage *damage), void *context,
                      lb_verification *sum)
{
    lb_verification one = {0};
    uint64_t damages = 0, missing = 0;
    for (bool more = true;;) {
        lb_damage damage = {0};
        lb_part_record_bool(record, &more);
        if (!more) break;
        damage_record(record, &damage);
        if (damage.kind == LB_DAMAGE_MISSING)
            missing++;
        else
            damages++;
        if (found && record->status == LB_OK) found(context, &damage);
    }
    verification_record(record, &one);
    /* The verdict is of the counts: they are those of what was said. */
    if (one.damages != damages || one.missing != missing)
        lb_part_record_refuse(record, "damages", "%llu are counted, %llu are named",
                              (unsigned long long)(one.damages + one.missing), (unsigned long long)(damages + missing));
    if (one.closed > one.archives) lb_part_record_refuse(record, "closed", "of no archive");
    sum->archives += one.archives, sum->closed += one.closed, sum->records += one.records, sum->blobs += one.blobs;
    sum->programs += one.programs, sum->tables += one.tables, sum->bytes += one.bytes;
    sum->uncommitted += one.uncommitted, sum->damages += one.damages, sum->missing += one.missing;
    if (one.minor > sum->minor) sum->minor = one.minor;
    return LB_OK;
}

/* One archive that several workers share: what is in it is cut into units. */
static lb_status verify_content(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const contents *x = context;
    lb_verification one = {0};
    bool more = false;
    check c = {record_damage, record, &one, x->whole, x->archive->path, LB_ERR_INIT};
    LB_TRY(check_unit(&c, x, unit, err));
    lb_part_record_bool(record, &more);
    verification_record(record, &one);
    return refusal_of(&c, err);
}

static lb_status fold_content(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)unit, (void)err;
    const contents *x = context;
    return fold(record, x->found, x->context, x->result);
}

static uint64_t weigh_content(void *context, uint64_t unit)
{
    const contents *x = context;
    uint64_t bytes = 0;
    if (unit < x->scan.n) return x->scan.entries[unit].size;
    const uint64_t run = unit - x->scan.n;
    if (run >= x->blobs.runs) return 0;
    for (uint64_t i = x->blobs.firsts[run]; i < x->blobs.firsts[run + 1]; i++)
        bytes += lb_index_blob(&x->archive->index, x->blobs.rows[i].row).size;
    return bytes;
}

static lb_status verify_in_units(check *check, const char *path, lb_parts *parts, lb_err *err)
{
    contents x;
    lb_status status = open_contents(check, path, &x, err);
    if (status == LB_OK) {
        const lb_parts_loop loop = {"content", units_of(&x), verify_content, fold_content, &x, weigh_content};
        status = lb_parts_each(parts, &loop, err);
    }
    if (status == LB_OK) check_index(check, &x.scan, x.archive);
    close_contents(&x);
    return status == LB_OK ? refusal_of(check, err) : status;
}

/* ---- the archives of a folder, each a unit ----------------------------------------------------------------------- */

typedef struct archives {
    const char *path;
    lb_archive_name *names;
    uint32_t n;
    lb_capture *whole;
    /* of what is folded */
    void (*found)(void *context, const lb_damage *damage);
    void *context;
    lb_verification *result;
} archives;

/* The damages, then what was counted. */
static lb_status verify_unit(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const archives *a = context;
    lb_verification one = {0};
    lb_err why = LB_ERR_INIT;
    bool more = false;
    char *file = lb_capture_reader_path(a->path, &a->names[unit]);
    check c = {record_damage, record, &one, a->whole, file, LB_ERR_INIT};
    lb_status status = file ? verify_archive(&c, file, &why) : lb_fail(&why, LB_ERR_NOMEM, "out of memory");
    if (status == LB_ERR_CORRUPT) { /* one archive that is none at all is a finding, not the end */
        report(&c, LB_DAMAGE_RECORD, 0, "%s", why.message);
        status = LB_OK;
    } else if (status != LB_OK) {
        lb_fail(err, status, "%s", why.message);
    }
    lb_part_record_bool(record, &more);
    verification_record(record, &one);
    free(file);
    return status;
}

static lb_status fold_archive(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)unit, (void)err;
    const archives *a = context;
    return fold(record, a->found, a->context, a->result);
}

static uint64_t weigh_archive(void *context, uint64_t unit)
{
    const archives *a = context;
    struct stat st = {0};
    char *file = lb_capture_reader_path(a->path, &a->names[unit]);
    const bool known = file && lb_input_look(file, &st, NULL) == LB_OK;
    free(file);
    return known ? (uint64_t)st.st_size : 0;
}

static lb_status verify_folder(const char *path, lb_parts *parts, archives *a, lb_err *err)
{
    lb_err closed = LB_ERR_INIT;
    LB_TRY(lb_capture_reader_list_folder(path, &a->names, &a->n, err));
    lb_status status = lb_capture_open(path, &a->whole, &closed);
    if (status != LB_OK) a->whole = NULL;
    const lb_parts_loop loop = {"archive", a->n, verify_unit, fold_archive, a, weigh_archive};
    status = lb_is_refusal(status) ? lb_fail(err, status, "%s", closed.message) : lb_parts_each(parts, &loop, err);
    lb_capture_close(a->whole);
    free(a->names);
    return status;
}

lb_status lb_capture_verify(const char *path, void (*found)(void *context, const lb_damage *damage), void *context,
                            lb_verification *result, lb_err *err)
{
    return lb_capture_verify_in_parts(path, NULL, found, context, result, err);
}

lb_status lb_capture_verify_in_parts(const char *path, lb_parts *parts,
                                     void (*found)(void *context, const lb_damage *damage), void *context,
                                     lb_verification *result, lb_err *err)
{
    memset(result, 0, sizeof *result);
    struct stat st;
    LB_TRY(lb_input_look(path, &st, err));
    bool foreign;
    LB_TRY(lb_foreign_recognises(path, S_ISDIR(st.st_mode), &foreign, err));
    if (foreign)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: files of other programs carry no checksums to verify", path);
    if (S_ISDIR(st.st_mode))
        return verify_folder(path, parts,
                             &(archives){.path = path, .found = found, .context = context, .result = result}, err);
    check c = {found, context, result, NULL, path, LB_ERR_INIT};
    return parts ? verify_in_units(&c, path, parts, err) : verify_archive(&c, path, err);
}
