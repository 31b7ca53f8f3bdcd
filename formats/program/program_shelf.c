/* See program_shelf.h. The file is mapped piece by piece, at growing addresses in spans that are reserved whole, so
 * that neighbours are one mapping for the system, which knows a limited number of them. */
#define _GNU_SOURCE /* fallocate */
#include "program/program_shelf.h"

#include "program/program_store.h"

#include <lastbit/output.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SPAN = 256 << 20, ALIGN = 16 };

typedef struct span {
    char *at;
    size_t size, used;
} span;

struct lb_program_shelf {
    pthread_mutex_t lock;
    size_t memory, held, laid; /* of programs in memory, in the file */
    FILE *file;
    bool refused; /* no file, or no room in it */
    uint64_t end; /* of the file */
    span *spans;
    uint32_t n_spans;
};

lb_program_shelf *lb_program_shelf_new(size_t memory)
{
    lb_program_shelf *shelf = calloc(1, sizeof *shelf);
    if (!shelf) return NULL;
    pthread_mutex_init(&shelf->lock, NULL);
    shelf->memory = memory;
    return shelf;
}

void lb_program_shelf_free(lb_program_shelf *shelf)
{
    if (!shelf) return;
    for (uint32_t i = 0; i < shelf->n_spans; i++) munmap(shelf->spans[i].at, shelf->spans[i].size);
    if (shelf->file) fclose(shelf->file);
    pthread_mutex_destroy(&shelf->lock);
    free(shelf->spans);
    free(shelf);
}

/* ---- the bytes of a program -------------------------------------------------------------------------------------- */

static size_t rounded(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void *const *array_of(const lb_program *program, int id)
{
    return (void *const *)((const char *)program + lb_program_tables[id].array);
}

static size_t table_bytes(const lb_program *program, int id)
{
    const uint32_t count = *(const uint32_t *)((const char *)program + lb_program_tables[id].count);
    return rounded((size_t)count * lb_program_tables[id].row_bytes, ALIGN);
}

static size_t bytes_of(const lb_program *program)
{
    size_t n = 0;
    for (int id = 0; id < LB_TABLE_COUNT; id++) n += table_bytes(program, id);
    for (uint32_t i = 0; i < program->n_strings; i++) n += strlen(program->strings[i]) + 1;
    return n;
}

/* As they shall lie at `at`: the tables, then the strings' texts. */
static void lay_out(const lb_program *program, char *bytes, const char *at)
{
    size_t place = 0, text = 0;
    for (int id = 0; id < LB_TABLE_COUNT; id++) text += table_bytes(program, id);
    for (int id = 0; id < LB_TABLE_COUNT; id++) {
        const uint32_t count = *(const uint32_t *)((const char *)program + lb_program_tables[id].count);
        if (count && id != LB_TABLE_STRINGS)
            memcpy(bytes + place, *array_of(program, id), (size_t)count * lb_program_tables[id].row_bytes);
        for (uint32_t i = 0; id == LB_TABLE_STRINGS && i < count; i++) {
            const size_t n = strlen(program->strings[i]) + 1;
            const char *there = at + text;
            memcpy(bytes + place + i * sizeof there, &there, sizeof there);
            memcpy(bytes + text, program->strings[i], n);
            text += n;
        }
        place += table_bytes(program, id);
    }
}

static void point_into(lb_program *program, char *at)
{
    lb_program_release_tables(program);
    for (int id = 0; id < LB_TABLE_COUNT; id++) {
        *(void **)((char *)program + lb_program_tables[id].array) = at;
        at += table_bytes(program, id);
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool write_all(int fd, const char *bytes, size_t size, uint64_t at)
{
    while (size > 0) {
        const ssize_t done = pwrite(fd, bytes, size, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        bytes += done, size -= (size_t)done, at += (uint64_t)done;
    }
    return true;
}

/* Address space for a piece behind the last one. NULL: there is none. */
static char *reserve(lb_program_shelf *shelf, size_t size)
{
    span *last = shelf->n_spans ? &shelf->spans[shelf->n_spans - 1] : NULL;
    if (last && size <= last->size - last->used) return last->at + last->used;
    span *grown = realloc(shelf->spans, (shelf->n_spans + 1) * sizeof *grown);
    if (!grown) return NULL;
    shelf->spans = grown;
    const size_t whole = size > SPAN ? size : SPAN;
    char *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    shelf->spans[shelf->n_spans++] = (span){at, whole, 0};
    return at;
}

/* False: it stays as it is. */
static bool lay_down(lb_program_shelf *shelf, lb_program *program, size_t bytes)
{
    const size_t size = rounded(bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (!shelf->file) shelf->file = lb_output_scratch(NULL, NULL);
    char *at = shelf->file ? reserve(shelf, size) : NULL, *copy = at ? calloc(1, size) : NULL;
    if (!copy) return false;
    lay_out(program, copy, at);
    const bool written = write_all(fileno(shelf->file), copy, size, shelf->end);
    free(copy);
    if (!written ||
        mmap(at, size, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(shelf->file), (off_t)shelf->end) == MAP_FAILED)
        return false;
    shelf->spans[shelf->n_spans - 1].used += size;
    shelf->end += size, shelf->laid += size;
    point_into(program, at);
    program->store->laid_at = at, program->store->laid_bytes = size, program->store->laid_from = shelf->end - size;
    return true;
}

/* ---- verbs ------------------------------------------------------------------------------------------------------- */

void lb_program_shelf_put(lb_program_shelf *shelf, lb_program *program)
{
    const size_t bytes = bytes_of(program);
    pthread_mutex_lock(&shelf->lock);
    program->store->shelf = shelf, program->store->laid_bytes = bytes;
    if (shelf->held + bytes > shelf->memory && !shelf->refused) shelf->refused = !lay_down(shelf, program, bytes);
    if (!program->store->laid_at) shelf->held += bytes;
    pthread_mutex_unlock(&shelf->lock);
}

void lb_program_shelf_take(lb_program *program)
{
    struct lb_program_store *store = program->store;
    lb_program_shelf *shelf = store->shelf;
    pthread_mutex_lock(&shelf->lock);
    if (store->laid_at) {
        for (int id = 0; id < LB_TABLE_COUNT; id++) *(void **)((char *)program + lb_program_tables[id].array) = NULL;
        shelf->laid -= store->laid_bytes;
        /* The address stays reserved, so that nothing else gets it before the span goes; a file that keeps its room is
         * only larger. */
        mmap(store->laid_at, store->laid_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
        const int freed = fallocate(fileno(shelf->file), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                    (off_t)store->laid_from, (off_t)store->laid_bytes);
        (void)freed;
    } else {
        shelf->held -= store->laid_bytes;
    }
    store->shelf = NULL;
    pthread_mutex_unlock(&shelf->lock);
}

void lb_program_shelf_unload(lb_program_shelf *shelf)
{
    pthread_mutex_lock(&shelf->lock);
    for (uint32_t i = 0; i < shelf->n_spans; i++) madvise(shelf->spans[i].at, shelf->spans[i].used, MADV_DONTNEED);
    pthread_mutex_unlock(&shelf->lock);
}

size_t lb_program_shelf_laid(lb_program_shelf *shelf)
{
    pthread_mutex_lock(&shelf->lock);
    const size_t laid = shelf->laid;
    pthread_mutex_unlock(&shelf->lock);
    return laid;
}
