/* Workers that meet in a folder: see part_folder.h. */
#include "parts/part_folder.h"

#include "base/array.h"

#include <lastbit/input.h>
#include <lastbit/output.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* A claim whose time is yet to come: when it was first seen with that time. */
typedef struct watched {
    char *claim;
    struct timespec touched, since; /* by its host's clock or the file system's; by this host's, which none sets */
} watched;

struct lb_part_folder {
    char *path;
    uint32_t worker, workers;
    char host[80]; /* and its boot: process numbers of another start of it say nothing */
    char beat[160];
    /* The thread that says that this worker lives. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int claim; /* descriptor of what it is at; -1: nothing */
    bool beats, ends;
    bool again; /* a start of these workers has ended here before */
    watched *watched;
    uint32_t n_watched;
};

static char *path_in(const lb_part_folder *folder, const char *name)
{
    const size_t n = strlen(folder->path) + strlen(name) + 2;
    char *path = malloc(n);
    if (path) snprintf(path, n, "%s/%s", folder->path, name);
    return path;
}

static void chunk_name(char name[96], const char *loop, uint64_t chunk, const char *what)
{
    snprintf(name, 96, "%.64s-%06llu.%s", loop, (unsigned long long)chunk, what);
}

char *lb_part_folder_file(const lb_part_folder *folder, const char *loop, uint64_t chunk)
{
    char name[96];
    chunk_name(name, loop, chunk, "part");
    return path_in(folder, name);
}

/* ---- who lives --------------------------------------------------------------------------------------------------- */

static void name_host(char host[80])
{
    char boot[40] = "", name[36] = "host";
    FILE *from = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (from && !fgets(boot, sizeof boot, from)) boot[0] = '\0';
    if (from) fclose(from);
    boot[strcspn(boot, "\n")] = '\0';
    gethostname(name, sizeof name - 1);
    for (char *at = name; *at; at++)
        if (*at == '/') *at = '_';
    snprintf(host, 80, "%s-%.8s", name, boot);
}

static void *keep_beating(void *context)
{
    lb_part_folder *folder = context;
    pthread_mutex_lock(&folder->lock);
    while (!folder->ends) {
        struct timespec until;
        if (folder->claim >= 0) futimens(folder->claim, NULL);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&folder->changed, &folder->lock, &until);
    }
    pthread_mutex_unlock(&folder->lock);
    return NULL;
}

static double touched_at(const struct stat *st)
{
    return (double)st->st_mtim.tv_sec + 1e-9 * (double)st->st_mtim.tv_nsec;
}

/* The file system's time, in seconds: of a file that was touched now. */
static bool folder_clock(const lb_part_folder *folder, double *now)
{
    struct stat st;
    char *path = path_in(folder, folder->beat);
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    const bool known = fd >= 0 && futimens(fd, NULL) == 0 && fstat(fd, &st) == 0;
    if (known) *now = touched_at(&st);
    if (fd >= 0) close(fd);
    free(path);
    return known;
}

/* Whether a claim has borne this time for so many seconds, seen from here: its owner's clock, or the file system's, was
 * ahead when it was touched, and an owner that lives goes on touching it. */
static bool was_left_alone(lb_part_folder *folder, const char *claim, struct timespec touched, double seconds)
{
    struct timespec now;
    uint32_t i = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    while (i < folder->n_watched && strcmp(folder->watched[i].claim, claim) != 0) i++;
    watched *grown =
        i < folder->n_watched ? folder->watched : lb_array_grow(folder->watched, folder->n_watched, sizeof *grown);
    if (!grown) return false;
    folder->watched = grown;
    if (i == folder->n_watched) {
        folder->watched[i] = (watched){.claim = strdup(claim), .touched = touched, .since = now};
        folder->n_watched += folder->watched[i].claim != NULL;
        return false;
    }
    watched *seen = &folder->watched[i];
    if (seen->touched.tv_sec != touched.tv_sec || seen->touched.tv_nsec != touched.tv_nsec)
        seen->touched = touched, seen->since = now;
    return (double)(now.tv_sec - seen->since.tv_sec) + 1e-9 * (double)(now.tv_nsec - seen->since.tv_nsec) > seconds;
}

/* The worker of this claim has ended: its process is gone from this host, or it was not touched for long. */
static bool is_abandoned(lb_part_folder *folder, const char *claim)
{
    char text[128] = "", host[80] = "";
    struct stat st;
    double now;
    long pid = 0;
    const int fd = open(claim, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno == ENOENT;
    const ssize_t n = read(fd, text, sizeof text - 1);
    const bool looked = fstat(fd, &st) == 0;
    close(fd);
    if (n > 0 && sscanf(text, "%79s %ld", host, &pid) == 2 && !strcmp(host, folder->host) && pid > 0 &&
        kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    /* Of one that does not say whose it is, its owner has ended as it was made, or touches it all the same. */
    const double patience = n > 0 ? LB_PART_PATIENCE : LB_PART_PATIENCE / 4.0;
    if (!looked || !folder_clock(folder, &now)) return false;
    const double age = now - touched_at(&st);
    return age > patience || (age < -1 && was_left_alone(folder, claim, st.st_mtim, patience));
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

static int open_claim(const lb_part_folder *folder, const char *path)
{
    char text[128];
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const int n = snprintf(text, sizeof text, "%s %ld\n", folder->host, (long)getpid());
    if (fd < 0) return fd;
    /* One that bears no name grows old as any other. */
    const ssize_t written = write(fd, text, (size_t)n);
    (void)written;
    return fd;
}

static void hold_claim(lb_part_folder *folder, int fd)
{
    pthread_mutex_lock(&folder->lock);
    const int old = folder->claim;
    folder->claim = fd;
    pthread_mutex_unlock(&folder->lock);
    if (old >= 0) close(old);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static bool listed(const lb_input_names *names, const char *name)
{
    return names->n && bsearch(&name, names->rows, names->n, sizeof *names->rows, lb_by_text) != NULL;
}

/* False: another worker is at it, or has just done it. */
static bool claim(lb_part_folder *folder, const char *path, bool there)
{
    if (there && !is_abandoned(folder, path)) return false;
    if (there) unlink(path);
    const int fd = open_claim(folder, path);
    if (fd >= 0) hold_claim(folder, fd);
    /* Where claims cannot be made the work is done all the same. */
    return fd >= 0 || errno != EEXIST;
}

typedef struct round_state {
    const lb_part_loop *loop;
    uint64_t done, begun; /* of this round; begun: by this worker */
} round_state;

static lb_status save_chunk(const char *path, const byte_buffer *frame, lb_err *err)
{
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    /* A part that a power cut takes is made again. */
    how.replace = true, how.sync = LB_OUTPUT_SYNC_NEVER;
    return lb_output_save(path, &how, frame->bytes, frame->size, err);
}

static lb_status try_chunk(lb_part_folder *folder, round_state *round, uint64_t chunk, const lb_input_names *names,
                           lb_err *err)
{
    char part[96], claimed[96];
    chunk_name(part, round->loop->name, chunk, "part"), chunk_name(claimed, round->loop->name, chunk, "claim");
    if (listed(names, part)) return round->done++, LB_OK;
    char *claim_path = path_in(folder, claimed), *part_path = path_in(folder, part);
    lb_status status = claim_path && part_path ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a name");
    /* The list may be old by now. */
    if (status == LB_OK && lb_input_is_file(part_path)) {
        round->done++;
    } else if (status == LB_OK && claim(folder, claim_path, listed(names, claimed))) {
        byte_buffer frame = {0};
        status = round->loop->make(round->loop->context, chunk, &frame, err);
        if (status == LB_OK) status = save_chunk(part_path, &frame, err);
        hold_claim(folder, -1);
        unlink(claim_path);
        buffer_release(&frame);
        round->begun++, round->done++;
    }
    free(claim_path), free(part_path);
    return status;
}

/* A worker that the start before had lost may have come first, and taken the folder away as the last of that start. */
static bool make_again(const lb_part_folder *folder)
{
    if (!folder->again || lb_input_is_folder(folder->path)) return false;
    const int failed = lb_output_folder_make(folder->path, LB_OUTPUT_SYNC_NEVER);
    return !failed || failed == EEXIST;
}

static void wait_for_others(unsigned *milliseconds)
{
    const struct timespec time = {0, (long)*milliseconds * 1000000};
    nanosleep(&time, NULL);
    if (*milliseconds < 250) *milliseconds *= 2;
}

lb_status lb_part_folder_fill(lb_part_folder *folder, const lb_part_loop *loop, uint64_t *made, lb_err *err)
{
    round_state round = {.loop = loop};
    /* Workers begin at different places, so that they seldom want the same. */
    const uint64_t start = folder->workers ? loop->chunks * (folder->worker % folder->workers) / folder->workers : 0;
    unsigned milliseconds = 4;
    for (;;) {
        lb_input_names names = {0};
        lb_err why = LB_ERR_INIT;
        lb_status status = lb_input_list(folder->path, &names, &why);
        if (status == LB_ERR_NOT_FOUND && make_again(folder)) continue;
        if (status == LB_ERR_NOT_FOUND) lb_err_clear(&why);
        if (status == LB_ERR_NOT_FOUND)
            status = lb_fail(&why, LB_ERR_PARTIAL, "%s: the other workers are done", folder->path);
        round.done = round.begun = 0;
        for (uint64_t i = 0; i < loop->chunks && status == LB_OK; i++) {
            status = try_chunk(folder, &round, (start + i) % loop->chunks, &names, &why);
            if (loop->progress) loop->progress("parts", round.done, loop->chunks);
        }
        lb_input_names_release(&names);
        *made += round.begun;
        if (status != LB_OK && status != LB_ERR_PARTIAL && make_again(folder)) continue;
        if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
        if (round.done == loop->chunks) return LB_OK;
        if (round.begun)
            milliseconds = 4;
        else
            wait_for_others(&milliseconds);
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The first worker says what is asked; those that come later must ask the same. */
static lb_status agree(lb_part_folder *folder, const lb_parts_job *job, lb_err *err)
{
    char *path = path_in(folder, "job");
    lb_parts_job there = {0};
    byte_buffer frame = {0};
    lb_part_file_job(&frame, job);
    lb_status status = path && !frame.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && !lb_input_is_file(path)) status = save_chunk(path, &frame, err);
    if (status == LB_OK) status = lb_parts_job_read(folder->path, &there, err);
    if (status == LB_OK && !lb_parts_job_equal(job, &there))
        status = lb_fail(err, LB_ERR_INVALID,
                         "%s: holds parts of another question, `lastbit %s …`, of files that have changed since, "
                         "or of another build of lastbit: name another folder",
                         folder->path, there.words[0]);
    lb_parts_job_release(&there);
    buffer_release(&frame), free(path);
    return status;
}

static lb_status enter_once(lb_part_folder *folder, const lb_parts_job *job, lb_err *err)
{
    struct stat st;
    const int failed = lb_output_folder_make(folder->path, LB_OUTPUT_SYNC_NEVER);
    if (failed && failed != EEXIST)
        return lb_fail(err, LB_ERR_IO, "%s: cannot be made: %s", folder->path, strerror(failed));
    if (stat(folder->path, &st) == 0 && !S_ISDIR(st.st_mode))
        return lb_fail(err, LB_ERR_EXISTS, "%s: is there, and is not a folder", folder->path);
    return agree(folder, job, err);
}

/* The last worker of a start before may take the folder away in the midst of it. */
static lb_status enter(lb_part_folder *folder, const lb_parts_job *job, lb_err *err)
{
    enum { TRIES = 5 };
    for (int tries = 1;; tries++) {
        lb_err why = LB_ERR_INIT;
        const lb_status status = enter_once(folder, job, &why);
        if (status == LB_OK) return LB_OK;
        if (tries == TRIES || lb_input_is_folder(folder->path)) return lb_fail(err, status, "%s", why.message);
    }
}

static char *left_by(const lb_part_folder *folder)
{
    char name[32];
    snprintf(name, sizeof name, "left-%u", folder->worker);
    return path_in(folder, name);
}

static void unlink_in(const lb_part_folder *folder, const char *name)
{
    char *path = path_in(folder, name);
    if (path) unlink(path);
    free(path);
}

/* Where this worker has left already the folder is of a start that ended before its last worker came: it lost one. What
 * was told then was told then, and this start tells it again. The first of it that comes takes away who told and who
 * left; that it was before is seen by the times, which are the file system's. */
static void begin_again(lb_part_folder *folder)
{
    char *left = left_by(folder), *told = path_in(folder, "told");
    struct stat mine, its;
    lb_input_names names = {0};
    folder->again = left && told && folder->workers && lstat(left, &mine) == 0;
    if (folder->again) {
        const bool before = lstat(told, &its) != 0 || touched_at(&its) <= touched_at(&mine);
        if (before && lb_input_list(folder->path, &names, NULL) == LB_OK)
            for (uint32_t i = 0; i < names.n; i++)
                if (!strncmp(names.rows[i], "left-", 5)) unlink_in(folder, names.rows[i]);
        if (before) unlink(told);
        unlink(left);
    }
    lb_input_names_release(&names);
    free(left), free(told);
}

lb_status lb_part_folder_open(const char *path, const lb_parts_job *job, uint32_t worker, uint32_t workers,
                              lb_part_folder **out, lb_err *err)
{
    lb_part_folder *folder = calloc(1, sizeof *folder);
    if (!folder || !(folder->path = strdup(path))) {
        free(folder);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a folder of parts");
    }
    folder->worker = worker, folder->workers = workers, folder->claim = -1;
    name_host(folder->host);
    snprintf(folder->beat, sizeof folder->beat, "%s-%ld.beat", folder->host, (long)getpid());
    pthread_mutex_init(&folder->lock, NULL), pthread_cond_init(&folder->changed, NULL);
    lb_status status = enter(folder, job, err);
    if (status == LB_OK) begin_again(folder);
    folder->beats = status == LB_OK && pthread_create(&folder->thread, NULL, keep_beating, folder) == 0;
    if (status != LB_OK) {
        lb_part_folder_close(folder, false);
        return status;
    }
    *out = folder;
    return LB_OK;
}

lb_status lb_part_folder_answer(lb_part_folder *folder, const void *answer, size_t n, int code, bool *mine, lb_err *err)
{
    char *kept = path_in(folder, "answer"), *told = path_in(folder, "told");
    byte_buffer frame = {0};
    lb_part_record body = {0};
    int32_t exit_code = code;
    *mine = false;
    lb_part_record_i32(&body, &exit_code);
    lb_part_record_bytes(&body, &answer, &n);
    lb_part_file_frame(&frame, &body.written);
    lb_status status = kept && told && !frame.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    make_again(folder);
    /* Another worker that writes it writes the same. */
    if (status == LB_OK && !lb_input_is_file(kept)) status = save_chunk(kept, &frame, err);
    const int fd = status == LB_OK ? open(told, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (status == LB_OK && fd < 0 && errno != EEXIST)
        status = lb_fail(err, LB_ERR_IO, "%s: cannot be made: %s", told, strerror(errno));
    *mine = fd >= 0;
    if (fd >= 0) close(fd);
    lb_part_record_release(&body), buffer_release(&frame);
    free(kept), free(told);
    return status;
}

/* Of as many workers as there are; a name that is no file of ours stays, and the folder with it. */
static void leave(lb_part_folder *folder)
{
    lb_input_names names = {0};
    uint32_t gone = 0;
    char *path = left_by(folder);
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd >= 0) close(fd);
    free(path);
    if (lb_input_list(folder->path, &names, NULL) == LB_OK)
        for (uint32_t i = 0; i < names.n; i++) gone += strncmp(names.rows[i], "left-", 5) == 0;
    for (uint32_t i = 0; gone >= folder->workers && i < names.n; i++) {
        const char *const dot = strrchr(names.rows[i], '.'), *const one = names.rows[i];
        const bool ours = (dot && (!strcmp(dot, ".part") || !strcmp(dot, ".claim") || !strcmp(dot, ".beat"))) ||
                          !strcmp(one, "job") || !strcmp(one, "answer") || !strcmp(one, "told") ||
                          !strncmp(one, "left-", 5) || lb_output_is_draft(one);
        char *file = ours ? path_in(folder, one) : NULL;
        if (file) unlink(file);
        free(file);
    }
    if (gone >= folder->workers) rmdir(folder->path);
    lb_input_names_release(&names);
}

void lb_part_folder_close(lb_part_folder *folder, bool remove)
{
    if (!folder) return;
    pthread_mutex_lock(&folder->lock);
    folder->ends = true;
    pthread_cond_signal(&folder->changed);
    pthread_mutex_unlock(&folder->lock);
    if (folder->beats) pthread_join(folder->thread, NULL);
    hold_claim(folder, -1);
    char *beat = path_in(folder, folder->beat);
    if (beat) unlink(beat);
    free(beat);
    if (remove && folder->workers) leave(folder);
    pthread_mutex_destroy(&folder->lock), pthread_cond_destroy(&folder->changed);
    for (uint32_t i = 0; i < folder->n_watched; i++) free(folder->watched[i].claim);
    free(folder->watched), free(folder->path), free(folder);
}
