/* Reading files and folders: lastbit opens, lists and examines what it reads by these functions alone.
 *
 * Simplest use:
 *
 *     const char *bytes;
 *     size_t size;
 *     LB_TRY(lb_input_map(path, &bytes, &size, err));     // LB_ERR_NOT_FOUND: not there; LB_ERR_IO: refused
 *     printf("%zu bytes, the first %d\n", size, size ? bytes[0] : 0);
 *
 * "It is not there" and "the system refused" are two answers. The first is often a finding (a shard is missing), or
 * decides what is read instead. The second (an I/O error, no descriptor left, no permission) says nothing about the
 * file: code that takes it for "not there", "damaged" or "the end" gives a verdict about the disk. So each function
 * here tells them apart, and the first refusal of the process is remembered, also where its caller goes on: no command
 * delivers an answer after one (lb_input_refusal).
 *
 * Any thread may call. Errors are left in errno, too. */
#ifndef LASTBIT_INPUT_H
#define LASTBIT_INPUT_H

#include <lastbit/error.h>

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* LB_ERR_NOT_FOUND where nothing of that name is, LB_ERR_IO where the system refuses. */
LB_API lb_status lb_input_look(const char *path, struct stat *found, lb_err *err);
/* Whether a file, or a folder, of that name is there. */
LB_API bool lb_input_is_file(const char *path);
LB_API bool lb_input_is_folder(const char *path);

/* A descriptor, close-on-exec; the same two errors. */
LB_API lb_status lb_input_open(const char *path, int *fd, lb_err *err);
/* The same for what has to be a regular file: it does not wait for another process at the other end of a FIFO, which a
 * stranger's folder may hold. The caller looks at what it has. */
LB_API lb_status lb_input_open_at_once(const char *path, int *fd, lb_err *err);
/* The whole of a regular file, mapped privately; munmap frees it. LB_ERR_CORRUPT: it is empty, or no regular file. */
LB_API lb_status lb_input_map(const char *path, const char **bytes, size_t *size, lb_err *err);

/* A stream for reading; the same two errors, after which it is NULL. */
LB_API lb_status lb_input_stream(const char *path, FILE **stream, lb_err *err);
/* Closes it. LB_ERR_IO when what was read did not end but could not be read on. NULL is fine. */
LB_API lb_status lb_input_stream_end(FILE *stream, const char *path, lb_err *err);

/* The names in a folder, sorted, without "." and ".."; lb_input_names_release frees them, also after a failure.
 * LB_ERR_NOT_FOUND: there is no such folder. */
typedef struct lb_input_names {
    char **rows;
    uint32_t n;
} lb_input_names;
LB_API lb_status lb_input_list(const char *folder, lb_input_names *names, lb_err *err);
LB_API void lb_input_names_release(lb_input_names *names);

/* Whether errno says that there is nothing of that name. */
LB_API bool lb_input_is_absent(int error);
/* Remembers that `path` could not be read because of `error` (an errno); for what is read by other means. */
LB_API lb_status lb_input_refuse(const char *path, const char *doing, int error, lb_err *err);
/* LB_OK, or the first refusal since the process began, told in `err`. */
LB_API lb_status lb_input_refusal(lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
