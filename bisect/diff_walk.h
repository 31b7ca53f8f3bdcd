/* One walk over A's program in execution order, which spreads verdicts along storages. Private to diff*.c.
 *
 * A is the side that calls its layers less often, or is fewer programs: `swapped` says that it is not the first side of the
 * report.
 */
#ifndef LB_BISECT_DIFF_WALK_H
#define LB_BISECT_DIFF_WALK_H

#include "diff_report.h"
#include "meeting.h"
#include "noise.h"
#include "reorder.h"
#include "shadow_pair.h"
#include "taint.h"

/* What the inputs of an op bring along. */
typedef struct lb_inflow {
    lb_verdict verdict, carried; /* as in a taint */
    bool differ;                 /* some input has other bits */
    bool apart, flipped;
    uint32_t suspect;
} lb_inflow;

enum { LB_SETTLED = 1, LB_AWAITED = 2 };

typedef struct lb_walk {
    const lb_side *a, *b;
    const lb_program *pa, *pb; /* a->program, b->program */
    bool swapped, uneven;      /* uneven: B calls its layers more often, or is more programs */
    lb_alignment alignment;
    lb_shadow_pair shadows;
    bool have_shadows;
    lb_reordering *reorderings; /* per op of A, or NULL */
    lb_noise noise;             /* of other runs of the first side; no runs: none were given */
    lb_meetings meetings;       /* of A, where it is several ranks */
    lb_inflow brought;          /* by all members of the collective at hand */
    uint8_t *differs;           /* per op of A: its pair or join has other bits, or nobody knows */
    uint8_t *settled; /* per op of A: a suspect that was judged (LB_SETTLED), or whose judgement was looked for in vain (LB_AWAITED) */
    lb_taints *storages;        /* of this rank, over the steps */
    lb_diff_report *report;
    /* Worst verdict of what became Python numbers so far: constants made later may follow from it. */
    lb_verdict decided;
} lb_walk;

/* Needs `alignment`, `differs`, and where something differs `shadows`. Fills the report. LB_ERR_NOMEM is the only failure. */
lb_status lb_walk_program(lb_walk *walk, lb_err *err);
/* A row speaks of A's ops by their place in the whole: into the report, of the first side's by their place in one program. */
void lb_walk_report(const lb_walk *walk, const lb_diff_row *row);

#endif
