/* Launchers and what they put into the environment:
 *
 *     Slurm        srun sets SLURM_STEP_ID and SLURM_PROCID of SLURM_STEP_NUM_TASKS; a batch script outside srun has no
 *                  step (man srun, OUTPUT ENVIRONMENT VARIABLES)
 *     Open MPI     OMPI_COMM_WORLD_RANK of OMPI_COMM_WORLD_SIZE; PMIX_NAMESPACE is the job's (mpirun(1), PMIx standard)
 *     MPICH        hydra's PMI_RANK of PMI_SIZE, and no name of the job: on one host its parent is the same for all
 *     torchrun     RANK of WORLD_SIZE, TORCHELASTIC_RUN_ID (torch.distributed.run)
 *     Kubernetes   an indexed Job sets JOB_COMPLETION_INDEX; how many there are a manifest says in JOB_COMPLETIONS
 *
 * One of them that starts another (srun a torchrun) leaves its own behind: the innermost that is known comes first. */
#include "command/launcher.h"

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

static bool find_in(const char *launcher, const char *rank, const char *size, lb_launcher *w)
{
    if (!number_of(rank, &w->number) || !number_of(size, &w->of) || w->number >= w->of) return false;
    w->launcher = launcher;
    return true;
}

static void name_job(lb_launcher *w, const char *first, const char *second)
{
    const char *a = getenv(first), *b = second ? getenv(second) : NULL;
    if (a) snprintf(w->job, sizeof w->job, "%s%s%s", a, b ? "." : "", b ? b : "");
}

bool lb_launcher_find(lb_launcher *w)
{
    memset(w, 0, sizeof *w);
    if (find_in("torchrun", "RANK", "WORLD_SIZE", w)) {
        name_job(w, "TORCHELASTIC_RUN_ID", "MASTER_PORT");
    } else if (find_in("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", w)) {
        name_job(w, "PMIX_NAMESPACE", NULL);
        if (!*w->job) name_job(w, "OMPI_MCA_ess_base_jobid", NULL);
    } else if (getenv("SLURM_STEP_ID") && find_in("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", w)) {
        name_job(w, "SLURM_JOB_ID", "SLURM_STEP_ID");
        if (getenv("SLURM_RESTART_COUNT")) snprintf(w->again, sizeof w->again, "%s", getenv("SLURM_RESTART_COUNT"));
    } else if (find_in("MPICH", "PMI_RANK", "PMI_SIZE", w)) {
        uint32_t here = 0;
        if (number_of("MPI_LOCALNRANKS", &here) && here == w->of)
            snprintf(w->job, sizeof w->job, "parent-%ld", (long)getppid());
    } else if (find_in("Kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", w)) {
        name_job(w, "JOB_NAME", NULL);
    }
    return w->launcher && w->of > 1;
}
