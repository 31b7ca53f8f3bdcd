/* Output distances: how far the ends of recorded steps (step_end.h) are from the recording, or from another one, run
 * by run. */
#ifndef LB_REPLAY_OUTPUT_DISTANCE_H
#define LB_REPLAY_OUTPUT_DISTANCE_H

#include "session/step_end.h"
#include "session/snapshot.h"

#include <lastbit/routing.h>

/* Two sets that want the same values in the same order: of a run without swaps, which stands in for bytes that were not
 * kept, and of the run at hand. All 0 but for `capture` to begin with; without a capture the run without swaps is what
 * is compared with. */
typedef struct lb_output_distance {
    lb_capture *capture;
    const lb_routing_other *other; /* what is compared with, if not the recording itself */
    lb_snapshots reference, current;
    struct lb_output_distance_end *ends;
    uint32_t n_ends;
} lb_output_distance;

/* What a step of a rank ends in. */
typedef struct lb_output_distance_end {
    const lb_program *program;
    const char *layer; /* of the output; "": none, or the outermost module itself */
    lb_step_end output, loss;
    uint32_t output_row, loss_row;
} lb_output_distance_end;

/* Row of both sets; LB_NONE as of lb_snapshots_want. */
uint32_t lb_output_distance_want(lb_output_distance *gaps, const lb_program *program, uint32_t value, uint32_t before);
/* The ends of a step, wanted from now on: the next row of gaps->ends. */
lb_status lb_output_distance_add_end(lb_output_distance *gaps, const lb_program *program, lb_err *err);
/* What the recording has of a value; where its bytes were not kept, what the run without swaps computed. False:
 * neither. */
bool lb_output_distance_recorded(const lb_output_distance *gaps, const lb_program *program, uint32_t value,
                                 uint32_t row, lb_tensor *tensor);
/* Relative Euclidean distances of the run at hand from what it is compared with, at row `end`; NaN: not known. */
void lb_output_distance_measure(const lb_output_distance *gaps, uint32_t end, double *output, double *loss);
/* |x - y| / |y|; NaN for other sizes and for y = 0. */
void lb_output_distance_release(lb_output_distance *gaps);

/* Every program that a plan runs, rank by rank. */
lb_status lb_output_distance_each_window(lb_capture *capture, const lb_plan *plan,
                                         lb_status (*visit)(void *context, const lb_program *program, lb_err *err),
                                         void *context, lb_err *err);

#endif
