/* One walk over both sides of a step in execution order, which turns what is known into rows of the report.
 *
 * What needs a replay was found before (shadow_pair.h, divergence.h): whether an aligned pair computes the same
 * function, what leaves the step differently, and where that began. The walk follows bits: which op made a difference,
 * which op inherited it, and what came in from outside (sources, draws, decisions, the steps before). A is the side
 * that calls its layers less often, or is fewer programs; `swapped` says that A is not the first side of the report. */
#ifndef LB_BISECT_DIFF_WALK_H
#define LB_BISECT_DIFF_WALK_H

#include "pair/cut_tensors.h"
#include "diff/diff_report.h"
#include "pair/fused_sources.h"
#include "shadow/logged_scalars.h"
#include "merged/merged_steps.h"
#include "merged/met_storages.h"
#include "shadow/noise.h"
#include "program/owner.h"
#include "rank_pairs/rank_plan.h"
#include "shadow/reorder.h"
#include "merged/taint.h"

/* What the inputs of an op bring along. */
typedef struct lb_diff_flow_source {
    lb_verdict verdict, carried; /* as in a taint */
    bool differ;                 /* some input has different bits */
    uint32_t lone[2];            /* as in a taint */
    uint32_t met;                /* as in a taint */
} lb_diff_flow_source;
#define LB_INFLOW_NONE ((lb_diff_flow_source){LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, false, {LB_NONE, LB_NONE}, 0})

/* A collective, or a message, of a rank that is judged without the others, where bits of it differ: what the others
 * brought is known when all ranks are put together (diff_many.h). */
typedef struct lb_diff_exchange {
    lb_diff_row row; /* as it stands in the report but for verdicts; `index` and `other` are its ops on the two sides */
    bool given, differs; /* what this rank brought; what it received */
    lb_verdict brought;  /* the worst that this rank's own ops put into it */
    uint32_t met;        /* as in a taint, of what it brought */
} lb_diff_exchange;

typedef struct lb_diff_exchanges {
    lb_diff_exchange *list; /* in order; number i is `met` i + 1 */
    uint32_t n;
} lb_diff_exchanges;

/* Numbers that Python read so far: constants made later, and arguments, may follow from them. */
typedef struct lb_read_numbers {
    lb_verdict verdict; /* the worst of what they follow from */
    double ratio;       /* by how much they differ at most, relative to the larger one */
    bool integers;      /* some integer or bool differs */
    uint32_t met;       /* as in a taint */
} lb_read_numbers;

/* What is kept of one rank, or of all that are taken together, from step to step. */
typedef struct lb_diff_walk_past {
    /* the sides split their input, or their calls, into different steps: steps of one number have different tokens */
    bool other_steps;
    lb_taints storages[2]; /* of either side */
    lb_read_numbers read;
    lb_fused_sources fused;
    lb_met_storages met;
    lb_rank_plan plan;
    lb_diff_exchanges *exchanges; /* NULL: the members of collectives are at hand, or not known */
    int64_t first;                /* the first step that was compared */
    bool any;                     /* some step was */
    bool cut; /* in some step the sides split a tensor differently (cut_tensors.h), and not all of it is known */
} lb_diff_walk_past;

enum {
    LB_SETTLED_REWRITE = 1, /* of a layer that the sides compute by different ops */
    LB_SETTLED_CAST = 2     /* of a cast that loses most (lossy_cast.h) */
};

/* The layer of a rank that last held partial results which the two sides do not share. */
typedef struct lb_rewritten_layer {
    uint32_t scope, phase, part;
    bool any;
} lb_rewritten_layer;

typedef struct lb_diff_walk {
    const lb_program_view *a, *b;
    const lb_program *pa, *pb; /* a->program, b->program */
    bool swapped, uneven;      /* uneven: B calls its layers more often, or is more programs */
    lb_alignment alignment;
    lb_step_outputs exits;
    lb_logged_scalars scalars; /* logged or read numbers that differ */
    lb_shadow_pair shadows;
    bool have_shadows;
    lb_merged_steps merged;
    lb_divergences divergences;
    lb_cut_tensors cuts;
    /* the sides split some tensor differently, in this step or before: what is rounding is unknown, except for what an
     * op makes of its own inputs */
    bool cut;
    bool held_otherwise; /* parameters without a partner on both sides, in a step behind the first */
    /* some call is given more rows on one side, in a step that begins with what an earlier one may have rounded */
    bool given_more;
    /* what a difference that leads to a sink inherits: DIVERGED, or MISSING where it is unknown of every divergence
     * whether it is one */
    lb_verdict led;
    lb_reordering *reorderings; /* per op of A, or NULL */
    lb_noise noise;             /* of other runs of the first side; no runs: none were given */
    lb_collective_matches collective_matches[2];
    lb_owners *owners[2];         /* of either side's ops; NULL: not asked for yet */
    lb_rewritten_layer rewritten; /* counted last */
    lb_diff_flow_source brought;  /* by all members of the collective at hand */
    uint8_t *differs;             /* per op of A: its pair or join has different bits, or it is unknown */
    uint8_t *settled;             /* per op of A, then of B: bits LB_SETTLED_… of rows that are written at it */
    uint32_t *divergence_of;      /* per node: row of divergences, LB_NONE: it is none */
    int64_t *extents[2];          /* per storage of the merged program's flows: elements that any value of it reaches */
    lb_taints *storages;          /* two: the past's, of A and of B */
    lb_diff_walk_past *past;
    lb_diff_report *report;
} lb_diff_walk;

/* The program of a side: 0 is A. */
static inline const lb_program *lb_diff_walk_side(const lb_diff_walk *walk, int side)
{
    return side ? walk->pb : walk->pa;
}

static inline lb_aligned_views lb_diff_walk_views(const lb_diff_walk *walk)
{
    return (lb_aligned_views){walk->a, walk->b, &walk->alignment, walk->collective_matches};
}

/* Needs `alignment`, `collective_matches`, `differs`, `exits` and where something differs `shadows`. Fills the report.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_diff_walk_program(lb_diff_walk *walk, lb_err *err);

#endif
