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

static void *const *array_of(const lb_program *p, int id)
{
    return (void *const *)((const char *)p + lb_program_tables[id].array);
}

static size_t table_bytes(const lb_program *p, int id)
{
    const uint32_t count = *(const uint32_t *)((const char *)p + lb_program_tables[id].count);
    return rounded((size_t)count * lb_program_tables[id].row_bytes, ALIGN);
}

static size_t bytes_of(const lb_program *p)
{
    size_t n = 0;
    for (int id = 0; id < LB_TABLE_COUNT; id++) n += table_bytes(p, id);
    for (uint32_t i = 0; i < p->n_strings; i++) n += strlen(p->strings[i]) + 1;
    return n;
}

/* As they shall lie at `at`: the tables, then the strings' texts. */
static void lay_out(const lb_program *p, char *bytes, const char *at)
{
    size_t place = 0, text = 0;
    for (int id = 0; id < LB_TABLE_COUNT; id++) text += table_bytes(p, id);
    for (int id = 0; id < LB_TABLE_COUNT; id++) {
        const uint32_t count = *(const uint32_t *)((const char *)p + lb_program_tables[id].count);
        if (count && id != LB_TABLE_STRINGS)
            memcpy(bytes + place, *array_of(p, id), (size_t)count * lb_program_tables[id].row_bytes);
        for (uint32_t i = 0; id == LB_TABLE_STRINGS && i < count; i++) {
            const size_t n = strlen(p->strings[i]) + 1;
            const char *there = at + text;
            memcpy(bytes + place + i * sizeof there, &there, sizeof there);
            memcpy(bytes + text, p->strings[i], n);
            text += n;
        }
        place += table_bytes(p, id);
    }
}

static void point_into(lb_program *p, char *at)
{
    lb_program_release_tables(p);
    for (int id = 0; id < LB_TABLE_COUNT; id++) {
        *(void **)((char *)p + lb_program_tables[id].array) = at;
        at += table_bytes(p, id);
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
static char *reserve(lb_program_shelf *s, size_t size)
{
    span *last = s->n_spans ? &s->spans[s->n_spans - 1] : NULL;
    if (last && size <= last->size - last->used) return last->at + last->used;
    span *grown = realloc(s->spans, (s->n_spans + 1) * sizeof *grown);
    if (!grown) return NULL;
    s->spans = grown;
    const size_t whole = size > SPAN ? size : SPAN;
    char *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    s->spans[s->n_spans++] = (span){at, whole, 0};
    return at;
}

/* False: it stays as it is. */
static bool lay_down(lb_program_shelf *s, lb_program *p, size_t bytes)
{
    const size_t size = rounded(bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (!s->file) s->file = lb_output_scratch(NULL, NULL);
    char *at = s->file ? reserve(s, size) : NULL, *copy = at ? calloc(1, size) : NULL;
    if (!copy) return false;
    lay_out(p, copy, at);
    const bool written = write_all(fileno(s->file), copy, size, s->end);
    free(copy);
    if (!written || mmap(at, size, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(s->file), (off_t)s->end) == MAP_FAILED)
        return false;
    s->spans[s->n_spans - 1].used += size;
    s->end += size, s->laid += size;
    point_into(p, at);
    p->store->laid_at = at, p->store->laid_bytes = size, p->store->laid_from = s->end - size;
    return true;
}

/* ---- verbs ------------------------------------------------------------------------------------------------------- */

void lb_program_shelf_put(lb_program_shelf *s, lb_program *p)
{
    const size_t bytes = bytes_of(p);
    pthread_mutex_lock(&s->lock);
    p->store->shelf = s, p->store->laid_bytes = bytes;
    if (s->held + bytes > s->memory && !s->refused) s->refused = !lay_down(s, p, bytes);
    if (!p->store->laid_at) s->held += bytes;
    pthread_mutex_unlock(&s->lock);
}

void lb_program_shelf_take(lb_program *p)
{
    struct lb_program_store *store = p->store;
    lb_program_shelf *s = store->shelf;
    pthread_mutex_lock(&s->lock);
    if (store->laid_at) {
        for (int id = 0; id < LB_TABLE_COUNT; id++) *(void **)((char *)p + lb_program_tables[id].array) = NULL;
        s->laid -= store->laid_bytes;
        /* The address stays reserved, so that it is nobody else's when the span goes; a file that keeps its room is
         * only larger. */
        mmap(store->laid_at, store->laid_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
        const int freed = fallocate(fileno(s->file), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                    (off_t)store->laid_from, (off_t)store->laid_bytes);
        (void)freed;
    } else {
        s->held -= store->laid_bytes;
    }
    store->shelf = NULL;
    pthread_mutex_unlock(&s->lock);
}

void lb_program_shelf_unload(lb_program_shelf *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_spans; i++) madvise(s->spans[i].at, s->spans[i].used, MADV_DONTNEED);
    pthread_mutex_unlock(&s->lock);
}

size_t lb_program_shelf_laid(lb_program_shelf *s)
{
    pthread_mutex_lock(&s->lock);
    const size_t laid = s->laid;
    pthread_mutex_unlock(&s->lock);
    return laid;
}
