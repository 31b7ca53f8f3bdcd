/* A capture: the archives of all ranks behind one door. See lastbit/archive.h.
 *
 * A folder has one archive per rank, told by its name; a packed file or a single archive says the rank in its programs;
 * foreign files (safetensors, .npy, .npz) give one program of sources. Rows (rank, step) point at where each one is. */
#include "captures/capture_reader.h"

#include "base/array.h"
#include "program/program_shelf.h"
#include <lastbit/input.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static char *path_in(const char *folder, const char *name)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    const size_t room = n + strlen(name) + 2;
    char *path = (char *)malloc(room);
    if (path) snprintf(path, room, "%.*s/%s", (int)n, folder, name);
    return path;
}

char *lb_capture_archive_path(const char *folder, int32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%05" PRId32 ".tar", rank);
    return path_in(folder, name);
}

char *lb_capture_part_path(const char *folder, int32_t rank, uint32_t part)
{
    char name[48];
    snprintf(name, sizeof name, "rank-%05" PRId32 "-%010" PRIu32 ".tar", rank, part);
    return path_in(folder, name);
}

char *lb_capture_reader_path(const char *folder, const lb_archive_name *archive)
{
    return archive->part < 0 ? lb_capture_archive_path(folder, archive->rank)
                             : lb_capture_part_path(folder, archive->rank, (uint32_t)archive->part);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static lb_status add_member(lb_capture *capture, const char *path, int32_t rank, lb_err *err)
{
    lb_capture_reader_member *grown = lb_array_grow(capture->members, capture->n_members, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    capture->members = grown;
    LB_TRY(lb_archive_open(path, &grown[capture->n_members].archive, err));
    grown[capture->n_members].archive->shelf = capture->shelf;
    grown[capture->n_members++].rank = rank;
    return LB_OK;
}

static bool read_number(const char **at, long most, long *number)
{
    char *end;
    if (**at < '0' || **at > '9') return false;
    errno = 0;
    *number = strtol(*at, &end, 10);
    *at = end;
    return errno == 0 && *number <= most;
}

bool lb_capture_reader_parse_name(const char *name, lb_archive_name *archive)
{
    const char *at = name + 5;
    long rank, part = -1;
    if (strncmp(name, "rank-", 5) != 0 || !read_number(&at, INT32_MAX, &rank)) return false;
    if (*at == '-' && (++at, !read_number(&at, UINT32_MAX, &part))) return false;
    *archive = (lb_archive_name){(int32_t)rank, part};
    return strcmp(at, ".tar") == 0;
}

static int by_name(const void *a, const void *b)
{
    const lb_archive_name *x = (const lb_archive_name *)a, *y = (const lb_archive_name *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return (x->part > y->part) - (x->part < y->part);
}

static int by_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

lb_status lb_capture_reader_list_folder(const char *folder, lb_archive_name **archives, uint32_t *n, lb_err *err)
{
    lb_input_names names;
    *archives = NULL;
    *n = 0;
    lb_status status = lb_input_list(folder, &names, err);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++) {
        lb_archive_name name;
        if (!lb_capture_reader_parse_name(names.rows[i], &name)) continue;
        lb_archive_name *grown = lb_array_grow(*archives, *n, sizeof *grown);
        if (!grown) {
            status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
        } else {
            *archives = grown;
            grown[(*n)++] = name;
        }
    }
    lb_input_names_release(&names);
    LB_TRY(status);
    if (*n == 0) return lb_fail(err, LB_ERR_NOT_FOUND, "%s: holds no rank-NNNNN.tar: this is not a capture", folder);
    qsort(*archives, *n, sizeof **archives, by_name);
    return LB_OK;
}

/* The last of several, just made: its writer has not come to its first byte. */
static bool is_unwritten(const lb_archive_name *archive, bool last, const char *path)
{
    struct stat st;
    return archive->part >= 0 && last && lb_input_look(path, &st, NULL) == LB_OK && st.st_size == 0;
}

static lb_status open_folder(lb_capture *capture, const lb_rank_choice *choice, lb_err *err)
{
    lb_archive_name *names;
    uint32_t n;
    lb_status status = lb_capture_reader_list_folder(capture->path, &names, &n, err);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        if (choice && !choice->holds(choice->context, names[i].rank)) continue;
        char *path = lb_capture_reader_path(capture->path, &names[i]);
        if (!path)
            status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", capture->path);
        else if (!is_unwritten(&names[i], i + 1 == n || names[i + 1].rank != names[i].rank, path))
            status = add_member(capture, path, names[i].rank, err);
        free(path);
    }
    free(names);
    return status;
}

static lb_status open_path(lb_capture *capture, const lb_rank_choice *choice, lb_err *err)
{
    struct stat st;
    LB_TRY(lb_input_look(capture->path, &st, err));
    bool foreign;
    LB_TRY(lb_foreign_recognises(capture->path, S_ISDIR(st.st_mode), &foreign, err));
    if (foreign) return lb_foreign_open(capture->path, &capture->foreign, err);
    if (S_ISDIR(st.st_mode)) return open_folder(capture, choice, err);
    const char *slash = strrchr(capture->path, '/');
    lb_archive_name name = {LB_NO_RANK, -1};
    lb_capture_reader_parse_name(slash ? slash + 1 : capture->path, &name);
    return add_member(capture, capture->path, name.rank, err);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int by_rank_and_step(const void *a, const void *b)
{
    const lb_program_row *x = (const lb_program_row *)a, *y = (const lb_program_row *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    if (x->member != y->member) return x->member < y->member ? -1 : 1;
    return (x->program > y->program) - (x->program < y->program);
}

static lb_status list_rows(lb_capture *capture, lb_err *err)
{
    uint64_t n = capture->foreign ? 1 : 0;
    for (uint32_t m = 0; m < capture->n_members; m++) n += lb_archive_programs(capture->members[m].archive);
    uint64_t ranks = n + capture->n_members;
    if (n > UINT32_MAX - capture->n_members)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: %" PRIu64 " programs", capture->path, n);
    capture->rows = (lb_program_row *)calloc(n + 1, sizeof *capture->rows);
    capture->ranks = (int32_t *)calloc(ranks + 1, sizeof *capture->ranks);
    capture->steps = (int64_t *)calloc(n + 1, sizeof *capture->steps);
    if (!capture->rows || !capture->ranks || !capture->steps)
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", capture->path);
    if (capture->foreign) capture->n_rows = 1; /* rank 0, step 0 */
    for (uint32_t m = 0; m < capture->n_members; m++) {
        const lb_archive *a = capture->members[m].archive;
        int32_t named = capture->members[m].rank;
        for (uint32_t p = 0; p < a->index.n_programs; p++) {
            int32_t rank = named != LB_NO_RANK ? named : a->index.programs[p].rank;
            capture->rows[capture->n_rows++] = (lb_program_row){rank, a->index.programs[p].step, m, p};
        }
        if (named != LB_NO_RANK) capture->ranks[capture->n_ranks++] = named; /* also one that recorded no step */
    }
    qsort(capture->rows, capture->n_rows, sizeof *capture->rows, by_rank_and_step);
    for (uint32_t i = 0; i < capture->n_rows; i++) {
        capture->ranks[capture->n_ranks++] = capture->rows[i].rank;
        capture->steps[capture->n_steps++] = capture->rows[i].step;
    }
    qsort(capture->ranks, capture->n_ranks, sizeof *capture->ranks, by_rank);
    qsort(capture->steps, capture->n_steps, sizeof *capture->steps, lb_by_i64);
#define UNIQUE(array, count)                                                                                           \
    do {                                                                                                               \
        uint32_t kept = 0;                                                                                             \
        for (uint32_t i = 0; i < (count); i++)                                                                         \
            if (kept == 0 || (array)[kept - 1] != (array)[i]) (array)[kept++] = (array)[i];                            \
        (count) = kept;                                                                                                \
    } while (0)
    UNIQUE(capture->ranks, capture->n_ranks);
    UNIQUE(capture->steps, capture->n_steps);
#undef UNIQUE
    return LB_OK;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

lb_status lb_capture_open(const char *path, lb_capture **capture, lb_err *err)
{
    return lb_capture_reader_open(path, NULL, capture, err);
}

lb_status lb_capture_reader_open(const char *path, const lb_rank_choice *choice, lb_capture **capture, lb_err *err)
{
    lb_capture *opened = (lb_capture *)calloc(1, sizeof *opened);
    if (!opened || !(opened->path = strdup(path)) || !(opened->covering = lb_covering_new()) ||
        !(opened->shelf = lb_program_shelf_new(LB_SHELF_MEMORY))) {
        lb_capture_close(opened);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    lb_status status = open_path(opened, choice, err);
    if (status == LB_OK) status = list_rows(opened, err);
    if (status == LB_OK)
        *capture = opened;
    else
        lb_capture_close(opened);
    return status;
}

void lb_capture_close(lb_capture *capture)
{
    if (!capture) return;
    for (uint32_t m = 0; m < capture->n_members; m++) lb_archive_close(capture->members[m].archive);
    lb_program_shelf_free(capture->shelf); /* behind its programs */
    lb_foreign_close(capture->foreign);
    lb_covering_free(capture->covering);
    lb_blob_filter_free(atomic_load(&capture->filter));
    free(capture->members);
    free(capture->rows);
    free(capture->ranks);
    free(capture->steps);
    free(capture->path);
    free(capture);
}

const char *lb_capture_path(const lb_capture *capture)
{
    return capture->path;
}

uint32_t lb_capture_ranks(const lb_capture *capture, const int32_t **ranks)
{
    *ranks = capture->ranks;
    return capture->n_ranks;
}

uint32_t lb_capture_steps(const lb_capture *capture, const int64_t **steps)
{
    *steps = capture->steps;
    return capture->n_steps;
}

lb_status lb_capture_lacks(const lb_capture *capture, int64_t first, int64_t last, lb_err *err)
{
    if (!capture->n_steps || !capture->n_ranks)
        return lb_fail(err, LB_ERR_NOT_CAPTURED,
                       "%s: no step was recorded to its end, so that there is nothing to run again; "
                       "`lastbit ls` says how the recording ended, `lastbit recover` may find what was cut off",
                       capture->path);
    char asked[96];
    const bool below = first != INT64_MIN, above = last != INT64_MAX;
    if (below && above && first == last)
        snprintf(asked, sizeof asked, "no step %" PRId64, first);
    else if (below && above)
        snprintf(asked, sizeof asked, "no step from %" PRId64 " to %" PRId64, first, last);
    else if (below)
        snprintf(asked, sizeof asked, "no step from %" PRId64 " on", first);
    else if (above)
        snprintf(asked, sizeof asked, "no step up to %" PRId64, last);
    else
        snprintf(asked, sizeof asked, "no step of the ranks asked for");
    char span[64];
    if (capture->n_steps == 1)
        snprintf(span, sizeof span, "step %" PRId64, capture->steps[0]);
    else
        snprintf(span, sizeof span, "steps %" PRId64 " to %" PRId64, capture->steps[0],
                 capture->steps[capture->n_steps - 1]);
    return lb_fail(err, LB_ERR_NOT_FOUND, "%s: %s was recorded; it has %s of %" PRIu32 " rank%s", capture->path, asked,
                   span, capture->n_ranks, capture->n_ranks == 1 ? "" : "s");
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

static const lb_program_row *find_row(const lb_capture *capture, int32_t rank, int64_t step)
{
    lb_program_row wanted = {rank, step, 0, 0};
    uint32_t low = 0, high = capture->n_rows;
    while (low < high) { /* the first row behind (rank, step) */
        uint32_t middle = low + (high - low) / 2;
        const lb_program_row *row = &capture->rows[middle];
        bool behind = row->rank != wanted.rank ? row->rank > wanted.rank : row->step > wanted.step;
        if (behind)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == 0) return NULL;
    const lb_program_row *row = &capture->rows[low - 1]; /* the youngest of equal ones */
    return row->rank == rank && row->step == step ? row : NULL;
}

static pthread_mutex_t unread_lock = PTHREAD_MUTEX_INITIALIZER;

/* Remembers that memory was refused, for lb_capture_refusal. */
static lb_status note_refusal(lb_capture *capture, lb_status status)
{
    if (status == LB_ERR_NOMEM) atomic_store(&capture->refused, true);
    return status;
}

static void note_unread(lb_capture *capture, const lb_err *why)
{
    pthread_mutex_lock(&unread_lock);
    lb_fail(&capture->unread, why->status, "%s", why->message);
    pthread_mutex_unlock(&unread_lock);
}

static lb_err take_unread(lb_capture *capture)
{
    pthread_mutex_lock(&unread_lock);
    const lb_err first = capture->unread;
    lb_err_clear(&capture->unread);
    pthread_mutex_unlock(&unread_lock);
    return first;
}

lb_status lb_capture_refusal(lb_capture *capture, lb_err *err)
{
    if (!capture) return LB_OK;
    const lb_err unread = take_unread(capture);
    if (atomic_exchange(&capture->refused, false))
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for what was recorded", capture->path);
    return unread.status == LB_OK ? LB_OK : lb_fail(err, unread.status, "%s", unread.message);
}

/* Bytes of files that are in this process's memory (proc(5), statm); 0: not told. */
static uint64_t mapped_bytes(void)
{
    unsigned long size = 0, resident = 0, shared = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    const int n = statm ? fscanf(statm, "%lu %lu %lu", &size, &resident, &shared) : 0;
    if (statm) fclose(statm);
    return n == 3 ? (uint64_t)shared * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* Of many archives what was read is handed back from time to time, so that a walk over all ranks needs no memory for
 * all of them. */
static void note_read(lb_capture *capture)
{
    enum { MANY_MEMBERS = 16, SELDOM = 64, MOST = 1 << 30 };
    if (capture->n_members <= MANY_MEMBERS || atomic_fetch_add(&capture->asked, 1) % SELDOM) return;
    if (mapped_bytes() > MOST) lb_capture_unload(capture);
}

static lb_status read_program(lb_capture *capture, int32_t rank, int64_t step, const lb_program **program, lb_err *err)
{
    const lb_program_row *row = find_row(capture, rank, step);
    if (!row)
        return lb_fail(err, LB_ERR_NOT_FOUND, "%s: rank %" PRId32 " recorded no step %" PRId64, capture->path, rank,
                       step);
    if (capture->foreign) return lb_foreign_program(capture->foreign, program, err);
    const lb_status status = lb_archive_program(capture->members[row->member].archive, row->program, program, err);
    note_read(capture);
    return status;
}

lb_status lb_capture_program(lb_capture *capture, int32_t rank, int64_t step, const lb_program **program, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const lb_status status = note_refusal(capture, read_program(capture, rank, step, program, &why));
    if (status == LB_OK) return LB_OK;
    if (status != LB_ERR_NOT_FOUND && status != LB_ERR_NOMEM) note_unread(capture, &why);
    return lb_fail(err, status, "%s", why.message);
}

void lb_capture_drop_program(lb_capture *capture, int32_t rank, int64_t step)
{
    const lb_program_row *row = capture->foreign ? NULL : find_row(capture, rank, step);
    lb_program *program = row ? lb_archive_take_program(capture->members[row->member].archive, row->program) : NULL;
    if (program) lb_covering_drop(capture->covering, program);
    lb_program_free(program);
}

bool lb_capture_has_program(const lb_capture *capture, int32_t rank, int64_t step)
{
    return find_row(capture, rank, step) != NULL;
}

/* The first member of a rank, or n_members. A file alone has one, whatever rank is asked for. */
static uint32_t first_member(const lb_capture *capture, int32_t rank)
{
    uint32_t low = 0, high = capture->n_members;
    if (high == 1) return 0;
    while (low < high) { /* they stand by rank */
        const uint32_t middle = low + (high - low) / 2;
        if (capture->members[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_member_of(const lb_capture *capture, uint32_t member, int32_t rank)
{
    return member < capture->n_members && (capture->n_members == 1 || capture->members[member].rank == rank);
}

static bool add_digests(lb_blob_filter *filter, lb_archive *archive)
{
    lb_archive *sound;
    if (lb_archive_sound(archive, &sound, NULL) != LB_OK) return false;
    const lb_blob_columns *blobs = &sound->index.blobs;
    for (uint64_t i = 0; i < blobs->rows; i++) lb_blob_filter_add(filter, digest_from_bytes(blobs->digest + i * 16));
    return true;
}

/* Made when a rank is first asked for what it does not hold; NULL when out of memory, and then all are searched. */
static const lb_blob_filter *filter_of(lb_capture *capture)
{
    lb_blob_filter *filter = atomic_load(&capture->filter), *none = NULL;
    uint64_t n = 0;
    bool added = true;
    if (filter) return filter;
    for (uint32_t m = 0; m < capture->n_members; m++) n += capture->members[m].archive->index.blobs.rows;
    if (!(filter = lb_blob_filter_new(n))) return NULL;
    for (uint32_t m = 0; m < capture->n_members && added; m++) added = add_digests(filter, capture->members[m].archive);
    if (added && atomic_compare_exchange_strong(&capture->filter, &none, filter)) return filter;
    lb_blob_filter_free(filter); /* another thread was faster */
    return none;
}

/* In the archive that had the last one, then in all: replicas keep the same. */
static lb_status find_elsewhere(lb_capture *capture, lb_digest digest, lb_archive **holder, uint64_t *row, lb_err *err)
{
    const lb_blob_filter *filter = filter_of(capture);
    const uint32_t last = atomic_load_explicit(&capture->found_in, memory_order_relaxed);
    *row = LB_NO_ROW;
    if (filter && !lb_blob_filter_may_hold(filter, digest)) return LB_OK;
    for (uint32_t i = 0; i <= capture->n_members; i++) {
        const uint32_t m = i ? i - 1 : last;
        LB_TRY(lb_archive_find(capture->members[m].archive, digest, holder, row, err));
        if (*row == LB_NO_ROW) continue;
        atomic_store_explicit(&capture->found_in, m, memory_order_relaxed);
        return LB_OK;
    }
    return LB_OK;
}

/* Row of the blob, or LB_NO_ROW, and the archive that has it: the rank's own first, then any, for equal digests are
 * equal bytes. */
static lb_status find_blob(lb_capture *capture, int32_t rank, lb_digest digest, lb_archive **holder, uint64_t *row,
                           lb_err *err)
{
    *row = LB_NO_ROW;
    for (uint32_t m = first_member(capture, rank); is_member_of(capture, m, rank); m++) {
        LB_TRY(lb_archive_find(capture->members[m].archive, digest, holder, row, err));
        if (*row != LB_NO_ROW) return LB_OK;
    }
    return capture->n_members > 1 ? find_elsewhere(capture, digest, holder, row, err) : LB_OK;
}

lb_status lb_capture_blob(lb_capture *capture, int32_t rank, lb_digest digest, const void **bytes, size_t *size,
                          lb_err *err)
{
    if (capture->foreign) return lb_foreign_blob(capture->foreign, digest, bytes, size, err);
    uint64_t row;
    lb_archive *holder;
    LB_TRY(find_blob(capture, rank, digest, &holder, &row, err));
    if (row != LB_NO_ROW) {
        note_read(capture);
        return lb_archive_blob_row(holder, row, bytes, size, err);
    }
    char text[33];
    lb_digest_format(digest, text);
    return lb_fail(err, LB_ERR_NOT_CAPTURED, "%s: rank %" PRId32 ": blob %s was not kept", capture->path, rank, text);
}

const char *lb_capture_table(lb_capture *capture, int32_t rank, const char *name)
{
    if (capture->foreign) return strcmp(name, "metadata") == 0 ? lb_foreign_metadata(capture->foreign) : NULL;
    const uint32_t first = first_member(capture, rank);
    uint32_t end = first;
    while (is_member_of(capture, end, rank)) end++;
    for (uint32_t m = end; m-- > first;) { /* of several archives of a rank the last */
        const lb_capture_reader_member *member = &capture->members[m];
        if (member->rank != LB_NO_RANK && member->rank != rank) continue;
        const char *json = member->rank == LB_NO_RANK ? lb_archive_rank_table(member->archive, rank, name) : NULL;
        if (!json) json = lb_archive_table(member->archive, name);
        if (json) return json;
    }
    return NULL;
}

static bool has_table(const lb_capture_reader_member *member, int32_t rank, const lb_segment_row *row)
{
    return member->rank == LB_NO_RANK ? row->rank == rank || row->rank == LB_NO_RANK
                                      : member->rank == rank && row->rank == LB_NO_RANK;
}

/* Whether a table of that name and rank stands later: in that archive behind table `i`, or in one after it. */
static bool is_told_later(const lb_capture *capture, int32_t rank, uint32_t member, uint32_t i)
{
    const char *name = capture->members[member].archive->index.tables[i].name;
    for (uint32_t m = member; m < capture->n_members; m++) {
        const lb_index *x = &capture->members[m].archive->index;
        if (m > member && capture->members[m].rank != rank) break;
        for (uint32_t k = m == member ? i + 1 : 0; k < x->n_tables; k++)
            if (has_table(&capture->members[m], rank, &x->tables[k]) && strcmp(x->tables[k].name, name) == 0)
                return true;
    }
    return false;
}

const char *lb_capture_table_name(const lb_capture *capture, int32_t rank, uint32_t index)
{
    if (capture->foreign) return index == 0 && lb_foreign_metadata(capture->foreign) ? "metadata" : NULL;
    for (uint32_t m = 0; m < capture->n_members; m++) {
        const lb_index *x = &capture->members[m].archive->index;
        for (uint32_t i = 0; i < x->n_tables; i++)
            if (has_table(&capture->members[m], rank, &x->tables[i]) && !is_told_later(capture, rank, m, i) &&
                index-- == 0)
                return x->tables[i].name;
    }
    return NULL;
}

/* The kept value that holds the bytes of a value: itself, or one it is a view of. */
static uint32_t find_holder(lb_capture *capture, const lb_program *program, uint32_t value, size_t *offset)
{
    *offset = 0;
    const lb_value *v = &program->values[value];
    const bool named = !lb_digest_is_none(v->blob);
    if (named && (capture->foreign || v->flags & LB_VALUE_KEPT)) return value;
    const lb_program_row *row = find_row(capture, program->rank, program->step);
    const bool lasting = row && !capture->foreign &&
                         lb_archive_has_program(capture->members[row->member].archive, row->program, program);
    uint32_t holder = lb_covering_find(capture->covering, program, lasting, value, offset);
    return holder == LB_NONE && named ? value : holder;
}

void lb_capture_unload(const lb_capture *capture)
{
    for (uint32_t m = 0; m < capture->n_members; m++) lb_archive_unload(capture->members[m].archive);
    lb_program_shelf_unload(capture->shelf);
}

void lb_capture_unload_rank(const lb_capture *capture, int32_t rank)
{
    for (uint32_t m = first_member(capture, rank); is_member_of(capture, m, rank); m++)
        lb_archive_unload(capture->members[m].archive);
}

bool lb_capture_has_value(lb_capture *capture, const lb_program *program, uint32_t value)
{
    if (value >= program->n_values) return false;
    if (lb_layout_numel(&program->values[value].layout) == 0) return true;
    size_t offset;
    uint64_t row;
    lb_archive *archive;
    note_read(capture);
    uint32_t holder = find_holder(capture, program, value, &offset);
    if (holder == LB_NONE) return false;
    lb_digest blob = program->values[holder].blob;
    if (capture->foreign) return lb_foreign_has_blob(capture->foreign, blob);
    const lb_status status = note_refusal(capture, find_blob(capture, program->rank, blob, &archive, &row, NULL));
    return status == LB_OK && row != LB_NO_ROW;
}

static lb_status not_kept(const lb_capture *capture, const lb_program *p, uint32_t value, lb_err *err)
{
    static const char *const levels[] = {"stats", "sources", "layers", "ops"};
    return lb_fail(err, LB_ERR_NOT_CAPTURED,
                   "%s: rank %" PRId32 ", step %" PRId64 ", value %u: its bytes were not kept (level %s)%s",
                   capture->path, p->rank, p->step, value, levels[p->level & 3],
                   p->level < 3 ? ": record with --level ops, or --keep its layer" : "");
}

/* The dense range of a value that is not empty. */
static lb_status value_bytes(lb_capture *capture, const lb_program *program, uint32_t value, size_t expected,
                             const char **bytes, lb_err *err)
{
    size_t offset, size;
    const void *blob;
    lb_err why = LB_ERR_INIT;
    uint32_t holder = find_holder(capture, program, value, &offset);
    if (holder == LB_NONE) return not_kept(capture, program, value, err);
    lb_status status =
        lb_capture_blob(capture, program->rank, program->values[holder].blob, &blob, &size, err ? &why : NULL);
    if (status == LB_ERR_NOT_CAPTURED) return not_kept(capture, program, value, err);
    if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
    if (holder == value ? size != expected : size < offset || size - offset < expected)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: step %" PRId64 ", value %u: blob of %zu bytes, its layout needs %zu",
                       capture->path, program->step, value, size, offset + expected);
    *bytes = (const char *)blob + offset;
    return LB_OK;
}

static lb_status read_value(lb_capture *capture, const lb_program *program, uint32_t value, lb_tensor *tensor,
                            lb_err *err)
{
    static const uint64_t nothing[2];
    if (value >= program->n_values)
        return lb_fail(err, LB_ERR_NOT_FOUND, "step %" PRId64 ": value %u of %u", program->step, value,
                       program->n_values);
    const lb_value *v = &program->values[value];
    int64_t first, last;
    const char *bytes = NULL;
    LB_TRY(lb_layout_dense_range(&v->layout, &first, &last, err));
    if (last > first)
        LB_TRY(value_bytes(capture, program, value, lb_dtype_bytes(v->dtype, (size_t)(last - first)), &bytes, err));
    *tensor = (lb_tensor){(char *)(uintptr_t)nothing, v->dtype, v->layout};
    if (bytes)
        tensor->data = (char *)(uintptr_t)bytes + (v->layout.offset - first) * (int64_t)lb_dtype_bits(v->dtype) / 8;
    tensor->layout.offset = 0;
    return LB_OK;
}

lb_status lb_capture_value(lb_capture *capture, const lb_program *program, uint32_t value, lb_tensor *tensor,
                           lb_err *err)
{
    return note_refusal(capture, read_value(capture, program, value, tensor, err));
}
