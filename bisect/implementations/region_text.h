/* Why the two sides do not compute the same function in a region, in one sentence. */
#ifndef LB_BISECT_REGION_TEXT_H
#define LB_BISECT_REGION_TEXT_H

#include "implementations.h"

/* 700 bytes are enough. */
void lb_region_text(const lb_implementations *result, const lb_region *region, char *text, size_t size);

#endif
