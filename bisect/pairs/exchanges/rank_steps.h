/* The steps of a capture of several ranks, one after the other. */
#ifndef LB_BISECT_RANK_STEPS_H
#define LB_BISECT_RANK_STEPS_H

#include "base/array.h"

#include <lastbit/archive.h>

typedef struct lb_rank_steps {
    lb_capture *capture;
    const int32_t *ranks;
    uint32_t n_ranks;
    int64_t step; /* the one at hand */
} lb_rank_steps;

static inline lb_rank_steps lb_rank_steps_of(lb_capture *capture)
{
    lb_rank_steps at = {.capture = capture};
    at.n_ranks = lb_capture_ranks(capture, &at.ranks);
    return at;
}

/* The row of a rank among those of a capture, which are sorted; LB_NONE. */
static inline uint32_t lb_rank_steps_row(const int32_t *ranks, uint32_t n, int32_t rank)
{
    if (rank >= 0 && (uint32_t)rank < n && ranks[rank] == rank) return (uint32_t)rank; /* all of them were recorded */
    const size_t row = lb_array_first(ranks, n, sizeof *ranks, &rank, lb_by_i32);
    return row < n && ranks[row] == rank ? (uint32_t)row : LB_NONE;
}

/* Calls `check` at each step until it fails. */
static inline lb_status lb_rank_steps_each(lb_rank_steps *at, lb_status (*check)(void *context), void *context)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(at->capture, &steps);
    lb_status status = LB_OK;
    for (uint32_t s = 0; s < n && status == LB_OK; s++) {
        at->step = steps[s];
        status = check(context);
    }
    return status;
}

#endif
