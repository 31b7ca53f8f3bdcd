/* Whether an output is one of the inputs: see lastbit/output.h.
 *
 * Paths say nothing: `./a`, a link, a second name of the file are the same file. So files are compared by what the system calls
 * them (device and inode), links followed; of a folder whatever lies in it. */
#define _GNU_SOURCE
#include <lastbit/output.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 8 };

static int open_folder(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Takes over the descriptor. A folder that cannot be listed holds no input that anybody could read. */
static bool holds(int folder, const struct stat *wanted, int depth)
{
    DIR *dir = folder >= 0 ? fdopendir(folder) : NULL;
    bool found = false;
    if (!dir && folder >= 0) close(folder);
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, 0) != 0) continue;
        found = is_same(&st, wanted);
        if (!found && S_ISDIR(st.st_mode) && depth < DEEPEST)
            found = holds(openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), wanted,
                          depth + 1);
    }
    if (dir) closedir(dir);
    return found;
}

/* Shards are named by an index beside them. */
static bool is_beside_index(const char *input, const struct stat *wanted)
{
    static const char suffix[] = ".index.json";
    const size_t n = strlen(input);
    if (n < sizeof suffix || strcmp(input + n - (sizeof suffix - 1), suffix) != 0) return false;
    const char *slash = strrchr(input, '/');
    char *folder = slash ? strndup(input, (size_t)(slash - input) + 1) : strdup(".");
    const bool found = folder && holds(open_folder(folder), wanted, DEEPEST); /* that folder alone */
    free(folder);
    return found;
}

lb_status lb_output_inputs_refuse(const char *path, const char *const *inputs, lb_err *err)
{
    struct stat there, input;
    if (stat(path, &there) != 0 || !(S_ISREG(there.st_mode) || S_ISDIR(there.st_mode))) return LB_OK;
    for (; inputs && *inputs; inputs++) {
        const char *how = NULL;
        if (stat(*inputs, &input) != 0) continue;
        if (is_same(&input, &there))
            how = "is the same as";
        else if (S_ISDIR(input.st_mode) ? holds(open_folder(*inputs), &there, 0) : is_beside_index(*inputs, &there))
            how = "is part of";
        else if (S_ISDIR(there.st_mode) && holds(open_folder(path), &input, 0))
            how = "holds";
        if (how)
            return lb_fail(err, LB_ERR_EXISTS, "%s %s %s, which is read: nothing was overwritten; name another place",
                           path, how, *inputs);
    }
    return LB_OK;
}
