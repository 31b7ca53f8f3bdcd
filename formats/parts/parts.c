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

static kept_chunk *find_chunk(lb_parts *p, const char *loop, uint64_t number)
{
    LB_HASH_EACH(i, &p->by_number, chunk_hash(loop, number))
    if (p->chunks[i].number == number && !strcmp(p->chunks[i].loop, loop)) return &p->chunks[i];
    return NULL;
}

static lb_status keep_chunk(lb_parts *p, kept_chunk chunk, lb_err *err)
{
    kept_chunk *grown = lb_array_grow(p->chunks, p->n_chunks, sizeof *grown);
    if (grown) p->chunks = grown;
    if (!grown || !(chunk.loop = strdup(chunk.loop))) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    if (!lb_hash_add(&p->by_number, chunk_hash(chunk.loop, chunk.number), p->n_chunks)) {
        free(chunk.loop);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    }
    p->chunks[p->n_chunks++] = chunk;
    return LB_OK;
}

/* The chunks of a file. What is no chunk of this job is refused. */
static lb_status take_file(lb_parts *p, const char *path, lb_err *err)
{
    mapped_file file = {.path = strdup(path)};
    mapped_file *grown = lb_array_grow(p->files, p->n_files, sizeof *grown);
    if (grown) p->files = grown;
    const lb_status status = grown && file.path ? lb_input_map(path, &file.bytes, &file.size, err)
                                                : lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    if (status != LB_OK) {
        free(file.path);
        return status;
    }
    p->files[p->n_files++] = file;
    for (size_t at = 0; at < file.size;) {
        const char *body;
        size_t n;
        lb_part_record reader;
        lb_digest job;
        lb_part_chunk chunk = {0};
        LB_TRY(lb_part_file_next(file.bytes, file.size, &at, path, &body, &n, err));
        if (lb_part_file_is_job(body, n)) continue;
        LB_TRY(lb_part_file_read_chunk(body, n, path, (uint64_t)(body - file.bytes), &reader, &job, &chunk, err));
        if (!lb_digest_equal(job, p->digest))
            return lb_fail(
                err, LB_ERR_INVALID,
                "%s: is a part of another question, of files that have changed since, or of another build of lastbit",
                path);
        if (find_chunk(p, chunk.loop, chunk.number)) continue;
        const kept_chunk kept = {.loop = (char *)(uintptr_t)chunk.loop,
                                 .number = chunk.number,
                                 .body = body,
                                 .n = n,
                                 .file = p->n_files - 1};
        LB_TRY(keep_chunk(p, kept, err));
    }
    return LB_OK;
}

/* A folder of workers stands for its files. */
static lb_status take_folder(lb_parts *p, const char *path, lb_err *err)
{
    lb_input_names names = {0};
    lb_status status = lb_input_list(path, &names, err);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++) {
        const char *dot = strrchr(names.rows[i], '.');
        char inside[4600];
        if (!dot || strcmp(dot, ".part") != 0) continue;
        snprintf(inside, sizeof inside, "%s/%s", path, names.rows[i]);
        status = take_file(p, inside, err);
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
static lb_status deal_out(making *m, lb_err *err)
{
    const uint64_t n = m->loop->n;
    uint64_t total = 0, before = 0, unit = 0;
    m->starts = malloc((m->chunks + 1) * sizeof *m->starts);
    if (!m->starts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    for (uint64_t i = 0; i < n; i++) total += weight_of(m->loop, i);
    m->starts[0] = 0, m->starts[m->chunks] = n;
    for (uint64_t c = 1; c < m->chunks; c++) {
        const uint64_t wanted = total / m->chunks * c + total % m->chunks * c / m->chunks;
        const uint64_t least = m->starts[c - 1] + 1, most = n - (m->chunks - c);
        while (unit < n && before < wanted) before += weight_of(m->loop, unit++);
        m->starts[c] = unit < least ? least : unit < most ? unit : most;
    }
    return LB_OK;
}

static uint64_t first_of(const making *m, uint64_t chunk)
{
    return m->starts[chunk];
}

/* One unit behind the others: its status, and what it says or why it failed. */
static lb_status make_unit(const making *m, uint64_t unit, lb_part_record *body, lb_err *err)
{
    lb_part_record record = {0};
    lb_err why = LB_ERR_INIT;
    lb_status status = m->loop->work(m->loop->context, unit, &record, &why);
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
    const making *m = context;
    const uint64_t first = first_of(m, number);
    const lb_part_chunk chunk = {m->name, number, m->chunks, first, first_of(m, number + 1) - first};
    lb_part_record body = {0};
    lb_part_file_chunk(&body, m->parts->digest, &chunk);
    lb_status status = LB_OK;
    for (uint64_t i = 0; i < chunk.n && status == LB_OK; i++) status = make_unit(m, chunk.first + i, &body, err);
    /* A read that was refused may have become a record of less, which the other workers would believe. */
    if (status == LB_OK) status = m->parts->refusal(err);
    if (status == LB_OK) {
        lb_part_file_frame(frame, &body.written);
        if (frame->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a part");
    }
    lb_part_record_release(&body);
    m->parts->tally.made += status == LB_OK;
    return status;
}

static lb_status make_and_keep(const making *m, uint64_t number, lb_err *err)
{
    byte_buffer frame = {0};
    const char *body = NULL;
    size_t at = 0, n = 0;
    lb_status status = make_chunk((void *)(uintptr_t)m, number, &frame, err);
    if (status == LB_OK) status = lb_part_file_next(frame.bytes, frame.size, &at, m->name, &body, &n, err);
    if (status == LB_OK)
        status = keep_chunk(m->parts,
                            (kept_chunk){.loop = (char *)(uintptr_t)m->name,
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

static lb_status fold_unit(const making *m, uint64_t unit, lb_part_record *body, lb_err *err)
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
    LB_TRY(m->loop->fold(m->loop->context, unit, &record, err));
    return lb_part_record_end(&record, err);
}

static lb_status fold_body(const making *m, uint64_t number, const char *body, size_t n, const char *path,
                           uint64_t base, lb_err *err)
{
    lb_part_record reader;
    lb_digest job;
    lb_part_chunk chunk = {0};
    LB_TRY(lb_part_file_read_chunk(body, n, path, base, &reader, &job, &chunk, err));
    const uint64_t first = first_of(m, number);
    if (chunk.number != number || chunk.of != m->chunks || chunk.first != first ||
        chunk.n != first_of(m, number + 1) - first || strcmp(chunk.loop, m->name) != 0 ||
        !lb_digest_equal(job, m->parts->digest))
        return lb_fail(err, LB_ERR_CORRUPT, "%s: records of other units than %llu to %llu of %s", path,
                       (unsigned long long)first, (unsigned long long)first_of(m, number + 1), m->name);
    for (uint64_t i = 0; i < chunk.n; i++) LB_TRY(fold_unit(m, first + i, &reader, err));
    return lb_part_record_end(&reader, err);
}

/* Of another question: it was copied here, or is left of a folder that had this name. */
static bool is_of_another(const making *m, const char *body, size_t n, const char *path)
{
    lb_part_record reader;
    lb_digest job;
    lb_part_chunk chunk = {0};
    return lb_part_file_read_chunk(body, n, path, 0, &reader, &job, &chunk, NULL) == LB_OK &&
           !lb_digest_equal(job, m->parts->digest);
}

/* A chunk that another worker wrote; one that cannot be read, or is none of this question, is made again. */
static lb_status fold_from_folder(const making *m, uint64_t number, lb_err *err)
{
    const char *bytes = NULL, *body = NULL;
    size_t size = 0, at = 0, n = 0;
    byte_buffer frame = {0};
    lb_err why = LB_ERR_INIT;
    char *path = lb_part_folder_file(m->parts->folder, m->name, number);
    if (!path) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a name");
    lb_status status = lb_input_map(path, &bytes, &size, &why);
    if (status == LB_OK) status = lb_part_file_next(bytes, size, &at, path, &body, &n, &why);
    if (status == LB_OK && is_of_another(m, body, n, path)) status = LB_ERR_CORRUPT;
    if (status == LB_ERR_CORRUPT || status == LB_ERR_NOT_FOUND) {
        at = 0;
        status = make_chunk((void *)(uintptr_t)m, number, &frame, err);
        if (status == LB_OK) status = lb_part_file_next(frame.bytes, frame.size, &at, path, &body, &n, err);
    } else if (status != LB_OK) {
        lb_fail(err, status, "%s", why.message);
    }
    if (status == LB_OK) status = fold_body(m, number, body, n, path, frame.bytes ? 0 : (uint64_t)(body - bytes), err);
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

static lb_status each_here(const making *m, lb_err *err)
{
    lb_parts *p = m->parts;
    bool all = true, some = false;
    /* A loop that rests on another's folding no part could come to: that its records are not there is no lack. */
    for (uint64_t i = 0; i < m->chunks && !some; i++) some = find_chunk(p, m->name, i) != NULL;
    for (uint64_t i = 0; i < m->chunks; i++) {
        const bool known = find_chunk(p, m->name, i) != NULL, mine = !p->part || i % p->of == p->part - 1;
        if (p->progress) p->progress("parts", i, m->chunks);
        p->tally.taken += known, p->tally.lacking += !known && mine && p->from_files && !p->part && some;
        if (!known && mine) LB_TRY(make_and_keep(m, i, err));
        all &= known || mine;
    }
    if (!all)
        return lb_fail(err, LB_ERR_PARTIAL, "part %u of %u: the others have the rest of what is to be known", p->part,
                       p->of);
    for (uint64_t i = 0; i < m->chunks; i++) {
        const kept_chunk *c = find_chunk(p, m->name, i);
        const mapped_file *file = c->own ? NULL : &p->files[c->file];
        LB_TRY(fold_body(m, i, c->body, c->n, file ? file->path : m->name, file ? (uint64_t)(c->body - file->bytes) : 0,
                         err));
    }
    return LB_OK;
}

static lb_status each_in_folder(making *m, lb_err *err)
{
    lb_parts *p = m->parts;
    uint64_t made = 0;
    const lb_part_loop loop = {m->name, m->chunks, make_chunk, m, p->progress};
    LB_TRY(lb_part_folder_fill(p->folder, &loop, &made, err));
    p->tally.taken += m->chunks - made;
    for (uint64_t i = 0; i < m->chunks; i++) LB_TRY(fold_from_folder(m, i, err));
    return LB_OK;
}

lb_status lb_parts_each(lb_parts *p, const lb_parts_loop *loop, lb_err *err)
{
    if (!p) return each_alone(loop, err);
    making m = {p, loop, "", loop->n < MOST_CHUNKS ? loop->n : MOST_CHUNKS, NULL};
    snprintf(m.name, sizeof m.name, "%u-%.48s", p->loops++, loop->name);
    if (!loop->n) return LB_OK;
    lb_status status = deal_out(&m, err);
    if (status == LB_OK) status = p->folder ? each_in_folder(&m, err) : each_here(&m, err);
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

static lb_status take_files(lb_parts *p, const lb_parts_options *o, lb_err *err)
{
    p->from_files = o->n_files > 0;
    for (uint32_t i = 0; i < o->n_files; i++)
        LB_TRY(lb_input_is_folder(o->files[i]) ? take_folder(p, o->files[i], err) : take_file(p, o->files[i], err));
    return LB_OK;
}

lb_status lb_parts_open(const lb_parts_options *o, lb_parts **out, lb_err *err)
{
    *out = NULL;
    if (!o->job || !o->job->n) return lb_fail(err, LB_ERR_INVALID, "parts of no question");
    if (o->of ? o->part < 1 || o->part > o->of : o->part != 0)
        return lb_fail(err, LB_ERR_INVALID, "part %u of %u: expected 1 to %u", o->part, o->of, o->of);
    lb_parts *p = calloc(1, sizeof *p);
    if (!p) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts");
    p->part = o->part, p->of = o->of, p->progress = o->progress;
    p->refusal = o->refusal ? o->refusal : lb_input_refusal;
    lb_part_file_job(&p->job, o->job);
    lb_status status = p->job.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a command") : LB_OK;
    p->digest = status == LB_OK ? lb_part_file_digest(&p->job) : (lb_digest){0, 0};
    if (status == LB_OK) status = take_files(p, o, err);
    if (status == LB_OK && o->folder)
        status = lb_part_folder_open(o->folder, o->job, o->worker, o->workers, &p->folder, err);
    if (status == LB_OK)
        *out = p;
    else
        lb_parts_close(p, false);
    return status;
}

lb_status lb_parts_save(const lb_parts *p, const char *path, lb_err *err)
{
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    lb_output *out = NULL;
    how.replace = true;
    LB_TRY(lb_output_open(path, &how, &out, err));
    lb_output_write(out, p->job.bytes, p->job.size);
    for (uint32_t i = 0; i < p->n_chunks; i++)
        if (p->chunks[i].own) lb_output_write(out, p->chunks[i].own, p->chunks[i].own_size);
    return lb_output_close(out, err);
}

lb_parts_tally lb_parts_count(const lb_parts *p)
{
    return p->tally;
}

lb_status lb_parts_answer(lb_parts *p, const void *answer, size_t n, int code, bool *mine, lb_err *err)
{
    *mine = true;
    return p->folder ? lb_part_folder_answer(p->folder, answer, n, code, mine, err) : LB_OK;
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

void lb_parts_close(lb_parts *p, bool remove)
{
    if (!p) return;
    lb_part_folder_close(p->folder, remove);
    for (uint32_t i = 0; i < p->n_chunks; i++) free(p->chunks[i].loop), free(p->chunks[i].own);
    for (uint32_t i = 0; i < p->n_files; i++)
        munmap((void *)(uintptr_t)p->files[i].bytes, p->files[i].size), free(p->files[i].path);
    free(p->chunks), free(p->files);
    lb_hash_release(&p->by_number);
    buffer_release(&p->job);
    free(p);
}
