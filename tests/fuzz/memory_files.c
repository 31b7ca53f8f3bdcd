/* See memory_files.h. */
#define _GNU_SOURCE 1
#include "memory_files.h"

#include <lastbit/output.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES = 32, FIRST_HANDLE = 1 << 20, MAPS = 256 };

static struct {
    char path[120];
    const void *bytes;
    size_t size;
} files[FILES];
static int n_files;
static unsigned opened;
static void *maps[MAPS];

const char *memory_file(const char *name, const void *bytes, size_t size)
{
    char path[120];
    int i = 0;
    snprintf(path, sizeof path, MEMORY_FOLDER "/%s", name);
    while (i < n_files && strcmp(files[i].path, path) != 0) i++;
    if (i == FILES) abort();
    if (i == n_files) strcpy(files[n_files++].path, path);
    files[i].bytes = bytes, files[i].size = size;
    return files[i].path;
}

unsigned memory_files_open(void)
{
    unsigned n = opened;
    for (int i = 0; i < MAPS; i++) n += maps[i] != NULL;
    return n;
}

static bool is_ours(const char *path)
{
    return strncmp(path, MEMORY_FOLDER, sizeof MEMORY_FOLDER - 1) == 0;
}

static int find(const char *path)
{
    for (int i = 0; i < n_files; i++)
        if (strcmp(files[i].path, path) == 0) return i;
    errno = ENOENT;
    return -1;
}

static bool is_folder(const char *path)
{
    const size_t n = strlen(path);
    for (int i = 0; i < n_files; i++)
        if (strncmp(files[i].path, path, n) == 0 && files[i].path[n] == '/') return true;
    return false;
}

static int describe(int i, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_mode = i < 0 ? S_IFDIR | 0700 : S_IFREG | 0600;
    st->st_size = i < 0 ? 0 : (off_t)files[i].size;
    st->st_ino = (ino_t)(i + 2);
    return 0;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    if (!is_ours(path)) return __real_open(path, flags, mode);
    const int i = find(path);
    opened += i >= 0;
    return i < 0 ? -1 : FIRST_HANDLE + i;
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    if (fd < FIRST_HANDLE) return __real_close(fd);
    opened--;
    return 0;
}

int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st)
{
    return fd < FIRST_HANDLE ? __real_fstat(fd, st) : describe(fd - FIRST_HANDLE, st);
}

int __real_stat(const char *path, struct stat *st);
int __wrap_stat(const char *path, struct stat *st);
int __wrap_stat(const char *path, struct stat *st)
{
    if (!is_ours(path)) return __real_stat(path, st);
    const int i = find(path);
    return i >= 0 || is_folder(path) ? describe(i, st) : -1;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
    if (!is_ours(path)) return __real_access(path, mode);
    return find(path) >= 0 || is_folder(path) ? 0 : -1;
}

void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (fd < FIRST_HANDLE) return __real_mmap(at, size, protection, flags, fd, offset);
    for (int i = 0; i < MAPS; i++) {
        if (maps[i]) continue;
        maps[i] = malloc(size);
        if (maps[i]) memcpy(maps[i], files[fd - FIRST_HANDLE].bytes, size);
        return maps[i] ? maps[i] : MAP_FAILED;
    }
    abort();
}

int __real_munmap(void *map, size_t size);
int __wrap_munmap(void *map, size_t size);
int __wrap_munmap(void *map, size_t size)
{
    for (int i = 0; i < MAPS; i++) {
        if (maps[i] != map) continue;
        free(map);
        maps[i] = NULL;
        return 0;
    }
    return __real_munmap(map, size);
}

/* No reader of one file lists a folder, apart from those that then do without. */
DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
    if (!is_ours(path)) return __real_opendir(path);
    errno = EACCES;
    return NULL;
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (!is_ours(path)) return __real_fopen(path, mode);
    if (mode[0] != 'r') return fmemopen(NULL, 1 << 12, "w"); /* what is written is dropped */
    const int i = find(path);
    return i < 0 ? NULL : fmemopen((void *)(uintptr_t)files[i].bytes, files[i].size, "r");
}

lb_status __real_lb_output_open(const char *path, const lb_output_options *options, lb_output **output, lb_err *err);
lb_status __wrap_lb_output_open(const char *path, const lb_output_options *options, lb_output **output, lb_err *err);
/* What is written behind a file in memory (a journal) goes nowhere. */
lb_status __wrap_lb_output_open(const char *path, const lb_output_options *options, lb_output **output, lb_err *err)
{
    return __real_lb_output_open(is_ours(path) ? "/dev/null" : path, options, output, err);
}
