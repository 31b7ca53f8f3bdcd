/* Both sides of an aligned step replayed: each op against its own recording (A/A), and the exact shadows
 * against each other. This is where "rounding or bug" is decided; diff.c only spreads the answers along the
 * program.
 */
#ifndef LB_BISECT_SHADOW_PAIR_H
#define LB_BISECT_SHADOW_PAIR_H

#include "align.h"

#include <lastbit/replay.h>

typedef enum lb_agreement { LB_SHADOW_UNKNOWN, LB_SHADOW_AGREES, LB_SHADOW_DISAGREES } lb_agreement;

/* Per op of A. */
typedef struct lb_shadow_row {
    lb_agreement agreement; /* of the aligned pair's results and written values */
    lb_verdict own[2];      /* A/A verdict of A's and of B's op; MISSING when it was not replayed */
    double bound_ratio[2];  /* NaN: not computed */
} lb_shadow_row;

/* What a parameter holds at the end of the step: the same on both sides, whatever ops wrote it. */
typedef struct lb_shadow_final {
    uint32_t op[2], value[2]; /* the last op of each side that wrote it, and the value that left */
    lb_agreement agreement;
} lb_shadow_final;

typedef struct lb_shadow_pair {
    lb_shadow_row *rows; /* per op of A */
    uint32_t n_rows;
    lb_shadow_final *finals; /* parameters whose digests differ at the end */
    uint32_t n_finals;
    bool undecided[2]; /* a chain ended before the end of the step */
    bool over_memory;  /* some shadows were not kept: their rows stay unknown */
} lb_shadow_pair;

/* Finds the finals: named sources of A with a partner that both sides write. Before the run, which judges them. */
lb_status lb_shadow_pair_init(const lb_program *pa, const lb_program *pb, const lb_alignment *alignment,
                              lb_shadow_pair *out, lb_err *err);
/* `wanted[i]` (per op of A): compare the shadows of that pair. Replays one step of one rank of each side. */
lb_status lb_shadow_pair_run(lb_capture *a, lb_capture *b, const lb_program *pa, const lb_program *pb,
                             const lb_alignment *alignment, const uint8_t *wanted, uint64_t memory_bytes,
                             lb_shadow_pair *out, lb_err *err);
void lb_shadow_pair_release(lb_shadow_pair *pair);

#endif
