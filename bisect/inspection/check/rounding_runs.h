/* Exact runs of one step to whose results the rounding of some ops is added: how far the loss, the logits and the
 * gradients move from where they are without any. All ranks of the step run together, so that what they exchange is
 * exact, too: the loss is then the mean over those that have one. */
#ifndef LB_BISECT_ROUNDING_RUNS_H
#define LB_BISECT_ROUNDING_RUNS_H

#include "check/rounding_log.h"
#include "moved/trained.h"

#include <lastbit/check.h>

/* A value that is compared, with its exact numbers. */
typedef struct lb_rounding_aim {
    uint32_t value;
    bool gradient; /* else logits */
    double *exact; /* of the run without rounding; NULL: none came by */
} lb_rounding_aim;

/* One rank. */
typedef struct lb_rounding_runs {
    lb_moved_run *run;
    const lb_rounding_log *log;
    lb_rounding_aim *aims;
    uint32_t n_aims;
    uint32_t *aim_of; /* per value; LB_NONE */
    uint32_t last;    /* the last op that gives a loss or an aim */
    /* Behind the first run: per site of the moved run the product of the gradient with what its value rounded, and the
     * sum of the squares of the terms. */
    double *products, *spreads;
    /* Per value that `watch` marks: its exact numbers of the first run, and how far all rounding together carries them:
     * the largest distance, and sums of squares. */
    uint8_t *watch;
    double **exact;
    lb_rounding_apart *apart;
} lb_rounding_runs;

/* Lists what is compared. The log is made afterwards, for ops up to `last`. */
lb_status lb_rounding_runs_open(lb_moved_run *run, const lb_trained *trained, const lb_rounding_log *log,
                                lb_rounding_runs *runs, lb_err *err);
void lb_rounding_runs_close(lb_rounding_runs *runs);

/* All ranks of a step. */
typedef struct lb_rounding_ranks {
    lb_rounding_runs **list;
    uint32_t n, losses; /* losses: ranks that have one */
    double loss;        /* exact, the sum of all that a rank has, and of that the mean */
    double recorded;    /* as it was recorded; NaN: it was not kept */
    double sizes[2];    /* sums of the squares of all exact logits, of all gradients */
    double reach;       /* the largest exact logit, by its size */
} lb_rounding_ranks;

/* Without any rounding. LB_ERR_UNSUPPORTED: they cannot run together. */
lb_status lb_rounding_ranks_first(lb_rounding_ranks *ranks, lb_err *err);
/* With that of the ops that `added` marks (per rank and op; NULL: of all, which fills `apart`): relative distances from
 * the first run. */
lb_status lb_rounding_ranks_add(lb_rounding_ranks *ranks, uint8_t *const *added, lb_check_effect *effect, lb_err *err);

#endif
