/* Inside of lb_probe_run (lastbit/order.h): one kernel, asked for many sums at a time. probe.c asks, probe_tree.c makes
 * a tree of the answers, probe_arithmetic.c checks it with random terms.
 *
 * Terms are numbered as sampled: term t lies at position[t] of the kernel's row, all other positions hold zero. */
#ifndef LB_REPLAY_PROBE_H
#define LB_REPLAY_PROBE_H

#include <lastbit/order.h>

/* What stands for a huge term and for a unit: a sum of `most` units is exact, and all of them vanish beside a huge
 * one. */
typedef struct lb_probe_units {
    double huge, unit;
    uint32_t most;
} lb_probe_units;

typedef struct lb_prober {
    const lb_probe_kernel *kernel;
    lb_probe_options options;
    uint64_t random;
    const uint32_t *position;
    uint32_t terms;
    lb_probe_units units;
    double response; /* the sum of one unit: unit, but for a mean */
    /* Where the results of the group at hand are: rows that may hold different terms, and a column for each. */
    uint32_t *row, *column, rows;
    uint64_t probes, calls;
} lb_prober;

/* A number below n. */
uint32_t lb_prober_random(lb_prober *prober, uint32_t n);

/* An ordinary number of the dtype, not too far from 1. */
void lb_prober_random_term(lb_prober *prober, void *to);
static inline lb_sum_of lb_probe_sum_of(lb_probe_form form)
{
    return form == LB_PROBE_COLUMNS ? LB_SUM_COLUMN : form >= LB_PROBE_DOT ? LB_SUM_PRODUCT : LB_SUM_ROW;
}

/* What is added up: `fill` writes the terms of sum i into a row of zeros. */
typedef struct lb_probe_terms {
    void (*fill)(void *context, uint64_t i, void *terms);
    void *context;
    const void *factors; /* of products; NULL: ones */
} lb_probe_terms;
/* `count` sums. */
lb_status lb_prober_sums(lb_prober *prober, uint64_t count, const lb_probe_terms *terms, double *sums, lb_err *err);

/* How many of the terms in `set` (and `extra`, unless LB_PROBE_NONE) are below the node where i and j meet, those two
 * counted. */
#define LB_PROBE_NONE UINT32_MAX
typedef struct lb_probe_query {
    uint32_t i, j, extra, count;
    const uint32_t *set;
    uint32_t size; /* the answer; LB_PROBE_NONE: the sum is no number of units */
} lb_probe_query;
lb_status lb_prober_ask(lb_prober *prober, lb_probe_query *queries, uint32_t count, lb_err *err);

/* A symbol of a shared object, called in this process: probe_library.c does so in a child. */
lb_status lb_probe_symbol(const lb_probe_shape *shape, const char *path, const char *symbol, lb_probe_kernel *kernel,
                          lb_err *err);

/* The tree of the group at hand, or why there is none (LB_OK too: group->outcome, group->reason). */
lb_status lb_probe_find_tree(lb_prober *prober, lb_probe_group *group, lb_err *err);
/* Fills arithmetic, confirmed and tried. `tree` is over all terms of the kernel, or NULL: group->tree over those
 * sampled. */
lb_status lb_probe_confirm(lb_prober *prober, const lb_sum_tree *tree, lb_probe_group *group, lb_err *err);

#endif
