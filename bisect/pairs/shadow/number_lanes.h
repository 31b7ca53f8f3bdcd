/* Eight numbers at once, with the compiler's own vectors: a comparison gives all bits or none. For functions that are
 * compiled for several processors (lastbit/processor.h). */
#ifndef LB_BISECT_NUMBER_LANES_H
#define LB_BISECT_NUMBER_LANES_H

#include <stdint.h>

enum { LB_LANES = 8 };

typedef double lb_eight __attribute__((vector_size(8 * LB_LANES)));
typedef int64_t lb_eight_bits __attribute__((vector_size(8 * LB_LANES)));

/* x where `which` is all bits, and 0; x there, and y elsewhere; |x|. */
#define LB_LANES_CHOSEN(which, x) ((lb_eight)((which) & (lb_eight_bits)(x)))
#define LB_LANES_EITHER(which, x, y) ((lb_eight)(((which) & (lb_eight_bits)(x)) | (~(which) & (lb_eight_bits)(y))))
#define LB_LANES_SIZES(x) ((lb_eight)((lb_eight_bits)(x) & INT64_MAX))

#endif
