/* Folders that appear whole: see lastbit/output.h. */
#define _GNU_SOURCE /* asprintf, renameat2 */
#include "base/output_place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lb_output_folder {
    lb_output_place place;
    bool replace;
    bool (*ours)(const char *);
    char *path; /* of the draft */
};

/* Calls `each` with every name in a folder of the place; the first that it refuses is copied to `refused`. 0 or
 * errno. */
static int list(const lb_output_place *place, const char *name,
                bool (*each)(int folder, const char *name, void *context), void *context, char refused[256])
{
    const int folder = openat(place->folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = folder >= 0 ? fdopendir(folder) : NULL;
    int why = dir ? 0 : errno;
    *refused = '\0';
    if (!dir && folder >= 0) close(folder);
    for (struct dirent *entry; dir && !*refused;) {
        errno = 0;
        if (!(entry = readdir(dir))) {
            why = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!each(dirfd(dir), entry->d_name, context)) memcpy(refused, entry->d_name, strlen(entry->d_name) + 1);
    }
    if (dir) closedir(dir);
    return why;
}

static bool may_go(int folder, const char *name, void *context)
{
    const lb_output_folder *f = context;
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) return false;
    return lb_output_is_draft(name) || (f->ours && f->ours(name));
}

static lb_status check_old(const lb_output_folder *folder, lb_err *err)
{
    char refused[256];
    LB_TRY(lb_output_place_check(&folder->place, folder->replace, true, err));
    const int why = list(&folder->place, folder->place.name, may_go, (void *)(uintptr_t)folder, refused);
    if (why && why != ENOENT)
        return lb_fail(err, LB_ERR_IO, "%s: cannot list it: %s", folder->place.path, strerror(why));
    if (!*refused) return LB_OK;
    return lb_fail(err, LB_ERR_EXISTS, "%s holds %s, which is not to be replaced; nothing was overwritten",
                   folder->place.path, refused);
}

static void release(lb_output_folder *folder)
{
    lb_output_place_drop(&folder->place);
    lb_output_place_close(&folder->place);
    free(folder->path);
    free(folder);
}

/* "runs/a.lb//" names the folder "runs/a.lb". */
static char *without_slash(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return strndup(path, n);
}

lb_status lb_output_folder_open(const char *path, const lb_output_options *options, bool (*ours)(const char *name),
                                lb_output_folder **folder, lb_err *err)
{
    *folder = NULL;
    lb_output_folder *opened = calloc(1, sizeof *opened);
    char *plain = without_slash(path);
    lb_status status = opened && plain ? lb_output_inputs_refuse(plain, options ? options->inputs : NULL, err)
                                       : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    if (opened) opened->place.folder = -1, opened->ours = ours, opened->replace = options && options->replace;
    if (status == LB_OK) status = lb_output_place_open(&opened->place, plain, err);
    if (status == LB_OK) status = check_old(opened, err);
    if (status == LB_OK && lb_output_place_draft(&opened->place, true, options && options->shared ? 0777 : 0700) < 0)
        status = lb_fail(err, LB_ERR_IO, "%s: cannot create it: %s", path, strerror(errno));
    if (status == LB_OK && asprintf(&opened->path, "%.*s%s", (int)(opened->place.name - opened->place.path), plain,
                                    opened->place.draft) < 0) {
        opened->path = NULL;
        status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    free(plain);
    if (status == LB_OK)
        *folder = opened;
    else if (opened)
        release(opened);
    return status;
}

const char *lb_output_folder_path(const lb_output_folder *folder)
{
    return folder->path;
}

/* Where names cannot be exchanged the old folder is moved away first: for a moment nothing has the name, and both are
 * there. The draft is the old folder then. */
static int replace_by_two(lb_output_place *place)
{
    char old[sizeof place->draft];
    lb_output_place aside = *place;
    if (lb_output_place_draft(&aside, true, 0700) < 0) return errno;
    memcpy(old, aside.draft, sizeof aside.draft);
    lb_output_place_forget(&aside);
    lb_output_place_forget(place); /* in that moment neither may go */
    if (renameat(place->folder, place->name, place->folder, old) != 0) {
        const int why = errno;
        unlinkat(place->folder, old, AT_REMOVEDIR);
        return why;
    }
    if (renameat(place->folder, place->draft, place->folder, place->name) == 0) {
        memcpy(place->draft, old, sizeof old);
        lb_output_place_remember(place);
        return 0;
    }
    const int why = errno;
    renameat(place->folder, old, place->folder, place->name);
    return why;
}

static int take_name(lb_output_folder *folder)
{
    lb_output_place *place = &folder->place;
    struct stat st;
    if (!folder->replace || fstatat(place->folder, place->name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return lb_output_place_rename(place, folder->replace);
    int why = renameat2(place->folder, place->draft, place->folder, place->name, RENAME_EXCHANGE) == 0 ? 0 : errno;
    if (why == EINVAL || why == ENOSYS || why == ENOTSUP) why = replace_by_two(place);
    if (why) return why;
    lb_output_place_sync(place); /* the new one before the old one goes, which has the draft's name */
    lb_output_place_drop(place);
    return 0;
}

static bool sync_one(int folder, const char *name, void *context)
{
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const int why = fd < 0 ? errno : lb_output_place_sync_descriptor(fd, false);
    if (fd >= 0) close(fd);
    if (why) *(int *)context = why;
    return why == 0;
}

/* The files in it, then the folder: files that were just written and flushed cost nothing here. */
static int sync_draft(const lb_output_place *place)
{
    char refused[256];
    int why = 0;
    const int listed = list(place, place->draft, sync_one, &why, refused);
    if (listed || why) return listed ? listed : why;
    return sync_one(place->folder, place->draft, &why) ? 0 : why;
}

lb_status lb_output_folder_close(lb_output_folder *folder, lb_err *err)
{
    if (!folder) return LB_OK;
    lb_output_folder *f = folder;
    lb_status status = LB_OK;
    int why = sync_draft(&f->place);
    if (why == 0 && f->replace) status = check_old(f, err); /* another process may have put something into it */
    if (why == 0 && status == LB_OK) why = take_name(f);
    if (why == 0 && status == LB_OK) why = lb_output_place_sync(&f->place);
    if (why == EEXIST || why == ENOTEMPTY)
        status = lb_fail(err, LB_ERR_EXISTS, "%s exists; nothing was overwritten", f->place.path);
    else if (why)
        status = lb_fail(err, LB_ERR_IO, "%s: cannot put it in place: %s", f->place.path, strerror(why));
    release(f);
    return status;
}

void lb_output_folder_abandon(lb_output_folder *folder)
{
    if (folder) release(folder);
}

int lb_output_folder_make(const char *path, lb_output_sync sync)
{
    if (mkdir(path, 0700) != 0) return errno;
    if (sync == LB_OUTPUT_SYNC_NEVER) return 0;
    char *copy = strdup(path);
    const int above = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (above >= 0) { /* one that cannot be read cannot be synced either */
        lb_output_place_sync_descriptor(above, false);
        close(above);
    }
    free(copy);
    return 0;
}
