/* See kernel_cache.h. A file is a header and the code:
 *
 *      0  "lastbit kernels\n"
 *     16  the digest of the code: low half, high half
 *     32  the code */
#include "cuda/kernel_cache.h"

#include <lastbit/input.h>
#include <lastbit/output.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "lastbit kernels\n"
#define MOST_BYTES (64u << 20)

typedef struct header {
    char magic[16];
    uint64_t low, high;
} header;

/* ---- where ------------------------------------------------------------------------------------------------------- */

static bool is_set(const char *text)
{
    return text && *text;
}

/* False: nothing is kept. `base`: a folder that may have to be made before; empty: none. */
static bool find_folder(char base[], char folder[], size_t room)
{
    const char *named = getenv("LASTBIT_CACHE"), *shared = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    base[0] = 0;
    if (named) {
        const int n = snprintf(folder, room, "%s", named);
        return n > 0 && (size_t)n < room;
    }
    if (!is_set(shared) && !is_set(home)) return false;
    const int n = is_set(shared) ? snprintf(base, room, "%s", shared) : snprintf(base, room, "%s/.cache", home);
    return n > 0 && (size_t)n < room && (size_t)snprintf(folder, room, "%s/lastbit", base) < room;
}

/* `make`: the folder is made where it is missing. */
static bool path_of(lb_digest key, bool make, char path[], size_t room)
{
    char base[2048], folder[2048], name[33];
    if (!find_folder(base, folder, sizeof folder)) return false;
    if (make && *base) lb_output_folder_make(base, LB_OUTPUT_SYNC_NEVER);
    if (make) lb_output_folder_make(folder, LB_OUTPUT_SYNC_NEVER);
    lb_digest_format(key, name);
    return (size_t)snprintf(path, room, "%s/kernels-%s", folder, name) < room;
}

/* ---- what -------------------------------------------------------------------------------------------------------- */

static bool is_ours(const struct stat *file)
{
    return S_ISREG(file->st_mode) && file->st_uid == geteuid() && !(file->st_mode & (S_IWGRP | S_IWOTH)) &&
           file->st_size > (off_t)sizeof(header) && file->st_size <= (off_t)MOST_BYTES;
}

static bool read_all(int fd, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = read(fd, (char *)to + done, bytes - done);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static void *read_code(int fd)
{
    struct stat file;
    header head;
    if (fstat(fd, &file) != 0 || !is_ours(&file) || !read_all(fd, &head, sizeof head)) return NULL;
    const size_t bytes = (size_t)file.st_size - sizeof head;
    void *code = malloc(bytes);
    if (!code) return NULL;
    if (memcmp(head.magic, MAGIC, sizeof head.magic) == 0 && read_all(fd, code, bytes)) {
        const lb_digest found = lb_digest_bytes(code, bytes);
        if (found.lo == head.low && found.hi == head.high) return code;
    }
    free(code);
    return NULL;
}

void *lb_kernel_cache_find(lb_digest key)
{
    char path[4096];
    int fd;
    if (!path_of(key, false, path, sizeof path) || lb_input_open(path, &fd, NULL) != LB_OK) return NULL;
    void *code = read_code(fd);
    close(fd);
    return code;
}

void lb_kernel_cache_keep(lb_digest key, const void *code, size_t bytes)
{
    char path[4096];
    char *file = malloc(sizeof(header) + bytes);
    if (file && bytes <= MOST_BYTES - sizeof(header) && path_of(key, true, path, sizeof path)) {
        const lb_digest of_code = lb_digest_bytes(code, bytes);
        header head = {.low = of_code.lo, .high = of_code.hi};
        memcpy(head.magic, MAGIC, sizeof head.magic);
        memcpy(file, &head, sizeof head);
        memcpy(file + sizeof head, code, bytes);
        lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
        how.sync = LB_OUTPUT_SYNC_NEVER;
        how.replace = true;
        lb_output_save(path, &how, file, sizeof head + bytes, NULL);
    }
    free(file);
}
