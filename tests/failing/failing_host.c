/* A host that fails: preloaded under a program, it lets the n-th allocation, or the n-th call of one kind, fail.
 *
 * It is a server of runs, too. When the program has been loaded it stops before main and reads lines from the first of
 * the two descriptors that FAILING_PIPES names:
 *
 *     KIND N LAST SECONDS        call N of KIND fails, and those after it up to call LAST; N 0: none does
 *
 * For each line it forks. The child runs main, with stdout and stderr in the files that FAILING_OUT and FAILING_ERR
 * name. The server then answers on the second one with
 *
 *     STATUS CALLS FAILED        as waitpid gives it; how many calls of KIND there were, and how many of them failed
 *
 * FAILING_PLACES names a file: a run in which none fails writes into it, a line each, the calls of KIND that come by a
 * way on which none came before, and a number of that way, of the return addresses of the innermost ones. So what a
 * command does a million times is tried once for each place in its code.
 *
 * So loading and linking are paid once, and a run of a small command takes a millisecond or two. A run that takes
 * longer than SECONDS ends by SIGALRM. A program that forks by itself, once it is warm, calls failing_host_choose.
 * FAILING_ONLY names libraries by parts of their paths, separated by commas: only calls that come from their code count
 * (for what is loaded later: as it is loaded). What the program starts runs without us. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STREAM_ERROR = 0x20 /* glibc's _IO_ERR_SEEN, which ferror reads */ };
static int asked, answered;

/* X(kind, the errno of its failure) */
#define KINDS(X)                                                                                                       \
    X(alloc, ENOMEM)                                                                                                   \
    X(mmap, ENOMEM)                                                                                                    \
    X(open, EMFILE)                                                                                                    \
    X(read, EIO)                                                                                                       \
    X(write, ENOSPC)                                                                                                   \
    X(sync, EIO)                                                                                                       \
    X(close, EIO)                                                                                                      \
    X(rename, EIO)                                                                                                     \
    X(unlink, EIO)                                                                                                     \
    X(truncate, EIO)                                                                                                   \
    X(seek, EIO)                                                                                                       \
    X(stat, EIO)                                                                                                       \
    X(folder, EMFILE) /* opendir, readdir, mkdir */                                                                    \
    X(path, EIO)      /* access, realpath, readlink */                                                                 \
    X(thread, EAGAIN)                                                                                                  \
    X(process, EAGAIN) /* pipe, fork, waitpid stays */

typedef enum kind {
#define ENUM(name, error) KIND_##name,
    KINDS(ENUM)
#undef ENUM
        N_KINDS
} kind;
static const char *const names[] = {
#define NAME(name, error) #name,
    KINDS(NAME)
#undef NAME
};
static const int errors[] = {
#define ERROR(name, error) error,
    KINDS(ERROR)
#undef ERROR
};

/* Shared between server and child. */
static struct tally {
    atomic_long calls, failed;
} *tally;
static int chosen = -1;
static long first, last;
static const char *only; /* NULL: calls from everywhere */

/* ---- whether this call fails ------------------------------------------------------------------------------------- */

/* The code that counts, found when it is loaded. */
static struct range {
    uintptr_t begin, end;
} ranges[64];
static int n_ranges;
static unsigned long long loads; /* how often something was loaded, when they were found */

static bool is_named(const char *path)
{
    for (const char *at = only; *at;) {
        const size_t n = strcspn(at, ",");
        for (const char *p = path; strlen(p) >= n; p++)
            if (!strncmp(p, at, n)) return true;
        at += at[n] ? n + 1 : n;
    }
    return false;
}

static int add_ranges(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size, (void)context;
    if (!info->dlpi_name || !is_named(info->dlpi_name)) return 0;
    for (int i = 0; i < info->dlpi_phnum && n_ranges < 64; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && p->p_flags & PF_X)
            ranges[n_ranges++] =
                (struct range){info->dlpi_addr + p->p_vaddr, info->dlpi_addr + p->p_vaddr + p->p_memsz};
    }
    return 0;
}

static int get_loads(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    *(unsigned long long *)context = info->dlpi_adds;
    return 1;
}

static bool counts(const void *caller)
{
    if (!only) return true;
    static _Thread_local bool inside;
    if (inside) return false;
    inside = true;
    unsigned long long now = 0;
    dl_iterate_phdr(get_loads, &now);
    if (now != loads) n_ranges = 0, dl_iterate_phdr(add_ranges, NULL), loads = now;
    inside = false;
    for (int i = 0; i < n_ranges; i++)
        if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end) return true;
    return false;
}

/* ---- ways to a call ---------------------------------------------------------------------------------------------- */

enum { DEEP = 7 /* of them two are ours */, SLOTS = 1 << 18 };
static uint64_t ways[SLOTS];
static pthread_mutex_t ways_lock = PTHREAD_MUTEX_INITIALIZER;
static int places = -1; /* the file of FAILING_PLACES */

static bool is_new(uint64_t way)
{
    for (uint64_t i = way; i < way + SLOTS; i++) {
        uint64_t *slot = &ways[i % SLOTS];
        if (*slot == way) return false;
        if (!*slot) return *slot = way, true;
    }
    return false;
}

static _Thread_local bool noting; /* an unwinder allocates, too */

static void note_place(long call)
{
    if (places < 0) return;
    noting = true;
    void *frames[DEEP];
    const int n = backtrace(frames, DEEP);
    uint64_t way = 1469598103934665603u;
    for (int i = 2; i < n; i++) way = (way ^ (uintptr_t)frames[i]) * 1099511628211u;
    pthread_mutex_lock(&ways_lock);
    if (is_new(way | 1)) dprintf(places, "%ld %llu\n", call, (unsigned long long)way | 1);
    pthread_mutex_unlock(&ways_lock);
    noting = false;
}

static bool fails(kind of, const void *caller)
{
    if ((int)of != chosen || noting || !counts(caller)) return false;
    const long call = atomic_fetch_add(&tally->calls, 1) + 1;
    note_place(call);
    if (call < first || call > last || !first) return false;
    atomic_fetch_add(&tally->failed, 1);
    errno = errors[of];
    return true;
}

#define FAILS(of) fails(KIND_##of, __builtin_return_address(0))

/* The function behind ours. */
#define REAL(name) ((__typeof__(&name))real(#name, &cached_##name))
#define CACHE(name) static void *cached_##name

static void *real(const char *name, void **cached)
{
    if (!*cached) *cached = dlsym(RTLD_NEXT, name);
    return *cached;
}

/* A wrapper of the same type as the function. */
#define WRAP(of, bad, type, name, parameters, arguments)                                                               \
    CACHE(name);                                                                                                       \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return FAILS(of) ? bad : REAL(name) arguments;                                                                 \
    }

/* ---- allocations ------------------------------------------------------------------------------------------------- */

/* Not by dlsym, which may allocate. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t n)
{
    return FAILS(alloc) ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return FAILS(alloc) ? NULL : __libc_calloc(n, size);
}
void *realloc(void *old, size_t n)
{
    return FAILS(alloc) ? NULL : __libc_realloc(old, n);
}
void *reallocarray(void *old, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return errno = ENOMEM, NULL;
    return FAILS(alloc) ? NULL : __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t alignment, size_t n)
{
    return FAILS(alloc) ? NULL : __libc_memalign(alignment, n);
}
void *memalign(size_t alignment, size_t n)
{
    return FAILS(alloc) ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **result, size_t alignment, size_t n)
{
    if (FAILS(alloc)) return ENOMEM;
    *result = __libc_memalign(alignment, n);
    return *result ? 0 : ENOMEM;
}

WRAP(mmap, MAP_FAILED, void *, mmap, (void *at, size_t n, int how, int flags, int fd, off_t offset),
     (at, n, how, flags, fd, offset))
#undef mmap64
WRAP(mmap, MAP_FAILED, void *, mmap64, (void *at, size_t n, int how, int flags, int fd, off64_t offset),
     (at, n, how, flags, fd, offset))

/* ---- files ------------------------------------------------------------------------------------------------------- */

static mode_t mode_of(int flags, va_list *list)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(*list, mode_t) : 0;
}
#define OPEN(name, parameters, head)                                                                                   \
    CACHE(name);                                                                                                       \
    int name parameters                                                                                                \
    {                                                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        const mode_t mode = mode_of(flags, &list);                                                                     \
        va_end(list);                                                                                                  \
        return FAILS(open) ? -1 : REAL(name) head;                                                                     \
    }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
int __open_2(const char *path, int flags), __open64_2(const char *path, int flags);
WRAP(open, -1, int, __open_2, (const char *path, int flags), (path, flags))
WRAP(open, -1, int, __open64_2, (const char *path, int flags), (path, flags))
WRAP(open, NULL, FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAP(open, NULL, FILE *, fopen64, (const char *path, const char *mode), (path, mode))
WRAP(open, -1, int, mkstemp, (char *template), (template))
WRAP(open, -1, int, mkostemp, (char *template, int flags), (template, flags))

WRAP(read, -1, ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
WRAP(read, -1, ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
WRAP(read, -1, ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))
WRAP(read, -1, ssize_t, readv, (int fd, const struct iovec *to, int n), (fd, to, n))
ssize_t __read_chk(int fd, void *to, size_t n, size_t room);
WRAP(read, -1, ssize_t, __read_chk, (int fd, void *to, size_t n, size_t room), (fd, to, n, room))
ssize_t __pread_chk(int fd, void *to, size_t n, off_t at, size_t room);
WRAP(read, -1, ssize_t, __pread_chk, (int fd, void *to, size_t n, off_t at, size_t room), (fd, to, n, at, room))
ssize_t __pread64_chk(int fd, void *to, size_t n, off64_t at, size_t room);
WRAP(read, -1, ssize_t, __pread64_chk, (int fd, void *to, size_t n, off64_t at, size_t room), (fd, to, n, at, room))

/* A stream that failed remembers it. One in memory (open_memstream) asks the system for nothing. */
#define BAD_STREAM(result) (stream->_flags |= STREAM_ERROR, (result))
#define STREAM_FAILS(of) (fileno(stream) >= 0 && FAILS(of))
#define WRAP_STREAM(of, bad, type, name, parameters, arguments)                                                        \
    CACHE(name);                                                                                                       \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return STREAM_FAILS(of) ? BAD_STREAM(bad) : REAL(name) arguments;                                              \
    }
WRAP_STREAM(read, 0, size_t, fread, (void *to, size_t size, size_t n, FILE *stream), (to, size, n, stream))
WRAP_STREAM(read, NULL, char *, fgets, (char *to, int n, FILE *stream), (to, n, stream))
WRAP_STREAM(read, -1, ssize_t, getline, (char **to, size_t *n, FILE *stream), (to, n, stream))
WRAP_STREAM(read, -1, ssize_t, getdelim, (char **to, size_t *n, int end, FILE *stream), (to, n, end, stream))
WRAP_STREAM(read, EOF, int, fgetc, (FILE * stream), (stream))
#undef getc
WRAP_STREAM(read, EOF, int, getc, (FILE * stream), (stream))
char *__fgets_chk(char *to, size_t room, int n, FILE *stream);
WRAP_STREAM(read, NULL, char *, __fgets_chk, (char *to, size_t room, int n, FILE *stream), (to, room, n, stream))
size_t __fread_chk(void *to, size_t room, size_t size, size_t n, FILE *stream);
WRAP_STREAM(read, 0, size_t, __fread_chk, (void *to, size_t room, size_t size, size_t n, FILE *stream),
            (to, room, size, n, stream))

WRAP(write, -1, ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
WRAP(write, -1, ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
WRAP(write, -1, ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at))
WRAP(write, -1, ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n))
WRAP_STREAM(write, 0, size_t, fwrite, (const void *from, size_t size, size_t n, FILE *stream), (from, size, n, stream))
CACHE(fflush);
int fflush(FILE *stream)
{
    if (stream && STREAM_FAILS(write)) return BAD_STREAM(EOF);
    return REAL(fflush)(stream);
}
WRAP(truncate, -1, int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(truncate, -1, int, ftruncate64, (int fd, off64_t n), (fd, n))

WRAP(sync, -1, int, fsync, (int fd), (fd))
WRAP(sync, -1, int, fdatasync, (int fd), (fd))
WRAP(sync, -1, int, msync, (void *at, size_t n, int how), (at, n, how))
WRAP(rename, -1, int, rename, (const char *from, const char *to), (from, to))
WRAP(rename, -1, int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(rename, -1, int, renameat2, (int a, const char *from, int b, const char *to, unsigned how), (a, from, b, to, how))
WRAP(rename, -1, int, link, (const char *from, const char *to), (from, to))
WRAP(rename, -1, int, linkat, (int a, const char *from, int b, const char *to, int how), (a, from, b, to, how))
WRAP(unlink, -1, int, unlink, (const char *path), (path))
WRAP(unlink, -1, int, remove, (const char *path), (path))
WRAP(unlink, -1, int, rmdir, (const char *path), (path))
WRAP(seek, -1, off_t, lseek, (int fd, off_t at, int whence), (fd, at, whence))
WRAP(seek, -1, off64_t, lseek64, (int fd, off64_t at, int whence), (fd, at, whence))
WRAP(seek, -1, int, fseek, (FILE * stream, long at, int whence), (stream, at, whence))
WRAP(seek, -1, int, fseeko, (FILE * stream, off_t at, int whence), (stream, at, whence))
WRAP(seek, -1, long, ftell, (FILE * stream), (stream))
WRAP(seek, -1, off_t, ftello, (FILE * stream), (stream))

/* What is closed is closed, whatever close says. */
CACHE(close);
int close(int fd)
{
    const bool bad = FAILS(close);
    const int closed = REAL(close)(fd);
    return bad ? (errno = EIO, -1) : closed;
}
CACHE(fclose);
int fclose(FILE *stream)
{
    const bool bad = STREAM_FAILS(close);
    const int closed = REAL(fclose)(stream);
    return bad ? (errno = EIO, EOF) : closed;
}

WRAP(stat, -1, int, stat, (const char *path, struct stat *to), (path, to))
WRAP(stat, -1, int, lstat, (const char *path, struct stat *to), (path, to))
WRAP(stat, -1, int, fstat, (int fd, struct stat *to), (fd, to))
WRAP(stat, -1, int, stat64, (const char *path, struct stat64 *to), (path, to))
WRAP(stat, -1, int, lstat64, (const char *path, struct stat64 *to), (path, to))
WRAP(stat, -1, int, fstat64, (int fd, struct stat64 *to), (fd, to))
WRAP(stat, -1, int, fstatat, (int folder, const char *path, struct stat *to, int how), (folder, path, to, how))
WRAP(folder, NULL, DIR *, opendir, (const char *path), (path))
WRAP(folder, NULL, DIR *, fdopendir, (int fd), (fd))
WRAP(folder, NULL, struct dirent *, readdir, (DIR * folder), (folder))
WRAP(folder, NULL, struct dirent64 *, readdir64, (DIR * folder), (folder))
WRAP(folder, -1, int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(path, -1, int, access, (const char *path, int how), (path, how))
WRAP(path, NULL, char *, realpath, (const char *path, char *to), (path, to))
WRAP(path, -1, ssize_t, readlink, (const char *path, char *to, size_t n), (path, to, n))

/* ---- threads and processes --------------------------------------------------------------------------------------- */

CACHE(pthread_create);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return FAILS(thread) ? EAGAIN : REAL(pthread_create)(thread, attributes, run, context);
}
WRAP(process, -1, int, pipe, (int ends[2]), (ends))
WRAP(process, -1, int, pipe2, (int ends[2], int flags), (ends, flags))
WRAP(process, -1, pid_t, fork, (void), ())

/* ---- the server -------------------------------------------------------------------------------------------------- */

typedef int program(int, char **, char **);
static program *served;

static void redirect(int fd, const char *variable)
{
    const char *path = getenv(variable);
    const int to = path ? REAL(open)(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (to < 0) return;
    dup2(to, fd);
    REAL(close)(to);
}

static void choose(const char *name, long from, long to)
{
    first = from, last = to;
    for (int k = 0; k < N_KINDS; k++)
        if (!strcmp(names[k], name)) chosen = k;
}

static void clear_tally(void)
{
    if (!tally) tally = REAL(mmap)(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tally->calls = tally->failed = 0;
}

/* For a program that is no server's: before it forks with a `name` of no kind, which clears the counts; in the child
 * with what is to fail. The counts are those of both. */
void failing_host_choose(const char *name, long from, long to);
void failing_host_choose(const char *name, long from, long to)
{
    only = getenv("FAILING_ONLY");
    if (!tally || !*name) clear_tally();
    choose(name, from, to);
}
void failing_host_counts(long counts[2]);
void failing_host_counts(long counts[2])
{
    counts[0] = tally->calls, counts[1] = tally->failed;
}

/* What runs behind the last handler of the program is not the program's: a build that counts branches writes its counts
 * there. */
static void spare(void)
{
    chosen = -1;
}

static int run(int argc, char **argv, char **environment, const char *name, long from, long to, unsigned seconds)
{
    REAL(close)(asked), REAL(close)(answered);
    redirect(1, "FAILING_OUT");
    redirect(2, "FAILING_ERR");
    const char *path = from ? NULL : getenv("FAILING_PLACES");
    if (path) places = REAL(open)(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    unsetenv("LD_PRELOAD");
    alarm(seconds);
    if (atexit(spare) != 0) return 2;
    choose(name, from, to);
    return served(argc, argv, environment);
}

static bool next_line(char *line, size_t room)
{
    size_t n = 0;
    while (n + 1 < room && REAL(read)(asked, line + n, 1) == 1)
        if (line[n++] == '\n') return line[n] = 0, true;
    return false;
}

static int serve(int argc, char **argv, char **environment)
{
    char line[160], name[32];
    only = getenv("FAILING_ONLY");
    const char *pipes = getenv("FAILING_PIPES");
    if (!pipes || sscanf(pipes, "%d %d", &asked, &answered) != 2) return served(argc, argv, environment);
    unsetenv("FAILING_PIPES");
    while (next_line(line, sizeof line)) {
        long from, to;
        unsigned seconds;
        int status = -1;
        if (sscanf(line, "%31s %ld %ld %u", name, &from, &to, &seconds) != 4) return 2;
        clear_tally();
        const pid_t child = REAL(fork)();
        if (child == 0) return run(argc, argv, environment, name, from, to, seconds);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        const int n = snprintf(line, sizeof line, "%d %ld %ld\n", status, tally->calls, tally->failed);
        if (REAL(write)(answered, line, (size_t)n) != n) return 2;
    }
    _exit(0);
}

typedef int start(program *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
int __libc_start_main(program *main, int argc, char **argv, void (*begin)(void), void (*end)(void),
                      void (*linker)(void), void *stack)
{
    served = main;
    start *real_start = (start *)dlsym(RTLD_NEXT, "__libc_start_main");
    return real_start(serve, argc, argv, begin, end, linker, stack);
}
