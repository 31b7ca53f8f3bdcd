/* What each op of a step rounded by itself: its recorded result less what it gives in f64 from its recorded inputs.
 *
 *      recorded   x ──▶ op ──▶ y           own rounding = y - op_f64(x)
 *
 * An exact run to whose results these differences are added goes through the recorded numbers: the rounding of an op is
 * what it adds there, and no more. With the differences of some ops alone it goes to where their rounding alone leads.
 */
#ifndef LB_BISECT_ROUNDING_LOG_H
#define LB_BISECT_ROUNDING_LOG_H

#include "check/rounding_sums.h"

#include "moved/moved_run.h"

/* One result beside its exact numbers. */
typedef struct lb_rounding_size {
    int64_t numbers; /* 0: nothing is known of it */
    lb_rounding_apart apart;
    lb_rounding_counts counts;
} lb_rounding_size;

typedef struct lb_rounding_log {
    const lb_moved_run *run;
    lb_rounding_size *sizes; /* per value */
    float **rounded;         /* per value, row-major; NULL: nothing was rounded, or it is not known */
    uint8_t *wanted;         /* per value: its recorded numbers are kept, whatever the recording has of them */
    double **kept;           /* per value, row-major; NULL */
    uint32_t last;           /* op behind which nothing is kept */
    uint64_t read;           /* bytes of the recording since its pages were given back */
    uint32_t unknown;        /* ops whose exact numbers are not known */
    uint32_t first_unknown;
    uint8_t *shown; /* per value: its exact numbers came by */
    /* Told of every result of which both are known, a block after the other, `n` numbers from `from` on; may be NULL.
     */
    void (*note)(void *context, uint32_t op, uint32_t value, const double *recorded, const double *exact, int64_t from,
                 int64_t n);
    void *context;
    bool failed; /* out of memory */
} lb_rounding_log;

/* All empty; LB_ERR_NOMEM is the only failure. */
lb_status lb_rounding_log_open(const lb_moved_run *run, lb_rounding_log *log, lb_err *err);
/* Its numbers will be asked for: of a window on all of a result those of the result. */
void lb_rounding_log_want(lb_rounding_log *log, uint32_t value);
/* One isolated replay of the step, of all ranks that have a log. What ops behind `last` rounded is measured and not
 * kept. What a collective rounds is known where all its members have one. */
lb_status lb_rounding_log_make(lb_capture *capture, lb_rounding_log *const *logs, uint32_t n, lb_err *err);
/* The recorded numbers of a value, malloc'ed, in row-major order; NULL: there are none. `*n`: how many. */
double *lb_rounding_log_numbers(const lb_rounding_log *log, uint32_t value, int64_t *n);
void lb_rounding_log_release(lb_rounding_log *log);
/* Is value `k` of the op's outcomes one that was not listed before it? What is written in place is a result, too. */
bool lb_rounding_log_is_first(const lb_program *program, uint32_t op, uint32_t k);

#endif
