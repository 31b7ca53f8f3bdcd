/* A subprogram: a few ops of a recorded program, run by themselves on bits that are handed to them, under any swaps.
 *
 *   leaves (given) ──▶ ops, in the order of the recording ──▶ outputs
 *
 * The ops become a program of their own in which every leaf is a source. It knows nothing of what was recorded beside
 * it, so that one side's program can be run on the other side's bits. Of a side of several ranks each rank's ops become
 * a program, a rank program, and the collectives among them are where these meet.
 */
#ifndef LB_BISECT_SUBPROGRAM_H
#define LB_BISECT_SUBPROGRAM_H

#include "pair/program_view.h"

#include <lastbit/replay.h>

typedef struct lb_subprogram lb_subprogram;

/* What to run: rows of `program`, ascending. A leaf that an op of the list gives is no leaf: the caller's mistake. */
typedef struct lb_subprogram_parts {
    const lb_program *program;
    const uint32_t *ops, *leaves, *outputs;
    uint32_t n_ops, n_leaves, n_outputs;
    /* dense ones of different shapes than recorded; of -1 dimensions, or NULL: as recorded */
    const lb_layout *leaf_layouts, *output_layouts;
    /* of whose parts, one per rank, `program` is made: collectives can be run; NULL: it is one rank's */
    const lb_program_view *ranks;
} lb_subprogram_parts;

/* LB_ERR_UNSUPPORTED: a collective of one rank, or an output that no op of the list gives and that is no leaf. */
lb_status lb_subprogram_new(const lb_subprogram_parts *parts, lb_subprogram **subprogram, lb_err *err);
void lb_subprogram_free(lb_subprogram *subprogram);
/* The ops as a program of their own; the subprogram's. NULL: of several ranks. */
const lb_program *lb_subprogram_program(const lb_subprogram *subprogram);

/* `inputs`: per leaf, of the leaf's dtype and shape, any strides. `results`: per output, row-major, in the dtype in
 * which it is held (wide inside a precision region); data malloc'ed, NULL where nothing computed it. Nothing is left in
 * `results` after a failure. LB_ERR_UNSUPPORTED: an op has no kernel, or a swap concerns none of them. At most four
 * swaps. */
lb_status lb_subprogram_run(const lb_subprogram *subprogram, const lb_tensor *inputs, const lb_swap *swaps,
                            uint32_t n_swaps, lb_tensor *results, lb_err *err);
/* The error bounds of a single op: whether `targets` (per output, in the recorded dtype) lie inside them on these
 * inputs. */
lb_status lb_subprogram_reaches(const lb_subprogram *subprogram, const lb_tensor *inputs, const lb_tensor *targets,
                                bool *reaches, lb_err *err);

#endif
