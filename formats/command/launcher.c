/* Launchers and what they put into the environment:
 *
 *     Slurm        srun sets SLURM_STEP_ID and SLURM_PROCID of SLURM_STEP_NUM_TASKS; a batch script outside srun has no
 *                  step (man srun, OUTPUT ENVIRONMENT VARIABLES)
 *     Open MPI     OMPI_COMM_WORLD_RANK of OMPI_COMM_WORLD_SIZE; PMIX_NAMESPACE is the job's (mpirun(1), PMIx standard)
 *     MPICH        hydra's PMI_RANK of PMI_SIZE and MPI_LOCALNRANKS, and no name of the job: on one host its parent is
 *                  the same for all; in a job of Slurm the step is, in which srun began its proxies
 *     torchrun     RANK of WORLD_SIZE, TORCHELASTIC_RUN_ID, which is "none" unless it was given, and a port that is
 *                  mostly the default; TORCHELASTIC_ERROR_FILE lies in a folder that each agent makes anew, two
 *                  above the rank's own (torch.distributed.elastic.multiprocessing.api, DefaultLogsSpecs)
 *     Kubernetes   an indexed Job sets JOB_COMPLETION_INDEX; how many there are a manifest says in JOB_COMPLETIONS
 *
 * One of them that starts another (srun a torchrun, mpirun its proxies by srun) leaves its own behind: the innermost
 * that is known comes first. What srun says of hydra's proxies is not of their ranks. */
#include "command/launcher.h"

#include <lastbit/digest.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool number_of(const char *name, uint32_t *number)
{
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    const unsigned long value = strtoul(text, &end, 10);
    *number = (uint32_t)value;
    return !*end && value < UINT32_MAX;
}

static bool find_in(const char *launcher, const char *rank, const char *size, lb_launcher *found)
{
    if (!number_of(rank, &found->number) || !number_of(size, &found->of) || found->number >= found->of) return false;
    found->launcher = launcher;
    return true;
}

/* What the variable says, behind what the name has already. */
static void add_to_name(lb_launcher *launcher, const char *variable)
{
    const char *text = getenv(variable);
    const size_t n = strlen(launcher->job);
    if (text) snprintf(launcher->job + n, sizeof launcher->job - n, "%s%s", n ? "." : "", text);
}

static void name_job(lb_launcher *launcher, const char *first, const char *second)
{
    if (!getenv(first)) return;
    add_to_name(launcher, first);
    if (second) add_to_name(launcher, second);
}

static bool on_one_host(const char *ranks_here, const lb_launcher *launcher)
{
    uint32_t here = 0;
    return number_of(ranks_here, &here) && here == launcher->of;
}

static void name_torchrun(lb_launcher *launcher)
{
    const char *file = getenv("TORCHELASTIC_ERROR_FILE");
    name_job(launcher, "TORCHELASTIC_RUN_ID", "MASTER_PORT");
    if (!*launcher->job) return;
    add_to_name(launcher, "MASTER_ADDR"), add_to_name(launcher, "SLURM_JOB_ID");
    const char *again = getenv("TORCHELASTIC_RESTART_COUNT");
    if (again) snprintf(launcher->again, sizeof launcher->again, "%s", again);
    if (!file || !on_one_host("LOCAL_WORLD_SIZE", launcher)) return;
    size_t n = strlen(file);
    for (int above = 0; above < 3 && n; above++)
        for (n--; n && file[n] != '/'; n--) {
        }
    const lb_digest folder = lb_digest_bytes(file, n);
    const size_t there = strlen(launcher->job);
    snprintf(launcher->job + there, sizeof launcher->job - there, ".%016llx", (unsigned long long)folder.lo);
}

static void name_hydra(lb_launcher *launcher)
{
    char host[64] = "";
    if (on_one_host("MPI_LOCALNRANKS", launcher)) {
        gethostname(host, sizeof host - 1);
        snprintf(launcher->job, sizeof launcher->job, "%s.parent-%ld", host, (long)getppid());
    } else if (getenv("SLURM_STEP_ID")) {
        name_job(launcher, "SLURM_JOB_ID", "SLURM_STEP_ID");
    }
}

bool lb_launcher_find(lb_launcher *worker)
{
    memset(worker, 0, sizeof *worker);
    if (find_in("torchrun", "RANK", "WORLD_SIZE", worker)) {
        name_torchrun(worker);
    } else if (find_in("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", worker)) {
        name_job(worker, "PMIX_NAMESPACE", NULL);
        if (!*worker->job) name_job(worker, "OMPI_MCA_ess_base_jobid", NULL);
    } else if (getenv("MPI_LOCALNRANKS") && find_in("MPICH", "PMI_RANK", "PMI_SIZE", worker)) {
        name_hydra(worker);
    } else if (getenv("SLURM_STEP_ID") && find_in("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", worker)) {
        name_job(worker, "SLURM_JOB_ID", "SLURM_STEP_ID");
        if (getenv("SLURM_RESTART_COUNT"))
            snprintf(worker->again, sizeof worker->again, "%s", getenv("SLURM_RESTART_COUNT"));
    } else if (find_in("MPICH", "PMI_RANK", "PMI_SIZE", worker)) {
        name_hydra(worker);
    } else if (find_in("Kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", worker)) {
        name_job(worker, "JOB_NAME", NULL);
    }
    return worker->launcher && worker->of > 1;
}
