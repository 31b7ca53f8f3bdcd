/* A folder in which workers meet. They write files that appear whole, and read them: no lock, no rename over anything
 * that matters, nothing that needs two of them to be there at once.
 *
 *     job                   what is asked; the first who comes writes it
 *     LOOP-CHUNK.part       a chunk that is done
 *     LOOP-CHUNK.claim      a worker is at it: a hint, so that few chunks are made twice. Its owner touches it every
 *                           second; one that is not touched for LB_PART_PATIENCE seconds, or whose process is gone
 *                           from this host, is open to all. Where its time is yet to come, for a clock was ahead, the
 *                           seconds are those in which a waiting worker saw it unchanged
 *     HOST-PID.beat         touched by a worker to read the file system's own clock, whatever the hosts' clocks say
 *     answer, told          the answer, and that a worker gives it
 *     left-N                worker N has come to its end; where it comes again, that is another start */
#ifndef LB_PART_FOLDER_H
#define LB_PART_FOLDER_H

#include "parts/part_file.h"

enum { LB_PART_PATIENCE = 10 };

typedef struct lb_part_folder lb_part_folder;

/* Makes it where it is not there. LB_ERR_INVALID: it is another job's. */
lb_status lb_part_folder_open(const char *path, const lb_parts_job *job, uint32_t worker, uint32_t workers,
                              lb_part_folder **folder, lb_err *err);
/* Work that is cut into chunks. */
typedef struct lb_part_loop {
    const char *name;
    uint64_t chunks;
    lb_status (*make)(void *context, uint64_t chunk, byte_buffer *frame, lb_err *err); /* fills `frame` */
    void *context;
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
} lb_part_loop;
/* Returns when all chunks of the loop are there, made by any worker; *made counts those that this worker did.
 * LB_ERR_PARTIAL: the folder is gone, for the others have given the answer. */
lb_status lb_part_folder_fill(lb_part_folder *folder, const lb_part_loop *loop, uint64_t *made, lb_err *err);
/* The file of a chunk; malloc'ed, NULL when out of memory. */
char *lb_part_folder_file(const lb_part_folder *folder, const char *loop, uint64_t chunk);
lb_status lb_part_folder_answer(lb_part_folder *folder, const void *answer, size_t n, int code, bool *mine,
                                lb_err *err);
void lb_part_folder_close(lb_part_folder *folder, bool remove);

#endif
