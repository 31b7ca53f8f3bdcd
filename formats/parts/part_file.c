/* Frames of parts, written and read: see part_file.h. */
#include "parts/part_file.h"

#include <stdlib.h>

static const char mark[8] = "LBPART1\n";
enum { HEADER = sizeof mark + 8 + 16, KIND_JOB = 0, KIND_CHUNK = 1, MOST_WORDS = 1 << 16, LONGEST_LOOP = 95 };

void lb_part_file_frame(byte_buffer *out, const byte_buffer *body)
{
    buffer_add(out, mark, sizeof mark);
    buffer_add_u64(out, body->size);
    buffer_add_digest(out, lb_digest_bytes(body->bytes, body->size));
    buffer_add(out, body->bytes, body->size);
    out->failed |= body->failed;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void job_record(lb_part_record *record, lb_parts_job *job)
{
    const char **words = lb_part_record_rows(record, (void *)(uintptr_t)job->words, &job->n, sizeof *words);
    job->words = words;
    for (uint32_t i = 0; i < job->n; i++) lb_part_record_text(record, &words[i]);
    lb_part_record_text(record, &job->folder);
    lb_part_record_u64(record, &job->inputs.hi), lb_part_record_u64(record, &job->inputs.lo);
}

static void job_body(lb_part_record *record, const lb_parts_job *job)
{
    uint32_t kind = KIND_JOB;
    lb_parts_job same = *job;
    lb_part_record_u32(record, &kind);
    job_record(record, &same);
}

void lb_part_file_job(byte_buffer *out, const lb_parts_job *job)
{
    lb_part_record body = {0};
    job_body(&body, job);
    lb_part_file_frame(out, &body.written);
    lb_part_record_release(&body);
}

lb_digest lb_part_file_digest(const byte_buffer *frame)
{
    return digest_from_bytes(frame->bytes + sizeof mark + 8);
}

lb_digest lb_parts_job_digest(const lb_parts_job *job)
{
    lb_part_record body = {0};
    job_body(&body, job);
    const lb_digest digest =
        body.written.failed ? (lb_digest){0, 0} : lb_digest_bytes(body.written.bytes, body.written.size);
    lb_part_record_release(&body);
    return digest;
}

bool lb_part_file_is_job(const char *body, size_t n)
{
    return n && *body == KIND_JOB;
}

/* Copies of what lies in the body; false: out of memory. */
static bool keep_texts(lb_parts_job *job)
{
    bool kept = true;
    const char **words = (const char **)(uintptr_t)job->words;
    for (uint32_t i = 0; i < job->n; i++) kept &= (words[i] = words[i] ? strdup(words[i]) : strdup("")) != NULL;
    kept &= (job->folder = strdup(job->folder ? job->folder : "")) != NULL;
    return kept;
}

void lb_parts_job_release(lb_parts_job *job)
{
    for (uint32_t i = 0; i < job->n; i++) free((void *)(uintptr_t)job->words[i]);
    free((void *)(uintptr_t)job->words), free((void *)(uintptr_t)job->folder);
    *job = (lb_parts_job){0};
}

lb_status lb_part_file_read_job(const char *body, size_t n, const char *path, uint64_t base, lb_parts_job *job,
                                lb_err *err)
{
    uint32_t kind = KIND_JOB;
    lb_part_record record = lb_part_record_reader(body, n, path, base, err);
    *job = (lb_parts_job){0};
    lb_part_record_word(&record, &kind, KIND_JOB);
    job_record(&record, job);
    const lb_status status = lb_part_record_end(&record, err);
    if (status == LB_OK && job->n && job->n < MOST_WORDS)
        return keep_texts(job) ? LB_OK : (lb_parts_job_release(job), lb_fail(err, LB_ERR_NOMEM, "out of memory"));
    free((void *)(uintptr_t)job->words);
    *job = (lb_parts_job){0};
    return status == LB_OK ? lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: a part without a command", path) : status;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static void chunk_record(lb_part_record *record, lb_digest *job, lb_part_chunk *chunk)
{
    uint32_t kind = KIND_CHUNK;
    lb_part_record_word(record, &kind, KIND_CHUNK);
    lb_part_record_u64(record, &job->hi), lb_part_record_u64(record, &job->lo);
    lb_part_record_name(record, &chunk->loop);
    lb_part_record_u64(record, &chunk->number), lb_part_record_u64(record, &chunk->of);
    lb_part_record_u64(record, &chunk->first), lb_part_record_u64(record, &chunk->n);
}

void lb_part_file_chunk(lb_part_record *body, lb_digest job, const lb_part_chunk *chunk)
{
    lb_part_chunk same = *chunk;
    chunk_record(body, &job, &same);
}

lb_status lb_part_file_read_chunk(const char *body, size_t n, const char *path, uint64_t base, lb_part_record *reader,
                                  lb_digest *job, lb_part_chunk *chunk, lb_err *err)
{
    *reader = lb_part_record_reader(body, n, path, base, err);
    chunk_record(reader, job, chunk);
    if (chunk->number >= chunk->of)
        lb_part_record_refuse(reader, "chunk", "%llu of %llu", (unsigned long long)chunk->number,
                              (unsigned long long)chunk->of);
    if (strlen(chunk->loop ? chunk->loop : "") > LONGEST_LOOP)
        lb_part_record_refuse(reader, "loop", "a name of more than %d bytes", LONGEST_LOOP);
    return reader->status;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

lb_status lb_part_file_next(const char *bytes, size_t size, size_t *at, const char *path, const char **body, size_t *n,
                            lb_err *err)
{
    uint64_t claimed = 0;
    const size_t left = size - *at;
    if (left < HEADER || memcmp(bytes + *at, mark, sizeof mark) != 0)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: no part of lastbit's (or of another version)", path, *at);
    memcpy(&claimed, bytes + *at + sizeof mark, sizeof claimed);
    if (claimed > left - HEADER)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: cut off: %llu bytes were to follow, %zu do", path, *at,
                       (unsigned long long)claimed, left - HEADER);
    *body = bytes + *at + HEADER, *n = (size_t)claimed;
    if (!lb_digest_equal(digest_from_bytes(bytes + *at + sizeof mark + 8), lb_digest_bytes(*body, *n)))
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %zu: its bytes contradict its digest", path, *at);
    *at += HEADER + (size_t)claimed;
    return LB_OK;
}
