/* Whether an output is one of the inputs: see lastbit/output.h.
 *
 * Paths say nothing: `./a`, a link, a second name of the file are the same file. So files are compared by what the
 * system calls them (device and inode), links followed; of a folder whatever lies in it. */
#define _GNU_SOURCE
#include <lastbit/input.h>
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

typedef struct search {
    const struct stat *wanted;
    int error; /* the first one that says nothing about what is there; 0 */
} search;

/* What is not there, and what may not be read, holds no input that was read. */
static void note_error(search *search, int error)
{
    if (!lb_input_is_absent(error) && error != EACCES && error != EPERM && error != ELOOP && !search->error)
        search->error = error;
}

static DIR *list(search *search, int folder)
{
    DIR *dir = folder >= 0 ? fdopendir(folder) : NULL;
    if (!dir) note_error(search, errno);
    if (!dir && folder >= 0) close(folder);
    return dir;
}

static struct dirent *next(search *search, DIR *dir)
{
    errno = 0;
    struct dirent *entry = readdir(dir);
    if (!entry && errno) note_error(search, errno);
    return entry;
}

/* Takes over the descriptor. */
static bool holds(search *search, int folder, int depth)
{
    DIR *dir = list(search, folder);
    bool found = false;
    for (struct dirent *entry; dir && !found && !search->error && (entry = next(search, dir));) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, 0) != 0) {
            note_error(search, errno);
            continue;
        }
        found = is_same(&st, search->wanted);
        if (!found && S_ISDIR(st.st_mode) && depth < DEEPEST)
            found = holds(search, openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                          depth + 1);
    }
    if (dir) closedir(dir);
    return found;
}

/* Shards are named by an index beside them. */
static bool is_beside_index(search *search, const char *input)
{
    static const char suffix[] = ".index.json";
    const size_t n = strlen(input);
    if (n < sizeof suffix || strcmp(input + n - (sizeof suffix - 1), suffix) != 0) return false;
    const char *slash = strrchr(input, '/');
    char *folder = slash ? strndup(input, (size_t)(slash - input) + 1) : strdup(".");
    if (!folder) search->error = ENOMEM;
    const bool found = folder && holds(search, open_folder(folder), DEEPEST); /* that folder alone */
    free(folder);
    return found;
}

/* What the output is to an input, in words; NULL: nothing. `there`: what stands at the output's path. */
static const char *relation_of(const char *path, const struct stat *there, const char *input, int *error)
{
    struct stat st;
    search for_output = {there, 0}, for_input = {&st, 0};
    const char *how = NULL;
    if (stat(input, &st) != 0)
        note_error(&for_output, errno);
    else if (is_same(&st, there))
        how = "is the same as";
    else if (S_ISDIR(st.st_mode) ? holds(&for_output, open_folder(input), 0) : is_beside_index(&for_output, input))
        how = "is part of";
    else if (S_ISDIR(there->st_mode) && holds(&for_input, open_folder(path), 0))
        how = "holds";
    *error = for_output.error ? for_output.error : for_input.error;
    return how;
}

lb_status lb_output_inputs_refuse(const char *path, const char *const *inputs, lb_err *err)
{
    struct stat there;
    if (stat(path, &there) != 0)
        return lb_input_is_absent(errno) ? LB_OK : lb_input_refuse(path, "look at", errno, err);
    if (!(S_ISREG(there.st_mode) || S_ISDIR(there.st_mode))) return LB_OK;
    for (; inputs && *inputs; inputs++) {
        int error;
        const char *how = relation_of(path, &there, *inputs, &error);
        if (how)
            return lb_fail(err, LB_ERR_EXISTS, "%s %s %s, which is read: nothing was overwritten; name another place",
                           path, how, *inputs);
        if (error) return lb_input_refuse(*inputs, "tell whether the output is", error, err);
    }
    return LB_OK;
}
