/* The flight recorder's files, which outlive a process that was killed, as archives of a capture: see
 * lastbit/maintenance.h. */
#define _GNU_SOURCE /* asprintf */
#include "archive/archive_reader.h"
#include "archive/archive_writer.h"
#include "captures/capture_reader.h"

#include "base/array.h"
#include <lastbit/maintenance.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct ring_file {
    int32_t rank;
    uint32_t generation;
} ring_file;

char *lb_ring_file_path(const char *folder, int32_t rank, uint32_t generation)
{
    char *path = NULL;
    if (asprintf(&path, "%s/ring-%05" PRId32 "-%010" PRIu32 ".tar", folder, rank, generation) < 0) return NULL;
    return path;
}

bool lb_ring_file_parse(const char *name, int32_t *rank, uint32_t *generation)
{
    int end = 0;
    return sscanf(name, "ring-%5" SCNd32 "-%10" SCNu32 ".tar%n", rank, generation, &end) == 2 && end && !name[end];
}

static int by_age(const void *a, const void *b)
{
    const ring_file *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return (x->generation > y->generation) - (x->generation < y->generation);
}

/* Those of a folder, by rank and age; malloc'ed. */
static lb_status list_files(const char *folder, ring_file **files, uint32_t *n, lb_err *err)
{
    DIR *dir = opendir(folder);
    *files = NULL;
    *n = 0;
    if (!dir) return lb_fail(err, LB_ERR_IO, "%s: cannot list it: %s", folder, strerror(errno));
    lb_status status = LB_OK;
    while (status == LB_OK) {
        ring_file one;
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry && errno) status = lb_fail(err, LB_ERR_IO, "%s: cannot list it: %s", folder, strerror(errno));
        if (!entry) break;
        if (!lb_ring_file_parse(entry->d_name, &one.rank, &one.generation)) continue;
        ring_file *grown = lb_array_grow(*files, *n, sizeof **files);
        if (grown)
            *files = grown, grown[(*n)++] = one;
        else
            status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
    }
    closedir(dir);
    if (*n) qsort(*files, *n, sizeof **files, by_age);
    return status;
}

void lb_ring_files_remove(const char *folder, int32_t rank)
{
    ring_file *files;
    uint32_t n;
    if (list_files(folder, &files, &n, NULL) == LB_OK)
        for (uint32_t i = 0; i < n; i++) {
            char *path = rank < 0 || files[i].rank == rank
                             ? lb_ring_file_path(folder, files[i].rank, files[i].generation)
                             : NULL;
            if (path) unlink(path);
            free(path);
        }
    free(files);
}

/* ---- putting them together --------------------------------------------------------------------------------------- */

typedef struct assembly {
    lb_writer *writer;
    int32_t rank, world;
    uint32_t steps;
    uint64_t ops, values;
    uint8_t level;
    int64_t *added; /* numbers of steps, so that none comes twice */
    bool whole;     /* every committed byte was read */
} assembly;

static bool was_added(const assembly *assembly, int64_t step)
{
    for (uint32_t i = 0; i < assembly->steps; i++)
        if (assembly->added[i] == step) return true;
    return false;
}

static lb_status add_program(assembly *assembly, const lb_program *program, lb_err *err)
{
    if (was_added(assembly, program->step)) return LB_OK;
    int64_t *grown = lb_array_grow(assembly->added, assembly->steps, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u steps", assembly->steps + 1);
    assembly->added = grown;
    assembly->added[assembly->steps++] = program->step;
    assembly->world = program->world, assembly->level = program->level;
    assembly->ops += program->n_ops, assembly->values += program->n_values;
    return lb_writer_program(assembly->writer, program, err);
}

/* Whether reading goes on without it: bytes that are damaged do not become better, but what memory, the disk or a limit
 * kept from being read may be there the next time. */
static bool is_passed_over(assembly *assembly, lb_status status, const lb_err *why, lb_status *result, lb_err *err)
{
    if (status == LB_OK) return false;
    assembly->whole = false;
    if (status == LB_ERR_CORRUPT || status == LB_ERR_VERSION) return true;
    *result = lb_fail(err, status, "%s", why->message);
    return false;
}

/* `salvage`: whole records behind the last commit, too. */
static lb_status add_file(assembly *assembly, const char *path, bool salvage, lb_err *err)
{
    lb_archive *from;
    lb_err why = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (is_passed_over(assembly, lb_archive_open_scanned(path, salvage, &from, &why), &why, &status, err)) return LB_OK;
    LB_TRY(status);
    assembly->whole &= from->damages == 0;
    for (uint64_t i = 0; i < from->index.blobs.rows && status == LB_OK; i++) {
        const void *bytes;
        size_t size;
        const lb_blob_row row = lb_index_blob(&from->index, i);
        why = (lb_err)LB_ERR_INIT;
        if (is_passed_over(assembly, lb_archive_blob_row(from, i, &bytes, &size, &why), &why, &status, err)) continue;
        if (status == LB_OK) status = lb_writer_blob(assembly->writer, row.digest, row.dtype, bytes, size, err);
    }
    for (uint32_t i = 0; i < lb_archive_programs(from) && status == LB_OK; i++) {
        const lb_program *program;
        why = (lb_err)LB_ERR_INIT;
        if (is_passed_over(assembly, lb_archive_program(from, i, &program, &why), &why, &status, err)) continue;
        if (status == LB_OK) status = add_program(assembly, program, err);
    }
    if (status == LB_OK) status = lb_writer_commit(assembly->writer, err);
    lb_archive_close(from);
    return status;
}

/* The archive that stands there may hold steps already: a rescue that was cut off after its move, and before its files
 * were gone. Those files may have lost by the power cut what the archive has. */
static lb_status add_archive(assembly *assembly, const char *path, lb_err *err)
{
    const bool whole = assembly->whole; /* of the files */
    const lb_status status = access(path, F_OK) == 0 ? add_file(assembly, path, true, err) : LB_OK;
    assembly->whole = whole;
    return status;
}

static lb_status add_tables(assembly *assembly, const char *old, const char *why, lb_err *err)
{
    static const char *const levels[] = {"stats", "sources", "layers", "ops"};
    lb_archive *archive = NULL;
    lb_err why_not = LB_ERR_INIT;
    lb_status status = lb_archive_open_scanned(old, true, &archive, &why_not);
    if (status == LB_ERR_NOMEM || status == LB_ERR_IO) return lb_fail(err, status, "%s", why_not.message);
    if (status != LB_OK) archive = NULL;
    const char *receipt = archive ? lb_archive_table(archive, "receipt") : NULL;
    status = receipt ? lb_writer_table(assembly->writer, "receipt", receipt, err) : LB_OK;
    if (archive) lb_archive_close(archive);
    const char *level = assembly->level < 4 ? levels[assembly->level] : "";
    json_t *coverage = json_pack("{s:i, s:i, s:s, s:s, s:I, s:I, s:I, s:b, s:{s:{s:i}}}", "rank", (int)assembly->rank,
                                 "world", (int)assembly->world, "level_asked", level, "level", level, "steps",
                                 (json_int_t)assembly->steps, "ops", (json_int_t)assembly->ops, "values",
                                 (json_int_t)assembly->values, "closed", 0, "notes", "trigger", why, 1);
    char *text = coverage ? json_dumps(coverage, JSON_COMPACT) : NULL;
    json_decref(coverage);
    if (status == LB_OK)
        status = text ? lb_writer_table(assembly->writer, "coverage", text, err)
                      : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    free(text);
    return status;
}

/* The files of one rank become its archive, in one move. */
static lb_status assemble_rank(const char *folder, const char *out, const ring_file *files, uint32_t n, const char *why,
                               uint32_t *steps, bool *whole, lb_err *err)
{
    char *old = lb_capture_archive_path(folder, files[0].rank), *to = lb_capture_archive_path(out, files[0].rank);
    assembly assembly = {.rank = files[0].rank, .world = 1, .whole = true};
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.overwrite = options.whole = true;
    lb_status status = old && to ? lb_writer_open(to, &options, &assembly.writer, err)
                                 : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        char *path = lb_ring_file_path(folder, files[i].rank, files[i].generation);
        status = path ? add_file(&assembly, path, false, err) : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
        free(path);
    }
    const uint32_t from_files = assembly.steps;
    if (status == LB_OK && from_files) status = add_archive(&assembly, old, err);
    if (status == LB_OK) status = add_tables(&assembly, old, why, err);
    if (status == LB_OK && from_files)
        status = lb_writer_close(assembly.writer, err);
    else
        lb_writer_abandon(assembly.writer);
    if (status == LB_OK) *steps += from_files;
    free(assembly.added);
    *whole &= assembly.whole;
    free(old), free(to);
    return status;
}

lb_status lb_ring_files_assemble(const char *folder, const char *out, const char *why, uint32_t *steps, bool *whole,
                                 lb_err *err)
{
    ring_file *files;
    uint32_t n;
    bool all = true;
    *steps = 0;
    if (whole) *whole = false;
    LB_TRY(list_files(folder, &files, &n, err));
    lb_status status = LB_OK;
    for (uint32_t first = 0, next; first < n && status == LB_OK; first = next) {
        for (next = first + 1; next < n && files[next].rank == files[first].rank;) next++;
        status = assemble_rank(folder, out, files + first, next - first, why, steps, &all, err);
    }
    free(files);
    if (whole) *whole = status == LB_OK && all;
    return status;
}
