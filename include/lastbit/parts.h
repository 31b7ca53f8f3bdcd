/* Work in parts: one question, answered by any number of workers, with the same bytes for any number.
 *
 * Simplest use:
 *
 *     const lb_parts_job job = {(const char *const[]){"verify", path}, 2, "/runs", {0, 0}};
 *     lb_parts_options how = LB_PARTS_OPTIONS_INIT;
 *     lb_parts *parts;
 *     how.job = &job, how.part = 3, how.of = 8;
 *     LB_TRY(lb_parts_open(&how, &parts, err));
 *     // options.parts = parts, and the engine's call ends with LB_ERR_PARTIAL: the other parts have the rest
 *     LB_TRY(lb_parts_save(parts, "part-3", err));
 *     lb_parts_close(parts, false);
 *
 * An engine cuts its work into units by what they are (a rank, a step, a tensor), never by how many workers there are.
 * A unit gives a record, which depends on the unit alone; records are folded in the order of the units. So the answer
 * is a function of the question. It does not matter which worker made a record, and a record that is there is not made
 * again.
 *
 * Three ways to share the work out:
 *
 *   a part     makes every N-th record and goes no further; lb_parts_save writes them to a file
 *   files      records are taken from such files; what lacks is made here
 *   a folder   that all workers see: each takes what no other has begun, and waits for what others have. All of them go
 *              through to the end with the same answer, and lb_parts_answer says who is to give it. Workers may begin
 *              late, and be killed: what one had begun is taken over. They meet in files alone, which appear whole by
 *              rename; no lock is needed, for a record that was made twice is the same twice.
 */
#ifndef LASTBIT_PARTS_H
#define LASTBIT_PARTS_H

#include <lastbit/digest.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lb_parts lb_parts;

/* What is asked: records of another job are refused. Strings live as long as their owner says. */
typedef struct lb_parts_job {
    const char *const *words; /* "diff", "a.lb", "b.lb", … */
    uint32_t n;
    const char *folder; /* that relative paths among them start from */
    lb_digest inputs;   /* of the files that they name, and of the program: over files that changed it is another job */
} lb_parts_job;

typedef struct lb_parts_options {
    size_t size; /* sizeof(lb_parts_options) */
    const lb_parts_job *job;
    uint32_t part, of;        /* 1 to `of`; 0: all that is not known */
    const char *const *files; /* of lb_parts_save, or a folder of workers; NULL: none */
    uint32_t n_files;
    const char *folder;       /* in which workers meet; it is made; NULL: none */
    uint32_t worker, workers; /* from 0 on, of how many; 0 of 0: not known */
    void (*progress)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    /* Not LB_OK once the system refused this process a read or memory: records that it has made since may lack what
     * was refused, and are not kept. NULL: lb_input_refusal */
    lb_status (*refusal)(lb_err *err);
} lb_parts_options;
#define LB_PARTS_OPTIONS_INIT {.size = sizeof(lb_parts_options)}

/* LB_ERR_INVALID: files or the folder hold records of another job, or of another version. */
LB_API lb_status lb_parts_open(const lb_parts_options *options, lb_parts **parts, lb_err *err);
/* The job of a file that lb_parts_save wrote, or of a folder of workers: words that lb_parts_job_release frees. */
LB_API lb_status lb_parts_job_read(const char *path, lb_parts_job *job, lb_err *err);
LB_API void lb_parts_job_release(lb_parts_job *job);
/* Of all that makes it; equal for one question about the same files. All zero when out of memory. */
LB_API lb_digest lb_parts_job_digest(const lb_parts_job *job);
/* Two jobs are one question about the same files. */
LB_API bool lb_parts_job_equal(const lb_parts_job *a, const lb_parts_job *b);

/* Work that is one unit: `work` is called by one of all workers, and what it gives (malloc'ed) is everybody's; the
 * caller frees it. `parts` NULL: it is called. */
LB_API lb_status lb_parts_once(lb_parts *parts, const char *name,
                               lb_status (*work)(void *context, char **bytes, size_t *n, lb_err *err), void *context,
                               char **bytes, size_t *n, lb_err *err);

/* Everything that was made here, as one file; it appears whole or not at all and replaces one of that name. */
LB_API lb_status lb_parts_save(const lb_parts *parts, const char *path, lb_err *err);
/* Records that were taken over, that were made here, and of these, where files were given, in want of a part. */
typedef struct lb_parts_tally {
    uint64_t taken, made, lacking;
} lb_parts_tally;
LB_API lb_parts_tally lb_parts_count(const lb_parts *parts);

/* Of a folder, once the work is done: keeps the answer there, and says by *mine whether this worker is the one that
 * gives it; one of them is, however many there are. */
LB_API lb_status lb_parts_answer(lb_parts *parts, const void *answer, size_t n, int code, bool *mine, lb_err *err);
/* The answer that a folder keeps; malloc'ed. LB_ERR_NOT_FOUND: none yet. */
LB_API lb_status lb_parts_answer_read(const char *folder, void **answer, size_t *n, int *code, lb_err *err);
/* `remove`: the last of as many workers as there are takes the folder with it. NULL is fine. */
LB_API void lb_parts_close(lb_parts *parts, bool remove);

#ifdef __cplusplus
}
#endif
#endif
