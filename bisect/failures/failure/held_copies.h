/* Parameters of which several ranks hold copies, though these ranks compute one model together: norms of tensor
 * parallelism, heads of keys and values, routers, what two stages of a pipeline tie. Their gradients need not be
 * reduced over these ranks, in a right program or in a wrong one, so that copies are recognised by something else:
 *
 *      numbers     random bits that are equal on two ranks when the recording begins were copied (model_ranks.h says
 *                  who is asked)
 *      results     an op that reads the parameter gives equal bits, not constant ones, on all ranks
 *      rows        a norm's rows are gathered with those of the other ranks, and one set of weights reads them all
 *      heads       a norm over each of several heads, which the ranks share out
 *      the rest    most of the gradients are reduced over these ranks: then one that is not was forgotten
 *
 * A shard's bias begins as zeros on every rank, and is not taken for a copy. The opposite is found, too: parameters of
 * different layers that began with the same random bits, such as the chunks of a pipeline drawn from one seed.
 */
#ifndef LB_BISECT_HELD_COPIES_H
#define LB_BISECT_HELD_COPIES_H

#include <lastbit/archive.h>

/* A parameter of one rank, and the class of those that are copies of each other. */
typedef struct lb_held_copy {
    const char *name; /* the program's */
    uint32_t rank_row, class;
} lb_held_copy;

/* Two parts of a model that began alike. */
typedef struct lb_held_twins {
    int32_t ranks[2];     /* equal where one rank holds both */
    const char *names[2]; /* of the first parameter of each, the program's */
    uint32_t parameters;
} lb_held_twins;

typedef struct lb_held_copies {
    lb_held_copy *list; /* sorted by rank and name */
    uint32_t n, n_classes;
    lb_held_twins *twins;
    uint32_t n_twins;
    int64_t step; /* the first that was recorded */
} lb_held_copies;

lb_status lb_held_copies_find(lb_capture *capture, lb_held_copies *copies, lb_err *err);
void lb_held_copies_release(lb_held_copies *copies);
/* LB_NONE: it is not known to have copies. */
uint32_t lb_held_copies_class(const lb_held_copies *copies, uint32_t rank_row, const char *name);

#endif
