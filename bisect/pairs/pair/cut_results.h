/* Results of modules that every rank of one side has whole, and of which those of the other have parts: a sequence that
 * only activations share out. Private to cut_tensors.c. */
#ifndef LB_BISECT_CUT_RESULTS_H
#define LB_BISECT_CUT_RESULTS_H

#include "pair/cut_tensors.h"

/* Names the module of the first such result of the first rank; of sides of as many ranks. False: out of memory. */
bool lb_cut_results_find(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
                         lb_cut_tensors *out);

#endif
