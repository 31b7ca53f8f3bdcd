/* Writing files: lastbit writes every file by these functions.
 *
 * Simplest use:
 *
 *     lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
 *     lb_output *out;
 *     how.inputs = (const char *[]){path, NULL};    // an output that is one of these is refused
 *     LB_TRY(lb_output_open("page.html", &how, &out, err));
 *     lb_output_write(out, "<p>done\n", 8);         // the first failure stays …
 *     LB_TRY(lb_output_close(out, err));            // … and is reported here: only now is there a page.html
 *
 * There are four ways to write:
 *
 *   WHOLE     The file appears complete or not at all. Bytes go to a draft beside its place; close flushes it, has the
 *             system write it to the disk (fsync), closes it, gives it its name (rename) and has the folder written,
 *             too. Each of these is checked. What stood at `path` before stays as it was until the rename, whatever
 *             fails, and through a kill or a power cut.
 *   GROWING   A new file that is of use before it is finished: the archive of a recorder. It takes its name at its
 *             first lb_output_commit; from then on whatever was committed survives a kill. `sync` says what survives a
 *             power cut.
 *   APPENDED  Lines behind what is there: a journal, a list of alarms. Each lb_output_commit hands its bytes to the
 *             system in one piece, so that a reader meets whole lines. A commit that fails takes its bytes back where
 *             no other process wrote meanwhile.
 *   IN_PLACE  As GROWING, for file systems in front of an object store: the file has its own name from the beginning, so
 *             that nothing is renamed, and is written once from front to back. `replace` removes an old one first.
 *
 * A draft is created by O_EXCL under a name that cannot be guessed, `NAME.<16 hex digits>.draft`, so that no link that
 * was planted is followed. A link at `path` itself is replaced as a name, never written through (APPENDED follows
 * it). A kill may leave a draft behind; it is safe to remove (lb_output_is_draft). A signal that is caught need not
 * (lb_output_remove_drafts).
 *
 * A device, a pipe, or a descriptor of this process (/dev/stdout, /dev/fd/N) has no contents to save: it is written as
 * it is.
 *
 * One thread at a time per output. In a forked child lb_output_abandon closes and frees, and leaves the parent's draft
 * alone.
 */
#ifndef LASTBIT_OUTPUT_H
#define LASTBIT_OUTPUT_H

#include <lastbit/error.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lb_output_way {
    LB_OUTPUT_WHOLE = 0,
    LB_OUTPUT_GROWING = 1,
    LB_OUTPUT_APPENDED = 2,
    LB_OUTPUT_IN_PLACE = 3
} lb_output_way;

/* When fsync is called: what a power cut may take. A kill takes none of what was committed, whatever this is. */
typedef enum lb_output_sync {
    LB_OUTPUT_SYNC_CLOSE = 0, /* once, at the end: a file that was closed is on the disk */
    LB_OUTPUT_SYNC_STEP = 1,  /* at every commit */
    LB_OUTPUT_SYNC_NEVER = 2  /* the system writes when it likes, within about half a minute on Linux */
} lb_output_sync;
/* "close", "step", "never"; false: it is none of them. */
LB_API bool lb_output_sync_parse(const char *text, lb_output_sync *sync);

typedef struct lb_output_options {
    size_t size; /* sizeof(lb_output_options) */
    lb_output_way way;
    lb_output_sync sync;
    /* all but APPENDED: a file at `path` is replaced; otherwise LB_ERR_EXISTS. APPENDED: one is continued */
    bool replace;
    bool shared; /* readable as the umask says; otherwise by the owner alone (captures hold private data) */
    const char *const *inputs; /* files and folders that are being read, the last NULL; NULL: none */
} lb_output_options;
#define LB_OUTPUT_OPTIONS_INIT {.size = sizeof(lb_output_options), .way = LB_OUTPUT_WHOLE, .sync = LB_OUTPUT_SYNC_CLOSE}

typedef struct lb_output lb_output;

/* LB_ERR_EXISTS: something is there and may not be replaced, or it is one of `inputs`, lies in one or holds one, by
 * whatever path or link. LB_ERR_INVALID: `path` ends in no name (it is empty, or ends in a slash or dots). Nothing is
 * changed on any failure. `options`: NULL for LB_OUTPUT_OPTIONS_INIT. */
LB_API lb_status lb_output_open(const char *path, const lb_output_options *options, lb_output **output, lb_err *err);
/* False: it failed, now or before. What was written is gathered; large pieces go straight to the system. */
LB_API bool lb_output_write(lb_output *output, const void *bytes, size_t n);
/* The same output as a stream, for what prints; it belongs to the output. NULL when out of memory, which close reports,
 * too. */
LB_API FILE *lb_output_stream(lb_output *output);
/* Hands over what was gathered. */
LB_API bool lb_output_flush(lb_output *output);
/* Everything so far is to stay: see the ways above. After a failure the output goes no further. */
LB_API lb_status lb_output_commit(lb_output *output, lb_err *err);
/* Takes back everything behind the first `offset` bytes, gathered or written, and goes on from there as if nothing had
 * failed: a full disk then has room again. False where the system does not let it; then the output stays as failed as
 * it was. */
LB_API bool lb_output_cut(lb_output *output, uint64_t offset);
/* Bytes accepted so far. */
LB_API uint64_t lb_output_offset(const lb_output *output);
/* errno of the first failure; 0: none. */
LB_API int lb_output_error(const lb_output *output);
/* Finishes the file as `way` says; the output is gone whatever the status. After a failure a WHOLE file is not there,
 * or still the one that was; of a GROWING or APPENDED one what was committed stays. NULL is fine. */
LB_API lb_status lb_output_close(lb_output *output, lb_err *err);
/* Gives up: the draft is removed, a file that has its name stays as it is, nothing more is written. NULL is fine. */
LB_API void lb_output_abandon(lb_output *output);

/* `n` bytes as one WHOLE file, or one commit of an APPENDED one. */
LB_API lb_status lb_output_save(const char *path, const lb_output_options *options, const void *bytes, size_t n,
                                lb_err *err);

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* A folder that appears whole: files are written into a draft of it, in any way, and close flushes all of them to the
 * disk and gives the folder its name. With `replace` the old folder goes in the same moment (renameat2 with
 * RENAME_EXCHANGE; where a file system cannot, it is moved away just before). An old folder is replaced only where
 * `ours` says of every name in it that it may go; it holds files alone. */
typedef struct lb_output_folder lb_output_folder;
LB_API lb_status lb_output_folder_open(const char *path, const lb_output_options *options,
                                       bool (*ours)(const char *name), lb_output_folder **folder, lb_err *err);
/* Where to write; valid until close. */
LB_API const char *lb_output_folder_path(const lb_output_folder *folder);
LB_API lb_status lb_output_folder_close(lb_output_folder *folder, lb_err *err);
LB_API void lb_output_folder_abandon(lb_output_folder *folder);
/* For a folder that fills up as a run goes on: makes it, mode 0700. Its name is on the disk then, unless `sync` is
 * NEVER: what is synced inside it would else be lost with it. 0, or errno: EEXIST when something is there. */
LB_API int lb_output_folder_make(const char *path, lb_output_sync sync);

/* ---- what may be written ----------------------------------------------------------------------------------------- */

/* LB_ERR_EXISTS when what is at `path` is one of `inputs`, lies in one, or is a folder that holds one. open does it;
 * this is for who wants to refuse before an hour of work. */
LB_API lb_status lb_output_inputs_refuse(const char *path, const char *const *inputs, lb_err *err);
/* Removes the drafts of all outputs that this process has open, for a signal handler that ends it: nothing can be
 * written to them afterwards. In a forked child nothing. Async-signal-safe. */
LB_API void lb_output_remove_drafts(void);
/* Whether a name in a folder is that of a draft. */
LB_API bool lb_output_is_draft(const char *name);
/* A file without a name, to write and to read back: in the folder of `beside`, which has room for what is written
 * there, or where none can be made in it (a device's) or it is NULL, in the system's folder for such files. It is gone
 * when it is closed; whether writing it succeeded is the caller's to check. NULL: none can be made. */
LB_API FILE *lb_output_scratch(const char *beside, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
