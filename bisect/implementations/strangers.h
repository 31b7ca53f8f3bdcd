/* Are two captures two implementations of one model, to be compared by values alone? */
#ifndef LB_BISECT_STRANGERS_H
#define LB_BISECT_STRANGERS_H

#include "program_view.h"

/* All ranks of each run, with ops; of one rank each, forward passes in one order. */
bool lb_strangers_may_be_compared(lb_capture *a, lb_capture *b);
/* And one rank each, without collectives. */
bool lb_strangers_run_alone(lb_capture *a, lb_capture *b);
/* And hardly a parameter of one has its name on the other: what lines up by names is chance. */
bool lb_strangers_are(lb_capture *a, lb_capture *b);
/* Or one side's adapters are in the other side's weights (merged_adapters.h): a tensor that both call base_layer.weight is no pair then. */
bool lb_strangers_hold_merged(lb_capture *a, lb_capture *b);

#endif
