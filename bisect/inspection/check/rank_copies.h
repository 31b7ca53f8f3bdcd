/* Which parameters of ranks that run together are copies of one, and which are a rank's own: the parts of tensor
 * parallelism, the stages of a pipeline. Copies are moved alike, whatever else has its own direction. */
#ifndef LB_BISECT_RANK_COPIES_H
#define LB_BISECT_RANK_COPIES_H

#include "check/check_step.h"

typedef struct lb_rank_copies {
    uint32_t ranks, n;
    uint32_t *sites;   /* n by ranks: the site of the rank that is a copy of it; LB_NONE: it has none */
    uint8_t *doubtful; /* per group: equal constants, of which some ranks read one thing and some another */
    bool alike;        /* every parameter stands on all ranks, or is known as a part of a larger one */
} lb_rank_copies;

/* Of the parameters that are sites; sets what each site counts. */
lb_status lb_rank_copies_make(lb_check_step *steps, uint32_t ranks, lb_rank_copies *copies, lb_err *err);
void lb_rank_copies_release(lb_rank_copies *copies);
/* The site of a rank; NULL: it has none. */
lb_moved_site *lb_rank_copies_site(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint32_t rank);
uint32_t lb_rank_copies_count(const lb_rank_copies *copies, uint32_t group);
/* The first rank that has it. */
uint32_t lb_rank_copies_first(const lb_rank_copies *copies, uint32_t group);
const char *lb_rank_copies_name(const lb_rank_copies *copies, const lb_check_step *steps, uint32_t group);

#endif
