/* Which worker of how many this process is, as the launcher that started it says in the environment. */
#ifndef LB_LAUNCHER_H
#define LB_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct lb_launcher {
    const char *launcher; /* "Slurm", … */
    uint32_t number, of;  /* number: from 0 on */
    char job[200];        /* the same for all workers of one start, and no other's; "": the launcher gives none */
    char again[40];       /* how often the job was started again; "" where that is not told */
} lb_launcher;

/* False: no launcher says so, or this process is the only one. */
bool lb_launcher_find(lb_launcher *worker);

#endif
