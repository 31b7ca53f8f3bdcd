/* Replicas: tensors that ranks hold in common, and whether they still are bit-equal.
 *
 * A parameter whose gradient is all-reduced over a group is the same on each of its members, and so is its optimizer
 * state; where no gradient is scattered, the parameters without a gradient are, too. Of tensors that say which part of
 * a larger one they are (lastbit/shard.h) those are compared that are the same part of it. Other shards (expert
 * parallelism by hand) are not: their gradients are scattered, reduced over another group or over none. Nor is a rank's
 * own part of a flat whole (ZeRO's partitions): it reaches an all-gather by copies alone; the parameters that are
 * windows on what is gathered are replicas again. Buffers are compared as a note only: running statistics of a
 * BatchNorm belong to one rank unless the program broadcasts them.
 *
 * Ranks that share out one model hold copies, too, whose gradients are not reduced over them: held_copies.h says which.
 * Where the backward of a device may add in any order these drift by rounding alone, so that there only more than that
 * counts.
 *
 * Digests decide, so that no bytes are needed.
 */
#ifndef LB_BISECT_REPLICAS_H
#define LB_BISECT_REPLICAS_H

#include <lastbit/archive.h>

typedef enum lb_replica_kind { LB_REPLICA_PARAMETER, LB_REPLICA_STATE, LB_REPLICA_BUFFER } lb_replica_kind;

typedef struct lb_unequal {
    lb_replica_kind kind;
    char *tensor;   /* the first of them */
    uint32_t count; /* tensors of that kind that became unequal there, on the same ranks */
    int64_t step;
    bool at_first;  /* unequal when the first recorded step begins */
    int32_t *ranks; /* that stand against the others; all, where no majority is */
    uint32_t n_ranks, members;
    int32_t rank; /* the op by which it began, on which rank; op LB_NONE: between two steps, or before the first */
    uint32_t op;
    bool copies;    /* of ranks that compute one model, and not of workers of data parallelism */
    bool unreduced; /* and its gradient was not reduced over them in that step */
} lb_unequal;

typedef struct lb_replicas {
    lb_unequal *list; /* in order of steps */
    uint32_t n;
    uint32_t compared; /* tensors that were */
} lb_replicas;

/* Each tensor once, where it begins. */
lb_status lb_replicas_check(lb_capture *capture, lb_replicas *replicas, lb_err *err);
void lb_replicas_release(lb_replicas *replicas);

#endif
