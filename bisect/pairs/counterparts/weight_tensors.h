/* Tensors of a side that may be a weight of the other's, although their numbers are not: what it holds alone, what it
 * makes of its sources in the step, and what may be codes. */
#ifndef LB_BISECT_WEIGHT_TENSORS_H
#define LB_BISECT_WEIGHT_TENSORS_H

#include "counterparts/tables.h"

/* Each with the value that it is. What a step makes is there with its exact numbers, which stay the side's. */
typedef struct lb_weight_tensors {
    lb_content_tensor *list;
    uint32_t *values, n;
} lb_weight_tensors;

/* Each fills `tensors`, which is to be released even where it gives false: out of memory. */
/* Floats of more than 8 bits that the side begins with, is not given as inputs, and the other does not hold. */
bool lb_weight_tensors_held(const lb_table_question *asked, int side, lb_weight_tensors *tensors);
/* What ops make of such sources and of no input of the model, behind a run that kept it. */
bool lb_weight_tensors_made(const lb_table_question *asked, int side, lb_weight_tensors *tensors);
/* Codes (whole numbers of up to 32 bits, floats of 8) that the side alone holds, and what it makes of them. */
bool lb_weight_tensors_coded(const lb_table_question *asked, int side, lb_weight_tensors *tensors);
void lb_weight_tensors_release(lb_weight_tensors *tensors);

#endif
