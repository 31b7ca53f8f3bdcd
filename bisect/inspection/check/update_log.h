/* Updates that parameters of few digits absorb: what optimizers added to an element is not zero, and it has not moved.
 *
 * What is added is the sum over the ops of the optimizer that write the parameter, each in f64 from recorded inputs.
 * A parameter that a copy writes has its digits elsewhere (a master, stochastic rounding), and so has one that the
 * optimizer reads again behind its update (a compensated sum): of those nothing is said. */
#ifndef LB_BISECT_UPDATE_LOG_H
#define LB_BISECT_UPDATE_LOG_H

#include "moved/moved_run.h"
#include "parts/part_record.h"

#include <lastbit/check.h>

/* One tensor over the window of steps. */
typedef struct lb_update_row {
    char name[160];
    char group[96]; /* "AdamW group 0" */
    lb_dtype dtype;
    int64_t updates, absorbed;           /* elements by steps */
    int64_t last_updates, last_absorbed; /* of the last step */
    int64_t decays, absorbed_decays;     /* products by a number near one */
    int64_t step;                        /* the last one */
    uint32_t op;                         /* of it, the last op that writes the tensor */
} lb_update_row;

typedef struct lb_update_window {
    lb_update_row *rows;
    uint32_t n;
    uint32_t lost;    /* parameters by steps whose numbers were not kept */
    uint32_t carried; /* parameters whose digits are kept elsewhere */
    bool failed;
} lb_update_window;

void lb_update_window_release(lb_update_window *window);

/* One step. */
typedef struct lb_update_log {
    const lb_moved_run *run;
    struct lb_update_tensor *tensors;
    uint32_t n;
    bool failed;
} lb_update_log;

bool lb_update_log_open(const lb_moved_run *run, lb_update_log *log);
/* As lb_rounding_log.note. */
void lb_update_log_note(void *context, uint32_t op, uint32_t value, const double *recorded, const double *exact,
                        int64_t from, int64_t n);
/* Adds the step to the window, and frees it. */
void lb_update_log_close(lb_update_log *log, lb_update_window *window);
/* As a record, both ways (check_record.c). */
void lb_update_window_record(lb_part_record *record, lb_update_window *window);
/* Adds a step that was counted in a window of its own: steps in their order. False: no memory. */
bool lb_update_window_add(lb_update_window *window, const lb_update_window *step);
/* Rows of groups and tensors, and findings. `program`: of the last step. */
bool lb_update_window_tell(const lb_update_window *window, const lb_program *program, const char *path,
                           lb_check_report *report);

#endif
