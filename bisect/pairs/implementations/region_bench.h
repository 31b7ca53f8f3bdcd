/* One side's part of a region by itself, to be run exactly with something in it changed.
 *
 *      leaves (numbers of the last runs) ─▶ the region's ops, as `own` has them now ─▶ what the region gives
 *
 * Trials are small: the ops of a region, and no chained run. */
#ifndef LB_BISECT_REGION_BENCH_H
#define LB_BISECT_REGION_BENCH_H

#include "implementations/implementations.h"

/* Regions that are larger say little by one number, and cost much. */
enum { LB_REGION_BENCH_MOST_OPS = 128, LB_REGION_BENCH_MOST_LEAVES = 64 };

typedef struct lb_region_bench {
    lb_exact_side *side;
    uint32_t *ops, n_ops; /* without ops: it cannot be run */
    uint32_t leaves[LB_REGION_BENCH_MOST_LEAVES], n_leaves, output;
    double *numbers[LB_REGION_BENCH_MOST_LEAVES]; /* that it begins with */
    double *target;                               /* what it is to give; taken over */
    int64_t elements, work;                       /* of the output; of all that a trial computes */
    double noise;
} lb_region_bench;

/* Those of all regions, and what each side gave in the run that their leaves' numbers are of. */
typedef struct lb_region_benches {
    lb_implementations *x;
    uint32_t *maker[2];         /* per value: the op that lists it among what it gives; LB_NONE */
    lb_region_bench (*list)[2]; /* per region: of A and of B */
    double **kept[2];
} lb_region_benches;

/* Visits each region whose named op is a guess and whose two parts can be run, with the numbers that they begin with
 * and are to give: one run of either side, B's from A's numbers. With `updates` regions of the optimizer, too, of which
 * one part alone may be there to run: of several that are alike the smallest. Nothing where ranks have values in parts.
 * Fails as `visit` does, or with LB_ERR_NOMEM. */
lb_status lb_region_benches_each(lb_implementations *x, bool updates,
                                 lb_status (*visit)(void *context, lb_region_benches *benches, uint32_t region,
                                                    lb_err *err),
                                 void *context, lb_err *err);
/* Does it end at what an optimizer leaves? */
bool lb_region_bench_is_update(const lb_implementations *x, const lb_region *region);
/* Do both sides compute the same ops with the same numbers in two regions, one of each parameter? */
bool lb_region_bench_are_alike(const lb_implementations *x, const lb_region *a, const lb_region *b);
/* Another one of a side of that region, which goes on from `stop` as from a leaf, and has no number for it yet. */
lb_status lb_region_bench_from(lb_region_benches *benches, uint32_t region, int side, uint32_t stop,
                               lb_region_bench *out, lb_err *err);
/* What the part gives as its program is now. `*out`: malloc'ed; NULL where it cannot be run. */
lb_status lb_region_bench_run(const lb_region_bench *bench, double **out, lb_err *err);
/* Does it give these numbers? */
lb_status lb_region_bench_gives(const lb_region_bench *bench, const double *numbers, bool *same, lb_err *err);
void lb_region_bench_release(lb_region_bench *bench);

#endif
