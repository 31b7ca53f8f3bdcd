/* What selective scans are written with, for their recognisers. */
#ifndef LB_REPLAY_SCAN_PARTS_H
#define LB_REPLAY_SCAN_PARTS_H

#include "composites/recogniser.h"

/* The op behind casts and copies, whatever they do to the layout; `*reading` becomes what it made. */
uint32_t lb_scan_maker(const lb_recogniser *recogniser, lb_reading *reading);
uint32_t lb_scan_maker_of_arg(const lb_recogniser *recogniser, uint32_t op, uint32_t i);
const lb_layout *lb_scan_layout(const lb_recogniser *recogniser, uint32_t value);
/* A product of matrices. */
bool lb_scan_is_product(const lb_recogniser *recogniser, uint32_t op);
bool lb_scan_is_exp(const lb_recogniser *recogniser, uint32_t op);
/* The leaves of a tree of products of elements; false when there are more than `room`. */
bool lb_scan_factors(const lb_recogniser *recogniser, lb_reading reading, lb_reading *leaves, uint32_t *n,
                     uint32_t room);

#endif
