/* See output_place.h. */
#define _GNU_SOURCE /* renameat2, O_PATH */
#include "base/output_place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DRAFT_TRIES = 16, NAME_KEPT = 200 };

lb_status lb_output_place_open(lb_output_place *place, const char *path, lb_err *err)
{
    *place = (lb_output_place){.folder = -1};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return lb_fail(err, LB_ERR_INVALID, "'%s' names a folder, and a file is to be written: give its name, too",
                       path);
    place->path = strdup(path);
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!place->path || !folder) {
        free(folder);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    place->name = place->path + (name - path);
    place->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    place->listable = place->folder >= 0;
    if (place->folder < 0 && errno == EACCES) place->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    const int why = errno;
    free(folder);
    if (place->folder >= 0) return LB_OK;
    return lb_fail(err, why == ENOMEM ? LB_ERR_NOMEM : LB_ERR_IO, "%s: cannot create it: its folder: %s", path,
                   strerror(why));
}

lb_status lb_output_place_check(const lb_output_place *place, bool replace, bool folder, lb_err *err)
{
    struct stat st;
    if (fstatat(place->folder, place->name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? LB_OK
                               : lb_fail(err, LB_ERR_IO, "%s: cannot create it: %s", place->path, strerror(errno));
    if (!replace) return lb_fail(err, LB_ERR_EXISTS, "%s exists; nothing was overwritten", place->path);
    if (folder && !S_ISDIR(st.st_mode))
        return lb_fail(err, LB_ERR_EXISTS, "%s is there and is not a folder; nothing was overwritten", place->path);
    if (!folder && S_ISDIR(st.st_mode))
        return lb_fail(err, LB_ERR_EXISTS, "%s is a folder; nothing was overwritten", place->path);
    return LB_OK;
}

/* ---- drafts that are there --------------------------------------------------------------------------------------- */

/* Places with a draft, for a signal handler: fixed room, no lock. Where there is no room a draft stays behind a signal,
 * no more. */
static _Atomic(lb_output_place *) drafts[32];

void lb_output_place_remember(lb_output_place *place)
{
    place->owner = getpid();
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        lb_output_place *none = NULL;
        if (atomic_compare_exchange_strong(&drafts[i], &none, place)) return;
    }
}

void lb_output_place_forget(lb_output_place *place)
{
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        lb_output_place *one = place;
        if (atomic_compare_exchange_strong(&drafts[i], &one, NULL)) return;
    }
}

/* As readdir does it, without memory of its own, for it may run in a signal handler: of a folder the files, then
 * itself. */
static void remove_name(int folder, const char *name)
{
    struct entry {
        uint64_t inode;
        int64_t next;
        uint16_t length;
        uint8_t type;
        char name[];
    };
    _Alignas(struct entry) char bytes[4096];
    if (unlinkat(folder, name, 0) == 0 || (errno != EISDIR && errno != EPERM)) return;
    const int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (long n; inner >= 0 && (n = syscall(SYS_getdents64, inner, bytes, sizeof bytes)) > 0;)
        for (long at = 0; at < n;) {
            const struct entry *entry = (const struct entry *)(bytes + at);
            if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0) unlinkat(inner, entry->name, 0);
            at += entry->length;
        }
    if (inner >= 0) close(inner);
    unlinkat(folder, name, AT_REMOVEDIR);
}

void lb_output_place_drop(lb_output_place *place)
{
    if (!place->draft[0]) return;
    if (place->owner == getpid()) remove_name(place->folder, place->draft);
    lb_output_place_forget(place); /* last: a signal in between removes what is left of it */
    place->draft[0] = '\0';
}

void lb_output_remove_drafts(void)
{
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        const lb_output_place *place = atomic_load(&drafts[i]);
        if (place && place->draft[0] && place->owner == getpid()) remove_name(place->folder, place->draft);
    }
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* O_EXCL makes a guess at the name harmless, so that a poor number will do where there is no good one. */
static uint64_t unpredictable(void)
{
    uint64_t number;
    struct timespec now;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) == (ssize_t)sizeof number) return number;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)now.tv_nsec << 32) ^ (uint64_t)now.tv_sec ^ ((uint64_t)getpid() << 16) ^ (uintptr_t)&now;
}

int lb_output_place_draft(lb_output_place *place, bool folder, mode_t mode)
{
    size_t kept = strnlen(place->name, NAME_KEPT);
    if (place->name[kept])
        while (kept > 0 && ((unsigned char)place->name[kept] & 0xc0) == 0x80) kept--; /* no half of a letter */
    for (int i = 0; i < DRAFT_TRIES; i++) {
        snprintf(place->draft, sizeof place->draft, "%.*s.%016" PRIx64 LB_OUTPUT_DRAFT, (int)kept, place->name,
                 unpredictable());
        lb_output_place_remember(place); /* first: a signal that comes as soon as it is there finds it */
        const int fd =
            folder ? mkdirat(place->folder, place->draft, mode)
                   : openat(place->folder, place->draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd >= 0) return fd;
        const int why = errno;
        lb_output_place_forget(place);
        errno = why;
        if (why != EEXIST) break;
    }
    place->draft[0] = '\0';
    return -1;
}

/* Without RENAME_NOREPLACE (NFS, old systems) a second name that must be new does it; without hard links, a look
 * beforehand. */
static int rename_new(lb_output_place *place)
{
    struct stat st;
    const int folder = place->folder;
    if (renameat2(folder, place->draft, folder, place->name, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return errno;
    if (linkat(folder, place->draft, folder, place->name, 0) == 0)
        return unlinkat(folder, place->draft, 0) == 0 ? 0 : errno;
    if (errno == EEXIST) return EEXIST;
    if (fstatat(folder, place->name, &st, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
    return renameat(folder, place->draft, folder, place->name) == 0 ? 0 : errno;
}

int lb_output_place_rename(lb_output_place *place, bool replace)
{
    int why = 0;
    if (!replace)
        why = rename_new(place);
    else if (renameat(place->folder, place->draft, place->folder, place->name) != 0)
        why = errno;
    if (why == 0) lb_output_place_forget(place), place->draft[0] = '\0';
    return why;
}

int lb_output_place_sync_descriptor(int fd, bool data)
{
    int result;
    do result = data ? fdatasync(fd) : fsync(fd);
    while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EINVAL || errno == ENOTSUP || errno == ENOSYS)
        return 0; /* a pipe, a device: nothing to do */
    return errno;
}

int lb_output_place_sync(const lb_output_place *place)
{
    return place->listable ? lb_output_place_sync_descriptor(place->folder, false) : 0;
}

void lb_output_place_close(lb_output_place *place)
{
    lb_output_place_forget(place);
    if (place->folder >= 0) close(place->folder);
    free(place->path);
    *place = (lb_output_place){.folder = -1};
}
