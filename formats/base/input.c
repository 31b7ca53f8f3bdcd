/* Reading files and folders: see lastbit/input.h. */
#include "base/array.h"
#include <lastbit/input.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lb_err first = LB_ERR_INIT;

bool lb_input_is_absent(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
}

lb_status lb_input_refuse(const char *path, const char *doing, int error, lb_err *err)
{
    const lb_status status = error == ENOMEM ? LB_ERR_NOMEM : LB_ERR_IO;
    pthread_mutex_lock(&lock);
    lb_fail(&first, status, "%s: cannot %s it: %s", path, doing, strerror(error));
    pthread_mutex_unlock(&lock);
    lb_fail(err, status, "%s: cannot %s it: %s", path, doing, strerror(error));
    errno = error;
    return status;
}

lb_status lb_input_refusal(lb_err *err)
{
    pthread_mutex_lock(&lock);
    const lb_status status = first.status;
    if (status != LB_OK) lb_fail(err, status, "%s", first.message);
    pthread_mutex_unlock(&lock);
    return status;
}

/* What a failed call means; errno says why it failed. */
static lb_status failed(const char *path, const char *doing, lb_err *err)
{
    const int error = errno;
    if (!lb_input_is_absent(error)) return lb_input_refuse(path, doing, error, err);
    lb_fail(err, LB_ERR_NOT_FOUND, "%s: cannot %s it: %s", path, doing, strerror(error));
    errno = error;
    return LB_ERR_NOT_FOUND;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

lb_status lb_input_look(const char *path, struct stat *found, lb_err *err)
{
    return stat(path, found) == 0 ? LB_OK : failed(path, "find", err);
}

bool lb_input_is_file(const char *path)
{
    struct stat st;
    return lb_input_look(path, &st, NULL) == LB_OK && S_ISREG(st.st_mode);
}

bool lb_input_is_folder(const char *path)
{
    struct stat st;
    return lb_input_look(path, &st, NULL) == LB_OK && S_ISDIR(st.st_mode);
}

static lb_status open_with(const char *path, int flags, int *fd, lb_err *err)
{
    do *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? failed(path, "open", err) : LB_OK;
}

lb_status lb_input_open(const char *path, int *fd, lb_err *err)
{
    return open_with(path, 0, fd, err);
}

lb_status lb_input_open_at_once(const char *path, int *fd, lb_err *err)
{
    return open_with(path, O_NONBLOCK, fd, err);
}

/* `fd` as a regular file with something in it. */
static lb_status map(int fd, const char *path, const char **bytes, size_t *size, lb_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return lb_input_refuse(path, "look at", errno, err);
    if (!S_ISREG(st.st_mode) || st.st_size == 0)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: is empty or no regular file", path);
    void *mapped = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) return lb_input_refuse(path, "map", errno, err);
    *bytes = mapped, *size = (size_t)st.st_size;
    return LB_OK;
}

lb_status lb_input_map(const char *path, const char **bytes, size_t *size, lb_err *err)
{
    int fd;
    LB_TRY(lb_input_open_at_once(path, &fd, err));
    const lb_status status = map(fd, path, bytes, size, err);
    close(fd); /* what was read is there whatever it says */
    return status;
}

lb_status lb_input_stream(const char *path, FILE **stream, lb_err *err)
{
    *stream = fopen(path, "rbe");
    return *stream ? LB_OK : failed(path, "open", err);
}

lb_status lb_input_stream_end(FILE *stream, const char *path, lb_err *err)
{
    if (!stream) return LB_OK;
    const int error = ferror(stream) ? errno ? errno : EIO : 0;
    fclose(stream);
    return error ? lb_input_refuse(path, "read", error, err) : LB_OK;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_name(lb_input_names *names, const char *name)
{
    char **grown = lb_array_grow(names->rows, names->n, sizeof *grown), *copy = strdup(name);
    if (grown) names->rows = grown;
    if (grown && copy) names->rows[names->n++] = copy;
    if (!grown) free(copy);
    return grown && copy;
}

lb_status lb_input_list(const char *folder, lb_input_names *names, lb_err *err)
{
    *names = (lb_input_names){NULL, 0};
    DIR *listing = opendir(folder);
    if (!listing) return failed(folder, "list", err);
    lb_status status = LB_OK;
    while (status == LB_OK) {
        errno = 0;
        const struct dirent *entry = readdir(listing);
        if (!entry) {
            if (errno) status = lb_input_refuse(folder, "list", errno, err);
            break;
        }
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (!add_name(names, entry->d_name)) status = lb_input_refuse(folder, "list", ENOMEM, err);
    }
    closedir(listing);
    if (names->n) qsort(names->rows, names->n, sizeof *names->rows, by_text);
    return status;
}

void lb_input_names_release(lb_input_names *names)
{
    for (uint32_t i = 0; i < names->n; i++) free(names->rows[i]);
    free(names->rows);
    *names = (lb_input_names){NULL, 0};
}
