/* Exact runs of one step in which some values are moved: the loss that results, and what backward said that it would
 * be.
 *
 * A site is a value that is moved (a parameter, a result of forward) with the value that backward gave as the
 * derivative of the loss by it. Several sites are moved at once, each by a random direction of its own: what the loss
 * changes by is then the sum of all products of derivative and direction, since a site behind another one is moved
 * beside what it inherits. */
#ifndef LB_BISECT_MOVED_RUN_H
#define LB_BISECT_MOVED_RUN_H

#include "program/prepared.h"
#include "pair/program_view.h"
#include "exact/value_graph.h"

#include <lastbit/replay.h>

enum { LB_MOVED_RUN_SEEDS = 3, LB_MOVED_RUN_MAX_ROOTS = 64 };

typedef struct lb_moved_site {
    uint32_t value;    /* what is moved */
    uint32_t gradient; /* its derivative as backward gave it; LB_NONE: none */
    uint32_t at;       /* op by which sites are ordered */
    uint32_t row;      /* of a parameter: its row; LB_NONE */
    uint32_t read;     /* of a parameter: what its optimizer read as the gradient; LB_NONE */
    /* the row of `width` elements that is not moved: padding's, whose gradient autograd leaves out; -1: none */
    int64_t left_out, width;
    double size;   /* root of the mean square of the value */
    double norm;   /* the same of the gradient */
    double weight; /* of its direction: what a site with a large gradient changes does not drown what the others do */
    double dots[LB_MOVED_RUN_SEEDS]; /* gradient . direction */
    /* of a parameter: what lay in its gradient when the step began, which is no part of the derivative; LB_NONE */
    uint32_t start;
    double start_dots[LB_MOVED_RUN_SEEDS], read_dots[LB_MOVED_RUN_SEEDS];
    /* Of ranks that run together: where the first copy of it stands, which it is moved like (LB_NONE: nowhere else),
     * and what its own dot counts, as one of several copies. */
    uint32_t first_rank, first_site;
    double share;
    bool moved, measured; /* its numbers, and those of its gradient, came by in the first run */
} lb_moved_site;

/* A loss from which backward began: `seed` is the ones that it began with. */
typedef struct lb_root {
    uint32_t value, seed, op;
    double loss; /* of the first run */
    bool seen;
} lb_root;

typedef struct lb_moved_run {
    const lb_program_view *view;
    const lb_program *program;
    lb_prepared *prepared;
    lb_value_graph graph;
    lb_root roots[LB_MOVED_RUN_MAX_ROOTS];
    uint32_t n_roots;
    bool reads; /* quotients are compared with what optimizers read, not with what backward gave */
    lb_moved_site *sites;
    uint32_t n_sites;
    uint32_t *site_of; /* per value: its site; LB_NONE */
    uint8_t *active;   /* per site: the next quotient moves it */
    uint32_t runs;
    bool measured; /* the first run was made */
    /* the runs of all ranks of the step, this one first: they run together, and what they exchange is exact, too;
     * NULL: it runs alone */
    struct lb_moved_run *const *together;
    uint32_t n_together;
    /* told of each op of the first run, whatever is moved later; NULL */
    void (*note)(void *context, const lb_event *event);
    void *context;
    struct lb_memory *spare; /* buffers that its runs hand on (rank_run.h) */
    uint32_t begun;          /* ops of runs that ended before the step did, less those that make whole runs */
    void (*progress)(const char *what, uint64_t done, uint64_t total);
} lb_moved_run;

/* A derivative, and how far it may be off. */
typedef struct lb_quotient {
    double derivative, error;
    double noise; /* the part of the error that is the rounding of f64, which a larger step makes smaller */
    double said;  /* by backward: the sum of the active sites' dots */
    double scale; /* the sum of their absolute values */
} lb_quotient;

/* Which of `n` runs is that of a rank; 0 where none is. */
uint32_t lb_moved_run_of(lb_moved_run *const *runs, uint32_t n, int32_t rank);
/* The exact shadow of all of them, one after the other or together, as `observer` sees it. */
lb_status lb_moved_run_exact(lb_moved_run *const *runs, uint32_t n, const lb_observer *observer, lb_err *err);
lb_status lb_moved_run_open(const lb_program_view *view, lb_moved_run *run, lb_err *err);
void lb_moved_run_close(lb_moved_run *run);
/* False when out of memory, or where the value is a site already. */
bool lb_moved_run_add_site(lb_moved_run *run, uint32_t value, uint32_t gradient, uint32_t at, uint32_t row);
/* The recorded numbers of a value, malloc'ed; NULL: there are none. */
double *lb_moved_run_recorded(const lb_moved_run *run, uint32_t value, lb_tensor *tensor);
/* The first run: sizes, losses, weights and dots of all sites; of those of all ranks that run together, too. */
lb_status lb_moved_run_measure(lb_moved_run *moved, lb_err *err);
/* Along direction `seed` over the active sites, of the losses whose bits `roots` has, by steps of `step` and its half
 * and quarter. Of ranks that run together: the mean of what each rank's losses and sites give. */
lb_status lb_moved_run_quotient(lb_moved_run *run, uint32_t seed, uint64_t roots, double step, lb_quotient *quotient,
                                lb_err *err);

#endif
