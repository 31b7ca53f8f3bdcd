/* Gathering: chosen steps of chosen ranks, from the folders of several machines, in one folder.
 *
 * Each rank keeps an archive of its own. Bytes that several ranks hold (the weights of replicas) go into that of the
 * first alone, where a reader finds them for all of them: equal digests are equal bytes. */
#include "captures/capture_copy.h"
#include "captures/capture_reader.h"

#include "base/array.h"
#include "base/digest_set.h"
#include <lastbit/input.h>
#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdio.h>

enum { UNLOADED = 64 }; /* so many ranks are written before pages that were read are let go */

typedef struct gather_source {
    const char *path;
    lb_capture *chosen; /* of a folder: the ranks that are wanted */
    lb_capture *whole;  /* opened when one of them needs bytes that another rank holds */
} gather_source;

typedef struct gathered_row {
    int32_t rank;
    int64_t step;
    uint32_t source;
    lb_digest digest; /* of the program as it is stored */
} gathered_row;

typedef struct gathering {
    lb_gather_options options;
    lb_gathering *result;
    gather_source *sources;
    uint32_t n_sources;
    gathered_row *rows; /* by rank, step, source */
    uint64_t n_rows;
    int64_t *steps; /* that some rank has, ascending */
    uint64_t n_steps;
    lb_digest_set written; /* into any archive */
    /* At hand. */
    uint32_t source;
} gathering;

/* ---- what there is ----------------------------------------------------------------------------------------------- */

static bool wants_rank(void *context, int32_t rank)
{
    const gathering *g = (const gathering *)context;
    return !g->options.want_rank || g->options.want_rank(g->options.context, rank);
}

static bool wants(gathering *gathering, const lb_program_row *row)
{
    return wants_rank(gathering, row->rank) &&
           (!gathering->options.want_step || gathering->options.want_step(gathering->options.context, row->step));
}

static lb_status open_sources(gathering *gathering, const char *const *paths, lb_err *err)
{
    for (uint32_t s = 0; s < gathering->n_sources; s++) {
        gathering->sources[s].path = paths[s];
        LB_TRY(lb_capture_reader_open(paths[s], &(lb_rank_choice){wants_rank, gathering}, &gathering->sources[s].chosen,
                                      err));
        if (gathering->sources[s].chosen->foreign)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: files of other programs hold no steps to gather", paths[s]);
    }
    return LB_OK;
}

static int by_place(const void *a, const void *b)
{
    const gathered_row *x = (const gathered_row *)a, *y = (const gathered_row *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (x->source > y->source) - (x->source < y->source);
}

static lb_status list_source(gathering *gathering, uint32_t source, lb_err *err)
{
    const lb_capture *capture = gathering->sources[source].chosen;
    for (uint32_t number = 0; number < capture->n_rows; number++) {
        const lb_program_row *row = &capture->rows[number];
        if (!lb_capture_reader_is_youngest(capture, number)) continue;
        if (!wants(gathering, row)) continue;
        gathered_row *rows = lb_array_grow(gathering->rows, gathering->n_rows, sizeof *rows);
        if (rows) gathering->rows = rows;
        int64_t *steps = rows ? lb_array_grow(gathering->steps, gathering->n_steps, sizeof *steps) : NULL;
        if (!steps) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", capture->path);
        gathering->steps = steps;
        steps[gathering->n_steps++] = row->step;
        rows[gathering->n_rows++] = (gathered_row){
            row->rank, row->step, source, capture->members[row->member].archive->index.programs[row->program].digest};
    }
    return LB_OK;
}

/* Stored alike, or, where one of them is packed, the same when they are decoded. */
static lb_status compare_programs(gathering *gathering, const gathered_row *one, const gathered_row *other, bool *same,
                                  lb_err *err)
{
    const gathered_row *rows[2] = {one, other};
    void *bytes[2] = {NULL, NULL};
    size_t sizes[2] = {0, 0};
    lb_status status = LB_OK;
    *same = lb_digest_equal(one->digest, other->digest);
    for (int i = 0; i < 2 && status == LB_OK && !*same; i++) {
        const lb_program *program;
        lb_capture *from = gathering->sources[rows[i]->source].chosen;
        status = lb_capture_program(from, rows[i]->rank, rows[i]->step, &program, err);
        if (status == LB_OK) status = lb_program_encode(program, &bytes[i], &sizes[i], err);
        lb_capture_drop_program(from, rows[i]->rank, rows[i]->step);
    }
    if (status == LB_OK && !*same) *same = sizes[0] == sizes[1] && !memcmp(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
    return status;
}

/* Copies of one folder are as good as one; two recordings of one step are not. */
static lb_status unite_rows(gathering *gathering, lb_err *err)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < gathering->n_rows; i++) {
        const gathered_row *row = &gathering->rows[i], *before = n ? &gathering->rows[n - 1] : NULL;
        const bool again = before && before->rank == row->rank && before->step == row->step;
        bool same = true;
        if (again) LB_TRY(compare_programs(gathering, before, row, &same, err));
        if (!same)
            return lb_fail(err, LB_ERR_INVALID,
                           "step %" PRId64 " of rank %" PRId32 " is in %s and in %s, and they are not the same: "
                           "they are of two runs; name one of them, "
                           "or other ranks or steps",
                           row->step, row->rank, gathering->sources[before->source].path,
                           gathering->sources[row->source].path);
        if (!again) gathering->rows[n++] = *row;
    }
    gathering->n_rows = n;
    return LB_OK;
}

static lb_status nothing_wanted(const gathering *gathering, lb_err *err)
{
    for (uint32_t s = 0; s < gathering->n_sources; s++)
        if (gathering->sources[s].chosen->n_rows)
            return lb_fail(err, LB_ERR_NOT_FOUND,
                           "%s: none of the steps that are wanted; `lastbit ls` lists what there is",
                           gathering->sources[s].path);
    lb_capture *whole;
    LB_TRY(lb_capture_open(gathering->sources[0].path, &whole, err));
    const lb_status status =
        whole->n_rows
            ? lb_fail(err, LB_ERR_NOT_FOUND,
                      "%s: none of the ranks that are wanted; it has %" PRIu32 ", from %" PRId32 " to %" PRId32,
                      whole->path, whole->n_ranks, whole->ranks[0], whole->ranks[whole->n_ranks - 1])
            : lb_capture_lacks(whole, INT64_MIN, INT64_MAX, err);
    lb_capture_close(whole);
    return status;
}

static lb_status list_rows(gathering *gathering, lb_err *err)
{
    for (uint32_t s = 0; s < gathering->n_sources; s++) LB_TRY(list_source(gathering, s, err));
    if (!gathering->n_rows) return nothing_wanted(gathering, err);
    qsort(gathering->rows, gathering->n_rows, sizeof *gathering->rows, by_place);
    qsort(gathering->steps, gathering->n_steps, sizeof *gathering->steps, lb_by_i64);
    uint64_t n = 0;
    for (uint64_t i = 0; i < gathering->n_steps; i++)
        if (!n || gathering->steps[n - 1] != gathering->steps[i]) gathering->steps[n++] = gathering->steps[i];
    gathering->n_steps = n;
    return unite_rows(gathering, err);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

static bool passes_over(void *context, const lb_value *value)
{
    return lb_digest_set_has(&((gathering *)context)->written, value->blob);
}

/* A capture that was gathered itself holds bytes of one rank in the archive of another. */
static lb_status elsewhere(void *context, const lb_program *program, uint32_t value, const void **bytes, size_t *size,
                           lb_err *err)
{
    gathering *g = (gathering *)context;
    gather_source *source = &g->sources[g->source];
    if (!source->whole) LB_TRY(lb_capture_open(source->path, &source->whole, err));
    return lb_capture_blob(source->whole, program->rank, program->values[value].blob, bytes, size, err);
}

static lb_status note_written(gathering *gathering, const lb_program *program, const lb_writer *writer, lb_err *err)
{
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_digest blob = program->values[v].blob;
        if (!lb_digest_is_none(blob) && lb_writer_has_blob(writer, blob) &&
            !lb_digest_set_add(&gathering->written, blob))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    return LB_OK;
}

static lb_status gather_step(gathering *gathering, const gathered_row *row, lb_writer *writer, lb_err *err)
{
    lb_capture *from = gathering->sources[row->source].chosen;
    const lb_program *program;
    gathering->source = row->source;
    LB_TRY(lb_capture_program(from, row->rank, row->step, &program, err));
    lb_capture_copy copy = {
        .from = from, .to = writer, .passes_over = passes_over, .elsewhere = elsewhere, .context = gathering};
    LB_TRY(lb_capture_copy_values(&copy, program, err));
    LB_TRY(lb_writer_program(writer, program, err));
    LB_TRY(lb_writer_commit(writer, err));
    LB_TRY(note_written(gathering, program, writer, err));
    gathering->result->programs++;
    gathering->result->blobs += copy.blobs;
    gathering->result->blob_bytes += copy.bytes;
    gathering->result->missing += copy.missing;
    lb_capture_drop_program(from, row->rank, row->step);
    return LB_OK;
}

/* What is known of the rank: of every capture that has steps of it, a later one over an earlier. */
static lb_status gather_tables(const gathering *gathering, const gathered_row *rows, uint64_t n, lb_writer *writer,
                               lb_err *err)
{
    for (uint32_t s = 0; s < gathering->n_sources; s++) {
        bool has = false;
        for (uint64_t i = 0; i < n && !has; i++) has = rows[i].source == s;
        const char *name;
        for (uint32_t i = 0; has && (name = lb_capture_table_name(gathering->sources[s].chosen, rows->rank, i)); i++) {
            const char *json = lb_capture_table(gathering->sources[s].chosen, rows->rank, name);
            if (!json)
                return lb_fail(err, LB_ERR_CORRUPT,
                               "%s: rank %" PRId32 ": table '%s' is damaged: `lastbit verify` says where",
                               gathering->sources[s].path, rows->rank, name);
            LB_TRY(lb_writer_table(writer, name, json, err));
        }
    }
    return LB_OK;
}

static lb_status gather_rank(gathering *gathering, const char *folder, const gathered_row *rows, uint64_t n,
                             lb_err *err)
{
    lb_writer *writer;
    struct stat st;
    lb_writer_options how = LB_WRITER_OPTIONS_INIT;
    how.sync = LB_OUTPUT_SYNC_NEVER; /* the folder syncs what is in it */
    char *path = lb_capture_archive_path(folder, rows->rank);
    if (!path) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
    lb_status status = lb_writer_open(path, &how, &writer, err);
    if (status == LB_OK) {
        for (uint64_t i = 0; i < n && status == LB_OK; i++) {
            status = gather_step(gathering, &rows[i], writer, err);
            if (gathering->options.progress)
                gathering->options.progress(gathering->options.context, gathering->result->programs, gathering->n_rows);
        }
        if (status == LB_OK) status = gather_tables(gathering, rows, n, writer, err);
        if (status == LB_OK)
            status = lb_writer_close(writer, err);
        else
            lb_writer_abandon(writer);
    }
    if (status == LB_OK) status = lb_input_look(path, &st, err);
    if (status == LB_OK) gathering->result->file_bytes += (uint64_t)st.st_size;
    free(path);
    gathering->result->ranks++;
    for (uint32_t s = 0; s < gathering->n_sources && gathering->result->ranks % UNLOADED == 0; s++) {
        lb_capture_unload(gathering->sources[s].chosen);
        if (gathering->sources[s].whole) lb_capture_unload(gathering->sources[s].whole);
    }
    return status;
}

static void say_lacking(gathering *gathering, const gathered_row *rows, uint64_t n)
{
    uint64_t at = 0;
    for (uint64_t s = 0; s < gathering->n_steps; s++) {
        while (at < n && rows[at].step < gathering->steps[s]) at++;
        if (at < n && rows[at].step == gathering->steps[s]) continue;
        gathering->result->lacking++;
        if (gathering->options.lacks)
            gathering->options.lacks(gathering->options.context, rows->rank, gathering->steps[s]);
    }
}

static lb_status gather_ranks(gathering *gathering, const char *folder, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint64_t first = 0, next; first < gathering->n_rows && status == LB_OK; first = next) {
        for (next = first + 1; next < gathering->n_rows && gathering->rows[next].rank == gathering->rows[first].rank;)
            next++;
        status = gather_rank(gathering, folder, gathering->rows + first, next - first, err);
        if (status == LB_OK) say_lacking(gathering, gathering->rows + first, next - first);
    }
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bool is_archive(const char *name)
{
    lb_archive_name archive;
    return lb_capture_reader_parse_name(name, &archive);
}

static lb_status write_folder(gathering *gathering, const char *const *paths, const char *out, lb_err *err)
{
    lb_output_folder *folder;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    const char **inputs = (const char **)calloc(gathering->n_sources + 1u, sizeof *inputs);
    if (!inputs) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", out);
    memcpy(inputs, paths, gathering->n_sources * sizeof *inputs);
    how.inputs = inputs;
    how.replace = gathering->options.overwrite;
    lb_status status = lb_output_folder_open(out, &how, is_archive, &folder, err);
    free(inputs);
    LB_TRY(status);
    status = gather_ranks(gathering, lb_output_folder_path(folder), err);
    if (status == LB_OK) return lb_output_folder_close(folder, err);
    lb_output_folder_abandon(folder);
    return status;
}

lb_status lb_capture_gather(const char *const *paths, uint32_t n, const char *out, const lb_gather_options *options,
                            lb_gathering *result, lb_err *err)
{
    memset(result, 0, sizeof *result);
    gathering gathering = {.options = LB_GATHER_OPTIONS_INIT, .result = result, .n_sources = n};
    if (options) memcpy(&gathering.options, options, options->size < sizeof *options ? options->size : sizeof *options);
    if (!n) return lb_fail(err, LB_ERR_INVALID, "there is no capture to gather from");
    gathering.sources = (gather_source *)calloc(n, sizeof *gathering.sources);
    lb_status status =
        gathering.sources ? open_sources(&gathering, paths, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = list_rows(&gathering, err);
    if (status == LB_OK) status = write_folder(&gathering, paths, out, err);
    for (uint32_t s = 0; gathering.sources && s < n; s++) {
        lb_capture_close(gathering.sources[s].chosen);
        lb_capture_close(gathering.sources[s].whole);
    }
    lb_digest_set_release(&gathering.written);
    free(gathering.sources);
    free(gathering.rows);
    free(gathering.steps);
    return status;
}
