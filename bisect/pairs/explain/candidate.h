/* Lists candidates: changes of kernel, precision or summation order that may turn one side's bits into the other's.
 * Cheap and likely ones come first. */
#ifndef LB_BISECT_CANDIDATE_H
#define LB_BISECT_CANDIDATE_H

#include "pair/program_view.h"

#include <lastbit/digest.h>
#include <lastbit/explain.h>
#include <lastbit/order.h>

typedef struct lb_candidate {
    lb_cause cause; /* what it is a change of */
    char name[128]; /* "own", "torch:4", "bf16, splitk:4" */
    char alike[96]; /* other names of the same order for that many terms: "blocked:64" */
    lb_swap swaps[2];
    uint32_t n_swaps;
    char arguments[2][128]; /* of the swaps */
    bool local;             /* what it makes of an element depends on that element's terms alone */
    uint32_t few; /* not believed on fewer elements than this: it has a parameter that would fit them by chance */
} lb_candidate;

/* Files with trees of the user's (lastbit/order.h), tried where a sum has as many terms. */
typedef struct lb_candidate_trees {
    const char *const *paths;
    uint32_t leaves[16], n;
} lb_candidate_trees;

/* Reads them once, so that a file that is none is told before anything is tried. */
lb_status lb_candidate_trees_read(const char *const *paths, uint32_t n, lb_candidate_trees *trees, lb_err *err);

/* Digests of the trees of orders, kept since a model asks for the same ones at every layer. All zero: none yet. */
typedef struct lb_candidate_digest {
    uint32_t terms;
    lb_sum_of of;
    char order[128];
    lb_digest tree; /* none: the order has no tree here */
    bool rounded;   /* of rounded products, not of chains of fma: one tree gives two results then */
} lb_candidate_digest;

typedef struct lb_candidate_digests {
    lb_candidate_digest *rows;
    uint32_t n;
} lb_candidate_digests;
void lb_candidate_digests_release(lb_candidate_digests *digests);

/* The ops that candidates are wanted for: rows of `program`. */
typedef struct lb_candidate_ops {
    const lb_program *program;
    const uint32_t *ops;
    uint32_t n_ops;
    const lb_program *alone; /* the ops as a program of their own, in which composites are looked for; may be NULL */
    bool only_orders;        /* nothing but orders is asked for */
    lb_candidate_digests *digests; /* may be NULL */
} lb_candidate_ops;

/* Lists the candidates that can change what these ops give. list[0] is "own": no change. `trees` may be NULL.
 * malloc'ed. */
lb_status lb_candidates_list(const lb_candidate_ops *ops, const lb_candidate_trees *trees, lb_candidate **list,
                             uint32_t *n, lb_err *err);

/* Where NCCL told the order of a collective among the other side's ops (rows of the whole of `other`), puts that order
 * right behind "own" in the list. */
void lb_candidates_put_recorded_first(const lb_program_view *other, const uint32_t *ops, uint32_t n_ops,
                                      lb_candidate *list, uint32_t *n);

/* Terms of each element of a product; 0: not known. */
int64_t lb_candidate_inner_dimension(const lb_program *program, const lb_op *product);

#endif
