/* Finds a module whose result the ranks of one side each hold whole, while the ranks of the other side hold parts of
 * it. Sequence parallelism does that: weights are whole on every rank, and activations alone are shared out. Private to
 * cut_tensors.c. */
#ifndef LB_BISECT_CUT_RESULTS_H
#define LB_BISECT_CUT_RESULTS_H

#include "pair/cut_tensors.h"

/* Writes the path of the first such module, in the order of the first rank, to `out->result`. Both sides have the same
 * number of ranks. False: out of memory. */
bool lb_cut_results_find(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
                         lb_cut_tensors *out);

#endif
