/* Where a log's bytes come from: see lb_watch_log_read in lastbit/watch.h. A followed file is asked for more five
 * times a second; when it is shorter than what was read it was cut, and when its name belongs to another file it was
 * rotated. */
#define _GNU_SOURCE /* versionsort */
#include "watch/captured_log.h"
#include "watch/log_reader.h"
#include "watch/metric_folder.h"

#include <lastbit/input.h>
#include <lastbit/clock.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 256 << 10, WAIT_MS = 200, TAR_MAGIC = 257 };

typedef struct tail {
    lb_watch_log *log;
    const lb_watch_source *source;
    const char *path;
    char *piece;
    double last_news;     /* when bytes came */
    struct timespec seen; /* when a document was written that is rewritten as it grows */
    bool begun, folder;
    lb_err *err;
} tail;

static bool stopped(const tail *tail)
{
    return tail->source->stop && tail->source->stop(tail->source->context);
}

/* Waits for more; false when the wait is over. */
static bool wait_for_more(tail *tail, int milliseconds)
{
    if (!tail->source->follow || stopped(tail)) return false;
    if (tail->source->idle_seconds > 0 && lb_clock_seconds() - tail->last_news > tail->source->idle_seconds)
        return false;
    const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&pause, NULL);
    return !stopped(tail);
}

static lb_status cannot(const tail *tail, const char *what)
{
    if (!lb_input_is_absent(errno)) return lb_input_refuse(tail->path, what, errno, tail->err);
    return lb_fail(tail->err, errno == ENOENT ? LB_ERR_NOT_FOUND : LB_ERR_IO, "cannot %s %s: %s", what, tail->path,
                   strerror(errno));
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static lb_status read_rest(tail *tail, int fd, uint64_t *offset)
{
    for (ssize_t n;;) {
        do n = read(fd, tail->piece, PIECE);
        while (n < 0 && errno == EINTR && !stopped(tail));
        if (n < 0 && errno != EINTR) return cannot(tail, "read");
        if (n <= 0) return LB_OK;
        *offset += (uint64_t)n;
        tail->last_news = lb_clock_seconds();
        LB_TRY(lb_watch_log_bytes(tail->log, tail->piece, (size_t)n, tail->err));
        if (stopped(tail)) return LB_OK;
    }
}

static bool is_newer(const struct stat *info, const struct timespec *seen)
{
    return info->st_mtim.tv_sec != seen->tv_sec || info->st_mtim.tv_nsec != seen->tv_nsec;
}

/* What is left of the file that had the name, then the one that has it. A name that is gone comes back: it is between
 * two files. One that may not be opened does not, and what is written there would never be seen. */
static lb_status go_on_in(tail *tail, const char *path, int *fd, uint64_t *offset)
{
    int other;
    lb_err why = LB_ERR_INIT;
    const lb_status opened = lb_input_open(path, &other, &why);
    if (opened == LB_ERR_NOT_FOUND) return LB_OK;
    if (opened != LB_OK) return lb_fail(tail->err, opened, "%s", why.message);
    const lb_status status = read_rest(tail, *fd, offset);
    close(*fd);
    *fd = other, *offset = 0;
    return status == LB_OK ? lb_watch_log_end(tail->log, tail->err) : status;
}

/* Whether the name belongs to another file now; the descriptor is then of that one. */
static lb_status look_again(tail *tail, const char *path, int *fd, uint64_t *offset)
{
    struct stat here, there;
    if (fstat(*fd, &here) != 0) return cannot(tail, "look at");
    if (stat(path, &there) != 0) {
        if (!lb_input_is_absent(errno)) return cannot(tail, "look at");
    } else if (here.st_ino != there.st_ino || here.st_dev != there.st_dev)
        return go_on_in(tail, path, fd, offset);
    const bool rewritten = lb_watch_log_counts(tail->log).format == LB_WATCH_TRAINER && is_newer(&here, &tail->seen);
    tail->seen = here.st_mtim;
    if (S_ISREG(here.st_mode) && ((uint64_t)here.st_size < *offset || rewritten)) {
        if (lseek(*fd, 0, SEEK_SET) < 0) return cannot(tail, "read again");
        *offset = 0;
        lb_watch_log_restart(tail->log);
    }
    return LB_OK;
}

static lb_status read_file(tail *followed, const char *path, int fd, bool (*is_over)(tail *, const char *))
{
    uint64_t offset = 0;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        const lb_status refused = cannot(followed, "look at");
        if (fd != STDIN_FILENO) close(fd);
        return refused;
    }
    const bool regular = S_ISREG(info.st_mode);
    if (regular) followed->seen = info.st_mtim;
    lb_status status = read_rest(followed, fd, &offset);
    while (status == LB_OK && regular && !(is_over && is_over(followed, path)) && wait_for_more(followed, WAIT_MS)) {
        status = look_again(followed, path, &fd, &offset);
        if (status == LB_OK) status = read_rest(followed, fd, &offset);
    }
    if (status == LB_OK) status = lb_watch_log_end(followed->log, followed->err);
    if (fd != STDIN_FILENO) close(fd);
    return status;
}

/* ---- a folder of event files ------------------------------------------------------------------------------------- */

static int is_event_file(const struct dirent *entry)
{
    return strstr(entry->d_name, "tfevents") != NULL;
}

static bool is_file_in(const char *folder, const char *name)
{
    char path[4608];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && lb_input_is_file(path);
}

/* The first event file of the folder behind `name` ("": the first of all) in the order of their names, which begin with
 * their time. */
static bool next_event_file(const char *folder, const char *name, char *next, size_t room)
{
    struct dirent **entries;
    errno = 0;
    const int n = scandir(folder, &entries, is_event_file, versionsort);
    if (n < 0 && !lb_input_is_absent(errno)) lb_input_refuse(folder, "list", errno, NULL);
    bool found = false;
    for (int i = 0; i < n; i++) {
        if (!found && strverscmp(entries[i]->d_name, name) > 0 && is_file_in(folder, entries[i]->d_name))
            found = snprintf(next, room, "%s", entries[i]->d_name) < (int)room;
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return found;
}

static bool is_followed_by_another(tail *tail, const char *path)
{
    char next[512];
    return next_event_file(tail->path, strrchr(path, '/') + 1, next, sizeof next);
}

static lb_status read_event_files(tail *tail)
{
    char name[512] = "", path[4608];
    while (next_event_file(tail->path, name, name, sizeof name) && !stopped(tail)) {
        if (snprintf(path, sizeof path, "%s/%s", tail->path, name) >= (int)sizeof path)
            return lb_fail(tail->err, LB_ERR_INVALID, "the path %s is too long", tail->path);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return cannot(tail, "open an event file of");
        LB_TRY(read_file(tail, path, fd, is_followed_by_another));
    }
    return LB_OK;
}

/* ---- a folder of transformers' checkpoints ----------------------------------------------------------------------- */

/* The copy of the log in the checkpoint behind `step`; the step of that checkpoint, -1: there is none yet. */
static int64_t next_copy(const char *folder, int64_t step, char *path, size_t room)
{
    lb_input_names names;
    int64_t found = -1;
    lb_input_list(folder, &names, NULL);
    for (uint32_t i = 0; i < names.n; i++) {
        long long number;
        char rest;
        if (sscanf(names.rows[i], "checkpoint-%lld%c", &number, &rest) != 1) continue;
        if (number <= step || (found >= 0 && number >= found)) continue;
        snprintf(path, room, "%s/%s/trainer_state.json", folder, names.rows[i]);
        if (lb_input_is_file(path)) found = number;
    }
    lb_input_names_release(&names);
    if (found >= 0) snprintf(path, room, "%s/checkpoint-%lld/trainer_state.json", folder, (long long)found);
    return found;
}

static bool is_trainer_folder(const char *folder)
{
    char path[4608];
    snprintf(path, sizeof path, "%s/trainer_state.json", folder);
    return lb_input_is_file(path) || next_copy(folder, -1, path, sizeof path) >= 0;
}

/* One copy; while it is being written it is not whole, and is read again. */
static lb_status read_copy(tail *tail, const char *path, bool *whole)
{
    uint64_t offset = 0;
    *whole = false;
    int fd;
    if (lb_input_open(path, &fd, NULL) != LB_OK) return LB_OK; /* a run keeps its last checkpoints alone */
    lb_status status = read_rest(tail, fd, &offset);
    close(fd);
    *whole = offset && lb_watch_log_is_whole(tail->log);
    if (status == LB_OK && (*whole || !tail->source->follow)) return lb_watch_log_end(tail->log, tail->err);
    lb_watch_log_restart(tail->log);
    return status;
}

/* Every checkpoint's copy holds what those before it hold, and the copy beside them all of it, when the run is over. */
static lb_status read_checkpoints(tail *tail)
{
    char path[4608];
    struct stat info;
    bool whole;
    for (int64_t step = -1; !stopped(tail);) {
        const int64_t next = next_copy(tail->path, step, path, sizeof path);
        if (next < 0) snprintf(path, sizeof path, "%s/trainer_state.json", tail->path);
        const bool there = next >= 0 || (lb_input_look(path, &info, NULL) == LB_OK && is_newer(&info, &tail->seen));
        if (there) LB_TRY(read_copy(tail, path, &whole));
        if (there && next < 0) tail->seen = whole ? info.st_mtim : tail->seen;
        if (there && next >= 0 && (whole || !tail->source->follow)) {
            *strrchr(path, '/') = '\0';
            lb_watch_log_give_checkpoint(tail->log, next, path);
            step = next;
            continue;
        }
        if (!wait_for_more(tail, WAIT_MS)) break;
    }
    return LB_OK;
}

/* ---- a capture --------------------------------------------------------------------------------------------------- */

static off_t size_of(const char *path)
{
    struct stat info;
    off_t sum = 0;
    if (stat(path, &info) != 0) return 0;
    if (!S_ISDIR(info.st_mode)) return info.st_size;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 && S_ISREG(info.st_mode)) sum += info.st_size;
    if (dir) closedir(dir);
    return sum;
}

/* A capture that grows is opened again, and rests for ten times as long as that took. */
static lb_status read_capture(tail *tail)
{
    int64_t last = INT64_MIN;
    off_t size = size_of(tail->path);
    LB_TRY(lb_captured_log_read(tail->log, tail->path, &last, tail->err));
    tail->begun = true;
    tail->last_news = lb_clock_seconds();
    for (double rest = 0; wait_for_more(tail, WAIT_MS);) {
        const off_t grown = size_of(tail->path);
        if (grown == size || lb_clock_seconds() < rest) continue;
        const double begin = lb_clock_seconds();
        lb_err busy = LB_ERR_INIT; /* between two writes it may not read; the next look does */
        if (lb_captured_log_read(tail->log, tail->path, &last, &busy) == LB_OK) size = grown;
        tail->last_news = lb_clock_seconds();
        rest = lb_clock_seconds() + 10 * (lb_clock_seconds() - begin);
    }
    return LB_OK;
}

/* ---- which of them ----------------------------------------------------------------------------------------------- */

static lb_status is_tar(const tail *tail, int fd, bool *is)
{
    char magic[5];
    const ssize_t n = pread(fd, magic, sizeof magic, TAR_MAGIC);
    *is = n == sizeof magic && !memcmp(magic, "ustar", sizeof magic);
    return n < 0 ? cannot(tail, "read") : LB_OK;
}

/* LB_OK or `begun`: there was something to read. */
static lb_status begin_path(tail *tail)
{
    struct stat info;
    char first[512];
    const lb_watch_format format = lb_watch_log_counts(tail->log).format;
    tail->folder = false;
    if (stat(tail->path, &info) != 0) return cannot(tail, "open");
    tail->folder = S_ISDIR(info.st_mode);
    if (format == LB_WATCH_CAPTURE) return read_capture(tail);
    if (tail->folder) {
        tail->begun = true;
        if (next_event_file(tail->path, "", first, sizeof first)) return read_event_files(tail);
        if (is_trainer_folder(tail->path)) return read_checkpoints(tail);
        if (lb_metric_folder_is(tail->path)) return lb_metric_folder_read(tail->log, tail->path, tail->err);
        tail->begun = false;
        if (format == LB_WATCH_AUTO) return read_capture(tail);
        return lb_fail(tail->err, LB_ERR_INVALID, "%s is a folder without event files", tail->path);
    }
    if (S_ISREG(info.st_mode) && (format == LB_WATCH_AUTO || format == LB_WATCH_MLFLOW) &&
        lb_metric_folder_is(tail->path)) {
        tail->begun = true;
        return lb_metric_folder_read(tail->log, tail->path, tail->err);
    }
    const int fd = open(tail->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return cannot(tail, "open");
    bool tar = false;
    lb_status status = format == LB_WATCH_AUTO && S_ISREG(info.st_mode) ? is_tar(tail, fd, &tar) : LB_OK;
    if (status != LB_OK || tar) close(fd);
    LB_TRY(status);
    if (tar) return read_capture(tail);
    tail->begun = true;
    return read_file(tail, tail->path, fd, NULL);
}

/* A path that is not there, or a folder with nothing in it that is read, is waited for where the log is followed. */
static lb_status read_path(tail *tail)
{
    if (!strcmp(tail->path, "-")) return read_file(tail, tail->path, STDIN_FILENO, NULL);
    for (bool told = false;; told = true) {
        const lb_status status = begin_path(tail);
        const bool may_come = status == LB_ERR_NOT_FOUND || tail->folder;
        if (status == LB_OK || tail->begun || !may_come || !tail->source->follow) return status;
        if (!told && tail->source->absent) tail->source->absent(tail->source->context, tail->err->message);
        if (!wait_for_more(tail, WAIT_MS)) return stopped(tail) ? LB_OK : status;
        lb_err_clear(tail->err);
    }
}

lb_status lb_watch_log_read(lb_watch_log *log, const char *path, const lb_watch_source *source, lb_err *err)
{
    lb_watch_source chosen = LB_WATCH_SOURCE_INIT;
    lb_err own = LB_ERR_INIT;
    if (source) memcpy(&chosen, source, source->size < sizeof chosen ? source->size : sizeof chosen);
    tail tail = {.log = log, .source = &chosen, .path = path, .last_news = lb_clock_seconds(), .err = &own};
    tail.piece = malloc(PIECE);
    if (!tail.piece) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = read_path(&tail);
    free(tail.piece);
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", own.message);
}
