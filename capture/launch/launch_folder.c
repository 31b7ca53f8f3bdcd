/* Making and tidying the folder of a capture: see launch_folder.h. */
#define _GNU_SOURCE
#include "launch/launch_folder.h"
#include "launch/launch.h"

#include <lastbit/input.h>
#include <lastbit/maintenance.h>
#include <lastbit/output.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOB_LENGTH = 256, JOIN_TRIES = 40, JOIN_PAUSE_US = 50000 };

bool lb_launch_is_archive(const char *name)
{
    size_t n = strlen(name);
    return strncmp(name, "rank-", 5) == 0 && n > 9 && strcmp(name + n - 4, ".tar") == 0;
}

static bool is_ours(const char *name)
{
    int32_t rank;
    uint32_t generation;
    return lb_launch_is_archive(name) || lb_launch_is_note(name) || lb_output_is_draft(name) ||
           strcmp(name, LB_LAUNCH_JOB) == 0 || lb_ring_file_parse(name, &rank, &generation);
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* What launchers tell each of several processes. `job`: NULL: the launcher has no name for it, and is told by its
 * process, which started all of them on this machine. */
static const struct {
    const char *size, *rank, *job;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess_base_jobid"},
    {"PMI_SIZE", "PMI_RANK", "PMI_JOBID"},
    {"PMI_SIZE", "PMI_RANK", NULL}, /* MPICH's mpirun */
    {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID"},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

/* Which launcher started us as one of several; -1 when none did. */
static int launcher(void)
{
    for (int i = 0; i < LAUNCHERS; i++) {
        const char *size = getenv(launchers[i].size), *job = launchers[i].job ? getenv(launchers[i].job) : "parent";
        if (!size || atoi(size) < 2 || !job || !*job || !getenv(launchers[i].rank)) continue;
        /* Slurm's batch script is one process, however many tasks it may start. */
        if (strncmp(launchers[i].size, "SLURM", 5) == 0 && !getenv("SLURM_STEP_ID")) continue;
        return i;
    }
    return -1;
}

/* Of the process that started us: its number, and when it started, as numbers come again. */
static void parent_name(char *name)
{
    char path[64], text[1024] = "";
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)getppid());
    FILE *file = fopen(path, "re");
    const size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = 0;
    const char *at =
        strrchr(text, ')'); /* behind its name, which may hold anything: field 3, and the 22nd is asked for */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (at) started = strtoull(at, NULL, 10);
    snprintf(name, JOB_LENGTH, "parent=%d.%llu", (int)getppid(), started);
}

static bool job_name(char *name)
{
    int i = launcher();
    const char *step = getenv("SLURM_STEP_ID");
    if (i >= 0 && launchers[i].job)
        snprintf(name, JOB_LENGTH, "%s=%s.%s", launchers[i].job, getenv(launchers[i].job), step ? step : "");
    else if (i >= 0)
        parent_name(name);
    return i >= 0;
}

bool lb_launch_is_shared(void)
{
    return launcher() >= 0;
}

bool lb_launch_is_first(void)
{
    int i = launcher();
    return i < 0 || strcmp(getenv(launchers[i].rank), "0") == 0;
}

/* Where it cannot be written those who come later will say that the folder is there. */
static void leave_name(const char *folder, const char *job)
{
    char *path = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = true;
    how.sync = LB_OUTPUT_SYNC_NEVER;
    if (asprintf(&path, "%s/" LB_LAUNCH_JOB, folder) < 0) return;
    lb_output_save(path, &how, job, strlen(job), NULL);
    free(path);
}

/* -1 when no name is there, 1 when it is `job`, 0 when it is another. */
static int compare_name(int dir, const char *job)
{
    char name[JOB_LENGTH + 1];
    int file = openat(dir, LB_LAUNCH_JOB, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, name, sizeof name - 1);
    if (file >= 0) close(file);
    if (n <= 0) return -1;
    name[n] = 0;
    return strcmp(name, job) == 0;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static lb_status remove_all(const char *folder, const lb_input_names *names, lb_err *err)
{
    const int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return lb_fail(err, LB_ERR_IO, "%s: %s", folder, strerror(errno));
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < names->n && status == LB_OK; i++)
        if (unlinkat(dir, names->rows[i], 0) != 0 && errno != ENOENT)
            status = lb_fail(err, LB_ERR_IO, "%s/%s: %s", folder, names->rows[i], strerror(errno));
    close(dir);
    return status;
}

/* Removes the archives of an earlier run, so that no rank of it is taken for one of the new run; nothing else, and
 * nothing before all names are known. */
static lb_status clear(const char *folder, lb_err *err)
{
    lb_input_names names;
    lb_err why = LB_ERR_INIT;
    lb_status status = LB_OK;
    if (lb_input_list(folder, &names, &why) != LB_OK)
        status = lb_fail(err, LB_ERR_EXISTS, "%s; nothing was removed, choose another name with -o", why.message);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++)
        if (!is_ours(names.rows[i]))
            status = lb_fail(err, LB_ERR_EXISTS,
                             "%s is not a capture: it holds %s; nothing was removed, choose another name with -o",
                             folder, names.rows[i]);
    if (status == LB_OK) status = remove_all(folder, &names, err);
    lb_input_names_release(&names);
    return status;
}

static lb_status refuse(const char *folder, lb_err *err)
{
    return lb_fail(err, LB_ERR_EXISTS, "%s is there already; choose another name with -o, or replace it with --force",
                   folder);
}

/* One of several processes: the first to hold the lock clears and names the folder, the others find the name. */
static lb_status share(const char *folder, bool made, bool force, const char *job, lb_err *err)
{
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return lb_fail(err, LB_ERR_EXISTS, "%s: %s; choose another name with -o", folder, strerror(errno));
    lb_status status = LB_OK;
    for (int attempt = 0;; attempt++) {
        flock(dir, LOCK_EX); /* a file system without locks: --force on old captures is a race there */
        int named = compare_name(dir, job);
        if (named == 1) break;
        if (!made && force) status = clear(folder, err);
        if (made || force) {
            if (status == LB_OK) leave_name(folder, job);
            break;
        }
        flock(dir, LOCK_UN);
        if (named == 0 || attempt == JOIN_TRIES) { /* who made it may be about to name it */
            status = refuse(folder, err);
            break;
        }
        usleep(JOIN_PAUSE_US);
    }
    close(dir);
    return status;
}

lb_status lb_launch_folder_make(const char *folder, bool force, char **absolute, lb_err *err)
{
    char job[JOB_LENGTH];
    const int why = lb_output_folder_make(folder, LB_OUTPUT_SYNC_CLOSE);
    const bool made = why == 0;
    if (!made && why != EEXIST)
        return lb_fail(err, LB_ERR_IO, "%s: %s; create its parent, or choose another place with -o", folder,
                       strerror(why));
    if (job_name(job))
        LB_TRY(share(folder, made, force, job, err));
    else if (!made)
        LB_TRY(force ? clear(folder, err) : refuse(folder, err));
    if (chmod(folder, 0700) != 0) return lb_fail(err, LB_ERR_IO, "%s: %s", folder, strerror(errno));
    *absolute = realpath(folder, NULL);
    return *absolute ? LB_OK : lb_fail(err, LB_ERR_IO, "%s: %s", folder, strerror(errno));
}

void lb_launch_folder_tidy(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir) return;
    bool holds = false;
    for (struct dirent *entry; errno = 0, (entry = readdir(dir));) {
        holds = holds || lb_launch_is_archive(entry->d_name);
        /* A draft is that of a process which was killed; where others may still be writing it is unknown whose it
         * is. */
        const bool dead = lb_output_is_draft(entry->d_name) && !lb_launch_is_shared();
        if (lb_launch_is_note(entry->d_name) || dead) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (!holds && errno == 0) unlinkat(dirfd(dir), LB_LAUNCH_JOB, 0); /* else not all that it holds is known */
    closedir(dir);
    rmdir(folder);
}

void lb_launch_folder_drop(const char *folder)
{
    if (clear(folder, NULL) == LB_OK) rmdir(folder);
}
