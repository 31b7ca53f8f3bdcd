/* See disk_model.h. */
#define _GNU_SOURCE
#include "disk_model.h"

#include "write_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NONE = -1, ROOT = 0, UPDATES = 4 };

typedef struct change {
    size_t at;
    bool truncated;
    uint64_t offset, size;
    const uint8_t *bytes;
} change;

/* A file or a folder. */
typedef struct object {
    bool folder;
    uint64_t inode; /* 0: not seen in the log yet */
    uint8_t *first; /* what it held at the start */
    size_t first_size;
    change *changes;
    size_t n_changes, *syncs, n_syncs; /* events */
} object;

typedef struct entry {
    int folder, object;
    char *name;
} entry;

/* What one event did to names, as one: entries set, or removed (object NONE). */
typedef struct renaming {
    size_t at;
    int n;
    entry updates[UPDATES];
} renaming;

typedef struct thing {
    int object; /* NONE: of names */
    size_t index;
} thing;

struct disk_model {
    uint8_t *log;
    size_t events, syncs;
    object *objects;
    int n_objects;
    entry *live; /* names, while the log is read */
    int n_live;
    renaming *renamings;
    size_t n_renamings;
    thing *pending;
    size_t n_pending, room_pending;
};

static void *grown(void *array, size_t n, size_t width)
{
    if (n & (n - 1)) return array;
    void *larger = realloc(array, (n ? 2 * n : 1) * width);
    if (!larger) abort();
    return larger;
}
#define PUSH(array, n, ...) ((array) = grown((array), (size_t)(n), sizeof *(array)), (array)[(n)++] = (__VA_ARGS__))

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "disk_model: %s: %s: %s\n", which, what, strerror(errno));
    exit(2);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static int find_entry(const entry *list, int n, int folder, const char *name)
{
    for (int i = 0; i < n; i++)
        if (list[i].folder == folder && strcmp(list[i].name, name) == 0) return i;
    return NONE;
}

static void apply(entry **list, int *n, const entry *update)
{
    const int at = find_entry(*list, *n, update->folder, update->name);
    if (update->object == NONE && at != NONE)
        (*list)[at] = (*list)[--*n];
    else if (update->object != NONE && at != NONE)
        (*list)[at].object = update->object;
    else if (update->object != NONE)
        PUSH(*list, *n, *update);
}

/* The folder of a path and its last name; NONE: the folder is unknown. */
static int parent_of(const disk_model *m, const char *path, char *name)
{
    int folder = ROOT;
    for (;;) {
        const char *slash = strchr(path, '/');
        const size_t n = slash ? (size_t)(slash - path) : strlen(path);
        memcpy(name, path, n), name[n] = 0;
        if (!slash) return folder;
        const int at = find_entry(m->live, m->n_live, folder, name);
        if (at == NONE || !m->objects[m->live[at].object].folder) return NONE;
        folder = m->live[at].object;
        path = slash + 1;
    }
}

static int object_at(const disk_model *m, const char *path)
{
    char name[PATH_MAX];
    if (!*path) return ROOT;
    const int folder = parent_of(m, path, name),
              at = folder == NONE ? NONE : find_entry(m->live, m->n_live, folder, name);
    return at == NONE ? NONE : m->live[at].object;
}

static int add_object(disk_model *m, bool folder, uint64_t inode)
{
    PUSH(m->objects, m->n_objects, (object){.folder = folder, .inode = inode});
    return m->n_objects - 1;
}

static void update(disk_model *m, renaming *r, const char *path, int to)
{
    char name[PATH_MAX];
    const int folder = parent_of(m, path, name);
    if (folder == NONE) return;
    r->updates[r->n] = (entry){folder, to, strdup(name)};
    apply(&m->live, &m->n_live, &r->updates[r->n++]);
}

/* ---- what was there ---------------------------------------------------------------------------------------------- */

static uint8_t *read_file(const char *path, size_t *size)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) fail("cannot read it", path);
    uint8_t *bytes = malloc((size_t)st.st_size + 1);
    *size = (size_t)st.st_size;
    for (size_t at = 0; bytes && at < *size;) {
        const ssize_t n = read(fd, bytes + at, *size - at);
        if (n <= 0) fail("cannot read it", path);
        at += (size_t)n;
    }
    close(fd);
    if (!bytes) abort();
    return bytes;
}

static void load_folder(disk_model *m, const char *path, int folder)
{
    DIR *dir = opendir(path);
    if (!dir) fail("cannot list it", path);
    for (struct dirent *one; (one = readdir(dir));) {
        char inner[PATH_MAX];
        struct stat st;
        if (!strcmp(one->d_name, ".") || !strcmp(one->d_name, "..")) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, one->d_name) >= (int)sizeof inner || lstat(inner, &st) != 0)
            continue;
        const int at = add_object(m, S_ISDIR(st.st_mode), 0);
        PUSH(m->live, m->n_live, (entry){folder, at, strdup(one->d_name)});
        PUSH(m->renamings, m->n_renamings, (renaming){SIZE_MAX, 1, {{folder, at, strdup(one->d_name)}}});
        if (S_ISDIR(st.st_mode)) load_folder(m, inner, at);
        if (S_ISREG(st.st_mode)) {
            size_t size;
            uint8_t *bytes = read_file(inner, &size);
            m->objects[at].first = bytes, m->objects[at].first_size = size;
        }
    }
    closedir(dir);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static object *by_inode(disk_model *m, uint64_t inode)
{
    for (int i = m->n_objects; i-- > 0;) /* the youngest: numbers are used again */
        if (m->objects[i].inode == inode) return &m->objects[i];
    return NULL;
}

static void sync_folder(disk_model *m, int folder, size_t at)
{
    if (folder != NONE) PUSH(m->objects[folder].syncs, m->objects[folder].n_syncs, at);
}

static void take_names(disk_model *m, const log_header *h, const char *path, const char *path2, size_t at)
{
    renaming r = {.at = at};
    const int from = object_at(m, path), to = h->path2 ? object_at(m, path2) : NONE;
    switch (h->kind) {
    case LOG_OPENED:
        if (from != NONE && (m->objects[from].inode == 0 || m->objects[from].inode == h->inode))
            m->objects[from].inode = h->inode;
        else
            update(m, &r, path, add_object(m, false, h->inode));
        break;
    case LOG_MKDIR: update(m, &r, path, add_object(m, true, 0)); break;
    case LOG_UNLINK:
    case LOG_RMDIR: update(m, &r, path, NONE); break;
    case LOG_LINK: update(m, &r, path2, from); break;
    default:
        if (from == NONE) break;
        update(m, &r, path2, from);
        update(m, &r, path, h->offset ? to : NONE);
    }
    if (r.n) PUSH(m->renamings, m->n_renamings, r);
}

static void take(disk_model *m, const log_header *h, const char *path, const char *path2, const uint8_t *bytes,
                 size_t at)
{
    object *o = h->inode ? by_inode(m, h->inode) : NULL;
    switch (h->kind) {
    case LOG_WRITE:
        if (o) PUSH(o->changes, o->n_changes, (change){at, false, h->offset, h->size, bytes});
        break;
    case LOG_TRUNCATE:
        if (o) PUSH(o->changes, o->n_changes, (change){at, true, h->offset, 0, NULL});
        break;
    case LOG_SYNC:
        if (o) PUSH(o->syncs, o->n_syncs, at), m->syncs++;
        break;
    case LOG_SYNC_FOLDER: sync_folder(m, object_at(m, path), at), m->syncs++; break;
    case LOG_SYNC_ALL:
        for (int i = 0; i < m->n_objects; i++) sync_folder(m, i, at);
        m->syncs++;
        break;
    default: take_names(m, h, path, path2, at);
    }
}

disk_model *disk_model_load(const char *log, const char *start)
{
    disk_model *m = calloc(1, sizeof *m);
    size_t size, at = 0;
    if (!m) abort();
    add_object(m, true, 0);
    if (start) load_folder(m, start, ROOT);
    m->log = read_file(log, &size);
    while (at + sizeof(log_header) <= size) {
        log_header h;
        char path[PATH_MAX] = "", path2[PATH_MAX] = "";
        memcpy(&h, m->log + at, sizeof h);
        at += sizeof h;
        if (h.magic != WRITE_LOG_MAGIC || h.path >= PATH_MAX || h.path2 >= PATH_MAX ||
            h.path + h.path2 + h.size > size - at)
            fail("this is no log of writes", log);
        memcpy(path, m->log + at, h.path), memcpy(path2, m->log + at + h.path, h.path2);
        at += h.path + h.path2;
        take(m, &h, path, path2, m->log + at, m->events++);
        at += h.size;
    }
    return m;
}

size_t disk_model_events(const disk_model *model)
{
    return model->events;
}

size_t disk_model_syncs(const disk_model *model)
{
    return model->syncs;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* The last sync before `at`, as one more than its event; 0: none. */
static size_t synced_before(const object *o, size_t at)
{
    size_t last = 0;
    for (size_t i = 0; i < o->n_syncs && o->syncs[i] < at; i++) last = o->syncs[i] + 1;
    return last;
}

static bool is_permanent(const disk_model *m, const renaming *r, size_t at)
{
    if (r->at == SIZE_MAX) return true;
    for (int i = 0; i < r->n; i++)
        if (synced_before(&m->objects[r->updates[i].folder], at) <= r->at) return false;
    return true;
}

static void add_pending(disk_model *m, int object, size_t index)
{
    PUSH(m->pending, m->n_pending, (thing){object, index});
}

size_t disk_model_pending(disk_model *m, size_t at)
{
    m->n_pending = 0;
    for (size_t i = 0; i < m->n_renamings; i++)
        if ((m->renamings[i].at == SIZE_MAX || m->renamings[i].at < at) && !is_permanent(m, &m->renamings[i], at))
            add_pending(m, NONE, i);
    for (int o = 0; o < m->n_objects; o++) {
        const size_t from = synced_before(&m->objects[o], at);
        for (size_t i = 0; i < m->objects[o].n_changes; i++)
            if (m->objects[o].changes[i].at >= from && m->objects[o].changes[i].at < at) add_pending(m, o, i);
    }
    return m->n_pending;
}

size_t disk_model_pending_names(const disk_model *m)
{
    size_t n = 0;
    while (n < m->n_pending && m->pending[n].object == NONE) n++;
    return n;
}

typedef struct image {
    uint8_t *bytes;
    size_t size, room;
} image;

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static void resize(image *to, size_t size, disk_unwritten unwritten, uint32_t seed)
{
    if (size > to->room) {
        to->room = size + size / 2 + 4096;
        to->bytes = realloc(to->bytes, to->room);
        if (!to->bytes) abort();
    }
    for (size_t i = to->size; i < size; i++)
        to->bytes[i] = unwritten == DISK_STALE ? (uint8_t)mix(seed + (uint32_t)i) : 0;
    to->size = size;
}

static void apply_change(image *to, const change *c, uint8_t reached, const disk_state *s)
{
    const size_t end = c->truncated ? c->offset : c->offset + c->size;
    if (c->truncated) {
        if (reached) resize(to, end, s->unwritten, s->seed);
        return;
    }
    if (reached == 0 && s->unwritten == DISK_SHORT) return;
    if (end > to->size) resize(to, end, s->unwritten, s->seed);
    if (reached == 0) return;
    for (size_t from = c->offset, next; from < end; from = next) {
        next = (from / SECTOR + 1) * SECTOR;
        if (next > end) next = end;
        if (reached == 1 || mix(s->seed ^ (uint32_t)(from / SECTOR) * 2654435761u) & 1)
            memcpy(to->bytes + from, c->bytes + (from - c->offset), next - from);
    }
}

static void write_file(disk_model *m, int index, const disk_state *s, const char *path)
{
    static image to;
    const object *o = &m->objects[index];
    const size_t permanent = synced_before(o, s->at);
    size_t k = 0;
    while (k < m->n_pending && m->pending[k].object != index) k++;
    to.size = 0;
    resize(&to, o->first_size, DISK_ZEROS, 0);
    if (o->first_size) memcpy(to.bytes, o->first, o->first_size);
    for (size_t i = 0; i < o->n_changes && o->changes[i].at < s->at; i++)
        apply_change(&to, &o->changes[i], o->changes[i].at < permanent ? 1 : s->reached[k++], s);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t at = 0; fd >= 0 && at < to.size;) {
        const ssize_t n = write(fd, to.bytes + at, to.size - at);
        if (n <= 0) fail("cannot write it", path);
        at += (size_t)n;
    }
    if (fd < 0 || close(fd) != 0) fail("cannot write it", path);
}

static void write_folder(disk_model *m, const entry *names, int n, int folder, const disk_state *s, const char *path)
{
    for (int i = 0; i < n; i++) {
        char inner[PATH_MAX];
        if (names[i].folder != folder ||
            snprintf(inner, sizeof inner, "%s/%s", path, names[i].name) >= (int)sizeof inner)
            continue;
        if (!m->objects[names[i].object].folder)
            write_file(m, names[i].object, s, inner);
        else if (mkdir(inner, 0700) == 0 || errno == EEXIST)
            write_folder(m, names, n, names[i].object, s, inner);
        else
            fail("cannot make it", inner);
    }
}

void disk_model_empty(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *one; dir && (one = readdir(dir));) {
        char inner[PATH_MAX];
        if (!strcmp(one->d_name, ".") || !strcmp(one->d_name, "..")) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, one->d_name) >= (int)sizeof inner || unlink(inner) == 0)
            continue;
        disk_model_empty(inner);
        rmdir(inner);
    }
    if (dir) closedir(dir);
}

void disk_model_write(disk_model *m, const disk_state *s, const char *folder)
{
    entry *names = NULL;
    int n = 0;
    size_t k = 0;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) fail("cannot make it", folder);
    disk_model_empty(folder);
    disk_model_pending(m, s->at);
    for (size_t i = 0; i < m->n_renamings; i++) {
        const renaming *r = &m->renamings[i];
        if (r->at != SIZE_MAX && r->at >= s->at) continue;
        if (!is_permanent(m, r, s->at) && !s->reached[k++]) continue;
        for (int u = 0; u < r->n; u++) apply(&names, &n, &r->updates[u]);
    }
    write_folder(m, names, n, ROOT, s, folder);
    free(names);
}
