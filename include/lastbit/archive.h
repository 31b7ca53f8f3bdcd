/* The archive of one process, and the capture: a folder of archives, or the same packed in one file.
 *
 * Simplest use:
 *
 *     lb_capture *run;
 *     const lb_program *step;
 *     const int64_t *steps;
 *     LB_TRY(lb_capture_open("run.lb", &run, err));
 *     uint32_t n = lb_capture_steps(run, &steps);
 *     if (n && lb_capture_program(run, 0, steps[0], &step, err) == LB_OK) printf("%u ops\n", step->n_ops);
 *     lb_capture_close(run);                  // step, its values and their bytes go with it
 *
 * An archive is an append-only tar that plain `tar` lists (formats/FORMAT.md has the bytes). Records are immutable and
 * of four kinds: blob, program segment, table, commit. Killing the writer at any moment loses at most what came after
 * the last commit. Readers map the file; blobs are used in place.
 */
#ifndef LASTBIT_ARCHIVE_H
#define LASTBIT_ARCHIVE_H

#include <lastbit/output.h>
#include <lastbit/program.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_FORMAT_MAJOR 1
#define LB_FORMAT_MINOR 3

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct lb_writer lb_writer; /* one thread at a time */

typedef struct lb_writer_options {
    size_t size;    /* sizeof(lb_writer_options) */
    bool overwrite; /* replace an existing file; otherwise LB_ERR_EXISTS */
    uint8_t sync;   /* lb_output_sync: what a power cut may take */
    /* there is no file before the archive is closed, and the old one stays; otherwise it grows by commits */
    bool whole;
    uint64_t budget_bytes;     /* LB_ERR_LIMIT for a record that would pass it; 0: none */
    const char *const *inputs; /* what is read meanwhile and may not be written over, the last NULL; NULL: nothing */
    bool in_place; /* under its own name from the beginning, and only written on: for a store without rename */
} lb_writer_options;
#define LB_WRITER_OPTIONS_INIT {.size = sizeof(lb_writer_options), .sync = LB_OUTPUT_SYNC_CLOSE}

/* Creates the file, mode 0600, as lastbit/output.h says: at the first commit of its head it is there. */
LB_API lb_status lb_writer_open(const char *path, const lb_writer_options *options, lb_writer **writer, lb_err *err);
/* Stores bytes under their blob digest; does nothing when the archive already has them. */
LB_API lb_status lb_writer_blob(lb_writer *writer, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                                lb_err *err);
LB_API bool lb_writer_has_blob(const lb_writer *writer, lb_digest digest);
LB_API lb_status lb_writer_program(lb_writer *writer, const lb_program *program, lb_err *err);
/* A named table as JSON text (stored as MessagePack): "receipt", "coverage", "findings", … A later one of the same name
 * wins. */
LB_API lb_status lb_writer_table(lb_writer *writer, const char *name, const char *json, lb_err *err);
/* Everything so far becomes permanent. */
LB_API lb_status lb_writer_commit(lb_writer *writer, lb_err *err);
/* After a failure to write (a full disk): the archive has been cut back to its last commit, and where that made room
 * this table goes behind it, with a commit. The writer stays as dead as it was. */
LB_API lb_status lb_writer_last_table(lb_writer *writer, const char *name, const char *json, lb_err *err);
/* At most what the archive will have if it is closed now, those before it included. */
LB_API uint64_t lb_writer_bytes(const lb_writer *writer);
/* Commit, index, closing record; flushed to the disk as `sync` says, and closed, each checked. The writer is gone
 * whatever the status. NULL is fine. */
LB_API lb_status lb_writer_close(lb_writer *writer, lb_err *err);
/* The archive is closed as lb_writer_close does it, and the writer goes on with another at `next`, which is made with
 * its first record and knows nothing of the blobs before. Whatever becomes of it the closed one stays. */
LB_API lb_status lb_writer_turn(lb_writer *writer, const char *next, lb_err *err);
/* Gives up, also in a forked child: frees memory and closes the descriptor, writes nothing. What was committed stays,
 * but for a `whole` archive, which then is not there. */
LB_API void lb_writer_abandon(lb_writer *writer);

/* ---- reading one archive ----------------------------------------------------------------------------------------- */

typedef struct lb_archive lb_archive; /* reading is thread-safe */

LB_API lb_status lb_archive_open(const char *path, lb_archive **archive, lb_err *err);
LB_API void lb_archive_close(lb_archive *archive);
/* In place; valid until close. LB_ERR_NOT_CAPTURED when the archive has no such blob. */
LB_API lb_status lb_archive_blob(lb_archive *archive, lb_digest digest, const void **bytes, size_t *size, lb_err *err);
LB_API uint32_t lb_archive_programs(const lb_archive *archive);
LB_API int64_t lb_archive_step(const lb_archive *archive, uint32_t index);
/* Decoded on first use, owned by the archive. */
LB_API lb_status lb_archive_program(lb_archive *archive, uint32_t index, const lb_program **program, lb_err *err);
/* A table as JSON text, NULL when there is none, or a damaged one; owned by the archive, which reads them all when it
 * is opened. */
LB_API const char *lb_archive_table(lb_archive *archive, const char *name);
LB_API bool lb_archive_complete(const lb_archive *archive); /* closed in order, or every step complete */

/* ---- reading a capture ------------------------------------------------------------------------------------------- */

typedef struct lb_capture lb_capture; /* reading is thread-safe */

/* `path`: a folder NAME.lb/, a packed file, a single archive, or (weights only, one step 0 of sources) safetensors
 * files and their index, .npy, .npz, torch.save's .pt and .pth, or the folder of a torch distributed checkpoint.
 * Pickles are only looked at: nothing in them is executed. */
LB_API lb_status lb_capture_open(const char *path, lb_capture **capture, lb_err *err);
LB_API void lb_capture_close(lb_capture *capture);
LB_API const char *lb_capture_path(const lb_capture *capture);
/* Ranks present, ascending. */
LB_API uint32_t lb_capture_ranks(const lb_capture *capture, const int32_t **ranks);
/* Steps recorded by at least one rank, ascending. */
LB_API uint32_t lb_capture_steps(const lb_capture *capture, const int64_t **steps);
/* Reports LB_ERR_NOT_FOUND, as nothing was recorded of the steps `first` to `last` (INT64_MIN, INT64_MAX: no border),
 * and says what there is instead; LB_ERR_NOT_CAPTURED where no step was recorded at all. */
LB_API lb_status lb_capture_lacks(const lb_capture *capture, int64_t first, int64_t last, lb_err *err);
/* LB_ERR_NOMEM where a program or a value found no memory since the capture was opened, or since this function last
 * said so; else why the first program that could not be read, though it was recorded, could not (LB_ERR_CORRUPT: it is
 * damaged); LB_OK else, also for NULL. Who asked may have gone on as if it had not been recorded, so that what rests on
 * the capture is an answer only after this. For reads that the system refused: lb_input_refusal. */
LB_API lb_status lb_capture_refusal(lb_capture *capture, lb_err *err);
/* LB_ERR_NOT_FOUND when that rank did not record that step. */
LB_API lb_status lb_capture_program(lb_capture *capture, int32_t rank, int64_t step, const lb_program **program,
                                    lb_err *err);
LB_API lb_status lb_capture_blob(lb_capture *capture, int32_t rank, lb_digest digest, const void **bytes, size_t *size,
                                 lb_err *err);
LB_API const char *lb_capture_table(lb_capture *capture, int32_t rank, const char *name);
/* Names of a rank's tables, each once; NULL when there are no more than `index`. Foreign files: "metadata". */
LB_API const char *lb_capture_table_name(const lb_capture *capture, int32_t rank, uint32_t index);
/* The recorded bytes of a value as a strided view (read-only), found in a kept value of the same version that contains
 * them where it was not kept itself (slices). LB_ERR_NOT_CAPTURED when they were not kept. */
LB_API lb_status lb_capture_value(lb_capture *capture, const lb_program *program, uint32_t value, lb_tensor *tensor,
                                  lb_err *err);
LB_API bool lb_capture_has_value(lb_capture *capture, const lb_program *program, uint32_t value);
/* Whether that step of the rank was recorded; nothing is read for the question. */
LB_API bool lb_capture_has_program(const lb_capture *capture, int32_t rank, int64_t step);
/* The program goes, and what was found out about it: who asks again gets another. For a caller that alone uses the
 * capture and looks at one after the other, so that thousands of ranks take the memory of one. */
LB_API void lb_capture_drop_program(lb_capture *capture, int32_t rank, int64_t step);
/* Pages of the files that were read no longer count as this process's memory. What was given stays where it is, and is
 * fetched again when it is read again. */
LB_API void lb_capture_unload(const lb_capture *capture);
/* The same of one rank's files. */
LB_API void lb_capture_unload_rank(const lb_capture *capture, int32_t rank);

/* Where a process of `rank` writes inside the capture folder: "NAME.lb/rank-00003.tar"; malloc'ed. */
LB_API char *lb_capture_archive_path(const char *folder, int32_t rank);

/* Where it writes one of several archives, which are read as one in the order of their numbers:
 * "NAME.lb/rank-00003-0000000002.tar"; malloc'ed. */
LB_API char *lb_capture_part_path(const char *folder, int32_t rank, uint32_t part);

#ifdef __cplusplus
}
#endif
#endif
