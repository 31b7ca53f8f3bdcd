/* Files of parts: frames, each checked by itself.
 *
 *     frame     "LBPART1\n", bytes of the body (u64, little-endian), XXH3-128 of the body (16 bytes), the body
 *     job       body: 0, words, folder, digest of the inputs
 *     chunk     body: 1, digest of the job, loop, chunk, chunks, first unit, units, then a status and a record each
 *
 * A file of lb_parts_save is a job and its chunks; a folder of workers has a file for the job, and one a chunk. */
#ifndef LB_PART_FILE_H
#define LB_PART_FILE_H

#include "parts/part_record.h"

#include <lastbit/parts.h>

/* A run of units of one loop: what is handed out, and what is written at a time. How long it is depends on how many
 * units there are, and on nothing else. */
typedef struct lb_part_chunk {
    const char *loop; /* "0-rank": its number and its name */
    uint64_t number, of, first, n;
} lb_part_chunk;

/* A frame around what was written into `body`, at the end of `out`. */
void lb_part_file_frame(byte_buffer *out, const byte_buffer *body);
void lb_part_file_job(byte_buffer *out, const lb_parts_job *job);
/* Of the body of one whole frame: of a job's it is lb_parts_job_digest. */
lb_digest lb_part_file_digest(const byte_buffer *frame);
/* The beginning of a chunk's body; records follow. */
void lb_part_file_chunk(lb_part_record *body, lb_digest job, const lb_part_chunk *chunk);

/* The next frame of `bytes` from *at on; *at moves behind it. LB_ERR_CORRUPT: it is none, is cut off or damaged. */
lb_status lb_part_file_next(const char *bytes, size_t size, size_t *at, const char *path, const char **body, size_t *n,
                            lb_err *err);
bool lb_part_file_is_job(const char *body, size_t n);
/* Strings of the job are copies. */
lb_status lb_part_file_read_job(const char *body, size_t n, const char *path, uint64_t base, lb_parts_job *job,
                                lb_err *err);
/* `reader` then stands at the first unit's status; texts lie in the body, which begins at `base` in the file. */
lb_status lb_part_file_read_chunk(const char *body, size_t n, const char *path, uint64_t base, lb_part_record *reader,
                                  lb_digest *job, lb_part_chunk *chunk, lb_err *err);

#endif
