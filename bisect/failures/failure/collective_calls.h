/* Collectives that do not match: what each rank called at the k-th collective of a group in a step.
 *
 *      rank 0   all_reduce(sum) of f32[128]     all_reduce(sum) of f32[64]
 *      rank 1   all_reduce(sum) of f32[128]     all_reduce(sum) of f32[32]        ◀ another size
 *      rank 2   all_reduce(sum) of f32[128]     (none)                            ◀ never came
 *
 * Compared are op, reduction, dtype, size and root, and where gradients enter their names: two of one size in another
 * order are summed without any error. Sends and receives are not collectives. A call that failed has no group in the
 * recording: it is taken to be of the group in which that rank is one behind. A step that a rank did not end lacks
 * calls, too: that is a mismatch only beside a step that another rank did end, or in which another rank's call failed.
 */
#ifndef LB_BISECT_COLLECTIVE_CALLS_H
#define LB_BISECT_COLLECTIVE_CALLS_H

#include <lastbit/archive.h>

typedef struct lb_call_mismatch {
    int64_t step;
    uint64_t sequence; /* in its group, as the first rank numbers it */
    char *group;
    int32_t *ranks; /* those that stand against the others; all where there is no majority */
    uint32_t n_ranks;
    int32_t rank; /* one of them, and its op; LB_NONE: it never came */
    uint32_t op;
    char *message; /* which collective, and what each rank called */
} lb_call_mismatch;

typedef struct lb_collective_calls {
    lb_call_mismatch *list; /* the first of each group and step */
    uint32_t n;
    uint32_t compared; /* collectives that were */
} lb_collective_calls;

lb_status lb_collective_calls_check(lb_capture *capture, lb_collective_calls *calls, lb_err *err);
void lb_collective_calls_release(lb_collective_calls *calls);

#endif
