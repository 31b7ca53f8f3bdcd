/* Work in parts: the loop, and where its records come from. See lastbit/parts.h. */
#include "parts/parts_each.h"
#include "parts/part_file.h"
#include "parts/part_folder.h"

#include "base/array.h"
#include "base/hash.h"

#include <lastbit/input.h>
#include <lastbit/output.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* No loop is cut finer: a folder has as many files, and a thousand workers each their chunk. */
enum { MOST_CHUNKS = 1024 };

/* A chunk whose records are here: in a file that is mapped, or made by this process. */
typedef struct kept_chunk {
    char *loop;
    uint64_t number;
    const char *body;
    size_t n;
    char *own; /* the frame, where it was made here; NULL: in a file */
    size_t own_size;
    uint32_t file; /* of files[], where it is in one */
} kept_chunk;

typedef struct mapped_file {
    char *path;
    const char *bytes;
    size_t size;
} mapped_file;

struct lb_parts {
    byte_buffer job; /* its frame */
    lb_digest digest;
    uint32_t part, of;
    bool from_files;
    lb_part_folder *folder;
    mapped_file *files;
    uint32_t n_files;
    kept_chunk *chunks;
    uint32_t n_chunks;
    lb_hash by_number; /* of chunks[]: a file may hold any number of them */
    uint32_t loops;    /* that were begun: their number tells loops of one name apart */
    lb_parts_tally tally;
    void (*progress)(const char *what, uint64_t done, uint64_t total);
    lb_status (*refusal)(lb_err *err);
};

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static bool is_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

bool lb_parts_job_equal(const lb_parts_job *a, const lb_parts_job *b)
{
    bool equal = a->n == b->n && lb_digest_equal(a->inputs, b->inputs) && is_text(a->folder, b->folder);
    for (uint32_t i = 0; i < a->n && equal; i++) equal = is_text(a->words[i], b->words[i]);
    return equal;
}

lb_status lb_parts_job_read(const char *path, lb_parts_job *job, lb_err *err)
{
    char inside[4200];
    const char *bytes, *body;
    size_t size, at = 0, n;
    snprintf(inside, sizeof inside, "%s%s", path, lb_input_is_folder(path) ? "/job" : "");
    LB_TRY(lb_input_map(inside, &bytes, &size, err));
    lb_status status = lb_part_file_next(bytes, size, &at, inside, &body, &n, err);
    if (status == LB_OK && !lb_part_file_is_job(body, n))
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: records without the command that they are of", inside);
    if (status == LB_OK) status = lb_part_file_read_job(body, n, inside, (uint64_t)(body - bytes), job, err);
    munmap((void *)(uintptr_t)bytes, size);
    return status;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static uint64_t chunk_hash(const char *loop, uint64_t number)
{
    return lb_digest_leaf(loop, strlen(loop), number);
}

static kept_chunk *find_chunk(lb_parts *parts, const char *loop, uint64_t number)
{
    LB_HASH_EACH(i, &parts->by_number, chunk_hash(loop, number))
    if (parts->chunks[i].number == number && !strcmp(parts->chunks[i].loop, loop)) return &parts->chunks[i];
    return NULL;
}

static lb_status keep_chunk(lb_parts *parts, kept_chunk chunk, lb_err *err)
{
    kept_chunk *grown = lb_array_grow(parts->chunks, parts->n_chunks, sizeof *grown);
    if (grown) parts->chunks = grown;
    if (!grown || !(chunk.loop = strdup(chunk.loop))) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    if (!lb_hash_add(&parts->by_number, chunk_hash(chunk.loop, chunk.number), parts->n_chunks)) {
        free(chunk.loop);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    }
    parts->chunks[parts->n_chunks++] = chunk;
    return LB_OK;
}

/* The chunks of a file. What is no chunk of this job is refused. */
static lb_status take_file(lb_parts *parts, const char *path, lb_err *err)
{
    mapped_file file = {.path = strdup(path)};
    mapped_file *grown = lb_array_grow(parts->files, parts->n_files, sizeof *grown);
    if (grown) parts->files = grown;
    const lb_status status = grown && file.path ? lb_input_map(path, &file.bytes, &file.size, err)
                                                : lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    if (status != LB_OK) {
        free(file.path);
        return status;
    }
    parts->files[parts->n_files++] = file;
    for (size_t at = 0; at < file.size;) {
        const char *body;
        size_t n;
        lb_part_record reader;
        lb_digest job;
        lb_part_chunk chunk = {0};
        LB_TRY(lb_part_file_next(file.bytes, file.size, &at, path, &body, &n, err));
        if (lb_part_file_is_job(body, n)) continue;
        LB_TRY(lb_part_file_read_chunk(body, n, path, (uint64_t)(body - file.bytes), &reader, &job, &chunk, err));
        if (!lb_digest_equal(job, parts->digest))
            return lb_fail(
                err, LB_ERR_INVALID,
                "%s: is a part of another question, of files that have changed since, or of another build of lastbit",
                path);
        if (find_chunk(parts, chunk.loop, chunk.number)) continue;
        const kept_chunk kept = {.loop = (char *)(uintptr_t)chunk.loop,
                                 .number = chunk.number,
                                 .body = body,
                                 .n = n,
                                 .file = parts->n_files - 1};
        LB_TRY(keep_chunk(parts, kept, err));
    }
    return LB_OK;
}

/* A folder of workers stands for its files. */
static lb_status take_folder(lb_parts *parts, const char *path, lb_err *err)
{
    lb_input_names names = {0};
    lb_status status = lb_input_list(path, &names, err);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++) {
        const char *dot = strrchr(names.rows[i], '.');
        char inside[4600];
        if (!dot || strcmp(dot, ".part") != 0) continue;
        snprintf(inside, sizeof inside, "%s/%s", path, names.rows[i]);
        status = take_file(parts, inside, err);
    }
    lb_input_names_release(&names);
    return status;
}

/* ---- making records ---------------------------------------------------------------------------------------------- */

typedef struct making {
    lb_parts *parts;
    const lb_parts_loop *loop;
    char name[96];
    uint64_t chunks;
    uint64_t *starts; /* per chunk its first unit, and where the last one ends */
} making;

static uint64_t weight_of(const lb_parts_loop *loop, uint64_t unit)
{
    return 1 + (loop->weigh ? loop->weigh(loop->context, unit) : 0);
}

/* Chunks weigh alike, as far as each has a unit at least. */
static lb_status deal_out(making *making, lb_err *err)
{
    const uint64_t n = making->loop->n;
    uint64_t total = 0, before = 0, unit = 0;
    making->starts = malloc((making->chunks + 1) * sizeof *making->starts);
    if (!making->starts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    for (uint64_t i = 0; i < n; i++) total += weight_of(making->loop, i);
    making->starts[0] = 0, making->starts[making->chunks] = n;
    for (uint64_t c = 1; c < making->chunks; c++) {
        const uint64_t wanted = total / making->chunks * c + total % making->chunks * c / making->chunks;
        const uint64_t least = making->starts[c - 1] + 1, most = n - (making->chunks - c);
        while (unit < n && before < wanted) before += weight_of(making->loop, unit++);
        making->starts[c] = unit < least ? least : unit < most ? unit : most;
    }
    return LB_OK;
}

static uint64_t first_of(const making *making, uint64_t chunk)
{
    return making->starts[chunk];
}

/* One unit behind the others: its status, and what it says or why it failed. */
static lb_status make_unit(const making *making, uint64_t unit, lb_part_record *body, lb_err *err)
{
    lb_part_record record = {0};
    lb_err why = LB_ERR_INIT;
    lb_status status = making->loop->work(making->loop->context, unit, &record, &why);
    if (status == LB_OK) status = lb_part_record_end(&record, &why);
    int32_t said = status;
    const char *message = why.message;
    const void *bytes = record.written.bytes;
    size_t n = record.written.size;
    if (lb_is_refusal(status) || status == LB_ERR_PARTIAL) {
        lb_part_record_release(&record);
        return lb_fail(err, status, "%s", why.message);
    }
    lb_part_record_i32(body, &said);
    if (status == LB_OK)
        lb_part_record_bytes(body, &bytes, &n);
    else
        lb_part_record_text(body, &message);
    lb_part_record_release(&record);
    return LB_OK;
}

static lb_status make_chunk(void *context, uint64_t number, byte_buffer *frame, lb_err *err)
{
    const making *making = context;
    const uint64_t first = first_of(making, number);
    const lb_part_chunk chunk = {making->name, number, making->chunks, first, first_of(making, number + 1) - first};
    lb_part_record body = {0};
    lb_part_file_chunk(&body, making->parts->digest, &chunk);
    lb_status status = LB_OK;
    for (uint64_t i = 0; i < chunk.n && status == LB_OK; i++) status = make_unit(making, chunk.first + i, &body, err);
    /* A read that was refused may have become a record of less, which the other workers would believe. */
    if (status == LB_OK) status = making->parts->refusal(err);
    if (status == LB_OK) {
        lb_part_file_frame(frame, &body.written);
        if (frame->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a part");
    }
    lb_part_record_release(&body);
    making->parts->tally.made += status == LB_OK;
    return status;
}

static lb_status make_and_keep(const making *making, uint64_t number, lb_err *err)
{
    byte_buffer frame = {0};
    const char *body = NULL;
    size_t at = 0, n = 0;
    lb_status status = make_chunk((void *)(uintptr_t)making, number, &frame, err);
    if (status == LB_OK) status = lb_part_file_next(frame.bytes, frame.size, &at, making->name, &body, &n, err);
    if (status == LB_OK)
        status = keep_chunk(making->parts,
                            (kept_chunk){.loop = (char *)(uintptr_t)making->name,
                                         .number = number,
                                         .body = body,
                                         .n = n,
                                         .own = frame.bytes,
                                         .own_size = frame.size},
                            err);
    if (status != LB_OK) buffer_release(&frame);
    return status;
}

/* ---- folding ----------------------------------------------------------------------------------------------------- */

/* A failure that a record may be: make_unit keeps no other. */
static bool is_kept(int32_t said)
{
    return said < LB_OK && said > LB_ERR_PARTIAL && !lb_is_refusal((lb_status)said);
}

static lb_status fold_unit(const making *making, uint64_t unit, lb_part_record *body, lb_err *err)
{
    int32_t said = 0;
    lb_part_record_i32(body, &said);
    if (said != LB_OK && !is_kept(said)) lb_part_record_refuse(body, "status", "%d is none of a record", said);
    if (body->status == LB_OK && said != LB_OK) {
        const char *message = NULL;
        lb_part_record_name(body, &message);
        if (!*message) lb_part_record_refuse(body, "message", "a failure without a reason");
        return body->status == LB_OK ? lb_fail(err, (lb_status)said, "%s", message) : body->status;
    }
    const void *bytes;
    size_t n;
    lb_part_record_bytes(body, &bytes, &n);
    if (body->status != LB_OK) return body->status;
    lb_part_record record =
        lb_part_record_reader(bytes, n, body->cursor.source,
                              body->cursor.base + (uint64_t)((const uint8_t *)bytes - body->cursor.start), err);
    LB_TRY(making->loop->fold(making->loop->context, unit, &record, err));
    return lb_part_record_end(&record, err);
}

static lb_status fold_body(const making *making, uint64_t number, const char *body, size_t n, const char *path,
                           uint64_t base, lb_err *err)
{
    lb_part_record reader;
    lb_digest job;
    lb_part_chunk chunk = {0};
    LB_TRY(lb_part_file_read_chunk(body, n, path, base, &reader, &job, &chunk, err));
    const uint64_t first = first_of(making, number);
    if (chunk.number != number || chunk.of != making->chunks || chunk.first != first ||
        chunk.n != first_of(making, number + 1) - first || strcmp(chunk.loop, making->name) != 0 ||
        !lb_digest_equal(job, making->parts->digest))
        return lb_fail(err, LB_ERR_CORRUPT, "%s: records of other units than %llu to %llu of %s", path,
                       (unsigned long long)first, (unsigned long long)first_of(making, number + 1), making->name);
    for (uint64_t i = 0; i < chunk.n; i++) LB_TRY(fold_unit(making, first + i, &reader, err));
    return lb_part_record_end(&reader, err);
}

/* Of another question: it was copied here, or is left of a folder that had this name. */
static bool is_of_another(const making *making, const char *body, size_t n, const char *path)
{
    lb_part_record reader;
    lb_digest job;
    lb_part_chunk chunk = {0};
    return lb_part_file_read_chunk(body, n, path, 0, &reader, &job, &chunk, NULL) == LB_OK &&
           !lb_digest_equal(job, making->parts->digest);
}

/* A chunk that another worker wrote; one that cannot be read, or is none of this question, is made again. */
static lb_status fold_from_folder(const making *making, uint64_t number, lb_err *err)
{
    const char *bytes = NULL, *body = NULL;
    size_t size = 0, at = 0, n = 0;
    byte_buffer frame = {0};
    lb_err why = LB_ERR_INIT;
    char *path = lb_part_folder_file(making->parts->folder, making->name, number);
    if (!path) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a name");
    lb_status status = lb_input_map(path, &bytes, &size, &why);
    if (status == LB_OK) status = lb_part_file_next(bytes, size, &at, path, &body, &n, &why);
    if (status == LB_OK && is_of_another(making, body, n, path)) status = LB_ERR_CORRUPT;
    if (status == LB_ERR_CORRUPT || status == LB_ERR_NOT_FOUND) {
        at = 0;
        status = make_chunk((void *)(uintptr_t)making, number, &frame, err);
        if (status == LB_OK) status = lb_part_file_next(frame.bytes, frame.size, &at, path, &body, &n, err);
    } else if (status != LB_OK) {
        lb_fail(err, status, "%s", why.message);
    }
    if (status == LB_OK)
        status = fold_body(making, number, body, n, path, frame.bytes ? 0 : (uint64_t)(body - bytes), err);
    if (bytes) munmap((void *)(uintptr_t)bytes, size);
    buffer_release(&frame), free(path);
    return status;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* All of it here: no record outlives its unit. */
static lb_status each_alone(const lb_parts_loop *loop, lb_err *err)
{
    for (uint64_t i = 0; i < loop->n; i++) {
        lb_part_record written = {0};
        lb_status status = loop->work(loop->context, i, &written, err);
        if (status == LB_OK) status = lb_part_record_end(&written, err);
        if (status == LB_OK) {
            lb_part_record record =
                lb_part_record_reader(written.written.bytes, written.written.size, loop->name, 0, err);
            status = loop->fold(loop->context, i, &record, err);
            if (status == LB_OK) status = lb_part_record_end(&record, err);
        }
        lb_part_record_release(&written);
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status each_here(const making *making, lb_err *err)
{
    lb_parts *parts = making->parts;
    bool all = true, some = false;
    /* A loop that rests on another's folding no part could come to: that its records are not there is no lack. */
    for (uint64_t i = 0; i < making->chunks && !some; i++) some = find_chunk(parts, making->name, i) != NULL;
    for (uint64_t i = 0; i < making->chunks; i++) {
        const bool known = find_chunk(parts, making->name, i) != NULL,
                   mine = !parts->part || i % parts->of == parts->part - 1;
        if (parts->progress) parts->progress("parts", i, making->chunks);
        parts->tally.taken += known,
            parts->tally.lacking += !known && mine && parts->from_files && !parts->part && some;
        if (!known && mine) LB_TRY(make_and_keep(making, i, err));
        all &= known || mine;
    }
    if (!all)
        return lb_fail(err, LB_ERR_PARTIAL, "part %u of %u: the others have the rest of what is to be known",
                       parts->part, parts->of);
    for (uint64_t i = 0; i < making->chunks; i++) {
        const kept_chunk *c = find_chunk(parts, making->name, i);
        const mapped_file *file = c->own ? NULL : &parts->files[c->file];
        LB_TRY(fold_body(making, i, c->body, c->n, file ? file->path : making->name,
                         file ? (uint64_t)(c->body - file->bytes) : 0, err));
    }
    return LB_OK;
}

static lb_status each_in_folder(making *making, lb_err *err)
{
    lb_parts *parts = making->parts;
    uint64_t made = 0;
    const lb_part_loop loop = {making->name, making->chunks, make_chunk, making, parts->progress};
    LB_TRY(lb_part_folder_fill(parts->folder, &loop, &made, err));
    parts->tally.taken += making->chunks - made;
    for (uint64_t i = 0; i < making->chunks; i++) LB_TRY(fold_from_folder(making, i, err));
    return LB_OK;
}

lb_status lb_parts_each(lb_parts *parts, const lb_parts_loop *loop, lb_err *err)
{
    if (!parts) return each_alone(loop, err);
    making m = {parts, loop, "", loop->n < MOST_CHUNKS ? loop->n : MOST_CHUNKS, NULL};
    snprintf(m.name, sizeof m.name, "%u-%.48s", parts->loops++, loop->name);
    if (!loop->n) return LB_OK;
    lb_status status = deal_out(&m, err);
    if (status == LB_OK) status = parts->folder ? each_in_folder(&m, err) : each_here(&m, err);
    free(m.starts);
    return status;
}

/* ---- one unit ---------------------------------------------------------------------------------------------------- */

typedef struct once {
    lb_status (*work)(void *context, char **bytes, size_t *n, lb_err *err);
    void *context;
    char *bytes;
    size_t n;
} once;

static lb_status work_once(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)unit;
    const once *o = context;
    char *bytes = NULL;
    size_t n = 0;
    const lb_status status = o->work(o->context, &bytes, &n, err);
    if (status == LB_OK) lb_part_record_bytes(record, (const void *[]){bytes}, &n);
    free(bytes);
    return status;
}

static lb_status fold_once(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)unit;
    once *o = context;
    const void *bytes;
    lb_part_record_bytes(record, &bytes, &o->n);
    o->bytes = malloc(o->n + 1);
    if (!o->bytes) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu bytes of a part", o->n);
    memcpy(o->bytes, bytes, o->n);
    return record->status;
}

lb_status lb_parts_once(lb_parts *parts, const char *name,
                        lb_status (*work)(void *context, char **bytes, size_t *n, lb_err *err), void *context,
                        char **bytes, size_t *n, lb_err *err)
{
    once o = {work, context, NULL, 0};
    const lb_parts_loop loop = {name, 1, work_once, fold_once, &o};
    const lb_status status = lb_parts_each(parts, &loop, err);
    if (status == LB_OK)
        *bytes = o.bytes, *n = o.n;
    else
        free(o.bytes);
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static lb_status take_files(lb_parts *parts, const lb_parts_options *options, lb_err *err)
{
    parts->from_files = options->n_files > 0;
    for (uint32_t i = 0; i < options->n_files; i++)
        LB_TRY(lb_input_is_folder(options->files[i]) ? take_folder(parts, options->files[i], err)
                                                     : take_file(parts, options->files[i], err));
    return LB_OK;
}

lb_status lb_parts_open(const lb_parts_options *options, lb_parts **out, lb_err *err)
{
    *out = NULL;
    if (!options->job || !options->job->n) return lb_fail(err, LB_ERR_INVALID, "parts of no question");
    if (options->of ? options->part < 1 || options->part > options->of : options->part != 0)
        return lb_fail(err, LB_ERR_INVALID, "part %u of %u: expected 1 to %u", options->part, options->of, options->of);
    lb_parts *parts = calloc(1, sizeof *parts);
    if (!parts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    parts->part = options->part, parts->of = options->of, parts->progress = options->progress;
    parts->refusal = options->refusal ? options->refusal : lb_input_refusal;
    lb_part_file_job(&parts->job, options->job);
    lb_status status = parts->job.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a command") : LB_OK;
    parts->digest = status == LB_OK ? lb_part_file_digest(&parts->job) : (lb_digest){0, 0};
    if (status == LB_OK) status = take_files(parts, options, err);
    if (status == LB_OK && options->folder)
        status =
            lb_part_folder_open(options->folder, options->job, options->worker, options->workers, &parts->folder, err);
    if (status == LB_OK)
        *out = parts;
    else
        lb_parts_close(parts, false);
    return status;
}

lb_status lb_parts_save(const lb_parts *parts, const char *path, lb_err *err)
{
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    lb_output *out = NULL;
    how.replace = true;
    LB_TRY(lb_output_open(path, &how, &out, err));
    lb_output_write(out, parts->job.bytes, parts->job.size);
    for (uint32_t i = 0; i < parts->n_chunks; i++)
        if (parts->chunks[i].own) lb_output_write(out, parts->chunks[i].own, parts->chunks[i].own_size);
    return lb_output_close(out, err);
}

lb_parts_tally lb_parts_count(const lb_parts *parts)
{
    return parts->tally;
}

lb_status lb_parts_answer(lb_parts *parts, const void *answer, size_t n, int code, bool *mine, lb_err *err)
{
    *mine = true;
    return parts->folder ? lb_part_folder_answer(parts->folder, answer, n, code, mine, err) : LB_OK;
}

lb_status lb_parts_answer_read(const char *folder, void **answer, size_t *n, int *code, lb_err *err)
{
    char path[4200];
    const char *bytes, *body;
    const void *kept = NULL;
    size_t size, at = 0, length;
    uint32_t exit_code = 0;
    snprintf(path, sizeof path, "%s/answer", folder);
    LB_TRY(lb_input_map(path, &bytes, &size, err));
    lb_status status = lb_part_file_next(bytes, size, &at, path, &body, &length, err);
    if (status == LB_OK) {
        lb_part_record r = lb_part_record_reader(body, length, path, (uint64_t)(body - bytes), err);
        lb_part_record_word(&r, &exit_code, 255);
        lb_part_record_bytes(&r, &kept, n);
        status = lb_part_record_end(&r, err);
    }
    *answer = status == LB_OK ? malloc(*n + 1) : NULL;
    if (status == LB_OK && !*answer) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for an answer");
    if (status == LB_OK) memcpy(*answer, kept, *n), *code = (int)exit_code;
    munmap((void *)(uintptr_t)bytes, size);
    return status;
}

void lb_parts_close(lb_parts *parts, bool remove)
{
    if (!parts) return;
    lb_part_folder_close(parts->folder, remove);
    for (uint32_t i = 0; i < parts->n_chunks; i++) free(parts->chunks[i].loop), free(parts->chunks[i].own);
    for (uint32_t i = 0; i < parts->n_files; i++)
        munmap((void *)(uintptr_t)parts->files[i].bytes, parts->files[i].size), free(parts->files[i].path);
    free(parts->chunks), free(parts->files);
    lb_hash_release(&parts->by_number);
    buffer_release(&parts->job);
    free(parts);
}
