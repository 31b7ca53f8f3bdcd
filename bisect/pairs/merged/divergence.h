/* Finds where two programs first compute something different. The search starts at what leaves a step and goes back
 * along the data dependences to the first results that differ although everything they depend on is the same.
 *
 *      A:  x ──▶ up ──▶ gelu ──▶ down ──▶ add ──▶ logits       up    same on both sides
 *      B:  x ──▶ up ──▶ silu ──▶ down ──▶ add ──▶ logits       down  apart, and gelu and silu alone stand between it and what
 *                       ▲                                            is the same: the difference was made there
 *                       origin of `down`: gelu, silu           add   apart because down is: it inherits
 *
 * The merged program has one node for ops of both sides that are one quantity; ops without a partner stand by
 * themselves. A node is `same` when exact arithmetic gives the same numbers there, or when both sides go on from the
 * same recorded numbers. It is `apart` when exact arithmetic gives different ones. From every sink (what leaves the
 * step) that is apart, the search goes back through the ops of both sides at once and stops at nodes that are the same.
 * A node that is apart and from which the search reaches no other node that is apart is a divergence. Nodes that are
 * apart but lead to no sink are none: two sides may take different ways to the same result, and partners that were
 * paired by name may be no partners.
 *
 * A node is not a divergence either where everything that its phase computes from it is the same again: a softmax in
 * blocks masks its scores differently and gives the same result. Backward reads such inner values a second time; there
 * the search passes through them.
 *
 * Pure: no I/O, no programs; tests/bisect/pairs/merged/test_divergence.c has it as a table. */
#ifndef LB_BISECT_DIVERGENCE_H
#define LB_BISECT_DIVERGENCE_H

#include <lastbit/program.h>

typedef enum lb_node_state {
    LB_NODE_SAME,   /* nothing differs here in exact arithmetic */
    LB_NODE_APART,  /* it does */
    LB_NODE_UNKNOWN /* could not be run exactly: the search goes on through it */
} lb_node_state;

/* One quantity of both sides: ops of A (one) and of B (one, or the parts of a join), rows of lb_merged.ops. */
typedef struct lb_node {
    uint32_t first[2], n[2];
    uint8_t state;
    /* The integers differ although exact arithmetic agrees: the two sides made different choices here, or it follows
     * from such a choice. Both shadows go on from one side's choice; what depends on its shape cannot. */
    bool flipped;
    bool told;     /* the same, and by numbers that are more than rounding noise on both sides (shadow_numbers.h) */
    bool integers; /* its integers or bools differ */
    /* unknown, and it reads terms of a sum that ranks of one side hold apart: a difference that comes through it begins
     * here */
    bool takes_terms;
} lb_node;

/* Can an op that stands on one side only be to blame? */
enum {
    LB_BLAME_NOT,   /* it computes nothing: copies, casts, views */
    LB_BLAME_OP,    /* it computes something */
    LB_BLAME_MOVE,  /* it puts parameters together, each number as it is: only where nothing else is to blame */
    LB_BLAME_SOURCE /* it brings weights or states of which the other side has different ones, or none */
};

typedef struct lb_merged_side {
    uint32_t n_ops;
    const uint32_t *first_pred, *preds; /* preds[first_pred[i], first_pred[i + 1]): the ops that op i reads from */
    const uint32_t *node_of;            /* per op: its node; LB_NONE: it stands on this side only */
    const uint8_t *may_differ;          /* per op: LB_BLAME_…, when it has no node */
    const uint8_t *phase;               /* per op: lb_phase; NULL: all are of one */
} lb_merged_side;

/* What leaves the step. */
typedef struct lb_sink {
    uint32_t node;  /* LB_NONE: a value that `op` gives, which is apart */
    bool inputs;    /* asks whether the node's inputs are apart, not the node itself: decisions, collectives */
    uint32_t op[2]; /* node LB_NONE: the op of A and of B that gives it; LB_NONE: none */
} lb_sink;

typedef struct lb_merged {
    lb_merged_side sides[2];
    const lb_node *nodes;
    uint32_t n_nodes;
    const uint32_t *ops;
    const lb_sink *sinks;
    uint32_t n_sinks;
} lb_merged;

typedef struct lb_divergence {
    uint32_t node, sink; /* the node; LB_NONE: the sink with that row is itself what differs first */
    bool flipped;        /* it follows from a choice that the two sides made differently */
    bool integers;       /* the node's */
    bool sources[2];     /* a source that has no partner is among what it follows from, per side */
    /* rows of lb_divergences.lone, per side: ops that only this side runs, between what is the same and the node */
    uint32_t first[2], n[2];
} lb_divergence;

typedef struct lb_divergences {
    lb_divergence *list;
    uint32_t n;
    uint8_t *leads; /* per node: apart, and it leads to a sink that is */
    uint32_t *lone, n_lone;
} lb_divergences;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_divergences_find(const lb_merged *merged, lb_divergences *origins, lb_err *err);
void lb_divergences_release(lb_divergences *origins);

#endif
