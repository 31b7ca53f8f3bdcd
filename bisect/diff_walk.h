/* One walk over A's program in execution order, which spreads verdicts along storages. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_WALK_H
#define LB_BISECT_DIFF_WALK_H

#include "diff_report.h"
#include "noise.h"
#include "reorder.h"
#include "shadow_pair.h"
#include "taint.h"

/* One step of one rank of both sides. */
typedef struct lb_walk {
    lb_capture *a, *b;
    const lb_program *pa, *pb;
    lb_alignment alignment;
    lb_shadow_pair shadows;
    bool have_shadows;
    lb_reordering *reorderings; /* per op of A, or NULL */
    lb_noise noise;             /* of other runs of A; no runs: none were given */
    uint8_t *differs;           /* per op of A */
    uint8_t *settled;           /* per op of A: a suspect that was judged */
    lb_taints *storages;        /* of this rank, over the steps */
    lb_diff_report *report;
    lb_verdict
        decided; /* worst verdict of what became Python numbers so far: constants made later may follow from it */
    bool digests_only;
} lb_walk;

/* Digests of results and written values of an aligned pair; of a source and its partner (none: no difference). */
bool lb_walk_pair_differs(const lb_walk *walk, uint32_t op_a, uint32_t op_b);
bool lb_walk_source_differs(const lb_walk *walk, uint32_t op_a);
/* Needs `alignment`, `differs`, and where something differs `shadows`. Fills the report. */
void lb_walk_program(lb_walk *walk);

#endif
